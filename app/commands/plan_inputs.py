"""Reads the inputs of `redoubt plan`: a model in any of its forms, and a machine by name, file or measurement."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from app.capacity.demand import EMBEDDING, HEAD, CapacityError, Demand, experts_of, matrices_of, windows_of
from app.capacity.heads import mixed_heads_of
from app.capacity.machine import Machine, machine_from
from app.capacity.processors import processor_names, table_machine
from app.capacity.states import states_of
from app.draft_check import check_draft
from quant.conversion.plan import (
    DEFAULT_GROUP_SIZE,
    check_options,
    dominant,
    largest_group,
    new_matrices,
    plan_matrices,
)
from quant.conversion.shapes import ENCODER_SHAPES, SHAPES
from quant.families.description import Decoder
from quant.families.eagle import usual_head
from quant.families.encoders import as_encoder
from quant.families.names import engine_tensors
from quant.families.registry import describe
from quant.files.json_file import read_json_object
from quant.packed.packed_file import FILE_NAME, PackedFile, is_packed_model
from quant.packed.packed_matrix import MatrixInfo
from quant.sources.open_source import open_source

_PREDICTOR: Final = "model.predictor."


def read_demand(model: str, qtype: str | None, group_size: int | None) -> Demand:
    """Computes the demand of a known shape, a converted folder, a Hugging Face folder or a GGUF file.

    qtype, group_size: as for `redoubt convert`; None: the source's, else sym_int4 in groups of 64. Raises
    CapacityError, QuantError, OSError.
    """
    path = Path(model)
    if qtype is not None or group_size is not None:
        check_options(qtype or "auto", group_size, None)
    if not path.exists():
        return _demand_of_shape(model, qtype, group_size)
    if path.is_dir() and is_packed_model(path):
        if qtype is not None or group_size is not None:
            raise CapacityError(f"{model} is converted already: leave --type and --group-size out")
        packed = PackedFile(path / FILE_NAME)
        return _demand(packed.decoder, packed.matrices, path.resolve().name)
    source = open_source(path)
    infos = plan_matrices(source, engine_tensors(source.decoder), qtype or "auto", group_size, None)
    return _demand(source.decoder, infos, path.resolve().name)


def _known(shape: str) -> Decoder:
    if shape in SHAPES:
        return describe(SHAPES[shape], shape)
    if shape not in ENCODER_SHAPES:
        known = ", ".join((*SHAPES, *ENCODER_SHAPES))
        raise CapacityError(f"{shape!r} is no folder, no file, and none of the shapes {known}")
    decoder = describe(ENCODER_SHAPES[shape], shape)
    return decoder if decoder.encoder is not None else as_encoder(decoder, ENCODER_SHAPES[shape], shape)


def _demand_of_shape(model: str, qtype: str | None, group_size: int | None) -> Demand:
    decoder = _known(model)
    expected, is_encoder = engine_tensors(decoder), decoder.encoder is not None
    usual = "int8" if is_encoder else "sym_int4"
    kind = usual if qtype is None or qtype == "auto" else qtype
    group = group_size or (largest_group(expected) if is_encoder else DEFAULT_GROUP_SIZE)
    return _demand(decoder, new_matrices(expected, decoder.tied_head, kind, group), model)


def head_demand(model: str) -> Demand:
    """The demand of the EAGLE-3 head that is usual for a model of `read_demand`, in int4. Raises as that does."""
    path = Path(model)
    if not path.exists():
        decoder = _known(model)
        config = {**SHAPES, **ENCODER_SHAPES}[model]
    elif path.is_dir() and is_packed_model(path):
        config, decoder = read_json_object(path / "config.json"), PackedFile(path / FILE_NAME).decoder
    else:
        source = open_source(path)
        config, decoder = source.config, source.decoder
    if decoder.encoder is not None or decoder.is_draft_head:
        raise CapacityError(f"{model}: no EAGLE-3 head drafts for an encoder, or for another head")
    head = usual_head(config, decoder)
    infos = new_matrices(engine_tensors(head), head.tied_head, "sym_int4", DEFAULT_GROUP_SIZE)
    return _demand(head, infos, "an EAGLE-3 head")


def own_layer_demand(model: str) -> Demand | None:
    """The demand of a converted model's own layer of multi-token prediction; None: there is none.

    Raises QuantError, OSError.
    """
    path = Path(model)
    if not path.is_dir() or not is_packed_model(path):
        return None
    packed = PackedFile(path / FILE_NAME)
    if packed.decoder.predictor is None or packed.decoder.is_draft_head:
        return None
    infos = {name: info for name, info in packed.matrices.items() if name.startswith(_PREDICTOR)}
    if not packed.decoder.predictor.head_tokens:  # it shares the model's
        infos[f"{_PREDICTOR}head.weight"] = packed.matrices[HEAD if HEAD in packed.matrices else EMBEDDING]
    layer = replace(packed.decoder, layers=(packed.decoder.predictor.kind,), predictor=None)
    return replace(_demand(layer, infos, "its own layer"), is_head=True)


def check_drafting(model: str, draft: str) -> None:
    """Raises CapacityError if both are folders, and the tokens of one are not the other's: what sizes don't tell."""
    folders = Path(model), Path(draft)
    if all((folder / "tokenizer.json").is_file() for folder in folders):
        try:
            check_draft(folders[0], folders[0].resolve().name, folders[1])
        except ValueError as error:
            raise CapacityError(f"--draft: {error}") from error


def read_machine(name: str, memory_bytes: int | None) -> Machine:
    """Finds a machine by its name in the table, as "this", or in a file. Raises CapacityError, OSError."""
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
    """Yields the known shapes of chat models as `convert` stores them by default."""
    return [(name, read_demand(name, None, None)) for name in SHAPES]


def known_machines() -> Iterable[tuple[str, Machine]]:
    """Yields all machines of the table, with one socket."""
    return [(name, table_machine(name)) for name in processor_names()]


def save_machine(machine: Machine, path: Path) -> None:
    """Writes a machine for `read_machine`. Raises OSError."""
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


def _demand(decoder: Decoder, infos: Mapping[str, MatrixInfo], name: str) -> Demand:
    layers = "model.layers." if any(name.startswith("model.layers.") for name in infos) else _PREDICTOR
    typical = dominant([info for name, info in infos.items() if name.startswith(layers)])
    experts, experts_per_token = experts_of(decoder.to_dict())
    matrices = matrices_of(
        {name: (info.rows * info.cols, info.size_bytes) for name, info in infos.items()},
        experts=experts,
        experts_per_token=experts_per_token,
        type_name=f"{typical.type} in groups of {typical.group}" if typical.group else typical.type,
    )
    return Demand(
        name=name,
        matrices=matrices,
        layers=max(len(decoder.layers), 1),
        hidden=decoder.hidden_size,
        heads=decoder.heads,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.head_dim,
        context_tokens=decoder.max_positions,
        windows=windows_of(decoder.to_dict()),
        states=states_of(decoder.to_dict()),
        mixed=mixed_heads_of(decoder.to_dict()),
        predictors=0 if decoder.predictor is None or decoder.is_draft_head else 1,
        vocab_size=decoder.vocab_size,
        is_head=decoder.is_draft_head,
    )
