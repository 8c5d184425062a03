"""A schema, or calls, after a thought: what the grammar allows, on the engine's own constraint."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.interface.functions.call_grammar import answer_grammar, call_grammar
from app.interface.functions.dialect import CallableFunction, json_rule
from app.interface.functions.requested import functions_of, grammar_of
from app.interface.thinking.marks import FAMILIES, Thought
from app.interface.wire.chat import ChatCompletionRequest
from app.messages.failures import ConstraintError
from app.workers.constraints import Constraints
from tests.app.interface.functions.constrained import lets_through
from tests.app.interface.thinking.families import MARK_IDS, MARKS, encoded, thinking_tokenizer
from tests.app.tiny_model import EOS_ID

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/n"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"n": {"type": "integer"}},
}
GOOD, BAD = '{"a": 1}', '{"a": "x"}'
CALL, BAD_CALL = (f'<tool_call>\n{{"name": "add", "arguments": {each}}}\n</tool_call>' for each in (GOOD, BAD))
OPEN, CLOSED = (Thought(FAMILIES[0], is_open, is_expected=True) for is_open in (True, False))
VOCABULARY = MARK_IDS[-1] + 1
Allows = Callable[[str, str], bool]


@pytest.fixture(scope="module", params=[None, False, True], ids=["text", "token", "special token"])
def tokens(request: pytest.FixtureRequest) -> bool | None:
    """The kinds of tokens that marks are in the vocabulary."""
    kind: bool | None = request.param
    return kind


@pytest.fixture(scope="module")
def added(tokens: bool | None) -> dict[int, str]:
    return dict(zip(MARK_IDS, MARKS, strict=True)) if tokens is not None else {}


@pytest.fixture(scope="module")
def made(tokens: bool | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Constraints]:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = thinking_tokenizer(is_special=bool(tokens))
    if tokens is None:
        tokenizer["added_tokens"] = [one for one in tokenizer["added_tokens"] if one["id"] not in MARK_IDS]
    config = {"vocab_size": VOCABULARY, "max_position_embeddings": 512, "eos_token_id": EOS_ID}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").write_text(json.dumps(config))
    constraints = Constraints(folder, VOCABULARY)
    yield constraints
    constraints.close()


@pytest.fixture
def allows(made: Constraints, tokens: bool | None) -> Allows:
    """Whether a grammar allows an output, its end included."""

    def allowed(grammar: str, text: str) -> bool:
        token_ids = [*encoded(text, has_tokens=tokens is not None), EOS_ID]
        return lets_through(made, grammar, token_ids, VOCABULARY)

    return allowed


@pytest.mark.parametrize(
    ("thought", "text", "is_allowed"),
    [
        (OPEN, f"hm, 日本 {BAD}\n</think>\n\n{GOOD}", True),
        (OPEN, f"</think>{GOOD}", True),
        (OPEN, f"<think>hm</think>{GOOD}", True),
        (OPEN, f"hm</think>\n\n{BAD}", False),
        (OPEN, f"hm</think>{GOOD} x", False),
        (OPEN, "hm", False),
        (OPEN, "hm</think>", False),
        (OPEN, GOOD, False),
        (CLOSED, f"<think>\nhm {BAD} < </thin\n</think>\n\n{GOOD}", True),
        (CLOSED, GOOD, True),
        (CLOSED, BAD, False),
        (CLOSED, f"hm</think>{GOOD}", False),
        (CLOSED, f"<think>hm</think>{BAD}", False),
        (CLOSED, "<think>hm</think>Yes", False),
    ],
)
def test_a_schema_begins_after_the_thought(
    allows: Allows, added: dict[int, str], thought: Thought, text: str, is_allowed: bool
) -> None:
    assert allows(answer_grammar(json_rule(SCHEMA), added, thought), text) is is_allowed


@pytest.mark.parametrize(
    ("thought", "text", "is_allowed"),
    [
        (OPEN, f"Should I {BAD_CALL}?\n</think>\n\nYes: {CALL}", True),
        (OPEN, "hm</think>\n\nYes", True),
        (OPEN, f"hm</think>{BAD_CALL}", False),
        (CLOSED, f"<think>\nShould I {BAD_CALL}?\n</think>\n\n{CALL}", True),
        (CLOSED, f"\n<think>{BAD_CALL}</think>{CALL}", True),
        (CLOSED, f"<think>hm</think>\n\nYes: {CALL}", True),
        (CLOSED, f"Yes: {CALL}", True),
        (CLOSED, "Yes, < is less", True),
        (CLOSED, f"<think>hm</think>{BAD_CALL}", False),
        (CLOSED, f"Yes {BAD_CALL}", False),
        (CLOSED, f"<b>{CALL}", True),
    ],
)
@pytest.mark.parametrize("answer", [False, True])
def test_a_call_of_a_strict_function_begins_after_the_thought(
    allows: Allows, added: dict[int, str], thought: Thought, text: str, is_allowed: bool, answer: bool
) -> None:
    grammar = call_grammar(
        [CallableFunction("add", SCHEMA)],
        added,
        parallel=True,
        answer=json_rule(SCHEMA) if answer else None,
        thought=thought,
    )
    if answer:  # then only the thought and the answer have text
        text = text.replace("Yes: ", "")
        is_allowed = is_allowed and not any(word in text.split("</think>")[-1] for word in ("Yes", "<b>"))
    assert allows(grammar, text) is is_allowed


def test_forced_calls_begin_after_the_thought(allows: Allows, added: dict[int, str]) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [tool], "tool_choice": "required"}
    request = ChatCompletionRequest.model_validate(body)
    grammar = grammar_of(request, functions_of(request), added, OPEN)
    assert grammar is not None
    calls, bad = (f'[{{"name": "add", "arguments": {each}}}]' for each in (GOOD, BAD))
    assert allows(grammar.schema, f"hm</think>{calls}")
    assert not allows(grammar.schema, f"hm</think>{bad}")


@pytest.mark.parametrize("count", [1, 2])
def test_a_schema_that_can_not_be_followed_is_named(made: Constraints, added: dict[int, str], count: int) -> None:
    bad = {"type": "object", "properties": {"a": {"pattern": "(", "type": "string"}}, "required": ["a"]}
    good = [{"type": "function", "function": {"name": f"f{i}", "parameters": SCHEMA}} for i in range(count - 1)]
    tools = [*good, {"type": "function", "function": {"name": "bad", "parameters": bad, "strict": True}}]
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": "required"}
    request = ChatCompletionRequest.model_validate(body)
    grammar = grammar_of(request, functions_of(request), added, OPEN)
    assert grammar is not None
    with pytest.raises(ConstraintError) as caught:
        made.compile(grammar.schema)
    assert grammar.field_of(caught.value.definition) == f"tools[{count - 1}].function.parameters"
