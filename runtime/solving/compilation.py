"""A second process that compiles functions of a new solver, while the first starts to solve.

Numba compiles one function at a time in a process. A solver that is new on a machine is compiled by two where there are
two processors: the first needs averages and overlaps from conjugates to come near a solution, the second compiles
free entropy, slopes and responses by calling them at the start, and leaves them in the cache on disk.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from time import sleep
from typing import Any

import numpy as np

from ..base import budget
from ..base.environment import processor_count, receive_object_from_parent, run_background_process
from ..base.progress import print_message, progress_step, set_quiet_mode
from ..base.threads import loop_thread_count
from ..channel.search import choose_proximal_search
from ..integration import FAMILIES
from ..integration.rule import SaddlePointAverages
from ..problems.overlaps import Conjugates, Overlaps
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from ..saddle_point.generated_jacobian import explain_missing_derivative_formula
from ..saddle_point.observables import free_entropy_and_losses, test_error
from ..stability.assess import mean_squared_prior_responses
from .approach import quadrature_rules_of_damped_iteration

processes = 2  # that may compile at a time
_announced: set[str] = set()


def is_solver_new_on_machine(problem: Problem) -> bool:
    """Return whether Numba has to compile the solver, since it is new on this machine; print a message if so."""
    part = "channel" if problem.inverse_temperature is None else "thermal"
    solver = reduce_to_fields_of_loss(problem).solver
    key = f"{solver.folder} {part}"
    if key in _announced:
        return False
    _announced.add(key)
    if solver.is_solver_part_compiled(part):
        return False
    print_message(f"compiling the solver of {problem.solver.name} (once on this machine, up to half a minute)")
    return True


@contextmanager
def compile_in_second_process(problem: Problem, overlaps: Overlaps, new: bool) -> Iterator[None]:
    """Compile the functions of a new solver in a second process while the `with` block runs; wait for it at the end.

    Args:
        problem: the problem that the block solves.
        overlaps: overlaps at which the functions are called.
        new: whether the solver is new on this machine (`is_solver_new_on_machine`); otherwise nothing is done.
    """
    if not (new and _has_free_processor(problem)):
        yield
        return
    with run_background_process(__name__, (problem, overlaps), {"NUMBA_NUM_THREADS": "1"}) as is_running:
        yield
        with progress_step("compiling the functions of the stability verdict"):
            while is_running() and budget.remaining_seconds() > 0:
                sleep(0.02)  # seconds between polls


def _has_free_processor(problem: Problem) -> bool:
    """Return whether a second process can help: there is a free processor, and there are functions to compile."""
    fits = bool(sys.executable) and min(processes, processor_count(), loop_thread_count()) > 1
    return fits and problem.inverse_temperature is None


def helper_process_main() -> None:
    """Run the process that compiles a new solver: read a problem and overlaps from stdin, end when stdin closes."""
    problem, overlaps = receive_object_from_parent()
    set_quiet_mode(True)
    for call in calls_that_compile_solver(problem, overlaps):
        if select.select([sys.stdin], [], [], 0)[0]:
            return
        with suppress(Exception):  # the first process will raise it, too
            call()


def calls_that_compile_solver(problem: Problem, overlaps: Overlaps) -> list[Callable[[], Any]]:
    """Return functions that each make Numba compile one function of the solver, in the order they are needed.

    Functions that the first process needs at once, and therefore compiles itself, are left out.

    Args:
        problem: the problem whose solver is new.
        overlaps: overlaps at which the functions are called.
    """
    overlaps = Overlaps.unpack(overlaps.pack(), overlaps.sizes)
    one = np.broadcast_to(np.eye(problem.student_rank), overlaps.q.shape)
    hats = Conjugates(one.copy(), one.copy(), np.zeros_like(overlaps.m), np.zeros_like(overlaps.theta))
    none = SaddlePointAverages(np.zeros((1, 0, 0)), np.zeros(1), np.zeros(1), 0.0, 0.0, 0.0, 1.0)
    fields = reduce_to_fields_of_loss(problem).solver.proximal.FIELDS
    grids = [
        family.rules_coarse_to_fine(problem)[0]
        for family in FAMILIES.values()
        if family.in_x and family.is_applicable(problem)
    ]
    rule = grids[0] if fields > 1 and grids else quadrature_rules_of_damped_iteration(problem, 0)[0]
    points = (
        partial(rule.averages, problem, overlaps) if fields == 1 else partial(choose_proximal_search, problem, overlaps)
    )
    calls: list[Callable[[], Any]] = [partial(free_entropy_and_losses, problem, overlaps, hats, none), points]
    if (fields == 1 or rule.in_x) and explain_missing_derivative_formula(problem) is None:
        calls.append(partial(rule.moment_derivatives, problem, overlaps))
    calls += [partial(rule.jacobian_averages, problem, overlaps), partial(mean_squared_prior_responses, problem, hats)]
    return [*calls, partial(test_error, problem, overlaps)]
