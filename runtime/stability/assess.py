"""Stability of a solution (docs/theory.md section 8): longitudinal spectrum, replicon, jumps of the proximal map."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base import budget, presenting
from ..base.errors import DomainError
from ..base.numbers import format_value_with_error
from ..base.progress import progress_step
from ..integration.estimates import replicate_error_bar
from ..integration.rule import DIFFERENCE_SAFETY, NEGLIGIBLE_JUMPS, JacobianAverages, Rule, SaddlePointAverages
from ..problems.overlaps import Conjugates, Overlaps, packed_overlap_slices
from ..problems.problem import Problem
from ..saddle_point.state_map import SaddlePointMap, conjugates_from_overlaps
from .displacement import Displacements
from .jumps import Jumps, JumpSearchOptions, find_proximal_jumps
from .self_overlap import ReplicaDistanceMap, SelfOverlap, find_largest_replica_distance

NEGLIGIBLE_LOSS = 1e-4  # fraction of q: a smaller self-overlap loss is called negligible
ROUNDING = 2e-14  # relative, of sums over very many nodes
STABLE, MARGINAL, UNSTABLE, UNDECIDED = "stable", "marginal", "unstable", "undecided"
"""Verdicts on a number that has to be below 1: it is, is 1 within its error bar, is not, or is not known."""


@dataclass(frozen=True)
class Stability:
    """A verdict on the stability of a solution, with the numbers that it rests on.

    Attributes:
        eigenvalues: of the longitudinal Jacobian dG/du, largest real part first; stable under some damping iff every
            real part is below 1. An eigenvalue below -1 requires damping only. Empty where they were not asked for.
        modes: which blocks of the overlaps each eigenvector changes, in words.
        replicon: Perron root of the replicon map from derivatives; finite even where jumps make the true one infinite.
        replicon_error: error bar: of its own averages (two standard errors, or the difference of two rules), of the
            overlaps at which they are taken, and of rounding.
        bistable_share: probability that the Moreau objective has a second minimum.
        jump_weight: -Tr V^_jump / |Tr V^_derivative|, the part of V^ that comes from jumps of the proximal map.
        jumps: the jump set; None where the bistable share is below NEGLIGIBLE_JUMPS.
        self_overlap: of the finite map (docs/theory.md (8.20)); None without jumps and without a replicon near 1.
        slopes_by: how dG/du was found: differences, or printed derivatives.
        longitudinal_error: error bar of the largest real part; nan where that is too far from 1 to matter.
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
    longitudinal_error: float = np.nan

    @property
    def longitudinal(self) -> str:
        """Return the verdict on the longitudinal spectrum: every real part below 1 (docs/theory.md (8.9)).

        STABLE, MARGINAL where it is 1 within its error bar, or UNSTABLE; STABLE where they were not asked for.
        """
        error = self.longitudinal_error if np.isfinite(self.longitudinal_error) else 0.0
        return stability_verdict(float(np.max(self.eigenvalues.real, initial=-np.inf)), error)

    @property
    def longitudinal_eigenvalue(self) -> float:
        """Return the largest real part of the longitudinal eigenvalues; nan if they were not computed."""
        return float(np.max(self.eigenvalues.real)) if len(self.eigenvalues) else np.nan

    @property
    def longitudinally_stable(self) -> bool:
        """Return whether the longitudinal verdict is STABLE."""
        return self.longitudinal == STABLE

    @property
    def has_jumps(self) -> bool:
        """Return whether the fraction of samples with two minima is large enough for jumps to matter."""
        return self.bistable_share > NEGLIGIBLE_JUMPS

    @property
    def damping(self) -> float:
        """Return the largest damping weight, at most 1, for which damped iteration is stable here; 0 without any.

        eta < 2 (1 - Re x) / |1 - x|^2 for every eigenvalue x (docs/theory.md (8.8)).
        """
        gaps = 1 - self.eigenvalues
        if np.any(gaps.real <= 0):
            return 0.0
        return float(min(1.0, np.min(2 * gaps.real / np.abs(gaps) ** 2)))

    @property
    def self_overlap_loss(self) -> float:
        """Return the fraction of q by which the self-overlap drops: max_c Tr D*_c / Tr q_c; 0 if D = 0 is stable."""
        return self.self_overlap.loss if self.self_overlap else 0.0

    @property
    def self_overlap_loss_error(self) -> float:
        """Return the error bar of `self_overlap_loss`; 0 if the drop was not computed."""
        return self.self_overlap.error if self.self_overlap else 0.0

    @property
    def replica_symmetry(self) -> str:
        """Return the verdict on replica symmetry: STABLE, MARGINAL (replicon 1 within its error bar) or UNSTABLE.

        UNDECIDED where the replicon or its error bar is not known.
        """
        if self.unstable:
            return UNSTABLE
        if not np.isfinite([self.replicon, self.replicon_error]).all():
            return UNDECIDED
        return stability_verdict(self.replicon, self.replicon_error)

    @property
    def unstable(self) -> str:
        """Return the cause of an instability of replica symmetry: "replicon", "jumps" (of the proximal map), or ""."""
        if stability_verdict(self.replicon, self.replicon_error) == UNSTABLE:
            return "replicon"
        # However little is lost: the slope of the loss at D = 0 is infinite with jumps of any weight.
        lost = self.self_overlap_loss + self.self_overlap_loss_error
        return "jumps" if self.has_jumps and not lost < NEGLIGIBLE_LOSS else ""

    @property
    def verdict(self) -> str:
        """Return the verdict on replica symmetry and longitudinal stability in words.

        RS stable, marginal, unstable through the replicon, or through jumps of the proximal map, with the overlap lost;
        undecided where the replicon is not known.
        """
        replicon = f"replicon {format_value_with_error(self.replicon, self.replicon_error)}"
        lost = self._overlap_loss_in_words
        if self.unstable == "replicon":
            words = f"RS unstable ({replicon})" + (f"; {lost}" if self.self_overlap else "")
        elif self.unstable:
            weight = format_value_with_error(self.jump_weight, self.jump_weight_error)
            words = f"RS unstable through proximal jumps (jump weight {weight}): {lost} ({replicon})"
        elif self.replica_symmetry == MARGINAL:
            words = f"RS marginal ({replicon}, 1 within its error)"
        elif self.replica_symmetry == UNDECIDED:
            words = f"RS stability undecided ({replicon})"
        elif self.has_jumps:
            words = (
                f"RS stable but for negligible proximal jumps: overlap lost {self.self_overlap_loss:.1g} ({replicon})"
            )
        else:
            words = f"RS stable ({replicon})"
        if self.longitudinal != STABLE:
            toward = f", {self.modes[0]}" if self.modes else ""
            lead = float(self.eigenvalues[0].real)
            if self.longitudinal == UNSTABLE:
                words += f"; longitudinally unstable (eigenvalue {lead:.4g}{toward}): a saddle"
            else:
                shown = format_value_with_error(lead, self.longitudinal_error)
                words += f"; longitudinally marginal (eigenvalue {shown}, 1 within its error{toward})"
        return words

    @property
    def _overlap_loss_in_words(self) -> str:
        """Return the drop of the replica overlap in words; an upper bound if it is zero within its error bar."""
        loss, error = 100 * self.self_overlap_loss, 100 * self.self_overlap_loss_error
        if not 0 <= loss <= error < np.inf or error == 0:
            return f"overlap lost {format_value_with_error(loss, error)} %"
        digit = 10.0 ** np.floor(np.log10(loss + error))
        return f"overlap lost not resolved, at most {digit * np.ceil((loss + error) / digit - 1e-9):.1g} %"

    def to_json(self) -> dict[str, Any]:
        """Return the object `stability` of the command line's contract (docs/design.md section 5)."""
        return presenting.to_json(self)


def stability_verdict(value: float, error: float) -> str:
    """Return STABLE, MARGINAL or UNSTABLE for a number that has to be below 1.

    Args:
        value: the number.
        error: error bar of that number.
    """
    if value - error > 1:
        return UNSTABLE
    return STABLE if value + error < 1 else MARGINAL


def describe_eigenmodes(matrix: np.ndarray, overlaps: Overlaps) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the eigenvalues of a longitudinal Jacobian, largest real part first, and each eigenvector in words.

    The words name the blocks that contain a fifth of the eigenvector (in units of the block scales) or more, the
    largest first, and say whether the tokens change alike or against one another.

    Args:
        matrix: Jacobian in the packed overlaps, (n, n).
        overlaps: overlaps at which it is taken.
    """
    scales = overlaps.block_scales
    values, vectors = np.linalg.eig(matrix * scales / scales[:, None])
    order = np.lexsort((values.imag, -np.round(values.real, 12)))
    contexts, places = overlaps.sizes[0], packed_overlap_slices(overlaps.sizes)
    words = []
    for vector in vectors[:, order].T:
        parts = {name: vector[place] for name, place in places.items()}
        shares = {name: float(np.sum(np.abs(part) ** 2)) for name, part in parts.items() if len(part)}
        total = sum(shares.values())
        named = [name for name in sorted(shares, key=lambda n: -shares[n]) if shares[name] >= 0.2 * total]
        words.append(
            "toward "
            + " and ".join(named)
            + _describe_token_symmetry(parts[named[0]], contexts if named[0] != "phi" else 1)
        )
    return values[order], tuple(words)


def _describe_token_symmetry(part: np.ndarray, contexts: int) -> str:
    """Return in words whether one block of an eigenvector changes all tokens alike."""
    rows = part.reshape(contexts, -1)
    if contexts == 1 or not np.abs(rows).max() > 0:
        return ""
    size = 0.05 * np.abs(rows).max()
    if np.abs(rows - rows.mean(axis=0)).max() < size:
        return ", tokens alike"
    return ", tokens opposed" if np.abs(rows.mean(axis=0)).max() < size else ""


def replicon_map_matrix(problem: Problem, square: np.ndarray, responses: np.ndarray) -> np.ndarray:
    """Return the linear map D -> D' on (C, s, s) blocks as a (C s^2, C s^2) matrix (docs/theory.md (8.11), (8.12)).

    Args:
        problem: problem that gives the laws of labels and of the spectrum.
        square: E[G_ll' (x) G_ll'] per label assignment, (labels, L, L, s, s, s, s) with axes l, l', a, e, b, f for
            G[la, l'b] G[le, l'f].
        responses: E[J (x) J] per spectral atom, J = dw/db, (atoms, s, s, s, s) with axes a, b, e, f for J_ab J_ef.
    """
    contexts, s = problem.contexts, problem.student_rank
    channel = np.zeros((contexts, s, s, contexts, s, s))
    for (labels, probability), blocks in zip(problem.label_choices, square, strict=True):
        at = problem.context_indices(labels)
        for l, c in enumerate(at):
            for r, d in enumerate(at):
                channel[c, :, :, d, :, :] += problem.alpha * probability * blocks[l, r]
    total = np.einsum("caedbf,dbfghk->caeghk", prior_part_of_replicon_map(problem, responses), channel)
    return total.reshape(contexts * s * s, contexts * s * s)


def prior_part_of_replicon_map(problem: Problem, responses: np.ndarray) -> np.ndarray:
    """Return the map D^ -> D' (docs/theory.md (8.12)), (C, s, s, C, s, s).

    D'_c[a, e] = E_nu[gamma_c gamma_d J[a, b] J[e, f]] D^_d[b, f].

    Args:
        problem: problem that gives the law of the spectrum.
        responses: E[J (x) J], see `replicon_map_matrix`.
    """
    law = problem.law
    return np.einsum("i,ic,id,iabef->caedbf", law.weights, law.gamma, law.gamma, responses)


def mean_squared_prior_responses(problem: Problem, hats: Conjugates) -> np.ndarray:
    """Return E[J (x) J] per spectral atom, J = dw/db the response of the weights.

    Args:
        problem: problem with a regulariser.
        hats: conjugates at the solution.
    """
    out = np.empty((len(problem.law.weights), *[problem.student_rank] * 4))
    problem.bound_prior_map("responses")(*hats.blocks, out)
    return out


def _conjugate_trace_without_jumps(problem: Problem, slope: np.ndarray) -> float:
    """Return Tr V^_derivative = -alpha sum_c Tr E_c[G_ll]."""
    return -problem.alpha * sum(
        probability * float(np.trace(blocks, axis1=1, axis2=2).sum())
        for (_, probability), blocks in zip(problem.label_choices, slope, strict=True)
    )


def assess_stability(
    problem: Problem,
    overlaps: Overlaps,
    rules: tuple[Rule, ...],
    jacobian: np.ndarray | None,
    averages: SaddlePointAverages,
    solved_by: Rule,
    displacements: Displacements,
    log2_lines: int | None = None,
) -> Stability:
    """Return the verdict on the stability of a solution.

    Args:
        problem: problem that was solved.
        overlaps: overlaps of the solution.
        rules: one rule with replicates for the averages of the field's slope; or one without and others to compare
            with, each difference counting for less than the one before.
        jacobian: longitudinal Jacobian dG/du; None leaves the spectrum out.
        averages: averages of the rule that solved the problem, `solved_by`.
        solved_by: that rule.
        displacements: behind the error bars of the overlaps.
        log2_lines: of the lines a replicate on which jumps are sought, default by the number of fields.
    """
    rule = rules[0]
    with progress_step("averages of the field's slope"):
        parts = [r.jacobian_averages(problem, overlaps) for r in rules]
    budget.check_time_limit()
    replicates = len(parts[0].square) > 1
    # The part of the jumps is a small difference: with replicates both terms are taken from the same nodes.
    state_map = SaddlePointMap(problem, rule)
    own = state_map.channel_averages(overlaps) if replicates else averages
    responses = mean_squared_prior_responses(problem, state_map.conjugates_at_overlaps(overlaps, averages.means))

    def _conjugate_fraction_from_jumps(moments: np.ndarray, slope: np.ndarray) -> float:
        smooth = _conjugate_trace_without_jumps(problem, slope)
        hats = state_map.conjugates_at_overlaps(overlaps, moments)
        return (smooth - float(np.trace(hats.V, axis1=1, axis2=2).sum())) / (abs(smooth) or 1.0)  # 0: a linear loss

    square = parts[0].square.mean(axis=0)
    replicon = perron_root_of_replicon_map(problem, square, responses)
    with progress_step("error bar of the replicon"):
        error = _replicon_error_bar(problem, overlaps, averages, solved_by, rules, parts, replicon, displacements)
    if replicates:
        weights = [
            _conjugate_fraction_from_jumps(m, slope) for m, slope in zip(own.moments, parts[0].slope, strict=True)
        ]
        weight_error = float(replicate_error_bar(np.array(weights)))
    else:
        first, *others = (_conjugate_fraction_from_jumps(own.means, part.slope[0]) for part in parts)
        weights, weight_error = [first], max(abs(v - first) / n for n, v in enumerate(others, 1))
    values, modes = (np.zeros(0), ()) if jacobian is None else describe_eigenmodes(jacobian, overlaps)
    stability = Stability(values, replicon, error, averages.bistable, float(np.mean(weights)), weight_error, modes)
    if not stability.has_jumps and (not stability.unstable or problem.inverse_temperature is not None):
        return stability
    lines = _choose_log2_line_count(problem) if log2_lines is None else log2_lines
    with progress_step("jumps of the proximal map"):
        jumps = find_proximal_jumps(problem, overlaps, lines) if stability.has_jumps else None
    budget.check_time_limit()
    if jumps is not None:
        smooth = abs(float(np.mean([_conjugate_trace_without_jumps(problem, slope) for slope in parts[0].slope])))
        direct, width = (value / (smooth or 1.0) for value in jumps.susceptibility_from_jumps(problem))
        if width < stability.jump_weight_error:
            stability = replace(stability, jump_weight=direct, jump_weight_error=width)
    linear = replicon_map_matrix(problem, square, responses)
    finite = ReplicaDistanceMap(problem, overlaps, prior_part_of_replicon_map(problem, responses))
    with progress_step("the self-overlap lost, from pairs of fields"):
        return replace(stability, jumps=jumps, self_overlap=find_largest_replica_distance(finite, linear, jumps, error))


def _replicon_error_bar(
    problem: Problem,
    overlaps: Overlaps,
    averages: SaddlePointAverages,
    solved_by: Rule,
    rules: tuple[Rule, ...],
    parts: list[JacobianAverages],
    replicon: float,
    displacements: Displacements,
) -> float:
    """Return the error bar of the replicon, due to its averages, the overlaps, and rounding.

    Spreads over equally many replicates are added replicate by replicate, or as independent where that is more.
    """
    square = parts[0].square.mean(axis=0)

    def _replicon_at_averages(at: Overlaps, moments: np.ndarray, squares: np.ndarray) -> float:
        return perron_root_of_replicon_map(
            problem, squares, mean_squared_prior_responses(problem, conjugates_from_overlaps(problem, at, moments))
        )

    rule = rules[0]
    by_rule = SaddlePointMap(problem, rule)

    def _replicon_by_rule(u: np.ndarray) -> float:
        at = Overlaps.unpack(u, overlaps.sizes)
        return _replicon_at_averages(
            at, by_rule.channel_averages(at).means, rule.jacobian_averages(problem, at).square.mean(axis=0)
        )

    # Weights that do not add up to one limit the accuracy.
    error = max(ROUNDING, abs(averages.mass - 1)) * replicon
    spreads: list[np.ndarray] = []
    try:
        if len(parts[0].square) > 1:
            spreads.append(
                np.array([_replicon_at_averages(overlaps, averages.means, one) for one in parts[0].square]) - replicon
            )
        else:
            differences = [0.0]
            for other, part in zip(rules[1:], parts[1:], strict=True):
                means = (
                    SaddlePointMap(problem, other).channel_averages(overlaps).means
                    if rule == solved_by
                    else averages.means
                )
                differences.append(
                    abs(_replicon_at_averages(overlaps, means, part.square[0]) - replicon) / len(differences)
                )
            error += DIFFERENCE_SAFETY * max(differences)
        if len(averages.moments) > 1:
            spreads.append(
                np.array([_replicon_at_averages(overlaps, one, square) for one in averages.moments]) - replicon
            )
        here = (
            replicon
            if rule == solved_by
            else _replicon_at_averages(overlaps, by_rule.channel_averages(overlaps).means, square)
        )
    except DomainError:
        return np.inf
    if len(averages.moments) == 1:
        error += abs(here - replicon)  # the conjugates by the rule that solved, and by that of the slopes
    changes = displacements.changes_at_displacements(_replicon_by_rule, here)
    if displacements.replicated and np.all(np.isfinite(changes)):
        spreads.append(changes)
    else:
        error += displacements.error_bar_of_changes(changes)
    # With few nodes replicates may cancel one another by chance: never less than if the parts were independent.
    apart = float(np.sqrt(sum(float(replicate_error_bar(each)) ** 2 for each in spreads)))
    counts = {len(each) for each in spreads}
    together = [np.sum([each for each in spreads if len(each) == count], axis=0) for count in counts]
    error += max(apart, sum(float(replicate_error_bar(each)) for each in together))
    return error


def _choose_log2_line_count(problem: Problem) -> int:
    """Return log2 of the number of lines per replicate on which jumps are sought."""
    times = problem.tokens * problem.student_rank * len(problem.label_choices) / 2
    return max(3, JumpSearchOptions.current().log2_lines - max(0, round(float(np.log2(times)))))


def replicons_by_replicate(problem: Problem, hats: Conjugates, squares: np.ndarray) -> np.ndarray:
    """Return the replicon (Perron root of the replicon map) of every replicate, (R,).

    Args:
        problem: problem that gives the laws of labels and of the spectrum.
        hats: conjugates.
        squares: E[G (x) G] of every replicate, (R, ...), see `replicon_map_matrix`.
    """
    responses = mean_squared_prior_responses(problem, hats)
    return np.array([perron_root_of_replicon_map(problem, square, responses) for square in squares])


def replicon_error_from_conjugates(
    problem: Problem, overlaps: Overlaps, averages: SaddlePointAverages, rule: Rule, square: np.ndarray
) -> float:
    """Return the part of the replicon's error bar that comes from the conjugates.

    Args:
        problem: problem that was solved.
        overlaps: overlaps of the solution.
        averages: averages from which the conjugates follow.
        rule: rule of these averages.
        square: E[G (x) G] at the overlaps, see `replicon_map_matrix`.
    """

    def _replicons_from_moments(moments: np.ndarray) -> np.ndarray:
        hats = [conjugates_from_overlaps(problem, overlaps, one) for one in moments]
        return np.array([replicons_by_replicate(problem, each, square[None])[0] for each in hats])

    try:
        if len(averages.moments) > 1:
            return float(replicate_error_bar(_replicons_from_moments(averages.moments)))
        finer = SaddlePointMap(problem, rule.finer_rule()).channel_averages(overlaps)
        here, there = _replicons_from_moments(np.stack([averages.means, finer.means]))
        return DIFFERENCE_SAFETY * float(abs(there - here))
    except DomainError:
        return np.inf


def perron_root_of_replicon_map(problem: Problem, square: np.ndarray, responses: np.ndarray) -> float:
    """Return the replicon: the Perron root of `replicon_map_matrix`.

    Args:
        problem: problem that gives the laws of labels and of the spectrum.
        square: E[G (x) G], see `replicon_map_matrix`.
        responses: E[J (x) J], see there.
    """
    return float(np.max(np.abs(np.linalg.eigvals(replicon_map_matrix(problem, square, responses)))))
