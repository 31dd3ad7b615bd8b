"""
The phase transition of the LASSO
=================================

Without noise, the l1 norm finds a sparse vector exactly once there are enough measurements. Donoho, Tanner, PNAS 102
(2005) 9446; Donoho, Maleki, Montanari, PNAS 106 (2009) 18914.
"""

# %%
# The LASSO on a sparse teacher is in the catalogue. The smaller its penalty, the sharper the transition.
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize_scalar
from scipy.stats import norm

import saddleforge as sf


def line(density):
    """Measurements a dimension at the transition: minimax risk of soft thresholding."""

    def risk(t):
        zero = 2 * ((1 + t**2) * norm.cdf(-t) - t * norm.pdf(t))
        return density * (1 + t**2) + (1 - density) * zero

    return minimize_scalar(risk, bounds=(0, 5), method="bounded", options={"xatol": 1e-12}).fun


densities = (0.1, 0.2)
fig, ax = plt.subplots(figsize=(6.4, 4))
for density in densities:
    end, errors = line(density), {}
    alphas = end + np.array([-0.04, -0.03, -0.02, -0.01, 0.0, 0.01, 0.02, 0.03])
    for penalty in (1e-3, 1e-4):
        problem = sf.problem("lasso_regression", Delta=0.0, density=density, lambda_=penalty)
        found = [sf.solve(problem.with_(alpha=alpha), accuracy=1e-5) for alpha in alphas]
        # On the line itself the iteration slows down critically; a status says so, and the point is left out.
        errors[penalty] = np.array([s.test_error if s.success else np.nan for s in found])
    # Below the line a tenfold smaller penalty changes nothing, above it the error falls a hundredfold.
    ratio = errors[1e-3] / errors[1e-4]
    assert abs(ratio[0] - 1) < 0.05 and abs(ratio[-1] / 100 - 1) < 0.1
    (drawn,) = ax.semilogy(alphas, errors[1e-4], "o-", ms=3, label=f"density {density}")
    ax.semilogy(alphas, errors[1e-3], color=drawn.get_color(), lw=0.7)
    ax.axvline(end, color=drawn.get_color(), ls=":")
    print(f"density {density}: line at alpha = {end:.4f}, ratios of errors {ratio[0]:.3f} and {ratio[-1]:.1f}")
ax.set(xlabel="measurements a dimension", ylabel="test error (thin: ten times the penalty)")
ax.legend()
plt.show()
