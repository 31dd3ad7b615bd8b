"""Averages over an output channel: ranges and refinement of its coordinates, and the averages themselves.

Ranges of coordinates are widened as far as tails reach. Two orders of integration are used: omega first and the
observed coordinates given it; or, without continuous hidden coordinates, the fields Y first and omega given them, which
stays well conditioned up to perfect recovery.

Every coordinate is mapped to the whole line so that the integrand decays double-exponentially (real: x = sinh t;
positive: x = exp(t - exp(-t)); an angle goes once around), where the trapezoid rule converges geometrically
(H. Takahasi, M. Mori, Publ. RIMS 9 (1974) 721). A real coordinate whose law is not smooth at zero is two positive ones.

Some observed coordinates shift the fields of a sentence and do nothing else: the fields are then Y(0, .) + v m, with v
the same for all continuous coordinates; so that the posterior depends on m and on omega along v through omega - v m
alone, and its sums over hidden coordinates need not be taken at every m.
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
from ...base.threads import run_in_threads
from ...channel.lattices import points_in_ball, sampling_lattice_basis
from ...channel.nodes import midpoint_rule, tensor_product_rule
from ...problems.problem import Problem
from .averages import (
    LEAST_LOST_FRACTION,
    Averages,
    Directions,
    MatrixProductOptions,
    Truncation,
    accumulate_row,
    averages_by_products,
    covariance_factor,
    evaluate_channel,
    relative_difference,
    row_length,
    sample_coordinates,
)
from .sampling import PlantedRule, supports_planted_sampling

_T_RANGE = {"real": (-8.0, 8.0), "positive": (-6.0, 8.0), "halves": (-6.0, 8.0), "angle": (-np.pi, np.pi)}
_LARGEST_T = 300.0  # limit of double precision: x = sinh t is 1e130, whose square is still finite
_T_LIMITS = _T_RANGE | {"real": (-_LARGEST_T, _LARGEST_T)} | dict.fromkeys(("positive", "halves"), (-6.0, _LARGEST_T))
_ROUGH = Truncation(1e-6)


@dataclass(frozen=True)
class OutputChannelOptions(AlgorithmOptions):
    """Options of the integration rule of an output channel: how far coordinates reach, and how finely they are divided.

    Attributes:
        reach: standard deviations of one normal field that are integrated over; 6e-15 of its law lies beyond 7.8.
        log_cutoff: logarithm of the ratio to the largest weight at which the range of a coordinate ends.
        max_range_updates: updates of the ranges before the last ones are used.
        scan_points: nodes of all coordinates by which ranges are found; more find narrower laws.
        max_evaluations: evaluations of one average over fields; beyond it the average fails.
        max_nodes: nodes of all coordinates together; limits memory.
        min_known_variance: variance of omega, relative to the unknown part, below which a shift is an ordinary
            coordinate: nodes of omega - v m would be too many.
        max_coordinates: continuous coordinates up to which averages are sums over a product grid, else draws.
        max_products: multiplications of an average up to which it is such a sum.
        cheap_products: multiplications up to which an average counts as cheap, and is refined beyond the accuracy.
        max_node_spacing: spacing of hidden nodes, in standard deviations of the unknown part of the fields.
        relevant_log_weight: minus the logarithm of relative weights for which that spacing is required.
        max_field_dimension: fields and coordinates up to which averages without hidden coordinates are sums.
        start_points: points of every axis at the beginning.
        expensive_start_points: the same where averages are expensive.
        refinement_factor: ratio of the points of an axis after and before a refinement.
        cache_size: averages that are cached, as rules are compared at the same q.
        mean_tolerance: error of the mean of a field, in standard deviations, above which the channel is refused: it
            is of order 1 where values of the fields are reached twice.
        norm_tolerance: least tolerance of the sum of all probabilities.
        max_norm_nodes: nodes up to which that sum is refined.
        probability_tolerance: tolerance of probabilities of observed choices.
        smooth_points: points of a coordinate that a smooth law never needs: beyond it the coordinate is divided at 0.
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
class Coordinate:
    """A coordinate with its kind: "real", "positive", "angle", "discrete", or "halves", a real one in two halves."""

    name: str
    kind: str
    values: tuple[float, ...]

    @property
    def is_continuous(self) -> bool:
        """Whether the coordinate is integrated over."""
        return self.kind != "discrete"

    def nodes_and_log_weights(self, box: tuple[float, float], count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return points of the coordinate and the logarithms of their weights.

        Args:
            box: range of t, the coordinate mapped to the whole line.
            count: number of points (of either half for the kind "halves").
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

    def size(self, count: float) -> float:
        """Return the number of points of the axis."""
        return (2 * count if self.kind == "halves" else count) if self.is_continuous else len(self.values)


def find_identical_channels(problem: Problem) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return, for each choice of labels, the first choice with the same channel at random coordinates."""
    module, random = problem.solver.bayes, np.random.default_rng(0)
    nodes = sample_coordinates(module.OBSERVED, random), sample_coordinates(module.HIDDEN, random)
    firsts: dict[bytes, tuple[int, ...]] = {}
    return {
        labels: firsts.setdefault(
            b"".join(table.tobytes() for table in evaluate_channel(problem, labels, *nodes)), labels
        )
        for labels, _ in problem.label_choices
    }


def discrete_indices(coordinates: Sequence[tuple[str, str, tuple[float, ...]]]) -> list[int]:
    """Return which coordinates are discrete."""
    return [i for i, (_, kind, _) in enumerate(coordinates) if kind == "discrete"]


def find_irrelevant_coordinates(problem: Problem, labels: tuple[int, ...]) -> list[tuple[int, int, tuple[float, ...]]]:
    """Return continuous coordinates with values of the discrete ones at which nothing depends on them.

    Args:
        problem: the problem, which fixes parameters of the channel.
        labels: the choice of labels.

    Returns:
        Triples: 0 for an observed coordinate, 1 for a hidden one; the place in its group; and the values of the
        discrete coordinates: of the observed ones, or of observed and hidden ones.
    """
    module, random = problem.solver.bayes, np.random.default_rng(0)
    groups = module.OBSERVED, module.HIDDEN
    nodes, others = ([sample_coordinates(group, random) for group in groups] for _ in range(2))
    discrete = [discrete_indices(group) for group in groups]
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
                    evaluate_channel(problem, labels, *nodes), evaluate_channel(problem, labels, *moved), strict=True
                )
                alike[seen, unseen] = all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)
            if side:
                found += [(1, place, (*seen, *unseen)) for (seen, unseen), same in alike.items() if same]
            else:
                always = (seen for seen in choices[0] if all(alike[seen, unseen] for unseen in choices[1]))
                found += [(0, place, seen) for seen in always]
    return found


@dataclass(frozen=True)
class Shift:
    """An observed coordinate that shifts the fields and does nothing else.

    Attributes:
        axis: which of the observed coordinates; direction: v (L t,).
        hidden: which hidden coordinates are discrete; choices: their values, one after another; factors: the factor of
            v at each, one or two distinct numbers.
    """

    axis: int
    direction: np.ndarray
    hidden: list[int]
    choices: tuple[tuple[float, ...], ...]
    factors: np.ndarray

    def factors_at(self, nodes: np.ndarray) -> np.ndarray:
        """Return the factor of v at nodes (H, hidden) of the hidden coordinates, (H,)."""
        alike = [(nodes[:, self.hidden] == choice).all(axis=1) for choice in self.choices]
        return self.factors @ np.array(alike, float)


def find_shift(problem: Problem, labels: tuple[int, ...]) -> Shift | None:
    """Return the first observed coordinate that shifts the fields, tested at random values of all others.

    Args:
        problem: the problem, which fixes parameters of the channel.
        labels: the choice of labels.
    """
    real = (axis for axis, (_, kind, _) in enumerate(problem.solver.bayes.OBSERVED) if kind == "real")
    return next((found for axis in real if (found := _find_shift_along(problem, labels, axis)) is not None), None)


def _find_shift_along(problem: Problem, labels: tuple[int, ...], axis: int) -> Shift | None:
    module, random, options = problem.solver.bayes, np.random.default_rng(0), OutputChannelOptions.current()
    discrete = discrete_indices(module.HIDDEN)
    choices = tuple(product(*(module.HIDDEN[i][2] for i in discrete)))
    observed, hidden = sample_coordinates(module.OBSERVED, random), sample_coordinates(module.HIDDEN, random)
    moves = []
    for choice in choices:
        hidden[:, discrete] = choice
        moved = _shift_per_unit(problem, labels, observed, hidden, axis)
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
    return Shift(axis, longest, discrete, choices, factors)


def _shift_per_unit(
    problem: Problem, labels: tuple[int, ...], observed: np.ndarray, hidden: np.ndarray, axis: int
) -> np.ndarray | None:
    """Return the change of the fields by a unit of a coordinate, (L t,); None where it is not the same everywhere."""
    found, tolerance = [], OutputChannelOptions.current().shift_tolerance
    for value in (0.0, 1.0, -1.5):
        at = observed.copy()
        at[:, axis] = value
        found.append(evaluate_channel(problem, labels, at, hidden))
    (start, *rest), (ahead, *others), (behind, *more) = found
    slopes = np.concatenate([(ahead - start), (start - behind) / 1.5]).reshape(-1, start.shape[2])
    spread = [np.abs(slopes - slopes[0]).max() / max(np.abs(start).max(), 1.0)]
    spread += [np.abs(a - b).max() for a, b in zip(rest * 2, others + more, strict=True)]
    return slopes[0] if max(spread) < tolerance else None  # false where one is NaN


class Channel:
    """The output channel of a problem with a rule that refines itself.

    Attributes:
        counts: points of the normal fields, then of each continuous coordinate, observed before hidden.
        cut: truncation of sums by products.
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
        self.has_no_hidden_integral = not any(c.is_continuous for c in self.hidden)
        self.cut = Truncation()
        self._tables: dict[Any, Any] = {}
        self._found: dict[Any, Averages] = {}
        self._covered: dict[Any, list[int]] = {}
        self.planted = PlantedRule(problem, lambda: self.boxes)
        options = OutputChannelOptions.current()
        few = options.expensive_start_points if self.is_expensive else options.start_points
        self.counts = [few] * (1 + sum(c.is_continuous for c in self.every))
        for labels, _ in problem.label_choices:
            if not self.module.needs_at(problem.constants(labels)) > 0:
                raise InputError(
                    f"the output channel of {problem.solver.name} is not the one it declares at these parameters: "
                    f"{self.module.NEEDS} must be positive"
                )

    def _law_of_fields(self, labels: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean (L t,) and covariance blocks (L, t, t) of Y."""
        contexts = self.problem.context_indices(labels)
        return self.problem.law.teacher_means[contexts].ravel(), self.problem.law.rho_star[contexts]

    def _log_density(self, fields: np.ndarray, labels: tuple[int, ...], shift: Shift | None = None) -> np.ndarray:
        """Return the log density of the fields Y; with a shift the density is integrated along its direction."""
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
        """The ranges of t of the continuous coordinates outside which weights are negligible, by choice of labels."""
        return {labels: self._locate_ranges(labels) for labels, _ in self.problem.label_choices}

    def _locate_ranges(self, labels: tuple[int, ...]) -> list[tuple[float, float]]:
        options = OutputChannelOptions.current()
        continuous = [c for c in self.every if c.is_continuous]
        discrete = tuple(i for i, c in enumerate(self.every) if not c.is_continuous)
        boxes = [_T_RANGE[c.kind] for c in continuous]
        choices = int(np.prod([c.size(1) for c in self.every]))
        count = min(max(int((options.scan_points / choices) ** (1 / max(len(continuous), 1))), 8), 400)
        for _ in range(options.max_range_updates):
            counts = [count] * len(boxes)
            weights = self._evaluate_nodes(labels, counts, boxes)[3].reshape(self._axis_sizes(counts))
            for axis, coordinate in enumerate(self.every):
                if coordinate.kind == "halves":
                    below, above = np.split(weights, 2, axis=axis)
                    weights = np.maximum(np.flip(below, axis), above)
            weights = weights.max(axis=discrete)
            new = []
            for axis, (low, high) in enumerate(boxes):
                others = tuple(i for i in range(len(boxes)) if i != axis)
                kept = np.flatnonzero(weights.max(axis=others) > weights.max() + options.log_cutoff)
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

    def _axis_sizes(self, counts: Sequence[int]) -> list[int]:
        """Return the points of every coordinate, observed first, from those of the continuous ones."""
        left = iter(counts)
        return [int(c.size(next(left) if c.is_continuous else 0)) for c in self.every]

    def _evaluate_nodes(
        self, labels: tuple[int, ...], counts: Sequence[int], boxes: Any = None, shift: Shift | None = None
    ) -> tuple[np.ndarray, ...]:
        """Evaluate the channel at all nodes of its coordinates.

        Args:
            labels: the choice of labels.
            counts: points of the continuous coordinates.
            boxes: their ranges, the property `boxes` by default.
            shift: a coordinate that is integrated over, and stays at zero.

        Returns:
            Fields (N, H, L t); Jacobian, likelihood and hidden weights (N, H); observed weights (N,); the law of Y
            with all of them (N, H); the likelihood (N, H); the factor of the shift, (H,). The second to fifth are
            logarithms.

        Raises:
            NotConvergedError: it would be too large.
        """
        shape = [1 if shift is not None and i == shift.axis else n for i, n in enumerate(self._axis_sizes(counts))]
        self._check_size(float(np.prod(shape, dtype=float)), OutputChannelOptions.current().max_nodes)
        divisions = zip(self.boxes[labels] if boxes is None else boxes, counts, strict=True)
        axes = [c.nodes_and_log_weights(*(next(divisions) if c.is_continuous else ((0.0, 0.0), 0))) for c in self.every]
        if shift is not None:
            axes[shift.axis] = np.zeros(1), np.zeros(1)
        groups = axes[: len(self.observed)], axes[len(self.observed) :]
        nodes = [np.ascontiguousarray(tensor_product_rule(group)[0]) for group in groups]
        seen, unseen = (
            tensor_product_rule([(weights, weights) for _, weights in group])[0].sum(axis=1) for group in groups
        )
        observed, hidden = nodes
        fields, jacobian, likelihood = evaluate_channel(self.problem, labels, observed, hidden)
        # Of a coordinate on which nothing depends at some values of the discrete ones one node is left, of weight one.
        of_observed, of_hidden = discrete_indices(self.module.OBSERVED), discrete_indices(self.module.HIDDEN)
        for side, place, choice in self._irrelevant_coordinates[labels]:
            x, weight = (values[len(values) // 2] for values in groups[side][place])
            left_out = np.where(nodes[side][:, place] == x, weight, np.inf)
            rows = (observed[:, of_observed] == choice[: len(of_observed)]).all(axis=1)
            if side:
                columns = (hidden[:, of_hidden] == choice[len(of_observed) :]).all(axis=1)
                jacobian[np.ix_(rows, columns)] -= left_out[columns]
            else:
                seen[rows] -= left_out[rows]
        factors = np.ones(len(unseen)) if shift is None else shift.factors_at(hidden)
        with np.errstate(invalid="ignore", over="ignore"):
            measure = jacobian + likelihood + unseen
            law = measure + seen[:, None] + self._log_density(fields, labels, shift)
        return fields, measure, seen, np.where(np.isfinite(law), law, -np.inf), likelihood, factors

    def relevant_nodes(self, labels: tuple[int, ...], shift: Shift | None = None) -> tuple[np.ndarray, ...]:
        """Return the nodes of the current rule whose weights are not negligible, in the order of `_evaluate_nodes`.

        Args:
            labels: the choice of labels.
            shift: a coordinate that is integrated over.
        """
        key = (labels, shift is None, tuple(self.counts))
        if key not in self._tables:
            self._tables.clear()
            fields, measure, seen, law, likelihood, shifts = self._evaluate_nodes(labels, self.counts[1:], shift=shift)
            rows = law.max(axis=1) > law.max() + OutputChannelOptions.current().log_cutoff
            columns = (law > law.max() - 80.0).any(axis=0)
            kept = np.ix_(rows, columns)
            measure = np.where(np.isfinite(measure) & np.isfinite(fields).all(axis=2), measure, -np.inf)
            fields = np.where(np.isfinite(fields), fields, 0.0)
            found = (fields[kept], measure[kept], seen[rows], law[kept], likelihood[kept], shifts[columns])
            self._tables[key] = tuple(map(np.ascontiguousarray, found))
        return self._tables[key]

    def _normal_nodes(self, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes and weights of the standard normal law, in several dimensions on a lattice in a ball."""
        options = OutputChannelOptions.current()
        if dimension < 2:
            return tensor_product_rule([midpoint_rule(self.counts[0], options.reach)] * dimension)
        reach = MatrixProductOptions.current().reach
        spacing = 2 * reach / self.counts[0]
        nodes = spacing * points_in_ball(sampling_lattice_basis(dimension), reach / spacing)
        weights = spacing**dimension * np.exp(-(nodes * nodes).sum(axis=1) / 2) / (2 * np.pi) ** (dimension / 2)
        return nodes, weights

    def is_sampled(self, q: np.ndarray) -> bool:
        """Return whether averages at q are sampled, as a product grid would have too many coordinates or nodes."""
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
        return coordinates > options.max_coordinates or self._count_multiplications(q) > options.max_products

    def _count_multiplications(self, q: np.ndarray) -> float:
        """Return the multiplications of hidden nodes with nodes of omega in one average by a rough rule."""
        total, count = 0.0, OutputChannelOptions.current().expensive_start_points
        for labels in self._distinct_labels(q):
            found, shift = self._independent_directions(q, labels), self._field_shifts[labels]
            halved = found.halved_directions(self.sign_symmetric_columns, self.problem.teacher_rank)
            grid = found.plain_grid(count, _ROUGH, halved)
            summed = [c for i, c in enumerate(self.every) if not (shift and found.informative and i == shift.axis)]
            total += float(np.prod([c.size(float(count)) for c in summed])) * grid.relevant_size(_ROUGH)
        return total

    def _independent_directions(self, q: np.ndarray, labels: tuple[int, ...]) -> Directions:
        known = q[self.problem.context_indices(labels)]
        return Directions.from_covariances(known, self._law_of_fields(labels)[1] - known)

    def _distinct_labels(self, q: np.ndarray) -> list[tuple[int, ...]]:
        """Return choices of labels whose averages differ."""
        return list({self._equivalence_key(q, labels): labels for labels, _ in self.problem.label_choices}.values())

    @cached_property
    def is_expensive(self) -> bool:
        """Whether averages at q = rho* / 2 take long or are sampled: rules are then refined only as error bars need."""
        half = self.problem.law.rho_star / 2
        return supports_planted_sampling(self.module) and (
            self.is_sampled(half)
            or (
                not self.has_no_hidden_integral
                and self._count_multiplications(half) > OutputChannelOptions.current().cheap_products
            )
        )

    @cached_property
    def _covariance_scale(self) -> float:
        return float(np.abs(self.problem.law.rho_star).max())

    @cached_property
    def sign_symmetric_columns(self) -> list[int]:
        """The columns of the teacher whose sign does not change the observed coordinates, nor the law of the fields."""
        law, found = self.problem.law, []
        for column in range(self.problem.teacher_rank) if self._has_normal_rows else ():
            turn = np.diag(np.where(np.arange(self.problem.teacher_rank) == column, -1.0, 1.0))
            even = np.array_equal(law.teacher_means @ turn, law.teacher_means)
            if even and np.array_equal(turn @ law.rho_star @ turn, law.rho_star) and not self._is_changed_by(turn):
                found.append(column)
        return found

    @cached_property
    def is_rotation_invariant(self) -> bool:
        """Whether rotations of all columns of the teacher change neither the observed coordinates nor their law."""
        rho, t = self.problem.law.rho_star, self.problem.teacher_rank
        alike = np.abs(rho - rho[:, :1, :1] * np.eye(t)).max() < 1e-12 * np.abs(rho).max()
        if t < 2 or not self._is_centred or not alike:
            return False
        return not self._is_changed_by(np.linalg.qr(np.random.default_rng(1).normal(size=(t, t)))[0])

    @cached_property
    def column_permutations(self) -> list[np.ndarray]:
        """The permutations of the teacher's columns, (t, t) each, that change neither observed coordinates nor law.

        Signs may go with them. The first is the identity.
        """
        law, t = self.problem.law, self.problem.teacher_rank
        grams = law.gram[:, -t:, -t:]
        found = [np.eye(t)]
        if not self._is_centred:
            return found
        for order in islice(permutations(range(t)), 1, None):
            exchange = np.eye(t)[list(order)]
            alike = np.abs(exchange @ grams @ exchange.T - grams).max() < 1e-12 * np.abs(grams).max()
            signs = product((1, -1), repeat=t)
            if alike and not all(self._is_changed_by(exchange * np.array(sign)) for sign in signs):
                found.append(exchange)
        return found

    @property
    def _has_normal_rows(self) -> bool:
        """Whether rows are normal, and the observed coordinates are a function of the fields."""
        return supports_planted_sampling(self.module) and self.problem.law.rows is None

    @property
    def _is_centred(self) -> bool:
        """Whether, in addition, the fields have mean zero."""
        return self._has_normal_rows and not np.abs(self.problem.law.teacher_means).max() > 0

    @cached_property
    def _is_sign_invariant(self) -> bool:
        """Whether the observed coordinates stay the same where all fields change their sign."""
        return self._has_normal_rows and not self._is_changed_by(-np.eye(self.problem.teacher_rank))

    def _is_changed_by(self, turn: np.ndarray) -> bool:
        """Return whether the observed coordinates change where all columns are turned by a matrix (t, t)."""
        fields = np.random.default_rng(0).normal(size=(32, self.module.FIELDS))
        turned = (fields.reshape(len(fields), -1, len(turn)) @ turn).reshape(len(fields), -1)
        return any(
            not np.abs(self.planted.observe(fields, labels) - self.planted.observe(turned, labels)).max() < 1e-9
            for labels, _ in self.problem.label_choices
        )

    def averages(self, q: np.ndarray, curved: bool = False) -> Averages:
        """Return averages at given overlaps.

        Args:
            q: overlaps, (C, t, t), 0 <= q < rho*.
            curved: whether to compute the derivative with respect to q, too.
        """
        key = (q.tobytes(), tuple(self.counts), self.cut, curved)
        if key not in self._found:
            if self.is_sampled(q):
                return self._impose_parity(self.planted.averages(q, curved), q)
            if len(self._found) >= OutputChannelOptions.current().cache_size:
                self._found.pop(next(iter(self._found)))
            self._found[key] = self._impose_parity(self._average_by_products(q, curved), q)
        return self._found[key]

    def _impose_parity(self, found: Averages, q: np.ndarray) -> Averages:
        """Return averages in which entries that vanish by the sign symmetry of a column are exactly zero."""
        t = q.shape[1]
        odd = np.zeros((t, t), bool)
        for column in self.sign_symmetric_columns:
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
            samples=tuple(self._impose_parity(sample, q) for sample in found.samples),
        )

    def _average_by_products(self, q: np.ndarray, curved: bool) -> Averages:
        outer = np.zeros_like(q)
        response = np.zeros((*q.shape, *q.shape)) if curved else None
        log_evidence = norm = 0.0
        sums: dict[Any, np.ndarray] = {}
        for labels, probability in self.problem.label_choices:
            alike = self._equivalence_key(q, labels)
            if alike not in sums:
                sums[alike] = (self._sum_by_fields if self.has_no_hidden_integral else self._sum_by_omega)(
                    q, labels, curved
                )
            total = sums[alike]
            norm += probability * total[0]
            log_evidence += probability * total[1]
            accumulate_row(outer, response, self.problem.context_indices(labels), probability * total[2:])
        return Averages(outer, log_evidence, norm, response)

    def _equivalence_key(self, q: np.ndarray, labels: tuple[int, ...]) -> tuple[Any, ...]:
        """Return a key that is the same for choices of labels with the same averages."""
        mean, covariances = self._law_of_fields(labels)
        if self._is_sign_invariant and mean.any() and mean[np.flatnonzero(mean)[0]] < 0:
            mean = -mean
        known = q[self.problem.context_indices(labels)]
        return (self._representatives[labels], known.tobytes(), mean.tobytes(), covariances.tobytes())

    @cached_property
    def _representatives(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """The first choice of labels with the same channel, by choice of labels."""
        return find_identical_channels(self.problem)

    def _sum_by_fields(self, q: np.ndarray, labels: tuple[int, ...], curved: bool) -> np.ndarray:
        """Sum over fields first, then over omega: return (1, log Z, g_l g_l^T[, squares of dg/domega])."""
        law, contexts = self.problem.law, self.problem.context_indices(labels)
        fields, measure, _, law_of_y, *_ = self.relevant_nodes(labels)
        known, rho = q[contexts], law.rho_star[contexts]
        gain = known @ np.linalg.inv(rho)
        factor = covariance_factor(known - gain @ known, self._covariance_scale)
        nodes, weights = self._normal_nodes(factor.shape[1])
        self._check_size(
            float(np.prod(fields.shape[:2])) * len(nodes) * fields.shape[1],
            OutputChannelOptions.current().max_evaluations,
        )
        precision = np.linalg.inv(rho - known)
        log_norm = -0.5 * np.linalg.slogdet(2 * np.pi * (rho - known))[1].sum()
        rows = np.zeros((len(fields), row_length(fields.shape[2], q.shape[1], curved)))
        run_in_threads(
            self.module.averages_by_fields, len(rows),
            fields, measure, law_of_y, law.teacher_means[contexts].ravel(), block_diag(*gain), factor, precision,
            log_norm, nodes, weights, int(curved), rows,
        )  # fmt: skip
        return rows.sum(axis=0)

    def _sum_by_omega(self, q: np.ndarray, labels: tuple[int, ...], curved: bool) -> np.ndarray:
        """Sum over omega first, then over the observed coordinates: return the same row."""
        mean, rho = self._law_of_fields(labels)
        options = OutputChannelOptions.current()
        found, along, shift = self._independent_directions(q, labels), None, self._field_shifts[labels]
        turn = None if shift is None else found.align_with(shift.direction)
        if turn and turn[0].known[turn[1]] >= options.min_known_variance:
            found, along = turn
        else:
            shift = None
        fields, measure, seen, law_of_y, _, shifts = self.relevant_nodes(labels, shift)
        fields = fields - mean
        halved = found.halved_directions(self.sign_symmetric_columns, q.shape[1], along)
        if shift is None or along is None:
            grid, shifts = found.plain_grid(self.counts[0], self.cut, halved), np.zeros(len(shifts))
        else:
            back = found.from_fields[along]
            shifts = shifts * (back @ shift.direction)  # in units of y
            reach = float(np.abs(fields[law_of_y > law_of_y.max() + options.log_cutoff] @ back).max())
            points = self.counts[1 + sum(c.is_continuous for c in self.observed[: shift.axis])]
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
    def _irrelevant_coordinates(self) -> dict[tuple[int, ...], list[tuple[int, int, tuple[float, ...]]]]:
        """The coordinates that nothing depends on at some values of the discrete ones, by choice of labels."""
        return {labels: find_irrelevant_coordinates(self.problem, labels) for labels, _ in self.problem.label_choices}

    @cached_property
    def _field_shifts(self) -> dict[tuple[int, ...], Shift | None]:
        """The observed coordinate that shifts the fields, or None, by choice of labels."""
        return {labels: find_shift(self.problem, labels) for labels, _ in self.problem.label_choices}

    def truncate_sums(self, accuracy: float) -> None:
        """Truncate sums by products so that they lose a hundredth of the accuracy."""
        self.cut = Truncation(float(np.clip(1e-2 * accuracy, LEAST_LOST_FRACTION, 1e-4)))

    def refine_rule(
        self, q: np.ndarray, tolerance: float, moved: Callable[[Averages, Averages], float] = relative_difference
    ) -> tuple[Averages, float]:
        """Refine each axis, the others fixed, until averages change by less than a tolerance.

        Larger tolerances come first, so that no axis is much coarser than the others.

        Args:
            q: overlaps, (C, t, t).
            tolerance: the largest change of averages by a finer rule.
            moved: returns the difference of two averages; by default relative to their size.

        Returns:
            The averages and the sum of their last changes.

        Raises:
            NotConvergedError: the rule would grow too large.
        """
        if self.is_sampled(q):
            self.planted.refine_rule(q, max(tolerance, 1e-5))
            return self.averages(q), 0.0
        self.truncate_sums(tolerance)
        for labels in self._distinct_labels(np.zeros_like(q)):
            self._refine_until_normalised(labels, tolerance)
        self._resolve_unknown_fields(q)
        moves = [np.inf] * len(self.counts)
        current, options = self.averages(q), OutputChannelOptions.current()
        levels = [tolerance * options.level_factor**k for k in range(options.max_levels)]
        for level in reversed([level for level in levels if level < 1]):
            start, settled = list(self.counts), list(self.counts)
            for axis, move in enumerate(moves):
                if not move < level:
                    settled[axis], moves[axis] = self._refine_axis_to_level(q, start, axis, level, move, current, moved)
            self.counts = settled
            if settled != start:
                current = self.averages(q)
        if abs(current.norm - 1) > _norm_tolerance(tolerance):
            raise self._convergence_error(current.norm, sum(moves))
        return current, sum(moves)

    def _refine_until_normalised(self, labels: tuple[int, ...], tolerance: float) -> None:
        """Refine the coordinates until probabilities of the observed ones, which do not depend on q, add up to one.

        A real coordinate that would take many points is divided at zero if it then takes fewer.

        Raises:
            InputError: they add up to another number, however fine the rule is.
            NotConvergedError: the rule would grow too large.
        """
        key, options = (labels, tolerance, tuple(self.counts)), OutputChannelOptions.current()
        if key in self._covered or self._count_nodes(self.counts[1:]) > options.max_norm_nodes:
            self.counts = list(self._covered.get(key, self.counts))
            return
        counts = list(self.counts[1:])
        for most in (options.smooth_points, np.inf):
            counts, norm, error = self._refine_coordinates(labels, counts, max(options.norm_tolerance, tolerance), most)
            if abs(norm - 1) <= _norm_tolerance(tolerance):
                break
        self.counts[1:] = counts
        self._covered[key] = list(self.counts)
        if abs(norm - 1) > _norm_tolerance(tolerance):
            ranges = zip((c.kind for c in self.every if c.is_continuous), self.boxes[labels], strict=True)
            is_cut = any(kind != "angle" and _LARGEST_T in (-low, high) for kind, (low, high) in ranges)
            name, short = self.problem.solver.name, norm < 1
            if error > 0.1 * abs(norm - 1) or (short and is_cut):
                raise self._convergence_error(norm, error)
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
        """Check the mean of the fields over the nodes.

        It is wrong where coordinates reach some values of the fields more often than others.

        Raises:
            InputError: the mean is wrong; the message has its value.
        """
        fields, _, _, law, *_ = self._evaluate_nodes(labels, self.counts[1:])
        mean, covariances = self._law_of_fields(labels)
        deviations = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2)).ravel()
        shares = np.exp(law)
        off = np.einsum("nh,nhi->i", shares, np.where(shares[:, :, None] > 0, fields - mean, 0.0)) / deviations
        worst = int(np.argmax(np.abs(off)))
        if abs(off[worst]) > OutputChannelOptions.current().mean_tolerance:
            raise InputError(
                f"the output channel of {self.problem.solver.name} does not cover the fields exactly once: over its "
                f"coordinates field {worst + 1} of Y has the mean {off[worst]:.3g} standard deviations from its own, "
                "so that some values are reached more than once and others never; a sign that is not observed is "
                'hidden={"sign": (-1, 1)}, next to the size as a "positive" coordinate'
            )

    def _refine_coordinates(
        self, labels: tuple[int, ...], counts: list[int], tolerance: float, most: float
    ) -> tuple[list[int], float, float]:
        """Return points of every axis for which the sum of all probabilities has converged, that sum and its error.

        It has if a finer division of any axis changes it by less than a tolerance; an axis has `most` points at most.
        """
        norm = error = 0.0
        before: Any = None
        while before != (counts, self.every):
            before, error = (counts, list(self.every)), 0.0
            for axis, place in reversed(list(enumerate(i for i, c in enumerate(self.every) if c.is_continuous))):
                refined = self._refine_coordinate(labels, counts, axis, tolerance, most)
                if refined[2] >= tolerance and self.every[place].kind == "real":
                    self._set_kind(place, "halves")
                    halved = self._refine_coordinate(labels, counts, axis, tolerance, most)
                    if halved[2] < 0.1 * refined[2]:
                        refined = halved
                    else:
                        self._set_kind(place, "real")
                counts, norm, moved = refined
                error += moved
        return counts, norm, error

    def _refine_coordinate(
        self, labels: tuple[int, ...], counts: list[int], axis: int, tolerance: float, most: float
    ) -> tuple[list[int], float, float]:
        """Return points of one axis for which probabilities have converged, their sum by the finer rule and its change.

        Of a hidden axis every probability of the observed coordinates has to converge, else their sum.
        """
        most_nodes = OutputChannelOptions.current().max_norm_nodes
        observed = sum(c.is_continuous for c in self.observed)
        found = self._probabilities(labels, counts)
        while True:
            finer = _refine_counts_along(counts, axis)
            before, found = found, self._probabilities(labels, finer)
            moved = float(np.abs(found - before).sum() if axis >= observed else abs(found.sum() - before.sum()))
            if moved < tolerance or finer[axis] > most or self._count_nodes(finer) > most_nodes:
                return counts, float(found.sum()), moved
            counts = finer

    def _count_nodes(self, counts: Sequence[int]) -> float:
        return float(np.prod(self._axis_sizes(counts), dtype=float))

    def probabilities_of_observed_choices(self, labels: tuple[int, ...]) -> dict[tuple[float, ...], float]:
        """Return the probability of each choice of values of the discrete observed coordinates."""
        options = OutputChannelOptions.current()
        counts, _, _ = self._refine_coordinates(
            labels, list(self.counts[1:]), options.probability_tolerance, options.smooth_points
        )
        shape = self._axis_sizes(counts)[: len(self.observed)]
        summed = tuple(i for i, c in enumerate(self.observed) if c.is_continuous)
        values = self._probabilities(labels, counts).reshape(shape).sum(axis=summed).ravel()
        return dict(zip(product(*(c.values for c in self.observed if not c.is_continuous)), values, strict=True))

    def _probabilities(self, labels: tuple[int, ...], counts: Sequence[int]) -> np.ndarray:
        """Return the probabilities of the nodes of the observed coordinates."""
        with np.errstate(over="ignore"):
            return np.exp(self._evaluate_nodes(labels, counts)[3]).sum(axis=1)

    def _set_kind(self, place: int, kind: str) -> None:
        """Change the kind of a coordinate, and with it its nodes."""
        self.every[place] = replace(self.every[place], kind=kind)
        count = len(self.observed)
        self.observed, self.hidden = self.every[:count], self.every[count:]
        self.__dict__.pop("boxes", None)
        self._tables.clear()
        self._found.clear()

    def _convergence_error(self, norm: float, error: float) -> NotConvergedError:
        return NotConvergedError(
            f"the average over the output channel of {self.problem.solver.name} does not converge: probabilities of "
            f"what is observed add up to {norm:.9g}, and finer rules still move that by {error:.0e}. Choose "
            "coordinates in which the law of the fields is smooth and has short tails, as a number's logarithm and sign"
        )

    def _resolve_unknown_fields(self, q: np.ndarray) -> None:
        """Divide hidden coordinates until the spacing of nodes resolves the unknown part of the fields.

        On coarser nodes the fields seem to be known exactly, and all coarse rules agree on that.
        """
        widest = OutputChannelOptions.current().max_node_spacing
        for labels in [] if self.has_no_hidden_integral else self._distinct_labels(q):
            spacing = self._node_spacing(q, labels)
            while spacing.max(initial=0.0) > widest:
                first = len(self.counts) - len(spacing)
                finer = np.ceil(self.counts[first:] * np.clip(1.1 * spacing / widest, 1.0, 32.0))
                self.counts = self.counts[:first] + finer.astype(int).tolist()
                spacing = self._node_spacing(q, labels)

    def _node_spacing(self, q: np.ndarray, labels: tuple[int, ...]) -> np.ndarray:
        """Return the largest spacing of relevant nodes along each continuous hidden coordinate.

        The unit is the standard deviation of the unknown part of the fields.
        """
        found, shift = self._independent_directions(q, labels), self._field_shifts[labels]
        fields, _, _, law, *_ = self._evaluate_nodes(labels, self.counts[1:], shift=shift)
        shape = [len(fields), *self._axis_sizes(self.counts[1:])[len(self.observed) :]]
        counts = (law > law.max() - OutputChannelOptions.current().relevant_log_weight).reshape(shape)
        with np.errstate(over="ignore", invalid="ignore"):
            places = (fields @ found.from_fields.T).reshape(*shape, -1)
            spacing = []
            for axis in (1 + i for i, c in enumerate(self.hidden) if c.is_continuous):
                apart = np.linalg.norm(np.diff(places, axis=axis), axis=-1)
                near = counts.take(range(1, shape[axis]), axis) | counts.take(range(shape[axis] - 1), axis)
                spacing.append(float(apart[near & np.isfinite(apart)].max(initial=0.0)))
        return np.array(spacing)

    def _refine_axis_to_level(
        self, q: np.ndarray, start: list[int], axis: int, level: float, move: float, current: Averages,
        moved: Callable[[Averages, Averages], float],
    ) -> tuple[int, float]:  # fmt: skip
        """Return points of an axis, the others fixed, for which a finer division changes averages by less than a level.

        Args:
            q: overlaps, (C, t, t).
            start: points of all axes at the start.
            axis: the axis.
            level: the tolerance.
            move: change of averages by a finer division at the start, infinite where unknown.
            current: averages at the start.
            moved: returns the difference of two averages.

        Returns:
            The points and the last change.
        """
        counts, before, settled = list(start), current, start[axis]
        if move < np.inf:
            self.counts = counts = _refine_counts_along(counts, axis)
            before = self.averages(q)
        while True:
            count = counts[axis]
            self.counts = counts = _refine_counts_along(counts, axis)
            finer = self.averages(q)
            last, move = move, moved(before, finer)
            if move < level:
                break
            settled, before = count, finer
        if last < np.inf and self.is_expensive:  # errors fall geometrically, and more nodes are expensive
            share = np.log(last / level) / np.log(last / max(move, 1e-300))
            return int(np.ceil(settled + (count - settled) * share)), level
        return count, move


def _norm_tolerance(tolerance: float) -> float:
    """Return the largest difference of the sum of all probabilities from one that is accepted."""
    return max(1e-6, 10 * tolerance)


def _refine_counts_along(counts: list[int], axis: int) -> list[int]:
    factor = OutputChannelOptions.current().refinement_factor
    return [int(np.ceil(factor * n)) if i == axis else n for i, n in enumerate(counts)]
