"""Posteriors in closed form where all that stays hidden are lengths: fields somewhere on half lines.

A label that is the sign of a field tells Y >= 0 or Y < 0. Of the normal law of Y around omega the half line from a on,
in the direction s = 1 or -1, has (docs/theory.md (13.20))

    Phi(z),   g = s r / v,   dg/domega = -r (z + r) / v^2,   r = N(z) / Phi(z),   z = s (omega - a) / v,

with v its standard deviation; other fields are what is observed, and choices of discrete hidden coordinates add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.linalg import block_diag
from scipy.special import log_ndtr

from ..problems.problem import Problem
from .probes import channel_at, random_coordinates

_ENDS = {"real": (-300.0, 0.0, 300.0), "positive": (0.0, 1.0, 1e200)}  # of a coordinate, and a place between
_FAR, _STEP = 1e100, 1e-2
_PLACES = (-1.0, 0.4, 1.2)  # steps from the place between to where the density along is looked at
_TOLERANCE = 1e-7


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
        values = np.logaddexp.reduce([part[0] for part in parts], axis=0)
        g, curvature = np.zeros_like(omega), np.zeros((*omega.shape, omega.shape[1]))
        for value, slope, curved in parts:
            share = np.exp(value - values)
            g += share[:, None] * slope
            curvature += share[:, None, None] * (curved + slope[:, :, None] * slope[:, None])
        return values, g, curvature - g[:, :, None] * g[:, None]

    def _ends(self, observed: np.ndarray, choice: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Fields where half lines begin (N, D), slopes of their own fields in the hidden coordinates (N, H), and the
        logarithm of the density along them (N,)."""
        low = choice.copy()
        for i in self.hidden:
            low[i] = _ENDS[self.problem.solver.bayes.HIDDEN[i][1]][0]
        moved = [choice + shift * _STEP * np.eye(len(choice))[i] for i in self.hidden for shift in (2, 1, -1, -2)]
        fields, jacobian, likelihood = channel_at(self.problem, self.labels, observed, np.array([low, choice, *moved]))
        slopes = np.empty((len(observed), len(self.fields)))
        for h, field in enumerate(self.fields):
            far, near, behind, back = fields[:, 2 + 4 * h : 6 + 4 * h, field].T
            slopes[:, h] = (8 * (near - behind) - (far - back)) / (12 * _STEP)
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
        if len(moves) != 1 or not np.abs(fields[:, 0]).max() < _FAR or not np.abs(fields[:, 2, moves]).min() > _FAR:
            return None
        found.add(int(moves[0]))
    return found.pop() if len(found) == 1 else None
