"""The vocoder's fixed filters: their defining properties, and the golden file's own values."""

from __future__ import annotations

import numpy as np
import torch

from shotclock.weights.checkpoint import Checkpoints
from shotclock.weights.filters import Array, fourier_bases, kaiser_low_pass, mel_bank
from shotclock.weights.header import read_header
from shotclock.weights.load import load_tensors


def golden_values(golden: Checkpoints, key: str) -> torch.Tensor:
    """One tensor of the golden audio file."""
    header = read_header(golden.audio_vae)
    return load_tensors(header, {key: "x"}, device=torch.device("cpu"), dtype=None)["x"]


def as_stored(values: Array) -> torch.Tensor:
    """As the file holds it."""
    return torch.from_numpy(values).bfloat16()


def test_low_pass_is_the_golden_one(golden: Checkpoints) -> None:
    """Twelve taps for a factor of two, bit for bit as in the official file's format."""
    assert torch.equal(
        as_stored(kaiser_low_pass(2, 12)), golden_values(golden, "vocoder.vocoder.act_post.upsample.filter")[0, 0]
    )


def test_low_pass_passes_low_and_stops_high() -> None:
    """Constant signals keep their level; the highest frequency vanishes; the filter is symmetric."""
    taps = kaiser_low_pass(2, 12)
    assert np.isclose(taps.sum(), 1)
    assert abs(taps @ (-1.0) ** np.arange(12)) < 1e-12
    assert np.allclose(taps, taps[::-1])


def test_low_pass_for_other_factors() -> None:
    """Gentler designs use the other branches of Kaiser's rule and keep the sum."""
    for ratio, taps in ((3, 8), (40, 4), (1000, 4)):
        assert np.isclose(kaiser_low_pass(ratio, taps).sum(), 1)


def test_forward_basis_is_the_golden_one(golden: Checkpoints) -> None:
    """Cosine rows, then negative sine rows, under a Hann window."""
    stored = golden_values(golden, "vocoder.mel_stft.stft_fn.forward_basis")[:, 0].double()
    assert (as_stored(fourier_bases(256)[0]).double() - stored).abs().max() < 1e-12


def test_inverse_basis_inverts_the_forward_basis() -> None:
    """Frame by frame: the inverse applied to the transform of a signal is the signal under the window squared."""
    forward, inverse = fourier_bases(64)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(64) / 64)
    signal = np.random.default_rng(0).normal(size=64)
    assert np.allclose(inverse.T @ (forward @ signal), window**2 * signal)


def test_mel_filters_are_triangles_of_unit_area() -> None:
    """With fine bins each filter's area is 1 and its peak lies at equal steps of the mel scale."""
    bank = mel_bank(16_000, 65_536, 64)
    assert np.allclose(bank.sum(axis=1) * 8000 / 32_768, 1, atol=2e-3)
    assert np.all(bank >= 0)
    peaks = bank.argmax(axis=1) * 8000 / 32_768
    low = peaks[peaks < 900]
    assert np.allclose(np.diff(low), low[0], atol=0.5)
    high = peaks[peaks > 1100]
    assert np.allclose(high[1:] / high[:-1], high[1] / high[0], atol=2e-3)


def test_mel_scale_bends_at_one_kilohertz() -> None:
    """On the slaney scale 1 kHz is 15 mel and 6.4 kHz is 42: 41 filters between have their peaks at whole mels."""
    bank = mel_bank(12_800, 65_536, 41)  # edges at whole mels from 0 to 42
    peaks = bank.argmax(axis=1) * 6400 / 32_768
    assert np.isclose(peaks[14], 1000, atol=0.5)
    assert np.isclose(peaks[0], 200 / 3, atol=0.5)


def test_mel_scale_is_linear_below() -> None:
    """Up to 800 Hz the filters are equally wide in hertz."""
    peaks = mel_bank(1600, 4096, 7).argmax(axis=1) * 800 / 2048
    assert np.allclose(peaks, 100 * np.arange(1, 8), atol=0.2)
