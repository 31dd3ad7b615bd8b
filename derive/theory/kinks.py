"""Losses and metrics that are smooth in pieces: where the pieces meet, and whether slopes jump there."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import nan

import sympy as sp
from sympy.core.relational import Relational

from ..authoring.model import ModelAt
from ..authoring.parameters import DiscreteNoise, GaussianNoise
from ..calculus.functions import Sigmoid, SoftmaxEntry, Softplus
from ..calculus.piecewise import PIECEWISE, pieces_of, switches
from .draws import Constant, choices_of, constants_of, own_of

_LINES = 40
_STEPS = 60
_ALONG = [sign * 10 ** (n / 4) for sign, powers in ((-1, range(8, -13, -1)), (1, range(-12, 9))) for n in powers]
_INCREASING = (sp.exp, sp.log, sp.tanh, sp.sinh, sp.atan, sp.erf, Sigmoid, Softplus)
_ODD = (sp.tanh, sp.sinh, sp.atan, sp.erf)
_OWN = (SoftmaxEntry, Sigmoid, Softplus)
_IN_DOUBLES = {f.__name__: lambda *arguments, f=f: float(f(*arguments)) for f in _OWN}
_MOST_PIECES = 64
_PROBES = 60
LOSS_JUMPS = "the loss jumps"


@dataclass(frozen=True)
class Kinks:
    """Where an integrand is not smooth in the fields X, Y and Gaussian noise.

    Attributes:
        planes: expressions that vanish there, affine in the fields; what else they hold is constant over an average.
        curved: those that are not affine.
    """

    planes: tuple[sp.Expr, ...]
    curved: tuple[sp.Expr, ...]


def integration_variables(model: ModelAt) -> list[sp.Symbol]:
    """X, Y, rows first, and Gaussian noise."""
    return [*model.X, *model.Y, *[u for u, law in model.noise.values() if isinstance(law, GaussianNoise)]]


def loss_kinks(model: ModelAt) -> Kinks:
    """Of the loss and of the probabilities of its labelled noise, declared ones included."""
    return _kinks_of(model, [model.loss], model.loss_kinks)


def metric_kinks(model: ModelAt) -> Kinks:
    """The same for the metric, where X stands for its h."""
    return _kinks_of(model, [] if model.metric is None else [model.metric], model.metric_kinks)


def metric_is_steps(model: ModelAt) -> bool:
    """Whether the metric, its labelled noise averaged over, is constant between the places where it is not smooth."""
    if model.metric is None:
        return False
    laws = [
        sp.sympify(p) for _, law in model.noise.values() if isinstance(law, DiscreteNoise) for p in law.probabilities
    ]
    variables = integration_variables(model)
    return not any(piece.has(*variables) for each in (model.metric, *laws) for piece in _pieces(each, variables))


def _kinks_of(model: ModelAt, integrands: list[sp.Expr], declared: tuple[sp.Expr, ...]) -> Kinks:
    variables = integration_variables(model)
    labelled = [(u, law) for u, law in model.noise.values() if isinstance(law, DiscreteNoise)]
    laws = [sp.sympify(p) for _, law in labelled for p in law.probabilities] if integrands else []
    found = [*declared, *switches([*integrands, *laws]), *_singular(model, [*integrands, *laws], variables)]
    planes: dict[sp.Expr, None] = {}
    curved: dict[sp.Expr, None] = {}
    for values in product(*[law.values for _, law in labelled]):
        drawn = {u: value for (u, _), value in zip(labelled, values, strict=True)}
        for surface in found:
            for factor in _surfaces(surface.xreplace(drawn), variables):
                (planes if _is_affine(factor, variables) else curved)[factor] = None
    return Kinks(tuple(planes), tuple(curved))


def _surfaces(switch: sp.Expr, variables: Sequence[sp.Symbol]) -> Iterator[sp.Expr]:
    """What vanishes wherever the switch does, factor by factor: its pieces count on all of space."""
    for piece in _pieces(switch, variables):
        for factor in _factors(unwrapped(piece, variables), variables):
            if factor.has(*variables) and not (factor.is_positive or factor.is_negative):
                yield -factor if factor.could_extract_minus_sign() else factor


def _pieces(expression: sp.Expr, variables: Sequence[sp.Symbol]) -> list[sp.Expr]:
    """What an expression is on its pieces, functions in pieces resolved as far as there are not too many."""
    pieces = [expression]
    while (atoms := [atom for piece in pieces for atom in _innermost(piece, variables)]) and len(pieces) < _MOST_PIECES:
        atom = atoms[0]
        pieces = list(dict.fromkeys(p.xreplace({atom: value}) for p in pieces for value in pieces_of(atom)))
    return pieces


def _innermost(expression: sp.Expr, variables: Sequence[sp.Symbol]) -> list[sp.Expr]:
    """Functions in pieces that hold a variable, and no other such function."""
    atoms = [atom for atom in expression.atoms(*PIECEWISE) if atom.has(*variables)]
    inner = [atom for atom in atoms if not any(other is not atom and atom.has(other) for other in atoms)]
    return sorted(inner, key=sp.default_sort_key)


def unwrapped(switch: sp.Expr, variables: Sequence[sp.Symbol]) -> sp.Expr:
    """a for f(a), f odd, and a - b for f(a) - f(b), f increasing: entries of one softmax grow with their scores."""
    if isinstance(switch, _ODD):
        return switch.args[0]
    if switch.is_Add and len(switch.args) == 2:
        (c, one), (e, other) = (term.as_independent(*variables, as_Add=False) for term in switch.args)
        if c == -e and one.func is other.func:
            if isinstance(one, _INCREASING):
                return one.args[0] - other.args[0]
            if isinstance(one, SoftmaxEntry) and one.args[1:] == other.args[1:]:
                return one.args[1 + int(one.args[0])] - one.args[1 + int(other.args[0])]
    return switch


def _factors(switch: sp.Expr, variables: Sequence[sp.Symbol]) -> list[sp.Expr]:
    if _is_affine(switch, variables) or not switch.is_polynomial(*variables):
        return [switch]
    try:
        return [factor for factor, _ in sp.factor_list(sp.fraction(sp.together(switch))[0])[1]]
    except sp.PolynomialError:
        return [switch]


def _is_affine(expression: sp.Expr, variables: Sequence[sp.Symbol]) -> bool:
    slopes = [sp.diff(expression, v) for v in variables if expression.has(v)]
    return not any(sp.expand(slope).has(*variables) for slope in slopes)


def _singular(model: ModelAt, expressions: Iterable[sp.Expr], variables: Sequence[sp.Symbol]) -> list[sp.Expr]:
    """Arguments of logarithms, roots and reciprocals that are seen to change their sign."""
    found: dict[sp.Expr, None] = {}
    for expression in expressions:
        for atom in expression.atoms(sp.log, sp.Pow):
            base = atom.args[0]
            smooth = atom.is_Pow and atom.exp.is_Integer and atom.exp > 0
            if not smooth and base.has(*variables) and not base.is_positive and _changes_sign(model, base):
                found[base] = None
    return sorted(found, key=sp.default_sort_key)


def _changes_sign(model: ModelAt, expression: sp.Expr) -> bool:
    """Whether random points of the fields, at the parameters' defaults, find it of both signs for a choice of labels
    and labelled noise."""
    generator = random.Random(7)
    defaults = dict(zip(model.parameter_symbols(), model.parameter_defaults(), strict=True))
    defaults |= {symbol: value.start for symbol, value in model.trained.values()}
    for choice in choices_of(model, expression):
        at = expression.xreplace(choice | defaults)
        symbols = sorted(at.free_symbols, key=str)
        signs = set()
        for n in range(_PROBES):
            drawn = {s: sp.Float(2 ** (n % 4) * generator.gauss(0, 1)) for s in symbols}
            value = at.xreplace({s: abs(z) if s.is_positive else z for s, z in drawn.items()}).evalf()
            if value.is_real and value != 0:
                signs.add(bool(value > 0))
        if len(signs) == 2:
            return True
    return False


def slope_jump(model: ModelAt) -> str:
    """Where the slope of the loss in X jumps, or the loss itself, in words; empty where neither does.

    A probe, for every choice of labels and labelled noise, at the parameters' defaults and at others in their ranges:
    every step in the loss or its slope is approached along random lines, and the two limits are compared.
    """
    if not model.loss.has(*PIECEWISE):
        return ""
    generator = random.Random(5)
    fields = set(model.X)
    constants = {c.symbol: c for c in (*constants_of(model), *own_of(model))}
    losses = list(dict.fromkeys(model.loss.xreplace(choice) for choice in choices_of(model, model.loss)))
    functions = [("the loss", loss) for loss in losses]
    functions += [(f"the slope of the loss in {x}", sp.diff(loss, x)) for loss in losses for x in model.X]
    for what, function in functions:
        for atom in sorted(function.atoms(sp.Heaviside, sp.sign, Relational), key=sp.default_sort_key):
            surface = atom.lhs - atom.rhs if isinstance(atom, Relational) else atom.args[0]
            if not surface.free_symbols & fields:
                continue
            sides = [function.xreplace(side) for side in _decided(function, atom, surface)]
            if _differ_on_surface(sides, surface, constants, generator):
                return f"{what} jumps where {surface} = 0"
    return ""


def _decided(function: sp.Expr, atom: sp.Basic, surface: sp.Expr) -> tuple[dict[sp.Basic, sp.Basic], ...]:
    """What an atom is replaced with above its surface and below: a condition together with all others of the surface,
    as that of the next piece."""
    if not isinstance(atom, Relational):
        return tuple({atom: value} for value in pieces_of(atom))
    found: tuple[dict[sp.Basic, sp.Basic], ...] = ({}, {})
    for other in function.atoms(Relational):
        for sign in (1, -1):
            if sp.expand(other.lhs - other.rhs - sign * surface) == 0:
                for side, there in zip((1, -1), found, strict=True):
                    there[other] = other.func(sign * side, 0)
    return found


def _differ_on_surface(
    sides: Sequence[sp.Expr], surface: sp.Expr, constants: Mapping[sp.Symbol, Constant], generator: random.Random
) -> bool:
    """Whether two functions differ where surface = 0, which is looked for along random lines, near the origin and far
    out; by bisection."""
    symbols = sorted(surface.free_symbols.union(*(side.free_symbols for side in sides)), key=str)
    place = sp.lambdify(symbols, surface, [_IN_DOUBLES, "math"])
    values = sp.lambdify(symbols, list(sides), [{f.__name__: f for f in _OWN}, "sympy"])

    def size(point: Sequence[float]) -> float:
        try:
            return float(place(*point))
        except (ValueError, ArithmeticError, TypeError):
            return nan

    for n in range(_LINES):
        base, ray = [], []
        for s in symbols:
            if (constant := constants.get(s)) is not None:
                base.append(constant.drawn(generator) if n % 2 else float(constant.default))
            else:
                base.append(10.0 ** (n // 2 % 5 - 3) * generator.gauss(0, 1))
            ray.append(0.0 if constant or s.is_positive else generator.gauss(0, 1))
            base[-1] = abs(base[-1]) if s.is_positive else base[-1]

        def at(t: float, base: Sequence[float] = base, ray: Sequence[float] = ray) -> list[float]:
            return [b + t * r for b, r in zip(base, ray, strict=True)]

        sizes = [size(at(t)) for t in _ALONG]
        for low, high, before, after in zip(_ALONG, _ALONG[1:], sizes, sizes[1:], strict=False):
            if not before * after < 0:
                continue
            for _ in range(_STEPS):
                middle = (low + high) / 2
                low, high = (middle, high) if (size(at(middle)) > 0) == (before > 0) else (low, middle)
            if abs(size(at(low))) < 1e-9:  # else the sign changed in a step of the surface itself
                one, other = (complex(value) for value in values(*at(low)))
                if abs(one - other) > 1e-9 * (1 + abs(one) + abs(other)):
                    return True
    return False
