"""Tables of curves: what they hold, their flat columns, and their way through a file."""

import json
from dataclasses import replace

import numpy as np
import pytest
import xarray

from saddleforge.base.errors import InputError
from saddleforge.branches.curve_results import Curve
from saddleforge.integration import Sobol
from saddleforge.problems.columns import table_column_name
from saddleforge.problems.overlaps import Overlaps
from saddleforge.problems.problem import problem
from saddleforge.problems.symbols import symbols_of_table_columns
from saddleforge.report.branches import curve_table
from saddleforge.report.frames import dataframe_of_curve, latex_tabular_of_curve
from saddleforge.report.solution import model_and_parameters_line, overlap_lines
from saddleforge.report.tables import curve_dataset, load_netcdf_dataset, save_dataset_as_netcdf
from saddleforge.saddle_point.iteration import Status
from saddleforge.solving.solution import Solution


def made_solution(at, scale):
    """A solution with recognisable numbers, of which nothing was computed."""
    contexts, s, t = at.contexts, at.student_rank, at.teacher_rank
    count = np.arange(1.0, contexts + 1)
    q = scale * count[:, None, None] * (np.eye(s) + 0.1)
    overlaps = Overlaps(q, 100 * q, np.zeros((contexts, s)), scale * count[:, None, None] * np.ones((contexts, s, t)))
    return Solution(
        problem=at,
        start="semantic",
        overlaps=overlaps,
        conjugates=None,
        status=Status.CONVERGED,
        residual=1e-10,
        iterations=5,
        rule=Sobol(),
        errors=np.full(len(overlaps.pack()), 1e-4 * scale),
        losses=None,
        training_loss_error=1e-6,
        observed={"test_error": (0.002 / scale, 1e-5)},
    )


def made_curve(ends=(None, None), **sizes):
    base = problem("dot_product_attention", alpha=1.0, **sizes)
    found = tuple(made_solution(base.with_(alpha=alpha), alpha) for alpha in (0.5, 1.0, 1.5))
    return Curve("alpha", "semantic", found, ends)


def test_the_dataset_is_labelled_by_the_parameter_and_the_axes_of_the_overlaps():
    dataset = curve_dataset(made_curve(student_rank=2), stability=False)
    assert dict(dataset.sizes) == {"alpha": 3, "token": 2, "cluster": 1, "column": 2, "column2": 2, "teacher": 1}
    assert dataset["q"].dims == ("alpha", "token", "cluster", "column", "column2")
    assert dataset["theta"].dims == ("alpha", "token", "cluster", "column", "teacher")
    at = dataset.sel(alpha=1.5, token=2, cluster=1)
    assert at["q"].sel(column=1, column2=1).item() == pytest.approx(1.5 * 2 * 1.1)
    assert at["V_error"].sel(column=2, column2=2).item() == pytest.approx(1.5e-4)
    assert at["status"].item() == "converged"
    assert at["branch"].item() == "semantic"
    assert np.isnan(dataset["replicon"]).all()


def test_the_attributes_say_what_was_computed_and_where_the_branch_ends():
    attributes = curve_dataset(made_curve(ends=((0.5, 0.4), None)), stability=False).attrs
    assert attributes["model"] == "dot_product_attention"
    assert attributes["branch"] == "semantic"
    parameters = json.loads(attributes["parameters"])
    assert parameters["omega"] == 0.3
    assert "alpha" not in parameters
    assert "ends between alpha = 0.4 and 0.5" in attributes["ends"]
    assert json.loads(attributes["end_below"]) == [0.5, 0.4]
    assert json.loads(attributes["end_above"]) == []


def test_a_dataset_comes_back_from_its_file_unchanged(tmp_path):
    dataset = curve_dataset(made_curve(), stability=False)
    path = tmp_path / "folder" / "curve.nc"
    save_dataset_as_netcdf(dataset, path)
    back = load_netcdf_dataset(path)
    xarray.testing.assert_identical(back, dataset)
    assert [p.name for p in path.parent.iterdir()] == ["curve.nc"]
    first = path.read_bytes()
    save_dataset_as_netcdf(back, path)
    assert path.read_bytes() == first


def test_an_empty_curve_is_a_table_without_rows(tmp_path):
    save_dataset_as_netcdf(curve_dataset(Curve("alpha", "semantic", (), (None, None))), tmp_path / "empty.nc")
    assert load_netcdf_dataset(tmp_path / "empty.nc").sizes["alpha"] == 0


def test_the_frame_has_one_column_for_every_entry_of_an_overlap():
    frame = dataframe_of_curve(made_curve(), stability=False)
    assert list(frame.columns[:5]) == ["alpha", "q_1", "q_2", "V_1", "V_2"]
    assert {"m_1", "theta_2", "q_1_error", "test_error", "test_error_error", "status", "verdict"} <= set(frame.columns)
    assert frame["theta_2"].tolist() == [1.0, 2.0, 3.0]
    several = dataframe_of_curve(made_curve(student_rank=2), stability=False)
    assert {"q_1_11", "q_1_12", "q_2_22", "m_2_2", "theta_1_21", "V_1_12_error"} <= set(several.columns)


def test_columns_take_a_readers_own_symbols():
    """Parameters before symbols of the theory; what only a derivation shows passes."""
    made = made_curve(student_rank=2)
    frame = dataframe_of_curve(made, False, {"theta": "T", "alpha": r"\delta", "omega": "a", "rho_star": "k"})
    assert {"δ", "T_1_21", "T_2_11_error", "q_1_11"} <= set(frame.columns)
    assert not any(str(name).startswith(("theta", "alpha")) for name in frame.columns)
    assert frame["T_2_11"].tolist() == dataframe_of_curve(made, stability=False)["theta_2_11"].tolist()
    with pytest.raises(InputError, match="m would stand for theta and for m; rename m, too"):
        dataframe_of_curve(made, False, {"theta": "m"})
    with pytest.raises(InputError, match=r"unknown symbol 'thta' of a table .*; known are q, V, m, theta, alpha, "):
        dataframe_of_curve(made, False, {"thta": "T"})
    with pytest.raises(InputError, match="a symbol of --rename or names= is the name of another column"):
        dataframe_of_curve(made, False, {"alpha": "status"})


def test_a_terminals_table_takes_a_readers_own_symbols():
    made = made_curve()
    lines = curve_table(made, {"theta": "T", "m": r"\mu", "alpha": "c"}).splitlines()
    assert lines[1].split()[:5] == ["c", "q", "V", "μ", "T"]
    assert lines[-1].startswith("q, V, μ, T are those of token 1")
    shown = overlap_lines(
        made.solutions[0].problem,
        made.solutions[0].overlaps,
        made.solutions[0].error_bars,
        symbols_of_table_columns(made.solutions[0].problem, {"theta": "T"}),
    )
    assert "   T 0.500" in shown[0] and "theta" not in shown[0]
    assert "a = 0.3" in model_and_parameters_line(
        made.solutions[0].problem, symbols_of_table_columns(made.solutions[0].problem, {"omega": "a"})
    )


def test_a_curve_is_formatted_as_a_latex_table():
    table = latex_tabular_of_curve(made_curve(), {"theta": "M_0", "omega": "a"})
    lines = table.splitlines()
    assert lines[0] == r"\begin{tabular}{llllllllllll}" and lines[-1] == r"\end{tabular}"
    assert lines[2].startswith(r"$\alpha$ & $q_{1}$ & $q_{2}$ & $V_{1}$") and "${M_0}_{2}$" in lines[2]
    assert lines[2].endswith(r"$e_{\mathrm{t}}$ & $\varepsilon_{\mathrm{g}}$ & $R^2$ \\")
    assert [line.split(" & ")[0] for line in lines[4:-2]] == ["0.5", "1", "1.5"]
    assert all(line.count("&") == 11 for line in lines[4:-2])
    several = latex_tabular_of_curve(made_curve(student_rank=2))
    assert r"$\theta_{2,21}$" in several and "$q_{1,12}$" in several
    with pytest.raises(InputError, match="there is nothing to tabulate"):
        latex_tabular_of_curve(Curve("alpha", "semantic", (), (None, None)))


def with_parameter(name):
    """A curve in a parameter of any name."""
    base = made_curve(student_rank=2).solutions[0].problem
    at = [replace(base, parameters={**base.parameters, name: value}) for value in (0.5, 1.0)]
    return Curve(name, "semantic", tuple(made_solution(problem, 1.0) for problem in at), (None, None))


def test_a_parameter_never_has_the_name_of_a_result():
    made = made_curve(student_rank=2)
    for name in {*curve_dataset(made, False).variables, *dataframe_of_curve(made, False).columns} - {"alpha"}:
        assert table_column_name(name) == f"parameter_{name}"
    assert [table_column_name(name) for name in ("lambda_", "theta_max", "q", "best_lambda", "width")] == [
        "lambda", "theta_max", "parameter_q", "parameter_best_lambda", "width"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["theta", "q_1_11", "status", "training_loss", "token", "theta_1_11_error", "multiplier_1"]
)
def test_a_parameter_named_like_a_result_has_a_column_of_its_own(name):
    made = with_parameter(name)
    frame = dataframe_of_curve(made, stability=False)
    assert len(set(frame.columns)) == len(frame.columns)
    assert frame[f"parameter_{name}"].tolist() == [0.5, 1.0]
    assert frame["theta_1_11"].tolist() == [1.0, 1.0]
    assert curve_table(made).splitlines()[1].split()[:2] == [f"parameter_{name}", "q"]
    assert f"parameter_{name} = 0.5" in model_and_parameters_line(made.solutions[0].problem)
    heads = latex_tabular_of_curve(made).splitlines()[2].removesuffix(r" \\").split(" & ")
    assert len(set(heads)) == len(heads)


def test_parameter_and_overlap_of_one_name_are_renamed_apart():
    made = with_parameter("theta")
    names = {"theta": "a", "theory.theta": "T"}
    assert curve_table(made, names).splitlines()[1].split()[:5] == ["a", "q", "V", "m", "T"]


def test_a_file_that_is_no_table_is_refused_with_the_reason(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*missing\.nc"):
        load_netcdf_dataset(tmp_path / "missing.nc")
    (tmp_path / "words.nc").write_text("these are words")
    with pytest.raises(InputError, match=r"cannot read .*words\.nc.*netCDF"):
        load_netcdf_dataset(tmp_path / "words.nc")
    xarray.Dataset({"x": ("y", [1.0])}).to_netcdf(tmp_path / "other.nc", engine="h5netcdf")
    with pytest.raises(InputError, match="was not written by saddleforge"):
        load_netcdf_dataset(tmp_path / "other.nc")
