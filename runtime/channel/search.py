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
from .fields import channel_overlaps, field_law
from .nodes import sobol_normal_points
from .points import noise_values, proximal_points_at_nodes

QUICK, THOROUGH = 1, 2


@dataclass(frozen=True)
class SearchTestOptions(AlgorithmOptions):
    """Options of the tests of the search for proximal points; more points find rarer misses.

    Attributes:
        log2_compared: logarithm to base 2 of the points at which the quick search is compared with the thorough one.
        log2_checked: the same of the points at which the search in use is checked.
        log2_trials: the same of the places tried around each of these.
        tolerance: by how much a lower value has to be lower, relative to 1 + |value|.
    """

    log2_compared: int = 11
    log2_checked: int = 10
    log2_trials: int = 9
    tolerance: float = 1e-9


@progress_step("test of the quick search for proximal points")
def choose_proximal_search(problem: Problem, overlaps: Overlaps) -> Problem:
    """Return the problem with the quick or thorough search for proximal points, as needed near given overlaps.

    The quick search (from omega, mirror images of the minimum found, beyond a soft one) is compared with the thorough
    one (the lowest of many points in every sector of the ball that contains the minimum, too) at random points; one
    miss decides. A single field is always searched all over its interval, and nothing is searched at a finite
    temperature.

    Args:
        problem: problem, whose search is quick or thorough.
        overlaps: state at which the searches are compared; outside their domain the problem is returned.
    """
    if problem.search == THOROUGH or problem.inverse_temperature is not None:
        return problem
    part = reduce_to_fields_of_loss(problem)
    if part.solver.channel.FIELDS == 1:
        return problem
    options = SearchTestOptions.current()
    nodes = sobol_normal_points(part.dimension, options.log2_compared, 31, ())
    try:
        there = channel_overlaps(part, overlaps)
        laws = [field_law(part, there, labels) for labels, _ in part.label_choices]
    except DomainError:
        return problem
    for fields in laws:
        for choice in noise_values(part):
            quick, thorough = (
                proximal_points_at_nodes(part, fields, nodes, n, choice).value for n in (QUICK, THOROUGH)
            )
            if np.any(quick - thorough > options.tolerance * (1 + np.abs(thorough))):
                return replace(problem, search=THOROUGH)
    return problem


def missed_minimum_fraction(problem: Problem, overlaps: Overlaps) -> float:
    """Return the largest fraction, over labels and noise, of random points whose proximal point is not the global one.

    The minimum that the search finds in several fields is compared with the Moreau objective at random places of the
    ellipsoid (docs/theory.md (15.1)) that contains the global minimum of a loss that is not negative: a lower value
    anywhere proves that the search misses a minimum.

    Args:
        problem: problem, with the search to test.
        overlaps: state at which it is tested.

    Raises:
        DomainError: overlaps outside their domain.
    """
    part = reduce_to_fields_of_loss(problem)
    D = part.solver.channel.FIELDS
    if D == 1 or problem.inverse_temperature is not None:
        return 0.0
    options = SearchTestOptions.current()
    there, nodes = channel_overlaps(part, overlaps), sobol_normal_points(part.dimension, options.log2_checked, 33, ())
    places = sobol_normal_points(D + 1, options.log2_trials, 35, ())
    places = places[:, 1:] / np.linalg.norm(places[:, 1:], axis=1, keepdims=True) * ndtr(places[:, :1])
    largest = 0.0
    for labels, _ in part.label_choices:
        fields = field_law(part, there, labels)
        root = np.linalg.cholesky(fields.variance)
        directions = np.einsum("lab,klb->kla", root, places.reshape(-1, *root.shape[:2]))
        for choice in noise_values(part):
            points = proximal_points_at_nodes(part, fields, nodes, choice=choice)
            size = np.abs(points.value)
            X = points.omega[:, None] + np.sqrt(2 * size)[:, None, None, None] * directions
            known = np.repeat(points.features, len(directions), axis=0)
            losses, _ = part.solver.proximal.losses_at(X.reshape(-1, D), known, fields.constants)
            objective = size[:, None] * (places**2).sum(axis=1) + losses.reshape(len(points.value), -1)
            lower = np.nanmin(objective, axis=1) < points.value - options.tolerance * (1 + size)
            largest = max(largest, float(np.mean(lower & (points.minima > 0) & (points.weight > 0))))
    return largest
