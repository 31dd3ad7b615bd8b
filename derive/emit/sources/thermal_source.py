"""Variables of the template of the channel at a finite temperature: values of the loss, no derivatives in X."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...authoring.model import FixedSizeModel
from ..kernel import ArrayEntryName, Kernel, array_entries, make_kernel, model_function_location, upper_triangle_entries
from . import nodes
from .channel import (
    channel_summands,
    channel_summands_kernel,
    extract_teacher_features,
    joint_law_of_discrete_noise,
    names_of_channel_summands,
    names_of_noise_coordinates,
    saddle_point_of_model,
    teacher_feature_kernel,
)
from .prior_source import SCAN

MOST_FIELDS = 4  # most fields of an integral over X by product rules, at every node of another integral


def thermal_template_variables(model: FixedSizeModel, unpack: Callable[[Kernel], str]) -> dict[str, Any]:
    """Return the variables of the code template of channel averages at a finite temperature.

    The equations, and with them the averages needed, are those of zero temperature (theory/thermal.py).

    Args:
        model: model with fixed sizes L, s, t.
        unpack: function that returns the lines which read a kernel's constants from their vector.
    """
    structure = model.structure
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    definitions, loss = extract_teacher_features(model)
    features, feature_names = teacher_feature_kernel(model, definitions)
    moments, summands, own = channel_summands(model, saddle_point_of_model(model), loss)
    drawn = names_of_noise_coordinates(model)
    noise = drawn["gaussian_noise"]
    rows = names_of_channel_summands(moments, L)
    probabilities, values = joint_law_of_discrete_noise(model)
    kernels: dict[str, Kernel | None] = {
        "features": features,
        "loss": make_kernel(
            {"loss": loss}, equations="docs/theory.md (1.3)", formulas=[model_function_location(model)]
        ),
        "quadratic": make_kernel(
            {"value": nodes.proximal_quadratic_form(structure)},
            equations="docs/theory.md (4.3)",
            formulas=[nodes.proximal_quadratic_form],
        ),
        "node": nodes.fields_at_node_kernel(structure, noise, "w"),
        "field": nodes.proximal_field_kernel(structure, "mean"),
        "response": nodes.thermal_response_kernel(structure),
        "moment_rows": channel_summands_kernel(summands),
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
        "x_names": array_entries("x", L, s),
        "y_names": array_entries("y", L, t),
        "w_names": array_entries("w", L, s),
        "u_names": [symbol.name for symbol, _ in model.noise.values()],
        **drawn,
        "p_names": upper_triangle_entries("p", L, s),
        "mean_names": array_entries("mean", L, s),
        "spread_names": [ArrayEntryName("spread", i, j) for i in range(L * s) for j in range(i, L * s)],
        "arrays": nodes.entries_of_field_law_arrays(structure, len(noise)),
        "coordinates": nodes.standard_normal_coordinates(structure, len(noise)),
    }
