"""Variables of the Bayes-optimal template: the output channel and the two Gaussian integrals as kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...authoring.model import FixedSizeModel
from ...authoring.outputs import ANGLE, ChannelCoordinate, FixedSizeOutput
from ...calculus.stable_functions import rewrite_without_overflow
from ...theory.bayes import gaussian_component_of_teacher_row, gaussian_field_weight
from ..kernel import Kernel, array_entries, make_kernel, model_function_location, upper_triangle_entries
from .metadata_source import expressions_literal


def bayes_template_variables(
    model: FixedSizeModel, output: FixedSizeOutput, unpack: Callable[[Kernel], str]
) -> dict[str, Any]:
    """Return the variables of the code template for Bayes-optimal averages.

    Fields are flattened token by token.

    Args:
        model: model with fixed sizes L, s, t.
        output: output channel of the model.
        unpack: function that returns the lines which read a kernel's constants from their vector.
    """
    structure = model.structure
    L, t = structure.tokens, structure.teacher_rank
    gaussian, row, own = gaussian_field_weight(L, t), gaussian_component_of_teacher_row(t), output.written
    names = array_entries("y", L, t)
    kernels = {
        "fields": make_kernel(
            {
                **dict(zip(names, output.fields, strict=True)),
                "log_jacobian": output.jacobian,
                "log_likelihood": rewrite_without_overflow(output.log_likelihood),
            },
            equations="docs/theory.md (13.4)",
            formulas=[
                model_function_location(model, function) for function in (own.fields, own.log_likelihood) if function
            ],
        ),
        "needs": make_kernel(
            {"needs": output.needs},
            equations="docs/theory.md (13.4)",
            formulas=[model_function_location(model, own.needs or own.fields)],
        ),
        "gaussian": make_kernel(
            {"exponent": gaussian.exponent, **_matrix_entries_by_name("g", gaussian.slope)},
            equations="docs/theory.md (13.4), (13.6)",
            formulas=[gaussian_field_weight],
        ),
        "row": make_kernel(
            {"log_integral": row.log_integral}
            | _matrix_entries_by_name("moment", row.moment)
            | _matrix_entries_by_name("spread", row.spread),
            equations="docs/theory.md (13.3), (13.6), (13.10)",
            formulas=[gaussian_component_of_teacher_row],
        ),
    }
    if own.read is not None:
        kernels["read"] = make_kernel(
            {c.symbol.name: value for c, value in zip(output.observed, output.read, strict=True)},
            equations="docs/theory.md (13.4)",
            formulas=[model_function_location(model, own.read)],
        )
    if model.metric is not None:
        kernels["metric"] = make_kernel(
            {"metric": rewrite_without_overflow(model.metric)},
            equations="docs/theory.md (7.6)",
            formulas=[model_function_location(model, model.written["metric"])],
        )
    return {
        "has_metric": model.metric is not None,
        "x_names": array_entries("x", L, structure.student_rank),
        "u_names": [symbol.name for symbol, _ in model.noise.values()],
        "needs": " ".join(str(output.needs).replace("_", "").split()),
        "L": L,
        "t": t,
        "D": L * t,
        "unpack": unpack,
        "kernels": kernels,
        "observed": [c.symbol.name for c in output.observed],
        "hidden": [c.symbol.name for c in output.hidden],
        "observed_literal": _literal_of_coordinates(output.observed),
        "hidden_literal": _literal_of_coordinates(output.hidden),
        "free": tuple(output.field_indices_of_hidden_coordinates),
        "affine": output.has_affine_observations,
        "reads": own.read is not None,
        "turns": any(c.kind == ANGLE for c in (*output.observed, *output.hidden)),
        "y_names": names,
        "w_names": array_entries("w", L, t),
        "g_names": array_entries("g", L, t),
        "p_names": upper_triangle_entries("p", L, t),
    }


def _matrix_entries_by_name(name: str, matrix: Any) -> dict[str, Any]:
    return {entry: matrix[entry.place] for entry in array_entries(name, *matrix.shape)}


def _literal_of_coordinates(coordinates: tuple[ChannelCoordinate, ...]) -> str:
    parts = [f"({c.name!r}, {c.kind!r}, {expressions_literal(c.values)})" for c in coordinates]
    return f"({', '.join(parts)},)" if parts else "()"
