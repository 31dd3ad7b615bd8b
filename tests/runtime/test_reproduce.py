"""The main job on made-up results: the report, what is kept between runs, and the full run (slow)."""

import base64
import json
import re
import shutil
import threading
import time
from dataclasses import replace
from functools import wraps

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.base.errors import InputError
from saddleforge.base.numbers import format_value_with_error
from saddleforge.base.threads import thread_limit
from saddleforge.problems.overlaps import Overlaps
from saddleforge.report.contract import to_plain_json
from saddleforge.reproduce import alpha_thresholds, base_case, jobs, published_quadrature, transition
from saddleforge.reproduce.finite_size import mean_observables_of_runs
from saddleforge.reproduce.pages import transition as page
from saddleforge.reproduce.pages.content import render_html, render_markdown
from saddleforge.reproduce.pages.finite_size import comparison_rows
from saddleforge.reproduce.pages.transition import build_page, phase_diagram_lines, plot_phase_diagram, threshold_tables
from saddleforge.reproduce.steps import StoredSteps, code_digest
from saddleforge.reproduce.transition import FIGURES, TransitionRun


def made_threshold(value, error=2e-4, status="converged"):
    return {
        "value": value,
        "error": error,
        "error_kind": "estimated",
        "status": status,
        "verdicts": {"semantic": "RS stable (replicon 0.3)", "positional": "RS unstable in the strict sense | jumps"},
        "bistable_fractions": {"semantic": 0.0, "positional": 0.01},
        "evidence": {},
        "overlaps": {"semantic": [0.1, 0.1, 10.0, 10.0, 0.0, 0.0, 0.05, 0.05]},
        "sentence": "",
    }


def made_absence():
    return {
        **made_threshold(None, None, "absent"),
        "verdicts": {},
        "evidence": {
            "compared": [{"alpha": 0.7, "difference": -4e-5, "error": 1e-6}],
            "lowest_alpha_found": {"semantic": 0.65, "positional": 0.1},
            "highest_alpha_not_found": {"semantic": 0.6, "positional": None},
        },
        "sentence": "the difference stays negative down to alpha = 0.65",
    }


@pytest.fixture
def results():
    """What a run might have found, with a missing crossing at omega = 0."""
    return {
        "model": "dot_product_attention",
        "digest": "0123456789abcdef",
        "version": "0.0",
        "numerics": "feed",
        "omega": 0.3,
        "derivation": {"equations": ["q_hat", "V_hat"]},
        "generated": {"differences": []},
        "curves": {
            "semantic": {"ends": "semantic branch found on [0.7, 2.5]; ends between alpha = 0.6 and 0.7", "points": 19},
            "positional": {"ends": "positional branch found on [0.1, 2.5]", "points": 25},
        },
        "thresholds": {
            "alpha_c": {"0.3": made_threshold(1.2515), "0.1": made_threshold(0.7523, 2e-3), "0": made_absence()},
            "alpha_l": {"0.3": made_threshold(1.49, 3e-3)},
        },
        "lines": {
            "alpha_c": {
                "omega": [0.1, 0.2, 0.3],
                "alpha": [0.7523, 0.95, 1.2515],
                "error": [2e-3, 1e-3, 2e-4],
                "endings": ["no such event found beyond 0.7523, 0.1", "0.45 reached"],
            },
            "alpha_l": {"omega": [], "alpha": [], "error": [], "endings": ["there is none"]},
        },
        "coarse": {
            "crossings": [
                {"rule": "rule, one proximal start", "value": 1.28, "residual": 1e-9, "sentence": ""},
                {"rule": "rule, global proximal map", "value": 1.28, "residual": 1e-9, "sentence": ""},
                {"rule": "another", "value": None, "residual": 1e-9, "sentence": "the semantic branch was lost"},
            ],
            "baseline": 0.00199,
        },
        "baseline": {"0": 0.004023, "0.3": 0.00197138433467},
    }


def are_results_complete(results):
    run = object.__new__(transition.TransitionRun)
    run.results = results
    return run.are_results_complete()


PICTURE = b"\x89PNG made up"


def test_the_report_compares_each_number_with_the_published_one(results):
    text = render_markdown(build_page(results, []))
    (row,) = re.findall(r"^\| 0\.3 \| 1\.2515.*$", text, flags=re.MULTILINE)
    cells = [cell.strip() for cell in row.split(" | ")]
    assert cells[1:5] == [format_value_with_error(1.2515, 2e-4), "1.2410", "-0.84 %", "converged, estimated"]
    assert "semantic: RS stable (replicon 0.3)" in row
    assert "strict sense \\| jumps" in row
    assert "0.00197138433467" in text
    assert "0.00199046" in text
    assert "Positional branch found on [0.1, 2.5]: it reaches both edges" in text
    assert "A coarse rule is enough to explain" in text
    assert "matters not at all" in text
    assert "byte for byte" in text


def test_a_missing_crossing_is_reported_in_words_with_its_evidence(results):
    text = render_markdown(build_page(results, []))
    assert "| 0 | none found | - | - | see below | - |" in text
    assert "No alpha_c at omega = 0: the difference stays negative" in text
    assert "The semantic branch was found down to alpha = 0.65; it was not found at 0.6." in text
    assert f"| 0.7 | {format_value_with_error(-4e-5, 1e-6)} |" in text
    assert are_results_complete(results)


def test_a_stale_solver_or_a_missed_accuracy_is_not_complete(results):
    results["generated"]["differences"] = ["channel.py is stale"]
    assert not are_results_complete(results)
    assert "NOT what the generator writes: channel.py is stale" in render_markdown(build_page(results, []))
    results["generated"]["differences"] = []
    results["thresholds"]["alpha_c"]["0.3"]["status"] = "accuracy_not_reached"
    assert not are_results_complete(results)


def test_the_page_holds_its_figures(results):
    page = render_html(build_page(results, ["phase_diagram"]), {"phase_diagram": PICTURE})
    assert page.count("<img") == 1
    assert base64.b64encode(PICTURE).decode() in page
    assert 'src="http' not in page
    assert "figures/phase_diagram.png" in render_markdown(build_page(results, ["phase_diagram"]))


def test_thresholds_become_a_table_and_lines_of_the_phase_diagram(results, tmp_path):
    dataset, frame = threshold_tables(results)
    assert frame["omega"].tolist() == [0.0, 0.1, 0.3]
    assert np.isnan(frame["alpha_c"][0])
    assert dataset["alpha_c_published"].sel(omega=0.3).item() == 1.2410
    assert dataset["alpha_c_status"].sel(omega=0.0).item() == "absent"
    lines = phase_diagram_lines(results)
    assert [line["alpha"][-1] for line in lines] == [1.2515, 1.49]
    plot_phase_diagram(lines, tmp_path / "phase.png")


def test_a_step_is_done_once_and_again_only_if_it_changed(tmp_path):
    counted = []

    def work():
        counted.append(1)
        (tmp_path / "made.txt").write_text("made")
        return {"number": 0.1 + 0.2, "list": np.array([1.0, np.nan])}

    def step(settings, common="a", code="as it was", after=()):
        steps = StoredSteps(tmp_path, {"version": common})
        steps.keys["earlier"] = "some key"
        return steps.load_or_compute_step("name", settings, work, code=code, files=("made.txt",), after=after)

    first = step({"omega": 0.3})
    assert first == {"number": 0.1 + 0.2, "list": [1.0, None]}
    assert step({"omega": 0.3}) == first
    assert len(counted) == 1
    step({"omega": 0.2})
    step({"omega": 0.2}, common="b")
    step({"omega": 0.2}, common="b", after=("earlier",))
    assert len(counted) == 4
    (tmp_path / "made.txt").write_text("changed")
    step({"omega": 0.2}, common="b", after=("earlier",))
    assert len(counted) == 5
    (tmp_path / "steps" / "name.json").write_text("{ half a file")
    step({"omega": 0.2}, common="b", after=("earlier",))
    assert len(counted) == 6
    step({"omega": 0.2}, common="b", code="another", after=("earlier",))
    assert len(counted) == 7


def test_a_step_of_the_base_case_is_the_same_in_every_run_and_no_page_decides_it():
    from saddleforge.reproduce import extensions, finite_size
    from saddleforge.reproduce.pages import content

    shared = code_digest(base_case.BaseCaseRun.locate_threshold)
    for run in (transition.TransitionRun, extensions.ExtensionsRun, finite_size.FiniteSizeRun):
        assert code_digest(run.locate_threshold) == shared
        assert code_digest(run.planned_tasks) != shared
    assert code_digest(content.write_page) != shared


def test_an_interrupted_step_leaves_nothing_and_earlier_ones_stay(tmp_path):
    steps = StoredSteps(tmp_path, {})
    steps.load_or_compute_step("first", {}, lambda: {"done": True}, code="")

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        steps.load_or_compute_step("second", {}, interrupted, code="")
    assert [path.name for path in (tmp_path / "steps").iterdir()] == ["first.json"]
    again = StoredSteps(tmp_path, {})
    assert again.load_or_compute_step("first", {}, interrupted, code="") == {"done": True}


@pytest.fixture
def without_solving(monkeypatch):
    """Replace branches and thresholds by made-up ones, in this process alone."""
    from saddleforge.branches.curve_results import Curve
    from saddleforge.integration import Sobol
    from saddleforge.saddle_point.iteration import Status
    from saddleforge.solving.solution import Solution

    def made(at, name):
        m, theta = (0.2, 0.0) if name == "positional" else (0.0, 0.1)
        q, V = np.full((2, 1, 1), 0.1), np.full((2, 1, 1), 12.0)
        overlaps = Overlaps(q, V, np.array([[m], [-m]]), np.full((2, 1, 1), theta))
        return Solution(
            at,
            name,
            overlaps,
            None,
            Status.CONVERGED,
            1e-10,
            5,
            Sobol(),
            np.full(8, 1e-4),
            None,
            1e-6,
            {"test_error": (0.003 / at.alpha, 1e-6)},
        )

    def curve(base, *, start, **_):
        found = tuple(made(base.with_(alpha=alpha), start) for alpha in (0.5, 1.0, 1.5, 2.0))
        return Curve("alpha", start, found, (None, None))

    def located(kind, at, guess, step, seeds, accuracy):
        assert set(seeds) >= {"semantic"}
        value = 1.2515 + 2.5 * (at.value_of_parameter("omega") - 0.3)
        return made_threshold(value) if at.value_of_parameter("omega") > 0 else made_absence()

    monkeypatch.setattr(base_case, "curve", curve)
    monkeypatch.setattr(base_case, "locate_threshold_near", located)
    with thread_limit(1):
        yield


@pytest.fixture(scope="module")
def derivation(tmp_path_factory):
    """A folder with the derivation of the main job, and what is kept of it."""
    run = TransitionRun(tmp_path_factory.mktemp("derived"), FIGURES)
    return run.out, run.write_derivation()


@pytest.fixture
def made_run(without_solving, results, derivation):
    """The main job on made-up results, kept under the code of what they stand for."""
    folder, derived = derivation

    class MadeRun(TransitionRun):
        @wraps(TransitionRun.write_derivation)
        def write_derivation(self):
            for name in transition.DERIVATION:
                shutil.copy(folder / name, self.out / name)
            return derived

        @wraps(TransitionRun.compare_generated_solver)
        def compare_generated_solver(self):
            return {"differences": []}

        @wraps(TransitionRun.follow_threshold_line)
        def follow_threshold_line(self, kind):
            assert self.results["thresholds"][kind]["0.3"]["value"] is not None
            return results["lines"][kind]

        @wraps(TransitionRun.compute_crossings_by_coarse_rules)
        def compute_crossings_by_coarse_rules(self):
            return {
                "crossings": [
                    {"rule": label, "value": 1.28, "residual": 0.0, "sentence": ""}
                    for label in published_quadrature.COARSE_RULES
                ],
                "baseline": published_quadrature.baseline_error_by_stroud_rule(self.base),
            }

    return MadeRun


def test_a_second_run_solves_nothing_and_writes_the_same_bytes(made_run, tmp_path):
    out = tmp_path / "results"
    first = made_run(out, FIGURES).run_all_tasks(page.write_report)
    assert first.complete
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {f"figures/{name}.png" for name in FIGURES} <= names
    assert {f"tables/{t}.{e}" for t in ("semantic", "positional", "thresholds") for e in ("csv", "nc")} <= names
    assert {"report.md", "report.html", "derivation.txt", "derivation.tex", "results.json"} <= names
    assert "tables/lines.csv" in names
    bytes_before = {name: (out / name).read_bytes() for name in names}

    again = made_run(out, FIGURES)
    second = again.run_all_tasks(page.write_report)
    assert not again.steps.computed
    assert second.results == first.results
    assert {name: (out / name).read_bytes() for name in names} == bytes_before
    assert json.loads((out / "results.json").read_text())["omega"] == 0.3


def test_an_interruption_keeps_the_steps_before_it(made_run, tmp_path):
    class Interrupted(made_run):
        @wraps(TransitionRun.locate_threshold)
        def locate_threshold(self, kind, omega):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interrupted(tmp_path, FIGURES).run_all_tasks(page.write_report)
    kept = {path.stem for path in (tmp_path / "steps").iterdir()}
    assert kept == {"derivation", "generated", "curve_semantic", "curve_positional", "semantic", "positional"}
    assert made_run(tmp_path, FIGURES).run_all_tasks(page.write_report).complete


def test_results_do_not_depend_on_which_process_computes_a_step(made_run, tmp_path):
    def done(out, kind):
        run = made_run(jobs.check_output_folder(out), FIGURES)
        tasks = {task.name: task for task in run.planned_tasks()}
        for name in run.second_process_steps if kind == "aside" else tasks:
            run.run_task(tasks[name])
        return run

    alone = done(tmp_path / "alone", "plan")
    other, first = done(tmp_path / "shared", "aside"), done(tmp_path / "shared", "plan")
    known = {"curve_positional", "verdicts_positional", "alpha_l_0", "line_alpha_l"}
    assert known <= set(other.steps.computed)
    assert first.are_results_complete() and not set(first.steps.computed) & set(other.steps.computed)
    assert first.results == alone.results
    files = [path.relative_to(alone.out) for path in alone.out.rglob("*") if path.is_file()]
    assert all((alone.out / file).read_bytes() == (first.out / file).read_bytes() for file in files)


def test_a_step_is_computed_by_one_process_while_another_waits(tmp_path):
    begun = threading.Event()

    def work():
        begun.set()
        time.sleep(0.1)
        return {"by": "the first"}

    first, other = StoredSteps(tmp_path, {}), StoredSteps(tmp_path, {})
    thread = threading.Thread(target=lambda: first.load_or_compute_step("slow", {}, work, code=""))
    thread.start()
    assert begun.wait(100)
    assert other.load_or_compute_step("slow", {}, lambda: {"by": "the other"}, code="") == {"by": "the first"}
    thread.join()
    assert (first.computed, other.computed, other.computed_elsewhere) == (["slow"], [], ["slow"])
    assert [path.name for path in (tmp_path / "steps").iterdir()] == ["slow.json"]


def test_wrong_requests_are_refused_before_the_work(tmp_path):
    with pytest.raises(InputError, match=r"unknown figure 'fig9'.*; known are overlaps"):
        jobs.reproduce(tmp_path / "out", figures=["fig9"])
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        jobs.reproduce(tmp_path / "file")


def test_guesses_run_through_the_thresholds_that_are_known():
    assert alpha_thresholds.extrapolate_threshold({0.3: 1.25}, 0.2) == pytest.approx(1.25 * np.exp(-0.25))
    assert alpha_thresholds.extrapolate_threshold({0.3: 1.2, 0.2: 0.6}, 0.1) == pytest.approx(0.3)
    curved = {w: np.exp(w**2 - w) for w in (0.1, 0.2, 0.3)}
    assert alpha_thresholds.extrapolate_threshold(curved, 0.4) == pytest.approx(np.exp(-0.24))
    assert alpha_thresholds.extrapolate_threshold({0.3: 0.5}, 0.0) == 0.3
    assert alpha_thresholds.extrapolate_threshold({}, 0.2) == 1.0


def test_too_few_runs_on_a_branch_leave_gaps_in_the_table_of_finite_size():
    """One run has no standard error, none has no mean: both are null where a step keeps them."""
    simulation = sf.simulate(sf.problem("ridge_regression", alpha=2.0), d=60, seeds=1, start="semantic")
    points = {
        "L-BFGS": {
            "semantic": [
                to_plain_json(mean_observables_of_runs(made)) for made in (simulation, replace(simulation, runs=()))
            ]
        }
    }
    names = ("m", "theta", "q", "training_loss", "test_error")
    branch = {name: np.full(1, 0.3) for name in names} | {f"{name}_error": np.full(1, 1e-3) for name in names}
    branch |= {"alpha": np.array([2.0]), "verdict": np.array(["RS stable"])}
    rows = comparison_rows(points, {"semantic": branch})
    losses = [row for row in rows if row["observable"] == "training_loss"]
    assert [row["runs"] for row in losses] == [1, 0]
    assert [np.isfinite(row["simulation"]) for row in losses] == [True, False]
    assert all(np.isnan(row[name]) for row in rows for name in ("standard_error", "deviation"))


class MadeBranch:
    """A branch whose difference to the other one is a formula, and that exists above some alpha."""

    def __init__(self, difference, exists_above=0.0):
        self.difference, self.exists_above, self.asked = difference, exists_above, []

    def solution_at_parameter(self, alpha):
        self.asked.append(alpha)
        return self.difference(alpha) if alpha > self.exists_above else None


@pytest.fixture
def compared(monkeypatch):
    monkeypatch.setattr(
        alpha_thresholds, "residual_of_threshold_condition", lambda kind, solutions: {"difference": solutions[0]}
    )


@pytest.mark.parametrize("first", [0.7, 1.0, 1.4])
def test_a_sign_change_is_bracketed_from_either_side(compared, first):
    branch = MadeBranch(lambda alpha: 1.0 - alpha**2)
    low, high = alpha_thresholds.bracket_threshold("alpha_l", {"semantic": branch}, first, 0.08)
    second = high - (high - low) / 4
    assert second <= 1.0 <= high
    assert high - second < 0.3
    assert len(branch.asked) <= 6


def test_a_branch_that_ends_before_the_sign_changes_has_no_threshold(compared):
    branch = MadeBranch(lambda alpha: 0.5 - alpha, exists_above=0.6)
    sentence = alpha_thresholds.bracket_threshold("alpha_l", {"semantic": branch}, 0.9, 0.08)
    assert re.fullmatch(r"the difference stays negative down to alpha = 0\.6\d*; at 0\.5\d* the .*", sentence)
    assert len(branch.asked) < 12


def test_a_difference_that_never_turns_negative_has_no_threshold(compared):
    sentence = alpha_thresholds.bracket_threshold("alpha_l", {"semantic": MadeBranch(lambda alpha: 1.0)}, 0.9, 0.08)
    assert "no value of alpha up to 4" in sentence


def test_twelve_points_integrate_degree_seven_in_the_plane():
    nodes, weights = published_quadrature.stroud_degree_seven_rule()
    moments = {(0, 0): 1, (2, 0): 1, (2, 2): 1, (4, 0): 3, (4, 2): 3, (6, 0): 15, (0, 6): 15, (3, 3): 0, (5, 2): 0}
    for (a, b), value in moments.items():
        assert weights @ (nodes[:, 0] ** a * nodes[:, 1] ** b) == pytest.approx(value, abs=1e-12)


@pytest.mark.slow
def test_the_main_job_finds_the_transition_and_keeps_its_work(tmp_path):
    found = jobs.reproduce(tmp_path)
    assert found.complete
    crossing = found.results["thresholds"]["alpha_c"]["0.3"]
    assert abs(crossing["value"] - 1.2515) < crossing["error"] + 5e-5
    assert crossing["error"] <= 3e-4
    for kind, accuracy in (("alpha_c", 2e-3), ("alpha_l", 3e-3)):
        for result in found.results["thresholds"][kind].values():
            assert result["status"] == "absent" or result["error"] <= accuracy
    assert found.results["baseline"]["0.3"] == pytest.approx(0.00197138433467, abs=1e-12)
    assert sf.__version__ in found.report.read_text(encoding="utf-8")
