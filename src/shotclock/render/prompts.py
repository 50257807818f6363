"""Features of prompts that earlier renders encoded: a prompt that was encoded before loads no text encoder.

Kept by prompt, text-encoder digest and everything that decides roundings, in a folder that stays small. Knows no run.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from shotclock.render.text import Features
from shotclock.rundir import aside
from shotclock.weights.checkpoint import Header
from shotclock.weights.digest import sampled_sha256

logger = logging.getLogger(__name__)

FOLDER = "prompts"  # below the home of state that outlives a run
KEPT = 64  # prompts: at most 25 MB each, 1 MB for one of 40 words
SUFFIX = ".safetensors"


@cache
def _libraries() -> tuple[str, str]:
    """Versions that decide roundings; looking one up takes milliseconds."""
    return torch.__version__, version("transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCache:
    """Of one text encoder on one device; ``folder`` None keeps nothing and holds nothing."""

    folder: Path | None
    encoder: str
    device: str
    dtype: str

    @classmethod
    def of(cls, folder: Path | None, header: Header, *, device: str, dtype: torch.dtype) -> PromptCache:
        """For the encoder of a file, told by its sampled digest."""
        return cls(folder=folder, encoder=sampled_sha256(header.path), device=device, dtype=str(dtype))

    def holds(self, prompt: str) -> bool:
        """Whether the prompt was encoded before."""
        return self.folder is not None and self._path(self.folder, prompt).is_file()

    def read(self, prompt: str) -> Features | None:
        """The features on the CPU; None where there are none, or none that can be read."""
        if self.folder is None or not (path := self._path(self.folder, prompt)).is_file():
            return None
        try:
            tensors = load_file(path)
            path.touch()
            return Features(video=tensors["video"], audio=tensors["audio"])
        except (OSError, SafetensorError, KeyError) as error:
            logger.warning("%s cannot be read, the prompt is encoded again: %s", path, error)
            return None

    def keep(self, prompt: str, features: Features) -> None:
        """Write the features; a disk that refuses is said in the log and costs nothing else."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            tensors = {"video": features.video.contiguous().cpu(), "audio": features.audio.contiguous().cpu()}
            with aside(self._path(self.folder, prompt)) as path:
                save_file(tensors, path)
            self._prune(self.folder)
        except (OSError, SafetensorError) as error:
            logger.warning("the encoded prompt is not kept: %s", error)

    def _path(self, folder: Path, prompt: str) -> Path:
        key = [prompt, self.encoder, self.device, self.dtype, *_libraries()]
        return folder / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()}{SUFFIX}"

    @staticmethod
    def _prune(folder: Path) -> None:
        found = [path for path in folder.glob(f"*{SUFFIX}") if not path.name.startswith(".")]
        for path in sorted(found, key=lambda one: one.stat().st_mtime_ns, reverse=True)[KEPT:]:
            path.unlink(missing_ok=True)
