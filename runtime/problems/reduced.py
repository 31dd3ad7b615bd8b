"""The problem that averages are those of, where loss or metric read fewer combinations of the fields than there are.

It has one token, whose student fields are z and teacher fields y (docs/theory.md (11.7), (11.8)).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from .combinations import Combinations, OverlapMaps, RowMaps
from .law import TokenLaw
from .overlaps import Overlaps
from .problem import Problem


@dataclass(frozen=True)
class ReducedProblem(Problem):
    """The fields that a loss reads, as the fields of a problem of one token, a cluster a case.

    Its averages, laws and constants are those of a problem; it has no weights.

    Attributes:
        full: the problem that it is of; combinations: what its fields are.
        numbers: of the cases that have a measure, among all that the solver knows.
    """

    full: Problem = field(kw_only=True, compare=False)
    combinations: Combinations = field(kw_only=True, compare=False)
    numbers: tuple[int, ...] = field(kw_only=True)

    @property
    def clusters(self) -> int:
        """Cases that have a measure."""
        return len(self.numbers)

    @cached_property
    def law(self) -> TokenLaw:
        """Of y: only its covariance and its mean."""
        return self.combinations.law  # type: ignore[return-value]

    @cached_property
    def overlap_maps(self) -> OverlapMaps:
        """Overlaps of the weights to its own."""
        return OverlapMaps.of(self.combinations, self.full.sizes)

    @cached_property
    def row_maps(self) -> RowMaps:
        """Its averages to those that the full problem asks for."""
        own, full = self.solver.channel, self.full.solver.channel
        return RowMaps.of(self.combinations, own.MOMENTS, own.ROW, full.MOMENTS, full.ROW)

    @cached_property
    def noise_scale(self) -> np.ndarray:
        """None: what is left of the noise is labelled."""
        return np.zeros(0)

    @cached_property
    def label_choices(self) -> list[tuple[tuple[int, ...], float]]:
        """The cases, and their probabilities."""
        labels, shares = self.combinations.labels, self.combinations.share
        return [((n,), self.full.label_choices[label][1] * float(shares[n])) for n, label in enumerate(labels)]

    def constants(self, labels: tuple[int, ...], overlaps: Overlaps | None = None) -> np.ndarray:
        """Those of the full problem, then the case."""
        if overlaps is None or not len(overlaps.phi):
            return self._numbered[labels[0]]
        known = self._numbered[labels[0]].copy()
        known[-1 - len(overlaps.phi) : -1] = overlaps.phi
        return known

    @cached_property
    def _numbered(self) -> list[np.ndarray]:
        """Constants of every case, phi at its start."""
        labels = [self.full.label_choices[label][0] for label in self.combinations.labels]
        return [np.append(self.full.constants(own), n) for own, n in zip(labels, self.numbers, strict=True)]


def integrated(problem: Problem) -> Problem:
    """The problem that the averages over the channel are taken of: of what its loss reads, where that is less."""
    return problem.once(_of_loss)


def averaged_by_metric(problem: Problem) -> Problem:
    """The same for the test error: its fields omega are combinations of h."""
    return problem.once(_of_metric)


def apart(problem: Problem, overlaps: Overlaps) -> Overlaps:
    """Return overlaps with q made positive along combinations of columns that the loss does not read.

    A ridge leaves nothing there (or what one column has in common with another), so that q is singular at a solution;
    whatever is added there changes no field that is read, nor the conjugates, which vanish there.
    """
    unread = problem.once(_unread)
    if unread is None:
        return overlaps
    sizes = np.trace(overlaps.q, axis1=1, axis2=2) / problem.student_rank
    return replace(overlaps, q=overlaps.q + sizes[:, None, None] * unread)


def _unread(problem: Problem) -> np.ndarray | None:
    """Projections (C, s, s) onto the combinations of columns that the loss does not read; None where it reads all."""
    part = integrated(problem)
    if not isinstance(part, ReducedProblem):
        return None
    s, known = problem.student_rank, part.combinations
    by_token = known.A.transpose(0, 2, 1, 3)
    found = np.stack([np.eye(s)] * problem.contexts)
    for context in range(problem.contexts):
        rows = by_token[known.contexts == context].reshape(-1, s)
        if len(rows):
            found[context] -= np.linalg.pinv(rows, rcond=1e-10) @ rows
    return found if np.abs(found).max() > 1e-8 else None


def _of_loss(problem: Problem) -> Problem:
    return _reduced(problem, "loss")


def _of_metric(problem: Problem) -> Problem:
    return _reduced(problem, "metric")


def _reduced(problem: Problem, integrand: str) -> Problem:
    solver = problem.solver.reduced.get(integrand)
    if solver is None:
        return problem
    facts = solver.model
    cases = [
        (number, label)
        for number, known in enumerate(facts.LABELS)
        for label, (labels, _) in enumerate(problem.label_choices)
        if known == labels
    ]
    per_label = [facts.combinations(np.append(problem.constants(labels), 0.0)) for labels, _ in problem.label_choices]
    kept = [(n, label) for n, label in cases if per_label[label]["share"][n][0][0] > 0]
    L, s, t, U = problem.tokens, problem.student_rank, problem.teacher_rank, len(problem.noise_scale)
    size = facts.STRUCTURE["student_rank"], facts.STRUCTURE["teacher_rank"]

    def matrices(name: str, *shape: int) -> np.ndarray:
        return np.array([per_label[label][name][n] for n, label in kept], float).reshape(len(kept), *shape)

    A, B, E = matrices("A", size[0], L, s), matrices("B", size[0], L, t), matrices("E", size[0], U)
    F, H = matrices("F", size[1], L, t), matrices("H", size[1], U)
    above, below = np.concatenate([A, B], axis=3), np.concatenate([np.zeros((len(kept), size[1], L, s)), F], axis=3)
    noise = np.concatenate([E, H], axis=1) * problem.noise_scale
    labels = np.array([label for _, label in kept])
    combinations = Combinations(
        labels=labels,
        contexts=np.array([problem.context_of(problem.label_choices[label][0]) for label in labels]),
        share=np.array([per_label[label]["share"][n][0][0] for n, label in kept]),
        rows=np.concatenate([above, below], axis=1),
        known=np.einsum("ndu,neu->nde", noise, noise),
        fields=size[0],
        students=s,
        rho_star=problem.law.rho_star,
        teacher_means=problem.law.teacher_means,
    )
    if not combinations.are_independent():
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
