"""Values of losses and laws in multiple precision: every subexpression once, softmax without its quotients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mpmath
import sympy as sp

from ...calculus.functions import Sigmoid, SoftmaxEntry, Softplus

_FUNCTIONS = {
    sp.exp: "exp", sp.log: "log", sp.tanh: "tanh", sp.cosh: "cosh", sp.sinh: "sinh", sp.sin: "sin", sp.cos: "cos",
    sp.atan: "atan", sp.erf: "erf", sp.erfc: "erfc", sp.Abs: "fabs", sp.sign: "sign",
}  # fmt: skip


def rational(value: sp.Rational) -> Any:
    """An exact number as one of mpmath."""
    return mpmath.mpf(int(value.p)) / int(value.q)


def value_at(expression: Any, at: Mapping[sp.Symbol, Any], digits: int) -> Any:
    """The value at exact numbers, as a number of mpmath."""
    with mpmath.workdps(digits):
        return _value(sp.sympify(expression), at, {}, digits)


def _value(e: Any, at: Mapping[sp.Symbol, Any], known: dict[Any, Any], digits: int) -> Any:
    if e in known:
        return known[e]

    def of(inner: Any) -> Any:
        return _value(inner, at, known, digits)

    if e.is_Symbol and e in at:
        found = of(sp.sympify(at[e]))
    elif e.is_Rational:
        found = rational(e)
    elif e.is_Add:
        found = mpmath.fsum(of(a) for a in e.args)
    elif e.is_Mul:
        found = mpmath.fprod(of(a) for a in e.args)
    elif e.is_Pow:
        found = of(e.base) ** (int(e.exp) if e.exp.is_Integer else of(e.exp))
    elif isinstance(e, SoftmaxEntry):
        logits = [of(z) for z in e.args[1:]]
        weights = [mpmath.exp(z - max(logits)) for z in logits]
        found = weights[int(e.args[0])] / mpmath.fsum(weights)
    elif isinstance(e, Sigmoid):
        found = 1 / (1 + mpmath.exp(-of(e.args[0])))
    elif isinstance(e, Softplus):
        found = mpmath.log(1 + mpmath.exp(of(e.args[0])))
    elif e.func in _FUNCTIONS:
        found = getattr(mpmath, _FUNCTIONS[e.func])(of(e.args[0]))
    else:  # cases and steps: decided in exact numbers
        found = mpmath.mpmathify(e.xreplace(dict(at)).doit().evalf(digits))
    known[e] = found
    return found
