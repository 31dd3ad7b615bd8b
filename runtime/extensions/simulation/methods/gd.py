"""Gradient descent with steps of a fixed size."""

from __future__ import annotations

import numpy as np

from ..method import Descent, Trained, gradient_method
from ..risk import Risk, Weights

_STEP = 0.5  # in units of the inverse of the largest curvature at the start


def gradient_descent(risk: Risk, start: Weights, descent: Descent) -> Trained:
    """Full-batch steps of a fixed size, by default half of the inverse of the largest curvature at the start.

    The step is halved whenever the loss grows: a curvature further on may be larger. Under given norms steps end on the
    sphere.
    """
    weights = risk.placed(start)
    step = (_STEP if descent.rate is None else descent.rate) / risk.curvature(weights)
    value = risk(weights)
    for iteration in range(descent.most):
        norm = value.gradient.size
        if not descent.tolerance < norm < np.inf:
            return descent.ended(weights, value, norm, iteration)
        trial = risk.placed(start.unpack(weights.pack() - step * value.gradient.pack()))
        new = risk(trial)
        if new.training_loss <= value.training_loss + 1e-15:
            weights, value = trial, new
        else:
            step /= 2
    return descent.ended(weights, value, value.gradient.size, descent.most)


METHOD = gradient_method("gd", gradient_descent, rate="times the inverse of the largest curvature")
