"""Averages over an output channel with continuous hidden coordinates, from the teacher's side.

Fields Y of a sentence are drawn, omega given them, and what is observed follows from Y; the posterior is then a sum over
the hidden coordinates on a lattice around omega. All outer coordinates are standard normal and the integrand is smooth
in them on the scale of one, also where much is known, so that a sum over the points of a good lattice in a ball
converges geometrically (docs/theory.md (11.18)). It needs two things of a channel: continuous hidden coordinates that are
fields themselves, and observed ones that follow from the fields by linear equations, the hidden ones being known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from ..channel.lattices import points_in_ball, sampling_lattice
from ..problems.problem import Problem
from .averages import Averages, add_up, root, varying
from .mixture import squares

_AT_ONCE = 1 << 16


def suits(module: Any) -> bool:
    """Whether the averages of a channel can be taken from the teacher's side."""
    integrated = [free for free, (_, kind, _) in zip(module.FREE, module.HIDDEN, strict=True) if kind != "discrete"]
    return bool(module.AFFINE and integrated and min(integrated) >= 0)


@dataclass
class Planted:
    """The rule, at one spacing of each of its two lattices.

    Attributes:
        outer, inner: spacings of the lattices in Y and omega, and of the hidden coordinates, in standard deviations.
        outer_reach, inner_reach: radii of the balls.
    """

    problem: Problem
    outer: float = 1.4
    inner: float = 0.7
    outer_reach: float = 5.0
    inner_reach: float = 5.0

    def averages(self, q: np.ndarray, curved: bool = False) -> Averages:
        """Averages at overlaps q, (C, t, t), 0 <= q < rho*; with their derivative in q where `curved`."""
        law = self.problem.law
        outer = np.zeros_like(q)
        response = np.zeros((*q.shape, *q.shape)) if curved else None
        log_evidence = norm = 0.0
        for labels, probability in self.problem.label_choices:
            contexts = self.problem.context_of(labels)
            rho, mean = law.rho_star[contexts], law.teacher_means[contexts].ravel()
            factor = varying(q[contexts], float(np.abs(law.rho_star).max()))
            width = block_diag(*root(rho - q[contexts]))
            nodes, weights = _ball(factor.shape[1] + len(width), self.outer, self.outer_reach)
            norm += probability * weights.sum()
            for begin in range(0, len(nodes), _AT_ONCE):
                part, shares = nodes[begin : begin + _AT_ONCE], weights[begin : begin + _AT_ONCE]
                omega = mean + part[:, : factor.shape[1]] @ factor.T
                observed = self._observed(omega + part[:, factor.shape[1] :] @ width.T, labels)
                values, g, curvature = self.posterior(observed, omega, q, labels, curved)
                log_evidence += probability * float(shares @ values)
                add_up(outer, response, contexts, probability * squares(shares, g, curvature, q.shape[1]))
        return Averages(outer, log_evidence, norm, response)

    def posterior(
        self, observed: np.ndarray, omega: np.ndarray, q: np.ndarray, labels: tuple[int, ...], curved: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """log Z_out (N,), g (N, L t) and, where `curved`, dg/domega at points of their own."""
        contexts = self.problem.context_of(labels)
        variance = self.problem.law.rho_star[contexts] - q[contexts]
        module, free = self.problem.solver.bayes, self._free
        places = [module.FREE[i] for i in free]
        factor = np.linalg.cholesky(block_diag(*variance)[np.ix_(places, places)])
        nodes = self.inner * points_in_ball(sampling_lattice(len(free)), self.inner_reach / self.inner)
        log_weight = len(free) * np.log(self.inner) + np.log(np.diag(factor)).sum()
        log_norm = -0.5 * np.linalg.slogdet(2 * np.pi * variance)[1].sum()
        return module.posterior_at(
            np.ascontiguousarray(observed), np.ascontiguousarray(omega), np.linalg.inv(variance), log_norm,
            self._choices, np.array(free), np.ascontiguousarray(factor), nodes, log_weight,
            self.problem.constants(labels), int(curved),
        )  # fmt: skip

    @cached_property
    def _free(self) -> list[int]:
        return [i for i, place in enumerate(self.problem.solver.bayes.FREE) if place >= 0]

    @cached_property
    def _choices(self) -> np.ndarray:
        """Values of the discrete hidden coordinates, (K, hidden), zero for the others."""
        hidden = self.problem.solver.bayes.HIDDEN
        return np.array(list(product(*[values if kind == "discrete" else (0.0,) for _, kind, values in hidden])))

    def _observed(self, fields: np.ndarray, labels: tuple[int, ...]) -> np.ndarray:
        """What is observed at fields (N, L t), by linear equations for each choice of what is hidden and discrete."""
        module, constants = self.problem.solver.bayes, self.problem.constants(labels)
        count = len(module.OBSERVED)
        probes = np.concatenate([np.zeros((1, count)), np.eye(count)])
        bound = [i for i in range(module.FIELDS) if i not in module.FREE]
        positive = [i for i, (_, kind, _) in enumerate(module.OBSERVED) if kind == "positive"]
        found = np.full((len(fields), count), np.nan)
        for choice in self._choices:
            hidden = np.tile(choice, (len(fields), 1))
            hidden[:, self._free] = fields[:, [module.FREE[i] for i in self._free]]
            values = module.fields_at(probes, hidden, constants)[0][:, :, bound]
            matrix = np.moveaxis(values[1:] - values[0], 0, 2)
            solved = np.linalg.solve(matrix, (fields[:, bound] - values[0])[:, :, None])[:, :, 0]
            allowed = (solved[:, positive] > 0).all(axis=1)
            found[allowed] = solved[allowed]
        return found


def _ball(dimension: int, spacing: float, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Points of a lattice moved off the origin, where what is observed may be on the edge of its domain."""
    nodes = spacing * points_in_ball(sampling_lattice(dimension), reach / spacing)
    nodes = nodes + 0.3 * spacing * np.sqrt(np.arange(2, dimension + 2) % 1.7)
    weights = spacing**dimension * np.exp(-(nodes * nodes).sum(axis=1) / 2) / (2 * np.pi) ** (dimension / 2)
    return nodes, weights
