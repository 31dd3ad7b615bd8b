"""Losses and metrics that are smooth in pieces: where the pieces meet, and whether slopes jump there."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import nan

import sympy as sp
from sympy.core.relational import Relational

from ..authoring.model import FixedSizeModel
from ..authoring.parameters import DiscreteNoise, GaussianNoise
from ..calculus.functions import Sigmoid, SoftmaxEntry, Softplus
from ..calculus.piecewise import PIECEWISE, smooth_pieces_of_function, switching_functions
from .draws import ConstantSymbol, joint_label_and_noise_values, order_parameter_constants, parameter_constants

_ALONG = [sign * 10 ** (n / 4) for sign, powers in ((-1, range(8, -13, -1)), (1, range(-12, 9))) for n in powers]
_INCREASING = (sp.exp, sp.log, sp.tanh, sp.sinh, sp.atan, sp.erf, Sigmoid, Softplus)
_ODD = (sp.tanh, sp.sinh, sp.atan, sp.erf)
_OWN = (SoftmaxEntry, Sigmoid, Softplus)
_IN_DOUBLES = {f.__name__: lambda *arguments, f=f: float(f(*arguments)) for f in _OWN}
LOSS_JUMPS = "the loss jumps"


@dataclass(frozen=True)
class IntegrandKinks:
    """The points where an integrand is not smooth in the fields X, Y and Gaussian noise, as zeros of expressions.

    Attributes:
        planes: expressions affine in the fields and noise, whose zeros are hyperplanes of kinks.
        curved: expressions that are not affine, whose zeros are curved surfaces of kinks.
    """

    planes: tuple[sp.Expr, ...]
    curved: tuple[sp.Expr, ...]


def integration_variables(model: FixedSizeModel) -> list[sp.Symbol]:
    """Return the integration variables of averages over a sample: student and teacher fields, Gaussian noise."""
    return [*model.X, *model.Y, *[u for u, law in model.noise.values() if isinstance(law, GaussianNoise)]]


def loss_kinks(model: FixedSizeModel) -> IntegrandKinks:
    """Return the kinks of the loss and of its noise probabilities, including kinks that the author declares."""
    return _find_kinks(model, [model.loss], model.loss_kinks)


def metric_kinks(model: FixedSizeModel) -> IntegrandKinks:
    """Return the kinks of the metric, including declared kinks; the symbols X stand for its fields h."""
    return _find_kinks(model, [] if model.metric is None else [model.metric], model.metric_kinks)


def is_metric_piecewise_constant(model: FixedSizeModel) -> bool:
    """Return whether the metric, averaged over discrete noise, is constant between its kinks."""
    if model.metric is None:
        return False
    laws = [
        sp.sympify(p) for _, law in model.noise.values() if isinstance(law, DiscreteNoise) for p in law.probabilities
    ]
    variables = integration_variables(model)
    return not any(
        piece.has(*variables)
        for each in (model.metric, *laws)
        for piece in _smooth_pieces_of_expression(each, variables)
    )


def _find_kinks(model: FixedSizeModel, integrands: list[sp.Expr], declared: tuple[sp.Expr, ...]) -> IntegrandKinks:
    """Return the kinks of the given integrands and of the probabilities of discrete noise, and the declared kinks."""
    variables = integration_variables(model)
    labelled = [(u, law) for u, law in model.noise.values() if isinstance(law, DiscreteNoise)]
    laws = [sp.sympify(p) for _, law in labelled for p in law.probabilities] if integrands else []
    found = [
        *declared,
        *switching_functions([*integrands, *laws]),
        *_singular_arguments(model, [*integrands, *laws], variables),
    ]
    planes: dict[sp.Expr, None] = {}
    curved: dict[sp.Expr, None] = {}
    for values in product(*[law.values for _, law in labelled]):
        drawn = {u: value for (u, _), value in zip(labelled, values, strict=True)}
        for surface in found:
            for factor in _iterate_smooth_factors(surface.xreplace(drawn), variables):
                (planes if _is_affine_in_fields(factor, variables) else curved)[factor] = None
    return IntegrandKinks(tuple(planes), tuple(curved))


def _iterate_smooth_factors(switch: sp.Expr, variables: Sequence[sp.Symbol]) -> Iterator[sp.Expr]:
    """Yield smooth functions of which at least one is zero wherever the switching function is zero."""
    for piece in _smooth_pieces_of_expression(switch, variables):
        for factor in _polynomial_factors(strip_monotone_functions(piece, variables), variables):
            if factor.has(*variables) and not (factor.is_positive or factor.is_negative):
                yield -factor if factor.could_extract_minus_sign() else factor


def _smooth_pieces_of_expression(
    expression: sp.Expr, variables: Sequence[sp.Symbol], max_pieces: int = 64
) -> list[sp.Expr]:
    """Return the expressions that hold in the smooth pieces of a piecewise expression, at most about `max_pieces`."""
    pieces = [expression]
    while (atoms := [atom for piece in pieces for atom in _innermost_piecewise_functions(piece, variables)]) and len(
        pieces
    ) < max_pieces:
        atom = atoms[0]
        pieces = list(
            dict.fromkeys(p.xreplace({atom: value}) for p in pieces for value in smooth_pieces_of_function(atom))
        )
    return pieces


def _innermost_piecewise_functions(expression: sp.Expr, variables: Sequence[sp.Symbol]) -> list[sp.Expr]:
    """Return the piecewise functions in an expression that contain a variable but no other piecewise function."""
    atoms = [atom for atom in expression.atoms(*PIECEWISE) if atom.has(*variables)]
    inner = [atom for atom in atoms if not any(other is not atom and atom.has(other) for other in atoms)]
    return sorted(inner, key=sp.default_sort_key)


def strip_monotone_functions(switch: sp.Expr, variables: Sequence[sp.Symbol]) -> sp.Expr:
    """Return a simpler function with the same zeros: a for an odd f(a), a - b for f(a) - f(b) with f increasing.

    The difference of two entries of one softmax is replaced by the difference of their scores.

    Args:
        switch: the function, of which only the sign and the zeros matter.
        variables: the variables of the function.
    """
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


def _polynomial_factors(switch: sp.Expr, variables: Sequence[sp.Symbol]) -> list[sp.Expr]:
    """Return the irreducible factors of a polynomial; [function] for a function that is no polynomial."""
    if _is_affine_in_fields(switch, variables) or not switch.is_polynomial(*variables):
        return [switch]
    try:
        return [factor for factor, _ in sp.factor_list(sp.fraction(sp.together(switch))[0])[1]]
    except sp.PolynomialError:
        return [switch]


def _is_affine_in_fields(expression: sp.Expr, variables: Sequence[sp.Symbol]) -> bool:
    slopes = [sp.diff(expression, v) for v in variables if expression.has(v)]
    return not any(sp.expand(slope).has(*variables) for slope in slopes)


def _singular_arguments(
    model: FixedSizeModel, expressions: Iterable[sp.Expr], variables: Sequence[sp.Symbol]
) -> list[sp.Expr]:
    """Return the arguments of logarithms, roots and reciprocals that take both signs at random points."""
    found: dict[sp.Expr, None] = {}
    for expression in expressions:
        for atom in expression.atoms(sp.log, sp.Pow):
            base = atom.args[0]
            smooth = atom.is_Pow and atom.exp.is_Integer and atom.exp > 0
            if (
                not smooth
                and base.has(*variables)
                and not base.is_positive
                and _changes_sign_at_random_points(model, base)
            ):
                found[base] = None
    return sorted(found, key=sp.default_sort_key)


def _changes_sign_at_random_points(model: FixedSizeModel, expression: sp.Expr, points: int = 60) -> bool:
    """Return whether an expression takes both signs at random points, for at least one choice of labels and noise."""
    generator = random.Random(7)
    defaults = dict(zip(model.parameter_symbols(), model.parameter_defaults(), strict=True))
    defaults |= {symbol: value.start for symbol, value in model.trained.values()}
    for choice in joint_label_and_noise_values(model, expression):
        at = expression.xreplace(choice | defaults)
        symbols = sorted(at.free_symbols, key=str)
        signs = set()
        for n in range(points):
            drawn = {s: sp.Float(2 ** (n % 4) * generator.gauss(0, 1)) for s in symbols}
            value = at.xreplace({s: abs(z) if s.is_positive else z for s, z in drawn.items()}).evalf()
            if value.is_real and value != 0:
                signs.add(bool(value > 0))
        if len(signs) == 2:
            return True
    return False


def describe_gradient_jump(model: FixedSizeModel) -> str:
    """Return where the loss or its gradient in X jumps, as text; empty if both are continuous.

    The test is numerical, for all labels and discrete noise, at default and random parameters: each step function in
    the loss or its gradient is approached from both sides along random lines, and the two limits are compared.
    """
    if not model.loss.has(*PIECEWISE):
        return ""
    generator = random.Random(5)
    fields = set(model.X)
    constants = {c.symbol: c for c in (*parameter_constants(model), *order_parameter_constants(model))}
    losses = list(
        dict.fromkeys(model.loss.xreplace(choice) for choice in joint_label_and_noise_values(model, model.loss))
    )
    functions = [("the loss", loss) for loss in losses]
    functions += [(f"the slope of the loss in {x}", sp.diff(loss, x)) for loss in losses for x in model.X]
    for what, function in functions:
        for atom in sorted(function.atoms(sp.Heaviside, sp.sign, Relational), key=sp.default_sort_key):
            surface = atom.lhs - atom.rhs if isinstance(atom, Relational) else atom.args[0]
            if not surface.free_symbols & fields:
                continue
            sides = [function.xreplace(side) for side in _values_on_both_sides(function, atom, surface)]
            if _has_jump_across_surface(sides, surface, constants, generator):
                return f"{what} jumps where {surface} = 0"
    return ""


def _values_on_both_sides(function: sp.Expr, atom: sp.Basic, surface: sp.Expr) -> tuple[dict[sp.Basic, sp.Basic], ...]:
    """Return two substitutions of a sign, step or condition: by its value on either side of its zero surface.

    All conditions that change at the same surface are substituted together.
    """
    if not isinstance(atom, Relational):
        return tuple({atom: value} for value in smooth_pieces_of_function(atom))
    found: tuple[dict[sp.Basic, sp.Basic], ...] = ({}, {})
    for other in function.atoms(Relational):
        for sign in (1, -1):
            if sp.expand(other.lhs - other.rhs - sign * surface) == 0:
                for side, there in zip((1, -1), found, strict=True):
                    there[other] = other.func(sign * side, 0)
    return found


def _has_jump_across_surface(
    sides: Sequence[sp.Expr],
    surface: sp.Expr,
    constants: Mapping[sp.Symbol, ConstantSymbol],
    generator: random.Random,
    lines: int = 40,
    bisections: int = 60,
) -> bool:
    """Return whether the two one-sided functions `sides` differ somewhere on the surface where `surface` = 0.

    Points of the surface are found by bisection along random lines, some near the origin and some far from it.
    """
    symbols = sorted(surface.free_symbols.union(*(side.free_symbols for side in sides)), key=str)
    place = sp.lambdify(symbols, surface, [_IN_DOUBLES, "math"])
    values = sp.lambdify(symbols, list(sides), [{f.__name__: f for f in _OWN}, "sympy"])

    def evaluate_surface_function(point: Sequence[float]) -> float:
        try:
            return float(place(*point))
        except (ValueError, ArithmeticError, TypeError):
            return nan

    for n in range(lines):
        base, ray = [], []
        for s in symbols:
            if (constant := constants.get(s)) is not None:
                base.append(constant.draw_value(generator) if n % 2 else float(constant.default))
            else:
                base.append(10.0 ** (n // 2 % 5 - 3) * generator.gauss(0, 1))
            ray.append(0.0 if constant or s.is_positive else generator.gauss(0, 1))
            base[-1] = abs(base[-1]) if s.is_positive else base[-1]

        def _point_on_line(t: float, base: Sequence[float] = base, ray: Sequence[float] = ray) -> list[float]:
            return [b + t * r for b, r in zip(base, ray, strict=True)]

        sizes = [evaluate_surface_function(_point_on_line(t)) for t in _ALONG]
        for low, high, before, after in zip(_ALONG, _ALONG[1:], sizes, sizes[1:], strict=False):
            if not before * after < 0:
                continue
            for _ in range(bisections):
                middle = (low + high) / 2
                low, high = (
                    (middle, high)
                    if (evaluate_surface_function(_point_on_line(middle)) > 0) == (before > 0)
                    else (low, middle)
                )
            if (
                abs(evaluate_surface_function(_point_on_line(low))) < 1e-9
            ):  # else the sign changed in a step of the surface itself
                one, other = (complex(value) for value in values(*_point_on_line(low)))
                if abs(one - other) > 1e-9 * (1 + abs(one) + abs(other)):
                    return True
    return False
