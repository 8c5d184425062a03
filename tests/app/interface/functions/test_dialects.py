"""Each dialect's mark, parser and grammar rules belong together."""

import pytest

from app.interface.functions.call_grammar import call_grammar
from app.interface.functions.call_parser import CallParser
from app.interface.functions.dialect import CallableFunction, Dialect
from app.interface.functions.dialects import DIALECTS, HERMES, SPECIAL_TOKENS, grammar_dialects, parsed_dialects
from app.interface.functions.listed import GRANITE, LFM

CALL = '{"name": "add", "arguments": {"a": 1}}'
WRITTEN = {
    "hermes": [f"<tool_call>\n{CALL}\n</tool_call>", HERMES.call_text("add", '{"a": 1}')],
    "mistral": [f"[TOOL_CALLS][{CALL}]", '[TOOL_CALLS]add{"a": 1}', '[TOOL_CALLS]add[CALL_ID]abc[ARGS]{"a": 1}'],
    "qwen": ["<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"],
    "glm": [
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
    ],
    "gemma": ["<|tool_call>call:add{a:1}<tool_call|>", '<|tool_call>call:add{"a": 1}<tool_call|>'],
    "lfm": [
        "<|tool_call_start|>[add(a=1)]<|tool_call_end|>",
        f"<|tool_call_start|>[{CALL}]<|tool_call_end|>",
        LFM.calls_text([("add", {"a": 1})]),
    ],
    "granite": [
        f"<|tool_call|>[{CALL}]",
        f"<|tool_call|>[{CALL}]<|/tool_call|>",
        GRANITE.calls_text([("add", '{"a": 1}')]),
    ],
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
    spoken = [dialect, *(other for other in DIALECTS if other.mark != dialect.mark)]
    grammar = call_grammar([CallableFunction("add", {"type": "object"})], {}, parallel=True, dialects=spoken)
    for rule in (dialect.name, f"mark_{dialect.name}", f"found_{dialect.name}"):
        assert f"\n{rule}: " in grammar
    marks = [mark for mark in (dialect.mark, dialect.end_mark, *dialect.inner_marks) if mark is not None]
    assert set(marks) <= set(SPECIAL_TOKENS)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (None, "hermes"),
        ("{{ tools }}<tool_call>", "hermes"),
        ("<tool_call>\n<function=f>\n<parameter=a>", "qwen"),
        ("<tool_call>{{ name }}\n<arg_key>", "glm"),
    ],
)
def test_a_grammar_has_the_dialect_of_the_models_template(template: str | None, name: str) -> None:
    dialects = grammar_dialects(template)
    assert dialects[0].name == name
    assert {dialect.mark for dialect in dialects} == {dialect.mark for dialect in parsed_dialects(template)}
    assert len({dialect.mark for dialect in dialects}) == len(dialects)


def test_a_mark_that_is_a_special_token_may_come_as_that_token() -> None:
    for dialect in DIALECTS:
        add = CallableFunction("add", {"type": "object"})
        grammar = call_grammar([add], {7: dialect.mark}, parallel=False, dialects=[dialect])
        assert f"mark_{dialect.name}: " in grammar
        assert "<[7]>" in grammar
