"""Refinement of the training loss by finer quadrature rules at fixed overlaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from ..base.options import AlgorithmOptions
from ..base.progress import progress_step
from ..integration import Rule, durations
from ..integration.estimates import error_bar_of_finest_rule, replicate_error_bar
from ..integration.rule import NEGLIGIBLE_JUMPS
from ..saddle_point import observables
from ..saddle_point.state_map import SaddlePointMap
from .solution import Solution


@dataclass(frozen=True)
class LossRefinementOptions(AlgorithmOptions):
    """Options of integrating the training loss alone.

    Attributes:
        max_nodes: largest number of quadrature nodes; more allow smaller error bars and take time.
    """

    max_nodes: float = 1.5e10


def refine_training_loss(solution: Solution, tolerance: float) -> Solution:
    """Return the solution with its training loss integrated more accurately, at fixed overlaps.

    Errors of the overlaps enter to second order only (docs/theory.md section 15). If these alone exceed the tolerance,
    the solution is returned unchanged: it has to be solved more accurately first.

    Args:
        solution: the solution.
        tolerance: absolute error bar of the training loss (per d) that is requested.
    """
    if solution.losses is None or solution.training_loss_error <= tolerance or solution.second_order > tolerance:
        return solution
    for finer in _refine_loss_by_finer_rules(solution):
        solution = finer
        if solution.training_loss_error <= tolerance:
            break
    return solution


def _refine_loss_by_finer_rules(solution: Solution) -> Iterator[Solution]:
    """Yield copies of the solution with the training loss by finer and finer quadrature rules."""
    problem, averages = solution.problem, solution.averages
    rule = solution.loss_rule or solution.rule
    if rule.replicated:
        for finer_rule in rule.finer_rules(problem):
            yield integrate_training_loss(solution, finer_rule)
        return
    if averages is None:
        return
    jumps = averages.bistable > NEGLIGIBLE_JUMPS
    if rule.rule_for_training_loss(averages.bistable) != rule:
        rule = rule.rule_for_training_loss(averages.bistable)
        averages = rule.averages(problem, solution.overlaps)
    coarser = [rule.coarser_rule()] if jumps else [rule.coarser_rule(), rule.coarser_rule().coarser_rule()]
    known = [averages, *(other.averages(problem, solution.overlaps) for other in coarser)]
    unit = abs(float(averages.moreau[0])) or 1.0
    while rule.finer_rule().evaluation_cost(problem) <= LossRefinementOptions.current().max_nodes:
        rule = rule.finer_rule()
        finer = integrate_training_loss(solution, rule)
        assert finer.averages is not None
        known = [finer.averages, *known[:3]]
        steps = [(after.moreau - before.moreau) / unit for after, before in pairwise(known)]
        error = problem.alpha * unit * error_bar_of_finest_rule(rule, steps, known)
        assert finer.losses is not None
        yield replace(finer, training_loss_error=error + solution.second_order + finer.losses.rounding)


def integrate_training_loss(solution: Solution, rule: Rule) -> Solution:
    """Return the solution with its training loss integrated by another quadrature rule.

    Args:
        solution: the solution, whose overlaps are kept.
        rule: quadrature rule of the training loss.

    Raises:
        InputError: the quadrature rule has too many nodes, or is not applicable to the problem.
    """
    problem, overlaps = solution.problem, solution.overlaps
    with progress_step(f"losses on {durations.describe_rule_with_duration(problem, rule)}"):
        averages = SaddlePointMap(problem, rule).channel_averages(overlaps)
    hats = SaddlePointMap(problem, rule).conjugates_at_overlaps(overlaps, averages.means)
    sampled = problem.alpha * float(replicate_error_bar(averages.moreau)) if rule.replicated else 0.0
    losses = observables.free_entropy_and_losses(problem, overlaps, hats, averages)
    return replace(
        solution,
        losses=losses,
        training_loss_error=sampled + solution.second_order + losses.rounding,
        conjugates=hats,
        averages=averages,
        loss_rule=rule,
    )
