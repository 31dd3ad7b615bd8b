"""One draw at finite d: the teacher, the means and the data of a problem (docs/theory.md section 1)."""

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
DEFAULT_MEMORY = 1.5e9


def stream(seed: int, *path: int) -> np.random.Generator:
    """Independent random numbers for one part of a seed's draw."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *path])))


@dataclass(frozen=True)
class Coordinates:
    """The d coordinates of the common eigenbasis.

    Attributes:
        tau: sqrt(d) (mu_c + p_l)_i, (d, C); pi: rows of W*, (d, t); gamma: eigenvalues of Sigma_c, (d, C).
    """

    tau: np.ndarray
    pi: np.ndarray
    gamma: np.ndarray


def coordinates(problem: Problem, d: int, seed: int, exact: bool = True) -> Coordinates:
    """Draw the coordinates: each spectral atom its share of them, (tau, pi) Gaussian within an atom but for rows of
    few values.

    Args:
        exact: give (tau, pi) in every atom exactly the Gram matrix of the law, so that the overlaps of the teacher and
            of the means do not fluctuate; else they do, by terms of order 1/sqrt(d). Rows of few values have it where
            their numbers in an atom can be in the proportions of their probabilities.

    Raises:
        InputError: d is too small for the law.
    """
    law = problem.law
    generator = stream(seed, _ROWS)
    counts = shares_of(law.weights, d)
    draw = _gaussian if law.rows is None else _of_few_values
    rows = [draw(problem, gram, count, generator, exact) for count, gram in zip(counts, law.gram, strict=True)]
    z = np.concatenate(rows)
    contexts = problem.contexts
    return Coordinates(
        tau=np.ascontiguousarray(z[:, :contexts]),
        pi=np.ascontiguousarray(z[:, contexts:]),
        gamma=np.repeat(law.gamma, counts, axis=0),
    )


def _gaussian(
    problem: Problem, gram: np.ndarray, count: int, generator: np.random.Generator, exact: bool
) -> np.ndarray:
    """(tau, pi) of the coordinates of one atom, (count, C + t), Gaussian."""
    size = problem.contexts + problem.teacher_rank
    values, vectors = np.linalg.eigh(gram)
    factor = vectors * np.sqrt(np.maximum(values, 0.0))
    rank = _rank(values)
    draws = generator.standard_normal((count, size))
    if not (exact and count):
        return draws @ factor.T
    _suffices(count, rank)
    return _frame(draws[:, size - rank :]) @ factor[:, size - rank :].T  # eigenvalues ascend: the last ones count


def _of_few_values(
    problem: Problem, gram: np.ndarray, count: int, generator: np.random.Generator, exact: bool
) -> np.ndarray:
    """The same where the teacher's rows take few values, each in its share of the coordinates; tau given them."""
    contexts = problem.contexts
    assert problem.law.rows is not None
    shares, values = problem.law.rows
    if exact:
        which = generator.permutation(np.repeat(np.arange(len(shares)), shares_of(shares, count)))
    else:
        which = generator.choice(len(shares), size=count, p=shares)
    pi = values[which]
    slopes = np.linalg.pinv(gram[contexts:, contexts:], hermitian=True) @ gram[contexts:, :contexts]
    rest, vectors = np.linalg.eigh(gram[:contexts, :contexts] - gram[:contexts, contexts:] @ slopes)
    kept = slice(contexts - _rank(rest), None)
    draws = generator.standard_normal((count, contexts))[:, kept]
    if exact and count and draws.shape[1]:
        _suffices(count, draws.shape[1] + pi.shape[1])
        draws = _frame(draws - pi @ np.linalg.lstsq(pi, draws, rcond=None)[0])
    return np.concatenate([pi @ slopes + draws @ (vectors * np.sqrt(np.maximum(rest, 0.0)))[:, kept].T, pi], axis=1)


def _rank(values: np.ndarray) -> int:
    """Of a matrix whose eigenvalues ascend."""
    return int(np.sum(values > 1e-12 * max(values[-1], 1e-300)))


def _suffices(count: int, rank: int) -> None:
    if count < rank:
        raise InputError(
            f"{count} coordinates fall to a spectral atom whose Gram matrix has rank {rank}; take a larger d, or sample"
            " the teacher freely"
        )


def _frame(draws: np.ndarray) -> np.ndarray:
    """The orthogonal columns of length sqrt(count) nearest to the draws."""
    left, _, right = np.linalg.svd(draws, full_matrices=False)
    return np.sqrt(len(draws)) * left @ right


def shares_of(weights: np.ndarray, d: int) -> np.ndarray:
    """Whole numbers that add up to d, nearest to d times the weights (largest remainders)."""
    exact = weights * d
    counts = np.floor(exact).astype(int)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: d - counts.sum()]] += 1
    return counts


class _Block(NamedTuple):
    """Random numbers of BLOCK samples: assignment of labels, uniform (BLOCK,), Gaussian noise, tokens (BLOCK, L, d)."""

    labels: np.ndarray
    uniform: np.ndarray
    noise: np.ndarray
    tokens: np.ndarray


@dataclass
class Instance:
    """Coordinates and n = alpha d samples of one seed. Data beyond `memory` bytes are drawn anew whenever needed.

    Samples come in blocks of their own random numbers, so that problems that differ in alpha share their first ones.
    """

    problem: Problem
    d: int
    seed: int
    exact: bool = True
    memory: float = DEFAULT_MEMORY
    _kept: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def n(self) -> int:
        """Number of samples: alpha d rounded, but at least one."""
        return max(1, round(self.problem.alpha * self.d))

    @cached_property
    def coordinates(self) -> Coordinates:
        """From a stream of their own: at one seed and d the same for every alpha."""
        return coordinates(self.problem, self.d, self.seed, self.exact)

    @cached_property
    def law(self) -> TokenLaw:
        """The law with the shares of the atoms and the second moments that the coordinates have."""
        law, known = self.problem.law, self.coordinates
        z = np.concatenate([known.tau, known.pi], axis=1)
        ends = np.cumsum(shares_of(law.weights, self.d))
        parts = [part for part in np.split(z, ends[:-1]) if len(part)]
        present = np.diff(ends, prepend=0) > 0
        return replace(
            law,
            weights=np.array([len(part) / self.d for part in parts]),
            gamma=law.gamma[present],
            gram=np.array([part.T @ part / len(part) for part in parts]),
        )

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Which samples, and their centred tokens (samples, L, d), in order."""
        for begin in range(0, self.n, BLOCK):
            span = slice(begin, min(begin + BLOCK, self.n))
            tokens = self._kept.get(begin)
            yield span, self._keep(begin, self._block(begin).tokens) if tokens is None else tokens

    def add_fields(self, fields: np.ndarray, W: np.ndarray) -> None:
        """Add what the centred tokens give to fields (n, L, s) of weights (d, s)."""
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
        """Features of teacher and noise, (n, FEATURES)."""
        return self._samples[1]

    @property
    def assignments(self) -> np.ndarray:
        """Which assignment of labels every sample has, (n,), in the order of `Problem.label_choices`."""
        return self._samples[0]

    @cached_property
    def contexts(self) -> np.ndarray:
        """Context of every token, (n, L)."""
        return self._table[self._samples[0]]

    def by_labels(
        self, fields: np.ndarray, samples: slice | np.ndarray = slice(None)
    ) -> Iterator[tuple[tuple[int, ...], np.ndarray | slice, np.ndarray, np.ndarray]]:
        """Yield each assignment of labels among samples: the labels, which of the samples have them, their fields
        (N, L s) and features (N, FEATURES).

        Args:
            fields: of the samples, (N, L, s) or (N, L s); samples: which, repeated ones among them.
        """
        chosen, known = self.assignments[samples], self.known[samples]
        flat = fields.reshape(len(chosen), math.prod(fields.shape[1:]))
        present = np.flatnonzero(np.bincount(chosen)).tolist()
        for number in present:
            own = slice(None) if len(present) == 1 else np.flatnonzero(chosen == number)
            yield self.problem.label_choices[number][0], own, np.ascontiguousarray(flat[own]), known[own]

    def constants(self, overlaps: Overlaps | None = None) -> dict[tuple[int, ...], np.ndarray]:
        """Return the constants of the loss by the labels, at the overlaps that it depends on."""
        return {labels: self.problem.constants(labels, overlaps) for labels, _ in self.problem.label_choices}

    @cached_property
    def groups(self) -> list[tuple[tuple[int, ...], np.ndarray]]:
        """Samples (indices) of each assignment of labels that occurs."""
        found = [
            (labels, np.flatnonzero(self.assignments == i)) for i, (labels, _) in enumerate(self.problem.label_choices)
        ]
        return [(labels, own) for labels, own in found if len(own)]

    @cached_property
    def known_rows(self) -> np.ndarray:
        """Return what the regulariser contains of every row of the teacher, (d, known_teachers)."""
        return np.ascontiguousarray(self.coordinates.pi[:, : self.problem.regulariser.known_teachers])

    @cached_property
    def _table(self) -> np.ndarray:
        """Context of every token for each assignment of labels, (assignments, L)."""
        return np.array([self.problem.context_of(labels) for labels, _ in self.problem.label_choices])

    @cached_property
    def _samples(self) -> tuple[np.ndarray, np.ndarray]:
        """Assignment of labels (n,) and features (n, FEATURES) of every sample."""
        chosen = np.empty(self.n, np.int64)
        known = np.empty((self.n, self.problem.solver.channel.FEATURES))
        for begin in range(0, self.n, BLOCK):
            block = self._block(begin)
            tokens = self._keep(begin, block.tokens)
            span = slice(begin, begin + len(tokens))
            chosen[span] = block.labels[: len(tokens)]
            known[span] = self._features(block, tokens @ self.coordinates.pi / np.sqrt(self.d))
        return chosen, known

    def _features(self, block: _Block, teachers: np.ndarray) -> np.ndarray:
        """Features of samples whose centred teacher fields (samples, L, t) are given."""
        problem, channel = self.problem, self.problem.solver.proximal
        gaussian = problem.is_gaussian
        out = np.empty((len(teachers), channel.FEATURES))
        for choice, (labels, _) in enumerate(problem.label_choices):
            rows = np.flatnonzero(block.labels[: len(teachers)] == choice)
            c = problem.constants(labels)
            y = teachers[rows] + problem.law.teacher_means[problem.context_of(labels)]
            y = y.reshape(len(rows), problem.tokens * problem.teacher_rank)  # a block may hold none of an assignment
            noise = np.empty((len(rows), len(gaussian)))
            noise[:, gaussian] = block.noise[rows]
            if channel.LABELLED_NOISE:
                below = np.cumsum(problem.solver.proximal.noise_law_at(y, c), axis=1)[:, :-1]
                noise[:, ~gaussian] = np.array(channel.LABELLED_NOISE)[(block.uniform[rows, None] > below).sum(axis=1)]
            out[rows] = channel.features_at(y, noise, c)
        return out

    def _block(self, begin: int) -> _Block:
        problem = self.problem
        generator = stream(self.seed, _DATA, begin // BLOCK)
        below = np.cumsum([probability for _, probability in problem.label_choices])[:-1]
        labels = np.searchsorted(below, generator.random(BLOCK))
        uniform = generator.random(BLOCK)
        noise = generator.standard_normal((BLOCK, len(problem.noise_scale))) * problem.noise_scale
        tokens = generator.standard_normal((BLOCK, problem.tokens, self.d))
        contexts = self._table[labels]
        tokens *= self._roots[contexts, :1] if len(problem.law.weights) == 1 else self._roots[contexts]
        return _Block(labels, uniform, noise, tokens)

    @property
    def data_bytes(self) -> float:
        """Bytes that the tokens of all samples take."""
        return 8.0 * self.n * self.problem.tokens * self.d

    @cached_property
    def _roots(self) -> np.ndarray:
        """gamma^(1/2), a row a context, (C, d)."""
        return np.ascontiguousarray(np.sqrt(self.coordinates.gamma).T)

    def _keep(self, begin: int, tokens: np.ndarray) -> np.ndarray:
        """The tokens of a block that belong to the n samples, kept where all fit into memory."""
        tokens = tokens[: self.n - begin]
        if self.data_bytes <= self.memory:
            self._kept[begin] = tokens
        return tokens
