"""Cells that make up the space of standard normal coordinates, halved until an integrand is a polynomial in each.

A cell lies, coordinate by coordinate, between two ends that are affine in the coordinates before, so that planes in any
direction may bound it, and so that its halves are cells, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from ..channel.fields import Fields
from ..channel.nodes import REACH, gauss_legendre, highest_coefficients, tensor
from ..problems.problem import Problem
from .splitting import Split

_FIRST = 3.0  # where an axis that no plane cuts is divided first, either side
_BEYOND = 3.0  # times the reach, up to which a plane bounds cells that it leaves
_POINTS = 8  # an axis of a cell, of the coarser of two rules
_WIDEST = 1.5  # change of an argument or the logarithm of a base within a cell
_LIGHT = 1e-14  # measure of a cell that is not looked into
_MOST_NODES = 2e6  # at which arguments are looked at
_LARGEST = 700.0  # argument, beyond which nothing is narrow
_LEFT = 0.3  # of the error asked for, in cells that are halved no further
_CANCELLED = 1e-3  # of an average of the modulus that an average may be, before digits are given up
_ROUNDING = 1e-13  # of the integral of the modulus
_NODES_AT_ONCE = 1e6
_LINES, _STEPS, _ALONG = 64, 25, 3.0  # along which arguments are looked at: number, places and reach of each
_GENTLE = 1.0  # change of an argument from place to place
MOST_AXES = 3  # that are divided into cells

Function = Callable[[np.ndarray], np.ndarray]
"""Nodes (N, n) in standard normal coordinates -> (N, any number of values)."""


@dataclass(frozen=True)
class Cells:
    """Cells in rotated coordinates y, z = turn @ y.

    Attributes:
        turn: (n, n) orthogonal.
        low, high: (C, n, n + 1), ends of each coordinate: coefficients of the coordinates (zero from its own on), and a
            constant.
    """

    turn: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def between(cls, planes: np.ndarray, dimension: int) -> Cells:
        """Return the cells between hyperplanes a . z + b = 0, and as few more as keep them within reach.

        Args:
            planes: (K, n + 1), rows (a, b).
        """
        split = Split.of(planes, dimension)
        cells = cls(split.turn, *np.zeros((2, 1, dimension, dimension + 1)))
        for axis, at in enumerate(split.planes):
            ends = np.zeros((len(at), dimension + 1))
            for row, (coefficients, b) in zip(ends, at, strict=True):
                row[:axis], row[-1] = -coefficients[:-1] / coefficients[-1], -b / coefficients[-1]
            first = [] if ends[:, :-1].any() else [-_FIRST, _FIRST]
            cells = cells._cut(axis, np.concatenate([ends, np.outer(first, np.eye(dimension + 1)[-1])]))
        return cells

    def _cut(self, axis: int, ends: np.ndarray) -> Cells:
        """Return cells that have no extent along an axis so far, cut there at ends (K, n + 1) and at the reach."""
        corners = self._coordinates(np.array(list(product([0.0, 1.0], repeat=axis))).reshape(2**axis, axis))
        places = corners @ ends[:, :axis].T + ends[:, -1]
        nearest = np.where((places.min(axis=1) < 0) & (places.max(axis=1) > 0), 0.0, np.abs(places).min(axis=1))
        within = (nearest < REACH) & (np.abs(places).max(axis=1) < _BEYOND * REACH)
        outer = np.outer([-REACH, REACH], np.eye(self.low.shape[2])[-1])
        parts = []
        for cell, (middle, kept) in enumerate(zip(places.mean(axis=1), within, strict=True)):
            own = np.concatenate([outer, ends[kept]])
            own = own[np.argsort([-REACH, REACH, *middle[kept]], kind="stable")]
            low, high = (np.repeat(each[cell : cell + 1], len(own) - 1, axis=0) for each in (self.low, self.high))
            low[:, axis], high[:, axis] = own[:-1], own[1:]
            parts.append((low, high))
        return replace(
            self, low=np.concatenate([low for low, _ in parts]), high=np.concatenate([high for _, high in parts])
        )

    def __len__(self) -> int:
        return len(self.low)

    @property
    def dimension(self) -> int:
        """Return the number of coordinates."""
        return len(self.turn)

    def _coordinates(self, t: np.ndarray) -> np.ndarray:
        """Return leading coordinates y (C, P, k) at places t (P, k) between the ends, from 0 to 1."""
        return self._placed(t)[0]

    def _placed(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the same, and the volumes (C, P) that a unit of t stands for there."""
        count = t.shape[1]
        y, volume = np.zeros((len(self), len(t), count)), np.ones((len(self), len(t)))
        for axis in range(count):
            low, high = (
                np.einsum("cpk,ck->cp", y[..., :axis], ends[:, axis, :axis]) + ends[:, axis, -1:]
                for ends in (self.low, self.high)
            )
            y[..., axis] = low + t[:, axis] * (high - low)
            volume *= high - low
        return y, volume

    def rule(self, points: int) -> tuple[np.ndarray, np.ndarray]:
        """Return Gauss-Legendre nodes (C, P, n) in z, `points` an axis of every cell, and weights (C, P) of N(0, 1)."""
        t, w = gauss_legendre(points)
        places, shares = tensor([((1 + t) / 2, w / 2)] * self.dimension)
        y, volume = self._placed(places)
        density = np.exp(-(y * y).sum(axis=2) / 2) / (2 * np.pi) ** (self.dimension / 2)
        return y @ self.turn.T, volume * shares * density

    def of(self, which: np.ndarray) -> Cells:
        """Return some of the cells."""
        return replace(self, low=self.low[which], high=self.high[which])

    def halved(self, axes: np.ndarray) -> Cells:
        """Return both halves of every cell along an axis of its own, the lower ones first."""
        every = np.arange(len(self))
        middle = (self.low[every, axes] + self.high[every, axes]) / 2
        low, high = np.concatenate([self.low, self.low]), np.concatenate([self.high, self.high])
        high[every, axes], low[len(self) + every, axes] = middle, middle
        return replace(self, low=low, high=high)

    def with_(self, other: Cells) -> Cells:
        """Return the cells of both."""
        return replace(self, low=np.concatenate([self.low, other.low]), high=np.concatenate([self.high, other.high]))

    @cached_property
    def edges(self) -> np.ndarray:
        """Return the ends of the cells of a single coordinate, ascending."""
        return np.unique(np.concatenate([self.low[:, 0, -1], self.high[:, 0, -1]]) * self.turn[0, 0])

    def resolving(self, scales: Function) -> Cells | None:
        """Return cells halved until nothing that `scales` returns changes by much more than one in any; None where that
        takes too many."""
        done, open_ = self.of(np.zeros(0, int)), self
        while (len(done) + len(open_)) * _POINTS**self.dimension <= _MOST_NODES:
            nodes, weights = open_.rule(_POINTS)
            shape = (len(open_), *[_POINTS] * self.dimension, -1)
            values = scales(nodes.reshape(-1, self.dimension)).reshape(shape)
            changes = np.stack(
                [np.ptp(values, axis=1 + axis).reshape(len(open_), -1).max(axis=1) for axis in range(self.dimension)],
                axis=1,
            )
            wide = (changes.max(axis=1) > _WIDEST) & (np.abs(weights).sum(axis=1) > _LIGHT)
            done = done.with_(open_.of(~wide))
            if not wide.any():
                return done
            open_ = open_.of(wide).halved(changes[wide].argmax(axis=1))
        return None

    def integral(self, integrand: Callable[[np.ndarray, np.ndarray], np.ndarray], relative: float, absolute: float,
                 most: float) -> tuple[float, float, float]:  # fmt: skip
        """Return the average of a function over N(0, 1), its error, and its scale: its modulus, or a thousandth of the
        average of the modulus if that is larger.

        Cells are compared by rules of two sizes, which share no node, and those that differ most are halved.

        Args:
            integrand: nodes (N, n) and weights (N,) -> weight times value, (N,).
            relative: error asked for, of the scale; absolute: the same in its own units; most: nodes.
        """
        cells, known = self, self._compared(integrand)
        visited = 0.0
        while True:
            visited += len(known[0]) * (_POINTS**self.dimension + (_POINTS + 1) ** self.dimension)
            value, modulus, errors = known[0].sum(), known[1].sum(), known[2]
            error = errors.sum() + _ROUNDING * modulus
            scale = max(abs(value), _CANCELLED * modulus)
            goal = max(min(absolute, relative * scale), 2 * _ROUNDING * modulus)
            if not error > goal or visited > most:
                return float(value), float(error), float(scale)
            order = np.argsort(-errors, kind="stable")
            count = 1 + int(np.searchsorted(np.cumsum(errors[order]), error - _LEFT * goal))
            worst, rest = order[:count], order[count:]
            halves = cells.of(worst).halved(known[3][worst].astype(int))
            cells = cells.of(rest).with_(halves)
            known = np.concatenate([known[:, rest], halves._compared(integrand)], axis=1)

    def _compared(self, integrand: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """Return integral, that of the modulus, difference to a coarser rule and the axis to halve of every cell."""
        step = max(1, int(_NODES_AT_ONCE / (_POINTS + 1) ** self.dimension))
        parts = [self.of(np.arange(first, min(first + step, len(self)))) for first in range(0, len(self), step)]
        return np.concatenate([part._compared_at_once(integrand) for part in parts], axis=1)

    def _compared_at_once(self, integrand: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        sums = []
        for points in (_POINTS, _POINTS + 1):
            nodes, weights = self.rule(points)
            values = integrand(nodes.reshape(-1, self.dimension), weights.ravel()).reshape(weights.shape)
            sums.append(values.sum(axis=1))
        shares = gauss_legendre(_POINTS + 1)[1]
        grid = values.reshape(len(self), *[_POINTS + 1] * self.dimension)
        tails = []
        for axis in range(self.dimension):
            along = np.moveaxis(grid, 1 + axis, -1) / shares
            tails.append(np.abs(along @ highest_coefficients(_POINTS + 1).T).reshape(len(self), -1).sum(axis=1))
        return np.stack([sums[1], np.abs(values).sum(axis=1), np.abs(sums[1] - sums[0]), np.argmax(tails, axis=0)])


def scales_of(problem: Problem, fields: Fields, of: str) -> Function | None:
    """Return the arguments of the functions in an integrand as a function of nodes: it changes little where they do.

    Args:
        of: "teacher" for the loss as far as it holds no X, at (z_Y, noise); "metric" at (z_Y, z_h, noise).

    Returns:
        None where there are none.
    """
    rows = fields.in_nodes(np.eye(problem.dimension + 1)[:-1], problem.noise_scale)
    inner = slice(problem.tokens * problem.teacher_rank, problem.tokens * (problem.teacher_rank + problem.student_rank))
    if of == "teacher":
        rows = np.delete(rows, inner, axis=1)
    model, constants = problem.solver.model, fields.constants
    if not any(model.scales(rows, constants)[of].values()):
        return None

    def scales(nodes: np.ndarray) -> np.ndarray:
        v = rows[:, :-1] @ nodes.T + rows[:, -1:]
        with np.errstate(all="ignore"):
            found = model.scales(v, constants)[of]
            values = [*map(np.arcsinh, found["arguments"]), *(np.log(np.abs(base)) for base in found["bases"])]
        every = np.stack([np.broadcast_to(value, len(nodes)) for value in values], axis=1)
        return np.clip(np.nan_to_num(every), -_LARGEST, _LARGEST)

    return scales


def has_narrow(scales: Function | None, dimension: int) -> bool:
    """Return whether an argument changes faster than a product rule follows, along one of many random lines."""
    if scales is None or dimension == 0:
        return False
    generator = np.random.default_rng(11)
    through, along = generator.standard_normal((2, _LINES, dimension))
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    places = np.linspace(-_ALONG, _ALONG, _STEPS)
    values = scales((through[:, None] + places[:, None] * along[:, None]).reshape(-1, dimension))
    steps = np.abs(np.diff(values.reshape(_LINES, _STEPS, -1), axis=1))
    return bool(steps.max() > _GENTLE)
