"""The questions of `bench.eval.retrieval`, and its measures."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from app.knowledge.index import Hit, OpenDocument
from app.knowledge.lexical import Lexicon
from app.knowledge.passages import Passage
from bench.eval import retrieval


def test_every_answer_is_in_one_passage_of_its_page() -> None:
    def embed(texts: Sequence[str], _: str) -> NDArray[np.float32]:
        return np.ones((len(texts), 1), np.float32)

    hits = [Hit(each, at, 0.0) for each in retrieval.documents(embed) for at in range(len(each.passages))]
    for question in retrieval.questions():
        assert any(retrieval.is_right(hit, question) for hit in hits), question
        assert question["says"].lower() not in question["ask"].lower()


def test_measures() -> None:
    texts = ["no", "the answer", "no", "no", "no", "no"]
    page = OpenDocument("a.md", "a.md", [Passage(text) for text in texts], Lexicon(texts))
    hits = [Hit(page, at, 0.0) for at in range(len(texts))]
    asked = [{"ask": "?", "file": "a.md", "says": "the answer"}] * 3
    ranked = [hits, [*hits[2:], hits[0], hits[1]], hits[2:]]
    found = retrieval.measured(ranked, asked)
    assert found["recall@5"] == pytest.approx(1 / 3)
    assert found["ndcg@10"] == pytest.approx((1 / math.log2(3) + 1 / math.log2(7)) / 3)
