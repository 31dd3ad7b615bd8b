"""Samples in the wrong well: a descent ends at minima of the risk that lie above others one sample away.

Without its own sample the fields X of a sample would be omega = X - V g, with the V of `response` and g minus the slope
of the loss. X is a stationary point of the Moreau objective at this omega (docs/theory.md (4.3)); in the state that
theory describes it is the lowest one. Where another lies lower by e, the risk with this sample there, all others
answering, is lower by e / d to leading order. `polished` moves such samples and descends again until none of them
lowers the risk.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from .instance import stream
from .method import Polish, Trained
from .response import Response
from .risk import Risk, Weights

_MOST = 8  # minima of a sample that are looked at
_APART = 1e-8  # squared distance of minima, relative to their size, above which they are two
_ROUNDING = 1e-10  # of a loss
_FEWER = 4  # by which samples moved together are divided where they do not lower the risk
_NEAREST, _SHARE, _STREAM = 8, 0.5, 13  # other wells among which a restart chooses, and how many of them it takes

Descend = Callable[[Weights], Trained]


@dataclass(frozen=True)
class Wells:
    """For every sample with other minima of its Moreau objective the lowest of those, the most favourable sample first.

    Attributes:
        samples: which, (k,).
        gains: by how much the objective is lower there than where the sample is; negative where it is higher, (k,).
        fields, slopes, curvatures: of the loss there, (k, L s), (k, L s), (k, L s, L s).
        wrong: share of all samples whose gain is positive.
    """

    samples: np.ndarray
    gains: np.ndarray
    fields: np.ndarray
    slopes: np.ndarray
    curvatures: np.ndarray
    wrong: float


def wells_of(response: Response) -> Wells:
    """Look for all minima of every sample's objective."""
    instance, channel = response.risk.instance, response.problem.solver.proximal
    n, L, s = response.design.shape
    size, tokens = L * s, np.arange(L)
    V = response.variances()
    # The search knows no cross terms of tokens, which are of order 1/sqrt(d); they count below, by a Newton step.
    of_tokens = V.reshape(n, L, s, L, s)[:, tokens, :, tokens, :].transpose(1, 0, 2, 3)
    precisions = np.ascontiguousarray(np.linalg.inv(of_tokens))
    shift = np.einsum("nlab,nlb->nla", of_tokens, response.slopes.reshape(n, L, s)).reshape(n, size)
    omega = response.fields + shift
    samples, places = [], []
    for labels, own in instance.groups:
        c = response.constants[labels]
        for i in own:
            at = slice(i, i + 1)
            count, found = channel.all_minima(omega[at], precisions[i], instance.known[at], c, _MOST)
            x = found[0, : count[0], :size]
            others = x[np.sum((x - response.fields[i]) ** 2, axis=1) > _APART * (1 + np.sum(x**2, axis=1))]
            samples += [i] * len(others)
            places += list(others)
    rows, x = np.array(samples, int), np.array(places).reshape(-1, size)
    # At a corner the minimum itself tells which slope it is one of.
    slopes = np.einsum("nlab,nlb->nla", precisions[rows], (omega[rows] - x).reshape(-1, L, s)).reshape(-1, size)
    curvatures, still = response.curvatures_at(rows, x, slopes), response.slopes[rows]
    values, here = (response.losses_at(rows, at)[0] for at in (x, response.fields[rows]))
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
    return Wells(rows[order], gains[order], x[order], slopes[order], curvatures[order], float(wrong))


def moved(response: Response, minimum: Weights, wells: Wells, chosen: np.ndarray) -> Weights:
    """Weights with chosen samples (places in `wells`) in their other wells, all others answering linearly."""
    rows, there = wells.samples[chosen], wells.curvatures[chosen]
    curvatures, change = response.curvatures.copy(), np.zeros_like(response.fields)
    curvatures[rows] = there
    back = np.einsum("nab,nb->na", there, response.fields[rows] - wells.fields[chosen])
    change[rows] = wells.slopes[chosen] + back - response.slopes[rows]
    step = response.solve(response.design.back(change.reshape(response.design.shape)), curvatures)
    return replace(minimum, W=minimum.W - step)


def polished(
    risk: Risk, minimum: Trained, descend: Descend, kind: Callable[[Weights], str], restarts: int = 0
) -> Trained:
    """The minimum that moving samples out of wrong wells leads to, and the lowest of `restarts` more.

    A restart moves some samples whose other wells are nearly as low, whether wrong or not, from the lowest minimum so
    far, and polishes what it descends to.

    Args:
        descend: ends at a minimum; one that has not converged is left aside.
        kind: of state. A restart that ends in another is left aside, too.
    """
    begun = perf_counter()
    found, response, wells, descents, before = _without_wrong_wells(risk, minimum, descend)
    deeper, generator = 0, stream(risk.instance.seed, _STREAM)
    for _ in range(restarts if len(wells.samples) else 0):
        nearest = min(_NEAREST, len(wells.samples))
        chosen = np.flatnonzero(generator.random(nearest) < _SHARE)
        if not len(chosen):
            chosen = generator.integers(nearest, size=1)
        trial = descend(moved(response, found.weights, wells, chosen))
        descents += 1
        if trial.status != "converged":
            continue
        trial, seen, others, more, _ = _without_wrong_wells(risk, trial, descend)
        descents += more
        if _is_lower(trial, found) and kind(trial.weights) == kind(found.weights):
            found, response, wells, deeper = trial, seen, others, deeper + 1
    polish = Polish(
        wrong_before=before,
        wrong_after=wells.wrong,
        gained=minimum.value.training_loss - found.value.training_loss,
        descents=descents,
        deeper=deeper,
        seconds=perf_counter() - begun,
        memory=_most_memory(),
    )
    return replace(found, polish=polish)


def _without_wrong_wells(risk: Risk, minimum: Trained, descend: Descend) -> tuple[Trained, Response, Wells, int, float]:
    """The minimum, its response and wells, how many descents, and the share of wrong wells to begin with."""
    descents, before = 0, np.nan
    while True:
        response = Response(risk, minimum)
        wells = wells_of(response)
        if not descents:
            before = wells.wrong
        left = np.arange(round(wells.wrong * risk.instance.n))
        together, lower = len(left), None
        while len(left) and lower is None:
            trial = descend(moved(response, minimum.weights, wells, left[:together]))
            descents += 1
            if trial.status == "converged" and _is_lower(trial, minimum):
                lower = trial
            elif together == 1:
                left = left[1:]
            else:
                together = max(together // _FEWER, 1)
        if lower is None:
            return minimum, response, wells, descents, before
        minimum = lower


def _is_lower(one: Trained, other: Trained) -> bool:
    loss = other.value.training_loss
    return one.value.training_loss < loss - _ROUNDING * abs(loss)


def _most_memory() -> float:
    """Bytes held at the most by this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
