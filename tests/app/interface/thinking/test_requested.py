"""How much a model should think, in its template's variables, and other variables from the request."""

from typing import Any

import orjson
import pytest

from app.interface.generate.planning.chat import template_options
from app.interface.request.errors import ApiError
from app.interface.thinking.requested import TemplateOptions, nearest_effort, thinking_variables
from app.interface.wire.chat import ChatCompletionRequest, Message
from app.interface.wire.parse import parse
from app.interface.wire.template_variables import MAX_VARIABLE_BYTES, MAX_VARIABLES
from tests.app.interface.thinking.families import EFFORT, EITHER, OFF, OPENING, SWITCHED, thinking_model
from tests.app.tiny_model import EOS_ID, tiny_model

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def end_of(template: str, **fields: Any) -> str:
    """The end of the prompt of a request with these fields."""
    model = thinking_model(template)
    request = parse(ChatCompletionRequest, orjson.dumps(CHAT | fields))
    options = template_options(request, model.thoughts.default)
    text = model.tokenizer.text(model.chat_prompt(request.messages, options=options))
    assert model.tokenizer.text(model.conversation(request.messages, options=options).token_ids) == text
    return text


@pytest.mark.parametrize(
    ("template", "fields", "end"),
    [
        (SWITCHED, {}, "assistant\n"),
        (SWITCHED, {"reasoning_effort": "none"}, "<think>\n\n</think>\n\n"),
        (SWITCHED, {"reasoning_effort": "low"}, "assistant\n"),
        (SWITCHED, {"enable_thinking": False}, "</think>\n\n"),
        (SWITCHED, {"enable_thinking": True, "reasoning_effort": "none"}, "assistant\n"),
        (SWITCHED, {"chat_template_kwargs": {"enable_thinking": False}}, "</think>\n\n"),
        (SWITCHED, {"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False}, "assistant\n"),
        (OFF, {}, "</think>"),
        (OFF, {"reasoning_effort": "none"}, "</think>"),
        (OFF, {"reasoning_effort": "minimal"}, "<think>"),
        (OFF, {"chat_template_kwargs": {"thinking": True}}, "<think>"),
        (OPENING, {"reasoning_effort": "none"}, "<think>"),
    ],
)
def test_a_switch(template: str, fields: dict[str, Any], end: str) -> None:
    assert end_of(template, **fields).endswith(end)


@pytest.mark.parametrize(
    ("template", "fields", "start"),
    [
        (EFFORT, {}, "Reasoning: medium\n"),
        (EFFORT, {"reasoning_effort": "high"}, "Reasoning: high\n"),
        (EFFORT, {"reasoning_effort": "minimal"}, "Reasoning: low\n"),
        (EFFORT, {"reasoning_effort": "xhigh"}, "Reasoning: high\n"),
        (EFFORT, {"reasoning_effort": "none"}, "Reasoning: low\n"),
        (EFFORT, {"enable_thinking": False}, "Reasoning: low\n"),
        (EFFORT, {"chat_template_kwargs": {"reasoning_effort": "any"}}, "Reasoning: any\n"),
        (EITHER, {"reasoning_effort": "medium"}, "[MODEL_SETTINGS]high"),
        (EITHER, {"reasoning_effort": "minimal"}, "[MODEL_SETTINGS]high"),
        (EITHER, {"reasoning_effort": "none"}, "[MODEL_SETTINGS]none"),
        (EITHER, {}, "[MODEL_SETTINGS]none"),
        (EITHER, {"enable_thinking": True}, "[MODEL_SETTINGS]high"),
        (EITHER, {"enable_thinking": False}, "[MODEL_SETTINGS]none"),
        (EITHER, {"thinking_budget": 7}, "[MODEL_SETTINGS]high"),
    ],
)
def test_an_effort_is_the_nearest_that_the_template_takes(template: str, fields: dict[str, Any], start: str) -> None:
    assert end_of(template, **fields).startswith(start)


def test_nearest() -> None:
    assert nearest_effort("high", ()) == "high"
    assert nearest_effort("medium", ("low", "high")) == "low"
    assert nearest_effort("minimal", ("none",)) == "none"
    assert thinking_variables(TemplateOptions(), ("low",)) == {}


def test_a_template_that_knows_none_of_it_is_as_it_was() -> None:
    model = tiny_model()
    options = TemplateOptions("high", thinks=True, variables={"thinking": True, "other": 1})
    assert model.chat_prompt([Message(role="user", content="x")], options=options) == model.chat_prompt(
        [Message(role="user", content="x")]
    )


@pytest.mark.parametrize(
    "variables",
    [
        {"messages": []},
        {"tools": []},
        {"documents": []},
        {"bos_token": "x"},
        {"add_generation_prompt": False},
        {"raise_exception": "x"},
        {"namespace": 1},
        {"no name": 1},
        {"x" * 65: 1},
        {f"x{number}": 1 for number in range(MAX_VARIABLES + 1)},
        {"x": "x" * MAX_VARIABLE_BYTES},
        {"x": [[[[[[[[[1]]]]]]]]]},
        [],
        "x",
    ],
)
def test_variables_that_are_not_a_users_are_refused(variables: object) -> None:
    with pytest.raises(ApiError) as caught:
        parse(ChatCompletionRequest, orjson.dumps(CHAT | {"chat_template_kwargs": variables}))
    assert caught.value.status == 400
    assert (caught.value.param or "").startswith("chat_template_kwargs")


def test_variables_write_no_control_token() -> None:
    template = "{{ persona }}{{ extra.text }}{% for key in extra %}{{ key }}{% endfor %}{{ messages[0].content }}"
    options = TemplateOptions(variables={"persona": "<|im_end|>", "extra": {"text": "<|im_end|>", "<|im_end|>": 1}})
    model = tiny_model(template)
    token_ids = model.chat_prompt([Message(role="user", content="x")], options=options)
    assert EOS_ID not in token_ids
    assert model.tokenizer.text(token_ids) == "<|im_end|><|im_end|>text<|im_end|>x"


def test_a_value_that_breaks_the_template_is_a_refusal() -> None:
    model = tiny_model("{{ persona.upper() }}{{ messages[0].content }}")
    with pytest.raises(ApiError) as caught:
        model.chat_prompt([Message(role="user", content="x")], options=TemplateOptions(variables={"persona": 1}))
    assert caught.value.status == 400


@pytest.mark.parametrize("tokens", [None, False, True])
@pytest.mark.parametrize(
    "answer",
    [
        {"content": "Yes", "reasoning_content": "hm"},
        {"content": "Yes", "reasoning": "hm"},
        {"content": "<think>\nhm\n</think>\n\nYes"},
    ],
)
def test_the_template_gets_earlier_thoughts(tokens: bool | None, answer: dict[str, Any]) -> None:
    model = thinking_model(SWITCHED, tokens=tokens)
    asked = [Message(role="user", content=text) for text in ("Is it?", "So?")]
    said = [asked[0], Message.model_validate({"role": "assistant", **answer}), asked[1]]
    text = model.tokenizer.text(model.chat_prompt(said))
    assert "<|im_start|>assistant\n<think>\nhm\n</think>\n\nYes<|im_end|>" in text


def test_a_template_without_thoughts_gets_answers_as_they_are() -> None:
    text = "<think>hm</think>Yes"
    model = tiny_model()
    said = [Message(role="user", content="x"), Message(role="assistant", content=text, reasoning_content="other")]
    prompt = model.tokenizer.text(model.chat_prompt(said))
    assert text in prompt
    assert "other" not in prompt


@pytest.mark.parametrize("tokens", [False, True])
def test_a_user_can_not_open_a_thought(tokens: bool) -> None:
    model = thinking_model("{{ messages[0].content }}{# <think> #}", tokens=tokens)
    token_ids = model.chat_prompt([Message(role="user", content="x <think>")])
    assert model.tokenizer.text(token_ids) == "x <think>"
    assert not set(token_ids) & set(range(model.vocab_size - 2, model.vocab_size))
