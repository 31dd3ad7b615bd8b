"""The jobs of `saddleforge reproduce`: for each figure a run, and the function that writes its page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..base.errors import require_known_name
from ..base.files import check_output_folder, file_exists_error
from .breaking import BreakingRun
from .dynamics import DynamicsRun
from .extensions import ExtensionsRun
from .finite_size import FiniteSizeRun
from .pages import breaking, dynamics, extensions, finite_size, stability_map, transition
from .run import Reproduction, ReproductionRun
from .stability_map import StabilityRun
from .steps import STEPS
from .transition import TransitionRun

# The figures of the first job are drawn by default; the others, which take longer, on request only.
JOBS: tuple[tuple[type[ReproductionRun], Callable[[Any], None]], ...] = (
    (TransitionRun, transition.write_report),
    (ExtensionsRun, extensions.write_report),
    (StabilityRun, stability_map.write_report),
    (FiniteSizeRun, finite_size.write_report),
    (BreakingRun, breaking.write_report),
    (DynamicsRun, dynamics.write_report),
)


def refuse_to_overwrite_foreign_files(out: Path) -> None:
    """Raise InputError if a run of `reproduce` would overwrite files that no earlier run wrote.

    Raises:
        InputError: a file of the run exists in a folder that contains no steps of an earlier run.
    """
    if (out / STEPS).is_dir():
        return
    runs = [run for run, _ in JOBS]
    pages = [f"{run.page}.{kind}" for run in runs for kind in ("md", "html")]
    for name in (*pages, *(f"{run.data}.json" for run in runs), *(name for run in runs for name in run.others)):
        if (out / name).exists():
            raise file_exists_error(out / name, "it exists, and no earlier run of this command wrote it")


def reproduce(out: str | Path, figures: Iterable[str] | None = None) -> Reproduction:
    """Reproduce figures of the attention paper: compute branches and thresholds, and write tables and a report.

    Args:
        out: output folder; results of an earlier run that are stored in it are used again if their input is the same.
        figures: names of the figures to draw; None: the figures of the phase transition.

    Raises:
        InputError: the folder cannot be written, or the name of a figure is unknown.
    """
    out = check_output_folder(Path(out))
    wanted = tuple(figures or JOBS[0][0].draws)
    known = [name for run, _ in JOBS for name in run.draws]
    for name in wanted:
        require_known_name("figure", name, known)
    # All runs are constructed, and their input checked, before the first one starts.
    runs = [(run(out, asked), write) for run, write in JOBS if (asked := tuple(n for n in wanted if n in run.draws))]
    found = [run.run_all_tasks(write) for run, write in runs]
    if len(found) == 1:
        return found[0]
    others = {run.figures[0]: one.results for (run, _), one in zip(runs[1:], found[1:], strict=True)}
    return Reproduction(out, {**found[0].results, **others}, all(one.complete for one in found), found[0].page)
