"""`sweep`: solutions over a plane of parameters, kept as they are finished; `collect`: shards of one, joined."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import interrupts
from ..errors import InputError, TimeLimitError
from . import options
from .options import AccuracyOption, JsonOption, ModelArgument, QuietOption, SeedOption, SetOption, TimeLimitOption
from .outcome import WHY, Exit, Outcome, command, cut_short, saved

if TYPE_CHECKING:
    from ..sweeping.sweep import Sweep


@command
def sweep(
    model: ModelArgument,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="NAME=LO:HI:N",
            help="A parameter and its values in order, alpha=3:0.5:40, lambda=1e-4:1:9:log or alpha=3,2,1. Repeats; "
            "solutions are continued along the first one.",
        ),
    ] = None,
    points: Annotated[
        Path | None,
        typer.Option("--points", metavar="TABLE.csv", help="Rows of parameters in place of --over; arrays as JSON."),
    ] = None,
    set_: SetOption = None,
    start: Annotated[
        str | None, typer.Option("--start", metavar="NAME,...", help="Named starts (default: semantic).")
    ] = None,
    ask: Annotated[
        str,
        typer.Option(
            "--ask", metavar="solve|stability|simulate", help="What is computed at a point; stability adds the verdict."
        ),
    ] = "stability",
    accuracy: AccuracyOption = 1e-3,
    both_ways: Annotated[bool, typer.Option("--both-ways", help="Continue back along every line, too.")] = False,
    d: Annotated[int, typer.Option("--d", min=1, help="--ask simulate: dimension of the embeddings.")] = 500,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="--ask simulate: draws of the data a point.")] = 4,
    method: Annotated[
        str, typer.Option("--method", help="--ask simulate: how the risk is minimised, see `simulate`.")
    ] = "auto",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE.nc",
            help="Write netCDF; finished points are kept in FILE.records, and the same command continues from them.",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Workers on this machine (default: one a core).")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", metavar="tcp://HOST:PORT", help="Connect to a running Dask scheduler.")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", metavar="FILE.yaml", help="Start a cluster through dask-jobqueue.")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option("--shard", metavar="I/N", help="Compute the I-th of N parts, for `collect`; needs no Dask."),
    ] = None,
    memory: Annotated[
        float | None, typer.Option("--memory", min=0, metavar="GB", help="Gigabytes a worker may use.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file and its records.")] = False,
    time_limit: TimeLimitOption = None,
    json: JsonOption = False,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads per worker.")] = 1,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> Outcome:
    """Solve over a grid or a table of parameters, from several starts, in parallel; the same command continues."""
    share = None if shard is None else _share(shard)
    if bool(over) == (points is not None):
        raise InputError("--over NAME=LO:HI:N, once or more, or --points TABLE.csv: give one of them")
    if share is not None and output is None:
        raise InputError("--shard goes with -o FILE.nc, next to which its records are kept")
    grid = _grid(over or [])
    rows = _rows(points) if points is not None else None
    if output is not None:
        options.netcdf_file(output, "a sweep", force=True)  # what is there is looked at below
    options.prepare(None, quiet, seed)

    from ..files import absolute
    from ..sweeping.engine import Engine
    from ..sweeping.plan import Simulated, planned
    from ..sweeping.records import folder_of
    from ..sweeping.sweep import kept_nowhere, run

    plan = planned(
        model,
        grid=grid,
        rows=rows,
        starts=None if start is None else [name.strip() for name in start.split(",")],
        ask=ask,
        accuracy=accuracy,
        both_ways=both_ways,
        seed=seed,
        simulated=Simulated(d, seeds, method),
        given=options.assignments(set_),
    )
    engine = Engine(1 if share and processes is None else processes, scheduler, cluster, threads, _bytes(memory))
    if output is None:
        with kept_nowhere() as folder:
            return _told(run(plan, engine, folder), None, None)
    target = absolute(output)
    folder = folder_of(target)
    options.check_goes_on(target, output, "sweep", force)
    result = run(plan, engine, folder, force, share)
    return _told(result, None if share is not None else target, output)


@command
def collect(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Folders NAME.records of a sweep or of its shards.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.nc", help="Where to write netCDF.")],
    force: options.ForceOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> Outcome:
    """Join the records of the shards of a sweep into one file; nothing is computed."""
    from ..progress import set_quiet
    from ..sweeping.sweep import collect as join

    set_quiet(quiet)
    target = options.netcdf_file(output, "a sweep", force)
    return _told(join(*folders), target, output)


def _told(result: Sweep, target: Path | None, output: Path | None) -> Outcome:
    """How the command ends, the file written."""
    interrupts.ignore()
    from ..report.sweeps import counted

    status, message = Exit.DONE, ""
    early = cut_short(result.interrupted, result.out_of_time)
    finished = result.plan.size - result.statuses.get("unfinished", 0)
    where = "" if output is None else " beside " + str(output)
    if early is not None:
        status, message = early, f"{WHY[early]}; the {finished} finished points of {result.plan.size} are kept{where}"
        message += "; the same command continues" if where else ""
    elif result.shard is not None:
        weak = {name: n for name, n in result.weak.items() if name != "unfinished"}
        if weak:
            status, message = Exit.NOT_CONVERGED, _advice(weak)
    elif result.weak:
        status, message = Exit.NOT_CONVERGED, _advice(result.weak)
    elif not any(name in ("converged", "floor") for name in result.statuses):
        status, message = Exit.NOT_CONVERGED, f"no branch was found at any point: {counted(result)}"
    text = result.table()
    if result.shard is not None:
        i, n = result.shard
        text += f"\nshard {i} of {n} is kept{where}; `saddleforge collect` joins the shards"

    def data(word: str, file: Path | None) -> dict[str, Any]:
        written = None if file is None or target is None else str(file)
        return {**result.to_json(), "status": word, "file": written}

    return saved(result.save, target, output, text, data, status, message)


def _advice(weak: dict[str, int]) -> str:
    told = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in weak.items())
    return f"not every point has a result: {told}; `status` and `reason` in the table say which and why"


def _share(text: str) -> tuple[int, int]:
    first, _, last = text.partition("/")
    try:
        return int(first), int(last)
    except ValueError:
        raise InputError(f"--shard {text}: I/N is expected, as 3/16") from None


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else int(1e9 * gigabytes)


def _grid(items: list[str]) -> dict[str, list[float]]:
    """`--over` as axes.

    Raises:
        InputError: another form, or a name that stands twice.
    """
    axes = [options.grid(item) for item in items]
    if twice := {name for name, _ in axes if sum(name == other for other, _ in axes) > 1}:
        raise InputError(f"--over: {min(twice)} is swept twice")
    return {name: values.tolist() for name, values in axes}


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a table, whose head names parameters.

    Raises:
        InputError: it cannot be read, is empty, or a cell is no value.
    """
    import csv

    from ..budget import sharp
    from ..files import finite

    try:
        with sharp(), finite(path).open(newline="", encoding="utf-8-sig") as stream:
            head, *lines = [row for row in csv.reader(stream, skipinitialspace=True) if row] or [[]]
    except TimeLimitError:  # an OSError by its base
        raise
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    names = [name.strip() for name in head]
    if not lines:
        raise InputError(
            f"{path} contains no points: a header with names of parameters and one row per point are expected"
        )
    if len(set(names)) < len(names):
        raise InputError(f"{path}: a name stands twice in its header")
    rows = []
    for number, line in enumerate(lines, 2):
        if len(line) != len(names):
            raise InputError(
                f"{path}, row {number}: {len(line)} cells, where the header has {len(names)}; cells are separated by "
                "commas, decimals have a point, as alpha,lambda and 1,0.1"
            )
        rows.append(dict(zip(names, map(partial(_cell, path, number), names, line), strict=True)))
    return rows


def _cell(path: Path, number: int, name: str, text: str) -> Any:
    try:
        return options.assignments([f"{name}={text}"])[name]
    except InputError:
        raise InputError(f"{path}, row {number}: {name} = {text!r}; a number or a JSON array is expected") from None
