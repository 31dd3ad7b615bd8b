"""The methods that train weights of finite d, a module each; `auto` chooses the first that is exact for a problem."""

from __future__ import annotations

from ..method import Method
from . import adam, fista, gamp, gd, lbfgs, newton, sgd

METHODS: dict[str, Method] = {m.METHOD.name: m.METHOD for m in (lbfgs, gd, adam, fista, newton, gamp, sgd)}
