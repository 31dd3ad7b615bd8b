"""Which families of rules solve a problem, in which order: chosen by its fields, its jumps, and what was reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from ..base.errors import DomainError, InputError
from ..integration import FAMILIES, Lattice, Rule, rule_named
from ..integration.estimates import two_standard_errors
from ..integration.rule import NEGLIGIBLE_JUMPS
from ..integration.sampled import MOST_NODES, PRODUCTS, SAMPLES, WARM_PRODUCTS
from ..problems.problem import Problem
from ..problems.reduced import integrated
from ..saddle_point.iteration import FixedPoint, Status
from .approach import APPROACH_RULE
from .error_bars import failed_solution, finish_point
from .local import newton_at, replicate_shifts
from .refinement import refine_rules, refine_samples
from .solution import Solution
from .task import Task

_FEW_POINTS = 1e5  # of lattices, before they are compared with Sobol sets
_LATTICES = 4  # that take the time of one size of Sobol sets, about
_FEW_JUMPS = 1e-3  # of the measure, with which sums over lattices are still better than Sobol sets

Strategy = Callable[[Task, FixedPoint, Solution | None], Solution]
"""From near a solution to its digits; the solution of a neighbouring problem, where there is one, tells which rule."""


def strategy_for(problem: Problem, integrator: str, points: int | None, seed: int) -> Strategy:
    """Return adaptive refinement where no rule, or no size of one with replicates, is named; the one rule else.

    Raises:
        InputError: points without a rule, or no such rule.
    """
    if integrator == "auto" and points is not None:
        *others, last = FAMILIES
        raise InputError(f"points = {points} goes with integrator {', '.join(others)} or {last}; auto picks its own")
    if integrator == "auto":
        return refine_best
    rule = rule_named(integrator, points, seed)
    if rule.replicated and points is None:
        return lambda task, point, near: refine_samples(task, point, rule.sizes(problem))
    if not rule.at_temperature:
        problem.only_at_zero_temperature(f"the rule {rule.name} integrates")
    return lambda task, point, near: finish_point(task, newton_at(task, rule, point), rule)


def refine_best(task: Task, approach: FixedPoint, near: Solution | None) -> Solution:
    """Solve by the families of rules that are best for the problem: at a finite temperature product rules where few
    fields allow them; for few fields panels and grids in proximal space; else lattices and Sobol sets."""
    problem, effort = task.problem, task.effort
    part = integrated(problem)
    fields, is_new = part.solver.channel.FIELDS, near is None
    if problem.inverse_temperature is not None:
        products = tuple(rule for rule in WARM_PRODUCTS if rule.is_affordable_at_temperature(problem))[:effort]
        if len(products) > 1:
            task.tell("product rules: at a finite temperature averages have no jumps, and few fields allow products")
            return refine_rules(task, approach, products, is_new)
        task.tell("samples: at a finite temperature a product rule of so many fields has too many nodes")
        return refine_samples(task, approach)
    if fields > 2 or not (part.solver.proximal.HAS_PROX_SPACE or fields == 1):
        return _in_many_fields(task, approach, near)
    families = _families(task)
    task.tell(
        f"{', then '.join(dict.fromkeys(rules[0].name for rules in families))}: the loss depends on "
        f"{fields} student field{'s' if fields > 1 else ''}, few enough for rules that resolve jumps"
    )
    if near is not None:
        families.sort(key=lambda rules: not isinstance(near.rule, type(rules[0])))
    solution: Solution | None = None
    for rules in families:
        found = refine_rules(task, approach, _from_size_of(near, rules, task.accuracy), is_new)
        if found.success or found.status is Status.MINIMA_MISSED or (found.outside and found.losses is not None):
            return found
        solution = found if solution is None else min(solution, found, key=_quality)
        if solution.losses is not None:
            approach = solution.fixed_point
    if solution is None:
        task.tell("samples: none of these led to a solution")
        return refine_samples(task, approach)
    if fields > 1 and solution.losses is not None:
        return solution
    jumping = _fraction_with_jumps(task, approach)
    if isinstance(jumping, Solution):
        return jumping
    if fields > 1 and jumping > NEGLIGIBLE_JUMPS:
        task.tell(f"samples: the grid does not cover the fields, and the proximal map jumps at {jumping:.1g} of them")
        return refine_samples(task, approach)
    task.tell("products of Gauss-Hermite nodes: the grid in X is too wide for a narrow law of the fields")
    # A grid in X may be too wide for a narrow law of omega given Y: nodes in omega adapt to it.
    products = tuple(rule for rule in PRODUCTS[:effort] if rule.nodes(problem) <= MOST_NODES)
    best = min(solution, refine_rules(task, approach, products), key=_quality)
    if best.losses is not None:
        return best
    sampled = refine_samples(task, approach)
    return sampled if sampled.losses is not None or not solution.outside else solution


def _families(task: Task) -> list[list[Rule]]:
    """Return the rules that resolve jumps, in the order in which families say that they are tried."""
    problem, rules = task.problem, list[Rule]()
    for family in FAMILIES.values():
        tried = [rule for rule in family.sizes(problem) if rule.rank(problem) < np.inf]
        rules += [rule.for_accuracy(task.accuracy) for rule in tried[: task.effort]]
    rules.sort(key=lambda rule: rule.rank(problem))
    return [list(group) for _, group in groupby(rules, key=type)]


def finer_rules(problem: Problem, rule: Rule) -> Sequence[Rule]:
    """Return the rules to go on with after one, in the order in which `refine_best` takes them.

    Where lines that are split at kinks of the loss suit the problem, nodes in X that are fine already give way to them.
    """
    finer = rule.beyond(problem)
    lines = [family for family in FAMILIES.values() if family.splits_jumps and family.suits(problem)]
    split = [size for family in lines for size in family.sizes(problem)]
    if not rule.in_x or not split:
        return finer
    return [*(size for size in finer if size.rank(problem) == rule.rank(problem)), *split]


def _fraction_with_jumps(task: Task, point: FixedPoint) -> float | Solution:
    """Return the fraction of the measure on which the proximal map may jump; a failed solution outside the domain."""
    try:
        return APPROACH_RULE.averages(task.problem, point.overlaps).bistable
    except DomainError:  # as extrapolated overlaps may be
        return failed_solution(task, replace(point, status=Status.LEFT_DOMAIN), APPROACH_RULE)


def _in_many_fields(task: Task, approach: FixedPoint, near: Solution | None) -> Solution:
    """Solve by lattices where the proximal map hardly jumps, and by Sobol sets where it does or no small one leads
    anywhere.

    Of nodes that exchanges take to each other, a lattice visits one.
    """
    problem = task.problem
    lattices = Lattice.sizes(problem)[: _LATTICES * task.effort]
    jumping = _fraction_with_jumps(task, approach)
    if isinstance(jumping, Solution):
        return jumping
    most = (1 + len(task.symmetry.exchanges)) * _FEW_POINTS
    fields = f"the loss depends on {integrated(problem).solver.channel.FIELDS} student fields"
    if jumping > _FEW_JUMPS or not any(rule.nodes(problem) <= most for rule in lattices):
        why = f"the proximal map jumps at {jumping:.1g} of them" if jumping > _FEW_JUMPS else "a lattice is too large"
        task.tell(f"samples: {fields}, and {why}")
        return refine_samples(task, approach)
    rules = _from_size_of(near, lattices, task.accuracy)
    task.tell(f"lattices: {fields}, and the proximal map jumps at no more than {max(jumping, 1e-12):.1g} of them")
    small = max(1, sum(rule.nodes(problem) <= most for rule in rules))
    found = refine_rules(task, approach, rules[:small], near is None, to_the_end=task.effort == 1)
    if found.losses is None:
        task.tell("samples: no small lattice led to a solution")
        return refine_samples(task, approach)
    if found.success or task.effort == 1:
        return found
    given_up = found.rule.size != rules[small - 1].size
    if given_up or not _lattices_are_faster(task, found):
        task.tell("samples: they reach the accuracy with fewer nodes than lattices")
        return refine_samples(task, found.fixed_point)
    if not rules[small:]:
        return found
    return min(found, refine_rules(task, found.fixed_point, rules[small:], patient=False), key=_quality)


def _lattices_are_faster(task: Task, found: Solution) -> bool:
    """Return whether a lattice visits fewer nodes for the accuracy than Sobol sets, by the errors of small ones."""
    problem, accuracy, sample, point = task.problem, task.accuracy, SAMPLES[0], found.fixed_point
    assert found.averages is not None
    try:
        shifts, _ = replicate_shifts(task, point, sample)
    except DomainError:
        return True
    noise, bistable = float(np.max(two_standard_errors(shifts) / point.overlaps.block_scales)), found.averages.bistable
    visited = found.rule.nodes_for(problem, found.relative_error, accuracy, bistable)
    return visited / (1 + len(task.symmetry.exchanges)) <= sample.nodes_for(problem, noise, accuracy, bistable)


def _quality(solution: Solution) -> tuple[bool, float]:
    """Return a sort key: solutions before failures, the most accurate first."""
    return solution.losses is None, solution.relative_error


def _from_size_of(near: Solution | None, rules: Sequence[Rule], accuracy: float) -> Sequence[Rule]:
    """Return the rules from the one that a neighbouring solution needed, or one coarser if it was too good."""
    sizes = [rule.describe() for rule in rules]
    if near is None or near.rule.describe() not in sizes:
        return rules
    generous = near.relative_error < accuracy / 10
    return rules[max(sizes.index(near.rule.describe()) - int(generous), 0) :]
