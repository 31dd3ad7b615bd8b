"""Linear state evolution at q = 0: what samples teach a learner that knows nothing (docs/theory.md (13.9), (13.10))."""

from __future__ import annotations

import numpy as np

from .state import State


def growth(state: State) -> tuple[float, np.ndarray]:
    """Factor by which the leading small overlap grows in a step at alpha = 1, and that overlap, (C, t, t).

    dq^_c = E_c[sum_l' R_l G_ll' R_l' dq_l' R_l' G_ll'^T R_l], R = rho*^{-1}, G_ll' = Cov(Y_l, Y_l' | observed)
    - delta_ll' rho*_l, and dq_c = E[gamma_c S (sum gamma q^) S] with S the variance of a row: a positive map, iterated
    from rho* until its direction rests.
    """
    contexts = state.problem.contexts
    tables = [(labels, p, *_responses(state, labels)) for labels, p in state.problem.label_choices]

    def image(q: np.ndarray) -> np.ndarray:
        hats = np.zeros_like(q)
        for labels, probability, weights, response in tables:
            own = state.problem.context_of(labels)
            squares = np.einsum("n,nlaib,ibd,nlcid->lac", weights, response, q[own], response, optimize=True)
            np.add.at(hats, own, probability * squares)
        return state.prior.slope_at_zero(hats)

    size = contexts * state.rho.shape[1] ** 2
    matrix = np.stack([image(unit).ravel() for unit in np.eye(size).reshape(size, *state.rho.shape)], axis=1)
    factor = float(np.max(np.abs(np.linalg.eigvals(matrix))))
    direction = state.rho.ravel() / np.linalg.norm(state.rho)
    if factor > 0:
        for _ in range(200):
            direction = (matrix @ direction) / factor + 1e-3 * direction
            direction /= np.linalg.norm(direction)
    return factor, direction.reshape(state.rho.shape)


def _responses(state: State, labels: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Probability of every node of the observed, (N,), and dg_l/domega_l' there, (N, L, t, L, t)."""
    contexts = state.problem.context_of(labels)
    fields, _, _, law, _ = state.channel.table(labels)
    top = law.max(axis=1, keepdims=True)
    weights = np.exp(law - top)
    total = weights.sum(axis=1)
    step = fields - (np.einsum("nh,nhd->nd", weights, fields) / total[:, None])[:, None]
    covariance = np.einsum("nh,nhd,nhe->nde", weights, step, step, optimize=True) / total[:, None, None]
    tokens, t = len(contexts), state.rho.shape[1]
    covariance = covariance.reshape(-1, tokens, t, tokens, t)
    for l in range(tokens):
        covariance[:, l, :, l, :] -= state.rho[contexts[l]]
    inverse = np.linalg.inv(state.rho[contexts])
    response = np.einsum("lab,nlbic,icd->nlaid", inverse, covariance, inverse, optimize=True)
    return total * np.exp(top[:, 0]), response
