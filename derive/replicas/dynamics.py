"""One-pass stochastic gradient descent for large d (docs/theory.md section 19).

The update of a row, and checks of the equations of motion that follow from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, reduce
from operator import add
from typing import Any

import sympy as sp

from ..authoring.model import FixedSizeModel
from ..calculus.averages import CHANNEL, CONTEXTS, COORDINATE, MatrixAverage, OrderParameterSymbols
from ..errors import ModelError
from ..theory.descent import (
    ATOM,
    OTHER,
    RATE,
    RATE_TRAINED,
    RowMoments,
    row_moment_equations,
    weight_row_drift_and_noise,
)
from ..theory.kinks import LOSS_JUMPS, describe_gradient_jump
from .algebra.exact import ExactValues, RandomRationals, is_exactly_zero
from .algebra.step import Expressions, Step, declare_test
from .message_passing import ENTRY
from .steps.partition import DIMENSION


def require_closed_equations_of_motion(at: FixedSizeModel) -> None:
    """Raise ModelError if the equations of motion of gradient descent do not close for a model.

    Raises:
        ModelError: the weights have another regulariser than a ridge, or the loss jumps; the message says which.
    """
    if at.regulariser.kind != "ridge":
        raise ModelError(
            f"{at.name}: the equations of motion close for a ridge penalty, whose gradient is linear in the weights, "
            f"not for the regulariser of this model ({at.regulariser.kind})"
        )
    if describe_gradient_jump(at).startswith(LOSS_JUMPS):
        raise ModelError(f"{at.name}: {LOSS_JUMPS}, so that gradient descent is not defined")


@cache
def descent_step(trained: int = 0, loss_depends_on_q: bool = False, s: Any = None, t: Any = None) -> Step:
    """Return derivation step 12: the equations of motion of one-pass gradient descent with a ridge.

    Args:
        trained: number of O(1) numbers that are trained with the weights.
        loss_depends_on_q: whether the loss depends on the overlaps q of its tokens.
        s: columns of W; a symbol by default.
        t: columns of W*; a symbol by default.
    """
    s = sp.Symbol("s", integer=True, positive=True) if s is None else s
    t = sp.Symbol("t", integer=True, positive=True) if t is None else t
    p = OrderParameterSymbols(s, t, trained, loss_depends_on_q)
    rows = RowMoments(p)
    return Step(
        12,
        "Stochastic gradient descent in one pass",
        _descent_update_expressions(rows),
        {**weight_row_drift_and_noise(rows), **row_moment_equations(rows)},
        "A fresh sentence, or a batch of them, moves the weights by a step down the slope of its loss and of the "
        "penalty; time counts steps over d. A coordinate of a token is normal and enters each field with a weight of "
        "order 1 over the root of d: by integration by parts, exactly at any d, the mean of the slope times it is that "
        "of the derivatives of the slope, which averages with the fields themselves give. What the slope adds beyond "
        "its mean has, over d steps, the covariance of the noise; it is independent from row to row for large d. The "
        "drift of a row is linear in it, so that second moments of the rows of one spectral atom close: no other "
        "property of the law of the rows is felt.",
        "D. Saad, S. A. Solla, Phys. Rev. E 52, 4225 (1995); S. Goldt, M. S. Advani, A. M. Saxe, F. Krzakala, "
        "L. Zdeborova, NeurIPS 2019, arXiv 1906.08632; R. Ben Arous, R. Gheissari, A. Jagannath, NeurIPS 2022, "
        "arXiv 2206.04030",
        (
            _check_row_drift(rows),
            _check_step_noise(rows),
            _check_moments_of_drifting_rows(rows),
            _check_row_drift_terms(rows),
            _check_overlaps_from_row_moments(),
            *([_check_update_of_trained_parameters()] if trained else []),
        ),
    )


def _descent_update_expressions(rows: RowMoments) -> dict[str, Any]:
    """Return by name the changes of a row of W and of the trained numbers by one sample."""
    p = rows.p
    penalty = p.Lambda * p.w
    if p.loss_depends_on_q:
        penalty = penalty + MatrixAverage(CONTEXTS, 2 * p.gamma * MatrixAverage(CHANNEL, p.loss_q)) * p.w
    found: dict[str, Any] = {"step": -RATE * (ENTRY * rows.D + penalty / DIMENSION)}
    if p.trained:
        found["step of phi"] = -RATE_TRAINED / DIMENSION * (p.loss_phi + p.Kappa * p.phi)
    return found


# --- checks -----------------------------------------------------------------------------------------------------------


def _mean_over_normal_numbers(polynomial: sp.Expr, letters: Sequence[sp.Symbol]) -> sp.Expr:
    """Return the mean of a polynomial in independent standard normal numbers."""
    total: sp.Expr = sp.Integer(0)
    for powers, coefficient in sp.Poly(polynomial, *letters).terms():
        if all(power % 2 == 0 for power in powers):
            total += coefficient * sp.prod(sp.factorial2(power - 1) if power else 1 for power in powers)
    return total


@declare_test(
    "integration by parts at finite d",
    "E[slope times a coordinate of a token] with a slope quadratic in X and Y, d = 4 and s = t = 2, against the "
    "moments of normal numbers, exactly",
    ("drift", "H_slope", "K_slope"),
)
def _check_row_drift(before: Expressions, after: Expressions, rows: RowMoments) -> bool:
    """Return whether the drift of every row is d times its mean step, for one normal token in d dimensions.

    The token has the mean tau / sqrt(d), and gamma are the eigenvalues of its covariance.
    """
    source, p, d = RandomRationals("integration by parts"), rows.p, 4
    W, teacher, tau = source.draw_matrix(d, 2), source.draw_matrix(d, 2), source.draw_matrix(d, 1)
    roots, letters = [abs(source.draw_number()) for _ in range(d)], sp.symbols(f"z:{d}")
    gamma = sp.diag(*[root**2 for root in roots])
    noise = sp.Matrix([root * z for root, z in zip(roots, letters, strict=True)])
    token = tau / sp.sqrt(d) + noise
    X, Y = W.T * token / sp.sqrt(d), teacher.T * noise / sp.sqrt(d)

    def entrywise_mean(matrix: sp.Matrix) -> sp.Matrix:
        return matrix.applyfunc(lambda entry: _mean_over_normal_numbers(sp.expand(entry), letters))

    forms, linear, fields = (
        [source.draw_symmetric_matrix(4) for _ in range(2)],
        source.draw_matrix(2, 4),
        sp.Matrix.vstack(X, Y),
    )
    D = sp.Matrix([(fields.T * form * fields)[0] for form in forms]) + linear * fields
    slopes = entrywise_mean(sp.Matrix.vstack(*[2 * fields.T * form for form in forms]) + linear)
    # Averages of the token's own law, exactly.
    moments = {
        MatrixAverage(CHANNEL, rows.D): entrywise_mean(D),
        MatrixAverage(CHANNEL, rows.D * rows.dX.T): entrywise_mean(D * (X - entrywise_mean(X)).T),
        MatrixAverage(CHANNEL, rows.D * p.dY.T): entrywise_mean(D * Y.T),
    }
    names = {average: sp.MatrixSymbol(f"given{n}", *value.shape) for n, (average, value) in enumerate(moments.items())}
    at = ExactValues({
        **{names[average].name: value for average, value in moments.items()},
        "q": W.T * gamma * W / d, "theta": W.T * gamma * teacher / d, "rho_star": teacher.T * gamma * teacher / d,
        "Lambda": source.draw_spd_matrix(2), "loss_q": source.draw_symmetric_matrix(2),
        "rate": abs(source.draw_number()),
        "d": sp.Integer(d),
    })  # fmt: skip
    H, K = (at(after[name].xreplace(names)) for name in ("H_slope", "K_slope"))
    if not is_exactly_zero(H - slopes[:, :2]) or not is_exactly_zero(K - slopes[:, 2:]):
        return False
    for i in range(d):
        row = {"w": W[i, :].T, "pi": teacher[i, :].T, "tau": tau[i], "gamma": gamma[i, i], "H_slope": H, "K_slope": K}
        here = at.with_added_values({**row, "loss_slope": D, "xi_row": token[i] / sp.sqrt(d)})
        if not is_exactly_zero(here(after["drift"].xreplace(names)) - d * entrywise_mean(here(before["step"]))):
            return False
    return True


@declare_test(
    "moments of a step for large d",
    "E[step of a row, squared] with a slope linear in X and Y, s = t = 2, as a polynomial in 1/d, against its limit",
    ("noise", "batch noise"),
)
def _check_step_noise(before: Expressions, after: Expressions, rows: RowMoments) -> bool:
    """Return whether the noise of a gradient-descent step is the limit of d E[step step^T] for a large dimension d.

    A coordinate of the token and the fields are correlated like 1 / sqrt(d).
    """
    source, d = RandomRationals("noise of a step"), sp.Symbol("d", positive=True)
    q, theta, rho = source.draw_spd_matrix(2, 3), source.draw_matrix(2, 2) / 9, source.draw_spd_matrix(2, 3)
    linear, constant = source.draw_matrix(2, 4), source.draw_matrix(2, 1)
    w, pi, gamma, tau, rate = (
        source.draw_matrix(2, 1),
        source.draw_matrix(2, 1),
        abs(source.draw_number()),
        source.draw_number(),
        3,
    )
    fields = sp.Matrix.vstack(sp.Matrix.hstack(q, theta), sp.Matrix.hstack(theta.T, rho))
    cross = gamma * sp.Matrix.vstack(w, pi) / sp.sqrt(d)
    # E[x^2 D D^T] of D = linear z + constant, x = tau / sqrt(d) + normal, by pairs (Wick).
    C = linear * fields * linear.T + constant * constant.T
    v = linear * cross
    second = (gamma + tau**2 / d) * C + 2 * v * v.T + 2 * tau / sp.sqrt(d) * (v * constant.T + constant * v.T)
    own = {"loss_slope": sp.MatrixSymbol("D", 2, 1), "w": sp.zeros(2, 1), "Lambda": sp.zeros(2, 2), "d": d}
    factor = ExactValues({**own, "rate": rate, "xi_row": 1, "loss_slope": sp.Matrix([1, 0]), "gamma": gamma,
                     "loss_q": sp.zeros(2, 2)})(before["step"])[0] ** 2  # fmt: skip
    limit = (factor * second).applyfunc(lambda e: sp.limit(sp.expand(e), d, sp.oo))
    at = {"gamma": gamma, "rate": rate, "square": C}
    named = {MatrixAverage(CHANNEL, rows.D * rows.D.T): sp.MatrixSymbol("square", 2, 2)}
    of_one = ExactValues({**at, "batch": sp.Integer(1)})(after["noise"].xreplace(named))
    # The mean of B samples has 1 / B of the covariance; d steps of rate d, with batches of size beta d, 1 / beta.
    of_many = ExactValues({**at, "batch": sp.Integer(5)})(after["noise"].xreplace(named))
    of_share = ExactValues({**at, "batch_share": sp.Rational(2, 7)})(after["batch noise"].xreplace(named))
    return (
        is_exactly_zero(of_one - limit)
        and is_exactly_zero(5 * of_many - limit)
        and is_exactly_zero(of_share - limit * sp.Rational(7, 2))
    )


class _RandomDriftingRows:
    """Four random rows of W of one spectral atom, in two clusters, with random averages of the loss gradient."""

    def __init__(self, rows: RowMoments) -> None:
        source, p = RandomRationals("rows that drift"), rows.p
        self.clusters = [
            {"gamma": abs(source.draw_number()), "mean": source.draw_matrix(2, 1), "H_slope": source.draw_matrix(2, 2),
             "K_slope": source.draw_matrix(2, 2), "square": source.draw_spd_matrix(2),
             "in_q": source.draw_symmetric_matrix(2), "context": n}
            for n in range(2)
        ]  # fmt: skip
        self.rows = [
            {
                "w": source.draw_matrix(2, 1),
                "pi": source.draw_matrix(2, 1),
                "taus": [source.draw_number(), source.draw_number()],
            }
            for _ in range(4)
        ]
        mean = sp.MatrixSymbol("mean", 2, 1)
        self.named: dict[Any, Any] = {
            rows.mean: mean,
            rows.mean.T.doit(): mean.T,
            rows.square: sp.MatrixSymbol("square", 2, 2),
            MatrixAverage(CHANNEL, p.loss_q): sp.MatrixSymbol("in_q", 2, 2),
        }
        in_q = 2 if p.loss_depends_on_q else 0
        Lambda = source.draw_spd_matrix(2)
        self.A = Lambda + _sum_matrices(c["gamma"] * (c["H_slope"] + in_q * c["in_q"]) for c in self.clusters)
        self.numbers = {
            "rate": abs(source.draw_number()), "batch_share": abs(source.draw_number()), "batch": sp.Integer(3),
            "Lambda": Lambda, "A_drift": self.A, "s": sp.Integer(2), "t": sp.Integer(2),
        }  # fmt: skip

    def weight_independent_drift(self, row: dict[str, Any]) -> sp.Matrix:
        """Return the part of a row's drift that does not depend on the weights, by its definition."""
        pairs = zip(self.clusters, row["taus"], strict=True)
        return _sum_matrices(tau * c["mean"] + c["gamma"] * c["K_slope"] * row["pi"] for c, tau in pairs)

    def average_over_rows(self, function: Any) -> sp.Matrix:
        """Return the mean of a function over the four random rows of W of this test."""
        return _sum_matrices(map(function, self.rows)) / len(self.rows)

    def evaluate_expression(self, expression: Any, row: dict[str, Any] | None = None, other: int = 0) -> Any:
        """Return the value of the right side of an equation of motion at the random rows.

        Args:
            expression: right side.
            row: values of one row; averages over all rows by default.
            other: index of the second (token, cluster) pair.
        """

        def cross_moment(context: int) -> sp.Matrix:
            return self.average_over_rows(lambda row: row["taus"][context] * row["w"])

        values = {
            **self.numbers,
            "S_atom": self.average_over_rows(lambda row: row["w"] * row["w"].T),
            "P_atom": self.average_over_rows(lambda row: row["w"] * row["pi"].T),
            "T_atom": lambda at, _: cross_moment(at.values["context"]), f"T_atom{OTHER}": cross_moment(other),
            "tau": lambda at, _: at.values["taus"][at.values["context"]],
            f"tau{OTHER}": lambda at, _: at.values["taus"][other], **(row or {}),
        }  # fmt: skip
        contexts = [(1, context) for context in self.clusters]
        rows = [
            (sp.Rational(1, len(self.rows)), {**row, "b_drift": self.weight_independent_drift(row)})
            for row in self.rows
        ]
        return ExactValues(values, {CONTEXTS: contexts, ATOM: rows})(expression.xreplace(self.named))


def _sum_matrices(matrices: Iterable[sp.Matrix]) -> sp.Matrix:
    return reduce(add, matrices)


@declare_test("drift of a row", "its parts against the drift, two contexts, exactly", ("drift", "A_drift", "b_drift"))
def _check_row_drift_terms(_before: Expressions, after: Expressions, rows: RowMoments) -> bool:
    """Return whether the drift -rate (A w + b) of a row w in gradient descent, A and b agree with their definitions."""
    given = _RandomDriftingRows(rows)
    pairs = [("A_drift", given.rows[0], given.A)]
    for row in given.rows:
        pairs.append(("b_drift", row, given.weight_independent_drift(row)))
        pairs.append(
            ("drift", row, -given.numbers["rate"] * (given.A * row["w"] + given.weight_independent_drift(row)))
        )
    return all(is_exactly_zero(given.evaluate_expression(after[name], row) - expected) for name, row, expected in pairs)


@declare_test(
    "moments of rows that drift",
    "four rows at random in two contexts, s = t = 2: mean of the changes of their products, exactly; a batch of order "
    "d against rows that have moved",
    ("dS", "dT", "dP", "S after a batch", "T after a batch", "P after a batch", "A_drift", "b_drift"),
)
def _check_moments_of_drifting_rows(_before: Expressions, after: Expressions, rows: RowMoments) -> bool:
    """Return whether changes of second moments in a step agree with products of displaced random rows of W."""
    given = _RandomDriftingRows(rows)
    rate, batch, share = (given.numbers[name] for name in ("rate", "batch", "batch_share"))
    noise = rate**2 * _sum_matrices(c["gamma"] * c["square"] for c in given.clusters)

    def row_drift(row: dict[str, Any]) -> sp.Matrix:
        return -rate * (given.A * row["w"] + given.weight_independent_drift(row))

    def displaced_row(row: dict[str, Any]) -> sp.Matrix:
        return row["w"] + row_drift(row)

    expected = {
        ("dS", 0): given.average_over_rows(lambda r: row_drift(r) * r["w"].T + r["w"] * row_drift(r).T) + noise / batch,
        ("dP", 0): given.average_over_rows(lambda r: row_drift(r) * r["pi"].T),
        ("S after a batch", 0): given.average_over_rows(lambda r: displaced_row(r) * displaced_row(r).T)
        + noise / share,
        ("P after a batch", 0): given.average_over_rows(lambda r: displaced_row(r) * r["pi"].T),
    }
    for n in range(len(given.clusters)):
        expected["dT", n] = given.average_over_rows(lambda r, n=n: r["taus"][n] * row_drift(r))
        expected["T after a batch", n] = given.average_over_rows(lambda r, n=n: r["taus"][n] * displaced_row(r))
    return all(
        is_exactly_zero(given.evaluate_expression(after[name], other=n) - value)
        for (name, n), value in expected.items()
    )


@declare_test(
    "fields of the rows",
    "overlaps as averages over the rows of two atoms against their moments",
    ("q", "m", "theta"),
)
def _check_overlaps_from_row_moments(_before: Expressions, after: Expressions) -> bool:
    """Return whether overlaps computed from the rows' second moments agree with averages over random rows of W.

    Two spectral atoms of different eigenvalue and weight have two random rows each.
    """
    source = RandomRationals("fields of the rows")
    states, parts = [], []
    for weight in (sp.Rational(1, 3), sp.Rational(2, 3)):
        gamma = abs(source.draw_number())
        rows = [(source.draw_matrix(2, 1), source.draw_number(), source.draw_matrix(2, 1)) for _ in range(2)]
        S, T, P = (
            _sum_matrices(products) / 2
            for products in zip(*[(w * w.T, tau * w, w * pi.T) for w, tau, pi in rows], strict=True)
        )
        states.append((weight, {"gamma": gamma, "S_atom": S, "T_atom": T, "P_atom": P}))
        parts += [
            {"q": weight / 2 * gamma * w * w.T, "m": weight / 2 * tau * w, "theta": weight / 2 * gamma * w * pi.T}
            for w, tau, pi in rows
        ]
    at = ExactValues({}, {COORDINATE: states})
    return all(
        is_exactly_zero(at(after[name]) - _sum_matrices(part[name] for part in parts)) for name in ("q", "m", "theta")
    )


@declare_test(
    "trained numbers",
    "their mean change over d steps against the slope of the loss and of their ridges",
    ("trained",),
)
def _check_update_of_trained_parameters(before: Expressions, after: Expressions) -> bool:
    source = RandomRationals("trained numbers")
    states = [
        (probability, {"loss_phi": source.draw_matrix(2, 1)}) for probability in (sp.Rational(1, 4), sp.Rational(3, 4))
    ]
    values = {"phi": source.draw_matrix(2, 1), "Kappa": source.draw_spd_matrix(2), "rate_trained": sp.Rational(2, 7)}
    at = ExactValues({**values, "d": sp.Integer(5)}, {CHANNEL: states})
    return is_exactly_zero(at(after["trained"]) - 5 * at(MatrixAverage(CHANNEL, before["step of phi"])))
