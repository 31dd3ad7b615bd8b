"""One line of a sweep, point after point: what a process does, whichever engine it belongs to."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from traceback import walk_tb
from typing import Any

import numpy as np

from ..._version import __version__
from ...base.errors import InputError, TimeLimitError
from ...base.interrupts import recognised
from ...branches.branch import Branch
from ...branches.curve import bisected_end
from ...problems import columns
from ...problems.columns import with_errors
from ...problems.problem import Problem
from ...saddle_point.iteration import Status
from ...solving.solution import Solution
from ...solving.solve import solve
from .memory import recalled, remembered
from .plan import Line

Record = dict[str, Any]
"""Of a point: `n` (its number on the line), accuracy, version, status, reason; where it was found branch, overlaps
and errors (packed), scalars by name, `memory`, and where it was judged VERDICTS, attributes of `Stability`;
`lost` where the line lost its branch: last value with it, first without."""

FAILED, LOST, UNFINISHED = "failed", "lost", "unfinished"
SOLVED = tuple(with_errors((*columns.OBSERVED, "baseline_error", "residual")))
JUDGED = tuple(with_errors(name for name, quantity in columns.JUDGED.items() if quantity.has_error))
VERDICTS = ("verdict", "replica_symmetry", "unstable", "longitudinal")
_BISECTIONS = 4  # where a line loses its branch
_EFFORT = 2  # sizes of a rule, before more of them are tried
_PACKAGE = f"{__name__.partition('.')[0]}."
_ATTEMPTS = 2  # of a point that raises


def is_done(record: Record | None, accuracy: float) -> bool:
    """Whether a point need not be computed again."""
    if record is None or record["status"] == FAILED or record["version"] != __version__:
        return False
    return bool(record["accuracy"] <= accuracy)


def is_found(record: Record) -> bool:
    """Whether there is a solution on the branch."""
    return "overlaps" in record


def run_line(line: Line, accuracy: float, known: Mapping[int, Record]) -> Generator[Record, None, None]:
    """Records of the points that are not done, one after another.

    Args:
        known: records that are there, by number; of another accuracy or version they are begun from.

    Raises:
        TimeLimitError: a time limit ended it.
    """
    work = _Simulations(line, accuracy) if line.ask == "simulate" else _Solutions(line, accuracy, known)
    for n in range(len(line.points)):
        record = known.get(n)
        if record is not None and is_done(record, accuracy):
            work.recall(n, record)
            continue
        made = _attempted(work, n)
        yield {"n": n, "accuracy": accuracy, "version": __version__, **made}


def _attempted(work: _Solutions | _Simulations, n: int) -> Record:
    """A point, tried once more where it raises; then its status says why."""
    for attempt in range(_ATTEMPTS):
        try:
            with recognised():  # Ctrl-C in compiled code is no point that raises
                return work.made(n)
        except TimeLimitError:
            raise
        except InputError as error:
            return {"status": FAILED, "reason": str(error)}
        except Exception as error:
            if attempt + 1 == _ATTEMPTS:
                return {"status": FAILED, "reason": f"{type(error).__name__}: {error}{_whence(error)}"}
    raise AssertionError("an attempt returns")


def _whence(error: Exception) -> str:
    """In which function of this package an error arose, in words."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    own = [f for f in frames if f.f_globals.get("__name__", "").startswith(_PACKAGE)]
    return f" (in {own[-1].f_globals['__name__'].removeprefix(_PACKAGE)}.{own[-1].f_code.co_name})" if own else ""


class _Solutions:
    """Saddle points, each from its neighbour's where the line goes along a branch."""

    def __init__(self, line: Line, accuracy: float, known: Mapping[int, Record]) -> None:
        self._line, self._accuracy, self._known = line, accuracy, known
        self._lost: list[float] | None = None
        self._branch = None
        if line.along is not None:
            chosen: dict[str, Any] = {"seed": line.seed, "effort": _EFFORT, "most": line.effort}
            self._branch = Branch(line.problem, line.along, line.start, accuracy, **chosen)

    def recall(self, n: int, record: Record) -> None:
        """Go on from a record."""
        self._lost = record.get("lost", self._lost)
        if self._branch is not None and is_found(record):
            value = self._value(n)
            self._branch.known[value] = recalled(self._problem(n), self._line.start, record)
            self._branch.reached = record["branch"]

    def made(self, n: int) -> Record:
        """The record of a point, without what all have."""
        if self._branch is None:
            return self._alone(n)
        if self._lost is not None:
            return {"status": LOST, "reason": self._words(self._lost), "lost": self._lost}
        value, branch = self._value(n), self._branch
        earlier, guess = self._known.get(n), None
        if earlier is not None and is_found(earlier):
            guess = recalled(self._problem(n), self._line.start, earlier)
        begun = bool(branch.known)
        found = branch.at(value, guess=guess)
        if found is not None and found.status is Status.ACCURACY_NOT_REACHED and self._line.effort > _EFFORT:
            found = branch.at(value, self._accuracy, guess=found) or found
        if found is not None:
            made = self._of(found)
            # What comes next begins from what is written down, as it does after an interruption.
            branch.known[value] = recalled(self._problem(n), self._line.start, made)
            return made
        made = _missed(branch.failed.get(value))
        if begun:
            self._lost = list(bisected_end(branch, value, _BISECTIONS if self._line.ends else 0))
            made |= {"lost": self._lost, "reason": self._words(self._lost)}
        else:
            made["reason"] = f"the {self._line.start} branch has not been found yet on this line; {made['reason']}"
        return made

    def _alone(self, n: int) -> Record:
        start: Any = self._line.start
        earlier = self._known.get(n)
        problem = self._problem(n)
        if earlier is not None and is_found(earlier):
            start = recalled(problem, self._line.start, earlier)
        found = solve(problem, start, accuracy=self._accuracy, seed=self._line.seed)
        if found.status is Status.TIME_LIMIT:
            raise TimeLimitError("the time limit ended the sweep")
        if found.losses is None or found.status is Status.ENDED_ELSEWHERE:
            return _missed(found)
        return self._of(found)

    def _of(self, solution: Solution) -> Record:
        scalars = {name: float(getattr(solution, name)) for name in SOLVED}
        if solution.averages is not None:
            scalars["bistable_share"] = float(solution.averages.bistable)
        words: dict[str, Any] = {}
        if self._line.ask == "stability":
            judged = solution.stability
            if judged is None:
                raise TimeLimitError("the time limit ended the verdict on stability")
            scalars |= {name: float(getattr(judged, name)) for name in JUDGED}
            scalars["longitudinal_eigenvalue"] = float(np.max(judged.eigenvalues.real))
            words |= {name: getattr(judged, name) for name in VERDICTS}
        if solution.multipliers is not None and solution.multipliers_error is not None:
            words["multipliers"] = [solution.multipliers.tolist(), solution.multipliers_error.tolist()]
        return {
            "status": solution.status.value,
            "branch": solution.branch,
            "overlaps": solution.overlaps.pack().tolist(),
            "errors": np.asarray(solution.errors, float).tolist(),
            **scalars,
            **words,
            "memory": remembered(solution),
        }

    def _value(self, n: int) -> float:
        assert self._line.along is not None
        return float(self._line.points[n][self._line.along])

    def _problem(self, n: int) -> Problem:
        return self._line.problem.with_(**self._line.points[n])

    def _words(self, lost: list[float]) -> str:
        assert self._line.along is not None
        name = self._line.along.rstrip("_")
        return f"the {self._line.start} branch is lost between {name} = {lost[0]:.6g} and {lost[1]:.6g}"


def _missed(solution: Solution | None) -> Record:
    """Of a point at which its branch was not found."""
    if solution is None:
        return {"status": Status.MAX_ITERATIONS.value, "reason": Status.MAX_ITERATIONS.advice}
    if solution.losses is None:
        return {"status": solution.status.value, "reason": solution.advice}
    status = Status.ENDED_ELSEWHERE
    return {"status": status.value, "branch": solution.branch, "reason": f"it led to a {solution.branch} solution"}


class _Simulations:
    """Simulations at finite d; the errors of their records are standard errors over seeds."""

    def __init__(self, line: Line, accuracy: float) -> None:
        self._line = line

    def recall(self, n: int, record: Record) -> None:
        """A simulation begins from nothing."""

    def made(self, n: int) -> Record:
        """The record of a point, without what all have."""
        from ..simulation.simulation import simulate

        chosen = self._line.simulated
        problem = self._line.problem.with_(**self._line.points[n])
        options: dict[str, Any] = {"d": chosen.d, "seeds": chosen.seeds, "method": chosen.method, "threads": 1}
        done = simulate(problem, start=self._line.start, **options)
        if done.interrupted:
            raise KeyboardInterrupt
        if done.out_of_time:
            raise TimeLimitError("the time limit ended the sweep")
        if not done.converged:
            why = done.failures[0].text if done.failures else f"{len(done.runs)} seeds ended otherwise"
            return {"status": done.status, "reason": why}
        mean, error = done.overlaps
        scalars: dict[str, Any] = {}
        for name in ("training_loss", "test_error"):
            estimate = done.estimate(name)
            scalars |= {name: float(estimate.mean), f"{name}_error": float(estimate.standard_error)}
        return {
            "status": done.status,
            "branch": next(iter(done.branches)),
            "reason": "" if done.status == "converged" else f"{len(done.converged)} of {chosen.seeds} seeds converged",
            "overlaps": mean.pack().tolist(),
            "errors": error.pack().tolist(),
            **scalars,
        }
