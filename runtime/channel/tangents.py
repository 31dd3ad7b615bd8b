"""How the channel averages answer to the overlaps, from printed derivatives instead of differences.

The overlaps enter an average through the law of the fields and through V. On a grid in X (docs/theory.md section 11) g
stays as it is and the weight moves, also in V: that part is accumulated in the generated loop. At nodes in standard
normal coordinates the fields move, and g with them: dg = G (d omega + dV g), G = dg/domega.
"""

from __future__ import annotations

import numpy as np

from ..problems.overlaps import Overlaps, Units, triangle
from ..problems.problem import Problem
from .fields import Fields
from .points import noise_choices, points_at, slopes_at

_BATCH = 20000  # nodes at a time


def _conditional_changes(
    problem: Problem, overlaps: Overlaps, labels: tuple[int, ...], units: Units
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Changes of m (n, L, s), b (n, L, s, t), C and V (n, L, s, s), token by token.

    E[omega | Y] = m + b (Y - m*), b = theta rho*^(-1); C = Cov(omega | Y) = q - b theta^T.
    """
    at = problem.context_of(labels)
    inverse = np.linalg.inv(problem.law.rho_star[at])
    d_b = units.theta[:, at] @ inverse
    shared = d_b @ np.swapaxes(overlaps.theta[at], -1, -2)
    return units.m[:, at], d_b, units.q[:, at] - shared - np.swapaxes(shared, -1, -2), units.V[:, at]


def law_changes(problem: Problem, overlaps: Overlaps, labels: tuple[int, ...], units: Units) -> np.ndarray:
    """What the generated prox-space slopes are taken in, differentiated in the packed overlaps: (LAW, n)."""
    d_m, d_b, d_C, d_V = _conditional_changes(problem, overlaps, labels, units)
    rows, columns = triangle(problem.student_rank)
    blocks = [d_m, d_b, d_C[..., rows, columns], d_V[..., rows, columns]]
    return np.concatenate([block.reshape(*block.shape[:2], -1) for block in blocks], axis=2).reshape(len(units), -1).T


def law_changes_in_nodes(
    problem: Problem, overlaps: Overlaps, labels: tuple[int, ...], fields: Fields, units: Units
) -> np.ndarray:
    """Changes of m, of omega's coefficients A and F in the normal coordinates of Y and of its own, and of V.

    (L, s, 1 + t + 2 s, n), as `node_tangents` asks: omega = m + A z_Y + F z_omega, A = b T with T T^T = rho*,
    F F^T = C.
    """
    d_m, d_b, d_C, d_V = _conditional_changes(problem, overlaps, labels, units)
    d_A = d_b @ fields.teacher_factor
    # The differential of a Cholesky factor: F times the lower triangle, half of its diagonal, of F^(-1) dC F^(-T).
    inverse = np.linalg.inv(fields.field_factor)
    inner = inverse @ d_C @ np.swapaxes(inverse, -1, -2)
    lower = np.tril(inner) - 0.5 * np.eye(problem.student_rank) * inner
    d_F = fields.field_factor @ lower
    return np.moveaxis(np.concatenate([d_m[..., None], d_A, d_F, d_V], axis=3), 0, -1)


def node_tangents(
    problem: Problem, fields: Fields, nodes: np.ndarray, weights: np.ndarray, search: int | None
) -> np.ndarray:
    """Sums over nodes of the derivatives of the token rows, (L row, L, s, 1 + t + 2 s), see `law_changes_in_nodes`."""
    row, tangent = problem.solver.proximal.ROW, problem.solver.tangent
    L, s, t = problem.tokens, problem.student_rank, problem.teacher_rank
    choices = noise_choices(problem)
    total = np.zeros((L * row, L, s, 1 + t + 2 * s))
    for begin in range(0, len(nodes), _BATCH):
        part = np.ascontiguousarray(nodes[begin : begin + _BATCH])
        _, shares, slopes = slopes_at(problem, fields, part, weights[begin : begin + _BATCH], search)
        z_Y = part[:, : L * t].reshape(len(part), L, t)
        z_omega = part[:, L * t : L * (t + s)].reshape(len(part), L, s)
        dy = np.einsum("lbe,nle->nlb", fields.teacher_factor, z_Y)
        for choice in choices:
            points = points_at(problem, fields, part, search, choice)
            share = shares[choice :: len(choices)]
            known = share > 0
            G = slopes[choice :: len(choices)].reshape(-1, L, s, L, s)
            to_g, to_dw = tangent.moment_slopes(points.g, points.omega - fields.field_mean, dy)
            # What omega (m, A, F) and dV g move, by their coefficients.
            factors = np.concatenate([np.ones((*z_Y.shape[:2], 1)), z_Y, z_omega, points.g], axis=2)
            through_g = np.einsum("nlia,nlamb->nlimb", to_g[known], G[known]).reshape(-1, L * row, L * s)
            weighted = share[known][:, None, None] * factors[known]
            out = np.einsum("nrmb,nmk->rmbk", through_g.reshape(-1, L * row, L, s), weighted, optimize=True)
            direct = np.einsum("nlia,nlk->liak", to_dw[known], weighted[..., 1 : 1 + t + s])
            for l in range(L):
                out.reshape(L, row, L, s, -1)[l, :, l, :, 1 : 1 + t + s] += direct[l]
            total += out
    return total
