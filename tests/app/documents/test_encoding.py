"""Text that is not UTF-8: which encoding it is read in, and what a note says of it."""

import codecs

import pytest

from app.documents.document import DocumentError
from app.documents.encoding import detected
from app.documents.kinds import reader_of
from app.documents.plain import decoded

RUSSIAN = "Договор аренды жилого помещения. Арендатор обязан вносить плату ежемесячно."
TEXTS = {
    "cp1252": "Die Größe der Wohnung beträgt 80 m². Kündigung: drei Monate.",
    "iso8859_15": "Le café est fermé. L'été dernier, nous étions là.",
    "cp1250": "Umowa najmu lokalu mieszkalnego została zawarta w Łodzi pomiędzy stronami.",
    "iso8859_2": "Příliš žluťoučký kůň úpěl ďábelské ódy. Smlouva o nájmu bytu.",
    "cp1251": RUSSIAN,
    "koi8_r": RUSSIAN,
    "gbk": "租赁合同PDF文件：承租人应当每月支付租金。房屋面积为八十平方米。",
    "big5": "租賃合約：承租人應當每月支付租金。房屋面積為八十平方公尺。",
    "shift_jis": "賃貸借契約書。借主は毎月家賃を支払うものとする。",
    "euc_jp": "賃貸借契約書。借主は毎月家賃を支払うものとする。",
    "euc_kr": "임대차 계약서. 임차인은 매월 임대료를 지불하여야 한다.",
    "cp1253": "Το συμβόλαιο ενοικίασης της κατοικίας. Ο ενοικιαστής πληρώνει.",
    "iso8859_9": "Kira sözleşmesi. Kiracı her ay kirayı ödemekle yükümlüdür.",
    "cp1255": "חוזה שכירות: השוכר ישלם דמי שכירות מדי חודש.",
    "cp1256": "عقد إيجار السكن يلتزم المستأجر بدفع الإيجار كل شهر",
    "iso2022_jp": "契約書。借主は家賃を支払う。",
    "utf-16-le": "Größe\nund mehr",
    "utf-16-be": RUSSIAN,
}


@pytest.mark.parametrize("encoding", TEXTS)
def test_text_in_another_encoding_is_read_as_it_was_written(encoding: str) -> None:
    for text in (TEXTS[encoding], f"{TEXTS[encoding]}\r\n" * 400):
        shown, notes = decoded(text.encode(encoding))
        assert shown == text
        assert [note.partition(": it was read as ")[0] for note in notes] == ["It does not say its encoding"]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "5 µg/l"),
        ("cp1252", "Kapazität 10 µF"),
        ("cp1252", "20 °C – 5 µm"),
        ("cp1252", "Þór"),
        ("cp1252", "Jürgen Müller, François Lefèvre, José Muñoz, Håkan Åström, João Conceição"),
        ("cp1252", "La cançó però és així, qüestió de l'àvia i de València"),
        ("cp1252", "Høvuðsstaðurin er Tórshavn, í Útnorðri, býður væl"),
        ("cp1252", "Allir menn eru bornir frjálsir og jafnir öðrum að virðingu og réttindum"),
        ("cp1250", "Dvořák, Jiří, počítač"),
        ("cp1250", "Slovenská vŕba, ľudia, kôň"),
        ("cp1257", "Nuomininkas įsipareigoja kas mėnesį mokėti nuomą, šaltinis žūti"),
        ("cp1257", "Īrnieks apņemas katru mēnesi maksāt, šādi ļoti čakls ģimene ķēde ūdens"),
        ("iso8859_5", RUSSIAN),
        ("iso8859_6", TEXTS["cp1256"]),
        ("utf-16-be", "Привет всем"),
    ],
)
def test_short_texts_and_names_are_read_as_they_were_written(encoding: str, text: str) -> None:
    assert decoded(text.encode(encoding))[0] == text


@pytest.mark.parametrize("encoding", ["cp850", "mac_roman"])
def test_western_letters_alone_make_no_western_text(encoding: str) -> None:
    assert detected("José Muñoz, Håkan Åström".encode(encoding)) is None


@pytest.mark.parametrize("text", ["Müller\0", "Böse\0Tat\0", "Böse\0...\0...\0...\0", "Die Größe. " * 50 + "\0"])
def test_stray_zeros_make_no_utf_16(text: str) -> None:
    assert decoded(text.encode("cp1252")) == (text, ["It does not say its encoding: it was read as Windows-1252."])


@pytest.mark.parametrize("text", ["naïve café", "日本語"])
def test_utf_8_that_is_cut_within_a_character_stays_utf_8(text: str) -> None:
    assert decoded(text.encode()[:-1]) == (f"{text[:-1]}\ufffd", ["Some of its characters are damaged."])


def test_a_codec_that_cannot_be_looked_for_is_left_out() -> None:
    def fail(name: str) -> codecs.CodecInfo | None:
        raise OSError(name)

    codecs.register(fail)  # a sealed process can open no module
    try:
        assert decoded("Größe".encode("cp1252"), "no-such-codec")[0] == "Größe"
        _, reading = reader_of("a.eml", b"From: a@example.org\nContent-Type: text/plain; charset=no-such\n\nHello\n")
        assert "Hello" in reading().sections[0].text
    finally:
        codecs.unregister(fail)


def test_what_is_in_no_known_encoding_is_refused() -> None:
    with pytest.raises(DocumentError, match="is text in an encoding that is not recognized: save it as UTF-8"):
        decoded(RUSSIAN.encode("cp866"))
    with pytest.raises(DocumentError, match="is no kind of document that is read here"):
        decoded(bytes(range(256)) * 9)


def test_one_damaged_byte_makes_no_other_encoding() -> None:
    text = "Größe und Übung, schöne Grüße aus Köln. " * 9
    notes = ["Some of its characters are damaged."]
    assert decoded(text.encode() + b"\xff") == (f"{text}\ufffd", notes)
    assert decoded(b"Plain words. " * 30 + b"\x81\x81") == ("Plain words. " * 30 + "\ufffd\ufffd", notes)
    assert decoded(f"{text}\0".encode()) == (f"{text}\0", [])
    assert decoded(RUSSIAN.encode("koi8_r"), "koi8-r") == (RUSSIAN, [])


def test_a_long_line_is_looked_at_in_part() -> None:
    found = detected(b"a" * 3_000_000 + RUSSIAN.encode("cp1251") * 40_000)
    assert found is not None
    assert found.codec == "cp1251"
