"""The computation of one line of a sweep, point after point, in this or in a worker process."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any

import numpy as np

from ..._version import __version__
from ...base.errors import InputError, TimeLimitError
from ...base.interrupts import restore_keyboard_interrupt
from ...base.options import AlgorithmOptions
from ...branches.branch import Branch
from ...branches.curve import bisect_branch_end
from ...problems import columns
from ...problems.columns import add_error_bar_columns
from ...problems.problem import Problem
from ...saddle_point.iteration import Status
from ...solving.solution import Solution
from ...solving.solve import solve
from .memory import encode_solution, restore_solution
from .plan import SweepLine

Record = dict[str, Any]
"""The record of a point: `n` (its index on the line), accuracy, version, status, reason; for a solution also branch,
overlaps and errors (packed), scalars by name, `memory`, and if stability was judged VERDICTS, attributes of
`Stability`; if the line lost its branch `lost`, the last value with it and the first without."""

FAILED, LOST, UNFINISHED = "failed", "lost", "unfinished"
SOLVED = tuple(add_error_bar_columns((*columns.OBSERVED, "baseline_error", "residual")))
JUDGED = tuple(add_error_bar_columns(name for name, quantity in columns.JUDGED.items() if quantity.has_error))
VERDICTS = ("verdict", "replica_symmetry", "unstable", "longitudinal")
_PACKAGE = f"{__name__.partition('.')[0]}."


@dataclass(frozen=True)
class SweepLineOptions(AlgorithmOptions):
    """Options of the computation of a line of a sweep.

    Attributes:
        end_bisections: bisection steps for the end of the branch, if it ends on the line.
        initial_rule_sizes: number of quadrature sizes that are tried before a point counts as inaccurate.
        attempts: how often a point is tried if an unexpected error occurs.
    """

    end_bisections: int = 4
    initial_rule_sizes: int = 2
    attempts: int = 2


def is_point_computed(record: Record | None, accuracy: float) -> bool:
    """Return whether a point has been computed to a required accuracy by this version of the package.

    Args:
        record: record of the point; None if there is none.
        accuracy: required accuracy.
    """
    if record is None or record["status"] == FAILED or record["version"] != __version__:
        return False
    return bool(record["accuracy"] <= accuracy)


def is_solution_record(record: Record) -> bool:
    """Return whether the record of a point contains a solution."""
    return "overlaps" in record


def run_sweep_line(line: SweepLine, accuracy: float, known: Mapping[int, Record]) -> Generator[Record, None, None]:
    """Compute the points of a line that are not computed yet, and yield their records one after another.

    Args:
        line: line of the sweep.
        accuracy: required accuracy of the overlaps.
        known: existing records by index of the point; solutions of lower accuracy or another version serve as starts.

    Raises:
        TimeLimitError: a time limit ended the computation.
    """
    work = (
        _SimulationSweepLine(line, accuracy) if line.ask == "simulate" else _SaddlePointSweepLine(line, accuracy, known)
    )
    for n in range(len(line.points)):
        record = known.get(n)
        if record is not None and is_point_computed(record, accuracy):
            work.start_next_point_from_record(n, record)
            continue
        made = _compute_record_with_retries(work, n)
        yield {"n": n, "accuracy": accuracy, "version": __version__, **made}


def _compute_record_with_retries(work: _SaddlePointSweepLine | _SimulationSweepLine, n: int) -> Record:
    """Compute and return the record of a point; after an unexpected error try again, and finally mark it as failed."""
    attempts = SweepLineOptions.current().attempts
    for attempt in range(attempts):
        try:
            with restore_keyboard_interrupt():  # so that Ctrl-C in compiled code is no error of the point
                return work.compute_record_of_point(n)
        except TimeLimitError:
            raise
        except InputError as error:
            return {"status": FAILED, "reason": str(error)}
        except Exception as error:
            if attempt + 1 == attempts:
                return {"status": FAILED, "reason": f"{type(error).__name__}: {error}{_describe_error_location(error)}"}
    raise AssertionError("the last attempt to compute a point neither returned a record nor raised an error")


def _describe_error_location(error: Exception) -> str:
    """Return text that names the function of this package in which an error occurred; empty if there is none."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    ours = [f for f in frames if f.f_globals.get("__name__", "").startswith(_PACKAGE)]
    return f" (in {ours[-1].f_globals['__name__'].removeprefix(_PACKAGE)}.{ours[-1].f_code.co_name})" if ours else ""


class _SaddlePointSweepLine:
    """The computation of saddle points along a line of a sweep, each started from its neighbour's solution."""

    def __init__(self, line: SweepLine, accuracy: float, known: Mapping[int, Record]) -> None:
        self._line, self._accuracy, self._known = line, accuracy, known
        self._lost: list[float] | None = None
        self._branch = None
        if line.along is not None:
            sizes = SweepLineOptions.current().initial_rule_sizes
            chosen: dict[str, Any] = {"seed": line.seed, "effort": sizes, "most": line.effort}
            self._branch = Branch(line.problem, line.along, line.start, accuracy, **chosen)

    def start_next_point_from_record(self, n: int, record: Record) -> None:
        """Use the existing record of a point as the start of the next one.

        Args:
            n: index of the point.
            record: record of the point.
        """
        self._lost = record.get("lost", self._lost)
        if self._branch is not None and is_solution_record(record):
            value = self._parameter_value_of_point(n)
            self._branch.known[value] = restore_solution(self._problem_at_point(n), self._line.start, record)
            self._branch.reached = record["branch"]

    def compute_record_of_point(self, n: int) -> Record:
        """Compute the record of a point, without its index, accuracy and version."""
        if self._branch is None:
            return self._solve_point_independently(n)
        if self._lost is not None:
            return {"status": LOST, "reason": self._describe_lost_branch(self._lost), "lost": self._lost}
        value, branch = self._parameter_value_of_point(n), self._branch
        earlier, guess, options = self._known.get(n), None, SweepLineOptions.current()
        if earlier is not None and is_solution_record(earlier):
            guess = restore_solution(self._problem_at_point(n), self._line.start, earlier)
        has_solution = bool(branch.known)
        found = branch.solution_at_parameter(value, guess=guess)
        if (
            found is not None
            and found.status is Status.ACCURACY_NOT_REACHED
            and self._line.effort > options.initial_rule_sizes
        ):
            found = branch.solution_at_parameter(value, self._accuracy, guess=found) or found
        if found is not None:
            made = self._record_of_solution(found)
            # The next point starts from the record, as it does after an interruption.
            branch.known[value] = restore_solution(self._problem_at_point(n), self._line.start, made)
            return made
        made = _record_without_solution(branch.failed.get(value))
        if has_solution:
            self._lost = list(bisect_branch_end(branch, value, options.end_bisections if self._line.ends else 0))
            made |= {"lost": self._lost, "reason": self._describe_lost_branch(self._lost)}
        else:
            made["reason"] = (
                f"the {self._line.start} branch has not been found yet on this line of the sweep: {made['reason']}"
            )
        return made

    def _solve_point_independently(self, n: int) -> Record:
        start: Any = self._line.start
        earlier = self._known.get(n)
        problem = self._problem_at_point(n)
        if earlier is not None and is_solution_record(earlier):
            start = restore_solution(problem, self._line.start, earlier)
        found = solve(problem, start, accuracy=self._accuracy, seed=self._line.seed)
        if found.status is Status.TIME_LIMIT:
            raise TimeLimitError("the time limit ended the sweep")
        if found.losses is None or found.status is Status.LEFT_BASIN:
            return _record_without_solution(found)
        return self._record_of_solution(found)

    def _record_of_solution(self, solution: Solution) -> Record:
        scalars = {name: float(getattr(solution, name)) for name in SOLVED}
        if solution.averages is not None:
            scalars["bistable_fraction"] = float(solution.averages.bistable)
        words: dict[str, Any] = {}
        if self._line.ask == "stability":
            judged = solution.stability
            if judged is None:
                raise TimeLimitError("the time limit ended the point before its verdict on stability")
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
            "memory": encode_solution(solution),
        }

    def _parameter_value_of_point(self, n: int) -> float:
        assert self._line.along is not None
        return float(self._line.points[n][self._line.along])

    def _problem_at_point(self, n: int) -> Problem:
        return self._line.problem.with_(**self._line.points[n])

    def _describe_lost_branch(self, lost: list[float]) -> str:
        assert self._line.along is not None
        name = self._line.along.rstrip("_")
        return f"the {self._line.start} branch is lost between {name} = {lost[0]:.6g} and {lost[1]:.6g}"


def _record_without_solution(solution: Solution | None) -> Record:
    """Return the record of a point at which the branch was not found, with the reason."""
    if solution is None:
        return {"status": Status.MAX_ITERATIONS.value, "reason": Status.MAX_ITERATIONS.advice}
    if solution.losses is None:
        return {"status": solution.status.value, "reason": solution.advice}
    status = Status.LEFT_BASIN
    return {
        "status": status.value,
        "branch": solution.branch,
        "reason": f"the solver converged to a {solution.branch} solution, which is on another branch",
    }


class _SimulationSweepLine:
    """The computation of simulations at finite d along a line of a sweep, with standard errors over seeds."""

    def __init__(self, line: SweepLine, accuracy: float) -> None:
        self._line = line

    def start_next_point_from_record(self, n: int, record: Record) -> None:
        """Do nothing: a simulation needs no start from the record of a neighbouring point.

        Args:
            n: index of the point.
            record: record of the point.
        """

    def compute_record_of_point(self, n: int) -> Record:
        """Compute the record of a point, without its index, accuracy and version."""
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
            reason = done.failures[0].text if done.failures else f"none of {len(done.runs)} seeds converged"
            return {"status": done.status, "reason": reason}
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
