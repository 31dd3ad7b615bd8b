"""The methods that train weights of finite d, a module each; `auto` chooses the first that is exact for a problem."""

from __future__ import annotations

from ..method import TrainingMethod
from . import adam, fista, gamp, gd, lbfgs, newton, sgd

METHODS: dict[str, TrainingMethod] = {m.METHOD.name: m.METHOD for m in (lbfgs, gd, adam, fista, newton, gamp, sgd)}


def exact_training_method(loss_corners: bool = False, penalty_corners: bool = False, norms: bool = False) -> str:
    """Return the name of the first training method that reaches exact minima for a loss and penalty.

    Args:
        loss_corners: whether the loss has kinks.
        penalty_corners: whether the penalty has kinks.
        norms: whether norms of the columns of W are given.
    """
    return next(
        name
        for name, method in METHODS.items()
        if method.loss_corners >= loss_corners and method.penalty_corners >= penalty_corners and method.norms >= norms
    )
