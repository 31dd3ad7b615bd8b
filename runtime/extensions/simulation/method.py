"""A method that trains weights of finite d: its capabilities, its function, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from .instance import Instance
from .plan import Plan
from .risk import Risk, Value, Weights


@dataclass(frozen=True)
class Polish:
    """A record of what polishing did to one minimum.

    Attributes:
        wrong_before, wrong_after: shares of the samples in wrong wells; those after are left because moving them does
            not lower the risk.
        gained: training loss per d before less after.
        descents: minimisations it took; deeper: restarts among them that ended lower.
        seconds, memory: of wall time, and bytes that the process held at the most.
    """

    wrong_before: float
    wrong_after: float
    gained: float
    descents: int
    deeper: int = 0
    seconds: float = field(default=np.nan, compare=False)
    memory: float = field(default=np.nan, compare=False)


@dataclass(frozen=True)
class Trained:
    """The weights that a method ends with.

    Attributes:
        value: the risk and its gradient there; parts of a risk that was not evaluated are nan.
        gradient: root mean square over the weights of the gradient of the risk, whose entries are of order one away
            from a minimum; of `fista`, of the proximal residual, and of `newton`, the larger of its two.
        status: converged, max_iterations, not_finite, left_domain, collapsed (to W = 0), or stalled: rounding of the
            loss hides any further descent (L-BFGS compares losses, which say nothing of gradients below about 1e-7).
        slopes: of the loss at every sample, (n, L, s), at a corner one of many; None where weights tell them.
        V: (C, s, s), of gamp; late, contraction: of gamp, see `Trajectory`; nan of other methods.
        path: overlaps at the times of gamp's iterations, or of a pass; None of other methods.
        polish: what polishing did; None where nothing was polished.
    """

    weights: Weights
    value: Value
    gradient: float
    iterations: int
    status: str
    slopes: np.ndarray | None = None
    V: np.ndarray | None = None
    late: float = np.nan
    contraction: float = np.nan
    path: np.ndarray | None = None
    polish: Polish | None = None


@dataclass(frozen=True)
class Descent:
    """The options of a descent.

    Attributes:
        tolerance: of the gradient norm, see `Trained`; most: iterations.
        rate: step of gd in units of the inverse of the largest curvature, of adam in those of the weights.
    """

    tolerance: float = 1e-6
    most: int = 20000
    rate: float | None = None

    def ended(
        self, weights: Weights, value: Value, gradient: float, iterations: int, slopes: np.ndarray | None = None
    ) -> Trained:
        """Return where a descent has ended, with its status."""
        if not (np.isfinite(gradient) and np.isfinite(weights.W).all()):
            status = "not_finite"
        elif gradient <= self.tolerance:
            status = "converged"
        else:
            status = "max_iterations" if iterations >= self.most else "stalled"
        return Trained(weights, value, gradient, iterations, status, slopes)


@dataclass(frozen=True)
class Method:
    """A method that trains weights, with what it can do: all that the rest of the package knows of it.

    Attributes:
        name: as `--method` has it.
        minimise: goes down the risk from some weights; None of a method that trains in another way, by `train`.
        loss_corners, penalty_corners: whether its results are exact at corners of the loss and of the penalty.
        any_penalty: whether it takes penalties other than a ridge.
        norms: whether it keeps given norms of the columns.
        q_in_loss, trained_numbers: whether it takes losses of the overlaps q, and trains numbers with the weights.
        fixes_overlaps: whether it can fix overlaps at zero.
        one_pass: whether it sees every sample once, in batches, from weights of given overlaps, if asked for, and with
            a learning rate that may change in time. It ends at no minimum.
        check: raises InputError where a plan is none for it.
        summary: what it does, if it does not minimise the risk; rate: in which unit it takes one, if it does.
    """

    name: str
    minimise: Callable[[Risk, Weights, Descent], Trained] | None = None
    train: Callable[[Plan, Instance], Trained] | None = None
    loss_corners: bool = False
    penalty_corners: bool = False
    any_penalty: bool = True
    norms: bool = False
    q_in_loss: bool = False
    trained_numbers: bool = False
    fixes_overlaps: bool = False
    one_pass: bool = False
    check: Callable[[Plan], None] | None = None
    summary: str = ""
    rate: str = ""

    @property
    def can_be_polished(self) -> bool:
        """Return whether it can begin again from any weights."""
        return self.minimise is not None

    @property
    def ends_at_minimum(self) -> bool:
        """Return whether it ends where the gradient of the risk vanishes."""
        return not self.one_pass


gradient_method = partial(Method, norms=True, q_in_loss=True, trained_numbers=True, fixes_overlaps=True)
"""A method that asks for the gradient of the risk and nothing else."""
