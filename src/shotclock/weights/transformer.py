"""The transformer and its connectors from their one file, strictly; each can be had without the other.

Knows headers and modules; no request, run folder or clock.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from shotclock.model.config import connector_configs, transformer_config
from shotclock.model.connector import Connectors
from shotclock.model.transformer import Transformer
from shotclock.weights.checkpoint import CheckpointHeaders, Header, transformer_settings
from shotclock.weights.load import Progress, load_module, require_claimed, require_match

PREFIX = "model.diffusion_model."  # ltx25.md section 1.2
TABLE_DOTS = 2  # in the name of a block's own table, transformer_blocks.0.scale_shift_table; layers have more
CONNECTORS = ("video_embeddings_connector.", "audio_embeddings_connector.")


def split_names(header: Header) -> tuple[dict[str, str], dict[str, str]]:
    """Keys of a transformer file to names of the transformer's and of the connectors' parameters.

    Raises :class:`CheckpointError` where the file holds a tensor that belongs to neither.
    """
    inner = {key: key.removeprefix(PREFIX) for key in header.tensors}
    require_claimed(header, [key for key in inner if key.startswith(PREFIX)])
    connectors = {key: name for key, name in inner.items() if name.startswith(CONNECTORS)}
    return {key: name for key, name in inner.items() if key not in connectors}, connectors


def require_fit(headers: CheckpointHeaders, *, pinned_config: bool) -> None:
    """Refuse a transformer file that is not, name by name and shape by shape, what its config says; reads no weight."""
    settings = transformer_settings(headers.transformer, pinned_config=pinned_config)
    with torch.device("meta"):
        modules = Transformer(transformer_config(settings)), Connectors(*connector_configs(settings))
    for module, names in zip(modules, split_names(headers.transformer), strict=True):
        require_match(module, headers.transformer, names)


def load_transformer(
    header: Header,
    *,
    device: torch.device,
    dtype: torch.dtype,
    pinned_config: bool,
    progress: Progress | None = None,
) -> Transformer:
    """The transformer without its connectors. In bfloat16 as published: its tables stay float32."""
    return load_apart(
        header, device=device, dtype=dtype, pinned_config=pinned_config, on_host=(), as_stored=True, progress=progress
    )


def load_apart(
    header: Header,
    *,
    device: torch.device,
    dtype: torch.dtype,
    pinned_config: bool,
    on_host: Collection[int],
    as_stored: bool,
    progress: Progress | None = None,
) -> Transformer:
    """As :func:`load_transformer`, but for the layers of the blocks ``on_host``, which stay in the mapped file.

    What :func:`shotclock.weights.stream.stream` makes a streamed transformer of; it cannot run before. With
    ``as_stored`` these layers keep the file's dtype, and cost no memory; else they are cast, as a fuse needs it.
    """
    with torch.device("meta"):
        transformer = Transformer(transformer_config(transformer_settings(header, pinned_config=pinned_config)))
    names = split_names(header)[0]
    apart = tuple(f"transformer_blocks.{number}." for number in on_host)
    in_file = [key for key, name in names.items() if name.startswith(apart) and name.count(".") > TABLE_DOTS]
    whole = None if dtype == torch.bfloat16 else dtype
    load_module(transformer, header, names, device=device, dtype=whole, in_file=in_file, progress=progress)
    if whole is not None and not as_stored:
        for number in on_host:
            transformer.transformer_blocks[number].to(whole)
    return transformer.eval().requires_grad_(False)


def load_connectors(header: Header, *, device: torch.device, dtype: torch.dtype, pinned_config: bool) -> Connectors:
    """Both connectors of the transformer file."""
    with torch.device("meta"):
        connectors = Connectors(*connector_configs(transformer_settings(header, pinned_config=pinned_config)))
    load_module(connectors, header, split_names(header)[1], device=device, dtype=dtype)
    return connectors.eval().requires_grad_(False)
