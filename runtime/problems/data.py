"""Estimates of the law of the tokens from data: means, a binned joint spectrum, and tests of its assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ..base.errors import InputError, convert_to_number_array, require_in_interval, require_whole_number
from ..base.options import AlgorithmOptions
from ..base.progress import print_message
from .law import TokenLaw

_MAX_ASSIGNMENTS = 10**6  # of labels to tokens
_BIN_COUNTS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # tried in this order
_RIDGE_GRID = np.geomspace(1e-6, 1e4, 61)  # strengths in units of the mean eigenvalue of x^T x / d

Contexts = Mapping[tuple[int, int], np.ndarray]
"""(token, label) -> the samples in which the token has that label."""


@dataclass(frozen=True)
class DataLawOptions(AlgorithmOptions):
    """Options of the estimates of the law of the tokens and of a teacher from data.

    Attributes:
        significance: standard errors beyond which a mean or a correlation counts as different from zero; larger misses
            weak ones, smaller takes noise for signal.
        dependence_warning: correlation between tokens of a sample, in excess of chance, above which a warning is given.
        variance_tolerance: variance, relative to the largest, below which a direction counts as constant.
        listed_columns: largest number of constant columns that a message lists.
        binning_warning: relative error of averages over the binned spectrum from which on a warning is given.
        binning_tolerance: largest relative error by automatic binning; smaller takes more atoms.
        spectral_points: number of points at which the error of binning the spectrum is evaluated.
        directions: number of random directions for kurtosis and dependence; more lower the sampling error.
        seed: seed of the random directions.
        min_context_samples: contexts with no more samples are left out of fourth moments.
        least_squares_ratio: samples per dimension above which the teacher is fitted by plain least squares.
    """

    significance: float = 4.0
    dependence_warning: float = 0.02
    variance_tolerance: float = 1e-12
    listed_columns: int = 8
    binning_warning: float = 1e-2
    binning_tolerance: float = 5e-4
    spectral_points: int = 25
    directions: int = 32
    seed: int = 20
    min_context_samples: int = 3
    least_squares_ratio: float = 1.2


@dataclass(frozen=True)
class TokenDependence:
    """Three measures of how strongly two tokens of a sample depend on each other given their labels.

    Attributes:
        tokens: numbers, from 1, of the two tokens: the pair that depends most on each other.
        correlation: mean correlation of equal coordinates of both tokens, and its standard error.
        norm: Frobenius norm of the cross-covariance relative to those of both covariances, without the bias of finite
            samples; and the bound below which independent tokens stay.
        squares: correlation of the squared fields of both along random directions, which uncorrelated tokens may have,
            too; and its standard error.
    """

    tokens: tuple[int, int]
    correlation: tuple[float, float]
    norm: tuple[float, float]
    squares: tuple[float, float]

    @property
    def dependence_measures_and_chance_bounds(self) -> tuple[tuple[float, float], ...]:
        """Size of each of the three measures of token dependence, with the bound that independent tokens stay below."""
        clear = DataLawOptions.current().significance
        errors = [(abs(value), clear * error) for value, error in (self.correlation, self.squares)]
        return (errors[0], self.norm, errors[1])

    def describe_token_dependence(self) -> str:
        """Return a text with the three measures of dependence and their uncertainties."""
        (first, second), (value, error), (square, its) = self.tokens, self.correlation, self.squares
        return (
            f"tokens {first} and {second} have the correlation {value:.3g} +- {error:.1g} coordinate by coordinate, "
            f"{self.norm[0]:.3g} in the norm of their covariance (by chance up to {self.norm[1]:.1g}), "
            f"{square:.2g} +- {its:.1g} of squared fields"
        )


@dataclass(frozen=True)
class DataLaw:
    """An estimate of the law of the tokens from data, with measures of how well its assumptions hold.

    Attributes:
        law: the estimated law, as `problem(law=...)` takes it.
        misfit: norm of the off-diagonal entries of the token covariances in their common eigenbasis, relative to their
            own norm; 0 if all share eigenvectors, as the theory assumes.
        misfit_of_noise: the misfit that finite samples cause even if the eigenvectors are shared.
        binning: largest relative error that binning causes in averages of gamma / (gamma + z), of its square and of the
            teacher's part of the bias of ridge regression, over z between the ends of the spectrum.
        spread: 2 sqrt(d / n), the relative spread of sample eigenvalues of equal true ones.
        kurtosis: excess kurtosis of x . r over random directions r, mean and standard error; 0 for Gaussian fields.
        taught_kurtosis: excess kurtosis of x . r for every column r of the teacher, (t,); None without a teacher.
        norms: variance of |x|^2 relative to that of a Gaussian with the same covariance; 1 for Gaussian tokens, more if
            the scale varies from sample to sample.
        dependence: dependence of the tokens of a sample given their labels, which the theory takes to be independent;
            None for one token.

    Example:
        >>> x = np.random.default_rng(1).normal(size=(400, 1, 20))
        >>> print(sf.law_of_data(x).table().splitlines()[0])
        8 atoms; bins move averages over the spectrum by 2.3e-04
    """

    law: TokenLaw
    misfit: float
    misfit_of_noise: float
    binning: float = 0.0
    spread: float = 0.0
    kurtosis: tuple[float, float] = (0.0, 0.0)
    taught_kurtosis: np.ndarray | None = None
    norms: float = 1.0
    dependence: TokenDependence | None = None

    def table(self) -> str:
        """Return a text that lists the deviations of the data from the assumed law, one measure a line."""
        shared = (
            "" if len(self.law.gamma[0]) == 1 else f"{self.misfit:.2g} (samples alone give {self.misfit_of_noise:.2g})"
        )
        along = "" if self.taught_kurtosis is None else ", ".join(f"{k:.2g}" for k in self.taught_kurtosis)
        lines = [
            f"{len(self.law.weights)} atoms; bins move averages over the spectrum by {self.binning:.1e}",
            f"sampling separates equal eigenvalues by up to {self.spread:.1%}, 2 sqrt(d / n)",
            f"covariances off the diagonal in shared eigenvectors: {shared}" if shared else "",
            f"excess kurtosis of fields {self.kurtosis[0]:.2g} +- {self.kurtosis[1]:.1g} along random directions",
            f"excess kurtosis along the teacher {along}" if along else "",
            f"variance of |x|^2 is {self.norms:.3g} times that of a Gaussian",
            f"within a sample {self.dependence.describe_token_dependence()}" if self.dependence else "",
        ]
        return "\n".join(line for line in lines if line)

    def __repr__(self) -> str:
        return self.table()


def law_of_data(
    x: Any, labels: Any = None, *, encodings: Any = None, teacher: Any = None, atoms: int | None = None
) -> DataLaw:
    """Estimate the law of the tokens (docs/theory.md (1.6)) from samples.

    The common eigenbasis is that of the average covariance; its coordinates are sorted by their average eigenvalue and
    binned. The squared length of a mean is corrected for sampling noise, which is of order one if n is of order d; a
    mean within four standard errors of zero is set to zero. Deviations of the data from the assumed law are measured
    (`DataLaw`) and, if large, warned of: dependent tokens of a sample, for one.

    Args:
        x: tokens, (n, L, d), or (n, d) for one token; more samples than coordinates.
        labels: cluster of every token, whole numbers from 0, (n, L); one cluster by default.
        encodings: positional encodings p_l, (L, d); none by default.
        teacher: teacher weights W*, (d, t), with fields Y = x W* / sqrt(d); or the result of `fitted_teacher`, whose
            noise is subtracted from the squared lengths; by default one standard normal column, independent of tokens.
        atoms: number of bins of the spectrum, each with as many eigenvalues, at most d; by default bins of equal width
            in the logarithm of the eigenvalue, as many as keep their relative error of averages below 5e-4.

    Raises:
        InputError: shapes do not fit, numbers are not finite, a label occurs fewer than twice, there are no more
            samples than coordinates, or the data do not vary in some coordinates or directions.

    Example:
        >>> x = np.random.default_rng(1).normal(size=(400, 1, 20))
        >>> sf.law_of_data(x).norms > 0
        True
    """
    x = convert_to_number_array(x, "x must be an array of numbers in shape (n, L, d) or (n, d)")
    x = x[:, None, :] if x.ndim == 2 else x
    if x.ndim != 3 or not x.size or not np.isfinite(x).all():
        raise InputError(f"x must be finite numbers in shape (n, L, d) or (n, d); its shape is {x.shape}")
    n, tokens, d = x.shape
    if tokens > d:
        raise InputError(
            f"x has shape (n, L, d) = {x.shape}: {tokens} tokens of {d} coordinates, where the theory has a few tokens "
            "of many coordinates; transpose the last two axes if coordinates come first"
        )
    labels = np.zeros((n, tokens), int) if labels is None else np.asarray(labels)
    labels = labels[:, None] if labels.ndim == 1 else labels
    if labels.shape != (n, tokens) or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise InputError(f"labels must be whole numbers from 0 in shape {(n, tokens)}, not {labels.shape}")
    clusters = int(labels.max()) + 1
    if clusters**tokens > _MAX_ASSIGNMENTS:
        raise InputError(
            f"labels from 0 to {clusters - 1} on {tokens} tokens have {clusters}^{tokens} assignments, more than 1e6; "
            "merge some labels, or give fewer tokens"
        )
    if atoms is not None:
        require_whole_number("atoms", atoms, 1, d)
    p = np.zeros((tokens, d)) if encodings is None else np.asarray(encodings, float)
    uncertain = np.zeros((d, d)) if teacher is None else getattr(teacher, "covariance", None)
    teacher = getattr(teacher, "rows", teacher)
    rows = None if teacher is None else np.asarray(teacher, float).reshape(d, -1)
    if p.shape != (tokens, d):
        raise InputError(f"encodings have shape {p.shape}; {(tokens, d)} is expected")
    contexts = {(l, k): np.flatnonzero(labels[:, l] == k) for l in range(tokens) for k in range(clusters)}
    _require_enough_varying_samples(x, contexts)

    counts, means, covariances, centred = [], [], [], np.empty_like(x)
    for (l, _), samples in contexts.items():
        own = x[samples, l]
        counts.append(len(own))
        covariances.append(np.atleast_2d(np.cov(own, rowvar=False)))
        centre = own.mean(axis=0)
        centred[samples, l] = own - centre
        means.append(_mean_if_significant(centre, covariances[-1], len(own)))
    share = np.array(counts) / (n * tokens)
    _, basis = np.linalg.eigh(np.einsum("c,cij->ij", share, np.array(covariances)))
    turned = basis.T @ np.array(covariances) @ basis
    gamma = np.einsum("caa->ca", turned)
    _require_full_rank_covariances(gamma, contexts)
    whole = float((turned**2).sum())
    noise = sum((g.sum() ** 2 - (g**2).sum()) / count for g, count in zip(gamma, counts, strict=True))

    # Rows of tau in the eigenbasis, then those of the teacher.
    shifted = np.array([mean + p[l] for (l, _), mean in zip(contexts, means, strict=True)])
    tau = np.sqrt(d) * shifted @ basis
    pi = np.zeros((0, d)) if rows is None else rows.T @ basis
    blurred = np.zeros(d) if uncertain is None else np.einsum("ia,ia->a", basis, uncertain @ basis)
    squares = np.ones((1, d)) if rows is None else np.maximum(pi**2 - blurred, 0.0)
    groups, binning = _bin_spectrum(gamma, squares, atoms)
    if rows is not None and blurred.any():  # subtract the estimation noise of a fitted teacher
        for group in groups:
            seen = (pi[:, group] ** 2).mean(axis=1, keepdims=True)
            pi[:, group] *= np.sqrt(np.maximum(1 - blurred[group].mean() / np.maximum(seen, 1e-300), 0.0))
        rows = basis @ pi.T
    z = np.concatenate([tau, pi])
    t = 1 if rows is None else len(pi)
    weights, binned, gram = [], [], []
    for group in groups:
        weights.append(len(group) / d)
        binned.append(gamma[:, group].mean(axis=1))
        matrix = np.eye(len(contexts) + t)
        matrix[: len(contexts)] = matrix[:, : len(contexts)] = 0.0
        matrix[: len(z), : len(z)] = z[:, group] @ z[:, group].T / len(group)
        matrix[range(len(contexts)), range(len(contexts))] -= d * binned[-1] / np.array(counts)
        gram.append(_make_positive_semidefinite(matrix, len(contexts)))
    law = TokenLaw(
        labels=_label_frequencies(labels, clusters),
        weights=np.array(weights),
        gamma=np.array(binned),
        gram=np.array(gram),
        teacher_means=np.zeros((len(contexts), t)) if rows is None else np.array(means) @ rows / np.sqrt(d),
    )
    law.refuse_invalid_law()
    off_diagonal = max(whole - float((gamma**2).sum()), 0.0)  # only rounding for one context
    found = DataLaw(
        law,
        float(np.sqrt(off_diagonal / whole)),
        float(np.sqrt(noise / whole)),
        binning=binning,
        spread=2 * float(np.sqrt(d / min(counts))),
        kurtosis=_kurtosis_along_random_directions(centred, contexts),
        taught_kurtosis=None if rows is None else _excess_kurtosis(centred @ rows, contexts),
        norms=_relative_norm_variance(centred, contexts),
        dependence=_most_dependent_token_pair(centred),
    )
    for sentence in _assumption_warnings(found):
        print_message(f"warning: {sentence}")
    return found


def _require_enough_varying_samples(x: np.ndarray, contexts: Contexts) -> None:
    """Raise InputError if there are too few samples or some coordinates do not vary."""
    options, (n, tokens, d) = DataLawOptions.current(), x.shape
    for (l, k), samples in contexts.items():
        if len(samples) < 2:
            raise InputError(f"label {k} of token {l} was seen {len(samples)} times; give at least 2 samples with it")
    if n <= d:
        raise InputError(
            f"x has shape {x.shape[::2] if tokens == 1 else x.shape}: its {n} samples have {d} coordinates, and "
            f"covariances of no more samples than coordinates have eigenvalues that are zero; give several times {d} "
            "samples or fewer coordinates, and transpose x if its samples are along the last axis"
        )
    for (l, k), samples in contexts.items():
        spread = np.ptp(x[samples, l], axis=0)
        still = np.flatnonzero(spread <= options.variance_tolerance * spread.max())
        if len(still):
            numbers, more = ", ".join(map(str, still[: options.listed_columns])), len(still) - options.listed_columns
            numbers += f" and {more} more" * (more > 0)
            of_token = f" of token {l}" * (tokens > 1) + f" where its label is {k}" * (len(contexts) > tokens)
            raise InputError(
                f"{len(still)} of {d} columns of x are constant{of_token}, counted from 0: {numbers}; eigenvalues of "
                "the covariance must be positive, so leave these columns out"
            )


def _require_full_rank_covariances(gamma: np.ndarray, contexts: Contexts) -> None:
    """Raise InputError if the data do not vary along some linear combinations of the coordinates."""
    tolerance = DataLawOptions.current().variance_tolerance
    for own, (l, k) in zip(gamma, contexts, strict=True):
        missing = int(np.sum(own <= tolerance * own.max()))
        if missing:
            raise InputError(
                f"x does not vary in {missing} of {len(own)} directions (token {l}, label {k}): some columns are "
                "linear combinations of others; eigenvalues of the covariance must be positive, so leave columns out, "
                f"or give x on the {len(own) - missing} principal directions that vary"
            )


def _assumption_warnings(found: DataLaw) -> list[str]:
    """Return one warning text for every assumption of the estimated law that the data violate noticeably."""
    words, options = [], DataLawOptions.current()
    if found.dependence and any(
        size > chance + options.dependence_warning
        for size, chance in found.dependence.dependence_measures_and_chance_bounds
    ):
        words.append(
            f"tokens of a sample depend on each other: {found.dependence.describe_token_dependence()}; the theory "
            "takes them independent given their labels, and for a loss of several tokens it may be off by more: "
            "compare it with a learner on the data themselves (`learning_curve`)"
        )
    if found.binning > options.binning_warning:
        words.append(
            f"{len(found.law.weights)} bins move averages over the spectrum by {found.binning:.1%}: give more atoms, "
            "or leave them to be chosen"
        )
    if found.misfit > 1.5 * found.misfit_of_noise + 0.02:
        words.append(
            f"eigenvectors are not shared: covariances have {found.misfit:.2g} off the diagonal, where samples alone "
            f"give {found.misfit_of_noise:.2g}"
        )
    if abs(found.kurtosis[0]) > 0.2 + 3 * found.kurtosis[1] or found.norms > 3:
        words.append(
            f"fields are not Gaussian: excess kurtosis {found.kurtosis[0]:.2g} along random directions, squared norms "
            f"spread {found.norms:.3g} times as much as of a Gaussian"
        )
    return words


def _mean_if_significant(mean: np.ndarray, covariance: np.ndarray, n: int) -> np.ndarray:
    """Return a sample mean, or zeros if its squared length is explained by the sampling noise of n samples."""
    expected, spread = np.trace(covariance) / n, np.sqrt(2 * (covariance**2).sum()) / n
    return mean if mean @ mean - expected > DataLawOptions.current().significance * spread else np.zeros_like(mean)


def _bin_spectrum(gamma: np.ndarray, squares: np.ndarray, atoms: int | None) -> tuple[list[np.ndarray], float]:
    """Return the indices of the coordinates in every bin of the spectrum, and the relative error that binning causes.

    Args:
        gamma: eigenvalues of every token covariance, (contexts, d), in ascending order of their average.
        squares: squared coordinates of the teacher's columns, (t, d).
        atoms: number of bins; None to choose it.
    """
    d = gamma.shape[1]
    if atoms is not None:
        groups = np.array_split(np.arange(d), atoms)
        return groups, _binning_error(gamma, squares, groups)
    scale = np.log(np.maximum(gamma.mean(axis=0), 1e-12 * gamma.max()))
    for size in (*(size for size in _BIN_COUNTS if size < d), d):
        edges = np.linspace(scale.min(), scale.max(), size + 1)[1:-1]
        places = np.arange(d) if size == d else np.searchsorted(edges, scale)
        groups = [group for group in (np.flatnonzero(places == n) for n in range(size)) if len(group)]
        moved = _binning_error(gamma, squares, groups)
        if moved <= DataLawOptions.current().binning_tolerance:
            break
    return groups, moved


def _binning_error(gamma: np.ndarray, squares: np.ndarray, groups: list[np.ndarray]) -> float:
    """Return the largest relative error of averages over the spectrum that binning of the eigenvalues causes."""
    worst, points = 0.0, DataLawOptions.current().spectral_points
    sizes = np.array([len(group) for group in groups])
    for own in gamma:
        binned = np.array([own[group].mean() for group in groups])
        positive = own[own > 0]
        if not len(positive):
            continue
        z = np.geomspace(max(positive.min(), 1e-9 * own.max()), own.max(), points)[:, None]
        share, mean_share = own / (own + z), binned / (binned + z)
        pairs = [(share.sum(1), mean_share @ sizes), ((share**2).sum(1), mean_share**2 @ sizes)]
        for row in squares:
            summed = np.array([row[group].sum() for group in groups])
            bias, mean_bias = own * z**2 / (own + z) ** 2, binned * z**2 / (binned + z) ** 2
            pairs.append((bias @ row, mean_bias @ summed))
        worst = max(worst, *(float(np.max(np.abs(b - a) / np.maximum(a, 1e-300))) for a, b in pairs))
    return worst


def _excess_kurtosis(fields: np.ndarray, contexts: Contexts) -> np.ndarray:
    """Return the excess kurtosis of fields (samples, tokens, fields), averaged over contexts (token, label)."""
    values, few = [], DataLawOptions.current().min_context_samples
    for (l, _), samples in contexts.items():
        if len(samples) > few:
            own = fields[samples, l]
            own = own - own.mean(axis=0)
            values.append((own**4).mean(axis=0) / np.maximum((own**2).mean(axis=0), 1e-300) ** 2 - 3)
    return np.mean(values, axis=0) if values else np.zeros(fields.shape[-1])


def _kurtosis_along_random_directions(centred: np.ndarray, contexts: Contexts) -> tuple[float, float]:
    """Return the mean excess kurtosis of the data along random directions, and its standard error."""
    options = DataLawOptions.current()
    count, generator = options.directions, np.random.default_rng(options.seed)
    directions = generator.standard_normal((centred.shape[2], count))
    found = _excess_kurtosis(centred @ directions, contexts)
    sampled = np.sqrt(24 / len(centred) / centred.shape[1])
    return float(found.mean()), float(np.hypot(found.std(ddof=1) / np.sqrt(count), sampled))


def _most_dependent_token_pair(centred: np.ndarray) -> TokenDependence | None:
    """Return the dependence of the two tokens of a sample that depend most on each other; None for one token."""
    options, (n, tokens, d) = DataLawOptions.current(), centred.shape
    directions = np.random.default_rng(options.seed).standard_normal((d, options.directions))
    squares = (centred @ directions) ** 2
    squares -= squares.mean(axis=0)
    squares /= np.maximum(squares.std(axis=0), 1e-300)
    lengths = (centred**2).sum(axis=2)

    def _unbiased_squared_covariance_norm(l: int, k: int) -> float:
        """Return the squared Frobenius norm of the covariance of tokens l and k, without the bias of finite samples."""
        whole = float(((centred[:, l].T @ centred[:, k]) ** 2).sum())
        return (whole - float(lengths[:, l] @ lengths[:, k])) / (n * (n - 1))

    own = [_unbiased_squared_covariance_norm(l, l) for l in range(tokens)]
    chance = np.sqrt(options.significance * np.sqrt(2) / n)
    found = []
    for l, k in combinations(range(tokens), 2):
        products = (centred[:, l] * centred[:, k]).sum(axis=1) / np.sqrt(lengths[:, l].mean() * lengths[:, k].mean())
        both = (squares[:, l] * squares[:, k]).mean(axis=1)
        pair = TokenDependence(
            (l + 1, k + 1),
            (float(products.mean()), float(products.std(ddof=1) / np.sqrt(n))),
            (
                float(np.sqrt(max(_unbiased_squared_covariance_norm(l, k), 0.0) / np.sqrt(own[l] * own[k]))),
                float(chance),
            ),
            (float(both.mean()), float(both.std(ddof=1) / np.sqrt(n))),
        )
        found.append(pair)
    return max(
        found,
        key=lambda pair: max(size / chance for size, chance in pair.dependence_measures_and_chance_bounds),
        default=None,
    )


def _relative_norm_variance(centred: np.ndarray, contexts: Contexts) -> float:
    """Return the variance of |x|^2 relative to that of a Gaussian of the same covariance, averaged over contexts."""
    ratios, few = [], DataLawOptions.current().min_context_samples
    for (l, _), samples in contexts.items():
        own, n = centred[samples, l], len(samples)
        if n <= few:
            continue
        squares = (own**2).sum(axis=1)
        gram = own.T @ own if own.shape[1] <= n else own @ own.T
        trace = (float((gram**2).sum()) - float((squares**2).sum())) / (n * (n - 1))  # pairs of different samples
        ratios.append(float(squares.var(ddof=1)) / (2 * trace) if trace > 0 else 1.0)
    return float(np.mean(ratios)) if ratios else 1.0


def _make_positive_semidefinite(gram: np.ndarray, contexts: int) -> np.ndarray:
    """Return a Gram matrix of means and teacher made positive semidefinite; only inner products of means change."""
    cross, teacher = gram[:contexts, contexts:], gram[contexts:, contexts:]
    shown = cross @ np.linalg.pinv(teacher, hermitian=True) @ cross.T
    values, vectors = np.linalg.eigh(gram[:contexts, :contexts] - shown)
    gram = gram.copy()
    gram[:contexts, :contexts] = (vectors * np.maximum(values, 0.0)) @ vectors.T + shown
    return gram


def _label_frequencies(labels: np.ndarray, clusters: int) -> np.ndarray:
    """Return the relative frequency of every assignment of labels to the tokens, one axis per token."""
    found = np.zeros((clusters,) * labels.shape[1])
    np.add.at(found, tuple(labels.T), 1.0)
    return found / len(labels)


@dataclass(frozen=True)
class FittedTeacher:
    """A linear teacher that was fitted to labels.

    Attributes:
        rows: the teacher W*, (d, 1), of the fit y = x W* / sqrt(d) + noise.
        noise: variance of the noise, from the residuals and the remaining degrees of freedom.
        ridge: strength of the ridge of the fit, in the units of the theory (docs/conventions.md).
        covariance: covariance of the fitted rows due to the noise, (d, d).
        explained: fraction of the variance of y explained on unseen samples (leave-one-out cross-validation).

    Example:
        >>> rng = np.random.default_rng(1)
        >>> x, teacher = rng.normal(size=(400, 20)), rng.normal(size=20)
        >>> y = x @ teacher / np.sqrt(20) + 0.5 * rng.normal(size=400)
        >>> found = sf.fitted_teacher(x, y)
        >>> found.rows.shape
        (20, 1)
        >>> law = sf.law_of_data(x, teacher=found).law
        >>> sf.problem("ridge_regression", alpha=2, law=law, Delta=found.noise).alpha
        2.0
    """

    rows: np.ndarray
    noise: float
    ridge: float
    covariance: np.ndarray
    explained: float


def fitted_teacher(x: Any, y: Any, *, ridge: float | None = None) -> FittedTeacher:
    """Fit a linear teacher to labels y = x W* / sqrt(d) + noise by regression on all samples.

    With more samples than dimensions, the fit is by least squares: the teacher is unbiased, and `law_of_data` subtracts
    its noise. With fewer, it is by ridge regression, and the signal that shrinkage removes is counted as noise.

    Args:
        x: inputs (n, d), one token.
        y: labels (n,).
        ridge: strength lambda of the risk, half the sum of squares plus lambda |W|^2 / 2; by default negligible for
            n > 1.2 d, else the strength of the least leave-one-out error.

    Raises:
        InputError: shapes do not fit, numbers are not finite, or the ridge is not positive.

    Example:
        >>> rng = np.random.default_rng(1)
        >>> x, teacher = rng.normal(size=(400, 20)), rng.normal(size=20)
        >>> y = x @ teacher / np.sqrt(20) + 0.5 * rng.normal(size=400)
        >>> round(float(sf.fitted_teacher(x, y).noise), 2)
        0.21
    """
    x, y = np.asarray(x, float), np.asarray(y, float).reshape(-1)
    if x.ndim != 2 or len(y) != len(x) or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError(f"x (n, d) and y (n,) of finite numbers are expected, not shapes {x.shape} and {y.shape}")
    if ridge is not None:
        require_in_interval("ridge", ridge, "(0, inf)")
    n, d = x.shape
    left, values, right = np.linalg.svd(x / np.sqrt(d), full_matrices=False)
    turned, squares, weights = left.T @ y, values**2, left**2
    unit = squares.sum() / d
    grid = _RIDGE_GRID if n <= DataLawOptions.current().least_squares_ratio * d else _RIDGE_GRID[:1]
    candidates = unit * grid if ridge is None else np.array([ridge])

    def ridge_shrinkage_and_residuals(strength: float) -> tuple[np.ndarray, np.ndarray]:
        shares = squares / (squares + strength)
        return shares, y - left @ (shares * turned)

    def leave_one_out_error(strength: float) -> float:
        shares, residuals = ridge_shrinkage_and_residuals(strength)
        return float(np.mean((residuals / (1 - weights @ shares)) ** 2))

    errors = [leave_one_out_error(float(strength)) for strength in candidates]
    strength = float(candidates[int(np.argmin(errors))])
    shares, residuals = ridge_shrinkage_and_residuals(strength)
    # E |residuals|^2 = noise (n - 2 Tr H + Tr H^2) + bias by shrinkage, small for a weak ridge.
    noise = float(residuals @ residuals) / (n - 2 * shares.sum() + (shares**2).sum())
    basis = right.T * (values / (squares + strength))
    spread = float(np.var(y)) or 1.0
    return FittedTeacher((basis @ turned)[:, None], noise, strength, noise * basis @ basis.T, 1 - min(errors) / spread)
