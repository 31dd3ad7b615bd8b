"""Dual numbers (values with derivatives, forward differentiation) over components of any arithmetic.

A component is an Arb ball (arb, or acb in the complex plane), an envelope on a ray (arb_poly) or a ray itself (both in
tails.py), or a number with derivatives again. A constant has no derivatives at all.
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


def as_ball(number: Any) -> arb:
    """Return an exact number as a ball at the precision in force; a float is taken exactly, a string as a decimal."""
    if isinstance(number, arb):
        return number
    if isinstance(number, str):
        number = Fraction(Decimal(number))
    if isinstance(number, Fraction):
        return arb(fmpq(number.numerator, number.denominator))
    return arb(number if isinstance(number, int | mpf) else float(number))


class DualNumber:
    """A dual number: a value and its derivatives in some directions, none for a constant."""

    __slots__ = ("slopes", "value")

    def __init__(self, value: Any, slopes: tuple[Any, ...] = ()):
        self.value = value
        self.slopes = slopes

    def __repr__(self) -> str:
        return f"DualNumber({self.value}, {self.slopes})"

    def apply_to_components(self, function: Callable[[Any], Any]) -> DualNumber:
        """Return the dual number with a function applied to its value and derivatives."""
        return DualNumber(function(self.value), tuple(map(function, self.slopes)))

    def __add__(self, other: Any) -> DualNumber:
        if type(other) is not DualNumber:
            return DualNumber(self.value + _as_component(other), self.slopes)
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
        return self + -as_dual(other)

    def __rsub__(self, other: Any) -> DualNumber:
        return -self + other

    def __mul__(self, other: Any) -> DualNumber:
        a, b = self.value, other.value if type(other) is DualNumber else _as_component(other)
        if type(other) is not DualNumber or not other.slopes:
            return DualNumber(a * b, tuple([s * b for s in self.slopes]))
        if not self.slopes:
            return DualNumber(a * b, tuple([a * s for s in other.slopes]))
        return DualNumber(a * b, tuple([s * b + a * r for s, r in zip(self.slopes, other.slopes, strict=True)]))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> DualNumber:
        return self * as_dual(other).reciprocal()

    def __rtruediv__(self, other: Any) -> DualNumber:
        return as_dual(other) * self.reciprocal()

    def reciprocal(self) -> DualNumber:
        """Return the reciprocal of the dual number.

        Raises:
            NotProvedError: the number is an envelope that is not constant.
        """
        value = component_reciprocal(self.value)
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
            component_power(self.value, power),
            lambda: power * component_power(self.value, power - 1) if power else arb(0),
        )

    def _apply_chain_rule(self, value: Any, derivative: Callable[[], Any]) -> DualNumber:
        """Return a function of the dual number from its value and derivative, by the chain rule."""
        if not self.slopes:
            return DualNumber(value)
        slope = derivative()
        return DualNumber(value, tuple([slope * s for s in self.slopes]))

    def exp(self) -> DualNumber:
        """Return the exponential; NotProvedError if the value is a polynomial envelope."""
        value = apply_function_to_component("exp", self.value)
        return self._apply_chain_rule(value, lambda: value)

    def expm1(self) -> DualNumber:
        """Return exp(x) - 1 of the number x, also on unbounded intervals; cancellation near zero widens the ball."""
        return self.exp() - 1

    def log(self) -> DualNumber:
        """Return the natural logarithm, not finite if the ball or interval is not proved positive."""
        return self._apply_chain_rule(
            apply_function_to_component("log", self.value), lambda: component_reciprocal(self.value)
        )

    def log1p(self) -> DualNumber:
        """Return log(1 + x) of the number x, also on unbounded intervals; cancellation near zero widens the ball."""
        return (1 + self).log()

    def sqrt(self) -> DualNumber:
        """Return the positive square root, not finite if the real ball or interval extends below zero."""
        value = apply_function_to_component("sqrt", self.value)
        return self._apply_chain_rule(value, lambda: component_reciprocal(2 * value))

    def erfc(self) -> DualNumber:
        """Return the complementary error function; NotProvedError on an unbounded interval."""

        def _erfc_derivative() -> Any:
            return -apply_function_to_component("exp", -(self.value * self.value)) * (2 / arb.pi().sqrt())

        return self._apply_chain_rule(apply_function_to_component("erfc", self.value), _erfc_derivative)

    def sin(self) -> DualNumber:
        """Return the sine; NotProvedError on an unbounded interval."""
        return self._apply_chain_rule(
            apply_function_to_component("sin", self.value), lambda: apply_function_to_component("cos", self.value)
        )

    def cos(self) -> DualNumber:
        """Return the cosine; NotProvedError on an unbounded interval."""
        return self._apply_chain_rule(
            apply_function_to_component("cos", self.value), lambda: -apply_function_to_component("sin", self.value)
        )

    def tanh(self) -> DualNumber:
        """Return the hyperbolic tangent, also on unbounded intervals."""
        return 1 - 2 / ((2 * self).exp() + 1)

    def sinh(self) -> DualNumber:
        """Return the hyperbolic sine, also on unbounded intervals."""
        return (self.exp() - (-self).exp()) / 2

    def cosh(self) -> DualNumber:
        """Return the hyperbolic cosine, also on unbounded intervals."""
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
        """Return True if a comparison holds for all numbers of the ball, False if for none, None if undecided."""
        difference = (self - other).value
        while isinstance(difference, DualNumber):
            difference = difference.value
        if not isinstance(difference, arb):
            return None
        return True if yes(difference) else False if no(difference) else None


def as_dual(number: Any) -> DualNumber:
    """Return a number as a constant dual number."""
    return (
        number
        if isinstance(number, DualNumber)
        else DualNumber(arb(number) if type(number) is int else _as_component(number))
    )


def _as_component(number: Any) -> Any:
    """Return an integer unchanged, and any other number as a ball."""
    if type(number) is int:
        return number
    return as_ball(number) if isinstance(number, int | float | str | Fraction | mpf) else number


def component_power(value: Any, power: int) -> Any:
    """Return a power of one component of a dual number, finite on balls around zero as well.

    Args:
        value: the component.
        power: exponent, not negative.
    """
    if power < 2:
        return value if power else arb(1)
    half = component_power(value, power // 2)
    return half * half * value if power % 2 else half * half


def component_reciprocal(value: Any) -> Any:
    """Return the reciprocal of one component of a dual number."""
    if isinstance(value, DualNumber):
        return value.reciprocal()
    if isinstance(value, arb_poly):
        if value.degree() > 0:
            raise NotProvedError("an integrand is divided by a function that has no lower bound at large |X|")
        return arb_poly([1 / value[0]])
    return 1 / value


def apply_function_to_component(name: str, value: Any) -> Any:
    """Return a function of one component of a dual number; not finite on the branch cuts of complex log and sqrt.

    Args:
        name: name of the function.
        value: the component.

    Raises:
        NotProvedError: components of this kind do not have the function.
    """
    if isinstance(value, arb) and name == "sqrt" and value < 0:
        value = acb(value)
    if isinstance(value, acb) and name in ("log", "sqrt"):
        return getattr(value, name)(analytic=True)
    function = getattr(value, name, None)
    if function is None:
        raise NotProvedError(f"ball arithmetic has no bounds of {name} at large |X|")
    return function()


def dual_from_decimal(number: Any) -> DualNumber:
    """Return a parameter as a dual number; a float is taken as the decimal it prints as."""
    if isinstance(number, DualNumber):
        return number
    return as_dual(as_ball(repr(float(number))) if isinstance(number, float) else number)
