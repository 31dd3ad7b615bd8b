"""The plan of a sweep: axes or rows of parameters, starts, and the lines that are its units of work."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import groupby, product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import InputError, require_in_interval, require_known_name, require_whole_number
from ...base.files import absolute_path
from ...branches.grid import values_of_range_or_list
from ...problems.catalogue import STRUCTURAL, model_catalogue
from ...problems.problem import Problem, stored_parameter_name
from ...problems.problem import problem as problem_of
from ...saddle_point.starts import find_start_name

MOST_POINTS = 10_000_000
BYTES_A_POINT = 3000  # approximate size of a record, for two tokens
ASKED = ("solve", "stability", "simulate")
ALL_SIZES = 100
"""A number of sizes that no quadrature rule exceeds."""
_CHUNK = 32  # rows of a table in one line; part of its identity
FORWARD, BACK = "forward", "back"
_PlacedLine = tuple[tuple[int, ...], tuple[Mapping[str, Any], ...], Mapping[str, Any]]
"""The place of a line in the grid, its points, and the parameters that are constant along it."""


@dataclass(frozen=True)
class SweepAxis:
    """An axis of a sweep: the name of a parameter and its values, in the order of continuation."""

    name: str
    values: tuple[float, ...]

    @property
    def parameter_name_for_users(self) -> str:
        """The name of the parameter in the form that users write, such as lambda in place of lambda_."""
        return self.name.rstrip("_")


@dataclass(frozen=True)
class SimulationSettings:
    """The settings of the simulation at every point of a sweep.

    Attributes:
        d: dimension of the samples.
        seeds: number of draws of the data.
        method: method of the simulation, as for `sf.simulate`.
    """

    d: int = 500
    seeds: int = 4
    method: str = "auto"


@dataclass(frozen=True, kw_only=True, eq=False)
class ComputationSettings:
    """The settings of the computation at every point of a sweep.

    Attributes:
        ask: what is computed: solve, stability or simulate.
        seed: seed of sampled quadrature rules.
        simulated: settings of simulations.
        ends: whether the end of a branch on a line is located by bisection, or only bracketed by two points.
        effort: number of quadrature sizes that are tried at a point to reach the accuracy.
    """

    ask: str
    seed: int
    simulated: SimulationSettings
    ends: bool = True
    effort: int = ALL_SIZES

    @property
    def computation_settings_by_name(self) -> dict[str, Any]:
        """The settings of the computation at a point in a dictionary, as keyword arguments by name."""
        return {each.name: getattr(self, each.name) for each in fields(ComputationSettings)}


@dataclass(frozen=True)
class SweepLine(ComputationSettings):
    """A line of a sweep: points that one process computes one after another.

    Attributes:
        number: index of the line in the plan.
        problem: the problem, without the values of parameters that vary along the line.
        points: values of these parameters at every point, in order.
        along: name of the parameter of continuation; None for independent points.
        start, direction: named start and direction of continuation.
        place: indices of start, direction and the values on the other axes; for a table, of start and first row.
        identity: JSON text of everything that determines the results, except accuracy and version.
    """

    number: int
    problem: Problem
    points: tuple[Mapping[str, Any], ...]
    along: str | None
    start: str
    direction: str
    place: tuple[int, ...]
    identity: str

    @property
    def records_file_stem(self) -> str:
        """The name of the file that contains the records of the line, without its extension."""
        return hashlib.sha256(self.identity.encode()).hexdigest()[:20]


@dataclass(frozen=True, eq=False)
class SweepPlan(ComputationSettings):
    """A plan of a sweep, made by `make_sweep_plan`.

    Attributes:
        problem: the problem, without values of the swept parameters.
        axes: axes of a grid, whose lines are along the first axis; empty for a table.
        rows: values of the parameters at every point of a table; empty for a grid.
        starts: named starts.
        accuracy: required accuracy of the overlaps.
        both_ways: whether every line is continued backward as well.
        source: catalogue name or absolute path of the model; None for a model defined in Python.
        sized: problems by their structural sizes (sorted names and values).
    """

    problem: Problem
    axes: tuple[SweepAxis, ...]
    rows: tuple[Mapping[str, Any], ...]
    starts: tuple[str, ...]
    accuracy: float
    both_ways: bool
    source: str | None
    sized: Mapping[tuple[tuple[str, int], ...], Problem]

    @property
    def continuation_directions(self) -> tuple[str, ...]:
        """The directions in which lines of the sweep are continued: forward, and back if both ways are asked for."""
        return (FORWARD, BACK) if self.both_ways else (FORWARD,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an array with all points of the sweep: (starts, directions, values on each axis)."""
        inner = tuple(len(axis.values) for axis in self.axes) if self.axes else (len(self.rows),)
        return (len(self.starts), len(self.continuation_directions), *inner)

    @property
    def point_count(self) -> int:
        """The number of points of the sweep, over all starts and directions."""
        return prod(self.shape)

    @cached_property
    def swept_parameters(self) -> tuple[str, ...]:
        """The names of the parameters that vary from point to point."""
        if self.axes:
            return tuple(axis.name for axis in self.axes)
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    @cached_property
    def settings_that_identify_sweep(self) -> dict[str, Any]:
        """The settings that distinguish this sweep from others, for JSON.

        Accuracy and version of the package are not among them, as each record has its own.
        """
        varied: dict[str, Any] = {axis.parameter_name_for_users: list(axis.values) for axis in self.axes}
        if self.rows:
            varied = {"rows": [_named_parameters_as_json(row) for row in self.rows]}
        return {
            **self._settings_common_to_lines,
            "varied": varied,
            "parameters": _parameters_as_json(self.problem, self.swept_parameters),
            "starts": list(self.starts),
            "both_ways": self.both_ways,
        }

    @cached_property
    def _settings_common_to_lines(self) -> dict[str, Any]:
        common: dict[str, Any] = {"model": self.problem.solver.name, "ask": self.ask, "seed": self.seed}
        if self.ask == "simulate":
            common["simulated"] = vars(self.simulated)
        if not self.ends:
            common["ends"] = False
        if self.effort != ALL_SIZES:
            common["effort"] = self.effort
        return common

    @cached_property
    def lines(self) -> tuple[SweepLine, ...]:
        """The lines of the sweep: one for every start, direction and combination of values on the other axes."""
        placed = self._lines_of_parameter_grid if self.axes else self._lines_of_parameter_table
        every = (
            (start, direction, *each)
            for s, start in enumerate(self.starts)
            for w, direction in enumerate(self.continuation_directions)
            for each in placed(s, w)
        )
        return tuple(self._make_sweep_line(number, *each) for number, each in enumerate(every))

    def index_of_point(self, line: SweepLine, number: int) -> tuple[int, ...]:
        """Return the index of a point in an array with all points of the sweep, see `shape`.

        Args:
            line: line of the point.
            number: index of the point on the line.
        """
        if not self.axes:
            return (line.place[0], 0, line.place[1] + number)
        start, direction, *others = line.place
        along = len(line.points) - 1 - number if line.direction == BACK else number
        return (start, direction, along, *others)

    def swept_values_of_point(self, index: Sequence[int]) -> dict[str, Any]:
        """Return the values of the swept parameters at a point, from its indices on the axes or its table row."""
        if not self.axes:
            return dict(self.rows[index[0]])
        return {axis.name: axis.values[i] for axis, i in zip(self.axes, index, strict=True)}

    def problem_with_values(self, values: Mapping[str, Any]) -> Problem:
        """Return the problem of the sweep with given values of swept parameters and structural sizes."""
        sizes = _swept_structural_sizes(values)
        base = self.sized[sizes] if sizes else self.problem
        changes = {name: value for name, value in values.items() if name not in STRUCTURAL}
        return base.with_(**changes) if changes else base

    def _lines_of_parameter_grid(self, s: int, w: int) -> Iterator[_PlacedLine]:
        first, *others = self.axes
        values = first.values[::-1] if self.continuation_directions[w] == BACK else first.values
        points = tuple({first.name: value} for value in values)
        for index in np.ndindex(*(len(axis.values) for axis in others)):
            fixed = {axis.name: axis.values[i] for axis, i in zip(others, index, strict=True)}
            yield (s, w, *index), points, fixed

    def _lines_of_parameter_table(self, s: int, w: int) -> Iterator[_PlacedLine]:
        offset = 0
        for sizes, group in groupby(self.rows, _swept_structural_sizes):
            points = [{k: v for k, v in row.items() if k not in STRUCTURAL} for row in group]
            for first in range(0, len(points), _CHUNK):
                yield (s, offset + first), tuple(points[first : first + _CHUNK]), dict(sizes)
            offset += len(points)

    def _make_sweep_line(
        self,
        number: int,
        start: str,
        direction: str,
        place: tuple[int, ...],
        points: tuple[Mapping[str, Any], ...],
        fixed: Mapping[str, Any],
    ) -> SweepLine:
        at = self.problem_with_values(fixed)
        varied = tuple(dict.fromkeys(name for point in points for name in point))
        identity = {
            **self._settings_common_to_lines,
            "digest": at.solver.physics_digest,
            "solver": at.solver.solver_files_digest,
            "parameters": _parameters_as_json(at, varied),
            "points": [_named_parameters_as_json(point) for point in points],
            "start": start,
        }
        along = self.axes[0].name if self.axes and self.ask != "simulate" else None
        text = json.dumps(identity, sort_keys=True, ensure_ascii=False)
        return SweepLine(number, at, points, along, start, direction, place, text, **self.computation_settings_by_name)


def make_sweep_plan(
    model: Any,
    *,
    grid: Mapping[str, Any] | None,
    rows: Sequence[Mapping[str, Any]] | None,
    starts: Sequence[str] | None,
    accuracy: float,
    both_ways: bool,
    given: Mapping[str, Any],
    **asked: Any,
) -> SweepPlan:
    """Return a plan of a sweep, after checking all its settings.

    Args:
        model: a problem, a catalogue name or a path.
        grid: parameters and their ranges, as for `sf.sweep`; None if rows are given.
        rows: values of the parameters at every point; None if a grid is given.
        starts: named starts; None for the default one.
        accuracy: required accuracy of the overlaps.
        both_ways: whether every line is continued backward as well.
        given: values of parameters that are the same at all points.
        asked: settings of the computation, see `ComputationSettings`.

    Raises:
        InputError: an unknown name, an empty range, or a value out of range or too large.
    """
    if bool(grid) == bool(rows):
        several = next((name for name, value in given.items() if isinstance(value, list | tuple)), "")
        example = f"{{{several!r}: {given[several]!r}}}" if several else "{'alpha': (3, 0.5, 40)}"
        raise InputError(
            f"a sweep needs either grid={example}, or points, a list of dictionaries of parameters: give one of them"
        )
    wanted = ComputationSettings(**asked)
    require_known_name("value", wanted.ask, ASKED, "ask")
    require_in_interval("accuracy", accuracy, "(0, 1)")
    if both_ways and (rows or wanted.ask == "simulate"):
        raise InputError(
            "both_ways continues branches in two directions, which is possible only for a grid and ask = solve or "
            "stability: leave it out"
        )
    require_whole_number("d", wanted.simulated.d, 1)
    require_whole_number("seeds", wanted.simulated.seeds, 1)
    counts = [_count_values_on_sweep_axis(name, span) for name, span in (grid or {}).items()] or [len(rows or ())]
    starts = list(dict.fromkeys(starts or ()))
    total = prod(counts) * max(1, len(starts)) * (1 + both_ways)
    if total > MOST_POINTS:
        raise InputError(
            f"a grid of {' x '.join(map(str, counts))}, {total:.3g} points in all, is too large: its records would "
            f"take about {BYTES_A_POINT * total / 1e9:.3g} GB; allowed are {MOST_POINTS} points, so divide it into "
            "several sweeps"
        )
    axes = tuple(
        SweepAxis(stored_parameter_name(name), _values_on_sweep_axis(name, span)) for name, span in (grid or {}).items()
    )
    table = tuple({stored_parameter_name(name): value for name, value in row.items()} for row in rows or ())
    swept = [axis.name for axis in axes] or list(dict.fromkeys(name for row in table for name in row))
    if len(set(swept)) < len(swept):
        raise InputError(f"a parameter is swept twice among {', '.join(swept)}; give each parameter once")
    base = _problem_without_swept_parameters(model, swept, given)
    sized = _problems_by_structural_sizes(model, given, axes, table)
    chosen = tuple(dict.fromkeys(find_start_name(base, start) for start in starts or (None,)))
    source = _model_name_or_path(model, base)
    plan = SweepPlan(base, axes, table, chosen, accuracy, both_ways, source, sized, **asked)
    _check_swept_parameter_values(plan)
    return plan


def sweep_plan_from_saved_settings(identity: Mapping[str, Any]) -> SweepPlan:
    """Return the plan of a sweep from the settings that are saved in the folder of its records.

    Raises:
        InputError: the model is not found, or has changed.
    """
    if identity.get("source") is None:
        raise InputError(
            "the model of this sweep was defined in a Python script and cannot be found by name; run that script again "
            "with the same output: finished points are read from the records"
        )
    varied = dict(identity["varied"])
    rows = varied.pop("rows", None)
    return make_sweep_plan(
        identity["source"],
        grid=varied or None,
        rows=rows,
        starts=identity["starts"],
        ask=identity["ask"],
        accuracy=1e-3,
        both_ways=identity["both_ways"],
        seed=identity["seed"],
        simulated=SimulationSettings(**identity.get("simulated", {})),
        given={name: value for name, value in identity["parameters"].items() if value is not None},
        ends=identity.get("ends", True),
        effort=identity.get("effort", ALL_SIZES),
    )


def _model_name_or_path(model: Any, base: Problem) -> str | None:
    if isinstance(model, Problem):
        return base.solver.name if base.solver.name in model_catalogue() else None
    if not isinstance(model, str | Path):
        return None
    return str(model) if str(model) in model_catalogue() else str(absolute_path(model))


def _problem_without_swept_parameters(model: Any, swept: Sequence[str], given: Mapping[str, Any]) -> Problem:
    for name in given:
        if stored_parameter_name(name) in swept:
            raise InputError(f"{name} is both given a value and swept; leave one of them out")
    if isinstance(model, Problem):
        return model.with_(**given) if given else model
    return problem_of(model, **given)


def _problems_by_structural_sizes(
    model: Any, given: Mapping[str, Any], axes: Sequence[SweepAxis], rows: Sequence[Mapping[str, Any]]
) -> dict[tuple[tuple[str, int], ...], Problem]:
    """Return a problem for every combination of structural sizes in the sweep, by these sizes."""
    if axes and axes[0].name in STRUCTURAL:
        raise InputError(
            f"the first axis, {axes[0].name}, is a structural size, along which no branch can be followed; "
            "put another axis first"
        )
    choices = {axis.name: axis.values for axis in axes if axis.name in STRUCTURAL}
    every = rows or [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    wanted = dict.fromkeys(filter(None, map(_swept_structural_sizes, every)))
    if wanted and isinstance(model, Problem):
        raise InputError(
            "a problem has fixed structural sizes; to sweep them give the name of the model or the path of its file"
        )
    return {sizes: problem_of(model, **{**given, **dict(sizes)}) for sizes in wanted}


def _check_swept_parameter_values(plan: SweepPlan) -> None:
    """Raise InputError if a value of a swept parameter is not allowed, or a parameter of the model has no value."""
    first = next(iter(plan.sized.values()), plan.problem)
    scalars = [axis for axis in plan.axes if axis.name not in STRUCTURAL]
    for axis in scalars:
        for value in axis.values:
            first.with_(**{axis.name: value})
    if plan.axes:
        first.require_scalar_parameters(*(axis.name for axis in scalars))
    for row in plan.rows:
        _ = plan.problem_with_values(row).alpha


def _count_values_on_sweep_axis(name: str, span: Any) -> int:
    """Return the number of values on an axis of a sweep, without computing the values of a range."""
    if isinstance(span, tuple) and len(span) == 3 and isinstance(span[2], int | float | np.number):
        count = float(span[2])
        if count.is_integer():
            return max(int(count), 0)
    return len(values_of_range_or_list(name, span))


def _values_on_sweep_axis(name: str, span: Any) -> tuple[float, ...]:
    """Return the values on an axis of a sweep, given as (first, last), (first, last, count) or a list.

    Raises:
        InputError: the axis has no value, a duplicate, or a value that is not a finite number.
    """
    if _count_values_on_sweep_axis(name, span) < 1:
        raise InputError(f"{name} = {span!r} contains no value; give at least one")
    values = values_of_range_or_list(name, span).tolist()
    if not np.isfinite(values).all():
        raise InputError(f"{name} = {span!r}: every value must be a finite number")
    if len(set(values)) < len(values):
        raise InputError(f"{name} = {span!r}: the range contains a value twice; give {len(values)} different values")
    if name in STRUCTURAL:
        if any(not value.is_integer() for value in values):
            raise InputError(f"{name} = {span!r}: the values of a size of the model must be whole numbers")
        return tuple(int(value) for value in values)
    return tuple(values)


def _swept_structural_sizes(values: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, int(value)) for name, value in values.items() if name in STRUCTURAL))


def _parameters_as_json(problem: Problem, without: Sequence[str]) -> dict[str, Any]:
    """Return the values of a problem's parameters for JSON, by name, without some of them.

    Args:
        problem: the problem.
        without: names of the parameters to leave out.
    """
    values: dict[str, Any] = {
        "alpha": problem.sample_complexity,
        **problem.parameters,
        **problem.parameter_lines_for_json,
    }
    values |= {"inverse_temperature": problem.inverse_temperature, "spectrum": problem.spectrum}
    if problem.given_law is not None:
        values["law"] = [getattr(problem.given_law, each.name) for each in fields(problem.given_law)]
    values |= problem.solver.structural_sizes
    return _named_parameters_as_json({name: value for name, value in values.items() if name not in without})


def _named_parameters_as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of parameters for JSON, by the names that users write."""
    named = {name.rstrip("_"): value for name, value in values.items()}
    return json.loads(json.dumps(named, default=lambda value: value.tolist()))
