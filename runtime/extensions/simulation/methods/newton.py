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
from ..design import ZERO_EIGENVALUE, DesignMatrix, eigendecompose_symmetric, solve_positive_definite
from ..instance import Instance
from ..method import DescentSettings, TrainingMethod, TrainingResult
from ..plan import SimulationPlan
from ..risk import Risk, Weights, scale_columns_to_norms

_ROUNDING = 1e-13  # relative rounding error of losses, and of x
_DIRECT = 6000  # weights beyond which no matrix of their size is stored


@dataclass(frozen=True)
class AugmentedLagrangianOptions(AlgorithmOptions):
    """Options of Newton's method on augmented Lagrangians.

    The loss is a function of copies of the fields A W. The Lagrangian has multipliers for the constraint that copies
    and fields are equal, and a parameter v, the inverse of its penalty parameter.

    Attributes:
        max_steps: largest number of Newton steps for one value of the multiplier, for convex losses.
        max_steps_nonconvex: the same for other losses.
        gradient_ratio: gradient, in units of the violation of the constraint, at which the multiplier is updated.
        unconverged_ratio: gradient after all steps, in units of the change of the multiplier, beyond which v is raised.
        fast_steps: number of steps up to which v is decreased fast.
        moderate_steps: number of steps up to which v is decreased moderately.
        fast_decrease: factor of v for a fast decrease.
        moderate_decrease: factor of v for a moderate decrease.
        increase: factor of v where it was too small.
        min_ratio: smallest v in units of the first; less leaves too few digits of the multiplier.
        nonconvex_decrease: factor of v for losses that are not convex.
        slow_ratio: ratio of successive violations of the constraint beyond which v is decreased, for such losses.
        max_initial_bend: largest negative curvature of the envelope, in units of 1 / v, allowed at first.
        max_bend: largest negative curvature, in units of 1 / v, with which the multiplier is used.
        patience: updates of the multiplier without progress before the method stalls.
        slope_reduction: fraction of the initial directional derivative below which the line search ends.
        max_backtracking: largest number of reductions of a step.
        cg_tolerance: relative residual of conjugate gradients, in units of the envelope parameter v times the ridge.
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

    The reported gradient is the larger of two root mean squares: that of the gradient of the risk, and that of the
    difference between the fields or weights and their copies in the Lagrangian.

    Args:
        risk: training loss per d on one draw of the data.
        start: initial weights.
        descent: tolerance and largest number of Newton steps.
    """
    options = AugmentedLagrangianOptions.current()
    problem, tolerance, most = risk.problem, descent.tolerance, descent.most
    regulariser = problem.regulariser
    kind = (
        _SphericalAugmentedLagrangian
        if regulariser.keeps_norms
        else _AugmentedLagrangian
        if regulariser.is_ridge
        else _PenaltyAugmentedLagrangian
    )
    lagrangian = kind(risk.instance)
    W = scale_columns_to_norms(problem, start).W
    fields, p, first = lagrangian.initialise_multipliers(W)
    v, best, waited, steps, before, bends = first, np.inf, 0, 0, np.inf, False
    while (
        v > options.min_ratio * first
        and v * lagrangian.moreau_envelope(fields + v * p, v).largest_negative_curvature > options.max_initial_bend
    ):
        v *= options.nonconvex_decrease
    while True:
        at, first_step = lagrangian.moreau_envelope(fields + v * p, v), steps
        if not bends and lagrangian.is_too_concave_for_multiplier(W, fields, at, v):
            bends, p = True, np.zeros_like(p)
            at = lagrangian.moreau_envelope(fields, v)
        enough = min(most, first_step + (options.max_steps_nonconvex if bends else options.max_steps))
        while True:
            gradient = lagrangian.objective_gradient(W, at.p)
            slope, infeasibility = _root_mean_square(gradient), lagrangian.measure_infeasibility(at.x - fields)
            if not slope > max(tolerance / 2, options.gradient_ratio * infeasibility) or steps >= enough:
                break
            steps += 1
            direction = lagrangian.newton_step(W, gradient, at, v)
            W, fields, at = lagrangian.line_search(lagrangian.line_search_path(W, direction, fields), at, p, v)
        residual = max(slope + lagrangian.recentre_proximal_term(W, slope, infeasibility), infeasibility)
        best, waited = (residual, 0) if residual < best else (best, waited + 1)
        if not residual > tolerance or steps >= most or waited > options.patience:
            W, p = lagrangian.final_weights_and_subgradients(W, at)
            weights = scale_columns_to_norms(problem, Weights(W, start.phi))
            value = replace(risk(weights), multipliers=lagrangian.norm_multipliers(weights.W, p))
            return descent.make_training_result(weights, value, residual, steps, p)
        taken, bent = steps - first_step, lagrangian.is_too_concave_for_multiplier(W, fields, at, v)
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
    """Return the root mean square of the entries of an array."""
    return float(np.sqrt(np.mean(x**2)))


@dataclass(frozen=True)
class _MoreauEnvelope:
    """The Moreau envelopes, at given points, of the loss of every sample and of a penalty other than a ridge.

    Attributes:
        x: minimisers of the one-sample objectives, shape (n samples, L tokens, s columns).
        p: gradients of the envelopes of the loss, shape (n, L, s).
        curvatures: Hessians of the envelopes of the loss, shape (n, L s, L s).
        u: minimisers for the penalty, shape (d inputs, s columns); None for a ridge.
        rows: Hessians of the envelope of the penalty, shape (d, s, s); None for a ridge.
    """

    x: np.ndarray
    p: np.ndarray
    curvatures: np.ndarray
    u: np.ndarray | None = None
    rows: np.ndarray | None = None

    @property
    def largest_negative_curvature(self) -> float:
        """The absolute value of the most negative curvature of the samples' Moreau envelopes; zero if none."""
        return max(0.0, -float(eigendecompose_symmetric(self.curvatures)[0].min()))


@dataclass(frozen=True)
class _LineSearchPath:
    """A path of weights for a line search: a straight line, or a great circle for columns of given norms.

    Attributes:
        W: weights at its beginning, shape (d inputs, s columns).
        direction: direction of the path there, shape (d, s).
        fields: fields at its beginning, shape (n samples, L tokens, s columns).
        along: fields of the direction, shape (n, L, s).
        strengths: strengths of the ridge, (s,).
        centre: weights at which the ridge vanishes, shape (d, s).
        ratio: squared length of the direction relative to that of each column on a sphere, (s,); zero for a line.
    """

    W: np.ndarray
    direction: np.ndarray
    fields: np.ndarray
    along: np.ndarray
    strengths: np.ndarray
    centre: np.ndarray | float
    ratio: np.ndarray

    @property
    def max_step_length(self) -> float:
        """The largest step t of the line search: 1, a full Newton step, or an eighth of a great circle on a sphere."""
        return float(1 / np.sqrt(max(1.0, self.ratio.max())))

    def weights_and_fields_at_step(self, t: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights, shape (d inputs, s columns), and their fields at a step t along the line-search path."""
        scale = 1 / np.sqrt(1 + t * t * self.ratio)
        return (self.W + t * self.direction) * scale, (self.fields + t * self.along) * scale

    def directional_derivative(self, t: float, p: np.ndarray) -> float:
        """Return the derivative of the augmented Lagrangian along the path of a line search.

        Args:
            t: step along the path.
            p: gradients of the loss's envelope at this step, shape (n samples, L tokens, s columns).
        """
        (W, fields), square = self.weights_and_fields_at_step(t), 1 / (1 + t * t * self.ratio)
        pull = self.strengths * (W - self.centre)
        turn = np.sqrt(square) * self.along - t * self.ratio * square * fields
        return float(np.sum(pull * self.direction) + np.sum(p * turn))


class _AugmentedLagrangian(DesignMatrix):
    """The augmented Lagrangian of training with a ridge penalty, with the Newton steps that minimise it.

    Attributes:
        strengths: strengths of the ridge, (s,).
        centre: weights at which the ridge vanishes.
    """

    strengths: np.ndarray = np.zeros(1)
    centre: np.ndarray | float = 0.0

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance)
        self.problem, self.regulariser = instance.problem, instance.problem.regulariser
        if self.regulariser.is_ridge:
            self.strengths = self.regulariser.ridge_strengths
        n, L, s = self.shape
        size = instance.d * s
        self._sum = np.zeros((size, size) if size <= _DIRECT else (0, 0))
        self._weights = np.zeros((n, L * s, L * s))

    def initialise_multipliers(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the fields at initial weights, first multipliers of the fields, and envelope parameter v."""
        fields = DesignMatrix.compute_fields(self, W)
        p = self.losses_and_gradients(fields)[1]
        return fields, p, _root_mean_square(fields) / _root_mean_square(p) if fields.any() and p.any() else 1.0

    def final_weights_and_subgradients(self, W: np.ndarray, at: _MoreauEnvelope) -> tuple[np.ndarray, np.ndarray]:
        """Return the final weights, (d, s), and the subgradients of the loss there, (n samples, L tokens, s).

        Args:
            W: last weights (d, s).
            at: Moreau envelope of the loss at the last weights.
        """
        return W, at.p

    def measure_infeasibility(self, difference: np.ndarray) -> float:
        """Return the root mean square violation of the constraint that copies of the fields equal the fields A W."""
        return _root_mean_square(difference)

    def recentre_proximal_term(self, W: np.ndarray, slope: float, infeasibility: float) -> float:
        """Return zero, the gradient of a ridge added for convexity: with a ridge penalty none is added.

        Args:
            W: current weights.
            slope: size of the gradient of the objective.
            infeasibility: distance from feasibility, see `measure_infeasibility`.
        """
        return 0.0

    def objective_gradient(self, W: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Return the gradient of the augmented Lagrangian in the weights W, shape (d inputs, s columns).

        Args:
            W: weights, shape (d inputs, s columns).
            p: gradients of the loss's Moreau envelope at the fields, shape (n samples, L tokens, s columns).
        """
        return self.strengths * (W - self.centre) + self.apply_design_transpose(p)

    def norm_multipliers(self, W: np.ndarray, p: np.ndarray) -> np.ndarray | None:
        """Return Lagrange multipliers (s,) of column norms: None for this penalty, which prescribes no norms.

        Args:
            W: weights, shape (d inputs, s columns).
            p: gradients of the loss at the fields.
        """
        return None

    def line_search_path(self, W: np.ndarray, direction: np.ndarray, fields: np.ndarray) -> _LineSearchPath:
        """Return the path of weights for a line search from given weights along a Newton step.

        Args:
            W: weights, shape (d inputs, s columns).
            direction: Newton step (d, s).
            fields: fields A W at these weights, A the design matrix.
        """
        return _LineSearchPath(
            W, direction, fields, self.compute_fields(direction), self.strengths, self.centre, np.zeros(1)
        )

    def _merit_function(self, at: _MoreauEnvelope, v: float) -> float:
        """Return the function that a line search must not increase; here zero, as a convex objective needs none."""
        return 0.0

    def losses_and_gradients(self, fields: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the losses of all n samples at given fields and their gradients, (n samples, L tokens, s)."""
        values, slopes = np.empty(len(fields)), np.empty(self.shape)
        for labels, own, x, known in self.instance.group_samples_by_labels(fields):
            values[own], found = self.problem.solver.proximal.losses_at(x, known, self.problem.constants(labels))
            slopes[own] = found.reshape(-1, *self.shape[1:])
        return values, slopes

    def is_too_concave_for_multiplier(self, W: np.ndarray, fields: np.ndarray, at: _MoreauEnvelope, v: float) -> bool:
        """Return whether the loss of any sample is too concave for the multiplier updates to converge.

        Args:
            W: weights, shape (d inputs, s columns).
            fields: fields A W at these weights, A the design matrix.
            at: Moreau envelope at these fields.
            v: variance in the quadratic term of the envelope.
        """
        allowed = AugmentedLagrangianOptions.current().max_bend
        change = fields - at.x
        square = np.sum(change**2, axis=(1, 2))
        here, there = self.losses_and_gradients(fields)[0], self.losses_and_gradients(at.x)[0]
        below = there + np.sum(at.p * change, axis=(1, 2)) - here
        rounding = _ROUNDING * (1 + np.abs(here) + np.sqrt(square * np.sum(at.x**2, axis=(1, 2))) / v)
        secant = below > allowed * square / (2 * v) + rounding
        return v * at.largest_negative_curvature > allowed or bool(secant.any())

    def moreau_envelope(self, omega: np.ndarray, v: float) -> _MoreauEnvelope:
        """Return the Moreau envelope of the loss of every sample at given fields, by minimising over a copy of each.

        Args:
            omega: the fields, shape (n samples, L tokens, s columns).
            v: parameter of the envelope: the variance in its quadratic term.
        """
        problem, (n, L, s) = self.problem, self.shape
        x, slopes = np.empty(self.shape), np.empty((n, L * s, L * s))
        eye = np.broadcast_to(np.eye(s), (L, s, s))
        for labels, own, at, known in self.instance.group_samples_by_labels(omega):
            c = problem.constants(labels)
            found, slopes[own] = problem.solver.proximal.proximal_at(at, eye / v, v * eye, known, c, problem.search)
            x[own] = found.reshape(-1, L, s)
        return _MoreauEnvelope(x, (omega - x) / v, -(slopes + slopes.transpose(0, 2, 1)) / 2)

    def line_search(
        self, path: _LineSearchPath, at: _MoreauEnvelope, p: np.ndarray, v: float
    ) -> tuple[np.ndarray, np.ndarray, _MoreauEnvelope]:
        """Return weights, their fields and the Moreau envelope after a line search along a path.

        The search uses directional derivatives, which unlike values are precise next to the minimum.

        Args:
            path: path of the search.
            at: Moreau envelope at the beginning of the path.
            p: multiplier of the augmented Lagrangian, shape (n samples, L tokens, s columns).
            v: variance in the quadratic term of the envelope.
        """
        options = AugmentedLagrangianOptions.current()
        before, t = path.directional_derivative(0.0, at.p), path.max_step_length
        height = self._merit_function(at, v)
        for _ in range(options.max_backtracking):
            W, fields = path.weights_and_fields_at_step(t)
            at = self.moreau_envelope(fields + v * p, v)
            slope = path.directional_derivative(t, at.p)
            if slope <= options.slope_reduction * abs(before) and self._merit_function(at, v) <= height + _ROUNDING * (
                1 + abs(height)
            ):
                break
            t *= float(np.clip(before / (before - slope), 0.1, 0.9)) if slope > before else 0.5
        return W, fields, at

    def newton_step(self, W: np.ndarray, gradient: np.ndarray, at: _MoreauEnvelope, v: float) -> np.ndarray:
        """Return the Newton step of the weights, (d, s), with a Hessian that is shifted to be positive definite.

        Args:
            W: weights, shape (d inputs, s columns).
            gradient: gradient of the augmented Lagrangian, (d, s).
            at: Moreau envelope at these weights.
            v: variance in the quadratic term of the envelope.
        """
        d, s = gradient.shape
        blocks = np.diag(np.broadcast_to(self.strengths, s)) + (np.zeros((d, s, s)) if at.rows is None else at.rows)
        if gradient.size > _DIRECT:
            return -self._solve_by_conjugate_gradients(gradient, at.curvatures, v, blocks)
        total = self._weighted_gram_matrix(v * at.curvatures)

        def lagrangian_hessian() -> np.ndarray:
            found = total / v
            found.reshape(d, s, d, s)[np.arange(d), :, np.arange(d), :] += blocks
            return found

        return -solve_positive_definite(
            lagrangian_hessian,
            gradient,
            float(np.min(self.strengths)),
            AugmentedLagrangianOptions.current().shift_factor,
        )

    def _weighted_gram_matrix(self, weights: np.ndarray) -> np.ndarray:
        """Return the Gram matrix of the design matrix, weighted by sample; only changed weights are updated.

        The weights are curvatures of the samples times the envelope parameter v, shape (n, L s, L s): at a kink of the
        loss, and on a linear part, these are the same for every v. The Gram matrix has shape (d s, d s).
        """
        self.add_weighted_gram_matrix(self._sum, weights - self._weights)
        self._weights = weights
        return self._sum

    def _solve_by_conjugate_gradients(
        self, right: np.ndarray, curvatures: np.ndarray, v: float, blocks: np.ndarray
    ) -> np.ndarray:
        """Return the inverse Hessian of the augmented Lagrangian times a given vector, by conjugate gradients.

        By the Woodbury formula the system is solved for the fields of samples with a positive curvature, which is well
        conditioned even for small v. `blocks` are the positive definite blocks of the penalty, shape (d, s, s).
        """
        from scipy.sparse.linalg import LinearOperator, cg

        n, L, s = self.shape
        values, vectors = eigendecompose_symmetric(curvatures)
        chosen = values > ZERO_EIGENVALUE / v
        inverse = np.linalg.inv(blocks)
        scaled = np.einsum("iab,ib->ia", inverse, right)
        if not chosen.any():
            return scaled

        def weights_from_fields(t: np.ndarray) -> np.ndarray:
            spread = np.zeros((n, L * s))
            spread[chosen] = t
            pulled = DesignMatrix.apply_design_transpose(
                self, np.einsum("nak,nk->na", vectors, spread).reshape(self.shape)
            )
            return np.einsum("iab,ib->ia", inverse, pulled)

        def project_fields_on_eigenvectors(W: np.ndarray) -> np.ndarray:
            return np.einsum("nak,na->nk", vectors, DesignMatrix.compute_fields(self, W).reshape(n, L * s))[chosen]

        size = int(chosen.sum())
        system = LinearOperator(
            (size, size),
            matvec=lambda t: t / values[chosen] + project_fields_on_eigenvectors(weights_from_fields(t)),
            dtype=float,
        )
        tolerance = AugmentedLagrangianOptions.current().cg_tolerance
        t, _ = cg(
            system,
            project_fields_on_eigenvectors(scaled),
            rtol=tolerance * min(1.0, v * float(eigendecompose_symmetric(blocks)[0].min())),
        )
        return scaled - weights_from_fields(t)


class _SphericalAugmentedLagrangian(_AugmentedLagrangian):
    """The augmented Lagrangian of training with given norms of the columns of W, which therefore lie on spheres."""

    def norm_multipliers(self, W: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Return the Lagrange multipliers (s,) of given column norms: strengths of a ridge that keeps the norms.

        Args:
            W: weights, shape (d inputs, s columns).
            p: gradients of the loss at the fields, shape (n samples, L tokens, s columns).
        """
        return -np.sum(W * self.apply_design_transpose(p), axis=0) / (
            self.instance.d * self.regulariser.fixed_column_norms**2
        )

    def objective_gradient(self, W: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Return the gradient of the training loss in W, tangent to the spheres of given column norms.

        Args:
            W: weights, shape (d inputs, s columns).
            p: gradients of the loss at the fields, shape (n samples, L tokens, s columns).
        """
        units = W / np.linalg.norm(W, axis=0)
        whole = self.apply_design_transpose(p)
        return whole - units * np.sum(units * whole, axis=0)

    def is_too_concave_for_multiplier(self, W: np.ndarray, fields: np.ndarray, at: _MoreauEnvelope, v: float) -> bool:
        """Return whether loss or norm constraints are too concave for the multiplier updates to converge.

        Args:
            W: weights, shape (d inputs, s columns).
            fields: fields A W at these weights, A the design matrix.
            at: Moreau envelope at these fields.
            v: variance in the quadratic term of the envelope.
        """
        allowed = AugmentedLagrangianOptions.current().max_bend
        return v * -float(self.norm_multipliers(W, at.p).min()) > allowed or super().is_too_concave_for_multiplier(
            W, fields, at, v
        )

    def line_search_path(self, W: np.ndarray, direction: np.ndarray, fields: np.ndarray) -> _LineSearchPath:
        """Return the path of weights for a line search from given weights along a Newton step.

        Args:
            W: weights, shape (d inputs, s columns).
            direction: Newton step (d, s).
            fields: fields A W at these weights, A the design matrix.
        """
        ratio = np.sum(direction**2, axis=0) / np.sum(W**2, axis=0)
        return _LineSearchPath(W, direction, fields, self.compute_fields(direction), np.zeros(1), 0.0, ratio)

    def _merit_function(self, at: _MoreauEnvelope, v: float) -> float:
        """Return the sum of the Moreau envelopes of the losses, which a line search along an arc must not increase."""
        return float(np.sum(self.losses_and_gradients(at.x)[0]) + v * np.sum(at.p**2) / 2)

    def newton_step(self, W: np.ndarray, gradient: np.ndarray, at: _MoreauEnvelope, v: float) -> np.ndarray:
        """Return the Newton step in the tangent space of the spheres on which the columns lie, (d, s).

        Args:
            W: weights, shape (d inputs, s columns).
            gradient: projected gradient of the risk, (d, s).
            at: Moreau envelope at these weights.
            v: variance in the quadratic term of the envelope.
        """
        options = AugmentedLagrangianOptions.current()
        (d, s), units = W.shape, W / np.linalg.norm(W, axis=0)
        strengths = self.norm_multipliers(W, at.p)
        radial = np.einsum("ia,ab->iab", units, np.eye(s)).reshape(d * s, s)
        if gradient.size > _DIRECT:
            # For a convex loss: strengths of the wrong sign make a shorter step.
            typical = np.linalg.norm(self.apply_design_transpose(at.p)) / np.linalg.norm(W)
            positive = np.tile(np.diag(np.maximum(np.abs(strengths), options.initial_shift * typical)), (d, 1, 1))
            pushed = self._solve_by_conjugate_gradients(gradient, at.curvatures, v, positive).reshape(d * s)
            pulled = [
                self._solve_by_conjugate_gradients(u.reshape(d, s), at.curvatures, v, positive).ravel()
                for u in radial.T
            ]
            border = np.stack(pulled, axis=1)
            step = pushed - border @ np.linalg.solve(radial.T @ border, radial.T @ pushed)
            return -step.reshape(d, s)
        total = self._weighted_gram_matrix(v * at.curvatures)
        mean = max(float(np.trace(total)) / (d * s * v), float(np.max(np.abs(strengths))), np.finfo(float).tiny)

        def lagrangian_hessian() -> np.ndarray:
            found = total / v
            found[np.diag_indices_from(found)] += np.broadcast_to(strengths, (d, s)).ravel()
            along = found @ radial
            found -= along @ radial.T
            found += radial @ ((radial.T @ along + mean * np.eye(s)) @ radial.T - along.T)
            return found

        return -solve_positive_definite(
            lagrangian_hessian, gradient, options.initial_shift * mean, options.shift_factor
        )


class _PenaltyAugmentedLagrangian(_AugmentedLagrangian):
    """The augmented Lagrangian of training with a convex penalty other than a ridge, replaced by its Moreau envelope.

    Fields A W are joined in one array with the scaled weights, as if the design matrix had additional rows, and so are
    their copies and multipliers.
    """

    _scale = 1.0

    def initialise_multipliers(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Return initial fields and weights in one vector, first multipliers, and envelope parameter v."""
        fields, p, first = super().initialise_multipliers(W)
        force = _root_mean_square(super().apply_design_transpose(p))
        if W.any() and force > 0:
            self._scale = float(np.sqrt(first * force / _root_mean_square(W)))
        weight = AugmentedLagrangianOptions.current().proximal_weight
        self.strengths, self.centre = np.array([weight * self._scale**2 / first]), W
        return (
            self._join_fields_and_weights(fields, self._scale * W),
            self._join_fields_and_weights(p, np.zeros_like(W)),
            first,
        )

    def final_weights_and_subgradients(self, W: np.ndarray, at: _MoreauEnvelope) -> tuple[np.ndarray, np.ndarray]:
        """Return the final weights, exact at kinks of the penalty, shape (d, s), and the subgradients of the loss.

        Args:
            W: last weights (d, s).
            at: Moreau envelopes of loss and penalty at the last weights.
        """
        assert at.u is not None
        return at.u, self._separate_fields_and_weights(at.p)[0]

    def measure_infeasibility(self, difference: np.ndarray) -> float:
        """Return the r.m.s. violation of constraints: copies equal the fields, copies equal W (the larger one)."""
        samples, rows = self._separate_fields_and_weights(difference)
        return max(_root_mean_square(samples), _root_mean_square(rows) / self._scale)

    def recentre_proximal_term(self, W: np.ndarray, slope: float, infeasibility: float) -> float:
        """Move the centre of the ridge added for convexity to the weights; return its gradient norm before.

        The ridge (proximal method of multipliers) is weakened if its gradient dominates.

        Args:
            W: current weights, the new centre of the ridge.
            slope: size of the gradient of the objective.
            infeasibility: distance from feasibility, see `measure_infeasibility`.
        """
        pull = _root_mean_square(self.strengths * (W - self.centre))
        self.centre = W
        if pull > max(slope, infeasibility):
            self.strengths = self.strengths * AugmentedLagrangianOptions.current().proximal_decrease
        return pull

    def compute_fields(self, W: np.ndarray) -> np.ndarray:
        """Return the fields A W of weights W, joined with the scaled weights, in one vector."""
        return self._join_fields_and_weights(super().compute_fields(W), self._scale * W)

    def apply_design_transpose(self, x: np.ndarray) -> np.ndarray:
        """Return the transposed design matrix, extended by rows for the weights, times a vector: (d, s)."""
        samples, rows = self._separate_fields_and_weights(x)
        return super().apply_design_transpose(samples) + self._scale * rows

    def is_too_concave_for_multiplier(self, W: np.ndarray, fields: np.ndarray, at: _MoreauEnvelope, v: float) -> bool:
        """Return whether the losses are too concave for the multiplier updates to converge; the penalty is convex.

        Args:
            W: weights, shape (d inputs, s columns).
            fields: fields and scaled weights in one vector.
            at: Moreau envelopes at these weights.
            v: variance in the quadratic term of the envelope.
        """
        samples = _MoreauEnvelope(
            self._separate_fields_and_weights(at.x)[0], self._separate_fields_and_weights(at.p)[0], at.curvatures
        )
        return super().is_too_concave_for_multiplier(W, self._separate_fields_and_weights(fields)[0], samples, v)

    def moreau_envelope(self, omega: np.ndarray, v: float) -> _MoreauEnvelope:
        """Return the Moreau envelopes of loss and penalty at given fields and weights.

        Args:
            omega: the fields and scaled weights in one vector.
            v: parameter of the envelope: the variance in its quadratic term.
        """
        samples, rows = self._separate_fields_and_weights(omega)
        at, precision = super().moreau_envelope(samples, v), self._scale**2 / v
        u, response = self.regulariser.proximal_map(rows * self._scale / v, precision, self.instance.teacher_in_penalty)
        x = self._join_fields_and_weights(at.x, self._scale * u)
        return _MoreauEnvelope(
            x, (omega - x) / v, at.curvatures, u, precision * (np.eye(rows.shape[1]) - precision * response)
        )

    def _join_fields_and_weights(self, samples: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return one vector that holds the fields A W of all samples, (n, L tokens, s), then weights, (d, s)."""
        return np.concatenate([samples.ravel(), rows.ravel()])

    def _separate_fields_and_weights(self, joined: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the fields, (n samples, L tokens, s), and the weights, (d, s), that one vector contains."""
        n, L, s = self.shape
        return joined[: n * L * s].reshape(self.shape), joined[n * L * s :].reshape(-1, s)


def _require_positive_ridge(plan: SimulationPlan) -> None:
    """Raise InputError if the penalty is a ridge whose strength is not positive."""
    problem, regulariser = plan.problem, plan.problem.regulariser
    if regulariser.is_ridge and not np.all(regulariser.ridge_strengths > 0):
        name, least = problem.solver.name, regulariser.ridge_strengths.min()
        raise InputError(
            f"the method newton needs a ridge of positive strength, and the ridge of {name} has strength {least:g}; "
            "take another method"
        )


METHOD = TrainingMethod(
    "newton", newton, loss_corners=True, penalty_corners=True, norms=True, check=_require_positive_ridge
)
