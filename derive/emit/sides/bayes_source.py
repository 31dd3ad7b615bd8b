"""What the template of Bayes-optimal inference needs: the output channel and the two Gaussian integrals as kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...authoring.model import ModelAt
from ...authoring.outputs import ANGLE, Coordinate, OutputAt
from ...calculus.stable import stable
from ...theory.bayes import fields, rows
from ..kernel import Kernel, entries, freeze, home, upper_entries
from .metadata_source import literal


def bayes_context(model: ModelAt, output: OutputAt, unpack: Callable[[Kernel], str]) -> dict[str, Any]:
    """Names and kernels; fields are flattened token by token."""
    structure = model.structure
    L, t = structure.tokens, structure.teacher_rank
    gaussian, row, own = fields(L, t), rows(t), output.written
    names = entries("y", L, t)
    kernels = {
        "fields": freeze(
            {
                **dict(zip(names, output.fields, strict=True)),
                "log_jacobian": output.jacobian,
                "log_likelihood": stable(output.log_likelihood),
            },
            equations="docs/theory.md (13.4)",
            formulas=[home(model, function) for function in (own.fields, own.log_likelihood) if function],
        ),
        "needs": freeze(
            {"needs": output.needs}, equations="docs/theory.md (13.4)", formulas=[home(model, own.needs or own.fields)]
        ),
        "gaussian": freeze(
            {"exponent": gaussian.exponent, **_named("g", gaussian.slope)},
            equations="docs/theory.md (13.4), (13.6)",
            formulas=[fields],
        ),
        "row": freeze(
            {"log_integral": row.log_integral, **_named("moment", row.moment), **_named("spread", row.spread)},
            equations="docs/theory.md (13.3), (13.6), (13.10)",
            formulas=[rows],
        ),
    }
    if own.read is not None:
        kernels["read"] = freeze(
            {c.symbol.name: told for c, told in zip(output.observed, output.read, strict=True)},
            equations="docs/theory.md (13.4)",
            formulas=[home(model, own.read)],
        )
    if model.metric is not None:
        kernels["metric"] = freeze(
            {"metric": stable(model.metric)},
            equations="docs/theory.md (7.6)",
            formulas=[home(model, model.written["metric"])],
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
        "observed_literal": _literals(output.observed),
        "hidden_literal": _literals(output.hidden),
        "free": tuple(output.free),
        "affine": output.affine,
        "reads": own.read is not None,
        "turns": any(c.kind == ANGLE for c in (*output.observed, *output.hidden)),
        "y_names": names,
        "w_names": entries("w", L, t),
        "g_names": entries("g", L, t),
        "p_names": upper_entries("p", L, t),
    }


def _named(name: str, matrix: Any) -> dict[str, Any]:
    return {entry: matrix[entry.place] for entry in entries(name, *matrix.shape)}


def _literals(coordinates: tuple[Coordinate, ...]) -> str:
    parts = [f"({c.name!r}, {c.kind!r}, {literal(c.values)})" for c in coordinates]
    return f"({', '.join(parts)},)" if parts else "()"
