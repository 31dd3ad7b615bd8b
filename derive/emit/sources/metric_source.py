"""Context of the template of test error and linear baseline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy as sp

from ...authoring.model import ModelAt
from ...calculus.stable_functions import stabilise
from ..kernel import Kernel, add_stamp, as_kernel, entries, model_source
from . import nodes
from .channel import discrete_noise, gaussian_noise, joint_discrete_noise


def metric_context(model: ModelAt, unpack: Callable[[Kernel], str]) -> dict[str, Any]:
    """Return the context of the template of metric and linear baseline (docs/theory.md (7.7)); either may be missing.

    The baseline, quadratic in B, is printed as its value, gradient and Hessian at B = 0; zero second derivatives drop.

    Args:
        model: model at its structure.
        unpack: lines that read the constants of a kernel from the vector c.
    """
    structure = model.structure
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    probabilities, values = joint_discrete_noise(model)
    noise = [name for name, _ in gaussian_noise(model)]
    kernels: dict[str, Kernel | None] = {
        "noise_probabilities": probabilities,
        "metric": None,
        "baseline": None,
        "node": nodes.node(structure, noise, "x"),
        "teacher_node": nodes.node(structure, noise),
    }
    if model.metric is not None:
        kernels["metric"] = as_kernel(
            {"metric": stabilise(model.metric)},
            equations="docs/theory.md (7.6)",
            formulas=[model_source(model, model.written["metric"])],
        )
    baseline_lines: list[str] = []
    size = 0
    if model.baseline is not None:
        expression, B = model.baseline
        expression = stabilise(expression)
        unknown = list(B)
        size = len(unknown)
        zero = {b: 0 for b in unknown}
        outputs = {"baseline": expression.subs(zero)}
        for i, b in enumerate(unknown):
            outputs[f"first_{i}"] = sp.diff(expression, b).subs(zero)
            baseline_lines.append(f"gradient[{i}] += weight * first_{i}")
            for j in range(i, size):
                second = sp.diff(expression, b, unknown[j])
                if second != 0:
                    outputs[f"second_{i}_{j}"] = second
                    baseline_lines.append(f"hessian[{i}, {j}] += weight * second_{i}_{j}")
        kernels["baseline"] = as_kernel(
            outputs, equations="docs/theory.md (7.7)", formulas=[model_source(model, model.written["baseline"])]
        )
    return {
        "L": L,
        "s": s,
        "t": t,
        "kernels": kernels,
        "unpack": unpack,
        "has_metric": model.metric is not None,
        "has_baseline": model.baseline is not None,
        "baseline_size": size,
        "baseline_lines": add_stamp(baseline_lines),
        "x_names": entries("x", L, s),
        "y_names": entries("y", L, t),
        "u_names": [symbol.name for symbol, _ in model.noise.values()],
        "gaussian_noise": noise,
        "arrays": nodes.law_array_entries(structure, len(noise)),
        "coordinates": nodes.normal_coordinates(structure, len(noise)),
        "teacher_coordinates": nodes.normal_coordinates(structure, len(noise), fields=False),
        "noise_values": values,
        "discrete_noise": discrete_noise(model),
    }
