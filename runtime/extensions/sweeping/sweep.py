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
from ...base.presenting import DatasetResult, PresentableResult
from ...base.progress import ProgressTask, progress_bar
from .engine import SweepEngine
from .line import FAILED, UNFINISHED, Record, is_point_computed, is_solution_record
from .plan import SimulationSettings, SweepLine, SweepPlan, make_sweep_plan, sweep_plan_from_saved_settings
from .records import (
    SweepRecords,
    best_record_of_each_point,
    compress_records,
    decompress_records,
    read_records,
    read_sweep_settings,
    records_folder,
    remove_sweep_records,
    require_same_sweep,
)

if TYPE_CHECKING:
    import pandas
    import xarray

ENDED = ("lost", "left_basin", "trivial", "ended_elsewhere", "collapsed")
"""Statuses of points at which the branch has no solution; the last two are old names of `left_basin` and `trivial`."""
_FINE = ("converged", "floor", *ENDED)


@dataclass(frozen=True)
class SweepProgressOptions(AlgorithmOptions):
    """Options of the progress report of a sweep.

    Attributes:
        min_seconds: shortest time between two progress messages, in seconds.
        time_fraction: shortest time between two progress messages, as a fraction of the elapsed time.
    """

    min_seconds: float = 5.0
    time_fraction: float = 0.02


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(PresentableResult, DatasetResult):
    """The results of a sweep.

    Attributes:
        plan: plan of the sweep.
        records: compressed records of every line, see `lines`; unfinished points have none.
        interrupted, out_of_time: whether Ctrl-C or a time limit ended the sweep.
        shard: (I, N) if only every N-th line, from the I-th on, was computed; else None.

    Example:
        >>> found = sf.sweep("ridge_regression", grid={"alpha": (3, 1, 3), "Delta": [0.1, 0.2]}, processes=1)
        >>> found.to_xarray()["test_error"].dims, found.weak
        (('start', 'alpha', 'Delta'), {})
    """

    plan: SweepPlan
    records: tuple[bytes, ...]
    interrupted: bool = False
    out_of_time: bool = False
    shard: tuple[int, int] | None = None

    def lines(self) -> Iterator[tuple[SweepLine, dict[int, Record]]]:
        """Yield every line of the sweep together with the records of its points, by index of the point."""
        for line, data in zip(self.plan.lines, self.records, strict=True):
            yield line, decompress_records(data)

    def points(self) -> Iterator[tuple[tuple[int, ...], SweepLine, Record]]:
        """Yield every point of the sweep as (index in an array of shape `plan.shape`, line, record).

        The record of an unfinished point contains only a status and a reason.
        """
        for line, known in self.lines():
            for n in range(len(line.points)):
                record = known.get(n)
                if record is None:
                    record = {"n": n, "status": UNFINISHED, "reason": "the point was not computed"}
                yield self.plan.index_of_point(line, n), line, record

    @cached_property
    def statuses(self) -> dict[str, int]:
        """The number of points of every status, most frequent first."""
        counted = Counter(record["status"] for _, _, record in self.points())
        return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))

    @cached_property
    def weak(self) -> dict[str, int]:
        """The number of failed points of every status: points that should have a solution, and have none.

        Points beyond the ends of a branch do not count: on a line, those before its first and after its last solution.
        On a line without any solution every point counts.
        """
        counted: Counter[str] = Counter()
        for line, known in self.lines():
            first = min((n for n, record in known.items() if is_solution_record(record)), default=0)
            for n in range(len(line.points)):
                record = known.get(n, {"status": UNFINISHED})
                beyond = line.along is not None and record["status"] not in (FAILED, UNFINISHED)
                if not (beyond and not is_solution_record(record) and (n < first or "lost" in record)):
                    counted[record["status"]] += 1
        return {name: counted[name] for name in self.statuses if name not in _FINE and counted[name]}

    def to_xarray(self) -> xarray.Dataset:
        """Return an xarray dataset with observables, error bars, statuses and verdicts at all points of the sweep.

        Its dimensions are start, direction (if branches are continued both ways) and the swept parameters.
        """
        return presenting.to_dataset(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas data frame with one row per point, and columns for observables and overlaps."""
        return presenting.to_frame(self)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the results as curves along one axis or as maps along two, and save the figure if a path is given."""
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
    """Solve at every point of a grid or a table of parameters, from every start, resuming from existing records.

    Along the first axis every point starts from its neighbour, in the order of the values; lines run in parallel. The
    result has the same bytes on any engine, and after any number of interruptions.

    Args:
        model: a problem, a catalogue name or a path; sizes can be swept by the latter two.
        grid: parameter -> (first, last, count) or a list of values, as {"alpha": (3, 0.5, 40), "omega": [0, 0.3]}.
        points: instead of a grid, a list of parameter values (also arrays and sizes), each solved independently.
        starts: named starts; by default informed; semantic with several tokens.
        ask: `solve`, `stability` (with a verdict on replica symmetry), or `simulate` (error bars are standard errors).
        accuracy: as for `solve`.
        both_ways: continue every line backward as well: branches have hysteresis.
        seed: as for `solve`.
        d: dimension of simulations.
        seeds: number of seeds of simulations.
        method: method of simulations, as for `sf.simulate`.
        output: a file `NAME.nc` for `save`; records go to the folder `NAME.records` next to it. By default records
            are temporary.
        force: remove existing records.
        processes: workers of a local cluster of Dask, one per core by default; 1 (or no Dask) is this process.
        scheduler: address of a running scheduler of Dask.
        cluster: YAML file of a cluster for dask-jobqueue.
        threads: threads per process.
        memory: gigabytes that a process may use; the memory of the machine is divided by default.
        shard: (I, N) runs every N-th line, from the I-th on; `collect` joins the records of all shards.
        parameters: values of other parameters, for all points.

    Raises:
        InputError: an unknown name, an empty range, a value out of range or too large, records of another sweep in the
            folder, or no scheduler.

    Example:
        >>> found = sf.sweep("ridge_regression", grid={"alpha": (3, 1, 3), "Delta": [0.1, 0.2]}, processes=1)
        >>> found.statuses
        {'converged': 6}
    """
    plan = make_sweep_plan(
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
    engine = SweepEngine(processes, scheduler, None if cluster is None else Path(cluster), threads, bytes_allowed)
    if output is not None:
        return run_sweep_plan(plan, engine, records_folder(Path(output)), force, shard)
    with temporary_records_folder() as folder:
        return run_sweep_plan(plan, engine, folder, shard=shard)


@contextmanager
def temporary_records_folder() -> Iterator[Path]:
    """Yield a temporary folder for the records of a sweep that has no output file."""
    with TemporaryDirectory() as folder:
        yield Path(folder) / "records"


def run_sweep_plan(
    plan: SweepPlan, engine: SweepEngine, folder: Path, force: bool = False, shard: tuple[int, int] | None = None
) -> Sweep:
    """Compute the points of a planned sweep that are not computed yet, and return the whole sweep.

    Args:
        plan: plan of the sweep.
        engine: engine that computes the lines.
        folder: folder of the records.
        force: whether to remove existing records first.
        shard: (I, N) to compute only every N-th line, from the I-th on.

    Raises:
        InputError: a setting is out of range, the folder contains another sweep, or no scheduler answers.
    """
    engine.check_engine_settings()
    if shard is not None and not 1 <= shard[0] <= shard[1]:
        raise InputError(f"shard {shard[0]}/{shard[1]} is out of range: give I/N with whole numbers 1 <= I <= N")
    if force and (folder / "sweep.json").exists():
        remove_sweep_records(folder)
    (sweep,) = run_sweep_plans_together([(plan, folder)], engine, shard)
    return sweep


def run_sweep_plans_together(
    plans: Sequence[tuple[SweepPlan, Path]],
    engine: SweepEngine,
    shard: tuple[int, int] | None = None,
    before: Callable[[SweepLine], float] | None = None,
) -> list[Sweep]:
    """Compute several planned sweeps of one model and one accuracy together, and return the sweeps.

    Args:
        plans: plans of the sweeps, each with its folder of records.
        engine: engine that computes the lines.
        shard: (I, N) to compute only every N-th line, from the I-th on.
        before: sort key of the lines; by default lines are computed plan after plan.

    Raises:
        InputError: a folder contains another sweep, or no scheduler answers.
    """
    folders = [SweepRecords(folder, plan) for plan, folder in plans]
    records_of: dict[int, SweepRecords] = {}
    lines: list[SweepLine] = []
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
            known = records_of[line.number].existing_records_of_line(line)
            done = sum(is_point_computed(known.get(n), accuracy) for n in range(len(line.points)))
            count.count_already_finished_points(done)
            if done < len(line.points):
                unfinished.append(line)
        if before is not None:
            unfinished.sort(key=before)

        def _store_record(line: SweepLine, record: Record) -> None:
            with defer_interrupts():  # an interruption comes before or after the record is written
                records_of[line.number].append_point_record(line, record)
                count.count_finished_point(line, record)
                if record["n"] == len(line.points) - 1:
                    records_of[line.number].close_line_file(line)

        with keep_partial_results() as early:
            try:
                engine.run_lines(
                    unfinished,
                    accuracy,
                    lambda line: records_of[line.number].existing_records_of_line(line),
                    _store_record,
                )
            except InputError:
                for records in folders:
                    records.close_and_remove_if_empty()
                raise
            finally:
                for records in folders:
                    records.close_record_files()
    ended = early.interrupted, early.out_of_time, shard
    return [
        Sweep(plan, tuple(compress_records(records.existing_records_of_line(line)) for line in plan.lines), *ended)
        for (plan, _), records in zip(plans, folders, strict=True)
    ]


def collect(*folders: str | Path) -> Sweep:
    """Return a sweep from the folder of its records, or from the folders of its parts (shards).

    Raises:
        InputError: a folder contains no records or records of another sweep, or the model is not found.

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
        raise InputError("no folder is given; give at least one folder of records, NAME.records")
    every = [Path(folder) for folder in folders]
    plan = sweep_plan_from_saved_settings(read_sweep_settings(every[0]))
    for folder in every:
        require_same_sweep(folder, plan)
    found = (
        best_record_of_each_point(
            r for folder in every for r in read_records(folder / f"{line.records_file_stem}.jsonl")
        )
        for line in plan.lines
    )
    return Sweep(plan, tuple(map(compress_records, found)))


class _ProgressCounter:
    """A counter of finished, failed and remaining points that reports the progress of a sweep."""

    def __init__(self, task: ProgressTask, plan: SweepPlan, total: int) -> None:
        self._task, self._plan, self._total = task, plan, total
        self._before = self._done = self._failed = 0
        self._started = self._last_report = monotonic()

    def count_already_finished_points(self, count: int) -> None:
        """Count points that were finished by an earlier run of the same sweep."""
        self._before += count
        for _ in range(count):
            self._task.count_finished_step()
        self._started = monotonic()

    def count_finished_point(self, line: SweepLine, record: Record) -> None:
        """Count a point that was finished now, and report the progress of the sweep from time to time.

        Args:
            line: line of the point.
            record: record of the point.
        """
        self._done += 1
        self._failed += record["status"] == FAILED
        now, left = monotonic(), self._total - self._before - self._done
        passed = now - self._started
        options = SweepProgressOptions.current()
        if left and now - self._last_report < max(options.min_seconds, options.time_fraction * passed):
            self._task.count_finished_step()
            return
        self._last_report = now
        text = f"sweep of {self._plan.problem.solver.name}: {self._before + self._done} done, {self._failed} failed, "
        self._task.count_finished_step(
            f"{text}{left} left" + (f", about {_format_duration(passed / self._done * left)}" if left else "")
        )


def _format_duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
