"""Gradient descent with steps of a fixed size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....base.options import AlgorithmOptions
from ..method import DescentSettings, TrainingResult, gradient_method
from ..risk import Risk, Weights


@dataclass(frozen=True)
class GradientDescentOptions(AlgorithmOptions):
    """Options of gradient descent.

    Attributes:
        step_size: default step, in units of the inverse of the largest curvature at the start; 2 is unstable there.
    """

    step_size: float = 0.5


def gradient_descent(risk: Risk, start: Weights, descent: DescentSettings) -> TrainingResult:
    """Minimise the risk by full-batch gradient steps of a fixed size.

    The step is halved whenever the loss grows, as the curvature may increase. If the norms of the columns of W are
    given, every step ends with a projection to these norms.

    Args:
        risk: training loss per d on one draw of the data.
        start: initial weights.
        descent: tolerance, largest number of iterations, and step in units of the inverse largest curvature.
    """
    weights = risk.project_on_constraints(start)
    step = (
        GradientDescentOptions.current().step_size if descent.rate is None else descent.rate
    ) / risk.largest_curvature(weights)
    value = risk(weights)
    for iteration in range(descent.most):
        norm = value.gradient.typical_entry_size
        if not descent.tolerance < norm < np.inf:
            return descent.make_training_result(weights, value, norm, iteration)
        trial = risk.project_on_constraints(start.from_vector(weights.to_vector() - step * value.gradient.to_vector()))
        new = risk(trial)
        if new.training_loss <= value.training_loss + 1e-15:
            weights, value = trial, new
        else:
            step /= 2
    return descent.make_training_result(weights, value, value.gradient.typical_entry_size, descent.most)


METHOD = gradient_method("gd", gradient_descent, rate="times the inverse of the largest curvature")
