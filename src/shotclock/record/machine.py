"""What a run ran on: device, driver, cores, memory, versions, code, and whether anything patched what it calls.

Facts only, each with a reason where it is missing. Imports no torch: it asks the one that is already loaded, if any.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import psutil

from shotclock import __version__
from shotclock.record.facts import Fact, known, missing

LIBRARIES = ("torch", "diffusers", "transformers", "tokenizers", "safetensors", "av", "numpy", "scipy", "triton")
OPERATIONS = (  # what every forward goes through; another package may have replaced one (users.md row 45)
    "torch.nn.functional.linear",
    "torch.nn.functional.scaled_dot_product_attention",
    "torch.nn.functional.conv3d",
    "torch.nn.functional.rms_norm",
    "torch.nn.functional.gelu",
    "torch.nn.Linear.forward",
    "torch.matmul",
)
NOT_LOADED = "torch was not loaded in this process"
GIT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts by name; ``libraries`` are versions, ``modules`` what else was loaded, ``operations`` digests by name."""

    facts: Mapping[str, Fact]
    libraries: Mapping[str, str]
    modules: Mapping[str, str]
    operations: Mapping[str, str]

    @property
    def patched(self) -> tuple[str, ...]:
        """Operations whose code comes from another package than their name says."""
        return tuple(name for name, value in self.operations.items() if value.startswith("patched "))


def examine(*, device_index: int | None, nvml: Callable[[], Any] | None = None, source: Path | None = None) -> Machine:
    """Look at this machine. ``device_index`` is the CUDA device of the render, None a render on the CPU.

    ``nvml`` returns the initialised NVML module; ``source`` is a folder of the code, by default this package's.
    """
    torch = sys.modules.get("torch")
    host = psutil.virtual_memory()
    commit, dirty = code_version(source or Path(__file__).parents[1])
    facts = {
        "system": known(f"{platform.system()} {platform.machine()}"),
        "python": known(platform.python_version()),
        "cores": known(len(os.sched_getaffinity(0))),
        "host_memory": known(int(host.total), "B"),
        "processor": _processor(),
        "shotclock": known(__version__),
        "commit": commit,
        "dirty": dirty,
        **_device(device_index, torch, nvml or load_nvml),
    }
    return Machine(
        facts=facts,
        libraries={name: version for name in LIBRARIES if (version := _version(name))},
        modules=loaded_modules(sys.modules),
        operations={} if torch is None else operations(torch),
    )


def unseen(reason: str) -> Machine:
    """A machine that nobody looked at while the run was on it: every fact missing for this reason."""
    names = ("device", "driver", "cuda", "cores", "host_memory", "commit", "dirty", "python")
    return Machine(facts={name: missing(reason) for name in names}, libraries={}, modules={}, operations={})


def load_nvml() -> Any:
    """The NVML module, initialised. Raises where the package or the driver is missing."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def _device(index: int | None, torch: ModuleType | None, nvml: Callable[[], Any]) -> dict[str, Fact]:
    if index is None:
        none = "the render ran on the CPU"
        return {"device": known("cpu"), **{name: missing(none) for name in ("driver", "cuda", "device_memory")}}
    found: dict[str, Fact] = {}
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    found["cuda"] = (
        known(str(cuda)) if cuda else missing(NOT_LOADED if torch is None else "torch is built without CUDA")
    )
    if torch is None:
        found["device"] = missing(NOT_LOADED)
        found["device_memory"] = missing(NOT_LOADED, "B")
    else:
        seen = torch.cuda.get_device_properties(index)
        found["device"] = known(str(seen.name))
        found["device_memory"] = known(int(seen.total_memory), "B")
    try:
        version = nvml().nvmlSystemGetDriverVersion()
        found["driver"] = known(version.decode() if isinstance(version, bytes) else str(version))
    except Exception as error:  # NVML has a class an error, and is not there without a driver
        found["driver"] = missing(f"NVML: {error or type(error).__name__}")
    return found


def _processor() -> Fact:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError as error:
        return missing(f"/proc/cpuinfo: {error.strerror}")
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return known(names[0]) if names and names[0] else missing("the kernel does not name it")


def code_version(folder: Path) -> tuple[Fact, Fact]:
    """The commit of the checkout that ``folder`` lies in, and whether tracked files differ from it."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        inside = _git(folder, "ls-files", "--error-unmatch", "__init__.py") if commit else ""
        if not inside:
            raise LookupError("the code does not lie in a git checkout of its own")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, LookupError, subprocess.SubprocessError) as error:
        why = str(error) if isinstance(error, LookupError) else f"git: {type(error).__name__}"
        return missing(why), missing(why)
    return known(commit), known(bool(changed))


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise LookupError("the code does not lie in a git checkout of its own")
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def loaded_modules(modules: Mapping[str, object]) -> dict[str, str]:
    """Packages outside the standard library that were loaded, with the versions of what was installed; no paths."""
    tops = {name.partition(".")[0] for name in modules}
    owners = metadata.packages_distributions()
    found = {}
    for top in sorted(tops - sys.stdlib_module_names - {"__main__", "shotclock"}):
        if top.startswith("_") or top not in owners:
            continue
        distribution = owners[top][0]
        found[distribution] = _version(distribution) or "version not known"
    return found


def operations(torch: ModuleType, names: tuple[str, ...] = OPERATIONS) -> dict[str, str]:
    """A digest of each operation's code, or "patched ..." where its code is not of torch; see :func:`identity`."""
    found = {}
    for name in names:
        value: Any = torch
        for part in name.split(".")[1:]:
            value = getattr(value, part, None)
        if value is not None:
            found[name] = identity(value, package=name.partition(".")[0])
    return found


def identity(function: Any, *, package: str) -> str:
    """ "builtin NAME" for compiled code, "code DIGEST" for Python of ``package``, else "patched MODULE DIGEST"."""
    code = getattr(function, "__code__", None)
    module = str(getattr(function, "__module__", None) or "")
    wrapped = getattr(function, "__wrapped__", None)
    if code is None:
        name = getattr(function, "__name__", type(function).__name__)
        kind = type(function).__name__
        compiled = kind in ("builtin_function_or_method", "method_descriptor", "wrapper_descriptor")
        return f"builtin {name}" if compiled else f"patched by an object of type {kind}"
    digest = hashlib.sha256(_code_bytes(code)).hexdigest()[:16]
    at_home = f"/{package}/" in Path(code.co_filename).as_posix() and module.partition(".")[0] == package
    return f"code {digest}" if at_home and wrapped is None else f"patched {module or 'unknown'} {digest}"


def _code_bytes(code: CodeType) -> bytes:
    """What a function does, without where it is written."""
    constants = [_code_bytes(one).hex() if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, constants)).encode()
