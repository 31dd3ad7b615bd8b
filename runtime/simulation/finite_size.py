"""`reproduce --figure finite-size`: the phase transition of dot-product attention at finite d beside theory.

Simulations at omega = 0.3 along both branches (arXiv 2402.03902, Fig. 2), the transition from paired runs, scaling in d
(E.1), the difference of training losses over the plane (Fig. 3), random starts (E.4), and GAMP on state evolution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from .. import report
from ..branches import curve
from ..errors import TimeLimitError
from ..files import write_whole
from ..integration import rule_named
from ..numbers import with_error
from ..plots import OVERLAP_STYLES
from ..problem import Problem
from ..reproduce import BRANCHES, BUDGET, FINITE_SIZE, SHOWN_OMEGA, Plan, Run
from ..shown.contract import dumps
from ..solution import solve, start_overlaps
from .comparison import LOSSES, Extrapolation, Measured, scaling
from .figures import plot_finite_size
from .gamp import state_evolution
from .simulation import Estimate, Simulation, simulate
from .transition import PairedDifference, paired, root_of

D, SEEDS = 1000, 16
ALPHAS = (0.3, 0.5, 0.8, 1.0, 1.3, 1.5, 1.8, 2.0, 2.3, 2.5)  # on the grid of the theory curves
TRANSITION_ALPHAS, TRANSITION_SEEDS = (1.1, 1.2, 1.3, 1.4), 200
DIMS, SCALING_SEEDS, SCALING_ALPHA = (250, 500, 1000, 2000, 4000), 12, 2.0
PLANE_OMEGAS, PLANE_ALPHAS, PLANE_D, PLANE_SEEDS = (0.1, 0.2, 0.3, 0.4), (0.5, 1.0, 1.5, 2.0), 600, 16
RANDOM_METHODS, RANDOM_ALPHAS, RANDOM_D, RANDOM_SEEDS = ("adam", "gd"), (0.5, 1.0, 1.5, 2.0), 600, 32
GAMP_START, GAMP_ALPHA, GAMP_D, GAMP_SEEDS, GAMP_STEPS, GAMP_INERTIA = "semantic", 2.0, 2000, 16, 30, 0.6
JUDGED = (("semantic", 2.0), ("semantic", 1.5), ("semantic", 1.0), ("positional", 1.0), ("positional", 0.5))
JUDGE_SEEDS, JUDGE_STEPS, JUDGE_INERTIA = 8, 600, 0.8
CLEAR = 3.0  # standard errors


class FiniteSizeRun(Run):
    """Theory, simulations, figure and report, every group of simulations a step of its own."""

    page = "finite-size.html"

    def __init__(self, out: Path) -> None:
        super().__init__(out, (FINITE_SIZE,))
        self.results |= {"points": {}, "random": [], "plane": [], "judged": []}

    def _plan(self) -> Plan:
        plan: Plan = [
            (f"following the {name} branch at omega = {SHOWN_OMEGA:g}", BUDGET["curve"], partial(self._curve, name))
            for name in BRANCHES
        ]
        plan.append(("locating the transition at omega = 0.3", BUDGET["alpha_c"], self._theory_transition))
        plan += [(f"simulating from the {name} start", 40, partial(self._points, name)) for name in BRANCHES]
        plan.append(("the transition from paired runs", 300, self._transition))
        plan += [(f"scaling in d on the {name} branch", 90, partial(self._scaling, name)) for name in BRANCHES]
        plan += [(f"both starts at omega = {omega:g}", 40, partial(self._plane, omega)) for omega in PLANE_OMEGAS]
        plan += [(f"random starts with {method}", 90, partial(self._random, method)) for method in RANDOM_METHODS]
        plan.append(("GAMP beside state evolution", 30, self._gamp))
        plan += [
            (f"GAMP as the judge: {name}, alpha = {alpha:g}", 40, partial(self._judge, name, alpha))
            for name, alpha in JUDGED
        ]
        plan.append(("writing tables, figure and the report", BUDGET["report"], self._write))
        return plan

    def _step(self, name: str, work: Any, **settings: Any) -> dict[str, Any]:
        return self.steps.run(name, settings, work)

    def _theory_transition(self) -> None:
        self._threshold("alpha_c", SHOWN_OMEGA)

    def _points(self, name: str) -> None:
        def work() -> dict[str, Any]:
            problems = [self.base.with_(alpha=alpha) for alpha in ALPHAS]
            return {"rows": [row_of(finished(simulate(p, d=D, seeds=SEEDS, start=name))) for p in problems]}

        settings = {"d": D, "seeds": SEEDS, "alphas": ALPHAS}
        self.results["points"][name] = self._step(f"finite_points_{name}", work, **settings)["rows"]

    def _transition(self) -> None:
        def work() -> dict[str, Any]:
            found = []
            for alpha in TRANSITION_ALPHAS:
                found.append(paired(*self._pair(self.base.with_(alpha=alpha), D, TRANSITION_SEEDS), BRANCHES))
            value, error = root_of(found)
            return {"value": value, "error": error, "differences": [difference_json(d) for d in found]}

        settings = {"d": D, "seeds": TRANSITION_SEEDS, "alphas": TRANSITION_ALPHAS}
        self.results["transition"] = self._step("finite_transition", work, **settings)

    def _pair(self, at: Problem, d: int, seeds: int) -> tuple[Simulation, Simulation]:
        one, other = (finished(simulate(at, d=d, seeds=seeds, start=name)) for name in BRANCHES)
        return one, other

    def _scaling(self, name: str) -> None:
        def work() -> dict[str, Any]:
            solution = solve(self.base.with_(alpha=SCALING_ALPHA), name)
            found = scaling(solution, dims=DIMS, seeds=SCALING_SEEDS)
            every = found.measurements()
            stability = solution.stability
            return {
                "dims": found.dims,
                "runs": [len(one.runs) for one in found.simulations],
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
                    for key, (limit, fit) in found.limits().items()
                },
            }

        settings = {"dims": DIMS, "seeds": SCALING_SEEDS, "alpha": SCALING_ALPHA}
        self.results.setdefault("scaling", {})[name] = self._step(f"finite_scaling_{name}", work, **settings)

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
                difference = paired(*self._pair(at, PLANE_D, PLANE_SEEDS), BRANCHES)
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
        self.results["plane"] += self._step(f"finite_plane_{omega:g}", work, **settings)["rows"]

    def _random(self, method: str) -> None:
        def work() -> dict[str, Any]:
            rows = []
            for alpha in RANDOM_ALPHAS:
                at = self.base.with_(alpha=alpha)
                found = finished(
                    simulate(at, d=RANDOM_D, seeds=RANDOM_SEEDS, start="random", method=method, tolerance=1e-5)
                )
                rows.append(
                    {
                        "method": method,
                        "alpha": alpha,
                        "runs": len(found.converged),
                        "of": RANDOM_SEEDS,
                        "reached": found.branches,
                    }
                )
            return {"rows": rows}

        settings = {"d": RANDOM_D, "seeds": RANDOM_SEEDS, "alphas": RANDOM_ALPHAS}
        self.results["random"] += self._step(f"finite_random_{method}", work, **settings)["rows"]

    def _gamp(self) -> None:
        def work() -> dict[str, Any]:
            at = self.base.with_(alpha=GAMP_ALPHA)
            found = finished(
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
            paths = np.array([np.abs(run.path) for run in found.runs if run.path is not None])
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
        self.results["gamp"] = self._step("finite_gamp", work, **settings)

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
        self.results["judged"].append(self._step(f"finite_judge_{name}_{alpha:g}", work, **settings))

    def _complete(self) -> bool:
        return all(row["converged"] == row["of"] for rows in self.results["points"].values() for row in rows)

    # What is written

    def _write(self) -> None:
        theory = {name: self._theory(name) for name in BRANCHES}
        rows = comparison_rows(self.results["points"], theory)
        frame = pandas.DataFrame(rows)
        write_whole(self.out / "tables" / "finite_size.csv", frame.to_csv(index=False, lineterminator="\n"))
        path = self.out / "figures" / f"{FINITE_SIZE}.png"
        plot_finite_size(self._content(theory), path)
        blocks = content(self.results, rows)
        write_whole(self.out / "finite-size.md", report.markdown_of(blocks))
        write_whole(self.out / self.page, report.html_of(blocks, {FINITE_SIZE: path.read_bytes()}))
        write_whole(self.out / "finite_size.json", dumps(self.results) + "\n")

    def _theory(self, name: str) -> dict[str, Any]:
        """The theory curve of a branch, first token, absolute values."""
        dataset = self.dataset(name)
        found: dict[str, Any] = {"alpha": dataset["alpha"].values}
        for key in OVERLAP_STYLES:
            flat = np.abs(dataset[key].values.reshape(len(found["alpha"]), -1)[:, 0])
            found[key], found[f"{key}_error"] = flat, dataset[f"{key}_error"].values.reshape(len(flat), -1)[:, 0]
        for key in LOSSES:
            found[key], found[f"{key}_error"] = dataset[key].values, dataset[f"{key}_error"].values
        found["verdict"] = dataset["verdict"].values
        return found

    def _content(self, theory: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        results = self.results
        points: dict[str, Any] = {}
        for name, rows in results["points"].items():
            here = [row for row in rows if row["on_branch"] > 1]
            points[name] = {"alpha": [row["alpha"] for row in here]}
            for key in (*OVERLAP_STYLES, *LOSSES):
                points[name][key] = [row[key] for row in here]
                points[name][f"{key}_error"] = [row[f"{key}_error"] for row in here]
        found = results["scaling"]["semantic"]
        rows_scaled = {}
        for key, row in found["rows"].items():
            if abs(row["theory"]) < 1e-6 or key.endswith("_2"):
                continue
            limit = Measured(row["theory"], row["half_width"], row["value"], row["error"])
            fit = Extrapolation(row["value"], row["error"], row["slope"], row["power"], row["chi2"], 0)
            every = [
                {key: Measured(row["theory"], row["half_width"], mean, error)}
                for mean, error in zip(row["means"], row["errors"], strict=True)
            ]
            rows_scaled[key] = ((limit, fit), every)
        known = results["thresholds"]["alpha_c"][f"{SHOWN_OMEGA:g}"]
        return {
            "d": D,
            "seeds": SEEDS,
            "theory": theory,
            "points": points,
            "transition": {**results["transition"], "theory": float(known["value"])},
            "scaling": {
                "dims": found["dims"],
                "rows": rows_scaled,
                "title": f"semantic branch, alpha = {SCALING_ALPHA:g}: scaling in d",
            },
            "plane": results["plane"],
            "random": results["random"],
            "gamp": results["gamp"],
        }


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
    for name in OVERLAP_STYLES:
        estimate = Estimate.of([abs(float(np.ravel(getattr(run.overlaps, name))[0])) for run in kept.runs])
        row[name], row[f"{name}_error"] = float(estimate.mean), float(estimate.standard_error)
    for name in LOSSES:
        estimate = kept.estimate(name)
        row[name], row[f"{name}_error"] = float(estimate.mean), float(estimate.standard_error)
    return row


def difference_json(difference: PairedDifference) -> dict[str, Any]:
    return {
        "alpha": difference.alpha,
        "pairs": len(difference.values),
        "mean": difference.mean,
        "standard_error": difference.standard_error,
    }


def comparison_rows(
    points: Mapping[str, Sequence[Mapping[str, Any]]], theory: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A row a branch and alpha: theory where it has the branch, simulation, deviation in combined standard errors.

    Overlaps that vanish in theory are left out: |m| of a simulation cannot.
    """
    rows = []
    for name, found in points.items():
        branch = theory[name]
        for row in found:
            at = np.flatnonzero(np.abs(np.asarray(branch["alpha"]) - row["alpha"]) < 1e-9)
            for key in (*OVERLAP_STYLES, *LOSSES):
                value = float(branch[key][at[0]]) if len(at) else np.nan
                if key in OVERLAP_STYLES and len(at) and value < 1e-6:
                    continue
                width = float(branch[f"{key}_error"][at[0]]) if len(at) else np.nan
                error = float(np.hypot(row[f"{key}_error"], width / 2))
                rows.append(
                    {
                        "branch": name,
                        "alpha": row["alpha"],
                        "observable": key,
                        "runs": row["on_branch"],
                        "of": row["of"],
                        "theory": value,
                        "half_width": width,
                        "simulation": row[key],
                        "standard_error": row[f"{key}_error"],
                        "deviation": (row[key] - value) / error if len(at) else np.nan,
                        "verdict": str(branch["verdict"][at[0]]) if len(at) else "no such solution in theory",
                    }
                )
    return rows


def content(results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[report.Block]:
    """The report: what was found, the figure, and tables."""
    known = results["thresholds"]["alpha_c"][f"{SHOWN_OMEGA:g}"]
    transition = results["transition"]
    stable = [r for r in rows if r["verdict"].startswith("RS stable") and np.isfinite(r["deviation"])]
    far = [r for r in stable if abs(r["deviation"]) > CLEAR]
    blocks: list[report.Block] = [
        report.Heading("Theory meets finite size", 1),
        report.Paragraph(
            f"{results['model']}, saddleforge {results['version']}, omega = {SHOWN_OMEGA:g}, d = {D}. Simulations "
            "minimise the risk by L-BFGS on data drawn from the law of the tokens; the overlaps of teacher and "
            "encodings are those of the law exactly, and test errors are exactly those of the overlaps found. In "
            "parentheses: half widths for theory, one standard error over seeds for simulations."
        ),
        report.Paragraph(
            f"Equal training loss of the two minima, seed by seed on the same data: alpha_c = "
            f"{with_error(transition['value'], transition['error'])} at d = {D}; replica theory "
            f"{with_error(float(known['value']), float(known['error']))}. Where theory calls the solution stable, "
            f"{len(stable) - len(far)} of {len(stable)} observables lie within {CLEAR:g} standard errors at this d."
        ),
        report.Picture(
            FINITE_SIZE,
            "Lines are theory, points simulations with one standard error. Below alpha = 0.72 theory has no semantic "
            "solution, while minimisation still finds semantic minima: metastable states that replica symmetry does "
            "not describe.",
        ),
        report.Heading("Both branches", 2),
        report.Table(
            ("branch", "alpha", "runs", "observable", "theory", "simulation", "deviation", "verdict of theory"),
            [
                (
                    row["branch"],
                    f"{row['alpha']:g}",
                    f"{row['runs']} of {row['of']}",
                    row["observable"].replace("_", " "),
                    with_error(row["theory"], row["half_width"]),
                    with_error(row["simulation"], row["standard_error"]),
                    f"{row['deviation']:+.1f}" if np.isfinite(row["deviation"]) else "-",
                    row["verdict"],
                )
                for row in rows
            ],
        ),
    ]
    for name, found in results["scaling"].items():
        blocks += [
            report.Heading(f"d to infinity, {name} branch, alpha = {SCALING_ALPHA:g}", 2),
            report.Paragraph(f"Verdict of theory: {found['verdict']}."),
            report.Table(
                ("observable", "theory", *[f"d = {d}" for d in found["dims"]], "d to infinity", "deviation"),
                [
                    (
                        key.replace("_", " ") if key in LOSSES else key,
                        with_error(row["theory"], row["half_width"]),
                        *[with_error(m, e) for m, e in zip(row["means"], row["errors"], strict=True)],
                        with_error(row["value"], row["error"]) + (" 1/d" if row["power"] == 1 else " 1/sqrt(d)"),
                        f"{row['deviation']:+.1f}",
                    )
                    for key, row in found["rows"].items()
                ],
            ),
        ]
    blocks += [
        report.Heading("Random starts", 2),
        report.Table(
            ("method", "alpha", "converged", "minima reached"),
            [
                (
                    row["method"],
                    f"{row['alpha']:g}",
                    f"{row['runs']} of {row['of']}",
                    ", ".join(f"{count} {name}" for name, count in row["reached"].items()),
                )
                for row in results["random"]
            ],
        ),
        report.Heading("GAMP as the judge of stability", 2),
        report.Paragraph(
            f"Point-wise convergence (squared relative step below 1e-12 within {JUDGE_STEPS} iterations) is expected "
            "where the proximal map does not jump and the replicon is below 1; where it jumps, iterates are expected "
            "to stay apart by 2 D*, twice the self-overlap loss times q. Measured: the factor by which the squared "
            "distance of two estimates with the same overlaps shrinks, which theory calls the replicon."
        ),
        report.Table(
            (
                "branch",
                "alpha",
                "verdict",
                "stayed",
                "converged",
                "replicon",
                "measured",
                "late distance / q",
                "2 D*/q",
            ),
            [
                (
                    row["branch"],
                    f"{row['alpha']:g}",
                    row["verdict"],
                    f"{row['stayed']} of {row['of']}",
                    f"{row['converged']}",
                    "-" if row["replicon"] is None else f"{row['replicon']:.3f}",
                    "-" if row["measured"] is None else f"{row['measured']:.3f}",
                    "-" if row["late_over_q"] is None else f"{row['late_over_q']:.2g}",
                    "-" if row["self_overlap_loss"] is None else f"{2 * row['self_overlap_loss']:.2g}",
                )
                for row in results["judged"]
            ],
        ),
    ]
    return blocks


__all__ = ["FiniteSizeRun", "comparison_rows", "content", "finished", "row_of"]
