"""Arguments of ``shotclock profile``. Returns a question, which cli.py asks; imports nothing heavy before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shotclock.record.command import AsJson, Question

if TYPE_CHECKING:
    from shotclock.record.answers import Answer

ALONE = 1  # legs a pass of the second profile: each leg in a pass of its own


def profile(
    run: Annotated[Path | None, typer.Argument(help="Folder of a render, for where its time went.")] = None,
    models: Annotated[
        str, typer.Option(help="Folder with the files, tiny, random (released widths) or random-tiny.")
    ] = "random",
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT of the step.")] = "768x448",
    frames: Annotated[int, typer.Option(help="8k+1 frames.")] = 25,
    device: Annotated[str | None, typer.Option(help="cuda, cuda:1 or cpu.")] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16 or float32.", show_default="by device")] = None,
    legs_per_pass: Annotated[int, typer.Option(help="Legs in one launch; legs alone are profiled besides.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Steps with and without the profiler, in turn.")] = 5,
    plot: Annotated[Path | None, typer.Option(help="Draw stacked bars to this PNG file.")] = None,
    pinned_config: Annotated[bool, typer.Option(help="Use the released 2.5 config for a file without one.")] = False,
    as_json: AsJson = False,
) -> Question:
    """Where the time of one guided step goes, or of a whole render: compute by part and leg, transfer, gaps."""

    def ask(home: Path) -> Answer:
        if run is not None:
            return _of_run(run, plot)
        import torch

        from shotclock.model.attention import attention_backends
        from shotclock.profile.attribution import attribute, measure_ceilings, rows_of
        from shotclock.profile.workload import clip, machine_of, model_for, workload
        from shotclock.record.answers import Answer

        geometry, machine = clip(size, frames), machine_of(device, dtype)
        with torch.inference_mode(), attention_backends():
            transformer, recipe = model_for(models, machine, home, pinned_config=pinned_config)
            works = [
                workload(transformer, recipe, geometry, machine, legs) for legs in dict.fromkeys((legs_per_pass, ALONE))
            ]
            ceilings = measure_ceilings(works[0])
            found = [attribute(work, ceilings, rounds) for work in works]
        if plot is not None:
            from shotclock.profile.picture import draw

            draw(plot, f"{geometry}, {machine.name}, {machine.dtype_name}. {found[0].dominant}", rows_of(found))
        return Answer(
            lines=[line for one in found for line in one.lines()],
            document={"format": "shotclock/profiles/1", "profiles": [one.to_json() for one in found]},
        )

    return Question(ask=ask, as_json=as_json)


def _of_run(run: Path, plot: Path | None) -> Answer:
    """Phases, passes and gaps of a run folder."""
    from shotclock.profile.folder import spent
    from shotclock.record.answers import Answer

    found = spent(run)
    if plot is not None:
        from shotclock.profile.picture import draw

        draw(plot, found.attempts[-1].dominant, found.rows())
    return Answer(lines=found.lines(), document=found.to_json())
