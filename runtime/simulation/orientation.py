"""Which of its mirror images a minimum is shown as: signs, permutations of columns and tokens, rotations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from ..problems import gauge
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.symmetry import Exchange, exchanges

_PROBES = 4
_MOST_COLUMNS = 5
_TIE = 1e-9
_ELSEWHERE = 0.5  # of theta with another column of the teacher


def images(problem: Problem, overlaps: Overlaps) -> Iterator[Overlaps]:
    """The state itself, its mirror images on the same data, then those that would be as likely on other data."""
    identity = Exchange(tuple(range(problem.tokens)), (1,) * problem.student_rank, (1,) * problem.teacher_rank)
    same = [e for e in exchanges(problem) if (e.tokens, e.teacher) == (identity.tokens, identity.teacher)]
    others = [e for e in exchanges(problem) if e not in same]
    for exchange in (identity, *same, *others):
        for order in column_orders(problem):
            yield exchange.of_overlaps(permute(overlaps, order), problem.clusters)


def oriented(problem: Problem, overlaps: Overlaps, reference: Overlaps | None = None) -> Overlaps:
    """The image nearest to reference overlaps.

    Without a reference: the one in which what stands out in each column, theta or m, is positive first and, of theta,
    on the diagonal; an image is taken only if it is better than the state itself by more than rounding, so that what
    vanishes but for noise stays so.
    """
    overlaps = gauge.canonical(problem, overlaps, gauge.generators(problem))
    scales = overlaps.block_scales
    best, found = -np.inf, overlaps
    for image in images(problem, overlaps):
        score = _standing(image) if reference is None else -_distance(image, reference, scales)
        if score > best + _TIE:
            best, found = score, image
    return found


def _standing(overlaps: Overlaps) -> float:
    """How large the entries are that a canonical image has positive: of each column theta with its own column of the
    teacher, half as much with another one, or the first m."""
    size = float(np.abs(np.diagonal(overlaps.q, axis1=1, axis2=2)).max())
    total = 0.0
    for column in range(overlaps.m.shape[1]):
        theta, m = overlaps.theta[:, column] / size, overlaps.m[:, column] / np.sqrt(size)
        if np.abs(theta).max() >= np.abs(m).max():
            teacher = int(np.abs(theta).max(axis=0).argmax())
            total += float(theta[:, teacher].sum()) * (1 if teacher == column else _ELSEWHERE)
        else:
            total += float(m[np.argmax(np.abs(m) > np.abs(m).max() / 2)])
    return total


def _distance(overlaps: Overlaps, reference: Overlaps, scales: np.ndarray) -> float:
    difference = (overlaps.pack() - reference.pack()) / scales
    return float(np.nansum(difference**2))


def permute(overlaps: Overlaps, order: tuple[int, ...]) -> Overlaps:
    """The overlaps of W with its columns in another order."""
    columns = list(order)
    return Overlaps(
        q=overlaps.q[:, columns][:, :, columns],
        V=overlaps.V[:, columns][:, :, columns],
        m=overlaps.m[:, columns],
        theta=overlaps.theta[:, columns],
        phi=overlaps.phi,
    )


def column_orders(problem: Problem) -> list[tuple[int, ...]]:
    """Orders of W's columns that change neither loss nor regulariser (probed at random points), the given one first."""
    s = problem.student_rank
    every = list(permutations(range(s))) if s <= _MOST_COLUMNS else [tuple(range(s))]
    return [order for order in every if _keeps(problem, order)]


def _keeps(problem: Problem, order: tuple[int, ...]) -> bool:
    if order == tuple(range(len(order))):
        return True
    channel, columns = problem.solver.channel, list(order)
    generator = np.random.default_rng(37)
    if problem.has_ridge:
        if np.any(problem.strengths != problem.strengths[columns]):
            return False
    else:
        prior = problem.solver.prior
        for _ in range(_PROBES):
            w, pi = generator.standard_normal(problem.student_rank), generator.standard_normal(prior.KNOWN)
            values = [prior.regulariser(*row, *pi, problem.strengths) for row in (w, w[columns])]
            if not abs(values[0] - values[1]) <= 1e-12 * (1 + abs(values[0])):
                return False
    if problem.solver.model.HOLDS_Q:
        return False
    for labels, _ in problem.label_choices:
        c = problem.constants(labels)
        for _ in range(_PROBES):
            x = generator.standard_normal((problem.tokens, problem.student_rank))
            known = generator.standard_normal(channel.FEATURES)
            values = [channel.loss(*at.ravel(), *known, c) for at in (x, x[:, columns])]
            if not abs(values[0] - values[1]) <= 1e-12 * (1 + abs(values[0])):
                return False
    return True
