"""Broken replica symmetry: as `solve --rsb` prints it, for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..breaking.solution import BrokenSolution
from ..numbers import with_error
from ..presenting import table, to_json
from ..problems.symbols import symbols_of
from .contract import blocks_json, problem_json
from .solution import overlap_lines, problem_line, solution_table


@table.register(BrokenSolution)
def broken_table(solution: BrokenSolution, names: Mapping[str, str] | None = None) -> str:
    """What `solve --rsb` prints: the overlaps of one minimiser, those between states, energies and verdicts."""
    symmetric, problem = solution.symmetric, solution.problem
    if solution.state is None:
        return "\n".join([solution_table(symmetric, names, alone=False), f"  one step of breaking: {solution.found}"])
    steps = "one step" if solution.steps == 1 else "two steps"
    shown = symbols_of(problem, names)
    widths = solution.state_half_widths
    assert widths is not None
    rates = ", ".join(map(with_error, solution.rates, solution.rate_errors))
    parisi = f"{solution.parisi:.6g}, given" if solution.given else rates
    lines = [
        problem_line(problem, shown),
        f"start {solution.start}, reached {solution.branch}, {steps} of replica symmetry breaking; "
        f"{solution.status.words}, residual {solution.residual:.1e}",
    ]
    if solution.advice and not solution.found:
        lines.append(f"  {solution.advice}")
    lines.append(f"  y = {parisi} (Parisi parameter{'s' * (solution.steps > 1)})")
    lines += overlap_lines(problem, solution.overlaps, solution.half_widths, shown)
    lines += _between_lines(solution, shown["q"][0])
    if solution.multipliers is not None:
        assert solution.multipliers_error is not None
        strengths = ", ".join(map(with_error, solution.multipliers, solution.multipliers_error))
        lines.append(f"  the norms are kept by a ridge of {strengths}")
    energy = f"  training loss {with_error(solution.energy, solution.energy_error)} per d"
    beside = with_error(symmetric.training_loss, symmetric.training_loss_error)
    if solution.alone:
        lines.append(f"{energy}; replica symmetry has no such solution, its {symmetric.branch} one has {beside}")
    else:
        moved, width = solution.energy_moved
        told = with_error(moved, width)
        if abs(moved) < width:
            told = f"{told}: not resolved, less than {abs(moved) + width:.2g}"
        lines.append(f"{energy}, replica symmetric {beside}, moved by {told}")
    if solution.shallower is not None:
        once = with_error(solution.shallower.energy, solution.shallower.energy_error)
        lines.append(f"  one step has   {once}, the second moved it by {with_error(*solution.energy_moved_further)}")
    if solution.given:
        lines.append(f"  complexity    {with_error(solution.complexity, solution.complexity_error)} per d")
    if math.isfinite(solution.test_error):
        lines.append(
            f"  test error    {with_error(solution.test_error, solution.test_error_error)}, replica symmetric "
            f"{with_error(symmetric.test_error, symmetric.test_error_error)}"
        )
        others = {**dict.fromkeys(solution.other_errors, (math.nan, math.nan)), **symmetric.other_errors}
        lines += [
            f"    {name:<11} {with_error(*found)}, replica symmetric {with_error(*others[name])}"
            for name, found in solution.other_errors.items()
        ]
    rule = solution.rule.describe()
    lines.append(f"  integrator {rule['rule']}, {rule['points']} points; errors are estimated")
    if solution.stability:
        lines.append(f"  {solution.stability.verdict}")
    if symmetric.stability:
        lines.append(f"  {symmetric.stability.verdict}")
    if solution.found:
        lines.append(f"  {solution.found}")
    return "\n".join(lines)


def _between_lines(solution: BrokenSolution, q: str) -> list[str]:
    """q_0 and Delta of every step and context, a line a column of W."""
    problem, state, widths = solution.problem, solution.state, solution.state_half_widths
    assert state is not None and widths is not None
    lines, deltas = [], ["Delta"] if solution.steps == 1 else ["Delta1", "Delta2"]
    for context in range(problem.contexts):
        label = problem.context_in_words(context)
        for a in range(problem.student_rank):
            parts = []
            for name, blocks, errors in (
                (f"{q} between {'states' if solution.steps == 1 else 'clusters'}", state.between.q, widths.between.q),
                *zip(deltas, state.distances, widths.distances, strict=True),
            ):
                for b in range(a, problem.student_rank):
                    index = "" if problem.student_rank == 1 else f"_{a + 1}{b + 1}"
                    parts.append(f"{name}{index} {with_error(blocks[context, a, b], errors[context, a, b])}")
            lines.append(f"  {label if a == 0 else '':<10} " + "   ".join(parts))
    return lines


@to_json.register(BrokenSolution)
def broken_json(solution: BrokenSolution) -> dict[str, Any]:
    """The object `solve --rsb --json` prints; null in `breaking` where none was found."""
    problem, symmetric, state = solution.problem, solution.symmetric, solution.state
    widths = solution.state_half_widths
    shape = (problem.tokens, problem.clusters, *[problem.student_rank] * 2)

    def block(values: np.ndarray) -> list[Any]:
        return values.reshape(shape).tolist()

    breaking, verdict = None, solution.stability
    if state is not None and widths is not None:
        breaking = {
            "rates": list(solution.rates),
            "given": solution.given,
            "q_between": block(state.between.q),
            "distances": [block(each) for each in state.distances],
            "complexity": solution.complexity,
            "energy_moved": solution.energy_moved[0],
            "energy_moved_further": solution.energy_moved_further[0],
            "errors": {
                "rates": list(solution.rate_errors),
                "q_between": block(widths.between.q),
                "distances": [block(each) for each in widths.distances],
                "complexity": solution.complexity_error,
                "energy_moved": solution.energy_moved[1],
                "energy_moved_further": solution.energy_moved_further[1],
            },
            "stability": verdict and {**vars(verdict), "verdict": verdict.verdict},
        }
    return {
        **problem_json(problem),
        "start": solution.start,
        "branch": solution.branch,
        "status": solution.status.value,
        "rsb": solution.steps,
        "found": solution.found or None,
        "residual": solution.residual,
        "evaluations": solution.evaluations,
        "overlaps": blocks_json(problem, solution.overlaps),
        "breaking": breaking,
        "multipliers": solution.multipliers,
        "training_loss": solution.training_loss,
        "training_loss_parts": {"data": solution.parts[0], "penalty": solution.parts[1]},
        "test_error": solution.test_error,
        "test_errors": solution.test_errors or None,
        "errors": {
            "overlaps": blocks_json(problem, solution.half_widths),
            "multipliers": solution.multipliers_error,
            "training_loss": solution.training_loss_error,
            "test_error": solution.test_error_error,
            "test_errors": solution.half_widths.test_errors or None,
        },
        "integrator": solution.rule.describe(),
        "shallower": solution.shallower and to_json(solution.shallower),
        "symmetric": to_json(symmetric),
    }
