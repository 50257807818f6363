"""The oracle's process: exit codes in words, bounded in time, gone with all its children."""

from __future__ import annotations

import os
import select
import shlex
import sys
from pathlib import Path

import pytest

from shotclock.bench.child import run_command
from shotclock.errors import RenderFailed, RequestError


def script(folder: Path, text: str) -> str:
    """A shell command that runs ``text`` with the job as $1 and the output folder as $2."""
    (folder / "oracle.sh").write_text(text)
    return shlex.join(["sh", str(folder / "oracle.sh")])


def ends(pid: int) -> bool:
    """Whether the process is dead, or dies within a minute of having been killed."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 60)[0])
    finally:
        os.close(descriptor)


def test_job_and_folder_are_given_to_any_command(tmp_path: Path) -> None:
    """Both paths, with spaces in them too; what it says is kept."""
    job = tmp_path / "a job.json"
    job.write_text("{}")
    ran = run_command(script(tmp_path, 'cp "$1" "$2/copy"; echo done'), job, tmp_path / "the out", limit_s=60)
    assert (tmp_path / "the out" / "copy").read_text() == "{}"
    assert (tmp_path / "the out" / "oracle.log").read_text() == "done\n" and ran.wall_s > 0


def test_exit_2_is_a_refusal_and_others_are_failures(tmp_path: Path) -> None:
    """With the last words of the child."""
    with pytest.raises(RequestError, match="refuses the job: first / error: no such model"):
        run_command(script(tmp_path, "echo first; echo error: no such model; exit 2"), tmp_path, tmp_path, limit_s=60)
    with pytest.raises(RenderFailed, match="ended with code 7: it said nothing"):
        run_command(script(tmp_path, "exit 7"), tmp_path, tmp_path, limit_s=60)
    with pytest.raises(RenderFailed, match="ended with code -9"):
        run_command(script(tmp_path, "kill -9 $$"), tmp_path, tmp_path, limit_s=60)


def test_a_child_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    """Nothing of its process group is left."""
    text = 'sleep 600 & echo $! > "$2/pids"; echo $$ >> "$2/pids"; wait'
    with pytest.raises(RenderFailed, match="was killed after 2 s"):
        run_command(script(tmp_path, text), tmp_path, tmp_path / "out", limit_s=2)
    pids = [int(line) for line in (tmp_path / "out" / "pids").read_text().split()]
    assert len(pids) == 2 and all(ends(pid) for pid in pids)


@pytest.mark.parametrize("command", ["", "no-such-program --here"])
def test_a_command_that_is_not_there_is_refused(tmp_path: Path, command: str) -> None:
    """Before anything is started."""
    with pytest.raises(RequestError, match="oracle command"):
        run_command(command, tmp_path, tmp_path / "out", limit_s=1)
    assert not (tmp_path / "out").exists() and sys.executable
