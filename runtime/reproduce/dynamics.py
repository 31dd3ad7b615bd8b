"""Which solution does one-pass descent reach? Trajectory, basins and escape in the base case (docs/theory.md section
19).

The trajectory of a start with both overlaps beside simulations; for three rates and three mixings the plane of initial
(theta, m), each start followed to what it reaches, its boundary refined; times of escape from no overlap against d.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from ..base.errors import DomainError, InputError
from ..extensions.descent.averages import sizes_for
from ..extensions.descent.dynamics import dynamics
from ..extensions.descent.escape import escape
from ..extensions.descent.flow import Flow
from ..extensions.descent.schedule import Batch, Schedule
from ..extensions.descent.state import Moments, start_of
from ..extensions.simulation.instance import Instance
from ..extensions.simulation.methods.sgd import one_pass, weights_with
from ..extensions.simulation.orientation import kind_of
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.starts import branch_of
from .run import SHOWN_OMEGA, Run, Task

DYNAMICS = "dynamics"
STRENGTH = 0.002  # of the ridge, per sentence
START = "q=0.125,theta=0.025,m_1=0.1"
RATE, END = 4.0, 60.0
RATES, OMEGAS = (1.0, 4.0, 16.0), (0.0, 0.3, 0.45)
SIDE = 9  # starts an axis of a plane
Q = 0.125  # of all starts of a plane
THETA, M = 0.12, 0.35  # largest of a plane: within what q allows together
SETTLED = 6000.0  # times of a plane end there, over the rate: the slower of two overlaps has died out
ROUNDING = 1e-12  # of the slope of a moment that does not move, per rate
PASSED = 800.0  # the same of simulations in it: overlaps are told from what weights without any have
REFINED = 5  # bisections of the boundary
SIMULATED, SEEDS = 500, 6
IN_PLANE, EVERY = 200, 4  # simulations of a plane: dimension, and starts along both axes
DIMENSIONS, DRAWS = (100, 1000, 10_000, 100_000, 1_000_000), 24


class DynamicsRun(Run):
    """The three parts."""

    draws = (DYNAMICS,)
    page, data = "dynamics", "dynamics_results"

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        super().__init__(out, figures)
        self.results |= {"basins": {}, "escape": {}}

    def plan(self) -> Iterator[Task]:
        """The trajectory, a step a plane, and the times of escape."""
        title = "the base case in time, beside simulations"
        yield Task(title, 60, "dynamics_trajectory", self.trajectory, into=("trajectory",))
        for omega in OMEGAS:
            for rate in RATES:
                title, step = f"basins at rate {rate:g}, omega = {omega:g}", f"dynamics_basins_{rate:g}_{omega:g}"
                yield Task(title, 60, step, self.plane, (rate, omega), ("basins", f"{rate:g}, {omega:g}"))
        yield Task("times of escape against d", 60, "dynamics_escape", self.escape, into=("escape",))

    def is_complete(self) -> bool:
        """Whether the trajectory has its accuracy."""
        return bool(self.results["trajectory"]["status"] == "converged")

    def _at(self, omega: float) -> Problem:
        return self.base.with_(omega=omega, **{"lambda": STRENGTH})

    def trajectory(self) -> dict[str, Any]:
        """Overlaps in time, and means of simulations."""
        problem, times = self._at(SHOWN_OMEGA), np.linspace(0.0, END, 121)
        found = dynamics(problem, RATE, times, START, accuracy=1e-5)
        measured = times[::20]
        runs = [simulated_path(problem, SIMULATED, seed, RATE, START, measured) for seed in range(SEEDS)]
        return {
            "status": found.status, "times": times, "path": _shown([o.pack() for o in found.overlaps]),
            "test_error": found.test_error, "measured": measured,
            "means": _shown(np.mean(runs, axis=0)), "errors": _shown(np.std(runs, axis=0, ddof=1) / SEEDS**0.5),
        }  # fmt: skip

    def plane(self, rate: float, omega: float) -> dict[str, Any]:
        """What starts of given overlaps reach, the boundary in m, and what one pass at finite d reaches."""
        problem = self._at(omega)
        flow = Flow(problem, sizes_for(problem)[1])
        thetas, ms = np.linspace(0.0, THETA, SIDE).tolist(), np.linspace(0.0, M, SIDE).tolist()
        reached = [[end_of(flow, rate, theta, m) for m in ms] for theta in thetas]
        boundary = []
        for theta, row in zip(thetas, reached, strict=True):
            for (low, name), (high, other) in pairwise(zip(ms, row, strict=True)):
                if name != other:
                    for _ in range(REFINED):
                        middle = (low + high) / 2
                        low, high = (middle, high) if end_of(flow, rate, theta, middle) == name else (low, middle)
                    boundary.append([theta, (low + high) / 2, (high - low) / 2])
        simulated = [
            [theta, m, simulated_end_of(problem, rate, theta, m)]
            for theta, row in zip(thetas[::EVERY], reached[::EVERY], strict=True)
            for m, name in zip(ms[::EVERY], row[::EVERY], strict=True)
            if name
        ]
        return {"theta": thetas, "m": ms, "reached": reached, "boundary": boundary, "simulated": simulated}

    def escape(self) -> dict[str, Any]:
        """Times of escape from random starts in all dimensions."""
        problem = self._at(SHOWN_OMEGA)
        found = [escape(problem, RATE, d=d, seeds=DRAWS, time=400.0, accuracy=1e-3) for d in DIMENSIONS]
        return {
            "d": DIMENSIONS,
            "times": [one.times for one in found],
            "reached": [one.reached for one in found],
            "growths": [[growth.rate, growth.words] for growth in found[0].growths],
            "information_exponent": found[0].information_exponent,
        }


def _shown(packed: Any) -> np.ndarray:
    """q, m and theta of the first token, (n, 3), of packed overlaps of attention on two tokens."""
    return np.asarray(packed)[:, [0, 4, 6]]


def _start(theta: float, m: float) -> dict[str, float]:
    return {"q": Q, "theta": theta, "m_1": m}


def end_of(flow: Flow, rate: float, theta: float, m: float) -> str:
    """What a start of given overlaps has reached when descent has settled; empty where no weights have them."""
    problem = flow.problem
    try:
        begin = start_of(problem, _start(theta, m))[1].pack()
    except (InputError, DomainError):
        return ""
    # An overlap that vanishes and does not move stays so by symmetry; of unstable points rounding would lead away.
    still = (begin == 0) & (np.abs(flow.packed(begin, rate)) < ROUNDING * rate)
    found = solve_ivp(
        lambda _, u: np.where(still, 0.0, flow.packed(u, rate)), (0.0, SETTLED / rate), begin, method="LSODA",
        rtol=1e-5, atol=1e-8,
    )  # fmt: skip
    return branch_of(Moments.unpack(found.y[:, -1], problem).overlaps(problem))


def simulated_end_of(problem: Problem, rate: float, theta: float, m: float) -> str:
    """What one pass at finite d has reached in a shorter time, from weights with these overlaps."""
    path = simulated_path(problem, IN_PLANE, 0, rate, _start(theta, m), np.array([0.0, PASSED / rate]))
    return kind_of(problem, IN_PLANE, Overlaps.unpack(path[-1], problem.sizes))


def simulated_path(problem: Problem, d: int, seed: int, rate: float, start: Any, times: np.ndarray) -> np.ndarray:
    """Packed overlaps of one pass at finite d at some times."""
    instance = Instance(problem.with_(alpha=float(times[-1])), d, seed, memory=0.0)
    weights = weights_with(instance, start_of(problem, start)[1])
    path = one_pass(instance, weights, Schedule(rate), Batch(), times).path
    assert path is not None
    return path
