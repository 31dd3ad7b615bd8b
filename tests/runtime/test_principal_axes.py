"""Sobol sets along the axes in which the proximal map changes most."""

import re
from dataclasses import replace

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.channel.fields import field_law, overlaps_of_loss_fields
from saddleforge.channel.points import proximal_points_at_nodes
from saddleforge.integration import Sobol
from saddleforge.integration.principal_axes import principal_axes_of_proximal_map
from saddleforge.problems.reduced import reduce_to_fields_of_loss
from saddleforge.solving.local import overlap_shifts_by_replicates
from saddleforge.solving.replicates import compare_replicates
from saddleforge.solving.settings import SolveSettings


@pytest.fixture(scope="module")
def solution():
    return sf.solve(sf.problem("value_attention", alpha=4.0), "semantic", integrator="sobol", points=12, accuracy=0.03)


def test_the_proximal_map_changes_less_from_axis_to_axis(solution):
    """Random nodes and shorter steps show the same order."""
    part = reduce_to_fields_of_loss(solution.problem)
    law = field_law(part, overlaps_of_loss_fields(part, solution.overlaps), (0, 0))
    axes = np.array(principal_axes_of_proximal_map(solution.problem, solution.overlaps))
    np.testing.assert_allclose(axes.T @ axes, np.eye(part.dimension), atol=1e-12)
    nodes = np.random.default_rng(5).standard_normal((4000, part.dimension))
    here = proximal_points_at_nodes(part, law, nodes).g.reshape(len(nodes), -1)
    scales, changes = np.sqrt(np.mean(here**2, axis=0)), []
    for axis in axes.T:
        there = proximal_points_at_nodes(part, law, nodes + 0.05 * axis).g.reshape(len(nodes), -1)
        changes.append(np.mean(((there - here) / scales) ** 2))
    assert np.all(np.diff(changes) < 0.15 * changes[0])
    assert changes[0] > 20 * changes[-1]


def test_sets_along_the_axes_agree_with_others_and_have_half_the_error(solution):
    task = SolveSettings(solution.problem, "semantic", solution.symmetry, 1e-3)
    point = compare_replicates(task, solution.fixed_point, Sobol(13)).point
    axes, scales = principal_axes_of_proximal_map(solution.problem, solution.overlaps), solution.overlaps.block_scales
    spread = {}
    for rotation in (None, axes):
        shifts = [
            overlap_shifts_by_replicates(task, point, replace(Sobol(13), seed=seed, rotation=rotation))[0]
            for seed in (0, 1)
        ]
        spread[rotation] = np.concatenate(shifts) / scales
    errors = {rotation: each.std(axis=0, ddof=1) / np.sqrt(len(each)) for rotation, each in spread.items()}
    assert errors[axes].max() < 0.65 * errors[None].max()
    apart = np.abs(spread[axes].mean(axis=0) - spread[None].mean(axis=0))
    assert np.all(apart <= 4 * np.hypot(errors[axes], errors[None]) + 1e-12)


def test_a_neighbouring_problem_is_solved_along_the_same_axes(solution):
    """Errors of neighbouring points are then alike, and differences between them more accurate."""
    near = sf.solve(solution.problem, "semantic", integrator="sobol", accuracy=4e-3)
    assert near.rule.rotation is not None
    again = sf.solve(solution.problem.with_(alpha=4.1), near, integrator="sobol", accuracy=4e-3)
    assert again.rule.rotation == near.rule.rotation
    assert "rotation" not in str(near.rule)  # 64 numbers
    assert near.rule.rule_description().keys() == {"rule", "points", "seed"}


def test_axes_that_do_not_help_are_not_taken():
    """The hinge depends on the sign of Y, whose step lies across one axis of the fields."""
    solution = sf.solve(sf.problem("hinge", alpha=2.0), integrator="sobol", accuracy=1e-4)
    (compared,) = (line for line in solution.tried if "along axes in which the proximal map changes most" in line)
    rotated, own = map(float, re.findall(r"differ by (\S+), along those of the fields by (\S+)", compared)[0])
    assert rotated > 1.5 * own
    assert solution.success and solution.rule.rotation is None
