"""Quadrature rules for averages over the channel with broken replica symmetry, and their expected cost.

They are piecewise rules for one student field, grids for two, and samples for more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np

from ...base.errors import InputError
from ...integration import durations
from ...integration.tilted import PANELS
from ...integration.tilted_grid import GRID_SIZES
from ...integration.tilted_samples import SAMPLES
from ...integration.tilted_sums import TiltedRule
from ...problems.problem import Problem
from ...solving.solution import Solution
from .state import BrokenSymmetryState

_SMALL_RATE = 1e-3  # relative to y: small enough for first order in it, where all copies have nearly equal weights


def quadrature_rules_for_breaking(problem: Problem) -> Sequence[TiltedRule]:
    """Return the quadrature rules, from coarse to fine, for channel averages with broken replica symmetry.

    Raises:
        InputError: the loss has kinks in more than one student field.
    """
    for rules in (PANELS, GRID_SIZES, SAMPLES):
        if rules[0].is_applicable(problem):
            return rules
    raise InputError(
        "replica symmetry breaking with more than one student field is implemented only for losses without kinks; "
        f"the loss of {problem.solver.name} has kinks"
    )


def energy_errors_of_quadrature_rules(
    symmetric: Solution, rules: Sequence[TiltedRule], state: BrokenSymmetryState, y: float
) -> list[float]:
    """Return the error that each quadrature rule makes in the replica symmetric training loss.

    It is nearly the rule's error in the energy with broken replica symmetry. The training loss is obtained from the
    same formulas, with a y so small that all states have equal weight.

    Args:
        symmetric: the replica symmetric solution.
        rules: quadrature rules.
        state: state with broken replica symmetry, whose Delta is used.
        y: Parisi parameter of the state.
    """
    problem, overlaps = symmetric.problem, symmetric.overlaps
    exact = float(symmetric.rule.averages(problem, overlaps).moreau.mean())
    copies = replace(state, between=replace(overlaps, q=overlaps.q - state.overlap_difference))
    soft = np.array([_SMALL_RATE * y])
    found = [rule.tilted_averages(problem, copies.between, copies.distances, soft) for rule in rules]
    # f_1 = -E M + y Var M / 2 and <M> = E M - y Var M, to first order.
    return [problem.alpha * (-2 * float(one.free[0]) - one.moreau - exact) for one in found]


def expected_breaking_seconds(solution: Solution) -> float:
    """Return the expected time in seconds of a solution with one step of replica symmetry breaking.

    The estimate is accurate to a factor of about three.

    Raises:
        InputError: breaking is not implemented for this loss.
    """
    problem, rule = solution.problem, solution.rule
    seconds = durations.predicted_evaluation_seconds(problem, rule)
    if not seconds:
        started = perf_counter()
        rule.averages(problem, solution.overlaps)
        seconds = perf_counter() - started
    return seconds * quadrature_rules_for_breaking(problem)[0].cost_of_symmetry_breaking_search(
        rule.evaluation_cost(problem)
    )
