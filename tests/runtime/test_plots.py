"""Figures: what their axes say, how stability is drawn, and that a PNG is written."""

import json

import matplotlib
import numpy as np
import pytest
import xarray

import saddleforge as sf
from saddleforge.base.errors import InputError
from saddleforge.problems.columns import QUANTITIES
from saddleforge.report import tables
from saddleforge.report.plots import branches as plots
from saddleforge.report.plots import drawing
from saddleforge.reproduce.pages import transition


def made_dataset(branch="semantic", count=6, jumps_below=1.2, unstable_below=0.0):
    """A table as `curve_dataset` makes it, from simple formulas: two tokens of opposite m."""
    alpha = np.linspace(0.5, 2.0, count)
    block = ("alpha", "token", "cluster", "column", "column2")
    q = (0.05 * alpha)[:, None, None, None, None] * np.ones((1, 2, 1, 1, 1))
    m = (0.2 * alpha if branch == "positional" else 0 * alpha)[:, None, None, None] * np.array([1, -1])[:, None, None]
    theta = (0 * alpha if branch == "positional" else 0.1 * alpha)[:, None, None, None, None] * np.ones((1, 2, 1, 1, 1))
    variables = {}
    for name, dims, values in (
        ("q", block, q),
        ("V", block, 100 * q),
        ("m", block[:4], m),
        ("theta", (*block[:4], "teacher"), theta),
    ):
        variables[name] = (dims, values)
        variables[f"{name}_error"] = (dims, np.full(values.shape, 1e-3))
    slope = 1.0 if branch == "semantic" else 1.5
    for name, values in (("training_loss", 0.001 + 0.002 * slope * (alpha - 1)), ("test_error", 0.004 / alpha)):
        variables[name] = ("alpha", values)
        variables[f"{name}_error"] = ("alpha", np.full(count, 1e-5))
    variables["baseline_error"] = ("alpha", np.full(count, 0.002))
    variables["bistable_fraction"] = ("alpha", np.where(alpha < jumps_below, 0.01, 0.0))
    variables["replicon"] = ("alpha", np.full(count, 0.3))
    variables["replicon_error"] = ("alpha", np.full(count, 0.01))
    variables["longitudinal_eigenvalue"] = ("alpha", np.where(alpha < unstable_below, 1.2, 0.4))
    dataset = xarray.Dataset(variables, coords={"alpha": alpha})
    dataset.attrs = {
        "model": "dot_product_attention",
        "parameter": "alpha",
        "parameters": json.dumps({"omega": 0.3}),
        "branch": branch,
        "end_below": "[0.5, 0.45]",
        "end_above": "[]",
    }
    return dataset


def is_png(path):
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def texts(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_curve_is_drawn_with_labelled_axes(tmp_path):
    figure = plots.plot_branch(made_dataset(), tmp_path / "curve.png")
    upper, loss, error = figure.axes
    assert upper.get_ylabel() == "overlap"
    assert error.get_xlabel() == "α  (samples per dimension)"
    assert (loss.get_ylabel(), error.get_ylabel()) == ("training loss\nper d", "test error")
    assert "Semantic branch" in upper.get_title(loc="left")
    assert {"|m|", "θ", "q", "branch ends", "proximal map jumps: RS not strict"} <= set(texts(upper))
    assert loss.get_legend() is None
    assert texts(error) == ["test error", "linear baseline"]
    assert is_png(tmp_path / "curve.png")


def test_the_same_figure_gives_the_same_bytes_and_leaves_nothing_behind(tmp_path):
    before = dict(matplotlib.rcParams)
    for name in ("one.png", "two.png"):
        plots.plot_branch(made_dataset(), tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert dict(matplotlib.rcParams) == before


def test_a_matplotlib_that_is_set_to_use_latex_draws_without_it_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))  # no LaTeX
    for name, usetex in (("plain.png", False), ("set.png", True)):
        with matplotlib.rc_context({"text.usetex": usetex}):
            plots.plot_branch(made_dataset(), tmp_path / name)
    assert "text.usetex" in capsys.readouterr().err
    assert (tmp_path / "plain.png").read_bytes() == (tmp_path / "set.png").read_bytes()


def test_lines_are_solid_where_stable_and_dashed_where_not():
    styles = {line.get_linestyle() for line in drawn_lines(plots.plot_branch(made_dataset()))}
    assert styles == {"-"}
    styles = {line.get_linestyle() for line in drawn_lines(plots.plot_branch(made_dataset(unstable_below=1.0)))}
    assert styles == {"-", "--"}


def drawn_lines(figure):
    """The pieces of curves between neighbouring points."""
    return [line for line in figure.axes[0].lines if len(line.get_xdata()) == 2 and line.get_linewidth() == 1.6]


def test_jumps_are_intervals_half_way_to_the_neighbours():
    assert drawing.intervals_of_proximal_jumps(made_dataset(count=4, jumps_below=1.2)) == [(0.5, 1.25)]
    assert drawing.intervals_of_proximal_jumps(made_dataset(jumps_below=0.0)) == []


def test_tokens_that_differ_are_named():
    dataset = made_dataset()
    dataset["theta"].values[:, 1] *= 2
    assert {"θ, token 1", "θ, token 2"} <= set(texts(plots.plot_branch(dataset).axes[0]))


def test_axes_show_negative_values_and_begin_at_zero_for_positive_ones():
    dataset = made_dataset()
    dataset["training_loss"].values[:] *= -100  # the autoencoder's, whose losses are those beyond W = 0
    figure = plots.plot_branch(dataset)
    _, loss, error = figure.axes
    for axes, name in ((loss, "training_loss"), (error, "test_error")):
        low, high = axes.get_ylim()
        assert low <= dataset[name].values.min() and dataset[name].values.max() <= high
    assert loss.get_ylim()[0] < 0 and error.get_ylim()[0] == 0
    assert error.get_ylim()[1] > 1.05 * dataset["test_error"].values.max()  # no mark is cut in half
    dataset["test_error"].values[:] *= -1
    (axes,) = transition.plot_test_error({"semantic": dataset}).axes
    assert axes.get_ylim()[0] < dataset["test_error"].values.min()


def test_m_is_drawn_where_there_are_means_and_with_its_sign_where_that_is_fixed():
    dataset = made_dataset("positional")
    assert "|m|" in texts(plots.plot_branch(dataset).axes[0])
    dataset["m"].attrs["sign"] = "fixed"
    assert {"m, token 1", "m, token 2"} <= set(texts(plots.plot_branch(dataset).axes[0]))
    first, second = drawing.distinct_overlap_entries(dataset, "m")
    assert np.all(first.values > 0) and np.all(second.values < 0)
    dataset["m"].attrs["present"] = [0, 1]
    assert [entry.label for entry in drawing.distinct_overlap_entries(dataset, "m")] == ["m, token 2"]
    dataset["m"].attrs["present"] = [0, 0]
    assert texts(plots.plot_branch(dataset).axes[0])[:2] == ["θ", "q"]


def test_tables_say_where_there_are_means_and_whether_the_sign_is_free():
    said = {}
    for model, contexts in (("ridge_regression", 1), ("mixture_classification", 2), ("dot_product_attention", 2)):
        dataset = xarray.Dataset({name: ("context", np.zeros(contexts)) for name in ("m", "theta")})
        tables.add_overlap_attributes(dataset, sf.problem(model))
        said[model] = {name: dataset[name].attrs["present"].tolist() for name in ("m", "theta")}
        said[model]["sign"] = dataset["m"].attrs["sign"]
    assert said == {
        "ridge_regression": {"m": [0], "theta": [1], "sign": "fixed"},
        "mixture_classification": {"m": [1, 1], "theta": [0, 0], "sign": "fixed"},
        "dot_product_attention": {"m": [1, 1], "theta": [1, 1], "sign": "free"},
    }


def columns_dataset(q, theta):
    """A table of several columns: q (N, tokens, s, s), theta (N, tokens, s, t), no clusters."""
    axis = {"token": q.shape[1], "cluster": 1, "column": q.shape[2], "column2": q.shape[2], "teacher": theta.shape[3]}
    variables = {}
    for name, values in (("q", q), ("V", q), ("m", 0 * q[..., 0]), ("theta", theta)):
        dims = ("alpha", *QUANTITIES[name].axes)
        full = values[:, :, None]
        assert full.shape[1:] == tuple(axis[dim] for dim in dims[1:])
        variables[name] = (dims, full)
        variables[f"{name}_error"] = (dims, np.full(full.shape, 1e-6))
    return xarray.Dataset(variables, coords={"alpha": np.linspace(1, 2, len(q))}, attrs={"parameter": "alpha"})


def test_lines_are_labelled_by_exactly_the_entries_they_stand_for():
    alpha = np.linspace(1, 2, 4)[:, None, None, None]
    q = alpha * np.ones((1, 3, 1, 1)) * np.array([[1.0, 0.2], [0.2, 1.0]])
    theta = alpha * np.ones((1, 3, 1, 1)) * np.array([[0.5, 0.1], [0.1, 0.6]])
    dataset = columns_dataset(q, theta)
    found = {
        name: [entry.label for entry in drawing.distinct_overlap_entries(dataset, name)] for name in ("q", "theta", "m")
    }
    assert found["q"] == ["q₁₁ = q₂₂, tokens 1-3", "q₁₂, tokens 1-3"]
    assert found["theta"] == ["θ₁₁, tokens 1-3", "θ₁₂ = θ₂₁, tokens 1-3", "θ₂₂, tokens 1-3"]
    assert found["m"] == ["|m₁| = |m₂|, tokens 1-3"]
    dataset["q"].values[:, 1, 0, 0, 1] *= 1.001  # far beyond the error bars
    dataset["q"].values[:, 1, 0, 1, 0] *= 1.001
    labels = [entry.label for entry in drawing.distinct_overlap_entries(dataset, "q")]
    assert labels == ["q₁₁ = q₂₂, tokens 1-3", "q₁₂, tokens 1, 3", "q₁₂, token 2"]


def test_tokens_are_drawn_as_one_only_within_their_error_bars():
    q = np.linspace(1, 2, 4)[:, None, None, None] * np.ones((1, 2, 1, 1))
    dataset = columns_dataset(q, q)
    dataset["q_error"].values[:] = 0.01
    dataset["q"].values[:, 1] += 0.019
    assert [entry.label for entry in drawing.distinct_overlap_entries(dataset, "q")] == ["q"]
    dataset["q"].values[2, 1] += 0.002
    assert [entry.label for entry in drawing.distinct_overlap_entries(dataset, "q")] == ["q, token 1", "q, token 2"]


def test_clusters_and_many_columns_are_named():
    shape = (2, 2, 3, 3)
    assert drawing.overlap_entry_label("q", [(0, 1, 0, 1)], shape) == "q₁₂, token 1, cluster 2"
    assert drawing.overlap_entry_label("q", [(0, 0, 0, 0), (1, 1, 0, 0)], shape) == (
        "q₁₁, token 1 cluster 1 and token 2 cluster 2"
    )
    diagonal = [(0, 0, a, a) for a in range(3)]
    off = [(0, 0, a, b) for a in range(3) for b in range(a + 1, 3)]
    assert drawing.overlap_entry_label("q", diagonal, (1, 1, 3, 3)) == "q_aa for all a"
    assert drawing.overlap_entry_label("q", off, (1, 1, 3, 3)) == "q_ab for all a ≠ b"
    assert drawing.overlap_entry_label("θ", off, (1, 1, 3, 3)) == "θ₁₂ = θ₁₃ = θ₂₃"
    assert drawing.overlap_entry_label("|m|", [(0, 0, 11)], (1, 1, 12)) == "|m₁₂|"


def test_the_energy_of_a_measure_is_not_called_a_training_loss():
    dataset = made_dataset()
    dataset["training_loss"].attrs["long_name"] = "free energy per d"
    assert plots.plot_branch(dataset).axes[1].get_ylabel() == "free energy\nper d"


def test_a_tuned_curve_shows_what_was_tuned():
    dataset = made_dataset()
    dataset.attrs["tuned"] = "lambda"
    dataset["best_lambda"] = ("alpha", np.full(6, 0.25))
    dataset["best_lambda_error"] = ("alpha", np.full(6, 0.01))
    assert plots.plot_branch(dataset).axes[-1].get_ylabel() == "best λ"


def test_a_table_without_a_branch_is_refused_in_a_sentence():
    with pytest.raises(InputError, match="holds no branch"):
        plots.plot_branch(made_dataset().drop_vars("q"))


def test_a_figure_is_written_in_the_format_of_its_name(tmp_path):
    dataset = made_dataset()
    for name, begins in (("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml")):
        plots.plot_branch(dataset, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begins)
    with pytest.raises(InputError, match=r"a.jpg: a name that ends in .png, .pdf or .svg is expected"):
        plots.plot_branch(dataset, tmp_path / "a.jpg")


def test_two_branches_are_drawn_together(tmp_path):
    datasets = {name: made_dataset(name) for name in ("semantic", "positional")}
    marks = [{"value": 1.0, "error": 0.01, "label": "equal training loss"}]
    figure = transition.plot_overlaps(datasets, tmp_path / "overlaps.png", marks=marks)
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels == ["semantic overlap θ", "positional overlap |m|", "self-overlap q"]
    assert {"semantic branch", "positional branch", "equal training loss", "branch ends"} <= set(texts(figure.axes[0]))
    assert is_png(tmp_path / "overlaps.png")
    (axes,) = transition.plot_test_error(datasets, tmp_path / "test_error.png", marks=marks).axes
    assert axes.get_ylabel() == "test error per token"
    assert "linear baseline" in texts(axes)
    assert is_png(tmp_path / "test_error.png")


def test_the_difference_of_training_losses_is_taken_where_both_exist(tmp_path):
    one, other = made_dataset("semantic").isel(alpha=slice(2, None)), made_dataset("positional")
    values, difference, error = tables.loss_difference_curve(one, other)
    assert values == pytest.approx(one["alpha"].values)
    assert difference == pytest.approx(-0.001 * (values - 1))
    assert error == pytest.approx(2e-5)
    (axes,) = transition.plot_loss_difference({"semantic": one, "positional": other}, tmp_path / "difference.png").axes
    assert axes.get_ylabel() == "training loss per d:\nsemantic minus positional"
    assert "semantic has the lower training loss" in texts(axes)
    assert is_png(tmp_path / "difference.png")


def test_a_threshold_that_does_not_exist_is_left_out_of_the_phase_diagram(tmp_path):
    lines = [
        {"label": "α_c: transition", "omega": [0, 0.1], "alpha": [np.nan, 0.75], "error": [np.nan, 0.01],
         "published": [(0.1, 0.7072)]},
        {"label": "α_l: gain", "omega": [0, 0.1], "alpha": [0.7, 0.9], "error": [0.01, 0.01]},
    ]  # fmt: skip
    (axes,) = transition.plot_phase_diagram(lines, tmp_path / "phase.png").axes
    assert axes.get_xlabel().startswith("ω")
    assert axes.get_ylabel().startswith("α")
    assert texts(axes) == ["α_c as published", "α_c: transition", "α_l: gain"] or set(texts(axes)) == {
        "α_c: transition",
        "α_c as published",
        "α_l: gain",
    }
    assert is_png(tmp_path / "phase.png")


def test_an_unwritable_figure_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        plots.plot_branch(made_dataset(), tmp_path)


def test_a_point_without_a_verdict_is_not_drawn_as_stable():
    dataset = made_dataset()
    dataset["replicon"].values[0] = np.nan
    assert drawing.stability_verdicts_of_points(dataset).tolist() == ["unstable"] + ["stable"] * 5
    dataset["replicon"].values[:] = np.nan
    assert set(drawing.stability_verdicts_of_points(dataset)) == {"stable"}
