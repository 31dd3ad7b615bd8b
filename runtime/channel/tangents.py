"""Derivatives of the channel averages in the overlaps, from generated formulas instead of differences.

The overlaps enter an average through the law of the fields and through V. On a grid in X (docs/theory.md section 11) g
stays the same and the weight changes, also in V: that part is accumulated in the generated loop. At nodes in standard
normal coordinates the fields change, and g with them: dg = G (d omega + dV g), G = dg/domega.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.options import AlgorithmOptions
from ..problems.overlaps import Overlaps, UnitOverlaps, upper_triangle_indices
from ..problems.problem import Problem
from .fields import FieldLaw
from .points import noise_value_indices, proximal_points_at_nodes, response_jacobians_at_nodes


@dataclass(frozen=True)
class MomentDerivativeOptions(AlgorithmOptions):
    """Options of derivatives of channel averages that are sums over quadrature nodes.

    Attributes:
        nodes_at_once: number of nodes per batch, which bounds the memory.
    """

    nodes_at_once: int = 20000


def _derivatives_of_conditional_field_law(
    problem: Problem, overlaps: Overlaps, labels: tuple[int, ...], units: UnitOverlaps
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the derivatives of m, b, C and V with respect to the packed overlaps (first axis), for every token.

    They define the law of the student field omega given the teacher field Y: E[omega | Y] = m + b (Y - E[Y]) with
    b = theta rho*^(-1), C = Cov(omega | Y) = q - b theta^T.
    """
    at = problem.token_cluster_indices(labels)
    inverse = np.linalg.inv(problem.law.rho_star[at])
    d_b = units.theta[:, at] @ inverse
    shared = d_b @ np.swapaxes(overlaps.theta[at], -1, -2)
    return units.m[:, at], d_b, units.q[:, at] - shared - np.swapaxes(shared, -1, -2), units.V[:, at]


def field_law_derivatives(
    problem: Problem, overlaps: Overlaps, labels: tuple[int, ...], units: UnitOverlaps
) -> np.ndarray:
    """Return the derivatives of the parameters of the field law with respect to the packed overlaps.

    The parameters are the entries of m, b, C and V of every token: student field omega and teacher field Y obey
    E[omega | Y] = m + b (Y - E[Y]) and Cov(omega | Y) = C. The shape is (parameters, packed overlaps).

    Args:
        problem: problem that defines the law of the teacher's fields.
        overlaps: overlaps at which the derivatives are evaluated.
        labels: label of every token.
        units: unit vectors of the packed overlaps.
    """
    d_m, d_b, d_C, d_V = _derivatives_of_conditional_field_law(problem, overlaps, labels, units)
    rows, columns = upper_triangle_indices(problem.student_rank)
    blocks = [d_m, d_b, d_C[..., rows, columns], d_V[..., rows, columns]]
    return np.concatenate([block.reshape(*block.shape[:2], -1) for block in blocks], axis=2).reshape(len(units), -1).T


def field_law_derivatives_in_normal_coordinates(
    problem: Problem, overlaps: Overlaps, labels: tuple[int, ...], fields: FieldLaw, units: UnitOverlaps
) -> np.ndarray:
    """Return the derivatives of the matrices of the field law with respect to the packed overlaps.

    These are V, and m, A, F by which the student field is m + A z_Y + F z_omega with standard normal z_Y and z_omega.

    Args:
        problem: problem that defines the law of the teacher's fields.
        overlaps: overlaps at which the derivatives are evaluated.
        labels: label of every token.
        fields: law of the fields at that state.
        units: unit vectors of the packed overlaps.

    Returns:
        derivatives of the columns of (m, A, F, V), shape (L, s, 1 + t + 2 s, packed overlaps).
    """
    d_m, d_b, d_C, d_V = _derivatives_of_conditional_field_law(problem, overlaps, labels, units)
    d_A = d_b @ fields.teacher_factor
    # The differential of a Cholesky factor: F times the lower triangle, half of its diagonal, of F^(-1) dC F^(-T).
    inverse = np.linalg.inv(fields.field_factor)
    inner = inverse @ d_C @ np.swapaxes(inverse, -1, -2)
    lower = np.tril(inner) - 0.5 * np.eye(problem.student_rank) * inner
    d_F = fields.field_factor @ lower
    return np.moveaxis(np.concatenate([d_m[..., None], d_A, d_F, d_V], axis=3), 0, -1)


def moment_derivatives_at_nodes(
    problem: Problem, fields: FieldLaw, nodes: np.ndarray, weights: np.ndarray, search: int | None
) -> np.ndarray:
    """Return sums over nodes of the derivatives of the moments with respect to the matrices of the field law.

    These are V, and m, A, F by which the student field is m + A z_Y + F z_omega with standard normal z_Y and z_omega.

    Args:
        problem: problem at zero temperature.
        fields: law of the fields.
        nodes: standard normal coordinates of teacher fields, student fields and noise, one node per row.
        weights: weight of each node.
        search: how the global minimum is searched (`Problem.search`); None for the problem's own setting.

    Returns:
        shape (moments of all tokens, L, s, 1 + t + 2 s), the last axis over the columns of (m, A, F, V).
    """
    row, tangent = problem.solver.proximal.ROW, problem.solver.linear_response
    L, s, t = problem.tokens, problem.student_rank, problem.teacher_rank
    choices = noise_value_indices(problem)
    total = np.zeros((L * row, L, s, 1 + t + 2 * s))
    step = MomentDerivativeOptions.current().nodes_at_once
    for begin in range(0, len(nodes), step):
        part = np.ascontiguousarray(nodes[begin : begin + step])
        _, shares, slopes = response_jacobians_at_nodes(problem, fields, part, weights[begin : begin + step], search)
        z_Y = part[:, : L * t].reshape(len(part), L, t)
        z_omega = part[:, L * t : L * (t + s)].reshape(len(part), L, s)
        dy = np.einsum("lbe,nle->nlb", fields.teacher_factor, z_Y)
        for choice in choices:
            points = proximal_points_at_nodes(problem, fields, part, search, choice)
            share = shares[choice :: len(choices)]
            known = share > 0
            G = slopes[choice :: len(choices)].reshape(-1, L, s, L, s)
            to_g, to_dw = tangent.moment_slopes(points.g, points.omega - fields.field_mean, dy)
            # Changes by omega (m, A, F) and by dV g, coefficient by coefficient.
            factors = np.concatenate([np.ones((*z_Y.shape[:2], 1)), z_Y, z_omega, points.g], axis=2)
            through_g = np.einsum("nlia,nlamb->nlimb", to_g[known], G[known]).reshape(-1, L * row, L * s)
            weighted = share[known][:, None, None] * factors[known]
            out = np.einsum("nrmb,nmk->rmbk", through_g.reshape(-1, L * row, L, s), weighted, optimize=True)
            direct = np.einsum("nlia,nlk->liak", to_dw[known], weighted[..., 1 : 1 + t + s])
            for l in range(L):
                out.reshape(L, row, L, s, -1)[l, :, l, :, 1 : 1 + t + s] += direct[l]
            total += out
    return total
