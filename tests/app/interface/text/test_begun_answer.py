"""Answers that a client has begun: their prompts, and what the model adds to them."""

from typing import Any

import pytest

from app.interface.text.chat_model import ChatModel
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.thinking.families import (
    MARK_IDS,
    OFF,
    OPENING,
    SWITCHED,
    Asked,
    encoded,
    thinking_model,
)
from tests.app.interface.thinking.harmony import NAMES
from tests.app.interface.thinking.harmony import TEMPLATE as HARMONY
from tests.app.marked_tokens import MarkedTokens
from tests.app.service import http_app
from tests.app.tiny_model import EOS_ID, TEMPLATE, tiny_model

QUESTION = {"role": "user", "content": "Is it?"}
OPENED = "<|im_start|>user\nIs it?<|im_end|>\n<|im_start|>assistant\n"
F: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


class Begun(Asked):
    """A service whose model goes on with this text."""

    def __init__(self, more: str = " more", model: ChatModel | None = None, ids: list[int] | None = None) -> None:
        self.model = model or tiny_model()
        self.worker = FakeWorker(lambda _: deltas(encoded(more, has_tokens=False) if ids is None else ids))
        self.app = http_app(self.worker.generate, model=self.model)

    async def goes_on(self, begun: dict[str, Any] | str, **fields: Any) -> Any:
        message = {"content": begun} if isinstance(begun, str) else begun
        messages = [QUESTION, {"role": "assistant"} | message]
        fields = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False} | fields
        return (await self.chat(**fields))["choices"][0]["message"]

    @property
    def prompt(self) -> str:
        return self.model.tokenizer.text(self.worker.requests[-1].prompt_token_ids)


@pytest.mark.parametrize(
    ("template", "begun", "end"),
    [
        (TEMPLATE, {"content": "Yes, "}, "Yes, "),
        (TEMPLATE, {"content": [{"type": "text", "text": "\n Yes"}]}, "\n Yes"),
        (TEMPLATE, {"content": ""}, ""),
        (TEMPLATE, {"content": "Yes", "reasoning_content": "hm"}, "Yes"),
        (SWITCHED, {"content": "Yes"}, "<think>\n\n</think>\n\nYes"),
        (SWITCHED, {"content": None, "reasoning_content": "hm, "}, "<think>\nhm, "),
        (SWITCHED, {"content": "<think>\nhm, "}, "<think>\nhm, "),
        (SWITCHED, {"content": "Yes", "reasoning_content": "hm"}, "<think>\nhm\n</think>\n\nYes"),
        (SWITCHED, {"content": "<think>hm</think>Yes"}, "<think>\nhm\n</think>\n\nYes"),
        (OPENING, {"content": "Yes"}, "<think>\n\n</think>\n\nYes"),
        (OPENING, {"content": None, "reasoning_content": "hm"}, "<think>\nhm"),
        (OPENING, {"content": "Yes", "reasoning_content": "hm"}, "<think>\nhm\n</think>\n\nYes"),
        (OFF, {"content": "Yes"}, "</think>Yes"),
        (OFF, {"content": None, "reasoning_content": "hm"}, "<think>\nhm"),
    ],
)
async def test_the_prompt_ends_with_what_was_begun(template: str, begun: dict[str, Any], end: str) -> None:
    service = Begun(model=thinking_model(template))
    await service.goes_on(begun)
    assert service.prompt == OPENED + end


@pytest.mark.parametrize(
    ("begun", "end"),
    [
        ({"content": "Yes"}, "<|channel|>final<|message|>Yes"),
        ({"content": "", "reasoning_content": "hm"}, "<|channel|>analysis<|message|>hm"),
        (
            {"content": "Yes", "reasoning_content": "hm"},
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes",
        ),
    ],
)
async def test_an_answer_in_channels(begun: dict[str, Any], end: str) -> None:
    marked = MarkedTokens(NAMES, True)
    service = Begun(model=marked.model(HARMONY), ids=marked.encode("!<|end|><|start|>assistant<|channel|>final"))
    service.worker = FakeWorker(
        lambda _: deltas(marked.encode(" more<|end|><|start|>assistant<|channel|>final<|message|>It is.<|return|>"))
    )
    service.app = http_app(service.worker.generate, model=service.model)
    message = await service.goes_on(begun, response_format=None if begun["content"] else {"type": "json_object"})
    prompt = service.worker.requests[-1].prompt_token_ids
    assert list(prompt[-len(marked.encode(end)) :]) == marked.encode(end)
    if begun["content"]:
        assert "reasoning_content" not in message
        assert message["content"] == " more\n\nIt is."
    else:
        assert (message["reasoning_content"], message["content"]) == (" more", "It is.")
        assert "start: body_to_end again before*" in (service.worker.requests[-1].grammar or "")


async def test_what_was_begun_has_no_control_tokens() -> None:
    model = thinking_model(SWITCHED, tokens=True)
    service = Begun(model=model)
    for begun in ("a<|im_end|>", "<|im_", "b<think>", {"content": "Yes", "reasoning_content": "x</think>y<|im_end|"}):
        await service.goes_on(begun)
        written = service.worker.requests[-1].prompt_token_ids
        await service.goes_on({"content": "Yes", "reasoning_content": "hm"} if isinstance(begun, dict) else "Yes")
        harmless = service.worker.requests[-1].prompt_token_ids
        control = {EOS_ID, *MARK_IDS}
        assert [token for token in written if token in control] == [token for token in harmless if token in control]


@pytest.mark.parametrize("template", [TEMPLATE, SWITCHED, OPENING])
async def test_only_the_rest_is_the_answer(template: str) -> None:
    service = Begun(" it <think>is</think>.", thinking_model(template))
    message = await service.goes_on("Yes,")
    assert message["content"] == " it <think>is</think>."
    assert "reasoning_content" not in message
    message = await service.goes_on("Yes,", echo=True)
    assert message["content"] == "Yes, it <think>is</think>."


async def test_a_thought_goes_on_where_it_was() -> None:
    for more in (" hm\n</think>\n\nYes", "\n hm</think>Yes"):
        message = await Begun(more, thinking_model()).goes_on({"content": None, "reasoning_content": "Hm,"})
        assert (message["reasoning_content"], message["content"]) == (more.partition("</")[0].rstrip(), "Yes")


async def test_chunks_begin_with_what_was_begun() -> None:
    service = Begun()
    messages = [QUESTION, {"role": "assistant", "content": "Yes"}]
    chunks = await service.chunks(messages=messages, continue_final_message=True, echo=True)
    texts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
    assert "".join(text or "" for text in texts) == "Yes more"


async def test_calls_after_a_text_that_was_begun() -> None:
    message = await Begun(f" I will.\n{CALL}").goes_on("Yes,", tools=[F])
    assert message["tool_calls"][0]["function"]["name"] == "f"
    message = await Begun('{"name": "f", "arguments": {}}').goes_on("So: ", tools=[F])
    assert message["content"] == '{"name": "f", "arguments": {}}'


STRICT: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}


@pytest.mark.parametrize("fields", [{"response_format": {"type": "json_object"}}, STRICT])
async def test_a_form_holds_what_was_begun_and_what_follows(fields: dict[str, Any]) -> None:
    service = Begun(model=thinking_model())
    await service.goes_on('{"a"', **fields)
    first, _, rest = (service.worker.requests[-1].grammar or "").partition("\n")
    assert first == '%begun "{\\"a\\""'
    await service.chat(enable_thinking=False, **fields)
    assert rest == service.worker.requests[-1].grammar


async def test_the_oldest_turns_are_left_out_before_it() -> None:
    service = Begun(model=tiny_model(context_tokens=256))
    turns = [QUESTION, {"role": "assistant", "content": "word " * 40}] * 4
    messages = [*turns, QUESTION, {"role": "assistant", "content": "Yes, "}]
    await service.goes_on("", messages=messages, truncation="auto")
    assert service.prompt.endswith(OPENED + "Yes, ")
    assert service.prompt.count("Is it?") < 5


async def test_an_answer_that_is_not_opened() -> None:
    service = Begun()
    await service.chat(messages=[QUESTION], add_generation_prompt=False)
    assert service.prompt == OPENED.removesuffix("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("last", "fields", "param"),
    [
        ({"role": "user", "content": "x"}, {}, "messages[1].role"),
        ({"tool_calls": [{"id": "1", "function": {"name": "f"}}]}, {}, "messages[1].tool_calls"),
        ({"content": "x"}, {"add_generation_prompt": True}, "add_generation_prompt"),
        ({"content": "x"}, {"continue_final_message": False, "echo": True}, "echo"),
        ({"content": "x"}, {"tools": [F], "tool_choice": "required"}, "tool_choice"),
        ({"reasoning_content": "x"}, {}, "messages[1].reasoning_content"),
    ],
)
async def test_what_can_not_go_on(last: dict[str, Any], fields: dict[str, Any], param: str) -> None:
    messages = [QUESTION, {"role": "assistant"} | last]
    body = {"model": "tiny", "messages": messages, "continue_final_message": True} | fields
    response = await Begun().post("/v1/chat/completions", body, status=400)
    assert response.json()["error"]["param"] == param
