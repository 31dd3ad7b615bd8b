"""A phase diagram in two parameters: a grid of solutions that is refined where rows differ, and located boundaries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...base import presenting
from ...base.errors import InputError, TimeLimitError, require_in, require_whole
from ...base.files import write_whole
from ...base.interrupts import held_back, keeping_results
from ...base.presenting import Recorded, Result
from ...base.progress import bar, say
from ...branches.branch import Branch
from ...problems.problem import Problem, parameter_name
from ...problems.reduced import integrated
from ..sweeping.engine import Engine
from ..sweeping.line import Record
from ..sweeping.plan import Plan, Simulated, planned
from ..sweeping.records import folder_of, remove
from ..sweeping.sweep import Sweep, kept_nowhere, run_together
from .boundaries import MANY, Boundary, Change, Places, Row, bracketed, further, located
from .doubts import Doubt, decided, doubts, without
from .meetings import Meeting, Suspect, met, suspects

if TYPE_CHECKING:
    import xarray

_PROBES = 3  # an axis, at which it is seen which starts lead anywhere
_REACH = 2.0  # cells that a boundary may move from row to row
_BEND = 0.4  # cells that it may be off the straight line between the rows on both sides
_COARSE = 1e-2  # accuracy of probes
# Of averages with up to MANY dimensions, and with more.
_POINTS = (9, 5), (5, 3)
_ACCURACIES = 1e-3, 1e-2
_BOUNDARY_ACCURACIES = 3e-3, 3e-2
_REFINEMENTS = 1, 0
_EFFORTS = 4, 2  # sizes of a rule, with which a point may miss its accuracy: farther on doubts are decided by a walk


@dataclass(frozen=True, eq=False, repr=False)
class PhaseDiagram(Result, Recorded):
    """Solutions on a grid whose rows are finest where they differ, and the boundaries between them.

    Attributes:
        first, second: names of the parameters; rows run along the first one.
        rows: in ascending order of the second parameter.
        boundaries: by row, in the order of the first parameter; meetings: points where they meet.
        interrupted, out_of_time: whether Ctrl-C or a time limit ended it; what is finished is here: rows on which all
            branches are solved, and their boundaries, between points of the grid where no more is known.
        judged: whether replica symmetry of the solutions was.

    Example:
        >>> plane = {"alpha": (5, 10), "Delta": (0.8, 1.2)}
        >>> found = sf.phases("tukey_regression", over=plane, points=(3, 2), refinements=0, processes=1)
        >>> found.branches, len(found.rows), found.phases
        (('semantic',), 2, {('semantic', ()): 6})
    """

    problem: Problem
    first: str
    second: str
    rows: tuple[Row, ...]
    boundaries: tuple[Boundary, ...]
    meetings: tuple[Meeting, ...] = ()
    interrupted: bool = False
    out_of_time: bool = False
    judged: bool = True

    @property
    def branches(self) -> tuple[str, ...]:
        """Those that were found anywhere, in the order of the model's starts."""
        return tuple(self.rows[0].records) if self.rows else ()

    @cached_property
    def phases(self) -> dict[tuple[str, tuple[str, ...]], int]:
        """(lowest branch, other branches that exist) -> how many points of the grid, most first."""
        return dict(Counter(self.phase(row, n) for row in self.rows for n in range(len(row.values))).most_common())

    def phase(self, row: Row, n: int) -> tuple[str, tuple[str, ...]]:
        """The lowest branch at a point, and which others exist."""
        lowest = row.lowest(n)
        return lowest, tuple(b for b in self.branches if b != lowest and row.found(b, n))

    def lines(self) -> dict[tuple[str, tuple[str, ...]], list[Boundary]]:
        """Boundaries by kind and branches, along the second parameter."""
        found: dict[tuple[str, tuple[str, ...]], list[Boundary]] = {}
        for boundary in sorted(self.boundaries, key=lambda b: (b.kind, b.branches, b.at, b.value)):
            found.setdefault((boundary.kind, boundary.branches), []).append(boundary)
        return found

    def to_xarray(self) -> xarray.Dataset:
        """Lowest branch, losses, replicons of every branch on the grid; the points of boundaries along `point`."""
        return presenting.to_dataset(self)

    def plot(self, path: str | Path | None = None) -> Any:
        """Named regions, boundaries with half widths, hatching where replica symmetry is unstable."""
        return presenting.plot(self, path)


def phases(
    model: Any,
    *,
    over: Mapping[str, tuple[float, float]],
    starts: Sequence[str] | None = None,
    points: tuple[int, int] | None = None,
    refinements: int | None = None,
    accuracy: float | None = None,
    boundary_accuracy: float | None = None,
    stability: bool | None = None,
    seed: int = 0,
    output: str | Path | None = None,
    force: bool = False,
    processes: int | None = None,
    **parameters: Any,
) -> PhaseDiagram:
    """Which solution has the lowest training loss in a plane, where branches exist, and where replica symmetry holds.

    Every start that leads anywhere is swept along rows of the first parameter, from the side where its branch is. The
    crossings, ends of branches and passages of the replicon through 1 that neighbours on a row bracket are located.
    Between rows on which different things happen, or boundaries bend or move far, others are put. In the end points
    where boundaries meet are located.

    Args:
        over: two parameters and their intervals, as {"alpha": (0.3, 3), "omega": (0, 0.45)}.
        starts: named starts; by default all of the model that lead to a branch at one of nine probes (three, in a row
            half way, where averages have many dimensions).
        points: of the grid, along both, by default (9, 5), or (5, 3) where averages have many dimensions; refinements:
            how often rows are halved where they differ (once, or never).
        accuracy: of overlaps, as of `solve` (1e-3, or 1e-2 of many dimensions); boundary_accuracy: half width of
            boundaries, in the first parameter, and of points where they meet (3e-3, or 3e-2); in the second it is asked
            for in proportion to the intervals.
        stability: whether replica symmetry is judged at every point, by default where averages have few dimensions:
            beyond, that takes several times as long as the solutions.
        output: a file for `save`; solutions and boundaries are kept in the folder `NAME.records` beside it.
        force: remove what is kept there.
        processes: as of `sweep`.
        parameters: of the problem.

    Raises:
        InputError: not two parameters and intervals, something unknown or out of range, or records of something else.
        NotConvergedError: no start leads anywhere.

    Example:
        >>> plane = {"alpha": (5, 10), "Delta": (0.8, 1.2)}
        >>> found = sf.phases("tukey_regression", over=plane, points=(3, 2), refinements=0, processes=1)
        >>> [(boundary.kind, boundary.at, round(boundary.value, 2)) for boundary in found.boundaries]
        [('replicon', 0.8, 5.19), ('replicon', 1.2, 9.9)]
    """
    first, second = _spans(over)
    engine = Engine(processes)
    engine.check()
    for number in points or ():
        require_whole("points", number, 2)
    require_whole("refinements", refinements or 0, 0)
    if boundary_accuracy is not None:
        require_in("boundary_accuracy", boundary_accuracy, "(0, inf)")
    asked = _ACCURACIES[0] if accuracy is None else accuracy
    chosen = _Chosen(model, first, second, points or _POINTS[0], asked, seed, parameters, "solve")
    base = chosen.plan(None, [second[1]], False).problem
    many = integrated(base).dimension > MANY
    chosen = replace(
        chosen,
        points=points or _POINTS[many],
        accuracy=_ACCURACIES[many] if accuracy is None else accuracy,
        ask="stability" if (not many if stability is None else stability) else "solve",
        effort=_EFFORTS[many],
    )
    if starts is None:
        starts = tuple(base.solver.model.STARTS)
    known = chosen.plan(starts, [second[1]], False).starts
    with ExitStack() as stack:
        folder = folder_of(Path(output)) if output is not None else stack.enter_context(kept_nowhere())
        if force:
            _remove(folder)
        return _Study(chosen, base, known, engine, folder).done(
            _REFINEMENTS[many] if refinements is None else refinements,
            _BOUNDARY_ACCURACIES[many] if boundary_accuracy is None else boundary_accuracy,
        )


@dataclass(frozen=True)
class _Chosen:
    """What is asked of all sweeps of a diagram."""

    model: Any
    first: tuple[str, float, float]
    second: tuple[str, float, float]
    points: tuple[int, int]
    accuracy: float
    seed: int
    parameters: Mapping[str, Any]
    ask: str
    effort: int = _EFFORTS[0]

    def plan(self, starts: Sequence[str] | None, at: Sequence[float], upward: bool) -> Plan:
        """A sweep of some starts along rows, up or down."""
        name, low, high = self.first
        ends = (low, high) if upward else (high, low)
        return planned(
            self.model,
            grid={name: (*ends, self.points[0]), self.second[0]: list(at)},
            rows=None,
            starts=starts,
            ask=self.ask,
            accuracy=self.accuracy,
            both_ways=False,
            seed=self.seed,
            simulated=Simulated(),
            given=self.parameters,
            ends=False,
            effort=self.effort,
        )


class _Study:
    """The work on a diagram, level by level."""

    def __init__(self, chosen: _Chosen, base: Problem, starts: Sequence[str], engine: Engine, folder: Path) -> None:
        self._chosen, self._base, self._engine, self._folder = chosen, base, engine, folder
        self._starts = tuple(starts)
        self._rows: dict[float, Row] = {}
        self._places: dict[float, Places] = {}
        self._meetings: list[Meeting] = []

    def done(self, refinements: int, accuracy: float) -> PhaseDiagram:
        """The diagram, or what there is of it when Ctrl-C or the time ends it."""
        with keeping_results() as early:
            self._work(refinements, accuracy)
        rows = tuple(self._rows[at] for at in sorted(self._rows))
        known = ({**{c: bracketed(row, c) for c in row.changes()}, **self._places.get(row.at, {})} for row in rows)
        return PhaseDiagram(
            problem=self._base,
            first=self._chosen.first[0],
            second=self._second,
            rows=rows,
            boundaries=tuple(there for places in known for there in places.values() if there is not None),
            meetings=tuple(self._meetings),
            interrupted=early.interrupted,
            out_of_time=early.out_of_time,
            judged=self._chosen.ask == "stability",
        )

    def _work(self, refinements: int, accuracy: float) -> None:
        with self._engine.held() as self._engine:
            ways = self._ways()
            _, low, high = self._chosen.second
            wanted = np.linspace(low, high, self._chosen.points[1]).tolist()
            kept = _Kept(self._folder / f"boundaries-{accuracy:g}.json")
            for level in range(refinements + 1):
                self._solve(level, wanted, ways)
                self._decide(kept, accuracy)
                self._locate(kept, accuracy)
                wanted = further(self._located, _BEND, _REACH)
                if not wanted:
                    break
            self._meet(kept, accuracy)

    @property
    def _located(self) -> list[tuple[Row, Places]]:
        """Rows in ascending order, with what was located on them."""
        return [(row, self._places[at]) for at, row in sorted(self._rows.items())]

    def _ways(self) -> dict[str, bool]:
        """Of every start that leads to a branch of its own at a probe: whether rows are gone up, as it is met more
        often at the lower end.

        Raises:
            InputError: none does.
        """
        (name, low, high), (other, bottom, top) = self._chosen.first, self._chosen.second
        places = np.linspace(low, high, _PROBES).tolist()
        few = integrated(self._base).dimension <= MANY
        heights = np.linspace(bottom, top, _PROBES).tolist() if few else [(bottom + top) / 2]
        asked = [(start, at) for start in self._starts for at in heights]
        kept = _Kept(self._folder / "probes.json")
        keys = [self._chosen.plan([start], [at], False).lines[0].key for start, at in asked]
        calls = [
            _Call((key,), (self._base.with_(**{other: at}), name, start, places, self._chosen.seed))
            for key, (start, at) in zip(keys, asked, strict=True)
        ]
        self._compute("probes", _probed, calls, kept)
        score, met = dict.fromkeys(self._starts, 0.0), dict.fromkeys(self._starts, False)
        for (start, _), key in zip(asked, keys, strict=True):
            probe = kept.get(key, _Probe)
            assert probe is not None
            score[start] += float(np.dot(probe.there, np.linspace(1, -1, _PROBES)))
            met[start] |= any(probe.there)
        ways = {start: score[start] > 0 for start in self._starts if met[start]}
        if not ways:
            raise InputError(
                f"none of the starts {', '.join(self._starts)} leads to a branch of its name at "
                f"{_PROBES * len(heights)} points of the plane; choose other intervals"
            )
        say(f"branches: {', '.join(ways)}")
        return ways

    def _solve(self, level: int, wanted: Sequence[float], ways: Mapping[str, bool]) -> None:
        """Rows of all starts at values of the second parameter."""
        plans = []
        for upward in (True, False):
            starts = [start for start, way in ways.items() if way == upward]
            if starts:
                folder = self._folder / f"level-{level}-{'up' if upward else 'down'}"
                plans.append((self._chosen.plan(starts, wanted, upward), folder))
        made: dict[float, dict[str, tuple[Record, ...]]] = {at: {} for at in wanted}
        order = {at: n for n, at in enumerate(_outside_in(sorted(wanted)))}
        sweeps = run_together(plans, self._engine, before=lambda line: order[line.problem.value_of(self._second)])
        for sweep in sweeps:
            for at, start, records in _lines_of(sweep):
                made[at][start] = records if ways[start] else records[::-1]
        values = tuple(sorted(plans[0][0].axes[0].values))
        first, accuracy = self._chosen.first[0], self._chosen.accuracy
        for at, every in made.items():
            if every.keys() == ways.keys():
                problem, known = self._base.with_(**{self._second: at}), {start: every[start] for start in ways}
                self._rows[at] = Row(problem, first, self._second, at, values, known, accuracy)
        if any(sweep.interrupted for sweep in sweeps):
            raise KeyboardInterrupt
        if any(sweep.out_of_time for sweep in sweeps):
            raise TimeLimitError("the time limit ended the diagram")

    @property
    def _second(self) -> str:
        return self._chosen.second[0]

    def _compute(self, title: str, function: Callable[..., Any], calls: Sequence[_Call], kept: _Kept) -> None:
        """Call a function, in processes, for what is not kept yet; what it returns is kept under the call's keys."""
        work = [call for call in calls if not all(key in kept for key in call.keys)]
        if not calls:
            return
        with bar(title, len(work)) as task:

            def take(number: int, found: Any) -> None:
                keys = work[number].keys
                kept.add(dict(zip(keys, found if isinstance(found, list) else [found], strict=True)))
                task.advance(work[number].words or None)

            self._engine.each(function, [call.arguments for call in work], take)

    def _new_rows(self) -> list[Row]:
        """Rows on which boundaries are not located yet, in ascending order."""
        return [row for at, row in sorted(self._rows.items()) if at not in self._places]

    def _decide(self, kept: _Kept, accuracy: float) -> None:
        """Which branches end before points of theirs that were reached without the accuracy, on new rows."""
        every = [(row, doubt, _doubtful(row, doubt)) for row in self._new_rows() for doubt in doubts(row)]
        calls = [
            _Call((key,), (row, doubt, accuracy, self._chosen.seed), f"{doubt.branch} at {row.at:.4g}")
            for row, doubt, key in every
        ]
        try:
            self._compute("branches without the accuracy", decided, calls, kept)
        finally:
            for row, doubt, key in every:
                end = kept.get(key, Boundary)
                if end is not None:
                    row, change = without(self._rows[row.at], doubt, end)
                    self._rows[row.at] = row
                    kept.add({_key(row, change): end})

    def _locate(self, kept: _Kept, accuracy: float) -> None:
        """Every boundary of rows on which they are not located yet."""
        rows = self._new_rows()
        calls = [
            _Call(
                tuple(_key(row, change) for change in group),
                (row, group, accuracy, self._chosen.seed),
                f"{group[-1].kind} of {' and '.join(group[-1].branches)} at {row.at:.4g}",
            )
            for row in rows
            for group in row.groups()
        ]
        try:
            self._compute("boundaries", located, calls, kept)
        finally:
            for row in rows:
                keys = {change: _key(row, change) for change in row.changes()}
                self._places[row.at] = {c: kept.get(key, Boundary) for c, key in keys.items() if key in kept}

    def _meet(self, kept: _Kept, accuracy: float) -> None:
        """Every point where boundaries meet."""
        (_, low, high), (_, bottom, top) = self._chosen.first, self._chosen.second
        accuracies = accuracy, accuracy * (top - bottom) / (high - low)
        calls = [_Call((_name(each),), (each, accuracies, self._chosen.seed)) for each in suspects(self._located)]
        try:
            self._compute("points where boundaries meet", met, calls, kept)
        finally:
            there = (kept.get(call.keys[0], Meeting) for call in calls)
            self._meetings = [meeting for meeting in there if meeting is not None]


@dataclass(frozen=True)
class _Call:
    """Arguments of a function, the keys under which what it returns is kept, and words for its progress."""

    keys: tuple[str, ...]
    arguments: tuple[Any, ...]
    words: str = ""


@dataclass(frozen=True)
class _Probe:
    """Whether a start leads to a branch of its own, at every value of the first parameter that is probed."""

    there: tuple[bool, ...]


Kept = TypeVar("Kept", Boundary, Meeting, _Probe)


class _Kept:
    """What was found beside solutions, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # it is not there, or no JSON
            found = {}
        self._found: dict[str, dict[str, Any] | None] = found if isinstance(found, dict) else {}

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def get(self, key: str, kind: type[Kept]) -> Kept | None:
        """A boundary, a point where some meet, or a probe; None where there is none after all, or none is kept."""
        found = self._found.get(key)
        if found is None:
            return None
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in found.items()}
        return kind(**values)

    def add(self, found: Mapping[str, Boundary | Meeting | _Probe | None]) -> None:
        """Put away."""
        with held_back():
            self._found |= {key: None if there is None else asdict(there) for key, there in found.items()}
            write_whole(self._path, json.dumps(self._found, indent=1, sort_keys=True))


def _key(row: Row, change: Change) -> str:
    """Of a boundary, in the file that keeps them."""
    return json.dumps([change.kind, change.branches, row.at, *(row.values[n] for n in change.ends)])


def _doubtful(row: Row, doubt: Doubt) -> str:
    """Of points without the accuracy, in that file."""
    return json.dumps(["doubt", doubt.branch, row.at, *(row.values[n] for n in (doubt.inside, *doubt.points))])


def _outside_in(values: Sequence[float]) -> list[float]:
    """Ascending values, both ends first, then what halves the largest gap: any beginning of them spans all."""
    order, left = [*values[:1], *values[:0:-1][:1]], list(values[1:-1])
    while left:
        order.append(max(left, key=lambda v: min(abs(v - known) for known in order)))
        left.remove(order[-1])
    return order


def _name(suspect: Suspect) -> str:
    """Of a point where boundaries meet, in that file."""
    return json.dumps([suspect.kind, suspect.branches, suspect.pair, *suspect.between, *(r.at for r in suspect.rows)])


def _probed(problem: Problem, name: str, start: str, places: Sequence[float], seed: int) -> _Probe:
    """Whether a start leads to a branch of its own, at values of a parameter."""
    fresh = (Branch(problem, name, start, _COARSE, seed, effort=2) for _ in places)
    return _Probe(tuple(branch.at(value) is not None for branch, value in zip(fresh, places, strict=True)))


def _lines_of(sweep: Sweep) -> Iterator[tuple[float, str, tuple[Record, ...]]]:
    """The finished ones."""
    for line, known in sweep.lines():
        if all(n in known for n in range(len(line.points))):
            at = sweep.plan.axes[1].values[line.place[2]]
            yield at, line.start, tuple(known[n] for n in range(len(line.points)))


def _remove(folder: Path) -> None:
    for inner in sorted(folder.glob("level-*")):
        remove(inner)
    for path in [*folder.glob("boundaries-*.json"), folder / "probes.json"]:
        path.unlink(missing_ok=True)


def _spans(over: Mapping[str, tuple[float, float]]) -> tuple[tuple[str, float, float], tuple[str, float, float]]:
    """Two parameters and their intervals in order.

    Raises:
        InputError: other than two, or an interval that is none.
    """
    if len(over) != 2:
        raise InputError(f"a phase diagram is over two parameters and their intervals; {len(over)} are given")
    found = []
    for name, span in over.items():
        try:
            low, high = sorted(float(v) for v in span)
        except (TypeError, ValueError):
            raise InputError(f"{name} = {span!r}: an interval (low, high) is expected") from None
        if not (np.isfinite([low, high]).all() and low < high):
            raise InputError(f"{name} = {span!r}: the interval is empty")
        found.append((parameter_name(name), low, high))
    return found[0], found[1]
