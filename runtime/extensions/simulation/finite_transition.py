"""The first-order transition at finite d, at which two minima of the same risk have equal training loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...base.errors import InputError, NotConvergedError
from ...base.options import AlgorithmOptions
from ...problems.problem import Problem
from .controls import ControlVariates
from .estimate import MeanEstimate
from .simulation import Simulation, simulate


@dataclass(frozen=True)
class FiniteTransitionOptions(AlgorithmOptions):
    """Options of the location of a transition at finite d.

    Attributes:
        resamples: bootstrap resamples of the seeds, for the error.
    """

    resamples: int = 2000


@dataclass(frozen=True)
class PairedLossDifference:
    """The training loss difference of two minima on the same data, seed by seed, at one alpha = n/d.

    Attributes:
        seeds: seeds for which the runs from both starts ended on the branches of their starts.
        values: loss difference for every seed.
        controls: control variates of both runs of every seed; empty if a run has none.
    """

    alpha: float
    seeds: tuple[int, ...]
    values: np.ndarray
    controls: tuple[ControlVariates, ...] = ()

    @cached_property
    def estimate(self) -> MeanEstimate:
        """The mean over seeds of the training loss difference with its standard error; nan without enough seeds."""
        return MeanEstimate.from_values(self.values, self.controls)

    @property
    def mean(self) -> float:
        """The mean over seeds of the training loss difference of two minima."""
        return float(self.estimate.mean)

    @property
    def standard_error(self) -> float:
        """The standard error of the mean training loss difference, from its fluctuations over seeds."""
        return float(self.estimate.standard_error)


@dataclass(frozen=True)
class FiniteTransition:
    """A first-order transition at finite d: the alpha at which the mean loss difference of two minima vanishes.

    Attributes:
        between: names of the two branches to which the minima belong.
        value: alpha at the transition.
        error: standard error of alpha, by bootstrap over the seeds.
        differences: loss differences at every alpha, ascending.
    """

    problem: Problem
    d: int
    between: tuple[str, str]
    value: float
    error: float
    differences: tuple[PairedLossDifference, ...]


def paired_loss_difference(first: Simulation, second: Simulation, between: tuple[str, str]) -> PairedLossDifference:
    """Return the differences in training loss between two simulations of one problem on the same data.

    Args:
        first: first simulation.
        second: second simulation, with the same seeds.
        between: names of the branches to which the runs of the first and of the second simulation must belong.
    """
    one, other = (
        {run.seed: run for run in simulation.only(name).runs}
        for simulation, name in zip((first, second), between, strict=True)
    )
    pairs = {seed: (one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())}
    values = np.array([a.training_loss - b.training_loss for a, b in pairs.values()])
    controls = tuple(
        a.controls.join_control_variates(b.controls) for a, b in pairs.values() if a.controls and b.controls
    )
    complete = len(controls) == len(pairs)
    return PairedLossDifference(first.problem.alpha, tuple(pairs), values, controls if complete else ())


def fit_zero_of_loss_difference(differences: Sequence[PairedLossDifference]) -> tuple[float, float]:
    """Return the alpha where a fit to the mean training loss differences vanishes, and its standard error.

    The fit is a parabola in alpha, or a line for fewer than four values. The error is by bootstrap over seeds, each
    with all its alphas, since differences at neighbouring alpha fluctuate together.

    Raises:
        InputError: the differences do not vanish near the alphas.
        NotConvergedError: at an alpha fewer than two seeds have both runs on their branches.
    """
    for difference in differences:
        if len(difference.seeds) < 2:
            raise NotConvergedError(
                f"alpha = {difference.alpha:g}: on the same data both starts ended on their branches for "
                f"{len(difference.seeds)} seed{'' if len(difference.seeds) == 1 else 's'}, and at least 2 are needed; "
                "take a larger d, more seeds, or alphas between the ends of both branches"
            )
    alphas = np.array([d.alpha for d in differences])
    middle, half = (alphas[0] + alphas[-1]) / 2, (alphas[-1] - alphas[0]) / 2
    seeds = sorted({seed for d in differences for seed in d.seeds})
    place = {seed: i for i, seed in enumerate(seeds)}
    table, present = np.zeros((2, len(seeds), len(differences)))
    for column, difference in enumerate(differences):
        rows = [place[seed] for seed in difference.seeds]
        table[rows, column], present[rows, column] = difference.estimate.values, 1.0
    powers = np.vander((alphas - middle) / half, 3 if len(alphas) > 3 else 2, increasing=True)
    weights = 1 / np.array([d.standard_error for d in differences])[:, None]
    fit = np.linalg.pinv(powers * weights) * weights.T

    def resampled_transition_alphas(counts: np.ndarray) -> np.ndarray:
        """Return the alpha of the transition for each bootstrap resample of seeds; nan where no zero of the fit exists.

        `counts` is how often each seed occurs in each resample, shape (resamples, seeds).
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            means = (counts @ table) / (counts @ present)
            constant, slope, *bend = (means @ fit.T).T
            inside = slope**2 - 4 * constant * (bend[0] if bend else 0.0)
            # The root that remains for a line.
            return middle + half * -2 * constant / (slope + np.copysign(np.sqrt(inside), slope))

    value = float(resampled_transition_alphas(np.ones((1, len(seeds))))[0])
    if not abs(value - middle) <= 3 * half:
        raise InputError(
            f"no transition near alpha = {alphas[0]:g}..{alphas[-1]:g}: the difference of training losses does not "
            f"vanish, but is {', '.join(f'{d.mean:.2e}' for d in differences)}; take other alphas"
        )
    resamples = FiniteTransitionOptions.current().resamples
    draws = np.random.default_rng(41).multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), size=resamples)
    return value, float(np.nanstd(resampled_transition_alphas(draws)))


def finite_transition(
    problem: Problem,
    alphas: Sequence[float],
    *,
    d: int = 1000,
    seeds: int = 32,
    between: tuple[str, str] = ("semantic", "positional"),
    threads: int | None = None,
    **options: Any,
) -> FiniteTransition:
    """Locate a first-order transition at finite d, by minimising from two starts on the same data at several alpha.

    Args:
        problem: the model with its parameters.
        alphas: at least two values around the transition.
        d: dimension.
        seeds: number of seeds.
        between: names of the two starts, which are also those of the branches that their minima must belong to.
        threads: number of processes, one thread each; all cores by default.
        options: further options of `simulate`.

    Raises:
        InputError: fewer than two alphas, or the difference does not vanish near them.
        NotConvergedError: at an alpha fewer than two seeds have both runs on their branches.

    Example:
        >>> problem = sf.problem("dot_product_attention", omega=0.3)
        >>> found = sf.finite_transition(problem, [1.1, 1.4], d=200, seeds=4)
        >>> bool(abs(found.value - 1.25) < 5 * found.error)
        True
    """
    if len(set(alphas)) < 2:
        raise InputError("alphas must contain at least two values around the transition")
    differences = []
    for alpha in sorted(alphas):
        at = problem.with_(alpha=alpha)
        one, other = (
            simulate(at, d=d, seeds=seeds, start=start, threads=threads, **options).require_not_interrupted()
            for start in between
        )
        differences.append(paired_loss_difference(one, other, between))
    value, error = fit_zero_of_loss_difference(differences)
    return FiniteTransition(problem, d, between, value, error, tuple(differences))
