"""The models of the catalogue, by name, with the structures whose solvers are committed."""

from __future__ import annotations

from importlib import import_module

from .authoring.model import Model
from .authoring.parameters import Structure

SHIPPED: dict[str, tuple[dict[str, int], ...]] = {
    "amplitude_retrieval": ({},),
    "attention_on_mixture": ({},),
    "causal_attention": ({},),
    "committee_machine": ({},),
    "dot_product_attention": ({}, {"student_rank": 2}, {"tokens": 3}),
    "elastic_net_regression": ({},),
    "hard_attention": ({},),
    "hinge": ({},),
    "huber_regression": ({},),
    "l1_regression": ({},),
    "lasso_regression": ({},),
    "linear_attention": ({},),
    "logistic_regression": ({},),
    "mixture_classification": ({}, {"student_rank": 2, "clusters": 3}),
    "perceptron": ({},),
    "phase_retrieval": ({},),
    "quantile_regression": ({},),
    "ridge_regression": ({},),
    "squared_hinge": ({},),
    "tempered_attention": ({},),
    "tukey_regression": ({},),
    "untied_attention": ({},),
    "value_attention": ({},),
}


def catalogue_model(name: str) -> Model:
    """Return a model of the catalogue by its name.

    Raises:
        KeyError: no model has this name.
    """
    if name not in SHIPPED:
        raise KeyError(f"the catalogue has no model {name!r}; its models are {', '.join(sorted(SHIPPED))}")
    return getattr(import_module(f".models.{name}", __package__), name)


def structures_with_shipped_solver(name: str) -> list[Structure]:
    """Return the structural sizes at which a catalogue model has a shipped solver, the default sizes first."""
    model = catalogue_model(name)
    return [model.structure(**sizes) for sizes in SHIPPED[name]]
