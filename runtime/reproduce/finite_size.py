"""`reproduce --figure finite-size`: the phase transition of dot-product attention at finite d beside theory.

Simulations at omega = 0.3 along both branches (arXiv 2402.03902, Fig. 2): what L-BFGS finds, and what is there, that is
polished minima with the overlap at zero that vanishes on the branch. The transition from paired runs of either kind,
scaling in d (E.1), the difference of training losses over the plane (Fig. 3), random starts (E.4), and GAMP on state
evolution.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..branches.branch import curve
from ..comparison.compare import LOSSES, scaling
from ..errors import TimeLimitError
from ..integration import rule_named
from ..problems.problem import Problem
from ..saddle_point.starts import start_overlaps
from ..simulation.estimate import Estimate
from ..simulation.finite_transition import PairedDifference, paired, root_of
from ..simulation.gamp import state_evolution
from ..simulation.simulation import Simulation, simulate
from ..solving.solve import solve
from .base_case import SECONDS, BaseCaseRun
from .run import BRANCHES, SHOWN_OMEGA, Plan

FINITE_SIZE = "finite-size"
OVERLAPS = ("m", "theta", "q")  # measured, first token
D, SEEDS = 1000, 16
FOUND, POLISHED = "L-BFGS", "polished"
SEARCHES = (FOUND, POLISHED)
VANISHING = {"semantic": "m", "positional": "theta"}  # on these branches
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
    """Theory and simulations, every group of simulations a step of its own."""

    draws = (FINITE_SIZE,)
    page, data = "finite-size", "finite_size"
    writing = "tables, figure and the report"

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        super().__init__(out, figures)
        self.results |= {"points": {}, "transition": {}, "scaling": {}, "random": [], "plane": [], "judged": []}

    def plan(self) -> Plan:
        """Branches and transition at omega = 0.3, then one step a group of simulations."""
        plan = self.curves_plan()
        located = partial(self.threshold, "alpha_c", SHOWN_OMEGA)
        plan.append(("locating the transition at omega = 0.3", SECONDS["alpha_c"], located))
        for search in SEARCHES:
            plan += [
                (
                    f"simulating from the {name} start, {search}",
                    SECONDS_POINTS[search],
                    partial(self._points, search, name),
                )
                for name in BRANCHES
            ]
        for search in SEARCHES:
            plan.append(
                (f"the transition from paired runs, {search}", SECONDS_PAIRS[search], partial(self._transition, search))
            )
        for search in SEARCHES:
            plan += [
                (f"scaling in d on the {name} branch, {search}", 120, partial(self._scaling, search, name))
                for name in BRANCHES
            ]
        plan += [(f"both starts at omega = {omega:g}", 40, partial(self._plane, omega)) for omega in PLANE_OMEGAS]
        plan += [(f"random starts with {method}", 90, partial(self._random, method)) for method in RANDOM_METHODS]
        plan.append(("GAMP beside state evolution", 30, self._gamp))
        plan += [
            (f"GAMP as the judge: {name}, alpha = {alpha:g}", 40, partial(self._judge, name, alpha))
            for name, alpha in JUDGED
        ]
        return [*plan, *self.judged_plan()]

    def _points(self, search: str, name: str) -> None:
        def work() -> dict[str, Any]:
            problems = [self.base.with_(alpha=alpha) for alpha in ALPHAS]
            found = [simulate(p, d=D, seeds=SEEDS, start=name, **options_of(search, name)) for p in problems]
            return {"rows": [row_of(finished(one)) for one in found]}

        settings = {"d": D, "seeds": SEEDS, "alphas": ALPHAS, "search": search}
        rows = self.step(f"finite_points_{search}_{name}", settings, work)["rows"]
        self.results["points"].setdefault(search, {})[name] = rows

    def _transition(self, search: str) -> None:
        def work() -> dict[str, Any]:
            found = []
            for alpha in TRANSITION_ALPHAS:
                found.append(paired(*self._pair(self.base.with_(alpha=alpha), D, TRANSITION_SEEDS, search), BRANCHES))
            value, error = root_of(found)
            return {"value": value, "error": error, "differences": [difference_json(d) for d in found]}

        settings = {"d": D, "seeds": TRANSITION_SEEDS, "alphas": TRANSITION_ALPHAS, "search": search}
        self.results["transition"][search] = self.step(f"finite_transition_{search}", settings, work)

    def _pair(self, at: Problem, d: int, seeds: int, search: str) -> tuple[Simulation, Simulation]:
        one, other = (
            finished(simulate(at, d=d, seeds=seeds, start=name, **options_of(search, name))) for name in BRANCHES
        )
        return one, other

    def _scaling(self, search: str, name: str) -> None:
        def work() -> dict[str, Any]:
            solution = solve(self.base.with_(alpha=SCALING_ALPHA), name)
            scaled = scaling(solution, dims=DIMS[search], seeds=SCALING_SEEDS, **options_of(search, name))
            every = scaled.measurements()
            stability = solution.stability
            return {
                "dims": scaled.dims,
                "runs": [len(one.runs) for one in scaled.simulations],
                "verdict": stability.verdict if stability else "",
                "rows": {
                    key: {
                        "theory": limit.theory,
                        "half_width": limit.half_width,
                        "value": fit.value,
                        "error": fit.error,
                        "slope": fit.slope,
                        "power": fit.power,
                        "chi2": fit.chi2,
                        "deviation": limit.deviation,
                        "means": [one[key].mean for one in every],
                        "errors": [one[key].standard_error for one in every],
                    }
                    for key, (limit, fit) in scaled.limits().items()
                },
            }

        settings = {"dims": DIMS[search], "seeds": SCALING_SEEDS, "alpha": SCALING_ALPHA, "search": search}
        found = self.step(f"finite_scaling_{search}_{name}", settings, work)
        self.results["scaling"].setdefault(search, {})[name] = found

    def _plane(self, omega: float) -> None:
        def work() -> dict[str, Any]:
            rows = []
            base = self.base.with_(omega=omega)
            grid = np.arange(min(PLANE_ALPHAS), max(PLANE_ALPHAS) + 0.1, 0.25)  # close enough to follow
            curves = [curve(base, start=name, over="alpha", values=grid, refine_end=0) for name in BRANCHES]
            losses = [{s.problem.alpha: s.training_loss for s in found.solutions} for found in curves]
            for alpha in PLANE_ALPHAS:
                at = base.with_(alpha=alpha)
                there = all(alpha in found for found in losses)
                difference = paired(*self._pair(at, PLANE_D, PLANE_SEEDS, FOUND), BRANCHES)
                enough = len(difference.values) > 1
                rows.append(
                    {
                        "omega": omega,
                        "alpha": alpha,
                        "theory": losses[0][alpha] - losses[1][alpha] if there else None,
                        "simulation": difference.mean if enough else None,
                        "error": difference.standard_error if enough else None,
                        "pairs": len(difference.values),
                    }
                )
            return {"rows": rows}

        settings = {"d": PLANE_D, "seeds": PLANE_SEEDS, "alphas": PLANE_ALPHAS}
        self.results["plane"] += self.step(f"finite_plane_{omega:g}", settings, work)["rows"]

    def _random(self, method: str) -> None:
        def work() -> dict[str, Any]:
            rows = []
            for alpha in RANDOM_ALPHAS:
                at = self.base.with_(alpha=alpha)
                simulation = finished(
                    simulate(at, d=RANDOM_D, seeds=RANDOM_SEEDS, start="random", method=method, tolerance=1e-5)
                )
                rows.append(
                    {
                        "method": method,
                        "alpha": alpha,
                        "runs": len(simulation.converged),
                        "of": RANDOM_SEEDS,
                        "reached": simulation.branches,
                    }
                )
            return {"rows": rows}

        settings = {"d": RANDOM_D, "seeds": RANDOM_SEEDS, "alphas": RANDOM_ALPHAS}
        self.results["random"] += self.step(f"finite_random_{method}", settings, work)["rows"]

    def _gamp(self) -> None:
        def work() -> dict[str, Any]:
            at = self.base.with_(alpha=GAMP_ALPHA)
            simulated = finished(
                simulate(
                    at,
                    d=GAMP_D,
                    seeds=GAMP_SEEDS,
                    start=GAMP_START,
                    method="gamp",
                    most=GAMP_STEPS,
                    inertia=GAMP_INERTIA,
                    tolerance=1e-14,  # all steps are shown
                )
            )
            rule = rule_named("prox-space", 96, 0)
            theory = state_evolution(at, start_overlaps(at, GAMP_START), rule, GAMP_STEPS, GAMP_INERTIA)
            paths = np.array([np.abs(run.path) for run in simulated.runs if run.path is not None])
            estimate = Estimate.of(paths)
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

        settings = {"d": GAMP_D, "seeds": GAMP_SEEDS, "steps": GAMP_STEPS, "inertia": GAMP_INERTIA}
        self.results["gamp"] = self.step("finite_gamp", settings, work)

    def _judge(self, name: str, alpha: float) -> None:
        def work() -> dict[str, Any]:
            at = self.base.with_(alpha=alpha)
            stability = solve(at, name, accuracy=1e-3).stability
            found = finished(
                simulate(at, d=D, seeds=JUDGE_SEEDS, start=name, method="gamp", most=JUDGE_STEPS, inertia=JUDGE_INERTIA)
            )
            stayed = [run for run in found.runs if found.branch(run) == name]
            measured = [run.contraction for run in stayed if np.isfinite(run.contraction)]
            q = [float(np.trace(run.overlaps.q, axis1=1, axis2=2).max()) for run in stayed]
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
                "late_over_q": float(np.mean([r.late / x for r, x in zip(stayed, q, strict=True)])) if stayed else None,
            }

        settings = {"d": D, "seeds": JUDGE_SEEDS, "steps": JUDGE_STEPS, "inertia": JUDGE_INERTIA}
        self.results["judged"].append(self.step(f"finite_judge_{name}_{alpha:g}", settings, work))

    def is_complete(self) -> bool:
        """Whether every run along the branches converged."""
        return all(
            row["converged"] == row["of"]
            for found in self.results["points"].values()
            for rows in found.values()
            for row in rows
        )


def options_of(search: str, branch: str) -> dict[str, Any]:
    """What `simulate` is told beside the start."""
    if search == FOUND:
        return {"controls": True}
    return {"controls": True, "polish": "wells", "project": VANISHING[branch]}


def finished(simulation: Simulation) -> Simulation:
    """The simulation, unless it was interrupted.

    Raises:
        KeyboardInterrupt: it was.
    """
    if simulation.interrupted:
        raise KeyboardInterrupt
    if simulation.out_of_time:
        raise TimeLimitError("the time limit ended the simulations")
    return simulation


def row_of(simulation: Simulation) -> dict[str, Any]:
    """Means and standard errors of the runs on the start's own branch, first token, absolute values."""
    plan = simulation.plan
    kept = simulation.only(plan.start)
    row: dict[str, Any] = {
        "alpha": simulation.problem.alpha,
        "of": len(simulation.runs) + len(simulation.failures),
        "converged": len(simulation.converged),
        "on_branch": len(kept.runs),
        "branches": simulation.branches,
    }
    for name in OVERLAPS:
        estimate = kept.average([abs(float(np.ravel(getattr(run.overlaps, name))[0])) for run in kept.runs])
        row[name], row[f"{name}_error"] = float(estimate.mean), float(estimate.standard_error)
    for name in LOSSES:
        estimate = kept.estimate(name)
        row[name], row[f"{name}_error"] = float(estimate.mean), float(estimate.standard_error)
    for name in ("wrong_before", "wrong_after"):
        row[name] = float(kept.polish[name].mean) if kept.polish else None
    return row


def difference_json(difference: PairedDifference) -> dict[str, Any]:
    """A paired difference of training losses at one alpha, for results.json."""
    return {
        "alpha": difference.alpha,
        "pairs": len(difference.values),
        "mean": difference.mean,
        "standard_error": difference.standard_error,
    }
