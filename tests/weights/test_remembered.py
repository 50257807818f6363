"""A digest that was read once tells dev from distilled weights without reading them again."""

from __future__ import annotations

from pathlib import Path

from shotclock.weights.released import DIGESTS
from shotclock.weights.remembered import FILE, class_of, remember


def test_a_released_digest_is_a_class(tmp_path: Path) -> None:
    """Known by the file's pages, not by its name; another file, another digest and a broken list say nothing."""
    files = {name: tmp_path / f"{name}.safetensors" for name in (*DIGESTS, "other")}
    for name, path in files.items():
        path.write_bytes(name.encode() * 1000)
    for name, (first, last) in DIGESTS.items():
        remember(tmp_path / "home", files[name], first + "0" * (64 - len(first) - len(last)) + last)
    remember(tmp_path / "home", files["other"], "0" * 64)
    assert {name: class_of(tmp_path / "home", path) for name, path in files.items()} == {
        "dev": "dev",
        "distilled": "distilled",
        "other": None,
    }
    moved = files["dev"].rename(tmp_path / "renamed.safetensors")
    assert class_of(tmp_path / "home", moved) == "dev"
    moved.write_bytes(b"changed")
    assert class_of(tmp_path / "home", moved) is None and class_of(tmp_path / "nowhere", moved) is None
    (tmp_path / "home" / FILE).write_text("[")
    assert class_of(tmp_path / "home", files["distilled"]) is None
