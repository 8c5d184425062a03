"""Calls of earlier turns in templates of several families: complete, empty, and truncated by a limit."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.interface.text.chat_model import ChatModel
from app.interface.text.chat_template import ChatTemplate
from app.interface.text.earlier_calls import read_arguments
from app.interface.wire.chat import Message
from app.interface.wire.tools import Tool
from tests.app.tiny_model import TEMPLATE, tiny_model

HEAD = (
    "{% for message in messages %}{% if message.tool_calls %}{% for call in message.tool_calls %}"
    "{% set call = call.function %}"
)
TAIL = "{% endfor %}{% else %}[{{ message.role }}]{{ message.content }}{% endif %}{% endfor %}{# tools #}"
NINE = "{% if call.id | length != 9 %}{{ raise_exception('an id has nine letters') }}{% endif %}"
TEMPLATES = {
    "object as JSON": HEAD + '{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}' + TAIL,
    "whole call as JSON": HEAD + "[TOOL_CALLS]{{ [call] | tojson }}" + TAIL,
    "object or text": HEAD
    + '{"name": "{{ call.name }}", "arguments": '
    + "{% if call.arguments is string %}{{ call.arguments }}{% else %}{{ call.arguments | tojson }}{% endif %}}"
    + TAIL,
    "parameters one by one": HEAD
    + "<function={{ call.name }}>{% for key, value in call.arguments | items %}"
    + "<parameter={{ key }}>{{ value }}</parameter>{% endfor %}" + TAIL,
    "parameters by a method": HEAD
    + "{{ call.name }}({% for key, value in call.arguments.items() %}{{ key }}={{ value }}{% endfor %})" + TAIL,
    "text added to text": HEAD + "{{ call.name + '\\n```json\\n' + call.arguments + '\\n```' }}" + TAIL,
    "text shown": HEAD + "{{ call.name }} {{ call.arguments }}" + TAIL,
    "one call a message": "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('one call only') }}{% endif %}{{ m.tool_calls[0].function.name }}"
    "{{ m.tool_calls[0].function.arguments | tojson }}{% else %}{{ m.content }}{% endif %}{% endfor %}{# tools #}",
    "ids of nine letters": HEAD.replace("{% set", NINE + "{% set") + "{{ call | tojson }}" + TAIL,
    "no functions": TEMPLATE,
    "calls that are not shown": TEMPLATE + "{# tool_calls #}",
}  # fmt: skip
"""Templates by their form of arguments: Qwen2.5 and Llama 3, Mistral, Qwen3, Qwen3-Coder, GLM, DeepSeek ..."""
MODELS = {name: tiny_model(template, context_tokens=8192) for name, template in TEMPLATES.items()}
TAKES_TEXT = {"text added to text", "text shown", "no functions", "calls that are not shown"}


def rendered(model: ChatModel, arguments: str | None, tools: tuple[Tool, ...] = ()) -> str:
    call: dict[str, Any] = {"id": "abcdefghi", "function": {"name": "look", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "no such thing"},
        {"role": "user", "content": "go on"},
    ]
    return model.tokenizer.text(model.chat_prompt([Message.model_validate(message) for message in messages], tools))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_whole_call_is_shown(name: str) -> None:
    text = rendered(MODELS[name], '{"city": "Größe", "n": [1, 2.5]}')
    assert "look" in text
    assert "Größe" in text
    assert "city" in text
    assert "'city'" not in text, "that is Python's way of writing an object"
    assert "no such thing" in text


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("arguments", [None, "", " \n", "{}"], ids=["null", "empty", "blank", "object"])
def test_no_arguments_are_an_empty_object(name: str, arguments: str | None) -> None:
    assert rendered(MODELS[name], arguments) == rendered(MODELS[name], "{}")


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_a_limit_has_cut_does_not_block_the_conversation(name: str) -> None:
    cut = '{"city": "Gr\u00f6\u00dfe \\"x\\" and mo'
    text = rendered(MODELS[name], cut)
    assert "and mo" in text
    if name in TAKES_TEXT:
        assert cut in text
    else:
        assert text == rendered(MODELS[name], json.dumps({"city": 'Größe "x" and mo'}))


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("arguments", ["city: Paris", "[1, 2]", '"Paris"', "{'city': 'Paris'}"])
def test_what_is_no_object_at_all_is_shown_as_it_is(name: str, arguments: str) -> None:
    text = rendered(MODELS[name], arguments)
    assert arguments in text or json.dumps(arguments)[1:-1] in text


@pytest.mark.parametrize("name", TEMPLATES)
def test_control_tokens_in_cut_arguments_stay_text(name: str) -> None:
    model = MODELS[name]
    call = {"id": "abcdefghi", "function": {"name": "look", "arguments": '{"<|im_start|>": "<|im_end|>'}}
    messages = [Message.model_validate({"role": "assistant", "tool_calls": [call]})]
    plain = [Message.model_validate({"role": "assistant", "tool_calls": [{**call, "function": {"name": "look"}}]})]
    control = {1, 2}
    count, least = (sum(token in control for token in model.chat_prompt(one)) for one in (messages, plain))
    assert count == least


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "b": [1, {"c": "x', {"a": 1, "b": [1, {"c": "x"}]}),
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": "x", "b', {"a": "x"}),
        ('{"a": "x", "b":', {"a": "x"}),
        ("{", {}),
        ('{"a": 1}}', {"a": 1}),
        ('{"a": 1}</tool_call>', {"a": 1}),
        ("null", {}),
        ("nothing", {"arguments": "nothing"}),
        ("3", {"arguments": "3"}),
    ],
)
def test_arguments_are_read_up_to_their_cut(text: str, value: dict[str, Any]) -> None:
    assert read_arguments(text) == value


def test_a_mark_in_the_vocabulary_says_the_dialect_too() -> None:
    call = {"id": "a", "function": {"name": "look", "arguments": '{"city": "Oslo"}'}}
    messages = [Message(role="user", content="hi"), Message.model_validate({"role": "assistant", "tool_calls": [call]})]
    template = ChatTemplate("{{ tools }}" + TEMPLATE, {}, ["<|tool_call_start|>", "<|tool_call_end|>"])
    assert '<|tool_call_start|>[look(city="Oslo")]<|tool_call_end|>' in template.render(messages)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4), st.floats(0, 1))
def test_any_cut_of_an_object_is_an_object(value: dict[str, Any], share: float) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert read_arguments(text) == value
    assert read_arguments(text[: 1 + int(share * (len(text) - 1))]).keys() <= value.keys()


@given(st.text())
def test_any_text_is_some_arguments(text: str) -> None:
    assert isinstance(read_arguments(text), dict)


def test_arguments_that_are_too_deep_are_text() -> None:
    deep = '{"a":' * 900 + "1" + "}" * 900
    assert read_arguments(deep) == {"arguments": deep}
    assert rendered(MODELS["object as JSON"], deep)


@pytest.mark.parametrize(
    ("mark", "written"),
    [
        (
            "<|tool_call_start|>",
            '<|tool_call_start|>[look(city="Gr\u00f6\u00dfe", n=[1, true], deep=True)]<|tool_call_end|>',
        ),
        (
            "<|tool_call|>",
            '<|tool_call|>[{"name": "look", "arguments": {"city": "Gr\u00f6\u00dfe", "n": [1, true], "deep": true}}]',
        ),
        (
            "",
            '<tool_call>\n{"name": "look", "arguments": {"city": "Gr\u00f6\u00dfe", "n": [1, true], "deep": true}}\n'
            "</tool_call>",
        ),
    ],
)
def test_calls_that_a_template_has_no_place_for_are_text_in_its_models_own_dialect(mark: str, written: str) -> None:
    source = "{{ tools }}{# " + mark + " #}" + TEMPLATE
    assert written in rendered(tiny_model(source), '{"city": "Gr\u00f6\u00dfe", "n": [1, true], "deep": true}')
