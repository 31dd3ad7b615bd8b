"""Conditions on observables, as `test_error = baseline_error`: parsed safely, evaluated with error bars."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.errors import DomainError, InputError
from ..base.options import AlgorithmOptions
from ..integration import Rule, slope_rules
from ..integration.estimates import two_standard_errors
from ..problems.columns import METRIC, OBSERVED, column_name
from ..problems.overlaps import OVERLAPS, Overlaps
from ..problems.problem import Problem
from ..problems.quantities import find_quantity, overlap_entry, quantity_names
from ..saddle_point import observables
from ..saddle_point.observables import Observable, find_observable
from ..saddle_point.state_map import StateMap
from ..solving.solution import Solution
from ..stability.assess import ROUNDING, conjugates_error, replicons

_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_AVERAGED = ("training_loss", "free_entropy", "replicon", "bistable_share")


@dataclass(frozen=True)
class ConditionOptions(AlgorithmOptions):
    """Options of evaluating a condition.

    Attributes:
        replicon_refinements: largest number of rules finer than the solution's by which the replicon is computed.
    """

    replicon_refinements: int = 3


@dataclass(frozen=True)
class ConditionValue:
    """The left side minus the right side of a condition at a solution.

    Attributes:
        integration, residual: error bars from the integrals and from the residual.
    """

    value: float
    integration: float
    residual: float

    @property
    def error(self) -> float:
        """Return the error bar of the value: both parts added."""
        return self.integration + self.residual


@dataclass(frozen=True)
class Condition:
    """A condition `left = right` in names of observables, verdicts and parameters, numbers and + - * / **."""

    text: str
    sides: tuple[ast.expr, ast.expr]
    names: tuple[str, ...]

    @property
    def needs_averages(self) -> bool:
        """Return whether it depends on averages over the channel, not only on functions of the overlaps."""
        return any(name in _AVERAGED for name in self.names)

    def __call__(self, solution: Solution) -> tuple[float, float]:
        """Return left - right and its error bar, with integrals as accurate as those of the solution."""
        found = self.evaluate(solution)
        return found.value, found.error

    def evaluate(self, solution: Solution, tolerance: float = np.inf, equidistant: bool = False) -> ConditionValue:
        """Return left - right with its error bars.

        Args:
            solution: at which it is evaluated.
            tolerance: of the error bar; integrals beyond those of the solution (test error, baseline, replicon) are
                refined to it, as far as possible.
            equidistant: whether the test error is integrated with equidistant nodes, not by Gauss-Hermite.
        """
        observables = {name: _Observable._from_solution(name, solution, equidistant) for name in self.names}
        values = {name: observable.value for name, observable in observables.items()}
        refined = [name for name in self.names if observables[name].refine is not None]
        for name in refined:
            own_tolerance = tolerance / (2 * len(refined) * max(abs(self._partial_derivative(values, name)), 1e-300))
            observables[name] = observables[name].refine_to(own_tolerance)
            values[name] = observables[name].value
        centre = self._difference(values)
        ends = ({**values, name: values[name] + observables[name].error} for name in self.names)
        integration = sum(abs(self._difference(end) - centre) for end in ends)
        integration += ROUNDING * max(abs(_evaluate(side, values)) for side in self.sides)

        def _change(shift: np.ndarray, names: Sequence[str]) -> float:
            known = {name: move for name in names if (move := observables[name].moved) is not None}
            try:
                return self._difference({**values, **{name: move(shift) for name, move in known.items()}}) - centre
            except DomainError:
                return np.inf

        integrated_names = [name for name in self.names if not observables[name].is_entry]
        if solution.shifts is not None and len(solution.shifts):
            changes = np.array([_change(shift, integrated_names) for shift in solution.shifts])
            sampled = solution.rule.replicated
            integration += float(two_standard_errors(changes)) if sampled else float(np.abs(changes).max())
        residual = 0.0 if solution.residual_shift is None else abs(_change(solution.residual_shift, self.names))
        return ConditionValue(centre, float(integration), residual)

    def evaluate_sides(self, values: Mapping[str, Any], number: Callable[[str], Any]) -> tuple[Any, Any]:
        """Return both sides, in any precision.

        Args:
            values: of the names.
            number: makes a number of a decimal string.
        """
        left, right = (_evaluate(side, values, number) for side in self.sides)
        return left, right

    def _difference(self, values: Mapping[str, float]) -> float:
        left, right = (_evaluate(side, values) for side in self.sides)
        return left - right

    def _partial_derivative(self, values: Mapping[str, float], name: str) -> float:
        step = 1e-6 * max(abs(values[name]), 1e-6)
        ends = [self._difference({**values, name: values[name] + sign * step}) for sign in (1, -1)]
        return (ends[0] - ends[1]) / (2 * step)


@dataclass(frozen=True)
class _Observable:
    """A number in a condition, at a solution.

    Attributes:
        error: error bar of its integral, or of the overlap if it is one.
        moved: returns its value after a shift (n,) of the overlaps; None if they enter to second order or not at all.
        refine: returns it with an error below a tolerance; None where nothing can be refined.
        is_entry: whether it is an entry of the overlaps or a trained number.
    """

    value: float
    error: float = 0.0
    moved: Callable[[np.ndarray], float] | None = None
    refine: Callable[[float], _Observable] | None = None
    is_entry: bool = False

    def refine_to(self, tolerance: float) -> _Observable:
        return self.refine(tolerance) if self.refine and self.error > tolerance else self

    @classmethod
    def _from_solution(cls, name: str, solution: Solution, equidistant: bool) -> _Observable:
        problem = solution.problem
        if name in ("training_loss", "free_entropy"):
            return cls(getattr(solution, name), solution.training_loss_error)
        if name == "bistable_share":
            return cls(solution.averages.bistable if solution.averages else np.nan)
        if name == "baseline_error":
            return _baseline_observable(solution)
        if name == "replicon":
            return _replicon_observable(solution)
        if name in OBSERVED or name.startswith(METRIC):
            return _overlap_observable(find_observable(problem, name), solution.overlaps, equidistant)
        if name in verdict_and_parameter_names(problem):
            return cls(problem.value_of(name))
        return cls._entry_of_overlaps(name, solution)

    @classmethod
    def _entry_of_overlaps(cls, name: str, solution: Solution) -> _Observable:
        u, sizes, scales = solution.overlaps.pack(), solution.overlaps.sizes, solution.overlaps.block_scales

        def entry(vector: np.ndarray) -> float:
            value = overlap_entry(solution.problem, Overlaps.unpack(vector, sizes), name)
            return abs(value) if name in OVERLAPS else value

        # Error bars contain the residual, which is counted separately here.
        width = np.maximum(solution.errors - solution.residual * scales, 0.0)
        return cls(entry(u), entry(width), lambda shift: entry(u + shift), is_entry=True)


def _overlap_observable(observable: Observable, overlaps: Overlaps, equidistant: bool) -> _Observable:
    """Return a test error or a formula of the overlaps."""

    def estimate(tolerance: float) -> _Observable:
        value, error, rule = observable.estimate(overlaps, tolerance, equidistant)

        def value_after(shift: np.ndarray) -> float:
            there = Overlaps.unpack(overlaps.pack() + shift, overlaps.sizes)
            return observable.value(there, rule, equidistant)

        return _Observable(value, error, value_after, estimate if rule else None)

    return estimate(np.inf)


def _baseline_observable(solution: Solution) -> _Observable:
    coarser = observables.baseline_error(solution.problem, 36)
    return _Observable(solution.baseline_error, abs(solution.baseline_error - coarser))


def _replicon_observable(solution: Solution) -> _Observable:
    """Return the Perron root of the replicon map, with an error bar by two rules or by replicates."""
    problem, known = solution.problem, solution.averages
    if known is None:
        return _Observable(np.nan, np.nan)
    overlaps = solution.overlaps
    first = slope_rules(solution.rule, problem, known.bistable)[0]
    state_map = StateMap(problem, solution.rule)
    hats = state_map.conjugates(overlaps, known.means)

    def _replicon_after(rule: Rule, shift: np.ndarray) -> float:
        there = Overlaps.unpack(overlaps.pack() + shift, overlaps.sizes)
        moved = state_map.conjugates(there, state_map.averages(there).means)
        return float(replicons(problem, moved, rule.jacobians(problem, there).square).mean())

    def estimate(tolerance: float) -> _Observable:
        rule, squares, error = first, first.jacobians(problem, overlaps).square, np.inf
        found = replicons(problem, hats, squares)
        for _ in range(ConditionOptions.current().replicon_refinements):
            rule, before = rule.finer_rule(), found
            squares = rule.jacobians(problem, overlaps).square
            found = replicons(problem, hats, squares)
            error = float(two_standard_errors(found)) if rule.replicated else float(abs(found - before)[0])
            if error <= tolerance:
                break
        error += conjugates_error(problem, overlaps, known, solution.rule, squares.mean(axis=0))
        return _Observable(float(found.mean()), error, lambda shift: _replicon_after(rule, shift), estimate)

    return estimate(np.inf)


def verdict_and_parameter_names(problem: Problem) -> list[str]:
    """Return the names of verdicts, alpha and scalar parameters, which a condition may contain besides observables."""
    numbers = []
    for name in problem.parameters:
        with suppress(InputError):
            problem.value_of(name)
            numbers += [name] * (column_name(name) == name.rstrip("_"))
    return ["replicon", "bistable_share", "alpha", *numbers]


def parse_condition(text: str, problem: Problem) -> Condition:
    """Return the condition of a text `left = right`.

    Args:
        text: two expressions in names, numbers and + - * / **.
        problem: whose quantities and parameters have the names.

    Raises:
        InputError: as `parse_sides`, or an unknown name; the known ones are listed.
    """
    sides, more = parse_sides(text), verdict_and_parameter_names(problem)
    used = [node for side in sides for node in ast.walk(side) if isinstance(node, ast.Name)]
    if not used:
        known = ", ".join(name.rstrip("_") for name in quantity_names(problem, more))
        raise InputError(f"condition {text!r} contains no observable; known are {known}")
    for node in used:
        node.id = find_quantity(problem, node.id, f"condition {text!r}", more)
    return Condition(text, sides, tuple(sorted({node.id for node in used})))


def parse_sides(text: str) -> tuple[ast.expr, ast.expr]:
    """Return both sides of a condition as syntax trees, without checking names.

    Raises:
        InputError: not of the form `left = right`.
    """
    sides = re.sub(r"\blambda\b", "lambda_", text).split("=")  # a keyword of Python
    if len(sides) != 2:
        raise InputError(f"condition {text!r}: two expressions joined by one '=' are expected, as test_error = 0.1")
    left, right = (_parse_expression(side, text) for side in sides)
    return left, right


def _parse_expression(text: str, condition: str) -> ast.expr:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise InputError(f"condition {condition!r}: cannot read {text.strip()!r}") from None
    allowed = (ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, ast.Load, ast.UAdd, ast.USub, *_OPERATIONS)
    for node in ast.walk(tree):
        if not isinstance(node, allowed) or (
            isinstance(node, ast.Constant) and not isinstance(node.value, int | float)
        ):
            raise InputError(f"condition {condition!r}: only names, numbers and + - * / ** are allowed")
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            node.value = ast.get_source_segment(text.strip(), node)  # all digits, for numbers of any precision
    return tree


def _evaluate(node: ast.expr, values: Mapping[str, Any], number: Callable[[str], Any] = float) -> Any:
    if isinstance(node, ast.Constant):
        return number(str(node.value))
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.UnaryOp):
        inner = _evaluate(node.operand, values, number)
        return -inner if isinstance(node.op, ast.USub) else inner
    assert isinstance(node, ast.BinOp)
    return _OPERATIONS[type(node.op)](_evaluate(node.left, values, number), _evaluate(node.right, values, number))
