"""A batch is accepted whole or refused whole, every bad line by its number."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from shotclock.cli import TERMS, render
from shotclock.cluster.batch import Entry, read_batch, settings_of
from shotclock.errors import RequestError

DEFAULTS = {
    name: one.default
    for name, one in inspect.signature(render).parameters.items()
    if name not in (*TERMS, "prompt", "run")
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def read(tmp_path: Path, home: Path, *lines: str | dict[str, Any]) -> list[Entry]:
    """A batch of these lines."""
    path = tmp_path / "batch.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return read_batch(path, DEFAULTS, folder=tmp_path / "queue", home=home, say=list[str]().append)


def test_each_line_gets_its_own_run_folder_and_the_defaults_of_render(tmp_path: Path, home: Path) -> None:
    """Named by its line or as it says; numbers may be written as numbers, options as on the command line."""
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("@ rain")
    found = read(
        tmp_path,
        home,
        {"prompt": "a red circle", "fps": 25, "frames": 9, "stg-blocks": 1, "class": "dev"},
        "",
        {"prompt": f"@{prompt}", "run": "rain.1", "device": "cuda:3", "frames": "17"},
    )
    assert [(one.line, one.name) for one in found] == [(1, "0001"), (3, "rain.1")]
    first, second = (settings_of(one.options, tmp_path / one.name) for one in found)
    assert (first.fps, first.frames, first.stg_blocks, first.model_class) == ("25", "9", "1", "dev")
    assert (first.seed, first.models, first.run) == (DEFAULTS["seed"], DEFAULTS["models"], tmp_path / "0001")
    assert second.device == "cuda:3", "whether it is there is the worker's matter"
    assert second.prompt == "@@ rain", "the file's text of the moment when it was submitted"


BAD = {
    '{"prompt": "x", "sise": "64x64"}': "unknown field sise",
    '{"prompt": "x", "lease": "4h"}': "unknown field lease",
    '{"prompt": "x", "size": "65x64"}': "width 65 is not a positive multiple of 32",
    '{"prompt": "x", "seed": "7"}': "seed '7'",
    '{"prompt": "x", "steps": true}': "steps 'True'",
    '{"prompt": "x", "steps": 4, "steps": 5}': "steps is said twice",
    '{"prompt": "x", "model_class": "dev", "class": "dev"}': "class is said twice",
    '{"prompt": "x", "run": "../y"}': "run '../y'",
    '{"prompt": "x", "run": "jobs"}': "run 'jobs'",
    '{"prompt": "x", "device": "cuda:x"}': "device 'cuda:x'",
    '{"prompt": "x", "gpus": 2}': "gpus 2",
    '{"prompt": " "}': "the prompt is empty",
    '{"seed": 7}': "no prompt",
    '{"prompt": "x"': "no JSON",
    "[1]": "a JSON list",
}


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_named(tmp_path: Path, home: Path, line: str) -> None:
    """With its number, and what is wrong with it."""
    with pytest.raises(RequestError) as refused:
        read(tmp_path, home, {"prompt": "good"}, line)
    assert f"line 2: {BAD[line]}" in refused.value.found and "line 1: " not in refused.value.found


def test_all_bad_lines_are_named_at_once(tmp_path: Path, home: Path) -> None:
    """Not one after the other, corrected and submitted again."""
    with pytest.raises(RequestError) as refused:
        read(tmp_path, home, "no", {"prompt": "x", "run": "a"}, {"prompt": "x", "run": "a"}, {"prompt": 7})
    found = refused.value.found
    assert "line 1: no JSON" in found and "line 3: run 'a' is line 2's" in found and "line 4: no prompt" in found
    assert refused.value.exit_code == 2 and not (tmp_path / "queue").exists()


def test_an_empty_or_absent_batch_is_refused(tmp_path: Path, home: Path) -> None:
    """Nothing to submit is a mistake."""
    with pytest.raises(RequestError, match="no line holds a request"):
        read(tmp_path, home, "", " ")
    with pytest.raises(RequestError, match="cannot be read"):
        read_batch(tmp_path / "none", DEFAULTS, folder=tmp_path, home=home, say=list[str]().append)
