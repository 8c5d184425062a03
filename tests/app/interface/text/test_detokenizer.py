import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from app.interface.text.detokenizer import Detokenizer, StopStrings, TokenBytes, UnsupportedTokenizerError
from tests.app.tiny_model import reference_tokenizer, sentencepiece_json, tokenizer_json

TEXTS = st.lists(
    st.one_of(
        st.characters(codec="utf-8"),
        st.sampled_from(["👩‍👩‍👧", "日", "é", "\u0301", "\n", "   ", "\ufffd", "\U0010ffff", "▁"]),
    )
).map(lambda parts: "".join(parts).replace("▁", "_"))
CUTS = st.lists(st.integers(min_value=1, max_value=7), min_size=1, max_size=20)


def pieces(token_ids: list[int], cuts: list[int]) -> list[list[int]]:
    out, at, turn = [], 0, 0
    while at < len(token_ids):
        size = cuts[turn % len(cuts)]
        out.append(token_ids[at : at + size])
        at, turn = at + size, turn + 1
    return out


def detokenized(tokenizer: dict[str, Any], token_ids: list[int], cuts: list[int], *, starts_text: bool) -> list[str]:
    detokenizer = Detokenizer(TokenBytes.from_json(tokenizer), starts_text=starts_text)
    return [*(detokenizer.feed(piece) for piece in pieces(token_ids, cuts)), detokenizer.finish()]


BYTE_LEVEL, SENTENCEPIECE = tokenizer_json(), sentencepiece_json()


@given(TEXTS, CUTS)
def test_byte_level_text_survives_any_split(text: str, cuts: list[int]) -> None:
    token_ids = reference_tokenizer().encode(text).ids
    shown = detokenized(BYTE_LEVEL, token_ids, cuts, starts_text=True)
    assert "".join(shown) == text
    assert shown[-1] == ""


@given(TEXTS, CUTS)
def test_sentencepiece_text_survives_any_split(text: str, cuts: list[int]) -> None:
    token_ids = Tokenizer.from_str(json.dumps(SENTENCEPIECE)).encode(text, add_special_tokens=False).ids
    assert "".join(detokenized(SENTENCEPIECE, token_ids, cuts, starts_text=True)) == text
    continued = "".join(detokenized(SENTENCEPIECE, token_ids, cuts, starts_text=False))
    assert continued == (f" {text}" if text else "")


@given(st.lists(st.integers(min_value=0, max_value=359), max_size=30), CUTS)
def test_any_byte_level_tokens_read_as_the_library_decodes_them(token_ids: list[int], cuts: list[int]) -> None:
    expected = reference_tokenizer().decode(token_ids, skip_special_tokens=True)
    assert "".join(detokenized(BYTE_LEVEL, token_ids, cuts, starts_text=True)) == expected


def test_no_replacement_character_before_a_character_is_whole() -> None:
    vocab = reference_tokenizer().get_vocab()
    token_ids = [vocab[token] for token in "ðŁİī"]  # 🎉 byte by byte
    detokenizer = Detokenizer(TokenBytes.from_json(BYTE_LEVEL), starts_text=True)
    assert [detokenizer.feed([token]) for token in token_ids] == ["", "", "", "🎉"]
    assert detokenizer.feed(token_ids[:2]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_special_tokens_and_tokens_outside_the_vocabulary_are_no_text() -> None:
    detokenizer = Detokenizer(TokenBytes.from_json(BYTE_LEVEL), starts_text=True)
    assert detokenizer.feed([0, 1, 2, 100_000]) == ""


def test_an_added_token_that_is_not_special_is_text() -> None:
    tokenizer = tokenizer_json()
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 360, "content": "<né>", "special": False})
    assert Detokenizer(TokenBytes.from_json(tokenizer), starts_text=True).feed([360]) == "<né>"


def test_sentencepiece_added_tokens_are_decoded_unless_special() -> None:
    """Runs of spaces and newlines are added tokens, as in Gemma's tokenizer.json."""
    tokenizer = sentencepiece_json()
    first = max(tokenizer["model"]["vocab"].values()) + 1
    added = [("▁▁▁▁", False), ("\n\n", False), ("<th>", False), ("<▁end>", True)]
    tokenizer["added_tokens"] += [
        {**tokenizer["added_tokens"][0], "id": first + i, "content": text, "special": special}
        for i, (text, special) in enumerate(added)
    ]
    reference = Tokenizer.from_str(json.dumps(tokenizer))
    token_ids = [first, *reference.encode("at", add_special_tokens=False).ids, *range(first, first + len(added))]
    expected = reference.decode(token_ids, skip_special_tokens=True)
    assert expected == "    at    \n\n<th>".removeprefix(" ").replace("at", " at")
    for cuts in ([1], [3], [100]):
        assert "".join(detokenized(tokenizer, token_ids, cuts, starts_text=True)) == expected


@pytest.mark.parametrize(
    "broken",
    [{"decoder": {"type": "WordPiece"}}, {"decoder": None}, {"model": {"type": "WordLevel", "vocab": {}}}],
)
def test_an_unknown_kind_of_tokenizer_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedTokenizerError, match="not supported"):
        TokenBytes.from_json({**tokenizer_json(), **broken})


def cut_text(text: str, cuts: list[int]) -> list[str]:
    return ["".join(map(chr, piece)) for piece in pieces([ord(character) for character in text], cuts)]


def run_stops(stops: list[str], parts: list[str]) -> tuple[str, str | None]:
    matcher, shown = StopStrings(stops), ""
    for part in parts:
        text, stop = matcher.feed(part)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + matcher.finish(), None


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4), CUTS)
def test_the_first_complete_stop_string_ends_the_text_however_it_is_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    ends = [(i + 1, i + 1 - len(stop)) for i in range(len(text)) for stop in stops if text[: i + 1].endswith(stop)]
    expected = (text[: min(ends)[1]], text[min(ends)[1] : min(ends)[0]]) if ends else (text, None)
    assert run_stops(stops, cut_text(text, cuts)) == expected


@given(st.text("ab", max_size=20), st.text("ab", min_size=1, max_size=4))
def test_only_what_could_begin_a_stop_string_is_held_back(text: str, stop: str) -> None:
    shown, stopped = StopStrings([stop]).feed(text)
    if not stopped:
        held = text[len(shown) :]
        assert stop.startswith(held)
        longest = max(n for n in range(len(stop)) if text.endswith(stop[:n]))
        assert len(held) == longest
