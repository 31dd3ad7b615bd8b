"""State evolution is what the free entropy's derivatives say, and a wrong free entropy says something else."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import sympy as sp

from saddleforge.derive.calculus.averages import (
    CHANNEL,
    CONTEXTS,
    COORDINATE,
    Average,
    Jacobian,
    MatrixAverage,
    OrderParameterSymbols,
    gradient_of_trace,
)
from saddleforge.derive.theory.free_entropy import FreeEntropy, free_entropy
from saddleforge.derive.theory.saddle_point import SaddlePoint, channel_averages, saddle_point

SIZES = [(None, None), (1, 1), (2, 1)]


@cache
def derived(s: int | None, t: int | None) -> SaddlePoint:
    """The saddle point that the package derives, with symbolic or given sizes."""
    return saddle_point(free_entropy(s, t))


def channel(matrix: sp.MatrixExpr) -> MatrixAverage:
    return MatrixAverage(CHANNEL, matrix)


def coordinate(matrix: sp.MatrixExpr) -> MatrixAverage:
    return MatrixAverage(COORDINATE, matrix)


def expected_equations(p: OrderParameterSymbols) -> dict[str, sp.MatrixExpr]:
    """docs/theory.md (5.2) to (5.11), typed from arXiv 2402.03902 and independent of the derivation."""
    R = (p.Lambda + p.G).inv()
    schur = (p.rho_star - p.theta.T * p.q.inv() * p.theta).inv()
    # E[g (Y - E[Y|omega])^T] with E[Y|omega] = m* + theta^T q^{-1} (omega - m).
    residual = channel(p.g * p.dY.T) - channel(p.g * p.domega.T) * p.q.inv() * p.theta
    theta_hat = p.alpha * residual * schur
    return {
        "q_hat": p.alpha * channel(p.g * p.g.T),
        "m_hat": p.alpha * channel(p.g),
        "theta_hat": theta_hat,
        "V_hat": theta_hat * p.theta.T * p.q.inv() - p.alpha * channel(p.g * p.domega.T) * p.q.inv(),
        "V": coordinate(p.gamma * R),
        "q": coordinate(p.gamma * R * (p.B * p.B.T + p.Q) * R),
        "m": coordinate(p.tau * R * p.B),
        "theta": coordinate(p.gamma * R * p.B * p.pi.T),
    }


@pytest.mark.parametrize("name", ["q_hat", "V_hat", "m_hat", "theta_hat", "q", "V", "m", "theta"])
@pytest.mark.parametrize("sizes", SIZES, ids=["any", "1x1", "2x1"])
def test_derived_equations_are_those_of_state_evolution(sizes, name):
    saddle = derived(*sizes)
    expected = expected_equations(saddle.symbols)[name]
    assert saddle[name].value.expand().doit() == expected.doit().expand().doit()


def test_before_steins_lemma_the_conjugates_are_derivatives_of_the_field():
    saddle = derived(None, None)
    p = saddle.symbols
    assert saddle["V_hat"].jacobian_form == -p.alpha * channel(Jacobian(p.g, p.omega))
    assert saddle["theta_hat"].jacobian_form == p.alpha * channel(Jacobian(p.g, p.Y))
    assert saddle["q_hat"].jacobian_form == saddle["q_hat"].value


def test_four_averages_are_all_a_channel_must_integrate():
    saddle = derived(None, None)
    p = saddle.symbols
    assert {a.summand for a in channel_averages(saddle)} == {p.g, p.g * p.dY.T, p.g * p.domega.T, p.g * p.g.T}


def with_trace(phi: FreeEntropy, summand: sp.Expr) -> FreeEntropy:
    """The same free entropy with another sum over contexts."""
    (old,) = [a for a in phi.expression.atoms(Average) if a.kind == CONTEXTS]
    return replace(phi, expression=phi.expression.xreplace({old: Average(CONTEXTS, summand)}))


def changed_equations(wrong: FreeEntropy) -> set[str]:
    right, saddle = derived(None, None), saddle_point(wrong)
    return {e.target.name for e in right.equations if saddle[e.target.name].value != e.value}


def planted(error: str) -> FreeEntropy:
    phi = free_entropy()
    p = phi.symbols
    terms = {
        "V_hat q": sp.Trace(p.V_hat * p.q) / 2,
        "q_hat V": -sp.Trace(p.q_hat * p.V) / 2,
        "m": -sp.Trace(p.m_hat.T * p.m),
        "theta": -sp.Trace(p.theta_hat.T * p.theta),
    }
    name, factor = error.rsplit(" ", 1)
    terms[name] *= {"halved": sp.Rational(1, 2), "flipped": -1}[factor]
    return with_trace(phi, sp.Add(*terms.values()))


@pytest.mark.parametrize(
    ("error", "equations"),
    [
        ("V_hat q halved", {"V_hat", "q"}),
        ("q_hat V flipped", {"q_hat", "V"}),
        ("m halved", {"m_hat", "m"}),
        ("theta flipped", {"theta_hat", "theta"}),
    ],
)
def test_an_error_in_a_trace_term_shows_in_the_two_equations_it_pairs(error, equations):
    assert changed_equations(planted(error)) == equations


def test_an_error_in_the_channel_shows_in_all_four_conjugates():
    phi = free_entropy()
    p = phi.symbols
    (energetic,) = [a for a in phi.expression.atoms(Average) if a.kind == CHANNEL]
    wrong = replace(phi, expression=phi.expression - p.alpha * energetic)
    assert changed_equations(wrong) == {"q_hat", "V_hat", "m_hat", "theta_hat"}


def test_an_error_in_the_prior_shows_in_the_overlaps():
    phi = free_entropy()
    p = phi.symbols
    (entropic,) = [a for a in phi.expression.atoms(Average) if a.kind == COORDINATE]
    without_mean = Average(COORDINATE, sp.Trace((p.Lambda + p.G).inv() * p.Q) / 2)
    wrong = replace(phi, expression=phi.expression.xreplace({entropic: without_mean}))
    assert changed_equations(wrong) == {"q", "m", "theta"}


def test_a_transposed_theta_raises():
    phi = free_entropy()
    p = phi.symbols
    with pytest.raises((ValueError, sp.matrices.exceptions.ShapeError)):
        saddle_point(with_trace(phi, -sp.Trace(p.theta_hat * p.theta)))


def test_a_missing_pair_raises_and_names_what_is_undetermined():
    phi = free_entropy()
    p = phi.symbols
    without_m = sp.Trace(p.V_hat * p.q) / 2 - sp.Trace(p.q_hat * p.V) / 2 - sp.Trace(p.theta_hat.T * p.theta)
    with pytest.raises(ValueError, match=r"does not determine m_hat"):
        saddle_point(with_trace(phi, without_m))


def test_a_term_without_a_rule_raises():
    phi = free_entropy()
    with pytest.raises(TypeError, match="no rule"):
        saddle_point(replace(phi, expression=phi.expression + sp.Trace(phi.symbols.q)))


# --- Stein's lemma ----------------------------------------------------------------------------------------------------


def test_stein_blocks_hold_for_a_random_covariance_and_a_cubic_field(numeric):
    """E[dg/domega] and E[dg/dY] from E[g z^T] alone, against exact Gaussian moments (s = 2, t = 1)."""
    generator = np.random.default_rng(7)
    root = generator.normal(size=(3, 3))
    law = root @ root.T + 0.5 * np.eye(3)
    z = sp.symbols("z0:3")
    coefficients = generator.integers(-3, 4, size=(2, 6))
    monomials = [z[0] ** 3, z[0] * z[1] * z[2], z[1] ** 2, z[2] ** 3, z[0] * z[2], z[2]]
    g = [sum(int(c) * monomial for c, monomial in zip(row, monomials, strict=True)) for row in coefficients]
    assert all(row.any() for row in coefficients)

    def moment(powers: tuple[int, ...]) -> float:
        indices = [i for i, power in enumerate(powers) for _ in range(power)]
        if not indices:
            return 1.0
        first, rest = indices[0], indices[1:]
        total = 0.0  # Wick: the first factor pairs with each of the others
        for n, other in enumerate(rest):
            left = rest[:n] + rest[n + 1 :]
            total += law[first, other] * moment(tuple(left.count(i) for i in range(3)))
        return total

    def mean(expression: sp.Expr) -> float:
        return sum(float(c) * moment(powers) for powers, c in sp.Poly(expression, *z).terms())

    saddle = derived(2, 1)
    p = saddle.symbols
    values = {
        p.alpha: 1.0,
        p.q: law[:2, :2],
        p.theta: law[:2, 2:],
        p.rho_star: law[2:, 2:],
        channel(p.g * p.domega.T): np.array([[mean(a * b) for b in z[:2]] for a in g]),
        channel(p.g * p.dY.T): np.array([[mean(a * z[2])] for a in g]),
    }
    by_omega = np.array([[mean(sp.diff(a, b)) for b in z[:2]] for a in g])
    by_teacher = np.array([[mean(sp.diff(a, z[2]))] for a in g])
    np.testing.assert_allclose(numeric(saddle["V_hat"].value, values), -by_omega, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(numeric(saddle["theta_hat"].value, values), by_teacher, rtol=1e-12, atol=1e-12)


# --- a trap in SymPy's matrix calculus --------------------------------------------------------------------------------


def test_the_gradient_of_a_sum_of_traces_is_the_sum_of_gradients():
    p = OrderParameterSymbols(3, 1)
    scalar = sp.Trace(p.V * p.V) / 2 + sp.Trace(p.V)
    assert gradient_of_trace(scalar, p.V, p) == p.V + sp.Identity(3)


def test_sympy_still_drops_the_gradient_of_such_a_sum():
    """Should this fail after an upgrade, `gradient_of_trace` need not take sums apart any more."""
    V = sp.MatrixSymbol("V", 3, 3)
    assert (sp.Trace(V * V) / 2 + sp.Trace(V)).diff(V) != V.T + sp.Identity(3)
