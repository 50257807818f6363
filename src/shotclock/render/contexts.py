"""Prompts to contexts, the text that the transformer reads; or contexts of an earlier run, once they are seen to fit.

The text encoder is gone when its contexts are there. Knows no clock: the journal is told what begins and ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from shotclock.errors import RequestError
from shotclock.events import Notice, Phase, Progress
from shotclock.model.config import transformer_config
from shotclock.model.connector import Connectors
from shotclock.plan.planner import TEXT_TOKENS
from shotclock.render.job import Job
from shotclock.render.journal import Journal
from shotclock.render.prompts import PromptCache
from shotclock.render.text import Features, TextEncoder, unused_tokens
from shotclock.request import Request
from shotclock.rundir import RunDir, aside
from shotclock.weights.checkpoint import Header, read_header, transformer_settings
from shotclock.weights.transformer import load_connectors

Contexts = tuple[Float[Tensor, "2 s d"], Float[Tensor, "2 s e"]]


def prompts_digest(request: Request) -> str:
    """sha256 of both prompts: what a contexts file was made from."""
    return hashlib.sha256("\0".join((request.prompt, request.negative_prompt)).encode()).hexdigest()


def require_contexts(path: Path, transformer: Header, request: Request, *, pinned_config: bool) -> None:
    """Refuse a contexts file that does not fit the transformer, or was made from other prompts; reads its header only.

    A file that does not say its prompts (not written by a render) is taken as it is.
    """
    config = transformer_config(transformer_settings(transformer, pinned_config=pinned_config))
    wanted = {"video": (2, TEXT_TOKENS, config.video_context), "audio": (2, TEXT_TOKENS, config.audio_context)}
    header = read_header(path)
    found = {name: entry.shape for name, entry in header.tensors.items()}
    if found != wanted:
        held = dict(list(found.items())[:2])
        raise RequestError(
            f"{path} holds {len(found)} tensors: {held}",
            allowed=f"{wanted}",
            way_out="use the contexts.safetensors of a run of this model",
        )
    if header.metadata.get("prompts_sha256", prompts_digest(request)) != prompts_digest(request):
        raise RequestError(
            f"{path} was made from other prompts",
            allowed="the prompts of that run, word for word",
            way_out="give that run's prompts (its request.json has them), or leave --contexts out",
        )


def keep_contexts(job: Job) -> None:
    """Copy the given file into the run, so that a resume needs nothing but the folder."""
    assert job.contexts is not None, "a file was given"
    with aside(job.run.contexts) as path:
        path.write_bytes(job.contexts.read_bytes())


def read_contexts(run: RunDir, device: torch.device, dtype: torch.dtype) -> Contexts:
    """Both streams' contexts (positive, negative) of the run."""
    tensors = load_file(run.contexts)
    return tensors["video"].to(device, dtype), tensors["audio"].to(device, dtype)


def encode(job: Job, journal: Journal) -> Contexts:
    """Both prompts through the text encoder and the connectors; the encoder is gone when this returns.

    Prompts that an earlier render encoded are taken from there; where both are, no encoder is loaded.
    """
    header = job.headers.text_encoder
    assert header is not None, "no contexts and no text encoder"
    placed = job.foreseen.placement
    text = "device" if placed is None else placed.text
    device = torch.device("cpu") if text == "cpu" else job.device
    name = "cpu" if text == "cpu" else job.plan.device
    cache = PromptCache.of(job.prompts, header, device=name, dtype=job.dtype)
    prompts = list(dict.fromkeys([job.request.prompt, job.request.negative_prompt]))
    for prompt in prompts:
        if unused := unused_tokens(header, prompt):
            which = "prompt" if prompt == job.request.prompt else "negative prompt"
            journal.say(Notice(text=f"the last {unused:,} tokens of the {which} are not used: the model reads 1,024"))
    known = {prompt: found for prompt in prompts if (found := cache.read(prompt)) is not None}
    if missing := [prompt for prompt in prompts if prompt not in known]:
        with journal.phase(Phase.LOAD_TEXT):
            told = journal.loaded(Phase.LOAD_TEXT)
            by_layer = text == "layers"
            encoder = TextEncoder.load(header, device=device, dtype=job.dtype, by_layer=by_layer, progress=told)

        def progress(done: int, total: int) -> None:
            journal.say(Progress(phase=Phase.ENCODE, done=done, total=total))

        with journal.phase(Phase.ENCODE), encoder:
            for prompt, found in zip(missing, encoder.encode(missing, progress), strict=True):
                known[prompt] = found
                cache.keep(prompt, found)
    else:
        journal.say(Notice(text="both prompts were encoded by an earlier render: no text encoder is loaded"))
    features = [known[prompt] for prompt in (job.request.prompt, job.request.negative_prompt)]
    with journal.phase(Phase.CONNECT):
        connectors = load_connectors(
            job.headers.transformer, device=job.device, dtype=job.dtype, pinned_config=job.plan.pinned_config
        )
        contexts = connect(connectors, features, job.dtype)
        with aside(job.run.contexts) as path:
            tensors = {"video": contexts[0].cpu(), "audio": contexts[1].cpu()}
            save_file(tensors, path, metadata={"prompts_sha256": prompts_digest(job.request)})
    return contexts


def connect(connectors: Connectors, features: Sequence[Features], dtype: torch.dtype) -> Contexts:
    """Features of each prompt to contexts of 1,024 positions, registers in the free ones."""
    device = connectors.video_embeddings_connector.learnable_registers.device
    valid = torch.tensor([prompt.valid for prompt in features], device=device)

    def padded(rows: Sequence[Tensor]) -> Tensor:
        here = (row.to(device) for row in rows)  # one may come from the device, another from an earlier render
        full = [torch.nn.functional.pad(row, (0, 0, 0, TEXT_TOKENS - row.shape[1])) for row in here]
        return torch.cat(full).to(dtype)

    return (
        connectors.video_embeddings_connector(padded([prompt.video for prompt in features]), valid),
        connectors.audio_embeddings_connector(padded([prompt.audio for prompt in features]), valid),
    )
