"""A model's derivation as an object: its steps, and the report as text, LaTeX or notebook output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any

import sympy as sp

from ..authoring.model import Model
from ..authoring.parameters import Structure
from ..replicas import message_passing
from ..replicas.algebra.step import CheckOutcome, Step
from ..replicas.bayes_optimal import bayes_optimal_derivation
from ..replicas.model_equations import specialisation
from ..replicas.steps.derivation import derivation
from .blocks import Relation, Report, Table, TextWithSymbols, Vocabulary, group_by_type, render_text_or_formula
from .compose import compose_report
from .latex import render_report_as_latex
from .latex_printer import LatexPrinter
from .symbols import rename_symbols
from .text import render_report_as_text
from .wording import adapt_expression_to_model, symbols_of_report

_MAX_LATEX_CHARACTERS = 90  # of a sum on one line


@dataclass(frozen=True)
class PrintableStep(Step):
    """A derivation step that a notebook shows as LaTeX, in the symbols of the model.

    Attributes:
        printer: printer with the symbols of the model and of the reader.
        vocabulary: which of tokens, contexts and teacher the model has.
    """

    printer: LatexPrinter
    vocabulary: Vocabulary

    def _repr_latex_(self) -> str:
        """Return the results of the step as LaTeX source, for a notebook."""
        rows = []
        for name, full in self.after.items():
            expression = adapt_expression_to_model(full, self.vocabulary)
            if expression is None:
                continue
            words = rf"\text{{{name.replace('_', ' ')}}}"
            label = None if "|" in name else self.printer.print_theory_symbol(name)
            rows.append(rf"{label or words}: & \quad {self.printer.print_object(expression)}")
        return _latex_aligned_environment(rows)


@dataclass(frozen=True)
class ModelDerivation:
    """The derivation of a model: `d[1]`, `d[2]`, ... are its steps, `print(d)` shows all of it as text.

    Three attributes hold further steps: `own` the equations in the model's symbols, `message_passing` the iteration
    at finite dimension, `bayes` the steps of Bayes-optimal inference.

    Attributes:
        model: the model.
        structure: its structural sizes.
        names: symbols that the reader prefers: name -> LaTeX, as {"theta": "M"}.
        rsb: number of steps of replica symmetry breaking: 0 (9 steps of derivation), 1 (12 steps) or 2 (8 steps).
    """

    model: Model
    structure: Structure
    names: Mapping[str, str] = field(default_factory=dict)
    rsb: int = 0

    def __post_init__(self) -> None:
        rename_symbols(self.names, self._report_without_steps.names)

    @cached_property
    def steps(self) -> tuple[PrintableStep, ...]:
        """Return the steps of the derivation, each with its rule, its citation, and input and results in SymPy."""
        return tuple(map(self._attach_latex_printer_to_step, derivation(self.model.at(self.structure), self.rsb).steps))

    @cached_property
    def own(self) -> PrintableStep:
        """Return the step that writes the general matrix equations out for this model.

        Raises:
            ValueError: the model is too large for its equations to be written out.
        """
        return self._attach_latex_printer_to_step(specialisation.specialisation_step(self.model.at(self.structure)))

    @cached_property
    def message_passing(self) -> PrintableStep:
        """Return the step on message passing at finite dimension: fixed points and state evolution."""
        at = self.model.at(self.structure)
        return self._attach_latex_printer_to_step(
            message_passing.message_passing_step(
                at.regulariser.row_regulariser.kind, len(at.trained), at.loss_depends_on_q
            )
        )

    @cached_property
    def bayes(self) -> tuple[PrintableStep, ...]:
        """Return the steps of Bayes-optimal inference of the teacher; () if the model has no output channel."""
        if self.model.at(self.structure).output is None:
            return ()
        return tuple(map(self._attach_latex_printer_to_step, bayes_optimal_derivation().steps))

    def _attach_latex_printer_to_step(self, step: Step) -> PrintableStep:
        return PrintableStep(
            **vars(step), printer=self._latex_printer, vocabulary=self._report_without_steps.vocabulary
        )

    def __getitem__(self, number: int) -> PrintableStep:
        if not 1 <= number <= len(self.steps):
            raise IndexError(f"the derivation has no step {number}: its steps are numbered from 1 to {len(self.steps)}")
        return self.steps[number - 1]

    def __iter__(self) -> Iterator[PrintableStep]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def check(self) -> tuple[tuple[PrintableStep, CheckOutcome], ...]:
        """Carry out all checks of all steps and return pairs (step, outcome); this takes some seconds.

        Without replica symmetry breaking, the steps in `own`, `message_passing` and `bayes` are checked as well.
        """
        if self.rsb:
            return tuple((step, check) for step in self for check in step.check())
        own = (
            [] if specialisation.ModelEquations(self.model.at(self.structure)).is_too_large_to_write_out else [self.own]
        )
        return tuple(
            (step, check) for step in (*self, *own, self.message_passing, *self.bayes) for check in step.check()
        )

    def text(self, steps: bool = True) -> str:
        """Return the report on the derivation as text, as `saddleforge derive` prints it.

        Args:
            steps: whether to include the steps of the replica calculation and carry out their checks.
        """
        return render_report_as_text(self._compose_report(steps), self.names)

    def latex(self, steps: bool = True) -> str:
        """Return the report on the derivation as a complete LaTeX document."""
        return render_report_as_latex(self._compose_report(steps), self.names)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return (
            f"<derivation of {self.model.name} at {self.structure.folder_name}: {len(self)} steps; print it to read it>"
        )

    @cached_property
    def _report_without_steps(self) -> Report:
        return compose_report(self.model, self.structure)

    def _compose_report(self, steps: bool) -> Report:
        return compose_report(self.model, self.structure, steps, self.rsb) if steps else self._report_without_steps

    @cached_property
    def _latex_printer(self) -> LatexPrinter:
        return LatexPrinter(self._report_without_steps.names, symbols_of_report(self._report_without_steps, self.names))

    def _repr_latex_(self) -> str:
        """Return free entropy and saddle-point equations as LaTeX source, for a notebook."""
        wanted = [
            s for s in self._report_without_steps.sections if s.title in ("Free entropy", "Saddle-point equations")
        ]
        parts = [
            _relations_in_aligned_environment(
                [item for item in s.items if isinstance(item, Relation)], self._latex_printer
            )
            for s in wanted
        ]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        """Return the report without derivation steps as HTML, with formulas in LaTeX, for a notebook."""
        parts = [f"<h3>{escape(self._report_without_steps.title)}</h3>"]
        for section in self._report_without_steps.sections:
            parts.append(f"<h4>{escape(section.title)}</h4>")
            for kind, items in group_by_type(section.items):
                if kind is Relation:
                    parts.append(_escape_html(_relations_in_aligned_environment(items, self._latex_printer)))
                elif kind is TextWithSymbols:
                    parts += [f"<p>{_content_as_html(item, self._latex_printer)}</p>" for item in items]
                else:
                    parts += [_html_table(item, self._latex_printer) for item in items]
        return "\n".join(parts)


def _escape_html(text: str) -> str:
    return escape(text, quote=False)


def _content_as_html(value: Any, printer: LatexPrinter) -> str:
    """Return a string, a sentence with symbols or a SymPy object as HTML, with formulas in LaTeX."""
    return render_text_or_formula(
        value, _escape_html, lambda formula: f"${_escape_html(printer.print_object(formula))}$"
    )


def _html_table(table: Table, printer: LatexPrinter) -> str:
    rows = ["".join(f"<th>{escape(name)}</th>" for name in table.head)]
    rows += ["".join(f"<td>{_content_as_html(value, printer)}</td>" for value in row) for row in table.rows]
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


def _latex_aligned_environment(rows: list[str]) -> str:
    return "\n".join([r"$$\begin{aligned}", " \\\\\n".join(rows), r"\end{aligned}$$"])


def _relations_in_aligned_environment(relations: Iterable[Relation], printer: LatexPrinter) -> str:
    """Return equations as a LaTeX `aligned` environment, with one line for each term of a long sum."""
    rows = []
    for relation in relations:
        terms = [printer.print_object(relation.right)]
        if len(terms[0]) > _MAX_LATEX_CHARACTERS and isinstance(relation.right, sp.Add | sp.MatAdd):
            terms = printer.print_signed_terms(relation.right)
        rows.append(f"{printer.print_object(relation.left)} &{printer.print_relation_sign(relation)} {terms[0]}")
        rows += [rf"&\quad {term}" for term in terms[1:]]
        if relation.note:
            rows[-1] += rf" \quad \text{{({relation.note})}}"
    return _latex_aligned_environment(rows)
