"""One-pass descent at finite d against the dynamics, all overlaps at once: ten times 16 seeds, 1/d taken out."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import chi2, f

import saddleforge as sf
from saddleforge.extensions.descent.schedule import parse_batch_size, parse_learning_rate
from saddleforge.extensions.descent.state import moments_of_start
from saddleforge.extensions.simulation.instance import Instance
from saddleforge.extensions.simulation.methods.sgd import draw_weights_with_moments, run_one_pass_sgd

SIZES = 500, 1000
TIMES, SEEDS = 10, 16  # so many times so many seeds
INDEPENDENT = 1e-2  # eigenvalue of the correlations of entries, above which a direction counts as one
ONE_IN = 1e-3  # of simulations of the right equations fail, at either end

BASE = {"sigma": 0.5, "omega": 0.3, "lambda": 0.002}
CASES = {
    "base case": ("dot_product_attention", BASE, 4.0, [0, 2, 4], {"q": 0.125, "theta": 0.025, "m_1": 0.1}),
    "base case, to the end": (
        "dot_product_attention", BASE, 4.0, [0, 8, 20, 40], {"q": 0.125, "theta": 0.025, "m_1": 0.1},
    ),
    "rank 2": ("dot_product_attention", {"student_rank": 2, "lambda": 0.002}, 3.0, [0, 2, 4], "mixed"),
    "untied": ("untied_attention", {}, 2.0, [0, 2, 4], "semantic"),
    "clusters with labels": ("attention_on_mixture", {}, 1.0, [0, 2, 4], "mixed"),
    "phase retrieval": ("phase_retrieval", {}, 0.05, [0, 2, 4], {"q": 0.5, "theta": 0.3}),
    "committee": (
        "committee_machine", {}, 1.0, [0, 2, 4],
        {"q": [[[0.5, 0], [0, 0.4]]], "theta": [[[0.2, 0], [0, 0.1]]]},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Joint:
    """Of means of 16 seeds against theory, ten times: chi-squared, what it is drawn with, entries behind it."""

    chi_squared: float
    freedom: int
    directions: int
    entries: int


def passes(problem, d, rate, times, begin, seeds=TIMES * SEEDS):
    """Packed q, m, theta at the times after the first, (seeds, times, entries)."""
    found = []
    for seed in range(seeds):
        instance = Instance(problem, d, seed, memory=0.0)
        weights = draw_weights_with_moments(instance, begin)
        found.append(
            run_one_pass_sgd(
                instance, weights, parse_learning_rate(rate), parse_batch_size("1"), np.array(times, float)
            ).path[1:]
        )
    return np.array(found)


def known(runs):
    """Which entries are numbers that differ from seed to seed, (times, entries)."""
    return np.isfinite(runs).all(axis=0) & (runs.std(axis=0) > 1e-12)


def directions(left, nu):
    """(entries, k): independent combinations of entries, of variance one, by what is left of them next to their means
    with nu degrees of freedom."""
    covariance = left.T @ left / nu
    sizes = np.sqrt(np.diag(covariance))
    values, vectors = np.linalg.eigh(covariance / np.outer(sizes, sizes))
    kept = values > INDEPENDENT
    return vectors[:, kept] / sizes[:, None] / np.sqrt(values[kept])


def joint(runs, expected):
    """Of overlaps at the two sizes, (2, seeds, times, entries), and at infinite d, (times, entries).

    Starts and data of a seed share their first draws at both sizes, so that 2 x(2d) - x(d) is taken seed by seed.
    The covariance is that of all seeds about the means of their sixteens; its inverse is too large by
    nu / (nu - k - 1) in k directions.
    """
    small, large = runs
    entries = known(large)
    off = (2 * large - small - expected)[:, entries].reshape(TIMES, SEEDS, -1)
    means = off.mean(axis=1)
    nu = TIMES * (SEEDS - 1)
    along = directions((off - means[:, None]).reshape(TIMES * SEEDS, -1), nu)
    k = along.shape[1]
    z = means @ along * np.sqrt(SEEDS * (nu - k - 1) / nu)
    return Joint(float(np.sum(z**2)), TIMES * k, k, int(entries.sum()))


def set_up(case, times=None):
    """Problem, rate, times, the start's moments and the dynamics of a case."""
    name, values, rate, own, start = CASES[case]
    times = own if times is None else times
    problem = sf.problem(name, **{**values, "alpha": float(times[-1])})
    theory = sf.dynamics(problem, rate, times, start, accuracy=1e-5)
    assert theory.success
    expected = np.array([overlaps.pack() for overlaps in theory.overlaps])[1:]
    return problem, rate, times, moments_of_start(problem, start)[1], expected


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_overlaps_at_finite_d_are_those_of_the_dynamics_jointly(case):
    problem, rate, times, begin, expected = set_up(case)
    runs = np.array([passes(problem, d, rate, times, begin) for d in SIZES])
    found = joint(runs, expected)
    print(f"\n{case}: chi-squared {found.chi_squared:.1f} for {found.freedom}, {found.directions} of {found.entries}")
    assert chi2.ppf(ONE_IN, found.freedom) < found.chi_squared < chi2.isf(ONE_IN, found.freedom)


@pytest.mark.slow
def test_simulations_of_the_base_case_at_large_d_agree_with_theory():
    """Without extrapolation: of sixteen seeds Hotelling's T^2, whose law is known."""
    problem, rate, times, begin, expected = set_up("base case", [0, 1, 2])
    runs = passes(problem, 4000, rate, times, begin, SEEDS)
    off = (runs - expected)[:, known(runs)]
    mean = off.mean(axis=0)
    along = directions(off - mean, SEEDS - 1)
    k = along.shape[1]
    T = SEEDS * np.sum((mean @ along) ** 2)
    print(f"\nd = 4000: T^2 {T:.1f} in {k} directions of {len(mean)}")
    assert T * (SEEDS - k) / (k * (SEEDS - 1)) < f.isf(ONE_IN, k, SEEDS - k)
