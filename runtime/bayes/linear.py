"""Linear state evolution around a solution: in which directions the overlaps grow (docs/theory.md (13.9), (13.10)).

At q = 0 this is what samples teach a learner that knows nothing.
"""

from __future__ import annotations

import numpy as np

from ..errors import NotConvergedError
from .state import State


def growth(state: State) -> tuple[float, np.ndarray]:
    """Factor by which the leading small overlap grows from q = 0 in a step at alpha = 1, and that overlap, (C, t, t).

    The map is positive, so that it is iterated from rho* until its direction rests.
    """
    averages = state.channel.averages(np.zeros_like(state.rho), curved=True)
    matrix = state.jacobian(averages, 1.0)
    factor = radius(matrix)
    direction = state.pack(state.everything) / np.linalg.norm(state.pack(state.everything))
    if factor > 0:
        for _ in range(200):
            direction = (matrix @ direction) / factor + 1e-3 * direction
            direction /= np.linalg.norm(direction)
    return factor, state.unpack(direction)


def onset(state: State, factor: float) -> float:
    """alpha at which q = 0 becomes unstable, by the factor of `growth`.

    Raises:
        NotConvergedError: it never does.
    """
    if factor < 1e-12:
        raise NotConvergedError(f"q = 0 is a stable solution of {state.problem.solver.name} at every sample complexity")
    return 1 / factor


def radius(matrix: np.ndarray) -> float:
    """Largest modulus of an eigenvalue."""
    return float(np.max(np.abs(np.linalg.eigvals(matrix)))) if matrix.size else 0.0
