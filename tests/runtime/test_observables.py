"""Numbers that overlaps determine: alignment of student and teacher, and that a formula is shown, compared and
differentiated wherever a test error is."""

import pickle

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.problems.observables import FORMULAS, alignment
from saddleforge.problems.overlaps import Overlaps


@pytest.fixture(scope="module")
def ridge():
    return sf.solve(sf.problem("ridge_regression", alpha=2))


def test_the_alignment_of_one_column_is_the_squared_cosine_of_its_angle(ridge):
    q, theta, rho = ridge.overlaps.q.item(), ridge.overlaps.theta.item(), ridge.problem.law.rho_star.item()
    assert ridge.alignment == pytest.approx(theta**2 / (q * rho), rel=1e-14)
    assert 0 < ridge.alignment < 1


def test_weights_of_known_noise_recover_the_teacher():
    """More samples than dimensions, no noise and no ridge: W = W*."""
    found = sf.solve(sf.problem("ridge_regression", alpha=2, Delta=0, **{"lambda": 1e-12}))
    assert abs(found.alignment - 1) <= found.alignment_error < 1e-5


def test_alignment_does_not_depend_on_the_basis_of_the_columns():
    problem = sf.problem("committee_machine", alpha=4)
    random = np.random.default_rng(5)
    turn = np.linalg.qr(random.standard_normal((2, 2)))[0] @ np.diag([1.0, 3.0])
    W = random.standard_normal((2, 4))
    q, theta = (W @ W.T)[None], random.standard_normal((1, 2, 2)) / 4
    rest = {"V": np.eye(2)[None], "m": np.zeros((1, 2))}
    before = alignment(problem, Overlaps(q=q, theta=theta, **rest))
    after = alignment(problem, Overlaps(q=turn @ q @ turn.T, theta=turn @ theta, **rest))
    assert after == pytest.approx(before, rel=1e-12)


def test_weights_that_are_zero_have_no_alignment():
    problem = sf.problem("ridge_regression", alpha=2)
    zero = np.zeros((1, 1, 1))
    assert np.isnan(alignment(problem, Overlaps(zero, zero, np.zeros((1, 1)), zero)))


def test_an_error_bar_of_alignment_holds_the_value_to_more_digits():
    problem = sf.problem("logistic_regression", alpha=2, **{"lambda": 0.01})
    rough, fine = (sf.solve(problem, accuracy=accuracy) for accuracy in (1e-3, 1e-9))
    assert abs(rough.alignment - fine.alignment) <= rough.alignment_error + fine.alignment_error
    assert fine.alignment_error < 1e-7


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_stands_wherever_a_test_error_does(ridge, name):
    problem = ridge.problem
    value, error = getattr(ridge, name), getattr(ridge, f"{name}_error")
    shown = ridge.to_json()
    assert (shown[name], shown["errors"][name]) == (value, error) and name in ridge.table()
    curve = sf.curve(sf.problem("ridge_regression"), alpha=(1, 2, 2))
    table = curve.to_xarray()
    assert table[name].values[-1] == pytest.approx(value, abs=1e-9) and f"{name}_error" in table
    assert table[name].attrs["long_name"] == FORMULAS[name].meaning
    assert FORMULAS[name].latex in curve.to_latex()
    found = sf.where(sf.problem("ridge_regression"), f"{name} = {value}", on="semantic", bracket=(1.8, 2.3))
    assert abs(found.value - 2) <= 2 * found.error + 1e-9
    slope = sf.sensitivities(ridge, "lambda")["lambda"]
    step = 1e-4
    ends = [sf.solve(problem.with_(**{"lambda": 0.1 + way * step})) for way in (1, -1)]
    difference = (getattr(ends[0], name) - getattr(ends[1], name)) / (2 * step)
    assert slope.of(name)[0] == getattr(slope, name) == pytest.approx(difference, abs=1e-6)
    best = sf.tune(problem, "lambda", bracket=(1e-3, 10), minimise=f"-{name}")
    assert best.observed >= value


def test_a_problem_that_teaches_nothing_has_no_alignment():
    problem = sf.problem("mixture_classification", alpha=2)
    with pytest.raises(sf.InputError, match="mixture_classification has no alignment, which takes a teacher"):
        sf.where(problem, "alignment = 0.5", on="uninformed", bracket=(1, 2))


def test_a_problem_that_was_solved_can_be_sent_to_another_process(ridge):
    again = pickle.loads(pickle.dumps(ridge.problem))
    assert sf.solve(again).alignment == ridge.alignment
