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
        test_points: number of random points at which the invariance of the loss is tested.
        max_candidates: number of candidates beyond which permutations of tokens are not tried.
        state_tolerance: deviation, relative to the size of an overlap, within which a state counts as invariant.
    """

    test_points: int = 4
    max_candidates: int = 512
    state_tolerance: float = 1e-9


@dataclass(frozen=True)
class SignedPermutation:
    """A permutation of the tokens with signs of the columns of student and teacher fields, and of the noise.

    The image of X_la is student[a] X_{tokens[l], a}, that of Y_lb is teacher[b] Y_{tokens[l], b}.
    """

    tokens: tuple[int, ...]
    student: tuple[int, ...]
    teacher: tuple[int, ...]
    noise: int = 1

    @property
    def source_token_indices(self) -> list[int]:
        """The permutation as a list of indices: entry l is the token that token l of the image is taken from."""
        return list(self.tokens)

    def permute_student_fields(self, values: np.ndarray) -> np.ndarray:
        """Return the image of student fields (L, s): tokens permuted, columns multiplied by their signs."""
        return values[self.source_token_indices] * np.array(self.student, float)

    def permute_teacher_fields(self, values: np.ndarray) -> np.ndarray:
        """Return the image of teacher fields (L, t): tokens permuted, columns multiplied by their signs."""
        return values[self.source_token_indices] * np.array(self.teacher, float)

    def permute_channel_averages(
        self, rows: np.ndarray, moments: Sequence[tuple[str, tuple[int, ...], int]]
    ) -> np.ndarray:
        """Return the image of channel averages: tokens permuted, entries multiplied by their signs.

        Args:
            rows: averages of every token, one row per token.
            moments: the generated constant MOMENTS, which describes the entries of a row.
        """
        return rows[self.source_token_indices] * _signs_of_channel_averages(self, tuple(moments), rows.shape[1])

    def permuted_token_cluster_indices(self, clusters: int) -> np.ndarray:
        """Return for every context (token, cluster) the index of the context that replaces it, (contexts,)."""
        return (np.array(self.source_token_indices)[:, None] * clusters + np.arange(clusters)).ravel()

    def permute_overlaps(self, overlaps: Overlaps, clusters: int) -> Overlaps:
        """Return the image of a state: contexts permuted, entries of q, V, m and theta multiplied by their signs.

        Args:
            overlaps: overlaps of the state.
            clusters: number of clusters of a token.
        """
        contexts = self.permuted_token_cluster_indices(clusters)
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
def _signs_of_channel_averages(
    exchange: SignedPermutation, moments: tuple[tuple[str, tuple[int, ...], int], ...], row: int
) -> np.ndarray:
    """Return the sign that a signed permutation gives to every channel average of a token."""
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
    """The symmetry of a state: components that vanish, and signed permutations that leave it invariant.

    Attributes:
        frozen: mask of the packed components that vanish exactly, (components,), or None.
        exchanges: group of signed permutations that leave the state invariant, without the identity.
        clusters: number of clusters of a token.
    """

    frozen: np.ndarray | None = field(default=None, compare=False)
    exchanges: tuple[SignedPermutation, ...] = ()
    clusters: int = 1

    @property
    def is_symmetry_of_every_state(self) -> bool:
        """Whether every state has this symmetry: no component vanishes, and the group is trivial."""
        return self.frozen is None and not self.exchanges

    def project_onto_invariant_states(self, u: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return the projection of a packed state onto the states with this symmetry.

        Args:
            u: packed overlaps, (components,).
            sizes: numbers of contexts, columns of W, columns of W* and trained numbers.
        """
        if self.exchanges:
            numbers, signs = _permuted_packed_components(self.exchanges, self.clusters, sizes)
            u = (u + (signs * u[numbers]).sum(axis=0)) / (1 + len(self.exchanges))
        if self.frozen is not None:
            u = u.copy()
            u[self.frozen] = 0.0
        return u

    def basis_of_invariant_states(self, sizes: Sizes, count: int) -> np.ndarray:
        """Return a basis of the packed states with this symmetry, one row per orbit of components, entries 0 and +-1.

        Args:
            sizes: numbers of contexts, columns of W, columns of W* and trained numbers.
            count: length of packed states.
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
    """Return for every signed permutation the component that replaces each packed component, and its sign."""
    numbered = Overlaps.unpack(1.0 + np.arange(packed_vector_length(sizes)), sizes)
    images = np.stack([e.permute_overlaps(numbered, clusters).pack() for e in exchanges])
    return np.abs(images).astype(int) - 1, np.sign(images)


NO_SYMMETRY = StateSymmetry()


def candidate_signed_permutations(problem: Problem) -> list[SignedPermutation]:
    """Return all permutations of tokens with signs of columns that may be symmetries of the loss, without the identity.

    With discrete noise whose probability depends on Y, only the signs of student columns are changed.
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
    """Return, by labels of the tokens, the signed permutations that leave the loss invariant, cached."""
    return problem.cached_result_of(_find_loss_symmetries)


def symmetries_of_problem(problem: Problem) -> tuple[SignedPermutation, ...]:
    """Return the signed permutations that leave loss, regulariser and law of the tokens invariant, cached."""
    return problem.cached_result_of(_find_problem_symmetries)


def _find_loss_symmetries(problem: Problem) -> dict[tuple[int, ...], list[SignedPermutation]]:
    """Return, by labels, the signed permutations that leave the loss invariant at a number of random points."""
    every = candidate_signed_permutations(problem)
    return {k: [e for e in every if _is_loss_invariant(problem, e, k)] for k, _ in problem.label_probabilities}


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
    """Return the signed permutations that leave both the problem and a state invariant.

    Args:
        problem: the problem.
        overlaps: overlaps of the state.
    """
    u, scales = overlaps.pack(), overlaps.block_scales
    tolerance = ExchangeOptions.current().state_tolerance

    def _is_state_invariant(exchange: SignedPermutation) -> bool:
        image = exchange.permute_overlaps(overlaps, problem.clusters).pack()
        return bool(np.all(np.abs(image - u) <= tolerance * scales))

    return tuple(exchange for exchange in symmetries_of_problem(problem) if _is_state_invariant(exchange))


def _find_problem_symmetries(problem: Problem) -> tuple[SignedPermutation, ...]:
    """Return the signed permutations that leave loss, regulariser and law of the tokens invariant."""
    first, *others = loss_symmetries(problem).values()
    common = [e for e in first if all(e in found for found in others)]
    return tuple(e for e in common if _is_token_law_invariant(problem, e) and _is_regulariser_invariant(problem, e))


def _is_token_law_invariant(problem: Problem, exchange: SignedPermutation) -> bool:
    law, contexts = problem.law, exchange.permuted_token_cluster_indices(problem.clusters)
    rows = np.concatenate([contexts, len(contexts) + np.arange(problem.teacher_rank)])
    signs = np.concatenate([np.ones(len(contexts)), np.array(exchange.teacher, float)])
    pairs = (
        (law.labels, np.transpose(law.labels, exchange.source_token_indices)),
        (law.gamma, law.gamma[:, contexts]),
        (law.gram, law.gram[:, rows][:, :, rows] * np.multiply.outer(signs, signs)),
        (law.teacher_means, law.teacher_means[contexts] * np.array(exchange.teacher, float)),
    )
    return all(np.all(np.abs(one - other) <= EXACT * (1 + np.abs(one))) for one, other in pairs)


def _is_regulariser_invariant(problem: Problem, exchange: SignedPermutation) -> bool:
    regulariser = problem.regulariser
    if regulariser.teacher_column_count_in_penalty and min(exchange.teacher) < 0:
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
