"""Averages with one step of replica symmetry breaking over the channel, of losses that read several student fields.

Scrambled Sobol sets in (Y, noise, omega_0), and at each node samples of omega around omega_0 from a mixture of normal
laws, one a well of the Moreau objective, which are those of exp(-y M) where M is quadratic (docs/theory.md (18.32),
(18.33)).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..base.errors import DomainError
from ..channel.fields import Fields, diagonal_blocks, fields_of, whole_matrix
from ..channel.nodes import sobol_normal
from ..channel.points import Points, field_slopes, noise_choices, points_at
from ..problems.problem import Problem
from ..problems.reduced import integrated
from .rule import Labels
from .sampled import NEAR_CUSP, Sobol, beyond_cusps
from .tilted_sums import LabelSums, TiltedRule, TiltedState

_BATCH = 2**13  # outer nodes at a time
_WELLS = 3  # the most that have a law of their own
_FAR = 14.0  # logarithm of a well's weight below that of the lowest, from which it is left out
_SOFTEST = 0.8  # least precision of a law of zeta that is believed
_SAME = 1e-4  # relative distance of minima that are one
_FARTHER = 3  # points of the larger sets, logarithm to base 2 of their ratio
_LEAST = 6  # logarithm to base 2 of the points of a set
_TOTALS = "free", "moreau", "loss", "bistable", "mass", "drift"
_EDGE = 2.0**-40  # of the unit cube, left out
_STEP = 1e-4  # of the differences that second derivatives are taken by, of the spread of a field
_STREAM = 71_000_003  # numbers the shifts of samples apart from the scramblings of sets


class _Given(NamedTuple):
    """The numbers that all nodes of one assignment of labels share: Delta = root root^T, and the Parisi parameter y."""

    problem: Problem
    fields: Fields
    root: np.ndarray
    y: float


class _Laws(NamedTuple):
    """Wells of the Moreau objective at omega_0, and normal laws of zeta, omega = omega_0 + Delta^(1/2) zeta, by them:

        -y M = height + pull^T zeta - 1/2 zeta^T bend zeta

    around a well, and the law of zeta times exp(-y M) of this is exp(weight) times a normal one.

    Attributes:
        wells: how many weigh anything, the lowest first, (N,); height, weight: (N, W), -inf where there is none.
        pull, centre: (N, W, D); bend: (N, W, D, D); precision_root: upper triangular U, precision U^T U, (N, W, D, D).
    """

    wells: np.ndarray
    height: np.ndarray
    weight: np.ndarray
    pull: np.ndarray
    bend: np.ndarray
    centre: np.ndarray
    precision_root: np.ndarray

    def of(self, at: np.ndarray, count: int) -> _Laws:
        """The first `count` of some nodes."""
        return _Laws(self.wells[at], *(each[at, :count] for each in self[1:]))

    def widened(self) -> _Laws:
        """The first, and the law of zeta without a tilt."""
        out = _Laws(np.full_like(self.wells, 2), *(np.concatenate([each[:, :1]] * 2, axis=1) for each in self[1:]))
        out.centre[:, 1], out.precision_root[:, 1] = 0.0, np.eye(out.centre.shape[2])
        return out

    @property
    def log_det(self) -> np.ndarray:
        """Of U, (N, W)."""
        return np.log(np.diagonal(self.precision_root, axis1=2, axis2=3)).sum(axis=-1)


class _Inner(NamedTuple):
    """Averages over omega at outer nodes: f_1, <M>, probability of a second minimum, <z g> - <z> <g> (N,); <g> (N, D),
    <g g^T> (N, D, D); where they are asked for d<g>/domega_0 (N, D, D), <G_ab G_ef> away from cusps, in the shell
    around them and within (N, 3, D, D, D, D), and the weights of the last two (N, 2); how far y M was from quadratic at
    the samples, infinite where the proximal map may jump, (N,)."""

    free: np.ndarray
    moreau: np.ndarray
    bistable: np.ndarray
    drift: np.ndarray
    g: np.ndarray
    square: np.ndarray
    response: np.ndarray
    slopes: np.ndarray
    cusps: np.ndarray
    uneven: np.ndarray

    @classmethod
    def empty(cls, count: int, D: int, slopes: bool) -> _Inner:
        """To be filled."""
        asked = [(D,) * 2, (3, *(D,) * 4), (2,)] if slopes else [()] * 3
        sizes = [(), (), (), (), (D,), (D, D), *asked, ()]
        return cls(*(np.zeros((count, *size)) for size in sizes))


@dataclass(frozen=True)
class Samples(TiltedRule):
    """A rule of nested Sobol sets.

    Args:
        log2, scramblings, seed, first: as of `Sobol`: the outer sets.
        inner: samples of omega a node near which y M is not smooth; uneven: how far it may be from quadratic elsewhere.
    """

    replicated: ClassVar[bool] = True
    rough: ClassVar[float] = 3e-3
    fine: ClassVar[float] = 1e-4
    share: ClassVar[float] = 0.1
    step: ClassVar[float] = 2e-2  # samples change their wells within one
    least_fall: ClassVar[float] = 0.7
    log2: int = 10
    scramblings: int = 16
    seed: int = 0
    first: int = 0
    inner: int = 48
    uneven: float = 1.0

    def describe(self) -> dict[str, Any]:
        """rule, points, seed for the JSON contract; points as of `Sobol`."""
        return {"rule": "nested-sobol", "points": self.scramblings * 2**self.log2, "seed": self.seed}

    @property
    def replicates(self) -> tuple[Samples, ...]:
        """Return a rule of each of the scramblings."""
        return tuple(replace(self, scramblings=1, first=self.first + number) for number in range(self.scramblings))

    def smaller(self) -> Samples:
        """A quarter of the outer points, for what needs fewer digits."""
        return replace(self, log2=max(self.log2 - 2, _LEAST))

    def deeper(self) -> Samples:
        """Twice as many samples of omega a node, on the same outer sets."""
        return replace(self, inner=2 * self.inner, uneven=self.uneven / 4)

    def beside(self) -> Sobol:
        """The larger sets as a rule without breaking."""
        return Sobol(self.log2 + _FARTHER, self.scramblings, self.seed, first=self.first)

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """Whether the loss does not bend in its fields."""
        return not integrated(problem).solver.proximal.CORNERS

    def search_effort(self, cost: float) -> float:
        """Return the effort by the other rule's cost: the size of sets does not follow that rule."""
        return 2e10 / cost

    def _tilted_sums(self, problem: Problem, state: TiltedState, labels: Labels, slopes: bool) -> LabelSums:
        """Return the sums over one assignment of labels, of one step of breaking.

        Set by set, what samples differ from wells taken for quadratics is added to what larger sets say of these."""
        (y,), (apart,) = state.rates, state.distances
        fields = fields_of(problem, state.overlaps, labels)
        try:
            root = np.linalg.cholesky(whole_matrix(apart[problem.context_of(labels)]))
        except np.linalg.LinAlgError:
            raise DomainError("Delta is not positive definite") from None
        sums: dict[str, Any] = {}
        for number in range(self.first, self.first + self.scramblings):
            for part in self._of_set(_Given(problem, fields, root, y), number, slopes):
                for name, value in part.items():
                    sums[name] = sums.get(name, 0.0) + value / self.scramblings
        return LabelSums(
            known=sums,
            products=np.array([sums["between"], sums["within"]]),
            totals=np.array([sums[name] for name in _TOTALS]),
            squares=(sums["smooth"], beyond_cusps(*sums["whole"], *sums["cusps"])) if slopes else (),
        )

    def _of_set(self, given: _Given, number: int, slopes: bool) -> Iterator[dict[str, Any]]:
        """Parts of the sums over one outer set, and over the larger one of the same number."""
        problem, fields, *_ = given
        L, s, t = problem.tokens, problem.student_rank, problem.teacher_rank
        groups = tuple(filter(None, (tuple(range(L * t)), tuple(range(L * t, L * (t + s))))))
        for more in (0, _FARTHER):
            nodes = sobol_normal(problem.dimension, self.log2 + more, 1000 * self.seed + number, groups)
            shifts = np.random.default_rng((_STREAM, self.seed, number)).random((0 if more else len(nodes), L * s))
            for begin in range(0, len(nodes), _BATCH):
                at = slice(begin, begin + _BATCH)
                for choice in noise_choices(problem):
                    points = points_at(problem, fields, nodes[at], choice=choice)
                    laws, weight = _laws(given, points), points.weight / len(nodes)
                    expected = _expected(given, laws)
                    sign = 1.0 if more else -1.0
                    yield _sums(fields, nodes[at], points, sign * weight, expected)
                    if not more:
                        found = self._sampled(given, nodes[at], shifts[at], laws, choice, slopes)
                        yield _sums(fields, nodes[at], points, weight, found)
                        yield {"bistable": weight @ found.bistable, "mass": weight @ (points.minima > 0)}
                        if slopes:
                            yield {
                                "smooth": np.einsum("n,nab,nef->abef", weight, found.response, found.response),
                                "whole": np.einsum("n,nzabef->zabef", weight, found.slopes),
                                "cusps": weight @ found.cusps,
                            }

    def _sampled(
        self, given: _Given, nodes: np.ndarray, shifts: np.ndarray, laws: _Laws, choice: int, slopes: bool
    ) -> _Inner:
        """Averages over omega at outer nodes, by samples."""
        D = len(given.root)
        found = _Inner.empty(len(nodes), D, slopes)

        def visit(at: np.ndarray, own: _Laws, normal: np.ndarray, shares: np.ndarray) -> None:
            if len(at):
                each = _inner(given, nodes[at], own, normal, shares, choice, slopes)
                for out, values in zip(found, each, strict=True):
                    out[at] = values

        alone = np.flatnonzero(laws.wells == 1)
        visit(alone, laws.of(alone, 1), *_fifth_degree(D))
        # A well that omega_0 does not have may be the lowest beside it.
        beyond = alone[found.uneven[alone] > self.uneven]
        visit(beyond, laws.of(beyond, 1).widened(), *_samples(self.inner // 4, shifts[beyond]))
        for count in range(2, _WELLS + 1):
            at = np.flatnonzero(laws.wells == count)
            visit(at, laws.of(at, count), *_samples(self.inner // (2 * count), shifts[at]))
        return found


def _sums(
    fields: Fields, nodes: np.ndarray, points: Points, weight: np.ndarray, found: _Inner
) -> dict[str, np.ndarray | float]:
    """Over outer nodes with weights (N,), of averages over omega at each."""
    N, L, s = points.omega.shape
    t = fields.teacher_factor.shape[1]
    g, away = found.g.reshape(N, L, s), points.omega - fields.field_mean
    teachers = np.einsum("lbc,plc->plb", fields.teacher_factor, nodes[:, : L * t].reshape(N, L, t))
    square, moreau = np.einsum("n,nab->ab", weight, found.square), float(weight @ found.moreau)
    return {
        "g": np.einsum("n,nla->la", weight, g),
        "g*dY.T": np.einsum("n,nla,nlb->lab", weight, g, teachers),
        "g*domega.T": np.einsum("n,nla,nlb->lab", weight, g, away),
        "between": np.einsum("n,nla,nlb->lab", weight, g, g),
        "within": diagonal_blocks(square, L, s),
        "free": float(weight @ found.free),
        "moreau": moreau,
        "drift": float(weight @ found.drift),
        "loss": moreau - 0.5 * float(np.sum(square * whole_matrix(fields.variance))),
    }


def _laws(given: _Given, points: Points) -> _Laws:
    """Of the wells at omega_0."""
    problem, fields, root, _ = given
    N, D = len(points.value), len(root)
    omega, x = points.omega.reshape(N, D), points.x.reshape(N, D)
    W = _WELLS
    sizes = (), (), (D,), (D, D), (D,), (D, D)
    laws = _Laws(np.ones(N, np.int64), *(np.zeros((N, W, *size)) for size in sizes))
    laws.height[:], laws.weight[:] = -np.inf, -np.inf
    laws.precision_root[:] = np.eye(D)
    for out, values in zip(laws[1:], _law(given, omega, x, points.value, points.features), strict=True):
        out[:, 0] = values
    at = np.flatnonzero(points.minima > 1)
    _, minima = problem.solver.proximal.all_minima(
        omega[at], fields.precision, points.features[at], fields.constants, W
    )
    for k in range(W):
        # The lowest has a law; the next ones take the places behind it where they weigh something.
        there, value = minima[:, k, :D], minima[:, k, D]
        other = np.isfinite(value) & (np.abs(there - x[at]).max(axis=1) > _SAME * np.abs(x[at]).max(axis=1))
        which, known = at[other], points.features[at[other]]
        law = _law(given, omega[which], there[other], value[other], known)
        kept = (law[1] > laws.weight[which, 0] - _FAR) & (laws.wells[which] < W)
        which = which[kept]
        for out, values in zip(laws[1:], law, strict=True):
            out[which, laws.wells[which]] = values[kept]
        laws.wells[which] += 1
    return laws


def _law(
    given: _Given, omega: np.ndarray, x: np.ndarray, value: np.ndarray, known: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Of wells x (N, D) at omega, in the order of `_Laws`."""
    problem, fields, root, y = given
    g = (x - omega) @ whole_matrix(fields.precision)
    bend = -y * np.einsum("ab,nac,cd->nbd", root, _slopes(problem, fields, x, known)[0], root)
    values, vectors = np.linalg.eigh(np.eye(len(root)) + bend)
    precision = (vectors * np.clip(values, _SOFTEST, None)[:, None, :]) @ vectors.transpose(0, 2, 1)
    bend = precision - np.eye(len(root))
    upper = np.linalg.cholesky(precision).transpose(0, 2, 1)
    pull = y * g @ root
    centre = np.linalg.solve(precision, pull[..., None])[..., 0]
    log_det = np.log(np.diagonal(upper, axis1=1, axis2=2)).sum(axis=1)
    height = -y * value
    return height, height + 0.5 * (pull * centre).sum(axis=1) - log_det, pull, bend, centre, upper


def _expected(given: _Given, laws: _Laws) -> _Inner:
    """What averages over omega would be if M were the lowest of the quadratics around its wells, about: a well has the
    share of its own law where it is lower than each of the others, their difference being taken for linear there."""
    from scipy.special import log_ndtr, logsumexp  # slow to load

    root, y = given.root, given.y
    W, D = laws.centre.shape[1:]
    inverse = np.linalg.inv(laws.precision_root)
    spread = inverse @ np.swapaxes(inverse, -1, -2)
    weight = laws.weight.copy()
    for i, k in permutations(range(W), 2):
        at = np.flatnonzero(laws.wells > max(i, k))
        bend, centre, S = laws.bend[at, i] - laws.bend[at, k], laws.centre[at, i], spread[at, i]
        pull = laws.pull[at, i] - laws.pull[at, k]
        half = np.einsum("nab,nb->na", bend, centre) / 2
        lower = laws.height[at, i] - laws.height[at, k] + ((pull - half) * centre).sum(axis=1)
        lower -= np.einsum("nab,nab->n", bend, S) / 2
        slope = pull - 2 * half
        width = np.sqrt(np.einsum("na,nab,nb->n", slope, S, slope))
        weight[at, i] += log_ndtr(lower / np.maximum(width, 1e-300))
    free = logsumexp(weight, axis=1)
    share = np.exp(weight - free[:, None])
    bent = np.einsum("nkab,nkb->nka", laws.bend, laws.centre)
    back = np.linalg.inv(root) / y
    g = (laws.pull - bent) @ back
    vary = np.swapaxes(inverse, -1, -2) @ laws.bend @ back
    square = np.einsum("nk,nkab->nab", share, g[..., :, None] * g[..., None, :] + np.swapaxes(vary, -1, -2) @ vary)
    cost = ((bent / 2 - laws.pull) * laws.centre).sum(axis=-1) + np.einsum("nkab,nkab->nk", laws.bend, spread) / 2
    cost -= np.where(np.isfinite(laws.height), laws.height, 0.0)
    empty = _Inner.empty(0, D, False)
    mean = np.einsum("nk,nka->na", share, laws.centre)
    drift = ((laws.pull - bent) * (laws.centre - mean[:, None])).sum(axis=-1)
    drift -= np.einsum("nkab,nkab->nk", laws.bend, spread)
    drift = (share * drift).sum(axis=1) / y
    moreau, g = (share * cost).sum(axis=1) / y, np.einsum("nk,nka->na", share, g)
    return empty._replace(free=free / y, moreau=moreau, drift=drift, g=g, square=square)


def _slopes(problem: Problem, fields: Fields, x: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return dg/domega at minima x (N, D), (N, D, D), and 1 + H V."""
    return field_slopes(problem, fields, x, known, _STEP * float(np.sqrt(np.mean(x * x)) if x.size else 1.0))


def _inner(
    given: _Given, nodes: np.ndarray, laws: _Laws, normal: np.ndarray, shares: np.ndarray, choice: int, slopes: bool
) -> _Inner:
    """Averages over omega at outer nodes (N, ...) with the same number of laws: of each, samples by standard normal
    ones (N or 1, J, D), which count for shares (J,) of it."""
    from scipy.special import logsumexp  # slow to load

    problem, fields, root, y = given
    N, K, D = laws.centre.shape
    away = normal[:, None] @ np.swapaxes(np.linalg.inv(laws.precision_root), -1, -2)
    zeta = (laws.centre[:, :, None] + away).reshape(N, -1, D)
    count, shares = zeta.shape[1], np.tile(shares / K, K)
    # Of the mixture all samples are of: no weight exceeds by more than its number of wells what one well has.
    apart = (zeta[:, None] - laws.centre[:, :, None]) @ np.swapaxes(laws.precision_root, -1, -2)
    mixture = logsumexp(laws.log_det[:, :, None] - 0.5 * (apart**2).sum(axis=-1), axis=1) - np.log(K)
    points = _points(given, nodes, zeta, choice)
    value, minima, gap = (each.reshape(N, count) for each in (points.value, points.minima, points.gap))
    exponent = np.where(minima > 0, -y * value, -np.inf) - 0.5 * (zeta**2).sum(axis=-1) - mixture
    top = exponent.max(axis=1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    weight = shares * np.exp(exponent - top)
    total = weight.sum(axis=1, keepdims=True)
    weight /= total
    g = points.g.reshape(N, count, D)
    pulls = g @ root
    mean, square = np.einsum("nj,nja->na", weight, g), np.swapaxes(weight[..., None] * g, 1, 2) @ g
    response, products, cusps = np.zeros(N), np.zeros(N), np.zeros(N)
    if slopes:
        G, matrix = _slopes(problem, fields, points.x.reshape(-1, D), points.features)
        G, det = G.reshape(N, count, D, D), np.linalg.det(matrix).reshape(N, 1, count)
        response = np.einsum("nj,njab->nab", weight, G) + y * (square - mean[:, :, None] * mean[:, None, :])
        inside, shell = det < NEAR_CUSP, (det >= NEAR_CUSP) & (det < 2 * NEAR_CUSP)
        parts = weight[:, None] * np.concatenate([~(inside | shell), shell, inside], axis=1)
        products = np.einsum("nzj,njab,njef->nzabef", parts, G, G, optimize=True)
        cusps = parts[:, 1:].sum(axis=-1)
    return _Inner(
        free=(top[:, 0] + np.log(total[:, 0])) / y,
        moreau=np.einsum("nj,nj->n", weight, value),
        bistable=np.einsum("nj,nj->n", weight, (minima > 1).astype(float)),
        drift=(weight * (zeta * pulls).sum(axis=-1)).sum(axis=1)
        - (np.einsum("nj,nja->na", weight, zeta) * np.einsum("nj,nja->na", weight, pulls)).sum(axis=1),
        g=mean, square=square, response=response, slopes=products, cusps=cusps,
        uneven=np.where(((minima > 1) & (y * gap < _FAR)).any(axis=1), np.inf, np.ptp(exponent, axis=1)),
    )  # fmt: skip


def _points(given: _Given, nodes: np.ndarray, zeta: np.ndarray, choice: int) -> Points:
    """Proximal points at zeta (N, samples, D) of nodes (N, ...), N samples of them."""
    problem, fields, root, _ = given
    L, s, t = problem.tokens, problem.student_rank, problem.teacher_rank
    N, count, D = zeta.shape
    z = (zeta @ root.T).reshape(N, count, L, s)
    inner = np.tile(nodes[:, None], (1, count, 1))
    inner[:, :, L * t : L * (t + s)] += np.einsum("lab,njlb->njla", np.linalg.inv(fields.field_factor), z).reshape(
        N, count, D
    )
    return points_at(problem, fields, inner.reshape(N * count, -1), choice=choice)


def _samples(pairs: int, shifts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard normal samples, half of them the mirror images of the others, (N, 2 * pairs, D), and what each counts
    for: a Kronecker sequence of the unit cube, shifted by (N, D)."""
    from scipy.special import ndtri  # slow to load

    D = shifts.shape[1]
    base = float(np.roots([1.0, *[0.0] * (D - 1), -1.0, -1.0]).real.max())  # base^(D + 1) = base + 1
    steps = np.outer(np.arange(pairs), base ** -np.arange(1.0, D + 1))
    normal = ndtri(np.clip(np.modf(steps + shifts[:, None])[0], _EDGE, 1 - _EDGE))
    return np.concatenate([normal, -normal], axis=1), np.full(2 * pairs, 0.5 / pairs)


def _fifth_degree(D: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (1, J, D) and weights (J,) of the normal law, exact for polynomials of the fifth degree: the centre, and on
    one sphere the axes and the bisectors of pairs of them (Stroud, E_n^(r^2) 5-2)."""
    axes = np.sqrt(D + 2.0) * np.eye(D)
    bisectors = [(one + way * other) / np.sqrt(2.0) for one, other in combinations(axes, 2) for way in (1, -1)]
    sides = np.concatenate([axes, np.reshape(bisectors, (-1, D))])
    weights = np.repeat([(4.0 - D) / (2 * (D + 2) ** 2), 1.0 / (D + 2) ** 2], [D, D * (D - 1)])
    nodes = np.concatenate([np.zeros((1, D)), sides, -sides])
    return nodes[None], np.concatenate([[2.0 / (D + 2)], weights, weights])


SAMPLES = tuple(Samples(log2) for log2 in (6, 8, 9, 10, 11))
