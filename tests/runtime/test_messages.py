"""Messages of one kind have one form: what failed with its value, and what is allowed."""

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.base.errors import InputError, require_in_interval, require_known_name, require_whole_number


@pytest.mark.parametrize("value", [-1, 1, np.nan, np.inf, "half", None])
def test_a_number_outside_of_an_interval_is_refused_with_the_interval(value):
    for inside in (0, 0.5):
        require_in_interval("damping", inside, "[0, 1) (of the iteration, or none)")
    with pytest.raises(
        InputError, match=r"^damping = .* (out of range|where a number is expected); allowed is \[0, 1\) \(of"
    ):
        require_in_interval("damping", value, "[0, 1) (of the iteration, or none)")


@pytest.mark.parametrize("given", [[0.5, 4, 2], np.array([0.5, 2, 4]), (0.5, 4, 3)])
def test_a_curve_takes_lists_as_values_and_tuples_as_ranges(given):
    found = sf.curve(sf.problem("ridge_regression"), alpha=given)
    assert found.values.tolist() == ([0.5, 2.25, 4] if isinstance(given, tuple) else [0.5, 2, 4])


@pytest.mark.parametrize("given", [(0.5, 1, 2, 4), (0.5, 4, 1.5), [[0.5, 1]], 2.0, ["a"]])
def test_invalid_parameter_values_are_refused_with_both_allowed_forms(given):
    with pytest.raises(InputError, match=r"a range \(low, high, count\) or a list of values \[0.5, 1, 4\] is expected"):
        sf.curve(sf.problem("ridge_regression"), alpha=given)


@pytest.mark.parametrize("value", [0, 5, 1.5, np.nan, np.inf, "two", None, [1]])
def test_a_number_that_is_not_whole_or_in_range_is_refused_with_the_range(value):
    require_whole_number("d", 4.0, 1, 4)
    with pytest.raises(InputError, match=r"^d = .* is out of range; allowed are whole numbers from 1 to 4$"):
        require_whole_number("d", value, 1, 4)
    with pytest.raises(InputError, match=r"^--seed -1 is out of range; allowed are whole numbers from 0$"):
        require_whole_number("--seed", -1, 0)
    with pytest.raises(InputError, match=r"^tokens of ridge_regression = 7 is out of range; allowed is 1$"):
        sf.problem("ridge_regression", tokens=7)


def test_an_unknown_name_lists_the_known_ones_and_the_closest():
    require_known_name("start", "semantic", {"semantic": 1})
    with pytest.raises(InputError) as refused:
        require_known_name("parameter", "Lamda", ["alpha", "lambda_"], "ridge_regression")
    assert str(refused.value) == (
        "unknown parameter 'Lamda' of ridge_regression (did you mean lambda?); known are alpha, lambda"
    )
    with pytest.raises(InputError, match=r"unknown option 'sped' of simulate.*; known are batch, controls"):
        sf.simulate(sf.problem("ridge_regression", alpha=2), d=10, sped=1)
