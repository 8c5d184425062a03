"""Office files: XML in a ZIP archive, with bounds on what it inflates to, and neither entities nor macros."""

import posixpath
from collections.abc import Iterator
from io import BytesIO
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

from lxml import etree

from app.documents.document import DocumentError

_MOST_MEMBERS: Final = 20_000
_MOST_PART_BYTES: Final = 64 << 20
_MOST_BYTES: Final = 256 << 20
"""Of all XML, inflated."""
_INFLATES: Final = f"inflates to more than {_MOST_BYTES >> 20} MiB: send a part of it"
_MACROS: Final = ("vbaproject.bin", "vbadata.xml")

Element = Any
"""lxml's, which has no types."""


class Archive:
    """The parts of an office file. What breaks lxml or zipfile is for the caller to catch."""

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError."""
        try:
            self._zip = ZipFile(BytesIO(data))
        except (BadZipFile, NotImplementedError, ValueError, OSError):
            raise DocumentError("is damaged, or was cut off: send it again") from None
        members = self._zip.infolist()
        self._relations: Final[dict[str, list[Element]]] = {}
        self.names: Final = {member.filename for member in members}
        # A member yields no more than the size that it declares.
        size_bytes = sum(member.file_size for member in members if member.filename.endswith((".xml", ".rels")))
        if len(members) > _MOST_MEMBERS:
            raise DocumentError(f"has more than {_MOST_MEMBERS:,} parts: send a part of it")
        if size_bytes > _MOST_BYTES:
            raise DocumentError(_INFLATES)
        if any(member.flag_bits & 1 for member in members):
            raise DocumentError("is protected by a password: save it without one")
        if any(name.lower().endswith(_MACROS) for name in self.names):
            raise DocumentError("has macros, which are not read: save it without them")

    def bytes(self, name: str) -> bytes:
        """Returns a part. Raises KeyError if it is missing, DocumentError if it is too large."""
        with self._zip.open(name) as part:
            data = part.read(_MOST_PART_BYTES + 1)
        if len(data) > _MOST_PART_BYTES:
            raise DocumentError(f"has a part of more than {_MOST_PART_BYTES >> 20} MiB: send a part of it")
        return data

    def xml(self, name: str) -> Element:
        """Returns the root of a part. Raises as `bytes` does."""
        # A parser of its own: it keeps the names that it has seen.
        parser = etree.XMLParser(
            resolve_entities=False, load_dtd=False, no_network=True, remove_comments=True, remove_pis=True
        )
        root = etree.fromstring(self.bytes(name), parser)
        _refuse_document_type(root)
        return root

    def elements(self, name: str, *tags: str) -> Iterator[Element]:
        """Yields a part's elements of these names; each is empty when the next one comes. Raises as `xml` does."""
        if self._zip.getinfo(name).file_size > _MOST_BYTES:  # its name may not be one of XML
            raise DocumentError(_INFLATES)
        with self._zip.open(name) as part:
            found = etree.iterparse(
                part,
                tag=[f"{{*}}{tag}" for tag in tags],
                resolve_entities=False,
                load_dtd=False,
                no_network=True,
                remove_comments=True,
                remove_pis=True,
            )
            for index, (_, element) in enumerate(found):
                if not index:
                    _refuse_document_type(element)
                yield element
                element.clear()
                while element.getprevious() is not None:
                    del element.getparent()[0]

    def related(self, part: str, kind: str) -> dict[str, str]:
        """Returns the parts that a part refers to as of that kind, and that are there, by id.

        part: empty: the whole file.
        """
        return {key: target for key, target in self._targets(part, kind).items() if target in self.names}

    def _targets(self, part: str, kind: str) -> dict[str, str]:
        folder, name = posixpath.split(part)
        relations = posixpath.join(folder, "_rels", f"{name}.rels")
        if relations not in self.names:
            return {}
        if relations not in self._relations:
            self._relations[relations] = list(self.xml(relations))
        found = {}
        for one in self._relations[relations]:
            if one.get("Type", "").endswith(f"/{kind}") and one.get("TargetMode") != "External":
                target = posixpath.normpath(posixpath.join("/", folder, one.get("Target", "")))
                found[one.get("Id", "")] = target.lstrip("/")
        return found

    def main_part(self) -> str:
        """Returns the name of an Office Open XML file's main part, which may be missing."""
        return next(iter(self._targets("", "officeDocument").values()))


def _refuse_document_type(element: Element) -> None:
    if element.getroottree().docinfo.doctype:
        raise DocumentError("has a document type of its own in its XML, which may be an attack: save it again")


def tag(element: Element) -> str:
    """Returns an element's name without its namespace: those of strict and transitional files differ."""
    return str(element.tag).rpartition("}")[2]


def attribute(element: Element, name: str) -> str:
    """Returns an attribute's value, whatever its namespace; empty if there is none."""
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), "")


def children(element: Element | None, name: str) -> Iterator[Element]:
    """Yields the children of that name."""
    return (child for child in (() if element is None else element) if tag(child) == name)


def value(element: Element | None, *path: str) -> str:
    """Returns the attribute `val` of a child found as `child` finds it; empty if there is none."""
    found = child(element, *path)
    return "" if found is None else attribute(found, "val")


def number(text: str, otherwise: int) -> int:
    """Returns a number of up to nine digits; `otherwise` if it is none."""
    return int(text) if text.isdecimal() and len(text) < 10 else otherwise


def is_on(element: Element | None) -> bool:
    """Whether a switch such as `<w:vanish/>` is there, and not off."""
    return element is not None and attribute(element, "val").lower() not in ("0", "false", "off", "none")


def child(element: Element | None, *path: str) -> Element | None:
    """Returns the first child of that name, its first child of the next, and so on; None if there is none."""
    for name in path:
        element = next(children(element, name), None)
    return element
