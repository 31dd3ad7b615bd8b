"""The saddle-point map u -> G(u): from overlaps to conjugates (channel) and back to overlaps (prior).

Convergence is measured by the undamped residual max |G(u) - u| / (block scale), recomputed at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter

import numpy as np

from ..base import budget
from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..integration import durations
from ..integration.rule import Rule, SaddlePointAverages
from ..problems import gauge
from ..problems.overlaps import Conjugates, Overlaps, Sizes, block_scales
from ..problems.problem import Problem
from ..problems.reduced import make_q_positive_definite
from ..problems.symmetry import NO_SYMMETRY, StateSymmetry
from .domain import (
    explain_indefinite_covariances,
    explain_unbounded_loss,
    explain_unbounded_weights,
    take_step_within_domain,
)


@dataclass(frozen=True)
class AveragesCacheOptions(AlgorithmOptions):
    """Options of the cache of channel averages (averages of the proximal map over the fields).

    Attributes:
        max_states: largest number of states of a problem whose averages are kept; more save time, but take memory.
    """

    max_states: int = 8


def conjugates_from_overlaps(problem: Problem, overlaps: Overlaps, moments: np.ndarray) -> Conjugates:
    """Return the conjugates q^, V^, m^ and theta^ that the channel averages give at overlaps.

    Args:
        problem: the problem that has these overlaps.
        overlaps: overlaps of student and teacher.
        moments: channel averages at these overlaps, one row per (token, cluster) pair.

    Raises:
        DomainError: rho* - theta^T q^(-1) theta is not positive definite.
    """
    hats, known = Conjugates.empty(overlaps.sizes), make_q_positive_definite(problem, overlaps)
    blocks = known.q, *overlaps.blocks[1:]
    if not problem.solver.prior_functions.conjugates(
        problem.alpha, moments, *blocks, problem.law.rho_star, *hats.blocks
    ):
        raise DomainError("rho* - theta^T q^(-1) theta (covariance of teacher given student) is not positive definite")
    return hats


@dataclass
class SaddlePointMap:
    """The saddle-point map G of a problem by a quadrature rule: solutions are its fixed points u = G(u).

    Attributes:
        problem: the problem, with a value of alpha.
        rule: quadrature rule of the channel averages.
        symmetry: symmetry that is imposed on all iterates, even if the quadrature rule breaks it.
        evaluations: number of evaluations of channel averages so far.
    """

    problem: Problem
    rule: Rule
    symmetry: StateSymmetry = NO_SYMMETRY
    evaluations: int = field(default=0)

    @cached_property
    def student_rotation_generators(self) -> np.ndarray:
        """Return the generators, as (s, s) matrices, of rotations of student columns that are symmetries."""
        return gauge.rotation_symmetry_generators(self.problem)

    def directions_of_symmetry_orbit(self, u: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return orthonormal directions, in columns, along which rotations that are symmetries move the overlaps u.

        Args:
            u: packed overlaps, (n,).
            sizes: numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers.
        """
        if not len(self.student_rotation_generators):
            return np.empty((len(u), 0))
        found = gauge.tangents_of_symmetry_orbit(self.student_rotation_generators, Overlaps.unpack(u, sizes))
        if self.symmetry.is_symmetry_of_every_state or not found.size:
            return found
        broken = np.stack(
            [along - self.symmetry.project_onto_invariant_states(along, sizes) for along in found.T], axis=1
        )
        _, values, directions = np.linalg.svd(broken, full_matrices=True)
        clear = np.concatenate([values, np.zeros(len(directions) - len(values))]) < 1e-8
        return found @ directions[clear].T

    def conjugates_at_overlaps(self, overlaps: Overlaps, moments: np.ndarray) -> Conjugates:
        """Return the conjugates q^, V^, m^ and theta^ that the channel averages give at overlaps.

        Args:
            overlaps: overlaps of student and teacher.
            moments: channel averages at these overlaps, one row per (token, cluster) pair.
        """
        return conjugates_from_overlaps(self.problem, overlaps, moments)

    def overlaps_from_conjugates(self, hats: Conjugates, phi: np.ndarray) -> Overlaps:
        """Return the overlaps that the prior (the regulariser) gives for conjugates.

        Args:
            hats: conjugates q^, V^, m^ and theta^.
            phi: trained numbers, which are copied to the result.

        Raises:
            DomainError: the regulariser with G is not strictly convex (ridge: Lambda + G not positive definite).
        """
        q, V, m, theta = map(np.empty_like, hats.blocks)
        out = Overlaps(q, V, m, theta, phi)
        if not self.problem.prior_map_at_parameters("overlaps")(*hats.blocks, *out.blocks):
            raise DomainError(
                "the regulariser plus w^T G w / 2, G = sum_c gamma_c V^_c (conjugates of V), is not strictly convex"
            )
        return out

    def update_trained_numbers(self, overlaps: Overlaps, moments: np.ndarray) -> np.ndarray:
        """Return the trained numbers phi after a Newton-like descent step on alpha E[loss] + ridge phi^2 / 2.

        Args:
            overlaps: overlaps with the present phi.
            moments: channel averages at these overlaps, one row per (token, cluster) pair.
        """
        problem, phi = self.problem, overlaps.phi
        if not len(phi):
            return phi
        offsets = {text: offset for text, _, offset in problem.solver.channel.MOMENTS}
        first, second = (
            problem.alpha
            * moments[:, start : start + len(phi)].sum(axis=0)  # stored with one token, or shared among equivalent ones
            for start in (offsets["loss_phi"], offsets["loss_phi_phi"])
        )
        ridge = np.array([number["ridge"] for number in problem.trained])
        return phi - (first + ridge * phi) / np.maximum(np.abs(second) + ridge, 1e-3 * problem.alpha)

    def image_from_channel_averages(self, overlaps: Overlaps, moments: np.ndarray) -> np.ndarray:
        """Return the image G(u) of overlaps u, packed, from the channel averages at u.

        Args:
            overlaps: the overlaps u.
            moments: channel averages at these overlaps, one row per (token, cluster) pair.
        """
        return self.overlaps_from_conjugates(
            self.conjugates_at_overlaps(overlaps, moments), self.update_trained_numbers(overlaps, moments)
        ).pack()

    def channel_averages(self, overlaps: Overlaps) -> SaddlePointAverages:
        """Return the channel averages at overlaps, from a cache if they were computed recently.

        The cache serves iteration, derivatives, error bars and checks of the rule, which need the same averages.

        Raises:
            TimeLimitError: the remaining time does not suffice for the averages.
            DomainError: the proximal objective is unbounded below at this V.
        """
        kept, key = self.problem.cached_result_of(_empty_averages_cache), (self.rule, overlaps.pack().tobytes())
        if key not in kept:
            if budget.has_time_limit():
                budget.check_time_limit(durations.predicted_evaluation_seconds(self.problem, self.rule))
            if reason := explain_unbounded_loss(self.problem, overlaps):
                raise DomainError(reason)
            self.evaluations += 1
            started = perf_counter()
            found = self.rule.averages(self.problem, overlaps)
            durations.record_evaluation_duration(self.problem, self.rule, perf_counter() - started)
            kept[key] = found
            for oldest in list(kept)[: -AveragesCacheOptions.current().max_states]:
                del kept[oldest]
        return kept[key]

    def __call__(self, u: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return the image G(u), packed, with the symmetry imposed, averaged over replicates of the quadrature rule.

        Raises:
            DomainError: u, or the conjugates that follow from it, lie outside their domain.
            TimeLimitError: the remaining time does not suffice for the averages.
        """
        overlaps = Overlaps.unpack(u, sizes)
        return self.impose_symmetry_on_image(
            u, self.image_from_channel_averages(overlaps, self.channel_averages(overlaps).means), sizes
        )

    def explain_undefined_map(self, u: np.ndarray, sizes: Sizes) -> str:
        """Return a message that says why the map G is not defined at u; empty if it is.

        Args:
            u: packed overlaps, (n,).
            sizes: numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers.
        """
        overlaps = Overlaps.unpack(u, sizes)
        if reason := explain_indefinite_covariances(self.problem, overlaps):
            return reason
        try:
            hats = self.conjugates_at_overlaps(overlaps, self.channel_averages(overlaps).means)
            if reason := explain_unbounded_weights(self.problem, hats):
                return reason
            self.overlaps_from_conjugates(hats, overlaps.phi)
        except DomainError as error:
            return str(error)
        return ""

    def impose_symmetry_on_image(self, u: np.ndarray, image: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return the image of u, projected on the symmetry, without its component along the symmetry orbit of u.

        Args:
            u: packed overlaps, (n,).
            image: image of u, (n,).
            sizes: numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers.
        """
        image = self.symmetry.project_onto_invariant_states(image, sizes)
        if len(self.student_rotation_generators):
            scales, orbit = block_scales(u, sizes), self.directions_of_symmetry_orbit(u, sizes)
            image = image - scales * (orbit @ (orbit.T @ ((image - u) / scales)))
        return image

    def impose_symmetry_on_derivatives(
        self, u: np.ndarray, d_image: np.ndarray, d_u: np.ndarray, sizes: Sizes
    ) -> np.ndarray:
        """Return derivatives of the image G(u), one per column, after projection on the imposed symmetry.

        Args:
            u: packed overlaps, (n,).
            d_image: derivatives of the image, one per column.
            d_u: derivatives of u, one per column.
            sizes: numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers.
        """
        d_image = np.stack([self.symmetry.project_onto_invariant_states(column, sizes) for column in d_image.T], axis=1)
        if len(self.student_rotation_generators):
            scales, orbit = block_scales(u, sizes)[:, None], self.directions_of_symmetry_orbit(u, sizes)
            d_image = d_image - scales * (orbit @ (orbit.T @ ((d_image - d_u) / scales)))
        return d_image

    def newton_correction(self, matrix: np.ndarray, u: np.ndarray, gap: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return the Newton step (I - J)^{-1} (G(u) - u), orthogonal to the symmetry orbit of u.

        Args:
            matrix: Jacobian J = dG/du, shape (n, n).
            u: packed overlaps, (n,).
            gap: residual G(u) - u, or several residuals in rows.
            sizes: numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers.

        Raises:
            LinAlgError: 1 is an eigenvalue of J.
        """
        scales, frozen = block_scales(u, sizes), self.symmetry.frozen
        free = slice(None) if frozen is None else np.flatnonzero(~frozen)
        scaled = ((np.eye(len(u)) - matrix) * scales / scales[:, None])[free][:, free]
        wanted = (gap / scales).T[free]
        if len(self.student_rotation_generators):
            along = self.directions_of_symmetry_orbit(u, sizes)[free]
            across = np.eye(len(along)) - along @ along.T
            solved = across @ np.linalg.solve(across @ scaled @ across + along @ along.T, across @ wanted)
        else:
            solved = np.linalg.solve(scaled, wanted)
        out = np.zeros_like(gap)
        out.T[free] = (solved.T * scales[free]).T
        return out

    def limit_step_to_domain(self, u: np.ndarray, move: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return the overlaps u after a step, which is reduced so that they stay in the domain of definition.

        Args:
            u: packed overlaps, (n,).
            move: the step, shape (n,).
            sizes: numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers.
        """
        return take_step_within_domain(self.problem, u, move, sizes)

    def project_jacobian_off_symmetry_orbit(self, matrix: np.ndarray, u: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return the Jacobian projected orthogonally to the orbit of a continuous symmetry, where its eigenvalue is 1.

        Args:
            matrix: Jacobian dG/du, shape (n, n).
            u: packed overlaps, (n,).
            sizes: numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers.
        """
        scales, orbit = (
            block_scales(u, sizes),
            gauge.tangents_of_symmetry_orbit(self.student_rotation_generators, Overlaps.unpack(u, sizes)),
        )
        projector = np.eye(len(u)) - orbit @ orbit.T
        return projector @ (matrix * scales / scales[:, None]) @ projector * scales[:, None] / scales

    def map_images_and_averages(self, u: np.ndarray, sizes: Sizes) -> tuple[np.ndarray, SaddlePointAverages]:
        """Return the image G(u) by every replicate of the quadrature rule, in rows, and the channel averages.

        Args:
            u: packed overlaps, (n,).
            sizes: numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers.
        """
        averages = self.channel_averages(Overlaps.unpack(u, sizes))
        return self.map_images_by_replicate(u, averages, sizes), averages

    def map_images_by_replicate(self, u: np.ndarray, averages: SaddlePointAverages, sizes: Sizes) -> np.ndarray:
        """Return the image G(u) by every replicate of the quadrature rule, in rows, given the channel averages at u.

        Args:
            u: packed overlaps, (n,).
            averages: channel averages at u.
            sizes: numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers.
        """
        overlaps = Overlaps.unpack(u, sizes)
        return np.stack(
            [
                self.impose_symmetry_on_image(u, self.image_from_channel_averages(overlaps, moments), sizes)
                for moments in averages.moments
            ]
        )


def _empty_averages_cache(problem: Problem) -> dict[tuple[Rule, bytes], SaddlePointAverages]:
    """Return an empty cache of channel averages, with quadrature rule and packed overlaps as key."""
    return {}


def relative_residual(image: np.ndarray, u: np.ndarray, sizes: Sizes) -> float:
    """Return the largest component of G(u) - u, relative to the size of its block (q, V, m, ...).

    Args:
        image: image G(u), packed, shape (n,).
        u: packed overlaps, (n,).
        sizes: numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers.
    """
    return float(np.max(np.abs(image - u) / block_scales(u, sizes)))
