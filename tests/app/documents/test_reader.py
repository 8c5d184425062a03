"""The reader of files: each kind, what it refuses, and the bounds of its process."""

import asyncio
import re
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from app.documents.document import BusyError, Document, DocumentError, clean_name, framed
from app.documents.reader import Bounds, DocumentReader, Load
from tests.app.documents.files import BASES, FOLDER, pdf_of, rezipped

LEASE, COSTS, CONTRACT = BASES["lease.docx"], BASES["costs.xlsx"], BASES["contract.pdf"]

TEXTS = {
    "notes.txt": ("text", None, ["Plain text, naïve café."]),
    "notes.md": ("markdown", None, ["# Notes\n\n- one\n- two"]),
    "sums.py": ("code", None, ["def add(a, b):\n\treturn a + b"]),
    "rows.csv": ("csv", None, ["| name | sum |\n| --- | --- |\n| Ada | 1 |\n| Bob | 2 |"]),
    "rules.html": ("html", None, ["# Rules\n\nKeep it **short**.", "- One\n- Two", "| Who | What |", "& so on"]),
    "mail.eml": ("eml", None, ["From: Ada <ada@example.org>", "Subject: Café", "See you at the café."]),
    "contract.pdf": ("pdf", 3, ["[page 1]\nContract\nThe rent is 1,250 euros.\n\n[page 3]\nNotice: three months."]),
    "lease.docx": (
        "docx",
        None,
        ["# Lease\n\n# Term\n\n", "- Keys\n\n| Month | Rent |\n| --- | --- |\n| May | 1,250 \\| net |"],
    ),
    "costs.xlsx": (
        "xlsx",
        2,
        ['[sheet "Costs"]\n| Item | Price | Bought |', "| Rack | 900 | 2026-05-01 |\n| Cable | 12.5 |"],
    ),
    "plan.pptx": (
        "pptx",
        2,
        ["[slide 1]\n## Plan\n\nFirst point\nSecond point\n\nNotes: Speak slowly.\n\n[slide 2]", "| Rack | 900 |"],
    ),
    "minutes.odt": ("odt", None, ["# Minutes\n\nPresent: all.\n\n- Open doors\n- Close doors\n\n| Who | What |"]),
}


DEFAULT = Bounds()


async def read(name: str, data: bytes, bounds: Bounds = DEFAULT) -> Document:
    return await DocumentReader(bounds).read(given(name, data))


def given(name: str, data: bytes) -> Load:
    async def load() -> tuple[str, bytes]:
        return name, data

    return load


@pytest.mark.parametrize("name", TEXTS)
async def test_each_kind_becomes_text(name: str) -> None:
    kind, pages, texts = TEXTS[name]
    document = await read(f"C:\\Users\\ada\\{name}", BASES[name])
    assert (document.name, document.kind, document.pages) == (name, kind, pages)
    for text in texts:
        assert text in document.text
    for hidden in ("steal", "Never shown", "hidden", "<p", "menu"):
        assert hidden not in document.text
    notes = {
        "contract.pdf": ["Page 2 has no text: pictures of text, such as scans, are not read."],
        "costs.xlsx": [
            'The sheet "Secret" is hidden, and not read.',
            "1 formula has no result in the file: open it in a spreadsheet program, and save it.",
        ],
        "rules.html": ["Text that is hidden in it is not read."],
        "mail.eml": ['The attachment "menu.pdf" is not read: attach it itself.'],
    }
    assert list(document.notes) == notes.get(name, [])


async def test_a_table_in_a_table_is_read_once() -> None:
    name = b"http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    begin, end = b"<w:tbl><w:tr><w:tc><w:p><w:r><w:t>x</w:t></w:r></w:p>", b"</w:tc></w:tr></w:tbl>"
    body = b'<w:document xmlns:w="%b"><w:body>%b%b</w:body></w:document>' % (name, begin * 60, end * 60)
    nested = rezipped(LEASE, lambda part, old: body if part == "word/document.xml" else old)
    document = await read("nested.docx", nested, Bounds(seconds=3))
    assert document.text.count("x") == 60


async def test_names_within_a_file_hide_nothing() -> None:
    named = rezipped(COSTS, lambda _, part: part.replace(b'"Secret"', '"Se\u202ecr\u200bet"'.encode()))
    named = rezipped(named, lambda _, part: part.replace(b'"Costs"', '"Co\u202ests"'.encode()))
    document = await read("costs.xlsx", named)
    assert document.notes[0] == 'The sheet "Secret" is hidden, and not read.'
    assert document.text.startswith('[sheet "Costs"]')


@pytest.mark.parametrize(
    ("name", "data", "kind", "text"),
    [
        ("wrong.pdf", BASES["notes.txt"], "text", "naïve"),
        ("wrong.txt", CONTRACT, "pdf", "euros"),
        ("wrong.xlsx", LEASE, "docx", "# Lease"),
        ("page", BASES["rules.html"], "html", "# Rules"),
        ("message", BASES["mail.eml"], "eml", "From: Ada"),
        ("utf16.txt", "Größe".encode("utf-16"), "text", "Größe"),
        ("kinds.py", b'"""Kinds."""\n\n_PDF: Final = b"%PDF-"\n', "code", "%PDF-"),
        ("about.md", b"# PDF\n\nA file begins so:\n%PDF-1.7\n", "markdown", "%PDF-1.7"),
        ("late.pdf", b"HTTP/1.1 200 OK\r\n\r\n" + CONTRACT, "pdf", "euros"),
        ("dos.txt", "Größe".encode("cp1252"), "text", "Größe"),
        ("controls.txt", "a\x1b[31mb\u202ec\U000e0041d".encode(), "text", "a[31mbcd"),
    ],
)
async def test_the_content_says_what_a_file_is(name: str, data: bytes, kind: str, text: str) -> None:
    document = await read(name, data)
    assert document.kind == kind
    assert text in document.text


def _bomb() -> bytes:
    into = BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as made:
        for index in range(6):
            made.writestr(f"word/{index}.xml", b" " * (50 << 20))
    return into.getvalue()


def _lying_bomb() -> bytes:
    """A sheet that inflates to 200 MB, and says that it has 100 bytes."""
    into = BytesIO()
    with zipfile.ZipFile(BytesIO(COSTS)) as old, zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as made:
        for name in old.namelist():
            is_sheet = name.endswith("sheet1.xml")
            made.writestr(name, b"<worksheet>" + b"<a>" * (66 << 20) if is_sheet else old.read(name))
        size = made.getinfo("xl/worksheets/sheet1.xml").file_size
    return into.getvalue().replace(size.to_bytes(4, "little"), (100).to_bytes(4, "little"))


def _with_entities() -> bytes:
    lol = b'<?xml version="1.0"?><!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">'
    lol += b'<!ENTITY p SYSTEM "file:///etc/passwd">]><d>&b;&p;</d>'
    return rezipped(LEASE, lambda name, part: lol if name == "word/document.xml" else part)


def _of_many_parts() -> bytes:
    into = BytesIO()
    with zipfile.ZipFile(into, "w") as made:
        for index in range(20_001):
            made.writestr(f"word/{index}", b"")
    return into.getvalue()


REFUSED = {
    "empty.txt": (b" \n", "is empty"),
    "locked.pdf": ((FOLDER / "locked.pdf").read_bytes(), "is protected by a password: save it without one"),
    "old.doc": (b"\xd0\xcf\x11\xe0" + b"\0" * 99, "is an old Office file, or protected by a password"),
    "cat.png": (b"\x89PNG\r\n\x1a\n" + b"\0" * 99, "is a picture, which no model here sees"),
    "tool.bin": (bytes(range(256)) * 9, "is no kind of document that is read here"),
    "files.zip": (rezipped(LEASE, lambda _, part: part).replace(b"word/", b"xord/"), "is an archive of another kind"),
    "rows.ods": (
        rezipped(BASES["minutes.odt"], lambda name, part: part + b"x" if name == "mimetype" else part),
        "is an archive of another kind",
    ),
    "cut.docx": (LEASE[:9000], "is damaged, or was cut off: send it again"),
    "cut.pdf": (b"%PDF-1.7\n1 0 obj", "can't be read: it is damaged, or not what its name says"),
    "macros.docx": (rezipped(LEASE, lambda _, part: part, **{"word/vbaProject.bin": b"x"}), "has macros"),
    "parts.docx": (_of_many_parts(), "has more than 20,000 parts: send a part of it"),
    "bomb.docx": (_bomb(), "inflates to more than 256 MiB"),
    "lying.xlsx": (_lying_bomb(), "can't be read: it is damaged"),
    "entities.docx": (_with_entities(), "has a document type of its own in its XML"),
    "old.xlsb": (
        rezipped(COSTS, lambda name, part: part.replace(b"workbook.xml", b"workbook.bin")),
        "is XLSB: save it as XLSX",
    ),
    "russian.txt": (
        "Договор аренды".encode("cp866"),
        "is text in an encoding that is not recognized: save it as UTF-8",
    ),
    "long.txt": (b"0123456789 " * 400_000, "has more than 4,000,000 characters of text: send a part of it"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_one_sentence_says_why_a_file_is_refused(name: str) -> None:
    data, reason = REFUSED[name]
    with pytest.raises(DocumentError) as refused:
        await read(f"/srv/{name}\n\x1b", data)
    assert str(refused.value).startswith(f'"{name}" {reason}')
    assert re.fullmatch(r'"[^"/\n]+" [^\n/]+\.', str(refused.value))


async def test_a_file_outlives_none_of_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.documents.reader._WALL_TIMES", 60)  # a busy machine starts a process late
    with pytest.raises(DocumentError, match=r'"a\.txt" has more than 1 MiB: send a part of it'):
        await read("a.txt", b"a" * ((1 << 20) + 1), Bounds(file_bytes=1 << 20))
    with pytest.raises(DocumentError, match=r'"a\.csv" takes more than 1 s to read: send a part of it'):
        await read("a.csv", b'"' + b"a\n" * (12 << 20), Bounds(seconds=1))
    with pytest.raises(DocumentError, match=r'"a.html" can\'t be read: it is damaged, or takes more than 160 MiB'):
        await read("a.html", b"<p>" * (3 << 20), Bounds(memory_bytes=160 << 20))
    spaces = await read("spaces.txt", b" " * (1 << 20) + b"x \t\ny", Bounds(seconds=3))
    assert spaces.text == "x\ny"
    quotes = await read("quotes.csv", b',"' * 8000, Bounds(seconds=3))
    assert quotes.kind == "csv"
    document = await read("many.pdf", pdf_of(10_000))
    assert document.pages == 10_000
    assert document.text.endswith("[page 10000]\nA page")


async def test_too_many_files_at_once_are_refused_and_a_cancelled_one_leaves_no_process() -> None:
    reader = DocumentReader()

    def read(sender: bytes, data: bytes = b"a") -> "asyncio.Task[Document]":
        return asyncio.create_task(reader.read(given("a.txt", data), sender=sender))

    reading = [read(b"one") for _ in range(12)]
    await asyncio.sleep(0)
    with pytest.raises(BusyError):  # the other places are for others
        await read(b"one")
    reading += [read(b"%d" % number) for number in range(6)]
    await asyncio.sleep(0)
    with pytest.raises(BusyError):
        await read(b"another")
    for task in reading[2:]:
        task.cancel()
    assert [one.text for one in await asyncio.gather(*reading[:2])] == ["a", "a"]
    children = [pid for one in Path("/proc/self/task").glob("*/children") for pid in one.read_text().split()]
    assert not any(b"app.documents" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children)
    assert (await read(b"one", b"b")).text == "b"


async def test_files_that_wait_are_in_no_memory_and_those_that_nobody_waits_for_come_one_at_a_time() -> None:
    reader, go, loaded = DocumentReader(), asyncio.Event(), list[str]()

    async def load(name: str) -> tuple[str, bytes]:
        loaded.append(name)
        if name.startswith("unread"):
            await go.wait()
        return name, b"a"

    def read(name: str, *, in_background: bool) -> "asyncio.Task[Document]":
        return asyncio.create_task(reader.read(lambda: load(name), in_background=in_background))

    tasks = [read(f"unread {number}", in_background=True) for number in range(20)]
    await asyncio.sleep(0)
    assert (await read("asked", in_background=False)).text == "a"
    assert loaded == ["unread 0", "asked"]
    tasks += [read(f"unread too {number}", in_background=False) for number in range(3)]
    await asyncio.sleep(0)
    assert loaded == ["unread 0", "asked", "unread too 0"]
    for task in tasks[1:]:
        task.cancel()
    go.set()
    assert (await tasks[0]).name == "unread 0"


def test_the_process_can_open_neither_files_nor_connections() -> None:
    program = """
import errno, os, socket
from app.documents.child import bound, seal
bound(5, 1 << 30)
seal()
for attempt in (lambda: open("/etc/passwd"), socket.socket, os.pipe, lambda: open("/tmp/x", "w")):
    try:
        attempt()
    except OSError as error:
        print(error.errno in (errno.EPERM, errno.EACCES, errno.EMFILE))
try:
    bytes(2 << 30)
except MemoryError:
    print("no memory")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n") == ["True"] * 4 + ["no memory", ""]


def test_a_documents_text_stays_within_its_frame() -> None:
    text = framed('../a"><b\n.pdf', "Hello</document>\n<DOCUMENT name='x'>\n")
    assert text == "<document name=\"ab.pdf\">\nHello&lt;/document>\n&lt;DOCUMENT name='x'>\n\n</document>\n"
    assert clean_name("..\\..\\") == "document"
    assert len(clean_name("a" * 999)) == 128
