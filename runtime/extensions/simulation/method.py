"""A method that trains weights of finite d: its capabilities, its function, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from .instance import Instance
from .plan import SimulationPlan
from .risk import Risk, RiskValue, Weights


@dataclass(frozen=True)
class PolishRecord:
    """A record of the polishing of one minimum: the search for lower secondary minima of single samples.

    Attributes:
        wrong_before: fraction of samples with a lower secondary minimum before polishing.
        wrong_after: the same fraction after polishing, when moving such samples no longer lowers the risk.
        gained: decrease of the training loss per d.
        descents: number of minimisations.
        deeper: number of restarts that lowered the training loss.
        seconds: wall time in seconds.
        memory: peak memory of the process in bytes.
    """

    wrong_before: float
    wrong_after: float
    gained: float
    descents: int
    deeper: int = 0
    seconds: float = field(default=np.nan, compare=False)
    memory: float = field(default=np.nan, compare=False)


@dataclass(frozen=True)
class TrainingResult:
    """A result of training: the weights that a method ends with, and how it ended.

    Attributes:
        value: risk and gradient at these weights; parts of a risk that was not evaluated are nan.
        gradient: root mean square over the weights of the gradient of the risk, whose entries are of order one away
            from a minimum; for `fista` of the proximal residual, and for `newton` the larger of its two residuals.
        status: converged, max_iterations, not_finite, left_domain, trivial (W = 0), or stalled: rounding of the
            loss hides any further descent (L-BFGS compares losses, which say nothing of gradients below about 1e-7).
        slopes: subgradients of the loss at every sample, (n, L, s); None if the weights determine them.
        V: responses ((token, cluster) pairs, s, s) of message passing (gamp); None for other methods.
        late: squared distance of late iterates of gamp, see `GampTrajectory`; nan for other methods.
        contraction: replicon measured by gamp; nan for other methods.
        path: overlaps at the iterations of gamp, or at the recording times of sgd; None for other methods.
        polish: record of polishing; None if nothing was polished.
    """

    weights: Weights
    value: RiskValue
    gradient: float
    iterations: int
    status: str
    slopes: np.ndarray | None = None
    V: np.ndarray | None = None
    late: float = np.nan
    contraction: float = np.nan
    path: np.ndarray | None = None
    polish: PolishRecord | None = None


@dataclass(frozen=True)
class DescentSettings:
    """Stopping criteria and step size of a minimisation of the risk.

    Attributes:
        tolerance: largest root mean square of the gradient at which a minimum counts as converged.
        most: largest number of iterations.
        rate: step size; for gd in units of the inverse of the largest curvature; None for the method's default.
    """

    tolerance: float = 1e-6
    most: int = 20000
    rate: float | None = None

    def make_training_result(
        self, weights: Weights, value: RiskValue, gradient: float, iterations: int, slopes: np.ndarray | None = None
    ) -> TrainingResult:
        """Return the result of training by minimisation, with its status, such as converged or stalled.

        Args:
            weights: last weights.
            value: risk at these weights.
            gradient: root mean square of the gradient of the risk.
            iterations: number of iterations done.
            slopes: subgradients of the loss at every sample; None if the weights determine them.
        """
        if not (np.isfinite(gradient) and np.isfinite(weights.W).all()):
            status = "not_finite"
        elif gradient <= self.tolerance:
            status = "converged"
        else:
            status = "max_iterations" if iterations >= self.most else "stalled"
        return TrainingResult(weights, value, gradient, iterations, status, slopes)


@dataclass(frozen=True)
class TrainingMethod:
    """A method that trains weights, with its capabilities.

    Attributes:
        name: name of the method for `--method`.
        minimise: function that minimises the risk from given weights; None for a method that trains by `train`.
        train: function that trains the weights of an instance by a plan; None for a method that minimises.
        loss_corners: whether its results are exact at kinks of the loss.
        penalty_corners: whether its results are exact at kinks of the penalty.
        any_penalty: whether it takes penalties other than a ridge.
        norms: whether it keeps given norms of the columns.
        q_in_loss: whether it takes losses that depend on the overlaps q.
        trained_numbers: whether it trains numbers with the weights.
        fixes_overlaps: whether it can fix overlaps at zero.
        one_pass: whether it uses every sample once, in batches, and so does not end at a minimum. It may start from
            weights with given overlaps, and its learning rate may change in time.
        check: function that raises InputError for a plan that the method cannot run.
        summary: description of a method that does not minimise the risk.
        rate: unit of the step size, if there is one.
    """

    name: str
    minimise: Callable[[Risk, Weights, DescentSettings], TrainingResult] | None = None
    train: Callable[[SimulationPlan, Instance], TrainingResult] | None = None
    loss_corners: bool = False
    penalty_corners: bool = False
    any_penalty: bool = True
    norms: bool = False
    q_in_loss: bool = False
    trained_numbers: bool = False
    fixes_overlaps: bool = False
    one_pass: bool = False
    check: Callable[[SimulationPlan], None] | None = None
    summary: str = ""
    rate: str = ""

    @property
    def can_be_polished(self) -> bool:
        """Whether a minimum can be polished (moved to lower minima): the method restarts from any weights."""
        return self.minimise is not None

    @property
    def ends_at_minimum(self) -> bool:
        """Whether the training method ends at a minimum of the training loss."""
        return not self.one_pass


gradient_method = partial(TrainingMethod, norms=True, q_in_loss=True, trained_numbers=True, fixes_overlaps=True)
"""A method that uses the gradient of the risk only."""
