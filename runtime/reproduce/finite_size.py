"""`reproduce --figure finite-size`: the phase transition of dot-product attention at finite d compared with theory.

Simulations at omega = 0.3 along both branches (arXiv 2402.03902, Fig. 2): minima found by L-BFGS, and refined minima
with the overlap fixed at zero that vanishes on the branch. The transition from paired runs of either kind, scaling in d
(E.1), the difference of training losses over the plane (Fig. 3), random starts (E.4), and GAMP compared with state
evolution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..extensions.breaking.curve import curve
from ..extensions.breaking.solve import solve
from ..extensions.comparison.compare import LOSSES, scaling
from ..extensions.simulation.estimate import MeanEstimate
from ..extensions.simulation.finite_transition import (
    PairedLossDifference,
    fit_zero_of_loss_difference,
    paired_loss_difference,
)
from ..extensions.simulation.methods.gamp import state_evolution
from ..extensions.simulation.simulation import Simulation, simulate
from ..integration import rule_by_name
from ..problems.problem import Problem
from ..saddle_point.starts import overlaps_of_start
from .base_case import BaseCaseRun
from .run import BRANCHES, SHOWN_OMEGA, RunTask

FINITE_SIZE = "finite-size"
OVERLAPS = ("m", "theta", "q")  # overlaps of the first token
D, SEEDS = 1000, 16
FOUND, POLISHED = "L-BFGS", "polished"
SEARCHES = (FOUND, POLISHED)
VANISHING = {"semantic": "m", "positional": "theta"}  # overlap that vanishes on a branch
ALPHAS = (0.3, 0.5, 0.8, 1.0, 1.3, 1.5, 1.8, 2.0, 2.3, 2.5)  # on the grid of the theory curves
TRANSITION_ALPHAS, TRANSITION_SEEDS = (1.1, 1.2, 1.3, 1.4), 64
DIMS, SCALING_SEEDS, SCALING_ALPHA = {FOUND: (250, 500, 1000, 2000, 4000), POLISHED: (250, 500, 1000, 2000)}, 12, 2.0
PLANE_OMEGAS, PLANE_ALPHAS, PLANE_D, PLANE_SEEDS = (0.1, 0.2, 0.3, 0.4), (0.5, 1.0, 1.5, 2.0), 600, 16
RANDOM_METHODS, RANDOM_ALPHAS, RANDOM_D, RANDOM_SEEDS = ("adam", "gd"), (0.5, 1.0, 1.5, 2.0), 600, 32
GAMP_START, GAMP_ALPHA, GAMP_D, GAMP_SEEDS, GAMP_STEPS, GAMP_INERTIA = "semantic", 2.0, 2000, 16, 30, 0.6
JUDGED = (("semantic", 2.0), ("semantic", 1.5), ("semantic", 1.0), ("positional", 1.0), ("positional", 0.5))
JUDGE_SEEDS, JUDGE_STEPS, JUDGE_INERTIA = 8, 600, 0.8
SECONDS_POINTS, SECONDS_PAIRS = {FOUND: 60, POLISHED: 300}, {FOUND: 300, POLISHED: 1500}


class FiniteSizeRun(BaseCaseRun):
    """The run of `reproduce` that compares theory with simulations at finite d."""

    draws = (FINITE_SIZE,)
    page, data = "finite-size", "finite_size"

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        super().__init__(out, figures)
        self.results |= {"points": {}, "transition": {}, "scaling": {}, "random": [], "plane": [], "judged": []}

    def planned_tasks(self) -> Iterator[RunTask]:
        """Return the tasks: theory of branches and their transition at omega = 0.3, then every group of simulations."""
        yield from self.branch_tasks()
        yield from self.threshold_tasks((SHOWN_OMEGA,), alpha_c="transition")
        both = [(search, name) for search in SEARCHES for name in BRANCHES]
        for search, name in both:
            title, step = f"simulating from the {name} start, {search}", f"finite_points_{search}_{name}"
            yield RunTask(
                title, SECONDS_POINTS[search], step, self.simulate_branch, (search, name), ("points", search, name)
            )
        for search in SEARCHES:
            title, step = f"the transition from paired runs, {search}", f"finite_transition_{search}"
            yield RunTask(
                title,
                SECONDS_PAIRS[search],
                step,
                self.locate_transition_by_simulation,
                (search,),
                ("transition", search),
            )
        for search, name in both:
            title, step = f"scaling in d on the {name} branch, {search}", f"finite_scaling_{search}_{name}"
            yield RunTask(
                title, 120, step, self.simulate_scaling_with_dimension, (search, name), ("scaling", search, name)
            )
        for omega in PLANE_OMEGAS:
            title, step = f"both starts at omega = {omega:g}", f"finite_plane_{omega:g}"
            yield RunTask(title, 40, step, self.compare_losses_at_omega, (omega,), ("plane",))
        for method in RANDOM_METHODS:
            title, step = f"random starts with {method}", f"finite_random_{method}"
            yield RunTask(title, 90, step, self.simulate_random_starts, (method,), ("random",))
        yield RunTask("GAMP and state evolution", 30, "finite_gamp", self.run_gamp_and_state_evolution, into=("gamp",))
        for name, alpha in JUDGED:
            title, step = f"GAMP as a test of stability: {name}, alpha = {alpha:g}", f"finite_judge_{name}_{alpha:g}"
            yield RunTask(title, 40, step, self.measure_gamp_convergence, (name, alpha), ("judged",))
        yield from self.stability_tasks()

    def simulate_branch(self, search: str, name: str) -> list[dict[str, Any]]:
        """Simulate training from the start that leads to a branch, at several alpha; return the mean observables.

        Args:
            search: how minima are searched: FOUND (L-BFGS alone) or POLISHED (refined after it).
            name: name of the branch.
        """
        problems = [self.base.with_(alpha=alpha) for alpha in ALPHAS]
        return [
            mean_observables_of_runs(
                simulate_without_interruption(p, d=D, seeds=SEEDS, start=name, **simulation_options(search, name))
            )
            for p in problems
        ]

    def locate_transition_by_simulation(self, search: str) -> dict[str, Any]:
        """Locate, by training at finite d, the alpha at which minima reached from two starts have equal training loss.

        Runs are paired: both starts see the same data.
        """
        found = [
            _paired_loss_difference(self.base.with_(alpha=a), D, TRANSITION_SEEDS, search) for a in TRANSITION_ALPHAS
        ]
        value, error = fit_zero_of_loss_difference(found)
        rows = [
            {"alpha": one.alpha, "pairs": len(one.values), "mean": one.mean, "standard_error": one.standard_error}
            for one in found
        ]
        return {"value": value, "error": error, "differences": rows}

    def simulate_scaling_with_dimension(self, search: str, name: str) -> dict[str, Any]:
        """Simulate observables of a branch at several d, and extrapolate them to infinite d.

        Args:
            search: how minima are searched: FOUND (L-BFGS alone) or POLISHED (refined after it).
            name: name of the branch.
        """
        solution = solve(self.base.with_(alpha=SCALING_ALPHA), name)
        scaled = scaling(solution, dims=DIMS[search], seeds=SCALING_SEEDS, **simulation_options(search, name))
        every, stability = scaled.measurements(), solution.stability
        rows = {
            key: {
                "theory": limit.theory,
                "theory_error": limit.theory_error,
                **{name: value for name, value in asdict(fit).items() if name != "freedom"},
                "deviation": limit.deviation,
                "means": [one[key].mean for one in every],
                "errors": [one[key].standard_error for one in every],
            }
            for key, (limit, fit) in scaled.limits().items()
        }
        runs = [len(one.runs) for one in scaled.simulations]
        return {"dims": scaled.dims, "runs": runs, "verdict": stability.verdict if stability else "", "rows": rows}

    def compare_losses_at_omega(self, omega: float) -> list[dict[str, Any]]:
        """Return the training loss difference of two branches at one omega, by theory and by simulation at finite d."""
        base = self.base.with_(omega=omega)
        grid = np.arange(min(PLANE_ALPHAS), max(PLANE_ALPHAS) + 0.1, 0.25)  # close enough to follow
        curves = [curve(base, start=name, over="alpha", values=grid, refine_end=0) for name in BRANCHES]
        one, other = ({s.problem.alpha: s.training_loss for s in found.solutions} for found in curves)
        rows = []
        for alpha in PLANE_ALPHAS:
            difference = _paired_loss_difference(base.with_(alpha=alpha), PLANE_D, PLANE_SEEDS, FOUND)
            enough = len(difference.values) > 1
            rows.append(
                {
                    "omega": omega,
                    "alpha": alpha,
                    "theory": one[alpha] - other[alpha] if alpha in one and alpha in other else None,
                    "simulation": difference.mean if enough else None,
                    "error": difference.standard_error if enough else None,
                    "pairs": len(difference.values),
                }
            )
        return rows

    def simulate_random_starts(self, method: str) -> list[dict[str, Any]]:
        """Count how often an optimiser reaches each branch from random starts, at several alpha."""
        options: dict[str, Any] = {"d": RANDOM_D, "seeds": RANDOM_SEEDS, "method": method, "tolerance": 1e-5}
        found = [
            simulate_without_interruption(self.base.with_(alpha=alpha), start="random", **options)
            for alpha in RANDOM_ALPHAS
        ]
        return [
            {"method": method, "alpha": one.problem.alpha, "runs": len(one.converged), "of": RANDOM_SEEDS,
             "reached": one.branches}
            for one in found
        ]  # fmt: skip

    def run_gamp_and_state_evolution(self) -> dict[str, Any]:
        """Compute the overlaps after every iteration of message passing (GAMP) and of its theory, state evolution."""
        at = self.base.with_(alpha=GAMP_ALPHA)
        # All steps are shown.
        options: dict[str, Any] = {"most": GAMP_STEPS, "inertia": GAMP_INERTIA, "tolerance": 1e-14}
        found = simulate_without_interruption(
            at, d=GAMP_D, seeds=GAMP_SEEDS, start=GAMP_START, method="gamp", **options
        )
        rule = rule_by_name("prox-space", 96, 0)
        theory = state_evolution(at, overlaps_of_start(at, GAMP_START), rule, GAMP_STEPS, GAMP_INERTIA)
        estimate = MeanEstimate.from_values(np.array([np.abs(run.path) for run in found.runs if run.path is not None]))
        places = {"q": 0, "m": 2 * at.contexts, "theta": 3 * at.contexts}  # of the first token, s = t = 1
        simulation = {}
        for name, place in places.items():
            simulation[name] = estimate.mean[:, place]
            simulation[f"{name}_error"] = estimate.standard_error[:, place]
        return {
            "start": GAMP_START,
            "alpha": GAMP_ALPHA,
            "d": GAMP_D,
            "theory": {name: [float(o.pack()[place]) for o in theory] for name, place in places.items()},
            "simulation": simulation,
        }

    def measure_gamp_convergence(self, name: str, alpha: float) -> dict[str, Any]:
        """Measure how many GAMP runs converge to a branch, and how fast, to compare with the stability in theory.

        Args:
            name: name of the branch.
            alpha: number of samples per dimension, n/d.
        """
        at = self.base.with_(alpha=alpha)
        stability = solve(at, name, accuracy=1e-3).stability
        options: dict[str, Any] = {"method": "gamp", "most": JUDGE_STEPS, "inertia": JUDGE_INERTIA}
        found = simulate_without_interruption(at, d=D, seeds=JUDGE_SEEDS, start=name, **options)
        stayed = [run for run in found.runs if found.branch(run) == name]
        measured = [run.contraction for run in stayed if np.isfinite(run.contraction)]
        late = [run.late / float(np.trace(run.overlaps.q, axis1=1, axis2=2).max()) for run in stayed]
        return {
            "branch": name,
            "alpha": alpha,
            "verdict": stability.verdict if stability else "",
            "self_overlap_loss": stability.self_overlap_loss if stability else None,
            "replicon": stability.replicon if stability else None,
            "converged": sum(run.status == "converged" for run in stayed),
            "measured": float(np.nanmean(measured)) if measured else None,
            "stayed": len(stayed),
            "of": JUDGE_SEEDS,
            "late_over_q": float(np.mean(late)) if late else None,
        }

    def are_results_complete(self) -> bool:
        """Return whether every run along the branches converged."""
        every = [rows for found in self.results["points"].values() for rows in found.values()]
        return all(row["converged"] == row["of"] for rows in every for row in rows)


def simulation_options(search: str, branch: str) -> dict[str, Any]:
    """Return the options of `simulate` for a search of minima on a branch.

    Args:
        search: how minima are searched: FOUND (L-BFGS alone) or POLISHED (refined after it).
        branch: name of the branch.
    """
    polished = {} if search == FOUND else {"polish": "minima", "project": VANISHING[branch]}
    return {"controls": True, **polished}


def simulate_without_interruption(problem: Problem, **options: Any) -> Simulation:
    """Simulate, and raise an error if the simulation was interrupted before all runs were finished.

    Args:
        problem: learning problem to simulate.
        **options: options of `simulate`.
    """
    return simulate(problem, **options).require_not_interrupted()


def _paired_loss_difference(at: Problem, d: int, seeds: int, search: str) -> PairedLossDifference:
    """Train from two starts on the same random data, and return the differences of the training losses."""
    one, other = (
        simulate_without_interruption(at, d=d, seeds=seeds, start=name, **simulation_options(search, name))
        for name in BRANCHES
    )
    return paired_loss_difference(one, other, BRANCHES)


def mean_observables_of_runs(simulation: Simulation) -> dict[str, Any]:
    """Return means and standard errors of the observables, over the runs that stayed on the branch of their start."""
    kept = simulation.only(simulation.plan.start)
    row: dict[str, Any] = {
        "alpha": simulation.problem.alpha,
        "of": len(simulation.runs) + len(simulation.failures),
        "converged": len(simulation.converged),
        "on_branch": len(kept.runs),
        "branches": simulation.branches,
    }
    overlaps = {n: [abs(float(np.ravel(getattr(run.overlaps, n))[0])) for run in kept.runs] for n in OVERLAPS}
    estimates = {name: kept.average(values) for name, values in overlaps.items()}
    estimates |= {name: kept.estimate(name) for name in LOSSES}
    for name, estimate in estimates.items():
        row[name], row[f"{name}_error"] = float(estimate.mean), float(estimate.standard_error)
    for name in ("wrong_before", "wrong_after"):
        row[name] = float(kept.polish[name].mean) if kept.polish else None
    return row
