"""Averages over an output channel: how finely its coordinates are divided, and what follows.

Ranges of coordinates are widened as far as tails reach. Two orders of integration are used: omega first and the
observed given it; or, where nothing continuous stays hidden, the fields Y first and omega given them, which stays well
conditioned up to perfect recovery.

Every coordinate is mapped to the whole line so that the integrand decays double-exponentially (real: x = sinh t;
positive: x = exp(t - exp(-t)); an angle goes once around), where the trapezoid rule converges geometrically
(H. Takahasi, M. Mori, Publ. RIMS 9 (1974) 721). A real coordinate whose law is not smooth at zero is two positive ones.

Some observed coordinates shift the fields of a sentence and do nothing else: the fields are then Y(0, .) + v m, with v
the same for all that is continuous; so that the posterior depends on m and on omega along v through omega - v m alone,
and its sums over what is hidden need not be taken at every m.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, permutations, product
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from ...base.errors import InputError, NotConvergedError
from ...base.threads import share
from ...channel.lattices import points_in_ball, sampling_lattice
from ...channel.nodes import midpoints, tensor
from ...problems.problem import Problem
from .averages import (
    LEAST_SHARE,
    REACH,
    Averages,
    Cut,
    Directions,
    add_up,
    averages_by_products,
    change,
    channel_at,
    random_coordinates,
    varying,
    width,
)
from .sampling import Planted, suits

_REACH = 7.8  # standard deviations of normal fields: 6e-15 of their law lies beyond
_LOWEST = -36.0  # log of the share of the largest value beyond which a coordinate is cut off
_T_RANGE = {"real": (-8.0, 8.0), "positive": (-6.0, 8.0), "halves": (-6.0, 8.0), "angle": (-np.pi, np.pi)}
_FARTHEST = 300.0  # of t: x is 1e130
_T_LIMITS = _T_RANGE | {"real": (-_FARTHEST, _FARTHEST)} | dict.fromkeys(("positive", "halves"), (-6.0, _FARTHEST))
_MOST_RANGES = 20  # ranges that are tried
_SCAN = 2e5  # points of a look over all coordinates
_NEGLIGIBLE = 1e-13  # share of the largest weight of a node at which others are left out
_MOST_EVALUATIONS, _MOST_NODES = 3e8, 6e7  # of one average by fields; of the coordinates, all combinations
_LITTLE_KNOWN = 1e-2  # variance of omega beside that of Y around it below which a shift is a coordinate like others
_ROUGH = Cut(1e-6)
_MOST_COORDINATES, _MOST_PRODUCTS = 4, 6e9  # of the channel, and multiplications of an average, that sums are taken for
_FEW_PRODUCTS = 1e4  # multiplications up to which an average is cheap, as of one field
_WIDEST, _COUNTS = 3.0, 12.0  # spacing of hidden nodes in standard deviations of what is unknown; -log of weights there
_MOST_BY_FIELDS = 5  # fields of omega and coordinates, where nothing continuous stays hidden
START_POINTS, START_POINTS_OF_SEVERAL, _GROWTH = 24, 14, 1.4
_KEPT = 64  # averages that are kept, as rules are compared at one q
_MEAN_TOLERANCE = 1e-2  # in standard deviations of a field; where values are counted twice it is off by order 1
_NORM, _MOST_NODES_OF_NORM = 1e-7, 1e7  # least tolerance of the sum of all probabilities, and most nodes that it takes
_ROUNDING = 1e-12  # of such a sum
_MANY = 400  # points of a coordinate that a smooth law does not need
_LEVELS, _MOST_LEVELS = 30.0, 9  # factor between tolerances on the way to the one asked for, and most of them
_TOLERANCE = 1e-11  # of moves that are the same, relative


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


class Channel:
    """The output channel of a problem with a rule that refines itself.

    Attributes:
        counts: points of the normal fields, then of each continuous coordinate, observed before hidden.
        cut: what sums by products leave out.
        planted: the rule for fields that stay hidden, where a product has too many dimensions.

    Raises:
        InputError: the model has no output channel, or parameters at which it is another one.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.module = problem.solver.bayes
        self.observed = [Coordinate(*c) for c in self.module.OBSERVED]
        self.hidden = [Coordinate(*c) for c in self.module.HIDDEN]
        self.every = [*self.observed, *self.hidden]
        self.by_fields = not any(c.continuous for c in self.hidden)
        self.cut = Cut()
        self._tables: dict[Any, Any] = {}
        self._found: dict[Any, Averages] = {}
        self._covered: dict[Any, list[int]] = {}
        self.planted = Planted(problem, lambda: self.boxes)
        few = START_POINTS_OF_SEVERAL if self.dear else START_POINTS
        self.counts = [few] * (1 + sum(c.continuous for c in self.every))
        for labels, _ in problem.label_choices:
            if not self.module.needs_at(problem.constants(labels)) > 0:
                raise InputError(
                    f"the output channel of {problem.solver.name} is not the one it declares at these parameters: "
                    f"{self.module.NEEDS} must be positive"
                )

    def _law_of_fields(self, labels: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Mean (L t,) and covariance blocks (L, t, t) of Y."""
        contexts = self.problem.context_of(labels)
        return self.problem.law.teacher_means[contexts].ravel(), self.problem.law.rho_star[contexts]

    def _log_density(self, fields: np.ndarray, labels: tuple[int, ...], shift: Shift | None = None) -> np.ndarray:
        """log of the normal density of the fields Y; with a shift that of all but where they are along it."""
        mean, covariances = self._law_of_fields(labels)
        precision = block_diag(*np.linalg.inv(covariances))
        step = fields - mean
        with np.errstate(over="ignore", invalid="ignore"):
            exponent = -0.5 * np.einsum("nhi,ij,nhj->nh", step, precision, step)
            if shift is not None:
                along = precision @ shift.direction
                exponent += 0.5 * (step @ along) ** 2 / (shift.direction @ along)
        return exponent - 0.5 * np.linalg.slogdet(2 * np.pi * covariances)[1].sum()

    @cached_property
    def boxes(self) -> dict[tuple[int, ...], list[tuple[float, float]]]:
        """Labels -> range of t of every continuous coordinate outside of which the joint weight is negligible."""
        return {labels: self._box(labels) for labels, _ in self.problem.label_choices}

    def _box(self, labels: tuple[int, ...]) -> list[tuple[float, float]]:
        continuous = [c for c in self.every if c.continuous]
        discrete = tuple(i for i, c in enumerate(self.every) if not c.continuous)
        boxes = [_T_RANGE[c.kind] for c in continuous]
        choices = int(np.prod([c.size(1) for c in self.every]))
        count = min(max(int((_SCAN / choices) ** (1 / max(len(continuous), 1))), 8), 400)
        for _ in range(_MOST_RANGES):
            counts = [count] * len(boxes)
            weights = self._table(labels, counts, boxes)[3].reshape(self._shape(counts))
            for axis, coordinate in enumerate(self.every):
                if coordinate.kind == "halves":
                    below, above = np.split(weights, 2, axis=axis)
                    weights = np.maximum(np.flip(below, axis), above)
            weights = weights.max(axis=discrete)
            new = []
            for axis, (low, high) in enumerate(boxes):
                others = tuple(i for i in range(len(boxes)) if i != axis)
                kept = np.flatnonzero(weights.max(axis=others) > weights.max() + _LOWEST)
                step = (high - low) / count
                # An end that still counts is moved outward by half the range, any other to where weights begin.
                ends = kept[0] - 1 if kept[0] else -count / 2, kept[-1] + (2 if kept[-1] < count - 1 else 1 + count / 2)
                limits = _T_LIMITS[continuous[axis].kind]
                new.append((max(low + step * ends[0], limits[0]), min(low + step * ends[1], limits[1])))
            moved = any(not 0.9 * (d - c) < b - a < 1.1 * (d - c) for (a, b), (c, d) in zip(new, boxes, strict=True))
            boxes = new
            if not moved:
                break
        return boxes

    def _shape(self, counts: Sequence[int]) -> list[int]:
        """Points of every coordinate, observed first; `counts` are those of the continuous ones."""
        left = iter(counts)
        return [int(c.size(next(left) if c.continuous else 0)) for c in self.every]

    def _table(
        self, labels: tuple[int, ...], counts: Sequence[int], boxes: Any = None, shift: Shift | None = None
    ) -> tuple[np.ndarray, ...]:
        """fields (N, H, L t); Jacobian, likelihood and hidden weights (N, H); observed weights (N,); the law of Y with
        all of them (N, H), the coordinate of a shift integrated over, at zero; the likelihood (N, H); what the shift is
        multiplied with, (H,). The second to fifth are logarithms.

        Args:
            counts: points of the continuous coordinates; boxes: their ranges, `boxes` by default.

        Raises:
            NotConvergedError: it would be too large.
        """
        shape = [1 if shift is not None and i == shift.axis else n for i, n in enumerate(self._shape(counts))]
        self._check_size(float(np.prod(shape, dtype=float)), _MOST_NODES)
        divisions = zip(self.boxes[labels] if boxes is None else boxes, counts, strict=True)
        axes = [c.axis(*(next(divisions) if c.continuous else ((0.0, 0.0), 0))) for c in self.every]
        if shift is not None:
            axes[shift.axis] = np.zeros(1), np.zeros(1)
        groups = axes[: len(self.observed)], axes[len(self.observed) :]
        nodes = [np.ascontiguousarray(tensor(group)[0]) for group in groups]
        seen, unseen = (tensor([(weights, weights) for _, weights in group])[0].sum(axis=1) for group in groups)
        observed, hidden = nodes
        fields, jacobian, likelihood = channel_at(self.problem, labels, observed, hidden)
        # Of a coordinate on which nothing depends at some values of the discrete ones one node is left, of weight one.
        of_observed, of_hidden = discrete_places(self.module.OBSERVED), discrete_places(self.module.HIDDEN)
        for side, place, choice in self._absences[labels]:
            x, weight = (values[len(values) // 2] for values in groups[side][place])
            left_out = np.where(nodes[side][:, place] == x, weight, np.inf)
            rows = (observed[:, of_observed] == choice[: len(of_observed)]).all(axis=1)
            if side:
                columns = (hidden[:, of_hidden] == choice[len(of_observed) :]).all(axis=1)
                jacobian[np.ix_(rows, columns)] -= left_out[columns]
            else:
                seen[rows] -= left_out[rows]
        factors = np.ones(len(unseen)) if shift is None else shift.factor_of(hidden)
        with np.errstate(invalid="ignore", over="ignore"):
            measure = jacobian + likelihood + unseen
            law = measure + seen[:, None] + self._log_density(fields, labels, shift)
        return fields, measure, seen, np.where(np.isfinite(law), law, -np.inf), likelihood, factors

    def table(self, labels: tuple[int, ...], shift: Shift | None = None) -> tuple[np.ndarray, ...]:
        """What is not negligible of `_table` of the rule."""
        key = (labels, shift is None, tuple(self.counts))
        if key not in self._tables:
            self._tables.clear()
            fields, measure, seen, law, likelihood, shifts = self._table(labels, self.counts[1:], shift=shift)
            rows = law.max(axis=1) > law.max() + _LOWEST
            columns = (law > law.max() - 80.0).any(axis=0)
            kept = np.ix_(rows, columns)
            measure = np.where(np.isfinite(measure) & np.isfinite(fields).all(axis=2), measure, -np.inf)
            fields = np.where(np.isfinite(fields), fields, 0.0)
            found = (fields[kept], measure[kept], seen[rows], law[kept], likelihood[kept], shifts[columns])
            self._tables[key] = tuple(map(np.ascontiguousarray, found))
        return self._tables[key]

    def _normal_nodes(self, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        """Of the standard normal law of so many fields: the points of a lattice in a ball, of the spacing that so many
        points across it have."""
        if dimension < 2:
            return tensor([midpoints(self.counts[0], _REACH)] * dimension)
        spacing = 2 * REACH / self.counts[0]
        nodes = spacing * points_in_ball(sampling_lattice(dimension), REACH / spacing)
        weights = spacing**dimension * np.exp(-(nodes * nodes).sum(axis=1) / 2) / (2 * np.pi) ** (dimension / 2)
        return nodes, weights

    def is_sampled(self, q: np.ndarray) -> bool:
        """Whether averages at q are taken by sampling: too many coordinates for a product, or nodes of them and of
        omega."""
        if not suits(self.module):
            return False
        coordinates = sum(c.continuous for c in self.every)
        if self.by_fields:
            contexts = slice(None, self.problem.tokens * self.problem.clusters, self.problem.clusters)
            return varying(q[contexts], self._scale).shape[1] + coordinates > _MOST_BY_FIELDS
        return coordinates > _MOST_COORDINATES or self._products_at(q) > _MOST_PRODUCTS

    def _products_at(self, q: np.ndarray) -> float:
        """Multiplications of hidden nodes with those of omega in one average by a rough rule."""
        total = 0.0
        for labels in self._distinct(q):
            found, shift = self._directions(q, labels), self._shifts[labels]
            halved = found.halves(self.kept_by_signs, self.problem.teacher_rank)
            grid = found.plain_grid(START_POINTS_OF_SEVERAL, _ROUGH, halved)
            summed = [c for i, c in enumerate(self.every) if not (shift and found.varying and i == shift.axis)]
            total += float(np.prod([c.size(float(START_POINTS_OF_SEVERAL)) for c in summed])) * grid.reached(_ROUGH)
        return total

    def _directions(self, q: np.ndarray, labels: tuple[int, ...]) -> Directions:
        known = q[self.problem.context_of(labels)]
        return Directions.of(known, self._law_of_fields(labels)[1] - known)

    def _distinct(self, q: np.ndarray) -> list[tuple[int, ...]]:
        """Choices of labels whose averages differ."""
        return list({self._alike(q, labels): labels for labels, _ in self.problem.label_choices}.values())

    @cached_property
    def dear(self) -> bool:
        """Whether averages take long, or are drawn, where anything is known of all columns: rules are then asked no
        more than half widths will tell."""
        half = self.problem.law.rho_star / 2
        return suits(self.module) and (
            self.is_sampled(half) or (not self.by_fields and self._products_at(half) > _FEW_PRODUCTS)
        )

    @cached_property
    def _scale(self) -> float:
        return float(np.abs(self.problem.law.rho_star).max())

    @cached_property
    def kept_by_signs(self) -> list[int]:
        """Columns of the teacher whose sign what is observed does not tell: the law of the fields is even in them."""
        law, found = self.problem.law, []
        for column in range(self.problem.teacher_rank) if self._normal else ():
            turn = np.diag(np.where(np.arange(self.problem.teacher_rank) == column, -1.0, 1.0))
            even = np.array_equal(law.teacher_means @ turn, law.teacher_means)
            if even and np.array_equal(turn @ law.rho_star @ turn, law.rho_star) and not self._tells(turn):
                found.append(column)
        return found

    @cached_property
    def kept_by_rotations(self) -> bool:
        """Whether what is observed does not tell any rotation of all columns of the teacher, nor does their law."""
        rho, t = self.problem.law.rho_star, self.problem.teacher_rank
        alike = np.abs(rho - rho[:, :1, :1] * np.eye(t)).max() < 1e-12 * np.abs(rho).max()
        if t < 2 or not self._centred or not alike:
            return False
        return not self._tells(np.linalg.qr(np.random.default_rng(1).normal(size=(t, t)))[0])

    @cached_property
    def exchanges(self) -> list[np.ndarray]:
        """Permutations of the teacher's columns, (t, t) each, that neither what is observed tells nor their law; signs
        may go with them. The first leaves all where they are."""
        law, t = self.problem.law, self.problem.teacher_rank
        grams = law.gram[:, -t:, -t:]
        found = [np.eye(t)]
        if not self._centred:
            return found
        for order in islice(permutations(range(t)), 1, None):
            exchange = np.eye(t)[list(order)]
            alike = np.abs(exchange @ grams @ exchange.T - grams).max() < 1e-12 * np.abs(grams).max()
            signs = product((1, -1), repeat=t)
            if alike and not all(self._tells(exchange * np.array(sign)) for sign in signs):
                found.append(exchange)
        return found

    @property
    def _normal(self) -> bool:
        """Whether rows are normal, and what is observed follows from the fields."""
        return suits(self.module) and self.problem.law.rows is None

    @property
    def _centred(self) -> bool:
        """Whether their mean is zero, too."""
        return self._normal and not np.abs(self.problem.law.teacher_means).max() > 0

    @cached_property
    def _kept_by_minus(self) -> bool:
        """Whether what is observed does not tell the sign of all fields at once."""
        return self._normal and not self._tells(-np.eye(self.problem.teacher_rank))

    def _tells(self, turn: np.ndarray) -> bool:
        """Whether what is observed is another where all columns are turned by a matrix (t, t)."""
        fields = np.random.default_rng(0).normal(size=(32, self.module.FIELDS))
        turned = (fields.reshape(len(fields), -1, len(turn)) @ turn).reshape(len(fields), -1)
        return any(
            not np.abs(self.planted.observed(fields, labels) - self.planted.observed(turned, labels)).max() < 1e-9
            for labels, _ in self.problem.label_choices
        )

    def averages(self, q: np.ndarray, curved: bool = False) -> Averages:
        """Averages at overlaps q, (C, t, t), 0 <= q < rho*; with their derivative in q where `curved`."""
        key = (q.tobytes(), tuple(self.counts), self.cut, curved)
        if key not in self._found:
            if self.is_sampled(q):
                return self._even(self.planted.averages(q, curved), q)
            if len(self._found) >= _KEPT:
                self._found.pop(next(iter(self._found)))
            self._found[key] = self._even(self._by_product(q, curved), q)
        return self._found[key]

    def _even(self, found: Averages, q: np.ndarray) -> Averages:
        """What is zero by the sign of a column that is not coupled to others, exactly zero."""
        t = q.shape[1]
        odd = np.zeros((t, t), bool)
        for column in self.kept_by_signs:
            others = [a for a in range(t) if a != column]
            if not np.abs(q[:, column][:, others]).max(initial=0.0) > 0:
                odd[column, others] = odd[others, column] = True
        if not odd.any():
            return found
        mixed = odd[:, :, None, None] ^ odd[None, None]  # squares of one parity do not answer to those of another
        return replace(
            found,
            outer=np.where(odd, 0.0, found.outer),
            response=None if found.response is None else np.where(mixed[None, :, :, None], 0.0, found.response),
            samples=tuple(self._even(sample, q) for sample in found.samples),
        )

    def _by_product(self, q: np.ndarray, curved: bool) -> Averages:
        outer = np.zeros_like(q)
        response = np.zeros((*q.shape, *q.shape)) if curved else None
        log_evidence = norm = 0.0
        sums: dict[Any, np.ndarray] = {}
        for labels, probability in self.problem.label_choices:
            alike = self._alike(q, labels)
            if alike not in sums:
                sums[alike] = (self._sum_by_fields if self.by_fields else self._sum_by_omega)(q, labels, curved)
            total = sums[alike]
            norm += probability * total[0]
            log_evidence += probability * total[1]
            add_up(outer, response, self.problem.context_of(labels), probability * total[2:])
        return Averages(outer, log_evidence, norm, response)

    def _alike(self, q: np.ndarray, labels: tuple[int, ...]) -> tuple[Any, ...]:
        """What the averages of a choice of labels follow from."""
        mean, covariances = self._law_of_fields(labels)
        if self._kept_by_minus and mean.any() and mean[np.flatnonzero(mean)[0]] < 0:
            mean = -mean
        known = q[self.problem.context_of(labels)]
        return (self._channels[labels], known.tobytes(), mean.tobytes(), covariances.tobytes())

    @cached_property
    def _channels(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Choice of labels -> the first with the same channel."""
        return channels_alike(self.problem)

    def _sum_by_fields(self, q: np.ndarray, labels: tuple[int, ...], curved: bool) -> np.ndarray:
        """Fields first, and omega given them: (1, log Z, g_l g_l^T, with `curved` squares of dg/domega)."""
        law, contexts = self.problem.law, self.problem.context_of(labels)
        fields, measure, _, law_of_y, *_ = self.table(labels)
        known, rho = q[contexts], law.rho_star[contexts]
        gain = known @ np.linalg.inv(rho)
        factor = varying(known - gain @ known, self._scale)
        nodes, weights = self._normal_nodes(factor.shape[1])
        self._check_size(float(np.prod(fields.shape[:2])) * len(nodes) * fields.shape[1], _MOST_EVALUATIONS)
        precision = np.linalg.inv(rho - known)
        log_norm = -0.5 * np.linalg.slogdet(2 * np.pi * (rho - known))[1].sum()
        rows = np.zeros((len(fields), width(fields.shape[2], q.shape[1], curved)))
        share(
            self.module.averages_by_fields, len(rows),
            fields, measure, law_of_y, law.teacher_means[contexts].ravel(), block_diag(*gain), factor, precision,
            log_norm, nodes, weights, int(curved), rows,
        )  # fmt: skip
        return rows.sum(axis=0)

    def _sum_by_omega(self, q: np.ndarray, labels: tuple[int, ...], curved: bool) -> np.ndarray:
        """omega first, and what is observed given it: the same."""
        mean, rho = self._law_of_fields(labels)
        found, along, shift = self._directions(q, labels), None, self._shifts[labels]
        if shift is not None and (turn := found.turned(shift.direction)) and turn[0].known[turn[1]] >= _LITTLE_KNOWN:
            found, along = turn
        else:
            shift = None
        fields, measure, seen, law_of_y, _, shifts = self.table(labels, shift)
        fields = fields - mean
        halved = found.halves(self.kept_by_signs, q.shape[1], along)
        if shift is None or along is None:
            grid, shifts = found.plain_grid(self.counts[0], self.cut, halved), np.zeros(len(shifts))
        else:
            back = found.from_fields[along]
            shifts = shifts * (back @ shift.direction)  # in units of y
            reach = float(np.abs(fields[law_of_y > law_of_y.max() + _LOWEST] @ back).max())
            points = self.counts[1 + sum(c.continuous for c in self.observed[: shift.axis])]
            grid = found.shifted_grid(along, np.unique(shifts), reach, self.counts[0], points, self.cut, halved)
        return averages_by_products(
            fields, measure, seen, law_of_y, shifts, found, grid, (len(rho), q.shape[1]), self.cut, curved
        )

    def _check_size(self, size: float, most: float) -> None:
        if size > most:
            raise NotConvergedError(
                f"the average over the output channel of {self.problem.solver.name} needs more than {most:g} "
                "evaluations"
            )

    @cached_property
    def _absences(self) -> dict[tuple[int, ...], list[tuple[int, int, tuple[float, ...]]]]:
        """Choice of labels -> the coordinates that nothing depends on at some values of the discrete ones."""
        return {labels: find_absent(self.problem, labels) for labels, _ in self.problem.label_choices}

    @cached_property
    def _shifts(self) -> dict[tuple[int, ...], Shift | None]:
        """Choice of labels -> the observed coordinate that shifts the fields, if one does."""
        return {labels: find_shift(self.problem, labels) for labels, _ in self.problem.label_choices}

    def leave_out(self, accuracy: float) -> None:
        """Let sums by products lose a hundredth of an accuracy asked for."""
        self.cut = Cut(float(np.clip(1e-2 * accuracy, LEAST_SHARE, 1e-4)))

    def settle(
        self, q: np.ndarray, tolerance: float, moved: Callable[[Averages, Averages], float] = change
    ) -> tuple[Averages, float]:
        """Refine each axis, the others as they are, until averages move by less than `tolerance`.

        First roughly, so that the others are never far from fine.

        Args:
            moved: what a rule and a finer one differ by; by default relative to the size of the averages.

        Returns the averages and the sum of the last moves.

        Raises:
            NotConvergedError: the rule would grow too large.
        """
        if self.is_sampled(q):
            self.planted.settle(q, max(tolerance, 1e-5))
            return self.averages(q), 0.0
        self.leave_out(tolerance)
        for labels in self._distinct(np.zeros_like(q)):
            self._cover(labels, tolerance)
        self._resolve(q)
        moves = [np.inf] * len(self.counts)
        current = self.averages(q)
        for level in reversed([tolerance * _LEVELS**k for k in range(_MOST_LEVELS) if tolerance * _LEVELS**k < 1]):
            start, settled = list(self.counts), list(self.counts)
            for axis, move in enumerate(moves):
                if not move < level:
                    settled[axis], moves[axis] = self._settled_axis(q, start, axis, level, move, current, moved)
            self.counts = settled
            if settled != start:
                current = self.averages(q)
        if abs(current.norm - 1) > _allowed(tolerance):
            raise self._unconverged(current.norm, sum(moves))
        return current, sum(moves)

    def _cover(self, labels: tuple[int, ...], tolerance: float) -> None:
        """Refine the coordinates until probabilities of what is observed, which do not depend on q, add up to one.

        A real coordinate that would take many points is divided at zero if it then takes fewer.

        Raises:
            InputError: they add up to another number, however fine the rule is.
            NotConvergedError: the rule would grow too large.
        """
        key = (labels, tolerance, tuple(self.counts))
        if key in self._covered or self._nodes(self.counts[1:]) > _MOST_NODES_OF_NORM:
            self.counts = list(self._covered.get(key, self.counts))
            return
        counts = list(self.counts[1:])
        for most in (_MANY, np.inf):
            counts, norm, error = self._refine(labels, counts, max(_NORM, tolerance), most)
            if abs(norm - 1) <= _allowed(tolerance):
                break
        self.counts[1:] = counts
        self._covered[key] = list(self.counts)
        if abs(norm - 1) > _allowed(tolerance):
            ranges = zip((c.kind for c in self.every if c.continuous), self.boxes[labels], strict=True)
            is_cut = any(kind != "angle" and _FARTHEST in (-low, high) for kind, (low, high) in ranges)
            name, short = self.problem.solver.name, norm < 1
            if error > 0.1 * abs(norm - 1) or (short and is_cut):
                raise self._unconverged(norm, error)
            fault = (
                "the coordinates do not reach all values of the fields (0.5: one of two sides is missing, as a sign "
                "among the coordinates would add it)"
                if short
                else "the coordinates reach some values of the fields more than once (2: all of them twice; let a "
                'coordinate be "positive" in place of "real", or leave a sign out)'
            )
            raise InputError(
                f"the output channel of {name} does not cover the fields exactly once: probabilities of what is "
                f"observed add up to {norm:.6g}, however fine the rule is, where 1 is needed: {fault}, or "
                "log_likelihood is not that of a density of what is observed"
            )
        self._check_mean(labels)

    def _check_mean(self, labels: tuple[int, ...]) -> None:
        """Refuse coordinates that reach some values of the fields more often than others, and all of them once on
        average: the mean of the fields over the nodes is not theirs then.

        Raises:
            InputError: with the mean.
        """
        fields, _, _, law, *_ = self._table(labels, self.counts[1:])
        mean, covariances = self._law_of_fields(labels)
        deviations = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2)).ravel()
        shares = np.exp(law)
        off = np.einsum("nh,nhi->i", shares, np.where(shares[:, :, None] > 0, fields - mean, 0.0)) / deviations
        worst = int(np.argmax(np.abs(off)))
        if abs(off[worst]) > _MEAN_TOLERANCE:
            raise InputError(
                f"the output channel of {self.problem.solver.name} does not cover the fields exactly once: over its "
                f"coordinates field {worst + 1} of Y has the mean {off[worst]:.3g} standard deviations from its own, "
                "so that some values are reached more than once and others never; a sign that is not observed is "
                'hidden={"sign": (-1, 1)}, next to the size as a "positive" coordinate'
            )

    def _refine(
        self, labels: tuple[int, ...], counts: list[int], tolerance: float, most: float
    ) -> tuple[list[int], float, float]:
        """Return points with which a finer division of any axis moves the sum of all probabilities by less than a
        tolerance, or the most allowed; that sum, and what it still moves by."""
        norm = error = 0.0
        before: Any = None
        while before != (counts, self.every):
            before, error = (counts, list(self.every)), 0.0
            for axis, place in reversed(list(enumerate(i for i, c in enumerate(self.every) if c.continuous))):
                refined = self._refine_axis(labels, counts, axis, tolerance, most)
                if refined[2] >= tolerance and self.every[place].kind == "real":
                    self._divide(place, "halves")
                    halved = self._refine_axis(labels, counts, axis, tolerance, most)
                    if halved[2] < 0.1 * refined[2]:
                        refined = halved
                    else:
                        self._divide(place, "real")
                counts, norm, moved = refined
                error += moved
        return counts, norm, error

    def _refine_axis(
        self, labels: tuple[int, ...], counts: list[int], axis: int, tolerance: float, most: float
    ) -> tuple[list[int], float, float]:
        """Return points with which a finer division of an axis moves the sum of all probabilities, or those of what is
        observed where the axis is hidden, by less than a tolerance, or the most allowed; that sum by the finer one, and
        what it moved by."""
        observed = sum(c.continuous for c in self.observed)
        found = self._probabilities(labels, counts)
        while True:
            finer = _finer_along(counts, axis)
            before, found = found, self._probabilities(labels, finer)
            moved = float(np.abs(found - before).sum() if axis >= observed else abs(found.sum() - before.sum()))
            if moved < tolerance or finer[axis] > most or self._nodes(finer) > _MOST_NODES_OF_NORM:
                return counts, float(found.sum()), moved
            counts = finer

    def _nodes(self, counts: Sequence[int]) -> float:
        return float(np.prod(self._shape(counts), dtype=float))

    def probabilities_of_observed_choices(self, labels: tuple[int, ...]) -> dict[tuple[float, ...], float]:
        """Return the probability of each choice of values of the discrete observed coordinates."""
        counts, _, _ = self._refine(labels, list(self.counts[1:]), _ROUNDING, _MANY)
        shape = self._shape(counts)[: len(self.observed)]
        summed = tuple(i for i, c in enumerate(self.observed) if c.continuous)
        values = self._probabilities(labels, counts).reshape(shape).sum(axis=summed).ravel()
        return dict(zip(product(*(c.values for c in self.observed if not c.continuous)), values, strict=True))

    def _probabilities(self, labels: tuple[int, ...], counts: Sequence[int]) -> np.ndarray:
        """Return the probabilities of the nodes of what is observed."""
        with np.errstate(over="ignore"):
            return np.exp(self._table(labels, counts)[3]).sum(axis=1)

    def _divide(self, place: int, kind: str) -> None:
        """Let a coordinate have nodes of another kind."""
        self.every[place] = replace(self.every[place], kind=kind)
        count = len(self.observed)
        self.observed, self.hidden = self.every[:count], self.every[count:]
        self.__dict__.pop("boxes", None)
        self._tables.clear()
        self._found.clear()

    def _unconverged(self, norm: float, error: float) -> NotConvergedError:
        return NotConvergedError(
            f"the average over the output channel of {self.problem.solver.name} does not converge: probabilities of "
            f"what is observed add up to {norm:.9g}, and finer rules still move that by {error:.0e}. Choose "
            "coordinates in which the law of the fields is smooth and has short tails, as a number's logarithm and sign"
        )

    def _resolve(self, q: np.ndarray) -> None:
        """Divide hidden coordinates until neighbouring nodes are no farther apart than what is unknown of the fields.

        On coarser nodes the fields seem to be known exactly, and all coarse rules agree on that.
        """
        for labels in [] if self.by_fields else self._distinct(q):
            spacing = self._spacing(q, labels)
            while spacing.max(initial=0.0) > _WIDEST:
                first = len(self.counts) - len(spacing)
                finer = np.ceil(self.counts[first:] * np.clip(1.1 * spacing / _WIDEST, 1.0, 32.0))
                self.counts = self.counts[:first] + finer.astype(int).tolist()
                spacing = self._spacing(q, labels)

    def _spacing(self, q: np.ndarray, labels: tuple[int, ...]) -> np.ndarray:
        """Return the largest distance of neighbouring nodes along each continuous hidden coordinate, where they count,
        in standard deviations of what is unknown of the fields."""
        found, shift = self._directions(q, labels), self._shifts[labels]
        fields, _, _, law, *_ = self._table(labels, self.counts[1:], shift=shift)
        shape = [len(fields), *self._shape(self.counts[1:])[len(self.observed) :]]
        counts = (law > law.max() - _COUNTS).reshape(shape)
        with np.errstate(over="ignore", invalid="ignore"):
            places = (fields @ found.from_fields.T).reshape(*shape, -1)
            spacing = []
            for axis in (1 + i for i, c in enumerate(self.hidden) if c.continuous):
                apart = np.linalg.norm(np.diff(places, axis=axis), axis=-1)
                near = counts.take(range(1, shape[axis]), axis) | counts.take(range(shape[axis] - 1), axis)
                spacing.append(float(apart[near & np.isfinite(apart)].max(initial=0.0)))
        return np.array(spacing)

    def _settled_axis(
        self, q: np.ndarray, start: list[int], axis: int, level: float, move: float, current: Averages,
        moved: Callable[[Averages, Averages], float],
    ) -> tuple[int, float]:  # fmt: skip
        """Points of an axis, the others as they start, with which a finer division moves averages by less than a level,
        and what it does.

        Args:
            current: averages at the start; move: what a finer division moves these by, infinite where not known.
        """
        counts, before, settled = list(start), current, start[axis]
        if move < np.inf:
            self.counts = counts = _finer_along(counts, axis)
            before = self.averages(q)
        while True:
            count = counts[axis]
            self.counts = counts = _finer_along(counts, axis)
            finer = self.averages(q)
            last, move = move, moved(before, finer)
            if move < level:
                break
            settled, before = count, finer
        if last < np.inf and self.dear:  # errors fall geometrically, and more nodes are dear
            share = np.log(last / level) / np.log(last / max(move, 1e-300))
            return int(np.ceil(settled + (count - settled) * share)), level
        return count, move


def _allowed(tolerance: float) -> float:
    """Return by how much the sum of all probabilities may differ from one."""
    return max(1e-6, 10 * tolerance)


def _finer_along(counts: list[int], axis: int) -> list[int]:
    return [int(np.ceil(_GROWTH * n)) if i == axis else n for i, n in enumerate(counts)]
