"""Thresholds: as `threshold` prints them, for people and as JSON."""

from __future__ import annotations

from typing import Any

from ..base.numbers import with_error
from ..base.presenting import table, to_json
from ..thresholds.threshold import Threshold
from .ansatz import HEADING, is_unstable_beyond_digits, offer, offer_elsewhere
from .contract import located_json
from .solution import not_in_the_limit, problem_line

_SHALLOWER = ("replica symmetric", "symmetric"), ("with one step", "one_step")  # words, and where the evidence has it


@table.register(Threshold)
def threshold_table(threshold: Threshold) -> str:
    """A threshold, what its half width is made of, and the stability there."""
    parts = [("integration", "integration"), ("residual", "the residual"), ("root", "the root"), ("step", "the step")]
    parts += [("second_rule", "the second rule"), ("second_step", "the second step of breaking")]
    known = [(threshold.evidence.get(f"half_width_{name}"), words) for name, words in parts]
    shown = " + ".join(f"{value:.2g} from {words}" for value, words in known if value is not None)
    verdicts = [f"  {part}" for part in threshold.rs_verdict.split(" | ") if part]
    beyond = [s for s in threshold.solutions if is_unstable_beyond_digits(s)] if not threshold.broken else []
    lines = [repr(threshold), f"  {problem_line(threshold.problem, without=threshold.parameter)}"]
    if beyond:
        sentence = offer(beyond[0]) if threshold.kind == "crossing" else offer_elsewhere(beyond[0])
        lines = [*verdicts, f"  {HEADING}; {sentence}", *lines]
        verdicts = []
    if threshold.evidence.get("proof"):
        lines.append(f"  {told(threshold.evidence)}")
    else:
        limit = not_in_the_limit(threshold.evidence)
        lines.append(f"  error bar {threshold.error:.2g} = {shown}{limit}")
    second = threshold.evidence.get("second_rule")
    if second:
        rule = second["integrator"]
        lines.append(
            f"  {rule['rule']}, {rule['points']} points: {threshold.parameter} = "
            f"{with_error(second['value'], second['gap'])} ({second['verdict']})"
        )
    shallower = [(words, threshold.evidence.get(name)) for words, name in _SHALLOWER]
    beside = [f"{words} {with_error(one['value'], one['error'])}" for words, one in shallower if one]
    if beside:
        steps = "one step" if threshold.evidence["rsb"] == 1 else "two steps"
        lines.append(f"  with {steps} of breaking; {', '.join(beside)}")
    lines += verdicts
    return "\n".join(lines)


@to_json.register(Threshold)
def threshold_json(threshold: Threshold) -> dict[str, Any]:
    """The object of the command line's contract (docs/design.md section 5)."""
    value, error = threshold.decimals
    name, kind = threshold.parameter, threshold.kind
    return {
        **located_json(threshold.problem, kind, name, value, error, threshold.status, threshold.error_kind),
        "branches": list(threshold.branches),
        "rs_verdict": threshold.rs_verdict,
        "evidence": threshold.evidence,
    }


def told(evidence: dict[str, Any]) -> str:
    """How half widths were obtained, in words, and what they do not hold."""
    limit = not_in_the_limit(evidence)
    proof = evidence.get("proof")
    if proof is None:
        return f"{' and '.join(rule['rule'] for rule in evidence['rules'])} agree{limit}"
    return (
        f"the printed equations have exactly one solution within {proof['box']:.0e} of the blocks, and it lies within "
        f"these error bars ({proof['method']}, {proof['bits']} bits){limit}"
    )
