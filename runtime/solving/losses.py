"""The training loss by finer rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from ..base.progress import step
from ..integration import Rule, pace
from ..integration.estimates import finest_half_width, two_standard_errors
from ..integration.rule import NEGLIGIBLE_JUMPS
from ..saddle_point import observables
from ..saddle_point.state_map import StateMap
from .solution import Solution

_MOST_LOSS_NODES = 1.5e10  # of a grid for the training loss alone


def refine_losses(solution: Solution, tolerance: float) -> Solution:
    """The same overlaps with the training loss integrated until its error is below `tolerance` (absolute, per d).

    Phi is stationary, so that the error of the overlaps enters to second order only (docs/theory.md section 15). Where
    that alone is above the tolerance, nothing is done: the overlaps are to be solved to more digits first.
    """
    if solution.losses is None or solution.training_loss_error <= tolerance or solution.second_order > tolerance:
        return solution
    for finer in _by_finer_rules(solution):
        solution = finer
        if solution.training_loss_error <= tolerance:
            break
    return solution


def _by_finer_rules(solution: Solution) -> Iterator[Solution]:
    """The training loss by ever finer rules of the same family, each compared with the one before."""
    problem, averages = solution.problem, solution.averages
    rule = solution.loss_rule or solution.rule
    if rule.replicated:
        for level in rule.beyond(problem):
            yield with_losses(solution, level)
        return
    if averages is None:
        return
    jumps = averages.bistable > NEGLIGIBLE_JUMPS
    if rule.for_losses(averages.bistable) != rule:
        rule = rule.for_losses(averages.bistable)
        averages = rule.averages(problem, solution.overlaps)
    coarser = [rule.coarser()] if jumps else [rule.coarser(), rule.coarser().coarser()]
    known = [averages, *(other.averages(problem, solution.overlaps) for other in coarser)]
    unit = abs(float(averages.moreau[0])) or 1.0
    while rule.finer().cost(problem) <= _MOST_LOSS_NODES:
        rule = rule.finer()
        finer = with_losses(solution, rule)
        assert finer.averages is not None
        known = [finer.averages, *known[:3]]
        steps = [(after.moreau - before.moreau) / unit for after, before in pairwise(known)]
        error = problem.alpha * unit * finest_half_width(rule, steps, known)
        assert finer.losses is not None
        yield replace(finer, training_loss_error=error + solution.second_order + finer.losses.rounding)


def with_losses(solution: Solution, rule: Rule) -> Solution:
    """The training loss by another rule at the same overlaps; its error is the spread of the replicates, if any.

    Raises:
        InputError: the rule is too large, or not made for such a problem.
    """
    problem, overlaps = solution.problem, solution.overlaps
    with step(f"losses on {pace.words(problem, rule)}"):
        averages = StateMap(problem, rule).averages(overlaps)
    hats = StateMap(problem, rule).conjugates(overlaps, averages.means)
    sampled = problem.alpha * float(two_standard_errors(averages.moreau)) if rule.replicated else 0.0
    losses = observables.losses(problem, overlaps, hats, averages)
    return replace(
        solution,
        losses=losses,
        training_loss_error=sampled + solution.second_order + losses.rounding,
        conjugates=hats,
        averages=averages,
        loss_rule=rule,
    )
