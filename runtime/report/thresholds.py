"""Thresholds as text and JSON of the command `threshold`."""

from __future__ import annotations

from typing import Any

from ..base.numbers import format_value_with_error
from ..base.presenting import table, to_json
from ..thresholds.threshold import Threshold
from .ansatz import HEADING, is_unstable_beyond_error_bars, suggest_solve_with_breaking, suggest_symmetry_breaking
from .contract import located_parameter_value_json
from .solution import describe_parameters_kept_finite, model_and_parameters_line

_FEWER_STEPS = ("replica symmetric", "symmetric"), ("with one step", "one_step")  # words, key of the evidence


@table.register_renderer_of_class(Threshold)
def threshold_table(threshold: Threshold) -> str:
    """Return a threshold as text: its value, the parts of its error bar, and the stability of the solutions there."""
    parts = [("integration", "integration"), ("residual", "the residual"), ("root", "the root search")]
    parts += [("step", "the step"), ("second_rule", "the second rule"), ("second_step", "the second step of breaking")]
    known = [(threshold.evidence.get(f"error_{name}"), words) for name, words in parts]
    shown = " + ".join(f"{value:.2g} from {words}" for value, words in known if value is not None)
    verdicts = [f"  {part}" for part in threshold.rs_verdict.split(" | ") if part]
    beyond = [s for s in threshold.solutions if is_unstable_beyond_error_bars(s)] if not threshold.broken else []
    lines = [repr(threshold), f"  {model_and_parameters_line(threshold.problem, without=threshold.parameter)}"]
    if beyond:
        sentence = (
            suggest_symmetry_breaking(beyond[0])
            if threshold.kind == "crossing"
            else suggest_solve_with_breaking(beyond[0])
        )
        lines = [*verdicts, f"  {HEADING}; {sentence}", *lines]
        verdicts = []
    if threshold.evidence.get("proof"):
        lines.append(f"  {describe_how_errors_were_bounded(threshold.evidence)}")
    else:
        limit = describe_parameters_kept_finite(threshold.evidence)
        lines.append(f"  error bar {threshold.error:.2g} = {shown}{limit}")
    second = threshold.evidence.get("second_rule")
    if second:
        rule = second["integrator"]
        lines.append(
            f"  {rule['rule']}, {rule['points']} points: {threshold.parameter} = "
            f"{format_value_with_error(second['value'], second['gap'])} ({second['verdict']})"
        )
    shallower = [(words, threshold.evidence.get(name)) for words, name in _FEWER_STEPS]
    values = [f"{words} {format_value_with_error(one['value'], one['error'])}" for words, one in shallower if one]
    if values:
        steps = "one step" if threshold.evidence["rsb"] == 1 else "two steps"
        lines.append(f"  with {steps} of breaking; {', '.join(values)}")
    lines += verdicts
    return "\n".join(lines)


@to_json.register_renderer_of_class(Threshold)
def threshold_json(threshold: Threshold) -> dict[str, Any]:
    """Return a threshold as the dict that `threshold --json` prints (docs/design.md section 5)."""
    value, error = threshold.decimals
    name, kind = threshold.parameter, threshold.kind
    return {
        **located_parameter_value_json(
            threshold.problem, kind, name, value, error, threshold.status, threshold.error_kind
        ),
        "branches": list(threshold.branches),
        "rs_verdict": threshold.rs_verdict,
        "evidence": threshold.evidence,
    }


def describe_how_errors_were_bounded(evidence: dict[str, Any]) -> str:
    """Describe in words how error bars were obtained (by proof or agreement of two rules) and what they leave out."""
    limit = describe_parameters_kept_finite(evidence)
    proof = evidence.get("proof")
    if proof is None:
        return f"{' and '.join(rule['rule'] for rule in evidence['rules'])} agree{limit}"
    return (
        f"the generated equations have exactly one solution within {proof['box']:.0e} of the blocks, and it lies "
        f"within these error bars ({proof['method']}, {proof['bits']} bits){limit}"
    )
