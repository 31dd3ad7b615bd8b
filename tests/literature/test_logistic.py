"""Logistic regression on sign(Y), sigma = 1, rho* = 1, lambda = 0.1, alpha = 2: numbers of issue 2, item 2.

The model is that of Aubin, Krzakala, Lu, Zdeborova (NeurIPS 2020, arXiv 2006.06560).
"""

import numpy as np
import pytest

import saddleforge as sf
from saddleforge import Solution

EXACT = 1e-9


@pytest.fixture(scope="module")
def solution() -> Solution:
    return sf.solve(sf.problem("logistic_regression", alpha=2.0, sigma=1.0, **{"lambda": 0.1}), accuracy=1e-10)


@pytest.mark.parametrize(
    ("name", "value"), [("theta", 1.720313092592676), ("q", 4.145803620747950), ("V", 3.976545789103861)]
)
def test_overlaps_have_their_known_values(solution, name, value):
    assert getattr(solution.overlaps, name).item() == pytest.approx(value, rel=0, abs=EXACT)


def test_zero_one_error_is_the_angle_between_student_and_teacher(solution):
    angle = np.arccos(solution.overlaps.theta.item() / np.sqrt(solution.overlaps.q.item())) / np.pi
    assert angle == pytest.approx(0.179662392860951, rel=0, abs=EXACT)
    assert solution.test_error == pytest.approx(angle, rel=0, abs=EXACT)


def test_the_replicon_has_its_known_value(solution):
    assert 1 - solution.stability.replicon == pytest.approx(0.784563721326404, rel=0, abs=EXACT)


def test_a_convex_loss_has_no_jumps(solution):
    assert solution.stability.bistable_fraction == 0.0
    assert abs(solution.stability.jump_weight) < EXACT
    assert solution.stability.verdict.startswith("RS stable")


def test_error_bars_hold_the_truth(solution):
    truth = np.array([4.145803620747950, 3.976545789103861, 0.0, 1.720313092592676])
    assert np.all(np.abs(solution.overlaps.pack() - truth) <= solution.errors + 1e-14 * solution.overlaps.block_scales)
