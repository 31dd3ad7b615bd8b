"""Which of its mirror images weights of finite d are shown as, by signs, permutations of columns and tokens and
rotations, and what kind of state they are in, beside overlaps that are there by chance."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from ...problems import gauge
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...problems.symmetry import Exchange, exchanges
from ...saddle_point.starts import branch_of

_PROBES = 4
_MOST_COLUMNS = 5
_TIE = 1e-9
_ELSEWHERE = 0.5  # of theta with another column of the teacher
_CLEAR = 4.0  # standard deviations of overlaps of weights that know nothing, beyond which one stands out


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
    columns = list(order)
    if order == tuple(range(len(order))):
        return True
    if problem.solver.model.HOLDS_Q or not problem.regulariser.is_unchanged(lambda w: w[columns]):
        return False
    channel, generator = problem.solver.channel, np.random.default_rng(37)
    for labels, _ in problem.label_choices:
        c = problem.constants(labels)
        for _ in range(_PROBES):
            x = generator.standard_normal((problem.tokens, problem.student_rank))
            known = generator.standard_normal(channel.FEATURES)
            one, other = (channel.loss(*at.ravel(), *known, c) for at in (x, x[:, columns]))
            if not abs(one - other) <= 1e-12 * (1 + abs(one)):
                return False
    return True


def fluctuations(problem: Problem, overlaps: Overlaps, d: int) -> Overlaps:
    """Standard deviations, of order 1/sqrt(d), of the overlaps of weights of this size that know nothing of tau or pi.

    E m^2 = E w^2 E tau^2 / d, E theta^2 = q rho* / d, and Var q = 2 q^2 / d; one value a block, zero for V and for
    numbers trained with the weights.
    """
    law = problem.law
    q = np.abs(np.diagonal(overlaps.q, axis1=1, axis2=2))
    tau = np.einsum("a,aii->i", law.weights, law.gram)[: problem.contexts]
    return Overlaps(
        q=np.full_like(overlaps.q, np.sqrt(2 / d) * np.max(q)),
        V=np.zeros_like(overlaps.q),
        m=np.full_like(overlaps.m, np.sqrt(np.max(q / law.rho[:, None]) * np.max(tau) / d)),
        theta=np.full_like(overlaps.theta, np.sqrt(np.max(q) * np.abs(law.rho_star).max() / d)),
        phi=np.zeros_like(overlaps.phi),
    )


def kind_of(problem: Problem, d: int, overlaps: Overlaps) -> str:
    """semantic, positional, mixed or uninformed: by which of theta and m exceed four deviations of their noise."""
    return branch_of(overlaps, _CLEAR * fluctuations(problem, overlaps, d).pack())
