"""The minima of the Moreau objective at random points of a solution: which are proved global, how many there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base import presenting
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from .fields import fields_of
from .nodes import sobol_normal
from .points import Points, noise_choices, points_at

LOG2_POINTS = 11
TOLERANCE = 1e-8  # a minimum is proved up to this, times (1 + its value)
BUDGET = 20_000  # boxes a point
_MOST = 8
_QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Landscape:
    """Minima at random points (omega, Y, noise) under the law of a solution.

    Attributes:
        points: how many were looked at, over all label assignments.
        unproved: share (by probability) whose minimum was not proved global within the budget of boxes; None for a
            loss that was seen to be negative somewhere or holds q, where nothing bounds the search, and for one of
            several fields whose slope jumps, of which no bounds are printed.
        shortfall: estimate, from these points, of how much lower minima could move the free entropy at most:
            alpha E[by how much the minimum could be lower], the tolerance of the proofs included.
        boxes: mean number of boxes of a proof.
        missed: share of points at which the search behind `minima` found a lower minimum than the proximal map.
        minima: minima -> share of points with so many (the last: so many or more).
        gaps: 10 %, 50 % and 90 % quantile of the gap to the second minimum, where there is one; nan without.
    """

    points: int
    unproved: float | None
    shortfall: float | None
    boxes: float | None
    missed: float
    minima: dict[int, float]
    gaps: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """The object `landscape` of the command line's contract (docs/design.md section 5)."""
        return presenting.to_json(self)


def landscape(
    problem: Problem, overlaps: Overlaps, log2: int = LOG2_POINTS, budget: int = BUDGET, seed: int = 0
) -> Landscape:
    """Look at the minima of the Moreau objective at 2^log2 random points a label assignment.

    A proof is by branch and bound in interval arithmetic over the region that must hold the minimum of a loss that is
    not negative (docs/theory.md (15.1); taken for granted unless one of many random points, at the model's default
    parameters or here, shows otherwise); the minima are those that descents from omega and from many points of the ball
    on which the quadratic part is at most the loss at omega end in.

    Raises:
        DomainError: overlaps outside their domain.
    """
    channel = problem.solver.channel
    nodes = sobol_normal(problem.dimension, log2, 900 + seed, ())
    bounded = problem.solver.model.NONNEGATIVE and not (problem.solver.proximal.CORNERS and channel.FIELDS > 1)
    parts = []
    for labels, probability in problem.label_choices:
        fields = fields_of(problem, overlaps, labels)
        for choice in noise_choices(problem):
            points = points_at(problem, fields, nodes, choice=choice)
            possible = points.weight > 0
            points = Points(*(np.ascontiguousarray(column[possible]) for column in points))
            omega, best = (block.reshape(len(block), -1) for block in (points.omega, points.x))
            at = omega, fields.precision, points.features, fields.constants
            number, minima = problem.solver.proximal.all_minima(*at, _MOST)
            quadratic = 0.5 * np.einsum("nla,nla->n", points.g, points.x - points.omega)
            bounded = bounded and not np.any(points.value - quadratic < -1e-12)
            proofs = np.full((len(best), 2), np.nan)
            if bounded:
                spread = np.sqrt(np.diagonal(fields.variance, axis1=1, axis2=2)).ravel()
                known = omega, fields.precision, spread, points.features, fields.constants
                proofs = problem.solver.bounds.shortfalls(*known, best, points.value, TOLERANCE, budget)
                proofs[points.minima == 0, 0] = np.inf
            weight = probability * points.weight / len(nodes)
            parts.append(np.column_stack([weight, proofs, _merged(points, number, minima[:, :, channel.FIELDS])]))
    weight, lacking, boxes, lower, number, gap, value = np.concatenate(parts).T
    # A point with no bound at all may lack all of its value: the loss is not negative.
    lacking = np.where(np.isfinite(lacking), lacking, np.maximum(value, 0.0))
    open_ = ~(lacking <= 0)
    several = gap == gap
    return Landscape(
        points=len(weight),
        unproved=float(weight @ open_) if bounded else None,
        shortfall=float(problem.alpha * (weight @ (lacking + TOLERANCE * (1 + np.abs(value))))) if bounded else None,
        boxes=float(weight @ boxes) if bounded else None,
        missed=float(weight @ lower),
        minima={int(n): float(weight @ (number == n)) for n in np.unique(number)},
        gaps=_quantiles(gap[several], weight[several]),
    )


def _merged(points: Points, number: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """What the proximal map and the search for all minima found together, a row a point.

    Columns: whether the latter found a lower minimum, minima, gap between the two lowest (nan without), lowest value.
    """
    small = 1e-9 * (1 + np.abs(points.value))
    lowest = np.fmin(levels[:, 0], points.value)
    known = np.column_stack([levels, points.value, points.value + points.gap])
    above = np.where(known > (lowest + small)[:, None], known, np.inf)
    # Minima of equal value, as by symmetry, are told apart by where they are.
    second = np.where((number > 1) & (levels[:, 1] <= lowest + small), lowest, above.min(axis=1))
    gap = np.where(np.isfinite(second), second - lowest, np.where(points.gap <= small, points.gap, np.nan))
    several = np.isfinite(gap)
    count = np.where(several, np.maximum(number, 2), 1)
    return np.column_stack([levels[:, 0] < points.value - small, count, gap, lowest])


def _quantiles(values: np.ndarray, weights: np.ndarray) -> tuple[float, ...]:
    if not len(values):
        return (np.nan,) * len(_QUANTILES)
    return tuple(np.quantile(values, _QUANTILES, weights=weights, method="inverted_cdf").tolist())
