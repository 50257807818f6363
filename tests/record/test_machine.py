"""The machine's facts: each with a reason where it is missing, no paths, and foreign code in torch's place found."""

from __future__ import annotations

import functools
import json
import math
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from run_folders import events, make_run, verdict

from shotclock.record.ledger import Ledger, write_record
from shotclock.record.machine import Machine, code_version, examine, identity, loaded_modules, operations
from shotclock.record.statement import machine_document, read_machine


def no_driver() -> Any:
    raise RuntimeError("no driver")


def test_a_cpu_has_no_driver_and_says_so() -> None:
    """Missing facts carry a reason, known ones a value; nothing of it is a path."""
    machine = examine(device_index=None)
    assert machine.facts["device"].value == "cpu" and machine.facts["driver"].reason == "the render ran on the CPU"
    assert machine.facts["host_memory"].unit == "B" and machine.libraries["torch"] == torch.__version__
    text = json.dumps(machine_document(machine))
    assert str(Path.home()) not in text and str(Path(torch.__file__).parent) not in text
    assert read_machine(json.loads(text)) == machine


def test_a_device_without_nvml_has_its_name_and_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """What NVML does not say has NVML's reason."""
    seen = SimpleNamespace(name="NVIDIA H200", total_memory=150 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: seen)
    machine = examine(device_index=0, nvml=no_driver)
    assert machine.facts["device"].value == "NVIDIA H200"
    assert machine.facts["driver"].reason == "NVML: no driver"
    driver = SimpleNamespace(nvmlSystemGetDriverVersion=lambda: b"580.65")
    assert examine(device_index=0, nvml=lambda: driver).facts["driver"].value == "580.65"


def git(folder: Path, *arguments: str) -> None:
    identity_ = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity_, *arguments], check=True, capture_output=True)


def test_the_commit_is_known_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    """Clean, then dirty by a tracked file; outside of a checkout there is a reason."""
    package = tmp_path / "src"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert code_version(package)[0].reason is not None
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    commit, dirty = code_version(package)
    assert len(str(commit.value)) == 40 and dirty.value is False
    (package / "stray.txt").write_text("untracked files change no code")
    assert code_version(package)[1].value is False
    (package / "__init__.py").write_text("x = 1\n")
    assert code_version(package) == (commit, dirty.model_copy(update={"value": True}))


def test_a_package_in_a_foreign_checkout_has_no_commit(tmp_path: Path) -> None:
    """An environment inside somebody's repository is not that repository's code."""
    git(tmp_path, "init", "-q")
    (tmp_path / "a.txt").write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    package = tmp_path / "env" / "shotclock"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    assert "checkout of its own" in str(code_version(package)[0].reason)


def test_torchs_own_operations_are_its_own() -> None:
    """Compiled or Python, nothing of an unpatched torch is called patched."""
    found = operations(torch)
    assert len(found) >= 6 and [name for name, value in found.items() if value.startswith("patched")] == []


@pytest.mark.parametrize("wrap", [lambda f: lambda *a, **k: f(*a, **k), lambda f: functools.wraps(f)(lambda *a: f(*a))])
def test_a_patched_operation_is_found_and_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrap: Any) -> None:
    """An operation that another package replaced is told by its code (users.md row 45), in record and not-shown."""
    monkeypatch.setattr(torch.nn.functional, "linear", wrap(torch.nn.functional.linear))
    machine = examine(device_index=None)
    assert machine.patched == ("torch.nn.functional.linear",)
    write_record(make_run(tmp_path / "run", events(), judged=verdict()), tmp_path, machine, private=False)
    (record,) = Ledger.of(tmp_path).records()
    assert "torch.nn.functional.linear is patched" in record.facts.warnings[0]
    assert any("torch.nn.functional.linear was replaced" in one for one in record.facts.not_shown)


def test_a_method_is_known_by_its_code_and_objects_are_no_code() -> None:
    """The same code has the same digest wherever it lies."""
    assert identity(torch.nn.Linear.forward, package="torch").startswith("code ")
    assert identity(torch.nn.Linear.forward, package="torch") == identity(torch.nn.Linear.forward, package="torch")
    assert identity(math.sqrt, package="math") == "builtin sqrt"
    assert identity(functools.partial(max, 1), package="torch").startswith("patched by an object")


def test_loaded_packages_are_named_with_their_versions() -> None:
    """Distributions only: no module of the standard library, no path."""
    found = loaded_modules({"numpy.linalg": 1, "json": 1, "_private": 1, "not_installed_at_all": 1, "pydantic": 1})
    assert set(found) == {"numpy", "pydantic"} and found["numpy"].count(".") == 2


def test_no_torch_means_no_torch_facts() -> None:
    """A record is made of a run that another process rendered."""
    empty = Machine(facts={}, libraries={}, modules={}, operations={})
    assert empty.patched == ()
