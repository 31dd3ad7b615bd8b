"""The composition of a report: its sections and their order."""

from __future__ import annotations

from ..authoring.model import FixedSizeModel, Model
from ..authoring.parameters import Structure
from ..errors import ModelError
from .blocks import Report, Section
from .own_symbols import model_symbols
from .sections.bayes import bayes_sections
from .sections.breaking import replica_symmetry_breaking_sections
from .sections.dynamics import dynamics_sections
from .sections.own import checked_model_equation_section, model_equation_section
from .sections.reads import active_subspace_sections
from .sections.references import Bibliography, reference_section
from .sections.setting import sections_on_model_setting
from .sections.steps import assumption_section, derivation_step_sections, message_passing_section
from .sections.theory import theory_sections
from .wording import adapt_report_to_model, vocabulary_of_model


def compose_report(
    model: Model, structure: Structure | None = None, steps: bool = False, rsb: int = 0, dynamics: bool = False
) -> Report:
    """Return the report on the derivation of a model, at given structural sizes.

    Args:
        model: the model.
        structure: sizes; default, the model's own.
        steps: with the replica calculation, step by step, and every check of it carried out.
        rsb: number of steps of replica symmetry breaking, 0, 1 or 2.
        dynamics: the equations of one-pass stochastic gradient descent in place of the static theory.

    Raises:
        ModelError: the model is not well posed at these sizes; the options cannot be combined; or the equations of
            gradient descent do not close for this model.
    """
    if dynamics and steps:
        raise ModelError(
            "steps and dynamics cannot be combined: the steps derive the static theory; ask for one of them"
        )
    if rsb and not steps:
        raise ModelError(
            f"rsb = {rsb} is an option of the replica calculation step by step: ask for the steps as well (--steps, "
            "steps=True)"
        )
    at = model.at(structure)
    report = Report(
        title=model.name,
        sections=(
            *sections_on_model_setting(model, at),
            *active_subspace_sections(at),
            *_derivation_sections(model, at, steps, rsb, dynamics),
        ),
        names=model_symbols(at),
        vocabulary=vocabulary_of_model(at),
    )
    return adapt_report_to_model(report)


def _derivation_sections(
    model: Model, at: FixedSizeModel, steps: bool, rsb: int, dynamics: bool
) -> tuple[Section, ...]:
    """Return the sections with derived equations and the list of cited works."""
    if not (steps or dynamics):  # the equations in matrix form and with the model's own symbols
        *sections, stability = theory_sections(at)
        return (*sections, model_equation_section(at), stability)
    works = Bibliography()
    if model.source:
        works.cite(model.source)
    if dynamics:
        derived = dynamics_sections(at, works)
    elif rsb:
        derived = replica_symmetry_breaking_sections(at, works, rsb)
    else:
        derived = _derivation_sections_with_steps(at, works)
    return (*derived, reference_section(works))


def _derivation_sections_with_steps(at: FixedSizeModel, works: Bibliography) -> tuple[Section, ...]:
    """Return the sections of the derivation step by step, each step before the section with its result."""
    overlaps, free, saddle, observables, stability = theory_sections(at)
    step = derivation_step_sections(at, works)
    return (
        overlaps, assumption_section(at), *[step[number] for number in range(1, 8)], free, step[8], saddle,
        observables, checked_model_equation_section(at), step[9], stability,
        message_passing_section(at, works), *bayes_sections(at, works),
    )  # fmt: skip
