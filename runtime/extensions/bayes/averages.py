"""Averages over an output channel as matrix products, where its hidden coordinates take values from a fixed table.

The posterior mean omega of the teacher's fields Y, given the overlap q, is their known part. In suitable directions
(`DecorrelatingBasis`) it is independent of the unknown part Y - omega, and the normal weight of Y around omega is
a product with one factor per direction. With omega on a grid along them, the sums over all nodes of the hidden
coordinates at all omega are products of matrices with one factor per direction. Hidden nodes are divided into blocks
that are close together, and each block contributes to the omega around it.

Where an observed coordinate m shifts the fields by v m along one of the directions (`channel.ShiftCoordinate`), the
sums depend on omega - v m and are taken on a grid of this difference. Where the shift takes two values, as for an
undetermined sign, the sum over (omega, m) is one over both differences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag

from ...base.options import AlgorithmOptions
from ...base.threads import run_loop_in_threads
from ...channel.nodes import tensor_product_rule
from ...problems.compiled import load_compiled_loops
from ...problems.problem import Problem

LEAST_LOST_FRACTION = 5.5e-12  # of an average, in double precision: omega then ends at 7.2 standard deviations


@dataclass(frozen=True)
class MatrixProductOptions(AlgorithmOptions):
    """Options of averages over an output channel that are computed by matrix products.

    omega is the posterior mean of the teacher's fields. Labels are observed coordinates, latent variables hidden ones.

    Attributes:
        reach: range of omega, in standard deviations, that the points of an axis cover.
        block_size: quadrature nodes of the hidden coordinates in a block; smaller blocks leave out more omega, but make
            shorter products.
        central_spacing: spacing of nodes at omega = 0 relative to the spacing far from it; smaller resolves signs
            better.
        central_width: distance from omega = 0, in standard deviations of the fields around omega, with the closer
            spacing.
        product_size: multiplications of one matrix product, small enough that the BLAS library uses one thread.
        max_table_size: numbers in one table of sums; larger tables take more memory, and fewer passes.
        random_points: number of random coordinate values at which properties of a channel are tested.
    """

    reach: float = 7.2
    block_size: int = 96
    central_spacing: float = 0.25
    central_width: float = 3.0
    product_size: int = 262_144
    max_table_size: float = 1e7
    random_points: int = 12


def evaluate_output_channel(
    problem: Problem, labels: tuple[int, ...], observed: np.ndarray, hidden: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the fields and the logarithms of Jacobian and likelihood of an output channel at given coordinates.

    The values are not finite where the channel is not defined.

    Args:
        problem: the problem, which fixes the parameters of the channel.
        labels: cluster label of every token.
        observed: values of the observed coordinates, shape (samples, coordinates).
        hidden: values of the hidden coordinates, shape (nodes, coordinates).

    Returns:
        The fields, shape (samples, nodes, L tokens * t columns), and both logarithms, shape (samples, nodes) each.
    """
    with np.errstate(all="ignore"):
        fields, jacobian, likelihood = problem.solver.bayes_functions.fields_at(
            observed, hidden, problem.constants(labels)
        )
    return fields, jacobian, likelihood


def random_channel_points(
    coordinates: Sequence[tuple[str, str, tuple[float, ...]]], random: np.random.Generator
) -> np.ndarray:
    """Return random values of the coordinates of an output channel, for tests of symmetry, (points, coordinates).

    The number of points is `MatrixProductOptions.random_points`.

    Args:
        coordinates: name, kind and allowed values of each coordinate.
        random: generator of random numbers.
    """
    count = MatrixProductOptions.current().random_points
    columns = [
        random.choice(values, count) if kind == "discrete" else np.abs(random.normal(size=count))
        for _, kind, values in coordinates
    ]
    return np.array(columns, float).reshape(len(columns), count).T


def symmetric_matrix_sqrt(matrix: np.ndarray) -> np.ndarray:
    """Return the symmetric square roots of positive semidefinite matrices (..., n, n)."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def covariance_factor(blocks: np.ndarray, scale: float) -> np.ndarray:
    """Return a factor F of a block-diagonal covariance matrix F F^T, shape (L tokens * t columns, rank of the matrix).

    Args:
        blocks: diagonal blocks of the covariance matrix, (L, t, t).
        scale: size of a variance; variances below 1e-15 of it count as zero.
    """
    columns = []
    for block in blocks:
        values, vectors = np.linalg.eigh(block)
        kept = values > 1e-15 * scale
        columns.append(symmetric_matrix_sqrt(block) if kept.all() else vectors[:, kept] * np.sqrt(values[kept]))
    return np.ascontiguousarray(block_diag(*columns))


def length_of_packed_averages(fields: int, teacher: int, curved: bool) -> int:
    """Return the length of the vector that holds all averages over an output channel.

    The vector contains the total weight, log Z, g_l g_l^T of every token l and, if asked for, the squares of dg/domega,
    where g is the derivative of log Z (the evidence of a sample) in the posterior mean omega of the fields.

    Args:
        fields: number of fields, L t.
        teacher: number of teacher columns, t.
        curved: whether the squares of dg/domega are part of the vector.
    """
    return 2 + fields * teacher + int(curved) * (fields * teacher) ** 2


@dataclass(frozen=True)
class ChannelAverages:
    """Averages over the output channel, the law of labels given fields, at given overlaps of posterior and teacher.

    Attributes:
        outer: E[g_l g_l^T] summed over tokens l, a (t, t) matrix for each (token, cluster) pair, where g is the
            derivative of log Z_out (the evidence of a sample) in the posterior mean omega of the fields.
        log_evidence: E log Z_out, the mean log evidence of a sample, in nats.
        norm: sum of all quadrature weights, 1 if the rule is fine enough.
        response: derivative of `outer` in q, docs/theory.md (13.9); None where it was not computed.
        samples: averages of the replicates whose mean this is; empty unless the rule samples.
    """

    outer: np.ndarray
    log_evidence: float
    norm: float
    response: np.ndarray | None = None
    samples: tuple[ChannelAverages, ...] = ()


def add_token_averages(outer: np.ndarray, response: np.ndarray | None, contexts: np.ndarray, row: np.ndarray) -> None:
    """Add the averages for every token of a sample to the sums for its (token, cluster) pair, in place.

    Here g is the derivative of the log evidence of the sample in the posterior mean omega of the fields.

    Args:
        outer: sums of g_l g_l^T, shape ((token, cluster) pairs, t, t).
        response: sums of squares of dg/domega, shape (pairs, t, t, pairs, t, t), or None.
        contexts: index of the (token, cluster) pair of each token, (L,).
        row: vector of averages: g_l g_l^T of all tokens, then squares of dg/domega unless `response` is None.
    """
    count, t = len(contexts), outer.shape[1]
    np.add.at(outer, contexts, row[: count * t * t].reshape(count, t, t))
    if response is not None:
        squares = row[count * t * t :].reshape(count, t, t, count, t, t)
        np.add.at(np.moveaxis(response, 3, 1), (contexts[:, None], contexts), np.moveaxis(squares, 3, 1))


def relative_difference_of_averages(one: ChannelAverages, other: ChannelAverages) -> float:
    """Return the largest difference between two sets of averages over an output channel.

    Args:
        one: averages by one rule.
        other: averages by another rule; differences of `outer` are relative to its largest entry.
    """
    scale = max(np.abs(other.outer).max(), 1e-12)
    moved = np.abs(one.outer - other.outer).max() / scale
    return float(max(moved, abs(one.norm - other.norm), abs(one.log_evidence - other.log_evidence)))


def sum_weighted_squares(shares: np.ndarray, g: np.ndarray, curvature: np.ndarray, t: int) -> np.ndarray:
    """Return weighted sums of g_l g_l^T for every token l, and of squares of dg/domega, in one vector.

    Args:
        shares: weights of the points, (points,).
        g: derivative of the log evidence of a sample in the posterior mean omega of the fields, shape (points, L t).
        curvature: dg/domega, shape (points, L t, L t), or (points, 0, 0) to leave out its squares.
        t: number of teacher columns.
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
class SumTruncation:
    """A truncation of the sums of an average over an output channel, given by the fraction of the average that is lost.

    The sums are over the posterior mean omega of the fields and over the hidden coordinates of the channel.
    """

    lost_fraction: float = LEAST_LOST_FRACTION

    @property
    def tenfold_stricter_truncation(self) -> SumTruncation:
        """The truncation that leaves out a tenth of the fraction of an average that this one leaves out."""
        return SumTruncation(max(self.lost_fraction / 10, LEAST_LOST_FRACTION))

    @property
    def omega_cutoff(self) -> float:
        """The largest posterior mean omega of a field that sums include, in standard deviations."""
        return float(np.sqrt(-2 * np.log(self.lost_fraction)))

    @property
    def max_node_distance(self) -> float:
        """The largest distance, in standard deviations, between fields and their posterior mean that sums include."""
        return float(np.sqrt(-2 * np.log(1e-3 * self.lost_fraction)))

    @property
    def max_log_ratio_of_weights(self) -> float:
        """The logarithm of the largest weight of hidden quadrature nodes over the smallest that sums include."""
        return float(-np.log(1e-3 * self.lost_fraction))

    @property
    def min_node_weight(self) -> float:
        """The smallest weight of quadrature nodes, joint in observed coordinates and omega, that sums include."""
        return 1e-9 * self.lost_fraction


@dataclass(frozen=True)
class DecorrelatingBasis:
    """A basis of the space of fields in which posterior mean and deviation from it are both uncorrelated.

    The deviation (unknown part) has variance 1 along every direction of the basis.

    Attributes:
        to_fields: matrix from coordinates along the directions to fields less their mean, (L tokens * t columns, L t).
        known: variances of the posterior mean omega along the directions, (L t,).
    """

    to_fields: np.ndarray
    known: np.ndarray

    @property
    def field_to_direction_matrix(self) -> np.ndarray:
        """The matrix from fields less their mean to coordinates along the directions, (L tokens * t columns, L t)."""
        return np.linalg.inv(self.to_fields)

    @property
    def informative_directions(self) -> list[int]:
        """The indices of the directions along which the posterior mean omega of the fields has nonzero variance."""
        return np.flatnonzero(self.known > 0).tolist()

    @classmethod
    def from_covariances(cls, known: np.ndarray, unknown: np.ndarray) -> DecorrelatingBasis:
        """Return the basis in which posterior means of fields, and deviations from them, have diagonal covariances.

        Args:
            known: covariance of the posterior means of fields of every token: the overlaps q, shape (L, t, t).
            unknown: posterior covariance of the fields of every token, shape (L, t, t).
        """
        count, t = known.shape[:2]
        to_fields, variances = np.zeros((count, t, count, t)), np.zeros((count, t))
        for l in range(count):
            factor = np.linalg.cholesky(unknown[l])
            inverse = np.linalg.inv(factor)
            values, vectors = np.linalg.eigh(inverse @ known[l] @ inverse.T)
            to_fields[l, :, l], variances[l] = factor @ vectors, np.where(values > 1e-15, values, 0.0)
        return cls(to_fields.reshape(count * t, count * t), variances.ravel())

    def align_direction_with_vector(self, along: np.ndarray) -> tuple[DecorrelatingBasis, int] | None:
        """Return the basis rotated so that a direction points along a vector of fields, and the index of the direction.

        Returns:
            None where the vector mixes directions in which variances of the posterior mean differ or are zero.
        """
        y = self.field_to_direction_matrix @ along
        alike = np.flatnonzero(np.abs(self.known - self.known[np.argmax(np.abs(y))]) <= 1e-10 * self.known.max())
        if np.abs(np.delete(y, alike)).max(initial=0.0) > 1e-12 * np.abs(y).max() or not self.known[alike[0]] > 0:
            return None
        turn, _ = np.linalg.qr(np.column_stack([y[alike], np.eye(len(alike))]))
        to_fields = self.to_fields.copy()
        to_fields[:, alike] = to_fields[:, alike] @ turn
        return DecorrelatingBasis(to_fields, self.known), int(alike[0])

    def directions_halved_by_symmetry(self, even: Sequence[int], t: int, along: int | None = None) -> list[int]:
        """Return the directions in which, by symmetry, sums over positive values of omega (posterior mean) suffice.

        Args:
            even: columns of the teacher in each of which all averaged functions are even.
            t: number of teacher columns; if all are even and no direction belongs to a single column, one direction is
                halved.
            along: a direction that must not be halved.
        """
        chosen = []
        parts = np.abs(self.to_fields.reshape(-1, t, len(self.known))).max(axis=0)  # (t, D)
        for column in even:
            others = np.delete(parts, column, axis=0).max(axis=0, initial=0.0)
            mixed = (parts[column] > 0) & (others > 1e-13 * parts[column].max())
            own = [i for i in self.informative_directions if i != along and parts[column, i] > 0 and not mixed[i]]
            if own and not mixed.any():
                chosen.append(own[-1])
        rest = [i for i in self.informative_directions if i != along]
        return chosen or rest[-1:] * (len(even) == t)

    def omega_grid(self, count: float, cut: SumTruncation, halved: Sequence[int] = ()) -> OmegaGrid:
        """Return the quadrature grid of omega, the posterior mean of fields, where no observed coordinate shifts these.

        Args:
            count: number of points across the law of omega.
            cut: truncation of the law of omega.
            halved: directions of which only the positive half is used.
        """
        axes = [omega_nodes_on_axis(i, self.known[i], count, i in halved, cut) for i in self.informative_directions]
        # Where nothing is known omega is zero in every direction, and its one node along none of them.
        first, *others = axes or [OmegaAxis(-1, np.zeros(1), np.ones(1))]
        return OmegaGrid(first, tuple(others), first.weights[:, None])

    def shifted_omega_grid(
        self, along: int, factors: np.ndarray, reach: float, count: float, points: float, cut: SumTruncation,
        halved: Sequence[int] = (),
    ) -> OmegaGrid:  # fmt: skip
        """Return the quadrature grid of omega, posterior mean of the fields, where an observed coordinate shifts these.

        Args:
            along: index of the direction of the shift.
            factors: the one or two distinct shifts along the direction per unit of the observed coordinate.
            reach: largest absolute coordinate along this direction without the shift.
            count: number of points across the law of omega.
            points: number of points across the law of omega less the shift.
            cut: truncation of the law of omega.
            halved: directions of which only the positive half is used.
        """
        others = tuple(
            omega_nodes_on_axis(i, self.known[i], count, i in halved, cut)
            for i in self.informative_directions
            if i != along
        )
        variance = self.known[along]
        step = 2 * MatrixProductOptions.current().reach / points * min(1.0, np.sqrt(variance))
        reach += cut.max_node_distance
        if len(factors) == 1:
            half = int(np.ceil(reach / step))
            nodes = step * (np.arange(-half, half) + 0.5)
            weights = np.full((len(nodes), 1), step / abs(factors[0]))
            return OmegaGrid(OmegaAxis(along, nodes, weights[:, 0]), others, weights, (float(factors[0]),))
        one, two = map(float, factors)
        # omega = (two x - one x') / (two - one) at nodes x = omega - one m, x' = omega - two m
        widest = max(abs(two), abs(one)) / min(abs(two), abs(one))
        beyond = abs(two - one) / min(abs(one), abs(two)) * cut.omega_cutoff * np.sqrt(variance)
        half = int(np.ceil((widest * reach + beyond) / step))
        nodes = step * (np.arange(-half, half) + 0.5)
        squares = ((two * nodes[:, None] - one * nodes) / (two - one)) ** 2 / variance
        weights = step**2 / abs(two - one) * np.exp(-squares / 2) / np.sqrt(2 * np.pi * variance)
        weights[squares > cut.omega_cutoff**2] = 0.0
        return OmegaGrid(OmegaAxis(along, nodes, weights[:, 0]), others, weights, (one, two))


class OmegaAxis(NamedTuple):
    """Quadrature nodes, ascending, and weights for the posterior mean omega of the fields along one direction.

    The direction is the index in a `DecorrelatingBasis`; -1 stands for none.
    """

    direction: int
    nodes: np.ndarray
    weights: np.ndarray


def omega_nodes_on_axis(direction: int, variance: float, count: float, even: bool, cut: SumTruncation) -> OmegaAxis:
    """Return quadrature nodes of omega, posterior mean of the fields, along one direction; denser around zero.

    Where the observed coordinates do not determine a sign, the mean of the fields given them varies as steeply as tanh
    for omega as small as the posterior deviation of the fields; farther out it does not.

    Args:
        direction: index of the direction.
        variance: variance of omega in this direction.
        count: number of points across the law, or across the posterior of the fields if that is narrower.
        even: whether to use the positive half only, with doubled weights.
        cut: truncation of the law of omega.
    """
    options = MatrixProductOptions.current()
    unit, step = min(1.0, np.sqrt(variance)), 2 * options.reach / count
    zone, stretch = options.central_width, 1 - options.central_spacing
    half = int(np.ceil((cut.omega_cutoff * np.sqrt(variance) / unit + stretch * zone) / step))
    t = step * (np.arange(0 if even else -half, half) + 0.5)
    bend = np.tanh(t / zone)
    x = unit * (t - stretch * zone * bend)
    slope = unit * (1 - stretch * (1 - bend**2))
    weights = (1 + even) * step * slope * np.exp(-x * x / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    return OmegaAxis(direction, x, weights)


@dataclass(frozen=True)
class OmegaGrid:
    """A product grid for the posterior mean omega of the fields, and for an observed coordinate that shifts the fields.

    Attributes:
        first: nodes in the first direction, along which the observed coordinate shifts the fields, if there is one.
        others: nodes in all other directions.
        weights: weights of the nodes of `first`, (nodes, 1), or of their pairs, (nodes, nodes), for two factors.
        factors: the one or two factors by which hidden coordinates multiply the shift; 0 without a shift.
    """

    first: OmegaAxis
    others: tuple[OmegaAxis, ...]
    weights: np.ndarray
    factors: tuple[float, ...] = (0.0,)

    def omega_nodes_without_first_axis(self, D: int) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes of omega, shape (nodes, D), and weights of the product grid of all directions but the first.

        The nodes have D coordinates, which are zero along the directions that are not in the grid.
        """
        nodes, weights = tensor_product_rule([(a.nodes, a.weights) for a in self.others])
        places = np.zeros((len(weights), D))
        places[:, [a.direction for a in self.others]] = nodes
        return places, weights

    @property
    def omega_axes(self) -> tuple[OmegaAxis, ...]:
        """The quadrature nodes of omega along every direction of the grid; the first direction comes last."""
        return (*self.others, self.first)

    @property
    def number_of_nodes(self) -> float:
        """The number of nodes of the product grid of omega (posterior means of fields)."""
        return float(np.prod([float(len(a.nodes)) for a in self.omega_axes]))

    def omega_nodes_per_hidden_node(self, cut: SumTruncation) -> float:
        """Return the approximate number of grid nodes of omega near a quadrature node of the hidden coordinates."""
        shares = [min(1.0, 2 * cut.max_node_distance / max(float(np.ptp(a.nodes)), 1e-300)) for a in self.omega_axes]
        return self.number_of_nodes * float(np.prod(shares))

    def split_into_smaller_grids(self, moments: int) -> list[OmegaGrid]:
        """Return parts of this grid so small that tables with `moments` numbers per node fit into memory."""
        if not self.others:
            return [self]
        *before, last = self.others
        count = int(
            np.clip(
                np.ceil(self.number_of_nodes * moments / MatrixProductOptions.current().max_table_size),
                1,
                len(last.nodes),
            )
        )
        pieces = zip(np.array_split(last.nodes, count), np.array_split(last.weights, count), strict=True)
        return [replace(self, others=(*before, OmegaAxis(last.direction, *piece))) for piece in pieces]


def average_channel_by_matrix_products(
    fields: np.ndarray, measure: np.ndarray, log_weights: np.ndarray, law: np.ndarray, shifts: np.ndarray,
    found: DecorrelatingBasis, grid: OmegaGrid, blocks: tuple[int, int], cut: SumTruncation, curved: bool,
) -> np.ndarray:  # fmt: skip
    """Return averages over an output channel, packed in one vector (see `length_of_packed_averages`).

    Observed and hidden are the numbers of quadrature nodes of the observed and of the hidden coordinates.

    Args:
        fields: fields less their mean, shape (observed, hidden, L tokens * t teacher columns).
        measure: sum of the logarithms of Jacobian, likelihood and hidden weights, shape (observed, hidden).
        log_weights: logarithms of the weights of the observed nodes, (observed,).
        law: logarithms of the joint weights of observed and hidden nodes, shape (observed, hidden).
        shifts: factor by which each hidden node multiplies the shift of the fields, (hidden,).
        found: basis in which posterior means of the fields, and deviations from them, are uncorrelated.
        grid: nodes of omega.
        blocks: number of tokens L and of teacher columns t.
        cut: truncation of the sums.
        curved: whether squares of dg/domega are averaged as well.
    """
    options = MatrixProductOptions.current()  # read here: threads do not see the options of this call
    D = fields.shape[2]
    pairs = np.array(np.triu_indices(D)).T if curved else np.zeros((0, 2), int)
    moments = 1 + D + len(pairs)
    y = fields @ found.field_to_direction_matrix.T
    log_norm = -np.linalg.slogdet(found.to_fields)[1] - D * np.log(2 * np.pi) / 2
    kept = law > law.max() - cut.max_log_ratio_of_weights
    weights = (
        grid.weights,
        np.pad(np.cumsum(grid.weights, axis=1), ((0, 0), (1, 0))),
        np.pad(np.cumsum(grid.weights, axis=0), ((1, 0), (0, 0))),
    )
    parts = [(part, *part.omega_nodes_without_first_axis(D)) for part in grid.split_into_smaller_grids(moments)]
    rows = [(np.zeros(2), np.zeros((D, D)), np.zeros((len(pairs), len(pairs)))) for _ in fields]
    collect = load_compiled_loops("products").add_posterior_averages_over_pairs
    counts = kept.sum(axis=1)
    # The time of the first one decides how many threads are used.
    longest_first = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]

    def add_sums_at_observed_nodes(begin: int, end: int) -> None:
        """Add to the total the averages at some quadrature nodes of the observed coordinates (outputs of samples).

        Args:
            begin: first index in the list of nodes.
            end: index after the last one.
        """
        for n in longest_first[begin:end]:
            top = measure[n, kept[n]].max()
            factor = np.exp(top + log_weights[n] + log_norm)
            groups = [np.flatnonzero(kept[n] & (shifts == multiple)) for multiple in grid.factors]
            for part, places, others in parts:
                sums_of_groups = [
                    _sum_moments_over_hidden_nodes(
                        y[n, some], measure[n, some] - top, part, pairs, cut.max_node_distance, options
                    )
                    for some in groups
                ]
                if len(sums_of_groups) == 1:
                    sums_of_groups.append((np.zeros((len(others), 1, moments)), np.zeros((len(others), 2), int)))
                (first, spans), (second, more) = sums_of_groups
                collect(
                    first, second, np.stack([spans, more]), places, part.first.direction, part.first.nodes, weights,
                    others, factor, cut.min_node_weight, curved, *rows[n],
                )  # fmt: skip
            rows[n][0][1] += (top + log_norm) * rows[n][0][0]

    run_loop_in_threads(add_sums_at_observed_nodes, len(longest_first))
    sums, squares, responses = (np.sum(all_rows, axis=0) for all_rows in zip(*rows, strict=True))
    return np.concatenate([sums, *_transform_moments_to_fields(squares, responses, pairs, found, blocks)])


def _group_nearby_nodes(y: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield groups of nearby quadrature nodes as arrays of indices; nodes have shape (points, dimensions).

    Groups larger than a size are bisected along their longest extent.
    """
    waiting = [np.arange(len(y))] if len(y) else []
    while waiting:
        members = waiting.pop()
        extents = np.ptp(y[members], axis=0)
        if len(members) <= size or not extents.any():
            yield members
            continue
        order = np.argsort(y[members, np.argmax(extents)], kind="stable")
        waiting += [members[order[: len(order) // 2]], members[order[len(order) // 2 :]]]


def _sum_moments_over_hidden_nodes(
    y: np.ndarray, measure: np.ndarray, grid: OmegaGrid, pairs: np.ndarray, window: float, options: MatrixProductOptions
) -> tuple[np.ndarray, np.ndarray]:
    """Return moments of the fields, summed over quadrature nodes of hidden coordinates, at each posterior mean omega.

    Returns:
        The sums, shape (nodes of the other directions, nodes of the first, sums), and the range of nodes of the first
        direction in which they are not zero, shape (nodes of the other directions, 2).
    """
    axes = grid.omega_axes
    fixed = [i for i in range(y.shape[1]) if i not in [a.direction for a in axes]]
    places = np.stack([y[:, a.direction] if a.direction >= 0 else np.zeros(len(y)) for a in axes], axis=1)
    weights = np.exp(measure - (y[:, fixed] ** 2).sum(axis=1) / 2)
    moments = np.concatenate([np.ones((len(y), 1)), y, y[:, pairs[:, 0]] * y[:, pairs[:, 1]]], axis=1)
    moments *= weights[:, None]
    shape = [len(a.nodes) for a in axes]
    table = np.zeros((*shape, moments.shape[1]))
    from_, up_to = np.full(shape[:-1], shape[-1]), np.zeros(shape[:-1], int)
    for members in _group_nearby_nodes(places, options.block_size):
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


def _transform_moments_to_fields(
    squares: np.ndarray, responses: np.ndarray, pairs: np.ndarray, found: DecorrelatingBasis, blocks: tuple[int, int]
) -> list[np.ndarray]:
    """Return averages of g_l g_l^T and of squares of dg/domega for fields, from those along the basis directions.

    Args:
        squares: averages of g g^T along the directions of the basis, upper triangle.
        responses: averages of products of entries of dg/domega along the directions, upper triangle.
        pairs: indices of the directions of each entry of dg/domega, shape (pairs, 2); empty without derivatives.
        found: basis of the directions.
        blocks: number of tokens L and of teacher columns t.
    """
    count, t = blocks
    back, D = found.field_to_direction_matrix, count * t
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
