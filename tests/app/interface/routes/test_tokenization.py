import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from app.interface.text.chat_model import ChatModel
from tests.app.service import http_app, http_client, never
from tests.app.tiny_model import CONTEXT_TOKENS, TEMPLATE, reference_tokenizer, sentencepiece_json, tiny_model

TEXT = "Hello, 日本 🎉 <|im_end|> the cat"


async def ask(path: str, body: Any, model: ChatModel | None = None) -> Any:
    async with http_client(http_app(never, model=model or tiny_model())) as client:
        return (await client.post(path, json=body)).json()


def sentencepiece_model() -> ChatModel:
    return ChatModel(tokenizer=sentencepiece_json(), config={"vocab_size": 400, "max_position_embeddings": 64})


async def test_a_prompt_and_back() -> None:
    expected = reference_tokenizer().encode(TEXT)
    answer = await ask("/tokenize", {"model": "tiny", "prompt": TEXT, "return_token_strs": True})
    assert answer == {
        "count": len(expected.ids),
        "max_model_len": CONTEXT_TOKENS,
        "tokens": expected.ids,
        "token_strs": expected.tokens,
    }
    assert "<|im_end|>" in answer["token_strs"]
    assert await ask("/detokenize", {"tokens": answer["tokens"]}) == {"prompt": TEXT}


async def test_messages_count_as_they_are_computed() -> None:
    answer = await ask("/tokenize", {"messages": [{"role": "user", "content": "hi <|im_end|>"}]})
    reference = reference_tokenizer()
    head, tail = (reference.encode(part).ids for part in ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"))
    assert answer["tokens"][: len(head)] == head
    assert answer["tokens"][-len(tail) :] == tail
    assert answer["tokens"].count(tail[0]) == 1  # the user's own is text
    assert answer["token_strs"] is None


@pytest.mark.parametrize("special", [True, False])
async def test_special_tokens_of_a_prompt(special: bool) -> None:
    reference = Tokenizer.from_str(json.dumps(sentencepiece_json()))
    body = {"prompt": "this is Paris", "add_special_tokens": special}
    answer = await ask("/tokenize", body, sentencepiece_model())
    assert answer["tokens"] == reference.encode("this is Paris", add_special_tokens=special).ids
    text = await ask("/detokenize", {"tokens": answer["tokens"]}, sentencepiece_model())
    assert text["prompt"] == reference.decode(answer["tokens"], skip_special_tokens=False)


async def test_a_text_longer_than_the_context_is_counted() -> None:
    assert (await ask("/tokenize", {"prompt": "cat " * 3000}))["count"] > CONTEXT_TOKENS


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True},
            "add_special_tokens",
        ),
        ("/tokenize", {"prompt": "a", "chat_template": TEMPLATE}, "chat_template"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "a", "other": 1}, "other"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/detokenize", {"tokens": [0, 99999]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_refusals_name_the_field(path: str, body: Any, param: str) -> None:
    assert (await ask(path, body))["error"]["param"] == param


async def test_keys_methods_and_sizes() -> None:
    async with http_client(http_app(never, api_keys=("key",))) as client:
        assert (await client.post("/tokenize", json={"prompt": "a"})).status_code == 401
        assert (await client.post("/detokenize", json={"tokens": []})).status_code == 401
        headers = {"Authorization": "Bearer key"}
        assert (await client.get("/tokenize", headers=headers)).status_code == 405
        assert (await client.post("/detokenize", json={"tokens": []}, headers=headers)).json() == {"prompt": ""}
    async with http_client(http_app(never, max_body_bytes=8 << 20)) as client:
        assert (await client.post("/tokenize", json={"prompt": "a" * (5 << 20)})).status_code == 413
