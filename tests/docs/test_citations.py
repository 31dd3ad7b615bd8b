"""What is cited of docs/theory.md and docs/design.md is there; equations are in order and have a source."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("docs/theory.md", "docs/design.md")
CITING = ("derive", "generated", "runtime", "tests", "examples", "README.md", "CHANGELOG.md", "docs")
SUFFIXES = {".py", ".jinja", ".md"}
NAMED = re.compile(r"(?<![\w./-])((?:[\w.-]+/)*(?:theory|design)\.md)\b")
EQUATION = r"\(\d+\.\d+\)"
PLACES = re.compile(rf" (?:section (\d+)\b(?!\.\d)|({EQUATION}(?:(?:, | to | and ){EQUATION})*))")
DISPLAY = re.compile(r"^\$\$\n(.*?)\n\$\$$", re.MULTILINE | re.DOTALL)
TAG = re.compile(r"\\tag\{(\d+)\.(\d+)\}")


def files(root: Path) -> Iterator[Path]:
    """Every text that may cite, but this one."""
    for name in CITING:
        places = [root / name] if (root / name).is_file() else sorted((root / name).rglob("*"))
        yield from (p for p in places if p.suffix in SUFFIXES and p.name != Path(__file__).name)


def sections(text: str) -> dict[str, str]:
    """Number of a section -> what stands in it."""
    parts = re.split(r"^## (\d+)\. .*$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def tags(text: str) -> list[tuple[int, int]]:
    return [(int(section), int(number)) for section, number in TAG.findall(text)]


def equations_of(words: str) -> list[tuple[int, int]]:
    """(section, number) of every equation in a list as `(5.2) to (5.4), (5.7)`, ranges filled."""
    found: list[tuple[int, int]] = []
    for link, section, number in re.findall(r"(,? ?(?:to|and)? ?)\((\d+)\.(\d+)\)", words):
        if "to" in link and found and found[-1][0] == int(section):
            found += [(int(section), between) for between in range(found[-1][1] + 1, int(number))]
        found.append((int(section), int(number)))
    return found


def plain(text: str) -> str:
    """One line: citations go on across lines of prose and of comments."""
    return re.sub(r"\s*\n[ \t]*(?:#|>)?[ \t]*", " ", text)


def wrong_citations(root: Path) -> list[str]:
    """What is cited and is not there, one sentence each."""
    texts = {name: (root / name).read_text(encoding="utf-8") for name in DOCUMENTS}
    equations = {name: set(tags(text)) for name, text in texts.items()}
    headings = {name: set(sections(text)) for name, text in texts.items()}
    found = []
    for path in files(root):
        text, place = plain(path.read_text(encoding="utf-8")), path.relative_to(root)
        pages = sorted(set(re.findall(r"(?<![\w./-])docs/[\w-]+\.md\b", text)))
        found += [f"{place}: {page} is not in the repository" for page in pages if not (root / page).exists()]
        for match in NAMED.finditer(text):
            name, rest = match[1], text[match.end() :]
            linked = text[match.end()] in ")]" if match.end() < len(text) else False
            if linked and path.suffix == ".md":
                continue  # a link, or its words: `broken_links` looks at those
            if name not in DOCUMENTS:
                found.append(f"{place}: {name} is not in the repository; cite {' or '.join(DOCUMENTS)}")
                continue
            where = PLACES.match(rest)
            if where is None:
                if path.suffix != ".md":
                    found.append(f"{place}: {name} is cited without a section or an equation: {rest[:30]!r}")
            elif where[1] and where[1] not in headings[name]:
                found.append(f"{place}: {name} has no section {where[1]}")
            elif where[2]:
                missing = [e for e in equations_of(where[2]) if e not in equations[name]]
                found += [f"{place}: {name} has no equation ({a}.{b})" for a, b in missing]
    return found


def broken_links(root: Path) -> list[str]:
    """Links from README, CHANGELOG and docs to files or headings that are not there."""
    found = []
    for path in (p for p in files(root) if p.suffix == ".md"):
        text = path.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)):
            file, _, anchor = target.partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            there = path if not file else path.parent / file
            if not there.exists():
                found.append(f"{path.relative_to(root)}: no file {target}")
            elif anchor and anchor not in {anchor_of(h) for h in re.findall(r"^#+ (.*)$", there.read_text(), re.M)}:
                found.append(f"{path.relative_to(root)}: no heading {target}")
    return found


def anchor_of(heading: str) -> str:
    """As GitHub names it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.fixture(scope="module")
def theory() -> str:
    return (ROOT / "docs/theory.md").read_text(encoding="utf-8")


def test_every_cited_equation_and_section_exists():
    assert wrong_citations(ROOT) == []


def test_every_link_of_the_pages_has_a_target():
    assert broken_links(ROOT) == []


def test_citations_in_the_code_have_the_form_that_is_searched_for():
    """The form in which citations are searched for is the one that they have."""
    code = [p for p in files(ROOT) if p.suffix == ".py"]
    assert sum(len(re.findall(r"docs/theory\.md \(", plain(p.read_text(encoding="utf-8")))) for p in code) > 30


def test_equations_are_numbered_in_order_within_their_section(theory):
    for number, text in sections(theory).items():
        assert tags(text) == [(int(number), n + 1) for n in range(len(tags(text)))]
    assert len(tags(theory)) == len(set(tags(theory))) == len(DISPLAY.findall(theory))


def test_sections_are_numbered_in_order(theory):
    for text in (theory, (ROOT / "docs/design.md").read_text(encoding="utf-8")):
        assert list(sections(text)) == [str(n + 1) for n in range(len(sections(text)))]


def test_every_equation_has_a_source(theory):
    """In the list at the end of its section."""
    for number, text in sections(theory).items():
        sources = plain(text.partition("\nSources: ")[2])
        assert set(tags(text)) <= set(equations_of(sources)), f"section {number}"


def test_the_theory_cites_its_own_equations(theory):
    known = set(tags(theory))
    assert not [e for e in equations_of(DISPLAY.sub("", theory)) if e not in known]


def test_files_that_the_documents_name_are_there():
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        named = re.findall(r"`((?:derive|runtime|tests|examples|docs|generated)/[\w/.-]*)`", text)
        assert named
        assert not [path for path in named if not (ROOT / path).exists()]


def test_formulas_hold_nothing_that_markdown_takes_for_its_own(theory):
    """Escaped punctuation loses its backslash, and a line that begins like a list or a heading ends the formula."""
    for formula in DISPLAY.findall(theory):
        assert not re.search(r"\\[^A-Za-z\s]", formula), formula
        assert not re.search(r"^\s*(?:[-+*#]\s|>|[-=]+$|\d+[.)]\s)", formula, re.MULTILINE), formula
        assert formula.count("{") == formula.count("}"), formula
    assert all(block.count("$") % 2 == 0 for block in DISPLAY.sub("", theory).split("\n\n"))


@pytest.fixture
def copied(tmp_path) -> Path:
    """The documents and one module that cites them."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "derive").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("cited", "complaint"),
    [
        ("docs/theory.md (5.2)", None),
        ("docs/theory.md (5.2) to (5.5), (8.1)", None),
        ("docs/theory.md\n    # section 8", None),
        ("docs/design.md section 4", None),
        ("docs/theory.md (5.99)", "no equation (5.99)"),
        ("docs/theory.md (5.2), (77.1)", "no equation (77.1)"),
        ("docs/theory.md (5.14) to (5.17)", "no equation (5.16)"),
        ("docs/theory.md section 77", "no section 77"),
        ("docs/design.md (1.1)", "no equation (1.1)"),
        ("docs/theory.md 8", "without a section or an equation"),
        ("theory.md (5.2)", "theory.md is not in the repository"),
        ("notes/theory.md section 8", "notes/theory.md is not in the repository"),
        ("docs/numbers.md", None),
        ("docs/nothing.md", "docs/nothing.md is not in the repository"),
    ],
)
def test_a_wrong_citation_is_seen(copied, cited, complaint):
    (copied / "derive" / "module.py").write_text(f'"""Something ({cited})."""\n')
    found = wrong_citations(copied)
    assert found == [] if complaint is None else complaint in found[0]


def test_a_link_to_nowhere_is_seen(copied):
    (copied / "README.md").write_text(
        "[theory](docs/theory.md#8-stability), [more](docs/theory.md#nothing), [x](no.md)"
    )
    assert [line.split(": ")[1] for line in broken_links(copied) if line.startswith("README.md")] == [
        "no heading docs/theory.md#nothing",
        "no file no.md",
    ]
