"""Seconds of a guided step on several GPUs and with streamed blocks: ``python tests/gpu/several.py OUT.json [GPUS]``.

Random bf16 weights of the released shapes, four legs. Each split of the ranks against one GPU, in one process a GPU,
on the same inputs; then, on the first GPU, 2, 8 and 24 resident blocks against all of them. Relative L2 beside each.
"""

from __future__ import annotations

import json
import sys
import tempfile
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch
from step_speed import inputs, legs, random_transformer, relative, seconds, summary

from shotclock.geometry import Geometry
from shotclock.model.attention import attention_backends
from shotclock.model.config import transformer_config
from shotclock.model.parallel import spread
from shotclock.model.split import splits
from shotclock.render.ranks import Seat
from shotclock.render.together import joined
from shotclock.weights.released import PINNED_25_CONFIG
from shotclock.weights.stream import copies_to, stream

GEOMETRIES = ((1024, 576, 49), (1024, 576, 121), (1920, 1088, 121))
RESIDENT = (24, 8, 2)


def rank_of(rank: int, ranks: int, folder: Path, out: Path) -> None:
    """One GPU: every split of every geometry; the first one streams afterwards."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    seat = Seat(rank=rank, ranks=ranks, said=-1, alive=-1, rendezvous=folder / "rendezvous")
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "ranks": ranks}
    with torch.inference_mode(), attention_backends():
        model = random_transformer(transformer_config(PINNED_25_CONFIG), torch.bfloat16)
        rows = legs(model.config, 28)
        given = {
            size: inputs(model, Geometry(width=size[0], height=size[1], frames=size[2], fps=Fraction(24)), 0.7)
            for size in GEOMETRIES
        }
        alone = {size: model(*both, rows) for size, both in given.items()}
        with joined(seat, device, timeout_s=120):
            for split in (
                splits([rows], ranks, model.config.blocks, exchange=0.0, most_sequence=32) if ranks > 1 else ()
            ):
                several = spread(model, split)
                for size, both in given.items():
                    one = summary(seconds(partial(model, *both, rows), 5, 2))
                    many = summary(seconds(partial(several, *both, rows), 5, 2))
                    error = max(map(relative, several(*both, rows), alone[size]))
                    name = f"{size}, legs over {split.share.ranks}, tokens over {split.sequence}"
                    found[name] = {
                        "one": one,
                        "several": many,
                        "ratio": one["median_s"] / many["median_s"],
                        "l2": error,
                    }
        if rank == 0:
            found["resident"] = {
                str(size): summary(seconds(partial(model, *both, rows), 5, 2)) for size, both in given.items()
            }
            out.write_text(json.dumps(found, indent=1))
            for resident in RESIDENT:
                model = random_transformer(transformer_config(PINNED_25_CONFIG), torch.bfloat16)
                model.transformer_blocks.to("cpu")
                stream(model, device, copies_to(device), resident=resident, from_file=False)
                torch.cuda.empty_cache()
                for size, both in given.items():
                    torch.cuda.reset_peak_memory_stats()
                    row: dict[str, Any] = summary(seconds(partial(model, *both, rows), 5, 2))
                    row["equal"] = all(map(torch.equal, model(*both, rows), alone[size]))
                    row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
                    found[f"{size}, {resident} resident"] = row
            out.write_text(json.dumps(found, indent=1))
            print(json.dumps(found, indent=1))


if __name__ == "__main__":
    gpus = int(sys.argv[2]) if len(sys.argv) > 2 else torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as meeting:
        torch.multiprocessing.spawn(rank_of, (gpus, Path(meeting), Path(sys.argv[1])), nprocs=gpus)
