"""Float8 with a scale a row: its arithmetic, what it leaves alone, its error a leg, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fakes import random_transformer, streams, tiny_config
from shotclock.errors import CheckpointError, RequestError
from shotclock.guidance import Guidance, Guider
from shotclock.model.linear import Linear
from shotclock.model.quantise import (
    FP8,
    RowScaledLinear,
    device_product,
    quantise_in_place,
    quantise_rows,
    reference_product,
    same_weights,
    velocity_errors,
)
from shotclock.weights.fp8 import require_fp8, require_quantisable, to_fp8
from shotclock.weights.header import read_header

HALF_STEP = 2**-4  # e4m3 keeps 3 bits: half of the last one


def rows(m: int, k: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(m, k, generator=generator) * torch.logspace(-3, 3, m)[:, None]


def guidance() -> Guidance:
    guider = Guider(cfg=3, stg=1, modality=3, rescale=0.7, stg_blocks=(2,))
    return Guidance(video=guider, audio=guider, legs_per_pass=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_row_has_its_own_scale_and_normal_values_their_rounding(dtype: torch.dtype) -> None:
    """Rows six decades apart: the largest of each is 448, normal numbers are within 1/16, small ones within a step."""
    x = rows(7, 33).to(dtype)
    found, scale = quantise_rows(x)
    assert found.dtype == FP8 and found.float().abs().amax(dim=1).tolist() == [448.0] * 7
    exact, back = x.double(), found.double() * scale[:, None].double()
    allowed = torch.maximum(exact.abs() * HALF_STEP, scale[:, None].double() * 2**-10)  # subnormals are 2^-9 apart
    assert bool(((back - exact).abs() <= allowed * 1.001).all())


def test_a_row_of_zeros_stays_zero() -> None:
    """Its scale divides."""
    found, scale = quantise_rows(torch.zeros(2, 16))
    assert not found.float().any() and bool((scale > 0).all())


@pytest.mark.parametrize(("m", "k", "n"), [(1, 16, 32), (5, 64, 48), (33, 48, 16)])
def test_a_layer_is_the_product_of_its_rounded_parts(m: int, k: int, n: int) -> None:
    """Against float64 of the very same rounded rows and weight, bias added; row counts that nothing divides."""
    layer = Linear(k, n)
    x = rows(m, k, seed=1)[None]
    q, s = quantise_rows(x[0])
    w, t = quantise_rows(layer.weight)
    exact = (q.double() * s[:, None].double()) @ (w.double() * t[:, None].double()).t() + layer.bias.double()
    with torch.inference_mode():
        found = RowScaledLinear(layer, reference_product)(x)[0]
    assert found.shape == (m, n)
    assert ((found - exact).norm() / exact.norm()).item() < 1e-6


def test_the_product_of_the_device_is_the_reference() -> None:
    """torch has a row-wise float8 product on the CPU too: within bf16 rounding of the float32 one."""
    q, s = quantise_rows(rows(32, 64))
    w, t = quantise_rows(rows(48, 64, seed=2))
    exact = reference_product(q, s, w, t, torch.float32)
    found = device_product(q, s, w, t, torch.bfloat16).float()
    assert bool(((found - exact).abs() <= exact.abs() * 2**-7 + exact.abs().amax(dim=1, keepdim=True) * 2**-8).all())


def test_blocks_are_quantised_and_nothing_else() -> None:
    """Gates, embeddings and heads keep their weights; the other transformer of the same tensors keeps all of them."""
    model = random_transformer(tiny_config(2), torch.float32)
    other = same_weights(model)
    done = quantise_in_place(other, reference_product)
    layers = [m for m in other.modules() if isinstance(m, RowScaledLinear)]
    gates = 2 * 6
    assert done.layers == len(layers) == done.linear_layers - gates == 2 * (6 * 4 + 2 * 2)
    assert all(layer.weight.dtype == FP8 for layer in layers)
    assert other.dtype == torch.float32 and done.bytes_after < done.bytes_before
    assert not any(isinstance(m, RowScaledLinear) for m in model.modules())
    assert other.proj_out.weight.data_ptr() == model.proj_out.weight.data_ptr()


def test_every_leg_has_its_error() -> None:
    """Four blocks, four legs: between the rounding of a value and a tenth; zero where nothing is quantised."""
    model = random_transformer(tiny_config(4), torch.float32)
    legs = guidance().legs(4)
    other = same_weights(model)
    with torch.inference_mode():
        assert set(velocity_errors(model, other, streams(model), legs).values()) == {(0.0, 0.0)}
        quantise_in_place(other, reference_product)
        errors = velocity_errors(model, other, streams(model), legs)
    assert list(errors) == list(legs)
    assert all(2**-9 < error < 0.1 for pair in errors.values() for error in pair), errors


def test_a_device_without_float8_and_a_quantised_file_are_refused(tmp_path: Path) -> None:
    """From device and header, before anything is read or changed; a bf16 file with float32 tables passes."""
    with pytest.raises(RequestError, match="without float8 products"):
        require_fp8(torch.device("cpu"))
    for name, dtype in (("fp8", FP8), ("int8", torch.int8)):
        path = tmp_path / f"{name}.safetensors"
        save_file({"a.weight": torch.zeros(4, 4).to(dtype), "a.scale": torch.zeros(4)}, path)
        with pytest.raises(CheckpointError, match="already"):
            require_quantisable(read_header(path))
    good = tmp_path / "bf16.safetensors"
    save_file({"a.weight": torch.zeros(4, 4).bfloat16(), "a.scale_shift_table": torch.zeros(4, 4)}, good)
    require_quantisable(read_header(good))
    model = random_transformer(tiny_config(1), torch.float32)
    with pytest.raises(RequestError):
        to_fp8(model, read_header(good), torch.device("cpu"))
    assert not any(isinstance(m, RowScaledLinear) for m in model.modules())
