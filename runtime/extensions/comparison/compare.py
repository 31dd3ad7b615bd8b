"""Simulations beside theory: along a branch, and in the limit d -> infinity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base import presenting
from ...base.errors import InputError, require_whole
from ...base.presenting import Shown
from ...branches.along import Curve
from ...problems.columns import block_columns
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...solving.solution import Solution
from ..simulation.estimate import Estimate
from ..simulation.orientation import fluctuations
from ..simulation.simulation import Simulation, simulate

if TYPE_CHECKING:
    import pandas


LOSSES = ("training_loss", "test_error")
_POWERS = (1.0, 0.5)
_CLEARLY = 4.0
_NEAR, _FAR, _LITTLE = 6.0, 10.0, 0.01
_ROUNDING = 16 * np.finfo(float).eps


@dataclass(frozen=True)
class Measured:
    """One number of theory and of simulation.

    Attributes:
        theory, half_width: of the saddle point (half width: two standard errors or so).
        mean, standard_error: over seeds.
    """

    theory: float
    half_width: float
    mean: float
    standard_error: float

    @classmethod
    def of(cls, theory: float, half_width: float, estimate: Estimate) -> Measured:
        """Compare a number of theory with the estimate of it."""
        return cls(float(theory), float(half_width), float(estimate.mean), float(estimate.standard_error))

    @property
    def deviation(self) -> float:
        """(simulation - theory) in combined standard errors, rounding among them; nan where both are zero."""
        error = np.hypot(np.hypot(self.standard_error, self.half_width / 2), _ROUNDING * abs(self.theory))
        return float((self.mean - self.theory) / error) if error > 0 else np.nan


def measurements(solution: Solution, simulation: Simulation) -> dict[str, Measured]:
    """Entries of q, m, theta (named as the columns of tables), trained numbers, multiplier_1, ... of given norms,
    training loss and test error; what is simulated is nan where no run converged."""
    problem = solution.problem
    theory, widths = _named(problem, solution.overlaps), _named(problem, solution.half_widths)
    measured: dict[str, Measured] = {}
    runs = [_named(problem, run.overlaps) for run in simulation.converged]
    for name, value in theory.items():
        if runs and not any(run[name] for run in runs):
            continue  # exactly zero: a law without means, say
        measured[name] = Measured.of(value, widths[name], simulation.average([run[name] for run in runs]))
    strengths, half_widths, kept = solution.multipliers, solution.multipliers_error, simulation.multipliers
    if strengths is not None and half_widths is not None and kept is not None:
        columns = zip(strengths, half_widths, kept.mean, kept.standard_error, strict=True)
        measured |= {f"multiplier_{a}": Measured(*map(float, column)) for a, column in enumerate(columns, 1)}
    for name in LOSSES:
        if np.isfinite(value := getattr(solution, name)):
            measured[name] = Measured.of(value, getattr(solution, f"{name}_error"), simulation.estimate(name))
    return measured


def _named(problem: Problem, overlaps: Overlaps) -> dict[str, float]:
    """Independent entries of the overlaps that a minimum has: without V, and of q without the lower triangle."""
    columns = {}
    for name, value in block_columns(problem, overlaps).items():
        index = name.rpartition("_")[2]
        is_lower = problem.student_rank > 1 and len(index) == 2 and index[0] > index[1]
        if not name.startswith("V_") and not (name.startswith("q_") and is_lower):
            columns[name] = value
    trained = {number["name"]: float(v) for number, v in zip(problem.trained, overlaps.phi, strict=True)}
    return {**columns, **trained}


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """A branch and simulations at some of its points, each in the mirror image nearest to theory.

    Attributes:
        solutions, simulations: theory and simulation at the same values, in ascending order; simulations hold the runs
            that ended on the branch, `reached` how many of how many did.
    """

    curve: Curve
    solutions: tuple[Solution, ...]
    simulations: tuple[Simulation, ...]
    reached: tuple[tuple[int, int], ...]

    @property
    def values(self) -> np.ndarray:
        """The parameter at every point, (N,), in ascending order."""
        return np.array([s.problem.value_of(self.curve.parameter) for s in self.solutions])

    def measurements(self) -> list[dict[str, Measured]]:
        """Name -> theory and simulation, one dict a point."""
        pairs = zip(self.solutions, self.simulations, strict=True)
        return [measurements(solution, simulation) for solution, simulation in pairs]

    def to_pandas(self) -> pandas.DataFrame:
        """A row a point and observable: value of the parameter, d, runs, theory, simulation, deviation, verdict."""
        return presenting.to_frame(self)

    def plot(self, path: str | Path | None = None) -> Any:
        """Theory as lines, simulations as points with error bars; saved where a path is given."""
        return presenting.plot(self, path)


def compare(
    curve: Curve,
    *,
    d: int = 1000,
    seeds: int = 16,
    points: int = 8,
    method: str = "auto",
    threads: int | None = None,
    on_point: Callable[[Simulation], None] | None = None,
    **options: Any,
) -> Comparison:
    """Simulate at some points of a theory curve, from the curve's start.

    Args:
        points: how many of the curve's solutions, evenly spaced; all of them where there are fewer.
        d, seeds, method, threads, options: as for `simulate`.

    Raises:
        InputError: an empty curve, or what `simulate` refuses.

    Example:
        >>> curve = sf.curve(sf.problem("ridge_regression"), alpha=(1, 3, 3))
        >>> print(sf.compare(curve, d=100, seeds=4, points=2, threads=1).table().splitlines()[0])
        alpha   runs     observable      theory                  simulation   deviation
    """
    if not isinstance(curve, Curve):
        raise InputError(
            f"a Curve is expected, not {type(curve).__name__}: sf.curve(problem, alpha=(0.5, 3, 6)); of one point "
            "sf.simulate(problem, d=1000)"
        )
    if not curve.solutions:
        raise InputError(f"the {curve.name} branch has no solution to compare with")
    require_whole("points", points, 1)
    chosen = np.unique(np.linspace(0, len(curve.solutions) - 1, min(points, len(curve.solutions))).round().astype(int))
    solutions = tuple(curve.solutions[i] for i in chosen)
    simulations = []
    for solution in solutions:
        simulation = simulate(
            solution.problem, d=d, seeds=seeds, start=curve.name, method=method, threads=threads, **options
        )
        if on_point:
            on_point(simulation)
        simulations.append(simulation.require_complete())
    return beside(curve, solutions, simulations)


def beside(curve: Curve, solutions: Sequence[Solution], simulations: Sequence[Simulation]) -> Comparison:
    """Keep of every simulation the runs that ended on the solution's branch, in the image nearest to it."""
    kept = [on_branch(solution, simulation) for solution, simulation in zip(solutions, simulations, strict=True)]
    reached = tuple((len(one.runs), len(every.runs)) for one, every in zip(kept, simulations, strict=True))
    return Comparison(curve, tuple(solutions), tuple(kept), reached)


def on_branch(solution: Solution, simulation: Simulation) -> Simulation:
    """The converged runs that ended near a solution, each in the mirror image nearest to it.

    Near: every overlap within six deviations of theory's, those of weights that know nothing (`fluctuations`) and half
    the half width; and no overlap, trained number or training loss ten times as far away as half of such runs are.
    """
    problem, theory = solution.problem, solution.overlaps
    aligned = replace(simulation, runs=simulation.converged).aligned(theory)
    values = _compared(theory, solution.training_loss)
    away = np.array([np.abs(_compared(run.overlaps, run.training_loss) - values) for run in aligned.runs])
    away = away.reshape(len(aligned.runs), len(values))
    half_widths = np.nan_to_num(_compared(solution.half_widths, solution.training_loss_error)) / 2
    noise = _compared(fluctuations(problem, theory, simulation.plan.d), 0.0)
    known = np.arange(len(values)) < len(values) - 1 - len(theory.phi)  # of others no deviation is
    usual = np.hypot(noise, half_widths)
    near = ~np.any(away[:, known] > _NEAR * usual[known] + _ROUNDING, axis=1)
    if near.any():
        least = _LITTLE * np.where(known, noise, np.abs(values)) + _ROUNDING
        usual = np.hypot(np.median(away[near], axis=0), half_widths) + least
        near &= ~np.any(away > _FAR * usual, axis=1)
    return replace(aligned, runs=tuple(run for run, is_near in zip(aligned.runs, near, strict=True) if is_near))


def _compared(overlaps: Overlaps, training_loss: float) -> np.ndarray:
    """All overlaps but V, then trained numbers and the training loss, flat."""
    blocks = (overlaps.q, overlaps.m, overlaps.theta, overlaps.phi)
    return np.concatenate([*map(np.ravel, blocks), [training_loss]])


@dataclass(frozen=True)
class Extrapolation:
    """y(d) = value + slope / d^power, fitted with weights.

    Attributes:
        error: standard error of the value; chi2: of the fit, with `freedom` degrees of freedom.
    """

    value: float
    error: float
    slope: float
    power: float
    chi2: float
    freedom: int


def extrapolate(dims: Sequence[int], estimates: Sequence[Estimate], power: float | None = None) -> Extrapolation:
    """Fit a finite-size correction to means with standard errors.

    Args:
        power: of 1/d; by default 1, unless 1/2 fits better by two standard deviations (a chi^2 smaller by 4).

    Raises:
        InputError: fewer than two dimensions.
    """
    if len(set(dims)) < 2:
        raise InputError("an extrapolation in d needs at least two dimensions")
    found = _fit(np.asarray(dims, float), estimates, power or _POWERS[0])
    other = _fit(np.asarray(dims, float), estimates, _POWERS[1])
    return other if power is None and other.chi2 < found.chi2 - _CLEARLY else found


def _fit(dims: np.ndarray, estimates: Sequence[Estimate], power: float) -> Extrapolation:
    values, errors = np.array([(e.mean, e.standard_error) for e in estimates], float).T
    (slope, value), covariance = np.polyfit(dims**-power, values, 1, w=1 / errors, cov="unscaled")
    residuals = (values - value - slope * dims**-power) / errors
    return Extrapolation(
        value, float(np.sqrt(covariance[1, 1])), slope, power, float(residuals @ residuals), len(dims) - 2
    )


@dataclass(frozen=True, repr=False)
class Scaling(Shown):
    """Simulations of one problem at several d beside its solution, runs on its branch only."""

    solution: Solution
    simulations: tuple[Simulation, ...]

    @property
    def dims(self) -> tuple[int, ...]:
        """d of every simulation, in their order."""
        return tuple(simulation.plan.d for simulation in self.simulations)

    def measurements(self) -> list[dict[str, Measured]]:
        """Name -> theory and simulation, one dict a dimension."""
        return [measurements(self.solution, simulation) for simulation in self.simulations]

    def limits(self) -> dict[str, tuple[Measured, Extrapolation]]:
        """Name -> theory beside the extrapolation to d -> infinity, and the fit.

        Dimensions where fewer than two runs stayed on the branch say nothing; with fewer than two others there is no
        limit.
        """
        known = [(d, one) for d, one in zip(self.dims, self.measurements(), strict=True) if _has_errors(one)]
        if len(known) < 2:
            return {}
        dims, every = zip(*known, strict=True)
        limits = {}
        for name, first in every[0].items():
            estimates = [Estimate(one[name].mean, one[name].standard_error) for one in every]
            if not all(e.standard_error > 0 for e in estimates):
                continue
            fit = extrapolate(dims, estimates)
            limits[name] = (replace(first, mean=fit.value, standard_error=fit.error), fit)
        return limits

    def plot(self, path: str | Path | None = None) -> Any:
        """Observables against 1/d with the fits; saved where a path is given."""
        return presenting.plot(self, path)


def _has_errors(measured: dict[str, Measured]) -> bool:
    """Whether there were runs enough for standard errors."""
    return any(np.isfinite(item.standard_error) for item in measured.values())


def scaling(
    solution: Solution,
    *,
    dims: Sequence[int] = (250, 500, 1000, 2000),
    seeds: int = 16,
    first: int = 0,
    method: str = "auto",
    threads: int | None = None,
    **options: Any,
) -> Scaling:
    """Simulate a solution's problem at several d, from the start that led to it.

    Args:
        seeds: at the largest d; smaller ones get as many more as they fluctuate more, so that all means are as sharp.
        first: the first seed.

    Raises:
        InputError: the solution has no named start, or what `simulate` refuses.

    Example:
        >>> found = sf.scaling(sf.solve(sf.problem("ridge_regression", alpha=2)), dims=(50, 100), seeds=4, threads=1)
        >>> print(found.table().splitlines()[0])
        observable      theory                 d = 50    d = 100    d -> infinity   deviation   law
    """
    if solution.start not in solution.problem.solver.model.STARTS:
        raise InputError(f"the solution's start {solution.start!r} has no name; solve from a named start")
    simulations = []
    for d in sorted(dims):
        simulation = simulate(
            solution.problem,
            d=d,
            seeds=range(first, first + round(seeds * max(dims) / d)),
            start=solution.start,
            method=method,
            threads=threads,
            **options,
        )
        simulations.append(on_branch(solution, simulation.require_complete()))
    return Scaling(solution, tuple(simulations))
