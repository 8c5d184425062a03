"""Damage that keeps files well-formed: JSON values replaced by hostile ones, keys dropped, doubled or moved.

Whatever a checkpoint or a packed model says of itself, both readers either take it or raise an error of ours, and no
folder is left behind. REDOUBT_FUZZ_ROUNDS makes the run longer; what it found is in test_found_by_fuzzing.
"""

import copy
import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kernels import _native
from quant.conversion.convert import convert
from quant.errors import QuantError
from quant.packed.packed_file import PackedFile
from quant.sources.gguf_file import read_gguf
from tests.quant.checkpoints import CONFIG, random_tensors, write_checkpoint, write_gguf, write_hf_folder
from tests.quant.sources.packed_checkpoints import write_packed_folder

ROUNDS = int(os.environ.get("REDOUBT_FUZZ_ROUNDS", "20"))
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 31, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30,
    0.5, 1e308, -0.0, float("nan"), float("inf"), "", "x", "\x00", "a" * 5000, "../../etc/passwd", "/dev/zero", [], {},
    [[]], [0], [0, 0], [1, 2, 3], {"a": 1}, "F32", "I32", "U8",
)  # fmt: skip


JSON_METADATA = {"matrices", "decoder"}
"""Entries of a packed file's `__metadata__` that are JSON themselves."""
SPARSE = {
    **CONFIG, "model_type": "qwen2_moe", "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64, "mlp_only_layers": [0],
}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def mutated(original: Any, generator: random.Random) -> Any:
    value = copy.deepcopy(original)
    for _ in range(generator.choice((1, 1, 2, 3))):
        there = [path for path in places(value) if path]
        if not there:
            return value
        path = generator.choice(there)
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        action = generator.random()
        if action < 0.15:
            del holder[path[-1]]
        elif action < 0.3:
            other = generator.choice(there)
            found = value
            try:
                for key in other:
                    found = found[key]
            except (KeyError, IndexError, TypeError):
                continue
            holder[path[-1]] = copy.deepcopy(found)
        elif action < 0.4 and isinstance(holder[path[-1]], int):
            holder[path[-1]] += generator.choice((-64, -32, -1, 1, 2, 32, 64, 4096))
        else:
            holder[path[-1]] = generator.choice(HOSTILE)
    return value


def header_of(path: Path) -> tuple[Any, bytes]:
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    for key in JSON_METADATA & header.get("__metadata__", {}).keys():
        header["__metadata__"][key] = json.loads(header["__metadata__"][key])
    return header, raw[8 + length :]


def write_header(path: Path, header: Any, data: bytes) -> None:
    header = copy.deepcopy(header)
    if isinstance(header, dict) and isinstance(header.get("__metadata__"), dict):
        for key in JSON_METADATA:
            value = header["__metadata__"].get(key)
            if isinstance(value, dict | list):
                header["__metadata__"][key] = json.dumps(value)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def run_rounds(path: Path, seed: int, attempt: Callable[[], None], *, header: bool) -> None:
    """Mutates the JSON in `path` again and again; what `attempt` raises but must not, is shown with the mutation."""
    original, data = header_of(path) if header else (json.loads(path.read_text()), b"")
    content = path.read_bytes()
    generator = random.Random(seed)
    for number in range(ROUNDS):
        value = mutated(original, generator)
        if header:
            write_header(path, value, data)
        else:
            path.write_text(json.dumps(value))
        try:
            attempt()
        except Exception as error:  # whatever it is, it is a bug: say how to come by it
            changed = json.dumps(value)[:2000]
            raise AssertionError(f"round {number} of {path.name}, seed {seed}: {error!r} from {changed}") from error
    path.write_bytes(content)


def converts(folder: Path, out: Path) -> None:
    with suppress(QuantError):
        convert(folder, out, qtype="fp32", force=True, progress=False)
    leftovers = [path for path in out.parent.iterdir() if path.name.startswith(f".{out.name}.partial")]
    assert not leftovers


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("kind", ["gptq", "awq", "compressed-tensors"])
def test_packed_checkpoints(tmp_path: Path, kind: str, name: str) -> None:
    folder, _ = write_packed_folder(tmp_path / "in", kind, 32, symmetric=False)
    run_rounds(folder / name, 1, lambda: converts(folder, tmp_path / "out"), header=name == "model.safetensors")


@pytest.mark.parametrize(
    "name", ["model.safetensors.index.json", "config.json", "tokenizer_config.json", "model-00001-of-00002.safetensors"]
)
def test_sharded_checkpoints(tmp_path: Path, name: str) -> None:
    folder = write_hf_folder(tmp_path / "in", random_tensors(CONFIG), shards=2)
    run_rounds(folder / name, 2, lambda: converts(folder, tmp_path / "out"), header=name.endswith(".safetensors"))


@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00003.safetensors"])
def test_checkpoints_with_experts(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path / "in", SPARSE)
    folder = tmp_path / "in"
    run_rounds(folder / name, 5, lambda: converts(folder, tmp_path / "out"), header=name.endswith(".safetensors"))


@pytest.mark.parametrize("config", [CONFIG, SPARSE], ids=["dense", "experts"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_packed_models(tmp_path: Path, name: str, config: dict[str, Any]) -> None:
    write_checkpoint(tmp_path / "in", config)
    folder = tmp_path / "packed"
    convert(tmp_path / "in", folder, qtype="asym_int4", group_size=32, method="rtn", progress=False)

    def attempt() -> None:
        with suppress(QuantError):
            packed = PackedFile(folder / "model.safetensors")
            for matrix in packed.matrices:
                packed.dequantized_tiles(matrix, 0, 1)
        with suppress(_native.PackedFileError, ValueError):
            _native.Model(str(folder), threads=1, kv_pages=2, max_sequences=1, max_step_tokens=8, max_context_tokens=32)

    run_rounds(folder / name, 3, attempt, header=name == "model.safetensors")


GGUF_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    1,
    2**32 - 1,
    -1.5,
    float("nan"),
    "",
    "x",
    [1],
    ["a"],
    [1.5],
    ["a"] * 300,
)


def test_gguf_metadata(tmp_path: Path) -> None:
    """Every key takes hostile values of every kind, or is missing."""
    config = {**CONFIG, "model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2}
    tensors = random_tensors(config)
    counts = {"llama.expert_count": 3, "llama.expert_used_count": 2}
    path = write_gguf(tmp_path / "x.gguf", tensors, config, extra=counts)
    keys = sorted(read_gguf(path).metadata.keys() | {
        "general.alignment", "llama.rope.scaling.type", "split.count", "llama.expert_gating_func",
        "llama.expert_weights_norm", "llama.expert_weights_scale",
    })  # fmt: skip
    cases = [(key, value) for key in keys if key != "general.architecture" for value in GGUF_VALUES]
    for key, value in random.Random(4).sample(cases, min(len(cases), 6 * ROUNDS)):
        path.unlink()
        write_gguf(path, tensors, config, extra={**counts, key: value})
        try:
            converts(path, tmp_path / "out")
        except Exception as error:
            raise AssertionError(f"{key} = {value!r:.100}: {error!r}") from error
