"""Numbers with derivatives (forward differentiation) over components of any arithmetic.

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


def ball(number: Any) -> arb:
    """Return an exact number as a ball at the precision in force; a float is taken exactly, a string as a decimal."""
    if isinstance(number, arb):
        return number
    if isinstance(number, str):
        number = Fraction(Decimal(number))
    if isinstance(number, Fraction):
        return arb(fmpq(number.numerator, number.denominator))
    return arb(number if isinstance(number, int | mpf) else float(number))


class Dual:
    """A dual number: a value and its derivatives in some directions, none for a constant."""

    __slots__ = ("slopes", "value")

    def __init__(self, value: Any, slopes: tuple[Any, ...] = ()):
        self.value = value
        self.slopes = slopes

    def __repr__(self) -> str:
        return f"Dual({self.value}, {self.slopes})"

    def map(self, function: Callable[[Any], Any]) -> Dual:
        """Return the number with a function applied to its components."""
        return Dual(function(self.value), tuple(map(function, self.slopes)))

    def __add__(self, other: Any) -> Dual:
        if type(other) is not Dual:
            return Dual(self.value + _component(other), self.slopes)
        if not other.slopes:
            return Dual(self.value + other.value, self.slopes)
        if not self.slopes:
            return Dual(self.value + other.value, other.slopes)
        return Dual(self.value + other.value, tuple([a + b for a, b in zip(self.slopes, other.slopes, strict=True)]))

    __radd__ = __add__

    def __neg__(self) -> Dual:
        return Dual(-self.value, tuple([-a for a in self.slopes]))

    def __pos__(self) -> Dual:
        return self

    def __sub__(self, other: Any) -> Dual:
        return self + -as_dual(other)

    def __rsub__(self, other: Any) -> Dual:
        return -self + other

    def __mul__(self, other: Any) -> Dual:
        a, b = self.value, other.value if type(other) is Dual else _component(other)
        if type(other) is not Dual or not other.slopes:
            return Dual(a * b, tuple([s * b for s in self.slopes]))
        if not self.slopes:
            return Dual(a * b, tuple([a * s for s in other.slopes]))
        return Dual(a * b, tuple([s * b + a * r for s, r in zip(self.slopes, other.slopes, strict=True)]))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Dual:
        return self * as_dual(other).inverse()

    def __rtruediv__(self, other: Any) -> Dual:
        return as_dual(other) * self.inverse()

    def inverse(self) -> Dual:
        """Return the inverse.

        Raises:
            NotProvedError: the number is an envelope that is not constant.
        """
        value = component_inverse(self.value)
        return self._chain(value, lambda: -(value * value))

    def __pow__(self, power: Any) -> Dual:
        if isinstance(power, Dual) and not power.slopes and isinstance(power.value, arb):
            whole = power.value.unique_fmpz() if power.value.is_exact() else None
            power = int(whole) if whole is not None else power
        if not isinstance(power, int):
            return (self.log() * power).exp()
        if power < 0:
            return (self**-power).inverse()
        return self._chain(
            component_power(self.value, power),
            lambda: power * component_power(self.value, power - 1) if power else arb(0),
        )

    def _chain(self, value: Any, derivative: Callable[[], Any]) -> Dual:
        """Return a function of this number, from its value and derivative here."""
        if not self.slopes:
            return Dual(value)
        slope = derivative()
        return Dual(value, tuple([slope * s for s in self.slopes]))

    def exp(self) -> Dual:
        """Return the exponential; NotProvedError on an envelope, as for all functions of components."""
        value = component_function("exp", self.value)
        return self._chain(value, lambda: value)

    def expm1(self) -> Dual:
        """Return the exponential less 1, also on rays; cancellation near zero widens the ball."""
        return self.exp() - 1

    def log(self) -> Dual:
        """Return the natural logarithm; not finite on a ball that is not proved positive, unbounded on such a ray."""
        return self._chain(component_function("log", self.value), lambda: component_inverse(self.value))

    def log1p(self) -> Dual:
        """Return log(1 + this), also on rays; cancellation near zero widens the ball."""
        return (1 + self).log()

    def sqrt(self) -> Dual:
        """Return the positive root; not finite on a real ball that extends below zero, unbounded on such a ray."""
        value = component_function("sqrt", self.value)
        return self._chain(value, lambda: component_inverse(2 * value))

    def erfc(self) -> Dual:
        """Return the complementary error function; NotProvedError on a ray."""

        def derivative() -> Any:
            return -component_function("exp", -(self.value * self.value)) * (2 / arb.pi().sqrt())

        return self._chain(component_function("erfc", self.value), derivative)

    def sin(self) -> Dual:
        """Return the sine; NotProvedError on a ray."""
        return self._chain(component_function("sin", self.value), lambda: component_function("cos", self.value))

    def cos(self) -> Dual:
        """Return the cosine; NotProvedError on a ray."""
        return self._chain(component_function("cos", self.value), lambda: -component_function("sin", self.value))

    def tanh(self) -> Dual:
        """Return the hyperbolic tangent, by the exponential, also on rays."""
        return 1 - 2 / ((2 * self).exp() + 1)

    def sinh(self) -> Dual:
        """Return the hyperbolic sine, by the exponential, also on rays."""
        return (self.exp() - (-self).exp()) / 2

    def cosh(self) -> Dual:
        """Return the hyperbolic cosine, by the exponential, also on rays."""
        return (self.exp() + (-self).exp()) / 2

    def __abs__(self) -> Dual:
        return self if self >= 0 else -self

    def __gt__(self, other: Any) -> bool:
        return decide_comparison(lambda: self._compared(other, lambda z: z > 0, lambda z: z <= 0))

    def __ge__(self, other: Any) -> bool:
        return decide_comparison(lambda: self._compared(other, lambda z: z >= 0, lambda z: z < 0))

    def __lt__(self, other: Any) -> bool:
        return decide_comparison(lambda: self._compared(other, lambda z: z < 0, lambda z: z >= 0))

    def __le__(self, other: Any) -> bool:
        return decide_comparison(lambda: self._compared(other, lambda z: z <= 0, lambda z: z > 0))

    def __eq__(self, other: Any) -> bool:
        return decide_comparison(lambda: self._compared(other, lambda z: z == 0, lambda z: z != 0))

    __hash__ = None  # type: ignore[assignment]

    def _compared(self, other: Any, yes: Callable[[arb], bool], no: Callable[[arb], bool]) -> bool | None:
        """Return whether a comparison holds for all numbers of the ball, or for none; None if neither is known."""
        difference = (self - other).value
        while isinstance(difference, Dual):
            difference = difference.value
        if not isinstance(difference, arb):
            return None
        return True if yes(difference) else False if no(difference) else None


def as_dual(number: Any) -> Dual:
    """Return a number as a constant dual number."""
    return number if isinstance(number, Dual) else Dual(arb(number) if type(number) is int else _component(number))


def _component(number: Any) -> Any:
    """Return a whole number unchanged, which fits all components, other numbers as balls."""
    if type(number) is int:
        return number
    return ball(number) if isinstance(number, int | float | str | Fraction | mpf) else number


def component_power(value: Any, power: int) -> Any:
    """Return a power of a component; Arb's own power is not finite on a ball around zero.

    Args:
        value: the component.
        power: exponent, not negative.
    """
    if power < 2:
        return value if power else arb(1)
    half = component_power(value, power // 2)
    return half * half * value if power % 2 else half * half


def component_inverse(value: Any) -> Any:
    """Return the inverse of a component."""
    if isinstance(value, Dual):
        return value.inverse()
    if isinstance(value, arb_poly):
        if value.degree() > 0:
            raise NotProvedError("a tail is divided by what has no lower bound there")
        return arb_poly([1 / value[0]])
    return 1 / value


def component_function(name: str, value: Any) -> Any:
    """Return a function of one component; complex logarithms and roots are not finite on their cuts.

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
        raise NotProvedError(f"there are no bounds of {name} on a ray")
    return function()


def decimal_dual(number: Any) -> Dual:
    """Return a number of a problem as a dual number: a float as the decimal it prints as, others unchanged."""
    if isinstance(number, Dual):
        return number
    return as_dual(ball(repr(float(number))) if isinstance(number, float) else number)
