"""Observables of a solution (docs/theory.md section 7): losses, test errors, formulas, linear baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..base.progress import step
from ..base.threads import share
from ..channel.fields import Fields, fields_of, overlaps_of
from ..channel.nodes import gauss_hermite, sobol_normal, tensor
from ..channel.shared import summed
from ..integration.cells import MOST_AXES, Cells, has_narrow, scales_of
from ..integration.estimates import ladder_half_width, two_standard_errors
from ..integration.rule import Averages
from ..integration.splitting import Split
from ..problems.columns import METRIC
from ..problems.observables import FORMULAS, Formula
from ..problems.overlaps import Conjugates, Overlaps
from ..problems.problem import Problem
from ..problems.reduced import averaged_by_metric
from .state_map import StateMap

_ROUNDING = 16 * np.finfo(float).eps
_EXACT = 1e-12  # of the metric: many nodes are known no better
_BUDGET = 1.5e5  # nodes for the metric where no error is asked for
_MOST_NODES, _MOST_CELL_NODES = 4e7, 4e6
_MOST_IN_PANELS = 2e6  # nodes of all panels of a product rule, which Sobol sets come before
_DIGITS, _MOST_DIGITS = 7, 13  # of cells, where no error is asked for and at the most
_SETS, _SEED = 16, 4242  # Sobol sets for the metric
_MOST_PRODUCT = 6  # axes of a product rule
_LEAST_POINTS, _MOST_POINTS = 16, 180  # of Gauss-Hermite
_LEAST_COUNTS = (1.0, 0.0, 0.0)  # of the last steps: the one rate that two show may be a chance


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
    """Return free entropy and the two parts of the training loss, replicates averaged.

    At a finite temperature: the free entropy over the inverse temperature, and the parts of the energy.
    """
    trace, entropic, penalty = problem.of_prior("free_entropy")(*overlaps.blocks, *hats.blocks)
    moreau, loss = float(averages.moreau.mean()), float(averages.loss.mean())
    own = sum(number["ridge"] * phi**2 / 2 for number, phi in zip(problem.trained, overlaps.phi, strict=True))
    terms = trace, entropic, -own, -problem.alpha * moreau
    rounding = _ROUNDING * sum(abs(term) for term in terms)
    return Losses(sum(terms), problem.alpha * loss, penalty + own, rounding)


class MetricRule(NamedTuple):
    """A rule for the average of the metric.

    Attributes:
        family: "product" of `size` nodes an axis, or a panel where the metric has kinks; "cells", halved where the
            metric asks for it until `size` digits are known; "sobol", the mean of scrambled Sobol sets of 2^size nodes
            (and their mirror images).
    """

    family: str
    size: int

    @property
    def coarser(self) -> MetricRule:
        """Return the rule of the same family with fewer nodes."""
        less = {"product": max(4, self.size * 3 // 4), "cells": self.size - 3, "sobol": self.size - 2}
        return self._replace(size=less[self.family])


def rule_within(problem: Problem, family: str, budget: float) -> MetricRule:
    """Return the rule of a family that takes about `budget` nodes (in a panel); cells of a usual accuracy."""
    dimension = max(1, averaged_by_metric(problem).dimension)
    sizes = {
        "product": max(6, min(64, round(budget ** (1 / dimension)))),
        "cells": _DIGITS,
        "sobol": max(4, int(np.log2(budget / (4 * _SETS)))),
    }
    return MetricRule(family, sizes[family])


def metric_rule(problem: Problem, overlaps: Overlaps, budget: float) -> MetricRule:
    """Return a rule that takes about `budget` nodes (in a panel), or that a metric with narrow features asks for.

    Raises:
        DomainError: the overlaps admit no law of the fields.
    """
    return rule_within(problem, _Metric.of(problem, overlaps).family, budget)


def average_metric(problem: Problem, overlaps: Overlaps, rule: MetricRule, equidistant: bool = False) -> float:
    """Return E metric(h, Y, k, u) by a rule that `test_error` returns.

    Args:
        equidistant: nodes in place of Gauss-Hermite's.

    Raises:
        DomainError: the overlaps admit no law of the fields.
    """
    return _Metric.of(problem, overlaps).average(rule, equidistant)


@dataclass(frozen=True)
class _Metric:
    """The metric over all fields that it reads.

    Attributes:
        laws: of the fields, each with its probability.
    """

    problem: Problem
    laws: tuple[tuple[Fields, float], ...]

    @classmethod
    def of(cls, problem: Problem, overlaps: Overlaps) -> _Metric:
        """Return the metric over what it reads, where that is less."""
        part = averaged_by_metric(problem)
        return cls.over(part, overlaps_of(part, overlaps))

    @classmethod
    def over(cls, problem: Problem, overlaps: Overlaps) -> _Metric:
        """Return the metric over all fields of a problem."""
        return cls(problem, tuple((fields_of(problem, overlaps, labels), p) for labels, p in problem.label_choices))

    @cached_property
    def family(self) -> str:
        """Return the family of rules that see all of the metric."""
        if self.problem.dimension > _MOST_PRODUCT or self.problem.solver.model.CURVED["metric"]:
            return "sobol"
        if not self.is_narrow or self.problem.dimension > MOST_AXES:
            return "product"
        return "sobol" if self.cells is None else "cells"

    @cached_property
    def is_narrow(self) -> bool:
        """Whether it changes faster than nodes of a product rule follow."""
        scales = (scales_of(self.problem, fields, "metric") for fields, _ in self.laws)
        return any(has_narrow(each, self.problem.dimension) for each in scales)

    @property
    def families(self) -> tuple[str, ...]:
        """Return the families of rules that are tried one after the other until the error asked for is reached."""
        if self.family == "product" and self.problem.dimension > MOST_AXES:
            return ("sobol", "product") if self.panels > 1 else ("product", *["sobol"] * self.is_narrow)
        if self.family == "product":
            return "product", "cells"
        return ("cells", "sobol") if self.family == "cells" else ("sobol",)

    @cached_property
    def panels(self) -> int:
        """Return the number of panels of a product rule between the kinks where they are many, 1 else."""
        dimension = self.problem.dimension
        if dimension <= MOST_AXES:
            return 1
        panels = sum(len(nodes) for fields, _ in self.laws for nodes, _ in self._split(fields).blocks(1))
        nodes = panels * float(rule_within(self.problem, "product", _BUDGET).size) ** dimension
        return panels if nodes > _MOST_IN_PANELS else 1

    @cached_property
    def cells(self) -> list[Cells] | None:
        """Return cells that resolve all arguments, of every law; None where there are too many."""
        found: list[Cells] = []
        for fields, _ in self.laws if self.problem.dimension <= MOST_AXES else ():
            cells = Cells.between(self._planes(fields, "metric", "metric_places"), self.problem.dimension)
            scales = scales_of(self.problem, fields, "metric")
            resolved = cells if scales is None else cells.resolving(scales)
            if resolved is not None:
                found.append(resolved)
        return found if len(found) == len(self.laws) else None

    def refined(
        self, family: str, tolerance: float, equidistant: bool, most: float, relative: float
    ) -> tuple[float, float, MetricRule, float]:
        """Return `test_error` by one family of rules, and the error that was asked for; the error is infinite where the
        family is not for this metric."""
        rule = rule_within(self.problem, family, _BUDGET)
        if family == "cells":
            if self.cells is None:
                return np.nan, np.inf, rule, 0.0
            asked, absolute = min(10.0**-_DIGITS, relative or np.inf), tolerance or np.inf
            value, error, scale = self.by_cells(asked, absolute, min(most, _MOST_CELL_NODES))
            asked = min(asked, absolute / scale if scale > 0 else np.inf)
            rule = rule._replace(size=min(int(np.ceil(-np.log10(asked))), _MOST_DIGITS))
            return value, error, rule, tolerance + relative * scale
        values: list[float] = []
        error = np.inf
        for each, fine in _sizes(rule, self.problem.dimension, most, self.panels if family == "product" else 1):
            rule = each
            if family == "sobol":
                replicates = self.over_sets(rule.size)
                values.append(float(replicates.mean()))
                error = float(two_standard_errors(replicates))
            else:
                values.append(self.by_product(rule.size, equidistant))
                if len(values) > 2:
                    steps = [np.array(finer - coarser) for coarser, finer in pairwise(values[-4:])][::-1]
                    error = ladder_half_width(steps, _LEAST_COUNTS[: len(steps)])
            if error < (exact := _EXACT * abs(values[-1])):
                error = exact
                break
            if fine and error <= tolerance + relative * abs(values[-1]):
                break
        value = values[-1] if values else np.nan
        if family == "product" and self.is_narrow:
            error = max(error, self._missed(value))
        return value, error, rule, tolerance + relative * abs(value)

    def average(self, rule: MetricRule, equidistant: bool) -> float:
        """Return the average by a rule; `equidistant` as of `average_metric`."""
        if rule.family == "sobol":
            return float(self.over_sets(rule.size).mean())
        if rule.family == "cells" and self.cells is not None:
            return self.by_cells(10.0**-rule.size, np.inf, _MOST_CELL_NODES)[0]
        return self.by_product(rule.size, equidistant)

    def over_sets(self, size: int) -> np.ndarray:
        """Return the averages by every Sobol set."""
        sets = (sobol_block(self.problem, size, seed) for seed in range(_SETS))
        return np.array([sum(p * self._sum(fields, [block]) for fields, p in self.laws) for block in sets])

    def by_product(self, size: int, equidistant: bool) -> float:
        """Return the average by a product rule, or by panels between the kinks."""
        steps = self.problem.solver.model.METRIC_IS_STEPS
        rules = ((fields, p, self._split(fields).blocks(size, equidistant, steps=steps)) for fields, p in self.laws)
        return sum(p * self._sum(fields, blocks) for fields, p, blocks in rules)

    def by_cells(self, relative: float, absolute: float, most: float) -> tuple[float, float, float]:
        """Return average, error and scale, as of `Cells.integral`."""
        assert self.cells is not None
        found = np.zeros(3)
        for cells, (fields, p) in zip(self.cells, self.laws, strict=True):
            found += p * np.array(cells.integral(partial(self._each, fields), relative, absolute, most), float)
        value, error, scale = found.tolist()
        return value, error, scale

    def _missed(self, value: float) -> float:
        """Return how far a value is from that of Sobol sets, with their error, if that is far; 0 else."""
        replicates = self.over_sets(rule_within(self.problem, "sobol", _BUDGET).size)
        away, width = abs(float(replicates.mean()) - value), float(two_standard_errors(replicates))
        return away + width if not away <= 1.5 * width else 0.0

    def _split(self, fields: Fields) -> Split:
        return Split.of(self._planes(fields, "metric"), self.problem.dimension)

    def _planes(self, fields: Fields, *of: str) -> np.ndarray:
        """Return planes in (z_Y, z_h, noise)."""
        rows = np.concatenate([self.problem.planes(name, fields.constants) for name in of])
        return fields.in_nodes(rows, self.problem.noise_scale)

    def _each(self, fields: Fields, nodes: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return weight times metric at every node."""
        out = np.zeros((len(nodes), 1))
        share(self._loop, len(nodes), len(nodes), *self._arguments(fields, nodes, weights), out)
        return out[:, 0]

    def _sum(self, fields: Fields, blocks: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
        return sum(float(summed(self._loop, 1, *self._arguments(fields, *block)).sum()) for block in blocks)

    @property
    def _loop(self) -> Callable[..., None]:
        return self.problem.solver.metric.test_error

    def _arguments(self, fields: Fields, nodes: np.ndarray, weights: np.ndarray) -> tuple[Any, ...]:
        known = np.ascontiguousarray(nodes), np.ascontiguousarray(weights)
        return *known, *fields.sampling, self.problem.noise_scale, fields.constants


def sobol_block(problem: Problem, log2: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a Sobol set in (z_Y, z_h, noise)."""
    outer, inner = problem.tokens * problem.teacher_rank, problem.tokens * problem.student_rank
    groups = tuple(filter(None, (tuple(range(outer)), tuple(range(outer, outer + inner)))))
    nodes = sobol_normal(problem.dimension, log2, _SEED + seed, groups)
    return nodes, np.full(len(nodes), 1 / len(nodes))


def _sizes(first: MetricRule, dimension: int, most: float, panels: int) -> Iterator[tuple[MetricRule, bool]]:
    """Yield rules for the metric, coarse to fine, and whether one will do where no error is asked for: product rules of
    about _BUDGET nodes; smaller ones come before, which leave little but rounding where the metric is simple.
    """
    size = first.size
    if first.family == "sobol":
        last = int(np.log2(most / (4 * _SETS)))
        yield from ((first._replace(size=each), True) for each in range(size - 2, max(size, last) + 1))
        return
    sizes = [max(4, size * 9 // 16), max(5, size * 3 // 4), size]
    while (coarser := sizes[0] * 3 // 4) >= _LEAST_POINTS:
        sizes.insert(0, coarser)
    for each in sizes:
        if panels > 1 and panels * each**dimension > most:
            return
        yield first._replace(size=each), each == size  # three of them give an error
    while True:
        size = max(size + 2, size * 4 // 3)
        if panels * size**dimension > max(_BUDGET, most) or size > _MOST_POINTS:
            return
        yield first._replace(size=size), True


@step("test error")
def test_error(
    problem: Problem,
    overlaps: Overlaps,
    tolerance: float = np.inf,
    equidistant: bool = False,
    most: float = _MOST_NODES,
    relative: float = 0.0,
) -> tuple[float, float, MetricRule | None]:
    """Return E metric(h, Y, k, u), an integration error and the rule used.

    The error is what the last rules differ by, with the rate at which they converge, or two standard errors of the
    Sobol sets. nan, nan and None without a metric.

    Args:
        tolerance: the rule is refined until its error is no larger, or it would take more than `most` nodes.
        equidistant: another family of nodes, to compare with.
        relative: to the value, added to the tolerance.

    Raises:
        DomainError: the overlaps admit no law of the fields.
    """
    if not problem.solver.metric.HAS_METRIC:
        return np.nan, np.nan, None
    metric = _Metric.of(problem, overlaps)
    best: tuple[float, float, MetricRule | None] = np.nan, np.inf, None
    for family in metric.families:
        value, error, rule, asked = metric.refined(family, tolerance, equidistant, most, relative)
        if best[2] is None or error < best[1]:
            best = value, error, rule
        if error <= asked:
            break
    return best


@dataclass(frozen=True)
class Observable:
    """A number that the overlaps of a problem determine: a test error, or a formula.

    Attributes:
        name: its column in tables.
        problem: by the metric that is averaged.
    """

    name: str
    problem: Problem

    @property
    def formula(self) -> Formula | None:
        """Return the formula; None of a test error."""
        return FORMULAS.get(self.name)

    def estimate(
        self,
        overlaps: Overlaps,
        tolerance: float = np.inf,
        equidistant: bool = False,
        relative: float = 0.0,
        most: float = _MOST_NODES,
    ) -> tuple[float, float, MetricRule | None]:
        """Return value, integration error and rule, as `test_error`; of a formula rounding, and None for the rule."""
        if self.formula is not None:
            value = self.formula.value(self.problem, overlaps)
            return value, _ROUNDING * abs(value), None
        return test_error(self.problem, overlaps, tolerance, equidistant, most, relative)

    def rule(self, overlaps: Overlaps, budget: float) -> MetricRule | None:
        """Return a rule that takes about `budget` nodes; None of a formula."""
        return None if self.formula is not None else metric_rule(self.problem, overlaps, budget)

    def value(self, overlaps: Overlaps, rule: MetricRule | None, equidistant: bool = False) -> float:
        """Return the value by a rule of `estimate` or `rule`.

        Raises:
            DomainError: the overlaps admit no law of the fields.
        """
        if rule is None:
            return self.estimate(overlaps)[0]
        return average_metric(self.problem, overlaps, rule, equidistant)


def observables_of(problem: Problem) -> list[Observable]:
    """Return the test errors by all metrics of a problem, the first as `test_error`, and the formulas that it defines.

    A problem by another metric than its model's first has the test error by that one alone.
    """
    return problem.once(_observables_of)


def first_observables(problem: Problem) -> list[Observable]:
    """Return those of `observables_of` but the test errors by further metrics."""
    return [each for each in observables_of(problem) if not each.name.startswith(METRIC)]


def observable_named(problem: Problem, name: str) -> Observable:
    """Return the one of `observables_of` with a name; of metrics, that of the first one is its own, too."""
    if name.startswith(METRIC):
        return Observable(name, problem.by_metric(name.removeprefix(METRIC)))
    return next(each for each in observables_of(problem) if each.name == name)


def _observables_of(problem: Problem) -> list[Observable]:
    found = [Observable("test_error", problem)] if problem.solver.metric.HAS_METRIC else []
    if problem.solver.base is None:
        found += [Observable(METRIC + name, problem.by_metric(name)) for name in problem.metric_names[1:]]
    return found + [Observable(name, problem) for name, known in FORMULAS.items() if known.is_defined(problem)]


def baseline_error(problem: Problem, points: int = 48) -> float:
    """Return the error of the best constant linear layer, B_0 of docs/theory.md (7.7); nan where the model has none.

    Derived from the model's baseline expression, quadratic in B: minimised through its averaged gradient and Hessian.
    """
    if not problem.solver.metric.HAS_BASELINE:
        return np.nan
    metric = problem.solver.metric
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
    """Return Phi at overlaps that need not solve the saddle point, with the conjugates that belong to them."""
    averages = averages or state_map.averages(overlaps)
    hats = state_map.conjugates(overlaps, averages.means)
    return losses(state_map.problem, overlaps, hats, averages).free_entropy
