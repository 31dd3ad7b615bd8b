"""One-pass stochastic gradient descent for large d: drift and noise of a row, and closed moment equations.

The moments are second moments of the rows of a spectral atom (docs/theory.md section 19).
"""

from __future__ import annotations

from math import prod
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ..calculus.averages import (
    CHANNEL,
    CONTEXTS,
    COORDINATE,
    Average,
    Jacobian,
    MatrixAverage,
    OrderParameterSymbols,
    gaussian_integration_by_parts,
)

ATOM = "atom"  # the average over the rows of a spectral atom, at given eigenvalues
RATE = sp.Symbol("rate", positive=True)
RATE_TRAINED = sp.Symbol("rate_trained", positive=True)
BATCH = sp.Symbol("batch", positive=True)  # samples of a step
SHARE = sp.Symbol("batch_share", positive=True)  # samples of a step over d, where they are of order d
OTHER = "@c'"  # a second context of the row, in addition to the generic one


class RowMoments:
    """The matrix symbols of the second moments of a row w of W in one spectral atom, under gradient descent.

    Attributes:
        S: E[w w^T], s x s.
        T: E[w tau_c], s x 1, with tau_c the mean coordinate of a context c (token, cluster).
        P: E[w pi^T], s x t, with pi the teacher's row.
        A, b: matrix and vector of the drift -rate (A w + b) of a row.
        D, X: slope of the loss in the student's fields of a token, and these fields.
        H, K: average derivatives of the slope D in the fields of student and teacher.
        mean, square: averages of D and of D D^T.
    """

    def __init__(self, p: OrderParameterSymbols) -> None:
        s, t = p.s, p.t
        self.p = p
        self.S, self.P = sp.MatrixSymbol("S_atom", s, s), sp.MatrixSymbol("P_atom", s, t)
        self.T, self.T_other = sp.MatrixSymbol("T_atom", s, 1), sp.MatrixSymbol(f"T_atom{OTHER}", s, 1)
        self.tau_other = sp.Symbol(f"tau{OTHER}", real=True)
        self.D, self.X, self.dX = (
            sp.MatrixSymbol("loss_slope", s, 1),
            sp.MatrixSymbol("X_token", s, 1),
            sp.MatrixSymbol("dX", s, 1),
        )
        self.A, self.b = sp.MatrixSymbol("A_drift", s, s), sp.MatrixSymbol("b_drift", s, 1)
        self.H, self.K = sp.MatrixSymbol("H_slope", s, s), sp.MatrixSymbol("K_slope", s, t)
        self.mean, self.square = MatrixAverage(CHANNEL, self.D), MatrixAverage(CHANNEL, self.D * self.D.T)
        self.noise = MatrixAverage(CONTEXTS, p.gamma * self.square)

    def average_quadratic_product_over_rows(self, scalar: sp.Expr, factors: list[MatrixExpr]) -> MatrixExpr:
        """Return the average, over rows in a spectral atom, of a product with two factors from w, tau and pi.

        Here w is a row of W, tau the mean coordinates and pi the teacher's row.

        Args:
            scalar: scalar factor of the product, which may contain tau.
            factors: matrix factors of the product, in order.

        Raises:
            TypeError: the product does not have exactly two factors from w, tau and pi.
        """
        p = self.p
        taus = [tau for tau in (p.tau, self.tau_other) if scalar.has(tau)]
        scalar = scalar / prod(taus, start=sp.Integer(1))
        own = [n for n, factor in enumerate(factors) if factor in (p.w, p.w.T, p.pi, p.pi.T)]
        if len(own) + len(taus) != 2 or (len(own) == 2 and own[1] != own[0] + 1):
            raise TypeError(
                f"the product of {scalar} and {factors} must have two factors from the weight row w, the mean "
                "coordinates tau and the teacher's row pi"
            )
        if not own:
            return (scalar * Average(ATOM, sp.Mul(*taus)) * sp.MatMul(*factors)).doit()
        inside = sp.MatMul(*[factors[n] for n in own])
        known = {
            p.w * p.w.T: self.S, p.w * p.pi.T: self.P, p.pi * p.w.T: self.P.T,
            p.tau * p.w: self.T, self.tau_other * p.w: self.T_other,
            p.tau * p.w.T: self.T.T, self.tau_other * p.w.T: self.T_other.T,
        }  # fmt: skip
        whole = sp.MatMul(*taus, inside).doit()
        moment = known.get(whole, MatrixAverage(ATOM, whole))
        return (scalar * sp.MatMul(*factors[: own[0]], moment, *factors[own[-1] + 1 :])).doit()

    def average_sum_over_rows(self, expression: MatrixExpr) -> MatrixExpr:
        """Return the average over an atom's rows of a sum of products, also inside sums over (token, cluster) pairs."""
        total: MatrixExpr = sp.ZeroMatrix(*expression.shape)
        for term in sp.MatAdd.make_args(expression):
            scalar, factors = _split_number_and_matrices(term)
            sums = [n for n, factor in enumerate(factors) if getattr(factor, "kind", "") == CONTEXTS]
            if not sums:
                total = total + self.average_quadratic_product_over_rows(scalar, list(factors))
                continue
            n = sums[0]
            for part in sp.MatAdd.make_args(factors[n].summand):
                inner, own = _split_number_and_matrices(part)
                mean = self.average_quadratic_product_over_rows(scalar * inner, [*factors[:n], *own, *factors[n + 1 :]])
                total = total + MatrixAverage(CONTEXTS, mean)
        return total.doit()

    def drop_transpose_of_row_moment(self, expression: MatrixExpr) -> MatrixExpr:
        """Return an expression in which the transpose of S = E[w w^T], for a row w of W, is replaced by S."""
        return expression.xreplace({self.S.T: self.S}).doit()


def _split_number_and_matrices(term: MatrixExpr) -> tuple[sp.Expr, list[MatrixExpr]]:
    """Return a matrix product as a pair (scalar factor, list of matrix factors)."""
    scalar, factors = term.as_coeff_matrices() if isinstance(term, sp.MatMul) else (sp.Integer(1), [term])
    return scalar, list(factors)


def weight_row_drift_and_noise(rows: RowMoments) -> dict[str, Any]:
    """Return drift and noise covariance of a row of W over d descent steps, by name (docs/theory.md (19.3), (19.4))."""
    p = rows.p
    in_fields = MatrixAverage(CHANNEL, Jacobian(p.g, p.omega))
    in_teacher = MatrixAverage(CHANNEL, Jacobian(p.g, p.Y))
    # The rule holds for any function of the fields, for D as for g.
    named = {p.g: rows.D, p.domega: rows.dX}
    H, K = (gaussian_integration_by_parts(a, p).doit().xreplace(named) for a in (in_fields, in_teacher))
    A = p.Lambda + MatrixAverage(CONTEXTS, p.gamma * rows.H)
    if p.loss_depends_on_q:
        A = A + MatrixAverage(CONTEXTS, 2 * p.gamma * MatrixAverage(CHANNEL, p.loss_q))
    b = MatrixAverage(CONTEXTS, (p.tau * rows.mean + p.gamma * rows.K * p.pi).doit())
    found: dict[str, Any] = {
        "H_slope": H,
        "K_slope": K,
        "A_drift": A,
        "b_drift": b,
        "drift": (-RATE * (A * p.w + b)).expand().doit(),
        "noise": RATE**2 / BATCH * rows.noise,
        "batch noise": RATE**2 / SHARE * rows.noise,
    }
    if p.trained:
        found["trained"] = -RATE_TRAINED * (MatrixAverage(CHANNEL, p.loss_phi) + p.Kappa * p.phi)
    return found


def row_moment_equations(rows: RowMoments) -> dict[str, Any]:
    """Return the differential equations of the second moments of a weight row (docs/theory.md (19.6) to (19.10)).

    They describe gradient descent and follow from drift and noise of a row by the product rule. Keys are names of
    moments, as "dS".
    """
    p, after = rows.p, weight_row_drift_and_noise(rows)
    b = after["b_drift"]
    pull = RATE * (rows.average_sum_over_rows((b * p.w.T).doit()))
    with_A = RATE * rows.A * rows.S
    found: dict[str, Any] = {
        "dS": rows.drop_transpose_of_row_moment((-with_A - with_A.T - pull - pull.T + after["noise"]).doit())
    }
    for name, moment, partner in (("T", rows.T_other, rows.tau_other), ("P", rows.P, p.pi.T)):
        with_b = rows.average_sum_over_rows((partner * b).doit() if name == "T" else (b * partner).doit())
        moved = RATE * (rows.A * moment + with_b)
        found |= {f"d{name}": (-1 * moved).doit(), f"{name} after a batch": (moment - moved).doit()}
    # (1 - rate A) w - rate b, squared: b with itself needs two sums over contexts.
    shrink = sp.Identity(p.s) - RATE * rows.A
    cross = shrink * rows.average_sum_over_rows((p.w * b.T).doit()) * RATE
    square = MatrixAverage(ATOM, rows.b * rows.b.T)
    found["S after a batch"] = (
        shrink * rows.S * shrink.T - cross - cross.T + RATE**2 * square + after["batch noise"]
    ).doit()
    found["q"] = MatrixAverage(COORDINATE, p.gamma * rows.S)
    found["m"] = MatrixAverage(COORDINATE, rows.T)
    found["theta"] = MatrixAverage(COORDINATE, p.gamma * rows.P)
    return found
