"""Energies with one step of replica symmetry breaking that others have published."""

import numpy as np
import pytest
from scipy.optimize import minimize

import saddleforge as sf
from saddleforge.integration import SmoothPiecesRule
from saddleforge.integration.penalised_rows import WeightRowMinimum, one_column_row_averages


@pytest.mark.parametrize(("strength", "published"), [(0.0, 0.2918448), (0.13317552342239194, 0.3724407)])
@pytest.mark.slow
def test_broken_amplitude_retrieval_without_signal_has_the_published_energy(strength, published):
    """(|Y| - |X|)^2 and lambda w^2 / 2 at zero overlap with the teacher, alpha = 3: tables of GASP.jl."""
    problem = sf.problem("amplitude_retrieval", alpha=3.0, **{"lambda": strength})
    found = sf.solve(problem, "uninformed", rsb=1, accuracy=1e-6)
    assert found.success
    assert found.energy == pytest.approx(published, abs=6e-8)
    if strength:
        between, V = found.state.between.q.item(), found.overlaps.V.item()
        assert (between, found.overlaps.q.item(), V) == pytest.approx((0.37478, 1.09361, 0.40052), abs=6e-6)
        assert found.parisi == pytest.approx(1.78453, abs=6e-6)


def spins(b, known):
    """Rows +-1 at fields b: N = |b|."""
    return WeightRowMinimum(np.sign(b), 0 * b[:, 0], np.zeros((*b.shape, 1)), np.abs(b[:, 0]))


def averages_of_spins(q, y, points):
    """At overlaps q (K,) of the levels outside q_K = 1 and Parisi parameters y (K,)."""
    apart = np.diff([*q, 1.0])
    return one_column_row_averages(
        spins, np.array([[q[0]]]), np.zeros((1, 1)), apart, np.array(y), SmoothPiecesRule(points)
    )


@pytest.mark.parametrize(
    ("begin", "published"),
    [
        ([0.5, 1.4], -0.7652594),
        ([0.3, 0.6, 0.8, 2.5], -0.7636080),
        pytest.param([0.2, 0.45, 0.7, 0.6, 1.5, 4.0], -0.7633135, marks=pytest.mark.slow),
    ],
    ids=["one step", "two", "three"],
)
def test_breaking_of_spin_rows_gives_the_energies_of_sherrington_and_kirkpatrick(begin, published):
    """Sherrington and Kirkpatrick's model at T = 0: rows +-1, N = |b|, and q^ = q in the place of sentences.

    The energy sum_k y_k (q_k^2 - q_(k-1)^2) / 4 - E f_1 is greatest in all q and y. Replica symmetric -(2 / pi)^(1/2);
    one step at q_0 = 0.4768, y = 1.361 (Parisi, J. Phys. A 13 (1980) 1101); infinitely many -0.763167.
    """
    steps = len(begin) // 2

    def energy(x):
        """And its gradient: overlaps of rows are those of sentences."""
        q, y = x[:steps], x[steps:]
        if np.any(np.diff([0.0, *q, 1.0]) < 1e-3) or np.any(y < 1e-3):
            return 0.0, np.zeros_like(x)
        found = averages_of_spins(q, y, 10)
        squares, free = np.array([*q, 1.0]) ** 2, found.free
        along_q = -np.diff([0.0, *y]) / 2 * (q - found.overlaps[:-1, 0, 0])
        along_y = np.diff(squares) / 4 - np.diff(free) / y
        return free[0] - y @ np.diff(squares) / 4, -np.concatenate([along_q, along_y])

    found = minimize(energy, begin, jac=True, method="BFGS", options={"gtol": 1e-7})
    assert found.fun == pytest.approx(-published, abs=1e-7)
    if steps == 1:
        assert found.x == pytest.approx((0.4768, 1.361), abs=1e-3)


def test_spins_that_coincide_are_replica_symmetric():
    assert averages_of_spins([1 - 1e-6], [1.0], 16).free[0] == pytest.approx(np.sqrt(2 / np.pi), abs=1e-3)
