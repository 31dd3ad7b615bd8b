"""A simulation: many seeds of one plan, their means and standard errors."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base import presenting
from ...base.errors import InputError, TimeLimitError, require_known_name, require_whole_number
from ...base.interrupts import defer_interrupts, keep_partial_results
from ...base.presenting import DatasetResult, PresentableResult
from ...base.progress import print_message, progress_bar
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem, require_problem
from ...saddle_point.starts import convert_start_argument, default_start
from .estimate import MeanEstimate
from .instance import Instance
from .method import PolishRecord
from .methods import METHODS
from .orientation import classify_state, nearest_mirror_image
from .plan import SimulationPlan
from .run import SeedRun, validate_simulation_plan
from .workers import SeedFailure, iterate_seed_results

if TYPE_CHECKING:
    import xarray

SCALARS = ("training_loss", "data", "penalty", "test_error", "gradient", "iterations", "late", "contraction")
_CONTROLLED = SCALARS[:4]  # what depends on the data drawn
POLISH = tuple(known.name for known in fields(PolishRecord))


@dataclass(frozen=True, repr=False)
class Simulation(PresentableResult, DatasetResult):
    """A simulation: the runs of one plan, one per seed, and their averages.

    Attributes:
        runs: runs in ascending order of their seeds, converged or not.
        failures: seeds without a result, and the reasons.
        interrupted: whether seeds are missing because the simulation was interrupted.
        out_of_time: whether seeds are missing because a time limit ended the simulation.

    Example:
        >>> runs = sf.simulate(sf.problem("ridge_regression", alpha=2), d=100, seeds=4, threads=1)
        >>> measured = runs.estimate("test_error")
        >>> bool(abs(measured.mean - 0.4427) < 5 * measured.standard_error), runs.status
        (True, 'converged')
    """

    plan: SimulationPlan
    runs: tuple[SeedRun, ...]
    failures: tuple[SeedFailure, ...] = ()
    interrupted: bool = False
    out_of_time: bool = False

    @property
    def problem(self) -> Problem:
        """The problem that is simulated; its alpha determines the number of samples, alpha d."""
        return self.plan.problem

    @property
    def converged(self) -> tuple[SeedRun, ...]:
        """The runs that converged; averages are taken over these."""
        return tuple(run for run in self.runs if run.status == "converged")

    @property
    def status(self) -> str:
        """The status of the simulation: converged, or the first other status of a seed.

        Other statuses are failed, max_iterations, stalled, trivial (W = 0, a kink of the risk), left_domain,
        not_finite.
        """
        if self.failures:
            return "failed"
        return next((run.status for run in self.runs if run.status != "converged"), "converged")

    def require_not_interrupted(self) -> Simulation:
        """Return this simulation if it was not ended early.

        Raises:
            KeyboardInterrupt, TimeLimitError: the simulation was ended early.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        if self.out_of_time:
            raise TimeLimitError("the time limit ended the simulation before all seeds were done; allow more time")
        return self

    def average(self, values: Sequence[Any] | np.ndarray) -> MeanEstimate:
        """Return the mean and standard error of a quantity over converged runs, by control variates if there are any.

        `values` has one value for every converged run.
        """
        known = [run.controls for run in self.converged if run.controls is not None]
        return MeanEstimate.from_values(values, known if len(known) == len(self.converged) else ())

    def estimate(self, name: str) -> MeanEstimate:
        """Return the mean and standard error over converged runs of an observable such as "test_error"."""
        values = [getattr(run, name) for run in self.converged]
        return self.average(values) if name in _CONTROLLED else MeanEstimate.from_values(values)

    @property
    def overlaps(self) -> tuple[Overlaps, Overlaps]:
        """The mean overlaps over converged runs, and their standard errors."""
        if not len(self.converged):
            raise InputError(
                "no seed converged, so that there are no overlaps to average; look at the status of the runs"
            )
        packed, sizes = np.array([run.overlaps.pack() for run in self.converged]), self.problem.sizes
        known = np.isfinite(packed).all(axis=0)  # V is not, of a minimum
        mean, error = packed.mean(axis=0), np.full(packed.shape[1], np.nan)
        found = self.average(packed[:, known])
        mean[known], error[known] = found.mean, found.standard_error
        return Overlaps.unpack(mean, sizes), Overlaps.unpack(error, sizes)

    @property
    def multipliers(self) -> MeanEstimate | None:
        """The mean over converged runs of the ridge strengths (s,) that keep given column norms, or None."""
        found = [run.multipliers for run in self.converged if run.multipliers is not None]
        return self.average(found) if len(found) == len(self.converged) > 0 else None

    @property
    def polish(self) -> dict[str, MeanEstimate]:
        """The mean effects of polishing (moves to lower minima) over converged runs; empty without polishing."""
        done = [run.polish for run in self.converged if run.polish is not None]
        return {name: MeanEstimate.from_values([getattr(polish, name) for polish in done]) for name in POLISH if done}

    @property
    def branches(self) -> dict[str, int]:
        """The number of converged runs that ended on each branch, by name, most frequent first."""
        return dict(Counter(self.branch(run) for run in self.converged).most_common())

    def branch(self, run: SeedRun) -> str:
        """Return the name of the branch that a run ended on, such as "informed", judged by its overlaps."""
        return classify_state(self.problem, self.plan.d, run.overlaps)

    def only(self, branch: str) -> Simulation:
        """Return the simulation with only those converged runs that ended on one branch."""
        return replace(self, runs=tuple(run for run in self.converged if self.branch(run) == branch))

    def aligned(self, reference: Overlaps) -> Simulation:
        """Return the simulation with each run replaced by its symmetry image nearest to reference overlaps."""
        runs = tuple(replace(r, overlaps=nearest_mirror_image(self.problem, r.overlaps, reference)) for r in self.runs)
        return replace(self, runs=runs)

    def to_xarray(self) -> xarray.Dataset:
        """Return the runs as an xarray dataset with the dimension `seed`."""
        return presenting.to_dataset(self)


def simulate(
    problem: Problem,
    *,
    d: int = 1000,
    seeds: int | Iterable[int] = 16,
    start: str | None = None,
    method: str = "auto",
    threads: int | None = None,
    known: Iterable[SeedRun] = (),
    on_run: Callable[[SeedRun], None] | None = None,
    **options: Any,
) -> Simulation:
    """Draw data from the law of a model and minimise the risk, or pass messages, seed by seed.

    Args:
        problem: the model with its parameters.
        d: dimension of the embeddings; n = alpha d samples.
        seeds: number of seeds, from 0, or the seeds themselves. A seed gives the same data whatever the start and the
            method; with another alpha its samples are the first of the same sequence.
        start: a named start of the model (by default `informed`; `semantic` with several tokens), or `random`.
        method: auto, or one that `saddleforge simulate --help` lists; the theory of one pass through the data is
            `dynamics`.
        threads: number of processes, one thread each; all cores by default. Results do not depend on it.
        known: runs of an earlier simulation of the same plan: their seeds are not run again.
        on_run: function called with every finished run; Ctrl-C waits until it returns, and the run then counts.
        options: further fields of `SimulationPlan`: polish, restarts, project, controls, tolerance, most, rate, batch,
            inertia, damping, exact, memory.

    Raises:
        InputError: an unknown name, or a value out of range.

    Example:
        >>> runs = sf.simulate(sf.problem("ridge_regression", alpha=2), d=100, seeds=2)
        >>> len(runs.converged)
        2
    """
    require_problem(problem)
    if "n" in options:
        raise InputError("simulate takes no n: the number of samples is alpha d; set d, and alpha of the problem")
    for name in options:
        require_known_name("option", name, sorted(field.name for field in fields(SimulationPlan)[4:]), "simulate")
    start = default_start(problem) if start is None else start
    plan = validate_simulation_plan(SimulationPlan(problem, int(d), start, method, **options))
    _ = problem.alpha  # raises where it is missing, before anything is compiled
    wanted = _parse_seeds(seeds)
    if threads is not None:
        require_whole_number("threads", threads, 1)
    done = {run.seed: run for run in known if run.seed in set(wanted)}
    failures: list[SeedFailure] = []
    with keep_partial_results() as early:
        _run_missing_seeds(plan, wanted, threads, done, failures, on_run)
    runs, failed = tuple(done[seed] for seed in sorted(done)), tuple(sorted(failures, key=lambda f: f.seed))
    return Simulation(plan, runs, failed, early.interrupted, early.out_of_time)


_SECONDS_A_GIGABYTE = 2.0  # for drawing and scaling normal variates on one core; for a message


def _run_missing_seeds(
    plan: SimulationPlan,
    wanted: Sequence[int],
    threads: int | None,
    done: dict[int, SeedRun],
    failures: list[SeedFailure],
    on_run: Callable[[SeedRun], None] | None,
) -> None:
    missing = [seed for seed in wanted if seed not in done]
    if not missing:
        return
    if not plan.problem.solver.is_solver_part_compiled():
        print_message(f"compiling the solver of {plan.problem.solver.name} (once on this machine, up to half a minute)")
    data = Instance(plan.problem, plan.d, missing[0], plan.exact, plan.memory).token_data_bytes
    if data > plan.memory and not METHODS[plan.method].one_pass:
        print_message(
            f"the data of a seed take {data / 1e9:.3g} GB, beyond {plan.memory / 1e9:.3g} GB: they are drawn again in "
            f"every step, about {data / 1e9 * _SECONDS_A_GIGABYTE:.2g} s on one core"
        )
    title = f"{plan.method} at d = {plan.d} from {plan.start}"
    jobs = iterate_seed_results(
        [(plan, seed) for seed in missing], max(1, min(threads or os.cpu_count() or 1, len(missing)))
    )
    with progress_bar(title, len(wanted)) as task, closing(jobs):
        for _ in done:
            task.count_finished_step()
        for _, result in jobs:
            if isinstance(result, SeedFailure):
                if result.input_error:
                    raise InputError(result.text)
                failures.append(result)
                task.count_finished_step(f"{title}: seed {result.seed} failed ({result.text})")
                continue
            with defer_interrupts():  # an interruption comes before or after the run is recorded, not in between
                if on_run:
                    on_run(result)
                done[result.seed] = result
            loss = result.training_loss  # nan after one pass
            loss_text = f", training loss {loss:.6g}" if np.isfinite(loss) else ""
            task.count_finished_step(f"{title}: seed {result.seed} {result.status}{loss_text}")


def _parse_seeds(seeds: int | Iterable[int]) -> list[int]:
    if isinstance(seeds, int | np.integer):
        require_whole_number("seeds", seeds, 1)
        return list(range(int(seeds)))
    wanted = sorted({int(seed) for seed in seeds})
    if not wanted:
        raise InputError("seeds is empty; give at least one seed")
    require_whole_number("seeds", wanted[0], 0)
    return wanted


@convert_start_argument.register
def _convert_simulation_to_start(simulation: Simulation) -> Overlaps:
    """Return the mean overlaps of the converged runs on the most frequent branch, as a start of the saddle point.

    Raises:
        InputError: no seed converged.
    """
    return mean_overlaps_of_most_frequent_state(
        simulation.problem, [(simulation.branch(run), run.overlaps) for run in simulation.converged]
    )


def mean_overlaps_of_most_frequent_state(problem: Problem, found: Sequence[tuple[str, Overlaps]]) -> Overlaps:
    """Return the mean overlaps of the runs on the most frequent branch, in mirror images nearest to the first run.

    Args:
        problem: the problem of the runs.
        found: name of the branch and overlaps of every run.

    Raises:
        InputError: there are no runs.
    """
    if not found:
        raise InputError(
            "no seed of the simulation converged, so that there are no overlaps to start from; look at the status of "
            "its runs"
        )
    (kind, _), *_ = Counter(kind for kind, _ in found).most_common(1)
    first, *others = (overlaps for each, overlaps in found if each == kind)
    packed = [first.pack(), *(nearest_mirror_image(problem, other, first).pack() for other in others)]
    return Overlaps.unpack(np.mean(packed, axis=0), problem.sizes)
