"""Adaptive refinement: the rules of one family from coarse to fine, until the error bars are what was asked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from ..base import budget
from ..base.errors import DomainError
from ..base.progress import left, step
from ..integration import Rule, pace
from ..integration.estimates import two_standard_errors
from ..integration.rule import DIFFERENCE_SAFETY
from ..integration.sampled import SAMPLES
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import integrated
from ..saddle_point.iteration import FixedPoint, Status, damped
from ..saddle_point.slopes import HASTY, PATIENT
from ..saddle_point.state_map import StateMap
from .error_bars import failed_solution, finish_point
from .local import newton_at, relaxed_at, replicate_shifts, rule_shift
from .solution import Solution
from .task import Task

MASS_TOLERANCE = 1e-3
_PATIENT_SIZE = 2  # number of the size, from which slopes are taken over the larger set
_TRAIL = 2  # sizes before the last that bound what a rule knows which did not reach its accuracy


def refine_rules(
    task: Task, approach: FixedPoint, rules: Sequence[Rule], patient: bool = True, to_the_end: bool = True
) -> Solution:
    """Solve by deterministic rules from coarse to fine, each started from the last, until the next finer one agrees.

    Args:
        patient: whether to iterate with damping where Newton fails at first, and to try the next rule.
        to_the_end: whether also where the last sizes gained so little that those left do not lead to the accuracy.
    """
    problem, accuracy = task.problem, task.accuracy
    one_field = integrated(problem).solver.channel.FIELDS == 1
    point, failures, next_number = approach, 0, 0
    solved: tuple[FixedPoint, Rule] | None = None
    solution: Solution | None = None
    relaxed: FixedPoint | None = None
    known: tuple[int, float] | None = None
    trail: list[np.ndarray] = []
    for number, rule in enumerate(rules):
        if number < next_number:
            continue
        point = replace(point, u=task.symmetry.project(point.u, point.sizes))
        covered = not rule.in_x or covers(problem, rule, point.overlaps)
        if not covered:
            reached = replace(point, status=Status.MAX_ITERATIONS)
            task.tell(f"{pace.words(problem, rule)}: the law of the fields does not fit on it")
        elif relaxed is not None and relaxed.status.success:
            # Where Newton's method failed on one rule its slopes mean little on the next.
            reached = relaxed_at(task, rule, point)
        else:
            reached = newton_at(task, rule, point)
        if patient and covered and not reached.status.success and failures == 0:
            # The damped iteration had a coarser rule: a soft branch may be far from there.
            nearer = damped(task.map_by(rule), approach.overlaps, 1e-4, max_iterations=60, hopeful=False)
            nearer = replace(nearer, jacobian=None, iterations=reached.iterations + nearer.iterations)
            reached = newton_at(task, rule, nearer)
            if not reached.status.success and one_field:
                relaxed = relaxed_at(task, rule, approach)
                reached = relaxed if relaxed.status.success else reached
        if not reached.status.success:
            failures += 1
            # The grid may be too wide for the law of the fields; where finer ones are cheap they are tried.
            if not one_field and (solved or not patient or failures >= 2):
                break
            continue
        solved, solution = (reached, rule), None
        trail.append(reached.u)
        to_finer = None
        with suppress(DomainError):
            to_finer, _ = rule_shift(task, reached, rule.finer())
        budget.offer(partial(finish_point, task, reached, rule))
        if to_finer is None:
            break
        error = DIFFERENCE_SAFETY * float(np.max(np.abs(to_finer) / reached.overlaps.block_scales))
        next_number = min(number + rule.sizes_ahead(error, accuracy), len(rules) - 1)
        if error < accuracy:
            solution = finish_point(task, reached, rule)
            if solution.success or solution.status is Status.MINIMA_MISSED:
                return solution
            budget.offer(partial(replace, solution))
        left(f"error bar so far about {error:.0e}, asked {accuracy:.0e}")
        task.tell(f"{pace.words(problem, rule)}: a finer rule moves it by {error:.0e}, asked {accuracy:.0e}")
        point = replace(reached, u=reached.u + to_finer)
        if known is not None and not to_the_end:
            before, larger = known
            gain = float(np.log(larger / error)) / (number - before)
            if gain * (len(rules) - 1 - number) < float(np.log(error / accuracy)):
                task.tell("extrapolated from the last sizes, the larger ones do not reach the accuracy")
                break
        known = number, error
    if solved is None:
        return failed_solution(task, replace(reached, outside=relaxed.outside if relaxed else reached.outside), rule)
    solution = solution or finish_point(task, *solved)
    if solution.losses is None or solution.success:
        return solution
    # Out of a rule's depth the next size may be as wrong as this one: nothing is known better than how far they moved.
    moved = [np.abs(solution.overlaps.pack() - _with_sign_of(u, solution.overlaps)) for u in trail[-1 - _TRAIL : -1]]
    wider = replace(solution, errors=np.max([solution.errors, *moved], axis=0))
    factor = wider.relative_error / solution.relative_error
    return replace(wider, observed={name: (value, factor * e) for name, (value, e) in solution.observed.items()})


def refine_samples(task: Task, approach: FixedPoint, rules: Sequence[Rule] = SAMPLES) -> Solution:
    """Solve by larger and larger sets, each started from the last, until the spread of the replicates meets the
    accuracy.

    A soft branch with jumps may be out of reach of Newton on few points: their floor is high, and differences over them
    say little about the slope. It is then tried once on a larger set with a Jacobian from a larger one.
    """
    accuracy, last = task.accuracy, min(len(rules), task.effort) - 1
    point, position, patient = approach, 0, False
    while True:
        rule = rules[position].seeded(task.seed)
        point = newton_at(task, rule, point, PATIENT if patient else HASTY)
        if not point.status.success:
            if patient or point.status is not Status.MAX_ITERATIONS:
                return failed_solution(task, point, rule)
            patient, position, point = True, max(position, _PATIENT_SIZE), replace(point, jacobian=None)
            continue
        try:
            shifts, _ = replicate_shifts(task, point, rule)
        except DomainError:
            return failed_solution(task, replace(point, status=Status.LEFT_DOMAIN), rule)
        error = float(np.max(two_standard_errors(shifts) / point.overlaps.block_scales))
        budget.offer(partial(finish_point, task, point, rule))
        left(f"error bar so far {error:.0e}, asked {accuracy:.0e}")
        task.tell(f"{pace.words(task.problem, rule)}: replicates differ by {error:.0e}, asked {accuracy:.0e}")
        if error <= accuracy or position >= last:
            return finish_point(task, point, rule)
        position = min(last, position + rule.sizes_ahead(error, accuracy))


def covers(problem: Problem, rule: Rule, overlaps: Overlaps, tolerance: float = MASS_TOLERANCE) -> bool:
    """Return whether a rule's weights add up to one and its saddles lead to two minima each.

    A grid too wide for the law of the fields may miss it, and sharply bent losses have more critical points than that.
    """
    try:
        with step(f"whether the fields fit on {pace.words(problem, rule)}"):
            averages = StateMap(problem, rule).averages(overlaps)
        return abs(averages.mass - 1) + averages.unconverged < tolerance
    except DomainError:
        return False


def _with_sign_of(u: np.ndarray, overlaps: Overlaps) -> np.ndarray:
    """Return a packed state with the free sign of the weights that another one has."""
    own = Overlaps.unpack(u, overlaps.sizes)
    return u if own.free_sign_is_positive == overlaps.free_sign_is_positive else own.flipped().pack()
