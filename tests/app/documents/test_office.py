"""What office files say beyond their text: numbers, headers, formats, charts; and what of them is left out, and why."""

from collections.abc import Mapping
from io import BytesIO
from zipfile import ZipFile

import pytest

from app.documents.document import Content, Document, DocumentError
from app.documents.kinds import reader_of
from app.documents.numbering import counted
from tests.app.documents.files import BASES, rezipped

_W = b'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_DRAWINGS = (
    b'xmlns:a="urn:a" xmlns:c="urn:c" xmlns:r="urn:r" xmlns:wp="urn:wp" xmlns:wps="urn:wps" xmlns:p="urn:p" '
    b'xmlns:mc="urn:mc" xmlns:dgm="urn:dgm" xmlns:o="urn:o" xmlns:v="urn:v"'
)
_RELATION = b'<Relationship Id="%b" Type="urn:x/relationships/%b" Target="%b"/></Relationships>'


def read(
    name: str, changed: Mapping[str, bytes], related: Mapping[str, tuple[tuple[bytes, bytes, bytes], ...]]
) -> Content:
    """Returns what is read of a file with other parts. related: by part, more relations: id, kind and target."""

    def part(path: str, old: bytes) -> bytes:
        old = changed.get(path, old)
        for each in related.get(path, ()):
            old = old.replace(b"</Relationships>", _RELATION % each)
        return old

    base = BASES[name]
    more = {path: content for path, content in changed.items() if path.encode() not in base}
    _, reading = reader_of(name, rezipped(base, part, **more))
    return reading()


def text(content: Content) -> str:
    return Document(content.sections).text


def docx(
    body: bytes, more: Mapping[str, bytes] | None = None, relations: tuple[tuple[bytes, bytes, bytes], ...] = ()
) -> Content:
    document = b"<w:document %b %b><w:body>%b</w:body></w:document>" % (_W, _DRAWINGS, body)
    return read(
        "lease.docx", {"word/document.xml": document, **(more or {})}, {"word/_rels/document.xml.rels": relations}
    )


def paragraph(said: str, properties: bytes = b"") -> bytes:
    return b"<w:p><w:pPr>%b</w:pPr><w:r><w:t>%b</w:t></w:r></w:p>" % (properties, said.encode())


def _in_list(list_id: int, level: int) -> bytes:
    return b'<w:numPr><w:ilvl w:val="%d"/><w:numId w:val="%d"/></w:numPr>' % (level, list_id)


def _level(depth: int, form: bytes, shown: bytes, more: bytes = b"") -> bytes:
    return b'<w:lvl w:ilvl="%d"><w:start w:val="1"/><w:numFmt w:val="%b"/>%b<w:lvlText w:val="%b"/></w:lvl>' % (
        depth,
        form,
        more,
        shown,
    )


NUMBERING = b"<w:numbering %b>%b%b%b</w:numbering>" % (
    _W,
    b'<w:abstractNum w:abstractNumId="0">%b%b%b%b</w:abstractNum>'
    % (
        _level(0, b"decimal", b"%1.", b'<w:pStyle w:val="Heading1"/>'),
        _level(1, b"decimal", b"%1.%2", b'<w:pStyle w:val="Heading2"/>'),
        _level(2, b"lowerLetter", b"(%3)"),
        _level(3, b"upperRoman", b"%1-%4", b'<w:lvlRestart w:val="0"/>'),
    ),
    b'<w:abstractNum w:abstractNumId="1">%b</w:abstractNum>' % _level(0, b"bullet", "\uf0b7".encode()),
    b'<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num><w:num w:numId="2"><w:abstractNumId w:val="1"/></w:num>'
    b'<w:num w:numId="3"><w:abstractNumId w:val="0"/><w:lvlOverride w:ilvl="0"><w:startOverride w:val="7"/>'
    b"</w:lvlOverride></w:num>",
)
STYLES = (
    b'<w:styles %b><w:style w:styleId="Heading1"><w:name w:val="heading 1"/><w:pPr><w:numPr>'
    b'<w:numId w:val="1"/></w:numPr></w:pPr>'
    b'</w:style><w:style w:styleId="Heading2"><w:name w:val="heading 2"/><w:pPr><w:numPr>'
    b'<w:numId w:val="1"/></w:numPr></w:pPr></w:style>'
    b'<w:style w:styleId="Mine"><w:name w:val="Mine"/><w:basedOn w:val="Heading1"/></w:style>'
    b'<w:style w:styleId="Secret"><w:name w:val="Secret"/><w:rPr><w:vanish/></w:rPr></w:style></w:styles>'
) % _W


def test_paragraphs_have_their_automatic_numbers() -> None:
    body = [
        paragraph("Term", b'<w:pStyle w:val="Heading1"/>'),
        paragraph("Rent", b'<w:pStyle w:val="Mine"/>'),
        paragraph("Amount", b'<w:pStyle w:val="Heading2"/>'),
        paragraph("Due", b'<w:pStyle w:val="Heading2"/>'),
        paragraph("in May", _in_list(1, 2)),
        paragraph("in June", _in_list(1, 2)),
        paragraph("kept", _in_list(1, 3)),
        b"<w:tbl><w:tr><w:tc>%b</w:tc></w:tr></w:tbl>" % paragraph("Late", b'<w:pStyle w:val="Heading2"/>'),
        paragraph("again", _in_list(1, 2)),
        paragraph("on", _in_list(1, 3)),
        paragraph("point", _in_list(2, 0)),
        paragraph("Anew", _in_list(3, 0)),
        paragraph("then", _in_list(3, 0)),
        paragraph("Plain", b'<w:pStyle w:val="Heading1"/><w:numPr><w:numId w:val="0"/></w:numPr>'),
        paragraph("unknown", _in_list(9, 1)),
    ]
    shown = text(docx(b"".join(body), {"word/numbering.xml": NUMBERING, "word/styles.xml": STYLES}))
    assert [line for line in shown.split("\n") if line] == [
        "# 1. Term",
        "# 2. Rent",
        "## 2.1 Amount",
        "## 2.2 Due",
        "    (a) in May",
        "    (b) in June",
        "      2-I kept",
        "| 2.3 Late |",
        "| --- |",
        "    (a) again",
        "      2-II on",
        "- point",
        "7. Anew",
        "8. then",
        "# Plain",
        "  - unknown",
    ]


def test_paragraphs_without_text_have_their_numbers_unless_nobody_sees_them() -> None:
    gone = (b"<w:del/>", b"<w:vanish/>")
    body = [
        paragraph("one", _in_list(3, 0)),
        b"<w:p><w:pPr>%b</w:pPr></w:p>" % _in_list(3, 0),
        b"<w:p><w:pPr>%b</w:pPr><w:r><w:drawing><a:blip/></w:drawing></w:r></w:p>" % _in_list(3, 0),
        *[b"<w:p><w:pPr>%b<w:rPr>%b</w:rPr></w:pPr></w:p>" % (_in_list(3, 0), mark) for mark in gone],
        b'<w:p><w:pPr><w:pStyle w:val="Secret"/>%b</w:pPr></w:p>' % _in_list(3, 0),
        paragraph("four", _in_list(3, 0)),
    ]
    shown = text(docx(b"".join(body), {"word/numbering.xml": NUMBERING, "word/styles.xml": STYLES}))
    assert shown == "7. one\n\n10. four"


@pytest.mark.parametrize(
    ("form", "count", "shown"),
    [
        ("upperLetter", 28, "BB"),
        ("lowerRoman", 1994, "mcmxciv"),
        ("decimalZero", 7, "07"),
        ("lowerRoman", 1 << 40, str(1 << 40)),
        ("lowerLetter", 1 << 40, "pppppppp"),
        ("japaneseCounting", 3, "3"),
    ],
)
def test_numbers_are_counted_in_their_form(form: str, count: int, shown: str) -> None:
    assert counted(count, form) == shown


def test_headers_and_footers_are_read_once_if_they_are_shown() -> None:
    references = b'<w:headerReference w:type="%b" r:id="h1"/><w:footerReference w:type="default" r:id="f1"/>'
    unseen = b'<w:headerReference w:type="even" r:id="h2"/>'
    sections = (
        b"<w:p><w:pPr><w:sectPr>%b%b</w:sectPr></w:pPr></w:p>"
        b'<w:sectPr>%b<w:headerReference w:type="first" r:id="h2"/></w:sectPr>'
    ) % (references % b"default", unseen, references % b"default")
    found = docx(
        paragraph("Text") + sections,
        {
            "word/header1.xml": b"<w:hdr %b>%b</w:hdr>" % (_W, paragraph("ACME, confidential")),
            "word/header2.xml": b"<w:hdr %b>%b</w:hdr>" % (_W, paragraph("Never shown")),
            "word/footer1.xml": b"<w:ftr %b>%b%b</w:ftr>" % (_W, paragraph("3"), paragraph("Page")),
        },
        ((b"h1", b"header", b"header1.xml"), (b"h2", b"header", b"header2.xml"), (b"f1", b"footer", b"footer1.xml")),
    )
    assert text(found) == "Text\n\n[headers and footers]\nACME, confidential\n\n3\n\nPage"


def test_hidden_text_is_left_out_with_a_note() -> None:
    run = b"<w:r><w:rPr>%b</w:rPr><w:t>%b</w:t></w:r>"
    body = [
        b"<w:p>%b%b%b</w:p>"
        % (run % (b"", b"shown"), run % (b"<w:vanish/>", b"IGNORE"), run % (b'<w:vanish w:val="0"/>', b"!")),
        b'<w:p><w:pPr><w:pStyle w:val="Secret"/></w:pPr>%b%b</w:p>'
        % (run % (b"", b"IGNORE"), run % (b'<w:vanish w:val="0"/>', b"too")),
        b"<w:p>%b</w:p>" % (run % (b'<w:rStyle w:val="Secret"/>', b"IGNORE")),
        b"<w:tbl><w:tr><w:trPr><w:hidden/></w:trPr><w:tc>%b</w:tc></w:tr></w:tbl>" % paragraph("IGNORE"),
        b'<w:p><w:r><w:drawing><wp:anchor><wp:docPr hidden="1"/><w:p><w:r><w:t>IGNORE</w:t>'
        b"</w:r></w:p></wp:anchor></w:drawing></w:r></w:p>",
    ]
    found = docx(b"".join(body), {"word/styles.xml": STYLES})
    assert text(found) == "shown!\n\ntoo"
    assert found.notes == ["Text that is hidden in it is not read."]


CHART = (
    b"<c:chartSpace %b><c:chart><c:title><c:tx><c:rich><a:p><a:r><a:t>Sales</a:t></a:r></a:p>"
    b"</c:rich></c:tx></c:title><c:plotArea>"
    b"<c:barChart><c:ser><c:tx><c:strRef><c:strCache><c:pt idx='0'><c:v>2026</c:v></c:pt>"
    b"</c:strCache></c:strRef></c:tx>"
    b"<c:cat><c:strRef><c:strCache><c:pt idx='0'><c:v>North</c:v></c:pt><c:pt idx='1'>"
    b"<c:v>South</c:v></c:pt></c:strCache></c:strRef></c:cat>"
    b"<c:val><c:numRef><c:numCache><c:formatCode>0%%</c:formatCode><c:pt idx='0'><c:v>0.25</c:v>"
    b"</c:pt><c:pt idx='1'><c:v>0.75</c:v></c:pt>"
    b"</c:numCache></c:numRef></c:val></c:ser></c:barChart></c:plotArea></c:chart></c:chartSpace>"
) % _DRAWINGS
CHART_TEXT = "Chart: Sales\n\n|  | 2026 |\n| --- | --- |\n| North | 25% |\n| South | 75% |"
DIAGRAM = (
    b"<dgm:dataModel %b><dgm:ptLst><dgm:pt><dgm:t><a:p><a:r><a:t>Plan</a:t></a:r></a:p></dgm:t></dgm:pt>"
    b"<dgm:pt type='pres'><dgm:t><a:p><a:r><a:t>none</a:t></a:r></a:p></dgm:t></dgm:pt>"
    b"<dgm:pt><dgm:t><a:p><a:r><a:t>Build</a:t></a:r></a:p></dgm:t></dgm:pt></dgm:ptLst></dgm:dataModel>"
) % _DRAWINGS


def test_text_boxes_and_charts_of_a_text_are_read_and_pictures_are_counted() -> None:
    box = (
        b"<w:p><w:r><mc:AlternateContent><mc:Choice><w:drawing><wps:txbx>"
        b"<w:txbxContent>%b%b</w:txbxContent></wps:txbx></w:drawing>"
        b"</mc:Choice><mc:Fallback><w:pict>%b</w:pict></mc:Fallback></mc:AlternateContent></w:r></w:p>"
    ) % (paragraph("In a box"), paragraph("second line"), paragraph("In a box"))
    drawing = b"<w:p><w:r><w:drawing><a:graphic><a:graphicData>%b</a:graphicData></a:graphic></w:drawing></w:r></w:p>"
    body = [
        box,
        drawing % b'<c:chart r:id="c1"/>',
        drawing % b"<a:blip/>",
        drawing % b"<a:blip/>",
        b"<w:p><w:r><w:object><v:shape><v:imagedata/></v:shape><o:OLEObject/></w:object></w:r></w:p>",
    ]
    found = docx(b"".join(body), {"word/charts/chart1.xml": CHART}, ((b"c1", b"chart", b"charts/chart1.xml"),))
    assert [line for line in text(found).split("\n") if line] == [
        "In a box",
        "second line",
        *[line for line in CHART_TEXT.split("\n") if line],
    ]
    assert found.notes == [
        "2 pictures in it are not read, nor text in pictures.",
        "1 embedded object in it is not read.",
    ]


def test_what_a_file_refers_to_and_does_not_have_is_left_out() -> None:
    drawing = b'<w:p><w:r><w:drawing><a:graphic><c:chart r:id="c1"/></a:graphic></w:drawing></w:r></w:p>'
    relations = ((b"c1", b"chart", b"charts/none.xml"), (b"f1", b"footnotes", b"none.xml"))
    found = docx(paragraph("Text") + drawing, relations=relations)
    assert text(found) == "Text"
    assert found.notes == ["1 embedded object in it is not read."]
    slides = b'<p:presentation %b><p:sldIdLst><p:sldId r:id="s9"/></p:sldIdLst></p:presentation>' % _DRAWINGS
    found = read(
        "plan.pptx",
        {"ppt/presentation.xml": slides},
        {"ppt/_rels/presentation.xml.rels": ((b"s9", b"slide", b"slides/none.xml"),)},
    )
    assert (found.pages, found.notes) == (1, ["Slide 1 is missing in the file."])
    _, reading = reader_of(
        "a.xlsx", rezipped(BASES["costs.xlsx"], lambda _, part: part.replace(b"sheet1.xml", b"no.xml"))
    )
    assert reading().notes[0] == 'The sheet "Costs" has no cells, and is not read.'


def test_charts_count_days_as_they_say_and_show_odd_numbers_plainly() -> None:
    chart = CHART.replace(b"<c:chart>", b'<c:date1904 val="1"/><c:chart>').replace(b"0%", b"yyyy-mm-dd")
    chart = chart.replace(b"0.25", b"1").replace(b"0.75", b"NaN")
    drawing = b'<w:p><w:r><w:drawing><a:graphic><c:chart r:id="c1"/></a:graphic></w:drawing></w:r></w:p>'
    found = docx(drawing, {"word/charts/chart1.xml": chart}, ((b"c1", b"chart", b"charts/chart1.xml"),))
    assert "| North | 1904-01-02 |\n| South | nan |" in text(found)


def test_slides_have_their_charts_and_diagrams_and_hidden_ones_are_left_out() -> None:
    frame = b"<p:graphicFrame><a:graphic><a:graphicData>%b</a:graphicData></a:graphic></p:graphicFrame>"
    shape = (
        b'<p:sp><p:nvSpPr><p:cNvPr id="1"%b/></p:nvSpPr><p:txBody><a:p><a:r><a:t>%b</a:t></a:r></a:p></p:txBody></p:sp>'
    )
    tree = [
        shape % (b"", b"Seen"),
        shape % (b' hidden="1"', b"IGNORE"),
        frame % b'<c:chart r:id="c1"/>',
        frame % b'<dgm:relIds r:dm="d1"/>',
        frame % b"<p:oleObj/>",
        b"<p:pic/>",
    ]
    slide = b"<p:sld %b%b><p:cSld><p:spTree>%b</p:spTree></p:cSld></p:sld>"
    found = read(
        "plan.pptx",
        {
            "ppt/slides/slide1.xml": slide % (_DRAWINGS, b' show="0"', shape % (b"", b"IGNORE")),
            "ppt/slides/slide2.xml": slide % (_DRAWINGS, b"", b"".join(tree)),
            "ppt/charts/chart9.xml": CHART,
            "ppt/diagrams/data9.xml": DIAGRAM,
        },
        {
            "ppt/slides/_rels/slide2.xml.rels": (
                (b"c1", b"chart", b"../charts/chart9.xml"),
                (b"d1", b"diagramData", b"../diagrams/data9.xml"),
            )
        },
    )
    assert text(found) == f"[slide 2]\nSeen\n\n{CHART_TEXT}\n\n- Plan\n- Build"
    assert found.pages == 2
    assert found.notes == [
        "Slide 1 is hidden, and not read.",
        "Text that is hidden in it is not read.",
        "1 picture in it is not read, nor text in pictures.",
        "1 embedded object in it is not read.",
    ]


def test_paragraphs_of_a_slide_have_their_automatic_numbers() -> None:
    line = b'<a:p><a:pPr lvl="%d">%b</a:pPr><a:r><a:t>%b</a:t></a:r></a:p>'
    digits, letters = b'<a:buAutoNum type="arabicPeriod" startAt="3"/>', b'<a:buAutoNum type="alphaLcParenR"/>'
    lines = [
        line % (0, digits, b"three"),
        line % (1, letters, b"inner"),
        line % (1, letters, b"next"),
        line % (0, digits, b"four"),
        line % (1, letters, b"anew"),
        line % (0, b"", b"none"),
        line % (0, b'<a:buAutoNum type="romanUcParenBoth"/>', b"one"),
    ]
    slide = b"<p:sld %b><p:cSld><p:spTree><p:sp><p:txBody>%b</p:txBody></p:sp></p:spTree></p:cSld></p:sld>"
    found = read("plan.pptx", {"ppt/slides/slide2.xml": slide % (_DRAWINGS, b"".join(lines))}, {})
    assert found.sections[1].text.split("\n") == [
        "3. three",
        "  a) inner",
        "  b) next",
        "4. four",
        "  a) anew",
        "none",
        "(I) one",
    ]


def xlsx(rows: bytes, columns: bytes = b"", more: Mapping[str, bytes] | None = None) -> Content:
    sheet = b'<worksheet xmlns="urn:s"><cols>%b</cols><sheetData>%b</sheetData></worksheet>' % (columns, rows)
    styles = (
        b'<styleSheet xmlns="urn:s"><numFmts><numFmt numFmtId="164" formatCode="#,##0.00\\ [$EUR]"/>'
        b'<numFmt numFmtId="165" formatCode=";;;"/></numFmts><cellXfs><xf numFmtId="0"/><xf numFmtId="10"/>'
        b'<xf numFmtId="164"/><xf numFmtId="14"/><xf numFmtId="165"/></cellXfs></styleSheet>'
    )
    return read("costs.xlsx", {"xl/worksheets/sheet1.xml": sheet, "xl/styles.xml": styles, **(more or {})}, {})


def test_cells_say_what_they_show() -> None:
    cells = [
        b'<c r="A1" s="1"><v>0.125</v></c><c r="B1" s="2"><v>1250.5</v></c><c r="D1" s="3"><v>46143</v></c>',
        b'<c r="A2" t="b"><v>1</v></c><c r="B2" t="e"><v>#N/A</v></c><c r="C2" t="str"><f>A1</f><v>so</v></c>',
        b'<c t="inlineStr"><is><r><t>two </t></r><r><t>fonts</t></r><rPh><t>x</t></rPh></is></c><c s="99"><v>1</v></c>',
        b'<c r="A4" t="s"><v>7</v></c><c r="B4"><v>1e999</v></c><c r="C4" s="1"><v>x</v></c>',
    ]
    found = xlsx(b"".join(b"<row>%b</row>" % row for row in cells))
    assert text(found).split("\n")[1:] == [
        "| 12.50% | 1,250.50 EUR |  | 2026-05-01 |",
        "| --- | --- | --- | --- |",
        "| TRUE | #N/A | so |",
        "| two fonts | 1 |",
        "|  | 1e999 | x |",
    ]


def test_hidden_rows_columns_and_cells_are_left_out_with_a_note() -> None:
    row = b"<row%b><c><v>%d</v></c><c><v>666</v></c><c><v>%d</v></c><c s='4'><v>666</v></c></row>"
    rows = [row % (b"", 1, 2), row % (b' hidden="1"', 666, 666), row % (b' ht="0"', 666, 666), row % (b"", 3, 4)]
    found = xlsx(b"".join(rows), b'<col min="2" max="2" hidden="1"/>', {"xl/media/image1.png": b"x"})
    assert text(found).split("\n")[1:] == ["| 1 | 2 |", "| --- | --- |", "| 3 | 4 |"]
    assert found.notes == [
        'Hidden rows, columns or cells of the sheet "Costs" are not read.',
        'The sheet "Secret" is hidden, and not read.',
        "1 picture in it is not read, nor text in pictures.",
    ]


def test_cells_say_what_other_programs_write() -> None:
    cells = [
        b'<c t="inlineStr"><is><t>a_x000D_b_x005F_x000D_</t></is></c><c t="str"><v>_x0041_</v></c>',
        b'<c t="b"/><c t="b"><v>true</v></c><c t="d"><v>2026-05-01T00:00:00</v></c>'
        b'<c t="d"><v>2026-05-01T10:30:00.000Z</v></c>',
    ]
    found = xlsx(b"".join(b"<row>%b</row>" % row for row in cells))
    assert text(found).split("\n")[1:] == [
        "| a b_x000D_ | A |",
        "| --- | --- |",
        "|  | TRUE | 2026-05-01 | 2026-05-01 10:30:00 |",
    ]


def test_cells_at_a_sheets_far_end_do_not_make_it_long() -> None:
    row = b'<row><c r="A1"><v>1</v></c><c r="XFC1"/><c r="XFD1"><v>2</v></c></row>'
    assert text(xlsx(row * 90)).split("\n")[1:] == ["| 1 | 2 |", "| --- | --- |", *["| 1 | 2 |"] * 89]


def test_notes_say_which_shapes_charts_and_objects_of_a_book_are_not_read() -> None:
    shape = b"<x:sp><x:nvSpPr><x:cNvPr%b/></x:nvSpPr><x:txBody><a:p><a:r><a:t>%b</a:t></a:r></a:p></x:txBody></x:sp>"
    group = b'<x:grpSp><x:nvGrpSpPr><x:cNvPr hidden="1"/></x:nvGrpSpPr>%b</x:grpSp>' % (shape % (b"", b"IGNORE"))
    shapes = shape % (b"", b"Seen") + shape % (b' hidden="1"', b"IGNORE") + group
    relations = b'<Relationships><Relationship Id="d" Type="urn:x/drawing" Target="../drawings/d.xml"/></Relationships>'
    more = {
        "xl/worksheets/_rels/sheet1.xml.rels": relations,
        "xl/drawings/d.xml": b'<x:wsDr xmlns:x="urn:x" xmlns:a="urn:a"><x:anchor>%b</x:anchor></x:wsDr>' % shapes,
        "xl/charts/chart1.xml": b"<c/>",
        "xl/embeddings/a.docx": b"x",
    }
    found = xlsx(b"<row><c><v>1</v></c></row>", b"", more)
    assert text(found) == '[sheet "Costs"]\n| 1 |\n| --- |\n\nSeen'
    assert found.notes[1:] == [
        "Text that is hidden in it is not read.",
        "1 embedded object in it is not read.",
        "1 chart in it is not read.",
    ]


def test_a_part_that_inflates_to_too_much_is_refused_whatever_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    book = rezipped(BASES["costs.xlsx"], lambda _, part: part.replace(b"sheet1.xml", b"sheet1.big"))
    with ZipFile(BytesIO(book)) as archive:
        sheet = archive.read("xl/worksheets/sheet1.xml")
    monkeypatch.setattr("app.documents.archive._MOST_BYTES", 100_000)
    _, reading = reader_of("a.xlsx", rezipped(book, lambda _, part: part, **{"xl/worksheets/sheet1.big": sheet}))
    assert "Rack" in text(reading())
    large = sheet + b" " * 100_000
    _, reading = reader_of("a.xlsx", rezipped(book, lambda _, part: part, **{"xl/worksheets/sheet1.big": large}))
    with pytest.raises(DocumentError, match="inflates to more than 256 MiB"):
        reading()


def test_hidden_parts_of_an_odt_file_are_left_out_with_a_note() -> None:
    content = (
        b"<o:document-content xmlns:o='urn:o' xmlns:t='urn:t' xmlns:s='urn:s' xmlns:d='urn:d' xmlns:tb='urn:tb'>"
        b"<o:automatic-styles>"
        b"<s:style s:name='H'><s:text-properties t:display='none'/></s:style>"
        b"<s:style s:name='K' s:parent-style-name='H'/>"
        b"</o:automatic-styles><o:body><o:text><t:p>Seen<t:span t:style-name='K'>IGNORE</t:span>, too</t:p>"
        b"<t:section t:display='none'><t:p>IGNORE</t:p></t:section>"
        b"<t:section t:display='condition' t:is-hidden='true'><t:p>IGNORE</t:p>"
        b"</t:section><t:p><t:hidden-paragraph t:is-hidden='true'/>IGNORE</t:p><t:p t:style-name='H'>IGNORE</t:p>"
        b"<t:p><t:hidden-text t:is-hidden='true'>IGNORE</t:hidden-text></t:p>"
        b"<tb:table><tb:table-row tb:visibility='collapse'><tb:table-cell><t:p>IGNORE</t:p>"
        b"</tb:table-cell></tb:table-row></tb:table>"
        b"<t:p><d:frame><d:image/></d:frame><d:frame><d:object/><d:image/></d:frame>"
        b"<d:frame><d:text-box><t:p>one</t:p><t:p>two</t:p></d:text-box></d:frame></t:p>"
        b"</o:text></o:body></o:document-content>"
    )
    styles = (
        b"<o:document-styles xmlns:o='urn:o' xmlns:t='urn:t' xmlns:s='urn:s'><o:master-styles>"
        b"<s:master-page s:name='Standard'>"
        b"<s:header><t:p>ACME</t:p></s:header><s:footer s:display='false'><t:p>IGNORE</t:p>"
        b"</s:footer></s:master-page>"
        b"<s:master-page s:name='Unused'><s:header><t:p>IGNORE</t:p></s:header></s:master-page>"
        b"</o:master-styles></o:document-styles>"
    )
    found = read("minutes.odt", {"content.xml": content, "styles.xml": styles}, {})
    assert [line for line in text(found).split("\n") if line] == [
        "Seen, too",
        "one",
        "two",
        "[headers and footers]",
        "ACME",
    ]
    assert found.notes == [
        "Text that is hidden in it is not read.",
        "1 picture in it is not read, nor text in pictures.",
        "1 embedded object in it is not read.",
    ]


def test_headings_and_lists_of_an_odt_file_have_their_numbers() -> None:
    styles = (
        b"<o:document-styles xmlns:o='urn:o' xmlns:t='urn:t' xmlns:s='urn:s'><o:styles><t:outline-style>"
        b"<t:outline-level-style t:level='1' s:num-format='1' s:num-suffix='.'/>"
        b"<t:outline-level-style t:level='2' s:num-format='1' t:display-levels='2'/></t:outline-style>"
        b"<t:list-style s:name='L'>"
        b"<t:list-level-style-number t:level='1' s:num-format='a' s:num-prefix='(' s:num-suffix=')'/>"
        b"<t:list-level-style-number t:level='2' s:num-format='i' t:display-levels='2'/></t:list-style>"
        b"<t:list-style s:name='B'><t:list-level-style-bullet t:level='1'/></t:list-style></o:styles>"
        b"</o:document-styles>"
    )
    item = b"<t:list-item><t:p>%b</t:p>%b</t:list-item>"
    inner = b"<t:list>%b%b</t:list>" % (item % (b"inner", b""), item % (b"next", b""))
    head = b"<t:h t:outline-level='%d'>%b</t:h>"
    body = [
        head % (1, b"Term"),
        head % (1, b"Rent"),
        head % (2, b"Due"),
        b"<t:list t:style-name='L'>%b%b</t:list>" % (item % (b"one", b"<t:p>more</t:p>"), item % (b"two", inner)),
        b"<t:list t:style-name='L' t:continue-numbering='true'>%b</t:list>" % item % (b"three", b""),
        b"<t:list t:style-name='L' t:continue-numbering='true'><t:list-item>%b</t:list-item></t:list>" % inner,
        b"<t:list t:style-name='L' t:continue-numbering='true'><t:list-item>%b</t:list-item></t:list>" % inner,
        b"<t:list t:style-name='L'>%b</t:list>" % item % (b"anew", b""),
        b"<t:list t:style-name='B'>%b</t:list>" % item % (b"point", b""),
        head % (1, b"End"),
        head % (10, b"Deep"),
        b"<t:list t:style-name='L'><t:list-item>%b</t:list-item></t:list>" % head % (2, b"In a list"),
    ]
    content = (
        b"<o:document-content xmlns:o='urn:o' xmlns:t='urn:t'><o:body><o:text>%b</o:text></o:body></o:document-content>"
    ) % b"".join(body)
    found = read("minutes.odt", {"content.xml": content, "styles.xml": styles}, {})
    assert [line for line in text(found).split("\n") if line] == [
        "# 1. Term",
        "# 2. Rent",
        "## 2.1 Due",
        "(a) one",
        "  more",
        "(b) two",
        "  b.i inner",
        "  b.ii next",
        "(c) three",
        "  c.i inner",
        "  c.ii next",
        "  c.iii inner",
        "  c.iv next",
        "(a) anew",
        "- point",
        "# 3. End",
        "###### Deep",
        "## (a) In a list",
    ]


def test_a_mail_says_how_many_attachments_it_does_not_name() -> None:
    attachment = b'--x\nContent-Disposition: attachment; filename="%d.pdf"\n\na\n'
    head = b'From: a@example.org\nContent-Type: multipart/mixed; boundary="x"\n\n--x\n\nHello\n'
    mail = head + b"".join(attachment % number for number in range(20)) + b"--x--\n"
    _, reading = reader_of("a.eml", mail)
    notes = reading().notes
    assert len(notes) == 17
    assert notes[-1] == "4 more attachments are not read."


def test_hidden_text_of_a_page_is_left_out_with_a_note() -> None:
    _, reading = reader_of("a.html", b"<html><p>Seen<p style='display:none'>IGNORE</p></html>")
    found = reading()
    assert text(found).strip() == "Seen"
    assert found.notes == ["Text that is hidden in it is not read."]
