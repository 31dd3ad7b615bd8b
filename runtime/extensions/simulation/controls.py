"""Control variates: averages over a seed's data whose expectations are known, at any d.

The weights of a named start without its noise, W_0, lie in the span of means, encodings and teacher. There, as at
W_0 / 2 and at 0, fields are Gaussian with a known law. Therefore the expectation of the data term R of the
risk is known and, with P the projector on directions u that these fields are independent of (orthogonal to tau_c,
Sigma_c W_0, Sigma_c W*),

    E |P grad R|^2 / d = (n / d^2) E sum_l Tr(P Sigma_c) |gradient of the loss in token l|^2

The risk fluctuates with both from seed to seed: with the labels that were drawn, and with the gradient across. The part
of losses and overlaps that their deviations explain is subtracted (`estimate.MeanEstimate`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...base.options import AlgorithmOptions
from ...channel.nodes import sobol_normal_points
from ...problems.problem import Problem
from ...saddle_point.starts import mixture_coefficients_of_start
from .design import DesignMatrix
from .instance import Instance
from .risk import Weights, overlaps_of_weights

SCALES = 0.0, 0.5, 1.0
COUNT = 2 * len(SCALES)


@dataclass(frozen=True)
class ControlExpectationOptions(AlgorithmOptions):
    """Options of quasi-Monte Carlo for the expectations of control variates, by scrambled Sobol sets.

    Attributes:
        sobol_sets: number of scrambled sets, whose standard deviation gives the error.
        log2_points: base-2 logarithm of the number of points per set; more cost more and remove more fluctuations.
        first_seed: seed of the first set.
    """

    sobol_sets: int = 8
    log2_points: int = 13
    first_seed: int = 77


@dataclass(frozen=True)
class ControlVariates:
    """The control variates of one seed: random numbers of known mean that explain part of its fluctuations.

    They are the data term of the risk, and the squared norm of its gradient orthogonal to means, teacher and start, at
    several multiples of the start weights.

    Attributes:
        deviations: deviations of the control variates from their expectations.
        errors: standard errors of these expectations, common to all seeds.
    """

    deviations: np.ndarray
    errors: np.ndarray

    def join_control_variates(self, other: ControlVariates) -> ControlVariates:
        """Return one set with the control variates of this seed and those of another run on the same data."""
        both = (self.deviations, other.deviations), (self.errors, other.errors)
        return ControlVariates(*map(np.concatenate, both))


def compute_control_variates(instance: Instance, start: str) -> ControlVariates:
    """Return control variates for the mean training loss and overlaps over seeds, from the data of one seed.

    Args:
        instance: teacher and data drawn with one seed.
        start: named start whose weights, in the span of means and teacher, have Gaussian fields of known law.
    """
    options = ControlExpectationOptions.current()
    count, log2, first = options.sobol_sets, options.log2_points, options.first_seed
    mix = mixture_coefficients_of_start(instance.problem, start)[0]
    known, phi = (
        instance.eigenbasis_coordinates,
        np.array([float(number["start"]) for number in instance.problem.trained]),
    )
    W = np.concatenate([known.tau, known.pi], axis=1) @ mix.T
    projector = _OrthogonalProjector(instance, W)
    rows = [_measure_control_variates(instance, Weights(scale * W, phi), projector) for scale in SCALES]
    sets = np.array(
        [_expected_control_variates(instance, Weights(W, phi), projector, log2, first + k) for k in range(count)]
    )
    return ControlVariates(np.ravel(rows) - sets.mean(axis=0), sets.std(axis=0, ddof=1) / np.sqrt(count))


class _OrthogonalProjector:
    """The projector orthogonal to the means, and to token covariances times teacher and start weights.

    The attribute `traces` has the trace of the projected token covariance for each (token, cluster) pair.
    """

    def __init__(self, instance: Instance, W: np.ndarray) -> None:
        known = instance.eigenbasis_coordinates
        fields = np.concatenate([W, known.pi], axis=1)
        spanning = np.concatenate([known.tau, *(gamma[:, None] * fields for gamma in known.gamma.T)], axis=1)
        left, sizes, _ = np.linalg.svd(spanning, full_matrices=False)
        self._basis = left[:, sizes > 1e-10 * sizes[0]]
        self.traces = known.gamma.sum(axis=0) - np.einsum("ik,ic,ik->c", self._basis, known.gamma, self._basis)

    def projected_square_norm(self, gradient: np.ndarray) -> float:
        """Return the squared norm of a gradient after projection orthogonal to means, teacher and start weights."""
        return float(np.sum(gradient**2) - np.sum((self._basis.T @ gradient) ** 2))


def _measure_control_variates(
    instance: Instance, weights: Weights, projector: _OrthogonalProjector
) -> tuple[float, float]:
    """Return control variates on given data: sum of losses and squared norm of its projected gradient, per d."""
    problem, design = instance.problem, DesignMatrix(instance)
    overlaps = overlaps_of_weights(instance, weights)
    fields = design.compute_fields(weights.W)
    total, slopes = 0.0, np.empty_like(fields)
    for labels, own, x, known in instance.group_samples_by_labels(fields):
        values, slope = problem.solver.proximal.losses_at(x, known, problem.constants(labels, overlaps))
        total += float(values.sum())
        slopes[own] = slope.reshape(-1, *fields.shape[1:])
    return total / instance.d, projector.projected_square_norm(design.apply_design_transpose(slopes)) / instance.d


def _expected_control_variates(
    instance: Instance, weights: Weights, projector: _OrthogonalProjector, log2: int, seed: int
) -> np.ndarray:
    """Return the expectations of control variates over random data, by quasi-Monte Carlo (one Sobol set)."""
    problem, known, d = instance.problem, instance.eigenbasis_coordinates, instance.d
    L, s, t = problem.tokens, problem.student_rank, problem.teacher_rank
    channel, scales = problem.solver.proximal, len(problem.noise_scale)
    nodes = sobol_normal_points(L * (s + t) + scales, log2, seed, ())
    rows = np.concatenate([weights.W, known.pi], axis=1)
    out = np.zeros((len(SCALES), 2))
    for labels, probability in problem.label_probabilities:
        contexts = problem.token_cluster_indices(labels)
        fields = np.empty((len(nodes), L, s + t))
        for l, c in enumerate(contexts):
            values, vectors = np.linalg.eigh(rows.T @ (known.gamma[:, [c]] * rows) / d)
            root = vectors * np.sqrt(np.maximum(values, 0.0))
            fields[:, l] = nodes[:, l * (s + t) : (l + 1) * (s + t)] @ root.T
        y = (fields[:, :, s:] + problem.law.teacher_means[contexts]).reshape(len(nodes), -1)
        noise = nodes[:, L * (s + t) :] * problem.noise_scale
        for features, probabilities in _features_by_noise_value(problem, labels, np.ascontiguousarray(y), noise):
            for number, scale in enumerate(SCALES):
                at = Weights(scale * weights.W, weights.phi)
                overlaps = overlaps_of_weights(instance, at)
                x = np.ascontiguousarray((scale * fields[:, :, :s] + overlaps.m[contexts]).reshape(len(nodes), -1))
                losses, slopes = channel.losses_at(x, features, problem.constants(labels, overlaps))
                squares = np.sum(slopes.reshape(-1, L, s) ** 2, axis=2) @ projector.traces[contexts]
                out[number] += probability * np.array(
                    [np.mean(probabilities * losses), np.mean(probabilities * squares) / d]
                )
    return np.ravel(out * instance.sample_count / d)


def _features_by_noise_value(
    problem: Problem, labels: tuple[int, ...], y: np.ndarray, gaussian: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for every value of discrete noise, the teacher-dependent inputs of the loss and their probabilities.

    `y` are teacher fields, shape (points, L t), and `gaussian` the Gaussian noise; the inputs have shape (points,
    features).
    """
    channel, c, is_gaussian_noise = problem.solver.proximal, problem.constants(labels), problem.is_gaussian_noise
    noise = np.empty((len(y), len(is_gaussian_noise)))
    noise[:, is_gaussian_noise] = gaussian
    if not channel.LABELLED_NOISE:
        yield channel.features_at(y, noise, c), np.ones(len(y))
        return
    law = problem.solver.proximal.noise_law_at(y, c)
    for values, probabilities in zip(channel.LABELLED_NOISE, law.T, strict=True):
        noise[:, ~is_gaussian_noise] = values
        yield channel.features_at(y, noise, c), probabilities
