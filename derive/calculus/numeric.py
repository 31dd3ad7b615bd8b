"""Values of losses and laws in multiple precision, and tests of whether an expression vanishes.

Every subexpression is evaluated once, softmax without its quotients.
"""

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
_LIMITS = {
    "exp": (0, "inf"), "expm1": (-1, "inf"), "cosh": ("inf", "inf"), "sinh": ("-inf", "inf"), "tanh": (-1, 1),
    "erf": (-1, 1), "erfc": (2, 0), "sin": ("nan", "nan"), "cos": ("nan", "nan"), "tan": ("nan", "nan"),
}  # fmt: skip
_DIGITS = 50  # decimal digits of the tests


class OverflowSafeFunctions:
    """The functions of mpmath, with their limits at infinity for arguments that are too large to evaluate.

    A function without a limit gives nan. In mpmath e^(e^(10^6)) would not terminate.

    Args:
        max_log2: logarithm to base 2 of the largest argument that is evaluated.
    """

    def __init__(self, max_log2: int = 64) -> None:
        self.max_log2 = max_log2

    def __getattr__(self, name: str) -> Any:
        function = getattr(mpmath.mp, name)
        return self._add_limits_at_large_arguments(function, *_LIMITS[name]) if name in _LIMITS else function

    def _add_limits_at_large_arguments(
        self, function: Callable[[Any], Any], below: Any, above: Any
    ) -> Callable[[Any], Any]:
        """Return an mpmath function extended by its limits at infinity, for arguments too large to be evaluated."""

        def function_or_limit(z: Any) -> Any:
            if mpmath.mag(z) > self.max_log2:
                return mpmath.mpf(above if mpmath.re(z) > 0 else below)
            return function(z)

        return function_or_limit

    def power(self, base: Any, exponent: Any) -> Any:
        """Return base^exponent, or its limit zero or infinity if the result is too extreme to evaluate.

        Args:
            base: an mpmath number.
            exponent: an mpmath number.
        """
        logarithm = exponent * mpmath.log(base)
        return self.exp(logarithm) if mpmath.mag(logarithm) > self.max_log2 else base**exponent


_BOUNDED = OverflowSafeFunctions()


def rational_to_mpf(value: sp.Rational) -> Any:
    """Return a rational number as an mpmath number."""
    return mpmath.mpf(int(value.p)) / int(value.q)


def evaluate_expression_at(expression: Any, at: Mapping[sp.Symbol, Any], digits: int) -> Any:
    """Return the value of an expression at given values of its symbols, as an mpmath number.

    Args:
        expression: an expression.
        at: symbol -> exact value.
        digits: decimal digits of the arithmetic.
    """
    with mpmath.workdps(digits):
        return _evaluate_subexpression(sp.sympify(expression), at, {}, digits)


def _evaluate_subexpression(e: Any, at: Mapping[sp.Symbol, Any], known: dict[Any, Any], digits: int) -> Any:
    """Return the value of a subexpression, from `known` if it was evaluated before."""
    if e in known:
        return known[e]

    def value_of_subexpression(inner: Any) -> Any:
        return _evaluate_subexpression(inner, at, known, digits)

    if e.is_Symbol and e in at:
        found = value_of_subexpression(sp.sympify(at[e]))
    elif e.is_Rational:
        found = rational_to_mpf(e)
    elif e.is_Add:
        found = mpmath.fsum(value_of_subexpression(a) for a in e.args)
    elif e.is_Mul:
        found = mpmath.fprod(value_of_subexpression(a) for a in e.args)
    elif e.is_Pow:
        found = (
            value_of_subexpression(e.base) ** int(e.exp)
            if e.exp.is_Integer
            else _BOUNDED.power(value_of_subexpression(e.base), value_of_subexpression(e.exp))
        )
    elif isinstance(e, SoftmaxEntry):
        logits = [value_of_subexpression(z) for z in e.args[1:]]
        weights = [_BOUNDED.exp(z - max(logits)) for z in logits]
        found = weights[int(e.args[0])] / mpmath.fsum(weights)
    elif isinstance(e, Sigmoid):
        found = 1 / (1 + _BOUNDED.exp(-value_of_subexpression(e.args[0])))
    elif isinstance(e, Softplus):
        found = mpmath.log(1 + _BOUNDED.exp(value_of_subexpression(e.args[0])))
    elif e.func in _FUNCTIONS:
        found = getattr(_BOUNDED, _FUNCTIONS[e.func])(value_of_subexpression(e.args[0]))
    else:  # cases and steps: decided in exact numbers
        found = mpmath.mpmathify(e.xreplace(dict(at)).doit().evalf(digits))
    known[e] = found
    return found


def find_nonzero_point(expression: sp.Expr, points: int = 5) -> tuple[dict[sp.Symbol, sp.Expr], Any] | None:
    """Return a random point at which an expression is not zero, with its value; None if it is zero at all points.

    Values are computed to 50 digits. Points at which the expression has no finite value do not count; if it has a
    finite value at no point, the last point is returned with that value.

    Args:
        expression: an expression of real symbols.
        points: smallest number of random points.

    Returns:
        the point and the value; None if the expression vanishes at all points.
    """
    if expression == 0:
        return None
    random, symbols = Random("vanishes"), sorted(expression.free_symbols, key=str)
    labels = [s for s in symbols if s.is_integer]
    decided, last = False, None
    for n in range(max(points, 3 ** min(len(labels), 4)) if symbols else 1):
        at: dict[sp.Symbol, sp.Expr] = {s: _random_symbol_value(s, random) for s in symbols}
        at |= {s: sp.Integer(n // 3**i % 3) for i, s in enumerate(labels)}
        known: dict[Any, Any] = {}
        with mpmath.workdps(_DIGITS):
            try:
                value = _evaluate_subexpression(expression, at, known, _DIGITS)
            except (ArithmeticError, ValueError, TypeError):
                value = mpmath.nan
            if not mpmath.isfinite(value):
                last = at, value
            elif not _is_zero_to_rounding(expression, known):
                return at, value
            else:
                decided = True
    return None if decided else last


def is_identically_zero(expression: sp.Expr) -> bool:
    """Return whether an expression is identically zero, tested at random points to 50 digits."""
    return find_nonzero_point(expression) is None


def _random_symbol_value(symbol: sp.Symbol, random: Random) -> sp.Expr:
    """Return a random rational value of order one for a symbol, positive if the symbol is non-negative."""
    size = sp.Rational(random.randint(1, 2 * 10**4), 10**4)
    return size if symbol.is_nonnegative else size * random.choice((-1, 1))


def _is_zero_to_rounding(e: sp.Expr, known: Mapping[Any, Any]) -> bool:
    """Return whether the value of an expression is zero up to rounding; for a sum, relative to its largest term."""
    if e.is_Atom:
        return known[e] == 0
    if e.is_Mul:
        return any(_is_zero_to_rounding(a, known) for a in e.args)
    if e.is_Pow and e.exp.is_positive:
        return _is_zero_to_rounding(e.base, known)
    size = max(abs(known[a]) for a in e.args) if e.is_Add else 1
    return bool(abs(known[e]) <= mpmath.mpf(10) ** (-_DIGITS * 3 // 5) * size)
