"""Rows of Markdown tables, and where a page has them."""

from collections.abc import Sequence


def heading(cells: Sequence[str], *, left: int = 0) -> list[str]:
    """A head; columns after the first are aligned right unless `left` more are not."""
    return [row(cells), row(["---" if index <= left else "---:" for index in range(len(cells))])]


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def between_marks(page: str, name: str, text: str) -> str:
    """The page with the text between the marks of `name` replaced. Raises ValueError if it has none."""
    marks = begin, end = f"<!-- {name} begins -->", f"<!-- {name} ends -->"
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"the page has no {' and '.join(marks)}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"
