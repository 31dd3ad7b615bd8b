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
        history_size: stored pairs of steps and gradient changes; more give a better Hessian and take more memory.
        max_runs: largest number of runs, each of which starts where the line search of the run before failed.
    """

    history_size: int = 20
    max_runs: int = 4


def lbfgs(risk: Risk, start: Weights, descent: DescentSettings) -> TrainingResult:
    """Minimise the risk by SciPy's L-BFGS-B without bounds, restarted if its line search fails.

    If the norms of the columns of W are given, columns of any length are varied; each run begins and ends with
    columns of these norms.

    Args:
        risk: training loss per d on one draw of the data.
        start: initial weights.
        descent: tolerance and largest number of iterations.
    """
    options = LbfgsOptions.current()
    from scipy.optimize import minimize

    d, unit = risk.instance.d, np.sqrt(risk.instance.d)  # of phi, which gives it the curvature of a weight

    def scaled_risk(x: np.ndarray) -> tuple[float, np.ndarray]:
        value = risk(start.from_vector(x, unit))
        return d * value.training_loss, value.gradient.to_vector(unit)

    weights, iterations = risk.project_on_constraints(start), 0
    for _ in range(options.max_runs):
        result = minimize(
            scaled_risk,
            weights.to_vector(unit),
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
        weights = risk.project_on_constraints(start.from_vector(result.x, unit))
        iterations += int(result.nit)
        value = risk(weights)
        if value.gradient.typical_entry_size <= descent.tolerance or iterations >= descent.most:
            break
    return descent.make_training_result(weights, value, value.gradient.typical_entry_size, iterations)


METHOD = gradient_method("lbfgs", lbfgs)
