"""The jump surface of the proximal map, found on lines in the space of fields (docs/theory.md (8.15) to (8.18)).

The global minimiser X(omega) of the Moreau objective jumps on the surface where its two lowest minima F_1 and F_2 are
equal; the gradient of F_1 - F_2 across it is -(g_1 - g_2) (envelope theorem).
Averages over the surface are taken along lines parallel to the coordinates of omega, where it is a set of points that
bisection finds to rounding:

    E[delta(F_1 - F_2) h] = sum_j E_others[ sum_jumps density(z_j) h |s_j| / sum_k s_k^2 ],  s_j = slope along line j.

No slope of the proximal map enters: next to a cusp, where it has a heavy tail, the jumps shrink to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..base import presenting
from ..base.options import AlgorithmOptions
from ..channel.field_lines import bisect_steepest_intervals, proximal_points_on_lines, replace_coordinate
from ..channel.fields import FieldLaw, field_law
from ..channel.nodes import sobol_normal_points
from ..channel.points import noise_value_indices, proximal_points_at_nodes
from ..integration.estimates import replicate_error_bar
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem


@dataclass(frozen=True)
class JumpSearchOptions(AlgorithmOptions):
    """Options of the search for jumps of the proximal map on lines in the fields.

    Attributes:
        line_reach: half the length of a line in standard deviations; longer lines find rarer jumps.
        intervals: intervals of a line, each searched for one jump; more find jumps that are close to another.
        max_bisections: largest number of bisections by which an interval with a jump is narrowed.
        wide_deviation: standard deviation of every other line's position; wider finds rarer jumps, with more noise.
        min_relative_jump: jumps of X shorter than this fraction of the size of X are neglected.
        log2_lines: base-2 logarithm of the lines per field and replicate, for two fields and one choice of labels.
    """

    line_reach: float = 6.5
    intervals: int = 48
    max_bisections: int = 34
    wide_deviation: float = 1.5
    min_relative_jump: float = 1e-3
    log2_lines: int = 9


@dataclass(frozen=True)
class Jumps:
    """The jumps of the proximal map found on lines in the space of fields, with weights for surface averages.

    At a jump the two lowest minima F_1 and F_2 of the Moreau objective, at X_1 and X_2, are equal.

    Attributes:
        weights: weight of every jump, (jumps,); their sum over one replicate estimates E[delta(F_1 - F_2)].
        replicate: index of the independent set of lines that the jump was found on, (jumps,).
        context: index of the context (token, cluster) of every token, (jumps, L).
        field_jump: jump g_1 - g_2 of the field g, (jumps, L, s).
        student_jump: jump X_1 - X_2 of the student fields, (jumps, L, s).
        fields: field omega at the jump, (jumps, L, s).
        replicates: number of independent sets of lines.
    """

    weights: np.ndarray
    replicate: np.ndarray
    context: np.ndarray
    field_jump: np.ndarray
    student_jump: np.ndarray
    fields: np.ndarray
    replicates: int

    def average_over_jump_surface(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the average E[delta(F_1 - F_2) h] of values h, given at every jump, and its error bar.

        F_1 and F_2 are the two lowest minima of the Moreau objective, which are equal at a jump.
        """
        sums = np.zeros((self.replicates, *values.shape[1:]))
        np.add.at(sums, self.replicate, values * self.weights.reshape(-1, *[1] * (values.ndim - 1)))
        return sums.mean(axis=0), replicate_error_bar(sums)

    @property
    def has_any_jump(self) -> bool:
        """Return whether any jump of the proximal map was found."""
        return bool(len(self.weights))

    @cached_property
    def gradient_jump_norms(self) -> np.ndarray:
        """Return the norm |g_1 - g_2| of the jump of the field g at every jump, (jumps,)."""
        return np.sqrt(np.sum(self.field_jump**2, axis=(1, 2)))

    def susceptibility_from_jumps(self, problem: Problem) -> tuple[float, float]:
        """Return the contribution of jumps to minus the trace of the conjugate of V, and its error bar.

        It is alpha E[delta(F_1 - F_2) |g_1 - g_2|^2] with the two lowest minima F of the Moreau objective.
        """
        value, error = self.average_over_jump_surface(self.gradient_jump_norms**2)
        return problem.alpha * float(value), problem.alpha * float(error)

    def area_of_jump_surface(self) -> tuple[float, float]:
        """Return the area of the jump surface in the Gaussian measure of the fields, and its error bar."""
        value, error = self.average_over_jump_surface(self.gradient_jump_norms)
        return float(value), float(error)

    def mean_squared_jump(self) -> tuple[float, float]:
        """Return the mean squared jump of the student fields over the jump surface, and its error bar; nan if empty."""
        area = self.area_of_jump_surface()[0]
        if not area > 0:
            return np.nan, np.nan
        squares = self.gradient_jump_norms * np.sum(self.student_jump**2, axis=(1, 2))
        value, error = self.average_over_jump_surface(squares)
        return float(value) / area, float(error) / area

    def to_json(self) -> dict[str, Any]:
        """Return the jumps as the JSON object `jump_set` that the command line prints (docs/design.md section 5)."""
        return presenting.to_json(self)

    def principal_normal_direction(self) -> tuple[np.ndarray, float]:
        """Return the principal direction (L, s) of the normals of the jump surface, and its weight.

        These are leading eigenvector, up to sign, and eigenvalue of the mean of n n^T over the unit normals n.
        """
        size = self.field_jump[0].size if self.has_any_jump else 0
        if not size:
            return np.zeros((0, 0)), np.nan
        normals = self.field_jump.reshape(-1, size) / self.gradient_jump_norms[:, None]
        matrix, _ = self.average_over_jump_surface(
            self.gradient_jump_norms[:, None, None] * normals[:, :, None] * normals[:, None, :]
        )
        values, vectors = np.linalg.eigh(matrix)
        lead = vectors[:, -1] * np.sign(vectors[np.argmax(np.abs(vectors[:, -1])), -1])
        return lead.reshape(self.field_jump.shape[1:]), float(values[-1] / np.trace(matrix))


def find_proximal_jumps(
    problem: Problem,
    overlaps: Overlaps,
    log2: int = 9,
    replicates: int = 16,
    intervals: int | None = None,
    seed: int = 0,
) -> Jumps:
    """Return the jumps of the proximal map on many lines in the space of fields, each parallel to one field's axis.

    Args:
        problem: problem with a proximal map.
        overlaps: overlaps of a solution.
        log2: base-2 logarithm of the number of lines per field, replicate and choice of labels.
        replicates: number of independent sets of lines.
        intervals: number of intervals of a line, each searched for one jump; None for that of `JumpSearchOptions`.
        seed: seed of the random positions of the lines.

    Raises:
        DomainError: the overlaps are outside their domain of definition.
    """
    columns: list[tuple[np.ndarray, ...]] = []
    intervals = JumpSearchOptions.current().intervals if intervals is None else intervals
    student = problem.tokens * problem.student_rank
    teacher = problem.tokens * problem.teacher_rank
    for labels, probability in problem.label_probabilities:
        fields = field_law(problem, overlaps, labels)
        sets = [sobol_normal_points(problem.dimension, log2, 5000 + 1000 * seed + r, ()) for r in range(replicates)]
        size = len(sets[0])
        nodes = np.tile(np.concatenate([widen_nodes_with_importance_weights(nodes)[0] for nodes in sets]), (student, 1))
        axes = np.repeat(np.arange(student), replicates * size)
        importance = _importance_weights_of_lines(nodes, teacher + axes)
        for choice in noise_value_indices(problem):
            row, omega, g, x, density = _find_proximal_jumps_on_lines(
                problem, fields, nodes, teacher + axes, intervals, choice
            )
            slopes = np.einsum("nla,lab->nlb", g, fields.field_factor).reshape(len(g), student)
            across = np.take_along_axis(slopes, axes[row][:, None], axis=1)[:, 0]
            weights = probability * importance[row] * density * np.abs(across) / np.sum(slopes**2, axis=1) / size
            context = np.broadcast_to(problem.token_cluster_indices(labels), (len(row), problem.tokens))
            columns.append((weights, row // size % replicates, context, g, x, omega))
    weights, replicate, context, g, x, omega = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Jumps(weights, replicate, context, g, x, omega, replicates)


def widen_nodes_with_importance_weights(nodes: np.ndarray, columns: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return standard normal nodes of which every other one is scaled outward, and their importance weights.

    Args:
        nodes: standard normal nodes, (nodes, dimension).
        columns: number of leading coordinates to scale; by default all.
    """
    nodes = nodes.copy()
    nodes[1::2, :columns] *= JumpSearchOptions.current().wide_deviation
    wide = nodes[:, :columns]
    return nodes, _mixture_importance_weight(np.sum(wide**2, axis=1), wide.shape[1])


def _mixture_importance_weight(squares: np.ndarray, dimension: int) -> np.ndarray:
    """Return the importance weight, normal density over sampled density, at given squared norms; at most 2.

    Half of the nodes are sampled from the normal law, the other half from a wider one.
    """
    wide = JumpSearchOptions.current().wide_deviation
    return 2 / (1 + np.exp(0.5 * squares * (1 - 1 / wide**2)) / wide**dimension)


def _importance_weights_of_lines(nodes: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Return importance weights of lines parallel to given axes through nodes; at most 2.

    Half of the nodes are sampled from the normal law, the other half from a wider one.
    """
    squares = np.sum(nodes**2, axis=1) - np.take_along_axis(nodes, axes[:, None], axis=1)[:, 0] ** 2
    return _mixture_importance_weight(squares, nodes.shape[1] - 1)


def _find_proximal_jumps_on_lines(
    problem: Problem, fields: FieldLaw, nodes: np.ndarray, axes: np.ndarray, intervals: int, choice: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return every jump of the proximal map on lines through given nodes, each parallel to a given axis.

    Returns:
        For every jump: index of its line, field omega, jump of g, jump of X, and probability density.
    """
    options = JumpSearchOptions.current()
    ends = np.linspace(-options.line_reach, options.line_reach, intervals + 1)
    x, minima = proximal_points_on_lines(problem, fields, nodes, axes, ends, choice)
    steps = np.linalg.norm(np.diff(x, axis=1), axis=2)
    two = minima > 1
    shortest = options.min_relative_jump * max(float(np.abs(x).max()), 1e-300)
    # One step far longer than its neighbours may hide a jump whose bistable stretch lies between the ends.
    steep = steps > 2 * np.median(steps, axis=1, keepdims=True)
    row, place = np.nonzero((two[:, 1:] | two[:, :-1] | steep) & (steps > shortest))
    found = row, ends[place], ends[place + 1], x[row, place], x[row, place + 1]
    (row, low, high, x_low, x_high), _ = bisect_steepest_intervals(
        problem, fields, nodes, axes, found, options.max_bisections, shortest, choice
    )
    middle = (low + high) / 2
    shape = (len(row), problem.tokens, problem.student_rank)
    if not len(row):
        return row, np.zeros(shape), np.zeros(shape), np.zeros(shape), middle
    omega, *_, weight = proximal_points_at_nodes(
        problem, fields, replace_coordinate(nodes[row], axes[row], middle), choice=choice
    )
    jump = (x_low - x_high).reshape(shape)
    field_jump = np.einsum("lab,nlb->nla", fields.precision, jump)
    density = weight * np.exp(-0.5 * middle**2) / np.sqrt(2 * np.pi)
    return row, omega, field_jump, jump, density
