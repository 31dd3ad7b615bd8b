"""Stochastic gradient descent in one pass, for large d: the update of a row, and checks of what it leads to
(docs/theory.md section 19)."""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy as sp

from ..authoring.model import ModelAt
from ..calculus.averages import CHANNEL, CONTEXTS, COORDINATE, MatrixAverage, Symbols
from ..errors import ModelError
from ..theory.descent import ATOM, OTHER, RATE, RATE_TRAINED, Rows, moment_equations, row_equations
from ..theory.kinks import LOSS_JUMPS, slope_jump
from .algebra.exact import Source, Values, is_zero
from .algebra.step import Expressions, Step, Test
from .message_passing import ENTRY
from .steps.partition import DIMENSION


def refuse(at: ModelAt) -> None:
    """That the equations close for the model.

    Raises:
        ModelError: the weights feel something else than a ridge, or the loss jumps; the sentence says why.
    """
    if at.regulariser.kind != "ridge":
        raise ModelError(
            f"{at.name}: the equations of motion close for a ridge, which is linear in a row; under a "
            f"{at.regulariser.kind} a row depends on the law of all rows, or on a constraint"
        )
    if slope_jump(at).startswith(LOSS_JUMPS):
        raise ModelError(f"{at.name}: {LOSS_JUMPS}, and has no slope to descend")


@cache
def step(trained: int = 0, loss_holds_q: bool = False, s: Any = None, t: Any = None) -> Step:
    """The equations of one-pass descent for a ridge."""
    s = sp.Symbol("s", integer=True, positive=True) if s is None else s
    t = sp.Symbol("t", integer=True, positive=True) if t is None else t
    p = Symbols(s, t, trained, loss_holds_q)
    rows = Rows(p)
    return Step(
        12,
        "Stochastic gradient descent in one pass",
        _update(rows),
        {**row_equations(rows), **moment_equations(rows)},
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
            Test(
                "integration by parts at finite d",
                "E[slope times a coordinate of a token] with a slope quadratic in X and Y, d = 4 and s = t = 2, "
                "against the moments of normal numbers, exactly",
                lambda before, after: _drift_holds(before, after, rows),
                ("drift", "H_slope", "K_slope"),
            ),
            Test(
                "moments of a step for large d",
                "E[step of a row, squared] with a slope linear in X and Y, s = t = 2, as a polynomial in 1/d, against "
                "its limit",
                lambda before, after: _noise_holds(before, after, rows),
                ("noise", "batch noise"),
            ),
            Test(
                "moments of rows that drift",
                "four rows at random in two contexts, s = t = 2: mean of the changes of their products, exactly; a "
                "batch of order d against rows that have moved",
                lambda _before, after: _moments_hold(after, rows),
                ("dS", "dT", "dP", "S after a batch", "T after a batch", "P after a batch", "A_drift", "b_drift"),
            ),
            Test(
                "drift of a row",
                "its parts against the drift, two contexts, exactly",
                lambda _before, after: _parts_hold(after, rows),
                ("drift", "A_drift", "b_drift"),
            ),
            Test(
                "fields of the rows",
                "overlaps as averages over the rows of two atoms against their moments",
                lambda _before, after: _fields_hold(after, rows),
                ("q", "m", "theta"),
            ),
            *([_trained_test(rows)] if trained else []),
        ),
    )


def _trained_test(rows: Rows) -> Test:
    return Test(
        "trained numbers",
        "their mean change over d steps against the slope of the loss and of their ridges",
        lambda before, after: _trained_holds(before, after, rows),
        ("trained",),
    )


def _update(rows: Rows) -> dict[str, Any]:
    """What a sentence does, times d: `ENTRY` is the coordinate of a token."""
    p = rows.p
    penalty = p.Lambda * p.w
    if p.loss_holds_q:
        penalty = penalty + MatrixAverage(CONTEXTS, 2 * p.gamma * MatrixAverage(CHANNEL, p.loss_q)) * p.w
    found: dict[str, Any] = {"step": -RATE * (ENTRY * rows.D + penalty / DIMENSION)}
    if p.trained:
        found["step of phi"] = -RATE_TRAINED / DIMENSION * (p.loss_phi + p.Kappa * p.phi)
    return found


# --- checks -----------------------------------------------------------------------------------------------------------


def _moment(polynomial: sp.Expr, letters: list[sp.Symbol]) -> sp.Expr:
    """E of a polynomial in independent standard normal numbers."""
    total: sp.Expr = sp.Integer(0)
    for powers, coefficient in sp.Poly(polynomial, *letters).terms():
        if all(power % 2 == 0 for power in powers):
            total += coefficient * sp.prod(sp.factorial2(power - 1) if power else 1 for power in powers)
    return total


class _Token:
    """One token of a context at d = 4, normal with the eigenvalues gamma around tau / sqrt(d), as a polynomial."""

    def __init__(self, name: str) -> None:
        source = Source(name)
        self.d = 4
        self.W, self.teacher = source.matrix(self.d, 2), source.matrix(self.d, 2)
        self.roots = [abs(source.number()) for _ in range(self.d)]  # of gamma
        self.tau = [source.number() for _ in range(self.d)]
        self.letters = [sp.Symbol(f"z{i}") for i in range(self.d)]
        self.source = source
        self.root_d = sp.sqrt(self.d)
        self.noise = [root * z for root, z in zip(self.roots, self.letters, strict=True)]
        self.token = [tau / self.root_d + x for tau, x in zip(self.tau, self.noise, strict=True)]
        self.X = self.W.T * sp.Matrix(self.token) / self.root_d
        self.Y = self.teacher.T * sp.Matrix(self.noise) / self.root_d
        gamma = sp.diag(*[root**2 for root in self.roots])
        self.q, self.theta = self.W.T * gamma * self.W / self.d, self.W.T * gamma * self.teacher / self.d
        self.rho_star = self.teacher.T * gamma * self.teacher / self.d
        self.m = self.W.T * sp.Matrix(self.tau) / self.d

    def mean(self, matrix: sp.Matrix) -> sp.Matrix:
        """E over the token."""
        return matrix.applyfunc(lambda entry: _moment(sp.expand(entry), self.letters))


def _drift_holds(before: Expressions, after: Expressions, rows: Rows) -> bool:
    """d E[step] of each row, its slope quadratic in the fields of the token."""
    given, p = _Token("integration by parts"), rows.p
    source = given.source
    forms = [source.symmetric(4) for _ in range(2)]
    linear = source.matrix(2, 4)
    fields = sp.Matrix.vstack(given.X, given.Y)
    D = sp.Matrix([(fields.T * form * fields)[0] for form in forms]) + linear * fields
    in_fields = sp.Matrix.vstack(*[2 * fields.T * form for form in forms]) + linear
    Lambda, rate, in_q = source.positive(2), abs(source.number()), source.symmetric(2)
    # Averages of the token's own law, exactly.
    moments = {
        MatrixAverage(CHANNEL, rows.D): given.mean(D),
        MatrixAverage(CHANNEL, rows.D * rows.dX.T): given.mean(D * (given.X - given.m).T),
        MatrixAverage(CHANNEL, rows.D * p.dY.T): given.mean(D * given.Y.T),
    }
    names = {average: sp.MatrixSymbol(f"given{n}", *value.shape) for n, (average, value) in enumerate(moments.items())}
    at = {names[average].name: value for average, value in moments.items()}
    at |= {"q": given.q, "theta": given.theta, "rho_star": given.rho_star, "Lambda": Lambda, "loss_q": in_q}
    values = Values(at)
    H, K = (values(after[name].xreplace(names)) for name in ("H_slope", "K_slope"))
    slopes = given.mean(in_fields)
    if not is_zero(H - slopes[:, :2]) or not is_zero(K - slopes[:, 2:]):
        return False
    for i in range(given.d):
        row = {"w": given.W[i, :].T, "pi": given.teacher[i, :].T, "tau": given.tau[i], "gamma": given.roots[i] ** 2}
        here = Values({**at, **row, "H_slope": H, "K_slope": K, "rate": rate})
        found = here(after["drift"].xreplace(names))
        own = {"loss_slope": D, "xi_row": given.token[i] / given.root_d, "d": sp.Integer(given.d), "rate": rate}
        moved = given.d * given.mean(Values({**at, **row, **own})(before["step"]))
        if not is_zero(found - moved):
            return False
    return True


def _noise_holds(before: Expressions, after: Expressions, rows: Rows) -> bool:
    """d E[step step^T] for d -> infinity, the coordinate being correlated with the fields like 1 / sqrt(d)."""
    source, d = Source("noise of a step"), sp.Symbol("d", positive=True)
    q, theta, rho = source.positive(2, 3), source.matrix(2, 2) / 9, source.positive(2, 3)
    linear, constant = source.matrix(2, 4), source.matrix(2, 1)
    w, pi, gamma, tau, rate = source.matrix(2, 1), source.matrix(2, 1), abs(source.number()), source.number(), 3
    fields = sp.Matrix.vstack(sp.Matrix.hstack(q, theta), sp.Matrix.hstack(theta.T, rho))
    cross = gamma * sp.Matrix.vstack(w, pi) / sp.sqrt(d)
    # E[x^2 D D^T] of D = linear z + constant, x = tau / sqrt(d) + normal, by pairs (Wick).
    C = linear * fields * linear.T + constant * constant.T
    v = linear * cross
    second = (gamma + tau**2 / d) * C + 2 * v * v.T + 2 * tau / sp.sqrt(d) * (v * constant.T + constant * v.T)
    own = {"loss_slope": sp.MatrixSymbol("D", 2, 1), "w": sp.zeros(2, 1), "Lambda": sp.zeros(2, 2), "d": d}
    factor = Values({**own, "rate": rate, "xi_row": 1, "loss_slope": sp.Matrix([1, 0]), "gamma": gamma,
                     "loss_q": sp.zeros(2, 2)})(before["step"])[0] ** 2  # fmt: skip
    limit = (factor * second).applyfunc(lambda e: sp.limit(sp.expand(e), d, sp.oo))
    at = {"gamma": gamma, "rate": rate, "square": C}
    named = {MatrixAverage(CHANNEL, rows.D * rows.D.T): sp.MatrixSymbol("square", 2, 2)}
    of_one = Values({**at, "batch": sp.Integer(1)})(after["noise"].xreplace(named))
    # The mean of B sentences has 1 / B of the covariance; d such steps of rate d, a share beta of d each, 1 / beta.
    of_many = Values({**at, "batch": sp.Integer(5)})(after["noise"].xreplace(named))
    of_share = Values({**at, "batch_share": sp.Rational(2, 7)})(after["batch noise"].xreplace(named))
    return is_zero(of_one - limit) and is_zero(5 * of_many - limit) and is_zero(of_share - limit * sp.Rational(7, 2))


class _Drifting:
    """Four rows of one atom in two contexts, with averages of D at random."""

    def __init__(self, rows: Rows) -> None:
        source, p = Source("rows that drift"), rows.p
        self.rate, self.share, self.batch = abs(source.number()), abs(source.number()), sp.Integer(3)
        self.Lambda = source.positive(2)
        self.contexts = [
            {"gamma": abs(source.number()), "mean": source.matrix(2, 1), "H_slope": source.matrix(2, 2),
             "K_slope": source.matrix(2, 2), "square": source.positive(2), "in_q": source.symmetric(2)}
            for _ in range(2)
        ]  # fmt: skip
        self.rows = [
            {"w": source.matrix(2, 1), "pi": source.matrix(2, 1), "taus": [source.number(), source.number()]}
            for _ in range(4)
        ]
        self.named: dict[Any, Any] = {
            rows.mean: sp.MatrixSymbol("mean", 2, 1),
            rows.mean.T.doit(): sp.MatrixSymbol("mean", 2, 1).T,
            rows.square: sp.MatrixSymbol("square", 2, 2),
            MatrixAverage(CHANNEL, p.loss_q): sp.MatrixSymbol("in_q", 2, 2),
        }
        self.A = self.Lambda + sum(
            (c["gamma"] * (c["H_slope"] + (2 * c["in_q"] if p.loss_holds_q else sp.zeros(2, 2)))
             for c in self.contexts), sp.zeros(2, 2),
        )  # fmt: skip

    def b(self, row: dict[str, Any]) -> sp.Matrix:
        """Of a row, by its definition."""
        pairs = zip(self.contexts, row["taus"], strict=True)
        return sum((tau * c["mean"] + c["gamma"] * c["K_slope"] * row["pi"] for c, tau in pairs), sp.zeros(2, 1))

    def over_rows(self, function: Any) -> sp.Matrix:
        """The mean over the four rows."""
        parts = [function(row) for row in self.rows]
        return sum(parts[1:], parts[0]) / len(parts)

    @property
    def numbers(self) -> dict[str, Any]:
        """What belongs to no row and to no context."""
        sizes = {"s": sp.Integer(2), "t": sp.Integer(2)}
        return {"rate": self.rate, "batch": self.batch, "batch_share": self.share, "Lambda": self.Lambda, **sizes}

    def value(self, expression: Any, row: dict[str, Any] | None = None, other: int = 0) -> Any:
        """Of an equation: of one row, or with averages over all; `other` is the second context."""

        def tau(at: Values, _: str) -> Any:
            return at.values["taus"][at.values["context"]]

        values = {
            **self.numbers,
            "S_atom": self.over_rows(lambda r: r["w"] * r["w"].T),
            "P_atom": self.over_rows(lambda r: r["w"] * r["pi"].T),
            f"T_atom{OTHER}": self.over_rows(lambda r: r["taus"][other] * r["w"]),
            "T_atom": lambda at, _: self.over_rows(lambda r: r["taus"][at.values["context"]] * r["w"]),
            "A_drift": self.A, "tau": tau, f"tau{OTHER}": lambda at, _: at.values["taus"][other], **(row or {}),
        }  # fmt: skip
        contexts = tuple((1, {**context, "context": n}) for n, context in enumerate(self.contexts))
        rows = tuple((sp.Rational(1, len(self.rows)), {**r, "b_drift": self.b(r)}) for r in self.rows)
        return Values(values, {CONTEXTS: contexts, ATOM: rows})(expression.xreplace(self.named))


def _parts_hold(after: Expressions, rows: Rows) -> bool:
    """The drift of every row from A and b, and these from their definitions."""
    given = _Drifting(rows)
    if not is_zero(given.value(after["A_drift"]) - given.A):
        return False
    for row in given.rows:
        b = given.b(row)
        if not is_zero(given.value(after["b_drift"], row) - b):
            return False
        if not is_zero(given.value(after["drift"], row) + given.rate * (given.A * row["w"] + b)):
            return False
    return True


def _moments_hold(after: Expressions, rows: Rows) -> bool:
    """Products of rows that have moved, on average over the rows."""
    given = _Drifting(rows)
    noise = given.rate**2 * sum((c["gamma"] * c["square"] for c in given.contexts), sp.zeros(2, 2))

    def drift(row: dict[str, Any]) -> sp.Matrix:
        return -given.rate * (given.A * row["w"] + given.b(row))

    def moved(row: dict[str, Any]) -> sp.Matrix:
        return row["w"] + drift(row)

    expected = {
        "dS": given.over_rows(lambda r: drift(r) * r["w"].T + r["w"] * drift(r).T) + noise / given.batch,
        "dP": given.over_rows(lambda r: drift(r) * r["pi"].T),
        "S after a batch": given.over_rows(lambda r: moved(r) * moved(r).T) + noise / given.share,
        "P after a batch": given.over_rows(lambda r: moved(r) * r["pi"].T),
    }
    if not all(is_zero(given.value(after[name]) - value) for name, value in expected.items()):
        return False
    return all(
        is_zero(given.value(after["dT"], other=n) - given.over_rows(lambda r, n=n: r["taus"][n] * drift(r)))
        and is_zero(
            given.value(after["T after a batch"], other=n) - given.over_rows(lambda r, n=n: r["taus"][n] * moved(r))
        )
        for n in range(len(given.contexts))
    )


def _fields_hold(after: Expressions, rows: Rows) -> bool:
    """Two atoms of different eigenvalue and weight, two rows each: overlaps as averages over all rows."""
    source = Source("fields of the rows")
    atoms = [(sp.Rational(1, 3), abs(source.number())), (sp.Rational(2, 3), abs(source.number()))]
    expected = {"q": sp.zeros(2, 2), "m": sp.zeros(2, 1), "theta": sp.zeros(2, 2)}
    states = []
    for weight, gamma in atoms:
        own = [(source.matrix(2, 1), source.number(), source.matrix(2, 1)) for _ in range(2)]
        for w, tau, pi in own:
            expected["q"] += weight * gamma * w * w.T / 2
            expected["m"] += weight * tau * w / 2
            expected["theta"] += weight * gamma * w * pi.T / 2
        S, T, P = (sum((f(w, tau, pi) for w, tau, pi in own), z) / 2 for f, z in (
            (lambda w, tau, pi: w * w.T, sp.zeros(2, 2)), (lambda w, tau, pi: tau * w, sp.zeros(2, 1)),
            (lambda w, tau, pi: w * pi.T, sp.zeros(2, 2)),
        ))  # fmt: skip
        states.append((weight, {"gamma": gamma, "S_atom": S, "T_atom": T, "P_atom": P}))
    at = Values({}, {COORDINATE: tuple(states)})
    return all(is_zero(at(after[name]) - value) for name, value in expected.items())


def _trained_holds(before: Expressions, after: Expressions, rows: Rows) -> bool:
    source, chances = Source("trained numbers"), (sp.Rational(1, 4), sp.Rational(3, 4))
    slopes = [source.matrix(2, 1) for _ in chances]
    at = {
        "phi": source.matrix(2, 1),
        "Kappa": source.positive(2),
        "rate_trained": sp.Rational(2, 7),
        "d": sp.Integer(5),
    }
    steps = [Values({**at, "loss_phi": slope})(before["step of phi"]) for slope in slopes]
    mean = sum((chance * step for chance, step in zip(chances, steps, strict=True)), sp.zeros(2, 1))
    states = tuple((chance, {"loss_phi": slope}) for chance, slope in zip(chances, slopes, strict=True))
    return is_zero(Values(at, {CHANNEL: states})(after["trained"]) - 5 * mean)
