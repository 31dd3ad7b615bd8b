"""Thresholds: values of a parameter at which two branches cross or an expression in the observables vanishes.

Each comes with a half width that holds the integration error of the quantities compared, their residual and the root
finder's, divided by the slope; and with the evidence it was computed from.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from .branches import Branch
from .contract import parameters_json
from .errors import InputError, NotConvergedError
from .integration.averages import two_standard_errors
from .problem import Problem
from .progress import bar
from .solution import Solution, refine_losses


@dataclass(frozen=True)
class Evaluation:
    """The compared quantity at one value of the parameter: difference, its error, and its slope if known."""

    value: float
    difference: float
    error: float
    slope: float | None
    solutions: tuple[Solution, ...]


@dataclass(frozen=True)
class Threshold:
    """A threshold with its half width.

    Attributes:
        value, error: parameter value and half width.
        status: converged, or accuracy_not_reached where the error is larger than asked.
        evidence: slope, the parts of the half width, and the evaluations used.
    """

    kind: str
    parameter: str
    value: float
    error: float
    error_kind: str
    status: str
    branches: tuple[str, ...]
    problem: Problem
    solutions: tuple[Solution, ...]
    evidence: dict[str, Any]

    @property
    def success(self) -> bool:
        return self.status == "converged"

    @property
    def rs_verdict(self) -> str:
        """Stability of each branch at the threshold, in words."""
        parts = []
        for solution in self.solutions:
            if solution.stability:
                parts.append(f"{solution.branch}: {solution.stability.verdict}")
        return " | ".join(parts)

    def __repr__(self) -> str:
        from .text import with_error

        where = " and ".join(self.branches)
        return (
            f"{self.kind} of {where}: {self.parameter} = {with_error(self.value, self.error)} "
            f"({self.error_kind}, {self.status.replace('_', ' ')})"
        )

    def to_json(self) -> dict[str, Any]:
        """The object of the command line's contract (design.md)."""
        digits = max(0, 2 - int(np.floor(np.log10(self.error)))) if self.error > 0 and np.isfinite(self.error) else 15
        return {
            "model": self.problem.solver.name,
            "digest": self.problem.solver.digest,
            "kind": self.kind,
            "parameter": self.parameter,
            "parameters": {k: v for k, v in parameters_json(self.problem).items() if k != self.parameter},
            "value": f"{self.value:.{digits}f}",
            "error": f"{self.error:.2g}",
            "error_kind": self.error_kind,
            "status": self.status,
            "branches": list(self.branches),
            "rs_verdict": self.rs_verdict,
            "evidence": self.evidence,
        }


def crossing(
    problem: Problem,
    parameter: str = "alpha",
    *,
    between: tuple[str, str],
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    branches: tuple[Branch, Branch] | None = None,
) -> Threshold:
    """Where two branches have equal training loss: a first-order transition.

    Args:
        between: names of the branches.
        bracket: interval to search; default [0.1, 2.5] for alpha.
        accuracy: half width asked for; seed: of the scramblings.
        branches: followers to reuse, with the solutions they already know.

    Raises:
        InputError: unknown names.
        NotConvergedError: no sign change of the difference where both branches exist.
    """
    one, other = branches or tuple(Branch(problem, parameter, name, seed=seed) for name in between)

    def evaluate(value: float, tolerance: float | None) -> Evaluation | None:
        pair = []
        for follower in (one, other):
            solution = follower.at(value)
            if solution is not None and tolerance is not None:
                solution = _with_loss(follower, value, solution, tolerance / 2)
            if solution is None:
                return None
            pair.append(solution)
        slope = None
        if parameter == "alpha":  # d e_t / d alpha = E[M] exactly
            first, second = (s.averages.moreau.mean() for s in pair if s.averages is not None)
            slope = float(first - second)
        return Evaluation(
            value,
            *loss_difference(*pair),
            slope,
            tuple(pair),
        )

    return _locate("crossing", problem, parameter, tuple(between), bracket, accuracy, evaluate)


def loss_difference(one: Solution, other: Solution) -> tuple[float, float]:
    """Training loss of one solution minus that of another, and its half width.

    Where both come in as many replicates over the same scramblings, the spread of the differences is the error: noise
    that the branches share cancels, and what they do not share adds in squares.
    """
    difference = one.training_loss - other.training_loss
    both = [s.averages.moreau if s.averages is not None else np.zeros(0) for s in (one, other)]
    if len(both[0]) > 1 and len(both[0]) == len(both[1]) and one.problem.alpha == other.problem.alpha:
        sampled = one.problem.alpha * float(two_standard_errors(both[0] - both[1]))
        return difference, sampled + one.second_order + other.second_order
    return difference, one.training_loss_error + other.training_loss_error


def _with_loss(branch: Branch, value: float, solution: Solution, tolerance: float) -> Solution | None:
    """The branch at a value with the error of its training loss below the tolerance, as far as can be had."""
    wanted = branch.accuracy
    while solution.second_order > tolerance / 2 and wanted > 2e-5:
        wanted /= 3
        finer = branch.at(value, wanted)
        if finer is None:
            return None
        solution = finer
    return refine_losses(solution, tolerance)


def where(
    problem: Problem,
    condition: str,
    parameter: str = "alpha",
    *,
    on: str,
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    branch: Branch | None = None,
) -> Threshold:
    """Where a condition on a branch's observables holds, as `test_error = baseline_error`.

    Args:
        condition: two expressions joined by =, in the names of `observable_names`, numbers and + - * / **.
        on: the branch.

    Raises:
        InputError: the condition cannot be read.
        NotConvergedError: no sign change on the branch.
    """
    difference = parse_condition(condition)
    follower = branch or Branch(problem, parameter, on, seed=seed)

    def evaluate(value: float, tolerance: float | None) -> Evaluation | None:
        solution = follower.at(value)
        if solution is None:
            return None
        result, error = difference(solution)
        wanted = follower.accuracy
        while tolerance is not None and error > tolerance and wanted > 2e-5:
            wanted = max(2e-5, min(wanted / 3, wanted * tolerance / error))
            finer = follower.at(value, wanted)
            if finer is None:
                break
            solution = finer
            result, error = difference(solution)
        return Evaluation(value, result, error, None, (solution,))

    return _locate(f"where {condition}", problem, parameter, (on,), bracket, accuracy, evaluate)


def _locate(
    kind: str,
    problem: Problem,
    parameter: str,
    names: tuple[str, ...],
    bracket: tuple[float, float] | None,
    accuracy: float,
    evaluate: Callable[[float, float | None], Evaluation | None],
) -> Threshold:
    if not accuracy > 0:
        raise InputError(f"accuracy = {accuracy!r} is out of range; allowed is (0, inf)")
    problem.value_of(parameter)
    for name in names:
        if name not in problem.solver.model.STARTS:
            raise InputError(f"no branch {name!r}; known are {', '.join(problem.solver.model.STARTS)}")
    if bracket is None:
        if parameter != "alpha":
            raise InputError(f"give an interval to search for {parameter}")
        bracket = (0.1, 2.5)
    low, high = float(min(bracket)), float(max(bracket))
    with bar(f"{kind}: bracketing", 24) as task:
        left, right, seen = _bracket(low, high, evaluate, task.advance)
        if left is None or right is None:
            raise NotConvergedError(_no_sign_change(kind, parameter, low, high, seen))
        best, slope = _refine(left, right, accuracy, evaluate, task.advance)
    integration = best.error / abs(slope)
    remaining = 2 * abs(best.difference) / abs(slope)  # twice: the slope is itself an estimate
    error = integration + remaining
    return Threshold(
        kind=kind,
        parameter=parameter,
        value=best.value,
        error=error,
        error_kind="estimated",
        status="converged" if error <= accuracy else "accuracy_not_reached",
        branches=names,
        problem=problem,
        solutions=best.solutions,
        evidence={
            "slope": slope,
            "difference": best.difference,
            "half_width_integration": integration,
            "half_width_root": remaining,
            "bracket": sorted([left.value, right.value]),
            "integrators": [s.rule.describe() for s in best.solutions],
            "residuals": [s.residual for s in best.solutions],
        },
    )


def _no_sign_change(kind: str, parameter: str, low: float, high: float, seen: list[Evaluation]) -> str:
    if not seen:
        return f"{kind}: no value of {parameter} in [{low:g}, {high:g}] was found at which the branches exist"
    first, last = seen[0], seen[-1]
    return (
        f"{kind}: no sign change for {parameter} in [{low:g}, {high:g}]; the branches exist from {first.value:.4g} "
        f"(difference {first.difference:.3g}) to {last.value:.4g} (difference {last.difference:.3g}); "
        f"try another interval"
    )


def _bracket(
    low: float, high: float, evaluate: Callable[[float, float | None], Evaluation | None], tick: Callable[[], None]
) -> tuple[Evaluation | None, Evaluation | None, list[Evaluation]]:
    """Walk down from the high end in growing numbers of steps until neighbours differ in sign."""
    seen: dict[float, Evaluation] = {}
    tried: set[float] = set()
    for count in (4, 8, 16):
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
            if pair:
                return (*pair, [seen[v] for v in sorted(seen)])
    return None, None, [seen[v] for v in sorted(seen)]


def _sign_change(seen: dict[float, Evaluation]) -> tuple[Evaluation, Evaluation] | None:
    ordered = [seen[v] for v in sorted(seen)]
    for left, right in pairwise(ordered):
        if left.difference * right.difference <= 0:
            return left, right
    return None


def _refine(
    left: Evaluation,
    right: Evaluation,
    accuracy: float,
    evaluate: Callable[[float, float | None], Evaluation | None],
    tick: Callable[[], None],
) -> tuple[Evaluation, float]:
    """Newton or secant: inside the bracket at first, then with the integration that the accuracy asks for.

    The finer integration moves the difference, so that coarse signs no longer bound the root then: the outer bracket
    does.

    Returns the last evaluation and the slope there.
    """
    low, high = left.value, right.value
    best = min((left, right), key=lambda e: abs(e.difference))
    slope = (right.difference - left.difference) / (right.value - left.value)
    fine = False
    for _ in range(12):
        local = best.slope if best.slope is not None else slope
        guess = best.value - best.difference / local
        near = abs(guess - best.value) < 30 * accuracy or abs(best.difference) < best.error
        if not fine and not near and not left.value < guess < right.value:
            guess = left.value - left.difference * (right.value - left.value) / (right.difference - left.difference)
        guess = min(max(guess, low), high)
        was_fine, fine = fine, fine or near
        found = evaluate(guess, 0.4 * accuracy * abs(local) if fine else None)
        tick()
        if found is None:
            raise NotConvergedError(f"a branch was lost at {guess:.6g} while locating the threshold")
        if found.value != best.value and found.difference != best.difference and was_fine == fine:
            slope = (found.difference - best.difference) / (found.value - best.value)
        if found.difference * left.difference <= 0:
            right = found
        else:
            left = found
        best = found
        final = best.slope if best.slope is not None else slope
        if fine and abs(best.difference / final) <= 0.3 * accuracy:
            break
    return best, best.slope if best.slope is not None else slope


OBSERVABLES: dict[str, tuple[str, str | None]] = {
    "training_loss": ("training_loss", "training_loss_error"),
    "free_entropy": ("free_entropy", "training_loss_error"),
    "test_error": ("test_error", "test_error_error"),
    "baseline_error": ("baseline_error", None),
}


def observable_names() -> list[str]:
    """Names an expression may use: losses and errors, |first entries| of the overlaps, replicon, bistable_share."""
    return [*OBSERVABLES, "q", "V", "m", "theta", "replicon", "bistable_share", "alpha"]


def _observables(solution: Solution) -> dict[str, tuple[float, float]]:
    """Value and half width of each name in `observable_names` that can be had cheaply."""
    known = {
        name: (getattr(solution, value), getattr(solution, error) if error else 0.0)
        for name, (value, error) in OBSERVABLES.items()
    }
    widths = solution.half_widths
    for name in ("q", "V", "m", "theta"):
        entry = abs(float(getattr(solution.overlaps, name).flat[0]))
        known[name] = (entry, float(getattr(widths, name).flat[0]))
    known["alpha"] = (solution.problem.alpha, 0.0)
    return known


def parse_condition(text: str) -> Callable[[Solution], tuple[float, float]]:
    """`left = right` as a function of a solution: (left - right, half width).

    Raises:
        InputError: not of this form, or an unknown name; the known ones are listed.
    """
    sides = text.split("=")
    if len(sides) != 2:
        raise InputError(f"condition {text!r}: two expressions joined by one '=' are expected")
    trees = [_parse_expression(side, text) for side in sides]
    names = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if not names:
        raise InputError(f"condition {text!r} holds no observable; known are {', '.join(observable_names())}")

    def difference(solution: Solution) -> tuple[float, float]:
        known = _observables(solution)
        if names & {"replicon", "bistable_share"} and solution.stability:
            known["replicon"] = (solution.stability.replicon, solution.stability.replicon_error)
            known["bistable_share"] = (solution.stability.bistable_share, 0.0)
        values = {name: known[name][0] for name in names}

        def at(shifted: dict[str, float]) -> float:
            return _evaluate(trees[0], shifted) - _evaluate(trees[1], shifted)

        centre = at(values)
        error = sum(abs(at({**values, name: values[name] + known[name][1]}) - centre) for name in names)
        return centre, float(error)

    return difference


def _parse_expression(text: str, condition: str) -> ast.expr:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise InputError(f"condition {condition!r}: cannot read {text.strip()!r}") from None
    operators = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub)
    allowed = (ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, ast.Load, *operators)
    for node in ast.walk(tree):
        if not isinstance(node, allowed) or (
            isinstance(node, ast.Constant) and not isinstance(node.value, int | float)
        ):
            raise InputError(f"condition {condition!r}: only names, numbers and + - * / ** are allowed")
        if isinstance(node, ast.Name) and node.id not in observable_names():
            raise InputError(f"condition {condition!r}: unknown {node.id!r}; known are {', '.join(observable_names())}")
    return tree


def _evaluate(node: ast.expr, values: dict[str, float]) -> float:
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.UnaryOp):
        inner = _evaluate(node.operand, values)
        return -inner if isinstance(node.op, ast.USub) else inner
    assert isinstance(node, ast.BinOp)
    left, right = _evaluate(node.left, values), _evaluate(node.right, values)
    operations: dict[type[ast.operator], Callable[[float, float], float]] = {
        ast.Add: lambda a, b: a + b,
        ast.Sub: lambda a, b: a - b,
        ast.Mult: lambda a, b: a * b,
        ast.Div: lambda a, b: a / b,
        ast.Pow: lambda a, b: a**b,
    }
    if type(node.op) not in operations:
        raise InputError("only + - * / ** are allowed in a condition")
    return operations[type(node.op)](left, right)
