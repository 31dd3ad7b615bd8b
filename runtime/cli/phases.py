"""`phases`: which solution is lowest in a plane of two parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from ..base.errors import InputError
from . import options
from .outcome import (
    EARLY_EXIT_MESSAGES,
    CommandOutcome,
    command_with_options,
    early_exit_status,
    save_result_and_report,
)


@command_with_options("time_limit", "memory_limit", "json", "seed", "device", "quiet")
def phases(
    model: str,
    /,
    *,
    over: list[str],
    set_: list[str] | None = None,
    start: str | None = None,
    grid: str | None = None,
    refinements: Annotated[int | None, {"min": 0}] = None,
    accuracy: float | None = None,
    boundary_accuracy: float | None = None,
    stability: bool | None = None,
    output: Path | None = None,
    processes: Annotated[int | None, {"min": 1}] = None,
    force: bool = False,
    seed: int = 0,
) -> CommandOutcome:
    """Find the solution of lowest training loss in a plane of two parameters; locate crossings, ends, instabilities.

    Args:
        over (NAME=LO:HI): A parameter and its interval; give the option twice. Rows run along the first parameter.
        start (NAME,...): Named starts (default: all that lead to solutions).
        grid (NxM): Points along both parameters (default 9x5; 5x3 if averages have more than four dimensions).
        refinements: How often the distance of rows is halved where boundaries bend (default 1; 0 if as above).
        accuracy: Largest error bar of overlaps, relative to the size of their block (default 1e-3; 1e-2 if as above).
        boundary_accuracy: Largest error bar of boundaries, in the first parameter (default 3e-3; 3e-2 if as above).
        stability: Judge the stability of replica symmetry at every point (default yes; no if as above).
        force: Overwrite an existing file and its records.
    """
    spans: dict[str, tuple[float, float]] = {}
    for item in over:
        name, ends = options.parse_parameter_interval(item)
        if ends is None:
            raise InputError(f"--over {item}: NAME=LO:HI is expected, as alpha=0.3:3")
        spans[name] = ends
    points = None if grid is None else _parse_grid_size(grid)
    file = options.check_netcdf_output_option(
        output, "a phase diagram", force=True
    )  # an existing file is checked below

    from ..extensions.planes.diagram import phases as study

    if file is not None and not force:
        options.check_file_can_be_continued(file, "phases")
    diagram = study(
        model,
        over=spans,
        starts=options.parse_start_names(start),
        points=points,
        refinements=refinements,
        accuracy=accuracy,
        boundary_accuracy=boundary_accuracy,
        stability=stability,
        seed=seed,
        output=file.path if file is not None else None,
        force=force,
        processes=processes,
        **options.parse_set_options(set_),
    )
    early = early_exit_status(diagram.interrupted, diagram.out_of_time)
    statuses = [
        *(b.status for b in diagram.boundaries if b.kind != "jumps"),
        *(m.status for m in diagram.codim2_points),
    ]
    rough = [word for word in statuses if word != "converged"]
    message = ""
    if early is not None:
        kept = "; what is finished is kept, and the same command continues" if file is not None else ""
        message = f"{EARLY_EXIT_MESSAGES[early]}{kept}"
    elif rough:
        message = f"{len(rough)} of {len(statuses)} boundary points miss --boundary-accuracy; allow a larger one"

    def _result_json_with_status(word: str, path: Path | None) -> dict[str, Any]:
        return {**diagram.to_json(), "status": word, "file": None if path is None else str(path)}

    shown = diagram.table() if diagram.rows else ""
    return save_result_and_report(
        diagram.save, file if diagram.rows else None, shown, _result_json_with_status, message, early
    )


def _parse_grid_size(text: str) -> tuple[int, int]:
    one, other = options.convert_parts_of_option("--grid", text, "NxM is expected, as 9x5", text.split("x"), int, int)
    if min(one, other) < 2:
        raise InputError(f"--grid {text}: at least 2 points along both parameters are expected")
    return one, other
