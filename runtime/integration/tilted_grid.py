"""Averages with replica symmetry broken over the channel, of losses that read up to two student fields.

Y and noise take equidistant nodes, and at each the Moreau envelope stands on a grid of omega, on which Gaussian blurs,
one a level, lead from omega to omega_0, and back. Where the proximal map jumps sums over places are corrected
(`loops.tilted_grid`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..base.errors import DomainError
from ..base.threads import share
from ..channel.exchange import Reduction
from ..channel.fields import Fields, diagonal_blocks, fields_of, whole_matrix
from ..channel.points import field_slopes, noise_choices, points_at
from ..problems.compiled import loops
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import integrated
from .rule import Labels
from .sampled import TeacherRule
from .tilted_sums import LabelSums, TiltedRule, TiltedState

_STALE = 1.5  # factor by which what a grid resolves may change before it is made anew
_SLACK = 1.2  # of the margin of a grid, for states beside the one that it was made for
_LARGEST = 4e6  # grid, in places
_BATCH = 1e6  # places visited at a time
_KEPT = 3e7  # places whose proximal points are kept
STEEPEST = 600.0  # exponent of the tilt that doubles hold
_SHIFTS = np.array([0.7548776662466927, 0.5698402909980532])  # of a grid beside the one before, in steps
_CURVATURE = 1e-4  # step of the differences that second derivatives are taken by, of the spread of a field


def resolved(problem: Problem, state: TiltedState, labels: Labels) -> np.ndarray:
    """The narrowest of z of any level, omega_0 and where two wells change places, along every field (L s,).

    Raises:
        DomainError: the state is outside the domain.
    """
    fields = fields_of(problem, state.overlaps, labels)
    own = fields.field_factor @ fields.field_factor.transpose(0, 2, 1)
    blocks = (*state.distances[:, problem.context_of(labels)], own, fields.variance / state.rates.max())
    narrow = np.min([np.linalg.eigvalsh(each)[:, 0] for each in blocks], axis=0)
    if not narrow.min() > 0:
        raise DomainError("Delta is not positive definite")
    return np.repeat(np.sqrt(narrow), problem.student_rank)


class Layout(NamedTuple):
    """Grids of one assignment of labels and one value of the labelled noise: places corner + steps (i, j).

    Attributes:
        nodes: of Y and noise, (P, L t + U); weights: (P,); steps: (D,); corners, counts: (P, D).
    """

    nodes: np.ndarray
    weights: np.ndarray
    steps: np.ndarray
    corners: np.ndarray
    counts: np.ndarray

    @classmethod
    def around(
        cls, nodes: np.ndarray, weights: np.ndarray, centres: np.ndarray, half: np.ndarray, steps: np.ndarray
    ) -> Layout:
        """Grids that reach `half` (P, D) to either side of centres (P, D), each beside the one before by a shift.

        Raises:
            DomainError: they would be too large.
        """
        counts = 2 * np.ceil(half / steps).astype(np.int64) + 1
        if counts.prod(axis=1).max() > _LARGEST:
            raise DomainError(f"Delta is too small: a grid would have {counts.prod(axis=1).max():.0e} places")
        shifts = np.modf(np.multiply.outer(np.arange(len(nodes)), _SHIFTS))[0][:, : len(steps)] - 0.5
        return cls(nodes, weights, steps, centres + steps * (shifts - (counts - 1) / 2), counts)

    def batches(self) -> Iterator[Layout]:
        """Parts of so many places that they can be visited at a time."""
        ends = np.cumsum(self.counts.prod(axis=1))
        edges = np.searchsorted(ends, np.arange(_BATCH, ends[-1] + _BATCH, _BATCH))
        edges = np.unique(np.concatenate([[0], np.minimum(edges + 1, len(ends))]))
        for begin, end in pairwise(edges):
            at = slice(begin, end)
            yield Layout(self.nodes[at], self.weights[at], self.steps, self.corners[at], self.counts[at])


class _Places(NamedTuple):
    """Proximal points on the grids of a batch, one after another: from `starts` (P + 1,) on costs, the Moreau envelope
    (N,), g (N, D), whether a second minimum was seen (N,); features (P, F); chance: of the labelled noise, (P,)."""

    starts: np.ndarray
    costs: np.ndarray
    g: np.ndarray
    bistable: np.ndarray
    features: np.ndarray
    chance: np.ndarray


@dataclass(frozen=True)
class Grids(TiltedRule):
    """A rule of grids.

    Args:
        points: equidistant nodes an axis of Y and noise; density: places of a grid on the narrowest that it resolves.
        reach: of Y, noise and omega_0 together, in standard deviations.
        frame: whose grids are taken while other states nearby are looked at: with grids that moved with the state a
            derivative could not be told from the error of a grid. Those of the state itself where it is None.
    """

    rough: ClassVar[float] = 1e-5
    fine: ClassVar[float] = 1e-7
    share: ClassVar[float] = 1e-2
    slowest: ClassVar[float] = 0.5  # errors scatter with the places of cusps once they are small
    points: int = 24
    density: float = 1.3
    reach: float = 6.0
    frame: TiltedState | None = None
    kept: dict[Any, list[_Places]] = field(default_factory=dict, compare=False, repr=False)

    def describe(self) -> dict[str, Any]:
        """rule, points, seed for the JSON contract; `points` are those an axis of Y."""
        return {"rule": "grids", "points": self.points, "seed": None}

    def finer(self) -> Grids:
        """More nodes on every axis, and farther out; grids converge faster than Y does."""
        return replace(
            self, points=round(self.points * 4 / 3), density=self.density * 1.15, reach=self.reach + 0.25, kept={}
        )

    def coarser(self) -> Grids:
        """Fewer of them."""
        return replace(self, points=round(self.points * 3 / 4), density=self.density / 1.15, kept={})

    def framed(self, overlaps: Overlaps, distances: np.ndarray, rates: np.ndarray) -> Grids:
        """The same rule on the grids of a state."""
        return replace(self, frame=TiltedState(overlaps, distances, rates), kept={})

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """Whether the loss reads no more than two student fields, and does not bend in them."""
        part = integrated(problem).solver
        return part.channel.FIELDS <= 2 and not part.proximal.CORNERS

    def search_effort(self, cost: float) -> float:
        """Return the effort by the other rule's cost: the size of grids does not follow that rule."""
        return 5e9 / cost

    def _tilted_sums(self, problem: Problem, state: TiltedState, labels: Labels, slopes: bool) -> LabelSums:
        """Return the sums over one assignment of labels.

        Raises:
            DomainError: the state has moved too far from that of the grids, or they would be too large.
        """
        frame = self.frame.of_part(problem) if self.frame else state
        L, s, t, D = problem.tokens, problem.student_rank, problem.teacher_rank, problem.solver.channel.FIELDS
        if np.any(resolved(problem, frame, labels) > _STALE * resolved(problem, state, labels)):
            raise DomainError("Delta became too small for its grid")
        fields, K = fields_of(problem, state.overlaps, labels), len(state.rates)
        known = TeacherRule.of(problem, fields, self.points, equidistant=True)
        reduction = Reduction.of(problem, fields, labels, known.axes)
        layout = self._layout(problem, frame, labels, reduction)
        spreads = np.stack([_plane(whole_matrix(each)) for each in state.distances[:, problem.context_of(labels)]])
        conditional = whole_matrix(fields.field_factor @ fields.field_factor.transpose(0, 2, 1))
        precision = _plane(np.linalg.inv(conditional))
        norm = 1 / np.sqrt(np.linalg.det(2 * np.pi * conditional))
        sums, with_teacher = np.zeros(_length(D, K, slopes)), np.zeros((L, s, t))
        for choice in noise_choices(problem):
            places_of_batches = self._places(problem, fields, labels, reduction, layout, choice)
            for batch, places in zip(layout.batches(), places_of_batches, strict=True):
                if state.rates.max() * float(np.ptp(places.costs)) > STEEPEST:
                    raise DomainError("exp(-y M) is beyond double precision")
                out = np.zeros((len(batch.nodes), _length(D, K, slopes)))
                y = batch.nodes[:, : L * t].reshape(len(batch.nodes), L, t)
                share(
                    loops("tilted_grid").tilted_on_grids, len(out), places.starts, _pad(batch.counts, 1),
                    _pad(batch.steps, 1.0), _pad(batch.corners, 0.0), places.costs, places.g,
                    _more(problem, fields, batch, places, slopes), state.rates, spreads,
                    _pad(_centres(fields, y), 0.0), precision, norm, _pad(fields.field_mean.ravel(), 0.0), slopes, out,
                )  # fmt: skip
                weights = batch.weights * places.chance
                sums += weights @ out
                teachers = np.einsum("lbc,plc->plb", fields.teacher_factor, y)
                means = out[:, K + 2 : K + 2 + D].reshape(-1, L, s)
                with_teacher += np.einsum("p,pla,plb->lab", weights, means, teachers)
        end = K + 2 + D + (K + 2) * D * D
        mass, *costs = sums[: K + 2]
        mean, matrices = sums[K + 2 : K + 2 + D], sums[K + 2 + D : end].reshape(K + 2, D, D)
        along, *products = (diagonal_blocks(one, L, s) for one in matrices)
        bistable, *rest = sums[end:]
        loss = costs[-1] - 0.5 * float(np.sum(state.overlaps.V[problem.context_of(labels)] * products[-1]))
        return LabelSums(
            known={"g": mean, "g*dY.T": with_teacher, "g*domega.T": along},
            products=np.array(products),
            totals=np.array([*(-cost for cost in costs[:-1]), costs[-1], loss, bistable, mass]),
            squares=tuple(np.array(rest).reshape(-1, D, D, D, D)[::-1]),
            reduction=reduction,
        )

    def _layout(self, problem: Problem, frame: TiltedState, labels: Labels, reduction: Reduction) -> Layout:
        """Grids around a state.

        Raises:
            DomainError: they would be too large.
        """
        L, t = problem.tokens, problem.teacher_rank
        fields = fields_of(problem, frame.overlaps, labels)
        nodes, weights = TeacherRule.of(problem, fields, self.points, equidistant=True).rule
        weights = weights * reduction.orbits(nodes, problem.teacher_rank)
        left = self.reach**2 - (nodes**2).sum(axis=1)
        kept = (weights > 0) & (left > 0)
        nodes, weights, left = nodes[kept], weights[kept], left[kept]
        steps = resolved(problem, frame, labels) / self.density
        own = np.linalg.norm(whole_matrix(fields.field_factor), axis=1)
        widths = sum(
            np.sqrt(np.diagonal(whole_matrix(each))) for each in frame.distances[:, problem.context_of(labels)]
        )  # fmt: skip
        half = np.sqrt(np.maximum(left, 1.0))[:, None] * own + _SLACK * loops("tilted_grid").MARGIN * widths + 2 * steps
        centres = _centres(fields, nodes[:, : L * t].reshape(len(nodes), L, t))
        return Layout.around(nodes, weights, centres, half, steps)

    def _places(
        self, problem: Problem, fields: Fields, labels: Labels, reduction: Reduction, layout: Layout, choice: int
    ) -> Iterator[_Places]:
        """Proximal points on the grids, batch by batch: those known for the same V, and with the same grids."""
        key = (labels, choice, reduction.exchanges, fields.variance.tobytes(), fields.constants.tobytes())
        if key in self.kept:
            yield from self.kept[key]
            return
        found = []
        for batch in layout.batches():
            places = _visited(problem, fields, batch, choice)
            if self.frame is not None:
                found.append(places)
            yield places
        count = layout.counts.prod(axis=1).sum() * (1 + len(self.kept))
        if self.frame is not None and count < _KEPT:
            self.kept[key] = found


def _length(fields: int, levels: int, slopes: bool) -> int:
    """Of a row that `tilted_on_grids` fills."""
    return levels + 3 + fields + (levels + 2) * fields**2 + 2 * slopes * fields**4


def _plane(matrix: np.ndarray) -> np.ndarray:
    """(2, 2): a single field is the second."""
    out = np.zeros((2, 2))
    out[2 - len(matrix) :, 2 - len(matrix) :] = matrix
    return out


def _pad(values: np.ndarray, fill: float) -> np.ndarray:
    """(..., 2), of which a single field is the second."""
    if values.shape[-1] == 2:
        return np.ascontiguousarray(values)
    return np.concatenate([np.full_like(values, fill), values], axis=-1)


def _centres(fields: Fields, y: np.ndarray) -> np.ndarray:
    """E[omega_0 | Y] at coordinates (P, L, t) of Y, (P, D)."""
    return (fields.field_mean + np.einsum("lat,plt->pla", fields.field_from_teacher, y)).reshape(len(y), -1)


def places_of(batch: Layout) -> tuple[np.ndarray, np.ndarray]:
    """The grid that every place of a batch is on, (N,), and the place, (N, D)."""
    sizes = batch.counts.prod(axis=1)
    which = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(which)) - (np.cumsum(sizes) - sizes)[which]
    steps = np.stack(np.divmod(place, batch.counts[which, -1]), axis=1)
    return which, batch.corners[which] + batch.steps * steps[:, 2 - len(batch.steps) :]


def _visited(problem: Problem, fields: Fields, batch: Layout, choice: int) -> _Places:
    """Proximal points at all places of a batch."""
    L, t = problem.tokens, problem.teacher_rank
    starts = np.concatenate([[0], np.cumsum(batch.counts.prod(axis=1))])
    which, omega = places_of(batch)
    away = omega - _centres(fields, batch.nodes[:, : L * t].reshape(len(batch.nodes), L, t))[which]
    inner = np.linalg.solve(whole_matrix(fields.field_factor), away.T).T
    outer, noise = batch.nodes[which, : L * t], batch.nodes[which, L * t :]
    points = points_at(problem, fields, np.concatenate([outer, inner, noise], axis=1), choice=choice)
    first = starts[:-1]
    g = points.g.reshape(len(omega), -1)
    return _Places(starts, points.value, g, points.minima > 1, points.features[first], points.weight[first])


def _more(problem: Problem, fields: Fields, batch: Layout, places: _Places, slopes: bool) -> np.ndarray:
    """Columns that are averaged as they are: whether a second minimum was seen, and G_ab G_ef of G = dg/domega."""
    bistable = places.bistable[:, None].astype(float)
    if not slopes:
        return bistable
    which, omega = places_of(batch)
    x = omega + places.g @ whole_matrix(fields.variance)
    G, _ = field_slopes(problem, fields, x, places.features[which], _CURVATURE * float(np.std(x)))
    return np.concatenate([bistable, np.einsum("nab,nef->nabef", G, G).reshape(len(G), -1)], axis=1)


LADDER = (Grids(16, 1.1, 5.0), Grids(32, 1.2, 5.5), Grids(48, 1.3, 5.75), Grids(64, 1.5, 6.0))
