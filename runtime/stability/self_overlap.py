"""The drop of a solution's self-overlap due to jumps of the proximal map (docs/theory.md (8.19) to (8.24)).

Two replicas of the weights have the same overlaps and half the squared distance D (an s x s matrix a context). Their
fields omega^1, omega^2 have covariance q and cross-covariance q - D, and

    D^_c(D) = (alpha / 2) E_c[(g^1_l - g^2_l)(g^1_l - g^2_l)^T],  D'_c(D) = E_nu[gamma_c J (sum_c' gamma_c' D^_c') J^T].

For small D, D' = a D + b sqrt(D) + ...: a is the replicon, b > 0 exactly where the proximal map jumps. D = 0 is then
unstable however small b is; the largest fixed point D* is the distance to which two near-minima separate, and no error
of the solution. For a regulariser other than a ridge the prior side is linear in D^ here: an upper bound, exact for
small D.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..base.options import AlgorithmOptions
from ..channel.fields import FieldLaw, field_law
from ..channel.nodes import sobol_normal_points
from ..channel.points import noise_value_indices, proximal_points_at_nodes
from ..integration.estimates import replicate_error_bar
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.domain import conditional_covariance
from .jumps import Jumps, widen_nodes_with_importance_weights

ABSOLUTE, RELATIVE = 1e-3, 0.2  # error bar asked of the self-overlap loss, whichever is wider


@dataclass(frozen=True)
class SelfOverlapOptions(AlgorithmOptions):
    """Options of the search for the largest fixed point D* of the replica-distance map.

    Attributes:
        max_iterations: largest number of iterations of the map with one number of sampled pairs.
        step_tolerance: relative change of the distance D at which the iteration stops.
        max_log2_pairs: base-2 logarithm of the largest number of pairs of fields per replicate; more give smaller
            error bars.
        small_loss: drop of the self-overlap, as a fraction of q, below which D* is taken from an expansion in sqrt(D).
        next_order: relative error of that expansion, divided by the square root of D*.
    """

    max_iterations: int = 60
    step_tolerance: float = 1e-3
    max_log2_pairs: int = 17
    small_loss: float = 6e-3
    next_order: float = 1.6


@dataclass(frozen=True)
class ReplicaDistanceMap:
    """The map from the distance D of two replicas to the new distance D', evaluated by random pairs of fields.

    Attributes:
        problem: the problem that was solved.
        overlaps: overlaps of the solution.
        prior: linear map from the conjugate of the distance to D', (contexts, s, s, contexts, s, s).
        log2: base-2 logarithm of the number of pairs per replicate.
        replicates: number of independent sets of pairs.
        seed: seed of the random pairs.
    """

    problem: Problem
    overlaps: Overlaps
    prior: np.ndarray
    log2: int = 10
    replicates: int = 8
    seed: int = 0

    def __call__(self, distance: np.ndarray) -> np.ndarray:
        """Return the new distance D' by every replicate, (replicates, contexts, s, s).

        Args:
            distance: the distance D of the two replicas, (contexts, s, s).

        Raises:
            DomainError: the overlaps are outside their domain of definition.
        """
        problem = self.problem
        tokens, s = problem.tokens, problem.student_rank
        teacher, student = tokens * problem.teacher_rank, tokens * s
        noise = len(problem.noise_scale)
        hats = np.zeros((self.replicates, problem.contexts, s, s))
        for labels, probability in problem.label_probabilities:
            fields = field_law(problem, self.overlaps, labels)
            context = problem.token_cluster_indices(labels)
            shared, own = _factors_of_shared_and_independent_noise(fields, distance[context])
            for r in range(self.replicates):
                drawn = sobol_normal_points(teacher + 3 * student + noise, self.log2, 9000 + 1000 * self.seed + r, ())
                drawn, weights = widen_nodes_with_importance_weights(drawn, teacher + student)
                parts = drawn[:, teacher : teacher + 3 * student].reshape(len(drawn), 3, tokens, s)
                pairs = []
                for copy in (1, 2):
                    z = np.einsum("lab,nlb->nla", shared, parts[:, 0]) + np.einsum("lab,nlb->nla", own, parts[:, copy])
                    columns = [drawn[:, :teacher], z.reshape(len(z), -1), drawn[:, teacher + 3 * student :]]
                    pairs.append(np.concatenate(columns, axis=1))
                for choice in noise_value_indices(problem):
                    one, two = (proximal_points_at_nodes(problem, fields, nodes, choice=choice) for nodes in pairs)
                    difference = one.g - two.g
                    square = np.einsum("n,nla,nlb->lab", weights * one.weight, difference, difference) / len(drawn)
                    np.add.at(hats[r], context, 0.5 * problem.alpha * probability * square)
        return np.einsum("cabdef,rdef->rcab", self.prior, hats)


def _factors_of_shared_and_independent_noise(fields: FieldLaw, distance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return matrices A and B such that fields A x + B x_1 and A x + B x_2 of two replicas have the distance D.

    x is shared, x_1 and x_2 are independent standard normal vectors. Fields are in the coordinates of omega given Y.
    """
    inverse = np.linalg.inv(fields.field_factor)
    relative = inverse @ distance @ inverse.transpose(0, 2, 1)
    values, vectors = np.linalg.eigh((relative + relative.transpose(0, 2, 1)) / 2)
    values = np.clip(values, 0.0, 1.0)
    own = vectors * np.sqrt(values)[:, None, :]
    shared = vectors * np.sqrt(1 - values)[:, None, :]
    return shared, own


@dataclass(frozen=True)
class SelfOverlap:
    """The largest fixed point D* of the replica-distance map, and the drop of the self-overlap.

    For small distances the map is D' = a D + b sqrt(D), with D measured by the largest Tr D / Tr q of a context.

    Attributes:
        distance: the fixed point D*, (contexts, s, s).
        loss: drop of the self-overlap: the largest Tr D* / Tr q of a context.
        error: error bar of `loss`.
        slope: the slope a, which is the replicon.
        root: the coefficient b, due to jumps of the proximal map.
        root_error: error bar of `root`.
        sampled: whether D* was found from random pairs of fields; otherwise from a and b.
    """

    distance: np.ndarray
    loss: float
    error: float
    slope: float
    root: float
    root_error: float
    sampled: bool


def relative_replica_distance(distance: np.ndarray, overlaps: Overlaps) -> float:
    """Return the replica distance D relative to the overlap q: the largest Tr D / Tr q of a context.

    Args:
        distance: the distance D, (contexts, s, s).
        overlaps: overlaps of the solution.
    """
    return float(np.max(np.trace(distance, axis1=1, axis2=2) / np.trace(overlaps.q, axis1=1, axis2=2)))


def replica_distance_map_of_jumps(
    problem: Problem, jumps: Jumps, prior: np.ndarray, distance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the part of the replica-distance map due to jumps, at a small distance D, and its error bar.

    With the jump Dg_l of the field g of token l it is the image under `prior` of
    (alpha / sqrt(pi)) E_c[delta(F_1 - F_2) Dg_l Dg_l^T (sum_l' Dg_l'^T D_l' Dg_l')^(1/2)], context by context; F_1 and
    F_2 are the two lowest minima of the Moreau objective.

    Args:
        problem: problem that was solved.
        jumps: jumps of the proximal map.
        prior: linear map from the conjugate of the distance to the distance, (contexts, s, s, contexts, s, s).
        distance: the distance D, (contexts, s, s).
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
    return images.mean(axis=0), replicate_error_bar(images)


def find_largest_replica_distance(
    finite: ReplicaDistanceMap,
    linear: np.ndarray,
    jumps: Jumps | None,
    slope_error: float = 0.0,
    accuracy: float = ABSOLUTE,
    relative: float = RELATIVE,
) -> SelfOverlap:
    """Return the largest fixed point of the replica-distance map, approached from above.

    Args:
        finite: the replica-distance map.
        linear: matrix of its linear part, the replicon map, on all entries of D.
        jumps: jumps of the proximal map; None if there are none.
        slope_error: error bar of the largest eigenvalue of `linear`.
        accuracy: required error bar of the drop of the self-overlap.
        relative: required error bar relative to the drop; the wider of both is used.

    Raises:
        DomainError: the overlaps are outside their domain of definition.
    """
    options, overlaps = SelfOverlapOptions.current(), finite.overlaps
    values, vectors = np.linalg.eig(linear)
    lead = int(np.argmax(values.real))
    slope = float(values[lead].real)
    direction = np.real(vectors[:, lead]).reshape(overlaps.q.shape)
    direction = direction * np.sign(np.trace(direction.sum(axis=0)) or 1.0)
    root = root_error = 0.0
    if jumps is not None and jumps.has_any_jump:
        image, width = replica_distance_map_of_jumps(
            finite.problem, jumps, finite.prior, direction / relative_replica_distance(direction, overlaps)
        )
        root, root_error = (
            relative_replica_distance(image, overlaps),
            relative_replica_distance(np.abs(width), overlaps),
        )
    elif slope < 1:
        return SelfOverlap(np.zeros_like(overlaps.q), 0.0, 0.0, slope, 0.0, 0.0, False)
    if slope < 1 and jumps is not None:
        small = _replica_distance_by_expansion(finite, linear, jumps, direction)
        loss = relative_replica_distance(small, overlaps)
        if loss < options.small_loss:
            # D* = (b / (1 - a))^2, with independent errors of a and b.
            spread = 2 * float(np.hypot(root_error / max(root, 1e-300), slope_error / (1 - slope)))
            error = loss * (spread + options.next_order * float(np.sqrt(loss)))
            return SelfOverlap(small, loss, error, slope, root, root_error, False)
    start = farthest = conditional_covariance(finite.problem, overlaps)
    while True:
        distance, loss, error = _replica_distance_by_sampling(finite, start)
        if loss > relative_replica_distance(
            farthest, overlaps
        ):  # copies that have only Y in common are as far apart as any
            distance, loss = farthest, relative_replica_distance(farthest, overlaps)
        if error <= max(accuracy, relative * loss) or finite.log2 >= options.max_log2_pairs:
            return SelfOverlap(distance, loss, error, slope, root, root_error, True)
        # Errors fall like one over the root of the number of pairs: these are rare events.
        missing = 2 * np.log2(error / max(accuracy, relative * loss)) if np.isfinite(error) else 1
        finite = replace(finite, log2=min(options.max_log2_pairs, finite.log2 + max(1, round(float(missing)))))
        start = 1.5 * distance if np.isfinite(error) else start


def _replica_distance_by_expansion(
    finite: ReplicaDistanceMap, linear: np.ndarray, jumps: Jumps, direction: np.ndarray
) -> np.ndarray:
    """Return the replica distance D* that solves D = a D + b sqrt(D), for a replicon a below 1."""
    overlaps = finite.overlaps
    distance = 1e-6 * direction / relative_replica_distance(direction, overlaps)
    resolvent = np.linalg.inv(np.eye(len(linear)) - linear)
    for _ in range(200):
        source = replica_distance_map_of_jumps(finite.problem, jumps, finite.prior, distance)[0]
        new = (resolvent @ source.ravel()).reshape(distance.shape)
        change = abs(
            relative_replica_distance(new, overlaps) / max(relative_replica_distance(distance, overlaps), 1e-300) - 1
        )
        distance = new
        if change < 1e-6:
            break
    return distance


def _replica_distance_by_sampling(finite: ReplicaDistanceMap, distance: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return the fixed point D* of a replica-distance map by iteration, with its relative size and error bar."""
    options, overlaps = SelfOverlapOptions.current(), finite.overlaps
    last: tuple[float, float] | None = None
    gain = 0.0
    for _ in range(options.max_iterations):
        images = finite(distance)
        image = images.mean(axis=0)
        before, after = relative_replica_distance(distance, overlaps), relative_replica_distance(image, overlaps)
        if not after > 1e-9:
            return np.zeros_like(distance), 0.0, options.small_loss
        x, y = np.log(before), np.log(after)
        if last is not None and abs(x - last[0]) > 1e-9:
            gain = float(np.clip((y - last[1]) / (x - last[0]), 0.0, 0.95))
        spread = float(replicate_error_bar(np.array([relative_replica_distance(one, overlaps) for one in images])))
        error = spread / max(1 - gain, 0.05)
        if last is not None and abs(y - x) < max(options.step_tolerance, 0.1 * spread / after):
            return image, after, error + abs(after - before) / max(1 - gain, 0.05)
        last = x, y
        step = float(np.clip((y - x) / (1 - gain), -1.5, 1.5))
        distance = image * np.exp(x + step - y)
    return distance, relative_replica_distance(distance, overlaps), float(np.nan)
