"""The figure of the extensions on made-up results, and (slow) its numbers."""

import json
from functools import wraps

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.branches.branch import Branch
from saddleforge.branches.curve_results import Curve
from saddleforge.integration import Sobol
from saddleforge.problems.overlaps import Overlaps
from saddleforge.reproduce import base_case, extensions
from saddleforge.reproduce.extensions import SETTINGS, VARIATIONS
from saddleforge.reproduce.jobs import reproduce
from saddleforge.reproduce.pages import extensions as page
from saddleforge.reproduce.pages.extensions import threshold_curve
from saddleforge.reproduce.transition import FIGURES
from saddleforge.saddle_point.iteration import Status
from saddleforge.solving.solution import Solution


def made_solution(at, name):
    contexts, s, t = at.contexts, at.student_rank, at.teacher_rank
    q, V = np.tile(0.1 * np.eye(s), (contexts, 1, 1)), np.tile(12 * np.eye(s), (contexts, 1, 1))
    m, theta = np.zeros((contexts, s)), np.zeros((contexts, s, t))
    m[:, -1] = 0.0 if name == "semantic" else 0.2
    theta[:, 0, 0] = 0.0 if name == "positional" else 0.1
    overlaps = Overlaps(q, V, m, theta)
    errors = np.full(len(overlaps.pack()), 1e-4)
    loss = 0.003 / at.alpha
    return Solution(at, name, overlaps, None, Status.CONVERGED, 1e-10, 5, Sobol(), errors, None, 1e-6,
                    {"test_error": (loss, 1e-6)})  # fmt: skip


def made_threshold(at, value, status="converged"):
    return {
        "value": value,
        "error": None if value is None else 2e-3,
        "error_kind": None if value is None else "estimated",
        "status": status,
        "verdicts": {} if value is None else {"positional": "RS stable"},
        "bistable_fractions": {},
        "evidence": {},
        "overlaps": {n: made_solution(at.with_(alpha=1.0), n).overlaps.pack() for n in ("semantic", "positional")},
        "sentence": "" if value is not None else "the semantic branch was lost",
    }


@pytest.fixture(scope="module")
def without_solving():
    """Replace every computation by made-up results; the transition with a value matrix is not reached."""

    def curve(base, *, start, over="alpha", values=(0.5, 1.0, 1.5, 2.0), **_):
        found = tuple(made_solution(base.with_(alpha=alpha), start) for alpha in (0.5, 1.0, 1.5, 2.0))
        return Curve("alpha", start, found, (None, None))

    def located(kind, at, guess, step, seeds, accuracy, **_):
        omega = at.value_of_parameter("omega")
        if at.solver.name == "value_attention":
            return made_threshold(at, None, "not_converged")
        moved = 0.0 if at.solver.name == "dot_product_attention" else 0.25
        return made_threshold(at, 1.25 + 2.5 * (omega - 0.3) + moved)

    with pytest.MonkeyPatch.context() as patch:
        for module in (base_case, extensions):
            patch.setattr(module, "curve", curve)
            patch.setattr(module, "locate_threshold_near", located)
        patch.setattr(
            extensions, "locate_instability_of_branch", lambda at, guess, start, setting: made_threshold(at, 0.57)
        )
        yield


@pytest.fixture(scope="module")
def finished(without_solving, tmp_path_factory):
    """A run that was interrupted at the first continuous transition, and the same one gone on to its end."""

    class Interrupted(extensions.ExtensionsRun):
        @wraps(extensions.ExtensionsRun.locate_threshold_of_extension)
        def locate_threshold_of_extension(self, name, omega):
            raise KeyboardInterrupt

    out = tmp_path_factory.mktemp("results")
    with pytest.raises(KeyboardInterrupt):
        Interrupted(out, ("extensions",)).run_all_tasks(page.write_report)
    kept = {path.name: path.read_bytes() for path in (out / "steps").iterdir()}
    return reproduce(out, ["extensions"]), kept


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_stopped(finished):
    found, kept = finished
    assert {"alpha_c_0.3.json", "extensions_rank_two_curve_mixed.json"} <= set(kept)
    assert "extensions_rank_two_0.3.json" not in kept
    assert all((found.out / "steps" / name).read_bytes() == content for name, content in kept.items())


@pytest.mark.slow
def test_a_second_run_solves_nothing_and_writes_the_same_bytes(finished):
    out = finished[0].out
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {"figures/extensions.png", "tables/extensions.csv", "tables/extensions.json", "extensions.md"} <= names
    assert finished[0].report.name == "extensions.html"
    assert "report.html" not in names
    before = {name: (out / name).read_bytes() for name in names}

    second = extensions.ExtensionsRun(out, ("extensions",))
    assert second.run_all_tasks(page.write_report).results == finished[0].results and not second.steps.computed
    assert {name: (out / name).read_bytes() for name in names} == before


@pytest.mark.slow
def test_every_transition_is_compared_with_the_base_case_and_what_was_not_reached_is_said(finished):
    found = finished[0]
    rows = json.loads((found.out / "tables" / "extensions.json").read_text())
    named = {(row["setting"], row["omega"]): row for row in rows}
    untied = named[SETTINGS["untied"].title, 0.3]
    assert untied["shift"] == pytest.approx(0.25)
    assert untied["shift_error"] == pytest.approx(4e-3)
    assert named[SETTINGS["rank_two"].title, 0.3]["transition"] == "continuous"
    missing = named[SETTINGS["value"].title, 0.3]
    assert missing["alpha_c"] is None
    assert missing["status"] == "not_converged"
    assert not found.complete
    text = (found.out / "extensions.md").read_text()
    assert "| value matrix | 0.3 | none found | - |" in text
    assert "value matrix, omega = 0.3: the semantic branch was lost." in text
    assert "correlated tokens: clusters of unequal width: not sought at omega = 0." in text
    assert len([row for row in rows if row["setting"].startswith("correlated tokens: ")]) >= len(VARIATIONS)


def test_the_default_run_does_not_include_the_extensions():
    assert "extensions" not in FIGURES


def test_every_setting_and_variation_is_a_problem_that_can_be_posed():
    for setting in SETTINGS.values():
        at = setting.problem_at_omega(0.3)
        assert set(setting.branches) <= set(at.solver.model.STARTS)
    base = sf.problem("dot_product_attention", omega=0.3)
    for change in VARIATIONS.values():
        at = sf.problem(extensions.SETTINGS["mixture"].model, omega=0.3, **change)
        by_token = at.law.rho.reshape(2, 2)
        assert by_token.mean(axis=1) == pytest.approx(base.law.rho, abs=1e-12)
        for gram in at.law.gram:
            assert np.linalg.eigvalsh(gram).min() > -1e-12


def test_a_branch_may_go_by_another_name_than_its_start():
    at = sf.problem("value_attention")
    assert Branch(at, "alpha", "positional").reached == "positional"
    assert Branch(at, "alpha", "positional", reached="mixed").reached == "mixed"


def test_transitions_are_lines_with_gaps_where_nothing_was_found():
    found = {"0.3": {"value": 1.2, "error": 0.1}, "0.2": {"value": None, "error": None}}
    line = threshold_curve("line", found)
    assert line["omega"] == [0.2, 0.3]
    assert np.isnan(line["alpha"][0])
    assert line["error"][1] == 0.1


@pytest.mark.slow
def test_the_semantic_branch_of_a_value_matrix_is_reached():
    """theta = 0.093 at alpha = 2 in arXiv 2402.03902, Fig. 13: out of reach of Newton on few points."""
    solution = sf.solve(sf.problem("value_attention", alpha=2.0), "semantic", accuracy=5e-2)
    assert solution.success
    assert solution.branch == "semantic"
    theta = solution.overlaps.theta[0, 0, 0]
    assert theta == pytest.approx(0.093, abs=0.003 + solution.error_bars.theta[0, 0, 0])


@pytest.mark.slow
def test_with_two_columns_the_best_student_knows_positions_and_teacher():
    """Rank 2 at alpha = 1.5: the mixed branch lies below both others, which are saddles."""
    at = sf.problem("dot_product_attention", student_rank=2, alpha=1.5, omega=0.3)
    mixed, semantic, positional = (sf.solve(at, n, accuracy=1e-2) for n in ("mixed", "semantic", "positional"))
    for other in (semantic, positional):
        assert other.training_loss - mixed.training_loss > 5 * (other.training_loss_error + mixed.training_loss_error)
        assert other.stability.eigenvalues.real.max() > 1
    assert mixed.stability.eigenvalues.real.max() < 1
