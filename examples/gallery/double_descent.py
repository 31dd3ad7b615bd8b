"""
Double descent of least squares
===============================

The test error of least squares rises to a peak where there are as many samples as weights, and falls again beyond it.
A ridge cuts the peak down, and the best ridge removes it. Proportional asymptotics: Dobriban, Wager, arXiv 1507.03003;
Hastie, Montanari, Rosset, Tibshirani, arXiv 1903.08560.
"""

# %%
# Ridge regression is in the catalogue: y = Y + z with noise of variance Delta, 1/2 (y - X)^2, inputs and teacher of
# variance one. The test error counts the noise of a fresh label.
import matplotlib.pyplot as plt
import numpy as np

import saddleforge as sf

noise, ridges = 0.25, (0.001, 0.05, 0.3)
curves = {
    ridge: sf.curve(sf.problem("ridge_regression", Delta=noise, lambda_=ridge), alpha=(0.2, 3, 43)) for ridge in ridges
}
best = sf.tuned_curve(sf.problem("ridge_regression", Delta=noise), "lambda", alpha=(0.2, 3, 8), on="informed")

# %%
# **Closed form.** V = 1 / (lambda + alpha / (1 + V)), and with s = alpha V^2 / (1 + V)^2 the excess of the error is
# (lambda^2 V^2 + s Delta) / (1 - s).


def closed_form(alpha, ridge):
    """The test error of a fresh sample, its noise included."""
    b = ridge + alpha - 1
    V = 2 / (b + np.sqrt(b * b + 4 * ridge))
    s = alpha * V**2 / (1 + V) ** 2
    return (ridge**2 * V**2 + s * noise) / (1 - s) + noise


for ridge, curve in curves.items():
    errors = np.array([solution.test_error for solution in curve.solutions])
    exact = closed_form(np.array([solution.problem.alpha for solution in curve.solutions]), ridge)
    assert np.allclose(errors, exact, rtol=1e-8)
    print(f"lambda = {ridge}: at most {np.max(np.abs(errors / exact - 1)):.1e} from the closed form, relative")

# %%
# The best ridge is the ratio of noise and signal, whatever alpha.
for optimum in best.optima:
    assert abs(optimum.value - noise) < 1e-3

fig, ax = plt.subplots(figsize=(6.4, 4))
for ridge, curve in curves.items():
    at = [solution.problem.alpha for solution in curve.solutions]
    ax.plot(at, [solution.test_error for solution in curve.solutions], label=f"λ = {ridge}")
ax.plot(
    [optimum.solution.problem.alpha for optimum in best.optima],
    [optimum.solution.test_error for optimum in best.optima],
    "k--",
    label="best λ",
)
ax.set(xlabel="α = n / d", ylabel="test error", ylim=(0, 3))
ax.legend()
plt.show()
