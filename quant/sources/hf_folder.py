"""A Hugging Face folder of safetensors, one file or many with an index, as a Source; its layers may be quantized.

Nothing in the folder is ever executed: pickled weights are refused, and code of its own is not looked at.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from quant.codes.bf16 import bf16_to_fp32
from quant.codes.matrix import F32, U8, QuantizedMatrix
from quant.errors import SourceError, UnsupportedModelError
from quant.families.description import Attention, Decoder
from quant.families.encoders import as_encoder, converted_config
from quant.families.family import Tensor
from quant.families.names import DENSE, EMBEDDING, HEAD
from quant.families.predictors import with_predictor
from quant.families.registry import describe, family_of, standard_config
from quant.files.json_file import read_json_object
from quant.files.safetensors_file import StoredTensor, read_header
from quant.sources.assembly import assemble, dequantized
from quant.sources.decoder_rerankers import read_reranker, with_score_head
from quant.sources.file_rows import row_reader
from quant.sources.fp8_weights import FP8, fp8_weights, is_fp8
from quant.sources.hf_tokenizer import copy_hf_tokenizer
from quant.sources.mxfp4_experts import CODES, EXPONENTS, is_mxfp4, mxfp4_stacks
from quant.sources.other_forms import other_form
from quant.sources.packed_layers import (
    COMPANION_SUFFIXES,
    PACKED_SUFFIXES,
    LayerFormat,
    StoredIn,
    layer_format,
    open_layer,
)
from quant.sources.sentence_transformers import KEY as SENTENCE_TRANSFORMERS
from quant.sources.sentence_transformers import read_sentence_transformers
from quant.sources.source import Source, SourceTensor, StoredType, left_out_note, rounding_note

_READ_ROWS: Final = 1024
_UNTIED: Final = (
    "The configuration ties the output head to the embedding, but the checkpoint has another head: it is kept, as"
    " transformers does."
)
_INDEX: Final = "model.safetensors.index.json"
_FLOATS: Final[dict[str, tuple[StoredType, int, Callable[[U8], F32]]]] = {
    "F32": ("fp32", 4, lambda raw: raw.view(np.float32)),
    "F16": ("fp16", 2, lambda raw: raw.view(np.float16).astype(np.float32)),
    "BF16": ("bf16", 2, lambda raw: bf16_to_fp32(raw.view(np.uint16))),
}


def open_hf_folder(folder: Path) -> Source:
    """Opens a Hugging Face checkpoint. Raises SourceError (damaged, incomplete) or UnsupportedModelError."""
    config_path = folder / "config.json"
    raw_config = read_json_object(config_path)
    read_quantized = _quantized_reader(folder, raw_config)
    if read_quantized is not None:
        raw_config = {key: value for key, value in raw_config.items() if key != "quantization_config"}
    beside = read_sentence_transformers(folder)
    reranker = read_reranker(folder, raw_config, None if beside is None else beside[0])
    if reranker is not None:
        beside = reranker, []
    if beside is not None:
        raw_config = raw_config | {SENTENCE_TRANSFORMERS: beside[0]}
    family = family_of(raw_config, str(config_path))
    shards = shards_of(folder)
    stored = (read_quantized or float_tensors)(_without_buffers(stored_in(shards)))
    dense = [] if beside is None else beside[1]
    for number, path in enumerate(dense):
        stored |= float_tensors(_dense_layer(number, path))
    if reranker is not None:
        stored = with_score_head(stored, reranker, str(folder))
    if raw_config.get("tie_word_embeddings") is None:
        raw_config["tie_word_embeddings"] = family.head not in stored
    decoder = describe(raw_config, str(config_path))
    if beside is not None and decoder.encoder is None:
        decoder = as_encoder(decoder, raw_config, str(config_path))
    spellings = (family.tensors, *family.alternatives)
    make = next((each for each in spellings if _names(each(raw_config, decoder)) <= stored.keys()), spellings[0])
    wanted, notes, tied = make(raw_config, decoder), [], []
    if decoder.tied_head and decoder.encoder is None:
        untied = replace(decoder, tied_head=False)
        with_head = make(raw_config, untied)
        tied = [piece.name for piece in with_head[HEAD].pieces if piece.name in stored]
        # A file saved by torch may contain the tied head.
        if tied and not _same_values(with_head[HEAD], with_head[EMBEDDING], stored):
            decoder, wanted, notes, tied = untied, with_head, [_UNTIED], []
    decoder, of_predictor = with_predictor(family, raw_config, decoder, stored)
    wanted = {**wanted, **of_predictor}
    unused = family.unused(raw_config, decoder)
    ignored = (*unused, *_unread_keys(decoder), *tied)
    if read_quantized is not None:
        stored = {name: each for name, each in stored.items() if name in _names(wanted) or not _is_zero_bias(each)}
    tensors = assemble(stored, wanted, ignored, str(folder))
    config = converted_config(standard_config(raw_config, decoder, family), raw_config, decoder)
    return Source(
        name=folder.resolve().name,
        config=config,
        decoder=decoder,
        tensors=tensors,
        files=(config_path, *shards, *dense),
        write_tokenizer=lambda target: copy_hf_tokenizer(folder, target, config),
        notes=(*notes, *rounding_note(tensors), *left_out_note(stored.keys() - _names(wanted), unused)),
    )


def _same_values(one: Tensor, other: Tensor, stored: Mapping[str, SourceTensor]) -> bool:
    """Whether two of the engine's matrices, each one whole stored tensor, have the same numbers."""
    first, second = (stored.get(each.pieces[0].name) for each in (one, other))
    if first is None or second is None or first.shape != second.shape:
        return second is None  # a missing tensor is refused anyway
    rows = first.shape[0]
    ranges = ((at, min(at + _READ_ROWS, rows)) for at in range(0, rows, _READ_ROWS))
    return all(np.array_equal(dequantized(first.read(*each)), dequantized(second.read(*each))) for each in ranges)


def _unread_keys(decoder: Decoder) -> list[str]:
    """Patterns of stored tensors of layers that read other layers' keys: some checkpoints have keys for these too."""
    shared = [number for number in range(len(decoder.layers)) if _reads_others(decoder.layer(number).attention)]
    return [f"*layers.{number}.self_attn.{part}_*" for number in shared for part in "kv"]


def _reads_others(attention: Attention | None) -> bool:
    return attention is not None and attention.keys_of is not None


def _names(tensors: Mapping[str, Tensor]) -> set[str]:
    """The stored tensors that some tensors are made of."""
    return {piece.name for tensor in tensors.values() for piece in tensor.pieces}


def stored_in(shards: Mapping[Path, list[str]]) -> dict[str, StoredIn]:
    """All tensors of the weight files of `shards_of`. Raises SourceError for one that is missing."""
    stored: dict[str, StoredIn] = {}
    indexed = {name for names in shards.values() for name in names}
    for shard, wanted in shards.items():
        there, _ = read_header(shard)
        # What the index does not name is read too, so that it is used or refused.
        for name in (*wanted, *sorted(there.keys() - indexed)):
            if name not in there:
                raise SourceError(f"{shard}: lacks the tensor {name!r} that the index promises")
            stored[name] = StoredIn(shard, name, there[name])
    return stored


def _without_buffers(stored: Mapping[str, StoredIn]) -> dict[str, StoredIn]:
    """Leaves out numbers of positions and token types, which some checkpoints have as integers."""
    return {
        name: each
        for name, each in stored.items()
        if not (name.endswith(("position_ids", "token_type_ids")) and each.tensor.dtype == "I64")
    }


def _dense_layer(number: int, path: Path) -> dict[str, StoredIn]:
    """The tensors of a sentence-transformers folder's layer behind the pooling, under the engine's names."""
    there, _ = read_header(path)
    renamed = {f"{DENSE}{number}.{name.removeprefix('linear.')}": name for name in there}
    return {ours: StoredIn(path, name, there[name]) for ours, name in renamed.items()}


_Reader = Callable[[Mapping[str, StoredIn]], dict[str, SourceTensor]]
"""Opens the tensors of a checkpoint's files."""


def _quantized_reader(folder: Path, config: Mapping[str, Any]) -> _Reader | None:
    """Returns the reader of a quantized checkpoint; None if nothing is quantized, or by an unsupported method."""
    quantization, where = _quantization(folder, config)
    if not isinstance(quantization, dict):
        return None
    if is_mxfp4(quantization):
        return _mxfp4_tensors
    if is_fp8(quantization):
        return partial(_fp8_tensors, quantization=quantization, where=where)
    packed_as = layer_format(quantization, where)
    return None if packed_as is None else partial(_packed_tensors, packed_as=packed_as)


def _quantization(folder: Path, config: Mapping[str, Any]) -> tuple[Any, str]:
    """The `quantization_config`, and the file that has it, which is a separate one in older formats."""
    for name, method in (("quantize_config.json", "gptq"), ("quant_config.json", "awq")):
        if not config.get("quantization_config") and (folder / name).exists():
            found = read_json_object(folder / name)
            renamed = {"w_bit": "bits", "q_group_size": "group_size"}
            quantization = {"quant_method": method} | {renamed.get(key, key): value for key, value in found.items()}
            return quantization, str(folder / name)
    return config.get("quantization_config"), str(folder / "config.json")


def float_tensors(stored: Mapping[str, StoredIn]) -> dict[str, SourceTensor]:
    """Opens tensors that are not quantized. Raises SourceError, UnsupportedModelError for other ones."""
    return {name: _source_tensor(each.path, name, each.tensor) for name, each in stored.items()}


def _packed_tensors(stored: Mapping[str, StoredIn], packed_as: tuple[LayerFormat, int]) -> dict[str, SourceTensor]:
    kind, group_size = packed_as
    tensors = {}
    for name, each in stored.items():
        if name.endswith(PACKED_SUFFIXES[kind]):
            layer = open_layer(name.removesuffix(PACKED_SUFFIXES[kind]), kind, stored, group_size)
            tensors[layer.name] = layer
        elif not name.endswith(COMPANION_SUFFIXES) or name.rpartition(".")[0] + PACKED_SUFFIXES[kind] not in stored:
            tensors[name] = _source_tensor(each.path, name, each.tensor)
    return tensors


def _fp8_tensors(
    stored: Mapping[str, StoredIn], quantization: Mapping[str, Any], where: str
) -> dict[str, SourceTensor]:
    weights, others = fp8_weights(stored, quantization, where)
    return float_tensors(others) | weights


def _mxfp4_tensors(stored: Mapping[str, StoredIn]) -> dict[str, SourceTensor]:
    stacks = mxfp4_stacks(stored)
    exponents = {name.removesuffix(CODES) + EXPONENTS for name in stacks}
    others = {name: each for name, each in stored.items() if name not in stacks and name not in exponents}
    return float_tensors(others) | stacks


def _is_zero_bias(tensor: SourceTensor) -> bool:
    """Whether a bias is all zeros: some tools write one for every quantized layer, even if the model has none."""
    if not tensor.name.endswith("_proj.bias") or len(tensor.shape) != 1:
        return False
    values = tensor.read(0, tensor.shape[0])
    return not isinstance(values, QuantizedMatrix) and not values.any()


def shards_of(folder: Path) -> dict[Path, list[str]]:
    """The weight files, each with the names of the tensors to read; an empty list means all."""
    index_path, single = folder / _INDEX, folder / "model.safetensors"
    if index_path.exists():
        weight_map = read_json_object(index_path).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise SourceError(f"{index_path}: has no weight_map")
        shards: dict[Path, list[str]] = {}
        for name, shard in weight_map.items():
            if not isinstance(shard, str) or Path(shard).name != shard or shard in ("", ".", "..") or "\0" in shard:
                raise SourceError(f"{index_path}: {shard!r} is not a plain file name")
            shards.setdefault(folder / shard, []).append(name)
        return shards
    if single.exists():
        return {single: []}
    hint = other_form(folder)
    if hint:
        raise UnsupportedModelError(f"{folder}: {hint}")
    pickled = sorted(path.name for suffix in ("bin", "pt", "pth") for path in folder.glob(f"*.{suffix}"))
    if pickled:
        raise UnsupportedModelError(
            f"{folder}: has only pickled weights ({pickled[0]}), which can run code when they are loaded;"
            " save them as safetensors first"
        )
    raise SourceError(f"{folder}: has neither model.safetensors nor {_INDEX}")


def _source_tensor(path: Path, name: str, tensor: StoredTensor) -> SourceTensor:
    if tensor.dtype == FP8:
        raise SourceError(
            f"{path}: tensor {name!r} is {FP8}, and no quantization_config of method fp8 says how it is scaled"
        )
    if tensor.dtype not in _FLOATS:
        known = ", ".join(_FLOATS)
        raise UnsupportedModelError(
            f"{path}: tensor {name!r} is {tensor.dtype}, not floating point; supported: {known}"
        )
    stored, element_bytes, widen = _FLOATS[tensor.dtype]
    if len(tensor.shape) not in (1, 2, 3) or 0 in tensor.shape:
        raise SourceError(
            f"{path}: tensor {name!r} has the shape {tensor.shape}, neither a vector, a matrix nor a stack of matrices"
        )
    vector = len(tensor.shape) == 1
    read_rows = row_reader(path, tensor.offset, element_bytes * (1 if vector else tensor.shape[-1]))

    def read(begin: int, end: int) -> F32:
        values = widen(read_rows(begin, end))
        return values.reshape(-1) if vector else values

    return SourceTensor(name, tensor.shape, stored, 0, read)
