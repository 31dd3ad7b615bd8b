"""What every run shares: the problem, its steps kept in a folder, and a bar over all that is planned.

A second process may take up steps in an order of its own and leaves their results in the folder. Which process finds a
result decides no bit of it: a step is one process's at a time (`Steps`); who comes to it later waits, and reads it.
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
from ..base.environment import companion, processors, received
from ..base.files import write_whole
from ..base.progress import bar, say, set_quiet
from ..base.threads import used
from ..branches.along import Curve
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem, problem
from ..report.frames import dataset_frame
from ..report.tables import load_dataset, save_dataset
from .steps import Steps, code_digest

MODEL = "dot_product_attention"
SHOWN_OMEGA = 0.3
BRANCHES = ("semantic", "positional")
WRITING = 5  # seconds


@dataclass(frozen=True)
class Reproduction:
    """What `reproduce` leaves behind.

    Attributes:
        results: what the report shows, as plain numbers and words (see `pages.transition.content`).
        complete: every threshold was located to its accuracy or shown not to exist, and the generated solver is fresh.
    """

    out: Path
    results: Mapping[str, Any]
    complete: bool
    page: str = "report.html"

    @property
    def report(self) -> Path:
        """Path of the page as HTML, which holds its figures."""
        return self.out / self.page

    def to_json(self) -> dict[str, Any]:
        """The results, with the names of the files."""
        return {**self.results, "report": str(self.report), "complete": self.complete}


@dataclass(frozen=True)
class Task:
    """A step of a run: what is computed, and where its result goes.

    Attributes:
        title, seconds: what it is called, and how long it is expected to take on two cores from empty caches.
        name: of the step (see `Steps.run`).
        work: method of the run that computes it; given: its arguments.
        into: keys that lead to the place of the result in `Run.results`, none where it is not kept there; a list there
            is extended.
        settings: what its digits depend on beside its code and `given`; after: steps whose results it uses.
        files: that it writes.
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
    """One run: the steps in order, with a bar over all of them.

    Attributes:
        draws: names of the figures that it can draw.
        page: what its page is called, without suffix; data: its results as JSON; others: what else it writes.
        writing: what its last step writes, in words.
        aside: steps for a second process, in its order; what they need comes before them.
        results: what was found, as plain numbers and words, filled step by step.
    """

    draws: ClassVar[tuple[str, ...]]
    page: ClassVar[str]
    data: ClassVar[str]
    others: ClassVar[tuple[str, ...]] = ()
    writing: ClassVar[str] = "table, figure and the report"
    aside: ClassVar[tuple[str, ...]] = ()

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        self.out, self.figures = out, figures
        self.base = problem(MODEL, alpha=2.0, omega=SHOWN_OMEGA)
        common = {"model": MODEL, "digest": self.base.solver.digest, "version": __version__}
        self.steps = Steps(out, {**common, "solver": self.base.solver.files_digest})
        self.results: dict[str, Any] = {**common, "omega": SHOWN_OMEGA}

    @abstractmethod
    def plan(self) -> Iterable[Task]:
        """Return what is computed, in order."""

    @abstractmethod
    def is_complete(self) -> bool:
        """Whether every number was reached to its accuracy."""

    def do(self, task: Task) -> None:
        """Compute a task or read its result, kept under the code of the module in which its work is defined."""
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

    def all(self, write: Callable[[Any], None]) -> Reproduction:
        """Compute what is planned, then let `write` make tables, figures and the page of this run."""
        works: list[tuple[str, float, Callable[[], None]]]
        works = [(task.title, task.seconds, partial(self.do, task)) for task in self.plan()]
        works.append((f"writing {self.writing}", WRITING, partial(write, self)))
        say(f"about {sum(b for _, b, _ in works) // 60 + 1} minutes from empty caches, less where results are kept")
        with bar("reproduce", len(works)) as progress, ExitStack() as stack:
            if self.aside and min(processors(), used()) > 1:

                @cache
                def begin() -> None:
                    given = type(self), self.out, self.figures
                    stack.enter_context(companion(__name__, given, {"NUMBA_NUM_THREADS": "1"}))

                self.steps.begin = begin
            for number, (title, budget, work) in enumerate(works, start=1):
                progress.describe(title)
                computed, beside, began = len(self.steps.computed), len(self.steps.beside), time.monotonic()
                work()
                how = "done by the second process" if len(self.steps.beside) > beside else "kept from before"
                if len(self.steps.computed) > computed or number == len(works):
                    how = "done"
                say(f"{title}: {how}, {time.monotonic() - began:.0f} s (budget {budget} s)")
                progress.advance()
        return Reproduction(self.out, self.results, self.is_complete(), f"{self.page}.html")

    def keep_curve(self, branch: Curve, files: Sequence[str]) -> dict[str, Any]:
        """Write a branch as netCDF and CSV; returns what is said of it."""
        dataset = branch.to_xarray()
        save_dataset(dataset, self.out / files[0])
        write_whole(self.out / files[1], dataset_frame(dataset).to_csv(index=False, lineterminator="\n"))
        return {"ends": branch.end_text(), "points": len(branch.solutions)}

    def dataset(self, name: str) -> xarray.Dataset:
        """The table of a branch at omega = 0.3; `name` may lead into a folder."""
        return load_dataset(self.out / "tables" / f"{name}.nc")


def serve() -> None:
    """The second process: a run on stdin."""
    kind, out, figures = received()
    set_quiet(True)
    run = kind(out, figures)
    tasks = {task.name: task for task in run.plan()}
    for name in run.aside:
        with suppress(Exception):  # the first process will meet it, and say so
            run.do(tasks[name])


def unpacked(at: Problem, vector: Sequence[float]) -> Overlaps:
    """Overlaps from the packed components that a step keeps as a list (see `Overlaps.pack`)."""
    return Overlaps.unpack(np.array(vector, float), at.sizes)


def table_files(*names: str) -> list[str]:
    """The files of a branch's table, as `Run.keep_curve` writes them."""
    return [f"tables/{'/'.join(names)}.{kind}" for kind in ("nc", "csv")]
