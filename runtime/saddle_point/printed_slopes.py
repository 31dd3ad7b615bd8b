"""dG/du of the saddle-point map from printed derivatives: through the channel averages, the conjugates and the prior.

Exact for the rule it is taken with (on a grid in X up to the rule's own error). Where the proximal map jumps only the
grid in X knows what moves with the jumps; there by other rules, and for losses that hold q or trained numbers, there is
no formula, and differences are taken instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..problems.overlaps import Conjugates, Overlaps, Units, triangle
from ..problems.problem import Problem
from ..problems.reduced import apart
from .state_map import StateMap

# Of the measure: a second minimum on a smaller share moves the slopes by about ten times as much, relative to them.
BISTABLE = 1e-7
_STEP = 3e-3  # of the conjugates, along their change, where a regulariser without a closed form is differentiated
_LEAST = 1e-2  # of the largest conjugate, as the size of one that vanishes by symmetry but for rounding
_STENCIL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))


class NoFormula(ArithmeticError):
    """The printed derivatives do not hold here; the text says why."""


@dataclass(frozen=True)
class MapSlopes:
    """Slopes of G at a packed state u.

    Attributes:
        state: dG/du, (n, n); alpha: dG/dalpha, (n,).
        regulariser: whether that part is "printed" or by "differences" of its own (it asks for no channel average).
    """

    state: np.ndarray
    alpha: np.ndarray
    regulariser: str


def why_not(problem: Problem) -> str | None:
    """Why there are no formulas for a problem, in words, or None."""
    if problem.inverse_temperature is not None:
        return "they hold at zero temperature"
    own = problem.solver.tangent.OWN
    return "the loss contains overlaps or trained numbers" if own else None


def map_slopes(state_map: StateMap, u: np.ndarray) -> MapSlopes:
    """dG/du and dG/dalpha by the formulas, whatever a symmetry or an orbit keeps.

    The rule visits the nodes of a symmetric state once an orbit, and yet all directions are told.

    Raises:
        NoFormula: they do not hold here.
        DomainError: overlaps outside their domain.
    """
    problem, rule = state_map.problem, state_map.rule
    overlaps = Overlaps.unpack(u, problem.sizes)
    reason = why_not(problem)
    if reason:
        raise NoFormula(reason)
    averages = state_map.averages(overlaps)
    jumps = averages.bistable > BISTABLE
    if jumps and not rule.counts_jumps:
        raise NoFormula(f"the proximal map jumps on a fraction {averages.bistable:.2g} of the measure")
    moments = averages.means
    units, n = Units.of(overlaps.sizes), len(u)
    # Directions: every overlap, then alpha.
    own = np.moveaxis(rule.moment_tangents(problem, overlaps, jumps), -1, 0)
    d_moments, *d_blocks = (
        np.concatenate([block, np.zeros((1, *block.shape[1:]))])
        for block in (own, units.q, units.V, units.m, units.theta)
    )
    d_alpha = np.zeros((n + 1, 1))
    d_alpha[-1] = 1.0
    blocks = apart(problem, overlaps).q, *overlaps.blocks[1:]
    d_hats = problem.solver.tangent.conjugates(
        problem.alpha, moments, *blocks, problem.law.rho_star, d_alpha, d_moments, *d_blocks
    )
    hats = state_map.conjugates(overlaps, moments)
    printed = hasattr(problem.solver.tangent, "overlaps")
    if printed:
        law, multipliers = problem.law, problem.multipliers(hats)
        given = (problem.strengths,) if multipliers is None else (problem.strengths, multipliers)
        still = np.zeros((n + 1, problem.student_rank))
        changes = problem.solver.tangent.overlaps(
            law.weights, law.gamma, law.gram, *given, *hats.blocks, still, *d_hats
        )
    else:
        changes = _prior_differences(state_map, hats, d_hats)
    image = np.concatenate([_packed(changes), np.zeros((n + 1, problem.sizes[3]))], axis=1)
    return MapSlopes(image[:-1].T, image[-1], "printed" if printed else "differences")


def _packed(changes: tuple[np.ndarray, ...]) -> np.ndarray:
    """Changes of q, V, m and theta to changes of the packed overlaps, (n, N)."""
    q, V, m, theta = changes
    rows, columns = triangle(q.shape[-1])
    blocks = q[..., rows, columns], V[..., rows, columns], m, theta
    return np.concatenate([block.reshape(len(block), -1) for block in blocks], axis=1)


def _prior_differences(state_map: StateMap, hats: Conjugates, d_hats: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """The same for any convex regulariser: its averages are smooth in the conjugates, with corners, too, and cost no
    average over the channel; differences of fourth order.

    Raises:
        DomainError: the conjugates are too close to the end of their domain.
    """
    blocks = hats.blocks
    columns: list[list[np.ndarray]] = []
    sizes = np.array([np.abs(block).max() for block in blocks])
    # Where labels are recovered q^, a variance, is far smaller than the others, and steps are held to its own size.
    sizes[sizes == 0] = _LEAST * sizes.max()
    sizes[1:] = np.maximum(sizes[1:], _LEAST * sizes.max())
    for changes in zip(*d_hats, strict=True):
        ratio = max(
            (float(np.abs(change).max() / size) for change, size in zip(changes, sizes, strict=True) if size > 0),
            default=0.0,
        )
        step = _STEP / ratio if ratio > 0 else 1.0
        totals = [np.zeros_like(block) for block in blocks]
        for place, weight in _STENCIL:
            there = Conjugates(*(one + place * step * change for one, change in zip(blocks, changes, strict=True)))
            for total, block in zip(totals, state_map.overlaps(there, np.zeros(0)).blocks, strict=True):
                total += weight / step * block
        columns.append(totals)
    return tuple(np.stack(rows) for rows in zip(*columns, strict=True))
