"""Coordinates of an output channel: their nodes, and what the channel does, seen at values of one's own.

Every coordinate is mapped to the whole line so that the integrand decays double-exponentially (real: x = sinh t;
positive: x = exp(t - exp(-t)); an angle goes once around), where the trapezoid rule converges geometrically
(H. Takahasi, M. Mori, Publ. RIMS 9 (1974) 721). A real coordinate whose law is not smooth at zero is two positive ones.

Some observed coordinates shift the fields of a sentence and do nothing else: the fields are then Y(0, .) + v m, with v
the same for all that is continuous; so that the posterior depends on m and on omega along v through omega - v m alone,
and its sums over what is hidden need not be taken at every m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..problems.problem import Problem

_PROBES = 12
_TOLERANCE = 1e-11


@dataclass(frozen=True)
class Coordinate:
    """A coordinate with its kind: "real", "positive", "angle", "discrete", or "halves", a real one in two halves."""

    name: str
    kind: str
    values: tuple[float, ...]

    @property
    def continuous(self) -> bool:
        """Whether it is integrated over."""
        return self.kind != "discrete"

    def axis(self, box: tuple[float, float], count: int) -> tuple[np.ndarray, np.ndarray]:
        """Points and logarithms of their weights."""
        if not self.continuous:
            return np.array(self.values), np.zeros(len(self.values))
        step = (box[1] - box[0]) / count
        t = box[0] + step * (np.arange(count) + 0.5)
        if self.kind == "angle":
            return t, np.full(count, np.log(step))
        if self.kind == "real":
            return np.sinh(t), np.log(np.cosh(t)) + np.log(step)
        x, slope = np.exp(t - np.exp(-t)), t - np.exp(-t) + np.log1p(np.exp(-t)) + np.log(step)
        return (x, slope) if self.kind == "positive" else (np.append(-x[::-1], x), np.append(slope[::-1], slope))

    def size(self, count: float) -> float:
        """Return the number of points of the axis."""
        return (2 * count if self.kind == "halves" else count) if self.continuous else len(self.values)


def channel_at(
    problem: Problem, labels: tuple[int, ...], observed: np.ndarray, hidden: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fields (N, H, L t), and logarithms of Jacobian and likelihood (N, H), of all observed (N, .) and hidden (H, .)
    coordinates; not finite where the channel is not."""
    with np.errstate(all="ignore"):
        fields, jacobian, likelihood = problem.solver.bayes.fields_at(observed, hidden, problem.constants(labels))
    return fields, jacobian, likelihood


def random_coordinates(
    coordinates: Sequence[tuple[str, str, tuple[float, ...]]], random: np.random.Generator
) -> np.ndarray:
    """Values of coordinates, some at random, (N, len(coordinates))."""
    columns = [
        random.choice(values, _PROBES) if kind == "discrete" else np.abs(random.normal(size=_PROBES))
        for _, kind, values in coordinates
    ]
    return np.array(columns, float).reshape(len(columns), _PROBES).T


def channels_alike(problem: Problem) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Choice of labels -> the first whose channel takes random coordinates to the same fields with the same density."""
    module, random = problem.solver.bayes, np.random.default_rng(0)
    nodes = random_coordinates(module.OBSERVED, random), random_coordinates(module.HIDDEN, random)
    firsts: dict[bytes, tuple[int, ...]] = {}
    return {
        labels: firsts.setdefault(b"".join(table.tobytes() for table in channel_at(problem, labels, *nodes)), labels)
        for labels, _ in problem.label_choices
    }


def discrete_places(coordinates: Sequence[tuple[str, str, tuple[float, ...]]]) -> list[int]:
    """Return which coordinates are discrete."""
    return [i for i, (_, kind, _) in enumerate(coordinates) if kind == "discrete"]


def find_absent(problem: Problem, labels: tuple[int, ...]) -> list[tuple[int, int, tuple[float, ...]]]:
    """Return continuous coordinates with values of the discrete ones at which nothing depends on them.

    Returns triples: 0 for an observed coordinate, 1 for a hidden one; the place in its group; and the values of the
    discrete coordinates: of the observed ones, or of observed and hidden ones.
    """
    module, random = problem.solver.bayes, np.random.default_rng(0)
    groups = module.OBSERVED, module.HIDDEN
    nodes, others = ([random_coordinates(group, random) for group in groups] for _ in range(2))
    discrete = [discrete_places(group) for group in groups]
    choices = [tuple(product(*(group[i][2] for i in places))) for group, places in zip(groups, discrete, strict=True)]
    found: list[tuple[int, int, tuple[float, ...]]] = []
    for side, group in enumerate(groups):
        for place in (i for i in range(len(group)) if i not in discrete[side]):
            alike = {}
            for seen, unseen in product(*choices):
                nodes[0][:, discrete[0]], nodes[1][:, discrete[1]] = seen, unseen
                moved = [at.copy() for at in nodes]
                moved[side][:, place] = others[side][:, place]
                pairs = zip(channel_at(problem, labels, *nodes), channel_at(problem, labels, *moved), strict=True)
                alike[seen, unseen] = all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)
            if side:
                found += [(1, place, (*seen, *unseen)) for (seen, unseen), same in alike.items() if same]
            else:
                always = (seen for seen in choices[0] if all(alike[seen, unseen] for unseen in choices[1]))
                found += [(0, place, seen) for seen in always]
    return found


@dataclass(frozen=True)
class Shift:
    """One observed coordinate that shifts the fields.

    Attributes:
        axis: which of the observed coordinates; direction: v (L t,).
        hidden: which hidden coordinates are discrete; choices: their values, one after another; factors: what v is
            multiplied with at each, one or two distinct numbers.
    """

    axis: int
    direction: np.ndarray
    hidden: list[int]
    choices: tuple[tuple[float, ...], ...]
    factors: np.ndarray

    def factor_of(self, nodes: np.ndarray) -> np.ndarray:
        """What v is multiplied with at nodes (H, hidden) of the hidden coordinates, (H,)."""
        alike = [(nodes[:, self.hidden] == choice).all(axis=1) for choice in self.choices]
        return self.factors @ np.array(alike, float)


def find_shift(problem: Problem, labels: tuple[int, ...]) -> Shift | None:
    """The first observed coordinate that is one, by the channel at random values of all others."""
    real = (axis for axis, (_, kind, _) in enumerate(problem.solver.bayes.OBSERVED) if kind == "real")
    return next((found for axis in real if (found := _shift_along(problem, labels, axis)) is not None), None)


def _shift_along(problem: Problem, labels: tuple[int, ...], axis: int) -> Shift | None:
    module, random = problem.solver.bayes, np.random.default_rng(0)
    discrete = discrete_places(module.HIDDEN)
    choices = tuple(product(*(module.HIDDEN[i][2] for i in discrete)))
    observed, hidden = random_coordinates(module.OBSERVED, random), random_coordinates(module.HIDDEN, random)
    moves = []
    for choice in choices:
        hidden[:, discrete] = choice
        moved = _move(problem, labels, observed, hidden, axis)
        if moved is None:
            return None
        moves.append(moved)
    longest = max(moves, key=lambda v: float(np.abs(v).max()))
    if not np.abs(longest).max() > 0:
        return None
    factors = np.round(np.array(moves) @ longest / (longest @ longest), 12)
    along = np.abs(np.array(moves) - factors[:, None] * longest).max() < _TOLERANCE * np.abs(longest).max()
    if not along or (factors == 0).any() or len(np.unique(factors)) > 2:
        return None
    return Shift(axis, longest, discrete, choices, factors)


def _move(
    problem: Problem, labels: tuple[int, ...], observed: np.ndarray, hidden: np.ndarray, axis: int
) -> np.ndarray | None:
    """What a unit of the coordinate moves the fields by, (L t,); None where that is not the same everywhere."""
    found = []
    for value in (0.0, 1.0, -1.5):
        at = observed.copy()
        at[:, axis] = value
        found.append(channel_at(problem, labels, at, hidden))
    (start, *rest), (ahead, *others), (behind, *more) = found
    slopes = np.concatenate([(ahead - start), (start - behind) / 1.5]).reshape(-1, start.shape[2])
    spread = [np.abs(slopes - slopes[0]).max() / max(np.abs(start).max(), 1.0)]
    spread += [np.abs(a - b).max() for a, b in zip(rest * 2, others + more, strict=True)]
    return slopes[0] if max(spread) < _TOLERANCE else None  # false where one is NaN
