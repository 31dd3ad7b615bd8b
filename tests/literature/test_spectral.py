"""Spectral methods on the sphere: the leading eigenvector of sum_i T(y_i) x_i x_i^T as the minimum of -T X^2/2.

With V the response, S = T/(1 - V T) and E over Y ~ N(0, 1), a state with overlap theta solves
1 = alpha V E[S (Y^2 - 1)] and 1 = theta^2 + alpha V^2 E[S^2 (theta^2 Y^2 + 1 - theta^2)]; the saddle theta = 0 solves
the second alone. Both hold where the eigenvector begins to know the signal (Mondelli and Montanari, arXiv 1708.05932;
Lu and Li, arXiv 1702.06435).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property

import numpy as np
import pytest
import sympy as sp
from scipy.optimize import brentq

import saddleforge as sf

pytestmark = pytest.mark.slow

STARTS = {"informed": sf.Start(teacher=0.6, noise=0.8), "uninformed": sf.Start(noise=1)}


def built(name: str, transform: Callable[[sp.Expr], sp.Expr]) -> sf.Model:
    """The method with a transform T of the labels y = Y."""

    @sf.model(name=name, regulariser=sf.Sphere(1), unbounded=True, starts=STARTS)
    def method(X, Y):
        return -transform(Y[0]) * X[0] ** 2 / 2

    return method


METHODS = {
    "bounded": (lambda y: y**2 / (1 + y**2), lambda y: y**2 / (1 + y**2), 1),
    "clipped": (lambda y: sp.Min(y**2 - 1, 2), lambda y: np.minimum(y**2 - 1, 2), 2),
}


class Closed:
    """Return the solution of the closed equations, T at most `largest`."""

    def __init__(self, transform: Callable[[np.ndarray], np.ndarray], largest: int) -> None:
        nodes, weights = np.polynomial.legendre.leggauss(80)
        edges = np.array([0.0, 1.0, np.sqrt(3.0), 3.0, 5.0, 7.0, 9.0, 12.0])
        middles, halves = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
        self.y = (middles[:, None] + halves[:, None] * nodes).ravel()
        self.weights = (halves[:, None] * weights).ravel() * 2 * np.exp(-(self.y**2) / 2) / np.sqrt(2 * np.pi)
        self.values, self.end = transform(self.y), 0.9999 / largest

    def mean(self, V: float, power: int, tilted: bool) -> float:
        """E[S^power], or E[S^power (Y^2 - 1)]."""
        slope = (self.values / (1 - V * self.values)) ** power
        return float(self.weights @ (slope * (self.y**2 - 1) if tilted else slope))

    def root(self, function: Callable[[float], float]) -> float:
        """Average a function of V."""
        return float(brentq(function, self.end / 10, self.end, xtol=1e-15, rtol=1e-15))

    def overlap(self, alpha: float) -> float:
        """theta of the minimum."""
        V = self.root(lambda V: alpha * V * self.mean(V, 1, True) - 1)
        plain, tilted = (alpha * V**2 * self.mean(V, 2, tilted) for tilted in (False, True))
        return float(np.sqrt((1 - plain) / (1 + tilted)))

    @cached_property
    def threshold(self) -> float:
        """alpha from which on there is an overlap."""
        V = self.root(lambda V: V * self.mean(V, 2, False) - self.mean(V, 1, True))
        return 1 / (V * self.mean(V, 1, True))


@pytest.fixture(scope="module", params=list(METHODS))
def method(request: pytest.FixtureRequest) -> tuple[sf.Problem, Closed]:
    symbolic, numeric, largest = METHODS[request.param]
    return sf.problem(built(f"spectral_{request.param}", symbolic), alpha=2.0), Closed(numeric, largest)


@pytest.mark.parametrize("share", [1.1, 1.5, 2.17])
def test_the_informed_start_reaches_the_minimum_wherever_there_is_one(method, share):
    problem, closed = method
    alpha = share * closed.threshold
    found = sf.solve(problem.with_(alpha=alpha), "informed", accuracy=1e-9)
    assert found.success and found.branch == "semantic"
    assert abs(found.overlaps.theta.item() - closed.overlap(alpha)) <= found.error_bars.theta.item()


def test_all_branches_hold_the_minimum_below_a_saddle_that_one_start_leads_to(method):
    problem, closed = method
    alpha = 2 * closed.threshold
    for starts in (None, ["uninformed"]):
        lowest, saddle = sf.solutions(problem.with_(alpha=alpha), starts=starts, accuracy=1e-9)
        assert (lowest.branch, saddle.branch, lowest.rank, saddle.rank) == ("semantic", "uninformed", 1, 2)
        assert lowest.stability.longitudinally_stable and "a saddle" in saddle.stability.verdict
        assert lowest.training_loss + lowest.training_loss_error < saddle.training_loss
        assert abs(lowest.overlaps.theta.item() - closed.overlap(alpha)) <= lowest.error_bars.theta.item()


def test_below_the_threshold_the_start_says_where_its_branch_is_lost(method):
    problem, closed = method
    threshold = closed.threshold
    found = sf.solve(problem.with_(alpha=0.8 * threshold), "informed")
    ends = re.search(r"its branch is lost between alpha = (\S+) and alpha = (\S+);", found.advice)
    high, low = (float(end) for end in ends.groups())
    assert not found.success and low < threshold < high < 1.3 * threshold


def test_the_pitchfork_is_located_from_either_side_within_its_uncertainty(method):
    problem, closed = method
    threshold = closed.threshold
    ends = threshold * 0.5, threshold * 2.17
    located = [
        sf.spinodal(problem, on="informed", bracket=ends),
        sf.instability(problem, on="uninformed", bracket=ends),
        *sf.follow(problem, start="informed", between=ends[::-1]).events,
        *sf.follow(problem, start="informed", between=(2 * ends[1], ends[0])).events,
    ]
    assert len(located) == 4
    for event in located:
        assert event.success and abs(event.value - threshold) <= event.error < 1e-6
