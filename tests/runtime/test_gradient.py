"""The saddle point IS the gradient of Phi: against finite differences at random points that are not stationary.

Phi = trace + entropic - alpha E[M] is a function of overlaps and conjugates alike. Its derivatives (docs/theory.md
(5.13), (5.14)) are differences between the given and the computed ones:

    dPhi/dq = 1/2 (V^ - V^[overlaps])    dPhi/dq^ = -1/2 (V - V[hats])
    dPhi/dV = -1/2 (q^ - q^[overlaps])   dPhi/dV^ = 1/2 (q - q[hats])
    dPhi/dm = -(m^ - m^[overlaps])       dPhi/dm^ = -(m - m[hats])
    dPhi/dtheta = -(theta^ - ...)        dPhi/dtheta^ = -(theta - ...)
    dPhi/dphi = -(alpha E[dloss/dphi] + ridge phi)
"""

import os
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import sympy as sp

import saddleforge as sf
from saddleforge import Problem
from saddleforge.integration import GaussHermite
from saddleforge.problems.overlaps import Conjugates, Overlaps
from saddleforge.saddle_point.observables import free_entropy_and_losses
from saddleforge.saddle_point.state_map import SaddlePointMap

BLOCKS = ("q", "V", "m", "theta")
STEP = 1e-4
AGREEMENT = 1e-6


def two_clusters() -> Any:
    """Attention between tokens whose clusters are correlated, differ in covariance and mean, and have two atoms."""

    def law(structure: Any) -> sf.Tokens:
        gram = [[0.0] * 5 for _ in range(5)]
        means = [(0.5, -0.3, 0.2), (-0.4, 0.6, 0.1), (0.3, 0.2, -0.6), (-0.1, -0.5, 0.4), (0.2, 0.1, 0.9)]
        for i, one in enumerate(means):
            for j, other in enumerate(means):
                gram[i][j] = round(sum(a * b for a, b in zip(one, other, strict=True)), 10)
        return sf.Tokens(
            weights=[0.3, 0.7],
            covariance=[[0.1, 0.2, 0.15, 0.25], [0.3, 0.1, 0.2, 0.12]],
            gram=[gram, [[2 * e for e in row] for row in gram]],
            labels=[0.4, 0.1, 0.2, 0.3],
            encodings_taught=[[0.2], [-0.3]],
        )

    @sf.model(tokens=2, student=1, teacher=1, clusters=2, law=law, regulariser=sf.Ridge(0.1))
    def two_cluster_attention(X, Y):
        """Attention on correlated tokens of two clusters."""
        return sf.half_square(sf.softmax(Y @ Y.T) - sf.softmax(X @ X.T), weight=sf.rho)

    return two_cluster_attention


def with_own_numbers() -> Any:
    """A loss that holds the overlaps q of both tokens and two trained numbers, a penalty that knows the teacher."""

    @sf.penalty
    def toward_teacher(w, pi, *, strength=0.4):
        """Smooth, convex, drawn to the teacher's row."""
        return strength * sp.sqrt(1 + (w[0] - pi[0]) ** 2) + w[0] ** 2 / 10

    def law(structure: Any) -> sf.Tokens:
        gram = [[[0.6, 0.1, 0.2], [0.1, 0.5, -0.1], [0.2, -0.1, 0.9]], [[0.3, 0, 0], [0, 0.2, 0], [0, 0, 0.0]]]
        return sf.Tokens([0.6, 0.4], [[0.5, 0.8], [0.9, 0.4]], gram, encodings_taught=[[0.02], [-0.06]])

    @sf.model(tokens=2, law=law, regulariser=toward_teacher)
    def own_numbers(X, Y, Q, *, c=0.3, scale=sf.trained(1, ridge=0.2), shift=sf.trained(0)):
        """Coupled to its own q and to phi."""
        first, second = Q[0][0, 0], Q[1][0, 0]
        return (scale * X[0] * X[1] + shift - Y[0] - Y[1] / 2) ** 2 / 2 + c * first * second * X[0] ** 2 + c * second

    return own_numbers


@dataclass(frozen=True)
class Case:
    """A problem, a rule that is exact for it to about 1e-8, and the scale of its overlaps."""

    problem: Problem
    rule: GaussHermite
    q: float
    V: float


CASES = (
    "ridge 1,1,1",
    "logistic 1,1,1",
    "attention 2,1,1",
    "attention 2,2,1",
    "attention 3,1,1",
    "two clusters",
    "own q and phi",
    "elastic net",
)


# Compiled for these tests alone, or nearly.
SLOW = ("attention 2,2,1", "attention 3,1,1", "two clusters", "own q and phi", "elastic net")
MARKED = [pytest.param(c, marks=[pytest.mark.slow] if c in SLOW else []) for c in CASES]


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """cases(name): each built when first asked for; the two-cluster solver is generated into a cache of its own."""

    @cache
    def build(name: str) -> Case:
        attention = {"alpha": 1.7, "sigma": 0.4, "lambda": 0.1}
        if name == "ridge 1,1,1":
            return Case(sf.problem("ridge_regression", alpha=1.3), GaussHermite(12), 0.7, 1.1)
        if name == "logistic 1,1,1":
            return Case(sf.problem("logistic_regression", alpha=1.7), GaussHermite(40), 0.7, 1.1)
        if name == "attention 2,1,1":
            return Case(sf.problem("dot_product_attention", **attention), GaussHermite(14, starts=0), 0.05, 0.8)
        if name == "attention 2,2,1":
            return Case(
                sf.problem("dot_product_attention", student_rank=2, **attention), GaussHermite(7, starts=0), 0.01, 0.5
            )
        if name == "attention 3,1,1":
            return Case(
                sf.problem("dot_product_attention", tokens=3, **attention), GaussHermite(7, starts=0), 0.01, 0.5
            )
        if name == "elastic net":
            return Case(sf.problem("elastic_net_regression", alpha=1.3), GaussHermite(12), 0.7, 1.1)
        made, rule, q, V = {
            "two clusters": (two_clusters(), GaussHermite(12, starts=0), 0.04, 0.6),
            "own q and phi": (with_own_numbers(), GaussHermite(24, starts=0), 0.04, 0.3),
        }[name]
        previous = os.environ.get("SADDLEFORGE_CACHE")
        os.environ["SADDLEFORGE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
        try:
            problem = sf.problem(made, alpha=1.7)
            _ = problem.solver.channel, problem.solver.prior_functions
        finally:
            if previous is None:
                del os.environ["SADDLEFORGE_CACHE"]
            else:
                os.environ["SADDLEFORGE_CACHE"] = previous
        return Case(problem, rule, q, V)

    return build


def spd(rng: np.random.Generator, count: int, size: int, scale: float) -> np.ndarray:
    """Random positive definite matrices of about the given scale."""
    a = 0.3 * rng.standard_normal((count, size, size))
    return scale * (np.eye(size) * rng.uniform(0.7, 1.3, (count, 1, 1)) + a @ a.transpose(0, 2, 1))


def random_overlaps(case: Case, rng: np.random.Generator) -> Overlaps:
    problem = case.problem
    contexts, s, t = problem.contexts, problem.student_rank, problem.teacher_rank
    q = spd(rng, contexts, s, case.q)
    # theta = q^(1/2) K rho*^(1/2) with |K| < 1 keeps q - theta rho*^(-1) theta^T positive.
    K = rng.uniform(-0.5, 0.5, (contexts, s, t)) / np.sqrt(s)
    theta = np.linalg.cholesky(q) @ K @ np.linalg.cholesky(problem.law.rho_star).transpose(0, 2, 1)
    m = 0.5 * np.sqrt(case.q) * rng.standard_normal((contexts, s))
    phi = np.array([number["start"] for number in problem.trained]) + 0.3 * rng.standard_normal(len(problem.trained))
    return Overlaps(q, spd(rng, contexts, s, case.V), m, theta, phi)


def random_conjugates(
    case: Case, rng: np.random.Generator, scales: tuple[float, ...] = (0.2, 0.5, 0.2, 0.2)
) -> Conjugates:
    """Random conjugates of the given scales of q^, V^, m^, theta^."""
    problem = case.problem
    contexts, s, t = problem.contexts, problem.student_rank, problem.teacher_rank
    return Conjugates(
        spd(rng, contexts, s, scales[0]),
        spd(rng, contexts, s, scales[1]),
        scales[2] * rng.standard_normal((contexts, s)),
        scales[3] * rng.standard_normal((contexts, s, t)),
    )


def channel_conjugates(case: Case, overlaps: Overlaps) -> Conjugates:
    state_map = SaddlePointMap(case.problem, case.rule)
    return state_map.conjugates_at_overlaps(overlaps, state_map.channel_averages(overlaps).moments.mean(axis=0))


def random_point(case: Case, rng: np.random.Generator) -> tuple[Overlaps, Conjugates, Conjugates]:
    """Random overlaps, random conjugates of the size of those the channel gives, and the latter."""
    overlaps = random_overlaps(case, rng)
    computed = channel_conjugates(case, overlaps)
    sizes = tuple(float(np.abs(getattr(computed, name)).max()) for name in BLOCKS)
    return overlaps, random_conjugates(case, rng, sizes), computed


def energetic(case: Case, overlaps: Overlaps) -> float:
    return case.problem.alpha * float(case.rule.averages(case.problem, overlaps).moreau.mean())


def prior_part(case: Case, overlaps: Overlaps, hats: Conjugates) -> float:
    problem = case.problem
    trace, entropic, _ = problem.solver.prior_functions.free_entropy(
        *problem.leading_prior_arguments,
        overlaps.q, overlaps.V, overlaps.m, overlaps.theta, hats.q, hats.V, hats.m, hats.theta,
    )  # fmt: skip
    return trace + entropic


def entries(block: np.ndarray, symmetric: bool) -> list[tuple[tuple[int, ...], float]]:
    """Independent entries of a block and how often each stands in it."""
    found = []
    for index in np.ndindex(block.shape):
        if symmetric and index[1] > index[2]:
            continue
        found.append((index, 2.0 if symmetric and index[1] != index[2] else 1.0))
    return found


def shifted(blocks: Any, name: str, index: tuple[int, ...], by: float) -> Any:
    block = getattr(blocks, name).copy()
    block[index] += by
    if name in ("q", "V") and index[1] != index[2]:
        block[index[0], index[2], index[1]] += by
    return replace(blocks, **{name: block})


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("which", MARKED)
def test_the_gradient_in_the_overlaps_agrees_with_differences(cases, which, name):
    case = cases(which)
    overlaps, hats, computed = random_point(case, np.random.default_rng(60 + CASES.index(which)))
    partner, factor = {"q": ("V", 0.5), "V": ("q", -0.5), "m": ("m", -1.0), "theta": ("theta", -1.0)}[name]
    gradient = factor * (getattr(hats, partner) - getattr(computed, partner))
    scale = np.abs(gradient).max()
    step = STEP * np.abs(getattr(overlaps, name)).max()
    for index, multiplicity in entries(gradient, name in ("q", "V")):
        there, back = shifted(overlaps, name, index, step), shifted(overlaps, name, index, -step)
        difference = prior_part(case, there, hats) - prior_part(case, back, hats)
        difference -= energetic(case, there) - energetic(case, back)
        assert difference / (2 * step) == pytest.approx(multiplicity * gradient[index], rel=0, abs=AGREEMENT * scale), (
            index
        )


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("which", MARKED)
def test_the_gradient_in_the_conjugates_agrees_with_differences(cases, which, name):
    case = cases(which)
    rng = np.random.default_rng(40 + CASES.index(which))
    overlaps, hats = random_overlaps(case, rng), random_conjugates(case, rng)
    computed = SaddlePointMap(case.problem, case.rule).overlaps_from_conjugates(hats, overlaps.phi)
    partner, factor = {"q": ("V", -0.5), "V": ("q", 0.5), "m": ("m", -1.0), "theta": ("theta", -1.0)}[name]
    gradient = factor * (getattr(overlaps, partner) - getattr(computed, partner))
    scale = np.abs(gradient).max()
    for index, multiplicity in entries(gradient, name in ("q", "V")):
        there, back = shifted(hats, name, index, STEP), shifted(hats, name, index, -STEP)
        difference = prior_part(case, overlaps, there) - prior_part(case, overlaps, back)
        assert difference / (2 * STEP) == pytest.approx(multiplicity * gradient[index], rel=0, abs=AGREEMENT * scale), (
            index
        )


@pytest.mark.slow
def test_gradient_in_the_trained_numbers(cases):
    case = cases("own q and phi")
    overlaps, hats, _ = random_point(case, np.random.default_rng(5))
    state_map = SaddlePointMap(case.problem, case.rule)
    averages = state_map.channel_averages(overlaps)

    def phi_of(at: Overlaps) -> float:
        return free_entropy_and_losses(case.problem, at, hats, state_map.channel_averages(at)).free_entropy

    offset = {text: start for text, _, start in case.problem.solver.channel.MOMENTS}["loss_phi"]
    for n, number in enumerate(case.problem.trained):
        there, back = (replace(overlaps, phi=overlaps.phi + sign * STEP * np.eye(2)[n]) for sign in (1, -1))
        slope = case.problem.alpha * averages.moments[0, 0, offset + n] + number["ridge"] * overlaps.phi[n]
        assert (phi_of(there) - phi_of(back)) / (2 * STEP) == pytest.approx(-slope, rel=AGREEMENT)
        assert abs(slope) > 1e-3


@pytest.mark.parametrize("which", MARKED)
def test_the_points_are_not_stationary(cases, which):
    """Otherwise the tests above would compare zeros: both sides are off by per cents and more."""
    case = cases(which)
    overlaps, hats, computed = random_point(case, np.random.default_rng(60 + CASES.index(which)))
    hats_there = random_conjugates(case, np.random.default_rng(1))
    images = SaddlePointMap(case.problem, case.rule).overlaps_from_conjugates(hats_there, overlaps.phi)
    for name in BLOCKS:
        assert np.abs(getattr(hats, name) / getattr(computed, name) - 1).max() > 0.02
        assert (
            np.abs(getattr(overlaps, name) - getattr(images, name)).max() > 0.02 * np.abs(getattr(overlaps, name)).max()
        )


@pytest.mark.slow
def test_the_clusters_of_the_test_differ_and_are_correlated(cases):
    law = cases("two clusters").problem.law
    assert len(np.unique(law.rho.round(12))) == 4
    assert abs(law.labels[0, 0] - law.labels[0].sum() * law.labels[:, 0].sum()) > 0.05
    assert np.linalg.eigvalsh(law.gram[0])[0] > -1e-12
