"""Losses with corners, and penalties: Newton's method on augmented Lagrangians.

With a row a_{mu,l} = z_{mu,l} / sqrt(d) + tau_c / d for every token, X = A W, a copy x of the fields in the loss and a
multiplier p of x = A W,

    W = argmin tr W^T Lambda W / 2 + sum_mu min_x [loss(x) + |x - omega|^2 / (2 v)],   omega = A W + v p
    p <- (omega - x) / v = -g

p is a slope of the loss at x, at a corner one of many. What W minimises has gradient Lambda W - A^T g and Hessian
Lambda - A^T G A with g and G = dg/domega of the generated proximal map, which knows corners exactly. v is lowered from
one p to the next as fast as few Newton steps follow; once the samples at corners stay the same, each takes one (Li,
Sun, Toh, SIAM J. Optim. 28 (2018) 433).

Where the loss is convex the minimum is found from any start. Where it bends down at minimisers x, G has eigenvalues
above 0 and multipliers need not settle while v is large: p then stays zero, the loss is its Moreau envelope, and v is
lowered until that hardly bends down more than the loss does. What is found is a local minimum.

Any other convex penalty is replaced by its envelope as the loss is: a copy u of W in it has a multiplier y,

    W = argmin sum_i min_u [r(u) + k^2 |u - w_i - (v / k^2) y_i|^2 / (2 v)] + rho |W - W_k|^2 / 2 + the same of the loss
    y <- y + (k^2 / v) (W - u)

with the generated minimisers of r, and the last W as W_k (proximal method of multipliers, Rockafellar, Math. Oper.
Res. 1 (1976) 97): what is minimised is strictly convex although neither envelope need be. Piecewise linear losses and
penalties end at the vertex that solves their linear programme: as many samples and weights are at corners as there are
weights.

Where the norms of the columns are given, W = argmin is that over |w_a| = sigma_a sqrt(d) without the first term.
Lambda in gradient and Hessian is then the multiplier, lambda_a = - w_a^T (A^T p)_a / (d sigma_a^2), and both are
projected across the columns; steps go along arcs of great circles. In place of what multiplies a ridge, curvatures at
corners and the smallness of v make the Hessian positive definite along the sphere, lambda_a being of either sign.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ....base.errors import InputError
from ..design import FLAT, Design, eigen, solve_positive
from ..instance import Instance
from ..method import Descent, Method, Trained
from ..plan import Plan
from ..risk import Risk, Weights, on_sphere

_STEPS, _STEPS_BENT = 30, 200  # for one p, at the most; of losses that bend down
_NEAR = 0.1  # of the gradient at which p is renewed, in units of x - A W
_FAR = 0.1  # of the gradient after all these steps, in units of the change of p, beyond which v was too small
_AT_ONCE, _FEW = 2, 12  # steps
_LOWER_AT_ONCE, _LOWER, _HIGHER = 0.05, 0.5, 10.0  # factors of v
_LEAST = 1e-5  # v, in units of the first: less leaves too few digits of p
_SMOOTHER = 0.3  # factor of v where the loss bends down
_SLOW = 0.1  # of x - A W from one p to the next, beyond which v was too large there
_BENT, _HARDLY = 1.0, 0.02  # curvatures downwards, in units of 1 / v: the most to begin with, those that p bears
_ROUNDING = 1e-13  # of losses, and of x
_WAIT = 20  # renewals of p without progress
_FLATTER = 0.3  # of the slope along a step, above which the step is too long
_HALVINGS = 40
_DIRECT = 6000  # weights beyond which no matrix of them is held
_CLOSE = 1e-3  # relative residual of a Newton step that is iterated, in units of v times the ridge
_MORE = 3.0  # factor of what is added to a Hessian that is not positive definite
_PULL, _WEAKER = 1e-3, 0.3  # of the ridge around the last weights, in units of the first curvature, and its factor
_LITTLE = 1e-4  # the first of it under given norms, in units of the mean curvature


def newton(risk: Risk, start: Weights, descent: Descent) -> Trained:
    """Newton's method on the augmented Lagrangian of loss and penalty.

    The gradient that it reports is the larger of two root mean squares: of the risk's gradient, Lambda W + A^T p or
    y + A^T p, and of x - A W and u - W.
    """
    problem, tolerance, most = risk.problem, descent.tolerance, descent.most
    regulariser = problem.regulariser
    kind = _SplitOnSpheres if regulariser.keeps_norms else _Split if regulariser.is_ridge else _SplitFromPenalty
    split = kind(risk.instance)
    W = on_sphere(problem, start).W
    fields, p, first = split.begin(W)
    v, best, waited, steps, before, bends = first, np.inf, 0, 0, np.inf, False
    while v > _LEAST * first and v * split.envelope(fields + v * p, v).bend > _BENT:
        v *= _SMOOTHER
    while True:
        at, begun = split.envelope(fields + v * p, v), steps
        if not bends and split.bent(W, fields, at, v):
            bends, p = True, np.zeros_like(p)
            at = split.envelope(fields, v)
        enough = min(most, begun + (_STEPS_BENT if bends else _STEPS))
        while True:
            gradient = split.gradient(W, at.p)
            slope, apart = _size(gradient), split.measure_distance(at.x - fields)
            if not slope > max(tolerance / 2, _NEAR * apart) or steps >= enough:
                break
            steps += 1
            direction = split.newton_step(W, gradient, at, v)
            W, fields, at = split.search(split.path(W, direction, fields), at, p, v)
        residual = max(slope + split.recentre(W, slope, apart), apart)
        best, waited = (residual, 0) if residual < best else (best, waited + 1)
        if not residual > tolerance or steps >= most or waited > _WAIT:
            W, p = split.end(W, at)
            weights = on_sphere(problem, Weights(W, start.phi))
            value = replace(risk(weights), multipliers=split.multipliers(weights.W, p))
            return descent.ended(weights, value, residual, steps, p)
        taken, bent = steps - begun, split.bent(W, fields, at, v)
        bends = bends or bent
        p = p if bent else at.p
        if bends:
            v *= _SMOOTHER if bent or apart > _SLOW * before else 1.0
        elif taken == _STEPS and slope > _FAR * apart / v:
            v *= _HIGHER
        elif taken <= _AT_ONCE:
            v *= _LOWER_AT_ONCE
        elif taken <= _FEW or waited:
            v *= _LOWER
        v, before = max(v, _LEAST * first), apart


def _size(x: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(x**2)))


@dataclass(frozen=True)
class _Envelope:
    """At omega: minimisers x and slopes p of the loss there, (n, L, s), and -dg/domega (n, L s, L s).

    Attributes:
        u, rows: of the envelope of the penalty, minimisers (d, s) and curvatures (d, s, s); None where that is a ridge.
    """

    x: np.ndarray
    p: np.ndarray
    curvatures: np.ndarray
    u: np.ndarray | None = None
    rows: np.ndarray | None = None

    @property
    def bend(self) -> float:
        """The largest curvature downwards, zero where there is none."""
        return max(0.0, -float(eigen(self.curvatures)[0].min()))


@dataclass(frozen=True)
class _Path:
    """A step of weights from W along D: (W + t D) / (1 + t^2 r)^(1/2), with r = 0 a straight line, and on spheres of
    given norms great circles, one a column.

    Attributes:
        W, direction: W and D, (d, s); fields, along: F and A D, (n, L, s); strengths: of the ridge, (s,), and centre:
            the weights at which that is zero, (d, s).
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
    def longest(self) -> float:
        """The largest t to try: all the way, an eighth of a circle at the most."""
        return float(1 / np.sqrt(max(1.0, self.ratio.max())))

    def at(self, t: float) -> tuple[np.ndarray, np.ndarray]:
        """Weights (d, s) and fields (n, L, s)."""
        scale = 1 / np.sqrt(1 + t * t * self.ratio)
        return (self.W + t * self.direction) * scale, (self.fields + t * self.along) * scale

    def slope(self, t: float, p: np.ndarray) -> float:
        """Of what is minimised, where p are the slopes of the envelope at t."""
        (W, fields), square = self.at(t), 1 / (1 + t * t * self.ratio)
        pull = self.strengths * (W - self.centre)
        turn = np.sqrt(square) * self.along - t * self.ratio * square * fields
        return float(np.sum(pull * self.direction) + np.sum(p * turn))


class _Split(Design):
    """The envelope of the loss, and Newton's steps, of an instance whose penalty is a ridge.

    Attributes:
        strengths: of the ridge, (s,); centre: the weights at which it is zero.
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

    def begin(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Return fields and slopes (n, L, s) at the first weights, and the first v."""
        fields = Design.fields(self, W)
        p = self.losses(fields)[1]
        return fields, p, _size(fields) / _size(p) if fields.any() and p.any() else 1.0

    def end(self, W: np.ndarray, at: _Envelope) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights (d, s) and the slopes of the loss (n, L, s) where the search has ended."""
        return W, at.p

    def measure_distance(self, difference: np.ndarray) -> float:
        """Return the root mean square of x - A W."""
        return _size(difference)

    def recentre(self, W: np.ndarray, slope: float, apart: float) -> float:
        """Return the size of the gradient of what is minimised, less that of the risk, and prepare for the next p."""
        return 0.0

    def gradient(self, W: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Of what is minimised, (d, s)."""
        return self.strengths * (W - self.centre) + self.back(p)

    def multipliers(self, W: np.ndarray, p: np.ndarray) -> np.ndarray | None:
        """Strengths (s,) of the ridge that keeps given norms; None where none are."""
        return None

    def path(self, W: np.ndarray, direction: np.ndarray, fields: np.ndarray) -> _Path:
        """From W, whose fields are given."""
        return _Path(W, direction, fields, self.fields(direction), self.strengths, self.centre, np.zeros(1))

    def _height(self, at: _Envelope, v: float) -> float:
        """What tells steps up from steps down beside slopes: nothing, where what is minimised is convex."""
        return 0.0

    def losses(self, fields: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n,), and slopes (n, L, s)."""
        values, slopes = np.empty(len(fields)), np.empty(self.shape)
        for labels, own, x, known in self.instance.by_labels(fields):
            values[own], found = self.problem.solver.proximal.losses_at(x, known, self.problem.constants(labels))
            slopes[own] = found.reshape(-1, *self.shape[1:])
        return values, slopes

    def bent(self, W: np.ndarray, fields: np.ndarray, at: _Envelope, v: float) -> bool:
        """Whether the loss of a sample bends down at x, or between x and its fields, by more than p bears."""
        way = fields - at.x
        square = np.sum(way**2, axis=(1, 2))
        here, there = self.losses(fields)[0], self.losses(at.x)[0]
        below = there + np.sum(at.p * way, axis=(1, 2)) - here
        rounding = _ROUNDING * (1 + np.abs(here) + np.sqrt(square * np.sum(at.x**2, axis=(1, 2))) / v)
        secant = below > _HARDLY * square / (2 * v) + rounding
        return v * at.bend > _HARDLY or bool(secant.any())

    def envelope(self, omega: np.ndarray, v: float) -> _Envelope:
        """At omega (n, L, s)."""
        problem, (n, L, s) = self.problem, self.shape
        x, slopes = np.empty(self.shape), np.empty((n, L * s, L * s))
        eye = np.broadcast_to(np.eye(s), (L, s, s))
        for labels, own, at, known in self.instance.by_labels(omega):
            c = problem.constants(labels)
            found, slopes[own] = problem.solver.proximal.proximal_at(at, eye / v, v * eye, known, c, problem.search)
            x[own] = found.reshape(-1, L, s)
        return _Envelope(x, (omega - x) / v, -(slopes + slopes.transpose(0, 2, 1)) / 2)

    def search(self, path: _Path, at: _Envelope, p: np.ndarray, v: float) -> tuple[np.ndarray, np.ndarray, _Envelope]:
        """Weights, fields and envelope all the way along a step, or where what is minimised hardly rises any more.

        Slopes, unlike values, are known to their own relative precision next to the minimum.
        """
        before, t = path.slope(0.0, at.p), path.longest
        height = self._height(at, v)
        for _ in range(_HALVINGS):
            W, fields = path.at(t)
            at = self.envelope(fields + v * p, v)
            slope = path.slope(t, at.p)
            if slope <= _FLATTER * abs(before) and self._height(at, v) <= height + _ROUNDING * (1 + abs(height)):
                break
            t *= float(np.clip(before / (before - slope), 0.1, 0.9)) if slope > before else 0.5
        return W, fields, at

    def newton_step(self, W: np.ndarray, gradient: np.ndarray, at: _Envelope, v: float) -> np.ndarray:
        """-(Lambda + A^T curvatures A)^{-1} gradient, (d, s); Lambda is larger where that is not positive definite."""
        d, s = gradient.shape
        blocks = np.diag(np.broadcast_to(self.strengths, s)) + (np.zeros((d, s, s)) if at.rows is None else at.rows)
        if gradient.size > _DIRECT:
            return -self._iterated(gradient, at.curvatures, v, blocks)
        total = self._weighted(v * at.curvatures)

        def hessian() -> np.ndarray:
            found = total / v
            found.reshape(d, s, d, s)[np.arange(d), :, np.arange(d), :] += blocks
            return found

        return -solve_positive(hessian, gradient, float(np.min(self.strengths)), _MORE)

    def _weighted(self, weights: np.ndarray) -> np.ndarray:
        """A^T weights A, (d s, d s), from the last one and the samples whose weights (n, L s, L s) are others now.

        In units of 1 / v the weight of a corner, and of a straight piece, is the same for every v.
        """
        self.weigh(self._sum, weights - self._weights)
        self._weights = weights
        return self._sum

    def _iterated(self, right: np.ndarray, curvatures: np.ndarray, v: float, blocks: np.ndarray) -> np.ndarray:
        """(Lambda + A^T curvatures A)^{-1} right, (d, s), for positive definite blocks (d, s, s) of Lambda.

        By conjugate gradients for the fields of samples with a curvature above zero (Woodbury).

        Their system is the better conditioned one: a small v makes it no worse.
        """
        from scipy.sparse.linalg import LinearOperator, cg

        n, L, s = self.shape
        values, vectors = eigen(curvatures)
        chosen = values > FLAT / v
        inverse = np.linalg.inv(blocks)
        scaled = np.einsum("iab,ib->ia", inverse, right)
        if not chosen.any():
            return scaled

        def back(t: np.ndarray) -> np.ndarray:
            spread = np.zeros((n, L * s))
            spread[chosen] = t
            pulled = Design.back(self, np.einsum("nak,nk->na", vectors, spread).reshape(self.shape))
            return np.einsum("iab,ib->ia", inverse, pulled)

        def fields(W: np.ndarray) -> np.ndarray:
            return np.einsum("nak,na->nk", vectors, Design.fields(self, W).reshape(n, L * s))[chosen]

        size = int(chosen.sum())
        system = LinearOperator((size, size), matvec=lambda t: t / values[chosen] + fields(back(t)), dtype=float)
        t, _ = cg(system, fields(scaled), rtol=_CLOSE * min(1.0, v * float(eigen(blocks)[0].min())))
        return scaled - back(t)


class _SplitOnSpheres(_Split):
    """The same where the norms of the columns are given."""

    def multipliers(self, W: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Strengths (s,) of the ridge that balances the radial part of A^T p."""
        return -np.sum(W * self.back(p), axis=0) / (self.instance.d * self.regulariser.norms**2)

    def gradient(self, W: np.ndarray, p: np.ndarray) -> np.ndarray:
        """What of A^T p points along the spheres, (d, s)."""
        units = W / np.linalg.norm(W, axis=0)
        back = self.back(p)
        return back - units * np.sum(units * back, axis=0)

    def bent(self, W: np.ndarray, fields: np.ndarray, at: _Envelope, v: float) -> bool:
        """The same, or whether the sphere makes the risk bend down by as much."""
        return v * -float(self.multipliers(W, at.p).min()) > _HARDLY or super().bent(W, fields, at, v)

    def path(self, W: np.ndarray, direction: np.ndarray, fields: np.ndarray) -> _Path:
        """From W, whose fields are given."""
        ratio = np.sum(direction**2, axis=0) / np.sum(W**2, axis=0)
        return _Path(W, direction, fields, self.fields(direction), np.zeros(1), 0.0, ratio)

    def _height(self, at: _Envelope, v: float) -> float:
        """Of the envelope: along an arc it may rise and fall again."""
        return float(np.sum(self.losses(at.x)[0]) + v * np.sum(at.p**2) / 2)

    def newton_step(self, W: np.ndarray, gradient: np.ndarray, at: _Envelope, v: float) -> np.ndarray:
        """The same across the columns: -(P (Lambda + A^T curvatures A) P)^{-1} gradient, Lambda the multipliers."""
        (d, s), units = W.shape, W / np.linalg.norm(W, axis=0)
        strengths = self.multipliers(W, at.p)
        radial = np.einsum("ia,ab->iab", units, np.eye(s)).reshape(d * s, s)
        if gradient.size > _DIRECT:
            # Of a convex loss: strengths of the wrong sign make a shorter step.
            typical = np.linalg.norm(self.back(at.p)) / np.linalg.norm(W)
            positive = np.tile(np.diag(np.maximum(np.abs(strengths), _LITTLE * typical)), (d, 1, 1))
            pushed = self._iterated(gradient, at.curvatures, v, positive).reshape(d * s)
            pulled = [self._iterated(u.reshape(d, s), at.curvatures, v, positive).ravel() for u in radial.T]
            border = np.stack(pulled, axis=1)
            step = pushed - border @ np.linalg.solve(radial.T @ border, radial.T @ pushed)
            return -step.reshape(d, s)
        total = self._weighted(v * at.curvatures)
        mean = max(float(np.trace(total)) / (d * s * v), float(np.max(np.abs(strengths))), np.finfo(float).tiny)

        def hessian() -> np.ndarray:
            found = total / v
            found[np.diag_indices_from(found)] += np.broadcast_to(strengths, (d, s)).ravel()
            along = found @ radial
            found -= along @ radial.T
            found += radial @ ((radial.T @ along + mean * np.eye(s)) @ radial.T - along.T)
            return found

        return -solve_positive(hessian, gradient, _LITTLE * mean, _MORE)


class _SplitFromPenalty(_Split):
    """The same for any convex penalty, by its envelope; the ridge is that around the last W.

    Fields, x and p are joined, in one array, with k W, k u and y / k, as if rows k 1 stood below those of A. The first
    weights determine k: changes of both parts are as large in units of their sizes.
    """

    _scale = 1.0

    def begin(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Return fields and slopes, joined, at the first weights, and the first v; y is zero."""
        fields, p, first = super().begin(W)
        force = _size(super().back(p))
        if W.any() and force > 0:
            self._scale = float(np.sqrt(first * force / _size(W)))
        self.strengths, self.centre = np.array([_PULL * self._scale**2 / first]), W
        return self._join(fields, self._scale * W), self._join(p, np.zeros_like(W)), first

    def end(self, W: np.ndarray, at: _Envelope) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows u, which lie on the corners of the penalty exactly, and the slopes of the loss."""
        assert at.u is not None
        return at.u, self._separate(at.p)[0]

    def measure_distance(self, difference: np.ndarray) -> float:
        """Return the larger of the root mean squares of x - A W and u - W."""
        samples, rows = self._separate(difference)
        return max(_size(samples), _size(rows) / self._scale)

    def recentre(self, W: np.ndarray, slope: float, apart: float) -> float:
        """Return the slope of the ridge around the last W, which lies around this one then, and is weaker where it was
        what kept the weights."""
        pull = _size(self.strengths * (W - self.centre))
        self.centre = W
        if pull > max(slope, apart):
            self.strengths = self.strengths * _WEAKER
        return pull

    def fields(self, W: np.ndarray) -> np.ndarray:
        """(A W, k W)."""
        return self._join(super().fields(W), self._scale * W)

    def back(self, x: np.ndarray) -> np.ndarray:
        """(A^T, k) x, (d, s)."""
        samples, rows = self._separate(x)
        return super().back(samples) + self._scale * rows

    def bent(self, W: np.ndarray, fields: np.ndarray, at: _Envelope, v: float) -> bool:
        """Return whether the loss alone bends down: the penalty is convex."""
        samples = _Envelope(self._separate(at.x)[0], self._separate(at.p)[0], at.curvatures)
        return super().bent(W, self._separate(fields)[0], samples, v)

    def envelope(self, omega: np.ndarray, v: float) -> _Envelope:
        """At omega, fields and rows joined."""
        samples, rows = self._separate(omega)
        at, precision = super().envelope(samples, v), self._scale**2 / v
        u, response = self.regulariser.proximal(rows * self._scale / v, precision, self.instance.known_rows)
        x = self._join(at.x, self._scale * u)
        return _Envelope(
            x, (omega - x) / v, at.curvatures, u, precision * (np.eye(rows.shape[1]) - precision * response)
        )

    def _join(self, samples: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return one array of what belongs to samples (n, L, s) and to rows (d, s)."""
        return np.concatenate([samples.ravel(), rows.ravel()])

    def _separate(self, joined: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what belongs to samples (n, L, s) and to rows (d, s)."""
        n, L, s = self.shape
        return joined[: n * L * s].reshape(self.shape), joined[n * L * s :].reshape(-1, s)


def _check(plan: Plan) -> None:
    """
    Raises:
        InputError: the penalty is a ridge that does not bound the weights.
    """
    problem, regulariser = plan.problem, plan.problem.regulariser
    if regulariser.is_ridge and not np.all(regulariser.strengths > 0):
        name, least = problem.solver.name, regulariser.strengths.min()
        raise InputError(f"newton needs a ridge of positive strength; that of {name} is {least:g}")


METHOD = Method("newton", newton, loss_corners=True, penalty_corners=True, norms=True, check=_check)
