"""Files that several tests of the weights package read; all are written once a session and never changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from weight_files import write_released_transformer

from shotclock.weights.checkpoint import Checkpoints, find_checkpoints
from shotclock.weights.tiny import write_tiny_checkpoints

GOLDENS = Path(__file__).parents[1] / "goldens" / "ckpt"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """The tiny checkpoint of seed 0."""
    return write_tiny_checkpoints(tmp_path_factory.mktemp("tiny"), seed=0)


@pytest.fixture(scope="session")
def golden() -> Checkpoints:
    """The golden files: written by the official code's tools, not by ours."""
    return find_checkpoints(GOLDENS)


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The released dev transformer, header only."""
    folder = tmp_path_factory.mktemp("released")
    return write_released_transformer(folder / "ltx-2.5-22b-dev-transformer-bf16.safetensors")
