"""Step 2: the joint normal law of the fields of a token in all replicas and in the teacher, given the label."""

from __future__ import annotations

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...calculus.averages import OrderParameterSymbols, drop_transposes_of_symmetric_matrices
from ...theory.stability import extract_linear_coefficient
from ..algebra.exact import ExactValues, RandomRationals, is_exactly_zero
from ..algebra.objects import replica_symbol
from ..algebra.step import Expressions, Step, declare_test
from .partition import DIMENSION


class TokenAndWeights:
    """The symbols of a token, its encoding, and the weights of one replica and of the teacher.

    Attributes:
        teacher: weights W_star of the teacher (d x t), the same for all replicas.
        token: token x (d x 1), see docs/theory.md (1.1).
        mean: mean mu of the token given its label (d x 1).
        covariance: covariance Sigma of the token given its label (d x d).
        encoding: encoding p of the token's position (d x 1), which only the student receives (docs/theory.md (1.2)).
    """

    def __init__(self, symbols: OrderParameterSymbols, d: sp.Expr = DIMENSION) -> None:
        self.symbols, self.d = symbols, d
        self.teacher = sp.MatrixSymbol("W_star", d, symbols.t)
        self.covariance = sp.MatrixSymbol("Sigma", d, d)
        self.token, self.mean, self.encoding = (sp.MatrixSymbol(name, d, 1) for name in ("token", "mu", "encoding"))

    def weight_matrix(self, replica: str) -> sp.MatrixSymbol:
        """Return the symbol of the weight matrix of one replica, d x s."""
        return replica_symbol(sp.MatrixSymbol("W", self.d, self.symbols.s), replica)


def gaussian_fields_step(p: OrderParameterSymbols) -> Step:
    """Return derivation step 2: means and covariances of the fields of a normal token, which are the overlaps."""
    given = TokenAndWeights(p)
    scale = 1 / sp.sqrt(given.d)
    student = scale * given.weight_matrix("a").T * (given.token + given.encoding)
    other = scale * given.weight_matrix("b").T * (given.token + given.encoding)
    teacher = scale * given.teacher.T * given.token
    return Step(
        2,
        "Average over the tokens",
        {"X|a": student, "X|b": other, "Y": teacher},
        {
            "m|a": _field_mean(student, given),
            "q|ab": _field_covariance(student, other, given),
            "theta|a": _field_covariance(student, teacher, given),
            "m_star": _field_mean(teacher, given),
            "rho_star": _field_covariance(teacher, teacher, given),
        },
        "The fields are linear in a normal token, hence jointly normal given the label: a mean is the field at the "
        "mean, a covariance the form that the two maps make of that of the token. Every pair of replicas has one.",
        "arXiv 2402.03902, Appendix C; arXiv 2409.13904",
        (_check_field_moments(),),
    )


def _field_mean(field: MatrixExpr, given: TokenAndWeights) -> MatrixExpr:
    return field.xreplace({given.token: given.mean}).doit()


def _field_covariance(field: MatrixExpr, other: MatrixExpr, given: TokenAndWeights) -> MatrixExpr:
    left, right = extract_linear_coefficient(given.token, field), extract_linear_coefficient(given.token, other)
    return drop_transposes_of_symmetric_matrices((left * given.covariance * right.T).doit(), given.symbols)


@declare_test("moments by coordinates", "sums over independent coordinates at d = 3, s = t = 2, exactly")
def _check_field_moments(before: Expressions, after: Expressions) -> bool:
    """Return whether means and covariances of the fields agree with sums over independent coordinates.

    The coordinates are x_i = mu_i + sqrt(gamma_i) z_i, with z_i of variance 1.
    """
    source, d = RandomRationals("fields"), 3
    gamma = [abs(source.draw_number()) for _ in range(d)]
    values = {
        "d": sp.Integer(d), "Sigma": sp.diag(*gamma), "mu": source.draw_matrix(d, 1),
        "encoding": source.draw_matrix(d, 1),
        "W|a": source.draw_matrix(d, 2), "W|b": source.draw_matrix(d, 2), "W_star": source.draw_matrix(d, 2),
    }  # fmt: skip
    letters = sp.Matrix(sp.symbols(f"z:{d}"))
    at = ExactValues(
        {**values, "token": values["mu"] + sp.Matrix([sp.sqrt(g) * z for g, z in zip(gamma, letters, strict=True)])}
    )
    fields = {name: at(field) for name, field in before.items()}
    zero = dict.fromkeys(letters, 0)

    def _covariance_by_differentiation(first: str, second: str) -> sp.Matrix:
        """Return the covariance of two fields by differentiation in the coordinates.

        Args:
            first: name of a field.
            second: name of the other field.
        """
        return fields[first].jacobian(letters) * fields[second].jacobian(letters).T

    expected = {
        "m|a": fields["X|a"].xreplace(zero), "m_star": fields["Y"].xreplace(zero),
        "q|ab": _covariance_by_differentiation("X|a", "X|b"),
        "theta|a": _covariance_by_differentiation("X|a", "Y"), "rho_star": _covariance_by_differentiation("Y", "Y"),
    }  # fmt: skip
    return set(after) == set(expected) and all(is_exactly_zero(at(after[name]) - expected[name]) for name in expected)
