"""Results for people and machines: text, JSON, tables and figures, registered with `presenting`.

Only the names of modules stand here; each is loaded with the first result that asks for it.
"""

from __future__ import annotations

from .. import presenting

_DATASET = "xarray.core.dataset"  # the module of xarray.Dataset
# Module of this package -> modules that define the results it renders.
_WORDS = {
    "solution": ["solving.solution"],
    "thresholds": ["thresholds.threshold"],
    "responses": ["responses.answers", "responses.tuning", "responses.joint"],
    "precise": ["reference.solution"],
    "bayes": ["bayes.solution", "bayes.thresholds", "bayes.messages"],
    "breaking": ["breaking.solution"],
    "simulation": ["simulation.simulation"],
    "sweeps": ["sweeping.sweep"],
    "phases": ["planes.diagram"],
    "dynamics": ["descent.dynamics", "descent.escape", "descent.stationary"],
}
_FACES = (
    (presenting.table, {**_WORDS, "responses": [*_WORDS["responses"], "responses.tuned_curve"]}),
    (presenting.table, {"comparison": ["comparison.compare", "comparison.own_points"]}),
    (presenting.to_json, {**_WORDS, "solution": [*_WORDS["solution"], "solving.thermal"]}),
    (presenting.to_json, {"stability": ["stability.assess", "stability.jumps", "channel.landscape"]}),
    (presenting.to_dataset, {"tables": ["branches.branch", "following.follow", "following.critical"]}),
    (presenting.to_dataset, {"tables": ["bayes.thresholds"]}),
    (presenting.plot, {"plots.branches": ["bayes.thresholds"]}),
    (presenting.to_dataset, {"tables": ["breaking.curve"]}),
    (presenting.to_dataset, {"tables": ["responses.tuned_curve"], "simulation_tables": ["simulation.simulation"]}),
    (
        presenting.to_frame,
        {"frames": ["branches.branch", "following.follow", _DATASET], "responses": ["responses.answers"]},
    ),
    (presenting.to_frame, {"comparison": ["comparison.compare", "comparison.own_points"]}),
    (presenting.to_dataset, {"sweep_tables": ["sweeping.sweep"], "phase_tables": ["planes.diagram"]}),
    (presenting.to_frame, {"sweep_tables": ["sweeping.sweep"]}),
    (presenting.to_dataset, {"dynamics_tables": ["descent.dynamics"]}),
    (presenting.to_frame, {"dynamics_tables": ["descent.dynamics"]}),
    (presenting.plot, {"plots.dynamics": ["descent.dynamics"]}),
    (presenting.to_tabular, {"frames": ["branches.branch"]}),
    (presenting.save, {"tables": [_DATASET]}),
    (presenting.plot, {"plots.sweeps": ["sweeping.sweep"], "plots.phases": ["planes.diagram"]}),
    (
        presenting.plot,
        {"plots.branches": [_DATASET], "plots.simulation": ["comparison.compare", "comparison.own_points"]},
    ),
)


def renderers() -> list[tuple[presenting.Face, str, str]]:
    """(face, module that registers with it, module that defines what that is for)."""
    root = __name__.rpartition(".")[0]
    return [
        (face, f"{__name__}.{module}", name if name == _DATASET else f"{root}.{name}")
        for face, found in _FACES
        for module, names in found.items()
        for name in names
    ]


def register() -> None:
    """Tell `presenting` where the renderers are."""
    for face, module, results in renderers():
        face.found_in(module, results)
