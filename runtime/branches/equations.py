"""Systems of equations on a branch: the saddle point, extended by an equation that vanishes at an event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle

import numpy as np

from ..base.errors import DOMAIN_ERRORS, DomainError
from ..integration.estimates import RuleChange
from ..integration.rule import Rule, SaddlePointAverages
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.difference_jacobian import jacobian_by_differences
from .branch_map import BranchDerivativeOptions, BranchMap, symmetry_that_keeps_direction
from .continuation import correct_predicted_point

# (offset in steps, weight) of central differences of second and fourth order.
_SECOND_ORDER = ((1, 1 / 2), (-1, -1 / 2))
_FOURTH_ORDER = ((1, 2 / 3), (-1, -2 / 3), (2, -1 / 12), (-2, 1 / 12))


def keep_rule_unchanged(rule: Rule) -> Rule:
    """Return the quadrature rule unchanged (the default of the argument `change`)."""
    return rule


class BranchEquations:
    """The saddle-point equations of one branch, or of several branches that share parameters.

    Unknowns are the coordinates of every branch, then the parameters; every replicate of the quadrature rule has its
    own equations. Subclasses add one equation, which holds at an event (crossing, fold, instability).
    """

    depend_on_slopes = False  # whether some of the equations depend on slopes of the averages

    def __init__(self, *branches: BranchMap) -> None:
        self.branches = branches
        self.branch = branches[0]

    def split_coordinates_and_parameters(self, z: np.ndarray) -> tuple[np.ndarray, ...]:
        """Split the unknowns into the coordinates of every branch and the values of the parameters."""
        return tuple(np.split(z, np.cumsum([branch.dimension_of_invariant_states for branch in self.branches])))

    @property
    def quadrature_rules_of_branches(self) -> tuple[Rule, ...]:
        """Return the quadrature rule of the overlaps for each branch."""
        return tuple(branch.rule for branch in self.branches)

    def channel_averages(
        self, z: np.ndarray, change: RuleChange = keep_rule_unchanged
    ) -> tuple[SaddlePointAverages, ...]:
        """Return the channel averages at the unknowns, one for each quadrature rule of `quadrature_rules_of_branches`.

        Args:
            z: unknowns: coordinates of every branch, then the parameters.
            change: function that replaces a quadrature rule by another, for example by a finer one.
        """
        *places, values = self.split_coordinates_and_parameters(z)
        visits = cycle(zip(self.branches, places, strict=True))
        return tuple(
            branch.channel_averages(x, values, change(rule))
            for (branch, x), rule in zip(visits, self.quadrature_rules_of_branches, strict=False)
        )

    def update_bordering_vectors(self, z: np.ndarray) -> None:
        """Update the constants that the event equation depends on, at a nearby point; do nothing without an event."""

    def event_equation(self, z: np.ndarray, change: RuleChange) -> np.ndarray | None:
        """Return the left side of the equation that holds at an event (fold, crossing, ...); None for a branch alone.

        Args:
            z: unknowns: coordinates of every branch, then the parameters.
            change: function that replaces a quadrature rule by another, for example by a finer one.
        """
        return None

    def event_equation_gradient(self, z: np.ndarray) -> np.ndarray:
        """Return derivatives of the event equation in the unknowns, one row; no row for a branch without an event."""
        return np.zeros((0, len(z)))

    def replicate_residuals(self, z: np.ndarray, change: RuleChange = keep_rule_unchanged) -> np.ndarray:
        """Return the residuals, one row per replicate of the rule; one row of means if branches have unequal numbers.

        They are G(u) - u of docs/theory.md (5.15), relative to the sizes of q, V, m, ..., then the event equation.

        Args:
            z: unknowns: coordinates of every branch, then the parameters.
            change: function that replaces a quadrature rule by another, for example by a finer one.
        """
        *places, values = self.split_coordinates_and_parameters(z)
        columns = [
            branch.residuals_by_replicate(x, values, change(branch.rule))
            for branch, x in zip(self.branches, places, strict=True)
        ]
        event = self.event_equation(z, change)
        if event is not None:
            columns.append((event if event.ndim else np.full(len(columns[0]), event))[:, None])
        if len({len(column) for column in columns}) > 1:
            columns = [np.atleast_2d(column.mean(axis=0)) for column in columns]
        return np.column_stack(columns)

    def residual_of_equations(self, z: np.ndarray) -> np.ndarray:
        """Return the residuals of the equations, averaged over the replicates of the quadrature rule."""
        return self.replicate_residuals(z).mean(axis=0)

    def residual_jacobian(self, z: np.ndarray) -> np.ndarray:
        """Return the Jacobian of the equations, one column per unknown."""
        *places, values = self.split_coordinates_and_parameters(z)
        first, count = 0, len(z) - len(values)
        out = np.zeros((count, len(z)))
        for branch, x in zip(self.branches, places, strict=True):
            own, last = branch.residual_jacobian(x, values), first + len(x)
            out[first:last, first:last], out[first:last, count:] = own[:, : len(x)], own[:, len(x) :]
            first = last
        return np.concatenate([out, self.event_equation_gradient(z)])

    def units_of_unknowns(self, z: np.ndarray) -> np.ndarray:
        """Return the unit of every unknown: of coordinates the size of q, V, m, ...; of parameters the span."""
        *places, _ = self.split_coordinates_and_parameters(z)
        scales = (branch.coordinate_units(x) for branch, x in zip(self.branches, places, strict=True))
        return np.concatenate([*scales, self.branch.span])

    def symmetry_orbit_directions(self, z: np.ndarray) -> np.ndarray:
        """Return directions of the unknowns, in columns, along which a continuous symmetry moves a solution."""
        if len(self.branches) > 1:
            return np.empty((len(z), 0))
        orbit = self.branch.symmetry_orbit_directions(*self.split_coordinates_and_parameters(z))
        return np.concatenate([orbit, np.zeros((len(z) - len(orbit), orbit.shape[1]))])


class SingularJacobianEquations(BranchEquations):
    """The equations of a saddle point at which 1 is an eigenvalue of dG/du in a symmetry sector (fold, instability).

    The event equation is the g of the bordered system [[dG/du - 1, b], [c^T, 0]] (v, g) = (0, 1): smooth, and zero
    exactly where the block is singular (docs/theory.md (9.2); Govaerts, Numerical Methods for Bifurcations, SIAM
    2000). With the sector of the invariant states this is a fold; with that of the others, a loss of stability toward
    broken symmetry.

    Args:
        branch: the branch.
        sector: orthonormal basis, in rows, of a space that dG/du maps to itself, relative to the sizes of q, V, m, ...
    """

    def __init__(self, branch: BranchMap, sector: np.ndarray) -> None:
        super().__init__(branch)
        self.sector = sector
        self.left = self.right = np.zeros(0)
        self.depend_on_slopes = True

    def _difference_step_for_curvature(self, change: RuleChange) -> float:
        options = BranchDerivativeOptions.current()
        return options.sampled_curvature_step if change(self.branch.rule).replicated else options.curvature_step

    def _jacobian_times_sector_direction(
        self, z: np.ndarray, direction: np.ndarray, scales: np.ndarray, change: RuleChange, widened: float | None = 1.0
    ) -> np.ndarray:
        """Return dG/du - 1, applied to one direction of the symmetry sector, for each replicate of the rule.

        `widened` is a factor of the difference steps; None: second-order differences, which are less accurate.
        """
        u = self.branch.state_from_coordinates(self.split_coordinates_and_parameters(z)[0])
        values, rule = self.split_coordinates_and_parameters(z)[1], change(self.branch.rule)
        printed = self.branch.generated_map_derivatives(u, values, rule)
        if printed is not None:
            moved = printed.state @ (scales * (direction @ self.sector)) / scales
            return (moved @ self.sector.T - direction)[None]

        def _differentiate_map_along_direction(step: float, stencil: tuple[tuple[int, float], ...]) -> np.ndarray:
            shift = step * scales * (direction @ self.sector)
            images = [
                weight * self.branch.map_images_by_replicate(u + offset * shift, values, rule)
                for offset, weight in stencil
            ]
            return np.sum(images, axis=0) / (step * scales) @ self.sector.T - direction

        if widened is not None and not rule.replicated:
            with suppress(DomainError):  # long steps may leave the domain
                return _differentiate_map_along_direction(
                    widened * BranchDerivativeOptions.current().state_step, _FOURTH_ORDER
                )
        return _differentiate_map_along_direction(
            (widened or 1.0) * self._difference_step_for_curvature(change), _SECOND_ORDER
        )

    def jacobian_blocks_of_sector(
        self, z: np.ndarray, change: RuleChange = keep_rule_unchanged, widened: float = 1.0
    ) -> np.ndarray:
        """Return dG/du - 1, restricted to the directions of one symmetry sector, for each replicate of the rule.

        Args:
            z: unknowns: coordinates of every branch, then the parameters.
            change: function that replaces a quadrature rule by another, for example by a finer one.
            widened: factor that multiplies the difference steps.
        """
        scales = self.branch.block_scales_at_coordinates(self.split_coordinates_and_parameters(z)[0])
        units = np.eye(len(self.sector))
        return np.stack(
            [self._jacobian_times_sector_direction(z, unit, scales, change, widened) for unit in units], axis=2
        )

    def update_bordering_vectors(self, z: np.ndarray) -> None:
        """Update the vectors that border the singular Jacobian: its singular vectors at the smallest singular value."""
        left, _, right = np.linalg.svd(self.jacobian_blocks_of_sector(z).mean(axis=0))
        self.left, self.right = left[:, -1], right[-1]

    def _solve_bordered_system(self, block: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Return right and left null vector of a block of dG/du - 1, and a number g that is 0 if it is singular."""
        r = len(block)
        whole = np.zeros((r + 1, r + 1))
        whole[:r, :r], whole[:r, r], whole[r, :r] = block, self.left, self.right
        unit = np.zeros(r + 1)
        unit[r] = 1.0
        right = np.linalg.solve(whole, unit)
        left = np.linalg.solve(whole.T, unit)
        return right[:r], left[:r], float(right[r])

    def event_equation(self, z: np.ndarray, change: RuleChange) -> np.ndarray:
        """Return the number g by every replicate: zero where the Jacobian is singular, docs/theory.md (9.2).

        Args:
            z: unknowns: coordinates of every branch, then the parameters.
            change: function that replaces a quadrature rule by another, for example by a finer one.
        """
        return np.array([self._solve_bordered_system(block)[2] for block in self.jacobian_blocks_of_sector(z, change)])

    def event_equation_gradient(self, z: np.ndarray) -> np.ndarray:
        """Return the gradient of the singularity condition g, -w^T d(dG/du) v with null vectors v, w of dG/du - 1."""
        right, left, _ = self._solve_bordered_system(self.jacobian_blocks_of_sector(z).mean(axis=0))
        scales, coarse = (
            self.branch.block_scales_at_coordinates(self.split_coordinates_and_parameters(z)[0]),
            self.branch.quadrature_rule_of_derivatives(*self.split_coordinates_and_parameters(z)),
        )

        def projected_jacobian_at_unknowns(there: np.ndarray) -> np.ndarray:
            return -np.atleast_1d(
                left @ self._jacobian_times_sector_direction(there, right, scales, lambda _: coarse, None).mean(axis=0)
            )

        steps = self._difference_step_for_curvature(lambda _: coarse) * self.units_of_unknowns(z)
        return jacobian_by_differences(projected_jacobian_at_unknowns, z, steps)

    def event_equation_error(self, z: np.ndarray) -> float:
        """Return an upper estimate of the truncation error of the event equation, by difference steps twice as long."""
        marks = [
            self._solve_bordered_system(self.jacobian_blocks_of_sector(z, widened=widened).mean(axis=0))[2]
            for widened in (1.0, 2.0)
        ]
        return abs(marks[1] - marks[0])

    def fold_parameter_error(self, z: np.ndarray, matrix: np.ndarray) -> float:
        """Return the error of the parameter at a fold due to the error of the singularity condition g.

        Along the branch g changes by g_s ds and the parameter, stationary at the fold, by 1/2 g_s / (w^T dG/dp) ds^2.
        The error of g is the sum of its residual and `event_equation_error`.

        Args:
            z: unknowns near the fold.
            matrix: Jacobian of the equations at z, event equation included, one column per unknown.
        """
        block = self.jacobian_blocks_of_sector(z).mean(axis=0)
        right, left, event_equation = self._solve_bordered_system(block)
        scales, event_equation_error = (
            self.branch.block_scales_at_coordinates(self.split_coordinates_and_parameters(z)[0]),
            abs(event_equation) + self.event_equation_error(z),
        )
        tangent = self.branch.coordinates_of_state(scales * (right @ self.sector))
        mark_slope = abs(float(matrix[-1, :-1] @ tangent))
        slope_in_parameter = abs(float((left * np.sqrt(self.branch.norms)) @ matrix[:-1, -1]))
        return event_equation_error**2 / max(2 * mark_slope * slope_in_parameter, 1e-300)

    def null_direction(self, z: np.ndarray) -> np.ndarray:
        """Return the null vector of dG/du - 1, G the saddle-point map, as packed overlaps of norm 1 in their units."""
        right, _, _ = self._solve_bordered_system(self.jacobian_blocks_of_sector(z).mean(axis=0))
        direction = right @ self.sector
        return direction / np.linalg.norm(direction)


def branching_coefficient(equations: SingularJacobianEquations, z: np.ndarray, tolerance: float) -> float:
    """Return the coefficient c of a symmetry-breaking branch: the parameter changes by c eps^2 at its amplitude eps.

    The new branch is computed at an amplitude eps along the null direction; nan where that fails. A positive value
    means larger values of the first parameter. If the branch is stable below, the transition is continuous
    (supercritical) for a positive c and discontinuous (subcritical) for a negative one.

    Args:
        equations: equations of the instability at which the branch begins.
        z: unknowns of these equations.
        tolerance: largest residual at which a point of the new branch counts as solved.
    """
    amplitude = BranchDerivativeOptions.current().amplitude
    direction, branch = equations.null_direction(z), equations.branch
    x, values = equations.split_coordinates_and_parameters(z)
    others = dict(zip(branch.parameters[1:], values[1:], strict=True))
    problem = replace(branch.problem.with_(**{k: float(v) for k, v in others.items()}), search=branch.problem.search)
    symmetry = symmetry_that_keeps_direction(direction, branch)
    broken = BranchMap(problem, branch.parameters[:1], [float(branch.span[0])], symmetry, branch.rule)
    system, scales = BranchEquations(broken), branch.block_scales_at_coordinates(x)
    start = np.append(
        broken.coordinates_of_state(branch.state_from_coordinates(x) + amplitude * scales * direction), values[0]
    )
    normal = np.append(broken.coordinates_of_state(scales * direction) / broken.coordinate_units(start[:-1]), 0.0)
    try:
        found = correct_predicted_point(
            system, start, system.residual_jacobian(start), normal / np.linalg.norm(normal), tolerance
        )
    except DOMAIN_ERRORS:
        return np.nan
    return np.nan if found is None else float(found[0][-1] - values[0]) / amplitude**2


class CrossingEquations(BranchEquations):
    """The equations of two branches with equal free entropy.

    Unknowns are the coordinates of both branches, then the parameters.
    """

    def __init__(self, first: BranchMap, second: BranchMap, loss_unit: float) -> None:
        super().__init__(first, second)
        self.loss_unit = loss_unit

    @property
    def quadrature_rules_of_branches(self) -> tuple[Rule, ...]:
        """Return the quadrature rules of the overlaps, then of the free entropies, for both branches."""
        return *super().quadrature_rules_of_branches, *(branch.loss_rule for branch in self.branches)

    def _free_entropy_difference(
        self, places: Sequence[np.ndarray], values: np.ndarray, change: RuleChange
    ) -> np.ndarray:
        """Return the difference of the free entropies of both branches for each replicate, divided by its scale."""
        first, second = (
            branch.free_entropies_by_replicate(x, values, change(branch.loss_rule))
            for branch, x in zip(self.branches, places, strict=True)
        )
        if len(first) != len(second):
            first, second = (np.atleast_1d(phi.mean()) for phi in (first, second))
        return (first - second) / self.loss_unit

    def event_equation(self, z: np.ndarray, change: RuleChange) -> np.ndarray:
        """Return the difference of two branches' free entropies, which vanishes at a crossing, divided by its scale.

        Args:
            z: unknowns: coordinates of every branch, then the parameters.
            change: function that replaces a quadrature rule by another, for example by a finer one.
        """
        *places, values = self.split_coordinates_and_parameters(z)
        return self._free_entropy_difference(places, values, change)

    def event_equation_gradient(self, z: np.ndarray) -> np.ndarray:
        """Return the derivatives of the difference of two branches' free entropies; zero except in the parameters.

        Free entropies are stationary in the overlaps.
        """
        *places, values = self.split_coordinates_and_parameters(z)
        steps = self.branch.parameter_difference_steps(smooth_factor=10)

        def free_entropy_difference_at_parameters(there: np.ndarray) -> np.ndarray:
            return np.atleast_1d(self._free_entropy_difference(places, there, keep_rule_unchanged).mean())

        moved = jacobian_by_differences(free_entropy_difference_at_parameters, values, steps)
        return np.concatenate([np.zeros((1, len(z) - len(values))), moved], axis=1)


class ConditionEquations(BranchEquations):
    """The equations of a saddle point at which a function of problem and overlaps vanishes.

    Unknowns are the coordinates of the branch, then the parameters.
    """

    def __init__(self, branch: BranchMap, condition: Callable[[Problem, Overlaps, Rule], float], unit: float) -> None:
        super().__init__(branch)
        self.condition, self.unit = condition, unit

    def event_equation(self, z: np.ndarray, change: RuleChange) -> np.ndarray:
        """Return the difference between the two sides of the condition, as one number, divided by its scale.

        Args:
            z: unknowns: coordinates of every branch, then the parameters.
            change: function that replaces a quadrature rule by another, for example by a finer one.
        """
        x, values = self.split_coordinates_and_parameters(z)
        problem, overlaps = self.branch.problem_at_parameters(values), self.branch.overlaps_from_coordinates(x)
        return np.array(self.condition(problem, overlaps, change(self.branch.rule)) / self.unit)

    def event_equation_gradient(self, z: np.ndarray) -> np.ndarray:
        """Return the derivatives of the difference between the sides of the condition, by central differences."""
        options = BranchDerivativeOptions.current()
        sampled = self.branch.rule.replicated
        steps = (options.sampled_parameter_step if sampled else options.curvature_step) * self.units_of_unknowns(z)
        return jacobian_by_differences(
            lambda there: np.atleast_1d(self.event_equation(there, keep_rule_unchanged)), z, steps
        )
