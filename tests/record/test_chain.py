"""The chain of the ledger: what was changed is found, and a kill in a write costs nothing that was said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shotclock.errors import RunDirError
from shotclock.record.chain import Chain, line_sha256

WRITER = """
import sys
from pathlib import Path
from shotclock.record.chain import Chain
chain, number = Chain(Path(sys.argv[1])), 0
while True:
    number += 1
    entry = chain.append({"who": sys.argv[2], "number": number, "padding": "x" * 4000})
    sys.stdout.write(f"{entry['n']} {entry['sha256']}\\n")
    sys.stdout.flush()
"""


def chain_of(folder: Path, count: int) -> Chain:
    chain = Chain(folder)
    for number in range(count):
        chain.append({"number": number})
    return chain


def rewrite(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(change(lines)))


def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    """Numbers from 1, each line holding the digest of the one before."""
    entries = chain_of(tmp_path, 3).read().entries
    assert [entry["n"] for entry in entries] == [1, 2, 3]
    assert [entry["prev"] for entry in entries[1:]] == [entry["sha256"] for entry in entries[:-1]]
    assert chain_of(tmp_path, 0).read().broken == ()


CHANGES: dict[str, Callable[[list[str]], list[str]]] = {
    "edited": lambda lines: [lines[0].replace('"number": 0', '"number": 7'), *lines[1:]],
    "deleted in the middle": lambda lines: [lines[0], *lines[2:]],
    "deleted at the beginning": lambda lines: lines[1:],
    "deleted at the end": lambda lines: lines[:-1],
    "deleted but one": lambda lines: lines[:1],
    "all deleted": lambda _: [],
    "reordered": lambda lines: [lines[1], lines[0], *lines[2:]],
    "not JSON": lambda lines: [*lines[:-1], "what\n"],
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_found_and_nothing_is_built_on_it(tmp_path: Path, name: str) -> None:
    """Edited, deleted and reordered lines are named, and a further append is refused."""
    chain = chain_of(tmp_path, 4)
    rewrite(chain.path, CHANGES[name])
    assert chain.read().broken
    with pytest.raises(RunDirError, match="the ledger is broken"):
        chain.append({"number": 9})


def test_an_edited_line_with_a_new_digest_breaks_the_line_after_it(tmp_path: Path) -> None:
    """Repairing the digest of a changed line does not hide it."""
    chain = chain_of(tmp_path, 3)
    first = json.loads(chain.path.read_text().splitlines()[0]) | {"number": 5}
    first["sha256"] = line_sha256(first)
    rewrite(chain.path, lambda lines: [json.dumps(first, sort_keys=True) + "\n", *lines[1:]])
    assert chain.read().broken == ("line 2 does not follow the line before it",)


@pytest.mark.parametrize("cut", [1, 40, -1])
def test_a_torn_last_line_is_left_out_and_the_next_append_goes_on(tmp_path: Path, cut: int) -> None:
    """Half a line, as a kill leaves it, is no entry; its bytes are kept aside, and the chain continues whole."""
    chain = chain_of(tmp_path, 2)
    whole = chain.path.read_bytes()
    torn = b'{"n": 3, "number": 2, "prev": "' + b"0" * 64 + b'"}'
    chain.path.write_bytes(whole + torn[:cut])
    reading = chain.read()
    assert (len(reading.entries), reading.torn, reading.broken) == (2, torn[:cut], ())
    assert chain.append({"number": 2})["n"] == 3
    assert chain.path.read_bytes().startswith(whole)
    assert chain.read().broken == () and chain.read().torn == b""
    assert [path.read_bytes() for path in tmp_path.glob("torn-*")] == [torn[:cut]]


def test_a_head_that_lags_by_the_line_of_a_kill_is_no_fault(tmp_path: Path) -> None:
    """Killed between line and head: the line counts."""
    chain = chain_of(tmp_path, 2)
    before = chain.head.read_bytes()
    chain.append({"number": 2})
    chain.head.write_bytes(before)
    assert chain.read().broken == ()
    chain.append({"number": 3})
    assert [entry["n"] for entry in chain.read().entries] == [1, 2, 3, 4]


def test_a_missing_head_is_said(tmp_path: Path) -> None:
    """Without it the end of the ledger proves nothing."""
    chain = chain_of(tmp_path, 3)
    chain.head.unlink()
    assert "head.json is missing" in chain.read().broken[0]


def test_killed_writers_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Six processes in pairs are killed in the middle of appending; every line they printed is there, and it holds."""
    said: list[tuple[int, str]] = []
    for round_number in range(3):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(tmp_path), f"{round_number}-{one}"],
                stdout=subprocess.PIPE,
                text=True,
            )
            for one in range(2)
        ]
        for count, writer in enumerate(writers):
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(3 + count)]
            os.kill(writer.pid, signal.SIGKILL)
            lines += writer.stdout.read().splitlines()
            writer.wait()
            writer.stdout.close()
            said += [(int(line.split()[0]), line.split()[1]) for line in lines if len(line.split()) == 2]
    reading = Chain(tmp_path).read()
    digests = {entry["n"]: entry["sha256"] for entry in reading.entries}
    assert reading.broken == ()
    assert len(said) >= 20
    assert [number for number, digest in said if len(digest) == 64 and digests.get(number) != digest] == []
    Chain(tmp_path).append({"who": "after"})
    assert Chain(tmp_path).read().broken == ()
