"""The measured tables of docs/numbers.md: error of an integral against time, and what a structure costs.

    python tests/benchmarks/tables.py integration
    python tests/benchmarks/tables.py cost
    python tests/benchmarks/tables.py finite-size [--threads N] [MODEL ...]

They print Markdown. Times are of this machine: read them as ratios.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import saddleforge as sf
from saddleforge.extensions.comparison.compare import scaling
from saddleforge.integration import GaussHermite, LatticeRule, ProxSpaceRule, Rule, Sobol, SplitLinesRule
from saddleforge.problems.overlaps import Overlaps
from saddleforge.saddle_point.iteration import run_damped_iteration
from saddleforge.saddle_point.starts import overlaps_of_start
from saddleforge.saddle_point.state_map import SaddlePointMap
from saddleforge.solving.solution import solutions_agree_within_errors

# (dimension, what, model, parameters, start)
CASES = (
    (2, "logistic regression", "logistic_regression", {"alpha": 2.0}, "semantic"),
    (4, "attention L = 2, no jumps", "dot_product_attention", {"alpha": 2.0}, "semantic"),
    (4, "attention L = 2, 0.4 % bistable", "dot_product_attention", {"alpha": 1.25}, "semantic"),
    (4, "attention L = 2, 1.2 % bistable", "dot_product_attention", {"alpha": 1.25}, "positional"),
    (4, "attention L = 2, 5 % bistable", "dot_product_attention", {"alpha": 0.35}, "positional"),
    (6, "attention L = 3", "dot_product_attention", {"alpha": 2.0, "tokens": 3}, "semantic"),
    (8, "value matrix, L = s = t = 2", "value_attention", {"alpha": 3.0}, "semantic"),
    (12, "attention L = 4, s = 2", "dot_product_attention", {"alpha": 2.0, "tokens": 4, "student_rank": 2}, "semantic"),
)
LADDERS: dict[str, tuple[Rule, ...]] = {
    "prox-space": tuple(
        ProxSpaceRule(*sizes) for sizes in ((32, 16), (48, 24), (64, 32), (88, 44), (120, 60), (160, 80))
    ),
    "lines": tuple(SplitLinesRule(n) for n in (16, 24, 32, 48, 64)),
    "gauss-hermite": tuple(GaussHermite(n) for n in (4, 6, 8, 12, 16, 24, 32, 48)),
    "lattice": tuple(LatticeRule(1.0 + digits / 2) for digits in range(20)),
    "sobol": tuple(Sobol(n, 4) for n in (6, 8, 10, 12, 14, 16, 18)),
}
LINE = tuple(ProxSpaceRule(*sizes) for sizes in ((48, 24), (96, 48), (144, 72), (216, 108)))
BUDGETS = (0.01, 0.1, 1.0, 10.0)  # seconds


def hats(rule: Rule, problem: sf.Problem, overlaps: Overlaps) -> np.ndarray:
    """The conjugates of every replicate in units of their blocks, (R, n); q^ gives the unit of m^ and theta^."""
    state_map, rows = SaddlePointMap(problem, rule), []
    for moments in rule.averages(problem, overlaps).moments:
        found = state_map.conjugates_at_overlaps(overlaps, moments)
        field = np.sqrt(np.abs(found.q).max())
        blocks = (found.q / field**2, found.V / np.abs(found.V).max(), found.m / field, found.theta / field)
        rows.append(np.concatenate([block.ravel() for block in blocks]))
    return np.stack(rows)


def integration(cases: Iterable[tuple] = CASES) -> None:
    """Smallest error of the conjugates that a rule reaches within a time for one evaluation."""
    print("| dimension | case | rule |" + "".join(f" {budget:g} s |" for budget in BUDGETS))
    print("|---" * (3 + len(BUDGETS)) + "|")
    for dimension, what, name, parameters, start in cases:
        problem = sf.problem(name, **parameters)
        point = run_damped_iteration(
            SaddlePointMap(problem, Sobol(10, 4)), overlaps_of_start(problem, start), 1e-3, max_iterations=200
        )
        overlaps = point.overlaps if point.status.success else overlaps_of_start(problem, start)
        flat = dimension <= 4
        exact_rule: Rule = ProxSpaceRule(224, 112) if flat else Sobol(15, 32)
        replicates = hats(exact_rule, problem, overlaps)
        exact = replicates.mean(axis=0)
        own = 0.0 if flat else float(np.max(2 * replicates.std(axis=0) / np.sqrt(len(replicates))))
        for family, ladder in LADDERS.items():
            if family in ("prox-space", "lines") and not flat:
                continue
            reached: list[tuple[float, float]] = []
            for rule in LINE if dimension == 2 and family == "prox-space" else ladder:
                if isinstance(rule, GaussHermite) and rule.points**dimension > 6e6:
                    continue
                rule.averages(problem, overlaps)
                begin = time.perf_counter()
                found = hats(rule, problem, overlaps).mean(axis=0)
                seconds = time.perf_counter() - begin
                reached.append((seconds, float(np.max(np.abs(found - exact)))))
                if seconds > max(BUDGETS):
                    break
            cells = []
            for budget in BUDGETS:
                errors = [error for seconds, error in reached if seconds <= budget]
                best = min(errors) if errors else np.inf
                cells.append("-" if not errors else f"{best:.0e}" if best > 2 * own else f"< {2 * own:.0e}")
            print(f"| {dimension} | {what} | {family} | {' | '.join(cells)} |", flush=True)


ONE = """
import sys, time
import saddleforge as sf
from saddleforge.saddle_point.state_map import SaddlePointMap
from saddleforge.integration import Sobol
from saddleforge.saddle_point.starts import overlaps_of_start
name, sizes = sys.argv[1], dict((k, int(v)) for k, v in (pair.split("=") for pair in sys.argv[2:]))
from saddleforge.derive.catalogue import catalogue_model
from saddleforge.derive.emit.writer import generate
model = catalogue_model(name)
begin = time.perf_counter()
generated = generate(model, model.structure(**sizes))
derived = time.perf_counter() - begin
problem = sf.problem(model, alpha=2.0, **sizes)
start = overlaps_of_start(problem, next(iter(problem.solver.model.STARTS)))
state_map, rule = SaddlePointMap(problem, Sobol(6, 1)), Sobol(10, 4)
begin = time.perf_counter(); state_map(start.pack(), start.sizes); compiled = time.perf_counter() - begin
state_map = SaddlePointMap(problem, rule); state_map(1.01 * start.pack(), start.sizes)
begin = time.perf_counter(); state_map(start.pack(), start.sizes); run = time.perf_counter() - begin
lines = sum(text.count("\\n") for text in generated.files.values())
labels = len(problem.label_probabilities)
print(f"{derived:.1f} | {compiled:.1f} | {1e6 * run / (labels * 4 * 4 * 2**10):.2f} | {lines}")
"""
COSTS = (
    *[("dot_product_attention", {"tokens": L, "student_rank": 1}) for L in (2, 3, 4, 5)],
    *[("dot_product_attention", {"tokens": 2, "student_rank": s}) for s in (2, 3, 4)],
    *[("untied_attention", {"tokens": L, "student_rank": 2}) for L in (2, 4)],
    *[("attention_on_mixture", {"tokens": 2, "clusters": K}) for K in (1, 2, 3)],
    *[("committee_machine", {"student_rank": s, "teacher_rank": s}) for s in (1, 4)],
)


def cost() -> None:
    """Seconds to derive and generate, to compile what one average needs, and microseconds a node and label choice."""
    print("| model | L | s | t | K | generate (s) | compile (s) | per node (us) | lines |\n" + "|---" * 9 + "|")
    for name, sizes in COSTS:
        with tempfile.TemporaryDirectory() as folder:
            found = subprocess.run(
                [sys.executable, "-c", ONE, name, *[f"{k}={v}" for k, v in sizes.items()]],
                env=os.environ | {"SADDLEFORGE_CACHE": folder, "NUMBA_CACHE_DIR": str(Path(folder) / "numba")},
                capture_output=True,
                text=True,
                check=True,
            )
        complete = {**{"tokens": 1, "student_rank": 1, "teacher_rank": 1, "clusters": 1}, **sizes}
        if name == "untied_attention":
            complete["teacher_rank"] = 1
        print(f"| {name} | {' | '.join(str(n) for n in complete.values())} | {found.stdout.strip()} |", flush=True)


class Case(NamedTuple):
    """Where every branch of a model is compared with simulations: `seeds` at the largest d, from `first` on."""

    model: str
    parameters: dict[str, Any]
    dims: tuple[int, ...] = (400, 800, 1600)
    seeds: int = 12
    first: int = 0


SMALL = (200, 400, 800)  # where a run takes minutes at d = 1600, or hundreds of them are needed
SMALLER = (100, 200, 400)
FINITE = (
    Case("dot_product_attention", {"alpha": 2.0}, seeds=100),
    Case("causal_attention", {"alpha": 2.0}, seeds=48, first=1000),
    Case("linear_attention", {"alpha": 2.0}),
    Case("tempered_attention", {"alpha": 2.0}, seeds=28),
    Case("hard_attention", {"alpha": 2.0}, SMALLER, 40),
    Case("untied_attention", {"alpha": 2.0}, SMALL, 32),
    Case("value_attention", {"alpha": 3.0}, SMALL, 50),
    Case("attention_on_mixture", {"alpha": 2.0}, seeds=16),
    Case("mixture_classification", {"alpha": 2.0}),
    Case("committee_machine", {"alpha": 4.0}, SMALL, 32),
    Case("committee_machine", {"alpha": 4.0, "lambda_": 0.1}, SMALL, 16),
    Case("ridge_regression", {"alpha": 2.0}),
    Case("lasso_regression", {"alpha": 1.5}),
    Case("elastic_net_regression", {"alpha": 1.5}),
    Case("logistic_regression", {"alpha": 2.0}, seeds=48, first=1000),
    Case("hinge", {"alpha": 2.0}, SMALL, 32),
    Case("squared_hinge", {"alpha": 2.0}, seeds=48, first=1000),
    Case("l1_regression", {"alpha": 2.0}, SMALL, 32),
    Case("quantile_regression", {"alpha": 2.0}, SMALL, 32),
    Case("huber_regression", {"alpha": 2.0}),
    Case("tukey_regression", {"alpha": 3.0}),
    Case("phase_retrieval", {"alpha": 4.0}, SMALL, 320),
    Case("amplitude_retrieval", {"alpha": 3.0}, SMALL, 32),
)


def finite_size(names: Sequence[str] = (), threads: int | None = None) -> None:
    """Every model and branch (or those named): simulations extrapolated to d -> infinity compared with theory.

    Starts that lead to a solution already seen, and saddles, which minimisation leaves, are not simulated.
    """
    print("| model | start, branch | d | runs on it | standard error | largest deviation from theory | verdict |")
    print("|---|---|---|---|---|---|---|")
    for case in FINITE:
        if names and case.model not in names:
            continue
        base, known = sf.problem(case.model, **case.parameters), []
        for start in base.solver.model.STARTS:
            solution = sf.solve(base, start, accuracy=2e-3)
            row = [", ".join([case.model, *(f"{key} = {value}" for key, value in case.parameters.items())]), start]
            if solution.losses is None:
                row += ["-", "-", "-", "-", f"theory: {solution.status.value}"]
            elif twin := next((other for other in known if solutions_agree_within_errors(solution, other)), None):
                row += ["-", "-", "-", "-", f"the solution from {twin.start}"]
            else:
                known.append(solution)
                row[1] += f", {solution.branch}"
                row += measured(solution, case, threads)
            print(f"| {' | '.join(row)} |", flush=True)


def measured(solution: sf.Solution, case: Case, threads: int | None) -> list[str]:
    """Dimensions, runs on the branch, largest standard error and deviation, and what the theory says of itself."""
    stability = solution.stability
    verdict = stability.verdict if stability else ""
    if stability and not stability.longitudinally_stable:
        return ["-", "-", "-", "-", verdict]
    found = scaling(solution, dims=case.dims, seeds=case.seeds, first=case.first, threads=threads)
    counts = [round(case.seeds * max(case.dims) / d) for d in case.dims]
    runs = "; ".join(f"{len(one.runs)} of {count}" for one, count in zip(found.simulations, counts, strict=True))
    cells = [", ".join(map(str, case.dims)), runs]
    limits = {key: limit for key, (limit, _) in found.limits().items() if abs(limit.theory) > 10 * limit.theory_error}
    if min(len(one.runs) for one in found.simulations) < 4 or not limits:
        return [*cells, "-", "too few runs stay", verdict]
    print(found.table(), file=sys.stderr)
    last = found.measurements()[-1]
    share = max(last[key].standard_error / abs(last[key].mean) for key in limits)
    worst = max(limits, key=lambda key: abs(limits[key].deviation))
    item = limits[worst]
    deviation = f"{item.deviation:+.1f} ({100 * (item.mean / item.theory - 1):+.2f} %) in {worst.replace('_', ' ')}"
    return [*cells, f"{100 * share:.2f} %", deviation, verdict]


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("table", choices=("integration", "cost", "finite-size"))
    arguments.add_argument("models", nargs="*", help="of finite-size: these only")
    arguments.add_argument("--threads", type=int, help="of finite-size: seeds side by side")
    asked = arguments.parse_intermixed_args()
    if asked.table == "finite-size":
        finite_size(asked.models, asked.threads)
    else:
        {"integration": integration, "cost": cost}[asked.table]()
