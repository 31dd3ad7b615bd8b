"""Averages over an output channel with continuous hidden coordinates, by sampling fields from the teacher.

For every sample, omega and the fields Y given omega are drawn, and the observed coordinates follow from Y. The
posterior is then a sum over the hidden coordinates: over those that are fields on a lattice around omega, over others
on a grid (`PlantedSamplingRule`). Draws are scrambled Sobol points, whose replicates give the error bar of averages.
Observed coordinates have to follow from the fields by linear equations (hidden coordinates being fields or known), or
by functions of the model.

Two posteriors need no such sum. Where only lengths are hidden, fields are on half lines (`HalfLinePosterior`): a label
that is the sign of a field implies Y >= 0 or Y < 0. The normal law of Y around omega, with standard deviation v,
restricted to the half line from a on in the direction s = 1 or -1, has (docs/theory.md (13.20))

    Phi(z),   g = s r / v,   dg/domega = -r (z + r) / v^2,   r = N(z) / Phi(z),   z = s (omega - a) / v.

All other fields are observed, and the posterior is a sum over the choices of discrete hidden coordinates.

Where all columns of the teacher but one are known exactly (`UnknownColumnRule`), the observed coordinates allow
finitely many values of the fields of the last column (docs/theory.md (13.16)): there are as many of these fields as
observed numbers, and the posterior is a sum over the values that lead to the observed numbers. They are found by
Newton's method from a lattice of starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from scipy.linalg import block_diag
from scipy.special import log_ndtr

from ...base import budget
from ...base.errors import InputError, NotConvergedError
from ...base.options import AlgorithmOptions
from ...channel.lattices import lattice_points_in_ball, sampling_lattice_basis
from ...channel.nodes import gauss_hermite, sobol_normal_points, tensor_product_rule
from ...device.loops import fill_at_nodes
from ...problems.problem import Problem
from .averages import (
    ChannelAverages,
    add_token_averages,
    covariance_factor,
    evaluate_output_channel,
    random_channel_points,
    relative_difference_of_averages,
    sum_weighted_squares,
    symmetric_matrix_sqrt,
)

REPLICATES = 8  # independent sets of draws, whose spread is the error bar

# Of half lines.
_ENDS = {"real": (-300.0, 0.0, 300.0), "positive": (0.0, 1.0, 1e200)}  # of a coordinate, and a place between
_PLACES = (-1.0, 0.4, 1.2)  # steps from the place between, at which the density is compared


@dataclass(frozen=True)
class PlantedSamplingOptions(AlgorithmOptions):
    """Options of averages over an output channel by sampling from the teacher.

    For each sample its posterior is summed over a lattice of the fields that are hidden, and a grid of other hidden
    coordinates.

    Attributes:
        reach: range of hidden fields, in standard deviations, over which a posterior is summed.
        angle_spacing: spacing of nodes of an angle, in radians, relative to that of the lattice.
        box_reach: standard deviations of a normal law that correspond to the range of a coordinate and set its spacing.
        min_spacing: smallest spacing of the lattice, in standard deviations; below it, an average fails.
        batch_size: draws that are evaluated together; larger batches take more memory.
        max_log2_draws: binary logarithm of the largest number of draws in a replicate with `usual_nodes` hidden nodes.
        usual_nodes: number of hidden nodes to which `max_log2_draws` refers; with fewer nodes more draws are allowed.
        infinity: size of a field that counts as infinite at the end of a half line.
        line_step: step of finite differences along a half line.
        density_tolerance: relative change of the log density along a half line up to which it counts as uniform.
    """

    reach: float = 5.0
    angle_spacing: float = 0.7
    box_reach: float = 8.5
    min_spacing: float = 0.04
    batch_size: int = 1 << 16
    max_log2_draws: int = 17
    usual_nodes: int = 200
    infinity: float = 1e100
    line_step: float = 1e-2
    density_tolerance: float = 1e-7


@dataclass(frozen=True)
class UnknownColumnOptions(AlgorithmOptions):
    """Options of averages over samples of which all columns of the teacher but one are known exactly.

    Newton's method finds the values of the fields of this column that lead to the observed coordinates of a sample.

    Attributes:
        start_reach: range of the starts for the fields of the column, in standard deviations.
        difference_step: step of central differences of fourth order.
        max_iterations: Newton iterations.
        max_distance: distance from the mean, in standard deviations, at which an iteration stops without success.
        residual_tolerance: largest error of the observed coordinates at a solution.
        step_tolerance: largest accepted last step at a solution.
        duplicate_distance: distance below which two solutions count as one.
        singular_determinant: determinant of a Jacobian below which rounding dominates and no step is made.
        mirror_tolerance: error of the observed coordinates up to which the mirror image of a solution is one.
        max_samples: largest number of samples of the fields.
        batch_size: samples that are evaluated together.
    """

    start_reach: float = 5.0
    difference_step: float = 2e-3
    max_iterations: int = 25
    max_distance: float = 12.0
    residual_tolerance: float = 1e-9
    step_tolerance: float = 1e-6
    duplicate_distance: float = 1e-4
    singular_determinant: float = 1e-12
    mirror_tolerance: float = 1e-11
    max_samples: int = 30_000
    batch_size: int = 256


def supports_planted_sampling(module: Any) -> bool:
    """Return whether averages over a channel can be computed by sampling fields from the teacher."""
    integrated = [
        (free, kind) for free, (_, kind, _) in zip(module.FREE, module.HIDDEN, strict=True) if kind != "discrete"
    ]
    if hasattr(module, "observed_at"):
        return all(free >= 0 or kind != "positive" for free, kind in integrated)
    return bool(module.AFFINE and all(free >= 0 for free, _ in integrated))


@dataclass
class PlantedSamplingRule:
    """A rule that averages over an output channel by sampling fields and labels from the teacher.

    Fields are sampled, and the posterior of each sample is a sum over hidden coordinates.

    Attributes:
        boxes: function that returns, by assignment of cluster labels, the ranges of the continuous coordinates, as
            arcsinh of their ends.
        log2: binary logarithm of the number of draws in a replicate.
        inner: spacing of the lattice of hidden fields, in standard deviations.
        seeds: seeds of the replicates.
    """

    problem: Problem
    boxes: Callable[[], Mapping[tuple[int, ...], Sequence[tuple[float, float]]]] | None = None
    log2: int = 7
    inner: float = 0.7
    seeds: tuple[int, ...] = tuple(range(REPLICATES))

    def channel_averages(self, q: np.ndarray, curved: bool = False) -> ChannelAverages:
        """Return averages over the output channel at overlaps q, as a mean over replicates of sampled fields.

        Args:
            q: overlaps q, shape ((token, cluster) pairs, t, t), at least 0 and below those of perfect recovery.
            curved: whether to compute the derivative with respect to q as well.
        """
        samples = [self._channel_averages_of_replicate(q, curved, seed) for seed in self.seeds]
        mean = {
            name: np.mean([getattr(sample, name) for sample in samples], axis=0)
            for name in ("outer", "log_evidence", "norm", *(["response"] if curved else []))
        }
        return ChannelAverages(**mean, samples=tuple(samples))

    def _channel_averages_of_replicate(self, q: np.ndarray, curved: bool, seed: int) -> ChannelAverages:
        law, batch = self.problem.law, PlantedSamplingOptions.current().batch_size
        outer = np.zeros_like(q)
        response = np.zeros((*q.shape, *q.shape)) if curved else None
        log_evidence = 0.0
        for labels, probability in self.problem.label_probabilities:
            contexts = self.problem.token_cluster_indices(labels)
            rho, mean = law.rho_star[contexts], law.teacher_means[contexts].ravel()
            factor = covariance_factor(q[contexts], float(np.abs(law.rho_star).max()))
            width = block_diag(*symmetric_matrix_sqrt(rho - q[contexts]))
            nodes = sobol_normal_points(factor.shape[1] + len(width), self.log2, seed, ())
            for begin in range(0, len(nodes), batch):
                part = nodes[begin : begin + batch]
                weights = np.full(len(part), 1 / len(nodes))
                omega = mean + part[:, : factor.shape[1]] @ factor.T
                observed = self.outputs_of_fields(omega + part[:, factor.shape[1] :] @ width.T, labels)
                values, g, curvature = self.log_evidence_and_derivatives(observed, omega, q, labels, curved)
                log_evidence += probability * float(weights @ values)
                row = probability * sum_weighted_squares(weights, g, curvature, q.shape[1])
                add_token_averages(outer, response, contexts, row)
        return ChannelAverages(outer, log_evidence, 1.0, response)

    def refine_quadrature(self, q: np.ndarray, tolerance: float) -> None:
        """Refine the sum over hidden coordinates in each posterior until averages change by less than a tolerance.

        Args:
            q: overlaps q, a (t, t) matrix of teacher columns for each (token, cluster) pair.
            tolerance: largest allowed change of averages by a finer sum.

        Raises:
            NotConvergedError: the sum would need too many nodes.
        """
        if not self.has_sum_over_hidden_nodes:
            return
        few = PlantedSamplingRule(self.problem, self.boxes, 6, self.inner)
        current = few._channel_averages_of_replicate(q, False, 0)
        while True:
            few.inner = self.inner / 1.3
            if few.inner < PlantedSamplingOptions.current().min_spacing:
                raise NotConvergedError(
                    f"the posterior of the hidden coordinates of {self.problem.solver.name} is too narrow to be summed "
                    f"on a lattice: overlap q = {np.array2string(q[0], precision=4)} is too close to perfect recovery"
                )
            finer = few._channel_averages_of_replicate(q, False, 0)
            if relative_difference_of_averages(current, finer) < tolerance:
                return
            current, self.inner = finer, few.inner

    def log_evidence_and_derivatives(
        self, observed: np.ndarray, omega: np.ndarray, q: np.ndarray, labels: tuple[int, ...], curved: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the log evidence of samples, and its first two derivatives in omega, the posterior mean of fields.

        The shapes are (samples,), (samples, L tokens * t teacher columns) and (samples, L t, L t).

        Args:
            observed: observed coordinates, shape (samples, coordinates).
            omega: posterior mean of the fields given the other samples, shape (samples, L t).
            q: overlaps q, a (t, t) matrix of teacher columns for each (token, cluster) pair.
            labels: cluster label of every token.
            curved: whether to compute second derivatives.
        """
        contexts = self.problem.token_cluster_indices(labels)
        variance = self.problem.law.rho_star[contexts] - q[contexts]
        if (half_lines := self._half_line_posteriors[labels]) is not None and half_lines.has_independent_fields(
            variance
        ):
            return half_lines.log_evidence_and_derivatives(observed, omega, variance)
        module, free = self.problem.solver.bayes_functions, self._hidden_field_indices
        reach = PlantedSamplingOptions.current().reach
        places = [module.FREE[i] for i in free]
        factor = np.linalg.cholesky(block_diag(*variance)[np.ix_(places, places)])
        nodes = np.zeros((1, 0))  # nothing continuous is hidden
        if free:
            nodes = self.inner * lattice_points_in_ball(sampling_lattice_basis(len(free)), reach / self.inner)
        choices, log_step = self._hidden_coordinate_nodes(labels)
        log_weight = len(free) * np.log(self.inner) + np.log(np.diag(factor)).sum() + log_step
        log_norm = -0.5 * np.linalg.slogdet(2 * np.pi * variance)[1].sum()
        count, D = omega.shape
        values, slopes = np.empty(count), np.empty((count, D))
        curvatures = np.empty((count, D * curved, D * curved))
        given = [np.ascontiguousarray(observed), np.ascontiguousarray(omega)]
        fill_at_nodes(
            module.posterior_at, given, np.linalg.inv(variance), log_norm,
            choices, np.array(free, np.int64), np.ascontiguousarray(factor), nodes, log_weight,
            self.problem.constants(labels), filled=[values, slopes, curvatures],
        )  # fmt: skip
        return values, slopes, curvatures

    @property
    def max_log2_draws_per_replicate(self) -> int:
        """The binary logarithm of the largest number of sampled fields in a replicate of the average.

        More samples are allowed where the sum over hidden coordinates for each of them is short.
        """
        options = PlantedSamplingOptions.current()
        nodes = len(self._hidden_coordinate_nodes(self.problem.label_probabilities[0][0])[0])
        if self._hidden_field_indices:
            nodes *= len(
                lattice_points_in_ball(
                    sampling_lattice_basis(len(self._hidden_field_indices)), options.reach / self.inner
                )
            )
        return options.max_log2_draws + int(np.clip(np.log2(options.usual_nodes / nodes), 0, 3))

    @property
    def has_continuous_hidden_coordinates(self) -> bool:
        """Whether any hidden (latent) coordinate of the channel is continuous."""
        return any(kind != "discrete" for _, kind, _ in self.problem.solver.bayes_functions.HIDDEN)

    @property
    def has_sum_over_hidden_nodes(self) -> bool:
        """Whether the posterior of a sample is a numerical sum over a hidden coordinate, for lack of a closed form."""
        contexts = self.problem.token_cluster_indices
        return self.has_continuous_hidden_coordinates and not all(
            lines is not None and lines.has_independent_fields(self.problem.law.rho_star[contexts(labels)])
            for labels, lines in self._half_line_posteriors.items()
        )

    @cached_property
    def _half_line_posteriors(self) -> dict[tuple[int, ...], HalfLinePosterior | None]:
        return {
            labels: find_half_line_posterior(self.problem, labels) for labels, _ in self.problem.label_probabilities
        }

    @cached_property
    def _hidden_field_indices(self) -> list[int]:
        return [i for i, place in enumerate(self.problem.solver.bayes_functions.FREE) if place >= 0]

    def _hidden_coordinate_nodes(self, labels: tuple[int, ...]) -> tuple[np.ndarray, float]:
        """Return quadrature nodes of hidden (latent) coordinates, (nodes, coordinates), and the log of their weight.

        Hidden coordinates that are fields are left at zero here, as they are summed over on a separate lattice.
        """
        options = PlantedSamplingOptions.current()
        module = self.problem.solver.bayes_functions
        axes, log_step = [], 0.0
        place = sum(kind != "discrete" for _, kind, _ in module.OBSERVED) - 1
        for free, (_, kind, values) in zip(module.FREE, module.HIDDEN, strict=True):
            place += kind != "discrete"
            if kind == "discrete" or free >= 0:
                axes.append(values if kind == "discrete" else (0.0,))
                continue
            if kind == "angle":
                low, high, spacing = -np.pi, np.pi, self.inner * options.angle_spacing
            else:
                assert self.boxes is not None
                low, high = np.sinh(self.boxes()[labels][place])
                spacing = self.inner * (high - low) / (2 * options.box_reach)
            count = int(np.ceil((high - low) / spacing))
            step = (high - low) / count
            axes.append(tuple(low + step * (np.arange(count) + 0.5)))
            log_step += np.log(step)
        return np.array(list(product(*axes))), log_step

    def outputs_of_fields(self, fields: np.ndarray, labels: tuple[int, ...]) -> np.ndarray:
        """Return the observed coordinates (labels) of samples with given fields, shape (samples, coordinates).

        They follow from functions of the model, or from linear equations for each choice of discrete hidden
        coordinates.

        Args:
            fields: fields of the samples, shape (samples, L tokens * t teacher columns).
            labels: cluster label of every token.
        """
        module, constants = self.problem.solver.bayes_functions, self.problem.constants(labels)
        if hasattr(module, "observed_at"):
            return module.observed_at(np.ascontiguousarray(fields), constants)
        count = len(module.OBSERVED)
        probes = np.concatenate([np.zeros((1, count)), np.eye(count)])
        bound = [i for i in range(module.FIELDS) if i not in module.FREE]
        positive = [i for i, (_, kind, _) in enumerate(module.OBSERVED) if kind == "positive"]
        found = np.full((len(fields), count), np.nan)
        for choice in self._hidden_coordinate_nodes(labels)[0]:
            hidden = np.tile(choice, (len(fields), 1))
            hidden[:, self._hidden_field_indices] = fields[:, [module.FREE[i] for i in self._hidden_field_indices]]
            values = module.fields_at(probes, hidden, constants)[0][:, :, bound]
            matrix = np.moveaxis(values[1:] - values[0], 0, 2)
            solved = np.linalg.solve(matrix, (fields[:, bound] - values[0])[:, :, None])[:, :, 0]
            allowed = (solved[:, positive] > 0).all(axis=1)
            found[allowed] = solved[allowed]
        return found


@dataclass(frozen=True)
class HalfLinePosterior:
    """The posterior of fields that lie on half lines, as where a label is the sign of a field.

    Each continuous hidden coordinate moves one field along a half line. It is summed over in closed form.

    Attributes:
        labels: cluster label of every token.
        hidden: indices of the continuous hidden coordinates.
        fields: index of the field that each of these coordinates moves.
        choices: values of all hidden coordinates for each choice of the discrete ones, shape (choices, coordinates).
    """

    problem: Problem
    labels: tuple[int, ...]
    hidden: tuple[int, ...]
    fields: tuple[int, ...]
    choices: np.ndarray

    def has_independent_fields(self, variance: np.ndarray) -> bool:
        """Return whether fields on half lines are independent of all other fields, given their posterior means.

        `variance` is the covariance of the fields of each token around their posterior mean, shape (L tokens, t, t).
        """
        own = block_diag(*variance)[list(self.fields)]
        own[range(len(own)), list(self.fields)] = 0.0
        return not own.any()

    def log_evidence_and_derivatives(
        self, observed: np.ndarray, omega: np.ndarray, variance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the log evidence of samples, and its first two derivatives in omega, the posterior mean of fields.

        The shapes are (samples,), (samples, L tokens * t teacher columns) and (samples, L t, L t).

        Args:
            observed: observed coordinates, shape (samples, coordinates).
            omega: posterior mean of the fields given the other samples, shape (samples, L t).
            variance: covariance of the fields of each token around omega, shape (L, t, t).
        """
        own, V = list(self.fields), block_diag(*variance)
        rest = [i for i in range(omega.shape[1]) if i not in own]
        widths, precision = np.sqrt(np.diag(V)[own]), np.linalg.inv(V[np.ix_(rest, rest)])
        log_norm = -0.5 * np.linalg.slogdet(2 * np.pi * V[np.ix_(rest, rest)])[1]
        parts = []
        for choice in self.choices:
            starts, slopes, log_density = self._half_line_ends(observed, choice)
            side = np.sign(slopes)
            z = side * (omega[:, own] - starts[:, own]) / widths
            shares = log_ndtr(z)
            ratio = np.exp(-0.5 * z * z - 0.5 * np.log(2 * np.pi) - shares)
            step = starts[:, rest] - omega[:, rest]
            g, curvature = np.empty_like(omega), np.zeros((*omega.shape, omega.shape[1]))
            g[:, own], g[:, rest] = side * ratio / widths, step @ precision
            curvature[:, own, own] = -ratio * (z + ratio) / widths**2
            curvature[np.ix_(range(len(omega)), rest, rest)] = -precision
            values = log_density + shares.sum(axis=1) + log_norm - 0.5 * np.einsum("ni,ni->n", g[:, rest], step)
            parts.append((values, g, curvature))
        logs, slopes, curvatures = (np.array(part) for part in zip(*parts, strict=True))
        values = np.logaddexp.reduce(logs, axis=0)
        g = np.einsum("kn,kni->ni", np.exp(logs - values), slopes)
        second = np.einsum("kn,knij->nij", np.exp(logs - values), curvatures + slopes[..., None] * slopes[:, :, None])
        return values, g, second - g[:, :, None] * g[:, None]

    def _half_line_ends(self, observed: np.ndarray, choice: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the ends of the half lines on which the fields of samples lie, slopes along them, and log densities.

        The shapes are (samples, L tokens * t teacher columns), (samples, half lines) and (samples,).
        """
        step = PlantedSamplingOptions.current().line_step
        low = choice.copy()
        for i in self.hidden:
            low[i] = _ENDS[self.problem.solver.bayes_functions.HIDDEN[i][1]][0]
        moved = [choice + shift * step * np.eye(len(choice))[i] for i in self.hidden for shift in (2, 1, -1, -2)]
        fields, jacobian, likelihood = evaluate_output_channel(
            self.problem, self.labels, observed, np.array([low, choice, *moved])
        )
        stencils = (fields[:, 2 + 4 * h : 6 + 4 * h, field] for h, field in enumerate(self.fields))
        slopes = np.stack([stencil @ [-1, 8, -8, 1] for stencil in stencils], axis=1) / (12 * step)
        log_density = jacobian[:, 1] + likelihood[:, 1] - np.log(np.abs(slopes)).sum(axis=1)
        return fields[:, 0], slopes, log_density

    def is_density_uniform_on_lines(self, observed: np.ndarray) -> bool:
        """Return whether the density of observed coordinates is constant along the half lines of allowed fields."""
        tolerance = PlantedSamplingOptions.current().density_tolerance
        for choice in self.choices:
            here = self._half_line_ends(observed, choice)[2]
            for place in _PLACES:
                there = choice.copy()
                for i in self.hidden:
                    real = self.problem.solver.bayes_functions.HIDDEN[i][1] == "real"
                    there[i] = choice[i] + place if real else choice[i] * np.exp(place)
                if not np.abs(self._half_line_ends(observed, there)[2] - here).max() < tolerance:
                    return False
        return True


def find_half_line_posterior(problem: Problem, labels: tuple[int, ...]) -> HalfLinePosterior | None:
    """Return the posterior on half lines of a channel, or None if its fields are not restricted to half lines.

    The channel is tested at random observed coordinates.

    Args:
        problem: the problem, which fixes the parameters of the channel.
        labels: cluster label of every token.

    Returns:
        None unless every continuous hidden coordinate moves one field of its own from a finite end to infinity, with
        uniform density.
    """
    module = problem.solver.bayes_functions
    kinds = [kind for _, kind, _ in module.HIDDEN]
    hidden = [i for i, kind in enumerate(kinds) if kind != "discrete"]
    if not hidden or not all(kinds[i] in _ENDS for i in hidden):
        return None
    axes = [values if kind == "discrete" else (_ENDS[kind][1],) for _, kind, values in module.HIDDEN]
    choices = np.array(list(product(*axes)), float)
    observed = random_channel_points(module.OBSERVED, np.random.default_rng(0))
    fields = [_find_field_of_hidden_coordinate(problem, labels, observed, choices, i) for i in hidden]
    if None in fields or len(set(fields)) < len(hidden):
        return None
    found = HalfLinePosterior(
        problem, labels, tuple(hidden), tuple(field for field in fields if field is not None), choices
    )
    return found if found.is_density_uniform_on_lines(observed) else None


def _find_field_of_hidden_coordinate(
    problem: Problem, labels: tuple[int, ...], observed: np.ndarray, choices: np.ndarray, i: int
) -> int | None:
    """Return the only field that a hidden coordinate changes, if it sends this field to infinity; else None."""
    found, infinity = set(), PlantedSamplingOptions.current().infinity
    for choice in choices:
        nodes = np.tile(choice, (3, 1))
        nodes[:, i] = _ENDS[problem.solver.bayes_functions.HIDDEN[i][1]]
        fields = evaluate_output_channel(problem, labels, observed, nodes)[0]
        moves = np.flatnonzero((fields != fields[:, :1]).any(axis=(0, 1)))
        starts, ends = np.abs(fields[:, 0]), np.abs(fields[:, 2, moves])
        if len(moves) != 1 or not starts.max() < infinity or not ends.min() > infinity:
            return None
        found.add(int(moves[0]))
    return found.pop() if len(found) == 1 else None


@dataclass
class UnknownColumnRule:
    """A rule that averages over samples for which all columns of the teacher but one are known exactly.

    Attributes:
        of: index of the unknown column.
        even: whether the observed coordinates are independent of the sign of every column.
        points: number of quadrature points for every field, an even number.
        starts: number of starts of Newton's method along every axis of their lattice.

    Raises:
        InputError: the hidden coordinates of the channel are not fields, or it has another number of observed
            coordinates than the column has fields.
    """

    problem: Problem
    of: int
    even: bool = False
    points: int = 6
    starts: int = 10

    def __post_init__(self) -> None:
        module, self.planted = self.problem.solver.bayes_functions, PlantedSamplingRule(self.problem)
        if (
            not (supports_planted_sampling(module) and self.planted.has_continuous_hidden_coordinates)
            or len(module.OBSERVED) != self.problem.tokens
        ):
            raise InputError(
                f"the threshold of teacher column {self.of + 1} of {self.problem.solver.name} with all others known is "
                "implemented only for outputs of one observed number per token, whose hidden coordinates are fields"
            )

    def averages_of_unknown_column(self) -> ChannelAverages:
        """Return averages over the channel for the only unknown teacher column at overlap zero, with derivative in q.

        Raises:
            NotConvergedError: there would be too many samples.
        """
        batch = UnknownColumnOptions.current().batch_size
        law, t, of = self.problem.law, self.problem.teacher_rank, self.of
        outer, response = np.zeros_like(law.rho_star), np.zeros((*law.rho_star.shape, *law.rho_star.shape))
        nodes, shares = self._gaussian_field_nodes()
        for labels, probability in self.problem.label_probabilities:
            contexts = self.problem.token_cluster_indices(labels)
            mean, own = self._field_moments_of_unknown_column(labels)
            factor = np.linalg.cholesky(law.rho_star[contexts])
            fields = np.einsum("lab,nlb->nla", factor, nodes.reshape(len(nodes), -1, t)).reshape(len(nodes), -1)
            fields += law.teacher_means[contexts].ravel()
            first, second = np.zeros((len(own), t, t)), np.zeros((len(own), t, t, len(own), t, t))
            for begin in range(0, len(fields), batch):
                budget.check_time_limit()
                part, weights = fields[begin : begin + batch], shares[begin : begin + batch]
                rows, values, probabilities = self.field_values_given_outputs(part, labels)
                centre = np.zeros((len(part), len(own)))
                np.add.at(centre, rows, probabilities[:, None] * values)
                covariance = np.zeros((len(part), len(own), len(own)))
                apart = values - centre[rows]
                np.add.at(covariance, rows, probabilities[:, None, None] * apart[:, :, None] * apart[:, None])
                first[:, of, of] += weights @ ((centre - mean) / own) ** 2
                curvature = (covariance - np.diag(own)) / np.outer(own, own)
                second[:, of, of, :, of, of] += np.einsum("n,nlk->lk", weights, curvature**2)
            add_token_averages(outer, response, contexts, probability * np.concatenate([first.ravel(), second.ravel()]))
        return ChannelAverages(outer, np.nan, float(shares.sum()), response)

    def _field_moments_of_unknown_column(self, labels: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances of the fields of the only unknown teacher column, given the others, (L,) each."""
        contexts, law = self.problem.token_cluster_indices(labels), self.problem.law
        return law.teacher_means[contexts][:, self.of], law.rho_star[contexts][:, self.of, self.of]

    @property
    def newton_start_spacing(self) -> float:
        """The spacing of the lattice of initial fields for Newton's method, in standard deviations of a field."""
        return 2 * UnknownColumnOptions.current().start_reach / self.starts

    def _gaussian_field_nodes(self) -> tuple[np.ndarray, np.ndarray]:
        size, most = self.problem.tokens * self.problem.teacher_rank, UnknownColumnOptions.current().max_samples
        kept = None
        if self.points**size <= 4 * most:
            nodes, shares = tensor_product_rule([gauss_hermite(self.points)] * size)
            if self.even:  # one of each pair of opposite nodes
                nodes, shares = nodes[nodes[:, 0] > 0], 2 * shares[nodes[:, 0] > 0]
            kept = shares > 1e-14
        if kept is None or kept.sum() > most:
            raise NotConvergedError(
                f"{self.points} quadrature points for each of {size} fields are too many; allow larger error bars"
            )
        # Turned, so that no two fields are equal where a channel is singular; as exact for polynomials of total degree.
        turn = np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))[0]
        return nodes[kept] @ turn, shares[kept]

    def field_values_given_outputs(
        self, fields: np.ndarray, labels: tuple[int, ...]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return all values of the unknown column's fields that give the observed coordinates of the samples.

        Args:
            fields: true fields of the samples, shape (samples, L t), of which all other columns are known.
            labels: cluster label of every token.

        Returns:
            Sample indices, (values,), values, shape (values, L), and their probabilities, which add up to one for each
            sample.
        """
        mean, variance = self._field_moments_of_unknown_column(labels)
        rows, values = self._solve_for_column_fields(fields, labels)
        slope = self._outputs_and_jacobian(rows, values, fields, labels)[1]
        with np.errstate(divide="ignore"):
            logs = -np.maximum(np.linalg.slogdet(slope)[1], -700.0) - ((values - mean) ** 2 / variance).sum(axis=1) / 2
        top = np.full(len(fields), -np.inf)
        np.maximum.at(top, rows, logs)
        weights = np.exp(logs - top[rows])
        return rows, values, weights / np.bincount(rows, weights, len(fields))[rows]

    def _outputs_and_jacobian(
        self, rows: np.ndarray, values: np.ndarray, fields: np.ndarray, labels: tuple[int, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the observed coordinates, and their Jacobian in the fields of the only unknown teacher column.

        The shapes are (values, L) and (values, L, L).
        """
        (count, size), difference = values.shape, UnknownColumnOptions.current().difference_step
        moves = difference * np.concatenate([np.zeros((1, size)), *(k * np.eye(size) for k in (1, -1, 2, -2))])
        every = np.tile(fields[rows], (len(moves), 1))
        every[:, self.of :: self.problem.teacher_rank] = (values + moves[:, None]).reshape(-1, size)
        seen = self.planted.outputs_of_fields(every, labels).reshape(len(moves), count, size)
        right, left, far_right, far_left = seen[1:].reshape(4, size, count, size)
        return seen[0], np.moveaxis((8 * (right - left) - far_right + far_left) / (12 * difference), 0, 2)

    def _solve_for_column_fields(self, fields: np.ndarray, labels: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return all fields of the unknown teacher column that reproduce the observed coordinates, by Newton's method.

        The result is the sample index of each solution and its fields, shape (solutions, L).
        """
        options = UnknownColumnOptions.current()
        truth, (mean, variance) = (
            fields[:, self.of :: self.problem.teacher_rank],
            self._field_moments_of_unknown_column(labels),
        )
        wanted = self.planted.outputs_of_fields(fields, labels)
        every = np.arange(len(fields))
        # Where the channel is flat rounding hides all solutions but the true one and, by symmetry, its mirror image.
        mirrored = (
            np.abs(self._outputs_and_jacobian(every, -truth, fields, labels)[0] - wanted).max(axis=1)
            < options.mirror_tolerance
        )
        found = [(every, truth), (every[mirrored], -truth[mirrored])]
        starts = mean + np.sqrt(variance) * self.newton_start_spacing * lattice_points_in_ball(
            sampling_lattice_basis(truth.shape[1]), options.start_reach / self.newton_start_spacing
        )
        rows, values = np.repeat(every, len(starts)), np.tile(starts, (len(fields), 1))
        moved = np.full(len(values), np.inf)
        for _ in range(options.max_iterations):
            seen, slope = self._outputs_and_jacobian(rows, values, fields, labels)
            gap = seen - wanted[rows]
            good = np.isfinite(gap).all(axis=1) & np.isfinite(slope).all(axis=(1, 2))
            # A singular slope gives no step; other steps are limited to the spacing of starts.
            good[good] = np.abs(np.linalg.det(slope[good])) > options.singular_determinant
            solved = good & (np.abs(gap).max(axis=1) < options.residual_tolerance) & (moved < options.step_tolerance)
            found.append((rows[solved], values[solved]))
            near = (np.abs(values - mean) < options.max_distance * np.sqrt(variance)).all(axis=1)
            left = good & ~solved & near
            if not left.any():
                break
            step = np.linalg.solve(slope[left], gap[left][:, :, None])[:, :, 0]
            moved, rows = np.abs(step).max(axis=1), rows[left]
            limit = np.minimum(1.0, self.newton_start_spacing / np.maximum(moved, 1e-300))
            values = values[left] - step * limit[:, None]
        return _drop_duplicate_solutions(*(np.concatenate(part) for part in zip(*found, strict=True)))


def _drop_duplicate_solutions(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sample indices and fields, where fields that nearly coincide for a sample are kept only once."""
    least = UnknownColumnOptions.current().duplicate_distance
    order = np.argsort(rows, kind="stable")
    kept: list[int] = []
    first = 0
    for n in order:
        if kept[first:] and rows[kept[-1]] != rows[n]:
            first = len(kept)
        if all(np.abs(values[n] - values[m]).max() > least for m in kept[first:]):
            kept.append(int(n))
    return rows[kept], values[kept]
