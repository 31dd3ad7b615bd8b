"""Averages over the channel: several rules behind one interface, each with an error estimate."""

from __future__ import annotations

from ..errors import InputError
from .averages import Averages, Rule
from .lines import Lines
from .prox_space import ProxSpace
from .sampled import GaussHermite, Sobol, SparseGrid

RULES = ("gauss-hermite", "sobol", "prox-space", "lines", "sparse-grid")


def rule_named(name: str, points: int | None = None, seed: int = 0) -> Rule:
    """A rule by its name on the command line; `points` an axis (Gauss-Hermite, prox-space, lines), log2 (Sobol), level.

    Raises:
        InputError: no such rule.
    """
    if name == "gauss-hermite":
        return GaussHermite(points or 16)
    if name == "sobol":
        return Sobol(points or 13, seed=seed)
    if name == "prox-space":
        return ProxSpace(points or 80, max(16, (points or 80) // 2))
    if name == "lines":
        return Lines(points or 32)
    if name == "sparse-grid":
        return SparseGrid(points or 4)
    raise InputError(f"no integrator {name!r}; known are auto, {', '.join(RULES)}")


__all__ = ["RULES", "Averages", "GaussHermite", "Lines", "ProxSpace", "Rule", "Sobol", "SparseGrid", "rule_named"]
