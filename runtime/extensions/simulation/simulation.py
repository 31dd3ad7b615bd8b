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
from ...base.errors import InputError, TimeLimitError, require_known, require_whole
from ...base.interrupts import held_back, keeping_results
from ...base.presenting import Recorded, Result
from ...base.progress import bar, say
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem, check_is_problem
from ...saddle_point.starts import as_start, default_start
from .estimate import Estimate
from .instance import Instance
from .method import Polish
from .methods import METHODS
from .orientation import kind_of, oriented
from .plan import Plan
from .run import Run, checked
from .workers import Failure, results

if TYPE_CHECKING:
    import xarray

SCALARS = ("training_loss", "data", "penalty", "test_error", "gradient", "iterations", "late", "contraction")
_CONTROLLED = SCALARS[:4]  # what depends on the data drawn
POLISH = tuple(known.name for known in fields(Polish))


@dataclass(frozen=True, repr=False)
class Simulation(Result, Recorded):
    """Runs of one plan.

    Attributes:
        runs: by seed, in ascending order, converged or not.
        failures: seeds without a result, and why.
        interrupted: whether seeds asked for are missing because the run was interrupted; out_of_time: because a time
            limit ended it.

    Example:
        >>> runs = sf.simulate(sf.problem("ridge_regression", alpha=2), d=100, seeds=4, threads=1)
        >>> measured = runs.estimate("test_error")
        >>> bool(abs(measured.mean - 0.4427) < 5 * measured.standard_error), runs.status
        (True, 'converged')
    """

    plan: Plan
    runs: tuple[Run, ...]
    failures: tuple[Failure, ...] = ()
    interrupted: bool = False
    out_of_time: bool = False

    @property
    def problem(self) -> Problem:
        """The one whose alpha gave the n = alpha d samples of every run."""
        return self.plan.problem

    @property
    def converged(self) -> tuple[Run, ...]:
        """The runs that averages are taken over."""
        return tuple(run for run in self.runs if run.status == "converged")

    @property
    def status(self) -> str:
        """converged, or what at least one seed lacks: failed, max_iterations, stalled, collapsed (to W = 0, a corner of
        the risk), left_domain, not_finite."""
        if self.failures:
            return "failed"
        return next((run.status for run in self.runs if run.status != "converged"), "converged")

    def require_complete(self) -> Simulation:
        """Return this simulation.

        Raises:
            KeyboardInterrupt, TimeLimitError: it was ended early.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        if self.out_of_time:
            raise TimeLimitError("the time limit ended the simulations")
        return self

    def average(self, values: Sequence[Any] | np.ndarray) -> Estimate:
        """Of one value (of any shape) a converged run, with control variates where the plan asks for them."""
        known = [run.controls for run in self.converged if run.controls is not None]
        return Estimate.of(values, known if len(known) == len(self.converged) else ())

    def estimate(self, name: str) -> Estimate:
        """Of one of SCALARS, over converged runs."""
        values = [getattr(run, name) for run in self.converged]
        return self.average(values) if name in _CONTROLLED else Estimate.of(values)

    @property
    def overlaps(self) -> tuple[Overlaps, Overlaps]:
        """Means and standard errors of the overlaps over converged runs."""
        if not len(self.converged):
            raise InputError("no seed converged: there is nothing to average")
        packed, sizes = np.array([run.overlaps.pack() for run in self.converged]), self.problem.sizes
        known = np.isfinite(packed).all(axis=0)  # V is not, of a minimum
        mean, error = packed.mean(axis=0), np.full(packed.shape[1], np.nan)
        found = self.average(packed[:, known])
        mean[known], error[known] = found.mean, found.standard_error
        return Overlaps.unpack(mean, sizes), Overlaps.unpack(error, sizes)

    @property
    def multipliers(self) -> Estimate | None:
        """Strengths (s,) of the ridge that keeps given norms, over converged runs; None of any other regulariser."""
        found = [run.multipliers for run in self.converged if run.multipliers is not None]
        return self.average(found) if len(found) == len(self.converged) > 0 else None

    @property
    def polish(self) -> dict[str, Estimate]:
        """What polishing did, by the names of POLISH, over converged runs; empty where nothing was polished."""
        done = [run.polish for run in self.converged if run.polish is not None]
        return {name: Estimate.of([getattr(polish, name) for polish in done]) for name in POLISH if done}

    @property
    def branches(self) -> dict[str, int]:
        """How many converged runs ended in each kind of state, most frequent first."""
        return dict(Counter(self.branch(run) for run in self.converged).most_common())

    def branch(self, run: Run) -> str:
        """What kind of state a run ended in, see `kind_of`."""
        return kind_of(self.problem, self.plan.d, run.overlaps)

    def only(self, branch: str) -> Simulation:
        """The converged runs that ended in one kind of state."""
        return replace(self, runs=tuple(run for run in self.converged if self.branch(run) == branch))

    def aligned(self, reference: Overlaps) -> Simulation:
        """The same runs, each in the mirror image nearest to reference overlaps."""
        runs = tuple(replace(r, overlaps=oriented(self.problem, r.overlaps, reference)) for r in self.runs)
        return replace(self, runs=runs)

    def to_xarray(self) -> xarray.Dataset:
        """Runs along `seed`; overlaps with the axes of a curve's."""
        return presenting.to_dataset(self)


def simulate(
    problem: Problem,
    *,
    d: int = 1000,
    seeds: int | Iterable[int] = 16,
    start: str | None = None,
    method: str = "auto",
    threads: int | None = None,
    known: Iterable[Run] = (),
    on_run: Callable[[Run], None] | None = None,
    **options: Any,
) -> Simulation:
    """Draw data from the law of a model and minimise the risk, or pass messages, seed by seed.

    Args:
        d: dimension of the embeddings; n = alpha d samples.
        seeds: how many, from 0, or which. A seed gives the same data whatever the start and the method; with another
            alpha its samples are the first of the same sequence.
        start: a named start of the model (`semantic`, else its first, where none is given), or `random`.
        method: auto, or one that `saddleforge simulate --help` lists; the theory of one pass through the data is
            `dynamics`.
        threads: processes side by side, one thread each; all cores by default. Results do not depend on it.
        known: runs of an earlier simulation of the same plan: their seeds are not run again.
        on_run: called with every run as it is finished; Ctrl-C waits until it returns, and then counts the run.
        options: further fields of `Plan`: polish, restarts, project, controls, tolerance, most, rate, batch, inertia,
            damping, exact, memory.

    Raises:
        InputError: something unknown, or out of range.

    Example:
        >>> runs = sf.simulate(sf.problem("ridge_regression", alpha=2), d=100, seeds=2)
        >>> len(runs.converged)
        2
    """
    check_is_problem(problem)
    if "n" in options:
        raise InputError("simulate takes no n: there are alpha d samples, so that d and the problem's alpha set it")
    for name in options:
        require_known("option", name, sorted(field.name for field in fields(Plan)[4:]), "simulate")
    start = default_start(problem) if start is None else start
    plan = checked(Plan(problem, int(d), start, method, **options))
    _ = problem.alpha  # raises where it is missing, before anything is compiled
    wanted = _seeds(seeds)
    if threads is not None:
        require_whole("threads", threads, 1)
    done = {run.seed: run for run in known if run.seed in set(wanted)}
    failures: list[Failure] = []
    with keeping_results() as early:
        _collect(plan, wanted, threads, done, failures, on_run)
    runs, failed = tuple(done[seed] for seed in sorted(done)), tuple(sorted(failures, key=lambda f: f.seed))
    return Simulation(plan, runs, failed, early.interrupted, early.out_of_time)


_SECONDS_A_GIGABYTE = 2.0  # of normal variates, drawn and scaled on one core


def _collect(
    plan: Plan,
    wanted: Sequence[int],
    threads: int | None,
    done: dict[int, Run],
    failures: list[Failure],
    on_run: Callable[[Run], None] | None,
) -> None:
    missing = [seed for seed in wanted if seed not in done]
    if not missing:
        return
    if not plan.problem.solver.compiled_before():
        say(f"compiling the solver of {plan.problem.solver.name} (once on this machine, up to half a minute)")
    data = Instance(plan.problem, plan.d, missing[0], plan.exact, plan.memory).data_bytes
    if data > plan.memory and not METHODS[plan.method].one_pass:
        say(
            f"the data of a seed take {data / 1e9:.3g} GB, beyond {plan.memory / 1e9:.3g} GB: they are drawn again in "
            f"every step, about {data / 1e9 * _SECONDS_A_GIGABYTE:.2g} s on one core"
        )
    what = f"{plan.method} at d = {plan.d} from {plan.start}"
    jobs = results([(plan, seed) for seed in missing], max(1, min(threads or os.cpu_count() or 1, len(missing))))
    with bar(what, len(wanted)) as task, closing(jobs):
        for _ in done:
            task.advance()
        for _, result in jobs:
            if isinstance(result, Failure):
                if result.input_error:
                    raise InputError(result.text)
                failures.append(result)
                task.advance(f"{what}: seed {result.seed} failed ({result.text})")
                continue
            with held_back():  # a run counts when it has been put away, and not before
                if on_run:
                    on_run(result)
                done[result.seed] = result
            loss = result.training_loss  # none of a pass
            said = f", training loss {loss:.6g}" if np.isfinite(loss) else ""
            task.advance(f"{what}: seed {result.seed} {result.status}{said}")


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    if isinstance(seeds, int | np.integer):
        require_whole("seeds", seeds, 1)
        return list(range(int(seeds)))
    wanted = sorted({int(seed) for seed in seeds})
    if not wanted:
        raise InputError("seeds = []: at least one seed is expected")
    require_whole("seeds", wanted[0], 0)
    return wanted


@as_start.register
def _mean_overlaps(simulation: Simulation) -> Overlaps:
    """Of the converged runs of the most frequent kind, each in the mirror image nearest to the first.

    Raises:
        InputError: no seed converged.
    """
    return typical(simulation.problem, [(simulation.branch(run), run.overlaps) for run in simulation.converged])


def typical(problem: Problem, found: Sequence[tuple[str, Overlaps]]) -> Overlaps:
    """The mean over overlaps of the most frequent kind, each in the mirror image nearest to the first.

    Args:
        found: kind and overlaps of every run.

    Raises:
        InputError: there are none.
    """
    if not found:
        raise InputError("no seed converged: there are no overlaps to start from")
    (kind, _), *_ = Counter(kind for kind, _ in found).most_common(1)
    first, *others = (overlaps for own, overlaps in found if own == kind)
    packed = [first.pack(), *(oriented(problem, other, first).pack() for other in others)]
    return Overlaps.unpack(np.mean(packed, axis=0), problem.sizes)
