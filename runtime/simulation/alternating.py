"""Losses with corners: the fields and the weights take turns (alternating direction method of multipliers).

With a row a_{mu,l} = z_{mu,l} / sqrt(d) + tau_c / d for every token, X = A W, and a copy x of the fields in the loss,

    x = prox(A W - y; v)    (v Lambda + A^T A) W = A^T (x + y)    y <- y + x - A W

(Boyd et al., Found. Trends Mach. Learn. 3 (2011) 1, section 3). The proximal map is the generated one, so that corners
cost nothing; the quadratic problem is factorised once for every v. Convergence is sure where the loss is convex.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..problems.problem import Problem
from .risk import Risk, Weights, holds_own, refuse_own

if TYPE_CHECKING:
    from .instance import Instance

_RELAXED = 1.6
_BALANCE, _UNEVEN, _BALANCED_UNTIL = 20, 3.0, 400  # how often v is looked at, what is too uneven, and for how long
_NEAR, _JUMP, _DRAWS = 1e-4, 0.05, 16


def has_corners(problem: Problem) -> bool:
    """Whether the slope of the loss jumps in X, or as good as jumps, at a kink in one of the fields."""
    channel, generator = problem.solver.proximal, np.random.default_rng(29)
    y = generator.standard_normal((_DRAWS, problem.tokens * problem.teacher_rank))
    gaussian = problem.is_gaussian
    noise = generator.standard_normal((_DRAWS, len(gaussian)))
    if channel.LABELLED_NOISE:
        noise[:, ~gaussian] = generator.choice(channel.LABELLED_NOISE, _DRAWS)[:, None]
    for labels, _ in problem.label_choices:
        c = problem.constants(labels)
        known = channel.features_at(y, noise, c)
        x = generator.standard_normal((_DRAWS, channel.FIELDS))
        for place, value in problem.kinked_fields(c):
            slopes = []
            for side in (-_NEAR, _NEAR):
                x[:, place] = value + side
                slopes.append(channel.losses_at(x, known, c)[1][:, place])
            if np.any(np.abs(slopes[1] - slopes[0]) > _JUMP * (1 + np.abs(slopes[0]))):
                return True
    return False


def has_strong_ridge(problem: Problem) -> bool:
    """Whether the penalty is a ridge of positive strength on every column."""
    return problem.has_ridge and bool(np.all(problem.strengths > 0))


def is_for(problem: Problem) -> bool:
    """Whether the loss has corners, and nothing else stands in the way."""
    return has_strong_ridge(problem) and not holds_own(problem) and has_corners(problem)


class _Split:
    """A, its transpose and the inverse of v Lambda + A^T A, of an instance."""

    def __init__(self, instance: Instance) -> None:
        self.instance, self.problem = instance, instance.problem
        problem, d, root = self.problem, instance.d, np.sqrt(instance.d)
        self.gram = np.zeros((d, d))
        tau = instance.coordinates.tau
        for span, tokens in instance.blocks():
            rows = tokens.reshape(-1, d) / root
            if tau.any():
                rows += tau.T[instance.contexts[span].ravel()] / d
            self.gram += rows.T @ rows
        self.shape = (instance.n, problem.tokens, problem.student_rank)

    def fields(self, W: np.ndarray) -> np.ndarray:
        """A W, (n, L, s)."""
        instance, d, s = self.instance, self.instance.d, self.problem.student_rank
        out = (instance.coordinates.tau.T @ W / d)[instance.contexts]
        for span, tokens in instance.blocks():
            out[span] += (tokens.reshape(-1, d) @ W / np.sqrt(d)).reshape(-1, self.problem.tokens, s)
        return out

    def back(self, x: np.ndarray) -> np.ndarray:
        """A^T x, (d, s)."""
        instance, d, s = self.instance, self.instance.d, self.problem.student_rank
        out = np.zeros((d, s))
        along_means = np.zeros((self.problem.contexts, s))
        for span, tokens in instance.blocks():
            by_token = x[span].reshape(-1, s)
            out += tokens.reshape(-1, d).T @ by_token / np.sqrt(d)
            np.add.at(along_means, instance.contexts[span].ravel(), by_token)
        return out + instance.coordinates.tau @ along_means / d

    def proximal(self, fields: np.ndarray, v: float) -> np.ndarray:
        problem, out = self.problem, np.empty(self.shape)
        L, s = problem.tokens, problem.student_rank
        eye = np.broadcast_to(np.eye(s), (L, s, s))
        for labels, own in self.instance.groups:
            at = np.ascontiguousarray(fields[own].reshape(-1, L * s))
            x, _ = problem.solver.proximal.proximal_at(
                at, eye / v, v * eye, self.instance.known[own], problem.constants(labels), problem.search
            )
            out[own] = x.reshape(-1, L, s)
        return out

    def solver(self, v: float) -> list[partial[np.ndarray]]:
        """Right-hand side -> column of W, one a column."""
        from scipy.linalg import cho_factor, cho_solve

        factors = {
            strength: cho_factor(self.gram + v * strength * np.eye(len(self.gram)), lower=True)
            for strength in set(self.problem.strengths)
        }
        return [partial(cho_solve, factors[strength]) for strength in self.problem.strengths]


def alternating_directions(risk: Risk, start: Weights, tolerance: float, most: int) -> tuple[Weights, float, int]:
    """Weights, the larger of the two residuals, and iterations.

    Residuals, root mean squares: of the gradient at the fields' copy, A^T A (W - W before) / v, and of x - A W.

    Raises:
        InputError: the loss holds q or trained numbers, or the penalty is no ridge.
    """
    problem = risk.problem
    refuse_own(problem, "admm")
    if not has_strong_ridge(problem):
        raise InputError(f"admm: the penalty of {problem.solver.name} is no ridge of positive strength")
    split = _Split(risk.instance)
    W, v = start.W, 1.0
    columns, fields = split.solver(v), split.fields(W)
    y = np.zeros(split.shape)
    residual, iteration = np.inf, 0
    while iteration < most:
        iteration += 1
        x = split.proximal(fields - y, v)
        relaxed = _RELAXED * x + (1 - _RELAXED) * fields
        pull = split.back(relaxed + y)
        new = np.stack([solve(pull[:, a]) for a, solve in enumerate(columns)], axis=1)
        moved = split.gram @ (new - W) / v
        W, fields = new, split.fields(new)
        y = y + relaxed - fields
        apart = float(np.sqrt(np.mean((x - fields) ** 2)))
        slope = float(np.sqrt(np.mean(moved**2)))
        residual = max(apart, slope)
        if not np.isfinite(residual) or residual <= tolerance:
            break
        if iteration % _BALANCE == 0 and iteration <= _BALANCED_UNTIL:
            # Residuals in units of what they are differences of.
            ratio = (apart / np.sqrt(np.mean(fields**2))) / (slope / np.sqrt(np.mean((problem.strengths * W) ** 2)))
            if not 1 / _UNEVEN < ratio < _UNEVEN:
                factor = float(np.clip(np.sqrt(ratio), 0.2, 5.0))
                # A larger v lets the fields go further from A W.
                v, y = v / factor, y / factor
                columns = split.solver(v)
    return Weights(W, start.phi), residual, iteration
