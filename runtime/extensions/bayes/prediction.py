"""The least test error of any learner, which the best prediction for a new sample attains (docs/theory.md (13.8)).

For a new sample omega ~ N(m*, q), and its fields are Y ~ N(omega, rho* - q) given that. Where the error is
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
from ...channel.nodes import (
    equal_weights,
    gauss_hermite,
    normal_rule_on_panels,
    sobol_normal_points,
    tensor_product_rule,
)
from ...integration.estimates import replicate_error_bar
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point import observables
from .averages import symmetric_matrix_sqrt


@dataclass(frozen=True)
class LeastErrorOptions(AlgorithmOptions):
    """Options of the integrals for the least test error.

    Attributes:
        points: points of a field in a product rule; the error bar comes from a rule with three quarters of them.
        max_product_fields: number of fields in a sample up to which product rules are used; above, quasi-random points.
        replicates: independent sets of random points, which give the error bar.
        log2_outer: binary logarithm of the number of random points of omega in a set.
        log2_inner: binary logarithm of the number of random points of the fields given omega.
        kink_width: distance from a kink, in posterior standard deviations, within which the least error
            changes.
        metric_points: number of random fields at which a metric is tested for being a squared distance.
        pair_accuracy: required error bar of the metric between two posterior draws, relative to the teacher's variance.
    """

    points: int = 24
    max_product_fields: int = 2
    replicates: int = 8
    log2_outer: int = 7
    log2_inner: int = 11
    kink_width: float = 6.0
    metric_points: int = 24
    pair_accuracy: float = 1e-4


def least_test_error(problem: Problem, q: np.ndarray, error_bars: np.ndarray) -> tuple[float, float] | None:
    """Return the least test error of any prediction and its error bar, or None where it is unknown.

    The error is known for models with a `baseline`, whose prediction is a matrix in which the error is quadratic, and
    for a metric of one field.

    Args:
        problem: the problem with its metric.
        q: overlaps q, a (t, t) matrix of teacher columns for each (token, cluster) pair.
        error_bars: error bars of q, in its shape, which add to the error bar of integration.
    """
    options = LeastErrorOptions.current()
    metric = problem.solver.metric_functions
    one_field = problem.tokens * problem.student_rank == 1 and problem.teacher_rank == 1
    if metric.HAS_BASELINE and problem.tokens * problem.teacher_rank > options.max_product_fields:
        return _least_error_by_random_points(problem, q, error_bars)
    if not metric.HAS_BASELINE and not (metric.HAS_METRIC and one_field and problem.is_gaussian_noise.all()):
        return None

    def least_error_at_overlaps(known: np.ndarray, points: int) -> float:
        """Return the least test error at given overlaps by a quadrature rule with a given number of points.

        Args:
            known: overlaps q, a (t, t) matrix of teacher columns for each (token, cluster) pair.
            points: number of points of each field.
        """
        if metric.HAS_BASELINE:
            return _least_error_of_matrix_prediction(problem, known, *_gauss_hermite_nodes(problem, points))
        return _least_error_of_one_field(problem, known, points)

    points = options.points if metric.HAS_BASELINE else 4 * options.points
    value = least_error_at_overlaps(q, points)
    if np.isnan(value):
        return None
    moved = sum(
        abs(least_error_at_overlaps(less, points) - value) for less in _overlaps_lowered_by_error_bars(q, error_bars)
    )
    return value, abs(least_error_at_overlaps(q, 3 * points // 4) - value) + moved


def _least_error_by_random_points(problem: Problem, q: np.ndarray, error_bars: np.ndarray) -> tuple[float, float]:
    """Return the least error of a matrix-valued prediction and its error bar, by quasi-Monte Carlo."""
    nodes = [_quasi_random_nodes(problem, seed) for seed in range(LeastErrorOptions.current().replicates)]
    values = np.array([_least_error_of_matrix_prediction(problem, q, *some) for some in nodes])
    moved = sum(
        abs(_least_error_of_matrix_prediction(problem, less, *nodes[0]) - values[0])
        for less in _overlaps_lowered_by_error_bars(q, error_bars)
    )
    return float(values.mean()), float(replicate_error_bar(values)) + moved


def _overlaps_lowered_by_error_bars(q: np.ndarray, error_bars: np.ndarray) -> Iterator[np.ndarray]:
    """Yield, for each entry of q, the overlaps with this entry lowered by its error bar, to propagate the error.

    Smaller overlaps are always admissible, larger ones need not be.
    """
    for a, b in zip(*np.triu_indices(q.shape[1]), strict=True):
        step = np.zeros_like(q)
        step[:, a, b] = step[:, b, a] = error_bars[:, a, b]
        if step.any():
            yield q - step if q.shape[1] > 1 else np.clip(q - step, 0, None)


def least_errors_by_metric(problem: Problem, q: np.ndarray, error_bars: np.ndarray) -> dict[str, tuple[float, float]]:
    """Return a mapping from the name of a metric to the least error of any prediction and its error bar.

    It contains the metrics of the model that are a squared distance between predicted and true fields.

    Args:
        problem: the problem with its metrics.
        q: overlaps q, a (t, t) matrix of teacher columns for each (token, cluster) pair.
        error_bars: error bars of q, in its shape.
    """
    if not problem.solver.metric_functions.HAS_METRIC:
        return {}
    parts = {name: problem.with_metric(name) if name else problem for name in problem.metric_names or ("",)}
    return {
        name: _least_error_from_posterior_draws(part, q, error_bars)
        for name, part in parts.items()
        if is_metric_squared_distance(part)
    }


def is_metric_squared_distance(problem: Problem) -> bool:
    """Return whether the metric is the squared distance, in some Hilbert space, between predicted and true fields.

    This holds if it is symmetric, zero for equal fields and of negative type (I. J. Schoenberg, Trans. AMS 44 (1938)
    522), which is tested at random fields of samples of all labels.
    """
    count = LeastErrorOptions.current().metric_points
    size = problem.tokens * problem.teacher_rank
    if problem.student_rank != problem.teacher_rank:
        return False
    random = np.random.default_rng(0)
    points, noise = 1.5 * random.normal(size=(count, size)), random.normal(size=len(problem.noise_scale))
    function = problem.solver.metric_functions.metric
    centre = np.eye(count) - 1 / count
    for labels, _ in problem.label_probabilities:
        constants = problem.constants(labels)
        distances = np.array([[function(*h, *y, *noise, constants) for y in points] for h in points])
        scale = np.abs(distances).max()
        if not np.abs(distances - distances.T).max() + np.abs(np.diag(distances)).max() < 1e-9 * scale:
            return False
        if np.linalg.eigvalsh(-centre @ (distances + distances.T) @ centre / 4).min() < -1e-9 * scale * count:
            return False
    return True


def _least_error_from_posterior_draws(problem: Problem, q: np.ndarray, error_bars: np.ndarray) -> tuple[float, float]:
    """Return the least error, with error bar, under a metric that is a squared distance.

    The least error is half of the mean metric between two draws from the posterior.
    """
    law = problem.law
    if not np.linalg.eigvalsh(law.rho_star - q).max() > 0:
        return 0.0, 0.0

    def overlaps_of_posterior_draws(known: np.ndarray) -> Overlaps:
        # V plays no part in a test error; the map wants it positive.
        return Overlaps(law.rho_star, law.rho_star, law.teacher_means, known)

    accuracy = LeastErrorOptions.current().pair_accuracy * float(np.abs(law.rho_star).max())
    value, error, rule = observables.test_error(problem, overlaps_of_posterior_draws(q), accuracy)
    if rule is None:
        return np.nan, np.nan
    at = observables.average_metric_by_quadrature(problem, overlaps_of_posterior_draws(q), rule)
    moved = sum(
        abs(observables.average_metric_by_quadrature(problem, overlaps_of_posterior_draws(less), rule) - at)
        for less in _overlaps_lowered_by_error_bars(q, error_bars)
    )
    return value / 2, (error + moved) / 2


def _gauss_hermite_nodes(problem: Problem, points: int) -> tuple[np.ndarray, ...]:
    """Return Gauss-Hermite nodes and weights for posterior means of fields, then for fields and noise given these."""
    axes = [gauss_hermite(points)] * (problem.tokens * problem.teacher_rank)
    outer, shares = tensor_product_rule(axes)
    inner, weights = tensor_product_rule([*axes, *[gauss_hermite(points)] * len(problem.noise_scale)])
    kept, kept_inner = shares > 1e-16, weights > 1e-18
    return outer[kept], shares[kept], np.ascontiguousarray(inner[kept_inner]), np.ascontiguousarray(weights[kept_inner])


def _quasi_random_nodes(problem: Problem, seed: int) -> tuple[np.ndarray, ...]:
    """Return quasi-random nodes and weights for posterior means of fields, then for fields and noise given these."""
    options = LeastErrorOptions.current()
    size = problem.tokens * problem.teacher_rank
    found: list[np.ndarray] = []
    inner_size = size + len(problem.noise_scale)
    sets = (size, options.log2_outer, 2 * seed), (inner_size, options.log2_inner, 2 * seed + 1)
    for dimension, log2, own in sets:
        nodes = sobol_normal_points(dimension, log2, own, ())
        found += [nodes, equal_weights(len(nodes))]
    return tuple(found)


def _least_error_of_matrix_prediction(
    problem: Problem, q: np.ndarray, outer: np.ndarray, shares: np.ndarray, inner: np.ndarray, weights: np.ndarray
) -> float:
    """Return the least mean of an error that is quadratic in a predicted matrix.

    The prediction is chosen for each posterior mean omega of the fields.
    """
    metric = problem.solver.metric_functions
    total = 0.0
    for labels, probability in problem.label_probabilities:
        contexts = problem.token_cluster_indices(labels)
        constants = problem.constants(labels)
        spread = symmetric_matrix_sqrt(q[contexts])
        width = symmetric_matrix_sqrt(problem.law.rho_star[contexts] - q[contexts])
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


def _least_error_of_one_field(problem: Problem, q: np.ndarray, points: int) -> float:
    """Return the least expected error, under a metric, of a prediction of one field, by refined grid search.

    The prediction is chosen for each posterior mean omega of the field.
    """
    (labels, _), *others = problem.label_probabilities
    if others or len(problem.noise_scale) > 1:
        return np.nan
    module, constants = problem.solver.bayes_functions, problem.constants(labels)
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
    for omega, share in zip(*_normal_nodes_between_kinks(mean, spread, breaks, points), strict=True):
        if share < 1e-17:
            continue
        fields, weights = _normal_nodes_between_kinks(omega, width, kinks, points)
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


def _normal_nodes_between_kinks(
    mean: float, width: float, kinks: list[float], points: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights for normal averages of a function with kinks, by quadrature between the kinks."""
    if width == 0:
        return np.array([mean]), np.ones(1)
    nodes, weights = normal_rule_on_panels([(value - mean) / width for value in kinks], points)
    return mean + width * nodes, weights
