"""Thresholds: values of a parameter at which two branches cross or an expression in the observables vanishes.

Each half width holds the integration error of the quantities compared, their residual and the root finder's, divided
by the slope. Asked for few digits it is estimated by one rule; asked for many, or on demand, a rule of another family
confirms it (`second_rule.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from ..base.errors import InputError, NotConvergedError, TimeLimitError
from ..base.progress import bar
from ..branches.branch import Branch
from ..branches.branch_map import BranchMap
from ..integration import Rule
from ..integration.estimates import two_standard_errors
from ..integration.rule import NEGLIGIBLE_JUMPS
from ..problems.problem import Problem
from ..saddle_point.slopes import differences
from ..solving.losses import refine_losses, with_losses
from ..solving.solution import Solution
from ..stability.assess import ROUNDING
from .conditions import Condition, parse_condition
from .search import Search
from .second_rule import agreement, by_rule, confirmed, opinions
from .threshold import Threshold

# Overlaps are solved to no less than these relative half widths: half the error costs replicates four times as much.
_FLOOR_SAMPLED, _FLOOR_SMOOTH = 2e-5, 1e-13
_SHARE = 0.75  # of the accuracy, that integration may take
_SLOPE_STEP = 1e-4  # of a parameter, in its unit
_EVALUATIONS = 20  # of a root finder that starts from a bracket
_FIRST = 30.0  # times the accuracy, asked of the first evaluation that the root finder does not take for coarse
_PASSAGE = 0.01  # a replicon farther from 1 than this at the end has not passed through it


@dataclass(frozen=True)
class Evaluation:
    """The compared quantity at one value of the parameter: difference, the parts of its error, its slope if known."""

    value: float
    difference: float
    integration: float
    residual: float
    slope: float | None
    solutions: tuple[Any, ...]

    @property
    def error(self) -> float:
        """Half width of the difference: both parts added."""
        return self.integration + self.residual

    @property
    def vanishes(self) -> bool:
        """Whether the difference is zero within its half width."""
        return abs(self.difference) <= self.error


Evaluate = Callable[[float, float | None], Evaluation | None]
Second = Callable[[Evaluation, Rule, float], tuple[float, float]]  # the last: tolerance of the difference


def symmetric_crossing(
    problem: Problem,
    parameter: str,
    between: tuple[str, str],
    bracket: tuple[float, float] | None,
    accuracy: float,
    seed: int = 0,
    branches: tuple[Branch, Branch] | None = None,
    verify: bool | None = None,
) -> Threshold:
    """Locate where two replica symmetric branches have equal training loss; arguments as for `crossing`.

    Raises:
        InputError: unknown names.
        NotConvergedError: no sign change of the difference where both branches exist.
    """
    one, other = branches or (Branch(problem, parameter, name, seed=seed) for name in between)
    search = Search("crossing", problem, parameter, tuple(between), bracket, accuracy, verify)

    def evaluate(value: float, tolerance: float | None) -> Evaluation | None:
        pair: list[Solution] = []
        for follower in (one, other):
            solution = follower.at(value)
            if solution is None:
                return None
            pair.append(solution)
        refined = [partial(with_loss, follower, value) for follower in (one, other)]
        if tolerance is not None and not refine_both(refined, pair, tolerance):
            return None
        slope = loss_slope(pair[0], parameter) - loss_slope(pair[1], parameter) if parameter == "alpha" else None
        return Evaluation(value, *loss_difference(*pair), sum(s.residual_loss for s in pair), slope, tuple(pair))

    def second(best: Evaluation, rule: Rule, _: float) -> tuple[float, float]:
        return loss_difference(*(with_losses(solution, rule) for solution in best.solutions))

    return _locate(search, evaluate, second, (one, other))


def loss_difference(first: Solution, second: Solution) -> tuple[float, float]:
    """Training loss of one solution minus that of another, and its half width.

    Where both come in as many replicates over the same scramblings, the spread of the differences is the error: noise
    that the branches share cancels, and what they do not share adds in squares.
    """
    difference = first.training_loss - second.training_loss
    both = [s.averages.moreau if s.averages is not None else np.zeros(0) for s in (first, second)]
    if len(both[0]) > 1 and len(both[0]) == len(both[1]) and first.problem.alpha == second.problem.alpha:
        sampled = first.problem.alpha * float(two_standard_errors(both[0] - both[1]))
        return difference, sampled + first.second_order + second.second_order
    rounding = ROUNDING * abs(first.training_loss)
    return difference, first.training_loss_error + second.training_loss_error + rounding


def loss_slope(solution: Solution, parameter: str) -> float:
    """Derivative of the training loss along a branch: that at fixed overlaps, of which Phi is stationary.

    In alpha it is E[M]; in others a central difference by the rule of the loss.

    Raises:
        DomainError, InputError: the parameter is at the edge of its range on both sides.
    """
    if parameter == "alpha" and solution.averages is not None:
        return float(solution.averages.moreau.mean())
    value = solution.problem.value_of(parameter)
    branch = BranchMap.of(solution, (parameter,), (max(abs(value), 1.0),))
    x, step = branch.coordinates(solution.overlaps.pack()), _SLOPE_STEP * branch.span

    def energy(there: np.ndarray) -> np.ndarray:
        return -np.atleast_1d(branch.free_entropies(x, there, branch.loss_rule).mean())

    return float(differences(energy, np.array([value]), step)[0, 0])


def refine_both(
    refined: Sequence[Callable[[Solution, float], Solution | None]], pair: list[Solution], tolerance: float
) -> bool:
    """Bring the errors of both training losses together below the tolerance, as far as can be had; False where a branch
    is lost.

    The one whose error is smaller goes first: what it leaves of the tolerance is the other one's.

    Args:
        refined: either solution with the error of its loss below a tolerance; pair: is changed.
    """
    left = tolerance / 2
    for k in sorted((0, 1), key=lambda k: pair[k].training_loss_error):
        found = refined[k](pair[k], left)
        if found is None:
            return False
        pair[k] = found
        left = max(tolerance - found.training_loss_error, tolerance / 2)
    return True


def with_loss(branch: Branch, value: float, solution: Solution, tolerance: float) -> Solution | None:
    """The branch at a value with the error of its training loss below the tolerance, as far as can be had."""
    wanted = branch.accuracy
    while solution.second_order > tolerance / 2 and wanted > _floor(solution):
        wanted /= 3
        finer = branch.at(value, wanted)
        if finer is None:
            return None
        solution = finer
    return refine_losses(solution, tolerance)


def _floor(solution: Solution) -> float:
    return _FLOOR_SAMPLED if solution.rule.replicated else _FLOOR_SMOOTH


def condition_threshold(
    problem: Problem,
    condition: str,
    parameter: str = "alpha",
    *,
    on: str,
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    branch: Branch | None = None,
    verify: bool | None = None,
) -> Threshold:
    """Where a condition on a branch's observables holds, as `test_error = baseline_error`.

    Args:
        condition: two expressions joined by =, in names of quantities and parameters, numbers and + - * / **.
        on: the branch.
        verify: as for `crossing`.

    Raises:
        InputError: the condition cannot be read.
        NotConvergedError: no sign change on the branch.
    """
    parsed = parse_condition(condition, problem)
    search = Search(f"where {condition}", problem, parameter, (on,), bracket, accuracy, verify)
    return _locate_condition(search, parsed, branch or Branch(problem, parameter, on, seed=seed))


def almeida_thouless(
    problem: Problem,
    parameter: str = "alpha",
    *,
    on: str,
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    branch: Branch | None = None,
    verify: bool | None = None,
) -> Threshold:
    """Where the replicon passes 1 on a branch (de Almeida and Thouless), the proximal map being continuous.

    Where the map jumps, replica symmetry is unstable whatever the replicon from derivatives is (docs/theory.md (9.4)):
    such values count as unstable, and a change that comes with jumps rather than with the replicon is refused.

    Args:
        on: the branch; the others as for `where`.

    Raises:
        NotConvergedError: no passage through 1 on the branch, or the proximal map jumps at what was found.

    Example:
        >>> problem = sf.problem("tukey_regression", Delta=1)
        >>> found = sf.almeida_thouless(problem, on="semantic", bracket=(5, 14), accuracy=1e-2)
        >>> round(found.value, 3)
        7.298
    """
    jumping: set[float] = set()

    def unstable_where_it_jumps(found: Evaluation) -> Evaluation:
        if not _jumps(found.solutions[0]):
            return found
        jumping.add(found.value)
        return replace(found, difference=max(found.difference, 1.0))

    search = Search("at", problem, parameter, (on,), bracket, accuracy, verify)
    follower = branch or Branch(problem, parameter, on, seed=seed)
    found = _locate_condition(search, parse_condition("replicon = 1", problem), follower, unstable_where_it_jumps)
    ends = found.evidence["bracket"]
    if _jumps(found.solutions[0]) or (jumping and abs(found.evidence["difference"]) > _PASSAGE):
        raise NotConvergedError(
            f"at: replica symmetry is lost between {parameter} = {ends[0]:.6g} and {ends[1]:.6g} through jumps of the "
            "proximal map, not through the replicon, which means nothing where the map jumps"
        )
    return found


def _jumps(solution: Solution) -> bool:
    return solution.averages is not None and solution.averages.bistable > NEGLIGIBLE_JUMPS


def _locate_condition(
    search: Search,
    condition: Condition,
    follower: Branch,
    judge: Callable[[Evaluation], Evaluation] = lambda found: found,
) -> Threshold:
    """Locate where a condition holds along a branch, its overlaps solved to what a tolerance asks for.

    Args:
        judge: changes what was evaluated.
    """
    wanted = follower.accuracy

    def evaluate(value: float, tolerance: float | None) -> Evaluation | None:
        nonlocal wanted
        solution = follower.at(value, None if tolerance is None else wanted)
        if solution is None:
            return None
        found = condition.judge(solution, tolerance or np.inf)
        while tolerance is not None and not found.error <= tolerance and wanted > _floor(solution):
            share = max(0.3 * tolerance / found.error, 1e-6)
            wanted = max(_floor(solution), min(wanted, solution.relative_error) * min(1 / 3, share))
            finer = follower.at(value, wanted)
            if finer is None:
                break
            stuck = finer.relative_error > 0.7 * solution.relative_error
            solution = finer
            found = condition.judge(solution, tolerance)
            if stuck:
                break
        return judge(Evaluation(value, found.value, found.integration, found.residual, None, (solution,)))

    def second(best: Evaluation, rule: Rule, tolerance: float) -> tuple[float, float]:
        moved = by_rule(best.solutions[0], rule)
        if moved is None:
            raise InputError("the second rule leaves the domain of the overlaps")
        found = condition.judge(moved, tolerance, equidistant=True)
        return found.value, found.integration

    return _locate(search, evaluate, second, (follower,))


def _locate(search: Search, evaluate: Evaluate, second: Second, followers: Sequence[Branch]) -> Threshold:
    kind, parameter, accuracy = search.kind, search.parameter, search.accuracy
    low, high = search.interval
    solved = all(end in follower.known for follower in followers for end in (low, high))
    with bar(f"{kind}: bracketing", 24) as task:
        left, right, seen = _bracket(low, high, solved, evaluate, task.advance)
        if left is None or right is None:
            raise NotConvergedError(_no_sign_change(kind, parameter, low, high, seen))
        root = root_between(left, right, accuracy, evaluate, task.advance)
        best, slope = root.best, root.slope
        parts = {
            "half_width_integration": best.integration / abs(slope),
            "half_width_residual": best.residual / abs(slope),
            "half_width_root": root.error,
        }
        error = sum(parts.values())
        agreed = None
        if search.verifies and not root.out_of_time:
            task.describe(f"{kind}: verifying")
            enough = max(error, accuracy)
            tolerance = 0.1 * enough * abs(slope)
            others = opinions(best.solutions, lambda rule: second(best, rule, tolerance), task.advance)
            agreed = agreement(others, root.value, lambda difference: best.value - difference / slope, enough)
    error_kind, error, second_part = confirmed(agreed, error)
    solutions = best.solutions
    return Threshold(
        kind=kind,
        parameter=parameter,
        value=root.value,
        error=error,
        error_kind=error_kind,
        status="converged" if error <= accuracy else "time_limit" if root.out_of_time else "accuracy_not_reached",
        branches=search.branches,
        problem=search.problem,
        solutions=solutions,
        evidence={
            "slope": slope,
            "evaluated_at": best.value,
            "difference": best.difference,
            **parts,
            **second_part,
            "bracket": list(root.ends),
            "integrators": [s.rule.describe() for s in solutions],
            "loss_integrators": [(s.loss_rule or s.rule).describe() for s in solutions],
            "bistable_shares": [s.averages.bistable if s.averages else None for s in solutions],
            "residuals": [s.residual for s in solutions],
            "second_rule": agreed.evidence if agreed else None,
        },
    )


def _no_sign_change(kind: str, parameter: str, low: float, high: float, seen: list[Evaluation]) -> str:
    if not seen:
        return f"{kind}: no value of {parameter} in [{low:g}, {high:g}] was found at which the branches exist"
    first, last = seen[0], seen[-1]
    if all(each.vanishes for each in seen):
        return (
            f"{kind}: both sides are equal within their errors wherever they were compared, at {len(seen)} values of "
            f"{parameter} from {first.value:.4g} to {last.value:.4g} (at {last.value:.4g} they differ by "
            f"{last.difference:.2g}, give or take {last.error:.2g}): nothing passes there"
        )
    if kind.startswith("where"):
        sides = "above" if first.difference > 0 else "below"
        return (
            f"{kind}: no sign change for {parameter} in [{low:g}, {high:g}]; the left side is {sides} the right side, "
            f"by {abs(first.difference):.3g} at {first.value:.4g} and {abs(last.difference):.3g} at {last.value:.4g}; "
            "try another interval, or a value that is reached"
        )
    return (
        f"{kind}: no sign change for {parameter} in [{low:g}, {high:g}]; the branches exist from {first.value:.4g} "
        f"(difference {first.difference:.3g}) to {last.value:.4g} (difference {last.difference:.3g}); "
        f"try another interval"
    )


def _bracket(
    low: float, high: float, solved: bool, evaluate: Evaluate, tick: Callable[[], None]
) -> tuple[Evaluation | None, Evaluation | None, list[Evaluation]]:
    """Walk down from the high end in growing numbers of steps until neighbours differ in sign.

    Ends that are solved already are compared first: they cost nothing. Signs of what vanishes within its half width on
    both sides, evaluated as finely as that allows, count for nothing.
    """
    seen: dict[float, Evaluation] = {}
    tried: set[float] = set()
    for count in (1, 4, 8, 16) if solved else (4, 8, 16):
        for value in np.linspace(high, low, count + 1):
            value = float(value)
            if value in tried:
                continue
            tried.add(value)
            found = evaluate(value, None)
            tick()
            if found is None:
                continue
            seen[value] = found
            pair = _sign_change(seen)
            if pair and all(each.vanishes for each in pair):
                finest = 0.1 * max(abs(each.difference) for each in pair)
                for each in pair:
                    seen[each.value] = evaluate(each.value, finest) or each
                pair = _sign_change(seen, clear=True)
            if pair:
                return (*pair, [seen[v] for v in sorted(seen)])
    return None, None, [seen[v] for v in sorted(seen)]


def _sign_change(seen: dict[float, Evaluation], clear: bool = False) -> tuple[Evaluation, Evaluation] | None:
    """Neighbours of different signs, `clear` of zero on one side at the least."""
    ordered = [seen[v] for v in sorted(seen)]
    for left, right in pairwise(ordered):
        if left.difference * right.difference <= 0 and not (clear and left.vanishes and right.vanishes):
            return left, right
    return None


@dataclass(frozen=True)
class Root:
    """Where a root finder ended.

    Attributes:
        best: the last evaluation; value: of the root, a Newton step from there; error: half width of that step.
        slope: of the difference; ends: the narrowest interval at whose ends the signs differ.
        out_of_time: whether a time limit ended the search: the error is the distance to the farther end.
    """

    best: Evaluation
    value: float
    error: float
    slope: float
    ends: tuple[float, float]
    out_of_time: bool = False


def root_between(
    left: Evaluation, right: Evaluation, accuracy: float, evaluate: Evaluate, tick: Callable[[], None]
) -> Root:
    """Newton or secant: inside the bracket at first, then with the integration that the accuracy asks for.

    The finer integration moves the difference, so that coarse signs no longer bound the root then: the outer bracket
    does. The last step is not evaluated: what the slope has changed since the step before says how far it is off.
    """
    low, high = left.value, right.value
    best = min((left, right), key=lambda e: abs(e.difference))
    secant = (right.difference - left.difference) / (right.value - left.value)
    slope, doubt = best.slope or secant, 1.0
    fine, slow = False, 0
    fines: list[Evaluation] = []
    for _ in range(_EVALUATIONS):
        guess = best.value - best.difference / slope
        near = abs(guess - best.value) < 30 * accuracy or abs(best.difference) < best.error
        if not fine and not near:
            if slow > 2:
                guess = (left.value + right.value) / 2
            elif not left.value < guess < right.value:
                chord = (right.difference - left.difference) / (right.value - left.value)
                guess = left.value - left.difference / chord
        guess = min(max(guess, low), high)
        if fine and guess == best.value:
            break  # at an end of the bracket: the slope does not lead to a root
        was_fine, fine = fine, fine or near
        # From coarse losses the root is missed by more than their error: digits of a first step would be in vain.
        asked = _SHARE * accuracy * abs(slope) * (1.0 if was_fine else _FIRST)
        try:
            evaluation = evaluate(guess, asked if fine else None)
        except TimeLimitError:
            value = min(max(best.value - best.difference / slope, left.value), right.value)
            ends = left.value, right.value
            return Root(best, value, max(value - ends[0], ends[1] - value), slope, ends, out_of_time=True)
        tick()
        if evaluation is None:
            raise NotConvergedError(f"a branch was lost at {guess:.6g} while locating the threshold")
        step, change, before = evaluation.value - best.value, evaluation.difference - best.difference, slope
        # Between evaluations of one kind, and where the change is more than their errors.
        if step and was_fine == fine and abs(change) > max(evaluation.error, best.error):
            secant = change / step
        slope = evaluation.slope or secant
        if slope != before:
            doubt = min(1.0, 2 * abs(slope - before) / abs(slope))
        width = right.value - left.value
        if fine:
            fines.append(evaluation)
        elif evaluation.difference * left.difference <= 0:
            right = evaluation
        else:
            left = evaluation
        slow = slow + 1 if right.value - left.value > width / 2 else 0
        best = evaluation
        enough = was_fine or best.error <= _SHARE * accuracy * abs(slope)
        if fine and enough and doubt * abs(best.difference / slope) <= 0.1 * accuracy:
            break
    last = best.difference / slope
    value = min(max(best.value - last, low), high)
    beyond = abs(best.value - last - value)  # the bracket, whose coarse signs may be wrong
    return Root(best, value, doubt * abs(last) + beyond, slope, _ends(fines, left, right))


def _ends(fines: list[Evaluation], left: Evaluation, right: Evaluation) -> tuple[float, float]:
    """The narrowest interval with a change of sign among the fine evaluations, and between the coarse ends else."""
    pair = _sign_change({e.value: e for e in fines})
    return (pair[0].value, pair[1].value) if pair else (left.value, right.value)
