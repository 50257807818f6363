"""Five renders on a real Slurm with two nodes: leases of a minute, an urgent job, and in the end the same bits.

Slurm's daemons run on this machine for this module alone (tests/slurm_single_node.sh).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from shotclock.cli import app
from shotclock.cluster.queue import Line, Stage

SCRIPT = Path(__file__).parents[1] / "slurm_single_node.sh"
NEEDED = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "setpriv")
LEASE_S = 60.0
DEADLINE_S = 1200.0  # far beyond what a loaded machine needs; the fact below is not about time
COMMON = {"size": "64x64", "frames": 9, "device": "cpu", "legs_per_pass": 1}
REQUESTS = [  # more than a lease, enough to be found in flight, and three that pass by while those wait
    {"run": "long", "prompt": "a red circle moves right", "seed": 1, "steps": 200},
    {"run": "preempted", "prompt": "a blue square", "seed": 2, "steps": 75},
    {"run": "third", "prompt": "rain on a window", "seed": 3, "steps": 6},
    {"run": "fourth", "prompt": "a low tone", "seed": 4, "steps": 6, "skip_step": 1},
    {"run": "fifth", "prompt": "a red circle moves left", "seed": 5, "steps": 6},
]


def missing() -> str | None:
    """Why Slurm cannot run here."""
    absent = [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if absent:
        return f"Slurm is not installed: no {', '.join(absent)} (Debian: slurm-wlm, munge)"
    return None if os.geteuid() == 0 else "Slurm's daemons need root"


pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.timeout(2400),  # other tests run beside these jobs: seven minutes then, and more on a loaded machine
]


def until(what: str, true: Callable[[], Any]) -> None:
    """Wait for other processes; fails after the deadline, not before."""
    end_s = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end_s, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Two nodes, each with one lease to give; one thread a process, as the numerics of a resumed render demand."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as state, socket.socket() as probe:
        Path(state).chmod(0o755)  # munged is another user
        probe.bind(("127.0.0.1", 0))
        port = min(probe.getsockname()[1], 65000)
        probe.close()
        base = {"PATH": f"{os.environ['PATH']}:/usr/sbin", "SLURM_SN_DIR": state, "SLURM_SN_PORT": str(port)}
        try:
            started = subprocess.run(
                [SCRIPT, "up", "2"], env=os.environ | base, capture_output=True, text=True, timeout=120, check=False
            )
            assert started.returncode == 0, started.stdout + started.stderr
            yield base | {
                "SLURM_CONF": f"{state}/slurm.conf",
                "OMP_NUM_THREADS": "1",
                "SHOTCLOCK_HOME": str(tmp_path_factory.mktemp("home")),
            }
        finally:
            subprocess.run([SCRIPT, "down"], env=os.environ | base, capture_output=True, timeout=120, check=False)


def invoke(environment: dict[str, str], *arguments: str) -> str:
    """What a command printed."""
    ended = CliRunner().invoke(app, list(arguments), env=environment, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def log(run: Path) -> list[dict[str, Any]]:
    """Events of all attempts; of a render that runs, those so far."""
    events = run / "events.jsonl"
    return [json.loads(line) for line in events.read_text().split("\n")[:-1]] if events.is_file() else []


def said(run: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in log(run) if line["event"] == event]


def uninterrupted(environment: dict[str, str], run: Path, request: dict[str, Any]) -> None:
    """The same render by itself, with as many threads as a worker has."""
    options = [
        f"--{name.replace('_', '-')}={value}" for name, value in request.items() if name not in ("run", "prompt")
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        invoke(environment, "render", request["prompt"], "--run", str(run), *options, "--no-verify", "--quiet")
    finally:
        torch.set_num_threads(threads)


def lines(environment: dict[str, str], queue: Path) -> dict[str, Line]:
    """The table of the queue by request."""
    document = json.loads(invoke(environment, "queue", str(queue), "--json"))
    return {one["name"]: Line(**one | {"state": Stage(one["state"])}) for one in document["requests"]}


def preempt(environment: dict[str, str], job: str) -> str:
    """Give the node of ``job`` to an urgent one; the urgent job's id."""
    every = os.environ | environment
    node = subprocess.check_output(["squeue", "-h", "-j", job, "-o", "%N"], env=every, text=True).strip()
    command = ["sbatch", "--parsable", "-p", "urgent", "-w", node, "--gres=lease:1", "-t", "1", "-o", "/dev/null"]
    return subprocess.check_output([*command, "--wrap", "true"], env=every, text=True).strip()


def test_five_renders_over_many_leases_end_in_the_bits_of_uninterrupted_ones(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """One outlasts its lease, one is preempted while it renders; every pass of all attempts is run exactly once."""
    requests = [COMMON | request for request in REQUESTS]
    batch, queue, whole = tmp_path / "batch.jsonl", tmp_path / "queue", tmp_path / "whole"
    batch.write_text("".join(json.dumps(request) + "\n" for request in requests))
    more = ("--partition=render", "--lease=60s", "--sbatch=gres=lease:1", "--no-verify", "--json")
    taken = json.loads(invoke(environment, "submit", str(batch), "--folder", str(queue), *more).splitlines()[-1])
    jobs = {one["name"]: one["job_id"] for one in taken["requests"]}
    until("a first snapshot", lambda: said(queue / "preempted", "Snapshotted"))
    urgent = preempt(environment, jobs["preempted"])
    for request in requests:
        uninterrupted(environment, whole / request["run"], request)
    until("five clips", lambda: all(one.state is Stage.FINISHED for one in lines(environment, queue).values()))

    for request in requests:
        run, name = queue / request["run"], request["run"]
        assert (run / "latents.safetensors").read_bytes() == (whole / name / "latents.safetensors").read_bytes(), name
        assert (run / "clip.wav").read_bytes() == (whole / name / "clip.wav").read_bytes(), name
        ended = [line["index"] for line in said(run, "PassEnds")]
        assert ended == [line["index"] for line in said(whole / name, "PassEnds")], name
        assert all(line["t_s"] <= LEASE_S for line in said(run, "PassEnds")), name
    stops = {name: [line["reason"] for line in said(queue / name, "RunStops")] for name in jobs}
    assert "the end of the lease" in " ".join(stops["long"]), stops
    assert {"SIGUSR2", "SIGTERM"} & set(stops["preempted"]), stops
    states = subprocess.check_output(
        ["squeue", "-h", "-t", "all", "-j", urgent, "-o", "%T"], env=os.environ | environment, text=True
    )
    assert states.strip() == "COMPLETED"
    table = lines(environment, queue)
    assert {name: (one.step, one.state) for name, one in table.items()} == {
        request["run"]: (request["steps"], Stage.FINISHED) for request in requests
    }
    assert table["long"].leases >= 2 and table["preempted"].leases >= 2
