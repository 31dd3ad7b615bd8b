"""The saddle-point map u -> G(u) with broken replica symmetry at given Parisi parameters y, and its free entropy.

With V~ = V + y Delta and V~^ = V^ - y Delta^, level by level, all formulas are those without breaking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...base import budget
from ...base.errors import InputError
from ...integration.tilted_sums import TiltedAverages, TiltedRule
from ...problems.overlaps import Conjugates, Overlaps, packed_vector_length, upper_triangle_indices
from ...problems.problem import Problem
from ...problems.symmetry import NO_SYMMETRY, StateSymmetry
from ...saddle_point.state_map import conjugates_from_overlaps
from .rows import WeightRowAverages, weight_row_averages
from .rules import quadrature_rules_for_breaking
from .state import BrokenSymmetryState


@dataclass(frozen=True)
class MapEvaluation:
    """The saddle-point map with K levels of broken replica symmetry, evaluated at one state.

    Attributes:
        image: state to which the map leads.
        averages: averages over the channel at the state.
        hats: conjugate order parameters of the K + 1 levels, from the outermost to the innermost.
        rows: averages over rows of the weights W at these conjugate order parameters.
        free_entropy: free entropy, stationary at the saddle point.
        slopes: partial derivatives of the free entropy in the Parisi parameters, (K levels,).
    """

    image: BrokenSymmetryState
    averages: TiltedAverages
    hats: tuple[Conjugates, ...]
    rows: WeightRowAverages
    free_entropy: float
    slopes: np.ndarray

    def data_and_penalty_energies(self, problem: Problem) -> tuple[float, float]:
        """Return the loss on the training data and the penalty per d; at the saddle point their sum is the energy."""
        penalty = 0.0 if problem.regulariser.keeps_norms else self.rows.penalty()
        return problem.alpha * self.averages.loss, penalty


@dataclass(frozen=True)
class BrokenSymmetryMap:
    """The saddle-point map with broken replica symmetry: from a state and Parisi parameters to the next state.

    Attributes:
        problem: the problem.
        rule: quadrature rule for averages over the channel.
        symmetry: symmetry of the states.

    Raises:
        InputError: replica symmetry breaking is not implemented for the model.
    """

    problem: Problem
    rule: TiltedRule
    symmetry: StateSymmetry = NO_SYMMETRY

    def __post_init__(self) -> None:
        require_breaking_supported(self.problem)

    def __call__(self, state: BrokenSymmetryState, rates: np.ndarray) -> MapEvaluation:
        """Evaluate the saddle-point map at a state.

        Args:
            state: the state.
            rates: Parisi parameter of every level, (levels,), outermost first.

        Raises:
            DomainError: the state, or the one that follows, is outside the domain of the overlaps.
        """
        budget.check_time_limit()
        problem, between = self.problem, state.between
        found = self.rule.tilted_averages(problem, between, state.distances, rates)
        outer, *within = (conjugates_from_overlaps(problem, between, moments) for moments in found.moments)
        # The others differ from the first in q^ alone; V_(k+1)^ = V_k^ + y_k (q_k^ - q_(k-1)^).
        hats = [outer]
        for y, inner in zip(rates, within, strict=True):
            hats.append(replace(inner, V=hats[-1].V + y * (inner.q - hats[-1].q)))
        rows = weight_row_averages(problem, hats, rates, self.rule)
        phi, slopes = self._free_entropy_and_derivatives(state, rates, found, hats, rows)
        return MapEvaluation(BrokenSymmetryState(rows.between, rows.distances), found, tuple(hats), rows, phi, slopes)

    def fix_quadrature_at_state(self, state: BrokenSymmetryState, rates: np.ndarray) -> BrokenSymmetryMap:
        """Return the same map with a quadrature rule whose grids are adapted to one state and then kept fixed.

        Args:
            state: the state.
            rates: Parisi parameter of every level, (levels,).
        """
        return replace(self, rule=self.rule.with_grids_of_state(state.between, state.distances, rates))

    def symmetric_directions(self, state: BrokenSymmetryState) -> np.ndarray:
        """Return directions, one per row, that span the packed states with the symmetry of the map."""
        from scipy.linalg import block_diag  # slow to load

        sizes = state.overlap_sizes
        count = packed_vector_length(sizes)
        of_overlaps = self.symmetry.basis_of_invariant_states(sizes, count)
        numbered = Overlaps.unpack(np.arange(1.0, count + 1), sizes)
        rows, columns = upper_triangle_indices(sizes[1])
        places = numbered.q[:, rows, columns].ravel().astype(int) - 1  # of q among the overlaps
        along = of_overlaps[np.abs(of_overlaps[:, places]).sum(axis=1) > 0][:, places]
        return np.asarray(block_diag(of_overlaps, *[along] * len(state.distances)))

    def _free_entropy_and_derivatives(
        self,
        state: BrokenSymmetryState,
        rates: np.ndarray,
        averages: TiltedAverages,
        hats: Sequence[Conjugates],
        rows: WeightRowAverages,
    ) -> tuple[float, np.ndarray]:
        """Return the free entropy and its derivatives in the Parisi parameters (docs/theory.md (18.8), (18.19))."""
        between, outer, alpha = state.between, hats[0], self.problem.alpha
        variances = state.variances_of_breaking_levels(rates)
        trace = float(np.sum(outer.V * between.q) - np.sum(outer.q * variances[0])) / 2
        trace -= float(np.sum(outer.m * between.m) + np.sum(outer.theta * between.theta))
        gaps = -np.diff([float(np.sum(hat.V * V)) for hat, V in zip(hats, variances, strict=True)]) / (2 * rates)
        free = np.append(averages.free, -averages.moreau)
        phi = trace + float(gaps.sum()) + rows.free + alpha * float(free[0])
        moved = [
            float(np.sum((y * inner.q - inner.V) * distance)) / 2
            for y, inner, distance in zip(rates, hats[1:], state.distances, strict=True)
        ]
        slopes = rows.slopes + (alpha * np.diff(free) - gaps - moved) / rates
        if averages.drift is not None:
            # By docs/theory.md (18.34) for V~^: (18.15) would add most of the noise of the slope.
            stein = float(np.sum(outer.V * state.overlap_difference))
            slopes = slopes - (alpha * averages.drift + stein) / (2 * rates)
        return phi, slopes


def require_breaking_supported(problem: Problem) -> None:
    """Raise InputError if replica symmetry breaking is not implemented for a problem.

    Not implemented are: a finite temperature; a loss with kinks in several student fields, or with overlaps or trained
    numbers; a penalty of more than two columns that is neither a ridge nor fixes norms.
    """
    name = problem.solver.name
    problem.require_zero_temperature("replica symmetry breaking is solved")
    quadrature_rules_for_breaking(problem)
    if not problem.regulariser.is_quadratic and problem.student_rank > 2:
        raise InputError(
            "replica symmetry breaking is implemented for ridges and fixed norms, and for other penalties of one or "
            f"two columns; {name} has {problem.student_rank} columns"
        )
    if problem.solver.model.HOLDS_Q or problem.trained:
        raise InputError(
            f"replica symmetry breaking is implemented for losses that depend on the fields alone; the loss of {name} "
            "contains overlaps or trained numbers (`sf.trained`)"
        )
