"""Discrete symmetries: permutations of the tokens, with signs of the columns of student and teacher.

If the loss, the regulariser and the law of the tokens are invariant, an invariant state stays invariant: its iterates
are averaged over the group, Newton works in the invariant subspace, and product rules evaluate one node of Y of every
orbit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import permutations, product

import numpy as np

from ..base.options import AlgorithmOptions
from .overlaps import Overlaps, Sizes, packed_vector_length
from .problem import Problem

EXACT = 1e-13  # rounding of losses and laws relative to 1, within which they count as equal


@dataclass(frozen=True)
class ExchangeOptions(AlgorithmOptions):
    """Options of the search for permutations and signs that leave a problem invariant.

    Attributes:
        test_points: random points at which the invariance of the loss is tested.
        max_candidates: number of candidates beyond which permutations of tokens are not tried.
        state_tolerance: deviation in block scales within which a state counts as invariant.
    """

    test_points: int = 4
    max_candidates: int = 512
    state_tolerance: float = 1e-9


@dataclass(frozen=True)
class SignedPermutation:
    """A permutation of tokens, with signs: X_la -> student_a X_{tokens(l) a}, Y_lb -> teacher_b Y_{tokens(l) b}."""

    tokens: tuple[int, ...]
    student: tuple[int, ...]
    teacher: tuple[int, ...]
    noise: int = 1

    @property
    def token_order(self) -> list[int]:
        """The permutation as an index list: token l of the image is token tokens(l)."""
        return list(self.tokens)

    def permute_student_fields(self, values: np.ndarray) -> np.ndarray:
        """Return student fields (L, s) with tokens permuted and signs applied."""
        return values[self.token_order] * np.array(self.student, float)

    def permute_teacher_fields(self, values: np.ndarray) -> np.ndarray:
        """Return teacher fields (L, t) with tokens permuted and signs applied."""
        return values[self.token_order] * np.array(self.teacher, float)

    def permute_channel_averages(
        self, rows: np.ndarray, moments: Sequence[tuple[str, tuple[int, ...], int]]
    ) -> np.ndarray:
        """Return channel averages with tokens permuted and signs applied.

        Args:
            rows: averages of every token, (L, row).
            moments: the generated MOMENTS, which describe their columns.
        """
        return rows[self.token_order] * _channel_average_signs(self, tuple(moments), rows.shape[1])

    def permuted_context_indices(self, clusters: int) -> np.ndarray:
        """Return the index of the context (token, cluster) that each context is replaced by, (C,)."""
        return (np.array(self.token_order)[:, None] * clusters + np.arange(clusters)).ravel()

    def permute_overlaps(self, overlaps: Overlaps, clusters: int) -> Overlaps:
        """Return the image of a state: contexts permuted, columns of q, V, m and theta with their signs, phi unchanged.

        Args:
            overlaps: the state.
            clusters: K.
        """
        contexts = self.permuted_context_indices(clusters)
        student, teacher = np.array(self.student, float), np.array(self.teacher, float)
        square = np.multiply.outer(student, student)
        return Overlaps(
            q=overlaps.q[contexts] * square,
            V=overlaps.V[contexts] * square,
            m=overlaps.m[contexts] * student,
            theta=overlaps.theta[contexts] * np.multiply.outer(student, teacher),
            phi=overlaps.phi,
        )


@lru_cache(maxsize=1024)
def _channel_average_signs(
    exchange: SignedPermutation, moments: tuple[tuple[str, tuple[int, ...], int], ...], row: int
) -> np.ndarray:
    """Return the sign that the signed permutation gives every channel average of a token, (row,)."""
    student, teacher = np.array(exchange.student, float), np.array(exchange.teacher, float)
    axes = {"g": [student], "domega": [student], "dY": [teacher], "loss_q": [student, student]}
    out = np.ones(row)
    for text, shape, offset in moments:
        sign = np.ones(1)
        for name in text.replace(".T", "").split("*"):
            for axis in axes.get(name, []):
                sign = np.multiply.outer(sign, axis)
        out[offset : offset + int(np.prod(shape))] = sign.ravel()
    return out


@dataclass(frozen=True)
class StateSymmetry:
    """The symmetry of a state: components that vanish, and exchanges that leave it invariant.

    Attributes:
        frozen: packed components that vanish exactly, (n,), or None.
        exchanges: group of signed permutations, without the identity.
        clusters: K of the model.
    """

    frozen: np.ndarray | None = field(default=None, compare=False)
    exchanges: tuple[SignedPermutation, ...] = ()
    clusters: int = 1

    @property
    def is_symmetry_of_every_state(self) -> bool:
        """Whether every state has this symmetry."""
        return self.frozen is None and not self.exchanges

    def project_onto_invariant_states(self, u: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return the invariant part of a packed state.

        Args:
            u: packed overlaps, (n,).
            sizes: (C, s, t, P).
        """
        if self.exchanges:
            numbers, signs = _permuted_packed_components(self.exchanges, self.clusters, sizes)
            u = (u + (signs * u[numbers]).sum(axis=0)) / (1 + len(self.exchanges))
        if self.frozen is not None:
            u = u.copy()
            u[self.frozen] = 0.0
        return u

    def invariant_directions(self, sizes: Sizes, count: int) -> np.ndarray:
        """Return directions (k, n) that span the invariant states, one per orbit of components, entries 0 and +-1.

        Args:
            sizes: (C, s, t, P).
            count: n, the length of packed states.
        """
        found: list[np.ndarray] = []
        seen = np.zeros(count, bool)
        for i in range(count):
            if seen[i]:
                continue
            unit = np.zeros(count)
            unit[i] = 1.0
            image = self.project_onto_invariant_states(unit, sizes)
            if image[i] != 0.0:
                found.append(image / image[i])
                seen |= image != 0.0
        return np.array(found).reshape(len(found), count)


@lru_cache(maxsize=64)
def _permuted_packed_components(
    exchanges: tuple[SignedPermutation, ...], clusters: int, sizes: Sizes
) -> tuple[np.ndarray, np.ndarray]:
    """Return for k exchanges the component that replaces each component of a packed state, and its sign, (k, n)."""
    numbered = Overlaps.unpack(1.0 + np.arange(packed_vector_length(sizes)), sizes)
    images = np.stack([e.permute_overlaps(numbered, clusters).pack() for e in exchanges])
    return np.abs(images).astype(int) - 1, np.sign(images)


NO_SYMMETRY = StateSymmetry()


def candidate_signed_permutations(problem: Problem) -> list[SignedPermutation]:
    """Return all permutations of tokens with signs of columns that may be symmetries, without the identity.

    Labels drawn with a probability that depends on Y are not exchanged, nor is Y then.
    """
    labelled = bool(problem.solver.channel.LABELLED_NOISE)
    s, t = problem.student_rank, problem.teacher_rank
    students = list(product((1, -1), repeat=s))
    teachers = [(1,) * t] if labelled else list(product((1, -1), repeat=t))
    noises = (1, -1) if len(problem.noise_scale) and not labelled else (1,)
    orders = list(permutations(range(problem.tokens)))
    if labelled or len(orders) * len(students) * len(teachers) > ExchangeOptions.current().max_candidates:
        orders = orders[:1]
    found = [SignedPermutation(*parts) for parts in product(orders, students, teachers, noises)]
    return found[1:]


def loss_symmetries(problem: Problem) -> dict[tuple[int, ...], list[SignedPermutation]]:
    """Return the permutations of tokens and signs of columns that leave the loss invariant, by labels."""
    return problem.compute_once(_find_loss_symmetries)


def symmetries_of_problem(problem: Problem) -> tuple[SignedPermutation, ...]:
    """Return the exchanges that leave loss, regulariser and the law of the tokens invariant."""
    return problem.compute_once(_find_problem_symmetries)


def _find_loss_symmetries(problem: Problem) -> dict[tuple[int, ...], list[SignedPermutation]]:
    """Return by labels the exchanges that map the loss to itself at the exchanged labels, tested at random points."""
    every = candidate_signed_permutations(problem)
    return {labels: [e for e in every if _is_loss_invariant(problem, e, labels)] for labels, _ in problem.label_choices}


def _is_loss_invariant(problem: Problem, exchange: SignedPermutation, labels: tuple[int, ...]) -> bool:
    channel = problem.solver.channel
    generator = np.random.default_rng(23)
    exchanged = tuple(labels[l] for l in exchange.tokens)
    contexts, s, t, trained = problem.sizes
    for _ in range(ExchangeOptions.current().test_points):
        mixed = generator.standard_normal((contexts, s, s))
        overlaps = Overlaps(
            q=mixed @ mixed.transpose(0, 2, 1),
            V=mixed,
            m=mixed[:, 0],
            theta=np.zeros((contexts, s, t)),
            phi=generator.standard_normal(trained),
        )
        image = exchange.permute_overlaps(overlaps, problem.clusters)
        x, y = (generator.standard_normal((problem.tokens, size)) for size in (s, t))
        noise = generator.standard_normal(len(problem.noise_scale)) * problem.noise_scale
        for drawn in channel.LABELLED_NOISE or ((),):
            values = []
            for at, state, students, teachers, extra in (
                (labels, overlaps, x, y, noise),
                (
                    exchanged,
                    image,
                    exchange.permute_student_fields(x),
                    exchange.permute_teacher_fields(y),
                    exchange.noise * noise,
                ),
            ):
                c = problem.constants(at, state)
                known = channel.features(*teachers.ravel(), *extra, *drawn, c)
                values.append(channel.loss(*students.ravel(), *known, c))
            if not abs(values[0] - values[1]) <= 1e-12 * (1 + abs(values[0])):
                return False
    return True


def symmetries_of_state(problem: Problem, overlaps: Overlaps) -> tuple[SignedPermutation, ...]:
    """Return the exchanges that leave both the problem and this state invariant.

    Args:
        problem: problem of the state.
        overlaps: the state.
    """
    u, scales = overlaps.pack(), overlaps.block_scales
    tolerance = ExchangeOptions.current().state_tolerance

    def _is_state_invariant(exchange: SignedPermutation) -> bool:
        image = exchange.permute_overlaps(overlaps, problem.clusters).pack()
        return bool(np.all(np.abs(image - u) <= tolerance * scales))

    return tuple(exchange for exchange in symmetries_of_problem(problem) if _is_state_invariant(exchange))


def _find_problem_symmetries(problem: Problem) -> tuple[SignedPermutation, ...]:
    """Return the exchanges that leave loss, regulariser and the law of the tokens invariant."""
    by_labels = loss_symmetries(problem)
    common = [e for e in by_labels[problem.label_choices[0][0]] if all(e in found for found in by_labels.values())]
    return tuple(e for e in common if _is_token_law_invariant(problem, e) and _is_regulariser_invariant(problem, e))


def _is_token_law_invariant(problem: Problem, exchange: SignedPermutation) -> bool:
    law, contexts = problem.law, exchange.permuted_context_indices(problem.clusters)
    rows = np.concatenate([contexts, len(contexts) + np.arange(problem.teacher_rank)])
    signs = np.concatenate([np.ones(len(contexts)), np.array(exchange.teacher, float)])
    pairs = (
        (law.labels, np.transpose(law.labels, exchange.token_order)),
        (law.gamma, law.gamma[:, contexts]),
        (law.gram, law.gram[:, rows][:, :, rows] * np.multiply.outer(signs, signs)),
        (law.teacher_means, law.teacher_means[contexts] * np.array(exchange.teacher, float)),
    )
    return all(np.all(np.abs(one - other) <= EXACT * (1 + np.abs(one))) for one, other in pairs)


def _is_regulariser_invariant(problem: Problem, exchange: SignedPermutation) -> bool:
    regulariser = problem.regulariser
    if regulariser.teacher_columns_in_penalty and min(exchange.teacher) < 0:
        return False
    if problem.law.rows is not None and not regulariser.is_quadratic:
        shares, values = problem.law.rows
        one, other = (
            sorted(map(tuple, np.column_stack([shares, values * signs]).tolist()))
            for signs in (np.ones(values.shape[1]), np.array(exchange.teacher, float))
        )
        if not np.allclose(one, other, rtol=0, atol=EXACT):
            return False
    signs = np.array(exchange.student)
    return regulariser.is_invariant_under(lambda w: w * signs)
