"""A rule that splits lines in omega where the proximal map jumps, against closed forms and the prox-space rule."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import saddleforge as sf
from saddleforge import InputError, Problem
from saddleforge.channel.exchange import SymmetryReduction
from saddleforge.channel.fields import FieldLaw
from saddleforge.integration import GaussHermite, ProxSpaceRule, SaddlePointAverages, Sobol, SplitLinesRule
from saddleforge.integration.split_lines import _panel_edges, _refine_panels_until_resolved
from saddleforge.problems.overlaps import Overlaps
from saddleforge.saddle_point.starts import overlaps_of_start


def attention_state(q: float, V: float, m: float, theta: float) -> Overlaps:
    return Overlaps(np.full((2, 1, 1), q), np.full((2, 1, 1), V), np.array([[m], [-m]]), np.full((2, 1, 1), theta))


# Both branches at the transition of the base case (alpha = 1.25, omega = 0.3): 0.4 % and 1.2 % bistable.
SEMANTIC = attention_state(0.0816247, 18.32112, 0.0, 0.1179264)
POSITIONAL = attention_state(0.0471005, 14.90345, 0.252411, 0.0)


@pytest.fixture(scope="module")
def at_transition() -> Problem:
    return sf.problem("dot_product_attention", alpha=1.25, omega=0.3)


def hats(found: SaddlePointAverages) -> np.ndarray:
    """Moreau average and channel averages, each block relative to its largest entry."""
    rows = found.moments[0]
    return np.append((rows / np.abs(rows).max(axis=0, initial=1e-12)).ravel(), found.moreau[0] / 2e-3)


@pytest.mark.parametrize("breaks", [[0.7], [-1.0, 0.2], [-2.0, 1e-3, 4.0]], ids=str)
def test_halved_panels_integrate_across_jumps_and_cube_roots(breaks):
    edges, asked = _panel_edges(np.array(breaks)), []

    def x_at(row: np.ndarray, z: np.ndarray):
        asked.append(z.size)
        yield np.cbrt(z[..., None] - np.array(breaks))

    panels = np.zeros(len(edges) - 1, int), edges[:-1], edges[1:]
    row, z, weights = _refine_panels_until_resolved(x_at, panels, 8, 1e-8)
    assert np.all(row == 0) and len(np.unique(z)) == len(z) < 2 * sum(asked) / 3
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    for place in breaks:
        assert weights @ (z > place) == pytest.approx(norm.sf(place), abs=1e-12)
        # With z = place +- s^3 nothing is singular.
        truth, _ = quad(
            lambda s, p: 3 * s**3 * (norm.pdf(p + s**3) - norm.pdf(p - s**3)), 0, 2.5, (place,), epsabs=1e-13
        )
        assert weights @ np.cbrt(z - place) == pytest.approx(truth, abs=1e-9)


@pytest.mark.parametrize("state", [SEMANTIC, POSITIONAL], ids=["semantic", "positional"])
def test_lines_and_prox_space_agree_where_the_proximal_map_jumps(at_transition, state):
    """One solves for the global minimum on split lines, the other sums over critical points."""
    line, grid = (
        SplitLinesRule(32).averages(at_transition, state),
        ProxSpaceRule(112, 56).averages(at_transition, state),
    )
    assert grid.bistable > 3e-3
    assert np.abs(hats(line) - hats(grid)).max() < 3e-5
    coarse = np.abs(hats(SplitLinesRule(20).averages(at_transition, state)) - hats(line)).max()
    assert np.abs(hats(line) - hats(grid)).max() < coarse


@pytest.mark.slow
@pytest.mark.parametrize("state", [SEMANTIC, POSITIONAL], ids=["semantic", "positional"])
def test_lines_and_prox_space_agree_to_a_millionth(at_transition, state):
    line, grid = (
        SplitLinesRule(108).averages(at_transition, state),
        ProxSpaceRule(208, 104).averages(at_transition, state),
    )
    assert np.abs(hats(line) - hats(grid)).max() < 1e-6


def test_one_node_of_every_orbit_stands_for_all(at_transition):
    """Token exchange: lines along the last field, averaged over the exchange, are as good as all of them."""
    some, every = (rule.averages(at_transition, POSITIONAL) for rule in (SplitLinesRule(24), Unreduced(24)))
    finer = SplitLinesRule(36).averages(at_transition, POSITIONAL)
    error = np.abs(hats(every) - hats(finer)).max()
    assert np.abs(hats(some) - hats(every)).max() < 3 * error < 1e-3


class Unreduced(SplitLinesRule):
    """Visits every node of Y."""

    def symmetry_reduction(self, problem: Problem, fields: FieldLaw, labels: tuple[int, ...]) -> SymmetryReduction:
        return SymmetryReduction(())


def test_too_few_nodes_are_refused(at_transition):
    with pytest.raises(InputError, match="at least 16"):
        SplitLinesRule(12).averages(at_transition, POSITIONAL)


def test_without_jumps_lines_are_a_product_rule():
    """Ridge regression, all averages of which are polynomials."""
    problem = sf.problem("ridge_regression", alpha=1.0)
    one = np.ones((1, 1, 1))
    state = Overlaps(0.6 * one, 1.3 * one, np.zeros((1, 1)), 0.5 * one)
    found, truth = SplitLinesRule(40).averages(problem, state), GaussHermite(6).averages(problem, state)
    np.testing.assert_allclose(found.moments, truth.moments, rtol=1e-10, atol=1e-12)
    assert found.moreau[0] == pytest.approx(truth.moreau[0], rel=1e-10)


def test_jumps_of_tukeys_loss_are_split():
    """One field: Sobol sets agree within their error; refining changes 30 times less than Gauss-Hermite is off."""
    problem = sf.problem("tukey_regression", alpha=3.0, Delta=4.0)
    one = np.ones((1, 1, 1))
    state = Overlaps(0.6 * one, 3.0 * one, np.zeros((1, 1)), 0.5 * one)
    coarse, fine = SplitLinesRule(36).averages(problem, state), SplitLinesRule(54).averages(problem, state)
    assert fine.bistable > 0.1
    sampled = Sobol(15, 16).averages(problem, state).moments
    error = 2 * sampled.std(axis=0, ddof=1) / 4
    assert np.all(np.abs(sampled.mean(axis=0) - fine.moments[0]) < 2 * error + 1e-12)
    blind = np.abs(GaussHermite(48).averages(problem, state).moments - fine.moments).max()
    assert np.abs(coarse.moments - fine.moments).max() < blind / 30


def test_too_many_axes_are_refused_with_what_to_use():
    problem = sf.problem("value_attention", alpha=1.0)
    with pytest.raises(InputError, match="lines in 8 dimensions; use sobol"):
        SplitLinesRule(32).averages(problem, overlaps_of_start(problem, "semantic"))
