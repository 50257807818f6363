"""Doctor: never raises, says why where it cannot see, fits one screen; told by fakes of the GPU side."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend

from shotclock.doctor import (
    COLUMNS,
    NO_DEVICE,
    ROWS,
    THIS_MACHINE,
    Device,
    Disk,
    Doctor,
    Machine,
    Unknown,
    attend,
    examine,
    missing_extras,
)

SAMPLE_BYTES = 1 << 20
HOST_BYTES = psutil.virtual_memory().total


@dataclass(frozen=True)
class FakeCuda:
    """As much of ``torch.cuda`` as is asked."""

    total_memory: int = 150 << 30
    is_integrated: bool = False
    count: int = 1

    def is_available(self) -> bool:
        return self.count > 0

    def device_count(self) -> int:
        return self.count

    def get_device_properties(self, _number: int) -> SimpleNamespace:
        return SimpleNamespace(
            name="Fake H",
            major=9,
            minor=0,
            total_memory=self.total_memory,
            is_integrated=self.is_integrated,
            uuid="0-1",
        )

    def mem_get_info(self, _number: int) -> tuple[int, int]:
        return 100 << 30, self.total_memory


class FakeNvml:
    """As much of NVML as is asked; ``refusal`` is raised by the memory query."""

    class NVMLError(Exception):
        """As in pynvml."""

    class NVMLError_NotSupported(NVMLError):  # noqa: N801 - pynvml's name
        """As in pynvml."""

    def __init__(self, refusal: type[Exception] | None = None) -> None:
        self.refusal = refusal

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802 - pynvml's name
        return "580.65"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802 - pynvml's name
        return uuid

    def nvmlDeviceGetMemoryInfo(self, _handle: str) -> object:  # noqa: N802 - pynvml's name
        if self.refusal is not None:
            raise self.refusal
        return object()


def _machine(cuda: Any, nvml: Any, attend: Callable[[SDPBackend, torch.device], None] = lambda *_: None) -> Machine:
    clock = iter(range(1000)).__next__
    return Machine(cuda=cuda, load_nvml=lambda: nvml, attend=attend, clock=clock, disk_sample_bytes=SAMPLE_BYTES)


def _fail(*_: object) -> Any:
    raise OSError(5, "cable pulled")


def _only_device(doctor: Doctor) -> Device:
    assert not isinstance(doctor.devices, Unknown)
    (device,) = doctor.devices
    return device


def test_this_machine_is_described_on_one_screen_and_as_json(tmp_path: Path) -> None:
    """The real thing: this host's libraries and codecs are found, and the disk is left as it was."""
    doctor = examine(tmp_path)
    assert doctor.libraries["torch"] == torch.__version__ or str(doctor.libraries["torch"]) in torch.__version__
    assert doctor.codecs == {"libx264": "ok", "aac": "ok"}
    assert doctor.memory_bytes == HOST_BYTES
    assert "math" in doctor.attention
    assert list(tmp_path.iterdir()) == []
    assert len(doctor.lines()) <= ROWS
    assert json.loads(json.dumps(doctor.to_json()))["format"] == "shotclock-doctor-1"


def test_without_a_device_it_says_that_renders_run_on_the_cpu(tmp_path: Path) -> None:
    """No device is a sentence, not an empty field."""
    doctor = examine(tmp_path, machine=_machine(FakeCuda(count=0), FakeNvml()))
    assert NO_DEVICE in "\n".join(doctor.lines())
    assert doctor.to_json()["devices"] == []


def test_a_missing_driver_is_not_available_with_its_reason(tmp_path: Path) -> None:
    """NVML raises where there is no driver: the rest of the report still stands."""
    doctor = examine(tmp_path, machine=replace(_machine(FakeCuda(), None), load_nvml=_fail))
    assert doctor.to_json()["driver"] == "not available (cable pulled)"
    assert _only_device(doctor).total_bytes == 150 << 30


def test_a_discrete_device_has_its_own_memory(tmp_path: Path) -> None:
    """Even where the host has less memory than the device."""
    device = _only_device(examine(tmp_path, machine=_machine(FakeCuda(total_memory=2 * HOST_BYTES), FakeNvml())))
    assert (device.unified, device.total_bytes, device.free_bytes) == (False, 2 * HOST_BYTES, 100 << 30)
    assert (device.name, device.capability) == ("Fake H", "9.0")


@pytest.mark.parametrize(
    ("cuda", "nvml"),
    [
        (FakeCuda(), FakeNvml(FakeNvml.NVMLError_NotSupported)),
        (FakeCuda(total_memory=0), FakeNvml()),
        (FakeCuda(total_memory=int(0.95 * HOST_BYTES), is_integrated=True), FakeNvml()),
    ],
    ids=["not supported", "total of zero", "integrated, 0.95 of the host"],
)
def test_unified_memory_is_told_and_counted_as_the_hosts(tmp_path: Path, cuda: FakeCuda, nvml: FakeNvml) -> None:
    """Each of the three signs is enough; free bytes are then the kernel's MemAvailable, not what CUDA says."""
    doctor = examine(tmp_path, machine=_machine(cuda, nvml))
    device = _only_device(doctor)
    assert device.unified
    assert (device.total_bytes, device.free_bytes) == (HOST_BYTES, doctor.memory_available_bytes)
    assert "(unified)" in "\n".join(doctor.lines())


@pytest.mark.parametrize(
    ("cuda", "nvml"),
    [
        (FakeCuda(), FakeNvml(FakeNvml.NVMLError)),
        (FakeCuda(total_memory=HOST_BYTES // 2, is_integrated=True), FakeNvml()),
    ],
    ids=["another NVML error", "integrated, half of the host"],
)
def test_what_is_no_sign_of_unified_memory_is_not_taken_for_one(tmp_path: Path, cuda: FakeCuda, nvml: FakeNvml) -> None:
    """An NVML that fails for another reason says nothing about the memory."""
    assert not _only_device(examine(tmp_path, machine=_machine(cuda, nvml))).unified


def test_attention_backends_are_tried_on_the_first_device(tmp_path: Path) -> None:
    """A backend is usable when one attention ran with it alone."""
    seen: list[tuple[SDPBackend, str]] = []

    def only_cudnn(backend: SDPBackend, device: torch.device) -> None:
        seen.append((backend, str(device)))
        if backend is not SDPBackend.CUDNN_ATTENTION:
            raise RuntimeError("no available kernel")

    doctor = examine(tmp_path, machine=_machine(FakeCuda(), FakeNvml(), only_cudnn))
    assert doctor.attention == ("cuDNN",)
    assert {device for _, device in seen} == {"cuda:0"}
    assert "cuDNN; not usable: flash, efficient, math" in "\n".join(doctor.lines())


def test_a_backend_that_a_cpu_lacks_raises() -> None:
    """The probe is not vacuous: math runs on a CPU, cuDNN does not."""
    attend(SDPBackend.MATH, torch.device("cpu"))
    with pytest.raises(RuntimeError):
        attend(SDPBackend.CUDNN_ATTENTION, torch.device("cpu"))


def test_disk_rates_are_bytes_over_the_clock(tmp_path: Path) -> None:
    """A clock of one second a look: one sample a second each way."""
    disk = examine(tmp_path, machine=_machine(FakeCuda(count=0), FakeNvml())).disk
    assert (disk.write_bytes_per_s, disk.read_bytes_per_s) == (SAMPLE_BYTES, SAMPLE_BYTES)
    assert disk.folder == str(tmp_path)


def test_a_folder_that_is_not_there_gives_no_rate_and_no_error(tmp_path: Path) -> None:
    """The reason takes the place of the figure; it is never 0."""
    doctor = examine(tmp_path / "gone", machine=_machine(FakeCuda(count=0), FakeNvml()))
    written = doctor.to_json()["disk"]
    assert written["write_bytes_per_s"] == written["free_bytes"] == "not available (No such file or directory)"


def test_nothing_raises_where_every_source_fails(tmp_path: Path) -> None:
    """The worst machine still gets its screen."""
    broken = Machine(
        cuda=SimpleNamespace(is_available=_fail), load_nvml=_fail, attend=_fail, clock=_fail, disk_sample_bytes=1
    )
    doctor = examine(tmp_path, machine=broken)
    assert doctor.to_json()["devices"] == "not available (cable pulled)"
    assert doctor.attention == ()
    assert "attention  none" in "\n".join(doctor.lines())


def test_missing_extras_name_their_pip_command_and_installed_ones_do_not() -> None:
    """From the package's own metadata; the development extra is nobody else's matter."""
    requirements = [
        "torch>=2.11",
        "numpy>=2; extra == 'report'",
        "no-such-thing>=3,<4; extra == 'report'",
        'other-thing[fast]==1.5; extra == "slurm"',
        "third-thing; extra == 'dev'",
    ]
    assert missing_extras(requirements) == {
        "report": "python -m pip install 'no-such-thing>=3,<4'",
        "slurm": "python -m pip install 'other-thing[fast]==1.5'",
    }
    assert missing_extras(["numpy; extra == 'report'"]) == {}


def test_the_lease_is_what_the_caller_says(tmp_path: Path) -> None:
    """The environment is not read here."""
    doctor = examine(tmp_path, lease="4 h, from --lease", machine=_machine(FakeCuda(count=0), FakeNvml()))
    assert doctor.lines()[-1] == "lease      4 h, from --lease"


@settings(max_examples=50)
@given(text=st.text(min_size=1, max_size=300), count=st.integers(0, 16), extras=st.integers(0, 5))
def test_the_report_fits_one_screen_whatever_it_holds(text: str, count: int, extras: int) -> None:
    """24 lines of 80 columns for any names, any number of devices and any reasons."""
    device = Device(name=text, capability="9.0", unified=False, total_bytes=1, free_bytes=Unknown(text))
    doctor = Doctor(
        system=text,
        python="3.11",
        libraries={"torch": text},
        driver=Unknown(text),
        cuda=None,
        devices=(device,) * count,
        attention=(),
        cores=Unknown(text),
        memory_bytes=1,
        memory_available_bytes=1,
        codecs={"aac": Unknown(text)},
        disk=Disk(folder=text, free_bytes=1, sample_bytes=1, write_bytes_per_s=1.0, read_bytes_per_s=1.0),
        extras={str(number): text for number in range(extras)},
        lease=text,
    )
    lines = doctor.lines()
    assert len(lines) <= ROWS
    assert max(map(len, lines)) <= COLUMNS
    assert all(len(line.splitlines()) <= 1 for line in lines)


def test_this_machine_is_asked_through_torch_itself() -> None:
    """The default sources are the real ones."""
    assert THIS_MACHINE.cuda is torch.cuda
    assert THIS_MACHINE.attend is attend
