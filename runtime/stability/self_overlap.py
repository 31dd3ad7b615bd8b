"""The self-overlap that a solution loses to jumps of the proximal map (docs/theory.md (8.19) to (8.24)).

Two copies of the estimate with the same overlaps and half squared distance D (one s x s block a context): their fields
omega^1, omega^2 have covariance q and cross-covariance q - D, and

    D^_c(D) = (alpha / 2) E_c[(g^1_l - g^2_l)(g^1_l - g^2_l)^T],  D'_c(D) = E_nu[gamma_c J (sum_c' gamma_c' D^_c') J^T].

For small D, D' = a D + b sqrt(D) + ...: a is the replicon, b > 0 exactly where the proximal map jumps. D = 0 is then
unstable however small b is; the largest fixed point D* is the distance to which two near-minima separate, and no error
of the solution. For a regulariser other than a ridge the prior side is linear in D^ here: an upper bound, exact for
small D.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..channel.fields import Fields, fields_of
from ..channel.nodes import sobol_normal
from ..channel.points import noise_choices, points_at
from ..integration.estimates import two_standard_errors
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.domain import without_teacher
from .jumps import Jumps, widened

ABSOLUTE, RELATIVE = 1e-3, 0.2  # half width asked of the self-overlap loss, whichever is wider
_STEPS = 60
_AGREED = 1e-3  # relative change of D at which the iteration stops
MOST_PAIRS = 17  # log2, a set
_SMALL = 6e-3  # of q: pairs of fields so near are hardly ever on two sides of a jump, so that a and b say more
_NEXT_ORDER = 1.6  # D* by a and b is too large by about this times its root (seen at D* between 0.04 and 0.1)


@dataclass(frozen=True)
class FiniteMap:
    """D -> D'(D) by independent Sobol sets of pairs of fields.

    Attributes:
        prior: D^ -> D', (C, s, s, C, s, s).
        log2, replicates, seed: 2^log2 pairs a set. (No sign flips: where they are symmetries they repeat a pair.)
    """

    problem: Problem
    overlaps: Overlaps
    prior: np.ndarray
    log2: int = 10
    replicates: int = 8
    seed: int = 0

    def __call__(self, distance: np.ndarray) -> np.ndarray:
        """D' of every replicate, (R, C, s, s), at D (C, s, s).

        Raises:
            DomainError: overlaps outside their domain.
        """
        problem = self.problem
        tokens, s = problem.tokens, problem.student_rank
        teacher, student = tokens * problem.teacher_rank, tokens * s
        noise = len(problem.noise_scale)
        hats = np.zeros((self.replicates, problem.contexts, s, s))
        for labels, probability in problem.label_choices:
            fields = fields_of(problem, self.overlaps, labels)
            context = problem.context_of(labels)
            shared, own = _factors(fields, distance[context])
            for r in range(self.replicates):
                drawn = sobol_normal(teacher + 3 * student + noise, self.log2, 9000 + 1000 * self.seed + r, ())
                drawn, weights = widened(drawn, teacher + student)
                parts = drawn[:, teacher : teacher + 3 * student].reshape(len(drawn), 3, tokens, s)
                pairs = []
                for copy in (1, 2):
                    z = np.einsum("lab,nlb->nla", shared, parts[:, 0]) + np.einsum("lab,nlb->nla", own, parts[:, copy])
                    columns = [drawn[:, :teacher], z.reshape(len(z), -1), drawn[:, teacher + 3 * student :]]
                    pairs.append(np.concatenate(columns, axis=1))
                for choice in noise_choices(problem):
                    one, two = (points_at(problem, fields, nodes, choice=choice) for nodes in pairs)
                    apart = one.g - two.g
                    square = np.einsum("n,nla,nlb->lab", weights * one.weight, apart, apart) / len(drawn)
                    np.add.at(hats[r], context, 0.5 * problem.alpha * probability * square)
        return np.einsum("cabdef,rdef->rcab", self.prior, hats)


def _factors(fields: Fields, distance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """z_i = shared z_0 + own z'_i in coordinates of omega given Y: covariance 1, cross-covariance 1 - F^-1 D F^-T."""
    inverse = np.linalg.inv(fields.field_factor)
    relative = inverse @ distance @ inverse.transpose(0, 2, 1)
    values, vectors = np.linalg.eigh((relative + relative.transpose(0, 2, 1)) / 2)
    values = np.clip(values, 0.0, 1.0)
    own = vectors * np.sqrt(values)[:, None, :]
    shared = vectors * np.sqrt(1 - values)[:, None, :]
    return shared, own


@dataclass(frozen=True)
class SelfOverlap:
    """The largest fixed point D* of the finite map.

    Attributes:
        distance: D*, (C, s, s); loss: max_c Tr D*_c / Tr q_c, and its half width `error`.
        slope: a, the replicon; root: b = |D'_jump| / |D|^(1/2) along the Perron direction, with its half width, for D
            measured by max_c Tr D_c / Tr q_c.
        sampled: whether D* was found from pairs of fields, or from a and b.
    """

    distance: np.ndarray
    loss: float
    error: float
    slope: float
    root: float
    root_error: float
    sampled: bool


def share(distance: np.ndarray, overlaps: Overlaps) -> float:
    """max_c Tr D_c / Tr q_c."""
    return float(np.max(np.trace(distance, axis1=1, axis2=2) / np.trace(overlaps.q, axis1=1, axis2=2)))


def jump_map(problem: Problem, jumps: Jumps, prior: np.ndarray, distance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The leading jump part of D'(D), (C, s, s), and two standard errors of it.

    D^_jump,c = (alpha / sqrt(pi)) E_c[delta(F_1 - F_2) Dg_l Dg_l^T (sum_l' Dg_l'^T D_l' Dg_l')^(1/2)].
    """
    g, context = jumps.field_jump, jumps.context
    spread = np.sqrt(np.maximum(np.einsum("nla,nlab,nlb->n", g, distance[context], g), 0.0))
    values = np.zeros((len(g), *distance.shape))
    rows = np.arange(len(g))
    for l in range(problem.tokens):
        values[rows, context[:, l]] += g[:, l, :, None] * g[:, l, None, :] * spread[:, None, None]
    scale = problem.alpha / np.sqrt(np.pi)
    sums = np.zeros((jumps.replicates, *distance.shape))
    np.add.at(sums, jumps.replicate, scale * values * jumps.weights[:, None, None, None])
    images = np.einsum("cabdef,rdef->rcab", prior, sums)
    return images.mean(axis=0), two_standard_errors(images)


def self_overlap(
    finite: FiniteMap,
    linear: np.ndarray,
    jumps: Jumps | None,
    slope_error: float = 0.0,
    accuracy: float = ABSOLUTE,
    relative: float = RELATIVE,
) -> SelfOverlap:
    """The largest fixed point of the finite map, from above.

    Args:
        linear: the replicon map on D, (C s^2, C s^2), whose root is known to `slope_error`.
        jumps: None where there are none.
        accuracy, relative: half width asked of the self-overlap loss, absolute or relative, whichever is wider.

    Raises:
        DomainError: overlaps outside their domain.
    """
    overlaps = finite.overlaps
    values, vectors = np.linalg.eig(linear)
    lead = int(np.argmax(values.real))
    slope = float(values[lead].real)
    direction = np.real(vectors[:, lead]).reshape(overlaps.q.shape)
    direction = direction * np.sign(np.trace(direction.sum(axis=0)) or 1.0)
    root = root_error = 0.0
    if jumps is not None and jumps.any:
        image, width = jump_map(finite.problem, jumps, finite.prior, direction / share(direction, overlaps))
        root, root_error = share(image, overlaps), share(np.abs(width), overlaps)
    elif slope < 1:
        return SelfOverlap(np.zeros_like(overlaps.q), 0.0, 0.0, slope, 0.0, 0.0, False)
    if slope < 1 and jumps is not None:
        small = _small_fixed_point(finite, linear, jumps, direction)
        loss = share(small, overlaps)
        if loss < _SMALL:
            # D* = (b / (1 - a))^2, with independent errors of a and b.
            spread = 2 * float(np.hypot(root_error / max(root, 1e-300), slope_error / (1 - slope)))
            error = loss * (spread + _NEXT_ORDER * float(np.sqrt(loss)))
            return SelfOverlap(small, loss, error, slope, root, root_error, False)
    start = farthest = without_teacher(finite.problem, overlaps)
    while True:
        distance, loss, error = _sampled_fixed_point(finite, start)
        if loss > share(farthest, overlaps):  # copies that share nothing but Y are as far apart as any
            distance, loss = farthest, share(farthest, overlaps)
        if error <= max(accuracy, relative * loss) or finite.log2 >= MOST_PAIRS:
            return SelfOverlap(distance, loss, error, slope, root, root_error, True)
        # Errors fall like one over the root of the number of pairs: these are rare events.
        missing = 2 * np.log2(error / max(accuracy, relative * loss)) if np.isfinite(error) else 1
        finite = replace(finite, log2=min(MOST_PAIRS, finite.log2 + max(1, round(float(missing)))))
        start = 1.5 * distance if np.isfinite(error) else start


def _small_fixed_point(finite: FiniteMap, linear: np.ndarray, jumps: Jumps, direction: np.ndarray) -> np.ndarray:
    """D* of D' = a D + b sqrt(D), a below 1, by iterating D = (1 - a)^{-1} b sqrt(D)."""
    overlaps = finite.overlaps
    distance = 1e-6 * direction / share(direction, overlaps)
    resolvent = np.linalg.inv(np.eye(len(linear)) - linear)
    for _ in range(200):
        source = jump_map(finite.problem, jumps, finite.prior, distance)[0]
        new = (resolvent @ source.ravel()).reshape(distance.shape)
        change = abs(share(new, overlaps) / max(share(distance, overlaps), 1e-300) - 1)
        distance = new
        if change < 1e-6:
            break
    return distance


def _sampled_fixed_point(finite: FiniteMap, distance: np.ndarray) -> tuple[np.ndarray, float, float]:
    """D* by iteration from above, with secant steps in log |D|; its loss and half width."""
    overlaps = finite.overlaps
    last: tuple[float, float] | None = None
    gain = 0.0
    for _ in range(_STEPS):
        images = finite(distance)
        image = images.mean(axis=0)
        before, after = share(distance, overlaps), share(image, overlaps)
        if not after > 1e-9:
            return np.zeros_like(distance), 0.0, _SMALL
        x, y = np.log(before), np.log(after)
        if last is not None and abs(x - last[0]) > 1e-9:
            gain = float(np.clip((y - last[1]) / (x - last[0]), 0.0, 0.95))
        spread = float(two_standard_errors(np.array([share(one, overlaps) for one in images])))
        error = spread / max(1 - gain, 0.05)
        if last is not None and abs(y - x) < max(_AGREED, 0.1 * spread / after):
            return image, after, error + abs(after - before) / max(1 - gain, 0.05)
        last = x, y
        step = float(np.clip((y - x) / (1 - gain), -1.5, 1.5))
        distance = image * np.exp(x + step - y)
    return distance, share(distance, overlaps), float(np.nan)
