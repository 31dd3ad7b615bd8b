"""Whether the quick search for the global proximal point suffices at a state, or the thorough one is needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..errors import DomainError
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import integrated
from ..progress import step
from .fields import fields_of, overlaps_of
from .nodes import sobol_normal
from .points import noise_choices, points_at

LOG2_POINTS = 11
QUICK, THOROUGH = 1, 2


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
