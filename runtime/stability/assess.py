"""Stability of a solution (docs/theory.md section 8): longitudinal spectrum, replicon, jumps of the proximal map."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base import budget, presenting
from ..base.deprecation import DeprecatedName, deprecated_attribute
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
    """The verdict on the stability of a solution, with the numbers that it rests on.

    Attributes:
        eigenvalues: eigenvalues of the saddle-point map's Jacobian, largest real part first. The solution is
            longitudinally stable if every real part is below 1. Empty if they were not computed.
        modes: in words, the overlaps that each eigenvector changes.
        replicon: largest eigenvalue of the replicon map without jumps; replica symmetry requires it to be below 1.
        replicon_error: error bar of the replicon, due to its averages, to the overlaps, and to rounding.
        bistable_fraction: probability that the Moreau objective has a second minimum.
        jump_weight: minus the contribution of jumps to the trace of V's conjugate, relative to the modulus of the rest.
        jump_weight_error: error bar of `jump_weight`.
        jumps: jumps of the proximal map; None if the bistable fraction is negligible.
        self_overlap: drop of the self-overlap (docs/theory.md (8.20)); None if it was not computed.
        slopes_by: how the Jacobian was computed, for instance by differences.
        longitudinal_error: error bar of the largest real part; nan if that is too far from 1 to matter.
    """

    eigenvalues: np.ndarray
    replicon: float
    replicon_error: float
    bistable_fraction: float
    jump_weight: float
    jump_weight_error: float
    modes: tuple[str, ...] = ()
    jumps: Jumps | None = None
    self_overlap: SelfOverlap | None = None
    slopes_by: str = "differences"
    longitudinal_error: float = np.nan

    @property
    def longitudinal(self) -> str:
        """Return the verdict on longitudinal stability: STABLE if all eigenvalues have a real part below 1.

        MARGINAL if the largest is 1 within its error bar, else UNSTABLE; STABLE if they were not computed
        (docs/theory.md (8.9)).
        """
        error = self.longitudinal_error if np.isfinite(self.longitudinal_error) else 0.0
        return stability_verdict(float(np.max(self.eigenvalues.real, initial=-np.inf)), error)

    @property
    def longitudinal_eigenvalue(self) -> float:
        """Return the largest real part of the eigenvalues of the saddle-point map's Jacobian; nan if not computed."""
        return float(np.max(self.eigenvalues.real)) if len(self.eigenvalues) else np.nan

    @property
    def longitudinally_stable(self) -> bool:
        """Return whether the verdict `longitudinal` is STABLE."""
        return self.longitudinal == STABLE

    bistable_share = deprecated_attribute("bistable_share", DeprecatedName("bistable_fraction", "0.1.0", "0.3.0"))

    @property
    def has_jumps(self) -> bool:
        """Return whether jumps of the proximal map matter: enough samples have two minima of the Moreau objective."""
        return self.bistable_fraction > NEGLIGIBLE_JUMPS

    @property
    def damping(self) -> float:
        """Return the largest weight of the new state, at most 1, with which damped iteration converges here; 0 if none.

        The weight must be below 2 (1 - Re x) / |1 - x|^2 for every eigenvalue x (docs/theory.md (8.8)).
        """
        gaps = 1 - self.eigenvalues
        if np.any(gaps.real <= 0):
            return 0.0
        return float(min(1.0, np.min(2 * gaps.real / np.abs(gaps) ** 2)))

    @property
    def self_overlap_loss(self) -> float:
        """Return the fraction of q by which the self-overlap drops; 0 if it was not computed."""
        return self.self_overlap.loss if self.self_overlap else 0.0

    @property
    def self_overlap_loss_error(self) -> float:
        """Return the error bar of the drop of the self-overlap (`self_overlap_loss`); 0 if it was not computed."""
        return self.self_overlap.error if self.self_overlap else 0.0

    @property
    def replica_symmetry(self) -> str:
        """Return the verdict on replica symmetry: STABLE, MARGINAL (replicon 1 within its error bar) or UNSTABLE.

        It is UNDECIDED if the replicon or its error bar is unknown.
        """
        if self.unstable:
            return UNSTABLE
        if not np.isfinite([self.replicon, self.replicon_error]).all():
            return UNDECIDED
        return stability_verdict(self.replicon, self.replicon_error)

    @property
    def unstable(self) -> str:
        """Return what makes replica symmetry unstable: "replicon", "jumps" (of the proximal map), or "" if stable."""
        if stability_verdict(self.replicon, self.replicon_error) == UNSTABLE:
            return "replicon"
        # However little is lost: the slope of the loss at D = 0 is infinite with jumps of any weight.
        lost = self.self_overlap_loss + self.self_overlap_loss_error
        return "jumps" if self.has_jumps and not lost < NEGLIGIBLE_LOSS else ""

    @property
    def verdict(self) -> str:
        """Return the verdict on replica symmetry (RS) and longitudinal stability in words.

        RS is stable, marginal, undecided, or unstable through the replicon or through jumps of the proximal map; the
        drop of the self-overlap follows where it was computed.
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
        """Return the drop of the self-overlap in words, as an upper bound if it is zero within its error bar."""
        loss, error = 100 * self.self_overlap_loss, 100 * self.self_overlap_loss_error
        if not 0 <= loss <= error < np.inf or error == 0:
            return f"overlap lost {format_value_with_error(loss, error)} %"
        digit = 10.0 ** np.floor(np.log10(loss + error))
        return f"overlap lost not resolved, at most {digit * np.ceil((loss + error) / digit - 1e-9):.1g} %"

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as the JSON object `stability` that the command line prints (docs/design.md section 5)."""
        return presenting.to_json(self)


def stability_verdict(value: float, error: float) -> str:
    """Return the verdict on a number that has to be below 1: STABLE, MARGINAL (1 within its error bar) or UNSTABLE.

    Args:
        value: the number.
        error: error bar of the number.
    """
    if value - error > 1:
        return UNSTABLE
    return STABLE if value + error < 1 else MARGINAL


def describe_eigenmodes(matrix: np.ndarray, overlaps: Overlaps) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the eigenvalues of the saddle-point map's Jacobian, largest real part first, with eigenvectors in words.

    The words name the overlaps (q, V, m, theta) or trained numbers that make up a fifth of the eigenvector or more,
    the largest first, and say whether the tokens change alike or against one another.

    Args:
        matrix: Jacobian in the packed overlaps, (components, components).
        overlaps: overlaps at which the Jacobian is taken.
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
    """Return in words whether an eigenvector changes one overlap alike or oppositely for the tokens; else ""."""
    rows = part.reshape(contexts, -1)
    if contexts == 1 or not np.abs(rows).max() > 0:
        return ""
    size = 0.05 * np.abs(rows).max()
    if np.abs(rows - rows.mean(axis=0)).max() < size:
        return ", tokens alike"
    return ", tokens opposed" if np.abs(rows.mean(axis=0)).max() < size else ""


def replicon_map_matrix(problem: Problem, square: np.ndarray, responses: np.ndarray) -> np.ndarray:
    """Return the matrix of the replicon map, which is linear in the distance D of two replicas in every context.

    It acts on all entries of D, (contexts, s, s); see docs/theory.md (8.11), (8.12).

    Args:
        problem: problem with the law of the tokens.
        square: averages, for every label assignment, of products G[la, l'b] G[le, l'f] of the Jacobian G = dg/domega,
            with axes l, l', a, e, b, f.
        responses: averages, for every spectral atom, of products J_ab J_ef of the derivative J = dw/db of a row w of W
            in its field, with axes a, b, e, f.
    """
    contexts, s = problem.contexts, problem.student_rank
    channel = np.zeros((contexts, s, s, contexts, s, s))
    for (labels, probability), blocks in zip(problem.label_probabilities, square, strict=True):
        at = problem.token_cluster_indices(labels)
        for l, c in enumerate(at):
            for r, d in enumerate(at):
                channel[c, :, :, d, :, :] += problem.alpha * probability * blocks[l, r]
    total = np.einsum("caedbf,dbfghk->caeghk", prior_part_of_replicon_map(problem, responses), channel)
    return total.reshape(contexts * s * s, contexts * s * s)


def prior_part_of_replicon_map(problem: Problem, responses: np.ndarray) -> np.ndarray:
    """Return the part of the replicon map due to the weights: from the conjugate of the distance D to the new D.

    Its axes are (contexts, s, s, contexts, s, s): entry [c, a, e, d, b, f] is the average over the spectrum of
    gamma_c gamma_d J_ab J_ef (docs/theory.md (8.12)).

    Args:
        problem: problem with the law of the tokens.
        responses: mean products of the responses J of the weights, see `mean_squared_prior_responses`.
    """
    law = problem.law
    return np.einsum("i,ic,id,iabef->caedbf", law.weights, law.gamma, law.gamma, responses)


def mean_squared_prior_responses(problem: Problem, hats: Conjugates) -> np.ndarray:
    """Return the mean products J_ab J_ef of the response J = dw/db of a row w of W to its field b, per spectral atom.

    Args:
        problem: problem with a regulariser.
        hats: conjugate order parameters at the solution.
    """
    out = np.empty((len(problem.law.weights), *[problem.student_rank] * 4))
    problem.prior_map_at_parameters("responses")(*hats.blocks, out)
    return out


def _conjugate_trace_without_jumps(problem: Problem, slope: np.ndarray) -> float:
    """Return the trace of the conjugate of V without the contribution of jumps, from the mean Jacobians dg/domega."""
    return -problem.alpha * sum(
        probability * float(np.trace(blocks, axis1=1, axis2=2).sum())
        for (_, probability), blocks in zip(problem.label_probabilities, slope, strict=True)
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
        rules: quadrature rules for averages of the Jacobian dg/domega: one with replicates, or one without and others
            to compare it with.
        jacobian: Jacobian of the saddle-point map; None leaves longitudinal stability out.
        averages: averages at the solution by the rule `solved_by`.
        solved_by: the quadrature rule that solved the problem.
        displacements: displacements of the overlaps that correspond to their error bars.
        log2_lines: base-2 logarithm of the lines per field, replicate and choice of labels; None: by number of fields.
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

    def _fraction_of_conjugates_from_jumps(moments: np.ndarray, slope: np.ndarray) -> float:
        smooth = _conjugate_trace_without_jumps(problem, slope)
        hats = state_map.conjugates_at_overlaps(overlaps, moments)
        return (smooth - float(np.trace(hats.V, axis1=1, axis2=2).sum())) / (abs(smooth) or 1.0)  # 0: a linear loss

    square = parts[0].square.mean(axis=0)
    replicon = perron_root_of_replicon_map(problem, square, responses)
    with progress_step("error bar of the replicon"):
        error = _replicon_error_bar(problem, overlaps, averages, solved_by, rules, parts, replicon, displacements)
    if replicates:
        weights = [
            _fraction_of_conjugates_from_jumps(m, slope) for m, slope in zip(own.moments, parts[0].slope, strict=True)
        ]
        weight_error = float(replicate_error_bar(np.array(weights)))
    else:
        first, *others = (_fraction_of_conjugates_from_jumps(own.means, part.slope[0]) for part in parts)
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
    """Return the error bar of the replicon due to its averages, to error bars of the overlaps, and to rounding.

    Deviations by replicates are added replicate by replicate, or as if independent if that gives more.
    """
    square = parts[0].square.mean(axis=0)

    def _replicon_at_averages(at: Overlaps, moments: np.ndarray, squares: np.ndarray) -> float:
        return perron_root_of_replicon_map(
            problem, squares, mean_squared_prior_responses(problem, conjugates_from_overlaps(problem, at, moments))
        )

    rule = rules[0]
    by_rule = SaddlePointMap(problem, rule)

    def _replicon_at_packed_overlaps(u: np.ndarray) -> float:
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
    changes = displacements.changes_at_displaced_overlaps(_replicon_at_packed_overlaps, here)
    if displacements.replicated and np.all(np.isfinite(changes)):
        spreads.append(changes)
    else:
        error += displacements.error_bar_from_changes(changes)
    # With few nodes replicates may cancel one another by chance: never less than if the parts were independent.
    apart = float(np.sqrt(sum(float(replicate_error_bar(each)) ** 2 for each in spreads)))
    counts = {len(each) for each in spreads}
    together = [np.sum([each for each in spreads if len(each) == count], axis=0) for count in counts]
    error += max(apart, sum(float(replicate_error_bar(each)) for each in together))
    return error


def _choose_log2_line_count(problem: Problem) -> int:
    """Return the base-2 logarithm of the number of lines per field and replicate on which jumps are sought."""
    times = problem.tokens * problem.student_rank * len(problem.label_probabilities) / 2
    return max(3, JumpSearchOptions.current().log2_lines - max(0, round(float(np.log2(times)))))


def replicons_by_replicate(problem: Problem, hats: Conjugates, squares: np.ndarray) -> np.ndarray:
    """Return the replicon, the largest eigenvalue of the replicon map, by every replicate, (replicates,).

    Args:
        problem: problem with the law of the tokens.
        hats: conjugate order parameters at the solution.
        squares: mean products of Jacobians by every replicate, each like `square` of `replicon_map_matrix`.
    """
    responses = mean_squared_prior_responses(problem, hats)
    return np.array([perron_root_of_replicon_map(problem, square, responses) for square in squares])


def replicon_error_from_conjugates(
    problem: Problem, overlaps: Overlaps, averages: SaddlePointAverages, rule: Rule, square: np.ndarray
) -> float:
    """Return the part of the replicon's error bar that is due to errors of the conjugate order parameters.

    Args:
        problem: problem that was solved.
        overlaps: overlaps of the solution.
        averages: channel averages that determine the conjugates.
        rule: quadrature rule of these averages.
        square: mean products of Jacobians, see `replicon_map_matrix`.
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
    """Return the replicon: the largest modulus of the eigenvalues of the replicon map.

    Args:
        problem: problem with the law of the tokens.
        square: mean products of Jacobians, see `replicon_map_matrix`.
        responses: mean products of the responses of the weights, see `replicon_map_matrix`.
    """
    return float(np.max(np.abs(np.linalg.eigvals(replicon_map_matrix(problem, square, responses)))))
