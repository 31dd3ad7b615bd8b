"""A parameter of a problem, or an entry of an array, with respect to which solutions are differentiated."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from ..base.errors import InputError, describe_unknown_name
from ..problems.problem import Problem, explain_why_number_is_trained, parse_array_entry, stored_parameter_name

# Relative steps of differences: narrow for smooth maps; wide for nodes whose minima swap, so that many of them swap.
NARROW, WIDE = 1e-3, 1e-2
# (offset in steps, weight): the slope from values around a point, or, at the edge of a range, on one side of it.
CENTRAL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))
_ONE_SIDED = ((1, -77 / 12), (2, 107 / 6), (3, -39 / 2), (4, 61 / 6), (5, -25 / 12))
_ONE_SIDED_WIDE = ((0, -3 / 2), (1, 2), (2, -1 / 2))


@dataclass
class ParameterDirection:
    """A parameter of a problem, or an entry of an array, with respect to which solutions are differentiated.

    Attributes:
        name: name of the parameter, or of an entry of an array, for example A[1,2].
        index: index of the entry in its array; None if all entries change together.
        mirrored: whether the transposed entry changes equally, for a matrix that must be symmetric.
    """

    problem: Problem
    name: str
    index: tuple[int, ...] | None = None
    mirrored: bool = False
    _known: dict[float, Problem] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        place = parse_array_entry(self.name)
        if place is not None:
            self.name, self.index = place

    @property
    def parameter_label(self) -> str:
        """Return the parameter name, for an entry of an array with indices that count from 1: A[1,2]."""
        shown = self.name.rstrip("_")
        several = self.index is not None and np.size(self.problem.parameters[self.name]) > 1
        return f"{shown}[{','.join(str(i + 1) for i in self.index or ())}]" if several else shown

    @property
    def parameter_value(self) -> float:
        """Return the value of the parameter or entry; the first entry if all entries of an array change together."""
        if self.name == "alpha" or self.problem.is_line_parameter(self.name):
            return self.problem.value_of_parameter(self.name)
        values = np.asarray(self.problem.parameters[self.name], float)
        return float(values[self.index] if self.index is not None else values.flat[0])

    @property
    def parameter_range(self) -> tuple[float, float]:
        """Return the lower and upper end of the range that the parameter or entry may take."""
        if self.name == "alpha":
            return 0.0, np.inf
        if self.problem.is_line_parameter(self.name):
            return -np.inf, np.inf
        spec = next(spec for spec in self.problem.solver.model.PARAMETERS if spec["name"] == self.name)
        return (
            -np.inf if spec["low"] is None else spec["low"],
            np.inf if spec["high"] is None else spec["high"],
        )

    def problem_with_shifted_parameter(self, by: float) -> Problem:
        """Return the problem with the parameter or entry changed by a given amount.

        Raises:
            InputError: the changed parameter is out of range.
        """
        if by not in self._known:
            if self.name == "alpha" or self.problem.is_line_parameter(self.name):
                shifted = self.problem.with_(**{self.name: self.parameter_value + by})
            else:
                values = np.array(self.problem.parameters[self.name], float)
                values[self.index if self.index is not None else ...] += by
                if self.mirrored and self.index is not None:
                    values[self.index[::-1]] = values[self.index]
                shifted = self.problem.with_(**{self.name: values if values.shape else float(values)})
            self._known[by] = replace(shifted, search=self.problem.search)
        return self._known[by]

    def difference_step_and_stencil(self, wide: bool) -> tuple[float, tuple[tuple[int, float], ...]]:
        """Return step and stencil of difference quotients that stay within the range of the parameter.

        The step is relative to the value of a parameter that must be positive, or of the strength of a ridge.

        Raises:
            InputError: the range allows differences on neither side.
        """
        low, high = self.parameter_range
        value = self.parameter_value
        if value and (low == 0 or self.name in self.problem.regulariser.names_of_strength_parameters):
            scale = min(abs(value), (high - low) / 2)
        else:
            scale = max(abs(value), 1.0) if np.isinf(low) or np.isinf(high) else (high - low) / 2
        step = (WIDE if wide else NARROW) * scale
        if self._is_stencil_within_range(step, CENTRAL):
            return step, CENTRAL
        one_sided = _ONE_SIDED_WIDE if wide else _ONE_SIDED
        for toward in (step, -step):
            if self._is_stencil_within_range(toward, one_sided):
                return toward, one_sided
        raise InputError(
            f"no derivative: {self.parameter_label} = {value:g} can be neither increased nor decreased in its range"
        )

    def _is_stencil_within_range(self, step: float, stencil: tuple[tuple[int, float], ...]) -> bool:
        """Return whether every point of a difference stencil is within the range of the parameter."""
        try:
            for offset, _ in stencil:
                self.problem_with_shifted_parameter(offset * step)
        except InputError:
            return False
        return True


def parameter_directions(problem: Problem, *names: str) -> list[ParameterDirection]:
    """Return each named parameter, or each entry of it, as a `ParameterDirection`; without names, all parameters.

    An entry of a matrix that must be symmetric changes together with the transposed one and is listed once; an entry
    that cannot change is left out.

    Args:
        problem: the problem.
        *names: names of parameters, of entries (A[1,2]), or of the position on a path between two arrays.

    Raises:
        InputError: a name is unknown; the message lists the known names.
    """
    parameters = list(problem.parameters)
    directions = []
    for name in names or ("alpha", *parameters):
        wanted, *places = parse_array_entry(name) or (stored_parameter_name(name),)
        if wanted == "alpha" or problem.is_line_parameter(wanted):
            directions.append(ParameterDirection(problem, wanted))
            continue
        if wanted not in parameters:
            unknown = describe_unknown_name("parameter", name, ["alpha", *parameters], problem.solver.name)
            raise InputError(f"no derivative: {unknown}{explain_why_number_is_trained(problem.solver, name)}")
        if places:
            problem.value_of_parameter(name)
        for index in places or np.ndindex(np.shape(problem.parameters[wanted])):
            for mirrored in (False, True):
                direction = ParameterDirection(problem, wanted, index, mirrored)
                if mirrored and (len(index) != 2 or index[0] == index[1] or (index[0] > index[1] and not places)):
                    continue
                with suppress(InputError):
                    direction.difference_step_and_stencil(wide=False)
                    directions.append(direction)
                    break
    return directions
