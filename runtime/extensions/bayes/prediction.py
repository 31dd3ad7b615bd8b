"""The least test error of any learner: that of the best prediction for a new sample (docs/theory.md (13.8)).

Of a new sample one knows omega ~ N(m*, q), and its fields are Y ~ N(omega, rho* - q) given that. Where the error is
the square |F(h) - F(Y)|^2 of a distance between predicted and true fields, in whatever space F maps to, the best
prediction is the posterior mean of F, and its error half of that between two draws from the posterior, teacher and
student of overlaps q = rho*, theta = q (docs/theory.md (13.15)).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import block_diag

from ...base.options import AlgorithmOptions
from ...channel.nodes import gauss_hermite, normal_panel_rule, sobol_normal, tensor_product_rule
from ...integration.estimates import two_standard_errors
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point import observables
from .averages import symmetric_sqrt


@dataclass(frozen=True)
class LeastErrorOptions(AlgorithmOptions):
    """Options of the integrals for the least test error.

    Attributes:
        points: points of a field in a product rule; its error bar comes from three quarters of them.
        max_product_fields: fields of a sample up to which product rules are used, else random points.
        replicates: independent sets of random points, which give the error bar.
        log2_outer: binary logarithm of the random points of omega in a set.
        log2_inner: the same of the fields given omega.
        kink_width: distance from a kink, in standard deviations of the unknown part, within which the least error
            changes.
        metric_points: random fields at which a metric is tested for being a squared distance.
        pair_accuracy: error bar required of the error between two draws, relative to rho*.
    """

    points: int = 24
    max_product_fields: int = 2
    replicates: int = 8
    log2_outer: int = 7
    log2_inner: int = 11
    kink_width: float = 6.0
    metric_points: int = 24
    pair_accuracy: float = 1e-4


def test_error(problem: Problem, q: np.ndarray, error_bars: np.ndarray) -> tuple[float, float] | None:
    """Return E_omega min over predictions of E[error | omega] and its error bar, or None.

    It is None for models without an error whose best prediction is known in this way. With a `baseline` the prediction
    is a matrix B and the error quadratic in it. A metric of one field h is minimised over h.

    Args:
        problem: the problem with its metric.
        q: overlaps, (C, t, t).
        error_bars: error bars of q, (C, t, t), which add to that of a coarser rule.
    """
    options = LeastErrorOptions.current()
    metric = problem.solver.metric
    one_field = problem.tokens * problem.student_rank == 1 and problem.teacher_rank == 1
    if metric.HAS_BASELINE and problem.tokens * problem.teacher_rank > options.max_product_fields:
        return _least_error_by_draws(problem, q, error_bars)
    if not metric.HAS_BASELINE and not (metric.HAS_METRIC and one_field and problem.is_gaussian.all()):
        return None

    def least_error(known: np.ndarray, points: int) -> float:
        """Return the least error.

        Args:
            known: overlaps, (C, t, t).
            points: points of a field.
        """
        if metric.HAS_BASELINE:
            return _least_error_of_matrix(problem, known, *_product_nodes(problem, points))
        return _least_error_of_field(problem, known, points)

    points = options.points if metric.HAS_BASELINE else 4 * options.points
    value = least_error(q, points)
    if np.isnan(value):
        return None
    moved = sum(abs(least_error(less, points) - value) for less in _lowered_overlaps(q, error_bars))
    return value, abs(least_error(q, 3 * points // 4) - value) + moved


def _least_error_by_draws(problem: Problem, q: np.ndarray, error_bars: np.ndarray) -> tuple[float, float]:
    """Return the least error of a matrix and its error bar, from replicates of random points."""
    nodes = [_random_nodes(problem, seed) for seed in range(LeastErrorOptions.current().replicates)]
    values = np.array([_least_error_of_matrix(problem, q, *some) for some in nodes])
    moved = sum(
        abs(_least_error_of_matrix(problem, less, *nodes[0]) - values[0]) for less in _lowered_overlaps(q, error_bars)
    )
    return float(values.mean()), float(two_standard_errors(values)) + moved


def _lowered_overlaps(q: np.ndarray, error_bars: np.ndarray) -> Iterator[np.ndarray]:
    """Yield overlaps less the error bar of one entry in all contexts: smaller overlaps are always admissible."""
    for a, b in zip(*np.triu_indices(q.shape[1]), strict=True):
        step = np.zeros_like(q)
        step[:, a, b] = step[:, b, a] = error_bars[:, a, b]
        if step.any():
            yield q - step if q.shape[1] > 1 else np.clip(q - step, 0, None)


def errors_by_metric(problem: Problem, q: np.ndarray, error_bars: np.ndarray) -> dict[str, tuple[float, float]]:
    """Return the least error of any prediction and its error bar, by name of each metric that is a squared distance.

    Args:
        problem: the problem with its metrics.
        q: overlaps, (C, t, t).
        error_bars: error bars of q, (C, t, t).
    """
    if not problem.solver.metric.HAS_METRIC:
        return {}
    parts = {name: problem.with_metric(name) if name else problem for name in problem.metric_names or ("",)}
    return {
        name: _least_error_between_draws(part, q, error_bars)
        for name, part in parts.items()
        if is_squared_distance(part)
    }


def is_squared_distance(problem: Problem) -> bool:
    """Return whether metric(h, Y) is |F(h) - F(Y)|^2 for some F into a Hilbert space.

    It is if it is symmetric, zero at h = Y and of negative type (I. J. Schoenberg, Trans. AMS 44 (1938) 522), which is
    tested at random fields, of samples of all labels.
    """
    count = LeastErrorOptions.current().metric_points
    size = problem.tokens * problem.teacher_rank
    if problem.student_rank != problem.teacher_rank:
        return False
    random = np.random.default_rng(0)
    points, noise = 1.5 * random.normal(size=(count, size)), random.normal(size=len(problem.noise_scale))
    function = problem.solver.metric.metric
    centre = np.eye(count) - 1 / count
    for labels, _ in problem.label_choices:
        constants = problem.constants(labels)
        distances = np.array([[function(*h, *y, *noise, constants) for y in points] for h in points])
        scale = np.abs(distances).max()
        if not np.abs(distances - distances.T).max() + np.abs(np.diag(distances)).max() < 1e-9 * scale:
            return False
        if np.linalg.eigvalsh(-centre @ (distances + distances.T) @ centre / 4).min() < -1e-9 * scale * count:
            return False
    return True


def _least_error_between_draws(problem: Problem, q: np.ndarray, error_bars: np.ndarray) -> tuple[float, float]:
    """Return half of the metric between two draws, and its error bar with the part due to error bars of q."""
    law = problem.law
    if not np.linalg.eigvalsh(law.rho_star - q).max() > 0:
        return 0.0, 0.0

    def overlaps_between_draws(known: np.ndarray) -> Overlaps:
        # V plays no part in a test error; the map wants it positive.
        return Overlaps(law.rho_star, law.rho_star, law.teacher_means, known)

    accuracy = LeastErrorOptions.current().pair_accuracy * float(np.abs(law.rho_star).max())
    value, error, rule = observables.test_error(problem, overlaps_between_draws(q), accuracy)
    if rule is None:
        return np.nan, np.nan
    at = observables.average_metric(problem, overlaps_between_draws(q), rule)
    moved = sum(
        abs(observables.average_metric(problem, overlaps_between_draws(less), rule) - at)
        for less in _lowered_overlaps(q, error_bars)
    )
    return value / 2, (error + moved) / 2


def _product_nodes(problem: Problem, points: int) -> tuple[np.ndarray, ...]:
    """Return nodes and weights of omega, and of the fields and noise given it, standard normal."""
    axes = [gauss_hermite(points)] * (problem.tokens * problem.teacher_rank)
    outer, shares = tensor_product_rule(axes)
    inner, weights = tensor_product_rule([*axes, *[gauss_hermite(points)] * len(problem.noise_scale)])
    kept, kept_inner = shares > 1e-16, weights > 1e-18
    return outer[kept], shares[kept], np.ascontiguousarray(inner[kept_inner]), np.ascontiguousarray(weights[kept_inner])


def _random_nodes(problem: Problem, seed: int) -> tuple[np.ndarray, ...]:
    """Return the same nodes and weights as random points."""
    options = LeastErrorOptions.current()
    size = problem.tokens * problem.teacher_rank
    found: list[np.ndarray] = []
    inner_size = size + len(problem.noise_scale)
    sets = (size, options.log2_outer, 2 * seed), (inner_size, options.log2_inner, 2 * seed + 1)
    for dimension, log2, own in sets:
        nodes = sobol_normal(dimension, log2, own, ())
        found += [nodes, np.full(len(nodes), 1 / len(nodes))]
    return tuple(found)


def _least_error_of_matrix(
    problem: Problem, q: np.ndarray, outer: np.ndarray, shares: np.ndarray, inner: np.ndarray, weights: np.ndarray
) -> float:
    """Return E_omega min_B of the averaged quadratic error."""
    metric = problem.solver.metric
    total = 0.0
    for labels, probability in problem.label_choices:
        contexts = problem.context_indices(labels)
        constants = problem.constants(labels)
        spread, width = symmetric_sqrt(q[contexts]), symmetric_sqrt(problem.law.rho_star[contexts] - q[contexts])
        # Lower triangular, as generated code takes factors.
        spread = block_diag(*spread)
        width = np.stack([np.linalg.qr(w.T)[1].T for w in width])
        for node, share in zip(outer, shares, strict=True):
            omega = problem.law.teacher_means[contexts] + (spread @ node).reshape(problem.tokens, -1)
            error, gradient, hessian = metric.baseline_terms(
                inner, weights, omega, width, problem.noise_scale, constants
            )
            total += probability * share * (error - gradient @ np.linalg.pinv(hessian, hermitian=True) @ gradient / 2)
    return float(total)


def _least_error_of_field(problem: Problem, q: np.ndarray, points: int) -> float:
    """Return E_omega min_h E[metric(h, Y, u) | omega], by search on a grid of h refined around its least value."""
    (labels, _), *others = problem.label_choices
    if others or len(problem.noise_scale) > 1:
        return np.nan
    module, constants = problem.solver.bayes, problem.constants(labels)
    planes = problem.kink_planes("metric", constants)
    kinks = [float(-b / y) for x, y, *u, b in planes if y and not x and not any(u)]
    known = max(float(q[0, 0, 0]), 0.0)
    spread, width = np.sqrt(known), np.sqrt(max(float(problem.law.rho_star[0, 0, 0]) - known, 0.0))
    mean = float(problem.law.teacher_means[0, 0])
    noise, noise_weights = gauss_hermite(12) if len(problem.noise_scale) else (np.zeros(1), np.ones(1))
    noise = noise * (problem.noise_scale[0] if len(problem.noise_scale) else 0.0)
    total = 0.0
    # As a function of omega the least error has a kink where the best answer changes sides, around which it varies
    # within the standard deviation of the unknown part.
    breaks = [kink + side * LeastErrorOptions.current().kink_width * width for kink in kinks for side in (-1, 0, 1)]
    for omega, share in zip(*_normal_nodes(mean, spread, breaks, points), strict=True):
        if share < 1e-17:
            continue
        fields, weights = _normal_nodes(omega, width, kinks, points)
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


def _normal_nodes(mean: float, width: float, kinks: list[float], points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of a normal law, with panels between kinks."""
    if width == 0:
        return np.array([mean]), np.ones(1)
    nodes, weights = normal_panel_rule([(value - mean) / width for value in kinks], points)
    return mean + width * nodes, weights
