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
from ...base.deprecation import DeprecatedName, deprecated_attribute
from ...base.errors import InputError, TimeLimitError, require_in_interval, require_whole_number
from ...base.files import write_atomically
from ...base.interrupts import defer_interrupts, keep_partial_results
from ...base.options import AlgorithmOptions
from ...base.presenting import DatasetResult, PresentableResult
from ...base.progress import print_message, progress_bar
from ...branches.branch import Branch
from ...problems.problem import Problem, stored_parameter_name
from ...problems.reduced import reduce_to_fields_of_loss
from ...saddle_point.starts import named_starts
from ..sweeping.engine import SweepEngine
from ..sweeping.line import Record
from ..sweeping.plan import SimulationSettings, SweepPlan, make_sweep_plan
from ..sweeping.records import records_folder, remove_sweep_records
from ..sweeping.sweep import Sweep, run_sweep_plans_together, temporary_records_folder
from .boundaries import (
    MAX_LOW_DIMENSION,
    Boundary,
    BranchChange,
    DiagramRow,
    LocatedBoundaries,
    bracketed_boundary,
    grid_rows_to_insert,
    locate_boundaries_of_changes,
)
from .codim2_points import Codim2Candidate, Codim2Point, find_codim2_candidates, locate_codim2_point
from .uncertain_segments import (
    UncertainBranchSegment,
    find_uncertain_segments,
    locate_end_of_uncertain_segment,
    remove_points_beyond_branch_end,
)

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True)
class PhaseDiagramOptions(AlgorithmOptions):
    """Options of phase diagrams. Of a pair, the first value is for averages in few dimensions, the second for many.

    Attributes:
        probes: points per axis at which starts are tried; more points find branches that exist in small regions only.
        probe_accuracy: accuracy of the overlaps at these points.
        row_shift: grid cells by which a boundary may move from row to row before a row is inserted in between.
        row_bend: grid cells by which a boundary may deviate from the straight line through both neighbouring rows.
        grid_points, accuracies, boundary_accuracies, refinements: defaults of the parameters of `phases`.
        rule_sizes: number of quadrature sizes that are tried at a grid point to reach the accuracy; larger costs more
            time, but leaves fewer grid points at which the existence of a branch is uncertain.
    """

    probes: int = 3
    probe_accuracy: float = 1e-2
    row_shift: float = 2.0
    row_bend: float = 0.4
    grid_points: tuple[tuple[int, int], tuple[int, int]] = ((9, 5), (5, 3))
    accuracies: tuple[float, float] = (1e-3, 1e-2)
    boundary_accuracies: tuple[float, float] = (3e-3, 3e-2)
    refinements: tuple[int, int] = (1, 0)
    rule_sizes: tuple[int, int] = (4, 2)


@dataclass(frozen=True, eq=False, repr=False)
class PhaseDiagram(PresentableResult, DatasetResult):
    """A phase diagram in the plane of two parameters: branches of solutions on a grid, and located boundaries.

    Attributes:
        problem: the problem.
        first, second: names of the parameters; rows of the grid run along the first one.
        rows: the rows of the grid, in ascending order of the second parameter.
        boundaries: points of phase boundaries, row by row.
        codim2_points: codimension-2 points, where boundaries meet.
        interrupted, out_of_time: whether Ctrl-C or a time limit ended the computation; the diagram then contains the
            finished rows, and some boundaries are only bracketed by grid points.
        judged: whether the stability of replica symmetry was computed.

    Example:
        >>> plane = {"alpha": (5, 10), "Delta": (0.8, 1.2)}
        >>> found = sf.phases("tukey_regression", over=plane, points=(3, 2), refinements=0, processes=1)
        >>> found.branches, len(found.rows), found.phases
        (('informed',), 2, {('informed', ()): 6})
    """

    problem: Problem
    first: str
    second: str
    rows: tuple[DiagramRow, ...]
    boundaries: tuple[Boundary, ...]
    codim2_points: tuple[Codim2Point, ...] = ()
    interrupted: bool = False
    out_of_time: bool = False
    judged: bool = True

    meetings = deprecated_attribute("meetings", DeprecatedName("codim2_points", "0.1.0", "0.3.0"))

    @property
    def branches(self) -> tuple[str, ...]:
        """The names of the branches that were found, in the order of the model's starts."""
        return tuple(self.rows[0].records) if self.rows else ()

    @cached_property
    def phases(self) -> dict[tuple[str, tuple[str, ...]], int]:
        """The number of grid points in every phase, largest first.

        A phase is a pair: the branch of lowest training loss, and the other branches that exist.
        """
        return dict(Counter(self.phase(row, n) for row in self.rows for n in range(len(row.values))).most_common())

    def phase(self, row: DiagramRow, n: int) -> tuple[str, tuple[str, ...]]:
        """Return the branch of lowest training loss at a grid point, and the other branches that exist there.

        Args:
            row: a row of the diagram.
            n: index of the grid point on the row.
        """
        lowest_loss_branch = row.lowest_loss_branch(n)
        return lowest_loss_branch, tuple(b for b in self.branches if b != lowest_loss_branch and row.has_branch(b, n))

    def lines(self) -> dict[tuple[str, tuple[str, ...]], list[Boundary]]:
        """Return the boundary lines: points of one kind and of the same branches, along the second parameter."""
        found: dict[tuple[str, tuple[str, ...]], list[Boundary]] = {}
        for boundary in sorted(self.boundaries, key=lambda b: (b.kind, b.branches, b.at, b.value)):
            found.setdefault((boundary.kind, boundary.branches), []).append(boundary)
        return found

    def to_xarray(self) -> xarray.Dataset:
        """Return an xarray dataset with the branches, losses and replicons on the grid, and the boundary points."""
        return presenting.to_dataset(self)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the phase diagram, and save the figure if a path is given.

        Regions are named, boundaries have error bars, and hatching marks unstable replica symmetry.
        """
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
    """Compute the phase diagram of a model in the plane of two parameters.

    Every branch is continued along rows of a grid, from the side where it exists. Crossings of training losses, ends of
    branches and instabilities of replica symmetry are located between neighbouring grid points. Rows are inserted where
    the boundaries of neighbouring rows differ much. Finally codimension-2 points, where boundaries meet, are located.

    Args:
        model: a name of the catalogue, a model or a problem, as for `sweep`.
        over: two parameters and their intervals, as {"alpha": (0.3, 3), "omega": (0, 0.45)}.
        starts: named starts; by default all of the model that lead to a branch at one of nine probes (three, in the
            middle row, if averages have many dimensions).
        points: numbers of grid points along both parameters; (9, 5), or (5, 3) for averages in many dimensions.
        refinements: how often rows are inserted between rows that differ (once, or never).
        accuracy: accuracy of overlaps, as for `solve` (1e-3, or 1e-2 in many dimensions).
        boundary_accuracy: error bar of boundaries and codimension-2 points in the first parameter (3e-3, or 3e-2); in
            the second it is in proportion to the intervals.
        stability: whether replica symmetry is judged at every point; by default only if averages have few dimensions:
            otherwise it takes several times as long as the solutions.
        seed: seed of sampled rules.
        output: a file for `save`; solutions and boundaries are stored in the folder `NAME.records` next to it.
        force: remove earlier records there.
        processes: number of processes, as for `sweep`.
        parameters: values of the other parameters of the problem.

    Raises:
        InputError: not two parameters and intervals, an unknown name, a value out of range, no start that leads to a
            branch, or records of another diagram in the folder.

    Example:
        >>> plane = {"alpha": (5, 10), "Delta": (0.8, 1.2)}
        >>> found = sf.phases("tukey_regression", over=plane, points=(3, 2), refinements=0, processes=1)
        >>> [(boundary.kind, boundary.at, round(boundary.value, 2)) for boundary in found.boundaries]
        [('replicon', 0.8, 5.19), ('replicon', 1.2, 9.9)]
    """
    first, second = _parameter_intervals(over)
    engine = SweepEngine(processes)
    engine.check_engine_settings()
    for number in points or ():
        require_whole_number("points", number, 2)
    require_whole_number("refinements", refinements or 0, 0)
    if boundary_accuracy is not None:
        require_in_interval("boundary_accuracy", boundary_accuracy, "(0, inf)")
    options = PhaseDiagramOptions.current()
    asked = options.accuracies[0] if accuracy is None else accuracy
    chosen = _DiagramSweepSettings(
        model, first, second, points or options.grid_points[0], asked, seed, parameters, "solve", options.rule_sizes[0]
    )
    base = chosen.sweep_plan_of_rows(None, [second[1]], False).problem
    many = reduce_to_fields_of_loss(base).dimension > MAX_LOW_DIMENSION
    chosen = replace(
        chosen,
        points=points or options.grid_points[many],
        accuracy=options.accuracies[many] if accuracy is None else accuracy,
        ask="stability" if (not many if stability is None else stability) else "solve",
        effort=options.rule_sizes[many],
    )
    if starts is None:
        starts = tuple(named_starts(base))
    known = chosen.sweep_plan_of_rows(starts, [second[1]], False).starts
    with ExitStack() as stack:
        folder = records_folder(Path(output)) if output is not None else stack.enter_context(temporary_records_folder())
        if force:
            _remove_diagram_records(folder)
        return _DiagramBuilder(chosen, base, known, engine, folder).build_diagram(
            options.refinements[many] if refinements is None else refinements,
            options.boundary_accuracies[many] if boundary_accuracy is None else boundary_accuracy,
        )


@dataclass(frozen=True)
class _DiagramSweepSettings:
    """Settings shared by all sweeps of a phase diagram."""

    model: Any
    first: tuple[str, float, float]
    second: tuple[str, float, float]
    points: tuple[int, int]
    accuracy: float
    seed: int
    parameters: Mapping[str, Any]
    ask: str
    effort: int

    def sweep_plan_of_rows(self, starts: Sequence[str] | None, at: Sequence[float], upward: bool) -> SweepPlan:
        """Return the plan of a sweep along rows of the diagram.

        Args:
            starts: named starts; None for all.
            at: values of the second parameter on the rows.
            upward: whether rows are swept in ascending order of the first parameter.
        """
        name, low, high = self.first
        ends = (low, high) if upward else (high, low)
        return make_sweep_plan(
            self.model,
            grid={name: (*ends, self.points[0]), self.second[0]: list(at)},
            rows=None,
            starts=starts,
            ask=self.ask,
            accuracy=self.accuracy,
            both_ways=False,
            seed=self.seed,
            simulated=SimulationSettings(),
            given=self.parameters,
            ends=False,
            effort=self.effort,
        )


class _DiagramBuilder:
    """A construction of a phase diagram: rows are solved, boundaries located, and rows inserted, level by level."""

    def __init__(
        self, chosen: _DiagramSweepSettings, base: Problem, starts: Sequence[str], engine: SweepEngine, folder: Path
    ) -> None:
        self._chosen, self._base, self._engine, self._folder = chosen, base, engine, folder
        self._starts = tuple(starts)
        self._rows: dict[float, DiagramRow] = {}
        self._places: dict[float, LocatedBoundaries] = {}
        self._codim2_points: list[Codim2Point] = []

    def build_diagram(self, refinements: int, accuracy: float) -> PhaseDiagram:
        """Compute and return the phase diagram, or its finished part after Ctrl-C or a time limit.

        Args:
            refinements: how often rows are inserted.
            accuracy: required error bar of boundaries.
        """
        with keep_partial_results() as early:
            self._solve_and_refine_rows(refinements, accuracy)
        rows = tuple(self._rows[at] for at in sorted(self._rows))
        known = (
            {**{c: bracketed_boundary(row, c) for c in row.branch_changes()}, **self._places.get(row.at, {})}
            for row in rows
        )
        return PhaseDiagram(
            problem=self._base,
            first=self._chosen.first[0],
            second=self._second_parameter_name,
            rows=rows,
            boundaries=tuple(there for places in known for there in places.values() if there is not None),
            codim2_points=tuple(self._codim2_points),
            interrupted=early.interrupted,
            out_of_time=early.out_of_time,
            judged=self._chosen.ask == "stability",
        )

    def _solve_and_refine_rows(self, refinements: int, accuracy: float) -> None:
        options = PhaseDiagramOptions.current()
        with self._engine.keep_workers() as self._engine:
            directions = self._sweep_directions_by_start()
            _, low, high = self._chosen.second
            wanted = np.linspace(low, high, self._chosen.points[1]).tolist()
            store = _DiagramResultFile(self._folder / f"boundaries-{accuracy:g}.json")
            for level in range(refinements + 1):
                self._solve_grid_rows(level, wanted, directions)
                self._locate_ends_of_uncertain_segments(store, accuracy)
                self._locate_boundaries(store, accuracy)
                wanted = grid_rows_to_insert(self._rows_with_boundaries, options.row_bend, options.row_shift)
                if not wanted:
                    break
            self._locate_codim2_points(store, accuracy)

    @property
    def _rows_with_boundaries(self) -> list[tuple[DiagramRow, LocatedBoundaries]]:
        """The rows in ascending order of the second parameter, with their located boundaries."""
        return [(row, self._places[at]) for at, row in sorted(self._rows.items())]

    def _sweep_directions_by_start(self) -> dict[str, bool]:
        """Return, by name of the start, whether rows are swept upward in the first parameter.

        They are if the branch of that name was found more often at the lower end. Starts that lead to other branches
        are left out.

        Raises:
            InputError: no start reaches the branch of its name.
        """
        (name, low, high), (other, bottom, top) = self._chosen.first, self._chosen.second
        probes = PhaseDiagramOptions.current().probes
        places = np.linspace(low, high, probes).tolist()
        few = reduce_to_fields_of_loss(self._base).dimension <= MAX_LOW_DIMENSION
        heights = np.linspace(bottom, top, probes).tolist() if few else [(bottom + top) / 2]
        asked = [(start, at) for start in self._starts for at in heights]
        store = _DiagramResultFile(self._folder / "probes.json")
        keys = [self._chosen.sweep_plan_of_rows([start], [at], False).lines[0].records_file_stem for start, at in asked]
        calls = [
            _ResumableCall((key,), (self._base.with_(**{other: at}), name, start, places, self._chosen.seed))
            for key, (start, at) in zip(keys, asked, strict=True)
        ]
        self._compute_missing_results("testing starts", _test_start_reaches_branch, calls, store)
        score, has_branch = dict.fromkeys(self._starts, 0.0), dict.fromkeys(self._starts, False)
        for (start, _), key in zip(asked, keys, strict=True):
            probe = store.read_result(key, _StartProbeResult)
            assert probe is not None
            score[start] += float(np.dot(probe.there, np.linspace(1, -1, probes)))
            has_branch[start] |= any(probe.there)
        directions = {start: score[start] > 0 for start in self._starts if has_branch[start]}
        if not directions:
            raise InputError(
                f"none of the starts {', '.join(self._starts)} leads to the branch of the same name at any of "
                f"{probes * len(heights)} points of the plane; choose other intervals"
            )
        print_message(f"branches: {', '.join(directions)}")
        return directions

    def _solve_grid_rows(self, level: int, wanted: Sequence[float], directions: Mapping[str, bool]) -> None:
        """Solve the rows at given values of the second parameter, from all starts."""
        plans = []
        for upward in (True, False):
            starts = [start for start, is_upward in directions.items() if is_upward == upward]
            if starts:
                folder = self._folder / f"level-{level}-{'up' if upward else 'down'}"
                plans.append((self._chosen.sweep_plan_of_rows(starts, wanted, upward), folder))
        made: dict[float, dict[str, tuple[Record, ...]]] = {at: {} for at in wanted}
        order = {at: n for n, at in enumerate(_farthest_point_order(sorted(wanted)))}
        sweeps = run_sweep_plans_together(
            plans, self._engine, before=lambda line: order[line.problem.value_of_parameter(self._second_parameter_name)]
        )
        for sweep in sweeps:
            for at, start, records in _finished_sweep_lines(sweep):
                made[at][start] = records if directions[start] else records[::-1]
        values = tuple(sorted(plans[0][0].axes[0].values))
        first, accuracy = self._chosen.first[0], self._chosen.accuracy
        for at, every in made.items():
            if every.keys() == directions.keys():
                problem, known = (
                    self._base.with_(**{self._second_parameter_name: at}),
                    {start: every[start] for start in directions},
                )
                self._rows[at] = DiagramRow(problem, first, self._second_parameter_name, at, values, known, accuracy)
        if any(sweep.interrupted for sweep in sweeps):
            raise KeyboardInterrupt
        if any(sweep.out_of_time for sweep in sweeps):
            raise TimeLimitError("the time limit ended the computation of the phase diagram")

    @property
    def _second_parameter_name(self) -> str:
        return self._chosen.second[0]

    def _compute_missing_results(
        self,
        title: str,
        function: Callable[..., Any],
        calls: Sequence[_ResumableCall],
        store: _DiagramResultFile,
    ) -> None:
        """Make those calls of a function whose results the file lacks, in parallel processes, and store the results."""
        work = [call for call in calls if not all(key in store for key in call.keys)]
        if not calls:
            return
        with progress_bar(title, len(work)) as task:

            def _store_result(number: int, found: Any) -> None:
                keys = work[number].keys
                store.add_results(dict(zip(keys, found if isinstance(found, list) else [found], strict=True)))
                task.count_finished_step(work[number].progress_words or None)

            self._engine.call_on_each_item(function, [call.arguments for call in work], _store_result)

    def _rows_without_boundaries(self) -> list[DiagramRow]:
        """Return the rows on which boundaries are not located yet, in ascending order."""
        return [row for at, row in sorted(self._rows.items()) if at not in self._places]

    def _locate_ends_of_uncertain_segments(self, store: _DiagramResultFile, accuracy: float) -> None:
        """Locate the ends of branches whose existence is uncertain at grid points with very large error bars."""
        every = [
            (row, segment, _uncertain_segment_json_key(row, segment))
            for row in self._rows_without_boundaries()
            for segment in find_uncertain_segments(row)
        ]
        calls = [
            _ResumableCall((key,), (row, segment, accuracy, self._chosen.seed), f"{segment.branch} at {row.at:.4g}")
            for row, segment, key in every
        ]
        try:
            self._compute_missing_results("ends of inaccurate branches", locate_end_of_uncertain_segment, calls, store)
        finally:
            for row, segment, key in every:
                end = store.read_result(key, Boundary)
                if end is not None:
                    row, change = remove_points_beyond_branch_end(self._rows[row.at], segment, end)
                    self._rows[row.at] = row
                    store.add_results({_boundary_json_key(row, change): end})

    def _locate_boundaries(self, store: _DiagramResultFile, accuracy: float) -> None:
        """Locate the phase boundaries on all rows without located boundaries."""
        rows = self._rows_without_boundaries()
        calls = [
            _ResumableCall(
                tuple(_boundary_json_key(row, change) for change in group),
                (row, group, accuracy, self._chosen.seed),
                f"{group[-1].kind} of {' and '.join(group[-1].branches)} at {row.at:.4g}",
            )
            for row in rows
            for group in row.group_changes_located_together()
        ]
        try:
            self._compute_missing_results("boundaries", locate_boundaries_of_changes, calls, store)
        finally:
            for row in rows:
                keys = {change: _boundary_json_key(row, change) for change in row.branch_changes()}
                self._places[row.at] = {c: store.read_result(key, Boundary) for c, key in keys.items() if key in store}

    def _locate_codim2_points(self, store: _DiagramResultFile, accuracy: float) -> None:
        """Locate the codimension-2 points between neighbouring rows."""
        (_, low, high), (_, bottom, top) = self._chosen.first, self._chosen.second
        accuracies = accuracy, accuracy * (top - bottom) / (high - low)
        calls = [
            _ResumableCall((_codim2_candidate_json_key(each),), (each, accuracies, self._chosen.seed))
            for each in find_codim2_candidates(self._rows_with_boundaries)
        ]
        try:
            self._compute_missing_results("points where boundaries meet", locate_codim2_point, calls, store)
        finally:
            there = (store.read_result(call.keys[0], Codim2Point) for call in calls)
            self._codim2_points = [point for point in there if point is not None]


@dataclass(frozen=True)
class _ResumableCall:
    """A call of a function whose results are stored in a file.

    Attributes:
        keys: keys of the results in the file.
        arguments: arguments of the call.
        progress_words: text for the progress report.
    """

    keys: tuple[str, ...]
    arguments: tuple[Any, ...]
    progress_words: str = ""


@dataclass(frozen=True)
class _StartProbeResult:
    """The result of a test whether a start reaches the branch of its name.

    Attributes:
        there: whether the start reaches that branch, at each tested value of the first parameter.
    """

    there: tuple[bool, ...]


Stored = TypeVar("Stored", Boundary, Codim2Point, _StartProbeResult)


class _DiagramResultFile:
    """A JSON file of located boundaries, codimension-2 points, or tests whether starts reach their branches."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            text = path.read_text(encoding="utf-8")
            found = json.loads(text.replace('[\\"doubt\\",', '[\\"uncertain segment\\",'))  # before 0.1.0
        except (OSError, ValueError):  # it is not there, or no JSON
            found = {}
        self._found: dict[str, dict[str, Any] | None] = found if isinstance(found, dict) else {}

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def read_result(self, key: str, kind: type[Stored]) -> Stored | None:
        """Return a result from the file; None if it is missing, or if a boundary was found not to exist.

        Args:
            key: key of the result in the file.
            kind: class of the result.
        """
        found = self._found.get(key)
        if found is None:
            return None
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in found.items()}
        return kind(**values)

    def add_results(self, found: Mapping[str, Boundary | Codim2Point | _StartProbeResult | None]) -> None:
        """Add results by their keys, and write the file."""
        with defer_interrupts():
            self._found |= {key: None if there is None else asdict(there) for key, there in found.items()}
            write_atomically(self._path, json.dumps(self._found, indent=1, sort_keys=True))


def _boundary_json_key(row: DiagramRow, change: BranchChange) -> str:
    """Return the key of a boundary in the JSON file of results."""
    return json.dumps([change.kind, change.branches, row.at, *(row.values[n] for n in change.ends)])


def _uncertain_segment_json_key(row: DiagramRow, segment: UncertainBranchSegment) -> str:
    """Return the key of an uncertain segment in the JSON file of results."""
    return json.dumps(
        ["uncertain segment", segment.branch, row.at, *(row.values[n] for n in (segment.inside, *segment.points))]
    )


def _farthest_point_order(values: Sequence[float]) -> list[float]:
    """Return ascending values in another order: both ends first, then always the value farthest from all before."""
    order, left = [*values[:1], *values[:0:-1][:1]], list(values[1:-1])
    while left:
        order.append(max(left, key=lambda v: min(abs(v - known) for known in order)))
        left.remove(order[-1])
    return order


def _codim2_candidate_json_key(candidate: Codim2Candidate) -> str:
    """Return the key of a codimension-2 candidate in the JSON file of results."""
    return json.dumps(
        [candidate.kind, candidate.branches, candidate.pair, *candidate.between, *(r.at for r in candidate.rows)]
    )


def _test_start_reaches_branch(
    problem: Problem, name: str, start: str, places: Sequence[float], seed: int
) -> _StartProbeResult:
    """Test at some values of a parameter whether a start leads to the branch of the same name."""
    accuracy = PhaseDiagramOptions.current().probe_accuracy
    fresh = (Branch(problem, name, start, accuracy, seed, effort=2) for _ in places)
    return _StartProbeResult(
        tuple(branch.solution_at_parameter(value) is not None for branch, value in zip(fresh, places, strict=True))
    )


def _finished_sweep_lines(sweep: Sweep) -> Iterator[tuple[float, str, tuple[Record, ...]]]:
    """Yield, for every finished line of a sweep: value of the second parameter, name of the start, and records."""
    for line, known in sweep.lines():
        if all(n in known for n in range(len(line.points))):
            at = sweep.plan.axes[1].values[line.place[2]]
            yield at, line.start, tuple(known[n] for n in range(len(line.points)))


def _remove_diagram_records(folder: Path) -> None:
    for inner in sorted(folder.glob("level-*")):
        remove_sweep_records(inner)
    for path in [*folder.glob("boundaries-*.json"), folder / "probes.json"]:
        path.unlink(missing_ok=True)


def _parameter_intervals(
    over: Mapping[str, tuple[float, float]],
) -> tuple[tuple[str, float, float], tuple[str, float, float]]:
    """Return both parameters of a phase diagram with their intervals, as (name, low, high).

    Raises:
        InputError: not exactly two parameters, or an invalid interval.
    """
    if len(over) != 2:
        raise InputError(f"a phase diagram needs two parameters with their intervals, and {len(over)} are given")
    found = []
    for name, span in over.items():
        try:
            low, high = sorted(float(v) for v in span)
        except (TypeError, ValueError):
            raise InputError(f"{name} = {span!r} is no interval; give two numbers (low, high)") from None
        if not (np.isfinite([low, high]).all() and low < high):
            raise InputError(f"{name} = {span!r}: the interval is empty or infinite; give two different finite numbers")
        found.append((stored_parameter_name(name), low, high))
    return found[0], found[1]
