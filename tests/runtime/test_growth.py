"""What is solved again and again in one process leaves nothing behind: neither memory nor files of the cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import gc, sys
from pathlib import Path
import saddleforge as sf

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

for n in range(250):
    if n in (50, 249):
        print(resident())
    alpha = 1 + 0.01 * n
    found = sf.solve(sf.problem(sys.argv[1], alpha=alpha), "semantic", accuracy=float(sys.argv[2]))
    found.stability, found.to_json()
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of a process from /proc")
@pytest.mark.parametrize(("model", "accuracy"), [("ridge_regression", "1e-6"), ("logistic_regression", "1e-4")])
def test_two_hundred_solves_grow_by_less_than_one_solution_in_ten(model, accuracy):
    """Of 200 solutions kept whole, 30 kB each at least, 6 MB would be left; machine code and nodes are there by 50."""
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, model, accuracy], capture_output=True, text=True, env=environment, check=True
    )
    after_fifty, in_the_end = map(float, done.stdout.split())
    print(model, after_fifty, in_the_end)
    assert in_the_end - after_fifty < 4
