"""Shapes in signatures are checked while tests run: the annotations of the modules below become assertions."""

from __future__ import annotations

from pathlib import Path

from jaxtyping import install_import_hook

MODEL = Path(__file__).parents[1] / "src" / "shotclock" / "model"
UNCHECKED = ("__init__", "fused")  # Triton reads the source of its kernels and takes no decorator but its own
NOUNS = ("shotclock.geometry", "shotclock.guidance")
CHECKED = (*NOUNS, *(f"shotclock.model.{path.stem}" for path in MODEL.glob("*.py") if path.stem not in UNCHECKED))

install_import_hook(CHECKED, "shape_checks.check")  # before any of them is imported
