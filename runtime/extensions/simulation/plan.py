"""The plan of a simulation, the same for every seed, and the weights that it begins with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...problems.problem import Problem
from ...saddle_point.starts import start_mixture
from ..descent.schedule import batch_of
from .instance import DEFAULT_MEMORY, STARTS, Instance, stream
from .risk import Weights, on_sphere

RANDOM = "random"
WELLS = "wells"
_RECORDED = 101  # times at which a pass through the data keeps its overlaps


@dataclass(frozen=True)
class Plan:
    """What every seed of a simulation does.

    Attributes:
        start: a named start of the model, or `random`: W standard normal; of sgd also overlaps, as `q=0.1,theta=0.05`.
        method: the name of one of `methods.METHODS`.
        polish: `wells` moves samples out of wrong wells of their own objectives (`wells.polished`); None ends where the
            method does.
        restarts: how often polishing begins anew from its lowest minimum so far, with a few samples moved.
        project: name of overlaps that are held at zero, as theta (`held.entries`); None lets all of them be.
        controls: whether means are taken with control variates (`controls`).
        tolerance: of the gradient norm (of the relative step, for gamp).
        most: iterations, by default 20000, or 1000 of gamp.
        rate: step size or learning rate, see `Method.rate`; of one pass also a text as of `dynamics`.
        batch: of one pass, samples of a step, or a share of d as 0.5d.
        inertia, damping: of gamp.
        exact: whether the teacher's and the means' Gram matrix is that of the law exactly (`instance.coordinates`).
        memory: bytes of data a seed may hold.
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

    @property
    def times(self) -> np.ndarray:
        """Times at which a pass through the data keeps its overlaps: in steps over d, or steps where batches are of
        order d."""
        batch = batch_of(self.batch)
        if batch.share is None:
            return np.linspace(0.0, self.problem.alpha / batch.sentences, _RECORDED)
        return np.unique(np.round(np.linspace(0.0, float(int(self.problem.alpha / batch.share + 1e-9)), _RECORDED)))


def begin(plan: Plan, instance: Instance) -> tuple[Weights, np.ndarray]:
    """Weights of the start, independent of the data, and the V (C, s, s) that theory begins from.

    Columns whose norms are given have these.
    """
    problem, known = plan.problem, instance.coordinates
    s, d = problem.student_rank, plan.d
    noise = stream(instance.seed, STARTS).standard_normal((d, s))
    phi = np.array([float(number["start"]) for number in problem.trained])
    if plan.start == RANDOM:
        W, susceptibility = noise, 20.0
    else:
        mix, deviation, susceptibility = start_mixture(problem, plan.start)
        W = np.concatenate([known.tau, known.pi], axis=1) @ mix.T + deviation * noise
    weights = on_sphere(problem, Weights(np.ascontiguousarray(W), phi))
    return weights, susceptibility * problem.law.rho[:, None, None] * np.eye(s)
