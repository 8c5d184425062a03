"""Rows of Markdown tables."""

from collections.abc import Sequence


def heading(cells: Sequence[str], *, left: int = 0) -> list[str]:
    """A head; columns after the first are aligned right unless `left` more are not."""
    return [row(cells), row(["---" if index <= left else "---:" for index in range(len(cells))])]


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
