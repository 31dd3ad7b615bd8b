"""Error bars that two different rules vouch for."""

import dataclasses

import numpy as np
import pytest

import saddleforge as sf
from saddleforge import InputError, Solution


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
