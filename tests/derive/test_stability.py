"""The stability operators against finite differences of what they linearise."""

from functools import cache

import numpy as np
import pytest
import sympy as sp
from scipy.optimize import root

from saddleforge.derive.calculus.averages import CHANNEL, CONTEXTS, COORDINATE, Average, Jacobian, MatrixAverage
from saddleforge.derive.calculus.functions import Sigmoid, SoftmaxEntry, Softplus
from saddleforge.derive.catalogue import catalogue_model
from saddleforge.derive.theory.free_entropy import free_entropy
from saddleforge.derive.theory.saddle_point import channel_averages, saddle_point
from saddleforge.derive.theory.stability import (
    TOKENS,
    extract_linear_coefficient,
    field_response,
    longitudinal_derivatives,
    matrix_differential,
    propagate_covariance,
    replicon_eigenvalue,
    replicon_map,
    response_of_weights_to_field,
)


def elementary(expression):
    """A loss without the package's own functions."""

    def softmax(index, *logits):
        return sp.exp(logits[int(index)]) / sp.Add(*[sp.exp(z) for z in logits])

    return (
        expression.replace(SoftmaxEntry, softmax)
        .replace(Sigmoid, lambda z: 1 / (1 + sp.exp(-z)))
        .replace(Softplus, lambda z: sp.log(1 + sp.exp(z)))
    )


@pytest.mark.parametrize("student_rank", [1, 2])
def test_field_response_is_the_derivative_of_the_proximal_map(student_rank, numeric):
    """dg/domega over all L s fields of attention, by solving the prox at shifted omega."""
    model = catalogue_model("dot_product_attention")
    at = model.at(model.structure(student_rank=student_rank))
    size = 2 * student_rank
    values = {"omega_": 0.3, "A_0_0_": 0.6, "A_0_1_": 0.4, "A_1_0_": 0.4, "A_1_1_": 0.6, "rho_0": 0.25, "rho_1": 0.25}
    fixed = {symbol: values[symbol.name] for symbol in at.loss.free_symbols if symbol.name in values}
    X = list(at.X)
    names = [*X, *at.Y, *fixed]
    rest = [0.7, -1.1, *fixed.values()]
    first = [at.loss.diff(x) for x in X]
    compiled = sp.lambdify(names, [elementary(e) for e in first], cse=True)
    second = sp.lambdify(names, [[elementary(e.diff(y)) for y in X] for e in first], cse=True)

    def gradient(*x):
        return compiled(*x, *rest)

    def hessian(*x):
        return second(*x, *rest)

    block = np.array([[1.1, 0.3], [0.3, 0.8]])[:student_rank, :student_rank]
    V = np.kron(np.diag([1.0, 1.7]), block)
    omega = np.array([0.4, -0.6, 0.9, 0.2])[:size]

    def field(shifted):
        solved = root(lambda x: np.linalg.solve(V, x - shifted) + np.array(gradient(*x)), shifted, tol=1e-13)
        assert solved.success
        return np.linalg.solve(V, solved.x - shifted), solved.x

    step = 1e-4
    differences = np.array(
        [(field(omega + step * e)[0] - field(omega - step * e)[0]) / (2 * step) for e in np.eye(size)]
    ).T
    response = field_response(size)
    known = {response.V: V, response.loss_hessian: np.array(hessian(*field(omega)[1]), dtype=float)}
    np.testing.assert_allclose(numeric(response.jacobian, known), differences, atol=1e-7)
    # dx/domega = I + V dg/domega
    np.testing.assert_allclose(numeric(response.proximal, known), np.eye(size) + V @ differences, atol=1e-7)


def test_field_response_in_closed_form():
    response = field_response()
    identity = sp.Identity(response.V.shape[0])
    H, V = response.loss_hessian, response.V
    assert response.jacobian == -H * (identity + V * H).inv()
    assert response.condition == V.inv() * (response.x - response.omega) + response.loss_gradient


def test_the_derived_replicon_map_is_that_of_the_theory():
    operator = replicon_map()
    p = operator.symbols
    response = Jacobian(p.g, p.omega)
    through_tokens = MatrixAverage(TOKENS, response * operator.D * response.T)
    assert operator.channel == p.alpha * MatrixAverage(CHANNEL, through_tokens)
    R = (p.Lambda + p.G).inv()
    assert operator.response == R
    assert operator.prior == MatrixAverage(
        COORDINATE, p.gamma * R * MatrixAverage(CONTEXTS, p.gamma * operator.D_hat) * R
    )


def test_the_replicon_eigenvalue_of_ridge_regression_has_its_closed_form():
    """dg/domega = -1/(1+V) for the square loss, gamma = 1: alpha / ((1+V)^2 (lambda + V^)^2)."""
    g, omega = sp.Function("g"), sp.Symbol("omega")
    alpha, V, V_hat, strength = sp.symbols("alpha V V_hat lambda", positive=True)
    value = replicon_eigenvalue()
    assert {a.kind for a in value.atoms(Average)} == {CHANNEL, COORDINATE}
    value = value.xreplace({a: a.summand for a in value.atoms(Average)})
    value = value.xreplace({sp.Derivative(g(omega), omega): -1 / (1 + V)})
    value = value.subs({"G": V_hat, "Lambda": strength, sp.Symbol("gamma", positive=True): 1})
    assert sp.simplify(value - alpha / ((1 + V) ** 2 * (strength + V_hat) ** 2)) == 0


def test_covariance_wants_a_linear_map():
    p = free_entropy(2, 1).symbols
    law = {p.g: p.Q}
    assert propagate_covariance(3 * p.V * p.g, law) == 9 * p.V * p.Q * p.V.T
    with pytest.raises(TypeError, match="not a linear map"):
        propagate_covariance(p.V * p.omega, law)
    with pytest.raises(TypeError, match="not linear"):
        propagate_covariance(p.g * p.g.T * p.g, law)


def test_differential_says_what_it_cannot_do():
    p = free_entropy(2, 1).symbols
    with pytest.raises(TypeError, match="no rule"):
        matrix_differential(MatrixAverage(CHANNEL, p.g), {p.g: p.omega})
    with pytest.raises(ValueError, match="not a matrix times"):
        extract_linear_coefficient(p.omega, p.omega * p.omega.T * p.g)


def test_prior_response_is_the_resolvent():
    phi = free_entropy()
    assert response_of_weights_to_field(phi) == (phi.symbols.Lambda + phi.symbols.G).inv()


# --- longitudinal -----------------------------------------------------------------------------------------------------


@cache
def linearised():
    saddle = saddle_point(free_entropy(2, 1))
    return saddle, longitudinal_derivatives(saddle)


def symmetric(generator, size):
    root_of = generator.normal(size=(size, size))
    return root_of @ root_of.T + np.eye(size)


def bare(expression):
    """One coordinate: the average over it taken away."""
    return expression.xreplace({a: a.summand for a in expression.atoms(MatrixAverage)})


@pytest.mark.parametrize("name", ["q", "V", "m", "theta"])
def test_the_linearised_overlaps_agree_with_differences(name, numeric):
    saddle, operator = linearised()
    p = saddle.symbols
    generator = np.random.default_rng(11)
    point = {p.G: symmetric(generator, 2), p.Q: symmetric(generator, 2), p.B: generator.normal(size=(2, 1))}
    point |= {p.Lambda: np.diag([0.1, 0.3]), p.pi: np.array([[0.7]]), p.gamma: 0.8, p.tau: -1.3}
    change = {p.G: symmetric(generator, 2), p.Q: symmetric(generator, 2), p.B: generator.normal(size=(2, 1))}

    def moved(step):
        return point | {z: point[z] + step * change[z] for z in change}

    step = 1e-5
    value = bare(saddle[name].value)
    expected = (numeric(value, moved(step)) - numeric(value, moved(-step))) / (2 * step)
    changes = {sp.MatrixSymbol(f"d{z.name}", *z.shape): v for z, v in change.items()}
    np.testing.assert_allclose(numeric(bare(operator.prior[name]), point | changes), expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", ["q_hat", "V_hat", "m_hat", "theta_hat"])
def test_the_linearised_conjugates_agree_with_differences(name, numeric):
    saddle, operator = linearised()
    p = saddle.symbols
    generator = np.random.default_rng(5)
    point = {p.q: symmetric(generator, 2) + 2 * np.eye(2), p.theta: 0.3 * generator.normal(size=(2, 1))}
    point |= {p.rho_star: np.array([[1.4]]), p.alpha: 1.5}
    change = {p.q: symmetric(generator, 2), p.theta: generator.normal(size=(2, 1))}
    for symbol in operator.moment_symbols.values():
        shape = tuple(int(n) for n in symbol.shape)
        point[symbol], change[symbol] = generator.normal(size=shape), generator.normal(size=shape)
    value = saddle[name].value.xreplace(operator.moment_symbols)

    def moved(step):
        return point | {z: point[z] + step * change[z] for z in change}

    step = 1e-5
    expected = (numeric(value, moved(step)) - numeric(value, moved(-step))) / (2 * step)
    changes = {sp.MatrixSymbol(f"d{z.name}", *z.shape): v for z, v in change.items()}
    np.testing.assert_allclose(numeric(operator.conjugates[name], point | changes), expected, rtol=1e-6, atol=1e-7)


def test_the_linearised_averages_of_ridge_regression_have_their_closed_form(numeric):
    """L = 1, g = (Y - omega)/(1 + V): every average is known, and so is its change with V, m, q and theta."""
    saddle = saddle_point(free_entropy(1, 1))
    operator = longitudinal_derivatives(saddle)
    p = saddle.symbols
    point = {p.q: 0.9, p.V: 0.7, p.m: 0.2, p.theta: 0.4, p.rho_star: 1.3, p.m_star: -0.5}
    change = {p.q: 0.3, p.V: -0.6, p.m: 0.8, p.theta: 0.5, p.rho_star: 0.0, p.m_star: 0.0}

    def averages(v):
        factor = 1 / (1 + v[p.V])
        shift = v[p.m_star] - v[p.m]
        return {
            p.g: factor * shift,
            p.g * p.dY.T: factor * (v[p.rho_star] - v[p.theta]),
            p.g * p.domega.T: factor * (v[p.theta] - v[p.q]),
            p.g * p.g.T: factor**2 * (shift**2 + v[p.rho_star] - 2 * v[p.theta] + v[p.q]),
        }

    step = 1e-6
    above, below = (averages({z: point[z] + h * change[z] for z in point}) for h in (step, -step))

    law = np.array([[point[p.q], point[p.theta]], [point[p.theta], point[p.rho_star]]])
    law_change = np.array([[change[p.q], change[p.theta]], [change[p.theta], 0.0]])
    mean_change = np.array([[change[p.m]], [0.0]])
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)  # exact: the integrands are of degree four
    weights = weights / weights.sum()
    factor = np.linalg.cholesky(law)

    def in_score(name):
        (symbol,) = [z for z in operator.score.atoms(sp.MatrixSymbol) if z.name == name]
        return symbol

    score_of = {in_score("C"): law, in_score("dC"): law_change, in_score("dmean"): mean_change}
    response = Jacobian(p.g, p.omega)
    total = {average: 0.0 for average in channel_averages(saddle)}
    for a, wa in zip(nodes, weights, strict=True):
        for b, wb in zip(nodes, weights, strict=True):
            z = factor @ np.array([[a], [b]])
            score = numeric(operator.score, score_of | {in_score("z"): z})
            shift = point[p.m_star] - point[p.m] + z[1, 0] - z[0, 0]
            one = np.ones((1, 1))
            known = {
                p.g: shift / (1 + point[p.V]) * one,
                p.domega: z[:1],
                p.dY: z[1:],
                response: -1 / (1 + point[p.V]) * one,
                sp.Symbol("S", real=True): score,
                **{sp.MatrixSymbol(f"d{x.name}", 1, 1): change[x] * one for x in (p.V, p.m)},
            }
            for average, formula in operator.moments.items():
                bare_formula = formula
                while bare_formula.atoms(MatrixAverage, Average):
                    outer = bare_formula.atoms(MatrixAverage, Average)
                    bare_formula = bare_formula.xreplace({e: e.summand for e in outer})
                total[average] += wa * wb * numeric(bare_formula, known).item()
    for average, value in total.items():
        expected = (above[average.summand] - below[average.summand]) / (2 * step)
        assert value == pytest.approx(expected, abs=1e-8), average
