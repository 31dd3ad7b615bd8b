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
from ..integration.rule import Rule, SaddlePointAverages
from ..problems.overlaps import Overlaps, packed_vector_length
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from ..problems.symmetry import SignedPermutation, StateSymmetry, symmetries_of_problem
from ..saddle_point.difference_jacobian import jacobian_by_differences, quadrature_rule_and_difference_steps
from ..saddle_point.generated_jacobian import (
    DerivativeFormulaUnavailableError,
    SaddlePointMapDerivatives,
    evaluate_map_derivatives,
)
from ..saddle_point.observables import free_entropy_at_overlaps
from ..saddle_point.state_map import SaddlePointMap
from ..solving.refinement import are_rule_weights_normalised
from ..solving.solution import Solution


@dataclass(frozen=True)
class BranchDerivativeOptions(AlgorithmOptions):
    """Options of the derivatives of a branch's equations and of its bifurcation equations.

    Larger difference steps magnify rounding errors less and have a larger truncation error. Steps of a state are
    relative to the sizes of q, V, m, ...

    Attributes:
        parameter_step: step of a parameter, in its unit, for smooth quadrature rules.
        sampled_parameter_step: step of a parameter, in its unit, for sampled quadrature rules.
        one_sided_ratio: ratio of the steps of one-sided differences to those of central differences.
        first_size: index of the coarsest rule with nodes on a line in proximal space that derivatives may use.
        mass_tolerance: largest amount by which the sum of the weights of that rule may differ from one.
        curvature_step: step of a state for second derivatives by smooth quadrature rules.
        sampled_curvature_step: step of a state for second derivatives by sampled quadrature rules.
        state_step: step of a state for fourth-order differences by smooth quadrature rules.
        amplitude: size of a symmetry-breaking deviation at which a branching coefficient is computed.
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
    """The residual G(u) - u of the saddle-point equations on symmetric states, in coordinates of these and parameters.

    Args:
        problem: the problem at any values of the parameters.
        parameters: names of the scalar parameters that vary.
        span: unit of each parameter.
        symmetry: symmetry of the states.
        rule: default quadrature rule of the channel averages.
    """

    def __init__(
        self, problem: Problem, parameters: Sequence[str], span: Sequence[float], symmetry: StateSymmetry, rule: Rule
    ) -> None:
        self.problem, self.parameters, self.symmetry, self.rule = problem, tuple(parameters), symmetry, rule
        self.loss_rule = rule  # of the free entropy, which may need a finer one
        self.span = np.asarray(span, float)
        self.sizes = problem.sizes
        self.basis = symmetry.basis_of_invariant_states(
            self.sizes, packed_vector_length(self.sizes)
        )  # (k, n), entries 0 and +-1
        self.norms = np.sum(self.basis**2, axis=1)
        self._cached_problem = lru_cache(maxsize=32)(self._problem_at_parameters)
        self._cached_formulas = lru_cache(maxsize=8)(self._evaluate_generated_derivatives)
        self._cached_averages = lru_cache(maxsize=16)(self._channel_averages_for_cache)
        self.slopes_by: set[str] = set()  # how dG/du was found so far

    @classmethod
    def from_solution(cls, solution: Solution, parameters: Sequence[str], span: Sequence[float]) -> BranchMap:
        """Return the branch map around a solution, with the quadrature rule and the symmetry of the solution.

        Args:
            solution: the solution.
            parameters: names of the scalar parameters that vary.
            span: the unit of each parameter.
        """
        symmetry = solution.symmetry or StateSymmetry()
        found = cls(solution.problem, parameters, span, symmetry, solution.rule)
        found.loss_rule = solution.loss_rule or solution.rule
        return found

    @property
    def dimension_of_invariant_states(self) -> int:
        """Return the number of coordinates of a symmetric state."""
        return len(self.basis)

    def state_from_coordinates(self, x: np.ndarray) -> np.ndarray:
        """Return the packed overlaps of a symmetric state from its coordinates."""
        return x @ self.basis

    def coordinates_of_state(self, u: np.ndarray) -> np.ndarray:
        """Return the coordinates of the orthogonal projection of packed overlaps on the symmetric states."""
        return (self.basis @ u) / self.norms

    def overlaps_from_coordinates(self, x: np.ndarray) -> Overlaps:
        """Return the overlaps of the symmetric state with given coordinates."""
        return Overlaps.unpack(self.state_from_coordinates(x), self.sizes)

    def _problem_at_parameters(self, values: tuple[float, ...]) -> Problem:
        changed = self.problem.with_(**dict(zip(self.parameters, values, strict=True)))
        return replace(changed, search=self.problem.search)

    def problem_at_parameters(self, values: np.ndarray) -> Problem:
        """Return the problem at given values of the parameters; raise InputError if a value is out of range."""
        return self._cached_problem(tuple(float(v) for v in values))

    def state_map_at_parameters(self, values: np.ndarray, rule: Rule | None = None) -> SaddlePointMap:
        """Return the saddle-point map G at given values of the parameters.

        Args:
            values: values of the parameters.
            rule: quadrature rule of the averages; that of the branch by default.

        Raises:
            InputError: a parameter value is out of range.
        """
        return SaddlePointMap(self.problem_at_parameters(values), rule or self.rule, self.symmetry)

    def coordinate_units(self, x: np.ndarray) -> np.ndarray:
        """Return the unit of each coordinate: the size of the block of overlaps (q, V, m, ...) that it belongs to."""
        return self.block_scales_at_coordinates(x)[np.argmax(self.basis != 0, axis=1)]

    def residuals_by_replicate(self, x: np.ndarray, values: np.ndarray, rule: Rule | None = None) -> np.ndarray:
        """Return the residuals G(u) - u, one row per replicate, relative to the sizes of q, V, m, ...

        Args:
            x: coordinates of a symmetric state.
            values: values of the parameters.
            rule: quadrature rule of the averages; that of the branch by default.
        """
        u = self.state_from_coordinates(x)
        averages = self.channel_averages(x, values, rule)
        images = self.state_map_at_parameters(values, rule).map_images_by_replicate(u, averages, self.sizes)
        return (images - u) @ self.basis.T / self.norms / self.coordinate_units(x)

    def channel_averages(self, x: np.ndarray, values: np.ndarray, rule: Rule | None = None) -> SaddlePointAverages:
        """Return the channel averages at a symmetric state, from a cache if they are known.

        Args:
            x: coordinates of a symmetric state.
            values: values of the parameters.
            rule: quadrature rule of the averages; that of the branch by default.
        """
        return self._channel_averages_at_state(self.state_from_coordinates(x), values, rule or self.rule)

    def _channel_averages_at_state(self, u: np.ndarray, values: np.ndarray, rule: Rule) -> SaddlePointAverages:
        """Return the channel averages at packed overlaps, from a cache if known; they do not depend on alpha."""
        key = (None if n == "alpha" else float(v) for n, v in zip(self.parameters, values, strict=True))
        return self._cached_averages(u.tobytes(), tuple(key), rule)

    def _channel_averages_for_cache(
        self, state: bytes, values: tuple[float | None, ...], rule: Rule
    ) -> SaddlePointAverages:
        own = self.problem.alpha if "alpha" in self.parameters else np.nan
        state_map = SaddlePointMap(
            self._cached_problem(tuple(own if v is None else v for v in values)), rule, self.symmetry
        )
        return state_map.channel_averages(Overlaps.unpack(np.frombuffer(state).copy(), self.sizes))

    def map_images_by_replicate(self, u: np.ndarray, values: np.ndarray, rule: Rule | None = None) -> np.ndarray:
        """Return the saddle-point map G(u) by every replicate of the quadrature rule, shape (replicates, overlaps).

        Args:
            u: packed overlaps, which need not be symmetric.
            values: values of the parameters.
            rule: quadrature rule of the averages; that of the branch by default.
        """
        state_map = SaddlePointMap(self.problem_at_parameters(values), rule or self.rule)
        return state_map.map_images_by_replicate(
            u, self._channel_averages_at_state(u, values, state_map.rule), self.sizes
        )

    def block_scales_at_coordinates(self, x: np.ndarray) -> np.ndarray:
        """Return the size of its block (q, V, m, ...) for every packed overlap, at given coordinates."""
        return self.overlaps_from_coordinates(x).block_scales

    def free_entropies_by_replicate(self, x: np.ndarray, values: np.ndarray, rule: Rule) -> np.ndarray:
        """Return the free entropy Phi by every replicate of the quadrature rule.

        Args:
            x: coordinates of a symmetric state.
            values: values of the parameters.
            rule: quadrature rule of the averages.
        """
        state_map, overlaps = self.state_map_at_parameters(values, rule), self.overlaps_from_coordinates(x)
        averages = self.channel_averages(x, values, rule)
        return np.array(
            [free_entropy_at_overlaps(state_map, overlaps, one) for one in split_averages_by_replicate(averages)]
        )

    def generated_map_derivatives(
        self, u: np.ndarray, values: np.ndarray, rule: Rule
    ) -> SaddlePointMapDerivatives | None:
        """Return dG/du and dG/dalpha of the saddle-point map from generated formulas; None where these do not apply.

        They are not used if they are invalid, or for a single field, where compiling takes longer than differences.

        Args:
            u: packed overlaps (n,).
            values: values of the parameters.
            rule: quadrature rule of the averages.
        """
        if not rule.in_x:
            self.slopes_by.add("differences (the rule is no grid in X)")
            return None
        return self._cached_formulas(u.tobytes(), tuple(float(v) for v in values), rule)

    def _evaluate_generated_derivatives(
        self, state: bytes, values: tuple[float, ...], rule: Rule
    ) -> SaddlePointMapDerivatives | None:
        if reduce_to_fields_of_loss(self.problem).solver.channel.FIELDS == 1:
            reason = "of a single field they are faster"
        else:
            try:
                found = evaluate_map_derivatives(
                    SaddlePointMap(self._cached_problem(values), rule), np.frombuffer(state)
                )
                self.slopes_by.add("printed derivatives")
                return found
            except DerivativeFormulaUnavailableError as error:
                reason = str(error)
        self.slopes_by.add(f"differences ({reason})")
        return None

    def parameter_difference_steps(self, smooth_factor: float = 1.0) -> np.ndarray:
        """Return difference steps in the parameters; `smooth_factor` multiplies those of rules that are not sampled."""
        options = BranchDerivativeOptions.current()
        smooth = options.parameter_step * smooth_factor
        return (options.sampled_parameter_step if self.rule.replicated else smooth) * self.span

    def residual_jacobian(self, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the Jacobian of G(u) - u in coordinates and parameters, relative to the sizes of q, V, m, ...

        Args:
            x: coordinates of a symmetric state.
            values: values of the parameters.
        """
        options, scales = BranchDerivativeOptions.current(), self.coordinate_units(x)
        rule, steps = self._derivative_rule_and_steps(x, values)
        steps = np.broadcast_to(steps, self.basis.shape[1:])[np.argmax(self.basis != 0, axis=1)] * scales
        width = self.parameter_difference_steps()
        k = self.dimension_of_invariant_states

        def scaled_residual_at_unknowns(z: np.ndarray) -> np.ndarray:
            u, state_map = self.state_from_coordinates(z[:k]), self.state_map_at_parameters(z[k:], rule)
            means = self._channel_averages_at_state(u, z[k:], rule).means
            image = state_map.impose_symmetry_on_image(
                u, state_map.image_from_channel_averages(Overlaps.unpack(u, self.sizes), means), self.sizes
            )
            return (self.basis @ (image - u)) / self.norms / scales

        z, u = np.concatenate([x, values]), self.state_from_coordinates(x)
        printed = self.generated_map_derivatives(u, values, rule)
        if printed is None and rule.replicated:
            return jacobian_by_differences(scaled_residual_at_unknowns, z, np.concatenate([steps, width]))
        if printed is None:
            return jacobian_by_differences(
                scaled_residual_at_unknowns,
                z,
                options.one_sided_ratio * np.concatenate([steps, width]),
                scaled_residual_at_unknowns(z),
            )
        image_slopes = np.column_stack([printed.state @ self.basis.T, printed.alpha])
        state_slopes = np.column_stack([self.basis.T, np.zeros(len(u))])
        moved = (
            self.state_map_at_parameters(values, rule).impose_symmetry_on_derivatives(
                u, image_slopes, state_slopes, self.sizes
            )
            - state_slopes
        )
        own = (self.basis @ moved) / self.norms[:, None] / scales[:, None]
        others = [n for n, name in enumerate(self.parameters) if name != "alpha"]
        out = np.empty((k, len(z)))
        out[:, :k], out[:, k:] = own[:, :k], own[:, k:]
        if others:

            def scaled_residual_at_parameters(part: np.ndarray) -> np.ndarray:
                there = values.copy()
                there[others] = part
                return scaled_residual_at_unknowns(np.concatenate([x, there]))

            out[:, k + np.array(others)] = jacobian_by_differences(
                scaled_residual_at_parameters, values[others], width[others]
            )
        return out

    def symmetry_breaking_jacobian(self, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the block of the Jacobian dG/du in directions that break the symmetry of the branch.

        The saddle-point map G is odd there, so that one-sided differences are of second order.

        Args:
            x: coordinates of a symmetric state.
            values: values of the parameters.
        """
        sector = orthogonal_complement(self.basis)
        problem, overlaps, u = (
            self.problem_at_parameters(values),
            self.overlaps_from_coordinates(x),
            self.state_from_coordinates(x),
        )
        rule, steps = self._derivative_rule_and_steps(x, values)
        state_map, scales = SaddlePointMap(problem, rule), overlaps.block_scales
        printed = self.generated_map_derivatives(u, values, rule) if len(sector) else None
        if printed is not None:
            return sector @ (printed.state * scales / scales[:, None]) @ sector.T
        columns = []
        for direction in sector:
            size = float(np.min(np.broadcast_to(steps, u.shape)[direction != 0]))
            columns.append(sector @ (state_map(u + size * scales * direction, self.sizes) / scales) / size)
        return np.stack(columns, axis=1) if columns else np.zeros((0, 0))

    def quadrature_rule_of_derivatives(self, x: np.ndarray, values: np.ndarray) -> Rule:
        """Return the quadrature rule with which derivatives of the map are computed.

        Args:
            x: coordinates of a symmetric state.
            values: values of the parameters.
        """
        return self._derivative_rule_and_steps(x, values)[0]

    def _derivative_rule_and_steps(self, x: np.ndarray, values: np.ndarray) -> tuple[Rule, np.ndarray]:
        """Return the quadrature rule and the steps of the difference quotients for derivatives of the map."""
        options = BranchDerivativeOptions.current()
        problem, overlaps = self.problem_at_parameters(values), self.overlaps_from_coordinates(x)
        rule, steps, _ = quadrature_rule_and_difference_steps(problem, self.rule, overlaps)
        if rule.in_x:
            sizes = rule.rules_coarse_to_fine(problem)[options.first_size :]
            coarser = (each for each in sizes if each.node_count(problem) < rule.node_count(problem))
            mass = options.mass_tolerance
            rule = next((each for each in coarser if are_rule_weights_normalised(problem, each, overlaps, mass)), rule)
        return rule, steps

    def symmetry_orbit_directions(self, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return orthonormal directions, in columns, along which a continuous symmetry moves a state.

        Args:
            x: coordinates of a symmetric state.
            values: values of the parameters.
        """
        state_map = self.state_map_at_parameters(values)
        if not len(state_map.student_rotation_generators):
            return np.empty((self.dimension_of_invariant_states, 0))
        orbit = state_map.directions_of_symmetry_orbit(self.state_from_coordinates(x), self.sizes)
        reduced = self.basis @ orbit / np.sqrt(self.norms)[:, None]
        left, sizes, _ = np.linalg.svd(reduced, full_matrices=False)
        return left[:, sizes > 1e-8]


def orthogonal_complement(basis: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis, in rows, of the orthogonal complement of a space."""
    return np.linalg.svd(basis, full_matrices=True)[2][len(basis) :]


def symmetry_that_keeps_direction(direction: np.ndarray, branch: BranchMap) -> StateSymmetry:
    """Return those symmetries of the problem under which a direction changes by less than 5 %.

    Args:
        direction: a change of the packed overlaps.
        branch: branch whose problem has the symmetries.
    """
    clusters, size = branch.problem.clusters, float(np.max(np.abs(direction)))

    def is_direction_invariant(exchange: SignedPermutation) -> bool:
        image = exchange.permute_overlaps(Overlaps.unpack(direction, branch.sizes), clusters).pack()
        return bool(np.max(np.abs(image - direction)) < 0.05 * size)

    return StateSymmetry(
        None, tuple(e for e in symmetries_of_problem(branch.problem) if is_direction_invariant(e)), clusters
    )


def smallest_symmetry_sector(direction: np.ndarray, branch: BranchMap) -> np.ndarray:
    """Return an orthonormal basis, in rows, of the smallest symmetry sector that contains a direction.

    The sector contains all changes of the overlaps that have every symmetry of the direction (signed permutations of
    tokens and columns) and are orthogonal to the symmetric states. dG/du maps it to itself.

    Args:
        direction: a change of the packed overlaps, orthogonal to the symmetric states.
        branch: the branch.
    """
    larger = symmetry_that_keeps_direction(direction, branch).basis_of_invariant_states(branch.sizes, len(direction))
    rows = larger / np.linalg.norm(larger, axis=1)[:, None]
    own = branch.basis / np.sqrt(branch.norms)[:, None]
    rest = rows - rows @ own.T @ own
    _, sizes, found = np.linalg.svd(rest, full_matrices=False)
    return found[sizes > 1e-8]


def split_averages_by_replicate(averages: SaddlePointAverages) -> list[SaddlePointAverages]:
    """Return the channel averages of each replicate of a quadrature rule separately."""
    return [
        replace(averages, moments=one[None], moreau=moreau[None], loss=loss[None])
        for one, moreau, loss in zip(averages.moments, averages.moreau, averages.loss, strict=True)
    ]
