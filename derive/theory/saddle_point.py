"""Saddle-point conditions by differentiating the free entropy (docs/theory.md section 5); nothing is typed in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ..calculus.averages import CHANNEL, Jacobian, MatrixAverage, Symbols, differentiate, integrate_by_parts, symmetrise
from .free_entropy import FreeEntropy


@dataclass(frozen=True)
class Equation:
    """An equation target = value, obtained from d Phi / d source = 0.

    Attributes:
        jacobian_form: the value before Stein's lemma, with derivatives of g as distributions; equals `value` where
            no derivative appears.
    """

    target: sp.MatrixSymbol
    value: MatrixExpr
    source: sp.MatrixSymbol
    gradient: MatrixExpr
    jacobian_form: MatrixExpr


@dataclass(frozen=True)
class SaddlePoint:
    """The eight equations: conjugates from overlaps through the channel, overlaps from conjugates through the prior.

    Attributes:
        trained: d Phi / d phi, zero at the saddle (trained x 1); None without trained numbers.
    """

    equations: tuple[Equation, ...]
    symbols: Symbols
    trained: MatrixExpr | None = None

    def __getitem__(self, target: str) -> Equation:
        return next(e for e in self.equations if e.target.name == target)


@cache
def saddle_point(phi: FreeEntropy) -> SaddlePoint:
    """Differentiate Phi in all eight matrices of a generic context and solve each condition for its partner.

    Derived once for each Phi: models of the same sizes and kind of regulariser share it, whatever their loss.

    Raises:
        ValueError: a condition does not determine exactly one order parameter linearly.
    """
    p = phi.symbols
    partners = {p.q: p.V_hat, p.V: p.q_hat, p.m: p.m_hat, p.theta: p.theta_hat}
    partners |= {conjugate: overlap for overlap, conjugate in partners.items()}
    equations = []
    for source in (p.V, p.q, p.m, p.theta, p.V_hat, p.q_hat, p.m_hat, p.theta_hat):
        gradient = differentiate(phi.expression, source, p)
        jacobian_form = _solve_for(gradient, partners[source], p)
        equations.append(
            Equation(partners[source], integrate_by_parts(jacobian_form, p).doit(), source, gradient, jacobian_form)
        )
    return SaddlePoint(tuple(equations), p, differentiate(phi.expression, p.phi, p) if p.trained else None)


def _solve_for(gradient: MatrixExpr, target: sp.MatrixSymbol, symbols: Symbols) -> MatrixExpr:
    """Solve gradient = 0 for `target`, which must stand in it as scalar * target."""
    rest: MatrixExpr = sp.ZeroMatrix(*target.shape)
    coefficient: sp.Expr = sp.Integer(0)
    for term in sp.MatAdd.make_args(gradient):
        scalar, matrix = term.as_coeff_mmul() if isinstance(term, sp.MatMul) else (sp.Integer(1), term)
        if symmetrise(matrix.doit(), symbols) == target:
            coefficient += scalar
        elif term.has(target):
            raise ValueError(f"the condition {gradient} = 0 is not linear in {target}")
        else:
            rest = rest + term
    if coefficient == 0:
        raise ValueError(f"the condition {gradient} = 0 does not determine {target}")
    return (-rest / coefficient).doit()


def write_with_teacher_conjugate(saddle: SaddlePoint) -> MatrixExpr:
    """Return V^ with theta^ in place of the right side of its equation: theta^ theta^T q^{-1} - alpha E[...] q^{-1}."""
    p = saddle.symbols
    scalar, pattern = saddle["theta_hat"].value.as_coeff_matrices()

    def replace_pattern(e: MatrixExpr) -> MatrixExpr:
        if isinstance(e, sp.MatAdd):
            return sp.MatAdd(*[replace_pattern(a) for a in e.args])
        if isinstance(e, sp.MatMul):
            coefficient, factors = e.as_coeff_matrices()
            for i in range(len(factors) - len(pattern) + 1):
                if factors[i : i + len(pattern)] == pattern:
                    named = sp.MatMul(*factors[:i], p.theta_hat, *factors[i + len(pattern) :])
                    return coefficient / scalar * named
            return coefficient * sp.MatMul(*[replace_pattern(a) for a in factors])
        return e

    return replace_pattern(saddle["V_hat"].value).expand().doit()


def channel_averages(saddle: SaddlePoint) -> list[MatrixExpr]:
    """Return the distinct channel averages in the equations (after Stein), in a fixed order."""
    found: dict[str, MatrixExpr] = {}
    values = [equation.value for equation in saddle.equations]
    for value in values if saddle.trained is None else [*values, saddle.trained]:
        for average in value.atoms(MatrixAverage):
            if average.kind == CHANNEL:
                if average.has(Jacobian):
                    raise ValueError(f"{average} still contains a derivative of g")
                found[str(average)] = average
    return [found[key] for key in sorted(found)]
