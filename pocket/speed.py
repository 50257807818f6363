"""Makes a training step fast on a GPU: the whole step captured as a CUDA graph.

Both ways are timed, the faster one is taken, and what fails is logged and left out: a slow run beats a lost one. Blocks
compiled by torch 2.11 gave gradients that did not train (dev/LOG.md): they are not among the ways. Must not know what a
step computes beyond its `weights`.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from pocket.loop import Log

WARM_UPS, TIMED = 3, 8


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


def accelerated(step: Any, device: str, log: Log) -> Callable[[], None]:
    """The fastest way to run `step`. The rate is 0 meanwhile, so that trying changes no weight."""
    if device != "cuda":
        return step  # type: ignore[no-any-return]
    step.weights.rate.zero_()
    step()
    found = [_attempt("eager", step, log, lambda: step), _attempt("graph", step, log, lambda: captured(step))]
    best = min((f for f in found if f is not None), key=lambda f: f[0])
    log.write(event="chosen", step_ms=best[0])
    return best[1]
