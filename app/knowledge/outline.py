"""The headings and tables of a Markdown text: what a piece of it is about that does not begin with them."""

import re
from bisect import bisect_right
from typing import Final

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING: Final = re.compile(r"(#{1,6}) +(?=\S)")
_MOST_HEADING_CHARACTERS: Final = 120
_MOST_PATH_CHARACTERS: Final = 300
_MOST_LEAD_CHARACTERS: Final = 450
"""Of a table's header; a longer one is left out."""


class Outline:
    """Where headings and tables are in a text. What stands in fences is neither."""

    def __init__(self, text: str) -> None:
        self._headings: list[tuple[int, str, str]] = []
        """Place, the path with the heading itself, and the path of those that it is under."""
        self._tables: list[tuple[int, int, str]] = []
        """Place, the end of its last row, and its header."""
        path, fence, at, before = list[tuple[int, str]](), "", 0, ""
        table: tuple[int, str] | None = None
        for line in text.split("\n"):
            if table is not None and not line.startswith("|"):
                self._tables.append((table[0], at, table[1]))
                table = None
            if (found := _FENCE.match(line)) is not None and (not fence or found[1].startswith(fence)):
                fence = "" if fence else found[1]
            elif fence:
                pass
            elif (found := _HEADING.match(line)) is not None:
                level, name = len(found[1]), line[found.end() : found.end() + _MOST_HEADING_CHARACTERS].rstrip(" #")
                path = [each for each in path if each[0] < level]
                parents = _shown(path)
                path.append((level, name))
                self._headings.append((at, _shown(path), parents))
            elif table is None and _is_separator(line) and before.startswith("|"):
                header = f"{before}\n{line}"
                table = at - len(before) - 1, header if len(header) <= _MOST_LEAD_CHARACTERS else ""
            before = line
            at += len(line) + 1
        if table is not None:
            self._tables.append((table[0], at, table[1]))

    def heading(self, place: int) -> str:
        """Returns the headings that a place is under, without one that stands there."""
        before = bisect_right(self._headings, place, key=lambda one: one[0]) - 1
        if before < 0:
            return ""
        begin, with_itself, parents = self._headings[before]
        return parents if begin == place else with_itself

    def lead(self, place: int) -> str:
        """Returns the header of the table in which a place is, unless the table begins there."""
        before = bisect_right(self._tables, place, key=lambda one: one[0]) - 1
        if before < 0:
            return ""
        begin, end, header = self._tables[before]
        return header if begin < place < end else ""


def _is_separator(line: str) -> bool:
    return line.startswith("|") and "-" in line and not line.strip("|-: ")


def _shown(path: list[tuple[int, str]]) -> str:
    """Returns headings in one line; of too many, those in the middle are left out."""
    names = [name for _, name in path]
    while len(names) > 2 and sum(map(len, names)) > _MOST_PATH_CHARACTERS:
        del names[1]
    return " > ".join(names)
