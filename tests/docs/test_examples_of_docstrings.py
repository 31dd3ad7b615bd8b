"""Examples of docstrings: every public name has one, each is Python, runs, and says what comes out."""

import doctest
import inspect

import numpy as np
import pytest
import sympy as sp

import saddleforge as sf

# What derives or compiles a solver of its own, starts processes, or takes more than half a second.
_NAMES = """
    BayesLine BayesMessages BayesSolution BayesThreshold BrokenCurve BrokenSolution DiscreteNoise Escape
    GaussianNoise JointOptimum NotProvedError Output Parameter PhaseDiagram PreciseSolution PreciseThreshold
    RateLimit Ridge Simulation Sphere Trial TunedCurve almeida_thouless bayes_line bayes_messages bayes_optimal
    bayes_threshold binary_teacher clustered_tokens compare crossing derivation dynamics escape finite_transition
    instability isotropic_tokens model penalty phases rate_limit scaling simulate solve_precisely sparse_teacher
    spinodal trained tuned_curve unstructured_tokens
    """
LONG = set(_NAMES.split())


def example(name: str) -> doctest.DocTest:
    """What the docstring of a public name shows, in a fresh namespace."""
    public = getattr(sf, name)
    text = inspect.getdoc(public if callable(public) else type(public)) or ""
    return doctest.DocTestParser().get_doctest(text, {"sf": sf, "np": np, "sp": sp}, name, None, 0)


EXAMPLES = {name: example(name) for name in sf.__all__ if name != "__version__"}


def test_every_public_name_has_an_example():
    without = [name for name, shown in EXAMPLES.items() if not any(one.want for one in shown.examples)]
    assert without == ["time_limit"]  # what it does is to end
    assert set(EXAMPLES) >= LONG and EXAMPLES["time_limit"].examples


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in EXAMPLES]
)
def test_an_example_says_what_comes_out(name):
    said: list[str] = []
    done = doctest.DocTestRunner(verbose=False).run(EXAMPLES[name], out=said.append)
    assert done.failed == 0, "".join(said)


def test_examples_that_take_long_are_python():
    for name in sorted(LONG):
        for one in EXAMPLES[name].examples:
            compile(one.source, name, "single")
