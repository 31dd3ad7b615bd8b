"""Points where boundaries of a plane meet: found between rows, and located where the losses of a plane say."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import brentq

import saddleforge as sf
from saddleforge.base.errors import NotConvergedError
from saddleforge.extensions.planes import codim2_points
from saddleforge.extensions.planes.boundaries import BRACKETED, Boundary, DiagramRow
from saddleforge.extensions.planes.codim2_points import UNCONFIRMED, find_codim2_candidates, locate_codim2_point
from saddleforge.thresholds import crossing

VALUES = (1.0, 2.0, 3.0, 4.0)
AT, HEIGHT = 2.3, 0.17  # where boundaries meet
ERROR = 1e-4  # of what is located


@dataclass
class Solved:
    """A solution, as far as losses are compared; the mean of its proximal values is the slope of its loss in alpha."""

    at: tuple  # name, and both parameters
    training_loss: float
    averages: SimpleNamespace
    training_loss_error: float = 5e-6
    loss_error_from_residual: float = 0.0
    second_order: float = 0.0
    losses: None = None


@dataclass
class Event:
    kind: str
    branches: tuple
    value: float
    solutions: tuple = ()
    error: float = ERROR
    evidence: dict = field(default_factory=lambda: {"type": "step by step"})


class Plane:
    """Losses of branches that are straight in both parameters; a branch may exist above a line only, or below."""

    def __init__(self, losses, begins=None, ends=None):
        self.losses, self.begins, self.ends = losses, begins or {}, ends or {}
        self.edges = {**self.begins, **self.ends}

    def there(self, name, x, y):
        begun = name not in self.begins or x > self.begins[name](y)
        return begun and (name not in self.ends or x < self.ends[name](y) - 1e-9)

    def row(self, y):
        def record(n, name, x):
            if not self.there(name, x, y):
                return {"n": n, "status": "lost"}
            return {"n": n, "status": "converged", "overlaps": [0.0], "training_loss": self.losses[name](x, y)}

        records = {name: tuple(record(n, name, x) for n, x in enumerate(VALUES)) for name in self.losses}
        problem = sf.problem("dot_product_attention", alpha=1.0, omega=y)
        row = PlaneRow(problem, "alpha", "omega", y, VALUES, records, plane=self)
        return row, {change: self.boundary(row, change) for change in row.branch_changes()}

    def boundary(self, row, change):
        if change.kind == "spinodal":
            value = self.edges[change.branches[0]](row.at)
        else:
            value = self.crossing_of(*change.branches, row.at)
            if not all(self.there(name, value, row.at) for name in change.branches):
                return None
        return Boundary(change.kind, change.branches, value, ERROR, row.at, "converged")

    def crossing_of(self, one, other, y):
        gaps = [self.losses[one](x, y) - self.losses[other](x, y) for x in (0.0, 1.0)]
        return gaps[0] / (gaps[0] - gaps[1])

    def solved(self, name, x, y):
        loss = self.losses[name]
        slope = loss(x + 0.5, y) - loss(x - 0.5, y)
        return Solved((name, x, y), loss(x, y), SimpleNamespace(moreau=np.array([slope])))

    def restore_branch_at_points(self, row, name, numbers):
        return Followed(self, name, row.at, [VALUES[n] for n in numbers])

    def locate_branch_end(self, row, name, accuracy):
        value = self.edges[name](row.at)
        return Event("spinodal", (name,), value, (self.solved(name, value, row.at),))


class Followed:
    """A branch of a plane."""

    parameter, accuracy = "alpha", 1e-3

    def __init__(self, plane, name, y, values):
        self.plane, self.name, self.y, self.known = plane, name, y, {}
        for x in values:
            self.solution_at_parameter(x)

    def solution_at_parameter(self, x, accuracy=None, guess=None):
        if not self.plane.there(self.name, x, self.y):
            return None
        return self.known.setdefault(x, self.plane.solved(self.name, x, self.y))


@dataclass(frozen=True)
class PlaneRow(DiagramRow):
    """A row on which events are where the losses of a plane say."""

    plane: Plane | None = None

    def restore_branch_at_points(self, name, numbers, seed):
        return self.plane.restore_branch_at_points(self, name, numbers)

    def locate_branch_crossing(self, branches, bracket, accuracy, seed):
        names = tuple(branch.name for branch in branches)
        value = self.plane.crossing_of(*names, self.at)
        if not bracket[0] <= value <= bracket[1]:
            raise NotConvergedError("no sign change")
        return Event("crossing", names, value)

    def locate_branch_end(self, name, inside, outside, accuracy, seed):
        return self.plane.locate_branch_end(self, name, accuracy)


def between(plane, *heights):
    return find_codim2_candidates([plane.row(y) for y in heights])


THREE = Plane(
    {
        "semantic": lambda x, y: x - AT,
        "mixed": lambda x, y: 4 * (HEIGHT - y) + 0.2 * (x - AT),
        "positional": lambda x, y: AT - x,
    }
)


def test_three_branches_of_equal_loss_meet_where_a_third_one_comes_under_a_crossing():
    (found,) = between(THREE, 0.0, 0.15, 0.3, 0.45)
    assert found.kind == "triple" and set(found.branches) == {"semantic", "mixed", "positional"}
    assert [row.at for row in found.rows] == [0.15, 0.3]
    point = locate_codim2_point(found, (1e-3, 1e-3), 0)
    assert abs(point.value - AT) <= point.error and abs(point.at - HEIGHT) <= point.at_error
    assert point.status == "converged" and point.at_error < 1e-3


def test_the_other_way_up_it_is_the_same_point():
    flipped = Plane({name: lambda x, y, loss=loss: loss(x, 0.45 - y) for name, loss in THREE.losses.items()})
    (found,) = between(flipped, 0.0, 0.15, 0.3, 0.45)
    point = locate_codim2_point(found, (1e-3, 1e-3), 0)
    assert abs(point.at - (0.45 - HEIGHT)) <= point.at_error


def test_a_crossing_ends_where_its_branch_does():
    """Below, semantic is the lowest where it begins; above, it crosses positional first."""
    plane = Plane(
        {"semantic": lambda x, y: -(x - AT) + 3 * (y - HEIGHT), "positional": lambda x, y: 0.0},
        {"semantic": lambda y: AT + 0.5 * (y - HEIGHT)},
    )
    (found,) = between(plane, 0.0, 0.15, 0.3)
    assert (found.kind, found.branches, found.pair) == ("end", ("semantic", "positional"), ("semantic", "positional"))
    point = locate_codim2_point(found, (1e-3, 1e-3), 0)
    assert abs(point.value - AT) <= point.error and abs(point.at - HEIGHT) <= point.at_error


def test_the_end_of_a_branch_passes_over_the_crossing_of_two_others():
    plane = Plane(
        {"semantic": lambda x, y: x - AT, "positional": lambda x, y: AT - x, "mixed": lambda x, y: 5.0},
        {"mixed": lambda y: AT + 2 * (y - HEIGHT)},
    )
    (found,) = between(plane, 0.0, 0.15, 0.3)
    assert found.kind == "end" and found.branches[0] == "mixed" and set(found.pair) == {"semantic", "positional"}
    point = locate_codim2_point(found, (1e-3, 1e-3), 0)
    assert abs(point.value - AT) <= point.error and abs(point.at - HEIGHT) <= point.at_error


def test_the_end_of_a_branch_in_a_second_one_passes_over_their_crossings_with_a_third():
    """Beyond, the second one is crossed in its place."""

    def begins(y):
        return AT + 2 * (y - HEIGHT)

    plane = Plane(
        {
            "semantic": lambda x, y: x - AT,
            "positional": lambda x, y: 0.1 * (begins(y) - x),
            "uninformed": lambda x, y: 0.0,
        },
        {"positional": begins},
    )
    (found,) = between(plane, 0.0, 0.15, 0.3)
    assert found.kind == "end" and found.branches == ("positional", "semantic", "uninformed")
    assert found.pair == ("positional", "semantic")
    point = locate_codim2_point(found, (1e-3, 1e-3), 0)
    assert abs(point.value - AT) <= point.error and abs(point.at - HEIGHT) <= point.at_error


def test_two_branches_end_in_a_point_and_before_it_one_stops_to_cross_the_other():
    """As sigma grows in the base model: semantic, which begins at the same place, crosses positional, whose end comes
    nearer, then begins below it, and then begins behind it."""
    loss, nearer = -0.02, 5.0

    def ends(y):
        return AT + nearer * (HEIGHT - y)

    plane = Plane(
        {
            "semantic": lambda x, y: loss - 2 * (x - AT),
            "positional": lambda x, y: 0.1 * (x - ends(y)),
            "uninformed": lambda x, y: 0.0,
        },
        {"semantic": lambda y: AT},
        {"positional": ends},
    )
    found = between(plane, 0.0, 0.3)
    assert [(s.kind, s.branches) for s in found] == [
        ("end", ("semantic", "positional", "uninformed")),
        ("end", ("positional", "semantic", "uninformed")),
        ("ends", ("semantic", "positional")),
    ]
    equal, nothing, both = (locate_codim2_point(candidate, (1e-3, 1e-3), 0) for candidate in found)
    assert nothing is None  # positional ends on semantic nowhere: where they both end semantic is the lower one
    for point, height in ((equal, HEIGHT + loss / 0.1 / nearer), (both, HEIGHT)):
        assert point.status == "converged" and point.at_error < 1e-3
        assert abs(point.value - AT) <= point.error and abs(point.at - height) <= point.at_error


class Curved(Plane):
    """Crossings by bisection, of losses that are not straight."""

    def crossing_of(self, one, other, y):
        def gap(x):
            return self.losses[one](x, y) - self.losses[other](x, y)

        try:
            return brentq(gap, VALUES[0] - 0.5, VALUES[-1])
        except ValueError:  # no change of sign
            return super().crossing_of(one, other, y)


class Coarse(Curved):
    """Losses that are off by nearly their error, those of two branches in opposite directions."""

    def solved(self, name, x, y, error=0.02):
        found = super().solved(name, x, y)
        off = {"semantic": -0.9, "positional": 0.9, "uninformed": 0.0}[name] * error
        return replace(found, training_loss=found.training_loss + off, training_loss_error=error)

    def refined(self, solution, tolerance):
        return self.solved(*solution.at, error=max(2e-3, tolerance))


@pytest.mark.parametrize("meets", [False, True])
def test_a_difference_that_vanishes_where_two_branches_end_is_no_crossing_before(monkeypatch, meets):
    """Both end in uninformed, positional with a loss that is flat there: signs of coarse differences are noise."""
    flat = 0.1

    def ends(y):
        return AT + 5 * (HEIGHT - y)

    lift = 0.02 if meets else 0.0  # of a fold, above uninformed
    plane = Coarse(
        {
            "semantic": lambda x, y: -2 * (x - AT),
            "positional": lambda x, y: lift - flat * (x - ends(y)) ** 2,
            "uninformed": lambda x, y: 0.0,
        },
        {"semantic": lambda y: AT},
        {"positional": ends},
    )
    found = next(s for s in between(plane, 0.0, 0.3) if s.branches == ("semantic", "positional", "uninformed"))
    assert found.is_explained
    for module in (codim2_points, crossing):
        monkeypatch.setattr(module, "refine_training_loss", plane.refined)
    point = locate_codim2_point(found, (1e-3, 1e-3), 0)
    if not meets:
        assert point is None
        return
    height = HEIGHT - (lift / flat) ** 0.5 / 5
    assert point.status != BRACKETED and abs(point.at - height) <= point.at_error


SLOPING = {"semantic": lambda x, y: -(x - AT) + 3 * (y - HEIGHT), "positional": lambda x, y: 0.0}
BEGINS = {"semantic": lambda y: AT + 0.5 * (y - HEIGHT)}


def test_a_reference_boundary_is_located_as_finely_as_the_losses_on_it_ask():
    asked = []

    class Rough(Plane):
        def locate_branch_end(self, row, name, accuracy):
            asked.append(accuracy)
            value = self.begins[name](row.at) + accuracy / 2
            return Event("spinodal", (name,), value, (self.solved(name, value, row.at),), accuracy)

    steep = {"semantic": lambda x, y: -10 * (x - AT) + 3 * (y - HEIGHT), "positional": lambda x, y: 0.0}
    (found,) = between(Rough(steep, BEGINS), 0.15, 0.3)
    point = locate_codim2_point(found, (1e-2, 1e-3), 0)
    assert point.status == "converged" and abs(point.at - HEIGHT) <= point.at_error <= 1e-3
    assert asked[0] == 5e-3 and min(asked) < 1e-3  # 10 in the first parameter next to 2 in the second


@pytest.mark.parametrize("finer", ["no end", "an end elsewhere", "the same end"])
def test_a_codimension_2_point_that_finer_solutions_do_not_have_is_unconfirmed(finer):
    accuracies = []

    class Finer(Plane):
        def locate_branch_end(self, row, name, accuracy):
            accuracies.append(row.accuracy)
            found = super().locate_branch_end(row, name, accuracy)
            if row.accuracy < 1e-3 and finer == "no end":
                raise NotConvergedError("none")
            if row.accuracy < 1e-3 and finer == "an end elsewhere":
                value = found.value + 0.01
                return replace(found, value=value, solutions=(self.solved(name, value, row.at),))
            return found

    (found,) = between(Finer(SLOPING, BEGINS), 0.15, 0.3)
    point = locate_codim2_point(found, (1e-3, 1e-3), 0)
    assert point.status == ("converged" if finer == "the same end" else UNCONFIRMED)
    assert abs(point.at - HEIGHT) <= point.at_error
    assert min(accuracies) == pytest.approx(1e-4)


def test_between_rows_a_branch_starts_where_it_is_found_again():
    refused = []

    class Soft(Plane):
        def restore_branch_at_points(self, row, name, numbers):
            if numbers == (1,):  # the point nearest to the crossing
                refused.append(row.at)
                raise NotConvergedError("no definite tangent")
            return super().restore_branch_at_points(row, name, numbers)

    (found,) = between(Soft(THREE.losses), 0.15, 0.3)
    point = locate_codim2_point(found, (1e-3, 1e-3), 0)
    assert refused and point.status == "converged" and abs(point.at - HEIGHT) <= point.at_error


def test_a_branch_that_leaves_the_reference_boundary_while_losses_still_come_closer_leaves_the_point_bracketed():
    """Without semantic's place known well enough to say that it leaves first."""

    class Leaving(Plane):
        def restore_branch_at_points(self, row, name, numbers):
            if name == "semantic" and row.at > 0.05:
                raise NotConvergedError("it is gone")
            return super().restore_branch_at_points(row, name, numbers)

    plane = Leaving(
        {"semantic": lambda x, y: x - AT + y - 0.01, "positional": lambda x, y: 0.0, "mixed": lambda x, y: 5.0},
        {"mixed": lambda y: AT + 2 * (y - HEIGHT)},
        {},
    )
    (found,) = between(plane, 0.0, 0.3)
    assert locate_codim2_point(found, (1e-3, 1e-3), 0).status == BRACKETED


def test_where_boundaries_only_approach_nothing_meets():
    plane = Plane(
        {"semantic": lambda x, y: x - AT, "positional": lambda x, y: AT - x, "mixed": lambda x, y: 5.0},
        {"mixed": lambda y: AT + 0.1 + 0.2 * y},
    )
    assert not between(plane, 0.0, 0.15, 0.3)


def test_an_unlocated_codim2_point_is_bracketed():
    class Lost(Plane):
        def restore_branch_at_points(self, row, name, numbers):
            raise NotConvergedError("lost")

    (found,) = between(Lost(THREE.losses), 0.15, 0.3)
    point = locate_codim2_point(found, (1e-3, 1e-3), 0)
    assert point.status == BRACKETED and abs(point.at - HEIGHT) <= point.at_error
    assert abs(point.value - AT) <= point.error


def test_boundaries_that_do_not_meet_give_no_codim2_point():
    class Apart(Plane):
        def solved(self, name, x, y):
            found = super().solved(name, x, y)
            return replace(found, training_loss=found.training_loss + (name == "mixed"))

    (found,) = between(Apart(THREE.losses), 0.15, 0.3)
    assert locate_codim2_point(found, (1e-3, 1e-3), 0) is None
