"""Linear combinations of the fields that a loss depends on (docs/theory.md (11.7)): maps of overlaps and averages.

The combinations z of student fields and y of teacher fields act as the fields of a problem of one token. A case is one
form of the combinations: a label assignment, with the values of discrete noise. Averages are mapped back by the chain
rule, g_l = A_l^T g_z, and by the regression of omega_l and Y_l on xi = (omega_z, y), as g depends on nothing else. No
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
    """Options of the reduction of a problem to those combinations of fields that its loss depends on.

    Attributes:
        rank_tolerance: relative singular value below which combinations count as linearly dependent, so that the
            problem is not reduced.
    """

    rank_tolerance: float = 1e-10


def _averages_by_product_name(moments: np.ndarray, layout: Moments) -> dict[str, np.ndarray]:
    """Return channel averages, stored as rows, by the name of the averaged product, such as "g*g.T"."""
    size = moments.shape[:-1]
    return {text: moments[..., at : at + prod(shape)].reshape(*size, *shape) for text, shape, at in layout}


@dataclass(frozen=True)
class TeacherFieldLaw:
    """Covariance and mean of the linear combinations y of teacher fields that a loss depends on.

    A case is a label assignment with the values of discrete noise.

    Attributes:
        rho_star: covariance of y, (cases, combinations y, combinations y).
        teacher_means: mean of y, (cases, combinations y).
    """

    rho_star: np.ndarray
    teacher_means: np.ndarray


@dataclass(frozen=True)
class FieldCombinations:
    """The linear combinations z = A X + B Y + E u and y = F Y + H u of fields X, Y and noise u that a loss depends on.

    There are d_z combinations z, with the student, and d_y combinations y, of teacher and noise alone.

    Attributes:
        labels: index of the label assignment that a case belongs to, (cases,).
        contexts: index of the context (token, cluster) of each of its tokens, (cases, L).
        share: conditional probability of the case given that assignment, (cases,).
        rows: coefficients of X and Y of every token in z, then in y, (cases, d_z + d_y, L, s + t).
        known: contribution of Gaussian noise to the covariance of (z, y), (cases, d_z + d_y, d_z + d_y).
        fields: number d_z of the combinations z.
        students: number s of columns of W.
        rho_star: covariance of Y in every context, (contexts, t, t).
        teacher_means: mean of Y in every context, (contexts, t).
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
    def coefficients_of_student_fields(self) -> np.ndarray:
        """Coefficients of the student fields X in the combinations z that the loss depends on, (cases, d_z, L, s)."""
        return self.rows[:, : self.fields, :, : self.students]

    @cached_property
    def coefficients_of_all_tokens(self) -> np.ndarray:
        """Coefficients of all tokens' fields in the combinations z and y that the loss depends on, side by side."""
        return self.rows.reshape(*self.rows.shape[:2], -1)

    @cached_property
    def teacher_contribution_to_means(self) -> np.ndarray:
        """Contribution of the teacher fields to the means of the combinations z of fields that the loss depends on."""
        return np.einsum(
            "ndlb,nlb->nd", self.rows[:, : self.fields, :, self.students :], self.teacher_means[self.contexts]
        )

    @cached_property
    def law_of_teacher_combinations(self) -> TeacherFieldLaw:
        """Covariance and mean of the combinations y of teacher fields that the loss depends on, by label assignment."""
        d = self.fields
        F = self.rows[:, d:, :, self.students :]
        covariance = np.einsum("ndlb,nlbc,nelc->nde", F, self.rho_star[self.contexts], F) + self.known[:, d:, d:]
        return TeacherFieldLaw(covariance, np.einsum("ndlb,nlb->nd", F, self.teacher_means[self.contexts]))

    def are_linearly_independent(self) -> bool:
        """Return whether the combinations z and y of the fields are linearly independent in every case."""
        count = len(self.rows)
        student = np.linalg.svd(self.coefficients_of_student_fields.reshape(count, self.fields, -1), compute_uv=False)
        tolerance = ReductionOptions.current().rank_tolerance
        independent = bool(np.all(student[:, -1] > tolerance * student[:, 0]))
        if self.law_of_teacher_combinations.rho_star.shape[1]:
            values = np.linalg.eigvalsh(self.law_of_teacher_combinations.rho_star)
            independent &= bool(np.all(values[:, 0] > tolerance * values[:, -1]))
        return independent

    def covariance_with_combinations(self, q: np.ndarray, theta: np.ndarray, rho_star: np.ndarray) -> np.ndarray:
        """Return the covariance of all tokens' fields (omega, Y) with the combinations xi = (omega_z, y), case by case.

        Args:
            q: overlap q of the full problem, (..., contexts, s, s).
            theta: overlap theta of the full problem, (..., contexts, s, t).
            rho_star: covariance of the teacher fields Y, (..., contexts, t, t).
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
        return joint.reshape(*q.shape[:-3], count, size, size) @ np.swapaxes(self.coefficients_of_all_tokens, 1, 2)

    def covariance_of_combinations(self, token_covariance: np.ndarray) -> np.ndarray:
        """Return the part of the covariance of the combinations (z, y) of fields that is not due to noise."""
        return self.coefficients_of_all_tokens @ token_covariance

    def overlaps_of_combinations(self, overlaps: Overlaps) -> Overlaps:
        """Return the overlaps of the reduced problem, whose fields are the combinations z that the loss depends on."""
        d = self.fields
        covariance = (
            self.covariance_of_combinations(
                self.covariance_with_combinations(overlaps.q, overlaps.theta, self.rho_star)
            )
            + self.known
        )
        m = self.coefficients_of_student_fields.reshape(len(self.coefficients_of_student_fields), d, -1) @ overlaps.m[
            self.contexts
        ].reshape(len(self.coefficients_of_student_fields), -1, 1)
        return Overlaps(
            q=covariance[:, :d, :d],
            V=self.project_onto_combinations(overlaps.V),
            m=m[..., 0] + self.teacher_contribution_to_means,
            theta=covariance[:, :d, d:],
            phi=overlaps.phi,
        )

    def project_onto_combinations(self, blocks: np.ndarray) -> np.ndarray:
        """Return sum_l A_l B_l A_l^T for matrices B_l; sum_l A_l X_l are the fields that the loss depends on."""
        A = self.coefficients_of_student_fields
        parts = (A[:, :, l] @ blocks[..., at, :, :] @ np.swapaxes(A[:, :, l], 1, 2)
                 for l, at in enumerate(self.contexts.T))  # fmt: skip
        return sum(parts, np.zeros(1))

    def jacobian_of_combination_overlaps(self, units: UnitOverlaps) -> np.ndarray:
        """Return the derivatives of the packed overlaps of the combinations z with respect to those of the weights."""
        d = self.fields
        joint = self.covariance_of_combinations(self.derivatives_of_covariance_with_combinations(units))
        m = units.m[:, self.contexts].reshape(len(units), len(self.coefficients_of_student_fields), -1, 1)
        d_m = (self.coefficients_of_student_fields.reshape(len(self.coefficients_of_student_fields), d, -1) @ m)[..., 0]
        changes = Overlaps(
            joint[..., :d, :d], self.project_onto_combinations(units.V), d_m, joint[..., :d, d:], units.phi
        )
        return np.ascontiguousarray(changes.pack().T)

    def derivatives_of_covariance_with_combinations(self, units: UnitOverlaps) -> np.ndarray:
        """Return the derivatives, in all overlaps, of the covariance of tokens' fields with the combinations (z, y)."""
        return self.covariance_with_combinations(units.q, units.theta, np.zeros((len(units), *self.rho_star.shape)))

    def derivatives_of_regression_coefficients(self, overlaps: Overlaps, units: UnitOverlaps) -> np.ndarray:
        """Return the derivatives of the regression coefficients of the tokens' fields on the combinations (z, y).

        Args:
            overlaps: overlaps at which the derivatives with respect to all packed overlaps are taken.
            units: unit vectors of all packed overlaps.
        """
        token_covariance = self.covariance_with_combinations(overlaps.q, overlaps.theta, self.rho_star)
        inverse = np.linalg.inv(self.covariance_of_combinations(token_covariance) + self.known)
        moved = self.derivatives_of_covariance_with_combinations(units)
        return (moved - token_covariance @ inverse @ self.covariance_of_combinations(moved)) @ inverse

    def token_averages_from_combinations(
        self, own: dict[str, np.ndarray], along: np.ndarray, wanted: Moments, row: int
    ) -> np.ndarray:
        """Return the channel averages of every context (token, cluster) from those over the combinations z of fields.

        The loss depends on the fields through z; g_z is the field g of z. The result is linear in `own` and `along`.

        Args:
            own: averages over z by the name of the averaged product, such as "g*g.T".
            along: averages E[g_z (omega, Y)^T], tokens side by side, (..., cases, d_z, L (s + t)).
            wanted: products to average, with shape and offset in a row of the result.
            row: length of a row of the result.
        """
        s, width = self.students, along.shape[-1] // self.contexts.shape[1]
        out = np.zeros((*along.shape[:-3], len(self.teacher_means), row))
        for l, contexts in enumerate(self.contexts.T):
            back = np.swapaxes(self.coefficients_of_student_fields[:, :, l], 1, 2)
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
        """Return the mean Jacobian dg_l/domega_l of every token and label assignment from that of z in every case."""
        own = np.einsum(
            "ndla,...nde,nelb->...nlab",
            self.coefficients_of_student_fields,
            slope[..., 0, :, :],
            self.coefficients_of_student_fields,
            optimize=True,
        )
        return self._average_over_cases(own, 4)

    def mean_token_jacobian_products(self, square: np.ndarray) -> np.ndarray:
        """Return the mean products of two Jacobians G_ll' = dg_l/domega_l' of tokens, one array per label assignment.

        They follow from those of the combinations z that the loss depends on, given case by case.
        """
        own = np.einsum(
            "npla,nrmb,nqle,ntmf,...npqrt->...nlmaebf",
            *[self.coefficients_of_student_fields] * 4, square[..., 0, 0, :, :, :, :], optimize=True,
        )  # fmt: skip
        return self._average_over_cases(own, 7)

    def _average_over_cases(self, values: np.ndarray, axes: int) -> np.ndarray:
        """Return averages over the cases (values of discrete noise) of every label assignment."""
        values = np.moveaxis(values, -axes, 0)
        out = np.zeros((self.labels.max() + 1, *values.shape[1:]))
        for label, share, value in zip(self.labels, self.share, values, strict=True):
            out[label] += share * value
        return np.moveaxis(out, 0, -axes)


@dataclass(frozen=True)
class OverlapReductionMaps:
    """The affine maps from overlaps of the weights to those of the combinations (z, y) that the loss depends on.

    Attributes:
        read: the combinations.
        sizes: sizes of the overlaps of the combinations z.
        overlaps: matrix and constant of the map to the packed overlaps of z.
        covariance_with_combinations: matrix and constant of the map to the covariance of tokens' fields with (z, y).
    """

    read: FieldCombinations
    sizes: Sizes
    overlaps: tuple[np.ndarray, np.ndarray]
    covariance_with_combinations: tuple[np.ndarray, np.ndarray]

    @classmethod
    def from_combinations(cls, read: FieldCombinations, sizes: Sizes) -> OverlapReductionMaps:
        """Return the maps for given combinations of fields and sizes of the overlaps.

        Args:
            read: the combinations.
            sizes: numbers of contexts, columns of W, columns of W* and trained numbers of the full problem.
        """
        units = UnitOverlaps.from_sizes(sizes)
        nothing = Overlaps.unpack(np.zeros(len(units)), sizes)
        of_z, tokens = (
            read.overlaps_of_combinations(nothing),
            read.covariance_with_combinations(nothing.q, nothing.theta, read.rho_star),
        )
        moved = np.ascontiguousarray(read.derivatives_of_covariance_with_combinations(units).reshape(len(units), -1).T)
        return cls(
            read, of_z.sizes, (read.jacobian_of_combination_overlaps(units), of_z.pack()), (moved, tokens.ravel())
        )

    def map_overlaps_to_combinations(self, u: np.ndarray) -> Overlaps:
        """Return the overlaps of the combinations z that the loss depends on, at packed overlaps `u` of the weights."""
        matrix, constant = self.overlaps
        return Overlaps.unpack(matrix @ u + constant, self.sizes)

    def regression_coefficients_at_overlaps(self, u: np.ndarray) -> np.ndarray:
        """Return the regression coefficients of tokens' fields on the combinations (z, y) at packed overlaps `u`."""
        matrix, constant = self.covariance_with_combinations
        token_covariance = (matrix @ u + constant).reshape(*self.read.coefficients_of_all_tokens.shape[::2], -1)
        covariance = self.read.covariance_of_combinations(token_covariance) + self.read.known
        return (
            token_covariance / covariance if covariance.shape[-1] == 1 else token_covariance @ np.linalg.inv(covariance)
        )


@dataclass(frozen=True)
class MapsToTokenAverages:
    """The linear maps from averages over the combinations (z, y) that the loss depends on to those of every token.

    g_z is the field g of the combinations z.

    Attributes:
        contexts: number of contexts (token, cluster).
        known: positions of the averages E[g_z (z, y)^T] in a row of averages over z.
        rows: matrix that acts on the averages over z.
        along: matrix that acts on the averages E[g_z (omega, Y)^T], tokens side by side.
    """

    contexts: int
    known: np.ndarray
    rows: np.ndarray
    along: np.ndarray

    @classmethod
    def from_combinations(
        cls, read: FieldCombinations, layout: Moments, length: int, wanted: Moments, row: int
    ) -> MapsToTokenAverages:
        """Return the maps for given combinations of fields, from one layout of averages to another.

        Args:
            read: the combinations.
            layout: layout of a row of averages over z.
            length: length of that row.
            wanted: layout of a row of averages of a token.
            row: length of that row.
        """
        cases, fields, joint = len(read.rows), read.fields, read.coefficients_of_all_tokens.shape[2]
        own = np.eye(cases * length).reshape(-1, cases, length)
        of_rows = read.token_averages_from_combinations(
            _averages_by_product_name(own, layout), np.zeros((len(own), cases, fields, joint)), wanted, row
        )
        along = np.eye(cases * fields * joint).reshape(-1, cases, fields, joint)
        of_along = read.token_averages_from_combinations(
            _averages_by_product_name(np.zeros((len(along), cases, length)), layout), along, wanted, row
        )
        places = _averages_by_product_name(np.arange(length), layout)
        return cls(
            contexts=len(read.teacher_means),
            known=np.concatenate([places["g*domega.T"], places["g*dY.T"]], axis=-1),
            rows=np.ascontiguousarray(of_rows.reshape(cases * length, -1).T),
            along=np.ascontiguousarray(of_along.reshape(cases * fields * joint, -1).T),
        )

    def token_averages_from_combinations(self, moments: np.ndarray, regression: np.ndarray) -> np.ndarray:
        """Return the channel averages of every context (token, cluster) from averages over the combinations (z, y).

        (z, y) are the linear combinations of fields that the loss depends on.

        Args:
            moments: averages over z and y, a row per case.
            regression: coefficients of the regression of the tokens' fields on (z, y), case by case.
        """
        size = moments.shape[:-2]
        along = moments[..., self.known] @ np.swapaxes(regression, -1, -2)
        out = moments.reshape(*size, -1) @ self.rows.T + along.reshape(*size, -1) @ self.along.T
        return out.reshape(*size, self.contexts, -1)
