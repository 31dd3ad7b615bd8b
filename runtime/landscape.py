"""The minima of the Moreau objective at random points of a solution: which are proved global, how many there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .integration.fields import fields_of
from .integration.nodes import sobol_normal
from .integration.points import CHUNKS
from .overlaps import Overlaps
from .problem import Problem

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
            loss that may be negative, where nothing bounds the search.
        shortfall: bound on what that may do to the free entropy: alpha E[by how much the minimum could be lower].
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
    gaps: tuple[float, float, float]

    def to_json(self) -> dict[str, Any]:
        return {
            "points": self.points,
            "unproved_share": self.unproved,
            "free_entropy_shortfall": self.shortfall,
            "boxes": self.boxes,
            "missed_share": self.missed,
            "minima": {str(n): share for n, share in self.minima.items()},
            "gap_quantiles": dict(zip(("0.1", "0.5", "0.9"), self.gaps, strict=True)),
        }


def landscape(
    problem: Problem, overlaps: Overlaps, log2: int = LOG2_POINTS, budget: int = BUDGET, seed: int = 0
) -> Landscape:
    """Look at the minima of the Moreau objective at 2^log2 random points a label assignment.

    A proof is by branch and bound in interval arithmetic over the region that must hold the minimum of a loss that is
    not negative (theory.md section 9); the minima are those that descents from omega and from many points of the ball
    on which the quadratic part is at most the loss at omega end in.

    Raises:
        DomainError: overlaps outside their domain.
    """
    channel, bounds = problem.solver.channel, problem.solver.bounds
    size, known_end = channel.FIELDS, channel.FIELDS + channel.FEATURES
    nodes = sobol_normal(problem.dimension, log2, 900 + seed, ())
    bounded = problem.solver.model.NONNEGATIVE
    weights, shortfalls, boxes, missed, counts, gaps = [], [], [], [], [], []
    for labels, probability in problem.label_choices:
        fields = fields_of(problem, overlaps, labels)
        known = fields.precision, problem.noise_scale, fields.constants
        rows = channel.proximal_points(CHUNKS, nodes, *fields.sampling, *known, problem.search)
        omega, features, best = (
            np.ascontiguousarray(rows[:, a:b]) for a, b in ((0, size), (size, known_end), (known_end, known_end + size))
        )
        values = np.ascontiguousarray(rows[:, known_end + size])
        weights.append(np.full(len(rows), probability / len(rows)))
        if bounded:
            spread = np.sqrt(np.linalg.inv(fields.precision).diagonal(axis1=1, axis2=2)).reshape(-1)
            settings = fields.constants, best, values, TOLERANCE, budget
            proofs = bounds.shortfalls(CHUNKS, omega, fields.precision, spread, features, *settings)
            shortfalls.append(proofs[:, 0])
            boxes.append(proofs[:, 1])
        number, minima = channel.all_minima(CHUNKS, omega, fields.precision, features, fields.constants, _MOST)
        levels = minima[:, :, size]
        lowest = np.minimum(levels[:, 0], values)
        missed.append(lowest < values - 1e-9 * (1 + np.abs(values)))
        counts.append(np.maximum(number, 1))
        gaps.append(np.where(number > 1, levels[:, 1] - lowest, np.nan))
    weight = np.concatenate(weights)
    number, gap = np.concatenate(counts), np.concatenate(gaps)
    several = gap == gap
    quantiles = _quantiles(gap[several], weight[several])
    lacking = np.concatenate(shortfalls) if bounded else np.zeros(0)
    return Landscape(
        points=len(weight),
        unproved=float(weight @ (lacking > 0)) if bounded else None,
        shortfall=float(problem.alpha * (weight @ lacking)) if bounded else None,
        boxes=float(weight @ np.concatenate(boxes)) if bounded else None,
        missed=float(weight @ np.concatenate(missed)),
        minima={int(n): float(weight @ (number == n)) for n in np.unique(number)},
        gaps=quantiles,
    )


def _quantiles(values: np.ndarray, weights: np.ndarray) -> tuple[float, float, float]:
    if not len(values):
        return (np.nan,) * 3
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    at = np.minimum(np.searchsorted(reached, _QUANTILES), len(values) - 1)
    one, two, three = (float(v) for v in values[order][at])
    return one, two, three


__all__ = ["BUDGET", "TOLERANCE", "Landscape", "landscape"]
