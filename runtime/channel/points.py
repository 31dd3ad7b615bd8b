"""Proximal points at nodes of the channel, and the Jacobians of their responses."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..device.loops import fill_at_nodes
from ..problems.problem import Problem
from .fields import FieldLaw, block_diagonal
from .shared import allocate_response_jacobians, proximal_point_table, runs_on_cpu_alone


class ProximalPoints(NamedTuple):
    """The proximal points at quadrature nodes, for one value of the discrete noise; the first axis runs over the nodes.

    Attributes:
        omega, x: centre and proximal point of each node, shape (nodes, L, s).
        g: V^{-1} (x - omega), shape (nodes, L, s).
        features: quantities by which the loss depends on the teacher's fields and noise, shape (nodes, features).
        value: minimum of the Moreau objective.
        gap: gap to the second lowest minimum found, nan without one.
        minima: 1 for a single minimum found, 2 for more, 0 where the descent did not converge.
        weight: probability of the noise value given the teacher's fields.
    """

    omega: np.ndarray
    g: np.ndarray
    x: np.ndarray
    features: np.ndarray
    value: np.ndarray
    gap: np.ndarray
    minima: np.ndarray
    weight: np.ndarray


def noise_value_indices(problem: Problem) -> range:
    """Return the indices of the discrete noise values; one index for a model without discrete noise."""
    return range(max(1, len(problem.solver.channel.LABELLED_NOISE)))


def proximal_points_at_nodes(
    problem: Problem, fields: FieldLaw, nodes: np.ndarray, search: int | None = None, choice: int = 0
) -> ProximalPoints:
    """Return proximal points at nodes in standard normal coordinates.

    Args:
        problem: problem at zero temperature.
        fields: law of the fields.
        nodes: standard normal coordinates of teacher fields, student fields and noise, one node per row.
        search: how the global minimum is searched (`Problem.search`); None for the problem's own setting.
        choice: index of the discrete noise value, from `noise_value_indices`.
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
    """Return det(I + V H), weights and dg/domega, with g = V^(-1) (X - omega), at nodes; H is the Hessian of the loss.

    The first axis of each array runs over nodes and discrete noise values; a Jacobian has the shape (L s, L s).

    Args:
        problem: problem at zero temperature.
        fields: law of the fields.
        nodes: standard normal coordinates of teacher fields, student fields and noise, one node per row.
        weights: weight of each node.
        search: how the global minimum is searched (`Problem.search`); None for the problem's own setting.
    """
    channel = problem.solver.proximal
    shares, slopes = allocate_response_jacobians(channel, nodes)
    determinants = np.ones(len(shares))
    law = *fields.sampling_loop_arguments, fields.precision, fields.variance, problem.noise_scale, fields.constants
    search = problem.search if search is None else search
    filled, on_cpu = [determinants, shares, slopes], runs_on_cpu_alone(channel)
    fill_at_nodes(channel.field_slopes, (nodes, weights), *law, search, filled=filled, on_cpu=on_cpu)
    return determinants, shares, slopes


def response_jacobians_at_minima(
    problem: Problem, fields: FieldLaw, x: np.ndarray, known: np.ndarray, step: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the Jacobians of the field g, -H (1 + V H)^(-1), and the matrices 1 + H V, at given proximal points.

    H is the Hessian of the loss.

    Args:
        problem: problem at zero temperature.
        fields: law of the fields.
        x: minima, shape (minima, L s).
        known: features of the loss that depend on teacher and noise, one row per minimum.
        step: step of the finite differences of the loss gradient that give H.
    """
    D, losses_at = x.shape[1], problem.solver.proximal.losses_at
    hessian = np.empty((*x.shape, D))
    for b, unit in enumerate(np.eye(D)):
        one, other = (losses_at(x + sign * step * unit, known, fields.constants)[1] for sign in (1, -1))
        hessian[:, :, b] = (one - other) / (2 * step)
    hessian = (hessian + hessian.transpose(0, 2, 1)) / 2
    matrix = np.eye(D) + hessian @ block_diagonal(fields.variance)
    return -np.linalg.solve(matrix, hessian), matrix
