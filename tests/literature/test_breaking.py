"""Energies with one step of replica symmetry breaking that others have published."""

import pytest

import saddleforge as sf


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
