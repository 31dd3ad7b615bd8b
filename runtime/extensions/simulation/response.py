"""How a minimum answers: the Hessian of the risk, and the variance that every sample has without itself.

With the curvatures D_mu of the loss at the fields of a minimum, R = (r'' + G)^(-1/2) of the rows of W and blocks E of
every row (what the loss holds of q, less G),

    Hessian^(-1) = R M^(-1) R,   M = 1 + R (A^T D A + E) R,   S_mu = A_mu Hessian^(-1) A_mu^T

R vanishes where the penalty has a corner. Directions that are held, as the radial ones under given norms, answer to
nothing: M has a large multiple of their projector besides. Without its own sample the field X_mu has the variance

    V_mu = (S_mu^(-1) - D_mu)^(-1)

of which docs/theory.md (2.4) has the average. It is positive definite where the others alone have a minimum there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .design import Design, solve_positive
from .instance import stream
from .method import Trained
from .risk import Risk, Value, Weights, overlaps_of

DIRECT = 2000  # weights beyond which no matrix of them is held
_PROBES, _STREAM = 8, 11
_CLOSE = 1e-6  # relative residual of what is iterated
_LITTLE, _MORE = 1e-8, 10.0  # added to a Hessian that is not positive definite, relative to its trace, and its factor
_HARD = 1e6  # curvature of what is held
_NARROW = 1e-4  # variance of the envelope at corners, in units of fields over slopes
_SINGULAR = 1e-12
_TINY = 1e-300


class Response:
    """At a minimum.

    Attributes:
        fields, slopes: of the loss at every sample, (n, L s); curvatures: (n, L s, L s), see `curvatures_at`.
        constants: of the loss, by labels.
    """

    def __init__(self, risk: Risk, minimum: Trained) -> None:
        self.risk, self.problem, self.design = risk, risk.problem, Design(risk.instance)
        weights, value = minimum.weights, minimum.value
        self.shape = weights.W.shape
        instance, (n, L, s) = risk.instance, self.design.shape
        overlaps = overlaps_of(instance, weights)
        self.constants = instance.constants(overlaps)
        self.fields = np.ascontiguousarray(self.design.fields(weights.W).reshape(n, L * s))
        every = np.arange(n)
        known = minimum.slopes
        self.slopes = self.losses_at(every, self.fields)[1] if known is None else known.reshape(n, L * s)
        # At a corner the loss has the curvature of its envelope at a variance that is small beside every other.
        self._narrow = _NARROW * float(np.linalg.norm(self.fields) / (np.linalg.norm(self.slopes) + _TINY))
        self.curvatures = self.curvatures_at(every, self.fields, self.slopes)
        self._root, self._blocks = self._of_rows(weights, value)
        self._held = self._directions(weights)
        self._factor = self._factored() if weights.W.size <= DIRECT else None

    def losses_at(self, samples: np.ndarray, fields: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses (N,) and their gradients (N, L s) of samples, repeated ones among them, at fields (N, L s)."""
        values, slopes = np.empty(len(fields)), np.empty_like(fields)
        for labels, of, x, known in self.risk.instance.by_labels(fields, samples):
            values[of], slopes[of] = self.problem.solver.proximal.losses_at(x, known, self.constants[labels])
        return values, slopes

    def curvatures_at(self, samples: np.ndarray, fields: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """Hessians of the loss (N, L s, L s) of samples at fields where it has these slopes, (N, L s) both.

        Where a loss has corners, those of its envelope with a small variance, which is large at them.
        """
        (_, L, s), channel = self.design.shape, self.problem.solver.proximal
        out = np.empty((*fields.shape, L * s))
        if channel.CORNERS:
            eye = np.broadcast_to(np.eye(s), (L, s, s))
            omega = fields + self._narrow * slopes
            for labels, of, at, known in self.risk.instance.by_labels(omega, samples):
                c = self.constants[labels]
                out[of] = -channel.proximal_at(at, eye / self._narrow, self._narrow * eye, known, c, 0)[1]
            return (out + out.transpose(0, 2, 1)) / 2
        rows, columns = np.triu_indices(L * s)
        upper = np.empty((len(fields), len(rows)))
        for labels, of, x, known in self.risk.instance.by_labels(fields, samples):
            pairs, c = zip(x.tolist(), known.tolist(), strict=True), self.constants[labels]
            upper[of] = np.array([channel.loss_hessian(*at, *k, c) for at, k in pairs]).reshape(len(x), len(rows))
        out[:, rows, columns] = out[:, columns, rows] = upper
        return out

    def _directions(self, minimum: Weights) -> np.ndarray:
        """What is held, as orthonormal rows in the coordinates of M, (k, d, s)."""
        held = self.risk.held(minimum)
        if self._root is None or not len(held):
            return held
        flat = np.array([self._rooted(direction).ravel() for direction in held])
        return np.ascontiguousarray(np.linalg.qr(flat.T)[0].T).reshape(held.shape)

    def _of_rows(self, minimum: Weights, value: Value) -> tuple[np.ndarray | None, np.ndarray]:
        """R (d, s, s), None where it is 1, and E (d, s, s)."""
        regulariser, s = self.problem.regulariser, self.shape[1]
        through_q = self.risk.curvature_through_q(self.fields, self.constants)
        blocks = through_q - np.eye(s)
        if regulariser.is_quadratic:
            strengths = regulariser.strengths if value.multipliers is None else value.multipliers
            return None, blocks + np.diag(strengths)
        data = self.design.back(self.slopes.reshape(self.design.shape)) + np.einsum("iab,ib->ia", through_q, minimum.W)
        _, responses = regulariser.proximal(minimum.W - data, 1.0, self.risk.instance.known_rows)
        values, vectors = np.linalg.eigh(responses)
        return np.einsum("iab,ib,icb->iac", vectors, np.sqrt(np.maximum(values, 0.0)), vectors), blocks

    def _rooted(self, W: np.ndarray) -> np.ndarray:
        return W if self._root is None else np.einsum("iab,ib->ia", self._root, W)

    def _times(self, W: np.ndarray, curvatures: np.ndarray) -> np.ndarray:
        """M W at curvatures of the samples."""
        at = self._rooted(W)
        fields = self.design.fields(at)
        pulled = np.einsum("nab,nb->na", curvatures, fields.reshape(len(fields), -1)).reshape(fields.shape)
        out = W + self._rooted(self.design.back(pulled) + np.einsum("iab,ib->ia", self._blocks, at))
        return out + _HARD * np.einsum("k,kia->ia", np.einsum("kia,ia->k", self._held, W), self._held)

    def _factored(self) -> np.ndarray:
        """M^(-1), (d s, d s)."""
        (d, s), size = self.shape, self.shape[0] * self.shape[1]
        total = np.zeros((size, size))
        self.design.weigh(total, self.curvatures)
        blocks = total.reshape(d, s, d, s)
        blocks[np.arange(d), :, np.arange(d), :] += self._blocks
        if self._root is not None:
            blocks = np.einsum("iab,ibjc,jcd->iajd", self._root, blocks, self._root, optimize=True)
            total = blocks.reshape(size, size)
        held = self._held.reshape(-1, size)
        total += _HARD * held.T @ held
        total[np.diag_indices(size)] += 1
        return solve_positive(total.copy, np.eye(size), _LITTLE * abs(np.trace(total)) / size, _MORE)

    def solve(self, right: np.ndarray, curvatures: np.ndarray) -> np.ndarray:
        """Hessian^(-1) right, (d, s), at other curvatures (n, L s, L s) of a few samples."""
        from scipy.sparse.linalg import LinearOperator, cg

        def flat(function: Callable[[np.ndarray], np.ndarray]) -> LinearOperator:
            size = right.size
            return LinearOperator((size, size), lambda x: function(x.reshape(self.shape)).ravel(), dtype=float)

        first = None
        if self._factor is not None:
            factor = self._factor
            first = flat(lambda W: factor @ W.ravel())
        system = flat(lambda W: self._times(W, curvatures))
        found, _ = cg(system, self._rooted(right).ravel(), rtol=_CLOSE, M=first, maxiter=200)
        return self._rooted(found.reshape(self.shape))

    def variances(self) -> np.ndarray:
        """V_mu (n, L s, L s); beyond DIRECT weights its average, of the diagonal in the tokens."""
        if self._factor is None:
            return self._averaged()
        (n, L, s), (d, _) = self.design.shape, self.shape
        inverse = self._factor.reshape(d, s, d, s)
        if self._root is not None:
            inverse = np.einsum("iab,ibjc,jcd->iajd", self._root, inverse, self._root, optimize=True)
        own = np.empty((n, L * s, L * s))
        columns = [np.ascontiguousarray(inverse[:, a].reshape(d, d * s)) for a in range(s)]
        for span, tokens in self.risk.instance.blocks():
            rows = self.design.rows(span, tokens)
            count = len(rows)
            for a, column in enumerate(columns):
                half = (rows.reshape(-1, d) @ column).reshape(count, L, d, s)
                own[span].reshape(count, L, s, L, s)[:, :, a] = np.einsum("nlib,nki->nlkb", half, rows, optimize=True)
        # At a vertex, as that of a linear programme, the others have no minimum without a sample at a corner.
        without, found = np.eye(L * s) - own @ self.curvatures, np.zeros_like(own)
        sound = np.linalg.svd(without, compute_uv=False)[:, -1] > _SINGULAR
        found[sound] = np.linalg.solve(without[sound], own[sound])
        found = (found + found.transpose(0, 2, 1)) / 2
        sound &= np.linalg.eigvalsh(found)[:, 0] > 0
        if not sound.all():
            found[~sound] = self._averaged()[~sound]
        return found

    def _averaged(self) -> np.ndarray:
        """(1/d) Tr over the coordinates of gamma_c Hessian^(-1), from random signs."""
        instance, (d, s) = self.risk.instance, self.shape
        n, L, _ = self.design.shape
        signs = stream(instance.seed, _STREAM).choice((-1.0, 1.0), (_PROBES, d))
        contexts = np.zeros((self.problem.contexts, s, s))
        for sign in signs:
            for b in range(s):
                right = np.zeros(self.shape)
                right[:, b] = sign
                answer = self.solve(right, self.curvatures)
                contexts[:, :, b] += np.einsum("ic,i,ia->ca", instance.coordinates.gamma, sign, answer)
        contexts = (contexts + contexts.transpose(0, 2, 1)) / (2 * d * _PROBES)
        out = np.zeros((n, L, s, L, s))
        tokens = np.arange(L)
        out[:, tokens, :, tokens, :] = contexts[instance.contexts].transpose(1, 0, 2, 3)
        return out.reshape(n, L * s, L * s)
