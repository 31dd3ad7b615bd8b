"""Printed derivatives of the saddle-point map: what central differences converge to, and where there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import saddleforge as sf
from saddleforge import Problem, Solution
from saddleforge.branches.branch_map import BranchMap
from saddleforge.integration import GaussHermite, ProxSpaceRule, Rule, Sobol
from saddleforge.problems.overlaps import Conjugates, Overlaps
from saddleforge.saddle_point.generated_jacobian import DerivativeFormulaUnavailableError, evaluate_map_derivatives
from saddleforge.saddle_point.state_map import SaddlePointMap

Solved = Callable[[float, str, float], Solution]


def attention_state(q: float, V: float, m: float, theta: float) -> Overlaps:
    return Overlaps(np.full((2, 1, 1), q), np.full((2, 1, 1), V), np.array([[m], [-m]]), np.full((2, 1, 1), theta))


SEMANTIC = attention_state(0.1148, 12.668, 0.0, 0.15816)  # alpha = 2
COMMITTEE = Overlaps(
    np.array([[[0.9, 0.05], [0.05, 0.95]]]),
    np.array([[[0.5, -0.2], [-0.2, 0.6]]]),
    np.array([[0.03, -0.05]]),
    np.array([[[0.8, 0.13], [0.1, 0.85]]]),
)
POSITIONAL = attention_state(0.0471005, 14.90345, 0.252411, 0.0)  # alpha = 1.25: 1.2 % bistable


def lopsided(overlaps: Overlaps) -> Overlaps:
    """A state nearby that keeps no symmetry and solves nothing."""
    u = overlaps.pack()
    shift = 0.02 * np.sin(1 + np.arange(len(u))) * overlaps.block_scales
    return Overlaps.unpack(u + shift, overlaps.sizes)


def one_field(q: float, V: float, theta: float, contexts: int = 1, m: float = 0.0) -> Overlaps:
    one = np.ones((contexts, 1, 1))
    return Overlaps(q * one, V * one, np.linspace(m, -m, contexts).reshape(-1, 1), theta * one)


def gaps(problem: Problem, rule: Rule, overlaps: Overlaps, steps: list[float]) -> np.ndarray:
    """Largest entries of (central difference - printed) along two directions, in block scales, one a step."""
    u, scales = overlaps.pack(), overlaps.block_scales
    state_map = SaddlePointMap(problem, rule)
    printed = evaluate_map_derivatives(state_map, u).state
    found = np.zeros(len(steps))
    for direction in np.random.default_rng(5).uniform(-1, 1, (2, len(u))) * scales:
        for n, step in enumerate(steps):
            ends = [state_map(u + way * step * direction, overlaps.sizes) for way in (1, -1)]
            change = (ends[0] - ends[1]) / (2 * step)
            found[n] = max(found[n], float(np.max(np.abs(change - printed @ direction) / scales)))
    return found


def falls_like_the_step_squared(problem: Problem, rule: Rule, overlaps: Overlaps, width: float = 4e-2) -> None:
    found = gaps(problem, rule, overlaps, [width, width / 2, width / 4])
    np.testing.assert_allclose(found[:-1] / found[1:], 4.0, rtol=0.1)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("ridge_regression", ProxSpaceRule(144, 72)),
        ("logistic_regression", ProxSpaceRule(216, 108)),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_differences_of_regression_converge_to_the_printed_slopes(name: str, rule: Rule) -> None:
    problem = sf.problem(name, alpha=1.7)
    falls_like_the_step_squared(problem, rule, one_field(0.6, 1.1, 0.45))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.slow
def test_differences_of_attention_converge_to_the_printed_slopes(symmetric: bool) -> None:
    """One node of Y of every orbit is visited at the semantic solution; all directions are reported all the same."""
    problem = sf.problem("dot_product_attention", alpha=2.0)
    falls_like_the_step_squared(problem, ProxSpaceRule(88, 44), SEMANTIC if symmetric else lopsided(SEMANTIC), 2e-2)


def test_two_rules_print_the_same_slopes() -> None:
    """On a grid in X the weight moves, at nodes in omega the fields do. 14 nodes an axis are off by 1e-3."""
    problem, state = sf.problem("dot_product_attention", alpha=2.0), lopsided(SEMANTIC)
    u, scales = state.pack(), state.block_scales
    grid, coarse, fine = (
        evaluate_map_derivatives(SaddlePointMap(problem, rule), u).state * scales / scales[:, None]
        for rule in (ProxSpaceRule(88, 44), GaussHermite(9), GaussHermite(14))
    )
    assert np.max(np.abs(fine - grid)) < 2e-3
    assert np.max(np.abs(fine - grid)) < 0.5 * np.max(np.abs(coarse - grid))


def test_slopes_count_what_moves_with_the_jumps_of_the_proximal_map() -> None:
    """1.2 % of the measure is bistable: the signed sum over critical points alone is off by a tenth."""
    problem, rule = sf.problem("dot_product_attention", alpha=1.25), ProxSpaceRule(64, 32)
    assert gaps(problem, rule, POSITIONAL, [1e-2])[0] < 1e-3
    jumps, signed = (rule.moment_derivatives(problem, POSITIONAL, jumps) for jumps in (True, False))
    assert np.max(np.abs(jumps - signed)) > 0.01 * np.max(np.abs(jumps))


def test_multipliers_answer_to_changes_of_conjugates_and_norms() -> None:
    """Under given norms the overlaps change as of the ridge that keeps these; differences solve for it again."""
    norm, spectrum = 1.3, [[0.3, 0.2], [0.5, 1.0], [0.2, 2.5]]

    def overlaps(norm: float, hats: np.ndarray) -> np.ndarray:
        problem = sf.problem("perceptron", alpha=1.0, norm=norm, spectrum=spectrum)
        blocks = [*np.reshape(hats[:2], (2, 1, 1, 1)), np.reshape(hats[2], (1, 1)), np.reshape(hats[3], (1, 1, 1))]
        out = [np.empty_like(block) for block in blocks]
        assert problem.prior_map_at_parameters("overlaps")(*blocks, *out)
        return np.concatenate([block.ravel() for block in out])

    problem = sf.problem("perceptron", alpha=1.0, norm=norm, spectrum=spectrum)
    hats = np.array([0.7, 0.4, 0.0, 0.9])  # q, V, m, theta
    there = Conjugates(*np.reshape(hats[:2], (2, 1, 1, 1)), np.zeros((1, 1)), np.full((1, 1, 1), hats[3]))
    strength, law = problem.multipliers(there), problem.law
    directions = np.eye(5)[[0, 1, 3, 4]]  # q^, V^, theta^, then the norm
    changes = problem.solver.linear_response.overlaps(
        law.weights, law.gamma, law.gram, problem.strengths, strength, there.q, there.V, there.m, there.theta,
        directions[:, 4:], *(directions[:, [i]].reshape(4, *shape) for i, shape in enumerate(
            [(1, 1, 1), (1, 1, 1), (1, 1), (1, 1, 1)])),
    )  # fmt: skip
    printed = np.stack([change.ravel() for change in changes], axis=1)
    step, weights = 1e-3, {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}
    for direction, found in zip(directions, printed, strict=True):
        moved = [
            w * overlaps(norm + n * step * direction[4], hats + n * step * direction[:4]) for n, w in weights.items()
        ]
        assert np.sum(moved, axis=0) / step == pytest.approx(found, abs=1e-9)


def test_the_slope_in_alpha_is_that_of_the_map() -> None:
    problem, u = sf.problem("ridge_regression", alpha=1.7), one_field(0.6, 1.1, 0.45)
    rule = ProxSpaceRule(144, 72)
    ends = [SaddlePointMap(problem.with_(alpha=1.7 + way), rule)(u.pack(), u.sizes) for way in (1e-4, -1e-4)]
    np.testing.assert_allclose(
        evaluate_map_derivatives(SaddlePointMap(problem, rule), u.pack()).alpha, (ends[0] - ends[1]) / 2e-4, atol=1e-7
    )


def test_the_printed_spectrum_is_the_known_one(attention: Solved) -> None:
    """Ridge regression in closed form, to rounding; the mean mode of attention (docs/theory.md section 14)."""
    ridge = sf.solve(sf.problem("ridge_regression", alpha=2.0), accuracy=1e-8)
    V = ridge.overlaps.V.item()
    assert ridge.stability is not None and ridge.stability.slopes_by == "printed derivatives"
    assert np.sort(ridge.stability.eigenvalues.real)[-2:] == pytest.approx([2 * V**2 / (1 + V) ** 2] * 2, abs=1e-8)
    semantic = attention(2.0, "semantic", 1e-5).stability
    assert semantic is not None and semantic.slopes_by == "printed derivatives"
    assert semantic.eigenvalues.real.min() == pytest.approx(-2.51, abs=0.01)


def test_where_the_formulas_do_not_hold_differences_are_taken_and_the_reason_is_reported(attention: Solved) -> None:
    problem = sf.problem("dot_product_attention", alpha=1.25)
    for rule in (Sobol(10, 4), ProxSpaceRule(64, 32, blur=0.0)):
        with pytest.raises(DerivativeFormulaUnavailableError, match=r"the proximal map may jump for a fraction 0\.01"):
            evaluate_map_derivatives(SaddlePointMap(problem, rule), POSITIONAL.pack())
    solution = attention(2.0, "semantic", 1e-4)
    branch = BranchMap.from_solution(solution, ("alpha",), [1.0])
    u, at = solution.overlaps.pack(), np.array([2.0])
    assert branch.generated_map_derivatives(u, at, ProxSpaceRule(64, 32)) is not None
    assert branch.generated_map_derivatives(u, at, Sobol(8, 4)) is None
    assert branch.slopes_by == {"printed derivatives", "differences (the rule is no grid in X)"}


def with_bias() -> Any:
    @sf.model(tokens=1, student=1, teacher=1)
    def biased(X, Y, *, shift=sf.trained(0.1)):
        """A least-squares fit with a trained bias."""
        return (X[0, 0] + shift - Y[0, 0]) ** 2 / 2

    return biased


def test_losses_with_trained_numbers_have_no_formula_yet() -> None:
    problem = sf.problem(with_bias(), alpha=2.0)
    state = one_field(0.6, 1.1, 0.45)
    u = np.append(state.pack(), 0.1)
    with pytest.raises(DerivativeFormulaUnavailableError, match="trained numbers"):
        evaluate_map_derivatives(SaddlePointMap(problem, GaussHermite(6)), u)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rule", "state"),
    [
        ("ridge_regression", GaussHermite(12), one_field(0.6, 1.1, 0.45)),
        ("logistic_regression", GaussHermite(24), one_field(0.6, 1.1, 0.45)),
        ("lasso_regression", ProxSpaceRule(216, 108), one_field(0.6, 1.1, 0.45)),
        ("mixture_classification", ProxSpaceRule(216, 108), one_field(0.6, 1.1, 0.0, 2, 0.5)),
        ("mixture_classification", GaussHermite(24), one_field(0.6, 1.1, 0.0, 2, 0.5)),
        ("committee_machine", ProxSpaceRule(48, 24), COMMITTEE),
        ("committee_machine", Sobol(8, 2), COMMITTEE),
    ],
    ids=lambda value: getattr(value, "name", value if isinstance(value, str) else ""),
)
def test_differences_of_other_models_converge_to_the_printed_slopes(name: str, rule: Rule, state: Overlaps) -> None:
    """Clusters, several columns, a regulariser with a corner."""
    problem = sf.problem(name, alpha=4.0)
    falls_like_the_step_squared(problem, rule, state, 4e-3)
