"""What a sweep computes: axes or rows of parameters, starts, and the lines that are its units of work."""

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
from ...base.files import absolute
from ...branches.grid import grid_of
from ...problems.catalogue import STRUCTURAL, catalogue
from ...problems.problem import Problem, parameter_name
from ...problems.problem import problem as problem_of
from ...saddle_point.starts import default_start

MOST_POINTS = 10_000_000
BYTES_A_POINT = 3000  # of records, about, where there are two tokens
ASKED = ("solve", "stability", "simulate")
ALL_SIZES = 100
"""More sizes than any rule has."""
_CHUNK = 32  # rows of a table that are a line
FORWARD, BACK = "forward", "back"
_Placed = tuple[tuple[int, ...], tuple[Mapping[str, Any], ...], Mapping[str, Any]]
"""The place of a line, its points, and what else is fixed along it."""


@dataclass(frozen=True)
class Axis:
    """A parameter and its values, in the order in which they are gone along."""

    name: str
    values: tuple[float, ...]

    @property
    def shown(self) -> str:
        """The name as users write it."""
        return self.name.rstrip("_")


@dataclass(frozen=True)
class Simulated:
    """What `simulate` does at a point.

    Attributes:
        d: dimension of the embeddings; seeds: how many draws of the data, from 0 on; method: as of `sf.simulate`.
    """

    d: int = 500
    seeds: int = 4
    method: str = "auto"


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """The settings of the computation at every point.

    Attributes:
        ask: solve, stability or simulate; seed: as of `solve`; simulated: what `simulate` does.
        ends: whether lines bisect where they lose their branch; else they say between which points.
        effort: how many sizes of a rule a point that misses the accuracy is tried with.
    """

    ask: str
    seed: int
    simulated: Simulated
    ends: bool = True
    effort: int = ALL_SIZES

    @property
    def asked(self) -> dict[str, Any]:
        """These attributes by name, for another of the kind."""
        return {each.name: getattr(self, each.name) for each in fields(Asked)}


@dataclass(frozen=True)
class Line(Asked):
    """Points that one process goes through one after another.

    Attributes:
        number: its place among the lines of the plan.
        problem: with everything but what varies along the line.
        points: values of what varies, in order; along: the parameter where each begins from its neighbour, else None.
        place: indices of start, direction and the other axes, or of its first row.
        identity: what its results depend on beside accuracy and version, as JSON.
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
        """Names the file of its records."""
        return hashlib.sha256(self.identity.encode()).hexdigest()[:20]


@dataclass(frozen=True, eq=False)
class Plan(Asked):
    """A sweep as it was asked for; `planned` checks it.

    Attributes:
        problem: what is not swept.
        axes: outer product of these, the first one along lines; or rows: assignments of parameters, one a point.
        sized: structural sizes (sorted names and values) -> the problem of these sizes.
        accuracy: as of `solve`.
        both_ways: whether every line is gone back, too.
        source: catalogue name or absolute path by which the model is found again; None where it is an object.
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
        """In which lines are gone along."""
        return (FORWARD, BACK) if self.both_ways else (FORWARD,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Starts, directions, and the axes; of a table its rows in place of these."""
        inner = tuple(len(axis.values) for axis in self.axes) if self.axes else (len(self.rows),)
        return (len(self.starts), len(self.directions), *inner)

    @property
    def size(self) -> int:
        """How many points there are."""
        return prod(self.shape)

    @cached_property
    def swept(self) -> tuple[str, ...]:
        """Names of what varies."""
        if self.axes:
            return tuple(axis.name for axis in self.axes)
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What tells this sweep from another one; accuracy and version are fields of its records."""
        varied: dict[str, Any] = {axis.shown: list(axis.values) for axis in self.axes}
        if self.rows:
            varied = {"rows": [_plain(row) for row in self.rows]}
        return {
            **self._common,
            "varied": varied,
            "parameters": _parameters(self.problem, self.swept),
            "starts": list(self.starts),
            "both_ways": self.both_ways,
        }

    @cached_property
    def _common(self) -> dict[str, Any]:
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
        """Every start, direction and combination of the other axes; of a table, consecutive rows of one structure."""
        placed = self._along if self.axes else self._chunks
        every = (
            (start, direction, *each)
            for s, start in enumerate(self.starts)
            for w, direction in enumerate(self.directions)
            for each in placed(s, w)
        )
        return tuple(self._line(number, *each) for number, each in enumerate(every))

    def index_of(self, line: Line, number: int) -> tuple[int, ...]:
        """Where a point of a line stands in arrays of `shape`."""
        if not self.axes:
            return (line.place[0], 0, line.place[1] + number)
        start, direction, *others = line.place
        along = len(line.points) - 1 - number if line.direction == BACK else number
        return (start, direction, along, *others)

    def values_at(self, index: Sequence[int]) -> dict[str, Any]:
        """What varies, at the indices of the axes (or of the row)."""
        if not self.axes:
            return dict(self.rows[index[0]])
        return {axis.name: axis.values[i] for axis, i in zip(self.axes, index, strict=True)}

    def problem_at(self, values: Mapping[str, Any]) -> Problem:
        """The problem with these values, sizes among them."""
        sizes = _sizes(values)
        base = self.sized[sizes] if sizes else self.problem
        changes = {name: value for name, value in values.items() if name not in STRUCTURAL}
        return base.with_(**changes) if changes else base

    def _along(self, s: int, w: int) -> Iterator[_Placed]:
        first, *others = self.axes
        values = first.values[::-1] if self.directions[w] == BACK else first.values
        points = tuple({first.name: value} for value in values)
        for index in np.ndindex(*(len(axis.values) for axis in others)):
            fixed = {axis.name: axis.values[i] for axis, i in zip(others, index, strict=True)}
            yield (s, w, *index), points, fixed

    def _chunks(self, s: int, w: int) -> Iterator[_Placed]:
        begun = 0
        for sizes, own in groupby(self.rows, _sizes):
            points = [{k: v for k, v in row.items() if k not in STRUCTURAL} for row in own]
            for first in range(0, len(points), _CHUNK):
                yield (s, begun + first), tuple(points[first : first + _CHUNK]), dict(sizes)
            begun += len(points)

    def _line(
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
            **self._common,
            "digest": at.solver.digest,
            "solver": at.solver.files_digest,
            "parameters": _parameters(at, varied),
            "points": [_plain(point) for point in points],
            "start": start,
        }
        along = self.axes[0].name if self.axes and self.ask != "simulate" else None
        text = json.dumps(identity, sort_keys=True, ensure_ascii=False)
        return Line(number, at, points, along, start, direction, place, text, **self.asked)


def planned(
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
    """A plan, checked before anything is computed; its arguments are those of `sf.sweep`.

    Args:
        given: values of parameters for all points; asked: what is computed there, see `Asked`.

    Raises:
        InputError: something unknown, empty, out of range or too large.
    """
    if bool(grid) == bool(rows):
        several = next((name for name, value in given.items() if isinstance(value, list | tuple)), "")
        example = f"{{{several!r}: {given[several]!r}}}" if several else "{'alpha': (3, 0.5, 40)}"
        raise InputError(f"grid={example}, or points, rows of parameters: give one of them")
    wanted = Asked(**asked)
    require_known("value", wanted.ask, ASKED, "ask")
    require_in("accuracy", accuracy, "(0, 1)")
    if both_ways and (rows or wanted.ask == "simulate"):
        raise InputError("both_ways goes with a grid and ask = solve or stability, as it follows a branch")
    require_whole("d", wanted.simulated.d, 1)
    require_whole("seeds", wanted.simulated.seeds, 1)
    counts = [_count(name, span) for name, span in (grid or {}).items()] or [len(rows or ())]
    starts = list(dict.fromkeys(starts or ()))
    total = prod(counts) * max(1, len(starts)) * (1 + both_ways)
    if total > MOST_POINTS:
        raise InputError(
            f"a grid of {' x '.join(map(str, counts))}, {total:.3g} points in all, is too large: records would take "
            f"about {BYTES_A_POINT * total / 1e9:.3g} GB; allowed are {MOST_POINTS} points, so divide it"
        )
    axes = tuple(Axis(parameter_name(name), _values(name, span)) for name, span in (grid or {}).items())
    table = tuple({parameter_name(name): value for name, value in row.items()} for row in rows or ())
    swept = [axis.name for axis in axes] or list(dict.fromkeys(name for row in table for name in row))
    if len(set(swept)) < len(swept):
        raise InputError("a parameter is swept twice; give each once")
    base = _base(model, swept, given)
    for start in starts:
        require_known("start", start, base.solver.model.STARTS, base.solver.name)
    sized = _of_sizes(model, given, axes, table)
    begun = tuple(starts) or (default_start(base),)
    source = _source(model, base)
    plan = Plan(base, axes, table, begun, accuracy, both_ways, source, sized, **asked)
    _check_values(plan)
    return plan


def plan_of(said: Mapping[str, Any]) -> Plan:
    """The plan whose identity and source the folder of a sweep holds.

    Raises:
        InputError: the model is not found again, or is another one now.
    """
    if said.get("source") is None:
        raise InputError("the model of this sweep is an object of a script: run that again, and it collects")
    varied = dict(said["varied"])
    rows = varied.pop("rows", None)
    return planned(
        said["source"],
        grid=varied or None,
        rows=rows,
        starts=said["starts"],
        ask=said["ask"],
        accuracy=1e-3,
        both_ways=said["both_ways"],
        seed=said["seed"],
        simulated=Simulated(**said.get("simulated", {})),
        given={name: value for name, value in said["parameters"].items() if value is not None},
        ends=said.get("ends", True),
        effort=said.get("effort", ALL_SIZES),
    )


def _source(model: Any, base: Problem) -> str | None:
    if isinstance(model, Problem):
        return base.solver.name if base.solver.name in catalogue() else None
    if not isinstance(model, str | Path):
        return None
    return str(model) if str(model) in catalogue() else str(absolute(model))


def _base(model: Any, swept: Sequence[str], given: Mapping[str, Any]) -> Problem:
    for name in given:
        if parameter_name(name) in swept:
            raise InputError(f"{name} is given a value and swept; leave one out")
    if isinstance(model, Problem):
        return model.with_(**given) if given else model
    return problem_of(model, **given)


def _of_sizes(
    model: Any, given: Mapping[str, Any], axes: Sequence[Axis], rows: Sequence[Mapping[str, Any]]
) -> dict[tuple[tuple[str, int], ...], Problem]:
    """A problem for every combination of structural sizes that is swept."""
    if axes and axes[0].name in STRUCTURAL:
        raise InputError(f"{axes[0].name} is a structural size: no branch goes along it; let another axis come first")
    choices = {axis.name: axis.values for axis in axes if axis.name in STRUCTURAL}
    every = rows or [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    wanted = dict.fromkeys(filter(None, map(_sizes, every)))
    if wanted and isinstance(model, Problem):
        raise InputError("sizes are swept by the name of a model or the path of its file, not by a problem")
    return {sizes: problem_of(model, **{**given, **dict(sizes)}) for sizes in wanted}


def _check_values(plan: Plan) -> None:
    """That every value is allowed by itself, and that nothing is left open."""
    first = next(iter(plan.sized.values()), plan.problem)
    scalars = [axis for axis in plan.axes if axis.name not in STRUCTURAL]
    for axis in scalars:
        for value in axis.values:
            first.with_(**{axis.name: value})
    if plan.axes:
        first.check_varied(*(axis.name for axis in scalars))
    for row in plan.rows:
        _ = plan.problem_at(row).alpha


def _count(name: str, span: Any) -> int:
    """Return how many values a span has; no grid is built to count those of (first, last, count)."""
    if isinstance(span, tuple) and len(span) == 3 and isinstance(span[2], int | float | np.number):
        count = float(span[2])
        if count.is_integer():
            return max(int(count), 0)
    return len(grid_of(name, span))


def _values(name: str, span: Any) -> tuple[float, ...]:
    """Of (first, last) or (first, last, count), in that order, or a list.

    Raises:
        InputError: none, one that is there twice or is no number.
    """
    if _count(name, span) < 1:
        raise InputError(f"{name} = {span!r}: the range is empty; at least one value is expected")
    values = grid_of(name, span).tolist()
    if not np.isfinite(values).all():
        raise InputError(f"{name} = {span!r}: finite numbers are expected")
    if len(set(values)) < len(values):
        raise InputError(f"{name} = {span!r}: the range is empty or a value stands twice; {len(values)} are expected")
    if name in STRUCTURAL:
        if any(not value.is_integer() for value in values):
            raise InputError(f"{name} = {span!r}: whole numbers are expected")
        return tuple(int(value) for value in values)
    return tuple(values)


def _sizes(values: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, int(value)) for name, value in values.items() if name in STRUCTURAL))


def _parameters(problem: Problem, without: Sequence[str]) -> dict[str, Any]:
    """Everything that a problem is given, as JSON, but for some names."""
    held: dict[str, Any] = {"alpha": problem.sample_complexity, **problem.parameters, **problem.along_lines}
    held |= {"inverse_temperature": problem.inverse_temperature, "spectrum": problem.spectrum}
    if problem.given_law is not None:
        held["law"] = [getattr(problem.given_law, each.name) for each in fields(problem.given_law)]
    held |= problem.solver.structure
    return _plain({name: value for name, value in held.items() if name not in without})


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters by the names that users write, as JSON."""
    named = {name.rstrip("_"): value for name, value in values.items()}
    return json.loads(json.dumps(named, default=lambda value: value.tolist()))
