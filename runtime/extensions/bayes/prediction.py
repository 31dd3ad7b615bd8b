"""Test errors that no learner beats: the best prediction for a new sentence, given the posterior of its fields
(docs/theory.md (13.8)).

Of a new sentence one knows omega ~ N(m*, q), and its fields are Y ~ N(omega, rho* - q) given that. Where the error is
the square |F(h) - F(Y)|^2 of a distance between predicted and true fields, in whatever space F maps to, the best
prediction is the posterior mean of F, and its error half of that between two draws from the posterior, teacher and
student of overlaps q = rho*, theta = q (docs/theory.md (13.15)).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.linalg import block_diag

from ...channel.nodes import gauss_hermite, panels, sobol_normal, tensor
from ...integration.estimates import two_standard_errors
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point import observables
from .averages import root

_RULE = 24  # points of a field where the best prediction is known
_MOST_AXES = 2  # fields that products are taken for
_REPLICATES, _LOG2, _LOG2_INNER = 8, 7, 11  # of draws of more, of omega and of the fields given it
_RISE = 6.0  # widths of what is unknown around a kink within which the least error changes
_POINTS = 24  # at which a metric is asked whether it is a distance
_SHARE = 1e-4  # half width asked of an error between two draws


def test_error(problem: Problem, q: np.ndarray, half_widths: np.ndarray) -> tuple[float, float] | None:
    """E_omega min over predictions of E[error | omega] and its half width, from a coarser rule and those of q; None
    where the model has no error whose best prediction is known in this way.

    With a `baseline` the prediction is a matrix B and the error quadratic in it. A metric of one field h is minimised
    over h. Both are the model's own expressions.

    Args:
        q, half_widths: (C, t, t).
    """
    metric = problem.solver.metric
    one_field = problem.tokens * problem.student_rank == 1 and problem.teacher_rank == 1
    if metric.HAS_BASELINE and problem.tokens * problem.teacher_rank > _MOST_AXES:
        return _drawn(problem, q, half_widths)
    if not metric.HAS_BASELINE and not (metric.HAS_METRIC and one_field and problem.is_gaussian.all()):
        return None

    def least(known: np.ndarray, points: int) -> float:
        if metric.HAS_BASELINE:
            return _best_matrix(problem, known, *_products(problem, points))
        return _best_field(problem, known, points)

    points = _RULE if metric.HAS_BASELINE else 4 * _RULE
    value = least(q, points)
    if np.isnan(value):
        return None
    moved = sum(abs(least(less, points) - value) for less in _less(q, half_widths))
    return value, abs(least(q, 3 * points // 4) - value) + moved


def _drawn(problem: Problem, q: np.ndarray, half_widths: np.ndarray) -> tuple[float, float]:
    """With the best matrix, from replicates."""
    nodes = [_draws(problem, seed) for seed in range(_REPLICATES)]
    values = np.array([_best_matrix(problem, q, *some) for some in nodes])
    moved = sum(abs(_best_matrix(problem, less, *nodes[0]) - values[0]) for less in _less(q, half_widths))
    return float(values.mean()), float(two_standard_errors(values)) + moved


def _less(q: np.ndarray, half_widths: np.ndarray) -> Iterator[np.ndarray]:
    """Overlaps with a half width taken away from one of their entries in all contexts: less is always admissible."""
    for a, b in zip(*np.triu_indices(q.shape[1]), strict=True):
        step = np.zeros_like(q)
        step[:, a, b] = step[:, b, a] = half_widths[:, a, b]
        if step.any():
            yield q - step if q.shape[1] > 1 else np.clip(q - step, 0, None)


def errors_by_metric(problem: Problem, q: np.ndarray, half_widths: np.ndarray) -> dict[str, tuple[float, float]]:
    """Name of a metric of the model -> the least error of any prediction of its features, and its half width: of those
    metrics that are squares of distances.

    Args:
        q, half_widths: (C, t, t).
    """
    if not problem.solver.metric.HAS_METRIC:
        return {}
    parts = {name: problem.by_metric(name) if name else problem for name in problem.metric_names or ("",)}
    return {
        name: _half_between_draws(part, q, half_widths) for name, part in parts.items() if is_squared_distance(part)
    }


def is_squared_distance(problem: Problem) -> bool:
    """Whether metric(h, Y) is |F(h) - F(Y)|^2 for some F into a Hilbert space.

    It is if it is symmetric, zero at h = Y and of negative type (I. J. Schoenberg, Trans. AMS 44 (1938) 522), which is
    asked at random fields, of sentences of all labels.
    """
    size = problem.tokens * problem.teacher_rank
    if problem.student_rank != problem.teacher_rank:
        return False
    random = np.random.default_rng(0)
    points, noise = 1.5 * random.normal(size=(_POINTS, size)), random.normal(size=len(problem.noise_scale))
    function = problem.solver.metric.metric
    centre = np.eye(_POINTS) - 1 / _POINTS
    for labels, _ in problem.label_choices:
        constants = problem.constants(labels)
        distances = np.array([[function(*h, *y, *noise, constants) for y in points] for h in points])
        scale = np.abs(distances).max()
        if not np.abs(distances - distances.T).max() + np.abs(np.diag(distances)).max() < 1e-9 * scale:
            return False
        if np.linalg.eigvalsh(-centre @ (distances + distances.T) @ centre / 4).min() < -1e-9 * scale * _POINTS:
            return False
    return True


def _half_between_draws(problem: Problem, q: np.ndarray, half_widths: np.ndarray) -> tuple[float, float]:
    """Half of the metric between two draws, with the integration error and what half widths of q move it by."""
    law = problem.law
    if not np.linalg.eigvalsh(law.rho_star - q).max() > 0:
        return 0.0, 0.0

    def between(known: np.ndarray) -> Overlaps:
        # V plays no part in a test error; the map wants it positive.
        return Overlaps(law.rho_star, law.rho_star, law.teacher_means, known)

    value, error, rule = observables.test_error(problem, between(q), _SHARE * float(np.abs(law.rho_star).max()))
    if rule is None:
        return np.nan, np.nan
    at = observables.average_metric(problem, between(q), rule)
    moved = sum(abs(observables.average_metric(problem, between(less), rule) - at) for less in _less(q, half_widths))
    return value / 2, (error + moved) / 2


def _products(problem: Problem, points: int) -> tuple[np.ndarray, ...]:
    """Nodes and weights of omega, and of the fields and noise given it, standard normal."""
    axes = [gauss_hermite(points)] * (problem.tokens * problem.teacher_rank)
    outer, shares = tensor(axes)
    inner, weights = tensor([*axes, *[gauss_hermite(points)] * len(problem.noise_scale)])
    kept, kept_inner = shares > 1e-16, weights > 1e-18
    return outer[kept], shares[kept], np.ascontiguousarray(inner[kept_inner]), np.ascontiguousarray(weights[kept_inner])


def _draws(problem: Problem, seed: int) -> tuple[np.ndarray, ...]:
    """The same as draws."""
    size = problem.tokens * problem.teacher_rank
    found: list[np.ndarray] = []
    for dimension, log2, own in ((size, _LOG2, 2 * seed), (size + len(problem.noise_scale), _LOG2_INNER, 2 * seed + 1)):
        nodes = sobol_normal(dimension, log2, own, ())
        found += [nodes, np.full(len(nodes), 1 / len(nodes))]
    return tuple(found)


def _best_matrix(
    problem: Problem, q: np.ndarray, outer: np.ndarray, shares: np.ndarray, inner: np.ndarray, weights: np.ndarray
) -> float:
    """E_omega min_B of the averaged quadratic error."""
    metric = problem.solver.metric
    total = 0.0
    for labels, probability in problem.label_choices:
        contexts = problem.context_of(labels)
        constants = problem.constants(labels)
        spread, width = root(q[contexts]), root(problem.law.rho_star[contexts] - q[contexts])
        # Lower triangular, as the generated code reads factors.
        spread = block_diag(*spread)
        width = np.stack([np.linalg.qr(w.T)[1].T for w in width])
        for node, share in zip(outer, shares, strict=True):
            omega = problem.law.teacher_means[contexts] + (spread @ node).reshape(problem.tokens, -1)
            error, gradient, hessian = metric.baseline_terms(
                inner, weights, omega, width, problem.noise_scale, constants
            )
            total += probability * share * (error - gradient @ np.linalg.pinv(hessian, hermitian=True) @ gradient / 2)
    return float(total)


def _best_field(problem: Problem, q: np.ndarray, points: int) -> float:
    """E_omega min_h E[metric(h, Y, u) | omega], by search on a grid of h refined around its least value."""
    (labels, _), *others = problem.label_choices
    if others or len(problem.noise_scale) > 1:
        return np.nan
    module, constants = problem.solver.bayes, problem.constants(labels)
    planes = problem.planes("metric", constants)
    kinks = [float(-b / y) for x, y, *u, b in planes if y and not x and not any(u)]
    known = max(float(q[0, 0, 0]), 0.0)
    spread, width = np.sqrt(known), np.sqrt(max(float(problem.law.rho_star[0, 0, 0]) - known, 0.0))
    mean = float(problem.law.teacher_means[0, 0])
    noise, noise_weights = gauss_hermite(12) if len(problem.noise_scale) else (np.zeros(1), np.ones(1))
    noise = noise * (problem.noise_scale[0] if len(problem.noise_scale) else 0.0)
    total = 0.0
    # As a function of omega the least error has a kink where the best answer changes sides, close to which it changes
    # within what is unknown.
    breaks = [kink + side * _RISE * width for kink in kinks for side in (-1, 0, 1)]
    for omega, share in zip(*_normal(mean, spread, breaks, points), strict=True):
        if share < 1e-17:
            continue
        fields, weights = _normal(omega, width, kinks, points)
        Y, u = np.repeat(fields, len(noise))[:, None], np.tile(noise, len(fields))[:, None]
        joint = np.outer(weights, noise_weights).ravel()
        low, high = -abs(omega) - 6 * width, abs(omega) + 6 * width
        for _ in range(8):
            answers = np.linspace(low, high, 21)
            errors = module.errors_at(answers[:, None], Y, u, joint, constants)
            best = int(np.argmin(errors))
            low, high = answers[max(best - 1, 0)], answers[min(best + 1, 20)]
        total += share * errors[best]
    return float(total)


def _normal(mean: float, width: float, kinks: list[float], points: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a normal law, with panels between kinks."""
    if width == 0:
        return np.array([mean]), np.ones(1)
    nodes, weights = panels([(value - mean) / width for value in kinks], points)
    return mean + width * nodes, weights
