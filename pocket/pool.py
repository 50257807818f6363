"""Encoded clips to train the transformer on: a ring of groups on the device, each of clips that one caption describes.

Clips of a group share what the caption states and differ in everything else, so one context serves them all and the
batch stays as varied as one of single clips. Must not know the transformer.
"""

from dataclasses import dataclass, field, fields

import torch
from jaxtyping import Int
from torch import Tensor

from pocket.autoencoders import Autoencoders
from pocket.captions import choose_said, describe
from pocket.data import render_video
from pocket.network import GEOMETRY
from pocket.scenes import Scenes, sample_scenes, scenes_like
from pocket.sound import MEL_RATE_HZ, render_sound
from pocket.text import Ids

CAPTION_VARIANTS, CAPTION_TOKENS = 4, 32


def _to(scenes: Scenes, device: str) -> Scenes:
    """To the device without waiting for what it is doing."""
    if device == "cpu":
        return scenes
    moved = {f.name: getattr(scenes, f.name).pin_memory().to(device, non_blocking=True) for f in fields(scenes)}
    return Scenes(**moved)


def draw_groups(groups: int, members: int, seed: int) -> tuple[Scenes, Int[Tensor, "g k s"], Int[Tensor, "g k"]]:
    """`groups * members` scenes, and ids and lengths of CAPTION_VARIANTS wordings that describe all of a group."""
    generator = torch.Generator().manual_seed(seed)
    first, said = sample_scenes(groups, generator), choose_said(groups, seed)
    scenes = scenes_like(first.repeated(members), said.repeated(members), generator)
    wordings = [
        describe(first, seed * CAPTION_VARIANTS + k, held_out=False, said=said) for k in range(CAPTION_VARIANTS)
    ]
    ids, valid = Ids().batch([row[i].text for i in range(groups) for row in wordings], CAPTION_TOKENS)
    return scenes, ids.unflatten(0, (groups, -1)), valid.unflatten(0, (groups, -1))


@dataclass(slots=True)
class Pool:
    """A ring of `size` groups; `draw` replaces the oldest ones, `sample` can be part of a CUDA graph."""

    size: int
    members: int
    autoencoders: Autoencoders
    seed: int
    drawn: int = field(init=False, default=0)
    video: Tensor = field(init=False)
    audio: Tensor = field(init=False)
    ids: Tensor = field(init=False)
    valid: Tensor = field(init=False)
    filled: Tensor = field(init=False)

    def __post_init__(self) -> None:
        device, shape = self.autoencoders.device, (self.size, self.members)
        self.video = torch.zeros(*shape, GEOMETRY.video_tokens, 128, device=device, dtype=torch.bfloat16)
        self.audio = torch.zeros(*shape, GEOMETRY.audio_tokens, 128, device=device, dtype=torch.bfloat16)
        self.ids = torch.zeros(self.size, CAPTION_VARIANTS, CAPTION_TOKENS, device=device, dtype=torch.int64)
        self.valid = torch.ones(self.size, CAPTION_VARIANTS, device=device, dtype=torch.int64)
        self.filled = torch.zeros((), device=device)

    @property
    def clips(self) -> int:
        """Clips drawn so far."""
        return self.drawn * self.members

    def draw(self, groups: int) -> None:
        """Draw, encode and store new groups over the oldest; `groups` divides the size."""
        device, begin = self.autoencoders.device, self.drawn % self.size
        scenes, ids, valid = draw_groups(groups, self.members, self.seed + self.drawn)
        scenes = _to(scenes, device)
        clip, _ = render_video(scenes)
        video, audio = self.autoencoders.encode(clip, render_sound(scenes, MEL_RATE_HZ))
        where = slice(begin, begin + groups)
        self.video[where] = video.unflatten(0, (groups, -1)).bfloat16()
        self.audio[where] = audio.unflatten(0, (groups, -1)).bfloat16()
        self.ids[where], self.valid[where] = ids.to(device), valid.to(device)
        self.drawn += groups
        self.filled.fill_(min(self.drawn, self.size))

    def sample(self, groups: int) -> tuple[Tensor, Tensor, Int[Tensor, "u s"], Int[Tensor, " u"]]:
        """Random groups with one wording each: video and audio tokens of all members, ids, number of real ids."""
        device = self.autoencoders.device
        group = (torch.rand(groups, device=device) * self.filled).long()
        variant = torch.randint(CAPTION_VARIANTS, (groups,), device=device)
        video, audio = self.video[group].flatten(0, 1).float(), self.audio[group].flatten(0, 1).float()
        return video, audio, self.ids[group, variant], self.valid[group, variant]
