"""Step 3: overlaps and their conjugates; trace, entropic and energetic potentials of n replicas."""

from __future__ import annotations

from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...calculus.averages import CHANNEL, CONTEXTS, COORDINATE, Average, Symbols
from ..algebra.exact import Source, Values, is_zero
from ..algebra.objects import PAIRS, REPLICAS, LogIntegral, beta, replicated, scalars_out
from ..algebra.step import Expressions, Step, Test
from .fields import Inputs
from .partition import DIMENSION

PENALTY = sp.Symbol("penalty", real=True)


def self_overlap(p: Symbols) -> sp.MatrixSymbol:
    """q_aa, called r."""
    return sp.MatrixSymbol("r", p.s, p.s)


def conjugate_of(symbol: sp.MatrixSymbol) -> sp.MatrixSymbol:
    """The conjugate of a (replicated) overlap."""
    stem, bar, letters = symbol.name.partition("|")
    return sp.MatrixSymbol(f"{stem}_hat{bar}{letters}", *symbol.shape)


def couplings(p: Symbols) -> dict[sp.MatrixSymbol, tuple[str, sp.Rational]]:
    """Overlap -> (sum it stands in, what multiplies conjugate times (overlap - its definition)): a choice of sign."""
    return {
        replicated(self_overlap(p), "a"): (REPLICAS, sp.Rational(1, 2)),
        replicated(p.q, "ab"): (PAIRS, -sp.Rational(1, 2)),
        replicated(p.m, "a"): (REPLICAS, sp.Integer(-1)),
        replicated(p.theta, "a"): (REPLICAS, sp.Integer(-1)),
    }


def of_one_coordinate(overlap: MatrixExpr, p: Symbols) -> MatrixExpr:
    """What a coordinate of the common eigenbasis contributes to d times an overlap, in w, gamma, tau and pi."""
    given = Inputs(p, sp.Integer(1))
    names: dict[MatrixExpr, MatrixExpr] = {
        **{given.weights(a): replicated(p.w, a).T for a in "ab"},
        given.teacher: p.pi.T,
        given.covariance: p.gamma * sp.Identity(1),
        given.mean: p.tau * sp.Identity(1) - given.encoding,
    }
    return overlap.xreplace({Inputs(p).d: sp.Integer(1)}).xreplace(names).doit()


def definitions(fields: Expressions, p: Symbols) -> dict[sp.MatrixSymbol, MatrixExpr]:
    """Overlap -> its part from one coordinate, out of step 2."""
    q_ab = of_one_coordinate(fields["q|ab"], p)
    r, q, m, theta = couplings(p)
    same = q_ab.xreplace({replicated(p.w, "b"): replicated(p.w, "a")})
    return {r: same, q: q_ab, m: of_one_coordinate(fields["m|a"], p), theta: of_one_coordinate(fields["theta|a"], p)}


def step(p: Symbols, weight: sp.Expr, fields: Expressions) -> Step:
    """Fix the overlaps by Fourier integrals: rows of W and sentences then come apart."""
    inner = definitions(fields, p)
    trace, coupled = [], []
    for overlap, (kind, number) in couplings(p).items():
        conjugate = conjugate_of(overlap)
        trace.append(number * Average(kind, sp.Trace(conjugate.T * overlap)))
        coupled.append(-number * Average(kind, scalars_out(sp.Trace(conjugate.T * inner[overlap]))))
    row = -beta * Average(REPLICAS, replicated(PENALTY, "a")) + Average(CONTEXTS, sp.Add(*coupled))
    sentence = -beta * Average(REPLICAS, replicated(p.loss, "a"))
    after = {
        "trace": Average(CONTEXTS, sp.Add(*trace)),
        "entropic": Average(COORDINATE, LogIntegral(row, replicated(p.w, "a"))),
        "energetic": p.alpha * sp.log(Average(CHANNEL, sp.exp(sentence))),
    }
    if p.trained:  # neither of a row nor of a sentence: what the weight holds of them, per dimension
        (own,) = [term for term in sp.Add.make_args(weight.args[-1].summand) if term.has(DIMENSION)]
        after["trained"] = -beta * Average(REPLICAS, own / DIMENSION)
    return Step(
        3,
        "Overlaps and their conjugates",
        {"weight": weight, **{f"{overlap.name} of a coordinate": value for overlap, value in inner.items()}},
        after,
        "A delta function for every overlap is written as a Fourier integral over its conjugate. Given the overlaps "
        "the sentences are independent, given the conjugates the d rows of the weights are; the saddle "
        "point of large d leaves, per dimension, the sum of the three potentials.",
        "arXiv 2402.03902, Appendix C; arXiv 2409.13904",
        (
            Test(
                "conjugates enforce the overlaps",
                "with each overlap at its definition the conjugates drop out, n = 1, 2, 3, two contexts, exactly",
                lambda before, after: _drop_out(before, after, p),
                ("trace", "entropic"),
            ),
            Test(
                "sentences come apart",
                "the average of the replicated weight over three sentences is the third power times the weight of "
                "the trained numbers, exactly",
                lambda before, after: _come_apart(before, after, p),
                ("energetic", "trained"),
            ),
        ),
    )


def _drop_out(before: Expressions, after: Expressions, p: Symbols) -> bool:
    (entropic,) = [a for a in after["entropic"].atoms(LogIntegral)]
    if after["entropic"] != Average(COORDINATE, entropic):
        return False
    source, overlaps = Source("action"), couplings(p)
    for replicas in (1, 2, 3):
        numbers = [str(a) for a in range(1, replicas + 1)]
        values: dict[str, Any] = {f"w|{a}": source.matrix(2, 1) for a in numbers} | {"pi": source.matrix(2, 1)}
        values |= {f"penalty|{a}": source.number() for a in numbers}
        contexts = []
        for _ in range(2):
            own: dict[str, Any] = {"gamma": abs(source.number()), "tau": source.number()}
            for overlap, (kind, _number) in overlaps.items():
                inner = before[f"{overlap.name} of a coordinate"]
                stem = overlap.name.partition("|")[0]
                for a in numbers:
                    for b in numbers if kind == PAIRS else [""]:
                        value = Values({**values, **own}, indices={"a": a, "b": b})(inner)
                        own[f"{stem}|{a}{b}"] = value
                        own[f"{stem}_hat|{a}{b}"] = source.matrix(*value.shape)
            contexts.append((1, own))
        at = Values({**values, "beta": sp.Rational(3, 2)}, {CONTEXTS: tuple(contexts)}, replicas=replicas)
        expected = at(-beta * Average(REPLICAS, replicated(PENALTY, "a")))
        if not is_zero(at(after["trace"]) + at(entropic.exponent) - expected):
            return False
    return True


def _come_apart(before: Expressions, after: Expressions, p: Symbols) -> bool:
    """A sentence has two states of probabilities 1/3 and 2/3; alpha d = 3 sentences at d = 2; two replicas."""
    source, replicas, dimension, sentences = Source("sentences"), ("1", "2"), 2, 3
    chances = (sp.Rational(1, 3), sp.Rational(2, 3))
    losses = [{f"|{a}": source.random.randint(1, 9) for a in replicas} for _ in chances]
    no_rows: dict[str, Any] = {f"row_penalty|{a}": sp.Integer(0) for a in replicas}
    no_rows |= {f"phi|{a}": source.matrix(2, 1) for a in replicas}
    no_rows |= {"Kappa": source.symmetric(2), "d": sp.Integer(dimension)}
    total: sp.Expr = sp.Integer(0)
    for first in (0, 1):
        for second in (0, 1):
            for third in (0, 1):
                chosen = (first, second, third)
                samples = tuple((1, {f"sample_loss{a}": v for a, v in losses[state].items()}) for state in chosen)
                at = Values(no_rows, {"samples": samples}, replicas=2)
                chance = sp.Mul(*[chances[state] for state in chosen])
                total += chance * sp.exp(at(before["weight"]))
    states = tuple((c, {f"loss{a}": v for a, v in own.items()}) for c, own in zip(chances, losses, strict=True))
    at = Values({**no_rows, "alpha": sp.Rational(sentences, dimension)}, {CHANNEL: states}, replicas=2)
    each = sp.exp(at(after["energetic"]) * dimension) * sp.exp(dimension * at(after.get("trained", sp.Integer(0))))
    return is_zero(sp.expand(each) - sp.expand(total))
