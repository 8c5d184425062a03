"""Thoughts of Gemma 4, whose mark is a token and a word, and of Granite, whose marks are headings."""

from functools import partial
from typing import Any

import pytest

from app.interface.functions.call_grammar import answer_grammar
from app.interface.functions.dialect import json_rule
from app.interface.thinking.marks import CHANNELS, FAMILIES, Thought, marks_of
from app.interface.thinking.requested import TemplateOptions
from app.interface.wire.chat import Message
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.marked_tokens import MarkedTokens
from tests.app.service import http_app, http_client

GEMMA, GRANITE = FAMILIES[3], FAMILIES[4]
GEMMA_NAMES = ("<|channel>", "<channel|>", "<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|think|>")
GEMMA_TEMPLATE = (
    "{% if enable_thinking is defined and enable_thinking %}<|turn>system\n<|think|>\n<turn|>\n{% endif %}"
    "{% for message in messages %}<|turn>{{ message.role }}\n"
    "{% if message.tool_calls %}"
    "{% if message.reasoning_content %}<|channel>thought\n{{ message.reasoning_content }}<channel|>{% endif %}"
    "{% for call in message.tool_calls %}<|tool_call>call:{{ call.function.name + '{' }}"
    "{% for key, value in call.function.arguments | dictsort %}{{ key }}:{{ value }}{% endfor %}{{ '}' }}<tool_call|>"
    "{% endfor %}{% endif %}{{ message.content }}<turn|>\n{% endfor %}<|turn>model\n"
    "{% if not enable_thinking | default(false) %}<|channel>thought\n<channel|>{% endif %}{# tools #}"
)
GRANITE_TEMPLATE = (
    "{% if thinking %}Write your thoughts after 'Here is my thought process:' and write your response after "
    "'Here is my response:'.\n{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Is it?"}]}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}]


async def answer(marked: MarkedTokens, template: str, text: str, **fields: Any) -> Any:
    ids = marked.encode(text)
    answers = []
    for script in (deltas(ids, each=1), deltas(ids, each=100)):
        app = http_app(FakeWorker(partial(_scripted, script)).generate, model=marked.model(template))
        async with http_client(app) as client:
            response = await client.post("/v1/chat/completions", json=CHAT | fields)
        assert response.status_code == 200, response.text
        answers.append(response.json()["choices"][0]["message"])
    for call in [call for one in answers for call in one.get("tool_calls", [])]:
        del call["id"]
    assert answers[0] == answers[1]
    return answers[0]


def _scripted(script: list[TokenDelta], _: GenerateRequest) -> list[TokenDelta]:
    return script


@pytest.mark.parametrize("special", [None, False, True])
async def test_gemmas_thought_is_apart(special: bool | None) -> None:
    marked = MarkedTokens(GEMMA_NAMES, special)
    thought = "<|channel>thought\nHm, 日本.\n<channel|>"
    message = await answer(marked, GEMMA_TEMPLATE, f"{thought}It is.", enable_thinking=True)
    assert (message["reasoning_content"], message["content"]) == ("Hm, 日本.", "It is.")
    call = '<|tool_call>call:add{a:<|"|>x "y"<|"|>}<tool_call|>'
    message = await answer(marked, GEMMA_TEMPLATE, thought + call, enable_thinking=True, tools=TOOLS)
    assert (message["reasoning_content"], message["content"]) == ("Hm, 日本.", None)
    assert [one["function"]["arguments"] for one in message["tool_calls"]] == ['{"a": "x \\"y\\""}']
    message = await answer(marked, GEMMA_TEMPLATE, "It is.")
    assert message == {"role": "assistant", "content": "It is.", "refusal": None}


@pytest.mark.parametrize("special", [None, False, True])
def test_a_format_begins_after_gemmas_thought(special: bool | None) -> None:
    marked = MarkedTokens(GEMMA_NAMES, special)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    grammar = answer_grammar(json_rule(schema), marked.added, Thought(GEMMA, is_open=False, is_expected=True))
    with marked.constraints() as made:
        for text, is_good in (
            ('<|channel>thought\nhm<channel|>{"a": 1}', True),
            ('<|channel>thought\n<channel|>{"a": 1}', True),
            ('{"a": 1}', True),
            ('<|channel>thought\nhm<channel|>{"a": "x"}', False),
            ('<|channel>other\nhm<channel|>{"a": 1}', False),
        ):
            assert marked.lets_through(made, grammar, text) is is_good, text


@pytest.mark.parametrize(("thinks", "expected"), [(True, True), (False, False), (None, False)])
def test_whether_gemma_may_think_is_seen_at_its_prompts_end(thinks: bool | None, expected: bool) -> None:
    model = MarkedTokens(GEMMA_NAMES).model(GEMMA_TEMPLATE)
    prompt = model.chat_prompt([Message(role="user", content="x")], options=TemplateOptions(thinks=thinks))
    assert model.thoughts.after(prompt) == Thought(GEMMA, is_open=False, is_expected=expected)


async def test_granites_headings() -> None:
    marked = MarkedTokens(("<|start_of_role|>",), special=True)
    text = "Here is my thought process:\nHm, so.\n\nHere is my response:\n\nIt is."
    message = await answer(marked, GRANITE_TEMPLATE, text, chat_template_kwargs={"thinking": True})
    assert (message["reasoning_content"], message["content"]) == ("Hm, so.", "It is.")
    message = await answer(marked, GRANITE_TEMPLATE, "Here is my response:\n\nIt is.")
    assert message["content"] == "Here is my response:\n\nIt is."


def test_each_model_has_its_own_marks() -> None:
    assert marks_of(GEMMA_TEMPLATE, ()) == GEMMA
    assert marks_of(GRANITE_TEMPLATE, ()) == GRANITE
    assert marks_of("<|start|>assistant<|channel|>final<|message|>", ()) == CHANNELS
    assert marks_of("{{ x }}", {"<|channel>", "<channel|>"}) == GEMMA
    assert marks_of("{{ x }}", set(CHANNELS.tokens)) == CHANNELS
    for template in ("<|user|>{{ x }}<|end|><|assistant|>", "<|system|>{{ x }}<|end|>"):  # as Phi's
        assert marks_of(template, {"<|end|>", "<|user|>"}) == FAMILIES[0]
