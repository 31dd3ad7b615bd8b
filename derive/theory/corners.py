"""A loss of several student fields whose slope jumps: its pieces by the signs of smooth functions.

See docs/theory.md (11.15).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import sympy as sp
from sympy.core.relational import Equality, Relational, Unequality

from ..authoring.model import ModelAt
from ..calculus.piecewise import PIECEWISE
from ..calculus.stable_functions import stabilise
from ..errors import ModelError
from .draws import discrete_choices
from .kinks import LOSS_JUMPS, slope_jump, unwrap_monotone

_DIGITS = 30  # decimal digits of values at points
_ROUNDING = sp.Float("1e-20", _DIGITS)  # relative, of ratios that are equal


@dataclass(frozen=True)
class SignPieces:
    """A continuous loss in pieces, smooth in X where no switching function vanishes.

    Attributes:
        loss: expression in X and the sides, smooth over all of space for any values of these: that of the piece in
            which every switching function has the sign of its side.
        sides: symbols of the values 1 and -1.
        switches: the switching functions, as many functions of X that are smooth everywhere.
    """

    loss: sp.Expr
    sides: tuple[sp.Symbol, ...]
    switches: tuple[sp.Expr, ...]


def split_by_signs(model: ModelAt) -> SignPieces:
    """Return a loss by the signs of the switching functions in its expression, those that vanish together once.

    Raises:
        ModelError: the pieces cannot be identified, see `sign_split_obstacle`.
    """
    if obstacle := sign_split_obstacle(model):
        raise ModelError(f"model {model.name}: {obstacle}")
    found = _SignCollector(model)
    loss = found.replace_signs(stabilise(model.loss))
    return SignPieces(loss, tuple(found.sides), tuple(found.sides.values()))


def has_slope_jump_only(model: ModelAt) -> bool:
    """Return whether the slope of a loss of several fields jumps, and the loss itself does not."""
    return len(model.X) > 1 and bool(jump := slope_jump(model)) and not jump.startswith(LOSS_JUMPS)


def sign_split_obstacle(model: ModelAt) -> str:
    """Return the reason why `split_by_signs` cannot identify the pieces, in words; empty where it can."""
    equations = [e for e in model.loss.atoms(Equality, Unequality) if e.has(*model.X)]
    if equations:
        return f"a loss of several fields cannot have a piece given by an equation, {equations[0]}"
    return ""


class _SignCollector:
    """A collector of the switching functions met so far, by their sides."""

    def __init__(self, model: ModelAt) -> None:
        self.model, self.fields = model, list(model.X)
        self.sides: dict[sp.Symbol, sp.Expr] = {}

    def replace_signs(self, expression: sp.Expr) -> sp.Expr:
        """Return the expression with sides for the signs that it depends on."""
        if expression.is_Atom or not expression.has(*self.fields):
            return expression
        if isinstance(expression, sp.Piecewise):
            return sp.Piecewise(
                *[(self.replace_signs(value), self._replace_condition(when)) for value, when in expression.args]
            )
        inside = [self.replace_signs(a) for a in expression.args]
        if isinstance(expression, sp.Abs):
            return self.sign_of_switch(inside[0]) * inside[0]
        if isinstance(expression, sp.sign):
            return self.sign_of_switch(inside[0])
        if isinstance(expression, sp.Heaviside):
            return (1 + self.sign_of_switch(inside[0])) / 2
        if isinstance(expression, sp.Max | sp.Min):
            orientation = 1 if isinstance(expression, sp.Max) else -1
            return self._extremum(inside, orientation)
        return expression.func(*inside)

    def sign_of_switch(self, switch: sp.Expr) -> sp.Expr:
        """Return the sign of a function of X and sides, smooth in X: a product of sides, or pieces by sides of such."""
        if not switch.has(*self.fields):
            inner = [s for s in self.sides if switch.has(s)]
            return sp.sign(switch) if not inner else self._split_by_side(inner[0], switch)
        for side in self.sides:
            if switch.has(side):
                return self._split_by_side(side, switch)
        product = sp.Integer(1)
        for factor in self._odd_factors(switch):
            product *= self._side_of(factor) if factor.has(*self.fields) else sp.sign(factor)
        return product

    def _split_by_side(self, side: sp.Symbol, switch: sp.Expr) -> sp.Expr:
        """Return the sign of a function that contains a side, by the value of this side."""
        above, below = (self.sign_of_switch(switch.xreplace({side: sp.Integer(value)})) for value in (1, -1))
        return above if above == below else sp.Piecewise((above, side > 0), (below, True))

    def _extremum(self, values: list[sp.Expr], orientation: int) -> sp.Expr:
        """Return the largest value (smallest at orientation -1) by comparison of pairs, whose differences switch."""
        pieces = []
        for n, value in enumerate(values[:-1]):
            others = [other for k, other in enumerate(values) if k != n]
            pieces.append(
                (value, sp.And(*[self._positivity_condition(orientation * (value - other)) for other in others]))
            )
        return sp.Piecewise(*pieces, (values[-1], True))

    def _positivity_condition(self, switch: sp.Expr) -> sp.Basic:
        """Return the condition that a switching function is positive."""
        return _is_positive(self.sign_of_switch(switch))

    def _replace_condition(self, condition: sp.Basic) -> sp.Basic:
        """Return a condition in terms of sides."""
        if not condition.has(*self.fields):
            return condition
        if isinstance(condition, Relational):
            return self._positivity_condition(self.replace_signs(condition.gts - condition.lts))
        return condition.func(*[self._replace_condition(a) for a in condition.args])

    def _odd_factors(self, switch: sp.Expr) -> list[sp.Expr]:
        """Return the factors of odd power of a product of polynomials; any other function alone."""
        if not switch.is_polynomial(*self.fields) or switch.has(*PIECEWISE):
            return [switch]
        content, factors = sp.factor_list(switch, *self.fields)
        return [content, *[factor for factor, power in factors if power % 2]]

    def _side_of(self, switch: sp.Expr) -> sp.Expr:
        """Return the side of a smooth function, a new one unless it is a multiple of a known one."""
        straight = unwrap_monotone(switch, [*self.fields, *self.model.Y])
        if straight is not switch and (sign := self._sign_of_ratio(switch, straight, constant=False)):
            return sign * self._side_of(straight)
        for side, known in self.sides.items():
            if sign := self._sign_of_ratio(switch, known):
                return sign * side
        side = sp.Symbol(f"side_{len(self.sides)}", real=True)
        self.sides[side] = switch
        return side

    def _sign_of_ratio(self, one: sp.Expr, other: sp.Expr, constant: bool = True, points: int = 6) -> sp.Integer | None:
        """Return the sign of one / other if random points find the ratio constant, or of one sign; None otherwise."""
        generator = random.Random(3)
        signs = set()
        for choice in discrete_choices(self.model, one, other):
            ends = [e.xreplace(choice) for e in (one, other)]
            symbols = sorted(ends[0].free_symbols | ends[1].free_symbols, key=str)
            ratios = []
            for _ in range(points):
                at = {s: sp.Rational(abs(z) if s.is_positive else z) for s in symbols for z in [generator.gauss(0, 1)]}
                above, below = (e.xreplace(at).evalf(_DIGITS) for e in ends)
                if not (above.is_real and below.is_real and above != 0 and below != 0):
                    return None
                ratios.append(above / below)
            if constant and not all(abs(r - ratios[0]) < _ROUNDING * abs(ratios[0]) for r in ratios):
                return None
            signs |= {int(sp.sign(r)) for r in ratios}
        return sp.Integer(signs.pop()) if len(signs) == 1 else None


def _is_positive(sign: sp.Expr) -> sp.Basic:
    """Return the condition that a sign, a product of sides or pieces within pieces, is positive.

    A comparison of pieces would become a conditional of conditions, which no printer supports.
    """
    if isinstance(sign, sp.Piecewise):
        return sp.Or(*[sp.And(when, _is_positive(value), *before) for value, when, before in _enumerate_pieces(sign)])
    return sign > 0


def _enumerate_pieces(pieces: sp.Piecewise) -> list[tuple[sp.Expr, sp.Basic, list[sp.Basic]]]:
    """Return value, condition and the negations of all earlier conditions, piece by piece."""
    conditions = [when for _, when in pieces.args]
    return [(value, when, list(map(sp.Not, conditions[:n]))) for n, (value, when) in enumerate(pieces.args)]
