"""What a user wants to know of a solution (theory.md section 7): losses, test error, linear baseline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .errors import InputError
from .integration.averages import Averages
from .integration.fields import Fields, fields_of
from .integration.nodes import gauss_hermite, panels, sobol_normal, tensor
from .integration.rules import CHUNKS, teacher_axes
from .overlaps import Conjugates, Overlaps
from .problem import Problem


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
    """Free entropy and the two parts of the training loss, replicates averaged."""
    trace, entropic, penalty = problem.solver.prior.free_entropy(
        *problem.prior_law,
        overlaps.q, overlaps.V, overlaps.m, overlaps.theta, hats.q, hats.V, hats.m, hats.theta,
    )  # fmt: skip
    moreau, loss = float(averages.moreau.mean()), float(averages.loss.mean())
    own = sum(number["ridge"] * phi**2 / 2 for number, phi in zip(problem.trained, overlaps.phi, strict=True))
    return Losses(trace + entropic - own - problem.alpha * moreau, problem.alpha * loss, penalty + own)


def _metric_nodes(problem: Problem, fields: Fields, budget: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes in (z_Y, z_h, noise): Gauss-Hermite, panels at kinks in Y and h, or a Sobol set in many dimensions."""
    tokens, s, t = problem.tokens, problem.student_rank, problem.teacher_rank
    kinks = problem.solver.model.kinks(problem.flat)["metric"]
    outer_count, inner_count = tokens * t, tokens * s
    dimension = problem.dimension
    if dimension > 6:
        nodes = sobol_normal(
            dimension,
            int(np.log2(budget)) - 2,
            4242,
            (tuple(range(outer_count)), tuple(range(outer_count, outer_count + inner_count))),
        )
        return nodes, np.full(len(nodes), 1 / len(nodes))
    points = max(6, min(64, round(budget ** (1 / dimension))))
    outer = teacher_axes(problem, fields, points, "metric")
    student_kinks = {(row, column): value for kind, row, column, value in kinks if kind == "x"}
    if not student_kinks:
        inner = [gauss_hermite(points)] * inner_count
        return tensor([*outer[:outer_count], *inner, *outer[outer_count:]])
    if any(column != 0 for _, column in student_kinks):
        raise InputError("a metric with a kink in h is supported in the first column only")
    blocks, weights = [], []
    outer_nodes, outer_weights = tensor(outer)
    for node, weight in zip(outer_nodes, outer_weights, strict=True):
        axes = []
        for l in range(tokens):
            for a in range(s):
                if (l, a) not in student_kinks:
                    axes.append(gauss_hermite(points))
                    continue
                mean = fields.field_mean[l, a] + fields.field_from_teacher[l, a] @ node[l * t : (l + 1) * t]
                axes.append(panels([float((student_kinks[l, a] - mean) / fields.field_factor[l, a, a])], points))
        inner_nodes, inner_weights = tensor(axes)
        repeated = np.repeat(node[None], len(inner_nodes), axis=0)
        blocks.append(np.concatenate([repeated[:, :outer_count], inner_nodes, repeated[:, outer_count:]], axis=1))
        weights.append(weight * inner_weights)
    return np.concatenate(blocks), np.concatenate(weights)


def test_average(problem: Problem, overlaps: Overlaps, budget: float) -> float:
    """E metric(h, Y, k, u) over about `budget` nodes.

    Raises:
        DomainError: the overlaps admit no law of the fields.
    """
    total = 0.0
    for labels, probability in problem.label_choices:
        fields = fields_of(problem, overlaps, labels)
        nodes, weights = _metric_nodes(problem, fields, budget)
        total += probability * float(
            problem.solver.metric.test_error(
                CHUNKS,
                np.ascontiguousarray(nodes),
                np.ascontiguousarray(weights),
                *fields.sampling,
                problem.noise_scale,
                fields.constants,
            ).sum()
        )
    return total


def test_error(problem: Problem, overlaps: Overlaps, budget: float = 1.5e5) -> tuple[float, float]:
    """E metric(h, Y, k, u) and an integration error (difference to a coarser rule); nan without a metric.

    Args:
        budget: about how many nodes to use.

    Raises:
        DomainError: the overlaps admit no law of the fields.
    """
    if not problem.solver.metric.HAS_METRIC:
        return np.nan, np.nan
    fine, coarse = (test_average(problem, overlaps, size) for size in (budget, budget / 3))
    return fine, abs(fine - coarse)


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
