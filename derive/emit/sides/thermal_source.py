"""What the template of the channel at a finite temperature needs: values of the loss, no derivatives in X."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...authoring.model import ModelAt
from ..kernel import Kernel, freeze
from .channel import (
    constants_of,
    discrete_noise,
    gaussian_noise,
    joint_discrete_noise,
    moment_rows,
    quadratic_part,
    saddle_for,
    teacher_features,
)
from .channel_source import blocks_of, names_of, noise_branch
from .prior_source import SCAN

MOST_FIELDS = 4  # of an integral over X by product rules, at every node of another integral


def thermal_context(model: ModelAt, unpack: Callable[[Kernel], str]) -> dict[str, Any]:
    """Kernels and names; the equations, and with them the averages asked for, are those of zero temperature
    (theory/thermal.py)."""
    structure = model.structure
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    features, feature_names, loss = teacher_features(model)
    moments, rows, own = moment_rows(model, saddle_for(model), loss)
    row = sum(m.shape[0] * m.shape[1] for m in moments)
    probabilities, values = joint_discrete_noise(model)
    kernels: dict[str, Kernel | None] = {
        "features": features,
        "loss": freeze({"loss": loss}),
        "quadratic": freeze({"value": quadratic_part(model)}),
        "moment_rows": freeze(rows, prefix="z"),
        "own_slopes": own,
    }
    return {
        "D": L * s,
        "L": L,
        "s": s,
        "t": t,
        "row": row,
        "scan": SCAN.get(L * s, 0),
        "has_averages": L * s <= MOST_FIELDS,
        "constants": constants_of(model),
        "unpack": unpack,
        "kernels": kernels,
        "branch": noise_branch(model, probabilities, values, unpack),
        "moments": tuple((m.text, m.shape, m.offset) for m in moments),
        "features": list(feature_names),
        "noise_values": values,
        "own": [name for name, _ in own.results] if own else [],
        "x_names": names_of(model.X),
        "y_names": names_of(model.Y),
        "w_names": [f"w_{l}_{a}" for l in range(L) for a in range(s)],
        "u_names": [symbol.name for symbol, _ in model.noise.values()],
        "gaussian_noise": [name for name, _ in gaussian_noise(model)],
        "discrete_noise": discrete_noise(model),
        "p_names": blocks_of(structure, "p"),
        "accumulators": [f"s_r_{l}_{i}" for l in range(L) for i in range(row)],
    }
