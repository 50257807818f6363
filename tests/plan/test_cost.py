"""The counted operations equal those that torch's own counter sees while the modules run."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_ltx2 import AutoencoderKLLTX2Video
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shotclock.events import PassBegins, State
from shotclock.geometry import Geometry
from shotclock.guidance import Guidance, Guider
from shotclock.latents import noise, text_to_video
from shotclock.model.config import transformer_config
from shotclock.model.transformer import Transformer
from shotclock.plan.cost import decode_flops, pass_flops, step_flops
from shotclock.render.denoise import denoise, prepare
from shotclock.weights import keys
from shotclock.weights.header import read_header
from shotclock.weights.tiny import TRANSFORMER

VAE = Path(__file__).parents[1] / "goldens" / "ckpt" / "tiny-ltx-2.5-video-vae-conv-bf16.safetensors"
CONFIG = replace(transformer_config(TRANSFORMER), blocks=2)
CLIP = Geometry(width=64, height=32, frames=25, fps=Fraction(24))
TEXT = 40
# Embeddings, heads and gate logits are not counted (docstring of pass_flops).
UNCOUNTED = ("to_gate_logits", "patchify_proj", "audio_patchify_proj", "proj_out", "audio_proj_out")
SWITCHES = {
    "unguided": {"cfg": 1.0, "stg": 0.0, "modality": 1.0},
    "cfg": {"cfg": 3.0, "stg": 0.0, "modality": 1.0},
    "stg": {"cfg": 1.0, "stg": 1.0, "modality": 1.0},
    "modality": {"cfg": 1.0, "stg": 0.0, "modality": 3.0},
    "all": {"cfg": 3.0, "stg": 1.0, "modality": 3.0},
}


def guidance(legs_per_pass: int, *, video_skip: int = 0, audio_skip: int = 0, **scales: Any) -> Guidance:
    """The same scales for both streams."""
    common = {"rescale": 0.0, "stg_blocks": (1,), **scales}
    return Guidance(
        video=Guider(skip_step=video_skip, **common),
        audio=Guider(skip_step=audio_skip, **common),
        legs_per_pass=legs_per_pass,
    )


@pytest.fixture(scope="module")
def transformer() -> Transformer:
    """Two blocks of random weights; the perturbed leg forks off at the second."""
    torch.manual_seed(0)
    return Transformer(CONFIG).eval().requires_grad_(False)


def seen(transformer: Transformer, told: Guidance, *, steps: int) -> list[int]:
    """Operations of each pass as torch counts them."""
    latents = text_to_video(CLIP, *noise(CLIP, 0))
    contexts = (torch.randn(2, TEXT, CONFIG.video_context), torch.randn(2, TEXT, CONFIG.audio_context))
    state = State(step=0, video=latents.video.tokens, audio=latents.audio.tokens)
    counted = []
    with sdpa_kernel(SDPBackend.MATH):
        prepared = prepare(transformer, latents, contexts)
        events = denoise(transformer, prepared, torch.linspace(1, 0, steps + 1), told, state)
        for event in events:
            if isinstance(event, PassBegins):
                with FlopCounterMode(display=False) as counter:
                    next(events)
                counted.append(counted_blocks(counter))
    return counted


def counted_blocks(counter: FlopCounterMode) -> int:
    """All of the counter's operations but those of the modules that the plan leaves out."""
    by_module = counter.get_flop_counts()
    left_out = sum(
        sum(operations.values())
        for name, operations in by_module.items()
        if (last := name.rsplit(".", 1)[-1]) in UNCOUNTED or last.endswith("adaln_single")
    )
    return counter.get_total_flops() - left_out


@pytest.mark.parametrize(("legs", "legs_per_pass"), [*((legs, 4) for legs in SWITCHES), ("all", 1), ("all", 2)])
def test_the_count_of_each_pass_is_what_torch_counts(transformer: Transformer, legs: str, legs_per_pass: int) -> None:
    """Every subset of legs, in one pass or several, shared prefixes included: equal to the last operation."""
    told = guidance(legs_per_pass, **SWITCHES[legs])
    assert list(pass_flops(CONFIG, CLIP, told, TEXT, step=0)) == seen(transformer, told, steps=1)


def test_a_step_that_skips_a_stream_counts_the_other(transformer: Transformer) -> None:
    """Steps 1 and 2 with video every step and audio every second, then the other way round."""
    for skips in ({"audio_skip": 1}, {"video_skip": 1}):
        told = guidance(4, **skips, **SWITCHES["all"])
        planned = [flops for step in range(2) for flops in pass_flops(CONFIG, CLIP, told, TEXT, step=step)]
        assert planned == seen(transformer, told, steps=2)
        assert planned[1] < planned[0]


def test_a_step_is_the_sum_of_its_passes() -> None:
    """And more launches a step are never less arithmetic: texts are read once a pass."""
    counts = [step_flops(CONFIG, CLIP, guidance(legs, **SWITCHES["all"]), TEXT) for legs in (1, 2, 4)]
    assert counts == sorted(counts, reverse=True)
    assert counts[2] == sum(pass_flops(CONFIG, CLIP, guidance(4, **SWITCHES["all"]), TEXT, step=0))


@pytest.mark.parametrize("clip", [CLIP, Geometry(width=32, height=64, frames=9, fps=Fraction(24))], ids=str)
def test_the_decoder_count_is_what_torch_counts(clip: Geometry) -> None:
    """The conv decoder of diffusers, built from the file's header: every convolution is counted, at its own size."""
    header = read_header(VAE)
    decoder = AutoencoderKLLTX2Video(**keys.video_vae(header).arguments).decoder.eval()
    latent = torch.zeros(1, 128, clip.latent_frames, clip.rows, clip.columns)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        decoder(latent)
    shapes = {name: entry.shape for name, entry in header.tensors.items()}
    assert decode_flops(shapes, header.metadata["config"]["vae"], clip) == counter.get_total_flops()
