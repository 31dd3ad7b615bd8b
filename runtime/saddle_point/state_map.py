"""The map of the saddle point: overlaps to conjugates (channel) and back to overlaps (prior), u -> G(u).

Convergence is judged on the undamped residual max |G(u) - u| / (size of the block), recomputed at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter

import numpy as np

from ..base import budget
from ..base.errors import DomainError
from ..integration import pace
from ..integration.rule import Averages, Rule
from ..problems import gauge
from ..problems.overlaps import Conjugates, Overlaps, Sizes, block_scales
from ..problems.problem import Problem
from ..problems.reduced import apart
from ..problems.symmetry import NO_SYMMETRY, Symmetry
from .domain import fields_outside, loss_outside, step_inside, weights_outside

_KEPT = 8  # averages of a problem


def conjugates_of(problem: Problem, overlaps: Overlaps, moments: np.ndarray) -> Conjugates:
    """Conjugates from raw averages (C, row); DomainError where the overlaps do not admit them."""
    hats, known = Conjugates.empty(overlaps.sizes), apart(problem, overlaps)
    blocks = known.q, *overlaps.blocks[1:]
    if not problem.solver.prior.conjugates(problem.alpha, moments, *blocks, problem.law.rho_star, *hats.blocks):
        raise DomainError("rho* - theta^T q^(-1) theta is not positive definite")
    return hats


@dataclass
class StateMap:
    """u -> G(u) for a problem and a rule, counting evaluations.

    Attributes:
        symmetry: what the iterates keep exactly, under rules that do not keep it, too.
    """

    problem: Problem
    rule: Rule
    symmetry: Symmetry = NO_SYMMETRY
    evaluations: int = field(default=0)

    @cached_property
    def turns(self) -> np.ndarray:
        """Generators of the rotations of the student's columns that are symmetries, (k, s, s)."""
        return gauge.generators(self.problem)

    def orbit(self, u: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Orthonormal directions (n, k) of the orbit through u along which the symmetry stays, in block scales."""
        if not len(self.turns):
            return np.empty((len(u), 0))
        found = gauge.tangents(self.turns, Overlaps.unpack(u, sizes))
        if self.symmetry.is_trivial or not found.size:
            return found
        broken = np.stack([along - self.symmetry.project(along, sizes) for along in found.T], axis=1)
        _, values, directions = np.linalg.svd(broken, full_matrices=True)
        clear = np.concatenate([values, np.zeros(len(directions) - len(values))]) < 1e-8
        return found @ directions[clear].T

    def conjugates(self, overlaps: Overlaps, moments: np.ndarray) -> Conjugates:
        """Return `conjugates_of` of the problem."""
        return conjugates_of(self.problem, overlaps, moments)

    def overlaps(self, hats: Conjugates, phi: np.ndarray) -> Overlaps:
        """Overlaps from conjugates, with the trained numbers phi beside them.

        Raises:
            DomainError: the regulariser with G is not strictly convex (ridge: Lambda + G not positive definite).
        """
        q, V, m, theta = map(np.empty_like, hats.blocks)
        out = Overlaps(q, V, m, theta, phi)
        if not self.problem.of_prior("overlaps")(*hats.blocks, *out.blocks):
            raise DomainError("the regulariser with G = sum gamma V^ is not strictly convex")
        return out

    def trained(self, overlaps: Overlaps, moments: np.ndarray) -> np.ndarray:
        """The next phi, (P,): a step down the gradient alpha E[dloss/dphi] + ridge phi, in units of its curvature."""
        problem, phi = self.problem, overlaps.phi
        if not len(phi):
            return phi
        offsets = {text: offset for text, _, offset in problem.solver.channel.MOMENTS}
        first, second = (
            problem.alpha * moments[:, start : start + len(phi)].sum(axis=0)  # of one token, or shared among alike ones
            for start in (offsets["loss_phi"], offsets["loss_phi_phi"])
        )
        ridge = np.array([number["ridge"] for number in problem.trained])
        return phi - (first + ridge * phi) / np.maximum(np.abs(second) + ridge, 1e-3 * problem.alpha)

    def image(self, overlaps: Overlaps, moments: np.ndarray) -> np.ndarray:
        """Packed overlaps that follow from the averages (C, row) at the given ones."""
        return self.overlaps(self.conjugates(overlaps, moments), self.trained(overlaps, moments)).pack()

    def averages(self, overlaps: Overlaps) -> Averages:
        """Averages at overlaps; TimeLimitError where the time left is not enough for them, DomainError where the loss
        falls faster than V holds.

        The last ones of a problem are kept: the test whether a rule covers the fields, the iteration from there, slopes
        and error bars all take the same.
        """
        kept, key = self.problem.once(_last_averages), (self.rule, overlaps.pack().tobytes())
        if key not in kept:
            if budget.is_limited():
                budget.check(pace.expected(self.problem, self.rule))
            if reason := loss_outside(self.problem, overlaps):
                raise DomainError(reason)
            self.evaluations += 1
            begun = perf_counter()
            found = self.rule.averages(self.problem, overlaps)
            pace.measured(self.problem, self.rule, perf_counter() - begun)
            kept[key] = found
            for oldest in list(kept)[:-_KEPT]:
                del kept[oldest]
        return kept[key]

    def __call__(self, u: np.ndarray, sizes: Sizes) -> np.ndarray:
        """G(u), packed, from the mean of the averages over replicates, with its symmetry kept (see `kept`).

        Raises:
            DomainError: u, or the conjugates that follow from it, outside their domain.
            TimeLimitError: the time left is not enough for the averages.
        """
        overlaps = Overlaps.unpack(u, sizes)
        return self.kept(u, self.image(overlaps, self.averages(overlaps).means), sizes)

    def why_outside(self, u: np.ndarray, sizes: Sizes) -> str:
        """Why u, or what follows from it, lies outside the domain, in words; empty where G(u) exists."""
        overlaps = Overlaps.unpack(u, sizes)
        if reason := fields_outside(self.problem, overlaps):
            return reason
        try:
            hats = self.conjugates(overlaps, self.averages(overlaps).means)
            if reason := weights_outside(self.problem, hats):
                return reason
            self.overlaps(hats, overlaps.phi)
        except DomainError as error:
            return str(error)
        return ""

    def kept(self, u: np.ndarray, image: np.ndarray, sizes: Sizes) -> np.ndarray:
        """The image of u averaged over its symmetry, without a step along the orbit of u."""
        image = self.symmetry.project(image, sizes)
        if len(self.turns):
            scales, orbit = block_scales(u, sizes), self.orbit(u, sizes)
            image = image - scales * (orbit @ (orbit.T @ ((image - u) / scales)))
        return image

    def kept_slopes(self, u: np.ndarray, d_image: np.ndarray, d_u: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return what `kept` makes of changes (n, k) of the image, where u changes by (n, k), at a solution."""
        d_image = np.stack([self.symmetry.project(column, sizes) for column in d_image.T], axis=1)
        if len(self.turns):
            scales, orbit = block_scales(u, sizes)[:, None], self.orbit(u, sizes)
            d_image = d_image - scales * (orbit @ (orbit.T @ ((d_image - d_u) / scales)))
        return d_image

    def correction(self, matrix: np.ndarray, u: np.ndarray, gap: np.ndarray, sizes: Sizes) -> np.ndarray:
        """(I - J)^{-1} gap across the orbit, for one gap (n,) or several (k, n).

        Args:
            matrix: J = dG/du.

        Raises:
            LinAlgError: 1 is an eigenvalue of J.
        """
        scales, frozen = block_scales(u, sizes), self.symmetry.frozen
        free = slice(None) if frozen is None else np.flatnonzero(~frozen)
        scaled = ((np.eye(len(u)) - matrix) * scales / scales[:, None])[free][:, free]
        wanted = (gap / scales).T[free]
        if len(self.turns):
            along = self.orbit(u, sizes)[free]
            across = np.eye(len(along)) - along @ along.T
            solved = across @ np.linalg.solve(across @ scaled @ across + along @ along.T, across @ wanted)
        else:
            solved = np.linalg.solve(scaled, wanted)
        out = np.zeros_like(gap)
        out.T[free] = (solved.T * scales[free]).T
        return out

    def step(self, u: np.ndarray, move: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return u + move, kept in the domain of the fields (`step_inside`)."""
        return step_inside(self.problem, u, move, sizes)

    def across(self, matrix: np.ndarray, u: np.ndarray, sizes: Sizes) -> np.ndarray:
        """The Jacobian without the directions of the orbit, whose eigenvalue 1 means nothing."""
        scales, orbit = block_scales(u, sizes), gauge.tangents(self.turns, Overlaps.unpack(u, sizes))
        projector = np.eye(len(u)) - orbit @ orbit.T
        return projector @ (matrix * scales / scales[:, None]) @ projector * scales[:, None] / scales

    def replicates(self, u: np.ndarray, sizes: Sizes) -> tuple[np.ndarray, Averages]:
        """G(u) of every replicate, (R, n), and the averages."""
        averages = self.averages(Overlaps.unpack(u, sizes))
        return self.images(u, averages, sizes), averages

    def images(self, u: np.ndarray, averages: Averages, sizes: Sizes) -> np.ndarray:
        """G(u) of every replicate, (R, n), by averages at u."""
        overlaps = Overlaps.unpack(u, sizes)
        return np.stack([self.kept(u, self.image(overlaps, moments), sizes) for moments in averages.moments])


def _last_averages(problem: Problem) -> dict[tuple[Rule, bytes], Averages]:
    """Return the averages of a problem by rule and packed overlaps, the oldest first; none yet."""
    return {}


def residual_of(image: np.ndarray, u: np.ndarray, sizes: Sizes) -> float:
    """max |G(u) - u| / (block scale)."""
    return float(np.max(np.abs(image - u) / block_scales(u, sizes)))
