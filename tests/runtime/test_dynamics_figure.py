"""What `reproduce --figure dynamics` keeps, draws and says."""

import json

import pytest

import saddleforge as sf
from saddleforge.extensions.descent.averages import gradient_average_rules
from saddleforge.extensions.descent.flow import EquationsOfMotion
from saddleforge.reproduce import dynamics
from saddleforge.reproduce.jobs import reproduce
from saddleforge.reproduce.pages.dynamics import count_runs_agreeing_with_theory, deviations_from_theory


@pytest.mark.parametrize(
    ("omega", "theta", "m", "reached"),
    # Nothing moves from no overlap, for as long as it takes others, next to the boundary, to lose one of two.
    [(0.0, 0.0, 0.0, "uninformed"), (0.0, 0.0, 0.3, "positional"), (0.3, 0.015, 0.35, "semantic")],
)
def test_starts_are_followed_to_what_has_one_overlap_or_none(omega, theta, m, reached):
    problem = sf.problem("dot_product_attention", omega=omega, **{"lambda": dynamics.RIDGE_PER_SAMPLE})
    assert (
        dynamics.final_state_of_descent(EquationsOfMotion(problem, gradient_average_rules(problem)[1]), 1.0, theta, m)
        == reached
    )


@pytest.mark.slow
def test_descent_reaches_semantics_from_the_teacher_and_positions_from_the_encodings(tmp_path, monkeypatch):
    for name, value in (
        ("RATES", (1.0,)), ("OMEGAS", (0.45,)), ("END", 8.0), ("SIMULATED", 200),
        ("SEEDS", 4), ("EVERY", 2), ("DIMENSIONS", (100, 10_000)), ("DRAWS", 3),
    ):  # fmt: skip
        monkeypatch.setattr(dynamics, name, value)
    monkeypatch.setattr(dynamics.DynamicsRun, "starts_per_axis", 3)
    monkeypatch.setattr(dynamics.DynamicsRun, "boundary_bisections", 2)
    found = reproduce(tmp_path, ["dynamics"])
    assert found.complete
    (plane,) = found.results["basins"].values()
    assert plane["reached"][0][0] == "uninformed"  # no overlap grows from none
    assert plane["reached"][2][0] == "semantic" and plane["reached"][0][2] == "positional"
    # The same at finite d where something grows; from no overlap there chance decides.
    ends = {(theta, m): name for theta, m, name in plane["simulated"]}
    assert ends[plane["theta"][2], 0.0] == "semantic" and ends[0.0, plane["m"][2]] == "positional"
    assert count_runs_agreeing_with_theory(plane)[0] >= 2
    assert abs(deviations_from_theory(found.results["trajectory"])).max() < 6
    assert {"figures/dynamics.png", "tables/dynamics.csv", "dynamics.md", "dynamics.html"} <= {
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")
    }
    assert json.loads((tmp_path / "dynamics_results.json").read_text())["escape"]["information_exponent"] == 2
