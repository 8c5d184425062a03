"""Answers of models with tagged calls: from their templates, through chat and responses."""

import json
from typing import Any

import pytest

from app.interface.generate.planning.chat import plan_chat
from app.interface.generate.planning.limits import Limits
from app.interface.request.callers import Caller
from app.interface.wire.chat import ChatCompletionRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.functions.test_written_calls import glm, qwen
from tests.app.marked_tokens import MarkedTokens
from tests.app.service import http_app, http_client
from tests.app.tiny_model import TEMPLATE

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
    "required": ["path"],
}
TOOLS = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}"
TEMPLATES = {
    "qwen": TOOLS + TEMPLATE + "{# <tool_call>\n<function=f>\n<parameter=a> #}",
    "glm": TOOLS + TEMPLATE + "{# <tool_call>f\n<arg_key>a</arg_key>\n<arg_value> #}",
}
WRITTEN = {"qwen": qwen, "glm": glm}
MARKED = MarkedTokens(("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"), False)


def tool(strict: bool | None = None, count: int = 1) -> list[dict[str, Any]]:
    function = {"parameters": PARAMETERS, "strict": strict}
    return [{"type": "function", "function": {"name": f"write{i or ''}", **function}} for i in range(count)]


@pytest.mark.parametrize("each", [1, 100])
@pytest.mark.parametrize("name", WRITTEN)
async def test_arguments_have_the_types_of_the_tools_schema(name: str, each: int) -> None:
    ids = MARKED.encode(WRITTEN[name]("write", path="12", lines="3"))
    app = http_app(FakeWorker(lambda _: deltas(ids, each=each)).generate, model=MARKED.model(TEMPLATES[name]))
    chat: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "tools": tool()}
    custom = [{"type": "custom", "name": "write"}]
    flat = [{"type": "function", "name": "write", "parameters": PARAMETERS}]
    async with http_client(app) as client:
        (choice,) = (await client.post("/v1/chat/completions", json=chat)).json()["choices"]
        items = (await client.post("/v1/responses", json={"model": "tiny", "input": "hi", "tools": flat})).json()[
            "output"
        ]
        body = {"model": "tiny", "input": "hi", "tools": custom}
        (written,) = (await client.post("/v1/responses", json=body)).json()["output"]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert json.loads(call["function"]["arguments"]) == {"path": "12", "lines": 3}
    assert json.loads(items[0]["arguments"]) == {"path": "12", "lines": 3}
    assert written["type"] == "custom_tool_call"


@pytest.mark.parametrize("name", WRITTEN)
def test_strict_functions_are_held_in_the_notation_of_the_template(name: str) -> None:
    good, bad = (WRITTEN[name]("write", path="a", lines=lines) for lines in ("1", "x"))

    def grammar(**fields: Any) -> str:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
        request = ChatCompletionRequest.model_validate(body)
        job = plan_chat(MARKED.model(TEMPLATES[name]), request, Limits(16, 4), Caller(tenant=b""), "id")
        assert job.grammar is not None
        return job.grammar.schema

    with MARKED.constraints() as made:
        strict = grammar(tools=tool(strict=True))
        assert [MARKED.lets_through(made, strict, text) for text in (good, bad, "Ok")] == [True, False, True]
        forced = grammar(tools=tool(), tool_choice="required")
        listed = '[{"name": "write", "arguments": {"path": "a", "lines": 1}}]'
        assert [MARKED.lets_through(made, forced, text) for text in (listed, good)] == [True, False]
        many = grammar(tools=tool(strict=True, count=128))
        assert MARKED.lets_through(made, many, good)
