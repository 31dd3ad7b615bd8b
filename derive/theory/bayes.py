"""Bayes-optimal inference of the teacher: its two integrals in components, and their averages.

See docs/theory.md section 13.

A learner that knows the laws of rows and outputs samples W from its posterior; teacher and samples are then alike
(Nishimori), and the overlaps q_c = E[gamma_c <pi><pi>^T], one per context, determine everything. Per d,

    Phi = extr { -1/2 sum_c Tr[q^_c q_c] + E_nu log Z_w + alpha E_k log Z_out },

    Z_w(b, Q)           = E_pi exp(b^T pi - 1/2 pi^T Q pi),           Q = sum_c gamma_c q^_c, b = Q pi* + Q^{1/2} eta
    Z_out(omega, V)     = sum over hidden of prod_l N(Psi_l; omega_l, V_l) |det dPsi| P(observed | Y)
    V_c = rho*_c - q_c, omega_l ~ N(m*_c, q_c)

(J. Barbier, F. Krzakala, N. Macris, L. Miolane, L. Zdeborova, PNAS 116 (2019) 5451; multi-index: B. Aubin et al.,
NeurIPS 2018, arXiv 1806.05451.) Both integrals are Gaussian; what they average, the posterior means f = d log Z_w / db
and g = d log Z_out / domega, is obtained by differentiation, and

    q_c = E_nu[gamma_c f f^T],      q^_c = alpha E_c[g_l g_l^T].
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp


def real_symbol_matrix(name: str, row_count: int, column_count: int, symmetric: bool = False) -> sp.Matrix:
    """Return a matrix of real symbols, named by the given name and their row and column, as b_0_1.

    Args:
        name: first part of the names.
        row_count: number of rows.
        column_count: number of columns.
        symmetric: whether entries (i, j) and (j, i) are one symbol.
    """
    return sp.Matrix(
        row_count,
        column_count,
        lambda i, j: sp.Symbol(f"{name}_{min(i, j)}_{max(i, j)}" if symmetric else f"{name}_{i}_{j}", real=True),
    )


def gaussian_log_integral(exponent: sp.Expr, variables: list[sp.Symbol]) -> sp.Expr:
    """Return the log of the integral over all variables of exp(exponent) / (2 pi)^{n/2}.

    Args:
        exponent: a quadratic polynomial in the variables, negative definite.
        variables: the n variables.

    Raises:
        ValueError: the exponent is not quadratic in the variables.
    """
    zero = dict.fromkeys(variables, 0)
    gradient = sp.Matrix([sp.diff(exponent, v) for v in variables])
    precision = -gradient.jacobian(variables)
    if precision.free_symbols & set(variables):
        raise ValueError(
            f"the exponent {exponent} is not quadratic in {variables}: its Gaussian integral has no closed form"
        )
    linear, precision = gradient.subs(zero), precision.applyfunc(sp.factor)
    shift = (linear.T * precision.adjugate() * linear)[0] / precision.det() / 2
    return exponent.subs(zero) + shift - sp.log(precision.det()) / 2


@dataclass(frozen=True)
class TeacherRowComponent:
    """A Gaussian component of the law of a teacher row: pi = mean + factor z, with z standard normal.

    Attributes:
        b: field of the row, t symbols.
        Q: precision of the field, t x t symbols.
        factor: symbols of the factor of z, t x t.
        mean: symbols of the mean, t x 1.
        log_integral: log E[exp(b^T pi - 1/2 pi^T Q pi)] over this component.
        moment: posterior mean of pi given b, the gradient of `log_integral` in b.
        spread: posterior covariance of pi given b, the Hessian of `log_integral` in b.
    """

    b: sp.Matrix
    Q: sp.Matrix
    factor: sp.Matrix
    mean: sp.Matrix
    log_integral: sp.Expr
    moment: sp.Matrix
    spread: sp.Matrix


def gaussian_component_of_teacher_row(t: int) -> TeacherRowComponent:
    """Return the integral over a Gaussian component of the law of a teacher row with t entries, and its moments.

    A component with factor 0 is a fixed value of the row.
    """
    b, mean, z = real_symbol_matrix("b", t, 1), real_symbol_matrix("mean", t, 1), real_symbol_matrix("z", t, 1)
    Q, factor = real_symbol_matrix("Q", t, t, symmetric=True), real_symbol_matrix("factor", t, t)
    pi = mean + factor * z
    exponent = sp.expand((b.T * pi)[0] - (pi.T * Q * pi)[0] / 2 - (z.T * z)[0] / 2)
    log_integral = gaussian_log_integral(exponent, list(z))
    moment = sp.Matrix([sp.diff(log_integral, entry) for entry in b])
    return TeacherRowComponent(b, Q, factor, mean, log_integral, moment, moment.jacobian(list(b)))


@dataclass(frozen=True)
class GaussianFieldWeight:
    """The Gaussian weight of the teacher's fields Y of a sample around their mean omega, without normalisation.

    Attributes:
        Y: symbols of the fields, L x t.
        omega: symbols of their means, L x t.
        precision: symbols of the inverse covariance of the fields of each token, t x t.
        exponent: log of the weight.
        slope: gradient of the exponent in omega, L x t.
    """

    Y: sp.Matrix
    omega: sp.Matrix
    precision: tuple[sp.Matrix, ...]
    exponent: sp.Expr
    slope: sp.Matrix


def gaussian_field_weight(tokens: int, t: int) -> GaussianFieldWeight:
    """Return the Gaussian weight of the teacher's fields of a sample, a product over tokens.

    Args:
        tokens: number L of tokens.
        t: number of columns of the teacher's weights.
    """
    Y, omega = real_symbol_matrix("y", tokens, t), real_symbol_matrix("w", tokens, t)
    precision = tuple(real_symbol_matrix(f"p_{token}", t, t, symmetric=True) for token in range(tokens))
    exponent: sp.Expr = sp.Integer(0)
    for token in range(tokens):
        step = (Y[token, :] - omega[token, :]).T
        exponent -= (step.T * precision[token] * step)[0] / 2
    slope = omega.applyfunc(lambda w: sp.diff(exponent, w))
    return GaussianFieldWeight(Y, omega, precision, exponent, slope)
