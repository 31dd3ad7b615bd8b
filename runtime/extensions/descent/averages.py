"""Averages over a sentence of the slope D of the loss, at the fields of the weights themselves.

They are the channel averages of the saddle point with g replaced by -D at X = omega, which is where the proximal map
goes for V to 0 (docs/theory.md (19.4)): the same moments over the same nodes, and no proximal map to solve.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import DomainError, InputError
from ...channel.exchange import Reduction
from ...channel.fields import Fields
from ...channel.points import noise_choices
from ...integration.lattice import Lattice
from ...integration.rule import back, moments_by_context
from ...integration.sampled import FEW, MOST_NODES, Sampled, Sobol
from ...integration.splitting import Split
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...problems.reduced import ReducedProblem, integrated

_NEGATIVE = 1e-2  # of the covariance of X given Y, relative to that of X: where trial steps in time may go
_MOST_SPLIT = 6  # dimensions of products that are split where the loss is not smooth
_SIZES = (8, 12, 18, 28, 42, 64, 96, 144, 216)  # nodes a panel, or an axis
_MOST_KEPT = 2e5  # nodes of a product that are not found again
_ROOM = 12_288  # numbers of an array that is made anew at every average: below what memory is mapped for by itself
_FEW_LATTICES = 4
_SETS = tuple(Sobol(log2) for log2 in range(8, 17))


@dataclass(frozen=True)
class SlopeAverages:
    """Of D_l = dloss/dX_l, restricted to each context (docs/theory.md (19.3)), C contexts.

    Attributes:
        mean: E_c[D], (C, s). square: E_c[D D^T], (C, s, s).
        with_fields, with_teacher: E_c[D (X - m)^T] and E_c[D (Y - m*)^T], (C, s, s) and (C, s, t).
        loss: E[loss]. in_q, in_phi: E_c[dloss/dq], symmetrised, and E[dloss/dphi]: (C, s, s), (P,).
    """

    mean: np.ndarray
    square: np.ndarray
    with_fields: np.ndarray
    with_teacher: np.ndarray
    loss: float
    in_q: np.ndarray
    in_phi: np.ndarray


@dataclass(frozen=True)
class _Set:
    """Nodes of one assignment of labels and one value of its labelled noise, with what does not change with the
    weights: z_omega (L, s, N), z_Y and Y less its mean (L, t, N), features (N, FEATURES), weights (N,)."""

    z: np.ndarray
    z_teacher: np.ndarray
    dY: np.ndarray
    known: np.ndarray
    weights: np.ndarray


class _Teacher(NamedTuple):
    """What of the fields' law does not change with the weights, for one assignment of labels: contexts (L,); means and
    Cholesky factors of Y (L, t), (L, t, t), the transposed inverse of these; identities (L, s, s)."""

    contexts: np.ndarray
    mean: np.ndarray
    factor: np.ndarray
    inverse: np.ndarray
    identity: np.ndarray


class AverageRule:
    """A rule for `SlopeAverages`, one of a ladder: `sizes_for` says which there are.

    Args:
        rule: Sobol sets or a lattice; or the nodes a panel of a product that is split where the loss is not smooth.
    """

    def __init__(self, problem: Problem, rule: Sampled | int) -> None:
        self.problem, self.rule = problem, rule
        self.part = integrated(problem)
        self._kept: dict[Any, list[_Set]] = {}
        self._teachers: dict[tuple[int, ...], _Teacher] = {}
        self.evaluations = 0

    def describe(self) -> dict[str, Any]:
        """rule, points, seed for the JSON contract."""
        if isinstance(self.rule, Sampled):
            return self.rule.describe()
        return {"rule": "product", "points": self.rule, "seed": None}

    def __call__(self, overlaps: Overlaps) -> SlopeAverages:
        """At overlaps; their V does not count.

        Raises:
            DomainError: they admit no law of the fields.
        """
        self.evaluations += 1
        problem, part = self.problem, self.part
        there = part.overlap_maps.overlaps_at(overlaps.pack()) if isinstance(part, ReducedProblem) else overlaps
        if not np.isfinite(overlaps.q.sum() + overlaps.m.sum() + overlaps.theta.sum() + overlaps.phi.sum()):
            raise DomainError("an overlap is not finite")
        channel, rows, loss = part.solver.channel, [], 0.0
        for labels, probability in part.label_choices:
            if labels not in self._teachers:
                self._teachers[labels] = _teacher_of(part, labels)
            fields = law_of_fields(part, there, labels, self._teachers[labels])
            total, value = self._sums(fields, labels)
            rows.append(total)
            loss += probability * value
        moments = moments_by_context(part, rows, channel.ROW)
        if isinstance(part, ReducedProblem):
            try:
                moments = back(part, overlaps, moments)
            except np.linalg.LinAlgError:
                raise DomainError(
                    "the combinations of fields that the loss depends on are linearly dependent"
                ) from None
        return _named(problem, moments, loss)

    def _sums(self, fields: Fields, labels: tuple[int, ...]) -> tuple[np.ndarray, float]:
        """Token rows (L ROW,) of the moments of D, and E[loss]."""
        part, channel = self.part, self.part.solver.channel
        total, loss = np.zeros(part.tokens * channel.ROW), 0.0
        sets: Iterable[_Set]
        if isinstance(self.rule, Sampled):
            reduction, sets = self._sets(self.rule, fields, labels)
        else:
            reduction, sets = Reduction(()), self._products(fields, labels, self.rule)
        for each in sets:
            rows, value = _moments(part, fields, each)
            total += rows
            loss += value
        return reduction.moments(total, channel.ROW, channel.MOMENTS), loss

    def _sets(self, rule: Sampled, fields: Fields, labels: tuple[int, ...]) -> tuple[Reduction, list[_Set]]:
        """Nodes that stand where they are in standard normal coordinates: the teacher's fields are found once."""
        reduction = rule.reduction_of(self.part, fields, labels)
        key = reduction, labels
        if key not in self._kept:
            sets = rule.node_sets(self.part, fields, reduction)
            shares = 1 / len(sets)
            self._kept[key] = [
                known for nodes, weights in sets for known in _known(self.part, fields, nodes, shares * weights)
            ]
        return reduction, self._kept[key]

    def _products(self, fields: Fields, labels: tuple[int, ...], points: int) -> Iterable[_Set]:
        """Between the planes on which the loss is not smooth, which move with the weights; without any, where they
        stand."""
        part = self.part
        planes = part.planes("loss", fields.constants)
        if len(planes):
            return self._between(fields.in_nodes(planes, part.noise_scale), fields, points)
        if float(points) ** part.dimension > _MOST_KEPT:
            return self._between(planes, fields, points)
        if labels not in self._kept:
            self._kept[labels] = list(self._between(planes, fields, points))
        return self._kept[labels]

    def _between(self, planes: np.ndarray, fields: Fields, points: int) -> Iterator[_Set]:
        for nodes, weights in Split.of(planes, self.part.dimension).blocks(points):
            yield from _known(self.part, fields, nodes, weights)


def sizes_for(problem: Problem) -> tuple[AverageRule, ...]:
    """The ladder of rules for a problem, coarse to fine: products where there are few fields, split where the loss is
    not smooth; lattices of more where it is smooth; else Sobol sets."""
    part = integrated(problem)
    if not callable(getattr(part.solver.channel, "losses_at", None)):
        raise InputError(f"{problem.solver.name}: its solver has no loss at given fields")
    kinked, curved, dimension = _has_planes(part), bool(part.solver.model.CURVED["loss"]), part.dimension
    if not curved and (dimension <= FEW or (kinked and dimension <= _MOST_SPLIT)):
        return tuple(AverageRule(problem, n) for n in _SIZES if float(n) ** dimension <= MOST_NODES)
    lattices = Lattice.sizes(part)
    chosen = lattices[2::2] if len(lattices) > _FEW_LATTICES else lattices[1:3]  # the largest of few takes minutes
    if len(chosen) > 1:  # of one alone nothing would tell how far off it is
        return tuple(AverageRule(problem, rule) for rule in chosen)
    return tuple(AverageRule(problem, rule) for rule in _SETS)


def _has_planes(part: Problem) -> bool:
    return any(len(part.planes("loss", part.constants(labels))) for labels, _ in part.label_choices)


def across_jumps(problem: Problem, rule: Any) -> str:
    """How averages by a rule, as `describe` names it, are taken where the slope of the loss jumps; empty where it does
    not."""
    part = integrated(problem)
    if not (_has_planes(part) or part.solver.model.CURVED["loss"]):
        return ""
    where = "panel by panel between the planes" if rule == "product" else "by nodes on all sides of"
    return f"the loss is not smooth: averages are taken {where} where it is not, and hold no derivative of its slope"


def _teacher_of(problem: Problem, labels: tuple[int, ...]) -> _Teacher:
    contexts = problem.context_of(labels)
    factor = np.linalg.cholesky(problem.law.rho_star[contexts])
    mean = np.ascontiguousarray(problem.law.teacher_means[contexts])
    identity = np.broadcast_to(np.eye(problem.student_rank), (len(contexts), *[problem.student_rank] * 2))
    return _Teacher(contexts, mean, factor, np.swapaxes(np.linalg.inv(factor), 1, 2), identity)


def law_of_fields(problem: Problem, overlaps: Overlaps, labels: tuple[int, ...], teacher: _Teacher) -> Fields:
    """As `channel.fields.fields_of`, where X may be a function of Y: its covariance given Y need not be regular.

    Raises:
        DomainError: it has a negative eigenvalue.
    """
    contexts, identity = teacher.contexts, teacher.identity
    q, from_teacher = overlaps.q[contexts], overlaps.theta[contexts] @ teacher.inverse
    left = q - from_teacher @ np.swapaxes(from_teacher, 1, 2)
    values, vectors = np.linalg.eigh((left + np.swapaxes(left, 1, 2)) / 2)
    scale = np.trace(q, axis1=1, axis2=2)[:, None] + np.finfo(float).tiny
    if np.any(values < -_NEGATIVE * scale):
        raise DomainError("q - theta rho*^(-1) theta^T has a negative eigenvalue: there are no such weights")
    roots = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    return Fields(
        teacher_mean=teacher.mean,
        teacher_factor=teacher.factor,
        field_mean=np.ascontiguousarray(overlaps.m[contexts]),
        field_from_teacher=from_teacher,
        field_factor=roots,
        variance=identity,
        precision=identity,
        field_precision=identity,
        log_normalisation=np.nan,
        constants=problem.constants(labels, overlaps),
    )


def _known(part: Problem, fields: Fields, nodes: np.ndarray, weights: np.ndarray) -> Iterator[_Set]:
    """One for every value of the labelled noise and so many nodes that arrays of them stay in what memory a process has
    already: larger ones are given back and asked for again at every average."""
    L, s, t = part.tokens, part.student_rank, part.teacher_rank
    channel: Any = part.solver.channel
    gaussian = part.is_gaussian
    room = max(1, _ROOM // (L * max(s, t)))
    for first in range(0, len(nodes), room):
        block, shares = nodes[first : first + room], weights[first : first + room]
        count = len(block)
        z_teacher, z, noise = np.split(block, [L * t, L * (t + s)], axis=1)
        z_teacher, z = (
            np.ascontiguousarray(part_of_z.reshape(count, L, size).transpose(1, 2, 0))
            for part_of_z, size in ((z_teacher, t), (z, s))
        )
        dY = np.einsum("lab,lbn->lan", fields.teacher_factor, z_teacher)
        teachers = (dY + fields.teacher_mean[..., None]).transpose(2, 0, 1)
        teachers = np.ascontiguousarray(teachers.reshape(count, L * t))
        u = np.zeros((count, len(gaussian)))
        u[:, gaussian] = noise * part.noise_scale
        laws = part.solver.proximal.noise_law_at(teachers, fields.constants) if channel.LABELLED_NOISE else None
        for choice in noise_choices(part):
            if laws is not None:
                u[:, ~gaussian] = channel.LABELLED_NOISE[choice]
            known = channel.features_at(teachers, u, fields.constants)
            yield _Set(z, z_teacher, dY, known, shares if laws is None else shares * laws[:, choice])


def _moments(part: Problem, fields: Fields, at: _Set) -> tuple[np.ndarray, float]:
    """Token rows of the moments, D in place of g, and E[loss]."""
    channel: Any = part.solver.channel
    L, s = part.tokens, part.student_rank
    count = len(at.weights)
    # Sums of products of few rows over many nodes: einsum does them without threads of its own.
    dX = np.einsum("lab,lbn->lan", fields.field_factor, at.z)
    dX += np.einsum("lab,lbn->lan", fields.field_from_teacher, at.z_teacher)
    x = np.empty((count, L, s))
    np.add(dX, fields.field_mean[..., None], out=x.transpose(1, 2, 0))
    flat = x.reshape(count, L * s)
    values, slopes = channel.losses_at(flat, at.known, fields.constants)
    D = np.ascontiguousarray(slopes.reshape(count, L, s).transpose(1, 2, 0))
    weighted = D * at.weights
    parts = {
        "g": weighted.sum(axis=2)[..., None],
        "g*g.T": np.einsum("lan,lbn->lab", weighted, D),
        "g*domega.T": np.einsum("lan,lbn->lab", weighted, dX),
        "g*dY.T": np.einsum("lan,lbn->lab", weighted, at.dY),
    }
    if part.solver.model.HOLDS_Q or part.trained:
        parts |= _own(part, part.solver.proximal.own_gradients_at(flat, at.known, fields.constants), at.weights)
    rows = np.zeros((L, channel.ROW))
    for text, shape, offset in channel.MOMENTS:
        if text in parts:
            size = prod(shape)
            rows[:, offset : offset + size] = parts[text].reshape(L, size)
    return rows.ravel(), float(np.einsum("n,n->", values, at.weights))


def _own(part: Problem, slopes: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Of the upper triangles of q of every token, then phi: as symmetric matrices, and with the first token."""
    slopes = np.einsum("nk,n->k", slopes, weights)
    L, s, trained = part.tokens, part.student_rank, len(part.trained)
    found: dict[str, np.ndarray] = {}
    in_phi = np.zeros((L, trained))
    in_phi[0] = slopes[len(slopes) - trained :]
    found["loss_phi"] = in_phi
    if part.solver.model.HOLDS_Q:
        rows, columns = np.triu_indices(s)
        triangles = slopes[: len(slopes) - trained].reshape(L, len(rows))
        matrices = np.zeros((L, s, s))
        matrices[:, rows, columns] += triangles / 2
        matrices[:, columns, rows] += triangles / 2
        found["loss_q"] = matrices
    return found


@cache
def _places_of(moments: tuple[tuple[str, tuple[int, ...], int], ...]) -> dict[str, slice]:
    return {name: slice(offset, offset + prod(size)) for name, size, offset in moments}


def _named(problem: Problem, moments: np.ndarray, loss: float) -> SlopeAverages:
    contexts, s, t, trained = problem.sizes
    places = _places_of(problem.solver.channel.MOMENTS)

    def block(text: str, *shape: int) -> np.ndarray:
        if text not in places:
            return np.zeros((contexts, *shape))
        return np.ascontiguousarray(moments[:, places[text]].reshape(contexts, *shape))

    return SlopeAverages(
        mean=block("g", s),
        square=block("g*g.T", s, s),
        with_fields=block("g*domega.T", s, s),
        with_teacher=block("g*dY.T", s, t),
        loss=loss,
        in_q=block("loss_q", s, s),
        in_phi=block("loss_phi", trained).sum(axis=0),
    )
