import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from app.interface.wire.chat import ChatCompletionRequest, Message
from app.interface.wire.completions import CompletionRequest
from app.interface.wire.messages import CountTokensRequest, MessagesRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import http_app
from tests.app.tiny_model import CONTROL
from tests.sizes import examples

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([*CONTROL, "user", "system", "text", "tiny", 0, 1, 2, 359, 360, "5"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES, "content": st.one_of(st.text(max_size=20), st.sampled_from(CONTROL), JSON)},
    optional=dict.fromkeys(set(Message.model_fields) - {"role", "content"}, JSON),
)
CHAT = st.fixed_dictionaries(
    {"model": st.just("tiny"), "messages": st.lists(MESSAGE, max_size=3) | JSON},
    optional=dict.fromkeys(set(ChatCompletionRequest.model_fields) - {"model", "messages"}, JSON),
)
COMPLETION = st.fixed_dictionaries(
    {"model": st.just("tiny"), "prompt": JSON},
    optional=dict.fromkeys(set(CompletionRequest.model_fields) - {"model", "prompt"}, JSON),
)
SHORT = st.text(max_size=8)


def block(kind: str, **fields: Any) -> Any:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


PLAIN = block("text", text=SHORT | st.sampled_from(CONTROL))
DOCUMENT = block("document", source=block("text", data=SHORT) | block("content", content=SHORT | st.lists(PLAIN)))
BLOCK = st.one_of(
    PLAIN,
    DOCUMENT,
    block("search_result", source=SHORT, title=SHORT, content=st.lists(PLAIN, max_size=2)),
    block("tool_use", id=SHORT, name=SHORT, input=st.dictionaries(SHORT, JSON, max_size=2)),
    block("tool_result", tool_use_id=SHORT, content=SHORT | st.lists(PLAIN | DOCUMENT, max_size=2)),
    block("thinking", thinking=SHORT, signature=st.sampled_from(["", "redoubt", "redoubt./w==", "redoubt.SG0="])),
    block("web_search_tool_result", content=JSON),
)
TURN = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]),
        "content": st.one_of(st.text(max_size=20), st.lists(BLOCK, max_size=3), st.lists(BLOCK, max_size=3), JSON),
    }
)
ANTHROPIC = st.fixed_dictionaries(
    {"model": st.just("tiny"), "max_tokens": st.integers(1, 9), "messages": st.lists(TURN, min_size=1, max_size=4)},
    optional=dict.fromkeys(set(MessagesRequest.model_fields) - {"model", "max_tokens", "messages"}, JSON),
)
CLIENT = TestClient(http_app(FakeWorker(lambda _: deltas([40, 41, 42])).generate))


def check(path: str, body: Any) -> None:
    # ASCII, with NaN and any integer, as a careless client writes it.
    response = CLIENT.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert response.status_code in (200, 400, 404)
    if response.status_code != 200:
        error = response.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"]


@settings(max_examples=examples(80))
@given(st.one_of(CHAT, CHAT.map(lambda body: {k: body[k] for k in list(body)[:3]}), JSON))
def test_no_chat_request_makes_the_server_fail(body: Any) -> None:
    check("/v1/chat/completions", body)


@settings(max_examples=examples(80))
@given(st.one_of(COMPLETION, COMPLETION.map(lambda body: {k: body[k] for k in list(body)[:3]}), JSON))
def test_no_completion_request_makes_the_server_fail(body: Any) -> None:
    check("/v1/completions", body)


@settings(max_examples=examples(150))
@given(st.one_of(ANTHROPIC, ANTHROPIC.map(lambda body: {k: body[k] for k in list(body)[:3]}), JSON))
def test_no_message_request_makes_the_server_fail(body: Any) -> None:
    content, headers = json.dumps(body), {"Content-Type": "application/json"}
    response = CLIENT.post("/v1/messages", content=content, headers=headers)
    assert response.status_code in (200, 400)
    if response.status_code != 200:
        assert response.json()["error"].keys() == {"type", "message"}
    elif "max_tokens" in content:
        prompt = {key: value for key, value in body.items() if key in CountTokensRequest.model_fields}
        counted = CLIENT.post("/v1/messages/count_tokens", content=json.dumps(prompt), headers=headers)
        usage = response.json()["usage"]
        assert counted.json()["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\xff" * 100, b'"\\ud800"', b"[" * 100_000, b'{"model":1e999}'])
def test_no_bytes_make_the_server_fail(raw: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    assert CLIENT.post("/v1/chat/completions", content=raw, headers=headers).status_code == 400


def test_lone_surrogates_are_refused() -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "\ud800"}]}
    response = CLIENT.post(
        "/v1/chat/completions", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"
