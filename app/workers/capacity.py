"""What a worker reports for the operator's calculator, from its model's header and its own warm-up.

The warm-up's times are the measurement: nothing more is run. Knows the packed file's header, and no weights.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.messages.capacity import WorkerCapacity
from app.model_folder import WEIGHTS, read_json
from app.sealing.sealed_model import SealedModel
from app.settings import EngineSettings
from app.workers.machine_memory import available_memory_bytes
from app.workers.warm_up import WarmUp

_LENGTH_BYTES = 8
_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


def worker_capacity(
    files: Path | SealedModel, engine: EngineSettings, warm: WarmUp, kv_pages: int
) -> WorkerCapacity | None:
    """What the worker reports; None for a folder without weights, as tests use, and one without a first token."""
    from kernels import _native

    if warm.token_s <= 0 or not (files / WEIGHTS).is_file():
        return None
    folder = str(files) if isinstance(files, Path) else files
    kv_type = _native.Model.chosen_kv_type(folder, engine.kv_type, engine.compute_type, engine.prompt_compute_type)
    config = read_json(files / "config.json")
    matrices = _matrices(_header(files))
    is_tied = _HEAD not in matrices
    head = matrices[_EMBEDDING if is_tied else _HEAD]
    layers = [sizes for name, sizes in matrices.items() if name.startswith("model.layers.")]
    heads = config["num_attention_heads"]
    return WorkerCapacity(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        layer_weights=sum(weights for weights, _ in layers),
        layer_bytes=sum(size_bytes for _, size_bytes in layers),
        head_weights=head[0],
        head_bytes=head[1],
        other_bytes=0 if is_tied else matrices[_EMBEDDING][1],
        kv_type=kv_type,
        kv_tokens=kv_pages * _native.PAGE_TOKENS,
        vendor="intel" if _native.is_intel_cpu() else "amd",
        prompt_tokens=warm.prompt_tokens,
        prompt_s=warm.prompt_s,
        token_s=warm.token_s,
        memory_left_bytes=available_memory_bytes(),
    )


def _header(files: Path | SealedModel) -> Mapping[str, Any]:
    """The JSON header of the weights, which the engine has checked already."""
    length = int.from_bytes(_read(files, 0, _LENGTH_BYTES), "little")
    header: Mapping[str, Any] = json.loads(_read(files, _LENGTH_BYTES, length))
    return header


def _read(files: Path | SealedModel, offset: int, size: int) -> bytes:
    if isinstance(files, SealedModel):
        buffer = bytearray(size)
        files.read_into(WEIGHTS, offset, memoryview(buffer))
        return bytes(buffer)
    with (files / WEIGHTS).open("rb") as file:
        file.seek(offset)
        return file.read(size)


def _matrices(header: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """(elements, bytes) of each matrix, by name."""
    entries = json.loads(header["__metadata__"]["matrices"])
    sizes = {name: header[name]["data_offsets"] for name in entries}
    return {name: (entry["rows"] * entry["cols"], sizes[name][1] - sizes[name][0]) for name, entry in entries.items()}
