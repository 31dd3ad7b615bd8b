"""
From theory to a figure of a paper
==================================

Theory as a line, simulation as points with error bars, and the appendix that derives it: everything that a figure
needs, from one model. The example is Huber's loss with noise.
"""

# %%
# **Theory.** A curve with error bars; it is kept in a file, from which figures can be drawn again.
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import saddleforge as sf

folder = Path(tempfile.mkdtemp())
problem = sf.problem("huber_regression")
curve = sf.curve(problem, over="alpha", values=np.geomspace(0.7, 6, 12))
curve.save(folder / "theory.nc")
print(curve.to_pandas()[["alpha", "test_error", "test_error_error", "verdict"]].round(5).tail(3))

# %%
# **Simulation** of the same model: data drawn from its law, the risk minimised, seed by seed. Deviations are
# in combined standard errors.
compared = sf.compare(sf.curve(problem, over="alpha", values=(1.0, 2.0, 4.0)), d=200, seeds=12, threads=1)
print(compared.table())
deviations = [one.deviation for found in compared.measurements() for one in found.values()]
assert np.nanmax(np.abs(deviations)) < 5

# %%
# **The appendix.** Free entropy and saddle point in the symbols of the paper, with the replica calculation, numbered
# equations and a page of those to code by.
appendix = sf.derivation("huber_regression", names={"theta": "T"}).latex()
(folder / "appendix.tex").write_text(appendix)
assert r"\tableofcontents" in appendix and r"\tag{\ref{eq:" in appendix

# %%
# **A table** for the text, with errors in the last digits.
print(sf.curve(problem, over="alpha", values=(1.0, 2.0)).to_latex(names={"theta": "T"}))

# %%
# **The figure.** `compared.plot("figure.pdf")` draws a finished one; by hand it is a line and `errorbar`.
fig, ax = plt.subplots(figsize=(6.4, 4))
ax.plot(curve.values, [s.test_error for s in curve.solutions], label="theory")
points = [found["test_error"] for found in compared.measurements()]
ax.errorbar(
    compared.values, [p.mean for p in points], [p.standard_error for p in points], fmt="ko", capsize=3, label="d = 200"
)
ax.set(xlabel="α = n / d", ylabel="test error", ylim=(0, None))
ax.legend()
plt.show()
