import random
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import pytest

from app.interface.generate.planning.chat import plan_chat
from app.interface.generate.planning.job import Job, LeftOut
from app.interface.generate.planning.kept_turns import KeptTurns, kept_turns, limit_of
from app.interface.generate.planning.limits import Limits
from app.interface.request.callers import Caller
from app.interface.request.errors import ApiError
from app.interface.text.chat_model import ChatModel
from app.interface.text.instructions import is_system
from app.interface.text.message_sizes import MessageSize
from app.interface.wire.chat import ChatCompletionRequest, FunctionCall, Message, ToolCall
from app.interface.wire.tools import FunctionDefinition, Tool
from tests.app.tiny_model import tiny_model

LIMIT = 100
SYSTEM = Message(role="system", content="s" * 10)
LIMITS = Limits(default_max_tokens=64, max_choices=4)
CALLER = Caller(b"")


def user(text: str) -> Message:
    return Message(role="user", content=text)


def answer(text: str, thought: str | None = None) -> Message:
    return Message(role="assistant", content=text, reasoning_content=thought)


def step(number: int, tokens: int = 20) -> list[Message]:
    call = ToolCall(id=f"c{number}", function=FunctionCall(name="f", arguments="{}"))
    return [
        Message(role="assistant", content="", tool_calls=[call]),
        Message(role="tool", content=f"{number}" * tokens, tool_call_id=f"c{number}"),
    ]


def texts(messages: Sequence[Message]) -> list[str]:
    return [f"{message.role[0]}:{str(message.content)[:1]}" for message in messages]


def kept(messages: Sequence[Message], limit: int = LIMIT) -> KeptTurns:
    """Every character of a message is a token; thoughts count only in the newest turn."""
    system = list(takewhile(is_system, messages))
    sizes = [
        MessageSize(len(one.content or "") + len(one.reasoning_content or ""), len(one.content or ""))
        for one in messages[len(system) :]
    ]
    return kept_turns(messages, sizes, limit - sum(len(one.content or "") for one in system))


def random_chat(chance: random.Random, turns: int) -> list[Message]:
    messages = [SYSTEM] if chance.random() < 0.5 else []
    for turn in range(turns):
        messages.append(user(f"{turn % 10}" * chance.randint(1, 30)))
        for number in range(chance.choice([0, 0, 0, 1, 5])):
            messages += step(number % 10, chance.randint(1, 30))
        messages.append(answer("a" * chance.randint(0, 30), "t" * chance.choice([0, 0, 25])))
    return messages


def asked(messages: Sequence[Message]) -> list[list[Message]]:
    """The conversations with which the model was asked."""
    return [list(messages[:i]) for i, message in enumerate(messages) if message.role == "assistant"]


@pytest.mark.parametrize("seed", range(100))
def test_a_longer_conversation_keeps_what_the_shorter_kept_but_for_the_oldest(seed: int) -> None:
    whole = random_chat(random.Random(seed), turns=30)
    place = {id(message): i for i, message in enumerate(whole)}
    before: list[int] = []
    cuts = 0
    for messages in asked(whole):
        now = kept(messages)
        places = [place[id(one)] for one in now.messages]
        system = [places.pop(0)] if whole[0] is SYSTEM else []
        assert system == ([0] if whole[0] is SYSTEM else [])
        question, rest = places[0], places[1:]
        assert whole[question].role == "user"
        assert rest == list(range(len(messages) - len(rest), len(messages))), "the end, all of it"
        assert not rest or rest[0] == question + 1 or whole[rest[0]].role == "assistant", "no result without its call"
        assert sum(one.role == "user" for one in whole[:question]) == now.left_out_turns
        new = [i for i in places if not before or i > before[-1]]
        old = places[: len(places) - len(new)]
        assert set(old) <= set(before), "nothing comes back"
        if old != before:
            cuts += 1
            tokens = [len(whole[i].content or "") for i in places]
            room = LIMIT - 10 * len(system)
            questions = [i for i in places if whole[i].role == "user"]
            assert sum(tokens) <= (room // 2 if len(questions) > 2 else room) or len(questions) == 1
        before = places
    assert cuts > 2


def test_a_conversation_within_the_limit_is_whole() -> None:
    whole = [SYSTEM, user("a" * 40), answer("b" * 40), user("c" * 10)]
    assert kept(whole).messages == whole
    assert kept(whole).left_out_turns == 0


def test_whole_turns_go_until_half_of_the_room_is_left() -> None:
    turns = [message for letter in "abcde" for message in (user(letter * 15), answer(letter.upper() * 10))]
    now = kept([SYSTEM, *turns[:7]])  # 10 + 3 * 25 + 15 fit
    assert now.left_out_turns == 0
    now = kept([SYSTEM, *turns[:9]])
    assert texts(now.messages) == ["s:s", "u:d", "a:D", "u:e"]
    assert now.left_out_turns == 3


def test_the_turn_before_the_newest_stays_as_long_as_it_fits() -> None:
    turns = [user("a" * 10), answer("A" * 10), user("b" * 10), answer("B" * 60)]
    assert texts(kept([SYSTEM, *turns, user("c" * 10)]).messages) == ["s:s", "u:b", "a:B", "u:c"]
    assert texts(kept([SYSTEM, *turns, user("c" * 21)]).messages) == ["s:s", "u:c"]


def test_of_the_newest_turn_the_oldest_steps_go_and_its_question_stays() -> None:
    steps = [message for number in range(1, 7) for message in step(number)]
    now = kept([SYSTEM, user("old"), answer("x"), user("question"), *steps])
    assert texts(now.messages) == ["s:s", "u:q", *[text for number in (5, 6) for text in ("a:", f"t:{number}")]]
    assert now.left_out_turns == 1


def test_a_turn_that_has_lost_steps_is_an_ordinary_one_later() -> None:
    steps = [message for number in range(1, 7) for message in step(number)]
    turn = [user("question"), *steps, answer("end")]
    assert texts(kept([SYSTEM, *turn, user("next")]).messages) == [
        "s:s", "u:q", "a:", "t:5", "a:", "t:6", "a:e", "u:n",
    ]  # fmt: skip
    assert texts(kept([SYSTEM, *turn, user("n" * 60)]).messages) == ["s:s", "u:n"]


def test_thoughts_count_while_the_template_shows_them() -> None:
    thought = "t" * 50
    turn = [user("q" * 10), Message(role="assistant", content="", reasoning_content=thought), *step(1, 10)]
    old = [user("o" * 15), answer("o")]
    assert kept([SYSTEM, *old, *turn]).left_out_turns == 0
    assert kept([SYSTEM, *old, *turn, *step(2, 10)]).left_out_turns == 1
    assert (
        kept([SYSTEM, user("o"), answer("o", thought), user("p"), answer("p", thought), user("q")]).left_out_turns == 0
    )


def test_what_comes_before_the_first_question_goes_with_it() -> None:
    greeting = answer("Hello, how can I help?")
    now = kept([greeting, user("a" * 40), answer("b" * 40), user("c" * 40)])
    assert texts(now.messages) == ["u:c"]
    assert now.left_out_turns == 1


def test_the_newest_question_stays_however_long() -> None:
    now = kept([SYSTEM, user("a"), answer("a"), user("b" * 200)])
    assert texts(now.messages) == ["s:s", "u:b"]
    assert now.is_shortest


def test_the_limit_leaves_room_for_an_answer() -> None:
    assert (limit_of(4096), limit_of(32768), limit_of(131072)) == (3072, 24576, 122880)


# --- with a template and a tokenizer

THINKING = """{% set ns = namespace(last=0) %}
{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last %}<think>
{{ m.reasoning_content }}
</think>
{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


def plan(model: ChatModel, messages: Sequence[Message], **fields: object) -> Job:
    values = {"model": "m", "truncation": "auto", **fields}
    request = ChatCompletionRequest(messages=list(messages), **values)  # type: ignore[arg-type]
    return plan_chat(model, request, LIMITS, CALLER, "id")


def words(chance: random.Random, most: int) -> str:
    return " ".join(
        chance.choice(["cat", "dog", "Paris", "the quick brown fox", "42"]) for _ in range(chance.randint(1, most))
    )


@pytest.mark.parametrize("template", [None, THINKING])
@pytest.mark.parametrize("seed", range(4))
def test_between_two_cuts_a_prompt_begins_with_the_one_before(seed: int, template: str | None) -> None:
    model = tiny_model() if template is None else tiny_model(template)
    chance, messages = random.Random(seed), [Message(role="system", content="Be brief.")]
    before: tuple[int, ...] = ()
    computed = new = cuts = left_out = 0
    for _ in range(60):
        messages.append(user(words(chance, 30)))
        job = plan(model, messages)
        (request,) = job.requests
        assert job.left_out is not None
        prompt, opening = request.prompt_token_ids, model.chat_prompt([user("x")])[-3:]
        assert list(prompt[-3:]) == opening
        assert len(prompt) <= limit_of(model.context_tokens) * 1.05
        same = next((i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), len(before))
        if job.left_out.turns == left_out:
            assert same >= len(before) - 3, "all but where the answer began"
        else:
            assert job.left_out.turns > left_out
            cuts += 1
        computed += len(prompt) - same
        new += model.message_sizes(messages[-1:])[0].later + model.message_sizes(messages[-2:-1])[0].later
        before, left_out = prompt, job.left_out.turns
        messages.append(answer(words(chance, 10), words(chance, 5) if template else None))
    assert cuts > 3
    half = limit_of(model.context_tokens) // 2
    assert computed <= new + half * (new / half + 1), "at most half a window for each half window of growth"


@pytest.mark.parametrize("template", [None, THINKING])
def test_sizes_are_near_what_the_template_writes(template: str | None) -> None:
    model = tiny_model(context_tokens=100_000) if template is None else tiny_model(template, context_tokens=100_000)
    chance = random.Random(5)
    tools = [Tool(type="function", function=FunctionDefinition(name="weather"))]
    messages = [Message(role="system", content="Be brief.")]
    for _ in range(30):
        call = ToolCall(id="c", function=FunctionCall(name="weather", arguments='{"city": "Paris"}'))
        thinking = Message(role="assistant", content="", tool_calls=[call], reasoning_content=words(chance, 20))
        result = Message(role="tool", content=words(chance, 20), tool_call_id="c")
        messages += [user(words(chance, 20)), thinking, result, answer(words(chance, 20))]
    for shown in (messages[:-1], [*messages, user("And?")]):
        last = max(i for i, one in enumerate(shown) if one.role == "user")
        sizes = model.message_sizes(shown[1:])
        counted = model.system_size(shown[:1], tools) + sum(
            size.in_newest_turn if i + 1 > last else size.later for i, size in enumerate(sizes)
        )
        assert counted == pytest.approx(len(model.chat_prompt(shown, tools)), rel=0.03, abs=33)


def test_a_question_that_is_too_long_alone_is_refused_with_both_numbers() -> None:
    with pytest.raises(ApiError) as raised:
        plan(tiny_model(), [user("a"), answer("b"), user("cat " * 600)])
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "messages")
    assert "512 tokens" in raised.value.message


def test_system_messages_alone_are_all_that_there_is() -> None:
    assert plan(tiny_model(), [Message(role="system", content="Greet the user.")]).left_out == LeftOut(0, 384)


def test_a_question_between_limit_and_context_is_answered() -> None:
    model = tiny_model()
    question = user("cat " * 100)
    while len(model.chat_prompt([question])) < limit_of(model.context_tokens) + 20:
        question = user(f"{question.content} cat")
    job = plan(model, [user("a"), answer("b"), question], max_tokens=500)
    assert job.left_out is not None
    assert job.left_out.turns == 1
    assert job.requests[0].max_new_tokens == model.context_tokens - job.prompt_tokens


def test_a_template_that_writes_more_than_was_measured_keeps_fewer_turns() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if loop.length > 6 %}{{ m.content * 4 }}{% endif %}\n"
        "{% endfor %}assistant:"
    )
    model = tiny_model(template)
    messages = [message for _ in range(30) for message in (user("cat " * 5), answer("dog"))]
    job = plan(model, [*messages, user("end")])
    assert job.prompt_tokens < model.context_tokens - 20


def test_of_a_long_chat_only_what_is_kept_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    rendered: list[int] = []
    whole = ChatModel._rendered

    def counted(self: ChatModel, messages: Sequence[Message], *given: Any, **options: Any) -> str:
        rendered.append(len(messages))
        return whole(self, messages, *given, **options)

    monkeypatch.setattr(ChatModel, "_rendered", counted)
    messages = [message for _ in range(3000) for message in (user("cat " * 5), answer("dog"))]
    plan(model, [*messages, user("end")])
    assert sum(rendered) < 100
