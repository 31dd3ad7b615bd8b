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
from ..problems.reduced import ReducedProblem, reduce_to_loss

Labels = tuple[int, ...]
"""The label of every token."""


@dataclass(frozen=True)
class Averages:
    """A set of raw channel averages of the saddle point, one a replicate (R = 1 for deterministic rules).

    Attributes:
        moments: (R, C, row), E_c[.] of the generated MOMENTS, label probabilities included.
        moreau, loss: E[M] and E[loss(X_prox)], (R,).
        bistable: probability that a second minimum was found (prox-space: weight of the saddles).
        gap: E[gap to the second minimum; it exists] (nan where the rule does not compute it).
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
        """The moments of the mean over replicates, (C, row)."""
        return self.moments[0] if len(self.moments) == 1 else self.moments.mean(axis=0)


@dataclass(frozen=True)
class JacobianAverages:
    """A pair of averages E[G_ll] (labels, L, s, s) and E[G_ll' (x) G_ll'] (labels, L, L, s, s, s, s), replicate first.

    G = dg/domega where the proximal map is smooth (docs/theory.md (8.1)); one entry a label assignment, unweighted.
    """

    slope: np.ndarray
    square: np.ndarray


def moments_by_context(problem: Problem, rows: Sequence[np.ndarray], row: int) -> np.ndarray:
    """Return token rows (L row, ...) of every label assignment as (C, row, ...), weighted with their probability.

    Args:
        problem: problem that gives labels and their probabilities.
        rows: token rows, an array a label assignment.
        row: length of a token's row.
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
    """Return the averages (..., C, row) of a problem from those (..., N, row) of its reduced form.

    Args:
        part: reduced problem, over the linear combinations of fields that the loss depends on.
        overlaps: of the full problem.
        moments: averages of the reduced problem.
    """
    return part.row_maps.averages_of_tokens(moments, part.overlap_maps.regression_at(overlaps.pack()))


class Rule:
    """An integration rule for the channel, one of a family from coarse to fine.

    A new one is a subclass in a file of its own: `_integrate_averages`, `_integrate_jacobians` and
    `_integrate_moment_tangents` integrate over the fields of the problem that they get, the methods up to
    `coarser_rule` define the family, and the others describe its properties wherever the default does not hold.

    Attributes:
        name: on the command line; least_points, most_points: limits of `--points`; unit: what they count.
        replicated: whether it comes in replicates whose spread is its error (`replicates`, `with_seed`, `sizes`).
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
    def with_size(cls, points: int | None, seed: int) -> Self:
        """Return the rule of the size that the command line asks for.

        Args:
            points: size that `--points` asks for; None for the default.
            seed: seed that `--seed` gives; a rule without replicates needs none.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return rule, points and seed for the JSON contract."""
        raise NotImplementedError

    @property
    def size(self) -> str:
        """The size of the rule in words."""
        points = self.describe()["points"]
        return " x ".join(str(n) for n in points) + " nodes" if isinstance(points, list) else f"{points} points"

    def averages(self, problem: Problem, overlaps: Overlaps) -> Averages:
        """Return the channel averages at the overlaps.

        Args:
            problem: problem whose fields are integrated over.
            overlaps: state at which they are taken.

        Raises:
            DomainError: overlaps outside their domain.
        """
        part = reduce_to_loss(problem)
        if not isinstance(part, ReducedProblem):
            return self._integrate_averages(problem, overlaps)
        found = self._integrate_averages(part, channel_overlaps(part, overlaps))
        return replace(found, moments=moments_of_full_problem(part, overlaps, found.moments))

    def jacobians(self, problem: Problem, overlaps: Overlaps) -> JacobianAverages:
        """Return the averages of the field's Jacobian, for the replicon.

        Args:
            problem: problem whose fields are integrated over.
            overlaps: state at which they are taken.
        """
        part = reduce_to_loss(problem)
        if not isinstance(part, ReducedProblem):
            return self._integrate_jacobians(problem, overlaps)
        found = self._integrate_jacobians(part, channel_overlaps(part, overlaps))
        return JacobianAverages(
            part.combinations.mean_curvatures(found.slope), part.combinations.curvature_squares(found.square)
        )

    def moment_tangents(self, problem: Problem, overlaps: Overlaps, jumps: bool = False) -> np.ndarray:
        """Return derivatives of the channel averages in the packed overlaps, (C, row, n), by printed formulas.

        They hold where the loss contains neither q nor trained numbers.

        Args:
            problem: problem whose fields are integrated over.
            overlaps: state at which they are taken.
            jumps: whether to include the contribution of jumps of the proximal map (see `can_include_jumps`).
        """
        part = reduce_to_loss(problem)
        if not isinstance(part, ReducedProblem):
            return self._integrate_moment_tangents(problem, overlaps, jumps)
        there = channel_overlaps(part, overlaps)
        slopes = self._integrate_moment_tangents(part, there, jumps) @ part.overlap_maps.overlaps[0]
        moments = self._integrate_averages(part, there).means
        moved = moments_of_full_problem(part, overlaps, np.moveaxis(slopes, -1, 0))
        changes = part.combinations.regression_changes(overlaps, UnitOverlaps.from_sizes(overlaps.sizes))
        turned = part.row_maps.averages_of_tokens(np.broadcast_to(moments, (len(changes), *moments.shape)), changes)
        layout = {text: slice(at, at + int(np.prod(shape))) for text, shape, at in problem.solver.channel.MOMENTS}
        for text in ("g*dY.T", "g*domega.T"):
            moved[..., layout[text]] += turned[..., layout[text]]
        return np.moveaxis(moved, 0, -1)

    def _integrate_averages(self, problem: Problem, overlaps: Overlaps) -> Averages:
        """Return the averages over all fields of the problem, summed over assignments of labels."""
        row, cut = problem.solver.channel.ROW, problem.tokens * problem.solver.channel.ROW
        found = [self._moment_sums(problem, overlaps, labels) for labels, _ in problem.label_choices]
        totals = np.zeros_like(found[0][:, cut:])
        for (_, probability), sums in zip(problem.label_choices, found, strict=True):
            totals += probability * sums[:, cut:]
        moments = np.array([moments_by_context(problem, rows, row) for rows in zip(*found, strict=True)])
        moreau, loss, *rest = totals.T
        return Averages(moments, moreau, loss, *(float(column.sum()) / len(totals) for column in rest))

    def _moment_sums(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> np.ndarray:
        """Return the token rows of one assignment of labels, then the other numbers of `Averages` in their order.

        Shape: a row a replicate.
        """
        raise NotImplementedError

    def _integrate_jacobians(self, problem: Problem, overlaps: Overlaps) -> JacobianAverages:
        """Return the Jacobian averages over all fields of the problem."""
        found = [self._slope_sums(problem, overlaps, labels) for labels, _ in problem.label_choices]
        return JacobianAverages(*(np.stack(each, axis=1) for each in zip(*found, strict=True)))

    def _slope_sums(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
        """Return both numbers of `JacobianAverages` of one assignment of labels, a replicate in front."""
        raise NotImplementedError

    def _integrate_moment_tangents(self, problem: Problem, overlaps: Overlaps, jumps: bool) -> np.ndarray:
        """Return the derivatives of the averages over all fields of the problem."""
        units = UnitOverlaps.from_sizes(overlaps.sizes)
        parts = [
            self._moment_tangent_sums(problem, overlaps, labels, units, jumps) for labels, _ in problem.label_choices
        ]
        return moments_by_context(problem, parts, problem.solver.channel.ROW)

    def _moment_tangent_sums(
        self, problem: Problem, overlaps: Overlaps, labels: Labels, units: UnitOverlaps, jumps: bool
    ) -> np.ndarray:
        """Return the derivatives of the token rows of one assignment of labels in the packed overlaps, (L row, n)."""
        raise NotImplementedError

    def finer_rule(self) -> Self:
        """Return the next rule of the same family, from which this one's error is estimated."""
        raise NotImplementedError

    def coarser_rule(self) -> Self:
        """Return the previous rule of the same family, from which the rate of convergence is estimated."""
        raise NotImplementedError

    @property
    def replicates(self) -> tuple[Self, ...]:
        """The replicates as rules of their own; the rule itself where it has none."""
        return (self,)

    def with_seed(self, seed: int) -> Self:
        """Return the rule with replicates of another seed; the rule itself where it has none."""
        return self

    @property
    def can_include_jumps(self) -> bool:
        """Return whether `moment_tangents` can include the contribution of jumps of the proximal map."""
        return False

    def node_count(self, problem: Problem) -> float:
        """Return the approximate number of nodes."""
        raise NotImplementedError

    def cost(self, problem: Problem) -> float:
        """Return the approximate effort of an evaluation in nodes of a grid in X; a proximal point costs a hundred."""
        return 1e2 * self.node_count(problem)

    def comparison_rules(self) -> tuple[Self, ...]:
        """Return the rules that it is compared with in addition to the next finer one.

        They are two for nodes that are chosen without regard to the integrand.
        """
        return self.coarser_rule(), self.coarser_rule().coarser_rule()

    def has_rate(self, bistable: float) -> bool:
        """Return whether errors fall by a constant rate from one rule of the family to the next.

        Differences between rules then determine the error; else each difference is as good as another.

        Args:
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return not self.is_nonadaptive or bistable <= NEGLIGIBLE_JUMPS

    def least_difference_weights(
        self, steps: Sequence[np.ndarray], averages: Sequence[Averages], derivative: bool
    ) -> tuple[float, ...]:
        """Return the least factors of differences in an error bar, whatever the rate that they show.

        Args:
            steps: differences to the finer rule and to those of `comparison_rules`, in units of the quantity.
            averages: its own first, then those of the same rules.
            derivative: whether the quantity contains slopes of the averages, which depend on the surface on which the
                proximal map jumps where the averages depend on the volume that it encloses.
        """
        return (0.0 if self.has_rate(largest_bistable_fraction(averages)) else DIFFERENCE_SAFETY,) * len(steps)

    @classmethod
    def sizes(cls, problem: Problem) -> Sequence[Self]:
        """Return the sizes through which a problem is solved, coarse to fine; none where the size has to be named."""
        return ()

    def finer_rules(self, problem: Problem) -> Sequence[Self]:
        """Return the finer rules of the family, up to the largest size used in solving."""
        sizes, own = self.sizes(problem), self.describe()["points"]
        finer = [size for size in sizes if size.describe()["points"] > own]
        return finer if sizes else [self.finer_rule(), self.finer_rule().finer_rule()]

    def trial_order(self, problem: Problem) -> float:
        """Return the place in the order in which `auto` tries sizes of all families that resolve jumps.

        Sizes of one family that follow each other have one place; infinity where it is not tried.
        """
        return inf

    def rule_for_accuracy(self, accuracy: float) -> Self:
        """Return the rule with its neglected terms as small as an accuracy of the overlaps requires."""
        return self

    def rules_for_slopes(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """Return the rules for the averages of the field's slope (replicon, jump weight), which need few digits.

        Args:
            problem: problem whose fields are integrated over.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return self, self.finer_rule()

    def rule_for_losses(self, bistable: float) -> Self:
        """Return the rule for a training loss to many digits.

        Args:
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return self

    def rule_for_differences(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Return the rule and the step for the slope of the map by differences.

        Wide steps are for sampled maps, which jump where a node's minimum changes: many nodes should change within one.

        Args:
            problem: problem whose map is differentiated.
            sample: rule that replaces a replicated one.

        Returns:
            rule, step in block scales (None for wide steps), whether one side suffices.
        """
        return self, 1e-4, False

    @classmethod
    def cross_check_rules(cls, problem: Problem, bistable: float) -> tuple[Self, ...]:
        """Return the rules for a cross-check of another family's averages, coarse to fine; none if not applicable.

        The change in the last step shows their own error.

        Args:
            problem: problem whose fields are integrated over.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return ()

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return whether this family can independently check a whole solution that another family gave."""
        return False

    def predict_size_step(self, error: float, accuracy: float) -> int:
        """Return by how many sizes the next rule to try is finer: 1 where errors are hard to predict.

        Args:
            error: of this rule.
            accuracy: that is asked for.
        """
        return 1

    def predict_nodes(self, problem: Problem, error: float, accuracy: float, bistable: float) -> float:
        """Return the approximate number of nodes with which the family reaches an accuracy.

        Args:
            problem: problem whose fields are integrated over.
            error: of this size.
            accuracy: that is asked for.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        raise NotImplementedError

    def tolerance(self, accuracy: float) -> float:
        """Return the residual asked of Newton's method."""
        return max(2e-14, min(1e-9, 1e-2 * accuracy))


NEGLIGIBLE_JUMPS = 1e-6  # fraction of the measure, below which jumps are neglected
# Error bars from the difference to a finer rule are so many times as large: the finer rule has an error of its own.
DIFFERENCE_SAFETY = 1.5


def largest_bistable_fraction(averages: Iterable[Averages]) -> float:
    """Return the largest fraction of the measure on which one of several rules found the proximal map to jump."""
    return max(abs(each.bistable) for each in averages)
