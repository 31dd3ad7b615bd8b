"""Proximal gradient steps with momentum."""

from __future__ import annotations

import numpy as np

from ..method import Descent, Method, Trained
from ..risk import Risk, Weights


def proximal_gradient(risk: Risk, start: Weights, descent: Descent) -> Trained:
    """FISTA (Beck and Teboulle, SIAM J. Imaging Sci. 2 (2009) 183), begun anew whenever it moves against its momentum.

    For penalties with corners: the data term is stepped down its gradient, the penalty minimised in every row.
    """
    regulariser, d = risk.problem.regulariser, risk.instance.d
    steep = risk.curvature(start, data_only=True)

    def step(at: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        return regulariser.proximal(steep * at - gradient, steep, risk.instance.known_rows)[0]

    W = ahead = start.W
    momentum, residual = 1.0, np.inf
    iteration = 0
    while iteration < descent.most:
        iteration += 1
        data, slope = risk.data(Weights(ahead, start.phi))
        while True:
            new = step(ahead, slope.W)
            move = new - ahead
            reached = risk.data(Weights(new, start.phi))[0]
            model = data + (np.sum(slope.W * move) + steep / 2 * np.sum(move**2)) / d
            if not np.isfinite(reached) or reached <= model + 1e-14 * (1 + abs(data)):
                break
            steep *= 1.5
        residual = steep * float(np.sqrt(np.mean(move**2)))
        if not descent.tolerance < residual < np.inf:
            W = new
            break
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        if np.sum((ahead - new) * (new - W)) > 0:
            following, ahead = 1.0, new
        else:
            ahead = new + (momentum - 1) / following * (new - W)
        W, momentum = new, following
    weights = Weights(W, start.phi)
    return descent.ended(weights, risk(weights), residual, iteration)


METHOD = Method("fista", proximal_gradient, penalty_corners=True, q_in_loss=True)
