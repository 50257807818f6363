"""Run folders: one writer, whole files, a readable last line."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shotclock.errors import RunDirError
from shotclock.rundir import UMASK, RunDir, aside, write_aside

HOLDER = """
import sys, time
from pathlib import Path
from shotclock.rundir import RunDir
with RunDir(Path(sys.argv[1])).writing():
    print("held", flush=True)
    sys.stdin.read()
"""
WRITER = """
import sys
from pathlib import Path
from shotclock.rundir import write_aside
path = Path(sys.argv[1])
number = 0
while True:
    number += 1
    write_aside(path, (str(number % 10) * 300_000).encode())
    print(number, flush=True)
"""


def test_a_second_writer_is_refused_and_a_dead_one_is_not_in_the_way(tmp_path: Path) -> None:
    """The lock is the kernel's: it is free as soon as its holder is killed."""
    run = RunDir.create(tmp_path / "run")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(RunDirError, match="another process"), run.writing():
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with run.writing():
        assert run.path.is_dir()


def test_a_folder_with_a_run_is_not_taken_again(tmp_path: Path) -> None:
    """Nothing that was rendered is written over."""
    run = RunDir.create(tmp_path)
    write_aside(run.request, b"{}\n")
    with pytest.raises(RunDirError, match="already holds a run"):
        RunDir.create(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunDirError, match="cannot be made"):
        RunDir.create(tmp_path / "file" / "run")


def test_killed_writers_leave_whole_files(tmp_path: Path) -> None:
    """Twelve SIGKILLs at arbitrary moments: the file is always one whole version."""
    path = tmp_path / "state"
    for moment in range(12):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(1 + moment % 4):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        content = path.read_bytes()
        assert len(content) == 300_000 and len(set(content)) == 1


def test_files_that_a_library_keeps_to_their_owner_are_as_open_as_the_others(tmp_path: Path) -> None:
    """Latents and snapshots are read by the same people as the log."""
    write_aside(tmp_path / "plain", b"x")
    with aside(tmp_path / "latents.safetensors") as path:
        save_file({"x": torch.zeros(1)}, path)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "latents.safetensors")}
    assert modes == {0o666 & ~UMASK}


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    """users.md row 86: no temporary file stays."""
    path = tmp_path / "state"
    write_aside(path, b"old")
    with pytest.raises(RuntimeError, match="disk"), aside(path) as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError("disk full")
    assert path.read_bytes() == b"old" and [one.name for one in tmp_path.iterdir()] == ["state"]


def test_a_folder_that_holds_anything_is_not_taken(tmp_path: Path) -> None:
    """Somebody's clip.mp4 is never written over."""
    (tmp_path / "clip.mp4").write_text("x")
    with pytest.raises(RunDirError, match=r"is not empty: clip\.mp4"):
        RunDir.create(tmp_path)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_impossible_names_are_refused(name: str, tmp_path: Path) -> None:
    """Too long, or with a zero byte."""
    with pytest.raises(RunDirError, match="cannot be made"):
        RunDir.create(tmp_path / name)
