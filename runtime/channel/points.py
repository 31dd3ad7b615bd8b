"""Proximal points at single nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.threads import run_in_threads
from ..problems.problem import Problem
from .fields import Fields, block_diagonal
from .shared import allocate_slopes, proximal_columns


class ProximalPoints(NamedTuple):
    """A set of proximal points at N nodes, for one value of the labelled noise.

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


def noise_values(problem: Problem) -> range:
    """Return the values of the labelled noise; one without."""
    return range(max(1, len(problem.solver.channel.LABELLED_NOISE)))


def proximal_points_at(
    problem: Problem, fields: Fields, nodes: np.ndarray, search: int | None = None, choice: int = 0
) -> ProximalPoints:
    """Return proximal points at nodes in standard normal coordinates.

    Args:
        problem: problem at zero temperature.
        fields: law of the fields.
        nodes: (N, dimension), in (z_Y, z_omega, noise).
        search: as in `Problem`, the problem's own where None.
        choice: value of the labelled noise, from `noise_values`.
    """
    problem.require_zero_temperature("proximal points are found")
    channel = problem.solver.proximal
    law = *fields.sampling_arguments, fields.precision, problem.noise_scale, fields.constants
    search = problem.search if search is None else search
    columns = proximal_columns(channel, np.ascontiguousarray(nodes), *law, search, choice)
    shape = (len(nodes), problem.tokens, problem.student_rank)
    D, F = channel.FIELDS, channel.FEATURES
    omega, features, x = np.split(columns[:, : 2 * D + F], [D, D + F], axis=1)
    omega, x = omega.reshape(shape), x.reshape(shape)
    g = np.einsum("lab,nlb->nla", fields.precision, x - omega)
    value, gap, minima, _, weight = columns[:, 2 * D + F :].T
    return ProximalPoints(omega, g, x, np.ascontiguousarray(features), value, gap, minima, weight)


def slopes_at_nodes(
    problem: Problem, fields: Fields, nodes: np.ndarray, weights: np.ndarray, search: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return det(I + V H) (M,), weights (M,) and G = dg/domega (M, D, D), a row a node and value of labelled noise.

    Args:
        problem: problem at zero temperature.
        fields: law of the fields.
        nodes: (N, dimension), in (z_Y, z_omega, noise).
        weights: (N,).
        search: as in `Problem`, the problem's own where None.
    """
    channel = problem.solver.proximal
    shares, slopes = allocate_slopes(channel, nodes)
    determinants = np.ones(len(shares))
    law = *fields.sampling_arguments, fields.precision, fields.variance, problem.noise_scale, fields.constants
    search = problem.search if search is None else search
    run_in_threads(channel.field_slopes, len(nodes), nodes, weights, *law, search, determinants, shares, slopes)
    return determinants, shares, slopes


def slopes_at_minima(
    problem: Problem, fields: Fields, x: np.ndarray, known: np.ndarray, step: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return dg/domega = -H (1 + V H)^(-1) at minima and 1 + H V, (N, D, D) each.

    Args:
        problem: problem at zero temperature.
        fields: law of the fields.
        x: minima, (N, D).
        known: features (N, F).
        step: of the differences of the loss's slope that give H.
    """
    D, losses_at = x.shape[1], problem.solver.proximal.losses_at
    hessian = np.empty((*x.shape, D))
    for b, unit in enumerate(np.eye(D)):
        one, other = (losses_at(x + sign * step * unit, known, fields.constants)[1] for sign in (1, -1))
        hessian[:, :, b] = (one - other) / (2 * step)
    hessian = (hessian + hessian.transpose(0, 2, 1)) / 2
    matrix = np.eye(D) + hessian @ block_diagonal(fields.variance)
    return -np.linalg.solve(matrix, hessian), matrix
