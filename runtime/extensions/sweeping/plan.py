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

from ...base.errors import InputError, require_in, require_known, require_whole
from ...base.files import absolute_path
from ...branches.grid import grid_values
from ...problems.catalogue import STRUCTURAL, catalogue
from ...problems.problem import Problem, parameter_name
from ...problems.problem import problem as problem_of
from ...saddle_point.starts import default_start

MOST_POINTS = 10_000_000
BYTES_A_POINT = 3000  # of records, about, for two tokens
ASKED = ("solve", "stability", "simulate")
ALL_SIZES = 100
"""A number of sizes that no rule exceeds."""
_CHUNK = 32  # rows of a table in one line; part of its identity
FORWARD, BACK = "forward", "back"
_PlacedLine = tuple[tuple[int, ...], tuple[Mapping[str, Any], ...], Mapping[str, Any]]
"""The place of a line, its points, and the parameters fixed along it."""


@dataclass(frozen=True)
class Axis:
    """An axis: a parameter and its values, in the order of continuation."""

    name: str
    values: tuple[float, ...]

    @property
    def shown(self) -> str:
        """The name as users write it."""
        return self.name.rstrip("_")


@dataclass(frozen=True)
class SimulationSettings:
    """The settings of simulations at every point.

    Attributes:
        d: dimension of the embeddings; seeds: number of draws of the data; method: as for `sf.simulate`.
    """

    d: int = 500
    seeds: int = 4
    method: str = "auto"


@dataclass(frozen=True, kw_only=True, eq=False)
class ComputationSettings:
    """The settings of the computation at every point.

    Attributes:
        ask: solve, stability or simulate; seed: as for `solve`; simulated: settings of `simulate`.
        ends: whether the end of a lost branch is bisected; else it is known between two points.
        effort: number of sizes of a quadrature rule that are tried at a point that misses the accuracy.
    """

    ask: str
    seed: int
    simulated: SimulationSettings
    ends: bool = True
    effort: int = ALL_SIZES

    @property
    def asked(self) -> dict[str, Any]:
        """These settings by name, as arguments of another object."""
        return {each.name: getattr(self, each.name) for each in fields(ComputationSettings)}


@dataclass(frozen=True)
class Line(ComputationSettings):
    """A line: points that one process computes one after another.

    Attributes:
        number: its index among the lines of the plan.
        problem: the problem without the values that vary along the line.
        points: varying values, in order; along: the parameter of continuation; None for independent points.
        place: indices of start, direction and the other axes, or of its first row.
        identity: all that its results depend on but accuracy and version, as JSON.
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
    def key(self) -> str:
        """The name of the file of its records."""
        return hashlib.sha256(self.identity.encode()).hexdigest()[:20]


@dataclass(frozen=True, eq=False)
class Plan(ComputationSettings):
    """A plan of a sweep; `make_plan` makes it.

    Attributes:
        problem: the problem without the swept parameters.
        axes: axes of a grid, the first one along lines; or rows: assignments of parameters, one a point.
        sized: problems by their structural sizes (sorted names and values).
        accuracy: as for `solve`.
        both_ways: whether every line is continued backward as well.
        source: catalogue name or absolute path of the model; None for an object.
    """

    problem: Problem
    axes: tuple[Axis, ...]
    rows: tuple[Mapping[str, Any], ...]
    starts: tuple[str, ...]
    accuracy: float
    both_ways: bool
    source: str | None
    sized: Mapping[tuple[tuple[str, int], ...], Problem]

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions in which lines are continued."""
        return (FORWARD, BACK) if self.both_ways else (FORWARD,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers of starts, directions, and values of the axes, or of rows of a table."""
        inner = tuple(len(axis.values) for axis in self.axes) if self.axes else (len(self.rows),)
        return (len(self.starts), len(self.directions), *inner)

    @property
    def size(self) -> int:
        """The number of points."""
        return prod(self.shape)

    @cached_property
    def swept(self) -> tuple[str, ...]:
        """The names of the swept parameters."""
        if self.axes:
            return tuple(axis.name for axis in self.axes)
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The identity of this sweep; accuracy and version are fields of its records."""
        varied: dict[str, Any] = {axis.shown: list(axis.values) for axis in self.axes}
        if self.rows:
            varied = {"rows": [_as_json(row) for row in self.rows]}
        return {
            **self._common_identity,
            "varied": varied,
            "parameters": _parameters_as_json(self.problem, self.swept),
            "starts": list(self.starts),
            "both_ways": self.both_ways,
        }

    @cached_property
    def _common_identity(self) -> dict[str, Any]:
        common: dict[str, Any] = {"model": self.problem.solver.name, "ask": self.ask, "seed": self.seed}
        if self.ask == "simulate":
            common["simulated"] = vars(self.simulated)
        if not self.ends:
            common["ends"] = False
        if self.effort != ALL_SIZES:
            common["effort"] = self.effort
        return common

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """The lines: one for every start, direction and combination of the other axes, or for consecutive rows."""
        placed = self._grid_lines if self.axes else self._table_lines
        every = (
            (start, direction, *each)
            for s, start in enumerate(self.starts)
            for w, direction in enumerate(self.directions)
            for each in placed(s, w)
        )
        return tuple(self._make_line(number, *each) for number, each in enumerate(every))

    def index_of(self, line: Line, number: int) -> tuple[int, ...]:
        """Return the index of a point in arrays of `shape`.

        Args:
            line: its line.
            number: its index on the line.
        """
        if not self.axes:
            return (line.place[0], 0, line.place[1] + number)
        start, direction, *others = line.place
        along = len(line.points) - 1 - number if line.direction == BACK else number
        return (start, direction, along, *others)

    def values_at(self, index: Sequence[int]) -> dict[str, Any]:
        """Return the swept values at the indices of the axes (or of the row)."""
        if not self.axes:
            return dict(self.rows[index[0]])
        return {axis.name: axis.values[i] for axis, i in zip(self.axes, index, strict=True)}

    def problem_at(self, values: Mapping[str, Any]) -> Problem:
        """Return the problem with these values, which may include sizes."""
        sizes = _structural_sizes(values)
        base = self.sized[sizes] if sizes else self.problem
        changes = {name: value for name, value in values.items() if name not in STRUCTURAL}
        return base.with_(**changes) if changes else base

    def _grid_lines(self, s: int, w: int) -> Iterator[_PlacedLine]:
        first, *others = self.axes
        values = first.values[::-1] if self.directions[w] == BACK else first.values
        points = tuple({first.name: value} for value in values)
        for index in np.ndindex(*(len(axis.values) for axis in others)):
            fixed = {axis.name: axis.values[i] for axis, i in zip(others, index, strict=True)}
            yield (s, w, *index), points, fixed

    def _table_lines(self, s: int, w: int) -> Iterator[_PlacedLine]:
        offset = 0
        for sizes, group in groupby(self.rows, _structural_sizes):
            points = [{k: v for k, v in row.items() if k not in STRUCTURAL} for row in group]
            for first in range(0, len(points), _CHUNK):
                yield (s, offset + first), tuple(points[first : first + _CHUNK]), dict(sizes)
            offset += len(points)

    def _make_line(
        self,
        number: int,
        start: str,
        direction: str,
        place: tuple[int, ...],
        points: tuple[Mapping[str, Any], ...],
        fixed: Mapping[str, Any],
    ) -> Line:
        at = self.problem_at(fixed)
        varied = tuple(dict.fromkeys(name for point in points for name in point))
        identity = {
            **self._common_identity,
            "digest": at.solver.digest,
            "solver": at.solver.files_digest,
            "parameters": _parameters_as_json(at, varied),
            "points": [_as_json(point) for point in points],
            "start": start,
        }
        along = self.axes[0].name if self.axes and self.ask != "simulate" else None
        text = json.dumps(identity, sort_keys=True, ensure_ascii=False)
        return Line(number, at, points, along, start, direction, place, text, **self.asked)


def make_plan(
    model: Any,
    *,
    grid: Mapping[str, Any] | None,
    rows: Sequence[Mapping[str, Any]] | None,
    starts: Sequence[str] | None,
    accuracy: float,
    both_ways: bool,
    given: Mapping[str, Any],
    **asked: Any,
) -> Plan:
    """Return a plan, checked before anything is computed.

    Args:
        model: a problem, a catalogue name or a path.
        grid: parameters and their ranges, as for `sf.sweep`; or rows: assignments of parameters.
        rows: assignments of parameters, one a point.
        starts: named starts; None for the default one.
        accuracy: as for `solve`.
        both_ways: whether every line is continued backward as well.
        given: values of parameters for all points.
        asked: settings of the computation, see `ComputationSettings`.

    Raises:
        InputError: an unknown name, an empty range, or a value out of range or too large.
    """
    if bool(grid) == bool(rows):
        several = next((name for name, value in given.items() if isinstance(value, list | tuple)), "")
        example = f"{{{several!r}: {given[several]!r}}}" if several else "{'alpha': (3, 0.5, 40)}"
        raise InputError(f"grid={example}, or points, rows of parameters: give one of them")
    wanted = ComputationSettings(**asked)
    require_known("value", wanted.ask, ASKED, "ask")
    require_in("accuracy", accuracy, "(0, 1)")
    if both_ways and (rows or wanted.ask == "simulate"):
        raise InputError("both_ways goes with a grid and ask = solve or stability, as it follows a branch")
    require_whole("d", wanted.simulated.d, 1)
    require_whole("seeds", wanted.simulated.seeds, 1)
    counts = [_count_values(name, span) for name, span in (grid or {}).items()] or [len(rows or ())]
    starts = list(dict.fromkeys(starts or ()))
    total = prod(counts) * max(1, len(starts)) * (1 + both_ways)
    if total > MOST_POINTS:
        raise InputError(
            f"a grid of {' x '.join(map(str, counts))}, {total:.3g} points in all, is too large: records would take "
            f"about {BYTES_A_POINT * total / 1e9:.3g} GB; allowed are {MOST_POINTS} points, so divide it"
        )
    axes = tuple(Axis(parameter_name(name), _axis_values(name, span)) for name, span in (grid or {}).items())
    table = tuple({parameter_name(name): value for name, value in row.items()} for row in rows or ())
    swept = [axis.name for axis in axes] or list(dict.fromkeys(name for row in table for name in row))
    if len(set(swept)) < len(swept):
        raise InputError("a parameter is swept twice; give each once")
    base = _base_problem(model, swept, given)
    for start in starts:
        require_known("start", start, base.solver.model.STARTS, base.solver.name)
    sized = _problems_by_size(model, given, axes, table)
    chosen = tuple(starts) or (default_start(base),)
    source = _model_source(model, base)
    plan = Plan(base, axes, table, chosen, accuracy, both_ways, source, sized, **asked)
    _check_values(plan)
    return plan


def plan_from_identity(identity: Mapping[str, Any]) -> Plan:
    """Return the plan with the identity and source that the folder of a sweep contains.

    Raises:
        InputError: the model is not found, or has changed.
    """
    if identity.get("source") is None:
        raise InputError("the model of this sweep is an object of a script: run that again, and it collects")
    varied = dict(identity["varied"])
    rows = varied.pop("rows", None)
    return make_plan(
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


def _model_source(model: Any, base: Problem) -> str | None:
    if isinstance(model, Problem):
        return base.solver.name if base.solver.name in catalogue() else None
    if not isinstance(model, str | Path):
        return None
    return str(model) if str(model) in catalogue() else str(absolute_path(model))


def _base_problem(model: Any, swept: Sequence[str], given: Mapping[str, Any]) -> Problem:
    for name in given:
        if parameter_name(name) in swept:
            raise InputError(f"{name} is given a value and swept; leave one out")
    if isinstance(model, Problem):
        return model.with_(**given) if given else model
    return problem_of(model, **given)


def _problems_by_size(
    model: Any, given: Mapping[str, Any], axes: Sequence[Axis], rows: Sequence[Mapping[str, Any]]
) -> dict[tuple[tuple[str, int], ...], Problem]:
    """Return a problem for every swept combination of structural sizes."""
    if axes and axes[0].name in STRUCTURAL:
        raise InputError(f"{axes[0].name} is a structural size: no branch goes along it; let another axis come first")
    choices = {axis.name: axis.values for axis in axes if axis.name in STRUCTURAL}
    every = rows or [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    wanted = dict.fromkeys(filter(None, map(_structural_sizes, every)))
    if wanted and isinstance(model, Problem):
        raise InputError("sizes are swept by the name of a model or the path of its file, not by a problem")
    return {sizes: problem_of(model, **{**given, **dict(sizes)}) for sizes in wanted}


def _check_values(plan: Plan) -> None:
    """Check that every value is allowed, and that no parameter is missing."""
    first = next(iter(plan.sized.values()), plan.problem)
    scalars = [axis for axis in plan.axes if axis.name not in STRUCTURAL]
    for axis in scalars:
        for value in axis.values:
            first.with_(**{axis.name: value})
    if plan.axes:
        first.require_scalar_parameters(*(axis.name for axis in scalars))
    for row in plan.rows:
        _ = plan.problem_at(row).alpha


def _count_values(name: str, span: Any) -> int:
    """Return the number of values of a span, without building the grid of (first, last, count)."""
    if isinstance(span, tuple) and len(span) == 3 and isinstance(span[2], int | float | np.number):
        count = float(span[2])
        if count.is_integer():
            return max(int(count), 0)
    return len(grid_values(name, span))


def _axis_values(name: str, span: Any) -> tuple[float, ...]:
    """Return the values of (first, last), (first, last, count) or a list, in order.

    Raises:
        InputError: no value, a duplicate or a value that is no number.
    """
    if _count_values(name, span) < 1:
        raise InputError(f"{name} = {span!r}: the range is empty; at least one value is expected")
    values = grid_values(name, span).tolist()
    if not np.isfinite(values).all():
        raise InputError(f"{name} = {span!r}: finite numbers are expected")
    if len(set(values)) < len(values):
        raise InputError(f"{name} = {span!r}: the range is empty or a value stands twice; {len(values)} are expected")
    if name in STRUCTURAL:
        if any(not value.is_integer() for value in values):
            raise InputError(f"{name} = {span!r}: whole numbers are expected")
        return tuple(int(value) for value in values)
    return tuple(values)


def _structural_sizes(values: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, int(value)) for name, value in values.items() if name in STRUCTURAL))


def _parameters_as_json(problem: Problem, without: Sequence[str]) -> dict[str, Any]:
    """Return all parameters of a problem as JSON, without some names."""
    values: dict[str, Any] = {"alpha": problem.sample_complexity, **problem.parameters, **problem.line_parameters}
    values |= {"inverse_temperature": problem.inverse_temperature, "spectrum": problem.spectrum}
    if problem.given_law is not None:
        values["law"] = [getattr(problem.given_law, each.name) for each in fields(problem.given_law)]
    values |= problem.solver.structure
    return _as_json({name: value for name, value in values.items() if name not in without})


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters by the names that users write, as JSON."""
    named = {name.rstrip("_"): value for name, value in values.items()}
    return json.loads(json.dumps(named, default=lambda value: value.tolist()))
