"""The plan of a simulation, the same for every seed, and the initial weights of a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...problems.problem import Problem
from ...saddle_point.starts import mixture_coefficients_of_start
from ..descent.schedule import parse_batch_size
from .instance import DEFAULT_MEMORY, STARTS, Instance, random_stream
from .risk import Weights, scale_columns_to_norms

RANDOM = "random"
MINIMA = "minima"  # of the polishing; `wells` was its name before 0.1.0
_RECORDED = 101  # number of times at which one pass through the data records its overlaps


@dataclass(frozen=True)
class SimulationPlan:
    """A plan of a simulation: the problem, the training method and its options, common to all seeds.

    Attributes:
        start: a named start of the model, or `random`: W standard normal; of sgd also overlaps, as `q=0.1,theta=0.05`.
        method: the name of one of `methods.METHODS`.
        polish: `minima` moves samples to lower secondary minima of their own objectives (`polishing.polish_minimum`);
            None ends where the method does.
        restarts: number of restarts of the polishing from its lowest minimum, with a few samples moved.
        project: name of overlaps that are constrained to zero, as theta or theta_1; None for none.
        controls: whether means are taken with control variates (`controls`).
        tolerance: largest gradient norm (largest relative step, for gamp).
        most: largest number of iterations, by default 20000, or 1000 for gamp.
        rate: step size or learning rate, in the unit of the method; for sgd also a schedule as a text.
        batch: samples of a step of one pass, or a fraction of d as 0.5d.
        inertia: weight on old values of V and of the conjugates, for gamp.
        damping: weight on old weights and messages, for gamp.
        exact: whether the teacher's and the means' Gram matrix is that of the law exactly
            (`instance.eigenbasis_coordinates`).
        memory: bytes of data that a seed may hold in memory.
    """

    problem: Problem
    d: int
    start: str
    method: str
    tolerance: float = 1e-6
    most: int | None = None
    rate: float | str | None = None
    inertia: float = 0.8
    damping: float = 0.0
    exact: bool = True
    memory: float = DEFAULT_MEMORY
    polish: str | None = None
    restarts: int = 0
    project: str | None = None
    controls: bool = False
    batch: str = "1"

    def __post_init__(self) -> None:
        if self.polish == "wells":
            object.__setattr__(self, "polish", MINIMA)

    @property
    def recording_times(self) -> np.ndarray:
        """The times at which one pass of SGD records overlaps: steps / d, or steps if batches grow with d."""
        batch = parse_batch_size(self.batch)
        if batch.share is None:
            return np.linspace(0.0, self.problem.alpha / batch.sentences, _RECORDED)
        return np.unique(np.round(np.linspace(0.0, float(int(self.problem.alpha / batch.share + 1e-9)), _RECORDED)))


def initial_weights(plan: SimulationPlan, instance: Instance) -> tuple[Weights, np.ndarray]:
    """Return the initial weights of a simulation, independent of the data, and the V of the start in theory.

    V has shape ((token, cluster) pairs, s, s). Columns whose norms are given have these norms.

    Args:
        plan: plan of the simulation.
        instance: teacher and data drawn with one seed.
    """
    problem, known = plan.problem, instance.eigenbasis_coordinates
    s, d = problem.student_rank, plan.d
    noise = random_stream(instance.seed, STARTS).standard_normal((d, s))
    phi = np.array([float(number["start"]) for number in problem.trained])
    if plan.start == RANDOM:
        W, susceptibility = noise, 20.0
    else:
        mix, deviation, susceptibility = mixture_coefficients_of_start(problem, plan.start)
        W = np.concatenate([known.tau, known.pi], axis=1) @ mix.T + deviation * noise
    weights = scale_columns_to_norms(problem, Weights(np.ascontiguousarray(W), phi))
    return weights, susceptibility * problem.law.rho[:, None, None] * np.eye(s)
