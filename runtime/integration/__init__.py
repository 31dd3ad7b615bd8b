"""Averages over the channel by several integration rules with one interface, each with an error estimate."""

from __future__ import annotations

from ..base.errors import require_known_name, require_whole_number
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from .lattice import LatticeRule
from .one_field import SmoothPiecesRule
from .prox_space import ProxSpaceRule
from .rule import NEGLIGIBLE_JUMPS, Rule, SaddlePointAverages
from .sampled import GaussHermite, Sobol
from .split_lines import SplitLinesRule

FAMILIES: dict[str, type[Rule]] = {
    family.name: family
    for family in (GaussHermite, Sobol, ProxSpaceRule, SplitLinesRule, SmoothPiecesRule, LatticeRule)
}


def rule_by_name(name: str, points: int | None = None, seed: int = 0) -> Rule:
    """Return an integration rule by its name on the command line.

    Args:
        name: key of FAMILIES.
        points: size of the rule, in the unit of its family; None for the default.
        seed: seed of a replicated rule.

    Raises:
        InputError: there is no such rule, or the size is out of its range.
    """
    require_known_name("integrator", name, ["auto", *FAMILIES])
    family = FAMILIES[name]
    if points is not None:
        require_whole_number("points", points, family.least_points, family.most_points)
    return family.rule_of_size(points, seed)


def choose_field_jacobian_rules(rule: Rule, problem: Problem, bistable: float) -> tuple[Rule, ...]:
    """Return the rules for averages of the Jacobian dg/domega of g = V^(-1) (X - omega), which decide stability.

    They are panels that resolve (dg/domega)^2 next to cusps if the loss depends on one student field, except for smooth
    integrands in three or more dimensions; otherwise they are chosen by the family of the rule.

    Args:
        rule: rule that gave the solution.
        problem: problem that was solved.
        bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
    """
    smooth = rule.in_x and bistable <= NEGLIGIBLE_JUMPS and reduce_to_fields_of_loss(problem).dimension > 2
    if problem.inverse_temperature is None and not rule.resolves_squares and not smooth:
        resolving = (family.rule_of_size(None, 0) for family in FAMILIES.values() if family.resolves_squares)
        rule = next((other for other in resolving if other.is_applicable(problem)), rule)
    return rule.rules_for_field_jacobian(problem, bistable)


def quadrature_families_for_cross_check(rule: Rule) -> list[type[Rule]]:
    """Return the families of rules that can cross-check a rule, deterministic families first.

    Replicated rules come last, since their statistical error takes many nodes.
    """
    families = (family for family in FAMILIES.values() if family.name != rule.name)
    return sorted(families, key=lambda family: family.replicated)


__all__ = [
    "FAMILIES",
    "GaussHermite",
    "LatticeRule",
    "ProxSpaceRule",
    "Rule",
    "SaddlePointAverages",
    "SmoothPiecesRule",
    "Sobol",
    "SplitLinesRule",
    "choose_field_jacobian_rules",
    "quadrature_families_for_cross_check",
    "rule_by_name",
]
