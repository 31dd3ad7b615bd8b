"""Straight lines of arrays: array parameters that a single number moves between two values."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.errors import InputError, convert_to_number_array

_SCALE = re.compile(r"scale_(\w+)")


def parse_scale_factor_name(name: str) -> str | None:
    """Return A for a name of the form scale_A, the factor on an array parameter A; None for any other name."""
    found = _SCALE.fullmatch(name)
    return found[1] if found else None


@dataclass(frozen=True, eq=False)
class Between:
    """A straight line (1 - t) first + t last of arrays, given as the value of an array parameter.

    A parameter A given so begins at t = 0, and t is the scalar parameter path_A of the problem: vary it along a curve
    or an axis of a sweep, or locate its threshold. It may leave [0, 1].

    Attributes:
        first, last: end points at t = 0 and t = 1, numbers or nested lists of the parameter's shape.
        position: the position t on the line.

    Raises:
        InputError: the end points are not arrays of numbers of the same shape.

    Example:
        >>> rows = sf.Between([[0.5, 0.5], [0.5, 0.5]], [[0.6, 0.4], [0.4, 0.6]])
        >>> problem = sf.problem("dot_product_attention", alpha=2, A=rows)
        >>> problem.with_(path_A=0.5).parameters["A"].round(9).tolist()
        [[0.55, 0.45], [0.45, 0.55]]
    """

    first: Any
    last: Any
    position: float = 0.0

    def __post_init__(self) -> None:
        for name in ("first", "last"):
            end = convert_to_number_array(
                getattr(self, name), "an end point of a line is {!r}; an array of numbers is expected"
            ).copy()
            end.setflags(write=False)
            object.__setattr__(self, name, end)
        if self.first.shape != self.last.shape:
            raise InputError(
                f"the end points of a line have shapes {self.first.shape} and {self.last.shape}; give two of one shape"
            )

    @property
    def value(self) -> np.ndarray:
        """The array at the line's position t."""
        return np.asarray((1 - self.position) * self.first + self.position * self.last)

    def at_position(self, position: float) -> Between:
        """Return the same line, set to another position t."""
        return replace(self, position=position)

    @property
    def end_points(self) -> dict[str, Any]:
        """The arrays at the two ends of the line, "from" (t = 0) and "to" (t = 1), as nested lists for JSON."""
        return {"from": self.first.tolist(), "to": self.last.tolist()}
