"""Proximal gradient steps with momentum."""

from __future__ import annotations

import numpy as np

from ..method import DescentSettings, TrainingMethod, TrainingResult
from ..risk import Risk, Weights


def proximal_gradient(risk: Risk, start: Weights, descent: DescentSettings) -> TrainingResult:
    """Minimise the risk by accelerated proximal gradient steps (FISTA), with restarts of the momentum.

    It takes gradient steps for the data term and proximal steps for the penalty, which may have kinks (Beck and
    Teboulle, SIAM J. Imaging Sci. 2 (2009) 183).

    Args:
        risk: training loss per d on one draw of the data.
        start: initial weights.
        descent: tolerance of the proximal residual, and largest number of iterations.
    """
    regulariser, d = risk.problem.regulariser, risk.instance.d
    curvature = risk.largest_curvature(start, data_only=True)

    def _proximal_step(at: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        return regulariser.proximal_map(curvature * at - gradient, curvature, risk.instance.teacher_in_penalty)[0]

    W = extrapolated = start.W
    momentum, residual = 1.0, np.inf
    iteration = 0
    while iteration < descent.most:
        iteration += 1
        data, slope = risk.data_term_and_gradient(Weights(extrapolated, start.phi))
        while True:
            new = _proximal_step(extrapolated, slope.W)
            change = new - extrapolated
            new_data = risk.data_term_and_gradient(Weights(new, start.phi))[0]
            model = data + (np.sum(slope.W * change) + curvature / 2 * np.sum(change**2)) / d
            if not np.isfinite(new_data) or new_data <= model + 1e-14 * (1 + abs(data)):
                break
            curvature *= 1.5
        residual = curvature * float(np.sqrt(np.mean(change**2)))
        if not descent.tolerance < residual < np.inf:
            W = new
            break
        next_momentum = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        if np.sum((extrapolated - new) * (new - W)) > 0:
            next_momentum, extrapolated = 1.0, new
        else:
            extrapolated = new + (momentum - 1) / next_momentum * (new - W)
        W, momentum = new, next_momentum
    weights = Weights(W, start.phi)
    return descent.make_training_result(weights, risk(weights), residual, iteration)


METHOD = TrainingMethod("fista", proximal_gradient, penalty_corners=True, q_in_loss=True)
