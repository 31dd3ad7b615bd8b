"""Step 4: the ansatz, replica symmetric or with blocks of replicas, at a symbolic number n of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise, permutations
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...calculus.averages import CONTEXTS, COORDINATE, Average, Symbols
from ...theory.stability import TOKENS
from ..algebra.exact import Law, Source, Values, explicit, is_zero, log_integral
from ..algebra.levels import Ansatz
from ..algebra.objects import (
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
from ..algebra.step import Expressions, Step, Test, declare_test
from .action import PENALTY

# What the step does, in words, and where it is written, by how often replica symmetry is broken.
_WORDS = (
    (
        "Replica-symmetric ansatz",
        "All replicas are alike: the overlap of two replicas does not depend on which they are, that of a replica "
        "with itself exceeds it by the variance V. Overlaps and conjugates are then block matrices of two blocks, one "
        "on the diagonal and one everywhere. A normal field shared by the replicas (Hubbard-Stratonovich) then makes "
        "their integrals independent and equal: a power n of one.",
        "arXiv 2402.03902, Appendix C; D. Sherrington, S. Kirkpatrick, Phys. Rev. Lett. 35, 1792 (1975)",
    ),
    (
        "Ansatz with one step of replica symmetry breaking",
        "The n replicas come in blocks, all alike: two replicas of one block have a larger overlap than two of "
        "different blocks. Overlaps and conjugates are then block matrices with one block on the diagonal, one within "
        "the blocks of replicas and one everywhere. One normal field is shared by all replicas, another one by those "
        "of a block (Hubbard-Stratonovich, twice), which leaves a power of a power of one integral.",
        "M. Mezard, G. Parisi, M. Virasoro, Spin Glass Theory and Beyond, World Scientific (1987)",
    ),
    (
        "Ansatz with two steps of replica symmetry breaking",
        "The n replicas come in blocks of blocks, all alike: two replicas of one inner block have a larger overlap "
        "than two of one block, and these a larger one than two of different blocks. Overlaps and conjugates are then "
        "block matrices with one block on the diagonal, one within the inner blocks, one within the blocks and one "
        "everywhere. One normal field is shared by all replicas, another one by those of a block and a third by those "
        "of an inner one (Hubbard-Stratonovich, three times), which leaves powers of powers of one integral.",
        "M. Mezard, G. Parisi, M. Virasoro, Spin Glass Theory and Beyond, World Scientific (1987)",
    ),
)
_NUMBERS = (
    "n = 1 to 4",
    "n = 2, 4, 6 in blocks of 2 and n = 6 in blocks of 3",
    "n = 4, 8 in blocks of 4 of blocks of 2",
)


def counted(expression: sp.Expr, ansatz: Ansatz) -> sp.Expr:
    """Sums over replicas of what is the same in all of them, and over pairs of what their overlap decides."""
    if isinstance(expression, Average) and expression.kind in (REPLICAS, PAIRS):
        alike: list[tuple[sp.Expr, dict[Any, Any]]] = [(n, {})]
        if expression.kind == PAIRS:
            alike = [(pairs.number, pairs.values(ansatz.symbols)) for pairs in ansatz.pairs]
        terms = [number * _one_for_all(expression.summand.xreplace(values), ansatz) for number, values in alike]
        return sp.Add(*terms)
    if isinstance(expression, sp.Add | sp.Mul):
        return expression.func(*[counted(a, ansatz) for a in expression.args])
    return expression


def _one_for_all(summand: sp.Expr, ansatz: Ansatz) -> sp.Expr:
    if any("|" in z.name for z in summand.atoms(sp.MatrixSymbol, sp.Symbol)):
        raise ValueError(f"{summand} is not the same in all replicas")
    return untransposed(scalars_out(summand), ansatz.symbols)


def step(ansatz: Ansatz, action: Expressions, ridge: bool) -> Step:
    """Substitute; for the rows and the sentences the replicas then couple through the fields of the levels only."""
    p, (name, rule, citation) = ansatz.symbols, _WORDS[ansatz.steps]
    (trace,) = [a for a in action["trace"].atoms(Average) if a.kind == CONTEXTS]
    alike = untransposed(scalars_out(trace.summand.xreplace(ansatz.single)), p)
    after: dict[str, Any] = {
        "trace": Average(CONTEXTS, sp.expand(counted(alike, ansatz))),
        "entropic": entropic(ansatz, action["entropic"]),
        "energetic": energetic(ansatz),
        "covariance": joint_covariance(p),
    }
    if p.trained:
        after["trained"] = sp.expand(counted(action["trained"].xreplace(ansatz.single), ansatz))
    where = _NUMBERS[ansatz.steps]
    fields = "a field for all replicas, one a block" if ansatz.steps else "one field for all replicas"
    tests = [
        _trace_holds(ansatz, where=where),
        Test(
            f"rows: {fields}",
            f"normal integrals over n s weights against the power of one, {where}, s = t = 2, two contexts, exactly",
            lambda before, after: _rows_hold(before, after, ansatz, "entropic"),
            ("entropic",),
        ),
        _sentences_hold(ansatz, where=where, fields=fields),
    ]
    if ridge:
        after["entropic of ridge"] = ridge_entropic(ansatz)
        tests.append(
            Test(
                "rows of ridge: block matrices",
                f"normal integral over n s weights, {where}, s = t = 2, two contexts, exactly",
                lambda before, after: _rows_hold(before, after, ansatz, "entropic of ridge"),
                ("entropic of ridge",),
            )
        )
    return Step(4, name, dict(action), after, rule, citation, tuple(tests))


def entropic(ansatz: Ansatz, potential: sp.Expr) -> sp.Expr:
    """Return the potential of the rows, collected from that of step 3; replicas share the field b = B + h of a level.

    exp(1/2 sum_ab w_a^T Q w_b) is the average of exp(sum_a w_a^T h) over h of covariance Q.

    Raises:
        ValueError: the replicas of a level's blocks are not coupled through sums of w_a alone.
    """
    p = ansatz.symbols
    (integral,) = potential.atoms(LogIntegral)
    exponent = scalars_out(integral.exponent.xreplace(ansatz.single))
    # A sum over contexts of gamma V^ is G, and so on: the conjugates enter in no other way (a check writes it out).
    collected = {p.V_hat: p.G / p.gamma, p.m_hat: p.B / p.tau, p.theta_hat: p.theta_hat * 0}
    collected |= {level.conjugate: level.composite / p.gamma for level in ansatz.levels}
    single: sp.Expr = sp.Integer(0)
    diagonal: sp.Expr = sp.Integer(0)
    pairs: list[sp.Expr] = [sp.Integer(0)] * len(ansatz.levels)
    w = {replicated(p.w, a): p.w for a in "ab"} | {replicated(PENALTY, "a"): PENALTY}
    for term in sp.Add.make_args(sp.expand(exponent)):
        (sum_,) = [a for a in term.atoms(Average) if a.kind in (REPLICAS, PAIRS)]
        number = sp.Mul(*[factor for factor in sp.Mul.make_args(term) if not isinstance(factor, Average)])
        if sum_.kind == PAIRS:
            for i, kind in enumerate(ansatz.pairs):
                held = sum_.summand.xreplace(kind.values(p)).xreplace(collected).xreplace(w)
                pairs[i] += number * scalars_out(held)
            continue
        inside = scalars_out(sum_.summand.xreplace(collected).xreplace(w))
        if inside.has(*[level.composite for level in ansatz.levels]):
            diagonal += number * inside
        else:
            single += number * inside
    for i, coupling in enumerate([*pairs, diagonal]):
        shared = [level.composite for level in ansatz.levels[: i + 1]]
        expected = sp.Add(*[sp.Trace(p.w.T * Q * p.w) / 2 for Q in shared])
        if sp.expand(_cyclic(coupling, p) - expected) != 0:
            raise ValueError(f"{coupling} is not half a quadratic form of covariance {sp.MatAdd(*shared)}")
    # The field b = B + h collects the linear term.
    shifted = _cyclic(single, p).xreplace({p.B: p.b})
    return Average(COORDINATE, ansatz.power(LogIntegral(shifted, p.w), rows=True))


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


def energetic(ansatz: Ansatz) -> sp.Expr:
    """The sentences: X_a = omega + z_a, omega shared by those of a block, z_a of covariance V each replica's own."""
    p = ansatz.symbols
    x = sp.MatrixSymbol("x", p.s, 1)
    norm = (LogDet(p.V) + p.s * sp.log(2 * sp.pi)) / 2
    density = -beta * p.loss - Average(TOKENS, quadratic_around(p) + norm)
    return p.alpha * ansatz.power(LogIntegral(density, x))


def joint_covariance(p: Symbols) -> sp.BlockMatrix:
    """Return the covariance of the field that all replicas share and of the teacher's."""
    return sp.BlockMatrix([[p.q, p.theta], [p.theta.T, p.rho_star]])


def ridge_entropic(ansatz: Ansatz) -> sp.Expr:
    """Return the potential of the rows for r(w) = 1/2 w^T Lambda w, a normal integral (docs/theory.md (18.5)).

    Its precision is beta Lambda + G for each replica minus the covariances of the fields that are shared.

    The matrix of ones of a level's blocks has the eigenvalue k once, k replicas in a block, and 0 else: what is
    orthogonal to the blocks does not feel it.
    """
    p, log_det, number = ansatz.symbols, sp.Integer(0), n
    precision: MatrixExpr = beta * p.Lambda + p.G
    for level in reversed(ansatz.levels):
        log_det, number = log_det + (number - n / level.size) * LogDet(precision), n / level.size
        precision = precision + level.size * (-1 * level.composite)
    log_det = log_det + number * LogDet(precision)
    shift = n * sp.Trace(p.B.T * precision.doit().inv() * p.B) / 2
    return Average(COORDINATE, n * p.s * sp.log(2 * sp.pi) / 2 - log_det / 2 + shift)


# --- explicit matrices at integer n -----------------------------------------------------------------------------------


def example(name: str, size: int = 2) -> dict[str, Any]:
    """Exact matrices of one context: positive definite where they must be, q_hat small enough for eight replicas."""
    source = Source(name)
    overlap = source.positive(2 * size)
    known = {
        "q": overlap[:size, :size], "theta": overlap[:size, size:], "rho_star": overlap[size:, size:],
        "V": source.positive(size), "V_hat": source.positive(size), "q_hat": source.positive(size) / 200,
        "m": source.matrix(size, 1), "m_hat": source.matrix(size, 1), "theta_hat": source.matrix(size, size),
        "m_star": source.matrix(size, 1), "gamma": abs(source.number()), "tau": source.number(),
        "phi": source.matrix(size, 1), "Delta": source.positive(size) / 4, "Delta_hat": source.positive(size) / 100,
    }  # fmt: skip
    of_two = {f"Delta_{k}": source.positive(size) / 6 for k in (1, 2)}
    return known | of_two | {f"{name}_hat": source.positive(size) / 200 for name in of_two}


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
        **{f"Q_Delta{k}": sum((g * own[f"Delta{k}_hat"] for g, own in weights), zero) for k in ("", "_1", "_2")},
        "B": sum((own["tau"] * own["m_hat"] + g * own["theta_hat"] * pi for g, own in weights), vector),
        "w": sp.zeros(size, 1), "b": sp.zeros(size, 1), "x": sp.zeros(size, 1), "omega": sp.zeros(size, 1),
        "Y": vector, **{f"{field}_{k}": vector for field in ("omega", "b") for k in (0, 1)},
    }  # fmt: skip


def laws(ansatz: Ansatz) -> dict[str, Callable[[Values], Law]]:
    """Return the laws of the fields of every level: those within a block lie around those of the level outside."""
    p, outermost = ansatz.symbols, ansatz.levels[0]

    def of_all(at: Values) -> Law:
        return Law((outermost.field.name, "Y"), sp.Matrix.vstack(at(p.m), at(p.m_star)), at(joint_covariance(p)))

    def around(field: sp.MatrixSymbol, mean: sp.MatrixSymbol, covariance: sp.MatrixSymbol) -> Callable[[Values], Law]:
        return lambda at: Law((field.name,), at(mean), at(covariance))

    found = {outermost.channel: of_all, outermost.rows: around(outermost.row_field, p.B, p.Q)}
    for outer, inner in pairwise(ansatz.levels):
        found[inner.channel] = around(inner.field, outer.field, inner.overlap)
        found[inner.rows] = around(inner.row_field, outer.row_field, inner.composite)
    return found


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


def matrices(ansatz: Ansatz, own: dict[str, Any], numbers: Sequence[int]) -> tuple[sp.Matrix, sp.Matrix]:
    """(overlaps, conjugates) of all replicas as matrices; numbers: how many a level holds."""
    replicas, blocks = numbers[0], list(zip(numbers, ansatz.levels, strict=True))
    overlap = explicit(own["V"], [(k, own[level.overlap.name]) for k, level in blocks], replicas)
    conjugate = explicit(own["V_hat"], [(k, -own[level.conjugate.name]) for k, level in blocks], replicas)
    return overlap, conjugate


def trace_written_out(ansatz: Ansatz, own: dict[str, Any], numbers: Sequence[int]) -> sp.Expr:
    """The trace of one context; the conjugates of different replicas have the other sign in it."""
    overlap, conjugate = matrices(ansatz, own, numbers)
    linear = sp.trace(own["m_hat"].T * own["m"]) + sp.trace(own["theta_hat"].T * own["theta"])
    return sp.trace(conjugate * overlap) / 2 - numbers[0] * linear


@declare_test("trace in replica space", "block matrices written out, {where}, s = t = 2, exactly", ("trace", "trained"))
def _trace_holds(_before: Expressions, after: Expressions, ansatz: Ansatz) -> bool:
    own = example("trace")
    for numbers in ansatz.numbers:
        at = Values({**own, **ansatz.holding(numbers)})
        expected = trace_written_out(ansatz, own, numbers)
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


def _rows_hold(before: Expressions, after: Expressions, ansatz: Ansatz, name: str) -> bool:
    """The replicated integral of step 3 at the ansatz against the given form."""
    penalty = ridge_penalty if name == "entropic of ridge" else shifted_penalty
    values, _ = _row_values()
    (integral,) = before["entropic"].atoms(LogIntegral)
    for numbers, direct in _rows_written_out(integral.exponent, penalty, ansatz):
        at = Values({**values, "penalty": penalty, **ansatz.holding(numbers)}, laws=laws(ansatz))
        if not is_zero(at(after[name]) - direct):
            return False
    return True


def _row_values() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    contexts = [example("row 1"), example("row 2")]
    return shared("rows", contexts), contexts


@cache
def _rows_written_out(exponent: sp.Expr, penalty: Any, ansatz: Ansatz) -> list[tuple[tuple[int, ...], sp.Expr]]:
    """(how many replicas a level holds, log of the normal integral over the weights of all of them)."""
    values, contexts = _row_values()
    results = []
    for numbers in ansatz.numbers:
        replicas = range(numbers[0])
        letters = sp.Matrix(sp.symbols(f"z:{2 * numbers[0]}", real=True))
        copies = {f"w|{a + 1}": letters[2 * a : 2 * a + 2, :] for a in replicas}
        rows = []
        for own in contexts:
            _, conjugate = matrices(ansatz, own, numbers)
            pairs = {f"q_hat|{a + 1}{b + 1}": -conjugate[2 * a : 2 * a + 2, 2 * b : 2 * b + 2]
                     for a, b in permutations(replicas, 2)}  # fmt: skip
            rows.append((1, {**own, **pairs}))
        at = Values({**values, "penalty": penalty, **copies}, {CONTEXTS: rows}, replicas=numbers[0])
        results.append((numbers, log_integral(at(exponent.xreplace(ansatz.single)), list(letters))))
    return results


@declare_test(
    "sentences: {fields}",
    "the joint normal law of n student fields and the teacher's against the power, {where}, exactly",
    ("energetic", "covariance"),
)
def _sentences_hold(_before: Expressions, after: Expressions, ansatz: Ansatz) -> bool:
    """Log average of exp(-beta sum_a loss(X_a, Y)) over the joint normal law of all X_a and Y."""
    own, p, outermost = example("sentences"), ansatz.symbols, ansatz.levels[0]
    values = {**own, **shared("sentences", [own]), "loss": square_loss}
    for numbers, direct in _sentences_written_out(-beta * Average(REPLICAS, replicated(p.loss, "a")), ansatz):
        at = Values({**values, **ansatz.holding(numbers)})
        joint = Law((outermost.field.name, "Y"), sp.Matrix.vstack(own["m"], own["m_star"]), at(after["covariance"]))
        value = Values(at.values, laws=laws(ansatz) | {outermost.channel: joint})(after["energetic"])
        if not is_zero(value - at(p.alpha) * direct):
            return False
    return True


@cache
def _sentences_written_out(exponent: sp.Expr, ansatz: Ansatz) -> list[tuple[tuple[int, ...], sp.Expr]]:
    """(how many replicas a level holds, log of the average of the replicated weight over the law of all fields)."""
    own = example("sentences")
    values = {**own, **shared("sentences", [own])}
    results = []
    for numbers in ansatz.numbers:
        replicas, (student, _) = numbers[0], matrices(ansatz, own, numbers)
        cross = sp.Matrix.vstack(*[own["theta"]] * replicas)
        joint = Law(
            (*[f"x|{a + 1}" for a in range(replicas)], "Y"),
            sp.Matrix.vstack(*[own["m"]] * replicas, own["m_star"]),
            sp.Matrix.vstack(sp.Matrix.hstack(student, cross), sp.Matrix.hstack(cross.T, own["rho_star"])),
        )
        copies = {f"x|{a + 1}": sp.zeros(2, 1) for a in range(replicas)}
        at = Values({**values, **copies, "loss": square_loss}, replicas=replicas)
        results.append((numbers, joint.log_average_exp(exponent, at)))
    return results
