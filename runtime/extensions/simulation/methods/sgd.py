"""One pass of stochastic gradient descent through the data of an instance, with the update of docs/theory.md (19.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....base import budget
from ....base.errors import InputError
from ....base.options import AlgorithmOptions
from ...descent.schedule import BatchSize, LearningRateSchedule, parse_batch_size, parse_learning_rate
from ...descent.state import Moments, moments_of_start
from ..instance import STARTS, Instance, allocate_by_largest_remainder, random_stream
from ..method import TrainingMethod, TrainingResult
from ..plan import SimulationPlan
from ..risk import Risk, RiskValue, Weights, overlaps_of_weights

_RANK_ROUNDING = 1e-12  # eigenvalues of Gram matrices smaller than this part of the largest are zero up to rounding


@dataclass(frozen=True)
class OnePassOptions(AlgorithmOptions):
    """Options of one pass of stochastic gradient descent.

    Attributes:
        divergence_size: absolute value of a weight beyond which the descent counts as diverged.
        check_interval: steps between checks of the time limit and of divergence.
    """

    divergence_size: float = 1e8
    check_interval: int = 256


def draw_weights_with_moments(instance: Instance, moments: Moments) -> Weights:
    """Draw random weights whose second moments with means, teacher and themselves are given.

    Moments with the means and the teacher are exact if those of these are; moments of the weights with themselves
    fluctuate by order 1/sqrt(d).

    Args:
        instance: teacher and data drawn with one seed.
        moments: second moments of the weights with themselves, the means and the teacher.
    """
    law, known = instance.problem.law, instance.eigenbasis_coordinates
    noise = random_stream(instance.seed, STARTS).standard_normal((instance.d, instance.problem.student_rank))
    z = np.concatenate([known.tau, known.pi], axis=1)
    W, first = np.empty_like(noise), 0
    for atom, count in enumerate(allocate_by_largest_remainder(law.weights, instance.d)):
        rows = slice(first, first + count)
        first += count
        with_z = np.concatenate([moments.T[atom].T, moments.P[atom]], axis=1)
        mix = with_z @ np.linalg.pinv(law.gram[atom], rcond=_RANK_ROUNDING, hermitian=True)
        values, vectors = np.linalg.eigh(moments.S[atom] - mix @ with_z.T)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        along, _, rank, _ = np.linalg.lstsq(z[rows], noise[rows], rcond=1e-9)
        free = (noise[rows] - z[rows] @ along) * np.sqrt(count / max(count - int(rank), 1))
        W[rows] = z[rows] @ mix.T + free @ root
    return Weights(np.ascontiguousarray(W), moments.phi.copy())


def run_one_pass_sgd(
    instance: Instance, begin: Weights, rate: LearningRateSchedule, batch: BatchSize, times: np.ndarray
) -> TrainingResult:
    """Run one pass of stochastic gradient descent, which uses every sample once, in order.

    Args:
        instance: teacher and data drawn with one seed.
        begin: initial weights.
        rate: learning rate as a function of time.
        batch: number of samples in a batch, or its fraction of d.
        times: increasing times at which overlaps are recorded; the first is the time of the initial weights.

    Returns:
        The last weights, with the overlaps at the recording times that were reached as `path`.

    Raises:
        InputError: the instance has fewer samples than the last time requires.
    """
    options, d = OnePassOptions.current(), instance.d
    size = int(batch.sentences) if batch.share is None else max(1, round(batch.share * d))
    per_time = d if batch.share is None else 1
    steps = np.round((times - times[0]) * per_time).astype(int)
    if steps[-1] * size > instance.sample_count:
        raise InputError(
            f"descent up to time {times[-1]:g} uses {steps[-1] * size} samples once, and there are "
            f"{instance.sample_count}; give a shorter time or a larger alpha"
        )
    W, phi = begin.W.copy(), begin.phi.copy()
    path, status, wanted = [], "converged", 0
    scale = 1.0 / d if batch.share is None else 1.0  # of a step in the weights, times the rate
    batches, slope = _iterate_sample_batches(instance, size), _BatchGradient(instance)
    with np.errstate(all="ignore"):
        for number in range(steps[-1] + 1):
            while wanted < len(steps) and number == steps[wanted]:  # in few steps several times fall on one
                path.append(overlaps_of_weights(instance, Weights(W, phi)).pack())
                wanted += 1
            if wanted == len(steps):
                break
            if number % options.check_interval == 0:
                budget.check_time_limit()
                if not np.abs(W).max() < options.divergence_size:
                    status = "not_finite"
                    break
            found = slope(Weights(W, phi), *next(batches))
            eta = rate(float(times[0]) + number / per_time) * scale
            W -= eta * found.W
            phi = phi - eta * found.phi
    nothing = RiskValue(np.nan, np.nan, Weights(np.full_like(W, np.nan), np.full_like(phi, np.nan)))
    return TrainingResult(Weights(W, phi), nothing, np.nan, number, status, path=np.array(path))


def _iterate_sample_batches(instance: Instance, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the sample indices of each batch in order, and the centred tokens of these samples, (size, L, d)."""
    waiting: list[np.ndarray] = []
    first = 0
    for _, block in instance.iterate_blocks_of_samples():
        waiting.append(block)
        if sum(map(len, waiting)) < size:
            continue
        tokens = np.concatenate(waiting)
        for begin in range(0, len(tokens) - size + 1, size):
            yield np.arange(first, first + size), tokens[begin : begin + size]
            first += size
        waiting = [tokens[len(tokens) - len(tokens) % size :]]


class _BatchGradient:
    """The gradient of the risk on a batch of samples, as a function of the weights.

    In the weights W it is sqrt(d) times the mean gradient of the loss, plus the gradient of the regulariser; in numbers
    that are trained with W it is the mean gradient.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance, self.risk = instance, Risk(instance)
        self.constants = instance.loss_constants() if self.risk.is_explicit else {}  # others change with the weights
        self.units = np.eye(instance.problem.contexts)
        self.own_ridge = np.array([number["ridge"] for number in instance.problem.trained])

    def __call__(self, weights: Weights, samples: np.ndarray, tokens: np.ndarray) -> Weights:
        """Return the gradient of the training loss on a batch of samples at given weights.

        Args:
            weights: weights and numbers trained with them.
            samples: indices of the samples of the batch.
            tokens: centred tokens of these samples, shape (samples, L, d).
        """
        instance, problem, risk = self.instance, self.instance.problem, self.risk
        tau, W, d, root = instance.eigenbasis_coordinates.tau, weights.W, instance.d, instance.d**0.5
        overlaps = None if risk.is_explicit else overlaps_of_weights(instance, weights)
        rows, contexts = tokens.reshape(-1, d), instance.token_contexts[samples]
        fields = (rows @ W / root).reshape(*contexts.shape, -1) + (tau.T @ W / d)[contexts]
        slopes, gradient_in_q_and_phi = np.empty_like(fields), risk.zeros_like_gradient_in_q_and_phi()
        for labels, own, x, known in instance.group_samples_by_labels(fields, samples):
            constants = self.constants[labels] if overlaps is None else problem.constants(labels, overlaps)
            _, found = problem.solver.proximal.losses_at(x, known, constants)
            slopes[own] = found.reshape(-1, *fields.shape[1:])
            if overlaps is not None:
                gradient_in_q_and_phi += risk.gradient_in_q_and_phi(labels, x, known, constants)
        by_token, count = slopes.reshape(len(rows), -1), len(samples)
        along_means = self.units[contexts.ravel()].T @ by_token
        slope = (root * (rows.T @ by_token) + tau @ along_means) / count
        slope += problem.regulariser.penalties_and_gradients(W, instance.teacher_in_penalty)[1]
        if problem.solver.model.HOLDS_Q:
            slope += d / count * np.einsum("iab,ib->ia", risk.row_matrices_from_q_gradient(gradient_in_q_and_phi), W)
        in_phi = gradient_in_q_and_phi[len(gradient_in_q_and_phi) - len(weights.phi) :]
        return Weights(slope, in_phi / count + self.own_ridge * weights.phi)


def _train_by_one_pass(plan: SimulationPlan, instance: Instance) -> TrainingResult:
    begin = draw_weights_with_moments(instance, moments_of_start(instance.problem, plan.start)[1])
    return run_one_pass_sgd(
        instance, begin, parse_learning_rate(plan.rate or 0.0), parse_batch_size(plan.batch), plan.recording_times
    )


def _check_one_pass_plan(plan: SimulationPlan) -> None:
    """Raise InputError if the loss has no gradient or an option of the plan does not suit one pass of SGD."""
    problem = plan.problem
    if problem.solver.model.LOSS_JUMPS:
        raise InputError(
            f"the loss of {problem.solver.name} is discontinuous, so that gradient descent is not defined for it"
        )
    if plan.rate is None:
        raise InputError("the method sgd needs a learning rate; give a number, as rate=0.5, or --rate 0.5 to a command")
    rate, batch = parse_learning_rate(plan.rate), parse_batch_size(plan.batch)
    if rate.flow:
        raise InputError(
            "rate = flow is not for the method sgd, as gradient flow does not go through samples one by one; give a "
            "number, as rate=0.5, or --rate 0.5 to a command"
        )
    moments_of_start(problem, plan.start)
    if batch.share is not None and problem.alpha < batch.share:
        raise InputError(
            f"alpha = {problem.alpha:g} gives fewer samples than one batch of {batch.command_line_text}; take a larger "
            "alpha or a smaller batch"
        )


METHOD = TrainingMethod(
    "sgd",
    train=_train_by_one_pass,
    any_penalty=False,
    q_in_loss=True,
    trained_numbers=True,
    one_pass=True,
    check=_check_one_pass_plan,
    summary="is one pass through the data, up to time alpha",
    rate="as of `dynamics`",
)
