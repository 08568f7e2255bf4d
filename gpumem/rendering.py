"""How results look: one line for ``repr``, a small table for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["html_table", "plural"]


def html_table(
    title: str, rows: Iterable[Sequence[str]], *, header: Sequence[str] = ()
) -> str:
    """Return an HTML table with a caption; every text is escaped.

    Parameters
    ----------
    title
        The caption.
    rows
        Cells as text; the first column is left-aligned, all others right-aligned.
    header
        Names of the columns; none by default.
    """
    parts = ['<table class="gpumem">', f"<caption>{escape(title)}</caption>"]
    if header:
        cells = "".join(f"<th>{escape(cell)}</th>" for cell in header)
        parts.append(f"<thead><tr>{cells}</tr></thead>")
    parts.append("<tbody>")
    for row in rows:
        cells = "".join(
            f'<td style="text-align:{"right" if number else "left"}">'
            f"{escape(cell)}</td>"
            for number, cell in enumerate(row)
        )
        parts.append(f"<tr>{cells}</tr>")
    parts.append("</tbody></table>")
    return "".join(parts)


def plural(count: int, noun: str) -> str:
    """Return ``"1 buffer"``, ``"2 buffers"``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
