"""Text that is not UTF-8: which encoding it is read in, and what a note says of it."""

import pytest

from app.documents.document import DocumentError
from app.documents.encoding import detected
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
