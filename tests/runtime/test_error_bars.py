"""One model of error bars: a rule says what differences to others of its family count for, everyone asks it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from mpmath import mp

import saddleforge as sf
from saddleforge import Solution
from saddleforge.base.errors import DomainError
from saddleforge.branches.branch_map import BranchMap
from saddleforge.branches.equations import BranchEquations
from saddleforge.following.events import integration_error_bars_of_unknowns
from saddleforge.integration import GaussHermite, LatticeRule, ProxSpaceRule, Rule, SaddlePointAverages, SplitLinesRule
from saddleforge.integration.estimates import (
    RuleComparison,
    compare_rules,
    error_bar_factors_of_rule,
    error_bar_from_comparisons,
    error_bar_of_finest_rule,
    replicate_error_bar,
)
from saddleforge.problems.overlaps import Overlaps
from saddleforge.report.branches import curve_table
from saddleforge.saddle_point.observables import all_observables_of_problem, free_entropy_at_overlaps
from saddleforge.saddle_point.state_map import SaddlePointMap
from saddleforge.solving import error_bars, replicates
from saddleforge.solving.local import overlap_shifts_by_replicates
from saddleforge.solving.replicates import compare_replicates, principal_error_of_replicates
from saddleforge.solving.settings import SolveSettings
from saddleforge.thresholds.conditions import parse_condition


def averages(mass: float = 1.0, bistable: float = 0.0) -> SaddlePointAverages:
    return SaddlePointAverages(np.zeros((1, 1, 1)), np.ones(1), np.ones(1), bistable, np.nan, 0.0, mass)


def counts(
    rule: Rule, *differences: float, known: tuple[SaddlePointAverages, ...] = (), derivative: bool = False
) -> list[float]:
    steps = [np.array(difference) for difference in differences]
    return error_bar_factors_of_rule(rule, steps, known or (averages(),) * (len(steps) + 1), derivative)


def test_where_errors_fall_by_a_rate_two_differences_tell_it():
    for rule in (GaussHermite(8), SplitLinesRule(32), ProxSpaceRule(32, 16)):
        assert counts(rule, 1e-4, 1e-3) == pytest.approx([1.5 * 1.1 / 0.9, 0.1 * 1.5 * 1.1 / 0.9])
        assert counts(rule, 1e-3, 1e-4)[0] == pytest.approx(1.5 * 1.9 / 0.1)  # no faster than can be allowed for


@pytest.mark.parametrize("rule", [GaussHermite(8), LatticeRule(5.0)])
def test_nodes_that_know_nothing_of_jumps_have_no_rate_there(rule):
    jumping = (averages(bistable=1e-3),) * 4
    assert counts(rule, 1e-8, 1e-3, 1e-2, known=jumping) == [1.5, 1.5, 1.5]


def test_jumps_cost_a_grid_no_more_than_the_share_that_sees_them():
    """A slope of the averages the root of a negligible one, and more than can be reported of others."""
    rule, jumping = ProxSpaceRule(32, 16), (averages(bistable=1e-4),) * 3
    assert counts(rule, 1e-8, 1e-4, known=jumping) == [1.5, 0.35]
    assert counts(rule, 1e-8, 1e-2, known=jumping) == [1.5, pytest.approx(1e-2)]
    assert counts(rule, 1e-8, 1.0, known=jumping, derivative=True) == [1.5, 0.35]
    hardly = (averages(bistable=1e-8),) * 3
    assert counts(rule, 1e-9, 1e-2, known=hardly, derivative=True)[1] == pytest.approx(1e-2)


def test_of_a_ladder_of_grids_the_last_step_and_a_share_of_the_one_before_count_where_the_map_jumps():
    """What grids coarser than these say of jumps is no matter of the finest."""
    jumping = (averages(bistable=1e-3),) * 4
    steps = [np.array(step) for step in (1e-6, 1e-5, 1e-2)]
    assert error_bar_of_finest_rule(ProxSpaceRule(32, 16), steps, jumping) == pytest.approx(0.35e-5)
    assert error_bar_of_finest_rule(ProxSpaceRule(32, 16), [np.array(1e-5), *steps[1:]], jumping) == pytest.approx(1e-5)


def test_the_total_weight_of_a_grid_says_how_far_it_is_off():
    """Differences that agree by chance, while the weight is off by as much as it differs between the grids."""
    rule, agreed = ProxSpaceRule(32, 16), (1e-9, 1e-9)
    off = (averages(1 + 1e-6), averages(1 + 5e-7), averages(1 - 1e-6))
    assert counts(rule, 1e-12, 1e-9, known=off) == pytest.approx([1.5 * 1.001 / 0.999, 0.75], rel=1e-5)
    assert counts(rule, *agreed, known=(off[0], off[1], off[0]))[1] == pytest.approx(1.5 * 1.9 / 0.1 * 0.9)
    assert counts(rule, 1e-12, known=off[:2]) == pytest.approx([3.0], rel=1e-5)  # it differs by less than it is off
    exact = (averages(1 + 3e-16), averages(1 - 2e-16))
    assert counts(rule, 1e-12, known=exact) == [1.5]


def test_rules_too_coarse_to_see_a_kink_agree_and_finer_ones_are_asked():
    """Differences grow up to the rule whose nodes begin to see it; those beyond agree with one another."""
    rule = GaussHermite(9)
    asked = []

    def ask(change: Callable[[Rule], Rule]) -> RuleComparison:
        points = change(rule).points
        if points < 5:
            raise DomainError("too coarse")
        asked.append(points)
        value = 0.0 if points <= 9 else 1e-6 if points <= rule.finer_rule().points else 1e-2
        return RuleComparison((np.array([value]),), (averages(),))

    known = compare_rules([rule], [averages()], ask)
    assert asked[0] == rule.finer_rule().points and max(asked) > rule.finer_rule().finer_rule().points
    assert error_bar_from_comparisons(known, 0) >= 1e-2


@pytest.fixture(scope="module")
def logistic() -> sf.Problem:
    return sf.problem("logistic_regression", alpha=2.0)


@pytest.mark.parametrize(("rule", "points"), [("gauss-hermite", 10), ("prox-space", 24)])
def test_a_followed_branch_has_the_error_bars_of_solve(logistic, agree, rule, points):
    solution = sf.solve(logistic, integrator=rule, points=points, accuracy=0.5)
    equations = BranchEquations(BranchMap.from_solution(solution, ("alpha",), [1.0]))
    branch, u = equations.branch, solution.overlaps.pack()
    z = np.append(branch.coordinates_of_state(u), 2.0)
    matrix = equations.residual_jacobian(z)[:, :-1]
    widths = integration_error_bars_of_unknowns(equations, z, matrix)
    # `solve` adds what its residual leaves, and weights that do not add up to one.
    mass = abs(solution.averages.mass - 1)
    scales = solution.overlaps.block_scales
    least = np.maximum(branch.basis.T @ widths, mass * scales) + solution.residual * scales
    # Its slopes are those of an iterate before the last, which these digits of an error bar do not need.
    np.testing.assert_allclose(solution.errors, least, rtol=1e-2)


def error_bars_of(problem: sf.Problem) -> dict[str, float]:
    """Of everything that is found with Gauss-Hermite nodes, ten an axis."""
    solution: Solution = sf.solve(problem, integrator="gauss-hermite", points=10, accuracy=0.5)
    slope = sf.sensitivities(solution, "alpha")["alpha"]
    equations = BranchEquations(BranchMap.from_solution(solution, ("alpha",), [1.0]))
    z = np.append(equations.branch.coordinates_of_state(solution.overlaps.pack()), 2.0)
    shift = integration_error_bars_of_unknowns(equations, z, equations.residual_jacobian(z)[:, :-1])
    return {
        "solve: q": solution.errors[0],
        "solve: training loss": solution.training_loss_error,
        "follow: q": shift[0],
        "sensitivities: q": slope.of("q")[1],
        "sensitivities: training loss": slope.of("training_loss")[1],
        "sensitivities: test error": slope.of("test_error")[1],
        "thresholds: theta = V": parse_condition("theta = V", solution.problem)(solution)[1],
    }


def test_everyone_asks_the_rule_what_differences_count_for(logistic, monkeypatch):
    """A rule that trusts nothing makes every error bar as much larger."""
    usual = error_bars_of(logistic)
    monkeypatch.setattr(
        GaussHermite, "smallest_error_bar_factors", lambda self, steps, averages, derivative: (1e4,) * len(steps)
    )
    doubted = error_bars_of(logistic)
    assert {name: width for name, width in usual.items() if not doubted[name] > 50 * width} == {}


@pytest.mark.parametrize("alpha", [1.75, 3.25, 5.0])
def test_bars_hold_what_rounding_leaves(alpha):
    """V of ridge regression solves V (1/10 + alpha / (1 + V)) = 1."""
    solution = sf.solve(sf.problem("ridge_regression", alpha=alpha))
    with mp.workdps(30):
        b = mp.mpf("0.1") + alpha - 1
        exact = (-b + mp.sqrt(b**2 + mp.mpf("0.4"))) / mp.mpf("0.2")
        assert abs(solution.overlaps.V.item() - exact) <= solution.error_bars.V.item() < 1e-13


def test_every_overlap_of_a_curve_is_shown_with_its_bar():
    _, _, *rows = curve_table(sf.curve(sf.problem("ridge_regression"), alpha=(1, 3, 3))).splitlines()
    assert len(rows) == 3
    for row in rows:
        _, q, V, m, theta, *_ = row.split()
        assert m == "0" and all(shown.endswith(")") for shown in (q, V, theta))


def test_an_error_bar_that_leaves_the_domain_is_infinite():
    """A change of the test error that is not known is no change of zero."""
    problem = sf.problem("ridge_regression", alpha=2.0)
    solution = sf.solve(problem)
    estimate = error_bars.ObservableEstimate.estimate_at_overlaps(
        all_observables_of_problem(problem)[0], solution.overlaps, 1e-4
    )
    u = solution.overlaps.pack()
    assert np.isfinite(estimate.change_of_observable_by_shift(u, 1e-3 * u))
    assert estimate.change_of_observable_by_shift(u, -2 * u) == np.inf


def test_what_errors_of_the_overlaps_leave_of_the_loss_needs_few_nodes():
    """The loss is stationary at a solution: its second difference is the same by few nodes."""
    solution = sf.solve(sf.problem("dot_product_attention", alpha=2.0), integrator="sobol", points=11, accuracy=0.1)
    state_map = SaddlePointMap(solution.problem, solution.rule)
    width = principal_error_of_replicates(solution.shifts, solution.overlaps.block_scales)
    u, sizes = solution.overlaps.pack(), solution.overlaps.sizes
    below, here, above = (
        free_entropy_at_overlaps(state_map, Overlaps.unpack(u + sign * width, sizes)) for sign in (-1.0, 0.0, 1.0)
    )
    assert solution.second_order == pytest.approx(1.5 * abs((below + above) / 2 - here), rel=0.3)


def test_error_bars_of_samples_do_not_rest_on_a_rough_jacobian():
    """Next to the pitchfork of theta at alpha = .7192 a Jacobian off by a fifth changes (I - J)^{-1} several times."""
    problem = sf.problem("dot_product_attention", alpha=0.8)
    solution = sf.solve(problem, "semantic", integrator="sobol", points=12, seed=3)
    assert solution.jacobian is not None and solution.symmetry is not None
    task = SolveSettings(solution.problem, "semantic", solution.symmetry, 1e-4)
    scales, found = solution.overlaps.block_scales, []
    for factor in (0.8, 0.9, 1.0):
        point = replace(solution.fixed_point, jacobian=factor * solution.jacobian)
        by_jacobian = replicate_error_bar(overlap_shifts_by_replicates(task, point, solution.rule)[0])
        found.append(
            [np.max(each / scales) for each in (by_jacobian, compare_replicates(task, point, solution.rule).errors)]
        )
    by_jacobian, measured = np.array(found).T
    assert by_jacobian.max() > 2 * by_jacobian.min()
    assert measured.max() < 1.3 * measured.min()
    assert abs(solution.overlaps.theta[0, 0, 0] - 0.05932959) <= solution.error_bars.theta[0, 0, 0]  # by prox-space


def test_an_error_interval_that_has_no_end_is_as_long_as_the_overlaps(monkeypatch):
    solution = sf.solve(sf.problem("dot_product_attention", alpha=2.0), "semantic", integrator="sobol", points=10)
    task = SolveSettings(solution.problem, "semantic", solution.symmetry, 1e-4)
    monkeypatch.setattr(replicates, "_locate_end_of_error_interval", lambda *_: None)
    assert compare_replicates(task, solution.fixed_point, solution.rule).relative_error == pytest.approx(1.0)
