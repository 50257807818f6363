"""Renders held-out captions with the shipped files, whole and broken, and scores them.

Run as `python -m pocket.judge --models src/shotclock/pocket --out DIR`. Every held-out caption is judged under every
setting with the same starting noise. Must not know training.
"""

import argparse
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from pocket.autoencoders import Autoencoders
from pocket.captions import Caption, describe
from pocket.evaluate import (
    Heard,
    Score,
    Seen,
    hear,
    look,
    lost_points,
    reversed_steps,
    scores,
    swapped,
    table,
    zeroed,
)
from pocket.loop import Log
from pocket.network import STG_BLOCK, Tables
from pocket.sampling import RECIPE, Contexts, Scales, Tokens, noise, sample
from pocket.scenes import TONE_OF_SHAPE, sample_scenes
from pocket.text import Ids
from pocket.train_audio import save_wave
from pocket.whole import Whole
from shotclock.render.text import DEFAULT_NEGATIVE_PROMPT
from shotclock.schedule import sigmas

HELD_OUT_SEED = 2_000_003
CAPTION_TOKENS = 64  # the default negative prompt is longer than any caption
CONTEXT_BATCH, RENDER_BATCH, LOOK_BATCH = 50, 100, 25  # clips at a time
SHOWN = 12

Scores = dict[str, Score]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to render; `broken` ones have to lose accuracy. `swap` judges every clip by the next caption."""

    name: str
    scales: Scales = field(default_factory=Scales)
    schedule: Callable[[Tensor], Tensor] | None = None
    zeroed_block: int | None = None
    swap: bool = False
    broken: bool = False


DEFAULT = Setting(name="default")
GUIDANCE = (
    Setting(name="cfg 1", scales=Scales(cfg=(1.0, 1.0))),
    Setting(name="modality off", scales=Scales(modality=(1.0, 1.0))),
    Setting(name="stg off", scales=Scales(stg=(0.0, 0.0))),
    Setting(name="plain", scales=Scales(cfg=(1.0, 1.0), stg=(0.0, 0.0), modality=(1.0, 1.0), rescale=(0.0, 0.0))),
)
BROKEN = (
    Setting(name="reversed sigmas", schedule=reversed_steps, broken=True),
    Setting(name="first block zeroed", zeroed_block=0, broken=True),
    Setting(name=f"block {STG_BLOCK} zeroed", zeroed_block=STG_BLOCK, broken=True),
    Setting(name="swapped prompts", swap=True, broken=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Court:
    """Everything that judging needs: the model, its constants and the held-out captions with their contexts."""

    whole: Whole
    tables: Tables
    autoencoders: Autoencoders
    captions: list[Caption]
    texts: Contexts
    start: Tokens

    @classmethod
    @torch.no_grad()
    def open(cls, whole: Whole, autoencoders: Autoencoders, count: int) -> "Court":
        """Draw `count` held-out captions and encode them, with the negative prompt that a render takes by default."""
        device = autoencoders.device
        tables = whole.tables(device)
        captions = describe(
            sample_scenes(count, torch.Generator().manual_seed(HELD_OUT_SEED)), HELD_OUT_SEED, held_out=True
        )
        ids, valid = Ids().batch([*(c.text for c in captions), DEFAULT_NEGATIVE_PROMPT], CAPTION_TOKENS)
        parts = [
            whole.contexts(i.to(device), v.to(device), tables)
            for i, v in zip(ids.split(CONTEXT_BATCH), valid.split(CONTEXT_BATCH), strict=True)
        ]
        video, audio = (torch.cat(p) for p in zip(*parts, strict=True))
        texts = Contexts(video=video[:-1], audio=audio[:-1], negative_video=video[-1:], negative_audio=audio[-1:])
        start = noise(count, HELD_OUT_SEED, device)
        return cls(whole=whole, tables=tables, autoencoders=autoencoders, captions=captions, texts=texts, start=start)

    @torch.no_grad()
    def render(self, setting: Setting) -> tuple[list[Seen], list[Heard], Tensor, Tensor]:
        """What all clips of a setting show and sound like, and frames and waves of the first SHOWN."""
        model = self.whole.transformer
        steps = sigmas(RECIPE.steps)
        steps = steps if setting.schedule is None else setting.schedule(steps)
        block = setting.zeroed_block
        broken: AbstractContextManager[None] = (
            nullcontext() if block is None else zeroed(model.transformer_blocks[block])
        )
        seen: list[Seen] = []
        heard: list[Heard] = []
        frames, waves = [], []
        with broken:
            for first in range(0, len(self.captions), RENDER_BATCH):
                part = slice(first, first + RENDER_BATCH)
                start = self.start[0][part], self.start[1][part]
                tokens = sample(model, self.tables, self.texts.select(part), start, setting.scales, steps)
                for v, a in zip(*(t.float().split(LOOK_BATCH) for t in tokens), strict=True):
                    pictures, sounds = self.autoencoders.decode(v, a)
                    seen += look(pictures)
                    heard += hear(sounds)
                    if len(frames) * LOOK_BATCH < SHOWN:
                        frames.append(pictures)
                        waves.append(sounds)
        return seen, heard, torch.cat(frames)[:SHOWN], torch.cat(waves)[:SHOWN]

    def judge(self, settings: tuple[Setting, ...], out: Path, log: Log) -> dict[str, Scores]:
        """Render, score and write every setting, the first one as pictures and sound; `dit_result.json` grows."""
        results: dict[str, Scores] = {}
        rendered: dict[tuple[object, ...], tuple[list[Seen], list[Heard]]] = {}
        for setting in settings:
            began_s = time.monotonic()
            key = setting.scales, setting.schedule, setting.zeroed_block
            if key not in rendered:
                seen, heard, frames, waves = self.render(setting)
                rendered[key] = seen, heard
                if not results:
                    self.show(out, frames, waves)
            captions = swapped(self.captions) if setting.swap else self.captions
            result = results[setting.name] = scores(captions, *rendered[key], TONE_OF_SHAPE)
            print(setting.name, table(result), sep="\n", flush=True)
            ratios = {k: s.ratio for k, s in result.items()}
            log.write(event="judged", setting=setting.name, took_s=time.monotonic() - began_s, **ratios)
            (out / "dit_result.json").write_text(document(results, settings))
        return results

    def show(self, out: Path, frames: Float[Tensor, "b f h w 3"], waves: Float[Tensor, "b 2 n"]) -> None:
        """Five frames of each of the first clips, and their sounds one after another."""
        from PIL import Image

        rows = frames[:, ::6].permute(0, 2, 1, 3, 4).reshape(-1, 5 * frames.shape[3], 3)
        picture = Image.fromarray((rows * 255).byte().cpu().numpy())
        picture.resize((rows.shape[1] // 2, rows.shape[0] // 2)).save(out / "dit_strip.png")
        save_wave(out / "dit_sample.wav", torch.cat(list(waves), 1))
        texts = [c.text for c in self.captions[: len(frames)]]
        (out / "dit_captions_result.json").write_text(json.dumps(texts) + "\n")


def document(results: dict[str, Scores], settings: tuple[Setting, ...]) -> str:
    """Hits and trials of every measure and setting, and the points that broken ones lose against the first."""
    first = results[settings[0].name]
    written = {name: {k: [s.hits, s.trials] for k, s in result.items()} for name, result in results.items()}
    lost = {s.name: round(lost_points(first, results[s.name]), 2) for s in settings if s.broken and s.name in results}
    return json.dumps({"scores": written, "lost_points": lost}, sort_keys=True) + "\n"


def settings_of(every: bool) -> tuple[Setting, ...]:
    """The default and what guidance does for it; with `every` also its parts and the broken runs."""
    return (DEFAULT, *GUIDANCE, *BROKEN) if every else (DEFAULT, GUIDANCE[0])


def main() -> None:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--models", type=Path, required=True, help="folder with the four files")
    p.add_argument("--state", type=Path, help="folder with dit_average.*.safetensors to judge in place of two of them")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--clips", type=int, default=200)
    p.add_argument("--quick", action="store_true", help="the default and cfg 1 alone")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = p.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    whole = (Whole.load(args.state) if args.state else Whole.shipped(args.models)).to(args.device)
    court = Court.open(whole, Autoencoders.load(args.models, args.device), args.clips)
    court.judge(settings_of(not args.quick), args.out, Log(args.out / "judge.jsonl"))


if __name__ == "__main__":
    main()
