"""Losses with corners, and penalties: Newton's method on augmented Lagrangians.

With a row a_{mu,l} = z_{mu,l} / sqrt(d) + tau_c / d for every token, X = A W, a copy x of the fields in the loss and a
multiplier p of x = A W,

    W = argmin tr W^T Lambda W / 2 + sum_mu min_x [loss(x) + |x - omega|^2 / (2 v)],   omega = A W + v p
    p <- (omega - x) / v = -g

p is a subgradient of the loss at x. The function minimised over W has gradient Lambda W - A^T g and Hessian
Lambda - A^T G A with g and G = dg/domega of the generated proximal map, which is exact at corners. v is lowered from
one p to the next as fast as few Newton steps follow; once the samples at corners stay the same, each takes one (Li,
Sun, Toh, SIAM J. Optim. 28 (2018) 433).

For a convex loss the minimum is found from any start. Where the loss has negative curvature at minimisers x, G has
eigenvalues above 0 and multipliers need not converge while v is large: p then stays zero, the loss is replaced by its
Moreau envelope, and v is lowered until the curvature of this is hardly more negative than that of the loss. The result
is a local minimum.

Any other convex penalty is replaced by its envelope as the loss is: a copy u of W in it has a multiplier y,

    W = argmin sum_i min_u [r(u) + k^2 |u - w_i - (v / k^2) y_i|^2 / (2 v)] + rho |W - W_k|^2 / 2 + the same of the loss
    y <- y + (k^2 / v) (W - u)

with the generated minimisers of r, and the last W as W_k (proximal method of multipliers, Rockafellar, Math. Oper.
Res. 1 (1976) 97): this objective is strictly convex although neither envelope need be. Piecewise linear losses and
penalties end at the vertex that solves their linear programme: as many samples and weights are at corners as there are
weights.

Where the norms of the columns are given, W = argmin is that over |w_a| = sigma_a sqrt(d) without the first term.
Lambda in gradient and Hessian is then the multiplier, lambda_a = - w_a^T (A^T p)_a / (d sigma_a^2), and both are
projected across the columns; steps go along arcs of great circles. Instead of a ridge, curvatures at
corners and the smallness of v make the Hessian positive definite along the sphere, lambda_a being of either sign.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ....base.errors import InputError
from ....base.options import AlgorithmOptions
from ..design import ZERO_EIGENVALUE, Design, eigendecompose, solve_positive
from ..instance import Instance
from ..method import DescentSettings, Method, TrainingResult
from ..plan import Plan
from ..risk import Risk, Weights, scale_to_norms

_ROUNDING = 1e-13  # relative rounding error of losses, and of x
_DIRECT = 6000  # weights beyond which no matrix of their size is stored


@dataclass(frozen=True)
class AugmentedLagrangianOptions(AlgorithmOptions):
    """Options of Newton's method on augmented Lagrangians; v is the inverse of their penalty parameter.

    Attributes:
        max_steps, max_steps_nonconvex: Newton steps for one multiplier p, at most; for losses that are not convex.
        gradient_ratio: gradient, in units of x - A W, at which p is updated; smaller takes more steps for each p.
        unconverged_ratio: gradient after all steps, in units of the change of p, beyond which v was too small.
        fast_steps, moderate_steps: numbers of steps up to which v is decreased fast, and moderately.
        fast_decrease, moderate_decrease, increase: factors of v.
        min_ratio: smallest v in units of the first; less leaves too few digits of p.
        nonconvex_decrease: factor of v for losses that are not convex.
        slow_ratio: ratio of x - A W at successive p beyond which v was too large, for losses that are not convex.
        max_initial_bend, max_bend: negative curvatures, in units of 1 / v, allowed at first, and with a multiplier.
        patience: updates of p without progress before the method stalls.
        slope_reduction: fraction of the initial slope along a step below which the line search ends.
        max_backtracking: reductions of a step.
        cg_tolerance: relative residual of conjugate gradients, in units of v times the ridge.
        shift_factor: ratio of successive shifts of a Hessian that is not positive definite.
        proximal_weight: ridge around the last weights for general penalties, in units of the first curvature.
        proximal_decrease: factor of this ridge if it limits the progress.
        initial_shift: first shift under given norms, in units of the mean curvature.
    """

    max_steps: int = 30
    max_steps_nonconvex: int = 200
    gradient_ratio: float = 0.1
    unconverged_ratio: float = 0.1
    fast_steps: int = 2
    moderate_steps: int = 12
    fast_decrease: float = 0.05
    moderate_decrease: float = 0.5
    increase: float = 10.0
    min_ratio: float = 1e-5
    nonconvex_decrease: float = 0.3
    slow_ratio: float = 0.1
    max_initial_bend: float = 1.0
    max_bend: float = 0.02
    patience: int = 20
    slope_reduction: float = 0.3
    max_backtracking: int = 40
    cg_tolerance: float = 1e-3
    shift_factor: float = 3.0
    proximal_weight: float = 1e-3
    proximal_decrease: float = 0.3
    initial_shift: float = 1e-4


def newton(risk: Risk, start: Weights, descent: DescentSettings) -> TrainingResult:
    """Minimise the risk by Newton's method on the augmented Lagrangian of loss and penalty.

    The reported gradient is the larger of two root mean squares: of the risk's gradient, Lambda W + A^T p or y + A^T p,
    and of x - A W and u - W.

    Args:
        risk: the risk.
        start: initial weights.
        descent: tolerance and largest number of Newton steps.
    """
    options = AugmentedLagrangianOptions.current()
    problem, tolerance, most = risk.problem, descent.tolerance, descent.most
    regulariser = problem.regulariser
    kind = (
        _SphericalLagrangian
        if regulariser.keeps_norms
        else _AugmentedLagrangian
        if regulariser.is_ridge
        else _PenaltyLagrangian
    )
    lagrangian = kind(risk.instance)
    W = scale_to_norms(problem, start).W
    fields, p, first = lagrangian.initialise(W)
    v, best, waited, steps, before, bends = first, np.inf, 0, 0, np.inf, False
    while (
        v > options.min_ratio * first
        and v * lagrangian.envelope(fields + v * p, v).largest_concavity > options.max_initial_bend
    ):
        v *= options.nonconvex_decrease
    while True:
        at, first_step = lagrangian.envelope(fields + v * p, v), steps
        if not bends and lagrangian.is_too_concave(W, fields, at, v):
            bends, p = True, np.zeros_like(p)
            at = lagrangian.envelope(fields, v)
        enough = min(most, first_step + (options.max_steps_nonconvex if bends else options.max_steps))
        while True:
            gradient = lagrangian.gradient(W, at.p)
            slope, infeasibility = _root_mean_square(gradient), lagrangian.measure_distance(at.x - fields)
            if not slope > max(tolerance / 2, options.gradient_ratio * infeasibility) or steps >= enough:
                break
            steps += 1
            direction = lagrangian.newton_step(W, gradient, at, v)
            W, fields, at = lagrangian.line_search(lagrangian.step_path(W, direction, fields), at, p, v)
        residual = max(slope + lagrangian.recentre(W, slope, infeasibility), infeasibility)
        best, waited = (residual, 0) if residual < best else (best, waited + 1)
        if not residual > tolerance or steps >= most or waited > options.patience:
            W, p = lagrangian.final_weights(W, at)
            weights = scale_to_norms(problem, Weights(W, start.phi))
            value = replace(risk(weights), multipliers=lagrangian.multipliers(weights.W, p))
            return descent.make_result(weights, value, residual, steps, p)
        taken, bent = steps - first_step, lagrangian.is_too_concave(W, fields, at, v)
        bends = bends or bent
        p = p if bent else at.p
        if bends:
            v *= options.nonconvex_decrease if bent or infeasibility > options.slow_ratio * before else 1.0
        elif taken == options.max_steps and slope > options.unconverged_ratio * infeasibility / v:
            v *= options.increase
        elif taken <= options.fast_steps:
            v *= options.fast_decrease
        elif taken <= options.moderate_steps or waited:
            v *= options.moderate_decrease
        v, before = max(v, options.min_ratio * first), infeasibility


def _root_mean_square(x: np.ndarray) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(x**2)))


@dataclass(frozen=True)
class _MoreauEnvelope:
    """The Moreau envelope at omega: minimisers x, slopes p of the loss there, (n, L, s), and -dg/domega (n, L s, L s).

    Attributes:
        u, rows: minimisers (d, s) and curvatures (d, s, s) of the envelope of the penalty; None for a ridge.
    """

    x: np.ndarray
    p: np.ndarray
    curvatures: np.ndarray
    u: np.ndarray | None = None
    rows: np.ndarray | None = None

    @property
    def largest_concavity(self) -> float:
        """The absolute value of the most negative curvature; zero if there is none."""
        return max(0.0, -float(eigendecompose(self.curvatures)[0].min()))


@dataclass(frozen=True)
class _StepPath:
    """A path of weights from W along D: (W + t D) / (1 + t^2 r)^(1/2).

    It is a straight line for r = 0, and on spheres of given norms a great circle for each column.

    Attributes:
        W, direction: W and D, (d, s); fields, along: A W and A D, (n, L, s).
        strengths: strengths of the ridge, (s,); centre: the weights at which it is zero, (d, s).
        ratio: r, on spheres |D|^2 / |W|^2 of every column, (s,), and else zero, (1,).
    """

    W: np.ndarray
    direction: np.ndarray
    fields: np.ndarray
    along: np.ndarray
    strengths: np.ndarray
    centre: np.ndarray | float
    ratio: np.ndarray

    @property
    def max_step(self) -> float:
        """The largest t to try: a full step, and at most an eighth of a circle."""
        return float(1 / np.sqrt(max(1.0, self.ratio.max())))

    def position(self, t: float) -> tuple[np.ndarray, np.ndarray]:
        """Return weights (d, s) and fields (n, L, s) at t."""
        scale = 1 / np.sqrt(1 + t * t * self.ratio)
        return (self.W + t * self.direction) * scale, (self.fields + t * self.along) * scale

    def slope(self, t: float, p: np.ndarray) -> float:
        """Return the derivative of the objective along the path.

        Args:
            t: position on the path.
            p: slopes of the envelope there, (n, L, s).
        """
        (W, fields), square = self.position(t), 1 / (1 + t * t * self.ratio)
        pull = self.strengths * (W - self.centre)
        turn = np.sqrt(square) * self.along - t * self.ratio * square * fields
        return float(np.sum(pull * self.direction) + np.sum(p * turn))


class _AugmentedLagrangian(Design):
    """The augmented Lagrangian of an instance whose penalty is a ridge, and its Newton steps.

    Attributes:
        strengths: strengths of the ridge, (s,); centre: the weights at which it is zero.
    """

    strengths: np.ndarray = np.zeros(1)
    centre: np.ndarray | float = 0.0

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance)
        self.problem, self.regulariser = instance.problem, instance.problem.regulariser
        if self.regulariser.is_ridge:
            self.strengths = self.regulariser.strengths
        n, L, s = self.shape
        size = instance.d * s
        self._sum = np.zeros((size, size) if size <= _DIRECT else (0, 0))
        self._weights = np.zeros((n, L * s, L * s))

    def initialise(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Return fields and slopes (n, L, s) at the first weights, and the first v."""
        fields = Design.fields(self, W)
        p = self.losses(fields)[1]
        return fields, p, _root_mean_square(fields) / _root_mean_square(p) if fields.any() and p.any() else 1.0

    def final_weights(self, W: np.ndarray, at: _MoreauEnvelope) -> tuple[np.ndarray, np.ndarray]:
        """Return the final weights (d, s) and subgradients of the loss (n, L, s).

        Args:
            W: the last weights.
            at: the envelope there.
        """
        return W, at.p

    def measure_distance(self, difference: np.ndarray) -> float:
        """Return the root mean square of x - A W."""
        return _root_mean_square(difference)

    def recentre(self, W: np.ndarray, slope: float, infeasibility: float) -> float:
        """Return the size of the gradient of the proximal term, and prepare for the next p.

        Args:
            W: the current weights, its new centre.
            slope: size of the gradient.
            infeasibility: distance from feasibility, see `measure_distance`.
        """
        return 0.0

    def gradient(self, W: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Return the gradient of the objective, (d, s).

        Args:
            W: weights (d, s).
            p: slopes of the loss.
        """
        return self.strengths * (W - self.centre) + self.apply_transpose(p)

    def multipliers(self, W: np.ndarray, p: np.ndarray) -> np.ndarray | None:
        """Return strengths (s,) of the ridge that keeps given norms; None if none are given.

        Args:
            W: weights (d, s).
            p: slopes of the loss.
        """
        return None

    def step_path(self, W: np.ndarray, direction: np.ndarray, fields: np.ndarray) -> _StepPath:
        """Return the path of a step from W.

        Args:
            W: weights (d, s).
            direction: the step (d, s).
            fields: fields at W.
        """
        return _StepPath(W, direction, fields, self.fields(direction), self.strengths, self.centre, np.zeros(1))

    def _merit(self, at: _MoreauEnvelope, v: float) -> float:
        """Return the merit function that must not grow along a step; zero for a convex objective, with slopes only."""
        return 0.0

    def losses(self, fields: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return losses (n,) and their slopes (n, L, s)."""
        values, slopes = np.empty(len(fields)), np.empty(self.shape)
        for labels, own, x, known in self.instance.group_by_labels(fields):
            values[own], found = self.problem.solver.proximal.losses_at(x, known, self.problem.constants(labels))
            slopes[own] = found.reshape(-1, *self.shape[1:])
        return values, slopes

    def is_too_concave(self, W: np.ndarray, fields: np.ndarray, at: _MoreauEnvelope, v: float) -> bool:
        """Return whether the loss of a sample is too concave for a multiplier at x, or between x and its fields.

        Args:
            W: weights (d, s).
            fields: their fields.
            at: the envelope.
            v: its parameter.
        """
        allowed = AugmentedLagrangianOptions.current().max_bend
        change = fields - at.x
        square = np.sum(change**2, axis=(1, 2))
        here, there = self.losses(fields)[0], self.losses(at.x)[0]
        below = there + np.sum(at.p * change, axis=(1, 2)) - here
        rounding = _ROUNDING * (1 + np.abs(here) + np.sqrt(square * np.sum(at.x**2, axis=(1, 2))) / v)
        secant = below > allowed * square / (2 * v) + rounding
        return v * at.largest_concavity > allowed or bool(secant.any())

    def envelope(self, omega: np.ndarray, v: float) -> _MoreauEnvelope:
        """Return the Moreau envelope of the loss at omega (n, L, s).

        Args:
            omega: fields.
            v: parameter of the envelope.
        """
        problem, (n, L, s) = self.problem, self.shape
        x, slopes = np.empty(self.shape), np.empty((n, L * s, L * s))
        eye = np.broadcast_to(np.eye(s), (L, s, s))
        for labels, own, at, known in self.instance.group_by_labels(omega):
            c = problem.constants(labels)
            found, slopes[own] = problem.solver.proximal.proximal_at(at, eye / v, v * eye, known, c, problem.search)
            x[own] = found.reshape(-1, L, s)
        return _MoreauEnvelope(x, (omega - x) / v, -(slopes + slopes.transpose(0, 2, 1)) / 2)

    def line_search(
        self, path: _StepPath, at: _MoreauEnvelope, p: np.ndarray, v: float
    ) -> tuple[np.ndarray, np.ndarray, _MoreauEnvelope]:
        """Return weights, fields and envelope after a line search, which ends where the objective hardly increases.

        It uses slopes, which unlike values are precise next to the minimum.

        Args:
            path: path of the step.
            at: the envelope at its beginning.
            p: multiplier.
            v: parameter of the envelope.
        """
        options = AugmentedLagrangianOptions.current()
        before, t = path.slope(0.0, at.p), path.max_step
        height = self._merit(at, v)
        for _ in range(options.max_backtracking):
            W, fields = path.position(t)
            at = self.envelope(fields + v * p, v)
            slope = path.slope(t, at.p)
            if slope <= options.slope_reduction * abs(before) and self._merit(at, v) <= height + _ROUNDING * (
                1 + abs(height)
            ):
                break
            t *= float(np.clip(before / (before - slope), 0.1, 0.9)) if slope > before else 0.5
        return W, fields, at

    def newton_step(self, W: np.ndarray, gradient: np.ndarray, at: _MoreauEnvelope, v: float) -> np.ndarray:
        """Return -(Lambda + A^T curvatures A)^{-1} gradient, (d, s), Lambda increased until that is positive definite.

        Args:
            W: weights (d, s).
            gradient: gradient of the objective, (d, s).
            at: the envelope.
            v: its parameter.
        """
        d, s = gradient.shape
        blocks = np.diag(np.broadcast_to(self.strengths, s)) + (np.zeros((d, s, s)) if at.rows is None else at.rows)
        if gradient.size > _DIRECT:
            return -self._solve_iteratively(gradient, at.curvatures, v, blocks)
        total = self._weighted_gram(v * at.curvatures)

        def hessian() -> np.ndarray:
            found = total / v
            found.reshape(d, s, d, s)[np.arange(d), :, np.arange(d), :] += blocks
            return found

        return -solve_positive(
            hessian, gradient, float(np.min(self.strengths)), AugmentedLagrangianOptions.current().shift_factor
        )

    def _weighted_gram(self, weights: np.ndarray) -> np.ndarray:
        """Return A^T weights A, (d s, d s), by an update of the samples whose weights (n, L s, L s) have changed.

        In units of 1 / v the weight of a corner, and of a straight piece, is the same for every v.
        """
        self.add_weighted_gram(self._sum, weights - self._weights)
        self._weights = weights
        return self._sum

    def _solve_iteratively(self, right: np.ndarray, curvatures: np.ndarray, v: float, blocks: np.ndarray) -> np.ndarray:
        """Return (Lambda + A^T curvatures A)^{-1} right, (d, s), for positive definite blocks (d, s, s) of Lambda.

        It uses conjugate gradients for the fields of samples with a curvature above zero (Woodbury). Their system
        is the better conditioned one: a small v makes it no worse.
        """
        from scipy.sparse.linalg import LinearOperator, cg

        n, L, s = self.shape
        values, vectors = eigendecompose(curvatures)
        chosen = values > ZERO_EIGENVALUE / v
        inverse = np.linalg.inv(blocks)
        scaled = np.einsum("iab,ib->ia", inverse, right)
        if not chosen.any():
            return scaled

        def pull_back(t: np.ndarray) -> np.ndarray:
            spread = np.zeros((n, L * s))
            spread[chosen] = t
            pulled = Design.apply_transpose(self, np.einsum("nak,nk->na", vectors, spread).reshape(self.shape))
            return np.einsum("iab,ib->ia", inverse, pulled)

        def project(W: np.ndarray) -> np.ndarray:
            return np.einsum("nak,na->nk", vectors, Design.fields(self, W).reshape(n, L * s))[chosen]

        size = int(chosen.sum())
        system = LinearOperator((size, size), matvec=lambda t: t / values[chosen] + project(pull_back(t)), dtype=float)
        tolerance = AugmentedLagrangianOptions.current().cg_tolerance
        t, _ = cg(system, project(scaled), rtol=tolerance * min(1.0, v * float(eigendecompose(blocks)[0].min())))
        return scaled - pull_back(t)


class _SphericalLagrangian(_AugmentedLagrangian):
    """An augmented Lagrangian on spheres: the norms of the columns are given."""

    def multipliers(self, W: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Return strengths (s,) of the ridge that balances the radial part of A^T p.

        Args:
            W: weights (d, s).
            p: slopes of the loss.
        """
        return -np.sum(W * self.apply_transpose(p), axis=0) / (self.instance.d * self.regulariser.norms**2)

    def gradient(self, W: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Return the part of A^T p tangential to the spheres, (d, s).

        Args:
            W: weights (d, s).
            p: slopes of the loss.
        """
        units = W / np.linalg.norm(W, axis=0)
        whole = self.apply_transpose(p)
        return whole - units * np.sum(units * whole, axis=0)

    def is_too_concave(self, W: np.ndarray, fields: np.ndarray, at: _MoreauEnvelope, v: float) -> bool:
        """Return whether the loss, or the sphere, makes the risk too concave for a multiplier.

        Args:
            W: weights (d, s).
            fields: their fields.
            at: the envelope.
            v: its parameter.
        """
        allowed = AugmentedLagrangianOptions.current().max_bend
        return v * -float(self.multipliers(W, at.p).min()) > allowed or super().is_too_concave(W, fields, at, v)

    def step_path(self, W: np.ndarray, direction: np.ndarray, fields: np.ndarray) -> _StepPath:
        """Return the path of a step from W.

        Args:
            W: weights (d, s).
            direction: the step (d, s).
            fields: fields at W.
        """
        ratio = np.sum(direction**2, axis=0) / np.sum(W**2, axis=0)
        return _StepPath(W, direction, fields, self.fields(direction), np.zeros(1), 0.0, ratio)

    def _merit(self, at: _MoreauEnvelope, v: float) -> float:
        """Return the envelope: along an arc it may rise and fall again."""
        return float(np.sum(self.losses(at.x)[0]) + v * np.sum(at.p**2) / 2)

    def newton_step(self, W: np.ndarray, gradient: np.ndarray, at: _MoreauEnvelope, v: float) -> np.ndarray:
        """Return the step across the columns, -(P (Lambda + A^T curvatures A) P)^{-1} gradient, Lambda the multipliers.

        Args:
            W: weights (d, s).
            gradient: gradient of the objective, (d, s).
            at: the envelope.
            v: its parameter.
        """
        options = AugmentedLagrangianOptions.current()
        (d, s), units = W.shape, W / np.linalg.norm(W, axis=0)
        strengths = self.multipliers(W, at.p)
        radial = np.einsum("ia,ab->iab", units, np.eye(s)).reshape(d * s, s)
        if gradient.size > _DIRECT:
            # For a convex loss: strengths of the wrong sign make a shorter step.
            typical = np.linalg.norm(self.apply_transpose(at.p)) / np.linalg.norm(W)
            positive = np.tile(np.diag(np.maximum(np.abs(strengths), options.initial_shift * typical)), (d, 1, 1))
            pushed = self._solve_iteratively(gradient, at.curvatures, v, positive).reshape(d * s)
            pulled = [self._solve_iteratively(u.reshape(d, s), at.curvatures, v, positive).ravel() for u in radial.T]
            border = np.stack(pulled, axis=1)
            step = pushed - border @ np.linalg.solve(radial.T @ border, radial.T @ pushed)
            return -step.reshape(d, s)
        total = self._weighted_gram(v * at.curvatures)
        mean = max(float(np.trace(total)) / (d * s * v), float(np.max(np.abs(strengths))), np.finfo(float).tiny)

        def hessian() -> np.ndarray:
            found = total / v
            found[np.diag_indices_from(found)] += np.broadcast_to(strengths, (d, s)).ravel()
            along = found @ radial
            found -= along @ radial.T
            found += radial @ ((radial.T @ along + mean * np.eye(s)) @ radial.T - along.T)
            return found

        return -solve_positive(hessian, gradient, options.initial_shift * mean, options.shift_factor)


class _PenaltyLagrangian(_AugmentedLagrangian):
    """An augmented Lagrangian for any convex penalty, by its envelope, with a proximal ridge around the last W.

    Fields, x and p are joined, in one array, with k W, k u and y / k, as if A had additional rows k 1. The first
    weights determine k: changes of both parts are as large in units of their sizes.
    """

    _scale = 1.0

    def initialise(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Return fields and slopes, joined, at the first weights, and the first v; y is zero."""
        fields, p, first = super().initialise(W)
        force = _root_mean_square(super().apply_transpose(p))
        if W.any() and force > 0:
            self._scale = float(np.sqrt(first * force / _root_mean_square(W)))
        weight = AugmentedLagrangianOptions.current().proximal_weight
        self.strengths, self.centre = np.array([weight * self._scale**2 / first]), W
        return self._join(fields, self._scale * W), self._join(p, np.zeros_like(W)), first

    def final_weights(self, W: np.ndarray, at: _MoreauEnvelope) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows u, which are exactly at the corners of the penalty, and subgradients of the loss.

        Args:
            W: the last weights.
            at: the envelope there.
        """
        assert at.u is not None
        return at.u, self._separate(at.p)[0]

    def measure_distance(self, difference: np.ndarray) -> float:
        """Return the larger of the root mean squares of x - A W and u - W."""
        samples, rows = self._separate(difference)
        return max(_root_mean_square(samples), _root_mean_square(rows) / self._scale)

    def recentre(self, W: np.ndarray, slope: float, infeasibility: float) -> float:
        """Return the size of the gradient of the proximal ridge, move it to W, and weaken it if it dominates.

        Args:
            W: the current weights, its new centre.
            slope: size of the gradient.
            infeasibility: distance from feasibility, see `measure_distance`.
        """
        pull = _root_mean_square(self.strengths * (W - self.centre))
        self.centre = W
        if pull > max(slope, infeasibility):
            self.strengths = self.strengths * AugmentedLagrangianOptions.current().proximal_decrease
        return pull

    def fields(self, W: np.ndarray) -> np.ndarray:
        """Return (A W, k W), joined."""
        return self._join(super().fields(W), self._scale * W)

    def apply_transpose(self, x: np.ndarray) -> np.ndarray:
        """Return (A^T, k) x, (d, s)."""
        samples, rows = self._separate(x)
        return super().apply_transpose(samples) + self._scale * rows

    def is_too_concave(self, W: np.ndarray, fields: np.ndarray, at: _MoreauEnvelope, v: float) -> bool:
        """Return whether the loss is too concave for a multiplier; the penalty is convex.

        Args:
            W: weights (d, s).
            fields: fields and rows, joined.
            at: the envelope.
            v: its parameter.
        """
        samples = _MoreauEnvelope(self._separate(at.x)[0], self._separate(at.p)[0], at.curvatures)
        return super().is_too_concave(W, self._separate(fields)[0], samples, v)

    def envelope(self, omega: np.ndarray, v: float) -> _MoreauEnvelope:
        """Return the envelope at omega.

        Args:
            omega: fields and rows, joined.
            v: parameter of the envelope.
        """
        samples, rows = self._separate(omega)
        at, precision = super().envelope(samples, v), self._scale**2 / v
        u, response = self.regulariser.proximal(rows * self._scale / v, precision, self.instance.known_rows)
        x = self._join(at.x, self._scale * u)
        return _MoreauEnvelope(
            x, (omega - x) / v, at.curvatures, u, precision * (np.eye(rows.shape[1]) - precision * response)
        )

    def _join(self, samples: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return one array of the parts of samples (n, L, s) and of rows (d, s)."""
        return np.concatenate([samples.ravel(), rows.ravel()])

    def _separate(self, joined: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the parts of samples (n, L, s) and of rows (d, s)."""
        n, L, s = self.shape
        return joined[: n * L * s].reshape(self.shape), joined[n * L * s :].reshape(-1, s)


def _check_plan(plan: Plan) -> None:
    """Raise InputError if the penalty is a ridge that does not bound the weights."""
    problem, regulariser = plan.problem, plan.problem.regulariser
    if regulariser.is_ridge and not np.all(regulariser.strengths > 0):
        name, least = problem.solver.name, regulariser.strengths.min()
        raise InputError(f"newton needs a ridge of positive strength; that of {name} is {least:g}")


METHOD = Method("newton", newton, loss_corners=True, penalty_corners=True, norms=True, check=_check_plan)
