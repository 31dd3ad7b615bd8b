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
from .draws import joint_label_and_noise_values
from .kinks import LOSS_JUMPS, describe_gradient_jump, strip_monotone_functions

_DIGITS = 30  # decimal digits of values at points
_ROUNDING = sp.Float("1e-20", _DIGITS)  # relative, of ratios that are equal


@dataclass(frozen=True)
class LossPiecesBySign:
    """A continuous piecewise smooth loss, with the signs of switching functions as symbols that select the piece.

    Attributes:
        loss: the loss in the fields X and the sign symbols; at fixed signs +1 or -1 it is smooth for all X and equals
            the original loss where every switching function has its sign.
        sides: the sign symbols, which take the values 1 and -1.
        switches: the switching functions of X, smooth everywhere, one for each sign symbol.
    """

    loss: sp.Expr
    sides: tuple[sp.Symbol, ...]
    switches: tuple[sp.Expr, ...]


def split_loss_by_signs(model: FixedSizeModel) -> LossPiecesBySign:
    """Return the model's loss as smooth pieces, selected by the signs of its switching functions.

    Raises:
        ModelError: the pieces cannot be identified, for the reason that `why_loss_cannot_be_split` gives.
    """
    if obstacle := why_loss_cannot_be_split(model):
        raise ModelError(f"model {model.name}: {obstacle}")
    found = _SwitchingFunctionCollector(model)
    loss = found.replace_signs_by_symbols(rewrite_without_overflow(model.loss))
    return LossPiecesBySign(loss, tuple(found.sides), tuple(found.sides.values()))


def has_gradient_jump_only(model: FixedSizeModel) -> bool:
    """Return whether the loss depends on several student fields and is continuous, but its gradient jumps."""
    return len(model.X) > 1 and bool(jump := describe_gradient_jump(model)) and not jump.startswith(LOSS_JUMPS)


def why_loss_cannot_be_split(model: FixedSizeModel) -> str:
    """Return the reason why `split_loss_by_signs` cannot split the loss, as text; empty if it can."""
    equations = [e for e in model.loss.atoms(Equality, Unequality) if e.has(*model.X)]
    if equations:
        return f"a loss of several fields cannot have a piece given by an equation, {equations[0]}"
    return ""


class _SwitchingFunctionCollector:
    """A collector that replaces the signs of switching functions by symbols, one for each distinct function."""

    def __init__(self, model: FixedSizeModel) -> None:
        self.model, self.fields = model, list(model.X)
        self.sides: dict[sp.Symbol, sp.Expr] = {}

    def replace_signs_by_symbols(self, expression: sp.Expr) -> sp.Expr:
        """Return an expression with the sign of every switching function replaced by a symbol of value +1 or -1."""
        if expression.is_Atom or not expression.has(*self.fields):
            return expression
        if isinstance(expression, sp.Piecewise):
            return sp.Piecewise(
                *[
                    (self.replace_signs_by_symbols(value), self._write_condition_in_sign_symbols(when))
                    for value, when in expression.args
                ]
            )
        inside = [self.replace_signs_by_symbols(a) for a in expression.args]
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
        """Return the sign of a switching function as an expression in sign symbols (symbols of value +1 or -1)."""
        if not switch.has(*self.fields):
            inner = [s for s in self.sides if switch.has(s)]
            return sp.sign(switch) if not inner else self._sign_as_piecewise(inner[0], switch)
        for side in self.sides:
            if switch.has(side):
                return self._sign_as_piecewise(side, switch)
        product = sp.Integer(1)
        for factor in self._factors_of_odd_power(switch):
            product *= self._sign_symbol_of_smooth_function(factor) if factor.has(*self.fields) else sp.sign(factor)
        return product

    def _sign_as_piecewise(self, side: sp.Symbol, switch: sp.Expr) -> sp.Expr:
        """Return the sign of a switching function that contains a sign symbol, as a Piecewise in that symbol."""
        above, below = (
            self.sign_of_switching_function(switch.xreplace({side: sp.Integer(value)})) for value in (1, -1)
        )
        return above if above == below else sp.Piecewise((above, side > 0), (below, True))

    def _extremum_by_pair_comparison(self, values: list[sp.Expr], orientation: int) -> sp.Expr:
        """Return the maximum (orientation 1) or minimum (-1) of expressions as a Piecewise in signs of differences."""
        pieces = []
        for n, value in enumerate(values[:-1]):
            others = [other for k, other in enumerate(values) if k != n]
            pieces.append(
                (value, sp.And(*[self._positivity_condition(orientation * (value - other)) for other in others]))
            )
        return sp.Piecewise(*pieces, (values[-1], True))

    def _positivity_condition(self, switch: sp.Expr) -> sp.Basic:
        """Return the Boolean condition that a switching function is positive, in terms of sign symbols."""
        return _condition_of_positive_sign(self.sign_of_switching_function(switch))

    def _write_condition_in_sign_symbols(self, condition: sp.Basic) -> sp.Basic:
        """Return a Boolean condition on the fields as a condition on sign symbols."""
        if not condition.has(*self.fields):
            return condition
        if isinstance(condition, Relational):
            return self._positivity_condition(self.replace_signs_by_symbols(condition.gts - condition.lts))
        return condition.func(*[self._write_condition_in_sign_symbols(a) for a in condition.args])

    def _factors_of_odd_power(self, switch: sp.Expr) -> list[sp.Expr]:
        """Return the factors of a polynomial that occur to odd powers; [function] for any other function."""
        if not switch.is_polynomial(*self.fields) or switch.has(*PIECEWISE):
            return [switch]
        content, factors = sp.factor_list(switch, *self.fields)
        return [content, *[factor for factor, power in factors if power % 2]]

    def _sign_symbol_of_smooth_function(self, switch: sp.Expr) -> sp.Expr:
        """Return the sign symbol of a smooth switching function, shared by all multiples of the function."""
        straight = strip_monotone_functions(switch, [*self.fields, *self.model.Y])
        if straight is not switch and (sign := self._constant_sign_of_ratio(switch, straight, constant=False)):
            return sign * self._sign_symbol_of_smooth_function(straight)
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
        for choice in joint_label_and_noise_values(self.model, one, other):
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


def _condition_of_positive_sign(sign: sp.Expr) -> sp.Basic:
    """Return the Boolean condition that a sign is +1, for an expression that may be a Piecewise.

    A Piecewise is resolved piece by piece, since no code printer supports a comparison of a whole Piecewise.
    """
    if isinstance(sign, sp.Piecewise):
        return sp.Or(
            *[
                sp.And(when, _condition_of_positive_sign(value), *before)
                for value, when, before in _values_and_conditions_of_piecewise(sign)
            ]
        )
    return sign > 0


def _values_and_conditions_of_piecewise(pieces: sp.Piecewise) -> list[tuple[sp.Expr, sp.Basic, list[sp.Basic]]]:
    """Return a list of (value, condition, negations of all earlier conditions) for the pieces of a Piecewise."""
    conditions = [when for _, when in pieces.args]
    return [(value, when, list(map(sp.Not, conditions[:n]))) for n, (value, when) in enumerate(pieces.args)]
