"""Ready-made spectra of token covariances: power laws, and the Gaussian equivalent of random features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..base.errors import InputError, require_in_interval, require_whole_number
from ..base.options import AlgorithmOptions


@dataclass(frozen=True)
class SpectrumOptions(AlgorithmOptions):
    """Options of the ready-made spectra `power_law` and `random_features`.

    Attributes:
        activation_nodes: Gauss-Legendre nodes on each side of zero for the moments of an activation; more resolve
            sharper activations.
        single_eigenvalues: leading eigenvalues of a power law that are not binned.
    """

    activation_nodes: int = 400
    single_eigenvalues: int = 24


def power_law(size: int, decay: float, source: float | None = None, *, atoms: int = 60) -> np.ndarray:
    """Return a power-law spectrum: the k-th eigenvalue of the inputs' covariance is proportional to k^-decay.

    It is for `sf.problem(model, spectrum=...)` at alpha = n / size. A field X = x . W / sqrt(size) has the variance
    sum_k k^-decay w_k^2 of its coordinates; with a source condition the teacher's have the squares
    k^(-1 - 2 decay source + decay), so that its field has sum_k k^(-1 - 2 decay source) (capacity and source, as of
    Cui, Loureiro, Krzakala, Zdeborova, NeurIPS 2021, arXiv 2105.15004).

    Args:
        size: number of coordinates.
        decay: exponent of the eigenvalues, which are size k^-decay in the units of the fields X.
        source: source exponent of the teacher, at least 0; None for an isotropic teacher.
        atoms: largest number of rows; the first 24 coordinates stay separate, the others are gathered in logarithmic
            bins that conserve the sums of eigenvalues and of eigenvalues times squares of the teacher.

    Returns:
        Array with one row per atom: weight, eigenvalue and, with a source, the teacher's variance along it.

    Raises:
        InputError: the size is below 1, decay or source is negative, or there are fewer than 32 atoms.

    Example:
        >>> sf.power_law(1000, 1.5, atoms=40).shape[1]
        2
    """
    require_whole_number("size", size, 1)
    require_in_interval("decay", decay, "[0, inf)")
    if source is not None:
        require_in_interval("source", source, "[0, inf)")
    require_whole_number("atoms", atoms, 32)
    k = np.arange(1, int(size) + 1, dtype=float)
    eigenvalues = size * k**-decay
    squares = np.ones_like(k) if source is None else k ** (-1 - 2 * decay * source + decay)
    single = SpectrumOptions.current().single_eigenvalues
    if size <= atoms:
        groups = [np.array([n]) for n in range(int(size))]
    else:
        edges = np.unique(np.round(np.geomspace(single, size, atoms - single + 1)).astype(int))
        groups = [np.array([n]) for n in range(single)]
        groups += [np.arange(low, high) for low, high in pairwise(edges.tolist())]
    rows = []
    for group in groups:
        mean = float(eigenvalues[group].mean())
        taught = float((eigenvalues[group] * squares[group]).mean() / mean)
        rows.append([len(group) / size, mean, taught])
    found = np.array(rows)
    return found if source is not None else found[:, :2]


@dataclass(frozen=True)
class RandomFeatures:
    """The Gaussian model equivalent to regression on random features.

    Attributes:
        spectrum: one row per atom: weight, eigenvalue of the features' covariance, the teacher's variance along it.
        unexplained: variance of the label that no linear function of the features explains; it acts as extra noise.
        moments: averages of s(z), z s(z) and s(z)^2 for the activation s and a standard normal z.

    Example:
        >>> features = sf.random_features(2.0, np.tanh)
        >>> features.spectrum.shape[1], round(float(features.moments[1]), 4)
        (3, 0.6057)
    """

    spectrum: np.ndarray
    unexplained: float
    moments: tuple[float, float, float]


def random_features(ratio: float, activation: Callable[[Any], Any] = np.tanh, *, atoms: int = 60) -> RandomFeatures:
    """Return the Gaussian model equivalent to p random features s(F x / sqrt(d)) of standard normal inputs x.

    F is a p x d matrix of standard normal entries and s the activation.
    The weights are the p of the last layer, so that alpha = n / p; labels are x . t / sqrt(d) + noise of a standard
    normal t. Features are replaced by k1 F x / sqrt(d) + k* z of the same covariance (Mei, Montanari, Commun. Pure
    Appl. Math. 75 (2022) 667; Goldt, Loureiro, Reeves, Krzakala, Mezard, Zdeborova, MSML 2022, arXiv 2006.14709):

        rf = sf.random_features(2.0)
        sf.problem("ridge_regression", spectrum=rf.spectrum, Delta=noise + rf.unexplained, alpha=n / p)

    Args:
        ratio: p / d, number of features over the dimension of the inputs.
        activation: function of an array; its mean is subtracted, as by a trained bias.
        atoms: nodes of the Marchenko-Pastur law of F F^T / d, by the Gauss rule of its weight.

    Raises:
        InputError: the ratio is not positive, or the activation has no finite second moment or no linear part.

    Example:
        >>> features = sf.random_features(2.0, np.tanh)
        >>> Delta = 0.1 + features.unexplained
        >>> sf.solve(sf.problem("ridge_regression", alpha=2, spectrum=features.spectrum, Delta=Delta)).success
        True
    """
    require_in_interval("ratio", ratio, "(0, inf)")
    require_whole_number("atoms", atoms, 2)
    if not callable(activation):
        raise InputError(f"activation = {activation!r}: a function of an array is expected, as np.tanh")
    # Separately on both sides of zero, where activations may have kinks.
    nodes, weights = np.polynomial.legendre.leggauss(SpectrumOptions.current().activation_nodes)
    z = 5.5 * (nodes + 1)
    z, weights = np.concatenate([-z, z]), np.tile(5.5 * weights, 2)
    weights = weights * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    values = np.asarray(activation(z), float)
    mean, linear, square = (float(weights @ each) for each in (values, z * values, values**2))
    own = square - mean**2 - linear**2
    if not np.isfinite([mean, linear, square]).all() or linear**2 < 1e-12 * square:
        raise InputError("the activation s needs a finite second moment and a linear part: E z s(z) must not be 0")
    own = max(own, 0.0)
    # (s - a)(b - s) under a root over s: Gauss-Chebyshev of the second kind.
    angles = np.arange(1, atoms + 1) * np.pi / (atoms + 1)
    s = 1 + ratio + 2 * np.sqrt(ratio) * np.cos(angles)
    mass = 2 * np.sin(angles) ** 2 / (atoms + 1) / s
    mass *= min(1.0, 1 / ratio) / mass.sum()
    gamma = linear**2 * s + own
    taught = ratio * linear**2 * s / gamma**2
    rows = np.stack([mass, gamma, taught], axis=1)
    if ratio > 1:
        if own <= 0:
            raise InputError(
                "a linear activation with ratio > 1 (features per input) has a singular covariance; choose ratio <= 1"
            )
        rows = np.concatenate([rows, [[1 - 1 / ratio, own, 0.0]]])
    explained = float(rows[:, 0] @ (rows[:, 1] * rows[:, 2]))
    return RandomFeatures(rows, max(1 - explained, 0.0), (mean, linear, square))
