"""Adam with all samples in every step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....base.options import AlgorithmOptions
from ..method import DescentSettings, TrainingResult, gradient_method
from ..risk import Risk, Weights


@dataclass(frozen=True)
class AdamOptions(AlgorithmOptions):
    """Options of full-batch Adam.

    Attributes:
        learning_rate: default learning rate; a larger one is faster at first, but may oscillate.
        first_decay: decay factor of the average of gradients (Kingma and Ba, ICLR 2015).
        second_decay: decay factor of the average of their squares.
    """

    learning_rate: float = 0.02
    first_decay: float = 0.9
    second_decay: float = 0.999


def adam(risk: Risk, start: Weights, descent: DescentSettings) -> TrainingResult:
    """Minimise the risk by full-batch Adam, with a learning rate that decays with the gradient.

    If the norms of the columns of W are given, every step ends with a projection to these norms.

    Args:
        risk: training loss per d on one draw of the data.
        start: initial weights.
        descent: tolerance, largest number of iterations, and rate (0.02 by default).
    """
    options = AdamOptions.current()
    rate = options.learning_rate if descent.rate is None else descent.rate
    keep, square = options.first_decay, options.second_decay
    weights = risk.project_on_constraints(start)
    value = risk(weights)
    first = second = np.zeros(weights.to_vector().size)
    largest = 0.0
    for iteration in range(1, descent.most + 1):
        norm = value.gradient.typical_entry_size
        if not descent.tolerance < norm < np.inf:
            return descent.make_training_result(weights, value, norm, iteration - 1)
        largest = max(largest, norm)
        gradient = value.gradient.to_vector()
        first = first + (1 - keep) * (gradient - first)
        second = second + (1 - square) * (gradient**2 - second)
        # A fixed rate never converges: its steps keep their size for any gradient.
        size = rate * min(1.0, (norm / largest) ** 0.5 * 10)
        step = size * (first / (1 - keep**iteration)) / (np.sqrt(second / (1 - square**iteration)) + 1e-8)
        weights = risk.project_on_constraints(start.from_vector(weights.to_vector() - step))
        value = risk(weights)
    return descent.make_training_result(weights, value, value.gradient.typical_entry_size, descent.most)


METHOD = gradient_method("adam", adam, rate=f"by default {AdamOptions.learning_rate:g}")
