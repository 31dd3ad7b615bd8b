"""Phase diagrams: which changes along a row bracket which boundary, and how boundaries are located and drawn."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest
import xarray

import saddleforge as sf
from saddleforge.base.errors import InputError, NotConvergedError
from saddleforge.branches import branch
from saddleforge.extensions.planes import boundaries
from saddleforge.extensions.planes.boundaries import (
    BRACKETED,
    Boundary,
    BranchChange,
    DiagramRow,
    grid_rows_to_insert,
    locate_boundaries_of_changes,
)
from saddleforge.extensions.planes.codim2_points import Codim2Point
from saddleforge.extensions.planes.diagram import PhaseDiagram, _farthest_point_order
from saddleforge.extensions.sweeping.records import SweepRecords
from saddleforge.problems.reduced import reduce_to_fields_of_loss
from saddleforge.report.phases import describe_phase
from saddleforge.report.tables import load_netcdf_dataset
from saddleforge.saddle_point.iteration import Status

VALUES = (1.0, 2.0, 3.0, 4.0)


def record(n, loss, replicon=0.5, **more):
    """Of a point with a training loss, or without a solution."""
    if loss is None:
        return {"n": n, "status": "lost", **more}
    found = {"overlaps": [0.0], "training_loss": loss, "replicon": replicon, "replicon_error": 0.01}
    found["unstable"] = "replicon" if replicon >= 1 else ""
    return {"n": n, "status": "converged", **found, **more}


def made_row(at, semantic, positional, replicons=(0.5,) * 4, kind=DiagramRow, **problem):
    base = sf.problem("dot_product_attention", alpha=1.0, omega=at, **problem)
    records = {
        "semantic": tuple(record(n, loss, r) for n, (loss, r) in enumerate(zip(semantic, replicons, strict=True))),
        "positional": tuple(record(n, loss) for n, loss in enumerate(positional)),
    }
    return kind(base, "alpha", "omega", at, VALUES, records)


@dataclass
class Ending:
    """A branch that ends at a value, and that is lost by steps as long as one."""

    end: float
    step: float = np.inf
    known: dict = field(default_factory=lambda: {2.0: "solved"})
    followed: bool = False

    def solution_at_parameter(self, value):
        assert self.followed
        near = min(abs(value - known) for known in self.known) < self.step
        return self.known.setdefault(value, "solved") if near and value <= self.end else None


@dataclass
class Solved:
    """A solution, as far as losses are compared."""

    training_loss: float
    training_loss_error: float = 0.005
    averages: None = None
    problem: sf.Problem | None = None


@dataclass
class Located:
    """An event that was located."""

    value: float
    solutions: tuple = ()
    error: float = 0.01
    status: str = "converged"
    evidence: dict = field(default_factory=lambda: {"type": "fold"})


class Hidden(DiagramRow):
    """A row on which the semantic branch ends at 1.3 with a loss, where that of the other one is known, and crosses
    that in the middle of any interval."""

    at_end, neighbour = Solved(1.2), Solved(1.1)

    def locate_threshold_of_change(self, change, accuracy, seed):
        return Located(1.3, (replace(self.at_end, problem=self.problem.with_(alpha=1.3)),))

    def restore_branch_at_points(self, name, numbers, seed):
        return SimpleNamespace(solution_at_parameter=lambda value: self.neighbour)

    def locate_branch_crossing(self, branches, bracket, accuracy, seed):
        return Located(sum(bracket) / 2)


def begins_within_a_cell(kind):
    """The semantic branch begins as the higher one or as the lower one, and is the lower one from 2 on."""
    row = made_row(0.3, (None, 1.4, 0.8, 0.7), (1.0, 1.5, 1.6, 1.7), kind=kind)
    hidden, end = (
        BranchChange("crossing", ("semantic", "positional"), (0, 1)),
        BranchChange("spinodal", ("semantic",), (1, 0)),
    )
    assert row.group_changes_located_together() == [(end, hidden)]
    return locate_boundaries_of_changes(row, (end, hidden), 1e-3, 0)


def made_boundary(change, value, at):
    return Boundary(change.kind, change.branches, value, 0.01, at, "converged")


def test_along_a_row_lowest_branches_cross_branches_end_and_replicons_pass_one():
    row = made_row(0.3, (None, 2.5, 2.0, 1.0), (1.0, 2.0, 2.2, 2.4), (0.5, 0.9, 1.5, 1.6))
    assert [row.lowest_loss_branch(n) for n in range(4)] == ["positional", "positional", "semantic", "semantic"]
    assert row.branch_changes() == [
        BranchChange("spinodal", ("semantic",), (1, 0)),
        BranchChange("crossing", ("semantic", "positional"), (1, 2)),
        BranchChange("replicon", ("semantic",), (1, 2)),
    ]


def test_replica_symmetry_is_lost_through_the_replicon_or_through_jumps_that_are_not_located():
    row = made_row(0.3, (1.0,) * 4, (2.0,) * 4)
    for record, why in zip(row.records["semantic"], ("jumps", "", "", "replicon"), strict=True):
        record["unstable"] = why
    jumps, replicon = BranchChange("jumps", ("semantic",), (0, 1)), BranchChange("replicon", ("semantic",), (2, 3))
    assert row.branch_changes() == [jumps, replicon]
    (found,) = locate_boundaries_of_changes(row, (jumps,), 1e-3, 0)
    assert (found.value, found.error, found.status) == (1.5, 0.5, BRACKETED)


def test_where_a_branch_replaces_one_that_ends_nothing_crosses():
    row = made_row(0.3, (None, None, 1.0, 1.0), (1.0, 1.0, None, None))
    assert {change.kind for change in row.branch_changes()} == {"spinodal"}


def test_rows_are_halved_where_other_things_happen_or_boundaries_move_far():
    def crossed(at, value, **more):
        row = made_row(at, (3.0, 2.0, 1.0, 1.0), (2.0, 2.5, 3.0, 3.0), **more)
        return row, {change: made_boundary(change, value, at) for change in row.branch_changes()}

    one, two, three = crossed(0.1, 1.2), crossed(0.2, 1.6), crossed(0.3, 2.0)
    assert grid_rows_to_insert([one, two, three], 0.25, 2) == []  # straight
    assert grid_rows_to_insert([one, two, crossed(0.3, 2.6)], 0.25, 2) == [pytest.approx(0.15), pytest.approx(0.25)]
    assert grid_rows_to_insert([one, two, three], 0.25, 0.3) == [pytest.approx(0.15), pytest.approx(0.25)]  # far
    assert grid_rows_to_insert([three, crossed(0.4, 2.4, replicons=(0.5, 0.5, 0.5, 1.5))], 0.25, 2) == [
        pytest.approx(0.35)
    ]


def test_unlocated_events_of_a_phase_diagram_stay_bracketed():
    class Unlocated(DiagramRow):
        def locate_threshold_of_change(self, change, accuracy, seed):
            raise NotConvergedError("not here")

        def restore_branch_at_points(self, name, numbers, seed):
            return Ending(2.3)

    row = made_row(0.3, (1.0,) * 4, (1.0, 1.5, None, None), kind=Unlocated)
    (found,) = locate_boundaries_of_changes(row, [BranchChange("spinodal", ("positional",), (1, 2))], 1e-3, 0)
    assert found.error == 1 / 32 and abs(found.value - 2.3) < 1 / 32 and found.status == BRACKETED
    (found,) = locate_boundaries_of_changes(
        row, [BranchChange("crossing", ("semantic", "positional"), (0, 1))], 1e-3, 0
    )
    assert (found.value, found.error, found.status) == (1.5, 0.5, BRACKETED)


@pytest.mark.parametrize("loss, crosses", [(1.2, True), (0.9, False)])
def test_branches_cross_in_the_cell_in_which_one_begins_if_it_begins_as_the_higher_one(loss, crosses):
    class DiagramRow(Hidden):
        at_end = Solved(loss)

    first, second = begins_within_a_cell(DiagramRow)
    assert first.value == 1.3
    assert (second.value == pytest.approx(1.3 + 0.7 * 0.51)) if crosses else second is None


def test_branches_that_are_equal_at_an_end_as_far_as_is_known_cross_near_it():
    class DiagramRow(Hidden):
        at_end, neighbour = Solved(0.99, 0.01), Solved(1.0, 0.01)

        def locate_branch_crossing(self, branches, bracket, accuracy, seed):
            raise NotConvergedError("no sign change")

    found = begins_within_a_cell(DiagramRow)[1]
    assert found.status == BRACKETED  # the losses are 0.1 apart at 2 and 0.01(2) at 1.3
    assert (found.value - found.error, found.value + found.error) == pytest.approx((1.3, 1.3 + 0.7 * 0.03 / 0.09))


@pytest.mark.parametrize("end", [2.05, 2.3, 2.7, 5.0])
def test_in_many_dimensions_ends_are_stepped_to_and_what_is_too_far_to_be_reached_is_not_taken_for_missing(end):
    class DiagramRow(boundaries.DiagramRow):
        def restore_branch_at_points(self, name, numbers, seed):
            return Ending(end, step=0.3)

    row = made_row(0.3, (1.0,) * 4, (1.0, 1.5, None, None), kind=DiagramRow, student_rank=2)
    assert reduce_to_fields_of_loss(row.problem).dimension > boundaries.MAX_LOW_DIMENSION
    (found,) = locate_boundaries_of_changes(row, [BranchChange("spinodal", ("positional",), (1, 2))], 0.04, 0)
    if end > 3:
        assert found.status == BRACKETED
    else:
        assert found.error <= 0.04 and abs(found.value - end) <= found.error and found.status == "converged"


def test_a_branch_that_is_only_followed_is_tried_by_newtons_method_from_what_is_known_alone(monkeypatch):
    problem = sf.problem("logistic_regression", alpha=2.0)
    known, asked = sf.solve(problem, "semantic", accuracy=1e-3), []

    def solve_without_branch_check(problem, start, **how):
        asked.append((isinstance(start, str), how["globalise"], how["effort"]))
        return replace(known, losses=None, status=Status.MAX_ITERATIONS)

    monkeypatch.setattr(branch, "solve_without_branch_check", solve_without_branch_check)
    for followed in (True, False):
        along = branch.Branch(problem, "alpha", "semantic", known={2.0: known}, effort=2, most=4, followed=followed)
        assert along.solution_at_parameter(1.0) is None and along.solution_at_parameter(1.0, accuracy=1e-4) is None
    newton, named = (False, False, 2), (True, True, 2)
    assert asked[:2] == [newton, (False, False, 4)]
    assert asked[2:] == [(False, True, 2), named, (False, True, 4), (True, True, 4)]


def made_diagram():
    rows = (
        made_row(0.1, (None, 2.5, 2.0, 1.0), (1.0, 2.0, 2.2, 2.4), (0.5, 0.9, 1.5, 1.6)),
        made_row(0.3, (None, 2.5, 2.4, 1.0), (1.0, 2.0, 2.2, 2.4)),
    )
    points = [
        Boundary("crossing", ("semantic", "positional"), 2.5, 0.01, 0.1, "converged"),
        Boundary("crossing", ("semantic", "positional"), 3.5, 0.02, 0.3, "converged"),
        Boundary("spinodal", ("semantic",), 1.5, 0.5, 0.1, BRACKETED),
        Boundary("jumps", ("positional",), 3.5, 0.5, 0.1, BRACKETED),
    ]
    triple = Codim2Point("end", ("semantic", "positional"), 2.2, 0.05, 0.15, 0.004, "converged")
    return PhaseDiagram(rows[0].problem, "alpha", "omega", rows, tuple(points), (triple,))


def test_phases_are_counted_and_reported_with_their_boundaries():
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
    assert "alpha = 2.20(5)" in text and "omega = 0.150(4)" in text and "end of semantic where positional" in text
    assert data["triple_points"] == [
        {
            "kind": "end",
            "branches": ["semantic", "positional"],
            "value": 2.2,
            "error": 0.05,
            "at": 0.15,
            "at_error": 0.004,
            "status": "converged",
        }
    ]


def test_a_triple_point_that_finer_solutions_do_not_have_is_reported_and_drawn_apart(tmp_path):
    diagram = made_diagram()
    unsure = replace(diagram.codim2_points[0], status="unconfirmed", value=3.0)
    diagram = replace(diagram, codim2_points=(*diagram.codim2_points, unsure))
    assert "unconfirmed" in diagram.table().splitlines()[-1]
    (axes,) = diagram.plot(tmp_path / "phases.png").axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels.count("triple point") == 1 and labels.count("triple point, unconfirmed") == 1


def test_lines_and_regions_are_drawn_through_the_points_where_they_meet(tmp_path):
    """A crossing, on the lower row only, runs into the point at which a branch ends; one on both rows does not."""
    diagram = made_diagram()
    lower_only = replace(diagram, boundaries=tuple(b for b in diagram.boundaries if b.kind != "crossing" or b.at < 0.2))
    for made, crossing in ((diagram, [2.5, 3.5]), (lower_only, [2.5, 2.2])):
        (axes,) = made.plot(tmp_path / "phases.png").axes
        drawn = [list(line.get_xdata()) for line in axes.lines]
        assert crossing in drawn and [1.5, 2.2] in drawn
    unsure = replace(diagram, codim2_points=(replace(diagram.codim2_points[0], status="unconfirmed"),))
    (axes,) = unsure.plot(tmp_path / "phases.png").axes
    assert [1.5, 2.2] not in [list(line.get_xdata()) for line in axes.lines]
    regions = [
        next(iter(figure.axes[0].collections)).get_array().filled(-1) for figure in (diagram.plot(), unsure.plot())
    ]
    at = np.linspace(0.1, 0.3, len(regions[0])).searchsorted(0.15)
    cuts = [
        np.linspace(1.0, 4.0, regions[0].shape[1])[np.flatnonzero(np.diff(row))] for row in (r[at] for r in regions)
    ]
    assert cuts[0] == pytest.approx([2.2], abs=0.02) and cuts[1] == pytest.approx([2.75], abs=0.02)


def test_a_diagram_comes_back_from_its_file_and_is_drawn_with_names_lines_and_hatching(tmp_path):
    diagram = made_diagram()
    diagram.save(tmp_path / "phases.nc")
    back = load_netcdf_dataset(tmp_path / "phases.nc")
    xarray.testing.assert_equal(back, diagram.to_xarray())
    assert list(back["lowest"].sel(omega=0.3).values) == ["positional"] * 3 + ["semantic"]
    (axes,) = diagram.plot(tmp_path / "phases.png").axes
    labels = {text.get_text() for text in axes.get_legend().get_texts()}
    assert {"semantic and positional cross", "end of semantic", "semantic is lowest", "triple point"} <= labels
    letters = {label[0]: label[3:] for label in labels if label[1:2] == ":"}
    assert set(letters.values()) == {"positional", "positional, semantic there too", "semantic, positional there too"}
    assert "RS unstable, replicon" in labels and "RS unstable, jumps" not in labels
    places = {letters[text.get_text()]: text.get_position() for text in axes.texts}
    assert places["positional"] == (1.25, pytest.approx(0.108)) and len(places) == 3
    crossing = next(line for line in axes.lines if list(line.get_xdata()) == [2.5, 3.5])
    assert list(crossing.get_ydata()) == [0.1, 0.3]


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"over": {"alpha": (1, 2)}}, "needs two parameters"),
        ({"over": {"alpha": (1, 1), "lambda": (0.1, 1)}}, "the interval is empty"),
        ({"over": {"alpha": 3, "lambda": (0.1, 1)}}, "give two numbers \\(low, high\\)"),
        ({"over": {"alpha": (1, 2), "width": (0.1, 1)}}, "'width'"),
        ({"points": (1, 3)}, "whole numbers from 2"),
        ({"starts": ["nowhere"]}, "unknown start 'nowhere'"),
    ],
)
def test_a_diagram_that_cannot_be_is_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        sf.phases("logistic_regression", **{"over": {"alpha": (1, 2), "lambda": (0.1, 1)}, "processes": 1, **options})


def test_one_branch_everywhere_is_one_phase_without_boundaries(tmp_path):
    chosen = {"over": {"alpha": (1, 2), "lambda": (0.1, 1)}, "points": (3, 2), "processes": 1, "starts": ["semantic"]}
    chosen["stability"] = False  # compiling it takes longer than all else here
    diagram = sf.phases("logistic_regression", output=tmp_path / "phases.nc", **chosen)
    assert diagram.phases == {("informed", ()): 6} and not diagram.boundaries
    again = sf.phases("logistic_regression", output=tmp_path / "phases.nc", **chosen)
    assert again.to_xarray().identical(diagram.to_xarray())
    with pytest.raises(InputError, match="contains the records of another sweep"):
        sf.phases("logistic_regression", output=tmp_path / "phases.nc", sigma=2.0, **chosen)


def test_rows_that_are_finished_are_a_diagram_from_both_ends_inward(tmp_path, monkeypatch):
    assert _farthest_point_order([1.0, 2.0, 3.0, 4.0, 5.0]) == [1.0, 5.0, 3.0, 2.0, 4.0] and _farthest_point_order(
        [1.0]
    ) == [1.0]
    chosen = {"over": {"alpha": (1, 2), "lambda": (0.1, 1)}, "points": (2, 3), "processes": 1, "starts": ["semantic"]}
    written, append = [], SweepRecords.append_point_record

    def interrupted(self, line, record):
        if len(written) == 5:
            raise KeyboardInterrupt
        append(self, line, record)
        written.append(record)

    with monkeypatch.context() as patched:
        patched.setattr(SweepRecords, "append_point_record", interrupted)
        part = sf.phases("logistic_regression", output=tmp_path / "phases.nc", stability=False, **chosen)
    assert part.interrupted and [row.at for row in part.rows] == [0.1, 1.0] and part.phases == {("informed", ()): 4}
    assert "not judged" in part.table() and not part.to_json()["stability"]
    (probes,) = tmp_path.glob("*.records/probes.json")
    before = probes.stat().st_mtime_ns
    whole = sf.phases("logistic_regression", output=tmp_path / "phases.nc", stability=False, **chosen)
    assert [row.at for row in whole.rows] == [0.1, 0.55, 1.0] and not whole.interrupted
    assert probes.stat().st_mtime_ns == before  # what is kept is not asked for again


def test_a_single_row_is_drawn_as_a_band():
    row = made_row(0.3, (None, 2.5, 2.0, 1.0), (1.0, 2.0, 2.2, 2.4))
    places = tuple(boundaries.bracketed_boundary(row, change) for change in row.branch_changes())
    (axes,) = PhaseDiagram(row.problem, "alpha", "omega", (row,), places).plot().axes
    assert axes.get_ylim() == (pytest.approx(0.25), pytest.approx(0.35))
    drawn = {line.get_linestyle(): list(line.get_xdata()) for line in axes.lines}
    assert drawn["-"] == [2.5, 2.5] and drawn["--"] == [1.5, 1.5]  # the crossing, and the end


def test_boundaries_that_are_not_located_yet_are_those_of_the_grid():
    row = made_row(0.3, (None, 2.5, 2.0, 1.0), (1.0, 2.0, 2.2, 2.4))
    found = {change: boundaries.bracketed_boundary(row, change) for change in row.branch_changes()}
    assert {change.kind: (place.value, place.error, place.status) for change, place in found.items()} == {
        "spinodal": (1.5, 0.5, BRACKETED),
        "crossing": (2.5, 0.5, BRACKETED),
    }


CROSSING = 1.251535592, 6e-9  # at omega = 0.3, of finer rules than these (docs/numbers.md)


@pytest.fixture(scope="module")
def base_case():
    """The base case on the default grid with a row at omega = 0.3."""
    over = {"alpha": (0.3, 3), "omega": (0, 0.45)}
    return sf.phases("dot_product_attention", over=over, points=(9, 4), refinements=0, processes=2)


@pytest.mark.slow
def test_in_the_base_case_branches_cross_and_end_where_their_thresholds_are(agree, base_case):
    lines = base_case.lines()
    crossings = {b.at: (b.value, b.error) for b in lines["crossing", ("semantic", "positional")]}
    assert list(crossings) == [pytest.approx(at) for at in (0, 0.15, 0.3, 0.45)]
    values = [value for value, _ in crossings.values()]
    assert values == sorted(values) and all(error <= 3e-3 for _, error in crossings.values())
    row = next(at for at in crossings if abs(at - 0.3) < 1e-9)
    agree(crossings[row], CROSSING, "error bars")
    (end,) = (b for b in lines["spinodal", ("semantic",)] if b.at == row)
    alone = sf.spinodal(sf.problem("dot_product_attention", omega=0.3), on="semantic", bracket=(0.6, 1))
    agree((end.value, end.error), (alone.value, alone.error), "error bars")
    assert not base_case.codim2_points
    assert {b.status for b in base_case.boundaries if b.kind != "jumps"} <= {"converged", "accuracy_not_reached"}


@pytest.mark.slow
def test_in_the_picture_of_the_base_case_semantic_is_lowest_from_the_crossing_on(base_case, tmp_path):
    (axes,) = base_case.plot(tmp_path / "phases.png").axes
    labels = {text.get_text() for text in axes.get_legend().get_texts()}
    named = {label[3:] for label in labels if label[1:2] == ":"}
    assert named == {describe_phase(*phase) for phase in base_case.phases}
    known = {
        (lowest_loss_branch, tuple(b for b in others if b != "uninformed"))
        for lowest_loss_branch, others in base_case.phases
    }
    assert {("semantic", ()), ("positional", ("semantic",)), ("semantic", ("positional",))} <= known
    assert {"semantic and positional cross", "end of semantic", "end of positional", "RS unstable, jumps"} <= labels
    data = base_case.to_xarray()
    for row in base_case.rows:
        (crossing,) = (b.value for b in base_case.boundaries if b.kind == "crossing" and b.at == row.at)
        lowest_loss_branch = data["lowest"].sel(omega=row.at)
        assert {str(v) for v in lowest_loss_branch.where(lowest_loss_branch["alpha"] < crossing, drop=True).values} == {
            "positional"
        }
        assert {str(v) for v in lowest_loss_branch.where(lowest_loss_branch["alpha"] > crossing, drop=True).values} == {
            "semantic"
        }
