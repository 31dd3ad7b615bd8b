"""Minima of an observable along a branch, as the regularisation of least test error.

A minimum is a root of the sensitivity, which has twice the digits of a comparison of values. The branch is first
scanned: intervals over which values and slopes disagree are halved, down to the jumps of the branch. Every minimum
inside, every end and every jump that could be the best is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, overload

import numpy as np

from ..base.errors import InputError, NotConvergedError, TimeLimitError
from ..base.numbers import format_value_with_error
from ..base.presenting import PresentableResult
from ..base.progress import progress_bar
from ..derive.errors import did_you_mean_hint
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem, require_problem
from ..solving.solution import Solution
from .direction import ParameterDirection
from .joint_tuning import JointOptimum, tune_jointly
from .minimum import ObservableMinimumSearch, OptimumCandidate, ScannedPoint, describe_extremum, resolve_objective_name


@dataclass(frozen=True, repr=False)
class Optimum(PresentableResult):
    """The value of a parameter at which an observable is least on a branch.

    Attributes:
        minimise: name of the observable; a minus sign before it means that it is maximised.
        value: value of the parameter.
        error: error bar of the value; nan unless `kind` is minimum.
        kind: minimum, lower_end, upper_end, branch_end or jump; tried (best value so far) if the time ended.
        status: converged; accuracy_not_reached; time_limit; edge, if the least value is at an end of the interval that
            was searched and is not the end of the parameter's range, so that there may be lower ones
            beyond; branch_end, if it is where the branch ends or jumps.
        observed: value of the observable.
        observed_error: error bar of the observable.
        others: other local minima, ends and jumps, lowest first.

    Example:
        >>> best = sf.tune(sf.problem("ridge_regression", alpha=2, Delta=0.25), "lambda", bracket=(0.01, 1))
        >>> best.kind, round(best.observed, 6), best.solution.success
        ('minimum', 0.425391, True)
    """

    problem: Problem
    parameter: str
    minimise: str
    value: float
    error: float
    kind: str
    status: str
    branch: str
    observed: float
    observed_error: float
    solution: Solution
    others: tuple[OptimumCandidate, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    error_kind: str = "estimated"

    @property
    def success(self) -> bool:
        """Return whether the search converged: to an accurate minimum, or to an end of the parameter's range."""
        return self.status == "converged"

    @property
    def advice(self) -> str:
        """Return a sentence that explains the status and says what to try next; empty if the search converged."""
        shown = f"{self.parameter.rstrip('_')} = {self.value:.6g}"
        best = describe_extremum(self.problem, self.minimise)
        return {
            "converged": "",
            "accuracy_not_reached": "the error bar is larger than the accuracy asked; allow a larger one (--accuracy)",
            "edge": f"{best} at the end {shown} of the interval searched; try a wider one",
            "time_limit": f"the time limit ended the search: {shown} is the best of the values tried",
            "branch_end": f"{best} at {shown}, where the {self.branch} branch ends or jumps",
        }[self.status]


@overload
def tune(problem: Problem, parameter: str, **options: Any) -> Optimum: ...
@overload
def tune(problem: Problem, parameter: Sequence[str], **options: Any) -> JointOptimum: ...


def tune(
    problem: Problem,
    parameter: str | Sequence[str],
    *,
    minimise: str = "test_error",
    on: str | None = None,
    bracket: tuple[float, float] | Mapping[str, tuple[float, float]] | None = None,
    accuracy: float = 1e-4,
    seed: int = 0,
    start: Overlaps | None = None,
    integrator: str = "auto",
    points: int | None = None,
    **options: Any,
) -> Optimum | JointOptimum:
    """Return the value of a scalar parameter, or the values of several, at which an observable is least on a branch.

    Args:
        problem: the problem at any value of the parameter.
        parameter: name of the parameter, for example lambda, omega or alpha (all entries of a vector are equal), or a
            list of names that are tuned together.
        minimise: training_loss, free_entropy, test_error or the name of one of several metrics, baseline_error, q, V,
            m, theta for |first entry|, an entry as tables name it, or a trained number; with a minus, as -theta, it is
            maximised.
        on: name of the start of the branch.
        bracket: interval to search; default three decades on both sides of a positive parameter's value, or all of a
            bounded one's range. Of several parameters by name, {"lambda": (0.1, 1)}.
        accuracy: error bar, relative to the parameter where it is searched logarithmically (positive ones).
        seed: seed of the sampled quadrature rules.
        start: overlaps of the branch at the problem's own value, to start from (of one parameter).
        integrator: name of the quadrature rule, as for `solve`.
        points: size of the quadrature rule, as for `solve`.
        **options: options of several parameters, `scan` (points tried first) and `on_trial` (called with each `Trial`).

    Raises:
        InputError: an unknown name, or an invalid interval.
        NotConvergedError: the branch was not found, or the observable does not change along it.

    Example:
        >>> best = sf.tune(sf.problem("ridge_regression", alpha=2, Delta=0.25), "lambda", bracket=(0.01, 1))
        >>> abs(best.value - 0.25) < 1e-4
        True
    """
    require_problem(problem)
    chosen: dict[str, Any] = {"integrator": integrator, "points": points}
    if not isinstance(parameter, str):
        if start is not None or not (bracket is None or isinstance(bracket, Mapping)):
            raise InputError(
                "to tune several parameters give intervals by name, as {'lambda': (0.1, 1)}; leave start out"
            )
        common: dict[str, Any] = {"minimise": minimise, "on": on, "accuracy": accuracy, "seed": seed}
        return tune_jointly(problem, parameter, bracket=bracket, **common, **chosen, **options)
    if options or isinstance(bracket, Mapping):
        name = next(iter(options), "")
        if near := did_you_mean_hint(name, ["minimise", "bracket", "accuracy", "start", "points", "integrator"]):
            raise InputError(f"tune has no option {name!r}{near}")
        raise InputError(
            f"tune of one parameter takes no {name or 'interval by name'!r}: it is for a list of several parameters"
        )
    problem.require_zero_temperature("parameters are tuned")
    problem, minimise = resolve_objective_name(problem, minimise)
    search = ObservableMinimumSearch.search_from_arguments(
        problem, parameter, minimise, on, bracket, accuracy, seed, **chosen
    )
    if start is not None:
        search.branch.solve_from_overlaps(problem.value_of_parameter(search.branch.parameter), start)
    with progress_bar(f"tuning {parameter}", None) as task:

        def report_progress() -> None:
            if search.known:
                last = list(search.known.values())[-1]
                value = format_value_with_error(search.objective_sign * last.observed, last.observed_error)
                task.count_finished_step(
                    f"tuning {parameter}: {search.observable_description} {value} at {parameter} = {last.value:.5g}"
                )
            else:
                task.count_finished_step()

        try:
            return _find_best_candidate(search, accuracy, report_progress)
        except TimeLimitError:
            if not search.known:
                raise
            point = min(search.known.values(), key=lambda point: point.observed)
            evidence = {"scanned": len(search.known), "logarithmic": search.logarithmic}
            return _optimum_at_solved_point(search, point, "tried", "time_limit", evidence)


def _find_best_candidate(search: ObservableMinimumSearch, accuracy: float, tick: Any) -> Optimum:
    """Return the candidate of lowest value among all minima, interval ends and jumps of the branch, and the others."""
    parts, jumps = search.scan_interval(tick)
    all_points = [point for part in parts for point in part]
    if all(abs(point.slope) <= point.slope_error for point in all_points):
        raise NotConvergedError(
            f"{search.observable_description} does not change with {search.branch.parameter.rstrip('_')} on the "
            f"{search.branch.name} branch, within its error bar"
        )
    candidates: list[tuple[str, ScannedPoint]] = []
    for part in parts:
        for left, right in pairwise(part):
            if left.slope < 0 <= right.slope:
                # To the accuracy of the scan, which is enough to compare candidates.
                candidates.append(
                    ("minimum", search.find_root_of_slope(left, right, tick, 1e-3 * search.search_interval_length))
                )
        for point, outward, edge in ((part[0], -1, search.low), (part[-1], 1, search.high)):
            if outward * point.slope >= 0:
                continue
            at_edge = point.coordinate == edge
            at_jump = any(point is one or point is other for one, other in jumps)
            name = "lower_end" if outward < 0 else "upper_end"
            candidates.append((name if at_edge else "jump" if at_jump else "branch_end", point))
    candidates.sort(key=lambda item: item[1].observed)
    others = tuple(
        OptimumCandidate(kind, point.value, search.objective_sign * point.observed, point.observed_error)
        for kind, point in candidates[1:]
    )
    return refine_candidate_to_optimum(search, accuracy, *candidates[0], tick, others, scanned=len(all_points))


def refine_candidate_to_optimum(
    search: ObservableMinimumSearch,
    accuracy: float,
    kind: str,
    point: ScannedPoint,
    tick: Any,
    others: tuple[OptimumCandidate, ...] = (),
    **evidence: Any,
) -> Optimum:
    """Return the optimum of an observable at a candidate, which is refined to the accuracy if it is a minimum.

    Args:
        search: the search that found the candidate.
        accuracy: error bar of the coordinate.
        kind: kind of the candidate: minimum, lower_end, upper_end, branch_end or jump.
        point: solved point of the candidate.
        tick: function that reports progress.
        others: the other candidates.
        **evidence: further entries of `Optimum.evidence`.
    """
    error = np.nan
    if kind == "minimum":
        point, parts = search.refine_minimum(point, accuracy, tick)
        unit = point.value if search.logarithmic else 1.0
        error = unit * (parts["integration"] + parts["root"])
        evidence |= {
            "curvature": parts["curvature"] / unit**2,
            "slope": point.slope / unit,
            "error_integration": unit * parts["integration"],
            "error_root": unit * parts["root"],
        }
        status = "converged" if error <= accuracy * unit else "accuracy_not_reached"
    elif kind in ("lower_end", "upper_end"):
        allowed = ParameterDirection(search.branch.problem, search.branch.parameter).parameter_range
        status = "converged" if point.value in allowed else "edge"
    else:
        status = "branch_end"
    evidence |= {"logarithmic": search.logarithmic, "integrator": point.solution.rule.rule_description()}
    return _optimum_at_solved_point(search, point, kind, status, evidence, error, others)


def _optimum_at_solved_point(
    search: ObservableMinimumSearch,
    point: ScannedPoint,
    kind: str,
    status: str,
    evidence: dict[str, Any],
    error: float = np.nan,
    others: tuple[OptimumCandidate, ...] = (),
) -> Optimum:
    """Return a solved point of a search as the `Optimum` that `sf.tune` returns."""
    return Optimum(
        problem=search.branch.problem,
        parameter=search.branch.parameter,
        minimise=search.minimise,
        value=point.value,
        error=error,
        kind=kind,
        status=status,
        branch=search.branch.name,
        observed=search.objective_sign * point.observed,
        observed_error=point.observed_error,
        solution=point.solution,
        others=others,
        evidence=evidence,
    )
