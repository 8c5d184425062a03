"""Answers that clients return as earlier messages, with fields added by any client or server."""

import json
from collections.abc import Sequence
from typing import Any, cast

import openai
import pytest
from pydantic import BaseModel

from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import http_app, http_client, openai_client
from tests.app.tiny_model import reference_tokenizer, tiny_model

MODEL = tiny_model(context_tokens=8192)
QUESTION = {"role": "user", "content": "hi"}


class Weather(BaseModel):
    """Tells the weather."""

    city: str


CALL = '<tool_call>{"name": "Weather", "arguments": {"city": "Paris"}}</tool_call>'
HISTORY: dict[str, list[Any]] = {
    '{"city": "Rome"}': [{"role": "assistant", "content": '{"city": "Rome"}'}],
    CALL: [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "Weather", "arguments": '{"city": "Paris"}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "sunny"},
    ],
}
"""Answers, and the equivalent messages without further fields."""


def saying(text: str) -> FakeWorker:
    return FakeWorker(lambda _: deltas(reference_tokenizer().encode(text).ids))


def asked(worker: FakeWorker) -> str:
    (*_, request) = worker.requests
    return MODEL.tokenizer.text(request.prompt_token_ids)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of the client, about its own object
@pytest.mark.parametrize("text", HISTORY)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("as_object", [False, True])
async def test_what_the_official_client_parsed_is_a_message(text: str, streamed: bool, as_object: bool) -> None:
    worker = saying(text)
    client: Any = openai_client(http_app(worker.generate, model=MODEL))
    tools = [openai.pydantic_function_tool(Weather)]
    options: dict[str, Any] = {"model": "tiny", "messages": [QUESTION]}
    options |= {"tools": tools} if text == CALL else {"response_format": Weather}
    if streamed:
        async with client.chat.completions.stream(**options) as stream:
            answer = await stream.get_final_completion()
    else:
        answer = await client.chat.completions.parse(**options)
    message = answer.choices[0].message
    parsed: Any = message.tool_calls[0].function.parsed_arguments if message.tool_calls else message.parsed
    assert isinstance(parsed, Weather)
    given: Any = message if as_object else json.loads(message.model_dump_json(warnings=False))
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls or ()]
    again = {"model": "tiny"} | ({"tools": tools} if text == CALL else {})
    await client.chat.completions.create(**again, messages=[QUESTION, given, *results])
    prompt = asked(worker)
    await client.chat.completions.create(**again, messages=[QUESTION, *HISTORY[text]])
    assert prompt == asked(worker)


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_the_official_client_parsed_of_a_response_is_input(streamed: bool) -> None:
    worker = saying('{"city": "Rome"}')
    client: Any = openai_client(http_app(worker.generate, model=MODEL))
    if streamed:
        async with client.responses.stream(model="tiny", input="hi", text_format=Weather) as stream:
            answer = await stream.get_final_response()
    else:
        answer = await client.responses.parse(model="tiny", input="hi", text_format=Weather)
    assert answer.output_parsed == Weather(city="Rome")
    items: list[Any] = [json.loads(item.model_dump_json(warnings=False)) for item in answer.output]
    assert items[0]["content"][0]["parsed"] == {"city": "Rome"}
    await client.responses.create(model="tiny", input=[{"role": "user", "content": "hi"}, *items])
    assert '{"city": "Rome"}<|im_end|>' in asked(worker)


ONE_CALL = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% for m in messages %}"
    "{% if m.role in ['system', 'developer'] %}{{ raise_exception('no system') }}{% endif %}<|im_start|>{{ m.role }} "
    "{{ m.content }}{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    "{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}<|im_end|>{% endfor %}{{ tools | tojson }}"
)


async def test_an_agents_turn_goes_on_where_a_template_takes_one_call_and_no_system_message() -> None:
    worker = saying("yes")
    calls = [{"id": f"call_{i}", "function": {"name": "Weather", "arguments": f'{{"city": "{i}"}}'}} for i in range(2)]
    results = [{"role": "tool", "tool_call_id": f"call_{i}", "content": f"sun {i}"} for i in range(2)]
    late, prefill = {"role": "developer", "content": "Be brief."}, {"role": "assistant", "content": "It is"}
    messages = [late, QUESTION, {"role": "assistant", "tool_calls": calls}, *results, late, QUESTION, prefill]
    items = [
        {"type": "function_call", "call_id": one["id"], **cast(dict[str, Any], one["function"])} for one in calls
    ] + [{"type": "function_call_output", "call_id": f"call_{i}", "output": f"sun {i}"} for i in range(2)]
    tool = {"type": "function", "function": {"name": "Weather"}}
    flat = {"type": "function", "name": "Weather"}
    app = http_app(worker.generate, model=tiny_model(ONE_CALL, context_tokens=8192))
    async with http_client(app) as client:
        for path, body in (
            ("chat/completions", {"messages": messages, "tools": [tool]}),
            ("responses", {"input": [late, QUESTION, *items, late, QUESTION, prefill], "tools": [flat]}),
        ):
            response = await client.post(f"/v1/{path}", json={"model": "tiny", **body})
            assert response.status_code == 200, response.text
            text = asked(worker).replace("<|im_start|>", "").split("<|im_end|>")
            first, *rest = ["user Be brief.", "user hi"], 'assistant {"city": "0"}', "tool sun 0"
            assert text[:-1] == [*first, *rest, 'assistant {"city": "1"}', "tool sun 1", *first, "assistant It is"]


ADDED: list[dict[str, Any]] = [
    {"refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": None},
    {"annotations": [{"type": "url_citation", "url_citation": {"url": "http://a"}}]},
    {"reasoning_content": "Hm.", "reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]},
    {"reasoning": "Hm."},
    {"provider_specific_fields": {"refusal": None}, "thinking_blocks": [{"type": "thinking", "thinking": "Hm."}]},
    {"cache_control": {"type": "ephemeral"}},
    {"content": [{"type": "text", "text": "ok", "cache_control": {"type": "ephemeral"}}]},
    {"parsed": {"a": 1}},
    {"reasoning_text": "Hm.", "reasoning_opaque": "b2s=", "copilot_cache_control": {"type": "ephemeral"}},
]


@pytest.mark.parametrize("fields", ADDED, ids=lambda fields: "-".join(fields))
async def test_what_other_clients_and_servers_add_to_an_answer_is_dropped(fields: dict[str, Any]) -> None:
    worker = saying("yes")
    answer = {"role": "assistant", "content": "ok"}
    async with http_client(http_app(worker.generate, model=MODEL)) as client:
        for message in (answer | fields, answer):
            body = {"model": "tiny", "messages": [QUESTION, message, QUESTION]}
            response = await client.post("/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
    first, second = worker.requests
    assert first.prompt_token_ids == second.prompt_token_ids


async def test_marks_for_another_cache_may_be_on_functions_too() -> None:
    worker = saying("yes")
    function = {"name": "f", "parameters": {"type": "object", "properties": {"cache_control": {"type": "string"}}}}
    tool = {"type": "function", "function": function, "cache_control": {"type": "ephemeral"}}
    async with http_client(http_app(worker.generate, model=MODEL)) as client:
        body = {"model": "tiny", "messages": [QUESTION], "tools": [tool]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    assert asked(worker).count("cache_control") == 1


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "content": "ok", "images": [{"image_url": {"url": "data:"}}]}, "images"),
        ({"role": "assistant", "content": "ok", "audio": {"id": "a"}}, "audio"),
        ({"role": "assistant", "content": "ok", "prefix": True}, "prefix"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}, "content[0].type"),
        ({"role": "assistant", "content": "ok", "reasoning_content": 5}, "reasoning_content"),
        ({"role": "assistant", "content": "ok", "reasoning": {}}, "reasoning"),
    ],
)
async def test_what_a_message_means_by_another_field_is_refused(message: dict[str, Any], param: str) -> None:
    async with http_client(http_app(saying("yes").generate, model=MODEL)) as client:
        response = await client.post("/v1/chat/completions", json={"model": "tiny", "messages": [QUESTION, message]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, f"messages[1].{param}")


# --- answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["yes", CALL])
async def test_an_answer_names_its_calls_only_if_it_has_some(text: str) -> None:
    tool = {"type": "function", "function": {"name": "Weather"}}
    async with http_client(http_app(saying(text).generate, model=MODEL)) as client:
        body = {"model": "tiny", "messages": [QUESTION], "tools": [tool]}
        message = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
    assert ("tool_calls" in message) == (text == CALL)
    assert message["content"] == (None if text == CALL else "yes")
    assert message["refusal"] is None


EMOJI = reference_tokenizer().encode("Hi 🦖").ids


@pytest.mark.parametrize(("path", "field"), [("chat/completions", "messages"), ("completions", "prompt")])
@pytest.mark.parametrize("fields", [{}, {"stop": "never"}, {"logprobs": None}], ids=["plain", "stop", "null"])
async def test_a_limit_inside_a_character_ends_the_answer_before_it(
    path: str, field: str, fields: dict[str, Any]
) -> None:
    def script(request: GenerateRequest) -> Sequence[TokenDelta]:
        cut = EMOJI[: request.max_new_tokens]
        return deltas(cut, finish_reason="length")

    whole = len(EMOJI)
    assert MODEL.tokenizer.text(EMOJI[: whole - 1]).endswith("\ufffd"), "the vocabulary has the character in pieces"
    body = {"model": "tiny", field: [QUESTION] if field == "messages" else "hi"}
    async with http_client(http_app(FakeWorker(script).generate, model=MODEL)) as client:
        texts = []
        for tokens in (whole - 1, whole):
            response = await client.post(f"/v1/{path}", json=body | fields | {"max_tokens": tokens})
            (choice,) = response.json()["choices"]
            texts.append(choice["text"] if "text" in choice else choice["message"]["content"])
            assert (choice["finish_reason"], response.json()["usage"]["completion_tokens"]) == ("length", tokens)
    assert texts == ["Hi ", "Hi 🦖"]


async def test_an_answer_that_the_model_itself_ends_inside_a_character_shows_it() -> None:
    worker = FakeWorker(lambda _: deltas(EMOJI[:-1]))
    async with http_client(http_app(worker.generate, model=MODEL)) as client:
        response = await client.post("/v1/chat/completions", json={"model": "tiny", "messages": [QUESTION]})
    assert response.json()["choices"][0]["message"]["content"] == "Hi \ufffd"


async def test_a_model_tells_its_context_by_both_names() -> None:
    async with http_client(http_app(saying("").generate, model=MODEL)) as client:
        (listed,) = (await client.get("/v1/models")).json()["data"]
        one = (await client.get("/v1/models/tiny")).json()
    assert listed == one
    assert (one["max_context_tokens"], one["max_model_len"]) == (8192, 8192)
