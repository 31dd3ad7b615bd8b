"""Observables of a solution (docs/theory.md section 7): losses, test errors, formulas, linear baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..base.budget import is_in_overtime
from ..base.options import AlgorithmOptions
from ..base.progress import progress_step
from ..base.threads import run_loop_in_threads
from ..channel.fields import FieldLaw, field_law, overlaps_of_loss_fields
from ..channel.nodes import equal_weights, gauss_hermite, sobol_normal_points, tensor_product_rule
from ..device.loops import sum_over_nodes
from ..integration.cells import MAX_AXES, QuadratureCells, has_narrow_features, nonlinearity_arguments
from ..integration.estimates import error_bar_of_rule_sequence, replicate_error_bar
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
        budget: number of nodes of a rule if no accuracy is requested.
        max_nodes: number of nodes above which a rule is not refined.
        max_cell_nodes: number of nodes above which adaptive cells are not refined.
        max_panel_nodes: number of nodes of a product rule on panels above which Sobol sets are tried first.
        digits: decimal digits of adaptive cells if no accuracy is requested.
        max_digits: largest number of decimal digits of adaptive cells.
        sobol_sets: number of scrambled Sobol sets, whose spread gives the error bar.
        sobol_fraction: fraction of the requested error to which Sobol sets are refined; their nodes, without a proximal
            point, cost so little that the rest is left to the overlaps.
        seed: seed of the scrambling.
        max_product_axes: dimension above which product rules are not used.
        min_points: Gauss-Hermite nodes per axis in the coarsest rule.
        max_points: Gauss-Hermite nodes per axis in the finest rule.
        rounding: smallest relative error of a sum over many nodes.
    """

    budget: float = 1.5e5
    max_nodes: float = 4e7
    max_cell_nodes: float = 4e6
    max_panel_nodes: float = 5e5
    digits: int = 7
    max_digits: int = 13
    sobol_sets: int = 16
    sobol_fraction: float = 0.5
    seed: int = 4242
    max_product_axes: int = 6
    min_points: int = 16
    max_points: int = 180
    rounding: float = 1e-12


@dataclass(frozen=True)
class Losses:
    """The free entropy and the two parts of the training loss, per d.

    At the saddle point free_entropy = -(data + penalty); the difference measures how well the equations are solved.

    Attributes:
        free_entropy: free entropy Phi.
        data: training loss of the samples.
        penalty: training loss of the regulariser.
        rounding: rounding error of the free entropy, a small sum of larger terms.
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
        """Return the training loss from the free entropy minus the sum of its two parts: 0 at an exact saddle point."""
        return self.training_loss - (self.data + self.penalty)


def free_entropy_and_losses(
    problem: Problem, overlaps: Overlaps, hats: Conjugates, averages: SaddlePointAverages
) -> Losses:
    """Return the free entropy and the two parts of the training loss, averaged over replicates of the quadrature rule.

    At a finite temperature these are the free entropy over the inverse temperature, and the parts of the energy.

    Args:
        problem: the problem that the overlaps belong to.
        overlaps: overlaps of student and teacher.
        hats: conjugates q^, V^, m^ and theta^ at these overlaps.
        averages: channel averages at these overlaps.
    """
    trace, entropic, penalty = problem.prior_map_at_parameters("free_entropy")(*overlaps.blocks, *hats.blocks)
    moreau, loss = float(averages.moreau.mean()), float(averages.loss.mean())
    own = sum(number["ridge"] * phi**2 / 2 for number, phi in zip(problem.trained, overlaps.phi, strict=True))
    terms = trace, entropic, -own, -problem.alpha * moreau
    rounding = _ROUNDING * sum(abs(term) for term in terms)
    return Losses(sum(terms), problem.alpha * loss, penalty + own, rounding)


class MetricRule(NamedTuple):
    """A quadrature rule for a test error: the average of a metric over the fields.

    Attributes:
        family: "product" (Gauss-Hermite), "cells" (adaptively halved) or "sobol" (mean of scrambled Sobol sets).
        size: nodes per axis (or per panel between kinks) of a product rule, decimal digits of cells, or log2 of the
            number of nodes of a Sobol set.
    """

    family: str
    size: int

    @property
    def coarser_rule(self) -> MetricRule:
        """Return a quadrature rule of the same family with fewer nodes."""
        less = {"product": max(4, self.size * 3 // 4), "cells": self.size - 3, "sobol": self.size - 2}
        return self._replace(size=less[self.family])


def metric_rule_of_family(problem: Problem, family: str, budget: float) -> MetricRule:
    """Return the quadrature rule of a family, for a test error, with about `budget` nodes.

    Args:
        problem: the problem whose metric is averaged.
        family: "product", "cells" (whose accuracy does not depend on the budget) or "sobol".
        budget: number of nodes (of a product rule: per panel).
    """
    options = MetricQuadratureOptions.current()
    dimension = max(1, reduce_to_fields_of_metric(problem).dimension)
    sizes = {
        "product": max(6, min(64, round(budget ** (1 / dimension)))),
        "cells": options.digits,
        "sobol": max(6, int(np.log2(budget / options.sobol_sets))),
    }
    return MetricRule(family, sizes[family])


def metric_rule_with_node_budget(problem: Problem, overlaps: Overlaps, budget: float) -> MetricRule:
    """Return a quadrature rule with about `budget` nodes for a test error; finer if the metric varies fast.

    Args:
        problem: the problem that the overlaps belong to.
        overlaps: overlaps of student and teacher.
        budget: number of nodes (of a product rule: per panel).

    Raises:
        DomainError: no Gaussian distribution of the fields has these overlaps.
    """
    return metric_rule_of_family(
        problem, _MetricIntegrand.metric_integrand_of_reduced_fields(problem, overlaps).rule_family_for_metric, budget
    )


def average_metric_by_quadrature(
    problem: Problem, overlaps: Overlaps, rule: MetricRule, equidistant: bool = False
) -> float:
    """Return the test error, the average of the metric over the fields, by a given quadrature rule.

    Args:
        problem: the problem that the overlaps belong to.
        overlaps: overlaps of student and teacher.
        rule: quadrature rule as `test_error` or `metric_rule_with_node_budget` return.
        equidistant: whether to use equidistant nodes instead of Gauss-Hermite's.

    Raises:
        DomainError: no Gaussian distribution of the fields has these overlaps.
    """
    return _MetricIntegrand.metric_integrand_of_reduced_fields(problem, overlaps).metric_average_by_rule(
        rule, equidistant
    )


@dataclass(frozen=True)
class _MetricIntegrand:
    """The metric as an integrand over the fields on which it depends.

    Attributes:
        problem: the problem, reduced to these fields.
        laws: Gaussian distribution of the fields and probability of every assignment of labels.
    """

    problem: Problem
    laws: tuple[tuple[FieldLaw, float], ...]

    @classmethod
    def metric_integrand_of_reduced_fields(cls, problem: Problem, overlaps: Overlaps) -> _MetricIntegrand:
        """Return the integrand of the test error over the combinations of fields on which the metric depends.

        Args:
            problem: the full problem.
            overlaps: overlaps of its fields.
        """
        part = reduce_to_fields_of_metric(problem)
        return cls.metric_integrand_of_all_fields(part, overlaps_of_loss_fields(part, overlaps))

    @classmethod
    def metric_integrand_of_all_fields(cls, problem: Problem, overlaps: Overlaps) -> _MetricIntegrand:
        """Return the integrand of the test error over all fields of a problem.

        Args:
            problem: the problem, full or reduced to some fields.
            overlaps: overlaps of its fields.
        """
        return cls(
            problem,
            tuple((field_law(problem, overlaps, labels), p) for labels, p in problem.label_probabilities),
        )

    @cached_property
    def rule_family_for_metric(self) -> str:
        """Return the name of the family of quadrature rules that resolves kinks and narrow features of the metric."""
        if (
            self.problem.dimension > MetricQuadratureOptions.current().max_product_axes
            or self.problem.solver.model.CURVED["metric"]
        ):
            return "sobol"
        if not self.has_narrow_metric_features or self.problem.dimension > MAX_AXES:
            return "product"
        return "sobol" if self.cells_resolving_metric is None else "cells"

    @cached_property
    def has_narrow_metric_features(self) -> bool:
        """Return whether the metric varies faster than the nodes of a product rule resolve."""
        scales = (nonlinearity_arguments(self.problem, fields, "metric") for fields, _ in self.laws)
        return any(has_narrow_features(each, self.problem.dimension) for each in scales)

    @property
    def rule_families_in_trial_order(self) -> tuple[str, ...]:
        """Return the names of the families of quadrature rules in the order in which they are tried."""
        if self.rule_family_for_metric == "product" and self.problem.dimension > MAX_AXES:
            return (
                ("sobol", "product")
                if self.quadrature_panel_count > 1
                else ("product", *["sobol"] * self.has_narrow_metric_features)
            )
        if self.rule_family_for_metric == "product":
            return "product", "cells"
        return ("cells", "sobol") if self.rule_family_for_metric == "cells" else ("sobol",)

    @cached_property
    def panel_count(self) -> int:
        """Return the number of panels between kinks of the metric, for all assignments of labels."""
        splits = (self._split_domain_at_kinks(fields) for fields, _ in self.laws)
        return sum(len(nodes) for split in splits for nodes, _ in split.node_batches(1))

    @property
    def quadrature_panel_count(self) -> int:
        """Return the number of panels if a product rule on them, in many dimensions, is expensive; else 1."""
        options, dimension = MetricQuadratureOptions.current(), self.problem.dimension
        if dimension <= MAX_AXES:
            return 1
        size = metric_rule_of_family(self.problem, "product", options.budget).size
        return self.panel_count if self.panel_count * float(size) ** dimension > options.max_panel_nodes else 1

    @cached_property
    def cells_resolving_metric(self) -> list[QuadratureCells] | None:
        """Return quadrature cells that resolve the metric, for every assignment of labels; None if too many."""
        found: list[QuadratureCells] = []
        for fields, _ in self.laws if self.problem.dimension <= MAX_AXES else ():
            cells = QuadratureCells.cells_between_planes(
                self._kink_hyperplanes_of_metric(fields, "metric", "metric_places"), self.problem.dimension
            )
            scales = nonlinearity_arguments(self.problem, fields, "metric")
            resolved = cells if scales is None else cells.refine_until_smooth(scales)
            if resolved is not None:
                found.append(resolved)
        return found if len(found) == len(self.laws) else None

    def estimate_by_rule_family(
        self, family: str, tolerance: float, equidistant: bool, most: float, relative: float
    ) -> tuple[float, float, MetricRule, float]:
        """Return value, error, rule and requested error of the test error by one family of rules, refined as needed.

        Args:
            family: name of the family of rules; the error is infinite if it does not apply to this metric.
            tolerance: absolute error requested.
            equidistant: whether to use equidistant nodes instead of Gauss-Hermite's.
            most: largest number of nodes.
            relative: relative error requested, added to the tolerance.
        """
        options = MetricQuadratureOptions.current()
        per_panel = family == "product" and self.problem.dimension == MAX_AXES
        rule = metric_rule_of_family(self.problem, family, options.budget / (self.panel_count if per_panel else 1))
        if family == "cells":
            if self.cells_resolving_metric is None:
                return np.nan, np.inf, rule, 0.0
            asked, absolute = min(10.0**-options.digits, relative or np.inf), tolerance or np.inf
            value, error, scale = self.metric_average_by_cells(asked, absolute, min(most, options.max_cell_nodes))
            asked = min(asked, absolute / scale if scale > 0 else np.inf)
            rule = rule._replace(size=min(int(np.ceil(-np.log10(asked))), options.max_digits))
            return value, error, rule, tolerance + relative * scale
        values: list[float] = []
        error = np.inf
        for each, fine in _metric_rules_coarse_to_fine(
            rule, self.problem.dimension, most, self.quadrature_panel_count if family == "product" else 1
        ):
            rule = each
            if family == "sobol":
                replicates = self.metric_average_by_sobol_sets(rule.size)
                values.append(float(replicates.mean()))
                error = float(replicate_error_bar(replicates))
            else:
                values.append(self.average_metric_by_product_quadrature(rule.size, equidistant))
                if len(values) > 2:
                    steps = [np.array(finer - coarser) for coarser, finer in pairwise(values[-4:])][::-1]
                    error = error_bar_of_rule_sequence(steps, _LEAST_COUNTS[: len(steps)])
            if error < (exact := options.rounding * abs(values[-1])):
                error = exact
                break
            asked = tolerance + relative * abs(values[-1])
            if fine and error <= (options.sobol_fraction * asked if family == "sobol" else asked):
                break
            if np.isfinite(error) and is_in_overtime():
                break  # the error bar says how far it is known
        value = values[-1] if values else np.nan
        if family == "product" and self.has_narrow_metric_features:
            error = max(error, self._sobol_discrepancy(value))
        return value, error, rule, tolerance + relative * abs(value)

    def metric_average_by_rule(self, rule: MetricRule, equidistant: bool) -> float:
        """Return the average of the metric by a quadrature rule.

        Args:
            rule: quadrature rule of any family.
            equidistant: whether to use equidistant nodes instead of Gauss-Hermite's.
        """
        if rule.family == "sobol":
            return float(self.metric_average_by_sobol_sets(rule.size).mean())
        if rule.family == "cells" and self.cells_resolving_metric is not None:
            return self.metric_average_by_cells(
                10.0**-rule.size, np.inf, MetricQuadratureOptions.current().max_cell_nodes
            )[0]
        return self.average_metric_by_product_quadrature(rule.size, equidistant)

    def metric_average_by_sobol_sets(self, size: int) -> np.ndarray:
        """Return the average of the metric over each of several Sobol sets of 2^size nodes."""
        sets = (
            scrambled_sobol_nodes(self.problem, size, seed)
            for seed in range(MetricQuadratureOptions.current().sobol_sets)
        )
        return np.array([sum(p * self._sum_over_nodes(fields, [block]) for fields, p in self.laws) for block in sets])

    def average_metric_by_product_quadrature(self, size: int, equidistant: bool) -> float:
        """Return the average of the metric by a product rule on the panels between its kinks.

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

    def metric_average_by_cells(self, relative: float, absolute: float, most: float) -> tuple[float, float, float]:
        """Return the average of the metric, its error, and the average of its absolute value, by adaptive cells.

        Args:
            relative: relative error requested.
            absolute: absolute error requested.
            most: largest number of nodes.
        """
        assert self.cells_resolving_metric is not None
        found = np.zeros(3)
        for cells, (fields, p) in zip(self.cells_resolving_metric, self.laws, strict=True):
            found += p * np.array(
                cells.integrate_adaptively(partial(self._weighted_metric, fields), relative, absolute, most), float
            )
        value, error, scale = found.tolist()
        return value, error, scale

    def _sobol_discrepancy(self, value: float) -> float:
        """Return how far a test error is from its average over Sobol sets, if that is significant; otherwise 0."""
        budget = MetricQuadratureOptions.current().budget
        replicates = self.metric_average_by_sobol_sets(metric_rule_of_family(self.problem, "sobol", budget).size)
        away, width = abs(float(replicates.mean()) - value), float(replicate_error_bar(replicates))
        return away + width if not away <= 1.5 * width else 0.0

    def _split_domain_at_kinks(self, fields: FieldLaw) -> HyperplaneSplit:
        return HyperplaneSplit.split_on_planes(
            self._kink_hyperplanes_of_metric(fields, "metric"), self.problem.dimension
        )

    def _kink_hyperplanes_of_metric(self, fields: FieldLaw, *of: str) -> np.ndarray:
        """Return the hyperplanes of the metric's kinks in the normal variables that are integrated over."""
        rows = np.concatenate([self.problem.kink_planes(name, fields.constants) for name in of])
        return fields.planes_in_normal_coordinates(rows, self.problem.noise_scale)

    def _weighted_metric(self, fields: FieldLaw, nodes: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return quadrature weight times metric at every node."""
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
            float(sum_over_nodes(self._compiled_metric, 1, *self._arguments_of_compiled_metric(fields, *block)).sum())
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
    """Return nodes and weights of a scrambled Sobol set in the normal variables of teacher fields, fields and noise.

    Args:
        problem: the problem whose fields are integrated over.
        log2: base-2 logarithm of the number of nodes.
        seed: seed of the scrambling.
    """
    nodes = sobol_normal_points(problem.dimension, log2, MetricQuadratureOptions.current().seed + seed, ())
    return nodes, equal_weights(len(nodes))


def _metric_rules_coarse_to_fine(
    first: MetricRule, dimension: int, most: float, panels: int
) -> Iterator[tuple[MetricRule, bool]]:
    """Yield quadrature rules for a test error from coarse to fine, each with whether it suffices without an accuracy.

    If no accuracy is requested a product rule suffices from about the default number of nodes on; coarser rules only
    serve to estimate errors, and to reach a requested accuracy for simple metrics.
    """
    size, options = first.size, MetricQuadratureOptions.current()
    if first.family == "sobol":
        last = int(np.log2(most / options.sobol_sets))
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
    """Return the test error (average of the metric over the fields), its integration error and the quadrature rule.

    The error is estimated from the convergence of the last rules, or is two standard errors of the Sobol sets. Without
    a metric nan, nan and None are returned.

    Args:
        problem: the problem that the overlaps belong to.
        overlaps: overlaps of student and teacher.
        tolerance: absolute error to which the rule is refined, as far as `most` nodes allow.
        equidistant: whether to use equidistant nodes instead of Gauss-Hermite's, as a cross-check.
        most: largest number of nodes; by default that of `MetricQuadratureOptions`.
        relative: relative error requested, added to the tolerance.

    Raises:
        DomainError: no Gaussian distribution of the fields has these overlaps.
    """
    if not problem.solver.metric_functions.HAS_METRIC:
        return np.nan, np.nan, None
    metric, most = (
        _MetricIntegrand.metric_integrand_of_reduced_fields(problem, overlaps),
        MetricQuadratureOptions.current().max_nodes if most is None else most,
    )
    best: tuple[float, float, MetricRule | None] = np.nan, np.inf, None
    for family in metric.rule_families_in_trial_order:
        value, error, rule, asked = metric.estimate_by_rule_family(family, tolerance, equidistant, most, relative)
        if best[2] is None or error < best[1]:
            best = value, error, rule
        if error <= asked:
            break
    return best


@dataclass(frozen=True)
class Observable:
    """A quantity that the overlaps of a problem determine: a test error, or one with a formula (such as q).

    Attributes:
        name: name of its column in tables.
        problem: the problem, with the metric that is averaged.
    """

    name: str
    problem: Problem

    @property
    def observable_formula(self) -> ObservableFormula | None:
        """Return the function that computes the observable from overlaps; None for a test error."""
        return FORMULAS.get(self.name)

    def estimate_with_error(
        self,
        overlaps: Overlaps,
        tolerance: float = np.inf,
        equidistant: bool = False,
        relative: float = 0.0,
        most: float | None = None,
    ) -> tuple[float, float, MetricRule | None]:
        """Return the observable at given overlaps, its integration error and the quadrature rule.

        Args:
            overlaps: overlaps of student and teacher.
            tolerance: absolute error requested.
            equidistant: whether to use equidistant nodes, as a cross-check.
            relative: relative error requested, added to the tolerance.
            most: largest number of nodes; by default that of `MetricQuadratureOptions`.
        """
        if self.observable_formula is not None:
            value = self.observable_formula.value(self.problem, overlaps)
            return value, _ROUNDING * abs(value), None
        return test_error(self.problem, overlaps, tolerance, equidistant, most, relative)

    def rule_with_node_budget(self, overlaps: Overlaps, budget: float) -> MetricRule | None:
        """Return a quadrature rule with about `budget` nodes for the observable; None if it has a formula.

        Args:
            overlaps: overlaps of student and teacher.
            budget: number of nodes.
        """
        return (
            None
            if self.observable_formula is not None
            else metric_rule_with_node_budget(self.problem, overlaps, budget)
        )

    def value_by_quadrature_rule(self, overlaps: Overlaps, rule: MetricRule | None, equidistant: bool = False) -> float:
        """Return the observable at given overlaps by a given quadrature rule.

        Args:
            overlaps: overlaps of student and teacher.
            rule: quadrature rule as `estimate_with_error` or `rule_with_node_budget` return.
            equidistant: whether to use equidistant nodes, as a cross-check.

        Raises:
            DomainError: no Gaussian distribution of the fields has these overlaps.
        """
        if rule is None:
            return self.estimate_with_error(overlaps)[0]
        return average_metric_by_quadrature(self.problem, overlaps, rule, equidistant)


def all_observables_of_problem(problem: Problem) -> list[Observable]:
    """Return all observables of a problem: test errors of its metrics, and quantities with formulas.

    If another metric than the first of the model was chosen, only its test error is listed.
    """
    return problem.cached_result_of(_list_observables)


def observables_without_extra_metrics(problem: Problem) -> list[Observable]:
    """Return the observables of a problem without the test errors of metrics after the first."""
    return [each for each in all_observables_of_problem(problem) if not each.name.startswith(METRIC)]


def find_observable(problem: Problem, name: str) -> Observable:
    """Return the observable of a problem with a given name.

    Args:
        problem: the problem that the observable belongs to.
        name: name of the column in tables; or, for the first metric, the name of the metric.
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
    """Return the test error of the best constant linear layer B, docs/theory.md (7.7); nan without a baseline.

    The error is quadratic in B, and is minimised by its averaged gradient and Hessian.

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
    for labels, probability in problem.label_probabilities:
        contexts = problem.token_cluster_indices(labels)
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
    """Return the free entropy at any overlaps, with the conjugates that these overlaps determine.

    Args:
        state_map: the saddle-point map of the problem.
        overlaps: overlaps at which the free entropy is evaluated.
        averages: channel averages at these overlaps; computed by default.
    """
    averages = averages or state_map.channel_averages(overlaps)
    hats = state_map.conjugates_at_overlaps(overlaps, averages.means)
    return free_entropy_and_losses(state_map.problem, overlaps, hats, averages).free_entropy
