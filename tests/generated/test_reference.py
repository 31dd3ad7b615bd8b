"""Two printers, one kernel: the mpmath module of every solver agrees with the Numba one."""

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mpmath as mp
import numpy as np
import pytest

import saddleforge as sf
import saddleforge.generated
from saddleforge.channel.fields import field_law
from saddleforge.channel.shared import channel_moment_sums, proximal_point_table
from saddleforge.problems.overlaps import Conjugates, Overlaps
from saddleforge.problems.problem import Problem

ROOT = Path(saddleforge.generated.__path__[0])
FOLDERS = sorted(path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("*/*/reference.py"))
AGREEMENT = 1e-13
POINTS = 4


@pytest.fixture
def part(problem: Problem, plain: Any) -> Callable[[str], SimpleNamespace]:
    """A generated Numba module as plain Python: what is compared is the text, and nothing is compiled."""
    files_of = problem.solver.source_files_of_solver_part
    return lambda name: SimpleNamespace(**plain("\n".join(file.read_text() for file in files_of(name))))


def problem_of(folder: str) -> Problem:
    name, key = folder.split("/")
    sizes = dict(zip(("tokens", "student_rank", "teacher_rank", "clusters"), key.split("_"), strict=True))
    return sf.problem(name, alpha=1.3, **{size: int(text[1:]) for size, text in sizes.items()})


def agree(found: Any, exact: Any) -> bool:
    exact = np.array(exact, dtype=object).astype(float)
    return bool(np.all(np.abs(np.asarray(found, float) - exact) <= AGREEMENT * (1 + np.abs(exact))))


def as_mpf(values: Any) -> Any:
    return np.frompyfunc(mp.mpf, 1, 1)(np.asarray(values, float))


def state_of(problem: Problem, rng: np.random.Generator) -> Overlaps:
    """Random overlaps inside their domain."""
    contexts, s, t, trained = problem.sizes
    square = rng.normal(size=(2, contexts, s, s))
    V, free = (a @ a.transpose(0, 2, 1) + 0.3 * np.eye(s) for a in square)
    theta, m = 0.5 * rng.normal(size=(contexts, s, t)), 0.5 * rng.normal(size=(contexts, s))
    known = np.linalg.solve(problem.law.rho_star, theta.transpose(0, 2, 1))
    return Overlaps(free + theta @ known, V, m, theta, 1 + 0.1 * rng.normal(size=trained))


@pytest.fixture(params=FOLDERS, scope="module")
def problem(request: pytest.FixtureRequest) -> Problem:
    return problem_of(request.param)


@pytest.fixture(autouse=True)
def thirty_digits() -> Any:
    with mp.workdps(30):
        yield


def test_channel_kernels_agree(problem, part):
    """Loss with gradient and Hessian, and the summands of the averages at proximal points of random fields."""
    rng = np.random.default_rng(11)
    channel, reference = part("channel"), problem.solver.multiprecision_functions
    for n in range(POINTS):
        overlaps = state_of(problem, rng)
        labels, _ = problem.label_probabilities[n % len(problem.label_probabilities)]
        fields = field_law(problem, overlaps, labels)
        nodes = rng.normal(size=(1, problem.dimension))
        given = *fields.sampling_loop_arguments, fields.precision, problem.noise_scale, fields.constants
        sums = channel_moment_sums(channel, channel.sample, nodes, np.ones(1), *given, 1).sum(axis=0)
        c, expected = as_mpf(fields.constants), np.zeros(problem.tokens * channel.ROW, object)
        L, s, t = problem.tokens, problem.student_rank, problem.teacher_rank
        z, noise = nodes[0, : L * t].reshape(L, t), nodes[0, L * (s + t) :] * problem.noise_scale
        dy = np.einsum("lbe,le->lb", fields.teacher_factor, z)
        for choice in range(max(1, len(channel.LABELLED_NOISE))):
            row = proximal_point_table(channel, nodes, *given, 1, choice)[0]
            if row[-1] == 0:
                continue
            w, f, x = np.split(row[: 2 * L * s + channel.FEATURES], [L * s, L * s + channel.FEATURES])
            y = (fields.teacher_mean + dy).ravel()
            discrete = channel.LABELLED_NOISE[choice] if channel.LABELLED_NOISE else ()
            parts = {True: iter(noise), False: iter(discrete)}
            u = [next(parts[gaussian]) for gaussian in reference.GAUSSIAN]
            assert agree(f, reference.features(*as_mpf([*y, *u]), c))
            upper = np.triu_indices(s)
            p = np.concatenate([block[upper] for block in fields.precision])
            arguments = [*x, *w, *p, *f]
            exact = reference.derivatives(*as_mpf(arguments), c)
            assert agree(channel.derivatives(*arguments, fields.constants), exact)
            g = np.einsum("lab,lb->la", fields.precision, (x - w).reshape(L, s)).ravel()
            own: tuple[Any, ...] = ()
            if hasattr(channel, "own_slopes"):
                own = reference.own_slopes(*as_mpf([*x, *f]), c)
                assert agree(channel.own_slopes(*x, *f, fields.constants), own)
            share = mp.mpf(1)
            if channel.LABELLED_NOISE:
                share = reference.probabilities(*as_mpf(y), c)[choice]
                assert agree(row[-1], share)
            dw = w - fields.field_mean.ravel()
            expected += share * np.array(reference.moments(*as_mpf([*g, *dw, *dy.ravel()]), *own, c), object)
        assert agree(sums[: len(expected)], expected)


def test_metrics_agree(problem, part):
    rng = np.random.default_rng(12)
    metric, reference = part("metric"), problem.solver.multiprecision_functions
    assert hasattr(reference, "metric") == metric.HAS_METRIC
    for labels, _ in problem.label_probabilities if metric.HAS_METRIC else ():
        c = problem.constants(labels)
        count = len(inspect.signature(metric.metric).parameters) - 1
        for point in rng.normal(size=(POINTS, count)):
            assert agree(metric.metric(*point, c), reference.metric(*as_mpf(point), as_mpf(c))[0])


def test_prior_and_free_entropy_agree(problem, part):
    """Averages to conjugates; with a ridge, conjugates to overlaps and the free entropy."""
    rng = np.random.default_rng(13)
    prior, reference, row = part("prior"), problem.solver.multiprecision_functions, problem.solver.channel.ROW
    law = problem.law
    for _ in range(POINTS):
        u = state_of(problem, rng)
        blocks = u.q, u.V, u.m, u.theta
        moments = 0.1 * rng.normal(size=(problem.contexts, row))
        hats, exact_hats = [np.zeros_like(b) for b in blocks], [np.zeros(b.shape, object) for b in blocks]
        assert prior.conjugates(problem.alpha, moments, *blocks, law.rho_star, *hats)
        exact = *map(as_mpf, blocks), as_mpf(law.rho_star)
        reference.conjugates(mp.mpf(problem.alpha), as_mpf(moments), *exact, *exact_hats)
        assert all(agree(found, right) for found, right in zip(hats, exact_hats, strict=True))
        if not problem.regulariser.is_quadratic:
            names = len(inspect.signature(prior.regulariser).parameters) - 1
            w = rng.normal(size=names)
            strengths = problem.strengths
            assert agree(prior.regulariser(*w, strengths), reference.regulariser(*as_mpf(w), as_mpf(strengths)))
            assert agree(prior.slopes(*w, strengths), reference.slopes(*as_mpf(w), as_mpf(strengths)))
            continue
        hats[0], hats[1] = u.q, u.V  # positive definite, so that Lambda + G is, and any norm is kept by a ridge
        known = law.weights, law.gamma, law.gram, problem.strengths
        # Under given norms the reference holds the ridge, at the multipliers.
        multipliers = problem.multipliers(Conjugates(*hats))
        strengths = problem.strengths if multipliers is None else multipliers
        out, exact_out = [np.zeros_like(b) for b in blocks], [np.zeros(b.shape, object) for b in blocks]
        assert prior.overlaps(*known, *hats, *out)
        exact_known, exact_hats = tuple(map(as_mpf, (*known[:3], strengths))), list(map(as_mpf, hats))
        reference.overlaps(*exact_known, *exact_hats, *exact_out)
        assert all(agree(found, right) for found, right in zip(out, exact_out, strict=True))
        trace, entropic, penalty = reference.free_entropy(*exact_known, *map(as_mpf, blocks), *exact_hats)
        if multipliers is not None:
            entropic, penalty = entropic + multipliers @ problem.strengths**2 / 2, mp.mpf(0)
        assert agree(prior.free_entropy(*known, *blocks, *hats), (trace, entropic, penalty))


def test_laws_agree(problem):
    reference, model = problem.solver.multiprecision_functions, problem.solver.model
    flat = as_mpf(problem.parameter_vector)
    assert all(agree(value, reference.law(flat)[name]) for name, value in model.law(problem.parameter_vector).items())
    assert agree(model.noise_variances(problem.parameter_vector), reference.noise_variances(flat))


ONE_TOKEN = [folder for folder in FOLDERS if folder.endswith(("l1_s1_t1_k1", "l1_s1_t1_k2"))]


@pytest.mark.parametrize("folder", ONE_TOKEN)
def test_every_kink_of_a_loss_is_listed(folder):
    """Where slope or curvature change by a step, not gradually, a listed place lies between."""
    problem = problem_of(folder)
    reference, rng = problem.solver.multiprecision_functions, np.random.default_rng(14)
    assert set(reference.DRIVES) == {"loss", "metric"}
    c = as_mpf(problem.constants(problem.label_probabilities[0][0]))
    grid, seen = as_mpf(np.linspace(-5.01, 5.02, 401)), 0
    for _ in range(3):
        y, *u = as_mpf(rng.normal(size=1 + len(reference.GAUSSIAN)))
        features = reference.features(y, *u, c)
        slopes = np.array([reference.derivatives(x, x, mp.mpf(0), *features, c)[1:] for x in grid])
        kinks = reference.loss_kinks(y, *u, c)
        for changes in np.abs(np.diff(slopes, axis=0)).T:
            for k in range(1, len(changes) - 1):
                step = changes[k] > 0.02 + 5 * max(changes[k - 1], changes[k + 1])
                assert not step or any(mp.im(kink) == 0 and grid[k] <= kink <= grid[k + 1] for kink in kinks)
                seen += bool(step)
    kinked = ("amplitude", "hinge", "huber", "l1_regression", "quantile", "squared_hinge")
    assert (seen > 0) == folder.startswith(kinked)
