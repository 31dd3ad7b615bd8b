"""A sweep: solutions over a grid or a table of parameters, kept as they are finished, collected into one table."""

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
from ...base.interrupts import held_back, keeping_results
from ...base.presenting import Recorded, Result
from ...base.progress import Task, bar
from .engine import Engine
from .line import FAILED, UNFINISHED, Record, is_done, is_found
from .plan import Line, Plan, Simulated, plan_of, planned
from .records import Records, best, folder_of, identity_in, packed, read, refuse_other, remove, unpacked

if TYPE_CHECKING:
    import pandas
    import xarray

ENDED = ("lost", "ended_elsewhere", "collapsed")
"""Statuses of points at which there is no solution on the branch."""
_FINE = ("converged", "floor", *ENDED)
_SPOKEN = 5.0  # seconds from one description to the next, or this share of what has passed
_SHARE = 0.02


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Result, Recorded):
    """What is known of a plan.

    Attributes:
        records: of every line, packed (see `lines`); points that are missing are unfinished.
        interrupted: whether Ctrl-C ended it; out_of_time: whether a time limit did.
        shard: (I, N) where only every N-th line was asked for, else None.

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
        """Every line and its records by number on it."""
        for line, data in zip(self.plan.lines, self.records, strict=True):
            yield line, unpacked(data)

    def points(self) -> Iterator[tuple[tuple[int, ...], Line, Record]]:
        """(index in `plan.shape`, line, record) of every point; one that is unfinished has a status and no more."""
        for line, known in self.lines():
            for n in range(len(line.points)):
                record = known.get(n)
                if record is None:
                    record = {"n": n, "status": UNFINISHED, "reason": "it was not computed"}
                yield self.plan.index_of(line, n), line, record

    @cached_property
    def statuses(self) -> dict[str, int]:
        """How many points ended in each status, most frequent first."""
        counted = Counter(record["status"] for _, _, record in self.points())
        return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))

    @cached_property
    def weak(self) -> dict[str, int]:
        """Those that are neither solutions nor ends of a branch.

        A line that has its branch somewhere has none where it has lost it, or has not met it yet, whatever the solver
        said there; nothing of the kind is known of a line that never meets it.
        """
        counted: Counter[str] = Counter()
        for line, known in self.lines():
            met = min((n for n, record in known.items() if is_found(record)), default=0)
            for n in range(len(line.points)):
                record = known.get(n, {"status": UNFINISHED})
                beyond = line.along is not None and record["status"] not in (FAILED, UNFINISHED)
                if not (beyond and not is_found(record) and (n < met or "lost" in record)):
                    counted[record["status"]] += 1
        return {name: counted[name] for name in self.statuses if name not in _FINE and counted[name]}

    def to_xarray(self) -> xarray.Dataset:
        """Values, half widths, statuses and verdicts along start, (direction,) and the parameters by name."""
        return presenting.to_dataset(self)

    def to_pandas(self) -> pandas.DataFrame:
        """One row a point, columns named q_1, V_1, ... per token."""
        return presenting.to_frame(self)

    def plot(self, path: str | Path | None = None) -> Any:
        """Families of curves along one axis, maps along two; saved where a path is given."""
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
    """Solve at every point of a grid or a table, from every start; go on from what is kept beside `output`.

    Along the first axis every point begins from its neighbour, in the order of the values; lines run side by side. The
    result has the same bytes whatever runs it, and however often it was interrupted.

    Args:
        model: a problem, a catalogue name or a path; sizes can be swept by the latter two.
        grid: parameter -> (first, last, count) or a list of values, as {"alpha": (3, 0.5, 40), "omega": [0, 0.3]}.
        points: in its place rows of parameters (arrays and sizes, too), each solved by itself.
        starts: named starts, by default semantic.
        ask: `solve`, `stability` (with a verdict on replica symmetry), or `simulate` (d, seeds and method as of
            `sf.simulate`; half widths then are standard errors).
        accuracy, seed: as of `solve`.
        both_ways: go back along every line, too: branches have hysteresis.
        output: a file `NAME.nc` for `save`; records go to the folder `NAME.records` beside it. Without it they are kept
            for as long as this takes.
        force: remove the records that are there.
        processes: of a local cluster of Dask, one a core by default; 1 (or no Dask) is this process.
        scheduler, cluster: address of a scheduler; YAML file of a cluster for dask-jobqueue.
        threads: a process; memory: gigabytes that one may use, by default its share of the machine.
        shard: (I, N) runs every N-th line, from the I-th on; `collect` joins their records.
        parameters: of the problem, for all points.

    Raises:
        InputError: something unknown, empty, out of range or too large; records of another sweep; no scheduler.

    Example:
        >>> found = sf.sweep("ridge_regression", grid={"alpha": (3, 1, 3), "Delta": [0.1, 0.2]}, processes=1)
        >>> found.statuses
        {'converged': 6}
    """
    plan = planned(
        model,
        grid=grid,
        rows=points,
        starts=starts,
        ask=ask,
        accuracy=accuracy,
        both_ways=both_ways,
        seed=seed,
        simulated=Simulated(d, seeds, method),
        given=parameters,
    )
    bytes_allowed = None if memory is None else int(1e9 * memory)
    engine = Engine(processes, scheduler, None if cluster is None else Path(cluster), threads, bytes_allowed)
    if output is not None:
        return run(plan, engine, folder_of(Path(output)), force, shard)
    with kept_nowhere() as folder:
        return run(plan, engine, folder, shard=shard)


@contextmanager
def kept_nowhere() -> Iterator[Path]:
    """A folder for the records of a sweep without a file."""
    with TemporaryDirectory() as folder:
        yield Path(folder) / "records"


def run(plan: Plan, engine: Engine, folder: Path, force: bool = False, shard: tuple[int, int] | None = None) -> Sweep:
    """Run what is not done of a plan, and read all that is.

    Raises:
        InputError: as of `sweep`.
    """
    engine.check()
    if shard is not None and not 1 <= shard[0] <= shard[1]:
        raise InputError(f"shard {shard[0]}/{shard[1]}: I/N with 1 <= I <= N is expected")
    if force and (folder / "sweep.json").exists():
        remove(folder)
    (sweep,) = run_together([(plan, folder)], engine, shard)
    return sweep


def run_together(
    plans: Sequence[tuple[Plan, Path]],
    engine: Engine,
    shard: tuple[int, int] | None = None,
    before: Callable[[Line], float] | None = None,
) -> list[Sweep]:
    """Run what is not done of plans of one model and accuracy side by side, each with a folder of its own.

    Args:
        before: lines begin in the order of this; without it plan after plan.

    Raises:
        InputError: as of `sweep`.
    """
    kept = [Records(folder, plan) for plan, folder in plans]
    own: dict[int, Records] = {}
    lines: list[Line] = []
    for (plan, _), records in zip(plans, kept, strict=True):
        for line in plan.lines if shard is None else plan.lines[shard[0] - 1 :: shard[1]]:
            own[len(lines)] = records
            lines.append(replace(line, number=len(lines)))
    first, accuracy = plans[0][0], plans[0][0].accuracy
    total = sum(len(line.points) for line in lines)
    with bar(f"sweep of {first.problem.solver.name}", total) as task:
        count = _Count(task, first, total)
        unfinished = []
        for line in lines:
            known = own[line.number].known(line)
            done = sum(is_done(known.get(n), accuracy) for n in range(len(line.points)))
            count.there(done)
            if done < len(line.points):
                unfinished.append(line)
        if before is not None:
            unfinished.sort(key=before)

        def take(line: Line, record: Record) -> None:
            with held_back():  # a point counts when it has been put away, and not before
                own[line.number].append(line, record)
                count.add(line, record)
                if record["n"] == len(line.points) - 1:
                    own[line.number].finished(line)

        with keeping_results() as early:
            try:
                engine.run(unfinished, accuracy, lambda line: own[line.number].known(line), take)
            except InputError:
                for records in kept:
                    records.withdraw()
                raise
            finally:
                for records in kept:
                    records.close()
    ended = early.interrupted, early.out_of_time, shard
    return [
        Sweep(plan, tuple(packed(records.known(line)) for line in plan.lines), *ended)
        for (plan, _), records in zip(plans, kept, strict=True)
    ]


def collect(*folders: str | Path) -> Sweep:
    """What the records of a sweep hold, in one folder or in those of its shards.

    Raises:
        InputError: a folder holds no records, or those of another sweep; the model is not found again.

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
    plan = plan_of(identity_in(every[0]))
    for folder in every:
        refuse_other(folder, plan)
    found = (best(r for folder in every for r in read(folder / f"{line.key}.jsonl")) for line in plan.lines)
    return Sweep(plan, tuple(map(packed, found)))


class _Count:
    """What is said of the way: done, failed, left, and how long that will take."""

    def __init__(self, task: Task, plan: Plan, total: int) -> None:
        self._task, self._plan, self._total = task, plan, total
        self._before = self._done = self._failed = 0
        self._begun = self._spoken = monotonic()

    def there(self, count: int) -> None:
        """Points that were done before."""
        self._before += count
        for _ in range(count):
            self._task.advance()
        self._begun = monotonic()

    def add(self, line: Line, record: Record) -> None:
        """A point is finished."""
        self._done += 1
        self._failed += record["status"] == FAILED
        now, left = monotonic(), self._total - self._before - self._done
        passed = now - self._begun
        if left and now - self._spoken < max(_SPOKEN, _SHARE * passed):
            self._task.advance()
            return
        self._spoken = now
        text = f"sweep of {self._plan.problem.solver.name}: {self._before + self._done} done, {self._failed} failed, "
        self._task.advance(f"{text}{left} left" + (f", about {_duration(passed / self._done * left)}" if left else ""))


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
