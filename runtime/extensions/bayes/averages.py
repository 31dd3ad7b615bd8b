"""Averages over an output channel, as products of matrices where hidden coordinates are a fixed table.

In suitable directions (`Directions`) the known part of the fields is independent of the unknown one, and the normal
weight of Y around omega is a product with one factor a direction. With omega on a grid along them the sums over all
hidden nodes at all omega are products of matrices, of a factor a direction. Hidden nodes are divided into blocks that
lie close together, and each block contributes to the omega around it.

Where an observed coordinate m shifts the fields along one of the directions (`channel.Shift`) the sums depend on
omega - v m there, and are taken on a grid of that; where the shift takes two values, as with a sign that stays open,
the sum over (omega, m) is one over both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag

from ...base.options import AlgorithmOptions
from ...base.threads import run_in_threads
from ...channel.nodes import tensor_product_rule
from ...problems.compiled import load_loops
from ...problems.problem import Problem

LEAST_LOST_FRACTION = 5.5e-12  # of an average, in double precision: omega then ends at 7.2 standard deviations


@dataclass(frozen=True)
class MatrixProductOptions(AlgorithmOptions):
    """Options of averages over an output channel that are taken by products of matrices.

    Attributes:
        reach: standard deviations of omega that the number of points of an axis is counted across.
        block_size: hidden nodes of a block; smaller blocks leave out more omega, but make shorter products.
        central_spacing: spacing of nodes at omega = 0 relative to that far from it; smaller resolves open signs.
        central_width: distance from omega = 0, in standard deviations of the unknown part, with the closer spacing.
        product_size: multiplications of one matrix product, small enough that the BLAS library uses one thread.
        max_table_size: numbers in one table of sums; larger tables take more memory, and fewer passes.
        random_points: random values of coordinates by which properties of a channel are tested.
    """

    reach: float = 7.2
    block_size: int = 96
    central_spacing: float = 0.25
    central_width: float = 3.0
    product_size: int = 262_144
    max_table_size: float = 1e7
    random_points: int = 12


def evaluate_channel(
    problem: Problem, labels: tuple[int, ...], observed: np.ndarray, hidden: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the fields, and the logarithms of Jacobian and likelihood; not finite where the channel is not.

    Args:
        problem: the problem, which fixes parameters of the channel.
        labels: the choice of labels.
        observed: values of the observed coordinates, (N, .).
        hidden: values of the hidden ones, (H, .).

    Returns:
        The fields, (N, H, L t), and both logarithms, (N, H) each.
    """
    with np.errstate(all="ignore"):
        fields, jacobian, likelihood = problem.solver.bayes.fields_at(observed, hidden, problem.constants(labels))
    return fields, jacobian, likelihood


def sample_coordinates(
    coordinates: Sequence[tuple[str, str, tuple[float, ...]]], random: np.random.Generator
) -> np.ndarray:
    """Return random values of coordinates, (N, len(coordinates)).

    Args:
        coordinates: name, kind and allowed values of each.
        random: source of random numbers.
    """
    count = MatrixProductOptions.current().random_points
    columns = [
        random.choice(values, count) if kind == "discrete" else np.abs(random.normal(size=count))
        for _, kind, values in coordinates
    ]
    return np.array(columns, float).reshape(len(columns), count).T


def symmetric_sqrt(matrix: np.ndarray) -> np.ndarray:
    """Return the square root of positive semidefinite matrices (..., n, n)."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def covariance_factor(blocks: np.ndarray, scale: float) -> np.ndarray:
    """Return a factor (L t, R) of a covariance matrix, without its directions of no variance.

    Args:
        blocks: diagonal blocks of the covariance matrix, (L, t, t).
        scale: variances of less than 1e-15 of it count as zero.
    """
    columns = []
    for block in blocks:
        values, vectors = np.linalg.eigh(block)
        kept = values > 1e-15 * scale
        columns.append(symmetric_sqrt(block) if kept.all() else vectors[:, kept] * np.sqrt(values[kept]))
    return np.ascontiguousarray(block_diag(*columns))


def row_length(fields: int, teacher: int, curved: bool) -> int:
    """Return the length of a row (1, log Z, g_l g_l^T[, squares of dg/domega]) of averages.

    Args:
        fields: number of fields, L t.
        teacher: columns of the teacher, t.
        curved: whether squares of dg/domega are part of the row.
    """
    return 2 + fields * teacher + int(curved) * (fields * teacher) ** 2


@dataclass(frozen=True)
class Averages:
    """Averages over an output channel at given overlaps.

    Attributes:
        outer: E_c[g_l g_l^T] summed over the tokens of a context, (C, t, t).
        log_evidence: E log Z_out, nats a sample (densities of continuous observed coordinates).
        norm: sum of all weights, 1 if the rule is fine enough.
        response: d outer / dq, (C, t, t, C, t, t), docs/theory.md (13.9); None where it was not computed.
        samples: replicates of a sampled rule, whose mean this is; empty for others.
    """

    outer: np.ndarray
    log_evidence: float
    norm: float
    response: np.ndarray | None = None
    samples: tuple[Averages, ...] = ()


def accumulate_row(outer: np.ndarray, response: np.ndarray | None, contexts: np.ndarray, row: np.ndarray) -> None:
    """Add a row of averages over tokens to the sums over contexts, in place.

    Args:
        outer: sums of g_l g_l^T, (C, t, t).
        response: sums of squares of dg/domega, (C, t, t, C, t, t), or None.
        contexts: context of each token, (L,).
        row: g_l g_l^T of all tokens, then squares of dg/domega unless `response` is None.
    """
    count, t = len(contexts), outer.shape[1]
    np.add.at(outer, contexts, row[: count * t * t].reshape(count, t, t))
    if response is not None:
        squares = row[count * t * t :].reshape(count, t, t, count, t, t)
        np.add.at(np.moveaxis(response, 3, 1), (contexts[:, None], contexts), np.moveaxis(squares, 3, 1))


def relative_difference(one: Averages, other: Averages) -> float:
    """Return the largest difference of two averages; that of E g g^T is relative to its size.

    Args:
        one: the first averages.
        other: the second ones, which set the scale.
    """
    scale = max(np.abs(other.outer).max(), 1e-12)
    moved = np.abs(one.outer - other.outer).max() / scale
    return float(max(moved, abs(one.norm - other.norm), abs(one.log_evidence - other.log_evidence)))


def weighted_squares(shares: np.ndarray, g: np.ndarray, curvature: np.ndarray, t: int) -> np.ndarray:
    """Return weighted sums of g_l g_l^T and of squares of dg/domega, in the order of `posterior.collect`.

    Args:
        shares: weights of the points, (N,).
        g: slopes of log Z_out, (N, L t).
        curvature: dg/domega, (N, L t, L t), or (N, 0, 0) to leave out its squares.
        t: columns of the teacher.
    """
    count = g.shape[1] // t
    blocks = g.reshape(len(g), count, t).swapaxes(0, 1)
    first = (shares[:, None] * blocks).swapaxes(1, 2) @ blocks
    if not curvature.shape[1]:
        return first.ravel()
    D = curvature.reshape(len(g), count, t, count, t).transpose(1, 3, 0, 2, 4).reshape(count, count, len(g), t * t)
    response = ((shares[:, None] * D).swapaxes(2, 3) @ D).reshape(count, count, t, t, t, t)
    return np.concatenate([first.ravel(), response.transpose(0, 2, 4, 1, 3, 5).ravel()])


@dataclass(frozen=True)
class Truncation:
    """A truncation of sums, given by the approximate fraction of an average that is lost."""

    lost_fraction: float = LEAST_LOST_FRACTION

    @property
    def reduced_tenfold(self) -> Truncation:
        """The truncation that loses a tenth of the fraction."""
        return Truncation(max(self.lost_fraction / 10, LEAST_LOST_FRACTION))

    @property
    def omega_reach(self) -> float:
        """The largest omega, in standard deviations."""
        return float(np.sqrt(-2 * np.log(self.lost_fraction)))

    @property
    def hidden_window(self) -> float:
        """The distance of Y from omega, in standard deviations, beyond which hidden nodes are left out."""
        return float(np.sqrt(-2 * np.log(1e-3 * self.lost_fraction)))

    @property
    def log_weight_range(self) -> float:
        """The logarithm of the ratio of the largest weight to the least weight of a hidden node that is used."""
        return float(-np.log(1e-3 * self.lost_fraction))

    @property
    def min_weight(self) -> float:
        """The least weight of a node of omega and of the observed coordinates that is used."""
        return 1e-9 * self.lost_fraction


@dataclass(frozen=True)
class Directions:
    """Directions of the fields in which known and unknown parts are independent, the unknown ones of variance 1.

    Attributes:
        to_fields: Y - E Y = to_fields y, (D, D), whose inverse is from_fields; known: variances of omega in them, (D,).
    """

    to_fields: np.ndarray
    known: np.ndarray

    @property
    def from_fields(self) -> np.ndarray:
        """The inverse of `to_fields`, (D, D)."""
        return np.linalg.inv(self.to_fields)

    @property
    def informative(self) -> list[int]:
        """The directions in which omega has a variance."""
        return np.flatnonzero(self.known > 0).tolist()

    @classmethod
    def from_covariances(cls, known: np.ndarray, unknown: np.ndarray) -> Directions:
        """Return the directions in which two covariances are diagonal.

        Args:
            known: covariance blocks of omega, q of every token, (L, t, t).
            unknown: covariance blocks of Y around omega, V = rho* - q, (L, t, t).
        """
        count, t = known.shape[:2]
        to_fields, variances = np.zeros((count, t, count, t)), np.zeros((count, t))
        for l in range(count):
            factor = np.linalg.cholesky(unknown[l])
            inverse = np.linalg.inv(factor)
            values, vectors = np.linalg.eigh(inverse @ known[l] @ inverse.T)
            to_fields[l, :, l], variances[l] = factor @ vectors, np.where(values > 1e-15, values, 0.0)
        return cls(to_fields.reshape(count * t, count * t), variances.ravel())

    def align_with(self, along: np.ndarray) -> tuple[Directions, int] | None:
        """Return the directions with one of them turned to a vector of fields, and its number.

        Returns:
            None where the vector mixes directions of different known variances, or where these are zero.
        """
        y = self.from_fields @ along
        alike = np.flatnonzero(np.abs(self.known - self.known[np.argmax(np.abs(y))]) <= 1e-10 * self.known.max())
        if np.abs(np.delete(y, alike)).max(initial=0.0) > 1e-12 * np.abs(y).max() or not self.known[alike[0]] > 0:
            return None
        turn, _ = np.linalg.qr(np.column_stack([y[alike], np.eye(len(alike))]))
        to_fields = self.to_fields.copy()
        to_fields[:, alike] = to_fields[:, alike] @ turn
        return Directions(to_fields, self.known), int(alike[0])

    def halved_directions(self, even: Sequence[int], t: int, along: int | None = None) -> list[int]:
        """Return directions of which the positive half is enough, one for each column.

        Args:
            even: columns in each of which all averaged functions are even.
            t: columns of the teacher; if all are even and no direction belongs to one alone, one direction is halved.
            along: a direction that is not halved.
        """
        chosen = []
        parts = np.abs(self.to_fields.reshape(-1, t, len(self.known))).max(axis=0)  # (t, D)
        for column in even:
            others = np.delete(parts, column, axis=0).max(axis=0, initial=0.0)
            mixed = (parts[column] > 0) & (others > 1e-13 * parts[column].max())
            own = [i for i in self.informative if i != along and parts[column, i] > 0 and not mixed[i]]
            if own and not mixed.any():
                chosen.append(own[-1])
        rest = [i for i in self.informative if i != along]
        return chosen or rest[-1:] * (len(even) == t)

    def plain_grid(self, count: float, cut: Truncation, halved: Sequence[int] = ()) -> Grid:
        """Return the grid of omega of a channel without a shift.

        Args:
            count: points across the law of omega.
            cut: truncation of the law.
            halved: directions of which only the positive half is used.
        """
        axes = [direction_nodes(i, self.known[i], count, i in halved, cut) for i in self.informative]
        # Where nothing is known omega is zero in every direction, and its one node along none of them.
        first, *others = axes or [Axis(-1, np.zeros(1), np.ones(1))]
        return Grid(first, tuple(others), first.weights[:, None])

    def shifted_grid(
        self, along: int, factors: np.ndarray, reach: float, count: float, points: float, cut: Truncation,
        halved: Sequence[int] = (),
    ) -> Grid:  # fmt: skip
        """Return the grid of a channel with a shift of the fields along a direction.

        Args:
            along: the direction.
            factors: the one or two distinct factors of the shift, in units of y.
            reach: largest |y| in this direction without the shift.
            count: points across the law of omega.
            points: the same of omega - v m.
            cut: truncation of the law.
            halved: directions of which only the positive half is used.
        """
        others = tuple(
            direction_nodes(i, self.known[i], count, i in halved, cut) for i in self.informative if i != along
        )
        variance = self.known[along]
        step = 2 * MatrixProductOptions.current().reach / points * min(1.0, np.sqrt(variance))
        reach += cut.hidden_window
        if len(factors) == 1:
            half = int(np.ceil(reach / step))
            nodes = step * (np.arange(-half, half) + 0.5)
            weights = np.full((len(nodes), 1), step / abs(factors[0]))
            return Grid(Axis(along, nodes, weights[:, 0]), others, weights, (float(factors[0]),))
        one, two = map(float, factors)
        # omega = (two x - one x') / (two - one) at nodes x = omega - one m, x' = omega - two m
        widest = max(abs(two), abs(one)) / min(abs(two), abs(one))
        beyond = abs(two - one) / min(abs(one), abs(two)) * cut.omega_reach * np.sqrt(variance)
        half = int(np.ceil((widest * reach + beyond) / step))
        nodes = step * (np.arange(-half, half) + 0.5)
        squares = ((two * nodes[:, None] - one * nodes) / (two - one)) ** 2 / variance
        weights = step**2 / abs(two - one) * np.exp(-squares / 2) / np.sqrt(2 * np.pi * variance)
        weights[squares > cut.omega_reach**2] = 0.0
        return Grid(Axis(along, nodes, weights[:, 0]), others, weights, (one, two))


class Axis(NamedTuple):
    """Nodes of omega in one direction, -1 for none, in ascending order, with the weights of its law."""

    direction: int
    nodes: np.ndarray
    weights: np.ndarray


def direction_nodes(direction: int, variance: float, count: float, even: bool, cut: Truncation) -> Axis:
    """Return nodes of omega in one direction, closer to each other around zero.

    Where the observed coordinates leave a sign open both signs count for omega as small as the unknown part, and the
    posterior mean varies there as steeply as tanh; farther out it does not.

    Args:
        direction: its number.
        variance: variance of omega in it.
        count: points across the law, or across the unknown part if that is narrower.
        even: whether to use the positive half only, with the weights of both.
        cut: truncation of the law.
    """
    options = MatrixProductOptions.current()
    unit, step = min(1.0, np.sqrt(variance)), 2 * options.reach / count
    zone, stretch = options.central_width, 1 - options.central_spacing
    half = int(np.ceil((cut.omega_reach * np.sqrt(variance) / unit + stretch * zone) / step))
    t = step * (np.arange(0 if even else -half, half) + 0.5)
    bend = np.tanh(t / zone)
    x = unit * (t - stretch * zone * bend)
    slope = unit * (1 - stretch * (1 - bend**2))
    weights = (1 + even) * step * slope * np.exp(-x * x / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    return Axis(direction, x, weights)


@dataclass(frozen=True)
class Grid:
    """A product grid of omega, and of an observed coordinate that shifts the fields if there is one.

    Attributes:
        first: nodes in the direction that comes first, or along which fields are shifted.
        others: in the other directions.
        weights: (N, N') of the nodes of `first`: of one sum over hidden coordinates, N' = 1, or of one at each of two
            nodes.
        factors: the one or two factors by which hidden coordinates multiply the shift; 0 without a shift.
    """

    first: Axis
    others: tuple[Axis, ...]
    weights: np.ndarray
    factors: tuple[float, ...] = (0.0,)

    def other_nodes(self, D: int) -> tuple[np.ndarray, np.ndarray]:
        """Return all nodes of the other directions, (M, D), zero elsewhere, and their weights, (M,)."""
        nodes, weights = tensor_product_rule([(a.nodes, a.weights) for a in self.others])
        places = np.zeros((len(weights), D))
        places[:, [a.direction for a in self.others]] = nodes
        return places, weights

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All axes, `first` last."""
        return (*self.others, self.first)

    @property
    def size(self) -> float:
        """The number of nodes of omega, those of `first` counted once."""
        return float(np.prod([float(len(a.nodes)) for a in self.axes]))

    def relevant_size(self, cut: Truncation) -> float:
        """Return approximately how many nodes of omega one hidden node contributes to."""
        shares = [min(1.0, 2 * cut.hidden_window / max(float(np.ptp(a.nodes)), 1e-300)) for a in self.axes]
        return self.size * float(np.prod(shares))

    def split(self, moments: int) -> list[Grid]:
        """Return the grid split along the last direction, so that tables of sums with `moments` entries fit."""
        if not self.others:
            return [self]
        *before, last = self.others
        count = int(
            np.clip(np.ceil(self.size * moments / MatrixProductOptions.current().max_table_size), 1, len(last.nodes))
        )
        pieces = zip(np.array_split(last.nodes, count), np.array_split(last.weights, count), strict=True)
        return [replace(self, others=(*before, Axis(last.direction, *piece))) for piece in pieces]


def averages_by_products(
    fields: np.ndarray, measure: np.ndarray, log_weights: np.ndarray, law: np.ndarray, shifts: np.ndarray,
    found: Directions, grid: Grid, blocks: tuple[int, int], cut: Truncation, curved: bool,
) -> np.ndarray:  # fmt: skip
    """Return averages over omega and the observed coordinates: (1, log Z, g_l g_l^T[, squares of dg/domega]).

    Args:
        fields: less their mean, of all hidden nodes at every observed one, (N, H, D).
        measure: sum of the logarithms of Jacobian, likelihood and weights of the hidden coordinates, (N, H).
        log_weights: of the observed nodes, (N,).
        law: logarithm of the weight of both, (N, H).
        shifts: factors by which the hidden coordinates multiply the shift, (H,).
        found: directions of the fields.
        grid: nodes of omega.
        blocks: tokens and columns, L and t.
        cut: truncation of the sums.
        curved: whether squares of dg/domega are averaged, too.
    """
    options = MatrixProductOptions.current()  # read here: threads do not see the options of this call
    D = fields.shape[2]
    pairs = np.array(np.triu_indices(D)).T if curved else np.zeros((0, 2), int)
    moments = 1 + D + len(pairs)
    y = fields @ found.from_fields.T
    log_norm = -np.linalg.slogdet(found.to_fields)[1] - D * np.log(2 * np.pi) / 2
    kept = law > law.max() - cut.log_weight_range
    weights = (
        grid.weights,
        np.pad(np.cumsum(grid.weights, axis=1), ((0, 0), (1, 0))),
        np.pad(np.cumsum(grid.weights, axis=0), ((1, 0), (0, 0))),
    )
    parts = [(part, *part.other_nodes(D)) for part in grid.split(moments)]
    rows = [(np.zeros(2), np.zeros((D, D)), np.zeros((len(pairs), len(pairs)))) for _ in fields]
    collect = load_loops("products").collect_sums
    counts = kept.sum(axis=1)
    # The time of the first one decides how many threads are used.
    longest_first = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]

    def accumulate(begin: int, end: int) -> None:
        """Add the sums of some observed nodes.

        Args:
            begin: first place in `longest_first`.
            end: the place after the last one.
        """
        for n in longest_first[begin:end]:
            top = measure[n, kept[n]].max()
            factor = np.exp(top + log_weights[n] + log_norm)
            groups = [np.flatnonzero(kept[n] & (shifts == multiple)) for multiple in grid.factors]
            for part, places, others in parts:
                sums_of_groups = [
                    _sum_hidden_nodes(y[n, some], measure[n, some] - top, part, pairs, cut.hidden_window, options)
                    for some in groups
                ]
                if len(sums_of_groups) == 1:
                    sums_of_groups.append((np.zeros((len(others), 1, moments)), np.zeros((len(others), 2), int)))
                (first, spans), (second, more) = sums_of_groups
                collect(
                    first, second, np.stack([spans, more]), places, part.first.direction, part.first.nodes, weights,
                    others, factor, cut.min_weight, curved, *rows[n],
                )  # fmt: skip
            rows[n][0][1] += (top + log_norm) * rows[n][0][0]

    run_in_threads(accumulate, len(longest_first))
    sums, squares, responses = (np.sum(all_rows, axis=0) for all_rows in zip(*rows, strict=True))
    return np.concatenate([sums, *_transform_to_fields(squares, responses, pairs, found, blocks)])


def _group_nodes(y: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield indices of nodes (H, R) that lie close together, by halving along the longest extent."""
    waiting = [np.arange(len(y))] if len(y) else []
    while waiting:
        members = waiting.pop()
        extents = np.ptp(y[members], axis=0)
        if len(members) <= size or not extents.any():
            yield members
            continue
        order = np.argsort(y[members, np.argmax(extents)], kind="stable")
        waiting += [members[order[: len(order) // 2]], members[order[len(order) // 2 :]]]


def _sum_hidden_nodes(
    y: np.ndarray, measure: np.ndarray, grid: Grid, pairs: np.ndarray, window: float, options: MatrixProductOptions
) -> tuple[np.ndarray, np.ndarray]:
    """Return moments of the hidden nodes at all omega, and where along the first axis they are not zero.

    The shapes are (nodes of the others, nodes of the first, K) and (nodes of the others, 2).
    """
    axes = grid.axes
    fixed = [i for i in range(y.shape[1]) if i not in [a.direction for a in axes]]
    places = np.stack([y[:, a.direction] if a.direction >= 0 else np.zeros(len(y)) for a in axes], axis=1)
    weights = np.exp(measure - (y[:, fixed] ** 2).sum(axis=1) / 2)
    moments = np.concatenate([np.ones((len(y), 1)), y, y[:, pairs[:, 0]] * y[:, pairs[:, 1]]], axis=1)
    moments *= weights[:, None]
    shape = [len(a.nodes) for a in axes]
    table = np.zeros((*shape, moments.shape[1]))
    from_, up_to = np.full(shape[:-1], shape[-1]), np.zeros(shape[:-1], int)
    for members in _group_nodes(places, options.block_size):
        windows, kernels = [], []
        for nodes, at in zip([a.nodes for a in axes], places[members].T, strict=True):
            low, high = np.searchsorted(nodes, [at.min() - window, at.max() + window])
            windows.append(slice(low, high))
            kernels.append(np.exp(-((nodes[low:high] - at[:, None]) ** 2) / 2))
        if any(window.start == window.stop for window in windows):
            continue
        right = (moments[members][:, None] * kernels.pop()[:, :, None]).reshape(len(members), -1)
        left = np.ones((len(members), 1))
        for kernel in kernels:
            left = (left[:, :, None] * kernel[:, None]).reshape(len(members), -1)
        step = max(1, options.product_size // right.size)
        part = np.concatenate([left[:, i : i + step].T @ right for i in range(0, left.shape[1], step)])
        place, last = tuple(windows[:-1]), windows[-1]
        table[tuple(windows)] += part.reshape(*(w.stop - w.start for w in windows), moments.shape[1])
        from_[place] = np.minimum(from_[place], last.start)
        up_to[place] = np.maximum(up_to[place], last.stop)
    spans = np.stack([np.minimum(from_, up_to).ravel(), up_to.ravel()], axis=1)
    return table.reshape(-1, *table.shape[-2:]), spans


def _transform_to_fields(
    squares: np.ndarray, responses: np.ndarray, pairs: np.ndarray, found: Directions, blocks: tuple[int, int]
) -> list[np.ndarray]:
    """Return g_l g_l^T and squares of dg/domega of the fields, from upper triangles of those along the directions."""
    count, t = blocks
    back, D = found.from_fields, count * t
    outer = back.T @ (np.triu(squares) + np.triu(squares, 1).T) @ back
    diagonal = [outer[l * t : (l + 1) * t, l * t : (l + 1) * t].ravel() for l in range(count)]
    if not len(pairs):
        return diagonal
    place = np.empty((D, D), int)
    place[pairs[:, 0], pairs[:, 1]] = place[pairs[:, 1], pairs[:, 0]] = np.arange(len(pairs))
    whole = (np.triu(responses) + np.triu(responses, 1).T)[place.ravel()[:, None], place.ravel()]
    both = np.kron(back, back)
    whole = (both.T @ whole @ both).reshape(count, t, count, t, count, t, count, t)
    return [*diagonal, np.einsum("lakilbkj->labkij", whole).ravel()]
