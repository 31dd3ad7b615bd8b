"""Finite inverse temperature beta: free entropy per beta and saddle point (docs/theory.md section 12).

Every order parameter is rescaled as for beta -> infinity (V -> V / beta, V^ -> beta V^, q^ -> beta^2 q^, m^ -> beta m^,
theta^ -> beta theta^) and Phi divided by beta, so that both theories share their variables. What was a minimum is now
an average over a Boltzmann law: with F the objective of the proximal map and < . > its average at weight exp(-beta F),

    M = -(1/beta) log of the integral over X of prod_l N(X_l; omega_l, V_l / beta) exp(-beta loss),
    N =  (1/beta) log of the integral over w of exp(beta (-r(w) - w^T G w / 2 + w^T b)),
    g = V^{-1} (<X> - omega) = -dM/domega,      w = <w> = dN/db.

The saddle point then reads as at zero temperature, with these g and w: `equals_zero_temperature_theory` verifies it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ..calculus.averages import (
    CHANNEL,
    COORDINATE,
    Jacobian,
    MatrixAverage,
    OrderParameterSymbols,
    differentiate_averages,
    drop_transposes_of_symmetric_matrices,
    gradient_of_trace,
)
from .free_entropy import FreeEntropy
from .saddle_point import saddle_point

beta = sp.Symbol("beta", positive=True)


@dataclass(frozen=True)
class ThermalCorrections:
    """The terms that a finite temperature adds to the free entropy per beta.

    Attributes:
        trace: the term Tr[V^ V] / (2 beta) of one context (token, cluster).
        log_volume: the constant s log(2 pi / beta) / (2 beta) of one coordinate for a ridge, else zero.
        log_det: the coefficient of log det(Lambda + G) for a ridge, else zero.
        penalty: the ridge penalty due to thermal fluctuations of one row w (docs/theory.md (12.9)), else zero.
    """

    trace: sp.Expr
    log_volume: sp.Expr
    log_det: sp.Expr
    penalty: sp.Expr


def thermal_corrections(p: OrderParameterSymbols, ridge: bool) -> ThermalCorrections:
    """Return the terms that a finite temperature 1 / beta adds to the free entropy per beta.

    With a ridge, rows of W are normal with covariance (Lambda + G)^{-1} / beta, and the terms have closed forms.

    Args:
        p: the matrix symbols of the order parameters.
        ridge: whether the regulariser is a ridge.
    """
    trace = sp.Trace(p.V_hat * p.V) / (2 * beta)
    if not ridge:
        return ThermalCorrections(trace, sp.Integer(0), sp.Integer(0), sp.Integer(0))
    return ThermalCorrections(
        trace,
        p.s * sp.log(2 * sp.pi / beta) / (2 * beta),
        -1 / (2 * beta),
        sp.Trace(p.Lambda * (p.Lambda + p.G).inv()) / (2 * beta),
    )


def finite_temperature_gradient(phi: FreeEntropy, variable: sp.MatrixSymbol, ridge: bool) -> MatrixExpr:
    """Return the gradient of the finite-temperature free entropy per beta in one order parameter.

    Args:
        phi: the free entropy at zero temperature, whose minima become thermal averages.
        variable: the matrix symbol of an overlap or conjugate.
        ridge: whether the regulariser is a ridge.
    """
    p = phi.symbols
    total = differentiate_averages(phi.expression, variable, p)
    own = thermal_corrections(p, ridge)
    total = total + gradient_of_trace(own.trace, variable, p)
    total = total - p.alpha * _average_each_matrix_term(CHANNEL, _thermal_field_fluctuations(variable, p))
    return drop_transposes_of_symmetric_matrices(
        (total + _average_each_matrix_term(COORDINATE, _thermal_row_fluctuations(variable, p, own, ridge))).doit(), p
    )


def _average_each_matrix_term(kind: str, matrix: MatrixExpr) -> MatrixExpr:
    """Return the average of a sum of matrices term by term, with factors independent of gamma moved outside."""
    terms = []
    for term in sp.MatAdd.make_args(matrix.doit()):
        if not term.is_ZeroMatrix:
            scalar, bare = term.as_coeff_mmul() if isinstance(term, sp.MatMul) else (sp.Integer(1), term)
            outside = sp.Mul(*[a for a in sp.Mul.make_args(scalar) if not a.has(sp.Symbol("gamma", positive=True))])
            terms.append(outside * MatrixAverage(kind, (scalar / outside * bare).doit()))
    return sp.MatAdd(*terms).doit() if terms else sp.ZeroMatrix(*matrix.shape)


def _thermal_field_fluctuations(variable: sp.MatrixSymbol, p: OrderParameterSymbols) -> MatrixExpr:
    """Return the part of the free entropy's gradient in V that is due to thermal fluctuations of a sample's fields X.

    Their covariance C / beta is expressed by the response dg/domega = V^{-1} (C V^{-1} - 1) of the field g.
    """
    if variable != p.V:
        return sp.ZeroMatrix(*variable.shape)
    slope, inverse = Jacobian(p.g, p.omega), p.V.inv()  # symmetric: it is minus the second derivative of M
    scaled = slope + inverse  # V^{-1} C V^{-1}
    spread, square = sp.MatrixSymbol("spread", p.s, p.s), sp.Trace(p.step.T * inverse * p.step) / 2
    of_square = gradient_of_trace(sp.Trace(inverse * spread) / 2, p.V, p)  # of 1/2 Tr[V^{-1} C]
    if gradient_of_trace(square, p.V, p) != of_square.xreplace({spread: p.step * p.step.T}).doit():
        raise TypeError(
            "wrong derivation, please report it: the gradients in V of step^T V^{-1} step and of Tr[V^{-1} C] differ "
            "at C = step step^T"
        )
    half = of_square.xreplace({spread: p.V * scaled * p.V}).doit().expand().doit()
    norm = inverse / 2  # d/dV of (1/2) log det V
    total = ((half + norm) / beta).expand().doit().xreplace({slope.T: slope}).doit()
    # A loss of overlaps of the weights contains those of a replica with itself, q + V / beta.
    return total + p.loss_q / beta if p.loss_depends_on_q else total


def _thermal_row_fluctuations(
    variable: sp.MatrixSymbol, p: OrderParameterSymbols, own: ThermalCorrections, ridge: bool
) -> MatrixExpr:
    """Return the part of the free entropy's gradient in V^ that is due to thermal fluctuations of a row w of W.

    Their covariance is (d<w>/db) / beta, with b the field of the row; for a ridge, (Lambda + G)^{-1} / beta.
    """
    if variable != p.V_hat:
        return sp.ZeroMatrix(*variable.shape)
    if ridge:
        return own.log_det * p.gamma * (p.Lambda + p.G).inv()
    return -p.gamma * Jacobian(p.w, p.b) / (2 * beta)


@cache
def equals_zero_temperature_theory(phi: FreeEntropy, ridge: bool) -> bool:
    """Return whether the saddle-point equations at finite temperature have the form of those at zero temperature.

    They do if each gradient equals the one at zero temperature, up to a multiple of another gradient: that in q over
    beta for V, and that in q^ over beta for V^.

    Args:
        phi: the free entropy at zero temperature.
        ridge: whether the regulariser is a ridge.
    """
    p = phi.symbols
    partner = {p.V: p.q, p.V_hat: p.q_hat}
    zero = {e.source: e.gradient for e in saddle_point(phi).equations}
    for source, expected in zero.items():
        found = finite_temperature_gradient(phi, source, ridge)
        if source in partner:
            sign = 1 if source == p.V else -1
            expected = expected + sign * zero[partner[source]] / beta
        if not _are_equal_after_expansion(found, expected, p):
            return False
    return True


def _are_equal_after_expansion(one: MatrixExpr, other: MatrixExpr, p: OrderParameterSymbols) -> bool:
    """Return whether two matrix expressions are equal, by expanding their difference and simplifying coefficients."""
    difference = drop_transposes_of_symmetric_matrices((one - other).doit(), p)
    total: dict[MatrixExpr, sp.Expr] = {}
    for term in sp.MatAdd.make_args(difference.expand().doit() if not difference.is_ZeroMatrix else difference):
        if term.is_ZeroMatrix:
            continue
        scalar, bare = term.as_coeff_mmul() if isinstance(term, sp.MatMul) else (sp.Integer(1), term)
        total[bare] = total.get(bare, sp.Integer(0)) + scalar
    return all(sp.simplify(value) == 0 for value in total.values())
