"""The interface of integration rules, and the averages that they return."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, Self

import numpy as np

from ..channel.fields import overlaps_of_loss_fields
from ..problems.overlaps import Overlaps, UnitOverlaps
from ..problems.problem import Problem
from ..problems.reduced import ReducedProblem, reduce_to_fields_of_loss

Labels = tuple[int, ...]
"""The label of every token."""


@dataclass(frozen=True)
class SaddlePointAverages:
    """The channel averages in the saddle-point equations, for each replicate of the rule (one if deterministic).

    Attributes:
        moments: averages of the moments of the channel (such as g g^T) times the probability of the label, shape
            (replicates, (token, cluster) pairs, moments).
        moreau: average of the Moreau envelope, one per replicate.
        loss: average of the loss at the proximal point, one per replicate.
        bistable: probability that a second minimum was found (on grids of proximal points: weight of saddle points).
        gap: average gap to the second minimum, zero where there is none (nan if the rule does not compute it).
        unconverged: fraction of nodes whose proximal iteration did not converge.
        mass: total weight of the nodes, 1 for an exact rule.
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
        """The channel moments averaged over replicates of the rule, shape ((token, cluster) pairs, moments)."""
        return self.moments[0] if len(self.moments) == 1 else self.moments.mean(axis=0)


@dataclass(frozen=True)
class JacobianAverages:
    """The averages of the Jacobian G = dg/domega of the field and of its square, for the replicon.

    G is evaluated where the proximal map is smooth (docs/theory.md (8.1)). The first two axes run over replicates
    and label assignments.

    Attributes:
        slope: E[G_ll] for each token l, shape (replicates, assignments, L, s, s).
        square: E[G_ll' (x) G_ll'] for each pair of tokens, shape (replicates, assignments, L, L, s, s, s, s).
    """

    slope: np.ndarray
    square: np.ndarray


def moments_by_token_and_cluster(problem: Problem, rows: Sequence[np.ndarray], row: int) -> np.ndarray:
    """Return the moments of every (token, cluster) pair, averaged over label assignments.

    Args:
        problem: problem that defines the labels and their probabilities.
        rows: moments of one token after the other along the first axis, one array per label assignment.
        row: number of moments of one token.
    """
    if len(rows) == 1 and problem.clusters == 1:
        (_, probability), (values,) = problem.label_probabilities[0], rows
        return probability * values[: problem.tokens * row].reshape(problem.tokens, row, *values.shape[1:])
    moments = np.zeros((problem.contexts, row, *rows[0].shape[1:]))
    for (labels, probability), values in zip(problem.label_probabilities, rows, strict=True):
        moments[problem.token_cluster_indices(labels)] += probability * values[: problem.tokens * row].reshape(
            -1, *moments.shape[1:]
        )
    return moments


def moments_of_full_problem(part: ReducedProblem, overlaps: Overlaps, moments: np.ndarray) -> np.ndarray:
    """Return the moments of a problem from the moments of its reduced problem.

    Args:
        part: reduced problem, over the linear combinations of fields that the loss depends on.
        overlaps: overlaps of the full problem.
        moments: moments of the reduced problem, shape (..., combinations, moments); the result has one row per
            (token, cluster) pair instead.
    """
    return part.maps_to_token_averages.token_averages_from_combinations(
        moments, part.maps_of_overlaps_to_combinations.regression_coefficients_at_overlaps(overlaps.pack())
    )


class Rule:
    """An integration rule for averages over the channel (fields and noise), one of a family from coarse to fine.

    A new rule is a subclass in a separate file. It defines the methods that raise NotImplementedError
    here, and overrides other methods where their defaults do not hold.

    Attributes:
        name: name on the command line.
        least_points, most_points: limits of `--points`.
        unit: unit of `--points`.
        replicated: whether it has replicates, whose spread is its error (`replicates`, `with_seed`).
        in_x: whether its nodes are proximal points X, so that no proximal map is needed and jumps are known.
        is_nonadaptive: whether its nodes are chosen without regard to kinks and jumps of the integrand.
        splits_jumps: whether it searches the fields for jumps of the proximal map.
        resolves_squares: whether its nodes resolve (dg/domega)^2 next to cusps.
        at_temperature: whether it can also average over the Boltzmann law of the fields.
    """

    name: str
    least_points: ClassVar[int] = 4
    most_points: ClassVar[int]
    unit: ClassVar[str] = "nodes per axis"
    replicated: ClassVar[bool] = False
    in_x: ClassVar[bool] = False
    is_nonadaptive: ClassVar[bool] = False
    splits_jumps: ClassVar[bool] = False
    resolves_squares: ClassVar[bool] = False
    at_temperature: ClassVar[bool] = False

    @classmethod
    def rule_of_size(cls, points: int | None, seed: int) -> Self:
        """Return the rule of this family with a given size.

        Args:
            points: size given by `--points`; None for the default.
            seed: seed given by `--seed`; rules without replicates ignore it.
        """
        raise NotImplementedError

    def rule_description(self) -> dict[str, Any]:
        """Return a dict with the rule's name, number of points and seed, as in the JSON output."""
        raise NotImplementedError

    @property
    def size_in_words(self) -> str:
        """The size of the rule in words, such as "64 x 32 nodes"."""
        points = self.rule_description()["points"]
        return " x ".join(str(n) for n in points) + " nodes" if isinstance(points, list) else f"{points} points"

    def averages(self, problem: Problem, overlaps: Overlaps) -> SaddlePointAverages:
        """Return the averages in the saddle-point equations at given overlaps.

        Args:
            problem: problem whose fields are integrated over.
            overlaps: overlaps q, V, m, theta at which the averages are evaluated.

        Raises:
            DomainError: the overlaps are outside their domain.
        """
        part = reduce_to_fields_of_loss(problem)
        if not isinstance(part, ReducedProblem):
            return self._integrate_averages(problem, overlaps)
        found = self._integrate_averages(part, overlaps_of_loss_fields(part, overlaps))
        return replace(found, moments=moments_of_full_problem(part, overlaps, found.moments))

    def jacobian_averages(self, problem: Problem, overlaps: Overlaps) -> JacobianAverages:
        """Return the averages of dg/domega, with g = V^(-1) (X - omega), and of its square, which give the replicon.

        Args:
            problem: problem whose fields are integrated over.
            overlaps: overlaps q, V, m, theta at which the averages are evaluated.
        """
        part = reduce_to_fields_of_loss(problem)
        if not isinstance(part, ReducedProblem):
            return self._integrate_jacobians(problem, overlaps)
        found = self._integrate_jacobians(part, overlaps_of_loss_fields(part, overlaps))
        return JacobianAverages(
            part.combinations.mean_token_jacobians(found.slope),
            part.combinations.mean_token_jacobian_products(found.square),
        )

    def moment_derivatives(self, problem: Problem, overlaps: Overlaps, jumps: bool = False) -> np.ndarray:
        """Return the derivatives of the moments with respect to the packed overlaps, by generated formulas.

        The shape is ((token, cluster) pairs, moments, packed overlaps). The formulas hold if the loss contains neither
        the overlap q nor parameters phi that are trained with the weights.

        Args:
            problem: problem whose fields are integrated over.
            overlaps: overlaps q, V, m, theta at which the averages are evaluated.
            jumps: whether to include jumps of the proximal map; see `can_include_jump_derivatives`.
        """
        part = reduce_to_fields_of_loss(problem)
        if not isinstance(part, ReducedProblem):
            return self._average_moment_derivatives_over_labels(problem, overlaps, jumps)
        there = overlaps_of_loss_fields(part, overlaps)
        slopes = (
            self._average_moment_derivatives_over_labels(part, there, jumps)
            @ part.maps_of_overlaps_to_combinations.overlaps[0]
        )
        moments = self._integrate_averages(part, there).means
        moved = moments_of_full_problem(part, overlaps, np.moveaxis(slopes, -1, 0))
        changes = part.combinations.derivatives_of_regression_coefficients(
            overlaps, UnitOverlaps.from_sizes(overlaps.sizes)
        )
        turned = part.maps_to_token_averages.token_averages_from_combinations(
            np.broadcast_to(moments, (len(changes), *moments.shape)), changes
        )
        layout = {text: slice(at, at + int(np.prod(shape))) for text, shape, at in problem.solver.channel.MOMENTS}
        for text in ("g*dY.T", "g*domega.T"):
            moved[..., layout[text]] += turned[..., layout[text]]
        return np.moveaxis(moved, 0, -1)

    def _integrate_averages(self, problem: Problem, overlaps: Overlaps) -> SaddlePointAverages:
        """Return the averages over the fields and the assignments of labels."""
        row, cut = problem.solver.channel.ROW, problem.tokens * problem.solver.channel.ROW
        found = [self._averages_given_labels(problem, overlaps, labels) for labels, _ in problem.label_probabilities]
        totals = np.zeros_like(found[0][:, cut:])
        for (_, probability), sums in zip(problem.label_probabilities, found, strict=True):
            totals += probability * sums[:, cut:]
        moments = np.array([moments_by_token_and_cluster(problem, rows, row) for rows in zip(*found, strict=True)])
        moreau, loss, *rest = totals.T
        return SaddlePointAverages(moments, moreau, loss, *(float(column.sum()) / len(totals) for column in rest))

    def _averages_given_labels(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> np.ndarray:
        """Return the averages over the fields given the labels, one row per replicate.

        A row contains the moments of all tokens, then the other averages in the order of `SaddlePointAverages`.
        """
        raise NotImplementedError

    def _integrate_jacobians(self, problem: Problem, overlaps: Overlaps) -> JacobianAverages:
        """Return the averages of the Jacobian dg/domega of the field g and of its square, for all label assignments."""
        found = [
            self._jacobian_averages_given_labels(problem, overlaps, labels) for labels, _ in problem.label_probabilities
        ]
        return JacobianAverages(*(np.stack(each, axis=1) for each in zip(*found, strict=True)))

    def _jacobian_averages_given_labels(
        self, problem: Problem, overlaps: Overlaps, labels: Labels
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return E[G_ll] and E[G_ll' (x) G_ll'] of the Jacobian G = dg/domega given the labels of all tokens."""
        raise NotImplementedError

    def _average_moment_derivatives_over_labels(self, problem: Problem, overlaps: Overlaps, jumps: bool) -> np.ndarray:
        """Return the derivatives of the channel moments in the packed overlaps, averaged over all labels."""
        units = UnitOverlaps.from_sizes(overlaps.sizes)
        parts = [
            self._moment_derivatives_given_labels(problem, overlaps, labels, units, jumps)
            for labels, _ in problem.label_probabilities
        ]
        return moments_by_token_and_cluster(problem, parts, problem.solver.channel.ROW)

    def _moment_derivatives_given_labels(
        self, problem: Problem, overlaps: Overlaps, labels: Labels, units: UnitOverlaps, jumps: bool
    ) -> np.ndarray:
        """Return the derivatives of the channel moments of all tokens in the packed overlaps, given the labels."""
        raise NotImplementedError

    def finer_rule(self) -> Self:
        """Return the next finer rule of the same family, from which the error is estimated."""
        raise NotImplementedError

    def coarser_rule(self) -> Self:
        """Return the next coarser rule of the same family, from which the rate of convergence is estimated."""
        raise NotImplementedError

    @property
    def replicates(self) -> tuple[Self, ...]:
        """The rules that compute one replicate each; only this rule if it is deterministic."""
        return (self,)

    def with_seed(self, seed: int) -> Self:
        """Return the rule with another random seed; the same rule if it is deterministic."""
        return self

    @property
    def can_include_jump_derivatives(self) -> bool:
        """Return whether `moment_derivatives` can include the contribution of jumps of the proximal map."""
        return False

    def node_count(self, problem: Problem) -> float:
        """Return the approximate number of quadrature nodes."""
        raise NotImplementedError

    def evaluation_cost(self, problem: Problem) -> float:
        """Return the approximate cost of an evaluation; the unit is the cost of one node of `ProxSpaceRule`.

        A node at which a proximal point is computed costs about a hundred of these.
        """
        return 1e2 * self.node_count(problem)

    def comparison_rules(self) -> tuple[Self, ...]:
        """Return the rules that this rule is compared with in addition to the next finer one, to estimate its error.

        These are the two next coarser rules by default.
        """
        return self.coarser_rule(), self.coarser_rule().coarser_rule()

    def has_convergence_rate(self, bistable: float) -> bool:
        """Return whether errors fall by a constant factor from one rule of the family to the next.

        The error then follows from differences between rules; otherwise the largest difference bounds it.

        Args:
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        return not self.is_nonadaptive or bistable <= NEGLIGIBLE_JUMPS

    def smallest_error_bar_factors(
        self, steps: Sequence[np.ndarray], averages: Sequence[SaddlePointAverages], derivative: bool
    ) -> tuple[float, ...]:
        """Return lower bounds on the factors by which an error bar multiplies the differences to other rules.

        Args:
            steps: differences of a quantity between this rule and the finer rule, then the `comparison_rules`.
            averages: averages by this rule, then by the other rules in the same order.
            derivative: whether the quantity contains derivatives of the averages, which are more sensitive to jumps of
                the proximal map.
        """
        return (0.0 if self.has_convergence_rate(largest_bistable_fraction(averages)) else DIFFERENCE_SAFETY,) * len(
            steps
        )

    @classmethod
    def rules_coarse_to_fine(cls, problem: Problem) -> Sequence[Self]:
        """Return the rules with which a problem is solved one after the other, coarse to fine; empty if unsupported."""
        return ()

    def finer_rules(self, problem: Problem) -> Sequence[Self]:
        """Return the rules of the family that are finer than this rule, up to the finest one used in solving."""
        sizes, own = self.rules_coarse_to_fine(problem), self.rule_description()["points"]
        finer = [size for size in sizes if size.rule_description()["points"] > own]
        return finer if sizes else [self.finer_rule(), self.finer_rule().finer_rule()]

    def position_in_trial_order(self, problem: Problem) -> float:
        """Return the rank of this rule in the order in which the integrator `auto` tries rules.

        Successive sizes of one family share a rank; infinity means that the rule is not tried.
        """
        return inf

    def rule_for_accuracy(self, accuracy: float) -> Self:
        """Return the rule with neglected terms small enough for a given accuracy of the overlaps."""
        return self

    def rules_for_field_jacobian(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """Return the rules for averages of dg/domega, with g = V^(-1) (X - omega), from which stability is judged.

        Args:
            problem: problem whose fields are integrated over.
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        return self, self.finer_rule()

    def rule_for_training_loss(self, bistable: float) -> Self:
        """Return the rule that gives an accurate training loss.

        Args:
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        return self

    def rule_for_numerical_jacobian(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Return the rule and the step for a numerical Jacobian of the saddle-point map by finite differences.

        Sampled maps jump where the minimum of a node changes, and need steps so wide that many nodes change.

        Args:
            problem: problem whose saddle-point map is differentiated.
            sample: Sobol rule to return if this rule has replicates.

        Returns:
            the rule; the finite-difference step relative to the scale of each overlap matrix (None: choose a wide step
            for sampled averages); whether one-sided differences suffice.
        """
        return self, 1e-4, False

    @classmethod
    def quadrature_rules_for_cross_check(cls, problem: Problem, bistable: float) -> tuple[Self, ...]:
        """Return the rules that can cross-check averages by another family, coarse to fine; empty if not applicable.

        The difference between the last two shows their own error.

        Args:
            problem: problem whose fields are integrated over.
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        return ()

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return whether this family of rules can cross-check a solution of the problem by another family."""
        return False

    def predict_refinement_steps(self, error: float, accuracy: float) -> int:
        """Return by how many sizes to refine the rule next; 1 where the error cannot be predicted.

        Args:
            error: error of this rule.
            accuracy: requested accuracy.
        """
        return 1

    def predict_node_count(self, problem: Problem, error: float, accuracy: float, bistable: float) -> float:
        """Return the predicted number of nodes with which this family of rules reaches an accuracy.

        Args:
            problem: problem whose fields are integrated over.
            error: error of the rule at this size.
            accuracy: requested accuracy.
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        raise NotImplementedError

    def newton_tolerance(self, accuracy: float) -> float:
        """Return the residual at which Newton's method stops, for a given accuracy of the solution."""
        return max(2e-14, min(1e-9, 1e-2 * accuracy))


NEGLIGIBLE_JUMPS = 1e-6  # fraction of the measure below which jumps of the proximal map are neglected
# Error bars from the difference to a finer rule are so many times as large: the finer rule has an error of its own.
DIFFERENCE_SAFETY = 1.5


def largest_bistable_fraction(averages: Iterable[SaddlePointAverages]) -> float:
    """Return the largest probability of a second minimum that any of several rules found."""
    return max(abs(each.bistable) for each in averages)
