"""
A denoising autoencoder
=======================

Inputs x = s + n hold a signal s from two clusters and noise n. The network f(x) = b x + W tanh(W^T x / sqrt d) / sqrt d
gives back the signal: how much is the part next to the skip connection worth? After Cui, Zdeborova, arXiv 2305.11041.
"""

# %%
# The squared error of f(x) is of order d, and b alone decides its leading part: b is the signal's share of the
# variance. What W does is of order one, which is the loss to write (docs/guide.md). Signal and noise are two tokens.
import matplotlib.pyplot as plt
import numpy as np
import sympy as sp
from scipy.optimize import minimize

import saddleforge as sf


def signal_and_noise(structure, *, sigma=sf.Parameter(0.5, 0), noise=sf.Parameter(0.5, 0), length=sf.Parameter(2, 0)):
    """s = +- mu + sigma z with |mu| = length; n = noise z'. The teacher's field is a formality, there are no labels."""
    signs = sp.Matrix([1, -1, 0, 0])
    covariance = [[sigma**2, sigma**2, noise**2, noise**2]]
    labels = ["1/2", 0, "1/2", 0]
    return sf.Tokens(
        weights=[1], covariance=covariance, labels=labels, means=length**2 * signs * signs.T, teacher=[[1]]
    )


def gained(h, Q, sigma, noise):
    """|s - f(x)|^2 - |s - b x|^2."""
    x, b = h[0] + h[1], sigma**2 / (sigma**2 + noise**2)
    return -2 * (h[0] - b * x) * sp.tanh(x) + sp.tanh(x) ** 2 * Q[1][0, 0] / noise**2


@sf.model(
    tokens=2,
    clusters=2,
    law=signal_and_noise,
    regulariser=sf.Ridge(0.1),
    metric=gained,
    starts={"positional": sf.Start(encodings=((0.4, -0.4, 0, 0),), susceptibility=1)},
)
def denoiser(X, Q, sigma, noise):
    """Half the squared error beyond that of the skip connection."""
    return gained(X, Q, sigma, noise) / 2


alphas = np.array([1.0, 1.5, 2.0, 3.0, 4.0])
curve = sf.curve(sf.problem(denoiser), start="positional", over="alpha", values=alphas, accuracy=1e-3)
assert len(curve.solutions) == len(alphas) and all(solution.success for solution in curve.solutions)

# %%
# **Closed form** by the overlaps: s - b x is the mean's share and noise that x does not tell, and one integral is left.
x, weights = np.polynomial.hermite_e.hermegauss(120)
for solution in curve.solutions:
    m, q = solution.overlaps.m[0, 0], solution.overlaps.q[0].item()  # of signal and of noise alike
    hidden = np.tanh(m + np.sqrt(2 * q) * x)
    exact = weights @ (hidden**2 * q / 0.5**2 - m * hidden) / np.sqrt(2 * np.pi)
    assert abs(solution.test_error - exact) < 1e-6


# %%
# **Simulation** written apart, without a word of the theory: the whole network on 200 inputs, b trained with W.
def trained(alpha, seed, d=200, ridge=0.1):
    """What the hidden unit gains on fresh inputs, and b."""
    rng = np.random.default_rng(seed)
    mean = 2 * np.eye(d)[0]

    def draw(n):
        signal = rng.choice([-1, 1], (n, 1)) * mean + 0.5 * rng.normal(size=(n, d))
        return signal, signal + 0.5 * rng.normal(size=(n, d))

    def gain(w, b, s, x):
        t = np.tanh(x @ w / np.sqrt(d))
        return t, -2 * t * ((s - b * x) @ w) / np.sqrt(d) + t**2 * (w @ w) / d

    s, x = draw(int(alpha * d))

    def risk(p):
        w, b = p[:-1], p[-1]
        (t, gained), rest = gain(w, b, s, x), s - b * x
        slope = (1 - t**2) * (t * (w @ w) / d - rest @ w / np.sqrt(d)) / np.sqrt(d)
        gradient = slope @ x - t @ rest / np.sqrt(d) + (t @ t) * w / d + ridge * w
        by_b = (t * (x @ w)).sum() / np.sqrt(d) - (rest * x).sum()
        return ((rest**2).sum() + gained.sum() + ridge * w @ w) / 2, np.append(gradient, by_b)

    begin = np.append(0.4 * np.sqrt(d) * mean / 2 + 0.3 * rng.normal(size=d), 0.5)
    found = minimize(risk, begin, jac=True, method="L-BFGS-B", options={"maxiter": 3000}).x
    return gain(found[:-1], found[-1], *draw(5000))[1].mean(), found[-1]


points = np.array([[trained(alpha, seed) for seed in range(6)] for alpha in alphas])
means, deviations = points.mean(axis=1), points.std(axis=1, ddof=1) / np.sqrt(6)
for solution, mean, deviation in zip(curve.solutions, means[:, 0], deviations[:, 0], strict=True):
    print(f"alpha = {solution.problem.alpha}: {solution.test_error:.4f}, simulated {mean:.4f} +- {deviation:.4f}")
    assert abs(mean - solution.test_error) < 4 * deviation + 0.01
assert np.allclose(means[:, 1], 0.5, atol=0.02)  # E |s|^2 / E |x|^2, as 4 / d vanishes

fig, ax = plt.subplots(figsize=(6.4, 4))
ax.plot(alphas, [solution.test_error for solution in curve.solutions], label="theory")
ax.errorbar(alphas, means[:, 0], 2 * deviations[:, 0], fmt="ko", capsize=4, label="whole network, d = 200")
ax.set(xlabel="α = n / d", ylabel="|s - f(x)|² - |s - b x|²")
ax.legend()
plt.show()
