"""Renders a growing Markdown text as terminal lines: final ones, and those that may still change.

Rich renders block by block: a block is final when another one has begun, a list item when the next has, and a line of
code when it is complete. Knows nothing of cursors.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from rich.color import ColorSystem
from rich.console import Console
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

_CODE_THEME = "ansi_dark"
"""Uses the terminal's own colours, which its user can read."""
_CODE_CONTEXT_LINES = 100
"""Context lines before a line of code, for constructs that began there."""
_FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,})\s*([^`\n]*)\n?$")


@dataclass(frozen=True, slots=True)
class Line:
    """One line with its colours."""

    text: str
    cells: int
    """The line's width."""


@dataclass(slots=True)
class _Code:
    """A block of code that has begun."""

    opening: str
    language: str
    lines: list[str] = field(default_factory=list)

    def is_end(self, line: str) -> bool:
        found = _FENCE.match(line)
        return found is not None and found[2].startswith(self.opening) and not found[3].strip()


class _LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar = {}


class _Block(Markdown):
    """The tokens of one block."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _LeftHeading}

    def __init__(self, tokens: Sequence[Token]) -> None:
        super().__init__("", code_theme=_CODE_THEME, hyperlinks=False)
        self.parsed = list(tokens)
        for token in tokens:
            token.children = _shown(token.children) if token.children else token.children


@dataclass(frozen=True, slots=True)
class _Unit:
    """A block, or an item of a list."""

    first_line: int
    tokens: list[Token]
    is_item: bool
    number: int | None
    """Number of an ordered list's item."""


class GrowingMarkdown:
    """Takes the text piece by piece."""

    def __init__(self) -> None:
        self._parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
        self._parser.disable(["reference", "html_block", "html_inline"])
        self._parser.inline.ruler.before("escape", "formula", _formula)
        self._rest = ""
        self._code: _Code | None = None
        self._is_after_item = False
        self._is_begun = False
        self._number: int | None = None
        """The last number of an ordered list that continues."""

    def take(self, text: str, width: int, *, is_over: bool = False) -> tuple[list[Line], list[Line]]:
        """Adds text; returns new final lines, and all that may still change."""
        self._rest += text
        done: list[Line] = []
        while self._take_code(done) if self._code is not None else self._take_blocks(done, width, is_over):
            pass
        if is_over and self._code is not None and self._rest:
            self._rest += "\n"
            self._take_code(done)
        return done, self._open(width)

    def _take_blocks(self, done: list[Line], width: int, is_over: bool) -> bool:
        """Renders blocks. Returns whether code has begun, and more text must be processed."""
        if is_over and self._rest and not self._rest.endswith("\n"):
            self._rest += "\n"
        whole = self._rest[: self._rest.rfind("\n") + 1]
        lines = whole.splitlines(keepends=True)
        units = self._units(self._parser.parse(whole))
        for place, unit in enumerate(units):
            opening = _FENCE.match(lines[unit.first_line]) if unit.tokens[0].type == "fence" else None
            if opening is not None:
                self._separate(done, is_item=False)
                self._code = _Code(opening[2], opening[3].split(" ")[0].strip())
                done.append(_dim(f"{opening[2]}{opening[3].rstrip()}"))
                self._rest = "".join(lines[unit.first_line + 1 :]) + self._rest[len(whole) :]
                return True
            if place == len(units) - 1 and not is_over:
                self._rest = "".join(lines[unit.first_line :]) + self._rest[len(whole) :]
                return False
            self._separate(done, is_item=unit.is_item)
            self._number = unit.number
            done += _rendered(unit.tokens, width)
        if is_over:
            self._rest = ""
        return False

    def _take_code(self, done: list[Line]) -> bool:
        """Renders code. Returns whether it has ended, and more text must be processed."""
        assert self._code is not None
        first_new = len(self._code.lines)
        is_end = False
        end = self._rest.rfind("\n") + 1
        lines = self._rest[:end].splitlines(keepends=True)
        rest = self._rest[end:]
        closing: list[Line] = []
        for place, line in enumerate(lines):
            if self._code.is_end(line):
                is_end = True
                closing = [_dim(line.strip())]
                rest = "".join(lines[place + 1 :]) + rest
                break
            self._code.lines.append(line.rstrip("\n"))
        done += _highlighted(self._code, self._code.lines, first_new)
        done += closing
        self._rest = rest
        if is_end:
            self._code = None
        return is_end

    def _open(self, width: int) -> list[Line]:
        if self._code is not None:
            if not self._rest or _FENCE.match(self._rest):
                return []
            lines = [*self._code.lines, self._rest]
            return _highlighted(self._code, lines, len(lines) - 1)
        shown: list[Line] = []
        is_begun, is_after_item = self._is_begun, self._is_after_item
        for unit in self._units(self._parser.parse(self._rest)):
            self._separate(shown, is_item=unit.is_item)
            shown += _rendered(unit.tokens, width)
        self._is_begun, self._is_after_item = is_begun, is_after_item
        return shown

    def _separate(self, lines: list[Line], *, is_item: bool) -> None:
        if self._is_begun and not (is_item and self._is_after_item):
            lines.append(Line("", 0))
        self._is_begun, self._is_after_item = True, is_item

    def _units(self, tokens: Sequence[Token]) -> list[_Unit]:
        units: list[_Unit] = []
        for block in _blocks(tokens, level=0):
            if block[0].type not in ("bullet_list_open", "ordered_list_open"):
                units.append(_Unit(_first_line(block), block, is_item=False, number=None))
                continue
            number = _start(block[0])
            if not units and self._number is not None and self._is_after_item:
                number = self._number + 1
            for item in _blocks(block[1:-1], level=1):
                is_ordered = block[0].type == "ordered_list_open"
                opening = block[0].copy(attrs={"start": number} if is_ordered else {})
                tokens_of_item = [opening, *item, block[-1]]
                units.append(
                    _Unit(_first_line(item), tokens_of_item, is_item=True, number=number if is_ordered else None)
                )
                number += 1
        return units


def _shown(tokens: Sequence[Token]) -> list[Token]:
    """Appends a link's address to its text if they differ; an image's always."""
    shown: list[Token] = []
    for place, token in enumerate(tokens):
        if token.type == "image":
            shown.append(Token("text", "", 0, content=f"{token.content} ({token.attrs.get('src', '')})"))
        elif _is_around_its_address(tokens, place) or _is_around_its_address(tokens, place - 2):
            continue
        else:
            shown.append(token)
    return shown


def _is_around_its_address(tokens: Sequence[Token], opening: int) -> bool:
    """Whether the link opening there has its address as text."""
    if opening < 0 or tokens[opening].type != "link_open" or opening + 2 >= len(tokens):
        return False
    is_whole = tokens[opening + 2].type == "link_close"
    return is_whole and tokens[opening + 1].content == tokens[opening].attrs.get("href")


def _blocks(tokens: Iterable[Token], level: int) -> list[list[Token]]:
    """Splits tokens into the blocks at that level."""
    blocks: list[list[Token]] = []
    for token in tokens:
        if token.level == level and token.nesting >= 0:
            blocks.append([])
        blocks[-1].append(token)
    return blocks


def _first_line(block: Sequence[Token]) -> int:
    return block[0].map[0] if block[0].map else 0


def _start(token: Token) -> int:
    return int(token.attrs.get("start", 1))


def _formula(state: StateInline, silent: bool) -> bool:
    r"""Keeps `\(` and `\[`, which begin formulas more often than they escape a bracket."""
    found = state.src[state.pos : state.pos + 2]
    if found not in (r"\(", r"\)", r"\[", r"\]"):
        return False
    if not silent:
        state.pending += found
    state.pos += 2
    return True


def _rendered(tokens: Sequence[Token], width: int) -> list[Line]:
    console = _console(width)
    lines = [_line(line) for line in console.render_lines(_Block(tokens), pad=False)]
    while lines and not lines[-1].text:
        lines.pop()
    while lines and not lines[0].text:
        lines.pop(0)
    return lines


def _highlighted(code: _Code, lines: Sequence[str], first: int) -> list[Line]:
    """Highlights the lines from `first` on. They are not wrapped, so that copied text is the code."""
    if first == len(lines):
        return []
    begin = max(0, first - _CODE_CONTEXT_LINES)
    text = "\n".join(lines[begin:])
    console = _console(80)
    highlighted = Syntax(text, code.language or "text", theme=_CODE_THEME, background_color="default").highlight(text)
    parts = highlighted.split("\n", allow_blank=True)[first - begin : len(lines) - begin]
    return [_line(_segments(part, console)) for part in parts]


def _segments(text: Text, console: Console) -> list[Segment]:
    text.end = ""
    return list(text.render(console))


def _line(segments: Iterable[Segment]) -> Line:
    kept = [segment for segment in segments if not segment.control]
    while kept and not kept[-1].text.strip():
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style)
    system = ColorSystem.STANDARD
    text = "".join(one.style.render(one.text, color_system=system) if one.style else one.text for one in kept)
    return Line(text, sum(one.cell_length for one in kept))


def _dim(text: str) -> Line:
    return _line([Segment(text, Style(dim=True))])


def _console(width: int) -> Console:
    return Console(
        file=StringIO(),
        width=width,
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
        theme=Theme({"markdown.code": "bold cyan"}),  # readable on light and dark
    )
