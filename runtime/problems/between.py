"""Straight lines of arrays: a parameter of a problem that one number moves."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.errors import InputError, as_numbers

_SCALE = re.compile(r"scale_(\w+)")


def scaled_parameter(name: str) -> str | None:
    """Of scale_A the parameter; None of any other name."""
    found = _SCALE.fullmatch(name)
    return found[1] if found else None


@dataclass(frozen=True, eq=False)
class Between:
    """All arrays on the straight line through two, as the value of a parameter: (1 - t) first + t last.

    A parameter A that is given so begins at t = 0, and t is the parameter path_A of the problem, which goes wherever a
    number does: along a curve, on an axis of a sweep, to a threshold. It may leave [0, 1].

    Attributes:
        first, last: numbers or nested lists of one shape, that of the parameter.
        position: t.

    Raises:
        InputError: the ends are not arrays of numbers of one shape.

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
            end = as_numbers(getattr(self, name), "an end of a line is {!r}; numbers are expected").copy()
            end.setflags(write=False)
            object.__setattr__(self, name, end)
        if self.first.shape != self.last.shape:
            raise InputError(f"a line leads from shape {self.first.shape} to {self.last.shape}; one shape is expected")

    @property
    def value(self) -> np.ndarray:
        """The array at t."""
        return np.asarray((1 - self.position) * self.first + self.position * self.last)

    def at(self, position: float) -> Between:
        """The same line at another t."""
        return replace(self, position=position)

    @property
    def ends(self) -> dict[str, Any]:
        """From where to where, for JSON."""
        return {"from": self.first.tolist(), "to": self.last.tolist()}
