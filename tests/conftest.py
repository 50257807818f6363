"""Shapes in signatures are checked while tests run: the annotations of the modules below become assertions."""

from __future__ import annotations

from jaxtyping import install_import_hook

CHECKED = ("shotclock.geometry", "shotclock.guidance", "shotclock.model")

install_import_hook(CHECKED, "beartype.beartype")  # before any of them is imported
