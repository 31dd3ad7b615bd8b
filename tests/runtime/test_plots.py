"""Figures: what their axes say, how stability is drawn, and that a PNG is written."""

import json

import matplotlib
import numpy as np
import pytest
import xarray

from saddleforge import plots
from saddleforge.errors import InputError


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
    variables["bistable_share"] = ("alpha", np.where(alpha < jumps_below, 0.01, 0.0))
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
    figure = plots.plot_dataset(made_dataset(), tmp_path / "curve.png")
    upper, lower = figure.axes
    assert upper.get_ylabel() == "overlap"
    assert lower.get_xlabel() == "α  (samples per dimension)"
    assert lower.get_ylabel() == "loss, error"
    assert "Semantic branch" in upper.get_title(loc="left")
    assert {"|m|", "θ", "q", "proximal map jumps: RS not strict"} <= set(texts(upper))
    assert {"training loss per d", "test error", "linear baseline"} <= set(texts(lower))
    assert is_png(tmp_path / "curve.png")


def test_the_same_figure_gives_the_same_bytes_and_leaves_nothing_behind(tmp_path):
    before = dict(matplotlib.rcParams)
    for name in ("one.png", "two.png"):
        plots.plot_dataset(made_dataset(), tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert dict(matplotlib.rcParams) == before


def test_lines_are_solid_where_stable_and_dashed_where_not():
    styles = {line.get_linestyle() for line in drawn_lines(plots.plot_dataset(made_dataset()))}
    assert styles == {"-"}
    styles = {line.get_linestyle() for line in drawn_lines(plots.plot_dataset(made_dataset(unstable_below=1.0)))}
    assert styles == {"-", "--"}


def drawn_lines(figure):
    """The pieces of curves between neighbouring points."""
    return [line for line in figure.axes[0].lines if len(line.get_xdata()) == 2 and line.get_linewidth() == 1.6]


def test_jumps_are_intervals_half_way_to_the_neighbours():
    assert plots.jump_intervals(made_dataset(count=4, jumps_below=1.2)) == [(0.5, 1.25)]
    assert plots.jump_intervals(made_dataset(jumps_below=0.0)) == []


def test_tokens_that_differ_are_named():
    dataset = made_dataset()
    dataset["theta"].values[:, 1] *= 2
    assert {"θ (token 1)", "θ (token 2)"} <= set(texts(plots.plot_dataset(dataset).axes[0]))


def test_two_branches_are_drawn_beside_each_other(tmp_path):
    datasets = {name: made_dataset(name) for name in ("semantic", "positional")}
    marks = [{"value": 1.0, "error": 0.01, "label": "equal training loss"}]
    figure = plots.plot_overlaps(datasets, tmp_path / "overlaps.png", marks=marks)
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels == ["semantic overlap θ", "positional overlap |m|", "self-overlap q"]
    assert {"semantic branch", "positional branch", "equal training loss", "branch ends"} <= set(texts(figure.axes[0]))
    assert is_png(tmp_path / "overlaps.png")
    (axes,) = plots.plot_test_error(datasets, tmp_path / "test_error.png", marks=marks).axes
    assert axes.get_ylabel() == "test error per token"
    assert "linear baseline" in texts(axes)
    assert is_png(tmp_path / "test_error.png")


def test_the_difference_of_training_losses_is_taken_where_both_exist(tmp_path):
    one, other = made_dataset("semantic").isel(alpha=slice(2, None)), made_dataset("positional")
    values, difference, error = plots.loss_difference(one, other)
    assert values == pytest.approx(one["alpha"].values)
    assert difference == pytest.approx(-0.001 * (values - 1))
    assert error == pytest.approx(2e-5)
    (axes,) = plots.plot_loss_difference(one, other, tmp_path / "difference.png").axes
    assert axes.get_ylabel() == "training loss per d:\nsemantic minus positional"
    assert "semantic has the lower training loss" in texts(axes)
    assert is_png(tmp_path / "difference.png")


def test_a_threshold_that_does_not_exist_is_left_out_of_the_phase_diagram(tmp_path):
    lines = [
        {"label": "α_c: transition", "omega": [0, 0.1], "alpha": [np.nan, 0.75], "error": [np.nan, 0.01],
         "published": [(0.1, 0.7072)]},
        {"label": "α_l: gain", "omega": [0, 0.1], "alpha": [0.7, 0.9], "error": [0.01, 0.01]},
    ]  # fmt: skip
    (axes,) = plots.plot_phase_diagram(lines, tmp_path / "phase.png").axes
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
        plots.plot_dataset(made_dataset(), tmp_path)


def test_a_point_without_a_verdict_is_not_drawn_as_stable():
    dataset = made_dataset()
    dataset["replicon"].values[0] = np.nan
    assert plots.stable_points(dataset).tolist() == [False] + [True] * 5
    dataset["replicon"].values[:] = np.nan
    assert plots.stable_points(dataset).all()
