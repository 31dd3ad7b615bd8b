"""Whether the teacher is recovered perfectly, and the free entropy of that.

Close to q = rho* a step of state evolution multiplies what is unknown by (unknown continuous numbers a row) / (alpha
times the continuous numbers seen in a sample without noise), the ratio of two MMSE dimensions (Y. Wu, S. Verdu, IEEE
Trans. Inf. Theory 57 (2011) 4857): perfect recovery is stable below one. Where both numbers are zero it is a solution
only if the information of samples on small changes of the fields is unbounded, as at the edge of a sign.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from .probes import channel_at, random_coordinates
from .state import State

_STEP = 1e-5  # of a coordinate, in differences
CLOSE, _CLOSE_IF_DEAR = 1e-6, 1e-2  # share of the teacher that is unknown where that limit is looked at
_FARTHER = 16.0  # and how much more elsewhere; between both E g g^T grows by 4 at the edge of a sign, without one not
_GROWS = 2.0


def observed_dimension(state: State) -> float:
    """Return how many continuous numbers a sample shows without noise of the columns that are learned, nothing being
    known of the others; their mean, where there are more at some observed labels than at others.

    Coordinates that the fields are not made of are noisy: what is observed has a density given the fields.
    """
    channel = state.channel
    (labels, _), *_ = state.problem.label_choices
    places = [i for i, c in enumerate(channel.observed) if not c.continuous]
    choices = product(*(channel.observed[i].values for i in places))
    found = {choice: _dimension_at(state, labels, places, choice) for choice in choices}
    if len(set(found.values())) == 1:
        return float(next(iter(found.values())))
    probabilities = channel.probabilities_of_observed_choices(labels)
    return sum(probability * found[choice] for choice, probability in probabilities.items())


def _dimension_at(state: State, labels: tuple[int, ...], places: list[int], choice: tuple[float, ...]) -> int:
    """Return `observed_dimension` at values of the discrete observed coordinates, which have these places."""
    channel = state.channel
    random = np.random.default_rng(0)
    at = [random_coordinates(group, random)[:1] for group in (channel.module.OBSERVED, channel.module.HIDDEN)]
    at[0][:, places] = choice
    slopes, seen = [], []
    for group, coordinates in enumerate((channel.observed, channel.hidden)):
        for place in (i for i, c in enumerate(coordinates) if c.continuous):
            ends = []
            for step in (_STEP, -_STEP):
                moved = [values.copy() for values in at]
                moved[group][0, place] += step
                ends.append(channel_at(state.problem, labels, *moved)[0][0, 0])
            if (slope := (ends[0] - ends[1]) / (2 * _STEP)).any():
                slopes.append(slope)
                seen.append(group == 0)
    of_fields = np.linalg.inv(np.array(slopes).T)[seen]
    t = state.problem.teacher_rank
    others = [field for field in range(of_fields.shape[1]) if field % t not in state.columns]
    return len(of_fields) - int(np.linalg.matrix_rank(of_fields[:, others], tol=1e-6) if others else 0)


def is_recovered(state: State) -> bool:
    """Return whether perfect recovery is a stable solution of state evolution at the problem's alpha."""
    unknown, known = state.prior.continuous_dimension, observed_dimension(state)
    if unknown or known:
        return bool(state.problem.alpha * known > unknown)
    return is_information_unbounded(state)


def almost_everything(state: State, farther: float = 1.0) -> np.ndarray:
    """Return overlaps that leave a small fraction of the teacher unknown, (C, t, t)."""
    return (1 - farther * (_CLOSE_IF_DEAR if state.channel.dear else CLOSE)) * state.everything


def is_information_unbounded(state: State) -> bool:
    """Return whether E g g^T of the columns that are learned grows without bound towards q = rho*."""
    sizes, counts = [], state.channel.counts
    for farther in (_FARTHER, 1.0):
        averages, _ = state.channel.settle(almost_everything(state, farther), 1e-2)
        sizes.append(float(np.linalg.norm(state.pack(averages.outer))))
    state.channel.counts = counts
    return sizes[1] > _GROWS * sizes[0]


def free_entropy_of_recovery(state: State) -> float:
    """Return Phi at q = rho*: -H(row) + alpha E log P(observed | Y) of rows that take few values, else plus or minus
    infinity, by the count of continuous numbers; NaN where columns are held at nothing."""
    if len(state.columns) < state.problem.teacher_rank:
        return float("nan")
    unknown, known = state.prior.continuous_dimension, observed_dimension(state)
    if unknown or known:
        return float(np.inf if state.problem.alpha * known > unknown else -np.inf)
    return state.problem.alpha * exact_log_evidence(state) - state.prior.entropy


def exact_log_evidence(state: State) -> float:
    """Return E log P(observed | Y): zero for labels without noise."""
    total = 0.0
    for labels, probability in state.problem.label_choices:
        *_, law, likelihood, _ = state.channel.table(labels)
        weights = np.exp(law)
        total += probability * float(np.sum(weights * np.where(weights > 0, likelihood, 0.0)))
    return total
