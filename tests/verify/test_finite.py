"""The first non-finite stage is found in arrays and in tensors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from shotclock.verify.finite import first_non_finite


def test_finite_stages_give_nothing() -> None:
    """Arrays, integers and tensors without NaN or Inf."""
    stages = {"latents": torch.ones(2, 3), "frames": np.zeros((2, 2), np.uint8), "waveform": np.zeros(4)}
    assert first_non_finite(stages) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_first_stage_in_order_is_named_with_its_counts(dtype: torch.dtype) -> None:
    """Two stages are broken: the first is reported, with the place of its first bad value."""
    latents = torch.zeros(2, 3, dtype=dtype)
    latents[1, 2], latents[1, 1] = float("nan"), float("inf")
    found = first_non_finite({"contexts": torch.ones(3), "latents": latents, "frames": np.array([np.nan])})
    assert found is not None
    assert (found.stage, found.nans, found.infinities, found.values) == ("latents", 1, 1, 6)
    assert found.first_index == (1, 1)
    assert str(found) == "latents: 1 NaN and 1 Inf of 6 values, first at [1, 1]"


def test_later_stages_are_not_computed() -> None:
    """An iterator of pairs is read only up to the first bad stage."""

    def stages() -> Iterator[tuple[str, np.ndarray]]:
        yield "first", np.array([-np.inf])
        raise AssertionError("the second stage was asked for")

    found = first_non_finite(stages())
    assert found is not None
    assert found.infinities == 1
