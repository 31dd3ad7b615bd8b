"""Reduced problems: averages of a loss or metric that depends on fewer combinations of the fields.

A reduced problem has one token, whose student fields are z and teacher fields y (docs/theory.md (11.7), (11.8)).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from .combinations import FieldCombinations, MapsToTokenAverages, OverlapReductionMaps
from .law import TokenLaw
from .overlaps import Overlaps
from .problem import Problem


@dataclass(frozen=True)
class ReducedProblem(Problem):
    """A problem of one token whose fields are those combinations of fields that the loss of a full problem depends on.

    Its clusters are the cases (label assignments, with discrete noise). It serves averages over fields only.

    Attributes:
        full: the full problem.
        combinations: the combinations of its fields.
        numbers: indices of the cases of positive probability among all cases of the solver.
    """

    full: Problem = field(kw_only=True, compare=False)
    combinations: FieldCombinations = field(kw_only=True, compare=False)
    numbers: tuple[int, ...] = field(kw_only=True)

    @property
    def clusters(self) -> int:
        """Number of clusters: of cases (label assignments, with discrete noise) of positive probability."""
        return len(self.numbers)

    @cached_property
    def law(self) -> TokenLaw:
        """Covariance and mean of the combinations y of teacher fields, in place of the law of the tokens."""
        return self.combinations.law_of_teacher_combinations  # type: ignore[return-value]

    @cached_property
    def maps_of_overlaps_to_combinations(self) -> OverlapReductionMaps:
        """The maps from overlaps of the full problem's weights to overlaps of the combinations of fields."""
        return OverlapReductionMaps.from_combinations(self.combinations, self.full.sizes)

    @cached_property
    def maps_to_token_averages(self) -> MapsToTokenAverages:
        """The linear maps from channel averages of the reduced problem to those of every token of the full problem."""
        own, full = self.solver.channel, self.full.solver.channel
        return MapsToTokenAverages.from_combinations(self.combinations, own.MOMENTS, own.ROW, full.MOMENTS, full.ROW)

    @cached_property
    def noise_scale(self) -> np.ndarray:
        """Standard deviations of Gaussian noise: an empty array, since the combinations of fields contain the noise."""
        return np.zeros(0)

    @cached_property
    def label_probabilities(self) -> list[tuple[tuple[int, ...], float]]:
        """All cases (label assignments, with discrete noise), as pairs ((index of the case,), probability)."""
        labels, shares = self.combinations.labels, self.combinations.share
        return [((n,), self.full.label_probabilities[label][1] * float(shares[n])) for n, label in enumerate(labels)]

    def constants(self, labels: tuple[int, ...], overlaps: Overlaps | None = None) -> np.ndarray:
        """Return the channel's constants: those of the full problem, then the number of the case (labels and noise).

        Args:
            labels: index of the case, as a tuple of one number.
            overlaps: overlaps that give the trained numbers; by default their start values.
        """
        if overlaps is None or not len(overlaps.phi):
            return self._channel_constants_of_cases[labels[0]]
        known = self._channel_constants_of_cases[labels[0]].copy()
        known[-1 - len(overlaps.phi) : -1] = overlaps.phi
        return known

    @cached_property
    def _channel_constants_of_cases(self) -> list[np.ndarray]:
        """The channel's constants in every case, with trained numbers at their start values."""
        labels = [self.full.label_probabilities[label][0] for label in self.combinations.labels]
        return [np.append(self.full.constants(own), n) for own, n in zip(labels, self.numbers, strict=True)]


def reduce_to_fields_of_loss(problem: Problem) -> Problem:
    """Return the problem of fewest fields with the same channel averages: a `ReducedProblem` or the problem itself."""
    return problem.cached_result_of(_build_problem_reduced_to_loss)


def reduce_to_fields_of_metric(problem: Problem) -> Problem:
    """Return the problem of fewest fields with the same test error: a `ReducedProblem` or the problem itself."""
    return problem.cached_result_of(_build_problem_reduced_to_metric)


def make_q_positive_definite(problem: Problem, overlaps: Overlaps) -> Overlaps:
    """Return overlaps with a positive definite q, also if the loss does not depend on some columns of W.

    With a ridge, q of a solution is singular along combinations of such columns. The matrix added to it there changes
    neither the fields that the loss depends on nor the conjugates.

    Args:
        problem: the full problem.
        overlaps: overlaps of the full problem's weights.
    """
    unread = problem.cached_result_of(_projectors_onto_inactive_columns)
    if unread is None:
        return overlaps
    sizes = np.trace(overlaps.q, axis1=1, axis2=2) / problem.student_rank
    return replace(overlaps, q=overlaps.q + sizes[:, None, None] * unread)


def _projectors_onto_inactive_columns(problem: Problem) -> np.ndarray | None:
    """Return, by context, the projector onto combinations of columns of W without effect on the loss; None if 0."""
    part = reduce_to_fields_of_loss(problem)
    if not isinstance(part, ReducedProblem):
        return None
    s, known = problem.student_rank, part.combinations
    by_token = known.coefficients_of_student_fields.transpose(0, 2, 1, 3)
    found = np.stack([np.eye(s)] * problem.contexts)
    for context in range(problem.contexts):
        rows = by_token[known.contexts == context].reshape(-1, s)
        if len(rows):
            found[context] -= np.linalg.pinv(rows, rcond=1e-10) @ rows
    return found if np.abs(found).max() > 1e-8 else None


def _build_problem_reduced_to_loss(problem: Problem) -> Problem:
    return _reduce_to_fields_of_integrand(problem, "loss")


def _build_problem_reduced_to_metric(problem: Problem) -> Problem:
    return _reduce_to_fields_of_integrand(problem, "metric")


def _reduce_to_fields_of_integrand(problem: Problem, integrand: str) -> Problem:
    solver = problem.solver.solvers_of_reduced_problems.get(integrand)
    if solver is None:
        return problem
    facts = solver.model
    cases = [
        (number, label)
        for number, known in enumerate(facts.LABELS)
        for label, (labels, _) in enumerate(problem.label_probabilities)
        if known == labels
    ]
    per_label = [facts.combinations(np.append(problem.constants(k), 0.0)) for k, _ in problem.label_probabilities]
    kept = [(n, label) for n, label in cases if per_label[label]["share"][n][0][0] > 0]
    L, s, t, U = problem.tokens, problem.student_rank, problem.teacher_rank, len(problem.noise_scale)
    size = facts.STRUCTURE["student_rank"], facts.STRUCTURE["teacher_rank"]

    def coefficients_of_all_cases(name: str, *shape: int) -> np.ndarray:
        return np.array([per_label[label][name][n] for n, label in kept], float).reshape(len(kept), *shape)

    A, B, E = (
        coefficients_of_all_cases("A", size[0], L, s),
        coefficients_of_all_cases("B", size[0], L, t),
        coefficients_of_all_cases("E", size[0], U),
    )
    F, H = coefficients_of_all_cases("F", size[1], L, t), coefficients_of_all_cases("H", size[1], U)
    above, below = np.concatenate([A, B], axis=3), np.concatenate([np.zeros((len(kept), size[1], L, s)), F], axis=3)
    noise = np.concatenate([E, H], axis=1) * problem.noise_scale
    labels = np.array([label for _, label in kept])
    combinations = FieldCombinations(
        labels=labels,
        contexts=np.array([problem.token_cluster_indices(problem.label_probabilities[label][0]) for label in labels]),
        share=np.array([per_label[label]["share"][n][0][0] for n, label in kept]),
        rows=np.concatenate([above, below], axis=1),
        known=np.einsum("ndu,neu->nde", noise, noise),
        fields=size[0],
        students=s,
        rho_star=problem.law.rho_star,
        teacher_means=problem.law.teacher_means,
    )
    if not combinations.are_linearly_independent():
        return problem
    return ReducedProblem(
        solver,
        problem.sample_complexity,
        problem.parameters,
        search=problem.search,
        inverse_temperature=problem.inverse_temperature,
        full=problem,
        combinations=combinations,
        numbers=tuple(n for n, _ in kept),
    )
