"""Step 3: overlaps and their conjugates; trace, entropic and energetic potentials of n replicas."""

from __future__ import annotations

from itertools import product
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...calculus.averages import CHANNEL, CONTEXTS, COORDINATE, Average, Symbols
from ..algebra.exact import Source, Values, is_zero
from ..algebra.objects import PAIRS, REPLICAS, SAMPLES, LogIntegral, beta, replicated, scalars_out
from ..algebra.step import Expressions, Step, declare_test
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
        (_drop_out(p), _come_apart()),
    )


@declare_test(
    "conjugates enforce the overlaps",
    "with each overlap at its definition the conjugates drop out, n = 1, 2, 3, two contexts, exactly",
    ("trace", "entropic"),
)
def _drop_out(before: Expressions, after: Expressions, p: Symbols) -> bool:
    (entropic,) = [a for a in after["entropic"].atoms(LogIntegral)]
    if after["entropic"] != Average(COORDINATE, entropic):
        return False
    source = Source("action")
    values: dict[str, Any] = {"pi": source.matrix(2, 1), "beta": sp.Rational(3, 2)}
    for a in "123":
        values |= {f"w|{a}": source.matrix(2, 1), f"penalty|{a}": source.number()}
    for overlap in couplings(p):
        stem, inner = overlap.name.partition("|")[0], before[f"{overlap.name} of a coordinate"]

        def defined(at: Values, suffix: str, inner: Any = inner) -> Any:
            return at.having(**dict(zip("ab", suffix[1:], strict=False)))(inner)

        def conjugate(at: Values, suffix: str, stem: str = stem) -> sp.Matrix:
            return Source(f"{stem}{suffix} {at.values['context']}").matrix(2, 1 if stem == "m" else 2)

        values |= {stem: defined, f"{stem}_hat": conjugate}
    contexts = [(1, {"context": c, "gamma": abs(source.number()), "tau": source.number()}) for c in range(2)]
    penalties = -beta * Average(REPLICAS, replicated(PENALTY, "a"))
    everywhere = [Values(values, {CONTEXTS: contexts}, replicas=replicas) for replicas in (1, 2, 3)]
    return all(is_zero(at(after["trace"]) + at(entropic.exponent) - at(penalties)) for at in everywhere)


@declare_test(
    "sentences come apart",
    "the average of the replicated weight over three sentences is the third power times the weight of the trained "
    "numbers, exactly",
    ("energetic", "trained"),
)
def _come_apart(before: Expressions, after: Expressions) -> bool:
    """A sentence has two states of probabilities 1/3 and 2/3; alpha d = 3 sentences at d = 2; two replicas."""
    source, replicas, dimension, sentences = Source("sentences"), ("1", "2"), 2, 3
    states = [(chance, {f"loss|{a}": source.random.randint(1, 9) for a in replicas})
              for chance in (sp.Rational(1, 3), sp.Rational(2, 3))]  # fmt: skip
    values: dict[str, Any] = {f"row_penalty|{a}": sp.Integer(0) for a in replicas}
    values |= {f"phi|{a}": source.matrix(2, 1) for a in replicas}
    values |= {"Kappa": source.symmetric(2), "d": sp.Integer(dimension), "alpha": sp.Rational(sentences, dimension)}
    total: sp.Expr = sp.Integer(0)
    for chosen in product(states, repeat=sentences):
        samples = tuple((1, {f"sample_{name}": loss for name, loss in own.items()}) for _, own in chosen)
        at = Values(values, {SAMPLES: samples}, replicas=2)
        total += sp.Mul(*[chance for chance, _ in chosen]) * sp.exp(at(before["weight"]))
    at = Values(values, {CHANNEL: states}, replicas=2)
    each = sp.exp(at(after["energetic"]) * dimension) * sp.exp(dimension * at(after.get("trained", sp.Integer(0))))
    return is_zero(sp.expand(each) - sp.expand(total))
