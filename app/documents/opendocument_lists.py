"""Automatic numbers of an ODT file's headings and list entries, by the styles of its lists."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.documents.archive import Element, attribute, child, number, tag
from app.documents.numbering import counted

_FORMS: Final = {"1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
_OUTLINE: Final = ""
"""The name of the style of headings, which has none."""


@dataclass(frozen=True, slots=True)
class _Level:
    form: str = ""
    """Empty: no number."""
    before: str = ""
    behind: str = ""
    shown_levels: int = 1
    """How many levels its number has, this one last."""
    start: int = 1
    is_bullet: bool = False


class Lists:
    """The styles of a document's lists, and how far each has been counted."""

    def __init__(self, *parts: Element | None) -> None:
        self._styles: Final[dict[str, Mapping[int, _Level]]] = {}
        self._counts: Final[dict[str, dict[int, int]]] = {}
        for part in parts:
            for kind in ("styles", "automatic-styles"):
                for style in () if (found := child(part, kind)) is None else found:
                    if tag(style) in ("list-style", "outline-style"):
                        name = attribute(style, "name") if tag(style) == "list-style" else _OUTLINE
                        self._styles[name] = {number(attribute(one, "level"), 1): _level(one) for one in style}

    def begin(self, element: Element, style: str, level: int, outer: str) -> None:
        """Begins a list of a level, from 1, that counts anew unless it says that it goes on.

        outer: the style of the list around it: with the same one it counts anew after each entry of that list.
        """
        if attribute(element, "continue-numbering") == "true" or attribute(element, "continue-list"):
            return
        if level == 1:
            self._counts[style] = {}
        elif style != outer:
            self._counts.setdefault(style, {}).pop(level, None)

    def entry(self, item: Element, style: str, level: int) -> str:
        """Counts an entry, and returns its number; `-` for a bullet, and where the style says nothing."""
        mark = self._counted(style, level, number(attribute(item, "start-value"), -1))
        return "-" if mark is None else mark

    def heading(self, element: Element, level: int) -> str:
        """Counts a heading that is in no list, and returns its number; empty: it has none."""
        if attribute(element, "is-list-header") == "true":
            return ""
        return self._counted(_OUTLINE, level, number(attribute(element, "start-value"), -1)) or ""

    def _counted(self, style: str, level: int, start: int) -> str | None:
        levels, counts = self._styles.get(style, {}), self._counts.setdefault(style, {})
        own = levels.get(level)
        if own is None or own.is_bullet:
            return None
        counts[level] = start if start >= 0 else counts[level] + 1 if level in counts else own.start
        for deeper in [one for one in counts if one > level]:
            del counts[deeper]
        if not own.form:
            return ""
        numbers = []
        for each in range(max(level - own.shown_levels, 0) + 1, level + 1):
            shown = levels.get(each, _Level())
            if shown.form:
                numbers.append(counted(counts.get(each, shown.start), shown.form))
        return f"{own.before}{'.'.join(numbers)}{own.behind}".strip()


def _level(element: Element) -> _Level:
    return _Level(
        _FORMS.get(attribute(element, "num-format"), ""),
        attribute(element, "num-prefix"),
        attribute(element, "num-suffix"),
        number(attribute(element, "display-levels"), 1),
        number(attribute(element, "start-value"), 1),
        tag(element) in ("list-level-style-bullet", "list-level-style-image"),
    )
