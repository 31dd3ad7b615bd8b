"""
A learning curve of your own data
=================================

Given inputs as an array, which curve does the theory draw for ridge regression on them, and does it follow?
"""

# %%
# Any array of samples will do. Here inputs have eigenvalues that fall like a power, and are not Gaussian: products of
# signs and of a random matrix.
import matplotlib.pyplot as plt
import numpy as np

import saddleforge as sf

rng = np.random.default_rng(0)
d, pool = 200, 20000
scale = 3 * np.arange(1, d + 1) ** -0.4
x = rng.choice([-1.0, 1.0], size=(pool, d)) * scale @ np.linalg.qr(rng.normal(size=(d, d)))[0]

# %%
# `from_arrays` estimates the law that the theory needs: the spectrum of the covariance, in bins, and the means.
law = sf.Tokens.from_arrays(x, atoms=50)
ridge, Delta = 0.5, 0.25
curve = sf.curve(
    sf.problem("ridge_regression", law=law, Delta=Delta, lambda_=ridge), alpha=(0.25, 4, 16), accuracy=1e-6
)

# %%
# The regression itself: a teacher, noisy labels, draws of n = alpha d samples, and the error on all of the pool. In the
# units of the theory fields are x . w / sqrt d.
alphas, seeds = (0.25, 0.5, 1, 2, 4), 40
points = []
for alpha in alphas:
    errors = []
    for _ in range(seeds):
        teacher, chosen = rng.normal(size=d), rng.permutation(pool)[: int(alpha * d)]
        A = x[chosen] / np.sqrt(d)
        y = A @ teacher + np.sqrt(Delta) * rng.normal(size=len(chosen))
        w = np.linalg.solve(A.T @ A + ridge * np.eye(d), A.T @ y)
        errors.append(np.mean((x @ (w - teacher)) ** 2) / d + Delta)
    points.append((np.mean(errors), np.std(errors, ddof=1) / np.sqrt(seeds)))
means, widths = np.transpose(points)

# %%
# **Check**: every point within four standard errors of the curve.
theory = [
    sf.solve(sf.problem("ridge_regression", alpha=alpha, law=law, Delta=Delta, lambda_=ridge)).test_error
    for alpha in alphas
]
for alpha, mean, width, error in zip(alphas, means, widths, theory, strict=True):
    print(f"alpha = {alpha:4}: regression {mean:.4f} +- {width:.4f}, theory {error:.4f}")
    assert abs(mean - error) < 4 * width

fig, ax = plt.subplots(figsize=(6.4, 4))
at = [solution.problem.alpha for solution in curve.solutions]
ax.plot(at, [solution.test_error for solution in curve.solutions], label="theory, from the spectrum")
ax.errorbar(alphas, means, widths, fmt="o", capsize=3, label=f"regression, d = {d}")
ax.set(xlabel="α = n / d", ylabel="test error", xscale="log", ylim=(0, None))
ax.legend()
plt.show()
