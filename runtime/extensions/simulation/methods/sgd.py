"""One pass of stochastic gradient descent through the data of an instance: the update of docs/theory.md (19.1)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....base import budget
from ....base.errors import InputError
from ...descent.schedule import Batch, Schedule, batch_of, schedule_of
from ...descent.state import Moments, start_of
from ..instance import STARTS, Instance, shares_of, stream
from ..method import Method, Trained
from ..plan import Plan
from ..risk import Risk, Value, Weights, overlaps_of

_DEPENDENT = 1e-12  # of eigenvalues of Gram matrices, relative to the largest
_LARGEST = 1e8  # of an entry of W: beyond, descent diverges
_LOOK = 256  # steps between looks at the clock and at the size of W


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


def one_pass(instance: Instance, begin: Weights, rate: Schedule, batch: Batch, times: np.ndarray) -> Trained:
    """Every sentence once, in order; the weights move after each batch of them.

    Args:
        times: at which overlaps are kept, increasing; the first is that of `begin`.

    Returns:
        The weights at the end, with packed overlaps at the times that were reached as `path`, V not a number.

    Raises:
        InputError: less data than the last time asks for.
    """
    d = instance.d
    size = int(batch.sentences) if batch.share is None else max(1, round(batch.share * d))
    per_time = d if batch.share is None else 1
    steps = np.round((times - times[0]) * per_time).astype(int)
    if steps[-1] * size > instance.n:
        raise InputError(
            f"{steps[-1] * size} samples are used up to time {times[-1]:g}, of {instance.n}; give a shorter time"
        )
    W, phi = begin.W.copy(), begin.phi.copy()
    path, status, wanted = [], "converged", 0
    scale = 1.0 / d if batch.share is None else 1.0  # of a step in the weights, times the rate
    batches, slope = _batches(instance, size), _BatchSlope(instance)
    with np.errstate(all="ignore"):
        for number in range(steps[-1] + 1):
            while wanted < len(steps) and number == steps[wanted]:  # in few steps several times fall on one
                path.append(overlaps_of(instance, Weights(W, phi)).pack())
                wanted += 1
            if wanted == len(steps):
                break
            if number % _LOOK == 0:
                budget.check()
                if not np.abs(W).max() < _LARGEST:
                    status = "not_finite"
                    break
            found = slope(Weights(W, phi), *next(batches))
            eta = rate(float(times[0]) + number / per_time) * scale
            W -= eta * found.W
            phi = phi - eta * found.phi
    nothing = Value(np.nan, np.nan, Weights(np.full_like(W, np.nan), np.full_like(phi, np.nan)))
    return Trained(Weights(W, phi), nothing, np.nan, number, status, path=np.array(path))


def _batches(instance: Instance, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Numbers of the samples of every batch, and their centred tokens (size, L, d)."""
    waiting: list[np.ndarray] = []
    first = 0
    for _, block in instance.blocks():
        waiting.append(block)
        if sum(map(len, waiting)) < size:
            continue
        tokens = np.concatenate(waiting)
        for begin in range(0, len(tokens) - size + 1, size):
            yield np.arange(first, first + size), tokens[begin : begin + size]
            first += size
        waiting = [tokens[len(tokens) - len(tokens) % size :]]


class _BatchSlope:
    """The slope that a batch moves weights along: sqrt(d) times the mean slope of the loss in W, plus that of the
    regulariser, and the slope in phi."""

    def __init__(self, instance: Instance) -> None:
        self.instance, self.risk = instance, Risk(instance)
        self.constants = instance.constants() if self.risk.is_explicit else {}  # others change with the weights
        self.units = np.eye(instance.problem.contexts)
        self.own_ridge = np.array([number["ridge"] for number in instance.problem.trained])

    def __call__(self, weights: Weights, samples: np.ndarray, tokens: np.ndarray) -> Weights:
        """Return it at weights, of samples (N,) with centred tokens (N, L, d)."""
        instance, problem, risk = self.instance, self.instance.problem, self.risk
        tau, W, d, root = instance.coordinates.tau, weights.W, instance.d, instance.d**0.5
        overlaps = None if risk.is_explicit else overlaps_of(instance, weights)
        rows, contexts = tokens.reshape(-1, d), instance.contexts[samples]
        fields = (rows @ W / root).reshape(*contexts.shape, -1) + (tau.T @ W / d)[contexts]
        slopes, own_sums = np.empty_like(fields), risk.no_own_sums()
        for labels, own, x, known in instance.by_labels(fields, samples):
            constants = self.constants[labels] if overlaps is None else problem.constants(labels, overlaps)
            _, found = problem.solver.proximal.losses_at(x, known, constants)
            slopes[own] = found.reshape(-1, *fields.shape[1:])
            if overlaps is not None:
                own_sums += risk.own_sums(labels, x, known, constants)
        by_token, count = slopes.reshape(len(rows), -1), len(samples)
        along_means = self.units[contexts.ravel()].T @ by_token
        slope = (root * (rows.T @ by_token) + tau @ along_means) / count
        slope += problem.regulariser.values(W, instance.known_rows)[1]
        if problem.solver.model.HOLDS_Q:
            slope += d / count * np.einsum("iab,ib->ia", risk.through_q(own_sums), W)
        in_phi = own_sums[len(own_sums) - len(weights.phi) :]
        return Weights(slope, in_phi / count + self.own_ridge * weights.phi)


def _train(plan: Plan, instance: Instance) -> Trained:
    begin = weights_with(instance, start_of(instance.problem, plan.start)[1])
    return one_pass(instance, begin, schedule_of(plan.rate or 0.0), batch_of(plan.batch), plan.times)


def _check(plan: Plan) -> None:
    """
    Raises:
        InputError: a loss without a slope, or options that are not those of a pass through the data.
    """
    problem = plan.problem
    if problem.solver.model.LOSS_JUMPS:
        raise InputError(f"the loss of {problem.solver.name} jumps, and has no slope to descend")
    if plan.rate is None:
        raise InputError("sgd needs a learning rate; give a number, as rate=0.5, or --rate 0.5 to a command")
    rate, batch = schedule_of(plan.rate), batch_of(plan.batch)
    if rate.flow:
        raise InputError(
            "rate flow: gradient flow is no pass through data; give a number, as rate=0.5, or --rate 0.5 to a command"
        )
    start_of(problem, plan.start)
    if batch.share is not None and problem.alpha < batch.share:
        raise InputError(f"alpha = {problem.alpha:g} is less than one batch of {batch.words}")


METHOD = Method(
    "sgd",
    train=_train,
    any_penalty=False,
    q_in_loss=True,
    trained_numbers=True,
    one_pass=True,
    check=_check,
    summary="is one pass through the data, up to time alpha",
    rate="as of `dynamics`",
)
