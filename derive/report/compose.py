"""A derivation as a page: which sections, in which order."""

from __future__ import annotations

from ..authoring.model import Model, ModelAt
from ..authoring.parameters import Structure
from ..errors import ModelError
from .blocks import Report, Section
from .own_symbols import symbols_of
from .sections.bayes import bayes_sections
from .sections.breaking import breaking_sections
from .sections.dynamics import dynamics_sections
from .sections.own import checked_own_section, own_section
from .sections.reads import reads_sections
from .sections.references import Bibliography, reference_section
from .sections.setting import setting_sections
from .sections.steps import assumption_section, gamp_section, step_sections
from .sections.theory import theory_sections


def report(
    model: Model, structure: Structure | None = None, steps: bool = False, rsb: int = 0, dynamics: bool = False
) -> Report:
    """The derivation of a model at a structure (default: its own).

    Args:
        steps: with the replica calculation, step by step, and every check of it carried out.
        rsb: how often the replica calculation breaks replica symmetry, 0, 1 or 2.
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
            *reads_sections(at),
            *(_dynamics(model, at) if dynamics else _theory(model, at, steps, rsb)),
        ),
        names=symbols_of(at),
    )


def _theory(model: Model, at: ModelAt, steps: bool, rsb: int) -> tuple[Section, ...]:
    works = Bibliography()
    if rsb:
        _cite_source(model, works)
        return breaking_sections(at, works, rsb)
    theory = theory_sections(at)
    return _with_steps(model, at, theory, works) if steps else _with_own(at, theory)


def _dynamics(model: Model, at: ModelAt) -> tuple[Section, ...]:
    works = Bibliography()
    _cite_source(model, works)
    return (*dynamics_sections(at, works), reference_section(works))


def _cite_source(model: Model, works: Bibliography) -> None:
    if model.source:
        works.cite(model.source)


def _with_own(at: ModelAt, theory: tuple[Section, ...]) -> tuple[Section, ...]:
    """The equations in matrix form and with the model's own symbols."""
    *sections, stability = theory
    return (*sections, own_section(at), stability)


def _with_steps(model: Model, at: ModelAt, theory: tuple[Section, ...], works: Bibliography) -> tuple[Section, ...]:
    """Each step before the sections that hold its result."""
    _cite_source(model, works)
    overlaps, free, saddle, observables, stability = theory
    step = step_sections(at, works)
    return (
        overlaps, assumption_section(at), *[step[number] for number in range(1, 8)], free, step[8], saddle,
        observables, checked_own_section(at), step[9], stability, gamp_section(at, works),
        *bayes_sections(at, works), reference_section(works),
    )  # fmt: skip
