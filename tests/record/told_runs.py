"""Run folders told by hand: finished, resumed, stopped, failed and killed runs with lease, memory, clip and verdict."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

LEGS = ("cond", "uncond", "perturbed", "isolated")
GIB = 2**30
WEIGHTS = {
    "audio_vae": (364_866_540, 1257),
    "text_encoder": (24_379_000_000, 1203),
    "transformer": (42_018_190_584, 4349),
    "video_vae": (1_452_269_578, 184),
}
PROMPT = "A paper lantern drifts over a dark lake; water laps, a low bell rings once."
REQUEST = {
    "format": "shotclock/request/1",
    "recipe": "one_stage",
    "prompt": PROMPT,
    "negative_prompt": "blurred, oversaturated",
    "width": 96,
    "height": 64,
    "frames": 25,
    "fps": "24",
    "seed": 10,
    "steps": 6,
    "legs_per_pass": 1,
    "video": {"cfg": 3.0, "stg": 1.0, "modality": 3.0, "rescale": 0.7, "stg_blocks": [28], "skip_step": 0},
    "audio": {"cfg": 7.0, "stg": 1.0, "modality": 3.0, "rescale": 0.7, "stg_blocks": [28], "skip_step": 0},
}


@dataclass
class Told:
    """An event log that grows; ``now_s`` is the time of the next line."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    now_s: float = 0.0

    def say(self, event: str, **fields: Any) -> None:
        """Add a line at the time it is."""
        self.lines.append({"event": event, "t_s": self.now_s, **fields})

    def phase(self, name: str, seconds: float) -> None:
        """A whole phase."""
        self.say("PhaseBegins", phase=name)
        self.now_s += seconds
        self.say("PhaseEnds", phase=name, last_s=seconds)

    def begins(self, **fields: Any) -> None:
        """The first line of an attempt, its clock at zero."""
        self.now_s = 0.0
        first = {
            "event": "RunBegins",
            "command": "shotclock render --models=/srv/weights/ltx --size=96x64 --seed=10 --run=DIR -- 'a lantern'",
            "version": "0.1.0",
            "torch": "2.13.0",
            "device": "NVIDIA GB10",
            "dtype": "bfloat16",
            "request_sha256": "b6" * 32,
            "utc": "2026-11-30T23:56:29+00:00",
            "files": {
                role: {"path": f"/srv/weights/ltx/{role}.safetensors", "bytes": size, "tensors": tensors}
                for role, (size, tensors) in WEIGHTS.items()
            },
            "law_key": {"device": "NVIDIA GB10", "launch": "eager", "legs_per_pass": 1},
        }
        self.lines.append(first | fields)

    def one_pass(self, index: int, steps: int, seconds: float, *, ends: bool = True) -> None:
        """One leg launched and, if it ends, timed."""
        step, leg = divmod(index - 1, len(LEGS))
        said = {"phase": "denoise", "index": index, "step": step + 1, "steps": steps, "legs": [LEGS[leg]]}
        self.say("PassBegins", **said, last_s=None)
        if ends:
            self.now_s += seconds
            self.say("PassEnds", **said, last_s=seconds)

    def projected(self, left: int, forward_s: float, budget_s: float | None, *, n: int) -> None:
        """A reading of the governor."""
        left_s, tail_s = left * forward_s, 62.0
        self.say(
            "Projected",
            phase="denoise",
            source="own forwards" if n else "law",
            first_dit_s=480.0,
            n=n,
            per_forward_s=forward_s,
            spread_ratio=0.035 if n > 1 else None,
            forwards_left=left,
            left_s=left_s,
            tail_s=tail_s,
            tail_high_s=tail_s * 2.2,
            reserve_s=120.0,
            total_s=self.now_s + left_s + tail_s,
            budget_s=budget_s,
            provisional=n < 3,
            verdict="GO",
            change=None,
        )

    def text(self) -> str:
        """As events.jsonl."""
        return "".join(json.dumps(line, sort_keys=True) + "\n" for line in self.lines)


def opening(told: Told) -> None:
    """Everything before the first forward."""
    for name, seconds in (
        ("import", 4.1),
        ("inspect", 0.4),
        ("load-text", 61.0),
        ("encode", 212.0),
        ("connect", 12.5),
        ("load-transformer", 188.0),
        ("prepare", 0.6),
    ):
        told.phase(name, seconds)


def steps(
    told: Told, of: Iterable[int], total: int, *, forward_s: float = 16.43, budget_s: float | None = None
) -> None:
    """Whole steps of four legs, one a pass, a projection and a snapshot after each."""
    chance = random.Random(7)
    done = 0
    told.say("PhaseBegins", phase="denoise")
    for step in of:
        for leg in range(len(LEGS)):
            warm = 1.0 if done else 1.9
            told.one_pass((step - 1) * len(LEGS) + leg + 1, total, forward_s * warm * (1 + 0.02 * chance.random()))
            done += 1
        told.projected((total - step) * len(LEGS), forward_s * 1.01, budget_s, n=done - 1)
        told.say("PhaseEnds", phase="denoise", last_s=0.0)
        told.phase("snapshot", 0.028)
        told.say("Snapshotted", step=step, legs=[], name=f"snapshot-{step}--0a1b2c.safetensors", bytes=4_800_000)
        told.say("PhaseBegins", phase="denoise")
    told.say("PhaseEnds", phase="denoise", last_s=0.0)


def tail(told: Told) -> None:
    """From the last forward to the last line."""
    for name, seconds in (
        ("save-latents", 0.3),
        ("load-decoders", 4.2),
        ("decode-audio", 6.1),
        ("decode-video", 41.0),
        ("verify", 2.4),
    ):
        told.phase(name, seconds)
    forwards = dict.fromkeys(LEGS, 6)
    told.say("RunEnds", clip="clip.mp4", forwards=forwards, passes=24, peak_bytes=74 * GIB, wall_s=told.now_s)


def memory(attempt_seconds: Iterable[float], *, start_gib: float = 4.75, device: bool = True) -> str:
    """memory.jsonl: host and device rise while weights load and stay there."""
    lines = []
    for attempt, seconds in enumerate(attempt_seconds, start=1):
        for second in range(0, int(seconds), 1 + int(seconds) // 400):
            risen = min(1.0, second / 300) * 70 + 0.4 * math.sin(second / 9)
            lines.append(
                {
                    "t_s": float(second),
                    "attempt": attempt,
                    "host_available_bytes": int((119.6 - start_gib - abs(risen)) * GIB),
                    "host_total_bytes": int(119.6 * GIB),
                    "swap_used_bytes": 0,
                    "device_used_bytes": int((1.5 + abs(risen) * 0.9) * GIB) if device else None,
                    "device_total_bytes": int(119.6 * GIB) if device else None,
                    "device_utilisation": 0.97 if device else None,
                    "device_clock_mhz": 2400.0 - second % 7 if device else None,
                    "throttle": ["power cap"] if device and second > 800 else None,
                }
            )
    return "".join(json.dumps(line) + "\n" for line in lines)


def plan(total: int, *, forecast: bool = True) -> dict[str, Any]:
    """plan.json with a ledger of seconds."""

    def row(name: str, typical_s: float, basis: str) -> dict[str, Any]:
        ends = {"low_s": typical_s * 0.8, "typical_s": typical_s, "high_s": typical_s * 1.6, "source": f"{basis}: told"}
        return {"name": name, "estimate": ends, "basis": basis}

    rows = [
        row("start", 4.5, "measured"),
        row("load text", 55.0, "rate"),
        row("text", 230.0, "rate"),
        row("load model", 170.0, "rate"),
        row("rehearsal", 0.0, "none"),
        row("warm-up", 16.0, "law"),
        row("denoise", 16.5 * total * 4, "law"),
        row("snapshots", 0.2, "guess"),
        row("save latents", 0.5, "guess"),
        row("load decoders", 5.0, "rate"),
        row("audio", 5.0, "rate"),
        row("decode", 50.0, "guess"),
        row("mux", 0.0, "none"),
        row("verify", 3.0, "guess"),
    ]
    demands = [
        {"phase": "denoise", "where": "device", "need_bytes": 68 * GIB, "free_bytes": 110 * GIB, "parts": {}},
        {"phase": "load-text", "where": "host", "need_bytes": 71 * GIB, "free_bytes": None, "parts": {}},
    ]
    ledger = {"lease_s": 14_400.0, "lease_source": "--lease", "reserve_s": 288.0, "rows": rows}
    return {
        "format": "shotclock/plan/1",
        "forwards": dict.fromkeys(LEGS, total),
        "passes": total * 4,
        "steps": total,
        "device": "NVIDIA GB10",
        "forecast": {"ledger": ledger, "memory": demands} if forecast else None,
    }


def verdict(clip_sha256: str, outcome: str = "PASS") -> dict[str, Any]:
    """verdict.json with one finding of every kind."""

    def finding(rule: str, arm: str, said: str, value: float | None, comparison: str, limit: float) -> dict[str, Any]:
        margin = None if value is None else (value - limit) / limit * (1 if comparison == "<" else -1)
        return {
            "rule": rule,
            "arm": arm,
            "outcome": said,
            "metric": rule,
            "value": value,
            "comparison": comparison,
            "threshold": limit,
            "margin": margin,
            "condition": f"{rule} {comparison} {limit}",
            "as_asked": None,
            "source": "1,408 measured clips",
            "meaning": f"What a broken {rule} means.",
            "way_out": f"what to do about {rule}",
        }

    findings = [
        finding("grad_kurt", "pixels", "PASS" if outcome == "PASS" else outcome, 21.4, "<", 5.5),
        finding("noise_sigma", "pixels", "PASS", 1.3, ">", 18.0),
        finding("range", "pixels", "WARN", 55.0, "<", 60.0),
        finding("tile_step", "pixels", "NOT JUDGED", None, ">", 2.5),
        finding("level", "audio", "PASS", -21.2, "<", -70.0),
    ]
    return {
        "format": "shotclock.verdict/1",
        "clip": "clip.mp4",
        "clip_sha256": clip_sha256,
        "wav": None,
        "wav_sha256": None,
        "outcome": outcome,
        "arms": {"container": "PASS", "pixels": outcome, "audio": "PASS"},
        "numbers": {"grad_kurt": 21.4, "mad_ratio": 0.215},
        "facts": {},
        "findings": findings,
        "not_judged": ["whether the picture shows what the prompt says"],
        "expectation": {},
    }


def write_film(path: Path, *, width: int = 96, height: int = 64, frames: int = 25, sound: bool = True) -> None:
    """A lantern over a lake, and a bell: a small H.264 clip with AAC."""
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float64)
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        video: Any = container.add_stream("libx264", rate=24)
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        video.options = {"crf": "19", "preset": "veryfast", "threads": "1"}
        audio: Any = container.add_stream("aac", rate=48_000) if sound else None
        for number in range(frames):
            x, y = width * (0.2 + 0.6 * number / max(frames - 1, 1)), height * (0.38 + 0.05 * math.sin(number / 3))
            glow = np.exp(-(((columns - x) / (0.13 * width)) ** 2 + ((rows - y) / (0.2 * height)) ** 2))
            mirror = np.exp(-(((columns - x) / (0.2 * width)) ** 2 + ((rows - 0.85 * height) / (0.1 * height)) ** 2))
            sky = np.stack([18 + 30 * rows / height, 26 + 40 * rows / height, 58 + 50 * rows / height], axis=-1)
            light = glow[..., None] * [235, 150, 60] + mirror[..., None] * [90, 55, 30]
            ripple = (
                5 * np.sin(rows * 0.9 + number * 0.7 + columns * 0.05)[..., None] * (rows > 0.66 * height)[..., None]
            )
            picture = np.clip(sky + light + ripple, 0, 255).astype(np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = number
            frame.time_base = Fraction(1, 24)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        if sound:
            t = np.arange(int(48_000 * frames / 24)) / 48_000
            bell = 0.5 * np.exp(-3 * t) * np.sin(2 * np.pi * 392 * t) + 0.02 * np.sin(2 * np.pi * 90 * t)
            wave = np.stack([bell, bell * 0.8]).astype(np.float32)
            for start in range(0, wave.shape[1], 1024):
                piece = av.AudioFrame.from_ndarray(
                    np.ascontiguousarray(wave[:, start : start + 1024]), format="fltp", layout="stereo"
                )
                piece.sample_rate, piece.pts, piece.time_base = 48_000, start, Fraction(1, 48_000)
                container.mux(audio.encode(piece))
            container.mux(audio.encode(None))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """A document."""
    path.write_text(json.dumps(value, sort_keys=True, indent=1) + "\n")


def write_told(folder: Path, told: Told, *, request: dict[str, Any] | None = None) -> Path:
    """A run folder with request, plan and log."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = REQUEST if request is None else request
    write_json(folder / "request.json", asked)
    write_json(folder / "plan.json", plan(asked["steps"]))
    (folder / "events.jsonl").write_text(told.text())
    return folder


def finished(budget_s: float | None = 14_400.0) -> Told:
    """One attempt from beginning to end."""
    told = Told()
    told.begins()
    opening(told)
    told.projected(24, 16.5, budget_s, n=0)
    steps(told, range(1, 7), 6, budget_s=budget_s)
    tail(told)
    return told


def stopped(exit_code: int = 75, reason: str = "the next forward would cross the end of the lease") -> Told:
    """Four of six steps, then the lease ends."""
    told = Told()
    told.begins()
    opening(told)
    told.projected(24, 16.5, 900.0, n=0)
    steps(told, range(1, 5), 6, budget_s=900.0)
    terms = [("elapsed", told.now_s), ("longest next pass", 16.9), ("closing", 1.2), ("reserve", 120.0)]
    told.say(
        "RunStops",
        exit_code=exit_code,
        reason=reason,
        terms=[{"name": name, "seconds": seconds} for name, seconds in terms],
        sum_s=sum(seconds for _, seconds in terms),
        budget_s=900.0,
    )
    return told


def resumed() -> Told:
    """Stopped after four steps, killed in the fifth of the second attempt, ended by the third under a seam."""
    told = stopped()
    told.begins(attempt=2, resumed_from="snapshot-4--0a1b2c.safetensors", utc="2026-12-01T02:10:00+00:00")
    told.phase("import", 4.0)
    told.phase("load-transformer", 190.0)
    told.say("PhaseBegins", phase="denoise")
    for index in (17, 18):
        told.one_pass(index, 6, 16.6)
    told.one_pass(19, 6, 0.0, ends=False)
    told.begins(attempt=3, resumed_from="snapshot-4--0a1b2c.safetensors", utc="2026-12-01T02:31:00+00:00")
    told.say("Seam", differs={"torch": ["2.12.0", "2.13.0"]})
    told.phase("import", 4.0)
    told.phase("load-transformer", 185.0)
    steps(told, (5, 6), 6, budget_s=7_200.0)
    tail(told)
    return told


def failed(found: str, allowed: str = "what fits", way_out: str = "a smaller --size") -> Told:
    """Fails in the first step."""
    told = Told()
    told.begins()
    opening(told)
    told.say("PhaseBegins", phase="denoise")
    told.one_pass(1, 6, 30.0)
    told.one_pass(2, 6, 0.0, ends=False)
    told.now_s += 3.0
    told.say("RunFails", exit_code=1, found=found, allowed=allowed, way_out=way_out)
    return told
