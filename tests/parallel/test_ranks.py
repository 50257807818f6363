"""Processes that render together end together: real ones, really killed, and the one at fault is named."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from shotclock.errors import RenderFailed
from shotclock.render.ranks import Seat, run_ranks

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
AGREED = (75, 90, 92)


def run(*orders: Sequence[str], grace_s: float = 0.0) -> int:
    """Each rank follows its orders."""

    def command(seat: Seat) -> list[str]:
        return [sys.executable, str(HERE / "seated.py"), seat.text(), *orders[seat.rank]]

    return run_ranks(len(orders), command, agreed=AGREED, grace_s=grace_s)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pid_of(path: Path) -> int:
    return int(path.read_text().rsplit(" ", 1)[1])


def test_every_rank_has_its_seat_and_all_end_well(tmp_path: Path) -> None:
    """Numbers from 0; the code is 0 when all are."""
    assert run(*([f"tell {tmp_path / str(rank)}"] for rank in range(3))) == 0
    assert [re.sub(", pid.*", "", (tmp_path / str(rank)).read_text()) for rank in range(3)] == [
        "0 of 3",
        "1 of 3",
        "2 of 3",
    ]


def test_a_rank_that_dies_takes_the_others_down_and_is_named(tmp_path: Path) -> None:
    """SIGKILL as the kernel's out-of-memory killer sends it; the other would have waited for ever."""
    other = tmp_path / "other"
    with pytest.raises(RenderFailed, match="rank 1 was ended by SIGKILL at step-3"):
        run(
            [f"tell {other}", "say step-3 none", f"touch {tmp_path / 'there'}", "wait"],
            ["say step-2 none", f"see {tmp_path / 'there'}", "say step-3 none", "die"],
        )
    assert not alive(pid_of(other))


def test_a_rank_that_fails_is_named_though_the_others_fail_after_it(tmp_path: Path) -> None:
    """As gloo does: the peers of a rank that ended raise in their exchange and end with the same code 1."""
    failed = tmp_path / "failed"
    with pytest.raises(RenderFailed, match="rank 0 ended with code 1 at load"):
        run(["say load none", f"touch {failed}", "code 1"], [f"see {failed}", "obey 1", "wait"])


def test_a_rank_that_hangs_is_named_by_the_words_it_did_not_say(tmp_path: Path) -> None:
    """Rank 0 is late because it waits for rank 1, which is a word behind."""
    with pytest.raises(RenderFailed, match=r"no word in time; behind: rank 1 at step-1;"):
        run(
            ["say step-1 none", f"see {tmp_path / 'one'}", "say step-2 0", "wait"],
            ["say step-1 none", f"touch {tmp_path / 'one'}", "wait"],
        )


def test_one_rank_left_alone_is_not_late(tmp_path: Path) -> None:
    """Rank 0 decodes when the others are gone; nobody waits for its words, however long they take."""
    other = tmp_path / "other"
    with pytest.raises(RenderFailed, match="rank 0 was ended by SIGKILL at decode"):
        run([f"see {other}", f"outlive {other}", "say decode 0", "die"], [f"tell {other}"])


def test_the_code_is_that_of_rank_0_where_the_others_are_well(tmp_path: Path) -> None:
    """A verdict that failed is known to rank 0 alone, whichever ends first."""
    assert run(["code 4"], ["code 0"], grace_s=60.0) == 4
    other = tmp_path / "other"
    assert run([f"see {other}", f"outlive {other}", "code 4"], [f"tell {other}"]) == 4


def test_ranks_that_end_by_agreement_have_their_code(tmp_path: Path) -> None:
    """A lease that ended: 75 from all is 75; one of them alone is a failure."""
    assert run(["code 75"], ["code 75"], grace_s=60.0) == 75
    there = tmp_path / "there"
    with pytest.raises(RenderFailed, match="rank 1 ended with code 75"):
        run([f"touch {there}", "wait"], [f"see {there}", "code 75"])


STARTER = """
    import sys
    from shotclock.render.ranks import run_ranks
    here, *orders = sys.argv[1:]
    print(run_ranks(2, lambda seat: [sys.executable, here, seat.text(), *orders], agreed=(75,), grace_s=60.0))
"""


def started(tmp_path: Path, orders: list[str]) -> tuple[subprocess.Popen[str], int]:
    """A process that started two ranks, both of which follow ``orders`` and then wait; and a pipe that both hold."""
    script, fifo = tmp_path / "starter.py", tmp_path / "held"
    script.write_text(textwrap.dedent(STARTER))
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, script, HERE / "seated.py", *orders, f"hold {fifo}", "wait"],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        text=True,
    )
    held = os.open(fifo, os.O_RDONLY)
    there = 0
    while there < 2:
        there += len(os.read(held, 1))
        os.sched_yield()
    return process, held


def test_a_signal_to_the_starter_reaches_every_rank(tmp_path: Path) -> None:
    """Slurm and people signal the command that they started; ranks end as they do alone."""
    process, held = started(tmp_path, ["obey 75"])
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[0] == "75\n"
    assert os.read(held, 1) == b""
    os.close(held)


def test_ranks_end_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    """Nobody is left to watch them, and they hold a GPU each: the pipe ends when the last one is gone."""
    process, held = started(tmp_path, [])
    process.kill()
    process.communicate()
    assert os.read(held, 1) == b""
    os.close(held)


def test_a_seat_is_one_argument() -> None:
    """Of a command line, paths with slashes included."""
    seat = Seat(rank=1, ranks=4, said=7, alive=9, rendezvous=Path("/a folder/of/this"))
    assert Seat.parse(seat.text()) == seat
