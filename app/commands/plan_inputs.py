"""Reads what `redoubt plan` is asked about: a model in any of its forms, and a machine by name, file or measurement."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from app.capacity.demand import CapacityError, Demand, Matrices, demand_of
from app.capacity.machine import Machine, machine_from
from app.capacity.processors import processor_names, table_machine
from quant.conversion.plan import DEFAULT_GROUP_SIZE, check_options, default_type, dominant, matrix_info, plan_matrices
from quant.conversion.shapes import SHAPES
from quant.files.json_file import read_json_object
from quant.packed.packed_file import FILE_NAME, PackedFile, is_packed_model
from quant.packed.packed_matrix import MatrixInfo
from quant.sources.model_config import complete_config, expected_tensors
from quant.sources.open_source import open_source

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


def read_demand(model: str, qtype: str | None, group_size: int | None) -> Demand:
    """The demand of a known shape, a converted folder, a Hugging Face folder or a GGUF file.

    qtype, group_size: as of `redoubt convert`; None: its defaults. Raises CapacityError, QuantError, OSError.
    """
    path = Path(model)
    if qtype is not None or group_size is not None:
        check_options(qtype or "auto", group_size, None)
    if not path.exists():
        if model not in SHAPES:
            raise CapacityError(f"{model!r} is no folder, no file, and none of the shapes {', '.join(SHAPES)}")
        config, _ = complete_config(SHAPES[model], model)
        kind = "sym_int4" if qtype in (None, "auto") else str(qtype)
        tied, group = config["tie_word_embeddings"], group_size or DEFAULT_GROUP_SIZE
        planned = {
            name: matrix_info(name, default_type(tensor, tied, kind, None), tensor.shape, group)
            for name, tensor in expected_tensors(config).items()
            if tensor.role != "vector"
        }
        return demand_of(config, _matrices(planned, config), model)
    if path.is_dir() and is_packed_model(path):
        if qtype is not None or group_size is not None:
            raise CapacityError(f"{model} is converted already: leave --type and --group-size out")
        config, _ = complete_config(read_json_object(path / "config.json"), f"{path}/config.json")
        return demand_of(config, _matrices(PackedFile(path / FILE_NAME).matrices, config), path.resolve().name)
    source = open_source(path)
    expected = expected_tensors(source.config)
    infos = plan_matrices(source, expected, qtype or "auto", group_size, None)
    return demand_of(source.config, _matrices(infos, source.config), path.resolve().name)


def read_machine(name: str, memory_bytes: int | None) -> Machine:
    """A machine by name of the table, "this", or a file. Raises CapacityError, OSError."""
    path = Path(name)
    if name == "this":
        from app.workers.machine_rates import this_machine

        machine = this_machine()
    elif path.suffix in (".json", ".toml") or path.is_file():
        machine = machine_from(_read_file(path), name)
    else:
        return table_machine(name, memory_bytes)
    if memory_bytes is None:
        return machine
    return machine.scaled(memory=memory_bytes / machine.memory_bytes)


def known_models() -> Iterable[tuple[str, Demand]]:
    """All known shapes as `convert` stores them by default."""
    return [(name, read_demand(name, None, None)) for name in SHAPES]


def known_machines() -> Iterable[tuple[str, Machine]]:
    """All machines of the table, with one socket."""
    return [(name, table_machine(name)) for name in processor_names()]


def save_machine(machine: Machine, path: Path) -> None:
    """Writes what `read_machine` reads. Raises OSError."""
    path.write_text(json.dumps(machine.to_dict(), indent=1) + "\n", encoding="utf-8")


def _read_file(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except ValueError as error:
        raise CapacityError(f"{path}: is neither JSON nor TOML of a machine: {error}") from error
    if not isinstance(values, dict):
        raise CapacityError(f"{path}: is no JSON object of a machine; `--machine this --save FILE` writes one")
    return values


def _matrices(infos: Mapping[str, MatrixInfo], config: Mapping[str, Any]) -> Matrices:
    layers = [info for name, info in infos.items() if name.startswith("model.layers.")]
    is_tied = config["tie_word_embeddings"]
    head = infos[_EMBEDDING if is_tied else _HEAD]
    typical = dominant(layers)
    return Matrices(
        layer_weights=sum(info.rows * info.cols for info in layers),
        layer_bytes=sum(info.size_bytes for info in layers),
        head_weights=head.rows * head.cols,
        head_bytes=head.size_bytes,
        other_bytes=0 if is_tied else infos[_EMBEDDING].size_bytes,
        type_name=f"{typical.type} in groups of {typical.group}" if typical.group else typical.type,
    )
