"""A loss of several student fields whose slope jumps: its pieces by the signs of smooth functions (docs/theory.md
(11.15))."""

from __future__ import annotations

import random
from dataclasses import dataclass

import sympy as sp
from sympy.core.relational import Equality, Relational, Unequality

from ..authoring.model import ModelAt
from ..calculus.piecewise import PIECEWISE
from ..calculus.stable import stable
from ..errors import ModelError
from .draws import choices_of
from .kinks import LOSS_JUMPS, slope_jump, unwrapped

_POINTS = 6
_DIGITS = 30
_SAME = sp.Float("1e-20", _DIGITS)


@dataclass(frozen=True)
class Sides:
    """A continuous loss, smooth in X where no switch vanishes.

    Attributes:
        loss: in X and the sides, smooth over all of space for any of these: of the piece in which every switch has the
            sign of its side.
        sides: symbols of the values 1 and -1; switches: as many functions of X that are smooth everywhere.
    """

    loss: sp.Expr
    sides: tuple[sp.Symbol, ...]
    switches: tuple[sp.Expr, ...]


def sides_of(model: ModelAt) -> Sides:
    """Where pieces of the loss meet, found in its expression, those of one place once.

    Raises:
        ModelError: see `untold`.
    """
    if obstacle := untold(model):
        raise ModelError(f"model {model.name}: {obstacle}")
    found = _Switches(model)
    loss = found.held(stable(model.loss))
    return Sides(loss, tuple(found.sides), tuple(found.sides.values()))


def has_sides(model: ModelAt) -> bool:
    """Whether the slope of a loss of several fields jumps, and nothing else."""
    return len(model.X) > 1 and bool(jump := slope_jump(model)) and not jump.startswith(LOSS_JUMPS)


def untold(model: ModelAt) -> str:
    """Why `sides_of` finds no pieces, in words; empty where it does."""
    equations = [e for e in model.loss.atoms(Equality, Unequality) if e.has(*model.X)]
    if equations:
        return f"where several fields are read no piece of the loss can be told by an equation, {equations[0]}"
    return ""


class _Switches:
    """Functions whose signs were asked for so far, by their sides."""

    def __init__(self, model: ModelAt) -> None:
        self.model, self.fields = model, list(model.X)
        self.sides: dict[sp.Symbol, sp.Expr] = {}

    def held(self, expression: sp.Expr) -> sp.Expr:
        """The expression with sides for the signs that it depends on."""
        if expression.is_Atom or not expression.has(*self.fields):
            return expression
        if isinstance(expression, sp.Piecewise):
            return sp.Piecewise(*[(self.held(value), self._condition(when)) for value, when in expression.args])
        inside = [self.held(a) for a in expression.args]
        if isinstance(expression, sp.Abs):
            return self.sign(inside[0]) * inside[0]
        if isinstance(expression, sp.sign):
            return self.sign(inside[0])
        if isinstance(expression, sp.Heaviside):
            return (1 + self.sign(inside[0])) / 2
        if isinstance(expression, sp.Max | sp.Min):
            way = 1 if isinstance(expression, sp.Max) else -1
            return self._extreme(inside, way)
        return expression.func(*inside)

    def sign(self, switch: sp.Expr) -> sp.Expr:
        """Of a function of X and sides, which is smooth in X: a product of sides, or pieces by sides of such."""
        if not switch.has(*self.fields):
            inner = [s for s in self.sides if switch.has(s)]
            return sp.sign(switch) if not inner else self._by(inner[0], switch)
        for side in self.sides:
            if switch.has(side):
                return self._by(side, switch)
        product = sp.Integer(1)
        for factor in self._factors(switch):
            product *= self._side(factor) if factor.has(*self.fields) else sp.sign(factor)
        return product

    def _by(self, side: sp.Symbol, switch: sp.Expr) -> sp.Expr:
        above, below = (self.sign(switch.xreplace({side: sp.Integer(value)})) for value in (1, -1))
        return above if above == below else sp.Piecewise((above, side > 0), (below, True))

    def _extreme(self, values: list[sp.Expr], way: int) -> sp.Expr:
        """The value that no other exceeds: pairs are compared, so that switches are differences of two."""
        pieces = []
        for n, value in enumerate(values[:-1]):
            others = [other for k, other in enumerate(values) if k != n]
            pieces.append((value, sp.And(*[self._positive(way * (value - other)) for other in others])))
        return sp.Piecewise(*pieces, (values[-1], True))

    def _positive(self, switch: sp.Expr) -> sp.Basic:
        return _is_positive(self.sign(switch))

    def _condition(self, condition: sp.Basic) -> sp.Basic:
        if not condition.has(*self.fields):
            return condition
        if isinstance(condition, Relational):
            return self._positive(self.held(condition.gts - condition.lts))
        return condition.func(*[self._condition(a) for a in condition.args])

    def _factors(self, switch: sp.Expr) -> list[sp.Expr]:
        """Of a product of polynomials, each as often as its power is odd; else itself."""
        if not switch.is_polynomial(*self.fields) or switch.has(*PIECEWISE):
            return [switch]
        content, factors = sp.factor_list(switch, *self.fields)
        return [content, *[factor for factor, power in factors if power % 2]]

    def _side(self, switch: sp.Expr) -> sp.Expr:
        """The side of a smooth function, a new one if it is no multiple of one that is known."""
        straight = unwrapped(switch, [*self.fields, *self.model.Y])
        if straight is not switch and (sign := self._ratio(switch, straight, constant=False)):
            return sign * self._side(straight)
        for side, known in self.sides.items():
            if sign := self._ratio(switch, known):
                return sign * side
        side = sp.Symbol(f"side_{len(self.sides)}", real=True)
        self.sides[side] = switch
        return side

    def _ratio(self, one: sp.Expr, other: sp.Expr, constant: bool = True) -> sp.Integer | None:
        """The sign of one / other, which random points find to be constant at every choice of labels and noise,
        or to have one sign; None if it is not."""
        generator = random.Random(3)
        signs = set()
        for choice in choices_of(self.model, one, other):
            ends = [e.xreplace(choice) for e in (one, other)]
            symbols = sorted(ends[0].free_symbols | ends[1].free_symbols, key=str)
            ratios = []
            for _ in range(_POINTS):
                at = {s: sp.Rational(abs(z) if s.is_positive else z) for s in symbols for z in [generator.gauss(0, 1)]}
                above, below = (e.xreplace(at).evalf(_DIGITS) for e in ends)
                if not (above.is_real and below.is_real and above != 0 and below != 0):
                    return None
                ratios.append(above / below)
            if constant and not all(abs(r - ratios[0]) < _SAME * abs(ratios[0]) for r in ratios):
                return None
            signs |= {int(sp.sign(r)) for r in ratios}
        return sp.Integer(signs.pop()) if len(signs) == 1 else None


def _is_positive(sign: sp.Expr) -> sp.Basic:
    """Return the condition that a sign, a product of sides or pieces within pieces, is positive.

    A comparison of pieces would become a conditional of conditions, which no printer knows.
    """
    if isinstance(sign, sp.Piecewise):
        return sp.Or(*[sp.And(when, _is_positive(value), *before) for value, when, before in _in_turn(sign)])
    return sign > 0


def _in_turn(pieces: sp.Piecewise) -> list[tuple[sp.Expr, sp.Basic, list[sp.Basic]]]:
    """Value, condition and what of the conditions before does not hold, piece by piece."""
    conditions = [when for _, when in pieces.args]
    return [(value, when, list(map(sp.Not, conditions[:n]))) for n, (value, when) in enumerate(pieces.args)]
