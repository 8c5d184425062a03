import json
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage
from pydantic import BaseModel

from app.interface.generate.planning.responses import chat_request
from app.interface.request.errors import ApiError
from app.interface.wire.chat import Message
from app.interface.wire.fields import MAX_MESSAGES
from app.interface.wire.responses import ResponseRequest
from app.messages.failures import EngineStoppedError, QueueFullError
from app.messages.outputs import TokenDelta, TokenScores
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import http_app, http_client, never, openai_client
from tests.app.tiny_model import reference_tokenizer

TEXT = "Hello, 日本 🎉 and more"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
TOOL: Any = {
    "type": "function",
    "name": "add",
    "description": "adds",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    "strict": False,
}
BODY: dict[str, Any] = {"model": "tiny", "input": "hi"}


def tokens_of(text: str) -> list[int]:
    ids: list[int] = reference_tokenizer().encode(text).ids
    return ids


def saying(text: str, **options: Any) -> FakeWorker:
    return FakeWorker(lambda _: deltas(tokens_of(text), **options))


async def post(worker: FakeWorker, body: dict[str, Any], **settings: Any) -> httpx2.Response:
    async with http_client(http_app(worker.generate, **settings)) as client:
        return await client.post("/v1/responses", json=BODY | body)


def prompt_of(request: GenerateRequest) -> str:
    decoded: str = reference_tokenizer().decode(list(request.prompt_token_ids), skip_special_tokens=False)
    return decoded


# --- the openai client ---------------------------------------------------------------------------------------------


async def test_create() -> None:
    answer = await openai_client(http_app(saying(TEXT, each=3).generate)).responses.create(
        **BODY, metadata={"a": "b"}, temperature=0.5, max_output_tokens=50
    )
    assert (answer.output_text, answer.status, answer.object) == (TEXT, "completed", "response")
    (message,) = answer.output
    assert isinstance(message, ResponseOutputMessage)
    assert (message.role, message.status) == ("assistant", "completed")
    assert answer.usage is not None
    prompt = tokens_of("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert answer.usage.input_tokens == len(prompt)
    assert answer.usage.output_tokens == len(tokens_of(TEXT))
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert (answer.temperature, answer.top_p, answer.max_output_tokens) == (0.5, 1.0, 50)
    assert answer.metadata == {"a": "b"}
    assert answer.error is None
    assert answer.incomplete_details is None
    assert answer.to_dict()["store"] is False


async def test_stream_has_every_event_in_its_order() -> None:
    async with openai_client(http_app(saying(TEXT).generate)).responses.stream(**BODY) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    kinds = [event.type for event in events]
    texts = [event for event in events if event.type == "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * len(texts),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event.delta for event in texts) == TEXT
    assert texts[-1].snapshot == TEXT
    assert final.output_text == TEXT
    assert final.usage is not None
    assert final.usage.output_tokens == len(tokens_of(TEXT))


async def test_the_raw_stream_is_numbered_and_says_what_the_whole_answer_says() -> None:
    client = openai_client(http_app(saying(TEXT, each=2).generate))
    events = [event async for event in await client.responses.create(**BODY, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last: Any = events[-1]
    whole = await client.responses.create(**BODY)

    def shape(response: Any) -> Any:
        values = response.to_dict()
        for name in ("id", "created_at", "completed_at"):
            values.pop(name)
        for item in values["output"]:
            item.pop("id")
        return values

    assert shape(last.response) == shape(whole)


async def test_events_end_at_no_other_line_end_of_unicode() -> None:
    answer = await post(saying("a\u2028b\x85c\u2029d"), {"stream": True})
    lines = [line for line in answer.text.splitlines() if line]
    assert [line[:7] for line in lines] == ["event: ", "data: {"] * (len(lines) // 2)
    done = next(json.loads(line[6:]) for line in lines if '"response.output_text.done"' in line and line[0] == "d")
    assert done["text"] == "a\u2028b\x85c\u2029d"


async def test_parse() -> None:
    class Sum(BaseModel):
        a: int
        b: int

    worker = saying('{"a": 1, "b": 2}')
    answer = await openai_client(http_app(worker.generate)).responses.parse(**BODY, text_format=Sum)
    assert answer.output_parsed == Sum(a=1, b=2)
    grammar = json.loads(worker.requests[0].grammar or "")
    assert grammar["required"] == ["a", "b"]
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_schema"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("before", ["", "\n  ", "Let me see. "])
async def test_calls(streamed: bool, before: str) -> None:
    client = openai_client(http_app(saying(f"{before}{CALL}\n{CALL.replace('1', '3')}").generate))
    options: dict[str, Any] = BODY | {"tools": [TOOL]}
    if streamed:
        done = {}
        pieces: dict[int, str] = {}
        async with client.responses.stream(**options) as stream:
            async for event in stream:
                if event.type == "response.function_call_arguments.delta":
                    pieces[event.output_index] = pieces.get(event.output_index, "") + event.delta
                if event.type == "response.function_call_arguments.done":
                    done[event.output_index] = event.arguments
            answer: Any = await stream.get_final_response()
        assert done == pieces
        assert len(done) == 2
    else:
        answer = await client.responses.create(**options)
    *messages, first, second = answer.output
    assert [message.content[0].text for message in messages] == ([before] if before.strip() else [])
    assert isinstance(first, ResponseFunctionToolCall)
    assert (first.name, json.loads(first.arguments), first.status) == ("add", {"a": 1, "b": 2}, "completed")
    assert json.loads(second.arguments) == {"a": 3, "b": 2}
    assert first.call_id != second.call_id
    assert answer.status == "completed"
    assert answer.tools[0].name == "add"


@pytest.mark.parametrize("each", [1, 100])
async def test_one_call_only_ends_the_answer_and_the_computing(each: int) -> None:
    worker = saying(f"{CALL}\n{CALL} and so on", each=each)
    client = openai_client(http_app(worker.generate))
    answer = await client.responses.create(**BODY, tools=[TOOL], parallel_tool_calls=False)
    (call,) = answer.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (json.loads(call.arguments), answer.status) == ({"a": 1, "b": 2}, "completed")
    assert answer.parallel_tool_calls is False
    assert worker.closed == 1
    chat: Any = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": TOOL["parameters"]}}]
    whole = await client.chat.completions.create(**chat, tools=tools, parallel_tool_calls=False)
    assert len(whole.choices[0].message.tool_calls or ()) == 1
    assert whole.choices[0].finish_reason == "tool_calls"
    several = await client.chat.completions.create(**chat, tools=tools)
    assert len(several.choices[0].message.tool_calls or ()) == 2


def scored(text: str, each: int) -> FakeWorker:
    ids = tokens_of(text)

    def scores(count: int) -> TokenScores:
        return TokenScores(
            np.full(count, -1, np.float32), np.zeros((count, 0), np.int32), np.zeros((count, 0), np.float32)
        )

    cut = [tuple(ids[i : i + each]) for i in range(0, len(ids), each)]
    script = [TokenDelta(piece, scores=scores(len(piece))) for piece in cut]
    return FakeWorker(lambda _: [*script, TokenDelta((), "stop")])


@pytest.mark.parametrize("each", [1, 3, 1000])
@pytest.mark.parametrize(
    ("before", "after"), [("Hi ", "bye 日本"), ("", "bye"), ("日本 <tool", ""), ("Hi", None), ("<tool_call> 日", None)]
)
async def test_scores_are_of_the_text_and_not_of_calls(before: str, after: str | None, each: int) -> None:
    text = before if after is None else f"{before}{CALL} {after}"
    shown = before + (after or "")
    client = openai_client(http_app(scored(text, each).generate))
    include: Any = ["message.output_text.logprobs"]
    async with client.responses.stream(**BODY, tools=[TOOL], include=include) as stream:
        pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    whole = await client.responses.create(**BODY, tools=[TOOL], include=include)
    chat_tools: Any = [{"type": "function", "function": {"name": "add"}}]
    messages: Any = [{"role": "user", "content": "hi"}]
    chat = await client.chat.completions.create(model="tiny", messages=messages, tools=chat_tools, logprobs=True)
    assert chat.choices[0].logprobs is not None
    answers: list[Any] = [final, whole]
    parts = [item.content[0] for answer in answers for item in answer.output if item.type == "message"]
    for logprobs in [*(part.logprobs for part in parts), chat.choices[0].logprobs.content]:
        spelled = b"".join(bytes(entry.bytes) for entry in logprobs).decode()
        assert spelled.strip() == shown.strip()
    assert all(pieces)


async def test_a_call_is_done_when_it_is_whole() -> None:
    client = openai_client(http_app(saying(f"{CALL}\nand so on", finish_reason="length").generate))
    stream = await client.responses.create(**BODY, tools=[TOOL], stream=True)
    events: list[Any] = [event async for event in stream]
    kinds = [event.type for event in events]
    assert kinds.index("response.function_call_arguments.done") < kinds.index("response.output_text.delta")
    call, message = events[-1].response.output
    assert (call.status, message.status, events[-1].response.status) == ("completed", "incomplete", "incomplete")


async def test_a_call_that_is_cut_off_is_incomplete() -> None:
    client = openai_client(http_app(saying(CALL[:50], finish_reason="length").generate))
    (call,) = (await client.responses.create(**BODY, tools=[TOOL])).output
    assert isinstance(call, ResponseFunctionToolCall)
    assert call.status == "incomplete"


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_output_that_reaches_its_limit_is_incomplete(streamed: bool) -> None:
    client = openai_client(http_app(saying(TEXT, finish_reason="length").generate))
    if streamed:
        events = [event async for event in await client.responses.create(**BODY, stream=True)]
        last: Any = events[-1]
        assert last.type == "response.incomplete"
        answer = last.response
    else:
        answer = await client.responses.create(**BODY)
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert (answer.output[0].status, answer.output_text) == ("incomplete", TEXT)
    assert answer.usage.output_tokens == len(tokens_of(TEXT))


@pytest.mark.parametrize("text", ["", " \n"])
async def test_an_empty_answer_is_a_message_too(text: str) -> None:
    client = openai_client(http_app(saying(text).generate))
    async with client.responses.stream(**BODY) as stream:
        final = await stream.get_final_response()
    assert final.output_text == text
    assert (await client.responses.create(**BODY)).output_text == text


async def test_a_worker_lost_in_mid_stream() -> None:
    script: list[TokenDelta | Exception] = [TokenDelta(tuple(tokens_of("Hi")[:1])), EngineStoppedError("worker lost")]
    client = openai_client(http_app(FakeWorker(lambda _: script).generate))
    events: list[Any] = [event async for event in await client.responses.create(**BODY, stream=True)]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.message == "worker lost"
    assert events[-1].response.error.code == "server_error"
    assert events[-1].response.output[0].content[0].text == "H"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (QueueFullError("full"), openai.RateLimitError),
        (EngineStoppedError("down"), openai.InternalServerError),
        (ZeroDivisionError("a bug"), openai.InternalServerError),
    ],
)
async def test_what_the_worker_refuses(error: Exception, raised: type[Exception], streamed: bool) -> None:
    client = openai_client(http_app(FakeWorker(lambda _: [error]).generate))
    with pytest.raises(raised):
        await client.responses.create(**BODY, stream=streamed)


# --- what is computed ----------------------------------------------------------------------------------------------


async def test_an_answer_and_its_calls_are_handed_back_as_they_were() -> None:
    first = await openai_client(http_app(saying(f"So: {CALL}").generate)).responses.create(**BODY, tools=[TOOL])
    worker = saying("3")
    items: list[Any] = [{"role": "user", "content": "add them"}, *(item.to_dict() for item in first.output)]
    call = first.output[-1]
    assert isinstance(call, ResponseFunctionToolCall)
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "three"})
    client = openai_client(http_app(worker.generate))
    await client.responses.create(model="tiny", input=items, tools=[TOOL], instructions="Be brief.")
    prompt = prompt_of(worker.requests[0])
    places = [prompt.index(part) for part in ("Be brief.", "add them", "So: ", '"arguments": {"a": 1', "three")]
    assert places == sorted(places)


def messages_of(**fields: Any) -> list[Message]:
    return chat_request(ResponseRequest(model="tiny", **fields)).messages


def test_instructions_and_leading_system_messages_are_one() -> None:
    items = [
        {"role": "developer", "content": "two"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"role": "system", "content": "later"},
    ]
    made = messages_of(instructions="one", input=items)
    assert [(message.role, message.content) for message in made] == [
        ("system", "one\n\ntwo"),
        ("user", "hi"),
        ("system", "later"),
    ]


def test_calls_that_follow_each_other_are_one_message() -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "output": [{"type": "input_text", "text": "r"}]}
    items = [
        {"role": "assistant", "content": [{"type": "output_text", "text": "so", "annotations": []}], "id": "msg_1"},
        *({**call, "call_id": name} for name in "ab"),
        *({**result, "call_id": name} for name in "ab"),
        {**call, "call_id": "c"},
    ]
    made = messages_of(input=items)
    assert [message.role for message in made] == ["assistant", "tool", "tool", "assistant"]
    assert made[0].content == "so"
    assert [[each.id for each in message.tool_calls or ()] for message in made] == [["a", "b"], [], [], ["c"]]


def test_instructions_that_make_too_many_messages_are_refused() -> None:
    items: Any = [{"role": "user", "content": ""}] * MAX_MESSAGES
    assert len(messages_of(input=items)) == MAX_MESSAGES
    with pytest.raises(ApiError) as caught:
        messages_of(input=items, instructions="Be brief.")
    assert (caught.value.status, caught.value.param) == (400, "input")


async def test_options_reach_the_engine() -> None:
    worker = saying(TEXT)
    options = {"max_output_tokens": 9, "temperature": 0.5, "top_p": 0.9, "seed": 7, "top_k": 3, "min_p": 0.1}
    await post(worker, options)
    (request,) = worker.requests
    sampling = request.sampling
    assert (request.max_new_tokens, sampling.temperature, sampling.top_p) == (9, 0.5, 0.9)
    assert (sampling.seed, sampling.top_k, sampling.min_p, sampling.logprobs) == (7, 3, 0.1, None)
    await post(worker, {"top_logprobs": 2})
    await post(worker, {"include": ["message.output_text.logprobs"]})
    assert [each.sampling.logprobs for each in worker.requests[1:]] == [2, 0]


async def test_a_forced_call() -> None:
    worker = saying('{"a": 1, "b": 2}')
    choice = {"tools": [TOOL], "tool_choice": {"type": "function", "name": "add"}}
    answer = (await post(worker, choice)).json()
    assert json.loads(worker.requests[0].grammar or "").items() >= TOOL["parameters"].items()
    (call,) = answer["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "add", '{"a": 1, "b": 2}')
    assert answer["tool_choice"] == choice["tool_choice"]


async def test_a_key_is_a_tenant() -> None:
    worker = saying(TEXT)
    async with http_client(http_app(worker.generate, api_keys=("key",))) as client:
        assert (await client.post("/v1/responses", json=BODY)).status_code == 401
        await client.post("/v1/responses", json=BODY, headers={"Authorization": "Bearer key"})
        assert (await client.get("/v1/responses/resp_1", headers={"Authorization": "Bearer key"})).status_code == 404
    assert len(worker.requests[0].tenant) == 32


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"reasoning": {"effort": "a lot"}}, "reasoning.effort"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"include": ["computer_call_output.output.image_url"]}, "include[0]"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object", "name": "x"}}}, "text.format.name"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": []}, "input"),
        ({"input": "cat " * 9000}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"stream_options": {}}, "stream_options"),
        ({"n": 2}, "n"),
    ],
)
async def test_refusals_reach_no_worker_and_name_the_field(fields: dict[str, Any], param: str) -> None:
    async with http_client(http_app(never)) as client:
        response = await client.post("/v1/responses", json=BODY | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
