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
from tests.kernels.test_weights import join, split
from tests.kernels.tiny_model import LLAMA, write_random_model

MAX_DEPTH = 32

SIZES = st.integers() | st.sampled_from([-1, 0, 1, 31, 32, 33, 64, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64])
NUMBERS = SIZES | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from(["F32", "U8", "yarn", "llama3"])
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
def config_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("fuzz") / "config", LLAMA, "sym_int4", 32)


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


@given(st.lists(FRAGMENTS, max_size=12).map("".join) | VALUES.map(json.dumps) | st.text(max_size=20))
@example("[" * MAX_DEPTH + "]" * MAX_DEPTH)
@example('"\\ud83d\\ude00"')
def test_the_reader_of_json_takes_what_python_takes(config_folder: Path, text: str) -> None:
    assume(not any("\ud800" <= character <= "\udfff" for character in text))
    (config_folder / "config.json").write_bytes(text.encode())
    with pytest.raises(_native.PackedFileError) as caught:
        loaded_or_raise(config_folder)
    reason = str(caught.value)
    assume("out of range at" not in reason)  # Python's numbers have no end
    assert ("config.json: JSON: " in reason) == refused_by_json(text), reason


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


CONFIG_KEYS = st.sampled_from([
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "max_position_embeddings", "rms_norm_eps", "rope_theta", "head_dim", "partial_rotary_factor", "sliding_window",
    "model_type", "tie_word_embeddings", "rope_scaling",
])  # fmt: skip
POSITIVE = st.floats(1e-300, 1e15) | st.integers(1, 2**40)
ROPE = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["linear", "dynamic", "llama3", "yarn"]), "factor": POSITIVE},
    optional=dict.fromkeys(
        (
            "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
            "attention_factor", "mscale", "mscale_all_dim", "rope_theta", "partial_rotary_factor",
        ),
        POSITIVE | NUMBERS,
    ),
)  # fmt: skip


@given(st.dictionaries(CONFIG_KEYS, VALUES | POSITIVE, max_size=3), st.none() | ROPE)
def test_a_configuration_with_any_value(
    config_folder: Path, changes: dict[str, Any], rope: dict[str, Any] | None
) -> None:
    config = {**LLAMA, **({} if rope is None else {"rope_scaling": rope}), **changes}
    (config_folder / "config.json").write_text(json.dumps(config))
    run(loaded(config_folder))
