"""Step 10 with one step of breaking: the limits of small Delta and small y (docs/theory.md (18.21)).

In these, the replicas of a block are no closer than others, or all states have one weight whatever their energy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...authoring.regulariser import Regulariser
from ...calculus.averages import COORDINATE, Average, MatrixAverage
from ...theory.free_entropy import FreeEntropy, free_entropy, split_coefficient_and_average
from ...theory.stability import replicon_map
from ..algebra.exact import NormalLaw, is_exactly_zero
from ..algebra.levels import BLOCK, ROW_TILTED, TILTED, ReplicaBreakingSymbols, parisi
from ..algebra.objects import (
    FIELD,
    LogDet,
    factor_out_scalars,
    is_equal_up_to_trace_cycles,
    matrix_gradient,
    merge_averages,
    replica_symbol,
)
from ..algebra.step import Expressions, Step, declare_test
from .ansatz import random_cluster_matrices
from .breaking_saddle import collect_terms
from .saddle import values_for_quadratic_model

# A small Delta or y of the checks, and the relative error of the limits there.
SMALL = sp.Rational(1, 10**20)


def breaking_limits_step(
    p: ReplicaBreakingSymbols, zero: Expressions, conditions: Expressions, regulariser: Regulariser
) -> Step:
    """Return derivation step 10: the limits of small Delta and of a small Parisi parameter y.

    Args:
        p: symbols of the order parameters.
        zero: results of step 7, the limit of zero temperature.
        conditions: results of step 8, the saddle-point conditions.
        regulariser: regulariser of the rows.
    """
    phi, used = zero["Phi"], free_entropy(p.s, p.t, regulariser, p.trained, p.loss_depends_on_q)
    small = replicon_map(FreeEntropy(used.expression, used.symbols))
    alike = {small.D: p.Delta, small.D_hat: p.Delta_hat}
    after = {
        "Phi without blocks": free_entropy_without_blocks(phi, p),
        "Phi at y = 0": free_entropy_for_equally_weighted_states(phi, p),
        "Delta_hat at y = 0": condition_for_equally_weighted_states(conditions["Delta_hat"], p),
        "Delta at y = 0": condition_for_equally_weighted_states(conditions["Delta"], p),
        "small Delta_hat": small.channel.xreplace(alike),
        "small Delta": small.prior.xreplace(alike),
    }
    return Step(
        10,
        "Limits",
        {"Phi": phi, "Delta": conditions["Delta"], "Delta_hat": conditions["Delta_hat"]},
        after,
        "Where Delta and its conjugate vanish the replicas of a block are no closer than others, whatever 𝔶: the "
        "replica-symmetric free entropy is left, and small Delta is mapped by the replicon operator. Where 𝔶 vanishes "
        "the states of a block have one weight, whatever their energy: all but Delta solve the replica-symmetric "
        "equations, with q + Delta for the overlap, and Delta is the half squared distance of two copies of the "
        "estimate that share all overlaps, iterated once: a fixed point of the map whose largest one is the "
        "self-overlap loss.",
        "M. Mezard, G. Parisi, M. Virasoro, Spin Glass Theory and Beyond, World Scientific (1987)",
        (
            _check_replica_symmetric_limit(used.expression, p),
            _check_limit_of_small_delta(p),
            _check_limit_of_equal_weights(used.expression, p),
            _check_overlap_gap_of_two_copies(p),
            _check_conditions_at_equal_weights(p),
            _check_conditions_at_small_delta(p),
        ),
    )


def _replace_log_averages(expression: sp.Expr, rule: Callable[[Average, sp.Expr], sp.Expr]) -> sp.Expr:
    """Return an expression with log E exp(y h), as a factor of a product, replaced by rule(E exp(y h), y h)."""
    made = {}
    for term in expression.atoms(sp.Mul):
        logarithms = [a for a in term.args if isinstance(a, sp.log)]
        if len(logarithms) == 1 and isinstance(logarithms[0].args[0], Average):
            average = logarithms[0].args[0]
            made[term] = term / logarithms[0] * rule(average, average.summand.args[0])
    return expression.xreplace(made)


def free_entropy_without_blocks(phi: sp.Expr, p: ReplicaBreakingSymbols) -> sp.Expr:
    """Return the free entropy at Delta = Delta_hat = 0, where replicas of one block overlap no more than others.

    The field that a block shares is then constant, so that log E exp(y h) is y h, with the Parisi parameter y and the
    extremum h of one replica.

    Args:
        phi: free entropy at zero temperature, from step 7.
        p: symbols of the order parameters.
    """
    plain = _replace_log_averages(phi, lambda _, exponent: exponent)
    zero = sp.ZeroMatrix(p.s, p.s)
    gone = plain.xreplace({z: zero for z in (p.Delta, p.Delta_hat, p.Q_Delta)}).doit()
    total: sp.Expr = sp.Integer(0)
    for term in sp.Add.make_args(gone):
        if not term.has(Average):
            total += term
            continue
        coefficient, average = split_coefficient_and_average(term)
        total += coefficient * Average(average.kind, sp.expand(factor_out_scalars(average.summand)))
    return total


def free_entropy_for_equally_weighted_states(phi: sp.Expr, p: ReplicaBreakingSymbols) -> sp.Expr:
    """Return the free entropy at Parisi parameter y = 0, where all states of a block have one weight.

    There the average (1/y) log E exp(y h) of a block is the mean E h, and the difference of log determinants over y, of
    a ridge, is a derivative.

    Args:
        phi: free entropy at zero temperature, from step 7.
        p: symbols of the order parameters.
    """
    total: sp.Expr = sp.Integer(0)
    for term in sp.Add.make_args(_replace_log_averages(phi, lambda average, h: Average(average.kind, h))):
        if not term.has(Average):
            total += term
            continue
        coefficient, average = split_coefficient_and_average(term)
        parts = []
        for part in sp.Add.make_args(sp.expand(average.summand)):
            inner = [a for a in part.atoms(Average) if a.kind in (BLOCK, FIELD)]
            parts.append(part if not inner else _pull_numbers_out_of_average(part, inner[0]))
        determinants = [part for part in parts if part.has(LogDet)]
        others = sp.Add(*[part for part in parts if part not in determinants])
        slope = sp.Add(*[_linear_coefficient_in_parisi_parameter(part, p) for part in determinants])
        inside = factor_out_scalars(_remove_tilt_from_resolvents(sp.expand(others), p).subs(parisi, 0).doit()) + slope
        total += coefficient * Average(average.kind, inside)
    return merge_averages(total)


def _pull_numbers_out_of_average(part: sp.Expr, average: Average) -> sp.Expr:
    """Return a term with numbers and powers of the Parisi parameter in front of its average."""
    number, symbol = average.summand.as_independent(*average.summand.atoms(sp.Symbol) - {parisi}, as_Add=False)
    return part / average * number * Average(average.kind, symbol)


def _linear_coefficient_in_parisi_parameter(part: sp.Expr, p: ReplicaBreakingSymbols) -> sp.Expr:
    """Return the coefficient of the Parisi parameter y in a log determinant over y; zero if y does not occur."""
    (determinant,) = part.atoms(LogDet)
    if not determinant.has(parisi):
        return sp.Integer(0)
    change = factor_out_scalars(sp.Trace(matrix_gradient(determinant, p.Q_Delta, p) * p.Q_Delta))
    return factor_out_scalars(_remove_tilt_from_resolvents(sp.expand(part / determinant * change), p))


def _remove_tilt_from_resolvents(expression: sp.Expr, p: ReplicaBreakingSymbols) -> sp.Expr:
    """Return an expression in which the resolvents are those at Parisi parameter y = 0."""
    return expression.xreplace({(-parisi * p.Q_Delta).doit(): sp.ZeroMatrix(p.s, p.s)}).doit()


def condition_for_equally_weighted_states(value: MatrixExpr, p: ReplicaBreakingSymbols) -> MatrixExpr:
    """Return a saddle-point condition at Parisi parameter y = 0, where all states have one weight.

    Averages over states lose their weights exp(y h); for the resolvents R and R_tilde of a ridge, (R_tilde - R) / y
    becomes R Q_Delta R.

    Args:
        value: right side of the condition.
        p: symbols of the order parameters.

    Raises:
        TypeError: a term that contains y has another form than that of a ridge.
    """
    plain = value.replace(
        lambda a: isinstance(a, MatrixAverage) and a.kind in (TILTED, ROW_TILTED),
        lambda a: MatrixAverage(BLOCK if a.kind == TILTED else FIELD, a.summand),
    )
    R = (p.Lambda + p.G).inv()
    if not plain.has(parisi):
        return plain
    (term,) = [term for term in sp.MatAdd.make_args(plain) if term.has(p.Q_Delta)]
    expected = MatrixAverage(COORDINATE, p.gamma * (p.Lambda + p.G - parisi * p.Q_Delta).inv()) / parisi
    if not collect_terms(term - expected, p).is_ZeroMatrix:
        raise TypeError(f"the limit of {value} at Parisi parameter y -> 0 is known only for a ridge penalty")
    return MatrixAverage(COORDINATE, (p.gamma * R * p.Q_Delta * R).doit())


# --- checks -----------------------------------------------------------------------------------------------------------


@declare_test(
    "replica-symmetric free entropy",
    "the expression that is differentiated to generate solvers, as symbols",
    ("Phi without blocks",),
)
def _check_replica_symmetric_limit(
    _before: Expressions, after: Expressions, used: sp.Expr, p: ReplicaBreakingSymbols
) -> bool:
    return is_equal_up_to_trace_cycles(after["Phi without blocks"], used, p)


def _is_close(first: Any, second: Any) -> bool:
    """Return whether two numbers or matrices agree to 16 digits."""
    gap = sp.Matrix([first - second]) if not isinstance(first, sp.MatrixBase) else first - second
    return all(abs(sp.N(entry, 60)) < 10**4 * SMALL for entry in gap)


@declare_test(
    "free entropy at small Delta",
    "at explicit matrices, s = t = 2, Delta and its conjugate of 1e-20",
    ("Phi without blocks",),
)
def _check_limit_of_small_delta(before: Expressions, after: Expressions, p: ReplicaBreakingSymbols) -> bool:
    phi, own = before["Phi"], random_cluster_matrices("small blocks")
    little = {name: own[name] * SMALL for name in ("Delta", "Delta_hat")}
    symmetric = values_for_quadratic_model(own, phi, replace(p, steps=0))
    return _is_close(values_for_quadratic_model({**own, **little}, phi, p)(phi), symmetric(after["Phi without blocks"]))


@declare_test(
    "free entropy at small 𝔶",
    "at explicit matrices, s = t = 2 and 𝔶 of 1e-20, against the replica-symmetric one at q + Delta",
    ("Phi at y = 0",),
)
def _check_limit_of_equal_weights(
    before: Expressions, after: Expressions, used: sp.Expr, p: ReplicaBreakingSymbols
) -> bool:
    """Return whether the free entropy at Parisi parameter y = 0 is the limit of the one at small y.

    It must also be the replica-symmetric one at the overlap q + Delta within a block and the conjugate q_hat +
    Delta_hat.
    """
    phi, own = before["Phi"], random_cluster_matrices("equal weights")
    found = values_for_quadratic_model({**own, parisi.name: SMALL}, phi, p)(phi)
    whole = {"q": own["q"] + own["Delta"], "q_hat": own["q_hat"] + own["Delta_hat"]}
    symmetric = values_for_quadratic_model({**own, **whole}, phi, replace(p, steps=0))(used)
    limit = values_for_quadratic_model(own, phi, p)(after["Phi at y = 0"])
    return _is_close(found, limit) and _is_close(found, symmetric)


@declare_test(
    "two copies",
    "half the mean squared difference of two fields and of two rows whose laws share q, and Delta beyond it, "
    "s = t = 2, exactly",
    ("Delta_hat at y = 0", "Delta at y = 0"),
)
def _check_overlap_gap_of_two_copies(before: Expressions, after: Expressions, p: ReplicaBreakingSymbols) -> bool:
    """Return whether Delta and Delta_hat at y = 0 are half the mean squared difference of two copies.

    Delta is the excess overlap of replicas in a block, Delta_hat its conjugate, y the Parisi parameter. The copies of a
    row or field g are linear functions of two normal vectors with a common mean.
    """
    at = values_for_quadratic_model(random_cluster_matrices("two copies"), before["Phi"], p)
    for f, name, kind, covariance, number in (
        (p.g, "Delta_hat", "omega", at.values["Delta"], "alpha"),
        (p.w, "Delta", "b", at.values["Q_Delta"], "gamma"),
    ):
        copies = f"{kind}|1", f"{kind}|2"
        law = NormalLaw(copies, sp.zeros(4, 1), sp.diag(covariance, covariance))
        difference = replica_symbol(f, "1") - replica_symbol(f, "2")
        squares = law.mean_of_polynomial(
            difference * difference.T / 2, at.with_added_values(dict.fromkeys(copies, sp.zeros(2, 1)))
        )
        if not is_exactly_zero(at(after[f"{name} at y = 0"]) - at.values[number] * squares):
            return False
    return True


@declare_test(
    "conditions at small 𝔶",
    "at explicit matrices, s = t = 2 and 𝔶 of 1e-20",
    ("Delta_hat at y = 0", "Delta at y = 0"),
)
def _check_conditions_at_equal_weights(before: Expressions, after: Expressions, p: ReplicaBreakingSymbols) -> bool:
    own = {**random_cluster_matrices("conditions in the limit"), parisi.name: SMALL}
    at = values_for_quadratic_model(own, before["Phi"], p)
    return all(_is_close(at(before[name]), at(after[f"{name} at y = 0"])) for name in ("Delta", "Delta_hat"))


@declare_test(
    "conditions at small Delta",
    "their slopes in it at explicit matrices, s = t = 2, Delta and its conjugate of 1e-20",
    ("small Delta_hat", "small Delta"),
)
def _check_conditions_at_small_delta(before: Expressions, after: Expressions, p: ReplicaBreakingSymbols) -> bool:
    own = random_cluster_matrices("conditions in the limit")
    own |= {name: own[name] * SMALL for name in ("Delta", "Delta_hat")}
    letters = {name: sp.Matrix(sp.symbols(f"{name}:2")) for name in ("omega", "b")}  # the variables of derivatives
    at = values_for_quadratic_model(own, before["Phi"], p).with_added_values(letters)
    return all(
        _is_close(at(before[name]) / SMALL, at(after[f"small {name}"]) / SMALL) for name in ("Delta", "Delta_hat")
    )
