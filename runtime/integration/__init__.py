"""Averages over the channel: several rules behind one interface, each with an error estimate."""

from __future__ import annotations

from ..base.errors import require_known, require_whole
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_loss
from .lattice import Lattice
from .one_field import Pieces
from .prox_space import ProxSpace
from .rule import NEGLIGIBLE_JUMPS, Averages, Rule
from .sampled import GaussHermite, Sobol
from .split_lines import Lines

FAMILIES: dict[str, type[Rule]] = {
    family.name: family for family in (GaussHermite, Sobol, ProxSpace, Lines, Pieces, Lattice)
}


def rule_by_name(name: str, points: int | None = None, seed: int = 0) -> Rule:
    """Return an integration rule by its name on the command line.

    Args:
        name: key of FAMILIES.
        points: its size, in the unit of the family; None for the default.
        seed: seed of a replicated rule.

    Raises:
        InputError: no such rule, or not of that size.
    """
    require_known("integrator", name, ["auto", *FAMILIES])
    family = FAMILIES[name]
    if points is not None:
        require_whole("points", points, family.least_points, family.most_points)
    return family.with_size(points, seed)


def slope_rules(rule: Rule, problem: Problem, bistable: float) -> tuple[Rule, ...]:
    """Return the rules for the averages of the field's slope, by which a solution of `rule` is judged.

    For one student field they are panels that resolve (dg/domega)^2 next to cusps. In three dimensions and more a
    smooth integrand is left to a grid in X, where 1 / (1 + V l'') is integrated in place of its square.

    Args:
        rule: rule that gave the solution.
        problem: problem that was solved.
        bistable: fraction of the measure on which the proximal map may jump.
    """
    smooth = rule.in_x and bistable <= NEGLIGIBLE_JUMPS and reduce_to_loss(problem).dimension > 2
    if problem.inverse_temperature is None and not rule.resolves_squares and not smooth:
        resolving = (family.with_size(None, 0) for family in FAMILIES.values() if family.resolves_squares)
        rule = next((other for other in resolving if other.is_applicable(problem)), rule)
    return rule.rules_for_slopes(problem, bistable)


def other_families(rule: Rule) -> list[type[Rule]]:
    """Return the families for an independent check of a rule, deterministic ones first.

    The noise of replicates takes many nodes.
    """
    families = (family for family in FAMILIES.values() if family.name != rule.name)
    return sorted(families, key=lambda family: family.replicated)


__all__ = [
    "FAMILIES",
    "Averages",
    "GaussHermite",
    "Lattice",
    "Lines",
    "Pieces",
    "ProxSpace",
    "Rule",
    "Sobol",
    "other_families",
    "rule_by_name",
    "slope_rules",
]
