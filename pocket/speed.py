"""Makes a training step fast on a GPU: blocks compiled once for all, the whole step captured as a CUDA graph.

Every way is timed, the fastest one is taken, and what fails is logged and left out: a slow run beats a lost one. Must
not know what a step computes beyond its `run_block`, `run_connector` and `weights`.
"""

import argparse
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from pocket import network
from pocket.loop import Log

WARM_UPS, TIMED = 3, 8
CACHE = "compile_cache.bin"  # the compiler's results, so that the next part of a run need not wait for it again


class Late(Exception):
    """Compiling took too long."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `Late` in the main thread after `seconds`."""

    def raise_late(_signal: int, _frame: FrameType | None) -> None:
        raise Late(f"not done after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, raise_late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def timed(run: Callable[[], None]) -> float:
    """Milliseconds a step, the mean of TIMED."""
    torch.cuda.synchronize()
    began_s = time.monotonic()
    for _ in range(TIMED):
        run()
    torch.cuda.synchronize()
    return (time.monotonic() - began_s) * 1e3 / TIMED


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph; its random numbers go on from replay to replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def compile_parts(step: Any) -> None:
    """One graph for the eight blocks and one for each connector, instead of one for everything."""
    step.run_block = torch.compile(network.run_block, dynamic=False)
    step.run_connector = torch.compile(network.run_connector, dynamic=False)


def _attempt(
    name: str, step: Any, log: Log, make: Callable[[], Callable[[], None]]
) -> tuple[float, Callable[[], None]] | None:
    began_s = time.monotonic()
    try:
        run = make()
        step_ms = timed(run)
    except Exception as error:  # whatever a compiler raises
        log.write(event=f"no {name}", s=time.monotonic() - began_s, why=f"{type(error).__name__}: {error}"[:400])
        torch.cuda.synchronize()
        step.weights.grad.zero_()
        return None
    log.write(event=name, s=time.monotonic() - began_s, step_ms=step_ms, gib=torch.cuda.max_memory_allocated() / 2**30)
    return step_ms, run


def accelerated(step: Any, args: argparse.Namespace, log: Log) -> Callable[[], None]:
    """The fastest way to run `step`. The rate is 0 meanwhile, so that trying changes no weight."""
    if args.device != "cuda":
        return step  # type: ignore[no-any-return]
    step.weights.rate.zero_()
    step()
    found = [_attempt("eager", step, log, lambda: step), _attempt("graph", step, log, lambda: captured(step))]
    if args.compile_s > 0:
        found.append(_compiled(step, args, log))
    best = min((f for f in found if f is not None), key=lambda f: f[0])
    log.write(event="chosen", step_ms=best[0])
    return best[1]


def _compiled(step: Any, args: argparse.Namespace, log: Log) -> tuple[float, Callable[[], None]] | None:
    """Compiled and captured; back to plain blocks where that fails."""
    cache = None if args.resume is None else Path(args.resume) / CACHE
    if cache is not None and cache.exists():
        torch.compiler.load_cache_artifacts(cache.read_bytes())

    def make() -> Callable[[], None]:
        compile_parts(step)
        with limit(args.compile_s):
            step()
        return captured(step)

    result = _attempt("compiled graph", step, log, make)
    if result is None:
        step.run_block, step.run_connector = network.run_block, network.run_connector
        return None
    artifacts = torch.compiler.save_cache_artifacts()
    if artifacts is not None:
        (args.out / CACHE).write_bytes(artifacts[0])
    return result
