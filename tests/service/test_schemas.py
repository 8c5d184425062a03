"""Outputs that are held to a schema or grammar, by the real model and sampler: whatever is drawn, whole ones are valid.

That a mask lets through only what a schema allows is in `tests/app/workers/test_constraints.py`.
"""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.service.running import RunningService
from tests.sizes import FULL

PLACE = {"type": "object", "properties": {"street": {"type": "string", "maxLength": 12}, "number": {"type": "integer"}}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "nothing said": {},
    "object": {"type": "object"},
    "bounds": {"type": "integer", "minimum": -7, "maximum": 1000},
    "number": {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5},
    "enum": {"enum": ["red", 3, None, {"a": [1]}]},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,4}$"},
    "date": {"type": "string", "format": "date"},
    "optional": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 10},
            "age": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "likes": {"type": "string", "enum": ["red", "blue"]},
            "place": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        },
        "required": ["name", "likes"],
        "additionalProperties": False,
        "$defs": {"Place": PLACE},
    },
    "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5},
    "tuple": {"type": "array", "prefixItems": [{"const": "x"}, {"type": "integer"}], "items": False, "minItems": 2},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
                },
                "required": ["value"],
                "additionalProperties": False,
            }
        },
    },
    "any language": {"type": "object", "properties": {"größe": {"const": "日本語 👩\n\"'\\"}}, "required": ["größe"]},
}
MOST_TOKENS = 120
SEEDS = range(4 if FULL else 1)
DRAWS: list[dict[str, Any]] = [{"temperature": 0}, *({"temperature": 1.5, "seed": seed} for seed in SEEDS)]


def form_of(schema: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    return {"messages": [{"role": "user", "content": "Tell me about a place."}], "response_format": form}


def call_of(schema: dict[str, Any], choice: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": schema, "strict": True}
    asked = {
        "messages": [{"role": "user", "content": "Call it."}],
        "tools": [{"type": "function", "function": function}],
    }
    return asked | {"tool_choice": choice}


NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize("way", ["answer", "required", "named"])
def test_whole_outputs_are_valid(service: RunningService, way: str) -> None:
    def ask(wish: tuple[str, dict[str, Any]]) -> bool:
        schema = SCHEMAS[wish[0]]
        body = form_of(schema) if way == "answer" else call_of(schema, NAMED if way == "named" else "required")
        body |= {"model": service.model, "max_tokens": MOST_TOKENS} | wish[1]
        answer = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=300)
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        message = choice["message"]
        texts = [call["function"]["arguments"] for call in message.get("tool_calls") or []]
        if choice["finish_reason"] == "length":
            texts = texts[:-1]  # of several calls only the last one can be cut off
        elif way == "answer":
            texts = [message["content"]]
        assert choice["finish_reason"] in (("stop", "length") if way == "answer" else ("tool_calls", "length"))
        assert way == "answer" or not (message.get("content") or "")
        for text in texts:
            jsonschema.validate(json.loads(text), schema)
        return bool(choice["finish_reason"] != "length")

    names = [name for name in SCHEMAS if way == "answer" or SCHEMAS[name].get("type") == "object"]
    with ThreadPoolExecutor(2) as threads:
        whole = list(threads.map(ask, [(name, draw) for name in names for draw in DRAWS]))
    assert sum(whole) > len(whole) / 2


GBNF = 'root ::= item ("," item){0,2}\nitem ::= [a-z]{1,6} "=" [0-9]{1,3}'
ITEMS = "[a-z]{1,6}=[0-9]{1,3}(,[a-z]{1,6}=[0-9]{1,3}){0,2}"
FORMS: list[tuple[dict[str, Any], str]] = [
    ({"grammar": GBNF}, ITEMS),
    ({"structured_outputs": {"grammar": f"start: /{ITEMS}/"}}, ITEMS),
    ({"structured_outputs": {"regex": "(red|blue) [0-9]{2}é"}}, "(red|blue) [0-9]{2}é"),
    ({"guided_choice": ["yes", "no", "not at all"]}, "yes|no|not at all"),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_whole_answers_follow_a_grammar(service: RunningService, draw: dict[str, Any]) -> None:
    question = {"messages": [{"role": "user", "content": "Tell me about a place."}]}
    for fields, pattern in FORMS:
        for path, asked in (("chat/completions", question), ("completions", {"prompt": "It is "})):
            body = {"model": service.model, "max_tokens": MOST_TOKENS} | asked | fields | draw
            answer = httpx.post(f"{service.url}/v1/{path}", json=body, timeout=300)
            assert answer.status_code == 200, answer.text
            (choice,) = answer.json()["choices"]
            text = choice["text"] if path == "completions" else choice["message"]["content"]
            assert choice["finish_reason"] == "stop"
            assert re.fullmatch(pattern, text), text
    begun = [*question["messages"], {"role": "assistant", "content": "blue 4"}]
    goes_on = {"messages": begun, "continue_final_message": True, "echo": True, **FORMS[2][0]}
    body = {"model": service.model, "max_tokens": MOST_TOKENS} | goes_on | draw
    answer = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    assert re.fullmatch("blue 4[0-9]é", answer.json()["choices"][0]["message"]["content"])


def test_a_schema_that_can_not_be_followed_is_the_clients_matter_and_not_the_logs(service: RunningService) -> None:
    before = len(service.log.read_text())
    body = form_of({"type": "string", "pattern": "(?=a)b"}) | {"model": service.model}
    answer = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format.json_schema.schema")
    time.sleep(3)  # workers' lines come through Ray
    said = service.log.read_text()[before:]
    assert "Traceback" not in said
    assert "ConstraintError" not in said
