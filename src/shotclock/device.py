"""Memory and completion of a device, as torch and the kernel report them.

Knows devices, not renders.
"""

from __future__ import annotations

import resource

import psutil
import torch

UNIFIED_SHARE = 0.9  # a device with at least this share of host memory has no memory of its own (lease.md, GB10)


def default_device() -> str:
    """CUDA where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all that was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def is_unified(device: torch.device) -> bool:
    """Whether device and host share one memory, so that only the kernel's MemAvailable tells what is free."""
    if device.type != "cuda":
        return True
    properties = torch.cuda.get_device_properties(device)
    total = properties.total_memory
    large = total >= UNIFIED_SHARE * psutil.virtual_memory().total
    return total == 0 or bool(properties.is_integrated and large)


def free_bytes(device: torch.device) -> int:
    """Bytes that a render could still take: free device memory plus what torch's allocator holds unused."""
    if is_unified(device):
        return int(psutil.virtual_memory().available)
    free, total = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_allocated(device)
    allowed = torch.cuda.get_per_process_memory_fraction(_index(device)) * total
    return int(min(free + torch.cuda.memory_reserved(device), allowed) - held)


def limit(device: torch.device, cap_bytes: int | None) -> None:
    """Let torch's allocator hold no more than ``cap_bytes`` on a CUDA device; elsewhere the plan alone keeps to it."""
    if device.type == "cuda" and cap_bytes is not None:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(cap_bytes / total, 1.0), _index(device))


def _index(device: torch.device) -> int:
    """Number of a CUDA device; these two functions of torch take no ``cuda`` without one."""
    return torch.cuda.current_device() if device.index is None else device.index


def peak_bytes(device: torch.device) -> int:
    """Most memory held so far: of torch's allocator on a GPU, of the process on the CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux reports KiB


def release(device: torch.device) -> None:
    """Give cached device memory back."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
