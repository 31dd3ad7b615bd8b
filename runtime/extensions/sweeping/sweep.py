"""A sweep: solutions over a grid or a table of parameters, recorded as they are finished, collected into one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Any

from ...base import presenting
from ...base.errors import InputError
from ...base.interrupts import defer_interrupts, keep_partial_results
from ...base.options import AlgorithmOptions
from ...base.presenting import DatasetResult, Result
from ...base.progress import ProgressTask, progress_bar
from .engine import Engine
from .line import FAILED, UNFINISHED, Record, is_computed, is_found
from .plan import Line, Plan, SimulationSettings, make_plan, plan_from_identity
from .records import (
    Records,
    best,
    check_same_sweep,
    compress_records,
    decompress_records,
    read,
    read_identity,
    records_folder,
    remove_records,
)

if TYPE_CHECKING:
    import pandas
    import xarray

ENDED = ("lost", "left_basin", "ended_elsewhere", "collapsed")
"""Statuses of points at which there is no solution on the branch; `ended_elsewhere` is `left_basin` in older files."""
_FINE = ("converged", "floor", *ENDED)


@dataclass(frozen=True)
class SweepProgressOptions(AlgorithmOptions):
    """Options of the progress report of a sweep.

    Attributes:
        min_seconds: shortest time between two descriptions.
        time_fraction: shortest time between them as a fraction of the elapsed time.
    """

    min_seconds: float = 5.0
    time_fraction: float = 0.02


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Result, DatasetResult):
    """The results of a sweep.

    Attributes:
        plan: the plan.
        records: compressed records of every line (see `lines`); missing points are unfinished.
        interrupted: whether Ctrl-C ended it; out_of_time: whether a time limit did.
        shard: (I, N) if only every N-th line was asked for, else None.

    Example:
        >>> found = sf.sweep("ridge_regression", grid={"alpha": (3, 1, 3), "Delta": [0.1, 0.2]}, processes=1)
        >>> found.to_xarray()["test_error"].dims, found.weak
        (('start', 'alpha', 'Delta'), {})
    """

    plan: Plan
    records: tuple[bytes, ...]
    interrupted: bool = False
    out_of_time: bool = False
    shard: tuple[int, int] | None = None

    def lines(self) -> Iterator[tuple[Line, dict[int, Record]]]:
        """Yield every line with its records by point index."""
        for line, data in zip(self.plan.lines, self.records, strict=True):
            yield line, decompress_records(data)

    def points(self) -> Iterator[tuple[tuple[int, ...], Line, Record]]:
        """Yield (index in `plan.shape`, line, record) of every point; an unfinished one has only a status."""
        for line, known in self.lines():
            for n in range(len(line.points)):
                record = known.get(n)
                if record is None:
                    record = {"n": n, "status": UNFINISHED, "reason": "it was not computed"}
                yield self.plan.index_of(line, n), line, record

    @cached_property
    def statuses(self) -> dict[str, int]:
        """The number of points of each status, most frequent first."""
        counted = Counter(record["status"] for _, _, record in self.points())
        return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))

    @cached_property
    def weak(self) -> dict[str, int]:
        """The number of points by status that are neither solutions nor beyond the end of a branch.

        If a line has its branch somewhere, points before its first and after its last solution are beyond the end,
        with any status of the solver; if it never has it, nothing is known.
        """
        counted: Counter[str] = Counter()
        for line, known in self.lines():
            first = min((n for n, record in known.items() if is_found(record)), default=0)
            for n in range(len(line.points)):
                record = known.get(n, {"status": UNFINISHED})
                beyond = line.along is not None and record["status"] not in (FAILED, UNFINISHED)
                if not (beyond and not is_found(record) and (n < first or "lost" in record)):
                    counted[record["status"]] += 1
        return {name: counted[name] for name in self.statuses if name not in _FINE and counted[name]}

    def to_xarray(self) -> xarray.Dataset:
        """Return a dataset of values, error bars, statuses and verdicts along start, (direction,) and parameters."""
        return presenting.to_dataset(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a frame with one row a point, and columns named q_1, V_1, ... per token."""
        return presenting.to_frame(self)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw families of curves along one axis, or maps along two; saved if a path is given."""
        return presenting.plot(self, path)


def sweep(
    model: Any,
    *,
    grid: Mapping[str, Any] | None = None,
    points: Sequence[Mapping[str, Any]] | None = None,
    starts: Sequence[str] | None = None,
    ask: str = "stability",
    accuracy: float = 1e-3,
    both_ways: bool = False,
    seed: int = 0,
    d: int = 500,
    seeds: int = 4,
    method: str = "auto",
    output: str | Path | None = None,
    force: bool = False,
    processes: int | None = None,
    scheduler: str | None = None,
    cluster: str | Path | None = None,
    threads: int = 1,
    memory: float | None = None,
    shard: tuple[int, int] | None = None,
    **parameters: Any,
) -> Sweep:
    """Solve at every point of a grid or a table, from every start, and continue from the records next to `output`.

    Along the first axis every point starts from its neighbour, in the order of the values; lines run in parallel. The
    result has the same bytes on any engine, and after any number of interruptions.

    Args:
        model: a problem, a catalogue name or a path; sizes can be swept by the latter two.
        grid: parameter -> (first, last, count) or a list of values, as {"alpha": (3, 0.5, 40), "omega": [0, 0.3]}.
        points: instead of a grid, rows of parameters (arrays and sizes, too), each solved independently.
        starts: named starts, by default semantic.
        ask: `solve`, `stability` (with a verdict on replica symmetry), or `simulate` (error bars are standard errors).
        accuracy: as for `solve`.
        both_ways: continue every line backward as well: branches have hysteresis.
        seed: as for `solve`.
        d: dimension of simulations.
        seeds: number of seeds of simulations.
        method: method of simulations, as for `sf.simulate`.
        output: a file `NAME.nc` for `save`; records go to the folder `NAME.records` next to it. By default they are
            temporary.
        force: remove existing records.
        processes: workers of a local cluster of Dask, one a core by default; 1 (or no Dask) is this process.
        scheduler: address of a running scheduler of Dask.
        cluster: YAML file of a cluster for dask-jobqueue.
        threads: threads a process.
        memory: gigabytes that a process may use; the memory of the machine is divided by default.
        shard: (I, N) runs every N-th line, from the I-th on; `collect` joins their records.
        parameters: values of other parameters, for all points.

    Raises:
        InputError: an unknown name, an empty range, a value out of range or too large, records of another sweep in the
            folder, or no scheduler.

    Example:
        >>> found = sf.sweep("ridge_regression", grid={"alpha": (3, 1, 3), "Delta": [0.1, 0.2]}, processes=1)
        >>> found.statuses
        {'converged': 6}
    """
    plan = make_plan(
        model,
        grid=grid,
        rows=points,
        starts=starts,
        ask=ask,
        accuracy=accuracy,
        both_ways=both_ways,
        seed=seed,
        simulated=SimulationSettings(d, seeds, method),
        given=parameters,
    )
    bytes_allowed = None if memory is None else int(1e9 * memory)
    engine = Engine(processes, scheduler, None if cluster is None else Path(cluster), threads, bytes_allowed)
    if output is not None:
        return run(plan, engine, records_folder(Path(output)), force, shard)
    with temporary_records_folder() as folder:
        return run(plan, engine, folder, shard=shard)


@contextmanager
def temporary_records_folder() -> Iterator[Path]:
    """Yield a temporary folder for the records of a sweep without a file."""
    with TemporaryDirectory() as folder:
        yield Path(folder) / "records"


def run(plan: Plan, engine: Engine, folder: Path, force: bool = False, shard: tuple[int, int] | None = None) -> Sweep:
    """Run the points of a plan that are not computed yet, and return all of them.

    Args:
        plan: the plan.
        engine: the engine that runs it.
        folder: folder of the records.
        force: remove existing records.
        shard: (I, N) to run every N-th line.

    Raises:
        InputError: as for `sweep`.
    """
    engine.check()
    if shard is not None and not 1 <= shard[0] <= shard[1]:
        raise InputError(f"shard {shard[0]}/{shard[1]}: I/N with 1 <= I <= N is expected")
    if force and (folder / "sweep.json").exists():
        remove_records(folder)
    (sweep,) = run_together([(plan, folder)], engine, shard)
    return sweep


def run_together(
    plans: Sequence[tuple[Plan, Path]],
    engine: Engine,
    shard: tuple[int, int] | None = None,
    before: Callable[[Line], float] | None = None,
) -> list[Sweep]:
    """Run the remaining points of several plans of one model and accuracy together, and return their sweeps.

    Args:
        plans: plans, each with its folder of records.
        engine: the engine that runs them.
        shard: (I, N) to run every N-th line.
        before: sort key of the lines; by default plan after plan.

    Raises:
        InputError: as for `sweep`.
    """
    folders = [Records(folder, plan) for plan, folder in plans]
    records_of: dict[int, Records] = {}
    lines: list[Line] = []
    for (plan, _), records in zip(plans, folders, strict=True):
        for line in plan.lines if shard is None else plan.lines[shard[0] - 1 :: shard[1]]:
            records_of[len(lines)] = records
            lines.append(replace(line, number=len(lines)))
    first, accuracy = plans[0][0], plans[0][0].accuracy
    total = sum(len(line.points) for line in lines)
    with progress_bar(f"sweep of {first.problem.solver.name}", total) as task:
        count = _ProgressCounter(task, first, total)
        unfinished = []
        for line in lines:
            known = records_of[line.number].known(line)
            done = sum(is_computed(known.get(n), accuracy) for n in range(len(line.points)))
            count.add_known(done)
            if done < len(line.points):
                unfinished.append(line)
        if before is not None:
            unfinished.sort(key=before)

        def _store_record(line: Line, record: Record) -> None:
            with defer_interrupts():  # an interruption comes before or after the record is written
                records_of[line.number].append(line, record)
                count.add(line, record)
                if record["n"] == len(line.points) - 1:
                    records_of[line.number].close_line(line)

        with keep_partial_results() as early:
            try:
                engine.run(unfinished, accuracy, lambda line: records_of[line.number].known(line), _store_record)
            except InputError:
                for records in folders:
                    records.close_and_remove_if_empty()
                raise
            finally:
                for records in folders:
                    records.close()
    ended = early.interrupted, early.out_of_time, shard
    return [
        Sweep(plan, tuple(compress_records(records.known(line)) for line in plan.lines), *ended)
        for (plan, _), records in zip(plans, folders, strict=True)
    ]


def collect(*folders: str | Path) -> Sweep:
    """Return a sweep from its records, in one folder or in those of its shards.

    Raises:
        InputError: a folder contains no records, or those of another sweep; the model is not found.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     output = f"{folder}/line.nc"
        ...     done = sf.sweep("ridge_regression", grid={"alpha": (3, 1, 3)}, output=output, processes=1)
        ...     again = sf.collect(f"{folder}/line.records")
        >>> again.statuses == done.statuses
        True
    """
    if not folders:
        raise InputError("give at least one folder of records")
    every = [Path(folder) for folder in folders]
    plan = plan_from_identity(read_identity(every[0]))
    for folder in every:
        check_same_sweep(folder, plan)
    found = (best(r for folder in every for r in read(folder / f"{line.key}.jsonl")) for line in plan.lines)
    return Sweep(plan, tuple(map(compress_records, found)))


class _ProgressCounter:
    """A counter of points for the progress report: done, failed, left, and the time that remains."""

    def __init__(self, task: ProgressTask, plan: Plan, total: int) -> None:
        self._task, self._plan, self._total = task, plan, total
        self._before = self._done = self._failed = 0
        self._started = self._last_report = monotonic()

    def add_known(self, count: int) -> None:
        """Count points that were done before."""
        self._before += count
        for _ in range(count):
            self._task.advance()
        self._started = monotonic()

    def add(self, line: Line, record: Record) -> None:
        """Count a finished point.

        Args:
            line: its line.
            record: its record.
        """
        self._done += 1
        self._failed += record["status"] == FAILED
        now, left = monotonic(), self._total - self._before - self._done
        passed = now - self._started
        options = SweepProgressOptions.current()
        if left and now - self._last_report < max(options.min_seconds, options.time_fraction * passed):
            self._task.advance()
            return
        self._last_report = now
        text = f"sweep of {self._plan.problem.solver.name}: {self._before + self._done} done, {self._failed} failed, "
        self._task.advance(
            f"{text}{left} left" + (f", about {_format_duration(passed / self._done * left)}" if left else "")
        )


def _format_duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
