"""Finite size: data drawn from the law of a model, the risk minimised, messages passed."""
