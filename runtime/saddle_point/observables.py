"""Observables of a solution (docs/theory.md section 7): losses, test errors, formulas, linear baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..base.options import AlgorithmOptions
from ..base.progress import progress_step
from ..base.threads import run_loop_in_threads
from ..channel.fields import FieldLaw, channel_overlaps, field_law
from ..channel.nodes import gauss_hermite, sobol_normal_points, tensor_product_rule
from ..channel.shared import sum_loop_in_chunks
from ..integration.cells import MAX_AXES, QuadratureCells, has_narrow_features, nonlinearity_arguments
from ..integration.estimates import replicate_error_bar, rule_sequence_error
from ..integration.rule import SaddlePointAverages
from ..integration.splitting import HyperplaneSplit
from ..problems.columns import METRIC
from ..problems.observables import FORMULAS, ObservableFormula
from ..problems.overlaps import Conjugates, Overlaps
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_metric
from .state_map import SaddlePointMap

_ROUNDING = 16 * np.finfo(float).eps  # relative, of a sum of a few terms
_LEAST_COUNTS = (1.0, 0.0, 0.0)  # of the last steps: the one rate that two show may be a chance


@dataclass(frozen=True)
class MetricQuadratureOptions(AlgorithmOptions):
    """Options of the quadrature rules for test errors; more nodes are more accurate and slower.

    Attributes:
        budget: nodes of a rule if no error is asked for.
        max_nodes: nodes beyond which a rule is not refined.
        max_cell_nodes: the same for adaptive cells.
        max_panel_nodes: nodes of all panels of a product rule beyond which Sobol sets are tried first.
        digits: relative accuracy of cells, in decimal digits, if no error is asked for.
        max_digits: largest accuracy of cells.
        sobol_sets: scrambled Sobol sets, whose spread gives the error bar.
        seed: seed of the scrambling.
        max_product_axes: dimension beyond which product rules are not used.
        min_points: Gauss-Hermite nodes of an axis in the coarsest rule.
        max_points: the same in the finest rule.
        rounding: smallest relative error of a sum over many nodes.
    """

    budget: float = 1.5e5
    max_nodes: float = 4e7
    max_cell_nodes: float = 4e6
    max_panel_nodes: float = 2e6
    digits: int = 7
    max_digits: int = 13
    sobol_sets: int = 16
    seed: int = 4242
    max_product_axes: int = 6
    min_points: int = 16
    max_points: int = 180
    rounding: float = 1e-12


@dataclass(frozen=True)
class Losses:
    """The free entropy and the training loss, per d.

    At the saddle point free_entropy = -(data + penalty); the difference measures how well it is solved.

    Attributes:
        free_entropy: Phi.
        data: data term of the training loss.
        penalty: regulariser's term of the training loss.
        rounding: rounding error of the free entropy, whose terms are larger than their sum.
    """

    free_entropy: float
    data: float
    penalty: float
    rounding: float

    @property
    def training_loss(self) -> float:
        """Return the training loss e_t = -Phi, docs/theory.md (7.1); at a finite temperature the free energy."""
        return -self.free_entropy

    @property
    def identity_gap(self) -> float:
        """Return the training loss from Phi minus the sum of its parts; 0 at an exact saddle point."""
        return self.training_loss - (self.data + self.penalty)


def free_entropy_and_losses(
    problem: Problem, overlaps: Overlaps, hats: Conjugates, averages: SaddlePointAverages
) -> Losses:
    """Return free entropy and the two parts of the training loss, averaged over replicates.

    At a finite temperature: the free entropy over the inverse temperature, and the parts of the energy.

    Args:
        problem: the problem that the overlaps belong to.
        overlaps: overlaps of student and teacher.
        hats: conjugates at these.
        averages: channel averages at these overlaps.
    """
    trace, entropic, penalty = problem.bound_prior_map("free_entropy")(*overlaps.blocks, *hats.blocks)
    moreau, loss = float(averages.moreau.mean()), float(averages.loss.mean())
    own = sum(number["ridge"] * phi**2 / 2 for number, phi in zip(problem.trained, overlaps.phi, strict=True))
    terms = trace, entropic, -own, -problem.alpha * moreau
    rounding = _ROUNDING * sum(abs(term) for term in terms)
    return Losses(sum(terms), problem.alpha * loss, penalty + own, rounding)


class MetricRule(NamedTuple):
    """A rule for the average of the metric.

    Attributes:
        family: "product" of `size` nodes per axis, or per panel between kinks of the metric; "cells", adaptively halved
            until `size` digits are reached; "sobol", the mean of scrambled Sobol sets of 2^size nodes (and their mirror
            images).
        size: see family.
    """

    family: str
    size: int

    @property
    def coarser_rule(self) -> MetricRule:
        """Return the rule of the same family with fewer nodes."""
        less = {"product": max(4, self.size * 3 // 4), "cells": self.size - 3, "sobol": self.size - 2}
        return self._replace(size=less[self.family])


def metric_rule_of_family(problem: Problem, family: str, budget: float) -> MetricRule:
    """Return the rule of a family with about `budget` nodes.

    Args:
        problem: the problem whose metric is averaged.
        family: "product", "cells" (whose accuracy does not depend on the budget) or "sobol".
        budget: number of nodes, of a product rule per panel.
    """
    options = MetricQuadratureOptions.current()
    dimension = max(1, reduce_to_fields_of_metric(problem).dimension)
    sizes = {
        "product": max(6, min(64, round(budget ** (1 / dimension)))),
        "cells": options.digits,
        "sobol": max(4, int(np.log2(budget / (4 * options.sobol_sets)))),
    }
    return MetricRule(family, sizes[family])


def metric_rule_for_budget(problem: Problem, overlaps: Overlaps, budget: float) -> MetricRule:
    """Return a quadrature rule for the metric with about `budget` nodes, or finer for a narrow metric.

    Args:
        problem: the problem that the overlaps belong to.
        overlaps: overlaps of student and teacher.
        budget: number of nodes, of a product rule per panel.

    Raises:
        DomainError: the overlaps admit no law of the fields.
    """
    return metric_rule_of_family(
        problem, _MetricIntegrand.metric_on_reduced_fields(problem, overlaps).resolving_rule_family, budget
    )


def average_metric_by_rule(problem: Problem, overlaps: Overlaps, rule: MetricRule, equidistant: bool = False) -> float:
    """Return E metric(h, Y, k, u) by a given rule.

    Args:
        problem: the problem that the overlaps belong to.
        overlaps: overlaps of student and teacher.
        rule: quadrature rule as `test_error` or `metric_rule_for_budget` return.
        equidistant: whether to use equidistant nodes instead of Gauss-Hermite's.

    Raises:
        DomainError: the overlaps admit no law of the fields.
    """
    return _MetricIntegrand.metric_on_reduced_fields(problem, overlaps).average_by_rule(rule, equidistant)


@dataclass(frozen=True)
class _MetricIntegrand:
    """The metric as an integrand over the fields on which it depends.

    Attributes:
        problem: reduced to these fields.
        laws: laws of the fields for every label assignment, each with its probability.
    """

    problem: Problem
    laws: tuple[tuple[FieldLaw, float], ...]

    @classmethod
    def metric_on_reduced_fields(cls, problem: Problem, overlaps: Overlaps) -> _MetricIntegrand:
        """Return the metric as an integrand over the combinations of fields on which it depends.

        Args:
            problem: the full problem.
            overlaps: overlaps of its fields.
        """
        part = reduce_to_fields_of_metric(problem)
        return cls.metric_on_all_fields(part, channel_overlaps(part, overlaps))

    @classmethod
    def metric_on_all_fields(cls, problem: Problem, overlaps: Overlaps) -> _MetricIntegrand:
        """Return the metric over all fields of a problem.

        Args:
            problem: full or reduced.
            overlaps: overlaps of its fields.
        """
        return cls(
            problem,
            tuple((field_law(problem, overlaps, labels), p) for labels, p in problem.label_choices),
        )

    @cached_property
    def resolving_rule_family(self) -> str:
        """Return the family of quadrature rules that resolves all features of the metric."""
        if (
            self.problem.dimension > MetricQuadratureOptions.current().max_product_axes
            or self.problem.solver.model.CURVED["metric"]
        ):
            return "sobol"
        if not self.has_narrow_metric_features or self.problem.dimension > MAX_AXES:
            return "product"
        return "sobol" if self.resolving_cells is None else "cells"

    @cached_property
    def has_narrow_metric_features(self) -> bool:
        """Return whether the metric varies faster than the nodes of a product rule resolve."""
        scales = (nonlinearity_arguments(self.problem, fields, "metric") for fields, _ in self.laws)
        return any(has_narrow_features(each, self.problem.dimension) for each in scales)

    @property
    def ordered_rule_families(self) -> tuple[str, ...]:
        """Return the families of quadrature rules in the order in which they are tried."""
        if self.resolving_rule_family == "product" and self.problem.dimension > MAX_AXES:
            return (
                ("sobol", "product")
                if self.panel_count > 1
                else ("product", *["sobol"] * self.has_narrow_metric_features)
            )
        if self.resolving_rule_family == "product":
            return "product", "cells"
        return ("cells", "sobol") if self.resolving_rule_family == "cells" else ("sobol",)

    @cached_property
    def panel_count(self) -> int:
        """Return the number of panels between kinks of the metric if they take many nodes; otherwise 1."""
        options = MetricQuadratureOptions.current()
        dimension = self.problem.dimension
        if dimension <= MAX_AXES:
            return 1
        panels = sum(
            len(nodes) for fields, _ in self.laws for nodes, _ in self._split_domain_at_kinks(fields).node_batches(1)
        )
        nodes = panels * float(metric_rule_of_family(self.problem, "product", options.budget).size) ** dimension
        return panels if nodes > options.max_panel_nodes else 1

    @cached_property
    def resolving_cells(self) -> list[QuadratureCells] | None:
        """Return quadrature cells that resolve the metric, for every law; None if there would be too many."""
        found: list[QuadratureCells] = []
        for fields, _ in self.laws if self.problem.dimension <= MAX_AXES else ():
            cells = QuadratureCells.cells_between_planes(
                self._kink_planes_of_metric(fields, "metric", "metric_places"), self.problem.dimension
            )
            scales = nonlinearity_arguments(self.problem, fields, "metric")
            resolved = cells if scales is None else cells.refine_until_smooth(scales)
            if resolved is not None:
                found.append(resolved)
        return found if len(found) == len(self.laws) else None

    def refine_rules_of_family(
        self, family: str, tolerance: float, equidistant: bool, most: float, relative: float
    ) -> tuple[float, float, MetricRule, float]:
        """Return value, error, rule and requested error by one family of rules, refined until that error is reached.

        Args:
            family: family of rules; the error is infinite if it does not apply to this metric.
            tolerance: absolute error requested.
            equidistant: whether to use equidistant nodes instead of Gauss-Hermite's.
            most: largest number of nodes.
            relative: relative error, added to the tolerance.
        """
        options = MetricQuadratureOptions.current()
        rule = metric_rule_of_family(self.problem, family, options.budget)
        if family == "cells":
            if self.resolving_cells is None:
                return np.nan, np.inf, rule, 0.0
            asked, absolute = min(10.0**-options.digits, relative or np.inf), tolerance or np.inf
            value, error, scale = self.average_by_cells(asked, absolute, min(most, options.max_cell_nodes))
            asked = min(asked, absolute / scale if scale > 0 else np.inf)
            rule = rule._replace(size=min(int(np.ceil(-np.log10(asked))), options.max_digits))
            return value, error, rule, tolerance + relative * scale
        values: list[float] = []
        error = np.inf
        for each, fine in _metric_rules_coarse_to_fine(
            rule, self.problem.dimension, most, self.panel_count if family == "product" else 1
        ):
            rule = each
            if family == "sobol":
                replicates = self.average_by_sobol_sets(rule.size)
                values.append(float(replicates.mean()))
                error = float(replicate_error_bar(replicates))
            else:
                values.append(self.average_by_product_rule(rule.size, equidistant))
                if len(values) > 2:
                    steps = [np.array(finer - coarser) for coarser, finer in pairwise(values[-4:])][::-1]
                    error = rule_sequence_error(steps, _LEAST_COUNTS[: len(steps)])
            if error < (exact := options.rounding * abs(values[-1])):
                error = exact
                break
            if fine and error <= tolerance + relative * abs(values[-1]):
                break
        value = values[-1] if values else np.nan
        if family == "product" and self.has_narrow_metric_features:
            error = max(error, self._sobol_discrepancy(value))
        return value, error, rule, tolerance + relative * abs(value)

    def average_by_rule(self, rule: MetricRule, equidistant: bool) -> float:
        """Return the average of the metric by a quadrature rule.

        Args:
            rule: quadrature rule of any family.
            equidistant: whether to use equidistant nodes instead of Gauss-Hermite's.
        """
        if rule.family == "sobol":
            return float(self.average_by_sobol_sets(rule.size).mean())
        if rule.family == "cells" and self.resolving_cells is not None:
            return self.average_by_cells(10.0**-rule.size, np.inf, MetricQuadratureOptions.current().max_cell_nodes)[0]
        return self.average_by_product_rule(rule.size, equidistant)

    def average_by_sobol_sets(self, size: int) -> np.ndarray:
        """Return the average of the metric over each Sobol set of 2^size nodes."""
        sets = (
            scrambled_sobol_nodes(self.problem, size, seed)
            for seed in range(MetricQuadratureOptions.current().sobol_sets)
        )
        return np.array([sum(p * self._sum_over_nodes(fields, [block]) for fields, p in self.laws) for block in sets])

    def average_by_product_rule(self, size: int, equidistant: bool) -> float:
        """Return the average of the metric by a product rule, on panels between the metric's kinks.

        Args:
            size: nodes per axis or panel.
            equidistant: whether to use equidistant nodes instead of Gauss-Hermite's.
        """
        steps = self.problem.solver.model.METRIC_IS_STEPS
        rules = (
            (fields, p, self._split_domain_at_kinks(fields).node_batches(size, equidistant, steps=steps))
            for fields, p in self.laws
        )
        return sum(p * self._sum_over_nodes(fields, blocks) for fields, p, blocks in rules)

    def average_by_cells(self, relative: float, absolute: float, most: float) -> tuple[float, float, float]:
        """Return average, error and scale of the metric by adaptive quadrature cells.

        Args:
            relative: relative error requested.
            absolute: absolute error requested.
            most: largest number of nodes.
        """
        assert self.resolving_cells is not None
        found = np.zeros(3)
        for cells, (fields, p) in zip(self.resolving_cells, self.laws, strict=True):
            found += p * np.array(
                cells.integrate_adaptively(partial(self._weighted_metric, fields), relative, absolute, most), float
            )
        value, error, scale = found.tolist()
        return value, error, scale

    def _sobol_discrepancy(self, value: float) -> float:
        """Return the significant difference of a value from the average over Sobol sets; 0 if not significant."""
        budget = MetricQuadratureOptions.current().budget
        replicates = self.average_by_sobol_sets(metric_rule_of_family(self.problem, "sobol", budget).size)
        away, width = abs(float(replicates.mean()) - value), float(replicate_error_bar(replicates))
        return away + width if not away <= 1.5 * width else 0.0

    def _split_domain_at_kinks(self, fields: FieldLaw) -> HyperplaneSplit:
        return HyperplaneSplit.split_on_planes(self._kink_planes_of_metric(fields, "metric"), self.problem.dimension)

    def _kink_planes_of_metric(self, fields: FieldLaw, *of: str) -> np.ndarray:
        """Return the kink planes in coordinates (z_Y, z_h, noise)."""
        rows = np.concatenate([self.problem.kink_planes(name, fields.constants) for name in of])
        return fields.planes_in_normal_coordinates(rows, self.problem.noise_scale)

    def _weighted_metric(self, fields: FieldLaw, nodes: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return weight times metric at every node."""
        out = np.zeros((len(nodes), 1))
        run_loop_in_threads(
            self._compiled_metric,
            len(nodes),
            len(nodes),
            *self._arguments_of_compiled_metric(fields, nodes, weights),
            out,
        )
        return out[:, 0]

    def _sum_over_nodes(self, fields: FieldLaw, blocks: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
        return sum(
            float(
                sum_loop_in_chunks(self._compiled_metric, 1, *self._arguments_of_compiled_metric(fields, *block)).sum()
            )
            for block in blocks
        )

    @property
    def _compiled_metric(self) -> Callable[..., None]:
        return self.problem.solver.metric_functions.test_error

    def _arguments_of_compiled_metric(
        self, fields: FieldLaw, nodes: np.ndarray, weights: np.ndarray
    ) -> tuple[Any, ...]:
        known = np.ascontiguousarray(nodes), np.ascontiguousarray(weights)
        return *known, *fields.sampling_loop_arguments, self.problem.noise_scale, fields.constants


def scrambled_sobol_nodes(problem: Problem, log2: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of a scrambled Sobol set in (z_Y, z_h, noise).

    Args:
        problem: the problem whose fields are integrated over.
        log2: logarithm of the number of nodes.
        seed: seed of the scrambling.
    """
    outer, inner = problem.tokens * problem.teacher_rank, problem.tokens * problem.student_rank
    groups = tuple(filter(None, (tuple(range(outer)), tuple(range(outer, outer + inner)))))
    nodes = sobol_normal_points(problem.dimension, log2, MetricQuadratureOptions.current().seed + seed, groups)
    return nodes, np.full(len(nodes), 1 / len(nodes))


def _metric_rules_coarse_to_fine(
    first: MetricRule, dimension: int, most: float, panels: int
) -> Iterator[tuple[MetricRule, bool]]:
    """Yield rules for the metric, coarse to fine, and whether each suffices if no error is requested.

    Product rules suffice from about the budget of nodes on; coarser ones come before and suffice for simple metrics.
    """
    size, options = first.size, MetricQuadratureOptions.current()
    if first.family == "sobol":
        last = int(np.log2(most / (4 * options.sobol_sets)))
        yield from ((first._replace(size=each), True) for each in range(size - 2, max(size, last) + 1))
        return
    sizes = [max(4, size * 9 // 16), max(5, size * 3 // 4), size]
    while (coarser := sizes[0] * 3 // 4) >= options.min_points:
        sizes.insert(0, coarser)
    for each in sizes:
        if panels > 1 and panels * each**dimension > most:
            return
        yield first._replace(size=each), each == size  # three of them give an error
    while True:
        size = max(size + 2, size * 4 // 3)
        if panels * size**dimension > max(options.budget, most) or size > options.max_points:
            return
        yield first._replace(size=size), True


@progress_step("test error")
def test_error(
    problem: Problem,
    overlaps: Overlaps,
    tolerance: float = np.inf,
    equidistant: bool = False,
    most: float | None = None,
    relative: float = 0.0,
) -> tuple[float, float, MetricRule | None]:
    """Return E metric(h, Y, k, u), an integration error and the rule used.

    The error is estimated from the differences of the last rules and their rate of convergence, or is two standard
    errors of the Sobol sets. nan, nan and None without a metric.

    Args:
        problem: the problem that the overlaps belong to.
        overlaps: overlaps of student and teacher.
        tolerance: the rule is refined until its error is no larger, or it would take more than `most` nodes.
        equidistant: whether to use equidistant nodes instead of Gauss-Hermite's, as a cross-check.
        most: largest number of nodes; by default that of `MetricQuadratureOptions`.
        relative: relative error, added to the tolerance.

    Raises:
        DomainError: the overlaps admit no law of the fields.
    """
    if not problem.solver.metric_functions.HAS_METRIC:
        return np.nan, np.nan, None
    metric, most = (
        _MetricIntegrand.metric_on_reduced_fields(problem, overlaps),
        MetricQuadratureOptions.current().max_nodes if most is None else most,
    )
    best: tuple[float, float, MetricRule | None] = np.nan, np.inf, None
    for family in metric.ordered_rule_families:
        value, error, rule, asked = metric.refine_rules_of_family(family, tolerance, equidistant, most, relative)
        if best[2] is None or error < best[1]:
            best = value, error, rule
        if error <= asked:
            break
    return best


@dataclass(frozen=True)
class Observable:
    """An observable that the overlaps of a problem determine: a test error, or a formula.

    Attributes:
        name: its column in tables.
        problem: the problem with the metric that is averaged.
    """

    name: str
    problem: Problem

    @property
    def observable_formula(self) -> ObservableFormula | None:
        """Return the formula of the observable; None for a test error."""
        return FORMULAS.get(self.name)

    def estimate_with_error(
        self,
        overlaps: Overlaps,
        tolerance: float = np.inf,
        equidistant: bool = False,
        relative: float = 0.0,
        most: float | None = None,
    ) -> tuple[float, float, MetricRule | None]:
        """Return value, integration error and quadrature rule of the observable.

        Args:
            overlaps: overlaps of student and teacher.
            tolerance: absolute error requested.
            equidistant: whether to use equidistant nodes, as a cross-check.
            relative: relative error, added to the tolerance.
            most: largest number of nodes; by default that of `MetricQuadratureOptions`.
        """
        if self.observable_formula is not None:
            value = self.observable_formula.value(self.problem, overlaps)
            return value, _ROUNDING * abs(value), None
        return test_error(self.problem, overlaps, tolerance, equidistant, most, relative)

    def rule_for_budget(self, overlaps: Overlaps, budget: float) -> MetricRule | None:
        """Return a quadrature rule with about `budget` nodes; None if the observable is a formula.

        Args:
            overlaps: overlaps of student and teacher.
            budget: number of nodes.
        """
        return None if self.observable_formula is not None else metric_rule_for_budget(self.problem, overlaps, budget)

    def value_by_rule(self, overlaps: Overlaps, rule: MetricRule | None, equidistant: bool = False) -> float:
        """Return the value of the observable by a given quadrature rule.

        Args:
            overlaps: overlaps of student and teacher.
            rule: quadrature rule as `estimate_with_error` or `rule_for_budget` return.
            equidistant: whether to use equidistant nodes, as a cross-check.

        Raises:
            DomainError: the overlaps admit no law of the fields.
        """
        if rule is None:
            return self.estimate_with_error(overlaps)[0]
        return average_metric_by_rule(self.problem, overlaps, rule, equidistant)


def all_observables_of_problem(problem: Problem) -> list[Observable]:
    """Return all observables of a problem: the test errors of its metrics, and formulas.

    A problem with another metric than its model's first has the test error of that one alone.
    """
    return problem.compute_once(_list_observables)


def observables_of_first_metric(problem: Problem) -> list[Observable]:
    """Return `all_observables_of_problem` without the test errors of further metrics."""
    return [each for each in all_observables_of_problem(problem) if not each.name.startswith(METRIC)]


def find_observable(problem: Problem, name: str) -> Observable:
    """Return the observable of `all_observables_of_problem` with a given name.

    Args:
        problem: the problem that the observable belongs to.
        name: name of its column in tables; the first metric may be given by its own name, too.
    """
    if name.startswith(METRIC):
        return Observable(name, problem.with_metric(name.removeprefix(METRIC)))
    return next(each for each in all_observables_of_problem(problem) if each.name == name)


def _list_observables(problem: Problem) -> list[Observable]:
    found = [Observable("test_error", problem)] if problem.solver.metric_functions.HAS_METRIC else []
    if problem.solver.base is None:
        found += [Observable(METRIC + name, problem.with_metric(name)) for name in problem.metric_names[1:]]
    return found + [Observable(name, problem) for name, known in FORMULAS.items() if known.is_defined(problem)]


def baseline_error(problem: Problem, points: int = 48) -> float:
    """Return the error of the best constant linear layer, B_0 of docs/theory.md (7.7); nan without a baseline.

    The model's baseline expression is quadratic in B, and is minimised through its averaged gradient and Hessian.

    Args:
        problem: the problem whose baseline it is.
        points: largest number of Gauss-Hermite nodes per axis.
    """
    if not problem.solver.metric_functions.HAS_BASELINE:
        return np.nan
    metric = problem.solver.metric_functions
    size = metric.BASELINE_SIZE
    error, gradient, hessian = 0.0, np.zeros(size), np.zeros((size, size))
    dimension = problem.tokens * problem.teacher_rank + len(problem.noise_scale)
    points = max(5, min(points, int(4e5 ** (1 / dimension))))
    for labels, probability in problem.label_choices:
        contexts = problem.context_indices(labels)
        factor = np.ascontiguousarray(np.linalg.cholesky(problem.law.rho_star[contexts]))
        mean = np.ascontiguousarray(problem.law.teacher_means[contexts])
        nodes, weights = tensor_product_rule([gauss_hermite(points)] * dimension)
        parts = metric.baseline_terms(nodes, weights, mean, factor, problem.noise_scale, problem.constants(labels))
        error += probability * parts[0]
        gradient += probability * parts[1]
        hessian += probability * parts[2]
    best = -np.linalg.solve(hessian, gradient)
    return float(error + gradient @ best / 2)


def free_entropy_at_overlaps(
    state_map: SaddlePointMap, overlaps: Overlaps, averages: SaddlePointAverages | None = None
) -> float:
    """Return Phi at any overlaps, with the conjugates that these overlaps determine.

    Args:
        state_map: the saddle-point map of the problem.
        overlaps: overlaps where Phi is evaluated.
        averages: channel averages at these overlaps; computed by default.
    """
    averages = averages or state_map.channel_averages(overlaps)
    hats = state_map.conjugates_at_overlaps(overlaps, averages.means)
    return free_entropy_and_losses(state_map.problem, overlaps, hats, averages).free_entropy
