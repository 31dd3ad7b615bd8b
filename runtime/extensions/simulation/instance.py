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
"""Samples drawn from one stream of random numbers: those of a smaller n are the first of a larger one."""

_ROWS, _DATA, STARTS = 0, 1, 2  # streams of a seed
DEFAULT_MEMORY = 1.5e9  # bytes


def random_stream(seed: int, *path: int) -> np.random.Generator:
    """Return a generator of independent random numbers for one part of a seed's draw."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *path])))


@dataclass(frozen=True)
class Coordinates:
    """Means, teacher and eigenvalues in the d coordinates of the common eigenbasis.

    Attributes:
        tau: sqrt(d) (mu_c + p_l)_i, (d, C); pi: rows of W*, (d, t); gamma: eigenvalues of Sigma_c, (d, C).
    """

    tau: np.ndarray
    pi: np.ndarray
    gamma: np.ndarray


def coordinates(problem: Problem, d: int, seed: int, exact: bool = True) -> Coordinates:
    """Draw the coordinates: a fraction of them for each spectral atom, (tau, pi) Gaussian or with rows of few values.

    Args:
        problem: the problem.
        d: dimension.
        seed: seed of the draw.
        exact: give (tau, pi) in every atom exactly the Gram matrix of the law, so that the overlaps of the teacher and
            of the means do not fluctuate; else they do, by terms of order 1/sqrt(d). Rows of few values have it if
            their counts in an atom can be proportional to their probabilities.

    Raises:
        InputError: d is too small for the law.
    """
    law = problem.law
    generator = random_stream(seed, _ROWS)
    counts = allocate_counts(law.weights, d)
    draw = _draw_gaussian if law.rows is None else _draw_few_values
    rows = [draw(problem, gram, count, generator, exact) for count, gram in zip(counts, law.gram, strict=True)]
    z = np.concatenate(rows)
    contexts = problem.contexts
    return Coordinates(
        tau=np.ascontiguousarray(z[:, :contexts]),
        pi=np.ascontiguousarray(z[:, contexts:]),
        gamma=np.repeat(law.gamma, counts, axis=0),
    )


def _draw_gaussian(
    problem: Problem, gram: np.ndarray, count: int, generator: np.random.Generator, exact: bool
) -> np.ndarray:
    """Draw Gaussian (tau, pi) of the coordinates of one atom, (count, C + t)."""
    size = problem.contexts + problem.teacher_rank
    values, vectors = np.linalg.eigh(gram)
    factor = vectors * np.sqrt(np.maximum(values, 0.0))
    rank = _numerical_rank(values)
    draws = generator.standard_normal((count, size))
    if not (exact and count):
        return draws @ factor.T
    _check_count(count, rank)
    return (
        _orthogonal_frame(draws[:, size - rank :]) @ factor[:, size - rank :].T
    )  # eigenvalues ascend: the last ones count


def _draw_few_values(
    problem: Problem, gram: np.ndarray, count: int, generator: np.random.Generator, exact: bool
) -> np.ndarray:
    """Draw (tau, pi) of one atom with teacher's rows of few values, and tau given them."""
    contexts = problem.contexts
    assert problem.law.rows is not None
    shares, values = problem.law.rows
    if exact:
        which = generator.permutation(np.repeat(np.arange(len(shares)), allocate_counts(shares, count)))
    else:
        which = generator.choice(len(shares), size=count, p=shares)
    pi = values[which]
    slopes = np.linalg.pinv(gram[contexts:, contexts:], hermitian=True) @ gram[contexts:, :contexts]
    rest, vectors = np.linalg.eigh(gram[:contexts, :contexts] - gram[:contexts, contexts:] @ slopes)
    nonzero = slice(contexts - _numerical_rank(rest), None)
    draws = generator.standard_normal((count, contexts))[:, nonzero]
    if exact and count and draws.shape[1]:
        _check_count(count, draws.shape[1] + pi.shape[1])
        draws = _orthogonal_frame(draws - pi @ np.linalg.lstsq(pi, draws, rcond=None)[0])
    return np.concatenate([pi @ slopes + draws @ (vectors * np.sqrt(np.maximum(rest, 0.0)))[:, nonzero].T, pi], axis=1)


def _numerical_rank(values: np.ndarray) -> int:
    """Return the numerical rank of a matrix with these eigenvalues in ascending order."""
    return int(np.sum(values > 1e-12 * max(values[-1], 1e-300)))


def _check_count(count: int, rank: int) -> None:
    if count < rank:
        raise InputError(
            f"{count} coordinates fall to a spectral atom whose Gram matrix has rank {rank}; take a larger d, or sample"
            " the teacher freely"
        )


def _orthogonal_frame(draws: np.ndarray) -> np.ndarray:
    """Return the orthogonal columns of length sqrt(count) nearest to the draws."""
    left, _, right = np.linalg.svd(draws, full_matrices=False)
    return np.sqrt(len(draws)) * left @ right


def allocate_counts(weights: np.ndarray, d: int) -> np.ndarray:
    """Return whole numbers that add up to d, nearest to d times the weights (largest remainders).

    Args:
        weights: probabilities of the spectral atoms.
        d: dimension.
    """
    exact = weights * d
    counts = np.floor(exact).astype(int)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: d - counts.sum()]] += 1
    return counts


class _RandomBlock(NamedTuple):
    """A block of random numbers of BLOCK samples: label assignments, uniform (BLOCK,), Gaussian noise, tokens."""

    labels: np.ndarray
    uniform: np.ndarray
    noise: np.ndarray
    tokens: np.ndarray


@dataclass
class Instance:
    """An instance: coordinates and n = alpha d samples of one seed.

    Data beyond `memory` bytes are drawn again whenever they are needed.

    Samples come in blocks of their own random numbers, so that problems that differ in alpha share their first ones.
    """

    problem: Problem
    d: int
    seed: int
    exact: bool = True
    memory: float = DEFAULT_MEMORY
    _cached_tokens: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def n(self) -> int:
        """The number of samples: alpha d rounded, but at least one."""
        return max(1, round(self.problem.alpha * self.d))

    @cached_property
    def coordinates(self) -> Coordinates:
        """The coordinates, the same for every alpha at one seed and d."""
        return coordinates(self.problem, self.d, self.seed, self.exact)

    @cached_property
    def law(self) -> TokenLaw:
        """The law with the weights of the atoms and the second moments of the drawn coordinates."""
        law, known = self.problem.law, self.coordinates
        z = np.concatenate([known.tau, known.pi], axis=1)
        ends = np.cumsum(allocate_counts(law.weights, self.d))
        parts = [part for part in np.split(z, ends[:-1]) if len(part)]
        present = np.diff(ends, prepend=0) > 0
        return replace(
            law,
            weights=np.array([len(part) / self.d for part in parts]),
            gamma=law.gamma[present],
            gram=np.array([part.T @ part / len(part) for part in parts]),
        )

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the samples of each block, and their centred tokens (samples, L, d), in order."""
        for begin in range(0, self.n, BLOCK):
            span = slice(begin, min(begin + BLOCK, self.n))
            tokens = self._cached_tokens.get(begin)
            yield span, self._cache_tokens(begin, self._draw_block(begin).tokens) if tokens is None else tokens

    def add_fields(self, fields: np.ndarray, W: np.ndarray) -> None:
        """Add the contribution of the centred tokens to fields.

        Args:
            fields: fields (n, L, s), changed in place.
            W: weights (d, s).
        """
        for span, tokens in self.blocks():
            fields[span] += (tokens.reshape(-1, self.d) @ W / np.sqrt(self.d)).reshape(-1, *fields.shape[1:])

    def sum_tokens(self, x: np.ndarray) -> np.ndarray:
        """Return sum_mu sum_l z x / sqrt(d), (d, s), of numbers x (n, L, s)."""
        total = np.zeros((self.d, x.shape[2]))
        for span, tokens in self.blocks():
            total += tokens.reshape(-1, self.d).T @ x[span].reshape(-1, x.shape[2])
        return total / np.sqrt(self.d)

    @property
    def known(self) -> np.ndarray:
        """The features of teacher and noise, (n, FEATURES)."""
        return self._labels_and_features[1]

    @property
    def assignments(self) -> np.ndarray:
        """The assignment of labels of every sample, (n,), an index into `Problem.label_choices`."""
        return self._labels_and_features[0]

    @cached_property
    def contexts(self) -> np.ndarray:
        """The context of every token, (n, L)."""
        return self._context_table[self._labels_and_features[0]]

    def group_by_labels(
        self, fields: np.ndarray, samples: slice | np.ndarray = slice(None)
    ) -> Iterator[tuple[tuple[int, ...], np.ndarray | slice, np.ndarray, np.ndarray]]:
        """Yield labels, positions, fields (N, L s) and features (N, FEATURES) of samples by their assignment of labels.

        Args:
            fields: fields of the samples, (N, L, s) or (N, L s).
            samples: the samples, possibly repeated.
        """
        chosen, known = self.assignments[samples], self.known[samples]
        flat = fields.reshape(len(chosen), math.prod(fields.shape[1:]))
        present = np.flatnonzero(np.bincount(chosen)).tolist()
        for number in present:
            rows = slice(None) if len(present) == 1 else np.flatnonzero(chosen == number)
            yield self.problem.label_choices[number][0], rows, np.ascontiguousarray(flat[rows]), known[rows]

    def constants(self, overlaps: Overlaps | None = None) -> dict[tuple[int, ...], np.ndarray]:
        """Return the constants of the loss by the labels, at the overlaps that it depends on."""
        return {labels: self.problem.constants(labels, overlaps) for labels, _ in self.problem.label_choices}

    @cached_property
    def groups(self) -> list[tuple[tuple[int, ...], np.ndarray]]:
        """The sample indices of each assignment of labels that occurs."""
        found = [
            (labels, np.flatnonzero(self.assignments == i)) for i, (labels, _) in enumerate(self.problem.label_choices)
        ]
        return [(labels, indices) for labels, indices in found if len(indices)]

    @cached_property
    def known_rows(self) -> np.ndarray:
        """The teacher columns that the regulariser depends on, for every row, (d, known_teachers)."""
        return np.ascontiguousarray(self.coordinates.pi[:, : self.problem.regulariser.known_teachers])

    @cached_property
    def _context_table(self) -> np.ndarray:
        """The context of every token for each assignment of labels, (assignments, L)."""
        return np.array([self.problem.context_indices(labels) for labels, _ in self.problem.label_choices])

    @cached_property
    def _labels_and_features(self) -> tuple[np.ndarray, np.ndarray]:
        """The assignment of labels (n,) and the features (n, FEATURES) of every sample."""
        chosen = np.empty(self.n, np.int64)
        known = np.empty((self.n, self.problem.solver.channel.FEATURES))
        for begin in range(0, self.n, BLOCK):
            block = self._draw_block(begin)
            tokens = self._cache_tokens(begin, block.tokens)
            span = slice(begin, begin + len(tokens))
            chosen[span] = block.labels[: len(tokens)]
            known[span] = self._sample_features(block, tokens @ self.coordinates.pi / np.sqrt(self.d))
        return chosen, known

    def _sample_features(self, block: _RandomBlock, teachers: np.ndarray) -> np.ndarray:
        """Return the features of samples with given centred teacher fields (samples, L, t)."""
        problem, channel = self.problem, self.problem.solver.proximal
        gaussian = problem.is_gaussian
        out = np.empty((len(teachers), channel.FEATURES))
        for choice, (labels, _) in enumerate(problem.label_choices):
            rows = np.flatnonzero(block.labels[: len(teachers)] == choice)
            c = problem.constants(labels)
            y = teachers[rows] + problem.law.teacher_means[problem.context_indices(labels)]
            y = y.reshape(len(rows), problem.tokens * problem.teacher_rank)  # a block may hold none of an assignment
            noise = np.empty((len(rows), len(gaussian)))
            noise[:, gaussian] = block.noise[rows]
            if channel.LABELLED_NOISE:
                below = np.cumsum(problem.solver.proximal.noise_law_at(y, c), axis=1)[:, :-1]
                noise[:, ~gaussian] = np.array(channel.LABELLED_NOISE)[(block.uniform[rows, None] > below).sum(axis=1)]
            out[rows] = channel.features_at(y, noise, c)
        return out

    def _draw_block(self, begin: int) -> _RandomBlock:
        problem = self.problem
        generator = random_stream(self.seed, _DATA, begin // BLOCK)
        below = np.cumsum([probability for _, probability in problem.label_choices])[:-1]
        labels = np.searchsorted(below, generator.random(BLOCK))
        uniform = generator.random(BLOCK)
        noise = generator.standard_normal((BLOCK, len(problem.noise_scale))) * problem.noise_scale
        tokens = generator.standard_normal((BLOCK, problem.tokens, self.d))
        contexts = self._context_table[labels]
        tokens *= self._root_gamma[contexts, :1] if len(problem.law.weights) == 1 else self._root_gamma[contexts]
        return _RandomBlock(labels, uniform, noise, tokens)

    @property
    def data_bytes(self) -> float:
        """The memory of the tokens of all samples, in bytes."""
        return 8.0 * self.n * self.problem.tokens * self.d

    @cached_property
    def _root_gamma(self) -> np.ndarray:
        """The square roots gamma^(1/2), a row a context, (C, d)."""
        return np.ascontiguousarray(np.sqrt(self.coordinates.gamma).T)

    def _cache_tokens(self, begin: int, tokens: np.ndarray) -> np.ndarray:
        """Return the tokens of a block that belong to the n samples, and cache them if all fit into memory."""
        tokens = tokens[: self.n - begin]
        if self.data_bytes <= self.memory:
            self._cached_tokens[begin] = tokens
        return tokens
