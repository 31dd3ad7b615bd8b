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
from ..integration.rule import Averages, Rule
from ..problems import gauge
from ..problems.overlaps import Conjugates, Overlaps, Sizes, block_scales
from ..problems.problem import Problem
from ..problems.reduced import regularise_q
from ..problems.symmetry import NO_SYMMETRY, Symmetry
from .domain import explain_invalid_fields, explain_unbounded_loss, explain_unbounded_weights, step_within_domain


@dataclass(frozen=True)
class AveragesCacheOptions(AlgorithmOptions):
    """Options of the cache of channel averages.

    Attributes:
        max_states: states of a problem whose averages are kept; more save evaluations, but take memory.
    """

    max_states: int = 8


def conjugates_of(problem: Problem, overlaps: Overlaps, moments: np.ndarray) -> Conjugates:
    """Return the conjugates that belong to overlaps.

    Args:
        problem: that the overlaps belong to.
        overlaps: of the student and the teacher.
        moments: channel averages at these, (C, row).

    Raises:
        DomainError: rho* - theta^T q^(-1) theta is not positive definite.
    """
    hats, known = Conjugates.empty(overlaps.sizes), regularise_q(problem, overlaps)
    blocks = known.q, *overlaps.blocks[1:]
    if not problem.solver.prior.conjugates(problem.alpha, moments, *blocks, problem.law.rho_star, *hats.blocks):
        raise DomainError("rho* - theta^T q^(-1) theta is not positive definite")
    return hats


@dataclass
class StateMap:
    """The saddle-point map u -> G(u) of a problem under a quadrature rule.

    Attributes:
        problem: with alpha given.
        rule: of the channel averages.
        symmetry: imposed on all iterates, even if the rule breaks it.
        evaluations: number of channel averages taken so far.
    """

    problem: Problem
    rule: Rule
    symmetry: Symmetry = NO_SYMMETRY
    evaluations: int = field(default=0)

    @cached_property
    def rotations(self) -> np.ndarray:
        """Generators of the rotations of the student's columns that are symmetries, (k, s, s)."""
        return gauge.rotation_generators(self.problem)

    def orbit_directions(self, u: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return orthonormal directions (n, k) of the orbit through u that keep the symmetry, in block scales.

        Args:
            u: packed overlaps, (n,).
            sizes: (C, s, t, P).
        """
        if not len(self.rotations):
            return np.empty((len(u), 0))
        found = gauge.orbit_tangents(self.rotations, Overlaps.unpack(u, sizes))
        if self.symmetry.is_trivial or not found.size:
            return found
        broken = np.stack([along - self.symmetry.project(along, sizes) for along in found.T], axis=1)
        _, values, directions = np.linalg.svd(broken, full_matrices=True)
        clear = np.concatenate([values, np.zeros(len(directions) - len(values))]) < 1e-8
        return found @ directions[clear].T

    def conjugates(self, overlaps: Overlaps, moments: np.ndarray) -> Conjugates:
        """Return the conjugates that belong to overlaps, see `conjugates_of`.

        Args:
            overlaps: of the student and the teacher.
            moments: channel averages at these, (C, row).
        """
        return conjugates_of(self.problem, overlaps, moments)

    def overlaps(self, hats: Conjugates, phi: np.ndarray) -> Overlaps:
        """Return the overlaps that follow from conjugates.

        Args:
            hats: conjugates.
            phi: trained numbers, (P,), which are copied.

        Raises:
            DomainError: the regulariser with G is not strictly convex (ridge: Lambda + G not positive definite).
        """
        q, V, m, theta = map(np.empty_like, hats.blocks)
        out = Overlaps(q, V, m, theta, phi)
        if not self.problem.bound_prior_map("overlaps")(*hats.blocks, *out.blocks):
            raise DomainError("the regulariser with G = sum gamma V^ is not strictly convex")
        return out

    def update_trained(self, overlaps: Overlaps, moments: np.ndarray) -> np.ndarray:
        """Return the next trained numbers phi, (P,): a Newton-like descent step on alpha E[loss] + ridge phi^2 / 2.

        Args:
            overlaps: with the present phi.
            moments: channel averages at these, (C, row).
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

    def image_from_averages(self, overlaps: Overlaps, moments: np.ndarray) -> np.ndarray:
        """Return the packed image G(u) that follows from averages, (n,).

        Args:
            overlaps: u.
            moments: channel averages at these, (C, row).
        """
        return self.overlaps(self.conjugates(overlaps, moments), self.update_trained(overlaps, moments)).pack()

    def averages(self, overlaps: Overlaps) -> Averages:
        """Return the channel averages at overlaps.

        The last ones of a problem are cached, as checks of the rule, iteration, slopes and error bars share them.

        Raises:
            TimeLimitError: the time left is not enough.
            DomainError: the loss is unbounded below at this V.
        """
        kept, key = self.problem.compute_once(_empty_averages_cache), (self.rule, overlaps.pack().tobytes())
        if key not in kept:
            if budget.has_time_limit():
                budget.check_time_limit(durations.predicted_seconds(self.problem, self.rule))
            if reason := explain_unbounded_loss(self.problem, overlaps):
                raise DomainError(reason)
            self.evaluations += 1
            started = perf_counter()
            found = self.rule.averages(self.problem, overlaps)
            durations.record_duration(self.problem, self.rule, perf_counter() - started)
            kept[key] = found
            for oldest in list(kept)[: -AveragesCacheOptions.current().max_states]:
                del kept[oldest]
        return kept[key]

    def __call__(self, u: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return G(u), packed, from the mean of the averages over replicates, with its symmetry imposed.

        Raises:
            DomainError: u, or the conjugates that follow from it, lie outside their domain.
            TimeLimitError: the time left is not enough for the averages.
        """
        overlaps = Overlaps.unpack(u, sizes)
        return self.impose_symmetry(u, self.image_from_averages(overlaps, self.averages(overlaps).means), sizes)

    def explain_outside(self, u: np.ndarray, sizes: Sizes) -> str:
        """Return in words why G(u) does not exist; empty if it does.

        Args:
            u: packed overlaps, (n,).
            sizes: (C, s, t, P).
        """
        overlaps = Overlaps.unpack(u, sizes)
        if reason := explain_invalid_fields(self.problem, overlaps):
            return reason
        try:
            hats = self.conjugates(overlaps, self.averages(overlaps).means)
            if reason := explain_unbounded_weights(self.problem, hats):
                return reason
            self.overlaps(hats, overlaps.phi)
        except DomainError as error:
            return str(error)
        return ""

    def impose_symmetry(self, u: np.ndarray, image: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return the image of u averaged over its symmetry, without the step along the orbit of u.

        Args:
            u: packed overlaps, (n,).
            image: of u, (n,).
            sizes: (C, s, t, P).
        """
        image = self.symmetry.project(image, sizes)
        if len(self.rotations):
            scales, orbit = block_scales(u, sizes), self.orbit_directions(u, sizes)
            image = image - scales * (orbit @ (orbit.T @ ((image - u) / scales)))
        return image

    def impose_symmetry_on_slopes(
        self, u: np.ndarray, d_image: np.ndarray, d_u: np.ndarray, sizes: Sizes
    ) -> np.ndarray:
        """Return the derivative of `impose_symmetry` at a solution, applied to changes of the image, (n, k).

        Args:
            u: packed overlaps, (n,).
            d_image: changes of the image, (n, k).
            d_u: changes of u, (n, k).
            sizes: (C, s, t, P).
        """
        d_image = np.stack([self.symmetry.project(column, sizes) for column in d_image.T], axis=1)
        if len(self.rotations):
            scales, orbit = block_scales(u, sizes)[:, None], self.orbit_directions(u, sizes)
            d_image = d_image - scales * (orbit @ (orbit.T @ ((d_image - d_u) / scales)))
        return d_image

    def newton_correction(self, matrix: np.ndarray, u: np.ndarray, gap: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return the Newton step (I - J)^{-1} gap orthogonal to the orbit.

        Args:
            matrix: J = dG/du, (n, n).
            u: packed overlaps, (n,).
            gap: G(u) - u, (n,), or several, (k, n).
            sizes: (C, s, t, P).

        Raises:
            LinAlgError: 1 is an eigenvalue of J.
        """
        scales, frozen = block_scales(u, sizes), self.symmetry.frozen
        free = slice(None) if frozen is None else np.flatnonzero(~frozen)
        scaled = ((np.eye(len(u)) - matrix) * scales / scales[:, None])[free][:, free]
        wanted = (gap / scales).T[free]
        if len(self.rotations):
            along = self.orbit_directions(u, sizes)[free]
            across = np.eye(len(along)) - along @ along.T
            solved = across @ np.linalg.solve(across @ scaled @ across + along @ along.T, across @ wanted)
        else:
            solved = np.linalg.solve(scaled, wanted)
        out = np.zeros_like(gap)
        out.T[free] = (solved.T * scales[free]).T
        return out

    def step_inside_domain(self, u: np.ndarray, move: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return u + move, changed to stay in the domain of the fields (`step_within_domain`).

        Args:
            u: packed overlaps, (n,).
            move: the step, (n,).
            sizes: (C, s, t, P).
        """
        return step_within_domain(self.problem, u, move, sizes)

    def project_off_orbit(self, matrix: np.ndarray, u: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return the Jacobian without the directions of the orbit, along which its eigenvalue is trivially 1.

        Args:
            matrix: dG/du, (n, n).
            u: packed overlaps, (n,).
            sizes: (C, s, t, P).
        """
        scales, orbit = block_scales(u, sizes), gauge.orbit_tangents(self.rotations, Overlaps.unpack(u, sizes))
        projector = np.eye(len(u)) - orbit @ orbit.T
        return projector @ (matrix * scales / scales[:, None]) @ projector * scales[:, None] / scales

    def replicate_images(self, u: np.ndarray, sizes: Sizes) -> tuple[np.ndarray, Averages]:
        """Return G(u) of every replicate, (R, n), and the averages.

        Args:
            u: packed overlaps, (n,).
            sizes: (C, s, t, P).
        """
        averages = self.averages(Overlaps.unpack(u, sizes))
        return self.images(u, averages, sizes), averages

    def images(self, u: np.ndarray, averages: Averages, sizes: Sizes) -> np.ndarray:
        """Return G(u) of every replicate, (R, n), from averages at u.

        Args:
            u: packed overlaps, (n,).
            averages: at u.
            sizes: (C, s, t, P).
        """
        overlaps = Overlaps.unpack(u, sizes)
        return np.stack(
            [
                self.impose_symmetry(u, self.image_from_averages(overlaps, moments), sizes)
                for moments in averages.moments
            ]
        )


def _empty_averages_cache(problem: Problem) -> dict[tuple[Rule, bytes], Averages]:
    """Return an empty cache of averages by rule and packed overlaps, the oldest first."""
    return {}


def residual_of(image: np.ndarray, u: np.ndarray, sizes: Sizes) -> float:
    """Return the residual max |G(u) - u| / (block scale).

    Args:
        image: G(u), packed, (n,).
        u: packed overlaps, (n,).
        sizes: (C, s, t, P).
    """
    return float(np.max(np.abs(image - u) / block_scales(u, sizes)))
