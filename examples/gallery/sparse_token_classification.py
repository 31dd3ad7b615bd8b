"""
A signal in one token
=====================

Half of all sentences hold a signal, in one token that differs from sentence to sentence. A logistic classifier of the
mean token dilutes it; attention can weigh the token that has it. After Barnfield, Cui, Lu, arXiv 2509.25153.
"""

# %%
# The clusters of the two tokens say where the signal is: nowhere, in the first, or in the second.
import matplotlib.pyplot as plt
import numpy as np
import sympy as sp
from scipy.stats import norm

import saddleforge as sf


def signal_in_one(structure, *, nu=sf.Parameter(9, 0, doc="squared length of the signal")):
    """Tokens N(0, I), moved by the signal where they are of cluster 2."""
    there = sp.Matrix([0, 1, 0, 1])
    labels = ["1/2", "1/4", "1/4", 0]
    return sf.Tokens(weights=[1], covariance=[[1] * 4], labels=labels, means=nu * there * there.T, teacher=[[1]])


def label(k):
    """Whether there is a signal, +1 or -1."""
    return sf.by_label(k[0], sf.by_label(k[1], -1, 1), 1)


def attended(h):
    """Values, the second column of W, weighed by a softmax of the keys, the first."""
    return (sf.softmax(h[:, 0].T) * h[:, 1])[0]


def pooled(h):
    """The mean token."""
    return (h[0] + h[1]) / 2


def wrong(score):
    """Share of wrong signs."""
    return lambda h, k, b: (1 - label(k) * sp.sign(score(h) + b)) / 2


common = {"tokens": 2, "clusters": 2, "law": signal_in_one, "regulariser": sf.Ridge(0.1)}


@sf.model(
    **common,
    student=2,
    metric=wrong(attended),
    starts={"positional": sf.Start(encodings=((0, 0.4, 0, 0.4), (0, 0.4, 0, 0.4)))},
)
def attention_classifier(X, k, *, b=sf.trained(0, 0.01)):
    """Logistic loss of what attention returns, with a trained offset."""
    return sf.softplus(-label(k) * (attended(X) + b))


@sf.model(**common, metric=wrong(pooled), starts={"positional": sf.Start(encodings=((0, 0.4, 0, 0.4),))})
def pooled_classifier(X, k, *, b=sf.trained(0, 0.01)):
    """Logistic loss of the mean token, with a trained offset."""
    return sf.softplus(-label(k) * (pooled(X) + b))


# %%
# **Closed form** for the mean token: Gaussian tails around the offset.
alphas = np.geomspace(1, 16, 9)
curve = sf.curve(sf.problem(pooled_classifier), start="positional", over="alpha", values=alphas, accuracy=1e-6)
for solution in curve.solutions:
    m, deviation, b = solution.overlaps.m[1, 0], np.sqrt(solution.overlaps.q[0].item() / 2), solution.overlaps.phi[0]
    exact = (norm.cdf(b / deviation) + norm.cdf(-(m / 2 + b) / deviation)) / 2
    assert abs(solution.test_error - exact) < 1e-6

# %%
# **Simulation** of 100 inputs for attention.
problem = sf.problem(attention_classifier, alpha=6.0)
attention = sf.solve(problem, "positional", accuracy=3e-2)
runs = sf.simulate(problem, d=100, seeds=6, start="positional", threads=1)
error = runs.estimate("test_error")
print(f"attention: {attention.test_error:.4f}, simulated {error.mean:.4f} +- {error.standard_error:.4f}")
assert attention.success and abs(error.mean - attention.test_error) < 4 * error.standard_error + 0.05 * error.mean

fig, ax = plt.subplots(figsize=(6.4, 4))
ax.semilogx(curve.values, [solution.test_error for solution in curve.solutions], "o-", label="mean token")
ax.plot([6.0], [attention.test_error], "C1D", ms=9, label="attention")
ax.errorbar([6.0], [error.mean], [2 * error.standard_error], fmt="k.", capsize=4, label="attention, d = 100")
ax.set(xlabel="α = n / d", ylabel="test error", ylim=(0, 0.5))
ax.legend()
plt.show()
