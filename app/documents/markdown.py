"""Writes Markdown: tables, headings and list entries."""

from collections.abc import Iterable, Sequence


def table(rows: Iterable[Sequence[str]]) -> str:
    """Returns a table whose first row is its head, without rows and ends of rows that are empty."""
    lines: list[str] = []
    for row in rows:
        cells = [" ".join(cell.split()).replace("|", "\\|") for cell in row]
        while cells and not cells[-1]:
            cells.pop()
        if cells:
            lines.append(f"| {' | '.join(cells)} |")
            if len(lines) == 1:
                lines.append("|" + " --- |" * len(cells))
    return "\n".join(lines)


def heading(level: int, text: str) -> str:
    """Returns a heading; `text` itself if its level is 0."""
    return f"{'#' * min(level, 6)} {' '.join(text.split())}" if level and text.strip() else text


def entry(level: int, text: str, mark: str = "-") -> str:
    """Returns an entry of a list. level: from 0. mark: its number or bullet; empty: it has none."""
    return f"{'  ' * min(level, 8)}{mark} {text}" if mark else text
