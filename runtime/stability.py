"""Stability of a solution (theory.md section 8): longitudinal spectrum, replicon, and the measure of proximal jumps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .fixed_point import StateMap
from .integration.averages import Averages, Rule
from .overlaps import Conjugates, Overlaps
from .problem import Problem
from .text import with_error

NEGLIGIBLE_JUMPS = 1e-6


@dataclass(frozen=True)
class Stability:
    """Verdict on a solution.

    Attributes:
        eigenvalues: of the longitudinal Jacobian dG/du, largest real part first; stable under some damping iff every
            real part is below 1. An eigenvalue below -1 asks for damping only.
        replicon: Perron root of the replicon map from derivatives; finite even where jumps make the true one infinite.
        replicon_error: two standard errors, or the difference of two rules.
        bistable_share: probability that the Moreau objective has a second minimum.
        jump_weight: -Tr V^_jump / |Tr V^_derivative|, the part of V^ that comes from jumps of the proximal map.
        self_overlap_loss: reserved for the finite map of theory.md 8c; None here.
    """

    eigenvalues: np.ndarray
    replicon: float
    replicon_error: float
    bistable_share: float
    jump_weight: float
    jump_weight_error: float
    self_overlap_loss: float | None = None

    @property
    def longitudinally_stable(self) -> bool:
        return bool(np.max(self.eigenvalues.real) < 1)

    @property
    def has_jumps(self) -> bool:
        return self.bistable_share > NEGLIGIBLE_JUMPS

    @property
    def verdict(self) -> str:
        """In words: RS stable, unstable through the replicon, or through jumps of the proximal map; undecided where
        the replicon is within its error of 1."""
        parts = []
        replicon = f"replicon {with_error(self.replicon, self.replicon_error)}"
        if self.replicon - self.replicon_error >= 1:
            parts.append(f"RS unstable ({replicon})")
        if self.has_jumps:
            resolved = abs(self.jump_weight) > self.jump_weight_error
            weight = with_error(self.jump_weight, self.jump_weight_error) if resolved else "not resolved"
            parts.append(
                f"RS unstable in the strict sense: the proximal map jumps (bistable share {self.bistable_share:.2g}, "
                f"jump weight {weight})"
            )
        if not parts and not self.replicon + self.replicon_error < 1:
            parts.append(f"RS stability undecided ({replicon})")
        if not parts:
            parts.append(f"RS stable ({replicon})")
        if not self.longitudinally_stable:
            largest = self.eigenvalues[0].real
            parts.append(f"longitudinally unstable (eigenvalue {largest:.4g}): a saddle between branches")
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        values = self.eigenvalues
        return {
            "longitudinal": {
                "spectral_radius": float(np.max(np.abs(values))),
                "eigenvalues": [[float(v.real), float(v.imag)] for v in values],
            },
            "replicon": self.replicon,
            "replicon_error": self.replicon_error,
            "bistable_share": self.bistable_share,
            "jump_weight": self.jump_weight,
            "jump_weight_error": self.jump_weight_error,
            "self_overlap_loss": self.self_overlap_loss,
            "verdict": self.verdict,
        }


def replicon_matrix(problem: Problem, square: np.ndarray, responses: np.ndarray) -> np.ndarray:
    """The linear map D -> D' on (C, s, s) blocks as a (C s^2, C s^2) matrix (theory.md section 8b).

    Args:
        square: E[G_ll' (x) G_ll'] per label assignment, (labels, L, L, s, s, s, s) with axes l, l', a, e, b, f for
            G[la, l'b] G[le, l'f].
        responses: E[J (x) J] per spectral atom, J = dw/db, (atoms, s, s, s, s) with axes a, b, e, f for J_ab J_ef.
    """
    contexts, s = problem.contexts, problem.student_rank
    channel = np.zeros((contexts, s, s, contexts, s, s))
    for (labels, probability), blocks in zip(problem.label_choices, square, strict=True):
        at = problem.context_of(labels)
        for l, c in enumerate(at):
            for r, d in enumerate(at):
                channel[c, :, :, d, :, :] += problem.alpha * probability * blocks[l, r]
    law = problem.law
    # D'_c[a, e] = sum_i w gamma_c gamma_d E[J[a, b] J[e, f]] D^_d[b, f]
    prior = np.einsum("i,ic,id,iabef->caebfd", law.weights, law.gamma, law.gamma, responses)
    total = np.einsum("caebfd,dbfghk->caeghk", prior, channel)
    return total.reshape(contexts * s * s, contexts * s * s)


def _responses(problem: Problem, hats: Conjugates) -> np.ndarray:
    out = np.empty((len(problem.law.weights), *[problem.student_rank] * 4))
    problem.solver.prior.responses(*problem.prior_law, hats.q, hats.V, hats.m, hats.theta, out)
    return out


def _slope_trace(problem: Problem, slope: np.ndarray) -> float:
    """Tr V^_derivative = -alpha sum_c Tr E_c[G_ll]."""
    return -problem.alpha * sum(
        probability * float(np.trace(blocks, axis1=1, axis2=2).sum())
        for (_, probability), blocks in zip(problem.label_choices, slope, strict=True)
    )


def assess(
    problem: Problem, overlaps: Overlaps, rules: tuple[Rule, ...], jacobian: np.ndarray, averages: Averages
) -> Stability:
    """Stability of a solution from derivatives.

    Args:
        rules: one rule with replicates for the averages of the field's slope; or one without and others to compare
            with, each difference counting for less than the one before.
        jacobian: longitudinal Jacobian dG/du.
        averages: of the rule that solved the problem.
    """
    rule = rules[0]
    parts = [r.jacobians(problem, overlaps) for r in rules]
    replicates = len(parts[0].square) > 1
    # The jump part is a small difference: with replicates both terms are taken from the same nodes.
    state_map = StateMap(problem, rule)
    own = state_map.averages(overlaps) if replicates else averages
    responses = _responses(problem, state_map.conjugates(overlaps, own.moments.mean(axis=0)))

    def weight(moments: np.ndarray, slope: np.ndarray) -> float:
        smooth = _slope_trace(problem, slope)
        hats = state_map.conjugates(overlaps, moments)
        return (smooth - float(np.trace(hats.V, axis1=1, axis2=2).sum())) / abs(smooth)

    replicon = _radius(problem, parts[0].square.mean(axis=0), responses)
    if replicates:
        roots = [_radius(problem, square, responses) for square in parts[0].square]
        weights = [weight(m, slope) for m, slope in zip(own.moments, parts[0].slope, strict=True)]
        errors = [2 * float(np.std(values, ddof=1)) / np.sqrt(len(values)) for values in (roots, weights)]
    else:
        roots = [_radius(problem, part.square[0], responses) for part in parts]
        weights = [weight(own.moments[0], part.slope[0]) for part in parts]
        errors = [max(abs(v - values[0]) / n for n, v in enumerate(values[1:], 1)) for values in (roots, weights)]
        weights = weights[:1]
    values = np.linalg.eigvals(jacobian)
    values = values[np.lexsort((values.imag, -np.round(values.real, 12)))]
    return Stability(values, replicon, errors[0], own.bistable, float(np.mean(weights)), errors[1])


def _radius(problem: Problem, square: np.ndarray, responses: np.ndarray) -> float:
    return float(np.max(np.abs(np.linalg.eigvals(replicon_matrix(problem, square, responses)))))
