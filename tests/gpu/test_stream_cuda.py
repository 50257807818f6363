"""On a CUDA device: streamed blocks have the bits of resident ones, from page-locked memory and from plain memory."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from step_speed import inputs, legs, random_transformer

from shotclock.geometry import Geometry
from shotclock.model.config import transformer_config
from shotclock.model.transformer import Kept
from shotclock.weights.released import PINNED_25_CONFIG
from shotclock.weights.stream import copies_to, lend, stream

pytestmark = pytest.mark.gpu
BLOCKS = 6


@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize("resident", [2, 4])
def test_streamed_is_resident_bit_for_bit(resident: int, from_file: bool) -> None:
    """Full width, bf16, three steps in a row without a synchronisation between them; four legs, then one at a time."""
    device = torch.device("cuda")
    model = random_transformer(transformer_config(PINNED_25_CONFIG | {"num_layers": BLOCKS}), torch.bfloat16)
    given = [
        inputs(model, Geometry(width=256, height=160, frames=25, fps=Fraction(24)), sigma) for sigma in (0.9, 0.6, 0.3)
    ]
    rows = legs(model.config, 3)

    def found() -> list[torch.Tensor]:
        outputs = []
        for both in given:
            outputs += model(*both, rows)
            kept: Kept = {}
            for number, leg in enumerate(rows):
                outputs += model(*both, [leg], kept=kept, later=rows[number + 1 :])
        return outputs

    with torch.inference_mode():
        expected = found()
        model.transformer_blocks.to("cpu")
        stream(model, device, copies_to(device), resident=resident, from_file=from_file)
        for ours, theirs in zip(found(), expected, strict=True):
            assert torch.equal(ours, theirs)


def test_a_lent_layer_computes_on_the_device_and_goes_home() -> None:
    """Weights on the host come for the forward, as a text encoder's layers do, and give the bits of resident ones."""
    device = torch.device("cuda")
    layer = torch.nn.Linear(512, 512, dtype=torch.bfloat16).requires_grad_(False)
    x = torch.randn(64, 512, device=device, dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = torch.nn.functional.linear(x, layer.weight.to(device), layer.bias.to(device))
        lend([layer], device, torch.bfloat16)
        assert torch.equal(layer(x), expected)
    assert layer.weight.device.type == "cpu"
