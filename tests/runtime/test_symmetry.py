"""Discrete symmetries: what is found, and that averages, maps and grids respect it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.channel.exchange import SymmetryReduction
from saddleforge.integration import GaussHermite, ProxSpaceRule, Sobol
from saddleforge.integration.rule import Rule
from saddleforge.problems.overlaps import Overlaps
from saddleforge.problems.symmetry import SignedPermutation, StateSymmetry, symmetries_of_problem, symmetries_of_state
from saddleforge.saddle_point.state_map import SaddlePointMap


def state(q: float, V: float, m: float, theta: float, tokens: int = 2) -> Overlaps:
    signs = np.array([1.0, -1.0])[:tokens, None]
    block = np.ones((tokens, 1, 1))
    return Overlaps(q * block, V * block, m * signs, theta * block)


SEMANTIC, POSITIONAL = state(0.1, 12.0, 0.0, 0.14), state(0.05, 11.0, 0.25, 0.0)
MIXED, UNINFORMED = state(0.09, 12.0, 0.1, 0.1), state(0.1, 12.0, 0.0, 0.0)
SWAP, TURN = (1, 0), -1


def signs(exchanges: tuple[SignedPermutation, ...]) -> set[tuple[tuple[int, ...], int, int]]:
    return {(e.tokens, e.student[0], e.teacher[0]) for e in exchanges}


def test_attention_keeps_exchanges_of_its_tokens_and_signs():
    """Semantic: both signs together, and the tokens; positional: the tokens with the sign of the student, as the
    encodings are opposite; a mixed state keeps one exchange alone."""
    problem = sf.problem("dot_product_attention", alpha=2.0)
    same = (0, 1)
    assert signs(symmetries_of_state(problem, SEMANTIC)) == {(same, -1, -1), (SWAP, 1, 1), (SWAP, -1, -1)}
    assert signs(symmetries_of_state(problem, POSITIONAL)) == {(same, 1, -1), (SWAP, -1, 1), (SWAP, -1, -1)}
    assert signs(symmetries_of_state(problem, MIXED)) == {(SWAP, -1, -1)}
    assert len(symmetries_of_state(problem, UNINFORMED)) == 7


@pytest.mark.parametrize(
    "changes",
    [{"A": [[0.6, 0.4], [0.2, 0.8]]}, {"spectrum": [[0.5, 0.2, 0.3], [0.5, 0.3, 0.25]]}],
    ids=["target", "spectrum"],
)
def test_tokens_distinguished_are_not_exchanged(changes):
    problem = sf.problem("dot_product_attention", alpha=2.0, **changes)
    assert {e.tokens for e in symmetries_of_problem(problem)} == {(0, 1)}


def test_a_causal_mask_tells_tokens_apart():
    assert {e.tokens for e in symmetries_of_problem(sf.problem("causal_attention"))} == {(0, 1)}


def test_regression_turns_field_teacher_and_noise_together():
    assert [(e.student, e.teacher, e.noise) for e in symmetries_of_problem(sf.problem("ridge_regression"))] == [
        ((-1,), (-1,), -1)
    ]


def test_three_tokens_at_120_degrees_keep_what_their_encodings_do():
    """All permutations: their Gram matrix has equal entries off the diagonal."""
    problem = sf.problem("dot_product_attention", tokens=3, encodings=_three(), alpha=2.0)
    assert len({e.tokens for e in symmetries_of_problem(problem)}) == 6


def _three() -> list[list[float]]:
    return (1.5 * np.eye(3) - 0.5).tolist()


@pytest.mark.parametrize("rule", [ProxSpaceRule(64, 32), GaussHermite(8)], ids=lambda rule: rule.name)
@pytest.mark.parametrize("overlaps", [SEMANTIC, POSITIONAL, MIXED, UNINFORMED], ids=["sem", "pos", "mixed", "none"])
def test_one_node_an_orbit_gives_what_all_nodes_give(rule: Rule, overlaps: Overlaps, without_symmetry):
    """Averaged over the group: at nodes with two equally low minima rounding chooses one. Slopes to fewer digits,
    for the same reason."""
    problem = sf.problem("dot_product_attention", alpha=2.0)
    reduced, slopes = rule.averages(problem, overlaps), rule.jacobian_averages(problem, overlaps)
    with without_symmetry():
        full, full_slopes = rule.averages(problem, overlaps), rule.jacobian_averages(problem, overlaps)
    group, moments = symmetries_of_state(problem, overlaps), problem.solver.channel.MOMENTS
    symmetric = (full.moments[0] + sum(e.permute_channel_averages(full.moments[0], moments) for e in group)) / (
        1 + len(group)
    )
    for one, other, tolerance in (
        (reduced.moments[0], symmetric, 1e-12),
        (reduced.moreau, full.moreau, 1e-12),
        (slopes.slope.mean(axis=2), full_slopes.slope.mean(axis=2), 1e-5),
        (slopes.square.mean(axis=(2, 3)), full_slopes.square.mean(axis=(2, 3)), 1e-5),
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())


def test_a_number_trained_for_alike_tokens_sees_the_whole_slope(without_symmetry):
    """dloss/dphi is one number for all tokens; averages over their exchange share it out among them."""

    @sf.model(tokens=2)
    def shared_scale(X, Y, *, scale=sf.trained(0.5, ridge=0.2)):
        """Two tokens, one scale."""
        return ((scale * X[0] - Y[0]) ** 2 + (scale * X[1] - Y[1]) ** 2) / 2

    problem = sf.problem(shared_scale, alpha=2.0)
    state_map = SaddlePointMap(problem, GaussHermite(6))
    overlaps = replace(state(0.3, 1.5, 0.0, 0.4), phi=np.array([0.5]))
    assert any(exchange.tokens == SWAP for exchange in symmetries_of_state(problem, overlaps))
    reduced = state_map.update_trained_numbers(overlaps, state_map.channel_averages(overlaps).moments[0])
    with without_symmetry():
        full = state_map.update_trained_numbers(overlaps, state_map.channel_averages(overlaps).moments[0])
    assert reduced == pytest.approx(full, rel=1e-12)


def test_a_grid_visits_a_quarter_of_its_nodes_on_a_pure_branch():
    problem = sf.problem("dot_product_attention", alpha=2.0)
    from saddleforge.channel.fields import field_law
    from saddleforge.channel.nodes import tensor_product_rule, trapezoid_rule

    axes = [trapezoid_rule(32)] * 2
    nodes, _ = tensor_product_rule(axes)
    reduction = SymmetryReduction.symmetries_of_law_and_nodes(
        problem, field_law(problem, SEMANTIC, (0, 0)), (0, 0), axes
    )
    orbits = reduction.orbit_sizes(nodes, problem.teacher_rank)
    assert orbits.sum() == len(nodes)
    assert np.sum(orbits > 0) == 32 * 32 / 4 + 32 / 2  # two orbits of two on each diagonal


@pytest.mark.parametrize(
    ("name", "points", "rounding"),
    [
        ("dot_product_attention", 4, 1e-10),
        # Axes of two columns that are not alike are not exchanged with the tokens, so that a few nodes are not alike.
        pytest.param("untied_attention", 6, 2e-5, marks=pytest.mark.slow),
        pytest.param("untied_attention", 12, 1e-8, marks=pytest.mark.slow),
        pytest.param("attention_on_mixture", 4, 1e-10, marks=pytest.mark.slow),
        ("ridge_regression", 4, 1e-10),
    ],
)
def test_the_map_commutes_with_every_exchange_of_the_problem(name, points, rounding):
    problem = sf.problem(name, alpha=1.5)
    generator = np.random.default_rng(5)
    contexts, s, t, _ = problem.sizes
    factor = 0.3 * np.eye(s) + 0.03 * generator.standard_normal((contexts, s, s))
    overlaps = Overlaps(
        q=factor @ factor.transpose(0, 2, 1),
        V=5 * np.eye(s) + np.zeros((contexts, s, s)),
        m=0.1 * generator.standard_normal((contexts, s)),
        theta=0.02 * generator.standard_normal((contexts, s, t)),
    )
    state_map = SaddlePointMap(problem, GaussHermite(points))
    image = Overlaps.unpack(state_map(overlaps.pack(), problem.sizes), problem.sizes)
    assert symmetries_of_problem(problem)
    for exchange in symmetries_of_problem(problem):
        there = exchange.permute_overlaps(overlaps, problem.clusters).pack()
        expected = exchange.permute_overlaps(image, problem.clusters)
        deviation = np.abs(state_map(there, problem.sizes) - expected.pack()) / expected.block_scales
        assert deviation.max() < rounding


def test_a_projected_state_is_invariant_and_projecting_again_changes_nothing():
    problem = sf.problem("dot_product_attention", alpha=2.0)
    symmetry = StateSymmetry(None, symmetries_of_state(problem, POSITIONAL), problem.clusters)
    u = np.random.default_rng(2).standard_normal(8)
    once = symmetry.project_onto_invariant_states(u, problem.sizes)
    assert np.array_equal(symmetry.project_onto_invariant_states(once, problem.sizes), once)
    assert once[0] == once[1] and once[4] == -once[5] and not once[6:].any()
    assert len(symmetry.basis_of_invariant_states(problem.sizes, 8)) == 3  # q, V, m


def test_solutions_of_sampled_rules_keep_the_exchange_to_rounding():
    solution = sf.solve(
        sf.problem("dot_product_attention", alpha=2.0), "positional", integrator="sobol", points=9, accuracy=0.1
    )
    overlaps = solution.overlaps
    assert overlaps.q[0] == pytest.approx(overlaps.q[1], rel=1e-12)
    assert overlaps.m[0] == pytest.approx(-overlaps.m[1], rel=1e-12)


def test_a_start_that_tells_tokens_apart_is_not_made_symmetric():
    problem = sf.problem("dot_product_attention", alpha=2.0)
    overlaps = replace(SEMANTIC, q=SEMANTIC.q * np.array([1.0, 1.01])[:, None, None])
    assert {e.tokens for e in symmetries_of_state(problem, overlaps)} == {(0, 1)}


@pytest.mark.parametrize("theta", [0.0, 1e-11])
def test_sobol_sets_keep_averages_that_vanish_by_symmetry_at_zero(theta):
    """Without overlap with the teacher the teacher fields may change sign; tokens may be exchanged."""
    problem = sf.problem("dot_product_attention", alpha=2.0)
    moments = Sobol(6, 2).averages(problem, replace(SEMANTIC, theta=theta + 0 * SEMANTIC.theta)).moments
    offsets = {text: offset for text, _, offset in problem.solver.channel.MOMENTS}
    assert moments.shape == (2, 2, 4) and np.abs(moments[..., offsets["g*dY.T"]]).max() < 1e-17
    assert moments[:, 0, offsets["g*domega.T"]] == pytest.approx(moments[:, 1, offsets["g*domega.T"]], rel=1e-12)
