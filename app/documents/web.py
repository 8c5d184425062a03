"""HTML as Markdown: headings, lists, tables and texts; neither addresses nor pictures, nor what is not shown."""

import re
from typing import Any

from bs4 import BeautifulSoup
from markdownify import MarkdownConverter

from app.documents.document import Content, Section
from app.documents.left_out import HIDDEN_NOTE
from app.documents.plain import decoded

_NOT_SHOWN = ["script", "style", "noscript", "template", "iframe", "object", "svg", "head", "select"]
_CHARSET = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?([\w-]{1,40})""", re.IGNORECASE)


def read(data: bytes) -> Content:
    """Returns the text. Raises DocumentError."""
    declared = _CHARSET.search(data[:4096])
    text, notes = decoded(data, declared[1].decode() if declared else None)
    shown, more = as_markdown(text)
    return Content([Section(shown)], notes + more)


def as_markdown(text: str) -> tuple[str, list[str]]:
    """Returns HTML as Markdown, and notes."""
    page = BeautifulSoup(text, "lxml")
    title = page.title.get_text(" ", strip=True) if page.title is not None else ""
    hidden = page.select('[hidden], [style*="display:none"], [style*="display: none"]')
    notes = [HIDDEN_NOTE] if any(each.get_text(strip=True) for each in hidden) else []
    for each in [*page.find_all(_NOT_SHOWN), *hidden]:
        each.decompose()
    options: dict[str, Any] = {
        "heading_style": "atx",
        "bullets": "-",
        "strip": ["a", "img"],
        "table_infer_header": True,
        "escape_asterisks": False,
        "escape_underscores": False,
        "escape_misc": False,
    }
    try:
        shown = MarkdownConverter(**options).convert_soup(page)
    except RecursionError:
        shown = page.get_text("\n")
    return f"# {title}\n\n{shown}" if title and page.find("h1") is None else str(shown), notes
