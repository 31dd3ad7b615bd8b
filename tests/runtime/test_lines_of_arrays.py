"""Arrays that one number moves: along a line, by a factor, by an entry."""

import json
import pickle

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.base.errors import InputError
from saddleforge.extensions.sweeping.plan import SimulationSettings, make_sweep_plan

EVEN, DIAGONAL = [[0.5, 0.5], [0.5, 0.5]], [[0.6, 0.4], [0.4, 0.6]]


def attention(**values):
    return sf.problem("dot_product_attention", alpha=2.0, **values)


@pytest.fixture(scope="module")
def line():
    return attention(A=sf.Between(EVEN, DIAGONAL))


@pytest.fixture(scope="module")
def curve():
    return sf.curve(attention(), start="semantic", A=(EVEN, DIAGONAL, 3), accuracy=1e-5)


def identity_along(problem):
    """Of a sweep along it."""
    chosen = {"rows": None, "starts": None, "ask": "solve", "accuracy": 1e-3, "both_ways": False, "seed": 0}
    plan = make_sweep_plan(problem, grid={"path_A": (0, 1, 3)}, simulated=SimulationSettings(), given={}, **chosen)
    return json.dumps(plan.settings_that_identify_sweep, sort_keys=True)


def test_ends_are_met_exactly_and_the_line_goes_on(line):
    for t, there in ((0, EVEN), (1, DIAGONAL), (2, [[0.7, 0.3], [0.3, 0.7]])):
        assert np.allclose(line.with_(path_A=t).parameters["A"], there, rtol=1e-15)
    for t, there in ((0, EVEN), (1, DIAGONAL)):
        assert line.with_(path_A=t).parameters["A"].tolist() == there
    assert (
        line.value_of_parameter("path_A") == 0
        and line.with_(path_A=0.25, omega=0.2).value_of_parameter("path_A") == 0.25
    )
    assert pickle.loads(pickle.dumps(line)).with_(path_A=1).value_of_parameter("path_A") == 1


def test_points_of_a_curve_are_solutions_at_these_arrays(curve):
    """And it goes from one end to the other: the last has the default array."""
    assert curve.parameter == "path_A" and curve.values.tolist() == [0, 0.5, 1]
    between = (np.array(EVEN) + DIAGONAL) / 2
    for solution, array in ((curve.solutions[1], between), (curve.solutions[2], None)):
        alone = sf.solve(attention(**({} if array is None else {"A": array})), "semantic", accuracy=1e-7)
        assert np.all(np.abs(solution.overlaps.pack() - alone.overlaps.pack()) <= solution.errors + alone.errors)


@pytest.mark.slow
def test_a_slope_along_a_line_is_the_sum_of_those_along_the_entries(line):
    """Of the four entries two and two are alike, as the tokens are."""
    found = sf.sensitivities(sf.solve(line.with_(path_A=0.5), "semantic", accuracy=1e-5), "path_A", "A[1,1]", "A[1,2]")
    ways = 2 * (np.array(DIAGONAL) - EVEN)
    entries = [("A[1,1]", ways[0, 0]), ("A[1,2]", ways[0, 1])]
    for what in ("training_loss", "test_error", "theta"):
        slope, width = found["path_A"].of(what)
        parts = np.array([np.multiply(way, found[name].of(what)) for name, way in entries])
        total = float(parts[:, 0].sum())
        assert abs(slope - total) <= width + np.abs(parts[:, 1]).sum() < 1e-3 * abs(total)


def test_a_factor_is_one_of_the_array_as_it_was_given():
    problem = attention()
    half = problem.with_(scale_A=0.5)
    assert np.allclose(half.parameters["A"], np.array(DIAGONAL) / 2, rtol=1e-15)
    assert half.with_(scale_A=1).parameters["A"].tolist() == DIAGONAL
    assert problem.value_of_parameter("scale_A") == 1 and half.value_of_parameter("scale_A") == 0.5
    assert attention(scale_A=0.5).parameters["A"].tolist() == half.parameters["A"].tolist()
    assert half.with_(A=EVEN).value_of_parameter("scale_A") == 1  # of another array


def test_outputs_name_the_line_of_arrays_and_the_position_on_it(line, curve):
    stored = json.loads(curve.to_xarray(stability=False).attrs["parameters"])
    assert stored["A"] == {"from": EVEN, "to": DIAGONAL} and "path_A" not in stored
    assert curve.solutions[1].to_json()["parameters"]["path_A"] == 0.5
    assert "path_A = 0.5" in curve.solutions[1].table()
    others = sf.Between(EVEN, [[1, 0], [0, 1]])
    one, again, other = (identity_along(problem) for problem in (line, line, attention(A=others)))
    assert one == again != other


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"A": sf.Between([1, 2], [3, 4])}, "A has shape"),
        ({"path_A": 0.5}, "unknown parameter 'path_A'"),
        ({"A": EVEN, "scale_A": 2}, "given twice, once through scale_A"),
        ({"A[1,2]": 0.1, "scale_A": 2}, "given twice, once through scale_A"),
        ({"scale_A": np.inf}, "scale_A = inf is out of range"),
        ({"scale_omega": 2}, "unknown parameter 'scale_omega'"),
    ],
)
def test_an_invalid_line_of_arrays_is_refused(values, words):
    with pytest.raises(InputError, match=words):
        attention().with_(**values)


def test_ends_of_two_shapes_or_of_no_numbers_are_refused():
    with pytest.raises(InputError, match=r"have shapes \(2,\) and \(1,\)"):
        sf.Between([1, 2], [1])
    with pytest.raises(InputError, match="an array of numbers is expected"):
        sf.Between(["a"], [1])
