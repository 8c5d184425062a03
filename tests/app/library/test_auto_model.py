"""transformers' calls on the native engine: conversion on first use, ids of any kind, streaming, options, refusals."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quant
from quant import AutoModelForCausalLM
from quant.conversion.convert import convert
from quant.errors import QuantError
from quant.packed.native_model import NativeModel
from tests.quant.checkpoints import CONFIG, random_tensors, write_hf_folder

PROMPT = [5, 9, 40, 41]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf_folder(tmp_path_factory.mktemp("auto") / "tiny", random_tensors(CONFIG, seed=4))


@pytest.fixture(scope="module")
def packed(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("auto-packed") / "tiny"
    convert(checkpoint, out, qtype="sym_int4", group_size=32, method="rtn", progress=False)
    return out


@pytest.fixture(scope="module")
def model(packed: Path) -> AutoModelForCausalLM:
    return AutoModelForCausalLM.from_pretrained(packed, threads=1, context_tokens=128)


class Streamer:
    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.ended = 0

    def put(self, value: Any) -> None:
        assert self.ended == 0
        self.seen.append((value[0] if len(value.shape) > 1 else value).tolist())

    def end(self) -> None:
        self.ended += 1


def greedy(packed: Path, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    with NativeModel(packed, context_tokens=128, threads=1) as native:
        for _ in range(count):
            logits = np.concatenate([part for _, part in native.logits(ids)])
            ids.append(int(logits[-1].argmax()))
    return ids


def test_greedy_output_and_streaming(packed: Path, model: AutoModelForCausalLM) -> None:
    streamer = Streamer()
    output = model.generate([PROMPT], streamer=streamer, max_new_tokens=6, eos_token_id=[])
    assert output == [greedy(packed, PROMPT, 6)]
    assert streamer.seen == [PROMPT, *([token] for token in output[0][4:])]
    assert streamer.ended == 1


def test_the_output_is_of_the_inputs_kind(model: AutoModelForCausalLM) -> None:
    options: dict[str, Any] = {"max_new_tokens": 3, "eos_token_id": []}
    expected = model.generate(PROMPT, **options)
    array = model.generate(np.array([PROMPT]), **options)
    assert isinstance(array, np.ndarray)
    assert array.tolist() == expected


def test_an_end_token_is_the_last_one(model: AutoModelForCausalLM) -> None:
    (whole,) = model.generate(PROMPT, max_new_tokens=8, eos_token_id=[])
    end = whole[6]
    (output,) = model.generate(PROMPT, max_new_tokens=8, eos_token_id=end)
    assert output == whole[: whole.index(end, len(PROMPT)) + 1]


def test_sampling_is_seeded_and_options_count(model: AutoModelForCausalLM) -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": []}

    def sampled(**more: Any) -> Any:
        return model.generate(PROMPT, do_sample=True, seed=3, **options, **more)

    assert sampled(temperature=2.0) == sampled(temperature=2.0)
    assert sampled(temperature=2.0, top_k=0) != sampled(temperature=0.1)
    assert sampled(top_k=1) == model.generate(PROMPT, **options)
    (penalized,) = model.generate(PROMPT, repetition_penalty=1e6, **options)
    assert len(set(penalized)) == len(penalized)


def test_the_cache_is_a_matter_of_time_only(packed: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(packed, threads=1, context_tokens=128)
    prompt = [5, 9, 40, 41] * 20
    options: dict[str, Any] = {"max_new_tokens": 3, "eos_token_id": []}
    first = model.generate(prompt, **options)
    before = model._engine.statistics()
    assert model.generate(prompt, use_cache=False, **options) == first
    between = model._engine.statistics()
    assert (between.cached_tokens, between.computed_tokens) == (0, before.computed_tokens + 82)
    assert model.generate(prompt, **options) == first
    assert model._engine.statistics().cached_tokens == 64


def test_several_outputs_are_of_seeds_that_follow_each_other(model: AutoModelForCausalLM) -> None:
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": 6, "eos_token_id": [], "temperature": 2.0}
    rows = model.generate(PROMPT, seed=3, num_return_sequences=3, **options)
    assert rows == [model.generate(PROMPT, seed=3 + number, **options)[0] for number in range(3)]
    assert len({tuple(row) for row in rows}) == 3


def test_shorter_outputs_are_padded_behind_their_end_tokens(model: AutoModelForCausalLM) -> None:
    options: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 5}
    rows = model.generate(PROMPT, eos_token_id=[], **options)
    assert [len(row) for row in rows] == [9] * 4
    ends = [rows[0][6], rows[1][5]]
    found = model.generate(np.array([PROMPT]), eos_token_id=ends, pad_token_id=7, early_stopping=True, **options)
    assert found.shape[0] == 4
    outputs = [row[4:].tolist() for row in found]
    ended = [row for row in outputs if any(token in ends for token in row)]
    assert ended
    for row in ended:
        end = next(place for place, token in enumerate(row) if token in ends)
        assert set(row[end + 1 :]) <= {7}


def test_contrastive_search_streams_and_ends_with_its_end_token(model: AutoModelForCausalLM) -> None:
    options: dict[str, Any] = {"penalty_alpha": 0.6, "top_k": 4, "max_new_tokens": 8}
    streamer = Streamer()
    (whole,) = model.generate(PROMPT, streamer=streamer, eos_token_id=[], **options)
    assert streamer.seen == [PROMPT, *([token] for token in whole[4:])]
    end = whole[7]
    (output,) = model.generate(PROMPT, eos_token_id=[end, 1], **options)
    assert output == whole[: whole.index(end, 4) + 1]
    assert model._engine.statistics().pages_used == 0


def test_a_checkpoint_is_converted_once(checkpoint: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "qtype": "sym_int4", "group_size": 32, "method": "rtn", "cache_dir": tmp_path, "progress": False, "threads": 1,
    }  # fmt: skip
    first = AutoModelForCausalLM.from_pretrained(checkpoint, **options)
    (folder,) = tmp_path.iterdir()
    written = (folder / "model.safetensors").stat().st_mtime_ns
    second = AutoModelForCausalLM.from_pretrained(checkpoint, **options)
    assert first.folder == second.folder == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    AutoModelForCausalLM.from_pretrained(checkpoint, **{**options, "qtype": "int8"})
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 65}, "num_beams: 65 is more than this model's 64 branches"),
        ({"penalty_alpha": 0.5, "top_k": 65}, "top_k: 65 is more"),
        ({"num_beams": 2, "streamer": Streamer()}, "streamer: num_beams must be 1"),
        ({"do_sample": True, "num_return_sequences": 2, "streamer": Streamer()}, "streamer: num_return_sequences"),
        ({"num_beams": 60, "max_new_tokens": 120}, "for each of 60 branches"),
        ({"attention_mask": [[0, 1, 1, 1]]}, "attention_mask"),
        ({"max_new_tokens": 500}, "do not fit the context of 128"),
        ({"max_new_tokens": 0}, "do not fit"),
        ({"max_length": 3}, "do not fit"),
        ({"do_sample": True, "temperature": 0.0}, "temperature"),
        ({"do_sample": True, "top_p": 2.0}, "top_p"),
    ],
)
def test_options_that_can_not_be_honoured(model: AutoModelForCausalLM, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.generate(PROMPT, **options)


@pytest.mark.parametrize("ids", [None, [], [[1], [2]], [1.5], [[[1]]], [-1], [400]])
def test_prompts_that_are_none(model: AutoModelForCausalLM, ids: Any) -> None:
    with pytest.raises(ValueError, match="input_ids"):
        model.generate(ids)


def test_an_option_that_there_is_not(model: AutoModelForCausalLM) -> None:
    with pytest.raises(TypeError, match="'typical_p'"):
        model.generate(PROMPT, typical_p=0.5)
    assert model.generate(PROMPT, max_new_tokens=1, attention_mask=[[1, 1, 1, 1]], use_cache=True)
    assert model.eval().to("cpu") is model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trust_remote_code": True}, "never run"),
        ({"device_map": "cuda"}, "processor only"),
        ({"load_in_4bit": True, "load_in_8bit": True}, "one of them"),
        ({}, "needs one of them"),
    ],
)
def test_refused_openings(checkpoint: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AutoModelForCausalLM.from_pretrained(checkpoint, **options)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(QuantError, match="not downloaded"):
        AutoModelForCausalLM.from_pretrained("meta-llama/Llama-2-7b", load_in_4bit=True)
    with pytest.raises(AttributeError, match="AutoModel"):
        _ = quant.AutoModel


def test_importing_the_package_imports_neither_torch_nor_transformers() -> None:
    imports = "import sys, quant, app.library.auto_model"
    program = f"{imports}; sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
