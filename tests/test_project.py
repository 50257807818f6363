"""The project's own rules: imports, docstrings, sizes, tests that can fail, pins, and what README and Makefile say."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import import_module, metadata
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import shotclock
from shotclock.geometry import patchify_video

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "shotclock"
MODULES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#")
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()

MAX_MODULE_LINES = 400
LONG_MODULES = {
    "cli.py": "every command with its options, one after another: arguments in, lines and an exit code out",
    "model/diffusion_decoder.py": "one network, in the order of its forward",
    "weights/keys.py": "one map: the official names of four modules to the library's, and what their configs may say",
    "verify/thresholds.py": "one table: every rule with its limits, source, meaning and way out",
}
MAX_FUNCTION_LINES = 60
LONG_FUNCTIONS = {"cli.py render": "one option a line"}
WITH_TORCH = {"triton"}  # part of torch's CUDA builds; model/ops.py does without it
WITHOUT_ASSERT = {  # tests that fail by the error of what they call
    "test_good_files_pass": "require() raises where it refuses a file",
    "test_released_header_passes": "the same, for the released header",
}
EXPECTING = ("pytest.raises", "pytest.warns", "torch.testing.assert_close", "np.testing.assert_")
LOCAL_PATH = re.compile(r"(?<![\w.~])/(?:home|root|work|tmp|opt|mnt|media|Users|scratch)/")
LEFTOVER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
URL_OR_OPTION = re.compile(r"https?://|--(?:extra-)?index-url|--find-links")


def _name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def _functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [program, "--no-cache", "--no-logo", "--config", folder / "pyproject.toml"],
        cwd=folder / "src",
        env={"PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_import_contracts_hold() -> None:
    """Layers, governor, judges, cycles: as pyproject.toml says."""
    found = _lint_imports(ROOT)
    assert found.returncode == 0, found.stdout
    assert f"{len(PROJECT['tool']['importlinter']['contracts'])} kept, 0 broken" in found.stdout


WRONG_IMPORTS = {
    "a noun imports the model": ("geometry.py", "shotclock.model.rope", "Imports point one way"),
    "the model imports weights": ("model/rope.py", "shotclock.weights.header", "Imports point one way"),
    "weights import the plan": ("weights/header.py", "shotclock.plan", "Imports point one way"),
    "the plan imports render": ("plan/planner.py", "shotclock.render.text", "Imports point one way"),
    "text imports the governor": ("render/text.py", "shotclock.govern.meter", "Only render/pipeline.py and its gate"),
    "verify imports render": ("verify/__init__.py", "shotclock.render.media", "Verify and record import neither"),
    "record imports the model": ("record/__init__.py", "shotclock.model.rope", "Verify and record import neither"),
    "errors and geometry in a circle": ("errors.py", "shotclock.geometry", "No cycles among siblings"),
    "a module that no layer names": ("stray.py", "shotclock.errors", "Imports point one way"),
}


@pytest.fixture(scope="module")
def copied_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The import graph of the package without its data, to be spoiled."""
    folder = tmp_path_factory.mktemp("imports")
    for path in MODULES:
        copy = folder / "src" / path.relative_to(SOURCE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.mark.parametrize("case", WRONG_IMPORTS)
def test_a_wrong_import_breaks_its_contract(copied_package: Path, case: str) -> None:
    """One import added to a copy of the package, and the contract named for it is broken."""
    file, imported, contract = WRONG_IMPORTS[case]
    path = copied_package / "src" / "shotclock" / file
    before = path.read_text() if path.exists() else None
    path.write_text(f"{before or ''}\nimport {imported}\n")
    try:
        found = _lint_imports(copied_package)
    finally:
        path.unlink() if before is None else path.write_text(before)
    assert found.returncode != 0
    assert re.search(rf"{re.escape(contract)}.* BROKEN", found.stdout), found.stdout


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_module_opens_with_a_docstring(path: Path) -> None:
    """What it does; empty package files say nothing because they hold nothing."""
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree) or (path.name == "__init__.py" and not text.strip())


def test_public_functions_and_classes_have_docstrings() -> None:
    """Modules, classes and functions that do not begin with an underscore."""
    bare = [
        f"{_name(path)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in _public(ast.parse(path.read_text()))
        if not ast.get_docstring(node)
    ]
    assert bare == []


def _public(tree: ast.Module | ast.ClassDef) -> list[ast.FunctionDef | ast.ClassDef]:
    found: list[ast.FunctionDef | ast.ClassDef] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            overridden = isinstance(tree, ast.ClassDef) and node.name == "forward"
            found += [] if overridden else [node]
            found += _public(node) if isinstance(node, ast.ClassDef) and not _is_protocol(node) else []
    return found


def _is_protocol(node: ast.ClassDef) -> bool:
    """Its members are those of the classes that it stands for, and documented there."""
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)


def test_modules_keep_their_size() -> None:
    """400 lines; what is longer is listed with its reason, and the list holds nothing that got shorter."""
    long = {_name(path) for path in MODULES if len(path.read_text().splitlines()) > MAX_MODULE_LINES}
    there = {name for name in LONG_MODULES if (PACKAGE / name).exists()}
    assert long == there


def test_functions_keep_their_size() -> None:
    """60 lines; what is longer is listed with its reason."""
    long = [
        f"{_name(path)} {node.name}"
        for path in MODULES
        for node in _functions(ast.parse(path.read_text()))
        if (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == list(LONG_FUNCTIONS)


@pytest.mark.parametrize("pattern", [LOCAL_PATH, LEFTOVER], ids=["local path", "leftover"])
def test_no_local_path_and_no_leftover_is_in_the_source(pattern: re.Pattern[str]) -> None:
    """Nothing of one machine, nothing half done."""
    files = [*MODULES, ROOT / "README.md", ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / ".ci" / "run"]
    assert [(path.name, found[0]) for path in files if (found := pattern.search(path.read_text()))] == []


def test_the_patterns_find_what_they_are_for() -> None:
    """The rule above is not vacuous."""
    assert LOCAL_PATH.search("open('" + "/ho" + "me/me/x')")
    assert LEFTOVER.search("# TO" + "DO: later")
    assert not LOCAL_PATH.search("docs/home/page and /proc/meminfo")


def test_the_environment_is_read_in_cli_only() -> None:
    """Everything else gets its settings as arguments."""
    readers = {_name(path) for path in MODULES if re.search(r"\bos\.(environ|getenv)\b", path.read_text())}
    assert readers <= {"cli.py"}


def test_what_is_imported_is_a_declared_dependency() -> None:
    """No package is used that only another one happens to install."""
    extras = PROJECT["project"]["optional-dependencies"]
    lines = [*PROJECT["project"]["dependencies"], *extras["report"], *extras["slurm"]]
    names = {Requirement(line).name.lower() for line in lines}
    owners = metadata.packages_distributions()
    used = {root for path in MODULES for root in _imported(ast.parse(path.read_text()))}
    foreign = used - sys.stdlib_module_names - WITH_TORCH - {"shotclock"}
    undeclared = {root for root in foreign if not {name.lower() for name in owners.get(root, [root])} & names}
    assert undeclared == set()


def _imported(tree: ast.AST) -> set[str]:
    roots: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            roots.add(node.module.split(".")[0])
    return roots


def test_every_dependency_of_ci_is_pinned_within_its_range() -> None:
    """constraints.txt has a version for each requirement that CI installs, and the requirement allows it."""
    extras = PROJECT["project"]["optional-dependencies"]
    pins = {name.lower().replace("_", "-"): version for name, version in PINS.items()}
    for line in [*PROJECT["project"]["dependencies"], *extras["dev"], *extras["report"]]:
        requirement = Requirement(line)
        assert pins[requirement.name.lower()] in requirement.specifier, line
    assert PINS["torch"] == "2.13.0"


def test_the_version_is_the_same_everywhere() -> None:
    """pyproject, package, installed metadata and the newest entry of the changelog."""
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    versions = {shotclock.__version__, PROJECT["project"]["version"], metadata.version("shotclock"), newest[1]}
    assert len(versions) == 1


def test_the_installed_metadata_is_sane() -> None:
    """Licence, Python range and a command that exists."""
    installed = metadata.metadata("shotclock")
    assert installed["License-Expression"] == "Apache-2.0"
    assert "3.11" in SpecifierSet(installed["Requires-Python"])
    assert "3.10" not in SpecifierSet(installed["Requires-Python"])
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()
    module, function = PROJECT["project"]["scripts"]["shotclock"].split(":")
    assert callable(getattr(import_module(module), function))


def test_the_readme_has_exactly_two_commands_and_the_makefile_knows_every_target() -> None:
    """``make demo`` and ``make test`` in shell blocks; each ``make X`` it names is a target."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    assert [block.strip() for block in blocks] == ["make demo", "make test"]
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    named = set(re.findall(r"`make ([a-z]+)", README)) | {"demo", "test"}
    assert named <= targets


def test_ci_runs_the_readmes_test_command() -> None:
    """Nothing else can make CI green."""
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "set -euo pipefail"
    assert lines[-1] == "make test"


def test_make_and_ci_name_no_host() -> None:
    """Where packages come from is the matter of the machine."""
    for path in (ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / "constraints.txt"):
        assert not URL_OR_OPTION.search(path.read_text()), path.name


@pytest.fixture(scope="module")
def asserting() -> set[str]:
    """Names of all functions below tests/ that can fail a test."""
    return _asserting(ast.parse(file.read_text()) for file in (ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_every_test_asserts_and_states_its_fact(path: Path, asserting: set[str]) -> None:
    """A test that cannot fail is a bug; its docstring says what is shown."""
    tests = [node for node in _functions(ast.parse(path.read_text())) if node.name.startswith("test_")]
    assert tests, "a test file without tests"
    idle = [node.name for node in tests if node.name not in asserting | WITHOUT_ASSERT.keys()]
    bare = [node.name for node in tests if not ast.get_docstring(node)]
    assert (idle, bare) == ([], [])


def _asserting(trees: Iterable[ast.AST]) -> set[str]:
    """Names of the functions that assert, expect an error, or call a function of the tests that does."""
    functions = [node for tree in trees for node in _functions(tree)]
    found = {node.name for node in functions if _asserts(node, set())}
    while more := {node.name for node in functions if _asserts(node, found)} - found:
        found |= more
    return found


def _asserts(function: ast.AST, asserting: set[str]) -> bool:
    calls = {
        ast.unparse(node.func).split(".")[-1]: ast.unparse(node.func)
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
    }
    stated = any(isinstance(node, ast.Assert) for node in ast.walk(function))
    return stated or bool(calls.keys() & asserting) or any(name.startswith(EXPECTING) for name in calls.values())


def test_an_idle_test_is_found_and_an_assertion_in_a_called_function_counts() -> None:
    """The rule above is not vacuous."""
    source = """
def test_idle(): run()
def test_raises():
    with pytest.raises(ValueError): run()
def test_through(): once.twice()
def twice(): agree()
def agree(): assert run()
"""
    assert _asserting([ast.parse(source)]) == {"test_raises", "test_through", "twice", "agree"}


def test_shapes_are_checked_while_tests_run() -> None:
    """A tensor of the wrong rank is refused by the annotation itself: the hook of conftest.py is on."""
    with pytest.raises(TypeCheckError):
        patchify_video(torch.zeros(3))


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by name alone."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
