"""The model that ships in the package draws and sounds what it is asked for, on a CPU, right after the install."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import av
import numpy as np
import torch
from pocket.evaluate import hear, look
from pocket.scenes import COLOURS, MOTIONS, SHAPES, TONES

if TYPE_CHECKING:
    from conftest import Zygote


def test_a_render_shows_and_sounds_its_prompt(zygote: Zygote, tmp_path: Path) -> None:
    """The README's prompt with the defaults: seen and heard by the evaluator in the files that a user opens."""
    shutil.rmtree(zygote.home / "prompts", ignore_errors=True)
    run = tmp_path / "run"
    log = tmp_path / "log"
    said = ("render", "a red circle moves right, low tone", "--run", str(run), "--device=cpu", "--quiet")
    assert zygote.run(*said, log=log) == 0, log.read_text()
    with av.open(run / "clip.mp4") as clip:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in clip.decode(video=0)])
    with av.open(run / "clip.wav") as sound:
        wave = np.concatenate([frame.to_ndarray() for frame in sound.decode(audio=0)], axis=1)
    assert frames.shape == (25, 160, 256, 3)
    (seen,) = look(torch.from_numpy(frames)[None].float() / 255)
    (heard,) = hear(torch.from_numpy(wave.reshape(-1, 2).T if len(wave) == 1 else wave)[None].float())
    assert (seen.colour, seen.shape) == (COLOURS.index("red"), SHAPES.index("circle"))
    assert seen.motion == MOTIONS.index("right")
    assert heard.tone == TONES.index("low")
