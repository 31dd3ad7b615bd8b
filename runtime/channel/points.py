"""Proximal points at nodes of the channel, and the Jacobians of their responses."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.threads import run_loop_in_threads
from ..problems.problem import Problem
from .fields import FieldLaw, block_diagonal
from .shared import allocate_response_jacobians, proximal_point_table


class ProximalPoints(NamedTuple):
    """The proximal points at N nodes, for one discrete noise value.

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
    """Return the indices of the discrete noise values; one index for a model without discrete noise."""
    return range(max(1, len(problem.solver.channel.LABELLED_NOISE)))


def proximal_points_at_nodes(
    problem: Problem, fields: FieldLaw, nodes: np.ndarray, search: int | None = None, choice: int = 0
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
    law = *fields.sampling_loop_arguments, fields.precision, problem.noise_scale, fields.constants
    search = problem.search if search is None else search
    columns = proximal_point_table(channel, np.ascontiguousarray(nodes), *law, search, choice)
    shape = (len(nodes), problem.tokens, problem.student_rank)
    D, F = channel.FIELDS, channel.FEATURES
    omega, features, x = np.split(columns[:, : 2 * D + F], [D, D + F], axis=1)
    omega, x = omega.reshape(shape), x.reshape(shape)
    g = np.einsum("lab,nlb->nla", fields.precision, x - omega)
    value, gap, minima, _, weight = columns[:, 2 * D + F :].T
    return ProximalPoints(omega, g, x, np.ascontiguousarray(features), value, gap, minima, weight)


def response_jacobians_at_nodes(
    problem: Problem, fields: FieldLaw, nodes: np.ndarray, weights: np.ndarray, search: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return det(I + V H) (M,), weights (M,) and Jacobians dg/domega (M, D, D), per node and discrete noise value.

    Args:
        problem: problem at zero temperature.
        fields: law of the fields.
        nodes: (N, dimension), in (z_Y, z_omega, noise).
        weights: (N,).
        search: as in `Problem`, the problem's own where None.
    """
    channel = problem.solver.proximal
    shares, slopes = allocate_response_jacobians(channel, nodes)
    determinants = np.ones(len(shares))
    law = *fields.sampling_loop_arguments, fields.precision, fields.variance, problem.noise_scale, fields.constants
    search = problem.search if search is None else search
    run_loop_in_threads(channel.field_slopes, len(nodes), nodes, weights, *law, search, determinants, shares, slopes)
    return determinants, shares, slopes


def response_jacobians_at_minima(
    problem: Problem, fields: FieldLaw, x: np.ndarray, known: np.ndarray, step: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the Jacobians dg/domega = -H (1 + V H)^(-1) at minima, and 1 + H V, (N, D, D) each.

    Args:
        problem: problem at zero temperature.
        fields: law of the fields.
        x: minima, (N, D).
        known: features (N, F).
        step: step of the differences of the loss gradient that give the Hessian H.
    """
    D, losses_at = x.shape[1], problem.solver.proximal.losses_at
    hessian = np.empty((*x.shape, D))
    for b, unit in enumerate(np.eye(D)):
        one, other = (losses_at(x + sign * step * unit, known, fields.constants)[1] for sign in (1, -1))
        hessian[:, :, b] = (one - other) / (2 * step)
    hessian = (hessian + hessian.transpose(0, 2, 1)) / 2
    matrix = np.eye(D) + hessian @ block_diagonal(fields.variance)
    return -np.linalg.solve(matrix, hessian), matrix
