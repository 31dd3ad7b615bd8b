"""Duration of one evaluation of an integration rule, predicted from smaller rules of its family."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ..base.options import AlgorithmOptions
from ..problems.problem import Problem
from .rule import Rule

_seconds: dict[tuple[str, str, bool], list[float]] = defaultdict(list)  # per node


@dataclass(frozen=True)
class PaceOptions(AlgorithmOptions):
    """Options of predicted durations.

    Attributes:
        max_evaluations: the last evaluations of a family that count; fewer follow the machine's load faster.
    """

    max_evaluations: int = 8


def record_duration(problem: Problem, rule: Rule, seconds: float) -> None:
    """Record the duration of one evaluation.

    Args:
        problem: problem whose fields were integrated over.
        rule: rule that was evaluated.
        seconds: duration.
    """
    durations = _seconds[_family_key(problem, rule)]
    durations.append(seconds / rule.node_count(problem))
    del durations[: -PaceOptions.current().max_evaluations]


def predicted_seconds(problem: Problem, rule: Rule) -> float:
    """Return the predicted duration of one evaluation in seconds; 0 where nothing is known.

    The first evaluation of a family may include compilation, so that one alone predicts nothing.

    Args:
        problem: problem whose fields are integrated over.
        rule: rule to evaluate.
    """
    durations = _seconds.get(_family_key(problem, rule), [])
    return min(durations) * rule.node_count(problem) if len(durations) > 1 else 0.0


def describe_with_duration(problem: Problem, rule: Rule) -> str:
    """Return a rule with its size, and the duration of an evaluation if it is a second or more, in words.

    Args:
        problem: problem whose fields are integrated over.
        rule: rule to describe.
    """
    seconds = predicted_seconds(problem, rule)
    return f"{rule.name}, {rule.size}" + (f", about {seconds:.0f} s an evaluation" if seconds >= 1 else "")


def _family_key(problem: Problem, rule: Rule) -> tuple[str, str, bool]:
    return str(problem.solver.folder), rule.name, problem.inverse_temperature is None
