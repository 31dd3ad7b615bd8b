"""Simulations for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..text import overlap_lines, problem_line, with_error
from .run import GAMP

if TYPE_CHECKING:
    from .simulation import Simulation


def simulation_table(simulation: Simulation) -> str:
    """What `simulate` prints: means over seeds with standard errors, and how the seeds ended."""
    plan, problem, runs = simulation.plan, simulation.problem, simulation.converged
    lines = [
        problem_line(problem),
        f"d = {plan.d}, n = {max(1, round(problem.alpha * plan.d))}, {plan.method} from {plan.start}: "
        f"{len(runs)} of {len(simulation.runs) + len(simulation.failures)} seeds converged; "
        + (", ".join(f"{count} {name}" for name, count in simulation.branches.items()) or "none to average"),
    ]
    for status in dict.fromkeys(run.status for run in simulation.runs if run.status != "converged"):
        seeds = [run.seed for run in simulation.runs if run.status == status]
        lines.append(f"  {status.replace('_', ' ')}: seeds {', '.join(map(str, seeds))}")
    lines += [f"  seed {failure.seed} failed: {failure.text}" for failure in simulation.failures]
    if not runs:
        return "\n".join(lines)
    lines += overlap_lines(problem, *simulation.overlaps)
    loss, test = simulation.estimate("training_loss"), simulation.estimate("test_error")
    lines.append(f"  training loss {with_error(loss.mean, loss.standard_error)} per d")
    if math.isfinite(test.mean):
        lines.append(f"  test error    {with_error(test.mean, test.standard_error)}")
    lines.append(
        f"  gradient norm at most {max(run.gradient for run in runs):.1e}, "
        f"{simulation.estimate('iterations').mean:.0f} iterations on average; in parentheses: one standard error "
        "of the mean over seeds"
    )
    if plan.method == GAMP:
        found = simulation.estimate("contraction")
        lines.append(
            f"  replicon measured {with_error(found.mean, found.standard_error)}: factor on the squared distance of "
            "two estimates with the same overlaps"
        )
        apart = [run.late for run in simulation.runs if run.status == "max_iterations"]
        if apart:
            lines.append(f"  squared distance of late iterates {np.mean(apart):.2g}, of runs that did not converge")
    return "\n".join(lines)


__all__ = ["simulation_table"]
