"""
Hidden units that specialise
============================

A student of two hidden units learns from a teacher of two, and each of its units follows one of the teacher's.
Saad, Solla, Phys. Rev. E 52 (1995) 4225; Aubin et al., arXiv 1806.05451.
"""

# %%
# Soft committees with hidden units erf are in the catalogue, with label noise and a ridge.
import matplotlib.pyplot as plt
import numpy as np

import saddleforge as sf

problem = sf.problem("committee_machine", alpha=8.0)
solution = sf.solve(problem, "specialised", accuracy=2e-2)
assert solution.success

# %%
# **Closed form** of the error, a sum of arcsines of the overlaps of all pairs of units.


def closed_form(q, theta):
    """E (sum erf(Y / sqrt 2) - sum erf(X / sqrt 2))^2 / 2 of units whose overlaps are q, theta and the identity."""
    lengths = 1 + np.diag(q)
    students = np.arcsin(q / np.sqrt(np.outer(lengths, lengths))).sum()
    teachers = 2 * np.arcsin(1 / 2)
    mixed = np.arcsin(theta / np.sqrt(2 * lengths)[:, None]).sum()
    return (students + teachers - 2 * mixed) / np.pi


q, theta = solution.overlaps.q[0], solution.overlaps.theta[0]
assert abs(solution.test_error - closed_form(q, theta)) < 1e-6

# %%
# **Simulation** of 100 inputs, two standard errors, from that start and from one that treats all units alike. With few
# samples these stay alike and err more. With more, the data of a finite d tell them apart in some runs, hence the bar,
# then in all.
alphas = (4.0, 8.0, 16.0)
fig, ax = plt.subplots(figsize=(6.4, 4))
for start in ("specialised", "unspecialised"):
    runs = [sf.simulate(problem.with_(alpha=a), d=100, seeds=4, start=start, threads=1) for a in alphas]
    errors = [run.estimate("test_error") for run in runs]
    means, widths = np.array([(error.mean, 2 * error.standard_error) for error in errors]).T
    ax.errorbar(alphas, means, widths, fmt="o-", lw=0.7, label=f"d = 100, {start}")
    if start == "specialised":
        print(f"test error {solution.test_error:.5f}, simulated {means[1]:.5f} +- {widths[1] / 2:.5f}")
        assert abs(means[1] - solution.test_error) < 2 * widths[1] + 0.05 * solution.test_error
        least = means
    else:
        assert means[0] > 1.5 * least[0]

ax.plot([8], [solution.test_error], "kD", label="theory, specialised")
ax.set(xlabel="α = n / d", ylabel="test error", yscale="log")
fig.tight_layout()
ax.legend()
plt.show()
