"""
Committees on He2 and on z1 z2
==============================

Hidden units erf are odd: with targets that are even, as He2(z) or z1 z2, they have nothing in common. Pairs of units
with opposed offsets have: the one target takes one pair, the other two. After Arnaboldi, Krzakala, Loureiro, Stephan,
arXiv 2305.18502, and Troiani, Dandi, Defilippis, Zdeborova, Loureiro, Krzakala,
arXiv 2405.15480.
"""

# %%
# A pair shares a column of W. The second layer, a, is trained along; the offset b is given.
import matplotlib.pyplot as plt
import numpy as np
import sympy as sp
from scipy.stats import multivariate_normal, norm

import saddleforge as sf


def erf(x):
    """A hidden unit."""
    return sp.erf(x / sp.sqrt(2))


def pair(x, b):
    """Two units with opposed offsets, less what they are at zero."""
    return 2 * erf(b) - erf(b + x) - erf(b - x)


def he2(z):
    """Second Hermite polynomial, of variance one."""
    return (z**2 - 1) / sp.sqrt(2)


common = {"regulariser": sf.Ridge(0.1), "noise": {"u": sf.GaussianNoise(variance="Delta")}}


def on_square(h, a, b):
    """A pair, from the least value of He2 on."""
    return a * pair(h[0], b) - 1 / sp.sqrt(2)


@sf.model(
    **common,
    metric=lambda h, Y, a, b: (he2(Y[0]) - on_square(h, a, b)) ** 2,
    starts={"informed": sf.Start(teacher=0.8)},
)
def square(X, Y, u, *, Delta=sf.Parameter(0.1, 0), b=sf.Parameter(1.5, 0), a=sf.trained(1.5, 0.1)):
    """Least squares on He2(z)."""
    return sf.half_square(he2(Y[0]) + u - on_square(X, a, b))


@sf.model(
    **common,
    student=2,
    teacher=2,
    metric=lambda h, Y, a, b: (Y[0] * Y[1] - a * (pair(h[0], b) - pair(h[1], b))) ** 2,
    starts={"informed": sf.Start(teacher=((0.6, 0.6), (0.6, -0.6)))},
)
def product(X, Y, u, *, Delta=sf.Parameter(0.1, 0), b=sf.Parameter(1.5, 0), a=sf.trained(1.5, 0.1)):
    """Least squares on z1 z2, which is ((z1 + z2)^2 - (z1 - z2)^2) / 4."""
    return sf.half_square(Y[0] * Y[1] + u - a * (pair(X[0], b) - pair(X[1], b)))


@sf.model(
    **common,
    metric=lambda h, Y: (he2(Y[0]) - erf(h[0])) ** 2,
    starts={"uninformed": sf.Start(noise=0.6)},
)
def odd(X, Y, u, *, Delta=sf.Parameter(0.1, 0)):
    """Least squares of one unit on He2(z)."""
    return sf.half_square(he2(Y[0]) + u - erf(X[0]))


alphas = (4.0, 6.0, 8.0)
squares = [sf.solve(sf.problem(square, alpha=alpha), accuracy=1e-3) for alpha in alphas]
units = [sf.solve(sf.problem(odd, alpha=alpha), "uninformed", accuracy=1e-3) for alpha in alphas]
both = sf.solve(sf.problem(product, alpha=7.0), accuracy=3e-2)
assert all(solution.success for solution in (*squares, *units, both))


# %%
# **Closed form.** Units are Gaussian probabilities, products of two are those of a quadrant, and what a pair has in
# common with z^2 is its second derivative (Stein).
def of_pairs(b, q):
    """Of the pairs of two fields of covariance q: means, mean of the product, means of the second derivatives."""
    size, apart = 1 + np.diag(q), q[0, 1]
    unit, top = 2 * norm.cdf(b / np.sqrt(size)) - 1, 2 * (2 * norm.cdf(b) - 1)
    quadrants = [multivariate_normal.cdf([b, b], cov=[[size[0], c], [c, size[1]]]) for c in (apart, -apart)]
    products = sum(2 * (4 * quadrant - unit.sum() - 1) for quadrant in quadrants)
    bends = 2 * np.sqrt(2 / np.pi) * b * size**-1.5 * np.exp(-(b**2) / (2 * size))
    return top - 2 * unit, top**2 - 2 * top * unit.sum() + products, bends


for solution in squares:
    q, theta, a = (block.item() for block in (solution.overlaps.q, solution.overlaps.theta, solution.overlaps.phi))
    means, own, bends = of_pairs(1.5, np.full((2, 2), q))
    exact = 1.5 - np.sqrt(2) * a * (theta**2 * bends[0] + means[0]) + a**2 * own
    assert abs(solution.test_error - exact) < 1e-8

for solution in units:
    q = solution.overlaps.q.item()
    assert solution.overlaps.theta.item() == 0
    assert abs(solution.test_error - 1 - 2 / np.pi * np.arcsin(q / (1 + q))) < 1e-8

q, theta, a = both.overlaps.q[0], both.overlaps.theta[0], both.overlaps.phi.item()
squared = [of_pairs(1.5, np.full((2, 2), size))[1] for size in np.diag(q)]
_, mixed, bends = of_pairs(1.5, q)
exact = 1 - 2 * a * (theta.prod(axis=1) * bends) @ [1, -1] + a**2 * (sum(squared) - 2 * mixed)
assert abs(both.test_error - exact) < 1e-4

# %%
# **Simulation** of 100 inputs, two standard errors.
fig, ax = plt.subplots(figsize=(6.4, 4))
kinds = (("odd unit on He2", units), ("pair on He2", squares), ("two pairs on z1 z2", [both]))
for k, (name, solutions) in enumerate(kinds):
    places = [solution.problem.alpha for solution in solutions]
    runs = [sf.simulate(s.problem, d=100, seeds=6, start=s.start, threads=1) for s in solutions]
    errors = [run.estimate("test_error") for run in runs]
    for solution, error in zip(solutions, errors, strict=True):
        print(f"{name}, alpha = {solution.problem.alpha}: {solution.test_error:.4f}, simulated "
              f"{error.mean:.4f} +- {error.standard_error:.4f}")  # fmt: skip
        assert abs(error.mean - solution.test_error) < 4 * error.standard_error + 0.05 * solution.test_error
    ax.plot(places, [s.test_error for s in solutions], f"C{k}D-", ms=5, label=f"{name}, theory")
    bars = [2 * error.standard_error for error in errors]
    ax.errorbar(places, [error.mean for error in errors], bars, fmt=f"C{k}.", capsize=4, label=None if k else "d = 100")
ax.axhline(1, color="k", lw=0.7, ls=":", label="a constant")
ax.set(xlabel="α = n / d", ylabel="test error", yscale="log")
ax.legend(ncols=2, fontsize="small")
fig.tight_layout()
plt.show()
