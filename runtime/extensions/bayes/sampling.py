"""Averages over an output channel with continuous hidden coordinates, from the teacher's side.

Fields Y of a sentence are drawn, omega given them, and what is observed follows from Y; the posterior is then a sum
over the hidden coordinates: over those that are fields themselves on a lattice around omega, over others on a grid
(`Planted`). Draws are scrambled Sobol points, whose replicates tell how far off averages are. What is observed has to
follow from the fields: by linear equations, the hidden ones being known and fields, or by functions that the model
gives.

Two posteriors need no such sum. Where all that stays hidden are lengths, fields are somewhere on half lines
(`HalfLines`): a label that is the sign of a field tells Y >= 0 or Y < 0. Of the normal law of Y around omega the half
line from a on, in the direction s = 1 or -1, has (docs/theory.md (13.20))

    Phi(z),   g = s r / v,   dg/domega = -r (z + r) / v^2,   r = N(z) / Phi(z),   z = s (omega - a) / v,

with v its standard deviation; other fields are what is observed, and choices of discrete hidden coordinates add up.

Where all columns of the teacher but one are known exactly (`Preimages`), of its fields the finitely many values are
left that what is observed allows (docs/theory.md (13.16)): at known columns the fields of the one that is left and what
is observed are as many numbers, and the posterior is a sum over the points that the channel takes to what is observed.
They are found by Newton's method from a lattice of starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from scipy.linalg import block_diag
from scipy.special import log_ndtr

from ...base import budget
from ...base.errors import InputError, NotConvergedError
from ...base.threads import share
from ...channel.lattices import points_in_ball, sampling_lattice
from ...channel.nodes import gauss_hermite, sobol_normal, tensor
from ...problems.problem import Problem
from .averages import Averages, add_up, change, channel_at, random_coordinates, root, squares, varying

REPLICATES = 8
_REACH = 5.0  # standard deviations of what is hidden, and of the fields of a column among starts
_RADIAN = 0.7  # spacing of an angle beside that of a lattice in standard deviations
_REACH_OF_BOX = 8.5  # standard deviations where e^-36 of a normal law's density is left: what a range holds
_FINEST = 0.04
_AT_ONCE = 1 << 16
_MOST_DRAWS, _USUAL = 17, 200  # binary logarithm of draws a replicate, for so many hidden nodes

# Of half lines.
_ENDS = {"real": (-300.0, 0.0, 300.0), "positive": (0.0, 1.0, 1e200)}  # of a coordinate, and a place between
_INFINITY, _STEP_ALONG = 1e100, 1e-2
_PLACES = (-1.0, 0.4, 1.2)  # steps from the place between to where the density along is looked at
_TOLERANCE = 1e-7

# Of preimages.
_STEP = 2e-3  # of central differences of fourth order
_ITERATIONS, _FAR = 25, 12.0  # and standard deviations at which they end
_SOLVED, _STILL, _SAME = 1e-9, 1e-6, 1e-4  # of what is observed, and of the fields: a last move, and a distance
_FLAT, _EXACT = 1e-12, 1e-11  # determinants of slopes that rounding hides; of what is observed, where no step is needed
_MOST, _SENTENCES = 30_000, 256  # sentences, all and at once


def suits(module: Any) -> bool:
    """Whether the averages of a channel can be taken from the teacher's side."""
    integrated = [
        (free, kind) for free, (_, kind, _) in zip(module.FREE, module.HIDDEN, strict=True) if kind != "discrete"
    ]
    if hasattr(module, "observed_at"):
        return all(free >= 0 or kind != "positive" for free, kind in integrated)
    return bool(module.AFFINE and all(free >= 0 for free, _ in integrated))


@dataclass
class Planted:
    """The rule.

    Attributes:
        boxes: labels -> ranges of the continuous coordinates, observed before hidden, as arcsinh of their ends; read of
            real hidden ones that are no fields.
        log2: of the points of a replicate; inner: spacing of the lattice of hidden coordinates, in standard deviations;
            seeds: of the replicates.
    """

    problem: Problem
    boxes: Callable[[], Mapping[tuple[int, ...], Sequence[tuple[float, float]]]] | None = None
    log2: int = 7
    inner: float = 0.7
    seeds: tuple[int, ...] = tuple(range(REPLICATES))

    def averages(self, q: np.ndarray, curved: bool = False) -> Averages:
        """Averages at overlaps q, (C, t, t), 0 <= q < rho*; with their derivative in q where `curved`."""
        samples = [self._replicate(q, curved, seed) for seed in self.seeds]
        mean = {
            name: np.mean([getattr(sample, name) for sample in samples], axis=0)
            for name in ("outer", "log_evidence", "norm", *(["response"] if curved else []))
        }
        return Averages(**mean, samples=tuple(samples))

    def _replicate(self, q: np.ndarray, curved: bool, seed: int) -> Averages:
        law = self.problem.law
        outer = np.zeros_like(q)
        response = np.zeros((*q.shape, *q.shape)) if curved else None
        log_evidence = 0.0
        for labels, probability in self.problem.label_choices:
            contexts = self.problem.context_of(labels)
            rho, mean = law.rho_star[contexts], law.teacher_means[contexts].ravel()
            factor = varying(q[contexts], float(np.abs(law.rho_star).max()))
            width = block_diag(*root(rho - q[contexts]))
            nodes = sobol_normal(factor.shape[1] + len(width), self.log2, seed, ())
            for begin in range(0, len(nodes), _AT_ONCE):
                part = nodes[begin : begin + _AT_ONCE]
                weights = np.full(len(part), 1 / len(nodes))
                omega = mean + part[:, : factor.shape[1]] @ factor.T
                observed = self.observed(omega + part[:, factor.shape[1] :] @ width.T, labels)
                values, g, curvature = self.posterior(observed, omega, q, labels, curved)
                log_evidence += probability * float(weights @ values)
                add_up(outer, response, contexts, probability * squares(weights, g, curvature, q.shape[1]))
        return Averages(outer, log_evidence, 1.0, response)

    def settle(self, q: np.ndarray, tolerance: float) -> None:
        """Refine the sum over what is hidden until averages over few draws move by less than `tolerance`.

        Raises:
            NotConvergedError: it would take too many nodes.
        """
        if not self.is_rough:
            return
        few = Planted(self.problem, self.boxes, 6, self.inner)
        current = few._replicate(q, False, 0)
        while True:
            few.inner = self.inner / 1.3
            if few.inner < _FINEST:
                raise NotConvergedError(
                    f"the posterior of what stays hidden in {self.problem.solver.name} is too narrow at q = "
                    f"{np.array2string(q[0], precision=4)} for a sum around the known part of the fields"
                )
            finer = few._replicate(q, False, 0)
            if change(current, finer) < tolerance:
                return
            current, self.inner = finer, few.inner

    def posterior(
        self, observed: np.ndarray, omega: np.ndarray, q: np.ndarray, labels: tuple[int, ...], curved: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """log Z_out (N,), g (N, L t) and, where `curved`, dg/domega at points of their own."""
        contexts = self.problem.context_of(labels)
        variance = self.problem.law.rho_star[contexts] - q[contexts]
        if (half_lines := self._half_lines[labels]) is not None and half_lines.suit(variance):
            return half_lines.posterior(observed, omega, variance)
        module, free = self.problem.solver.bayes, self._free
        places = [module.FREE[i] for i in free]
        factor = np.linalg.cholesky(block_diag(*variance)[np.ix_(places, places)])
        nodes = np.zeros((1, 0))  # nothing continuous is hidden
        if free:
            nodes = self.inner * points_in_ball(sampling_lattice(len(free)), _REACH / self.inner)
        choices, log_step = self._summed(labels)
        log_weight = len(free) * np.log(self.inner) + np.log(np.diag(factor)).sum() + log_step
        log_norm = -0.5 * np.linalg.slogdet(2 * np.pi * variance)[1].sum()
        count, D = omega.shape
        values, slopes = np.empty(count), np.empty((count, D))
        curvatures = np.empty((count, D * curved, D * curved))
        share(
            module.posterior_at, count,
            np.ascontiguousarray(observed), np.ascontiguousarray(omega), np.linalg.inv(variance), log_norm,
            choices, np.array(free, np.int64), np.ascontiguousarray(factor), nodes, log_weight,
            self.problem.constants(labels), values, slopes, curvatures,
        )  # fmt: skip
        return values, slopes, curvatures

    @property
    def most_draws(self) -> int:
        """Binary logarithm of the most points of a replicate: more where the sum over what is hidden is short."""
        nodes = len(self._summed(self.problem.label_choices[0][0])[0])
        if self._free:
            nodes *= len(points_in_ball(sampling_lattice(len(self._free)), _REACH / self.inner))
        return _MOST_DRAWS + int(np.clip(np.log2(_USUAL / nodes), 0, 3))

    @property
    def hides(self) -> bool:
        """Whether anything continuous stays hidden."""
        return any(kind != "discrete" for _, kind, _ in self.problem.solver.bayes.HIDDEN)

    @property
    def is_rough(self) -> bool:
        """Whether any of that is summed over on nodes."""
        contexts = self.problem.context_of
        return self.hides and not all(
            lines is not None and lines.suit(self.problem.law.rho_star[contexts(labels)])
            for labels, lines in self._half_lines.items()
        )

    @cached_property
    def _half_lines(self) -> dict[tuple[int, ...], HalfLines | None]:
        return {labels: find_half_lines(self.problem, labels) for labels, _ in self.problem.label_choices}

    @cached_property
    def _free(self) -> list[int]:
        return [i for i, place in enumerate(self.problem.solver.bayes.FREE) if place >= 0]

    def _summed(self, labels: tuple[int, ...]) -> tuple[np.ndarray, float]:
        """Nodes (K, hidden) of the hidden coordinates, zero of those that are fields, and the logarithm of the weight
        that all of them have."""
        module = self.problem.solver.bayes
        axes, log_step = [], 0.0
        place = sum(kind != "discrete" for _, kind, _ in module.OBSERVED) - 1
        for free, (_, kind, values) in zip(module.FREE, module.HIDDEN, strict=True):
            place += kind != "discrete"
            if kind == "discrete" or free >= 0:
                axes.append(values if kind == "discrete" else (0.0,))
                continue
            if kind == "angle":
                low, high, spacing = -np.pi, np.pi, self.inner * _RADIAN
            else:
                assert self.boxes is not None
                low, high = np.sinh(self.boxes()[labels][place])
                spacing = self.inner * (high - low) / (2 * _REACH_OF_BOX)
            count = int(np.ceil((high - low) / spacing))
            step = (high - low) / count
            axes.append(tuple(low + step * (np.arange(count) + 0.5)))
            log_step += np.log(step)
        return np.array(list(product(*axes))), log_step

    def observed(self, fields: np.ndarray, labels: tuple[int, ...]) -> np.ndarray:
        """What is observed at fields (N, L t): as the model tells, else by linear equations for each choice of what is
        hidden and discrete."""
        module, constants = self.problem.solver.bayes, self.problem.constants(labels)
        if hasattr(module, "observed_at"):
            return module.observed_at(np.ascontiguousarray(fields), constants)
        count = len(module.OBSERVED)
        probes = np.concatenate([np.zeros((1, count)), np.eye(count)])
        bound = [i for i in range(module.FIELDS) if i not in module.FREE]
        positive = [i for i, (_, kind, _) in enumerate(module.OBSERVED) if kind == "positive"]
        found = np.full((len(fields), count), np.nan)
        for choice in self._summed(labels)[0]:
            hidden = np.tile(choice, (len(fields), 1))
            hidden[:, self._free] = fields[:, [module.FREE[i] for i in self._free]]
            values = module.fields_at(probes, hidden, constants)[0][:, :, bound]
            matrix = np.moveaxis(values[1:] - values[0], 0, 2)
            solved = np.linalg.solve(matrix, (fields[:, bound] - values[0])[:, :, None])[:, :, 0]
            allowed = (solved[:, positive] > 0).all(axis=1)
            found[allowed] = solved[allowed]
        return found


@dataclass(frozen=True)
class HalfLines:
    """Half lines of a choice of labels.

    Attributes:
        hidden: which hidden coordinates run along one; fields: which field each of them moves.
        choices: nodes of all hidden coordinates, one a choice of the discrete ones, (K, .), with the others between
            their ends.
    """

    problem: Problem
    labels: tuple[int, ...]
    hidden: tuple[int, ...]
    fields: tuple[int, ...]
    choices: np.ndarray

    def suit(self, variance: np.ndarray) -> bool:
        """Whether what is unknown of each of these fields, blocks (L, t, t) of Y, is independent of all others."""
        own = block_diag(*variance)[list(self.fields)]
        own[range(len(own)), list(self.fields)] = 0.0
        return not own.any()

    def posterior(
        self, observed: np.ndarray, omega: np.ndarray, variance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """log Z_out (N,), g (N, D) and dg/domega (N, D, D) at points of their own, with (L, t, t) unknown of Y."""
        own, V = list(self.fields), block_diag(*variance)
        rest = [i for i in range(omega.shape[1]) if i not in own]
        widths, precision = np.sqrt(np.diag(V)[own]), np.linalg.inv(V[np.ix_(rest, rest)])
        log_norm = -0.5 * np.linalg.slogdet(2 * np.pi * V[np.ix_(rest, rest)])[1]
        parts = []
        for choice in self.choices:
            starts, slopes, log_density = self._ends(observed, choice)
            side = np.sign(slopes)
            z = side * (omega[:, own] - starts[:, own]) / widths
            shares = log_ndtr(z)
            ratio = np.exp(-0.5 * z * z - 0.5 * np.log(2 * np.pi) - shares)
            step = starts[:, rest] - omega[:, rest]
            g, curvature = np.empty_like(omega), np.zeros((*omega.shape, omega.shape[1]))
            g[:, own], g[:, rest] = side * ratio / widths, step @ precision
            curvature[:, own, own] = -ratio * (z + ratio) / widths**2
            curvature[np.ix_(range(len(omega)), rest, rest)] = -precision
            values = log_density + shares.sum(axis=1) + log_norm - 0.5 * np.einsum("ni,ni->n", g[:, rest], step)
            parts.append((values, g, curvature))
        logs, slopes, curvatures = (np.array(part) for part in zip(*parts, strict=True))
        values = np.logaddexp.reduce(logs, axis=0)
        g = np.einsum("kn,kni->ni", np.exp(logs - values), slopes)
        second = np.einsum("kn,knij->nij", np.exp(logs - values), curvatures + slopes[..., None] * slopes[:, :, None])
        return values, g, second - g[:, :, None] * g[:, None]

    def _ends(self, observed: np.ndarray, choice: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Fields where half lines begin (N, D), slopes of their own fields in the hidden coordinates (N, H), and the
        logarithm of the density along them (N,)."""
        low = choice.copy()
        for i in self.hidden:
            low[i] = _ENDS[self.problem.solver.bayes.HIDDEN[i][1]][0]
        moved = [choice + shift * _STEP_ALONG * np.eye(len(choice))[i] for i in self.hidden for shift in (2, 1, -1, -2)]
        fields, jacobian, likelihood = channel_at(self.problem, self.labels, observed, np.array([low, choice, *moved]))
        stencils = (fields[:, 2 + 4 * h : 6 + 4 * h, field] for h, field in enumerate(self.fields))
        slopes = np.stack([stencil @ [-1, 8, -8, 1] for stencil in stencils], axis=1) / (12 * _STEP_ALONG)
        log_density = jacobian[:, 1] + likelihood[:, 1] - np.log(np.abs(slopes)).sum(axis=1)
        return fields[:, 0], slopes, log_density

    def is_uniform(self, observed: np.ndarray) -> bool:
        """Whether the density is the same all along the half lines."""
        for choice in self.choices:
            here = self._ends(observed, choice)[2]
            for place in _PLACES:
                there = choice.copy()
                for i in self.hidden:
                    real = self.problem.solver.bayes.HIDDEN[i][1] == "real"
                    there[i] = choice[i] + place if real else choice[i] * np.exp(place)
                if not np.abs(self._ends(observed, there)[2] - here).max() < _TOLERANCE:
                    return False
        return True


def find_half_lines(problem: Problem, labels: tuple[int, ...]) -> HalfLines | None:
    """Half lines that the hidden continuous coordinates run along, by the channel at random values of what is observed;
    None where they do anything else, or there are none."""
    module = problem.solver.bayes
    kinds = [kind for _, kind, _ in module.HIDDEN]
    hidden = [i for i, kind in enumerate(kinds) if kind != "discrete"]
    if not hidden or not all(kinds[i] in _ENDS for i in hidden):
        return None
    axes = [values if kind == "discrete" else (_ENDS[kind][1],) for _, kind, values in module.HIDDEN]
    choices = np.array(list(product(*axes)), float)
    observed = random_coordinates(module.OBSERVED, np.random.default_rng(0))
    fields = [_moved_field(problem, labels, observed, choices, i) for i in hidden]
    if None in fields or len(set(fields)) < len(hidden):
        return None
    found = HalfLines(problem, labels, tuple(hidden), tuple(field for field in fields if field is not None), choices)
    return found if found.is_uniform(observed) else None


def _moved_field(
    problem: Problem, labels: tuple[int, ...], observed: np.ndarray, choices: np.ndarray, i: int
) -> int | None:
    """The only field that a hidden coordinate moves, if it takes it from a place to infinity."""
    found = set()
    for choice in choices:
        nodes = np.tile(choice, (3, 1))
        nodes[:, i] = _ENDS[problem.solver.bayes.HIDDEN[i][1]]
        fields = channel_at(problem, labels, observed, nodes)[0]
        moves = np.flatnonzero((fields != fields[:, :1]).any(axis=(0, 1)))
        starts, ends = np.abs(fields[:, 0]), np.abs(fields[:, 2, moves])
        if len(moves) != 1 or not starts.max() < _INFINITY or not ends.min() > _INFINITY:
            return None
        found.add(int(moves[0]))
    return found.pop() if len(found) == 1 else None


@dataclass
class Preimages:
    """The rule.

    Attributes:
        of: the column that is left, from 0 on; even: whether what is observed tells no column's sign;
            points: of every field, an even number; starts: across the lattice of starts.

    Raises:
        InputError: a channel whose hidden coordinates are not fields, or that does not show as many numbers as the
            column has fields.
    """

    problem: Problem
    of: int
    even: bool = False
    points: int = 6
    starts: int = 10

    def __post_init__(self) -> None:
        module, self.planted = self.problem.solver.bayes, Planted(self.problem)
        if not (suits(module) and self.planted.hides) or len(module.OBSERVED) != self.problem.tokens:
            raise InputError(
                f"column {self.of + 1} of {self.problem.solver.name} is asked for with the others known exactly: what "
                "is observed must then be as many numbers as it has fields, and hidden ones fields"
            )

    def averages(self) -> Averages:
        """Of the column alone, nothing being known of it: E g_l g_l^T, and how it responds to its overlaps.

        Raises:
            NotConvergedError: too many sentences.
        """
        law, t, of = self.problem.law, self.problem.teacher_rank, self.of
        outer, response = np.zeros_like(law.rho_star), np.zeros((*law.rho_star.shape, *law.rho_star.shape))
        nodes, shares = self._nodes()
        for labels, probability in self.problem.label_choices:
            contexts, (mean, own) = self.problem.context_of(labels), self._law_of_column(labels)
            factor = np.linalg.cholesky(law.rho_star[contexts])
            fields = np.einsum("lab,nlb->nla", factor, nodes.reshape(len(nodes), -1, t)).reshape(len(nodes), -1)
            fields += law.teacher_means[contexts].ravel()
            first, second = np.zeros((len(own), t, t)), np.zeros((len(own), t, t, len(own), t, t))
            for begin in range(0, len(fields), _SENTENCES):
                budget.check()
                part, weights = fields[begin : begin + _SENTENCES], shares[begin : begin + _SENTENCES]
                rows, values, probabilities = self.left(part, labels)
                centre = np.zeros((len(part), len(own)))
                np.add.at(centre, rows, probabilities[:, None] * values)
                covariance = np.zeros((len(part), len(own), len(own)))
                apart = values - centre[rows]
                np.add.at(covariance, rows, probabilities[:, None, None] * apart[:, :, None] * apart[:, None])
                first[:, of, of] += weights @ ((centre - mean) / own) ** 2
                curvature = (covariance - np.diag(own)) / np.outer(own, own)
                second[:, of, of, :, of, of] += np.einsum("n,nlk->lk", weights, curvature**2)
            add_up(outer, response, contexts, probability * np.concatenate([first.ravel(), second.ravel()]))
        return Averages(outer, np.nan, float(shares.sum()), response)

    def _law_of_column(self, labels: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of the column's fields, (L,)."""
        contexts, law = self.problem.context_of(labels), self.problem.law
        return law.teacher_means[contexts][:, self.of], law.rho_star[contexts][:, self.of, self.of]

    @property
    def spacing(self) -> float:
        """Of the lattice of starts, in standard deviations."""
        return 2 * _REACH / self.starts

    def _nodes(self) -> tuple[np.ndarray, np.ndarray]:
        size = self.problem.tokens * self.problem.teacher_rank
        kept = None
        if self.points**size <= 4 * _MOST:
            nodes, shares = tensor([gauss_hermite(self.points)] * size)
            if self.even:  # one of each pair of opposite nodes
                nodes, shares = nodes[nodes[:, 0] > 0], 2 * shares[nodes[:, 0] > 0]
            kept = shares > 1e-14
        if kept is None or kept.sum() > _MOST:
            raise NotConvergedError(
                f"{self.points} points of each of {size} fields are too many; ask for a larger --accuracy"
            )
        # Turned, so that no two fields are equal where a channel is singular; as exact for polynomials of total degree.
        turn = np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))[0]
        return nodes[kept] @ turn, shares[kept]

    def left(self, fields: np.ndarray, labels: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What the column's fields may be at what is observed of sentences: rows (K,) of `fields`, values (K, L), and
        probabilities (K,), which add up to one for each row.

        Args:
            fields: the true ones, (N, L t), of which other columns are known.
        """
        mean, variance = self._law_of_column(labels)
        rows, values = self._solutions(fields, labels)
        slope = self._forward(rows, values, fields, labels)[1]
        with np.errstate(divide="ignore"):
            logs = -np.maximum(np.linalg.slogdet(slope)[1], -700.0) - ((values - mean) ** 2 / variance).sum(axis=1) / 2
        top = np.full(len(fields), -np.inf)
        np.maximum.at(top, rows, logs)
        weights = np.exp(logs - top[rows])
        return rows, values, weights / np.bincount(rows, weights, len(fields))[rows]

    def _forward(
        self, rows: np.ndarray, values: np.ndarray, fields: np.ndarray, labels: tuple[int, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """What is observed (K, L) where the column's fields are `values` (K, L), and its slope (K, L, L) in them."""
        count, size = values.shape
        moves = _STEP * np.concatenate([np.zeros((1, size)), *(k * np.eye(size) for k in (1, -1, 2, -2))])
        every = np.tile(fields[rows], (len(moves), 1))
        every[:, self.of :: self.problem.teacher_rank] = (values + moves[:, None]).reshape(-1, size)
        seen = self.planted.observed(every, labels).reshape(len(moves), count, size)
        right, left, far_right, far_left = seen[1:].reshape(4, size, count, size)
        return seen[0], np.moveaxis((8 * (right - left) - far_right + far_left) / (12 * _STEP), 0, 2)

    def _solutions(self, fields: np.ndarray, labels: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Rows (K,) and values (K, L) of the column's fields at which what is observed is as at `fields`."""
        truth, (mean, variance) = fields[:, self.of :: self.problem.teacher_rank], self._law_of_column(labels)
        wanted = self.planted.observed(fields, labels)
        every = np.arange(len(fields))
        # Where the channel is flat rounding hides all solutions but the true one and, by symmetry, its mirror image.
        mirrored = np.abs(self._forward(every, -truth, fields, labels)[0] - wanted).max(axis=1) < _EXACT
        found = [(every, truth), (every[mirrored], -truth[mirrored])]
        starts = mean + np.sqrt(variance) * self.spacing * points_in_ball(
            sampling_lattice(truth.shape[1]), _REACH / self.spacing
        )
        rows, values = np.repeat(every, len(starts)), np.tile(starts, (len(fields), 1))
        moved = np.full(len(values), np.inf)
        for _ in range(_ITERATIONS):
            seen, slope = self._forward(rows, values, fields, labels)
            gap = seen - wanted[rows]
            good = np.isfinite(gap).all(axis=1) & np.isfinite(slope).all(axis=(1, 2))
            # A slope that is none leads nowhere; the others' steps are held to the distance of starts.
            good[good] = np.abs(np.linalg.det(slope[good])) > _FLAT
            solved = good & (np.abs(gap).max(axis=1) < _SOLVED) & (moved < _STILL)
            found.append((rows[solved], values[solved]))
            left = good & ~solved & (np.abs(values - mean) < _FAR * np.sqrt(variance)).all(axis=1)
            if not left.any():
                break
            step = np.linalg.solve(slope[left], gap[left][:, :, None])[:, :, 0]
            moved, rows = np.abs(step).max(axis=1), rows[left]
            values = values[left] - step * np.minimum(1.0, self.spacing / np.maximum(moved, 1e-300))[:, None]
        return _distinct(*(np.concatenate(part) for part in zip(*found, strict=True)))


def _distinct(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One of solutions of a row that are closer than Newton's method tells apart."""
    order = np.argsort(rows, kind="stable")
    kept: list[int] = []
    first = 0
    for n in order:
        if kept[first:] and rows[kept[-1]] != rows[n]:
            first = len(kept)
        if all(np.abs(values[n] - values[m]).max() > _SAME for m in kept[first:]):
            kept.append(int(n))
    return rows[kept], values[kept]
