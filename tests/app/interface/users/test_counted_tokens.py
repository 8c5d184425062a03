"""What is behind an answer's end is counted nowhere, however many tokens came together with it."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.accounts.accounts import OPERATOR_ACTS
from app.interface.request.access_log import AccessLog
from app.messages.failures import EngineStoppedError
from app.messages.outputs import Answer, FinishReason, TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.routes.test_metrics import series, value
from tests.app.interface.users.here import CHAT, Site
from tests.app.service import http_app, http_client
from tests.app.tiny_model import reference_tokenizer

STOPPED = "Hello STOP, and more"
CALLED = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call> and more'
FUNCTION: dict[str, Any] = {"name": "f", "parameters": {"type": "object"}}
TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": FUNCTION}], "parallel_tool_calls": False}
PROMPT: dict[str, Any] = {"model": "tiny", "prompt": "hi", "stop": "STOP"}
RESPONSE: dict[str, Any] = {"model": "tiny", "input": "hi", "tools": [{"type": "function", **FUNCTION}]}
MESSAGE: dict[str, Any] = {**CHAT, "max_tokens": 99}
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
REASONS = ("closed", "error", "length", "stop")
ONE_CALL: dict[str, Any] = {
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
}


def tokens_of(answer: str) -> int:
    """The output tokens that an answer, whole or streamed, says that it has."""
    bodies = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
    for body in bodies or [json.loads(answer)]:
        body = body.get("response", body)
        if body.get("usage") is not None:
            usage = body["usage"]
    return int(usage.get("completion_tokens", usage.get("output_tokens")))


@pytest.mark.parametrize("finish_reason", ["length", "stop"])
@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        (CHATS, CHAT | {"stop": ["STOP"]}, STOPPED),
        (CHATS, CHAT | {"stop": ["STOP"], "n": 3, "logprobs": True}, STOPPED),
        (COMPLETIONS, PROMPT, STOPPED),
        (MESSAGES, MESSAGE | {"stop_sequences": ["STOP"]}, STOPPED),
        (CHATS, CHAT | TOOLS, CALLED),
        (RESPONSES, RESPONSE | {"parallel_tool_calls": False}, CALLED),
        (MESSAGES, MESSAGE | ONE_CALL, CALLED),
    ],
    ids=["chat", "choices", "completion", "message", "chat call", "response call", "message call"],
)
async def test_tokens_behind_the_end(
    make_site: Callable[..., Site],
    tmp_path: Path,
    path: str,
    body: dict[str, Any],
    text: str,
    finish_reason: FinishReason,
) -> None:
    """Usage, quota, metrics and access log have the same tokens, and say that the client's own end was reached."""
    ids = reference_tokenizer().encode(text).ids
    streamed = {"stream": True} | ({"stream_options": {"include_usage": True}} if "completions" in path else {})
    asked = [(each, how) for each in (1, 3, 100) for how in ({}, streamed)]
    used: list[int] = []

    def script(_: Any) -> list[TokenDelta]:
        *before, last, _ = deltas(ids, each=asked[len(used)][0])
        return [*before, last._replace(finish_reason=finish_reason)]

    log = AccessLog(tmp_path / "log", 1 << 20)
    site = make_site(FakeWorker(script))
    await site.client.aclose()
    site.client = http_client(http_app(site.worker.generate, accounts=site.gate, access_log=log))
    site.add("ann")
    ann = await site.log_in("ann")
    for _, how in asked:
        answer = await site.ask("POST", path, ann, body | how)
        assert answer.status_code == 200, answer.text
        used.append(tokens_of(answer.text))
    await asyncio.gather(*site.gate._background_tasks)
    assert len(set(used)) == 1
    assert used[0] < len(ids) * body.get("n", 1)
    (row,) = site.inside.usage.rows(OPERATOR_ACTS, "2000-01-01", "2100-01-01")
    assert row.output == sum(used)
    found = series((await site.ask("GET", "/metrics", ann)).text)
    assert value(found, "redoubt_generated_tokens_total", model="tiny") == sum(used)
    assert value(found, "redoubt_sequences_total", model="tiny", reason="closed") == len(site.worker.requests)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "log" / "access-1.jsonl").read_text().splitlines()]
    answers = [line for line in lines if line["route"] == path]
    assert [(line["completion_tokens"], line["finish_reason"]) for line in answers] == [(used[0], "stop")] * len(used)


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_choice_that_has_ended_beside_one_that_is_lost_or_left(
    make_site: Callable[..., Site], is_lost: bool
) -> None:
    """The ended one counts up to its end, the other one what has come of it."""
    ids = tuple(reference_tokenizer().encode(STOPPED).ids)
    before = [reference_tokenizer().decode(ids[:count]) for count in range(len(ids) + 1)]
    used = next(count for count, text in enumerate(before) if "STOP" in text)

    def script(request: GenerateRequest) -> list[TokenDelta | Exception]:
        if request.sampling.seed == 1:
            return [TokenDelta(ids, "length")]
        return [TokenDelta(ids[:1]), EngineStoppedError("gone") if is_lost else TokenDelta(ids[1:], "length")]

    site = make_site(FakeWorker(script, hang_after=None if is_lost else 1))
    site.add("ann")
    ann = await site.log_in("ann")
    asking = asyncio.create_task(site.ask("POST", CHATS, ann, CHAT | {"stop": "STOP", "n": 2, "seed": 1}))
    if not is_lost:
        await site.worker.started.wait()
        asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(60):
        while site.gate._open or site.gate._background_tasks:
            await asyncio.sleep(0)
    (row,) = site.inside.usage.rows(OPERATOR_ACTS, "2000-01-01", "2100-01-01")
    assert row.output == used + 1
    found = series((await site.ask("GET", "/metrics", ann)).text)
    reasons = {reason: value(found, "redoubt_sequences_total", model="tiny", reason=reason) for reason in REASONS}
    assert reasons == {"closed": 1 if is_lost else 2, "error": int(is_lost), "length": 0, "stop": 0}


async def test_further_beams_behind_their_ends(make_site: Callable[..., Site]) -> None:
    ids = tuple(reference_tokenizer().encode(STOPPED).ids)
    beams = [TokenDelta(ids, "length", more=(Answer(ids[:-1], "stop"), Answer(ids[:3], "length")))]
    site = make_site(FakeWorker(lambda _: beams))
    site.add("ann")
    answer = await site.ask("POST", COMPLETIONS, await site.log_in("ann"), PROMPT | {"num_beams": 3, "n": 3})
    await asyncio.gather(*site.gate._background_tasks)
    (row,) = site.inside.usage.rows(OPERATOR_ACTS, "2000-01-01", "2100-01-01")
    assert row.output == tokens_of(answer.text) < 2 * len(ids) + 2
