"""The questions of `bench.eval.retrieval`, and its measures."""

import math
from collections.abc import Mapping

import pytest

from app.knowledge.index import Hit, OpenDocument, search
from app.knowledge.passages import Passage
from bench.eval import retrieval


def _all(texts: Mapping[str, str]) -> list[Hit]:
    return [Hit(each, at, 0.0) for each in retrieval.opened(texts, None) for at in range(len(each.passages))]


def test_every_answer_is_in_one_passage_of_its_page() -> None:
    asked = [(retrieval.pages(), retrieval.questions()), *retrieval.languages().values()]
    for texts, questions in asked:
        hits = _all(texts)
        for question in questions:
            assert any(retrieval.is_right(hit, question) for hit in hits), question
            assert question["says"].lower() not in question["ask"].lower()


@pytest.mark.parametrize("language", ["zh", "de", "ru"])
def test_words_of_other_languages_find_the_answer(language: str) -> None:
    texts, questions = retrieval.languages()[language]
    documents = retrieval.opened(texts, None)
    ranked = [search(documents, question["ask"], None, 10) for question in questions]
    assert [question["file"] for question in questions] == [hits[0].document.name for hits in ranked]
    assert retrieval.measured(ranked, questions)["recall@5"] == 1


def test_measures() -> None:
    texts = ["no", "the answer", "no", "no", "no", "no"]
    page = OpenDocument("a.md", "a.md", [Passage(text) for text in texts])
    hits = [Hit(page, at, 0.0) for at in range(len(texts))]
    asked = [{"ask": "?", "file": "a.md", "says": "the answer"}] * 3
    ranked = [hits, [*hits[2:], hits[0], hits[1]], hits[2:]]
    found = retrieval.measured(ranked, asked)
    assert found["recall@5"] == pytest.approx(1 / 3)
    assert found["ndcg@10"] == pytest.approx((1 / math.log2(3) + 1 / math.log2(7)) / 3)
