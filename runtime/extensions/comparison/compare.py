"""Simulations compared with theory: along a branch, and in the limit d -> infinity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base import presenting
from ...base.errors import InputError, require_whole_number
from ...base.options import AlgorithmOptions
from ...base.presenting import TextResult
from ...branches.curve_results import Curve
from ...problems.columns import overlap_entries_by_column
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point.starts import named_starts
from ...solving.solution import Solution
from ..simulation.estimate import MeanEstimate
from ..simulation.orientation import overlap_fluctuations
from ..simulation.simulation import Simulation, simulate

if TYPE_CHECKING:
    import pandas


LOSSES = ("training_loss", "test_error")
_POWERS = (1.0, 0.5)
_ROUNDING = 16 * np.finfo(float).eps


@dataclass(frozen=True)
class ComparisonOptions(AlgorithmOptions):
    """Options of the comparison of simulations with theory.

    Attributes:
        chi2_margin: decrease of chi^2 for which a 1/sqrt(d) correction is preferred to 1/d.
        branch_deviations: standard deviations of an overlap within which a run is on the branch.
        outlier_factor: distance from theory, relative to the median of such runs, beyond which a run is not on it.
        least_noise: smallest such median, as a fraction of the noise.
    """

    chi2_margin: float = 4.0
    branch_deviations: float = 6.0
    outlier_factor: float = 10.0
    least_noise: float = 0.01


@dataclass(frozen=True)
class TheoryWithMeasurement:
    """An observable's theoretical value with its measured value.

    Attributes:
        theory, half_width: value and error bar of the saddle point (about two standard errors).
        mean, standard_error: mean and standard error over seeds.
    """

    theory: float
    half_width: float
    mean: float
    standard_error: float

    @classmethod
    def from_estimate(cls, theory: float, half_width: float, estimate: MeanEstimate) -> TheoryWithMeasurement:
        """Return an observable's theoretical value with the mean that simulations give.

        Args:
            theory: the theoretical value.
            half_width: error bar of the theoretical value.
            estimate: mean over seeds with its standard error.
        """
        return cls(float(theory), float(half_width), float(estimate.mean), float(estimate.standard_error))

    @property
    def deviation(self) -> float:
        """The deviation (simulation - theory) in combined standard errors, including rounding; nan if both are zero."""
        error = np.hypot(np.hypot(self.standard_error, self.half_width / 2), _ROUNDING * abs(self.theory))
        return float((self.mean - self.theory) / error) if error > 0 else np.nan


def compare_observables(solution: Solution, simulation: Simulation) -> dict[str, TheoryWithMeasurement]:
    """Return every observable that theory and simulation have in common, by name.

    These are entries of q, m, theta (named as columns of tables), trained numbers, multiplier_1, ... of given norms,
    training loss and test error. Simulated values are nan if no run converged.

    Args:
        solution: saddle-point solution.
        simulation: simulation of the same problem.
    """
    problem = solution.problem
    theory, widths = _overlaps_by_name(problem, solution.overlaps), _overlaps_by_name(problem, solution.error_bars)
    measured: dict[str, TheoryWithMeasurement] = {}
    runs = [_overlaps_by_name(problem, run.overlaps) for run in simulation.converged]
    for name, value in theory.items():
        if runs and not any(run[name] for run in runs):
            continue  # exactly zero: a law without means, say
        measured[name] = TheoryWithMeasurement.from_estimate(
            value, widths[name], simulation.average([run[name] for run in runs])
        )
    strengths, error_bars, simulated = solution.multipliers, solution.multipliers_error, simulation.multipliers
    if strengths is not None and error_bars is not None and simulated is not None:
        columns = zip(strengths, error_bars, simulated.mean, simulated.standard_error, strict=True)
        measured |= {
            f"multiplier_{a}": TheoryWithMeasurement(*map(float, column)) for a, column in enumerate(columns, 1)
        }
    for name in LOSSES:
        if np.isfinite(value := getattr(solution, name)):
            measured[name] = TheoryWithMeasurement.from_estimate(
                value, getattr(solution, f"{name}_error"), simulation.estimate(name)
            )
    return measured


def _overlaps_by_name(problem: Problem, overlaps: Overlaps) -> dict[str, float]:
    """Return the independent overlaps of a minimum by name, without V and the lower triangle of q."""
    columns = {}
    for name, value in overlap_entries_by_column(problem, overlaps).items():
        index = name.rpartition("_")[2]
        is_lower = problem.student_rank > 1 and len(index) == 2 and index[0] > index[1]
        if not name.startswith("V_") and not (name.startswith("q_") and is_lower):
            columns[name] = value
    trained = {number["name"]: float(v) for number, v in zip(problem.trained, overlaps.phi, strict=True)}
    return {**columns, **trained}


@dataclass(frozen=True, repr=False)
class SimulationComparison(TextResult):
    """A comparison of a branch of solutions with simulations at some of its points.

    Attributes:
        solutions, simulations: theory and simulation at the same values, in ascending order. Simulations contain the
            runs that ended on the branch, each in the mirror image nearest to theory.
        reached: numbers of runs that ended on the branch, and of all runs, for every simulation.
    """

    curve: Curve
    solutions: tuple[Solution, ...]
    simulations: tuple[Simulation, ...]
    reached: tuple[tuple[int, int], ...]

    @property
    def values(self) -> np.ndarray:
        """The values of the curve's parameter, (N,), in ascending order."""
        return np.array([s.problem.value_of(self.curve.parameter) for s in self.solutions])

    def measurements(self) -> list[dict[str, TheoryWithMeasurement]]:
        """Return the theoretical and simulated observables by name, one dict per point."""
        pairs = zip(self.solutions, self.simulations, strict=True)
        return [compare_observables(solution, simulation) for solution, simulation in pairs]

    def to_pandas(self) -> pandas.DataFrame:
        """Return a frame with a row for every point and observable: theory, simulation, deviation and verdict."""
        return presenting.to_frame(self)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw theory as lines and simulations as points with error bars, and save the figure if a path is given."""
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
) -> SimulationComparison:
    """Simulate at some points of a theoretical curve, from the start that led to the curve, and compare.

    Args:
        curve: curve of saddle-point solutions.
        d: dimension, as for `simulate`.
        seeds: seeds, as for `simulate`.
        points: number of simulated points of the curve, evenly spaced; all of them if the curve has fewer.
        method: method, as for `simulate`.
        threads: number of processes, as for `simulate`.
        on_point: function called with every finished simulation.
        options: further options of `simulate`.

    Raises:
        InputError: an empty curve, or an error of `simulate`.

    Example:
        >>> curve = sf.curve(sf.problem("ridge_regression"), alpha=(1, 3, 3))
        >>> print(sf.compare(curve, d=100, seeds=4, points=2, threads=1).table().splitlines()[0])
        alpha   runs     observable      theory                  simulation   deviation
    """
    if not isinstance(curve, Curve):
        raise InputError(
            f"sf.compare needs a Curve, not {type(curve).__name__}: make one by sf.curve(problem, alpha=(0.5, 3, 6)), "
            "or simulate a single point by sf.simulate(problem, d=1000)"
        )
    if not curve.solutions:
        raise InputError(
            f"the curve of the {curve.name} branch has no solution to compare with: choose another start "
            "or other values"
        )
    require_whole_number("points", points, 1)
    chosen = np.unique(np.linspace(0, len(curve.solutions) - 1, min(points, len(curve.solutions))).round().astype(int))
    solutions = tuple(curve.solutions[i] for i in chosen)
    simulations = []
    for solution in solutions:
        simulation = simulate(
            solution.problem, d=d, seeds=seeds, start=curve.name, method=method, threads=threads, **options
        )
        if on_point:
            on_point(simulation)
        simulations.append(simulation.require_not_interrupted())
    return compare_runs_on_branch(curve, solutions, simulations)


def compare_runs_on_branch(
    curve: Curve, solutions: Sequence[Solution], simulations: Sequence[Simulation]
) -> SimulationComparison:
    """Compare solutions with those runs of simulations that ended on the same branch.

    Args:
        curve: the branch of solutions.
        solutions: solutions of the branch.
        simulations: one simulation for every solution.
    """
    runs = [runs_on_branch(solution, simulation) for solution, simulation in zip(solutions, simulations, strict=True)]
    reached = tuple((len(one.runs), len(every.runs)) for one, every in zip(runs, simulations, strict=True))
    return SimulationComparison(curve, tuple(solutions), tuple(runs), reached)


def runs_on_branch(solution: Solution, simulation: Simulation) -> Simulation:
    """Return the converged runs that ended near a solution, each in the mirror image nearest to it.

    A run is near if every overlap is within six standard deviations of theory, from the noise of uninformed weights
    (`overlap_fluctuations`) and half the error bar, and if no overlap, trained number or loss deviates ten times more
    than the median of such runs.

    Args:
        solution: saddle-point solution.
        simulation: simulation of the same problem.
    """
    options = ComparisonOptions.current()
    problem, theory = solution.problem, solution.overlaps
    aligned = replace(simulation, runs=simulation.converged).aligned(theory)
    values = _comparable_overlaps_and_loss(theory, solution.training_loss)
    away = np.array(
        [np.abs(_comparable_overlaps_and_loss(run.overlaps, run.training_loss) - values) for run in aligned.runs]
    )
    away = away.reshape(len(aligned.runs), len(values))
    error_bars = np.nan_to_num(_comparable_overlaps_and_loss(solution.error_bars, solution.training_loss_error)) / 2
    noise = _comparable_overlaps_and_loss(overlap_fluctuations(problem, theory, simulation.plan.d), 0.0)
    known = np.arange(len(values)) < len(values) - 1 - len(theory.phi)  # entries with a known noise
    usual = np.hypot(noise, error_bars)
    near = ~np.any(away[:, known] > options.branch_deviations * usual[known] + _ROUNDING, axis=1)
    if near.any():
        least = options.least_noise * np.where(known, noise, np.abs(values)) + _ROUNDING
        usual = np.hypot(np.median(away[near], axis=0), error_bars) + least
        near &= ~np.any(away > options.outlier_factor * usual, axis=1)
    return replace(aligned, runs=tuple(run for run, is_near in zip(aligned.runs, near, strict=True) if is_near))


def _comparable_overlaps_and_loss(overlaps: Overlaps, training_loss: float) -> np.ndarray:
    """Return one vector of the overlaps q, m and theta, the trained numbers and the training loss."""
    blocks = (overlaps.q, overlaps.m, overlaps.theta, overlaps.phi)
    return np.concatenate([*map(np.ravel, blocks), [training_loss]])


@dataclass(frozen=True)
class FiniteSizeExtrapolation:
    """An extrapolation y(d) = value + slope / d^power to infinite dimension d, by a weighted fit.

    Attributes:
        error: standard error of the value; chi2: chi^2 of the fit; freedom: its degrees of freedom.
    """

    value: float
    error: float
    slope: float
    power: float
    chi2: float
    freedom: int


def extrapolate_to_infinite_dimension(
    dims: Sequence[int], estimates: Sequence[MeanEstimate], power: float | None = None
) -> FiniteSizeExtrapolation:
    """Fit a finite-size correction to the means at several dimensions, and extrapolate to infinite dimension.

    Args:
        dims: dimensions d.
        estimates: means with standard errors, one per dimension.
        power: power of 1/d; by default 1, unless 1/2 fits better by two standard deviations (a chi^2 smaller by 4).

    Raises:
        InputError: fewer than two dimensions.
    """
    if len(set(dims)) < 2:
        raise InputError("an extrapolation to infinite d needs simulations at two dimensions d or more")
    found = _fit_finite_size_correction(np.asarray(dims, float), estimates, power or _POWERS[0])
    other = _fit_finite_size_correction(np.asarray(dims, float), estimates, _POWERS[1])
    return other if power is None and other.chi2 < found.chi2 - ComparisonOptions.current().chi2_margin else found


def _fit_finite_size_correction(
    dims: np.ndarray, estimates: Sequence[MeanEstimate], power: float
) -> FiniteSizeExtrapolation:
    values, errors = np.array([(e.mean, e.standard_error) for e in estimates], float).T
    (slope, value), covariance = np.polyfit(dims**-power, values, 1, w=1 / errors, cov="unscaled")
    residuals = (values - value - slope * dims**-power) / errors
    return FiniteSizeExtrapolation(
        value, float(np.sqrt(covariance[1, 1])), slope, power, float(residuals @ residuals), len(dims) - 2
    )


@dataclass(frozen=True, repr=False)
class FiniteSizeScaling(TextResult):
    """A comparison of one solution with the simulated runs on its branch, at several dimensions d."""

    solution: Solution
    simulations: tuple[Simulation, ...]

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimension d of every simulation."""
        return tuple(simulation.plan.d for simulation in self.simulations)

    def measurements(self) -> list[dict[str, TheoryWithMeasurement]]:
        """Return the theoretical and simulated observables by name, one dict per dimension."""
        return [compare_observables(self.solution, simulation) for simulation in self.simulations]

    def limits(self) -> dict[str, tuple[TheoryWithMeasurement, FiniteSizeExtrapolation]]:
        """Return the observables extrapolated to d -> infinity, next to theory, with their fits, by name.

        Dimensions with fewer than two runs on the branch are left out. The result is empty if fewer than two remain.
        """
        known = [(d, one) for d, one in zip(self.dims, self.measurements(), strict=True) if _has_standard_errors(one)]
        if len(known) < 2:
            return {}
        dims, every = zip(*known, strict=True)
        limits = {}
        for name, first in every[0].items():
            estimates = [MeanEstimate(one[name].mean, one[name].standard_error) for one in every]
            if not all(e.standard_error > 0 for e in estimates):
                continue
            fit = extrapolate_to_infinite_dimension(dims, estimates)
            limits[name] = (replace(first, mean=fit.value, standard_error=fit.error), fit)
        return limits

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw observables against 1/d with their fits, and save the figure if a path is given."""
        return presenting.plot(self, path)


def _has_standard_errors(measured: dict[str, TheoryWithMeasurement]) -> bool:
    """Return whether any measured observable has a standard error, which takes two runs."""
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
) -> FiniteSizeScaling:
    """Simulate a solution's problem at several dimensions d, from the start that led to the solution.

    Args:
        solution: saddle-point solution from a named start.
        dims: dimensions d.
        seeds: number of seeds at the largest d; more at smaller d, in proportion to 1/d, for equal errors.
        first: the first seed.
        method: method, as for `simulate`.
        threads: number of processes, as for `simulate`.
        options: further options of `simulate`.

    Raises:
        InputError: the solution has no named start, or an error of `simulate`.

    Example:
        >>> found = sf.scaling(sf.solve(sf.problem("ridge_regression", alpha=2)), dims=(50, 100), seeds=4, threads=1)
        >>> print(found.table().splitlines()[0])
        observable      theory                 d = 50    d = 100    d -> infinity   deviation   law
    """
    if solution.start not in named_starts(solution.problem):
        raise InputError(
            f"simulations need a named start, and this solution was solved from {solution.start!r}: solve again from "
            f"one of {', '.join(named_starts(solution.problem))}"
        )
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
        simulations.append(runs_on_branch(solution, simulation.require_not_interrupted()))
    return FiniteSizeScaling(solution, tuple(simulations))
