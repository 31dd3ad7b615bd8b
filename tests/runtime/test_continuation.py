"""Curves of solutions by arclength, and events on them, where everything is known in closed form."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from saddleforge import InputError
from saddleforge.base.errors import DomainError
from saddleforge.branches.branch_map import orthogonal_complement
from saddleforge.branches.continuation import (
    StepLengthControl,
    correct_predicted_point,
    first_curve_point,
    next_curve_point,
    step_along_curve,
)
from saddleforge.branches.equations import BranchEquations, SingularJacobianEquations
from saddleforge.following.critical import find_cusp
from saddleforge.integration import ProxSpaceRule
from saddleforge.saddle_point.difference_jacobian import jacobian_by_differences


class Explicit:
    """A branch map given by a formula: G(u) of u (n,) and parameters, invariant states the first k components."""

    rule = ProxSpaceRule(16, 8)

    def __init__(self, formula: Any, size: int, odd: int, parameters: int = 1) -> None:
        self.formula, self.dimension_of_invariant_states = formula, size
        self.basis = np.eye(size + odd)[:size]
        self.span = np.ones(parameters)

    def state_from_coordinates(self, x: np.ndarray) -> np.ndarray:
        return x @ self.basis

    def block_scales_at_coordinates(self, x: np.ndarray) -> np.ndarray:
        return np.ones(self.basis.shape[1])

    def coordinate_units(self, x: np.ndarray) -> np.ndarray:
        return np.ones(self.dimension_of_invariant_states)

    def map_images_by_replicate(self, u: np.ndarray, values: np.ndarray, rule: Any = None) -> np.ndarray:
        return np.asarray(self.formula(u, values), float)[None]

    def residuals_by_replicate(self, x: np.ndarray, values: np.ndarray, rule: Any = None) -> np.ndarray:
        return (
            self.map_images_by_replicate(self.state_from_coordinates(x), values)[
                :, : self.dimension_of_invariant_states
            ]
            - x
        )

    def residual_jacobian(self, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        z = np.concatenate([x, values])
        return jacobian_by_differences(
            lambda at: self.residuals_by_replicate(
                at[: self.dimension_of_invariant_states], at[self.dimension_of_invariant_states :]
            )[0],
            z,
            np.full(len(z), 1e-5),
        )

    def generated_map_derivatives(self, u: np.ndarray, values: np.ndarray, rule: Any) -> None:
        """There are none: differences are taken."""

    def quadrature_rule_of_derivatives(self, x: np.ndarray, values: np.ndarray) -> Any:
        return self.rule

    def symmetry_orbit_directions(self, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.empty((self.dimension_of_invariant_states, 0))


def followed(branch: Any, z: list[float], toward: list[float], count: int, **stride: float) -> list[Any]:
    equations = BranchEquations(branch)
    first = first_curve_point(equations, np.array(z, float), 1e-12, np.array(toward, float))
    assert first is not None
    places, steps = [first], StepLengthControl(**stride)
    while len(places) < count and not steps.is_step_too_short:
        place = step_along_curve(equations, places[-1], steps.step, 1e-12)
        steps.adapt_step_length(place)
        if place is not None:
            places.append(place)
    return places


def test_a_circle_is_followed_through_both_of_its_folds() -> None:
    """x^2 + p^2 = 1: the parameter turns back twice, and the curve closes after 2 pi."""
    circle = Explicit(lambda u, p: [u[0] + (1 - u[0] ** 2 - p[0] ** 2) / 2], size=1, odd=0)
    places = followed(circle, [1.0, 0.0], [0.0, 1.0], 200, largest=0.1)
    z = np.array([p.z for p in places])
    np.testing.assert_allclose(np.sum(z**2, axis=1), 1.0, atol=1e-11)
    turns = np.sum(np.diff(np.sign([p.tangent[-1] for p in places])) != 0)
    length = max(p.arclength for p in places)
    assert turns >= 2 * int(length / (2 * np.pi))
    assert length > 2 * np.pi
    # After one turn it is back where it began: chords are shorter than the arcs by a factor 1 - step^2/24.
    once = np.argmin(np.abs(np.array([p.arclength for p in places]) - 2 * np.pi))
    assert np.linalg.norm(z[once] - z[0]) < 0.12


def test_a_step_can_end_at_a_given_value_of_the_parameter() -> None:
    circle = Explicit(lambda u, p: [u[0] + (1 - u[0] ** 2 - p[0] ** 2) / 2], size=1, odd=0)
    equations = BranchEquations(circle)
    first = first_curve_point(equations, np.array([1.0, 0.0]), 1e-12, np.array([0.0, 1.0]))
    assert first is not None
    place = step_along_curve(equations, first, 0.25, 1e-12, along=1)
    assert place is not None
    np.testing.assert_allclose(place.z, [np.sqrt(1 - 0.0625), 0.25], atol=1e-11)


def test_a_step_that_would_leave_the_interval_ends_at_its_edge() -> None:
    """Beyond the edge the equations have no meaning: it is reached exactly all the same."""

    def line(u: np.ndarray, p: np.ndarray) -> list[float]:
        if p[0] > 0.3:
            raise InputError("out of range")
        return [2 * p[0]]

    equations = BranchEquations(Explicit(line, 1, 0))
    place = first_curve_point(equations, np.array([0.0, 0.0]), 1e-12, np.array([0.0, 1.0]))
    edge = None
    for _ in range(20):
        assert place is not None
        place, edge = next_curve_point(equations, place, 0.1, 1e-12, (0.0, 0.3))
        if edge is not None:
            break
    assert edge == 0.3 and place is not None
    np.testing.assert_allclose(place.z, [0.6, 0.3], atol=1e-12)
    assert next_curve_point(equations, place, 0.1, 1e-12, (0.0, 0.3)) == (None, 0.3)


def test_the_curve_ends_where_the_equations_lose_their_meaning() -> None:
    def root(u: np.ndarray, p: np.ndarray) -> list[float]:
        if p[0] > 0.5:
            raise DomainError("beyond one half")
        return [u[0] - (u[0] - p[0])]

    places = followed(Explicit(root, 1, 0), [0.0, 0.0], [0.0, 1.0], 1000, smallest=1e-4)
    assert 0.498 < places[-1].z[-1] <= 0.5


def cubic(u: np.ndarray, p: np.ndarray) -> list[float]:
    """G(u) - u = p + q u - u^3: a cusp at p = q = 0."""
    return [u[0] + p[0] + p[1] * u[0] - u[0] ** 3]


@pytest.mark.parametrize("q", [0.3, 1.0, 2.5])
def test_a_fold_is_located_to_ten_digits(q: float) -> None:
    """x = -sqrt(q/3), p = 2 (q/3)^(3/2): solved on the extended system from 5 % away."""
    branch = Explicit(lambda u, p: cubic(u, np.array([p[0], q])), 1, 0)
    equations = SingularJacobianEquations(branch, np.eye(1))
    x, p = -np.sqrt(q / 3), 2 * (q / 3) ** 1.5
    z = np.array([x * 1.05, p * 1.05])
    equations.update_bordering_vectors(z)
    found = correct_predicted_point(equations, z, equations.residual_jacobian(z), np.zeros(2), 1e-11, most=30)
    assert found is not None
    np.testing.assert_allclose(found[0], [x, p], atol=1e-10)


def test_a_line_of_folds_runs_through_its_cusp() -> None:
    """Folds of the cubic lie on p^2 = 4 (q/3)^3; both branches of the line meet at q = 0."""
    equations = SingularJacobianEquations(Explicit(cubic, 1, 0, parameters=2), np.eye(1))
    z = np.array([np.sqrt(1 / 3), -2 * (1 / 3) ** 1.5, 1.0])
    equations.update_bordering_vectors(z)
    place = first_curve_point(equations, z, 1e-11, np.array([0.0, 0.0, -1.0]))
    assert place is not None
    places, stride = [place], StepLengthControl(largest=0.1)
    while not stride.is_step_too_short and (places[-1].z[-1] < 1.0 or len(places) < 5):
        equations.update_bordering_vectors(places[-1].z)
        following = step_along_curve(equations, places[-1], stride.step, 1e-11)
        stride.adapt_step_length(following)
        if following is not None:
            places.append(following)
    lines = np.array([p.z for p in places])
    np.testing.assert_allclose(lines[:, 1] ** 2, 4 * (lines[:, 2] / 3) ** 3, atol=1e-9)
    assert lines[0, 1] < 0 < lines[-1, 1]
    assert lines[:, 2].min() > -1e-9
    cusps = [cusp for pair in pairwise(places) if (cusp := find_cusp(*pair)) is not None]
    assert len(cusps) == 1
    np.testing.assert_allclose(cusps[0], [0.0, 0.0], atol=2e-3)


def test_an_instability_across_invariant_states_is_located() -> None:
    """G = (p, u_1 u_2 (1 - u_2^2)) at u_2 = 0: its slope across is u_1 = p, which passes 1 at p = 1."""
    branch = Explicit(lambda u, p: [p[0] ** 3, u[0] * u[1] * (1 - u[1] ** 2)], size=1, odd=1)
    equations = SingularJacobianEquations(branch, orthogonal_complement(branch.basis))
    z = np.array([0.5, 0.8])
    equations.update_bordering_vectors(z)
    found = correct_predicted_point(equations, z, equations.residual_jacobian(z), np.zeros(2), 1e-12, most=30)
    assert found is not None
    # The slope across is a central difference over 1e-4: its error is the square.
    np.testing.assert_allclose(found[0], [1.0, 1.0], atol=3e-8)


def test_differences_keep_to_the_side_that_has_a_meaning() -> None:
    def one_sided(z: np.ndarray) -> np.ndarray:
        if z[0] < 0:
            raise InputError("negative")
        return np.array([3 * z[0] + z[1]])

    np.testing.assert_allclose(
        jacobian_by_differences(one_sided, np.array([0.0, 1.0]), np.array([1e-3, 1e-3])), [[3.0, 1.0]]
    )
    with pytest.raises(InputError, match="negative"):
        jacobian_by_differences(one_sided, np.array([-1.0, 1.0]), np.array([1e-3, 1e-3]))
