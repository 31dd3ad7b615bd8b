"""Axes along which the proximal map changes most: the first coordinates of a Sobol set are its most uniform ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.options import AlgorithmOptions
from ..channel.fields import FieldLaw, field_law, overlaps_of_loss_fields
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
        step: distance of differences, in standard deviations; larger ones see more of the jumps of the map. With 2^11
            nodes or a step of 0.3 the axes of a value matrix scatter, and errors are a quarter larger.
        seed: seed of the nodes.
    """

    log2: int = 13
    step: float = 0.1
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
        law = field_law(part, own, labels)
        here = _weighted_fields(part, law, nodes)
        scales = np.sqrt(np.mean(here**2, axis=0))
        changes = [
            _weighted_fields(part, law, nodes + shift) - _weighted_fields(part, law, nodes - shift)
            for shift in options.step / 2 * np.eye(part.dimension)
        ]
        scaled = np.stack(changes) / np.where(scales > 0, scales, 1.0)
        total += probability * np.einsum("ink,jnk->ij", scaled, scaled)
    axes = np.linalg.eigh(total)[1][:, ::-1]
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(len(axes))])
    return tuple(map(tuple, (axes * signs).tolist()))


def _weighted_fields(problem: Problem, law: FieldLaw, nodes: np.ndarray) -> np.ndarray:
    """Return g at nodes, times the root of the probability of each value of the discrete noise; one node per row."""
    points = [proximal_points_at_nodes(problem, law, nodes, choice=n) for n in noise_value_indices(problem)]
    return np.concatenate([np.sqrt(each.weight)[:, None] * each.g.reshape(len(nodes), -1) for each in points], axis=1)
