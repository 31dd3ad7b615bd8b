"""Results as text, JSON, tables and figures, registered with `presenting`.

This module lists the modules of renderers by name; each is imported when a result first needs it.
"""

from __future__ import annotations

from ..base import presenting

_DATASET = "xarray.core.dataset"  # the module of xarray.Dataset
# Module of this package -> modules that define the results it renders.
_TEXT_MODULES = {
    "solution": "solving.solution",
    "thresholds": "thresholds.threshold",
    "responses": "responses.sensitivity_results responses.tuning responses.joint_tuning",
    "precise": "extensions.reference.solution",
    "bayes": "extensions.bayes.solution extensions.bayes.thresholds extensions.bayes.messages",
    "breaking": "extensions.breaking.solution",
    "simulation": "extensions.simulation.simulation",
    "sweeps": "extensions.sweeping.sweep",
    "phases": "extensions.planes.diagram",
    "dynamics": "extensions.descent.dynamics extensions.descent.escape extensions.descent.stationary",
}
_TABLE_MODULES = {
    "tables": "branches.curve_results extensions.breaking.curve following.follow following.critical",
    "simulation_tables": "extensions.simulation.simulation",
    "dynamics_tables": "extensions.descent.dynamics",
    "sweep_tables": "extensions.sweeping.sweep",
    "phase_tables": "extensions.planes.diagram",
}
_COMPARISON_RESULTS = "extensions.comparison.compare extensions.comparison.measurements"
_STABILITY_RESULTS = "stability.assess stability.jumps channel.landscape"
_RENDERERS = (
    (presenting.table, {**_TEXT_MODULES, "comparison": _COMPARISON_RESULTS}),
    (presenting.table, {"responses": "responses.tuned_curve"}),
    (presenting.to_json, {**_TEXT_MODULES, "stability": _STABILITY_RESULTS}),
    (presenting.to_json, {"solution": "solving.thermal"}),
    (presenting.to_dataset, _TABLE_MODULES),
    (presenting.to_dataset, {"tables": "responses.tuned_curve extensions.bayes.thresholds"}),
    (presenting.to_frame, {"frames": f"branches.curve_results following.follow base.presenting {_DATASET}"}),
    (presenting.to_frame, {"responses": "responses.sensitivity_results", "comparison": _COMPARISON_RESULTS}),
    (presenting.to_tabular, {"frames": "branches.curve_results"}),
    (presenting.save, {"tables": _DATASET}),
    (presenting.plot, {"plots.figures": f"base.presenting {_DATASET}", "plots.simulation": _COMPARISON_RESULTS}),
)


def list_renderer_modules() -> list[tuple[presenting.RendererRegistry, str, str]]:
    """Return triples: a registry, a module with functions for it, and the module of the results that they present."""
    root = __name__.rpartition(".")[0]
    return [
        (registry, f"{__name__}.{module}", name if name == _DATASET else f"{root}.{name}")
        for registry, found in _RENDERERS
        for module, names in found.items()
        for name in names.split()
    ]


def register_renderer_modules() -> None:
    """Register all modules that present results as text, JSON, tables and figures; they are imported when needed."""
    for registry, module, results in list_renderer_modules():
        registry.register_renderer_module(module, results)
