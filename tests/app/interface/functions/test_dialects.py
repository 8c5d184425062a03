"""Each dialect's mark, parser and grammar rules belong together."""

import pytest

from app.interface.functions.call_grammar import CallableFunction, call_grammar
from app.interface.functions.call_parser import CallParser
from app.interface.functions.dialects import DIALECTS, HERMES, SPECIAL_TOKENS, Dialect

CALL = '{"name": "add", "arguments": {"a": 1}}'
WRITTEN = {
    "hermes": [f"<tool_call>\n{CALL}\n</tool_call>", HERMES.call_text("add", '{"a": 1}')],
    "mistral": [f"[TOOL_CALLS][{CALL}]", '[TOOL_CALLS]add{"a": 1}', '[TOOL_CALLS]add[CALL_ID]abc[ARGS]{"a": 1}'],
    "llama": [f"<|python_tag|>{CALL}", f"<|python_tag|>{CALL.replace('arguments', 'parameters')}"],
}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_dialect_is_parsed_and_has_its_rules(dialect: Dialect) -> None:
    for text in WRITTEN[dialect.name]:
        parser = CallParser(["add"])
        content, deltas = parser.feed(f"Well. {text}")
        assert content == "Well. "
        assert deltas[0].name == "add"
        assert "".join(delta.arguments for delta in deltas) == '{"a": 1}'
        assert parser.finish() == ("", [])
    grammar = call_grammar([CallableFunction("add", {"type": "object"})], {}, parallel=True)
    for rule in (dialect.name, f"mark_{dialect.name}", f"found_{dialect.name}"):
        assert f"\n{rule}: " in grammar
    marks = [mark for mark in (dialect.mark, dialect.end_mark, *dialect.inner_marks) if mark is not None]
    assert set(marks) <= set(SPECIAL_TOKENS)


def test_a_mark_that_is_a_special_token_may_come_as_that_token() -> None:
    for dialect in DIALECTS:
        grammar = call_grammar([CallableFunction("add", {"type": "object"})], {7: dialect.mark}, parallel=False)
        assert f"mark_{dialect.name}: " in grammar
        assert "<[7]>" in grammar
