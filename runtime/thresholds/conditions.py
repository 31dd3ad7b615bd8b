"""Conditions on observables, as `test_error = baseline_error`: safe parsing, and evaluation with error bars."""

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
from ..integration import Rule, choose_field_jacobian_rules
from ..integration.estimates import replicate_error_bar
from ..problems.columns import METRIC, OBSERVED, RENAMED_COLUMNS, table_column_name
from ..problems.overlaps import OVERLAPS, Overlaps
from ..problems.problem import Problem
from ..problems.quantities import overlap_entry_by_name, resolve_quantity_name, solution_quantity_names
from ..saddle_point import observables
from ..saddle_point.observables import Observable, find_observable
from ..saddle_point.state_map import SaddlePointMap
from ..solving.solution import Solution
from ..stability.assess import ROUNDING, replicon_error_from_conjugates, replicons_by_replicate

_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_AVERAGED = ("training_loss", "free_entropy", "replicon", "bistable_fraction")


@dataclass(frozen=True)
class ConditionOptions(AlgorithmOptions):
    """Options of evaluating a condition, for example `replicon = 1`, at a solution.

    Attributes:
        replicon_refinements: largest number of finer quadrature rules that are tried for the replicon.
    """

    replicon_refinements: int = 3


@dataclass(frozen=True)
class DifferenceOfConditionSides:
    """The left side minus the right side of a condition at a solution, with the parts of its error bar.

    Attributes:
        integration: error bar due to integration.
        residual: error bar due to the residual of the saddle-point equations.
    """

    value: float
    integration: float
    residual: float

    @property
    def error(self) -> float:
        """Return the error bar of the difference of the sides: the sum of its parts due to integration and residual."""
        return self.integration + self.residual


@dataclass(frozen=True)
class Condition:
    """A condition such as `test_error = 2 * Delta`: two expressions in observables, verdicts and parameters."""

    text: str
    sides: tuple[ast.expr, ast.expr]
    names: tuple[str, ...]

    @property
    def needs_channel_averages(self) -> bool:
        """Return whether the condition depends on channel averages (as the replicon), not only on overlaps."""
        return any(name in _AVERAGED for name in self.names)

    def __call__(self, solution: Solution) -> tuple[float, float]:
        """Return the left side minus the right side of the condition at a solution, and its error bar."""
        found = self.evaluate_condition_at_solution(solution)
        return found.value, found.error

    def evaluate_condition_at_solution(
        self, solution: Solution, tolerance: float = np.inf, equidistant: bool = False
    ) -> DifferenceOfConditionSides:
        """Return the left side minus the right side of the condition at a solution, with the parts of its error bar.

        Args:
            solution: the solution at which it is evaluated.
            tolerance: requested error bar, to which the integrals of test error, baseline and replicon are refined if
                possible.
            equidistant: whether the test error is integrated with equidistant nodes instead of Gauss-Hermite's.
        """
        observables = {
            name: _ConditionTerm._evaluate_term_at_solution(name, solution, equidistant) for name in self.names
        }
        values = {name: observable.value for name, observable in observables.items()}
        refined = [name for name in self.names if observables[name].refine is not None]
        for name in refined:
            own_tolerance = tolerance / (
                2 * len(refined) * max(abs(self._partial_derivative_of_condition(values, name)), 1e-300)
            )
            observables[name] = observables[name]._refine_term_to_tolerance(own_tolerance)
            values[name] = observables[name].value
        centre = self._difference_of_sides(values)
        ends = ({**values, name: values[name] + observables[name].error} for name in self.names)
        integration = sum(abs(self._difference_of_sides(end) - centre) for end in ends)
        integration += ROUNDING * max(abs(_evaluate_expression(side, values)) for side in self.sides)

        def _change_at_shifted_overlaps(shift: np.ndarray, names: Sequence[str]) -> float:
            known = {name: move for name in names if (move := observables[name].moved) is not None}
            try:
                return (
                    self._difference_of_sides({**values, **{name: move(shift) for name, move in known.items()}})
                    - centre
                )
            except DomainError:
                return np.inf

        integrated_names = [name for name in self.names if not observables[name].is_entry]
        if solution.shifts is not None and len(solution.shifts):
            changes = np.array([_change_at_shifted_overlaps(shift, integrated_names) for shift in solution.shifts])
            sampled = solution.rule.replicated
            integration += float(replicate_error_bar(changes)) if sampled else float(np.abs(changes).max())
        residual = (
            0.0
            if solution.residual_shift is None
            else abs(_change_at_shifted_overlaps(solution.residual_shift, self.names))
        )
        return DifferenceOfConditionSides(centre, float(integration), residual)

    def evaluate_condition_sides(self, values: Mapping[str, Any], number: Callable[[str], Any]) -> tuple[Any, Any]:
        """Return the values of both sides of the condition, given values of its names in any precision.

        Args:
            values: value of every name in the condition.
            number: function that converts a decimal string into a number of the wanted precision.
        """
        left, right = (_evaluate_expression(side, values, number) for side in self.sides)
        return left, right

    def _difference_of_sides(self, values: Mapping[str, float]) -> float:
        left, right = (_evaluate_expression(side, values) for side in self.sides)
        return left - right

    def _partial_derivative_of_condition(self, values: Mapping[str, float], name: str) -> float:
        step = 1e-6 * max(abs(values[name]), 1e-6)
        ends = [self._difference_of_sides({**values, name: values[name] + sign * step}) for sign in (1, -1)]
        return (ends[0] - ends[1]) / (2 * step)


@dataclass(frozen=True)
class _ConditionTerm:
    """A named quantity in a condition: its value at a solution, with error bar and change with the overlaps.

    Attributes:
        error: error bar of its integral; of the overlap if the quantity is an overlap.
        moved: function that returns the value after a shift of the overlaps; None if it does not change to first order.
        refine: function that returns the quantity with an error below a tolerance; None if nothing can be refined.
        is_entry: whether the quantity is an overlap or a trained number.
    """

    value: float
    error: float = 0.0
    moved: Callable[[np.ndarray], float] | None = None
    refine: Callable[[float], _ConditionTerm] | None = None
    is_entry: bool = False

    def _refine_term_to_tolerance(self, tolerance: float) -> _ConditionTerm:
        return self.refine(tolerance) if self.refine and self.error > tolerance else self

    @classmethod
    def _evaluate_term_at_solution(cls, name: str, solution: Solution, equidistant: bool) -> _ConditionTerm:
        problem = solution.problem
        if name in ("training_loss", "free_entropy"):
            return cls(getattr(solution, name), solution.training_loss_error)
        if name == "bistable_fraction":
            return cls(solution.averages.bistable if solution.averages else np.nan)
        if name == "baseline_error":
            return _term_for_baseline_error(solution)
        if name == "replicon":
            return _term_for_replicon(solution)
        if name in OBSERVED or name.startswith(METRIC):
            return _term_for_observable(find_observable(problem, name), solution.overlaps, equidistant)
        if name in verdict_and_parameter_names(problem):
            return cls(problem.value_of_parameter(name))
        return cls._term_for_overlap_component(name, solution)

    @classmethod
    def _term_for_overlap_component(cls, name: str, solution: Solution) -> _ConditionTerm:
        u, sizes, scales = solution.overlaps.pack(), solution.overlaps.sizes, solution.overlaps.block_scales

        def named_overlap_from_vector(vector: np.ndarray) -> float:
            value = overlap_entry_by_name(solution.problem, Overlaps.unpack(vector, sizes), name)
            return abs(value) if name in OVERLAPS else value

        # Error bars contain the residual, which is counted separately here.
        width = np.maximum(solution.errors - solution.residual * scales, 0.0)
        return cls(
            named_overlap_from_vector(u),
            named_overlap_from_vector(width),
            lambda shift: named_overlap_from_vector(u + shift),
            is_entry=True,
        )


def _term_for_observable(observable: Observable, overlaps: Overlaps, equidistant: bool) -> _ConditionTerm:
    """Return a test error, or another observable that overlaps determine, as a quantity in a condition."""

    def estimate_term_to_tolerance(tolerance: float) -> _ConditionTerm:
        value, error, rule = observable.estimate_with_error(overlaps, tolerance, equidistant)

        def observable_at_shifted_overlaps(shift: np.ndarray) -> float:
            there = Overlaps.unpack(overlaps.pack() + shift, overlaps.sizes)
            return observable.value_by_quadrature_rule(there, rule, equidistant)

        return _ConditionTerm(
            value, error, observable_at_shifted_overlaps, estimate_term_to_tolerance if rule else None
        )

    return estimate_term_to_tolerance(np.inf)


def _term_for_baseline_error(solution: Solution) -> _ConditionTerm:
    coarser = observables.baseline_error(solution.problem, 36)
    return _ConditionTerm(solution.baseline_error, abs(solution.baseline_error - coarser))


def _term_for_replicon(solution: Solution) -> _ConditionTerm:
    """Return the replicon, with its error bar, as a quantity in a condition."""
    problem, known = solution.problem, solution.averages
    if known is None:
        return _ConditionTerm(np.nan, np.nan)
    overlaps = solution.overlaps
    first = choose_field_jacobian_rules(solution.rule, problem, known.bistable)[0]
    state_map = SaddlePointMap(problem, solution.rule)
    hats = state_map.conjugates_at_overlaps(overlaps, known.means)

    def _replicon_at_shifted_overlaps(rule: Rule, shift: np.ndarray) -> float:
        there = Overlaps.unpack(overlaps.pack() + shift, overlaps.sizes)
        moved = state_map.conjugates_at_overlaps(there, state_map.channel_averages(there).means)
        return float(replicons_by_replicate(problem, moved, rule.jacobian_averages(problem, there).square).mean())

    def estimate_term_to_tolerance(tolerance: float) -> _ConditionTerm:
        rule, squares, error = first, first.jacobian_averages(problem, overlaps).square, np.inf
        found = replicons_by_replicate(problem, hats, squares)
        for _ in range(ConditionOptions.current().replicon_refinements):
            rule, before = rule.finer_rule(), found
            squares = rule.jacobian_averages(problem, overlaps).square
            found = replicons_by_replicate(problem, hats, squares)
            error = float(replicate_error_bar(found)) if rule.replicated else float(abs(found - before)[0])
            if error <= tolerance:
                break
        error += replicon_error_from_conjugates(problem, overlaps, known, solution.rule, squares.mean(axis=0))
        return _ConditionTerm(
            float(found.mean()),
            error,
            lambda shift: _replicon_at_shifted_overlaps(rule, shift),
            estimate_term_to_tolerance,
        )

    return estimate_term_to_tolerance(np.inf)


def verdict_and_parameter_names(problem: Problem) -> list[str]:
    """Return the names of stability verdicts and parameters that a condition may contain."""
    numbers = []
    for name in problem.parameters:
        with suppress(InputError):
            problem.value_of_parameter(name)
            numbers += [name] * (table_column_name(name) == name.rstrip("_"))
    return ["replicon", "bistable_fraction", "alpha", *numbers]


def parse_condition(text: str, problem: Problem) -> Condition:
    """Parse a condition from a text `left = right`.

    Args:
        text: two expressions joined by =, of names, numbers and + - * / **.
        problem: the problem that defines the names of quantities and parameters.

    Raises:
        InputError: the text is not of this form, or a name is unknown; the message lists the known names.
    """
    sides, more = parse_condition_sides(text), verdict_and_parameter_names(problem)
    used = [node for side in sides for node in ast.walk(side) if isinstance(node, ast.Name)]
    if not used:
        known = ", ".join(name.rstrip("_") for name in solution_quantity_names(problem, more))
        raise InputError(f"condition {text!r} contains no observable; known are {known}")
    for node in used:
        node.id = RENAMED_COLUMNS.get(node.id, node.id)
        node.id = resolve_quantity_name(problem, node.id, f"condition {text!r}", more)
    return Condition(text, sides, tuple(sorted({node.id for node in used})))


def parse_condition_sides(text: str) -> tuple[ast.expr, ast.expr]:
    """Parse a text `left = right` into two syntax trees, without checking the names.

    Raises:
        InputError: the text is not of the form `left = right`.
    """
    sides = re.sub(r"\blambda\b", "lambda_", text).split("=")  # a keyword of Python
    if len(sides) != 2:
        raise InputError(f"condition {text!r}: two expressions joined by one '=' are expected, as test_error = 0.1")
    left, right = (_parse_condition_expression(side, text) for side in sides)
    return left, right


def _parse_condition_expression(text: str, condition: str) -> ast.expr:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise InputError(
            f"condition {condition!r}: cannot read {text.strip()!r}; names, numbers and + - * / ** are allowed"
        ) from None
    allowed = (ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, ast.Load, ast.UAdd, ast.USub, *_OPERATIONS)
    for node in ast.walk(tree):
        if not isinstance(node, allowed) or (
            isinstance(node, ast.Constant) and not isinstance(node.value, int | float)
        ):
            raise InputError(f"condition {condition!r}: only names, numbers and + - * / ** are allowed")
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            node.value = ast.get_source_segment(text.strip(), node)  # all digits, for numbers of any precision
    return tree


def _evaluate_expression(node: ast.expr, values: Mapping[str, Any], number: Callable[[str], Any] = float) -> Any:
    if isinstance(node, ast.Constant):
        return number(str(node.value))
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.UnaryOp):
        inner = _evaluate_expression(node.operand, values, number)
        return -inner if isinstance(node.op, ast.USub) else inner
    assert isinstance(node, ast.BinOp)
    return _OPERATIONS[type(node.op)](
        _evaluate_expression(node.left, values, number), _evaluate_expression(node.right, values, number)
    )
