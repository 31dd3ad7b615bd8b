"""What every run shares: the problem, the steps kept in a folder, and a bar over all that is planned."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xarray

from .._version import __version__
from ..branches.branch import Curve
from ..files import write_whole
from ..problems.catalogue import solver_files
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem, problem
from ..progress import bar, say
from ..report.frames import dataset_frame
from ..report.tables import load_dataset, save_dataset
from .aside import Aside
from .steps import Steps, code_digest, digest_of

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


Plan = list[tuple[str, int, Callable[[], None]]]
"""What a run does, in order: a title, the seconds it is expected to take on two cores from empty caches, the work."""


class Run(ABC):
    """One run: the steps in order, with a bar over all of them.

    Attributes:
        draws: names of the figures that it can draw.
        page: what its page is called, without suffix; data: its results as JSON; others: what else it writes.
        writing: what its last step writes, in words.
        results: what was found, as plain numbers and words, filled step by step.
    """

    draws: ClassVar[tuple[str, ...]]
    page: ClassVar[str]
    data: ClassVar[str]
    others: ClassVar[tuple[str, ...]] = ()
    writing: ClassVar[str] = "table, figure and the report"

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        self.out, self.figures = out, figures
        self.base = problem(MODEL, alpha=2.0, omega=SHOWN_OMEGA)
        common = {"model": MODEL, "digest": self.base.solver.digest, "version": __version__}
        self.steps = Steps(out, {**common, "solver": solver_digest(self.base)})
        self.results: dict[str, Any] = {**common, "omega": SHOWN_OMEGA}

    @abstractmethod
    def plan(self) -> Plan:
        """What is computed."""

    def aside(self) -> list[Callable[[], None]]:
        """Works of the plan for a second process beside this one, in its order; what they need comes before them."""
        return []

    @abstractmethod
    def is_complete(self) -> bool:
        """Whether every number was reached to its accuracy."""

    def all(self, write: Callable[[Any], None]) -> Reproduction:
        """Compute what is planned, then let `write` make tables, figures and the page of this run."""
        plan: Plan = [*self.plan(), (f"writing {self.writing}", WRITING, partial(write, self))]
        say(f"about {sum(b for _, b, _ in plan) // 60 + 1} minutes from empty caches, less where results are kept")
        with bar("reproduce", len(plan)) as task, Aside(type(self), self.out, self.figures) as aside:
            if self.aside():
                self.steps.begin = aside.begin
            for number, (title, budget, work) in enumerate(plan, start=1):
                task.describe(title)
                computed, beside = len(self.steps.computed), len(self.steps.beside)
                began = time.monotonic()
                work()
                taken = time.monotonic() - began
                if len(self.steps.computed) > computed or number == len(plan):
                    how = "done"
                else:
                    how = "done by the second process" if len(self.steps.beside) > beside else "kept from before"
                say(f"{title}: {how}, {taken:.0f} s (budget {budget} s)")
                task.advance()
        return Reproduction(self.out, self.results, self.is_complete(), f"{self.page}.html")

    def step(
        self,
        name: str,
        settings: Mapping[str, Any],
        work: Callable[[], Mapping[str, Any]],
        *,
        files: Sequence[str] = (),
        after: Iterable[str] = (),
    ) -> dict[str, Any]:
        """The result of a step (see `Steps.run`), kept under the code of the module in which its work is defined."""
        return self.steps.run(name, settings, work, code=code_digest(work), files=files, after=after)

    def keep_curve(self, branch: Curve, files: tuple[str, str]) -> dict[str, Any]:
        """Write a branch as netCDF and CSV; returns what is said of it."""
        dataset = branch.to_xarray()
        save_dataset(dataset, self.out / files[0])
        write_whole(self.out / files[1], dataset_frame(dataset).to_csv(index=False, lineterminator="\n"))
        return {"ends": branch.end_text(), "points": len(branch.solutions)}

    def dataset(self, name: str) -> xarray.Dataset:
        """The table of a branch at omega = 0.3; `name` may lead into a folder."""
        return load_dataset(self.out / "tables" / f"{name}.nc")


def solver_digest(at: Problem) -> str:
    """Digest of a generated solver."""
    return digest_of(b"\0".join(path.read_bytes() for path in solver_files(at.solver.folder).values()))


def unpacked(at: Problem, vector: Sequence[float]) -> Overlaps:
    """Overlaps from the packed components that a step keeps as a list (see `Overlaps.pack`)."""
    return Overlaps.unpack(np.array(vector, float), at.sizes)
