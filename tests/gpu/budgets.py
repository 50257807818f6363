"""A guided render within 12 to 80 GB: ``python tests/gpu/budgets.py``; one JSON line a measurement, about 2 minutes.

Random bf16 weights of the released shapes, four legs a pass, two sizes. For each budget (a fraction of the device that
torch's allocator may not pass) the plan chooses how many blocks stay; the others stream from page-locked host memory.
Said of each: seconds of a step against all blocks resident, whether the latents are the same bits, and the peak that
was planned against the one that was measured. At the smallest budget one step under the profiler: what computed, what
copied, and how much of the copying computing hid. Exit code 1 where a bit differs or a peak is off by more than 10 %.

Without a GPU the same is rehearsed on a tiny model, with budgets to its measure and without device memory.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shotclock.device import limit, release, synchronise
from shotclock.events import PassBegins, PassEnds, StepEnds
from shotclock.geometry import Geometry
from shotclock.guidance import Guidance, Guider
from shotclock.latents import noise, text_to_video
from shotclock.model.attention import attention_backends
from shotclock.model.block import Block
from shotclock.model.config import TransformerConfig, transformer_config
from shotclock.plan.memory import Needs, Room, Weights
from shotclock.profile.trace import COPIES, KERNELS, length, merged
from shotclock.render.ahead import read_room
from shotclock.render.calibrate import random_transformer
from shotclock.render.capacity import capped, copy_sample
from shotclock.render.denoise import denoise, prepare
from shotclock.render.samplers import begin
from shotclock.schedule import Sampler, sigmas
from shotclock.weights.released import PINNED_25_CONFIG
from shotclock.weights.stream import HostSource, Layout, copies_to, page_locked, pass_through, streamed_blocks
from shotclock.weights.tiny import TRANSFORMER

SIZES = ((1024, 576, 49), (1024, 576, 121))  # 4,032 and 9,216 tokens
BUDGETS_GB = (80, 48, 32, 24, 16, 12)
TINY_SIZES = ((64, 64, 9), (128, 64, 9))
STEPS = 4  # the first one warms up
BINS = 60  # of a timeline in text
WANTED = {4032: 1.6, 9216: 1.15}  # ratio to resident at the smallest budget
TOLERANCE = 0.1  # of a planned peak


def say(**said: Any) -> None:
    """One line."""
    print(json.dumps(said, sort_keys=True), flush=True)


class Bench:
    """The model, its inputs, and where its blocks are."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.cuda = device, device.type == "cuda"
        small = {**TRANSFORMER, "num_layers": 8}
        self.config: TransformerConfig = transformer_config(PINNED_25_CONFIG if self.cuda else small)
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.model = random_transformer(self.config, device, self.dtype)
        self.layout = Layout.of(self.model.transformer_blocks[0])
        self.weights_bytes = sum(p.numel() * p.element_size() for p in self.model.parameters())
        generator = torch.Generator(device).manual_seed(1)
        self.contexts = tuple(
            torch.randn(2, 1024, width, device=device, generator=generator).to(self.dtype)
            for width in (self.config.video_context, self.config.audio_context)
        )
        block = 28 if self.cuda else 4
        guider = Guider(cfg=3.0, stg=1.0, modality=3.0, rescale=0.7, stg_blocks=(block,))
        self.guidance = Guidance(video=guider, audio=guider, legs_per_pass=4)
        self.tables: list[dict[str, Tensor]] = []
        self.source = HostSource({}, self.layout, device)

    def needs(self, cap: int) -> Needs:
        """Of the transformer alone, as a render counts it, within ``cap`` bytes."""
        room = capped(read_room(self.device), None)
        host = room.host_bytes
        free = cap if room.device_bytes is None or not self.cuda else min(cap, self._total())
        return Needs(
            jobs=lambda *job: [(*job, 0)],
            config=self.config,
            weights=Weights(
                text_bytes=0,
                text_states_bytes=0,
                transformer_bytes=self.weights_bytes,
                decoder_bytes=0,
                block_bytes=self.layout.nbytes,
            ),
            room=Room(device_bytes=free, host_bytes=host, shared=False, cap_bytes=cap),
            tiles=lambda *_: (0, "untiled"),
            element_bytes=self.dtype.itemsize,
            fused=self.cuda,
        )

    def _total(self) -> int:
        return int(torch.cuda.get_device_properties(self.device).total_memory)

    def pack(self) -> float:
        """Every block's layers to page-locked host memory, off the device; seconds."""
        begun_s = time.perf_counter()
        with torch.inference_mode(False), torch.no_grad():
            for number, block in enumerate(self.model.transformer_blocks):
                flat = page_locked(self.layout.nbytes, self.device)
                self.layout.pack({name: p.data for name, p in block.named_parameters()}, flat)
                self.source.flats[number] = flat
                self.tables.append({name: p.data for name, p in block.named_parameters(recurse=False)})
                self.model.transformer_blocks[number] = nn.Identity()
        release(self.device)
        return time.perf_counter() - begun_s

    def place(self, resident: int) -> None:
        """Rebuild the blocks: ``resident`` of them on the device, slots among them, the others streamed."""
        order = streamed_blocks(self.config.blocks, resident)
        self.model.transformer_blocks = nn.ModuleList()
        gc.collect()
        release(self.device)
        with torch.inference_mode(False), torch.no_grad():
            for number in range(self.config.blocks):
                with torch.device("meta"):
                    block = Block(self.config)
                flat = self.source.flats[number]
                host = number in order
                layers = {} if host else {p.name: p.view(flat).to(self.device) for p in self.layout.places}
                block.load_state_dict({**self.tables[number], **layers}, strict=not host, assign=True)
                self.model.transformer_blocks.append(block.eval().requires_grad_(False))
            if order:
                pass_through(self.model, order, self.layout, self.source, self.device, copies_to(self.device))

    def run(self, clip: Geometry, steps: int) -> dict[str, Any]:
        """A few guided steps: final latents on the CPU, seconds of the warm passes, peaks of the allocator."""
        latents = text_to_video(clip, *noise(clip, 10)).to(self.device, self.dtype)
        prepared = prepare(self.model, latents, self.contexts)
        state = begin(Sampler.EULER, latents, 10)
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        seconds: list[float] = []
        begun_s = 0.0
        found: list[Tensor] = []
        for event in denoise(self.model, prepared, sigmas(steps), self.guidance, state):
            match event:
                case PassBegins():
                    synchronise(self.device)
                    begun_s = time.perf_counter()
                case PassEnds():
                    synchronise(self.device)
                    seconds.append(time.perf_counter() - begun_s)
                case StepEnds(state=last):
                    found = [last.video.cpu(), last.audio.cpu()]
                case _:
                    pass
        warm = seconds[1:] or seconds
        median = statistics.median(warm)
        said = {"step_s": median, "spread": (max(warm) - min(warm)) / median, "n": len(warm), "latents": found}
        if self.cuda:
            said |= {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        return said


def measured(bench: Bench, clip: Geometry, cap: int, whole: dict[str, Any]) -> bool:
    """One size within one budget; whether bits and peak are what they have to be."""
    needs = bench.needs(cap)
    placed = needs.place(clip, bench.guidance)
    planned = needs.demands(clip, bench.guidance)[0]
    if bench.source.flats:
        bench.place(placed.resident)
    assert bench.source.flats or not placed.streams, "streamed before the blocks were packed"
    gc.collect()
    release(bench.device)
    limit(bench.device, cap)
    run = bench.run(clip, STEPS if placed.streams else 2)
    equal = all(map(torch.equal, run["latents"], whole["latents"])) if placed.streams else None
    error = planned.need_bytes / run["allocated"] - 1 if bench.cuda else None
    say(
        what="budget",
        budget_bytes=cap,
        size=str(clip),
        tokens=clip.video_tokens,
        fits=planned.fits,
        resident=placed.resident,
        streamed=placed.streamed,
        copied_gb_a_pass=placed.streamed * placed.block_bytes / 1e9,
        step_s=run["step_s"],
        spread=run["spread"],
        n=run["n"],
        ratio=run["step_s"] / whole["step_s"],
        ratio_wanted=WANTED.get(clip.video_tokens),
        equal_bits=equal,
        planned_bytes=planned.need_bytes,
        parts=planned.parts,
        allocated_bytes=run.get("allocated"),
        reserved_bytes=run.get("reserved"),
        planned_over_measured=error,
    )
    return planned.fits and equal is not False and (error is None or abs(error) <= TOLERANCE)


def timeline(bench: Bench, clip: Geometry) -> None:
    """One step under the profiler: seconds of computing, of copying and of both, and what was busy when."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        bench.run(clip, 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = [one for one in json.loads(path.read_text())["traceEvents"] if one.get("ph") == "X"]

    def busy(kinds: tuple[str, ...], name: str = "") -> list[tuple[float, float]]:
        chosen = [one for one in events if one.get("cat") in kinds and name in one["name"]]
        return merged((one["ts"], one["ts"] + one["dur"]) for one in chosen)

    compute, copies = busy(KERNELS), busy(COPIES, "HtoD")
    if not compute:
        say(what="profile", size=str(clip), device_events=False)
        return
    low, high = min(a for a, _ in compute), max(b for _, b in compute)
    both = length(compute) + length(copies) - length(merged([*compute, *copies]))

    def drawn(intervals: list[tuple[float, float]]) -> str:
        width = (high - low) / BINS
        edges = [(low + number * width, low + (number + 1) * width) for number in range(BINS)]
        shares = [length(merged((max(a, x), min(b, y)) for a, b in intervals if a < y and b > x)) for x, y in edges]
        return "".join(str(min(int(10 * share / width), 9)) for share in shares)

    say(
        what="profile",
        size=str(clip),
        steps=2,
        wall_s=(high - low) / 1e6,
        compute_s=length(compute) / 1e6,
        copy_s=length(copies) / 1e6,
        hidden_share=both / length(copies) if copies else None,
        compute_tenths=drawn(compute),
        copy_tenths=drawn(copies),
    )


def main() -> None:
    """Resident first, then every budget, the smallest last."""
    begun_s = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = SIZES if device.type == "cuda" else TINY_SIZES
    clips = [Geometry(width=w, height=h, frames=f, fps=Fraction(24)) for w, h, f in sizes]
    good = True
    bench = Bench(device)
    with torch.inference_mode(), attention_backends():
        if bench.cuda:
            copied = copy_sample(device)
            say(what="copy rate", gb_per_s=copied.units / copied.seconds / 1e9, device=torch.cuda.get_device_name())
        whole = {}
        for clip in clips:
            whole[clip] = bench.run(clip, STEPS)
            shown = {name: value for name, value in whole[clip].items() if name != "latents"}
            say(what="resident", size=str(clip), tokens=clip.video_tokens, torch=torch.__version__, **shown)
        least = bench.needs(2**62).demands(clips[-1], replace(bench.guidance, legs_per_pass=4))[0].need_bytes
        away = bench.layout.nbytes * bench.config.blocks
        caps = [gb * 10**9 for gb in BUDGETS_GB] if bench.cuda else [2 * least, least - away // 4, least - away // 2]
        for cap in caps:
            for clip in clips:
                if bench.needs(cap).place(clip, bench.guidance).streams and not bench.source.flats:
                    say(what="packed", seconds=bench.pack(), bytes=away)
                good = measured(bench, clip, cap, whole[clip]) and good
        for clip in clips if bench.cuda else []:
            bench.place(bench.needs(caps[-1]).place(clip, bench.guidance).resident)
            timeline(bench, clip)
    say(what="all", good=good, seconds=time.perf_counter() - begun_s)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
