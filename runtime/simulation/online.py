"""One pass of stochastic gradient descent through the data of an instance: the update of docs/theory.md (19.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .. import budget
from ..descent.schedule import Batch, Schedule
from ..descent.state import Moments
from ..errors import InputError
from .instance import STARTS, Instance, shares_of, stream
from .risk import Weights, holds_own, overlaps_of

_DEPENDENT = 1e-12  # of eigenvalues of Gram matrices, relative to the largest
_LARGEST = 1e8  # of an entry of W: beyond, descent diverges
_RECORDED = 101
_LOOK = 256  # steps between looks at the clock and at the size of W


@dataclass(frozen=True)
class Pass:
    """What one pass through the data did.

    Attributes:
        times: in steps over d, or steps where batches are of order d. path: packed overlaps at the times that were
            reached, V not a number. steps: how many. weights: at the end.
        status: "converged", which is to say finished, or "not_finite".
    """

    times: np.ndarray
    path: np.ndarray
    steps: int
    weights: Weights
    status: str


def record_times(end: float, whole: bool = False) -> np.ndarray:
    """Times from 0 to the end at which a run keeps its overlaps; whole numbers where batches are of order d."""
    times = np.linspace(0.0, end, _RECORDED)
    return np.unique(np.round(times)) if whole else times


def _batch_size(batch: Batch, d: int) -> int:
    return max(1, round(batch.share * d)) if batch.share is not None else int(batch.sentences)


def weights_with(instance: Instance, moments: Moments) -> Weights:
    """W (d, s) with given moments of the rows of every atom: T and P as exactly as (tau, pi) have their Gram matrix, S
    up to fluctuations of order d^(-1/2)."""
    law, known = instance.problem.law, instance.coordinates
    noise = stream(instance.seed, STARTS).standard_normal((instance.d, instance.problem.student_rank))
    z = np.concatenate([known.tau, known.pi], axis=1)
    W, first = np.empty_like(noise), 0
    for atom, count in enumerate(shares_of(law.weights, instance.d)):
        rows = slice(first, first + count)
        first += count
        with_z = np.concatenate([moments.T[atom].T, moments.P[atom]], axis=1)
        mix = with_z @ np.linalg.pinv(law.gram[atom], rcond=_DEPENDENT, hermitian=True)
        values, vectors = np.linalg.eigh(moments.S[atom] - mix @ with_z.T)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        along, _, rank, _ = np.linalg.lstsq(z[rows], noise[rows], rcond=1e-9)
        free = (noise[rows] - z[rows] @ along) * np.sqrt(count / max(count - int(rank), 1))
        W[rows] = z[rows] @ mix.T + free @ root
    return Weights(np.ascontiguousarray(W), moments.phi.copy())


def one_pass(instance: Instance, begin: Weights, rate: Schedule, batch: Batch, times: np.ndarray) -> Pass:
    """Every sentence once, in order; the weights move after each batch of them.

    Args:
        times: at which overlaps are kept, increasing; the first is that of `begin`.

    Raises:
        InputError: gradient flow, which no pass through data is, or less data than the last time asks for.
    """
    d = instance.d
    if rate.flow:
        raise InputError("rate flow: gradient flow is no pass through data; give a number, as rate=0.5")
    size = _batch_size(batch, d)
    per_time = 1 if batch.share is not None else d
    steps = np.round((times - times[0]) * per_time).astype(int)
    if steps[-1] * size > instance.n:
        raise InputError(
            f"{steps[-1] * size} samples are used up to time {times[-1]:g}, of {instance.n}; give a shorter time"
        )
    W, phi = begin.W.copy(), begin.phi.copy()
    path, status, wanted = [], "converged", 0
    scale = 1.0 if batch.share is not None else 1.0 / d  # of a step in the weights, times the rate
    batches, descent = _batches(instance, size), _Descent.of(instance)
    with np.errstate(all="ignore"):
        for number in range(steps[-1] + 1):
            if number == steps[wanted]:
                path.append(overlaps_of(instance, Weights(W, phi)).pack())
                wanted += 1
                if wanted == len(steps):
                    break
            if number % _LOOK == 0:
                budget.check()
                if not np.abs(W).max() < _LARGEST:
                    status = "not_finite"
                    break
            tokens, samples = next(batches)
            slope, in_phi = descent.slope(Weights(W, phi), tokens, samples)
            eta = rate(float(times[0]) + number / per_time) * scale
            W -= eta * slope
            phi = phi - eta * in_phi
    return Pass(times[: len(path)], np.array(path), number, Weights(W, phi), status)


def _batches(instance: Instance, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Centred tokens (size, L, d) and numbers of the samples of every batch."""
    left: list[np.ndarray] = []
    held, first = 0, 0
    for span, tokens in instance.blocks():
        if size == 1:
            for n, one in zip(range(span.start, span.stop), tokens, strict=True):
                yield one[None], np.array([n])
            continue
        left.append(tokens)
        held += len(tokens)
        if held < size:
            continue
        every = np.concatenate(left)
        for begin in range(0, held - size + 1, size):
            yield every[begin : begin + size], np.arange(first, first + size)
            first += size
        rest = held % size
        left, held = [every[held - rest :]] if rest else [], rest


@dataclass(frozen=True)
class _Descent:
    """The slope of the loss and of the ridge, and what of it stays along a pass.

    Attributes:
        holds: whether the loss holds overlaps or trained numbers; known: of the samples, what the loss reads beside the
            fields; unit: the contexts' identity; constants: by labels, where no solution changes them.
    """

    instance: Instance
    holds: bool
    known: np.ndarray
    unit: np.ndarray
    strengths: np.ndarray
    own_ridge: np.ndarray
    constants: dict[tuple[int, ...], np.ndarray]

    @classmethod
    def of(cls, instance: Instance) -> _Descent:
        problem = instance.problem
        holds = holds_own(problem)
        return cls(
            instance,
            holds,
            instance.known,
            np.eye(problem.contexts),
            np.asarray(problem.strengths, float),
            np.array([number["ridge"] for number in problem.trained]),
            {} if holds else {labels: problem.constants(labels) for labels, _ in problem.label_choices},
        )

    def slope(self, weights: Weights, tokens: np.ndarray, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """sqrt(d) times the mean slope of the loss in W, plus that of the ridge; and the slope in phi."""
        instance = self.instance
        problem, known, W, d = instance.problem, instance.coordinates, weights.W, instance.d
        L, s, root = problem.tokens, problem.student_rank, d**0.5
        overlaps = overlaps_of(instance, weights) if self.holds else None
        means = known.tau.T @ W / d if overlaps is None else overlaps.m
        count = len(samples)
        contexts = instance.contexts[samples]
        rows = tokens.reshape(count * L, d)
        fields = ((rows @ W) / root).reshape(count, L, s) + means[contexts]
        fields = np.ascontiguousarray(fields.reshape(count, L * s))
        slopes = np.empty((count, L * s))
        in_phi = np.zeros(len(weights.phi))
        through_q = np.zeros((problem.contexts, s, s)) if problem.solver.model.HOLDS_Q else None
        for labels, own in _members(instance, samples):
            constants = self.constants[labels] if overlaps is None else problem.constants(labels, overlaps)
            x, features = fields[own], self.known[samples[own]]
            _, slopes[own] = problem.solver.proximal.losses_at(x, features, constants)
            if self.holds:
                held = problem.solver.proximal.own_gradients_at(x, features, constants).sum(axis=0)
                in_phi += held[len(held) - len(in_phi) :]
                if through_q is not None:
                    upper, columns = np.triu_indices(s)
                    for context, triangle in zip(
                        problem.context_of(labels), held[: len(held) - len(in_phi)].reshape(L, -1), strict=True
                    ):
                        through_q[context][upper, columns] += triangle / 2
                        through_q[context][columns, upper] += triangle / 2
        by_token = slopes.reshape(count * L, s)
        along_means = self.unit[contexts.ravel()].T @ by_token
        slope = (root * (rows.T @ by_token) + known.tau @ along_means) / count
        slope += W * self.strengths
        if through_q is not None:
            slope += 2 * np.einsum("ic,cab,ib->ia", known.gamma, through_q / count, W)
        return slope, in_phi / count + self.own_ridge * weights.phi


def _members(instance: Instance, samples: np.ndarray) -> list[tuple[tuple[int, ...], np.ndarray | slice]]:
    """Samples of a batch (places in it) by their labels."""
    choices = instance.problem.label_choices
    if len(choices) == 1:
        return [(choices[0][0], slice(None))]
    number = instance.assignments[samples]
    return [(choices[n][0], np.flatnonzero(number == n)) for n in np.unique(number).tolist()]
