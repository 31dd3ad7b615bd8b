"""Minima of the Moreau objective at random points of a solution: their number, and proofs that they are global."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base import presenting
from ..base.budget import check_time_limit
from ..base.options import AlgorithmOptions
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from .fields import field_law
from .nodes import sobol_normal_points
from .points import ProximalPoints, noise_value_indices, proximal_points_at_nodes

LOG2_POINTS = 11  # of the random points
BUDGET = 20_000  # boxes a point
_QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class LandscapeOptions(AlgorithmOptions):
    """Options of the search for all minima of the Moreau objective.

    Attributes:
        proof_tolerance: tolerance of the proof that a minimum is global, relative to 1 + |minimum|; smaller values take
            more boxes of the branch-and-bound proof.
        max_minima: largest number of minima that are listed per point.
    """

    proof_tolerance: float = 1e-8
    max_minima: int = 8


@dataclass(frozen=True)
class Landscape:
    """A summary of the minima of the Moreau objective of a solution, at random fields and noise.

    Attributes:
        points: number of points, over all label assignments.
        unproved: probability that a minimum was not proved global within the budget; None where no proof is possible: a
            loss that is negative or contains q, or a loss of several fields whose derivative jumps.
        shortfall: upper bound on the change of the free entropy by lower minima, estimated from these points.
        boxes: mean number of boxes of a branch-and-bound proof.
        missed: fraction of points at which the search for all minima found a lower one than the proximal map.
        minima: number of minima -> fraction of points with so many (the last: so many or more).
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
        """Return this summary as the object `landscape` of the JSON output (docs/design.md section 5)."""
        return presenting.to_json(self)


def analyse_landscape(
    problem: Problem, overlaps: Overlaps, log2: int = LOG2_POINTS, budget: int = BUDGET, seed: int = 0
) -> Landscape:
    """Find the minima of the Moreau objective at 2^log2 random points per label assignment, and prove them global.

    The minima are the limits of descents from many starting points. A minimum is proved global by branch and bound in
    interval arithmetic over the region that must contain the minimum of a non-negative loss (docs/theory.md (15.1)).
    Whether the loss is non-negative is tested at random points.

    Args:
        problem: problem to which the overlaps belong.
        overlaps: overlaps of a solution.
        log2: logarithm to base 2 of the number of points.
        budget: boxes that the proof at one point may take; more prove more.
        seed: seed of the random points.

    Raises:
        DomainError: the overlaps are outside their domain.
        TimeLimitError: the time limit is reached.
    """
    options, channel = LandscapeOptions.current(), problem.solver.channel
    nodes = sobol_normal_points(problem.dimension, log2, 900 + seed, ())
    bounded = problem.solver.model.NONNEGATIVE and not (problem.solver.proximal.CORNERS and channel.FIELDS > 1)
    parts = []
    for labels, probability in problem.label_probabilities:
        fields = field_law(problem, overlaps, labels)
        for choice in noise_value_indices(problem):
            points = proximal_points_at_nodes(problem, fields, nodes, choice=choice)
            possible = points.weight > 0
            points = ProximalPoints(*(np.ascontiguousarray(column[possible]) for column in points))
            omega, best = (block.reshape(len(block), -1) for block in (points.omega, points.x))
            at = omega, fields.precision, points.features, fields.constants
            check_time_limit()
            number, minima = problem.solver.proximal.all_minima(*at, options.max_minima)
            quadratic = 0.5 * np.einsum("nla,nla->n", points.g, points.x - points.omega)
            bounded = bounded and not np.any(points.value - quadratic < -1e-12)
            proofs = np.full((len(best), 2), np.nan)
            if bounded:
                check_time_limit()
                spread = np.sqrt(np.diagonal(fields.variance, axis1=1, axis2=2)).ravel()
                known = omega, fields.precision, spread, points.features, fields.constants
                proofs = problem.solver.moreau_objective_bounds.shortfalls(
                    *known, best, points.value, options.proof_tolerance, budget
                )
                proofs[points.minima == 0, 0] = np.inf
            weight = probability * points.weight / len(nodes)
            parts.append(
                np.column_stack(
                    [weight, proofs, _combine_minima_of_searches(points, number, minima[:, :, channel.FIELDS])]
                )
            )
    weight, lacking, boxes, lower, number, gap, value = np.concatenate(parts).T
    # A point with no bound at all may lack all of its value: the loss is not negative.
    lacking = np.where(np.isfinite(lacking), lacking, np.maximum(value, 0.0))
    open_ = ~(lacking <= 0)
    several, tolerance = gap == gap, options.proof_tolerance * (1 + np.abs(value))
    return Landscape(
        points=len(weight),
        unproved=float(weight @ open_) if bounded else None,
        shortfall=float(problem.alpha * (weight @ (lacking + tolerance))) if bounded else None,
        boxes=float(weight @ boxes) if bounded else None,
        missed=float(weight @ lower),
        minima={int(n): float(weight @ (number == n)) for n in np.unique(number)},
        gaps=_weighted_quantiles(gap[several], weight[several]),
    )


def _combine_minima_of_searches(points: ProximalPoints, number: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return a table of the minima found by the proximal map and by the search for all minima, one row per point.

    Its columns: whether the search for all minima found a lower one, the number of minima, the gap between the two
    lowest (nan for a single minimum), and the lowest minimum.
    """
    small = 1e-9 * (1 + np.abs(points.value))
    lowest = np.fmin(levels[:, 0], points.value)
    known = np.column_stack([levels, points.value, points.value + points.gap])
    above = np.where(known > (lowest + small)[:, None], known, np.inf)
    # Minima of equal value, as by symmetry, are distinguished by their places.
    second = np.where((number > 1) & (levels[:, 1] <= lowest + small), lowest, above.min(axis=1))
    gap = np.where(np.isfinite(second), second - lowest, np.where(points.gap <= small, points.gap, np.nan))
    several = np.isfinite(gap)
    count = np.where(several, np.maximum(number, 2), 1)
    return np.column_stack([levels[:, 0] < points.value - small, count, gap, lowest])


def _weighted_quantiles(values: np.ndarray, weights: np.ndarray) -> tuple[float, ...]:
    if not len(values):
        return (np.nan,) * len(_QUANTILES)
    return tuple(np.quantile(values, _QUANTILES, weights=weights, method="inverted_cdf").tolist())
