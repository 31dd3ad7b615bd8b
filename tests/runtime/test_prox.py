"""The proximal map: the global minimum at every node, and the kernels it is built of against exact arithmetic.

Attention's objective has up to two minima and more in the tails; a miss is a wrong field g. The oracle is the
hand-written Newton of tests/benchmarks from 150 random starts.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import mpmath as mp
import numpy as np
import pytest

import saddleforge as sf
from saddleforge import Problem
from saddleforge.channel.fields import FieldLaw, field_law
from saddleforge.channel.nodes import sobol_normal_points
from saddleforge.channel.shared import channel_moment_sums, proximal_point_table
from saddleforge.problems.overlaps import Overlaps

STATES = [(0.5, "positional"), (0.5, "uninformed"), (2.0, "semantic"), (2.0, "positional"), (2.0, "uninformed")]
SHIPPED = {
    "ridge_regression": {},
    "logistic_regression": {},
    "dot_product_attention": {},
    "dot_product_attention at s = 2": {"student_rank": 2},
    "dot_product_attention at L = 3": {"tokens": 3},
}
STARTS = 150


@pytest.fixture(scope="session")
def state(attention) -> Callable[[float, str], tuple[Problem, FieldLaw]]:
    """Problem and fields of a branch; one per cent of accuracy is enough to visit the measure."""

    @cache
    def build(alpha: float, start: str) -> tuple[Problem, FieldLaw]:
        solution = attention(alpha, start, 1e-2)
        assert solution.branch == start
        return solution.problem, field_law(solution.problem, solution.overlaps, (0, 0))

    return build


def visited(problem: Problem, fields: FieldLaw, log2: int, seed: int, flip: int = 1) -> dict[str, np.ndarray]:
    """Points of the measure with what the generated solver finds there."""
    channel = problem.solver.channel
    nodes = sobol_normal_points(4, log2, seed, ())
    found = proximal_point_table(
        channel,
        nodes,
        *fields.sampling_loop_arguments,
        fields.precision,
        problem.noise_scale,
        fields.constants,
        flip,
        0,
    )
    D, F = channel.FIELDS, channel.FEATURES
    names = np.split(found, [D, D + F, 2 * D + F, 2 * D + F + 1, 2 * D + F + 2, 2 * D + F + 3, 2 * D + F + 4], axis=1)
    return dict(
        zip(("omega", "features", "x", "value", "gap", "minima", "residual", "probability"), names, strict=True)
    ) | {"nodes": nodes}


def oracle(handwritten: Any, problem: Problem, fields: FieldLaw, points: dict[str, np.ndarray]) -> np.ndarray:
    """x, value, minima met from 150 random starts around omega."""
    Y = fields.teacher_mean[:, 0] + fields.teacher_factor[:, 0, 0] * points["nodes"][:, :2]
    omega, A = problem.parameters["omega"], np.asarray(problem.parameters["A"])
    targets = np.array([handwritten.target(y0, y1, omega, A) for y0, y1 in Y])
    precision = fields.precision[:, 0, 0]
    # Every minimum lies within sqrt(2 V loss(omega)) of omega, and the loss is at most 2 rho.
    reach = np.sqrt(4 * problem.law.rho[0] / precision.min())
    starts = np.random.default_rng(11).uniform(-reach, reach, (STARTS, 2))
    return handwritten.minima(starts, points["omega"].copy(), targets, *precision, problem.law.rho[0])


def assert_no_miss(handwritten: Any, problem: Problem, fields: FieldLaw, log2: int, seed: int) -> None:
    points = visited(problem, fields, log2, seed)
    brute = oracle(handwritten, problem, fields, points)
    misses = points["value"][:, 0] - brute[:, 2] > 1e-12
    assert not misses.any(), (
        f"{misses.sum()} of {len(misses)} points missed the global minimum, the first at "
        f"omega = {points['omega'][misses][0]}: {points['value'][misses][0]} above {brute[misses][0, 2]}"
    )


@pytest.mark.parametrize(("alpha", "start"), STATES)
def test_no_miss_on_ten_thousand_points(state, handwritten, alpha, start):
    assert_no_miss(handwritten, *state(alpha, start), log2=14, seed=5)


def test_one_start_alone_does_miss(state, handwritten):
    """The oracle is sharp enough to tell: descent from omega only, as coarse solvers do."""
    problem, fields = state(0.5, "uninformed")
    points = visited(problem, fields, 11, 5, flip=0)
    brute = oracle(handwritten, problem, fields, points)
    assert np.mean(points["value"][:, 0] - brute[:, 2] > 1e-12) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "start"), STATES)
def test_no_miss_on_a_hundred_thousand_points(state, handwritten, alpha, start):
    assert_no_miss(handwritten, *state(alpha, start), log2=17, seed=6)


@pytest.mark.parametrize(("alpha", "start"), STATES)
def test_second_minima_are_seen_as_often_as_by_brute_force(state, handwritten, alpha, start):
    """The share of bistable points; those that only one of the two sees are a thousandth of the measure at most."""
    problem, fields = state(alpha, start)
    points = visited(problem, fields, 13, 7)
    brute = oracle(handwritten, problem, fields, points)
    ours, theirs = points["minima"][:, 0] > 1, brute[:, 3] > 1
    assert np.mean(ours & ~theirs) <= 1e-4
    assert np.mean(theirs & ~ours) <= max(1e-3, 0.05 * np.mean(theirs))
    assert np.array_equal(ours, np.isfinite(points["gap"][:, 0]))


@pytest.mark.parametrize(
    ("alpha", "start", "low", "high"),
    [(0.5, "uninformed", 0.16, 0.18), (0.5, "positional", 0.038, 0.044), (2.0, "positional", 0.002, 0.004)],
)
def test_bistable_fractions_are_those_quoted_in_the_theory(state, alpha, start, low, high):
    """docs/theory.md section 14: 17 %, 4.1 % and 0.3 %."""
    points = visited(*state(alpha, start), 15, 8)
    assert low <= np.mean(points["minima"] > 1) <= high


@pytest.mark.parametrize(("alpha", "start"), STATES)
def test_the_proximal_point_is_a_minimum(state, handwritten, alpha, start):
    """By the hand-written derivatives: no gradient, a positive Hessian, the value claimed."""
    problem, fields = state(alpha, start)
    points = visited(problem, fields, 10, 9)
    assert points["minima"].min() >= 1
    omega, A, rho = problem.parameters["omega"], np.asarray(problem.parameters["A"]), problem.law.rho[0]
    p0, p1 = fields.precision[:, 0, 0]
    for n, (x0, x1) in enumerate(points["x"]):
        y0, y1 = fields.teacher_mean[:, 0] + fields.teacher_factor[:, 0, 0] * points["nodes"][n, :2]
        at = (x0, x1, *points["omega"][n], p0, p1, *handwritten.target(y0, y1, omega, A), rho)
        d0, d1, h00, h01, h11 = handwritten.slopes(*at)
        assert h00 > 0
        assert h00 * h11 - h01 * h01 > 0
        step = np.linalg.solve([[h00, h01], [h01, h11]], [d0, d1])
        assert d0 * step[0] + d1 * step[1] < 1e-16  # what Newton would still gain
        assert points["value"][n, 0] == pytest.approx(handwritten.moreau(*at), rel=0, abs=1e-14)


def test_ridge_has_its_proximal_point_in_closed_form():
    """X = (omega + V y) / (1 + V), M = (y - omega)^2 / 2 (1 + V)."""
    problem = sf.problem("ridge_regression", alpha=1.0)
    V = 1.7
    overlaps = Overlaps(np.full((1, 1, 1), 0.9), np.full((1, 1, 1), V), np.zeros((1, 1)), np.full((1, 1, 1), 0.5))
    fields = field_law(problem, overlaps, (0,))
    nodes = np.random.default_rng(1).standard_normal((200, 3))
    found = proximal_point_table(
        problem.solver.channel,
        nodes,
        *fields.sampling_loop_arguments,
        fields.precision,
        problem.noise_scale,
        fields.constants,
        1,
        0,
    )
    y = nodes[:, 0] + 0.5 * nodes[:, 2]
    omega = 0.5 * nodes[:, 0] + np.sqrt(0.9 - 0.25) * nodes[:, 1]
    start = problem.solver.channel.FIELDS + problem.solver.channel.FEATURES
    assert found[:, 0] == pytest.approx(omega, abs=1e-14)
    assert found[:, start] == pytest.approx((omega + V * y) / (1 + V), abs=1e-13)
    assert found[:, start + 1] == pytest.approx((y - omega) ** 2 / (2 * (1 + V)), abs=1e-13)


def test_logistic_meets_its_first_order_condition():
    """X - omega = V s sigmoid(-s X), s = sign(Y)."""
    problem = sf.problem("logistic_regression", alpha=1.0)
    V = 4.0
    overlaps = Overlaps(np.full((1, 1, 1), 4.0), np.full((1, 1, 1), V), np.zeros((1, 1)), np.full((1, 1, 1), 1.7))
    fields = field_law(problem, overlaps, (0,))
    nodes = np.random.default_rng(1).standard_normal((200, 2))
    found = proximal_point_table(
        problem.solver.channel,
        nodes,
        *fields.sampling_loop_arguments,
        fields.precision,
        problem.noise_scale,
        fields.constants,
        1,
        0,
    )
    sign = np.sign(nodes[:, 0])
    omega, x = found[:, 0], found[:, problem.solver.channel.FIELDS + problem.solver.channel.FEATURES]
    assert x - omega == pytest.approx(V * sign / (1 + np.exp(sign * x)), abs=1e-12)


@cache
def _symbolic_channel(which: str) -> Any:
    from saddleforge.derive.catalogue import catalogue_model
    from saddleforge.derive.emit.sources.channel import build_channel_kernels

    model = catalogue_model(which.split()[0])
    return build_channel_kernels(model.at(model.structure(**SHIPPED[which])))


def _random_inputs(which: str, rng: np.random.Generator) -> tuple[Problem, Any, dict[str, float], np.ndarray]:
    """Problem, symbolic channel, a random value for every name a kernel may use, and the constants vector."""
    problem = sf.problem(which.split()[0], alpha=1.0, **SHIPPED[which])
    symbolic = _symbolic_channel(which)
    constants = problem.constants((0,) * problem.tokens)
    names = dict(zip(symbolic.constants, constants, strict=True))
    L, s, t = problem.tokens, problem.student_rank, problem.teacher_rank
    for l in range(L):
        for a in range(s):
            for stem in ("x", "w", "g", "dw"):
                names[f"{stem}_{l}_{a}"] = rng.standard_normal()
            for b in range(a, s):
                names[f"p_{l}_{a}_{b}"] = 0.5 * (1 + rng.random() if a == b else 0.3 * rng.standard_normal())
        for b in range(t):
            for stem in ("y", "dy"):
                names[f"{stem}_{l}_{b}"] = rng.standard_normal()
    for symbol, _ in symbolic.model.noise.values():
        names[symbol.name] = rng.standard_normal()
    names |= {name: rng.standard_normal() for name in symbolic.feature_names}
    return problem, symbolic, {k: float(v) for k, v in names.items()}, constants


def _exact(kernel: Any, names: dict[str, float]) -> list[float]:
    from saddleforge.derive.emit.printers import mpmath as mpmath_printer

    with mp.workdps(40):
        found = mpmath_printer.evaluate_kernel(kernel, {name: mp.mpf(value) for name, value in names.items()})
        return [float(found[name]) for name, _ in kernel.results]


@pytest.mark.parametrize("kernel", ["features", "objective", "derivatives", "loss", "loss_hessian"])
@pytest.mark.parametrize("which", SHIPPED)
def test_kernels_agree_with_high_precision(which, kernel):
    """The compiled function against mpmath on the same kernel, to thirteen digits of the largest entry."""
    rng = np.random.default_rng(len(which))
    for _ in range(10):
        problem, symbolic, names, constants = _random_inputs(which, rng)
        L, s = problem.tokens, problem.student_rank
        pairs = [(l, a) for l in range(L) for a in range(s)]
        x, w = ([names[f"{stem}_{l}_{a}"] for l, a in pairs] for stem in ("x", "w"))
        p = [names[f"p_{l}_{a}_{b}"] for l in range(L) for a in range(s) for b in range(a, s)]
        f = [names[name] for name in symbolic.feature_names]
        y = [names[f"y_{l}_{b}"] for l in range(L) for b in range(problem.teacher_rank)]
        u = [names[symbol.name] for symbol, _ in symbolic.model.noise.values()]
        arguments = {
            "features": (*y, *u),
            "objective": (*x, *w, *p, *f),
            "derivatives": (*x, *w, *p, *f),
            "loss": (*x, *f),
            "loss_hessian": (*x, *f),
        }[kernel]
        found = np.ravel(getattr(problem.solver.channel, kernel)(*arguments, constants))
        exact = np.array(_exact(getattr(symbolic, kernel), names))
        assert np.abs(found - exact).max() <= 1e-13 * max(1.0, np.abs(exact).max())


@pytest.mark.parametrize(
    "which", [pytest.param(which, marks=[pytest.mark.slow] if "L = 3" in which else []) for which in SHIPPED]
)
def test_averages_at_one_node_are_the_moment_kernel(which):
    """`sample` at a single node of weight 1 returns g, g dY^T, g domega^T, g g^T at its proximal point, and M."""
    rng = np.random.default_rng(3)
    problem, symbolic, names, _ = _random_inputs(which, rng)
    L, s, t = problem.tokens, problem.student_rank, problem.teacher_rank
    contexts = problem.contexts
    overlaps = Overlaps(
        q=np.tile(np.eye(s), (contexts, 1, 1)),
        V=np.tile(0.7 * np.eye(s), (contexts, 1, 1)),
        m=np.full((contexts, s), 0.3),
        theta=np.full((contexts, s, t), 0.2),
    )
    fields = field_law(problem, overlaps, (0,) * L)
    channel = problem.solver.channel
    nodes = rng.standard_normal((1, L * (s + t) + len(problem.noise_scale)))
    common = (*fields.sampling_loop_arguments, fields.precision, problem.noise_scale, fields.constants, 1)
    out = channel_moment_sums(channel, channel.sample, nodes, np.ones(1), *common).sum(axis=0)
    point = proximal_point_table(channel, nodes, *common, 0)[0]
    D, F = channel.FIELDS, channel.FEATURES
    omega, x = point[:D].reshape(L, s), point[D + F : 2 * D + F].reshape(L, s)
    g = np.einsum("lab,lb->la", fields.precision, x - omega)
    dy = np.einsum("lab,lb->la", fields.teacher_factor, nodes[0, : L * t].reshape(L, t))
    for l in range(L):
        for a in range(s):
            names |= {f"g_{l}_{a}": g[l, a], f"dw_{l}_{a}": omega[l, a] - overlaps.m[l, a]}
        for b in range(t):
            names[f"dy_{l}_{b}"] = dy[l, b]
    exact = _exact(symbolic.moment_rows, names)
    assert len(exact) == L * channel.ROW
    assert out[: len(exact)] == pytest.approx(exact, rel=1e-12, abs=1e-13)
    assert out[L * channel.ROW] == pytest.approx(point[2 * D + F], rel=1e-14)
