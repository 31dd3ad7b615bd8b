"""A search for counterexamples before code generation: complex or unbounded losses, penalties that are not convex.

Functions are evaluated at random points and at the parameters' defaults. One that passes may still be wrong elsewhere.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import sympy as sp

from ..authoring.model import FixedSizeModel
from ..authoring.parameters import DiscreteNoise, Structure, flatten_entries
from ..authoring.regulariser import FixedSizePenalty
from ..calculus.stable_functions import rewrite_without_overflow
from ..errors import ModelError
from .kernel import Kernel, make_kernel
from .printers.mpmath import evaluate_kernel


@dataclass(frozen=True)
class CounterexampleSearchOptions:
    """Options of the search for points at which a model is not valid: more points find rarer ones, and take longer.

    Attributes:
        rays: random points of the fields at which a loss must be real, and rays along which it must be bounded.
        near, far: lengths along a ray; the loss at `far` must not be a multiple of a negative one at `near`.
        points: random fields at which a loss may be finite, and must be nonnegative to count as such.
        chords: random chords of a penalty, which must not lie above them.
    """

    rays: int = 40
    near: int = 10**4
    far: int = 10**6
    points: int = 200
    chords: int = 200


_DEFAULTS = CounterexampleSearchOptions()


def check_loss_is_real(model: FixedSizeModel, options: CounterexampleSearchOptions = _DEFAULTS) -> None:
    """Raise ModelError if the loss or a metric is complex at a random point.

    A root or logarithm of a field is complex where the field is negative.

    Args:
        model: model with fixed sizes L, s, t.
        options: numbers of random points.

    Raises:
        ModelError: a value is complex; the message gives the point.
    """
    for name, expression in (("loss", model.loss), ("metric", model.metric)):
        if expression is None or expression.is_real:
            continue
        generator = random.Random(7)
        kernel = make_kernel({name: expression})
        for _ in range(options.rays):
            point = _random_fields_and_parameters(model, kernel, generator)
            point |= {x.name: mp.mpf(generator.gauss(0, 1)) for x in model.X} | _random_overlaps(model, generator)
            value = _evaluate_kernel_or_nan(kernel, point)
            if _is_complex(value):
                fields = [*model.X, *model.Y, *(symbol for symbol, _ in model.noise.values())]
                where = ", ".join(f"{f} = {mp.nstr(point[f.name], 3)}" for f in fields if f in expression.free_symbols)
                raise ModelError(
                    f"model {model.name}: the {name} is complex ({mp.nstr(value, 3)} at {where}); it must be real for "
                    "all fields: a root or a logarithm may need an absolute value"
                )


def _evaluate_kernel_or_nan(kernel: Kernel, point: dict[str, Any]) -> Any:
    """Return the value of a kernel with one result; nan if it has no value, as at a pole."""
    try:
        return evaluate_kernel(kernel, point)[kernel.results[0][0]]
    except (ArithmeticError, ValueError):
        return mp.nan


def _is_complex(value: Any) -> bool:
    return abs(mp.im(value)) > 1e-10 * (1 + abs(mp.re(value)))


def _random_overlaps(model: FixedSizeModel, generator: random.Random) -> dict[str, Any]:
    """Return random positive definite overlaps q of every token, by names of their entries."""
    found: dict[str, Any] = {}
    for matrix in model.Q:
        s = matrix.rows
        root = sp.Matrix(s, s, lambda a, b: sp.Float(generator.gauss(0, 1)))
        square = root * root.T
        found |= {matrix[a, b].name: mp.mpf(square[a, b]) for a in range(s) for b in range(s)}
    return found


def check_loss_is_bounded_below(model: FixedSizeModel, options: CounterexampleSearchOptions = _DEFAULTS) -> None:
    """Raise ModelError if the loss decreases without bound along a random ray of the student's fields.

    Args:
        model: model with fixed sizes L, s, t.
        options: numbers of random points.

    Raises:
        ModelError: the loss has no lower bound; the message gives a point.
    """
    if model.unbounded or model.loss_depends_on_q:
        # A loss that contains q may be bounded for W as a whole but not at fixed q.
        return
    generator = random.Random(3)
    kernel = make_kernel({"loss": rewrite_without_overflow(model.loss)})
    for _ in range(options.rays):
        point = _random_fields_and_parameters(model, kernel, generator)
        ray = {x.name: generator.gauss(0, 1) for x in model.X}
        near, far = (
            mp.re(_evaluate_kernel_or_nan(kernel, {**point, **{name: length * mp.mpf(z) for name, z in ray.items()}}))
            for length in (options.near, options.far)
        )
        if far < -1e3 and far < 5 * near < 0:
            where = ", ".join(f"{name} = {options.far * z:.3g}" for name, z in ray.items())
            raise ModelError(
                f"model {model.name}: the loss has no lower bound ({mp.nstr(far, 3)} at {where}); if the regulariser "
                "keeps the weights bounded, declare @sf.model(unbounded=True); losses are minimised: write minus a "
                "log-likelihood"
            )


def check_loss_is_finite(model: FixedSizeModel, options: CounterexampleSearchOptions = _DEFAULTS) -> None:
    """Raise ModelError if the loss is not finite in double precision at any of many random fields.

    Args:
        model: model with fixed sizes L, s, t.
        options: numbers of random points.

    Raises:
        ModelError: no value is finite; the message gives one of the points.
    """
    if model.loss_depends_on_q:
        return
    generator = random.Random(6)
    kernel = make_kernel({"loss": rewrite_without_overflow(model.loss)})
    for n in range(options.points):
        point = _random_fields_and_parameters(model, kernel, generator)
        fields = {x.name: mp.mpf(3 ** (n % 4 - 2) * generator.gauss(0, 1)) for x in model.X}
        value = mp.re(_evaluate_kernel_or_nan(kernel, point | fields))
        if abs(value) < sys.float_info.max:
            return
    held = [f for f in (*model.X, *model.Y) if f in model.loss.free_symbols]
    where = ", ".join(f"{f} = {mp.nstr((point | fields)[f.name], 3)}" for f in held)
    raise ModelError(
        f"model {model.name}: the loss is no finite number in double precision: it is {mp.nstr(value, 3)} at {where}, "
        f"and not finite at any of {options.points} random fields; divide it by a constant or write its logarithm"
    )


def is_loss_probably_nonnegative(model: FixedSizeModel, options: CounterexampleSearchOptions = _DEFAULTS) -> bool:
    """Return whether the loss is nonnegative at all of many random fields; False if it contains the overlaps q.

    Args:
        model: model with fixed sizes L, s, t.
        options: numbers of random points.
    """
    if model.unbounded or model.loss_depends_on_q:
        return False
    if model.loss.is_nonnegative:
        return True
    generator = random.Random(5)
    kernel = make_kernel({"loss": rewrite_without_overflow(model.loss)})
    for n in range(options.points):
        point = _random_fields_and_parameters(model, kernel, generator)
        fields = {x.name: mp.mpf(3 ** (n % 4) * generator.gauss(0, 1)) for x in model.X}
        if mp.re(_evaluate_kernel_or_nan(kernel, point | fields)) < -1e-12:
            return False
    return True


def _random_fields_and_parameters(model: FixedSizeModel, kernel: Kernel, generator: random.Random) -> dict[str, Any]:
    """Return random teacher fields, noise, labels and token variances, and the parameters' defaults, by name."""
    point = {
        s.name: _expression_to_mpf(v)
        for s, v in zip(model.parameter_symbols(), model.parameter_defaults(), strict=True)
    }
    point |= {symbol.name: _expression_to_mpf(value.start) for symbol, value in model.trained.values()}
    widths = [name for name in sorted(kernel.input_names) if name.startswith("rho_")]
    point |= {name: mp.mpf(abs(generator.gauss(0, 1)) + 0.1) for name in widths}
    point |= {y.name: mp.mpf(generator.gauss(0, 1)) for y in model.Y}
    point |= {k.name: mp.mpf(generator.randrange(model.structure.clusters)) for k in model.labels}
    for symbol, law in model.noise.values():
        value = generator.choice(law.values) if isinstance(law, DiscreteNoise) else generator.gauss(0, 1)
        point[symbol.name] = _expression_to_mpf(value)
    return point


def check_penalty_is_convex(
    penalty: FixedSizePenalty, structure: Structure, options: CounterexampleSearchOptions = _DEFAULTS
) -> None:
    """Raise ModelError if a penalty is complex or lies above one of its chords.

    Args:
        penalty: penalty of the rows.
        structure: sizes L, s, t, which the parameters' shapes depend on.
        options: numbers of random points.

    Raises:
        ModelError: the penalty is not convex; the message gives the chord.
    """
    generator = random.Random(4)
    kernel = make_kernel({"value": rewrite_without_overflow(penalty.expression_where_finite)})
    known = {
        symbol.name: _expression_to_mpf(value)
        for parameter in penalty.parameters.values()
        for symbol, value in zip(
            flatten_entries(parameter.argument_symbols(structure)),
            flatten_entries(parameter.exact_default(structure)),
            strict=True,
        )
    }
    for _ in range(options.chords):
        point = dict(known) | {b.name: mp.mpf(generator.gauss(0, 1)) for b in penalty.pi}
        size = 10 ** generator.uniform(-2, 2)
        one, other = ([size * generator.gauss(0, 1) for _ in penalty.w] for _ in "12")
        middle = [(a + b) / 2 for a, b in zip(one, other, strict=True)]
        values = [
            _evaluate_kernel_or_nan(kernel, point | {w.name: mp.mpf(z) for w, z in zip(penalty.w, place, strict=True)})
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


def _expression_to_mpf(value: Any) -> mp.mpf:
    value = sp.sympify(value)
    return mp.mpf(sp.Rational(value).p) / sp.Rational(value).q if value.is_Rational else mp.mpf(str(sp.N(value, 30)))
