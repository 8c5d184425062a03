from collections.abc import Sequence

import pytest

from app.interface.generate.planning.job import Job
from app.interface.generate.planning.truncation import newest_that_fit
from app.interface.request.errors import ApiError, context_length_exceeded
from app.interface.wire.chat import FunctionCall, Message, ToolCall
from app.messages.requests import GenerateRequest, SamplingParams

CONTEXT = 100
SYSTEM = Message(role="system", content="s" * 10)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def answer(text: str) -> Message:
    return Message(role="assistant", content=text)


def step(number: int) -> list[Message]:
    call = ToolCall(id=f"c{number}", function=FunctionCall(name="f", arguments="{}"))
    return [
        Message(role="assistant", content="", tool_calls=[call]),
        Message(role="tool", content=f"{number}" * 20, tool_call_id=f"c{number}"),
    ]


def texts(messages: Sequence[Message]) -> list[str]:
    return [f"{message.role[0]}:{str(message.content)[:1]}" for message in messages]


class Planner:
    """Counts every character of a message as a token."""

    def __init__(self) -> None:
        self.planned: list[Sequence[Message]] = []

    def __call__(self, messages: Sequence[Message]) -> Job:
        self.planned.append(messages)
        tokens = sum(len(str(message.content)) for message in messages)
        if tokens >= CONTEXT:
            raise context_length_exceeded(tokens, 1, CONTEXT, "messages")
        request = GenerateRequest(
            request_id="r",
            prompt_token_ids=(1,) * tokens,
            max_new_tokens=CONTEXT - tokens,
            sampling=SamplingParams(),
            tenant=b"",
        )
        return Job("r", (request,), prompt_tokens=tokens, stops=(), choices=1, starts_text=True)


def kept(messages: list[Message], wanted_tokens: int = 10) -> Sequence[Message]:
    planner = Planner()
    job = newest_that_fit(messages, planner, wanted_tokens)
    return next(each for each in planner.planned if sum(len(str(one.content)) for one in each) == job.prompt_tokens)


def test_a_conversation_that_fits_is_whole_and_planned_once() -> None:
    planner = Planner()
    newest_that_fit([SYSTEM, user("a" * 10)], planner, 10)
    assert len(planner.planned) == 1


def test_whole_turns_go_the_oldest_first() -> None:
    turns = [message for letter in "abcde" for message in (user(letter * 15), answer(letter.upper() * 10))]
    assert texts(kept([SYSTEM, *turns])) == ["s:s", "u:c", "a:C", "u:d", "a:D", "u:e", "a:E"]
    assert texts(kept([SYSTEM, *turns], wanted_tokens=30)) == ["s:s", "u:d", "a:D", "u:e", "a:E"]


def test_of_the_last_turn_the_oldest_steps_go_and_its_question_stays() -> None:
    steps = [message for number in range(1, 7) for message in step(number)]
    assert texts(kept([SYSTEM, user("old"), answer("x"), user("question"), *steps])) == [
        "s:s",
        "u:q",
        *[text for number in range(4, 7) for text in ("a:", f"t:{number}")],
    ]


def test_what_never_fits_is_refused() -> None:
    with pytest.raises(ApiError) as raised:
        kept([SYSTEM, user("a"), user("b" * 200)])
    assert raised.value.code == "context_length_exceeded"


def test_where_all_leave_too_little_room_the_shortest_is_answered() -> None:
    assert texts(kept([SYSTEM, user("a" * 50), answer("b" * 50), user("c" * 70)], wanted_tokens=50)) == ["s:s", "u:c"]


def test_a_conversation_of_thousands_is_planned_a_few_times() -> None:
    planner = Planner()
    newest_that_fit([message for _ in range(5000) for message in (user("a" * 5), answer("b" * 5))], planner, 10)
    assert len(planner.planned) <= 16


def test_another_refusal_is_the_answer() -> None:
    def refuse(messages: Sequence[Message]) -> Job:
        raise ApiError(400, "no", code="invalid_value")

    with pytest.raises(ApiError, match="no"):
        newest_that_fit([user("a"), user("b")], refuse, 1)
