"""PPTX: the texts, tables, charts and diagrams of each slide, and its notes. Hidden slides and shapes are left out."""

from collections.abc import Iterator
from typing import Final

from app.documents.archive import Archive, Element, attribute, child, children, tag
from app.documents.document import Content, Section
from app.documents.drawings import graphic, is_hidden_shape, shape_text
from app.documents.left_out import LeftOut
from app.documents.markdown import heading, table


def read(archive: Archive) -> Content:
    """Returns the slides."""
    return _Reader(archive).content()


class _Reader:
    def __init__(self, archive: Archive) -> None:
        self._archive: Final = archive
        self._left_out: Final = LeftOut()
        self._part = ""
        """The one that is being read."""

    def content(self) -> Content:
        main = self._archive.main_part()
        parts = self._archive.related(main, "slide")
        sections, notes, pages = [], [], 0
        for slide in children(child(self._archive.xml(main), "sldIdLst"), "sldId"):
            # An id of its own, and one of the relation in another namespace.
            part = next((parts[value] for value in slide.attrib.values() if value in parts), None)
            pages += 1
            if part is None:
                notes.append(f"Slide {pages} is missing in the file.")
                continue
            self._part = part
            root = self._archive.xml(part)
            if attribute(root, "show") in ("0", "false"):
                notes.append(f"Slide {pages} is hidden, and not read.")
                continue
            blocks = [*self._shapes(child(root, "cSld", "spTree")), *self._speaker_notes(part)]
            text = "\n\n".join(block for block in blocks if block.strip())
            sections.append(Section(text, pages, f"slide {pages}"))
        return Content(sections, notes + self._left_out.notes(), pages)

    def _speaker_notes(self, slide: str) -> Iterator[str]:
        for part in self._archive.related(slide, "notesSlide").values():
            tree = child(self._archive.xml(part), "cSld", "spTree")
            said = [text for text in self._shapes(tree, "body") if text.strip()]
            if said:
                yield "Notes: " + "\n".join(said)

    def _shapes(self, tree: Element, only: str | None = None) -> Iterator[str]:
        """Yields the text of each shape. only: of placeholders of that type."""
        for shape in () if tree is None else tree:
            if only is None and is_hidden_shape(shape):
                self._left_out.hidden = True
                continue
            match tag(shape):
                case "grpSp":
                    yield from self._shapes(shape, only)
                case "sp" | "cxnSp":
                    place = child(shape, "nvSpPr", "nvPr", "ph")
                    kind = "" if place is None else attribute(place, "type")
                    if only is None or kind == only:
                        text = shape_text(child(shape, "txBody"))
                        yield heading(2, text) if kind in ("title", "ctrTitle") else text
                case "pic" if only is None:
                    self._left_out.pictures += 1
                case "graphicFrame" if only is None:
                    yield from self._frame(shape)
                case "AlternateContent":
                    yield from self._shapes(child(shape, "Choice"), only)

    def _frame(self, frame: Element) -> Iterator[str]:
        said = []
        for each in frame.iter():
            if tag(each) == "tbl":
                said.append(
                    table([[shape_text(child(cell, "txBody")) for cell in children(row, "tc")] for row in each])
                )
            elif (shown := graphic(self._archive, self._part, each)) is not None:
                said.append(shown)
        self._left_out.objects += not said
        yield from said
