"""Which sizes of which rule are tried, what an evaluation costs, and which rules a half width compares."""

from __future__ import annotations

from dataclasses import replace

from ..channel.boltzmann import nodes_in_fields
from ..problems.problem import Problem
from . import GaussHermite, Lines, ProxSpace, Rule, Sobol
from .averages import NEGLIGIBLE_JUMPS

COARSE = Sobol(log2=8, scramblings=4)
MOST_NODES = 3e6  # of a product rule in omega, each with a proximal point
MOST_LOSS_NODES = 1.5e10  # of a grid for the training loss alone
PLANE_GRIDS = (ProxSpace(48, 24), ProxSpace(64, 32), ProxSpace(88, 44), ProxSpace(120, 60), ProxSpace(168, 84))
LINE_GRIDS = tuple(
    ProxSpace(*sizes) for sizes in ((96, 48), (144, 72), (216, 108), (432, 160), (1000, 240), (2400, 360), (6000, 500))
)
PRODUCTS = tuple(GaussHermite(points) for points in (12, 18, 28, 42, 64))
SPLIT_LINES = tuple(Lines(points) for points in (24, 32, 48, 72, 108))
MOST_LINES = 1e5
HASTY_GRIDS = 4  # of a single field, before lines are tried
# At a finite temperature everything is smooth; the colder, the more nodes.
WARM_PRODUCTS = tuple(GaussHermite(points) for points in (8, 12, 18, 28, 42, 64, 96, 144))
MOST_WARM = 2e9  # losses evaluated by a product rule, X and omega together
SAMPLES = tuple(Sobol(log2) for log2 in range(10, 17))


def is_replicated(rule: Rule) -> bool:
    """Whether a rule comes in replicates whose spread is its error."""
    return isinstance(rule, Sobol)


def rules_for_slopes(problem: Problem, rule: Rule, bistable: float) -> tuple[Rule, ...]:
    """Rules for the averages of the field's slope (replicon, jump weight), which need few digits."""
    if isinstance(rule, Sobol):
        return (replace(rule, log2=min(rule.log2, 12)),)
    if isinstance(rule, ProxSpace) and bistable > NEGLIGIBLE_JUMPS:
        # A grid does not know which of its minima is the global one.
        return (Sobol(12),)
    if isinstance(rule, GaussHermite) and rule.finer().points ** problem.dimension > MOST_NODES:
        return (Sobol(12),)
    return rule, rule.finer()


def tolerance_of(rule: Rule, accuracy: float) -> float:
    """Residual asked of Newton: 1e-9 or less for smooth rules, a fiftieth of the accuracy for replicated ones."""
    return max(1e-9, 0.02 * accuracy) if is_replicated(rule) else max(2e-14, min(1e-9, 1e-2 * accuracy))


def evaluations(problem: Problem, rule: GaussHermite) -> float:
    """Losses that a product rule evaluates at a finite temperature, about."""
    inner = float(nodes_in_fields(problem, rule.inner)) ** problem.solver.thermal.FIELDS
    return float(rule.points) ** problem.dimension * len(problem.label_choices) * inner


def count_lines(problem: Problem, rule: Lines) -> float:
    """How many lines a rule visits where nothing is split, about."""
    return float(rule.points) ** (problem.dimension - 1) * len(problem.label_choices)


def coarser_rules(rule: Rule) -> tuple[Rule, ...]:
    """What a rule is compared with beside the next finer one; twice where its nodes know nothing of the integrand."""
    return (rule.coarser(),) if isinstance(rule, ProxSpace) else (rule.coarser(), rule.coarser().coarser())


def finer_rules(rule: Rule, fields: int) -> list[Rule]:
    """The rules of the same family beyond this one, as far as solving goes."""
    if isinstance(rule, Sobol):
        return [replace(level, seed=rule.seed) for level in SAMPLES if level.log2 > rule.log2]
    if isinstance(rule, ProxSpace):
        return [level for level in (PLANE_GRIDS if fields > 1 else LINE_GRIDS) if level.points > rule.points]
    if isinstance(rule, GaussHermite):
        return [level for level in PRODUCTS if level.points > rule.points]
    return [rule.finer(), rule.finer().finer()]


def count_nodes(problem: Problem, rule: Rule) -> float:
    """How many nodes a deterministic rule visits, about."""
    if isinstance(rule, ProxSpace):
        known = problem.tokens * problem.teacher_rank + len(problem.noise_scale)
        return float(rule.points**problem.solver.channel.FIELDS * rule.teacher ** min(known, 2))
    if isinstance(rule, GaussHermite):
        return 1e2 * float(rule.points) ** problem.dimension  # each with a proximal point
    if isinstance(rule, Lines):
        return 4e4 * count_lines(problem, rule)  # hundreds of proximal points a line
    return 1e9
