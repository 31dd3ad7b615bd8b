"""
A learning curve of your own data
=================================

Inputs and labels as arrays: which curve does the theory draw for ridge regression on them, how far are they from what
it assumes, and do measured points follow?
"""

# %%
# Any arrays will do. Here inputs have eigenvalues that fall like a power, and are not Gaussian: products of signs and
# of a random matrix. Labels hold noise. The teacher is known to nobody below.
import matplotlib.pyplot as plt
import numpy as np

import saddleforge as sf

rng = np.random.default_rng(0)
d, pool = 200, 20000
scale = 3 * np.arange(1, d + 1) ** -0.4
x = rng.choice([-1.0, 1.0], size=(pool, d)) * scale @ np.linalg.qr(rng.normal(size=(d, d)))[0]
y = x @ rng.normal(size=d) / np.sqrt(d) + 0.5 * rng.normal(size=pool)

# %%
# The teacher is fitted on all of the arrays, then the law that the theory needs is estimated: the spectrum in bins,
# with the teacher's share in each. What is printed says how far the data are from that law.
fit = sf.fitted_teacher(x, y)
data = sf.law_of_data(x, teacher=fit)
print(f"noise {fit.noise:.4f}, explained {fit.explained:.3f}")
print(data)
assert data.binning < 1e-3 and abs(data.kurtosis[0]) < 0.2

# %%
# Eight bins, as one might think, are not enough for such a spectrum, and that is said with a number.
print(f"with 8 bins averages over the spectrum move by {sf.law_of_data(x, atoms=8).binning:.1%}")

# %%
# The regression itself: draws of n = alpha d samples, and the error on all others. In the units of the theory fields
# are x . w / sqrt d.
ridge = 0.5


def learner(x, y):
    """Ridge regression."""
    A = x / np.sqrt(d)
    w = np.linalg.solve(A.T @ A + ridge * np.eye(d), A.T @ y)
    return lambda fresh: fresh @ w / np.sqrt(d)


points = sf.learning_curve(x, y, learner, alphas=(0.25, 0.5, 1, 2, 4), draws=40)
found = sf.compare_measurements(sf.problem("ridge_regression", law=data.law, Delta=fit.noise, lambda_=ridge), points)
print(found)

# %%
# **Check**: every point within four standard errors of the curve.
assert np.all(np.abs(found.deviations) < 4)
fig, ax = plt.subplots(figsize=(6.4, 4))
ax.plot(
    found.curve.values, [solution.test_error for solution in found.curve.solutions], label="theory, from the arrays"
)
ax.errorbar(points.alphas, points.means, points.standard_errors, fmt="o", capsize=3, label=f"regression, d = {d}")
ax.set(xlabel="α = n / d", ylabel="test error", ylim=(0, None))
ax.legend()
plt.show()
