"""Systems of equations on a branch: the saddle point, and what marks an event on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle

import numpy as np

from ..base.errors import OUTSIDE, DomainError
from ..integration.estimates import Change
from ..integration.rule import Averages, Rule
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.slopes import differences
from .branch_map import NARROW_STEP, WIDE_STEP, BranchMap, kept_by
from .continuation import correct

_CURVATURE = 2e-5  # steps of a state where a slope is differentiated again
_CURVATURE_SAMPLED = 5e-2
_SLOPE = 4e-4  # steps of a state where a slope is to be exact, of smooth rules
# (place in steps, weight) of central differences.
_TWO_PLACES = ((1, 1 / 2), (-1, -1 / 2))
_FOUR_PLACES = ((1, 2 / 3), (-1, -2 / 3), (2, -1 / 12), (-2, 1 / 12))
_AMPLITUDE = 0.1  # of a broken symmetry, in block scales


def unchanged(rule: Rule) -> Rule:
    """The branch's own rule."""
    return rule


class BranchEquations:
    """The saddle point of a branch, or of several that share parameters: unknowns (x of every branch, parameters).

    What `continuation.System` asks for, from equations that come in replicates. Subclasses add one equation, the mark
    of an event, by `mark` and `mark_slopes`.
    """

    hold_slopes = False  # whether some of the equations are about slopes of the averages

    def __init__(self, *branches: BranchMap) -> None:
        self.branches = branches
        self.branch = branches[0]

    def parts(self, z: np.ndarray) -> tuple[np.ndarray, ...]:
        """Coordinates of the overlaps of every branch (k,), and values of the parameters."""
        return tuple(np.split(z, np.cumsum([branch.size for branch in self.branches])))

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Return the rules of the overlaps of each branch."""
        return tuple(branch.rule for branch in self.branches)

    def averages(self, z: np.ndarray, change: Change = unchanged) -> tuple[Averages, ...]:
        """The channel averages that the equations rest on, one a rule of `rules` or what takes its place."""
        *places, values = self.parts(z)
        visits = cycle(zip(self.branches, places, strict=True))
        return tuple(
            branch.averages(x, values, change(rule)) for (branch, x), rule in zip(visits, self.rules, strict=False)
        )

    def border(self, z: np.ndarray) -> None:
        """Take from a point nearby what the mark of an event rests on."""

    def mark(self, z: np.ndarray, change: Change) -> np.ndarray | None:
        """The equation that marks an event, (R,), or one value () for all replicates; None where there is none."""
        return None

    def mark_slopes(self, z: np.ndarray) -> np.ndarray:
        """Its derivatives, (1, len(z))."""
        return np.zeros((0, len(z)))

    def replicates(self, z: np.ndarray, change: Change = unchanged) -> np.ndarray:
        """The equations of every replicate of the branches' rules, or of others, (R, n): G(u) - u of docs/theory.md
        (5.15) in units of the block scales, then the mark.

        Means, as one row, where the rules come in different numbers of replicates.
        """
        *places, values = self.parts(z)
        columns = [
            branch.residuals(x, values, change(branch.rule)) for branch, x in zip(self.branches, places, strict=True)
        ]
        mark = self.mark(z, change)
        if mark is not None:
            columns.append((mark if mark.ndim else np.full(len(columns[0]), mark))[:, None])
        if len({len(column) for column in columns}) > 1:
            columns = [np.atleast_2d(column.mean(axis=0)) for column in columns]
        return np.column_stack(columns)

    def residual(self, z: np.ndarray) -> np.ndarray:
        """The mean of the equations over the replicates, (n,)."""
        return self.replicates(z).mean(axis=0)

    def slopes(self, z: np.ndarray) -> np.ndarray:
        """Derivatives (n, len(z)) of the residual: of each branch in its own unknowns and the parameters, and of the
        mark."""
        *places, values = self.parts(z)
        first, count = 0, len(z) - len(values)
        out = np.zeros((count, len(z)))
        for branch, x in zip(self.branches, places, strict=True):
            own, last = branch.slopes(x, values), first + len(x)
            out[first:last, first:last], out[first:last, count:] = own[:, : len(x)], own[:, len(x) :]
            first = last
        return np.concatenate([out, self.mark_slopes(z)])

    def units(self, z: np.ndarray) -> np.ndarray:
        """The size of every unknown, (len(z),): block scales of the coordinates, then the span of every parameter."""
        *places, _ = self.parts(z)
        scales = (branch.units(x) for branch, x in zip(self.branches, places, strict=True))
        return np.concatenate([*scales, self.branch.span])

    def idle(self, z: np.ndarray) -> np.ndarray:
        """The orbit of the continuous symmetry of a single branch, along which no parameter moves, (len(z), j)."""
        if len(self.branches) > 1:
            return np.empty((len(z), 0))
        along = self.branch.idle(*self.parts(z))
        return np.concatenate([along, np.zeros((len(z) - len(along), along.shape[1]))])


class SingularEquations(BranchEquations):
    """A saddle point at which 1 is an eigenvalue of dG/du in a sector: unknowns (x, parameters).

    The last equation is the g of the bordered system [[dG/du - 1, b], [c^T, 0]] (v, g) = (0, 1): smooth, and zero
    exactly where the block is singular (docs/theory.md (9.2); Govaerts, Numerical Methods for Bifurcations, SIAM
    2000). With the sector of the invariant states this is a fold; with that of the others, a loss of stability toward
    broken symmetry.

    Args:
        sector: orthonormal directions (r, n) in units of the block scales, a space that dG/du maps to itself.
    """

    def __init__(self, branch: BranchMap, sector: np.ndarray) -> None:
        super().__init__(branch)
        self.sector = sector
        self.left = self.right = np.zeros(0)
        self.hold_slopes = True

    def _step(self, change: Change) -> float:
        return _CURVATURE_SAMPLED if change(self.branch.rule).replicated else _CURVATURE

    def _along(
        self, z: np.ndarray, direction: np.ndarray, scales: np.ndarray, change: Change, widened: float | None = 1.0
    ) -> np.ndarray:
        """(dG/du - 1) times a direction of the sector (r,), by formulas or central differences, a replicate a row.

        Args:
            widened: by which the steps of the differences are longer than usual; None for two narrow ones, where a
                rough value will do.
        """
        u = self.branch.state(self.parts(z)[0])
        values, rule = self.parts(z)[1], change(self.branch.rule)
        printed = self.branch.formulas(u, values, rule)
        if printed is not None:
            moved = printed.state @ (scales * (direction @ self.sector)) / scales
            return (moved @ self.sector.T - direction)[None]

        def slope(step: float, stencil: tuple[tuple[int, float], ...]) -> np.ndarray:
            shift = step * scales * (direction @ self.sector)
            images = [weight * self.branch.images(u + place * shift, values, rule) for place, weight in stencil]
            return np.sum(images, axis=0) / (step * scales) @ self.sector.T - direction

        if widened is not None and not rule.replicated:
            with suppress(DomainError):  # the edge of the domain may be nearer than that
                return slope(widened * _SLOPE, _FOUR_PLACES)
        return slope((widened or 1.0) * self._step(change), _TWO_PLACES)

    def blocks(self, z: np.ndarray, change: Change = unchanged, widened: float = 1.0) -> np.ndarray:
        """dG/du - 1 in the sector, a replicate each, (R, r, r); `widened` as of `_along`."""
        scales = self.branch.scales(self.parts(z)[0])
        return np.stack([self._along(z, unit, scales, change, widened) for unit in np.eye(len(self.sector))], axis=2)

    def border(self, z: np.ndarray) -> None:
        """Take the borders b and c from the singular vectors of the block here, for its smallest singular value."""
        left, _, right = np.linalg.svd(self.blocks(z).mean(axis=0))
        self.left, self.right = left[:, -1], right[-1]

    def _bordered(self, block: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Right and left null vectors and g."""
        r = len(block)
        whole = np.zeros((r + 1, r + 1))
        whole[:r, :r], whole[:r, r], whole[r, :r] = block, self.left, self.right
        unit = np.zeros(r + 1)
        unit[r] = 1.0
        right = np.linalg.solve(whole, unit)
        left = np.linalg.solve(whole.T, unit)
        return right[:r], left[:r], float(right[r])

    def mark(self, z: np.ndarray, change: Change) -> np.ndarray:
        """The g of docs/theory.md (9.2) of every replicate, (R,)."""
        return np.array([self._bordered(block)[2] for block in self.blocks(z, change)])

    def mark_slopes(self, z: np.ndarray) -> np.ndarray:
        """Return the derivatives of g: -w^T d(dG/du) v with the null vectors v, w held fixed."""
        right, left, _ = self._bordered(self.blocks(z).mean(axis=0))
        scales, coarse = self.branch.scales(self.parts(z)[0]), self.branch.slope_rule(*self.parts(z))

        def projected(there: np.ndarray) -> np.ndarray:
            return -np.atleast_1d(left @ self._along(there, right, scales, lambda _: coarse, None).mean(axis=0))

        steps = self._step(lambda _: coarse) * self.units(z)
        return differences(projected, z, steps)

    def mark_error(self, z: np.ndarray) -> float:
        """How far differences with twice the steps move g: more than those of the usual steps leave uncertain."""
        marks = [self._bordered(self.blocks(z, widened=widened).mean(axis=0))[2] for widened in (1.0, 2.0)]
        return abs(marks[1] - marks[0])

    def beyond_first_order(self, z: np.ndarray, matrix: np.ndarray) -> float:
        """How far a fold's parameter lies, at least, beyond that of z, where g says that the fold is elsewhere.

        Along the branch g moves by g_s ds and the parameter, stationary at the fold, by 1/2 g_s / (w^T dG/dp) ds^2. g
        is off by what is left of it, and by what differences with twice the step change.

        Args:
            matrix: slopes (k + 1, k + 1) at z.
        """
        block = self.blocks(z).mean(axis=0)
        right, left, mark = self._bordered(block)
        scales, off = self.branch.scales(self.parts(z)[0]), abs(mark) + self.mark_error(z)
        along = self.branch.coordinates(scales * (right @ self.sector))
        steepness = abs(float(matrix[-1, :-1] @ along))
        pull = abs(float((left * np.sqrt(self.branch.norms)) @ matrix[:-1, -1]))
        return off**2 / max(2 * steepness * pull, 1e-300)

    def null_direction(self, z: np.ndarray) -> np.ndarray:
        """The packed direction (n,), in units of the block scales, that neither grows nor decays here."""
        right, _, _ = self._bordered(self.blocks(z).mean(axis=0))
        found = right @ self.sector
        return found / np.linalg.norm(found)


def branching(equations: SingularEquations, z: np.ndarray, tolerance: float) -> float:
    """On which side of a loss of stability the branch lies that begins there: its parameter moves by this times eps^2.

    The branch is corrected at an amplitude eps along the direction that neither grows nor decays; nan where it cannot
    be. Positive: toward larger values of the first parameter. With a stable branch below, the transition is continuous
    if it is positive, and comes with a jump if it is negative.
    """
    direction, branch = equations.null_direction(z), equations.branch
    x, values = equations.parts(z)
    others = dict(zip(branch.parameters[1:], values[1:], strict=True))
    problem = replace(branch.problem.with_(**{k: float(v) for k, v in others.items()}), search=branch.problem.search)
    broken = BranchMap(problem, branch.parameters[:1], [float(branch.span[0])], kept_by(direction, branch), branch.rule)
    system, scales = BranchEquations(broken), branch.scales(x)
    start = np.append(broken.coordinates(branch.state(x) + _AMPLITUDE * scales * direction), values[0])
    across = np.append(broken.coordinates(scales * direction) / broken.units(start[:-1]), 0.0)
    try:
        found = correct(system, start, system.slopes(start), across / np.linalg.norm(across), tolerance)
    except OUTSIDE:
        return np.nan
    return np.nan if found is None else float(found[0][-1] - values[0]) / _AMPLITUDE**2


class CrossingEquations(BranchEquations):
    """Two branches of equal free entropy: unknowns (x of the first, x of the second, parameters)."""

    def __init__(self, first: BranchMap, second: BranchMap, loss_unit: float) -> None:
        super().__init__(first, second)
        self.loss_unit = loss_unit

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Return the rules of the overlaps, then those of the free entropies, of each branch."""
        return *super().rules, *(branch.loss_rule for branch in self.branches)

    def _difference(self, places: Sequence[np.ndarray], values: np.ndarray, change: Change) -> np.ndarray:
        """Return the difference of both free entropies in units of the loss, by replicates or of their means."""
        first, second = (
            branch.free_entropies(x, values, change(branch.loss_rule))
            for branch, x in zip(self.branches, places, strict=True)
        )
        if len(first) != len(second):
            first, second = (np.atleast_1d(phi.mean()) for phi in (first, second))
        return (first - second) / self.loss_unit

    def mark(self, z: np.ndarray, change: Change) -> np.ndarray:
        """Phi_1 - Phi_2 (docs/theory.md (9.1)) in units of the loss."""
        *places, values = self.parts(z)
        return self._difference(places, values, change)

    def mark_slopes(self, z: np.ndarray) -> np.ndarray:
        """In the parameters alone: Phi is stationary in the overlaps."""
        *places, values = self.parts(z)
        width = (WIDE_STEP if self.branch.rule.replicated else NARROW_STEP * 10) * self.branch.span

        def difference(there: np.ndarray) -> np.ndarray:
            return np.atleast_1d(self._difference(places, there, unchanged).mean())

        moved = differences(difference, values, width)
        return np.concatenate([np.zeros((1, len(z) - len(values))), moved], axis=1)


class ConditionEquations(BranchEquations):
    """A saddle point at which a function of (problem, overlaps) vanishes: unknowns (x, parameters)."""

    def __init__(self, branch: BranchMap, condition: Callable[[Problem, Overlaps, Rule], float], unit: float) -> None:
        super().__init__(branch)
        self.condition, self.unit = condition, unit

    def mark(self, z: np.ndarray, change: Change) -> np.ndarray:
        """The condition, one value for all replicates, in its unit."""
        x, values = self.parts(z)
        problem, overlaps = self.branch.problem_at(values), self.branch.overlaps(x)
        return np.array(self.condition(problem, overlaps, change(self.branch.rule)) / self.unit)

    def mark_slopes(self, z: np.ndarray) -> np.ndarray:
        """Fill slopes by central differences, wide where the rule is sampled."""
        steps = (WIDE_STEP if self.branch.rule.replicated else _CURVATURE) * self.units(z)
        return differences(lambda there: np.atleast_1d(self.mark(there, unchanged)), z, steps)
