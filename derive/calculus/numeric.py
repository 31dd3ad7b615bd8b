"""Values of losses and laws in multiple precision: every subexpression once, softmax without its quotients; and from
them, whether an expression vanishes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import mpmath
import sympy as sp

from .functions import Sigmoid, SoftmaxEntry, Softplus

_FUNCTIONS = {
    sp.exp: "exp", sp.log: "log", sp.tanh: "tanh", sp.cosh: "cosh", sp.sinh: "sinh", sp.sin: "sin", sp.cos: "cos",
    sp.atan: "atan", sp.erf: "erf", sp.erfc: "erfc", sp.Abs: "fabs", sp.sign: "sign",
}  # fmt: skip
_LARGEST = 64  # logarithm to base 2 of the arguments beyond which functions take their limits
_LIMITS = {
    "exp": (0, "inf"), "expm1": (-1, "inf"), "cosh": ("inf", "inf"), "sinh": ("-inf", "inf"), "tanh": (-1, 1),
    "erf": (-1, 1), "erfc": (2, 0), "sin": ("nan", "nan"), "cos": ("nan", "nan"), "tan": ("nan", "nan"),
}  # fmt: skip
_DIGITS = 50
_POINTS = 5  # at which an expression must vanish


class BoundedFunctions:
    """mpmath's functions, but for arguments that would take for ever: e^(e^(10^6)) has 10^434294 digits.

    There they take their limits at infinity, nan where they have none.
    """

    def __getattr__(self, name: str) -> Any:
        function = getattr(mpmath.mp, name)
        return self._bounded(function, *_LIMITS[name]) if name in _LIMITS else function

    @staticmethod
    def _bounded(function: Callable[[Any], Any], below: Any, above: Any) -> Callable[[Any], Any]:
        def value(z: Any) -> Any:
            if mpmath.mag(z) > _LARGEST:
                return mpmath.mpf(above if mpmath.re(z) > 0 else below)
            return function(z)

        return value

    def power(self, base: Any, exponent: Any) -> Any:
        """Return base^exponent."""
        logarithm = exponent * mpmath.log(base)
        return self.exp(logarithm) if mpmath.mag(logarithm) > _LARGEST else base**exponent


_BOUNDED = BoundedFunctions()


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
        found = of(e.base) ** int(e.exp) if e.exp.is_Integer else _BOUNDED.power(of(e.base), of(e.exp))
    elif isinstance(e, SoftmaxEntry):
        logits = [of(z) for z in e.args[1:]]
        weights = [_BOUNDED.exp(z - max(logits)) for z in logits]
        found = weights[int(e.args[0])] / mpmath.fsum(weights)
    elif isinstance(e, Sigmoid):
        found = 1 / (1 + _BOUNDED.exp(-of(e.args[0])))
    elif isinstance(e, Softplus):
        found = mpmath.log(1 + _BOUNDED.exp(of(e.args[0])))
    elif e.func in _FUNCTIONS:
        found = getattr(_BOUNDED, _FUNCTIONS[e.func])(of(e.args[0]))
    else:  # cases and steps: decided in exact numbers
        found = mpmath.mpmathify(e.xreplace(dict(at)).doit().evalf(digits))
    known[e] = found
    return found


def counterexample(expression: sp.Expr) -> tuple[dict[sp.Symbol, sp.Expr], Any] | None:
    """Return a point at which an expression does not vanish, and its value there; None where it does.

    Points are random and values are of 50 digits: the time does not depend on how an identity would be proved. Points
    at which the expression has no finite value do not count; if it has none anywhere, the last one is returned.
    """
    if expression == 0:
        return None
    random, symbols = Random("vanishes"), sorted(expression.free_symbols, key=str)
    labels = [s for s in symbols if s.is_integer]
    decided, last = False, None
    for n in range(max(_POINTS, 3 ** min(len(labels), 4)) if symbols else 1):
        at: dict[sp.Symbol, sp.Expr] = {s: _drawn(s, random) for s in symbols}
        at |= {s: sp.Integer(n // 3**i % 3) for i, s in enumerate(labels)}
        known: dict[Any, Any] = {}
        with mpmath.workdps(_DIGITS):
            try:
                value = _value(expression, at, known, _DIGITS)
            except (ArithmeticError, ValueError, TypeError):
                value = mpmath.nan
            if not mpmath.isfinite(value):
                last = at, value
            elif not _is_rounding(expression, known):
                return at, value
            else:
                decided = True
    return None if decided else last


def vanishes(expression: sp.Expr) -> bool:
    """Whether an expression is zero at random points, to 50 digits."""
    return counterexample(expression) is None


def _drawn(symbol: sp.Symbol, random: Random) -> sp.Expr:
    """Return an exact number of moderate size that a symbol may stand for."""
    size = sp.Rational(random.randint(1, 2 * 10**4), 10**4)
    return size if symbol.is_nonnegative else size * random.choice((-1, 1))


def _is_rounding(e: sp.Expr, known: Mapping[Any, Any]) -> bool:
    """Whether a value is zero but for rounding: of a sum, relative to its largest term."""
    if e.is_Atom:
        return known[e] == 0
    if e.is_Mul:
        return any(_is_rounding(a, known) for a in e.args)
    if e.is_Pow and e.exp.is_positive:
        return _is_rounding(e.base, known)
    size = max(abs(known[a]) for a in e.args) if e.is_Add else 1
    return bool(abs(known[e]) <= mpmath.mpf(10) ** (-_DIGITS * 3 // 5) * size)
