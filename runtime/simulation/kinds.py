"""What kind of state weights of finite d are in, and what tells of kinds: overlaps that are there by chance."""

from __future__ import annotations

import numpy as np

from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.starts import branch_of

_CLEAR = 4.0


def fluctuations(problem: Problem, overlaps: Overlaps, d: int) -> Overlaps:
    """Standard deviations, of order 1/sqrt(d), of the overlaps of weights of this size that know nothing of tau or pi.

    E m^2 = E w^2 E tau^2 / d, E theta^2 = q rho* / d, and Var q = 2 q^2 / d; one value a block, zero for V and for
    numbers trained with the weights.
    """
    law = problem.law
    q = np.abs(np.diagonal(overlaps.q, axis1=1, axis2=2))
    tau = np.einsum("a,aii->i", law.weights, law.gram)[: problem.contexts]
    return Overlaps(
        q=np.full_like(overlaps.q, np.sqrt(2 / d) * np.max(q)),
        V=np.zeros_like(overlaps.q),
        m=np.full_like(overlaps.m, np.sqrt(np.max(q / law.rho[:, None]) * np.max(tau) / d)),
        theta=np.full_like(overlaps.theta, np.sqrt(np.max(q) * np.abs(law.rho_star).max() / d)),
        phi=np.zeros_like(overlaps.phi),
    )


def kind_of(problem: Problem, d: int, overlaps: Overlaps) -> str:
    """semantic, positional, mixed or uninformed: by which of theta and m exceed four deviations of their noise."""
    return branch_of(overlaps, _CLEAR * fluctuations(problem, overlaps, d).pack())
