"""The library compiled, its machine code in the user's cache folder as that of the solvers."""

from importlib import import_module
from types import SimpleNamespace

import pytest

from saddleforge.problems.compiled import numba_cache

FILES = ("between", "boltzmann", "intervals", "matrices", "pieces", "posterior", "proximal", "special", "weight_rows")


@pytest.fixture(scope="session")
def compiled() -> SimpleNamespace:
    with numba_cache():
        return SimpleNamespace(**{name: import_module(f"saddleforge.loops.{name}") for name in FILES})
