"""Minima of an observable along a branch, as the regularisation of least test error.

A minimum is a root of the sensitivity, which keeps the digits that a comparison of values would halve. The branch is
first scanned: intervals over which values and slopes disagree are halved, down to the jumps of the branch. Every
minimum inside, every end and every jump that could be the best is weighed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, overload

import numpy as np

from ..base.errors import InputError, NotConvergedError, TimeLimitError
from ..base.numbers import with_error
from ..base.presenting import Result
from ..base.progress import bar
from ..derive.errors import suggestion
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem, check_is_problem
from ..solving.solution import Solution
from .direction import Direction
from .joint import JointOptimum, tune_jointly
from .minimum import Candidate, Point, Search, describe_best, minimised


@dataclass(frozen=True, repr=False)
class Optimum(Result):
    """The value of a parameter at which an observable is least on a branch.

    Attributes:
        minimise: name of the observable, with a minus where it is maximised.
        value, error: of the parameter and its half width (nan unless kind is minimum).
        kind: as of `Candidate`, or tried (the best of the values tried, where the time ended).
        status: converged; accuracy_not_reached; time_limit; edge, where the least value is at an end of what was
            searched that is no end of what is allowed, so that there may be lower ones beyond; branch_end, where the
            branch ends or jumps.
        observed, observed_error: the observable there.
        others: the other candidates, lowest first.

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
    others: tuple[Candidate, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    error_kind: str = "estimated"

    @property
    def success(self) -> bool:
        """Whether it is a minimum to the accuracy asked for, or an end of what the parameter may be."""
        return self.status == "converged"

    @property
    def advice(self) -> str:
        """Return what the status means, and what to try next."""
        shown = f"{self.parameter.rstrip('_')} = {self.value:.6g}"
        best = describe_best(self.problem, self.minimise)
        return {
            "converged": "",
            "accuracy_not_reached": "the error bar is larger than the accuracy asked; ask for a larger --accuracy",
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
    """The value of a scalar parameter, or the values of several, at which an observable is least along a branch.

    Args:
        parameter: as lambda, omega, sigma, alpha or one of the model's own; a vector is moved with all entries equal.
            Several in a list are tuned together.
        minimise: training_loss, free_entropy, test_error or the name of one of several metrics, baseline_error, q, V,
            m, theta for |first entry|, an entry as tables name it, or a trained number; with a minus, as -theta, it is
            maximised.
        on: the branch, by its start.
        bracket: interval to search; default three decades on both sides of a positive parameter's value, or all of a
            bounded one's range. Of several parameters by name, {"lambda": (0.1, 1)}.
        accuracy: half width asked, relative to the parameter where it is searched logarithmically (positive ones).
        start: overlaps of the branch at the problem's own value, to begin from (of one parameter).
        integrator, points: as for `solve`.
        options: of several parameters, `scan` (places tried first) and `on_trial` (called with each `Trial`).

    Raises:
        InputError: an unknown name, or an interval that is none.
        NotConvergedError: the branch was not found, or the observable does not change along it.

    Example:
        >>> best = sf.tune(sf.problem("ridge_regression", alpha=2, Delta=0.25), "lambda", bracket=(0.01, 1))
        >>> abs(best.value - 0.25) < 1e-4
        True
    """
    check_is_problem(problem)
    chosen: dict[str, Any] = {"integrator": integrator, "points": points}
    if not isinstance(parameter, str):
        if start is not None or not (bracket is None or isinstance(bracket, Mapping)):
            raise InputError("several parameters take intervals by name, {'lambda': (0.1, 1)}, and no start")
        common: dict[str, Any] = {"minimise": minimise, "on": on, "accuracy": accuracy, "seed": seed}
        return tune_jointly(problem, parameter, bracket=bracket, **common, **chosen, **options)
    if options or isinstance(bracket, Mapping):
        name = next(iter(options), "")
        if near := suggestion(name, ["minimise", "bracket", "accuracy", "start", "points", "integrator"]):
            raise InputError(f"tune has no option {name!r}{near}")
        raise InputError(f"tune of one parameter takes no {name or 'interval by name'!r}, which goes with several")
    problem.only_at_zero_temperature("parameters are tuned")
    problem, minimise = minimised(problem, minimise)
    search = Search.of(problem, parameter, minimise, on, bracket, accuracy, seed, **chosen)
    if start is not None:
        search.branch.begin(problem.value_of(search.branch.parameter), start)
    with bar(f"tuning {parameter}", None) as task:

        def tick() -> None:
            if search.known:
                last = list(search.known.values())[-1]
                value = with_error(search.sign * last.observed, last.observed_error)
                task.advance(f"tuning {parameter}: {search.words} {value} at {parameter} = {last.value:.5g}")
            else:
                task.advance()

        try:
            return _best(search, accuracy, tick)
        except TimeLimitError:
            if not search.known:
                raise
            point = min(search.known.values(), key=lambda point: point.observed)
            evidence = {"scanned": len(search.known), "logarithmic": search.logarithmic}
            return _optimum(search, point, "tried", "time_limit", evidence)


def _best(search: Search, accuracy: float, tick: Any) -> Optimum:
    """The lowest of all minima, ends and jumps."""
    stretches, jumps = search.scanned(tick)
    every = [point for stretch in stretches for point in stretch]
    if all(abs(point.slope) <= point.slope_error for point in every):
        raise NotConvergedError(
            f"{search.words} does not change with {search.branch.parameter.rstrip('_')} on the "
            f"{search.branch.name} branch, within its error"
        )
    candidates: list[tuple[str, Point]] = []
    for stretch in stretches:
        for left, right in pairwise(stretch):
            if left.slope < 0 <= right.slope:
                # To the accuracy of the scan, which tells the candidates apart.
                candidates.append(("minimum", search.root(left, right, tick, 1e-3 * search.span)))
        for point, outward, edge in ((stretch[0], -1, search.low), (stretch[-1], 1, search.high)):
            if outward * point.slope >= 0:
                continue
            at_edge = point.place == edge
            jumped = any(point is one or point is other for one, other in jumps)
            name = "lower_end" if outward < 0 else "upper_end"
            candidates.append((name if at_edge else "jump" if jumped else "branch_end", point))
    candidates.sort(key=lambda item: item[1].observed)
    others = tuple(
        Candidate(kind, point.value, search.sign * point.observed, point.observed_error)
        for kind, point in candidates[1:]
    )
    return optimum_at(search, accuracy, *candidates[0], tick, others, scanned=len(every))


def optimum_at(
    search: Search,
    accuracy: float,
    kind: str,
    point: Point,
    tick: Any,
    others: tuple[Candidate, ...] = (),
    **evidence: Any,
) -> Optimum:
    """A candidate to the accuracy asked."""
    error = np.nan
    if kind == "minimum":
        point, parts = search.refined(point, accuracy, tick)
        unit = point.value if search.logarithmic else 1.0
        error = unit * (parts["integration"] + parts["root"])
        evidence |= {
            "curvature": parts["curvature"] / unit**2,
            "slope": point.slope / unit,
            "half_width_integration": unit * parts["integration"],
            "half_width_root": unit * parts["root"],
        }
        status = "converged" if error <= accuracy * unit else "accuracy_not_reached"
    elif kind in ("lower_end", "upper_end"):
        allowed = Direction(search.branch.problem, search.branch.parameter).range
        status = "converged" if point.value in allowed else "edge"
    else:
        status = "branch_end"
    evidence |= {"logarithmic": search.logarithmic, "integrator": point.solution.rule.describe()}
    return _optimum(search, point, kind, status, evidence, error, others)


def _optimum(
    search: Search,
    point: Point,
    kind: str,
    status: str,
    evidence: dict[str, Any],
    error: float = np.nan,
    others: tuple[Candidate, ...] = (),
) -> Optimum:
    """A point of the search as its result."""
    return Optimum(
        problem=search.branch.problem,
        parameter=search.branch.parameter,
        minimise=search.minimise,
        value=point.value,
        error=error,
        kind=kind,
        status=status,
        branch=search.branch.name,
        observed=search.sign * point.observed,
        observed_error=point.observed_error,
        solution=point.solution,
        others=others,
        evidence=evidence,
    )
