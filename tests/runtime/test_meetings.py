"""Points where boundaries of a plane meet: found between rows, and located where the losses of a plane say."""

from dataclasses import dataclass, field, replace

import pytest
from scipy.optimize import brentq

import saddleforge as sf
from saddleforge.base.errors import NotConvergedError
from saddleforge.extensions.planes import meetings
from saddleforge.extensions.planes.boundaries import BRACKETED, Boundary, Row
from saddleforge.extensions.planes.meetings import UNCONFIRMED, met, suspects

VALUES = (1.0, 2.0, 3.0, 4.0)
AT, HEIGHT = 2.3, 0.17  # where boundaries meet
ERROR = 1e-4  # of what is located


@dataclass
class Solved:
    training_loss: float
    slope: float = 0.0  # in the first parameter
    residual_loss: float = 0.0
    training_loss_error: float = 1e-5


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
        row = Row(sf.problem("dot_product_attention", alpha=1.0, omega=y), "alpha", "omega", y, VALUES, records)
        return row, {change: self.boundary(row, change) for change in row.changes()}

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
        return Solved(loss(x, y), loss(x + 0.5, y) - loss(x - 0.5, y))

    def located(self, monkeypatch):
        """What stands in for the machinery of thresholds."""
        plane = self

        class Followed:
            parameter = "alpha"

            def __init__(self, row, name, numbers, seed):
                self.name, self.y, self.known = name, row.at, {}
                for n in numbers:
                    self.at(VALUES[n])

            def at(self, x, guess=None):
                if not plane.there(self.name, x, self.y):
                    return None
                return self.known.setdefault(x, plane.solved(self.name, x, self.y))

        def crossing_on(row, pair, bracket, *_):
            names = tuple(branch.name for branch in pair)
            value = plane.crossing_of(*names, float(row.problem.parameters["omega"]))
            if not bracket[0] <= value <= bracket[1]:
                raise NotConvergedError("no sign change")
            return Event("crossing", names, value)

        def end_of(row, name, *_):
            value = plane.edges[name](row.at)
            return Event("spinodal", (name,), value, (plane.solved(name, value, row.at),))

        monkeypatch.setattr(meetings, "follower", Followed)
        monkeypatch.setattr(meetings, "crossing_on", crossing_on)
        monkeypatch.setattr(meetings, "end_of", end_of)
        monkeypatch.setattr(meetings, "refine_losses", lambda solution, _: solution)
        monkeypatch.setattr(meetings, "with_loss", lambda branch, value, solution, _: solution)
        monkeypatch.setattr(meetings, "loss_slope", lambda solution, parameter: solution.slope)
        monkeypatch.setattr(
            meetings, "loss_difference", lambda one, other: (one.training_loss - other.training_loss, 1e-5)
        )


def between(plane, *heights):
    return suspects([plane.row(y) for y in heights])


THREE = Plane(
    {
        "semantic": lambda x, y: x - AT,
        "mixed": lambda x, y: 4 * (HEIGHT - y) + 0.2 * (x - AT),
        "positional": lambda x, y: AT - x,
    }
)


def test_three_branches_of_equal_loss_meet_where_a_third_one_comes_under_a_crossing(monkeypatch):
    (found,) = between(THREE, 0.0, 0.15, 0.3, 0.45)
    assert found.kind == "triple" and set(found.branches) == {"semantic", "mixed", "positional"}
    assert [row.at for row in found.rows] == [0.15, 0.3]
    THREE.located(monkeypatch)
    point = met(found, (1e-3, 1e-3), 0)
    assert abs(point.value - AT) <= point.error and abs(point.at - HEIGHT) <= point.at_error
    assert point.status == "converged" and point.at_error < 1e-3


def test_the_other_way_up_it_is_the_same_point(monkeypatch):
    flipped = Plane({name: lambda x, y, loss=loss: loss(x, 0.45 - y) for name, loss in THREE.losses.items()})
    (found,) = between(flipped, 0.0, 0.15, 0.3, 0.45)
    flipped.located(monkeypatch)
    point = met(found, (1e-3, 1e-3), 0)
    assert abs(point.at - (0.45 - HEIGHT)) <= point.at_error


def test_a_crossing_ends_where_its_branch_does(monkeypatch):
    """Below, semantic is the lowest where it begins; above, it crosses positional first."""
    plane = Plane(
        {"semantic": lambda x, y: -(x - AT) + 3 * (y - HEIGHT), "positional": lambda x, y: 0.0},
        {"semantic": lambda y: AT + 0.5 * (y - HEIGHT)},
    )
    (found,) = between(plane, 0.0, 0.15, 0.3)
    assert (found.kind, found.branches, found.pair) == ("end", ("semantic", "positional"), ("semantic", "positional"))
    plane.located(monkeypatch)
    point = met(found, (1e-3, 1e-3), 0)
    assert abs(point.value - AT) <= point.error and abs(point.at - HEIGHT) <= point.at_error


def test_the_end_of_a_branch_passes_over_the_crossing_of_two_others(monkeypatch):
    plane = Plane(
        {"semantic": lambda x, y: x - AT, "positional": lambda x, y: AT - x, "mixed": lambda x, y: 5.0},
        {"mixed": lambda y: AT + 2 * (y - HEIGHT)},
    )
    (found,) = between(plane, 0.0, 0.15, 0.3)
    assert found.kind == "end" and found.branches[0] == "mixed" and set(found.pair) == {"semantic", "positional"}
    plane.located(monkeypatch)
    point = met(found, (1e-3, 1e-3), 0)
    assert abs(point.value - AT) <= point.error and abs(point.at - HEIGHT) <= point.at_error


def test_the_end_of_a_branch_in_a_second_one_passes_over_their_crossings_with_a_third(monkeypatch):
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
    plane.located(monkeypatch)
    point = met(found, (1e-3, 1e-3), 0)
    assert abs(point.value - AT) <= point.error and abs(point.at - HEIGHT) <= point.at_error


def test_two_branches_end_in_a_point_and_before_it_one_stops_to_cross_the_other(monkeypatch):
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
    plane.located(monkeypatch)
    equal, nothing, both = (met(suspect, (1e-3, 1e-3), 0) for suspect in found)
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


@pytest.mark.parametrize("meets", [False, True])
def test_a_difference_that_vanishes_where_two_branches_end_is_no_meeting_before(monkeypatch, meets):
    """Both end in uninformed, positional with a loss that is flat there: signs of coarse differences are noise."""
    flat = 0.1

    def ends(y):
        return AT + 5 * (HEIGHT - y)

    lift = 0.02 if meets else 0.0  # of a fold, above uninformed
    plane = Curved(
        {
            "semantic": lambda x, y: -2 * (x - AT),
            "positional": lambda x, y: lift - flat * (x - ends(y)) ** 2,
            "uninformed": lambda x, y: 0.0,
        },
        {"semantic": lambda y: AT},
        {"positional": ends},
    )
    found = next(s for s in between(plane, 0.0, 0.3) if s.branches == ("semantic", "positional", "uninformed"))
    assert found.explained
    plane.located(monkeypatch)

    def coarse(one, other):
        error = one.training_loss_error + other.training_loss_error
        return one.training_loss - other.training_loss - 0.9 * error, error

    solved, finest = plane.solved, 2e-3
    monkeypatch.setattr(plane, "solved", lambda *where: replace(solved(*where), training_loss_error=0.02))
    refined = lambda solution, tolerance: replace(solution, training_loss_error=max(finest, tolerance))  # noqa: E731
    monkeypatch.setattr(meetings, "refine_losses", refined)
    monkeypatch.setattr(meetings, "with_loss", lambda branch, value, solution, tolerance: refined(solution, tolerance))
    monkeypatch.setattr(meetings, "loss_difference", coarse)
    point = met(found, (1e-3, 1e-3), 0)
    if not meets:
        assert point is None
        return
    height = HEIGHT - (lift / flat) ** 0.5 / 5
    assert point.status != BRACKETED and abs(point.at - height) <= point.at_error


def test_a_carrier_is_located_as_finely_as_the_losses_on_it_ask(monkeypatch):
    plane = Plane(
        {"semantic": lambda x, y: -10 * (x - AT) + 3 * (y - HEIGHT), "positional": lambda x, y: 0.0},
        {"semantic": lambda y: AT + 0.5 * (y - HEIGHT)},
    )
    (found,) = between(plane, 0.15, 0.3)
    plane.located(monkeypatch)
    asked = []

    def end_of(row, name, inside, outside, accuracy, seed):
        asked.append(accuracy)
        value = plane.begins[name](row.at) + accuracy / 2
        return Event("spinodal", (name,), value, (plane.solved(name, value, row.at),), accuracy)

    monkeypatch.setattr(meetings, "end_of", end_of)
    point = met(found, (1e-2, 1e-3), 0)
    assert point.status == "converged" and abs(point.at - HEIGHT) <= point.at_error <= 1e-3
    assert asked[0] == 5e-3 and min(asked) < 1e-3  # 10 in the first parameter beside 2 in the second


@pytest.mark.parametrize("finer", ["no end", "an end elsewhere", "the same end"])
def test_a_meeting_that_finer_solutions_do_not_have_is_unconfirmed(monkeypatch, finer):
    plane = Plane(
        {"semantic": lambda x, y: -(x - AT) + 3 * (y - HEIGHT), "positional": lambda x, y: 0.0},
        {"semantic": lambda y: AT + 0.5 * (y - HEIGHT)},
    )
    (found,) = between(plane, 0.15, 0.3)
    plane.located(monkeypatch)
    accuracies = []

    def end_of(row, name, *_):
        accuracies.append(row.accuracy)
        value = plane.begins[name](row.at)
        if row.accuracy < 1e-3 and finer == "no end":
            raise NotConvergedError("none")
        if row.accuracy < 1e-3 and finer == "an end elsewhere":
            value += 0.01
        return Event("spinodal", (name,), value, (plane.solved(name, value, row.at),))

    monkeypatch.setattr(meetings, "end_of", end_of)
    point = met(found, (1e-3, 1e-3), 0)
    assert point.status == ("converged" if finer == "the same end" else UNCONFIRMED)
    assert abs(point.at - HEIGHT) <= point.at_error
    assert min(accuracies) == pytest.approx(1e-4)


def test_between_rows_a_branch_is_begun_where_it_is_found_again(monkeypatch):
    (found,) = between(THREE, 0.15, 0.3)
    THREE.located(monkeypatch)
    follower, refused = meetings.follower, []

    def soft(row, name, numbers, seed):
        if numbers == (1,):  # the point nearest to the crossing
            refused.append(row.at)
            raise NotConvergedError("no definite tangent")
        return follower(row, name, numbers, seed)

    monkeypatch.setattr(meetings, "follower", soft)
    point = met(found, (1e-3, 1e-3), 0)
    assert refused and point.status == "converged" and abs(point.at - HEIGHT) <= point.at_error


def test_a_branch_that_leaves_the_carrier_while_losses_still_come_closer_leaves_the_point_bracketed(monkeypatch):
    """Without semantic's place known well enough to say that it leaves first."""
    plane = Plane(
        {"semantic": lambda x, y: x - AT + y - 0.01, "positional": lambda x, y: 0.0, "mixed": lambda x, y: 5.0},
        {"mixed": lambda y: AT + 2 * (y - HEIGHT)},
        {},
    )
    (found,) = between(plane, 0.0, 0.3)
    plane.located(monkeypatch)
    there = plane.there
    monkeypatch.setattr(plane, "there", lambda name, x, y: there(name, x, y) and not (name == "semantic" and y > 0.05))
    assert met(found, (1e-3, 1e-3), 0).status == BRACKETED


def test_where_boundaries_only_approach_nothing_meets():
    plane = Plane(
        {"semantic": lambda x, y: x - AT, "positional": lambda x, y: AT - x, "mixed": lambda x, y: 5.0},
        {"mixed": lambda y: AT + 0.1 + 0.2 * y},
    )
    assert not between(plane, 0.0, 0.15, 0.3)


@pytest.mark.parametrize("losses, expected", [(None, BRACKETED), ("apart", None)])
def test_what_is_not_located_is_bracketed_and_what_does_not_meet_is_dropped(monkeypatch, losses, expected):
    (found,) = between(THREE, 0.15, 0.3)
    THREE.located(monkeypatch)
    if losses is None:
        monkeypatch.setattr(meetings, "crossing_on", lambda *_, **__: (_ for _ in ()).throw(NotConvergedError("lost")))
    else:
        monkeypatch.setattr(meetings, "loss_difference", lambda *_: (1.0, 0.0))
    point = met(found, (1e-3, 1e-3), 0)
    if expected is None:
        assert point is None
    else:
        assert point.status == BRACKETED and abs(point.at - HEIGHT) <= point.at_error
        assert abs(point.value - AT) <= point.error
