"""The rules that average over the channel of a problem with replica symmetry broken: panels of a line for one student
field, grids for two, samples for more; their tolerances, and how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np

from ...base.errors import InputError
from ...integration import pace
from ...integration.estimates import difference_factors
from ...integration.pieces import PANELS, Pieces
from ...integration.tilted import TiltedAverages, suits, tilted_averages
from ...integration.tilted_grid import LADDER, Grids
from ...integration.tilted_samples import SAMPLES, Samples
from ...problems.problem import Problem
from ...solving.solution import Solution
from .state import Broken

TiltedRule = Pieces | Grids | Samples
# Of panels, grids and samples: residuals on the way and at the end (a kink that passes a place leaves a step, a sample
# that changes its well a larger one), first y.
_ROUGH = {Pieces: 1e-8, Grids: 1e-5, Samples: 3e-3}
_FINE = {Pieces: 1e-11, Grids: 1e-7, Samples: 1e-4}
_FIRST = {Pieces: 20.0, Grids: 5.0, Samples: 5.0}  # in units of `first_rate`; grids become large above
_STEPS = {Pieces: 1e-6, Grids: 1e-6, Samples: 2e-2}  # of differences: samples change their wells within one
_FALLS = {Pieces: 0.3, Grids: 0.3, Samples: 0.7}  # of the residual in a step, less than which asks for new differences
_SOFT = 1e-3  # of the Parisi parameter, at which all copies weigh the same but for what is accounted for
_SCATTER = 0.5  # slowest rate believed of grids: errors scatter with the places of cusps once they are small
_SHARE = {Pieces: 0.0, Grids: 1e-2, Samples: 0.1}  # of the accuracy that a residual may take
# What the search for one step takes: replica symmetric averages, for panels whose tilted averages are such at some
# hundred places of omega_0; units of `Rule.cost`, for grids and samples, whose sizes do not follow the other rule.
_AVERAGES = 4000.0
_EFFORT = {Grids: 5e9, Samples: 2e10}


def rules_for(problem: Problem) -> Sequence[TiltedRule]:
    """Return the rules for a problem, from coarse to fine.

    Raises:
        InputError: the loss reads more fields, or bends in two.
    """
    if suits(problem):
        return PANELS
    if Grids.suits(problem):
        return LADDER
    if Samples.suits(problem):
        return SAMPLES
    raise InputError(
        "one-step breaking of losses of more than one student field is solved where they have no corners; that "
        f"of {problem.solver.name} does"
    )


def tolerances(rule: TiltedRule, accuracy: float = 1e-4) -> tuple[float, float]:
    """Return the residuals asked on the way and at the end."""
    return _ROUGH[type(rule)], max(_FINE[type(rule)], _SHARE[type(rule)] * accuracy)


def first_rate(rule: TiltedRule) -> float:
    """Return the y at which states are searched for first, in units of V over what q leaves beside the teacher."""
    return _FIRST[type(rule)]


def difference_step(rule: TiltedRule) -> float:
    """Return the step of differences, in block scales and in log y."""
    return _STEPS[type(rule)]


def least_fall(rule: TiltedRule) -> float:
    """Return the factor on the residual in a step of Newton's method, above which differences are taken again."""
    return _FALLS[type(rule)]


def averages(
    problem: Problem, state: Broken, rates: np.ndarray, rule: TiltedRule, slopes: bool = False
) -> TiltedAverages:
    """Return `tilted_averages` by a rule of any kind."""
    if isinstance(rule, Grids | Samples):
        return rule.averages(problem, state.between, state.distances, rates, slopes)
    return tilted_averages(problem, state.between, state.distances, rates, rule, slopes)


def shift_counts(rule: TiltedRule, shifts: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the factors of the shifts to a finer and a coarser rule in error bars."""
    return difference_factors(*shifts, slowest=_SCATTER) if isinstance(rule, Grids) else difference_factors(*shifts)


def framed(rule: TiltedRule, state: Broken, rates: np.ndarray) -> TiltedRule:
    """Return the rule for the neighbourhood of a state: grids that stay where they are."""
    return rule.framed(state.between, state.distances, rates) if isinstance(rule, Grids) else rule


def of_rows(rule: TiltedRule, columns: int) -> Pieces | Grids:
    """Return the rule for rows of W, of one column or two, under a penalty that is no ridge."""
    if columns == 1:
        return rule if isinstance(rule, Pieces) else PANELS[-1]
    return rule if isinstance(rule, Grids) else LADDER[-1]


def told_beside(rule: object) -> bool:
    """Return whether energies are known relative to others: errors on grids and at samples are nearly the same."""
    return isinstance(rule, Grids | Samples)


def offsets(symmetric: Solution, rules: Sequence[TiltedRule], state: Broken, y: float) -> list[float]:
    """Return how far above the training loss of replica symmetry what rules make of it lies: the energy of a solution
    with blocks is off by nearly the same.

    Of copies that weigh the same f_1 is -E_z M, and q_0 + Delta the replica symmetric q: its average is E M.
    """
    problem, overlaps = symmetric.problem, symmetric.overlaps
    exact = float(symmetric.rule.averages(problem, overlaps).moreau.mean())
    copies = replace(state, between=replace(overlaps, q=overlaps.q - state.distance))
    found = [averages(problem, copies, np.array([_SOFT * y]), rule) for rule in rules]
    # f_1 = -E M + y Var M / 2 and <M> = E M - y Var M, to first order.
    return [problem.alpha * (-2 * float(one.free[0]) - one.moreau - exact) for one in found]


def expected_seconds(solution: Solution) -> float:
    """Return how many seconds one step of breaking from a solution takes, to a factor of three or so.

    Raises:
        InputError: it is not solved for this loss.
    """
    problem, rule = solution.problem, solution.rule
    family = type(rules_for(problem)[0])
    seconds = pace.expected(problem, rule)
    if not seconds:
        begun = perf_counter()
        rule.averages(problem, solution.overlaps)
        seconds = perf_counter() - begun
    return seconds * (_AVERAGES if family is Pieces else _EFFORT[family] / rule.cost(problem))
