"""Losses with narrow features: the proximal search misses none of them, and slopes are averaged across them.

References integrate over the error e of the residual z = e + V l'(e), or take the proximal map from the lower convex
hull of e^2 / 2 + V l(e) on a mesh that is graded towards the feature.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sympy as sp
from scipy.integrate import quad
from scipy.stats import norm

import saddleforge as sf
from saddleforge.channel.fields import field_law, overlaps_of_loss_fields
from saddleforge.channel.nodes import sobol_normal_points
from saddleforge.channel.points import proximal_points_at_nodes
from saddleforge.channel.search import THOROUGH, fraction_of_missed_minima
from saddleforge.integration import SmoothPiecesRule
from saddleforge.problems.overlaps import Overlaps
from saddleforge.problems.reduced import reduce_to_fields_of_loss
from saddleforge.saddle_point.iteration import Status
from saddleforge.solving import checks

DELTA, LAMBDA = 0.25, 0.1
GROWING = {"cubic": lambda x: x + x**3 / 3, "tanh": sp.tanh, "erf": sp.erf, "quintic": lambda x: x + x**5 / 5}


COMMON = {
    "noise": {"u": sf.GaussianNoise("Delta")},
    "regulariser": sf.Ridge(LAMBDA),
    "metric": lambda h, Y, u: sf.square(Y[0, 0] + u - h[0, 0]),
    "starts": {"semantic": sf.Start(teacher="3/5")},
}
Delta = sf.Parameter(DELTA, 0, doc="variance of the noise")
default_width = sf.Parameter(0.003, 0, open_low=True, doc="width of the minima")
power = sf.Parameter(1.5, 1, open_low=True, doc="power")


@sf.model(**COMMON)
def narrow_well(X, Y, u, *, Delta=Delta, w=default_width):
    """log(1 + (e / w)^2): a well of width w, and flat beyond."""
    return sp.log(1 + ((Y[0, 0] + u - X[0, 0]) / w) ** 2)


@sf.model(**COMMON)
def power_loss(X, Y, u, *, Delta=Delta, p=power):
    """|e|^p, whose curvature is infinite at zero for p below 2."""
    return sp.Abs(Y[0, 0] + u - X[0, 0]) ** p


def solved(model, accuracy=1e-8, **parameters):
    found = sf.solve(sf.problem(model, **parameters), accuracy=accuracy)
    assert found.success, found.status
    q, V, theta = (float(getattr(found.overlaps, name).flat[0]) for name in ("q", "V", "theta"))
    spread = np.sqrt(q - 2 * theta + 1 + found.problem.parameters["Delta"])
    return found, V, lambda z: np.exp(-0.5 * (z / spread) ** 2) / (np.sqrt(2 * np.pi) * spread)


def by_hull(loss, V, density, mesh, scale):
    """E[g^2] by the proximal map as the contact points of e^2 / 2 + V loss with its lower convex hull."""
    height, kept = mesh**2 / 2 + V * loss(mesh), []
    for n in range(len(mesh)):
        while len(kept) > 1:
            a, b = kept[-2:]
            if (height[b] - height[a]) * (mesh[n] - mesh[b]) < (height[n] - height[b]) * (mesh[b] - mesh[a]):
                break
            kept.pop()
        kept.append(n)
    # The proximal point is a vertex where z lies between the slopes on its sides, up to the mesh: one step of Newton's.
    z = np.linspace(-9, 9, 400_001)
    e = mesh[kept][np.searchsorted(np.diff(height[kept]) / np.diff(mesh[kept]), z)]
    for _ in range(3):
        h = 1e-4 * (scale + np.abs(e))
        low, middle, high = loss(e - h), loss(e), loss(e + h)
        e = e - (e - z + V * (high - low) / (2 * h)) / (1 + V * (high - 2 * middle + low) / h**2)
    return np.trapezoid(density(z) * ((z - e) / V) ** 2, z)


@pytest.mark.parametrize("width, q", [(0.003, 2.59298), (0.001, 2.92838)])
def test_no_well_of_a_loss_is_too_narrow_for_the_proximal_search(width, q):
    found, V, density = solved(narrow_well, alpha=5.0, w=width)
    assert float(found.overlaps.q.flat[0]) == pytest.approx(q, abs=5e-6)
    graded = np.concatenate([np.linspace(0, 30 * width, 30001), np.geomspace(30 * width, 9, 60001)[1:]])
    expected = by_hull(
        lambda e: np.log1p((e / width) ** 2), V, density, np.concatenate([-graded[:0:-1], graded]), width
    )
    assert float(found.conjugates.q.flat[0]) == pytest.approx(5 * expected, rel=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("p", [1.2, 1.5])
def test_a_loss_whose_curvature_is_infinite_is_integrated_across_it(p):
    found, V, density = solved(power_loss, alpha=2.0, p=p)

    def average(f):
        """Average f(z, e, l'') over e = t^(1 / (p - 1)), in which z and the measure are smooth."""

        def integrand(t):
            e = t ** (1 / (p - 1))
            z = e + V * p * t
            return 2 * density(z) * (e / t / (p - 1) + V * p) * f(z, e, p * (p - 1) * t / e)

        return quad(integrand, 0, 12, epsabs=1e-14, epsrel=1e-12, limit=400)[0]

    assert average(lambda z, e, bend: 1.0) == pytest.approx(1, abs=1e-10)
    assert float(found.conjugates.q.flat[0]) == pytest.approx(2 * average(lambda z, e, _: ((z - e) / V) ** 2), rel=1e-9)
    squared = average(lambda z, e, bend: (bend / (1 + V * bend)) ** 2)
    assert found.stability.replicon == pytest.approx(2 * squared * V**2, rel=1e-8)


def test_the_replicon_holds_where_the_proximal_map_nearly_jumps():
    """1 + V l'' falls to .0085, around which (dg/domega)^2 has a peak of a thousandth of the measure."""
    found, V, density = solved("tukey_regression", alpha=1.2, **{"lambda": 0.402})

    def squared(e):
        slope, bend = e * (1 - e**2 / 4) ** 2, (1 - e**2 / 4) * (1 - 5 * e**2 / 4)
        return density(e + V * slope) * bend**2 / (1 + V * bend)

    expected = 2 * quad(squared, 0, 2, epsabs=1e-13, epsrel=1e-12, limit=400, points=[1.2])[0]
    stability = found.stability
    assert stability.replicon == pytest.approx(1.2 * expected * V**2, rel=1e-9)
    assert stability.replicon == pytest.approx(1.611686, abs=1e-6)
    assert stability.unstable == "replicon"


@pytest.mark.slow
def test_the_replicon_passes_one_where_quadrature_says():
    found = sf.almeida_thouless(
        sf.problem("tukey_regression", alpha=1.2), on="semantic", parameter="lambda", bracket=(0.39, 0.6), accuracy=1e-6
    )
    assert found.value == pytest.approx(0.41493210, abs=max(found.error, 1e-8))
    assert found.error < 1e-6


@sf.model(tokens=2, **COMMON)
def two_narrow_wells(X, Y, u, *, Delta=Delta, w=default_width):
    """log(1 + (e / w)^2) of two tokens: a cross of two narrow valleys."""
    return sum(sp.log(1 + ((Y[token, 0] + u - X[token, 0]) / w) ** 2) for token in range(2))


@sf.model(student=2, noise={"u": sf.GaussianNoise("Delta")}, starts={"informed": sf.Start(teacher=((0.6,), (0.2,)))})
def narrow_hyperbola(X, Y, u, *, Delta=Delta, w=default_width):
    """log(1 + (e / w)^2) of a product of columns: no plane holds what is narrow."""
    return sp.log(1 + ((Y[0] + u - X[0] * X[1]) / w) ** 2)


@pytest.mark.slow
def test_a_valley_along_a_curve_is_seen_to_be_missed():
    problem = replace(sf.problem(narrow_hyperbola, alpha=5.0, w=0.03), search=THOROUGH)
    eye = np.eye(2)[None]
    assert (
        fraction_of_missed_minima(problem, Overlaps(2.0 * eye, 0.5 * eye, np.zeros((1, 2)), np.full((1, 2, 1), 0.2)))
        > 0.005
    )


def test_a_solution_whose_search_misses_minima_says_so(monkeypatch):
    monkeypatch.setattr(checks, "fraction_of_missed_minima", lambda problem, overlaps: 0.03)
    found = sf.solve(sf.problem("ridge_regression", alpha=2.0))
    assert found.status is Status.MINIMA_MISSED and not found.success
    assert "minimum of the loss at 3.0% of random points" in found.advice and "linear combination" in found.advice


@pytest.mark.slow
def test_no_valley_in_two_fields_is_too_narrow_for_the_thorough_search():
    """The loss reads two residuals and is a sum over them, whose proximal points are those of one field each."""
    V, width = 0.5, 0.003
    problem = sf.problem(two_narrow_wells, alpha=2.5, w=width)
    blocks = [np.full((2, 1, 1), value) for value in (0.4, V, 0.2)]
    part = reduce_to_fields_of_loss(problem)
    fields = field_law(part, overlaps_of_loss_fields(part, Overlaps(*blocks[:2], np.zeros((2, 1)), blocks[2])), (0, 0))
    nodes = sobol_normal_points(part.dimension, 9, 31, ())
    found = proximal_points_at_nodes(part, fields, nodes, THOROUGH)
    mesh = np.geomspace(1e-6, 12, 4000)
    mesh = np.concatenate([-mesh[::-1], [0], mesh])
    lowest = np.zeros(len(nodes))
    for token in range(2):
        away = (mesh - found.omega.reshape(-1, 2, 1)[:, token]) ** 2 / (2 * V)
        lowest += (away + np.log1p((mesh / width) ** 2)).min(axis=1)
    assert np.all(found.value < lowest + 1e-6)
    assert (
        fraction_of_missed_minima(replace(problem, search=THOROUGH), Overlaps(*blocks[:2], np.zeros((2, 1)), blocks[2]))
        == 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", GROWING)
def test_a_squared_hinge_of_a_nonlinear_unit_bends_where_it_does(name):
    """Its curvature jumps at a place that a formula gives (cubic, tanh) or none does (erf, quintic); only the former is
    an end of a piece. Reference: Gauss-Legendre over X on the bent side, where omega = X + V l'(X) grows."""
    threshold, alpha, ridge = 0.4, 1.7, 0.8

    @sf.model(name=f"hinge_of_{name}", regulariser=sf.Ridge(ridge), starts={"semantic": sf.Start(teacher="3/5")})
    def bent(X, Y):
        return sp.Max(0, threshold - sp.sign(Y[0]) * GROWING[name](X[0])) ** 2 / 2

    solution = sf.solve(sf.problem(bent, alpha=alpha), "semantic")
    q, V, theta = (float(getattr(solution.overlaps, each).item()) for each in ("q", "V", "theta"))
    x = sp.Symbol("x", real=True)
    loss = (threshold - GROWING[name](x)) ** 2 / 2
    slope, curvature = (sp.lambdify(x, sp.diff(loss, x, order), ["scipy", "numpy"]) for order in (1, 2))
    edge = float(sp.nsolve(GROWING[name](x) - threshold, 0.4))
    t, w = np.polynomial.legendre.leggauss(40)
    ends = edge - np.linspace(0, 8, 81)[::-1]
    half = np.diff(ends)[:, None] / 2
    X = (half * (t + 1) + ends[:-1, None]).ravel()
    omega, bend = X + V * slope(X), curvature(X)
    left = 1 - theta**2 / q
    weight = (half * w).ravel() * (1 + V * bend) * norm.pdf(omega, scale=np.sqrt(q))
    drive = theta / q * omega / np.sqrt(left)
    average = lambda values: 2 * alpha * float(weight @ (norm.cdf(drive) * values))  # noqa: E731
    q_hat, V_hat = average(slope(X) ** 2), average(bend / (1 + V * bend))
    theta_hat = -2 * alpha * float(weight @ (norm.pdf(drive) * slope(X))) / np.sqrt(left)
    response = 1 / (ridge + V_hat)
    found = ((theta_hat**2 + q_hat) * response**2, response, theta_hat * response)
    assert solution.rule.name == "pieces"
    np.testing.assert_allclose((q, V, theta), found, rtol=3e-12)
    replicon = average((bend / (1 + V * bend)) ** 2) * response**2
    assert abs(solution.stability.replicon - replicon) <= solution.stability.replicon_error + 1e-13


@pytest.mark.slow
def test_a_training_loss_that_grows_with_the_teacher_is_resolved_to_its_error_bar():
    """The Moreau objective bends in Y, where X does not: error bars were a fifth of the error."""

    @sf.model(regulariser=sf.Ridge(LAMBDA), starts=COMMON["starts"])
    def bent_far_out(X, Y):
        e = Y[0] ** 2 - 1 - sp.Max(X[0], 0)
        return sp.Min(e**2, (e - 1) ** 2 + 1.1)

    problem = sf.problem(bent_far_out, alpha=20)
    solution = sf.solve(problem, "semantic")
    coarse, fine = (SmoothPiecesRule(points).averages(problem, solution.overlaps).moreau.mean() for points in (12, 24))
    assert abs(fine - coarse) <= 1e-8 * fine
