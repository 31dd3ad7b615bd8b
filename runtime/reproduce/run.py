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
from ..base.threads import loop_thread_count
from ..branches.curve_results import Curve
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem, problem
from ..report.frames import dataframe_of_dataset
from ..report.tables import load_netcdf_dataset, save_dataset_as_netcdf
from .steps import StoredSteps, code_digest

MODEL = "dot_product_attention"
SHOWN_OMEGA = 0.3
BRANCHES = ("semantic", "positional")


@dataclass(frozen=True)
class Reproduction:
    """The result of `reproduce`: the numbers of the report, and where it was written.

    Attributes:
        out: output folder.
        results: numbers and words of the report by key (see `pages.transition.build_page`).
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
        """Return the path of the HTML file of the report, which contains its figures."""
        return self.out / self.page

    def to_json(self) -> dict[str, Any]:
        """Return the results as a dict for JSON, with the path of the report and whether all numbers are complete."""
        return {**self.results, "report": str(self.report), "complete": self.complete}


@dataclass(frozen=True)
class RunTask:
    """A task of a run of `reproduce`: a computation whose result is stored on disk.

    Attributes:
        title: description shown as progress.
        seconds: expected duration on two cores with empty caches, in seconds.
        name: name of the stored step (see `StoredSteps.load_or_compute_step`).
        work: method of the run that computes the result.
        given: arguments of the method.
        into: nested keys of the result in `ReproductionRun.results` (a list there is extended); empty: no result.
        settings: further input; the task is computed again if it, the code or the arguments change.
        after: names of the earlier tasks whose results the task uses.
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
    """The base class of the runs of `reproduce`, one for each figure: tasks that are computed in order.

    Attributes:
        draws: names of the figures that the run can draw.
        page: file name of the report (Markdown and HTML), without suffix.
        data: file name of the results as JSON, without suffix.
        others: names of further files and folders that the run writes.
        writing: description of the last task, which writes the output.
        writing_seconds: expected duration of the last task, in seconds.
        second_process_steps: names of tasks that a second process computes, in this order.
        results: numbers and words by nested keys, filled task by task.
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
        """Return the tasks of this run of `reproduce`, in the order in which they are computed."""

    @abstractmethod
    def are_results_complete(self) -> bool:
        """Return whether every number of the run has the accuracy that was asked for."""

    def run_task(self, task: RunTask) -> None:
        """Compute a task, or read its stored result if input and code are the same; put the result into `results`."""
        settings, work = {"given": task.given, **task.settings}, partial(task.work, *task.given)
        code = code_digest(task.work)
        result = self.steps.load_or_compute_step(
            task.name, settings, work, code=code, files=task.files, after=task.after
        )
        if task.into:
            *keys, last = task.into
            place = reduce(lambda at, key: at.setdefault(key, {}), keys, self.results)
            if isinstance(place.get(last), list):
                place[last] += result if isinstance(result, list) else [result]
            else:
                place[last] = result

    def run_all_tasks(self, write: Callable[[Any], None]) -> Reproduction:
        """Compute all tasks of the run in order, then write its tables, figures and report."""
        works: list[tuple[str, float, Callable[[], None]]]
        works = [(task.title, task.seconds, partial(self.run_task, task)) for task in self.planned_tasks()]
        works.append((f"writing {self.writing}", self.writing_seconds, partial(write, self)))
        print_message(
            f"about {sum(b for _, b, _ in works) // 60 + 1} minutes from empty caches, less if results are stored"
        )
        with progress_bar("reproduce", len(works)) as progress, ExitStack() as stack:
            if self.second_process_steps and min(processor_count(), loop_thread_count()) > 1:

                @cache
                def start_background_process() -> None:
                    given = type(self), self.out, self.figures
                    stack.enter_context(run_background_process(__name__, given, {"NUMBA_NUM_THREADS": "1"}))

                self.steps.begin = start_background_process
            for number, (title, budget, work) in enumerate(works, start=1):
                progress.set_description(title)
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
                progress.count_finished_step()
        return Reproduction(self.out, self.results, self.are_results_complete(), f"{self.page}.html")

    def write_branch_tables(self, branch: Curve, files: Sequence[str]) -> dict[str, Any]:
        """Write the table of a branch as netCDF and CSV; return its ends and its number of points.

        Args:
            branch: solutions along the branch.
            files: names of the netCDF and the CSV file in the output folder.
        """
        dataset = branch.to_xarray()
        save_dataset_as_netcdf(dataset, self.out / files[0])
        write_atomically(self.out / files[1], dataframe_of_dataset(dataset).to_csv(index=False, lineterminator="\n"))
        return {"ends": branch.end_text(), "points": len(branch.solutions)}

    def load_branch_table(self, name: str) -> xarray.Dataset:
        """Return the stored table of a branch by its name, as "semantic" or "FOLDER/NAME"."""
        return load_netcdf_dataset(self.out / "tables" / f"{name}.nc")


def helper_process_main() -> None:
    """Compute tasks of a run in a second process; the first process has sent the run through standard input."""
    kind, out, figures = receive_object_from_parent()
    set_quiet_mode(True)
    run = kind(out, figures)
    tasks = {task.name: task for task in run.planned_tasks()}
    for name in run.second_process_steps:
        with suppress(Exception):  # the first process will raise the same error
            run.run_task(tasks[name])


def unpack_overlaps(at: Problem, vector: Sequence[float]) -> Overlaps:
    """Return overlaps from the vector of components that `Overlaps.pack` gives.

    Args:
        at: learning problem, which determines the shapes of the overlaps.
        vector: components of all overlaps.
    """
    return Overlaps.unpack(np.array(vector, float), at.sizes)


def file_names_of_branch_table(*names: str) -> list[str]:
    """Return the names of the two files, netCDF and CSV, into which the table of a branch is written."""
    return [f"tables/{'/'.join(names)}.{kind}" for kind in ("nc", "csv")]
