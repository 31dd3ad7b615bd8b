"""The works that the steps cite, in full, and the numbers by which a document refers to them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..blocks import Section, plain_text

# A work that is cited by place (appendix, equation) goes by its number on arXiv.
_FULL = {
    "arXiv 2402.03902": "H. Cui, F. Behrens, F. Krzakala, L. Zdeborova, A phase transition between positional and "
    "semantic learning in a solvable model of dot-product attention, arXiv 2402.03902 (2024)",
    "arXiv 2409.13904": "H. Cui, High-dimensional learning of narrow neural networks, arXiv 2409.13904 (2024)",
}


@dataclass(frozen=True)
class Bibliography:
    """The list of works that a report cites, in the order of first citation."""

    works: list[str] = field(default_factory=list)

    def cite(self, citation: str) -> str:
        """Return a citation such as "[1, Appendix C], [2]" for works separated by semicolons, and add new works."""
        marks = []
        for part in (part.strip() for part in citation.split(";")):
            found = re.match(r"(arXiv [\d.]+\d)(?:, (.*))?$", part)
            work, place = (found[1], found[2] or "") if found else (part, "")
            if work not in self.works:
                self.works.append(work)
            marks.append(f"[{self.works.index(work) + 1}{', ' if place else ''}{place}]")
        return ", ".join(marks)

    def format_works(self) -> list[str]:
        """Return the full reference of every cited work, with its number."""
        return [f"[{n + 1}] {_FULL.get(work, work)}." for n, work in enumerate(self.works)]


def reference_section(works: Bibliography) -> Section:
    """Return the section that lists all works cited in a report."""
    return Section("References", tuple(plain_text(text) for text in works.format_works()))
