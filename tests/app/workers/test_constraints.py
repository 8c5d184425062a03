"""Schemas on the tiny tokenizer: which tokens their masks allow, and hostile schemas."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import llguidance
import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.model_runner import TokenConstraint
from app.messages.failures import ConstraintError
from app.workers.constraints import MAX_CACHED, Constraints
from tests.app.interface.functions.constrained import lets_through
from tests.app.marked_tokens import MarkedTokens
from tests.app.tiny_model import EOS_ID, reference_tokenizer, tokenizer_json
from tests.sizes import FULL

VOCAB_SIZE = len(tokenizer_json()["model"]["vocab"])
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def deep_schema() -> dict[str, Any]:
    """As deep as 64 KiB allow, over references: it exhausts a stack of 16 MiB."""
    definitions: dict[str, Any] = {"150": {"type": "integer"}}
    for number in range(150):
        schema: dict[str, Any] = {"$ref": f"#/$defs/{number + 1}"}
        for _ in range(28):
            schema = {"anyOf": [schema]}
        definitions[str(number)] = schema
    return {"$ref": "#/$defs/0", "$defs": definitions}


@pytest.fixture(scope="module")
def constraints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Constraints]:
    folder = tmp_path_factory.mktemp("model")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    config = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 512, "eos_token_id": EOS_ID}
    (folder / "config.json").write_text(json.dumps(config))
    made = Constraints(folder, VOCAB_SIZE)
    yield made
    made.close()


def allowed(constraint: TokenConstraint) -> NDArray[np.int64]:
    mask = np.full(-(-VOCAB_SIZE // 32), 0xFFFFFFFF, np.uint32)
    constraint.fill_mask(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB_SIZE])


def random_output(constraint: TokenConstraint, seed: int, most: int = 300) -> str:
    random = Random(seed)
    token_ids: list[int] = []
    for _ in range(most):
        token = int(random.choice(allowed(constraint).tolist()))
        constraint.accept(token)
        assert constraint.error is None
        if token == EOS_ID:
            return reference_tokenizer().decode(token_ids)
        token_ids.append(token)
    raise AssertionError("no end")


@pytest.mark.parametrize("seed", range(10))
async def test_sampled_outputs_follow_the_schema(constraints: Constraints, seed: int) -> None:
    value = json.loads(random_output(await constraints.make(json.dumps(PERSON)), seed))
    assert value.keys() == {"name", "age"}
    assert isinstance(value["name"], str)
    assert 0 <= value["age"] <= 99


async def test_two_outputs_of_one_schema_are_independent(constraints: Constraints) -> None:
    first, second = [await constraints.make('{"enum": ["ab", "cd"]}') for _ in range(2)]
    first.accept(reference_tokenizer().encode('"').ids[0])
    assert allowed(first).tolist() != allowed(second).tolist()


def test_a_copy_for_drafts_goes_on_alone(constraints: Constraints) -> None:
    constraint = constraints.compile('{"enum": ["ab", "cd"], "title": "copied"}')
    ids = reference_tokenizer().encode('"ab').ids
    for begun in range(len(ids)):
        assert constraint.follows([*ids[begun:], ids[0], ids[0]]) == len(ids) - begun + 1, "one quotation mark"
        ahead = constraint.copy()
        assert allowed(ahead).tolist() == allowed(constraint).tolist()
        ahead.accept(EOS_ID)
        assert ahead.error is not None
        assert constraint.error is None
        constraint.accept(ids[begun])
    assert not any(compiled.failed for compiled in constraints._cache.values())


def test_what_a_schema_forces_is_known(constraints: Constraints) -> None:
    constraint = constraints.compile('{"const": "abba", "title": "forced"}')
    said, tokenizer = [], reference_tokenizer()
    while forced := constraint.forced():
        said += list(forced)
        for token in forced:
            constraint.accept(token)
    assert constraint.error is None
    assert '"abba"'.startswith(tokenizer.decode(said))
    assert len(tokenizer.decode(said)) >= 4


async def test_the_first_mask_was_made_with_the_schema(constraints: Constraints) -> None:
    """In the compiler's thread: the engine's thread only copies it."""
    schema = '{"enum": ["ab", "cd"], "title": "first mask"}'
    first, second = [await constraints.make(schema) for _ in range(2)]
    matcher = llguidance.LLMatcher(constraints._tokenizer.result(), llguidance.grammar_from("json_schema", schema))
    expected = np.zeros(-(-VOCAB_SIZE // 32), np.uint32)
    matcher.unsafe_compute_mask_ptr(expected.ctypes.data, expected.nbytes)
    first._matcher = None  # type: ignore[attr-defined]
    for constraint in (first, second):
        made = np.full_like(expected, 0xFFFFFFFF)
        constraint.fill_mask(made)
        assert made.tolist() == expected.tolist()
    quote = reference_tokenizer().encode('"').ids[0]
    second.accept(quote)
    matcher.consume_token(quote)
    matcher.unsafe_compute_mask_ptr(expected.ctypes.data, expected.nbytes)
    second.fill_mask(made)
    assert made.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "(?=a)b"},
        {"$ref": "http://example.com/x"},
        {"not": {}},
        False,
        {"type": "integer", "minimum": 10, "maximum": 9},
        {"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {}}} for j in range(8)]} for i in range(8)]},
        [],
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
)
async def test_schemas_that_cannot_be_compiled_are_refused(constraints: Constraints, schema: Any) -> None:
    with pytest.raises(ConstraintError, match="can't be followed") as error:
        await constraints.make(json.dumps(schema))
    assert "non-verbose" not in error.value.reason
    if isinstance(schema, dict) and "$ref" in schema and "$defs" in schema:
        assert "leads back to itself" in error.value.reason


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^(a+)+$"},
        {"type": "string", "pattern": "^(.*a.{20}b){50}$"},
        {"type": "string", "minLength": 100_000, "maxLength": 1_000_000},
        {"type": "array", "minItems": 10_000, "items": {"type": "string"}},
        {"$defs": {"n": {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
        {"anyOf": [{"type": "object", "properties": {f"k{j}": {"type": "null"} for j in range(i)}} for i in range(60)]},
        deep_schema(),
    ],
)  # fmt: skip
async def test_hostile_schemas_are_compiled_or_refused(constraints: Constraints, schema: Any) -> None:
    try:
        constraint = await constraints.make(json.dumps(schema))
    except ConstraintError:
        return
    random = Random(0)
    for _ in range(40):
        tokens = allowed(constraint).tolist()
        if constraint.error is not None or not tokens:
            return
        constraint.accept(int(random.choice(tokens)))


async def test_the_wrong_definition_is_named(constraints: Constraints) -> None:
    definitions = {"f0": {"type": "string"}, "f1": {"type": "string", "pattern": "(?=a)b"}, "f2": {}}
    schema = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in definitions], "$defs": definitions}
    with pytest.raises(ConstraintError, match="can't be followed") as caught:
        await constraints.make(json.dumps(schema))
    assert caught.value.definition == "f1"
    assert "(?=a)" in caught.value.message_for_client
    assert "(?=a)" not in str(caught.value)  # Ray Serve logs what a worker raises
    assert pickle.loads(pickle.dumps(caught.value)).message_for_client == caught.value.message_for_client
    assert pickle.loads(pickle.dumps(caught.value)).definition == "f1"


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))) << 10


def walk(constraint: TokenConstraint, seed: int, most: int) -> None:
    random = Random(seed)
    for _ in range(most):
        tokens = allowed(constraint).tolist()
        if constraint.error is not None or not tokens:
            return
        constraint.accept(int(random.choice(tokens)))


async def test_memory_of_many_schemas_comes_back(constraints: Constraints) -> None:
    async def follow(begin: int, end: int) -> None:
        for i in range(begin, end):
            pattern = f"^(.*a.{{{10 + i % 40}}}b){{50}}$" if i % 10 == 0 else f"^[a-z]+{i}$"
            schema = {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": pattern}}}
            walk(await constraints.make(json.dumps(schema | {"required": [f"p{i}"]})), i, 60)
            assert len(constraints._cache) <= MAX_CACHED

    count = 1000 if FULL else 250
    await follow(0, 200)
    before = anonymous_bytes()
    await follow(200, 200 + count)
    assert anonymous_bytes() - before < count * (64 << 10)


async def test_a_schema_that_became_too_complex_is_compiled_again(constraints: Constraints) -> None:
    schema = json.dumps({"type": "string", "pattern": "^(.*a.{40}b){50}$"})
    seen = False
    for seed in range(40):
        constraint = await constraints.make(schema)
        first = allowed(constraint)
        assert constraint.error is None
        assert len(first)
        walk(constraint, seed, 200)
        seen = seen or constraint.error is not None
    assert seen


@pytest.mark.parametrize("special", [False, True])
def test_names_of_control_tokens_in_constants_are_text(special: bool) -> None:
    """Where one text alone can follow, the tokenizer would choose the tokens of these names for it."""
    marked = MarkedTokens(("<tool_call>", "<|end|>"), special)
    text = '"a <tool_call> b <|end|>"'
    plain = MarkedTokens(marked.names, None)
    with marked.constraints() as made:
        for schema in ({"const": json.loads(text)}, {"enum": [json.loads(text), "c"]}, {"type": "string"}):
            token_ids = [*plain.encode(text), EOS_ID]
            assert lets_through(made, json.dumps(schema), token_ids, marked.vocab_size), schema
            as_tokens = [*marked.encode(text), EOS_ID]
            assert not lets_through(made, json.dumps(schema), as_tokens, marked.vocab_size), schema
