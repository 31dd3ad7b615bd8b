"""Arguments of the functions in a loss or a metric: how fast, and around which places, an integrand changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product

import sympy as sp

from ..authoring.model import ModelAt
from ..authoring.parameters import DiscreteNoise
from ..calculus.functions import LogSumExp, SoftmaxEntry
from ..calculus.piecewise import PIECEWISE, zeros
from .kinks import integration_variables

_MOST_TERMS = 40  # of a polynomial whose factors are looked for


@dataclass(frozen=True)
class Scales:
    """The scales on which an integrand changes with the fields X, Y and Gaussian noise.

    It changes little where neither an argument, on the scale of its own size if that is larger than one, nor the
    logarithm of a base changes by much more than one.

    Attributes:
        arguments: of functions; bases: of powers and logarithms.
        places: expressions that vanish in the middle of what may be narrow, affine in the fields.
    """

    arguments: tuple[sp.Expr, ...]
    bases: tuple[sp.Expr, ...]
    places: tuple[sp.Expr, ...]


def loss_scales(model: ModelAt) -> Scales:
    """Return the scales of the loss and of the probabilities of its labelled noise."""
    return _scales_of(model, [model.loss])


def teacher_scales(model: ModelAt) -> Scales:
    """Return the scales of the loss that do not hold X."""
    found = loss_scales(model)
    kinds = found.arguments, found.bases, found.places
    return Scales(*(tuple(e for e in kind if not e.has(*model.X)) for kind in kinds))


def metric_scales(model: ModelAt) -> Scales:
    """Return the scales of the metric, where X stands for its h."""
    return _scales_of(model, [] if model.metric is None else [model.metric])


def planes_of(loss: sp.Expr, X: Sequence[sp.Symbol]) -> tuple[sp.Expr, ...]:
    """Return expressions, affine in X, that vanish in the middle of what may be narrow in a loss."""
    return tuple(dict.fromkeys(place for _, each in scales([loss], X) for place in _places(each, X)))


def _scales_of(model: ModelAt, integrands: list[sp.Expr]) -> Scales:
    variables = integration_variables(model)
    labelled = [(u, law) for u, law in model.noise.values() if isinstance(law, DiscreteNoise)]
    laws = [sp.sympify(p) for _, law in labelled for p in law.probabilities] if integrands else []
    found: dict[str, dict[sp.Expr, None]] = {"arguments": {}, "bases": {}, "places": {}}
    for values in product(*[law.values for _, law in labelled]):
        drawn = {u: value for (u, _), value in zip(labelled, values, strict=True)}
        for kind, each in scales([e.xreplace(drawn) for e in (*integrands, *laws)], variables):
            found[kind][_positive(each)] = None
            found["places"] |= dict.fromkeys(_places(each, variables))
    return Scales(**{kind: tuple(each) for kind, each in found.items()})


def scales(expressions: Iterable[sp.Expr], variables: Sequence[sp.Symbol]) -> Iterator[tuple[str, sp.Expr]]:
    """Yield arguments and bases that hold a variable, each after the name of its kind, "arguments" or "bases"."""
    atoms = {atom for e in expressions for atom in e.atoms(sp.Function, sp.Pow) if atom.has(*variables)}
    for atom in sorted(atoms, key=sp.default_sort_key):
        arguments, bases = list(atom.args), []
        if isinstance(atom, sp.Pow):
            smooth = atom.exp.is_Integer and atom.exp > 0
            arguments, bases = [atom.exp * sp.log(atom.base)], [] if smooth else [atom.base]
            arguments = arguments if atom.exp.has(*variables) else []
        elif isinstance(atom, sp.log):
            arguments, bases = [], arguments
        elif isinstance(atom, SoftmaxEntry):
            own = atom.args[1 + int(atom.args[0])]
            arguments = [own - other for other in atom.args[1:] if other != own]
        elif isinstance(atom, LogSumExp):
            arguments = [one - other for one, other in combinations(atom.args, 2)]
        elif isinstance(atom, (*PIECEWISE, sp.KroneckerDelta)):
            continue
        for kind, found in (("arguments", arguments), ("bases", bases)):
            yield from ((kind, each) for each in found if each.has(*variables))


def _positive(expression: sp.Expr) -> sp.Expr:
    """Return the expression or its negative: one of the two for both."""
    return -expression if expression.could_extract_minus_sign() else expression


def _places(argument: sp.Expr, variables: Sequence[sp.Symbol]) -> list[sp.Expr]:
    """Return affine expressions that vanish where an argument does, or is stationary."""
    held = [v for v in variables if argument.has(v)]
    if not argument.is_polynomial(*held):
        return []
    polynomial = sp.Poly(argument, *held)
    if len(polynomial.terms()) > _MOST_TERMS:
        return []
    if polynomial.total_degree() < 2:
        return [_positive(polynomial.as_expr())]
    slopes = [slope for v in held if not (slope := polynomial.diff(v)).is_zero]
    found: dict[sp.Expr, None] = {}
    for each in (polynomial, reduce(sp.gcd, slopes)):
        for factor, _ in sp.Poly(each, *held).factor_list()[1]:
            own = [v for v in held if factor.has(v)]
            if factor.total_degree() == 1:
                found[_positive(factor.as_expr())] = None
            elif len(own) == 1:
                roots = zeros(factor.as_expr(), own[0]) or []
                found |= dict.fromkeys(own[0] - root for root in roots if root.is_real)
    return list(found)
