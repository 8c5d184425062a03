"""Strict functions with tool_choice auto: what the grammar allows, and which calls the parser finds in it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.interface.functions.call_grammar import call_grammar
from app.interface.functions.call_parser import CallParser
from app.interface.functions.dialect import CallableFunction, json_rule
from app.interface.functions.requested import functions_of, grammar_of
from app.interface.generate.planning.chat import plan_chat
from app.interface.generate.planning.limits import Limits
from app.interface.request.callers import Caller
from app.interface.request.errors import ApiError
from app.interface.wire.chat import ChatCompletionRequest
from app.messages.failures import ConstraintError
from app.workers.constraints import Constraints
from tests.app.interface.functions.constrained import lets_through
from tests.app.tiny_model import EOS_ID, reference_tokenizer, tiny_model, tokenizer_json

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/n"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"n": {"type": "integer"}},
}
FUNCTIONS = (CallableFunction("add", SCHEMA), CallableFunction("x.y-z", {"type": "object"}))
MARK = "<tool_call>"
MARK_ID = len(tokenizer_json()["model"]["vocab"])
GOOD = '{"name": "add", "arguments": {"a": 1}}'
BAD = GOOD.replace("1", '"x"')
CALL, BAD_CALL = (f"{MARK}\n{call}\n</tool_call>" for call in (GOOD, BAD))
Allows = Callable[[str, str], bool]


@pytest.fixture(scope="module", params=[False, True], ids=["text", "special token"])
def allows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Allows]:
    """Whether a grammar allows an output; in one vocabulary the mark is a special token."""
    folder, tokenizer = tmp_path_factory.mktemp("model"), tokenizer_json()
    if request.param:
        entry = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        tokenizer["added_tokens"].append({"id": MARK_ID, "content": MARK, **entry})
    config = {"vocab_size": MARK_ID + 1, "max_position_embeddings": 512, "eos_token_id": EOS_ID}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").write_text(json.dumps(config))
    made = Constraints(folder, MARK_ID + 1)

    def encoded(text: str) -> list[int]:
        first, *others = text.split(MARK) if request.param else [text]
        ids: list[int] = reference_tokenizer().encode(first).ids
        for other in others:
            ids += [MARK_ID, *reference_tokenizer().encode(other).ids]
        return ids

    def allowed(grammar: str, text: str) -> bool:
        return lets_through(made, grammar, [*encoded(text), EOS_ID], MARK_ID + 1)

    yield allowed
    made.close()


SPECIAL = {MARK_ID: MARK}


def grammar(special: bool, **options: Any) -> str:
    return call_grammar(FUNCTIONS, SPECIAL if special else {}, **{"parallel": True, **options})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("", 0),
        ("Hi, 日本", 0),
        (f"Hi {CALL}", 1),
        (f"{CALL}\n{CALL}", 2),
        (GOOD, 1),
        (f"{GOOD}; {GOOD}", 2),
        (f"<|python_tag|>{GOOD}", 1),
        (f"[TOOL_CALLS] [{GOOD}, {GOOD}]", 2),
        ('[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]x.y-z{"b": [1]}', 2),
        ('{"type": "function", "name": "add", "parameters": {"a": 2}}', 1),
        ('{"name": "x.y-z", "parameters": {"any": {"thing": null}}}', 1),
        ('{"name": "Bob", "arguments": []}', 0),
        ('{"arguments": {"b": 1}, "name": "add"}', 0),
        (f"\u2003{BAD}", 0),
    ],
)
def test_text_and_calls_that_follow_their_schemas_are_let_through(
    allows: Allows, request: pytest.FixtureRequest, text: str, calls: int
) -> None:
    assert allows(grammar("special" in request.node.name), text)
    for pieces in ([text], list(text)):
        parser = CallParser(["add", "x.y-z"], bare="strict")
        for piece in pieces:
            parser.feed(piece)
        parser.finish()
        assert parser.calls == calls


@pytest.mark.parametrize(
    "text",
    [
        BAD,
        BAD_CALL,
        f"Hi {BAD_CALL}",
        f"{CALL}\n{BAD}",
        f"{CALL} bye",
        f"{MARK} bye",
        f"<|python_tag|>{BAD}",
        f"[TOOL_CALLS][{GOOD}, {BAD}]",
        '[TOOL_CALLS]add[ARGS]{"a": 1.5}',
        '{"type": "function", "name": "add", "parameters": {}}',
        f"{MARK}{GOOD.replace('add', 'rm')}</tool_call>",
    ],
)
def test_a_call_against_its_schema_is_never_drawn(allows: Allows, request: pytest.FixtureRequest, text: str) -> None:
    assert not allows(grammar("special" in request.node.name), text)


def test_of_schemas_that_can_not_be_followed_the_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    config = {"vocab_size": MARK_ID, "max_position_embeddings": 512, "eos_token_id": EOS_ID}
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = Constraints(tmp_path, MARK_ID)
    functions = [*FUNCTIONS, CallableFunction("bad", {"type": "string", "pattern": "(?=a)b"})]
    with pytest.raises(ConstraintError, match="can't be followed") as caught:
        made.compile(call_grammar(functions, {}, parallel=True))
    made.close()
    assert caught.value.definition == "f2"


def test_one_call_only_and_answers_with_a_schema(allows: Allows, request: pytest.FixtureRequest) -> None:
    special = "special" in request.node.name
    one = grammar(special, parallel=False)
    assert allows(one, CALL)
    assert not allows(one, f"{CALL}\n{CALL}")
    answers = grammar(special, answer=json_rule(SCHEMA))
    assert [allows(answers, text) for text in ('{"a": 1}', CALL, BAD_CALL, "Hi", '{"b": 1}', GOOD)] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate(
        {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
    )


def tool(strict: bool | None, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "add", "strict": strict, "parameters": parameters or SCHEMA}}


def test_only_strict_functions_hold_an_output() -> None:
    request = chat(tools=[tool(True)])
    functions = functions_of(request)
    assert functions is not None
    assert functions.bare == "strict"
    made = grammar_of(request, functions)
    assert made is not None
    assert '"$ref":"#/$defs/n"' in made.schema
    assert made.field_of("f0") == "tools[0].function.parameters"
    for loose in (chat(tools=[tool(None)]), chat(tools=[tool(True)], tool_choice="none")):
        assert grammar_of(loose, functions_of(loose)) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [tool(True, enum=["x" * 70_000])]}, "tools[0].function.parameters"),
        ({"tools": [tool(True)], "ignore_eos": True}, "ignore_eos"),
        ({"tools": [tool(True)], "num_beams": 2}, "tools"),
    ],
)
def test_what_can_not_be_held_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        plan_chat(tiny_model(), chat(**fields), Limits(16, 4), Caller(tenant=b""), "id")
    assert (caught.value.status, caught.value.param) == (400, param)


PLAIN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMED, INVENTED = '{"a": 1}', '{"a": 1, "b": "new"}'


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("form", ["response_format", "tools"])
def test_no_field_is_made_up_unless_the_schema_says_so(allows: Allows, form: str, strict: bool) -> None:
    """The schema of an answer's format, or of a strict function's arguments; closed by default."""
    for schema, invents in ((PLAIN, False), (PLAIN | {"additionalProperties": True}, True)):
        if form == "tools":
            function = {"name": "f", "parameters": schema, "strict": True}
            request = chat(tools=[{"type": "function", "function": function}])
            outputs = [f'{{"name": "f", "arguments": {arguments}}}' for arguments in (NAMED, INVENTED)]
        else:
            format_ = {"name": "x", "schema": schema, "strict": strict}
            request = chat(response_format={"type": "json_schema", "json_schema": format_})
            outputs = [NAMED, INVENTED]
        made = grammar_of(request, functions_of(request))
        assert made is not None
        assert [allows(made.schema, output) for output in outputs] == [True, invents]
