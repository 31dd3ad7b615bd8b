"""The iteration on maps whose behaviour is known: statuses, damping against the mean mode, the Newton finish."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.base.errors import DomainError
from saddleforge.integration import ProxSpaceRule, Rule, SmoothPiecesRule
from saddleforge.problems.overlaps import Overlaps, Sizes
from saddleforge.problems.symmetry import NO_SYMMETRY, StateSymmetry
from saddleforge.saddle_point.difference_jacobian import map_jacobian_by_differences
from saddleforge.saddle_point.domain import explain_indefinite_covariances, take_step_within_domain
from saddleforge.saddle_point.iteration import (
    DEFAULT_DAMPING,
    FixedPoint,
    Status,
    optimal_damping_weight,
    run_damped_iteration,
    run_newton_iteration,
)
from saddleforge.saddle_point.pseudo_transient import (
    CoordinatesAroundState,
    RelativeSaddlePointMap,
    pseudo_transient_continuation,
)
from saddleforge.saddle_point.state_map import SaddlePointMap, relative_residual

SIZES = (1, 1, 1, 0)
TRUTH = np.array([0.8, 1.5, 0.3, 0.5])  # q, V, m, theta


class Map(SaddlePointMap):
    """A constructed map u -> G(u) without symmetries."""

    def __init__(self, function: Callable[[np.ndarray], np.ndarray]) -> None:
        self.function, self.evaluations, self.symmetry, self.student_rotation_generators = (
            function,
            0,
            NO_SYMMETRY,
            np.empty((0, 1, 1)),
        )

    def __call__(self, u: np.ndarray, sizes: Sizes) -> np.ndarray:
        assert sizes == SIZES
        self.evaluations += 1
        return self.function(u)

    def limit_step_to_domain(self, u: np.ndarray, move: np.ndarray, sizes: Sizes) -> np.ndarray:
        return u + move

    def explain_undefined_map(self, u: np.ndarray, sizes: Sizes) -> str:
        return "V is not positive definite"


def linear(*eigenvalues: float) -> Map:
    """G(u) = TRUTH + J (u - TRUTH) with the given eigenvalues in a skew basis."""
    basis = np.eye(4) + 0.2 * np.random.default_rng(0).standard_normal((4, 4))
    J = basis @ np.diag(eigenvalues) @ np.linalg.inv(basis)
    return Map(lambda u: TRUTH + J @ (u - TRUTH))


def start(shift: float = 0.1) -> Overlaps:
    return Overlaps.unpack(TRUTH + shift * np.array([1.0, -1.0, 0.5, -0.5]), SIZES)


def at(u: np.ndarray) -> FixedPoint:
    return FixedPoint(u, SIZES, np.inf, Status.MAX_ITERATIONS, 0, None)


def by_differences(function: Map) -> Callable[[np.ndarray], np.ndarray]:
    return lambda u: map_jacobian_by_differences(function, u, SIZES)  # type: ignore[arg-type]


def test_averages_are_known_of_the_map_that_gave_them_only():
    """Those at the state where Newton's method ends are kept, by its problem and rule; elsewhere they are not known."""
    problem, rule = sf.problem("ridge_regression", alpha=2.0), SmoothPiecesRule(12)
    state_map = SaddlePointMap(problem, rule)
    begun = sf.solve(problem, accuracy=1e-3).overlaps
    point = run_newton_iteration(
        state_map,
        FixedPoint(begun.pack(), begun.sizes, np.inf, Status.MAX_ITERATIONS, 0, None),
        1e-10,
        lambda u: map_jacobian_by_differences(state_map, u, begun.sizes),
    )

    def evaluated(at: sf.Problem, by: Rule, u: np.ndarray) -> int:
        again = SaddlePointMap(at, by)
        found = again.channel_averages(Overlaps.unpack(u, point.sizes))
        assert np.array_equal(found.moments, by.averages(at, Overlaps.unpack(u, point.sizes)).moments)
        return again.evaluations

    assert evaluated(problem, rule, point.u) == 0
    assert evaluated(problem, SmoothPiecesRule(13), point.u) == 1
    assert evaluated(problem.with_(alpha=2.1), rule, point.u) == 1
    assert evaluated(problem, rule, 1.01 * point.u) == 1


def test_damping_converges_on_a_contraction():
    point = run_damped_iteration(linear(0.5, 0.3, -0.2, 0.1), start(), 1e-10)
    assert point.status is Status.CONVERGED
    assert point.u == pytest.approx(TRUTH, abs=1e-9)


@pytest.mark.parametrize("eigenvalue", [-2.5, -5.5, -6.0, -20.0])
def test_damping_adapts_to_the_mean_mode(eigenvalue):
    """An eigenvalue x below -1 asks for a weight below 2 / (1 - x), and is no instability (docs/theory.md (8.8))."""
    point = run_damped_iteration(linear(0.6, 0.3, 0.0, eigenvalue), start(0.01), 1e-9, max_iterations=2000)
    assert point.status is Status.CONVERGED
    assert point.u == pytest.approx(TRUTH, abs=1e-7)


@pytest.mark.parametrize(("low", "high"), [(-5.54, 0.32), (-2.51, 0.34), (-0.3, 0.5), (0.2, 0.9)], ids=str)
def test_the_weight_from_the_spectrum_contracts_fastest(low, high):
    """For a real spectrum between low and high the best weight is 2 / (2 - low - high), at most 1."""
    spectrum = np.array([low, 0.0 if low < 0 else 0.5, high])
    weight = optimal_damping_weight(spectrum)
    assert weight == pytest.approx(min(1.0, 2 / (2 - low - high)), abs=0.005)
    rate = np.max(np.abs(1 - weight * (1 - spectrum)))
    point = run_damped_iteration(linear(low, low / 2, high / 2, high), start(), 1e-9, weight=weight)
    assert point.status is Status.CONVERGED
    assert point.iterations < 5 + 1.2 * np.log(1e-9) / np.log(rate)  # the skew basis costs some


def test_without_a_contracting_weight_damping_stays_cautious():
    for eigenvalues in ([1.2, -3.0], [0.9 + 5j, 0.9 - 5j], [-200.0]):
        assert optimal_damping_weight(np.array(eigenvalues)) == DEFAULT_DAMPING


def test_an_eigenvalue_above_one_is_not_damped_away():
    point = run_damped_iteration(linear(1.3, 0.3, 0.0, 0.1), start(1e-3), 1e-9, max_iterations=60)
    assert point.status is Status.MAX_ITERATIONS
    assert point.residual > 1e-4
    assert not point.status.success


def test_extrapolation_ends_a_soft_approach_in_a_few_steps():
    """Of a straight map with few directions, the last differences tell all; damping alone crawls."""
    soft = (0.99, 0.3, 0.0, 0.1)
    plain = run_damped_iteration(linear(*soft), start(), 1e-6, max_iterations=2000, weight=0.5)
    point = run_damped_iteration(linear(*soft), start(), 1e-6, weight=0.5, extrapolate=True)
    assert plain.status is point.status is Status.CONVERGED
    assert 20 * point.iterations < plain.iterations
    assert point.u == pytest.approx(TRUTH, abs=2e-4)  # 1 / (1 - 0.99) residuals


def test_extrapolation_that_does_not_help_is_given_up():
    """Noise as of nodes that swap their minima makes differences say nothing; damping goes on from the best state."""
    generator = np.random.default_rng(3)
    known: dict[bytes, np.ndarray] = {}

    def noisy(u: np.ndarray) -> np.ndarray:
        shift = known.setdefault(np.round(u, 6).tobytes(), 2e-3 * generator.standard_normal(4))
        return TRUTH + np.diag([-2.0, 0.5, 0.0, 0.3]) @ (u - TRUTH) + shift

    floor = run_damped_iteration(Map(noisy), start(), 1e-9, max_iterations=60, extrapolate=True)
    assert floor.status is Status.MAX_ITERATIONS
    assert np.abs(floor.u - TRUTH).max() < 0.02


def test_iterations_are_counted_and_limited():
    point = run_damped_iteration(linear(0.99, 0.99, 0.99, 0.99), start(), 1e-12, max_iterations=7)
    assert (point.status, point.iterations) == (Status.MAX_ITERATIONS, 7)


def test_a_start_outside_the_domain_is_said_so():
    def outside(u: np.ndarray) -> np.ndarray:
        raise DomainError("V is not positive definite")

    for point in (
        run_damped_iteration(Map(outside), start(), 1e-9),
        run_newton_iteration(Map(outside), at(TRUTH), 1e-9, lambda u: np.eye(4)),
    ):
        assert point.status is Status.LEFT_DOMAIN
        assert point.outside == "V is not positive definite" and "domain" in point.status.advice


def test_a_map_that_drives_the_state_out_of_the_domain_is_said_so():
    """V shrinks at every step, and there is nothing below 1."""

    def shrinking(u: np.ndarray) -> np.ndarray:
        if u[1] < 1:
            raise DomainError("V is not positive definite")
        return np.array([u[0], -50.0, u[2], u[3]])

    point = run_damped_iteration(Map(shrinking), start(), 1e-9)
    assert point.status is Status.LEFT_DOMAIN
    assert point.overlaps.V.item() >= 0.9  # the last iterate is kept, not thrown away


def test_stepping_back_into_the_domain_saves_an_overshoot():
    """The fixed point is inside; only large steps leave."""
    inner = linear(-3.0, 0.3, 0.2, 0.1)

    def fenced(u: np.ndarray) -> np.ndarray:
        if u[0] < 0.72:
            raise DomainError("q is not positive")
        return inner.function(u)

    point = run_damped_iteration(Map(fenced), start(0.05), 1e-9, max_iterations=1000)
    assert point.status is Status.CONVERGED


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_have_a_status_of_their_own(bad):
    function = Map(lambda u: np.array([bad, 1.0, 0.0, 0.0]))
    for point in (
        run_damped_iteration(function, start(), 1e-9),
        run_newton_iteration(function, at(TRUTH), 1e-9, lambda u: np.eye(4)),
    ):
        assert point.status is Status.NOT_FINITE
        assert not point.status.success


def test_newton_solves_a_linear_map_in_one_step():
    function = linear(0.9, -6.0, 3.0, 0.2)
    point = run_newton_iteration(function, at(TRUTH + 0.02), 1e-12, by_differences(function))
    assert point.status is Status.CONVERGED
    assert point.iterations <= 3
    assert point.u == pytest.approx(TRUTH, abs=1e-12)


def test_newton_solves_a_nonlinear_map_faster_than_linearly():
    """u = 0.9 (cos u + u0) has slopes that change along the way; the last step gains more than the first."""
    function = Map(lambda u: 0.9 * np.cos(u) + 0.2 * u[::-1] ** 2)
    residuals = []
    for iterations in (2, 3, 4, 5, 6, 7, 8):
        point = run_newton_iteration(
            function, at(np.full(4, 0.6)), 1e-14, by_differences(function), max_iterations=iterations
        )
        residuals.append(point.residual)
    assert residuals[-1] < 1e-12
    drops = np.diff(np.log10(np.maximum(residuals, 1e-17)))
    assert drops[:5].min() < 2 * drops[0] < 0


def test_newton_reaches_a_saddle_that_damping_leaves():
    """An unstable branch (eigenvalue 1.3) is a solution too."""
    function = linear(1.3, 0.3, 0.0, 0.1)
    point = run_newton_iteration(function, at(TRUTH + 0.01), 1e-12, by_differences(function))
    assert point.status is Status.CONVERGED
    assert point.u == pytest.approx(TRUTH, abs=1e-11)


def test_newton_reports_the_floor_of_a_map_that_jumps():
    """Nodes that swap minima move the image by 1e-5 and there is no fixed point below that."""
    smooth = linear(0.5, 0.3, -0.2, 0.1)
    function = Map(lambda u: smooth.function(u) + 1e-5 * np.sign(TRUTH - u + 1e-9))
    point = run_newton_iteration(function, at(TRUTH + 0.02), 1e-9, by_differences(smooth), max_iterations=30)
    assert point.status is Status.FLOOR
    assert 1e-9 < point.residual < 1e-4
    assert "sampling error" in point.status.advice


def test_newton_counts_what_it_did_where_it_gives_up_early():
    """A residual that does not fall is left after a few evaluations, however many are allowed."""
    smooth = linear(0.5, 0.3, -0.2, 0.1)
    stuck = Map(lambda u: smooth.function(u) + 1e-5 * np.sign(TRUTH - u + 1e-9))
    point = run_newton_iteration(
        stuck, at(TRUTH + 0.02), 1e-9, lambda u: map_jacobian_by_differences(smooth, u, SIZES), max_iterations=200
    )
    assert point.status is Status.FLOOR
    assert point.iterations == stuck.evaluations < 200
    singular = Map(lambda u: u + 1.0)
    point = run_newton_iteration(singular, at(TRUTH), 1e-9, lambda u: np.eye(4), max_iterations=200)
    assert not point.status.success
    assert point.iterations == singular.evaluations < 10


def test_the_reported_residual_is_that_of_the_reported_point():
    function = linear(0.5, 0.3, -0.2, 0.1)
    for point in (
        run_damped_iteration(function, start(), 1e-3),
        run_damped_iteration(function, start(), 1e-12, max_iterations=3),
        run_newton_iteration(function, at(TRUTH + 0.05), 1e-12, by_differences(function)),
        run_newton_iteration(function, at(TRUTH + 0.05), 1e-12, lambda u: np.zeros((4, 4)), max_iterations=2),
    ):
        scales = Overlaps.unpack(point.u, SIZES).block_scales
        expected = np.max(np.abs(function.function(point.u) - point.u) / scales)
        assert point.residual == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_residuals_are_measured_in_units_of_their_block():
    """q = 0.01 and V = 100: an error of one per cent of either counts the same."""
    u = np.array([0.01, 100.0, 0.0, 0.0])
    for i in (0, 1):
        image = u.copy()
        image[i] *= 1.01
        assert relative_residual(image, u, SIZES) == pytest.approx(0.01)


def test_jacobian_is_that_of_the_map():
    function = linear(0.9, -6.0, 3.0, 0.2)
    basis = np.array([function.function(TRUTH + e) - TRUTH for e in np.eye(4)]).T
    assert map_jacobian_by_differences(function, TRUTH, SIZES) == pytest.approx(basis, abs=1e-9)


def test_frozen_components_stay_exactly_zero():
    problem = sf.problem("dot_product_attention", alpha=2.0)
    rule = ProxSpaceRule(24, 12)
    overlaps = Overlaps(np.full((2, 1, 1), 0.11), np.full((2, 1, 1), 12.0), np.zeros((2, 1)), np.full((2, 1, 1), 0.15))
    frozen = np.array([False] * 6 + [True] * 2)
    free = SaddlePointMap(problem, rule)(overlaps.pack(), overlaps.sizes)
    kept = SaddlePointMap(problem, rule, StateSymmetry(frozen))(overlaps.pack(), overlaps.sizes)
    assert np.all(free[frozen] != 0.0)
    assert np.all(kept[frozen] == 0.0)
    assert np.array_equal(kept[~frozen], free[~frozen])


def test_overlaps_survive_packing():
    rng = np.random.default_rng(2)
    q, V = (a + a.transpose(0, 2, 1) for a in rng.standard_normal((2, 3, 2, 2)))
    overlaps = Overlaps(q, V, rng.standard_normal((3, 2)), rng.standard_normal((3, 2, 1)))
    back = Overlaps.unpack(overlaps.pack(), overlaps.sizes)
    assert all(np.array_equal(getattr(back, name), getattr(overlaps, name)) for name in ("q", "V", "m", "theta"))
    assert len(overlaps.pack()) == 3 * (3 + 3 + 2 + 2)


@pytest.mark.parametrize(
    ("m", "theta", "positive"),
    [(0.2, 0.3, True), (0.2, -0.3, False), (-0.2, 0.3, True), (-0.2, 0.0, False), (0.2, 0.0, True), (0.0, 0.0, True)],
)
def test_free_sign_is_fixed_by_theta_and_else_by_m(m, theta, positive):
    overlaps = Overlaps(np.ones((1, 1, 1)), np.ones((1, 1, 1)), np.full((1, 1), m), np.full((1, 1, 1), theta))
    assert overlaps.has_positive_leading_entry is positive
    if m or theta:
        assert overlaps.with_opposite_sign().has_positive_leading_entry is not positive


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.CONVERGED])
def test_every_failure_names_the_next_thing_to_try(status):
    assert len(status.advice) > 20
    assert status.success is (status is Status.FLOOR)


def test_slopes_are_not_learnt_from_the_noise_of_a_floor():
    """Steps as small as what swapping nodes change would turn any Jacobian into nonsense."""
    smooth, noise = linear(0.6, 0.3, 0.0, -2.0), np.random.default_rng(3)
    exact = map_jacobian_by_differences(smooth, TRUTH, SIZES)  # type: ignore[arg-type]
    rough = Map(lambda u: smooth(u, SIZES) + 1e-5 * noise.standard_normal(4))
    point = run_newton_iteration(rough, at(start().pack()), 1e-12, lambda u: exact)
    assert point.status is Status.FLOOR
    assert point.jacobian == pytest.approx(exact, abs=1e-2)


def test_steps_keep_the_domain_and_are_straight_to_first_order():
    """q - theta theta^T / rho may be far smaller than q, as of weights that are nearly the teacher's."""
    problem = sf.problem("committee_machine", alpha=3.0)
    theta = np.array([[[3.0, 0.2], [-0.1, 2.0]]])
    here = Overlaps(
        theta @ theta.transpose(0, 2, 1) + 1e-4 * np.array([[[2.0, 0.3], [0.3, 1.0]]]),
        np.array([[[1e-3, 2e-4], [2e-4, 5e-3]]]), np.zeros((1, 2)), theta, np.empty(0),
    )  # fmt: skip
    u, move = here.pack(), np.random.default_rng(0).standard_normal(len(here.pack()))
    for size in (1e-2, 1.0, 1e2):
        moved = Overlaps.unpack(take_step_within_domain(problem, u, size * move, here.sizes), here.sizes)
        assert explain_indefinite_covariances(problem, moved) == ""
        assert np.allclose(moved.theta, theta + size * Overlaps.unpack(move, here.sizes).theta, rtol=1e-12)
    beyond = explain_indefinite_covariances(problem, replace(here, q=here.q - 3e-4 * np.eye(2)))
    assert beyond.startswith("q - theta rho*^(-1) theta^T has") and beyond.endswith(
        "along the teacher (measured overlaps are divided by d)"
    )
    alone = explain_indefinite_covariances(problem, replace(here, q=-here.q, theta=0 * theta))
    assert alone.startswith("q has the eigenvalue -") and "teacher" not in alone
    errors = [
        np.abs(take_step_within_domain(problem, u, x * move, here.sizes) - u - x * move).max() for x in (1e-7, 1e-8)
    ]
    assert errors[1] < 0.015 * errors[0]


def test_relative_coordinates_are_those_of_the_state_and_straight_to_first_order():
    """Of two columns, whose q - theta rho*^(-1) theta^T is 1e-4 of q."""
    problem = sf.problem("committee_machine", alpha=3.0)
    theta = np.array([[[3.0, 0.2], [-0.1, 2.0]]])
    here = Overlaps(
        theta @ theta.transpose(0, 2, 1) + 1e-4 * np.array([[[2.0, 0.3], [0.3, 1.0]]]),
        np.array([[[1e-3, 2e-4], [2e-4, 5e-3]]]), np.zeros((1, 2)), theta, np.empty(0),
    )  # fmt: skip
    relative, x = CoordinatesAroundState(problem, here.pack(), here.sizes), np.random.default_rng(0).standard_normal(12)
    assert relative.relative_coordinates_of_state(relative.state_from_relative_coordinates(x)) == pytest.approx(
        x, rel=1e-9
    )
    assert (
        explain_indefinite_covariances(
            problem, Overlaps.unpack(relative.state_from_relative_coordinates(10 * x), here.sizes)
        )
        == ""
    )
    errors = [
        np.abs(
            relative.state_from_relative_coordinates(s * x) - here.pack() - relative.linearised_state_change(s * x)
        ).max()
        for s in (1e-3, 1e-4)
    ]
    assert errors[1] < 0.015 * errors[0]


@pytest.mark.parametrize(
    ("name", "given"), [("ridge_regression", {"alpha": 2.0}), ("mixture_classification", {"alpha": 2.0})]
)
def test_relaxation_ends_where_newton_does_with_the_same_slopes(name, given):
    """With a teacher, and with two clusters and none: from far off, and by steps relative to the state."""
    solution = sf.solve(sf.problem(name, **given))
    state_map = SaddlePointMap(solution.problem, solution.rule, solution.symmetry)
    u, sizes = solution.overlaps.pack(), solution.overlaps.sizes
    far = replace(solution.overlaps, q=4 * solution.overlaps.q, V=100 * solution.overlaps.V)
    point = pseudo_transient_continuation(
        state_map, FixedPoint(far.pack(), sizes, np.inf, Status.MAX_ITERATIONS, 0, None), 1e-10
    )
    assert point.status is Status.CONVERGED and point.residual < 1e-9
    assert point.u == pytest.approx(u, rel=1e-7, abs=1e-9)
    relative = RelativeSaddlePointMap(state_map, u, sizes)
    expected = map_jacobian_by_differences(state_map, u, sizes, 1e-5)
    assert relative.map_jacobian(relative.jacobian_of_residual()) == pytest.approx(
        expected, rel=1e-5, abs=1e-6 * np.abs(expected).max()
    )
