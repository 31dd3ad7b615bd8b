"""An integration rule: the interface it answers to, and what it returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, Self

import numpy as np

from ..channel.fields import overlaps_of
from ..problems.overlaps import Overlaps, Units
from ..problems.problem import Problem
from ..problems.reduced import ReducedProblem, integrated

Labels = tuple[int, ...]
"""The label of every token."""


@dataclass(frozen=True)
class Averages:
    """Raw channel averages of the saddle point, one set a replicate (R = 1 for deterministic rules).

    Attributes:
        moments: (R, C, row), E_c[.] of the generated MOMENTS, label probabilities included.
        moreau, loss: E[M] and E[loss(X_prox)], (R,).
        bistable: probability that a second minimum was seen (prox-space: weight of the saddles).
        gap: E[gap to the second minimum; it exists] (nan where the rule does not see it).
        unconverged: share of nodes whose proximal iteration did not converge.
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
    """E[G_ll] (labels, L, s, s) and E[G_ll' (x) G_ll'] (labels, L, L, s, s, s, s), a replicate in front.

    G = dg/domega where the proximal map is smooth (docs/theory.md (8.1)); one entry a label assignment, unweighted.
    """

    slope: np.ndarray
    square: np.ndarray


def moments_by_context(problem: Problem, rows: Sequence[np.ndarray], row: int) -> np.ndarray:
    """Token rows (L row, ...) of every label assignment to (C, row, ...), weighted with their probability."""
    if len(rows) == 1 and problem.clusters == 1:
        (_, probability), (values,) = problem.label_choices[0], rows
        return probability * values[: problem.tokens * row].reshape(problem.tokens, row, *values.shape[1:])
    moments = np.zeros((problem.contexts, row, *rows[0].shape[1:]))
    for (labels, probability), values in zip(problem.label_choices, rows, strict=True):
        moments[problem.context_of(labels)] += probability * values[: problem.tokens * row].reshape(
            -1, *moments.shape[1:]
        )
    return moments


def back(part: ReducedProblem, overlaps: Overlaps, moments: np.ndarray) -> np.ndarray:
    """Averages (..., C, row) that a problem asks for at overlaps, from those (..., N, row) over what its loss reads."""
    return part.row_maps.back(moments, part.overlap_maps.regression_at(overlaps.pack()))


class Rule:
    """An integration rule for the channel, one of a family from coarse to fine.

    A new one is a subclass in a file of its own: `_averages`, `_jacobians` and `_moment_tangents` integrate over the
    fields of the problem that they are handed, those up to `coarser` make a family of it, and the others say what that
    is like wherever the default does not hold.

    Attributes:
        name: on the command line; least_points, most_points: that `--points` may ask for; unit: what they count.
        replicated: whether it comes in replicates whose spread is its error (`replicates`, `seeded`, `sizes`).
        in_x: whether its nodes lie in X, where no proximal map is needed and jumps are known.
        blind: whether its nodes know nothing of kinks and jumps of the integrand.
        splits_jumps: whether it looks in the fields for jumps of the proximal map: only nodes in X tell anything else.
        resolves_squares: whether its nodes resolve (dg/domega)^2 next to cusps.
        at_temperature: whether it averages over the Boltzmann law of the fields, too.
    """

    name: str
    least_points: ClassVar[int] = 4
    most_points: ClassVar[int]
    unit: ClassVar[str] = "nodes an axis"
    replicated: ClassVar[bool] = False
    in_x: ClassVar[bool] = False
    blind: ClassVar[bool] = False
    splits_jumps: ClassVar[bool] = False
    resolves_squares: ClassVar[bool] = False
    at_temperature: ClassVar[bool] = False

    @classmethod
    def of(cls, points: int | None, seed: int) -> Self:
        """By what `--points` and `--seed` say; None for a usual size."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """rule, points, seed for the JSON contract."""
        raise NotImplementedError

    @property
    def size(self) -> str:
        """Of what size it is, in words."""
        points = self.describe()["points"]
        return " x ".join(str(n) for n in points) + " nodes" if isinstance(points, list) else f"{points} points"

    def averages(self, problem: Problem, overlaps: Overlaps) -> Averages:
        """Channel averages at the overlaps; raises DomainError outside their domain."""
        part = integrated(problem)
        if not isinstance(part, ReducedProblem):
            return self._averages(problem, overlaps)
        found = self._averages(part, overlaps_of(part, overlaps))
        return replace(found, moments=back(part, overlaps, found.moments))

    def jacobians(self, problem: Problem, overlaps: Overlaps) -> JacobianAverages:
        """Averages of the field's Jacobian, for the replicon."""
        part = integrated(problem)
        if not isinstance(part, ReducedProblem):
            return self._jacobians(problem, overlaps)
        found = self._jacobians(part, overlaps_of(part, overlaps))
        return JacobianAverages(part.combinations.slope(found.slope), part.combinations.square(found.square))

    def moment_tangents(self, problem: Problem, overlaps: Overlaps, jumps: bool = False) -> np.ndarray:
        """Derivatives of the channel averages in the packed overlaps, (C, row, n), by printed formulas.

        They hold where the loss holds neither q nor trained numbers.

        Args:
            jumps: whether to count what jumps of the proximal map add (see `counts_jumps`).
        """
        part = integrated(problem)
        if not isinstance(part, ReducedProblem):
            return self._moment_tangents(problem, overlaps, jumps)
        there = overlaps_of(part, overlaps)
        slopes = self._moment_tangents(part, there, jumps) @ part.overlap_maps.overlaps[0]
        moments = self._averages(part, there).means
        moved = back(part, overlaps, np.moveaxis(slopes, -1, 0))
        changes = part.combinations.regression_changes(overlaps, Units.of(overlaps.sizes))
        turned = part.row_maps.back(np.broadcast_to(moments, (len(changes), *moments.shape)), changes)
        layout = {text: slice(at, at + int(np.prod(shape))) for text, shape, at in problem.solver.channel.MOMENTS}
        for text in ("g*dY.T", "g*domega.T"):
            moved[..., layout[text]] += turned[..., layout[text]]
        return np.moveaxis(moved, 0, -1)

    def _averages(self, problem: Problem, overlaps: Overlaps) -> Averages:
        """Over all fields of the problem, assignments of labels summed over."""
        row, cut = problem.solver.channel.ROW, problem.tokens * problem.solver.channel.ROW
        found = [self._sums(problem, overlaps, labels) for labels, _ in problem.label_choices]
        totals = np.zeros_like(found[0][:, cut:])
        for (_, probability), sums in zip(problem.label_choices, found, strict=True):
            totals += probability * sums[:, cut:]
        moments = np.array([moments_by_context(problem, rows, row) for rows in zip(*found, strict=True)])
        moreau, loss, *rest = totals.T
        return Averages(moments, moreau, loss, *(float(column.sum()) / len(totals) for column in rest))

    def _sums(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> np.ndarray:
        """Return the token rows of one assignment of labels, then the other numbers of `Averages` in their order, a row
        a replicate."""
        raise NotImplementedError

    def _jacobians(self, problem: Problem, overlaps: Overlaps) -> JacobianAverages:
        """Over all fields of the problem."""
        found = [self._slope_sums(problem, overlaps, labels) for labels, _ in problem.label_choices]
        return JacobianAverages(*(np.stack(each, axis=1) for each in zip(*found, strict=True)))

    def _slope_sums(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
        """Return both numbers of `JacobianAverages` of one assignment of labels, a replicate in front."""
        raise NotImplementedError

    def _moment_tangents(self, problem: Problem, overlaps: Overlaps, jumps: bool) -> np.ndarray:
        """Over all fields of the problem."""
        units = Units.of(overlaps.sizes)
        parts = [self._tangents(problem, overlaps, labels, units, jumps) for labels, _ in problem.label_choices]
        return moments_by_context(problem, parts, problem.solver.channel.ROW)

    def _tangents(self, problem: Problem, overlaps: Overlaps, labels: Labels, units: Units, jumps: bool) -> np.ndarray:
        """Return the derivatives of the token rows of one assignment of labels in the packed overlaps, (L row, n)."""
        raise NotImplementedError

    def finer(self) -> Self:
        """The next rule of the same family, to judge this one by."""
        raise NotImplementedError

    def coarser(self) -> Self:
        """The one before, to see how fast the family converges."""
        raise NotImplementedError

    @property
    def replicates(self) -> tuple[Self, ...]:
        """Return its replicates as rules of their own, each of which gives that replicate of the averages; the rule
        itself where there are none."""
        return (self,)

    def seeded(self, seed: int) -> Self:
        """Return the rule with replicates of another seed; the rule itself where there are none."""
        return self

    @property
    def counts_jumps(self) -> bool:
        """Whether `moment_tangents` can count what jumps of the proximal map add."""
        return False

    def nodes(self, problem: Problem) -> float:
        """How many nodes it visits, about."""
        raise NotImplementedError

    def cost(self, problem: Problem) -> float:
        """Effort of an evaluation in nodes of a grid in X, about: a proximal point costs a hundred of them."""
        return 1e2 * self.nodes(problem)

    def compared_with(self) -> tuple[Self, ...]:
        """What it is compared with beside the next finer one: twice, where nodes know nothing of the integrand."""
        return self.coarser(), self.coarser().coarser()

    def has_rate(self, bistable: float) -> bool:
        """Whether errors fall by a rate from one rule of the family to the next, so that differences tell how far off
        it is; where they do not, each difference is as good as another.

        Args:
            bistable: share of the measure on which the proximal map may jump.
        """
        return not self.blind or bistable <= NEGLIGIBLE_JUMPS

    def least_counts(
        self, steps: Sequence[np.ndarray], averages: Sequence[Averages], derivative: bool
    ) -> tuple[float, ...]:
        """What differences count for in a half width at the least, whatever the rate they show.

        Args:
            steps: differences to the finer rule and to those of `compared_with`, in units of the quantity.
            averages: its own first, then those of the same rules.
            derivative: whether the quantity holds slopes of the averages, which feel the surface on which the proximal
                map jumps where the averages feel what it encloses.
        """
        return (0.0 if self.has_rate(bistable_share(averages)) else DIFFERENCE_SAFETY,) * len(steps)

    @classmethod
    def sizes(cls, problem: Problem) -> Sequence[Self]:
        """Return the sizes through which a problem is solved, coarse to fine; none where only the size that is named
        is."""
        return ()

    def beyond(self, problem: Problem) -> Sequence[Self]:
        """Return the finer rules of the family, as far as solving goes."""
        sizes, own = self.sizes(problem), self.describe()["points"]
        finer = [size for size in sizes if size.describe()["points"] > own]
        return finer if sizes else [self.finer(), self.finer().finer()]

    def rank(self, problem: Problem) -> float:
        """Return its place in the order in which `auto` tries sizes of all families that resolve jumps, those of one
        family that follow each other together; infinity where it is not tried."""
        return inf

    def for_accuracy(self, accuracy: float) -> Self:
        """Return the rule with what it neglects as small as an accuracy of the overlaps asks for."""
        return self

    def for_slopes(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """Rules for the averages of the field's slope (replicon, jump weight), which need few digits.

        Args:
            bistable: share of the measure on which the proximal map may jump.
        """
        return self, self.finer()

    def for_losses(self, bistable: float) -> Self:
        """The rule for a training loss to many digits, where the proximal map may jump on a share of the measure."""
        return self

    def for_differences(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Rule and step (in block scales) for the slope of the map by differences, and whether one side will do.

        No step stands for wide ones: sampled maps jump where a node's minimum swaps, and many are to swap within one.

        Args:
            sample: what a replicated rule takes in its own place.
        """
        return self, 1e-4, False

    @classmethod
    def opinions(cls, problem: Problem, bistable: float) -> tuple[Self, ...]:
        """Rules by which averages that another family gave are looked at again, coarse to fine, so that what the last
        step changes tells how far off they are; none where the family is no good for the problem.

        Args:
            bistable: share of the measure on which the proximal map may jump.
        """
        return ()

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """Whether a whole solution that another family gave may be found again by this one."""
        return False

    def sizes_ahead(self, error: float, accuracy: float) -> int:
        """How many sizes finer a rule may be tried next that is off by less than the accuracy: the next, where errors
        are hard to foresee."""
        return 1

    def nodes_for(self, problem: Problem, error: float, accuracy: float, bistable: float) -> float:
        """Return how many nodes the family visits for an accuracy, about, by the error of this size.

        Args:
            bistable: share of the measure on which the proximal map may jump.
        """
        raise NotImplementedError

    def tolerance(self, accuracy: float) -> float:
        """Residual asked of Newton."""
        return max(2e-14, min(1e-9, 1e-2 * accuracy))


NEGLIGIBLE_JUMPS = 1e-6  # of the measure: below, nothing is asked about jumps
# Half widths from the difference to a finer rule count it so many times: the finer rule has an error of its own.
DIFFERENCE_SAFETY = 1.5


def bistable_share(averages: Iterable[Averages]) -> float:
    """The largest share of the measure on which one of several rules saw the proximal map jump."""
    return max(abs(each.bistable) for each in averages)
