"""Error bars that two different rules vouch for."""

import dataclasses

import numpy as np
import pytest

import saddleforge as sf
from saddleforge import InputError, Solution
from saddleforge.base.errors import DomainError
from saddleforge.integration import FAMILIES, rule_by_name
from saddleforge.thresholds.independent_check import (
    SecondRuleComparison,
    error_bar_after_independent_check,
    evaluate_difference_by_second_rules,
    independent_quadrature_rules,
)


@pytest.fixture(scope="module")
def coarse() -> Solution:
    problem = sf.problem("logistic_regression", alpha=2.0)
    return sf.solve(problem, integrator="gauss-hermite", points=10, accuracy=1e-3)


def test_verified_bars_hold_both_rules(coarse):
    found = sf.verified(coarse, "prox-space", 48)
    other = sf.solve(coarse.problem, coarse, integrator="prox-space", points=48, accuracy=1e-6)
    assert (coarse.error_kind, found.error_kind) == ("estimated", "verified")
    assert found.to_json()["error_kind"] == "verified"
    distance = np.abs(coarse.overlaps.pack() - other.overlaps.pack())
    assert found.errors == pytest.approx(np.maximum(coarse.errors, distance + other.errors), rel=1e-6, abs=1e-15)
    assert found.training_loss_error >= coarse.training_loss_error
    assert np.array_equal(found.overlaps.pack(), coarse.overlaps.pack())


def test_rules_that_contradict_each_other_verify_nothing(coarse):
    boastful = dataclasses.replace(coarse, errors=1e-12 * coarse.errors)
    found = sf.verified(boastful, "prox-space", 48)
    assert found.error_kind == "estimated"
    assert np.all(found.errors[[0, 1, 3]] > 1e3 * boastful.errors[[0, 1, 3]])


def test_a_rule_does_not_vouch_for_itself(coarse):
    for integrator in ("gauss-hermite", "auto"):
        with pytest.raises(InputError, match="a rule of another family than gauss-hermite is expected"):
            sf.verified(coarse, integrator)
    with pytest.raises(InputError, match="no solution to verify"):
        sf.verified(dataclasses.replace(coarse, losses=None))


@pytest.mark.parametrize(
    ("gap", "spread", "kind", "error"),
    [
        (1e-4, 1e-3, "verified", 1e-3),  # it agrees, however far it still moves
        (4e-3, 1e-4, "verified", 4e-3),  # it differs, and does not move any more
        (4e-3, np.nan, "verified", 4e-3),  # asked once: what it says counts
        (4e-3, 2e-3, "estimated", 1e-3),  # it still moves by as much as it differs
    ],
)
def test_only_a_second_rule_that_can_tell_verifies(gap, spread, kind, error):
    agreed = SecondRuleComparison(value=1.0, gap=gap, spread=spread, enough=2e-3, rule={}, tried=())
    found = error_bar_after_independent_check(agreed, 1e-3)
    assert found[:2] == (kind, error)
    assert found[2] == ({"error_second_rule": error - 1e-3} if kind == "verified" else {})


def test_without_a_second_rule_an_error_is_an_estimate():
    assert error_bar_after_independent_check(None, 1e-3) == ("estimated", 1e-3, {})


@pytest.mark.parametrize("bistable", [0.0, 0.3])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_second_opinion_comes_from_another_family_with_nodes_elsewhere(name, bistable):
    """Lines split where the proximal map jumps are compared with nodes in X, all others with nodes in the fields."""
    found = independent_quadrature_rules(sf.problem("dot_product_attention"), rule_by_name(name), bistable)
    (family,) = {rule.name for rule in found}
    assert family != name
    assert FAMILIES[family].in_x == FAMILIES[name].splits_jumps
    assert not (bistable and FAMILIES[family].is_nonadaptive)


def test_a_second_rule_too_coarse_to_stay_in_the_domain_has_no_opinion_and_finer_ones_have():
    solution = sf.solve(sf.problem("ridge_regression", alpha=2.0))
    asked = []

    def difference(rule):
        asked.append(rule)
        if len(asked) == 1:
            raise DomainError("outside")
        return 0.0, 0.0

    rules = independent_quadrature_rules(solution.problem, solution.rule, 0.0)
    assert len(rules) > 1
    assert [
        opinion.rule for opinion in evaluate_difference_by_second_rules([solution], difference, lambda: None)
    ] == list(rules[1:])
