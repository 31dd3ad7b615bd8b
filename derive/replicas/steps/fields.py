"""Step 2: the joint normal law of the fields of a token in all replicas and in the teacher, given the label."""

from __future__ import annotations

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...calculus.averages import Symbols, symmetrised
from ...theory.stability import coefficient_of
from ..algebra.exact import Source, Values, is_zero
from ..algebra.objects import replicated
from ..algebra.step import Expressions, Step, declare_test
from .partition import DIMENSION


class Inputs:
    """A token x = mean + noise of covariance Sigma, its encoding p, and the weights of replica a and of the teacher.

    Attributes:
        teacher: W_star, d x t, the same for all replicas.
        token: x_l (docs/theory.md (1.1)), d x 1; mean, covariance: mu_c and Sigma_c of it given its label.
        encoding: p_l, d x 1, which only the student sees (docs/theory.md (1.2)).
    """

    def __init__(self, symbols: Symbols, d: sp.Expr = DIMENSION) -> None:
        self.symbols, self.d = symbols, d
        self.teacher = sp.MatrixSymbol("W_star", d, symbols.t)
        self.covariance = sp.MatrixSymbol("Sigma", d, d)
        self.token, self.mean, self.encoding = (sp.MatrixSymbol(name, d, 1) for name in ("token", "mu", "encoding"))

    def weights(self, replica: str) -> sp.MatrixSymbol:
        """W|a of a replica a, d x s."""
        return replicated(sp.MatrixSymbol("W", self.d, self.symbols.s), replica)


def step(p: Symbols) -> Step:
    """Means and covariances of linear maps of one normal token: they name the overlaps."""
    given = Inputs(p)
    scale = 1 / sp.sqrt(given.d)
    student = scale * given.weights("a").T * (given.token + given.encoding)
    other = scale * given.weights("b").T * (given.token + given.encoding)
    teacher = scale * given.teacher.T * given.token
    return Step(
        2,
        "Average over the tokens",
        {"X|a": student, "X|b": other, "Y": teacher},
        {
            "m|a": _mean(student, given),
            "q|ab": _covariance(student, other, given),
            "theta|a": _covariance(student, teacher, given),
            "m_star": _mean(teacher, given),
            "rho_star": _covariance(teacher, teacher, given),
        },
        "The fields are linear in a normal token, hence jointly normal given the label: a mean is the field at the "
        "mean, a covariance the form that the two maps make of that of the token. Every pair of replicas has one.",
        "arXiv 2402.03902, Appendix C; arXiv 2409.13904",
        (_moments(),),
    )


def _mean(field: MatrixExpr, given: Inputs) -> MatrixExpr:
    return field.xreplace({given.token: given.mean}).doit()


def _covariance(field: MatrixExpr, other: MatrixExpr, given: Inputs) -> MatrixExpr:
    left, right = coefficient_of(given.token, field), coefficient_of(given.token, other)
    return symmetrised((left * given.covariance * right.T).doit(), given.symbols)


@declare_test("moments by coordinates", "sums over independent coordinates at d = 3, s = t = 2, exactly")
def _moments(before: Expressions, after: Expressions) -> bool:
    """Coordinates x_i = mu_i + sqrt(gamma_i) z_i, z_i independent of variance 1."""
    source, d = Source("fields"), 3
    gamma = [abs(source.number()) for _ in range(d)]
    values = {
        "d": sp.Integer(d), "Sigma": sp.diag(*gamma), "mu": source.matrix(d, 1), "encoding": source.matrix(d, 1),
        "W|a": source.matrix(d, 2), "W|b": source.matrix(d, 2), "W_star": source.matrix(d, 2),
    }  # fmt: skip
    letters = sp.Matrix(sp.symbols(f"z:{d}"))
    at = Values(
        {**values, "token": values["mu"] + sp.Matrix([sp.sqrt(g) * z for g, z in zip(gamma, letters, strict=True)])}
    )
    fields = {name: at(field) for name, field in before.items()}
    zero = dict.fromkeys(letters, 0)

    def covariance(first: str, second: str) -> sp.Matrix:
        return fields[first].jacobian(letters) * fields[second].jacobian(letters).T

    expected = {
        "m|a": fields["X|a"].xreplace(zero), "m_star": fields["Y"].xreplace(zero), "q|ab": covariance("X|a", "X|b"),
        "theta|a": covariance("X|a", "Y"), "rho_star": covariance("Y", "Y"),
    }  # fmt: skip
    return set(after) == set(expected) and all(is_zero(at(after[name]) - expected[name]) for name in expected)
