"""``--frames auto``: the duration head of a file, and its seconds to frames of the clip. Knows no prompt or request."""

from __future__ import annotations

from fractions import Fraction

import torch
from jaxtyping import Float
from torch import Tensor

from shotclock.errors import CheckpointError, RenderFailed
from shotclock.geometry import TIME_SCALE
from shotclock.model.duration import DurationHead
from shotclock.weights.header import Header
from shotclock.weights.identity import Kind
from shotclock.weights.load import load_module
from shotclock.weights.require import require

PREFIX = "duration_head."
SHORTEST_S, LONGEST_S = 1, 20  # ltx25.md section 7


def predict_s(header: Header, contexts: tuple[Float[Tensor, "k s d"], Float[Tensor, "k s e"]]) -> float:
    """Seconds of the shot that the first of the prompts describes, in float32 on the CPU."""
    names = duration_names(header)
    head = _on_meta(header)
    load_module(head, header, names, device=torch.device("cpu"), dtype=torch.float32)
    video, audio = (context[:1].float().cpu() for context in contexts)
    seconds = float(head.eval()(video, audio)[0])
    if not 0 < seconds < float("inf"):
        raise RenderFailed(
            f"the duration head predicts {seconds} s", allowed="a positive duration", way_out="say --frames yourself"
        )
    return seconds


def frames_of(seconds: float, fps: Fraction) -> int:
    """The duration held between 1 and 20 s, in frames, down to 8k + 1; up where that would be less than 1 s."""
    least, most = round(SHORTEST_S * fps), round(LONGEST_S * fps)
    frames = min(max(round(seconds * float(fps)), least), most)
    down = (frames - 1) // TIME_SCALE * TIME_SCALE + 1
    return down + TIME_SCALE if down < least and down + TIME_SCALE <= most else down


def duration_names(header: Header) -> dict[str, str]:
    """Names in the file to names in the module; refuses what is no duration head."""
    require(header, Kind.DURATION_HEAD)
    if others := [key for key in header.tensors if not key.startswith(PREFIX)]:
        raise CheckpointError(
            f"{header.path.name} holds {others[0]} besides a duration head",
            allowed=f"tensors under {PREFIX}",
            way_out=f"fetch {Kind.DURATION_HEAD.official_file}",
        )
    return {key: key.removeprefix(PREFIX) for key in header.tensors}


def _on_meta(header: Header) -> DurationHead:
    def shape(name: str) -> tuple[int, ...]:
        if f"{PREFIX}{name}" not in header.tensors:
            raise CheckpointError(
                f"{header.path.name} lacks {PREFIX}{name}",
                allowed="a complete duration head",
                way_out=f"fetch {Kind.DURATION_HEAD.official_file}",
            )
        return tuple(header.tensors[f"{PREFIX}{name}"].shape)

    width, video = shape("video_input_proj.weight")
    with torch.device("meta"):
        return DurationHead(
            video=video,
            audio=shape("audio_input_proj.weight")[1],
            width=width,
            hidden=shape("mlp_out.weight")[1],
            queries=shape("attention_pooler.query_tokens")[0],
        )
