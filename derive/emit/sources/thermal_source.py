"""Context of the template of the channel at a finite temperature: values of the loss, no derivatives in X."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...authoring.model import ModelAt
from ..kernel import Entry, Kernel, as_kernel, entries, model_source, upper_entries
from . import nodes
from .channel import (
    extract_features,
    joint_discrete_noise,
    moment_kernel,
    moment_row_names,
    moment_rows,
    noise_names,
    saddle_of_model,
    teacher_features,
)
from .prior_source import SCAN

MOST_FIELDS = 4  # most fields of an integral over X by product rules, at every node of another integral


def thermal_context(model: ModelAt, unpack: Callable[[Kernel], str]) -> dict[str, Any]:
    """Return kernels and names of the thermal template.

    The equations, and with them the averages needed, are those of zero temperature (theory/thermal.py).

    Args:
        model: model at its structure.
        unpack: lines that read the constants of a kernel from the vector c.
    """
    structure = model.structure
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    definitions, loss = extract_features(model)
    features, feature_names = teacher_features(model, definitions)
    moments, summands, own = moment_rows(model, saddle_of_model(model), loss)
    drawn = noise_names(model)
    noise = drawn["gaussian_noise"]
    rows = moment_row_names(moments, L)
    probabilities, values = joint_discrete_noise(model)
    kernels: dict[str, Kernel | None] = {
        "features": features,
        "loss": as_kernel({"loss": loss}, equations="docs/theory.md (1.3)", formulas=[model_source(model)]),
        "quadratic": as_kernel(
            {"value": nodes.quadratic(structure)}, equations="docs/theory.md (4.3)", formulas=[nodes.quadratic]
        ),
        "node": nodes.node(structure, noise, "w"),
        "field": nodes.field(structure, "mean"),
        "response": nodes.thermal_response(structure),
        "moment_rows": moment_kernel(summands),
        "own_slopes": own,
        "noise_probabilities": probabilities,
    }
    return {
        "D": L * s,
        "L": L,
        "s": s,
        "t": t,
        "rows": rows,
        "row": len(rows) // L,
        "scan": SCAN.get(L * s, 0),
        "has_averages": L * s <= MOST_FIELDS,
        "unpack": unpack,
        "kernels": kernels,
        "moments": tuple((m.text, m.shape, m.offset) for m in moments),
        "features": list(feature_names),
        "noise_values": values,
        "own": [name for name, _ in own.results] if own else [],
        "x_names": entries("x", L, s),
        "y_names": entries("y", L, t),
        "w_names": entries("w", L, s),
        "u_names": [symbol.name for symbol, _ in model.noise.values()],
        **drawn,
        "p_names": upper_entries("p", L, s),
        "mean_names": entries("mean", L, s),
        "spread_names": [Entry("spread", i, j) for i in range(L * s) for j in range(i, L * s)],
        "arrays": nodes.law_array_entries(structure, len(noise)),
        "coordinates": nodes.normal_coordinates(structure, len(noise)),
    }
