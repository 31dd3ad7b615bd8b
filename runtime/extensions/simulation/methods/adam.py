"""Adam with all samples in every step."""

from __future__ import annotations

import numpy as np

from ..method import Descent, Trained, gradient_method
from ..risk import Risk, Weights

_RATE = 0.02
_FADING = 0.9, 0.999  # weights on older gradients and their squares (Kingma and Ba, ICLR 2015)


def adam(risk: Risk, start: Weights, descent: Descent) -> Trained:
    """Full-batch Adam (Kingma and Ba, ICLR 2015), its rate by default 0.02, decaying as the gradient does.

    Under given norms steps end on the sphere.
    """
    rate = _RATE if descent.rate is None else descent.rate
    keep, square = _FADING
    weights = risk.placed(start)
    value = risk(weights)
    first = second = np.zeros(weights.pack().size)
    largest = 0.0
    for iteration in range(1, descent.most + 1):
        norm = value.gradient.size
        if not descent.tolerance < norm < np.inf:
            return descent.ended(weights, value, norm, iteration - 1)
        largest = max(largest, norm)
        gradient = value.gradient.pack()
        first = first + (1 - keep) * (gradient - first)
        second = second + (1 - square) * (gradient**2 - second)
        # A fixed rate never comes to rest: its steps keep a size whatever the gradient.
        size = rate * min(1.0, (norm / largest) ** 0.5 * 10)
        step = size * (first / (1 - keep**iteration)) / (np.sqrt(second / (1 - square**iteration)) + 1e-8)
        weights = risk.placed(start.unpack(weights.pack() - step))
        value = risk(weights)
    return descent.ended(weights, value, value.gradient.size, descent.most)


METHOD = gradient_method("adam", adam, rate=f"by default {_RATE:g}")
