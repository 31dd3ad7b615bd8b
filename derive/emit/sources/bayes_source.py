"""Context of the template of Bayes-optimal inference: the output channel and the two Gaussian integrals as kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...authoring.model import ModelAt
from ...authoring.outputs import ANGLE, Coordinate, OutputAt
from ...calculus.stable_functions import stabilise
from ...theory.bayes import field_weight, row_integral
from ..kernel import Kernel, as_kernel, entries, model_source, upper_entries
from .metadata_source import literal


def bayes_context(model: ModelAt, output: OutputAt, unpack: Callable[[Kernel], str]) -> dict[str, Any]:
    """Return names and kernels; fields are flattened token by token.

    Args:
        model: model at its structure.
        output: its output channel.
        unpack: lines that read the constants of a kernel from the vector c.
    """
    structure = model.structure
    L, t = structure.tokens, structure.teacher_rank
    gaussian, row, own = field_weight(L, t), row_integral(t), output.written
    names = entries("y", L, t)
    kernels = {
        "fields": as_kernel(
            {
                **dict(zip(names, output.fields, strict=True)),
                "log_jacobian": output.jacobian,
                "log_likelihood": stabilise(output.log_likelihood),
            },
            equations="docs/theory.md (13.4)",
            formulas=[model_source(model, function) for function in (own.fields, own.log_likelihood) if function],
        ),
        "needs": as_kernel(
            {"needs": output.needs},
            equations="docs/theory.md (13.4)",
            formulas=[model_source(model, own.needs or own.fields)],
        ),
        "gaussian": as_kernel(
            {"exponent": gaussian.exponent, **_name_entries("g", gaussian.slope)},
            equations="docs/theory.md (13.4), (13.6)",
            formulas=[field_weight],
        ),
        "row": as_kernel(
            {"log_integral": row.log_integral}
            | _name_entries("moment", row.moment)
            | _name_entries("spread", row.spread),
            equations="docs/theory.md (13.3), (13.6), (13.10)",
            formulas=[row_integral],
        ),
    }
    if own.read is not None:
        kernels["read"] = as_kernel(
            {c.symbol.name: told for c, told in zip(output.observed, output.read, strict=True)},
            equations="docs/theory.md (13.4)",
            formulas=[model_source(model, own.read)],
        )
    if model.metric is not None:
        kernels["metric"] = as_kernel(
            {"metric": stabilise(model.metric)},
            equations="docs/theory.md (7.6)",
            formulas=[model_source(model, model.written["metric"])],
        )
    return {
        "has_metric": model.metric is not None,
        "x_names": entries("x", L, structure.student_rank),
        "u_names": [symbol.name for symbol, _ in model.noise.values()],
        "needs": " ".join(str(output.needs).replace("_", "").split()),
        "L": L,
        "t": t,
        "D": L * t,
        "unpack": unpack,
        "kernels": kernels,
        "observed": [c.symbol.name for c in output.observed],
        "hidden": [c.symbol.name for c in output.hidden],
        "observed_literal": _coordinate_literals(output.observed),
        "hidden_literal": _coordinate_literals(output.hidden),
        "free": tuple(output.field_indices),
        "affine": output.is_affine,
        "reads": own.read is not None,
        "turns": any(c.kind == ANGLE for c in (*output.observed, *output.hidden)),
        "y_names": names,
        "w_names": entries("w", L, t),
        "g_names": entries("g", L, t),
        "p_names": upper_entries("p", L, t),
    }


def _name_entries(name: str, matrix: Any) -> dict[str, Any]:
    return {entry: matrix[entry.place] for entry in entries(name, *matrix.shape)}


def _coordinate_literals(coordinates: tuple[Coordinate, ...]) -> str:
    parts = [f"({c.name!r}, {c.kind!r}, {literal(c.values)})" for c in coordinates]
    return f"({', '.join(parts)},)" if parts else "()"
