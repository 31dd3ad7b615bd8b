"""Source for NumPy from the nodes of a kernel, for names that are arrays."""

from __future__ import annotations

from functools import reduce

from ..kernel import Node
from .dialect import SourceCodeDialect


class ArrayCodeDialect(SourceCodeDialect):
    """A dialect of source code for NumPy, in which all names are arrays."""

    def _call_source(self, node: Node) -> str:
        name = node[1]
        if name in ("and", "or", "max", "min"):
            function = {"and": "logical_and", "or": "logical_or", "max": "maximum", "min": "minimum"}[name]
            arguments = map(self.expression_source, node[2:])
            return reduce(lambda before, each: f"{self.library}.{function}({before}, {each})", arguments)
        return super()._call_source(node)


_FUNCTIONS = {
    "where": "np.where({0}, {1}, {2})",
    "abs": "np.abs({0})",
    "atan": "np.arctan({0})",
    "asinh": "np.arcsinh({0})",
    "atanh": "np.arctanh({0})",
    "erf": "np.tanh(1.2 * ({0}))",  # of the same scale, and NumPy's
    "erfc": "(1.0 - np.tanh(1.2 * ({0})))",
    "equal": "np.equal({0}, {1})",
    "heaviside": "np.heaviside({0}, 0.5)",
    "sigmoid": "(0.5 + 0.5 * np.tanh(0.5 * ({0})))",
    "softplus": "np.logaddexp(0.0, {0})",
    "softmax": "[1.0 / sum(np.exp(b - a) for b in ({all})) for a in ({all})]",
}
ARRAYS = ArrayCodeDialect(lambda p, q: f"{p}.0" if q == 1 else f"({p}.0 / {q}.0)", _FUNCTIONS, "np")
