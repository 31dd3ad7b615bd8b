"""Stability (docs/theory.md section 8): replicon and longitudinal spectrum against closed forms and known numbers."""

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.integration import ProxSpaceRule, Sobol
from saddleforge.integration.rule import NEGLIGIBLE_JUMPS
from saddleforge.problems.overlaps import Overlaps
from saddleforge.report.contract import to_plain_json
from saddleforge.saddle_point.difference_jacobian import map_jacobian_by_differences
from saddleforge.saddle_point.generated_jacobian import evaluate_map_derivatives
from saddleforge.saddle_point.state_map import SaddlePointMap
from saddleforge.stability.assess import Stability, describe_eigenmodes, replicon_map_matrix
from saddleforge.stability.self_overlap import SelfOverlap


@pytest.fixture(scope="session")
def semantic(attention):
    return attention(2.0, "semantic", 1e-5)


@pytest.fixture(scope="session")
def positional(attention):
    return attention(2.0, "positional", 1e-2)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 5.0])
def test_the_replicon_of_ridge_regression_has_its_closed_form(alpha):
    """alpha (dg/domega)^2 R^2 with dg/domega = -1 / (1 + V) and R = V: alpha V^2 / (1 + V)^2 < 1, since the loss is
    convex; marginal only for lambda -> 0 at alpha = 1."""
    solution = sf.solve(sf.problem("ridge_regression", alpha=alpha), accuracy=1e-10)
    V = solution.overlaps.V.item()
    assert solution.stability.replicon == pytest.approx(alpha * V**2 / (1 + V) ** 2, abs=1e-10)
    assert solution.stability.replicon < 1


def test_ridge_interpolation_is_marginal_without_penalty():
    replicons = [
        sf.solve(sf.problem("ridge_regression", alpha=1.0, **{"lambda": penalty}), accuracy=1e-6).stability.replicon
        for penalty in (1e-1, 1e-2, 1e-3)
    ]
    assert replicons == sorted(replicons)
    assert 0.9 < replicons[-1] < 1


def test_longitudinal_eigenvalues_of_ridge_regression_have_their_closed_form():
    """q and V decouple: both eigenvalues are the replicon, theta's is that of 1 / (1 + lambda (1 + V) / alpha)."""
    solution = sf.solve(sf.problem("ridge_regression", alpha=2.0), accuracy=1e-8)
    V = solution.overlaps.V.item()
    values = solution.stability.eigenvalues
    assert np.sort(values.real)[-2:] == pytest.approx([2 * V**2 / (1 + V) ** 2] * 2, abs=1e-5)
    assert np.abs(values.imag).max() < 1e-5
    assert solution.stability.longitudinally_stable


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_convex_losses_are_replica_symmetric(alpha):
    stability = sf.solve(sf.problem("logistic_regression", alpha=alpha), accuracy=1e-4).stability
    assert 0 < stability.replicon < 1
    assert not stability.has_jumps
    assert stability.longitudinally_stable
    assert stability.verdict.startswith("RS stable")


def test_the_semantic_replicon_has_its_known_value(semantic):
    assert semantic.stability.replicon == pytest.approx(0.2435, abs=2e-4)
    assert semantic.stability.replicon_error < 2e-4


def test_the_semantic_mean_mode_has_its_known_eigenvalue(semantic):
    """The mean mode of docs/theory.md section 14: a matter of damping, not of physics."""
    assert semantic.stability.eigenvalues.real.min() == pytest.approx(-2.51, abs=0.01)
    assert semantic.stability.longitudinally_stable


@pytest.mark.slow
def test_the_positional_mean_mode_is_independent_of_the_step(attention):
    """-5.437(1) at any difference step; sampled sets with small steps scatter to -5.54."""
    positional = attention(2.0, "positional", 1e-3)
    overlaps = positional.overlaps
    state_map = SaddlePointMap(positional.problem, ProxSpaceRule(64, 32))
    matrices = [map_jacobian_by_differences(state_map, overlaps.pack(), overlaps.sizes, step) for step in (1e-2, 1e-4)]
    lowest = [np.linalg.eigvals(matrix).real.min() for matrix in matrices]
    assert lowest == pytest.approx([-5.437, -5.437], abs=0.002)
    assert positional.stability.eigenvalues.real.min() == pytest.approx(-5.437, abs=2e-3)


def test_semantic_branch_is_free_of_jumps_at_two(semantic):
    assert semantic.stability.bistable_fraction < 5e-8
    assert abs(semantic.stability.jump_weight) <= 1e-4
    assert semantic.stability.verdict.startswith("RS stable (replicon 0.243")


def test_positional_branch_jumps_at_two(positional):
    """0.3 % of the measure is bistable and 7 % of V^ comes from jumps: unstable in the strict sense."""
    stability = positional.stability
    assert stability.bistable_fraction == pytest.approx(0.003, abs=5e-4)
    assert stability.jump_weight == pytest.approx(0.07, abs=0.005 + stability.jump_weight_error)
    assert stability.has_jumps
    assert "unstable through proximal jumps" in stability.verdict
    assert stability.replicon == pytest.approx(0.55, abs=0.07)
    assert stability.self_overlap_loss == pytest.approx(0.038, abs=0.008)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alpha", "name", "mode"),
    [
        (1.0, "semantic", -0.974),
        (1.5, "semantic", -1.626),
        (0.5, "positional", -1.907),
        (1.0, "positional", -3.402),
        (1.5, "positional", -4.524),
    ],
)
def test_mean_modes_along_the_branches_agree_by_two_rules(attention, alpha, name, mode):
    """By two rules: a grid, and Sobol sets whose map jumps, over steps within which many nodes swap minima."""
    solution = attention(alpha, name, 1e-3)
    assert solution.stability.eigenvalues.real.min() == pytest.approx(mode, abs=4e-3)
    sampled = map_jacobian_by_differences(
        SaddlePointMap(solution.problem, Sobol(15, 8)), solution.overlaps.pack(), solution.overlaps.sizes, 1e-2
    )
    assert np.linalg.eigvals(sampled).real.min() == pytest.approx(mode, abs=0.03)


def glm(q: float, V: float, theta: float) -> Overlaps:
    return Overlaps(np.full((1, 1, 1), q), np.full((1, 1, 1), V), np.zeros((1, 1)), np.full((1, 1, 1), theta))


@pytest.mark.parametrize(
    ("name", "state"),
    [
        pytest.param("ridge_regression", glm(0.6, 1.3, 0.5), marks=pytest.mark.slow),
        ("logistic_regression", glm(2.0, 3.0, 1.0)),
    ],
)
def test_stein_form_of_V_hat_is_the_derivative_form_without_jumps(name, state):
    """V^ = theta^ theta / q - alpha E[g xi] q^(-1/2) against -alpha E[dg/domega], at a point that is not stationary."""
    problem = sf.problem(name, alpha=1.4)
    rule = ProxSpaceRule(200, 72)
    state_map = SaddlePointMap(problem, rule)
    hats = state_map.conjugates_at_overlaps(state, state_map.channel_averages(state).moments[0])
    slope = rule.jacobian_averages(problem, state).slope[0]
    assert hats.V.item() == pytest.approx(-1.4 * slope.item(), rel=1e-8)


def test_stein_form_is_the_derivative_form_on_the_semantic_branch(semantic):
    slope = semantic.rule.jacobian_averages(semantic.problem, semantic.overlaps).slope.mean(axis=0)[0]
    assert semantic.conjugates.V.ravel() == pytest.approx(-2.0 * slope.ravel(), rel=1e-4)


def test_stein_form_exceeds_the_derivative_form_where_the_prox_jumps(positional):
    """V^_jump <= 0: jumps lower V^."""
    slope = Sobol(13).jacobian_averages(positional.problem, positional.overlaps).slope.mean(axis=0)[0]
    smooth = -2.0 * slope.ravel()
    assert np.all(positional.conjugates.V.ravel() < 0.97 * smooth)


def test_replicon_matrix_of_one_field_is_the_scalar_formula():
    """alpha E[(dg/domega)^2] E[gamma^2 J^2] (docs/theory.md (8.13))."""
    problem = sf.problem("ridge_regression", alpha=1.7, sigma=0.8)
    square = np.full((1, 1, 1, 1, 1, 1, 1), 0.31)
    responses = np.full((1, 1, 1, 1, 1), 1.9**2)
    matrix = replicon_map_matrix(problem, square, responses)
    assert matrix.shape == (1, 1)
    assert matrix.item() == pytest.approx(1.7 * 0.31 * 0.8**4 * 1.9**2, rel=1e-14)


def test_replicon_matrix_applies_the_map_to_blocks():
    """D -> D' written out with loops, at L = 2, s = 2."""
    problem = sf.problem("dot_product_attention", student_rank=2, alpha=1.3)
    rng = np.random.default_rng(4)
    G = rng.standard_normal((2, 2, 2, 2))  # l, l', a, b
    R = rng.standard_normal((2, 2))
    R = R @ R.T
    square = np.einsum("lrab,lref->lraebf", G, G)[None]
    D = rng.standard_normal((2, 2, 2))
    D = D @ D.transpose(0, 2, 1)
    gamma = problem.law.gamma[0]
    hats = [1.3 * sum(G[l, r] @ D[r] @ G[l, r].T for r in range(2)) for l in range(2)]
    total = gamma[0] * hats[0] + gamma[1] * hats[1]
    expected = np.stack([g * R @ total @ R.T for g in gamma])
    found = replicon_map_matrix(problem, square, np.einsum("ab,ef->abef", R, R)[None]) @ D.ravel()
    assert found == pytest.approx(expected.ravel(), rel=1e-12)


def stability(**changes: object) -> Stability:
    values = {
        "eigenvalues": np.array([0.5, -2.0], complex),
        "replicon": 0.5,
        "replicon_error": 0.0,
        "bistable_fraction": 0.0,
        "jump_weight": 0.0,
        "jump_weight_error": 0.0,
    }
    return Stability(**{**values, **changes})  # type: ignore[arg-type]


def lost(loss: float, error: float) -> SelfOverlap:
    return SelfOverlap(np.full((1, 1, 1), loss), loss, error, 0.5, 0.1, 0.01, True)


JUMPS = {"bistable_fraction": 2 * NEGLIGIBLE_JUMPS, "jump_weight": 0.013, "jump_weight_error": 0.002}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["RS stable (replicon 0.5)"]),
        ({"replicon": 1.2}, ["RS unstable (replicon 1.2)"]),
        ({"replicon": 1.2, "replicon_error": 0.3}, ["RS marginal (replicon 1.2(3), 1 within its error)"]),
        ({"replicon": 0.9, "replicon_error": 0.2}, ["RS marginal"]),
        ({"replicon": np.nan}, ["RS stability undecided"]),
        (
            {**JUMPS, "self_overlap": lost(0.0123, 0.0011)},
            ["RS unstable through proximal jumps (jump weight 0.013(2)): overlap lost 1.2(2) %"],
        ),
        (
            {"bistable_fraction": 2 * NEGLIGIBLE_JUMPS, "self_overlap": lost(2e-6, 1e-6)},
            ["RS stable but for negligible proximal jumps: overlap lost 2e-06"],
        ),
        (
            {"replicon": 1.3, "bistable_fraction": 0.1, "self_overlap": lost(0.5, 0.04)},
            ["RS unstable (replicon 1.3); overlap lost 50(4) %"],
        ),
        (
            {**JUMPS, "self_overlap": lost(0.001, 0.0015)},
            ["jumps (jump weight 0.013(2)): overlap lost not resolved, at most 0.3 % (replicon 0.5)"],
        ),
        (
            {"replicon": 1.3, "self_overlap": lost(0.0, 0.0004)},
            ["RS unstable (replicon 1.3); overlap lost not resolved, at most 0.04 %"],
        ),
        (
            {"eigenvalues": np.array([1.4, 0.2], complex), "modes": ("toward theta", "toward q")},
            ["RS stable", "longitudinally unstable (eigenvalue 1.4, toward theta)"],
        ),
    ],
)
def test_verdicts_say_what_is_unstable(changes, words):
    for word in words:
        assert word in stability(**changes).verdict


def test_modes_are_named_after_the_blocks_they_move():
    """Jacobians that act on one block each, at L = 2: q together, m opposed, theta of the first token."""
    overlaps = Overlaps(np.full((2, 1, 1), 4.0), np.full((2, 1, 1), 9.0), np.ones((2, 1)), np.ones((2, 1, 1)))
    along = {0.9: [1, 1, 0, 0, 0, 0, 0, 0], -3.0: [0, 0, 0, 0, 1, -1, 0, 0], 0.5: [0, 0, 0, 0, 0, 0, 1, 0]}
    matrix = sum(value * np.outer(v, v) / np.dot(v, v) for value, v in along.items())
    values, words = describe_eigenmodes(np.asarray(matrix), overlaps)
    named = dict(zip(np.round(values.real, 12).tolist(), words, strict=True))
    assert named[0.9] == "toward q, tokens alike"
    assert named[-3.0] == "toward m, tokens opposed"
    assert named[0.5] == "toward theta"


def test_damping_follows_from_the_spectrum():
    """eta < 2 (1 - x) / |1 - x|^2 for every eigenvalue (docs/theory.md (8.8))."""
    assert stability(eigenvalues=np.array([0.5, -2.0], complex)).damping == pytest.approx(2 / 3)
    assert stability(eigenvalues=np.array([0.5, 0.2], complex)).damping == 1.0
    assert stability(eigenvalues=np.array([0.3 + 2j, 0.3 - 2j])).damping == pytest.approx(1.4 / (0.49 + 4))
    assert stability(eigenvalues=np.array([1.2, 0.0], complex)).damping == 0.0


def test_eigenvalues_that_were_not_asked_for_are_null():
    """As of solutions on whose branch only the replicon counts."""
    as_json = to_plain_json(stability(eigenvalues=np.zeros(0, complex)).to_json())
    assert as_json["longitudinal"] == {"spectral_radius": None, "eigenvalues": [], "error": None, "verdict": "stable"}
    assert as_json["damping"] is None and as_json["replicon"] == 0.5


def test_a_failed_solution_has_no_stability():
    problem = sf.problem("dot_product_attention", alpha=2.0)
    impossible = Overlaps(np.full((2, 1, 1), 0.1), np.full((2, 1, 1), -1.0), np.zeros((2, 1)), np.zeros((2, 1, 1)))
    solution = sf.solve(problem, impossible)
    assert solution.status == "left_domain"
    assert solution.stability is None
    assert np.isnan(solution.training_loss)


def test_where_the_lasso_recovers_the_teacher_slopes_keep_the_variance_of_the_conjugates_positive():
    """Without noise and at a weak penalty q^ is 1e-6 of V^; its steps are of its own size."""
    problem = sf.problem("lasso_regression", alpha=0.6124, Delta=0.0, density=0.2, lambda_=1e-3)
    solution = sf.solve(problem, accuracy=1e-4)
    assert solution.conjugates.q.item() < 1e-5 * solution.conjugates.V.item()
    found = solution.stability
    assert found.verdict.startswith("RS stable") and found.slopes_by == "printed derivatives"
    # Without noise the law of labels less fields knows q and theta through q - 2 theta alone.
    by_q, _, _, by_theta = evaluate_map_derivatives(
        SaddlePointMap(problem, solution.rule), solution.overlaps.pack()
    ).state.T
    assert by_theta == pytest.approx(-2 * by_q, rel=1e-6, abs=1e-12 * abs(by_q[1])) and abs(by_q[1]) > 1e5
