"""Functions of losses as SymPy functions with their own derivatives: softmax, sigmoid, softplus.

Keeping `softmax` and `softplus` whole, instead of as quotients of exponentials, keeps derivatives short and lets every
printer use a form that cannot overflow.
"""

from __future__ import annotations

from typing import Any

import sympy as sp
from sympy.core.function import ArgumentIndexError


class SoftmaxEntry(sp.Function):
    """Entry j of softmax(z_0, ..., z_{n-1}); called as SoftmaxEntry(j, z_0, ..., z_{n-1})."""

    nargs = None
    is_real = True

    @classmethod
    def eval(cls, index: sp.Expr, *logits: sp.Expr) -> sp.Expr | None:
        """1 for a single logit; None, which leaves the entry whole, for more."""
        if len(logits) == 1:
            return sp.Integer(1)
        return None

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """dS_j / dz_i = S_j (delta_ij - S_i); argument 1 is the index j, the logits count from 2.

        Raises:
            ArgumentIndexError: the argument is the index.
        """
        index, *logits = self.args
        if argindex < 2:
            raise ArgumentIndexError(self, argindex)
        other = SoftmaxEntry(sp.Integer(argindex - 2), *logits)
        return self * (int(index == argindex - 2) - other)

    def _eval_evalf(self, prec: int) -> sp.Expr:
        index, *logits = self.args
        # The largest logit itself, not its value: a rounded one would limit the precision of the result.
        top = max(logits, key=lambda z: sp.re(z.evalf())) if all(z.is_number for z in logits) else 0
        weights = [sp.exp(z - top) for z in logits]
        return (weights[int(index)] / sp.Add(*weights))._eval_evalf(prec)

    def _latex(self, printer: Any, exp: str | None = None) -> str:
        index, *logits = self.args
        body = rf"\mathrm{{softmax}}_{{{int(index) + 1}}}\!\left({', '.join(printer._print(z) for z in logits)}\right)"
        return body if exp is None else rf"{body}^{{{exp}}}"


class Box(sp.Function):
    """0 for low <= z <= high, infinite elsewhere; called as Box(z, low, high)."""

    nargs = 3

    @classmethod
    def eval(cls, z: sp.Expr, low: sp.Expr, high: sp.Expr) -> sp.Expr | None:
        """The same interval of -z in terms of z, so that signs are seen; None, which leaves it whole, for others."""
        return cls(-z, -high, -low) if z.could_extract_minus_sign() else None

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Zero inside."""
        return sp.Integer(0)

    def _eval_evalf(self, prec: int) -> sp.Expr:
        z, low, high = (a.evalf() for a in self.args)
        return sp.Integer(0) if low <= z <= high else sp.oo


class Sigmoid(sp.Function):
    """1 / (1 + exp(-z))."""

    nargs = 1
    is_real = True

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """S (1 - S), in S itself: no second exponential."""
        return self * (1 - self)

    def _eval_evalf(self, prec: int) -> sp.Expr:
        return (1 / (1 + sp.exp(-self.args[0])))._eval_evalf(prec)


class Softplus(sp.Function):
    """log(1 + exp(z)), the logistic loss at margin -z."""

    nargs = 1
    is_real = True

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """The sigmoid of the same argument."""
        return Sigmoid(self.args[0])

    def _eval_evalf(self, prec: int) -> sp.Expr:
        return sp.log(1 + sp.exp(self.args[0]))._eval_evalf(prec)
