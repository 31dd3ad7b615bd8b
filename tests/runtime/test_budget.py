"""Time limits: the best so far, with a status, and nothing started that would overrun. The clock counts questions."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.base import budget
from saddleforge.base.errors import InputError, TimeLimitError
from saddleforge.integration import ProxSpaceRule, SmoothPiecesRule, Sobol, durations
from saddleforge.saddle_point import observables
from saddleforge.saddle_point.iteration import Status
from saddleforge.solving import error_bars


def ticks(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """From now on a second passes whenever anybody but a running loop looks at the clock; the seconds to come."""
    seconds = count()
    monkeypatch.setattr(budget.time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(durations, "predicted_evaluation_seconds", lambda problem, rule: 0.0)
    monkeypatch.setattr(budget, "check_running_step", lambda: None)
    return seconds


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    sf.solve(problem())  # compiled: its progress looks at the clock, too
    ticks(monkeypatch)


def problem() -> sf.Problem:
    return sf.problem("ridge_regression", alpha=2.0)


def evaluations(of: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a computation looks at the clock."""
    with monkeypatch.context() as patch, budget.time_limit(1e9):
        seconds = ticks(patch)
        of()
    return next(seconds)


def test_without_a_limit_nothing_ends():
    budget.check_time_limit(1e9)
    with budget.time_limit(None):
        budget.check_time_limit(1e9)
        assert budget.remaining_seconds() == np.inf


def test_a_limit_ends_in_its_context_and_an_outer_one_ends_an_inner_one():
    with sf.time_limit(100.0):
        budget.check_time_limit()
        with pytest.raises(TimeLimitError, match=r"time limit of 100 s"):
            budget.check_time_limit(101.0)
        with budget.time_limit(1000.0):
            assert budget.remaining_seconds() <= 100.0
        with budget.allow_step_overtime(), budget.allow_step_overtime():
            budget.check_time_limit(104.0)
            with pytest.raises(TimeLimitError, match=r"time limit of 100 s"):
                budget.check_time_limit(106.0)
        with budget.without_time_limit():
            budget.check_time_limit(1e9)
    budget.check_time_limit(1e9)
    with pytest.raises(InputError, match="out of range"), budget.time_limit(-1.0):
        pass


def test_at_once_there_is_the_start_to_show(ticking):
    solution = sf.solve(problem(), time_limit=1.0)
    assert (solution.status, solution.success, solution.iterations) == (Status.TIME_LIMIT, False, 0)
    assert solution.losses is None and solution.stability is None
    assert np.isfinite(solution.overlaps.pack()).all()
    assert "allow more time" in repr(solution)


def test_within_an_iteration_there_is_the_last_iterate(ticking):
    solution = sf.solve(problem(), time_limit=8.0)
    assert solution.status is Status.TIME_LIMIT
    assert 0 < solution.iterations < 8
    assert np.isfinite(solution.residual)


@pytest.mark.slow
def test_a_finished_level_is_handed_over_with_its_error_bars(monkeypatch):
    """An accuracy that asks for several sets of points, and the time for a part of them: the error bars hold the truth,
    which pieces give to machine precision at once."""
    bent = sf.problem("huber_regression", alpha=2.0, width=0.3)
    truth = sf.solve(bent)
    assert isinstance(truth.rule, SmoothPiecesRule) and truth.relative_error < 1e-10
    needed = evaluations(lambda: sf.solve(bent, accuracy=1e-4, integrator="sobol"), monkeypatch)
    ticks(monkeypatch)
    monkeypatch.setattr(budget, "_OVERTIME", 20.0)  # looks at the clock that error bars take
    solution = sf.solve(bent, accuracy=1e-4, integrator="sobol", time_limit=0.8 * needed)
    assert solution.status is Status.TIME_LIMIT
    assert solution.losses is not None and np.isfinite(solution.errors).all()
    assert isinstance(solution.rule, Sobol) and 1e-4 < solution.relative_error < 1e-2
    assert np.all(np.abs(solution.overlaps.pack() - truth.overlaps.pack()) <= solution.errors + truth.errors)


def test_error_bars_are_taken_once_wherever_the_time_ends(monkeypatch):
    """They take several evaluations of the rule: started in time they are finished, beyond it nothing is done twice."""
    finished = []
    ordinary = error_bars._solution_at_converged_point
    monkeypatch.setattr(error_bars, "_solution_at_converged_point", lambda *at: finished.append(at) or ordinary(*at))
    needed = evaluations(lambda: sf.solve(problem()), monkeypatch)
    ticks(monkeypatch)
    for share in (0.3, 0.7, 0.8, 0.9, 1.0, 1.1):
        finished.clear()
        solution = sf.solve(problem(), time_limit=share * needed)
        assert (solution.losses is not None) == (len(finished) == 1)
        assert len(finished) <= 1


@pytest.fixture
def no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of how long a rule takes."""
    monkeypatch.setattr(durations, "_seconds", type(durations._seconds)(list))


def test_a_step_that_would_overrun_is_not_started(no_pace, monkeypatch):
    for _ in range(2):  # the first waits for the compiler
        durations.record_evaluation_duration(problem(), SmoothPiecesRule(1), 50.0)
    visited = []
    averages = SmoothPiecesRule.averages
    monkeypatch.setattr(SmoothPiecesRule, "averages", lambda self, *at: visited.append(self) or averages(self, *at))
    solution = sf.solve(problem(), time_limit=40.0)
    assert solution.status is Status.TIME_LIMIT
    assert not visited


def test_the_pace_of_a_rule_is_that_of_smaller_ones_of_its_family(no_pace):
    at = sf.problem("phase_retrieval", alpha=2.0)  # two dimensions
    small, large = ProxSpaceRule(100, 50), ProxSpaceRule(10000, 500)
    for seconds in (9.0, 0.01, 0.02):  # the first waits for the compiler
        durations.record_evaluation_duration(at, small, seconds)
    assert durations.predicted_evaluation_seconds(at, large) == pytest.approx(0.01 * (10000 * 500) / (100 * 50))
    assert durations.predicted_evaluation_seconds(at, Sobol(12)) == 0.0
    assert durations.describe_rule_with_duration(at, large) == "prox-space, 10000 x 500 nodes, about 10 s an evaluation"


def test_a_curve_keeps_its_finished_points(ticking):
    values = np.linspace(1.0, 3.0, 9)
    with sf.time_limit(60.0):
        found = sf.curve(sf.problem("ridge_regression"), over="alpha", values=values, accuracy=1e-2)
    assert found.out_of_time and "time limit" in found.end_text()
    assert 0 < len(found.solutions) < len(values)
    assert all(s.success for s in found.solutions)
    assert found.ends == (None, None)  # nothing is known of them


@pytest.mark.slow
def test_a_followed_branch_keeps_its_finished_points(ticking):
    with sf.time_limit(250.0):
        found = sf.follow(sf.problem("ridge_regression"), between=(1.0, 9.0), accuracy=1e-2)
    assert found.out_of_time and "time limit" in found.ending
    assert len(found.solutions) > 1 and found.values.max() < 9.0


@pytest.mark.slow
def test_a_threshold_keeps_the_interval_that_holds_it(monkeypatch):
    ask = {"condition": "test_error = 0.44", "on": "semantic", "bracket": (1.2, 4.0), "accuracy": 1e-5}
    truth = sf.where(problem(), **ask)
    needed = evaluations(lambda: sf.where(problem(), **ask), monkeypatch)
    ticks(monkeypatch)
    with sf.time_limit(0.8 * needed):
        found = sf.where(problem(), **ask)
    assert (found.status, found.success) == ("time_limit", False)
    assert abs(found.value - truth.value) <= found.error + truth.error
    assert found.error > 1e-5


@pytest.mark.slow
def test_tuning_keeps_the_best_value_tried(ticking):
    with sf.time_limit(300.0):
        found = sf.tune(problem(), "lambda", bracket=(1e-2, 10.0))
    assert (found.status, found.kind, found.success) == ("time_limit", "tried", False)
    assert 1e-2 <= found.value <= 10 and "best of the values tried" in found.advice and found.table()


@pytest.mark.slow
def test_a_simulation_keeps_its_finished_seeds():
    with sf.time_limit(20.0):
        found = sf.simulate(sf.problem("ridge_regression", alpha=2.0), d=300, seeds=3_000)
    assert found.out_of_time and found.to_json()["status"] == "time_limit"
    assert 0 < len(found.runs) < 3_000


def test_a_test_error_is_refined_no_further_in_overtime_and_the_status_says_so(monkeypatch):
    exact = sf.solve(problem())
    coarse = error_bars.ObservableEstimate.estimate_at_overlaps
    monkeypatch.setattr(
        error_bars.ObservableEstimate,
        "estimate_at_overlaps",
        lambda *at: replace(found := coarse(*at), own=0.1 * abs(found.value)),
    )
    assert sf.solve(problem()).status is Status.CONVERGED  # its error bar is as it is
    monkeypatch.setattr(budget, "is_in_overtime", lambda: True)
    late = sf.solve(problem())
    assert late.status is Status.TIME_LIMIT and "allow more time" in repr(late)
    assert late.test_error_error > 0.1 * late.test_error and np.isfinite(late.errors).all()
    assert abs(late.test_error - exact.test_error) < late.test_error_error


def test_a_test_error_by_sobol_sets_ends_with_the_first_of_them_in_overtime(monkeypatch):
    at = sf.problem("hinge", alpha=2.0)
    overlaps = sf.solve(at).overlaps
    metric = observables._MetricIntegrand.metric_integrand_of_reduced_fields(at, overlaps)
    fine = metric.estimate_by_rule_family("sobol", 0.0, False, 4e6, 1e-4)
    monkeypatch.setattr(observables, "is_in_overtime", lambda: True)
    first = metric.estimate_by_rule_family("sobol", 0.0, False, 4e6, 1e-4)
    assert first[2].size < fine[2].size and fine[1] < first[1]
    assert abs(first[0] - fine[0]) < first[1] + fine[1]


def test_a_finer_rule_is_left_out_without_time_for_its_error_bars(monkeypatch):
    """The accuracy asks for 2^16 points, of which eight evaluations would take too long: there is time for fewer."""
    bent = sf.problem("huber_regression", alpha=2.0, width=0.3)
    monkeypatch.setattr(
        durations,
        "predicted_evaluation_seconds",
        lambda problem, rule: 1e-3 if rule.node_count(problem) < 3e5 else 99.0,
    )
    found = sf.solve(bent, integrator="sobol", accuracy=1e-6, time_limit=100.0)
    assert found.status is Status.TIME_LIMIT and isinstance(found.rule, Sobol)
    assert found.rule.node_count(bent) < 3e5 <= Sobol(found.rule.log2 + 1).node_count(bent)
    assert np.isfinite(found.errors).all() and found.relative_error > 1e-6
