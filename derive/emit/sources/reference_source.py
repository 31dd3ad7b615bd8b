"""Variables of the reference template: kernels in the dialect of mpmath, and integrals reduced to two dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import sympy as sp

from ...authoring.model import FixedSizeModel
from ...authoring.parameters import DiscreteNoise, GaussianNoise
from ...calculus.piecewise import closed_form_zeros, drop_delta_functions, switching_functions
from ...calculus.subexpressions import extract_maximal_subexpressions
from ..kernel import Kernel, array_entries, make_kernel, upper_triangle_entries
from ..printers.mpmath import MPMATH
from .channel import ChannelKernels, gaussian_noise_variances, names_of_channel_summands
from .metadata_source import expressions_literal, lines_loading_parameters
from .prior_source import prior_template_variables


@dataclass(frozen=True)
class ReducedIntegral:
    """An average over one token's X, Y and Gaussian noise (s = t = 1), reduced to at most two coordinates.

    Attributes:
        drive: dependence of the integrand on the other coordinate, a combination of Y and noise: "none", "steps"
            (constant between steps) or "smooth" (between them).
        weights: coefficients of (Y, Gaussian noise) in the combination.
        kinks: places in X at which the integrand is not smooth, at given Y and noise; some may not be real.
        steps: places in the combination at which it is not.
        difference: whether the integrand depends on X and the combination f through X - f alone.
    """

    drive: str
    weights: tuple[sp.Expr, ...]
    kinks: tuple[sp.Expr, ...]
    steps: tuple[sp.Expr, ...]
    difference: bool


COMBINATION = sp.Symbol("combination", real=True)


def reduce_integral(model: FixedSizeModel, expressions: Sequence[sp.Expr]) -> ReducedIntegral | None:
    """Return an average over samples reduced to an integral over two coordinates; None if it cannot be reduced.

    Args:
        model: model with fixed sizes L, s, t.
        expressions: integrand, and the probabilities of discrete noise.
    """
    structure = model.structure
    sizes = structure.tokens, structure.student_rank, structure.teacher_rank
    if sizes != (1, 1, 1) or model.symbols_of_order_parameters:
        return None
    x = model.X[0]
    gaussian = [symbol for symbol, law in model.noise.values() if isinstance(law, GaussianNoise)]
    inner = [model.Y[0], *gaussian]
    features = [e for _, e in extract_maximal_subexpressions(expressions, set(inner), {x}, "f")[0]]
    slopes = [[drop_delta_functions(sp.diff(e, v)) for v in inner] for e in features]
    smooth = any(slope != 0 for row in slopes for slope in row)
    weights = _common_linear_combination(features, slopes, inner)
    if weights is None:
        return None
    pivot = next((i for i, weight in enumerate(weights) if weight != 0), None)
    kinks: list[sp.Expr] = []
    steps: list[sp.Expr] = []
    for switch in switching_functions(expressions):
        if switch.has(x):
            found = closed_form_zeros(switch, x)
            kinks += found or []
        else:
            along = {v: COMBINATION / weights[i] if i == pivot else sp.Integer(0) for i, v in enumerate(inner)}
            found = closed_form_zeros(switch.subs(along), COMBINATION)
            steps += found or []
        if found is None:
            return None
    drive = "none" if pivot is None else "smooth" if smooth else "steps"
    moved = sum((weight * v for weight, v in zip(weights, inner, strict=True)), start=x)
    difference = drive == "smooth" and not any(sp.expand(e.xreplace({x: moved})).has(*inner) for e in expressions)
    return ReducedIntegral(drive, weights, tuple(dict.fromkeys(kinks)), tuple(dict.fromkeys(steps)), difference)


def _common_linear_combination(
    features: Sequence[sp.Expr], slopes: Sequence[Sequence[sp.Expr]], inner: Sequence[sp.Symbol]
) -> tuple[sp.Expr, ...] | None:
    """Return the coefficients of the combination of Y and noise that all features depend on; None if several."""
    used = [v for v in inner if any(e.has(v) for e in features)]
    if len(used) < 2:
        return tuple(sp.Integer(int(v in used)) for v in inner)
    gradients: list[Sequence[sp.Expr]] = []
    for feature, row in zip(features, slopes, strict=True):
        if any(slope != 0 for slope in row):
            gradients.append(row)
        for switch in switching_functions([feature]):
            gradients.append([drop_delta_functions(sp.diff(switch, v)) for v in inner])
    common: tuple[sp.Expr, ...] | None = None
    for gradient in gradients:
        pivot = next((slope for slope in gradient if slope != 0), None)
        if pivot is None:
            continue
        ratios = tuple(sp.cancel(slope / pivot) for slope in gradient)
        if any(ratio.has(*inner) for ratio in ratios) or (common is not None and ratios != common):
            return None
        common = ratios
    return common


def reference_template_variables(
    model: FixedSizeModel, channel: ChannelKernels, metric: Kernel | None, unpack: Callable[[Kernel], str]
) -> dict[str, Any]:
    """Return the variables of the code template of the multiprecision reference solver.

    Args:
        model: model with fixed sizes L, s, t.
        channel: kernels of the model's channel averages.
        metric: kernel of the metric.
        unpack: function that returns the lines which read a kernel's constants from their vector.
    """
    structure = model.structure
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    probabilities = channel.noise_probabilities
    noise = tuple(variance for _, variance in gaussian_noise_variances(model))
    kernels = {
        "features": channel.features,
        "derivatives": channel.derivatives,
        "moments": channel.moment_rows,
        "own_slopes": channel.own_slopes,
        "probabilities": probabilities,
        "piece": channel.pieces.piece if channel.pieces else None,
        "metric": metric,
    }
    integrals = {}
    laws = [p for _, law in model.noise.values() if isinstance(law, DiscreteNoise) for p in law.probabilities]
    for name, expression in (("loss", model.loss), ("metric", model.metric)):
        integral = reduce_integral(model, [expression, *map(sp.sympify, laws)]) if expression is not None else None
        if integral is not None:
            integrals[name] = integral
            for part in ("weights", "kinks", "steps"):
                values = getattr(integral, part)
                kernels[f"{name}_{part}"] = make_kernel(
                    {f"{part}_{n}": e for n, e in enumerate(values)}, formulas=[reduce_integral]
                )
    prior = prior_template_variables(model, MPMATH)
    kernels |= {f"penalty_{name}": prior["kernels"][name] for name in ("value", "slopes") if "kernels" in prior}
    return {
        "kernels": kernels,
        "integrals": integrals,
        "corners": bool(channel.pieces and channel.pieces.corners),
        "unpack": unpack,
        "code": lambda kernel: "\n".join("    " + line for line in MPMATH.kernel_body_lines(kernel)),
        "returned": _tuple_text,
        "features": list(channel.feature_names),
        "x_names": array_entries("x", L, s),
        "y_names": array_entries("y", L, t),
        "u_names": [symbol.name for symbol, _ in model.noise.values()],
        "w_names": array_entries("w", L, s),
        "g_names": array_entries("g", L, s),
        "dw_names": array_entries("dw", L, s),
        "dy_names": array_entries("dy", L, t),
        "p_names": upper_triangle_entries("p", L, s),
        "row_names": names_of_channel_summands(channel.moments, L),
        "own": [name for name, _ in channel.own_slopes.results] if channel.own_slopes else [],
        "noise_values": _discrete_noise_values_literal(model),
        "gaussian": tuple(isinstance(law, GaussianNoise) for _, law in model.noise.values()),
        "law_parameters": "\n".join(lines_loading_parameters(tuple(model.law.values()), model)),
        "law": {name: expressions_literal(value, MPMATH) for name, value in model.law.items()},
        "noise_parameters": "\n".join(lines_loading_parameters(noise, model)),
        "noise": expressions_literal(noise, MPMATH),
        "prior": prior,
        "s": s,
        "t": t,
    }


def _tuple_text(names: Iterable[str]) -> str:
    """Return the source text of a tuple of names, of any length."""
    return "(" + "".join(f"{name}, " for name in names).rstrip(" ") + ")"


def _discrete_noise_values_literal(model: FixedSizeModel) -> str:
    """Return the source text of all joint values of the discrete noises, exact, one row per combination."""
    laws = [law for _, law in model.noise.values() if isinstance(law, DiscreteNoise)]
    rows = tuple(product(*[tuple(map(sp.sympify, law.values)) for law in laws])) if laws else ()
    return expressions_literal(rows, MPMATH)
