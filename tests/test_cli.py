"""What every command does when something is wrong: words, exit codes, one JSON document, never a traceback."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from shotclock import cli


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in this process; returns exit code, stdout and stderr."""
    monkeypatch.setenv("SHOTCLOCK_HOME", str(tmp_path / "home"))

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["shotclock", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return run


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["nonsense", "--json"], "No such command 'nonsense'"),
        (["watch", "--json"], "Missing argument 'run'"),
        (["watch", "x", "--every", "soon", "--json"], "Invalid value for '--every'"),
        (["record", "nonsense", "--json"], "No such command 'nonsense'"),
        (["watch", "nowhere", "--json"], "nowhere holds no run"),
        (["record", "show", "nothing", "--json"], "nothing"),
        (["plan", "x", "--lease", "soon", "--json"], "lease 'soon'"),
        (["plan", "x", "--lease-end", "0001-01-01T00:00", "--json"], "lease end '0001-01-01T00:00'"),
        (["plan", "x", "--lease-end", "9999-12-31T23:59-23:59", "--json"], "lease end '9999-12-31T23:59-23:59'"),
    ],
)
def test_a_refusal_is_words_and_with_json_a_document(ask: Any, arguments: list[str], found: str) -> None:
    """Also what typer itself refuses; without --json stdout is empty."""
    code, out, err = ask(*arguments)
    said = json.loads(out.splitlines()[-1])
    assert code == said["exit_code"] == 2 and found in said["found"]
    assert err.splitlines() == [
        f"error: {said['found']}",
        f"  allowed: {said['allowed']}",
        f"  way out: {said['way_out']}",
    ]
    assert ask(*arguments[:-1])[:2] == (2, "")


def test_inspect_lists_what_it_cannot_read_too(ask: Any, tmp_path: Path) -> None:
    """One document, in which the refused file has its reason."""
    code, out, err = ask("inspect", str(tmp_path / "nothing.safetensors"), "--json")
    (document,) = json.loads(out)
    assert code == 2 and document["name"] == "nothing.safetensors" and document["refusal"] and "way out" in err


def test_what_the_system_refuses_is_named(ask: Any, tmp_path: Path) -> None:
    """A file where a folder should be: no permission bits, which root would pass."""
    (tmp_path / "file").touch()
    code, out, err = ask("govern", "--samples", str(tmp_path / "file" / "samples.jsonl"), "--", "true", "--json")
    assert code == 1 and not out and f"{tmp_path / 'file' / 'samples.jsonl'}: Not a directory" in err


def test_a_mistake_is_said_and_kept(ask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback on the screen; it is in a file."""

    def broken(_: Path, **__: object) -> None:
        raise KeyError("nobody foresaw this")

    monkeypatch.setattr("shotclock.record.status.read_status", broken)
    code, out, err = ask("watch", str(tmp_path), "--json")
    kept = tmp_path / "home" / "mistake.txt"
    assert code == json.loads(out)["exit_code"] == 1 and "Traceback" not in err and str(kept) in err
    assert "nobody foresaw this" in kept.read_text() and "Traceback" in kept.read_text()


def test_help_is_for_users(ask: Any) -> None:
    """No arguments are the help, exit code 2; asked for, 0."""
    code, out, err = ask()
    assert code == 2 and not err and "renders on a GPU that is held for a bounded time" in " ".join(out.split())
    asked, shown, _ = ask("--help")
    assert asked == 0 and shown.strip() == out.strip()
    assert ask("--version")[:2] == (0, f"{cli.__version__}\n")
