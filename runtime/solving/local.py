"""Local steps on one rule: Newton's method, implicit steps, and how far another rule would move a solution."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from ..base.errors import DomainError
from ..base.progress import step
from ..integration import Averages, Rule, pace
from ..saddle_point.iteration import FixedPoint, Status, newton
from ..saddle_point.relaxation import relax
from ..saddle_point.slopes import HASTY, jacobian_by_rule
from .task import Task

_SMOOTH_FLOOR = 1e-7  # a rule without nodes that swap converges further than this
_NON_ADAPTIVE_FLOOR = 1e-2  # of the accuracy, where a few nodes may swap
_FAR = 1e-2  # in block scales: beyond, slopes are taken again


def newton_at(task: Task, rule: Rule, point: FixedPoint, sample: Rule = HASTY) -> FixedPoint:
    """Return where Newton's method on a rule leads from a point, to the residual that the accuracy asks of it.

    A smooth rule that stalls above a residual of 1e-7 ends with MAX_ITERATIONS, not FLOOR; one whose nodes know nothing
    of jumps, above what a hundredth of the accuracy allows. Slopes that were taken far from where it converged are
    taken again there.

    Args:
        sample: sets over which the slopes of a sampled rule are taken.
    """

    def slopes(u: np.ndarray) -> np.ndarray:
        return jacobian_by_rule(task.problem, rule, u, point.sizes, sample, task.symmetry)

    with step(f"Newton's method on {pace.words(task.problem, rule)}"):
        start = replace(point, u=task.symmetry.project(point.u, point.sizes))
        reached = newton(task.map_by(rule), start, rule.tolerance(task.accuracy), slopes)
        floor = max(_SMOOTH_FLOOR, _NON_ADAPTIVE_FLOOR * task.accuracy) if rule.blind else _SMOOTH_FLOOR
        if reached.status is Status.FLOOR and not rule.replicated and reached.residual > floor:
            # A smooth map has no floor: this is a slow approach, as to a point where two branches meet.
            reached = replace(reached, status=Status.MAX_ITERATIONS)
        elif reached.status.success and reached.drift > _FAR:
            # Newton converges with slopes that are off by half; error bars, (I - J)^{-1} times what other rules say,
            # would be off by more.
            with suppress(DomainError):
                reached = replace(reached, jacobian=slopes(reached.u), drift=0.0)
    return _reported(task, rule, "Newton's method", reached)


def relaxed_at(task: Task, rule: Rule, start: FixedPoint) -> FixedPoint:
    """Return where implicit steps on a rule lead from a start."""
    with step(f"implicit steps on {pace.words(task.problem, rule)}"):
        reached = relax(task.map_by(rule), start, rule.tolerance(task.accuracy))
    return _reported(task, rule, "implicit steps", reached)


def _reported(task: Task, rule: Rule, method: str, reached: FixedPoint) -> FixedPoint:
    how = "" if reached.status.success else f": {reached.status.words}"
    task.tell(f"{pace.words(task.problem, rule)}: {method}, residual {reached.residual:.0e}{how}")
    return reached


def replicate_shifts(task: Task, point: FixedPoint, rule: Rule) -> tuple[np.ndarray, Averages]:
    """Return how far a rule would move the solution to first order, a replicate a row, (R, n), and its averages.

    (I - J)^{-1} (G_r(u) - u).

    Raises:
        DomainError: they leave the domain.
    """
    state_map = task.map_by(rule)
    with step(f"comparing with {pace.words(task.problem, rule)}"):
        averages = state_map.averages(point.overlaps)
    images = state_map.images(point.u, averages, point.sizes)
    matrix = point.jacobian
    if matrix is None:
        matrix = jacobian_by_rule(task.problem, rule, point.u, point.sizes, HASTY, task.symmetry)
    return state_map.correction(matrix, point.u, images - point.u, point.sizes), averages


def rule_shift(task: Task, point: FixedPoint, rule: Rule) -> tuple[np.ndarray, Averages]:
    """Return the mean of `replicate_shifts`, (n,), and the averages.

    Raises:
        DomainError: they leave the domain.
    """
    shifts, averages = replicate_shifts(task, point, rule)
    return shifts.mean(axis=0), averages
