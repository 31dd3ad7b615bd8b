"""A tied autoencoder of one hidden unit, x -> W tanh(W^T x / sqrt d) / sqrt d, on two Gaussians of opposite means.

1/2 |x - f(x)|^2 = 1/2 |x|^2 + 1/2 [-2 X tanh X + tanh(X)^2 |W|^2 / d], and |W|^2 / d = q / sigma^2: the loss holds the
overlap q. The weights learn the mean: m = W . mu / sqrt d. After Cui, Zdeborova, arXiv 2305.11041 (tied, noiseless).
"""

import sympy as sp

import saddleforge as sf


def two_clusters(structure, *, sigma=sf.Parameter(0.5, 0, open_low=True), length=sf.Parameter(1, 0)):
    """x = +- mu + sigma z with |mu| = length; the teacher's field is a formality, there are no labels."""
    means = length**2 * sp.Matrix([[1, -1], [-1, 1]])
    return sf.Tokens(weights=[1], covariance=[[sigma**2] * 2], labels=["1/2", "1/2"], means=means, teacher=[[1]])


def reconstruction(h, Q, sigma):
    """|x - f(x)|^2 - |x|^2."""
    return -2 * h[0] * sp.tanh(h[0]) + sp.tanh(h[0]) ** 2 * Q[0][0, 0] / sigma**2


@sf.model(clusters=2, law=two_clusters, regulariser=sf.Ridge(0.1), metric=reconstruction,
          starts={"positional": sf.Start(encodings=((0.4, -0.4),), susceptibility=1)})  # fmt: skip
def autoencoder(X, Q, sigma):
    """Half the error of the reconstruction beyond that of W = 0."""
    return reconstruction(X, Q, sigma) / 2


# saddleforge solve examples/autoencoder.py --set alpha=2 --start positional
