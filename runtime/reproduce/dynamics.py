"""The final state of one-pass descent in the base case: trajectory, basins and escape (docs/theory.md section 19).

The trajectory of a start with both overlaps is compared with simulations. For three rates and three mixings, starts on
the plane of initial (theta, m) are followed to their final state, and the boundary between basins is refined. Escape
times from zero overlap are computed against d.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.integrate import solve_ivp

from ..base.errors import DomainError, InputError
from ..extensions.descent.averages import gradient_average_rules
from ..extensions.descent.dynamics import dynamics
from ..extensions.descent.escape import escape
from ..extensions.descent.flow import EquationsOfMotion
from ..extensions.descent.schedule import BatchSize, LearningRateSchedule
from ..extensions.descent.state import Moments, moments_of_start
from ..extensions.simulation.instance import Instance
from ..extensions.simulation.methods.sgd import draw_weights_with_moments, run_one_pass_sgd
from ..extensions.simulation.orientation import classify_state
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.starts import name_branch
from .run import SHOWN_OMEGA, ReproductionRun, RunTask

DYNAMICS = "dynamics"
RIDGE_PER_SAMPLE = 0.002  # strength of the ridge per sample
START = "q=0.125,theta=0.025,m_1=0.1"
RATE, END = 4.0, 60.0
RATES, OMEGAS = (1.0, 4.0, 16.0), (0.0, 0.3, 0.45)
START_Q = 0.125  # q of all starts of a plane
THETA, M = 0.12, 0.35  # largest values of a plane: q allows both together
PLANE_END_TIME = 6000.0  # end time of a plane, over the rate: the slower of two overlaps has decayed
SLOPE_ROUNDING = 1e-12  # rounding of the slope of a constant moment, per rate
SIMULATION_END_TIME = 800.0  # end time of simulations: overlaps exceed those of random weights
SIMULATED, SEEDS = 500, 6
IN_PLANE, EVERY = 200, 4  # simulations of a plane: dimension, and starts along both axes
DIMENSIONS, DRAWS = (100, 1000, 10_000, 100_000, 1_000_000), 24


class DynamicsRun(ReproductionRun):
    """The run of `reproduce` about one-pass gradient descent: trajectory, basins of attraction, escape times.

    Attributes:
        starts_per_axis: number of starts along each axis of the plane of initial (theta, m).
        boundary_bisections: number of bisections that locate the boundary between two basins.
    """

    draws = (DYNAMICS,)
    page, data = "dynamics", "dynamics_results"
    starts_per_axis: ClassVar[int] = 9
    boundary_bisections: ClassVar[int] = 5

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        super().__init__(out, figures)
        self.results |= {"basins": {}, "escape": {}}

    def planned_tasks(self) -> Iterator[RunTask]:
        """Return the tasks: overlaps in time, basins of attraction by learning rate and omega, and escape times."""
        title = "the base case in time, with simulations"
        yield RunTask(title, 60, "dynamics_trajectory", self.compute_trajectory, into=("trajectory",))
        for omega in OMEGAS:
            for rate in RATES:
                title, step = f"basins at rate {rate:g}, omega = {omega:g}", f"dynamics_basins_{rate:g}_{omega:g}"
                yield RunTask(title, 60, step, self.compute_basins, (rate, omega), ("basins", f"{rate:g}, {omega:g}"))
        yield RunTask("times of escape against d", 60, "dynamics_escape", self.compute_escape_times, into=("escape",))

    def are_results_complete(self) -> bool:
        """Return whether the overlaps of descent in time have the accuracy that was asked for."""
        return bool(self.results["trajectory"]["status"] == "converged")

    def _problem_at_omega(self, omega: float) -> Problem:
        return self.base.with_(omega=omega, **{"lambda": RIDGE_PER_SAMPLE})

    def compute_trajectory(self) -> dict[str, Any]:
        """Compute overlaps of one-pass descent in time, in the limit of infinite d and as means over simulations."""
        problem, times = self._problem_at_omega(SHOWN_OMEGA), np.linspace(0.0, END, 121)
        found = dynamics(problem, RATE, times, START, accuracy=1e-5)
        measured = times[::20]
        runs = [simulate_trajectory(problem, SIMULATED, seed, RATE, START, measured) for seed in range(SEEDS)]
        return {
            "status": found.status, "times": times, "path": _first_token_overlaps([o.pack() for o in found.overlaps]),
            "test_error": found.test_error, "measured": measured,
            "means": _first_token_overlaps(np.mean(runs, axis=0)), "errors":
            _first_token_overlaps(np.std(runs, axis=0, ddof=1) / SEEDS**0.5),
        }  # fmt: skip

    def compute_basins(self, rate: float, omega: float) -> dict[str, Any]:
        """Compute which state gradient descent reaches from each initial (theta, m) of a grid, and the basin boundary.

        Some starts are also simulated at finite d.

        Args:
            rate: learning rate.
            omega: weight of the positional part of the target.
        """
        problem = self._problem_at_omega(omega)
        flow = EquationsOfMotion(problem, gradient_average_rules(problem)[1])
        thetas, ms = (
            np.linspace(0.0, THETA, self.starts_per_axis).tolist(),
            np.linspace(0.0, M, self.starts_per_axis).tolist(),
        )
        reached = [[final_state_of_descent(flow, rate, theta, m) for m in ms] for theta in thetas]
        boundary = []
        for theta, row in zip(thetas, reached, strict=True):
            for (low, name), (high, other) in pairwise(zip(ms, row, strict=True)):
                if name != other:
                    for _ in range(self.boundary_bisections):
                        middle = (low + high) / 2
                        low, high = (
                            (middle, high)
                            if final_state_of_descent(flow, rate, theta, middle) == name
                            else (low, middle)
                        )
                    boundary.append([theta, (low + high) / 2, (high - low) / 2])
        simulated = [
            [theta, m, simulate_final_state(problem, rate, theta, m)]
            for theta, row in zip(thetas[::EVERY], reached[::EVERY], strict=True)
            for m, name in zip(ms[::EVERY], row[::EVERY], strict=True)
            if name
        ]
        return {"theta": thetas, "m": ms, "reached": reached, "boundary": boundary, "simulated": simulated}

    def compute_escape_times(self) -> dict[str, Any]:
        """Compute how long descent from random weights takes to leave zero overlap, in several dimensions d."""
        problem = self._problem_at_omega(SHOWN_OMEGA)
        found = [escape(problem, RATE, d=d, seeds=DRAWS, time=400.0, accuracy=1e-3) for d in DIMENSIONS]
        return {
            "d": DIMENSIONS,
            "times": [one.times for one in found],
            "reached": [one.reached for one in found],
            "growths": [[growth.rate, growth.words] for growth in found[0].growths],
            "information_exponent": found[0].information_exponent,
        }


def _first_token_overlaps(packed: Any) -> np.ndarray:
    """Return overlaps q, m and theta of the first token, shape (times, 3), from vectors of `Overlaps.pack`."""
    return np.asarray(packed)[:, [0, 4, 6]]


def _start_overlaps_by_name(theta: float, m: float) -> dict[str, float]:
    return {"q": START_Q, "theta": theta, "m_1": m}


def final_state_of_descent(flow: EquationsOfMotion, rate: float, theta: float, m: float) -> str:
    """Return the name of the state to which descent converges from given overlaps, in the limit of infinite d.

    The name is empty if no weights have these overlaps.

    Args:
        flow: equations of motion of the overlaps.
        rate: learning rate.
        theta: initial overlap theta with the teacher.
        m: initial overlap m with the mean.
    """
    problem = flow.problem
    try:
        begin = moments_of_start(problem, _start_overlaps_by_name(theta, m))[1].pack()
    except (InputError, DomainError):
        return ""
    # A vanishing constant overlap stays zero by symmetry; at unstable points rounding would let it grow.
    still = (begin == 0) & (np.abs(flow.packed_moment_derivatives(begin, rate)) < SLOPE_ROUNDING * rate)
    found = solve_ivp(
        lambda _, u: np.where(still, 0.0, flow.packed_moment_derivatives(u, rate)), (0.0, PLANE_END_TIME / rate), begin,
        method="LSODA", rtol=1e-5, atol=1e-8,
    )  # fmt: skip
    return name_branch(problem, Moments.unpack(found.y[:, -1], problem).overlaps(problem))


def simulate_final_state(problem: Problem, rate: float, theta: float, m: float) -> str:
    """Simulate one-pass descent at finite d from given overlaps; return the name of the state that it reaches.

    Args:
        problem: problem to simulate.
        rate: learning rate.
        theta: initial overlap theta with the teacher.
        m: initial overlap m with the mean.
    """
    path = simulate_trajectory(
        problem, IN_PLANE, 0, rate, _start_overlaps_by_name(theta, m), np.array([0.0, SIMULATION_END_TIME / rate])
    )
    return classify_state(problem, IN_PLANE, Overlaps.unpack(path[-1], problem.sizes))


def simulate_trajectory(problem: Problem, d: int, seed: int, rate: float, start: Any, times: np.ndarray) -> np.ndarray:
    """Simulate one-pass descent at finite d; return overlaps (from `Overlaps.pack`) at given times.

    Args:
        problem: problem to simulate.
        d: dimension.
        seed: seed of the data.
        rate: learning rate.
        start: initial overlaps, as text or by name.
        times: recording times in units of d steps.
    """
    instance = Instance(problem.with_(alpha=float(times[-1])), d, seed, memory=0.0)
    weights = draw_weights_with_moments(instance, moments_of_start(problem, start)[1])
    path = run_one_pass_sgd(instance, weights, LearningRateSchedule(rate), BatchSize(), times).path
    assert path is not None
    return path
