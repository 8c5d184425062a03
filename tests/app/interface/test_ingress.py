import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest
from fastapi import FastAPI

from app.interface.generate.service import ServedModel, Service
from app.interface.http_api import build_http_app
from app.messages.failures import EngineStoppedError, QueueFullError, RequestTooLongError
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from app.messages.workers import WorkerRow
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import INGRESS, WORKER, http_app, http_client, http_settings, never, openai_client
from tests.app.tiny_model import CONTEXT_TOKENS, reference_tokenizer, tiny_model

TEXT = "Hello, 日本 🎉 STOP and more"
TOKENS = reference_tokenizer().encode(TEXT).ids
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
LONG = [{"role": "user", "content": "cat " * CONTEXT_TOKENS}]
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "hi"}


def talking(**options: Any) -> FakeWorker:
    return FakeWorker(lambda _: deltas(TOKENS, **options))


async def post(worker: FakeWorker, path: str, body: Any, **settings: Any) -> httpx2.Response:
    async with http_client(http_app(worker.generate, **settings)) as client:
        return await client.post(path, json=body)


def events(response: httpx2.Response) -> list[Any]:
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


async def test_a_model_that_comes_later_is_served() -> None:
    models = {"tiny": ServedModel(tiny_model(), talking().generate, created=1)}
    settings = http_settings()
    async with http_client(build_http_app(Service(models, lambda: [WORKER], settings, INGRESS))) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT | {"model": "late"})).status_code == 404
        models["late"] = models["tiny"]
        assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["tiny", "late"]
        assert (await client.post("/v1/chat/completions", json=CHAT | {"model": "late"})).status_code == 200
        assert 'redoubt_generated_tokens_total{ingress="i1",model="late"}' in (await client.get("/metrics")).text
        del models["late"]
        assert (await client.get("/v1/models/late")).status_code == 404


# --- the openai client ---------------------------------------------------------------------------------------------


async def test_openai_client_blocking_chat() -> None:
    answer = await openai_client(http_app(talking(each=2).generate)).chat.completions.create(**CHAT)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    assert answer.id.startswith("chatcmpl-")
    prompt_tokens = len(reference_tokenizer().encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n").ids)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == prompt_tokens
    assert answer.usage.completion_tokens == len(TOKENS)
    assert answer.usage.total_tokens == prompt_tokens + len(TOKENS)


async def test_openai_client_streamed_chat() -> None:
    client = openai_client(http_app(talking().generate))
    stream = await client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    *texts, usage = chunks
    assert texts[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in texts) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in texts] == [None] * (len(texts) - 1) + ["stop"]
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == len(TOKENS)
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_openai_client_choices_and_stop_strings(streamed: bool) -> None:
    client = openai_client(http_app(talking(each=3).generate))
    texts, reasons = ["", "", ""], ["", "", ""]
    if streamed:
        async for chunk in await client.chat.completions.create(**CHAT, n=3, stop=["STOP"], stream=True):
            for part in chunk.choices:
                texts[part.index] += part.delta.content or ""
                reasons[part.index] = part.finish_reason or reasons[part.index]
    else:
        answer = await client.chat.completions.create(**CHAT, n=3, stop="STOP")
        texts = [choice.message.content or "" for choice in answer.choices]
        reasons = [choice.finish_reason for choice in answer.choices]
    assert texts == ["Hello, 日本 🎉 "] * 3
    assert reasons == ["stop"] * 3


@pytest.mark.parametrize("streamed", [False, True])
async def test_openai_client_completions(streamed: bool) -> None:
    client = openai_client(http_app(talking(finish_reason="length").generate))
    texts, reasons = ["", ""], ["", ""]
    if streamed:
        async for chunk in await client.completions.create(model="tiny", prompt=["a", "b"], stream=True):
            assert chunk.object == "text_completion"
            for part in chunk.choices:
                texts[part.index] += part.text
                reasons[part.index] = part.finish_reason or reasons[part.index]
    else:
        answer = await client.completions.create(model="tiny", prompt=[[4], [5, 6]])
        texts = [choice.text for choice in answer.choices]
        reasons = [choice.finish_reason for choice in answer.choices]
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 2 * len(TOKENS))
    assert (texts, reasons) == ([TEXT] * 2, ["length"] * 2)


async def test_openai_client_models() -> None:
    client = openai_client(http_app(never))
    assert [model.id async for model in client.models.list()] == ["tiny"]
    model = await client.models.retrieve("tiny")
    assert (model.id, model.object, model.created) == ("tiny", "model", 123)
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("other/model")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (QueueFullError("full"), openai.RateLimitError),
        (EngineStoppedError("down"), openai.InternalServerError),
        (RequestTooLongError("too long"), openai.BadRequestError),
        (ZeroDivisionError("a bug"), openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_openai_client_raises_what_the_worker_refuses(
    error: Exception, raised: type[Exception], streamed: bool
) -> None:
    client = openai_client(http_app(FakeWorker(lambda _: [error]).generate))
    with pytest.raises(raised):
        await client.chat.completions.create(**CHAT, stream=streamed)


async def test_openai_client_raises_in_mid_stream() -> None:
    script: list[TokenDelta | Exception] = [TokenDelta(tuple(TOKENS[:1])), EngineStoppedError("worker lost")]
    client = openai_client(http_app(FakeWorker(lambda _: script).generate))
    text = ""

    async def read() -> None:
        nonlocal text
        async for chunk in await client.chat.completions.create(**CHAT, stream=True):
            text += chunk.choices[0].delta.content or ""

    with pytest.raises(openai.APIError, match="worker lost"):
        await read()
    assert text == "H"


# --- the wire ------------------------------------------------------------------------------------------------------


async def test_the_events_of_a_chat_stream() -> None:
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    response = await post(talking(each=100), "/v1/chat/completions", CHAT | usage)
    start, text, end, last, done = events(response)
    assert start["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert text["choices"][0]["delta"] == {"content": TEXT}
    assert end["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert [chunk["usage"] for chunk in (start, text, end)] == [None] * 3
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(TOKENS)
    assert done == "[DONE]"
    assert response.headers["cache-control"] == "no-cache, no-transform"


async def test_usage_is_not_in_a_stream_that_did_not_ask() -> None:
    chunks = events(await post(talking(), "/v1/chat/completions", CHAT | {"stream": True}))
    assert all("usage" not in chunk for chunk in chunks[:-1])


async def test_a_stream_never_shows_half_a_character() -> None:
    chunks = events(await post(talking(each=1), "/v1/chat/completions", CHAT | {"stream": True}))
    assert "\ufffd" not in "".join(json.dumps(chunk, ensure_ascii=False) for chunk in chunks)


async def test_an_error_in_mid_stream_is_the_last_event() -> None:
    script: list[TokenDelta | Exception] = [TokenDelta(tuple(TOKENS[:1])), EngineStoppedError("worker lost")]
    response = await post(FakeWorker(lambda _: script), "/v1/completions", COMPLETION | {"stream": True})
    assert response.status_code == 200
    *chunks, last = events(response)
    assert last["error"]["message"] == "worker lost"
    assert last["error"]["code"] == "service_unavailable"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "H"


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (QueueFullError("full"), 429, "queue_full", "3"),
        (EngineStoppedError("No worker is up."), 503, "service_unavailable", "3"),
        (RequestTooLongError("3 tokens too long"), 400, "context_length_exceeded", None),
        (KeyError("secret words"), 500, "internal_error", None),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_every_failure_has_its_status(
    error: Exception, status: int, code: str, retry_after: str | None, streamed: bool
) -> None:
    response = await post(FakeWorker(lambda _: [error]), "/v1/chat/completions", CHAT | {"stream": streamed})
    assert response.status_code == status
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    assert response.json()["error"]["code"] == code
    assert response.headers.get("retry-after") == retry_after


async def test_a_bug_is_logged_by_its_place_and_without_the_users_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    body = CHAT | {"messages": [{"role": "user", "content": "secret words"}]}
    response = await post(FakeWorker(lambda _: [KeyError("secret words")]), "/v1/chat/completions", body)
    assert "secret" not in caplog.text
    assert "secret" not in response.text
    assert "KeyError" in caplog.text
    assert "fake_worker.py" in caplog.text
    request_id = response.json()["error"]["message"].split("id ")[1].rstrip(").")
    assert request_id in caplog.text


async def test_prompts_and_answers_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for body in (CHAT | {"stream": True}, CHAT | {"messages": [{"role": "user", "content": ["secret"]}]}):
        await post(talking(), "/v1/chat/completions", body)
    assert "Hello" not in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (CHAT | {"model": "gpt-4"}, "model", "model_not_found"),
        (CHAT | {"audio": {}}, "audio", "unsupported_parameter"),
        (CHAT | {"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        (CHAT | {"tool_choice": "required"}, "tool_choice", "invalid_value"),
        (CHAT | {"temperature": 3}, "temperature", "invalid_value"),
        (CHAT | {"messages": LONG}, "messages", "context_length_exceeded"),
        (CHAT | {"stream_options": {}}, "stream_options", "invalid_value"),
        (CHAT | {"n": 5}, "n", "invalid_value"),
        ([], None, "invalid_json"),
    ],
)
async def test_refusals_reach_no_worker(body: Any, param: str | None, code: str) -> None:
    async with http_client(http_app(never)) as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == (404 if code == "model_not_found" else 400)
    assert (response.json()["error"]["param"], response.json()["error"]["code"]) == (param, code)


async def test_special_tokens_in_user_text_stay_text() -> None:
    worker = talking()
    await post(worker, "/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": "<|im_end|>"}]})
    assert worker.requests[0].prompt_token_ids.count(2) == 1


async def test_a_long_conversation_is_prepared_off_the_event_loop() -> None:
    worker = talking()
    content = "the quick brown fox " * 2000
    response = await post(
        worker, "/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": content}]},
        model=tiny_model(context_tokens=100_000),
    )  # fmt: skip
    assert response.status_code == 200
    prompt = reference_tokenizer().decode(list(worker.requests[0].prompt_token_ids))
    assert content in prompt


@pytest.mark.parametrize("declared", [True, False])
async def test_a_large_body_is_refused(declared: bool) -> None:
    raw = json.dumps(CHAT | {"messages": [{"role": "user", "content": "x" * 10_000_000}]}).encode()

    async def pieces() -> Any:
        for start in range(0, len(raw), 65536):
            yield raw[start : start + 65536]

    async with http_client(http_app(never)) as client:
        headers = {"Content-Type": "application/json"}
        content = raw if declared else pieces()
        response = await client.post("/v1/chat/completions", content=content, headers=headers)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_a_body_that_does_not_say_json_is_refused(content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    async with http_client(http_app(never)) as client:
        response = await client.post("/v1/chat/completions", content=json.dumps(CHAT), headers=headers)
    assert response.status_code == 415


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("OPTIONS", "/v1/chat/completions", 405),
        ("POST", "/v1/models/tiny", 405),
        ("DELETE", "/v1/workers", 405),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/embedding", 404),
        ("GET", "/v1/embeddings", 405),
        ("GET", "/v1/", 404),
        ("GET", "/elsewhere", 404),
    ],
)
async def test_other_paths_and_methods(method: str, path: str, status: int) -> None:
    async with http_client(http_app(never)) as client:
        response = await client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert "access-control-allow-origin" not in response.headers


async def test_health_and_the_worker_table() -> None:
    async with http_client(http_app(never)) as client:
        assert (await client.get("/health")).status_code == 200
        rows = (await client.get("/v1/workers")).json()["data"]
    wanted = {"model_names": ["tiny"], "speed": 10.0, "queue_length": 0, "check_heart_beat": True}
    assert rows[0].items() >= (wanted | {"last_heart_beat": 5.0}).items()


@pytest.mark.parametrize("workers", [(), (replace(WORKER, check_heart_beat=False, state="stale"),)])
async def test_health_and_readiness_are_503_while_no_worker_is_up(workers: Sequence[Any]) -> None:
    async with http_client(http_app(never, workers=tuple(workers))) as client:
        for path in ("/health", "/readyz"):
            response = await client.get(path)
            assert response.status_code == 503
            assert response.headers["retry-after"] == "3"
        assert response.json() == {"status": "unavailable", "models": 0}
        alive = await client.get("/livez")
    assert (alive.status_code, alive.json()) == (200, {"status": "ok"}), "an ingress without workers is not restarted"


async def test_readiness_counts_models_that_have_a_worker() -> None:
    other = replace(WORKER, worker_id="w2", model_names=("other",))
    lost = replace(WORKER, worker_id="w3", model_names=("lost",), check_heart_beat=False, state="gone")
    async with http_client(http_app(never, workers=(WORKER, replace(WORKER, worker_id="w4"), other, lost))) as client:
        response = await client.get("/readyz")
    assert (response.status_code, response.json()) == (200, {"status": "ok", "models": 2})


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Bearer ", 401),
        ("Basic first-key", 401),
        ("Bearer first-key", 200),
        ("bearer second-key", 200),
    ],
)
async def test_keys(header: str | None, status: int) -> None:
    app = http_app(talking().generate, api_keys=("first-key", "second-key"))
    headers = {} if header is None else {"Authorization": header}
    async with http_client(app) as client:
        assert (await client.get("/v1/models", headers=headers)).status_code == status
        response = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
        assert response.status_code == status
        for probe in ("/health", "/livez", "/readyz"):
            assert (await client.get(probe)).status_code == 200
    if status == 401:
        assert response.json()["error"]["code"] == "invalid_api_key"


async def test_a_key_is_a_tenant_and_nothing_in_a_request_is() -> None:
    worker = talking()
    app = http_app(worker.generate, api_keys=("first-key", "second-key"))
    claims = {"user": "somebody", "prompt_cache_key": "theirs"}
    async with http_client(app) as client:
        for key, body in (("first-key", CHAT), ("first-key", CHAT | claims), ("second-key", CHAT | claims)):
            await client.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"})
    tenants = [request.tenant for request in worker.requests]
    assert tenants[0] == tenants[1] != tenants[2]
    assert all(len(tenant) == 32 for tenant in tenants)
    await post(worker, "/v1/chat/completions", CHAT | claims)
    assert worker.requests[-1].tenant == b""


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_counts_what_was_cached_before_each_prompt_came(stream: bool) -> None:
    found = {"-0": 4, "-1": 3, "-2": 0, "-3": 2}  # two choices for each of two prompts

    def script(request: GenerateRequest) -> Sequence[TokenDelta]:
        cached = found[request.request_id[-2:]]
        return [TokenDelta((TOKENS[0],), None, cached), TokenDelta((TOKENS[1],), "length")]

    body = {"model": "tiny", "prompt": [[4] * 5, [5] * 6], "n": 2}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    response = await post(FakeWorker(script), "/v1/completions", body)
    usage = (events(response)[-2] if stream else response.json())["usage"]
    assert usage == {
        "prompt_tokens": 11,
        "completion_tokens": 8,
        "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_the_same_seed_gives_the_same_request() -> None:
    worker = talking()
    await post(worker, "/v1/chat/completions", CHAT | {"seed": 5})
    await post(worker, "/v1/chat/completions", CHAT | {"seed": 5})

    def without_id(request: GenerateRequest) -> GenerateRequest:
        return replace(request, request_id="")

    assert without_id(worker.requests[0]) == without_id(worker.requests[1])


async def test_a_failure_outside_the_generating_routes_says_the_configured_retry_after() -> None:
    def lost() -> list[WorkerRow]:
        raise EngineStoppedError("The worker table is lost.")

    settings = http_settings(retry_after_s=7)
    async with http_client(build_http_app(Service({}, lost, settings, INGRESS))) as client:
        response = await client.get("/v1/workers")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "7"


async def test_the_lifespan_of_the_application_is_the_one_that_was_given() -> None:
    states: list[str] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        states.append("up")
        yield
        states.append("down")

    settings = http_settings()
    app = build_http_app(Service({}, lambda: [], settings, INGRESS), lifespan=lifespan)
    async with app.router.lifespan_context(app):
        assert states == ["up"]
    assert states == ["up", "down"]
