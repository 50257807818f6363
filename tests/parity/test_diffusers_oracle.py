"""Second oracle: the library's own LTX-2 transformer, leg by leg, float32 (valid as ltx25.md section 12 says)."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from fakes import random_transformer, tiny_config
from shotclock.bench.library import library
from shotclock.geometry import Geometry
from shotclock.guidance import Leg, Perturbation
from shotclock.latents import noise, text_to_video
from shotclock.model.config import StreamShape, TransformerConfig
from shotclock.render.denoise import prepare

BOUND = 2e-6  # relative to the largest velocity
REAL = TransformerConfig(
    blocks=1,
    video=StreamShape(heads=32, head_dim=128),
    audio=StreamShape(heads=32, head_dim=64),
    video_in=128,
    video_out=128,
    audio_in=128,
    audio_out=128,
    video_context=4096,
    audio_context=2048,
    norm_eps=1e-6,
    theta=10000.0,
    max_position=(20, 2048, 2048),
    audio_max_position=20,
    timestep_scale=1000,
    cross_timestep_scale=1000.0,
    ff_bias=False,
    audio_ff_bias=True,
    keyframe_embedding=True,
)


@pytest.mark.parametrize(("name", "config", "block"), [("tiny", tiny_config(4), 2), ("real width", REAL, 0)])
def test_every_leg_agrees_with_the_library(name: str, config: TransformerConfig, block: int) -> None:
    """Velocities of cond, uncond, perturbed and isolated leg, computed in one pass here and one by one there."""
    geometry = Geometry(width=96, height=64, frames=17, fps=Fraction(24))
    sigma = 0.7
    model = random_transformer(config, torch.float32)
    theirs = library(model)
    latents = text_to_video(geometry, *noise(geometry, 5))
    generator = torch.Generator().manual_seed(1)
    texts = tuple(
        torch.randn(2, 24, width, generator=generator) for width in (config.video_context, config.audio_context)
    )
    video, audio = prepare(model, latents, texts)
    every, stg = frozenset(range(config.blocks)), frozenset({block})
    legs = [
        Leg(),
        Leg(context=1),
        Leg(perturbation=Perturbation(video_self=stg, audio_self=stg)),
        Leg(perturbation=Perturbation(audio_to_video=every, video_to_audio=every)),
    ]
    with torch.inference_mode():
        ours = model(
            video.stream(latents.video.tokens, sigma, enabled=True),
            audio.stream(latents.audio.tokens, sigma, enabled=True),
            legs,
        )
        for row in range(1, len(legs)):  # equal legs would agree with anything
            assert (ours[0][row] - ours[0][0]).abs().max() > 1e-3 * ours[0].abs().max()
        for row, leg in enumerate(legs):
            time = torch.tensor([sigma]) * 1000
            perturbed = bool(leg.perturbation.video_self)
            expected = theirs(
                hidden_states=latents.video.tokens,
                audio_hidden_states=latents.audio.tokens,
                encoder_hidden_states=texts[0][leg.context][None],
                audio_encoder_hidden_states=texts[1][leg.context][None],
                timestep=time[:, None].expand(1, geometry.video_tokens),
                audio_timestep=time[:, None].expand(1, geometry.audio_tokens),
                sigma=time,
                audio_sigma=time,
                video_coords=latents.video.positions,
                audio_coords=latents.audio.positions,
                isolate_modalities=bool(leg.perturbation.audio_to_video),
                spatio_temporal_guidance_blocks=[block] if perturbed else None,
                perturbation_mask=torch.zeros(1) if perturbed else None,
                video_keyframes_mask=latents.video.marker,
                return_dict=False,
            )
            for mine, reference in zip(ours, expected, strict=True):
                error = (mine[row] - reference[0]).abs().max() / reference.abs().max()
                assert error <= BOUND, f"{name}, {leg}: {error:.2e}"
