"""A soft committee machine that learns from another one."""

from typing import Any

import sympy as sp

from ..authoring.language import half_square, square
from ..authoring.model import model
from ..authoring.parameters import GaussianNoise, Parameter, Start, Structure, structural
from ..authoring.regulariser import Ridge


def committee_output(fields: sp.Matrix) -> sp.Expr:
    """Return the output of a committee machine: its hidden units erf(x / sqrt 2) summed, over sqrt of their number."""
    return sum(sp.erf(x / sp.sqrt(2)) for x in fields) / sp.sqrt(len(fields))


def coefficients_of_equal_teacher_mixture(structure: Structure) -> tuple[tuple[str, ...], ...]:
    """Return start values in which every column of W is the same linear combination of all teacher columns."""
    return (("3/10",) * structure.teacher_rank,) * structure.student_rank


@model(
    student=structural(2),
    teacher=structural(2),
    noise={"u": GaussianNoise(variance="Delta")},
    regulariser=Ridge(0.01),
    metric=lambda h, Y: square(committee_output(Y) - committee_output(h)),
    starts={"specialised": Start(teacher="3/5"), "unspecialised": Start(teacher=coefficients_of_equal_teacher_mixture)},
)
def committee_machine(
    X: sp.Matrix,
    Y: sp.Matrix,
    u: sp.Symbol,
    *,
    Delta: Any = Parameter(0.01, 0, doc="variance of the label noise"),  # noqa: B008
) -> sp.Expr:
    """Square loss between two soft committee machines, hidden units erf(x / sqrt 2), and a ridge penalty.

    Source: Saad, Solla, Phys. Rev. E 52 (1995) 4225; Aubin et al., NeurIPS 2018, arXiv 1806.05451
    """
    return half_square(committee_output(Y) + u - committee_output(X))
