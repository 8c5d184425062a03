"""Hostile text and headers, made by hypothesis: the native readers take or refuse them, and what loads also runs."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kernels import _native
from tests.kernels.test_description import DECODER, describe
from tests.kernels.test_weights import join, split
from tests.kernels.tiny_model import LLAMA, described_tensors, write_described, write_random_model

MAX_DEPTH = 32

SIZES = st.integers() | st.sampled_from([-1, 0, 1, 31, 32, 33, 64, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64])
NUMBERS = SIZES | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from(["F32", "U8", "layer", "sigmoid"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
)
FRAGMENTS = st.sampled_from(
    ["{", "}", "[", "]", ",", ":", '"', '"a"', "\\", "\\u", "\\ud83d", "\\ude00", "\\u00e9", "0", "01", "-", "1", ".",
     "e", "E+", "9" * 20, "true", "tru", "false", "null", " ", "\n", "\t", "\x00", "\x1f", "é", "{}", "[]"]
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("fuzz") / "model", LLAMA, "sym_int4", 32)


@pytest.fixture(scope="module")
def described_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "described"
    return write_described(folder, DECODER, {}, described_tensors(DECODER), "sym_int4")


def loaded(folder: Path) -> _native.Model | None:
    try:
        return _native.Model(
            str(folder), threads=1, kv_pages=2, max_sequences=1, max_step_tokens=8, max_context_tokens=64
        )
    except (_native.PackedFileError, ValueError):
        return None


def run(model: _native.Model | None) -> None:
    """One step of a prompt, with every position that the model could be asked for."""
    if model is None:
        return
    model.page_table[:] = [[0, 1]]
    arrays = ([1, 2, 3], [0, 40, 2**31 - 1], [0], [3], [0])
    model.logits(*(np.array(values, dtype=np.int32) for values in arrays))


def refused_by_json(text: str) -> bool:
    """Whether RFC 8259 has no such document, or one with a key twice, which the native reader refuses as well."""

    def no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("a key is there twice")
        return dict(pairs)

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no number")

    try:
        value = json.loads(text, object_pairs_hook=no_key_twice, parse_constant=refuse)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair can't be encoded
    except ValueError:
        return True
    return False


POSITIVE = st.floats(1e-300, 1e15) | st.integers(1, 2**40)


@given(st.lists(FRAGMENTS, max_size=12).map("".join) | VALUES.map(json.dumps) | st.text(max_size=20))
@example("[" * MAX_DEPTH + "]" * MAX_DEPTH)
@example('"\\ud83d\\ude00"')
def test_the_reader_of_json_takes_what_python_takes(described_folder: Path, text: str) -> None:
    assume(not any("\ud800" <= character <= "\udfff" for character in text))
    describe(described_folder, text)
    with pytest.raises(_native.PackedFileError) as caught:
        loaded_or_raise(described_folder)
    reason = str(caught.value)
    assume("out of range at" not in reason)  # Python's numbers have no end
    assert ("decoder: JSON: " in reason) == refused_by_json(text), reason


def loaded_or_raise(folder: Path) -> None:
    _native.Model(str(folder), threads=1, kv_pages=2, max_sequences=1, max_step_tokens=8, max_context_tokens=64)


@given(st.data())
def test_a_header_with_any_value_anywhere(folder: Path, data: st.DataObject) -> None:
    path = folder / "model.safetensors"
    original = path.read_bytes()
    header, content = split(folder)
    changed = copy.deepcopy(header)
    entry = changed[data.draw(st.sampled_from(sorted(changed)))]
    key = data.draw(st.sampled_from(sorted(entry)))
    if key == "matrices":
        matrices = json.loads(entry[key])
        matrix = matrices[data.draw(st.sampled_from(sorted(matrices)))]
        matrix[data.draw(st.sampled_from([*sorted(matrix), "table"]))] = data.draw(VALUES)
        entry[key] = json.dumps(matrices)
    elif isinstance(entry[key], list) and data.draw(st.booleans()):
        entry[key][data.draw(st.integers(0, len(entry[key]) - 1))] = data.draw(SIZES)
    else:
        entry[key] = data.draw(VALUES)
    try:
        join(folder, changed, content)
        run(loaded(folder))
    finally:
        path.write_bytes(original)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every entry of an object and its lists, as (the object or list, key or index)."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for key in keys for place in [(value, key), *places(value[key])]]


@given(st.data())
def test_a_description_with_any_value_anywhere(described_folder: Path, data: st.DataObject) -> None:
    """What is refused is refused by an error of ours, and what loads also runs."""
    description = json.loads(json.dumps(DECODER.to_dict()))
    for _ in range(data.draw(st.integers(1, 2))):
        container, key = data.draw(st.sampled_from(places(description)))
        container[key] = data.draw(VALUES | POSITIVE)
    describe(described_folder, json.dumps(description))
    run(loaded(described_folder))


ROPES = st.fixed_dictionaries(
    {"rotary_dim": st.just(16), "frequencies": st.lists(st.floats(0, 1e12), min_size=8, max_size=8)},
    optional={
        "attention_factor": st.floats(1e-12, 1e12),
        "dynamic": st.fixed_dictionaries(
            {"trained_positions": st.integers(1, 2**24)},
            optional={"theta": st.floats(1, 1e15), "factor": st.floats(1e-12, 1e12)},
        ),
    },
)


@given(ROPES)
def test_ropes_of_any_numbers_in_range_run(described_folder: Path, rope: dict[str, Any]) -> None:
    describe(described_folder, json.dumps({**DECODER.to_dict(), "ropes": [rope, *DECODER.to_dict()["ropes"][1:]]}))
    model = loaded(described_folder)
    assert model is not None
    run(model)
