"""Coarse quadrature rules like those of the publication, and the results that they give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from ..base.errors import DomainError, NotConvergedError
from ..channel.exchange import SymmetryReduction
from ..channel.fields import FieldLaw
from ..integration import GaussHermite, Rule
from ..integration.sampled import Integrand, NodeSets
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point import observables
from ..saddle_point.iteration import run_damped_iteration
from ..saddle_point.starts import name_branch, overlaps_of_start
from ..saddle_point.state_map import SaddlePointMap
from .run import BRANCHES


@dataclass(frozen=True)
class TwelvePointPlaneRule(GaussHermite):
    """A product of rules of degree 7 with 12 points (Stroud's E_2^{r^2} 7-1) in the planes of Y and omega.

    It is for two tokens with one teacher and one student field each.
    """

    points: int = 12
    starts: int = 0
    name: str = "planes of 12 points"

    def symmetry_reduction(self, problem: Problem, fields: FieldLaw, labels: tuple[int, ...]) -> SymmetryReduction:
        """Return no exchanges of tokens: the rule visits all nodes.

        Args:
            problem: problem whose fields are integrated over.
            fields: law of the fields.
            labels: label of every token.
        """
        return SymmetryReduction(())

    def nodes_and_weights_by_replicate(
        self, problem: Problem, fields: FieldLaw, reduction: SymmetryReduction, of: Integrand = "averages"
    ) -> NodeSets:
        """Return the nodes and weights as a list of one pair.

        Args:
            problem: problem whose fields are integrated over.
            fields: law of the fields.
            reduction: exchanges, from `symmetry_reduction`.
            of: kind of average, see `NodeBasedRule`.
        """
        nodes, weights = twelve_point_plane_rule()
        pairs = np.concatenate([np.repeat(nodes, len(nodes), axis=0), np.tile(nodes, (len(nodes), 1))], axis=1)
        return [(np.ascontiguousarray(pairs), np.outer(weights, weights).ravel())]


def twelve_point_plane_rule() -> tuple[np.ndarray, np.ndarray]:
    """Return the 12 nodes and weights of degree 7 for the normal law of the plane (Stroud, E_2^{r^2} 7-1)."""
    root = np.sqrt(5.0)
    outer, near, far = np.sqrt(6.0), np.sqrt((9 - 3 * root) / 4), np.sqrt((9 + 3 * root) / 4)
    corners = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)], float)
    axes = np.array([(1, 0), (-1, 0), (0, 1), (0, -1)], float)
    nodes = np.concatenate([outer * axes, near * corners, far * corners])
    return nodes, np.repeat([1 / 36, (5 + 2 * root) / 45, (5 - 2 * root) / 45], 4)


COARSE_RULES: dict[str, Rule] = {
    "12 points of degree 7 a plane, one proximal start": TwelvePointPlaneRule(),
    "12 points of degree 7 a plane, global proximal map": TwelvePointPlaneRule(starts=1),
    "Gauss-Hermite, 4 nodes an axis, one proximal start": GaussHermite(4, starts=0),
}


def locate_crossing_with_coarse_rule(base: Problem, rule: Rule, low: float = 0.8, high: float = 1.8) -> dict[str, Any]:
    """Return the loss crossing of the two branches by a coarse rule: value (None if not found), residual, sentence.

    Args:
        base: problem whose branches cross.
        rule: the coarse rule.
        low: lower end of the search in alpha.
        high: upper end of the search in alpha.
    """
    last: dict[str, Overlaps] = {}
    worst = 0.0

    def loss_difference_at(alpha: float) -> float:
        nonlocal worst
        at = base.with_(alpha=alpha)
        state_map = SaddlePointMap(at, rule)
        losses = []
        for name in BRANCHES:
            point = run_damped_iteration(
                state_map, last.get(name) or overlaps_of_start(at, name), 1e-7, max_iterations=2000
            )
            if not point.status.success or name_branch(at, point.overlaps) != name:
                raise NotConvergedError(f"the {name} branch was lost at alpha = {alpha:g}")
            last[name], worst = point.overlaps, max(worst, point.residual)
            averages = state_map.channel_averages(point.overlaps)
            hats = state_map.conjugates_at_overlaps(point.overlaps, averages.means)
            losses.append(observables.free_entropy_and_losses(at, point.overlaps, hats, averages).training_loss)
        return losses[0] - losses[1]

    try:
        value = float(brentq(loss_difference_at, high, low, xtol=3e-4))
    except (NotConvergedError, DomainError, ValueError) as error:
        return {"value": None, "residual": worst, "sentence": str(error)}
    return {"value": value, "residual": worst, "sentence": ""}


def baseline_error_by_plane_rule(base: Problem) -> float:
    """Return the test error of the linear baseline by the plane rule of 12 points."""
    nodes, weights = twelve_point_plane_rule()
    metric = base.solver.metric_functions
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
