"""Ways down the risk: L-BFGS, gradient descent, Adam, and for corners of penalty or loss their proximal maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..errors import InputError
from ..problems.problem import Problem
from .augmented import augmented_lagrangian, multipliers_of
from .risk import Risk, Value, Weights

_MEMORY = 20  # pairs kept by L-BFGS
_POWER_STEPS = 12
_FADING = 0.9, 0.999  # Adam's, Kingma and Ba, ICLR 2015


@dataclass(frozen=True)
class Minimum:
    """Where a descent ended.

    Attributes:
        gradient: root mean square over the weights of the gradient of the risk, whose entries are of order one away
            from a minimum; of `fista`, of the proximal residual, and of `newton`, the larger of its two.
        slopes: of the loss at every sample, (n, L, s), at a corner one of many; None where weights tell them.
        status: converged, max_iterations, not_finite, or stalled: rounding of the loss hides any further descent
            (L-BFGS compares losses, which say nothing of gradients below about 1e-7).
    """

    weights: Weights
    value: Value
    gradient: float
    iterations: int
    status: str
    slopes: np.ndarray | None = None


@dataclass(frozen=True)
class Descent:
    """How a minimiser runs.

    Attributes:
        tolerance: of the gradient norm, see `Minimum`; most: iterations.
        rate: step of gd in units of the inverse of the largest curvature, of adam in those of the weights.
    """

    tolerance: float = 1e-6
    most: int = 20000
    rate: float | None = None


def gradient_norm(gradient: Weights) -> float:
    """Root mean square over W, or the largest derivative in phi where that is more."""
    return gradient.size


def lbfgs(risk: Risk, start: Weights, descent: Descent) -> Minimum:
    """SciPy's L-BFGS-B without bounds, begun again where its line search gives up.

    Under given norms over columns of any length; each of its runs begins, and what is found lies, on the sphere.
    """
    from scipy.optimize import minimize

    _smooth_penalty(risk.problem, "lbfgs")
    d, shape = risk.instance.d, start.W.shape
    unit = np.sqrt(d)  # phi is measured so that its curvature is like that of a weight

    def unpacked(x: np.ndarray) -> Weights:
        return Weights(x[: start.W.size].reshape(shape), x[start.W.size :] / unit)

    def function(x: np.ndarray) -> tuple[float, np.ndarray]:
        value = risk(unpacked(x))
        gradient = np.concatenate([value.gradient.W.ravel(), value.gradient.phi * unit])
        return d * value.training_loss, gradient

    def packed(weights: Weights) -> np.ndarray:
        return np.concatenate([weights.W.ravel(), weights.phi * unit])

    x, iterations = packed(risk.placed(start)), 0
    for _ in range(4):
        result = minimize(
            function,
            x,
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
        x, iterations = packed(risk.placed(unpacked(result.x))), iterations + int(result.nit)
        value = risk(unpacked(x))
        if gradient_norm(value.gradient) <= descent.tolerance or iterations >= descent.most:
            break
    return _ended(unpacked(x), value, gradient_norm(value.gradient), iterations, descent)


def gradient_descent(risk: Risk, start: Weights, descent: Descent) -> Minimum:
    """Full-batch steps of a fixed size, by default half of the inverse of the largest curvature at the start.

    The step is halved whenever the loss grows: a curvature further on may be larger. Under given norms steps end on the
    sphere.
    """
    _smooth_penalty(risk.problem, "gd")
    start = risk.placed(start)
    step = (0.5 if descent.rate is None else descent.rate) / curvature(risk, start)
    weights, value = start, risk(start)
    for iteration in range(1, descent.most + 1):
        norm = gradient_norm(value.gradient)
        if not np.isfinite(norm) or norm <= descent.tolerance:
            return _ended(weights, value, norm, iteration - 1, descent)
        trial = Weights(weights.W - step * value.gradient.W, weights.phi - step * value.gradient.phi)
        trial = risk.placed(trial)
        new = risk(trial)
        if new.training_loss <= value.training_loss + 1e-15:
            weights, value = trial, new
        else:
            step /= 2
    return _ended(weights, value, gradient_norm(value.gradient), descent.most, descent)


def adam(risk: Risk, start: Weights, descent: Descent) -> Minimum:
    """Full-batch Adam (Kingma and Ba, ICLR 2015), its rate by default 0.02, decaying as the gradient does.

    Under given norms steps end on the sphere.
    """
    _smooth_penalty(risk.problem, "adam")
    rate = 0.02 if descent.rate is None else descent.rate
    keep, square = _FADING
    at = risk.placed(start)
    x = np.concatenate([at.W.ravel(), at.phi])
    first, second = np.zeros_like(x), np.zeros_like(x)
    begun = None

    def unpacked(x: np.ndarray) -> Weights:
        return Weights(x[: start.W.size].reshape(start.W.shape), x[start.W.size :])

    for iteration in range(1, descent.most + 1):
        at = risk.placed(unpacked(x))
        x, value = np.concatenate([at.W.ravel(), at.phi]), risk(at)
        norm = gradient_norm(value.gradient)
        begun = norm if begun is None else max(begun, norm)
        if not np.isfinite(norm) or norm <= descent.tolerance:
            return _ended(at, value, norm, iteration - 1, descent)
        gradient = np.concatenate([value.gradient.W.ravel(), value.gradient.phi])
        first += (1 - keep) * (gradient - first)
        second += (1 - square) * (gradient**2 - second)
        # A fixed rate never comes to rest: its steps keep a size whatever the gradient.
        size = rate * min(1.0, (norm / begun) ** 0.5 * 10)
        x = x - size * (first / (1 - keep**iteration)) / (np.sqrt(second / (1 - square**iteration)) + 1e-8)
    at = risk.placed(unpacked(x))
    value = risk(at)
    return _ended(at, value, gradient_norm(value.gradient), descent.most, descent)


def proximal_gradient(risk: Risk, start: Weights, descent: Descent) -> Minimum:
    """FISTA (Beck and Teboulle, SIAM J. Imaging Sci. 2 (2009) 183), begun anew whenever it moves against its momentum.

    For penalties with corners: the data term is stepped down its gradient, the penalty minimised in every row.
    """
    problem, d = risk.problem, risk.instance.d
    if len(start.phi):
        raise InputError("fista: numbers trained with the weights are supported by lbfgs, gd and adam only")
    steep = curvature(risk, start, data_only=True)
    count = 0 if problem.has_ridge else problem.solver.prior.KNOWN
    known = np.ascontiguousarray(risk.instance.coordinates.pi[:, :count])
    eye = np.eye(problem.student_rank)

    def step(at: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        field = np.ascontiguousarray(steep * at - gradient)
        if problem.has_ridge:
            return field / (steep + problem.strengths)
        matrices = np.broadcast_to(steep * eye, (d, *eye.shape)).copy()
        return problem.solver.prior.minimisers_at(field, matrices, known, problem.strengths)[0]

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
        if not np.isfinite(residual) or residual <= descent.tolerance:
            W = new
            break
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        if np.sum((ahead - new) * (new - W)) > 0:
            following, ahead = 1.0, new
        else:
            ahead = new + (momentum - 1) / following * (new - W)
        W, momentum = new, following
    weights = Weights(W, start.phi)
    return _ended(weights, risk(weights), residual, iteration, descent)


def newton(risk: Risk, start: Weights, descent: Descent) -> Minimum:
    """Newton's method with the proximal maps of loss and penalty (`augmented_lagrangian`), for losses with corners."""
    weights, slopes, residual, iterations = augmented_lagrangian(risk, start, descent.tolerance, descent.most)
    value = risk(weights)
    if risk.problem.has_sphere:
        value = replace(value, multipliers=multipliers_of(risk.instance, weights.W, slopes))
    return replace(_ended(weights, value, residual, iterations, descent), slopes=slopes)


def curvature(risk: Risk, at: Weights, data_only: bool = False) -> float:
    """Largest curvature of the risk near some weights, by power iteration on differences of its gradient."""
    generator = np.random.default_rng(3)
    direction = generator.standard_normal(at.W.shape)
    scale = max(at.size, 0.1)

    def gradient(W: np.ndarray) -> np.ndarray:
        weights = Weights(W, at.phi)
        return risk.data(weights)[1].W if data_only else risk(weights).gradient.W

    found = 1.0
    for _ in range(_POWER_STEPS):
        direction *= 1e-4 * scale * np.sqrt(direction.size) / np.linalg.norm(direction)
        image = (gradient(at.W + direction) - gradient(at.W - direction)) / 2
        found = float(np.linalg.norm(image) / np.linalg.norm(direction))
        direction = image
    return max(found, 1e-6)


def _smooth_penalty(problem: Problem, method: str) -> None:
    if not problem.has_ridge and problem.solver.prior.CORNERS:
        raise InputError(f"the penalty of {problem.solver.name} has corners, which {method} does not handle; use fista")


def _ended(weights: Weights, value: Value, norm: float, iterations: int, descent: Descent) -> Minimum:
    finite = np.isfinite(norm) and np.isfinite(weights.W).all()
    if norm <= descent.tolerance and finite:
        status = "converged"
    elif not finite:
        status = "not_finite"
    else:
        status = "max_iterations" if iterations >= descent.most else "stalled"
    return Minimum(weights, value, norm, iterations, status)


METHODS: dict[str, Callable[[Risk, Weights, Descent], Minimum]] = {
    "lbfgs": lbfgs,
    "gd": gradient_descent,
    "adam": adam,
    "fista": proximal_gradient,
    "newton": newton,
}
