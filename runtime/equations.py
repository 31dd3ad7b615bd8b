"""The equations that branches and events solve, for `continuation`: a saddle point, and what marks an event on it.

Unknowns are the overlaps of a branch in coordinates of its invariant states, then one or two parameters. Every set of
equations can be evaluated with any integration rule, so that one linear solve carries an integration error, or the
spread of replicates, into every unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from .continuation import OUTSIDE, correct
from .fixed_point import StateMap
from .integration import ProxSpace
from .integration.averages import Averages, Rule
from .overlaps import Overlaps
from .problem import Problem
from .solution import Solution, covers, free_entropy_at, is_replicated, slope_settings
from .symmetry import Exchange, Symmetry, exchanges
from .tangents import MapSlopes, NoFormula, map_slopes

# Of slopes on a line of X, the first that covers the law of the fields (in a plane: see `slope_settings`).
_LINES = tuple(ProxSpace(*sizes) for sizes in ((216, 108), (432, 160), (1000, 240), (2400, 360)))
_COVERED = 1e-6  # what the weights of such a line may miss of one: slopes magnify it
_NARROW, _WIDE = 1e-5, 1e-2  # steps of a parameter, in its unit: smooth and sampled rules
_CURVATURE = 1e-4  # steps of a state where a slope is differentiated again
_CURVATURE_SAMPLED = 5e-2
_AMPLITUDE = 0.1  # of a broken symmetry, in block scales


def differences(function: Callable[[np.ndarray], np.ndarray], z: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Derivatives (n, len(z)) by central differences; one-sided where one side lies outside the domain.

    Raises:
        DomainError, InputError: both sides do.
    """
    columns = []
    for shift, step in zip(np.diag(steps), steps, strict=True):
        ends: dict[float, np.ndarray] = {}
        failures: list[Exception] = []
        for way in (1.0, -1.0):
            try:
                ends[way] = function(z + way * shift)
            except OUTSIDE as error:
                failures.append(error)
        if len(failures) == 2:
            raise failures[0]
        if failures:
            ends[0.0] = function(z)
        (high, above), (low, below) = sorted(ends.items(), reverse=True)
        columns.append((above - below) / ((high - low) * step))
    return np.stack(columns, axis=1)


class BranchMap:
    """G(u) - u of a problem in coordinates of the states that keep a symmetry, as a function of parameters too.

    Args:
        parameters: names of the scalar parameters that vary; span: the unit in which each is measured.
        symmetry: what the states keep; rule: integrates, unless another is given.
    """

    def __init__(
        self, problem: Problem, parameters: Sequence[str], span: Sequence[float], symmetry: Symmetry, rule: Rule
    ) -> None:
        self.problem, self.parameters, self.symmetry, self.rule = problem, tuple(parameters), symmetry, rule
        self.loss_rule = rule  # of the free entropy, where that asks for more than the overlaps
        self.span = np.asarray(span, float)
        self.sizes = problem.sizes
        contexts, s, t, trained = self.sizes
        count = contexts * (s * (s + 1) + s + s * t) + trained
        self.basis = symmetry.directions(self.sizes, count)  # (k, n), entries 0 and +-1
        self.norms = np.sum(self.basis**2, axis=1)
        self._at = lru_cache(maxsize=32)(self._problem_at)
        self._formulas = lru_cache(maxsize=8)(self._formulas_at)
        self.slopes_by: set[str] = set()  # how dG/du was found so far

    @classmethod
    def of(cls, solution: Solution, parameters: Sequence[str], span: Sequence[float]) -> BranchMap:
        """The map around a solution, with its rule and symmetry."""
        symmetry = solution.symmetry or Symmetry()
        found = cls(solution.problem, parameters, span, symmetry, solution.rule)
        found.loss_rule = solution.loss_rule or solution.rule
        return found

    @property
    def size(self) -> int:
        """Number of coordinates k."""
        return len(self.basis)

    def state(self, x: np.ndarray) -> np.ndarray:
        """Packed overlaps (n,) from coordinates (k,)."""
        return x @ self.basis

    def coordinates(self, u: np.ndarray) -> np.ndarray:
        return (self.basis @ u) / self.norms

    def overlaps(self, x: np.ndarray) -> Overlaps:
        return Overlaps.unpack(self.state(x), self.sizes)

    def _problem_at(self, values: tuple[float, ...]) -> Problem:
        changed = self.problem.with_(**dict(zip(self.parameters, values, strict=True)))
        return replace(changed, search=self.problem.search)

    def problem_at(self, values: np.ndarray) -> Problem:
        """Raises InputError where a value is out of range."""
        return self._at(tuple(float(v) for v in values))

    def map_at(self, values: np.ndarray, rule: Rule | None = None) -> StateMap:
        return StateMap(self.problem_at(values), rule or self.rule, self.symmetry)

    def units(self, x: np.ndarray) -> np.ndarray:
        """Block scales of the coordinates, (k,)."""
        return self.scales(x)[np.argmax(self.basis != 0, axis=1)]

    def gaps(self, x: np.ndarray, values: np.ndarray, rule: Rule | None = None) -> np.ndarray:
        """G(u) - u in units of the block scales, a replicate a row, (R, k)."""
        return self.gaps_and_averages(x, values, rule)[0]

    def gaps_and_averages(
        self, x: np.ndarray, values: np.ndarray, rule: Rule | None = None
    ) -> tuple[np.ndarray, Averages]:
        """As `gaps`, with the averages that gave them."""
        u = self.state(x)
        images, averages = self.map_at(values, rule).replicates(u, self.sizes)
        return (images - u) @ self.basis.T / self.norms / self.units(x), averages

    def images(self, u: np.ndarray, values: np.ndarray, rule: Rule | None = None) -> np.ndarray:
        """G(u) of any state, a replicate a row, (R, n)."""
        return StateMap(self.problem_at(values), rule or self.rule).replicates(u, self.sizes)[0]

    def scales(self, x: np.ndarray) -> np.ndarray:
        """Block scales of all packed components, (n,)."""
        return self.overlaps(x).block_scales

    def free_entropies(
        self, x: np.ndarray, values: np.ndarray, rule: Rule, averages: Averages | None = None
    ) -> np.ndarray:
        """Phi of every replicate of a rule, (R,); stationary at a solution.

        Args:
            averages: the rule's at this place, where they are known.
        """
        state_map = self.map_at(values, rule)
        overlaps = self.overlaps(x)
        averages = averages or state_map.averages(overlaps)
        return np.array([free_entropy_at(state_map, overlaps, one) for one in replicates_of(averages)])

    def formulas(self, u: np.ndarray, values: np.ndarray, rule: Rule) -> MapSlopes | None:
        """Slopes of G at a packed state from printed derivatives, in place of differences; None where they do not hold
        or do not pay: grids over a single field are visited faster than the loop is compiled."""
        if not isinstance(rule, ProxSpace):
            self.slopes_by.add("differences (the rule is no grid in X)")
            return None
        return self._formulas(u.tobytes(), tuple(float(v) for v in values), rule)

    def _formulas_at(self, state: bytes, values: tuple[float, ...], rule: ProxSpace) -> MapSlopes | None:
        if self.problem.solver.channel.FIELDS == 1:
            reason = "of a single field they are faster"
        else:
            try:
                found = map_slopes(StateMap(self._at(values), rule), np.frombuffer(state))
                self.slopes_by.add("printed derivatives")
                return found
            except NoFormula as error:
                reason = str(error)
        self.slopes_by.add(f"differences ({reason})")
        return None

    def slopes(self, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Derivatives of the gaps' numerators G(u) - u in the same units: (k, k + parameters)."""
        scales = self.units(x)
        rule, steps = self._slope_settings(x, values)
        steps = np.broadcast_to(steps, self.basis.shape[1:])[np.argmax(self.basis != 0, axis=1)] * scales
        width = (_WIDE if is_replicated(self.rule) else _NARROW) * self.span
        k = self.size

        def gap(z: np.ndarray) -> np.ndarray:
            u = self.state(z[:k])
            image = self.map_at(z[k:], rule)(u, self.sizes)
            return (self.basis @ (image - u)) / self.norms / scales

        z, u = np.concatenate([x, values]), self.state(x)
        printed = self.formulas(u, values, rule)
        if printed is None:
            return differences(gap, z, np.concatenate([steps, width]))
        moved = np.column_stack([printed.state @ self.basis.T, printed.alpha])
        still = np.column_stack([self.basis.T, np.zeros(len(u))])
        moved = self.map_at(values, rule).kept_slopes(u, moved, still, self.sizes) - still
        own = (self.basis @ moved) / self.norms[:, None] / scales[:, None]
        others = [n for n, name in enumerate(self.parameters) if name != "alpha"]
        out = np.empty((k, len(z)))
        out[:, :k], out[:, k:] = own[:, :k], own[:, k:]
        if others:

            def gap_of(part: np.ndarray) -> np.ndarray:
                there = values.copy()
                there[others] = part
                return gap(np.concatenate([x, there]))

            out[:, k + np.array(others)] = differences(gap_of, values[others], width[others])
        return out

    def across(self, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        """dG/du across the invariant states, (r, r) in an orthonormal basis in units of the block scales.

        G is odd there: of differences, one side says as much as two.
        """
        sector = complement(self.basis)
        problem, overlaps, u = self.problem_at(values), self.overlaps(x), self.state(x)
        rule, steps = self._slope_settings(x, values)
        state_map, scales = StateMap(problem, rule), overlaps.block_scales
        printed = self.formulas(u, values, rule) if len(sector) else None
        if printed is not None:
            return sector @ (printed.state * scales / scales[:, None]) @ sector.T
        columns = []
        for direction in sector:
            size = float(np.min(np.broadcast_to(steps, u.shape)[direction != 0]))
            columns.append(sector @ (state_map(u + size * scales * direction, self.sizes) / scales) / size)
        return np.stack(columns, axis=1) if columns else np.zeros((0, 0))

    def slope_rule(self, x: np.ndarray, values: np.ndarray) -> Rule:
        """The rule over whose nodes slopes are taken."""
        return self._slope_settings(x, values)[0]

    def _slope_settings(self, x: np.ndarray, values: np.ndarray) -> tuple[Rule, float | np.ndarray]:
        """Rule and steps of the differences: those of `solve`, on a coarse grid with a single field, too."""
        problem, overlaps = self.problem_at(values), self.overlaps(x)
        rule, steps, _ = slope_settings(problem, self.rule, overlaps)
        if isinstance(rule, ProxSpace):
            coarser = (line for line in _LINES if line.points < rule.points)
            rule = next((line for line in coarser if covers(problem, line, overlaps, _COVERED)), rule)
        return rule, steps

    def idle(self, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Orthonormal directions (k, j), in units of the block scales, along the orbit of a continuous symmetry."""
        state_map = self.map_at(values)
        if not len(state_map.turns):
            return np.empty((self.size, 0))
        along = state_map.orbit(self.state(x), self.sizes)
        reduced = self.basis @ along / np.sqrt(self.norms)[:, None]
        left, sizes, _ = np.linalg.svd(reduced, full_matrices=False)
        return left[:, sizes > 1e-8]


def complement(basis: np.ndarray) -> np.ndarray:
    """Orthonormal directions (r, n) across the rows of a basis."""
    return np.linalg.svd(basis, full_matrices=True)[2][len(basis) :]


def kept_by(direction: np.ndarray, branch: BranchMap) -> Symmetry:
    """The symmetry of the problem that leaves a direction (n,) as it is, up to a twentieth of its size."""
    clusters, size = branch.problem.clusters, float(np.max(np.abs(direction)))

    def keeps(exchange: Exchange) -> bool:
        image = exchange.of_overlaps(Overlaps.unpack(direction, branch.sizes), clusters).pack()
        return bool(np.max(np.abs(image - direction)) < 0.05 * size)

    return Symmetry(None, tuple(e for e in exchanges(branch.problem) if keeps(e)), clusters)


def sector_of(direction: np.ndarray, branch: BranchMap) -> np.ndarray:
    """The smallest symmetry sector that holds a direction (n,) across the invariant states of a branch.

    It consists of what the exchanges that leave the direction as it is leave as they are, without the invariant states:
    orthonormal rows (r, n). dG/du maps it to itself.
    """
    larger = kept_by(direction, branch).directions(branch.sizes, len(direction))
    rows = larger / np.linalg.norm(larger, axis=1)[:, None]
    own = branch.basis / np.sqrt(branch.norms)[:, None]
    rest = rows - rows @ own.T @ own
    _, sizes, found = np.linalg.svd(rest, full_matrices=False)
    return found[sizes > 1e-8]


def replicates_of(averages: Averages) -> list[Averages]:
    """One set of averages a replicate."""
    return [
        replace(averages, moments=one[None], moreau=moreau[None], loss=loss[None])
        for one, moreau, loss in zip(averages.moments, averages.moreau, averages.loss, strict=True)
    ]


Change = Callable[[Rule], Rule]
"""What rule to take instead of a branch's own."""


def unchanged(rule: Rule) -> Rule:
    return rule


class Equations:
    """What `continuation.System` asks for, from equations that come in replicates."""

    branches: tuple[BranchMap, ...]

    def replicates(self, z: np.ndarray, change: Change = unchanged) -> np.ndarray:
        """The equations of every replicate of the branches' rules, or of others, (R, n)."""
        raise NotImplementedError

    def slopes(self, z: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def units(self, z: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def residual(self, z: np.ndarray) -> np.ndarray:
        return self.replicates(z).mean(axis=0)

    def idle(self, z: np.ndarray) -> np.ndarray:
        return np.empty((len(z), 0))


class BranchEquations(Equations):
    """The saddle point: unknowns (x, parameters)."""

    def __init__(self, branch: BranchMap) -> None:
        self.branch = branch
        self.branches = (branch,)

    def parts(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return z[: self.branch.size], z[self.branch.size :]

    def replicates(self, z: np.ndarray, change: Change = unchanged) -> np.ndarray:
        return self.branch.gaps(*self.parts(z), change(self.branch.rule))

    def slopes(self, z: np.ndarray) -> np.ndarray:
        return self.branch.slopes(*self.parts(z))

    def units(self, z: np.ndarray) -> np.ndarray:
        return np.concatenate([self.branch.units(self.parts(z)[0]), self.branch.span])

    def idle(self, z: np.ndarray) -> np.ndarray:
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

    def _step(self, change: Change) -> float:
        return _CURVATURE_SAMPLED if is_replicated(change(self.branch.rule)) else _CURVATURE

    def _along(self, z: np.ndarray, direction: np.ndarray, scales: np.ndarray, change: Change) -> np.ndarray:
        """(dG/du - 1) times a direction of the sector (r,), by formulas or a central difference, a replicate a row."""
        u = self.branch.state(self.parts(z)[0])
        values, rule = self.parts(z)[1], change(self.branch.rule)
        printed = self.branch.formulas(u, values, rule)
        if printed is not None:
            moved = printed.state @ (scales * (direction @ self.sector)) / scales
            return (moved @ self.sector.T - direction)[None]
        step = self._step(change)
        shift = step * scales * (direction @ self.sector)
        ends = [self.branch.images(u + way * shift, values, rule) for way in (1.0, -1.0)]
        return (ends[0] - ends[1]) / (2 * step * scales) @ self.sector.T - direction

    def blocks(self, z: np.ndarray, change: Change = unchanged) -> np.ndarray:
        """dG/du - 1 in the sector, a replicate each, (R, r, r)."""
        scales = self.branch.scales(self.parts(z)[0])
        return np.stack([self._along(z, unit, scales, change) for unit in np.eye(len(self.sector))], axis=2)

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

    def replicates(self, z: np.ndarray, change: Change = unchanged) -> np.ndarray:
        marks = [self._bordered(block)[2] for block in self.blocks(z, change)]
        return np.column_stack([super().replicates(z, change), marks])

    def slopes(self, z: np.ndarray) -> np.ndarray:
        """Of g: -w^T d(dG/du) v with the null vectors v, w held fixed."""
        own = super().slopes(z)
        right, left, _ = self._bordered(self.blocks(z).mean(axis=0))
        scales, coarse = self.branch.scales(self.parts(z)[0]), self.branch.slope_rule(*self.parts(z))

        def mark(there: np.ndarray) -> np.ndarray:
            return -np.atleast_1d(left @ self._along(there, right, scales, lambda _: coarse).mean(axis=0))

        steps = self._step(lambda _: coarse) * self.units(z)
        return np.concatenate([own, differences(mark, z, steps)])

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


class CrossingEquations(Equations):
    """Two branches of equal free entropy: unknowns (x of one, x of the other, parameters)."""

    def __init__(self, one: BranchMap, other: BranchMap, loss_unit: float) -> None:
        self.one, self.other, self.loss_unit = one, other, loss_unit
        self.branches = one, other

    def parts(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        middle, end = self.one.size, self.one.size + self.other.size
        return z[:middle], z[middle:end], z[end:]

    def _difference(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Of the free entropies of the two, a replicate a row, in units of the loss; of their means otherwise."""
        if len(first) != len(second):
            first, second = (np.atleast_1d(phi.mean()) for phi in (first, second))
        return (first - second) / self.loss_unit

    def replicates(self, z: np.ndarray, change: Change = unchanged) -> np.ndarray:
        x, y, values = self.parts(z)

        def both(branch: BranchMap, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            rule, loss_rule = change(branch.rule), change(branch.loss_rule)
            gaps, averages = branch.gaps_and_averages(at, values, rule)
            return gaps, branch.free_entropies(at, values, loss_rule, averages if loss_rule == rule else None)

        (first, first_phi), (second, second_phi) = both(self.one, x), both(self.other, y)
        difference = self._difference(first_phi, second_phi)
        if len({len(first), len(second), len(difference)}) > 1:
            first, second, difference = (
                np.atleast_2d(part.mean(axis=0)) for part in (first, second, difference[:, None])
            )
        return np.column_stack([first, second, difference])

    def slopes(self, z: np.ndarray) -> np.ndarray:
        x, y, values = self.parts(z)
        first, second = self.one.slopes(x, values), self.other.slopes(y, values)
        k, j = len(x), len(y)
        out = np.zeros((k + j + 1, len(z)))
        out[:k, :k], out[:k, k + j :] = first[:, :k], first[:, k:]
        out[k : k + j, k : k + j], out[k : k + j, k + j :] = second[:, :j], second[:, j:]
        # Phi is stationary in the overlaps: only the parameters move the difference.
        width = (_WIDE if is_replicated(self.one.rule) else _NARROW * 10) * self.one.span

        def difference(there: np.ndarray) -> np.ndarray:
            pairs = (self.one, x), (self.other, y)
            phis = [branch.free_entropies(at, there, branch.loss_rule) for branch, at in pairs]
            return np.atleast_1d(self._difference(*phis).mean())

        out[-1, k + j :] = differences(difference, values, width)[0]
        return out

    def units(self, z: np.ndarray) -> np.ndarray:
        x, y, _ = self.parts(z)
        return np.concatenate([self.one.units(x), self.other.units(y), self.one.span])


class ConditionEquations(BranchEquations):
    """A saddle point at which a function of (problem, overlaps) vanishes: unknowns (x, parameters)."""

    def __init__(self, branch: BranchMap, condition: Callable[[Problem, Overlaps, Rule], float], unit: float) -> None:
        super().__init__(branch)
        self.condition, self.unit = condition, unit

    def _condition(self, z: np.ndarray, change: Change) -> float:
        x, values = self.parts(z)
        problem = self.branch.problem_at(values)
        return self.condition(problem, self.branch.overlaps(x), change(self.branch.rule)) / self.unit

    def replicates(self, z: np.ndarray, change: Change = unchanged) -> np.ndarray:
        gaps = super().replicates(z, change)
        return np.column_stack([gaps, np.full(len(gaps), self._condition(z, change))])

    def slopes(self, z: np.ndarray) -> np.ndarray:
        steps = (_WIDE if is_replicated(self.branch.rule) else _CURVATURE) * self.units(z)
        condition = differences(lambda there: np.atleast_1d(self._condition(there, unchanged)), z, steps)
        return np.concatenate([super().slopes(z), condition])


__all__ = [
    "BranchEquations",
    "BranchMap",
    "ConditionEquations",
    "CrossingEquations",
    "Equations",
    "SingularEquations",
    "branching",
    "complement",
    "differences",
    "kept_by",
    "replicates_of",
    "sector_of",
]
