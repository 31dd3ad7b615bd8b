"""Variables of the template of test error and linear baseline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy as sp

from ...authoring.model import FixedSizeModel
from ...calculus.stable_functions import rewrite_without_overflow
from ..kernel import Kernel, add_origin_comment, array_entries, make_kernel, model_function_location
from . import nodes
from .channel import discrete_noise_names, gaussian_noise_variances, joint_law_of_discrete_noise


def metric_template_variables(model: FixedSizeModel, unpack: Callable[[Kernel], str]) -> dict[str, Any]:
    """Return the variables of the code template of test error and linear baseline (docs/theory.md (7.7)).

    Either may be missing. The baseline is quadratic in its coefficients B: printed are value, gradient and Hessian
    at B = 0, without second derivatives that vanish.

    Args:
        model: model with fixed sizes L, s, t.
        unpack: function that returns the lines which read a kernel's constants from their vector.
    """
    structure = model.structure
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    probabilities, values = joint_law_of_discrete_noise(model)
    noise = [name for name, _ in gaussian_noise_variances(model)]
    kernels: dict[str, Kernel | None] = {
        "noise_probabilities": probabilities,
        "metric": None,
        "baseline": None,
        "node": nodes.fields_at_node_kernel(structure, noise, "x"),
        "teacher_node": nodes.fields_at_node_kernel(structure, noise),
    }
    if model.metric is not None:
        kernels["metric"] = make_kernel(
            {"metric": rewrite_without_overflow(model.metric)},
            equations="docs/theory.md (7.6)",
            formulas=[model_function_location(model, model.written["metric"])],
        )
    baseline_lines: list[str] = []
    size = 0
    if model.baseline is not None:
        expression, B = model.baseline
        expression = rewrite_without_overflow(expression)
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
        kernels["baseline"] = make_kernel(
            outputs,
            equations="docs/theory.md (7.7)",
            formulas=[model_function_location(model, model.written["baseline"])],
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
        "baseline_lines": add_origin_comment(baseline_lines),
        "x_names": array_entries("x", L, s),
        "y_names": array_entries("y", L, t),
        "u_names": [symbol.name for symbol, _ in model.noise.values()],
        "gaussian_noise": noise,
        "arrays": nodes.entries_of_field_law_arrays(structure, len(noise)),
        "coordinates": nodes.standard_normal_coordinates(structure, len(noise)),
        "teacher_coordinates": nodes.standard_normal_coordinates(structure, len(noise), fields=False),
        "noise_values": values,
        "discrete_noise": discrete_noise_names(model),
    }
