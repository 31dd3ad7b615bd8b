"""Examples of docstrings run, and say what comes out."""

import doctest
import inspect

import numpy as np
import pytest

import saddleforge as sf

EXAMPLES = {
    name: example
    for name in sf.__all__
    if callable(getattr(sf, name))
    and (example := doctest.DocTestParser().get_doctest(
        inspect.getdoc(getattr(sf, name)) or "", {**vars(sf), "sf": sf, "np": np}, name, None, 0
    )).examples
}  # fmt: skip


def test_what_most_users_call_has_an_example():
    named = {"problem", "solve", "solutions", "curve", "verified", "sensitivities", "tune", "where", "simulate"}
    assert named | {"penalty", "power_law", "time_limit", "law_of_data"} <= set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_python(name):
    for example in EXAMPLES[name].examples:
        compile(example.source, name, "single")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_what_comes_out(name):
    said: list[str] = []
    done = doctest.DocTestRunner(verbose=False).run(EXAMPLES[name], out=said.append)
    assert done.failed == 0, "".join(said)
