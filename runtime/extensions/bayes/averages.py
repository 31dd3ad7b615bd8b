"""Averages over an output channel: what they are, and, where hidden coordinates are a fixed table, sums over them as
products of matrices.

In suitable directions (`Directions`) what is known of the fields is independent of what is unknown, and the normal
weight of Y around omega is a product with one factor a direction. With omega on a grid along them the sums over all
hidden nodes at all omega are products of matrices, of a factor a direction. Hidden nodes are divided into blocks that
lie close together, and to a block belong the omega that its nodes matter at.

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

from ...base.threads import share
from ...channel.nodes import tensor
from ...problems.compiled import loops
from ...problems.problem import Problem

REACH = 7.2  # standard deviations of omega that numbers of points are counted across
LEAST_SHARE = 5.5e-12
_BLOCK = 96  # hidden nodes of a block
_DENSE, _ZONE = 0.25, 3.0  # spacing beside the usual one at zero, and how far that reaches
_PRODUCT = 262_144  # multiplications of a product, small enough for one thread of the library that does it
_MOST_SUMS = 1e7  # numbers of one table of sums
_PROBES = 12  # random values of coordinates


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


def root(matrix: np.ndarray) -> np.ndarray:
    """Square root of positive semidefinite matrices (..., n, n)."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def varying(blocks: np.ndarray, scale: float) -> np.ndarray:
    """Factor (L t, R) of a normal law with covariance blocks (L, t, t), without directions of no variance.

    Directions of less than 1e-15 of `scale` are taken for those of none.
    """
    columns = []
    for block in blocks:
        values, vectors = np.linalg.eigh(block)
        kept = values > 1e-15 * scale
        columns.append(root(block) if kept.all() else vectors[:, kept] * np.sqrt(values[kept]))
    return np.ascontiguousarray(block_diag(*columns))


def width(fields: int, teacher: int, curved: bool) -> int:
    """Length of a row (1, log Z, g_l g_l^T[, squares of dg/domega])."""
    return 2 + fields * teacher + int(curved) * (fields * teacher) ** 2


@dataclass(frozen=True)
class Averages:
    """Averages at one overlap.

    Attributes:
        outer: E_c[g_l g_l^T] summed over the tokens of a context, (C, t, t).
        log_evidence: E log Z_out, nats a sample (densities of what is observed and continuous).
        norm: sum of all weights, 1 if the rule is fine enough.
        response: d outer / dq, (C, t, t, C, t, t), docs/theory.md (13.9); None where it was not asked for.
        samples: replicates of a sampled rule, whose mean this is; empty for others.
    """

    outer: np.ndarray
    log_evidence: float
    norm: float
    response: np.ndarray | None = None
    samples: tuple[Averages, ...] = ()


def add_up(outer: np.ndarray, response: np.ndarray | None, contexts: np.ndarray, row: np.ndarray) -> None:
    """Add a row of averages over tokens, g_l g_l^T and, where asked for, squares of dg/domega, to those of contexts."""
    count, t = len(contexts), outer.shape[1]
    np.add.at(outer, contexts, row[: count * t * t].reshape(count, t, t))
    if response is not None:
        squares = row[count * t * t :].reshape(count, t, t, count, t, t)
        np.add.at(np.moveaxis(response, 3, 1), (contexts[:, None], contexts), np.moveaxis(squares, 3, 1))


def change(one: Averages, other: Averages) -> float:
    """Largest difference, of squares relative to their size."""
    scale = max(np.abs(other.outer).max(), 1e-12)
    moved = np.abs(one.outer - other.outer).max() / scale
    return float(max(moved, abs(one.norm - other.norm), abs(one.log_evidence - other.log_evidence)))


def squares(shares: np.ndarray, g: np.ndarray, curvature: np.ndarray, t: int) -> np.ndarray:
    """Sums of g_l g_l^T and of squares of dg/domega, in the order of `posterior.collect`."""
    count = g.shape[1] // t
    blocks = g.reshape(len(g), count, t).swapaxes(0, 1)
    first = (shares[:, None] * blocks).swapaxes(1, 2) @ blocks
    if not curvature.shape[1]:
        return first.ravel()
    D = curvature.reshape(len(g), count, t, count, t).transpose(1, 3, 0, 2, 4).reshape(count, count, len(g), t * t)
    response = ((shares[:, None] * D).swapaxes(2, 3) @ D).reshape(count, count, t, t, t, t)
    return np.concatenate([first.ravel(), response.transpose(0, 2, 4, 1, 3, 5).ravel()])


@dataclass(frozen=True)
class Cut:
    """What is left out, by the share of an average that is lost so, about.

    With the least share omega ends at `REACH`.
    """

    share: float = LEAST_SHARE

    @property
    def tenth(self) -> Cut:
        """A tenth of it."""
        return Cut(max(self.share / 10, LEAST_SHARE))

    @property
    def reach(self) -> float:
        """Standard deviations of omega."""
        return float(np.sqrt(-2 * np.log(self.share)))

    @property
    def window(self) -> float:
        """Standard deviations of Y around omega beyond which a hidden node does not count."""
        return float(np.sqrt(-2 * np.log(1e-3 * self.share)))

    @property
    def negligible(self) -> float:
        """Logarithm of the share of the largest weight at which other hidden nodes are left out."""
        return float(-np.log(1e-3 * self.share))

    @property
    def least(self) -> float:
        """Weight of a node of omega and of what is observed."""
        return 1e-9 * self.share


@dataclass(frozen=True)
class Directions:
    """Directions of the fields in which what is known is independent of what is unknown, and the latter has variance 1.

    Attributes:
        to_fields: Y - E Y = to_fields y, (D, D), whose inverse is from_fields; known: variances of omega in them, (D,).
    """

    to_fields: np.ndarray
    known: np.ndarray

    @property
    def from_fields(self) -> np.ndarray:
        """(D, D)."""
        return np.linalg.inv(self.to_fields)

    @property
    def varying(self) -> list[int]:
        """Those in which anything is known."""
        return np.flatnonzero(self.known > 0).tolist()

    @classmethod
    def of(cls, known: np.ndarray, unknown: np.ndarray) -> Directions:
        """Of blocks q and V, (L, t, t) both."""
        count, t = known.shape[:2]
        to_fields, variances = np.zeros((count, t, count, t)), np.zeros((count, t))
        for l in range(count):
            factor = np.linalg.cholesky(unknown[l])
            inverse = np.linalg.inv(factor)
            values, vectors = np.linalg.eigh(inverse @ known[l] @ inverse.T)
            to_fields[l, :, l], variances[l] = factor @ vectors, np.where(values > 1e-15, values, 0.0)
        return cls(to_fields.reshape(count * t, count * t), variances.ravel())

    def turned(self, along: np.ndarray) -> tuple[Directions, int] | None:
        """The same with one of them along a vector of fields, and its number; None where the known variances on its way
        differ, or are zero."""
        y = self.from_fields @ along
        alike = np.flatnonzero(np.abs(self.known - self.known[np.argmax(np.abs(y))]) <= 1e-10 * self.known.max())
        if np.abs(np.delete(y, alike)).max(initial=0.0) > 1e-12 * np.abs(y).max() or not self.known[alike[0]] > 0:
            return None
        turn, _ = np.linalg.qr(np.column_stack([y[alike], np.eye(len(alike))]))
        to_fields = self.to_fields.copy()
        to_fields[:, alike] = to_fields[:, alike] @ turn
        return Directions(to_fields, self.known), int(alike[0])

    def halves(self, even: Sequence[int], t: int, along: int | None = None) -> list[int]:
        """Directions of which the positive half will do, one a column.

        Args:
            even: columns, of t, that all which is averaged is even in, each by itself, and of which all together are
                even where no direction is of one alone; along: a direction left out.
        """
        chosen = []
        parts = np.abs(self.to_fields.reshape(-1, t, len(self.known))).max(axis=0)  # (t, D)
        for column in even:
            others = np.delete(parts, column, axis=0).max(axis=0, initial=0.0)
            mixed = (parts[column] > 0) & (others > 1e-13 * parts[column].max())
            own = [i for i in self.varying if i != along and parts[column, i] > 0 and not mixed[i]]
            if own and not mixed.any():
                chosen.append(own[-1])
        rest = [i for i in self.varying if i != along]
        return chosen or rest[-1:] * (len(even) == t)

    def plain_grid(self, count: float, cut: Cut, halved: Sequence[int] = ()) -> Grid:
        """Without a shift; of some directions the positive half."""
        axes = [axis(i, self.known[i], count, i in halved, cut) for i in self.varying]
        # Where nothing is known omega is zero in every direction, and its one node along none of them.
        first, *others = axes or [Axis(-1, np.zeros(1), np.ones(1))]
        return Grid(first, tuple(others), first.weights[:, None])

    def shifted_grid(
        self, along: int, factors: np.ndarray, reach: float, count: float, points: float, cut: Cut,
        halved: Sequence[int] = (),
    ) -> Grid:  # fmt: skip
        """With a shift along a direction.

        Args:
            factors: of the shift, in units of y, distinct ones; reach: of y in this direction, the shift aside;
                points: as `count`, of omega - v m; halved: directions of which the positive half will do.
        """
        others = tuple(axis(i, self.known[i], count, i in halved, cut) for i in self.varying if i != along)
        variance = self.known[along]
        step = 2 * REACH / points * min(1.0, np.sqrt(variance))
        reach += cut.window
        if len(factors) == 1:
            half = int(np.ceil(reach / step))
            nodes = step * (np.arange(-half, half) + 0.5)
            weights = np.full((len(nodes), 1), step / abs(factors[0]))
            return Grid(Axis(along, nodes, weights[:, 0]), others, weights, (float(factors[0]),))
        one, two = map(float, factors)
        # omega = (two x - one x') / (two - one) at nodes x = omega - one m, x' = omega - two m
        widest = max(abs(two), abs(one)) / min(abs(two), abs(one))
        beyond = abs(two - one) / min(abs(one), abs(two)) * cut.reach * np.sqrt(variance)
        half = int(np.ceil((widest * reach + beyond) / step))
        nodes = step * (np.arange(-half, half) + 0.5)
        squares = ((two * nodes[:, None] - one * nodes) / (two - one)) ** 2 / variance
        weights = step**2 / abs(two - one) * np.exp(-squares / 2) / np.sqrt(2 * np.pi * variance)
        weights[squares > cut.reach**2] = 0.0
        return Grid(Axis(along, nodes, weights[:, 0]), others, weights, (one, two))


class Axis(NamedTuple):
    """Nodes of omega in one direction, -1 for none, in ascending order, with the weights of its law."""

    direction: int
    nodes: np.ndarray
    weights: np.ndarray


def axis(direction: int, variance: float, count: float, even: bool, cut: Cut) -> Axis:
    """So many points across the law, or across what is unknown if that is narrower, and closer ones at zero; where
    `even` the positive half, with the weights of both.

    Where what is observed leaves signs open both count where omega is as small as what is unknown, and the posterior
    mean turns there as tanh does, steeply; farther out it does not.
    """
    unit, step = min(1.0, np.sqrt(variance)), 2 * REACH / count
    half = int(np.ceil((cut.reach * np.sqrt(variance) / unit + (1 - _DENSE) * _ZONE) / step))
    t = step * (np.arange(0 if even else -half, half) + 0.5)
    bend = np.tanh(t / _ZONE)
    x = unit * (t - (1 - _DENSE) * _ZONE * bend)
    slope = unit * (1 - (1 - _DENSE) * (1 - bend**2))
    weights = (1 + even) * step * slope * np.exp(-x * x / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    return Axis(direction, x, weights)


@dataclass(frozen=True)
class Grid:
    """Nodes of omega, as a product, and of an observed coordinate that shifts the fields if there is one.

    Attributes:
        first: nodes in the direction that comes first, or along which fields are shifted.
        others: in the other directions.
        weights: (N, N') of the nodes of `first`: of one sum over what is hidden, N' = 1, or of one at each of two
            nodes.
        factors: what the hidden coordinates multiply the shift with, one or two numbers; 0 without one.
    """

    first: Axis
    others: tuple[Axis, ...]
    weights: np.ndarray
    factors: tuple[float, ...] = (0.0,)

    def beside(self, D: int) -> tuple[np.ndarray, np.ndarray]:
        """All nodes of the others, (M, D), zero in the directions that are not theirs, and their weights (M,)."""
        nodes, weights = tensor([(a.nodes, a.weights) for a in self.others])
        places = np.zeros((len(weights), D))
        places[:, [a.direction for a in self.others]] = nodes
        return places, weights

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All there are, `first` last."""
        return (*self.others, self.first)

    @property
    def size(self) -> float:
        """Nodes of omega, those of `first` once."""
        return float(np.prod([float(len(a.nodes)) for a in self.axes]))

    def reached(self, cut: Cut) -> float:
        """Nodes of omega that one hidden node matters at, about."""
        shares = [min(1.0, 2 * cut.window / max(float(np.ptp(a.nodes)), 1e-300)) for a in self.axes]
        return self.size * float(np.prod(shares))

    def parts(self, moments: int) -> list[Grid]:
        """The same in parts along the last direction, whose tables of sums are no larger than need be."""
        if not self.others:
            return [self]
        *before, last = self.others
        count = int(np.clip(np.ceil(self.size * moments / _MOST_SUMS), 1, len(last.nodes)))
        pieces = zip(np.array_split(last.nodes, count), np.array_split(last.weights, count), strict=True)
        return [replace(self, others=(*before, Axis(last.direction, *piece))) for piece in pieces]


def averages_by_products(
    fields: np.ndarray, measure: np.ndarray, log_weights: np.ndarray, law: np.ndarray, shifts: np.ndarray,
    found: Directions, grid: Grid, blocks: tuple[int, int], cut: Cut, curved: bool,
) -> np.ndarray:  # fmt: skip
    """Averages over omega and what is observed, (1, log Z, g_l g_l^T, with `curved` squares of dg/domega).

    Args:
        fields, measure: of all hidden nodes at every observed one, fields less their mean (N, H, D) and (N, H):
            logarithms of Jacobian, likelihood and weights of the hidden coordinates.
        log_weights: of the observed nodes, (N,); law: logarithm of the weight of both, (N, H).
        shifts: what the hidden coordinates multiply the shift with, (H,).
        blocks: tokens and columns, L and t.
    """
    D = fields.shape[2]
    pairs = np.array(np.triu_indices(D)).T if curved else np.zeros((0, 2), int)
    moments = 1 + D + len(pairs)
    y = fields @ found.from_fields.T
    log_norm = -np.linalg.slogdet(found.to_fields)[1] - D * np.log(2 * np.pi) / 2
    kept = law > law.max() - cut.negligible
    weights = (
        grid.weights,
        np.pad(np.cumsum(grid.weights, axis=1), ((0, 0), (1, 0))),
        np.pad(np.cumsum(grid.weights, axis=0), ((1, 0), (0, 0))),
    )
    parts = [(part, *part.beside(D)) for part in grid.parts(moments)]
    rows = [(np.zeros(2), np.zeros((D, D)), np.zeros((len(pairs), len(pairs)))) for _ in fields]
    collect = loops("products").collect_sums
    counts = kept.sum(axis=1)
    # The first one tells what threads are worth.
    longest_first = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]

    def fill(begin: int, end: int) -> None:
        for n in longest_first[begin:end]:
            top = measure[n, kept[n]].max()
            factor = np.exp(top + log_weights[n] + log_norm)
            groups = [np.flatnonzero(kept[n] & (shifts == multiple)) for multiple in grid.factors]
            for part, places, others in parts:
                found_sums = [_sums(y[n, some], measure[n, some] - top, part, pairs, cut.window) for some in groups]
                if len(found_sums) == 1:
                    found_sums.append((np.zeros((len(others), 1, moments)), np.zeros((len(others), 2), int)))
                (first, spans), (second, more) = found_sums
                collect(
                    first, second, np.stack([spans, more]), places, part.first.direction, part.first.nodes, weights,
                    others, factor, cut.least, curved, *rows[n],
                )  # fmt: skip
            rows[n][0][1] += (top + log_norm) * rows[n][0][0]

    share(fill, len(longest_first))
    sums, squares, responses = (np.sum(all_rows, axis=0) for all_rows in zip(*rows, strict=True))
    return np.concatenate([sums, *_in_fields(squares, responses, pairs, found, blocks)])


def _blocks(y: np.ndarray) -> Iterator[np.ndarray]:
    """Indices of nodes (H, R) that lie close together, by halving along the longest extent."""
    waiting = [np.arange(len(y))] if len(y) else []
    while waiting:
        members = waiting.pop()
        extents = np.ptp(y[members], axis=0)
        if len(members) <= _BLOCK or not extents.any():
            yield members
            continue
        order = np.argsort(y[members, np.argmax(extents)], kind="stable")
        waiting += [members[order[: len(order) // 2]], members[order[len(order) // 2 :]]]


def _sums(
    y: np.ndarray, measure: np.ndarray, grid: Grid, pairs: np.ndarray, window: float
) -> tuple[np.ndarray, np.ndarray]:
    """Moments of the hidden nodes at all omega, (nodes of the others, nodes of the first, K), and of the first those
    from and up to which they are not zero, (nodes of the others, 2)."""
    axes = grid.axes
    fixed = [i for i in range(y.shape[1]) if i not in [a.direction for a in axes]]
    places = np.stack([y[:, a.direction] if a.direction >= 0 else np.zeros(len(y)) for a in axes], axis=1)
    weights = np.exp(measure - (y[:, fixed] ** 2).sum(axis=1) / 2)
    moments = np.concatenate([np.ones((len(y), 1)), y, y[:, pairs[:, 0]] * y[:, pairs[:, 1]]], axis=1)
    moments *= weights[:, None]
    shape = [len(a.nodes) for a in axes]
    table = np.zeros((*shape, moments.shape[1]))
    from_, up_to = np.full(shape[:-1], shape[-1]), np.zeros(shape[:-1], int)
    for members in _blocks(places):
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
        step = max(1, _PRODUCT // right.size)
        part = np.concatenate([left[:, i : i + step].T @ right for i in range(0, left.shape[1], step)])
        place, last = tuple(windows[:-1]), windows[-1]
        table[tuple(windows)] += part.reshape(*(w.stop - w.start for w in windows), moments.shape[1])
        from_[place] = np.minimum(from_[place], last.start)
        up_to[place] = np.maximum(up_to[place], last.stop)
    spans = np.stack([np.minimum(from_, up_to).ravel(), up_to.ravel()], axis=1)
    return table.reshape(-1, *table.shape[-2:]), spans


def _in_fields(
    squares: np.ndarray, responses: np.ndarray, pairs: np.ndarray, found: Directions, blocks: tuple[int, int]
) -> list[np.ndarray]:
    """g_l g_l^T and squares of dg/domega of the fields, from upper triangles of those along the directions."""
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
