"""Step 5: the limit n -> 0, as the derivative of each potential at n = 0, symbolically."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import sympy as sp

from ...calculus.averages import Average
from ..algebra.exact import ExactValues, is_exactly_zero, nested_block_matrix
from ..algebra.levels import ReplicaAnsatz
from ..algebra.objects import LogDet, LogIntegral, apply_function_outside_traces, factor_out_scalars, n
from ..algebra.step import Expressions, Step, StepTest, declare_test
from .ansatz import random_cluster_matrices, random_common_values, trace_of_replica_matrices


def expand_to_first_order_in_n(expression: sp.Expr) -> sp.Expr:
    """Return an expression that agrees with the given one to first order in the number n of replicas at n = 0.

    Rules beyond those of sums and products: d log det M = Tr[M^{-1} dM]; the logarithm of an average of n-th powers
    is n times the average of the logarithm; a trace always has a factor n.
    """
    if isinstance(expression, sp.Add | sp.Mul | sp.Pow):
        return expression.func(*[expand_to_first_order_in_n(a) for a in expression.args])
    if isinstance(expression, LogDet) and expression.has(n):
        matrix = _matrix_at_zero_replicas(expression.determinant_matrix)
        return LogDet(matrix) + n * sp.Trace(matrix.inv() * expression.determinant_matrix.diff(n).doit())
    if isinstance(expression, sp.Trace):
        return sp.Trace(_matrix_at_zero_replicas(expression.arg))
    if isinstance(expression, sp.log) and _exponent_per_replica(expression) is not None:
        return n * Average(expression.args[0].kind, _exponent_per_replica(expression))
    return expression


def value_at_zero_replicas(expression: sp.Expr) -> sp.Expr:
    """Return the value of a potential at n = 0 replicas; averages are not evaluated."""
    if isinstance(expression, Average):
        inside = value_at_zero_replicas(expression.summand)
        return sp.Integer(0) if inside == 0 else Average(expression.kind, inside)
    return apply_function_outside_traces(expand_to_first_order_in_n(expression), lambda e: e.subs(n, 0))


def derivative_at_zero_replicas(expression: sp.Expr) -> sp.Expr:
    """Return the derivative of a potential in the number n of replicas, at n = 0."""
    if isinstance(expression, Average):
        return Average(expression.kind, derivative_at_zero_replicas(expression.summand))
    return apply_function_outside_traces(expand_to_first_order_in_n(expression), lambda e: e.diff(n).subs(n, 0))


def _matrix_at_zero_replicas(matrix: Any) -> Any:
    return matrix.subs(n, 0).doit()


def _exponent_per_replica(logarithm: sp.log) -> sp.Expr | None:
    """Return f if the logarithm is log E[exp(n f)] for n replicas; None otherwise."""
    average = logarithm.args[0]
    if not isinstance(average, Average) or not isinstance(average.summand, sp.exp):
        return None
    per_replica = average.summand.args[0] / n
    return None if per_replica.has(n) else per_replica


def replica_limit_step(ansatz: ReplicaAnsatz, symmetric: Expressions) -> Step:
    """Return derivation step 5: the average of log Z as the derivative of E[Z^n] at n = 0 replicas.

    Args:
        ansatz: grouping of the replicas into blocks.
        symmetric: results of step 4, the action under the ansatz.
    """
    potentials = {name: value for name, value in symmetric.items() if name != "covariance"}
    after = {name: _split_traces_of_sums(derivative_at_zero_replicas(value)) for name, value in potentials.items()}
    again = " of averaged powers" * ansatz.steps
    powers = f"averaged powers{again} of a variable, block by block written out, differentiated at n = 0"
    if not ansatz.steps:
        powers = "averaged powers of a variable of three values, n = 1 to 4 written out, differentiated at n = 0"
    tests = [
        _check_potentials_vanish_at_zero_replicas(),
        _check_trace_from_integers(ansatz, numbers=_EXPLICIT_CASES[ansatz.steps]),
        *[
            StepTest(
                f"logarithm of a power, {what}",
                powers,
                partial(_check_averaged_power, ansatz=ansatz, name=name),
                (name,),
            )
            for what, name in (("rows", "entropic"), ("sentences", "energetic"))
        ],
    ]
    if "entropic of ridge" in potentials:
        tests.append(_check_ridge_from_integers(ansatz))
    return Step(
        5,
        "No replicas: n to zero",
        potentials,
        after,
        "The average of the logarithm of the partition function is the derivative of its averaged power n at n = 0, "
        "so each potential, known for integer n, is taken as a function of n and differentiated at n = 0, where all "
        "of them vanish. The exchange of this limit with that of large d is the replica assumption."
        + (" The number of replicas in a block is kept meanwhile." if ansatz.steps else ""),
        "S. F. Edwards, P. W. Anderson, J. Phys. F 5, 965 (1975); arXiv 2402.03902, Appendix C",
        tuple(tests),
    )


def _split_traces_of_sums(expression: sp.Expr) -> sp.Expr:
    """Return an expression with the trace of each sum written as a sum of traces."""
    if isinstance(expression, Average):
        return Average(expression.kind, _split_traces_of_sums(expression.summand))
    if isinstance(expression, sp.Add | sp.Mul):
        return sp.expand_mul(expression.func(*[_split_traces_of_sums(a) for a in expression.args]), deep=False)
    return factor_out_scalars(expression) if isinstance(expression, sp.Trace) else expression


@declare_test("potentials vanish at n = 0", "every potential of step 4 at n = 0")
def _check_potentials_vanish_at_zero_replicas(before: Expressions, _after: Expressions) -> bool:
    """Return whether all potentials of the replicated action vanish at n = 0 replicas.

    Log determinants are multiplied out, so that equal ones cancel.
    """
    plain = [e.xreplace({a: Average(a.kind, sp.expand(a.summand)) for a in e.atoms(Average)}) for e in before.values()]
    return all(sp.expand(value_at_zero_replicas(value)) == 0 for value in plain)


# Replicas in a block, where matrices of one, two, three and more blocks are written out.
_SIZES: tuple[tuple[tuple[int, ...], ...], ...] = (((),), ((2,), (3,)), ((4, 2),))
_EXPLICIT_CASES = (
    "n = 1, 2, 3, confirmed at n = 4",
    "n = 2, 4, 6, confirmed at n = 8, and at n = 3, 6, 9, confirmed at n = 12, in blocks of 2 and 3",
    "n = 4, 8, 12, confirmed at n = 16, in blocks of 4 of blocks of 2",
)


@declare_test(
    "trace from integer n",
    "the polynomial through explicit matrices at {numbers}; its slope at 0",
    ("trace", "trained"),
)
def _check_trace_from_integers(before: Expressions, after: Expressions, ansatz: ReplicaAnsatz) -> bool:
    own = random_cluster_matrices("trace in the limit")
    for held in _SIZES[ansatz.steps]:
        size = held[0] if held else 1
        points = [(size * k, trace_of_replica_matrices(ansatz, own, (size * k, *held))) for k in (1, 2, 3, 4)]
        polynomial = sp.interpolate(points[:3], n)
        confirmed = polynomial.subs(n, points[3][0]) == points[3][1] and polynomial.subs(n, 0) == 0
        value = ExactValues({**own, **ansatz.block_sizes(held)})(after["trace"])
        if not confirmed or not is_exactly_zero(value - polynomial.diff(n).subs(n, 0)):
            return False
    if "trained" not in after:
        return True
    at = ExactValues({**own, "phi": own["m"], "Kappa": own["q"]})
    return is_exactly_zero(at(before["trained"]).diff(n) - at(after["trained"]))


def _check_averaged_power(before: Expressions, after: Expressions, ansatz: ReplicaAnsatz, name: str) -> bool:
    """Return whether averaged powers and their derivative at n = 0 replicas agree with sums written out.

    The log integral is replaced by the logarithm of a random integer of given probabilities.
    """
    (integral,) = before[name].atoms(LogIntegral)
    outcome = sp.Symbol("outcome")
    weights = (sp.Rational(1, 2), sp.Rational(1, 3), sp.Rational(1, 6))
    values = ((2, 3, 5), (7, 2, 3), (5, 1, 4))  # those of a level within that of all replicas, one a row
    kinds = [level.rows if name == "entropic" else level.channel for level in ansatz.levels]
    sums = {kind: tuple((c, {kind: i}) for i, c in enumerate(weights)) for kind in kinds}

    def outcome_of_integral(place: Sequence[int]) -> sp.Integer:
        row = place[1] if len(place) > 1 else 0
        return sp.Integer(values[row][place[0]] + sum(place[2:]))

    def log_integral_outcome(at: ExactValues, _suffix: str) -> sp.Expr:
        """Return a test value of the log integral of one replica: the log of an integer that depends on its fields.

        Args:
            at: matrices and numbers by name.
            _suffix: not used.
        """
        return sp.log(outcome_of_integral([at.values[kind] for kind in kinds]))

    def averaged_power(numbers: Sequence[int], place: tuple[int, ...] = ()) -> sp.Expr:
        """Return the averaged power of a random integer over nested blocks of replicas, written out as sums.

        The integer stands for the integral of one replica; it is the result where there are no further levels.

        Args:
            numbers: number of replicas in a block of each level, from this one inwards.
            place: random outcomes at the outer levels.
        """
        if not numbers:
            return outcome_of_integral(place)
        here, inner = numbers[0], numbers[1] if len(numbers) > 1 else 1
        return sp.Add(*[c * averaged_power(numbers[1:], (*place, i)) ** (here // inner) for i, c in enumerate(weights)])

    for held in sorted({numbers[1:] for numbers in ansatz.numbers}):
        at = ExactValues({"outcome": log_integral_outcome, "alpha": sp.Integer(1), **ansatz.block_sizes(held)}, sums)
        power, slope = (at(e.xreplace({integral: outcome})) for e in (before[name], after[name]))
        written_out = {numbers[0]: averaged_power(numbers) for numbers in ansatz.numbers if numbers[1:] == held}
        if not all(is_exactly_zero(power.subs(n, k) - sp.log(value)) for k, value in written_out.items()):
            return False
        if not is_exactly_zero(sp.expand(power.diff(n).subs(n, 0) - slope)):
            return False
    return True


@declare_test(
    "block matrices from integer n",
    "det and summed inverse interpolated through explicit matrices at integer n, confirmed at the next; the slope of "
    "their logarithm at 0",
    ("entropic of ridge",),
)
def _check_ridge_from_integers(_before: Expressions, after: Expressions, ansatz: ReplicaAnsatz) -> bool:
    """Return whether the potential for a ridge at n = 0 replicas agrees with matrices of n replicas, interpolated.

    Interpolated are the determinant relative to that without the field common to all replicas, a polynomial of degree s
    in n, and its product with the summed inverse, one of degree s - 1.
    """
    own = random_cluster_matrices("ridge in the limit")
    values = random_common_values("ridge in the limit", [own])
    A, C, B = values["beta"] * values["Lambda"] + values["G"], -values["Q"], values["B"]
    for held in _SIZES[ansatz.steps]:
        size = held[0] if held else 1
        inner = [(k, -values[level.composite.name]) for k, level in zip(held, ansatz.levels[1:], strict=True)]
        alone = nested_block_matrix(A, inner, size).det()  # of one block, which is a replica where there are none
        known: dict[int, tuple[sp.Expr, sp.Expr]] = {}
        for blocks in range(1, A.rows + 3):
            replicas = size * blocks
            matrix = nested_block_matrix(A, [*inner, (replicas, C)], replicas)
            stacked = sp.Matrix.vstack(*[B] * replicas)
            determinant = matrix.det() / alone**blocks
            known[replicas] = determinant, determinant * (stacked.T * matrix.inv() * stacked)[0] / replicas
        *points, last = known
        determinant, weighted = (sp.interpolate([(k, known[k][i]) for k in points], n) for i in range(2))
        if determinant.subs(n, last) != known[last][0] or weighted.subs(n, last) != known[last][1]:
            return False
        rational = -determinant.diff(n) / determinant / 2 + weighted / determinant / 2
        expected = rational.subs(n, 0) - sp.log(alone) / (2 * size) + sp.Rational(A.rows, 2) * sp.log(2 * sp.pi)
        if not is_exactly_zero(
            ExactValues({**values, **ansatz.block_sizes(held)})(after["entropic of ridge"]) - expected
        ):
            return False
    return True
