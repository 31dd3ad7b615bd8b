"""The content of a page: headings, paragraphs, tables and figures, built once and laid out as Markdown and as HTML."""

from __future__ import annotations

import base64
import html as markup
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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
