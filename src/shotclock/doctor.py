"""What this machine can do, on one screen: libraries, devices, attention, memory, codecs, disk, missing extras.

Knows no checkpoint, plan or run, and reads no environment. Never raises: what cannot be found out says why.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import shutil
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from shotclock import __version__
from shotclock.device import UNIFIED_SHARE

COLUMNS = 80  # one terminal screen
ROWS = 24
DEVICE_ROWS = 8  # devices shown one by one; an eight-GPU host still fits
LABEL = 11  # width of the first column
REASON_LENGTH = 60  # of a foreign error message, so that a screen stays a screen
DISK_SAMPLE_BYTES = 64 << 20  # long enough for a rate, short on a slow disk
HEAD_WIDTH = 128  # head width of the video stream, ltx25.md section 1
LIBRARIES = {"torch": "torch", "diffusers": "diffusers", "transformers": "transformers", "PyAV": "av"}
CODECS = ("libx264", "aac")  # encoders of clip.mp4
BACKENDS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
EXTRA = re.compile(r"^(?P<package>[^;]+?)\s*;.*extra == ['\"](?P<extra>[^'\"]+)['\"]")  # Requires-Dist, PEP 508
DEVELOPMENT = "dev"  # the extra that only the project's own tests need
NO_DEVICE = "no CUDA device: renders run on the CPU"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that could not be found out, and why."""

    why: str

    def __str__(self) -> str:
        return f"not available ({self.why})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One CUDA device. Unified memory is the host's: its free bytes are the kernel's MemAvailable."""

    name: str
    capability: str
    unified: bool
    total_bytes: int | Unknown
    free_bytes: int | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A folder's disk. Rates are of one file: written and synced, then read back with the page cache dropped."""

    folder: str
    free_bytes: int | Unknown
    sample_bytes: int
    write_bytes_per_s: float | Unknown
    read_bytes_per_s: float | Unknown

    @property
    def rates(self) -> str:
        """Both rates, and what they bracket."""
        if isinstance(self.write_bytes_per_s, Unknown) or isinstance(self.read_bytes_per_s, Unknown):
            return f"rates {self.write_bytes_per_s}"
        rates = f"writes {self.write_bytes_per_s / 1e6:,.0f} MB/s, reads {self.read_bytes_per_s / 1e6:,.0f} MB/s"
        return f"{rates} (one {self.sample_bytes >> 20} MiB file, synced, read back uncached)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where the facts come from: ``torch.cuda``, the NVML module, one attention call, a clock in seconds.

    ``disk_sample_bytes`` is the size of the file that the disk is measured with.
    """

    cuda: Any
    load_nvml: Callable[[], Any]
    attend: Callable[[SDPBackend, torch.device], None]
    clock: Callable[[], float]
    disk_sample_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """What was found.

    ``cuda`` is the version torch is built for, ``attention`` names usable backends of the first device, ``extras`` has
    the pip command for each extra that is missing.
    """

    system: str | Unknown
    python: str
    libraries: Mapping[str, str | Unknown]
    driver: str | Unknown
    cuda: str | None
    devices: tuple[Device, ...] | Unknown
    attention: tuple[str, ...]
    cores: int | Unknown
    memory_bytes: int | Unknown
    memory_available_bytes: int | Unknown
    codecs: Mapping[str, str | Unknown]
    disk: Disk
    extras: Mapping[str, str] | Unknown
    lease: str | None

    def lines(self) -> list[str]:
        """One screen: at most 24 lines of 80 columns."""
        libraries = ", ".join(f"{name} {version}" for name, version in self.libraries.items())
        memory = f"{_gib(self.memory_bytes)} memory, {_gib(self.memory_available_bytes)} available"
        rows = [
            ("shotclock", f"{__version__}, Python {self.python}, {self.system}"),
            ("libraries", libraries),
            ("driver", f"{self.driver}; torch is built {f'for CUDA {self.cuda}' if self.cuda else 'without CUDA'}"),
            *self._device_rows(),
            ("attention", self._attention()),
            ("host", f"{self.cores} cores, {memory}"),
            ("codecs", ", ".join(f"{name} {state}" for name, state in self.codecs.items())),
            ("disk", f"{_gb(self.disk.free_bytes)} free, {self.disk.rates}, in {self.disk.folder}"),
            *self._extra_rows(),
            ("lease", self.lease or "none given: a render is not bounded in time"),
        ]
        return [line for label, text in rows for line in _wrapped(label, text)][:ROWS]

    def to_json(self) -> dict[str, Any]:
        """The same facts as plain values; an unknown one is its sentence."""
        fields = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {"format": "shotclock-doctor-1", "version": __version__, **fields}

    def _device_rows(self) -> list[tuple[str, str]]:
        if isinstance(self.devices, Unknown):
            return [("devices", str(self.devices))]
        if not self.devices:
            return [("devices", NO_DEVICE)]
        width = COLUMNS - LABEL
        texts = [_one_line(f"{number}: {_device_text(device)}")[:width] for number, device in enumerate(self.devices)]
        if len(texts) > DEVICE_ROWS:
            texts = [*texts[: DEVICE_ROWS - 1], f"and {len(texts) - DEVICE_ROWS + 1} more"]
        return [("devices" if number == 0 else "", text) for number, text in enumerate(texts)]

    def _attention(self) -> str:
        without = [name for name in BACKENDS if name not in self.attention]
        return (", ".join(self.attention) or "none") + (f"; not usable: {', '.join(without)}" if without else "")

    def _extra_rows(self) -> list[tuple[str, str]]:
        if isinstance(self.extras, Unknown):
            return [("extras", str(self.extras))]
        if not self.extras:
            return [("extras", "all installed")]
        return [("extras", f"{name}: {command}") for name, command in self.extras.items()]


def attend(backend: SDPBackend, device: torch.device) -> None:
    """One attention over 64 tokens in bfloat16 with this backend alone; raises RuntimeError where it cannot."""
    q = torch.zeros(1, 2, 64, HEAD_WIDTH, dtype=torch.bfloat16, device=device)
    with warnings.catch_warnings(), sdpa_kernel([backend]):
        warnings.simplefilter("ignore")  # torch warns why each other backend does not apply
        scaled_dot_product_attention(q, q, q)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def load_nvml() -> Any:
    """The NVML module, initialised. Raises where the package or the driver is missing."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


THIS_MACHINE = Machine(
    cuda=torch.cuda,
    load_nvml=load_nvml,
    attend=attend,
    clock=time.perf_counter,
    disk_sample_bytes=DISK_SAMPLE_BYTES,
)


def examine(folder: Path, *, lease: str | None = None, machine: Machine = THIS_MACHINE) -> Doctor:
    """Look at this machine and at the disk of ``folder``; takes seconds, and leaves nothing behind."""
    nvml = _known(machine.load_nvml)
    host = _known(psutil.virtual_memory)
    devices = _known(lambda: _devices(machine.cuda, nvml, host))
    first = torch.device("cuda", 0) if devices and not isinstance(devices, Unknown) else torch.device("cpu")
    return Doctor(
        system=_known(lambda: f"{platform.system()} {platform.release()} {platform.machine()}"),
        python=platform.python_version(),
        libraries={name: _known(partial(_version, package)) for name, package in LIBRARIES.items()},
        driver=nvml if isinstance(nvml, Unknown) else _known(lambda: _driver(nvml)),
        cuda=torch.version.cuda,
        devices=devices,
        attention=tuple(name for name, backend in BACKENDS.items() if _attends(machine, backend, first)),
        cores=_known(lambda: len(os.sched_getaffinity(0))),
        memory_bytes=host if isinstance(host, Unknown) else int(host.total),
        memory_available_bytes=host if isinstance(host, Unknown) else int(host.available),
        codecs={name: _known(partial(_codec, name)) for name in CODECS},
        disk=_disk(folder, machine),
        extras=_known(lambda: missing_extras(metadata.requires("shotclock") or [])),
        lease=lease,
    )


def missing_extras(requirements: list[str]) -> dict[str, str]:
    """Each extra of ``requirements`` (Requires-Dist lines) that lacks a package, and the pip command for it."""
    packages: dict[str, list[str]] = {}
    for line in requirements:
        if (match := EXTRA.match(line)) and match["extra"] != DEVELOPMENT:
            packages.setdefault(match["extra"], []).append(match["package"])
    absent = {extra: [item for item in items if not _installed(item)] for extra, items in packages.items()}
    return {
        extra: "python -m pip install " + " ".join(f"'{item}'" for item in items)
        for extra, items in sorted(absent.items())
        if items
    }


def _known(ask: Callable[[], T]) -> T | Unknown:
    """The answer, or why there is none: a report about a broken machine must not break on it."""
    try:
        return ask()
    except OSError as error:
        return Unknown(error.strerror or type(error).__name__)
    except Exception as error:
        return Unknown(_one_line(str(error))[:REASON_LENGTH] or type(error).__name__)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise LookupError("not installed") from None


def _installed(requirement: str) -> bool:
    name = re.split(r"[\s\[<>=!~(]", requirement, maxsplit=1)[0]
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _driver(nvml: Any) -> str:
    version = nvml.nvmlSystemGetDriverVersion()
    return version.decode() if isinstance(version, bytes) else str(version)


def _devices(cuda: Any, nvml: Any, host: Any) -> tuple[Device, ...]:
    if not cuda.is_available():
        return ()
    return tuple(_device(number, cuda, nvml, host) for number in range(cuda.device_count()))


def _device(number: int, cuda: Any, nvml: Any, host: Any) -> Device:
    seen = cuda.get_device_properties(number)
    unified = _unified(seen, nvml, host)
    if unified:
        total, free = (host, host) if isinstance(host, Unknown) else (int(host.total), int(host.available))
    else:
        total, free = int(seen.total_memory), _known(lambda: int(cuda.mem_get_info(number)[0]))
    return Device(
        name=seen.name, capability=f"{seen.major}.{seen.minor}", unified=unified, total_bytes=total, free_bytes=free
    )


def _unified(seen: Any, nvml: Any, host: Any) -> bool:
    """Whether device and host share one memory: NVML does not support the question, or the totals say so (lease.md).

    The share counts on integrated devices only: a host may have less memory than its discrete device.
    """
    if seen.total_memory == 0 or (not isinstance(nvml, Unknown) and _refuses_memory(nvml, seen.uuid)):
        return True
    return (
        bool(seen.is_integrated) and not isinstance(host, Unknown) and seen.total_memory >= UNIFIED_SHARE * host.total
    )


def _refuses_memory(nvml: Any, uuid: object) -> bool:
    try:
        nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except nvml.NVMLError as error:
        return isinstance(error, nvml.NVMLError_NotSupported)  # whatever else fails says nothing about the memory
    return False


def _attends(machine: Machine, backend: SDPBackend, device: torch.device) -> bool:
    return not isinstance(_known(lambda: machine.attend(backend, device)), Unknown)


def _codec(name: str) -> str:
    import av

    try:
        av.codec.Codec(name, "w")
    except ValueError as error:
        raise LookupError(f"no such encoder in PyAV {av.__version__}") from error
    return "ok"


def _disk(folder: Path, machine: Machine) -> Disk:
    free = _known(lambda: shutil.disk_usage(folder).free)
    rates = _known(lambda: _disk_rates(folder, machine.disk_sample_bytes, machine.clock))
    write, read = (rates, rates) if isinstance(rates, Unknown) else rates
    return Disk(
        folder=str(folder.absolute()),
        free_bytes=free,
        sample_bytes=machine.disk_sample_bytes,
        write_bytes_per_s=write,
        read_bytes_per_s=read,
    )


def _disk_rates(folder: Path, sample_bytes: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Bytes a second written with fsync, and read back after the kernel dropped its copy; the file is gone after."""
    sample = os.urandom(sample_bytes)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".shotclock-doctor-", buffering=0) as file:
        start_s = clock()
        view = memoryview(sample)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())
        written_s = clock()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        begin_s = clock()
        while file.read(1 << 20):
            pass
        read_s = clock()
    return sample_bytes / max(written_s - start_s, 1e-9), sample_bytes / max(read_s - begin_s, 1e-9)


def _device_text(device: Device) -> str:
    memory = f"{_gib(device.total_bytes)}, {_gib(device.free_bytes)} free"
    return f"{device.name}, capability {device.capability}, {memory}{' (unified)' if device.unified else ''}"


def _gib(count: int | Unknown) -> str:
    return str(count) if isinstance(count, Unknown) else f"{count / 2**30:.1f} GiB"


def _gb(count: int | Unknown) -> str:
    return str(count) if isinstance(count, Unknown) else f"{count / 1e9:.1f} GB"


def _wrapped(label: str, text: str) -> list[str]:
    first, rest = f"{label:<{LABEL}}", " " * LABEL
    return textwrap.wrap(_one_line(text), COLUMNS, initial_indent=first, subsequent_indent=rest) or [first]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _plain(value: Any) -> Any:
    if isinstance(value, Unknown):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
