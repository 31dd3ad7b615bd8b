"""Tests whether the quick and the chosen search find the global proximal point at given overlaps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..base.progress import progress_step
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from .fields import field_law, overlaps_of_loss_fields
from .nodes import sobol_normal_points
from .points import noise_value_indices, proximal_points_at_nodes

QUICK, THOROUGH = 1, 2


@dataclass(frozen=True)
class ProximalSearchTestOptions(AlgorithmOptions):
    """Options of the tests that the search for proximal points finds global minima; more points find rarer misses.

    Attributes:
        log2_compared: logarithm to base 2 of the points at which the quick search is compared with the thorough one.
        log2_checked: logarithm to base 2 of the points at which the search in use is checked.
        log2_trials: logarithm to base 2 of the trial positions around each of these points.
        tolerance: smallest difference of two minima that counts as a miss, relative to 1 + |minimum|.
    """

    log2_compared: int = 11
    log2_checked: int = 10
    log2_trials: int = 9
    tolerance: float = 1e-9


@progress_step("test of the quick search for proximal points")
def choose_proximal_search(problem: Problem, overlaps: Overlaps) -> Problem:
    """Return the problem with the thorough search for proximal points if the quick one misses minima, else unchanged.

    Both searches are compared at random points. The quick one descends from omega, from mirror images of the minimum
    found, and beyond a soft minimum. The thorough one also descends from many points of the ball that contains the
    minimum. One student field needs no test: its whole interval is searched. Nor does a finite temperature.

    Args:
        problem: problem, whose search is quick or thorough.
        overlaps: state at which the searches are compared; where it is outside the domain, the problem is unchanged.
    """
    if problem.search == THOROUGH or problem.inverse_temperature is not None:
        return problem
    part = reduce_to_fields_of_loss(problem)
    if part.solver.channel.FIELDS == 1:
        return problem
    options = ProximalSearchTestOptions.current()
    nodes = sobol_normal_points(part.dimension, options.log2_compared, 31, ())
    try:
        there = overlaps_of_loss_fields(part, overlaps)
        laws = [field_law(part, there, labels) for labels, _ in part.label_probabilities]
    except DomainError:
        return problem
    for fields in laws:
        for choice in noise_value_indices(part):
            quick, thorough = (
                proximal_points_at_nodes(part, fields, nodes, n, choice).value for n in (QUICK, THOROUGH)
            )
            if np.any(quick - thorough > options.tolerance * (1 + np.abs(thorough))):
                return replace(problem, search=THOROUGH)
    return problem


def fraction_of_missed_minima(problem: Problem, overlaps: Overlaps) -> float:
    """Return the fraction of random points at which the search for the proximal point misses the global minimum.

    The minimum found is compared with the Moreau objective at random positions of the ellipsoid that contains the
    global minimum of a non-negative loss (docs/theory.md (15.1)): a lower value proves a miss. The fraction is the
    largest over label assignments and discrete noise values; it is 0 for a single student field.

    Args:
        problem: problem whose search is tested.
        overlaps: state at which the search is tested.

    Raises:
        DomainError: the overlaps are outside their domain.
    """
    part = reduce_to_fields_of_loss(problem)
    D = part.solver.channel.FIELDS
    if D == 1 or problem.inverse_temperature is not None:
        return 0.0
    options = ProximalSearchTestOptions.current()
    there = overlaps_of_loss_fields(part, overlaps)
    nodes = sobol_normal_points(part.dimension, options.log2_checked, 33, ())
    places = sobol_normal_points(D + 1, options.log2_trials, 35, ())
    places = places[:, 1:] / np.linalg.norm(places[:, 1:], axis=1, keepdims=True) * ndtr(places[:, :1])
    largest = 0.0
    for labels, _ in part.label_probabilities:
        fields = field_law(part, there, labels)
        root = np.linalg.cholesky(fields.variance)
        directions = np.einsum("lab,klb->kla", root, places.reshape(-1, *root.shape[:2]))
        for choice in noise_value_indices(part):
            points = proximal_points_at_nodes(part, fields, nodes, choice=choice)
            size = np.abs(points.value)
            X = points.omega[:, None] + np.sqrt(2 * size)[:, None, None, None] * directions
            known = np.repeat(points.features, len(directions), axis=0)
            losses, _ = part.solver.proximal.losses_at(X.reshape(-1, D), known, fields.constants)
            objective = size[:, None] * (places**2).sum(axis=1) + losses.reshape(len(points.value), -1)
            lower = np.nanmin(objective, axis=1) < points.value - options.tolerance * (1 + size)
            largest = max(largest, float(np.mean(lower & (points.minima > 0) & (points.weight > 0))))
    return largest
