"""ODT: headings, paragraphs, lists, tables, text boxes, notes, headers and footers. Hidden text is left out."""

from collections.abc import Iterator
from typing import Final

from app.documents.archive import Archive, Element, attribute, child, children, number, tag
from app.documents.document import ANOTHER_ARCHIVE, Content, DocumentError, Section
from app.documents.left_out import LeftOut
from app.documents.markdown import entry, heading, table
from app.documents.opendocument_lists import Lists

_SKIPPED = ("tracked-changes", "annotation", "sequence-decls", "note-citation", "desc", "title")
_AROUND_PAGES = ("header", "header-first", "header-left", "footer", "footer-first", "footer-left")
_MOST_REPEATED = 256
"""Of a cell, a row or a space: a sheet's last ones say that they are repeated to its end."""
_MOST_PARENTS = 16
_MOST_LEVELS = 10


def read(archive: Archive) -> Content:
    """Returns the text. Raises DocumentError."""
    if not archive.bytes("mimetype").strip().endswith(b"opendocument.text"):
        raise DocumentError(ANOTHER_ARCHIVE)
    if "META-INF/manifest.xml" in archive.names:
        manifest = archive.xml("META-INF/manifest.xml")
        if any(tag(each) == "encryption-data" for each in manifest.iter()):
            raise DocumentError("is protected by a password: save it without one")
    content = archive.xml("content.xml")
    styles = archive.xml("styles.xml") if "styles.xml" in archive.names else None
    reader = _Reader(_hidden_styles(content, styles), Lists(styles, content))
    sections = [Section(_joined(reader.blocks(child(content, "body", "text"))))]
    around = [_joined(reader.blocks(each)) for each in _around_pages(content, styles)]
    if said := [text for text in dict.fromkeys(around) if any(character.isalpha() for character in text)]:
        sections.append(Section("\n\n".join(said), mark="headers and footers"))
    return Content(sections, reader.left_out.notes())


class _Reader:
    def __init__(self, hidden_styles: frozenset[str], lists: Lists) -> None:
        self._hidden: Final = hidden_styles
        self._lists: Final = lists
        self.left_out: Final = LeftOut()

    def blocks(self, parent: Element | None, depth: int = 0, style: str = "") -> Iterator[str]:
        """Yields paragraphs, headings, lists and tables. depth, style: of the lists around them, the last one's."""
        for each in () if parent is None else parent:
            if self._is_hidden(each):
                self.left_out.hidden = True
                continue
            match tag(each):
                case "p":
                    yield "".join(self._texts(each))
                case "h":
                    yield self._heading(each, is_in_list=bool(depth))
                case "list":
                    yield "\n".join(self._entries(each, depth, style))
                case "table":
                    yield table(self._rows(each))
                case "frame":
                    yield "\n".join(self._frame(each))
                case name if name not in _SKIPPED:
                    yield from self.blocks(each, depth, style)

    def _heading(self, element: Element, *, is_in_list: bool) -> str:
        level = min(max(number(attribute(element, "outline-level"), 1), 1), _MOST_LEVELS)
        text = "".join(self._texts(element))
        if is_in_list or not text.strip():  # a list has its own numbers
            return heading(level, text)
        return heading(level, f"{self._lists.heading(element, level)} {text}")

    def _entries(self, parent: Element, depth: int, style: str) -> Iterator[str]:
        outer = style
        style = attribute(parent, "style-name") or outer
        self._lists.begin(parent, style, depth + 1, outer)
        for item in parent:
            is_counted = tag(item) == "list-item" and tag(next(iter(item), item)) in ("p", "h")
            mark = self._lists.entry(item, style, depth + 1) if is_counted else ""
            for index, each in enumerate(item):
                for block in self.blocks([each], depth + 1, style):
                    if tag(each) == "list":
                        yield block
                    elif index or not mark:
                        yield f"{'  ' * min(depth + 1, 8)}{block}"
                    elif tag(each) == "h":
                        level, _, text = block.partition(" ")
                        yield block if mark == "-" else f"{level} {mark} {text}"
                    else:
                        yield entry(depth, block, mark)

    def _rows(self, parent: Element) -> Iterator[list[str]]:
        for each in parent:
            if tag(each) == "table-row":
                if attribute(each, "visibility") in ("collapse", "filter"):
                    self.left_out.hidden = True
                    continue
                cells: list[str] = []
                for cell in each:
                    cells += [" ".join(self.blocks(cell))] * _count(cell, "number-columns-repeated")
                for _ in range(_count(each, "number-rows-repeated")):
                    yield cells
            elif tag(each) in ("table-header-rows", "table-rows", "table-row-group"):
                yield from self._rows(each)

    def _texts(self, element: Element) -> Iterator[str]:
        yield element.text or ""
        for each in element:
            if self._is_hidden(each):
                self.left_out.hidden = True
                yield each.tail or ""
                continue
            match tag(each):
                case "s":
                    yield " " * _count(each, "c")
                case "tab":
                    yield "\t"
                case "line-break":
                    yield "\n"
                case "note":
                    said = " ".join(" ".join(self.blocks(body)) for body in children(each, "note-body"))
                    yield f" [{said}]"
                case "table" | "list":
                    yield "\n".join(["", *self.blocks([each]), ""])
                case "frame":
                    lines = list(self._frame(each))
                    yield "\n".join(["", *lines, ""]) if lines else ""
                case name if name not in _SKIPPED:
                    yield from self._texts(each)
            yield each.tail or ""

    def _frame(self, frame: Element) -> Iterator[str]:
        """Yields what a text box says. Other frames are counted."""
        inside = {tag(each) for each in frame}
        if "text-box" in inside:
            for box in children(frame, "text-box"):
                yield from self.blocks(box)
        elif inside & {"object", "object-ole", "plugin", "floating-frame"}:
            self.left_out.objects += 1
        else:
            self.left_out.pictures += "image" in inside

    def _is_hidden(self, element: Element) -> bool:
        """Whether an element is shown to nobody: a section, a paragraph, or a part of one."""
        match tag(element):
            case "section" | "table":
                shown = attribute(element, "display")
                return shown in ("none", "false") or (shown == "condition" and _says_hidden(element))
            case "hidden-text":
                return _says_hidden(element)
            case "p" | "h":
                is_hidden = any(_says_hidden(each) for each in children(element, "hidden-paragraph"))
                return is_hidden or attribute(element, "style-name") in self._hidden
            case "span":
                return attribute(element, "style-name") in self._hidden
        return False


def _joined(blocks: Iterator[str]) -> str:
    return "\n\n".join(block for block in blocks if block.strip())


def _says_hidden(element: Element) -> bool:
    return attribute(element, "is-hidden") == "true"


def _hidden_styles(*parts: Element) -> frozenset[str]:
    """Returns the names of the styles whose text is not shown."""
    parents: dict[str, str] = {}
    shown: dict[str, bool] = {}
    for part in parts:
        for kind in ("styles", "automatic-styles"):
            for style in children(child(part, kind), "style"):
                name, properties = attribute(style, "name"), child(style, "text-properties")
                parents[name] = attribute(style, "parent-style-name")
                if properties is not None and attribute(properties, "display"):
                    shown[name] = attribute(properties, "display") != "none"
    hidden = set()
    for name in parents:
        asked = name
        for _ in range(_MOST_PARENTS):
            if asked in shown or asked not in parents:
                break
            asked = parents[asked]
        if not shown.get(asked, True):
            hidden.add(name)
    return frozenset(hidden)


def _around_pages(content: Element, styles: Element | None) -> Iterator[Element]:
    """Yields the headers and footers of the kinds of pages that the text has."""
    used = {"Standard"}
    for part in (content, styles):
        for each in () if part is None else part.iter("{*}style"):
            used.add(attribute(each, "master-page-name"))
    for page in children(child(styles, "master-styles"), "master-page"):
        if attribute(page, "name") in used:
            for each in page:
                if tag(each) in _AROUND_PAGES and attribute(each, "display") != "false":
                    yield each


def _count(element: Element, name: str) -> int:
    return min(number(attribute(element, name), 1), _MOST_REPEATED)
