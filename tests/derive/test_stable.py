"""Losses as authors write them: finite in doubles, with their slopes, wherever they are finite; against many digits."""

from __future__ import annotations

import math
from typing import Any

import mpmath as mp
import pytest
import sympy as sp
from sympy import Rational, cosh, erf, erfc, exp, log, sinh, sqrt, tanh

import saddleforge as sf
from saddleforge.derive.calculus.chain import chain_rule_derivatives
from saddleforge.derive.calculus.functions import (
    GumbelTerm,
    LogGumbelCdf,
    LogNormalCdf,
    LogSoftplus,
    LogSumExp,
    Sigmoid,
    SoftmaxEntry,
    Softplus,
)
from saddleforge.derive.calculus.numeric import evaluate_expression_at
from saddleforge.derive.calculus.stable_functions import rewrite_without_overflow
from saddleforge.derive.emit.kernel import make_kernel
from saddleforge.derive.emit.printers import interval, numba
from saddleforge.derive.emit.printers.mpmath import evaluate_kernel

x, y = sp.symbols("x y", real=True)
z = x * y
STEEP = 150
LOSSES = {
    "complementary log-log": -log(1 - exp(-exp(z))),
    "its both sides": -(y**2) * log(1 - exp(-exp(x))) + exp(x),
    "Poisson": exp(x) - y**2 * x,
    "Poisson of a softplus": log(1 + exp(x)) - y**2 * log(log(1 + exp(x))),
    "Gompertz": (y - 3 * exp(-exp(1 - x) / 2)) ** 2,
    "Gumbel": (x - y) + exp(-(x - y)),
    "log sum of three": log(exp(STEEP * x) + exp(STEEP * y) + exp(300)) / STEEP,
    "log sum around zero": log(exp(STEEP * (x - y)) + exp(-STEEP * (x - y)) + 2) / STEEP,
    "exponential family": log(1 + exp(x) + exp(2 * x)) - z,
    "probit": -log((1 + erf(STEEP * z)) / 2) / STEEP**2,
    "probit by erfc": -log(erfc(-z) / 2),
    "probit by its complement": -log(1 - (1 + erf(z)) / 2),
    "probit of both signs": -log(1 - erf(z) ** 2),
    "probit with flipped labels": -log(Rational(1, 10) + Rational(4, 5) * (1 + erf(z)) / 2),
    "censored": -log(erfc((x - y) / sqrt(2))),
    "steep logistic": log(1 + exp(-STEEP * z)) / STEEP,
    "logistic 1": -log(1 / (1 + exp(-STEEP * z))),
    "logistic 2": -log(exp(z) / (1 + exp(z))),
    "logistic 3": log(1 + exp(z)) - z,
    "logistic 4": -log((1 + tanh(z / 2)) / 2),
    "logistic 5": -log(1 - 1 / (1 + exp(z))),
    "logistic 6": -log(exp(z / 2) / (2 * cosh(z / 2))),
    "logistic 7": -log(1 - sf.sigmoid(z)),
    "logistic in base two": log(1 + 2 ** (-z)) / log(2),
    "ordinal": -log(1 / (1 + exp(x - 1)) - 1 / (1 + exp(x + 1))),
    "log cosh": log(2 * cosh(STEEP * (y - x))) / STEEP,
    "product of cosh": log(2 * cosh(x) * 2 * cosh(y - x)),
    "hyperbolic secant": -log(1 / cosh(sp.pi * (x - y) / 2)),
    "shifted exponential": log(2 + (exp(x) - 1)),
    "logarithm of a difference": -log(1 - exp(-(1 + x**2))),
    "Student": 3 * log(1 + (y - x) ** 2 / 2),
    "focal": -((1 - 1 / (1 + exp(-z))) ** 2) * log(1 / (1 + exp(-z))),
    "square of a logistic": (y - 1 / (1 + exp(-STEEP * x))) ** 2,
    "Savage": 1 / (1 + exp(z)) ** 2,
    "softmax by hand": -log(exp(x) / (exp(x) + exp(2 * x) + exp(-y))),
    "square of a softmax by hand": (y - exp(20 * x) / (exp(20 * x) + exp(-x) + 3)) ** 2,
    "square of a secant": (y - 1 / cosh(5 * x)) ** 2,
    "square of a tanh by hand": (y - sinh(x) / cosh(x)) ** 2,
    "log softmax": -log(sf.softmax([[x, 2 * x, y]])[0]),
    "mixture": -log(exp(-((x - y) ** 2) / 2) / 2 + exp(-((x + y) ** 2) / 2) / 2),
    "inverse hyperbolic sine": sp.asinh(z) ** 2,
}
POINTS = [
    (sp.Rational(a), sp.Rational(b))
    for a in (-(10**8), -300.5, -30.25, -2.5, -0.0078125, 0.3125, 4.5, 41.0, 750.0, 10**8)
    for b in (0.6875, -1.3125)
]
ORDERS = ("value", "slope", "curvature")


class Doubles:
    """Python's mathematics with the infinities of compiled code in place of exceptions."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(math, name)
        if not callable(function):
            return function

        def of(*arguments: float) -> float:
            try:
                return function(*arguments)
            except OverflowError:
                return math.inf
            except ValueError:
                return -math.inf if name == "log" and arguments[0] == 0 else math.nan

        return of


def exact(expression: sp.Expr, at: dict[sp.Symbol, sp.Expr]) -> Any:
    """The value in as many digits as make no difference; None where it is no finite double, or takes too many."""
    last = mp.nan
    for digits in (60, 200, 1000):
        try:
            value = evaluate_expression_at(expression, at, digits)
        except ZeroDivisionError:
            value = mp.nan
        if mp.isfinite(value) and abs(value - last) <= mp.mpf(10) ** -40 * (abs(value) + mp.mpf(10) ** -60):
            return value if abs(value) < 1e300 else None
        last = value
    return None


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_finite_wherever_they_have_a_value(name, loops, monkeypatch):
    """Printed for doubles, mpmath and intervals, with two derivatives."""
    loss = LOSSES[name]
    stages = chain_rule_derivatives(rewrite_without_overflow(loss), [x])
    results = dict(zip(ORDERS, (stages.value, stages.gradient[0], stages.hessian[0, 0]), strict=True))
    kernel, raw = make_kernel(results, stages.definitions), [sp.diff(loss, x, order) for order in range(3)]
    monkeypatch.setitem(loops["intervals"].exp.__globals__, "math", Doubles())
    space: dict[str, Any] = {**loops, "math": Doubles()}
    for called, body in (
        ("doubles", numba.kernel_body_lines(kernel)),
        ("enclosures", interval.kernel_body_lines(kernel)),
    ):
        exec(f"def {called}(x, y):\n    " + "\n    ".join(body) + f"\n    return {', '.join(ORDERS)}\n", space)
    compared = 0
    for a, b in POINTS:
        expected = [exact(each, {x: a, y: b}) for each in raw]
        found = space["doubles"](float(a), float(b))
        bounds = space["enclosures"]((float(a),) * 2, (float(b),) * 2)
        with mp.workdps(80):
            many = evaluate_kernel(kernel, {"x": mp.mpf(float(a)), "y": mp.mpf(float(b))})
            for order, value, double, (low, high) in zip(ORDERS, expected, found, bounds, strict=True):
                if value is not None:
                    compared += 1
                    assert abs(double - value) <= 1e-11 * (1 + abs(value)), (order, a, b, double, value)
                    assert abs(many[order] - value) <= 1e-30 * (1 + abs(value)), (order, a, b)
                    assert low - mp.mpf(10) ** -60 <= value <= high + mp.mpf(10) ** -60, (order, a, b, low, high, value)
    assert compared >= len(POINTS)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (log(1 + exp(x)), Softplus(x)),
        (-log(erfc(-x / sqrt(2)) / 2), -LogNormalCdf(x)),
        (log(1 - exp(-exp(x))), LogGumbelCdf(x)),
        (log(log(1 + exp(x))), LogSoftplus(x)),
        (log(exp(x) + exp(y) + 1), LogSumExp(0, x, y)),
        (exp(x) / (1 + exp(x)), Sigmoid(x)),
        (exp(y) / (exp(x) + exp(y) + 1), SoftmaxEntry(2, 0, x, y)),
        (exp(2 * x - exp(x)), GumbelTerm(2, x)),
        (log(1 + x**2), log(1 + x**2)),
        (log(exp(x) - exp(y)), log(exp(x) - exp(y))),
        (sp.Abs(x) * y**2, sp.Abs(x) * y**2),
    ],
    ids=str,
)
def test_unstable_expressions_are_rewritten_without_overflow(expression, expected):
    assert rewrite_without_overflow(expression) == expected


def test_logarithms_are_expanded_only_over_factors_of_known_sign():
    """Factors of unknown sign stay under one logarithm, which is complex where their product is negative."""
    assert rewrite_without_overflow(log(y * exp(x))) == x + log(y)
    assert rewrite_without_overflow(log(-y / (1 + exp(x)))) == log(-y) - Softplus(x)
