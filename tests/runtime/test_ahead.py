"""A second process compiles what the first is about to call, with the types that it calls it with."""

import os
import pickle
import subprocess
from types import ModuleType

import pytest

import saddleforge as sf
from saddleforge.base.errors import NotConvergedError
from saddleforge.problems.compiled import load_compiled_loops
from saddleforge.saddle_point.starts import overlaps_of_start
from saddleforge.solving import compilation
from saddleforge.solving.solve import solve


def compiled(problem: sf.Problem) -> dict[str, int]:
    """How many signatures there are of every function of a solver, and of the library of loops."""
    solvers = [problem.solver, *problem.solver.solvers_of_reduced_problems.values()]
    parts = [part for each in solvers for part in vars(each).values() if isinstance(part, ModuleType)]
    found = {}
    for module in (*parts, load_compiled_loops("matrices")):
        for name, function in vars(module).items():
            found[f"{module.__name__}.{name}"] = len(getattr(function, "overloads", ()))
    return found


@pytest.mark.parametrize(
    "name, start",
    [
        ("dot_product_attention", "semantic"),
        pytest.param("logistic_regression", "semantic", marks=pytest.mark.slow),
        pytest.param("lasso_regression", "semantic", marks=pytest.mark.slow),
    ],
)
def test_all_that_is_called_ahead_is_what_a_solution_calls(name, start):
    problem = sf.problem(name, alpha=2.0)
    solution = solve(problem, start)
    assert solution.success and solution.stability is not None
    before = compiled(problem)
    assert sum(before.values()) > 10
    for call in compilation.calls_that_compile_solver(problem, overlaps_of_start(problem, start)):
        call()
    assert compiled(problem) == before


def test_there_is_no_second_process_on_one_processor_or_at_a_finite_temperature(monkeypatch):
    problem = sf.problem("ridge_regression", alpha=2.0)
    assert compilation.processes == 1 and not compilation._has_free_processor(problem)  # in tests
    monkeypatch.setattr(compilation, "processes", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: processors, raising=False)
    processors = {0}
    assert not compilation._has_free_processor(problem)
    processors = {0, 1}
    assert not compilation._has_free_processor(sf.problem("ridge_regression", alpha=2.0, inverse_temperature=3.0))


def test_the_second_process_ends_with_the_first_whatever_happens(monkeypatch):
    monkeypatch.setattr(compilation, "_has_free_processor", lambda problem: True)
    problem = sf.problem("dot_product_attention", alpha=2.0)
    begun = []
    start = subprocess.Popen

    def noted(*arguments, **options):
        begun.append(start(*arguments, **options))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    with (
        pytest.raises(NotConvergedError),
        compilation.compile_in_second_process(problem, overlaps_of_start(problem, "semantic"), True),
    ):
        raise NotConvergedError("as it may")
    (process,) = begun
    assert process.poll() is not None
    with compilation.compile_in_second_process(problem, overlaps_of_start(problem, "semantic"), False):
        pass
    assert len(begun) == 1


def test_the_second_process_can_unpickle_its_problem_and_overlaps():
    problem = sf.problem("dot_product_attention", alpha=2.0)
    sent = pickle.loads(pickle.dumps((problem, overlaps_of_start(problem, "semantic"))))
    assert sent[0].parameters.keys() == problem.parameters.keys()
    assert len(compilation.calls_that_compile_solver(*sent)) == len(
        compilation.calls_that_compile_solver(problem, overlaps_of_start(problem, "semantic"))
    )
