"""`sweep`: solutions over a plane of parameters, kept as they are finished; `collect`: shards of one, joined."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..base.errors import InputError, TimeLimitError
from . import options
from .outcome import WHY, Outcome, command, cut_short, saved

if TYPE_CHECKING:
    from ..extensions.sweeping.sweep import Sweep


@command("time_limit", "json", "seed", "quiet")
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
) -> Outcome:
    """Solve over a grid or a table of parameters, from several starts, in parallel; the same command continues.

    Args:
        over (NAME=LO:HI:N): A parameter and its values in order, alpha=3:0.5:40, lambda=1e-4:1:9:log or alpha=3,2,1.
            Repeats; solutions are continued along the first one.
        points (TABLE.csv): Rows of parameters in place of --over; arrays as JSON.
        start (NAME,...): Named starts (default: semantic).
        ask (solve|stability|simulate): What is computed at a point; stability adds the verdict.
        both_ways: Continue back along every line, too.
        d: --ask simulate: dimension of the embeddings.
        seeds: --ask simulate: draws of the data a point.
        method: --ask simulate: how the risk is minimised, see `simulate`.
        output (FILE.nc): Write netCDF; finished points are kept in FILE.records, and the same command continues from
            them.
        scheduler (tcp://HOST:PORT): Connect to a running Dask scheduler.
        cluster (FILE.yaml): Start a cluster through dask-jobqueue.
        shard (I/N): Compute the I-th of N parts, for `collect`; needs no Dask.
        memory (GB): Gigabytes a worker may use.
        force: Overwrite an existing file and its records.
        threads: Threads per worker.
    """
    share = None if shard is None else _share(shard)
    if bool(over) == (points is not None):
        raise InputError("--over NAME=LO:HI:N, once or more, or --points TABLE.csv: give one of them")
    if share is not None and output is None:
        raise InputError("--shard goes with -o FILE.nc, next to which its records are kept")
    grid = _grid(over or [])
    rows = _rows(points) if points is not None else None
    file = options.netcdf_file(output, "a sweep", force=True)  # what is there is looked at below

    from ..extensions.sweeping.engine import Engine
    from ..extensions.sweeping.plan import Simulated, planned
    from ..extensions.sweeping.records import folder_of
    from ..extensions.sweeping.sweep import kept_nowhere, run

    plan = planned(
        model,
        grid=grid,
        rows=rows,
        starts=options.starts(start),
        ask=ask,
        accuracy=accuracy,
        both_ways=both_ways,
        seed=seed,
        simulated=Simulated(d, seeds, method),
        given=options.assignments(set_),
    )
    limit = None if memory is None else int(1e9 * memory)
    engine = Engine(1 if share and processes is None else processes, scheduler, cluster, threads, limit)
    if file is None:
        with kept_nowhere() as folder:
            return _told(run(plan, engine, folder), None)
    if not force:
        options.check_goes_on(file, "sweep")
    return _told(run(plan, engine, folder_of(file.path), force, share), file)


@command("json", "quiet")
def collect(folders: list[Path], /, *, output: Path, force: bool = False) -> Outcome:
    """Join the records of the shards of a sweep into one file; nothing is computed.

    Args:
        folders (FOLDER...): Folders NAME.records of a sweep or of its shards.
        output (FILE.nc): Where to write netCDF.
    """
    from ..extensions.sweeping.sweep import collect as join

    file = options.netcdf_file(output, "a sweep", force)
    return _told(join(*folders), file)


def _told(result: Sweep, file: options.OutputFile | None) -> Outcome:
    """How the command ends, the file written, but that of a shard, whose records are kept beside it."""
    early = cut_short(result.interrupted, result.out_of_time)
    from ..report.sweeps import counted

    message, text = "", result.table()
    finished = result.plan.size - result.statuses.get("unfinished", 0)
    where = "" if file is None else f" beside {file.name}"
    weak = {name: n for name, n in result.weak.items() if name != "unfinished" or result.shard is None}
    if early is not None:
        message = f"{WHY[early]}; the {finished} finished points of {result.plan.size} are kept{where}"
        message += "; the same command continues" if where else ""
    elif weak:
        message = _advice(weak)
    elif result.shard is None and not any(name in ("converged", "floor") for name in result.statuses):
        message = f"no branch was found at any point: {counted(result)}"
    if result.shard is not None:
        i, n = result.shard
        text += f"\nshard {i} of {n} is kept{where}; `saddleforge collect` joins the shards"
        file = None

    def data(word: str, path: Path | None) -> dict[str, Any]:
        return {**result.to_json(), "status": word, "file": None if path is None else str(path)}

    return saved(result.save, file, text, data, message, early)


def _advice(weak: dict[str, int]) -> str:
    told = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in weak.items())
    return f"not every point has a result: {told}; `status` and `reason` in the table say which and why"


def _share(text: str) -> tuple[int, int]:
    first, last = options.converted("--shard", text, "I/N is expected, as 3/16", text.split("/"), int, int)
    return first, last


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

    from ..base.budget import sharp
    from ..base.files import finite

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
