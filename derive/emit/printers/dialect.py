"""Python source from the nodes of a kernel; dialects differ in the format of numbers and in names of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..kernel import Kernel, Node

STABLE = (
    "log_sum_exp", "log_softplus", "sigmoid_over_softplus", "log_normal_cdf", "inverse_mills_ratio",
    "truncated_normal_mean", "log_gumbel_cdf", "gumbel_ratio",
)  # fmt: skip
_PRECEDENCE = {"add": 1, "mul": 2, "power": 3}
_INFIX = {
    "eq": "{0} == {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "where": "({1} if {0} else {2})",
    "pow": "({0}) ** ({1})",
    "abs": "abs({0})",
}


def kernel_source_lines(
    kernel: Kernel, expression: Callable[[Node], str], result: Callable[[Any, str], str] = "{} = {}".format
) -> list[str]:
    """Return the lines that evaluate a kernel, in a language with assignments `=` and comments `#`.

    Args:
        kernel: kernel whose code is returned.
        expression: function from a node to its source text.
        result: function from a result's name and expression to its source text; an assignment by default.
    """
    lines = [kernel.origin_comment] if kernel.origin_comment and kernel.results else []
    for statements, name, node in kernel.results_with_needed_statements:
        if statements:
            lines.append(f"# -> {name}")
        lines += [f"{', '.join(s.targets)} = {expression(s.expression)}" for s in statements]
        if node != ("name", name):
            lines.append(result(name, expression(node)))
    return lines


@dataclass(frozen=True)
class SourceCodeDialect:
    """A dialect of source code: how numbers and functions are written for NumPy, Numba or mpmath.

    Attributes:
        number: source of (numerator, denominator) that needs no parentheses in a product.
        functions: kernel function -> format of its arguments ({0}, {1}, ... and {all}), in addition to the common ones.
        library: module that contains the functions not in `functions`.
    """

    number: Callable[[int, int], str]
    functions: Mapping[str, str]
    library: str

    def expression_source(self, node: Node, parent: int = 0) -> str:
        """Return the source code of a node of an expression tree.

        Args:
            node: node of a kernel.
            parent: precedence of the enclosing operation; decides on parentheses.
        """
        kind = node[0]
        if kind == "number":
            text = self.number(node[1], node[2])
            return f"({text})" if node[1] < 0 and parent > 1 else text
        if kind == "name":
            return node[1]
        if kind == "add":
            text = " + ".join(self.expression_source(a, 1) for a in node[1:]).replace("+ -", "- ")
        elif kind == "mul":
            text = self._product_source(node)
        elif kind == "power":
            return self._power_source(node, parent)
        else:
            return self._call_source(node)
        return f"({text})" if _PRECEDENCE[kind] < parent or (kind == parent) else text

    def kernel_body_lines(self, kernel: Kernel, result: Callable[[Any, str], str] = "{} = {}".format) -> list[str]:
        """Return the lines of source code that evaluate a kernel, below a comment on its origin.

        Args:
            kernel: kernel whose code is returned.
            result: function from a result's name and expression to its source text; an assignment by default.
        """
        return kernel_source_lines(kernel, self.expression_source, result)

    def _product_source(self, node: Node) -> str:
        sign, numerator, denominator = "", [], []
        for factor in node[1:]:
            if factor == ("number", -1, 1):
                sign = "-"
            elif factor[0] == "power" and factor[2] < 0:
                denominator.append(factor[1] if factor[2] == -1 else ("power", factor[1], -factor[2]))
            else:
                numerator.append(factor)
        top = " * ".join(self.expression_source(a, 2) for a in numerator) or self.number(1, 1)
        if denominator:
            bottom = " * ".join(self.expression_source(a, 2) for a in denominator)
            top = f"{top} / ({bottom})"
        return sign + top

    def _power_source(self, node: Node, parent: int) -> str:
        base, exponent = node[1], node[2]
        if exponent < 0:
            inner = (
                self.expression_source(base, 2) if exponent == -1 else self._power_source(("power", base, -exponent), 3)
            )
            return f"({self.number(1, 1)} / {inner})"
        if base[0] == "name" and exponent <= 4:
            text = " * ".join([base[1]] * exponent)
            return f"({text})" if parent >= 2 else text
        return f"{self.expression_source(base, 3)} ** {exponent}"

    def _call_source(self, node: Node) -> str:
        name, arguments = node[1], [self.expression_source(a) for a in node[2:]]
        if name in ("and", "or"):
            return f"({f' {name} '.join(arguments)})"
        form = self.functions.get(name) or _INFIX.get(name)
        if name in ("max", "min"):
            form = f"{name}({{all}})"
        every = ", ".join(arguments)
        return (form or f"{self.library}.{name}({{all}})").format(*arguments, all=every, count=len(arguments))
