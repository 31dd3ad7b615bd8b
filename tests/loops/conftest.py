"""The library compiled, its machine code in the user's cache folder as that of the solvers."""

from types import SimpleNamespace

import pytest

from saddleforge.problems.compiled import load_loops

FILES = ("between", "boltzmann", "intervals", "matrices", "pieces", "posterior", "proximal", "special", "weight_rows")


@pytest.fixture(scope="session")
def compiled() -> SimpleNamespace:
    return SimpleNamespace(**{name: load_loops(name) for name in FILES})
