"""Step 6: the replica-symmetric free entropy at a finite inverse temperature."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import mpmath as mp
import sympy as sp

from ...calculus.averages import CONTEXTS, COORDINATE, Average
from ...calculus.numeric import rational_to_mpf
from ..algebra.exact import ExactValues, RandomRationals, is_exactly_zero
from ..algebra.levels import ReplicaAnsatz
from ..algebra.objects import n
from ..algebra.step import Expressions, Step, declare_test
from .ansatz import (
    field_laws,
    penalty_with_linear_term,
    random_cluster_matrices,
    random_common_values,
    ridge_penalty,
    square_loss,
)

DIGITS = (30, 10, 5)  # digits of a quadrature, by number of steps of breaking
# Numbers of replicas in blocks, which need not be integers at n = 0.
_SIZES = ((), (sp.Rational(2, 3),), (sp.Rational(1, 2), sp.Rational(2, 3)))


def finite_temperature_step(ansatz: ReplicaAnsatz, symmetric: Expressions, limits: Expressions) -> Step:
    """Return derivation step 6: Phi at a finite temperature, as the sum of the three potentials.

    Args:
        ansatz: grouping of the replicas into blocks.
        symmetric: results of step 4, the action under the ansatz.
        limits: results of step 5, the limit of no replicas.
    """
    ridge = "entropic of ridge" in limits
    rows = limits["entropic of ridge" if ridge else "entropic"]
    value = limits["trace"] + rows + limits["energetic"]
    p = ansatz.symbols
    if p.trained:
        value = value + limits["trained"]
    words = (
        "For ridge the integral over a row is normal and done in closed form."
        if ridge
        else "The integral over a row stays, averaged over its field; for ridge it is a closed form."
    )
    if p.trained:
        words += " The numbers trained with the weights are extremised, too."
    return Step(
        6,
        "Free entropy at finite temperature",
        dict(limits),
        {"Phi_beta": value},
        f"The three limits are added. {words}",
        "arXiv 2402.03902, Appendix C; arXiv 2409.13904",
        (
            _check_derivative_in_replica_number(symmetric, ansatz),
            _check_rows_by_quadrature(ansatz, digits=DIGITS[ansatz.steps]),
        ),
    )


@cache
def _derivative_at_zero_replicas(action: sp.Expr, ridge: bool, ansatz: ReplicaAnsatz) -> sp.Expr:
    return _random_scalar_values(ridge, ansatz)(action).diff(n).subs(n, 0)


def _random_scalar_values(ridge: bool, ansatz: ReplicaAnsatz) -> ExactValues:
    own = random_cluster_matrices("slope", 1)
    values = {**own, **random_common_values("slope", [own], 1), **ansatz.block_sizes(_SIZES[ansatz.steps])}
    values["penalty"] = ridge_penalty if ridge else penalty_with_linear_term
    values |= {"loss": square_loss, "phi": own["m_hat"], "Kappa": own["q"]}
    return ExactValues(values, laws=field_laws(ansatz))


@declare_test(
    "slope of the replicated action",
    "all potentials of step 4 as functions of n at L = s = t = 1, square loss, differentiated at n = 0",
)
def _check_derivative_in_replica_number(
    _before: Expressions, after: Expressions, symmetric: Expressions, ansatz: ReplicaAnsatz
) -> bool:
    """Return whether Phi at a finite temperature is the derivative of the replicated action at n = 0 replicas.

    In the action the rows enter as a power of one integral, also where Phi has a closed form; the trace is tested at s
    = t = 2 as well.
    """
    ridge = "entropic of ridge" in symmetric
    at = _random_scalar_values(ridge, ansatz)
    action = sp.Add(*[symmetric[name] for name in symmetric if name in ("trace", "entropic", "energetic", "trained")])
    if not is_exactly_zero(
        sp.expand_log(at(after["Phi_beta"]) - _derivative_at_zero_replicas(action, ridge, ansatz), force=True)
    ):
        return False
    larger = ExactValues({**random_cluster_matrices("slope of the trace"), **ansatz.block_sizes(_SIZES[ansatz.steps])})
    (trace,) = [a for a in sp.Add.make_args(after["Phi_beta"]) if isinstance(a, Average) and a.kind == CONTEXTS]
    return is_exactly_zero(larger(trace) - larger(symmetric["trace"]).diff(n).subs(n, 0))


@declare_test(
    "rows by quadrature",
    "E log of the integral over a row, by the trapezoid rule to {digits} digits, L = s = t = 1",
)
def _check_rows_by_quadrature(_before: Expressions, after: Expressions, ansatz: ReplicaAnsatz) -> bool:
    (rows,) = [a for a in sp.Add.make_args(after["Phi_beta"]) if isinstance(a, Average) and a.kind == COORDINATE]
    digits = DIGITS[ansatz.steps]
    fields = [level.row_field for level in ansatz.levels]
    for numbers, average in _row_averages_by_quadrature(ansatz, digits):
        values = {name: sp.Matrix([[value]]) if name != "beta" else value for name, value in numbers}
        zeros = {z.name: sp.zeros(1, 1) for z in (ansatz.symbols.w, ansatz.symbols.b, *fields)}
        values |= {"s": sp.Integer(1), "penalty": ridge_penalty, **ansatz.block_sizes(_SIZES[ansatz.steps]), **zeros}
        exact = ExactValues(values, laws=field_laws(ansatz))(rows)
        with mp.workdps(digits + 15):
            closed = mp.mpf(sp.N(exact, digits + 10)._to_mpmath(mp.mp.prec))
            if abs(average - closed) > mp.mpf(10) ** (-digits) * (1 + abs(closed)):
                return False
    return True


@cache
def _row_averages_by_quadrature(
    ansatz: ReplicaAnsatz, digits: int
) -> list[tuple[tuple[tuple[str, sp.Rational], ...], Any]]:
    """Return averages over a normal field of the log integral over a row, at random rational parameters.

    They are E_h log int dw exp(-beta lambda w^2/2 - G w^2/2 + w (B + Q^(1/2) h)), by the trapezoid rule. With blocks,
    (1/k) log E of the k-th power of the integral over a block's field replaces its logarithm. No closed form is used.
    """
    source, results = RandomRationals("quadrature"), []
    inner = [level.composite.name for level in ansatz.levels[1:]]
    for _ in range(1 if inner else 3):
        numbers = {name: abs(source.draw_number()) for name in ("Lambda", "G", "Q", "beta")} | {
            "B": source.draw_number()
        }
        spreads = {name: abs(source.draw_number()) / 20 for name in inner}
        with mp.workdps(digits + 15):
            at = {name: rational_to_mpf(value) for name, value in numbers.items()}
            sizes = zip(map(rational_to_mpf, _SIZES[ansatz.steps]), map(rational_to_mpf, spreads.values()), strict=True)
            results.append(
                (
                    tuple({**numbers, **spreads}.items()),
                    _row_average_by_quadrature(**at, blocks=[*sizes], digits=digits),
                )
            )
    return results


def _row_average_by_quadrature(
    Lambda: Any, G: Any, Q: Any, beta: Any, B: Any, blocks: Sequence[tuple[Any, Any]], digits: int
) -> Any:
    """Return the averaged log integral over a row at given parameters, by the trapezoid rule.

    `blocks` are pairs (number of replicas, variance of the field), the largest first.
    """
    stiffness = beta * Lambda + G
    width, root = mp.sqrt(1 / stiffness), mp.sqrt(Q)

    def log_integral(h: Any) -> Any:
        peak = h / stiffness

        def _normal_density(z: Any) -> Any:
            w = peak + width * z
            return mp.exp(w * h - beta * Lambda * w**2 / 2 - G * w**2 / 2 - h * peak / 2)

        return h * peak / 2 + mp.log(width * _trapezoid_integral(_normal_density, digits))

    def log_block_average(h: Any, level: int = 0) -> Any:
        """Return the log integral over a row, averaged over its blocks' fields: (1/k) log E of the k-th power.

        Args:
            h: field of the row.
            level: level of the block, 0 for the largest.
        """
        if level == len(blocks):
            return log_integral(h)
        size, inner = blocks[level][0], mp.sqrt(blocks[level][1])
        power = _trapezoid_integral(
            lambda z: mp.exp(size * log_block_average(h + inner * z, level + 1) - z * z / 2), digits
        )
        return mp.log(power / mp.sqrt(2 * mp.pi)) / size

    return _trapezoid_integral(lambda z: mp.exp(-z * z / 2) * log_block_average(B + root * z), digits) / mp.sqrt(
        2 * mp.pi
    )


def _trapezoid_integral(function: Any, digits: int) -> Any:
    """Return the integral of a function over the real line, in units of a normal density's width.

    The error of the trapezoid rule is exp(-2 (pi / step)^2).
    """
    step, most = {30: (mp.mpf(1) / 2, 26), 10: (mp.mpf(4) / 5, 12), 5: (mp.mpf(1), 8)}[digits]
    return mp.fsum(function(step * k) for k in range(-most, most + 1)) * step
