"""Common parts of all runs of `reproduce`: the problem, steps stored in a folder, and one progress bar.

A second process may compute steps in another order and stores their results in the folder. Results do not depend on
which process computes them: a step is locked while it is computed (`StoredSteps`), and the other process waits for it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xarray

from .._version import __version__
from ..base.environment import processor_count, receive_object_from_parent, run_background_process
from ..base.files import write_atomically
from ..base.progress import print_message, progress_bar, set_quiet_mode
from ..base.threads import threads_for_loops
from ..branches.curve_results import Curve
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem, problem
from ..report.frames import flat_frame_of_dataset
from ..report.tables import load_netcdf_dataset, save_dataset_as_netcdf
from .steps import StoredSteps, code_digest

MODEL = "dot_product_attention"
SHOWN_OMEGA = 0.3
BRANCHES = ("semantic", "positional")


@dataclass(frozen=True)
class Reproduction:
    """The result of `reproduce`.

    Attributes:
        out: output folder.
        results: content of the report, as plain numbers and words (see `pages.transition.build_page`).
        complete: whether every threshold was located to its accuracy or shown not to exist, and the generated solver
            is current.
        page: file name of the report.
    """

    out: Path
    results: Mapping[str, Any]
    complete: bool
    page: str = "report.html"

    @property
    def report(self) -> Path:
        """Return the path of the report as HTML, which contains its figures."""
        return self.out / self.page

    def to_json(self) -> dict[str, Any]:
        """Return the results, the path of the report, and whether they are complete."""
        return {**self.results, "report": str(self.report), "complete": self.complete}


@dataclass(frozen=True)
class RunTask:
    """A task of a run: a computation, and the place of its result.

    Attributes:
        title: title shown as progress.
        seconds: expected duration on two cores from empty caches.
        name: name of the stored step (see `StoredSteps.run_step`).
        work: method of the run that computes the result.
        given: arguments of the method.
        into: keys of the result in `ReproductionRun.results`, where a list is extended; empty for no result.
        settings: input in addition to the code and the arguments.
        after: names of the steps whose results the task uses.
        files: names of the files that the task writes.
    """

    title: str
    seconds: float
    name: str
    work: Callable[..., Any]
    given: tuple[Any, ...] = ()
    into: tuple[str, ...] = ()
    after: Sequence[str] = ()
    files: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


class ReproductionRun(ABC):
    """A run of `reproduce`: its tasks in order, with one progress bar.

    Attributes:
        draws: names of the figures that the run can draw.
        page: file name of the page, without suffix.
        data: file name of the results as JSON, without suffix.
        others: names of further files that the run writes.
        writing: title of the last task, which writes the output.
        writing_seconds: expected duration of the last task.
        second_process_steps: names of steps for a second process in order, each after the steps that it needs.
        results: plain numbers and words, filled task by task.
    """

    draws: ClassVar[tuple[str, ...]]
    page: ClassVar[str]
    data: ClassVar[str]
    others: ClassVar[tuple[str, ...]] = ()
    writing: ClassVar[str] = "table, figure and the report"
    writing_seconds: ClassVar[float] = 5
    second_process_steps: ClassVar[tuple[str, ...]] = ()

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        self.out, self.figures = out, figures
        self.base = problem(MODEL, alpha=2.0, omega=SHOWN_OMEGA)
        common = {"model": MODEL, "digest": self.base.solver.physics_digest, "version": __version__}
        self.steps = StoredSteps(out, {**common, "solver": self.base.solver.solver_files_digest})
        self.results: dict[str, Any] = {**common, "omega": SHOWN_OMEGA}

    @abstractmethod
    def planned_tasks(self) -> Iterable[RunTask]:
        """Return the tasks of the run in order."""

    @abstractmethod
    def is_complete(self) -> bool:
        """Return whether every number of the run reached its accuracy."""

    def run_task(self, task: RunTask) -> None:
        """Compute the result of a task, or read the stored result of the same input and code."""
        settings, work = {"given": task.given, **task.settings}, partial(task.work, *task.given)
        code = code_digest(task.work)
        result = self.steps.run_step(task.name, settings, work, code=code, files=task.files, after=task.after)
        if task.into:
            *keys, last = task.into
            place = reduce(lambda at, key: at.setdefault(key, {}), keys, self.results)
            if isinstance(place.get(last), list):
                place[last] += result if isinstance(result, list) else [result]
            else:
                place[last] = result

    def run_all_tasks(self, write: Callable[[Any], None]) -> Reproduction:
        """Compute all tasks, then call `write` to write tables, figures and the page of this run."""
        works: list[tuple[str, float, Callable[[], None]]]
        works = [(task.title, task.seconds, partial(self.run_task, task)) for task in self.planned_tasks()]
        works.append((f"writing {self.writing}", self.writing_seconds, partial(write, self)))
        print_message(
            f"about {sum(b for _, b, _ in works) // 60 + 1} minutes from empty caches, less if results are stored"
        )
        with progress_bar("reproduce", len(works)) as progress, ExitStack() as stack:
            if self.second_process_steps and min(processor_count(), threads_for_loops()) > 1:

                @cache
                def start_second_process() -> None:
                    given = type(self), self.out, self.figures
                    stack.enter_context(run_background_process(__name__, given, {"NUMBA_NUM_THREADS": "1"}))

                self.steps.begin = start_second_process
            for number, (title, budget, work) in enumerate(works, start=1):
                progress.describe(title)
                computed, computed_elsewhere, began = (
                    len(self.steps.computed),
                    len(self.steps.computed_elsewhere),
                    time.monotonic(),
                )
                work()
                how = (
                    "computed by the second process"
                    if len(self.steps.computed_elsewhere) > computed_elsewhere
                    else "read from an earlier run"
                )
                if len(self.steps.computed) > computed or number == len(works):
                    how = "computed"
                print_message(f"{title}: {how}, {time.monotonic() - began:.0f} s (expected {budget} s)")
                progress.advance()
        return Reproduction(self.out, self.results, self.is_complete(), f"{self.page}.html")

    def write_branch_tables(self, branch: Curve, files: Sequence[str]) -> dict[str, Any]:
        """Write the table of a branch as netCDF and CSV; return its ends and its number of points.

        Args:
            branch: the branch.
            files: names of the netCDF and the CSV file.
        """
        dataset = branch.to_xarray()
        save_dataset_as_netcdf(dataset, self.out / files[0])
        write_atomically(self.out / files[1], flat_frame_of_dataset(dataset).to_csv(index=False, lineterminator="\n"))
        return {"ends": branch.end_text(), "points": len(branch.solutions)}

    def branch_dataset(self, name: str) -> xarray.Dataset:
        """Return the stored table of a branch; its name may contain a folder."""
        return load_netcdf_dataset(self.out / "tables" / f"{name}.nc")


def serve() -> None:
    """Run the tasks of a run received on stdin, in a second process."""
    kind, out, figures = receive_object_from_parent()
    set_quiet_mode(True)
    run = kind(out, figures)
    tasks = {task.name: task for task in run.planned_tasks()}
    for name in run.second_process_steps:
        with suppress(Exception):  # the first process will raise the same error
            run.run_task(tasks[name])


def unpack_overlaps(at: Problem, vector: Sequence[float]) -> Overlaps:
    """Return overlaps from the packed components that a step stored (see `Overlaps.pack`).

    Args:
        at: problem that gives the sizes.
        vector: packed components.
    """
    return Overlaps.unpack(np.array(vector, float), at.sizes)


def branch_table_files(*names: str) -> list[str]:
    """Return the names of the netCDF and the CSV file of the table of a branch."""
    return [f"tables/{'/'.join(names)}.{kind}" for kind in ("nc", "csv")]
