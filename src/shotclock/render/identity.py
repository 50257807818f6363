"""What two attempts of one render must agree on before one may continue the other's latents.

The request, the files and the contexts: another of these is another clip. The numerics: device, versions, kernels and
this program's own arithmetic; another of these is the same clip with other roundings, which the user may accept.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Literal

import torch

import shotclock
from shotclock.model.attention import BACKENDS
from shotclock.plan.key import UNQUANTISED
from shotclock.plan.law import ONE
from shotclock.plan.planner import Plan
from shotclock.request import Document

# Modules whose arithmetic reaches the latents.
ARITHMETIC = (
    "guidance.py",
    "latents.py",
    "schedule.py",
    "geometry.py",
    "recipes.py",
    "render/conditioning.py",
    "render/denoise.py",
    "render/encode.py",
    "render/samplers.py",
    "render/stages.py",
    "render/upscale.py",
    "weights/lora.py",
    "model/*.py",
)


class Numerics(Document):
    """Everything that decides roundings. ``code`` is a digest of the modules in :data:`ARITHMETIC`."""

    device: str
    capability: str
    threads: int | None
    torch: str
    dtype: str
    attention: str
    launch: Literal["eager"] = "eager"
    quantisation: str = UNQUANTISED
    legs_per_pass: int
    gpus: int = 1
    split: str = ONE
    code: str


class Identity(Document):
    """Of a snapshot: what it was made from. The transformer's digest is a sampled one (weights/digest.py)."""

    request_sha256: str
    sigmas_sha256: str
    transformer_sha256: str
    contexts_sha256: str
    upscaler_sha256: str | None = None
    numerics: Numerics

    def other_clip(self, now: Identity) -> dict[str, tuple[object, object]]:
        """Fields, but for the numerics, in which ``now`` differs: (then, now)."""
        return _differences(self.model_dump(exclude={"numerics"}), now.model_dump(exclude={"numerics"}))

    def seam(self, now: Identity) -> dict[str, tuple[object, object]]:
        """Fields of the numerics in which ``now`` differs: (then, now)."""
        return _differences(self.numerics.model_dump(), now.numerics.model_dump())


def _differences(then: dict[str, object], now: dict[str, object]) -> dict[str, tuple[object, object]]:
    return {name: (then[name], now[name]) for name in then if then[name] != now[name]}


def numerics(plan: Plan, device: torch.device, legs_per_pass: int) -> Numerics:
    """The fingerprint of this process on ``device``; threads count on the CPU, where they split sums."""
    on_cpu = device.type == "cpu"
    return Numerics(
        device=plan.device,
        capability=(
            torch.backends.cpu.get_cpu_capability()
            if on_cpu
            else ".".join(str(part) for part in torch.cuda.get_device_capability(device))
        ),
        threads=torch.get_num_threads() if on_cpu else None,
        torch=torch.__version__,
        dtype=plan.dtype,
        attention=">".join(backend.name.lower().removesuffix("_attention") for backend in BACKENDS),
        quantisation=plan.quantisation,
        legs_per_pass=legs_per_pass,
        gpus=plan.gpus,
        split=plan.split,
        code=code_digest(),
    )


@cache
def code_digest() -> str:
    """First 16 digits of the sha256 over the arithmetic's sources."""
    root = Path(shotclock.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(found for pattern in ARITHMETIC for found in root.glob(pattern)):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
