"""The choice of quadrature rules for a problem, by its number of fields, its jumps, and the errors reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from ..base.errors import DomainError, InputError
from ..base.options import AlgorithmOptions
from ..integration import FAMILIES, LatticeRule, Rule, rule_by_name
from ..integration.rule import NEGLIGIBLE_JUMPS
from ..integration.sampled import MAX_PRODUCT_NODES, PRODUCTS, SAMPLES, WARM_PRODUCTS
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from ..saddle_point.iteration import FixedPoint, Status
from .approach import APPROACH_RULE
from .error_bars import failed_solution, solution_with_error_bars
from .local import overlap_shifts_by_replicates, relative_error_of_replicates, solve_by_newton
from .refinement import are_rule_weights_normalised, solve_by_deterministic_rules, solve_by_sampled_rules
from .settings import SolveSettings
from .solution import Solution


@dataclass(frozen=True)
class StrategyOptions(AlgorithmOptions):
    """Options of the choice between lattice rules and Sobol sets for many fields.

    Attributes:
        lattice_points: number of nodes up to which lattices are used without comparison with Sobol sets.
        lattices_per_sample: number of lattice sizes that take about the time of one size of Sobol sets.
        max_jump_fraction: fraction of nodes with jumps of the proximal map up to which lattices are tried.
    """

    lattice_points: float = 1e5
    lattices_per_sample: int = 4
    max_jump_fraction: float = 1e-3


Strategy = Callable[[SolveSettings, FixedPoint, Solution | None], Solution]
"""Refines a point near a solution; the solution of a neighbouring problem, if given, decides the first rule."""


def choose_integration_strategy(problem: Problem, integrator: str, points: int | None, seed: int) -> Strategy:
    """Return a function that solves by the named quadrature rule and size, or by adaptive refinement ("auto").

    Args:
        problem: the problem to solve.
        integrator: name of a family of quadrature rules, or "auto".
        points: size of that rule, for example its number of nodes; rules without replicates have a default.
        seed: seed of the sampled quadrature rules.

    Raises:
        InputError: there is no such rule, or `points` is given without a rule.
    """
    if integrator == "auto" and points is not None:
        *others, last = FAMILIES
        raise InputError(
            f"points = {points} needs integrator {', '.join(others)} or {last}; auto chooses points itself"
        )
    if integrator == "auto":
        return solve_by_best_quadrature_rules
    rule = rule_by_name(integrator, points, seed)
    if rule.replicated and points is None:
        return lambda task, point, near: solve_by_sampled_rules(task, point, near, rule.rules_coarse_to_fine(problem))
    if not rule.at_temperature:
        problem.require_zero_temperature(f"the rule {rule.name} integrates")
    return lambda task, point, near: solution_with_error_bars(task, solve_by_newton(task, rule, point), rule)


def solve_by_best_quadrature_rules(task: SolveSettings, approach: FixedPoint, near: Solution | None) -> Solution:
    """Solve by the families of quadrature rules that suit the problem best, until one meets the accuracy.

    For few fields these are product rules at a finite temperature, and panels and grids in proximal space at
    temperature zero; for many fields lattices and Sobol sets.

    Args:
        task: the settings of the solve.
        approach: a point near the solution.
        near: the solution of a neighbouring problem, whose rule and size are tried first; None without one.
    """
    problem, effort = task.problem, task.effort
    part = reduce_to_fields_of_loss(problem)
    fields, is_new = part.solver.channel.FIELDS, near is None
    if problem.inverse_temperature is not None:
        products = tuple(rule for rule in WARM_PRODUCTS if rule.is_affordable_at_finite_temperature(problem))[:effort]
        if len(products) > 1:
            task.record_quadrature_attempt(
                "product rules: at a finite temperature averages have no jumps, and few fields allow products"
            )
            return solve_by_deterministic_rules(task, approach, products, is_new)
        task.record_quadrature_attempt(
            "samples: at a finite temperature a product rule of so many fields has too many nodes"
        )
        return solve_by_sampled_rules(task, approach, near)
    if fields > 2 or not (part.solver.proximal.HAS_PROX_SPACE or fields == 1):
        return _solve_by_lattices_or_samples(task, approach, near)
    families = _rules_resolving_jumps(task)
    task.record_quadrature_attempt(
        f"{', then '.join(dict.fromkeys(rules[0].name for rules in families))}: the loss depends on "
        f"{fields} student field{'s' if fields > 1 else ''}, few enough for rules that resolve jumps"
    )
    if near is not None:
        families.sort(key=lambda rules: not isinstance(near.rule, type(rules[0])))
    solution: Solution | None = None
    for rules in families:
        found = solve_by_deterministic_rules(task, approach, _skip_too_coarse_rules(near, rules, task.accuracy), is_new)
        if found.success or found.status is Status.MINIMA_MISSED or (found.outside and found.losses is not None):
            return found
        solution = found if solution is None else min(solution, found, key=_sort_key_by_accuracy)
        if solution.losses is not None:
            approach = solution.fixed_point
    if solution is None:
        task.record_quadrature_attempt("samples: none of these gave a solution")
        return solve_by_sampled_rules(task, approach, near)
    if fields > 1 and solution.losses is not None:
        return solution
    if near is not None and near.rule.in_x and are_rule_weights_normalised(problem, solution.rule, approach.overlaps):
        return solution  # near the end of a branch Newton's method fails; samples, which are noisier, add nothing
    jumping = _fraction_of_nodes_with_jumps(task, approach)
    if isinstance(jumping, Solution):
        return jumping
    if fields > 1 and jumping > NEGLIGIBLE_JUMPS:
        task.record_quadrature_attempt(
            f"samples: no grid gave a solution, and the proximal map jumps at a fraction {jumping:.1g} of the fields"
        )
        return solve_by_sampled_rules(task, approach, near)
    task.record_quadrature_attempt(
        "products of Gauss-Hermite nodes: the grid in X is too wide for a narrow law of the fields"
    )
    # A grid in X may be too wide for a narrow law of omega given Y; nodes in omega adapt to it.
    products = tuple(rule for rule in PRODUCTS[:effort] if rule.node_count(problem) <= MAX_PRODUCT_NODES)
    best = min(solution, solve_by_deterministic_rules(task, approach, products), key=_sort_key_by_accuracy)
    if best.losses is not None:
        return best
    sampled = solve_by_sampled_rules(task, approach, near)
    return sampled if sampled.losses is not None or not solution.outside else solution


def _rules_resolving_jumps(task: SolveSettings) -> list[list[Rule]]:
    """Return the quadrature rules that resolve jumps: a list for each family, best family first."""
    problem, rules = task.problem, list[Rule]()
    for family in FAMILIES.values():
        tried = [
            rule for rule in family.rules_coarse_to_fine(problem) if rule.position_in_trial_order(problem) < np.inf
        ]
        rules += [rule.rule_for_accuracy(task.accuracy) for rule in tried[: task.effort]]
    rules.sort(key=lambda rule: rule.position_in_trial_order(problem))
    return [list(group) for _, group in groupby(rules, key=type)]


def finer_quadrature_rules(problem: Problem, rule: Rule) -> Sequence[Rule]:
    """Return quadrature rules finer than a given one, of its family and of others, in the order they are tried.

    After fine rules with nodes in proximal space, rules that split lines at kinks of the loss follow where applicable.

    Args:
        problem: the problem to solve.
        rule: the last rule used.
    """
    finer = rule.finer_rules(problem)
    lines = [family for family in FAMILIES.values() if family.splits_jumps and family.is_applicable(problem)]
    split = [size for family in lines for size in family.rules_coarse_to_fine(problem)]
    if not rule.in_x or not split:
        return finer
    return [
        *(size for size in finer if size.position_in_trial_order(problem) == rule.position_in_trial_order(problem)),
        *split,
    ]


def _fraction_of_nodes_with_jumps(task: SolveSettings, point: FixedPoint) -> float | Solution:
    """Return the fraction of nodes with jumps of the proximal map; a failed solution if outside the domain."""
    try:
        return APPROACH_RULE.averages(task.problem, point.overlaps).bistable
    except DomainError:  # as extrapolated overlaps may be
        return failed_solution(task, replace(point, status=Status.LEFT_DOMAIN), APPROACH_RULE)


def _solve_by_lattices_or_samples(task: SolveSettings, approach: FixedPoint, near: Solution | None) -> Solution:
    """Solve by lattice rules if the proximal map hardly jumps, otherwise by Sobol sets.

    Of nodes that symmetries map to each other a lattice evaluates only one.
    """
    options, problem = StrategyOptions.current(), task.problem
    lattices = LatticeRule.rules_coarse_to_fine(problem)[: options.lattices_per_sample * task.effort]
    jumping = _fraction_of_nodes_with_jumps(task, approach)
    if isinstance(jumping, Solution):
        return jumping
    most = (1 + len(task.symmetry.exchanges)) * options.lattice_points
    fields = f"the loss depends on {reduce_to_fields_of_loss(problem).solver.channel.FIELDS} student fields"
    if jumping > options.max_jump_fraction or not any(rule.node_count(problem) <= most for rule in lattices):
        jumps = jumping > options.max_jump_fraction
        why = f"the proximal map jumps at {jumping:.1g} of them" if jumps else "a lattice is too large"
        task.record_quadrature_attempt(f"samples: {fields}, and {why}")
        return solve_by_sampled_rules(task, approach, near)
    rules = _skip_too_coarse_rules(near, lattices, task.accuracy)
    task.record_quadrature_attempt(
        f"lattices: {fields}, and the proximal map jumps at no more than {max(jumping, 1e-12):.1g} of them"
    )
    small = max(1, sum(rule.node_count(problem) <= most for rule in rules))
    found = solve_by_deterministic_rules(task, approach, rules[:small], near is None, to_the_end=task.effort == 1)
    if found.losses is None:
        task.record_quadrature_attempt("samples: no small lattice gave a solution")
        return solve_by_sampled_rules(task, approach, near)
    if found.success or task.effort == 1:
        return found
    given_up = found.rule.size_in_words != rules[small - 1].size_in_words
    if given_up or not _are_lattices_faster_than_samples(task, found):
        task.record_quadrature_attempt("samples: they reach the accuracy with fewer nodes than lattices")
        return solve_by_sampled_rules(task, found.fixed_point, near)
    if not rules[small:]:
        return found
    return min(
        found,
        solve_by_deterministic_rules(task, found.fixed_point, rules[small:], patient=False),
        key=_sort_key_by_accuracy,
    )


def _are_lattices_faster_than_samples(task: SolveSettings, found: Solution) -> bool:
    """Return whether a lattice rule needs fewer nodes than Sobol sets to reach the accuracy."""
    problem, accuracy, sample, point = task.problem, task.accuracy, SAMPLES[0], found.fixed_point
    assert found.averages is not None
    try:
        shifts, _ = overlap_shifts_by_replicates(task, point, sample)
    except DomainError:
        return True
    noise, bistable = relative_error_of_replicates(shifts, point), found.averages.bistable
    visited = found.rule.predict_node_count(problem, found.relative_error, accuracy, bistable)
    return visited / (1 + len(task.symmetry.exchanges)) <= sample.predict_node_count(problem, noise, accuracy, bistable)


def _sort_key_by_accuracy(solution: Solution) -> tuple[bool, float]:
    """Return a sort key that puts solutions before failures, and the most accurate solution first."""
    return solution.losses is None, solution.relative_error


def _skip_too_coarse_rules(near: Solution | None, rules: Sequence[Rule], accuracy: float) -> Sequence[Rule]:
    """Return those quadrature rules that are at least as fine as the one used for a neighbouring solution."""
    sizes = [rule.rule_description() for rule in rules]
    if near is None or near.rule.rule_description() not in sizes:
        return rules
    generous = near.relative_error < accuracy / 10
    return rules[max(sizes.index(near.rule.rule_description()) - int(generous), 0) :]
