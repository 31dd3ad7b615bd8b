"""`phases`: which solution is lowest in a plane of two parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import interrupts
from ..errors import InputError
from . import options
from .options import (
    JsonOption,
    MemoryOption,
    ModelArgument,
    QuietOption,
    SeedOption,
    SetOption,
    TimeLimitOption,
)
from .outcome import WHY, Exit, Outcome, command, cut_short, saved


@command
def phases(
    model: ModelArgument,
    over: Annotated[
        list[str],
        typer.Option("--over", metavar="NAME=LO:HI", help="Twice: both parameters; rows run along the first one."),
    ],
    set_: SetOption = None,
    start: Annotated[
        str | None,
        typer.Option("--start", metavar="NAME,...", help="Named starts (default: all that lead to solutions)."),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(
            "--grid",
            metavar="NxM",
            help="Points along both parameters (9x5; with averages over more than four dimensions 5x3).",
        ),
    ] = None,
    refinements: Annotated[
        int | None,
        typer.Option(
            "--refinements",
            min=0,
            help="How often rows are halved where boundaries differ or bend (once; never there).",
        ),
    ] = None,
    accuracy: Annotated[
        float | None,
        typer.Option("--accuracy", help="Largest error bar of overlaps, relative to their block (1e-3; 1e-2 there)."),
    ] = None,
    boundary_accuracy: Annotated[
        float | None,
        typer.Option(
            "--boundary-accuracy", help="Largest error bar of boundaries, in the first parameter (3e-3; 3e-2 there)."
        ),
    ] = None,
    stability: Annotated[
        bool | None,
        typer.Option("--stability/--no-stability", help="Judge replica symmetry at every point (yes; no there)."),
    ] = None,
    output: options.NetcdfOption = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Workers on this machine (default: one a core).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file and its records.")] = False,
    time_limit: TimeLimitOption = None,
    memory_limit: MemoryOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> Outcome:
    """Find the solution of lowest training loss in a plane, and locate crossings, ends and instabilities."""
    spans: dict[str, tuple[float, float]] = {}
    for item in over:
        name, ends = options.interval(item)
        if ends is None:
            raise InputError(f"--over {item}: NAME=LO:HI is expected, as alpha=0.3:3")
        spans[name] = ends
    points = None if grid is None else _points(grid)
    if boundary_accuracy is not None:
        options.check_positive("--boundary-accuracy", boundary_accuracy)
    target = options.netcdf_file(output, "a phase diagram", force=True)
    options.prepare(None, quiet, seed)

    from ..planes.diagram import phases as study

    options.check_goes_on(target, output, "phases", force)
    diagram = study(
        model,
        over=spans,
        starts=None if start is None else [name.strip() for name in start.split(",")],
        points=points,
        refinements=refinements,
        accuracy=accuracy,
        boundary_accuracy=boundary_accuracy,
        stability=stability,
        seed=seed,
        output=target,
        force=force,
        processes=processes,
        **options.assignments(set_),
    )
    interrupts.ignore()
    status, message = Exit.DONE, ""
    early = cut_short(diagram.interrupted, diagram.out_of_time)
    statuses = [*(b.status for b in diagram.boundaries if b.kind != "jumps"), *(m.status for m in diagram.meetings)]
    rough = [word for word in statuses if word != "converged"]
    if early is not None:
        kept = "; what is finished is kept, and the same command continues" if output is not None else ""
        status, message = early, f"{WHY[early]}{kept}"
    elif rough:
        status = Exit.NOT_CONVERGED
        message = f"{len(rough)} of {len(statuses)} boundary points miss --boundary-accuracy; ask for a larger one"

    def data(word: str, file: Path | None) -> dict[str, Any]:
        return {**diagram.to_json(), "status": word, "file": None if file is None else str(file)}

    shown = diagram.table() if diagram.rows else ""
    return saved(diagram.save, target if diagram.rows else None, output, shown, data, status, message)


def _points(text: str) -> tuple[int, int]:
    one, _, other = text.partition("x")
    try:
        found = int(one), int(other)
    except ValueError:
        raise InputError(f"--grid {text}: NxM is expected, as 9x5") from None
    if min(found) < 2:
        raise InputError(f"--grid {text}: at least 2 points along both parameters are expected")
    return found
