"""`/v1/messages`: answers, whole and as events, errors, models, and what Claude Code sends."""

import json
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.interface.generate.answers.messages import PING
from app.interface.generate.planning.messages import chat_request
from app.interface.wire.chat import Message
from app.interface.wire.messages import CountTokensRequest
from app.messages.failures import EngineStoppedError, QueueFullError
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.exchange import Exchange
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.test_keep_alive import HeldWorker
from tests.app.interface.thinking.families import OPENING, SWITCHED, encoded, thinking_model
from tests.app.service import http_app, http_client, never
from tests.app.tiny_model import CONTEXT_TOKENS, reference_tokenizer, tiny_model
from tests.sizes import examples

PATH = "/v1/messages"
BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
STREAM = {"stream": True}
TEXT = "Hello, 日本 🎉 and more"
ADD: dict[str, Any] = {
    "name": "add",
    "description": "adds",
    "input_schema": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x"}}\n</tool_call>'
VERSION = {"anthropic-version": "2023-06-01"}
TOOL_TEMPLATE = (
    "{{ tools | tojson }}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL_MODEL = tiny_model(TOOL_TEMPLATE, context_tokens=1 << 17)


def tokens_of(text: str) -> list[int]:
    ids: list[int] = reference_tokenizer().encode(text).ids
    return ids


def saying(text: str, **options: Any) -> FakeWorker:
    return FakeWorker(lambda _: deltas(tokens_of(text), **options))


def prompt_of(request: GenerateRequest) -> str:
    return TOOL_MODEL.tokenizer.text(request.prompt_token_ids)


async def post(
    worker: FakeWorker, body: dict[str, Any], path: str = PATH, headers: dict[str, str] | None = None, **settings: Any
) -> httpx2.Response:
    async with http_client(http_app(worker.generate, **settings)) as client:
        return await client.post(path, json=BODY | body, headers=headers or {})


def events_of(text: str) -> list[Any]:
    """The data of events, whose lines name their types."""
    shown = []
    for block in text.split("\n\n")[:-1]:
        kind, data = block.split("\n")
        shown.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {shown[-1]['type']}"
    return shown


def collected(events: Sequence[Any]) -> Any:
    """The message that a client makes of a stream's events."""
    message: Any = None
    arguments = ""
    for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                arguments = ""
            case "content_block_delta":
                assert event["index"] == len(message["content"]) - 1
                block, delta = message["content"][-1], event["delta"]
                match delta.pop("type"):
                    case "input_json_delta":
                        arguments += delta["partial_json"]
                    case "signature_delta":
                        block["signature"] = delta["signature"]
                    case _:
                        ((name, piece),) = delta.items()
                        block[name] += piece
            case "content_block_stop":
                if message["content"][-1]["type"] == "tool_use":
                    message["content"][-1]["input"] = json.loads(arguments or "{}")
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    return message


def comparable(message: Any) -> Any:
    """A message without what differs between two answers to the same request."""
    blocks = [{**block, "id": ""} if "id" in block else block for block in message["content"]]
    return {**message, "id": "", "content": blocks}


# --- answers -------------------------------------------------------------------------------------------------------


async def test_a_whole_answer() -> None:
    answer = await post(saying(TEXT, each=3), {})
    assert answer.status_code == 200
    message = answer.json()
    assert message.pop("id").startswith("msg_")
    prompt = tokens_of("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": TEXT, "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(prompt),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": len(tokens_of(TEXT)),
            "output_tokens_details": {"thinking_tokens": 0},
            "service_tier": "standard",
        },
    }


async def test_the_events_of_a_stream() -> None:
    shown = events_of((await post(saying(f"Sum:\n{CALL}", each=9), STREAM | {"tools": [ADD]})).text)
    kinds = [event["type"] for event in shown]
    texts, pieces = kinds.index("content_block_stop") - 3, kinds[::-1].index("content_block_start") - 3
    assert kinds == [
        "message_start",
        "ping",
        "content_block_start",
        *["content_block_delta"] * texts,
        "content_block_stop",
        "content_block_start",
        *["content_block_delta"] * pieces,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start, begun, called = shown[0]["message"], shown[2], shown[4 + texts]
    assert (start["content"], start["stop_reason"], start["role"]) == ([], None, "assistant")
    assert begun["content_block"] == {"type": "text", "text": "", "citations": None}
    assert {"type": "tool_use", "name": "add", "input": {}}.items() <= called["content_block"].items()
    assert shown[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert shown[-2]["usage"]["output_tokens"] == len(tokens_of(f"Sum:\n{CALL}"))


PIECES = st.sampled_from(
    ["Hello", " ", "\n\n", "日本 🎉", "STOP", CALL, f"{CALL}\n{CALL}", "<tool_call>", "</tool_call>"]
)


@given(
    thought=st.sampled_from(["", "Hm.\n", "  ", "Hm, STOP? No.\n\n日本"]),
    pieces=st.lists(PIECES, max_size=6),
    each=st.integers(1, 40),
    reason=st.sampled_from(["stop", "length"]),
    display=st.sampled_from(["summarized", "omitted"]),
)
@settings(max_examples=examples(40), deadline=None)
async def test_streamed_and_whole_answers_agree(
    thought: str, pieces: list[str], each: int, reason: Any, display: str
) -> None:
    text = f"{thought}</think>\n\n{''.join(pieces)}"
    worker = FakeWorker(lambda _: deltas(encoded(text, has_tokens=False), each=each, finish_reason=reason))
    body = {"tools": [ADD], "stop_sequences": ["STOP"], "thinking": {"type": "adaptive", "display": display}}
    async with http_client(http_app(worker.generate, model=thinking_model(OPENING))) as client:
        whole = await client.post(PATH, json=BODY | body)
        streamed = await client.post(PATH, json=BODY | body | STREAM)
    assert comparable(collected(events_of(streamed.text))) == comparable(whole.json())


async def test_a_text_after_a_call_is_a_block_of_its_own() -> None:
    worker = saying(f"One.\n{CALL}\n\nTwo.{CALL}", each=50)
    blocks = (await post(worker, {"tools": [ADD]})).json()["content"]
    assert [block["type"] for block in blocks] == ["text", "tool_use", "text", "tool_use"]
    assert (blocks[0]["text"], blocks[2]["text"]) == ("One.\n", "Two.")
    assert blocks[1]["input"] == {"a": 1, "b": "x"}
    assert blocks[1]["id"] != blocks[3]["id"]


@pytest.mark.parametrize("text", ["", "\n "])
async def test_an_empty_answer_has_an_empty_text(text: str) -> None:
    worker = saying(text)
    (block,) = (await post(worker, {})).json()["content"]
    assert block["text"] == text
    assert collected(events_of((await post(worker, STREAM)).text))["content"] == [block]


async def test_why_an_answer_ended() -> None:
    async def ended(worker: FakeWorker, **body: Any) -> tuple[str, str | None]:
        message = (await post(worker, body)).json()
        return message["stop_reason"], message["stop_sequence"]

    stops = {"stop_sequences": ["more", "日本"]}
    assert await ended(saying(TEXT), **stops) == ("stop_sequence", "日本")
    assert await ended(saying("none of them"), **stops) == ("end_turn", None)
    limit = len(tokens_of(TEXT))
    assert await ended(saying(TEXT, finish_reason="length"), max_tokens=limit) == ("max_tokens", None)
    exceeded = ("model_context_window_exceeded", None)
    assert await ended(saying(TEXT, finish_reason="length"), max_tokens=32000) == exceeded
    assert await ended(saying(CALL), tools=[ADD]) == ("tool_use", None)
    assert await ended(saying(CALL[:-20], finish_reason="length"), tools=[ADD], max_tokens=3) == ("max_tokens", None)


async def test_a_call_that_the_limit_cut_has_what_was_complete() -> None:
    cut = CALL[: CALL.index("x")]
    message = (await post(saying(cut, finish_reason="length"), {"tools": [ADD]})).json()
    assert message["content"][0]["input"] == {"a": 1, "b": ""}


async def test_cached_tokens_are_counted_apart() -> None:
    worker = FakeWorker(lambda _: [TokenDelta((5,), None, 8), TokenDelta((6,), "stop")])
    length = (await post(worker, {}, f"{PATH}/count_tokens", model=TOOL_MODEL)).status_code
    assert length == 400  # it takes no max_tokens
    usage = (await post(worker, {})).json()["usage"]
    prompt = len(worker.requests[-1].prompt_token_ids)
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (prompt - 8, 8)
    start, *_ = events_of((await post(worker, STREAM)).text)
    assert start["message"]["usage"]["cache_read_input_tokens"] == 8


# --- thoughts ------------------------------------------------------------------------------------------------------


def thinker(text: str = "<think>\nHm.\n</think>\n\nIt is.") -> FakeWorker:
    return FakeWorker(lambda _: deltas(encoded(text, has_tokens=False)))


async def test_a_thought_is_a_block_that_can_be_handed_back() -> None:
    model, worker = thinking_model(SWITCHED), thinker()
    message = (await post(worker, {}, model=model)).json()
    thought, text = message["content"]
    assert (thought["type"], thought["thinking"], text["text"]) == ("thinking", "Hm.", "It is.")
    assert thought["signature"]
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    hidden = (await post(worker, {"thinking": {"type": "adaptive", "display": "omitted"}}, model=model)).json()
    assert hidden["content"][0]["thinking"] == ""
    for blocks in (message["content"], hidden["content"]):
        history = [*BODY["messages"], {"role": "assistant", "content": blocks}, {"role": "user", "content": "Go on."}]
        await post(worker, {"messages": history}, model=model)
        assert "<think>\nHm.\n</think>\n\nIt is.<|im_end|>" in model.tokenizer.text(
            worker.requests[-1].prompt_token_ids
        )


async def test_how_much_to_think() -> None:
    model = thinking_model(SWITCHED)

    async def asked(thinking: Any, **body: Any) -> tuple[int | None, bool]:
        worker = thinker()
        assert (await post(worker, {"thinking": thinking} | body, model=model)).status_code == 200
        (request,) = worker.requests
        is_off = model.tokenizer.text(request.prompt_token_ids).endswith("<think>\n\n</think>\n\n")
        return None if request.thought is None else request.thought.tokens, is_off

    assert await asked({"type": "enabled", "budget_tokens": 1024}) == (1024, False)
    assert await asked({"type": "adaptive"}) == (None, False)
    assert await asked({"type": "disabled"}) == (0, True)
    assert await asked({"type": "between_tools"}) == (0, True)
    assert await asked({"type": "disabled"}, output_config={"effort": "max"}) == (0, True)
    assert await asked(None) == (None, False)


def test_efforts_and_foreign_thoughts() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "EqQBCgIYAhIM"},
        {"type": "redacted_thinking", "data": "EmwKAhgBEgy3"},
        {"type": "thinking", "thinking": "", "signature": "redoubt.?"},
        {"type": "text", "text": "Yes."},
    ]
    chat = converted([{"role": "assistant", "content": blocks}], output_config={"effort": "low"})
    assert chat.reasoning_effort == "low"
    assert chat.messages == [Message(role="assistant", content="Yes.", reasoning_content="Hm.")]


# --- conversations -------------------------------------------------------------------------------------------------


def converted(messages: list[Any], **fields: Any) -> Any:
    return chat_request(CountTokensRequest.model_validate({"model": "tiny", "messages": messages} | fields))


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content, "cache_control": {"type": "ephemeral", "ttl": "1h"}}


def test_a_conversation_of_blocks() -> None:
    call = {"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}, "caller": {"type": "direct"}}
    document = {"type": "document", "title": "T", "source": {"type": "text", "data": "D", "media_type": "text/plain"}}
    blocks = {"type": "document", "context": "C", "source": {"type": "content", "content": [text("D"), text("E")]}}
    found = {"type": "search_result", "source": "S", "title": "T", "content": [text("F")]}
    chat = converted(
        [
            {"role": "user", "content": [text("one"), document]},
            {"role": "system", "content": [text("Be brief.")]},
            {"role": "assistant", "content": [text("I "), {**text("do."), "citations": None}, call]},
            {
                "role": "user",
                "content": [
                    text("and then"),
                    {"type": "tool_result", "tool_use_id": "c", "content": [text("1"), blocks, found]},
                    {"type": "tool_result", "tool_use_id": "d", "content": "no such tool", "is_error": True},
                    {"type": "tool_result", "tool_use_id": "e"},
                ],
            },
            {"role": "user", "content": "more"},
            {"role": "assistant", "content": "Well."},
            {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "name": "x", "input": {}}]},
            {"role": "assistant", "content": "Done."},
        ],
        system=[text("First."), text("Second.")],
    )
    parts = [[part.text for part in one.content] for one in chat.messages if isinstance(one.content, list)]
    assert parts == [['<document name="T">\nD\n</document>\n', "one"], ["and then", "more"]]
    assert [(one.role, one.content) for one in chat.messages if not isinstance(one.content, list)] == [
        ("system", "First.\n\nSecond."),
        ("system", "Be brief."),
        ("assistant", "I do."),
        ("tool", '1\n<document name="document">\nC\n\nD\nE\n</document>\n\nT\nS\n\nF'),
        ("tool", "Error: no such tool"),
        ("tool", ""),
        ("assistant", "Well.\n\nDone."),
    ]
    (made,) = chat.messages[3].tool_calls
    assert (made.id, made.function.name, made.function.arguments) == ("c", "add", '{"a":1}')
    assert [one.tool_call_id for one in chat.messages if one.role == "tool"] == ["c", "d", "e"]
    assert chat.continue_final_message


def test_a_call_ends_a_message_of_the_assistant() -> None:
    call = {"type": "tool_use", "id": "c", "name": "add", "input": {}}
    thought = {"type": "thinking", "thinking": "Hm."}
    chat = converted([{"role": "assistant", "content": [thought, call, thought, text("a"), call, text("b"), call]}])
    assert [(one.reasoning_content, one.content, len(one.tool_calls)) for one in chat.messages] == [
        ("Hm.", None, 1),
        ("Hm.", "a", 1),
        (None, "b", 1),
    ]
    assert not chat.continue_final_message


async def test_the_answer_goes_on_with_the_assistants_last_text() -> None:
    worker = saying(" 42")
    begun = [*BODY["messages"], {"role": "assistant", "content": "The answer is"}]
    message = (await post(worker, {"messages": begun}, model=TOOL_MODEL)).json()
    assert message["content"][0]["text"] == " 42"
    assert prompt_of(worker.requests[0]).endswith("<|im_start|>assistant\nThe answer is")
    async with http_client(http_app(never, model=TOOL_MODEL)) as client:
        counted = await client.post(f"{PATH}/count_tokens", json={"model": "tiny", "messages": begun})
    assert counted.json() == {"input_tokens": len(worker.requests[0].prompt_token_ids)}


async def test_a_begun_answer_follows_its_format_as_a_whole() -> None:
    worker = saying("1}")
    messages = [*BODY["messages"], {"role": "assistant", "content": '{"a": '}]
    form = {"output_config": {"format": {"type": "json_schema", "schema": ADD["input_schema"]}}}
    message = (await post(worker, {"messages": messages, **form}, model=TOOL_MODEL)).json()
    assert message["content"][0]["text"] == "1}"
    assert ADD["input_schema"]["required"][0] in (worker.requests[0].grammar or "")


# --- tools ---------------------------------------------------------------------------------------------------------


async def test_tool_choice() -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}, ADD, {**ADD, "name": "sub"}]

    async def asked(choice: Any) -> GenerateRequest:
        worker = saying(CALL)
        assert (await post(worker, {"tools": tools, "tool_choice": choice}, model=TOOL_MODEL)).status_code == 200
        return worker.requests[0]

    assert (await asked({"type": "auto"})).grammar is None
    assert "adds" in prompt_of(await asked(None))
    assert "adds" not in prompt_of(await asked({"type": "none"}))
    forced = json.loads((await asked({"type": "any"})).grammar or "")
    assert (forced["maxItems"] > 1, len(forced["$defs"])) == (True, 2)
    single = json.loads((await asked({"type": "any", "disable_parallel_tool_use": True})).grammar or "")
    assert single["maxItems"] == 1
    named = json.loads((await asked({"type": "tool", "name": "sub"})).grammar or "")
    assert named["required"] == ["a"]
    worker = saying(f"{CALL}\n{CALL}")
    body = {"tools": tools, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    assert len((await post(worker, body)).json()["content"]) == 1


async def test_what_the_model_is_told_of_a_tool() -> None:
    worker = saying("no")
    tool = {**ADD, "type": "custom", "input_examples": [{"a": 7}], "defer_loading": True, "cache_control": {"any": 1}}
    await post(worker, {"tools": [tool]}, model=TOOL_MODEL)
    assert json.loads(prompt_of(worker.requests[0]).partition("<|im_start|>")[0]) == [
        {
            "type": "function",
            "function": {
                "name": "add",
                "description": 'adds\n\nExamples of its input:\n{"a":7}',
                "parameters": ADD["input_schema"],
            },
        }
    ]


@pytest.mark.parametrize("field", ["output_config", "output_format"])
async def test_an_answer_of_a_schema(field: str) -> None:
    form = {"type": "json_schema", "schema": ADD["input_schema"]}
    worker = saying('{"a": 1}')
    body = {field: {"format": form} if field == "output_config" else form}
    assert (await post(worker, body)).json()["content"][0]["text"] == '{"a": 1}'
    assert json.loads(worker.requests[0].grammar or "")["required"] == ["a"]
    deep: Any = {}
    for _ in range(120):
        deep = {"items": deep}
    refused = await post(worker, {field: {"format": {**form, "schema": deep}} if "format" in str(body) else deep})
    assert refused.status_code == 400


# --- Claude Code ---------------------------------------------------------------------------------------------------

CLAUDE_TOOLS = """
Agent Bash CronCreate CronDelete CronList Edit EnterWorktree ExitWorktree NotebookEdit Read ReportFindings
ScheduleWakeup SendMessage Skill TaskCreate TaskGet TaskList TaskOutput TaskStop TaskUpdate WebFetch WebSearch
Workflow Write
""".split()  # noqa: SIM905
"""Those that version 2.1 offers."""


def claude_code(number: int) -> dict[str, Any]:
    """A request as version 2.1 of Claude Code sends it, with texts of our own."""
    cached = {"cache_control": {"type": "ephemeral"}}
    billing = f"x-anthropic-billing-header: cc_version=2.1.197.{number}; cc_entrypoint=sdk-cli; cch={number};"
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"command": {"description": "What to run", "type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    }
    return {
        "model": "tiny",
        "messages": [
            {"role": "user", "content": [text("<system-reminder>\nA date.\n</system-reminder>"), text("Write it.")]},
            {"role": "system", "content": "Agents: none."},
        ],
        "system": [
            {"type": "text", "text": billing},
            {"type": "text", "text": "You are an agent.", **cached},
            {"type": "text", "text": "\nBe careful.", **cached},
        ],
        "tools": [{"name": name, "description": f"It is {name}.", "input_schema": schema} for name in CLAUDE_TOOLS],
        "metadata": {"user_id": json.dumps({"device_id": "d" * 64, "account_uuid": "", "session_id": "s" * 36})},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    }


async def test_what_claude_code_sends() -> None:
    said = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
    worker = saying(said)
    headers = VERSION | {"x-api-key": "none", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14"}
    async with http_client(http_app(worker.generate, model=TOOL_MODEL)) as client:
        assert (await client.head("/")).status_code in (200, 503)  # 503: the pages are not built
        for number in range(2):
            answer = await client.post(f"{PATH}?beta=true", json=claude_code(number), headers=headers)
            assert answer.status_code == 200, answer.text
            message = collected(events_of(answer.text))
            assert [block["input"] for block in message["content"]] == [{"command": "ls"}]
            assert message["stop_reason"] == "tool_use"
    first, second = worker.requests
    assert first.prompt_token_ids == second.prompt_token_ids, "a number of Anthropic's accounting is in the prompt"
    prompt = prompt_of(first)
    assert all(f'"name": "{name}"' in prompt for name in CLAUDE_TOOLS)
    assert "<|im_start|>system\nYou are an agent.\n\n\nBe careful.<|im_end|>" in prompt
    assert prompt.index("Write it.") < prompt.index("Agents: none.")


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("max_tokens", {"max_tokens": 0}),
        ("messages", {"messages": []}),
        ("nonsense", {"nonsense": 1}),
        ("container", {"container": "c"}),
        ("mcp_servers", {"mcp_servers": [{"type": "url", "name": "m", "url": "u"}]}),
        ("messages[0].role", {"messages": [{"role": "tool", "content": "x"}]}),
        ("messages[0].content[0]", {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
        (
            "messages[0].content[0].source",
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "x"}}]}]},
        ),
        (
            "messages[0].content[0].citations.enabled",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "document",
                                "source": {"type": "text", "data": "x"},
                                "citations": {"enabled": True},
                            }
                        ],
                    }
                ]
            },
        ),
        ("thinking", {"thinking": {"type": "sometimes"}}),
        ("thinking.budget_tokens", {"thinking": {"type": "enabled"}}),
        ("tools[0]", {"tools": [{"type": "teleport", "name": "x"}]}),
        ("tools[0].input_schema", {"tools": [{"name": "x"}]}),
        ("tools[1].input_schema", {"tools": [{"type": "bash_20250124"}, {"name": "x", "input_schema": 1}]}),
        ("tool_choice", {"tool_choice": "any"}),
        ("tool_choice", {"tool_choice": {"type": "any"}}),
        ("tool_choice", {"tool_choice": {"type": "tool", "name": "bash"}, "tools": [{"type": "bash_20250124"}]}),
        ("stop_sequences[0]", {"stop_sequences": [""]}),
        ("temperature", {"temperature": "hot"}),
    ],
)
async def test_a_wrong_field_is_named(field: str, body: dict[str, Any]) -> None:
    answer = await post(FakeWorker(lambda _: []), body)
    assert answer.status_code == 400
    error = answer.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert error["error"]["message"].startswith(f"'{field}'")
    assert error["request_id"] == answer.headers["request-id"]


async def test_a_schema_is_named_by_its_place_among_all_tools() -> None:
    deep: Any = {"type": "object"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    tools = [{"type": "bash_20250124", "name": "bash"}, ADD, {"name": "deep", "input_schema": deep, "strict": True}]
    answer = await post(FakeWorker(lambda _: []), {"tools": tools})
    assert answer.json()["error"]["message"].startswith("'tools[2].input_schema'")


@pytest.mark.parametrize(
    "body",
    [
        {"cache_control": {"type": "ephemeral"}},
        {"service_tier": "standard_only"},
        {"speed": "fast"},
        {"inference_geo": "eu"},
        {"diagnostics": {"previous_message_id": None}},
        {"metadata": {"user_id": "u"}},
        {"context_management": {"edits": []}},
        {"mcp_servers": []},
        {"container": None, "thinking": None, "tools": None, "system": None, "stop_sequences": None},
        {"output_config": {"task_budget": {"type": "tokens", "total": 5}}},
        {"system": []},
        {"tools": []},
    ],
)
async def test_what_has_no_effect(body: dict[str, Any]) -> None:
    worker = saying(TEXT)
    assert (await post(worker, body)).status_code == 200
    await post(worker, {})
    first, second = worker.requests
    assert (first.prompt_token_ids, first.sampling) == (second.prompt_token_ids, second.sampling)


async def test_sampling() -> None:
    worker = saying(TEXT)
    body = {"temperature": 0.5, "top_p": 0.4, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.2, "seed": 7}
    await post(worker, body | {"max_tokens": 9})
    (request,) = worker.requests
    taken = request.sampling
    assert (taken.temperature, taken.top_p, taken.top_k, taken.min_p) == (0.5, 0.4, 3, 0.1)
    assert (taken.repetition_penalty, taken.seed, request.max_new_tokens) == (1.2, 7, 9)


# --- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (QueueFullError("full"), 429, "rate_limit_error"),
        (EngineStoppedError("down"), 503, "overloaded_error"),
        (ZeroDivisionError("a bug"), 500, "api_error"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_what_a_worker_refuses(failure: Exception, status: int, kind: str, streamed: bool) -> None:
    answer = await post(FakeWorker(lambda _: [failure]), {"stream": streamed})
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
    assert ("retry-after" in answer.headers) == (status != 500)


async def test_a_failure_in_mid_stream_is_the_last_event() -> None:
    script: list[TokenDelta | Exception] = [TokenDelta(tuple(tokens_of("Hel"))), EngineStoppedError("worker lost")]
    *before, last = events_of((await post(FakeWorker(lambda _: script), STREAM)).text)
    assert last == {"type": "error", "error": {"type": "overloaded_error", "message": "worker lost"}}
    assert collected(before)["content"][0]["text"] == "Hel"


async def test_silence_is_filled_with_pings() -> None:
    worker = HeldWorker([EngineStoppedError("No worker is up.")])
    app = http_app(worker.generate, keep_alive_comment_s=0.01)
    exchange = Exchange(app, PATH, BODY | STREAM)
    await exchange.until(lambda exchange: exchange.body.count(PING) >= 3)
    assert exchange.body.replace(PING, b"") == b""
    worker.may_go.set()
    *pings, last = events_of((await exchange.ended()).body.decode())
    assert {event["type"] for event in pings} == {"ping"}
    assert last["error"] == {"type": "overloaded_error", "message": "No worker is up."}


async def test_pings_between_tokens() -> None:
    worker = HeldWorker(free=3)
    exchange = Exchange(http_app(worker.generate, keep_alive_comment_s=0.01), PATH, BODY | STREAM)
    await exchange.until(lambda exchange: exchange.body.count(PING) >= 4)
    worker.may_go.set()
    message = collected(events_of((await exchange.ended()).body.decode()))
    assert message["content"][0]["text"] == "Hello, 日本 and more"


async def test_refusals_before_a_route() -> None:
    app = http_app(never, api_keys=("a-good-key-of-some-length",), max_body_bytes=3000)
    good = {"x-api-key": "a-good-key-of-some-length"}
    async with http_client(app) as client:

        async def refused(path: str, body: Any, headers: dict[str, str], method: str = "POST") -> tuple[int, str]:
            answer = await client.request(method, path, json=body, headers=headers)
            error = answer.json()
            assert (error["type"], error["request_id"]) == ("error", answer.headers["request-id"])
            return answer.status_code, error["error"]["type"]

        assert await refused(PATH, BODY, {}) == (401, "authentication_error")
        assert await refused(PATH, BODY, {"x-api-key": "wrong"}) == (401, "authentication_error")
        assert await refused(PATH, BODY | {"model": "claude-opus"}, good) == (404, "not_found_error")
        assert await refused(f"{PATH}/batches", {}, good) == (404, "not_found_error")
        assert await refused("/v1/files", {}, good | VERSION) == (404, "not_found_error")
        assert await refused(PATH, None, good, "GET") == (405, "invalid_request_error")
        assert await refused(PATH, BODY | {"system": "x" * 4000}, good) == (413, "request_too_large")
        unknown = await client.post(PATH, json=BODY | {"model": "claude-opus"}, headers=good)
        assert "Served: tiny." in unknown.text
        assert "ANTHROPIC_MODEL" in unknown.text
        assert "Batches of messages" in (await client.post(f"{PATH}/batches", json={}, headers=good)).text
        asked = {"Authorization": "Bearer a-good-key-of-some-length"}
        assert (await client.get("/v1/models", headers=asked)).status_code == 200
        assert "type" not in (await client.post("/v1/files", json={}, headers=good)).json()


async def test_refusals_of_middlewares() -> None:
    app = http_app(never, max_ongoing_requests=0)
    async with http_client(app) as client:
        foreign = await client.post(PATH, json=BODY, headers={"host": "evil.example.com"})
        assert (foreign.status_code, foreign.json()["error"]["type"]) == (421, "invalid_request_error")
        full = await client.post(PATH, json=BODY)
        assert (full.status_code, full.json()["error"]["type"]) == (503, "overloaded_error")
        assert full.json()["request_id"] == full.headers["request-id"]
        assert "code" in (await client.post("/v1/chat/completions", json={})).json()["error"]


async def test_a_prompt_that_is_too_long_is_refused_in_words_that_clients_know() -> None:
    answer = await post(FakeWorker(lambda _: []), {"messages": [{"role": "user", "content": "hi " * 900}]})
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.startswith("prompt is too long: ")
    assert f" tokens > {CONTEXT_TOKENS} maximum" in message


# --- other routes --------------------------------------------------------------------------------------------------


async def test_count_tokens() -> None:
    worker = saying(TEXT)
    body = {key: value for key, value in claude_code(1).items() if key not in ("stream", "max_tokens", "metadata")}
    async with http_client(http_app(worker.generate, model=TOOL_MODEL)) as client:
        counted = await client.post(f"{PATH}/count_tokens?beta=true", json=body, headers=VERSION)
        usage = (await client.post(PATH, json=body | {"max_tokens": 5})).json()["usage"]
        long = body | {"messages": [{"role": "user", "content": "hi " * (1 << 17)}]}
        assert (await client.post(f"{PATH}/count_tokens", json=long)).json()["input_tokens"] > 1 << 17
        unknown = await client.post(f"{PATH}/count_tokens", json=body | {"model": "claude-x"})
        assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    assert counted.json() == {"input_tokens": usage["input_tokens"]}


async def test_a_request_without_a_model_asks_the_first() -> None:
    assert (await post(saying(TEXT), {"model": None})).json()["model"] == "tiny"


async def test_models() -> None:
    async with http_client(http_app(never)) as client:
        listed = (await client.get("/v1/models", headers=VERSION)).json()
        one = (await client.get("/v1/models/tiny", headers=VERSION)).json()
        assert listed == {"data": [one], "has_more": False, "first_id": "tiny", "last_id": "tiny"}
        assert one == {
            "type": "model",
            "id": "tiny",
            "display_name": "tiny",
            "created_at": "1970-01-01T00:02:03Z",
            "lifecycle": "active",
            "max_input_tokens": CONTEXT_TOKENS,
            "max_tokens": CONTEXT_TOKENS,
        }
        after = (await client.get("/v1/models?after_id=tiny", headers=VERSION)).json()
        assert after == {"data": [], "has_more": False, "first_id": None, "last_id": None}
        wrong = await client.get("/v1/models?limit=0", headers=VERSION)
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "invalid_request_error")
        unknown = await client.get("/v1/models/other", headers=VERSION)
        assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
        assert (await client.get("/v1/models")).json()["object"] == "list"
