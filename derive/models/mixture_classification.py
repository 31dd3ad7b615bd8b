"""Multinomial logistic classification of a Gaussian mixture: the labels are the clusters."""

from typing import Any

import sympy as sp

from ..authoring.language import by_label, softmax
from ..authoring.model import model
from ..authoring.parameters import Parameter, Start, Structure, structural
from ..authoring.regulariser import Ridge
from ..authoring.tokens import Tokens, simplex_gram_matrix, uniform_label_probabilities
from ..errors import ModelError


def class_logits(fields: sp.Matrix, classes: int) -> sp.Matrix:
    """Return the logits of K classes, 1 x K, which are linear functions of K - 1 student fields and sum to zero.

    A common shift of all logits does not matter, so that K - 1 columns of W are enough.

    Args:
        fields: fields of the student, 1 x (K - 1).
        classes: number of classes K.

    Raises:
        ModelError: the number of fields is not K - 1.
    """
    if fields.shape[1] != classes - 1:
        raise ModelError(f"{classes} clusters need student_rank = {classes - 1}, not {fields.shape[1]}")
    return fields * simplex_orthonormal_frame(classes)


def simplex_orthonormal_frame(classes: int) -> sp.Matrix:
    """Return K - 1 orthonormal rows of length K, the number of classes; the entries of each row sum to zero."""
    frame = sp.zeros(classes - 1, classes)
    for a in range(classes - 1):
        norm = sp.sqrt((a + 1) * (a + 2))
        for j in range(a + 1):
            frame[a, j] = 1 / norm
        frame[a, a + 1] = -(a + 1) / norm
    return frame


def weight_columns_along_class_means(structure: Structure) -> tuple[tuple[sp.Expr, ...], ...]:
    """Return start values of W: for each column, one coefficient along the mean of each class."""
    if structure.student_rank != structure.clusters - 1:
        return ((sp.Integer(0),) * structure.clusters,) * structure.student_rank
    rows = (sp.Rational(2, 5) * simplex_orthonormal_frame(structure.clusters)).tolist()
    return tuple(tuple(row) for row in rows)


def class_means_gram_matrix(structure: Structure) -> tuple[tuple[sp.Rational, ...], ...]:
    """Return the Gram matrix of class means that are unit vectors to the corners of a regular simplex."""
    return simplex_gram_matrix(structure.replace(tokens=structure.clusters))


def gaussian_mixture_law(
    structure: Structure,
    *,
    sigma: Any = Parameter(1, low=0, open_low=True, doc="deviation of a coordinate within a class"),  # noqa: B008
    means: Any = Parameter(class_means_gram_matrix, doc="Gram matrix of the class means, K x K"),  # noqa: B008
    labels: Any = Parameter(uniform_label_probabilities, 0, 1, doc="probability of each class"),  # noqa: B008
) -> Tokens:
    """Return the data law of a mixture of isotropic Gaussians, one per class; the class label is the target.

    Args:
        structure: sizes of the model.
        sigma: standard deviation of a coordinate within a class, positive.
        means: Gram matrix of the class means, K x K.
        labels: probability of each class.
    """
    return Tokens(
        weights=[1],
        covariance=[[sigma**2] * structure.clusters],
        labels=list(labels),
        means=means,
        teacher=sp.eye(structure.teacher_rank),
    )


def zero_one_error(h: sp.Matrix, k: tuple[sp.Symbol, ...], structure: Structure) -> sp.Expr:
    """Return the classification error: 1 if another class than the true one has the largest logit, else 0.

    Args:
        h: fields of the student, 1 x (K - 1).
        k: labels of the tokens; k[0] is the class.
        structure: sizes of the model.
    """
    count = structure.clusters
    scores = class_logits(h, count)
    right = [sp.Mul(*[sp.Heaviside(scores[a] - scores[j]) for j in range(count) if j != a]) for a in range(count)]
    return 1 - by_label(k[0], *right)


@model(
    student=structural(1),
    clusters=structural(2, low=2),
    law=gaussian_mixture_law,
    regulariser=Ridge(0.1),
    metric=zero_one_error,
    starts={"positional": Start(encodings=weight_columns_along_class_means), "uninformed": Start(noise="3/5")},
)
def mixture_classification(X: sp.Matrix, k: tuple[sp.Symbol, ...], structure: Structure) -> sp.Expr:
    """Cross-entropy loss on a mixture of K Gaussians with a ridge penalty; set student_rank = K - 1.

    Source: Mignacco, Krzakala, Lu, Urbani, Zdeborova, ICML 2020, arXiv 2002.11544; Loureiro et al., arXiv 2106.03791
    """
    scores = class_logits(X, structure.clusters)
    return by_label(k[0], *[-sp.log(p) for p in softmax(scores)])
