"""
Two groups, one model
=====================

A linear model is fitted to people of two groups. What predicts the label differs between them, and one group is small.
Who pays for sharing the weights? After Sarao Mannelli, Gerace, Rostamzadeh, Saglietti, arXiv 2205.15935.
"""

# %%
# A label k names the group of a sample; the two teachers, one column each, overlap. The ridge is the only thing shared.
import matplotlib.pyplot as plt
import numpy as np
import sympy as sp

import saddleforge as sf


def groups(structure, *, minority=sf.Parameter(0.2, 0, 1), overlap=sf.Parameter(0.5, -1, 1, True, True)):
    """Standard normal inputs, two teachers, and how often each group is seen."""
    rows = sp.Matrix([[1, overlap], [overlap, 1]])
    return sf.Tokens(weights=[1], covariance=[[1, 1]], labels=[1 - minority, minority], teacher=rows)


@sf.model(
    clusters=2,
    teacher=2,
    law=groups,
    regulariser=sf.Ridge(0.1),
    noise={"u": sf.GaussianNoise(variance="Delta")},
    starts={"informed": sf.Start(teacher=((0.3, 0.3),))},
)
def two_groups(X, Y, k, u, *, Delta=sf.Parameter(0.1, 0)):
    """Least squares on the labels of whichever teacher the group has."""
    return sf.by_label(k[0], sf.half_square(Y[0] + u - X[0]), sf.half_square(Y[1] + u - X[0]))


# %%
# The error of a group follows from its overlap: 1 - 2 theta_g + q.
alpha, shares = 3.0, np.linspace(0.02, 0.5, 9)
solutions = [sf.solve(sf.problem(two_groups, alpha=alpha, minority=share), accuracy=1e-8) for share in shares]
assert all(solution.status == "converged" for solution in solutions)
q = np.array([solution.overlaps.q[0, 0].item() for solution in solutions])
theta = np.array([solution.overlaps.theta[0, 0].ravel() for solution in solutions])
errors = 1 - 2 * theta + q[:, None]

# %%
# **Closed form.** Least squares sees one teacher, the mean of the two by their shares, and what a label differs from it
# is noise, whose variance is the error that the mean itself makes.
ridge, Delta, overlap = 0.1, 0.1, 0.5
b = ridge + alpha - 1
V = 2 / (b + np.sqrt(b * b + 4 * ridge))
s = alpha * V**2 / (1 + V) ** 2
mean = np.stack([1 - shares + shares * overlap, (1 - shares) * overlap + shares], axis=1)
square = (1 - shares) * mean[:, 0] + shares * mean[:, 1]
residue = (ridge**2 * V**2 * square + s * (Delta + 1 - square)) / (1 - s)
gain = 1 - ridge * V
q_exact = residue - square + 2 * gain * square
assert np.allclose(theta, gain * mean, rtol=1e-7)
assert np.allclose(q, q_exact, rtol=1e-7)

fig, ax = plt.subplots(figsize=(6.4, 4))
for column, name in enumerate(("majority", "minority")):
    (line,) = ax.plot(shares, errors[:, column], "o", label=name)
    ax.plot(shares, 1 - 2 * gain * mean[:, column] + q_exact, color=line.get_color(), lw=1)
ax.set(xlabel="share of the minority", ylabel="error beyond the noise", ylim=(0, None))
ax.legend()
plt.show()
