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
class IntegrandLengthScales:
    """Subexpressions that tell over which distances in the fields and Gaussian noise an integrand changes.

    The integrand changes little over a step along which every argument changes by less than max(1, its size) and the
    logarithm of every base by less than one.

    Attributes:
        arguments: arguments of the functions in the integrand.
        bases: bases of its powers and arguments of its logarithms.
        places: expressions, affine in the fields, that are zero at the centres of narrow features.
    """

    arguments: tuple[sp.Expr, ...]
    bases: tuple[sp.Expr, ...]
    places: tuple[sp.Expr, ...]


def length_scales_of_loss(model: FixedSizeModel) -> IntegrandLengthScales:
    """Return the subexpressions that set the length scales of the loss and of its noise probabilities."""
    return _length_scales_of_integrands(model, [model.loss])


def length_scales_in_teacher_fields(model: FixedSizeModel) -> IntegrandLengthScales:
    """Return the subexpressions that set the length scales of the loss in the teacher's fields: those without X."""
    found = length_scales_of_loss(model)
    kinds = found.arguments, found.bases, found.places
    return IntegrandLengthScales(*(tuple(e for e in kind if not e.has(*model.X)) for kind in kinds))


def length_scales_of_metric(model: FixedSizeModel) -> IntegrandLengthScales:
    """Return the subexpressions that set the length scales of the metric; the symbols X stand for its fields h."""
    return _length_scales_of_integrands(model, [] if model.metric is None else [model.metric])


def centres_of_narrow_features(loss: sp.Expr, X: Sequence[sp.Symbol]) -> tuple[sp.Expr, ...]:
    """Return expressions, affine in X, that are zero at the centres of narrow features of a loss.

    Args:
        loss: the loss.
        X: the student's fields.
    """
    return tuple(
        dict.fromkeys(
            place
            for _, each in iterate_arguments_and_bases([loss], X)
            for place in _zeros_and_stationary_points(each, X)
        )
    )


def _length_scales_of_integrands(model: FixedSizeModel, integrands: list[sp.Expr]) -> IntegrandLengthScales:
    """Return the subexpressions that set the length scales of integrands and of noise probabilities."""
    variables = integration_variables(model)
    labelled = [(u, law) for u, law in model.noise.values() if isinstance(law, DiscreteNoise)]
    laws = [sp.sympify(p) for _, law in labelled for p in law.probabilities] if integrands else []
    found: dict[str, dict[sp.Expr, None]] = {"arguments": {}, "bases": {}, "places": {}}
    for values in product(*[law.values for _, law in labelled]):
        drawn = {u: value for (u, _), value in zip(labelled, values, strict=True)}
        for kind, each in iterate_arguments_and_bases([e.xreplace(drawn) for e in (*integrands, *laws)], variables):
            found[kind][_normalise_overall_sign(each)] = None
            found["places"] |= dict.fromkeys(_zeros_and_stationary_points(each, variables))
    return IntegrandLengthScales(**{kind: tuple(each) for kind, each in found.items()})


def iterate_arguments_and_bases(
    expressions: Iterable[sp.Expr], variables: Sequence[sp.Symbol]
) -> Iterator[tuple[str, sp.Expr]]:
    """Yield ("arguments", e) for each function argument and ("bases", e) for each base of a power with a variable.

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


def _normalise_overall_sign(expression: sp.Expr) -> sp.Expr:
    """Return the expression or its negative: the same result for an expression and for its negative."""
    return -expression if expression.could_extract_minus_sign() else expression


def _zeros_and_stationary_points(
    argument: sp.Expr, variables: Sequence[sp.Symbol], max_terms: int = 40
) -> list[sp.Expr]:
    """Return affine expressions that are zero where a polynomial argument of a function is zero or stationary."""
    held = [v for v in variables if argument.has(v)]
    if not argument.is_polynomial(*held):
        return []
    polynomial = sp.Poly(argument, *held)
    if len(polynomial.terms()) > max_terms:
        return []
    if polynomial.total_degree() < 2:
        return [_normalise_overall_sign(polynomial.as_expr())]
    slopes = [slope for v in held if not (slope := polynomial.diff(v)).is_zero]
    found: dict[sp.Expr, None] = {}
    for each in (polynomial, reduce(sp.gcd, slopes)):
        for factor, _ in sp.Poly(each, *held).factor_list()[1]:
            own = [v for v in held if factor.has(v)]
            if factor.total_degree() == 1:
                found[_normalise_overall_sign(factor.as_expr())] = None
            elif len(own) == 1:
                roots = closed_form_zeros(factor.as_expr(), own[0]) or []
                found |= dict.fromkeys(own[0] - root for root in roots if root.is_real)
    return list(found)
