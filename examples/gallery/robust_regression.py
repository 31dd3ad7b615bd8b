"""
Robust regression among outliers
================================

A share of the labels knows nothing of the teacher and is spread wide. Huber's loss is quadratic near zero and linear
beyond a width: how wide should it be, and how strong the ridge? Vilucchio, Troiani, Erba, Krzakala, arXiv 2305.18974.
"""

# %%
# The noise `v` chooses between inliers and outliers; everything else is a loss in one residual.
import matplotlib.pyplot as plt
import numpy as np
import sympy as sp

import saddleforge as sf


@sf.model(
    noise={"z": sf.GaussianNoise(1), "v": sf.DiscreteNoise((0, 1), lambda Y, share: (1 - share, share))},
    regulariser=sf.Ridge(0.398),
    metric=lambda h, Y: (h[0] - Y[0]) ** 2,
    starts={"informed": sf.Start(teacher=0.6)},
)
def among_outliers(X, Y, z, v, *, share=0.3, Delta_in=1.0, Delta_out=5.0, width=0.964):
    """Huber's loss of labels of which a share is noise alone."""
    inlier, outlier = Y[0] + sp.sqrt(Delta_in) * z, sp.sqrt(Delta_out) * z
    r = (1 - v) * inlier + v * outlier - X[0]
    return (r**2 - sp.Max(0, sp.Abs(r) - width) ** 2) / 2


# %%
# **Published**: at alpha = 10 the least excess of the error is 0.24257, at lambda = 0.398 and width 0.964.
problem = sf.problem(among_outliers, alpha=10)
best = sf.solve(problem, accuracy=1e-9)
print(best.table())
assert best.status == "converged" and abs(best.test_error - 0.24257) < 5e-6

# %%
# Each of the two is the best for the other.
for parameter, published, bracket in (("lambda", 0.398, (0.3, 0.5)), ("width", 0.964, (0.8, 1.2))):
    found = sf.tune(problem, parameter, on="informed", bracket=bracket)
    print(f"{parameter}: {found.value:.4f}, published {published}")
    assert abs(found.value - published) < 5e-4

# %%
# A width of zero is the absolute loss, a large one the square: both are worse, over a wide range of alpha.
fig, ax = plt.subplots(figsize=(6.4, 4))
for width in (0.2, 0.964, 8.0):
    curve = sf.curve(sf.problem(among_outliers, width=width), over="alpha", values=np.geomspace(1, 30, 16))
    at = [solution.problem.alpha for solution in curve.solutions]
    ax.loglog(at, [solution.test_error for solution in curve.solutions], label=f"width {width}")
ax.plot(10, 0.24257, "ko", label="published")
ax.set(xlabel="α = n / d", ylabel="E (X - Y)²")
ax.legend()
plt.show()
