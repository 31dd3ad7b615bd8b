"""agree() of conftest.py: what it lets pass, and what it says of what it does not."""

import numpy as np
import pytest


def test_intervals_that_meet_agree(agree):
    agree((1.0, 0.125), (1.25, 0.125), "error bars")
    agree((1.0, 0.125), (1.375, 0.125), "three standard errors")
    agree(([1.0, 2.0], 0.0), ([1.0, 2.0 + 1e-13], 0.0), "error bars", rounding=1e-12)
    agree((0.0045128, 2e-7), "0.004513", "error bars")
    agree("3.590618332(5)", "3.590618", "error bars")


def test_disagreeing_values_are_reported_with_error_bars_and_ratio(agree):
    with pytest.raises(AssertionError, match=r"error bars: .*\n1 \+- 0.1 and 1.3 \+- 0.05: 2 times"):
        agree((1.0, 0.1), (1.3, 0.05), "error bars")
    with pytest.raises(AssertionError, match=r"\nentry 1: 5 \+- 0.1 and 1 \+- 0: 40 times$"):
        agree((np.array([1.0, 5.0]), 0.1), (np.ones(2), 0.0), "error bars")
    with pytest.raises(AssertionError, match=r"0.0045138 .* and 0.004513 "):
        agree((0.0045138, 2e-7), "0.004513", "error bars")


@pytest.mark.parametrize("one", [(np.nan, 1.0), (0.0, np.nan), (0.0, -1.0), ([], 1.0)])
def test_a_value_without_a_finite_error_bar_agrees_with_nothing(agree, one):
    with pytest.raises(AssertionError):
        agree(one, (0.0, 1.0), "error bars")
