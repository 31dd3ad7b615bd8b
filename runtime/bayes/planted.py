"""Averages over an output channel with continuous hidden coordinates, from the teacher's side.

Fields Y of a sentence are drawn, omega given them, and what is observed follows from Y; the posterior is then a sum
over the hidden coordinates: over those that are fields themselves on a lattice around omega, over others on a grid.
Draws are scrambled Sobol points, whose replicates tell how far off averages are. What is observed has to follow from
the fields: by linear equations, the hidden ones being known and fields, or by functions that the model gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from ..channel.lattices import points_in_ball, sampling_lattice
from ..channel.nodes import sobol_normal
from ..errors import NotConvergedError
from ..problems.problem import Problem
from ..threads import share
from .averages import Averages, add_up, change, root, squares, varying
from .half_lines import HalfLines, find_half_lines

REPLICATES = 8
_REACH = 5.0  # standard deviations of what is hidden
_RADIAN = 0.7  # spacing of an angle beside that of a lattice in standard deviations
_REACH_OF_BOX = 8.5  # standard deviations where e^-36 of a normal law's density is left: what a range holds
_FINEST = 0.04
_AT_ONCE = 1 << 16
_MOST_DRAWS, _USUAL = 17, 200  # binary logarithm of draws a replicate, for so many hidden nodes


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
            shares = np.full(len(nodes), 1 / len(nodes))
            for begin in range(0, len(nodes), _AT_ONCE):
                part, weights = nodes[begin : begin + _AT_ONCE], shares[begin : begin + _AT_ONCE]
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
