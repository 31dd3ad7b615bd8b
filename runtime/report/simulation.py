"""Simulations as text and JSON of the command `simulate`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..base.numbers import format_value_with_error
from ..base.presenting import table, to_json
from ..extensions.simulation.estimate import MeanEstimate
from ..extensions.simulation.methods import METHODS
from ..extensions.simulation.run import SeedRun
from ..extensions.simulation.simulation import POLISH, SCALARS, Simulation
from .contract import attributes_by_name, overlaps_json, problem_json, trained_numbers_json
from .layout import labelled_value_line
from .solution import model_and_parameters_line, norm_multiplier_line, overlap_lines


@table.register_renderer_of_class(Simulation)
def simulation_table(simulation: Simulation) -> str:
    """Return a simulation as text: means over seeds with standard errors, and how the runs ended."""
    plan, problem, runs = simulation.plan, simulation.problem, simulation.converged
    held = f" with {plan.project} fixed at zero" if plan.project else ""
    lines = [
        model_and_parameters_line(problem),
        f"d = {plan.d}, n = {max(1, round(problem.alpha * plan.d))}, {plan.method} from {plan.start}{held}: "
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
    if kept := simulation.multipliers:
        lines.append(norm_multiplier_line(kept.mean, kept.standard_error))
    loss, test = simulation.estimate("training_loss"), simulation.estimate("test_error")
    if math.isfinite(loss.mean):
        lines.append(labelled_value_line("training loss", f"{_format_mean_with_standard_error(loss)} per d"))
    if math.isfinite(test.mean):
        which = f" ({problem.metric_name})" if problem.metric_name else ""
        lines.append(labelled_value_line("test error", _format_mean_with_standard_error(test) + which))
    iterations = simulation.estimate("iterations").mean
    how = f"gradient norm at most {max(run.gradient for run in runs):.1e}, {iterations:.0f} iterations on average"
    if METHODS[plan.method].one_pass:
        how = f"rate {plan.rate}, batch {plan.batch}: {iterations:.0f} steps"
    lines.append(f"  {how}; in parentheses: one standard error of the mean over seeds")
    if plan.controls:
        plain = MeanEstimate.from_values([run.training_loss for run in runs])
        share = loss.standard_error / plain.standard_error
        lines.append(f"  control variates: standard error of the training loss {share:.2f} of that without them")
    if done := simulation.polish:
        lines += _lines_on_refinement_of_minima(simulation, done)
    if math.isfinite(simulation.estimate("late").mean):
        lines.append(
            f"  replicon measured {_format_mean_with_standard_error(simulation.estimate('contraction'))}: factor on "
            "the squared distance of two estimates with the same overlaps"
        )
        apart = [run.late for run in simulation.runs if run.status == "max_iterations"]
        if apart:
            lines.append(f"  squared distance of late iterates {np.mean(apart):.2g}, of runs that did not converge")
    return "\n".join(lines)


def _format_mean_with_standard_error(estimate: MeanEstimate, unit: float = 1.0) -> str:
    return format_value_with_error(unit * estimate.mean, unit * estimate.standard_error)


def _lines_on_refinement_of_minima(simulation: Simulation, done: dict[str, MeanEstimate]) -> list[str]:
    """Return lines of text on the search for lower minima after training: its effects, averaged over converged runs."""
    restarts = simulation.plan.restarts
    deeper = f" ({done['deeper'].mean:.1f} of {restarts} restarts ended lower)" if restarts else ""
    return [
        f"  polished: {_format_mean_with_standard_error(done['wrong_before'], 100)} % of the samples in secondary "
        f"minima before, {_format_mean_with_standard_error(done['wrong_after'], 100)} % after{deeper}",
        f"  training loss gained {_format_mean_with_standard_error(done['gained'])} per d, paired by seed; "
        f"{done['descents'].mean:.1f} descents, {done['seconds'].mean:.1f} s a seed; "
        f"{max(run.polish.memory for run in simulation.converged if run.polish) / 1e9:.2f} GB at the most",
    ]


@to_json.register_renderer_of_class(Simulation)
def simulation_json(simulation: Simulation) -> dict[str, Any]:
    """Return a simulation as the dict that `simulate --json` prints."""
    problem, plan = simulation.problem, simulation.plan
    means, errors = (_seed_averages_json(simulation, part) for part in ("mean", "standard_error"))
    return {
        **problem_json(problem),
        "d": plan.d,
        "n": max(1, round(problem.alpha * plan.d)),
        "metric": problem.metric_name or None,
        **attributes_by_name(plan, "start", "method", "rate", "batch"),
        "exact_teacher": plan.exact,
        **attributes_by_name(plan, "polish", "restarts", "project", "controls"),
        "status": (
            "interrupted" if simulation.interrupted else "time_limit" if simulation.out_of_time else simulation.status
        ),
        "seeds": [run.seed for run in simulation.runs],
        "converged": len(simulation.converged),
        "branches": simulation.branches,
        **means,
        "standard_errors": errors,
        "runs": [_simulation_run_json(simulation, run) for run in simulation.runs],
        "failures": [{"seed": failure.seed, "error": failure.text} for failure in simulation.failures],
    }


def _seed_averages_json(simulation: Simulation, part: str) -> dict[str, Any]:
    """Return observables averaged over converged runs, or the standard errors of the means, as a dict for JSON."""
    problem, kept = simulation.problem, simulation.multipliers
    overlaps = simulation.overlaps[part != "mean"] if simulation.converged else None
    return {
        "overlaps": overlaps_json(problem, overlaps) if overlaps else None,
        "trained": trained_numbers_json(problem, overlaps) if overlaps else None,
        "multipliers": getattr(kept, part) if kept else None,
        "polished": {name: getattr(estimate, part) for name, estimate in simulation.polish.items()} or None,
        **{name: getattr(simulation.estimate(name), part) for name in SCALARS},
    }


def _simulation_run_json(simulation: Simulation, run: SeedRun) -> dict[str, Any]:
    return {
        **attributes_by_name(run, "seed", "status"),
        "branch": simulation.branch(run),
        "overlaps": overlaps_json(simulation.problem, run.overlaps),
        "trained": trained_numbers_json(simulation.problem, run.overlaps),
        "multipliers": run.multipliers,
        "polished": attributes_by_name(run.polish, *POLISH) if run.polish else None,
        **attributes_by_name(run, *SCALARS),
    }
