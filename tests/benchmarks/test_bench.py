"""Timings, for `make bench`; `make test-all` runs each once, untimed. Nothing is asserted about times.

For scale: a hand-written Numba loop with 7 Newton starts a point does 0.52 million global proximal solves a second on
2 cores (issue 2). The same loop is timed here in the same run, and the ratio reported.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import saddleforge as sf
from saddleforge import Problem
from saddleforge.base.threads import available_thread_count, set_thread_limit, thread_limit
from saddleforge.channel.fields import FieldLaw, field_law
from saddleforge.channel.nodes import gauss_hermite, tensor_product_rule
from saddleforge.channel.shared import channel_moment_sums
from saddleforge.following.first_event import spinodal
from saddleforge.integration import GaussHermite, ProxSpaceRule
from saddleforge.problems.overlaps import Overlaps
from saddleforge.saddle_point.difference_jacobian import map_jacobian_by_differences
from saddleforge.saddle_point.generated_jacobian import evaluate_map_derivatives
from saddleforge.saddle_point.iteration import FixedPoint, Status, run_newton_iteration
from saddleforge.saddle_point.state_map import SaddlePointMap

pytestmark = [pytest.mark.bench, pytest.mark.slow]

TRUTH = {"q": 0.114817306, "V": 12.668402, "theta": 0.15815852}
CORES = [n for n in (1, 2) if n <= available_thread_count()]


@pytest.fixture(scope="module")
def problem() -> Problem:
    return sf.problem("dot_product_attention", alpha=2.0)


@pytest.fixture(scope="module")
def semantic() -> Overlaps:
    return Overlaps(
        np.full((2, 1, 1), TRUTH["q"]),
        np.full((2, 1, 1), TRUTH["V"]),
        np.zeros((2, 1)),
        np.full((2, 1, 1), TRUTH["theta"]),
    )


@pytest.fixture
def points(request: pytest.FixtureRequest) -> int:
    """Nodes an axis: 16 when timed, 6 otherwise."""
    return 16 if _timed(request) else 6


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads, of Numba's own too: the hand-written loop has those."""

    def both(count: int) -> None:
        set_thread_limit(count)
        numba.set_num_threads(count)

    with thread_limit(available_thread_count()):
        yield both
    numba.set_num_threads(available_thread_count())


def _timed(request: pytest.FixtureRequest) -> bool:
    """Whether pytest-benchmark measures, rather than runs once."""
    return not request.config.getoption("benchmark_disable") and not getattr(request.config, "workerinput", None)


def _generated(problem: Problem, fields: FieldLaw, points: int) -> Callable[[], np.ndarray]:
    nodes, weights = tensor_product_rule([gauss_hermite(points)] * 4)
    channel = problem.solver.channel
    arguments = (*fields.sampling_loop_arguments, fields.precision, problem.noise_scale, fields.constants, 1)
    return lambda: channel_moment_sums(channel, channel.sample, nodes, weights, *arguments).sum(axis=0)


def _by_hand(
    handwritten: Any, problem: Problem, fields: FieldLaw, points: int, starts: int
) -> Callable[[], np.ndarray]:
    nodes, weights = tensor_product_rule([gauss_hermite(points)] * 4)
    offsets = np.random.default_rng(0).uniform(-1.5, 1.5, (starts, 2))
    arguments = (
        float(fields.teacher_factor[0, 0, 0]),
        fields.field_mean[:, 0],
        fields.field_from_teacher[:, 0, 0].copy(),
        fields.field_factor[:, 0, 0].copy(),
        *fields.precision[:, 0, 0],
        float(problem.law.rho[0]),
        problem.parameters["omega"],
        np.asarray(problem.parameters["A"]),
    )
    return lambda: handwritten.hats(64, offsets, nodes, weights, *arguments)


def _seconds(action: Callable[[], object], rounds: int = 3) -> float:
    action()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


@pytest.mark.parametrize("cores", CORES)
def test_global_proximal_solves(benchmark, request, threads, handwritten, problem, semantic, points, cores):
    """Million global solves a second, compared with the hand-written loop with 7 starts and with 1."""
    threads(cores)
    fields = field_law(problem, semantic, (0, 0))
    ours = _generated(problem, fields, points)
    by_hand = _by_hand(handwritten, problem, fields, points, 7)
    cut = problem.solver.channel.ROW
    # The comparison is of the same quantity, or it is none.
    assert ours()[: 2 * cut] == pytest.approx(by_hand()[: 2 * cut], rel=1e-9, abs=1e-12)
    benchmark(ours)
    if _timed(request):
        solves = points**4 / 1e6
        single = _seconds(_by_hand(handwritten, problem, fields, points, 1))
        seven = _seconds(by_hand)
        mine = benchmark.stats.stats.median
        benchmark.extra_info |= {
            "cores": cores,
            "million_solves_per_second": solves / mine,
            "handwritten_7_starts": solves / seven,
            "handwritten_1_start": solves / single,
            "ratio_to_handwritten_7_starts": seven / mine,
        }


def test_update_of_all_conjugates(benchmark, problem, semantic, points):
    """One map G(u) with Gauss-Hermite, 16^4 nodes."""
    state_map = SaddlePointMap(problem, GaussHermite(points))
    u = semantic.pack()
    image = benchmark(lambda: state_map(u, semantic.sizes))
    assert image == pytest.approx(u, rel=0.05, abs=1e-9)


@pytest.mark.parametrize("accuracy", [1e-4, 1e-6, 1e-8])
def test_time_to_true_accuracy(benchmark, request, problem, accuracy):
    """Semantic branch at alpha = 2, from the named start; the deviation from the truth is reported, and held."""
    if accuracy < 1e-4 and not _timed(request):
        pytest.skip("seconds long: run by make bench")
    # The known digits end at 1.6e-7 (V), so that 1e-8 is asked of the rule and judged by what is known.
    solution = benchmark.pedantic(
        lambda: sf.solve(problem, "semantic", accuracy=accuracy), rounds=3 if _timed(request) else 1
    )
    deviation = max(np.abs(getattr(solution.overlaps, name) / value - 1).max() for name, value in TRUTH.items())
    benchmark.extra_info |= {
        "status": str(solution.status),
        "rule": str(solution.rule.rule_description()),
        "relative_deviation_from_truth": float(deviation),
    }
    assert deviation <= max(accuracy, 2e-7)


@pytest.mark.parametrize("name", ["ridge_regression", "hinge", "huber_regression", "logistic_regression"])
def test_time_of_one_field(benchmark, request, threads, name):
    """Losses of one field, whose averages are exact: warm, on one core, all digits (some milliseconds)."""
    threads(1)
    problem = sf.problem(name, alpha=2.0)
    rounds = 30 if _timed(request) else 1
    solution = benchmark.pedantic(lambda: sf.solve(problem, accuracy=1e-9), rounds=rounds, warmup_rounds=1)
    assert solution.success and solution.relative_error < 1e-9


ATTENTION = "dot_product_attention"
PURE = ("semantic", "positional")
TARGETS: dict[str, Callable[[], Any]] = {
    "semantic, alpha = 1.25, 1e-6": lambda: sf.solve(sf.problem(ATTENTION, alpha=1.25), "semantic", accuracy=1e-6),
    "positional, alpha = 1.25, 1e-6": lambda: sf.solve(sf.problem(ATTENTION, alpha=1.25), "positional", accuracy=1e-6),
    "two branches at 40 points, 1e-4": lambda: [
        sf.curve(sf.problem(ATTENTION), start=start, alpha=(0.1, 2.5, 40), accuracy=1e-4) for start in PURE
    ][-1],
    "fold of one field, 1e-12": lambda: spinodal(
        sf.problem("tukey_regression", Delta=0.0025, lambda_=0.1, width=0.5),
        on="semantic",
        bracket=(1.0, 3.0),
        accuracy=1e-12,
    ),
    "three tokens, 1e-5": lambda: sf.solve(sf.problem(ATTENTION, tokens=3, alpha=2.0), "semantic", accuracy=1e-5),
    "alpha_c of untied attention, 1e-4": lambda: sf.crossing(
        sf.problem("untied_attention"), between=PURE, accuracy=1e-4
    ),
    "rank 2, alpha = 1.5, 1e-3": lambda: sf.solve(
        sf.problem(ATTENTION, student_rank=2, alpha=1.5), "mixed", accuracy=1e-3
    ),
    "alpha_c(0.3), 3e-7, verified": lambda: sf.crossing(
        sf.problem(ATTENTION, omega=0.3), between=PURE, accuracy=3e-7, verify=True
    ),
    "six fields, 1e-3": lambda: sf.solve(
        sf.problem(ATTENTION, tokens=3, student_rank=2, alpha=2.0), "semantic", accuracy=1e-3
    ),
}


@pytest.mark.parametrize("what", TARGETS)
def test_time_of_what_users_ask_for(benchmark, request, what):
    """Warm: the second time in a process (docs/numbers.md, What takes how long)."""
    if not _timed(request) and not what.startswith("fold"):
        pytest.skip("seconds to minutes long: run by make bench")
    found = benchmark.pedantic(TARGETS[what], rounds=1, warmup_rounds=1)
    for name in ("status", "error_kind", "relative_error", "training_loss_error", "value", "error"):
        benchmark.extra_info |= {name: str(getattr(found, name))} if hasattr(found, name) else {}


def test_newton_from_a_near_point(benchmark, problem, semantic):
    """Newton alone with the prox-space rule, from 1 % away (docs/theory.md section 11)."""
    state_map = SaddlePointMap(problem, ProxSpaceRule(48, 20))
    u = 1.01 * semantic.pack()
    start = FixedPoint(u, semantic.sizes, np.inf, Status.MAX_ITERATIONS, 0, None)
    point = benchmark.pedantic(
        lambda: run_newton_iteration(
            state_map, start, 1e-10, lambda at: map_jacobian_by_differences(state_map, at, semantic.sizes)
        ),
        rounds=1,
    )
    assert point.status is Status.CONVERGED


@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_slopes_by_formulas_and_by_differences(benchmark, request, branch):
    """All of dG/du, invariant directions and others, of a followed branch, compared with the same by differences.

    Where the proximal map jumps (both branches at alpha = 1.25: 0.4 and 1.2 % bistable), as almost everywhere.
    """
    problem = sf.problem("dot_product_attention", alpha=1.25)
    values = {"semantic": (0.0816247, 18.32112, 0.0, 0.1179264), "positional": (0.0471005, 14.90345, 0.252411, 0.0)}
    q, V, m, theta = values[branch]
    state = Overlaps(np.full((2, 1, 1), q), np.full((2, 1, 1), V), np.array([[m], [-m]]), np.full((2, 1, 1), theta))
    u, scales = state.pack(), state.block_scales
    state_map = SaddlePointMap(problem, ProxSpaceRule(64, 32))
    found = benchmark.pedantic(lambda: evaluate_map_derivatives(state_map, u).state, rounds=5 if _timed(request) else 1)
    # One side: half the cost of central ones.
    by_differences = map_jacobian_by_differences(state_map, u, state.sizes, 1e-4, one_sided=True)
    assert np.max(np.abs((found - by_differences) * scales / scales[:, None])) < 5e-3
    if _timed(request):
        mine = benchmark.stats.stats.median
        one_sided = _seconds(lambda: map_jacobian_by_differences(state_map, u, state.sizes, 1e-4, one_sided=True))
        benchmark.extra_info |= {
            "seconds_one_map": _seconds(lambda: state_map(u, state.sizes)),
            "ratio_one_sided_differences": one_sided / mine,
            "ratio_central_differences": _seconds(lambda: map_jacobian_by_differences(state_map, u, state.sizes, 1e-4))
            / mine,
        }


def _python(code: str, cache: Path | None = None) -> str:
    environment = dict(os.environ)
    if cache is not None:
        environment |= {"SADDLEFORGE_CACHE": str(cache)}
        environment.pop("NUMBA_CACHE_DIR", None)
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_import(benchmark):
    """A new interpreter and `import saddleforge`."""
    benchmark.pedantic(lambda: _python("import saddleforge"), rounds=3)


@pytest.mark.parametrize("name", ["ridge_regression", "logistic_regression", "dot_product_attention"])
def test_generation(benchmark, name):
    """From SymPy to source at the default structure (bound of the issue: 20 s an entry)."""
    from saddleforge.derive.catalogue import catalogue_model
    from saddleforge.derive.emit.writer import generate

    model = catalogue_model(name)
    generated = benchmark.pedantic(lambda: generate(model, model.default_structure()), rounds=1)
    assert generated.files


FIRST = "import saddleforge as sf; print(sf.solve(sf.problem({model!r}, alpha=2.0), accuracy=1e-3).status)"


@pytest.mark.parametrize("name", ["ridge_regression", "dot_product_attention"])
def test_first_compile_and_second_process(benchmark, request, tmp_path, name):
    """An empty cache, then the same command in a second process (bounds: 30 s and 2 s to the first iteration)."""
    if name == "dot_product_attention" and not _timed(request):
        pytest.skip("half a minute long: run by make bench")
    begin = time.perf_counter()
    first = _python(FIRST.format(model=name), tmp_path)
    benchmark.extra_info["first_process_seconds"] = time.perf_counter() - begin
    second = benchmark.pedantic(lambda: _python(FIRST.format(model=name), tmp_path), rounds=1)
    assert first == second == "converged\n"
