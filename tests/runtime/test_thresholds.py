"""Thresholds: conditions are read safely, and the error bar contains the truth where a closed form gives it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq

import saddleforge as sf
from saddleforge import InputError, NotConvergedError
from saddleforge.branches.branch import Branch
from saddleforge.integration import ProxSpaceRule, Sobol
from saddleforge.problems.quantities import solution_quantity_names
from saddleforge.thresholds.conditions import parse_condition, verdict_and_parameter_names
from saddleforge.thresholds.crossing import training_loss_derivative
from saddleforge.thresholds.root import DifferenceEvaluation, find_root_in_bracket


def ridge_test_error(alpha: float, penalty: float = 0.1, noise: float = 0.25) -> float:
    """Closed form, see tests/literature/test_ridge.py."""
    b = penalty + alpha - 1
    V = 2 / (b + math.sqrt(b * b + 4 * penalty))
    R2 = (V * V + V) / (2 * penalty * V + b)
    return noise + penalty**2 * R2 + noise * (V - penalty * R2)  # noise, bias, variance


@pytest.fixture(scope="module")
def ridge() -> sf.Problem:
    return sf.problem("ridge_regression", alpha=1.0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("test_error", "two expressions joined by one '='"),
        ("q = V = 1", "two expressions joined by one '='"),
        (
            "test_error = baseline",
            "unknown quantity 'baseline'.*; known are free_entropy, training_loss, test_error, alignment, q, V",
        ),
        ("1 = 2", "contains no observable"),
        ("q = ", "cannot read"),
        ("q = 1 +", "cannot read"),
        ("q = __import__('os')", "only names, numbers"),
        ("q.real = 1", "only names, numbers"),
        ("q = [1]", "only names, numbers"),
        ("q = 'a'", "only names, numbers"),
        ("q = 1 if V else 2", "only names, numbers"),
    ],
)
def test_conditions_that_cannot_be_read(ridge, text, sentence):
    with pytest.raises(InputError, match=sentence):
        parse_condition(text, ridge)


@pytest.mark.parametrize("operator", ["//", "%", "@", "<<", "|", "* ~"])
def test_operators_beyond_arithmetic_are_refused_before_anything_is_solved(ridge, operator):
    with pytest.raises(InputError, match=r"only .*\+ - \* /"):
        parse_condition(f"q {operator} 2 = 1", ridge)


def test_a_condition_is_the_difference_of_its_sides(ridge):
    solution = sf.solve(ridge, accuracy=1e-8)
    q, theta = solution.overlaps.q.item(), solution.overlaps.theta.item()
    value, error = parse_condition("2 * theta / (q ** 0.5) = -0.25 + alpha", ridge)(solution)
    assert value == pytest.approx(2 * theta / math.sqrt(q) + 0.25 - 1.0, abs=1e-14)
    assert 0 <= error < 1e-6


def test_a_condition_without_uncertainty_has_only_rounding(ridge):
    value, error = parse_condition("alpha = 0.25", ridge)(sf.solve(ridge, accuracy=1e-2))
    assert (value, error) == (0.75, pytest.approx(0, abs=1e-13))


def test_observables_are_all_readable(ridge):
    solution = sf.solve(ridge, accuracy=1e-4)
    for name in solution_quantity_names(ridge, verdict_and_parameter_names(ridge)):
        value, error = parse_condition(f"{name} = 0", ridge)(solution)
        assert math.isfinite(value) and error >= 0, name
    assert parse_condition("theta_1 = lambda", ridge)(solution)[0] == solution.overlaps.theta.item() - 0.1


def test_the_replicon_counts_with_its_own_error(ridge):
    value, _ = parse_condition("replicon = 0.5", ridge)(sf.solve(ridge, accuracy=1e-6))
    V = 2 / (0.1 + math.sqrt(0.01 + 0.4))
    assert value == pytest.approx(V**2 / (1 + V) ** 2 - 0.5, abs=1e-6)


@pytest.mark.parametrize("accuracy", [1e-2, 1e-4])
@pytest.mark.parametrize("level", [0.5, 0.6, 0.8])
def test_threshold_in_alpha_holds_the_closed_form(ridge, level, accuracy):
    found = sf.where(ridge, f"test_error = {level}", on="semantic", bracket=(0.3, 3.0), accuracy=accuracy)
    truth = brentq(lambda alpha: ridge_test_error(alpha) - level, 0.3, 3.0, xtol=1e-14)
    assert found.status == "converged"
    assert found.error <= accuracy
    assert abs(found.value - truth) <= found.error


def test_threshold_in_another_parameter_holds_the_closed_form(ridge):
    problem = ridge.with_(alpha=2.0)
    found = sf.where(problem, "test_error = 0.6", "Delta", on="semantic", bracket=(0.1, 1.0), accuracy=1e-4)
    truth = brentq(lambda noise: ridge_test_error(2.0, noise=noise) - 0.6, 0.1, 1.0, xtol=1e-14)
    assert abs(found.value - truth) <= found.error + 1e-12  # rounding
    assert found.error <= 1e-4


def ridge_replicon(alpha: float, penalty: float = 0.1) -> float:
    b = penalty + alpha - 1
    V = 2 / (b + math.sqrt(b * b + 4 * penalty))
    return alpha * V**2 / (1 + V) ** 2


@pytest.mark.parametrize(
    ("condition", "closed_form"),
    [("test_error = 0.6", lambda a: ridge_test_error(a) - 0.6), ("replicon = 0.5", lambda a: ridge_replicon(a) - 0.5)],
    ids=["test error", "replicon"],
)
def test_ten_digits_are_confirmed_by_a_second_rule(ridge, condition, closed_form):
    found = sf.where(ridge, condition, on="semantic", bracket=(1.0, 3.0), accuracy=1e-10)
    truth = brentq(closed_form, 1.0, 3.0, xtol=1e-15)
    assert (found.status, found.error_kind) == ("converged", "verified")
    assert found.error <= 1e-10
    assert abs(found.value - truth) <= found.error
    assert found.evidence["integrators"][0]["rule"] != found.evidence["second_rule"]["integrator"]["rule"]
    shown = found.to_json()
    assert abs(float(shown["value"]) - truth) <= float(shown["error"]) <= 1e-10


def test_a_threshold_says_how_it_was_found(ridge):
    found = sf.where(ridge, "test_error = 0.6", on="semantic", bracket=(0.3, 3.0), accuracy=1e-3)
    shown = found.to_json()
    assert shown["parameter"] == "alpha"
    assert "alpha" not in shown["parameters"]
    assert float(shown["value"]) == pytest.approx(found.value, abs=found.error)
    assert shown["branches"] == ["informed"]
    assert "RS stable" in shown["rs_verdict"]
    evidence = shown["evidence"]
    parts = [value for name, value in evidence.items() if name.startswith("error_")]
    assert len(parts) == 3
    assert sum(parts) == pytest.approx(found.error)
    assert evidence["bracket"][0] < found.value < evidence["bracket"][1]
    assert (found.error_kind, evidence["second_rule"]) == ("estimated", None)
    step = 1e-5
    slope = (ridge_test_error(found.value + step) - ridge_test_error(found.value - step)) / (2 * step)
    assert evidence["slope"] == pytest.approx(slope, rel=0.05)


def test_no_sign_change_is_said_with_the_values_met(ridge):
    with pytest.raises(NotConvergedError, match=r"no sign change for alpha in \[0.5, 0.7\].*try another interval"):
        sf.where(ridge, "test_error = 5", on="semantic", bracket=(0.5, 0.7))


def test_branches_that_do_not_exist_are_said_so(ridge, branch_at):
    with (
        branch_at(lambda *_: None),
        pytest.raises(NotConvergedError, match=r"no value of alpha in \[0.5, 0.7\] was found at which the branches"),
    ):
        sf.where(ridge, "test_error = 5", on="semantic", bracket=(0.5, 0.7))


def test_a_convex_loss_has_no_instability_line(ridge):
    with pytest.raises(NotConvergedError, match="at: no sign change for alpha"):
        sf.almeida_thouless(ridge, on="semantic", bracket=(0.5, 2.0))


def test_stability_lost_through_jumps_is_no_passage_of_the_replicon_through_one(ridge, branch_at, monkeypatch):
    """Replicon below 1 everywhere; above alpha = 1.3 the proximal map is made to jump."""

    def jumping(at, branch, value, accuracy=None):
        found = at(branch, value, accuracy)
        return replace(found, averages=replace(found.averages, bistable=0.01 * (value > 1.3)))

    monkeypatch.setattr(ProxSpaceRule, "rules_for_field_jacobian", lambda rule, *_: (rule,))
    with (
        branch_at(jumping),
        pytest.raises(NotConvergedError, match=r"= 1.299\d* and 1.300\d* through jumps of the proximal"),
    ):
        sf.almeida_thouless(ridge, on="semantic", bracket=(1.0, 2.0), accuracy=1e-4)


def test_unknown_branches_and_parameters_are_refused(ridge):
    with pytest.raises(InputError, match=r"unknown branch 'positional' of .*; known are informed, uninformed"):
        sf.crossing(ridge, between=("semantic", "positional"))
    with pytest.raises(InputError, match="'beta' is not a scalar parameter"):
        sf.where(ridge, "q = 1", "beta", on="semantic", bracket=(0, 1))
    with pytest.raises(InputError, match="give an interval to search for Delta"):
        sf.where(ridge, "q = 1", "Delta", on="semantic")
    with pytest.raises(InputError, match="accuracy"):
        sf.where(ridge, "q = 1", on="semantic", accuracy=0.0)


def test_a_branch_remembers_what_it_solved(ridge):
    branch = Branch(ridge, "alpha", "semantic")
    assert branch.solution_at_parameter(0.7) is branch.solution_at_parameter(0.7)
    assert list(branch.known) == [0.7]


@pytest.fixture(scope="module")
def transition():
    problem = sf.problem("dot_product_attention", alpha=1.25)
    return sf.crossing(problem, between=("semantic", "positional"), bracket=(1.2, 1.3), accuracy=3e-4)


def test_the_positional_to_semantic_transition_has_its_known_value(transition):
    """alpha_c(omega = 0.3) = 1.251536(2), with error bars down to 1e-5 asked for; arXiv 2402.03902 gives 1.2410."""
    assert transition.status == "converged"
    assert transition.error <= 3e-4
    assert abs(transition.value - 1.251536) <= transition.error
    assert [s.branch for s in transition.solutions] == ["semantic", "positional"]
    assert transition.evidence["slope"] == pytest.approx(-8.2e-4, rel=0.01)


def test_losses_at_the_transition_are_equal_by_another_rule(agree, transition):
    """The difference of the losses at the transition, by Sobol sets with the global proximal map at every node."""
    losses = []
    for solution in transition.solutions:
        averages = Sobol(12, scramblings=32).averages(solution.problem, solution.overlaps)
        losses.append(solution.problem.alpha * (averages.moreau - solution.averages.moreau.mean()))
    off = (losses[0] - losses[1]) / transition.evidence["slope"]
    error = 2 * off.std(ddof=1) / np.sqrt(len(off))
    assert error < 2e-3
    agree((off.mean(), error), (0.0, transition.error), "error bars")


@pytest.mark.slow
def test_six_digits_of_the_transition_agree_by_two_rules():
    """alpha_c(omega = 0.3): a grid of proximal points and lines of fields split at the jumps, on both branches.

    Asked for 2e-8: 1.25153559(3); 1.251535592(6) by grids of 473^2 x 232^2 nodes, 1.251535566 by lines, 140 an axis.
    """
    problem = sf.problem("dot_product_attention", alpha=1.25)
    found = sf.crossing(problem, between=("semantic", "positional"), bracket=(1.2, 1.3), accuracy=5e-7)
    assert (found.status, found.error_kind) == ("converged", "verified")
    assert found.error <= 5e-7
    assert abs(found.value - 1.25153559) <= found.error + 3e-8
    rules = {found.evidence["second_rule"]["integrator"]["rule"], *(r["rule"] for r in found.evidence["integrators"])}
    assert rules == {"lines", "prox-space"}
    assert min(found.evidence["bistable_fractions"]) > 3e-3


@pytest.mark.slow
def test_a_threshold_has_eight_digits_where_jumps_are_negligible():
    """theta = 0.155 on the semantic branch, where 5e-8 of the measure is bistable, from two accuracies asked."""
    problem = sf.problem("dot_product_attention")
    options = {"on": "semantic", "bracket": (1.8, 2.1), "verify": False}
    fine, finer = (sf.where(problem, "theta = 0.155", accuracy=a, **options) for a in (1e-6, 3e-9))
    assert fine.success and finer.success
    assert abs(fine.value - finer.value) <= fine.error
    assert finer.error <= 3e-9
    solution = sf.solve(problem.with_(alpha=finer.value), "semantic", accuracy=1e-9)
    assert solution.overlaps.theta.flat[0] == pytest.approx(0.155, abs=3e-10)


@pytest.mark.slow
def test_the_almeida_thouless_point_of_tukeys_loss_has_its_known_value():
    """Replica symmetry is lost through the replicon where V is far below the onset of jumps, 5/4."""
    problem = sf.problem("tukey_regression", Delta=1.0)
    found = sf.almeida_thouless(problem, on="semantic", bracket=(5.0, 14.0), accuracy=1e-6)
    assert found.success
    assert abs(found.value - 7.29786929) <= found.error + 1e-8
    (solution,) = found.solutions
    assert solution.overlaps.V.item() < 1.25
    for offset, words in ((-0.05, "RS unstable"), (0.05, "RS stable")):
        near = sf.solve(problem.with_(alpha=found.value + offset), solution, accuracy=1e-4)
        assert near.stability.verdict.startswith(words)


@pytest.mark.slow
def test_stability_of_the_semantic_branch_of_attention_is_lost_through_jumps():
    """At alpha = 2 it is stable, at 1.5 the proximal map jumps (1.6e-4 bistable), with a replicon below 1 all along."""
    with pytest.raises(NotConvergedError, match="through jumps of the proximal map"):
        sf.almeida_thouless(sf.problem("dot_product_attention"), on="semantic", bracket=(1.5, 2.0), accuracy=1e-2)


def test_a_crossing_with_a_step_of_breaking_has_no_second_rule():
    with pytest.raises(sf.InputError, match="verify = True is available for rsb = 0 only"):
        sf.crossing(sf.problem("dot_product_attention"), between=("semantic", "positional"), rsb=1, verify=True)


@pytest.mark.slow
def test_one_step_of_breaking_moves_the_transition_down():
    """The positional branch is broken more than the semantic one, which then wins at a smaller alpha."""
    problem = sf.problem("dot_product_attention")
    found = sf.crossing(problem, between=("semantic", "positional"), bracket=(1.2, 1.3), accuracy=3e-3, rsb=1)
    assert found.success
    semantic, positional = found.broken
    assert (semantic.branch, positional.branch) == ("semantic", "positional")
    moved = [solution.energy - solution.symmetric.training_loss for solution in (semantic, positional)]
    off = found.value - found.evidence["symmetric"]["value"]
    expected = (moved[1] - moved[0]) / found.evidence["slope"]
    assert abs(off - expected) <= found.error + found.evidence["symmetric"]["error"]
    assert off < 0
    assert "replica symmetric 1.2" in found.table()


def test_a_root_behind_a_bracket_of_coarse_signs_lies_within_the_error_bar():
    """At both ends the difference is positive; the coarse one is off by more than it is itself."""
    root = 1.15

    def evaluate(value, tolerance):
        error, slope = 3e-4 if tolerance is None else tolerance, -1e-3 * (1 + 0.02 * (value - root))
        return DifferenceEvaluation(value, slope * (value - root) - 0.8 * error, error, 0.0, slope, ())

    left, right = (evaluate(value, None) for value in (0.8, 1.0))
    assert left.difference > 0 > right.difference
    found = find_root_in_bracket(left, right, 1e-2, evaluate, lambda: None)
    assert abs(found.value - root) <= found.best.error / abs(found.slope) + found.error


def test_the_slope_of_a_loss_along_a_branch_is_that_at_fixed_overlaps(ridge):
    """Of alpha E[M], and of the others differences by the rule of the loss: both as neighbours solve it."""
    solution = sf.solve(ridge, accuracy=1e-9)
    assert training_loss_derivative(replace(solution, averages=None), "alpha") == pytest.approx(
        training_loss_derivative(solution, "alpha"), 1e-6
    )
    for name in ("alpha", "Delta", "lambda"):
        value = ridge.value_of_parameter(name)
        ends = [sf.solve(ridge.with_(**{name: value + step}), accuracy=1e-9).training_loss for step in (-1e-3, 1e-3)]
        assert training_loss_derivative(solution, name) == pytest.approx((ends[1] - ends[0]) / 2e-3, rel=1e-4)
