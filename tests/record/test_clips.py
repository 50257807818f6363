"""Clips compared: what each gate lets through, what it catches, and what rounding alone is measured to do."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import KEY, REQUEST
from safetensors.numpy import save_file
from scipy.io import wavfile

from shotclock.errors import RequestError
from shotclock.record.clips import compare_clips, read_band, read_media
from shotclock.record.gates import (
    decode_gate,
    floor_gate,
    jump_in,
    latent_gate,
    measure_band,
    same_scene,
    sound_gate,
    staged_gates,
    step_curve,
    within_band,
)
from shotclock.record.pictures_compared import align, compare_pictures, compare_sounds, mel_filters, ssim

RATE = 48000


def scene(shift: int = 0, noise: float = 0.0, seed: int = 0) -> Any:
    """Eight frames of a moving, textured picture."""
    rows, columns = np.mgrid[0:72, 0:128]
    frames = [
        128 + 60 * np.sin((columns + 3 * t + shift) / 9) * np.cos(rows / (7 + shift)) + 30 * (rows > 36 + shift)
        for t in range(8)
    ]
    picture = np.stack([np.stack([f, 0.8 * f, 255 - f], axis=-1) for f in frames])
    picture = picture + noise * np.random.default_rng(seed).standard_normal(picture.shape)
    return picture.clip(0, 255).round().astype(np.uint8)


def music(seed: int = 0) -> Any:
    """One second of decaying tones over a low noise, two channels that differ."""
    t = np.arange(RATE) / RATE
    random = np.random.default_rng(seed)
    notes = sum(
        np.sin(2 * np.pi * f * t) * np.exp(-4 * ((t - o) % 0.5))
        for f, o in zip((220, 330, 550), random.random(3), strict=True)
    )
    left = 0.2 * notes + 0.003 * random.standard_normal(len(t))
    return np.stack([left, 0.7 * left + 0.05 * np.sin(2 * np.pi * 97 * t)]).astype(np.float32)


def test_equal_pictures_are_equal_and_the_measures_fall_with_noise() -> None:
    """Infinite PSNR and SSIM 1; sigma 2 reads 42 dB, as 20 log10(255/2) says."""
    same = compare_pictures(scene(), scene())
    assert (same.psnr_db, same.ssim, same.scene_psnr_db, same.motion_difference) == (math.inf, 1.0, math.inf, 0.0)
    noisy = compare_pictures(scene(), scene(noise=2.0))
    assert noisy.psnr_db == pytest.approx(42.0, abs=0.3) and 0.8 < noisy.ssim < 1
    assert decode_gate(same).outcome == "PASS"
    assert decode_gate(compare_pictures(scene(), scene(noise=4.0))).outcome == "FAIL"


def test_ssim_is_that_of_the_paper_on_constants() -> None:
    """Two plain pictures: (2ab + C1) / (a^2 + b^2 + C1)."""
    a, b, c1 = 100.0, 120.0, (0.01 * 255) ** 2
    found = ssim(np.full((32, 32), a), np.full((32, 32), b))
    assert found == pytest.approx((2 * a * b + c1) / (a * a + b * b + c1))


def test_the_same_scene_is_told_from_another_one() -> None:
    """Noise keeps the scene, another layout does not."""
    assert same_scene(compare_pictures(scene(), scene(noise=25.0)))
    assert not same_scene(compare_pictures(scene(), 255 - scene()))


@pytest.mark.parametrize("lag", [0, 7, -480])
def test_sounds_are_aligned_before_they_are_compared(lag: int) -> None:
    """A shift within 50 ms is found to the sample and is all that differs."""
    wave = music()
    late = np.roll(wave, lag, axis=1)
    assert align(wave[0], late[0], 2400) == lag
    sounds = compare_sounds(wave, late, RATE)
    assert sounds.lag_s == lag / RATE and sounds.mel_db < 0.3 and sounds.channel_cosine > 0.99


BENIGN = {
    "itself": lambda x: x,
    "noise at -60 dB": lambda x: x + 0.0001 * np.random.default_rng(1).standard_normal(x.shape),
    "0.5 dB louder": lambda x: x * 10 ** (0.5 / 20),
    "a few samples late": lambda x: np.roll(x, 24, axis=1),
}
BROKEN = {
    "inverted": lambda x: -x,
    "channels swapped and one inverted": lambda x: np.stack([x[1], -x[0]]),
    "another track": lambda x: music(5)[:, : x.shape[1]],
    "no highs": lambda x: np.apply_along_axis(lambda c: np.convolve(c, np.ones(64) / 64, "same"), 1, x),
    "silent": lambda x: 0 * x,
    "twice as loud": lambda x: 2 * x,
    "5 ms late": lambda x: np.roll(x, 240, axis=1),
}


@pytest.mark.parametrize("name", BENIGN)
def test_what_nobody_hears_passes(name: str) -> None:
    """Mel, convergence, lag, gain and polarity are within their limits."""
    gate = sound_gate(compare_sounds(music(), BENIGN[name](music()).astype(np.float32), RATE))
    assert gate.outcome == "PASS", gate.said


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_sound_fails(name: str) -> None:
    """Each by at least one of the limits."""
    gate = sound_gate(compare_sounds(music(), BROKEN[name](music()).astype(np.float32), RATE))
    assert gate.outcome == "FAIL", gate.said


def test_mel_bands_cover_the_spectrum() -> None:
    """64 triangles that each sum to 1 and leave no gap between the first and the last centre."""
    filters = mel_filters(RATE)
    assert filters.shape == (64, 1025) and np.allclose(filters.sum(axis=1), 1)
    assert (filters[:, 6:1000].max(axis=0) > 0).all()


def tensor(seed: int = 0, error: float = 0.0) -> Any:
    random = np.random.default_rng(seed)
    exact = random.standard_normal((1, 40, 128)).astype(np.float32)
    return exact + error * np.random.default_rng(99 + seed).standard_normal(exact.shape).astype(np.float32)


def test_a_forward_within_bfloat16_passes_and_a_wrong_one_does_not() -> None:
    """0.4 % is rounding, 3 % is not; what one side did not run is said, and another shape fails."""
    theirs = {"forward video": tensor(), "step 3 video": tensor(1), "vocoder": tensor(2), "context": tensor(3)}
    ours = {"forward video": tensor(error=0.004), "step 3 video": tensor(1, 0.03), "vocoder": tensor(2, 0.05)}
    found = {gate.stage: gate.outcome for gate in staged_gates(ours, theirs)}
    assert found == {"forward video": "PASS", "step 3 video": "FAIL", "vocoder": "PASS", "context": "not run"}
    assert staged_gates({"a": tensor()}, {"a": tensor()[:, :3]})[0].outcome == "FAIL"


def test_the_floor_of_the_other_is_a_better_limit_than_a_constant() -> None:
    """1.4 times as far from float32 as its own bfloat16 passes, 2 times does not."""
    exact = tensor()
    floor = tensor(error=0.004)
    assert floor_gate("forward", exact + 1.4 * (floor - exact), floor, exact).outcome == "PASS"
    assert floor_gate("forward", exact + 2.0 * (floor - exact), floor, exact).outcome == "FAIL"


def test_smooth_growth_is_chaos_and_a_jump_is_a_bug() -> None:
    """The step at which it jumps is named."""
    exact = [tensor(k) for k in range(6)]
    grown = [tensor(k, 0.001 * 1.5**k) for k in range(6)]
    jumped = [tensor(k, 0.001 if k < 3 else 0.1) for k in range(6)]
    assert jump_in(step_curve(exact, grown)) is None
    assert jump_in(step_curve(exact, jumped)) == 4
    assert jump_in(step_curve(exact, exact)) is None


def test_same_up_to_rounding_is_measured() -> None:
    """Inside the band of runs that differ by rounding, beyond it for ten times that."""
    band = measure_band([[tensor(error=e)] for e in (0.0, 0.004, -0.004)])
    inside = 1 - float(np.corrcoef(tensor().ravel(), tensor(error=0.005).ravel())[0, 1])
    assert within_band(band, inside, None) == "same up to rounding"
    assert within_band(band, 10 * band.distance, None).startswith("beyond rounding: latent cosine distance")
    assert within_band(band, None, None) == "nothing to hold against the band"
    with pytest.raises(AssertionError, match="3 runs or more"):
        measure_band([[tensor()], [tensor()]])


def folder(path: Path, error: float = 0.0, *, key: dict[str, Any] | None = None, request: Any = REQUEST) -> Path:
    """A run folder with latents, steps, pictures and sound."""
    path.mkdir()
    (path / "request.json").write_text(json.dumps(request))
    (path / "events.jsonl").write_text(json.dumps({"event": "RunBegins", "law_key": key or KEY}) + "\n")
    save_file({"video": tensor(0, error), "audio": tensor(1, error)}, path / "latents.safetensors")
    steps = np.stack([tensor(k, error * 2.0 ** (k - 3)) for k in range(3)])
    save_file({"video": steps}, path / "per_step.safetensors")
    np.save(path / "frames.npy", scene(noise=100 * error, seed=int(1e6 * abs(error))))
    wavfile.write(path / "clip.wav", RATE, music().T)
    return path


def test_two_folders_are_compared_stage_by_stage(tmp_path: Path) -> None:
    """Latents, steps, pictures, sound, and the conclusion with and without a band."""
    kernels = ({"launch": "graph"}, {"attention": "flash"}, {"build": "other"}, {})
    errors = (0.0, 0.004, -0.004, 0.0)
    runs = [folder(tmp_path / str(i), error, key=KEY | kernels[i]) for i, error in enumerate(errors)]
    near = folder(tmp_path / "near", 0.003)
    far = folder(tmp_path / "far", 0.5)
    band = read_band(runs[:3])
    media = read_media(runs[0])
    found = compare_clips(media, read_media(near), band)
    assert found.conclusion == "same up to rounding" and len(found.curve) == 3
    assert [gate.outcome for gate in found.gates] == ["PASS"] * 3 and found.notes == ()
    assert "it grows smoothly" in found.lines()
    assert compare_clips(media, read_media(far), band).conclusion.startswith("beyond rounding")
    assert compare_clips(media, read_media(far)).conclusion in ("a different sample of the same scene", "different")
    assert "not known without a band" in compare_clips(media, read_media(near)).conclusion
    assert compare_clips(media, read_media(runs[3])).conclusion == "the same latents, bit for bit"
    assert json.loads(json.dumps(compare_clips(media, read_media(runs[3])).to_json()))["pictures"]["psnr_db"] is None


def test_another_workload_is_refused_by_field(tmp_path: Path) -> None:
    """Another seed is another clip; other legs per pass are not."""
    one = read_media(folder(tmp_path / "a"))
    other = read_media(folder(tmp_path / "b", request=REQUEST | {"seed": 11}))
    with pytest.raises(RequestError, match="another workload: seed differ"):
        compare_clips(one, other)
    legs = read_media(folder(tmp_path / "c", request=REQUEST | {"legs_per_pass": 1}))
    assert compare_clips(one, legs).conclusion == "the same latents, bit for bit"


def test_a_band_of_other_devices_or_of_two_runs_is_refused(tmp_path: Path) -> None:
    """It would measure something else than rounding."""
    runs = [folder(tmp_path / str(i)) for i in range(2)]
    with pytest.raises(RequestError, match="2 runs for a band"):
        read_band(runs)
    with pytest.raises(RequestError, match="differs from 0 in device"):
        read_band([*runs, folder(tmp_path / "x", key=KEY | {"device": "NVIDIA GB10"})])


def test_an_empty_folder_and_another_shape_are_told(tmp_path: Path) -> None:
    """Nothing to compare, or nothing that could agree."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="holds nothing to compare"):
        read_media(tmp_path / "empty")
    assert latent_gate(tensor(), tensor()[:, :2], "latents video").outcome == "FAIL"
