"""Automatic numbers of a DOCX file's paragraphs, such as `7.2` and `(b)`, counted as a word processor counts them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from app.documents.archive import Archive, Element, attribute, child, children, is_on, number, value

_LEVELS: Final = 9
_PLACE: Final = re.compile(r"%([1-9])")
_ROMAN: Final = {
    **{"m": 1000, "cm": 900, "d": 500, "cd": 400, "c": 100, "xc": 90, "l": 50, "xl": 40},
    **{"x": 10, "ix": 9, "v": 5, "iv": 4, "i": 1},
}
_MOST_ROMAN: Final = 4_000
_MOST_LETTERS: Final = 8
_WITHOUT_NUMBER: Final = ("bullet", "none")


@dataclass(frozen=True, slots=True)
class _Level:
    text: str = ""
    form: str = "decimal"
    start: int = 1
    restarts_after: int | None = None
    """Levels above this one, from 0: a paragraph of one of them lets it begin anew; None: of any above."""
    is_legal: bool = False
    """All numbers in its text are decimal."""
    style: str = ""
    """Of the paragraphs that have this level without saying so."""


@dataclass(slots=True)
class _List:
    """An abstract list: several lists of a document go on counting in it."""

    levels: dict[int, _Level] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a paragraph stands in a list. Empty `list_id`: in none."""

    list_id: str
    level: int | None = None
    """From 0; None: what the list says of the paragraph's style."""


class Numbering:
    """The lists of a document, and how far each has been counted."""

    def __init__(self, archive: Archive, main: str) -> None:
        self._lists: Final[dict[str, _List]] = {}
        self._overrides: Final[dict[str, Mapping[int, int]]] = {}
        for part in archive.related(main, "numbering").values():
            self._read(archive.xml(part))

    def _read(self, root: Element) -> None:
        abstract: dict[str, _List] = {}
        styled: dict[str, _List] = {}
        links: dict[str, str] = {}
        for each in children(root, "abstractNum"):
            key = attribute(each, "abstractNumId")
            abstract[key] = _List({_depth(level): _level(level) for level in children(each, "lvl")})
            styled[value(each, "styleLink")] = abstract[key]
            links[key] = value(each, "numStyleLink")
        for each in children(root, "num"):
            key = value(each, "abstractNumId")
            found = styled.get(links.get(key, "")) if links.get(key) else abstract.get(key)
            overrides = list(children(each, "lvlOverride"))
            own = {_depth(one): _level(child(one, "lvl")) for one in overrides if child(one, "lvl") is not None}
            if found is not None and own:
                found = _List({**found.levels, **own}, found.counts)
            if found is not None:
                name = attribute(each, "numId")
                self._lists[name] = found
                starts = {_depth(one): number(value(one, "startOverride"), -1) for one in overrides}
                self._overrides[name] = {depth: start for depth, start in starts.items() if start >= 0}

    def next(self, place: Place, style: str) -> tuple[int, str]:
        """Counts a paragraph, and returns its level, from 0, and its number; `-` for a bullet, empty for none."""
        found = self._lists.get(place.list_id)
        if found is None:
            return place.level or 0, "-"
        named = (depth for depth, level in found.levels.items() if style and level.style == style)
        depth = next(named, 0) if place.level is None else place.level
        level = found.levels.get(depth)
        if level is None:
            return depth, "-"
        start = self._start(place.list_id, depth, level, found.counts)
        found.counts[depth] = found.counts[depth] + 1 if depth in found.counts else start
        for deeper in [one for one in found.counts if one > depth]:
            after = found.levels[deeper].restarts_after if deeper in found.levels else None
            if after is None or depth < after:
                del found.counts[deeper]
        if level.form in _WITHOUT_NUMBER and not _PLACE.search(level.text):
            return depth, "-" if level.form == "bullet" else level.text
        return depth, _PLACE.sub(lambda place: _number(found, int(place[1]) - 1, level), level.text).strip()

    def _start(self, list_id: str, depth: int, level: _Level, counts: dict[int, int]) -> int:
        """Returns where a level begins. A list that begins anew does so once, when it is first met."""
        override = self._overrides.get(list_id, {})
        if depth in override:
            self._overrides[list_id] = {key: start for key, start in override.items() if key != depth}
            counts.pop(depth, None)
            return override[depth]
        return level.start


def _depth(element: Element) -> int:
    return min(number(attribute(element, "ilvl"), 0), _LEVELS - 1)


def _level(element: Element) -> _Level:
    restart = value(element, "lvlRestart")
    return _Level(
        value(element, "lvlText"),
        value(element, "numFmt") or "decimal",
        number(value(element, "start"), 1),
        number(restart, 0) if restart else None,
        is_on(child(element, "isLgl")),
        value(element, "pStyle"),
    )


def _number(found: _List, depth: int, within: _Level) -> str:
    level = found.levels.get(depth, _Level())
    return counted(found.counts.get(depth, level.start), "decimal" if within.is_legal else level.form)


def counted(count: int, form: str) -> str:
    """Returns a number in a form such as `lowerRoman`; those that are unknown are decimal."""
    match form:
        case "lowerLetter" | "upperLetter" if count > 0:
            repeats = (count - 1) // 26 + 1
            letters = chr(ord("a") + (count - 1) % 26) * min(repeats, _MOST_LETTERS)
            return letters.upper() if form == "upperLetter" else letters
        case "lowerRoman" | "upperRoman" if 0 < count < _MOST_ROMAN:
            shown = ""
            for letters, worth in _ROMAN.items():
                shown += letters * (count // worth)
                count %= worth
            return shown.upper() if form == "upperRoman" else shown
        case "decimalZero":
            return f"{count:02}"
        case "none":
            return ""
    return str(count)
