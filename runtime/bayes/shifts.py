"""Observed coordinates that shift the fields of a sentence and do nothing else.

The fields are then Y(0, .) + v m, with v the same for all that is continuous; so that the posterior depends on m and on
omega along v through omega - v m alone, and its sums over what is hidden need not be taken at every m.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from ..problems.problem import Problem
from .probes import channel_at, random_coordinates

_TOLERANCE = 1e-11


@dataclass(frozen=True)
class Shift:
    """One observed coordinate that shifts the fields.

    Attributes:
        axis: which of the observed coordinates; direction: v (L t,).
        hidden: which hidden coordinates are discrete; choices: their values, one after another; factors: what v is
            multiplied with at each, one or two distinct numbers.
    """

    axis: int
    direction: np.ndarray
    hidden: tuple[int, ...]
    choices: tuple[tuple[float, ...], ...]
    factors: np.ndarray

    def factor_of(self, nodes: np.ndarray) -> np.ndarray:
        """What v is multiplied with at nodes (H, hidden) of the hidden coordinates, (H,)."""
        found = np.zeros(len(nodes))
        for choice, factor in zip(self.choices, self.factors, strict=True):
            found[(nodes[:, self.hidden] == choice).all(axis=1)] = factor
        return found


def find_shift(problem: Problem, labels: tuple[int, ...]) -> Shift | None:
    """The first observed coordinate that is one, by the channel at random values of all others."""
    module = problem.solver.bayes
    for axis, (_, kind, _) in enumerate(module.OBSERVED):
        if kind == "real" and (found := _shift_along(problem, labels, axis)) is not None:
            return found
    return None


def _shift_along(problem: Problem, labels: tuple[int, ...], axis: int) -> Shift | None:
    module, random = problem.solver.bayes, np.random.default_rng(0)
    discrete = [i for i, (_, kind, _) in enumerate(module.HIDDEN) if kind == "discrete"]
    choices = tuple(product(*(module.HIDDEN[i][2] for i in discrete)))
    observed, hidden = random_coordinates(module.OBSERVED, random), random_coordinates(module.HIDDEN, random)
    moves = []
    for choice in choices:
        hidden[:, discrete] = choice
        moved = _move(problem, labels, observed, hidden, axis)
        if moved is None:
            return None
        moves.append(moved)
    longest = max(moves, key=lambda v: float(np.abs(v).max()))
    if not np.abs(longest).max() > 0:
        return None
    factors = np.round(np.array(moves) @ longest / (longest @ longest), 12)
    along = np.abs(np.array(moves) - factors[:, None] * longest).max() < _TOLERANCE * np.abs(longest).max()
    if not along or (factors == 0).any() or len(np.unique(factors)) > 2:
        return None
    return Shift(axis, longest, tuple(discrete), choices, factors)


def _move(
    problem: Problem, labels: tuple[int, ...], observed: np.ndarray, hidden: np.ndarray, axis: int
) -> np.ndarray | None:
    """What a unit of the coordinate moves the fields by, (L t,); None where that is not the same everywhere."""
    found = []
    for value in (0.0, 1.0, -1.5):
        at = observed.copy()
        at[:, axis] = value
        found.append(channel_at(problem, labels, at, hidden))
    (start, *rest), (ahead, *others), (behind, *more) = found
    slopes = np.concatenate([(ahead - start), (start - behind) / 1.5]).reshape(-1, start.shape[2])
    spread = [np.abs(slopes - slopes[0]).max() / max(np.abs(start).max(), 1.0)]
    spread += [np.abs(a - b).max() for a, b in zip(rest * 2, others + more, strict=True)]
    return slopes[0] if max(spread) < _TOLERANCE else None  # false where one is NaN
