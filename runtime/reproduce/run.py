"""Common parts of all runs: the problem, steps stored in a folder, and one progress bar.

A second process may compute steps in its own order and stores their results in the folder. Results do not depend on
which process computes them: a step is locked while it is computed (`Steps`); the other process waits, and reads it.
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
from ..base.environment import processor_count, receive_from_parent, run_companion
from ..base.files import write_atomically
from ..base.progress import print_message, progress_bar, set_quiet
from ..base.threads import thread_count
from ..branches.curve_results import Curve
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem, problem
from ..report.frames import dataset_frame
from ..report.tables import load_dataset, save_dataset
from .steps import Steps, code_digest

MODEL = "dot_product_attention"
SHOWN_OMEGA = 0.3
BRANCHES = ("semantic", "positional")


@dataclass(frozen=True)
class Reproduction:
    """The result of `reproduce`.

    Attributes:
        results: the content of the report, as plain numbers and words (see `pages.transition.build_page`).
        complete: every threshold was located to its accuracy or shown not to exist, and the generated solver is
            current.
    """

    out: Path
    results: Mapping[str, Any]
    complete: bool
    page: str = "report.html"

    @property
    def report(self) -> Path:
        """Return the path of the page as HTML, which contains its figures."""
        return self.out / self.page

    def to_json(self) -> dict[str, Any]:
        """Return the results, with the names of the files."""
        return {**self.results, "report": str(self.report), "complete": self.complete}


@dataclass(frozen=True)
class RunTask:
    """A step of a run: the computation, and where its result is stored.

    Attributes:
        title: shown as progress.
        seconds: expected duration on two cores from empty caches.
        name: of the step (see `Steps.run`).
        work: method of the run that computes it.
        given: its arguments.
        into: keys of the result in `Run.results`; empty: not stored; a list there is extended.
        settings: input in addition to the code and `given`.
        after: steps whose results it uses.
        files: the files that it writes.
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


class Run(ABC):
    """A run: the steps in order, with one progress bar.

    Attributes:
        draws: names of the figures that it can draw.
        page: file name of its page, without suffix.
        data: its results as JSON.
        others: further files that it writes.
        writing: title of its last step.
        writing_seconds: its expected duration.
        second_process_steps: steps for a second process, in its order; the steps that they need come before them.
        results: plain numbers and words, filled step by step.
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
        common = {"model": MODEL, "digest": self.base.solver.digest, "version": __version__}
        self.steps = Steps(out, {**common, "solver": self.base.solver.files_digest})
        self.results: dict[str, Any] = {**common, "omega": SHOWN_OMEGA}

    @abstractmethod
    def plan(self) -> Iterable[RunTask]:
        """Return the tasks in order."""

    @abstractmethod
    def is_complete(self) -> bool:
        """Return whether every number reached its accuracy."""

    def run_task(self, task: RunTask) -> None:
        """Compute a task or read its stored result, whose key includes the code of the module of its work."""
        settings, work = {"given": task.given, **task.settings}, partial(task.work, *task.given)
        code = code_digest(task.work)
        result = self.steps.run(task.name, settings, work, code=code, files=task.files, after=task.after)
        if task.into:
            *keys, last = task.into
            place = reduce(lambda at, key: at.setdefault(key, {}), keys, self.results)
            if isinstance(place.get(last), list):
                place[last] += result if isinstance(result, list) else [result]
            else:
                place[last] = result

    def run_all(self, write: Callable[[Any], None]) -> Reproduction:
        """Compute all tasks, then let `write` make tables, figures and the page of this run."""
        works: list[tuple[str, float, Callable[[], None]]]
        works = [(task.title, task.seconds, partial(self.run_task, task)) for task in self.plan()]
        works.append((f"writing {self.writing}", self.writing_seconds, partial(write, self)))
        print_message(
            f"about {sum(b for _, b, _ in works) // 60 + 1} minutes from empty caches, less where results are kept"
        )
        with progress_bar("reproduce", len(works)) as progress, ExitStack() as stack:
            if self.second_process_steps and min(processor_count(), thread_count()) > 1:

                @cache
                def start_second_process() -> None:
                    given = type(self), self.out, self.figures
                    stack.enter_context(run_companion(__name__, given, {"NUMBA_NUM_THREADS": "1"}))

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
                    "done by the second process"
                    if len(self.steps.computed_elsewhere) > computed_elsewhere
                    else "kept from before"
                )
                if len(self.steps.computed) > computed or number == len(works):
                    how = "done"
                print_message(f"{title}: {how}, {time.monotonic() - began:.0f} s (budget {budget} s)")
                progress.advance()
        return Reproduction(self.out, self.results, self.is_complete(), f"{self.page}.html")

    def keep_curve(self, branch: Curve, files: Sequence[str]) -> dict[str, Any]:
        """Write a branch as netCDF and CSV; return its summary.

        Args:
            branch: the branch.
            files: names of the files.
        """
        dataset = branch.to_xarray()
        save_dataset(dataset, self.out / files[0])
        write_atomically(self.out / files[1], dataset_frame(dataset).to_csv(index=False, lineterminator="\n"))
        return {"ends": branch.end_text(), "points": len(branch.solutions)}

    def dataset(self, name: str) -> xarray.Dataset:
        """Return the table of a branch at omega = 0.3; `name` may contain a folder."""
        return load_dataset(self.out / "tables" / f"{name}.nc")


def serve() -> None:
    """Run the tasks of a run received on stdin, in a second process."""
    kind, out, figures = receive_from_parent()
    set_quiet(True)
    run = kind(out, figures)
    tasks = {task.name: task for task in run.plan()}
    for name in run.second_process_steps:
        with suppress(Exception):  # the first process will raise the same error
            run.run_task(tasks[name])


def unpack_overlaps(at: Problem, vector: Sequence[float]) -> Overlaps:
    """Return overlaps from the packed components stored by a step (see `Overlaps.pack`).

    Args:
        at: the problem.
        vector: the components.
    """
    return Overlaps.unpack(np.array(vector, float), at.sizes)


def table_files(*names: str) -> list[str]:
    """Return the files of a branch's table that `Run.keep_curve` writes."""
    return [f"tables/{'/'.join(names)}.{kind}" for kind in ("nc", "csv")]
