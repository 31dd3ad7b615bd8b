"""Results for people and machines: text, JSON, tables and figures, registered with `presenting`.

Only the names of modules stand here; each is loaded with the first result that asks for it.
"""

from __future__ import annotations

from .. import presenting

_ROOT = __name__.rpartition(".")[0]
_WORDS = {
    "shown.solution": ["solution"],
    "shown.thresholds": ["thresholds"],
    "shown.responses": ["sensitivity", "tuning"],
    "shown.precise": ["reference.solution"],
    "shown.bayes": ["bayes.solution", "bayes.thresholds"],
    "shown.simulation": ["simulation.simulation"],
    "shown.comparison": ["simulation.comparison"],
}
_TABLES = {
    "tables": ["branches", "following", "critical", "tuning"],
    "simulation.storage": ["simulation.simulation"],
    "shown.responses": ["sensitivity"],
    "shown.comparison": ["simulation.comparison"],
}
_DATASET = "xarray.core.dataset"  # the module of xarray.Dataset


def register() -> None:
    """Tell `presenting` where the renderers are."""
    for face, renderers, of_datasets in (
        (presenting.table, _WORDS, None),
        (presenting.to_json, _WORDS, None),
        (presenting.to_dataset, _TABLES, None),
        (presenting.to_frame, _TABLES, "tables"),
        (presenting.to_tabular, _TABLES, None),
        (presenting.save, {}, "tables"),
        (presenting.plot, {"simulation.figures": ["simulation.comparison"]}, "plots"),
    ):
        for renderer, results in renderers.items():
            face.found_in(f"{_ROOT}.{renderer}", *(f"{_ROOT}.{result}" for result in results))
        if of_datasets is not None:
            face.found_in(f"{_ROOT}.{of_datasets}", _DATASET)
