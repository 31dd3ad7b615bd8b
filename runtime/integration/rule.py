"""The interface of integration rules, and the averages that they return."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, Self

import numpy as np

from ..channel.fields import channel_overlaps
from ..problems.overlaps import Overlaps, UnitOverlaps
from ..problems.problem import Problem
from ..problems.reduced import ReducedProblem, reduce_to_fields_of_loss

Labels = tuple[int, ...]
"""The label of every token."""


@dataclass(frozen=True)
class SaddlePointAverages:
    """The channel averages in the saddle-point equations, for each replicate (R = 1 for deterministic rules).

    Attributes:
        moments: averages E_c[.] of the generated MOMENTS, (R, C, row), label probabilities included.
        moreau, loss: E[M] and E[loss(X_prox)], (R,).
        bistable: probability that a second minimum was found (prox-space: weight of the saddles).
        gap: average gap to the second minimum, zero where there is none (nan if the rule does not compute it).
        unconverged: fraction of nodes whose proximal iteration did not converge.
        mass: total weight, 1 for an exact rule.
    """

    moments: np.ndarray
    moreau: np.ndarray
    loss: np.ndarray
    bistable: float
    gap: float
    unconverged: float
    mass: float

    @property
    def means(self) -> np.ndarray:
        """The mean of the moments over replicates, (C, row)."""
        return self.moments[0] if len(self.moments) == 1 else self.moments.mean(axis=0)


@dataclass(frozen=True)
class JacobianAverages:
    """The averages E[G_ll] and E[G_ll' (x) G_ll'] of the field's Jacobian G = dg/domega.

    G is taken where the proximal map is smooth (docs/theory.md (8.1)). Shapes are (R, labels, L, s, s) and
    (R, labels, L, L, s, s, s, s): one unweighted entry per replicate and label assignment.
    """

    slope: np.ndarray
    square: np.ndarray


def moments_by_context(problem: Problem, rows: Sequence[np.ndarray], row: int) -> np.ndarray:
    """Return the moments of every (token, cluster) pair, (C, row, ...), averaged over label assignments.

    Args:
        problem: problem that gives labels and their probabilities.
        rows: moments of all tokens, (L row, ...), one array per label assignment.
        row: number of moments of one token.
    """
    if len(rows) == 1 and problem.clusters == 1:
        (_, probability), (values,) = problem.label_choices[0], rows
        return probability * values[: problem.tokens * row].reshape(problem.tokens, row, *values.shape[1:])
    moments = np.zeros((problem.contexts, row, *rows[0].shape[1:]))
    for (labels, probability), values in zip(problem.label_choices, rows, strict=True):
        moments[problem.context_indices(labels)] += probability * values[: problem.tokens * row].reshape(
            -1, *moments.shape[1:]
        )
    return moments


def moments_of_full_problem(part: ReducedProblem, overlaps: Overlaps, moments: np.ndarray) -> np.ndarray:
    """Return the moments (..., C, row) of a problem from the moments (..., N, row) of its reduced problem.

    Args:
        part: reduced problem, over the linear combinations of fields that the loss depends on.
        overlaps: overlaps of the full problem.
        moments: moments of the reduced problem.
    """
    return part.maps_of_averages_to_tokens.token_averages_from_combinations(
        moments, part.maps_of_overlaps_to_combinations.regression_coefficients_at(overlaps.pack())
    )


class Rule:
    """An integration rule for the channel, one of a family from coarse to fine.

    A new rule is a subclass in a separate file: `_integrate_averages`, `_integrate_jacobians` and
    `_integrate_moment_derivatives` integrate over the fields of the problem that they get, the methods up to
    `coarser_rule` define the family, and the others describe its properties wherever the default does not hold.

    Attributes:
        name: name on the command line; least_points, most_points: limits of `--points`; unit: unit of `--points`.
        replicated: whether it has replicates whose spread is its error (`replicates`, `with_seed`).
        in_x: whether its nodes lie in X, where no proximal map is needed and jumps are known.
        is_nonadaptive: whether its nodes are chosen without regard to kinks and jumps of the integrand.
        splits_jumps: whether it searches the fields for jumps of the proximal map: an independent check of nodes in X.
        resolves_squares: whether its nodes resolve (dg/domega)^2 next to cusps.
        at_temperature: whether it averages over the Boltzmann law of the fields, too.
    """

    name: str
    least_points: ClassVar[int] = 4
    most_points: ClassVar[int]
    unit: ClassVar[str] = "nodes an axis"
    replicated: ClassVar[bool] = False
    in_x: ClassVar[bool] = False
    is_nonadaptive: ClassVar[bool] = False
    splits_jumps: ClassVar[bool] = False
    resolves_squares: ClassVar[bool] = False
    at_temperature: ClassVar[bool] = False

    @classmethod
    def rule_of_size(cls, points: int | None, seed: int) -> Self:
        """Return the rule of a size given on the command line.

        Args:
            points: size given by `--points`; None for the default.
            seed: seed given by `--seed`; a rule without replicates ignores it.
        """
        raise NotImplementedError

    def rule_description(self) -> dict[str, Any]:
        """Return the rule's name, points and seed as in JSON output."""
        raise NotImplementedError

    @property
    def size_in_words(self) -> str:
        """The size of the rule in words."""
        points = self.rule_description()["points"]
        return " x ".join(str(n) for n in points) + " nodes" if isinstance(points, list) else f"{points} points"

    def averages(self, problem: Problem, overlaps: Overlaps) -> SaddlePointAverages:
        """Return the channel averages at the overlaps.

        Args:
            problem: problem whose fields are integrated over.
            overlaps: state at which they are taken.

        Raises:
            DomainError: overlaps outside their domain.
        """
        part = reduce_to_fields_of_loss(problem)
        if not isinstance(part, ReducedProblem):
            return self._integrate_averages(problem, overlaps)
        found = self._integrate_averages(part, channel_overlaps(part, overlaps))
        return replace(found, moments=moments_of_full_problem(part, overlaps, found.moments))

    def jacobian_averages(self, problem: Problem, overlaps: Overlaps) -> JacobianAverages:
        """Return the averages of the field's Jacobian, for the replicon.

        Args:
            problem: problem whose fields are integrated over.
            overlaps: state at which they are taken.
        """
        part = reduce_to_fields_of_loss(problem)
        if not isinstance(part, ReducedProblem):
            return self._integrate_jacobians(problem, overlaps)
        found = self._integrate_jacobians(part, channel_overlaps(part, overlaps))
        return JacobianAverages(
            part.combinations.mean_token_jacobians(found.slope),
            part.combinations.mean_token_jacobian_products(found.square),
        )

    def moment_derivatives(self, problem: Problem, overlaps: Overlaps, jumps: bool = False) -> np.ndarray:
        """Return derivatives of the channel averages in the packed overlaps, (C, row, n), by generated formulas.

        The formulas hold if the loss contains neither q nor trained numbers.

        Args:
            problem: problem whose fields are integrated over.
            overlaps: state at which they are taken.
            jumps: whether to include the contribution of jumps of the proximal map (`can_include_jump_derivatives`).
        """
        part = reduce_to_fields_of_loss(problem)
        if not isinstance(part, ReducedProblem):
            return self._integrate_moment_derivatives(problem, overlaps, jumps)
        there = channel_overlaps(part, overlaps)
        slopes = (
            self._integrate_moment_derivatives(part, there, jumps) @ part.maps_of_overlaps_to_combinations.overlaps[0]
        )
        moments = self._integrate_averages(part, there).means
        moved = moments_of_full_problem(part, overlaps, np.moveaxis(slopes, -1, 0))
        changes = part.combinations.regression_coefficient_derivatives(
            overlaps, UnitOverlaps.from_sizes(overlaps.sizes)
        )
        turned = part.maps_of_averages_to_tokens.token_averages_from_combinations(
            np.broadcast_to(moments, (len(changes), *moments.shape)), changes
        )
        layout = {text: slice(at, at + int(np.prod(shape))) for text, shape, at in problem.solver.channel.MOMENTS}
        for text in ("g*dY.T", "g*domega.T"):
            moved[..., layout[text]] += turned[..., layout[text]]
        return np.moveaxis(moved, 0, -1)

    def _integrate_averages(self, problem: Problem, overlaps: Overlaps) -> SaddlePointAverages:
        """Return the averages over all fields of the problem and over the assignments of labels."""
        row, cut = problem.solver.channel.ROW, problem.tokens * problem.solver.channel.ROW
        found = [self._averages_given_labels(problem, overlaps, labels) for labels, _ in problem.label_choices]
        totals = np.zeros_like(found[0][:, cut:])
        for (_, probability), sums in zip(problem.label_choices, found, strict=True):
            totals += probability * sums[:, cut:]
        moments = np.array([moments_by_context(problem, rows, row) for rows in zip(*found, strict=True)])
        moreau, loss, *rest = totals.T
        return SaddlePointAverages(moments, moreau, loss, *(float(column.sum()) / len(totals) for column in rest))

    def _averages_given_labels(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> np.ndarray:
        """Return the averages over the fields given the labels: the moments of all tokens, then all other averages.

        The order is that of the fields of `SaddlePointAverages`; there is one row per replicate.
        """
        raise NotImplementedError

    def _integrate_jacobians(self, problem: Problem, overlaps: Overlaps) -> JacobianAverages:
        """Return the averages of the field's Jacobian over all fields of the problem, for all label assignments."""
        found = [self._jacobian_averages_given_labels(problem, overlaps, labels) for labels, _ in problem.label_choices]
        return JacobianAverages(*(np.stack(each, axis=1) for each in zip(*found, strict=True)))

    def _jacobian_averages_given_labels(
        self, problem: Problem, overlaps: Overlaps, labels: Labels
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the averages of the field's Jacobian given the labels, E[G_ll] and E[G_ll' (x) G_ll']."""
        raise NotImplementedError

    def _integrate_moment_derivatives(self, problem: Problem, overlaps: Overlaps, jumps: bool) -> np.ndarray:
        """Return the derivatives of the moments in the packed overlaps, averaged over the assignments of labels."""
        units = UnitOverlaps.from_sizes(overlaps.sizes)
        parts = [
            self._moment_derivatives_given_labels(problem, overlaps, labels, units, jumps)
            for labels, _ in problem.label_choices
        ]
        return moments_by_context(problem, parts, problem.solver.channel.ROW)

    def _moment_derivatives_given_labels(
        self, problem: Problem, overlaps: Overlaps, labels: Labels, units: UnitOverlaps, jumps: bool
    ) -> np.ndarray:
        """Return the derivatives of the moments in the packed overlaps given the labels, (L row, n)."""
        raise NotImplementedError

    def finer_rule(self) -> Self:
        """Return the next finer rule of the same family, from which the error is estimated."""
        raise NotImplementedError

    def coarser_rule(self) -> Self:
        """Return the next coarser rule of the same family, from which the rate of convergence is estimated."""
        raise NotImplementedError

    @property
    def replicates(self) -> tuple[Self, ...]:
        """The rules of the single replicates; the rule itself if it has no replicates."""
        return (self,)

    def with_seed(self, seed: int) -> Self:
        """Return the rule with replicates of another seed; the rule itself if it has no replicates."""
        return self

    @property
    def can_include_jump_derivatives(self) -> bool:
        """Return whether derivatives of the moments can include the contribution of jumps of the proximal map."""
        return False

    def node_count(self, problem: Problem) -> float:
        """Return the approximate number of nodes."""
        raise NotImplementedError

    def evaluation_cost(self, problem: Problem) -> float:
        """Return the approximate cost of an evaluation in nodes of a grid in X; a proximal point costs a hundred."""
        return 1e2 * self.node_count(problem)

    def comparison_rules(self) -> tuple[Self, ...]:
        """Return the rules that this rule is compared with in addition to the next finer one, to estimate its error.

        These are the two next coarser rules by default.
        """
        return self.coarser_rule(), self.coarser_rule().coarser_rule()

    def has_convergence_rate(self, bistable: float) -> bool:
        """Return whether errors fall by a constant rate from one rule of the family to the next.

        Differences between rules then determine the error; else each difference is as good as another.

        Args:
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return not self.is_nonadaptive or bistable <= NEGLIGIBLE_JUMPS

    def minimum_difference_factors(
        self, steps: Sequence[np.ndarray], averages: Sequence[SaddlePointAverages], derivative: bool
    ) -> tuple[float, ...]:
        """Return the minimum factors of the differences to other rules in an error bar.

        Args:
            steps: differences to the finer rule and to those of `comparison_rules`, in units of the quantity.
            averages: averages by this rule, then by the other rules in the same order.
            derivative: whether the quantity contains derivatives of the averages; these depend on the surface on which
                the proximal map jumps, while the averages depend on the volume that it encloses.
        """
        return (0.0 if self.has_convergence_rate(largest_bistable_fraction(averages)) else DIFFERENCE_SAFETY,) * len(
            steps
        )

    @classmethod
    def rules_coarse_to_fine(cls, problem: Problem) -> Sequence[Self]:
        """Return the rules of the family through which a problem is solved, coarse to fine; empty if unsupported."""
        return ()

    def finer_rules(self, problem: Problem) -> Sequence[Self]:
        """Return the finer rules of the family, up to the finest one used in solving."""
        sizes, own = self.rules_coarse_to_fine(problem), self.rule_description()["points"]
        finer = [size for size in sizes if size.rule_description()["points"] > own]
        return finer if sizes else [self.finer_rule(), self.finer_rule().finer_rule()]

    def trial_order(self, problem: Problem) -> float:
        """Return the position of the rule in the order in which the integrator `auto` tries rules.

        Successive sizes of one family share a position; infinity means that the rule is not tried.
        """
        return inf

    def rule_for_accuracy(self, accuracy: float) -> Self:
        """Return the rule whose neglected terms are small enough for an accuracy of the overlaps."""
        return self

    def rules_for_field_jacobian(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """Return the rules for averages of the field's Jacobian (replicon, jump weight), which need few digits.

        Args:
            problem: problem whose fields are integrated over.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return self, self.finer_rule()

    def rule_for_training_loss(self, bistable: float) -> Self:
        """Return the rule for an accurate training loss.

        Args:
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return self

    def rule_for_numerical_jacobian(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Return the rule and the step for a numerical Jacobian of the saddle-point map by finite differences.

        Sampled maps jump where the minimum of a node changes, and need steps so wide that many nodes change.

        Args:
            problem: problem whose map is differentiated.
            sample: rule to use in place of a replicated rule.

        Returns:
            The rule, the step in block scales (None for wide steps), whether one-sided differences suffice.
        """
        return self, 1e-4, False

    @classmethod
    def cross_check_rules(cls, problem: Problem, bistable: float) -> tuple[Self, ...]:
        """Return the rules for a cross-check of another family's averages, coarse to fine; empty if not applicable.

        The difference of the last two shows their error.

        Args:
            problem: problem whose fields are integrated over.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return ()

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return whether this family can independently check a solution by another family."""
        return False

    def predict_refinement_steps(self, error: float, accuracy: float) -> int:
        """Return by how many sizes to refine the rule next; 1 where errors are hard to predict.

        Args:
            error: error of this rule.
            accuracy: requested accuracy.
        """
        return 1

    def predict_node_count(self, problem: Problem, error: float, accuracy: float, bistable: float) -> float:
        """Return the approximate number of nodes with which the family reaches an accuracy.

        Args:
            problem: problem whose fields are integrated over.
            error: error of the rule at this size.
            accuracy: requested accuracy.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        raise NotImplementedError

    def newton_tolerance(self, accuracy: float) -> float:
        """Return the residual asked of Newton's method."""
        return max(2e-14, min(1e-9, 1e-2 * accuracy))


NEGLIGIBLE_JUMPS = 1e-6  # fraction of the measure below which jumps of the proximal map are neglected
# Error bars from the difference to a finer rule are so many times as large: the finer rule has an error of its own.
DIFFERENCE_SAFETY = 1.5


def largest_bistable_fraction(averages: Iterable[SaddlePointAverages]) -> float:
    """Return the largest fraction of the measure on which several rules found a second minimum."""
    return max(abs(each.bistable) for each in averages)
