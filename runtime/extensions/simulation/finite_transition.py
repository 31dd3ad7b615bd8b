"""The first-order transition at finite d: where two minima of the same risk have equal training loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...base.errors import InputError, NotConvergedError
from ...problems.problem import Problem
from .controls import Controls
from .estimate import Estimate
from .simulation import Simulation, simulate

_RESAMPLES = 2000


@dataclass(frozen=True)
class PairedDifference:
    """Training loss of one minimum less that of another, seed by seed on the same data, at one alpha.

    Attributes:
        seeds: those whose two runs ended on their branches; values: one a seed.
        controls: control variates of both sides, one a seed; none where one side has none.
    """

    alpha: float
    seeds: tuple[int, ...]
    values: np.ndarray
    controls: tuple[Controls, ...] = ()

    @cached_property
    def estimate(self) -> Estimate:
        """Over the seeds; nan where none has both runs on their branches, and its error for fewer than two."""
        return Estimate.of(self.values, self.controls)

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return float(self.estimate.mean)

    @property
    def standard_error(self) -> float:
        """Return the standard error of the mean over the seeds, from their spread."""
        return float(self.estimate.standard_error)


@dataclass(frozen=True)
class FiniteTransition:
    """Where the mean difference vanishes.

    Attributes:
        value, error: alpha and its standard error, by resampling of the seeds.
        differences: at every alpha, ascending.
    """

    problem: Problem
    d: int
    between: tuple[str, str]
    value: float
    error: float
    differences: tuple[PairedDifference, ...]


def paired(first: Simulation, second: Simulation, between: tuple[str, str]) -> PairedDifference:
    """Differences of two simulations of one problem that share their data."""
    one, other = (
        {run.seed: run for run in simulation.only(name).runs}
        for simulation, name in zip((first, second), between, strict=True)
    )
    pairs = {seed: (one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())}
    values = np.array([a.training_loss - b.training_loss for a, b in pairs.values()])
    controls = tuple(a.controls.beside(b.controls) for a, b in pairs.values() if a.controls and b.controls)
    complete = len(controls) == len(pairs)
    return PairedDifference(first.problem.alpha, tuple(pairs), values, controls if complete else ())


def root_of(differences: Sequence[PairedDifference]) -> tuple[float, float]:
    """Where a parabola (a line, for fewer than four alphas) through the mean differences vanishes, and its standard
    error from resampled seeds.

    Seeds are resampled as wholes: with common seeds the differences at neighbouring alpha fluctuate together.

    Raises:
        InputError: the differences do not vanish near the alphas.
        NotConvergedError: at an alpha fewer than two seeds have both runs on their branches.
    """
    for difference in differences:
        if len(difference.seeds) < 2:
            raise NotConvergedError(
                f"alpha = {difference.alpha:g}: on the same data both starts ended on their branches for "
                f"{len(difference.seeds)} seed{'' if len(difference.seeds) == 1 else 's'}, and at least 2 are needed; "
                "larger d, more seeds, or alphas between the ends of both branches"
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

    def roots(counts: np.ndarray) -> np.ndarray:
        """Of resamples that hold each seed so many times, (B, seeds); nan where there is none."""
        with np.errstate(invalid="ignore", divide="ignore"):
            means = (counts @ table) / (counts @ present)
            constant, slope, *bend = (means @ fit.T).T
            inside = slope**2 - 4 * constant * (bend[0] if bend else 0.0)
            # The root that a line has, too.
            return middle + half * -2 * constant / (slope + np.copysign(np.sqrt(inside), slope))

    value = float(roots(np.ones((1, len(seeds))))[0])
    if not abs(value - middle) <= 3 * half:
        raise InputError(
            f"the difference of training losses does not vanish near alpha = {alphas[0]:g}..{alphas[-1]:g}: "
            + ", ".join(f"{d.mean:.2e}" for d in differences)
        )
    draws = np.random.default_rng(41).multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), size=_RESAMPLES)
    return value, float(np.nanstd(roots(draws)))


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
    """Minimise from both starts on the same data at some alpha around the transition.

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
        raise InputError("alphas: at least two values around the transition are expected")
    differences = []
    for alpha in sorted(alphas):
        at = problem.with_(alpha=alpha)
        one, other = (
            simulate(at, d=d, seeds=seeds, start=start, threads=threads, **options).require_complete()
            for start in between
        )
        differences.append(paired(one, other, between))
    value, error = root_of(differences)
    return FiniteTransition(problem, d, between, value, error, tuple(differences))
