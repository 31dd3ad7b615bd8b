"""The Jacobian dG/du from generated derivatives of the channel averages, the conjugates and the prior.

It is exact for the rule in use (on a grid in X up to the rule's own error). If the proximal map jumps, only the rule on
a grid in X includes the contribution of jumps; for other rules then, and for losses that contain q or trained numbers,
there is no formula, and differences are taken instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.options import AlgorithmOptions
from ..problems.overlaps import Conjugates, Overlaps, UnitOverlaps, upper_triangle_indices
from ..problems.problem import Problem
from ..problems.reduced import make_q_positive_definite
from .state_map import SaddlePointMap

_STENCIL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))


@dataclass(frozen=True)
class JacobianFormulaOptions(AlgorithmOptions):
    """Options of the Jacobian dG/du of the saddle-point map from generated formulas for derivatives.

    Attributes:
        max_bistable: fraction of samples with a second loss minimum above which the formulas are not used, since they
            neglect jumps of the proximal map; the relative error of the Jacobian is ten times the fraction.
        prior_step: relative difference step in the conjugates (q^, V^, ...) for a regulariser without closed form.
        min_scale: scale of difference steps for conjugates that vanish, relative to the largest conjugate.
    """

    max_bistable: float = 1e-7
    prior_step: float = 3e-3
    min_scale: float = 1e-2


class DerivativeFormulaUnavailableError(ArithmeticError):
    """Raised if the generated formulas for derivatives of the map do not apply; the message says why."""


@dataclass(frozen=True)
class SaddlePointMapDerivatives:
    """The derivatives of the saddle-point map G at a packed state u.

    Attributes:
        state: Jacobian dG/du, shape (n, n).
        alpha: derivative dG/dalpha, shape (n,).
        regulariser: how the regulariser's part was differentiated: "printed" (by generated formulas) or "differences".
    """

    state: np.ndarray
    alpha: np.ndarray
    regulariser: str


def explain_missing_derivative_formula(problem: Problem) -> str | None:
    """Return a message that says why a problem has no generated formulas for derivatives; None if it has them."""
    if problem.inverse_temperature is not None:
        return "they hold at zero temperature"
    own = problem.solver.linear_response.OWN
    return "the loss contains overlaps or trained numbers" if own else None


def evaluate_map_derivatives(state_map: SaddlePointMap, u: np.ndarray) -> SaddlePointMapDerivatives:
    """Return the derivatives dG/du and dG/dalpha of the saddle-point map G from generated formulas.

    Args:
        state_map: the saddle-point map G.
        u: packed overlaps, (n,).

    Raises:
        DerivativeFormulaUnavailableError: the formulas are not valid here.
        DomainError: u lies outside the domain of the map.
    """
    problem, rule = state_map.problem, state_map.rule
    overlaps = Overlaps.unpack(u, problem.sizes)
    reason = explain_missing_derivative_formula(problem)
    if reason:
        raise DerivativeFormulaUnavailableError(reason)
    averages = state_map.channel_averages(overlaps)
    jumps = averages.bistable > JacobianFormulaOptions.current().max_bistable
    if jumps and not rule.can_include_jump_derivatives:
        raise DerivativeFormulaUnavailableError(
            f"the proximal map may jump for a fraction {averages.bistable:.2g} of the samples"
        )
    moments = averages.means
    units, n = UnitOverlaps.from_sizes(overlaps.sizes), len(u)
    # Directions: every overlap, then alpha.
    own = np.moveaxis(rule.moment_derivatives(problem, overlaps, jumps), -1, 0)
    d_moments, *d_blocks = (
        np.concatenate([block, np.zeros((1, *block.shape[1:]))])
        for block in (own, units.q, units.V, units.m, units.theta)
    )
    d_alpha = np.zeros((n + 1, 1))
    d_alpha[-1] = 1.0
    blocks = make_q_positive_definite(problem, overlaps).q, *overlaps.blocks[1:]
    d_hats = problem.solver.linear_response.conjugates(
        problem.alpha, moments, *blocks, problem.law.rho_star, d_alpha, d_moments, *d_blocks
    )
    hats = state_map.conjugates_at_overlaps(overlaps, moments)
    printed = hasattr(problem.solver.linear_response, "overlaps")
    if printed:
        law, multipliers = problem.law, problem.multipliers(hats)
        given = (problem.strengths,) if multipliers is None else (problem.strengths, multipliers)
        still = np.zeros((n + 1, problem.student_rank))
        changes = problem.solver.linear_response.overlaps(
            law.weights, law.gamma, law.gram, *given, *hats.blocks, still, *d_hats
        )
    else:
        changes = _differentiate_prior_averages(state_map, hats, d_hats)
    image = np.concatenate([_pack_overlap_changes(changes), np.zeros((n + 1, problem.sizes[3]))], axis=1)
    return SaddlePointMapDerivatives(image[:-1].T, image[-1], "printed" if printed else "differences")


def _pack_overlap_changes(changes: tuple[np.ndarray, ...]) -> np.ndarray:
    """Pack changes of q, V, m and theta into changes of the packed overlaps, one column per change."""
    q, V, m, theta = changes
    rows, columns = upper_triangle_indices(q.shape[-1])
    blocks = q[..., rows, columns], V[..., rows, columns], m, theta
    return np.concatenate([block.reshape(len(block), -1) for block in blocks], axis=1)


def _differentiate_prior_averages(
    state_map: SaddlePointMap, hats: Conjugates, d_hats: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, ...]:
    """Return the changes of q, V, m and theta due to changes of the conjugates, by differences.

    Differences work for any convex regulariser, since its averages are smooth, and need no channel averages.

    Raises:
        DomainError: the conjugates are too close to the boundary of their domain.
    """
    blocks, options = hats.blocks, JacobianFormulaOptions.current()
    columns: list[list[np.ndarray]] = []
    sizes = np.array([np.abs(block).max() for block in blocks])
    # Close to perfect recovery of labels q^, a variance, is far smaller than the others: steps scale with itself.
    sizes[sizes == 0] = options.min_scale * sizes.max()
    sizes[1:] = np.maximum(sizes[1:], options.min_scale * sizes.max())
    for changes in zip(*d_hats, strict=True):
        ratio = max(
            (float(np.abs(change).max() / size) for change, size in zip(changes, sizes, strict=True) if size > 0),
            default=0.0,
        )
        step = options.prior_step / ratio if ratio > 0 else 1.0
        totals = [np.zeros_like(block) for block in blocks]
        for place, weight in _STENCIL:
            there = Conjugates(*(one + place * step * change for one, change in zip(blocks, changes, strict=True)))
            for total, block in zip(totals, state_map.overlaps_from_conjugates(there, np.zeros(0)).blocks, strict=True):
                total += weight / step * block
        columns.append(totals)
    return tuple(np.stack(rows) for rows in zip(*columns, strict=True))
