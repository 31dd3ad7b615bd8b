"""Bayes-optimal inference as text and JSON of the command `bayes`."""

from __future__ import annotations

from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.numbers import align_text_columns, format_value_with_error
from ..base.presenting import table, to_json
from ..extensions.bayes.messages import BayesMessages
from ..extensions.bayes.solution import BayesSolution, student_teacher_cosine
from ..extensions.bayes.thresholds import BayesLine, BayesThreshold
from ..problems.columns import split_token_and_cluster_axes
from ..saddle_point.iteration import Status
from .contract import (
    attributes_by_name,
    error_bars_by_name,
    located_parameter_value_json,
    model_identity_json,
    parameters_json,
    problem_json,
)
from .layout import format_attribute_with_error
from .solution import model_and_parameters_line

if TYPE_CHECKING:
    from ..solving.solution import Solution


@table.register_renderer_of_class(BayesSolution)
def bayes_table(solution: BayesSolution, erm: Solution | None = None) -> str:
    """Return a Bayes-optimal solution as text, compared with risk minimisation if that is given.

    Args:
        solution: the Bayes-optimal solution.
        erm: the solution of empirical risk minimisation, or None.
    """
    problem = solution.problem
    lines = [
        model_and_parameters_line(problem),
        f"Bayes-optimal, start {solution.start}: {solution.status.replace('_', ' ')}, residual {solution.residual:.1e}",
    ]
    noise, output = problem.solver.model.NOISE, problem.solver.bayes_functions
    if noise and not output.HIDDEN and all(kind != "discrete" for _, kind, _ in output.OBSERVED):
        named = ", ".join(name for name, _ in noise)
        lines.append(f"  the output has no noise, but the loss depends on {named}: this learner has better labels")
    for context in range(problem.contexts):
        parts = []
        for a, b in combinations_with_replacement(range(problem.teacher_rank), 2):
            index = "" if problem.teacher_rank == 1 else f"_{a + 1}{b + 1}"
            value = format_value_with_error(solution.q[context, a, b], solution.error_bars[context, a, b])
            parts.append(f"q{index} {value} of {problem.law.rho_star[context, a, b]:g}")
        label = f"{problem.describe_token_and_cluster(context):<10} " if problem.contexts > 1 else ""
        lines.append(f"  {label}" + "   ".join(parts))
    if problem.teacher_rank > 1 and np.isfinite(solution.growth):
        held = [str(c + 1) for c in range(problem.teacher_rank) if c not in solution.columns]
        words = f" (columns {', '.join(held)} fixed at 0)" if held else ""
        stable = "stable" if solution.growth < 1 else "unstable"
        lines.append(f"  {stable}: small overlaps change by {solution.growth:.6g} a step at most{words}")
    lines.append(f"  free entropy {format_attribute_with_error(solution, 'free_entropy')} per d")
    lines += _comparison_with_risk_minimisation_lines(solution, erm)
    if problem.metric_names and len(solution.errors) > 1:
        rows = [["", "least error", "without samples", *["risk minimisation"] * (erm is not None)]]
        for name, found in solution.errors.items():
            values = [found, solution.errors_unlearned[name]]
            if erm is not None:
                values.append((erm.test_errors[name], erm.error_bars.test_errors[name]))
            rows.append([name, *(format_value_with_error(*value) for value in values)])
        lines += [f"  {line}" for line in align_text_columns(rows)]
    return "\n".join(lines)


def _comparison_with_risk_minimisation_lines(solution: BayesSolution, erm: Solution | None) -> list[str]:
    """Return lines that compare Bayes-optimal test errors and cosines to the teacher with risk minimisation."""
    best = format_attribute_with_error(solution, "test_error")
    columns = range(solution.problem.teacher_rank)
    names = [f"cosine with column {a + 1}" if len(columns) > 1 else "cosine with the teacher" for a in columns]
    cosines = [f"{solution.cosine(column=a):.9g}" for a in columns]
    if erm is None:
        pairs = zip([*names, "least test error"], [*cosines, best], strict=True)
        return [f"  {name} {value}" for name, value in pairs]
    minimised = [f"{abs(student_teacher_cosine(erm, column=a)):.9g}" for a in columns]
    rows = [["", "Bayes-optimal", "risk minimisation"], *map(list, zip(names, cosines, minimised, strict=True))]
    rows.append(["test error", best, format_attribute_with_error(erm, "test_error")])
    if np.isfinite(erm.baseline_error):
        rows.append(["linear baseline", "", f"{erm.baseline_error:.9g}"])
    elsewhere = f": {erm.branch}" if erm.status is Status.LEFT_BASIN else ""
    rows.append(["reached from", solution.start, f"{erm.start} ({erm.status.words}{elsewhere})"])
    return [f"  {line}" for line in align_text_columns(rows)]


@to_json.register_renderer_of_class(BayesSolution)
def bayes_json(solution: BayesSolution) -> dict[str, Any]:
    """Return a Bayes-optimal solution as the dict that `bayes --json` prints."""
    problem = solution.problem
    block = partial(split_token_and_cluster_axes, problem)
    return {
        **problem_json(problem),
        **attributes_by_name(solution, "start", "status", "residual"),
        "iterations": solution.steps,
        "columns": [column + 1 for column in solution.columns],
        "growth": solution.growth,
        "overlaps": {"q": block(solution.q), "q_star": block(problem.law.rho_star)},
        "conjugates": {"q": block(solution.q_hat)},
        "cosine": [solution.cosine(c) for c in range(problem.contexts)],
        **attributes_by_name(solution, "free_entropy", "test_error"),
        "errors": {
            "overlaps": {"q": block(solution.error_bars)},
            **error_bars_by_name(solution, ("free_entropy", "test_error")),
        },
        "error_kind": "estimated",
        "test_errors": {
            name: {"value": value, "error": error, "unlearned": solution.errors_unlearned[name][0]}
            for name, (value, error) in (solution.errors.items() if problem.metric_names else ())
        },
    }


@table.register_renderer_of_class(BayesThreshold)
def bayes_threshold_table(threshold: BayesThreshold) -> str:
    """Return a Bayes-optimal threshold as text: its value, then the evidence."""
    lines = [f"{threshold.problem.solver.name}, Bayes-optimal: {threshold.kind.replace('_', ' ')} threshold"]
    lines.append(f"  alpha = {format_value_with_error(threshold.value, threshold.error)}")
    lines += [f"  {name.replace('_', ' ')}: {value}" for name, value in threshold.evidence.items()]
    return "\n".join(lines)


@to_json.register_renderer_of_class(BayesThreshold)
def bayes_threshold_json(threshold: BayesThreshold) -> dict[str, Any]:
    """Return a Bayes-optimal threshold as the dict that `bayes --threshold --json` prints."""
    found = threshold.problem, threshold.kind, "alpha", threshold.value, threshold.error, "converged", "estimated"
    return {**located_parameter_value_json(*found), "evidence": threshold.evidence}


@table.register_renderer_of_class(BayesLine)
def bayes_threshold_line_table(line: BayesLine) -> str:
    """Return a line of Bayes-optimal thresholds as text, one line per point."""
    rows = [[line.over.rstrip("_"), "alpha"]]
    for at, value, error, evidence in zip(line.over_values, line.values, line.errors, line.evidence, strict=True):
        rows.append(
            [
                f"{at:.6g}",
                format_value_with_error(float(value), float(error)) if np.isfinite(value) else evidence["reason"],
            ]
        )
    ending = [line.ending] if line.ending else []
    return "\n".join([f"{line.problem.solver.name}, Bayes-optimal: {line.title}", *align_text_columns(rows), *ending])


def bayes_threshold_line_json(line: BayesLine, status: str, file: Path | None) -> dict[str, Any]:
    """Return a line of Bayes-optimal thresholds as the dict that `bayes --threshold --along --json` prints.

    Args:
        line: Bayes-optimal thresholds along a second parameter.
        status: word for how the command ended, as "converged" or "interrupted".
        file: the file that the command has written (option -o), or None.
    """
    rows = zip(line.over_values.tolist(), line.values.tolist(), line.errors.tolist(), line.evidence, strict=True)
    return {
        **model_identity_json(line.problem),
        "kind": line.kind,
        "parameters": parameters_json(line.problem, "alpha", line.over),
        "parameter": "alpha",
        "error_kind": "estimated",
        "status": status,
        "of": line.of,
        "given": {str(column): share for column, share in line.given.items()},
        "line": {
            "over": line.over.rstrip("_"),
            "points": [{"over": at, "value": v, "error": e, "evidence": evidence} for at, v, e, evidence in rows],
            "ending": line.ending,
        },
        "file": str(file) if file is not None else None,
    }


@to_json.register_renderer_of_class(BayesLine)
def unsaved_bayes_threshold_line_json(line: BayesLine) -> dict[str, Any]:
    """Return the dict of `bayes_threshold_line_json` for a line that was not written to a file."""
    return bayes_threshold_line_json(line, "converged" if line.success else "not_converged", None)


@table.register_renderer_of_class(BayesMessages)
def message_passing_table(passed: BayesMessages) -> str:
    """Return the results of message passing at finite d as text: every draw of the data, and the means over draws."""
    problem = passed.problem
    shown = [(c, a) for c in range(problem.contexts) for a in range(problem.teacher_rank)]

    def _overlap_label(context: int, column: int) -> str:
        named = f"column {column + 1}" if problem.teacher_rank > 1 else ""
        return ", ".join(filter(None, (problem.describe_token_and_cluster(context), named))) or "q"

    rows = [["seed", "status", "iterations", *(_overlap_label(*one) for one in shown)]]
    for run in passed.runs:
        found = [f"{run.overlaps[c, a, a]:.4f} ({run.known[c, a, a]:.4f})" for c, a in shown]
        rows.append([str(run.seed), run.status.replace("_", " "), str(run.iterations), *found])
    mean, error = passed.estimate("overlaps")
    rows.append(["mean", "", "", *(f"{mean[c, a, a]:.4f} +- {error[c, a, a]:.4f}" for c, a in shown)])
    return "\n".join(
        [
            model_and_parameters_line(problem),
            f"Bayes-optimal message passing at d = {passed.d}: overlap with the teacher (what the messages say of it)",
            *(f"  {line}" for line in align_text_columns(rows)),
        ]
    )


@to_json.register_renderer_of_class(BayesMessages)
def message_passing_json(passed: BayesMessages) -> dict[str, Any]:
    """Return the results of message passing at finite d as the dict that `bayes -d --json` prints."""
    mean, error = passed.estimate("overlaps")
    return {
        **problem_json(passed.problem),
        "status": "converged" if passed.success else "not_converged",
        "d": passed.d,
        "overlaps": {"q": mean},
        "standard_errors": {"q": error},
        "runs": [
            {
                **attributes_by_name(run, "seed", "status", "iterations", "change"),
                "overlaps": {"q": run.overlaps},
                "known": {"q": run.known},
            }
            for run in passed.runs
        ],
    }
