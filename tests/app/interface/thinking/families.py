"""The essentials of thinking models' templates, in a few lines each, models without weights, and questions to them."""

import json
import re
from functools import lru_cache
from typing import Any, Final

import httpx2
from fastapi import FastAPI

from app.interface.text.chat_model import ChatModel
from tests.app.service import http_client
from tests.app.tiny_model import EOS_ID, reference_tokenizer, tokenizer_json

_MESSAGES: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' and message.reasoning_content and not loop.first %}"
    "<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
SWITCHED: Final = _MESSAGES + (
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)
"""Like Qwen 3: thinks by default, and opens the thought itself."""
OPENING: Final = _MESSAGES + "<think>\n"
"""Like DeepSeek R1: always thinks, and the prompt opens the thought."""
OFF: Final = _MESSAGES + (
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ '<think>' if thinking else '</think>' }}"
)
"""Like DeepSeek V3.1: thinks on request."""
EFFORT: Final = "Reasoning: {{ reasoning_effort | default('medium') }}\n" + _MESSAGES
"""Like gpt-oss, which writes the effort literally."""
EITHER: Final = (
    "{% if reasoning_effort is defined and reasoning_effort not in ['none', 'high'] %}"
    "{{ raise_exception('no such effort') }}{% endif %}"
    "{{ '[MODEL_SETTINGS]' + (reasoning_effort | default('none')) }}{{ messages[0].content }}[/INST]{# [THINK] #}"
)
"""Like Mistral's, which refuses other efforts."""
MARKS: Final = ("<think>", "</think>")
MARK_IDS: Final = tuple(len(tokenizer_json()["model"]["vocab"]) + place for place in range(2))


def thinking_tokenizer(*, is_special: bool) -> dict[str, Any]:
    """The tiny tokenizer with the marks as added tokens, special or not."""
    tokenizer = tokenizer_json()
    entry = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": is_special}
    marks = zip(MARK_IDS, MARKS, strict=True)
    tokenizer["added_tokens"] += [{"id": number, "content": mark, **entry} for number, mark in marks]
    return tokenizer


@lru_cache(maxsize=8)
def thinking_model(template: str = SWITCHED, *, tokens: bool | None = None) -> ChatModel:
    """tokens: whether the marks are special tokens or not; None: they are plain text."""
    sizes = {"vocab_size": MARK_IDS[-1] + 1, "max_position_embeddings": 2048, "hidden_size": 8}
    return ChatModel(
        tokenizer=tokenizer_json() if tokens is None else thinking_tokenizer(is_special=tokens),
        config={**sizes, "eos_token_id": EOS_ID},
        tokenizer_config={"eos_token": "<|im_end|>"},
        template=template,
    )


def encoded(text: str, *, has_tokens: bool) -> list[int]:
    """The text as a model generates it. has_tokens: whether the marks are added tokens."""
    if not has_tokens:
        return list(reference_tokenizer().encode(text).ids)
    ids: list[int] = []
    for part in re.split("(</?think>)", text):
        ids += [MARK_IDS[MARKS.index(part)]] if part in MARKS else reference_tokenizer().encode(part).ids
    return ids


CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Is it?"}]}
BODY: dict[str, Any] = {"model": "tiny", "input": "Is it?"}


class Asked:
    """A service that is asked CHAT, with further fields."""

    app: FastAPI

    async def post(self, path: str, body: dict[str, Any], status: int = 200) -> httpx2.Response:
        async with http_client(self.app) as client:
            response = await client.post(path, json=body)
        assert response.status_code == status, response.text
        return response

    async def chat(self, **fields: Any) -> Any:
        return (await self.post("/v1/chat/completions", CHAT | fields)).json()

    async def chunks(self, **fields: Any) -> list[Any]:
        response = await self.post("/v1/chat/completions", CHAT | {"stream": True} | fields)
        return [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
