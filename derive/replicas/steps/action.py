"""Step 3: overlaps and their conjugates; trace, entropic and energetic potentials of n replicas."""

from __future__ import annotations

from itertools import product
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...calculus.averages import CHANNEL, CONTEXTS, COORDINATE, Average, OrderParameterSymbols
from ..algebra.exact import ExactValues, RandomRationals, is_exactly_zero
from ..algebra.objects import PAIRS, REPLICAS, SAMPLES, LogIntegral, beta, factor_out_scalars, replica_symbol
from ..algebra.step import Expressions, Step, declare_test
from .fields import TokenAndWeights
from .partition import DIMENSION

PENALTY = sp.Symbol("penalty", real=True)


def self_overlap(p: OrderParameterSymbols) -> sp.MatrixSymbol:
    """Return the symbol r of the overlap of a replica with itself."""
    return sp.MatrixSymbol("r", p.s, p.s)


def conjugate_symbol(symbol: sp.MatrixSymbol) -> sp.MatrixSymbol:
    """Return the symbol of the conjugate of an overlap."""
    stem, bar, letters = symbol.name.partition("|")
    return sp.MatrixSymbol(f"{stem}_hat{bar}{letters}", *symbol.shape)


def factors_of_fourier_terms(p: OrderParameterSymbols) -> dict[sp.MatrixSymbol, tuple[str, sp.Rational]]:
    """Return a map from overlaps, which Fourier integrals fix, to (kind of sum over replicas, factor in the exponent).

    The exponent is this factor times conjugate times (overlap - definition); the factors are a choice of signs.
    """
    return {
        replica_symbol(self_overlap(p), "a"): (REPLICAS, sp.Rational(1, 2)),
        replica_symbol(p.q, "ab"): (PAIRS, -sp.Rational(1, 2)),
        replica_symbol(p.m, "a"): (REPLICAS, sp.Integer(-1)),
        replica_symbol(p.theta, "a"): (REPLICAS, sp.Integer(-1)),
    }


def _overlap_term_of_coordinate(overlap: MatrixExpr, p: OrderParameterSymbols) -> MatrixExpr:
    """Return the term of one coordinate in d times an overlap.

    It is written in a row w of W, an eigenvalue gamma, the mean coordinate tau and the teacher's row pi. Coordinates
    are those of the common eigenbasis of the tokens' covariances.

    Args:
        overlap: overlap in terms of tokens and weights, from step 2.
        p: symbols of the order parameters.
    """
    given = TokenAndWeights(p, sp.Integer(1))
    names: dict[MatrixExpr, MatrixExpr] = {
        **{given.weight_matrix(a): replica_symbol(p.w, a).T for a in "ab"},
        given.teacher: p.pi.T,
        given.covariance: p.gamma * sp.Identity(1),
        given.mean: p.tau * sp.Identity(1) - given.encoding,
    }
    return overlap.xreplace({TokenAndWeights(p).d: sp.Integer(1)}).xreplace(names).doit()


def overlap_definitions(fields: Expressions, p: OrderParameterSymbols) -> dict[sp.MatrixSymbol, MatrixExpr]:
    """Return a map from each overlap to the term of one coordinate in the sum that defines it.

    Args:
        fields: results of step 2, means and covariances of the fields.
        p: symbols of the order parameters.
    """
    q_ab = _overlap_term_of_coordinate(fields["q|ab"], p)
    r, q, m, theta = factors_of_fourier_terms(p)
    same = q_ab.xreplace({replica_symbol(p.w, "b"): replica_symbol(p.w, "a")})
    return {
        r: same,
        q: q_ab,
        m: _overlap_term_of_coordinate(fields["m|a"], p),
        theta: _overlap_term_of_coordinate(fields["theta|a"], p),
    }


def overlap_constraints_step(p: OrderParameterSymbols, weight: sp.Expr, fields: Expressions) -> Step:
    """Return derivation step 3: overlaps fixed by Fourier integrals, which decouple rows of W and samples.

    Args:
        p: symbols of the order parameters.
        weight: exponent of the replicated Boltzmann weight, from step 1.
        fields: results of step 2, means and covariances of the fields.
    """
    inner = overlap_definitions(fields, p)
    trace, coupled = [], []
    for overlap, (kind, number) in factors_of_fourier_terms(p).items():
        conjugate = conjugate_symbol(overlap)
        trace.append(number * Average(kind, sp.Trace(conjugate.T * overlap)))
        coupled.append(-number * Average(kind, factor_out_scalars(sp.Trace(conjugate.T * inner[overlap]))))
    row = -beta * Average(REPLICAS, replica_symbol(PENALTY, "a")) + Average(CONTEXTS, sp.Add(*coupled))
    sentence = -beta * Average(REPLICAS, replica_symbol(p.loss, "a"))
    after = {
        "trace": Average(CONTEXTS, sp.Add(*trace)),
        "entropic": Average(COORDINATE, LogIntegral(row, replica_symbol(p.w, "a"))),
        "energetic": p.alpha * sp.log(Average(CHANNEL, sp.exp(sentence))),
    }
    if p.trained:  # their term of the weight, per dimension: it belongs to no row or sample
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
        (_check_conjugate_terms(p), _check_factorisation()),
    )


@declare_test(
    "conjugates enforce the overlaps",
    "with each overlap at its definition the conjugates drop out, n = 1, 2, 3, two contexts, exactly",
    ("trace", "entropic"),
)
def _check_conjugate_terms(before: Expressions, after: Expressions, p: OrderParameterSymbols) -> bool:
    (entropic,) = [a for a in after["entropic"].atoms(LogIntegral)]
    if after["entropic"] != Average(COORDINATE, entropic):
        return False
    source = RandomRationals("action")
    values: dict[str, Any] = {"pi": source.draw_matrix(2, 1), "beta": sp.Rational(3, 2)}
    for a in "123":
        values |= {f"w|{a}": source.draw_matrix(2, 1), f"penalty|{a}": source.draw_number()}
    for overlap in factors_of_fourier_terms(p):
        stem, inner = overlap.name.partition("|")[0], before[f"{overlap.name} of a coordinate"]

        def overlap_by_definition(at: ExactValues, suffix: str, inner: Any = inner) -> Any:
            """Return the value of an overlap by its definition, for one coordinate.

            Args:
                at: matrices and numbers by name.
                suffix: end of the names of two replicas, "|12" for example.
                inner: term of one coordinate.
            """
            return at.with_added_values(**dict(zip("ab", suffix[1:], strict=False)))(inner)

        def random_conjugate_value(at: ExactValues, suffix: str, stem: str = stem) -> sp.Matrix:
            """Return a random value of the conjugate of an overlap.

            Args:
                at: matrices and numbers by name.
                suffix: end of the names of two replicas, "|12" for example.
                stem: name of the overlap.
            """
            return RandomRationals(f"{stem}{suffix} {at.values['context']}").draw_matrix(2, 1 if stem == "m" else 2)

        values |= {stem: overlap_by_definition, f"{stem}_hat": random_conjugate_value}
    contexts = [(1, {"context": c, "gamma": abs(source.draw_number()), "tau": source.draw_number()}) for c in range(2)]
    penalties = -beta * Average(REPLICAS, replica_symbol(PENALTY, "a"))
    everywhere = [ExactValues(values, {CONTEXTS: contexts}, replicas=replicas) for replicas in (1, 2, 3)]
    return all(is_exactly_zero(at(after["trace"]) + at(entropic.log_integrand) - at(penalties)) for at in everywhere)


@declare_test(
    "sentences come apart",
    "the average of the replicated weight over three sentences is the third power times the weight of the trained "
    "numbers, exactly",
    ("energetic", "trained"),
)
def _check_factorisation(before: Expressions, after: Expressions) -> bool:
    """Return whether the averaged Boltzmann weight of two replicas factorises over three samples.

    A sample has two states of probabilities 1/3 and 2/3; alpha d = 3 at d = 2.
    """
    source, replicas, dimension, sentences = RandomRationals("sentences"), ("1", "2"), 2, 3
    states = [(probability, {f"loss|{a}": source.random.randint(1, 9) for a in replicas})
              for probability in (sp.Rational(1, 3), sp.Rational(2, 3))]  # fmt: skip
    values: dict[str, Any] = {f"row_penalty|{a}": sp.Integer(0) for a in replicas}
    values |= {f"phi|{a}": source.draw_matrix(2, 1) for a in replicas}
    values |= {
        "Kappa": source.draw_symmetric_matrix(2),
        "d": sp.Integer(dimension),
        "alpha": sp.Rational(sentences, dimension),
    }
    total: sp.Expr = sp.Integer(0)
    for chosen in product(states, repeat=sentences):
        samples = tuple((1, {f"sample_{name}": loss for name, loss in own.items()}) for _, own in chosen)
        at = ExactValues(values, {SAMPLES: samples}, replicas=2)
        total += sp.Mul(*[probability for probability, _ in chosen]) * sp.exp(at(before["weight"]))
    at = ExactValues(values, {CHANNEL: states}, replicas=2)
    each = sp.exp(at(after["energetic"]) * dimension) * sp.exp(dimension * at(after.get("trained", sp.Integer(0))))
    return is_exactly_zero(sp.expand(each) - sp.expand(total))
