"""Axes along which the proximal map changes most: the first coordinates of a Sobol set are its most uniform ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.options import AlgorithmOptions
from ..channel.fields import field_law, overlaps_of_loss_fields
from ..channel.nodes import Rotation, sobol_normal_points
from ..channel.points import noise_value_indices, proximal_points_at_nodes
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss


@dataclass(frozen=True)
class PrincipalAxesOptions(AlgorithmOptions):
    """Options of the principal axes of the proximal map.

    Attributes:
        log2: logarithm to base 2 of the nodes over which squared differences are averaged; more are less noisy.
        step: distance of differences, in standard deviations; larger ones see more of the jumps of the map.
        seed: seed of the nodes.
    """

    log2: int = 11
    step: float = 0.3
    seed: int = 77


def principal_axes_of_proximal_map(problem: Problem, overlaps: Overlaps) -> Rotation:
    """Return the rotation of the standard normal coordinates to the axes along which g = V^(-1) (X - omega) changes.

    The axes are eigenvectors of E[D D^T] (largest eigenvalue first), with D the derivatives of the components of g,
    each in units of its root mean square, by the coordinates of teacher fields, student fields and noise.

    Args:
        problem: problem at zero temperature.
        overlaps: overlaps that determine the law of the fields.

    Raises:
        DomainError: the overlaps lie outside the domain of definition.

    Source:
        P. G. Constantine, Active Subspaces (SIAM 2015), chapter 3.
    """
    options, part = PrincipalAxesOptions.current(), reduce_to_fields_of_loss(problem)
    own = overlaps_of_loss_fields(part, overlaps)
    nodes = sobol_normal_points(part.dimension, options.log2, options.seed, ())
    total = np.zeros((part.dimension, part.dimension))
    for labels, probability in part.label_probabilities:
        fields = field_law(part, own, labels)
        for choice in noise_value_indices(part):

            def weighted_fields(shift: np.ndarray, fields=fields, choice=choice) -> np.ndarray:  # type: ignore[no-untyped-def]
                points = proximal_points_at_nodes(part, fields, nodes + shift, choice=choice)
                return np.sqrt(points.weight)[:, None] * points.g.reshape(len(nodes), -1)

            scales = np.sqrt(np.mean(weighted_fields(np.zeros(part.dimension)) ** 2, axis=0))
            changes = np.stack(
                [
                    (weighted_fields(shift) - weighted_fields(-shift)) / np.where(scales > 0, scales, 1.0)
                    for shift in options.step / 2 * np.eye(part.dimension)
                ]
            )
            total += probability * np.einsum("ink,jnk->ij", changes, changes)
    axes = np.linalg.eigh(total)[1][:, ::-1]
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(len(axes))])
    return tuple(map(tuple, (axes * signs).tolist()))
