"""Dual numbers for forward differentiation: a value with its derivatives, whose components may be of any arithmetic.

A component is an Arb ball (arb, or acb in the complex plane), a polynomial envelope on a half line (arb_poly), an
interval that may be unbounded (both in tails.py), or a dual number again. A constant has no derivatives at all.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from flint import acb, arb, arb_poly, fmpq
from mpmath import mpf

from ...base.errors import NotProvedError
from .decisions import decide_comparison


def ball_from_number(number: Any) -> arb:
    """Return a ball that contains a number, at the current precision; a string is taken as an exact decimal."""
    if isinstance(number, arb):
        return number
    if isinstance(number, str):
        number = Fraction(Decimal(number))
    if isinstance(number, Fraction):
        return arb(fmpq(number.numerator, number.denominator))
    return arb(number if isinstance(number, int | mpf) else float(number))


class DualNumber:
    """A dual number: a value and its derivatives in given directions; a constant has no derivatives.

    Its methods are the elementary functions, with derivatives by the chain rule.
    """

    __slots__ = ("slopes", "value")

    def __init__(self, value: Any, slopes: tuple[Any, ...] = ()):
        self.value = value
        self.slopes = slopes

    def __repr__(self) -> str:
        return f"DualNumber({self.value}, {self.slopes})"

    def apply_function_to_components(self, function: Callable[[Any], Any]) -> DualNumber:
        """Return the dual number after applying a function to its value and to each derivative separately."""
        return DualNumber(function(self.value), tuple(map(function, self.slopes)))

    def __add__(self, other: Any) -> DualNumber:
        if type(other) is not DualNumber:
            return DualNumber(self.value + _integer_or_ball(other), self.slopes)
        if not other.slopes:
            return DualNumber(self.value + other.value, self.slopes)
        if not self.slopes:
            return DualNumber(self.value + other.value, other.slopes)
        return DualNumber(
            self.value + other.value, tuple([a + b for a, b in zip(self.slopes, other.slopes, strict=True)])
        )

    __radd__ = __add__

    def __neg__(self) -> DualNumber:
        return DualNumber(-self.value, tuple([-a for a in self.slopes]))

    def __pos__(self) -> DualNumber:
        return self

    def __sub__(self, other: Any) -> DualNumber:
        return self + -dual_from_number(other)

    def __rsub__(self, other: Any) -> DualNumber:
        return -self + other

    def __mul__(self, other: Any) -> DualNumber:
        a, b = self.value, other.value if type(other) is DualNumber else _integer_or_ball(other)
        if type(other) is not DualNumber or not other.slopes:
            return DualNumber(a * b, tuple([s * b for s in self.slopes]))
        if not self.slopes:
            return DualNumber(a * b, tuple([a * s for s in other.slopes]))
        return DualNumber(a * b, tuple([s * b + a * r for s, r in zip(self.slopes, other.slopes, strict=True)]))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> DualNumber:
        return self * dual_from_number(other).reciprocal()

    def __rtruediv__(self, other: Any) -> DualNumber:
        return dual_from_number(other) * self.reciprocal()

    def reciprocal(self) -> DualNumber:
        """Return the reciprocal of the dual number.

        Raises:
            NotProvedError: the value is a polynomial envelope that is not constant.
        """
        value = reciprocal_of_dual_component(self.value)
        return self._apply_chain_rule(value, lambda: -(value * value))

    def __pow__(self, power: Any) -> DualNumber:
        if isinstance(power, DualNumber) and not power.slopes and isinstance(power.value, arb):
            whole = power.value.unique_fmpz() if power.value.is_exact() else None
            power = int(whole) if whole is not None else power
        if not isinstance(power, int):
            return (self.log() * power).exp()
        if power < 0:
            return (self**-power).reciprocal()
        return self._apply_chain_rule(
            power_of_dual_component(self.value, power),
            lambda: power * power_of_dual_component(self.value, power - 1) if power else arb(0),
        )

    def _apply_chain_rule(self, value: Any, derivative: Callable[[], Any]) -> DualNumber:
        """Return f(this number) as a dual number, from the value of f and a function for its derivative."""
        if not self.slopes:
            return DualNumber(value)
        slope = derivative()
        return DualNumber(value, tuple([slope * s for s in self.slopes]))

    def exp(self) -> DualNumber:
        """Return the exponential of the dual number; raise NotProvedError if its value is a polynomial envelope."""
        value = apply_elementary_function("exp", self.value)
        return self._apply_chain_rule(value, lambda: value)

    def expm1(self) -> DualNumber:
        """Return exp(x) - 1 for the dual number x; near zero cancellation makes the ball wider."""
        return self.exp() - 1

    def log(self) -> DualNumber:
        """Return the natural logarithm of the dual number; not finite unless its ball or interval is positive."""
        return self._apply_chain_rule(
            apply_elementary_function("log", self.value), lambda: reciprocal_of_dual_component(self.value)
        )

    def log1p(self) -> DualNumber:
        """Return log(1 + x) for the dual number x; near zero cancellation makes the ball wider."""
        return (1 + self).log()

    def sqrt(self) -> DualNumber:
        """Return the square root of the dual number; not finite if its real ball or interval extends below zero."""
        value = apply_elementary_function("sqrt", self.value)
        return self._apply_chain_rule(value, lambda: reciprocal_of_dual_component(2 * value))

    def erfc(self) -> DualNumber:
        """Return the complementary error function of the dual number; raise NotProvedError on an unbounded interval."""

        def _erfc_derivative() -> Any:
            return -apply_elementary_function("exp", -(self.value * self.value)) * (2 / arb.pi().sqrt())

        return self._apply_chain_rule(apply_elementary_function("erfc", self.value), _erfc_derivative)

    def sin(self) -> DualNumber:
        """Return the sine of the dual number; raise NotProvedError on an unbounded interval."""
        return self._apply_chain_rule(
            apply_elementary_function("sin", self.value),
            lambda: apply_elementary_function("cos", self.value),
        )

    def cos(self) -> DualNumber:
        """Return the cosine of the dual number; raise NotProvedError on an unbounded interval."""
        return self._apply_chain_rule(
            apply_elementary_function("cos", self.value),
            lambda: -apply_elementary_function("sin", self.value),
        )

    def tanh(self) -> DualNumber:
        """Return the hyperbolic tangent of the dual number; its interval may be unbounded."""
        return 1 - 2 / ((2 * self).exp() + 1)

    def sinh(self) -> DualNumber:
        """Return the hyperbolic sine of the dual number; its interval may be unbounded."""
        return (self.exp() - (-self).exp()) / 2

    def cosh(self) -> DualNumber:
        """Return the hyperbolic cosine of the dual number; its interval may be unbounded."""
        return (self.exp() + (-self).exp()) / 2

    def __abs__(self) -> DualNumber:
        return self if self >= 0 else -self

    def __gt__(self, other: Any) -> bool:
        return decide_comparison(lambda: self._comparison_outcome(other, lambda z: z > 0, lambda z: z <= 0))

    def __ge__(self, other: Any) -> bool:
        return decide_comparison(lambda: self._comparison_outcome(other, lambda z: z >= 0, lambda z: z < 0))

    def __lt__(self, other: Any) -> bool:
        return decide_comparison(lambda: self._comparison_outcome(other, lambda z: z < 0, lambda z: z >= 0))

    def __le__(self, other: Any) -> bool:
        return decide_comparison(lambda: self._comparison_outcome(other, lambda z: z <= 0, lambda z: z > 0))

    def __eq__(self, other: Any) -> bool:
        return decide_comparison(lambda: self._comparison_outcome(other, lambda z: z == 0, lambda z: z != 0))

    __hash__ = None  # type: ignore[assignment]

    def _comparison_outcome(self, other: Any, yes: Callable[[arb], bool], no: Callable[[arb], bool]) -> bool | None:
        """Return whether a comparison with another number holds in the whole ball; None if only in a part of it."""
        difference = (self - other).value
        while isinstance(difference, DualNumber):
            difference = difference.value
        if not isinstance(difference, arb):
            return None
        return True if yes(difference) else False if no(difference) else None


def dual_from_number(number: Any) -> DualNumber:
    """Return a number as a constant dual number, without derivatives; a dual number is returned unchanged."""
    return (
        number
        if isinstance(number, DualNumber)
        else DualNumber(arb(number) if type(number) is int else _integer_or_ball(number))
    )


def _integer_or_ball(number: Any) -> Any:
    """Return a number as a component of a dual number: an integer unchanged, any other number as a ball."""
    if type(number) is int:
        return number
    return ball_from_number(number) if isinstance(number, int | float | str | Fraction | mpf) else number


def power_of_dual_component(value: Any, power: int) -> Any:
    """Return a power of one component of a dual number; it is finite for balls that contain zero, too.

    Args:
        value: the component.
        power: exponent, an integer that is not negative.
    """
    if power < 2:
        return value if power else arb(1)
    half = power_of_dual_component(value, power // 2)
    return half * half * value if power % 2 else half * half


def reciprocal_of_dual_component(value: Any) -> Any:
    """Return the reciprocal of one component of a dual number."""
    if isinstance(value, DualNumber):
        return value.reciprocal()
    if isinstance(value, arb_poly):
        if value.degree() > 0:
            raise NotProvedError("no tail bound: a divisor in an integrand has no proved lower bound at large |X|")
        return arb_poly([1 / value[0]])
    return 1 / value


def apply_elementary_function(name: str, value: Any) -> Any:
    """Return an elementary function of one component of a dual number, without a derivative.

    The complex logarithm and square root are not finite on their branch cuts.

    Args:
        name: name of the function, such as exp.
        value: the component.

    Raises:
        NotProvedError: the function is not available for components of this kind.
    """
    if isinstance(value, arb) and name == "sqrt" and value < 0:
        value = acb(value)
    if isinstance(value, acb) and name in ("log", "sqrt"):
        return getattr(value, name)(analytic=True)
    function = getattr(value, name, None)
    if function is None:
        raise NotProvedError(f"ball arithmetic has no bounds of the function {name} at large |X|, so there is no proof")
    return function()


def dual_number_from_decimal(number: Any) -> DualNumber:
    """Return a parameter as a dual number; a float stands for the decimal number that it is printed as."""
    if isinstance(number, DualNumber):
        return number
    return dual_from_number(ball_from_number(repr(float(number))) if isinstance(number, float) else number)
