"""Clips of the pocket model from whole and from broken runs: the controls that `shotclock verify` is tested with.

Run as `python -m pocket.controls --out src/shotclock/pocket/controls`. Held-out captions through the sampler, the
decoders and the writer of mp4 files; nothing is chosen by its look. Must not know how clips are judged.
"""

import argparse
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from pathlib import Path

import torch

from pocket.autoencoders import Autoencoders
from pocket.captions import Caption
from pocket.evaluate import reversed_steps, zeroed
from pocket.judge import Court
from pocket.network import STG_BLOCK
from pocket.sampling import RECIPE, Scales, Tokens, sample
from pocket.scenes import FPS
from pocket.sound import OUTPUT_RATE_HZ
from pocket.whole import Whole
from shotclock.render.decode import to_uint8
from shotclock.render.media import write_clip
from shotclock.schedule import sigmas

CAPTIONS = 32  # drawn; what they say depends on how many are drawn
CLIPS_AT_A_TIME = 4
GOOD = "good-pocket"
UNDENOISED = "fault-pocket_undenoised"
REVERSED = "fault-pocket_reversed_sigmas"
ZEROED = {"fault-pocket_first_block_zeroed": 0, f"fault-pocket_block_{STG_BLOCK}_zeroed": STG_BLOCK}
KINDS = (GOOD, UNDENOISED, REVERSED, *ZEROED)


@torch.no_grad()
def latents(court: Court, kind: str, part: slice) -> Tokens:
    """What a run of one kind ends with, for some of the captions."""
    start = court.start[0][part], court.start[1][part]
    if kind == UNDENOISED:
        return start
    model, steps = court.whole.transformer, sigmas(RECIPE.steps)
    block = ZEROED.get(kind)
    run: AbstractContextManager[None] = nullcontext() if block is None else zeroed(model.transformer_blocks[block])
    with run:
        schedule = reversed_steps(steps) if kind == REVERSED else steps
        return sample(model, court.tables, court.texts.select(part), start, Scales(), schedule)


def first_of_each_motion(captions: list[Caption]) -> list[int]:
    """Index of the first caption of every motion, and of the first that states none."""
    firsts: dict[int | None, int] = {}
    for i, caption in enumerate(captions):
        firsts.setdefault(caption.motion, i)
    return sorted(firsts.values())


def write(court: Court, kind: str, wanted: list[int], out: Path) -> None:
    """`KIND-i.mp4` of the wanted captions, counted from 1; the same bytes whichever others are wanted."""
    for first in range(0, CAPTIONS, CLIPS_AT_A_TIME):
        indices = range(first, first + CLIPS_AT_A_TIME)
        if not set(indices) & set(wanted):
            continue
        pictures, waves = court.autoencoders.decode(*latents(court, kind, slice(first, first + CLIPS_AT_A_TIME)))
        for i, frames, wave in zip(indices, pictures, waves, strict=True):
            if i not in wanted:
                continue
            path = out / f"{kind}-{i + 1}.mp4"
            text = court.captions[i].text
            write_clip(path, [to_uint8(frames)], fps=Fraction(FPS), wave=wave, sample_rate=OUTPUT_RATE_HZ, comment=text)
            print(f"{path.name}: {path.stat().st_size:,} bytes, {text!r}", flush=True)


def main() -> None:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--models", type=Path, default=Path("src/shotclock/pocket"), help="folder with the four files")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--broken", type=int, default=4, help="clips of each broken kind")
    p.add_argument("--every", action="store_true", help="good clips of all captions, to measure; else one a motion")
    p.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    args = p.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    whole, autoencoders = Whole.shipped(args.models), Autoencoders.load(args.models, "cpu")
    court = Court.open(whole, autoencoders, CAPTIONS)
    good = list(range(CAPTIONS)) if args.every else first_of_each_motion(court.captions)
    for kind in args.kinds:
        write(court, kind, good if kind == GOOD else list(range(args.broken)), args.out)


if __name__ == "__main__":
    main()
