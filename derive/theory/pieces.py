"""A loss of one student field, piece by piece: where they end, and what it is in each (docs/theory.md (11.11))."""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp

from ..authoring.model import ModelAt
from ..calculus.functions import Sigmoid
from ..calculus.numeric import vanishes
from ..calculus.piecewise import PIECEWISE, almost_everywhere, held_at, switches, zeros
from ..calculus.piecewise import pieces_of as pieces_of_atom
from ..calculus.subexpressions import factored
from ..errors import ModelError
from .corners import untold
from .kinks import LOSS_JUMPS, slope_jump, unwrapped
from .scales import scales

REFERENCE = sp.Symbol("r", real=True)
_MOST_BRANCHES = 64


@dataclass(frozen=True)
class Pieces:
    """Of a loss in x and what it knows of teacher and noise.

    Attributes:
        loss: in x, of the piece that holds the reference r; places: where pieces may end, some perhaps not real.
        implicit_kinks: what vanishes where no formula says, which is no end: a piece holds what there is on both sides.
        quadratic: whether every piece is a polynomial in x of degree two or less.
        corners: whether the loss or its slope jumps where pieces meet.
        least: a bound from below on the second derivative in x, in all pieces; -oo where no formula says.
        narrow: (place, width) around which a function in it may change within the width.
    """

    loss: sp.Expr
    places: tuple[sp.Expr, ...]
    implicit_kinks: tuple[sp.Expr, ...]
    quadratic: bool
    corners: bool
    least: sp.Expr
    narrow: tuple[tuple[sp.Expr, sp.Expr], ...]


def pieces_of(model: ModelAt, loss: sp.Expr) -> Pieces | None:
    """Those of a model with one student field; None where there are more.

    Args:
        loss: the model's, possibly in names of its subexpressions of Y and noise.

    Raises:
        ModelError: the slope of the loss jumps where no formula says.
    """
    if len(model.X) != 1:
        return None
    (places, implicit_kinks), jump = _places(loss, model.X[0]), slope_jump(model)
    obstacle = _obstacle(model, jump)
    if obstacle:
        raise ModelError(f"model {model.name}: {obstacle}")
    held = held_at(loss, {model.X[0]: REFERENCE}, implicit_kinks)
    second, third = (almost_everywhere(sp.diff(held, model.X[0], order)) for order in (2, 3))
    least = sp.Min(*[_lowest(branch, model.X[0]) for branch in _branches(second)])
    quadratic = not implicit_kinks and all(map(vanishes, _branches(third)))
    return Pieces(
        held, places, implicit_kinks, quadratic, bool(jump), least, () if quadratic else _narrow(held, model.X[0])
    )


def _narrow(loss: sp.Expr, x: sp.Symbol) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
    """Return (place, width) of what may be narrow in a loss of one field.

    Arguments of functions vanish or turn there and change by one within the width; bases turn there, and their zeros
    are that far from the line.

    Arguments and bases that are no polynomials of degree two or less are left out.
    """
    found: dict[tuple[sp.Expr, sp.Expr], None] = {}
    written = [(kind, _branches(e) if e.has(REFERENCE) else [e]) for kind, e in scales([loss], [x])]
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


def _branches(expression: sp.Expr) -> list[sp.Expr]:
    """All that an expression in pieces may be equal to, and possibly more."""
    found = [expression]
    while (atoms := [(e, atom) for e in found for atom in e.atoms(*PIECEWISE)]) and len(found) < _MOST_BRANCHES:
        e, atom = min(atoms, key=lambda pair: pair[1].count_ops())
        found.remove(e)
        found += [e.xreplace({atom: value}) for value in pieces_of_atom(atom)]
    return list(dict.fromkeys(found))


def _lowest(curvature: sp.Expr, x: sp.Symbol) -> sp.Expr:
    """What an expression is not below at any x; -oo where no formula says."""
    if not curvature.has(x):
        return curvature
    odds = _in_odds(curvature).replace(sp.KroneckerDelta, lambda *_: sp.Dummy(nonnegative=True))
    if all(factored(term).is_nonnegative for term in sp.Add.make_args(odds)) or factored(odds).is_nonnegative:
        return sp.Integer(0)
    if not curvature.is_polynomial(x):
        return -sp.oo
    polynomial = sp.Poly(curvature, x)
    turns = sp.roots(polynomial.diff(x))
    # What is divided by is not zero.
    leading = polynomial.LC().xreplace({s: sp.Dummy(real=True, nonzero=True) for s in polynomial.LC().free_symbols})
    rises = polynomial.degree() % 2 == 0 and leading.is_positive
    if not rises or sum(turns.values()) < polynomial.degree() - 1 or not all(turn.is_real for turn in turns):
        return -sp.oo
    return sp.Min(*[sp.factor(sp.expand(curvature.subs(x, turn))) for turn in turns])


def _in_odds(expression: sp.Expr) -> sp.Expr:
    """With o / (1 + o) for sigmoids, o > 0 a symbol for every argument or its negative: positive factors are seen."""
    odds: dict[sp.Expr, sp.Symbol] = {}

    def share(z: sp.Expr) -> sp.Expr:
        flipped = z.could_extract_minus_sign()
        o = odds.setdefault(-z if flipped else z, sp.Dummy(positive=True))
        return (1 if flipped else o) / (1 + o)

    return expression.replace(Sigmoid, share)


def no_proximal_map(model: ModelAt) -> str:
    """Why a loss has no proximal map here, in words: it jumps in several fields, or its slope where no formula says;
    empty where it has one."""
    return _obstacle(model, slope_jump(model))


def _obstacle(model: ModelAt, jump: str) -> str:
    """`no_proximal_map`, where what jumps is known."""
    if not jump:
        return ""
    if model.own:
        return f"{jump}; in a loss that holds overlaps or trained numbers the slope must be continuous"
    if len(model.X) > 1:
        if jump.startswith(LOSS_JUMPS):
            return f"{jump}; where several fields are read only its slope may jump"
        return untold(model)
    if _places(model.loss, model.X[0])[1]:
        return f"{jump}, and no formula says where that is"
    return ""


def _places(loss: sp.Expr, x: sp.Symbol) -> tuple[tuple[sp.Expr, ...], tuple[sp.Expr, ...]]:
    """Return where switches that hold x vanish, and the switches that no formula says it of."""
    found: dict[sp.Expr, None] = {}
    implicit_kinks: list[sp.Expr] = []
    for switch in switches([loss]):
        if switch.has(x):
            roots = zeros(unwrapped(switch, [x]), x)
            found |= dict.fromkeys(roots or ())
            implicit_kinks += [switch] if roots is None else []
    return tuple(found), tuple(implicit_kinks)


def sum_with_noise(model: ModelAt, features: list[sp.Expr]) -> int | None:
    """Return which feature is a sum h(Y) + c u + ... of the only teacher field and the only Gaussian noise that decides
    all features; None where there is none. Other noise may be in it, but not multiply Y or u."""
    normal = [u for u, law in model.noise.values() if hasattr(law, "variance")]
    laws = [sp.sympify(p) for _, law in model.noise.values() for p in getattr(law, "probabilities", ())]
    if model.structure.tokens != 1 or len(model.Y) != 1 or len(normal) != 1 or any(p.has(model.Y[0]) for p in laws):
        return None
    (y,), (u,) = model.Y, normal
    slopes = [tuple(almost_everywhere(sp.diff(e, variable)) for variable in (y, u)) for e in features]
    drawn = {symbol for symbol, _ in model.noise.values()}
    for index, (along, across) in enumerate(slopes):
        is_sum = across != 0 and not across.free_symbols & {y, *drawn} and not along.free_symbols & drawn
        if is_sum and all(sp.expand(a * across - b * along) == 0 for a, b in slopes):
            return index
    return None


def steps_in_teacher(model: ModelAt, features: list[sp.Expr]) -> tuple[sp.Expr, ...] | None:
    """Where the features of the only teacher field step, if they are constant between; else None."""
    laws = [p for _, law in model.noise.values() for p in getattr(law, "probabilities", ())]
    if (
        model.structure.tokens != 1
        or len(model.Y) != 1
        or any(hasattr(law, "variance") for _, law in model.noise.values())
    ):
        return None
    y = model.Y[0]
    expressions = [*features, *map(sp.sympify, laws)]
    if any(almost_everywhere(sp.diff(e, y)) != 0 for e in expressions):
        return None
    found: dict[sp.Expr, None] = {}
    for switch in switches(expressions):
        roots = zeros(unwrapped(switch, [y]), y)
        if roots is None:
            return None
        found |= dict.fromkeys(roots)
    return tuple(found)
