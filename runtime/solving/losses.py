"""Refine the training loss: integrate it by finer rules at the same overlaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from ..base.options import AlgorithmOptions
from ..base.progress import progress_step
from ..integration import Rule, durations
from ..integration.estimates import finest_rule_error, two_standard_errors
from ..integration.rule import NEGLIGIBLE_JUMPS
from ..saddle_point import observables
from ..saddle_point.state_map import StateMap
from .solution import Solution


@dataclass(frozen=True)
class LossRefinementOptions(AlgorithmOptions):
    """Options of integrating the training loss alone.

    Attributes:
        max_nodes: of a grid; more allow smaller error bars and cost time.
    """

    max_nodes: float = 1.5e10


def refine_training_loss(solution: Solution, tolerance: float) -> Solution:
    """Return the same overlaps with the training loss integrated to a tolerance.

    Phi is stationary, so that the error of the overlaps enters to second order only (docs/theory.md section 15). Where
    that alone is above the tolerance, the solution is returned as it is: it has to be solved to more digits first.

    Args:
        solution: with its training loss by the rule of the overlaps.
        tolerance: error bar of the training loss, absolute, per d.
    """
    if solution.losses is None or solution.training_loss_error <= tolerance or solution.second_order > tolerance:
        return solution
    for finer in _with_finer_losses(solution):
        solution = finer
        if solution.training_loss_error <= tolerance:
            break
    return solution


def _with_finer_losses(solution: Solution) -> Iterator[Solution]:
    """Yield the solution with the training loss by finer and finer rules, each compared with the one before."""
    problem, averages = solution.problem, solution.averages
    rule = solution.loss_rule or solution.rule
    if rule.replicated:
        for finer_rule in rule.finer_rules(problem):
            yield integrate_training_loss(solution, finer_rule)
        return
    if averages is None:
        return
    jumps = averages.bistable > NEGLIGIBLE_JUMPS
    if rule.rule_for_losses(averages.bistable) != rule:
        rule = rule.rule_for_losses(averages.bistable)
        averages = rule.averages(problem, solution.overlaps)
    coarser = [rule.coarser_rule()] if jumps else [rule.coarser_rule(), rule.coarser_rule().coarser_rule()]
    known = [averages, *(other.averages(problem, solution.overlaps) for other in coarser)]
    unit = abs(float(averages.moreau[0])) or 1.0
    while rule.finer_rule().cost(problem) <= LossRefinementOptions.current().max_nodes:
        rule = rule.finer_rule()
        finer = integrate_training_loss(solution, rule)
        assert finer.averages is not None
        known = [finer.averages, *known[:3]]
        steps = [(after.moreau - before.moreau) / unit for after, before in pairwise(known)]
        error = problem.alpha * unit * finest_rule_error(rule, steps, known)
        assert finer.losses is not None
        yield replace(finer, training_loss_error=error + solution.second_order + finer.losses.rounding)


def integrate_training_loss(solution: Solution, rule: Rule) -> Solution:
    """Return the solution with the training loss by another rule; its error is the spread of the replicates, if any.

    Args:
        solution: the solution, whose overlaps stay.
        rule: of the training loss.

    Raises:
        InputError: the rule is too large, or not applicable to such a problem.
    """
    problem, overlaps = solution.problem, solution.overlaps
    with progress_step(f"losses on {durations.describe_with_duration(problem, rule)}"):
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
