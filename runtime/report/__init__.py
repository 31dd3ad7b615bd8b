"""Results for people and machines: text, JSON, tables and figures, registered with `presenting`.

Only the names of modules stand here; each is loaded with the first result that asks for it.
"""

from __future__ import annotations

from .. import presenting

_ROOT = __name__.rpartition(".")[0]
_WORDS = {
    "report.solution": ["solving.solution"],
    "report.thresholds": ["thresholds.threshold"],
    "report.responses": ["responses.answers", "responses.tuning", "responses.tuned_curve"],
    "report.precise": ["reference.solution"],
    "report.bayes": ["bayes.solution", "bayes.thresholds"],
    "report.simulation": ["simulation.simulation"],
    "report.comparison": ["comparison.compare"],
}
_DATASETS = {
    "report.tables": ["branches.branch", "following.follow", "following.critical", "responses.tuned_curve"],
    "report.simulation_tables": ["simulation.simulation"],
}
_FRAMES = {
    "report.frames": ["branches.branch"],
    "report.responses": ["responses.answers"],
    "report.comparison": ["comparison.compare"],
}
_DATASET = "xarray.core.dataset"  # the module of xarray.Dataset


def register() -> None:
    """Tell `presenting` where the renderers are."""
    for face, renderers, of_datasets in (
        (presenting.table, _WORDS, None),
        (presenting.to_json, _WORDS, None),
        (presenting.to_dataset, _DATASETS, None),
        (presenting.to_frame, _FRAMES, "report.frames"),
        (presenting.to_tabular, _FRAMES, None),
        (presenting.save, {}, "report.tables"),
        (presenting.plot, {"report.plots.simulation": ["comparison.compare"]}, "report.plots.branches"),
    ):
        for renderer, results in renderers.items():
            face.found_in(f"{_ROOT}.{renderer}", *(f"{_ROOT}.{result}" for result in results))
        if of_datasets is not None:
            face.found_in(f"{_ROOT}.{of_datasets}", _DATASET)
