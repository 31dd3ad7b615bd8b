"""`sweep`: solutions over a grid of parameters, saved as they are finished; `collect`: joins shards of one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..base.errors import InputError, TimeLimitError
from . import options
from .outcome import (
    EARLY_EXIT_MESSAGES,
    CommandOutcome,
    command_with_options,
    early_exit_status,
    save_result_and_report,
)

if TYPE_CHECKING:
    from ..extensions.sweeping.sweep import Sweep


@command_with_options("time_limit", "json", "seed", "device", "quiet")
def sweep(
    model: str,
    /,
    over: list[str] | None = None,
    points: Path | None = None,
    set_: list[str] | None = None,
    start: str | None = None,
    ask: str = "stability",
    accuracy: float = 1e-3,
    both_ways: bool = False,
    d: Annotated[int, {"min": 1}] = 500,
    seeds: Annotated[int, {"min": 1}] = 4,
    method: str = "auto",
    output: Path | None = None,
    processes: Annotated[int | None, {"min": 1}] = None,
    scheduler: str | None = None,
    cluster: Path | None = None,
    shard: str | None = None,
    memory: Annotated[float | None, {"min": 0}] = None,
    force: bool = False,
    threads: Annotated[int, {"min": 1}] = 1,
    seed: int = 0,
) -> CommandOutcome:
    """Solve over a grid or a table of parameters, from several starts, in parallel; call it again to continue.

    Args:
        over (NAME=LO:HI:N): A parameter and its values in order, alpha=3:0.5:40, lambda=1e-4:1:9:log or alpha=3,2,1.
            May be repeated; solutions are continued along the first parameter.
        points (TABLE.csv): Table of parameters, one point per row, instead of --over; arrays as JSON.
        start (NAME,...): Named starts (default: informed; semantic with several tokens).
        ask (solve|stability|simulate): What is computed at each point; stability also judges each solution.
        both_ways: Continue every line of points also in the opposite direction.
        d: With --ask simulate: dimension of the embeddings.
        seeds: With --ask simulate: number of draws of the data per point.
        method: With --ask simulate: how the risk is minimised, see `simulate`.
        output (FILE.nc): Write netCDF; finished points are kept in FILE.records, and the same command continues from
            them.
        scheduler (tcp://HOST:PORT): Connect to a running Dask scheduler.
        cluster (FILE.yaml): Start a cluster through dask-jobqueue.
        shard (I/N): Compute the I-th of N parts, for `collect`; needs no Dask.
        memory (GB): Gigabytes a worker may use.
        force: Overwrite an existing file and its records.
        threads: Threads per worker.
    """
    share = None if shard is None else _parse_shard(shard)
    if bool(over) == (points is not None):
        raise InputError("--over NAME=LO:HI:N, once or more, or --points TABLE.csv: give one of them")
    if share is not None and output is None:
        raise InputError("--shard needs -o FILE.nc, next to which the records of the shard are saved")
    grid = _parse_sweep_axes(over or [])
    rows = _read_parameter_table(points) if points is not None else None
    file = options.check_netcdf_output_option(output, "a sweep", force=True)  # an existing file is checked below

    from ..extensions.sweeping.engine import SweepEngine
    from ..extensions.sweeping.plan import SimulationSettings, make_sweep_plan
    from ..extensions.sweeping.records import records_folder
    from ..extensions.sweeping.sweep import run_sweep_plan, temporary_records_folder

    plan = make_sweep_plan(
        model,
        grid=grid,
        rows=rows,
        starts=options.parse_start_names(start),
        ask=ask,
        accuracy=accuracy,
        both_ways=both_ways,
        seed=seed,
        simulated=SimulationSettings(d, seeds, method),
        given=options.parse_set_options(set_),
    )
    limit = None if memory is None else int(1e9 * memory)
    engine = SweepEngine(1 if share and processes is None else processes, scheduler, cluster, threads, limit)
    if file is None:
        with temporary_records_folder() as folder:
            return _sweep_outcome(run_sweep_plan(plan, engine, folder), None)
    if not force:
        options.check_file_can_be_continued(file, "sweep")
    return _sweep_outcome(run_sweep_plan(plan, engine, records_folder(file.path), force, share), file)


@command_with_options("json", "quiet")
def collect(folders: list[Path], /, *, output: Path, force: bool = False) -> CommandOutcome:
    """Join the records of the shards (separately computed parts) of a sweep into one file, without computing anything.

    Args:
        folders (FOLDER...): Folders NAME.records of the shards.
        output (FILE.nc): File to write, as netCDF.
    """
    from ..extensions.sweeping.sweep import collect as join

    file = options.check_netcdf_output_option(output, "a sweep", force)
    return _sweep_outcome(join(*folders), file)


def _sweep_outcome(result: Sweep, file: options.OutputFile | None) -> CommandOutcome:
    """Write the file of a sweep and return the outcome of the command; a shard writes records only."""
    early = early_exit_status(result.interrupted, result.out_of_time)
    from ..report.sweeps import describe_point_counts_by_status

    message, text = "", result.table()
    finished = result.plan.point_count - result.statuses.get("unfinished", 0)
    where = "" if file is None else f" next to {file.name}"
    weak = {name: n for name, n in result.weak.items() if name != "unfinished" or result.shard is None}
    if early is not None:
        message = (
            f"{EARLY_EXIT_MESSAGES[early]}; the {finished} finished points of {result.plan.point_count} are kept{where}"
        )
        message += "; the same command continues" if where else ""
    elif weak:
        message = _describe_points_without_result(weak)
    elif result.shard is None and not any(name in ("converged", "floor") for name in result.statuses):
        message = f"no branch was found at any point: {describe_point_counts_by_status(result)}"
    if result.shard is not None:
        i, n = result.shard
        text += f"\nshard {i} of {n} is kept{where}; `saddleforge collect` joins the shards"
        file = None

    def _result_json_with_status(word: str, path: Path | None) -> dict[str, Any]:
        return {**result.to_json(), "status": word, "file": None if path is None else str(path)}

    return save_result_and_report(result.save, file, text, _result_json_with_status, message, early)


def _describe_points_without_result(weak: dict[str, int]) -> str:
    counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in weak.items())
    return f"not every point has a result: {counts}; `status` and `reason` in the table say which and why"


def _parse_shard(text: str) -> tuple[int, int]:
    first, last = options.convert_parts_of_option(
        "--shard", text, "I/N is expected, as 3/16", text.split("/"), int, int
    )
    return first, last


def _parse_sweep_axes(items: list[str]) -> dict[str, list[float]]:
    """Parse the values NAME=LO:HI:N of --over into the axes of the grid.

    Raises:
        InputError: a value has another form, or a name is given twice.
    """
    axes = [options.parse_parameter_grid(item) for item in items]
    if twice := {name for name, _ in axes if sum(name == other for other, _ in axes) > 1}:
        raise InputError(f"--over: {min(twice)} is given twice; give every parameter once")
    return {name: values.tolist() for name, values in axes}


def _read_parameter_table(path: Path) -> list[dict[str, Any]]:
    """Read a CSV table with parameter names as header; return its rows as dictionaries.

    Raises:
        InputError: the file cannot be read or is empty, or a cell is neither a number nor an array.
    """
    import csv

    from ..base.budget import interrupt_at_time_limit
    from ..base.files import require_readable_file

    try:
        with interrupt_at_time_limit(), require_readable_file(path).open(newline="", encoding="utf-8-sig") as stream:
            head, *lines = [row for row in csv.reader(stream, skipinitialspace=True) if row] or [[]]
    except TimeLimitError:  # it is a subclass of OSError
        raise
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    names = [name.strip() for name in head]
    if not lines:
        raise InputError(
            f"{path} contains no points: a header with names of parameters and one row per point are expected"
        )
    if len(set(names)) < len(names):
        raise InputError(f"{path}: its header contains a name twice; name every column once")
    rows = []
    for number, line in enumerate(lines, 2):
        if len(line) != len(names):
            raise InputError(
                f"{path}, row {number}: {len(line)} cells, where the header has {len(names)}; cells are separated by "
                "commas, decimals have a point, as alpha,lambda and 1,0.1"
            )
        rows.append(dict(zip(names, map(partial(_parse_table_cell, path, number), names, line), strict=True)))
    return rows


def _parse_table_cell(path: Path, number: int, name: str, text: str) -> Any:
    try:
        return options.parse_set_options([f"{name}={text}"])[name]
    except InputError:
        raise InputError(f"{path}, row {number}: {name} = {text!r}; a number or a JSON array is expected") from None
