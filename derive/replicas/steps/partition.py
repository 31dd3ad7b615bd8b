"""Step 1: n replicas of the Boltzmann weight."""

from __future__ import annotations

import sympy as sp

from ...calculus.averages import Average, Symbols
from ..algebra.exact import Source, Values, configurations, is_zero
from ..algebra.objects import REPLICAS, ROWS, SAMPLES, beta, replicated
from ..algebra.step import Expressions, Step, Test

# The loss of sample mu and the penalty of row i at the same W, and their sums under one replica.
SAMPLE_LOSS, ROW_PENALTY = sp.Symbol("sample_loss", real=True), sp.Symbol("row_penalty", real=True)
DIMENSION = sp.Symbol("d", positive=True, integer=True)


def risk(p: Symbols) -> sp.Expr:
    """What is minimised: losses of the samples, penalties of the rows, ridges of the numbers trained with them."""
    total = Average(SAMPLES, SAMPLE_LOSS) + Average(ROWS, ROW_PENALTY)
    return total + DIMENSION * sp.Trace(p.phi.T * p.Kappa * p.phi) / 2 if p.trained else total


def step(p: Symbols) -> Step:
    """Z^n is the partition function of n copies of the weights that see the same data."""
    weight = -beta * risk(p)
    copy = weight.xreplace({z: replicated(z, "a") for z in (SAMPLE_LOSS, ROW_PENALTY, p.phi)})
    energy = sp.Add(*[term / -beta for term in sp.expand(copy).args])
    return Step(
        1,
        "Replicated partition function",
        {"weight": weight},
        {"weight": -beta * Average(REPLICAS, energy)},
        "A power of an integral is an integral over copies: for integer n the weights of n replicas, which share "
        "data and teacher, add up in the exponent.",
        "arXiv 2402.03902, Appendix C; M. Mezard, G. Parisi, M. Virasoro, Spin Glass Theory and Beyond, World "
        "Scientific (1987)",
        (Test("power of the partition function", "Z^n of two configurations, n = 1 to 4, exactly", _is_power),),
    )


def _is_power(before: Expressions, after: Expressions) -> bool:
    """W takes two values; the sum over the configurations of n replicas is the n-th power, as a polynomial."""
    source, states, samples, rows = Source("partition"), 2, 3, 2
    losses = [[abs(source.random.randint(1, 9)) for _ in range(samples)] for _ in range(states)]
    penalties = [[abs(source.random.randint(1, 9)) for _ in range(rows)] for _ in range(states)]

    def weight(exponent: sp.Expr, suffixes: list[str], chosen: tuple[int, ...]) -> sp.Expr:
        def own(name: str, table: list[list[int]], count: int) -> tuple[tuple[int, dict[str, int]], ...]:
            return tuple(
                (1, {name + end: table[state][i] for end, state in zip(suffixes, chosen, strict=True)})
                for i in range(count)
            )

        trained = {f"phi{end}": sp.Matrix([state + 1, 2 - state]) for end, state in zip(suffixes, chosen, strict=True)}
        values = {"d": sp.Integer(2), "Kappa": sp.Matrix([[2, 1], [1, 4]]), **trained}
        sums = {
            SAMPLES: own("sample_loss", losses, samples),
            ROWS: own("row_penalty", penalties, rows),
        }
        return sp.exp(Values(values, sums, replicas=len(chosen))(exponent))

    partition = sp.Add(*[weight(before["weight"], [""], (state,)) for state in range(states)])
    for replicas in range(1, 5):
        ends = [f"|{a + 1}" for a in range(replicas)]
        copies = sp.Add(*[weight(after["weight"], ends, chosen) for chosen in configurations(states, replicas)])
        if not is_zero(sp.expand(partition**replicas) - copies):
            return False
    return True
