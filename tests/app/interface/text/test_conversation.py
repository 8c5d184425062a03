"""A conversation that may be longer than the context: its tokens, its system prompt, and how often each is computed."""

from typing import Any

import pytest
from tokenizers import Encoding

from app.interface.generate.planning.chat import plan_chat
from app.interface.generate.planning.limits import Limits
from app.interface.request.callers import Caller
from app.interface.text.chat_model import ChatModel
from app.interface.text.chat_template import ChatTemplate
from app.interface.text.model_tokenizer import ModelTokenizer
from app.interface.wire.attached import AttachedFile, FilePart
from app.interface.wire.chat import ChatCompletionRequest, Message, Part, TextPart
from tests.app.tiny_model import CONTEXT_TOKENS, TEMPLATE, tiny_model

SYSTEM = Message(role="system", content="Be brief.")
PARTS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}{% for part in message.content %}{{ part.text }}"
    "{% endfor %}<|im_end|>{% endfor %}"
)
STRIPPED = TEMPLATE.replace("message['content']", "message['content'] | trim")
SHOUTED = TEMPLATE.replace("message['content']", "message['content'] | upper")


@pytest.mark.parametrize("template", [TEMPLATE, PARTS, STRIPPED, SHOUTED])
@pytest.mark.parametrize("leading", [[], [SYSTEM], [SYSTEM, SYSTEM]])
@pytest.mark.parametrize("text", ["hi", " \n hi", "a", "<|im_end|>", "|>", "Be brief.", "Größe 🎉", "", " \n"])
def test_it_is_the_prompt_and_its_system_tokens(template: str, leading: list[Message], text: str) -> None:
    model = tiny_model(template)
    messages = [*leading, Message(role="user", content=text), Message(role="assistant", content="yes")]
    conversation = model.conversation(messages)
    assert conversation.token_ids == model.chat_prompt(messages)
    assert conversation.system_tokens == model._probed_system_tokens(leading, (), None)


@pytest.mark.parametrize("template", [TEMPLATE, PARTS, STRIPPED])
def test_files_before_the_first_question_are_shared(template: str) -> None:
    model = tiny_model(template)
    files: list[Part] = [
        FilePart(type="file", file=AttachedFile(filename=name, text="a </document><|im_end|>")) for name in ("x", "y")
    ]
    first, second = (
        model.conversation([SYSTEM, Message(role="user", content=[TextPart(type="text", text=text), *files])])
        for text in ("Why?", "Who?")
    )
    assert first.shared_tokens == second.shared_tokens
    assert first.token_ids[: first.shared_tokens] == second.token_ids[: second.shared_tokens]
    rest = model.tokenizer.text(first.token_ids[first.shared_tokens :])
    assert rest.strip().startswith("Why?")
    assert first.system_tokens < first.shared_tokens - 20


def test_system_messages_alone_are_all_of_it() -> None:
    conversation = tiny_model().conversation([SYSTEM])
    assert conversation.system_tokens == len(conversation.token_ids)


@pytest.mark.parametrize("turns", [0, 1, 20])
def test_it_is_rendered_and_tokenized_once(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(on_overflow="shift")
    calls = {"render": 0, "encode": 0}
    render, encode = ChatTemplate.render, ModelTokenizer.encode

    def counted_render(*arguments: Any, **options: Any) -> str:
        calls["render"] += 1
        return render(*arguments, **options)

    def counted_encode(*arguments: Any, **options: Any) -> Encoding:
        calls["encode"] += 1
        return encode(*arguments, **options)

    monkeypatch.setattr(ChatTemplate, "render", counted_render)
    monkeypatch.setattr(ModelTokenizer, "encode", counted_encode)
    said = [{"role": role, "content": "word " * 10} for _ in range(turns) for role in ("user", "assistant")]
    messages = [{"role": "system", "content": "Be brief."}, *said]
    request = ChatCompletionRequest.model_validate({"model": "m", "messages": messages})
    job = plan_chat(model, request, Limits(64, 4), Caller(tenant=b""), "id")
    window = job.requests[0].window
    assert window is not None
    assert window.tokens == CONTEXT_TOKENS
    # The other one is of the system prompt alone.
    assert calls == {"render": 2, "encode": 2}


def spelled(model: ChatModel, text: str) -> list[int]:
    """The text with one token per byte, which no tokenizer chooses by itself."""
    return [next(iter(model.raw_prompt(character))) for character in text]


@pytest.mark.parametrize("leading", [[], [SYSTEM]])
def test_a_known_answer_has_the_tokens_that_it_was_made_of(leading: list[Message]) -> None:
    model = tiny_model()
    said = [Message(role="user", content="hi"), Message(role="assistant", content="the answer")]
    asked = [*leading, *said, Message(role="user", content="the answer")]
    own = spelled(model, "the answer")
    plain = model.chat_prompt(asked)
    usual = model.raw_prompt("the answer")
    assert own != usual
    end = model.raw_prompt("<|im_end|>")
    known = model.with_known_answers({"the answer": [*own, *end]})
    prompt = known.chat_prompt(asked)
    assert model.tokenizer.text(prompt) == model.tokenizer.text(plain)
    assert prompt == known.conversation(asked).token_ids
    # The prompt of the answer, its own tokens, then the rest as the tokenizer encodes it.
    before = model.chat_prompt([*leading, said[0]])
    assert prompt[: len(before) + len(own)] == before + own
    assert prompt[len(before) + len(own) :] == plain[len(before) + len(usual) :]
    assert known.conversation(asked).system_tokens == model.conversation(asked).system_tokens
    assert model.chat_prompt(asked) == plain, "the model itself knows nothing"


@pytest.mark.parametrize("answers", [{"the answer": [1, 2, 3]}, {"another": [5]}, {"": [5]}, {"the answer": []}])
def test_tokens_that_do_not_spell_an_answer_are_not_used(answers: dict[str, list[int]]) -> None:
    model = tiny_model()
    asked = [Message(role="user", content="hi"), Message(role="assistant", content="the answer")]
    assert model.with_known_answers(answers).chat_prompt(asked) == model.chat_prompt(asked)


def test_two_known_answers_and_one_that_is_not() -> None:
    model = tiny_model()
    contents = ["one two", "hello", "three four"]
    asked = [
        message
        for content in contents
        for message in (Message(role="user", content="hi"), Message(role="assistant", content=content))
    ]
    known = {content: spelled(model, content) for content in (contents[0], contents[2])}
    prompt = model.with_known_answers(known).chat_prompt(asked)
    assert model.tokenizer.text(prompt) == model.tokenizer.text(model.chat_prompt(asked))
    for token_ids in known.values():
        assert any(prompt[at : at + len(token_ids)] == token_ids for at in range(len(prompt)))
