"""Whether the search for the global proximal point finds it at a state: the quick one, and whichever is used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import ndtr

from ..base.errors import DomainError
from ..base.progress import step
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import integrated
from .fields import fields_of, overlaps_of
from .nodes import sobol_normal
from .points import noise_choices, points_at

LOG2_POINTS = 11
QUICK, THOROUGH = 1, 2
_CHECKED, _TRIED = 10, 9  # log2 of the points at which the search is checked, and of the places tried around each


@step("where the quick search for proximal points misses a minimum")
def searched(problem: Problem, overlaps: Overlaps) -> Problem:
    """The problem with the search that its proximal map needs near these overlaps.

    The quick search (from omega, mirror images of the minimum found, beyond a soft one) is compared with the thorough
    one (the lowest of many points in every sector of the ball that holds the minimum, too) at 2^LOG2_POINTS random
    points; one miss decides. A single field is always searched all over its interval, and nothing is searched at a
    finite temperature.
    """
    if problem.search == THOROUGH or problem.inverse_temperature is not None:
        return problem
    part = integrated(problem)
    if part.solver.channel.FIELDS == 1:
        return problem
    nodes = sobol_normal(part.dimension, LOG2_POINTS, 31, ())
    try:
        there = overlaps_of(part, overlaps)
        laws = [fields_of(part, there, labels) for labels, _ in part.label_choices]
    except DomainError:
        return problem
    for fields in laws:
        for choice in noise_choices(part):
            quick, thorough = (points_at(part, fields, nodes, n, choice).value for n in (QUICK, THOROUGH))
            if np.any(quick - thorough > 1e-9 * (1 + np.abs(thorough))):
                return replace(problem, search=THOROUGH)
    return problem


def missed(problem: Problem, overlaps: Overlaps) -> float:
    """Return the largest fraction, over labels and noise, of random points whose proximal point is not the global one.

    The minimum that the search finds in several fields is compared with the Moreau objective at random places of the
    ellipsoid (docs/theory.md (15.1)) that holds the global minimum of a loss that is not negative: a lower value
    anywhere proves that the search misses a minimum.

    Raises:
        DomainError: overlaps outside their domain.
    """
    part = integrated(problem)
    D = part.solver.channel.FIELDS
    if D == 1 or problem.inverse_temperature is not None:
        return 0.0
    there, nodes = overlaps_of(part, overlaps), sobol_normal(part.dimension, _CHECKED, 33, ())
    places = sobol_normal(D + 1, _TRIED, 35, ())
    places = places[:, 1:] / np.linalg.norm(places[:, 1:], axis=1, keepdims=True) * ndtr(places[:, :1])
    largest = 0.0
    for labels, _ in part.label_choices:
        fields = fields_of(part, there, labels)
        root = np.linalg.cholesky(fields.variance)
        ways = np.einsum("lab,klb->kla", root, places.reshape(-1, *root.shape[:2]))
        for choice in noise_choices(part):
            points = points_at(part, fields, nodes, choice=choice)
            size = np.abs(points.value)
            X = points.omega[:, None] + np.sqrt(2 * size)[:, None, None, None] * ways
            known = np.repeat(points.features, len(ways), axis=0)
            losses, _ = part.solver.proximal.losses_at(X.reshape(-1, D), known, fields.constants)
            objective = size[:, None] * (places**2).sum(axis=1) + losses.reshape(len(points.value), -1)
            lower = np.nanmin(objective, axis=1) < points.value - 1e-9 * (1 + size)
            largest = max(largest, float(np.mean(lower & (points.minima > 0) & (points.weight > 0))))
    return largest
