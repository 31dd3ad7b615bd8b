"""Averages over an output channel: ranges and refinement of its coordinates, and the averages themselves.

An output channel describes a sample by observed coordinates and hidden ones, of which its fields Y are functions. The
known part of the fields, omega, is their posterior mean at overlap q.

Ranges of coordinates are widened as far as tails reach. Two orders of integration are used: omega first and
then the observed coordinates given omega; or, without continuous hidden coordinates, the fields Y first and then omega
given Y, which remains well conditioned up to perfect recovery.

Every coordinate is mapped to the whole line so that the integrand decays double-exponentially (real: x = sinh t;
positive: x = exp(t - exp(-t)); an angle goes once around), where the trapezoid rule converges geometrically
(H. Takahasi, M. Mori, Publ. RIMS 9 (1974) 721). A real coordinate whose law is not smooth at zero is divided there.

The only effect of some observed coordinates m is to shift the fields of a sample, which are then Y(0, .) + v m with v
independent of all continuous coordinates. The posterior then depends on m, and on omega along v, through omega - v m
alone, and its sums over hidden coordinates need not be computed at every m.
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
from ...base.options import AlgorithmOptions
from ...base.threads import run_loop_in_threads
from ...channel.lattices import lattice_points_in_ball, sampling_lattice_basis
from ...channel.nodes import midpoint_rule, tensor_product_rule
from ...problems.problem import Problem
from .averages import (
    LEAST_LOST_FRACTION,
    ChannelAverages,
    DecorrelatingBasis,
    MatrixProductOptions,
    SumTruncation,
    add_token_averages,
    average_channel_by_matrix_products,
    covariance_factor,
    evaluate_output_channel,
    length_of_packed_averages,
    random_channel_points,
    relative_difference_of_averages,
)
from .sampling import PlantedSamplingRule, supports_planted_sampling

_T_RANGE = {"real": (-8.0, 8.0), "positive": (-6.0, 8.0), "halves": (-6.0, 8.0), "angle": (-np.pi, np.pi)}
_LARGEST_T = 300.0  # limit of double precision: x = sinh t is 1e130, whose square is still finite
_T_LIMITS = _T_RANGE | {"real": (-_LARGEST_T, _LARGEST_T)} | dict.fromkeys(("positive", "halves"), (-6.0, _LARGEST_T))
_ROUGH = SumTruncation(1e-6)


@dataclass(frozen=True)
class OutputChannelOptions(AlgorithmOptions):
    """Options of the integration rule of an output channel: ranges of its coordinates and numbers of points.

    Attributes:
        reach: standard deviations of one normal field that are integrated over; 6e-15 of its law lies beyond 7.8.
        log_cutoff: logarithm of the ratio to the largest weight at which the range of a coordinate ends.
        max_range_updates: updates of the ranges, after which the last ranges are used.
        scan_points: number of nodes of all coordinates by which ranges are located; more nodes find narrower laws.
        max_evaluations: evaluations of one average over fields, above which the average fails.
        max_nodes: nodes of all coordinates together; limits memory.
        min_known_variance: variance of the posterior mean of fields, relative to their posterior variance, below which
            a coordinate that shifts the fields is treated as any other.
        max_coordinates: continuous coordinates up to which averages are sums over a product grid; above, they are
            sampled.
        max_products: multiplications of an average up to which it is a sum over a product grid.
        cheap_products: multiplications up to which an average counts as cheap, and is refined beyond the accuracy.
        max_node_spacing: spacing of hidden nodes, in posterior standard deviations of the fields.
        relevant_log_weight: minus the logarithm of the relative weight of nodes that have to meet `max_node_spacing`.
        max_field_dimension: number of fields and coordinates up to which averages without hidden coordinates are sums.
        start_points: points of every axis at the beginning.
        expensive_start_points: initial points of every axis where averages are expensive.
        refinement_factor: ratio of the points of an axis after and before a refinement.
        cache_size: averages that are cached, as rules are compared at the same q.
        mean_tolerance: error of the mean of a field, in standard deviations, above which the channel is refused: it
            is of order 1 where values of the fields are reached twice.
        norm_tolerance: least tolerance of the sum of all probabilities.
        max_norm_nodes: number of nodes up to which the sum of all probabilities is refined.
        probability_tolerance: tolerance of probabilities of observed choices.
        smooth_points: points that suffice for a coordinate with a smooth law; above, the coordinate is divided at 0.
        level_factor: ratio of successive tolerances of the refinement; larger takes fewer levels.
        max_levels: levels of tolerances.
        shift_tolerance: relative difference below which two displacements of the fields are the same.
    """

    reach: float = 7.8
    log_cutoff: float = -36.0
    max_range_updates: int = 20
    scan_points: float = 2e5
    max_evaluations: float = 3e8
    max_nodes: float = 6e7
    min_known_variance: float = 1e-2
    max_coordinates: int = 4
    max_products: float = 6e9
    cheap_products: float = 1e4
    max_node_spacing: float = 3.0
    relevant_log_weight: float = 12.0
    max_field_dimension: int = 5
    start_points: int = 24
    expensive_start_points: int = 14
    refinement_factor: float = 1.4
    cache_size: int = 64
    mean_tolerance: float = 1e-2
    norm_tolerance: float = 1e-7
    max_norm_nodes: float = 1e7
    probability_tolerance: float = 1e-12
    smooth_points: int = 400
    level_factor: float = 30.0
    max_levels: int = 9
    shift_tolerance: float = 1e-11


@dataclass(frozen=True)
class ChannelCoordinate:
    """A coordinate of an output channel (part of a label, or a latent variable): name, kind, and values if discrete.

    The kind is "real", "positive", "angle", "discrete" or "halves" (real, with quadrature split at 0).
    """

    name: str
    kind: str
    values: tuple[float, ...]

    @property
    def is_continuous(self) -> bool:
        """Whether the coordinate is continuous, so that averages over the channel integrate over it."""
        return self.kind != "discrete"

    def quadrature_nodes(self, box: tuple[float, float], count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return quadrature nodes of a coordinate of the channel and the logarithms of their weights.

        Args:
            box: lower and upper end of the variable t that parametrises the coordinate, as x = sinh t for "real".
            count: number of nodes (of each half for the kind "halves").
        """
        if not self.is_continuous:
            return np.array(self.values), np.zeros(len(self.values))
        step = (box[1] - box[0]) / count
        t = box[0] + step * (np.arange(count) + 0.5)
        if self.kind == "angle":
            return t, np.full(count, np.log(step))
        if self.kind == "real":
            return np.sinh(t), np.log(np.cosh(t)) + np.log(step)
        x, slope = np.exp(t - np.exp(-t)), t - np.exp(-t) + np.log1p(np.exp(-t)) + np.log(step)
        return (x, slope) if self.kind == "positive" else (np.append(-x[::-1], x), np.append(slope[::-1], slope))

    def number_of_nodes(self, count: float) -> float:
        """Return the number of quadrature nodes of the coordinate for a number of points of its axis.

        A discrete coordinate has one node for each of its values; "halves" has twice as many nodes as points.
        """
        return (2 * count if self.kind == "halves" else count) if self.is_continuous else len(self.values)


def first_labels_with_same_channel(problem: Problem) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return a mapping from each assignment of cluster labels to the first one that has the same output channel.

    Channels are compared at random coordinates.
    """
    module, random = problem.solver.bayes_functions, np.random.default_rng(0)
    nodes = random_channel_points(module.OBSERVED, random), random_channel_points(module.HIDDEN, random)
    firsts: dict[bytes, tuple[int, ...]] = {}
    return {
        labels: firsts.setdefault(
            b"".join(table.tobytes() for table in evaluate_output_channel(problem, labels, *nodes)), labels
        )
        for labels, _ in problem.label_probabilities
    }


def discrete_coordinates(coordinates: Sequence[tuple[str, str, tuple[float, ...]]]) -> list[int]:
    """Return the indices of the discrete coordinates in a list of channel coordinates (name, kind, values)."""
    return [i for i, (_, kind, _) in enumerate(coordinates) if kind == "discrete"]


def find_irrelevant_coordinates(problem: Problem, labels: tuple[int, ...]) -> list[tuple[int, int, tuple[float, ...]]]:
    """Return the continuous coordinates without effect on the channel at some values of the discrete ones.

    Args:
        problem: the problem, which fixes the parameters of the channel.
        labels: cluster label of every token.

    Returns:
        Triples (0 for an observed or 1 for a hidden coordinate, its index among these, values of the discrete
        coordinates). The values are those of the observed discrete coordinates, then for 1 of the hidden ones.
    """
    module, random = problem.solver.bayes_functions, np.random.default_rng(0)
    groups = module.OBSERVED, module.HIDDEN
    nodes, others = ([random_channel_points(group, random) for group in groups] for _ in range(2))
    discrete = [discrete_coordinates(group) for group in groups]
    choices = [tuple(product(*(group[i][2] for i in places))) for group, places in zip(groups, discrete, strict=True)]
    found: list[tuple[int, int, tuple[float, ...]]] = []
    for side, group in enumerate(groups):
        for place in (i for i in range(len(group)) if i not in discrete[side]):
            alike = {}
            for seen, unseen in product(*choices):
                nodes[0][:, discrete[0]], nodes[1][:, discrete[1]] = seen, unseen
                moved = [at.copy() for at in nodes]
                moved[side][:, place] = others[side][:, place]
                pairs = zip(
                    evaluate_output_channel(problem, labels, *nodes),
                    evaluate_output_channel(problem, labels, *moved),
                    strict=True,
                )
                alike[seen, unseen] = all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)
            if side:
                found += [(1, place, (*seen, *unseen)) for (seen, unseen), same in alike.items() if same]
            else:
                always = (seen for seen in choices[0] if all(alike[seen, unseen] for unseen in choices[1]))
                found += [(0, place, seen) for seen in always]
    return found


@dataclass(frozen=True)
class ShiftCoordinate:
    """An observed coordinate whose only effect is to shift the fields, in proportion to its value.

    Attributes:
        axis: index of the observed coordinate.
        hidden: indices of the discrete hidden coordinates.
        direction: shift of the fields per unit of the coordinate, up to a factor, (L tokens * t teacher columns,).
        choices: all combinations of values of the discrete hidden coordinates.
        factors: factor of `direction` for each combination; one or two distinct numbers.
    """

    axis: int
    direction: np.ndarray
    hidden: list[int]
    choices: tuple[tuple[float, ...], ...]
    factors: np.ndarray

    def shift_factors_at_hidden_nodes(self, nodes: np.ndarray) -> np.ndarray:
        """Return, for each quadrature node of hidden coordinates, the factor of the shift that a label causes."""
        alike = [(nodes[:, self.hidden] == choice).all(axis=1) for choice in self.choices]
        return self.factors @ np.array(alike, float)


def find_shift_coordinate(problem: Problem, labels: tuple[int, ...]) -> ShiftCoordinate | None:
    """Return the first observed coordinate (part of the label) that only shifts the fields, or None if there is none.

    The effect is tested at random values of all other coordinates.

    Args:
        problem: the problem, which fixes the parameters of the channel.
        labels: cluster label of every token.
    """
    real = (axis for axis, (_, kind, _) in enumerate(problem.solver.bayes_functions.OBSERVED) if kind == "real")
    return next(
        (found for axis in real if (found := _field_shift_of_coordinate(problem, labels, axis)) is not None), None
    )


def _field_shift_of_coordinate(problem: Problem, labels: tuple[int, ...], axis: int) -> ShiftCoordinate | None:
    module, random, options = problem.solver.bayes_functions, np.random.default_rng(0), OutputChannelOptions.current()
    discrete = discrete_coordinates(module.HIDDEN)
    choices = tuple(product(*(module.HIDDEN[i][2] for i in discrete)))
    observed, hidden = (random_channel_points(module.OBSERVED, random), random_channel_points(module.HIDDEN, random))
    moves = []
    for choice in choices:
        hidden[:, discrete] = choice
        moved = _field_change_per_unit(problem, labels, observed, hidden, axis)
        if moved is None:
            return None
        moves.append(moved)
    longest = max(moves, key=lambda v: float(np.abs(v).max()))
    if not np.abs(longest).max() > 0:
        return None
    factors = np.round(np.array(moves) @ longest / (longest @ longest), 12)
    along = np.abs(np.array(moves) - factors[:, None] * longest).max() < options.shift_tolerance * np.abs(longest).max()
    if not along or (factors == 0).any() or len(np.unique(factors)) > 2:
        return None
    return ShiftCoordinate(axis, longest, discrete, choices, factors)


def _field_change_per_unit(
    problem: Problem, labels: tuple[int, ...], observed: np.ndarray, hidden: np.ndarray, axis: int
) -> np.ndarray | None:
    """Return how much an observed coordinate shifts the fields per unit, (L t,), or None if this is not constant."""
    found, tolerance = [], OutputChannelOptions.current().shift_tolerance
    for value in (0.0, 1.0, -1.5):
        at = observed.copy()
        at[:, axis] = value
        found.append(evaluate_output_channel(problem, labels, at, hidden))
    (start, *rest), (ahead, *others), (behind, *more) = found
    slopes = np.concatenate([(ahead - start), (start - behind) / 1.5]).reshape(-1, start.shape[2])
    spread = [np.abs(slopes - slopes[0]).max() / max(np.abs(start).max(), 1.0)]
    spread += [np.abs(a - b).max() for a, b in zip(rest * 2, others + more, strict=True)]
    return slopes[0] if max(spread) < tolerance else None  # false where one is NaN


class OutputChannel:
    """The output channel of a Bayes-optimal problem: the law of labels given fields, with its integration rule.

    Attributes:
        counts: number of points of the Gaussian fields, then of each continuous coordinate, observed before hidden.
        cut: truncation of sums over product grids.
        planted: rule that samples fields from the teacher, used where a product grid has too many dimensions.

    Raises:
        InputError: the model has no output channel, or its parameters are outside the range in which it is valid.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.module = problem.solver.bayes_functions
        self.observed = [ChannelCoordinate(*c) for c in self.module.OBSERVED]
        self.hidden = [ChannelCoordinate(*c) for c in self.module.HIDDEN]
        self.every = [*self.observed, *self.hidden]
        self.has_no_hidden_integral = not any(c.is_continuous for c in self.hidden)
        self.cut = SumTruncation()
        self._tables: dict[Any, Any] = {}
        self._found: dict[Any, ChannelAverages] = {}
        self._covered: dict[Any, list[int]] = {}
        self.planted = PlantedSamplingRule(problem, lambda: self.coordinate_ranges)
        options = OutputChannelOptions.current()
        few = options.expensive_start_points if self.has_expensive_averages else options.start_points
        self.counts = [few] * (1 + sum(c.is_continuous for c in self.every))
        for labels, _ in problem.label_probabilities:
            if not self.module.needs_at(problem.constants(labels)) > 0:
                raise InputError(
                    f"the output channel of {problem.solver.name} is valid only where {self.module.NEEDS} is positive, "
                    "which it is not at these parameters; choose other values"
                )

    def _moments_of_fields(self, labels: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean (L tokens * t columns,) and the covariance blocks (L, t, t) of the teacher's fields."""
        contexts = self.problem.token_cluster_indices(labels)
        return self.problem.law.teacher_means[contexts].ravel(), self.problem.law.rho_star[contexts]

    def _log_density_of_fields(
        self, fields: np.ndarray, labels: tuple[int, ...], shift: ShiftCoordinate | None = None
    ) -> np.ndarray:
        """Return the log density of the teacher's fields, up to a constant integrated along a shift if one is given."""
        mean, covariances = self._moments_of_fields(labels)
        precision = block_diag(*np.linalg.inv(covariances))
        step = fields - mean
        with np.errstate(over="ignore", invalid="ignore"):
            exponent = -0.5 * np.einsum("nhi,ij,nhj->nh", step, precision, step)
            if shift is not None:
                along = precision @ shift.direction
                exponent += 0.5 * (step @ along) ** 2 / (shift.direction @ along)
        return exponent - 0.5 * np.linalg.slogdet(2 * np.pi * covariances)[1].sum()

    @cached_property
    def coordinate_ranges(self) -> dict[tuple[int, ...], list[tuple[float, float]]]:
        """The integration ranges of the continuous coordinates, in the variable t of each, by cluster labels."""
        return {labels: self._locate_coordinate_ranges(labels) for labels, _ in self.problem.label_probabilities}

    def _locate_coordinate_ranges(self, labels: tuple[int, ...]) -> list[tuple[float, float]]:
        options = OutputChannelOptions.current()
        continuous = [c for c in self.every if c.is_continuous]
        discrete = tuple(i for i, c in enumerate(self.every) if not c.is_continuous)
        ranges = [_T_RANGE[c.kind] for c in continuous]
        choices = int(np.prod([c.number_of_nodes(1) for c in self.every]))
        count = min(max(int((options.scan_points / choices) ** (1 / max(len(continuous), 1))), 8), 400)
        for _ in range(options.max_range_updates):
            counts = [count] * len(ranges)
            weights = self._tabulate_channel(labels, counts, ranges)[3].reshape(self._node_counts(counts))
            for axis, coordinate in enumerate(self.every):
                if coordinate.kind == "halves":
                    below, above = np.split(weights, 2, axis=axis)
                    weights = np.maximum(np.flip(below, axis), above)
            weights = weights.max(axis=discrete)
            new = []
            for axis, (low, high) in enumerate(ranges):
                others = tuple(i for i in range(len(ranges)) if i != axis)
                kept = np.flatnonzero(weights.max(axis=others) > weights.max() + options.log_cutoff)
                step = (high - low) / count
                # An end that still counts is moved outward by half the range, any other to where weights begin.
                ends = kept[0] - 1 if kept[0] else -count / 2, kept[-1] + (2 if kept[-1] < count - 1 else 1 + count / 2)
                limits = _T_LIMITS[continuous[axis].kind]
                new.append((max(low + step * ends[0], limits[0]), min(low + step * ends[1], limits[1])))
            moved = any(not 0.9 * (d - c) < b - a < 1.1 * (d - c) for (a, b), (c, d) in zip(new, ranges, strict=True))
            ranges = new
            if not moved:
                break
        return ranges

    def _node_counts(self, counts: Sequence[int]) -> list[int]:
        """Return the number of quadrature nodes of each coordinate of the channel, observed coordinates first.

        `counts` are the points of continuous coordinates; discrete ones have a node per value.
        """
        left = iter(counts)
        return [int(c.number_of_nodes(next(left) if c.is_continuous else 0)) for c in self.every]

    def _tabulate_channel(
        self, labels: tuple[int, ...], counts: Sequence[int], ranges: Any = None, shift: ShiftCoordinate | None = None,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        """Evaluate the channel at all quadrature nodes of its observed (label) and hidden (latent) coordinates.

        Args:
            labels: cluster label of every token.
            counts: number of points of each continuous coordinate.
            ranges: ranges of the continuous coordinates, by default `coordinate_ranges`.
            shift: coordinate that only shifts the fields; its only node is zero, as it is integrated over analytically.

        Returns:
            Tables by observed and hidden node, all but the first and the last as logarithms: the fields, (observed,
            hidden, L t); Jacobian times likelihood times hidden weights; the observed weights, (observed,); the
            product of both with the density of the fields; the likelihood; the factor of the shift, (hidden,).

        Raises:
            NotConvergedError: there would be too many nodes.
        """
        shape = [1 if shift is not None and i == shift.axis else n for i, n in enumerate(self._node_counts(counts))]
        self._check_number_of_evaluations(float(np.prod(shape, dtype=float)), OutputChannelOptions.current().max_nodes)
        divisions = zip(self.coordinate_ranges[labels] if ranges is None else ranges, counts, strict=True)
        axes = [c.quadrature_nodes(*(next(divisions) if c.is_continuous else ((0.0, 0.0), 0))) for c in self.every]
        if shift is not None:
            axes[shift.axis] = np.zeros(1), np.zeros(1)
        groups = axes[: len(self.observed)], axes[len(self.observed) :]
        nodes = [np.ascontiguousarray(tensor_product_rule(group)[0]) for group in groups]
        seen, unseen = (
            tensor_product_rule([(weights, weights) for _, weights in group])[0].sum(axis=1) for group in groups
        )
        observed, hidden = nodes
        fields, jacobian, likelihood = evaluate_output_channel(self.problem, labels, observed, hidden)
        # Of a coordinate on which nothing depends at some values of the discrete ones one node is left, of weight one.
        of_observed, of_hidden = (discrete_coordinates(self.module.OBSERVED), discrete_coordinates(self.module.HIDDEN))
        for side, place, choice in self._irrelevant_coordinates[labels]:
            x, weight = (values[len(values) // 2] for values in groups[side][place])
            left_out = np.where(nodes[side][:, place] == x, weight, np.inf)
            rows = (observed[:, of_observed] == choice[: len(of_observed)]).all(axis=1)
            if side:
                columns = (hidden[:, of_hidden] == choice[len(of_observed) :]).all(axis=1)
                jacobian[np.ix_(rows, columns)] -= left_out[columns]
            else:
                seen[rows] -= left_out[rows]
        factors = np.ones(len(unseen)) if shift is None else shift.shift_factors_at_hidden_nodes(hidden)
        with np.errstate(invalid="ignore", over="ignore"):
            measure = jacobian + likelihood + unseen
            law = measure + seen[:, None] + self._log_density_of_fields(fields, labels, shift)
        return fields, measure, seen, np.where(np.isfinite(law), law, -np.inf), likelihood, factors

    def relevant_nodes(self, labels: tuple[int, ...], shift: ShiftCoordinate | None = None) -> tuple[np.ndarray, ...]:
        """Return the channel at all quadrature nodes except those of negligible weight, as `_tabulate_channel` does.

        Args:
            labels: cluster label of every token.
            shift: coordinate that only shifts the fields, and is integrated over analytically.
        """
        key = (labels, shift is None, tuple(self.counts))
        if key not in self._tables:
            self._tables.clear()
            fields, measure, seen, law, likelihood, shifts = self._tabulate_channel(
                labels, self.counts[1:], shift=shift
            )
            rows = law.max(axis=1) > law.max() + OutputChannelOptions.current().log_cutoff
            columns = (law > law.max() - 80.0).any(axis=0)
            kept = np.ix_(rows, columns)
            measure = np.where(np.isfinite(measure) & np.isfinite(fields).all(axis=2), measure, -np.inf)
            fields = np.where(np.isfinite(fields), fields, 0.0)
            found = (fields[kept], measure[kept], seen[rows], law[kept], likelihood[kept], shifts[columns])
            self._tables[key] = tuple(map(np.ascontiguousarray, found))
        return self._tables[key]

    def _standard_normal_nodes(self, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes and weights of the standard normal law; in several dimensions they form a lattice in a ball."""
        options = OutputChannelOptions.current()
        if dimension < 2:
            return tensor_product_rule([midpoint_rule(self.counts[0], options.reach)] * dimension)
        reach = MatrixProductOptions.current().reach
        spacing = 2 * reach / self.counts[0]
        nodes = spacing * lattice_points_in_ball(sampling_lattice_basis(dimension), reach / spacing)
        weights = spacing**dimension * np.exp(-(nodes * nodes).sum(axis=1) / 2) / (2 * np.pi) ** (dimension / 2)
        return nodes, weights

    def is_averaged_by_sampling(self, q: np.ndarray) -> bool:
        """Return whether averages at overlaps q use random samples, as product grids would be too large."""
        options = OutputChannelOptions.current()
        if not supports_planted_sampling(self.module):
            return False
        coordinates = sum(c.is_continuous for c in self.every)
        if self.has_no_hidden_integral:
            contexts = slice(None, self.problem.tokens * self.problem.clusters, self.problem.clusters)
            return (
                covariance_factor(q[contexts], self._covariance_scale).shape[1] + coordinates
                > options.max_field_dimension
            )
        return coordinates > options.max_coordinates or self._multiplications_per_average(q) > options.max_products

    def _multiplications_per_average(self, q: np.ndarray) -> float:
        """Return the estimated cost of one average over the channel by a rough rule, in multiplications."""
        total, count = 0.0, OutputChannelOptions.current().expensive_start_points
        for labels in self._labels_with_distinct_averages(q):
            found, shift = self._decorrelating_basis(q, labels), self._shift_coordinates[labels]
            halved = found.directions_halved_by_symmetry(self.sign_symmetric_teacher_columns, self.problem.teacher_rank)
            grid = found.omega_grid(count, _ROUGH, halved)
            summed = [
                c for i, c in enumerate(self.every) if not (shift and found.informative_directions and i == shift.axis)
            ]
            total += float(
                np.prod([c.number_of_nodes(float(count)) for c in summed])
            ) * grid.omega_nodes_per_hidden_node(_ROUGH)
        return total

    def _decorrelating_basis(self, q: np.ndarray, labels: tuple[int, ...]) -> DecorrelatingBasis:
        known = q[self.problem.token_cluster_indices(labels)]
        return DecorrelatingBasis.from_covariances(known, self._moments_of_fields(labels)[1] - known)

    def _labels_with_distinct_averages(self, q: np.ndarray) -> list[tuple[int, ...]]:
        """Return assignments of cluster labels, one for each distinct value of the averages over the channel."""
        return list(
            {self._key_of_equal_averages(q, labels): labels for labels, _ in self.problem.label_probabilities}.values()
        )

    @cached_property
    def has_expensive_averages(self) -> bool:
        """Whether averages over the channel are slow or sampled, so that rules are refined only as error bars require.

        The cost is that at half of the full overlap.
        """
        half = self.problem.law.rho_star / 2
        return supports_planted_sampling(self.module) and (
            self.is_averaged_by_sampling(half)
            or (
                not self.has_no_hidden_integral
                and self._multiplications_per_average(half) > OutputChannelOptions.current().cheap_products
            )
        )

    @cached_property
    def _covariance_scale(self) -> float:
        return float(np.abs(self.problem.law.rho_star).max())

    @cached_property
    def sign_symmetric_teacher_columns(self) -> list[int]:
        """The teacher columns whose sign affects neither the labels nor the law of the fields."""
        law, found = self.problem.law, []
        for column in range(self.problem.teacher_rank) if self._has_gaussian_rows else ():
            turn = np.diag(np.where(np.arange(self.problem.teacher_rank) == column, -1.0, 1.0))
            even = np.array_equal(law.teacher_means @ turn, law.teacher_means)
            if (
                even
                and np.array_equal(turn @ law.rho_star @ turn, law.rho_star)
                and not self._is_channel_changed_by_rotation(turn)
            ):
                found.append(column)
        return found

    @cached_property
    def is_rotation_invariant(self) -> bool:
        """Whether rotations of the teacher columns among each other change neither the labels nor their law."""
        rho, t = self.problem.law.rho_star, self.problem.teacher_rank
        alike = np.abs(rho - rho[:, :1, :1] * np.eye(t)).max() < 1e-12 * np.abs(rho).max()
        if t < 2 or not self._has_centred_fields or not alike:
            return False
        return not self._is_channel_changed_by_rotation(np.linalg.qr(np.random.default_rng(1).normal(size=(t, t)))[0])

    @cached_property
    def symmetric_column_permutations(self) -> list[np.ndarray]:
        """The permutations (t, t) of teacher columns that change neither the labels nor their law.

        A permutation may be combined with sign changes. The first one is the identity.
        """
        law, t = self.problem.law, self.problem.teacher_rank
        grams = law.gram[:, -t:, -t:]
        found = [np.eye(t)]
        if not self._has_centred_fields:
            return found
        for order in islice(permutations(range(t)), 1, None):
            exchange = np.eye(t)[list(order)]
            alike = np.abs(exchange @ grams @ exchange.T - grams).max() < 1e-12 * np.abs(grams).max()
            signs = product((1, -1), repeat=t)
            if alike and not all(self._is_channel_changed_by_rotation(exchange * np.array(sign)) for sign in signs):
                found.append(exchange)
        return found

    @property
    def _has_gaussian_rows(self) -> bool:
        """Whether the teacher has Gaussian rows, and the observed coordinates (labels) depend only on its fields."""
        return supports_planted_sampling(self.module) and self.problem.law.rows is None

    @property
    def _has_centred_fields(self) -> bool:
        """Whether the teacher has Gaussian rows and fields of mean zero, on which alone labels depend."""
        return self._has_gaussian_rows and not np.abs(self.problem.law.teacher_means).max() > 0

    @cached_property
    def _is_sign_invariant(self) -> bool:
        """Whether the observed coordinates (labels) remain the same when all fields change their sign."""
        return self._has_gaussian_rows and not self._is_channel_changed_by_rotation(-np.eye(self.problem.teacher_rank))

    def _is_channel_changed_by_rotation(self, turn: np.ndarray) -> bool:
        """Return whether labels change under an orthogonal matrix (t, t) that mixes the teacher columns."""
        fields = np.random.default_rng(0).normal(size=(32, self.module.FIELDS))
        turned = (fields.reshape(len(fields), -1, len(turn)) @ turn).reshape(len(fields), -1)
        return any(
            not np.abs(
                self.planted.outputs_of_fields(fields, labels) - self.planted.outputs_of_fields(turned, labels)
            ).max()
            < 1e-9
            for labels, _ in self.problem.label_probabilities
        )

    def channel_averages(self, q: np.ndarray, curved: bool = False) -> ChannelAverages:
        """Return averages over the output channel, the law of labels given fields, at given overlaps q.

        Args:
            q: overlaps q, shape ((token, cluster) pairs, t, t), at least 0 and below those of perfect recovery.
            curved: whether to compute the derivative with respect to q as well.
        """
        key = (q.tobytes(), tuple(self.counts), self.cut, curved)
        if key not in self._found:
            if self.is_averaged_by_sampling(q):
                return self._set_odd_averages_to_zero(self.planted.channel_averages(q, curved), q)
            if len(self._found) >= OutputChannelOptions.current().cache_size:
                self._found.pop(next(iter(self._found)))
            self._found[key] = self._set_odd_averages_to_zero(self._average_over_label_choices(q, curved), q)
        return self._found[key]

    def _set_odd_averages_to_zero(self, found: ChannelAverages, q: np.ndarray) -> ChannelAverages:
        """Return the averages with entries that vanish by a sign symmetry of a teacher column set to exactly zero."""
        t = q.shape[1]
        odd = np.zeros((t, t), bool)
        for column in self.sign_symmetric_teacher_columns:
            others = [a for a in range(t) if a != column]
            if not np.abs(q[:, column][:, others]).max(initial=0.0) > 0:
                odd[column, others] = odd[others, column] = True
        if not odd.any():
            return found
        mixed = odd[:, :, None, None] ^ odd[None, None]  # squares of one parity do not respond to those of another
        return replace(
            found,
            outer=np.where(odd, 0.0, found.outer),
            response=None if found.response is None else np.where(mixed[None, :, :, None], 0.0, found.response),
            samples=tuple(self._set_odd_averages_to_zero(sample, q) for sample in found.samples),
        )

    def _average_over_label_choices(self, q: np.ndarray, curved: bool) -> ChannelAverages:
        outer = np.zeros_like(q)
        response = np.zeros((*q.shape, *q.shape)) if curved else None
        log_evidence = norm = 0.0
        sums: dict[Any, np.ndarray] = {}
        for labels, probability in self.problem.label_probabilities:
            alike = self._key_of_equal_averages(q, labels)
            if alike not in sums:
                sums[alike] = (
                    self._sum_over_fields_then_omega
                    if self.has_no_hidden_integral
                    else self._sum_over_omega_then_observed
                )(q, labels, curved)
            total = sums[alike]
            norm += probability * total[0]
            log_evidence += probability * total[1]
            add_token_averages(outer, response, self.problem.token_cluster_indices(labels), probability * total[2:])
        return ChannelAverages(outer, log_evidence, norm, response)

    def _key_of_equal_averages(self, q: np.ndarray, labels: tuple[int, ...]) -> tuple[Any, ...]:
        """Return a key that is equal for assignments of cluster labels with equal averages over the channel."""
        mean, covariances = self._moments_of_fields(labels)
        if self._is_sign_invariant and mean.any() and mean[np.flatnonzero(mean)[0]] < 0:
            mean = -mean
        known = q[self.problem.token_cluster_indices(labels)]
        return (self._first_equivalent_labels[labels], known.tobytes(), mean.tobytes(), covariances.tobytes())

    @cached_property
    def _first_equivalent_labels(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """The first assignment of cluster labels with the same output channel, for each assignment."""
        return first_labels_with_same_channel(self.problem)

    def _sum_over_fields_then_omega(self, q: np.ndarray, labels: tuple[int, ...], curved: bool) -> np.ndarray:
        """Return averages over the channel in one vector: sums over fields Y, then over omega (posterior mean of Y)."""
        law, contexts = self.problem.law, self.problem.token_cluster_indices(labels)
        fields, measure, _, law_of_y, *_ = self.relevant_nodes(labels)
        known, rho = q[contexts], law.rho_star[contexts]
        gain = known @ np.linalg.inv(rho)
        factor = covariance_factor(known - gain @ known, self._covariance_scale)
        nodes, weights = self._standard_normal_nodes(factor.shape[1])
        self._check_number_of_evaluations(
            float(np.prod(fields.shape[:2])) * len(nodes) * fields.shape[1],
            OutputChannelOptions.current().max_evaluations,
        )
        precision = np.linalg.inv(rho - known)
        log_norm = -0.5 * np.linalg.slogdet(2 * np.pi * (rho - known))[1].sum()
        rows = np.zeros((len(fields), length_of_packed_averages(fields.shape[2], q.shape[1], curved)))
        run_loop_in_threads(
            self.module.averages_by_fields, len(rows),
            fields, measure, law_of_y, law.teacher_means[contexts].ravel(), block_diag(*gain), factor, precision,
            log_norm, nodes, weights, int(curved), rows,
        )  # fmt: skip
        return rows.sum(axis=0)

    def _sum_over_omega_then_observed(self, q: np.ndarray, labels: tuple[int, ...], curved: bool) -> np.ndarray:
        """Return averages over the channel in one vector: sums over omega (posterior mean of fields), then labels."""
        mean, rho = self._moments_of_fields(labels)
        options = OutputChannelOptions.current()
        found, along, shift = self._decorrelating_basis(q, labels), None, self._shift_coordinates[labels]
        turn = None if shift is None else found.align_direction_with_vector(shift.direction)
        if turn and turn[0].known[turn[1]] >= options.min_known_variance:
            found, along = turn
        else:
            shift = None
        fields, measure, seen, law_of_y, _, shifts = self.relevant_nodes(labels, shift)
        fields = fields - mean
        halved = found.directions_halved_by_symmetry(self.sign_symmetric_teacher_columns, q.shape[1], along)
        if shift is None or along is None:
            grid, shifts = found.omega_grid(self.counts[0], self.cut, halved), np.zeros(len(shifts))
        else:
            back = found.field_to_direction_matrix[along]
            shifts = shifts * (back @ shift.direction)  # in units of y
            reach = float(np.abs(fields[law_of_y > law_of_y.max() + options.log_cutoff] @ back).max())
            points = self.counts[1 + sum(c.is_continuous for c in self.observed[: shift.axis])]
            grid = found.shifted_omega_grid(along, np.unique(shifts), reach, self.counts[0], points, self.cut, halved)
        return average_channel_by_matrix_products(
            fields, measure, seen, law_of_y, shifts, found, grid, (len(rho), q.shape[1]), self.cut, curved
        )

    def _check_number_of_evaluations(self, size: float, most: float) -> None:
        if size > most:
            raise NotConvergedError(
                f"the average over the output channel of {self.problem.solver.name} needs more than {most:g} "
                "evaluations; describe the channel in the model by fewer continuous coordinates"
            )

    @cached_property
    def _irrelevant_coordinates(self) -> dict[tuple[int, ...], list[tuple[int, int, tuple[float, ...]]]]:
        """The coordinates without effect on the channel (`find_irrelevant_coordinates`), by cluster labels."""
        return {
            labels: find_irrelevant_coordinates(self.problem, labels) for labels, _ in self.problem.label_probabilities
        }

    @cached_property
    def _shift_coordinates(self) -> dict[tuple[int, ...], ShiftCoordinate | None]:
        """The observed coordinate (part of the label) that only shifts the fields, or None, by cluster labels."""
        return {labels: find_shift_coordinate(self.problem, labels) for labels, _ in self.problem.label_probabilities}

    def truncate_sums_to_accuracy(self, accuracy: float) -> None:
        """Truncate sums over quadrature grids so that they lose only a hundredth of the required accuracy."""
        self.cut = SumTruncation(float(np.clip(1e-2 * accuracy, LEAST_LOST_FRACTION, 1e-4)))

    def refine_quadrature(
        self,
        q: np.ndarray,
        tolerance: float,
        moved: Callable[[ChannelAverages, ChannelAverages], float] = relative_difference_of_averages,
    ) -> tuple[ChannelAverages, float]:
        """Refine the axes of the rule over the channel in turn until averages change by less than a tolerance.

        Larger tolerances come first, so that no axis is much coarser than the others.

        Args:
            q: overlaps q, a (t, t) matrix of teacher columns for each (token, cluster) pair.
            tolerance: largest allowed change of averages by a finer rule.
            moved: function that returns the difference of two averages; by default relative to their size.

        Returns:
            The averages, and the sum over the axes of the last change of the averages.

        Raises:
            NotConvergedError: the rule would grow too large.
        """
        if self.is_averaged_by_sampling(q):
            self.planted.refine_quadrature(q, max(tolerance, 1e-5))
            return self.channel_averages(q), 0.0
        self.truncate_sums_to_accuracy(tolerance)
        for labels in self._labels_with_distinct_averages(np.zeros_like(q)):
            self._refine_until_probabilities_sum_to_one(labels, tolerance)
        self._refine_hidden_node_spacing(q)
        moves = [np.inf] * len(self.counts)
        current, options = self.channel_averages(q), OutputChannelOptions.current()
        levels = [tolerance * options.level_factor**k for k in range(options.max_levels)]
        for level in reversed([level for level in levels if level < 1]):
            start, chosen_counts = list(self.counts), list(self.counts)
            for axis, move in enumerate(moves):
                if not move < level:
                    chosen_counts[axis], moves[axis] = self._refine_axis_to_tolerance(
                        q, start, axis, level, move, current, moved
                    )
            self.counts = chosen_counts
            if chosen_counts != start:
                current = self.channel_averages(q)
        if abs(current.norm - 1) > _probability_sum_tolerance(tolerance):
            raise self._not_converged_error(current.norm, sum(moves))
        return current, sum(moves)

    def _refine_until_probabilities_sum_to_one(self, labels: tuple[int, ...], tolerance: float) -> None:
        """Refine the quadrature of the channel's coordinates until the probabilities of all labels add up to one.

        A real coordinate that would take many points is divided at zero if it then takes fewer.

        Raises:
            InputError: probabilities add up to another number, however fine the rule is.
            NotConvergedError: the rule would grow too large.
        """
        key, options = (labels, tolerance, tuple(self.counts)), OutputChannelOptions.current()
        if key in self._covered or self._count_coordinate_nodes(self.counts[1:]) > options.max_norm_nodes:
            self.counts = list(self._covered.get(key, self.counts))
            return
        counts = list(self.counts[1:])
        for most in (options.smooth_points, np.inf):
            counts, norm, error = self._refine_all_coordinates(
                labels, counts, max(options.norm_tolerance, tolerance), most
            )
            if abs(norm - 1) <= _probability_sum_tolerance(tolerance):
                break
        self.counts[1:] = counts
        self._covered[key] = list(self.counts)
        if abs(norm - 1) > _probability_sum_tolerance(tolerance):
            ranges = zip((c.kind for c in self.every if c.is_continuous), self.coordinate_ranges[labels], strict=True)
            is_cut = any(kind != "angle" and _LARGEST_T in (-low, high) for kind, (low, high) in ranges)
            name, short = self.problem.solver.name, norm < 1
            if error > 0.1 * abs(norm - 1) or (short and is_cut):
                raise self._not_converged_error(norm, error)
            fault = (
                "the coordinates do not reach all values of the fields (0.5 means that one of two sides is missing, "
                "which a sign among the coordinates adds)"
                if short
                else "the coordinates reach some values of the fields more than once (2 means all of them twice: "
                'declare a coordinate as "positive" instead of "real", or leave a sign out)'
            )
            raise InputError(
                f"the output channel of {name} does not cover the fields exactly once: probabilities of the "
                f"observed values add up to {norm:.6g}, however fine the rule is, instead of to 1. Either {fault}, or "
                "log_likelihood is not the logarithm of a density of the observed values"
            )
        self._check_mean_of_fields(labels)

    def _check_mean_of_fields(self, labels: tuple[int, ...]) -> None:
        """Check that the mean of the fields, by quadrature over the coordinates of the channel, is the exact mean.

        Raises:
            InputError: the means differ, as where coordinates reach some fields more often than others.
        """
        fields, _, _, law, *_ = self._tabulate_channel(labels, self.counts[1:])
        mean, covariances = self._moments_of_fields(labels)
        deviations = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2)).ravel()
        shares = np.exp(law)
        off = np.einsum("nh,nhi->i", shares, np.where(shares[:, :, None] > 0, fields - mean, 0.0)) / deviations
        worst = int(np.argmax(np.abs(off)))
        if abs(off[worst]) > OutputChannelOptions.current().mean_tolerance:
            raise InputError(
                f"the output channel of {self.problem.solver.name} does not cover the fields exactly once: over its "
                f"coordinates, the mean of field {worst + 1} of Y is {off[worst]:.3g} standard deviations away from "
                "its true mean, so that some values are reached more than once and others never. Describe a sign that "
                'is not observed by hidden={"sign": (-1, 1)}, next to the size as a "positive" coordinate'
            )

    def _refine_all_coordinates(
        self, labels: tuple[int, ...], counts: list[int], tolerance: float, most: float
    ) -> tuple[list[int], float, float]:
        """Return the number of points of every axis at which the probabilities of all labels add up with small error.

        The sum has converged if a finer division of any axis changes it by less than a tolerance. No axis has more than
        `most` points. The sum and its error are returned as well.
        """
        norm = error = 0.0
        before: Any = None
        while before != (counts, self.every):
            before, error = (counts, list(self.every)), 0.0
            for axis, place in reversed(list(enumerate(i for i, c in enumerate(self.every) if c.is_continuous))):
                refined = self._refine_coordinate_to_tolerance(labels, counts, axis, tolerance, most)
                if refined[2] >= tolerance and self.every[place].kind == "real":
                    self._set_coordinate_kind(place, "halves")
                    halved = self._refine_coordinate_to_tolerance(labels, counts, axis, tolerance, most)
                    if halved[2] < 0.1 * refined[2]:
                        refined = halved
                    else:
                        self._set_coordinate_kind(place, "real")
                counts, norm, moved = refined
                error += moved
        return counts, norm, error

    def _refine_coordinate_to_tolerance(
        self, labels: tuple[int, ...], counts: list[int], axis: int, tolerance: float, most: float
    ) -> tuple[list[int], float, float]:
        """Return numbers of points at which one axis has converged, with the sum of all probabilities and its change.

        For a hidden axis every probability of the observed coordinates has to converge, else only their sum.
        """
        most_nodes = OutputChannelOptions.current().max_norm_nodes
        observed = sum(c.is_continuous for c in self.observed)
        found = self._probabilities_of_observed_values(labels, counts)
        while True:
            finer = _increase_points_of_axis(counts, axis)
            before, found = found, self._probabilities_of_observed_values(labels, finer)
            moved = float(np.abs(found - before).sum() if axis >= observed else abs(found.sum() - before.sum()))
            if moved < tolerance or finer[axis] > most or self._count_coordinate_nodes(finer) > most_nodes:
                return counts, float(found.sum()), moved
            counts = finer

    def _count_coordinate_nodes(self, counts: Sequence[int]) -> float:
        return float(np.prod(self._node_counts(counts), dtype=float))

    def probabilities_of_discrete_observations(self, labels: tuple[int, ...]) -> dict[tuple[float, ...], float]:
        """Return a mapping from each combination of discrete observed coordinates (labels) to its probability."""
        options = OutputChannelOptions.current()
        counts, _, _ = self._refine_all_coordinates(
            labels, list(self.counts[1:]), options.probability_tolerance, options.smooth_points
        )
        shape = self._node_counts(counts)[: len(self.observed)]
        summed = tuple(i for i, c in enumerate(self.observed) if c.is_continuous)
        values = self._probabilities_of_observed_values(labels, counts).reshape(shape).sum(axis=summed).ravel()
        return dict(zip(product(*(c.values for c in self.observed if not c.is_continuous)), values, strict=True))

    def _probabilities_of_observed_values(self, labels: tuple[int, ...], counts: Sequence[int]) -> np.ndarray:
        """Return the probability (density) of the observed coordinates at each of their quadrature nodes."""
        with np.errstate(over="ignore"):
            return np.exp(self._tabulate_channel(labels, counts)[3]).sum(axis=1)

    def _set_coordinate_kind(self, place: int, kind: str) -> None:
        """Change the kind of a coordinate, such as real or positive, and discard cached nodes that depend on it."""
        self.every[place] = replace(self.every[place], kind=kind)
        count = len(self.observed)
        self.observed, self.hidden = self.every[:count], self.every[count:]
        self.__dict__.pop("coordinate_ranges", None)
        self._tables.clear()
        self._found.clear()

    def _not_converged_error(self, norm: float, error: float) -> NotConvergedError:
        return NotConvergedError(
            f"the average over the output channel of {self.problem.solver.name} does not converge: probabilities of "
            f"the observed values add up to {norm:.9g} instead of 1, and finer rules still change this sum by "
            f"{error:.0e}. Choose coordinates in which the law of the fields is smooth and has short tails, for "
            "instance the logarithm and the sign of a number"
        )

    def _refine_hidden_node_spacing(self, q: np.ndarray) -> None:
        """Refine the quadrature nodes of hidden coordinates until they resolve the posterior of the fields.

        With coarser nodes fields seem to be known exactly, so that coarse rules agree with each other but are wrong.
        """
        widest = OutputChannelOptions.current().max_node_spacing
        for labels in [] if self.has_no_hidden_integral else self._labels_with_distinct_averages(q):
            spacing = self._hidden_node_spacing(q, labels)
            while spacing.max(initial=0.0) > widest:
                first = len(self.counts) - len(spacing)
                finer = np.ceil(self.counts[first:] * np.clip(1.1 * spacing / widest, 1.0, 32.0))
                self.counts = self.counts[:first] + finer.astype(int).tolist()
                spacing = self._hidden_node_spacing(q, labels)

    def _hidden_node_spacing(self, q: np.ndarray, labels: tuple[int, ...]) -> np.ndarray:
        """Return the largest distance between neighbouring quadrature nodes of each continuous hidden coordinate.

        Distances are those of the fields, in standard deviations of their posterior; nodes of small weight are left
        out.
        """
        found, shift = self._decorrelating_basis(q, labels), self._shift_coordinates[labels]
        fields, _, _, law, *_ = self._tabulate_channel(labels, self.counts[1:], shift=shift)
        shape = [len(fields), *self._node_counts(self.counts[1:])[len(self.observed) :]]
        counts = (law > law.max() - OutputChannelOptions.current().relevant_log_weight).reshape(shape)
        with np.errstate(over="ignore", invalid="ignore"):
            places = (fields @ found.field_to_direction_matrix.T).reshape(*shape, -1)
            spacing = []
            for axis in (1 + i for i, c in enumerate(self.hidden) if c.is_continuous):
                apart = np.linalg.norm(np.diff(places, axis=axis), axis=-1)
                near = counts.take(range(1, shape[axis]), axis) | counts.take(range(shape[axis] - 1), axis)
                spacing.append(float(apart[near & np.isfinite(apart)].max(initial=0.0)))
        return np.array(spacing)

    def _refine_axis_to_tolerance(
        self, q: np.ndarray, start: list[int], axis: int, level: float, move: float, current: ChannelAverages,
        moved: Callable[[ChannelAverages, ChannelAverages], float],
    ) -> tuple[int, float]:  # fmt: skip
        """Return the number of points of an axis of the rule at which averages change by less than a tolerance.

        Args:
            q: overlaps q, a (t, t) matrix of teacher columns for each (token, cluster) pair.
            start: initial number of points of all axes.
            axis: index of the axis.
            level: tolerance of the change of averages.
            move: change of averages by a finer division of the initial points, infinite where unknown.
            current: averages at the initial points.
            moved: function that returns the difference of two averages.

        Returns:
            The number of points and the last change.
        """
        counts, before, coarser = list(start), current, start[axis]
        if move < np.inf:
            self.counts = counts = _increase_points_of_axis(counts, axis)
            before = self.channel_averages(q)
        while True:
            count = counts[axis]
            self.counts = counts = _increase_points_of_axis(counts, axis)
            finer = self.channel_averages(q)
            last, move = move, moved(before, finer)
            if move < level:
                break
            coarser, before = count, finer
        if last < np.inf and self.has_expensive_averages:  # errors fall geometrically, and more nodes are expensive
            share = np.log(last / level) / np.log(last / max(move, 1e-300))
            return int(np.ceil(coarser + (count - coarser) * share)), level
        return count, move


def _probability_sum_tolerance(tolerance: float) -> float:
    """Return the largest accepted deviation from one of the sum of all probabilities of observed coordinates."""
    return max(1e-6, 10 * tolerance)


def _increase_points_of_axis(counts: list[int], axis: int) -> list[int]:
    factor = OutputChannelOptions.current().refinement_factor
    return [int(np.ceil(factor * n)) if i == axis else n for i, n in enumerate(counts)]
