"""PPTX: the texts and tables of each slide, and its notes."""

from collections.abc import Iterator

from app.documents.archive import Archive, Element, attribute, child, children, tag
from app.documents.document import Content, Section
from app.documents.markdown import heading, table


def read(archive: Archive) -> Content:
    """Returns the slides."""
    main = archive.main_part()
    parts = archive.related(main, "slide")
    sections = []
    for number, slide in enumerate(children(child(archive.xml(main), "sldIdLst"), "sldId"), start=1):
        # An id of its own, and one of the relation in another namespace.
        part = next((parts[value] for value in slide.attrib.values() if value in parts), None)
        if part is None:
            continue
        blocks = list(_shapes(child(archive.xml(part), "cSld", "spTree")))
        for notes in archive.related(part, "notesSlide").values():
            said = [text for text in _shapes(child(archive.xml(notes), "cSld", "spTree"), "body") if text.strip()]
            blocks += ["Notes: " + "\n".join(said)] if said else []
        text = "\n\n".join(block for block in blocks if block.strip())
        sections.append(Section(text, number, f"slide {number}"))
    return Content(sections, pages=len(sections))


def _shapes(tree: Element, only: str | None = None) -> Iterator[str]:
    """Yields the text of each shape. only: of placeholders of that type."""
    for shape in () if tree is None else tree:
        match tag(shape):
            case "grpSp":
                yield from _shapes(shape, only)
            case "sp" | "cxnSp":
                place = child(shape, "nvSpPr", "nvPr", "ph")
                kind = "" if place is None else attribute(place, "type")
                if only is None or kind == only:
                    text = _text(child(shape, "txBody"))
                    yield heading(2, text) if kind in ("title", "ctrTitle") else text
            case "graphicFrame" if only is None:
                for each in shape.iter():
                    if tag(each) == "tbl":
                        yield table([[_text(child(cell, "txBody")) for cell in children(row, "tc")] for row in each])
            case "AlternateContent":
                yield from _shapes(child(shape, "Choice"), only)


def _text(body: Element) -> str:
    texts = {"br": "\n", "tab": "\t"}
    lines = []
    for paragraph in children(body, "p"):
        pieces = (each.text or "" if tag(each) == "t" else texts.get(tag(each), "") for each in paragraph.iter())
        lines.append("".join(pieces))
    return "\n".join(lines)
