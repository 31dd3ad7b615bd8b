"""A loss of one student field in pieces: their ends, and its expression in each (docs/theory.md (11.11))."""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp

from ..authoring.model import FixedSizeModel
from ..calculus.functions import Sigmoid
from ..calculus.numeric import is_identically_zero
from ..calculus.piecewise import (
    PIECEWISE,
    closed_form_zeros,
    drop_delta_functions,
    restrict_to_smooth_piece,
    switching_functions,
)
from ..calculus.piecewise import smooth_pieces_of_function as pieces_of_atom
from ..calculus.subexpressions import factor_if_short
from ..errors import ModelError
from .corners import why_loss_cannot_be_split
from .kinks import LOSS_JUMPS, describe_gradient_jump, strip_monotone_functions
from .scales import iterate_arguments_and_bases

REFERENCE = sp.Symbol("r", real=True)


@dataclass(frozen=True)
class SmoothLossPieces:
    """The smooth pieces of a loss as a function of one student field x, at fixed teacher fields and noise.

    Attributes:
        loss: the loss as a function of x in the piece that contains the point x = r.
        places: values of x at which pieces may end; some may be complex.
        implicit_kinks: switching functions whose zeros have no formula; these zeros do not end a piece.
        quadratic: whether every piece is a polynomial in x of degree two or less.
        corners: whether the loss or its slope jumps where pieces meet.
        least: a lower bound on the second derivative in x, in all pieces; -oo where no formula gives one.
        narrow: pairs (position, width) of features of the loss that are narrower than its overall scale.
    """

    loss: sp.Expr
    places: tuple[sp.Expr, ...]
    implicit_kinks: tuple[sp.Expr, ...]
    quadratic: bool
    corners: bool
    least: sp.Expr
    narrow: tuple[tuple[sp.Expr, sp.Expr], ...]


def smooth_loss_pieces(model: FixedSizeModel, loss: sp.Expr) -> SmoothLossPieces | None:
    """Return the smooth pieces of the loss as a function of its only student field; None for several fields.

    Args:
        model: the model at fixed sizes.
        loss: the model's loss, in which subexpressions of Y and noise may be replaced by symbols.

    Raises:
        ModelError: the slope of the loss jumps at a point for which there is no formula.
    """
    if len(model.X) != 1:
        return None
    (places, implicit_kinks), jump = _piece_boundaries(loss, model.X[0]), describe_gradient_jump(model)
    obstacle = _why_jump_prevents_proximal_map(model, jump)
    if obstacle:
        raise ModelError(f"model {model.name}: {obstacle}")
    held = restrict_to_smooth_piece(loss, {model.X[0]: REFERENCE}, implicit_kinks)
    second, third = (drop_delta_functions(sp.diff(held, model.X[0], order)) for order in (2, 3))
    least = sp.Min(*[_lower_bound_on_curvature(branch, model.X[0]) for branch in _possible_piece_values(second)])
    quadratic = not implicit_kinks and all(map(is_identically_zero, _possible_piece_values(third)))
    return SmoothLossPieces(
        held,
        places,
        implicit_kinks,
        quadratic,
        bool(jump),
        least,
        () if quadratic else _narrow_loss_features(held, model.X[0]),
    )


def _narrow_loss_features(loss: sp.Expr, x: sp.Symbol) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
    """Return pairs (position, width) of the narrow features of a loss of one student field x.

    At the position the argument of a function is zero or stationary, and within the width it changes by about one.
    Only arguments that are polynomials in x of degree one or two are considered.
    """
    found: dict[tuple[sp.Expr, sp.Expr], None] = {}
    written = [
        (kind, _possible_piece_values(e) if e.has(REFERENCE) else [e])
        for kind, e in iterate_arguments_and_bases([loss], [x])
    ]
    for kind, argument in ((kind, argument) for kind, branches in written for argument in branches):
        if argument.has(REFERENCE) or not argument.is_polynomial(x) or not 0 < sp.degree(argument, x) <= 2:
            continue
        a, b, c = (sp.expand(argument).coeff(x, power) for power in (2, 1, 0))
        if a == 0:
            found[sp.factor_terms(-c / b), sp.Abs(1 / b)] = None
            continue
        middle, root = sp.factor_terms(-b / (2 * a)), sp.sqrt(sp.factor(b**2 - 4 * a * c))
        if kind == "bases":
            found[middle, sp.sqrt(sp.Abs(root**2)) / sp.Abs(2 * a)] = None
            continue
        found[middle, sp.sqrt(sp.Abs(1 / a))] = None
        if root != 0 and root.is_real is not False:
            found |= dict.fromkeys((middle + sign * root / (2 * a), 1 / root) for sign in (-1, 1))
    return tuple(found)


def _possible_piece_values(expression: sp.Expr, max_values: int = 64) -> list[sp.Expr]:
    """Return the expressions that a piecewise expression takes in its smooth pieces, at most about `max_values`."""
    found = [expression]
    while (atoms := [(e, atom) for e in found for atom in e.atoms(*PIECEWISE)]) and len(found) < max_values:
        e, atom = min(atoms, key=lambda pair: pair[1].count_ops())
        found.remove(e)
        found += [e.xreplace({atom: value}) for value in pieces_of_atom(atom)]
    return list(dict.fromkeys(found))


def _lower_bound_on_curvature(curvature: sp.Expr, x: sp.Symbol) -> sp.Expr:
    """Return a lower bound over all x of a second derivative; -oo if no formula gives one."""
    if not curvature.has(x):
        return curvature
    odds = _write_sigmoids_in_odds(curvature).replace(sp.KroneckerDelta, lambda *_: sp.Dummy(nonnegative=True))
    if (
        all(factor_if_short(term).is_nonnegative for term in sp.Add.make_args(odds))
        or factor_if_short(odds).is_nonnegative
    ):
        return sp.Integer(0)
    if not curvature.is_polynomial(x):
        return -sp.oo
    polynomial = sp.Poly(curvature, x)
    turns = sp.roots(polynomial.diff(x))
    # Denominators are not zero.
    leading = polynomial.LC().xreplace({s: sp.Dummy(real=True, nonzero=True) for s in polynomial.LC().free_symbols})
    rises = polynomial.degree() % 2 == 0 and leading.is_positive
    if not rises or sum(turns.values()) < polynomial.degree() - 1 or not all(turn.is_real for turn in turns):
        return -sp.oo
    return sp.Min(*[sp.factor(sp.expand(curvature.subs(x, turn))) for turn in turns])


def _write_sigmoids_in_odds(expression: sp.Expr) -> sp.Expr:
    """Return an expression with every sigmoid(z) written as o / (1 + o), with a positive symbol o for exp(z)."""
    odds: dict[sp.Expr, sp.Symbol] = {}  # with these SymPy recognises positive factors

    def write_sigmoid_in_odds(z: sp.Expr) -> sp.Expr:
        flipped = z.could_extract_minus_sign()
        o = odds.setdefault(-z if flipped else z, sp.Dummy(positive=True))
        return (1 if flipped else o) / (1 + o)

    return expression.replace(Sigmoid, write_sigmoid_in_odds)


def why_proximal_map_is_unavailable(model: FixedSizeModel) -> str:
    """Return the reason why the proximal map of the loss cannot be computed, as text; empty if it can.

    Reasons are a jump of a loss of several fields, or a jump of the slope at a point without a formula.
    """
    return _why_jump_prevents_proximal_map(model, describe_gradient_jump(model))


def _why_jump_prevents_proximal_map(model: FixedSizeModel, jump: str) -> str:
    """Return the reason why the described jump of the loss or slope prevents a proximal map; empty if none."""
    if not jump:
        return ""
    if model.symbols_of_order_parameters:
        return f"{jump}; the slope of a loss that contains overlaps or trained numbers must be continuous"
    if len(model.X) > 1:
        if jump.startswith(LOSS_JUMPS):
            return f"{jump}; in a loss of several fields only the slope may jump"
        return why_loss_cannot_be_split(model)
    if _piece_boundaries(model.loss, model.X[0])[1]:
        return f"{jump}, and no formula gives the place; write the loss so that it can be solved for X"
    return ""


def _piece_boundaries(loss: sp.Expr, x: sp.Symbol) -> tuple[tuple[sp.Expr, ...], tuple[sp.Expr, ...]]:
    """Return the values of x at which the loss switches pieces, and switching functions whose zeros have no formula."""
    found: dict[sp.Expr, None] = {}
    implicit_kinks: list[sp.Expr] = []
    for switch in switching_functions([loss]):
        if switch.has(x):
            roots = closed_form_zeros(strip_monotone_functions(switch, [x]), x)
            found |= dict.fromkeys(roots or ())
            implicit_kinks += [switch] if roots is None else []
    return tuple(found), tuple(implicit_kinks)


def find_feature_with_additive_noise(model: FixedSizeModel, features: list[sp.Expr]) -> int | None:
    """Return the index of a feature h(Y) + c u that determines all other features; None if there is none.

    Here Y is the only teacher field and u the only Gaussian noise of the model. Discrete noise may be added to the
    feature, but may not multiply Y or u.

    Args:
        model: the model at fixed sizes.
        features: subexpressions of the loss that depend on Y and noise alone.
    """
    normal = [u for u, law in model.noise.values() if hasattr(law, "variance")]
    laws = [sp.sympify(p) for _, law in model.noise.values() for p in getattr(law, "probabilities", ())]
    if model.structure.tokens != 1 or len(model.Y) != 1 or len(normal) != 1 or any(p.has(model.Y[0]) for p in laws):
        return None
    (y,), (u,) = model.Y, normal
    slopes = [tuple(drop_delta_functions(sp.diff(e, variable)) for variable in (y, u)) for e in features]
    drawn = {symbol for symbol, _ in model.noise.values()}
    for index, (along, across) in enumerate(slopes):
        is_sum = across != 0 and not across.free_symbols & {y, *drawn} and not along.free_symbols & drawn
        if is_sum and all(sp.expand(a * across - b * along) == 0 for a, b in slopes):
            return index
    return None


def jump_positions_in_teacher_field(model: FixedSizeModel, features: list[sp.Expr]) -> tuple[sp.Expr, ...] | None:
    """Return the values of Y at which the features jump; None unless they are piecewise constant in Y alone.

    Args:
        model: the model at fixed sizes.
        features: subexpressions of the loss that depend on Y and noise alone.
    """
    laws = [p for _, law in model.noise.values() for p in getattr(law, "probabilities", ())]
    if (
        model.structure.tokens != 1
        or len(model.Y) != 1
        or any(hasattr(law, "variance") for _, law in model.noise.values())
    ):
        return None
    y = model.Y[0]
    expressions = [*features, *map(sp.sympify, laws)]
    if any(drop_delta_functions(sp.diff(e, y)) != 0 for e in expressions):
        return None
    found: dict[sp.Expr, None] = {}
    for switch in switching_functions(expressions):
        roots = closed_form_zeros(strip_monotone_functions(switch, [y]), y)
        if roots is None:
            return None
        found |= dict.fromkeys(roots)
    return tuple(found)
