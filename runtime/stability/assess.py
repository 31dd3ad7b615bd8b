"""Stability of a solution (docs/theory.md section 8): longitudinal spectrum, replicon, and the measure of proximal
jumps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import budget, presenting
from ..integration.estimates import two_standard_errors
from ..integration.rule import NEGLIGIBLE_JUMPS, Averages, Rule
from ..numbers import with_error
from ..problems.overlaps import Conjugates, Overlaps, places_of
from ..problems.problem import Problem
from ..progress import step
from ..saddle_point.state_map import StateMap
from .jumps import Jumps, find_jumps
from .self_overlap import FiniteMap, SelfOverlap, self_overlap

NEGLIGIBLE_LOSS = 1e-4  # of q: a self-overlap loss below is called negligible
_LINES = 9  # log2 of the lines a replicate where two coordinates and one choice of labels are searched


@dataclass(frozen=True)
class Stability:
    """Verdict on a solution.

    Attributes:
        eigenvalues: of the longitudinal Jacobian dG/du, largest real part first; stable under some damping iff every
            real part is below 1. An eigenvalue below -1 asks for damping only. Empty where they were not asked for.
        modes: what each eigenvector moves, in words.
        replicon: Perron root of the replicon map from derivatives; finite even where jumps make the true one infinite.
        replicon_error: two standard errors, or the difference of two rules.
        bistable_share: probability that the Moreau objective has a second minimum.
        jump_weight: -Tr V^_jump / |Tr V^_derivative|, the part of V^ that comes from jumps of the proximal map.
        jumps: the jump set; None where the bistable share is below NEGLIGIBLE_JUMPS.
        self_overlap: of the finite map (docs/theory.md (8.20)); None without jumps and without a replicon near 1.
        slopes_by: how dG/du was found: differences, or printed derivatives.
    """

    eigenvalues: np.ndarray
    replicon: float
    replicon_error: float
    bistable_share: float
    jump_weight: float
    jump_weight_error: float
    modes: tuple[str, ...] = ()
    jumps: Jumps | None = None
    self_overlap: SelfOverlap | None = None
    slopes_by: str = "differences"

    @property
    def longitudinally_stable(self) -> bool:
        """Whether max Re x < 1 over the eigenvalues, docs/theory.md (8.9); true where they were not asked for."""
        return bool(np.max(self.eigenvalues.real, initial=-np.inf) < 1)

    @property
    def has_jumps(self) -> bool:
        """Whether the bistable share is more than NEGLIGIBLE_JUMPS, so that the jump set is looked for."""
        return self.bistable_share > NEGLIGIBLE_JUMPS

    @property
    def damping(self) -> float:
        """Weight on the new iterate below which plain damped iteration is stable here, at most 1; 0 where none is.

        eta < 2 (1 - Re x) / |1 - x|^2 for every eigenvalue x (docs/theory.md (8.8)).
        """
        gaps = 1 - self.eigenvalues
        if np.any(gaps.real <= 0):
            return 0.0
        return float(min(1.0, np.min(2 * gaps.real / np.abs(gaps) ** 2)))

    @property
    def self_overlap_loss(self) -> float:
        """Share of q that the estimate loses to itself: max_c Tr D*_c / Tr q_c, 0 where D = 0 is stable."""
        return self.self_overlap.loss if self.self_overlap else 0.0

    @property
    def self_overlap_loss_error(self) -> float:
        """Half width of `self_overlap_loss`; 0 where the finite map was not looked at."""
        return self.self_overlap.error if self.self_overlap else 0.0

    @property
    def unstable(self) -> str:
        """What replica symmetry is unstable through: replicon, jumps of the proximal map, or nothing."""
        if self.replicon - self.replicon_error >= 1:
            return "replicon"
        # However little is lost: the slope of the loss at D = 0 is infinite with jumps of any weight.
        lost = self.self_overlap_loss + self.self_overlap_loss_error
        return "jumps" if self.has_jumps and not lost < NEGLIGIBLE_LOSS else ""

    @property
    def verdict(self) -> str:
        """In words: RS stable, unstable through the replicon, or through jumps of the proximal map, with the overlap
        lost; undecided where the replicon is within its error of 1."""
        replicon = f"replicon {with_error(self.replicon, self.replicon_error)}"
        lost = self._lost
        if self.unstable == "replicon":
            words = f"RS unstable ({replicon})" + (f"; {lost}" if self.self_overlap else "")
        elif self.unstable:
            weight = with_error(self.jump_weight, self.jump_weight_error)
            words = f"RS unstable through proximal jumps (jump weight {weight}): {lost} ({replicon})"
        elif self.has_jumps:
            words = (
                f"RS stable but for negligible proximal jumps: overlap lost {self.self_overlap_loss:.1g} ({replicon})"
            )
        elif not self.replicon + self.replicon_error < 1:
            words = f"RS stability undecided ({replicon})"
        else:
            words = f"RS stable ({replicon})"
        if not self.longitudinally_stable:
            toward = f", {self.modes[0]}" if self.modes else ""
            words += f"; longitudinally unstable (eigenvalue {self.eigenvalues[0].real:.4g}{toward}): a saddle"
        return words

    @property
    def _lost(self) -> str:
        """The overlap lost; an upper bound where it cannot be told from nothing."""
        loss, error = 100 * self.self_overlap_loss, 100 * self.self_overlap_loss_error
        if not 0 <= loss <= error < np.inf or error == 0:
            return f"overlap lost {with_error(loss, error)} %"
        digit = 10.0 ** np.floor(np.log10(loss + error))
        return f"overlap lost not resolved, at most {digit * np.ceil((loss + error) / digit - 1e-9):.1g} %"

    def to_json(self) -> dict[str, Any]:
        """The object `stability` of the command line's contract (docs/design.md section 5)."""
        return presenting.to_json(self)


def modes_of(matrix: np.ndarray, overlaps: Overlaps) -> tuple[np.ndarray, tuple[str, ...]]:
    """Eigenvalues of a longitudinal Jacobian, largest real part first, and what each eigenvector moves, in words.

    Named are the blocks that hold a fifth of the eigenvector (in units of the block scales) or more, the largest first,
    and whether the tokens move alike or against one another.
    """
    scales = overlaps.block_scales
    values, vectors = np.linalg.eig(matrix * scales / scales[:, None])
    order = np.lexsort((values.imag, -np.round(values.real, 12)))
    contexts, places = overlaps.sizes[0], places_of(overlaps.sizes)
    words = []
    for vector in vectors[:, order].T:
        parts = {name: vector[place] for name, place in places.items()}
        shares = {name: float(np.sum(np.abs(part) ** 2)) for name, part in parts.items() if len(part)}
        total = sum(shares.values())
        named = [name for name in sorted(shares, key=lambda n: -shares[n]) if shares[name] >= 0.2 * total]
        words.append("toward " + " and ".join(named) + _pattern(parts[named[0]], contexts if named[0] != "phi" else 1))
    return values[order], tuple(words)


def _pattern(part: np.ndarray, contexts: int) -> str:
    """Whether the contexts move alike, from one block of an eigenvector, context slowest."""
    rows = part.reshape(contexts, -1)
    if contexts == 1 or not np.abs(rows).max() > 0:
        return ""
    size = 0.05 * np.abs(rows).max()
    if np.abs(rows - rows.mean(axis=0)).max() < size:
        return ", tokens alike"
    return ", tokens opposed" if np.abs(rows.mean(axis=0)).max() < size else ""


def replicon_matrix(problem: Problem, square: np.ndarray, responses: np.ndarray) -> np.ndarray:
    """The linear map D -> D' on (C, s, s) blocks as a (C s^2, C s^2) matrix (docs/theory.md (8.11), (8.12)).

    Args:
        square: E[G_ll' (x) G_ll'] per label assignment, (labels, L, L, s, s, s, s) with axes l, l', a, e, b, f for
            G[la, l'b] G[le, l'f].
        responses: E[J (x) J] per spectral atom, J = dw/db, (atoms, s, s, s, s) with axes a, b, e, f for J_ab J_ef.
    """
    contexts, s = problem.contexts, problem.student_rank
    channel = np.zeros((contexts, s, s, contexts, s, s))
    for (labels, probability), blocks in zip(problem.label_choices, square, strict=True):
        at = problem.context_of(labels)
        for l, c in enumerate(at):
            for r, d in enumerate(at):
                channel[c, :, :, d, :, :] += problem.alpha * probability * blocks[l, r]
    total = np.einsum("caedbf,dbfghk->caeghk", prior_map(problem, responses), channel)
    return total.reshape(contexts * s * s, contexts * s * s)


def prior_map(problem: Problem, responses: np.ndarray) -> np.ndarray:
    """D^ -> D' (docs/theory.md (8.12)), (C, s, s, C, s, s).

    D'_c[a, e] = E_nu[gamma_c gamma_d J[a, b] J[e, f]] D^_d[b, f].
    """
    law = problem.law
    return np.einsum("i,ic,id,iabef->caedbf", law.weights, law.gamma, law.gamma, responses)


def responses_of(problem: Problem, hats: Conjugates) -> np.ndarray:
    """E[J (x) J] of `replicon_matrix`, per spectral atom."""
    out = np.empty((len(problem.law.weights), *[problem.student_rank] * 4))
    problem.of_prior("responses")(hats.q, hats.V, hats.m, hats.theta, out)
    return out


def _slope_trace(problem: Problem, slope: np.ndarray) -> float:
    """Tr V^_derivative = -alpha sum_c Tr E_c[G_ll]."""
    return -problem.alpha * sum(
        probability * float(np.trace(blocks, axis1=1, axis2=2).sum())
        for (_, probability), blocks in zip(problem.label_choices, slope, strict=True)
    )


def assess(
    problem: Problem,
    overlaps: Overlaps,
    rules: tuple[Rule, ...],
    jacobian: np.ndarray | None,
    averages: Averages,
    log2_lines: int | None = None,
) -> Stability:
    """Stability of a solution: derivatives first, then, where the proximal map jumps, lines and pairs of fields.

    Args:
        rules: one rule with replicates for the averages of the field's slope; or one without and others to compare
            with, each difference counting for less than the one before.
        jacobian: longitudinal Jacobian dG/du; None leaves the spectrum out.
        averages: of the rule that solved the problem.
        log2_lines: of the lines a replicate on which jumps are sought, default by the number of fields.
    """
    rule = rules[0]
    with step("averages of the field's slope"):
        parts = [r.jacobians(problem, overlaps) for r in rules]
    budget.check()
    replicates = len(parts[0].square) > 1
    # The jump part is a small difference: with replicates both terms are taken from the same nodes.
    state_map = StateMap(problem, rule)
    own = state_map.averages(overlaps) if replicates else averages
    responses = responses_of(problem, state_map.conjugates(overlaps, averages.means))

    def weight(moments: np.ndarray, slope: np.ndarray) -> float:
        smooth = _slope_trace(problem, slope)
        hats = state_map.conjugates(overlaps, moments)
        return (smooth - float(np.trace(hats.V, axis1=1, axis2=2).sum())) / (abs(smooth) or 1.0)  # 0: a linear loss

    replicon = radius(problem, parts[0].square.mean(axis=0), responses)
    if replicates:
        roots = [radius(problem, square, responses) for square in parts[0].square]
        weights = [weight(m, slope) for m, slope in zip(own.moments, parts[0].slope, strict=True)]
        errors = [float(two_standard_errors(np.array(values))) for values in (roots, weights)]
    else:
        roots = [radius(problem, part.square[0], responses) for part in parts]
        weights = [weight(own.means, part.slope[0]) for part in parts]
        errors = [max(abs(v - values[0]) / n for n, v in enumerate(values[1:], 1)) for values in (roots, weights)]
        weights = weights[:1]
    values, modes = (np.zeros(0), ()) if jacobian is None else modes_of(jacobian, overlaps)
    stability = Stability(values, replicon, errors[0], averages.bistable, float(np.mean(weights)), errors[1], modes)
    if not stability.has_jumps and (replicon + errors[0] < 1 or problem.inverse_temperature is not None):
        return stability
    lines = _lines_of(problem) if log2_lines is None else log2_lines
    with step("jumps of the proximal map"):
        jumps = find_jumps(problem, overlaps, lines) if stability.has_jumps else None
    budget.check()
    if jumps is not None:
        smooth = abs(float(np.mean([_slope_trace(problem, slope) for slope in parts[0].slope])))
        direct, width = (value / (smooth or 1.0) for value in jumps.susceptibility(problem))
        if width < stability.jump_weight_error:
            stability = replace(stability, jump_weight=direct, jump_weight_error=width)
    linear = replicon_matrix(problem, parts[0].square.mean(axis=0), responses)
    finite = FiniteMap(problem, overlaps, prior_map(problem, responses))
    with step("the self-overlap lost, from pairs of fields"):
        return replace(stability, jumps=jumps, self_overlap=self_overlap(finite, linear, jumps, errors[0]))


def _lines_of(problem: Problem) -> int:
    """log2 of the lines a replicate: as many proximal points in all whatever the number of fields and labels."""
    times = problem.tokens * problem.student_rank * len(problem.label_choices) / 2
    return max(3, _LINES - max(0, round(float(np.log2(times)))))


def replicons(problem: Problem, overlaps: Overlaps, hats: Conjugates, rule: Rule) -> np.ndarray:
    """Perron root of the replicon map from derivatives, one a replicate of the rule, (R,).

    Raises:
        DomainError: overlaps outside their domain.
    """
    responses = responses_of(problem, hats)
    return np.array([radius(problem, square, responses) for square in rule.jacobians(problem, overlaps).square])


def radius(problem: Problem, square: np.ndarray, responses: np.ndarray) -> float:
    """Perron root of `replicon_matrix`."""
    return float(np.max(np.abs(np.linalg.eigvals(replicon_matrix(problem, square, responses)))))
