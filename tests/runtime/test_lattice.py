"""Sums over lattices: their dual packings, Poisson's formula, symmetries, averages against other rules."""

from itertools import permutations, product

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.base import budget
from saddleforge.base.errors import InputError
from saddleforge.channel.lattices import (
    densest_packing_basis,
    is_lattice_symmetry,
    lattice_points_in_ball,
    sampling_lattice_basis,
    shortest_vector_length,
)
from saddleforge.integration import LatticeRule
from saddleforge.integration.rule import DIFFERENCE_SAFETY
from saddleforge.problems.symmetry import NO_SYMMETRY
from saddleforge.saddle_point.iteration import FixedPoint, Status
from saddleforge.saddle_point.starts import overlaps_of_start
from saddleforge.solving import refinement
from saddleforge.solving.settings import SolveSettings

# Dimension, shortest vector squared at determinant one, number of shortest vectors (Conway and Sloane, table 1.2, 1.5).
PACKINGS = [
    (1, 1.0, 2),
    (2, 2 / 3**0.5, 6),
    (3, 2 ** (1 / 3), 12),
    (4, 2**0.5, 24),
    (5, 2 ** (3 / 5), 40),
    (6, 2 / 3 ** (1 / 6), 72),
    (7, 2 / 2 ** (1 / 7), 126),
    (8, 2.0, 240),
    (9, 2.0, 272),
    (10, 4 / 768 ** (1 / 10), 336),
    (11, 4 / 1024 ** (1 / 11), 432),
    (12, 4 / 1024 ** (1 / 12), 624),
]


@pytest.mark.parametrize(("n", "squared", "kissing"), PACKINGS)
def test_packings_are_the_densest_known_of_their_construction(n, squared, kissing):
    basis = densest_packing_basis(n)
    points = lattice_points_in_ball(basis, 1.01 * squared**0.5)
    assert np.linalg.det(basis) ** 2 == pytest.approx(1.0)
    assert shortest_vector_length(n) ** 2 == pytest.approx(squared, rel=1e-12)
    assert len(points) == 1 + kissing
    assert np.round(basis @ sampling_lattice_basis(n).T, 9).tolist() == np.eye(n).tolist()


@pytest.mark.parametrize("n", [2, 3, 4, 6, 8])
def test_a_normal_density_sums_to_one_and_its_transform_at_the_shortest_dual_vectors(n):
    """Poisson: sum over h Lambda of h^n N(x) is the sum over the dual of exp(-2 pi^2 k^2 / h^2)."""
    k = shortest_vector_length(n)
    kissing = PACKINGS[n - 1][2]
    h = 2**0.5 * np.pi * k / np.log(1e4 * kissing) ** 0.5
    points = h * lattice_points_in_ball(sampling_lattice_basis(n), 7.0 / h)
    total = h**n * np.exp(-(points**2).sum(axis=1) / 2).sum() / (2 * np.pi) ** (n / 2)
    assert total - 1 == pytest.approx(1e-4, rel=2e-2)


def test_every_point_of_a_ball_is_found_once():
    basis = densest_packing_basis(3)
    numbers = np.array(list(product(range(-9, 10), repeat=3)), float) @ basis
    inside = numbers[np.linalg.norm(numbers, axis=1) <= 4.0]
    found = lattice_points_in_ball(basis, 4.0)
    assert sorted(map(tuple, np.round(found, 9) + 0.0)) == sorted(map(tuple, np.round(inside, 9) + 0.0))


def test_lattices_have_the_symmetries_that_fields_need():
    for n in (3, 4, 5):
        turns = [np.eye(n)[list(order)] for order in permutations(range(n))] + [np.diag([-1.0] + [1.0] * (n - 1))]
        assert all(is_lattice_symmetry(sampling_lattice_basis(n), turn) for turn in turns)
    pairs = [np.eye(6)[[*order, *(3 + i for i in order)]] for order in permutations(range(3))]
    assert all(is_lattice_symmetry(sampling_lattice_basis(6), sign * turn) for turn in pairs for sign in (1, -1))
    eight = sampling_lattice_basis(8)
    assert is_lattice_symmetry(eight, np.diag([-1.0, -1.0] + [1.0] * 6)) and not is_lattice_symmetry(
        eight, np.diag([-1.0] + [1.0] * 7)
    )


def test_one_point_of_every_orbit_gives_what_all_points_give(without_symmetry):
    problem = sf.problem("dot_product_attention", alpha=2.0)
    overlaps = sf.solve(problem, "semantic", accuracy=1e-3, integrator="lattice", points=2).overlaps
    rule = LatticeRule(3.0)
    reduced = rule.averages(problem, overlaps)
    with without_symmetry():
        every = rule.averages(problem, overlaps)
    assert reduced.moments == pytest.approx(every.moments, rel=1e-11, abs=1e-15)
    assert reduced.moreau == pytest.approx(every.moreau, rel=1e-12)
    assert reduced.mass == pytest.approx(every.mass, rel=1e-12)


def test_error_bars_on_lattices_hold_what_other_rules_have_to_more_digits():
    problem = sf.problem("dot_product_attention", alpha=2.0)
    truth = sf.solve(problem, "semantic", accuracy=1e-8)
    for points in (2, 3, 4):
        found = sf.solve(problem, truth, integrator="lattice", points=points, accuracy=1e-2)
        assert np.all(np.abs(found.overlaps.pack() - truth.overlaps.pack()) <= found.errors + truth.errors)
        assert abs(found.training_loss - truth.training_loss) <= found.training_loss_error + truth.training_loss_error
    assert found.relative_error < 1e-3


@pytest.mark.slow
def test_three_fields_and_more_are_solved_on_lattices_where_the_proximal_map_hardly_jumps():
    problem = sf.problem("untied_attention", alpha=2.0)
    found = sf.solve(problem, "positional", accuracy=1e-2)
    sampled = sf.solve(problem, found, accuracy=1e-2, integrator="sobol")
    assert found.success and found.rule.name == "lattice"
    gap = np.abs(found.overlaps.pack() - sampled.overlaps.pack())
    assert np.all(gap <= found.errors + sampled.errors)
    assert not found.overlaps.theta.any(), "zeros by symmetry stay zeros"


@pytest.mark.slow
def test_jumps_are_left_to_sobol_sets():
    found = sf.solve(sf.problem("value_attention", alpha=3.0), "semantic", accuracy=0.1)
    assert found.rule.name == "sobol" and found.averages.bistable > 1e-3


def test_lattices_are_for_smooth_losses_of_twelve_dimensions_or_less():
    assert LatticeRule.rules_coarse_to_fine(sf.problem("dot_product_attention", alpha=2.0))
    labelled = sf.problem("logistic_regression", alpha=2.0)
    assert not LatticeRule.rules_coarse_to_fine(labelled), "labels are signs of Y"
    with pytest.raises(InputError, match="lattice is for smooth losses in 12 dimensions or less; use sobol"):
        sf.solve(labelled, integrator="lattice")
    with pytest.raises(InputError, match="1 to 12 dimensions, not in 13"):
        densest_packing_basis(13)
    problem = sf.problem("dot_product_attention", alpha=2.0)
    with pytest.raises(InputError, match=r"lattice would need .* nodes for 90 digits in 4 dimensions; use sobol"):
        LatticeRule(90.0).averages(problem, overlaps_of_start(problem, "semantic"))


@pytest.mark.parametrize("errors, climbed", [((0.2, 0.06, 0.02), 2), ((0.1, 0.02, 0.005), 3)])
def test_lattices_that_do_not_lead_to_the_accuracy_by_what_they_gain_are_climbed_no_further(
    monkeypatch, errors, climbed
):
    problem = sf.problem("logistic_regression", alpha=2.0)
    overlaps = overlaps_of_start(problem, "semantic")
    point = FixedPoint(overlaps.pack(), overlaps.sizes, 1e-9, Status.CONVERGED, 0, None)
    scales, visited = overlaps.block_scales, []

    class Reached:
        losses, success = 1.0, True

    def shifted(task, reached, finer):
        visited.append(finer)
        return errors[len(visited) - 1] / DIFFERENCE_SAFETY * scales, None

    monkeypatch.setattr(refinement, "solve_by_newton", lambda task, level, point: point)
    monkeypatch.setattr(refinement, "overlap_shift_by_quadrature_rule", shifted)
    monkeypatch.setattr(refinement, "solution_with_error_bars", lambda *_: Reached)
    levels = tuple(LatticeRule(digits) for digits in (2.0, 2.5, 3.0, 3.5, 4.0))
    with budget.collect_partial_result():
        refinement.solve_by_deterministic_rules(
            SolveSettings(problem, "semantic", NO_SYMMETRY, 1e-2, 0, 2), point, levels, to_the_end=False
        )
    assert len(visited) == climbed
