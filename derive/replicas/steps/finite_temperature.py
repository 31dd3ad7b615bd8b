"""Step 6: the replica-symmetric free entropy at a finite inverse temperature."""

from __future__ import annotations

from functools import cache
from typing import Any

import mpmath as mp
import sympy as sp

from ...calculus.averages import CHANNEL, CONTEXTS, COORDINATE, Average, Symbols
from ..algebra.exact import Law, Source, Values, is_zero
from ..algebra.numeric import rational
from ..algebra.objects import FIELD, n
from ..algebra.step import Expressions, Step, Test
from .ansatz import example, ridge_penalty, shared, shifted_penalty, square_loss

DIGITS = 30


def step(p: Symbols, symmetric: Expressions, limits: Expressions) -> Step:
    """Phi at inverse temperature beta: trace + entropic + alpha energetic, extremised."""
    ridge = "entropic of ridge" in limits
    rows = limits["entropic of ridge" if ridge else "entropic"]
    value = limits["trace"] + rows + limits["energetic"]
    if p.trained:
        value = value + limits["trained"]
    tests = [
        Test(
            "slope of the replicated action",
            "all potentials of step 4 as functions of n at L = s = t = 1, square loss, differentiated at n = 0",
            lambda _before, after: _is_slope(symmetric, after, p),
        ),
        Test(
            "rows by quadrature",
            f"E log of the integral over a row, by the trapezoid rule to {DIGITS} digits, L = s = t = 1",
            _rows_by_quadrature,
        ),
    ]
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
        tuple(tests),
    )


@cache
def _slope_at_zero(action: sp.Expr, ridge: bool) -> sp.Expr:
    values, laws = _one_by_one("slope", ridge)
    return Values(values, laws=laws)(action).diff(n).subs(n, 0)


def _one_by_one(name: str, ridge: bool) -> tuple[dict[str, Any], dict[str, Law]]:
    own = example(name, 1)
    values = {**own, **shared(name, [own], 1), "loss": square_loss}
    values["penalty"] = ridge_penalty if ridge else shifted_penalty
    values |= {"phi": own["m_hat"], "Kappa": own["q"]}
    covariance = sp.Matrix([[own["q"][0], own["theta"][0]], [own["theta"][0], own["rho_star"][0]]])
    laws = {
        FIELD: Law(("b",), values["B"], values["Q"]),
        CHANNEL: Law(("omega", "Y"), sp.Matrix.vstack(own["m"], own["m_star"]), covariance),
    }
    return values, laws


def _is_slope(symmetric: Expressions, after: Expressions, p: Symbols) -> bool:
    """The rows in the form of a power of one integral, whatever form Phi has; the trace at s = t = 2 as well."""
    values, laws = _one_by_one("slope", ridge="entropic of ridge" in symmetric)
    at = Values(values, laws=laws)
    action = sp.Add(*[symmetric[name] for name in symmetric if name in ("trace", "entropic", "energetic", "trained")])
    if not is_zero(
        sp.expand_log(at(after["Phi_beta"]) - _slope_at_zero(action, "entropic of ridge" in symmetric), force=True)
    ):
        return False
    larger = Values(example("slope of the trace"))
    (trace,) = [a for a in sp.Add.make_args(after["Phi_beta"]) if isinstance(a, Average) and a.kind == CONTEXTS]
    return is_zero(larger(trace) - larger(symmetric["trace"]).diff(n).subs(n, 0))


def _rows_by_quadrature(_before: Expressions, after: Expressions) -> bool:
    (rows,) = [a for a in sp.Add.make_args(after["Phi_beta"]) if isinstance(a, Average) and a.kind == COORDINATE]
    for numbers, average in _quadratures():
        values = {name: sp.Matrix([[value]]) if name != "beta" else value for name, value in numbers.items()}
        values |= {"s": sp.Integer(1), "penalty": ridge_penalty, "w": sp.zeros(1, 1), "b": sp.zeros(1, 1)}
        exact = Values(values, laws={FIELD: Law(("b",), values["B"], values["Q"])})(rows)
        with mp.workdps(DIGITS + 15):
            closed = mp.mpf(sp.N(exact, DIGITS + 10)._to_mpmath(mp.mp.prec))
            if abs(average - closed) > mp.mpf(10) ** (-DIGITS) * (1 + abs(closed)):
                return False
    return True


@cache
def _quadratures() -> list[tuple[dict[str, sp.Rational], Any]]:
    """E_h log int dw exp(-beta lambda w^2/2 - G w^2/2 + w (B + Q^(1/2) h)) at random rationals: no closed form used."""
    source, results = Source("quadrature"), []
    for _ in range(3):
        numbers = {name: abs(source.number()) for name in ("Lambda", "G", "Q", "beta")} | {"B": source.number()}
        with mp.workdps(DIGITS + 15):
            at = {name: rational(value) for name, value in numbers.items()}
            results.append((numbers, _row_average(**at)))
    return results


def _row_average(Lambda: Any, G: Any, Q: Any, beta: Any, B: Any) -> Any:
    stiffness = beta * Lambda + G
    width, root = mp.sqrt(1 / stiffness), mp.sqrt(Q)

    def log_integral(h: Any) -> Any:
        peak = h / stiffness

        def density(z: Any) -> Any:
            w = peak + width * z
            return mp.exp(w * h - beta * Lambda * w**2 / 2 - G * w**2 / 2 - h * peak / 2)

        return h * peak / 2 + mp.log(width * _trapezoid(density))

    return _trapezoid(lambda z: mp.exp(-z * z / 2) * log_integral(B + root * z)) / mp.sqrt(2 * mp.pi)


def _trapezoid(function: Any) -> Any:
    """Over the line in units of a normal density's width: with a step of 1/2 it errs by exp(-2 (2 pi)^2)."""
    return mp.fsum(function(mp.mpf(k) / 2) for k in range(-26, 27)) / 2
