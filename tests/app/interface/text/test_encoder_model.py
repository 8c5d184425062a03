"""Tokens of texts for encoders: special tokens, prompts, cutting, and pairs."""

import json

import pytest
from tokenizers import Tokenizer

from app.interface.request.errors import ApiError
from app.interface.text.encoder_model import packed
from tests.app.encoder import CLS, SEP, SPECIAL, WORDS, encoder, tokenizer_json


def ids(*words: str) -> list[int]:
    return [(*SPECIAL, *WORDS).index(word) for word in words]


def test_a_text_has_its_special_tokens_whatever_the_file_says_of_truncation() -> None:
    model = encoder()
    words = ("the", "fox", "is", "old", "##er")
    assert model.tokens("The fox is older") == [CLS, *ids(*words), SEP]
    assert model.special_tokens == 2
    assert model.count(["The fox is older", ""]) == [5, 0]
    assert model.offsets("The fox") == [(0, 3), (4, 7)]
    assert model.tokens("") == [CLS, SEP]


def test_text_does_not_become_special_tokens() -> None:
    assert CLS not in encoder().tokens("[CLS]")[1:]
    assert encoder().tokens("[SEP]") == [CLS, *ids("[", "sep", "]"), SEP]


def test_the_end_of_a_long_text_is_cut() -> None:
    model = encoder()
    assert model.tokens("fox " * 20) == [CLS, *ids("fox") * 6, SEP]
    assert model.tokens("fox " * 10**6) == [CLS, *ids("fox") * 6, SEP]
    assert model.within(7).tokens("fox " * 20) == [CLS, *ids("fox") * 5, SEP]
    assert model.within(100) is model


def test_prompts_stand_before_queries_and_documents() -> None:
    model = encoder(prompts={"query": "query: ", "passage": "old "}, default_prompt="query")
    assert model.tokens("fox", "query") == model.tokens("fox") == [CLS, *ids("query", ":", "fox"), SEP]
    assert model.tokens("fox", "document") == [CLS, *ids("old", "fox"), SEP]
    assert encoder().tokens("fox", "query") == [CLS, *ids("fox"), SEP]


def test_pairs_are_those_of_the_tokenizer() -> None:
    reference = Tokenizer.from_str(json.dumps(tokenizer_json() | {"truncation": None}))
    expected = reference.encode("the fox", "is old")
    ((tokens, second),) = encoder().pairs("the fox", ["is old"])
    assert tokens == expected.ids
    assert [0] * second + [1] * (len(tokens) - second) == expected.type_ids


@pytest.mark.parametrize(
    ("query", "text", "of_query", "of_text"), [(1, 20, 1, 4), (20, 1, 4, 1), (20, 20, 2, 3), (3, 2, 3, 2)]
)
def test_of_a_pair_the_longer_text_is_cut(query: int, text: int, of_query: int, of_text: int) -> None:
    ((tokens, second),) = encoder().pairs("fox " * query, ["dog " * text])
    assert tokens == [CLS, *ids("fox") * of_query, SEP, *ids("dog") * of_text, SEP]
    assert second == of_query + 2


def test_dimensions_are_those_that_the_model_was_trained_with() -> None:
    encoder(shorter=[2]).check_dimensions(2)
    encoder().check_dimensions(4)
    with pytest.raises(ApiError, match="can have 2, 4"):
        encoder(shorter=[2]).check_dimensions(3)
    encoder(shortest=2).check_dimensions(3)
    with pytest.raises(ApiError, match="can have 2 to 4"):
        encoder(shortest=2).check_dimensions(1)


def test_packed() -> None:
    texts = packed([[1, 2, 3], [4]], [2, 1])
    assert texts.token_ids.tolist() == [1, 2, 3, 4]
    assert texts.lengths.tolist() == [3, 1]
    assert texts.second.tolist() == [2, 1]
    assert packed([[1, 2]]).second.tolist() == [2]


def test_a_decoder_that_judges_gets_a_pair_in_its_prompt() -> None:
    frame = {"before": [1, 3], "first": "query : ", "second": " : ", "after": [2]}
    model = encoder(task="score", dimensions=1, frame=frame, max_tokens=9)
    query, colon, fox, is_, old = (4 + WORDS.index(word) for word in ("query", ":", "fox", "is", "old"))
    cut, whole = model.pairs("fox", ["is old old", "old"])
    assert cut == ([1, 3, query, colon, fox, colon, is_, old, 2], 0)
    assert whole == ([1, 3, query, colon, fox, colon, old, 2], 0)
    ((ids, _),) = model.pairs("fox [SEP]", ["old"])
    assert ids.count(SEP) == 1, "text is never a control token"
