"""
Random features
===============

A first layer of random weights that are not trained, a ridge regression on its outputs: more features than samples need
not hurt. Mei, Montanari, Commun. Pure Appl. Math. 75 (2022) 667; Gerace, Loureiro, Krzakala, Mezard, Zdeborova,
arXiv 2002.09339.
"""

# %%
# The features tanh(F x / sqrt d) are replaced by Gaussian ones of the same covariance. What the theory needs of them is
# a spectrum with the teacher's variance along each eigenvalue, and the part of the label that no linear function of the
# features holds, which is noise. The weights are those of the last layer: alpha = n / p.
import matplotlib.pyplot as plt
import numpy as np

import saddleforge as sf

per_input, noise, ridge = 1.5, 0.05, 1e-3  # samples over input dimensions n / d, variance of label noise, lambda


def theory(ratio, ridge=ridge):
    """The test error at p / d = ratio."""
    found = sf.random_features(ratio)
    chosen = {"spectrum": found.spectrum, "Delta": noise + found.unexplained, "lambda_": ridge}
    return sf.solve(sf.problem("ridge_regression", alpha=per_input / ratio, **chosen)).test_error


# %%
# **Check** against the regression itself, features and all, at d = 200.
def regression(ratio, seed, d=200):
    """The test error of one draw of features, teacher and data."""
    rng = np.random.default_rng(seed)
    n, p = round(per_input * d), round(ratio * d)
    F, teacher = rng.normal(size=(p, d)), rng.normal(size=d)
    teacher /= np.linalg.norm(teacher)
    x, fresh = rng.normal(size=(n, d)), rng.normal(size=(4000, d))
    A, B = (np.tanh(z @ F.T / np.sqrt(d)) / np.sqrt(p) for z in (x, fresh))
    y = x @ teacher + np.sqrt(noise) * rng.normal(size=n)
    w = A.T @ np.linalg.solve(A @ A.T + ridge * np.eye(n), y)
    return np.mean((B @ w - fresh @ teacher) ** 2) + noise


measured = {ratio: [regression(ratio, seed) for seed in range(24)] for ratio in (0.5, 1.0, 3.0, 6.0)}
for ratio, errors in measured.items():
    mean, width = np.mean(errors), np.std(errors, ddof=1) / np.sqrt(len(errors))
    print(f"p / d = {ratio}: regression {mean:.4f} +- {width:.4f}, theory {theory(ratio):.4f}")
    assert abs(mean - theory(ratio)) < 4 * width + 0.02 * mean

# %%
# The peak is near where there are as many features as samples; a stronger ridge takes it away.
ratios = np.sort(np.append(np.geomspace(0.2, 10, 18), [1.4, 1.45, 1.5, 1.55, 1.6]))  # n = 1.5 d
fig, ax = plt.subplots(figsize=(6.4, 4))
for strength in (ridge, 0.1):
    ax.plot(ratios, [theory(ratio, strength) for ratio in ratios], label=f"λ = {strength:g}")
means = [np.mean(errors) for errors in measured.values()]
ax.errorbar(list(measured), means, [np.std(e, ddof=1) / np.sqrt(24) for e in measured.values()], fmt="ko", capsize=3)
ax.axvline(per_input, color="k", ls=":", label="p = n")
ax.set(xlabel="p / d", ylabel="test error", xscale="log", ylim=(0, 1.5))
ax.legend()
plt.show()
