"""Where overlaps that vanish on a branch begin to grow."""

from types import SimpleNamespace

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.base.errors import InputError, NotConvergedError
from saddleforge.branches.branch import Branch
from saddleforge.integration import ProxSpaceRule
from saddleforge.problems.overlaps import Overlaps
from saddleforge.thresholds import continuous_transition as module
from saddleforge.thresholds.continuous_transition import continuous_transition, largest_eigenvalue_toward_overlap


def test_theta_grows_out_of_the_uninformed_branch_where_the_semantic_branch_begins():
    """At alpha = 0.7193 (docs/theory.md section 14), where theta of the semantic branch goes to zero."""
    eigenvalues = []
    for alpha in (0.55, 0.75):
        solution = sf.solve(
            sf.problem("dot_product_attention", alpha=alpha), "uninformed", accuracy=1e-2, integrator="sobol", points=10
        )
        assert solution.branch == "uninformed"
        eigenvalues.append(
            largest_eigenvalue_toward_overlap(solution.problem, solution.overlaps, ProxSpaceRule(40, 20), "theta", 0.02)
        )
    assert eigenvalues[0] < 1 < eigenvalues[1]


@pytest.fixture
def made(monkeypatch):
    """A branch whose eigenvalue is a formula, shifted from one set of nodes to the next."""
    shifts = np.array([0.02, -0.02, 0.01, -0.01])
    theta = np.zeros((2, 1, 1))

    def solve(at, start, *, seed, **_):
        overlaps = Overlaps(np.full((2, 1, 1), 0.1), np.ones((2, 1, 1)), np.array([[0.2], [-0.2]]), theta)
        return SimpleNamespace(
            problem=at, overlaps=overlaps, losses=1, branch="positional", rule=seed, stability=None, start=start
        )

    def eigenvalue(at, overlaps, rule, toward, step):
        return 1 + found.rate * (at.alpha - 0.57 - shifts[rule - 1] + 0.1 * (step - 0.05))

    monkeypatch.setattr(module, "solve", solve)
    monkeypatch.setattr(module, "largest_eigenvalue_toward_overlap", eigenvalue)
    branch = Branch(sf.problem("dot_product_attention"), "alpha", "positional")
    found = SimpleNamespace(theta=theta, branch=branch, rate=0.9)
    return found


def test_every_set_of_nodes_gives_a_threshold_and_their_spread_the_error(made):
    found = continuous_transition(made.branch, near=0.9, width=0.1, accuracy=0.1, sets=4)
    assert found.value == pytest.approx(0.57, abs=1e-9)
    spread = 3.182 * np.std([0.02, -0.02, 0.01, -0.01], ddof=1) / 2
    assert found.error == pytest.approx(spread + 0.1 * 0.05, rel=1e-3)
    assert found.success
    assert found.branches == ("positional",)


def test_a_spread_wider_than_asked_is_said(made):
    assert (
        continuous_transition(made.branch, near=0.6, width=0.1, accuracy=1e-3, sets=4).status == "accuracy_not_reached"
    )


def test_an_overlap_that_does_not_vanish_has_no_continuous_transition(made):
    made.theta[:] = 0.1
    with pytest.raises(InputError, match="theta does not vanish on the positional branch"):
        continuous_transition(made.branch, near=0.6, width=0.1, accuracy=0.1)


def test_an_eigenvalue_that_does_not_grow_has_no_continuous_transition(made):
    made.rate = 0.0
    with pytest.raises(NotConvergedError, match="does not grow"):
        continuous_transition(made.branch, near=0.6, width=0.1, accuracy=0.1)
