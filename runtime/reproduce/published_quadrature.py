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
class StroudDegreeSevenRule(GaussHermite):
    """A quadrature rule in four Gaussian variables: a product of two 12-point rules (Stroud E_2^{r^2} 7-1, degree 7).

    It is for two tokens with one teacher field and one student field each.
    """

    points: int = 12
    starts: int = 0
    name: str = "planes of 12 points"

    def symmetry_reduction(self, problem: Problem, fields: FieldLaw, labels: tuple[int, ...]) -> SymmetryReduction:
        """Return a reduction by exchanges of tokens that is trivial: this rule evaluates all its nodes.

        Args:
            problem: learning problem whose fields are integrated over.
            fields: Gaussian law of the fields.
            labels: cluster label of every token.
        """
        return SymmetryReduction(())

    def nodes_and_weights_by_replicate(
        self, problem: Problem, fields: FieldLaw, reduction: SymmetryReduction, of: Integrand = "averages"
    ) -> NodeSets:
        """Return the nodes and weights of the rule as a list of one pair: the rule is not random and has no replicates.

        Args:
            problem: learning problem whose fields are integrated over.
            fields: Gaussian law of the fields.
            reduction: exchanges of tokens under which nodes are equivalent, from `symmetry_reduction`.
            of: which averages are computed, see `NodeBasedRule`.
        """
        nodes, weights = stroud_degree_seven_rule()
        pairs = np.concatenate([np.repeat(nodes, len(nodes), axis=0), np.tile(nodes, (len(nodes), 1))], axis=1)
        return [(np.ascontiguousarray(pairs), np.outer(weights, weights).ravel())]


def stroud_degree_seven_rule() -> tuple[np.ndarray, np.ndarray]:
    """Return the 12 nodes, shape (12, 2), and weights of the rule of degree 7 for a standard Gaussian in two variables.

    Source: Stroud, E_2^{r^2} 7-1.
    """
    root = np.sqrt(5.0)
    outer, near, far = np.sqrt(6.0), np.sqrt((9 - 3 * root) / 4), np.sqrt((9 + 3 * root) / 4)
    corners = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)], float)
    axes = np.array([(1, 0), (-1, 0), (0, 1), (0, -1)], float)
    nodes = np.concatenate([outer * axes, near * corners, far * corners])
    return nodes, np.repeat([1 / 36, (5 + 2 * root) / 45, (5 - 2 * root) / 45], 4)


COARSE_RULES: dict[str, Rule] = {
    "12 points of degree 7 a plane, one proximal start": StroudDegreeSevenRule(),
    "12 points of degree 7 a plane, global proximal map": StroudDegreeSevenRule(starts=1),
    "Gauss-Hermite, 4 nodes an axis, one proximal start": GaussHermite(4, starts=0),
}


def locate_crossing_with_coarse_rule(base: Problem, rule: Rule, low: float = 0.8, high: float = 1.8) -> dict[str, Any]:
    """Locate the alpha at which the two branches have equal training loss, with a coarse quadrature rule.

    Return a dict with `value` (None if it was not found), `residual` and `sentence` (why it was not found).

    Args:
        base: learning problem; alpha is varied.
        rule: the coarse quadrature rule.
        low: lower end of the search in alpha.
        high: upper end of the search in alpha.
    """
    last: dict[str, Overlaps] = {}
    worst = 0.0

    def loss_difference_at_alpha(alpha: float) -> float:
        nonlocal worst
        at = base.with_(alpha=alpha)
        state_map = SaddlePointMap(at, rule)
        losses = []
        for name in BRANCHES:
            point = run_damped_iteration(
                state_map, last.get(name) or overlaps_of_start(at, name), 1e-7, max_iterations=2000
            )
            if not point.status.success or name_branch(at, point.overlaps) != name:
                raise NotConvergedError(f"the iteration did not converge to the {name} branch at alpha = {alpha:g}")
            last[name], worst = point.overlaps, max(worst, point.residual)
            averages = state_map.channel_averages(point.overlaps)
            hats = state_map.conjugates_at_overlaps(point.overlaps, averages.means)
            losses.append(observables.free_entropy_and_losses(at, point.overlaps, hats, averages).training_loss)
        return losses[0] - losses[1]

    try:
        value = float(brentq(loss_difference_at_alpha, high, low, xtol=3e-4))
    except (NotConvergedError, DomainError, ValueError) as error:
        return {"value": None, "residual": worst, "sentence": str(error)}
    return {"value": value, "residual": worst, "sentence": ""}


def baseline_error_by_stroud_rule(base: Problem) -> float:
    """Return the test error of the linear baseline, integrated by the 12-point rule of degree 7."""
    nodes, weights = stroud_degree_seven_rule()
    metric = base.solver.metric_functions
    (labels, _), *_ = base.label_probabilities
    contexts = base.token_cluster_indices(labels)
    error, gradient, hessian = metric.baseline_terms(
        np.ascontiguousarray(nodes),
        np.ascontiguousarray(weights),
        np.ascontiguousarray(base.law.teacher_means[contexts]),
        np.ascontiguousarray(np.linalg.cholesky(base.law.rho_star[contexts])),
        base.noise_scale,
        base.constants(labels),
    )
    return float(error - gradient @ np.linalg.solve(hessian, gradient) / 2)
