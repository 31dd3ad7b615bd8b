"""What a user wants to know of a solution (theory.md section 7): losses, test error, linear baseline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from .errors import InputError
from .integration.averages import Averages
from .integration.fields import Fields, fields_of
from .integration.nodes import gauss_hermite, panels, sobol_normal, tensor, trapezoid
from .integration.rules import CHUNKS, teacher_axes
from .overlaps import Conjugates, Overlaps
from .problem import Problem
from .progress import step

_BUDGET = 1.5e5  # nodes for the metric where no error is asked for
_BLOCK = 1e6  # nodes at a time
_MOST_AXES = 6  # of a product rule
_MOST_POINTS = 180  # of Gauss-Hermite


@dataclass(frozen=True)
class Losses:
    """Per d. At the saddle point free_entropy = -(data + penalty); the difference measures how well it is solved."""

    free_entropy: float
    data: float
    penalty: float

    @property
    def training_loss(self) -> float:
        return -self.free_entropy

    @property
    def identity_gap(self) -> float:
        """Training loss from Phi minus that from its parts."""
        return self.training_loss - (self.data + self.penalty)


def losses(problem: Problem, overlaps: Overlaps, hats: Conjugates, averages: Averages) -> Losses:
    """Free entropy and the two parts of the training loss, replicates averaged.

    At a finite temperature: the free entropy over the inverse temperature, and the parts of the energy.
    """
    trace, entropic, penalty = problem.of_prior("free_entropy")(
        overlaps.q, overlaps.V, overlaps.m, overlaps.theta, hats.q, hats.V, hats.m, hats.theta,
    )  # fmt: skip
    moreau, loss = float(averages.moreau.mean()), float(averages.loss.mean())
    own = sum(number["ridge"] * phi**2 / 2 for number, phi in zip(problem.trained, overlaps.phi, strict=True))
    return Losses(trace + entropic - own - problem.alpha * moreau, problem.alpha * loss, penalty + own)


def _metric_blocks(
    problem: Problem, fields: Fields, points: int, equidistant: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Nodes in (z_Y, z_h, noise) and weights, in parts: a product rule with panels at kinks in Y and h."""
    tokens, s, t = problem.tokens, problem.student_rank, problem.teacher_rank
    kinks = problem.solver.model.kinks(problem.flat)["metric"]
    outer_count, inner_count = tokens * t, tokens * s
    outer = teacher_axes(problem, fields, points, "metric", equidistant)
    student_kinks = {(row, column): value for kind, row, column, value in kinks if kind == "x"}
    smooth = trapezoid(points) if equidistant else gauss_hermite(points)
    if not student_kinks:
        yield from _blocks([*outer[:outer_count], *[smooth] * inner_count, *outer[outer_count:]])
        return
    if any(column != 0 for _, column in student_kinks):
        raise InputError("a metric with a kink in h is supported in the first column only")
    blocks, weights = [], []
    outer_nodes, outer_weights = tensor(outer)
    for node, weight in zip(outer_nodes, outer_weights, strict=True):
        axes = []
        for l in range(tokens):
            for a in range(s):
                if (l, a) not in student_kinks:
                    axes.append(smooth)
                    continue
                mean = fields.field_mean[l, a] + fields.field_from_teacher[l, a] @ node[l * t : (l + 1) * t]
                axes.append(panels([float((student_kinks[l, a] - mean) / fields.field_factor[l, a, a])], points))
        inner_nodes, inner_weights = tensor(axes)
        repeated = np.repeat(node[None], len(inner_nodes), axis=0)
        blocks.append(np.concatenate([repeated[:, :outer_count], inner_nodes, repeated[:, outer_count:]], axis=1))
        weights.append(weight * inner_weights)
        if sum(map(len, weights)) > _BLOCK:
            yield np.concatenate(blocks), np.concatenate(weights)
            blocks, weights = [], []
    if weights:
        yield np.concatenate(blocks), np.concatenate(weights)


def _blocks(axes: list[tuple[np.ndarray, np.ndarray]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The product of axes in parts of at most _BLOCK nodes, one for each node of the leading axes."""
    leading = 0
    while np.prod([float(len(nodes)) for nodes, _ in axes[leading:]]) > _BLOCK:
        leading += 1
    nodes, weights = tensor(axes[leading:])
    for first, weight in zip(*tensor(axes[:leading]), strict=True):
        yield np.concatenate([np.tile(first, (len(nodes), 1)), nodes], axis=1), weight * weights


def _sobol_block(problem: Problem, log2: int) -> tuple[np.ndarray, np.ndarray]:
    """A Sobol set in (z_Y, z_h, noise)."""
    outer, inner = problem.tokens * problem.teacher_rank, problem.tokens * problem.student_rank
    groups = tuple(range(outer)), tuple(range(outer, outer + inner))
    nodes = sobol_normal(problem.dimension, log2, 4242, groups)
    return nodes, np.full(len(nodes), 1 / len(nodes))


@step("test error")
def average_metric(problem: Problem, overlaps: Overlaps, size: int, equidistant: bool = False) -> float:
    """E metric(h, Y, k, u) by a product rule of `size` nodes an axis (a panel, at a kink).

    In more than six dimensions it is a Sobol set of about 2^size nodes.

    Args:
        equidistant: nodes in place of Gauss-Hermite's.

    Raises:
        DomainError: the overlaps admit no law of the fields.
    """
    total = 0.0
    for labels, probability in problem.label_choices:
        fields = fields_of(problem, overlaps, labels)
        if problem.dimension > _MOST_AXES:
            blocks: Iterable[tuple[np.ndarray, np.ndarray]] = [_sobol_block(problem, size - 2)]
        else:
            blocks = _metric_blocks(problem, fields, size, equidistant)
        for nodes, weights in blocks:
            out = problem.solver.metric.test_error(
                CHUNKS,
                np.ascontiguousarray(nodes),
                np.ascontiguousarray(weights),
                *fields.sampling,
                problem.noise_scale,
                fields.constants,
            )
            total += probability * float(out.sum())
    return total


def metric_size(problem: Problem, budget: float) -> int:
    """Size of the rule of `average_metric` that takes about `budget` nodes."""
    dimension = problem.dimension
    return int(np.log2(budget)) if dimension > _MOST_AXES else max(6, min(64, round(budget ** (1 / dimension))))


def _sizes(problem: Problem, budget: float, most: float) -> Iterator[int]:
    """Sizes of the rules for the metric, coarse to fine, from one of about a third of `budget` nodes on."""
    dimension = problem.dimension
    if dimension > _MOST_AXES:
        yield from range(int(np.log2(budget / 3)), int(np.log2(most)) + 1, 2)
        return
    size = max(4, min(48, round((budget / 3) ** (1 / dimension))))
    following = metric_size(problem, budget)
    while True:
        yield size
        size, following = following, max(following + 2, following * 4 // 3)
        if size**dimension > max(budget, most) or size > _MOST_POINTS:
            return


def test_error(
    problem: Problem,
    overlaps: Overlaps,
    tolerance: float = np.inf,
    equidistant: bool = False,
    most: float = 4e7,
) -> tuple[float, float, int]:
    """E metric(h, Y, k, u), an integration error (difference to a coarser rule) and the size of the rule used.

    nan, nan and 0 without a metric.

    Args:
        tolerance: the rule is refined until its error is no larger, or it would take more than `most` nodes.
        equidistant: another family of nodes, to compare with.

    Raises:
        DomainError: the overlaps admit no law of the fields.
    """
    if not problem.solver.metric.HAS_METRIC:
        return np.nan, np.nan, 0
    value, error, used = np.nan, np.nan, 0
    for size in _sizes(problem, _BUDGET, most):
        finer = average_metric(problem, overlaps, size, equidistant)
        error, value, used = abs(finer - value), finer, size
        if error <= tolerance:
            break
    return value, error, used


def baseline_error(problem: Problem, points: int = 48) -> float:
    """Error of the best constant linear layer, B_0 = E[T(Y) rho] E[rho]^{-1} (R5.1); nan where the model has none.

    Derived from the model's baseline expression, quadratic in B: minimised through its averaged gradient and Hessian.
    """
    metric = problem.solver.metric
    if not metric.HAS_BASELINE:
        return np.nan
    size = metric.BASELINE_SIZE
    error, gradient, hessian = 0.0, np.zeros(size), np.zeros((size, size))
    dimension = problem.tokens * problem.teacher_rank + len(problem.noise_scale)
    points = max(5, min(points, int(4e5 ** (1 / dimension))))
    for labels, probability in problem.label_choices:
        contexts = problem.context_of(labels)
        factor = np.ascontiguousarray(np.linalg.cholesky(problem.law.rho_star[contexts]))
        mean = np.ascontiguousarray(problem.law.teacher_means[contexts])
        nodes, weights = tensor([gauss_hermite(points)] * dimension)
        parts = metric.baseline_terms(nodes, weights, mean, factor, problem.noise_scale, problem.constants(labels))
        error += probability * parts[0]
        gradient += probability * parts[1]
        hessian += probability * parts[2]
    best = -np.linalg.solve(hessian, gradient)
    return float(error + gradient @ best / 2)
