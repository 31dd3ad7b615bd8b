"""Half widths of the multipliers of given norms (docs/theory.md (6.6)).

They follow from the conjugates, and so from overlaps and averages: what moves a solution moves them through both. The
two parts are added, not set off against each other, so that a half width holds where only the averages are taken anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..errors import DomainError
from ..integration import Averages
from ..integration.estimates import two_standard_errors
from ..problems.overlaps import Overlaps
from ..saddle_point.state_map import StateMap

_ROUNDING = 16 * np.finfo(float).eps


@dataclass(frozen=True)
class Multipliers:
    """Strengths (s,) of the ridge that keeps given norms, around the overlaps and averages of a solution."""

    state_map: StateMap
    overlaps: Overlaps
    averages: Averages

    @cached_property
    def here(self) -> np.ndarray:
        """At the solution."""
        return self._by(self.overlaps, self.averages.means)

    @cached_property
    def rounding(self) -> np.ndarray:
        """What weights of the nodes that do not add up to one, and doubles, leave open: of the stiffness Lambda + G,
        of which the multipliers are a difference, (s,)."""
        hats = self.state_map.conjugates(self.overlaps, self.averages.means)
        softening = np.einsum("ac,cbb->ab", self.state_map.problem.law.gamma, hats.V)
        return (_ROUNDING + abs(self.averages.mass - 1)) * (np.abs(self.here) + np.abs(softening).max(axis=0))

    def moved(self, shift: np.ndarray, other: Averages | None = None) -> np.ndarray:
        """By how much overlaps that are moved by (n,), and other averages at the solution, change them, (s,).

        Infinite where the overlaps leave their domain: nothing is known.
        """
        try:
            by_averages = 0.0 if other is None else np.abs(self._by(self.overlaps, other.means) - self.here)
            return by_averages + np.abs(self._at(self.state_map, shift) - self.here)
        except DomainError:
            return np.full_like(self.here, np.inf)

    def spread(self, shifts: np.ndarray) -> np.ndarray:
        """Two standard errors of the replicates of a rule, which move the overlaps by (R, n)."""
        at_once = np.array([self._by(self.overlaps, moments) for moments in self.averages.moments])
        try:
            there = [
                self._at(replace(self.state_map, rule=self.state_map.rule.replicate(number)), shift)
                for number, shift in enumerate(shifts)
            ]
        except DomainError:
            return np.full_like(self.here, np.inf)
        return two_standard_errors(at_once) + two_standard_errors(np.array(there) - at_once)

    def half_widths(
        self,
        shifts: np.ndarray,
        others: Iterable[tuple[np.ndarray, Averages, float]],
        to_limit: Iterable[tuple[np.ndarray, Averages, float]],
        residual_shift: np.ndarray,
    ) -> np.ndarray:
        """Of a solution, (s,), counted as those of the overlaps.

        Args:
            shifts: of replicates, (R, n), where there is more than one.
            others: other rules: how far they would move the overlaps, their averages, and what they count for.
            to_limit: the same of parameters that are meant to vanish.
            residual_shift: how far what is left of the residual would move the overlaps, (n,).
        """
        widths = self.spread(shifts) if self.state_map.rule.replicated else np.zeros_like(self.here)
        for shift, other, factor in others:
            widths = np.maximum(widths, factor * self.moved(shift, other))
        for shift, other, factor in to_limit:
            widths = widths + factor * self.moved(shift, other)
        return widths + self.moved(residual_shift) + self.rounding

    def _by(self, overlaps: Overlaps, moments: np.ndarray) -> np.ndarray:
        found = self.state_map.problem.multipliers(self.state_map.conjugates(overlaps, moments))
        assert found is not None
        return found

    def _at(self, state_map: StateMap, shift: np.ndarray) -> np.ndarray:
        there = Overlaps.unpack(self.overlaps.pack() + shift, self.overlaps.sizes)
        return self._by(there, state_map.averages(there).means)
