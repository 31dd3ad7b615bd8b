"""Averages over the combinations that a loss or a metric reads are those over all fields (docs/theory.md (11.7))."""

from typing import Any

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import saddleforge as sf
from saddleforge.base.errors import DomainError
from saddleforge.derive.models.mixture_classification import gaussian_mixture_law
from saddleforge.integration import GaussHermite, ProxSpaceRule, Rule, Sobol
from saddleforge.problems.combinations import FieldCombinations, MapsToTokenAverages, OverlapReductionMaps
from saddleforge.problems.overlaps import Overlaps
from saddleforge.problems.problem import Problem
from saddleforge.problems.reduced import ReducedProblem, reduce_to_fields_of_loss, reduce_to_fields_of_metric
from saddleforge.saddle_point import observables

NAMES = ["ridge_regression", "mixture_classification"]
OTHERS = ["elastic_net_regression", "huber_regression", "tukey_regression"]


def any_state(problem: Problem, seed: int = 1) -> Overlaps:
    """Random overlaps inside their domain; no mean where encodings vanish."""
    generator = np.random.default_rng(seed)
    contexts, s, t, _ = problem.sizes

    def positive(size: float) -> np.ndarray:
        root = generator.standard_normal((contexts, s, 2 * s))
        return size * (root @ np.swapaxes(root, 1, 2) / s + np.eye(s))

    theta = 0.3 * generator.standard_normal((contexts, s, t))
    known = theta @ np.linalg.inv(problem.law.rho_star) @ np.swapaxes(theta, 1, 2)
    means = 0.2 * generator.standard_normal((contexts, s)) * problem.law.contexts_with_nonzero_mean[:, None]
    return Overlaps(positive(0.5) + known, positive(0.3), means, theta)


def assert_alike(problem: Problem, rule: Rule, state: Overlaps, level: float) -> None:
    """Averages, slopes and tangents by both ways, relative to the largest of each."""
    assert reduce_to_fields_of_loss(problem).dimension < problem.dimension
    whole, read = rule._integrate_averages(problem, state), rule.averages(problem, state)
    pairs = [(whole.moments, read.moments), (whole.moreau, read.moreau), (whole.loss, read.loss)]
    slopes = rule._integrate_jacobians(problem, state), rule.jacobian_averages(problem, state)
    pairs += [(slopes[0].slope, slopes[1].slope), (slopes[0].square, slopes[1].square)]
    if problem.inverse_temperature is None:
        pairs.append(
            (
                rule._average_moment_derivatives_over_labels(problem, state, False),
                rule.moment_derivatives(problem, state),
            )
        )
    for one, other in pairs:
        assert one.shape == other.shape
        assert np.abs(one - other).max() <= level * np.abs(one).max()


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("ridge_regression", GaussHermite(40)),
        pytest.param("ridge_regression", ProxSpaceRule(160, 80), marks=pytest.mark.slow),
        pytest.param("mixture_classification", ProxSpaceRule(160, 80), marks=pytest.mark.slow),
        pytest.param("mixture_classification", GaussHermite(48), marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_averages_over_what_is_read_are_those_over_all_fields(name: str, rule: Rule) -> None:
    problem = sf.problem(name, alpha=1.5)
    assert_alike(problem, rule, any_state(problem), 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_averages_with_kinks_are_those_over_all_fields(name: str) -> None:
    """Where kinks move with Y and noise all fields take many nodes, and what is read of them few."""
    problem = sf.problem(name, alpha=1.5)
    level = 1e-11 if name == "elastic_net_regression" else 5e-3
    assert_alike(problem, ProxSpaceRule(500, 100), any_state(problem), level)


@pytest.mark.slow
def test_reduced_averages_of_three_clusters_and_two_columns_equal_full_ones() -> None:
    """In other coordinates a product has other errors, here up to 5e-7 by 40 nodes an axis, and 8e-5 by 16."""
    problem = sf.problem("mixture_classification", alpha=1.5, student_rank=2, clusters=3)
    assert reduce_to_fields_of_loss(problem).dimension == 2
    assert_alike(problem, GaussHermite(40), any_state(problem), 2e-6)


@pytest.mark.slow
def test_reduced_averages_of_untied_attention_agree_with_full_ones() -> None:
    """Sampled over other nodes: alike within three standard errors of both."""
    problem = sf.problem("untied_attention", alpha=1.5)
    state, rule = any_state(problem), Sobol(12)
    whole, read = rule._integrate_averages(problem, state), rule.averages(problem, state)
    for one, other in ((whole.moments, read.moments), (whole.moreau, read.moreau)):
        spread = np.sqrt((one.var(axis=0) + other.var(axis=0)) / (len(one) - 1))
        assert np.all(np.abs(one.mean(axis=0) - other.mean(axis=0)) <= 4 * spread + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_reduced_averages_at_a_finite_temperature_equal_full_ones(name: str) -> None:
    problem = sf.problem(name, alpha=1.5, inverse_temperature=2.0)
    assert_alike(problem, GaussHermite(36), any_state(problem), 1e-10)


@pytest.mark.parametrize("name", ["ridge_regression", "mixture_classification"])
def test_the_test_error_is_that_over_all_fields(name: str) -> None:
    problem = sf.problem(name, alpha=1.5)
    state = any_state(problem)
    assert reduce_to_fields_of_metric(problem).dimension == 1
    whole = observables._MetricIntegrand.metric_integrand_of_all_fields(
        problem, state
    ).average_metric_by_product_quadrature(40, False)
    rule = observables.MetricRule("product", 40)
    assert observables.average_metric_by_quadrature(problem, state, rule) == pytest.approx(whole, rel=1e-12)


def test_kinks_that_move_with_labels_stand_still_in_the_residual() -> None:
    """Huber's loss at alpha = 2 on few nodes, against `solve_precisely` to fourteen digits over all fields."""
    solution = sf.solve(sf.problem("huber_regression", alpha=2.0), integrator="prox-space", points=40, accuracy=1e-12)
    assert solution.problem.dimension == 3 and reduce_to_fields_of_loss(solution.problem).dimension == 1
    assert float(solution.overlaps.q.flat[0]) == pytest.approx(1.022349646793996, rel=1e-13)
    assert float(solution.overlaps.V.flat[0]) == pytest.approx(0.8515159408282864, rel=1e-13)
    assert solution.training_loss == pytest.approx(0.1811119168914831, rel=1e-13)
    assert solution.test_error == pytest.approx(0.4426528349596533, rel=1e-13)


def test_overlaps_without_a_joint_law_are_refused_by_every_function() -> None:
    """The residual's variance q - 2 theta + rho* + Delta is 0.15, while q < theta^2 / rho*."""
    problem, one = sf.problem("ridge_regression", alpha=1.0), np.ones((1, 1, 1))
    impossible = Overlaps(0.5 * one, one, np.zeros((1, 1)), 0.8 * one)
    for asked in (
        lambda: GaussHermite(4).averages(problem, impossible),
        lambda: GaussHermite(4).jacobian_averages(problem, impossible),
        lambda: GaussHermite(4).moment_derivatives(problem, impossible),
        lambda: observables.average_metric_by_quadrature(problem, impossible, observables.MetricRule("product", 6)),
    ):
        with pytest.raises(DomainError):
            asked()


def of_random_rows(seed: int, tokens: int, s: int, t: int, noise: int, fields: int, known: int) -> FieldCombinations:
    """Two cases of random combinations of tokens of one or two clusters."""
    generator = np.random.default_rng(seed)
    clusters = 2
    rows = generator.standard_normal((2, fields + known, tokens, s + t))
    rows[:, fields:, :, :s] = 0.0
    by_noise = generator.standard_normal((2, fields + known, noise))
    root = generator.standard_normal((tokens * clusters, t, t + 1))
    return FieldCombinations(
        labels=np.array([0, 1]),
        contexts=np.arange(tokens) * clusters + generator.integers(0, clusters, (2, tokens)),
        share=np.ones(2),
        rows=rows,
        known=by_noise @ np.swapaxes(by_noise, 1, 2),
        fields=fields,
        students=s,
        rho_star=root @ np.swapaxes(root, 1, 2),
        teacher_means=generator.standard_normal((tokens * clusters, t)),
    )


SIZES = st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.integers(0, 2))


@given(SIZES, st.integers(0, 2**16), st.data())
@settings(max_examples=30, deadline=None)
def test_a_linear_field_comes_back_as_the_covariances_say(sizes: Any, seed: int, data: Any) -> None:
    """For g_z = M xi, E[g_l (omega_l, Y_l)^T] = A_l^T M Cov(xi, (omega_l, Y_l)), whatever the combinations."""
    tokens, s, t, noise = sizes
    fields = data.draw(st.integers(1, tokens * s))
    known = data.draw(st.integers(0, tokens * t))
    read = of_random_rows(seed, tokens, s, t, noise, fields, known)
    generator = np.random.default_rng(seed + 1)
    contexts = len(read.rho_star)
    root = generator.standard_normal((contexts, s + t, 2 * (s + t)))
    root[:, s:] = 0.0
    theta = 0.1 * generator.standard_normal((contexts, s, t))
    q = (root @ np.swapaxes(root, 1, 2))[:, :s, :s] + theta @ np.linalg.inv(read.rho_star) @ np.swapaxes(theta, 1, 2)
    state = Overlaps(q + np.eye(s), np.broadcast_to(np.eye(s), q.shape).copy(), np.zeros((contexts, s)), theta)
    matrix = generator.standard_normal((2, fields, fields + known))
    of_tokens = read.covariance_with_combinations(state.q, state.theta, read.rho_star)
    covariance = read.covariance_of_combinations(of_tokens) + read.known
    maps = OverlapReductionMaps.from_combinations(read, state.sizes)
    there = maps.map_overlaps_to_combinations(state.pack())
    assert np.allclose(there.pack(), read.overlaps_of_combinations(state).pack())
    assert np.allclose(np.concatenate([there.q, there.theta], axis=2), covariance[:, :fields])
    own = matrix @ covariance
    zeros = np.zeros((2, fields + fields**2))
    moments = np.concatenate([zeros, own[..., :fields].reshape(2, -1), own[..., fields:].reshape(2, -1)], axis=1)
    layout: list[tuple[str, tuple[int, ...], int]] = []
    for text, columns in (("g", 1), ("g*g.T", fields), ("g*domega.T", fields), ("g*dY.T", known)):
        layout.append((text, (fields, columns), sum(rows * width for _, (rows, width), _ in layout)))
    wanted = [("g*dY.T", (s, t), 0), ("g*domega.T", (s, s), s * t)]
    length = moments.shape[-1]
    found = MapsToTokenAverages.from_combinations(
        read, layout, length, wanted, s * t + s * s
    ).token_averages_from_combinations(moments, maps.regression_coefficients_at_overlaps(state.pack()))
    expected = np.zeros_like(found)
    for n, at in enumerate(read.contexts):
        own_fields = (matrix[n] @ of_tokens[n].T).reshape(fields, tokens, s + t)
        for l, context in enumerate(at):
            back = read.coefficients_of_student_fields[n, :, l].T @ own_fields[:, l]
            expected[context] += np.concatenate([back[:, s:].ravel(), back[:, :s].ravel()])
    assert np.allclose(found, expected, atol=1e-9 * (1 + np.abs(expected).max()))


def pooled(tokens: int, **fields: Any) -> Any:
    """Ridge regression on sums of tokens."""

    @sf.model(
        tokens=tokens, noise={"u": sf.GaussianNoise("Delta")}, metric=lambda h, Y: (sum(h) - sum(Y)) ** 2, **fields
    )
    def pooled_ridge(X: Any, Y: Any, u: Any, *, Delta: float = 0.1, p: float = 1.0) -> Any:
        return (p * sum(X) - sum(Y) - u) ** 2 / 2

    return pooled_ridge


def test_combinations_that_vanish_are_not_used() -> None:
    model = pooled(3)
    assert reduce_to_fields_of_loss(sf.problem(model, alpha=1.0)).dimension == 1
    assert reduce_to_fields_of_loss(sf.problem(model, alpha=1.0, p=0.0)).dimension == 7


@pytest.mark.slow
def test_a_mean_of_three_tokens_is_one_of_thrice_the_covariance() -> None:
    """Seven dimensions of the average, of which one is read: to ten digits."""
    three = sf.solve(sf.problem(pooled(3), alpha=2.0), accuracy=1e-10)
    same = {"alpha": 2.0, "Delta": 0.1, "lambda_": 0.01, "spectrum": [[1.0, 3.0]]}
    one = sf.solve(sf.problem("ridge_regression", **same), accuracy=1e-10)
    assert three.success and three.relative_error < 1e-10
    assert three.training_loss == pytest.approx(one.training_loss, rel=1e-10)
    assert np.allclose(3 * three.overlaps.q[0], one.overlaps.q[0], rtol=1e-10)
    assert np.allclose(3 * three.overlaps.V[0], one.overlaps.V[0], rtol=1e-10)


@pytest.mark.slow
def test_outliers_are_cases_of_one_dimension() -> None:
    """Noise of one of two strengths: each is a case."""

    @sf.model(
        noise={"g": sf.GaussianNoise(1), "v": sf.DiscreteNoise(("1/2", 5), ("9/10", "1/10"))},
        metric=lambda h, Y: (h[0, 0] - Y[0, 0]) ** 2,
    )
    def outliers(X: Any, Y: Any, g: Any, v: Any) -> Any:
        return (X[0, 0] - Y[0, 0] - v * g) ** 2 / 2

    problem = sf.problem(outliers, alpha=2.0)
    part = reduce_to_fields_of_loss(problem)
    assert isinstance(part, ReducedProblem) and part.dimension == 1 and part.contexts == 2
    assert_alike(problem, GaussHermite(40), any_state(problem), 1e-10)


@sf.model(student=2, noise={"u": sf.GaussianNoise(0.25)}, starts={"informed": sf.Start(teacher=((0.6,), (0.2,)))})
def squares_of_a_sum(X: Any, Y: Any, u: Any) -> Any:
    """Least squares in the sum of two columns, whose difference nothing reads."""
    return sf.half_square(Y[0] + u - X[0] - X[1])


@pytest.mark.slow
def test_a_combination_of_columns_that_no_loss_reads_vanishes() -> None:
    """Two equal columns share the work: w / 2 each, so that the ridge of their sum is half of theirs."""
    two = sf.solve(sf.problem(squares_of_a_sum, alpha=2.0, lambda_=0.1), accuracy=1e-8)
    one = sf.solve(sf.problem("ridge_regression", alpha=2.0, lambda_=0.05), accuracy=1e-8)
    assert two.success
    for found, each in ((two.overlaps.q, one.overlaps.q / 4), (two.overlaps.theta, one.overlaps.theta / 2)):
        assert np.allclose(found, each, rtol=1e-9, atol=0)
    assert two.overlaps.V[0].sum() == pytest.approx(one.overlaps.V.item(), rel=1e-9)
    assert two.training_loss == pytest.approx(one.training_loss, rel=1e-9)
    assert two.stability.replicon == pytest.approx(one.stability.replicon, rel=1e-8)


@sf.model(
    student=3,
    clusters=3,
    law=gaussian_mixture_law,
    starts={"informed": sf.Start(encodings=0.6 * np.eye(3), noise=0.2)},
)
def textbook_softmax(X: Any, k: Any) -> Any:
    """Cross-entropy of three scores, a column each, of which a common shift changes nothing."""
    return sp.log(sum(sp.exp(x) for x in X)) - sf.by_label(k[0], *X)


@pytest.mark.slow
def test_a_softmax_of_three_columns_is_that_of_two_in_a_frame() -> None:
    textbook = sf.solve(sf.problem(textbook_softmax, alpha=2.0, lambda_=0.1), accuracy=1e-5)
    framed = sf.solve(sf.problem("mixture_classification", alpha=2.0, clusters=3, student_rank=2), accuracy=1e-5)
    assert textbook.success and np.allclose(textbook.overlaps.q.sum(axis=2), 0, atol=1e-4)
    gap = abs(textbook.training_loss - framed.training_loss)
    assert gap <= textbook.training_loss_error + framed.training_loss_error
