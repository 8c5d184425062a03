"""What drawings in office files say: the texts of shapes, charts as tables of their values, and diagrams as lists."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from app.documents.archive import Archive, Element, attribute, child, children, is_on, number, tag
from app.documents.markdown import entry, table
from app.documents.number_formats import NumberFormat
from app.documents.numbering import counted

_SPACES = {"br": "\n", "tab": "\t"}
_NUMBER: Final = re.compile("([a-z]+(?:Lc|Uc)?)(Period|ParenR|ParenBoth|Plain)")
_FORMS: Final = {"alphaLc": "lowerLetter", "alphaUc": "upperLetter", "romanLc": "lowerRoman", "romanUc": "upperRoman"}
_AROUND: Final = {"Period": ("", "."), "ParenR": ("", ")"), "ParenBoth": ("(", ")")}
_OF_LINES = ("pres", "parTrans", "sibTrans")
"""Points of a diagram that are lines between its texts, and how these look."""


def shape_text(body: Element | None) -> str:
    """Returns the paragraphs of a shape's text with their automatic numbers, a line each."""
    lines, counts = [], dict[int, int]()
    for paragraph in children(body, "p"):
        pieces = (each.text or "" if tag(each) == "t" else _SPACES.get(tag(each), "") for each in paragraph.iter())
        text = "".join(pieces)
        lines.append(f"{_numbered(child(paragraph, 'pPr'), counts)}{text}" if text.strip() else text)
    return "\n".join(lines)


def _numbered(properties: Element | None, counts: dict[int, int]) -> str:
    """Counts a paragraph, and returns what stands before it: indents and its number; nothing if it has none."""
    level = 0 if properties is None else number(attribute(properties, "lvl"), 0)
    for deeper in [one for one in counts if one > level]:
        del counts[deeper]
    automatic = child(properties, "buAutoNum")
    found = None if automatic is None else _NUMBER.fullmatch(attribute(automatic, "type"))
    if automatic is None or found is None:
        counts.pop(level, None)
        return ""
    counts[level] = counts[level] + 1 if level in counts else number(attribute(automatic, "startAt"), 1)
    before, behind = _AROUND.get(found[2], ("", ""))
    return f"{'  ' * min(level, 8)}{before}{counted(counts[level], _FORMS.get(found[1], 'decimal'))}{behind} "


def is_hidden_shape(shape: Element) -> bool:
    """Whether a shape, a picture or a frame is there, and not shown."""
    first = next(iter(shape), None)
    properties = child(first, "cNvPr")
    return properties is not None and attribute(properties, "hidden").lower() in ("1", "true")


def graphic(archive: Archive, part: str, element: Element) -> str | None:
    """Returns what a chart or a diagram says to which an element of a part refers; None: it is neither."""
    match tag(element):
        case "chart":
            name = archive.related(part, "chart").get(attribute(element, "id"))
            return None if name is None else _chart(archive.xml(name))
        case "relIds":
            name = archive.related(part, "diagramData").get(attribute(element, "dm"))
            return None if name is None else _diagram(archive.xml(name))
    return None


def _chart(root: Element) -> str:
    chart, is_1904 = child(root, "chart"), is_on(child(root, "date1904"))

    def points(element: Element | None) -> Mapping[int, str]:
        return _points(element, is_1904=is_1904)

    title = child(chart, "title", "tx", "rich")
    series = [] if chart is None else [each for each in chart.iter() if tag(each) == "ser"]
    named = [" ".join(points(child(each, "tx")).values()) for each in series]
    values = [points(child(each, "val")) or points(child(each, "yVal")) for each in series]
    categories: dict[int, str] = {}
    for each in series:
        for index, shown in (points(child(each, "cat")) or points(child(each, "xVal"))).items():
            categories.setdefault(index, shown)
    indexes = sorted({index for each in values for index in each} | set(categories))
    rows = ([categories.get(at, str(at + 1)), *(each.get(at, "") for each in values)] for at in indexes)
    heading = " ".join(["Chart:", *shape_text(title).split()]) if title is not None else "Chart:"
    return f"{heading}\n\n{table([['', *named], *rows])}".strip()


def _points(element: Element | None, *, is_1904: bool) -> Mapping[int, str]:
    """Returns the values that a chart keeps of the cells to which it refers, by index."""
    points: dict[int, str] = {}
    if element is not None:
        codes = [each.text or "" for each in element.iter() if tag(each) == "formatCode"]
        shape = NumberFormat(codes[0] if codes else "")
        for each in element.iter():
            if tag(each) == "pt":
                text = "" if (found := child(each, "v")) is None else found.text or ""
                shown = _shown(text, shape, is_1904=is_1904) if codes else text
                points.setdefault(number(attribute(each, "idx"), 0), shown)
        direct = child(element, "v")
        if direct is not None and not points:
            points[0] = direct.text or ""
    return points


def _shown(text: str, shape: NumberFormat, *, is_1904: bool) -> str:
    try:
        return shape.shown(float(text), is_1904=is_1904)
    except ValueError:
        return text


def _diagram(root: Element) -> str:
    return "\n".join(_entries(root))


def _entries(root: Element) -> Iterator[str]:
    for point in children(child(root, "ptLst"), "pt"):
        text = " ".join(shape_text(child(point, "t")).split())
        if text and attribute(point, "type") not in _OF_LINES:
            yield entry(0, text)
