"""A loss of one student field in pieces: their ends, and its expression in each (docs/theory.md (11.11))."""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp

from ..authoring.model import ModelAt
from ..calculus.functions import Sigmoid
from ..calculus.numeric import is_identically_zero
from ..calculus.piecewise import PIECEWISE, drop_deltas, find_zeros, restrict_to_piece, switching_functions
from ..calculus.piecewise import pieces_of as pieces_of_atom
from ..calculus.subexpressions import factor_if_short
from ..errors import ModelError
from .corners import sign_split_obstacle
from .kinks import LOSS_JUMPS, slope_jump, unwrap_monotone
from .scales import iterate_scales

REFERENCE = sp.Symbol("r", real=True)


@dataclass(frozen=True)
class LossPieces:
    """The pieces of a loss in x, at fixed teacher fields and noise.

    Attributes:
        loss: in x, of the piece that contains the reference r; places: where pieces may end, some perhaps not real.
        implicit_kinks: switching functions whose zeros have no formula; a piece extends over both sides of these.
        quadratic: whether every piece is a polynomial in x of degree two or less.
        corners: whether the loss or its slope jumps where pieces meet.
        least: a lower bound on the second derivative in x, in all pieces; -oo where no formula gives one.
        narrow: (place, width) around which a function in it may change within the width.
    """

    loss: sp.Expr
    places: tuple[sp.Expr, ...]
    implicit_kinks: tuple[sp.Expr, ...]
    quadratic: bool
    corners: bool
    least: sp.Expr
    narrow: tuple[tuple[sp.Expr, sp.Expr], ...]


def loss_pieces(model: ModelAt, loss: sp.Expr) -> LossPieces | None:
    """Return the pieces of the loss of a model with one student field; None where there are more.

    Args:
        model: the model.
        loss: the model's, possibly in names of its subexpressions of Y and noise.

    Raises:
        ModelError: the slope of the loss jumps where no formula gives the place.
    """
    if len(model.X) != 1:
        return None
    (places, implicit_kinks), jump = _piece_ends(loss, model.X[0]), slope_jump(model)
    obstacle = _proximal_obstacle(model, jump)
    if obstacle:
        raise ModelError(f"model {model.name}: {obstacle}")
    held = restrict_to_piece(loss, {model.X[0]: REFERENCE}, implicit_kinks)
    second, third = (drop_deltas(sp.diff(held, model.X[0], order)) for order in (2, 3))
    least = sp.Min(*[_lower_bound(branch, model.X[0]) for branch in _possible_values(second)])
    quadratic = not implicit_kinks and all(map(is_identically_zero, _possible_values(third)))
    return LossPieces(
        held,
        places,
        implicit_kinks,
        quadratic,
        bool(jump),
        least,
        () if quadratic else _narrow_features(held, model.X[0]),
    )


def _narrow_features(loss: sp.Expr, x: sp.Symbol) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
    """Return (place, width) of the narrow features of a loss of one field.

    Arguments of functions vanish or are stationary there and change by one within the width; bases are stationary
    there, and their zeros are that far from the line.

    Arguments and bases that are no polynomials of degree two or less are left out.
    """
    found: dict[tuple[sp.Expr, sp.Expr], None] = {}
    written = [(kind, _possible_values(e) if e.has(REFERENCE) else [e]) for kind, e in iterate_scales([loss], [x])]
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


def _possible_values(expression: sp.Expr, max_values: int = 64) -> list[sp.Expr]:
    """Return all values that an expression in pieces may be equal to, and possibly more, up to `max_values`."""
    found = [expression]
    while (atoms := [(e, atom) for e in found for atom in e.atoms(*PIECEWISE)]) and len(found) < max_values:
        e, atom = min(atoms, key=lambda pair: pair[1].count_ops())
        found.remove(e)
        found += [e.xreplace({atom: value}) for value in pieces_of_atom(atom)]
    return list(dict.fromkeys(found))


def _lower_bound(curvature: sp.Expr, x: sp.Symbol) -> sp.Expr:
    """Return a lower bound of an expression at all x; -oo where no formula gives one."""
    if not curvature.has(x):
        return curvature
    odds = _sigmoids_as_odds(curvature).replace(sp.KroneckerDelta, lambda *_: sp.Dummy(nonnegative=True))
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


def _sigmoids_as_odds(expression: sp.Expr) -> sp.Expr:
    """Return the expression with o / (1 + o) for sigmoids, o > 0 a symbol for every argument or its negative."""
    odds: dict[sp.Expr, sp.Symbol] = {}  # with these SymPy recognises positive factors

    def odds_fraction(z: sp.Expr) -> sp.Expr:
        flipped = z.could_extract_minus_sign()
        o = odds.setdefault(-z if flipped else z, sp.Dummy(positive=True))
        return (1 if flipped else o) / (1 + o)

    return expression.replace(Sigmoid, odds_fraction)


def proximal_obstacle(model: ModelAt) -> str:
    """Return the reason why a loss has no proximal map here, in words; empty where it has one.

    It jumps in several fields, or its slope jumps where no formula gives the place.
    """
    return _proximal_obstacle(model, slope_jump(model))


def _proximal_obstacle(model: ModelAt, jump: str) -> str:
    """Return the text of `proximal_obstacle`, given the place of the jump."""
    if not jump:
        return ""
    if model.solution_symbols:
        return f"{jump}; the slope of a loss that contains overlaps or trained numbers must be continuous"
    if len(model.X) > 1:
        if jump.startswith(LOSS_JUMPS):
            return f"{jump}; in a loss of several fields only the slope may jump"
        return sign_split_obstacle(model)
    if _piece_ends(model.loss, model.X[0])[1]:
        return f"{jump}, and no formula gives the place"
    return ""


def _piece_ends(loss: sp.Expr, x: sp.Symbol) -> tuple[tuple[sp.Expr, ...], tuple[sp.Expr, ...]]:
    """Return the zeros of the switching functions that contain x, and the functions whose zeros have no formula."""
    found: dict[sp.Expr, None] = {}
    implicit_kinks: list[sp.Expr] = []
    for switch in switching_functions([loss]):
        if switch.has(x):
            roots = find_zeros(unwrap_monotone(switch, [x]), x)
            found |= dict.fromkeys(roots or ())
            implicit_kinks += [switch] if roots is None else []
    return tuple(found), tuple(implicit_kinks)


def additive_noise_feature(model: ModelAt, features: list[sp.Expr]) -> int | None:
    """Return the index of the feature h(Y) + c u + ... that determines all features; None where there is none.

    Y is the only teacher field and u the only Gaussian noise. Other noise may occur in the feature, but not multiply Y
    or u.

    Args:
        model: the model.
        features: subexpressions of the loss in Y and noise.
    """
    normal = [u for u, law in model.noise.values() if hasattr(law, "variance")]
    laws = [sp.sympify(p) for _, law in model.noise.values() for p in getattr(law, "probabilities", ())]
    if model.structure.tokens != 1 or len(model.Y) != 1 or len(normal) != 1 or any(p.has(model.Y[0]) for p in laws):
        return None
    (y,), (u,) = model.Y, normal
    slopes = [tuple(drop_deltas(sp.diff(e, variable)) for variable in (y, u)) for e in features]
    drawn = {symbol for symbol, _ in model.noise.values()}
    for index, (along, across) in enumerate(slopes):
        is_sum = across != 0 and not across.free_symbols & {y, *drawn} and not along.free_symbols & drawn
        if is_sum and all(sp.expand(a * across - b * along) == 0 for a, b in slopes):
            return index
    return None


def teacher_step_places(model: ModelAt, features: list[sp.Expr]) -> tuple[sp.Expr, ...] | None:
    """Return the places where the features of the only teacher field step, if they are constant between; else None.

    Args:
        model: the model.
        features: subexpressions of the loss in Y and noise.
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
    if any(drop_deltas(sp.diff(e, y)) != 0 for e in expressions):
        return None
    found: dict[sp.Expr, None] = {}
    for switch in switching_functions(expressions):
        roots = find_zeros(unwrap_monotone(switch, [y]), y)
        if roots is None:
            return None
        found |= dict.fromkeys(roots)
    return tuple(found)
