"""Scales of an integrand: how fast, and around which places, the functions in a loss or a metric change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product

import sympy as sp

from ..authoring.model import FixedSizeModel
from ..authoring.parameters import DiscreteNoise
from ..calculus.functions import LogSumExp, SoftmaxEntry
from ..calculus.piecewise import PIECEWISE, closed_form_zeros
from .kinks import integration_variables


@dataclass(frozen=True)
class IntegrandScales:
    """The expressions that set the scales on which an integrand changes with the fields and Gaussian noise.

    It changes little where neither an argument, on the scale of its own size if that is larger than one, nor the
    logarithm of a base changes by much more than one.

    Attributes:
        arguments: of functions; bases: of powers and logarithms.
        places: expressions, affine in the fields, that vanish at the centres of narrow features.
    """

    arguments: tuple[sp.Expr, ...]
    bases: tuple[sp.Expr, ...]
    places: tuple[sp.Expr, ...]


def loss_scales(model: FixedSizeModel) -> IntegrandScales:
    """Return the scales of the loss and of the probabilities of its discrete noise."""
    return _collect_scales(model, [model.loss])


def teacher_scales(model: FixedSizeModel) -> IntegrandScales:
    """Return the scales of the loss that do not depend on X."""
    found = loss_scales(model)
    kinds = found.arguments, found.bases, found.places
    return IntegrandScales(*(tuple(e for e in kind if not e.has(*model.X)) for kind in kinds))


def metric_scales(model: FixedSizeModel) -> IntegrandScales:
    """Return the scales of the metric in the student's fields."""
    return _collect_scales(model, [] if model.metric is None else [model.metric])


def narrow_feature_planes(loss: sp.Expr, X: Sequence[sp.Symbol]) -> tuple[sp.Expr, ...]:
    """Return expressions, affine in X, that vanish at the centres of narrow features of a loss.

    Args:
        loss: the loss.
        X: the student's fields.
    """
    return tuple(
        dict.fromkeys(
            place
            for _, each in iterate_scale_expressions([loss], X)
            for place in _planes_of_stationary_arguments(each, X)
        )
    )


def _collect_scales(model: FixedSizeModel, integrands: list[sp.Expr]) -> IntegrandScales:
    """Return the scales of integrands and of the probabilities of discrete noise."""
    variables = integration_variables(model)
    labelled = [(u, law) for u, law in model.noise.values() if isinstance(law, DiscreteNoise)]
    laws = [sp.sympify(p) for _, law in labelled for p in law.probabilities] if integrands else []
    found: dict[str, dict[sp.Expr, None]] = {"arguments": {}, "bases": {}, "places": {}}
    for values in product(*[law.values for _, law in labelled]):
        drawn = {u: value for (u, _), value in zip(labelled, values, strict=True)}
        for kind, each in iterate_scale_expressions([e.xreplace(drawn) for e in (*integrands, *laws)], variables):
            found[kind][_choose_sign_representative(each)] = None
            found["places"] |= dict.fromkeys(_planes_of_stationary_arguments(each, variables))
    return IntegrandScales(**{kind: tuple(each) for kind, each in found.items()})


def iterate_scale_expressions(
    expressions: Iterable[sp.Expr], variables: Sequence[sp.Symbol]
) -> Iterator[tuple[str, sp.Expr]]:
    """Yield ("arguments" or "bases", expression) for each function argument and power base that has a variable.

    Args:
        expressions: the expressions whose functions and powers are taken.
        variables: the variables.
    """
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


def _choose_sign_representative(expression: sp.Expr) -> sp.Expr:
    """Return an expression or its negative, the same one for both signs."""
    return -expression if expression.could_extract_minus_sign() else expression


def _planes_of_stationary_arguments(
    argument: sp.Expr, variables: Sequence[sp.Symbol], max_terms: int = 40
) -> list[sp.Expr]:
    """Return affine expressions that vanish where a function argument is zero or stationary."""
    held = [v for v in variables if argument.has(v)]
    if not argument.is_polynomial(*held):
        return []
    polynomial = sp.Poly(argument, *held)
    if len(polynomial.terms()) > max_terms:
        return []
    if polynomial.total_degree() < 2:
        return [_choose_sign_representative(polynomial.as_expr())]
    slopes = [slope for v in held if not (slope := polynomial.diff(v)).is_zero]
    found: dict[sp.Expr, None] = {}
    for each in (polynomial, reduce(sp.gcd, slopes)):
        for factor, _ in sp.Poly(each, *held).factor_list()[1]:
            own = [v for v in held if factor.has(v)]
            if factor.total_degree() == 1:
                found[_choose_sign_representative(factor.as_expr())] = None
            elif len(own) == 1:
                roots = closed_form_zeros(factor.as_expr(), own[0]) or []
                found |= dict.fromkeys(own[0] - root for root in roots if root.is_real)
    return list(found)
