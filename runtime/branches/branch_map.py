"""A branch as equations for `continuation`, in the overlaps and one or two parameters.

Unknowns are the overlaps in coordinates of the branch's invariant states, then the parameters. The map can be evaluated
with any integration rule, so that one linear solve carries an integration error, or the spread of replicates, into
every unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ..base.options import AlgorithmOptions
from ..integration.rule import Averages, Rule
from ..problems.overlaps import Overlaps, packed_length
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_loss
from ..problems.symmetry import Exchange, Symmetry, exchanges
from ..saddle_point.difference_jacobian import difference_settings, jacobian_by_differences
from ..saddle_point.generated_jacobian import FormulaUnavailableError, MapSlopes, evaluate_map_slopes
from ..saddle_point.observables import free_entropy_at
from ..saddle_point.state_map import StateMap
from ..solving.refinement import covers_field_law
from ..solving.solution import Solution


@dataclass(frozen=True)
class BranchSlopeOptions(AlgorithmOptions):
    """Options of the derivatives of the equations of a branch and of its events.

    Steps are those of differences: larger ones magnify rounding less and have a larger truncation error.

    Attributes:
        parameter_step: of a parameter, in its unit, for smooth rules.
        sampled_parameter_step: the same for sampled rules.
        one_sided_ratio: of one-sided to central steps.
        first_size: index of the coarsest size over which slopes on a line of X are taken.
        mass_tolerance: by which the sum of its weights may differ from one.
        curvature_step: of a state, in block scales, where a slope is differentiated again.
        sampled_curvature_step: the same for sampled rules.
        state_step: of a state, in block scales, for fourth-order differences of smooth rules.
        amplitude: of a broken symmetry, in block scales, at which a branching coefficient is computed.
    """

    parameter_step: float = 1e-5
    sampled_parameter_step: float = 1e-2
    one_sided_ratio: float = 1e-2
    first_size: int = 2
    mass_tolerance: float = 1e-6
    curvature_step: float = 2e-5
    sampled_curvature_step: float = 5e-2
    state_step: float = 4e-4
    amplitude: float = 0.1


class BranchMap:
    """The map G(u) - u of a problem in coordinates of the states with a symmetry, as a function of parameters, too.

    Args:
        problem: at any values of the parameters.
        parameters: names of the scalar parameters that vary; span: the unit of each.
        symmetry: of the states (the invariant states); rule: which integrates, unless another is given.
    """

    def __init__(
        self, problem: Problem, parameters: Sequence[str], span: Sequence[float], symmetry: Symmetry, rule: Rule
    ) -> None:
        self.problem, self.parameters, self.symmetry, self.rule = problem, tuple(parameters), symmetry, rule
        self.loss_rule = rule  # of the free entropy, which may need a finer one
        self.span = np.asarray(span, float)
        self.sizes = problem.sizes
        self.basis = symmetry.directions(self.sizes, packed_length(self.sizes))  # (k, n), entries 0 and +-1
        self.norms = np.sum(self.basis**2, axis=1)
        self._cached_problem = lru_cache(maxsize=32)(self._problem_at)
        self._cached_formulas = lru_cache(maxsize=8)(self._formulas_at)
        self._cached_averages = lru_cache(maxsize=16)(self._averages_at)
        self.slopes_by: set[str] = set()  # how dG/du was found so far

    @classmethod
    def from_solution(cls, solution: Solution, parameters: Sequence[str], span: Sequence[float]) -> BranchMap:
        """Return the map around a solution, with its rule and symmetry.

        Args:
            solution: the solution.
            parameters: names of the scalar parameters that vary.
            span: the unit of each.
        """
        symmetry = solution.symmetry or Symmetry()
        found = cls(solution.problem, parameters, span, symmetry, solution.rule)
        found.loss_rule = solution.loss_rule or solution.rule
        return found

    @property
    def size(self) -> int:
        """Return the number of coordinates k."""
        return len(self.basis)

    def state(self, x: np.ndarray) -> np.ndarray:
        """Return packed overlaps (n,) from coordinates (k,)."""
        return x @ self.basis

    def coordinates(self, u: np.ndarray) -> np.ndarray:
        """Return the coordinates (k,) of the orthogonal projection of a packed state (n,) on the invariant states."""
        return (self.basis @ u) / self.norms

    def overlaps(self, x: np.ndarray) -> Overlaps:
        """Return the overlaps of coordinates (k,)."""
        return Overlaps.unpack(self.state(x), self.sizes)

    def _problem_at(self, values: tuple[float, ...]) -> Problem:
        changed = self.problem.with_(**dict(zip(self.parameters, values, strict=True)))
        return replace(changed, search=self.problem.search)

    def problem_at(self, values: np.ndarray) -> Problem:
        """Return the problem at values of the parameters; raises InputError where a value is out of range."""
        return self._cached_problem(tuple(float(v) for v in values))

    def state_map_at(self, values: np.ndarray, rule: Rule | None = None) -> StateMap:
        """Return G at values of the parameters.

        Args:
            values: of the parameters.
            rule: which integrates; that of the branch by default.

        Raises:
            InputError: a value is out of range.
        """
        return StateMap(self.problem_at(values), rule or self.rule, self.symmetry)

    def units(self, x: np.ndarray) -> np.ndarray:
        """Return the block scales of the coordinates, (k,)."""
        return self.scales(x)[np.argmax(self.basis != 0, axis=1)]

    def residuals(self, x: np.ndarray, values: np.ndarray, rule: Rule | None = None) -> np.ndarray:
        """Return G(u) - u in units of the block scales, a replicate a row, (R, k).

        Args:
            x: coordinates (k,).
            values: of the parameters.
            rule: which integrates; that of the branch by default.
        """
        u = self.state(x)
        averages = self.averages(x, values, rule)
        images = self.state_map_at(values, rule).images(u, averages, self.sizes)
        return (images - u) @ self.basis.T / self.norms / self.units(x)

    def averages(self, x: np.ndarray, values: np.ndarray, rule: Rule | None = None) -> Averages:
        """Return channel averages, cached.

        Args:
            x: coordinates (k,).
            values: of the parameters.
            rule: which integrates; that of the branch by default.
        """
        return self._averages_of(self.state(x), values, rule or self.rule)

    def _averages_of(self, u: np.ndarray, values: np.ndarray, rule: Rule) -> Averages:
        """Return averages, cached without alpha, on which they do not depend: only the conjugates do."""
        key = (None if n == "alpha" else float(v) for n, v in zip(self.parameters, values, strict=True))
        return self._cached_averages(u.tobytes(), tuple(key), rule)

    def _averages_at(self, state: bytes, values: tuple[float | None, ...], rule: Rule) -> Averages:
        own = self.problem.alpha if "alpha" in self.parameters else np.nan
        state_map = StateMap(self._cached_problem(tuple(own if v is None else v for v in values)), rule, self.symmetry)
        return state_map.averages(Overlaps.unpack(np.frombuffer(state).copy(), self.sizes))

    def images(self, u: np.ndarray, values: np.ndarray, rule: Rule | None = None) -> np.ndarray:
        """Return G(u) of any state, a replicate a row, (R, n).

        Args:
            u: packed overlaps (n,), which need not be invariant.
            values: of the parameters.
            rule: which integrates; that of the branch by default.
        """
        state_map = StateMap(self.problem_at(values), rule or self.rule)
        return state_map.images(u, self._averages_of(u, values, state_map.rule), self.sizes)

    def scales(self, x: np.ndarray) -> np.ndarray:
        """Return the block scales of all packed components, (n,)."""
        return self.overlaps(x).block_scales

    def free_entropies(self, x: np.ndarray, values: np.ndarray, rule: Rule) -> np.ndarray:
        """Return Phi of every replicate of a rule, (R,), which is stationary at a solution.

        Args:
            x: coordinates (k,).
            values: of the parameters.
            rule: which integrates.
        """
        state_map, overlaps = self.state_map_at(values, rule), self.overlaps(x)
        averages = self.averages(x, values, rule)
        return np.array([free_entropy_at(state_map, overlaps, one) for one in split_replicates(averages)])

    def slope_formulas(self, u: np.ndarray, values: np.ndarray, rule: Rule) -> MapSlopes | None:
        """Return slopes of G from generated formulas, or None where differences are to be used.

        That is where the formulas do not hold, or, for a single field, where differences take less time than compiling.

        Args:
            u: packed overlaps (n,).
            values: of the parameters.
            rule: which integrates.
        """
        if not rule.in_x:
            self.slopes_by.add("differences (the rule is no grid in X)")
            return None
        return self._cached_formulas(u.tobytes(), tuple(float(v) for v in values), rule)

    def _formulas_at(self, state: bytes, values: tuple[float, ...], rule: Rule) -> MapSlopes | None:
        if reduce_to_loss(self.problem).solver.channel.FIELDS == 1:
            reason = "of a single field they are faster"
        else:
            try:
                found = evaluate_map_slopes(StateMap(self._cached_problem(values), rule), np.frombuffer(state))
                self.slopes_by.add("printed derivatives")
                return found
            except FormulaUnavailableError as error:
                reason = str(error)
        self.slopes_by.add(f"differences ({reason})")
        return None

    def parameter_steps(self, smooth_factor: float = 1.0) -> np.ndarray:
        """Return the steps of differences in the parameters; those of a smooth rule may be longer by a factor."""
        options = BranchSlopeOptions.current()
        smooth = options.parameter_step * smooth_factor
        return (options.sampled_parameter_step if self.rule.replicated else smooth) * self.span

    def slopes(self, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the derivatives of G(u) - u in units of the block scales, (k, k + parameters).

        Args:
            x: coordinates (k,).
            values: of the parameters.
        """
        options, scales = BranchSlopeOptions.current(), self.units(x)
        rule, steps = self._slope_settings(x, values)
        steps = np.broadcast_to(steps, self.basis.shape[1:])[np.argmax(self.basis != 0, axis=1)] * scales
        width = self.parameter_steps()
        k = self.size

        def residual_at(z: np.ndarray) -> np.ndarray:
            u, state_map = self.state(z[:k]), self.state_map_at(z[k:], rule)
            means = self._averages_of(u, z[k:], rule).means
            image = state_map.impose_symmetry(
                u, state_map.image_from_averages(Overlaps.unpack(u, self.sizes), means), self.sizes
            )
            return (self.basis @ (image - u)) / self.norms / scales

        z, u = np.concatenate([x, values]), self.state(x)
        printed = self.slope_formulas(u, values, rule)
        if printed is None and rule.replicated:
            return jacobian_by_differences(residual_at, z, np.concatenate([steps, width]))
        if printed is None:
            return jacobian_by_differences(
                residual_at, z, options.one_sided_ratio * np.concatenate([steps, width]), residual_at(z)
            )
        image_slopes = np.column_stack([printed.state @ self.basis.T, printed.alpha])
        state_slopes = np.column_stack([self.basis.T, np.zeros(len(u))])
        moved = (
            self.state_map_at(values, rule).impose_symmetry_on_slopes(u, image_slopes, state_slopes, self.sizes)
            - state_slopes
        )
        own = (self.basis @ moved) / self.norms[:, None] / scales[:, None]
        others = [n for n, name in enumerate(self.parameters) if name != "alpha"]
        out = np.empty((k, len(z)))
        out[:, :k], out[:, k:] = own[:, :k], own[:, k:]
        if others:

            def residual_at_parameters(part: np.ndarray) -> np.ndarray:
                there = values.copy()
                there[others] = part
                return residual_at(np.concatenate([x, there]))

            out[:, k + np.array(others)] = jacobian_by_differences(
                residual_at_parameters, values[others], width[others]
            )
        return out

    def transverse_slopes(self, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return dG/du on the complement of the invariant states, (r, r), in an orthonormal basis and block scales.

        G is odd there, so that one-sided differences are of second order.

        Args:
            x: coordinates (k,).
            values: of the parameters.
        """
        sector = orthogonal_complement(self.basis)
        problem, overlaps, u = self.problem_at(values), self.overlaps(x), self.state(x)
        rule, steps = self._slope_settings(x, values)
        state_map, scales = StateMap(problem, rule), overlaps.block_scales
        printed = self.slope_formulas(u, values, rule) if len(sector) else None
        if printed is not None:
            return sector @ (printed.state * scales / scales[:, None]) @ sector.T
        columns = []
        for direction in sector:
            size = float(np.min(np.broadcast_to(steps, u.shape)[direction != 0]))
            columns.append(sector @ (state_map(u + size * scales * direction, self.sizes) / scales) / size)
        return np.stack(columns, axis=1) if columns else np.zeros((0, 0))

    def slope_rule(self, x: np.ndarray, values: np.ndarray) -> Rule:
        """Return the rule over whose nodes slopes are taken.

        Args:
            x: coordinates (k,).
            values: of the parameters.
        """
        return self._slope_settings(x, values)[0]

    def _slope_settings(self, x: np.ndarray, values: np.ndarray) -> tuple[Rule, np.ndarray]:
        """Return rule and steps of the differences, as in `solve`; grids in X are coarsened as far as they cover."""
        options = BranchSlopeOptions.current()
        problem, overlaps = self.problem_at(values), self.overlaps(x)
        rule, steps, _ = difference_settings(problem, self.rule, overlaps)
        if rule.in_x:
            sizes = rule.sizes(problem)[options.first_size :]
            coarser = (each for each in sizes if each.node_count(problem) < rule.node_count(problem))
            mass = options.mass_tolerance
            rule = next((each for each in coarser if covers_field_law(problem, each, overlaps, mass)), rule)
        return rule, steps

    def symmetry_directions(self, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return orthonormal directions (k, j), in block scales, along the orbit of a continuous symmetry.

        Args:
            x: coordinates (k,).
            values: of the parameters.
        """
        state_map = self.state_map_at(values)
        if not len(state_map.rotations):
            return np.empty((self.size, 0))
        orbit = state_map.orbit_directions(self.state(x), self.sizes)
        reduced = self.basis @ orbit / np.sqrt(self.norms)[:, None]
        left, sizes, _ = np.linalg.svd(reduced, full_matrices=False)
        return left[:, sizes > 1e-8]


def orthogonal_complement(basis: np.ndarray) -> np.ndarray:
    """Return orthonormal directions (r, n) orthogonal to the rows of a basis."""
    return np.linalg.svd(basis, full_matrices=True)[2][len(basis) :]


def symmetry_of_direction(direction: np.ndarray, branch: BranchMap) -> Symmetry:
    """Return the symmetry of the problem that leaves a direction as it is, up to a twentieth of its size.

    Args:
        direction: packed, (n,).
        branch: whose problem has the symmetries.
    """
    clusters, size = branch.problem.clusters, float(np.max(np.abs(direction)))

    def is_invariant_under(exchange: Exchange) -> bool:
        image = exchange.exchange_overlaps(Overlaps.unpack(direction, branch.sizes), clusters).pack()
        return bool(np.max(np.abs(image - direction)) < 0.05 * size)

    return Symmetry(None, tuple(e for e in exchanges(branch.problem) if is_invariant_under(e)), clusters)


def symmetry_sector(direction: np.ndarray, branch: BranchMap) -> np.ndarray:
    """Return the smallest symmetry sector that contains a direction, as orthonormal rows (r, n).

    It consists of the states invariant under all exchanges that leave the direction as it is, without the invariant
    states of the branch. dG/du maps it to itself.

    Args:
        direction: packed, (n,), orthogonal to the invariant states.
        branch: the branch.
    """
    larger = symmetry_of_direction(direction, branch).directions(branch.sizes, len(direction))
    rows = larger / np.linalg.norm(larger, axis=1)[:, None]
    own = branch.basis / np.sqrt(branch.norms)[:, None]
    rest = rows - rows @ own.T @ own
    _, sizes, found = np.linalg.svd(rest, full_matrices=False)
    return found[sizes > 1e-8]


def split_replicates(averages: Averages) -> list[Averages]:
    """Return the averages of each replicate."""
    return [
        replace(averages, moments=one[None], moreau=moreau[None], loss=loss[None])
        for one, moreau, loss in zip(averages.moments, averages.moreau, averages.loss, strict=True)
    ]
