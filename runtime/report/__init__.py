"""Results for people and machines: text, JSON, tables and figures, registered with `presenting`.

Only the names of modules stand here; each is loaded with the first result that asks for it.
"""

from __future__ import annotations

from ..base import presenting

_DATASET = "xarray.core.dataset"  # the module of xarray.Dataset
# Module of this package -> modules that define the results it renders.
_WORDS = {
    "solution": "solving.solution",
    "thresholds": "thresholds.threshold",
    "responses": "responses.answers responses.tuning responses.joint",
    "precise": "extensions.reference.solution",
    "bayes": "extensions.bayes.solution extensions.bayes.thresholds extensions.bayes.messages",
    "breaking": "extensions.breaking.solution",
    "simulation": "extensions.simulation.simulation",
    "sweeps": "extensions.sweeping.sweep",
    "phases": "extensions.planes.diagram",
    "dynamics": "extensions.descent.dynamics extensions.descent.escape extensions.descent.stationary",
}
_TABLES = {
    "tables": "branches.along extensions.breaking.curve following.follow following.critical",
    "simulation_tables": "extensions.simulation.simulation",
    "dynamics_tables": "extensions.descent.dynamics",
    "sweep_tables": "extensions.sweeping.sweep",
    "phase_tables": "extensions.planes.diagram",
}
_COMPARED = "extensions.comparison.compare extensions.comparison.own_points"
_JUDGED = "stability.assess stability.jumps channel.landscape"
_FACES = (
    (presenting.table, {**_WORDS, "comparison": _COMPARED}),
    (presenting.table, {"responses": "responses.tuned_curve"}),
    (presenting.to_json, {**_WORDS, "stability": _JUDGED}),
    (presenting.to_json, {"solution": "solving.thermal"}),
    (presenting.to_dataset, _TABLES),
    (presenting.to_dataset, {"tables": "responses.tuned_curve extensions.bayes.thresholds"}),
    (presenting.to_frame, {"frames": f"branches.along following.follow base.presenting {_DATASET}"}),
    (presenting.to_frame, {"responses": "responses.answers", "comparison": _COMPARED}),
    (presenting.to_tabular, {"frames": "branches.along"}),
    (presenting.save, {"tables": _DATASET}),
    (presenting.plot, {"plots.figures": f"base.presenting {_DATASET}", "plots.simulation": _COMPARED}),
)


def renderers() -> list[tuple[presenting.Face, str, str]]:
    """(face, module that registers with it, module that defines what that is for)."""
    root = __name__.rpartition(".")[0]
    return [
        (face, f"{__name__}.{module}", name if name == _DATASET else f"{root}.{name}")
        for face, found in _FACES
        for module, names in found.items()
        for name in names.split()
    ]


def register() -> None:
    """Tell `presenting` where the renderers are."""
    for face, module, results in renderers():
        face.found_in(module, results)
