"""Branches of attention followed by arclength: where they end, what becomes unstable, what was not started from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import saddleforge as sf
from saddleforge import InputError, NotConvergedError, Solution
from saddleforge.branches.branch_map import BranchMap
from saddleforge.branches.continuation import correct_predicted_point
from saddleforge.branches.equations import BranchEquations, CrossingEquations
from saddleforge.following.branch_continuation import BranchContinuation
from saddleforge.following.critical import critical_line, solution_without_error_bars
from saddleforge.following.events import relocate_event_for_nearby_problem
from saddleforge.following.first_event import instability, spinodal
from saddleforge.following.follow import follow
from saddleforge.integration import ProxSpaceRule, Rule, SplitLinesRule
from saddleforge.problems.overlaps import packed_overlap_slices
from saddleforge.report.plots.branches import plot_branch
from saddleforge.report.tables import load_netcdf_dataset
from saddleforge.saddle_point.difference_jacobian import jacobian_by_differences
from saddleforge.saddle_point.state_map import SaddlePointMap
from saddleforge.solving.deflation import find_solutions_by_deflation, solutions_agree_up_to_symmetry
from saddleforge.thresholds.conditions import parse_condition

Solved = Callable[[float, str, float], Solution]


def test_a_followed_branch_passes_through_the_solutions_that_solve_finds(
    agree: Callable[..., None], attention: Solved
) -> None:
    problem = sf.problem("dot_product_attention", alpha=2.0)
    found = follow(problem, start="semantic", over="alpha", between=(2.0, 1.85), accuracy=1e-3)
    assert found.values[0] == 2.0 and found.values[-1] == 1.85
    assert np.all(np.diff(found.values) < 0) and np.all(np.diff(found.arclength) > 0)
    assert not found.events
    for solution in found.solutions:
        assert solution.success and solution.branch == "semantic"
        assert solution.residual < 1e-8
    known = attention(2.0, "semantic", 1e-4)
    first = found.solutions[0]
    agree((first.overlaps.pack(), first.errors), (known.overlaps.pack(), known.errors), "error bars")


def test_slopes_of_the_branch_equations_are_those_of_the_map(
    attention: Solved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Printed derivatives on a grid that integrates them to 1e-6; the coarse one, for tangents, is close."""
    solution = attention(2.0, "semantic", 1e-4)
    branch = BranchMap.from_solution(solution, ("alpha", "omega"), [1.0, 1.0])
    x, at = branch.coordinates_of_state(solution.overlaps.pack()), np.array([2.0, 0.3])
    units = np.concatenate([branch.coordinate_units(x), [1.0, 1.0]])
    by_coarse = branch.residual_jacobian(x, at) * units
    assert branch.slopes_by == {"printed derivatives"}

    def wide(rule: Rule) -> np.ndarray:
        def gap(z: np.ndarray) -> np.ndarray:
            return branch.residuals_by_replicate(z[:-2], z[-2:], rule)[0] * branch.coordinate_units(z[:-2])

        columns = jacobian_by_differences(gap, np.concatenate([x, at]), 3e-4 * units)
        return columns / units[:-2, None] * units

    np.testing.assert_allclose(wide(solution.rule), by_coarse, atol=2e-2)
    fine = ProxSpaceRule(88, 44)
    monkeypatch.setattr(branch, "_derivative_rule_and_steps", lambda *_: (fine, 1e-6))
    np.testing.assert_allclose(wide(fine), branch.residual_jacobian(x, at) * units, atol=1e-5)


def test_a_crossing_compares_free_entropies_by_their_own_rule() -> None:
    """By the averages of the saddle points where that is the same rule."""
    found = [sf.solve(sf.problem("ridge_regression", alpha=2.0, **{"lambda": size}), accuracy=1e-3) for size in (1, 2)]
    one, other = maps = [BranchMap.from_solution(solution, ("alpha",), [1.0]) for solution in found]
    at = np.array([2.0])
    states = [branch.coordinates_of_state(s.overlaps.pack()) for branch, s in zip(maps, found, strict=True)]
    own, loss_rule = one.rule, one.rule.finer_rule()
    for rules in ((own, own), (loss_rule, own), (loss_rule, loss_rule)):
        one.loss_rule, other.loss_rule = rules
        rows = CrossingEquations(one, other, 0.5).replicate_residuals(np.concatenate([*states, at]))
        phis = [
            branch.free_entropies_by_replicate(x, at, branch.loss_rule) for branch, x in zip(maps, states, strict=True)
        ]
        expected = [
            *(branch.residuals_by_replicate(x, at) for branch, x in zip(maps, states, strict=True)),
            (phis[0] - phis[1]) / 0.5,
        ]
        np.testing.assert_array_equal(rows[0], np.concatenate([np.ravel(part) for part in expected]))
    assert abs(rows[0, -1]) > 0.1


@pytest.mark.parametrize(
    "name", ["training_loss", "test_error", "q", "theta_1", "replicon", "bistable_fraction", "alpha"]
)
def test_a_condition_on_a_line_averages_only_for_what_it_asks(name: str) -> None:
    solution = sf.solve(sf.problem("logistic_regression", alpha=2.0), accuracy=1e-3)
    condition = parse_condition(f"{name} = 0.1", solution.problem)
    at = solution.problem, solution.overlaps, solution.rule
    spared, whole = (
        condition(solution_without_error_bars(*at, needs_channel_averages))[0]
        for needs_channel_averages in (condition.needs_channel_averages, True)
    )
    np.testing.assert_array_equal(spared, whole)
    averaged = {"training_loss", "free_entropy", "replicon", "bistable_fraction"}
    assert condition.needs_channel_averages == (name in averaged)


@pytest.mark.slow
def test_the_semantic_branch_ends_where_the_uninformed_one_turns_unstable_toward_theta() -> None:
    """Two equations for one number: the end of a branch, and an eigenvalue 1 of another (omega = 0.3)."""
    problem = sf.problem("dot_product_attention")
    end = spinodal(problem, on="semantic", bracket=(0.65, 0.85))
    passage = instability(problem, on="uninformed", bracket=(0.6, 0.8))
    assert end.success and passage.success
    assert end.evidence["type"] == "pitchfork"
    assert passage.evidence["toward"] == "toward theta, tokens alike"
    assert end.evidence["branching"] > 0 and passage.evidence["branching"] > 0  # semantic states lie above
    assert abs(end.value - passage.value) <= end.error + passage.error
    # docs/theory.md section 14. On a Sobol set of 2^15 points it ends between 0.6 and 0.7, theta 0.0139 at 0.7.
    assert abs(end.value - 0.7193) < 1e-3


def test_a_step_onto_the_branch_that_a_walk_merges_with_is_where_it_ends(attention: Solved) -> None:
    """Newton's method across a pitchfork may lead onto the trunk, and the walk does not turn back."""
    solution = attention(2.0, "semantic", 1e-4)
    walk = BranchContinuation(solution.problem, solution, "alpha", (2.0, 1.85), 1e-3, 0)
    first = next(walk.continuation_points(1))

    def place_last_point_at(theta: float) -> None:
        overlaps = replace(solution.overlaps, theta=theta * solution.overlaps.theta)
        z = np.append(walk.branch.coordinates_of_state(overlaps.pack()), 1.99)
        walk.points_so_far = [first, replace(first, point=replace(first.point, z=z), value=1.99)]

    place_last_point_at(0.5)
    assert not walk.detect_events()
    place_last_point_at(1e-9)
    (passage,) = walk.detect_events()
    assert passage.kind == "spinodal" and passage.merges and sorted(passage.between) == [1.99, 2.0]
    (moved,) = np.abs(passage.equations.sector)
    theta = moved[packed_overlap_slices(walk.branch.sizes)["theta"]]
    assert np.all(theta > 0.5) and np.sum(moved) == pytest.approx(np.sum(theta))


@pytest.mark.slow
def test_a_walk_that_slides_over_the_end_of_its_branch_finds_it(agree: Callable[..., None]) -> None:
    """Where semantic and positional end in one point of (alpha, sigma), semantic is soft, and a walk passes its end."""
    problem = sf.problem("dot_product_attention", omega=0.0, sigma=0.53)
    end = spinodal(problem, on="semantic", bracket=(0.47, 0.58))
    points_so_far = instability(problem, on="uninformed", bracket=(0.47, 0.58))
    assert end.evidence["type"] == "pitchfork" and points_so_far.evidence["toward"].startswith("toward theta")
    agree((end.value, end.error), (points_so_far.value, points_so_far.error), "error bars")


@pytest.mark.slow
def test_a_fold_is_where_alpha_is_least_along_the_branch_to_twelve_digits() -> None:
    """Tukey's loss, narrow next to the errors of a student that knows little: V held, alpha is least at the fold."""
    problem = sf.problem("tukey_regression", Delta=0.0025, lambda_=0.1, width=0.5)
    end = spinodal(problem, on="semantic", bracket=(1.0, 3.0), accuracy=1e-12)
    assert end.success and end.evidence["type"] == "fold"
    assert end.error < 1e-12
    branch = BranchMap.from_solution(end.solutions[0], ("alpha",), [2.0])
    equations, V = BranchEquations(branch), packed_overlap_slices(branch.sizes)["V"]
    z = np.append(branch.coordinates_of_state(end.solutions[0].overlaps.pack()), end.value)
    held = np.append(branch.basis[:, V].ravel(), 0.0)
    steps = 2e-3 * np.arange(-3, 4)
    places = [
        correct_predicted_point(equations, z, equations.residual_jacobian(z), held, 3e-14, step, most=20)
        for step in steps
    ]
    alpha = np.polynomial.Polynomial.fit(steps, [point[0][-1] - end.value for point in places if point], 6)
    assert np.all(alpha(steps[:3]) > 1e-8) and np.all(alpha(steps[4:]) > 1e-8)
    least = min(alpha(np.linspace(-1e-4, 1e-4, 2001)))
    assert abs(least) < end.error + 1e-13


@pytest.mark.slow
def test_semantic_phase_retrieval_ends_in_a_fold(agree: Callable[..., None]) -> None:
    """Where replica symmetry is lost already; the law of its fields is too narrow for slopes on the coarsest grid."""
    problem = sf.problem("phase_retrieval")
    end = spinodal(problem, on="semantic", bracket=(1.3, 1.5))
    assert end.success
    assert (end.evidence["type"], end.evidence["toward"]) == ("fold", "toward V")
    finer = spinodal(problem, on="semantic", bracket=(1.3, 1.5), accuracy=1e-8)
    agree((end.value, end.error), (finer.value, finer.error), "error bars")
    assert finer.error < 1e-9 and end.error < 1e-6
    # A rule that treats jumps in another way finds the same overlaps there.
    (fold,) = end.solutions
    by_lines = SaddlePointMap(fold.problem, SplitLinesRule(140), fold.symmetry)(
        fold.overlaps.pack(), fold.overlaps.sizes
    )
    assert np.max(np.abs(by_lines - fold.overlaps.pack()) / fold.overlaps.block_scales) < 1e-5
    assert "RS unstable" in end.rs_verdict


@pytest.mark.slow
def test_branches_and_lines_are_followed_on_sobol_sets(agree: Callable[..., None]) -> None:
    """Four student fields: attention with a student of rank 2."""
    problem = sf.problem("dot_product_attention", student_rank=2)
    found = follow(problem, start="semantic", between=(2.0, 1.93), accuracy=1e-2, event_accuracy=1e-2)
    assert found.ending == "alpha = 1.93 reached"
    assert len(found.solutions) >= 3 and all(s.success and s.branch == "semantic" for s in found.solutions)
    direct = sf.solve(problem.with_(alpha=1.93), found.solutions[0], accuracy=1e-2, seed=1)  # other sets
    agree(
        (found.solutions[-1].overlaps.pack(), found.solutions[-1].errors),
        (direct.overlaps.pack(), direct.errors),
        "three standard errors",
        rounding=1e-6 * direct.overlaps.block_scales,
    )
    bracket = (1.7, 2.0)
    line = critical_line(
        problem,
        "where",
        over=("omega", 0.3, 0.303),
        on="semantic",
        condition="theta = 0.12",
        bracket=bracket,
        accuracy=0.02,
    )
    assert line.ending == "0.303 reached" and np.all(line.errors <= 0.02)
    end = sf.where(problem.with_(omega=0.303), "theta = 0.12", on="semantic", bracket=bracket, accuracy=0.02)
    assert abs(line.values[-1] - end.value) <= line.errors[-1] + end.error


@pytest.mark.slow
def test_a_line_of_conditions_agrees_with_one_located_at_its_end() -> None:
    """alpha at which ridge regression has a given test error, along the variance of the noise."""
    problem = sf.problem("ridge_regression", **{"lambda": 0.5})
    condition, bracket = "test_error = 0.6", (0.5, 4.0)
    line = critical_line(
        problem, "where", over=("Delta", 0.25, 0.35), on="semantic", condition=condition, bracket=bracket, accuracy=1e-5
    )
    assert line.over_values[0] == 0.25 and line.over_values[-1] == pytest.approx(0.35, abs=1e-12)
    assert line.ending == "0.35 reached" and not line.special
    assert np.all(np.diff(line.values) > 0)  # more noise, more samples
    alone = sf.where(problem.with_(Delta=0.35), condition, on="semantic", bracket=bracket, accuracy=1e-6)
    value, error = line.at(0.35)
    assert abs(value - alone.value) <= error + alone.error + 1e-6
    with pytest.raises(InputError, match=r"covers Delta = 0\.25 to 0\.35"):
        line.at(0.5)


@pytest.mark.slow
def test_a_line_of_crossings_agrees_with_crossings_located_one_by_one() -> None:
    problem = sf.problem("dot_product_attention")
    line = critical_line(
        problem,
        "crossing",
        over=("omega", 0.3, 0.4),
        between=("semantic", "positional"),
        bracket=(1.2, 1.3),
        accuracy=1e-3,
    )
    assert line.over_values[0] == 0.3 and line.over_values[-1] == pytest.approx(0.4, abs=1e-12)
    alone = sf.crossing(problem.with_(omega=0.4), between=("semantic", "positional"), bracket=(1.6, 1.9), accuracy=1e-3)
    value, error = line.at(0.4)
    assert abs(value - alone.value) <= error + alone.error
    assert abs(line.at(0.3)[0] - 1.2515) < 1e-3


def test_deflation_of_a_convex_problem_finds_nothing() -> None:
    problem = sf.problem("ridge_regression", alpha=2.0)
    assert not find_solutions_by_deflation(problem, [sf.solve(problem)], attempts=3)


@pytest.mark.slow
def test_deflation_finds_what_the_starts_were_asked_to_leave_out(attention: Solved) -> None:
    """From the semantic solution alone, of semantic, positional and uninformed start, at least one other is found."""
    known = attention(2.0, "semantic", 1e-4)
    new = find_solutions_by_deflation(known.problem, [known], attempts=3, accuracy=1e-2)
    assert new
    for solution in new:
        assert solution.losses is not None
        assert not solutions_agree_up_to_symmetry(solution, known)
        assert solution.residual < 1e-6


def test_a_followed_branch_as_a_table_and_a_figure(tmp_path: Path) -> None:
    problem = sf.problem("ridge_regression", alpha=2.0)
    found = follow(problem, start="semantic", over="alpha", between=(2.0, 2.3), accuracy=1e-3)
    path = tmp_path / "branch.nc"
    found.save(path)
    dataset = load_netcdf_dataset(path)
    np.testing.assert_array_equal(dataset["alpha"].values, found.values)
    np.testing.assert_array_equal(dataset["arclength"].values, found.arclength)
    assert dataset.attrs["events"] == "[]"
    assert np.all(dataset["replicon"].values < 1)
    plot_branch(dataset, tmp_path / "branch.png")
    assert (tmp_path / "branch.png").stat().st_size > 10_000


def test_an_invalid_continuation_is_refused_with_the_reason() -> None:
    problem = sf.problem("ridge_regression")
    with pytest.raises(InputError, match="an interval is expected"):
        follow(problem, over="alpha", between=(1.0, 1.0))
    with pytest.raises(InputError, match="not a scalar parameter"):
        follow(problem, over="beta", between=(1.0, 2.0))
    with pytest.raises(InputError, match="out of range"):
        follow(problem, over="alpha", between=(1.0, -2.0))
    with pytest.raises(NotConvergedError, match=r"no spinodal on the informed branch for alpha in \[1, 1.5\]"):
        spinodal(problem, on="semantic", bracket=(1.0, 1.5))
    with pytest.raises(InputError, match="known are crossing, spinodal"):
        critical_line(problem, "onset", over=("lambda_", 0.1, 1.0))
    with pytest.raises(InputError, match="follow it in another one"):
        critical_line(problem, "spinodal", over=("alpha", 0.1, 1.0), on="semantic")


@pytest.mark.slow
def test_an_event_is_located_again_from_where_a_problem_nearby_has_it(agree: Callable[..., None]) -> None:
    problem, there = (sf.problem("tukey_regression", Delta=0.0025, lambda_=0.1, width=width) for width in (0.5, 0.51))
    event = spinodal(problem, on="semantic", bracket=(1.0, 3.0), accuracy=1e-6)
    again = relocate_event_for_nearby_problem(event, there, 1e-6, 1e-3)
    known = spinodal(there, on="semantic", bracket=(1.0, 3.0), accuracy=1e-6)
    assert again.status == "converged" and abs(again.value - event.value) > 1e-3
    agree((again.value, again.error), (known.value, known.error), "error bars")
    assert again.evidence["type"] == known.evidence["type"] == "fold"
    other = replace(event, evidence={**event.evidence, "toward": "toward theta"})
    with pytest.raises(NotConvergedError, match="is another event"):
        relocate_event_for_nearby_problem(other, there, 1e-6, 1e-3)
