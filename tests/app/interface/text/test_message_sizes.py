"""The sizes of messages against what templates of many kinds write, and their number of tokens by hand."""

import pytest

from app.interface.text.chat_model import ChatModel
from app.interface.wire.chat import FunctionCall, Message, Part, TextPart, ToolCall
from app.interface.wire.tools import FunctionDefinition, Tool
from tests.app.interface.text.test_templates import TEMPLATES
from tests.app.tiny_model import tiny_model

pytestmark = pytest.mark.parity

TOOLS = [Tool(type="function", function=FunctionDefinition(name="look", description="Looks."))]
SYSTEM = Message(role="system", content="Be brief.")


def turn(number: int, *, with_call: bool) -> list[Message]:
    words = f"the quick brown fox {number} " * (1 + number % 3)
    call = ToolCall(id=f"call{number:05}", function=FunctionCall(name="look", arguments='{"city": "Paris"}'))
    step = [
        Message(role="assistant", content="", tool_calls=[call]),
        Message(role="tool", content=words, tool_call_id=call.id),
    ]
    said = [Message(role="user", content=words), *(step if with_call else []), Message(role="assistant", content=words)]
    return [one.model_copy(update={"name": "look"}) if one.role == "tool" else one for one in said]


@pytest.mark.parametrize("with_call", [False, True])
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_they_are_near_what_templates_write(template: str, with_call: bool) -> None:
    model = tiny_model(template, context_tokens=100_000)
    tools = TOOLS if with_call else []
    messages = [one for number in range(20) for one in turn(number, with_call=with_call)]
    shown = [SYSTEM, *messages, Message(role="user", content="And?")]
    counted = model.system_size([SYSTEM], tools) + sum(size.later for size in model.message_sizes(shown[1:]))
    written = len(model.chat_prompt(shown, tools))
    assert counted == pytest.approx(written, rel=0.15, abs=40)


def sized(model: ChatModel, message: Message) -> int:
    return model.message_sizes([message])[0].later


def test_a_text_has_the_tokens_of_its_parts_and_what_is_around_them() -> None:
    model = tiny_model()
    text = "The quick brown fox"
    parts: list[Part] = [TextPart(type="text", text="The quick"), TextPart(type="text", text="brown fox")]
    one, other = (Message(role="user", content=content) for content in (text, parts))
    around = sized(model, Message(role="user", content=""))
    assert 4 <= around <= 10
    assert sized(model, one) == around + len(model.raw_prompt(text))
    assert sized(model, other) == around + len(model.raw_prompt(text.replace("quick ", "quick\n")))


def test_a_text_that_can_not_fit_is_not_tokenized() -> None:
    model = tiny_model()
    text = "x" * (model.tokenizer.bytes.longest * model.context_tokens * 2)
    assert sized(model, Message(role="user", content=text)) >= 2 * model.context_tokens
