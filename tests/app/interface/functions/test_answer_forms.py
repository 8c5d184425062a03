"""Answers of a form that is not a schema of OpenAI's: what a request may say, and which outputs its grammar allows."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.interface.functions.requested import functions_of, grammar_of
from app.interface.request.errors import ApiError
from app.interface.thinking.marks import FAMILIES, Thought
from app.interface.wire.chat import ChatCompletionRequest
from app.messages.failures import ConstraintError
from app.messages.grammar import with_begun
from app.workers.constraints import Constraints
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.functions.constrained import lets_through
from tests.app.interface.thinking.harmony import NAMES
from tests.app.marked_tokens import MarkedTokens
from tests.app.service import http_app, http_client
from tests.app.tiny_model import EOS_ID, reference_tokenizer

MARKED = MarkedTokens((*NAMES, "<think>", "</think>"), True)
THOUGHT = Thought(FAMILIES[0], is_open=True, is_expected=True)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GBNF = 'root ::= "move " place # where\nplace ::= [a-h] [1-8] | "caf\\u00e9"'
LARK = 'start: "move " PLACE\nPLACE: /[a-h][1-8]/ | "café"'
REGEX = r"^\d{3}/[a-z]+$"
CHOICE = ["yes", "no", "not sure"]


@pytest.fixture(scope="module")
def constraints() -> Iterator[Constraints]:
    with MARKED.constraints() as made:
        yield made


def asked(**fields: Any) -> ChatCompletionRequest:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    return ChatCompletionRequest.model_validate(body | fields)


def written(thought: Thought | None = None, **fields: Any) -> str:
    request = asked(**fields)
    grammar = grammar_of(request, functions_of(request), MARKED.added, thought)
    assert grammar is not None
    return grammar.schema


def outputs(constraints: Constraints, grammar: str, *texts: str) -> list[bool]:
    """Whether each text may be a whole output."""
    return [lets_through(constraints, grammar, [*MARKED.encode(text), EOS_ID], MARKED.vocab_size) for text in texts]


MOVES = ("move a1", "move café", "move i1", "move", "a1", "move a1 ")
FORMS: list[tuple[dict[str, Any], tuple[str, ...], list[bool]]] = [
    ({"grammar": GBNF}, MOVES, [True, True, False, False, False, False]),
    ({"guided_grammar": GBNF}, MOVES, [True, True, False, False, False, False]),
    ({"structured_outputs": {"grammar": LARK}}, MOVES, [True, True, False, False, False, False]),
    ({"response_format": {"type": "grammar", "grammar": LARK}}, MOVES, [True, True, False, False, False, False]),
    ({"grammar": f"%llguidance {{}}\n{LARK}"}, MOVES, [True, True, False, False, False, False]),
    ({"grammar": 'root ::= start+\nstart ::= "a" | "\\x62"'}, ("ab", "abc", ""), [True, False, False]),
    ({"guided_regex": REGEX}, ("123/ab", "12/ab", "123/"), [True, False, False]),
    ({"response_format": {"type": "regex", "regex": r"\d\/[/\\]"}}, ("1//", "1/\\", "1/"), [True, True, False]),
    ({"response_format": {"type": "regex", "pattern": "a\nb|"}}, ("a\nb", "", "ab"), [True, True, False]),
    ({"structured_outputs": {"regex": ""}}, ("", "a"), [True, False]),
    ({"guided_choice": CHOICE}, (*CHOICE, "not", "maybe"), [True, True, True, False, False]),
    ({"structured_outputs": {"choice": ['"\\\n', "<think>"]}}, ('"\\\n', "x"), [True, False]),
    ({"guided_json": SCHEMA}, ('{"a": 1}', '{"a":1}', "{}"), [True, False, False]),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, ('{"a": 1}', "{}"), [True, False]),
    ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, ('{"a":1}', '{"a": 1}'), [True, False]),
    ({"guided_json": SCHEMA, "guided_whitespace_pattern": "_*"}, ('{_"a":__1}', '{"a": 1}'), [True, False]),
    ({"structured_outputs": {"json_object": True}}, ('{"b": 1}', "[]"), [True, False]),
    ({"json_schema": SCHEMA}, ('{"a": 1}', "{}"), [True, False]),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, ('{"a": 1}', "{}"), [True, False]),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, ('{"a": 1}', "{}"), [True, False]),
]


@pytest.mark.parametrize(("fields", "texts", "are_allowed"), FORMS)
def test_only_answers_of_the_form_are_possible(
    constraints: Constraints, fields: dict[str, Any], texts: tuple[str, ...], are_allowed: list[bool]
) -> None:
    assert outputs(constraints, written(**fields), *texts) == are_allowed
    after = (f"hm</think>{text}" for text in texts)
    assert outputs(constraints, written(THOUGHT, **fields), *after) == are_allowed


def test_an_answer_of_a_form_beside_strict_calls(constraints: Constraints) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
    call, bad = ('{"name": "f", "arguments": {"' + name + '": 1}}' for name in "ab")
    for fields in ({"grammar": GBNF}, {"guided_regex": "move a1"}, {"guided_choice": ["move a1"]}):
        grammar = written(tools=[tool], **fields)
        texts = ("move a1", f"<tool_call>\n{call}\n</tool_call>", f"<tool_call>\n{bad}\n</tool_call>", "move i1")
        assert outputs(constraints, grammar, *texts) == [True, True, False, False]


def test_in_channels_the_form_is_the_final_messages(constraints: Constraints) -> None:
    channel = Thought(FAMILIES[-1], is_open=False, is_expected=True, marks_are_tokens=True)
    final = "<|channel|>final<|message|>"
    texts = (f"{final}yes", f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant{final}no", f"{final}maybe")
    assert outputs(constraints, written(channel, guided_choice=CHOICE), *texts) == [True, True, False]


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "contradict"),
        ({"response_format": {"type": "json_object"}, "grammar": GBNF}, "grammar", "contradict"),
        ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs.json_object", "contradict"),
        ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}, None, "JSON only"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "JSON only"),
        ({"guided_json": "{\n  a"}, "guided_json", "not valid JSON in line 2, column 3"),
        ({"guided_json": "[]"}, "guided_json", "should be a JSON schema"),
        ({"guided_regex": "a" * 65537}, "guided_regex", "65536 bytes"),
        ({"guided_choice": ["a" * 60000, "b" * 60000]}, "guided_choice", "65536 bytes"),
        ({"guided_regex": "a\\"}, "guided_regex", "escape"),
        ({"grammar": " "}, "grammar", "empty"),
        ({"grammar": f'%llguidance {{"no_forcing": true}}\n{LARK}'}, "grammar", "options"),
        ({"guided_regex": "a", "min_tokens": 2}, None, "min_tokens"),
    ],
)
def test_what_is_no_form(fields: dict[str, Any], param: str | None, reason: str) -> None:
    with pytest.raises(ApiError) as raised:
        written(**fields)
    assert raised.value.status == 400
    assert reason in raised.value.message
    assert param in (None, raised.value.param)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"grammar": 'root ::= "a"\n\nx ::= ("b"'}, "line 3: expected ')'"),
        ({"grammar": 'root ::= "a" x'}, "rule 'x' not found"),
        ({"grammar": 'x ::= "a"'}, "no rule named root"),
        ({"grammar": "root ::= " + "(" * 900}, "nested too deeply"),
        ({"grammar": 'root ::= "a\\'}, "ends too early"),
        ({"grammar": 'start: "a"\nx: ("b"\n'}, "line 2, column 8: expected token ')'"),
        ({"grammar": 'start: "a" b'}, 'line 1, column 8: unknown name: "b"'),
        ({"grammar": "start: /a(/"}, "line 1, column 8: invalid regular expression: unclosed group"),
        ({"grammar": "start: " + "(" * 900}, "nested"),
        (
            {"grammar": "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(5000))},
            "more than 1000 rules and brackets",
        ),
        (
            {"grammar": "root ::= a0\n" + "".join(f"a{i} ::= a{i + 1}\n" for i in range(3000))},
            "more than 1000 rules and brackets",
        ),
        ({"grammar": "start: " + "".join(f"{'(' * 9}A{i}{')' * 9}\nA{i}: " for i in range(500))}, "and brackets"),
        ({"grammar": "start: start"}, "nothing can follow it"),
        ({"guided_regex": "a(b"}, "invalid regular expression: unclosed group"),
        ({"guided_regex": r"(?=a)b"}, "look-around"),
        ({"guided_regex": "(" * 20000 + ")" * 20000}, "nest"),
        ({"guided_regex": "a{2}[^\\x00-\\U0010ffff]"}, "nothing can follow it"),
    ],
)
@pytest.mark.parametrize("thought", [None, THOUGHT], ids=["alone", "after a thought"])
def test_a_grammar_is_refused_in_one_sentence(
    constraints: Constraints, form: dict[str, Any], reason: str, thought: Thought | None
) -> None:
    with pytest.raises(ConstraintError, match="The grammar can't be followed") as raised:
        constraints.compile(written(thought, **form))
    assert reason in raised.value.reason
    assert "\n" not in raised.value.reason


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
async def test_each_endpoint_takes_them(path: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "chat/completions": {"messages": [{"role": "user", "content": "hi"}], "guided_regex": "a"},
        "completions": {"prompt": "hi", "guided_regex": "a"},
        "responses": {"input": "hi", "text": {"format": {"type": "regex", "regex": "a"}}},
    }
    worker = FakeWorker(lambda _: deltas(reference_tokenizer().encode("a").ids))
    async with http_client(http_app(worker.generate)) as client:
        response = await client.post(f"/v1/{path}", json={"model": "tiny"} | bodies[path])
    assert response.status_code == 200, response.text
    assert worker.requests[0].grammar == "%llguidance {}\nstart: /a/\n"


@pytest.mark.parametrize("opening", ["(", '("y" | '])
@pytest.mark.parametrize("name", ["a", "A"])
def test_a_grammar_as_deep_as_it_may_be_is_followed(constraints: Constraints, opening: str, name: str) -> None:
    rules = "".join(f"{name}{i}: {opening * 24}{name}{i + 1}{')' * 24}\n" for i in range(39))
    assert outputs(constraints, written(grammar=f'start: {name}0\n{rules}{name}39: "x"\n'), "x", "z") == [True, False]


@pytest.mark.parametrize(
    ("fields", "begun", "rest", "is_allowed"),
    [
        ({"guided_choice": CHOICE}, "no", "t sure", True),
        ({"guided_choice": CHOICE}, "no", "", True),
        ({"guided_choice": CHOICE}, "yes", "", True),
        ({"guided_choice": CHOICE}, "no", "pe", False),
        ({"guided_json": SCHEMA}, '{"a": ', "12}", True),
        ({"guided_json": SCHEMA}, '{"a": ', '{"a": 12}', False),
        ({"grammar": GBNF}, "move ca", "fé", True),
        ({"grammar": GBNF}, "move caf", "e", False),
    ],
)
def test_an_answer_that_has_begun_goes_on_in_its_form(
    constraints: Constraints, fields: dict[str, Any], begun: str, rest: str, is_allowed: bool
) -> None:
    assert outputs(constraints, with_begun(written(**fields), begun), rest) == [is_allowed]


def test_an_answer_that_has_begun_otherwise_is_refused(constraints: Constraints) -> None:
    with pytest.raises(ConstraintError, match="does not follow its form"):
        constraints.compile(with_begun(written(guided_choice=CHOICE), "maybe"))


async def test_the_worker_refuses_by_the_clients_field() -> None:
    error = ConstraintError("The grammar can't be followed", "it is odd")
    async with http_client(http_app(FakeWorker(lambda _: [error]).generate)) as client:
        body = {"model": "tiny", "prompt": "hi", "structured_outputs": {"grammar": GBNF}}
        response = await client.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "structured_outputs.grammar"
    assert response.json()["error"]["message"] == "The grammar can't be followed: it is odd"
