"""Small stand-ins that tests share: a clock that only moves when told, and tiny transformers with random weights."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from shotclock.geometry import Geometry
from shotclock.latents import noise, text_to_video
from shotclock.lease import Lease
from shotclock.model.config import TransformerConfig, transformer_config
from shotclock.model.transformer import Stream, Transformer
from shotclock.plan.planner import Plan
from shotclock.render.denoise import Prepared, prepare
from shotclock.render.identity import Identity, Numerics
from shotclock.render.job import Job, Times
from shotclock.render.run import Terms, expect, job_of
from shotclock.request import Request
from shotclock.rundir import RunDir
from shotclock.weights.checkpoint import CheckpointHeaders
from shotclock.weights.tiny import TRANSFORMER

SMALL = Geometry(width=64, height=32, frames=9, fps=Fraction(24))


class FakeClock:
    """Seconds that a test sets; each reading by the main thread moves it by ``tick_s``."""

    def __init__(self, tick_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.tick_s = tick_s

    def __call__(self) -> float:
        if threading.current_thread() is threading.main_thread():
            self.now_s += self.tick_s
        return self.now_s


def tiny_config(blocks: int = 4) -> TransformerConfig:
    """The tiny set's widths with another number of blocks."""
    return replace(transformer_config(TRANSFORMER), blocks=blocks)


def random_transformer(config: TransformerConfig, dtype: torch.dtype, seed: int = 0) -> Transformer:
    """Weights of order one, all of them, tables and biases too, so that no path is hidden behind a zero."""
    model = Transformer(config).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm.weight" in name:
            parameter.data.normal_(1, 0.1, generator=generator)
        elif "table" in name or "keyframes" in name or parameter.ndim == 1:
            parameter.data.normal_(0, 0.3, generator=generator)
        else:
            parameter.data.normal_(0, parameter.shape[1] ** -0.5, generator=generator)
    return model.eval().requires_grad_(False)


def contexts(config: TransformerConfig, dtype: torch.dtype, tokens: int = 24) -> tuple[Tensor, Tensor]:
    """Random texts, positive and negative, for both streams."""
    generator = torch.Generator().manual_seed(7)
    video = torch.randn(2, tokens, config.video_context, generator=generator)
    return video.to(dtype), torch.randn(2, tokens, config.audio_context, generator=generator).to(dtype)


def prepared(model: Transformer, geometry: Geometry = SMALL, seed: int = 3) -> tuple[Prepared, Prepared]:
    """Both streams of a text-to-video render."""
    latents = text_to_video(geometry, *noise(geometry, seed)).to(torch.device("cpu"), model.dtype)
    return prepare(model, latents, contexts(model.config, model.dtype))


def streams(model: Transformer, sigma: float = 0.7, geometry: Geometry = SMALL) -> tuple[Stream, Stream]:
    """Both streams of one forward."""
    video, audio = prepared(model, geometry)
    return (
        video.stream(video.latents.tokens, sigma, enabled=True),
        audio.stream(audio.latents.tokens, sigma, enabled=True),
    )


def some_identity() -> Identity:
    """Of a render that nobody made."""
    return Identity(
        request_sha256="aa",
        sigmas_sha256="bb",
        transformer_sha256="cc",
        contexts_sha256="dd",
        numerics=Numerics(
            device="cpu",
            capability="AVX2",
            threads=2,
            torch="2.13.0",
            dtype="float32",
            attention="math",
            legs_per_pass=4,
            code="ee",
        ),
    )


def still_times() -> Times:
    """A clock that stands."""
    return Times(clock=lambda: 0.0, began_s=0.0, imported_s=0.0)


def some_job(request: Request, plan: Plan, headers: CheckpointHeaders, run: RunDir) -> Job:
    """A float32 render on the CPU without a lease, a rehearsal or a verdict; holds the run folder from here on."""
    terms = Terms(
        lease=Lease(sources=()),
        leases=1,
        on_overrun="snapshot",
        rehearse="never",
        accept_seam=False,
        trace_nonfinite=False,
        judge=None,
    )
    device = torch.device("cpu")
    with tempfile.TemporaryDirectory() as home:
        expected = expect(request, plan, headers, terms, device=device, home=Path(home), times=still_times())
    job = job_of(request, plan, expected, headers, run, device, terms, None)
    with job.run.writing():
        return job
