"""What a run does not show, generated from what was switched off, not measured or not compared.

Pure. Every sentence follows from a fact of the record; none is there for decoration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shotclock.record.facts import MIN_N
from shotclock.record.machine import Machine
from shotclock.record.runfacts import RunFacts

Line = Mapping[str, Any]
PENDING = "no other implementation ran this workload: its figures are facts about this program alone (PENDING)"
TINY, POCKET = "tiny-", "pocket-"  # names of the files of the built-in models begin like this
OFF = (  # scale, value that switches it off, what is then not shown
    ("cfg", 1, "classifier-free guidance is off in {stream}: nothing is shown about a guided render"),
    ("stg", 0, "the perturbed leg has no part in {stream}: nothing is shown about STG"),
    ("modality", 1, "the isolated leg has no part in {stream}: nothing is shown about modality guidance"),
    ("rescale", 0, "guidance rescale is off in {stream}"),
)


def not_shown(run: RunFacts, request: Line, verdict: Line | None, machine: Machine) -> tuple[str, ...]:
    """Sentences, the gravest first."""
    said = [*_end(run), *_weights(run), *_guidance(request), *_timing(run), *_memory(run)]
    said += [*_verdict(verdict), *_code(run, machine)]
    if run.oracle.status == "PENDING":
        said.append(
            "no other implementation ran this workload: its figures are facts about this program alone (PENDING)"
        )
    return tuple(said)


def _end(run: RunFacts) -> Iterator[str]:
    if run.end.kind in ("failed", "refused", "stopped", "killed"):
        yield f"the run {'was ' if run.end.kind != 'failed' else ''}{run.end.kind}: there is no clip to judge"
    if run.end.kind == "refused":
        yield "no forward ran: the sum that refused it is a prediction"
    if run.seams:
        yield f"{len(run.seams)} seam(s): continued under other numerics, so it is not one uninterrupted render"


def _weights(run: RunFacts) -> Iterator[str]:
    transformer = run.facts.get("transformer")
    if transformer is not None and str(transformer.value).startswith(TINY):
        yield "the weights are the built-in random ones: nothing is shown about the picture or about LTX-2.5's cost"
    if transformer is not None and str(transformer.value).startswith(POCKET):
        yield "the weights are the pocket model's: nothing is shown about pictures, sound or cost of LTX-2.5"


def _guidance(request: Line) -> Iterator[str]:
    for stream in ("video", "audio"):
        scales = request.get(stream) or {}
        for name, off, sentence in OFF:
            if name in scales and scales[name] == off:
                yield sentence.format(stream=stream)
        if scales.get("skip_step"):
            yield f"{stream} reuses denoised states (skip_step {scales['skip_step']}): not every step was computed"


def _timing(run: RunFacts) -> Iterator[str]:
    timings = run.timings()
    if timings:
        yield "what a pass consists of: its seconds are an interval, not a profile"
    if any("+" in kind for kind in timings):
        yield "what a single leg costs: several legs share a launch"
    few = [f"{kind} (n={samples.n})" for kind, samples in timings.items() if samples.n < MIN_N]
    if few:
        yield f"a figure to rely on: fewer than {MIN_N} passes of {', '.join(few)}"
    if timings:
        yield "how the figures vary between runs, seeds and machines: this is one run"


def _memory(run: RunFacts) -> Iterator[str]:
    if run.memory_reason:
        yield f"how much memory it took: {run.memory_reason}"
    elif all(row.device_peak.value is None for row in run.memory) and run.checked["device"].value != "cpu":
        yield "how much device memory it took: the counter was not available"


def _verdict(verdict: Line | None) -> Iterator[str]:
    if verdict is None:
        yield "whether a clip is sound: there is no verdict"
    else:
        for topic in verdict.get("not_judged", ()):
            yield f"not judged without a reference: {topic}"


def _code(run: RunFacts, machine: Machine) -> Iterator[str]:
    dirty = machine.facts.get("dirty")
    if dirty is not None and dirty.value is None:
        yield f"which code ran: {dirty.reason}"
    elif dirty is not None and dirty.value:
        yield "which code ran: tracked files differed from the commit"
    if machine.patched:
        yield f"what torch itself would have done: {', '.join(machine.patched)} was replaced"
    quantisation = run.checked.get("quantisation")
    if quantisation is not None and quantisation.value not in (None, "none", ""):
        yield f"what the weights do in full: they were quantised ({quantisation.value})"
