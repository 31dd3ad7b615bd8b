"""Two layers of attention, trained: the order in which layers are learned, compared with the best possible learner."""

from pathlib import Path

import numpy as np
import pytest

import saddleforge as sf

DEEP = Path(__file__).parents[2] / "examples" / "deep_attention.py"


@pytest.fixture(scope="module")
def minimiser():
    """lambda = 0.01, c = 1, from the semantic start, by alpha."""
    kept = {}

    def at(alpha):
        if alpha not in kept:
            problem = sf.problem(DEEP, alpha=alpha, c=1, **{"lambda": 0.01})
            kept[alpha] = sf.solve(problem, "semantic", accuracy=1e-2)
        return kept[alpha]

    return at


@pytest.mark.slow
def test_risk_minimisation_learns_the_second_layer_alone_and_then_the_first(minimiser):
    """At alpha = 1.5 the first layer's overlap is lost, at 2.5 both are there; docs/bayes-optimal.md."""
    for alpha, first, second in ((1.5, 0.0, 0.9251), (2.5, 0.642, 0.9949)):
        found = minimiser(alpha)
        theta, width = np.abs(found.overlaps.theta[0]), found.error_bars.theta[0]
        assert found.success
        assert theta[1, 1] == pytest.approx(second, abs=2 * width[1, 1] + 1e-3)
        assert theta[0, 0] == pytest.approx(first, abs=2 * width[0, 0] + 3e-3)
        assert max(theta[0, 1], theta[1, 0]) < 1e-3
    assert minimiser(2.5).test_errors["first"] < 0.3 * minimiser(1.5).test_errors["first"]


@pytest.mark.slow
def test_the_second_layer_is_known_no_better_than_optimally(minimiser):
    """The optimum at alpha = 0.65, which is stable with nothing known of the first layer, knows more of the second than
    risk minimisation does at 0.9."""
    best = sf.bayes_optimal(sf.problem(DEEP, alpha=0.65, c=1), columns=[2], accuracy=3e-3)
    assert best.growth < 1
    found = minimiser(0.9)
    cosine = abs(found.overlaps.theta[0, 1, 1]) / np.sqrt(found.overlaps.q[0, 1, 1])
    assert 0.9 < cosine < best.cosine(column=1)


@pytest.mark.slow
def test_one_pass_of_descent_learns_the_second_layer_first():
    """Overlaps of 1 / sqrt d at d = 1000, rate 1: the second layer within ten steps, the first after a plateau."""
    problem = sf.problem(DEEP, c=1, **{"lambda": 0.001})
    found = sf.dynamics(
        problem, rate=1, time=np.linspace(0, 130, 14), start={"q": 1.0, "theta": 0.03}, accuracy=2e-2,
        events={"theta_1_11": 0.5, "theta_1_22": 0.5},
    )  # fmt: skip
    second, first = ({event.name: event for event in found.events}[name] for name in ("theta_1_22", "theta_1_11"))
    assert second.time + second.error < first.time - first.error
    assert second.time == pytest.approx(10.2, abs=0.5)
    assert first.time == pytest.approx(121, abs=20)
    plateau = found.overlaps[int(np.searchsorted(found.times, 20.0))].theta[0]
    assert plateau[0, 0] < 0.05 and plateau[1, 1] > 0.9
