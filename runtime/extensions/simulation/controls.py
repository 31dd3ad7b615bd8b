"""Control variates: averages over a seed's data whose expectations are known, at any d.

The weights of a named start without its noise, W_0, lie in the span of means, encodings and teacher. There, as at
W_0 / 2 and at 0, fields are Gaussian with a known law. So are known the expectation of the data term R of the risk and,
with P the projector on directions u of which these fields know nothing (orthogonal to tau_c, Sigma_c W_0, Sigma_c W*),

    E |P grad R|^2 / d = (n / d^2) E sum_l Tr(P Sigma_c) |slope of the loss in token l|^2

What is minimised fluctuates with both from seed to seed: with the labels that were drawn, and with how far the data
pull across. What their deviations explain of losses and overlaps is taken off (`estimate.Estimate`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...channel.nodes import sobol_normal
from ...problems.problem import Problem
from ...saddle_point.starts import start_mixture
from .design import Design
from .instance import Instance
from .risk import Weights, overlaps_of

SCALES = 0.0, 0.5, 1.0
COUNT = 2 * len(SCALES)
_SETS, _LOG2, _SEED = 8, 13, 77


@dataclass(frozen=True)
class Controls:
    """Of one seed: deviations (COUNT,) of R and |P grad R|^2 / d, at every scale of W_0, from their expectations, and
    standard errors (COUNT,) of those, which all seeds share."""

    deviations: np.ndarray
    errors: np.ndarray

    def beside(self, other: Controls) -> Controls:
        """Those of two runs on one seed's data together."""
        both = (self.deviations, other.deviations), (self.errors, other.errors)
        return Controls(*map(np.concatenate, both))


def controls_of(instance: Instance, start: str) -> Controls:
    """Of a named start."""
    mix = start_mixture(instance.problem, start)[0]
    known, phi = instance.coordinates, np.array([float(number["start"]) for number in instance.problem.trained])
    W = np.concatenate([known.tau, known.pi], axis=1) @ mix.T
    across = _Across(instance, W)
    rows = [_measured(instance, Weights(scale * W, phi), across) for scale in SCALES]
    sets = np.array([_expected(instance, Weights(W, phi), across, _SEED + number) for number in range(_SETS)])
    return Controls(np.ravel(rows) - sets.mean(axis=0), sets.std(axis=0, ddof=1) / np.sqrt(_SETS))


class _Across:
    """P, and Tr(P Sigma_c) of every context, (C,)."""

    def __init__(self, instance: Instance, W: np.ndarray) -> None:
        known = instance.coordinates
        fields = np.concatenate([W, known.pi], axis=1)
        held = np.concatenate([known.tau, *(gamma[:, None] * fields for gamma in known.gamma.T)], axis=1)
        left, sizes, _ = np.linalg.svd(held, full_matrices=False)
        self._basis = left[:, sizes > 1e-10 * sizes[0]]
        self.traces = known.gamma.sum(axis=0) - np.einsum("ik,ic,ik->c", self._basis, known.gamma, self._basis)

    def square(self, gradient: np.ndarray) -> float:
        """|P gradient|^2."""
        return float(np.sum(gradient**2) - np.sum((self._basis.T @ gradient) ** 2))


def _measured(instance: Instance, weights: Weights, across: _Across) -> tuple[float, float]:
    """R and |P grad R|^2 / d on the data."""
    problem, design = instance.problem, Design(instance)
    overlaps = overlaps_of(instance, weights)
    fields = design.fields(weights.W)
    total, slopes = 0.0, np.empty_like(fields)
    for labels, own, x, known in instance.by_labels(fields):
        values, slope = problem.solver.proximal.losses_at(x, known, problem.constants(labels, overlaps))
        total += float(values.sum())
        slopes[own] = slope.reshape(-1, *fields.shape[1:])
    return total / instance.d, across.square(design.back(slopes)) / instance.d


def _expected(instance: Instance, weights: Weights, across: _Across, seed: int) -> np.ndarray:
    """Of both at every scale, (COUNT,), by one scrambled Sobol set."""
    problem, known, d = instance.problem, instance.coordinates, instance.d
    L, s, t = problem.tokens, problem.student_rank, problem.teacher_rank
    channel, scales = problem.solver.proximal, len(problem.noise_scale)
    nodes = sobol_normal(L * (s + t) + scales, _LOG2, seed, ())
    rows = np.concatenate([weights.W, known.pi], axis=1)
    out = np.zeros((len(SCALES), 2))
    for labels, probability in problem.label_choices:
        contexts = problem.context_of(labels)
        fields = np.empty((len(nodes), L, s + t))
        for l, c in enumerate(contexts):
            values, vectors = np.linalg.eigh(rows.T @ (known.gamma[:, [c]] * rows) / d)
            root = vectors * np.sqrt(np.maximum(values, 0.0))
            fields[:, l] = nodes[:, l * (s + t) : (l + 1) * (s + t)] @ root.T
        y = (fields[:, :, s:] + problem.law.teacher_means[contexts]).reshape(len(nodes), -1)
        noise = nodes[:, L * (s + t) :] * problem.noise_scale
        for features, chance in _features(problem, labels, np.ascontiguousarray(y), noise):
            for number, scale in enumerate(SCALES):
                at = Weights(scale * weights.W, weights.phi)
                overlaps = overlaps_of(instance, at)
                x = np.ascontiguousarray((scale * fields[:, :, :s] + overlaps.m[contexts]).reshape(len(nodes), -1))
                losses, slopes = channel.losses_at(x, features, problem.constants(labels, overlaps))
                squares = np.sum(slopes.reshape(-1, L, s) ** 2, axis=2) @ across.traces[contexts]
                out[number] += probability * np.array([np.mean(chance * losses), np.mean(chance * squares) / d])
    return np.ravel(out * instance.n / d)


def _features(
    problem: Problem, labels: tuple[int, ...], y: np.ndarray, gaussian: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Features (N, F) and probabilities (N,) of every value of labelled noise at teacher fields (N, L t)."""
    channel, c, is_gaussian = problem.solver.proximal, problem.constants(labels), problem.is_gaussian
    noise = np.empty((len(y), len(is_gaussian)))
    noise[:, is_gaussian] = gaussian
    if not channel.LABELLED_NOISE:
        yield channel.features_at(y, noise, c), np.ones(len(y))
        return
    chances = problem.solver.proximal.noise_law_at(y, c)
    for values, chance in zip(channel.LABELLED_NOISE, chances.T, strict=True):
        noise[:, ~is_gaussian] = values
        yield channel.features_at(y, noise, c), chance
