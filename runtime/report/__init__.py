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
_RESPONSES = [*_WORDS["responses"], "responses.tuned_curve"]
_COMPARED = ["comparison.compare", "comparison.own_points"]
_FACES: tuple[tuple[presenting.Face, dict[str, list[str]]], ...] = (
    (presenting.table, {**_WORDS, "responses": _RESPONSES, "comparison": _COMPARED}),
    (
        presenting.to_json,
        {
            **_WORDS,
            "solution": [*_WORDS["solution"], "solving.thermal"],
            "stability": ["stability.assess", "stability.jumps", "channel.landscape"],
        },
    ),
    (
        presenting.to_dataset,
        {
            "tables": [
                *("branches.branch", "breaking.curve", "following.follow", "following.critical", "bayes.thresholds"),
                "responses.tuned_curve",
            ],
            "simulation_tables": ["simulation.simulation"],
            "dynamics_tables": ["descent.dynamics"],
            "sweep_tables": ["sweeping.sweep"],
            "phase_tables": ["planes.diagram"],
        },
    ),
    (
        presenting.to_frame,
        {
            "frames": ["branches.branch", "following.follow", "presenting", _DATASET],
            "responses": ["responses.answers"],
            "comparison": _COMPARED,
        },
    ),
    (presenting.to_tabular, {"frames": ["branches.branch"]}),
    (presenting.save, {"tables": [_DATASET]}),
    (presenting.plot, {"plots.figures": ["presenting", _DATASET], "plots.simulation": _COMPARED}),
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
