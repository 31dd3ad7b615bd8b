"""Nodes, rules and their error bars, each held against a truth; the jumps of the proximal map included."""

from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from scipy.stats import binom, norm

import saddleforge as sf
from saddleforge import InputError, Problem
from saddleforge.base.errors import DomainError
from saddleforge.base.threads import available_thread_count, thread_limit
from saddleforge.channel.fields import field_law
from saddleforge.channel.nodes import (
    _cached_sobol_points,
    _draw_sobol_points,
    _load_or_draw_sobol_points,
    gauss_hermite,
    normal_rule_on_panels,
    sobol_normal_points,
    tensor_product_rule,
)
from saddleforge.integration import (
    FAMILIES,
    GaussHermite,
    LatticeRule,
    ProxSpaceRule,
    Rule,
    SmoothPiecesRule,
    Sobol,
    SplitLinesRule,
    rule_by_name,
)
from saddleforge.integration.estimates import (
    RuleComparison,
    compare_rules,
    error_bar_from_comparisons,
    replicate_error_bar,
)
from saddleforge.integration.sampled import TeacherFieldRule
from saddleforge.problems.overlaps import Overlaps
from saddleforge.report.contract import json_text

NORMAL_MOMENTS = (1, 0, 1, 0, 3, 0, 15, 0, 105)


def glm(q: float, V: float, theta: float) -> Overlaps:
    return Overlaps(np.full((1, 1, 1), q), np.full((1, 1, 1), V), np.zeros((1, 1)), np.full((1, 1, 1), theta))


def attention_state(q: float, V: float, m: float, theta: float) -> Overlaps:
    return Overlaps(np.full((2, 1, 1), q), np.full((2, 1, 1), V), np.array([[m], [-m]]), np.full((2, 1, 1), theta))


JUMP_FREE = attention_state(0.1148, 12.67, 0.0, 0.158)  # semantic, alpha = 2: bistable fraction below 1e-8
BISTABLE = attention_state(0.0435, 16.43, 0.248, 0.0)  # positional, alpha = 1: 1.6 %


@pytest.fixture(scope="module")
def attention_problem() -> Problem:
    return sf.problem("dot_product_attention", alpha=2.0)


# Nodes


@pytest.mark.parametrize("degree", range(9))
def test_gauss_hermite_integrates_polynomials_of_the_normal_measure(degree):
    nodes, weights = gauss_hermite(5)
    assert weights @ nodes**degree == pytest.approx(NORMAL_MOMENTS[degree], abs=1e-12)


@pytest.mark.parametrize("points", [10, 100, 200, 201, 370, 371, 500, 1000, 2000])
def test_gauss_hermite_holds_for_every_number_of_points(points):
    """Weights 1 / (n h_{n-1}(z)^2) at the zeros z of the orthonormal h_n, from their recurrence in 50 digits."""
    nodes, weights = gauss_hermite(points)
    with mp.workdps(50):

        def polynomials(z):
            last, before = mp.mpf(1), mp.mpf(0)
            for k in range(points):
                last, before = (z * last - mp.sqrt(k) * before) / mp.sqrt(k + 1), last
            return last, before

        for n in np.linspace(points // 2, points - 1, 6).astype(int):
            z = mp.mpf(float(nodes[n]))
            for _ in range(2):  # steps of Newton
                last, before = polynomials(z)
                z -= last / (mp.sqrt(points) * before)
            exact = float(1 / (points * polynomials(z)[1] ** 2))
            assert nodes[n] == pytest.approx(float(z), rel=1e-13, abs=3e-14)
            assert weights[n] == pytest.approx(exact, abs=1e-15)
            if exact > 1e-60:
                assert weights[n] == pytest.approx(exact, rel=1e-12)
    np.testing.assert_allclose(weights, weights[::-1], rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("breaks", [[], [0.0], [-1.3, 0.4], [12.0, 0.4]], ids=str)
def test_panels_integrate_the_normal_measure(breaks):
    nodes, weights = normal_rule_on_panels(breaks, 60)
    for degree, moment in enumerate(NORMAL_MOMENTS):
        assert weights @ nodes**degree == pytest.approx(moment, rel=1e-12, abs=1e-11)


def test_panels_see_a_jump_at_their_break():
    """P(z > 0.4), which no rule that ignores the jump gets to twelve digits."""
    nodes, weights = normal_rule_on_panels([0.4], 30)
    assert weights @ (nodes > 0.4) == pytest.approx(norm.sf(0.4), abs=1e-14)
    nodes, weights = gauss_hermite(30)
    assert weights @ (nodes > 0.4) != pytest.approx(norm.sf(0.4), abs=1e-3)


def test_product_rules_multiply():
    nodes, weights = tensor_product_rule([gauss_hermite(4), normal_rule_on_panels([0.0], 40), gauss_hermite(3)])
    assert nodes.shape == (4 * 80 * 3, 3)
    assert weights @ np.prod(nodes**2, axis=1) == pytest.approx(1.0, rel=1e-12)
    assert weights @ (nodes[:, 0] ** 4 * nodes[:, 2] ** 2) == pytest.approx(3.0, rel=1e-12)


def test_an_integral_over_nothing_is_one_point():
    nodes, weights = tensor_product_rule([])
    assert nodes.shape == (1, 0)
    assert weights.tolist() == [1.0]


def test_a_sobol_set_is_closed_under_the_sign_of_each_group():
    groups = ((0, 1), (2, 3))
    nodes = sobol_normal_points(4, 6, 3, groups)
    rows = {tuple(row) for row in nodes.tolist()}
    assert len(rows) == 4 * 2**6
    for group in groups:
        signs = np.ones(4)
        signs[list(group)] = -1
        assert {tuple(row) for row in (nodes * signs).tolist()} == rows


def test_a_sobol_set_has_the_moments_of_the_normal_measure():
    nodes = sobol_normal_points(4, 12, 0, ((0, 1), (2, 3)))
    assert np.abs(nodes.mean(axis=0)).max() < 1e-15
    assert np.abs(nodes.T @ nodes / len(nodes) - np.eye(4)).max() < 3e-3


def test_seeds_give_different_sets_and_the_same_seed_the_same():
    assert np.array_equal(sobol_normal_points(2, 5, 1, ()), _cached_sobol_points.__wrapped__(2, 5, 1, (), None))
    assert not np.array_equal(sobol_normal_points(2, 5, 1, ()), sobol_normal_points(2, 5, 2, ()))


def test_small_sets_are_kept_for_the_next_process_and_drawn_again_where_their_file_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("SADDLEFORGE_CACHE", str(tmp_path))
    drawn = _draw_sobol_points(3, 5, 7)
    assert np.array_equal(_load_or_draw_sobol_points(3, 5, 7), drawn)
    (file,) = (tmp_path / "sobol").iterdir()
    assert np.array_equal(np.load(file), drawn)
    for damage in (b"", file.read_bytes()[:-8], b"no array"):
        file.write_bytes(damage)
        assert np.array_equal(_load_or_draw_sobol_points(3, 5, 7), drawn)
    monkeypatch.setenv("SADDLEFORGE_CACHE", "/dev/null/nowhere")
    assert np.array_equal(_load_or_draw_sobol_points(3, 5, 7), drawn)


# The fields


def test_fields_have_the_covariance_of_the_overlaps():
    """Var omega = q, Cov(omega, Y) = theta, Var Y = rho* (docs/theory.md (3.12))."""
    problem = sf.problem("dot_product_attention", student_rank=2, alpha=1.0)
    rng = np.random.default_rng(0)
    q = np.stack([np.array([[0.3, 0.1], [0.1, 0.2]]), np.array([[0.2, -0.05], [-0.05, 0.4]])])
    overlaps = Overlaps(q, 2 * q, rng.standard_normal((2, 2)), 0.1 * rng.standard_normal((2, 2, 1)))
    fields = field_law(problem, overlaps, (0, 0))
    for l in range(2):
        B, C, F = fields.field_from_teacher[l], fields.teacher_factor[l], fields.field_factor[l]
        assert pytest.approx(q[l], abs=1e-14) == B @ B.T + F @ F.T
        assert pytest.approx(overlaps.theta[l], abs=1e-14) == B @ C.T
        assert pytest.approx(problem.law.rho_star[l], abs=1e-14) == C @ C.T


@pytest.mark.parametrize(("q", "V", "theta"), [(0.5, 1.0, 0.8), (0.5, -1.0, 0.1), (-0.5, 1.0, 0.0), (np.nan, 1.0, 0.0)])
def test_impossible_overlaps_are_refused(q, V, theta):
    """V > 0 and q > theta^2 / rho*, or there is no such law."""
    problem = sf.problem("ridge_regression", alpha=1.0)
    with pytest.raises(DomainError):
        GaussHermite(4).averages(problem, glm(q, V, theta))


# Rules against the truth


def ridge_truth(q: float, V: float, theta: float) -> dict[str, np.ndarray | float]:
    """All averages of the square loss with noise variance 1/4, by hand: g = (y - omega) / (1 + V)."""
    r = 1 + 0.25 - 2 * theta + q
    moments = np.array([0.0, (1 - theta) / (1 + V), (theta - q) / (1 + V), r / (1 + V) ** 2])
    return {"moments": moments, "moreau": r / (2 * (1 + V)), "loss": r / (2 * (1 + V) ** 2)}


GLM_STATES = [(0.6, 1.3, 0.5), (0.2, 0.4, 0.1), (2.5, 5.0, 1.2), (0.9, 0.2, -0.4)]
EXACT_RULES = [GaussHermite(8), ProxSpaceRule(160, 72)]


@pytest.mark.parametrize("state", GLM_STATES, ids=str)
@pytest.mark.parametrize("rule", EXACT_RULES, ids=lambda r: r.name)
def test_smooth_rules_are_exact_on_ridge(rule, state):
    found = rule.averages(sf.problem("ridge_regression", alpha=1.0), glm(*state))
    truth = ridge_truth(*state)
    assert np.abs(found.moments[:, 0] - truth["moments"]).max() < 1e-10
    assert np.abs(found.moreau - truth["moreau"]).max() < 1e-10
    assert np.abs(found.loss - truth["loss"]).max() < 1e-10
    assert found.bistable == 0.0


def sobol_coverage(problem: Problem, states: list[Overlaps], truths: list[np.ndarray], sets: int) -> tuple[int, int]:
    """How often |mean of replicates - truth| is within two standard errors, over seeds and averages; and trials."""
    hits = trials = 0
    for seed in range(sets):
        for state, truth in zip(states, truths, strict=True):
            found = Sobol(log2=6, scramblings=16, seed=100 + seed).averages(problem, state)
            samples = np.column_stack([found.moments.reshape(16, -1), found.moreau, found.loss])
            spread = replicate_error_bar(samples)
            moving = spread > 1e-13
            hits += int(np.sum(np.abs(samples.mean(axis=0) - truth)[moving] <= spread[moving]))
            trials += int(moving.sum())
    return hits, trials


def assert_covers(hits: int, trials: int) -> None:
    """Error bars of 16 replicates cover 95 %, somewhat less where they are skewed. Averages of one set are correlated,
    so the count is judged as if there were a third as many: below the 0.1 % quantile is a broken error bar."""
    effective = trials // 3
    assert hits / trials > binom.ppf(1e-3, effective, 0.94) / effective, f"{hits} of {trials} covered"


def test_sobol_error_bars_cover_ridge():
    truths = [ridge_truth(*state) for state in GLM_STATES]
    exact = [np.array([*truth["moments"], truth["moreau"], truth["loss"]]) for truth in truths]
    states = [glm(*state) for state in GLM_STATES]
    assert_covers(*sobol_coverage(sf.problem("ridge_regression", alpha=1.0), states, exact, 16))


def test_sobol_error_bars_cover_logistic():
    """Truth by two rules that share nothing but the model: Gauss-Hermite over panels with the prox, and prox-space."""
    problem = sf.problem("logistic_regression", alpha=1.0)
    states, truths = [glm(*state) for state in GLM_STATES[:2]], []
    for state in states:
        one, other = GaussHermite(60).averages(problem, state), ProxSpaceRule(200, 60).averages(problem, state)
        truths.append(np.array([*one.moments[0, 0], one.moreau[0], one.loss[0]]))
        assert truths[-1] == pytest.approx(np.array([*other.moments[0, 0], other.moreau[0], other.loss[0]]), abs=1e-9)
    assert_covers(*sobol_coverage(problem, states, truths, 24))


@pytest.mark.parametrize("integrator", ["gauss-hermite", "prox-space"])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 4.0])
def test_solutions_of_ridge_cover_the_closed_form(integrator, alpha):
    """Deterministic rules: the bar is the difference to a finer rule."""
    solution = sf.solve(sf.problem("ridge_regression", alpha=alpha), accuracy=1e-6, integrator=integrator, points=90)
    b = 0.1 + alpha - 1
    V = 2 / (b + np.sqrt(b * b + 0.4))
    assert abs(solution.overlaps.V.item() - V) <= solution.errors[1] + 1e-14
    assert abs(solution.overlaps.theta.item() - (1 - 0.1 * V)) <= solution.errors[3] + 1e-14


# Jumps


def test_prox_space_has_mass_one(attention_problem):
    for state in (JUMP_FREE, BISTABLE):
        assert ProxSpaceRule(88, 32).averages(attention_problem, state).mass == pytest.approx(1.0, abs=1e-9)
    for name in ("ridge_regression", "logistic_regression"):
        found = ProxSpaceRule(128, 48).averages(sf.problem(name, alpha=1.0), glm(0.6, 1.3, 0.5))
        assert found.mass == pytest.approx(1.0, abs=1e-12)


def test_the_signed_sum_is_the_average_where_the_minimum_is_unique(attention_problem):
    corrected = ProxSpaceRule(64, 26).averages(attention_problem, JUMP_FREE)
    signed = ProxSpaceRule(64, 26, neglected=np.inf).averages(attention_problem, JUMP_FREE)
    assert corrected.bistable < 1e-7
    assert signed.moments == pytest.approx(corrected.moments, rel=1e-6, abs=1e-10)
    assert signed.moreau == pytest.approx(corrected.moreau, rel=1e-6)


def test_the_signed_sum_is_wrong_where_there_are_two_minima(attention_problem):
    """By about ten times the bistable weight (docs/theory.md section 15); the corrected sum agrees with the prox."""
    corrected = ProxSpaceRule(80, 32).averages(attention_problem, BISTABLE)
    signed = ProxSpaceRule(80, 32, neglected=np.inf).averages(attention_problem, BISTABLE)
    reference = Sobol(13).averages(attention_problem, BISTABLE)
    assert corrected.bistable > 1e-3
    g2 = reference.moments[:, 0, 3]
    error = 2 * g2.std(ddof=1) / np.sqrt(len(g2))
    assert abs(corrected.moments[0, 0, 3] - g2.mean()) < 3 * error
    assert abs(signed.moments[0, 0, 3] - g2.mean()) > 10 * error


@pytest.mark.parametrize("state", [BISTABLE, attention_state(0.08, 25.0, 0.0, 0.0)], ids=["positional", "uninformed"])
def test_prox_space_agrees_with_sobol_where_the_proximal_map_jumps(attention_problem, state):
    """Two rules that share only the model: three standard errors of the sampled one."""
    grid = ProxSpaceRule(64, 32).averages(attention_problem, state)
    sobol = Sobol(13).averages(attention_problem, state)
    for name in ("moments", "moreau", "loss"):
        one, other = getattr(grid, name), getattr(sobol, name)
        error = np.sqrt(other.var(axis=0, ddof=1) / len(other))
        gap = np.abs(one.mean(axis=0) - other.mean(axis=0))
        assert np.all(gap <= 3 * error + 1e-12), name


def test_smoothing_the_step_is_worth_more_than_a_finer_grid(attention_problem):
    """Where the proximal map jumps (here 10 % bistable) a sharp step leaves an error of the weight of a few nodes.

    At some sizes: nodes at which both minima are equal by symmetry fall on one side or the other by rounding.
    """
    state, moving = attention_state(0.0567, 26.56, 0.0, 0.0586), [1, 2, 3]  # E[g] vanishes by symmetry

    def moments(rule: ProxSpaceRule) -> np.ndarray:
        return rule.averages(attention_problem, state).moments[0][:, moving]

    truth = moments(ProxSpaceRule(120, 60, blur=0.6))

    def off(rule: ProxSpaceRule) -> float:
        return float(np.max(np.abs(moments(rule) - truth) / np.abs(truth).max(axis=0)))

    sharp = [off(ProxSpaceRule(points, 44, blur=0.0)) for points in (84, 88, 92)]
    assert off(ProxSpaceRule(56, 40)) < max(sharp) / 5
    assert off(ProxSpaceRule(88, 44)) < 5e-5


def test_the_map_is_smooth_where_the_proximal_map_jumps(attention_problem):
    """Slopes over steps of 1e-5 and 1e-3 agree: no node that changes side moves the sum by its weight."""
    u = BISTABLE.pack()
    direction = np.where(np.arange(len(u)) < 2, u, 0.0)

    def slope(step: float) -> np.ndarray:
        ahead, behind = (
            ProxSpaceRule(48, 24).averages(
                attention_problem, Overlaps.unpack(u + sign * step * direction, BISTABLE.sizes)
            )
            for sign in (1, -1)
        )
        return (ahead.moments - behind.moments) / (2 * step)

    wide = slope(1e-3)
    assert slope(1e-5) == pytest.approx(wide, rel=1e-4, abs=1e-4 * np.abs(wide).max())


def test_bistable_weight_is_the_share_of_second_minima(attention_problem):
    """prox-space measures it as the weight of saddles, Sobol counts nodes."""
    grid = ProxSpaceRule(80, 32).averages(attention_problem, BISTABLE)
    assert grid.bistable == pytest.approx(Sobol(14).averages(attention_problem, BISTABLE).bistable, rel=0.05)


def test_proximal_iterations_converge_on_all_of_the_measure(attention_problem):
    for state in (JUMP_FREE, BISTABLE):
        assert Sobol(12).averages(attention_problem, state).unconverged == 0.0


def test_a_single_start_misses_minima_where_there_are_two(attention_problem):
    """What the published curves did: E[M] comes out too high."""
    state = attention_state(0.05, 40.0, 0.0, 0.0)
    full = Sobol(9, 4).averages(attention_problem, state)
    single = Sobol(9, 4, starts=0).averages(attention_problem, state)
    assert full.bistable > 0.05
    assert np.all(single.moreau > full.moreau * (1 + 1e-6))


# Structure


def test_the_logistic_label_splits_the_teacher_axis():
    problem = sf.problem("logistic_regression", alpha=1.0)
    fields = field_law(problem, glm(0.6, 1.3, 0.5), (0,))
    nodes, _ = TeacherFieldRule.teacher_rule_for_loss(problem, fields, 10).nodes_and_weights
    assert nodes.shape == (20, 1)
    assert np.sum(nodes < 0) == 10


def test_an_unknown_rule_lists_the_known_ones():
    with pytest.raises(InputError, match=r"simpson.*auto, gauss-hermite, sobol, prox-space"):
        rule_by_name("simpson")


@pytest.mark.parametrize(
    ("rule", "sizes"), [(GaussHermite(64), {"tokens": 3}), (ProxSpaceRule(90, 20), {"student_rank": 2})]
)
def test_rules_too_large_to_run_say_what_to_use_instead(rule, sizes):
    problem = sf.problem("dot_product_attention", alpha=1.0, **sizes)
    s, L = problem.student_rank, problem.tokens
    state = Overlaps(
        np.tile(0.1 * np.eye(s), (L, 1, 1)), np.tile(np.eye(s), (L, 1, 1)), np.zeros((L, s)), np.zeros((L, s, 1))
    )
    with pytest.raises(InputError, match="use sobol"):
        rule.averages(problem, state)


@pytest.fixture
def with_threads() -> Callable[[int, Callable[[], bytes]], bytes]:
    def run(count: int, action: Callable[[], bytes]) -> bytes:
        with thread_limit(count):
            return action()

    return run


# What every rule states: a new one adds an entry

RULES = {
    "gauss-hermite": GaussHermite(10),
    "sobol": Sobol(8),
    "prox-space": ProxSpaceRule(48, 20),
    "lines": SplitLinesRule(16),
    "pieces": SmoothPiecesRule(12),
    "lattice": LatticeRule(2.0),
}
EVERY_RULE = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def error_bars(rule: Rule, problem: Problem, state: Overlaps) -> tuple[np.ndarray, np.ndarray]:
    """Return the moments of a rule at a state and their error bars."""
    own = rule.averages(problem, state)
    if rule.replicated:
        return own.means, replicate_error_bar(own.moments)

    def ask(change: Callable[[Rule], Rule]) -> RuleComparison:
        found = change(rule).averages(problem, state)
        return RuleComparison((found.means - own.means,), (found,))

    return own.means, error_bar_from_comparisons(compare_rules([rule], [own], ask), 0)


def test_every_family_is_held_to_it():
    assert list(RULES) == list(FAMILIES)


@EVERY_RULE
def test_rules_are_found_by_name_and_refine(rule):
    problem = sf.problem("logistic_regression", alpha=1.0)
    named = rule_by_name(rule.name, 10)
    assert type(named) is type(rule) and named.rule_description()["rule"] == rule.name
    assert np.prod(named.finer_rule().rule_description()["points"]) > np.prod(named.rule_description()["points"])
    assert (
        rule.finer_rule().node_count(problem) > rule.node_count(problem) >= rule.coarser_rule().node_count(problem) > 0
    )
    assert rule.evaluation_cost(problem) >= rule.node_count(problem)
    assert all(further.node_count(problem) > rule.node_count(problem) for further in rule.finer_rules(problem))
    assert rule.replicates == (rule,) or rule.replicated


@EVERY_RULE
@pytest.mark.parametrize("state", GLM_STATES[:2], ids=str)
def test_error_bars_of_every_rule_hold_polynomial_moments(rule, state):
    """Of ridge regression, whose averages are polynomials of the normal law."""
    problem = sf.problem("ridge_regression", alpha=1.0)
    found, width = error_bars(rule, problem, glm(*state))
    margin = 1.5 if rule.replicated else 1.0  # 95 % of them are held to the margin
    assert np.all(np.abs(found[0] - ridge_truth(*state)["moments"]) <= margin * width[0] + 1e-10)
    assert rule.averages(problem, glm(*state)).mass == pytest.approx(1.0, abs=2e-2)


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES.values() if not isinstance(rule, LatticeRule)], ids=lambda r: r.name
)
def test_error_bars_hold_what_many_nodes_say(rule):
    """Of labels that are signs of Y, which lattices are not for."""
    problem, state = sf.problem("logistic_regression", alpha=1.0), glm(0.6, 1.3, 0.5)
    found, width = error_bars(rule, problem, state)
    truth = GaussHermite(60).averages(problem, state).means
    margin = 1.5 if rule.replicated else 1.0
    assert np.all(np.abs(found - truth) <= margin * width + 1e-10)


@pytest.mark.skipif(available_thread_count() < 2, reason="one thread only")
@EVERY_RULE
def test_averages_do_not_depend_on_the_number_of_threads(attention_problem, with_threads, rule):
    problem, state = attention_problem, BISTABLE
    if isinstance(rule, SmoothPiecesRule):
        problem, state = sf.problem("hinge", alpha=1.0), glm(0.6, 1.3, 0.5)

    def run() -> bytes:
        found = rule.averages(problem, state)
        jacobian_averages = rule.jacobian_averages(problem, state)
        arrays = (found.moments, found.moreau, found.loss, jacobian_averages.slope, jacobian_averages.square)
        return b"".join(a.tobytes() for a in arrays)

    assert with_threads(1, run) == with_threads(2, run)


@pytest.mark.skipif(available_thread_count() < 2, reason="one thread only")
@pytest.mark.parametrize("start", ["semantic", pytest.param("positional", marks=pytest.mark.slow)])
def test_json_does_not_depend_on_the_number_of_threads(attention_problem, with_threads, start):
    def run() -> bytes:
        return json_text(sf.solve(attention_problem, start, accuracy=2e-2).to_json()).encode()

    assert with_threads(1, run) == with_threads(2, run)


@pytest.mark.parametrize(("name", "points"), [("sobol", 2**15), ("sobol", 0), ("lines", -1), ("lattice", 40)])
def test_a_rule_of_a_size_that_makes_no_sense_is_refused_in_a_sentence(name, points):
    """Of Sobol sets the size is a logarithm."""
    with pytest.raises(InputError, match=rf"points = {points} is out of range; .* whole numbers from \d+ to \d+"):
        sf.solve(sf.problem("ridge_regression", alpha=2), integrator=name, points=points)
