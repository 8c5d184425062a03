"""Small files of each kind, and hostile ones."""

import random
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "data/documents"
HTML = b"""<!doctype html><html><head><title>Rules</title><style>p {}</style></head><body><h1>Rules</h1>
<p>Keep it <b>short</b>.<p hidden>Never shown.</p><script>steal()</script><ul><li>One<li>Two</ul>
<table><tr><th>Who</th><th>What</th></tr><tr><td>Ada</td><td>Sums</td></tr></table>&amp; so on</body></html>"""
MAIL = b"""From: Ada <ada@example.org>
To: bob@example.org
Subject: =?utf-8?q?Caf=C3=A9?=
Date: Fri, 1 May 2026 10:00:00 +0000
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="xyz"

--xyz
Content-Type: text/plain; charset="iso-8859-1"
Content-Transfer-Encoding: quoted-printable

See you at the caf=E9.
--xyz
Content-Type: application/pdf
Content-Disposition: attachment; filename="../../menu.pdf"
Content-Transfer-Encoding: base64

JVBERi0=
--xyz--
"""
BASES: dict[str, bytes] = {
    "notes.txt": "Plain text, naïve café.\n".encode() * 20,
    "notes.md": b"# Notes\n\n- one\n- two\n",
    "sums.py": b"def add(a, b):\n\treturn a + b\n",
    "rows.csv": b"name;sum\nAda;1\nBob;2\n",
    "rules.html": HTML,
    "mail.eml": MAIL,
    **{
        name: (FOLDER / name).read_bytes()
        for name in ("contract.pdf", "lease.docx", "costs.xlsx", "plan.pptx", "minutes.odt")
    },
}


def mutated(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Yields damaged copies: of an archive mostly those whose parts are damaged, as its checksums find the others."""
    drawn = random.Random(seed)
    for index in range(count):
        if data.startswith(b"PK") and index % 4:
            yield _with_damaged_part(data, drawn)
        else:
            yield _damaged(data, drawn)


def _damaged(data: bytes, drawn: random.Random) -> bytes:
    result = bytearray(data)
    for _ in range(drawn.choice((1, 3, 20))):
        place = drawn.randrange(len(result) + 1)
        match drawn.randrange(6):
            case 0 if len(result) > 8:
                del result[place:]
            case 1:
                result[place : place + 1] = drawn.randbytes(1)
            case 2:
                result[place:place] = result[drawn.randrange(len(result) + 1) :][: drawn.randrange(200)]
            case 3:
                del result[place : place + drawn.randrange(100)]
            case 4:
                result[place:place] = drawn.choice(
                    (b"-1", b"4294967296", b"\0" * 9, b"<", b"&x;", b"%s/../", b"\xff\xfe")
                )
            case _ if place < len(result):
                result[place] ^= 1 << drawn.randrange(8)
    return bytes(result)


def _with_damaged_part(data: bytes, drawn: random.Random) -> bytes:
    archive = zipfile.ZipFile(BytesIO(data))
    names = [name for name in archive.namelist() if name.endswith((".xml", ".rels"))]
    chosen = drawn.choice(names)
    return rezipped(data, lambda name, part: _damaged(part, drawn) if name == chosen else part)


def rezipped(data: bytes, changed: Callable[[str, bytes], bytes], **more: bytes) -> bytes:
    """Returns an archive with changed parts, and more of them."""
    archive, into = zipfile.ZipFile(BytesIO(data)), BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as made:
        for name in archive.namelist():
            made.writestr(name, changed(name, archive.read(name)))
        for name, part in more.items():
            made.writestr(name, part)
    return into.getvalue()


def slow_odt() -> bytes:
    """Returns a small file that takes longer to read than any may: empty cells, each repeated as often as one is."""
    row = b'<t:table-row t:number-rows-repeated="256"><t:table-cell t:number-columns-repeated="256"/></t:table-row>'
    content = b'<o:c xmlns:o="urn:o" xmlns:t="urn:t"><o:body><o:text><t:table>%b</t:table></o:text></o:body></o:c>'
    return rezipped(
        BASES["minutes.odt"], lambda name, part: content % (row * 20_000) if name == "content.xml" else part
    )


def pdf_of(pages: int) -> bytes:
    """Returns a PDF of so many pages with a line each."""
    text = b"BT /F1 12 Tf 50 700 Td (A page) Tj ET"
    kids = b" ".join(b"%d 0 R" % (5 + index) for index in range(pages))
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Resources<</Font<</F1 3 0 R>>>>/Contents 4 0 R>>"
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Count %d/Kids[%b]>>" % (pages, kids),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        b"<</Length %d>>stream\n%b\nendstream" % (len(text), text),
        *[page] * pages,
    ]
    return pdf_with(objects)


def pdf_page(
    content: bytes, page: bytes = b"", font: bytes = b"", more: tuple[bytes, ...] = (), root: bytes = b""
) -> bytes:
    """Returns a PDF of one page. page, font, root: more of their entries; more: objects from the sixth on."""
    return pdf_with(
        [
            b"<</Type/Catalog/Pages 2 0 R%b>>" % root,
            b"<</Type/Pages/Count 1/Kids[5 0 R]>>",
            b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica%b>>" % font,
            b"<</Length %d>>stream\n%b\nendstream" % (len(content), content),
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Resources<</Font<</F1 3 0 R>>>>/Contents 4 0 R%b>>"
            % page,
            *more,
        ]
    )


def pdf_with(objects: list[bytes]) -> bytes:
    """Returns a PDF of these objects, the first of which is its root."""
    made, places = bytearray(b"%PDF-1.4\n"), []
    for number, value in enumerate(objects, start=1):
        places.append(b"%010d 00000 n \n" % len(made))
        made += b"%d 0 obj\n%b\nendobj\n" % (number, value)
    start, size = len(made), len(objects) + 1
    made += b"xref\n0 %d\n0000000000 65535 f \n%b" % (size, b"".join(places))
    return bytes(made + b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (size, start))
