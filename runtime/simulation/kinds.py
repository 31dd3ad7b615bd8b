"""What kind of state weights of finite d are in."""

from __future__ import annotations

import numpy as np

from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.starts import branch_of

_CLEAR = 4.0


def kind_of(problem: Problem, d: int, overlaps: Overlaps) -> str:
    """semantic, positional, mixed or uninformed: by which of theta and m exceed four deviations of their noise."""
    law, contexts = problem.law, problem.contexts
    q = np.abs(np.diagonal(overlaps.q, axis1=1, axis2=2))
    tau = np.einsum("a,aii->i", law.weights, law.gram)[:contexts]
    # Of weights that know nothing of tau or pi: E m^2 = E w^2 E tau^2 / d, E theta^2 = q rho* / d.
    m = np.sqrt(np.max(q / law.rho[:, None]) * np.max(tau) / d)
    theta = np.sqrt(np.max(q) * np.abs(law.rho_star).max() / d)
    noise = Overlaps(
        q=np.zeros_like(overlaps.q),
        V=np.zeros_like(overlaps.q),
        m=np.full_like(overlaps.m, _CLEAR * m),
        theta=np.full_like(overlaps.theta, _CLEAR * theta),
        phi=np.zeros_like(overlaps.phi),
    )
    return branch_of(overlaps, noise.pack())
