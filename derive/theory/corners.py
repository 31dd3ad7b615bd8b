"""A loss of several student fields whose slope jumps: its pieces by the signs of smooth functions.

See docs/theory.md (11.15).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import sympy as sp
from sympy.core.relational import Equality, Relational, Unequality

from ..authoring.model import FixedSizeModel
from ..calculus.piecewise import PIECEWISE
from ..calculus.stable_functions import rewrite_without_overflow
from ..errors import ModelError
from .draws import label_and_noise_choices
from .kinks import LOSS_JUMPS, describe_gradient_jump, strip_monotone_functions

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


def split_loss_by_signs(model: FixedSizeModel) -> SignPieces:
    """Return a loss as smooth pieces that the signs of its switching functions select.

    Raises:
        ModelError: the pieces cannot be identified, see `sign_split_obstacle`.
    """
    if obstacle := sign_split_obstacle(model):
        raise ModelError(f"model {model.name}: {obstacle}")
    found = _SignCollector(model)
    loss = found.replace_signs_by_sides(rewrite_without_overflow(model.loss))
    return SignPieces(loss, tuple(found.sides), tuple(found.sides.values()))


def has_gradient_jump_only(model: FixedSizeModel) -> bool:
    """Return whether the gradient of a continuous loss of several fields jumps."""
    return len(model.X) > 1 and bool(jump := describe_gradient_jump(model)) and not jump.startswith(LOSS_JUMPS)


def sign_split_obstacle(model: FixedSizeModel) -> str:
    """Return a message why `split_loss_by_signs` cannot identify the smooth pieces; empty where it can."""
    equations = [e for e in model.loss.atoms(Equality, Unequality) if e.has(*model.X)]
    if equations:
        return f"a loss of several fields cannot have a piece given by an equation, {equations[0]}"
    return ""


class _SignCollector:
    """A collector of switching functions, with one sign symbol (side) per function."""

    def __init__(self, model: FixedSizeModel) -> None:
        self.model, self.fields = model, list(model.X)
        self.sides: dict[sp.Symbol, sp.Expr] = {}

    def replace_signs_by_sides(self, expression: sp.Expr) -> sp.Expr:
        """Return an expression in which signs of switching functions are replaced by side symbols."""
        if expression.is_Atom or not expression.has(*self.fields):
            return expression
        if isinstance(expression, sp.Piecewise):
            return sp.Piecewise(
                *[
                    (self.replace_signs_by_sides(value), self._condition_in_sides(when))
                    for value, when in expression.args
                ]
            )
        inside = [self.replace_signs_by_sides(a) for a in expression.args]
        if isinstance(expression, sp.Abs):
            return self.sign_of_switching_function(inside[0]) * inside[0]
        if isinstance(expression, sp.sign):
            return self.sign_of_switching_function(inside[0])
        if isinstance(expression, sp.Heaviside):
            return (1 + self.sign_of_switching_function(inside[0])) / 2
        if isinstance(expression, sp.Max | sp.Min):
            orientation = 1 if isinstance(expression, sp.Max) else -1
            return self._extremum_by_pair_comparison(inside, orientation)
        return expression.func(*inside)

    def sign_of_switching_function(self, switch: sp.Expr) -> sp.Expr:
        """Return the sign of a switching function, smooth in X, in terms of side symbols."""
        if not switch.has(*self.fields):
            inner = [s for s in self.sides if switch.has(s)]
            return sp.sign(switch) if not inner else self._sign_by_side_of_surface(inner[0], switch)
        for side in self.sides:
            if switch.has(side):
                return self._sign_by_side_of_surface(side, switch)
        product = sp.Integer(1)
        for factor in self._factors_of_odd_power(switch):
            product *= self._side_of_smooth_function(factor) if factor.has(*self.fields) else sp.sign(factor)
        return product

    def _sign_by_side_of_surface(self, side: sp.Symbol, switch: sp.Expr) -> sp.Expr:
        """Return the sign of a switching function as a Piecewise in a side symbol that it contains."""
        above, below = (
            self.sign_of_switching_function(switch.xreplace({side: sp.Integer(value)})) for value in (1, -1)
        )
        return above if above == below else sp.Piecewise((above, side > 0), (below, True))

    def _extremum_by_pair_comparison(self, values: list[sp.Expr], orientation: int) -> sp.Expr:
        """Return the maximum of expressions (minimum at orientation -1) by the signs of their pairwise differences."""
        pieces = []
        for n, value in enumerate(values[:-1]):
            others = [other for k, other in enumerate(values) if k != n]
            pieces.append(
                (value, sp.And(*[self._positivity_condition(orientation * (value - other)) for other in others]))
            )
        return sp.Piecewise(*pieces, (values[-1], True))

    def _positivity_condition(self, switch: sp.Expr) -> sp.Basic:
        """Return the condition that a switching function is positive."""
        return _positive_sign_condition(self.sign_of_switching_function(switch))

    def _condition_in_sides(self, condition: sp.Basic) -> sp.Basic:
        """Return a Boolean condition in terms of side symbols."""
        if not condition.has(*self.fields):
            return condition
        if isinstance(condition, Relational):
            return self._positivity_condition(self.replace_signs_by_sides(condition.gts - condition.lts))
        return condition.func(*[self._condition_in_sides(a) for a in condition.args])

    def _factors_of_odd_power(self, switch: sp.Expr) -> list[sp.Expr]:
        """Return the factors of odd power of a product of polynomials; any other function alone."""
        if not switch.is_polynomial(*self.fields) or switch.has(*PIECEWISE):
            return [switch]
        content, factors = sp.factor_list(switch, *self.fields)
        return [content, *[factor for factor, power in factors if power % 2]]

    def _side_of_smooth_function(self, switch: sp.Expr) -> sp.Expr:
        """Return the side symbol of a smooth switching function; multiples of a known function share its symbol."""
        straight = strip_monotone_functions(switch, [*self.fields, *self.model.Y])
        if straight is not switch and (sign := self._constant_sign_of_ratio(switch, straight, constant=False)):
            return sign * self._side_of_smooth_function(straight)
        for side, known in self.sides.items():
            if sign := self._constant_sign_of_ratio(switch, known):
                return sign * side
        side = sp.Symbol(f"side_{len(self.sides)}", real=True)
        self.sides[side] = switch
        return side

    def _constant_sign_of_ratio(
        self, one: sp.Expr, other: sp.Expr, constant: bool = True, points: int = 6
    ) -> sp.Integer | None:
        """Return the sign of the ratio one / other if it is constant at random points; None otherwise."""
        generator = random.Random(3)
        signs = set()
        for choice in label_and_noise_choices(self.model, one, other):
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


def _positive_sign_condition(sign: sp.Expr) -> sp.Basic:
    """Return the Boolean condition that a sign expression is positive.

    A comparison of pieces would become a conditional of conditions, which no printer supports.
    """
    if isinstance(sign, sp.Piecewise):
        return sp.Or(
            *[
                sp.And(when, _positive_sign_condition(value), *before)
                for value, when, before in _pieces_with_conditions(sign)
            ]
        )
    return sign > 0


def _pieces_with_conditions(pieces: sp.Piecewise) -> list[tuple[sp.Expr, sp.Basic, list[sp.Basic]]]:
    """Return for each piece of a Piecewise its value, its condition and the negations of all earlier conditions."""
    conditions = [when for _, when in pieces.args]
    return [(value, when, list(map(sp.Not, conditions[:n]))) for n, (value, when) in enumerate(pieces.args)]
