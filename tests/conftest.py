"""Shapes in signatures are checked while tests run: the annotations of the modules below become assertions."""

from __future__ import annotations

import os
from pathlib import Path

from jaxtyping import install_import_hook

PACKAGE = Path(__file__).parents[1] / "src" / "shotclock"
UNCHECKED = (
    "__init__",
    "fused",
    "fused_quantise",
)  # Triton reads the source of its kernels and takes no decorator but its own
NOUNS = ("shotclock.geometry", "shotclock.guidance")
PARTS = [path for part in ("model", "verify") for path in (PACKAGE / part).glob("*.py") if path.stem not in UNCHECKED]
CHECKED = (*NOUNS, *(f"shotclock.{path.parent.name}.{path.stem}" for path in PARTS))

if "PYTEST_XDIST_WORKER" in os.environ:  # as many workers as cores: a thread each
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command does, before torch is imported
install_import_hook(CHECKED, "shape_checks.check")  # before any of them is imported
