"""A model's derivation as an object: its steps, and the report as text, LaTeX or what a notebook shows."""

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
from ..replicas.algebra.step import Check, Step
from ..replicas.bayes_optimal import bayes_derivation
from ..replicas.own import specialisation
from ..replicas.steps.derivation import derivation
from .blocks import Relation, Report, Table, Words, runs_of, written
from .compose import report
from .latex import typeset
from .latex_printer import LatexPrinter
from .symbols import renamed
from .text import shown

_LINE = 90  # characters of LaTeX from which a sum is broken between its terms


@dataclass(frozen=True)
class ShownStep(Step):
    """A step with the symbols in which a notebook shows what comes out.

    Attributes:
        printer: of these symbols.
    """

    printer: LatexPrinter

    def _repr_latex_(self) -> str:
        """What comes out, for a notebook."""
        rows = []
        for name, expression in self.after.items():
            words = rf"\text{{{name.replace('_', ' ')}}}"
            label = None if "|" in name else self.printer.theory(name)
            rows.append(rf"{label or words}: & \quad {self.printer.show(expression)}")
        return _aligned(rows)


@dataclass(frozen=True)
class ModelDerivation:
    """The derivation of a model: d[1] to d[9] are its steps, `print(d)` shows all of it, a notebook shows it typeset.

    `own` and `message_passing` are two more steps: the equations with the model's own symbols, and the iteration at
    finite dimension; `bayes` holds the three of Bayes-optimal inference.

    Attributes:
        model, structure: what is derived, and at which sizes.
        names: symbols of the reader's own, as `symbols.renamed` takes them.
        rsb: how often the steps break replica symmetry: 0, 1 with steps 1 to 12, or 2 with steps 1 to 8.
    """

    model: Model
    structure: Structure
    names: Mapping[str, str] = field(default_factory=dict)
    rsb: int = 0

    def __post_init__(self) -> None:
        renamed(self.names, self._report.names)

    @cached_property
    def steps(self) -> tuple[ShownStep, ...]:
        """What went in and came out of each as SymPy expressions, the rule, where it is written."""
        return tuple(map(self._in_own_symbols, derivation(self.model.at(self.structure), self.rsb).steps))

    @cached_property
    def own(self) -> ShownStep:
        """The equations of this model, against the matrix form.

        Raises:
            ValueError: the model is too large for them to be written out.
        """
        return self._in_own_symbols(specialisation.step(self.model.at(self.structure)))

    @cached_property
    def message_passing(self) -> ShownStep:
        """Message passing at finite dimension: its fixed points and state evolution."""
        at = self.model.at(self.structure)
        return self._in_own_symbols(message_passing.step(at.regulariser.rows.kind, len(at.trained), at.loss_holds_q))

    @cached_property
    def bayes(self) -> tuple[ShownStep, ...]:
        """Bayes-optimal inference of the same teacher, counted from 1; empty without an output channel."""
        if self.model.at(self.structure).output is None:
            return ()
        return tuple(map(self._in_own_symbols, bayes_derivation().steps))

    def _in_own_symbols(self, step: Step) -> ShownStep:
        return ShownStep(**vars(step), printer=self._printer)

    def __getitem__(self, number: int) -> ShownStep:
        if not 1 <= number <= len(self.steps):
            raise IndexError(f"there is no step {number}; they are counted from 1 to {len(self.steps)}")
        return self.steps[number - 1]

    def __iter__(self) -> Iterator[ShownStep]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def check(self) -> tuple[tuple[ShownStep, Check], ...]:
        """Carry out every check of every step, of the model's own equations where they are written out, of message
        passing and of Bayes-optimal inference; some seconds. With broken replica symmetry the steps alone.
        """
        if self.rsb:
            return tuple((step, check) for step in self for check in step.check())
        own = [] if specialisation.Specialised(self.model.at(self.structure)).too_large else [self.own]
        return tuple(
            (step, check) for step in (*self, *own, self.message_passing, *self.bayes) for check in step.check()
        )

    def text(self, steps: bool = True) -> str:
        """What `saddleforge derive` prints.

        Args:
            steps: with the replica calculation, its checks carried out.
        """
        return shown(self._content(steps), self.names)

    def latex(self, steps: bool = True) -> str:
        """The same as a LaTeX document."""
        return typeset(self._content(steps), self.names)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<derivation of {self.model.name} at {self.structure.key}: {len(self)} steps; print it to read it>"

    @cached_property
    def _report(self) -> Report:
        return report(self.model, self.structure)

    def _content(self, steps: bool) -> Report:
        return report(self.model, self.structure, steps, self.rsb) if steps else self._report

    @cached_property
    def _printer(self) -> LatexPrinter:
        return LatexPrinter(self._report.names, renamed(self.names, self._report.names))

    def _repr_latex_(self) -> str:
        """The free entropy and the saddle point."""
        wanted = [s for s in self._report.sections if s.title in ("Free entropy", "Saddle-point equations")]
        parts = [_display([item for item in s.items if isinstance(item, Relation)], self._printer) for s in wanted]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        """The report without the steps, its formulas in the LaTeX that a notebook typesets."""
        parts = [f"<h3>{escape(self._report.title)}</h3>"]
        for section in self._report.sections:
            parts.append(f"<h4>{escape(section.title)}</h4>")
            for kind, items in runs_of(section.items):
                if kind is Relation:
                    parts.append(_escaped(_display(items, self._printer)))
                elif kind is Words:
                    parts += [f"<p>{_cell(item, self._printer)}</p>" for item in items]
                else:
                    parts += [_table(item, self._printer) for item in items]
        return "\n".join(parts)


def _escaped(text: str) -> str:
    return escape(text, quote=False)


def _cell(value: Any, printer: LatexPrinter) -> str:
    """Words, a string or a formula in HTML."""
    return written(value, _escaped, lambda formula: f"${_escaped(printer.show(formula))}$")


def _table(table: Table, printer: LatexPrinter) -> str:
    rows = ["".join(f"<th>{escape(name)}</th>" for name in table.head)]
    rows += ["".join(f"<td>{_cell(value, printer)}</td>" for value in row) for row in table.rows]
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


def _aligned(rows: list[str]) -> str:
    return "\n".join([r"$$\begin{aligned}", " \\\\\n".join(rows), r"\end{aligned}$$"])


def _display(relations: Iterable[Relation], printer: LatexPrinter) -> str:
    """Relations with the right sides of long sums a term a line."""
    rows = []
    for relation in relations:
        terms = [printer.show(relation.right)]
        if len(terms[0]) > _LINE and isinstance(relation.right, sp.Add | sp.MatAdd):
            terms = printer.signed_terms(relation.right)
        rows.append(f"{printer.show(relation.left)} &{printer.sign(relation)} {terms[0]}")
        rows += [rf"&\quad {term}" for term in terms[1:]]
        if relation.note:
            rows[-1] += rf" \quad \text{{({relation.note})}}"
    return _aligned(rows)
