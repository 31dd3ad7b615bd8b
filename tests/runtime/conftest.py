"""What tests of the solver share."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from saddleforge.branches.branch import Branch
from saddleforge.channel.exchange import Reduction


@pytest.fixture
def branch_at() -> Callable[[Callable[..., Any]], AbstractContextManager[None]]:
    """branch_at(answer): a context in which `Branch.at` is answer(at, branch, value, ...), `at` being the method."""

    @contextmanager
    def answered(answer: Callable[..., Any]) -> Iterator[None]:
        at = Branch.at
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Branch, "at", lambda *given, **named: answer(at, *given, **named))
            yield

    return answered


@pytest.fixture
def without_symmetry() -> Callable[[], AbstractContextManager[None]]:
    """without_symmetry(): a context in which rules evaluate all of their nodes."""

    @contextmanager
    def context() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Reduction, "of_fields", classmethod(lambda cls, *_: cls(())))
            yield

    return context
