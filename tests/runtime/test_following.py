"""Branches of attention followed by arclength: where they end, what becomes unstable, what was not started from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import saddleforge as sf
from saddleforge import InputError, NotConvergedError, Solution
from saddleforge.critical import critical_line
from saddleforge.deflation import deflated, same_orbit
from saddleforge.equations import BranchMap, differences
from saddleforge.following import follow, instability, spinodal
from saddleforge.integration import ProxSpace, Rule
from saddleforge.plots import plot_dataset
from saddleforge.tables import load_dataset

Solved = Callable[[float, str, float], Solution]


def test_a_followed_branch_passes_through_the_solutions_that_solve_finds(attention: Solved) -> None:
    problem = sf.problem("dot_product_attention", alpha=2.0)
    found = follow(problem, start="semantic", over="alpha", between=(2.0, 1.85), accuracy=1e-3)
    assert found.values[0] == 2.0 and found.values[-1] == 1.85
    assert np.all(np.diff(found.values) < 0) and np.all(np.diff(found.arclength) > 0)
    assert not found.events
    for solution in found.solutions:
        assert solution.success and solution.branch == "semantic"
        assert solution.residual < 1e-8
    known = attention(2.0, "semantic", 1e-4)
    gap = np.abs(found.solutions[0].overlaps.pack() - known.overlaps.pack())
    assert np.all(gap <= 3 * (found.solutions[0].errors + known.errors))


def test_slopes_of_the_branch_equations_are_those_of_the_map(
    attention: Solved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Printed derivatives on a grid that integrates them to 1e-6; the coarse one, for tangents, is close."""
    solution = attention(2.0, "semantic", 1e-4)
    branch = BranchMap.of(solution, ("alpha", "omega"), [1.0, 1.0])
    x, at = branch.coordinates(solution.overlaps.pack()), np.array([2.0, 0.3])
    units = np.concatenate([branch.units(x), [1.0, 1.0]])
    by_coarse = branch.slopes(x, at) * units
    assert branch.slopes_by == {"printed derivatives"}

    def wide(rule: Rule) -> np.ndarray:
        def gap(z: np.ndarray) -> np.ndarray:
            return branch.gaps(z[:-2], z[-2:], rule)[0] * branch.units(z[:-2])

        columns = differences(gap, np.concatenate([x, at]), 3e-4 * units)
        return columns / units[:-2, None] * units

    np.testing.assert_allclose(wide(solution.rule), by_coarse, atol=2e-2)
    fine = ProxSpace(88, 44)
    monkeypatch.setattr(branch, "_slope_settings", lambda _: (fine, 1e-6))
    np.testing.assert_allclose(wide(fine), branch.slopes(x, at) * units, atol=1e-5)


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
    # theory.md section 9: it ends between 0.6 and 0.7 on a Sobol set of 2^15 points, theta 0.0139 at 0.7.
    assert abs(end.value - 0.7193) < 1e-3


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
    assert not deflated(problem, [sf.solve(problem)], attempts=3)


@pytest.mark.slow
def test_deflation_finds_what_the_starts_were_told_to_leave_out(attention: Solved) -> None:
    """From the semantic solution alone, of semantic, positional and uninformed start, at least one other is found."""
    known = attention(2.0, "semantic", 1e-4)
    new = deflated(known.problem, [known], attempts=3, accuracy=1e-2)
    assert new
    for solution in new:
        assert solution.losses is not None
        assert not same_orbit(solution, known)
        assert solution.residual < 1e-6


def test_a_followed_branch_as_a_table_and_a_figure(tmp_path: Path) -> None:
    problem = sf.problem("ridge_regression", alpha=2.0)
    found = follow(problem, start="semantic", over="alpha", between=(2.0, 2.3), accuracy=1e-3)
    path = tmp_path / "branch.nc"
    found.save(path)
    dataset = load_dataset(path)
    np.testing.assert_array_equal(dataset["alpha"].values, found.values)
    np.testing.assert_array_equal(dataset["arclength"].values, found.arclength)
    assert dataset.attrs["events"] == "[]"
    assert np.all(dataset["replicon"].values < 1)
    plot_dataset(dataset, tmp_path / "branch.png")
    assert (tmp_path / "branch.png").stat().st_size > 10_000


def test_what_cannot_be_followed_says_why() -> None:
    problem = sf.problem("ridge_regression")
    with pytest.raises(InputError, match="an interval is expected"):
        follow(problem, over="alpha", between=(1.0, 1.0))
    with pytest.raises(InputError, match="not a scalar parameter"):
        follow(problem, over="beta", between=(1.0, 2.0))
    with pytest.raises(InputError, match="out of range"):
        follow(problem, over="alpha", between=(1.0, -2.0))
    with pytest.raises(NotConvergedError, match=r"spinodal: none on the semantic branch for alpha in \[1, 1.5\]"):
        spinodal(problem, on="semantic", bracket=(1.0, 1.5))
    with pytest.raises(InputError, match="known are crossing, spinodal"):
        critical_line(problem, "onset", over=("lambda_", 0.1, 1.0))
    with pytest.raises(InputError, match="follow it in another one"):
        critical_line(problem, "spinodal", over=("alpha", 0.1, 1.0), on="semantic")
