"""A second process that compiles what a solution will call, while the first compiles what leads there.

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
from ..base.environment import companion, processors, received
from ..base.progress import say, set_quiet, step
from ..base.threads import used
from ..channel.search import searched
from ..integration import FAMILIES, Sobol
from ..integration.rule import Averages
from ..problems.overlaps import Conjugates, Overlaps
from ..problems.problem import Problem
from ..problems.reduced import integrated
from ..saddle_point.observables import losses, test_error
from ..saddle_point.printed_slopes import why_not
from ..stability.assess import responses_of

processes = 2  # that may compile at a time
_FEW_NODES = Sobol(4, 1)
_POLL = 0.02  # seconds
_announced: set[str] = set()


def is_new(problem: Problem) -> bool:
    """Return whether Numba is about to compile a solver for the first time on this machine, and say so."""
    part = "channel" if problem.inverse_temperature is None else "thermal"
    solver = integrated(problem).solver
    key = f"{solver.folder} {part}"
    if key in _announced:
        return False
    _announced.add(key)
    if solver.compiled_before(part):
        return False
    say(f"compiling the solver of {problem.solver.name} (once on this machine, up to half a minute)")
    return True


@contextmanager
def compiling(problem: Problem, overlaps: Overlaps, new: bool) -> Iterator[None]:
    """Compile in a second process, while something is solved, what a new solver calls later; wait for it at the end."""
    if not (new and _has_a_processor(problem)):
        yield
        return
    with companion(__name__, (problem, overlaps), {"NUMBA_NUM_THREADS": "1"}) as is_running:
        yield
        with step("compiling what a verdict on stability calls"):
            while is_running() and budget.remaining() > 0:
                sleep(_POLL)


def _has_a_processor(problem: Problem) -> bool:
    """Return whether a second process has a processor, and enough to do."""
    fits = bool(sys.executable) and min(processes, processors(), used()) > 1
    return fits and problem.inverse_temperature is None


def serve() -> None:
    """Run the second process: a problem and overlaps on stdin; it ends early where stdin does."""
    problem, overlaps = received()
    set_quiet(True)
    for call in calls(problem, overlaps):
        if select.select([sys.stdin], [], [], 0)[0]:
            return
        with suppress(Exception):  # the first process will raise it, too
            call()


def calls(problem: Problem, overlaps: Overlaps) -> list[Callable[[], Any]]:
    """Return what is called at overlaps, each of which is compiled when first called, in the order in which it is
    needed; without what the first process has to compile first, laws of the fields and averages of its approach."""
    overlaps = Overlaps.unpack(overlaps.pack(), overlaps.sizes)
    one = np.broadcast_to(np.eye(problem.student_rank), overlaps.q.shape)
    hats = Conjugates(one.copy(), one.copy(), np.zeros_like(overlaps.m), np.zeros_like(overlaps.theta))
    none = Averages(np.zeros((1, 0, 0)), np.zeros(1), np.zeros(1), 0.0, 0.0, 0.0, 1.0)
    fields = integrated(problem).solver.proximal.FIELDS
    grids = [family.sizes(problem)[0] for family in FAMILIES.values() if family.in_x and family.suits(problem)]
    rule = grids[0] if fields > 1 and grids else _FEW_NODES
    points = partial(rule.averages, problem, overlaps) if fields == 1 else partial(searched, problem, overlaps)
    found: list[Callable[[], Any]] = [partial(losses, problem, overlaps, hats, none), points]
    if (fields == 1 or rule.in_x) and why_not(problem) is None:
        found.append(partial(rule.moment_tangents, problem, overlaps))
    found += [partial(rule.jacobians, problem, overlaps), partial(responses_of, problem, hats)]
    return [*found, partial(test_error, problem, overlaps)]
