"""Refuses a wrong text encoder: another Gemma, a stock one, or one that the transformer was not trained with.

Told from headers alone: embedding width, layers, projection, gemma_config (ltx25.md sections 2 and 3).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from shotclock.errors import CheckpointError
from shotclock.weights import released
from shotclock.weights.header import Header
from shotclock.weights.identity import EMBEDDING, LAYER, PROJECTION, Kind
from shotclock.weights.settings import transformer_settings

logger = logging.getLogger(__name__)

TOKENIZER = "tokenizer_json"  # tokenizer.json as bytes, ltx25.md section 3
ASSET = "hf_asset__"  # prefix of further tokenizer files as bytes, ltx25.md section 3
WANTED = f"fetch {Kind.TEXT_ENCODER.official_file}"


def _gemma_width(header: Header) -> int | None:
    entries = [entry for name, entry in header.tensors.items() if EMBEDDING.fullmatch(name)]
    return entries[0].shape[1] if entries and len(entries[0].shape) == 2 else None


def _named_gemma(width: int) -> str:
    return f"{released.GEMMA_BY_WIDTH.get(width, 'a Gemma of unknown size')}, width {width:,}"


def require_gemma(header: Header) -> None:
    """Refuse a text encoder whose widths or files are not those of LTX-2.5; raises :class:`CheckpointError`."""
    width = _gemma_width(header)
    if width is None:
        raise CheckpointError(
            f"{header.path.name} has no token embedding: it is one part of a text encoder",
            allowed="one file with Gemma, its projection and its tokenizer",
            way_out=WANTED,
        )
    video, audio = (header.tensors.get(f"{PROJECTION}{stream}_aggregate_embed.weight") for stream in ("video", "audio"))
    if video is None or audio is None or len(video.shape) != 2 or len(audio.shape) != 2:
        raise CheckpointError(
            f"{header.path.name} is a stock Gemma ({_named_gemma(width)}) without text_embedding_projection",
            allowed="Gemma 12B, width 3,840, with the projection of LTX-2.5",
            way_out=WANTED,
        )
    layers = len({match[3] for name in header.tensors if (match := LAYER.match(name))})
    if video.shape[1] != width * (layers + 1):
        raise CheckpointError(
            f"{header.path.name} holds {_named_gemma(width)}, {layers} layers: {width * (layers + 1):,} values a token",
            allowed=f"the {video.shape[1]:,} values a token that its projection takes in",
            way_out=f"this is the wrong Gemma for the projection: {WANTED}",
        )
    _require_gemma_files(header)


def _require_gemma_files(header: Header) -> None:
    config = header.metadata.get("gemma_config")
    if not isinstance(config, Mapping) or not isinstance(config.get("text_config"), Mapping):
        raise CheckpointError(
            f"{header.path.name} has no gemma_config in its metadata",
            allowed="a file with the metadata it was published with",
            way_out=f"a repack lost it: {WANTED}",
        )
    if config["text_config"].get("hidden_size") != _gemma_width(header):
        raise CheckpointError(
            f"the gemma_config of {header.path.name} says width {config['text_config'].get('hidden_size')}, "
            f"its embedding has {_gemma_width(header)}",
            allowed="a config that describes the weights",
            way_out=WANTED,
        )
    if TOKENIZER not in header.tensors:
        raise CheckpointError(
            f"{header.path.name} holds no tokenizer", allowed=f"a file with a {TOKENIZER} tensor", way_out=WANTED
        )


def require_pair(transformer: Header, text_encoder: Header, *, pinned_config: bool = False) -> None:
    """Refuse a text encoder that a transformer was not trained with; both have passed :func:`require`.

    Compares widths and the Gemma version that both name (ltx25.md section 2, checks a and b).
    """
    settings = transformer_settings(transformer, pinned_config=pinned_config)
    width = _gemma_width(text_encoder)
    wanted_width = settings.get("caption_channels", width)
    if width is None or width != wanted_width:
        raise CheckpointError(
            f"{text_encoder.path.name} holds {_named_gemma(width or 0)}",
            allowed=f"width {wanted_width:,} ({released.GEMMA_BY_WIDTH.get(wanted_width, 'as trained')}), "
            f"which {transformer.path.name} was trained with",
            way_out=WANTED,
        )
    for stream, prefix in (("video", "connector"), ("audio", "audio_connector")):
        wanted = settings[f"{prefix}_num_attention_heads"] * settings[f"{prefix}_attention_head_dim"]
        found = text_encoder.tensors[f"{PROJECTION}{stream}_aggregate_embed.weight"].shape[0]
        if found != wanted:
            raise CheckpointError(
                f"the {stream} projection of {text_encoder.path.name} gives {found:,} values a token",
                allowed=f"the {wanted:,} that the {stream} connector of {transformer.path.name} takes in",
                way_out="use the text encoder that was published with this transformer",
            )
    _require_gemma_version(transformer, text_encoder, pinned_config=pinned_config)


def _require_gemma_version(transformer: Header, text_encoder: Header, *, pinned_config: bool) -> None:
    found = text_encoder.metadata["gemma_config"].get("gemma_version")
    source = transformer.metadata.get("gemma_source_checkpoint")
    wanted = source.get("gemma_version") if isinstance(source, Mapping) else None
    if wanted is None and pinned_config:
        wanted = released.GEMMA_VERSION
    if wanted is None and found is None:
        logger.warning("neither %s nor %s names its Gemma version", transformer.path.name, text_encoder.path.name)
    elif wanted != found:
        raise CheckpointError(
            f"{text_encoder.path.name} is gemma_version {found or 'unnamed'}",
            allowed=f"gemma_version {wanted or 'unnamed'}, which {transformer.path.name} was trained with",
            way_out=f"fetch {Kind.TEXT_ENCODER.official_file}, or the transformer that belongs to this encoder",
        )
