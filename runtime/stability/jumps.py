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
from ..channel.field_lines import along, narrowed, on_lines
from ..channel.fields import Fields, fields_of
from ..channel.nodes import sobol_normal
from ..channel.points import noise_choices, points_at
from ..integration.estimates import two_standard_errors
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem

REACH = 6.5  # of a line, in standard deviations
INTERVALS = 48
_HALVINGS = 34
_WIDE = 1.5  # standard deviation of every other node across the lines
SHORTEST = 1e-3  # jumps of X shorter than this share of the size of X are left out


@dataclass(frozen=True)
class Jumps:
    """Jumps found on lines: each stands for a piece of the surface.

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

    def average(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """E[delta(F_1 - F_2) h] and two standard errors for values h (N, ...) on the jumps."""
        sums = np.zeros((self.replicates, *values.shape[1:]))
        np.add.at(sums, self.replicate, values * self.weights.reshape(-1, *[1] * (values.ndim - 1)))
        return sums.mean(axis=0), two_standard_errors(sums)

    @property
    def any(self) -> bool:
        """Whether a line met the surface at all."""
        return bool(len(self.weights))

    @cached_property
    def steepness(self) -> np.ndarray:
        """|g_1 - g_2|, the slope of F_1 - F_2 across the surface, (N,)."""
        return np.sqrt(np.sum(self.field_jump**2, axis=(1, 2)))

    def susceptibility(self, problem: Problem) -> tuple[float, float]:
        """-Tr V^_jump = alpha E[delta |g_1 - g_2|^2] and its error: what the derivative form of V^ misses."""
        value, error = self.average(self.steepness**2)
        return problem.alpha * float(value), problem.alpha * float(error)

    def area(self) -> tuple[float, float]:
        """Gaussian measure of the surface, E[delta |grad(F_1 - F_2)|], and its error."""
        value, error = self.average(self.steepness)
        return float(value), float(error)

    def mean_squared_jump(self) -> tuple[float, float]:
        """Mean of |X_1 - X_2|^2 over the surface, and its error; nan without a surface."""
        area = self.area()[0]
        if not area > 0:
            return np.nan, np.nan
        squares = self.steepness * np.sum(self.student_jump**2, axis=(1, 2))
        value, error = self.average(squares)
        return float(value) / area, float(error) / area

    def to_json(self) -> dict[str, Any]:
        """The object `jump_set` within `stability` of the command line's contract (docs/design.md section 5)."""
        return presenting.to_json(self)

    def direction(self) -> tuple[np.ndarray, float]:
        """Direction (L, s) of the normal V^{-1}(X_1 - X_2) that most of the surface shares, up to sign, and its share.

        The leading eigenvector of the mean of n n^T over the surface, and the eigenvalue.
        """
        size = self.field_jump[0].size if self.any else 0
        if not size:
            return np.zeros((0, 0)), np.nan
        normals = self.field_jump.reshape(-1, size) / self.steepness[:, None]
        matrix, _ = self.average(self.steepness[:, None, None] * normals[:, :, None] * normals[:, None, :])
        values, vectors = np.linalg.eigh(matrix)
        lead = vectors[:, -1] * np.sign(vectors[np.argmax(np.abs(vectors[:, -1])), -1])
        return lead.reshape(self.field_jump.shape[1:]), float(values[-1] / np.trace(matrix))


def find_jumps(
    problem: Problem, overlaps: Overlaps, log2: int = 9, replicates: int = 16, intervals: int = INTERVALS, seed: int = 0
) -> Jumps:
    """Jumps of the proximal map on 2^log2 lines a coordinate, replicate and choice of labels.

    Args:
        intervals: of a line, each searched for one jump.

    Raises:
        DomainError: overlaps outside their domain.
    """
    columns: list[tuple[np.ndarray, ...]] = []
    student = problem.tokens * problem.student_rank
    teacher = problem.tokens * problem.teacher_rank
    for labels, probability in problem.label_choices:
        fields = fields_of(problem, overlaps, labels)
        sets = [sobol_normal(problem.dimension, log2, 5000 + 1000 * seed + r, ()) for r in range(replicates)]
        size = len(sets[0])
        nodes = np.tile(np.concatenate([widened(nodes)[0] for nodes in sets]), (student, 1))
        axes = np.repeat(np.arange(student), replicates * size)
        importance = _importance(nodes, teacher + axes)
        for choice in noise_choices(problem):
            row, omega, g, x, density = _on_lines(problem, fields, nodes, teacher + axes, intervals, choice)
            slopes = np.einsum("nla,lab->nlb", g, fields.field_factor).reshape(len(g), student)
            across = np.take_along_axis(slopes, axes[row][:, None], axis=1)[:, 0]
            weights = probability * importance[row] * density * np.abs(across) / np.sum(slopes**2, axis=1) / size
            context = np.broadcast_to(problem.context_of(labels), (len(row), problem.tokens))
            columns.append((weights, row // size % replicates, context, g, x, omega))
    weights, replicate, context, g, x, omega = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Jumps(weights, replicate, context, g, x, omega, replicates)


def widened(nodes: np.ndarray, columns: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Every other node farther out, where minima compete, and the weight of each under the normal law, below 2.

    Args:
        columns: how many of the first coordinates to widen, default all.
    """
    nodes = nodes.copy()
    nodes[1::2, :columns] *= _WIDE
    wide = nodes[:, :columns]
    return nodes, _weight(np.sum(wide**2, axis=1), wide.shape[1])


def _weight(squares: np.ndarray, dimension: int) -> np.ndarray:
    """Normal density over that of the mixture of widths 1 and _WIDE, at given squared norms."""
    return 2 / (1 + np.exp(0.5 * squares * (1 - 1 / _WIDE**2)) / _WIDE**dimension)


def _importance(nodes: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Normal density over that of the nodes' mixture, in the coordinates across each line; below 2."""
    squares = np.sum(nodes**2, axis=1) - np.take_along_axis(nodes, axes[:, None], axis=1)[:, 0] ** 2
    return _weight(squares, nodes.shape[1] - 1)


def _on_lines(
    problem: Problem, fields: Fields, nodes: np.ndarray, axes: np.ndarray, intervals: int, choice: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Line, omega, jump of g, jump of X and density (times the probability of the noise value) of every jump on the
    lines through the nodes, each parallel to its axis."""
    ends = np.linspace(-REACH, REACH, intervals + 1)
    x, minima = on_lines(problem, fields, nodes, axes, ends, choice)
    steps = np.linalg.norm(np.diff(x, axis=1), axis=2)
    two = minima > 1
    shortest = SHORTEST * max(float(np.abs(x).max()), 1e-300)
    # One step far longer than its neighbours may hide a jump whose bistable stretch lies between the ends.
    steep = steps > 2 * np.median(steps, axis=1, keepdims=True)
    row, place = np.nonzero((two[:, 1:] | two[:, :-1] | steep) & (steps > shortest))
    found = row, ends[place], ends[place + 1], x[row, place], x[row, place + 1]
    (row, low, high, x_low, x_high), _ = narrowed(problem, fields, nodes, axes, found, _HALVINGS, shortest, choice)
    middle = (low + high) / 2
    shape = (len(row), problem.tokens, problem.student_rank)
    if not len(row):
        return row, np.zeros(shape), np.zeros(shape), np.zeros(shape), middle
    omega, *_, weight = points_at(problem, fields, along(nodes[row], axes[row], middle), choice=choice)
    jump = (x_low - x_high).reshape(shape)
    field_jump = np.einsum("lab,nlb->nla", fields.precision, jump)
    density = weight * np.exp(-0.5 * middle**2) / np.sqrt(2 * np.pi)
    return row, omega, field_jump, jump, density
