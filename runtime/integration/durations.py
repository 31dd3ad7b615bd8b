"""Duration of one evaluation of an integration rule, predicted from smaller rules of its family."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ..base.options import AlgorithmOptions
from ..problems.problem import Problem
from .rule import Rule

_seconds: dict[tuple[str, str, bool], list[float]] = defaultdict(list)  # per node


@dataclass(frozen=True)
class DurationOptions(AlgorithmOptions):
    """Options of the predicted duration of one evaluation of an integration rule.

    Attributes:
        max_evaluations: number of latest evaluations from which a prediction is made; fewer adapt faster to the load.
    """

    max_evaluations: int = 8


def record_evaluation_duration(problem: Problem, rule: Rule, seconds: float) -> None:
    """Record the duration of one evaluation of an integration rule.

    Args:
        problem: problem whose fields were integrated over.
        rule: rule that was evaluated.
        seconds: duration of the evaluation.
    """
    durations = _seconds[_rule_family_key(problem, rule)]
    durations.append(seconds / rule.node_count(problem))
    del durations[: -DurationOptions.current().max_evaluations]


def predicted_evaluation_seconds(problem: Problem, rule: Rule) -> float:
    """Return the predicted duration of one evaluation of a rule in seconds; 0 if it cannot be predicted.

    At least two recorded evaluations are needed, since the first one may include compilation.

    Args:
        problem: problem whose fields are integrated over.
        rule: rule to evaluate.
    """
    durations = _seconds.get(_rule_family_key(problem, rule), [])
    return min(durations) * rule.node_count(problem) if len(durations) > 1 else 0.0


def describe_rule_with_duration(problem: Problem, rule: Rule) -> str:
    """Return the name and size of a rule in words, with its predicted duration if that is a second or more.

    Args:
        problem: problem whose fields are integrated over.
        rule: rule to describe.
    """
    seconds = predicted_evaluation_seconds(problem, rule)
    return f"{rule.name}, {rule.size_in_words}" + (f", about {seconds:.0f} s an evaluation" if seconds >= 1 else "")


def _rule_family_key(problem: Problem, rule: Rule) -> tuple[str, str, bool]:
    return str(problem.solver.folder), rule.name, problem.inverse_temperature is None
