"""
Gardner's capacity
==================

How many random labels can a perceptron learn, and how many are wrong beyond? Gardner, J. Phys. A 21 (1988)
257; Gardner, Derrida, J. Phys. A 21 (1988) 271.
"""

# %%
# Nobody taught the labels, so that all may be taken as +1. The weights have a given norm.
import matplotlib.pyplot as plt
import numpy as np
import sympy as sp
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

import saddleforge as sf


@sf.model(regulariser=sf.Sphere(), starts={"uninformed": sf.Start(noise=1, susceptibility=5)})
def random_labels(X, Y, *, kappa=0):
    """Number of samples within a margin kappa."""
    return sp.Heaviside(kappa - X[0, 0])


# %%
# **Published** least numbers of errors per d without a margin, replica symmetric.
published = {4.0: 0.2480130061, 6.0: 0.6314921352, 10.0: 1.5803088933}
for alpha, errors in published.items():
    solution = sf.solve(sf.problem(random_labels, alpha=alpha), "uninformed", accuracy=1e-10)
    print(f"alpha = {alpha:4}: {solution.training_loss:.10f}, published {errors}")
    assert abs(solution.training_loss - errors) < 6e-11


# %%
# **Closed form** with a margin: samples within sqrt(2 V) of it are moved to it; the capacity is where V diverges.
def closed_form(alpha, kappa):
    """Errors per d."""

    def missing(V):
        return alpha * quad(lambda t: norm.pdf(t) * (kappa - t) ** 2, kappa - np.sqrt(2 * V), kappa)[0] - 1

    return alpha * norm.cdf(kappa - np.sqrt(2 * brentq(missing, 1e-4, 1e4)))


def capacity(kappa):
    """One over the mean of (z + kappa)^2 over z > -kappa."""
    return 1 / quad(lambda z: norm.pdf(z) * (z + kappa) ** 2, -kappa, np.inf)[0]


fig, ax = plt.subplots(figsize=(6.4, 4))
for kappa in (0.0, 0.5, 1.0):
    alphas = np.linspace(capacity(kappa) + 0.4, 6, 12)
    problems = [sf.problem(random_labels, alpha=alpha, kappa=kappa) for alpha in alphas]
    found = [sf.solve(problem, "uninformed", accuracy=1e-6) for problem in problems]
    exact = np.array([closed_form(alpha, kappa) for alpha in alphas])
    assert np.allclose([solution.training_loss for solution in found], exact, atol=1e-7)
    (line,) = ax.plot(alphas, [s.training_loss / s.problem.alpha for s in found], "o", label=f"margin {kappa}")
    ax.plot(alphas, exact / alphas, color=line.get_color(), lw=1)
    ax.plot(capacity(kappa), 0, "|", color=line.get_color(), ms=20, mew=2)
ax.set(xlabel="α = n / d", ylabel="share of errors (bars: capacity)", xlim=(0, None), ylim=(0, None))
ax.legend()
plt.show()

# %%
# The verdict says what the points do not: replica symmetry does not hold beyond the capacity, and the true number of
# errors is larger. One step of breaking moves it; `sf.solve(problem, "uninformed", rsb=1)`.
print(found[-1].stability.verdict)
