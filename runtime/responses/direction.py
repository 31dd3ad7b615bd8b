"""One number of a problem that moves while the others stay."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from ..base.errors import InputError, describe_unknown
from ..problems.problem import Problem, describe_trained, entry_of, parameter_name

# Relative steps: over a set of nodes whose minima swap, wide enough for many to swap.
NARROW, WIDE = 1e-3, 1e-2
# (place in steps, weight): the slope from values around a point, or, at the edge of a range, on one side of it.
CENTRAL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))
_ONE_SIDED = ((1, -77 / 12), (2, 107 / 6), (3, -39 / 2), (4, 61 / 6), (5, -25 / 12))
_ONE_SIDED_WIDE = ((0, -3 / 2), (1, 2), (2, -1 / 2))


@dataclass
class Direction:
    """One number of a problem that moves while the others stay.

    Attributes:
        name: of the parameter, or of an entry as A[1,2];
        index: entry of an array, or None for all of its entries together.
        mirrored: whether the transposed entry moves along, as in a matrix that must be symmetric.
    """

    problem: Problem
    name: str
    index: tuple[int, ...] | None = None
    mirrored: bool = False
    _known: dict[float, Problem] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        place = entry_of(self.name)
        if place is not None:
            self.name, self.index = place

    @property
    def label(self) -> str:
        """Name without a trailing underscore; of one of several entries with its place from 1, as A[1,2]."""
        shown = self.name.rstrip("_")
        several = self.index is not None and np.size(self.problem.parameters[self.name]) > 1
        return f"{shown}[{','.join(str(i + 1) for i in self.index or ())}]" if several else shown

    @property
    def value(self) -> float:
        """Return the number's value; the first entry where all of an array move together."""
        if self.name == "alpha" or self.problem.on_line(self.name):
            return self.problem.value_of(self.name)
        values = np.asarray(self.problem.parameters[self.name], float)
        return float(values[self.index] if self.index is not None else values.flat[0])

    @property
    def range(self) -> tuple[float, float]:
        """Ends of what is allowed."""
        if self.name == "alpha":
            return 0.0, np.inf
        if self.problem.on_line(self.name):
            return -np.inf, np.inf
        spec = next(spec for spec in self.problem.solver.model.PARAMETERS if spec["name"] == self.name)
        return (
            -np.inf if spec["low"] is None else spec["low"],
            np.inf if spec["high"] is None else spec["high"],
        )

    def moved(self, by: float) -> Problem:
        """The problem with the number moved, the search of the proximal map kept.

        Raises:
            InputError: there is no such problem.
        """
        if by not in self._known:
            if self.name == "alpha" or self.problem.on_line(self.name):
                found = self.problem.with_(**{self.name: self.value + by})
            else:
                values = np.array(self.problem.parameters[self.name], float)
                values[self.index if self.index is not None else ...] += by
                if self.mirrored and self.index is not None:
                    values[self.index[::-1]] = values[self.index]
                found = self.problem.with_(**{self.name: values if values.shape else float(values)})
            self._known[by] = replace(found, search=self.problem.search)
        return self._known[by]

    def differences(self, wide: bool) -> tuple[float, tuple[tuple[int, float], ...]]:
        """Step and stencil that stay within what is allowed.

        A number that must be positive, or the strength of a ridge, moves by a share of itself.

        Raises:
            InputError: the number can move neither way.
        """
        low, high = self.range
        value = self.value
        if value and (low == 0 or self.name in self.problem.regulariser.strength_names):
            scale = min(abs(value), (high - low) / 2)
        else:
            scale = max(abs(value), 1.0) if np.isinf(low) or np.isinf(high) else (high - low) / 2
        step = (WIDE if wide else NARROW) * scale
        if self.possible(step, CENTRAL):
            return step, CENTRAL
        one_sided = _ONE_SIDED_WIDE if wide else _ONE_SIDED
        for toward in (step, -step):
            if self.possible(toward, one_sided):
                return toward, one_sided
        raise InputError(f"{self.label} = {value:g} can be moved neither up nor down while the rest stays")

    def possible(self, step: float, stencil: tuple[tuple[int, float], ...]) -> bool:
        """Whether there is a problem at every place of a stencil."""
        try:
            for place, _ in stencil:
                self.moved(place * step)
        except InputError:
            return False
        return True


def directions(problem: Problem, *names: str) -> list[Direction]:
    """A direction for every number of the named parameters; without names, alpha and all of them.

    An entry of a matrix that must be symmetric moves together with its mirror image and is named once; one that cannot
    move at all is left out. An entry may be named, as A[1,2], and the place of an array on a line.

    Raises:
        InputError: an unknown name; the known ones are listed.
    """
    parameters = list(problem.parameters)
    directions = []
    for name in names or ("alpha", *parameters):
        wanted, *places = entry_of(name) or (parameter_name(name),)
        if wanted == "alpha" or problem.on_line(wanted):
            directions.append(Direction(problem, wanted))
            continue
        if wanted not in parameters:
            known = describe_unknown("parameter", name, ["alpha", *parameters], problem.solver.name)
            raise InputError(f"derivative: {known}{describe_trained(problem.solver, name)}")
        if places:
            problem.value_of(name)
        for index in places or np.ndindex(np.shape(problem.parameters[wanted])):
            for mirrored in (False, True):
                direction = Direction(problem, wanted, index, mirrored)
                if mirrored and (len(index) != 2 or index[0] == index[1] or (index[0] > index[1] and not places)):
                    continue
                with suppress(InputError):
                    direction.differences(wide=False)
                    directions.append(direction)
                    break
    return directions
