"""The catalogue, derived and generated once for all tests of a process."""

from collections.abc import Iterator

import pytest

from saddleforge.derive.emit import tree
from saddleforge.derive.emit.writer import GeneratedSolver


@pytest.fixture(scope="session")
def solvers() -> Iterator[list[GeneratedSolver]]:
    """What the generator makes of the catalogue; `tree` is given it for the rest of the session."""
    made = list(tree.generate_shipped_solvers())
    patch = pytest.MonkeyPatch()
    patch.setattr(
        tree, "generate_shipped_solvers", lambda names=None: (s for s in made if names is None or s.model in names)
    )
    yield made
    patch.undo()


@pytest.fixture(scope="session")
def expected(solvers: list[GeneratedSolver]) -> list[tuple[str, str]]:
    """(relative path, text) of every file that the generator writes."""
    return list(tree.generate_expected_files())
