"""Energies with one step of replica symmetry breaking that others have published."""

import numpy as np
import pytest
from scipy.optimize import brentq, fixed_point

import saddleforge as sf
from saddleforge.integration import Pieces
from saddleforge.integration.penalised_rows import Minimum, row_averages


@pytest.mark.parametrize(("strength", "published"), [(0.0, 0.2918448), (0.13317552342239194, 0.3724407)])
def test_amplitudes_without_a_signal(strength, published):
    """(|Y| - |X|)^2 and lambda w^2 / 2 at zero overlap with the teacher, alpha = 3: tables of GASP.jl."""
    problem = sf.problem("amplitude_retrieval", alpha=3.0, **{"lambda": strength})
    found = sf.solve(problem, "uninformed", rsb=1, accuracy=1e-6)
    assert found.success
    assert found.energy == pytest.approx(published, abs=6e-8)
    if strength:
        between, V = found.state.between.q.item(), found.overlaps.V.item()
        assert (between, found.overlaps.q.item(), V) == pytest.approx((0.37478, 1.09361, 0.40052), abs=6e-6)
        assert found.parisi == pytest.approx(1.78453, abs=6e-6)


def test_spins_in_the_place_of_rows():
    """Sherrington and Kirkpatrick's model at T = 0: rows +-1, N = |b|, and q^ = q in the place of sentences.

    Phi(y) = -y (1 - q_0^2) / 4 + E (1 / y) log E exp(y |b|); energies -0.76526, replica symmetric -(2 / pi)^(1/2), at
    q_0 = 0.4768, y = 1.361 (Parisi, J. Phys. A 13 (1980) 1101).
    """

    def spins(b, known):
        return Minimum(np.sign(b), np.zeros_like(b), np.zeros_like(b), np.abs(b))

    def averages(q, y):
        return row_averages(spins, np.array([[q]]), np.zeros((1, 1)), 1 - q, y, Pieces(16))

    def between(y):
        return float(fixed_point(lambda q: averages(q, y).between, 0.5, xtol=1e-10))

    def energy(q, y):
        return y * (1 - q * q) / 4 - averages(q, y).free

    def slope(y, step=1e-4):
        q = between(y)
        return energy(q, y + step) - energy(q, y - step)

    y = brentq(slope, 1.2, 1.5, xtol=1e-6)
    q = between(y)
    assert energy(q, y) == pytest.approx(-0.76526, abs=5e-6)
    assert (q, y) == pytest.approx((0.4768, 1.361), abs=1e-3)
    assert averages(1 - 1e-6, 1.0).free == pytest.approx(np.sqrt(2 / np.pi), abs=1e-3)
