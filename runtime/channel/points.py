"""Proximal points at single nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.threads import share
from ..problems.problem import Problem
from .fields import Fields, whole_matrix
from .shared import proximal_columns, slopes_of


class Points(NamedTuple):
    """Proximal points at N nodes, for one value of the labelled noise.

    Attributes:
        omega, g, x: (N, L, s); features: of teacher and noise, (N, features).
        value: of the Moreau objective; gap: to the second lowest minimum seen, nan without; minima: 1, 2 for more than
            one, 0 where the descent did not converge; weight: probability of the noise value given Y; each (N,).
    """

    omega: np.ndarray
    g: np.ndarray
    x: np.ndarray
    features: np.ndarray
    value: np.ndarray
    gap: np.ndarray
    minima: np.ndarray
    weight: np.ndarray


def noise_choices(problem: Problem) -> range:
    """Values of the labelled noise; one without."""
    return range(max(1, len(problem.solver.channel.LABELLED_NOISE)))


def points_at(
    problem: Problem, fields: Fields, nodes: np.ndarray, search: int | None = None, choice: int = 0
) -> Points:
    """Proximal points at nodes in standard normal coordinates.

    Args:
        search: as in `Problem`, the problem's own where None.
        choice: value of the labelled noise, from `noise_choices`.
    """
    problem.only_at_zero_temperature("proximal points are found")
    channel = problem.solver.proximal
    law = *fields.sampling, fields.precision, problem.noise_scale, fields.constants
    search = problem.search if search is None else search
    columns = proximal_columns(channel, np.ascontiguousarray(nodes), *law, search, choice)
    shape = (len(nodes), problem.tokens, problem.student_rank)
    D, F = channel.FIELDS, channel.FEATURES
    omega, features, x = np.split(columns[:, : 2 * D + F], [D, D + F], axis=1)
    omega, x = omega.reshape(shape), x.reshape(shape)
    g = np.einsum("lab,nlb->nla", fields.precision, x - omega)
    value, gap, minima, _, weight = columns[:, 2 * D + F :].T
    return Points(omega, g, x, np.ascontiguousarray(features), value, gap, minima, weight)


def slopes_at(
    problem: Problem, fields: Fields, nodes: np.ndarray, weights: np.ndarray, search: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return det(I + V H) (M,), weights (M,) and G = dg/domega (M, D, D), a row a node and value of labelled noise."""
    channel = problem.solver.proximal
    shares, slopes = slopes_of(channel, nodes)
    determinants = np.ones(len(shares))
    law = *fields.sampling, fields.precision, fields.variance, problem.noise_scale, fields.constants
    search = problem.search if search is None else search
    share(channel.field_slopes, len(nodes), nodes, weights, *law, search, determinants, shares, slopes)
    return determinants, shares, slopes


def field_slopes(
    problem: Problem, fields: Fields, x: np.ndarray, known: np.ndarray, step: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return dg/domega = -H (1 + V H)^(-1) at minima x (N, D) and 1 + H V, (N, D, D).

    Args:
        known: features (N, F); step: of the differences of the loss's slope that give H.
    """
    D, losses_at = x.shape[1], problem.solver.proximal.losses_at
    hessian = np.empty((*x.shape, D))
    for b, unit in enumerate(np.eye(D)):
        one, other = (losses_at(x + way * step * unit, known, fields.constants)[1] for way in (1, -1))
        hessian[:, :, b] = (one - other) / (2 * step)
    hessian = (hessian + hessian.transpose(0, 2, 1)) / 2
    matrix = np.eye(D) + hessian @ whole_matrix(fields.variance)
    return -np.linalg.solve(matrix, hessian), matrix
