"""Places at which the line of a field is divided."""

import math

import numpy as np
import pytest


@pytest.mark.parametrize("place", [-1.0, 0.0, 1.0, 3.0, -math.inf, math.inf, math.nan])
def test_only_a_new_place_above_the_first_is_put_among_the_others(loops, place):
    """One below the first would be written before the array."""
    edges = np.array([0.0, 1.0, 2.0, 7.0, 7.0])
    count = loops["smooth_pieces"].insert_edge(edges, 3, place)
    expected = [0.0, 1.0, 2.0, place] if place == 3.0 else [0.0, 1.0, 2.0]
    assert edges[:count].tolist() == expected
