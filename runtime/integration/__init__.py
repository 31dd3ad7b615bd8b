"""Averages over the channel: several rules behind one interface, each with an error estimate."""

from .averages import Averages, Rule
from .rules import GaussHermite, ProxSpace, Sobol, SparseGrid, rule_named

__all__ = ["Averages", "GaussHermite", "ProxSpace", "Rule", "Sobol", "SparseGrid", "rule_named"]
