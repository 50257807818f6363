"""Snapshots: whole or not at all, the newest that can be read, two kept, strangers named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fakes import some_identity
from shotclock.errors import RunDirError
from shotclock.events import State
from shotclock.guidance import LegName
from shotclock.render.identity import Identity
from shotclock.render.snapshot import newest_snapshot, read_snapshot, save_snapshot, snapshots, tensors_of
from shotclock.rundir import RunDir

IDENTITY = some_identity()


def state(step: int, legs: tuple[LegName, ...] = ()) -> State:
    """Numbers that tell the step."""
    tensor = torch.full((1, 6, 128), float(step))
    return State(
        step=step,
        video=tensor,
        audio=tensor[:, :2].clone(),
        video_x0=tensor + 1,
        audio_x0=tensor[:, :2].clone() + 1,
        video_legs={leg: tensor + 2 + number for number, leg in enumerate(legs)},
        audio_legs={leg: tensor[:, :2].clone() + 2 for leg in legs},
        carried={"generator": torch.arange(5, dtype=torch.uint8)},
    )


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    """Every tensor, with its dtype, the legs of the next step and what the sampler carries."""
    run = RunDir(tmp_path)
    wanted = state(3, (LegName.COND, LegName.UNCOND))
    name, size = save_snapshot(run, wanted, IDENTITY)
    found = newest_snapshot(run)
    assert found is not None and found.name == name and (tmp_path / name).stat().st_size == size
    assert found.identity == IDENTITY and found.state.legs == wanted.legs and found.state.step == 3
    here, there = tensors_of(found.state), tensors_of(wanted)
    assert list(here) == list(there)
    assert all(here[key].dtype == there[key].dtype and torch.equal(here[key], there[key]) for key in here)


def test_two_are_kept_and_legs_are_ahead_of_their_step(tmp_path: Path) -> None:
    """Order is by step, then by legs of the next one."""
    run = RunDir(tmp_path)
    for one in (state(1), state(2), state(2, (LegName.COND,)), state(3)):
        save_snapshot(run, one, IDENTITY)
    assert [path.name.split("-")[1:3] for path in snapshots(run)] == [["00003", "0"], ["00002", "1"]]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "header"])
def test_a_damaged_newest_is_passed_over_and_named(tmp_path: Path, damage: str) -> None:
    """Plain safetensors would load a flipped bit silently."""
    run = RunDir(tmp_path)
    save_snapshot(run, state(1), IDENTITY)
    name, _ = save_snapshot(run, state(2), IDENTITY)
    content = bytearray((tmp_path / name).read_bytes())
    if damage == "flip":
        content[-3] ^= 4
    elif damage == "header":
        content[20] ^= 1
    else:
        del content[0 if damage == "empty" else len(content) // 2 :]
    (tmp_path / name).write_bytes(content)
    found = newest_snapshot(run)
    assert found is not None and found.state.step == 1
    assert len(found.passed_over) == 1 and name in found.passed_over[0]
    with pytest.raises(ValueError, match="damaged or cut short"):
        read_snapshot(tmp_path / name)


def test_no_readable_snapshot_is_an_error_and_none_is_none(tmp_path: Path) -> None:
    """Beginning again at step 1 without a word would hide hours of loss."""
    run = RunDir(tmp_path)
    assert newest_snapshot(run) is None
    name, _ = save_snapshot(run, state(1), IDENTITY)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(RunDirError, match="no snapshot") as refused:
        newest_snapshot(run)
    assert name in str(refused.value)


def test_on_a_full_disk_the_older_one_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest before it stays until the new one is durable; what was half written is gone."""
    run = RunDir(tmp_path)
    for step in (1, 2):
        save_snapshot(run, state(step), IDENTITY)
    real, there = os.fsync, list(snapshots(run))

    def full(number: int) -> None:
        if there[1].exists():
            raise OSError(28, "No space left on device")
        real(number)

    monkeypatch.setattr(os, "fsync", full)
    save_snapshot(run, state(3), IDENTITY)
    assert [path.name.split("-")[1] for path in snapshots(run)] == ["00003", "00002"]
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        save_snapshot(run, state(4), IDENTITY)
    found = newest_snapshot(run)
    assert found is not None and found.state.step == 3 and not list(tmp_path.glob(".*"))


def test_another_clip_and_other_numerics_are_told_apart() -> None:
    """The seam is what may be accepted; another transformer, request or text may not."""
    other = replace_numerics(torch="9.9")
    assert IDENTITY.other_clip(other) == {} and IDENTITY.seam(other) == {"torch": (IDENTITY.numerics.torch, "9.9")}
    other = IDENTITY.model_copy(update={"transformer_sha256": "ff"})
    assert list(IDENTITY.other_clip(other)) == ["transformer_sha256"] and IDENTITY.seam(other) == {}


def replace_numerics(**fields: str) -> Identity:
    return IDENTITY.model_copy(update={"numerics": IDENTITY.numerics.model_copy(update=fields)})


def test_the_file_name_is_part_of_the_check(tmp_path: Path) -> None:
    """A snapshot that was renamed to another step is not taken for it."""
    run = RunDir(tmp_path)
    name, _ = save_snapshot(run, state(2), IDENTITY)
    (tmp_path / name).rename(tmp_path / name.replace("00002", "00009"))
    with pytest.raises(RunDirError, match="step 2"):
        newest_snapshot(run)
