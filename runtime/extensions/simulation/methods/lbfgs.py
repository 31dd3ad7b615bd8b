"""Limited-memory quasi-Newton steps."""

from __future__ import annotations

import numpy as np

from ..method import Descent, Trained, gradient_method
from ..risk import Risk, Weights

_MEMORY = 20  # pairs of steps and gradients kept
_RUNS = 4


def lbfgs(risk: Risk, start: Weights, descent: Descent) -> Trained:
    """SciPy's L-BFGS-B without bounds, begun again where its line search gives up.

    Under given norms over columns of any length; each of its runs begins, and what is found lies, on the sphere.
    """
    from scipy.optimize import minimize

    d, unit = risk.instance.d, np.sqrt(risk.instance.d)  # of phi: its curvature is like that of a weight then

    def function(x: np.ndarray) -> tuple[float, np.ndarray]:
        value = risk(start.unpack(x, unit))
        return d * value.training_loss, value.gradient.pack(unit)

    weights, iterations = risk.placed(start), 0
    for _ in range(_RUNS):
        result = minimize(
            function,
            weights.pack(unit),
            jac=True,
            method="L-BFGS-B",
            options={
                "maxcor": _MEMORY,
                "maxiter": descent.most - iterations,
                "maxfun": 4 * descent.most,
                "maxls": 40,
                "ftol": 0.0,
                "gtol": 0.1 * descent.tolerance,
            },
        )
        weights, iterations = risk.placed(start.unpack(result.x, unit)), iterations + int(result.nit)
        value = risk(weights)
        if value.gradient.size <= descent.tolerance or iterations >= descent.most:
            break
    return descent.ended(weights, value, value.gradient.size, iterations)


METHOD = gradient_method("lbfgs", lbfgs)
