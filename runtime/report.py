"""The report of `reproduce`: every number beside the published one, as Markdown and as HTML with the figures inside.

Content is built once, as headings, paragraphs, tables and figures, and laid out twice. It depends on the results only:
no dates, no paths, no timings.
"""

from __future__ import annotations

import base64
import html as markup
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .numbers import with_error

SOURCE = "arXiv 2402.03902"
PUBLISHED: dict[str, dict[str, float]] = {
    "alpha_c": {"0.1": 0.7072, "0.3": 1.2410, "0.4": 1.7506},
    "alpha_l": {"0.1": 0.8506, "0.3": 1.4506},
}
PUBLISHED_TABLES_CROSS = 1.263  # at omega = 0.3, from the published tables of the two branches
PUBLISHED_BASELINE = 0.00398092 / 2  # published as a sum over the two tokens, at omega = 0.3
SHORT_NAMES = {"alpha_c": "α_c: equal training loss", "alpha_l": "α_l: semantic = linear baseline"}
LONG_NAMES = {
    "alpha_c": "α_c: semantic and positional branch have equal training loss",
    "alpha_l": "α_l: semantic branch equals the linear baseline",
}


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is that of the report."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """Plain words."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows of words under a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A figure by its name, with a caption."""

    name: str
    caption: str


Block = Heading | Paragraph | Table | Picture


def is_complete(results: Mapping[str, Any]) -> bool:
    """Whether the generated solver is fresh and every threshold converged or has no sign change to be found."""
    statuses = [r["status"] for found in results["thresholds"].values() for r in found.values()]
    return not results["generated"]["differences"] and all(s in ("converged", "absent") for s in statuses)


def content(results: Mapping[str, Any], figures: Sequence[str]) -> list[Block]:
    """The report as blocks.

    Args:
        results: model, digest, version, omega; derivation {equations}; generated {differences}; curves {name: {ends,
            points}}; thresholds {kind: {omega: {value, error, error_kind, status, verdicts, bistable_shares, evidence,
            sentence}}}; coarse {crossings, baseline}; baseline {omega: exact error}.
        figures: names of those that were drawn.
    """
    blocks: list[Block] = [
        Heading("Positional and semantic learning in dot-product attention: reproduction", 1),
        Paragraph(
            f"Source: {SOURCE}, Fig. 2 and 3. Model {results['model']} (digest {results['digest']}), saddleforge "
            f"{results['version']}. Every value is a solution of the replica-symmetric saddle point with its half "
            "width in the last digits, as in 1.2515(3); deviations are (published - ours) / ours."
        ),
    ]
    blocks += _summary(results)
    blocks += _thresholds(results, figures)
    blocks += _baseline(results)
    blocks += _branches(results, figures)
    blocks += _coarse(results)
    blocks += _derivation(results)
    blocks.append(Heading("Files"))
    blocks.append(
        Paragraph(
            "tables/semantic and tables/positional (.nc, .csv): the branches at omega = 0.3, with errors, stability; "
            "tables/thresholds (.nc, .csv): the thresholds; derivation.txt and derivation.tex: the derivation; "
            "results.json: all numbers of this report; steps/: finished steps, used again by the next run."
        )
    )
    return blocks


def _summary(results: Mapping[str, Any]) -> list[Block]:
    omega = f"{results['omega']:g}"
    sentences = []
    for kind, what in (
        ("alpha_c", "the semantic solution becomes the one of lower training loss"),
        ("alpha_l", "attention on the semantic branch beats the linear baseline"),
    ):
        found = results["thresholds"][kind][omega]
        if found["value"] is not None:
            sentences.append(f"At omega = {omega} {what} above alpha = {_value(found)}{_beside(kind, omega, found)}.")
    sentences.append(
        "RS verdicts stand beside each threshold: where the proximal map jumps, every digit is one of the "
        "replica-symmetric equations, which are then not the whole truth."
    )
    return [Paragraph(" ".join(sentences))]


def _beside(kind: str, omega: str, found: Mapping[str, Any]) -> str:
    published = PUBLISHED[kind].get(omega)
    return "" if published is None else f" (published {published:.4f}, {deviation(published, found['value'])})"


def _thresholds(results: Mapping[str, Any], figures: Sequence[str]) -> list[Block]:
    blocks: list[Block] = [Heading("Thresholds")]
    absent: list[Block] = []
    for kind, found in results["thresholds"].items():
        rows = []
        for omega in sorted(found, key=float):
            result, published = found[omega], PUBLISHED[kind].get(omega)
            there = result["value"] is not None
            rows.append(
                [
                    omega,
                    _value(result) if there else "none found",
                    "-" if published is None else f"{published:.4f}",
                    deviation(published, result["value"]) if published is not None and there else "-",
                    f"{result['status'].replace('_', ' ')}, {result['error_kind']}" if there else "see below",
                    _verdicts(result),
                ]
            )
            if not there:
                absent += _absent(kind, omega, result)
        blocks.append(Heading(LONG_NAMES[kind], 3))
        blocks.append(Table(("omega", "ours", "published", "deviation", "status", "RS verdict of each branch"), rows))
    blocks.append(
        Paragraph(
            f"At omega = 0.3 the published tables of the two branches cross at {PUBLISHED_TABLES_CROSS}, not at the "
            f"published {PUBLISHED['alpha_c']['0.3']:.4f}."
        )
    )
    blocks += absent
    if "phase_diagram" in figures:
        blocks.append(
            Picture(
                "phase_diagram",
                "Thresholds against omega: as lines with half widths, located one by one (symbols), published (open).",
            )
        )
    return blocks


def _value(found: Mapping[str, Any]) -> str:
    return with_error(found["value"], found["error"])


def _verdicts(result: Mapping[str, Any]) -> str:
    return "; ".join(f"{branch}: {verdict}" for branch, verdict in result["verdicts"].items()) or "-"


def _absent(kind: str, omega: str, result: Mapping[str, Any]) -> list[Block]:
    """A threshold that was not found, with what was seen instead."""
    evidence = result["evidence"]
    what = "difference of training losses, semantic - positional"
    if kind == "alpha_l":
        what = "test error - baseline on the semantic branch"
    blocks: list[Block] = [
        Paragraph(f"No {kind} at omega = {omega}: {result['sentence']}."),
    ]
    for branch, lowest in evidence["lowest_alpha_found"].items():
        lost = evidence["highest_alpha_not_found"].get(branch)
        where = "was not found" if lowest is None else f"was found down to alpha = {lowest:.4g}"
        blocks.append(
            Paragraph(f"The {branch} branch {where}" + ("." if lost is None else f"; it was not found at {lost:.4g}."))
        )
    if evidence["compared"]:
        rows = [[f"{r['alpha']:.4g}", with_error(r["difference"], r["error"])] for r in evidence["compared"]]
        blocks.append(Table(("alpha", what), rows))
    return blocks


def _baseline(results: Mapping[str, Any]) -> list[Block]:
    omega = f"{results['omega']:g}"
    exact = results["baseline"][omega]
    planes = results["coarse"]["baseline"]
    rows = [
        ["ours", f"{exact:.14f}", "-"],
        [
            "published (sum over two tokens 0.00398092)",
            f"{PUBLISHED_BASELINE:.8f}",
            deviation(PUBLISHED_BASELINE, exact),
        ],
        ["12 points of degree 7", f"{planes:.8f}", deviation(planes, exact)],
    ]
    others = ", ".join(f"{value:.10f} at omega = {w}" for w, value in results["baseline"].items() if w != omega)
    return [
        Heading("Linear positional baseline"),
        Table((f"test error per token at omega = {omega}", "value", "deviation"), rows),
        Paragraph(f"At the other omega: {others}."),
    ]


def _branches(results: Mapping[str, Any], figures: Sequence[str]) -> list[Block]:
    blocks: list[Block] = [Heading(f"Branches at omega = {results['omega']:g}")]
    for found in results["curves"].values():
        ends = found["ends"]
        text = ends[0].upper() + ends[1:]
        if "ends between" not in ends:
            text += ": it reaches both edges of the range that was asked for"
        blocks.append(Paragraph(f"{text} ({found['points']} solutions)."))
    captions = {
        "overlaps": "Overlaps of both branches with error bars. Solid: stable; dashed: a longitudinal eigenvalue or "
        "the replicon is at least 1, or the accuracy for a verdict was not reached. Strips at the foot: the "
        "proximal map jumps there.",
        "test_error": "Test error per token of both branches, and the best linear positional layer.",
        "loss_difference": "Difference of training losses; the transition is its zero.",
    }
    return blocks + [Picture(name, caption) for name, caption in captions.items() if name in figures]


def _coarse(results: Mapping[str, Any]) -> list[Block]:
    omega = f"{results['omega']:g}"
    ours = results["thresholds"]["alpha_c"][omega]["value"]
    rows = []
    if ours is not None:
        rows.append(["this work", _value(results["thresholds"]["alpha_c"][omega]), "-"])
        rows.append(["published", f"{PUBLISHED['alpha_c'][omega]:.4f}", deviation(PUBLISHED["alpha_c"][omega], ours)])
        rows.append(["published tables", f"{PUBLISHED_TABLES_CROSS:.3f}", deviation(PUBLISHED_TABLES_CROSS, ours)])
    found = []
    for row in results["coarse"]["crossings"]:
        if row["value"] is None:
            rows.append([row["rule"], f"none: {row['sentence']}", "-"])
            continue
        rows.append([row["rule"], f"{row['value']:.4f}", "-" if ours is None else deviation(row["value"], ours)])
        found.append(row["value"])
    blocks: list[Block] = [
        Heading("Why the published numbers deviate"),
        Paragraph(
            "The publication integrates with 12 points of degree 7 in each plane and solves the proximal map from one "
            f"start. The same equations solved here with rules as coarse, at omega = {omega}, put the transition at:"
        ),
        Table(("rule", "alpha_c", "deviation from ours"), rows),
    ]
    if found and ours is not None:
        coarse = [100 * (v / ours - 1) for v in found]
        published = [100 * (v / ours - 1) for v in (PUBLISHED["alpha_c"][omega], PUBLISHED_TABLES_CROSS)]
        widest, largest = max(map(abs, coarse)), max(map(abs, published))
        text = (
            f"{'A coarse rule is enough to explain' if widest >= largest else 'A coarse rule does not explain'} "
            f"deviations of the published size at omega = {omega}: these rules are off by {min(coarse):+.1f} to "
            f"{max(coarse):+.1f} %, the published values by {min(published):+.1f} to {max(published):+.1f} %."
        )
        text += _single_start(results["coarse"]["crossings"])
        text += (
            " What is shown is the size of such errors, not the published digits: these, and their sign, depend on "
            "details of the rule that are not reproduced here, such as the order in which the fields are sampled."
        )
        blocks.append(Paragraph(text))
    return blocks


def _single_start(crossings: Sequence[Mapping[str, Any]]) -> str:
    """What the single proximal start contributes: the same rule with and without it."""
    values = {row["rule"]: row["value"] for row in crossings}
    for rule, single in values.items():
        stem, _, rest = rule.partition(", one proximal start")
        both = values.get(f"{stem}, global proximal map")
        if rest or single is None or both is None or stem == rule:
            continue
        moved = abs(single - both)
        how = "not at all" if moved < 5e-5 else "little" if moved < 5e-3 else "too"
        return (
            f" The single proximal start matters {how}: with the same points, one start gives {single:.4f} and the "
            f"global proximal map {both:.4f}."
        )
    return ""


def _derivation(results: Mapping[str, Any]) -> list[Block]:
    found = results["generated"]["differences"]
    fresh = (
        "The committed solver is what the generator writes today, byte for byte."
        if not found
        else "The committed solver is NOT what the generator writes: " + "; ".join(found) + ". `saddleforge generate` "
        "writes it anew."
    )
    equations = ", ".join(results["derivation"]["equations"])
    return [
        Heading("Derivation and generated solver"),
        Paragraph(
            "The saddle-point equations were derived by differentiating the free entropy (derivation.txt, "
            f"derivation.tex): one each for {equations}. {fresh}"
        ),
    ]


def deviation(published: float, ours: float) -> str:
    """(published - ours) / ours in percent, with its sign."""
    percent = 100 * (published - ours) / ours
    return f"{percent:+.2f} %" if math.isfinite(percent) else "-"


def markdown(results: Mapping[str, Any], images: Mapping[str, bytes]) -> str:
    """The report in Markdown, figures by their path `figures/<name>.png`."""
    return markdown_of(content(results, list(images)))


def markdown_of(blocks: Sequence[Block]) -> str:
    """Blocks in Markdown."""
    parts = []
    for block in blocks:
        if isinstance(block, Heading):
            parts.append("#" * block.level + " " + block.text)
        elif isinstance(block, Paragraph):
            parts.append(block.text)
        elif isinstance(block, Picture):
            parts.append(f"![{block.caption}](figures/{block.name}.png)\n\n*{block.caption}*")
        else:
            lines = [block.head, ["---"] * len(block.head), *block.rows]
            parts.append("\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines))
    return "\n\n".join(parts) + "\n"


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
h1, h2, h3 {{ line-height: 1.25; }}
h2 {{ border-bottom: 1px solid #ddd; padding-bottom: .2rem; margin-top: 2.2rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; font-size: .93rem; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; vertical-align: top; padding: .3rem .7rem; border-bottom: 1px solid #e2e2e2; }}
th {{ border-bottom: 2px solid #999; }}
figure {{ margin: 1.5rem 0; }}
figure img {{ max-width: 100%; height: auto; }}
figcaption {{ color: #555; font-size: .9rem; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def html(results: Mapping[str, Any], images: Mapping[str, bytes]) -> str:
    """The report as one HTML file that holds its figures."""
    return html_of(content(results, list(images)), images)


def html_of(blocks: Sequence[Block], images: Mapping[str, bytes]) -> str:
    """Blocks as one HTML file that holds its figures."""
    parts = []
    title = ""
    for block in blocks:
        if isinstance(block, Heading):
            title = title or block.text
            parts.append(f"<h{block.level}>{markup.escape(block.text)}</h{block.level}>")
        elif isinstance(block, Paragraph):
            parts.append(f"<p>{markup.escape(block.text)}</p>")
        elif isinstance(block, Picture):
            data = base64.b64encode(images[block.name]).decode()
            caption = markup.escape(block.caption)
            parts.append(
                f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
                f"<figcaption>{caption}</figcaption></figure>"
            )
        else:
            head = "".join(f"<th>{markup.escape(cell)}</th>" for cell in block.head)
            rows = ["".join(f"<td>{markup.escape(cell)}</td>" for cell in row) for row in block.rows]
            lines = "\n".join(f"<tr>{row}</tr>" for row in (head, *rows))
            parts.append(f"<table>\n{lines}\n</table>")
    return _PAGE.format(title=markup.escape(title), body="\n".join(parts))


__all__ = ["content", "html", "html_of", "is_complete", "markdown", "markdown_of"]
