"""The composition of a report: its sections and their order."""

from __future__ import annotations

from ..authoring.model import Model, ModelAt
from ..authoring.parameters import Structure
from ..errors import ModelError
from .blocks import Report, Section
from .own_symbols import model_symbols
from .sections.bayes import bayes_sections
from .sections.breaking import breaking_sections
from .sections.dynamics import dynamics_sections
from .sections.own import checked_model_equation_section, model_equation_section
from .sections.reads import active_subspace_sections
from .sections.references import Bibliography, reference_section
from .sections.setting import setting_sections
from .sections.steps import assumption_section, gamp_section, step_sections
from .sections.theory import theory_sections


def compose_report(
    model: Model, structure: Structure | None = None, steps: bool = False, rsb: int = 0, dynamics: bool = False
) -> Report:
    """Return the report of the derivation of a model at a structure.

    Args:
        model: the model.
        structure: sizes; default, the model's own.
        steps: with the replica calculation, step by step, and every check of it carried out.
        rsb: number of steps of replica symmetry breaking, 0, 1 or 2.
        dynamics: the equations of one-pass stochastic gradient descent in place of the static theory.

    Raises:
        ModelError: the model is not well posed at the structure; symmetry is broken more often, or without steps; the
            dynamics do not close.
    """
    if dynamics and steps:
        raise ModelError("steps or dynamics: ask for one of them; the steps are those of the static theory")
    if rsb and not steps:
        raise ModelError("rsb belongs to the steps of the replica calculation: ask for them, too (--steps, steps=True)")
    at = model.at(structure)
    return Report(
        title=model.name,
        sections=(
            *setting_sections(model, at),
            *active_subspace_sections(at),
            *_derived_sections(model, at, steps, rsb, dynamics),
        ),
        names=model_symbols(at),
    )


def _derived_sections(model: Model, at: ModelAt, steps: bool, rsb: int, dynamics: bool) -> tuple[Section, ...]:
    """Return the sections that are derived from the model, and the works that they cite."""
    if not (steps or dynamics):  # the equations in matrix form and with the model's own symbols
        *sections, stability = theory_sections(at)
        return (*sections, model_equation_section(at), stability)
    works = Bibliography()
    if model.source:
        works.cite(model.source)
    if dynamics:
        derived = dynamics_sections(at, works)
    elif rsb:
        derived = breaking_sections(at, works, rsb)
    else:
        derived = _sections_with_steps(at, works)
    return (*derived, reference_section(works))


def _sections_with_steps(at: ModelAt, works: Bibliography) -> tuple[Section, ...]:
    """Return the sections with each step before the sections that contain its result."""
    overlaps, free, saddle, observables, stability = theory_sections(at)
    step = step_sections(at, works)
    return (
        overlaps, assumption_section(at), *[step[number] for number in range(1, 8)], free, step[8], saddle,
        observables, checked_model_equation_section(at), step[9], stability,
        gamp_section(at, works), *bayes_sections(at, works),
    )  # fmt: skip
