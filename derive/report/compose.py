"""A derivation as a page: which sections, in which order."""

from __future__ import annotations

from ..authoring.model import Model, ModelAt
from ..authoring.parameters import Structure
from .blocks import Report, Section
from .own_symbols import symbols_of
from .sections.bayes import bayes_sections
from .sections.own import checked_own_section, own_section
from .sections.reads import reads_sections
from .sections.references import Bibliography, reference_section
from .sections.setting import setting_sections
from .sections.steps import assumption_section, gamp_section, step_sections
from .sections.theory import theory_sections


def report(model: Model, structure: Structure | None = None, steps: bool = False) -> Report:
    """The derivation of a model at a structure (default: its own).

    Args:
        steps: with the replica calculation, step by step, and every check of it carried out.

    Raises:
        ModelError: the model is not well posed at the structure.
    """
    at = model.at(structure)
    theory = theory_sections(at)
    return Report(
        title=model.name,
        sections=(
            *setting_sections(model, at),
            *reads_sections(at),
            *(_with_steps(model, at, theory) if steps else _with_own(at, theory)),
        ),
        names=symbols_of(at),
    )


def _with_own(at: ModelAt, theory: tuple[Section, ...]) -> tuple[Section, ...]:
    """The equations in matrix form and with the model's own symbols."""
    *sections, stability = theory
    return (*sections, own_section(at), stability)


def _with_steps(model: Model, at: ModelAt, theory: tuple[Section, ...]) -> tuple[Section, ...]:
    """Each step before the sections that hold its result."""
    works = Bibliography()
    if model.source:
        works.cite(model.source)
    overlaps, free, saddle, observables, stability = theory
    step = step_sections(at, works)
    return (
        overlaps, assumption_section(at), *[step[number] for number in range(1, 8)], free, step[8], saddle,
        observables, checked_own_section(at), step[9], stability, gamp_section(at, works),
        *bayes_sections(at, works), reference_section(works),
    )  # fmt: skip
