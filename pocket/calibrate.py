"""What the evaluator says of clips whose truth is known: drawn ones, and the same ones through both autoencoders.

Run as `python -m pocket.calibrate --models DIR --out DIR`. No render can be expected to score higher than these.
"""

import argparse
import json
from pathlib import Path

import torch

from pocket.autoencoders import Autoencoders
from pocket.captions import describe
from pocket.data import render_video
from pocket.evaluate import Score, hear, look, scores, table
from pocket.scenes import TONE_OF_SHAPE, sample_scenes
from pocket.sound import MEL_RATE_HZ, OUTPUT_RATE_HZ, render_sound
from pocket.train_vae import save_strip

SEED = 3_000_017  # seen neither by the trainers nor by their own measurements
STRIP_CLIPS = 8


@torch.no_grad()
def calibrate(autoencoders: Autoencoders, count: int, batch: int, out: Path) -> dict[str, dict[str, Score]]:
    """Scores of `count` held-out scenes, drawn and reconstructed, and PSNR in dB; a strip of pairs for the eye."""
    device = autoencoders.device
    scenes = sample_scenes(count, torch.Generator().manual_seed(SEED))
    captions = describe(scenes, SEED, held_out=True)
    seen, heard = {"drawn": [], "reconstructed": []}, {"drawn": [], "reconstructed": []}
    psnr, strip = [], []
    for first in range(0, count, batch):
        part = scenes.select(slice(first, first + batch)).to(device)
        clip, _ = render_video(part)
        drawn = ((clip + 1) / 2).permute(0, 2, 3, 4, 1), render_sound(part, OUTPUT_RATE_HZ)
        made = autoencoders.decode(*autoencoders.encode(clip, render_sound(part, MEL_RATE_HZ)))
        for name, (frames, waves) in (("drawn", drawn), ("reconstructed", made)):
            seen[name] += look(frames)
            heard[name] += hear(waves)
        psnr.append(-10 * (made[0] - drawn[0]).square().mean(dim=(1, 2, 3, 4)).log10())
        pair = torch.stack([drawn[0], made[0]], 1).permute(0, 1, 5, 2, 3, 4)[:, :, :, ::6]
        strip.append(pair.cpu() * 2 - 1)
    save_strip(out / "reconstructions.png", torch.cat(strip)[:STRIP_CLIPS])
    values = torch.cat(psnr)
    half = 1.96 * values.std().item() / count**0.5
    psnr_db = {"n": count, "mean": values.mean().item(), "ci95": half, "min": values.min().item()}
    results = {name: scores(captions, seen[name], heard[name], TONE_OF_SHAPE) for name in seen}
    written = {n: {k: [s.hits, s.trials] for k, s in r.items()} for n, r in results.items()}
    (out / "calibration.json").write_text(json.dumps({"psnr_db": psnr_db, **written}, sort_keys=True) + "\n")
    print(f"PSNR {psnr_db}")
    return results


def main() -> None:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--models", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--clips", type=int, default=64)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = p.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results = calibrate(Autoencoders.load(args.models, args.device), args.clips, args.batch, args.out)
    for name, result in results.items():
        print(name, table(result), sep="\n")


if __name__ == "__main__":
    main()
