"""The library compiled, its machine code in the user's cache folder as that of the solvers."""

from types import SimpleNamespace

import pytest

from saddleforge.problems.compiled import load_compiled_loops

FILES = ("boltzmann", "intervals", "matrices", "posterior", "proximal", "smooth_pieces", "special", "truncated_normal",
         "weight_rows")  # fmt: skip


@pytest.fixture(scope="session")
def compiled() -> SimpleNamespace:
    return SimpleNamespace(**{name: load_compiled_loops(name) for name in FILES})
