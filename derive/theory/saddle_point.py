"""Saddle-point conditions by differentiating the free entropy (docs/theory.md section 5); nothing is typed in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ..calculus.averages import (
    CHANNEL,
    Jacobian,
    MatrixAverage,
    OrderParameterSymbols,
    differentiate_averages,
    drop_transposes_of_symmetric_matrices,
    gaussian_integration_by_parts,
)
from .free_entropy import FreeEntropy


@dataclass(frozen=True)
class SaddlePointEquation:
    """A saddle-point equation target = value, obtained by solving gradient = d Phi / d source = 0.

    Attributes:
        target: the order parameter that the equation determines.
        value: its value, without derivatives of the field g, by Stein's lemma.
        source: the order parameter in which Phi is differentiated.
        gradient: the derivative of Phi in `source`.
        jacobian_form: the value before Stein's lemma is applied, with derivatives of g.
    """

    target: sp.MatrixSymbol
    value: MatrixExpr
    source: sp.MatrixSymbol
    gradient: MatrixExpr
    jacobian_form: MatrixExpr


@dataclass(frozen=True)
class SaddlePoint:
    """The eight saddle-point equations: channel equations for the conjugates, prior equations for the overlaps.

    Attributes:
        equations: the equations, of which `saddle["q_hat"]` is the one that determines q_hat.
        symbols: the matrix symbols of the order parameters.
        trained: the gradient of Phi in the numbers trained with the weights, zero at the saddle; None without any.
    """

    equations: tuple[SaddlePointEquation, ...]
    symbols: OrderParameterSymbols
    trained: MatrixExpr | None = None

    def __getitem__(self, target: str) -> SaddlePointEquation:
        return next(e for e in self.equations if e.target.name == target)


@cache
def saddle_point(phi: FreeEntropy) -> SaddlePoint:
    """Derive the saddle-point equations of a free entropy Phi.

    Phi is differentiated in q, V, m, theta and their conjugates; each condition is solved for the order parameter in
    which it is linear. The result is cached and does not depend on the loss.

    Raises:
        ValueError: a condition is not linear in the order parameter that it should determine.
    """
    p = phi.symbols
    partners = {p.q: p.V_hat, p.V: p.q_hat, p.m: p.m_hat, p.theta: p.theta_hat}
    partners |= {conjugate: overlap for overlap, conjugate in partners.items()}
    equations = []
    for source in (p.V, p.q, p.m, p.theta, p.V_hat, p.q_hat, p.m_hat, p.theta_hat):
        gradient = differentiate_averages(phi.expression, source, p)
        jacobian_form = _solve_stationarity_condition(gradient, partners[source], p)
        equations.append(
            SaddlePointEquation(
                partners[source],
                gaussian_integration_by_parts(jacobian_form, p).doit(),
                source,
                gradient,
                jacobian_form,
            )
        )
    return SaddlePoint(tuple(equations), p, differentiate_averages(phi.expression, p.phi, p) if p.trained else None)


def _solve_stationarity_condition(
    gradient: MatrixExpr, target: sp.MatrixSymbol, symbols: OrderParameterSymbols
) -> MatrixExpr:
    """Return the value of `target` that solves the stationarity condition gradient = 0, linear in `target`."""
    rest: MatrixExpr = sp.ZeroMatrix(*target.shape)
    coefficient: sp.Expr = sp.Integer(0)
    for term in sp.MatAdd.make_args(gradient):
        scalar, matrix = term.as_coeff_mmul() if isinstance(term, sp.MatMul) else (sp.Integer(1), term)
        if drop_transposes_of_symmetric_matrices(matrix.doit(), symbols) == target:
            coefficient += scalar
        elif term.has(target):
            raise ValueError(f"the condition {gradient} = 0 is not linear in {target}")
        else:
            rest = rest + term
    if coefficient == 0:
        raise ValueError(f"the condition {gradient} = 0 does not determine {target}")
    return (-rest / coefficient).doit()


def write_V_hat_with_theta_hat(saddle: SaddlePoint) -> MatrixExpr:
    """Return the right side of the equation for V_hat, with theta_hat in place of the average that theta_hat equals."""
    p = saddle.symbols
    scalar, pattern = saddle["theta_hat"].value.as_coeff_matrices()

    def replace_factor_sequence(e: MatrixExpr) -> MatrixExpr:
        if isinstance(e, sp.MatAdd):
            return sp.MatAdd(*[replace_factor_sequence(a) for a in e.args])
        if isinstance(e, sp.MatMul):
            coefficient, factors = e.as_coeff_matrices()
            for i in range(len(factors) - len(pattern) + 1):
                if factors[i : i + len(pattern)] == pattern:
                    named = sp.MatMul(*factors[:i], p.theta_hat, *factors[i + len(pattern) :])
                    return coefficient / scalar * named
            return coefficient * sp.MatMul(*[replace_factor_sequence(a) for a in factors])
        return e

    return replace_factor_sequence(saddle["V_hat"].value).expand().doit()


def channel_averages(saddle: SaddlePoint) -> list[MatrixExpr]:
    """Return the distinct averages over samples in the saddle-point equations, sorted by their printed form."""
    found: dict[str, MatrixExpr] = {}
    values = [equation.value for equation in saddle.equations]
    for value in values if saddle.trained is None else [*values, saddle.trained]:
        for average in value.atoms(MatrixAverage):
            if average.kind == CHANNEL:
                if average.has(Jacobian):
                    raise ValueError(
                        f"integration by parts has left a derivative of the field g in the channel average {average}"
                    )
                found[str(average)] = average
    return [found[key] for key in sorted(found)]
