"""A second opinion: rules of another family than the one that solved a problem, to verify a threshold or a solution by.

Two rules count as different where they place their nodes in different variables (proximal points or fields) or by
different formulas; that they read the same symbolic loss is the point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import InputError, NotConvergedError, TimeLimitError
from ..integration import GaussHermite, Lines, ProxSpace, Rule, Sobol, SparseGrid, rule_named
from ..integration.rule import NEGLIGIBLE_JUMPS
from ..problems.problem import Problem
from ..problems.reduced import integrated
from ..progress import step
from ..saddle_point.iteration import Status
from ..saddle_point.starts import branch_of
from .solution import Solution
from .solve import solve

COARSE = 3.0
_LEAST_ACCURACY = 1e-6  # asked of the second rule of a solution
AUTOMATIC_BELOW = 1e-6  # accuracies from here on are verified unless told otherwise
_LINES = (48, 72, 108, 140)
_PRODUCT = (24, 36, 54, 80, 120, 180)
_LEVELS = (4, 5, 6, 7, 8)
_GRIDS = (ProxSpace(64, 32), ProxSpace(88, 44), ProxSpace(120, 60))
_MOST_PRODUCT = 3e6
_MOST_LINES = 3e6


@dataclass(frozen=True)
class Opinion:
    """What a second rule makes of the compared difference, and the half width of that where it has one of its own."""

    rule: Rule
    difference: float
    error: float


def other_rules(problem: Problem, rule: Rule, bistable: float) -> list[Rule]:
    """Rules of another family that suit the problem, coarse to fine; empty where none does.

    Where the proximal map jumps: lines split there, else Sobol sets. Where it does not: a product of Gauss-Hermite
    rules in few dimensions, lines (equidistant nodes) in some, a sparse grid in many.
    """
    part = integrated(problem)
    dimension, fields = part.dimension, part.solver.channel.FIELDS
    lines: list[Rule] = [Lines(n) for n in _LINES if fields <= 2 and n ** (dimension - 1) <= _MOST_LINES]
    if isinstance(rule, Lines):
        return [*_GRIDS] if _grids_suit(problem) else []
    if bistable > NEGLIGIBLE_JUMPS:
        return lines or ([] if isinstance(rule, Sobol) else [Sobol(13), Sobol(15)])
    product: list[Rule] = [GaussHermite(n) for n in _PRODUCT if n**dimension <= _MOST_PRODUCT]
    if dimension <= 3 and not isinstance(rule, GaussHermite):
        return product
    return lines or ([] if isinstance(rule, SparseGrid) else [SparseGrid(level) for level in _LEVELS])


def other_family(problem: Problem, rule: Rule) -> str:
    """The rule of another family by which a whole solution is found again, where `other_rules` only look at one.

    Raises:
        InputError: there is none that is good enough.
    """
    part = integrated(problem)
    fields = part.solver.channel.FIELDS
    if isinstance(rule, ProxSpace):
        return "sobol" if part.solver.model.CURVED["loss"] or fields > 2 else Lines.name
    if not _grids_suit(problem):
        raise InputError(f"no second rule for {fields} student fields is as good as Sobol sets; name one")
    return ProxSpace.name


def _grids_suit(problem: Problem) -> bool:
    channel = integrated(problem).solver.proximal
    return channel.HAS_PROX_SPACE and channel.FIELDS <= 2


def opinions(
    solutions: Sequence[Solution], difference: Callable[[Rule], tuple[float, float]], tick: Callable[[], None]
) -> Iterator[Opinion]:
    """The compared difference by ever finer rules of another family, as far as they go.

    Args:
        solutions: at the threshold; one family serves all of them.
        difference: rule -> compared difference by it at the same solutions, and its half width.
    """
    bistable = max(s.averages.bistable if s.averages else 0.0 for s in solutions)
    for rule in other_rules(solutions[0].problem, solutions[0].rule, bistable):
        try:
            yield Opinion(rule, *difference(rule))
        except InputError:
            return
        tick()


@dataclass(frozen=True)
class Agreement:
    """How far the threshold by a second rule is from that by the first.

    Attributes:
        value: of the threshold by the second rule; gap: to that by the first, the second's own half width included.
        spread: what the last refinement of the second rule changed; nan where it was asked once.
        enough: gap up to which the two agree.
    """

    value: float
    gap: float
    spread: float
    enough: float
    rule: dict[str, Any]
    tried: tuple[dict[str, Any], ...]

    @property
    def agrees(self) -> bool:
        """Whether the gap is at most `enough`, so that the second rule confirms the threshold."""
        return self.gap <= self.enough

    @property
    def too_coarse(self) -> bool:
        """Whether the second rule itself still moves by as much as the two differ, so that it cannot tell."""
        return not self.agrees and self.gap <= COARSE * self.spread

    @property
    def words(self) -> str:
        """Verdict: agrees, differs, or too coarse to tell."""
        if self.agrees:
            return "agrees"
        return "too coarse to tell" if self.too_coarse else "differs"

    def to_json(self) -> dict[str, Any]:
        """The entry `second_rule` of a threshold's evidence, with every rule that was tried."""
        own = {"value": self.value, "gap": self.gap, "spread": self.spread, "verdict": self.words}
        return {**own, "integrator": self.rule, "tried": list(self.tried)}


def agreement(
    found: Iterator[Opinion], value: float, root: Callable[[float], float], enough: float
) -> Agreement | None:
    """The opinion of the finest rule asked: finer ones are asked until the gap is `enough`. None without any.

    Args:
        value: of the threshold by the first rule.
        root: compared difference -> threshold.
    """
    tried: list[dict[str, Any]] = []
    last = None
    for opinion in found:
        other = root(opinion.difference)
        gap = abs(other - value) + abs(root(opinion.difference + opinion.error) - other)
        spread = abs(other - last.value) if last else np.nan
        tried.append({**opinion.rule.describe(), "value": other})
        last = Agreement(other, gap, spread, enough, opinion.rule.describe(), tuple(tried))
        if last.agrees:
            break
    return last


def confirmed(agreed: Agreement | None, error: float) -> tuple[str, float, dict[str, float]]:
    """Kind of error, half width and its part from the second rule, once a second rule was asked (or none: None).

    A rule that is too coarse to tell neither verifies nor widens.

    Args:
        error: half width by the first rule.
    """
    if agreed is None or agreed.too_coarse:
        return "estimated", error, {}
    return "verified", max(error, agreed.gap), {"half_width_second_rule": max(0.0, agreed.gap - error)}


def verified(
    solution: Solution, integrator: str | None = None, points: int | None = None, seed: int | None = None
) -> Solution:
    """The solution with half widths that hold the truth if the error bar of either of two rules does.

    The problem is solved again with a rule of another family. Half widths become max(own, difference + the other's);
    error_kind becomes "verified" where the difference of every number is within the sum of both error bars, so that the
    rules agree. Else the error bars stay estimates, and the wider ones tell by how much the rules differ.

    Args:
        integrator: of the second rule, as for `solve`; default lines where prox-space solved the problem (Sobol sets
            where the loss has kinks that are no planes), else prox-space, up to two student fields.
        points: its size; seed: of its scramblings.

    Raises:
        InputError: the same family twice, no second rule for so many fields, or a solution that is none.
        NotConvergedError: the second rule finds no solution, or another branch.
    """
    if solution.losses is None:
        raise InputError(f"there is no solution to verify: {solution.status.words}")
    problem = solution.problem
    problem.only_at_zero_temperature("solutions are verified by a second rule")
    integrator = integrator or other_family(problem, solution.rule)
    if integrator == "auto" or type(rule_named(integrator)) is type(solution.rule):
        raise InputError(f"{integrator}: a rule of another family than {solution.rule.name} is expected")
    chosen: dict[str, Any] = {"integrator": integrator, "points": points, "seed": 1 if seed is None else seed}
    accuracy = float(np.clip(solution.relative_error, _LEAST_ACCURACY, 0.1))
    with step(f"verifying by {integrator}"):
        other = solve(problem, solution, accuracy=accuracy, **chosen)
    if other.status is Status.TIME_LIMIT:
        raise TimeLimitError(f"the time limit ended the verification by {integrator}")
    if other.losses is None or branch_of(other.overlaps) != branch_of(solution.overlaps):
        raise NotConvergedError(f"{integrator} does not find this solution: {other.status.words}")
    pairs = [
        (solution.overlaps.pack(), solution.errors, other.overlaps.pack(), other.errors),
        *(
            tuple(np.array(getattr(s, name + suffix)) for s in (solution, other) for suffix in ("", "_error"))
            for name in ("training_loss", "test_error")
        ),
    ]
    agree, widths = True, []
    for value, width, second, second_width in pairs:
        difference = np.abs(value - second)
        agree = agree and not bool(np.any(difference > width + second_width))
        widths.append(np.maximum(width, difference + second_width))
    return replace(
        solution,
        errors=widths[0],
        training_loss_error=float(widths[1]),
        test_error_error=float(widths[2]),
        error_kind="verified" if agree else "estimated",
    )
