"""A killed render at full width goes on to the same bits: ``python tests/gpu/resumed.py FOLDER OUT.json``.

FOLDER holds the files of full_size.py (written first where they are not there). One render runs through, another is
killed with SIGKILL between two passes and resumed; their latents are compared byte by byte. Forwards, snapshots and
walls are those of the event logs.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from full_size import write_all

STEPS, KILLED_AFTER, LEGS_PER_PASS = 6, 5, 2  # twelve passes of two legs: the fifth ends inside a step
PATIENCE_S = 150.0


def command(*words: str) -> list[str]:
    """shotclock in an interpreter of its own."""
    return [sys.executable, "-m", "shotclock", *words]


def events(run: Path) -> list[dict[str, Any]]:
    """Whole lines of the log."""
    path = run / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def kill_after(process: subprocess.Popen[bytes], run: Path, passes: int) -> None:
    """SIGKILL as soon as the log holds so many ended passes."""
    begun = time.monotonic()
    while sum(line["event"] == "PassEnds" for line in events(run)) < passes:
        if process.poll() is not None or time.monotonic() - begun > PATIENCE_S:
            raise SystemExit(f"the render ended by itself or did not come to pass {passes}")
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def summary(run: Path) -> dict[str, Any]:
    """What the log says of every attempt."""
    lines = events(run)
    passes = [line["last_s"] for line in lines if line["event"] == "PassEnds"]
    ends = [(line["phase"], line["last_s"]) for line in lines if line["event"] == "PhaseEnds"]
    return {
        "latents_sha256": hashlib.sha256((run / "latents.safetensors").read_bytes()).hexdigest(),
        "passes": len(passes),
        "pass_median_s": statistics.median(passes),
        "attempts": sum(line["event"] == "RunBegins" for line in lines),
        "resumed_from": [line["resumed_from"] for line in lines if line.get("resumed_from")],
        "snapshots": sum(line["event"] == "Snapshotted" for line in lines),
        "snapshot_s": [last_s for phase, last_s in ends if phase == "snapshot"],
        "phases_s": {phase: last_s for phase, last_s in ends if phase != "snapshot"},
    }


def main() -> None:
    """Render, kill, resume, compare."""
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    if not (folder / "contexts.safetensors").exists():
        write_all(folder)
    asked = ["render", "random weights", "--models", str(folder), "--contexts", str(folder / "contexts.safetensors")]
    asked += ["--size=768x448", "--frames=25", f"--steps={STEPS}", f"--legs-per-pass={LEGS_PER_PASS}"]
    asked += ["--no-verify", "--rehearse=never", "--quiet", "--run"]
    whole, killed = folder / "whole", folder / "killed"
    walls = {}
    begun = time.monotonic()
    subprocess.run(command(*asked, str(whole)), check=True)
    walls["whole"] = time.monotonic() - begun
    with subprocess.Popen(command(*asked, str(killed))) as process:
        kill_after(process, killed, KILLED_AFTER)
    begun = time.monotonic()
    subprocess.run(command("resume", str(killed), "--no-verify", "--rehearse=never", "--quiet"), check=True)
    walls["resume"] = time.monotonic() - begun
    found: dict[str, Any] = {"whole": summary(whole), "killed": summary(killed), "walls_s": walls}
    found["equal"] = (whole / "latents.safetensors").read_bytes() == (killed / "latents.safetensors").read_bytes()
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    sys.exit(0 if found["equal"] else 1)


if __name__ == "__main__":
    main()
