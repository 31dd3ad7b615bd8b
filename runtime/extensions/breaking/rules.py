"""The rules that average over the channel of a problem with replica symmetry broken: panels of a line for one student
field, grids for two, samples for more; their tolerances, and how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np

from ...base.errors import InputError
from ...integration import pace
from ...integration.tilted import PANELS
from ...integration.tilted_grid import LADDER
from ...integration.tilted_samples import SAMPLES
from ...integration.tilted_sums import TiltedRule
from ...problems.problem import Problem
from ...solving.solution import Solution
from .state import Broken

_SOFT = 1e-3  # of the Parisi parameter, at which all copies weigh the same but for what is accounted for


def rules_for(problem: Problem) -> Sequence[TiltedRule]:
    """Return the rules for a problem, from coarse to fine.

    Raises:
        InputError: the loss reads more fields, or bends in two.
    """
    for rules in (PANELS, LADDER, SAMPLES):
        if rules[0].suits(problem):
            return rules
    raise InputError(
        "one-step breaking of losses of more than one student field is solved where they have no corners; that "
        f"of {problem.solver.name} does"
    )


def offsets(symmetric: Solution, rules: Sequence[TiltedRule], state: Broken, y: float) -> list[float]:
    """Return how far above the training loss of replica symmetry what rules make of it lies: the energy of a solution
    with blocks is off by nearly the same.

    Of copies that weigh the same f_1 is -E_z M, and q_0 + Delta the replica symmetric q: its average is E M.
    """
    problem, overlaps = symmetric.problem, symmetric.overlaps
    exact = float(symmetric.rule.averages(problem, overlaps).moreau.mean())
    copies = replace(state, between=replace(overlaps, q=overlaps.q - state.distance))
    soft = np.array([_SOFT * y])
    found = [rule.tilted_averages(problem, copies.between, copies.distances, soft) for rule in rules]
    # f_1 = -E M + y Var M / 2 and <M> = E M - y Var M, to first order.
    return [problem.alpha * (-2 * float(one.free[0]) - one.moreau - exact) for one in found]


def expected_seconds(solution: Solution) -> float:
    """Return how many seconds one step of breaking from a solution takes, to a factor of three or so.

    Raises:
        InputError: it is not solved for this loss.
    """
    problem, rule = solution.problem, solution.rule
    seconds = pace.expected(problem, rule)
    if not seconds:
        begun = perf_counter()
        rule.averages(problem, solution.overlaps)
        seconds = perf_counter() - begun
    return seconds * rules_for(problem)[0].search_effort(rule.cost(problem))
