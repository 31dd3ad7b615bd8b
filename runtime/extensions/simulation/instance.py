"""An instance, one draw at finite d: the teacher, the means and the data of a problem (docs/theory.md section 1)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...base.errors import InputError
from ...problems.law import TokenLaw
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem

BLOCK = 256
"""The number of samples in a block with its own random numbers: a larger n only adds samples."""

_ROWS, _DATA, STARTS = 0, 1, 2  # streams of a seed
DEFAULT_MEMORY = 1.5e9  # bytes


def random_stream(seed: int, *path: int) -> np.random.Generator:
    """Return a generator of random numbers for one part of a simulation's draw, independent of all other parts.

    Args:
        seed: seed of the simulation.
        *path: whole numbers that name the part.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *path])))


@dataclass(frozen=True)
class EigenbasisCoordinates:
    """The means, the teacher and the covariance eigenvalues in the common eigenbasis of the token covariances.

    Tokens differ in law by their (token, cluster) pair: position of the token, and its cluster.

    Attributes:
        tau: mean of the token in each pair, cluster mean plus position encoding, times sqrt(d), (d, pairs).
        pi: weights of the teacher, shape (d, t).
        gamma: eigenvalues of the token covariance in each pair, shape (d, pairs).
    """

    tau: np.ndarray
    pi: np.ndarray
    gamma: np.ndarray


def draw_means_and_teacher(problem: Problem, d: int, seed: int, exact: bool = True) -> EigenbasisCoordinates:
    """Draw the token means and the teacher's weights at random in d coordinates of the covariance eigenbasis.

    Each distinct set of covariance eigenvalues (spectral atom) takes its fraction of the coordinates.

    Args:
        problem: the problem.
        d: dimension.
        seed: seed of the draw.
        exact: whether means and teacher have exactly the Gram matrix of their law in every atom, so that the overlaps
            between them do not fluctuate; else they do, by terms of order 1/sqrt(d). For teacher rows with few values
            this holds if their counts can be proportional to their probabilities.

    Raises:
        InputError: d is too small for the law.
    """
    law = problem.law
    generator = random_stream(seed, _ROWS)
    counts = allocate_by_largest_remainder(law.weights, d)
    draw = _draw_gaussian_coordinates if law.rows is None else _draw_discrete_coordinates
    rows = [draw(problem, gram, count, generator, exact) for count, gram in zip(counts, law.gram, strict=True)]
    z = np.concatenate(rows)
    contexts = problem.contexts
    return EigenbasisCoordinates(
        tau=np.ascontiguousarray(z[:, :contexts]),
        pi=np.ascontiguousarray(z[:, contexts:]),
        gamma=np.repeat(law.gamma, counts, axis=0),
    )


def _draw_gaussian_coordinates(
    problem: Problem, gram: np.ndarray, count: int, generator: np.random.Generator, exact: bool
) -> np.ndarray:
    """Draw Gaussian means and teacher in coordinates with equal covariance eigenvalues, (count, means + t columns)."""
    size = problem.contexts + problem.teacher_rank
    values, vectors = np.linalg.eigh(gram)
    factor = vectors * np.sqrt(np.maximum(values, 0.0))
    rank = _numerical_rank(values)
    draws = generator.standard_normal((count, size))
    if not (exact and count):
        return draws @ factor.T
    _require_enough_coordinates(count, rank)
    return (
        _nearest_orthogonal_frame(draws[:, size - rank :]) @ factor[:, size - rank :].T
    )  # eigenvalues ascend: the last ones count


def _draw_discrete_coordinates(
    problem: Problem, gram: np.ndarray, count: int, generator: np.random.Generator, exact: bool
) -> np.ndarray:
    """Draw teacher rows with few values, then means, in coordinates with equal covariance eigenvalues."""
    contexts = problem.contexts
    assert problem.law.rows is not None
    shares, values = problem.law.rows
    if exact:
        which = generator.permutation(np.repeat(np.arange(len(shares)), allocate_by_largest_remainder(shares, count)))
    else:
        which = generator.choice(len(shares), size=count, p=shares)
    pi = values[which]
    slopes = np.linalg.pinv(gram[contexts:, contexts:], hermitian=True) @ gram[contexts:, :contexts]
    rest, vectors = np.linalg.eigh(gram[:contexts, :contexts] - gram[:contexts, contexts:] @ slopes)
    nonzero = slice(contexts - _numerical_rank(rest), None)
    draws = generator.standard_normal((count, contexts))[:, nonzero]
    if exact and count and draws.shape[1]:
        _require_enough_coordinates(count, draws.shape[1] + pi.shape[1])
        draws = _nearest_orthogonal_frame(draws - pi @ np.linalg.lstsq(pi, draws, rcond=None)[0])
    return np.concatenate([pi @ slopes + draws @ (vectors * np.sqrt(np.maximum(rest, 0.0)))[:, nonzero].T, pi], axis=1)


def _numerical_rank(values: np.ndarray) -> int:
    """Return the numerical rank of a matrix from its eigenvalues in ascending order."""
    return int(np.sum(values > 1e-12 * max(values[-1], 1e-300)))


def _require_enough_coordinates(count: int, rank: int) -> None:
    if count < rank:
        raise InputError(
            f"d is too small: {count} coordinates belong to one eigenvalue of the spectrum, and means and teacher need "
            f"{rank}; take a larger d, or exact=False (--free-teacher)"
        )


def _nearest_orthogonal_frame(draws: np.ndarray) -> np.ndarray:
    """Return the orthogonal columns nearest to those of a matrix, each of length sqrt(number of rows)."""
    left, _, right = np.linalg.svd(draws, full_matrices=False)
    return np.sqrt(len(draws)) * left @ right


def allocate_by_largest_remainder(weights: np.ndarray, d: int) -> np.ndarray:
    """Return d divided into whole numbers in proportion to weights, by the method of largest remainders.

    Args:
        weights: probabilities, which add up to 1.
        d: number of dimensions, the sum of the whole numbers.
    """
    exact = weights * d
    counts = np.floor(exact).astype(int)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: d - counts.sum()]] += 1
    return counts


class _RandomSampleBlock(NamedTuple):
    """The random numbers of one block of samples.

    Attributes:
        labels: index of the assignment of cluster labels of each sample.
        uniform: uniform random numbers, which decide the discrete noise.
        noise: Gaussian noise.
        tokens: centred tokens, shape (samples, L, d).
    """

    labels: np.ndarray
    uniform: np.ndarray
    noise: np.ndarray
    tokens: np.ndarray


@dataclass
class Instance:
    """A random draw of a problem at finite d: teacher, means and n = alpha d samples, all from one seed.

    Data beyond `memory` bytes are drawn again whenever they are needed. Samples come in blocks with their own random
    numbers, so that problems that differ in alpha have the first samples in common.
    """

    problem: Problem
    d: int
    seed: int
    exact: bool = True
    memory: float = DEFAULT_MEMORY
    _cached_tokens: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def sample_count(self) -> int:
        """The number of samples n: alpha d rounded, but at least one."""
        return max(1, round(self.problem.alpha * self.d))

    @cached_property
    def eigenbasis_coordinates(self) -> EigenbasisCoordinates:
        """The means, the teacher and the covariance eigenvalues of the tokens in the covariance eigenbasis."""
        return draw_means_and_teacher(self.problem, self.d, self.seed, self.exact)

    @cached_property
    def empirical_token_law(self) -> TokenLaw:
        """The law of tokens with the second moments that means and teacher have in this draw of the data."""
        law, known = self.problem.law, self.eigenbasis_coordinates
        z = np.concatenate([known.tau, known.pi], axis=1)
        ends = np.cumsum(allocate_by_largest_remainder(law.weights, self.d))
        parts = [part for part in np.split(z, ends[:-1]) if len(part)]
        present = np.diff(ends, prepend=0) > 0
        return replace(
            law,
            weights=np.array([len(part) / self.d for part in parts]),
            gamma=law.gamma[present],
            gram=np.array([part.T @ part / len(part) for part in parts]),
        )

    def iterate_blocks_of_samples(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield, block by block, the indices of samples and their centred tokens, (samples, L tokens, d inputs)."""
        for begin in range(0, self.sample_count, BLOCK):
            span = slice(begin, min(begin + BLOCK, self.sample_count))
            tokens = self._cached_tokens.get(begin)
            yield span, self._cache_tokens(begin, self._draw_sample_block(begin).tokens) if tokens is None else tokens

    def add_centred_fields(self, fields: np.ndarray, W: np.ndarray) -> None:
        """Add z W / sqrt(d), the fields due to the centred tokens z of the samples, to an array of fields.

        Args:
            fields: fields (n samples, L tokens, s columns), changed in place.
            W: weights, shape (d inputs, s columns).
        """
        for span, tokens in self.iterate_blocks_of_samples():
            fields[span] += (tokens.reshape(-1, self.d) @ W / np.sqrt(self.d)).reshape(-1, *fields.shape[1:])

    def sum_weighted_tokens(self, x: np.ndarray) -> np.ndarray:
        """Return the sum over samples and tokens of x times the centred token, over sqrt(d), shape (d, s columns).

        `x` are weights of the tokens, shape (n samples, L tokens, s).
        """
        total = np.zeros((self.d, x.shape[2]))
        for span, tokens in self.iterate_blocks_of_samples():
            total += tokens.reshape(-1, self.d).T @ x[span].reshape(-1, x.shape[2])
        return total / np.sqrt(self.d)

    @property
    def teacher_and_noise_features(self) -> np.ndarray:
        """The functions of teacher fields and noise that the loss depends on, shape (n samples, functions)."""
        return self._label_assignments_and_features[1]

    @property
    def label_assignments(self) -> np.ndarray:
        """The assignment of cluster labels to the tokens of each sample, index into `Problem.label_probabilities`."""
        return self._label_assignments_and_features[0]

    @cached_property
    def token_contexts(self) -> np.ndarray:
        """The (token, cluster) pair of every token of all samples, as an index, shape (n samples, L tokens)."""
        return self._contexts_by_label_assignment[self._label_assignments_and_features[0]]

    def group_samples_by_labels(
        self, fields: np.ndarray, samples: slice | np.ndarray = slice(None)
    ) -> Iterator[tuple[tuple[int, ...], np.ndarray | slice, np.ndarray, np.ndarray]]:
        """Yield the samples of each assignment of cluster labels that occurs.

        Yields:
            The labels, the indices of these samples, their fields, and their functions of teacher fields and noise.

        Args:
            fields: fields of the samples, shape (samples, L, s) or (samples, L s).
            samples: indices of the samples, possibly repeated.
        """
        chosen, known = self.label_assignments[samples], self.teacher_and_noise_features[samples]
        flat = fields.reshape(len(chosen), math.prod(fields.shape[1:]))
        present = np.flatnonzero(np.bincount(chosen)).tolist()
        for number in present:
            rows = slice(None) if len(present) == 1 else np.flatnonzero(chosen == number)
            yield (
                self.problem.label_probabilities[number][0],
                rows,
                np.ascontiguousarray(flat[rows]),
                known[rows],
            )

    def loss_constants(self, overlaps: Overlaps | None = None) -> dict[tuple[int, ...], np.ndarray]:
        """Return the constants of the loss function, for each assignment of cluster labels, at given overlaps.

        Overlaps are needed only by losses that depend on them.
        """
        return {labels: self.problem.constants(labels, overlaps) for labels, _ in self.problem.label_probabilities}

    @cached_property
    def samples_by_label_assignment(self) -> list[tuple[tuple[int, ...], np.ndarray]]:
        """Pairs of an assignment of cluster labels to tokens and the indices of the samples that have it."""
        found = [
            (labels, np.flatnonzero(self.label_assignments == i))
            for i, (labels, _) in enumerate(self.problem.label_probabilities)
        ]
        return [(labels, indices) for labels, indices in found if len(indices)]

    @cached_property
    def teacher_in_penalty(self) -> np.ndarray:
        """The columns of the teacher on which the regulariser of the student depends, shape (d, columns)."""
        return np.ascontiguousarray(
            self.eigenbasis_coordinates.pi[:, : self.problem.regulariser.teacher_column_count_in_penalty]
        )

    @cached_property
    def _contexts_by_label_assignment(self) -> np.ndarray:
        """The index of the (token, cluster) pair of every token, (assignments of cluster labels, L tokens)."""
        return np.array([self.problem.token_cluster_indices(labels) for labels, _ in self.problem.label_probabilities])

    @cached_property
    def _label_assignments_and_features(self) -> tuple[np.ndarray, np.ndarray]:
        """The cluster labels of every sample, and the inputs of its loss that depend on teacher fields and noise."""
        chosen = np.empty(self.sample_count, np.int64)
        known = np.empty((self.sample_count, self.problem.solver.channel.FEATURES))
        for begin in range(0, self.sample_count, BLOCK):
            block = self._draw_sample_block(begin)
            tokens = self._cache_tokens(begin, block.tokens)
            span = slice(begin, begin + len(tokens))
            chosen[span] = block.labels[: len(tokens)]
            known[span] = self._features_of_samples(block, tokens @ self.eigenbasis_coordinates.pi / np.sqrt(self.d))
        return chosen, known

    def _features_of_samples(self, block: _RandomSampleBlock, teachers: np.ndarray) -> np.ndarray:
        """Return the inputs of the loss that depend on teacher fields and noise, for the samples of a block.

        `teachers` are their centred teacher fields, shape (samples, L, t).
        """
        problem, channel = self.problem, self.problem.solver.proximal
        gaussian = problem.is_gaussian_noise
        out = np.empty((len(teachers), channel.FEATURES))
        for choice, (labels, _) in enumerate(problem.label_probabilities):
            rows = np.flatnonzero(block.labels[: len(teachers)] == choice)
            c = problem.constants(labels)
            y = teachers[rows] + problem.law.teacher_means[problem.token_cluster_indices(labels)]
            y = y.reshape(len(rows), problem.tokens * problem.teacher_rank)  # a block may hold none of an assignment
            noise = np.empty((len(rows), len(gaussian)))
            noise[:, gaussian] = block.noise[rows]
            if channel.LABELLED_NOISE:
                below = np.cumsum(problem.solver.proximal.noise_law_at(y, c), axis=1)[:, :-1]
                noise[:, ~gaussian] = np.array(channel.LABELLED_NOISE)[(block.uniform[rows, None] > below).sum(axis=1)]
            out[rows] = channel.features_at(y, noise, c)
        return out

    def _draw_sample_block(self, begin: int) -> _RandomSampleBlock:
        problem = self.problem
        generator = random_stream(self.seed, _DATA, begin // BLOCK)
        below = np.cumsum([probability for _, probability in problem.label_probabilities])[:-1]
        labels = np.searchsorted(below, generator.random(BLOCK))
        uniform = generator.random(BLOCK)
        noise = generator.standard_normal((BLOCK, len(problem.noise_scale))) * problem.noise_scale
        tokens = generator.standard_normal((BLOCK, problem.tokens, self.d))
        contexts = self._contexts_by_label_assignment[labels]
        tokens *= (
            self._sqrt_covariance_eigenvalues[contexts, :1]
            if len(problem.law.weights) == 1
            else self._sqrt_covariance_eigenvalues[contexts]
        )
        return _RandomSampleBlock(labels, uniform, noise, tokens)

    @property
    def token_data_bytes(self) -> float:
        """The memory of the tokens of all samples, in bytes."""
        return 8.0 * self.sample_count * self.problem.tokens * self.d

    @cached_property
    def _sqrt_covariance_eigenvalues(self) -> np.ndarray:
        """The square roots of the covariance eigenvalues of tokens, shape ((token, cluster) pairs, d)."""
        return np.ascontiguousarray(np.sqrt(self.eigenbasis_coordinates.gamma).T)

    def _cache_tokens(self, begin: int, tokens: np.ndarray) -> np.ndarray:
        """Return the tokens of a block of samples, cut after the last sample; cache them if all fit into memory."""
        tokens = tokens[: self.sample_count - begin]
        if self.token_data_bytes <= self.memory:
            self._cached_tokens[begin] = tokens
        return tokens
