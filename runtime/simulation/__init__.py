"""Finite size: data drawn from the law of a model, the risk minimised, and what theory says beside it."""
