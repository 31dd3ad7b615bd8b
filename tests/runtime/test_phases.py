"""Phase diagrams: which changes along a row bracket which boundary, and how boundaries are located and drawn."""

import numpy as np
import pytest
import xarray

import saddleforge as sf
from saddleforge.errors import InputError, NotConvergedError
from saddleforge.planes import boundaries
from saddleforge.planes.boundaries import BRACKETED, Boundary, Change, Row, halves, located
from saddleforge.planes.diagram import PhaseDiagram
from saddleforge.report.tables import load_dataset

VALUES = (1.0, 2.0, 3.0, 4.0)


def record(n, loss, replicon=0.5, **more):
    """Of a point with a training loss, or without a solution."""
    if loss is None:
        return {"n": n, "status": "lost", **more}
    found = {"overlaps": [0.0], "training_loss": loss, "replicon": replicon, "replicon_error": 0.01}
    found["unstable"] = "replicon" if replicon >= 1 else ""
    return {"n": n, "status": "converged", **found, **more}


def made_row(at, semantic, positional, replicons=(0.5,) * 4, lost=None):
    base = sf.problem("dot_product_attention", alpha=1.0, omega=at)
    more = {} if lost is None else {"lost": lost}
    records = {
        "semantic": tuple(record(n, loss, r) for n, (loss, r) in enumerate(zip(semantic, replicons, strict=True))),
        "positional": tuple(record(n, loss, **(more if loss is None else {})) for n, loss in enumerate(positional)),
    }
    return Row(base, "alpha", "omega", at, VALUES, records)


def test_along_a_row_lowest_branches_cross_branches_end_and_replicons_pass_one():
    row = made_row(0.3, (None, 2.5, 2.0, 1.0), (1.0, 2.0, 2.2, 2.4), (0.5, 0.9, 1.5, 1.6))
    assert [row.lowest(n) for n in range(4)] == ["positional", "positional", "semantic", "semantic"]
    assert row.changes() == [
        Change("spinodal", ("semantic",), (1, 0)),
        Change("crossing", ("semantic", "positional"), (1, 2)),
        Change("replicon", ("semantic",), (1, 2)),
    ]


def test_a_replicon_within_its_half_width_of_one_is_no_instability():
    assert not made_row(0.3, (1.0,) * 4, (2.0,) * 4, (1.005,) * 4).is_unstable("semantic", 0)
    assert made_row(0.3, (1.0,) * 4, (2.0,) * 4, (1.02,) * 4).is_unstable("semantic", 0)


def test_where_a_branch_replaces_one_that_ends_nothing_crosses():
    row = made_row(0.3, (None, None, 1.0, 1.0), (1.0, 1.0, None, None))
    assert {change.kind for change in row.changes()} == {"spinodal"}


def test_rows_are_halved_where_other_things_happen_or_boundaries_move_far():
    one = made_row(0.1, (3.0, 2.0, 1.0, 1.0), (2.0, 2.5, 3.0, 3.0))
    same = made_row(0.2, (3.0, 2.0, 1.0, 1.0), (2.0, 2.5, 3.0, 3.0))
    moved = made_row(0.3, (3.0, 3.0, 3.0, 1.0), (2.0, 2.5, 2.6, 3.0))
    other = made_row(0.4, (3.0, 3.0, 3.0, None), (2.0, 2.5, 2.6, 3.0))
    assert halves([same, one], 2) == []
    assert halves([moved, same, one], 1) == [pytest.approx(0.25)]
    assert halves([moved, same, one], 2) == []
    assert halves([other, moved], 2) == [pytest.approx(0.35)]


def test_what_thresholds_do_not_find_stays_bracketed_as_narrowly_as_is_known(monkeypatch):
    def nowhere(*_):
        raise NotConvergedError("not here")

    monkeypatch.setattr(boundaries, "_LOCATE", dict.fromkeys(("crossing", "spinodal", "replicon"), nowhere))
    row = made_row(0.3, (1.0,) * 4, (1.0, 1.5, None, None), lost=[2.25, 2.5])
    found = located(row, Change("spinodal", ("positional",), (1, 2)), 1e-3, 0)
    assert (found.value, found.error, found.at, found.status) == (2.375, 0.125, 0.3, BRACKETED)
    found = located(row, Change("crossing", ("semantic", "positional"), (0, 1)), 1e-3, 0)
    assert (found.value, found.error, found.status) == (1.5, 0.5, BRACKETED)


def test_branches_may_cross_in_the_cell_in_which_one_begins_and_need_not(monkeypatch):
    def nowhere(*_):
        raise NotConvergedError("they do not")

    row = made_row(0.3, (None, 0.9, 0.8, 0.7), (1.0, 1.5, 1.6, 1.7))
    hidden = Change("crossing", ("semantic", "positional"), (0, 1))
    assert row.changes() == [hidden, Change("spinodal", ("semantic",), (1, 0))]
    monkeypatch.setattr(boundaries, "_LOCATE", {"crossing": nowhere})
    assert located(row, hidden, 1e-3, 0) is None


def made_diagram():
    rows = (
        made_row(0.1, (None, 2.5, 2.0, 1.0), (1.0, 2.0, 2.2, 2.4), (0.5, 0.9, 1.5, 1.6)),
        made_row(0.3, (None, 2.5, 2.4, 1.0), (1.0, 2.0, 2.2, 2.4)),
    )
    points = [
        Boundary("crossing", ("semantic", "positional"), 2.5, 0.01, 0.1, "converged"),
        Boundary("crossing", ("semantic", "positional"), 3.5, 0.02, 0.3, "converged"),
        Boundary("spinodal", ("semantic",), 1.5, 0.5, 0.1, BRACKETED),
    ]
    return PhaseDiagram(rows[0].problem, "alpha", "omega", rows, tuple(points))


def test_phases_are_counted_and_told_with_their_boundaries():
    diagram = made_diagram()
    assert diagram.phases == {
        ("positional", ("semantic",)): 3,
        ("semantic", ("positional",)): 3,
        ("positional", ()): 2,
    }
    text = diagram.table()
    assert "8 points in 2 rows" in text and "semantic and positional cross" in text
    assert "alpha = 2.500(10)" in text and "end of semantic" in text
    data = diagram.to_json()
    assert data["phases"][2] == {"lowest": "positional", "others": [], "points": 2}
    assert data["boundaries"][2]["status"] == "bracketed" and "alpha" not in data["parameters"]


def test_a_diagram_comes_back_from_its_file_and_is_drawn_with_names_lines_and_hatching(tmp_path):
    diagram = made_diagram()
    diagram.save(tmp_path / "phases.nc")
    back = load_dataset(tmp_path / "phases.nc")
    xarray.testing.assert_equal(back, diagram.to_xarray())
    assert list(back["lowest"].sel(omega=0.3).values) == ["positional"] * 3 + ["semantic"]
    (axes,) = diagram.plot(tmp_path / "phases.png").axes
    labels = {text.get_text() for text in axes.get_legend().get_texts()}
    assert {"semantic and positional cross", "end of semantic", "semantic is lowest", "RS unstable"} <= labels
    assert {text.get_text() for text in axes.texts} >= {"semantic,\npositional there too", "positional"}
    crossing = next(line for line in axes.lines if list(line.get_xdata()) == [2.5, 3.5])
    assert list(crossing.get_ydata()) == [0.1, 0.3]


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"over": {"alpha": (1, 2)}}, "over two parameters"),
        ({"over": {"alpha": (1, 1), "lambda": (0.1, 1)}}, "the interval is empty"),
        ({"over": {"alpha": 3, "lambda": (0.1, 1)}}, "an interval \\(low, high\\) is expected"),
        ({"over": {"alpha": (1, 2), "width": (0.1, 1)}}, "'width'"),
        ({"points": (1, 3)}, "points are at least 2"),
        ({"starts": ["nowhere"]}, "no start 'nowhere'"),
    ],
)
def test_a_diagram_that_cannot_be_is_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        sf.phases("logistic_regression", **{"over": {"alpha": (1, 2), "lambda": (0.1, 1)}, "processes": 1, **options})


def test_one_branch_everywhere_is_one_phase_without_boundaries(tmp_path):
    chosen = {"over": {"alpha": (1, 2), "lambda": (0.1, 1)}, "points": (3, 2), "processes": 1, "starts": ["semantic"]}
    diagram = sf.phases("logistic_regression", output=tmp_path / "phases.nc", **chosen)
    assert diagram.phases == {("semantic", ()): 6} and not diagram.boundaries
    again = sf.phases("logistic_regression", output=tmp_path / "phases.nc", **chosen)
    assert again.to_xarray().identical(diagram.to_xarray())
    with pytest.raises(InputError, match="holds another sweep"):
        sf.phases("logistic_regression", output=tmp_path / "phases.nc", sigma=2.0, **chosen)


@pytest.mark.slow
def test_in_the_base_case_the_branches_cross_where_their_threshold_is(agree):
    chosen = {"starts": ["semantic", "positional"], "points": (4, 2), "refinements": 0, "processes": 2}
    diagram = sf.phases("dot_product_attention", over={"alpha": (0.6, 1.8), "omega": (0.29, 0.3)}, **chosen)
    (found,) = (b for b in diagram.boundaries if b.kind == "crossing" and b.at == 0.3)
    alone = sf.crossing(sf.problem("dot_product_attention", omega=0.3), between=("semantic", "positional"))
    agree((found.value, found.error), (alone.value, alone.error), "half widths")
    (end,) = (b for b in diagram.boundaries if b.kind == "spinodal" and b.at == 0.3)
    alone = sf.spinodal(sf.problem("dot_product_attention", omega=0.3), on="semantic", bracket=(0.6, 1))
    agree((end.value, end.error), (alone.value, alone.error), "half widths")
    assert np.isfinite(diagram.to_xarray()["training_loss"]).any()
