"""Step 1: n replicas of the Boltzmann weight."""

from __future__ import annotations

from itertools import product

import sympy as sp

from ...calculus.averages import Average, OrderParameterSymbols
from ..algebra.exact import ExactValues, RandomRationals, is_exactly_zero
from ..algebra.objects import REPLICAS, ROWS, SAMPLES, beta, replica_symbol
from ..algebra.step import Expressions, Step, declare_test

# The loss of sample mu and the penalty of row i at the same W, and their sums under one replica.
SAMPLE_LOSS, ROW_PENALTY = sp.Symbol("sample_loss", real=True), sp.Symbol("row_penalty", real=True)
DIMENSION = sp.Symbol("d", positive=True, integer=True)


def minimised_risk(p: OrderParameterSymbols) -> sp.Expr:
    """Return the minimised risk: losses of the samples, penalties of the rows, ridges of the trained numbers."""
    total = Average(SAMPLES, SAMPLE_LOSS) + Average(ROWS, ROW_PENALTY)
    return total + DIMENSION * sp.Trace(p.phi.T * p.Kappa * p.phi) / 2 if p.trained else total


def replicated_partition_function_step(p: OrderParameterSymbols) -> Step:
    """Return derivation step 1: Z^n as the partition function of n copies of the weights with the same data."""
    weight = -beta * minimised_risk(p)
    copy = weight.xreplace({z: replica_symbol(z, "a") for z in (SAMPLE_LOSS, ROW_PENALTY, p.phi)})
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
        (_check_replicated_partition_function(),),
    )


@declare_test("power of the partition function", "Z^n of two configurations, n = 1 to 4, exactly")
def _check_replicated_partition_function(before: Expressions, after: Expressions) -> bool:
    """Return whether the sum over configurations of n replicas is the n-th power of the sum for one replica.

    The weights W have two configurations in this test.
    """
    random, states = RandomRationals("partition").random, 2
    energies = {name: [[random.randint(1, 9) for _ in range(count)] for _ in range(states)]
                for name, count in (("sample_loss", 3), ("row_penalty", 2))}  # fmt: skip

    def boltzmann_weight(exponent: sp.Expr, suffixes: list[str], chosen: tuple[int, ...]) -> sp.Expr:
        """Return the Boltzmann weight of chosen configurations of the replicas.

        Args:
            exponent: exponent of the weight.
            suffixes: ends of the names of each replica, "|1" for example.
            chosen: configuration of each of them.
        """
        copies = [*zip(suffixes, chosen, strict=True)]

        def energy_terms(name: str) -> list[tuple[int, dict[str, int]]]:
            return [(1, {name + end: own for (end, _), own in zip(copies, term, strict=True)})
                    for term in zip(*[energies[name][state] for state in chosen], strict=True)]  # fmt: skip

        trained = {f"phi{end}": sp.Matrix([state + 1, 2 - state]) for end, state in copies}
        values = {"d": sp.Integer(2), "Kappa": sp.Matrix([[2, 1], [1, 4]]), **trained}
        sums = {SAMPLES: energy_terms("sample_loss"), ROWS: energy_terms("row_penalty")}
        return sp.exp(ExactValues(values, sums, replicas=len(chosen))(exponent))

    partition = sp.Add(*[boltzmann_weight(before["weight"], [""], (state,)) for state in range(states)])
    for replicas in range(1, 5):
        ends = [f"|{a + 1}" for a in range(replicas)]
        copies = [boltzmann_weight(after["weight"], ends, chosen) for chosen in product(range(states), repeat=replicas)]
        if not is_exactly_zero(sp.expand(partition**replicas) - sp.Add(*copies)):
            return False
    return True
