"""The jobs of `saddleforge reproduce`: each figure's run, and what writes its page. The only place that lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..base.errors import require_known
from ..base.files import check_folder, occupied
from .breaking import BreakingRun
from .dynamics import DynamicsRun
from .extensions import ExtensionsRun
from .finite_size import FiniteSizeRun
from .pages import breaking, dynamics, extensions, finite_size, stability_map, transition
from .run import Reproduction, Run
from .stability_map import StabilityRun
from .steps import STEPS
from .transition import TransitionRun

# The figures of the first are drawn by default; the others on request only, each having a longer job of its own.
JOBS: tuple[tuple[type[Run], Callable[[Any], None]], ...] = (
    (TransitionRun, transition.write),
    (ExtensionsRun, extensions.write),
    (StabilityRun, stability_map.write),
    (FiniteSizeRun, finite_size.write),
    (BreakingRun, breaking.write),
    (DynamicsRun, dynamics.write),
)


def refuse_foreign(out: Path) -> None:
    """Refuse a folder in which files of somebody else would be written over: without steps, they are not of a run.

    Raises:
        InputError: there is one.
    """
    if (out / STEPS).is_dir():
        return
    runs = [run for run, _ in JOBS]
    pages = [f"{run.page}.{kind}" for run in runs for kind in ("md", "html")]
    for name in (*pages, *(f"{run.data}.json" for run in runs), *(name for run in runs for name in run.others)):
        if (out / name).exists():
            raise occupied(out / name, "it exists, and is not of an earlier run of this command")


def reproduce(out: str | Path, figures: Iterable[str] | None = None) -> Reproduction:
    """Derive, follow the branches, locate the thresholds, and write tables, figures and the report into a folder.

    Args:
        out: folder; what an earlier run left there is used again where it is still valid.
        figures: names to draw among those of JOBS, default all of the first.

    Raises:
        InputError: the folder cannot be written, or a figure has no such name.
    """
    out = check_folder(Path(out))
    wanted = tuple(figures or JOBS[0][0].draws)
    known = [name for run, _ in JOBS for name in run.draws]
    for name in wanted:
        require_known("figure", name, known)
    # Every problem is posed before the first is worked on.
    runs = [(run(out, asked), write) for run, write in JOBS if (asked := tuple(n for n in wanted if n in run.draws))]
    found = [run.all(write) for run, write in runs]
    if len(found) == 1:
        return found[0]
    others = {run.figures[0]: one.results for (run, _), one in zip(runs[1:], found[1:], strict=True)}
    return Reproduction(out, {**found[0].results, **others}, all(one.complete for one in found), found[0].page)
