"""Polishing of minima: a descent can end at minima of the risk that lie above others one sample away.

Without its own contribution the fields X of a sample would be omega = X - V g, with the V of `response` and g minus the
slope of the loss. X is a stationary point of the Moreau objective at this omega (docs/theory.md (4.3)); in the state of
theory it is the global minimum. If a secondary minimum is lower by e, moving this sample there, with the linear
response of all others, lowers the risk by e / d to leading order. `polish_minimum` moves such samples and descends
again until none of them lowers the risk.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from ...base.options import AlgorithmOptions
from .instance import random_stream
from .method import PolishRecord, TrainingResult
from .response import LinearResponse
from .risk import Risk, Weights

_ROUNDING = 1e-10  # relative rounding error of the loss
_STREAM = 13  # stream of random numbers


@dataclass(frozen=True)
class PolishOptions(AlgorithmOptions):
    """Options of the polishing of minima of the risk, which moves samples to lower minima of their own objectives.

    Attributes:
        max_minima: largest number of minima of one sample's objective that are compared.
        min_distance: squared distance, relative to the squared fields, above which two minima are different.
        group_divisor: factor by which a group of moved samples shrinks if it does not lower the risk.
        restart_candidates: samples with the lowest secondary minima among which a restart chooses.
        restart_fraction: probability with which a restart moves each candidate; larger explores farther away.
    """

    max_minima: int = 8
    min_distance: float = 1e-8
    group_divisor: int = 4
    restart_candidates: int = 8
    restart_fraction: float = 0.5


Descend = Callable[[Weights], TrainingResult]


@dataclass(frozen=True)
class SecondaryMinima:
    """The lowest secondary minima of the samples' Moreau objectives (loss plus quadratic term), where they exist.

    Samples are in the order of their gain, largest first.

    Attributes:
        samples: indices of the samples, (samples,).
        gains: decrease of the objective if the sample moves to its secondary minimum; negative for an increase.
        fields: fields at the secondary minima, (samples, L s).
        slopes: gradients of the loss there, (samples, L s).
        curvatures: Hessians of the loss there, (samples, L s, L s).
        wrong: fraction of all samples of the instance whose gain is positive.
    """

    samples: np.ndarray
    gains: np.ndarray
    fields: np.ndarray
    slopes: np.ndarray
    curvatures: np.ndarray
    wrong: float


def find_secondary_minima(response: LinearResponse) -> SecondaryMinima:
    """Return, for each sample with several minima of its one-sample (Moreau) objective, the lowest secondary one."""
    options = PolishOptions.current()
    instance, channel = response.risk.instance, response.problem.solver.proximal
    n, L, s = response.design.shape
    size, tokens = L * s, np.arange(L)
    V = response.leave_one_out_variances()
    # The search neglects cross terms of tokens, of order 1/sqrt(d); a Newton step below includes them.
    of_tokens = V.reshape(n, L, s, L, s)[:, tokens, :, tokens, :].transpose(1, 0, 2, 3)
    precisions = np.ascontiguousarray(np.linalg.inv(of_tokens))
    shift = np.einsum("nlab,nlb->nla", of_tokens, response.slopes.reshape(n, L, s)).reshape(n, size)
    omega = response.fields + shift
    samples, places = [], []
    for labels, indices in instance.samples_by_label_assignment:
        c = response.constants[labels]
        for i in indices:
            at = slice(i, i + 1)
            count, found = channel.all_minima(
                omega[at], precisions[i], instance.teacher_and_noise_features[at], c, options.max_minima
            )
            x = found[0, : count[0], :size]
            distances = np.sum((x - response.fields[i]) ** 2, axis=1)
            others = x[distances > options.min_distance * (1 + np.sum(x**2, axis=1))]
            samples += [i] * len(others)
            places += list(others)
    rows, x = np.array(samples, int), np.array(places).reshape(-1, size)
    # At a corner the condition of the minimum determines the subgradient.
    slopes = np.einsum("nlab,nlb->nla", precisions[rows], (omega[rows] - x).reshape(-1, L, s)).reshape(-1, size)
    curvatures, still = response.loss_hessians_of_samples(rows, x, slopes), response.slopes[rows]
    values, here = (response.losses_and_gradients_of_samples(rows, at)[0] for at in (x, response.fields[rows]))
    precision, away = np.linalg.inv(V[rows]), x - response.fields[rows]
    # (x - omega)^T V^-1 (x - omega) / 2 + loss less the same at X, where V^-1 (X - omega) = -slope.
    pulled = np.einsum("nab,nb->na", precision, away)
    above = values - here + np.einsum("na,na->n", away, pulled / 2 - still)
    gradient = pulled - still + slopes
    step = np.linalg.solve(precision + curvatures, gradient[:, :, None])[:, :, 0]
    gains = np.einsum("na,na->n", gradient, step) / 2 - above
    order = np.argsort(-gains, kind="stable")
    order = order[np.sort(np.unique(rows[order], return_index=True)[1])]
    wrong = np.sum(gains[order] > _ROUNDING * (1 + np.abs(here[order]))) / n
    return SecondaryMinima(rows[order], gains[order], x[order], slopes[order], curvatures[order], float(wrong))


def move_samples_to_secondary_minima(
    response: LinearResponse, minimum: Weights, minima: SecondaryMinima, chosen: np.ndarray
) -> Weights:
    """Return weights after the fields of chosen samples move to secondary minima of the Moreau objectives of these.

    All other samples follow by linear response.

    Args:
        response: linear response of the minimum.
        minimum: weights of the minimum.
        minima: secondary minima of single samples.
        chosen: indices into `minima` of the samples to move.
    """
    rows, there = minima.samples[chosen], minima.curvatures[chosen]
    curvatures, change = response.curvatures.copy(), np.zeros_like(response.fields)
    curvatures[rows] = there
    linear = np.einsum("nab,nb->na", there, response.fields[rows] - minima.fields[chosen])
    change[rows] = minima.slopes[chosen] + linear - response.slopes[rows]
    step = response.apply_inverse_hessian(
        response.design.apply_design_transpose(change.reshape(response.design.shape)), curvatures
    )
    return replace(minimum, W=minimum.W - step)


def polish_minimum(
    risk: Risk, minimum: TrainingResult, descend: Descend, kind: Callable[[Weights], str], restarts: int = 0
) -> TrainingResult:
    """Return the lowest minimum of the risk found by moving samples to lower secondary minima, and by restarts.

    A restart begins at the lowest minimum found, moves some samples to the lowest of their secondary minima whether
    that lowers the risk or not, and polishes the minimum that the descent then ends at.

    Args:
        risk: training loss per d on one draw of the data.
        minimum: a converged minimum.
        descend: function that minimises from given weights; a result that has not converged is discarded.
        kind: function that names the branch of weights; a restart that ends on another branch is discarded.
        restarts: number of restarts.
    """
    options, started = PolishOptions.current(), perf_counter()
    found, response, minima, descents, before = _move_samples_while_risk_falls(risk, minimum, descend)
    deeper, generator = 0, random_stream(risk.instance.seed, _STREAM)
    for _ in range(restarts if len(minima.samples) else 0):
        nearest = min(options.restart_candidates, len(minima.samples))
        chosen = np.flatnonzero(generator.random(nearest) < options.restart_fraction)
        if not len(chosen):
            chosen = generator.integers(nearest, size=1)
        trial = descend(move_samples_to_secondary_minima(response, found.weights, minima, chosen))
        descents += 1
        if trial.status != "converged":
            continue
        trial, seen, others, more, _ = _move_samples_while_risk_falls(risk, trial, descend)
        descents += more
        if _has_lower_loss(trial, found) and kind(trial.weights) == kind(found.weights):
            found, response, minima, deeper = trial, seen, others, deeper + 1
    polish = PolishRecord(
        wrong_before=before,
        wrong_after=minima.wrong,
        gained=minimum.value.training_loss - found.value.training_loss,
        descents=descents,
        deeper=deeper,
        seconds=perf_counter() - started,
        memory=_peak_memory_bytes(),
    )
    return replace(found, polish=polish)


def _move_samples_while_risk_falls(
    risk: Risk, minimum: TrainingResult, descend: Descend
) -> tuple[TrainingResult, LinearResponse, SecondaryMinima, int, float]:
    """Return the minimum reached by moving samples' fields to secondary minima while the training loss falls.

    Returns:
        The minimum, its linear response, its secondary minima, the number of minimisations, and the fraction of samples
        with a lower secondary minimum before any move.
    """
    descents, before = 0, np.nan
    while True:
        response = LinearResponse(risk, minimum)
        minima = find_secondary_minima(response)
        if not descents:
            before = minima.wrong
        remaining = np.arange(round(minima.wrong * risk.instance.sample_count))
        together, lower = len(remaining), None
        while len(remaining) and lower is None:
            trial = descend(move_samples_to_secondary_minima(response, minimum.weights, minima, remaining[:together]))
            descents += 1
            if trial.status == "converged" and _has_lower_loss(trial, minimum):
                lower = trial
            elif together == 1:
                remaining = remaining[1:]
            else:
                together = max(together // PolishOptions.current().group_divisor, 1)
        if lower is None:
            return minimum, response, minima, descents, before
        minimum = lower


def _has_lower_loss(one: TrainingResult, other: TrainingResult) -> bool:
    loss = other.value.training_loss
    return one.value.training_loss < loss - _ROUNDING * abs(loss)


def _peak_memory_bytes() -> float:
    """Return the peak memory of this process, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
