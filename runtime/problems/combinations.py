"""Combinations of the fields as the fields of one token (docs/theory.md (11.7)): overlaps go there, averages come back.

g_l = A_l^T g_z by the chain rule, and where an average holds omega_l or Y_l, their regression on xi = (omega_z, y), as
g depends on nothing else. No derivative is taken, so that jumps are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from .overlaps import Overlaps, Sizes, Units

_SINGULAR = 1e-10  # of singular values: below, combinations depend on each other at these parameters

Moments = Sequence[tuple[str, tuple[int, ...], int]]
"""Layout of a token's row of averages: summand, shape, offset."""


def _parts(moments: np.ndarray, layout: Moments) -> dict[str, np.ndarray]:
    """The averages of a row (..., row) by their summands."""
    size = moments.shape[:-1]
    return {text: moments[..., at : at + prod(shape)].reshape(*size, *shape) for text, shape, at in layout}


@dataclass(frozen=True)
class FieldLaw:
    """What the averages of a reduced problem ask of a law of tokens, a case each.

    Attributes:
        rho_star: Cov(y), (N, d_y, d_y); teacher_means: E[y], (N, d_y).
    """

    rho_star: np.ndarray
    teacher_means: np.ndarray


@dataclass(frozen=True)
class Combinations:
    """z = A X + B Y + E u and y = F Y + H u of N cases, beside the law of Y and u: all that overlaps are mapped by.

    Attributes:
        labels: index of the assignment of labels that a case belongs to, (N,); contexts: of its tokens, (N, L).
        share: of that assignment's measure, (N,).
        rows: (N, d_z + d_y, L, s + t), coefficients of X and Y of every token, those of z first.
        known: (N, d_z + d_y, d_z + d_y), what Gaussian noise adds to the covariance of (z, y).
        fields: d_z; students: s.
    """

    labels: np.ndarray
    contexts: np.ndarray
    share: np.ndarray
    rows: np.ndarray
    known: np.ndarray
    fields: int
    students: int
    rho_star: np.ndarray = field(repr=False)
    teacher_means: np.ndarray = field(repr=False)

    @property
    def A(self) -> np.ndarray:
        """(N, d_z, L, s)."""
        return self.rows[:, : self.fields, :, : self.students]

    @cached_property
    def flat(self) -> np.ndarray:
        """The rows with all tokens side by side, (N, d_z + d_y, L (s + t))."""
        return self.rows.reshape(*self.rows.shape[:2], -1)

    @cached_property
    def means(self) -> np.ndarray:
        """What the teacher adds to the means of z, (N, d_z)."""
        return np.einsum(
            "ndlb,nlb->nd", self.rows[:, : self.fields, :, self.students :], self.teacher_means[self.contexts]
        )

    @cached_property
    def law(self) -> FieldLaw:
        """Of y."""
        d = self.fields
        F = self.rows[:, d:, :, self.students :]
        covariance = np.einsum("ndlb,nlbc,nelc->nde", F, self.rho_star[self.contexts], F) + self.known[:, d:, d:]
        return FieldLaw(covariance, np.einsum("ndlb,nlb->nd", F, self.teacher_means[self.contexts]))

    def are_independent(self) -> bool:
        """Whether no combination follows from others at these parameters."""
        count = len(self.rows)
        student = np.linalg.svd(self.A.reshape(count, self.fields, -1), compute_uv=False)
        independent = bool(np.all(student[:, -1] > _SINGULAR * student[:, 0]))
        if self.law.rho_star.shape[1]:
            values = np.linalg.eigvalsh(self.law.rho_star)
            independent &= bool(np.all(values[:, 0] > _SINGULAR * values[:, -1]))
        return independent

    def of_tokens(self, q: np.ndarray, theta: np.ndarray, rho_star: np.ndarray) -> np.ndarray:
        """Cov((omega_l, Y_l), xi), (..., N, L (s + t), d_z + d_y), tokens slowest, of blocks (..., C, ...)."""
        s, width = self.students, self.rows.shape[3]
        count, tokens = self.contexts.shape
        joint = np.zeros((*q.shape[:-3], count, tokens, width, tokens, width))
        for l in range(tokens):
            at, there = self.contexts[:, l], (..., l, slice(None, s), l, slice(None, s))
            joint[there] = q[..., at, :, :]
            joint[..., l, :s, l, s:] = theta[..., at, :, :]
            joint[..., l, s:, l, :s] = np.swapaxes(theta[..., at, :, :], -1, -2)
            joint[..., l, s:, l, s:] = rho_star[..., at, :, :]
        size = tokens * width
        return joint.reshape(*q.shape[:-3], count, size, size) @ np.swapaxes(self.flat, 1, 2)

    def of_combinations(self, of_tokens: np.ndarray) -> np.ndarray:
        """What the tokens' fields add to Cov(xi), (..., N, d_z + d_y, d_z + d_y)."""
        return self.flat @ of_tokens

    def overlaps(self, overlaps: Overlaps) -> Overlaps:
        """Those of z, a context a case."""
        d = self.fields
        covariance = self.of_combinations(self.of_tokens(overlaps.q, overlaps.theta, self.rho_star)) + self.known
        m = self.A.reshape(len(self.A), d, -1) @ overlaps.m[self.contexts].reshape(len(self.A), -1, 1)
        return Overlaps(
            q=covariance[:, :d, :d],
            V=self.squared(overlaps.V),
            m=m[..., 0] + self.means,
            theta=covariance[:, :d, d:],
            phi=overlaps.phi,
        )

    def squared(self, blocks: np.ndarray) -> np.ndarray:
        """sum_l A_l B_l A_l^T, (..., N, d_z, d_z), of blocks (..., C, s, s)."""
        parts = (self.A[:, :, l] @ blocks[..., at, :, :] @ np.swapaxes(self.A[:, :, l], 1, 2)
                 for l, at in enumerate(self.contexts.T))  # fmt: skip
        return sum(parts, np.zeros(1))

    def overlap_changes(self, units: Units) -> np.ndarray:
        """Changes of the packed overlaps of z with the packed overlaps, (n_z, n)."""
        d = self.fields
        joint = self.of_combinations(self.moved(units))
        m = units.m[:, self.contexts].reshape(len(units), len(self.A), -1, 1)
        d_m = (self.A.reshape(len(self.A), d, -1) @ m)[..., 0]
        changes = Overlaps(joint[..., :d, :d], self.squared(units.V), d_m, joint[..., :d, d:], units.phi)
        return np.ascontiguousarray(changes.pack().T)

    def moved(self, units: Units) -> np.ndarray:
        """Changes of `of_tokens` with the packed overlaps, (n, N, L (s + t), d_z + d_y)."""
        return self.of_tokens(units.q, units.theta, np.zeros((len(units), *self.rho_star.shape)))

    def regression_changes(self, overlaps: Overlaps, units: Units) -> np.ndarray:
        """Changes of the regression on xi (`OverlapMaps.regression_at`) with the packed overlaps, (n, N, L (s + t),
        d_z + d_y)."""
        of_tokens = self.of_tokens(overlaps.q, overlaps.theta, self.rho_star)
        inverse = np.linalg.inv(self.of_combinations(of_tokens) + self.known)
        moved = self.moved(units)
        return (moved - of_tokens @ inverse @ self.of_combinations(moved)) @ inverse

    def back(self, own: dict[str, np.ndarray], along: np.ndarray, wanted: Moments, row: int) -> np.ndarray:
        """Averages of the tokens, (..., C, row), from those of z, (..., N, .) by summands, and E[g_z (omega, Y)^T]
        with all tokens side by side; linear in both.

        Args:
            wanted, row: layout and length of the rows asked for.
        """
        s, width = self.students, along.shape[-1] // self.contexts.shape[1]
        out = np.zeros((*along.shape[:-3], len(self.teacher_means), row))
        for l, contexts in enumerate(self.contexts.T):
            back = np.swapaxes(self.A[:, :, l], 1, 2)
            mixed = back @ along[..., l * width : (l + 1) * width]
            answers = {
                "g": back @ own["g"],
                "g*domega.T": mixed[..., :s],
                "g*dY.T": mixed[..., s:],
                "g*g.T": back @ own["g*g.T"] @ np.swapaxes(back, 1, 2),
            }
            if l == 0:  # what a loss that holds trained numbers asks for is told with the first token
                answers = own | answers
            for text, shape, at in wanted:
                if text in answers:
                    values = answers[text].reshape(*answers[text].shape[:-2], -1)
                    for n, context in enumerate(contexts):
                        out[..., context, at : at + prod(shape)] += values[..., n, :]
        return out

    def slope(self, slope: np.ndarray) -> np.ndarray:
        """E[G_ll] of every assignment of labels, (..., K, L, s, s), from those of z, (..., N, 1, d_z, d_z)."""
        own = np.einsum("ndla,...nde,nelb->...nlab", self.A, slope[..., 0, :, :], self.A, optimize=True)
        return self._by_labels(own, 4)

    def square(self, square: np.ndarray) -> np.ndarray:
        """E[G_ll' (x) G_ll'] in the same way, (..., K, L, L, s, s, s, s), from (..., N, 1, 1, d_z, d_z, d_z, d_z)."""
        own = np.einsum(
            "npla,nrmb,nqle,ntmf,...npqrt->...nlmaebf",
            *[self.A] * 4, square[..., 0, 0, :, :, :, :], optimize=True,
        )  # fmt: skip
        return self._by_labels(own, 7)

    def _by_labels(self, values: np.ndarray, axes: int) -> np.ndarray:
        """Sums over the cases of one assignment of labels, weighted with their share of it."""
        values = np.moveaxis(values, -axes, 0)
        out = np.zeros((self.labels.max() + 1, *values.shape[1:]))
        for label, share, value in zip(self.labels, self.share, values, strict=True):
            out[label] += share * value
        return np.moveaxis(out, 0, -axes)


@dataclass(frozen=True)
class OverlapMaps:
    """Where overlaps of given sizes go, as matrices on packed ones: an evaluation is to take microseconds.

    These maps are affine, and read off from what `Combinations` makes of unit vectors.

    Attributes:
        sizes: of the overlaps of z.
        overlaps: of z, packed; of_tokens: Cov((omega_l, Y_l), xi) of all cases; each a matrix (., n) and a constant.
    """

    read: Combinations
    sizes: Sizes
    overlaps: tuple[np.ndarray, np.ndarray]
    of_tokens: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, read: Combinations, sizes: Sizes) -> OverlapMaps:
        """From overlaps of these sizes."""
        units = Units.of(sizes)
        nothing = Overlaps.unpack(np.zeros(len(units)), sizes)
        there, tokens = read.overlaps(nothing), read.of_tokens(nothing.q, nothing.theta, read.rho_star)
        moved = np.ascontiguousarray(read.moved(units).reshape(len(units), -1).T)
        return cls(read, there.sizes, (read.overlap_changes(units), there.pack()), (moved, tokens.ravel()))

    def overlaps_at(self, u: np.ndarray) -> Overlaps:
        """As `Combinations.overlaps`, at packed overlaps (n,)."""
        matrix, constant = self.overlaps
        return Overlaps.unpack(matrix @ u + constant, self.sizes)

    def regression_at(self, u: np.ndarray) -> np.ndarray:
        """R with E[(omega_l, Y_l) | xi] = R_l xi beside their means, at packed overlaps: (N, L (s + t), d_z + d_y)."""
        matrix, constant = self.of_tokens
        of_tokens = (matrix @ u + constant).reshape(*self.read.flat.shape[::2], -1)
        covariance = self.read.of_combinations(of_tokens) + self.read.known
        return of_tokens / covariance if covariance.shape[-1] == 1 else of_tokens @ np.linalg.inv(covariance)


@dataclass(frozen=True)
class RowMaps:
    """How averages of z and y, rows of one layout, come back as the tokens' averages, rows of another: as matrices.

    Attributes:
        contexts: C; known: where the entries of E[g_z xi^T] stand in a row of z, (d_z, d_z + d_y).
        rows: (C row, N row of z); along: (C row, N d_z L (s + t)), of E[g_z (omega, Y)^T], all tokens side by side.
    """

    contexts: int
    known: np.ndarray
    rows: np.ndarray
    along: np.ndarray

    @classmethod
    def of(cls, read: Combinations, layout: Moments, length: int, wanted: Moments, row: int) -> RowMaps:
        """From rows of a layout and length to those of another."""
        cases, fields, joint = len(read.rows), read.fields, read.flat.shape[2]
        own = np.eye(cases * length).reshape(-1, cases, length)
        of_rows = read.back(_parts(own, layout), np.zeros((len(own), cases, fields, joint)), wanted, row)
        along = np.eye(cases * fields * joint).reshape(-1, cases, fields, joint)
        of_along = read.back(_parts(np.zeros((len(along), cases, length)), layout), along, wanted, row)
        places = _parts(np.arange(length), layout)
        return cls(
            contexts=len(read.teacher_means),
            known=np.concatenate([places["g*domega.T"], places["g*dY.T"]], axis=-1),
            rows=np.ascontiguousarray(of_rows.reshape(cases * length, -1).T),
            along=np.ascontiguousarray(of_along.reshape(cases * fields * joint, -1).T),
        )

    def back(self, moments: np.ndarray, regression: np.ndarray) -> np.ndarray:
        """Averages of the tokens, (..., C, row), from those of z and y, (..., N, row of theirs).

        Args:
            regression: (N, L (s + t), d_z + d_y), or with the leading axes, too.
        """
        size = moments.shape[:-2]
        along = moments[..., self.known] @ np.swapaxes(regression, -1, -2)
        out = moments.reshape(*size, -1) @ self.rows.T + along.reshape(*size, -1) @ self.along.T
        return out.reshape(*size, self.contexts, -1)
