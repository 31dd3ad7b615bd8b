"""Sensitivities: derivatives along a branch against closed forms and against differences of problems solved again."""

import dataclasses

import mpmath
import numpy as np
import pytest

import saddleforge as sf
from saddleforge import InputError, Solution
from saddleforge.base.errors import DomainError
from saddleforge.problems.overlaps import Overlaps
from saddleforge.responses.direction import ParameterDirection, parameter_directions
from saddleforge.responses.sensitivity import sensitivity
from saddleforge.responses.tangent import TangentSolver
from saddleforge.saddle_point.difference_jacobian import large_difference_steps

BLOCKS = ("q", "V", "theta")


def ridge_closed_form(name: str):
    """An observable of ridge regression on inputs of unit covariance as a function of (alpha, lambda, Delta), from the
    resolvent (see tests/literature/test_ridge.py)."""

    def value(alpha, penalty, noise):
        b = penalty + alpha - 1
        V = 2 / (b + mpmath.sqrt(b * b + 4 * penalty))
        R2 = (V * V + V) / (2 * penalty * V + b)
        theta = 1 - penalty * V
        q = 1 - 2 * penalty * V + penalty**2 * R2 + noise * (V - penalty * R2)
        data = penalty**2 / 2 * (V - penalty * R2 + noise * (R2 + (alpha - 1) / penalty**2))
        return {
            "V": V,
            "theta": theta,
            "q": q,
            "test_error": 1 + noise - 2 * theta + q,
            "training_loss": data + penalty / 2 * q,
        }[name]

    return value


@pytest.fixture(
    scope="module",
    params=[(0.7, 0.1, 0.25), pytest.param((2.0, 0.6, 1.0), marks=pytest.mark.slow)],
    ids=str,
)
def ridge(request):
    alpha, penalty, noise = request.param
    problem = sf.problem("ridge_regression", alpha=alpha, Delta=noise, **{"lambda": penalty})
    return request.param, sf.sensitivities(sf.solve(problem, accuracy=1e-12))


@pytest.mark.parametrize("name", [*BLOCKS, "training_loss", "test_error"])
@pytest.mark.parametrize("parameter", ["alpha", "lambda", "Delta"])
def test_ridge_answers_as_its_closed_form(ridge, parameter, name):
    place, found = ridge
    order = tuple(int(parameter == other) for other in ("alpha", "lambda", "Delta"))
    expected = float(mpmath.diff(ridge_closed_form(name), tuple(map(mpmath.mpf, place)), order))
    value, width = found[parameter].of(name)
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-10)
    assert abs(value - expected) <= width < 1e-8


def test_fields_follow_a_scale_of_the_inputs(ridge):
    """x -> s x at fixed lambda / sigma^2 and Delta / sigma^2 scales losses by s^2 (see test_solution.py), so that
    sigma d/dsigma + 2 lambda d/dlambda + 2 Delta d/dDelta is twice the loss."""
    (_, penalty, noise), found = ridge
    for name in ("training_loss", "test_error"):
        total = found["sigma"].of(name)[0]
        total += 2 * penalty * found["lambda"].of(name)[0] + 2 * noise * found["Delta"].of(name)[0]
        assert total == pytest.approx(2 * getattr(found.solution, name), rel=1e-9)


def solved_anew(solution: Solution, parameter: str, step: float, value) -> float:
    """d value/dp from problems solved again with the same rule at four values of the parameter."""
    problem, rule = solution.problem, solution.rule
    (direction,) = [
        d for d in parameter_directions(problem, parameter.partition("[")[0]) if d.parameter_label == parameter
    ]
    points = rule.log2 if rule.name == "sobol" else rule.points
    values = []
    for k in (-2, -1, 1, 2):
        other = sf.solve(
            direction.problem_with_shifted_parameter(k * step),
            solution,
            integrator=rule.name,
            points=points,
            accuracy=1e-10,
        )
        assert other.residual < 1e-8
        values.append(np.asarray(value(other)))
    return (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)


def agree(solution: Solution, parameter: str, step: float, tolerance: float) -> None:
    found = sf.sensitivities(solution, parameter.partition("[")[0])[parameter]
    overlaps = solved_anew(solution, parameter, step, lambda s: s.overlaps.pack())
    scale = np.abs(overlaps).max()
    assert found.overlaps.pack() == pytest.approx(overlaps, rel=tolerance, abs=tolerance * scale)
    test_error = solved_anew(solution, parameter, step, lambda s: s.test_error)
    assert found.test_error == pytest.approx(float(test_error), rel=10 * tolerance)


@pytest.mark.parametrize(
    "parameter", ["lambda", *(pytest.param(name, marks=pytest.mark.slow) for name in ("alpha", "sigma"))]
)
def test_logistic_regression_answers_as_if_solved_again(parameter):
    problem = sf.problem("logistic_regression", alpha=2.0)
    solution = sf.solve(problem, integrator="prox-space", points=216, accuracy=1e-10)
    agree(solution, parameter, 1e-3, 1e-7)


@pytest.mark.slow
def test_a_loss_with_kinks_answers_as_if_solved_again():
    solution = sf.solve(sf.problem("tukey_regression", alpha=3.0), integrator="prox-space", points=432, accuracy=1e-8)
    agree(solution, "alpha", 1e-3, 1e-5)
    agree(solution, "lambda", 1e-4, 1e-5)


@pytest.fixture(scope="module")
def semantic() -> Solution:
    """The base case at alpha = 2 on one grid, so that problems solved again share its error."""
    problem = sf.problem("dot_product_attention", alpha=2.0)
    return sf.solve(problem, "semantic", integrator="prox-space", points=48, accuracy=1e-3)


@pytest.mark.parametrize("parameter", [pytest.param("alpha", marks=pytest.mark.slow), "lambda"])
def test_attention_answers_as_if_solved_again(semantic, parameter):
    agree(semantic, parameter, 1e-3 if parameter == "alpha" else 2e-5, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("parameter", ["omega", "sigma"])
def test_attention_answers_to_what_the_channel_knows(semantic, parameter):
    agree(semantic, parameter, 2e-4, 1e-5)


def covered(found, expected) -> None:
    """Every derivative within the error bars of both."""
    off = np.abs(found.overlaps.pack() - expected.overlaps.pack())
    widths = found.error_bars.pack() + expected.error_bars.pack()
    assert np.all(off <= widths)
    for name in ("training_loss", "test_error"):
        (one, width), (other, own) = found.of(name), expected.of(name)
        assert abs(one - other) <= width + own


@pytest.mark.slow
def test_coarse_sensitivities_hold_the_fine_ones(semantic):
    names = ("alpha", "lambda", "omega", "sigma", "A", "encodings")
    coarse = sf.sensitivities(semantic, *names)
    fine = sf.sensitivities(sf.solve(semantic.problem, semantic, accuracy=1e-6), *names)
    assert len(coarse) == len(fine) == 11
    for one, other in zip(coarse, fine, strict=True):
        covered(one, other)


@pytest.mark.slow
def test_a_solution_of_another_symmetry_answers_as_if_solved_again():
    """An entry of A breaks the exchange of the tokens, under which the base solution and its grid are symmetric."""
    problem = sf.problem("dot_product_attention", alpha=2.0)
    solution = sf.solve(problem, "positional", accuracy=1e-3)
    found = sf.sensitivities(solution, "A")["A[1,2]"]
    ends, step = [], 5e-3
    for way in (-1, 1):
        A = np.array(problem.parameters["A"])
        A[0, 1] += way * step
        ends.append(sf.solve(problem.with_(A=A), solution.overlaps, accuracy=1e-3))
    recomputed = (ends[1].overlaps.pack() - ends[0].overlaps.pack()) / (2 * step)
    noise = (ends[0].errors + ends[1].errors) / (2 * step)
    assert np.all(np.abs(found.overlaps.pack() - recomputed) <= found.error_bars.pack() + noise)
    assert np.abs(found.overlaps.m).max() > 3 * noise[4:6].max()


@pytest.mark.slow
def test_encodings_move_with_their_mirror_image_and_only_where_vectors_exist(semantic):
    """[[1, -1], [-1, 1]] is the edge of what is positive semidefinite: its off-diagonal entries can only go up."""
    found = sf.sensitivities(semantic, "encodings")
    assert [entry.parameter for entry in found] == ["encodings[1,1]", "encodings[1,2]", "encodings[2,2]"]
    # Weights without an overlap with the encodings do not know how they lie.
    for entry in found:
        assert entry.overlaps.pack() == pytest.approx(0, abs=1e-9)


def test_the_training_loss_grows_with_alpha_by_the_moreau_average(semantic):
    """d e_t/d alpha = E[M], exactly and for any rule."""
    found = sf.sensitivities(semantic, "alpha")["alpha"]
    assert semantic.averages is not None
    assert found.training_loss == pytest.approx(semantic.averages.moreau.mean(), rel=1e-9)
    assert found.free_entropy == -found.training_loss


def test_the_linear_baseline_knows_the_target_only(semantic):
    found = sf.sensitivities(semantic, "alpha", "omega")
    assert found["alpha"].baseline_error == 0.0
    step = 1e-4
    values = [
        dataclasses.replace(semantic, problem=semantic.problem.with_(omega=0.3 + k * step)).baseline_error
        for k in (-1, 1)
    ]
    assert found["omega"].baseline_error == pytest.approx((values[1] - values[0]) / (2 * step), rel=1e-6)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_sampled_sensitivities_hold_the_truth(seed):
    problem = sf.problem("logistic_regression", alpha=2.0)
    truth = sf.solve(problem, accuracy=1e-9)
    expected = sf.sensitivities(truth, "lambda")["lambda"]
    sampled = sf.solve(problem, truth, integrator="sobol", points=9, accuracy=1e-2, seed=seed)
    found = sf.sensitivities(sampled, "lambda")["lambda"]
    for name in ("q", "V", "theta", "training_loss", "test_error"):
        value, width = found.of(name)
        exact = expected.of(name)[0]
        assert abs(value - exact) < 2 * width  # twice: five numbers and three seeds, each within one in 95 %
        assert width < 0.05 * abs(exact)


@pytest.mark.slow
def test_a_rotation_of_the_columns_is_no_answer(agree):
    """Rank 2 without a preferred basis: solutions come as orbits, invariants of which answer as if solved again."""
    problem = sf.problem("dot_product_attention", alpha=2.0, student_rank=2)
    solution = sf.solve(problem, "positional", integrator="sobol", points=10, accuracy=0.1)
    found = sf.sensitivities(solution, "lambda")
    entries = list(found)
    step = 5e-4
    recomputed = []
    for k in (-1, 1):
        strengths = np.asarray(problem.parameters["lambda_"]) + k * step
        other = sf.solve(problem.with_(**{"lambda": strengths}), solution, integrator="sobol", points=10, accuracy=0.1)
        recomputed.append(other.test_error)
    expected = (recomputed[1] - recomputed[0]) / (2 * step)
    total, width = sum(e.test_error for e in entries), sum(e.test_error_error for e in entries)
    agree((total, width), (expected, 0.05 * abs(expected)), "error bars")


# What is shown


def test_a_table_has_a_row_an_observable_and_a_column_a_parameter(ridge):
    _, found = ridge
    lines = found.table().splitlines()
    assert lines[0].split() == ["d", "/", "d", "alpha", "sigma", "Delta", "lambda"]
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "q_1", "V_1", "m_1", "theta_1", "training loss", "test error", "alignment",
    ]  # fmt: skip
    frame = found.to_pandas()
    assert list(frame.index) == ["alpha", "sigma", "Delta", "lambda"]
    assert frame.loc["lambda", "training_loss"] == found["lambda"].training_loss
    assert frame.loc["lambda", "theta_1"] == found["lambda"].of("theta")[0]
    assert set(found.to_json()) == set(frame.index)
    assert found.to_json()["alpha"]["overlaps"]["q"] == [[[[found["alpha"].of("q")[0]]]]]


def test_an_unknown_parameter_lists_the_known_ones(ridge):
    with pytest.raises(InputError, match=r"unknown parameter 'omega' of .*; known are alpha, sigma, Delta, lambda"):
        sf.sensitivities(ridge[1].solution, "omega")
    with pytest.raises(InputError, match="derivative: unknown quantity 'replicon'; known are free_entropy"):
        ridge[1]["alpha"].of("replicon")


def test_without_a_solution_there_is_nothing_to_differentiate(ridge):
    failed = dataclasses.replace(ridge[1].solution, losses=None)
    with pytest.raises(InputError, match="no solution to differentiate"):
        sf.sensitivities(failed)


def test_steps_along_a_column_follow_its_size():
    """Columns of different sizes share blocks: a step of the larger one's would leave the domain of the smaller."""
    large, small = 30.0, 0.03
    q = np.array([[[large, 0.5 * np.sqrt(large * small)], [0.5 * np.sqrt(large * small), small]]])
    state = Overlaps(q, np.diag([10.0, 0.1])[None], np.zeros((1, 2)), np.array([[[5.0], [0.1]]]))
    steps = Overlaps.unpack(large_difference_steps(state, 1e-3) * state.block_scales, state.sizes)
    assert steps.q[0, 0, 0] == pytest.approx(1e-3 * large) and steps.q[0, 1, 1] == pytest.approx(1e-3 * small)
    assert steps.q[0, 0, 1] == pytest.approx(1e-3 * np.sqrt(large * small))
    assert steps.V[0, 1, 1] == pytest.approx(1e-4) and steps.V[0, 0, 1] == pytest.approx(1e-3)
    assert steps.theta[0, 1, 0] == pytest.approx(steps.theta[0, 0, 0] * np.sqrt(small / large))
    alike = Overlaps(np.eye(2)[None], np.eye(2)[None], np.zeros((1, 2)), np.zeros((1, 2, 1)))
    np.testing.assert_allclose(large_difference_steps(alike, 1e-3), 1e-3)


def test_without_a_slope_of_the_map_neighbouring_solutions_answer(ridge, monkeypatch):
    """Differences of solutions may stay in the domain where those of the map leave it."""
    solution = sf.solve(sf.problem("ridge_regression", alpha=2.0, lambda_=0.3), accuracy=1e-8)
    exact = {name: sensitivity(solution, ParameterDirection(solution.problem, name)) for name in ("alpha", "lambda_")}

    def outside(*_):
        raise DomainError("outside")

    monkeypatch.setattr(TangentSolver, "from_solution", classmethod(outside))
    for name, known in exact.items():
        found = sensitivity(solution, ParameterDirection(solution.problem, name))
        for observable in ("test_error", "training_loss", "q", "theta"):
            (value, error), (truth, _) = found.of(observable), known.of(observable)
            assert abs(value - truth) <= error < 1e-3 * abs(truth)
