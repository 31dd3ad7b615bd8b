"""What a user wants to know of a solution (docs/theory.md section 7): losses, test error, linear baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..channel.fields import Fields, fields_of, overlaps_of
from ..channel.nodes import gauss_hermite, sobol_normal, tensor
from ..channel.shared import summed
from ..integration.estimates import ladder_half_width, two_standard_errors
from ..integration.rule import Averages
from ..integration.splitting import Split
from ..problems.overlaps import Conjugates, Overlaps
from ..problems.problem import Problem
from ..problems.reduced import averaged_by_metric
from ..progress import step
from .state_map import StateMap

_ROUNDING = 16 * np.finfo(float).eps
_EXACT = 1e-12  # of the metric: many nodes are known no better
_BUDGET = 1.5e5  # nodes for the metric where no error is asked for
_SETS, _SEED = 16, 4242  # Sobol sets for the metric
_MOST_AXES = 6  # of a product rule
_LEAST_POINTS, _MOST_POINTS = 16, 180  # of Gauss-Hermite
_LEAST_COUNTS = (1.0, 0.0)  # of the last two steps: the one rate that these show may be a chance


@dataclass(frozen=True)
class Losses:
    """Per d. At the saddle point free_entropy = -(data + penalty); the difference measures how well it is solved.

    Attributes:
        rounding: of the free entropy, whose terms are larger than it and sums of many.
    """

    free_entropy: float
    data: float
    penalty: float
    rounding: float

    @property
    def training_loss(self) -> float:
        """e_t = -Phi, docs/theory.md (7.1); at a finite temperature the free energy."""
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
    terms = trace, entropic, -own, -problem.alpha * moreau
    rounding = _ROUNDING * sum(abs(term) for term in terms)
    return Losses(sum(terms), problem.alpha * loss, penalty + own, rounding)


def average_metric(problem: Problem, overlaps: Overlaps, size: int, equidistant: bool = False) -> float:
    """E metric(h, Y, k, u), by the rule of a size that `test_error` returns.

    It is a product rule of `size` nodes an axis, or a panel where the metric has kinks; in more than six dimensions, or
    where a kink is no plane, the mean of scrambled Sobol sets of 2^size nodes (and their mirror images).

    Args:
        equidistant: nodes in place of Gauss-Hermite's.

    Raises:
        DomainError: the overlaps admit no law of the fields.
    """
    return float(_replicates(problem, overlaps, equidistant)(size).mean())


def _replicates(problem: Problem, overlaps: Overlaps, equidistant: bool) -> Callable[[int], np.ndarray]:
    """E metric of every Sobol set by a rule of a size, (R,); R = 1 of a product rule."""
    part = averaged_by_metric(problem)
    return _means(part, overlaps_of(part, overlaps), equidistant)


def _means(problem: Problem, overlaps: Overlaps, equidistant: bool) -> Callable[[int], np.ndarray]:
    """The same over all fields of the problem."""
    laws = [(fields_of(problem, overlaps, labels), probability) for labels, probability in problem.label_choices]
    if is_sampled(problem):

        def over_set(size: int, seed: int) -> float:
            return sum(p * _sum(problem, fields, [_sobol_block(problem, size, seed)]) for fields, p in laws)

        return lambda size: np.array([over_set(size, seed) for seed in range(_SETS)])
    splits = [(fields, probability, _split_of(problem, fields)) for fields, probability in laws]
    steps = problem.solver.model.METRIC_IS_STEPS
    return lambda size: np.array(
        [sum(p * _sum(problem, fields, split.blocks(size, equidistant, steps=steps)) for fields, p, split in splits)]
    )


def _sum(problem: Problem, fields: Fields, blocks: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    return sum(
        float(
            summed(
                problem.solver.error_metric.test_error,
                1,
                np.ascontiguousarray(nodes),
                np.ascontiguousarray(weights),
                *fields.sampling,
                problem.noise_scale,
                fields.constants,
            ).sum()
        )
        for nodes, weights in blocks
    )


def _split_of(problem: Problem, fields: Fields) -> Split:
    """Where the metric is not smooth, in (z_Y, z_h, noise)."""
    planes = problem.planes("metric", fields.constants)
    return Split.of(fields.in_nodes(planes, problem.noise_scale), problem.dimension)


def is_sampled(problem: Problem) -> bool:
    """Whether the metric is averaged over Sobol sets, whose spread knows of jumps that no rule is split at."""
    part = averaged_by_metric(problem)
    return part.dimension > _MOST_AXES or bool(part.solver.model.CURVED["metric"])


def _sobol_block(problem: Problem, log2: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A Sobol set in (z_Y, z_h, noise)."""
    outer, inner = problem.tokens * problem.teacher_rank, problem.tokens * problem.student_rank
    groups = tuple(filter(None, (tuple(range(outer)), tuple(range(outer, outer + inner)))))
    nodes = sobol_normal(problem.dimension, log2, _SEED + seed, groups)
    return nodes, np.full(len(nodes), 1 / len(nodes))


def metric_size(problem: Problem, budget: float) -> int:
    """Size of the rule of `average_metric` that takes about `budget` nodes (in a panel)."""
    if is_sampled(problem):
        return max(4, int(np.log2(budget / (4 * _SETS))))
    return max(6, min(64, round(budget ** (1 / averaged_by_metric(problem).dimension))))


def _sizes(problem: Problem, most: float) -> Iterator[tuple[int, bool]]:
    """Sizes of the rules for the metric, coarse to fine, and whether one will do where no error is asked for: product
    rules of about _BUDGET nodes; smaller ones come before, which leave little but rounding where the metric is simple.
    """
    size = metric_size(problem, _BUDGET)
    if is_sampled(problem):
        yield from ((each, True) for each in range(size - 2, metric_size(problem, most) + 1))
        return
    sizes = [max(4, size * 9 // 16), max(5, size * 3 // 4), size]
    while (coarser := sizes[0] * 3 // 4) >= _LEAST_POINTS:
        sizes.insert(0, coarser)
    for each in sizes:
        yield each, each == size  # three of them tell an error
    while True:
        size = max(size + 2, size * 4 // 3)
        if size ** averaged_by_metric(problem).dimension > max(_BUDGET, most) or size > _MOST_POINTS:
            return
        yield size, True


@step("test error")
def test_error(
    problem: Problem,
    overlaps: Overlaps,
    tolerance: float = np.inf,
    equidistant: bool = False,
    most: float = 4e7,
) -> tuple[float, float, int]:
    """E metric(h, Y, k, u), an integration error and the size of the rule used.

    The error is what the last rules differ by, with the rate at which they converge, or two standard errors of the
    Sobol sets. nan, nan and 0 without a metric.

    Args:
        tolerance: the rule is refined until its error is no larger, or it would take more than `most` nodes.
        equidistant: another family of nodes, to compare with.

    Raises:
        DomainError: the overlaps admit no law of the fields.
    """
    if not problem.solver.metric.HAS_METRIC:
        return np.nan, np.nan, 0
    known: list[float] = []
    error, used = np.nan, 0
    by_size = _replicates(problem, overlaps, equidistant)
    for size, fine in _sizes(problem, most):
        replicates = by_size(size)
        known.append(float(replicates.mean()))
        used = size
        if is_sampled(problem):
            error = float(two_standard_errors(replicates))
        elif len(known) > 2:
            steps = [np.array(finer - coarser) for coarser, finer in pairwise(known[-3:])][::-1]
            error = ladder_half_width(steps, _LEAST_COUNTS)
        if error < (exact := _EXACT * abs(known[-1])):
            error = exact
            break
        if fine and error <= tolerance:
            break
    return known[-1], error, used


def baseline_error(problem: Problem, points: int = 48) -> float:
    """Error of the best constant linear layer, B_0 of docs/theory.md (7.7); nan where the model has none.

    Derived from the model's baseline expression, quadratic in B: minimised through its averaged gradient and Hessian.
    """
    if not problem.solver.metric.HAS_BASELINE:
        return np.nan
    metric = problem.solver.baseline_metric
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


def free_entropy_at(state_map: StateMap, overlaps: Overlaps, averages: Averages | None = None) -> float:
    """Phi at overlaps that need not solve the saddle point, with the conjugates that belong to them."""
    averages = averages or state_map.averages(overlaps)
    hats = state_map.conjugates(overlaps, averages.means)
    return losses(state_map.problem, overlaps, hats, averages).free_entropy
