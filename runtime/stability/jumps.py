"""The jump set of the proximal map, by lines in the fields (docs/theory.md (8.15) to (8.18)).

The global minimiser X(omega) jumps on a surface F_1 = F_2, with gradient -(g_1 - g_2) across it (envelope theorem).
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
from ..channel.points import noise_values, proximal_points_at_nodes
from ..integration.estimates import replicate_error_bar
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem


@dataclass(frozen=True)
class JumpSearchOptions(AlgorithmOptions):
    """Options of the search for jumps of the proximal map on lines in the fields.

    Attributes:
        line_reach: half the length of a line in standard deviations; longer lines find rarer jumps.
        intervals: intervals of a line, each searched for one jump; more find jumps that are close to another.
        max_bisections: largest number of bisections of an interval, until the place of a jump is known.
        wide_deviation: standard deviation of every other node across the lines; wider finds rarer jumps, with more
            noise.
        min_relative_jump: jumps of X shorter than this fraction of the size of X are neglected.
        log2_lines: logarithm to base 2 of the lines a replicate, for two coordinates and one choice of labels.
    """

    line_reach: float = 6.5
    intervals: int = 48
    max_bisections: int = 34
    wide_deviation: float = 1.5
    min_relative_jump: float = 1e-3
    log2_lines: int = 9


@dataclass(frozen=True)
class Jumps:
    """The jumps of the proximal map found on lines in the fields, with weights for surface integrals.

    Attributes:
        weights: measure of the piece under delta(F_1 - F_2), label probability included, (N,); its sum over one
            replicate estimates E[delta(F_1 - F_2)].
        replicate: which independent set of lines it comes from, (N,).
        context: row of every token of its label assignment, (N, L).
        field_jump: g_1 - g_2, (N, L, s); student_jump: X_1 - X_2, (N, L, s); fields: omega, (N, L, s).
        replicates: number of sets.
    """

    weights: np.ndarray
    replicate: np.ndarray
    context: np.ndarray
    field_jump: np.ndarray
    student_jump: np.ndarray
    fields: np.ndarray
    replicates: int

    def surface_average(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the surface average E[delta(F_1 - F_2) h] of values h (N, ...), and two standard errors."""
        sums = np.zeros((self.replicates, *values.shape[1:]))
        np.add.at(sums, self.replicate, values * self.weights.reshape(-1, *[1] * (values.ndim - 1)))
        return sums.mean(axis=0), replicate_error_bar(sums)

    @property
    def is_nonempty(self) -> bool:
        """Return whether any line crosses the jump surface."""
        return bool(len(self.weights))

    @cached_property
    def gradient_jump_norms(self) -> np.ndarray:
        """Return the gradient |g_1 - g_2| of F_1 - F_2 across the jump surface, (N,)."""
        return np.sqrt(np.sum(self.field_jump**2, axis=(1, 2)))

    def susceptibility_from_jumps(self, problem: Problem) -> tuple[float, float]:
        """Return the contribution of jumps to -Tr V^, alpha E[delta |g_1 - g_2|^2], and its error bar."""
        value, error = self.surface_average(self.gradient_jump_norms**2)
        return problem.alpha * float(value), problem.alpha * float(error)

    def surface_area(self) -> tuple[float, float]:
        """Return the Gaussian measure of the jump surface, E[delta |grad(F_1 - F_2)|], and its error bar."""
        value, error = self.surface_average(self.gradient_jump_norms)
        return float(value), float(error)

    def mean_squared_jump(self) -> tuple[float, float]:
        """Return the mean of |X_1 - X_2|^2 over the jump surface, and its error bar; nan without jumps."""
        area = self.surface_area()[0]
        if not area > 0:
            return np.nan, np.nan
        squares = self.gradient_jump_norms * np.sum(self.student_jump**2, axis=(1, 2))
        value, error = self.surface_average(squares)
        return float(value) / area, float(error) / area

    def to_json(self) -> dict[str, Any]:
        """Return the object `jump_set` within `stability` of the command line's contract (docs/design.md section 5)."""
        return presenting.to_json(self)

    def principal_normal_direction(self) -> tuple[np.ndarray, float]:
        """Return the principal direction (L, s) of the normals of the jump surface, and its share of the surface.

        The leading eigenvector of the mean of n n^T over the surface, up to sign, and the eigenvalue.
        """
        size = self.field_jump[0].size if self.is_nonempty else 0
        if not size:
            return np.zeros((0, 0)), np.nan
        normals = self.field_jump.reshape(-1, size) / self.gradient_jump_norms[:, None]
        matrix, _ = self.surface_average(
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
    """Return the jumps of the proximal map on 2^log2 lines per coordinate, replicate and choice of labels.

    Args:
        problem: problem with a proximal map.
        overlaps: overlaps of a solution.
        log2: logarithm to base 2 of the lines.
        replicates: independent sets of lines.
        intervals: intervals of a line, each searched for one jump; None for that of `JumpSearchOptions`.
        seed: seed of the lines.

    Raises:
        DomainError: overlaps outside their domain.
    """
    columns: list[tuple[np.ndarray, ...]] = []
    intervals = JumpSearchOptions.current().intervals if intervals is None else intervals
    student = problem.tokens * problem.student_rank
    teacher = problem.tokens * problem.teacher_rank
    for labels, probability in problem.label_choices:
        fields = field_law(problem, overlaps, labels)
        sets = [sobol_normal_points(problem.dimension, log2, 5000 + 1000 * seed + r, ()) for r in range(replicates)]
        size = len(sets[0])
        nodes = np.tile(np.concatenate([widen_nodes_with_importance_weights(nodes)[0] for nodes in sets]), (student, 1))
        axes = np.repeat(np.arange(student), replicates * size)
        importance = _line_importance_weights(nodes, teacher + axes)
        for choice in noise_values(problem):
            row, omega, g, x, density = _find_proximal_jumps_on_lines(
                problem, fields, nodes, teacher + axes, intervals, choice
            )
            slopes = np.einsum("nla,lab->nlb", g, fields.field_factor).reshape(len(g), student)
            across = np.take_along_axis(slopes, axes[row][:, None], axis=1)[:, 0]
            weights = probability * importance[row] * density * np.abs(across) / np.sum(slopes**2, axis=1) / size
            context = np.broadcast_to(problem.context_indices(labels), (len(row), problem.tokens))
            columns.append((weights, row // size % replicates, context, g, x, omega))
    weights, replicate, context, g, x, omega = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Jumps(weights, replicate, context, g, x, omega, replicates)


def widen_nodes_with_importance_weights(nodes: np.ndarray, columns: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return normal nodes, every other one scaled outward, and their importance weights, below 2.

    Args:
        nodes: standard normal, (N, dimension).
        columns: how many of the first coordinates to widen, default all.
    """
    nodes = nodes.copy()
    nodes[1::2, :columns] *= JumpSearchOptions.current().wide_deviation
    wide = nodes[:, :columns]
    return nodes, _mixture_importance_weight(np.sum(wide**2, axis=1), wide.shape[1])


def _mixture_importance_weight(squares: np.ndarray, dimension: int) -> np.ndarray:
    """Return the ratio of the normal density to the density of the widened nodes, at given squared norms."""
    wide = JumpSearchOptions.current().wide_deviation
    return 2 / (1 + np.exp(0.5 * squares * (1 - 1 / wide**2)) / wide**dimension)


def _line_importance_weights(nodes: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Return importance weights of lines through widened nodes; they are below 2."""
    squares = np.sum(nodes**2, axis=1) - np.take_along_axis(nodes, axes[:, None], axis=1)[:, 0] ** 2
    return _mixture_importance_weight(squares, nodes.shape[1] - 1)


def _find_proximal_jumps_on_lines(
    problem: Problem, fields: FieldLaw, nodes: np.ndarray, axes: np.ndarray, intervals: int, choice: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return every jump of the proximal map on lines through nodes, each line parallel to an axis.

    Returns:
        line, omega, jump of g, jump of X and density (times the probability of the noise value) of each.
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
