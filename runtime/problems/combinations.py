"""Linear combinations of the fields that a loss depends on (docs/theory.md (11.7)): maps of overlaps and averages.

The combinations z, y act as the fields of a problem of one token. Averages are mapped back by the chain rule,
g_l = A_l^T g_z, and by the regression of omega_l and Y_l on xi = (omega_z, y), as g depends on nothing else. No
derivative is taken, so that jumps are included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from ..base.options import AlgorithmOptions
from .overlaps import Overlaps, Sizes, UnitOverlaps

Moments = Sequence[tuple[str, tuple[int, ...], int]]
"""Layout of a token's row of averages: summand, shape, offset."""


@dataclass(frozen=True)
class ReductionOptions(AlgorithmOptions):
    """Options of the reduction of averages to the combinations of fields that a loss depends on.

    Attributes:
        rank_tolerance: relative singular value below which combinations count as linearly dependent, so that the
            problem is not reduced.
    """

    rank_tolerance: float = 1e-10


def _split_averages_by_summand(moments: np.ndarray, layout: Moments) -> dict[str, np.ndarray]:
    """Return the channel averages of a row (..., row) as a dict: summand, as g*g.T -> array of its averages."""
    size = moments.shape[:-1]
    return {text: moments[..., at : at + prod(shape)].reshape(*size, *shape) for text, shape, at in layout}


@dataclass(frozen=True)
class TeacherFieldLaw:
    """Covariance and mean of the linear combinations y of teacher fields, for N cases.

    Attributes:
        rho_star: Cov(y), (N, d_y, d_y).
        teacher_means: E[y], (N, d_y).
    """

    rho_star: np.ndarray
    teacher_means: np.ndarray


@dataclass(frozen=True)
class FieldCombinations:
    """The linear combinations z = A X + B Y + E u and y = F Y + H u of the fields in N cases, with the law of Y and u.

    Attributes:
        labels: index of the label assignment that a case belongs to, (N,).
        contexts: context index of each of its tokens, (N, L).
        share: conditional probability of the case given that assignment, (N,).
        rows: (N, d_z + d_y, L, s + t), coefficients of X and Y of every token, those of z first.
        known: contribution of Gaussian noise to the covariance of (z, y), (N, d_z + d_y, d_z + d_y).
        fields: d_z.
        students: s.
        rho_star: Cov(Y) of every context, (C, t, t).
        teacher_means: E[Y] of every context, (C, t).
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
    def student_coefficients(self) -> np.ndarray:
        """Coefficients of X in z, (N, d_z, L, s)."""
        return self.rows[:, : self.fields, :, : self.students]

    @cached_property
    def concatenated_coefficients(self) -> np.ndarray:
        """The coefficient rows with all tokens concatenated, (N, d_z + d_y, L (s + t))."""
        return self.rows.reshape(*self.rows.shape[:2], -1)

    @cached_property
    def teacher_part_of_means(self) -> np.ndarray:
        """Contribution of the teacher fields to the means of the combinations z, (N, d_z)."""
        return np.einsum(
            "ndlb,nlb->nd", self.rows[:, : self.fields, :, self.students :], self.teacher_means[self.contexts]
        )

    @cached_property
    def teacher_combination_law(self) -> TeacherFieldLaw:
        """Covariance and mean of the teacher combinations y in every case."""
        d = self.fields
        F = self.rows[:, d:, :, self.students :]
        covariance = np.einsum("ndlb,nlbc,nelc->nde", F, self.rho_star[self.contexts], F) + self.known[:, d:, d:]
        return TeacherFieldLaw(covariance, np.einsum("ndlb,nlb->nd", F, self.teacher_means[self.contexts]))

    def are_linearly_independent(self) -> bool:
        """Return whether the combinations are linearly independent at these parameters."""
        count = len(self.rows)
        student = np.linalg.svd(self.student_coefficients.reshape(count, self.fields, -1), compute_uv=False)
        tolerance = ReductionOptions.current().rank_tolerance
        independent = bool(np.all(student[:, -1] > tolerance * student[:, 0]))
        if self.teacher_combination_law.rho_star.shape[1]:
            values = np.linalg.eigvalsh(self.teacher_combination_law.rho_star)
            independent &= bool(np.all(values[:, 0] > tolerance * values[:, -1]))
        return independent

    def covariance_with_combinations(self, q: np.ndarray, theta: np.ndarray, rho_star: np.ndarray) -> np.ndarray:
        """Return the covariance of all (omega_l, Y_l) with xi = (omega_z, y), (..., N, L (s + t), d_z + d_y).

        Args:
            q: overlap q of the full problem, (..., C, s, s).
            theta: overlap theta of the full problem, (..., C, s, t).
            rho_star: Cov(Y), (..., C, t, t).
        """
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
        return joint.reshape(*q.shape[:-3], count, size, size) @ np.swapaxes(self.concatenated_coefficients, 1, 2)

    def covariance_of_combinations(self, token_covariance: np.ndarray) -> np.ndarray:
        """Return the contribution of the tokens' fields to Cov(xi), (..., N, d_z + d_y, d_z + d_y)."""
        return self.concatenated_coefficients @ token_covariance

    def combination_overlaps(self, overlaps: Overlaps) -> Overlaps:
        """Return the overlaps of the combinations z, with one context per case."""
        d = self.fields
        covariance = (
            self.covariance_of_combinations(
                self.covariance_with_combinations(overlaps.q, overlaps.theta, self.rho_star)
            )
            + self.known
        )
        m = self.student_coefficients.reshape(len(self.student_coefficients), d, -1) @ overlaps.m[
            self.contexts
        ].reshape(len(self.student_coefficients), -1, 1)
        return Overlaps(
            q=covariance[:, :d, :d],
            V=self.project_onto_combinations(overlaps.V),
            m=m[..., 0] + self.teacher_part_of_means,
            theta=covariance[:, :d, d:],
            phi=overlaps.phi,
        )

    def project_onto_combinations(self, blocks: np.ndarray) -> np.ndarray:
        """Return sum_l A_l B_l A_l^T, (..., N, d_z, d_z), for blocks B (..., C, s, s)."""
        A = self.student_coefficients
        parts = (A[:, :, l] @ blocks[..., at, :, :] @ np.swapaxes(A[:, :, l], 1, 2)
                 for l, at in enumerate(self.contexts.T))  # fmt: skip
        return sum(parts, np.zeros(1))

    def combination_overlap_jacobian(self, units: UnitOverlaps) -> np.ndarray:
        """Return the derivatives of the packed overlaps of z with respect to those of the weights, (n_z, n)."""
        d = self.fields
        joint = self.covariance_of_combinations(self.derivatives_of_covariance_with_combinations(units))
        m = units.m[:, self.contexts].reshape(len(units), len(self.student_coefficients), -1, 1)
        d_m = (self.student_coefficients.reshape(len(self.student_coefficients), d, -1) @ m)[..., 0]
        changes = Overlaps(
            joint[..., :d, :d], self.project_onto_combinations(units.V), d_m, joint[..., :d, d:], units.phi
        )
        return np.ascontiguousarray(changes.pack().T)

    def derivatives_of_covariance_with_combinations(self, units: UnitOverlaps) -> np.ndarray:
        """Return the derivatives of `covariance_with_combinations` by packed overlaps, (n, N, L (s + t), d_z + d_y)."""
        return self.covariance_with_combinations(units.q, units.theta, np.zeros((len(units), *self.rho_star.shape)))

    def regression_coefficient_derivatives(self, overlaps: Overlaps, units: UnitOverlaps) -> np.ndarray:
        """Return the derivatives of the regression coefficients on xi by packed overlaps, (n, N, L (s + t), d_z + d_y).

        Args:
            overlaps: overlaps at which the derivatives are taken.
            units: unit vectors of all packed overlaps.
        """
        token_covariance = self.covariance_with_combinations(overlaps.q, overlaps.theta, self.rho_star)
        inverse = np.linalg.inv(self.covariance_of_combinations(token_covariance) + self.known)
        moved = self.derivatives_of_covariance_with_combinations(units)
        return (moved - token_covariance @ inverse @ self.covariance_of_combinations(moved)) @ inverse

    def token_averages_from_combinations(
        self, own: dict[str, np.ndarray], along: np.ndarray, wanted: Moments, row: int
    ) -> np.ndarray:
        """Return the averages of the tokens, (..., C, row), from those of z; linear in `own` and `along`.

        Args:
            own: averages of z by summands, (..., N, .).
            along: E[g_z (omega, Y)^T] with all tokens concatenated, (..., N, d_z, L (s + t)).
            wanted: layout of the rows of the result.
            row: their length.
        """
        s, width = self.students, along.shape[-1] // self.contexts.shape[1]
        out = np.zeros((*along.shape[:-3], len(self.teacher_means), row))
        for l, contexts in enumerate(self.contexts.T):
            back = np.swapaxes(self.student_coefficients[:, :, l], 1, 2)
            mixed = back @ along[..., l * width : (l + 1) * width]
            answers = {
                "g": back @ own["g"],
                "g*domega.T": mixed[..., :s],
                "g*dY.T": mixed[..., s:],
                "g*g.T": back @ own["g*g.T"] @ np.swapaxes(back, 1, 2),
            }
            if l == 0:  # averages for trained numbers belong to the first token
                answers = own | answers
            for text, shape, at in wanted:
                if text in answers:
                    values = answers[text].reshape(*answers[text].shape[:-2], -1)
                    for n, context in enumerate(contexts):
                        out[..., context, at : at + prod(shape)] += values[..., n, :]
        return out

    def mean_token_jacobians(self, slope: np.ndarray) -> np.ndarray:
        """Return E[dg_l/domega_l] by label assignment from E[dg_z/domega_z] of every case, (..., N, 1, d_z, d_z)."""
        own = np.einsum(
            "ndla,...nde,nelb->...nlab",
            self.student_coefficients,
            slope[..., 0, :, :],
            self.student_coefficients,
            optimize=True,
        )
        return self._average_over_cases(own, 4)

    def mean_token_jacobian_products(self, square: np.ndarray) -> np.ndarray:
        """Return E[G_ll' (x) G_ll'], (..., K, L, L, s, s, s, s), from that of z, (..., N, 1, 1, d_z, d_z, d_z, d_z)."""
        own = np.einsum(
            "npla,nrmb,nqle,ntmf,...npqrt->...nlmaebf",
            *[self.student_coefficients] * 4, square[..., 0, 0, :, :, :, :], optimize=True,
        )  # fmt: skip
        return self._average_over_cases(own, 7)

    def _average_over_cases(self, values: np.ndarray, axes: int) -> np.ndarray:
        """Return averages over the cases of every label assignment, weighted by their conditional probabilities."""
        values = np.moveaxis(values, -axes, 0)
        out = np.zeros((self.labels.max() + 1, *values.shape[1:]))
        for label, share, value in zip(self.labels, self.share, values, strict=True):
            out[label] += share * value
        return np.moveaxis(out, 0, -axes)


@dataclass(frozen=True)
class OverlapReductionMaps:
    """The affine maps, as matrices, from the overlaps of the weights to the overlaps of the combinations z.

    Attributes:
        read: the combinations, whose maps are evaluated at unit vectors.
        sizes: sizes of the overlaps of z.
        overlaps: map to the packed overlaps of z, a matrix (., n) and a constant.
        covariance_with_combinations: map to Cov((omega_l, Y_l), xi) of all cases, a matrix (., n) and a constant.
    """

    read: FieldCombinations
    sizes: Sizes
    overlaps: tuple[np.ndarray, np.ndarray]
    covariance_with_combinations: tuple[np.ndarray, np.ndarray]

    @classmethod
    def from_combinations(cls, read: FieldCombinations, sizes: Sizes) -> OverlapReductionMaps:
        """Return the maps for overlaps of the given sizes.

        Args:
            read: the combinations.
            sizes: (C, s, t, P) of the full problem.
        """
        units = UnitOverlaps.from_sizes(sizes)
        nothing = Overlaps.unpack(np.zeros(len(units)), sizes)
        there, tokens = (
            read.combination_overlaps(nothing),
            read.covariance_with_combinations(nothing.q, nothing.theta, read.rho_star),
        )
        moved = np.ascontiguousarray(read.derivatives_of_covariance_with_combinations(units).reshape(len(units), -1).T)
        return cls(read, there.sizes, (read.combination_overlap_jacobian(units), there.pack()), (moved, tokens.ravel()))

    def combination_overlaps_at(self, u: np.ndarray) -> Overlaps:
        """Return the overlaps of the combinations z at packed overlaps (n,) of the weights."""
        matrix, constant = self.overlaps
        return Overlaps.unpack(matrix @ u + constant, self.sizes)

    def regression_coefficients_at(self, u: np.ndarray) -> np.ndarray:
        """Return R of E[(omega_l, Y_l) | xi] = R_l xi up to means, (N, L (s + t), d_z + d_y), at packed overlaps."""
        matrix, constant = self.covariance_with_combinations
        token_covariance = (matrix @ u + constant).reshape(*self.read.concatenated_coefficients.shape[::2], -1)
        covariance = self.read.covariance_of_combinations(token_covariance) + self.read.known
        return (
            token_covariance / covariance if covariance.shape[-1] == 1 else token_covariance @ np.linalg.inv(covariance)
        )


@dataclass(frozen=True)
class TokenAverageMaps:
    """The linear maps, as matrices, from averages of the combinations z and y to the averages of the tokens.

    Attributes:
        contexts: C.
        known: positions of the entries of E[g_z xi^T] in a row of z, (d_z, d_z + d_y).
        rows: matrix on the averages of z, (C row, N row of z).
        along: matrix on E[g_z (omega, Y)^T] with all tokens concatenated, (C row, N d_z L (s + t)).
    """

    contexts: int
    known: np.ndarray
    rows: np.ndarray
    along: np.ndarray

    @classmethod
    def from_combinations(
        cls, read: FieldCombinations, layout: Moments, length: int, wanted: Moments, row: int
    ) -> TokenAverageMaps:
        """Return the maps from averages in the layout of z to averages in the layout of the tokens.

        Args:
            read: the combinations.
            layout: layout of the averages of z.
            length: number of averages of z.
            wanted: layout of the averages of the tokens.
            row: number of averages of a token.
        """
        cases, fields, joint = len(read.rows), read.fields, read.concatenated_coefficients.shape[2]
        own = np.eye(cases * length).reshape(-1, cases, length)
        of_rows = read.token_averages_from_combinations(
            _split_averages_by_summand(own, layout), np.zeros((len(own), cases, fields, joint)), wanted, row
        )
        along = np.eye(cases * fields * joint).reshape(-1, cases, fields, joint)
        of_along = read.token_averages_from_combinations(
            _split_averages_by_summand(np.zeros((len(along), cases, length)), layout), along, wanted, row
        )
        places = _split_averages_by_summand(np.arange(length), layout)
        return cls(
            contexts=len(read.teacher_means),
            known=np.concatenate([places["g*domega.T"], places["g*dY.T"]], axis=-1),
            rows=np.ascontiguousarray(of_rows.reshape(cases * length, -1).T),
            along=np.ascontiguousarray(of_along.reshape(cases * fields * joint, -1).T),
        )

    def token_averages_from_combinations(self, moments: np.ndarray, regression: np.ndarray) -> np.ndarray:
        """Return the averages of the tokens, (..., C, row), from the averages of the combinations z and y.

        Args:
            moments: averages of z and y, (..., N, row of z).
            regression: (N, L (s + t), d_z + d_y), or also with the leading axes.
        """
        size = moments.shape[:-2]
        along = moments[..., self.known] @ np.swapaxes(regression, -1, -2)
        out = moments.reshape(*size, -1) @ self.rows.T + along.reshape(*size, -1) @ self.along.T
        return out.reshape(*size, self.contexts, -1)
