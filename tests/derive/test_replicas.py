"""The replica calculation: every step's checks hold, and every wrong term is seen by one of them."""

from dataclasses import replace

import pytest
import sympy as sp

from saddleforge.derive.averages import Average, Jacobian, MatrixAverage
from saddleforge.derive.replicas.derivation import replica_calculation
from saddleforge.derive.replicas.objects import LogDet, LogIntegral

KINDS = {"ridge": ("ridge", 0, False), "penalty": ("penalty", 2, True)}


@pytest.mark.parametrize("kind", ["ridge", pytest.param("penalty", marks=pytest.mark.slow)])
def test_every_check_of_every_step_holds(kind):
    failed = [(step.name, check) for step, check in replica_calculation(*KINDS[kind]).check() if not check.passed]
    assert failed == []


def test_names_of_checks_are_unique():
    names = [test.name for step in replica_calculation().steps for test in step.tests]
    assert len(names) == len(set(names)) >= 9


def test_a_notebook_shows_steps_and_formulas():
    shown = replica_calculation()._repr_markdown_()
    assert shown.count("**Step ") == shown.count(r"$$\begin{aligned}") == 9
    assert r"\operatorname{Tr}\left[\hat{V}_{c} \, q_{c}\right]" in shown


def replaced(expression, path, new):
    """The expression with the part at a path of argument positions replaced."""
    if not path:
        return new
    position, *rest = path
    args = list(expression.args)
    args[position] = replaced(args[position], rest, new)
    if isinstance(expression, sp.BlockMatrix):
        return sp.BlockMatrix(args[0])
    return expression.func(*args)


def parts(expression, path=()):
    """Every part of an expression with its path."""
    yield path, expression
    for position, argument in enumerate(getattr(expression, "args", ())):
        yield from parts(argument, (*path, position))


def mutations(expression):
    """Signs flipped, terms halved and dropped, thetas transposed."""
    scalars = (sp.Trace, Average, LogDet, LogIntegral)
    for path, part in parts(expression):
        if isinstance(part, scalars) and not (path and isinstance(expression, sp.log)):
            yield f"sign of {part}", path, -part
            yield f"half of {part}", path, part / 2
            yield f"without {part}", path, sp.Integer(0)
        elif isinstance(part, MatrixAverage | Jacobian):
            yield f"sign of {part}", path, -1 * part
            yield f"half of {part}", path, part / 2
        if isinstance(part, sp.MatrixSymbol) and part.name.startswith("theta"):
            yield f"{part} transposed", path, part.T
        if isinstance(part, sp.MatMul | sp.MatAdd) and not path:
            yield f"sign of {part}", path, -1 * part
            yield f"half of {part}", path, part / 2


def mutants(step):
    for name, expression in step.after.items():
        for label, path, new in mutations(expression):
            try:
                mutated = replaced(expression, path, new)
            except (TypeError, ValueError, AttributeError):
                continue  # not an expression at all
            if mutated != expression:
                yield name, label, replace(step, after={**step.after, name: mutated})


def survives(step, name):
    tests = [test for test in step.tests if not test.judges or name in test.judges]
    return all(test(step.before, step.after).passed for test in tests)


def undetected(kind, number, every):
    """Labels of mutants that no check notices. Sizes are numbers: a transposed theta is then of the right shape."""
    step = replica_calculation(*KINDS[kind], s=2, t=2)[number]
    tried = list(mutants(step))
    assert len(tried) >= 3
    return [label for name, label, mutant in tried[::every] if survives(mutant, name)]


@pytest.mark.parametrize("number", range(1, 10))
def test_a_wrong_term_fails_a_named_check(number):
    assert undetected("ridge", number, every=7) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 10))
@pytest.mark.parametrize("kind", KINDS)
def test_every_wrong_term_fails_a_named_check(kind, number):
    assert undetected(kind, number, every=1) == []
