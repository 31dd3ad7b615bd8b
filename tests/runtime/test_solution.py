"""Solutions: branches ranked by training loss, symmetries the physics demands, and impossible laws refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import saddleforge as sf
from saddleforge import InputError, Solution
from saddleforge.base.numbers import format_value_with_error
from saddleforge.integration import GaussHermite, ProxSpaceRule
from saddleforge.problems.gauge import is_loss_sign_symmetric
from saddleforge.problems.law import TokenLaw
from saddleforge.problems.overlaps import Overlaps
from saddleforge.saddle_point.starts import branch_names, find_start_name, name_branch, named_starts, overlaps_of_start
from saddleforge.saddle_point.state_map import SaddlePointMap

BLOCKS = ("q", "V", "m", "theta")


@pytest.fixture(scope="session")
def ranked() -> list[Solution]:
    return sf.solutions(sf.problem("dot_product_attention", alpha=2.0), accuracy=1e-2)


def ridge(alpha: float, accuracy: float = 1e-10, **values: float) -> Solution:
    return sf.solve(sf.problem("ridge_regression", alpha=alpha, **values), accuracy=accuracy)


# Starts


def test_a_start_along_single_clusters_has_an_overlap_with_balanced_means(monkeypatch):
    """Means +-mu: weights along their average are zero, weights along mu_1 - mu_2 are not."""
    problem = sf.problem("mixture_classification", alpha=1.0)
    own = problem.solver.model.STARTS["positional"]
    assert overlaps_of_start(problem, "positional").m.ravel() == pytest.approx([0.4 * 2**0.5, -0.4 * 2**0.5])
    starts = {"even": {**own, "encodings": ((0.4,),)}, "along": {**own, "encodings": ((0.4, -0.4),)}}
    monkeypatch.setattr(problem.solver.model, "STARTS", starts)
    assert overlaps_of_start(problem, "even").m == pytest.approx(0, abs=1e-15)
    assert overlaps_of_start(problem, "along").m.ravel() == pytest.approx([0.8, -0.8])


# Branches


def test_branches_are_ranked_by_training_loss(agree, ranked):
    """At alpha = 2 semantic learning wins; the mixed start flows to one of the other branches."""
    assert [s.branch for s in ranked] == ["semantic", "positional", "uninformed"]
    assert [s.rank for s in ranked] == [1, 2, 3]
    losses = [s.training_loss for s in ranked]
    assert losses == sorted(losses)
    for solution, known in zip(ranked, ("0.003590618", "0.004513", "0.004706"), strict=True):
        agree((solution.training_loss, solution.training_loss_error), known, "error bars")
        assert solution.training_loss_error < 1e-3 * solution.training_loss


def test_training_loss_from_phi_is_loss_plus_penalty(agree, ranked):
    """Two computations that agree at a saddle point only, and Phi's error is of second order in the residual."""
    for solution in ranked:
        assert solution.losses is not None
        scale = solution.training_loss
        each = solution.training_loss_error  # of either computation
        agree((solution.losses.identity_gap, each), (0.0, each + solution.residual * scale), "error bars")
        assert abs(solution.losses.identity_gap) < 1e-3 * scale


def test_training_loss_identity_is_exact_on_smooth_problems():
    for solution in (ridge(1.3), sf.solve(sf.problem("logistic_regression", alpha=2.0), accuracy=1e-8)):
        assert solution.losses is not None
        assert abs(solution.losses.identity_gap) < 1e-10
        assert solution.losses.penalty > 0
        assert solution.losses.data > 0


def test_overlaps_and_conjugates_are_a_fixed_point(ranked):
    for solution in ranked:
        state_map = SaddlePointMap(solution.problem, solution.rule)
        image = state_map.overlaps_from_conjugates(solution.conjugates, solution.overlaps.phi)
        deviation = np.abs(image.pack() - solution.overlaps.pack()) / solution.overlaps.block_scales
        assert solution.symmetry is not None and solution.symmetry.frozen is not None
        assert deviation[~solution.symmetry.frozen].max() == pytest.approx(solution.residual, rel=1e-6, abs=1e-12)


def test_tokens_are_exchangeable(ranked):
    """Exchange of the two tokens with p -> -p is a symmetry of the base case: q, V, theta coincide and m is odd."""
    for solution in ranked:
        overlaps = solution.overlaps
        tolerance = 2 * solution.residual + 1e-9
        for name in ("q", "V", "theta"):
            one, other = getattr(overlaps, name).ravel()
            assert one == pytest.approx(other, rel=tolerance, abs=1e-12)
        assert overlaps.m[0, 0] == pytest.approx(-overlaps.m[1, 0], rel=tolerance, abs=1e-12)


def test_variances_are_positive_and_fields_possible(ranked):
    for solution in ranked:
        q, V, theta = (getattr(solution.overlaps, name).ravel() for name in ("q", "V", "theta"))
        assert np.all(q > 0)
        assert np.all(V > 0)
        assert np.all(theta**2 < q * solution.problem.law.rho_star.ravel())


def test_the_map_commutes_with_the_sign_of_the_weights():
    """S(X) is even in X: flipping m and theta flips the image."""
    problem = sf.problem("dot_product_attention", alpha=1.5)
    overlaps = Overlaps(
        np.full((2, 1, 1), 0.09), np.full((2, 1, 1), 15.0), np.array([[0.1], [-0.05]]), np.full((2, 1, 1), 0.1)
    )
    state_map = SaddlePointMap(problem, GaussHermite(8))
    there = state_map(overlaps.pack(), overlaps.sizes)
    back = state_map(overlaps.with_opposite_sign().pack(), overlaps.sizes)
    assert Overlaps.unpack(back, overlaps.sizes).with_opposite_sign().pack() == pytest.approx(
        there, rel=1e-10, abs=1e-12
    )


def test_the_sign_is_free_for_attention_only():
    assert is_loss_sign_symmetric(sf.problem("dot_product_attention", alpha=1.0))
    assert not is_loss_sign_symmetric(sf.problem("ridge_regression", alpha=1.0))
    assert not is_loss_sign_symmetric(sf.problem("logistic_regression", alpha=1.0))


def test_reversed_start_reaches_the_reported_sign():
    problem = sf.problem("dot_product_attention", alpha=2.0)
    solution = sf.solve(problem, overlaps_of_start(problem, "semantic").with_opposite_sign(), accuracy=1e-2)
    assert solution.branch == "semantic"
    assert solution.overlaps.theta.min() > 0


def test_a_solution_is_its_own_start(agree, ranked):
    again = sf.solve(ranked[0].problem, ranked[0], accuracy=1e-2)
    assert again.branch == ranked[0].branch
    one, other = ((s.overlaps.pack(), s.errors) for s in (again, ranked[0]))
    agree(one, other, "error bars", rounding=1e-9 * again.overlaps.block_scales)


def test_a_target_without_teacher_forgets_the_teacher_in_one_update():
    """omega = 1: the target is the matrix A, g does not know Y beyond omega, so theta^ = 0 from any state."""
    semantic = Overlaps(
        np.full((2, 1, 1), 0.1148), np.full((2, 1, 1), 12.67), np.array([[0.05], [-0.05]]), np.full((2, 1, 1), 0.158)
    )
    images = {}
    for omega in (0.3, 1.0):
        state_map = SaddlePointMap(sf.problem("dot_product_attention", alpha=2.0, omega=omega), ProxSpaceRule(80, 48))
        images[omega] = np.abs(Overlaps.unpack(state_map(semantic.pack(), semantic.sizes), semantic.sizes).theta).max()
    assert images[0.3] > 0.1
    assert images[1.0] < 1e-7


@pytest.mark.slow
def test_a_target_without_teacher_is_learned_by_position_alone():
    problem = sf.problem("dot_product_attention", alpha=2.0, omega=1.0)
    found = sf.solutions(problem, accuracy=1e-2)
    assert found[0].branch == "positional"
    assert all(np.abs(s.overlaps.theta).max() < 1e-4 * s.overlaps.q.max() for s in found)


def test_without_data_the_student_stays_at_the_origin():
    """alpha -> 0: V -> rho / lambda, the prior's own; q = alpha (rho* + Delta) V^2 / (1 + V)^2 to first order."""
    alpha = 1e-2
    solution = ridge(alpha, 1e-4)
    assert solution.overlaps.V.item() == pytest.approx(10.0, rel=alpha)
    assert solution.overlaps.q.item() == pytest.approx(alpha * 1.25 * (10 / 11) ** 2, rel=alpha)
    assert solution.overlaps.theta.item() == pytest.approx(alpha * 10 / 11, rel=alpha)
    assert solution.training_loss == pytest.approx(alpha * 1.25 / 2 / 11, rel=alpha)


TWO_TOKENS = sf.problem("dot_product_attention", alpha=2.0)


@pytest.mark.parametrize(
    ("m", "theta", "name"),
    [(0.0, 0.1, "semantic"), (0.3, 0.0, "positional"), (0.3, 0.1, "mixed"), (1e-9, 1e-9, "uninformed")],
)
def test_a_branch_is_named_by_its_mechanism(m, theta, name):
    state = Overlaps(np.full((2, 1, 1), 0.1), np.ones((2, 1, 1)), np.full((2, 1), m), np.full((2, 1, 1), theta))
    assert name_branch(TWO_TOKENS, state) == name


def test_an_overlap_within_its_error_is_no_mechanism():
    state = Overlaps(np.full((2, 1, 1), 0.1), np.ones((2, 1, 1)), np.full((2, 1), 0.01), np.full((2, 1, 1), 0.05))
    errors = Overlaps(state.q * 0, state.V * 0, np.full((2, 1), 0.1), state.theta * 0.01).pack()
    assert name_branch(TWO_TOKENS, state, errors) == "semantic"


def test_words_of_starts_and_branches_follow_the_number_of_tokens():
    one = sf.problem("committee_machine", alpha=2.0)
    assert branch_names(one) == ("informed", "mean", "mixed", "uninformed")
    assert branch_names(TWO_TOKENS) == ("semantic", "positional", "mixed", "uninformed")
    ridge = sf.problem("ridge_regression", alpha=2.0)
    assert list(named_starts(ridge)) == ["informed", "uninformed"]
    assert find_start_name(ridge, "semantic") == find_start_name(ridge, "informed") == "informed"
    assert find_start_name(TWO_TOKENS, "mean") == "positional"
    old, new = (sf.solve(ridge, word) for word in ("semantic", "informed"))
    assert (old.start, old.branch) == ("informed", "informed") and old.overlaps.q == new.overlaps.q


# Scale covariance


@settings(max_examples=8, deadline=None)
@given(scale=st.floats(0.3, 3.0), alpha=st.floats(0.4, 3.0))
def test_ridge_depends_on_sigma_through_lambda_over_sigma_squared(scale, alpha):
    """x -> s x, lambda -> s^2 lambda, Delta -> s^2 Delta: fields scale by s, weights stay, losses scale by s^2.

    (y = Y + u scales with the inputs, hence with its noise.)"""
    one = ridge(alpha, **{"lambda": 0.1, "Delta": 0.25})
    other = ridge(alpha, sigma=scale, **{"lambda": 0.1 * scale**2, "Delta": 0.25 * scale**2})
    s2 = scale**2
    assert other.overlaps.q.item() == pytest.approx(s2 * one.overlaps.q.item(), rel=1e-8)
    assert other.overlaps.theta.item() == pytest.approx(s2 * one.overlaps.theta.item(), rel=1e-8)
    assert other.overlaps.V.item() == pytest.approx(one.overlaps.V.item(), rel=1e-8)
    assert other.training_loss == pytest.approx(s2 * one.training_loss, rel=1e-8)
    assert other.test_error == pytest.approx(s2 * one.test_error, rel=1e-8)


@settings(max_examples=4, deadline=None)
@given(scale=st.floats(0.5, 2.0))
def test_logistic_loss_sees_the_inputs_through_sigma_w(scale):
    """x -> s x with lambda -> s^2 lambda leaves the student's fields, and so all fields' overlaps, unchanged:
    the label is a sign."""
    one = sf.solve(sf.problem("logistic_regression", alpha=1.5), accuracy=1e-6)
    other = sf.solve(
        sf.problem("logistic_regression", alpha=1.5, sigma=scale, **{"lambda": 0.1 * scale**2}), accuracy=1e-6
    )
    assert other.overlaps.q.item() == pytest.approx(one.overlaps.q.item(), rel=1e-5)
    assert other.overlaps.V.item() == pytest.approx(one.overlaps.V.item(), rel=1e-5)
    assert other.overlaps.theta.item() == pytest.approx(scale * one.overlaps.theta.item(), rel=1e-5)
    assert other.training_loss == pytest.approx(one.training_loss, rel=1e-5)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(alpha=st.floats(0.3, 4.0), penalty=st.floats(0.02, 2.0), noise=st.floats(0.0, 2.0))
def test_ridge_has_possible_overlaps_everywhere(alpha, penalty, noise):
    """V and q positive, Cauchy-Schwarz for theta, and a training loss below that of doing nothing."""
    solution = ridge(alpha, 1e-8, **{"lambda": penalty, "Delta": noise})
    assert solution.status == "converged"
    q, V, theta = (getattr(solution.overlaps, name).item() for name in ("q", "V", "theta"))
    assert V > 0
    assert 0 < theta**2 <= q
    assert 0 <= solution.training_loss <= alpha * (1 + noise) / 2


# Input


@pytest.mark.parametrize("accuracy", [0.0, -1e-3, 1.0, 2.0])
def test_an_accuracy_out_of_range_is_refused(accuracy):
    with pytest.raises(InputError, match=r"accuracy = .* out of range; allowed is \(0, 1\)"):
        sf.solve(sf.problem("ridge_regression", alpha=1), accuracy=accuracy)


@pytest.mark.parametrize("values", [{"lambda": 1e61}, {"sigma": 1e-61}, {"alpha": 1e300}, {"Delta": 1e300}])
def test_numbers_beyond_double_precision_are_refused(values):
    ((name, value),) = values.items()
    with pytest.raises(InputError, match=rf"{name} = .* is beyond double precision; sizes from 1e-60 to 1e\+60"):
        sf.problem("ridge_regression", **{"alpha": 2, **values})
    assert format_value_with_error(value, 1e-3 * value) == f"1.0000(10)e{round(np.log10(value))}"
    sf.problem("ridge_regression", alpha=1e-59, **{"lambda": 1e59})


def test_without_a_start_a_model_without_attention_begins_at_its_first(monkeypatch):
    starts = []
    monkeypatch.setattr(
        "saddleforge.solving.solve.solve_without_branch_check",
        lambda problem, start, **_: starts.append(start) or 1 / 0,
    )
    for name in ("committee_machine", "ridge_regression"):
        with pytest.raises(ZeroDivisionError):
            sf.solve(sf.problem(name, alpha=2.0))
    assert starts == ["specialised", "informed"]


def test_an_unknown_start_lists_the_known_ones():
    with pytest.raises(InputError, match="unknown start 'lazy' of ridge_regression; known are informed, uninformed"):
        sf.solve(sf.problem("ridge_regression", alpha=1), "lazy")


@pytest.mark.parametrize("rsb", [0, 1])
def test_an_invalid_start_is_refused_with_the_allowed_kinds(rsb):
    words = r"a start is the name of one of ridge_regression \(informed, uninformed\), overlaps, .*; not 3"
    with pytest.raises(InputError, match=words):
        sf.solve(sf.problem("ridge_regression", alpha=2.0), 3, rsb=rsb)


def test_a_start_of_another_structure_is_refused(ranked):
    with pytest.raises(InputError, match=r"the start has overlaps of sizes \(2, 1, 1, 0\)"):
        sf.solve(sf.problem("ridge_regression", alpha=1), ranked[0])


def test_a_gram_matrix_that_no_vectors_have_is_refused():
    with pytest.raises(InputError, match=r"not positive semidefinite \(lowest eigenvalue -1"):
        sf.problem("dot_product_attention", encodings=((1, 2), (2, 1)))


def test_a_gram_matrix_that_is_not_symmetric_is_refused():
    with pytest.raises(InputError, match="not symmetric"):
        sf.problem("dot_product_attention", encodings=((1, 0.5), (-0.5, 1)))


def law_arrays(**changes: object) -> dict[str, object]:
    """A possible law of one token with two clusters, and a teacher."""
    return {
        "labels": (0.4, 0.6),
        "weights": (1.0,),
        "covariance": ((1.0, 2.0),),
        "gram": (np.eye(3),),
        "teacher_means": ((0.0,), (0.0,)),
        **changes,
    }


def test_overlaps_of_the_teacher_follow_from_the_law():
    law = TokenLaw.from_arrays(law_arrays(), 1, 2)
    assert law.rho.tolist() == [1.0, 2.0]
    assert law.rho_star.ravel().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"labels": (0.4, 0.7)}, "label probabilities must be non-negative and add up to 1; they add up to 1.1"),
        ({"labels": (-0.4, 1.4)}, "label probabilities must be non-negative"),
        ({"weights": (0.5,)}, "spectral weights must be non-negative and add up to 1; they add up to 0.5"),
        ({"covariance": ((1.0, 0.0),)}, "eigenvalues gamma of the token covariances must be positive"),
        ({"covariance": ((1.0, np.nan),)}, "eigenvalues gamma of the token covariances must be positive"),
        ({"gram": (np.diag([1.0, -0.1, 1.0]),)}, "not positive semidefinite"),
        ({"gram": (np.diag([1.0, 1.0, 0.0]),)}, r"rho\* of \(token, cluster\) pair 0 is not positive definite"),
    ],
)
def test_impossible_laws_are_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        TokenLaw.from_arrays(law_arrays(**changes), 1, 2)


def test_an_atom_at_fault_is_named():
    with pytest.raises(InputError, match="of spectral atom 1 are not positive semidefinite"):
        TokenLaw.from_arrays(
            law_arrays(weights=(0.5, 0.5), covariance=((1, 1), (1, 1)), gram=(np.eye(3), -np.eye(3))), 1, 2
        )


@pytest.mark.parametrize(
    ("alpha", "omega", "start"),
    [(1.2, 0.3, "semantic"), (0.8, 0.1, "semantic"), pytest.param(2.0, 0.3, "positional", marks=pytest.mark.slow)],
)
def test_error_bars_hold_where_the_proximal_map_jumps(agree, alpha, omega, start):
    """Coarse grids against a finer one: overlaps, training loss and test error within the sum of the error bars."""
    problem = sf.problem("dot_product_attention", alpha=alpha, omega=omega)
    coarse, middle, fine = (sf.solve(problem, start, accuracy=1e-9, effort=effort) for effort in (1, 2, 3))
    assert fine.averages.bistable > 1e-4
    for solution in (coarse, middle):
        asked = 1e-9 * solution.overlaps.block_scales
        assert np.any(solution.errors > asked)
        one, other = ((s.overlaps.pack(), s.errors) for s in (solution, fine))
        agree(one, other, "error bars", rounding=asked)
        for name in ("training_loss", "test_error"):
            one, other = ((getattr(s, name), getattr(s, f"{name}_error")) for s in (solution, fine))
            agree(one, other, "error bars")
    assert np.max(fine.errors) < np.max(middle.errors) < np.max(coarse.errors)
