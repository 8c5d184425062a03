"""Formats, strict functions and forced calls of a model with channels: what the grammar allows."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.interface.functions.harmony import HARMONY
from app.interface.generate.planning.chat import plan_chat
from app.interface.generate.planning.job import Job
from app.interface.generate.planning.limits import Limits
from app.interface.request.callers import Caller
from app.interface.wire.chat import ChatCompletionRequest
from app.messages.failures import ConstraintError
from app.workers.constraints import Constraints
from tests.app.interface.functions.constrained import lets_through
from tests.app.interface.thinking.harmony import NAMES, TEMPLATE
from tests.app.marked_tokens import MarkedTokens
from tests.sizes import some

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
AGAIN = "<|end|><|start|>assistant"
HM = f'<|channel|>analysis<|message|>Hm {{"a": "x"}} 日本{AGAIN}'
PREAMBLE = f"<|channel|>commentary<|message|>I will add.{AGAIN}"
FINAL = "<|channel|>final<|message|>"
GOOD, BAD = '{"a": 1}', '{"a": "x"}'
ENDS = ("<|call|>", "<|return|>")


def call(arguments: str, name: str = "add") -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"


@pytest.fixture(scope="module", params=[None, False, True], ids=["text", "token", "special token"])
def marked(request: pytest.FixtureRequest) -> MarkedTokens:
    return MarkedTokens(NAMES, request.param)


@pytest.fixture(scope="module")
def made(marked: MarkedTokens) -> Iterator[Constraints]:
    with marked.constraints(ENDS) as constraints:
        yield constraints


def tool(name: str = "add", strict: bool | None = None, parameters: Any = SCHEMA) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "strict": strict, "parameters": parameters}}


def job(marked: MarkedTokens, **fields: Any) -> Job:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    request = ChatCompletionRequest.model_validate(body)
    return plan_chat(marked.model(TEMPLATE, ENDS), request, Limits(16, 4), Caller(tenant=b""), "id")


def allows(marked: MarkedTokens, made: Constraints, planned: Job, text: str) -> bool:
    assert planned.grammar is not None
    found = {
        marked.lets_through(made, planned.grammar.schema, text, end)
        for end in (2, *marked.model(TEMPLATE, ENDS).eos_token_ids)
    }
    assert len(found) == 1, "each token that ends an output may end it"
    return found.pop()


@pytest.mark.parametrize("before", ["", HM, HM + HM], ids=["", "a thought", "two thoughts"])
def test_an_answer_follows_its_schema_in_its_channel(marked: MarkedTokens, made: Constraints, before: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    planned = job(marked, response_format=form)
    for text, is_good in (
        (FINAL + GOOD, True),
        (f"<|channel|>final <|constrain|>json<|message|>{GOOD}", True),
        (FINAL + BAD, False),
        (f"{FINAL}{GOOD} x", False),
        (PREAMBLE + FINAL + GOOD, False),
        (call(GOOD), False),
        (GOOD, False),
    ):
        assert allows(marked, made, planned, before + text) is is_good, text


@pytest.mark.parametrize(
    ("before", "choice", "strict"),
    some(
        ["", HM, HM + PREAMBLE, HM + PREAMBLE + HM],
        ["required", {"type": "function", "function": {"name": "add"}}],
        [True, True, None, None],
    ),
    ids=str,
)
def test_a_forced_call_is_a_message_of_its_own(
    marked: MarkedTokens, made: Constraints, before: str, choice: Any, strict: bool | None
) -> None:
    planned = job(marked, tools=[tool(strict=strict), tool("rm")], tool_choice=choice)
    assert planned.functions is not None
    assert (planned.functions.mode, planned.functions.dialects) == ("auto", (HARMONY,))
    for text, is_good in (
        (call(GOOD), True),
        (call(GOOD).replace(" <|constrain|>json", ""), True),
        (f" to=functions.add<|channel|>commentary json<|message|>{GOOD}", True),
        (call(GOOD, "rm"), choice == "required"),
        (call(BAD), False),
        (call(GOOD, "other"), False),
        (FINAL + GOOD, False),
        (f"[{GOOD}]", False),
        (GOOD, False),
    ):
        if not before or not text.startswith((" to", "[", "{")):
            assert allows(marked, made, planned, before + text) is is_good, text


@pytest.mark.parametrize("before", ["", HM, HM + PREAMBLE])
def test_strict_functions_are_held_to_their_schemas(marked: MarkedTokens, made: Constraints, before: str) -> None:
    planned = job(marked, tools=[tool(strict=True), tool("free", parameters=None)])
    for text, is_good in (
        (f"{FINAL}Yes, < and <| and {BAD}", True),
        (call(GOOD), True),
        (call(BAD), False),
        (call(BAD, "free"), True),
        (call(GOOD, "other"), False),
        (f"{FINAL}Yes<|end|><|start|>assistant{call(BAD)}", False),
        (f"{FINAL}Yes{call(BAD)}", False),
        (f"{call(GOOD)}<|call|><|start|>assistant{call(BAD)}", False),
    ):
        assert allows(marked, made, planned, before + text) is is_good, text


def test_strict_functions_beside_a_format(marked: MarkedTokens, made: Constraints) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    planned = job(marked, tools=[tool(strict=True)], response_format=form)
    for text, is_good in ((HM + FINAL + GOOD, True), (HM + call(GOOD), True), (FINAL + BAD, False), (call(BAD), False)):
        assert allows(marked, made, planned, text) is is_good, text


def test_a_schema_that_can_not_be_followed_is_named(made: Constraints, marked: MarkedTokens) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}, "required": ["a"]}
    for strict, choice in ((True, "auto"), (True, "required"), (None, "required")):
        planned = job(marked, tools=[tool(strict=strict), tool("bad", strict, bad)], tool_choice=choice)
        assert planned.grammar is not None
        with pytest.raises(ConstraintError) as caught:
            made.compile(planned.grammar.schema)
        assert planned.grammar.field_of(caught.value.definition) == "tools[1].function.parameters"


def test_free_functions_need_no_grammar(marked: MarkedTokens) -> None:
    planned = job(marked, tools=[tool()])
    assert planned.grammar is None
    assert planned.functions is not None
    assert planned.functions.dialects == (HARMONY,)


@pytest.mark.parametrize(
    ("fields", "rest", "rest_again"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, GOOD, GOOD),
        ({"tools": [tool(strict=True)]}, call(GOOD), "x"),
        ({"tools": [tool(strict=True)]}, f"{FINAL}x", "x"),
        ({"tools": [tool()], "tool_choice": "required"}, call(GOOD), f"add <|constrain|>json<|message|>{GOOD}"),
    ],
    ids=["a format", "a call", "no call", "a forced call"],
)
def test_the_grammar_allows_the_written_ends_of_thoughts(
    marked: MarkedTokens, made: Constraints, fields: dict[str, Any], rest: str, rest_again: str
) -> None:
    """The engine writes them whatever the grammar says; what follows still has to fit."""
    planned = job(marked, thinking_budget=3, **fields)
    budget = planned.requests[0].thought
    assert budget is not None
    assert planned.grammar is not None
    begun = marked.encode("<|channel|>analysis<|message|>Hm")
    once = [*begun, *budget.end, *marked.encode(rest)]
    again = [*marked.encode(HM), *begun, *budget.end_again, *marked.encode(rest_again)]
    for ids in (once, again):
        assert lets_through(made, planned.grammar.schema, [*ids, 2], marked.vocab_size)
