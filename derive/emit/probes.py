"""Counterexamples looked for before anything is generated: a loss that is complex or has no lower bound, a penalty
that is not convex.

These are probes at random points and at the parameters' defaults. What they pass may still be wrong elsewhere.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import mpmath as mp
import sympy as sp

from ..authoring.model import ModelAt
from ..authoring.parameters import DiscreteNoise, Structure, leaves
from ..authoring.regulariser import PenaltyAt
from ..calculus.stable import stable
from ..errors import ModelError
from .kernel import Kernel, freeze
from .printers.mpmath import evaluate

_RAYS = 40
_NEAR, _FAR = 10**4, 10**6
_CHORDS = 200
_POINTS = 200


def check_real(model: ModelAt) -> None:
    """Refuse a loss or a metric that is complex somewhere, as the root or logarithm of a field is where it is negative.

    Raises:
        ModelError: with the point at which it was seen.
    """
    for name, expression in (("loss", model.loss), ("metric", model.metric)):
        if expression is None or expression.is_real:
            continue
        generator = random.Random(7)
        kernel = freeze({name: expression})
        for _ in range(_RAYS):
            point = _surroundings(model, kernel, generator)
            point |= {x.name: mp.mpf(generator.gauss(0, 1)) for x in model.X} | _overlaps(model, generator)
            value = _value(kernel, point)
            if _is_complex(value):
                fields = [*model.X, *model.Y, *(symbol for symbol, _ in model.noise.values())]
                where = ", ".join(f"{f} = {mp.nstr(point[f.name], 3)}" for f in fields if f in expression.free_symbols)
                raise ModelError(
                    f"model {model.name}: the {name} is complex ({mp.nstr(value, 3)} at {where}); it must be real for "
                    "all fields: a root or a logarithm may need an absolute value"
                )


def _value(kernel: Kernel, point: dict[str, Any]) -> Any:
    """Return the one result of a kernel; nan where it has none, as at a pole."""
    try:
        return evaluate(kernel, point)[kernel.results[0][0]]
    except (ArithmeticError, ValueError):
        return mp.nan


def _is_complex(value: Any) -> bool:
    return abs(mp.im(value)) > 1e-10 * (1 + abs(mp.re(value)))


def _overlaps(model: ModelAt, generator: random.Random) -> dict[str, Any]:
    """Random overlaps q of every token, positive definite."""
    found: dict[str, Any] = {}
    for matrix in model.Q:
        s = matrix.rows
        root = sp.Matrix(s, s, lambda a, b: sp.Float(generator.gauss(0, 1)))
        square = root * root.T
        found |= {matrix[a, b].name: mp.mpf(square[a, b]) for a in range(s) for b in range(s)}
    return found


def check_bounded(model: ModelAt) -> None:
    """Refuse a loss that falls without end along some ray of the student's fields.

    Raises:
        ModelError: with the point at which it was seen.
    """
    if model.unbounded or model.loss_holds_q:
        # With q in the loss, its bound holds for W as a whole and not at fixed q.
        return
    generator = random.Random(3)
    kernel = freeze({"loss": stable(model.loss)})
    for _ in range(_RAYS):
        point = _surroundings(model, kernel, generator)
        ray = {x.name: generator.gauss(0, 1) for x in model.X}
        near, far = (
            mp.re(_value(kernel, {**point, **{name: length * mp.mpf(z) for name, z in ray.items()}}))
            for length in (_NEAR, _FAR)
        )
        if far < -1e3 and far < 5 * near < 0:
            where = ", ".join(f"{name} = {_FAR * z:.3g}" for name, z in ray.items())
            raise ModelError(
                f"model {model.name}: the loss has no lower bound ({mp.nstr(far, 3)} at {where}); if the regulariser "
                "holds it, declare @model(unbounded=True); losses are minimised: of a log-likelihood take minus"
            )


def check_finite(model: ModelAt) -> None:
    """Refuse a loss that is beyond the range of double precision, or no number, at all of many random fields.

    Raises:
        ModelError: with one of the points.
    """
    if model.loss_holds_q:
        return
    generator = random.Random(6)
    kernel = freeze({"loss": stable(model.loss)})
    for n in range(_POINTS):
        point = _surroundings(model, kernel, generator)
        fields = {x.name: mp.mpf(3 ** (n % 4 - 2) * generator.gauss(0, 1)) for x in model.X}
        value = mp.re(_value(kernel, point | fields))
        if abs(value) < sys.float_info.max:
            return
    held = [f for f in (*model.X, *model.Y) if f in model.loss.free_symbols]
    where = ", ".join(f"{f} = {mp.nstr((point | fields)[f.name], 3)}" for f in held)
    raise ModelError(
        f"model {model.name}: the loss is no finite number in double precision: it is {mp.nstr(value, 3)} at {where}, "
        f"and not finite at any of {_POINTS} random fields; divide it by a constant or write its logarithm"
    )


def seems_nonnegative(model: ModelAt) -> bool:
    """Whether no random point was found at which the loss is negative; never with q in the loss."""
    if model.unbounded or model.loss_holds_q:
        return False
    if model.loss.is_nonnegative:
        return True
    generator = random.Random(5)
    kernel = freeze({"loss": stable(model.loss)})
    for n in range(_POINTS):
        point = _surroundings(model, kernel, generator)
        fields = {x.name: mp.mpf(3 ** (n % 4) * generator.gauss(0, 1)) for x in model.X}
        if mp.re(_value(kernel, point | fields)) < -1e-12:
            return False
    return True


def _surroundings(model: ModelAt, kernel: Kernel, generator: random.Random) -> dict[str, Any]:
    """Random teacher, noise, labels and widths of the tokens, and the parameters' defaults."""
    point = {s.name: _number(v) for s, v in zip(model.parameter_symbols(), model.parameter_defaults(), strict=True)}
    point |= {symbol.name: _number(value.start) for symbol, value in model.trained.values()}
    widths = [name for name in sorted(kernel.names) if name.startswith("rho_")]
    point |= {name: mp.mpf(abs(generator.gauss(0, 1)) + 0.1) for name in widths}
    point |= {y.name: mp.mpf(generator.gauss(0, 1)) for y in model.Y}
    point |= {k.name: mp.mpf(generator.randrange(model.structure.clusters)) for k in model.labels}
    for symbol, law in model.noise.values():
        value = generator.choice(law.values) if isinstance(law, DiscreteNoise) else generator.gauss(0, 1)
        point[symbol.name] = _number(value)
    return point


def check_convex(penalty: PenaltyAt, structure: Structure) -> None:
    """Refuse a penalty that lies above a chord of itself somewhere.

    Raises:
        ModelError: with the chord.
    """
    generator = random.Random(4)
    kernel = freeze({"value": stable(penalty.inside)})
    known = {
        symbol.name: _number(value)
        for parameter in penalty.parameters.values()
        for symbol, value in zip(leaves(parameter.symbols(structure)), leaves(parameter.value(structure)), strict=True)
    }
    for _ in range(_CHORDS):
        point = dict(known) | {b.name: mp.mpf(generator.gauss(0, 1)) for b in penalty.pi}
        size = 10 ** generator.uniform(-2, 2)
        one, other = ([size * generator.gauss(0, 1) for _ in penalty.w] for _ in "12")
        middle = [(a + b) / 2 for a, b in zip(one, other, strict=True)]
        values = [
            _value(kernel, point | {w.name: mp.mpf(z) for w, z in zip(penalty.w, place, strict=True)})
            for place in (one, other, middle)
        ]
        for value, place in zip(values, (one, other, middle), strict=True):
            if _is_complex(value):
                where = ", ".join(f"{z:.3g}" for z in place)
                raise ModelError(f"the penalty is complex ({mp.nstr(value, 3)} at w = {where}); it must be real")
        values = [mp.re(value) for value in values]
        if values[2] > (values[0] + values[1]) / 2 + 1e-12 * (1 + abs(values[2])):
            shown = [", ".join(f"{z:.3g}" for z in place) for place in (one, other)]
            raise ModelError(f"the penalty is not convex: it lies above its chord from w = {shown[0]} to {shown[1]}")


def _number(value: Any) -> mp.mpf:
    value = sp.sympify(value)
    return mp.mpf(sp.Rational(value).p) / sp.Rational(value).q if value.is_Rational else mp.mpf(str(sp.N(value, 30)))
