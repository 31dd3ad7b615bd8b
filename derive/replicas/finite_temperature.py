"""Step 6: the replica-symmetric free entropy at a finite inverse temperature."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import sympy as sp

from ..averages import CHANNEL, CONTEXTS, COORDINATE, Average, Symbols
from .ansatz import example, ridge_penalty, shared, shifted_penalty, square_loss
from .exact import Law, Source, Values, is_zero
from .objects import FIELD, n
from .step import Expressions, Step, Test

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
            "all potentials of step 4 as functions of n at L = s = t = 1, square loss, differentiated at n = 0, exactly",
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
    return Step(
        6,
        "Free entropy at finite temperature",
        dict(limits),
        {"Phi_beta": value},
        f"The three limits are added. {words} Numbers trained with the weights are O(1) and extremised, too.",
        "arXiv 2402.03902, Appendix C; arXiv 2409.13904",
        tuple(tests),
    )


def _one_by_one(name: str) -> tuple[dict[str, Any], dict[str, Law]]:
    own = example(name, 1)
    values = {**own, **shared(name, [own], 1), "penalty": shifted_penalty, "loss": square_loss}
    values |= {"phi": own["m_hat"], "Kappa": own["q"]}
    covariance = sp.Matrix([[own["q"][0], own["theta"][0]], [own["theta"][0], own["rho_star"][0]]])
    laws = {
        FIELD: Law(("b",), values["B"], values["Q"]),
        CHANNEL: Law(("omega", "Y"), sp.Matrix.vstack(own["m"], own["m_star"]), covariance),
    }
    return values, laws


def _is_slope(symmetric: Expressions, after: Expressions, p: Symbols) -> bool:
    """The rows in the form of a power of one integral, whatever form Phi has; the trace at s = t = 2 as well."""
    values, laws = _one_by_one("slope")
    if "entropic of ridge" in symmetric:
        values["penalty"] = ridge_penalty
    at = Values(values, laws=laws)
    names = [name for name in symmetric if name in ("trace", "entropic", "energetic", "trained")]
    action = sp.Add(*[at(symmetric[name]) for name in names])
    if not is_zero(sp.expand_log(at(after["Phi_beta"]) - action.diff(n).subs(n, 0), force=True)):
        return False
    larger = Values(example("slope of the trace"))
    (trace,) = [a for a in sp.Add.make_args(after["Phi_beta"]) if isinstance(a, Average) and a.kind == CONTEXTS]
    return is_zero(larger(trace) - larger(symmetric["trace"]).diff(n).subs(n, 0))


def _rows_by_quadrature(_before: Expressions, after: Expressions) -> bool:
    """E_h log int dw exp(-beta lambda w^2/2 - G w^2/2 + w (B + Q^(1/2) h)) with no closed form used."""
    (rows,) = [a for a in sp.Add.make_args(after["Phi_beta"]) if isinstance(a, Average) and a.kind == COORDINATE]
    source = Source("quadrature")
    for _ in range(3):
        strength, G, Q = (abs(source.number()) for _ in range(3))
        B, temperature = source.number(), abs(source.number())
        values = {
            "Lambda": sp.Matrix([[strength]]), "G": sp.Matrix([[G]]), "Q": sp.Matrix([[Q]]), "B": sp.Matrix([[B]]),
            "beta": temperature, "s": sp.Integer(1), "penalty": ridge_penalty, "w": sp.zeros(1, 1), "b": sp.zeros(1, 1),
        }  # fmt: skip
        exact = Values(values, laws={FIELD: Law(("b",), values["B"], values["Q"])})(rows)
        with mp.workdps(DIGITS + 15):
            closed = mp.mpf(sp.N(exact, DIGITS + 10)._to_mpmath(mp.mp.prec))
            stiffness = _number(temperature * strength + G)
            width, centre = mp.sqrt(1 / stiffness), _number(B)

            def inner(h: Any, stiffness: Any = stiffness, width: Any = width) -> Any:
                peak = h / stiffness
                return h * peak / 2 + mp.log(
                    _trapezoid(
                        lambda z: mp.exp(
                            -((peak + width * z) ** 2) * stiffness / 2 + (peak + width * z) * h - h * peak / 2
                        )
                    )
                    * width
                )

            root = mp.sqrt(_number(Q))
            average = _trapezoid(lambda z: mp.exp(-z * z / 2) * inner(centre + root * z)) / mp.sqrt(2 * mp.pi)
            if abs(average - closed) > mp.mpf(10) ** (-DIGITS) * (1 + abs(closed)):
                return False
    return True


def _number(value: sp.Rational) -> Any:
    return mp.mpf(int(value.p)) / int(value.q)


def _trapezoid(function: Any) -> Any:
    """Over the line in units of a normal density's width: with a step of 1/2 it errs by exp(-2 (2 pi)^2)."""
    return mp.fsum(function(mp.mpf(k) / 2) for k in range(-26, 27)) / 2
