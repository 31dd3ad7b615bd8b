"""Dot-product attention at omega = 0.3 (arXiv 2402.03902, section 5): numbers of issue 2, items 3 and 4.

`value(bracket)` pairs are the accepted deviations of the issue.
"""

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.saddle_point.observables import baseline_error

SEMANTIC = {"q": (0.11481731, 1e-8), "V": (12.66840, 1e-5), "theta": (0.15815852, 2e-8)}
STATES = {
    (2.0, "positional"): {"q": (0.0510, 3e-4), "V": (11.38, 0.06), "m": (0.2582, 5e-4), "theta": (0, 0)},
    (2.0, "uninformed"): {"q": (0.1038, 3e-4), "V": (23.74, 0.10), "m": (0, 0), "theta": (0, 0)},
    (1.5, "semantic"): {"q": (0.09395, 2e-5), "V": (16.02, 0.01), "theta": (0.13455, 3e-5), "m": (0, 0)},
    (1.0, "semantic"): {"q": (0.06808, 5e-5), "theta": (0.0946, 3e-4), "m": (0, 0)},
    (1.0, "positional"): {"q": (0.04345, 6e-5), "m": (0.2482, 4e-4), "theta": (0, 0)},
}
LOSSES = {
    (2.0, "positional"): {"training_loss": (0.004513, 4e-6), "test_error": (0.003473, 4e-6)},
    (2.0, "uninformed"): {"training_loss": (0.004706, 5e-6)},
}
OVERLAPS = [(*state, name) for state, numbers in STATES.items() for name in numbers]


@pytest.fixture(scope="session")
def semantic(attention):
    return attention(2.0, "semantic", 1e-7)


def test_semantic_branch_converges_at_the_accuracy_asked(semantic):
    assert semantic.status == "converged"
    assert semantic.rule.name == "prox-space"
    assert semantic.branch == "semantic"


@pytest.mark.parametrize("name", SEMANTIC)
def test_semantic_overlaps_have_their_known_values(semantic, name):
    value, bracket = SEMANTIC[name]
    assert np.all(np.abs(getattr(semantic.overlaps, name) - value) <= bracket)


def test_semantic_losses_have_their_known_values(semantic):
    assert semantic.training_loss == pytest.approx(0.003590618, rel=0, abs=1e-9)
    assert semantic.test_error == pytest.approx(0.001404203, rel=0, abs=1e-9)


def test_semantic_error_bars_hold_the_truth(semantic):
    """Eight known digits: docs/theory.md section 14."""
    widths = semantic.error_bars
    for name, truth, uncertainty in (("q", 0.114817306, 2e-9), ("V", 12.668402, 2e-6), ("theta", 0.15815852, 1e-8)):
        assert np.all(np.abs(getattr(semantic.overlaps, name) - truth) <= getattr(widths, name) + uncertainty)
    assert abs(semantic.training_loss - 0.00359061833) <= semantic.training_loss_error + 2e-11
    assert abs(semantic.test_error - 0.00140420339) <= semantic.test_error_error + 1e-11


@pytest.mark.parametrize(
    ("integrator", "points", "accuracy"),
    [("gauss-hermite", 16, 3e-2), ("sobol", 12, 1e-2)],
    ids=["gauss-hermite", "sobol"],
)
def test_rules_with_the_prox_agree_within_their_own_error_bars(semantic, integrator, points, accuracy):
    problem = sf.problem("dot_product_attention", alpha=2.0)
    sampled = sf.solve(problem, "semantic", accuracy=accuracy, integrator=integrator, points=points)
    assert sampled.status.success
    deviation = np.abs(sampled.overlaps.pack() - semantic.overlaps.pack())
    assert np.all(deviation <= sampled.errors + semantic.errors)
    assert np.all(deviation <= accuracy * semantic.overlaps.block_scales)
    assert abs(sampled.training_loss - semantic.training_loss) <= sampled.training_loss_error
    assert abs(sampled.test_error - semantic.test_error) <= sampled.test_error_error


@pytest.mark.parametrize(("alpha", "start", "name"), OVERLAPS)
def test_overlaps_along_both_branches_have_their_known_values(attention, alpha, start, name):
    solution = attention(alpha, start, 1e-3)
    value, bracket = STATES[alpha, start][name]
    assert solution.branch == start
    assert np.all(np.abs(np.abs(getattr(solution.overlaps, name)) - value) <= max(bracket, 1e-12))


@pytest.mark.parametrize(("alpha", "start", "name"), [(*state, name) for state, n in LOSSES.items() for name in n])
def test_losses_along_both_branches_have_their_known_values(attention, alpha, start, name):
    value, bracket = LOSSES[alpha, start][name]
    assert getattr(attention(alpha, start, 1e-3), name) == pytest.approx(value, rel=0, abs=bracket)


def test_encodings_of_opposite_sign_are_learned_with_opposite_sign(attention):
    first, second = attention(2.0, "positional", 1e-3).overlaps.m.ravel()
    assert first > 0
    assert second == pytest.approx(-first, rel=1e-9)


def test_the_linear_baseline_has_its_known_error():
    found = baseline_error(sf.problem("dot_product_attention", alpha=1.0))
    assert found == pytest.approx(0.00197138433467, rel=0, abs=1e-14)


def test_published_baseline_is_a_sum_over_tokens_from_a_coarse_rule():
    found = baseline_error(sf.problem("dot_product_attention", alpha=1.0))
    assert pytest.approx(found, rel=0.011) == 0.00398092 / 2


def test_linear_baseline_does_not_depend_on_the_amount_of_data():
    errors = {baseline_error(sf.problem("dot_product_attention", alpha=alpha)) for alpha in (0.5, 2.0)}
    assert len(errors) == 1


def test_semantic_attention_beats_the_linear_baseline_at_two_but_positional_does_not(attention, semantic):
    assert semantic.test_error < semantic.baseline_error < attention(2.0, "positional", 1e-3).test_error


@pytest.mark.slow
def test_columns_of_a_rank_two_student_follow_teacher_and_positions():
    """Mixed branch at alpha = 1.5, omega = 0.3: one column follows the teacher, the other the positions."""
    solution = sf.solve(sf.problem("dot_product_attention", student_rank=2, alpha=1.5), "mixed", accuracy=3e-3)
    overlaps = solution.overlaps
    assert solution.branch == "mixed"
    assert solution.status == "converged"
    assert overlaps.q[0].diagonal() == pytest.approx([0.0586, 0.0201], abs=1e-4)
    assert overlaps.theta[0, :, 0] == pytest.approx([0.1021, 0.0], abs=3e-4)
    assert np.abs(overlaps.m[0]) == pytest.approx([0.0, 0.2189], abs=1e-3)
    assert abs(overlaps.q[0, 0, 1]) < 1e-4
    assert solution.training_loss == pytest.approx(0.002356, abs=3e-6)
    assert solution.test_error == pytest.approx(0.001873, abs=5e-6 + solution.test_error_error)
