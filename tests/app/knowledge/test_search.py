"""Passages: cut, written and read, and searched by words and vectors."""

import math
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.documents.document import Section
from app.knowledge.index import AddedDocument, Index, OpenDocument, OpenDocuments, search
from app.knowledge.lexical import Lexicon, Vocabulary, scores, words_of
from app.knowledge.passages import (
    PASSAGE_CHARACTERS,
    Passage,
    Reader,
    Vectors,
    cut,
    estimated_tokens,
    in_parts,
    read,
    without_overlap,
    written,
)

WORDS = (
    "the",
    "lease",
    "of",
    "northern",
    "hall",
    "ends",
    "with",
    "month",
    "after",
    "notice",
    "was",
    "given",
    "writing",
)


def _prose(seed: int, words: int) -> str:
    rng = np.random.default_rng(seed)
    return " ".join(f"{' '.join(rng.choice(WORDS, 12))}.".capitalize() for _ in range(words // 12))


def test_every_word_is_in_a_passage_of_its_page() -> None:
    pages = [Section(f"# Chapter {number}\n\n{_prose(number, 600)} mark{number}.", number) for number in (1, 2, 5)]
    passages = cut(pages)
    assert max(len(one.text) for one in passages) <= PASSAGE_CHARACTERS
    for section in pages:
        mine = [one for one in passages if one.page == section.page]
        assert set(words_of(section.text)) <= {word for one in mine for word in words_of(one.text)}
        assert {one.heading for one in mine[1:]} == {f"Chapter {section.page}"}
        assert any(f"mark{section.page}" in one.text for one in mine)
    assert passages[2].text[:40] in passages[1].text  # they overlap


def test_a_document_is_whole_again_without_the_overlaps() -> None:
    rows = "| a | b |\n|---|---|\n" + "| 0 | 0 |\n" * 300  # alike, so that no text tells where they overlap
    pages = [Section(f"# Ü {number}\n\n{_prose(number, 400)}\n\n{rows}", number) for number in (1, 2)]
    passages = cut(pages)
    text = "".join(one.text for one in pages)
    assert "".join("".join(one.text.split()) for one in without_overlap(passages)) == "".join(text.split())
    assert sum(len(one.text) for one in passages) > len(text)
    assert [one.text for one in without_overlap([Passage("a"), Passage("a")])] == ["a", "a"]  # of an older version


def test_a_passage_is_searched_with_what_it_is_about() -> None:
    rows = "".join(f"| {number} | {number / 2} |\n" for number in range(200))
    table = f"| room | rent |\n|---|---|\n{rows}"
    text = f"# Miller lease\n\n{_prose(1, 200)}\n\n## Rooms\n\n{table}\n### Deposit ##\n\n{_prose(2, 300)} Three rents."
    sections = [Section(text, 1, 'sheet "Prices"'), Section("| a | b |\n|---|---|\n| 1 | 2 |", 2, 'sheet "Taxes"')]
    passages = cut(sections, place="north/lease.xlsx")
    assert [one.mark for one in passages if one.page == 2] == ['sheet "Taxes"']
    [*in_table] = [one for one in passages if one.lead]
    assert len(in_table) > 2
    for one in in_table:
        assert one.searched("north/lease.xlsx").startswith(
            'north/lease.xlsx\nMiller lease > Rooms\nsheet "Prices"\n| room | rent |\n|---|---|\n|'
        )
        assert one.with_lead().text == f"| room | rent |\n|---|---|\n{one.text}"
    [first] = [one for one in passages if "| room | rent |" in one.text]
    assert first.lead == ""  # its header is its own
    [begins] = [one for one in passages if one.text.startswith("### Deposit")]
    assert begins.heading == "Miller lease > Rooms"
    [last] = [one for one in passages if "Three rents" in one.text]
    assert (last.heading, last.lead) == ("Miller lease > Rooms > Deposit", "")
    whole = "".join("".join(one.text.split()) for one in without_overlap(passages))
    assert whole == "".join("".join(one.text.split()) for one in sections)


def test_pages_are_cut_together_and_have_no_name() -> None:
    passages = cut([Section("One.", 1, "page 1"), Section("Two.", 2, "page 2")])
    assert [(one.text, one.page, one.mark) for one in passages] == [("One.\n\nTwo.", 1, "")]


@pytest.mark.parametrize("kind", ["markdown", "code"])
def test_comments_are_no_headings(kind: Any) -> None:
    code = f"# a comment\n{_prose(1, 300)}"
    text = code if kind == "code" else f"# Manual\n\n~~~sh\n{code}\n~~~\n\n{_prose(2, 300)}"
    headings = {one.heading for one in cut([Section(text)], kind=kind)[1:]}
    assert headings == ({""} if kind == "code" else {"Manual"})


@pytest.mark.parametrize("sign", ["漢", "ж", "ก", "x "])
def test_an_encoder_reads_whole_passages(sign: str) -> None:
    passages = cut([Section(f"# T\n\n{sign * 3000}")], place="a.txt")
    assert max(estimated_tokens([one.searched("a.txt") for one in passages])) <= 254 * 1.2
    assert sum(len(one.text) for one in without_overlap(passages)) >= 3000


def test_a_dense_part_is_cut_shorter_by_the_tokens_of_the_encoder() -> None:
    text = f"{_prose(1, 3000)}\n\n{'9' * 2000}\n\n{_prose(2, 3000)}"

    def count(texts: Sequence[str]) -> list[int]:
        return [len(text) // 5 + text.count("9") for text in texts]

    passages = cut([Section(text)], reader=Reader(count, 256))
    assert max(count([one.text for one in passages])) <= 256 * 1.2
    assert sorted(len(one.text) for one in passages)[len(passages) // 2] > 600


def test_a_long_line_of_marks_is_read_at_once() -> None:
    text = f"# {'# ' * 200_000}x\n\n|{'-' * 200_000}x\n\nEnd."
    assert cut([Section(text)])[-1].text.endswith("End.")


def test_nothing_to_cut() -> None:
    assert cut([]) == []
    assert cut([Section("", 1)]) == []


@pytest.mark.parametrize("dimensions", [0, 3])
def test_written_passages_are_read(dimensions: int) -> None:
    passages = [Passage("first\n\nline", 3, "A > B", 17, 'sheet "C"', "| d |\n|---|"), Passage("zweiter Ü 🙂")]
    vectors = None if not dimensions else Vectors.of(np.eye(2, dimensions, dtype=np.float32))
    found, kept = read(written(passages, vectors))
    assert found == passages
    if vectors is None:
        assert kept is None
    else:
        assert kept is not None
        np.testing.assert_array_equal(kept.codes, vectors.codes)
        np.testing.assert_array_equal(kept.scales, vectors.scales)


def test_passages_of_older_versions_are_read() -> None:
    header = b'{"texts":["a","b"],"pages":[1,null],"headings":["H",""],"dimensions":0}'
    found, vectors = read(len(header).to_bytes(4, "little") + header)
    assert (found, vectors) == ([Passage("a", 1, "H"), Passage("b")], None)


def test_parts_are_bounded_and_whole() -> None:
    passages = [Passage("x" * size) for size in (10, 5000, 200, 90_000, 1)]
    parts = list(in_parts(passages, 20_000))
    assert [index for begin, end in parts for index in range(begin, end)] == list(range(len(passages)))
    assert [end - begin for begin, end in parts] == [3, 1, 1]


def test_vectors_are_near_what_they_were() -> None:
    rng = np.random.default_rng(1)
    given = rng.standard_normal((200, 384)).astype(np.float32)
    given /= np.linalg.norm(given, axis=1, keepdims=True)
    similar = Vectors.of(given).similarities(given[7])
    assert np.abs(similar - given @ given[7]).max() < 0.01
    zero = Vectors.of(np.zeros((1, 4), np.float32))
    assert zero.similarities(np.ones(4, np.float32)) == [0]


def test_bm25_is_the_formula() -> None:
    texts = [["red apple", "green apple apple tree"], ["a red brick house with a red door"]]
    question = "Red  APPLE, red zebra"
    found = scores([Lexicon.of(each) for each in texts], question)
    flat = [text.split() for each in texts for text in each]
    mean = sum(map(len, flat)) / len(flat)
    terms = ("red", "apple", "zebra")
    having = {term: sum(term in words for words in flat) for term in terms}
    weights = {term: math.log(1 + (len(flat) - having[term] + 0.5) / (having[term] + 0.5)) for term in terms}
    for got, words in zip(np.concatenate(found), flat, strict=True):
        expected = 0.0
        for term in terms:
            count = words.count(term)
            expected += weights[term] * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(words) / mean))
        assert got == pytest.approx(expected / sum(2.2 * weight for weight in weights.values()), rel=1e-5)


def test_words_are_found_whatever_their_accents() -> None:
    assert words_of("Café STRASSE Ångström 2026-11") == ["cafe", "strasse", "angstrom", "2026", "11"]
    assert words_of("straße") == ["strasse"]
    assert words_of("lease_MILLER.pdf") == ["lease", "miller", "pdf"]
    assert words_of("Ёлка й") == ["елка", "и"]


def test_words_of_scripts_without_spaces() -> None:
    assert words_of("押金为三 ok") == ["押", "金", "为", "三", "押金", "金为", "为三", "ok"]
    assert words_of("がか") == ["が", "か", "がか"]
    assert words_of("한글") == ["한", "글", "한글"]
    assert words_of("บ้าน") == [*"บ้าน", "บ้", "้า", "าน"]
    assert words_of("किताब में") == ["किताब", "में"]  # vowel signs are part of a word


Given = tuple[str, list[str], NDArray[np.float32] | None]


def _changed(index: Index, *given: Given) -> tuple[Index, list[OpenDocument]]:
    """The index of these documents, whose ids are their numbers; those that it has are not opened again."""
    documents = [
        OpenDocument(file_id, f"{file_id}.md", [Passage(text) for text in texts], number=ord(file_id))
        for file_id, texts, _ in given
    ]
    there = {each.number for each in index.documents}
    added = {
        each.number: AddedDocument.of(each, None if vectors is None else Vectors.of(vectors), index.vocabulary)
        for each, (_, _, vectors) in zip(documents, given, strict=True)
        if each.number not in there
    }
    return index.changed(documents, added), documents


def _opened(*given: Given) -> OpenDocuments:
    index, documents = _changed(Index(), *given)
    return OpenDocuments(documents, [index])


def test_both_rankings_count() -> None:
    towards = np.eye(4, dtype=np.float32)
    documents = _opened(
        ("a", ["the deposit is three rents", "nothing of interest"], towards[:2]),
        ("b", ["security that is paid before moving in", "a deposit of mud"], towards[[2, 3]]),
        ("c", [], None),
    )
    question = np.array([0.6, 0, 0.8, 0], np.float32)
    hits = search(documents, "how high is the deposit", question, 3)
    assert [(hit.document.file_id, hit.index) for hit in hits[:2]] == [("a", 0), ("b", 0)]
    assert [hit.score for hit in hits[:2]] == pytest.approx([0.6, 0.8], abs=0.01)  # the cosines
    assert [hit.order for hit in hits] == sorted((hit.order for hit in hits), reverse=True)
    words = search(documents, "deposit", None, 10)
    assert {(hit.document.file_id, hit.index) for hit in words} == {("a", 0), ("b", 1)}
    assert all(0 < hit.score < 1 for hit in words)
    only = search(OpenDocuments(documents[1:], documents.indexes), "deposit", question, 10)
    assert {hit.document.file_id for hit in only} == {"b"}
    assert search(OpenDocuments([], documents.indexes), "deposit", question, 3) == []
    assert search(OpenDocuments([], []), "deposit", question, 3) == []


def test_nonsense_has_a_low_score() -> None:
    documents = _opened(("a", ["the deposit", "the notice"], np.eye(3, dtype=np.float32)[:2]))
    for vector in ([0, 0, 1], [-1, 0, 0]):
        assert {hit.score for hit in search(documents, "zebra", np.array(vector, np.float32), 9)} == {0.0}


def test_the_same_text_is_found_once() -> None:
    copies: list[Given] = [(each, ["the deposit is three rents", f"own {each}"], None) for each in "abcdef"]
    documents = _opened(*copies, ("g", ["a deposit of mud and of much else, in long words"], None))
    hits = search(documents, "deposit", None, 6)
    assert [(hit.document.file_id, hit.index) for hit in hits] == [("a", 0), ("g", 0)]
    same: list[Given] = [(chr(each), ["the deposit"], None) for each in range(1000, 1400)]
    assert len(search(_opened(*same, ("z", ["one deposit, once"], None)), "deposit", None, 6)) == 2


def test_the_name_of_a_document_is_searched() -> None:
    documents = _opened(("a", ["the deposit is three rents"], None), ("b", ["the deposit is two rents"], None))
    assert [hit.document.file_id for hit in search(documents, "the deposit in b", None, 1)] == ["b"]


def test_many_passages_give_the_best() -> None:
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((5000, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    documents = _opened(("a", [f"word {number}" for number in range(5000)], vectors))
    hits = search(documents, "nothing", vectors[4123], 10)
    assert hits[0].index == 4123
    expected = np.argsort(-(vectors @ vectors[4123]))[:5]
    assert {hit.index for hit in hits[:5]} == set(expected.tolist())


def test_a_changed_index_is_as_a_new_one() -> None:
    eye = np.eye(4, dtype=np.float32)
    a: Given = ("a", ["the red deposit", "red"], eye[:2])
    b: Given = ("b", ["a red deposit of mud"], None)
    c: Given = ("c", ["red red notice", "the deposit"], eye[2:])
    index, _ = _changed(Index(), a, b)
    for given in ((a, b, c), (b, c), (c, a), (a,), (), (b, a)):
        index, documents = _changed(index, *given)
        fresh = _opened(*given)
        for vector in (None, np.array([0.5, 0.5, 0.1, 0.7], np.float32)):
            found = [
                {(hit.document.file_id, hit.index): hit.score for hit in search(some, "red deposit", vector, 9)}
                for some in (OpenDocuments(documents, [index]), fresh)
            ]
            assert found[0] == pytest.approx(found[1])
        own, new = index.lexicon, fresh.indexes[0].lexicon
        assert (own.size_bytes, len(own.words)) == (new.size_bytes, len(new.words))


def test_collections_are_searched_together() -> None:
    first, a = _changed(Index(), ("a", ["red deposit"], None))
    second, b = _changed(Index(), ("a", ["blue deposit"], None))
    one, other = [replace(a[0], collection_id="1")], [replace(b[0], collection_id="2")]
    indexes = [first.changed(one, {}), second.changed(other, {})]
    found = search(OpenDocuments([*one, *other], indexes), "blue deposit", None, 9)
    assert [hit.document.collection_id for hit in found] == ["2", "1"]
    only = search(OpenDocuments(one, indexes), "blue deposit", None, 9)
    assert [hit.document.collection_id for hit in only] == ["1"]


def test_the_size_of_an_index() -> None:
    tracemalloc.start()
    texts = [" ".join(f"word{number}" for number in range(page, page + 150)) for page in range(0, 9000, 50)]
    documents = _opened(("a", texts, np.ones((len(texts), 384), np.float32)))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken / 1.5 < documents.indexes[0].size_bytes < taken * 1.5


def test_an_entry_takes_six_bytes() -> None:
    lexicon = Lexicon.of([" ".join(f"w{number}" for number in range(500))] * 400, Vocabulary())
    joined = Lexicon.joined([lexicon] * 3)
    assert joined.size_bytes < 3 * 400 * 500 * 6 + 3 * 400 * 4 + 500 * 12 + 100
