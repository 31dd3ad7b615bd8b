"""The coarse quadrature rules of the publication, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from ..base.errors import DomainError, NotConvergedError
from ..channel.exchange import Reduction
from ..channel.fields import Fields
from ..integration import GaussHermite, Rule
from ..integration.sampled import Integrand, NodeSets
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point import observables
from ..saddle_point.iteration import run_damped_iteration
from ..saddle_point.starts import name_branch, start_overlaps
from ..saddle_point.state_map import StateMap
from .run import BRANCHES


@dataclass(frozen=True)
class PlaneRule(GaussHermite):
    """A rule with twelve points of degree 7 (Stroud's E_2^{r^2} 7-1) in the planes of Y and omega, two tokens only."""

    points: int = 12
    starts: int = 0
    name: str = "planes of 12 points"

    def reduction_of(self, problem: Problem, fields: Fields, labels: tuple[int, ...]) -> Reduction:
        """Return the symmetry reduction, see `Sampled`.

        Args:
            problem: the problem.
            fields: fields of the average.
            labels: labels of the average.
        """
        return Reduction(())

    def node_sets(self, problem: Problem, fields: Fields, reduction: Reduction, of: Integrand = "averages") -> NodeSets:
        """Return nodes and weights, see `Sampled`.

        Args:
            problem: the problem.
            fields: fields of the average.
            reduction: of `reduction_of`.
            of: see `Sampled`.
        """
        nodes, weights = plane_rule()
        pairs = np.concatenate([np.repeat(nodes, len(nodes), axis=0), np.tile(nodes, (len(nodes), 1))], axis=1)
        return [(np.ascontiguousarray(pairs), np.outer(weights, weights).ravel())]


def plane_rule() -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (12, 2) and weights of degree 7 for the standard normal law of the plane (Stroud, E_2^{r^2} 7-1)."""
    root = np.sqrt(5.0)
    outer, near, far = np.sqrt(6.0), np.sqrt((9 - 3 * root) / 4), np.sqrt((9 + 3 * root) / 4)
    corners = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)], float)
    axes = np.array([(1, 0), (-1, 0), (0, 1), (0, -1)], float)
    nodes = np.concatenate([outer * axes, near * corners, far * corners])
    return nodes, np.repeat([1 / 36, (5 + 2 * root) / 45, (5 - 2 * root) / 45], 4)


COARSE_RULES: dict[str, Rule] = {
    "12 points of degree 7 a plane, one proximal start": PlaneRule(),
    "12 points of degree 7 a plane, global proximal map": PlaneRule(starts=1),
    "Gauss-Hermite, 4 nodes an axis, one proximal start": GaussHermite(4, starts=0),
}


def coarse_crossing(base: Problem, rule: Rule, low: float = 0.8, high: float = 1.8) -> dict[str, Any]:
    """Return the crossing of the two branches under a coarse rule: value (None without a crossing), residual, sentence.

    Args:
        base: the problem.
        rule: name of the rule.
        low: lower end of the search in alpha.
        high: upper end.
    """
    last: dict[str, Overlaps] = {}
    worst = 0.0

    def difference(alpha: float) -> float:
        nonlocal worst
        at = base.with_(alpha=alpha)
        state_map = StateMap(at, rule)
        losses = []
        for name in BRANCHES:
            point = run_damped_iteration(
                state_map, last.get(name) or start_overlaps(at, name), 1e-7, max_iterations=2000
            )
            if not point.status.success or name_branch(point.overlaps) != name:
                raise NotConvergedError(f"the {name} branch was lost at alpha = {alpha:g}")
            last[name], worst = point.overlaps, max(worst, point.residual)
            averages = state_map.averages(point.overlaps)
            hats = state_map.conjugates(point.overlaps, averages.means)
            losses.append(observables.losses(at, point.overlaps, hats, averages).training_loss)
        return losses[0] - losses[1]

    try:
        value = float(brentq(difference, high, low, xtol=3e-4))
    except (NotConvergedError, DomainError, ValueError) as error:
        return {"value": None, "residual": worst, "sentence": str(error)}
    return {"value": value, "residual": worst, "sentence": ""}


def baseline_by_planes(base: Problem) -> float:
    """Return the error of the linear baseline by the 12 points of the coarse rule."""
    nodes, weights = plane_rule()
    metric = base.solver.metric
    (labels, _), *_ = base.label_choices
    contexts = base.context_indices(labels)
    error, gradient, hessian = metric.baseline_terms(
        np.ascontiguousarray(nodes),
        np.ascontiguousarray(weights),
        np.ascontiguousarray(base.law.teacher_means[contexts]),
        np.ascontiguousarray(np.linalg.cholesky(base.law.rho_star[contexts])),
        base.noise_scale,
        base.constants(labels),
    )
    return float(error - gradient @ np.linalg.solve(hessian, gradient) / 2)
