"""Verdicts are decided with the error bar of what they hang on, and come before numbers that they call in question."""

import numpy as np
import pytest
import sympy as sp
import xarray

import saddleforge as sf
from saddleforge.extensions.breaking.solution import BreakingStability
from saddleforge.report.ansatz import format_seconds_in_words, is_unstable_beyond_error_bars
from saddleforge.report.branches import curve_table
from saddleforge.report.plots import drawing
from saddleforge.stability.assess import Stability
from saddleforge.stability.displacement import Displacements
from saddleforge.thresholds.threshold import Threshold


def made(**changes):
    """A stability of chosen numbers."""
    plain = {
        "replicon": 0.5,
        "replicon_error": 1e-3,
        "bistable_fraction": 0.0,
        "jump_weight": 0.0,
        "jump_weight_error": 0.0,
    }
    return Stability(**{"eigenvalues": np.array([0.5, -2.0], complex), **plain, **changes})


@pytest.mark.parametrize("how", [{"integrator": "sobol"}, {"integrator": "gauss-hermite", "points": 6}])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_error_bar_of_the_replicon_holds_that_of_the_overlaps(how, seed):
    """alpha V^2 / (1 + V)^2: the slope of the field has no average of its own that could be off."""
    problem = sf.problem("ridge_regression", alpha=1.3)
    found = sf.solve(problem, accuracy=1e-2, seed=seed, **how)
    V = sf.solve(problem, accuracy=1e-12).overlaps.V.item()
    off = abs(found.stability.replicon - 1.3 * V**2 / (1 + V) ** 2)
    assert off <= found.stability.replicon_error
    # No more than what the error bar of V, one-sided, is worth.
    slope = 2 * 1.3 * V / (1 + V) ** 3
    assert found.stability.replicon_error < 10 * slope * found.error_bars.V.item() + 1e-12


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"integrator": "sobol", "accuracy": 1e-2},
        {"integrator": "gauss-hermite", "points": 8},
        {"integrator": "pieces", "points": 6, "accuracy": 1e-3},
    ],
)
def test_the_error_bar_of_an_eigenvalue_near_1_holds_it(how):
    """Least squares at alpha = 1 and hardly a ridge: two eigenvalues that are the replicon, with one eigenvector."""
    penalty = 1e-3
    found = sf.solve(sf.problem("ridge_regression", alpha=1.0, lambda_=penalty), **how)
    V = (np.sqrt(penalty**2 + 4 * penalty) - penalty) / (2 * penalty)
    exact = (V / (1 + V)) ** 2
    off, error = abs(found.stability.eigenvalues[0].real - exact), found.stability.longitudinal_error
    assert off <= error < 1e-2 and found.stability.longitudinal == "stable"
    assert abs(found.stability.replicon - exact) <= found.stability.replicon_error


@pytest.mark.parametrize(
    ("changes", "replica_symmetry", "longitudinal"),
    [
        ({}, "stable", "stable"),
        ({"replicon": 1 + 3e-13, "replicon_error": 4e-12}, "marginal", "stable"),
        ({"replicon": 1 - 3e-13, "replicon_error": 4e-12}, "marginal", "stable"),
        ({"replicon": 1.0, "replicon_error": 0.0}, "marginal", "stable"),
        ({"replicon": 1.01}, "unstable", "stable"),
        ({"replicon": np.nan}, "undecided", "stable"),
        ({"replicon_error": np.inf}, "undecided", "stable"),
        ({"eigenvalues": np.array([1 + 1e-9, 0]), "longitudinal_error": 1e-8}, "stable", "marginal"),
        ({"eigenvalues": np.array([1 - 1e-9, 0]), "longitudinal_error": 1e-8}, "stable", "marginal"),
        ({"eigenvalues": np.array([1.4, 0])}, "stable", "unstable"),
    ],
)
def test_a_verdict_is_marginal_within_the_error_bar_of_1(changes, replica_symmetry, longitudinal):
    stability = made(**changes)
    assert (stability.replica_symmetry, stability.longitudinal) == (replica_symmetry, longitudinal)
    shown = stability.to_json()
    assert (shown["replica_symmetry"], shown["longitudinal"]["verdict"]) == (replica_symmetry, longitudinal)
    assert ("RS marginal" in stability.verdict) == (replica_symmetry == "marginal")
    assert ("longitudinally marginal" in stability.verdict) == (longitudinal == "marginal")
    assert "lost" not in stability.verdict or replica_symmetry == "unstable"


def test_levels_of_breaking_are_marginal_within_their_errors():
    assert "type I marginal (1.00(2), 1 within its error)" in BreakingStability(1.001, 0.02, 0.5, 1e-3, 0.0).verdict
    assert "type I unstable" in BreakingStability(1.1, 0.02, 0.5, 1e-3, 0.0).verdict


def test_replicates_move_a_number_as_their_spread_does():
    """Of a linear function the changes are those of every replicate about their mean."""
    rng = np.random.default_rng(1)
    overlaps = sf.solve(sf.problem("ridge_regression", alpha=1.3)).overlaps
    shifts = rng.standard_normal((16, 2)) @ rng.standard_normal((2, 4)) * 1e-4
    displaced = Displacements.from_error_bars(overlaps, np.zeros(4), shifts, None, replicated=True)
    slope = rng.standard_normal(4)
    changes = displaced.changes_at_displaced_overlaps(lambda u: float(slope @ u), float(slope @ overlaps.pack()))
    assert changes == pytest.approx((shifts - shifts.mean(axis=0)) @ slope, rel=1e-6, abs=1e-10)


def table(verdicts):
    """A table of a branch with the verdicts of its points."""
    alpha = np.linspace(1.0, 2.0, len(verdicts))
    numbers = {"replicon": np.array([{"stable": 0.5, "marginal": 1.0, "unstable": 1.2}[v] for v in verdicts])}
    numbers |= {"replicon_error": np.full(len(alpha), 1e-6), "longitudinal_eigenvalue": np.full(len(alpha), 0.4)}
    words = {"replica_symmetry": verdicts, "longitudinal": ["stable"] * len(alpha)}
    columns = {name: ("alpha", np.array(values, object if name in words else float)) for name, values in
               {**numbers, **words}.items()}  # fmt: skip
    return xarray.Dataset(columns, coords={"alpha": alpha}, attrs={"parameter": "alpha"})


def test_marginal_points_are_drawn_in_a_style_of_their_own():
    dataset = table(["stable", "stable", "marginal", "unstable"])
    assert drawing.stability_verdicts_of_points(dataset).tolist() == ["stable", "stable", "marginal", "unstable"]
    styles = [
        handle.get_linestyle()
        for handle in drawing.legend_entries_of_stability(drawing.stability_verdicts_of_points(dataset))
    ]
    assert styles == ["-", "-.", "--"]
    assert drawing.legend_entries_of_stability(drawing.stability_verdicts_of_points(table(["stable"] * 3))) == []


def test_rounding_decides_nothing_in_the_table_of_an_earlier_release():
    """Its error bars left out those of the overlaps."""
    dataset = table(["marginal", "marginal"]).drop_vars(["replica_symmetry", "longitudinal"])
    dataset["replicon"].values[:] = 1 - 1e-13, 1 + 3e-13
    dataset["replicon_error"].values[:] = 0.0
    assert drawing.stability_verdicts_of_points(dataset).tolist() == ["marginal", "marginal"]


@pytest.fixture(scope="module")
def curve():
    """Of a perceptron that counts errors, whose replica symmetry is unstable by far; the first point is judged."""
    found = sf.curve(sf.problem("perceptron"), alpha=(2, 2.5, 2))
    assert found.solutions[0].stability.replica_symmetry == "unstable"
    return found


@pytest.fixture(scope="module")
def broken(curve):
    """The judged point."""
    return curve.solutions[0]


def test_an_unstable_verdict_stands_before_the_numbers(broken):
    lines = repr(broken).splitlines()
    assert broken.stability.verdict in lines[1]
    assert "replica symmetric" in lines[2] and "--rsb 1" in lines[2] and "about" in lines[2]
    numbers = next(n for n, line in enumerate(lines) if line.startswith("  q "))
    assert lines[numbers - 1].strip() == "replica symmetric:"
    assert repr(broken).count(broken.stability.verdict) == 1


def test_a_stable_verdict_stands_at_the_foot():
    found = sf.solve(sf.problem("ridge_regression", alpha=1.3))
    lines = repr(found).splitlines()
    assert found.stability.verdict in lines[-2] and "replica symmetric" not in repr(found)
    assert not is_unstable_beyond_error_bars(found)


def test_tables_of_branches_and_thresholds_put_an_unstable_verdict_first(curve, broken):
    _, warning, columns, first, second = curve_table(curve).splitlines()
    assert "replica symmetric" in warning and "--rsb 1" in warning and "1 of 2 points" in warning
    assert columns.split()[:2] == ["alpha", "verdict"]
    assert "RS unstable, 2" in first and "% lost" in first
    assert second.split()[:2] == ["2.5", "-"]  # nothing is judged for a table alone
    found = Threshold("where q = 1", "alpha", 2.0, 1e-3, "estimated", "converged", ("semantic",), broken.problem,
                      (broken,), {"error_root": 1e-3})  # fmt: skip
    verdict, warning, value, *_ = found.table().splitlines()
    assert "RS unstable" in verdict and "replica symmetric" in warning and value.startswith("where q = 1 of semantic")
    assert found.table().count("RS unstable") == 1


def test_a_condition_with_equal_sides_has_no_threshold():
    problem = sf.problem("ridge_regression")
    with pytest.raises(sf.NotConvergedError, match="both sides are equal within their errors"):
        sf.where(problem, "V = V", on="semantic", bracket=(1, 2))


def test_times_are_said_to_an_order_of_magnitude():
    assert [format_seconds_in_words(s) for s in (0.2, 7.4, 23, 99, 340)] == [
        "about a second", "about 7 s", "about 20 s", "about 100 s", "about 6 min",
    ]  # fmt: skip


@sf.penalty
def l1(w, *, strength=sf.Parameter(0.2, 0, open_low=True)):  # noqa: B008
    return strength * sp.Abs(w[0])


@sf.model(regulariser=l1, starts={"semantic": sf.Start(teacher="3/5")})
def sparse_hinge(X, Y):
    return sp.Max(0, 1 - sp.sign(Y[0, 0]) * X[0, 0])


@sf.model(regulariser=sf.Sphere(), starts={"uninformed": sf.Start(noise=1, susceptibility="3/10")})
def lowest_eigenvalue(X, Y):
    return X[0, 0] ** 2 / 2


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"integrator": "pieces", "points": 8}, {"integrator": "pieces", "points": 6}])
@pytest.mark.parametrize("alpha", [1.5, 2.0, 10.0])
@pytest.mark.parametrize(("model", "start"), [(sparse_hinge, "semantic"), (lowest_eigenvalue, "uninformed")])
def test_linear_programmes_and_edges_of_spectra_are_marginal(model, start, alpha, how):
    """The replicon is 1: as many samples at a corner as weights that are free; the edge of a spectrum."""
    found = sf.solve(sf.problem(model, alpha=alpha), start, **{"accuracy": 1e-4, **how})
    stability = found.stability
    assert abs(stability.replicon - 1) <= stability.replicon_error < 1e-2
    assert stability.replica_symmetry == "marginal" and stability.verdict.startswith("RS marginal")
    assert stability.self_overlap_loss == stability.self_overlap_loss_error == 0


@pytest.mark.slow
def test_a_replicon_of_1_all_along_has_no_threshold():
    with pytest.raises(sf.NotConvergedError, match="equal within their errors"):
        sf.almeida_thouless(sf.problem(sparse_hinge), on="semantic", bracket=(1.5, 3))
