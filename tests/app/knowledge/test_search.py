"""Passages: cut, written and read, and searched by words and vectors."""

import math
import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from app.documents.document import Section
from app.knowledge.index import OpenDocument, search
from app.knowledge.lexical import Lexicon, scores, words_of
from app.knowledge.passages import PASSAGE_CHARACTERS, Passage, Vectors, cut, in_parts, read, without_overlap, written

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


def test_nothing_to_cut() -> None:
    assert cut([]) == []
    assert cut([Section("", 1)]) == []


@pytest.mark.parametrize("dimensions", [0, 3])
def test_written_passages_are_read(dimensions: int) -> None:
    passages = [Passage("first\n\nline", 3, "Heading", 17), Passage("zweiter Ü 🙂")]
    vectors = None if not dimensions else Vectors.of(np.eye(2, dimensions, dtype=np.float32))
    found, kept = read(written(passages, vectors))
    assert found == passages
    if vectors is None:
        assert kept is None
    else:
        assert kept is not None
        np.testing.assert_array_equal(kept.codes, vectors.codes)
        np.testing.assert_array_equal(kept.scales, vectors.scales)


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
    found = scores([Lexicon(each) for each in texts], "Red  APPLE, red zebra")
    flat = [text.split() for each in texts for text in each]
    mean = sum(map(len, flat)) / len(flat)
    for got, words in zip(np.concatenate(found), flat, strict=True):
        expected = 0.0
        for term in ("red", "apple", "zebra"):
            having = sum(term in other for other in flat)
            weight = math.log(1 + (len(flat) - having + 0.5) / (having + 0.5))
            count = words.count(term)
            expected += weight * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(words) / mean))
        assert got == pytest.approx(expected, rel=1e-6)


def test_words_are_found_whatever_their_accents() -> None:
    assert words_of("Café STRASSE Ångström 2026-11") == ["cafe", "strasse", "angstrom", "2026", "11"]
    assert words_of("straße") == ["strasse"]


def _open(file_id: str, texts: list[str], vectors: NDArray[np.float32] | None = None) -> OpenDocument:
    kept = None if vectors is None else Vectors.of(vectors)
    return OpenDocument(file_id, file_id, [Passage(text) for text in texts], Lexicon(texts), kept)


def test_both_rankings_count() -> None:
    towards = np.eye(4, dtype=np.float32)
    documents = [
        _open("a", ["the deposit is three rents", "nothing of interest"], towards[:2]),
        _open("b", ["security that is paid before moving in", "a deposit of mud"], towards[[2, 3]]),
        _open("empty", []),
    ]
    question = np.array([0.6, 0, 0.8, 0], np.float32)
    hits = search(documents, "how high is the deposit", question, 3)
    assert [(hit.document.file_id, hit.index) for hit in hits[:2]] == [("a", 0), ("b", 0)]
    assert all(0 < hit.score <= 1 for hit in hits)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    words = search(documents, "deposit", None, 10)
    assert {(hit.document.file_id, hit.index) for hit in words} == {("a", 0), ("b", 1)}
    only = search([one for one in documents if one.file_id == "b"], "deposit", question, 10)
    assert {hit.document.file_id for hit in only} == {"b"}
    assert search([], "deposit", question, 3) == []


def test_many_passages_give_the_best() -> None:
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((1000, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    document = _open("a", ["word"] * 1000, vectors)
    hits = search([document], "nothing", vectors[123], 10)
    assert hits[0].index == 123
    expected = np.argsort(-(vectors @ vectors[123]))[:5]
    assert {hit.index for hit in hits[:5]} == set(expected.tolist())


def test_the_size_of_a_lexicon() -> None:
    tracemalloc.start()
    lexicon = Lexicon([" ".join(f"word{number}" for number in range(page, page + 300)) for page in range(0, 9000, 100)])
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken / 1.5 < lexicon.size_bytes < taken * 1.5
