"""Simulations compared with theory: along a branch, and in the limit d -> infinity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base import presenting
from ...base.deprecation import DeprecatedName, deprecated_attribute
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
        chi2_margin: decrease of chi^2 from which a correction 1/sqrt(d) is preferred to 1/d.
        branch_deviations: deviation from theory, in standard deviations of an overlap, up to which a run is counted as
            on the branch.
        outlier_factor: deviation from theory, relative to the median over these runs, above which a run is left out.
        least_noise: smallest median that is used, as a fraction of the noise of simulations.
    """

    chi2_margin: float = 4.0
    branch_deviations: float = 6.0
    outlier_factor: float = 10.0
    least_noise: float = 0.01


@dataclass(frozen=True)
class TheoryWithMeasurement:
    """An observable's theoretical value with its measured value.

    Attributes:
        theory, theory_error: theoretical value and its error bar (about two standard errors).
        mean, standard_error: mean of the measurements and its standard error.
    """

    theory: float
    theory_error: float
    mean: float
    standard_error: float

    @classmethod
    def from_simulation_estimate(
        cls, theory: float, theory_error: float, estimate: MeanEstimate
    ) -> TheoryWithMeasurement:
        """Return the theoretical value of an observable with its mean over simulations.

        Args:
            theory: the theoretical value.
            theory_error: error bar of the theoretical value.
            estimate: mean over seeds with its standard error.
        """
        return cls(float(theory), float(theory_error), float(estimate.mean), float(estimate.standard_error))

    half_width = deprecated_attribute("half_width", DeprecatedName("theory_error", "0.1.0", "0.3.0"))

    @property
    def deviation(self) -> float:
        """The difference between measurement and theory, divided by its standard error; NaN if that is zero."""
        error = np.hypot(np.hypot(self.standard_error, self.theory_error / 2), _ROUNDING * abs(self.theory))
        return float((self.mean - self.theory) / error) if error > 0 else np.nan


def compare_observables(solution: Solution, simulation: Simulation) -> dict[str, TheoryWithMeasurement]:
    """Return every observable that theory and simulation have in common, by name.

    These are entries of q, m and theta (named as columns of tables), trained numbers, multipliers of fixed column norms
    (multiplier_1, ...), training loss and test error. Simulated values are NaN if no run converged.

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
        measured[name] = TheoryWithMeasurement.from_simulation_estimate(
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
            measured[name] = TheoryWithMeasurement.from_simulation_estimate(
                value, getattr(solution, f"{name}_error"), simulation.estimate(name)
            )
    return measured


def _overlaps_by_name(problem: Problem, overlaps: Overlaps) -> dict[str, float]:
    """Return the independent entries of q, m, theta and trained numbers by name, as in columns of tables."""
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
        curve: the branch of solutions.
        solutions: compared solutions, in ascending order of the parameter.
        simulations: simulations of the same problems, with only those runs that ended on the branch.
        reached: for every simulation, the number of runs that ended on the branch and the number of all runs.
    """

    curve: Curve
    solutions: tuple[Solution, ...]
    simulations: tuple[Simulation, ...]
    reached: tuple[tuple[int, int], ...]

    @property
    def values(self) -> np.ndarray:
        """The values of the parameter at the compared points, in ascending order."""
        return np.array([s.problem.value_of_parameter(self.curve.parameter) for s in self.solutions])

    def measurements(self) -> list[dict[str, TheoryWithMeasurement]]:
        """Return theoretical and simulated values of all observables, in one dictionary by name for every point."""
        pairs = zip(self.solutions, self.simulations, strict=True)
        return [compare_observables(solution, simulation) for solution, simulation in pairs]

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas data frame with a row for every point and observable: theory, simulation and deviation."""
        return presenting.to_frame(self)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw theory as curves and simulations as points with error bars, and save the figure if a path is given."""
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
    """Simulate at some points of a theoretical curve, from the start that gave the curve, and compare.

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
    """Compare solutions with those runs of their simulations that ended on the same branch.

    Args:
        curve: the branch of solutions.
        solutions: solutions of the branch.
        simulations: one simulation for every solution.
    """
    runs = [runs_on_branch(solution, simulation) for solution, simulation in zip(solutions, simulations, strict=True)]
    reached = tuple((len(one.runs), len(every.runs)) for one, every in zip(runs, simulations, strict=True))
    return SimulationComparison(curve, tuple(solutions), tuple(runs), reached)


def runs_on_branch(solution: Solution, simulation: Simulation) -> Simulation:
    """Return a simulation with only those converged runs that ended close to a solution.

    A run is close if every overlap is within six standard deviations of theory, and if no overlap, trained number or
    loss deviates ten times more than the median of such runs. A run is replaced by its mirror image if that is closer.

    Args:
        solution: saddle-point solution.
        simulation: simulation of the same problem.
    """
    options = ComparisonOptions.current()
    problem, theory = solution.problem, solution.overlaps
    aligned = replace(simulation, runs=simulation.converged).aligned(theory)
    values = _vector_of_overlaps_and_loss(theory, solution.training_loss)
    away = np.array(
        [np.abs(_vector_of_overlaps_and_loss(run.overlaps, run.training_loss) - values) for run in aligned.runs]
    )
    away = away.reshape(len(aligned.runs), len(values))
    error_bars = np.nan_to_num(_vector_of_overlaps_and_loss(solution.error_bars, solution.training_loss_error)) / 2
    noise = _vector_of_overlaps_and_loss(overlap_fluctuations(problem, theory, simulation.plan.d), 0.0)
    known = np.arange(len(values)) < len(values) - 1 - len(theory.phi)  # entries with a known noise
    usual = np.hypot(noise, error_bars)
    near = ~np.any(away[:, known] > options.branch_deviations * usual[known] + _ROUNDING, axis=1)
    if near.any():
        least = options.least_noise * np.where(known, noise, np.abs(values)) + _ROUNDING
        usual = np.hypot(np.median(away[near], axis=0), error_bars) + least
        near &= ~np.any(away > options.outlier_factor * usual, axis=1)
    return replace(aligned, runs=tuple(run for run, is_near in zip(aligned.runs, near, strict=True) if is_near))


def _vector_of_overlaps_and_loss(overlaps: Overlaps, training_loss: float) -> np.ndarray:
    """Return one vector of the overlaps q, m and theta, the trained numbers and the training loss, in this order."""
    blocks = (overlaps.q, overlaps.m, overlaps.theta, overlaps.phi)
    return np.concatenate([*map(np.ravel, blocks), [training_loss]])


@dataclass(frozen=True)
class FiniteSizeExtrapolation:
    """An extrapolation of an observable to infinite dimension d, by a weighted fit of value + slope / d^power.

    Attributes:
        value, error: value at infinite d and its standard error.
        slope, power: coefficient and power of 1/d.
        chi2, freedom: chi^2 of the fit and its number of degrees of freedom.
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
        raise InputError("an extrapolation to infinite d needs simulations at two or more dimensions d; give more")
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
        """The dimensions d of the simulations, in order."""
        return tuple(simulation.plan.d for simulation in self.simulations)

    def measurements(self) -> list[dict[str, TheoryWithMeasurement]]:
        """Return theoretical and simulated values of all observables, in one dictionary by name for every dimension."""
        return [compare_observables(self.solution, simulation) for simulation in self.simulations]

    def limits(self) -> dict[str, tuple[TheoryWithMeasurement, FiniteSizeExtrapolation]]:
        """Return simulated observables extrapolated to infinite d, next to theory, and their fits, by name.

        Dimensions with fewer than two runs on the branch are left out; fewer than two dimensions give an empty result.
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
    """Return whether any observable has a finite standard error, which needs two runs of the simulation."""
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
    """Compare a solution with simulations at several dimensions d, from the start that converged to the solution.

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
