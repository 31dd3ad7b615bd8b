"""
A law of the tokens
===================

What the theory must know of the inputs fits into one small matrix for each eigenvalue of their covariance. This page
writes one down and shows it.
"""

# %%
# A *context* is a token in one of its clusters; here one token and two. Which vectors there are (means of the contexts,
# encodings, rows of the teacher) is said by their products, pair by pair; what is not given is zero.
import matplotlib.pyplot as plt
import numpy as np
import sympy as sp

import saddleforge as sf


def opposite_means(structure, *, length=sf.Parameter(1, 0), overlap=0.3):
    """Two clusters of opposite means, which know something of the teacher."""
    signs = sp.Matrix([1, -1])
    return sf.Tokens(
        weights=[1],  # one eigenvalue, with probability one
        covariance=[[1, 1]],  # and this is it, in both contexts
        labels=["1/2", "1/2"],  # how often each cluster is drawn
        means=length**2 * signs * signs.T,  # mean . mean, contexts x contexts
        taught=overlap * signs,  # mean . teacher, contexts x columns of the teacher
        teacher=[[1]],  # teacher . teacher
    )


@sf.model(
    clusters=2,
    law=opposite_means,
    regulariser=sf.Ridge(0.1),
    metric=lambda h, Y: (h[0] - Y[0]) ** 2,
    starts={"informed": sf.Start(teacher=0.6)},
)
def regression(X, Y):
    """Least squares."""
    return sf.half_square(Y[0] - X[0])


# %%
# The package completes it to the Gram matrix of all vectors, one for each eigenvalue.
law = sf.problem(regression, alpha=1).law
names = ["mean, cluster 1", "mean, cluster 2", "teacher"]
fig, ax = plt.subplots(figsize=(5.2, 4))
shown = ax.imshow(law.gram[0], cmap="RdBu_r", vmin=-1, vmax=1)
for (i, j), value in np.ndenumerate(law.gram[0]):
    ax.text(j, i, f"{value:.2g}", ha="center", va="center")
ax.set_xticks(range(3), names, rotation=20)
ax.set_yticks(range(3), names)
fig.colorbar(shown)
fig.tight_layout()
plt.show()

# %%
# Its eigenvalues say whether such vectors exist: none may be negative. A law that breaks this is refused by name.
assert np.linalg.eigvalsh(law.gram[0]).min() > -1e-12
try:
    sf.problem(regression, alpha=1, overlap=1.5)
except sf.InputError as error:
    print(error)

# %%
# m is what the weights know of the means. By symmetry the clusters have it with opposite signs.
solution = sf.solve(sf.problem(regression, alpha=2))
print(solution.table())
m = solution.overlaps.m.ravel()
assert abs(m[0] + m[1]) < 1e-9
