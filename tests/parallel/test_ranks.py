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
from unittest.mock import MagicMock

import pytest

from shotclock.errors import RenderFailed, RequestError
from shotclock.render.launch import require_alike
from shotclock.render.ranks import SILENCE_S, Seat, _Rank, _Watch, run_ranks

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
AGREED = (75, 90, 92)


def run(*orders: Sequence[str], grace_s: float = 0.0, silence_s: float = SILENCE_S) -> int:
    """Each rank follows its orders."""

    def command(seat: Seat) -> list[str]:
        return [sys.executable, str(HERE / "seated.py"), seat.text(), *orders[seat.rank]]

    return run_ranks(len(orders), command, agreed=AGREED, grace_s=grace_s, silence_s=silence_s)


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
    told = [["say there-0 none", f"tell {tmp_path / str(rank)}"] for rank in range(3)]
    assert run(*told, grace_s=9999.0) == 0
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
    with pytest.raises(RenderFailed, match="rank 0 ended with code 1 at load-0"):
        run(["say load-0 none", f"touch {failed}", "code 1"], [f"see {failed}", "obey 1", "wait"])


def test_a_rank_that_hangs_is_named_by_the_words_it_did_not_say(tmp_path: Path) -> None:
    """Rank 0 is late because it waits for rank 1, which is a word behind."""
    with pytest.raises(RenderFailed, match=r"no word in time; behind: rank 1 at step-1;"):
        run(
            ["say step-1 none", f"see {tmp_path / 'one'}", "say step-2 0", "wait"],
            ["say step-1 none", f"touch {tmp_path / 'one'}", "wait"],
        )


def test_a_silent_rank_ends_all_long_before_the_pass_is_late() -> None:
    """No word is due for hours, and nobody gives a sign of life for the time that is allowed."""
    with pytest.raises(RenderFailed, match=r"no sign of life for 0 s: .*rank 1 at pass-1"):
        run(["say pass-1 none", "wait"], ["say pass-1 9999", "wait"], silence_s=0.0)


def test_the_silent_rank_is_at_fault_wherever_the_others_wait() -> None:
    """Rank 1 was stopped in a pass of which the end is not due; between passes nobody is judged by silence."""
    ranks = [_Rank(seat, process=MagicMock(), said=-1, pid_fd=-1, place="pass 7", number=7) for seat in range(3)]
    watch = _Watch(ranks, grace_s=20.0, silence_s=40.0, clock=lambda: 141.0)
    ranks[0].heard_s, ranks[1].heard_s, ranks[2].heard_s = 140.0, 101.0, 138.0
    assert watch.behind(141.0) is None
    ranks[0].deadline_s = 9999.0
    assert watch.left_s() == 0.0 and watch.behind(140.9) is None
    assert watch.behind(141.0) == "no sign of life for 40 s: rank 1 at pass 7"
    watch.judge()
    assert watch.hung is not None and all(rank.process.send_signal.called for rank in ranks)  # type: ignore[attr-defined]


def test_what_rank_0_refuses_before_its_first_word_stands(tmp_path: Path) -> None:
    """It has said why; the others, which wait for it, are ended without a word. So where there was nothing to do."""
    for code in (3, 0):
        other = tmp_path / f"other-{code}"
        assert run([f"see {other}", f"code {code}"], [f"tell {other}", "wait"], grace_s=9999.0) == code
        assert not alive(pid_of(other))


def test_how_the_others_end_after_they_parted_is_no_matter(tmp_path: Path) -> None:
    """Rank 0 decodes on; a rank that dies while it tears down takes nothing with it, and one that stays is ended."""
    parted, others = tmp_path / "parted", [tmp_path / "dies", tmp_path / "stays"]
    code = run(
        [
            "say pass-1 none",
            "part",
            f"touch {parted}",
            *(f"see {one}" for one in others),
            f"outlive {others[0]}",
            "code 4",
        ],
        ["say pass-1 none", f"see {parted}", f"tell {others[0]}", "die"],
        [f"tell {others[1]}", "wait"],
    )
    assert code == 4 and not alive(pid_of(others[1]))


def test_one_rank_left_alone_is_not_late(tmp_path: Path) -> None:
    """Rank 0 decodes when the others are gone; nobody waits for its words, however long they take."""
    other = tmp_path / "other"
    with pytest.raises(RenderFailed, match="rank 0 was ended by SIGKILL at decode-9"):
        run([f"see {other}", f"outlive {other}", "say decode-9 0", "die"], [f"tell {other}"])


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


def test_gpus_of_different_kinds_are_refused() -> None:
    """They would round differently and wait for each other; alike ones pass."""
    require_alike(["NVIDIA H200", "NVIDIA H200"])
    with pytest.raises(RequestError, match="--gpus 2 of different kinds: NVIDIA H200, NVIDIA L40S"):
        require_alike(["NVIDIA H200", "NVIDIA L40S"])


def test_a_seat_is_one_argument() -> None:
    """Of a command line, paths with slashes included."""
    seat = Seat(rank=1, ranks=4, said=7, alive=9, rendezvous=Path("/a folder/of/this"), began_s=1234.1)
    assert Seat.parse(seat.text()) == seat
