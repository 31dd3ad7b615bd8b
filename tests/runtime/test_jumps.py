"""Jumps by lines, finite map by pairs of fields, against closed forms and one another (docs/theory.md section 8)."""

from __future__ import annotations

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.integration import Sobol
from saddleforge.problems.overlaps import Overlaps
from saddleforge.problems.problem import Problem
from saddleforge.saddle_point.state_map import SaddlePointMap
from saddleforge.solving.solution import Solution
from saddleforge.stability import self_overlap as finite
from saddleforge.stability.assess import prior_part_of_replicon_map, replicon_map_matrix
from saddleforge.stability.jumps import find_proximal_jumps
from saddleforge.stability.self_overlap import (
    ReplicaDistanceMap,
    relative_replica_distance,
    replica_distance_map_of_jumps,
)


def glm(q: float, V: float, theta: float) -> Overlaps:
    return Overlaps(np.full((1, 1, 1), q), np.full((1, 1, 1), V), np.zeros((1, 1)), np.full((1, 1, 1), theta))


def maps(problem: Problem, overlaps: Overlaps, rule: Sobol) -> tuple[ReplicaDistanceMap, np.ndarray]:
    """The finite map and the replicon map of a problem with a ridge."""
    hats = SaddlePointMap(problem, rule).conjugates_at_overlaps(
        overlaps, rule.averages(problem, overlaps).moments.mean(axis=0)
    )
    responses = np.empty((len(problem.law.weights), *[problem.student_rank] * 4))
    problem.solver.prior_functions.responses(
        *problem.leading_prior_arguments, hats.q, hats.V, hats.m, hats.theta, responses
    )
    square = rule.jacobian_averages(problem, overlaps).square.mean(axis=0)
    return ReplicaDistanceMap(problem, overlaps, prior_part_of_replicon_map(problem, responses)), replicon_map_matrix(
        problem, square, responses
    )


@pytest.fixture(scope="module")
def tukey() -> tuple[Problem, Overlaps]:
    """V = 3: the proximal map of Tukey's loss jumps once on each side, at an error that depends on V alone."""
    return sf.problem("tukey_regression", alpha=1.0, Delta=0.25, width=2.0), glm(0.6, 3.0, 0.5)


def tukey_jump(V: float, width: float) -> tuple[float, float]:
    """Error r of omega at which both minima are equally low, and |g| of the one inside, by brute force."""
    from scipy.optimize import brentq, minimize_scalar

    def inside(r: float):
        def moreau(e: float) -> float:
            return (r - e) ** 2 / (2 * V) + width**2 / 6 * (1 - (1 - (e / width) ** 2) ** 3)

        return minimize_scalar(moreau, bounds=(0.0, width * 0.55), method="bounded", options={"xatol": 1e-12})

    r = brentq(lambda r: inside(r).fun - width**2 / 6, width * 1.001, 3 * width)
    return r, (r - inside(r).x) / V


@pytest.mark.slow
def test_lines_find_the_jump_of_one_field_exactly(tukey):
    """omega - Y - u is normal: E[delta(F_1 - F_2) |Dg|^2] = 2 density(r) |Dg|."""
    problem, overlaps = tukey
    r, g = tukey_jump(3.0, 2.0)
    variance = overlaps.q.item() + 1.0 + 0.25 - 2 * overlaps.theta.item()
    density = np.exp(-(r**2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    jumps = find_proximal_jumps(problem, overlaps)
    value, error = jumps.susceptibility_from_jumps(problem)
    assert value == pytest.approx(2 * density * g, abs=error)
    assert error < 0.02 * value
    assert jumps.gradient_jump_norms == pytest.approx(np.full(len(jumps.weights), g), rel=1e-6)
    area, width = jumps.area_of_jump_surface()
    assert area == pytest.approx(2 * density, abs=width)
    assert jumps.mean_squared_jump()[0] == pytest.approx((3.0 * g) ** 2, rel=1e-5)
    normal, shared = jumps.principal_normal_direction()
    assert abs(normal.item()) == pytest.approx(1.0)
    assert shared == pytest.approx(1.0)


@pytest.mark.slow
def test_jump_part_of_the_finite_map_is_its_closed_form(tukey):
    """D^_jump = (alpha / sqrt(pi)) E[delta |Dg|^3] D^(1/2)."""
    problem, overlaps = tukey
    r, g = tukey_jump(3.0, 2.0)
    variance = overlaps.q.item() + 1.0 + 0.25 - 2 * overlaps.theta.item()
    density = np.exp(-(r**2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    prior = np.full((1, 1, 1, 1, 1, 1), 0.7)
    value, error = replica_distance_map_of_jumps(
        problem, find_proximal_jumps(problem, overlaps), prior, np.full((1, 1, 1), 0.01)
    )
    expected = 0.7 * problem.alpha / np.sqrt(np.pi) * 2 * density * g**2 * 0.1
    assert value.item() == pytest.approx(expected, abs=error.item())


@pytest.mark.slow
def test_pairs_of_fields_lose_what_replicon_and_jumps_say(tukey):
    """D'(D) = a D + b D^(1/2) + ... for small D."""
    problem, overlaps = tukey
    map_, linear = maps(problem, overlaps, Sobol(12, 8))
    map_ = ReplicaDistanceMap(problem, overlaps, map_.prior, log2=13, replicates=16)
    jumps = find_proximal_jumps(problem, overlaps)
    for distance in (1e-3, 4e-3):
        D = np.full((1, 1, 1), distance)
        images = map_(D).ravel()
        error = 2 * images.std(ddof=1) / 4
        predicted = linear.item() * distance + replica_distance_map_of_jumps(problem, jumps, map_.prior, D)[0].item()
        assert images.mean() == pytest.approx(predicted, abs=error + 0.03 * predicted)
        assert error < 0.2 * predicted


def test_without_jumps_pairs_lose_what_the_replicon_says():
    problem = sf.problem("logistic_regression", alpha=2.0)
    solution = sf.solve(problem, accuracy=1e-6)
    map_, _ = maps(problem, solution.overlaps, Sobol(10, 8))
    D = 1e-4 * solution.overlaps.q
    assert map_(D).mean() / D.item() == pytest.approx(solution.stability.replicon, rel=0.02)
    assert not find_proximal_jumps(problem, solution.overlaps, 6, 4).has_any_jump
    assert solution.stability.self_overlap is None
    assert solution.stability.self_overlap_loss == 0.0


@pytest.mark.slow
def test_pairs_of_fields_reach_from_one_point_to_independent_copies(tukey):
    """D = 0: nothing; D = Var(omega | Y): the whole of alpha E[Var(g | Y)]."""
    problem, overlaps = tukey
    map_, _ = maps(problem, overlaps, Sobol(11, 8))
    assert np.all(map_(np.zeros((1, 1, 1))) == 0.0)
    whole = map_(overlaps.q - overlaps.theta**2)
    assert np.all(whole > 0)
    assert np.array_equal(whole, map_(10 * overlaps.q))  # no more than that


@pytest.fixture(scope="module")
def positional(attention) -> Solution:
    return attention(1.25, "positional", 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alpha", "name"),
    [
        pytest.param(1.25, "semantic", marks=pytest.mark.slow),
        (1.25, "positional"),
        pytest.param(1.0, "semantic", marks=pytest.mark.slow),
    ],
)
def test_stein_and_derivative_forms_of_V_hat_differ_by_the_jumps(agree, attention, alpha, name):
    """V^_Stein = V^_derivative + V^_jump, each of the three by a rule of its own."""
    solution = attention(alpha, name, 1e-4)
    problem, overlaps = solution.problem, solution.overlaps
    stein = float(np.trace(solution.conjugates.V, axis1=1, axis2=2).sum())
    slopes = Sobol(13, 16).jacobian_averages(problem, overlaps).slope[:, 0]
    derivative = -problem.alpha * np.trace(slopes, axis1=2, axis2=3).sum(axis=1)
    value, error = find_proximal_jumps(problem, overlaps, 10).susceptibility_from_jumps(problem)
    spread = 2 * derivative.std(ddof=1) / np.sqrt(len(derivative))
    agree((derivative.mean() - stein, spread), (value, error), "error bars")
    assert error + spread < 0.2 * value


def test_seeds_and_finer_lines_agree(agree, positional):
    problem, overlaps = positional.problem, positional.overlaps
    base = find_proximal_jumps(problem, overlaps, 8).susceptibility_from_jumps(problem)
    for other in (
        find_proximal_jumps(problem, overlaps, 8, seed=1),
        find_proximal_jumps(problem, overlaps, 8, intervals=96),
    ):
        agree(other.susceptibility_from_jumps(problem), base, "error bars")


def test_jumps_tell_the_two_tokens_apart(positional):
    """The two minima of the softmax differ in X_1 - X_2."""
    normal, shared = find_proximal_jumps(positional.problem, positional.overlaps, 8).principal_normal_direction()
    assert abs(normal.ravel() @ np.array([1, -1]) / np.sqrt(2)) > 0.99
    assert shared > 0.9


@pytest.mark.slow
def test_self_overlap_losses_at_the_transition_have_their_known_size(attention, positional):
    """Both branches jump at alpha = 1.25: the semantic one loses less than a thousandth, the positional one 5 %."""
    loss = attention(1.25, "semantic", 1e-4).stability.self_overlap
    assert 1e-4 < loss.loss < 1e-3
    assert not loss.sampled
    other = positional.stability.self_overlap
    assert other.sampled
    assert other.loss == pytest.approx(0.054, abs=0.015)
    assert other.error < 0.2 * other.loss
    distance = other.distance
    assert distance[0] == pytest.approx(distance[1], rel=1e-6)  # exchange of the tokens is a symmetry


@pytest.mark.slow
def test_self_overlap_is_a_fixed_point_of_the_finite_map(agree, positional):
    found = positional.stability.self_overlap
    map_, _ = maps(positional.problem, positional.overlaps, Sobol(11, 8))
    other = ReplicaDistanceMap(positional.problem, positional.overlaps, map_.prior, log2=14, replicates=32, seed=7)
    images = other(found.distance)
    image = relative_replica_distance(images.mean(axis=0), positional.overlaps)
    spread = (
        2
        * np.std([relative_replica_distance(one, positional.overlaps) for one in images], ddof=1)
        / np.sqrt(len(images))
    )
    assert spread < found.error / 4 < 0.05 * found.loss
    agree((image, 0.0), (found.loss, found.error), "error bars")  # the image counts as exact next to it


@pytest.mark.slow
def test_tukey_loses_self_overlap_beyond_its_at_line_only(agree):
    """No jumps on either side (V < 1.25): a continuous transition in D, at alpha = 4.379."""
    below, above = (
        sf.solve(sf.problem("tukey_regression", alpha=alpha, Delta=4.0, lambda_=1.0), accuracy=1e-6)
        for alpha in (4.2, 5.0)
    )
    assert below.stability.replicon < 1 < above.stability.replicon
    assert not below.stability.has_jumps and not above.stability.has_jumps
    assert below.stability.self_overlap_loss == 0.0
    assert 0.005 < above.stability.self_overlap_loss < 0.03
    for solution, grows in ((below, False), (above, True)):
        map_, linear = maps(solution.problem, solution.overlaps, Sobol(12, 8))
        map_ = ReplicaDistanceMap(map_.problem, map_.overlaps, map_.prior, log2=13)
        D = 1e-4 * solution.overlaps.q
        factors = map_(D).ravel() / D.item()
        error = 2 * factors.std(ddof=1) / np.sqrt(len(factors))
        assert (linear.item() > 1) == grows
        agree((factors.mean(), error), (linear.item(), 0.0), "error bars")
        assert error < 0.05


@pytest.mark.slow
def test_at_line_of_tukey_is_where_the_replicon_is_one_and_the_self_overlap_begins_to_be_lost():
    """From above, D* goes to zero linearly in alpha - alpha_AT: the line through two values of D* meets the bracket."""
    problem = sf.problem("tukey_regression", Delta=4.0, lambda_=1.0)
    found = sf.where(problem, "replicon = 1", on="semantic", bracket=(2.0, 8.0), accuracy=1e-3)
    assert found.value == pytest.approx(4.379, abs=2e-3)
    losses, alphas = [], (4.7, 5.0)
    for alpha in alphas:
        solution = sf.solve(problem.with_(alpha=alpha), accuracy=1e-6)
        map_, linear = maps(solution.problem, solution.overlaps, Sobol(12, 8))
        map_ = ReplicaDistanceMap(map_.problem, map_.overlaps, map_.prior, log2=15)
        losses.append(finite.find_largest_replica_distance(map_, linear, None, accuracy=1e-4, relative=0.05).loss)
    zero = alphas[0] - losses[0] * (alphas[1] - alphas[0]) / (losses[1] - losses[0])
    assert zero == pytest.approx(found.value, abs=0.1)
