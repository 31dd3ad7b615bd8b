"""A branch as equations for `continuation`, in the overlaps and one or two parameters.

Unknowns are the overlaps in coordinates of the branch's invariant states, then the parameters. The map can be evaluated
with any integration rule, so that one linear solve carries an integration error, or the spread of replicates, into
every unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ..integration.rule import Averages, Rule
from ..problems.overlaps import Overlaps, packed_length
from ..problems.problem import Problem
from ..problems.reduced import integrated
from ..problems.symmetry import Exchange, Symmetry, exchanges
from ..saddle_point.observables import free_entropy_at
from ..saddle_point.printed_slopes import MapSlopes, NoFormula, map_slopes
from ..saddle_point.slopes import differences, slope_settings
from ..saddle_point.state_map import StateMap
from ..solving.refinement import covers
from ..solving.solution import Solution

# Slopes on a line of X are taken on the first size from this one on that covers the law of the fields (in a plane: see
# `slope_settings`), whose weights may miss so much of one: slopes magnify it.
_FIRST_SIZE, _COVERED = 2, 1e-6
NARROW_STEP, WIDE_STEP = 1e-5, 1e-2  # steps of a parameter, in its unit: smooth and sampled rules
_ONE_SIDED = 1e-2  # of the steps of central differences


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
        self.basis = symmetry.directions(self.sizes, packed_length(self.sizes))  # (k, n), entries 0 and +-1
        self.norms = np.sum(self.basis**2, axis=1)
        self._at = lru_cache(maxsize=32)(self._problem_at)
        self._formulas = lru_cache(maxsize=8)(self._formulas_at)
        self._averages = lru_cache(maxsize=16)(self._averages_at)
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
        """Coordinates (k,) of the orthogonal projection of a packed state (n,) on the invariant states."""
        return (self.basis @ u) / self.norms

    def overlaps(self, x: np.ndarray) -> Overlaps:
        """The state of coordinates (k,) as blocks."""
        return Overlaps.unpack(self.state(x), self.sizes)

    def _problem_at(self, values: tuple[float, ...]) -> Problem:
        changed = self.problem.with_(**dict(zip(self.parameters, values, strict=True)))
        return replace(changed, search=self.problem.search)

    def problem_at(self, values: np.ndarray) -> Problem:
        """Raises InputError where a value is out of range."""
        return self._at(tuple(float(v) for v in values))

    def map_at(self, values: np.ndarray, rule: Rule | None = None) -> StateMap:
        """G at values of the parameters, by the branch's rule unless another is given; raises as `problem_at`."""
        return StateMap(self.problem_at(values), rule or self.rule, self.symmetry)

    def units(self, x: np.ndarray) -> np.ndarray:
        """Block scales of the coordinates, (k,)."""
        return self.scales(x)[np.argmax(self.basis != 0, axis=1)]

    def residuals(self, x: np.ndarray, values: np.ndarray, rule: Rule | None = None) -> np.ndarray:
        """G(u) - u in units of the block scales, a replicate a row, (R, k)."""
        u = self.state(x)
        averages = self.averages(x, values, rule)
        images = self.map_at(values, rule).images(u, averages, self.sizes)
        return (images - u) @ self.basis.T / self.norms / self.units(x)

    def averages(self, x: np.ndarray, values: np.ndarray, rule: Rule | None = None) -> Averages:
        """Channel averages, by the branch's rule unless another is given; the last ones are kept."""
        return self._averages_of(self.state(x), values, rule or self.rule)

    def _averages_of(self, u: np.ndarray, values: np.ndarray, rule: Rule) -> Averages:
        """They know nothing of alpha, which the conjugates are proportional to."""
        blind = (None if n == "alpha" else float(v) for n, v in zip(self.parameters, values, strict=True))
        return self._averages(u.tobytes(), tuple(blind), rule)

    def _averages_at(self, state: bytes, values: tuple[float | None, ...], rule: Rule) -> Averages:
        own = self.problem.alpha if "alpha" in self.parameters else np.nan
        state_map = StateMap(self._at(tuple(own if v is None else v for v in values)), rule, self.symmetry)
        return state_map.averages(Overlaps.unpack(np.frombuffer(state).copy(), self.sizes))

    def images(self, u: np.ndarray, values: np.ndarray, rule: Rule | None = None) -> np.ndarray:
        """G(u) of any state, a replicate a row, (R, n)."""
        state_map = StateMap(self.problem_at(values), rule or self.rule)
        return state_map.images(u, self._averages_of(u, values, state_map.rule), self.sizes)

    def scales(self, x: np.ndarray) -> np.ndarray:
        """Block scales of all packed components, (n,)."""
        return self.overlaps(x).block_scales

    def free_entropies(self, x: np.ndarray, values: np.ndarray, rule: Rule) -> np.ndarray:
        """Phi of every replicate of a rule, (R,); stationary at a solution."""
        state_map, overlaps = self.map_at(values, rule), self.overlaps(x)
        averages = self.averages(x, values, rule)
        return np.array([free_entropy_at(state_map, overlaps, one) for one in replicates_of(averages)])

    def formulas(self, u: np.ndarray, values: np.ndarray, rule: Rule) -> MapSlopes | None:
        """Slopes of G at a packed state from printed derivatives, in place of differences; None where they do not hold
        or do not pay: grids over a single field are visited faster than the loop is compiled."""
        if not rule.in_x:
            self.slopes_by.add("differences (the rule is no grid in X)")
            return None
        return self._formulas(u.tobytes(), tuple(float(v) for v in values), rule)

    def _formulas_at(self, state: bytes, values: tuple[float, ...], rule: Rule) -> MapSlopes | None:
        if integrated(self.problem).solver.channel.FIELDS == 1:
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
        width = (WIDE_STEP if self.rule.replicated else NARROW_STEP) * self.span
        k = self.size

        def gap(z: np.ndarray) -> np.ndarray:
            u, state_map = self.state(z[:k]), self.map_at(z[k:], rule)
            means = self._averages_of(u, z[k:], rule).means
            image = state_map.kept(u, state_map.image(Overlaps.unpack(u, self.sizes), means), self.sizes)
            return (self.basis @ (image - u)) / self.norms / scales

        z, u = np.concatenate([x, values]), self.state(x)
        printed = self.formulas(u, values, rule)
        if printed is None and rule.replicated:
            return differences(gap, z, np.concatenate([steps, width]))
        if printed is None:
            return differences(gap, z, _ONE_SIDED * np.concatenate([steps, width]), gap(z))
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

    def _slope_settings(self, x: np.ndarray, values: np.ndarray) -> tuple[Rule, np.ndarray]:
        """Rule and steps of the differences: those of `solve`, on a coarse grid with a single field, too."""
        problem, overlaps = self.problem_at(values), self.overlaps(x)
        rule, steps, _ = slope_settings(problem, self.rule, overlaps)
        if rule.in_x:
            sizes = rule.sizes(problem)[_FIRST_SIZE:]
            coarser = (line for line in sizes if line.nodes(problem) < rule.nodes(problem))
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
