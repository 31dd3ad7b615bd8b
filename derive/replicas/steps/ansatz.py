"""Step 4: the replica-symmetric ansatz, at a symbolic number n of replicas."""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy as sp

from ...calculus.averages import CHANNEL, CONTEXTS, COORDINATE, Average, Symbols
from ...theory.stability import TOKENS
from ..algebra.blocks import ReplicaMatrix, explicit
from ..algebra.exact import Law, Source, Values, is_zero, log_integral
from ..algebra.objects import (
    FIELD,
    PAIRS,
    REPLICAS,
    LogDet,
    LogIntegral,
    beta,
    n,
    replicated,
    scalars_out,
    untransposed,
)
from ..algebra.step import Expressions, Step, Test
from .action import PENALTY, conjugate_of, self_overlap

REPLICA_NUMBERS = (1, 2, 3, 4)


def ansatz(p: Symbols) -> dict[Any, Any]:
    """Every replicated order parameter in terms of q, V = r - q and their conjugates, V_hat = r_hat + q_hat."""
    r = self_overlap(p)
    return {
        replicated(r, "a"): p.V + p.q,
        replicated(conjugate_of(r), "a"): p.V_hat - p.q_hat,
        replicated(p.q, "ab"): p.q,
        replicated(p.q_hat, "ab"): p.q_hat,
        **{replicated(z, "a"): z for z in (p.m, p.theta, p.m_hat, p.theta_hat, p.phi)},
    }


def counted(expression: sp.Expr) -> sp.Expr:
    """Sums over replicas of what is the same in all of them: n of it, n (n - 1) for pairs."""
    if isinstance(expression, Average) and expression.kind in (REPLICAS, PAIRS):
        if any("|" in z.name for z in expression.atoms(sp.MatrixSymbol, sp.Symbol)):
            raise ValueError(f"{expression.summand} is not the same in all replicas")
        return (n if expression.kind == REPLICAS else n * (n - 1)) * expression.summand
    if isinstance(expression, sp.Add | sp.Mul):
        return expression.func(*[counted(a) for a in expression.args])
    return expression


def step(p: Symbols, action: Expressions, ridge: bool) -> Step:
    """Substitute; for the rows and the sentences the replicas then couple through one normal field only."""
    (trace,) = action["trace"].atoms(Average) & {a for a in action["trace"].atoms(Average) if a.kind == CONTEXTS}
    after: dict[str, Any] = {
        "trace": Average(CONTEXTS, sp.expand(counted(untransposed(scalars_out(trace.summand.xreplace(ansatz(p))), p)))),
        "entropic": entropic(p, action["entropic"]),
        "energetic": energetic(p),
        "covariance": sp.BlockMatrix([[p.q, p.theta], [p.theta.T, p.rho_star]]),
    }
    if p.trained:
        after["trained"] = sp.expand(counted(action["trained"].xreplace(ansatz(p))))
    tests = [
        Test(
            "trace in replica space",
            "block matrices written out, n = 1 to 4, s = t = 2, exactly",
            _trace_holds,
            ("trace", "trained"),
        ),
        Test(
            "rows: one field for all replicas",
            "normal integrals over n s weights against the power of one, n = 1 to 4, s = t = 2, two contexts, exactly",
            lambda before, after: _rows_hold(before, after, p, "entropic"),
            ("entropic",),
        ),
        Test(
            "sentences: one field for all replicas",
            "the joint normal law of n student fields and the teacher's against the power, n = 1 to 4, exactly",
            lambda _before, after: _sentences_hold(after, p),
            ("energetic", "covariance"),
        ),
    ]
    if ridge:
        after["entropic of ridge"] = ridge_entropic(p)
        tests.append(
            Test(
                "rows of ridge: block matrices",
                "normal integral over n s weights, n = 1 to 4, s = t = 2, two contexts, exactly",
                lambda before, after: _rows_hold(before, after, p, "entropic of ridge"),
                ("entropic of ridge",),
            )
        )
    return Step(
        4,
        "Replica-symmetric ansatz",
        dict(action),
        after,
        "All replicas are alike: the overlap of two replicas does not depend on which they are, that of a replica "
        "with itself exceeds it by the variance V. Overlaps and conjugates are then block matrices of two blocks, one "
        "on the diagonal and one everywhere. A normal field shared by the replicas (Hubbard-Stratonovich) then makes "
        "their integrals independent and equal: a power n of one.",
        "arXiv 2402.03902, Appendix C; D. Sherrington, S. Kirkpatrick, Phys. Rev. Lett. 35, 1792 (1975)",
        tuple(tests),
    )


def entropic(p: Symbols, potential: sp.Expr) -> sp.Expr:
    """The rows: exp(1/2 sum_ab w_a^T Q w_b) is the average of exp(sum_a w_a^T h) over h of covariance Q.

    Raises:
        ValueError: the replicas are not coupled through sum_a w_a alone.
    """
    (integral,) = potential.atoms(LogIntegral)
    exponent = scalars_out(integral.exponent.xreplace(ansatz(p)))
    # A sum over contexts of gamma V^ is G, and so on: the conjugates enter in no other way (a check writes it out).
    collected = {p.V_hat: p.G / p.gamma, p.q_hat: p.Q / p.gamma, p.m_hat: p.B / p.tau, p.theta_hat: p.theta_hat * 0}
    single: sp.Expr = sp.Integer(0)
    diagonal: sp.Expr = sp.Integer(0)
    pairs: sp.Expr = sp.Integer(0)
    w = {replicated(p.w, a): p.w for a in "ab"} | {replicated(PENALTY, "a"): PENALTY}
    for term in sp.Add.make_args(sp.expand(exponent)):
        (sum_,) = [a for a in term.atoms(Average) if a.kind in (REPLICAS, PAIRS)]
        number = sp.Mul(*[factor for factor in sp.Mul.make_args(term) if not isinstance(factor, Average)])
        inside = scalars_out(sum_.summand.xreplace(collected).xreplace(w))
        if sum_.kind == PAIRS:
            pairs += number * inside
        elif inside.has(p.Q):
            diagonal += number * inside
        else:
            single += number * inside
    if sp.expand(_cyclic(pairs, p) - _cyclic(diagonal, p)) != 0:
        raise ValueError(f"the replicas are not coupled through their sum: {pairs} against {diagonal}")
    if _cyclic(pairs, p) != sp.Trace(p.w.T * p.Q * p.w) / 2:
        raise ValueError(f"{pairs} is not half a quadratic form of covariance {p.Q}")
    # The field b = B + h collects the linear term.
    shifted = _cyclic(single, p).xreplace({p.B: p.b})
    return Average(COORDINATE, sp.log(Average(FIELD, sp.exp(n * LogIntegral(shifted, p.w)))))


def _cyclic(expression: sp.Expr, p: Symbols) -> sp.Expr:
    """Tr[A w w^T] as Tr[w^T A w] and Tr[B^T w] as Tr[w^T B], the symmetric A without a transpose."""
    result: sp.Expr = sp.Integer(0)
    for term in sp.Add.make_args(scalars_out(untransposed(expression, p))):
        for trace in term.atoms(sp.Trace):
            factors = list(sp.MatMul.make_args(trace.arg))
            if factors[-1] == p.w.T:
                term = term.xreplace({trace: sp.Trace(sp.MatMul(factors[-1], *factors[:-1]))})
            elif factors[-1] == p.w:
                term = term.xreplace({trace: sp.Trace(sp.MatMul(p.w.T, factors[0].T.doit()))})
        result += term
    return result


def quadratic_around(p: Symbols) -> sp.Expr:
    """1/2 (x - omega)^T V^{-1} (x - omega), as the proximal objective has it."""
    x = sp.MatrixSymbol("x", p.s, 1)
    local = sp.Add(*[term for term in p.proximal_objective.args if term != p.loss])
    return local.xreplace({p.step: x - p.omega})


def energetic(p: Symbols) -> sp.Expr:
    """The sentences: X_a = omega + z_a, omega of covariance q shared, z_a of covariance V each replica's own."""
    x = sp.MatrixSymbol("x", p.s, 1)
    norm = (LogDet(p.V) + p.s * sp.log(2 * sp.pi)) / 2
    density = -beta * p.loss - Average(TOKENS, quadratic_around(p) + norm)
    return p.alpha * sp.log(Average(CHANNEL, sp.exp(n * LogIntegral(density, x))))


def ridge_entropic(p: Symbols) -> sp.Expr:
    """The same for r(w) = 1/2 w^T Lambda w: a normal integral with precision I_n (x) (beta Lambda + G) - J_n (x) Q."""
    precision = ReplicaMatrix(beta * p.Lambda + p.G, -1 * p.Q)
    shift = n * sp.Trace(p.B.T * precision.sum_of_inverse() * p.B) / 2
    return Average(COORDINATE, n * p.s * sp.log(2 * sp.pi) / 2 - precision.log_det() / 2 + shift)


# --- explicit matrices at integer n -----------------------------------------------------------------------------------


def example(name: str, size: int = 2) -> dict[str, Any]:
    """Exact matrices of one context: positive definite where they must be, q_hat small enough for four replicas."""
    source = Source(name)
    overlap = source.positive(2 * size)
    return {
        "q": overlap[:size, :size], "theta": overlap[:size, size:], "rho_star": overlap[size:, size:],
        "V": source.positive(size), "V_hat": source.positive(size), "q_hat": source.positive(size) / 200,
        "m": source.matrix(size, 1), "m_hat": source.matrix(size, 1), "theta_hat": source.matrix(size, size),
        "m_star": source.matrix(size, 1), "gamma": abs(source.number()), "tau": source.number(),
        "phi": source.matrix(size, 1),
    }  # fmt: skip


def shared(name: str, contexts: list[dict[str, Any]], size: int = 2) -> dict[str, Any]:
    """What all contexts share: ridge, teacher's row, temperature, and the composites written out."""
    source = Source(name)
    pi = source.matrix(size, 1)
    weights = [(own["gamma"], own) for own in contexts]
    zero, vector = sp.zeros(size, size), sp.zeros(size, 1)
    return {
        "pi": pi, "beta": sp.Rational(3, 2), "alpha": sp.Rational(5, 3), "s": sp.Integer(size),
        "Lambda": sp.diag(*[1 + abs(source.number()) for _ in range(size)]),
        "G": sum((g * own["V_hat"] for g, own in weights), zero),
        "Q": sum((g * own["q_hat"] for g, own in weights), zero),
        "B": sum((own["tau"] * own["m_hat"] + g * own["theta_hat"] * pi for g, own in weights), vector),
        "w": sp.zeros(size, 1), "b": sp.zeros(size, 1), "x": sp.zeros(size, 1), "omega": sp.zeros(size, 1),
        "Y": sp.zeros(size, 1),
    }  # fmt: skip


def ridge_penalty(at: Values, suffix: str) -> sp.Expr:
    """1/2 w^T Lambda w (docs/theory.md (1.4)) of the row w of a replica, "|1" say."""
    w = at.values[f"w{suffix}"]
    return (w.T * at.values["Lambda"] * w)[0] / 2


def shifted_penalty(at: Values, suffix: str) -> sp.Expr:
    """A ridge with its minimum elsewhere: not even in w."""
    w = at.values[f"w{suffix}"]
    return ridge_penalty(at, suffix) + (Source("shift").matrix(1, w.rows) * w)[0]


def square_loss(at: Values, suffix: str) -> sp.Expr:
    """1/2 |C (x - E Y)|^2 with fixed matrices: quadratic, so that every average over it is exact."""
    x, y = at.values[f"x{suffix}"], at.values["Y"]
    size = x.rows
    source = Source("square loss")
    scale, mix = source.matrix(size, size), source.matrix(size, size)
    error = scale * (x - mix * y)
    return (error.T * error)[0] / 2


def _trace_holds(_before: Expressions, after: Expressions) -> bool:
    own = example("trace")
    for replicas in REPLICA_NUMBERS:
        conjugate = explicit(own["V_hat"], -own["q_hat"], replicas)
        overlap = explicit(own["V"], own["q"], replicas)
        linear = sp.trace(own["m_hat"].T * own["m"]) + sp.trace(own["theta_hat"].T * own["theta"])
        expected = sp.trace(conjugate * overlap) / 2 - replicas * linear
        at = Values({**own, "n": sp.Integer(replicas)})
        if not is_zero(at(after["trace"]) - expected) or not _trained_holds(after, at):
            return False
    return True


def _trained_holds(after: Expressions, at: Values) -> bool:
    """n replicas with the same trained numbers."""
    if "trained" not in after:
        return True
    phi, kappa = at.values["m"], at.values["q"]
    at = at.having({"phi": phi, "Kappa": kappa})
    return is_zero(at(after["trained"]) + at(beta * n) * (phi.T * kappa * phi)[0] / 2)


def _rows_hold(before: Expressions, after: Expressions, p: Symbols, name: str) -> bool:
    """The replicated integral of step 3 at the ansatz against the given form."""
    penalty = "ridge" if name == "entropic of ridge" else "shifted"
    values, _ = _row_values(penalty)
    (integral,) = before["entropic"].atoms(LogIntegral)
    for replicas, direct in _rows_written_out(integral.exponent.xreplace(ansatz(p)), penalty):
        law = Law(("b",), values["B"], values["Q"])
        value = Values({**values, "n": sp.Integer(replicas)}, laws={FIELD: law})(after[name])
        if not is_zero(value - direct):
            return False
    return True


def _row_values(penalty: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    contexts = [example("row 1"), example("row 2")]
    penalties = {"ridge": ridge_penalty, "shifted": shifted_penalty}
    return shared("rows", contexts) | {"penalty": penalties[penalty]}, contexts


@cache
def _rows_written_out(exponent: sp.Expr, penalty: str) -> list[tuple[int, sp.Expr]]:
    """(n, log of the normal integral over the weights of n replicas)."""
    values, contexts = _row_values(penalty)
    results = []
    for replicas in REPLICA_NUMBERS:
        letters = sp.Matrix(sp.symbols(f"z:{2 * replicas}", real=True))
        copies = {f"w|{a + 1}": letters[2 * a : 2 * a + 2, :] for a in range(replicas)}
        rows = tuple((1, own) for own in contexts)
        at = Values({**values, **copies}, {CONTEXTS: rows}, replicas=replicas)
        results.append((replicas, log_integral(at(exponent), list(letters))))
    return results


def _sentences_hold(after: Expressions, p: Symbols) -> bool:
    """Log average of exp(-beta sum_a loss(X_a, Y)) over the joint normal law of all X_a and Y."""
    own = example("sentences")
    values = {**own, **shared("sentences", [own]), "loss": square_loss}
    for replicas, direct in _sentences_written_out(-beta * Average(REPLICAS, replicated(p.loss, "a"))):
        at = Values({**values, "n": sp.Integer(replicas)})
        law = Law(("omega", "Y"), sp.Matrix.vstack(own["m"], own["m_star"]), at(after["covariance"]))
        value = Values(at.values, laws={CHANNEL: law})(after["energetic"])
        if not is_zero(value - at(p.alpha) * direct):
            return False
    return True


@cache
def _sentences_written_out(exponent: sp.Expr) -> list[tuple[int, sp.Expr]]:
    """(n, log of the average of the replicated weight over the joint normal law of the fields of n replicas)."""
    own = example("sentences")
    values = {**own, **shared("sentences", [own])}
    results = []
    for replicas in REPLICA_NUMBERS:
        student = explicit(own["V"], own["q"], replicas)
        cross = sp.Matrix.vstack(*[own["theta"]] * replicas)
        joint = Law(
            (*[f"x|{a + 1}" for a in range(replicas)], "Y"),
            sp.Matrix.vstack(*[own["m"]] * replicas, own["m_star"]),
            sp.Matrix.vstack(sp.Matrix.hstack(student, cross), sp.Matrix.hstack(cross.T, own["rho_star"])),
        )
        copies = {f"x|{a + 1}": sp.zeros(2, 1) for a in range(replicas)}
        letters, bound = joint.draw({**values, **copies})
        at = Values({**bound, "loss": square_loss}, replicas=replicas)
        results.append((replicas, joint.log_average_exp(at(exponent), letters)))
    return results
