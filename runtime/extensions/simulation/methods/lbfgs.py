"""Limited-memory quasi-Newton steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....base.options import AlgorithmOptions
from ..method import DescentSettings, TrainingResult, gradient_method
from ..risk import Risk, Weights


@dataclass(frozen=True)
class LbfgsOptions(AlgorithmOptions):
    """Options of L-BFGS.

    Attributes:
        history_size: pairs of steps and gradient changes; more are a better Hessian and more memory.
        max_runs: runs, each of which starts where the line search of the last one failed.
    """

    history_size: int = 20
    max_runs: int = 4


def lbfgs(risk: Risk, start: Weights, descent: DescentSettings) -> TrainingResult:
    """Minimise the risk by SciPy's L-BFGS-B without bounds, restarted if its line search fails.

    Under given norms it varies columns of any length; each of its runs begins and ends on the sphere.

    Args:
        risk: the risk.
        start: initial weights.
        descent: tolerance and largest number of iterations.
    """
    options = LbfgsOptions.current()
    from scipy.optimize import minimize

    d, unit = risk.instance.d, np.sqrt(risk.instance.d)  # of phi, which gives it the curvature of a weight

    def scaled_risk(x: np.ndarray) -> tuple[float, np.ndarray]:
        value = risk(start.unpack(x, unit))
        return d * value.training_loss, value.gradient.pack(unit)

    weights, iterations = risk.project(start), 0
    for _ in range(options.max_runs):
        result = minimize(
            scaled_risk,
            weights.pack(unit),
            jac=True,
            method="L-BFGS-B",
            options={
                "maxcor": options.history_size,
                "maxiter": descent.most - iterations,
                "maxfun": 4 * descent.most,
                "maxls": 40,
                "ftol": 0.0,
                "gtol": 0.1 * descent.tolerance,
            },
        )
        weights, iterations = risk.project(start.unpack(result.x, unit)), iterations + int(result.nit)
        value = risk(weights)
        if value.gradient.size <= descent.tolerance or iterations >= descent.most:
            break
    return descent.make_result(weights, value, value.gradient.size, iterations)


METHOD = gradient_method("lbfgs", lbfgs)
