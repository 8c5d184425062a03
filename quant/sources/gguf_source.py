"""A GGUF file, or the parts of a split one, as a Source, with the stored codes.

Does not know the packed layout, nor which stored tensors make which of the engine's (`gguf_tensors`).
"""

from pathlib import Path
from typing import Final

from quant.codes.matrix import F32, QuantizedMatrix
from quant.errors import SourceError, UnsupportedModelError
from quant.families.description import Decoder
from quant.families.encoders import converted_config
from quant.families.registry import describe, family_of, standard_config
from quant.families.standard import MOST_LAYERS
from quant.sources.assembly import assemble
from quant.sources.file_rows import row_reader
from quant.sources.ggml_blocks import BLOCK_TYPES
from quant.sources.gguf_architectures import ARCHITECTURES
from quant.sources.gguf_config import hf_config
from quant.sources.gguf_file import GgufFile, GgufTensor
from quant.sources.gguf_parts import read_parts
from quant.sources.gguf_tensors import gguf_tensors
from quant.sources.gguf_tokenizer import write_gguf_tokenizer
from quant.sources.source import FLOATS, Source, SourceTensor, left_out_note, rounding_note

_ROPE_FACTORS: Final = "rope_freqs.weight"


def open_gguf(path: Path) -> Source:
    """Opens a GGUF checkpoint; of a split one, the first part.

    Raises SourceError (damaged) or UnsupportedModelError (not supported).
    """
    gguf, files = read_parts(path)
    factors = gguf.tensors.get(_ROPE_FACTORS)
    raw_config = hf_config(gguf, None if factors is None else _float_vector(gguf, _ROPE_FACTORS, factors))
    decoder = describe(raw_config, str(path))
    standard = standard_config(raw_config, decoder, family_of(raw_config, str(path)))
    config = converted_config(standard, raw_config, decoder)
    stored = {name: _source_tensor(gguf, name, tensor) for name, tensor in gguf.tensors.items()}
    arch = gguf.metadata["general.architecture"]
    wanted = gguf_tensors(arch, decoder, raw_config.get("residual_multiplier", 1.0), stored)
    ignored = ARCHITECTURES[arch].ignored if arch in ARCHITECTURES else ()
    further = _further_blocks(gguf, decoder)
    tensors = assemble(stored, wanted, (_ROPE_FACTORS, *ignored, *further), str(path))
    return Source(
        name=path.name,
        config=config,
        decoder=decoder,
        tensors=tensors,
        files=files,
        write_tokenizer=lambda folder: write_gguf_tokenizer(gguf, folder, config),
        notes=(*rounding_note(tensors), *left_out_note(stored, further)),
    )


def _further_blocks(gguf: GgufFile, decoder: Decoder) -> list[str]:
    """Patterns of the multi-token prediction blocks after the layers."""
    blocks = min(gguf.metadata.get(f"{gguf.metadata['general.architecture']}.block_count", 0), MOST_LAYERS)
    return [f"blk.{number}.*" for number in range(len(decoder.layers), blocks)]


def _source_tensor(gguf: GgufFile, name: str, tensor: GgufTensor) -> SourceTensor:
    block = BLOCK_TYPES.get(tensor.type_name)
    if block is None:
        known = ", ".join(BLOCK_TYPES)
        raise UnsupportedModelError(f"{gguf.path}: tensor {name!r} is {tensor.type_name}; supported: {known}")
    if len(tensor.shape) > 3:
        raise SourceError(f"{gguf.path}: tensor {name!r} has {len(tensor.shape)} dimensions")
    quantized = block.stored not in FLOATS
    vector = len(tensor.shape) == 1
    if vector and quantized:
        raise SourceError(f"{gguf.path}: the vector {name!r} is quantized ({tensor.type_name})")
    row_bytes = tensor.row_bytes // tensor.shape[0] if vector else tensor.row_bytes
    read_rows = row_reader(tensor.path, tensor.offset, row_bytes)

    def read(begin: int, end: int) -> F32 | QuantizedMatrix:
        values = block.decode(read_rows(begin, end))
        return values.reshape(-1) if vector and not isinstance(values, QuantizedMatrix) else values

    return SourceTensor(
        name,
        tensor.shape,
        block.stored,
        block.group,
        read,
        table=block.table,
        label=tensor.type_name if quantized else "",
        rounded_scales=block.rounded_scales,
    )


def _float_vector(gguf: GgufFile, name: str, tensor: GgufTensor) -> F32:
    if len(tensor.shape) != 1:
        raise SourceError(f"{gguf.path}: tensor {name!r} has the shape {tensor.shape}, and is no vector")
    values = _source_tensor(gguf, name, tensor).read(0, tensor.shape[0])
    if isinstance(values, QuantizedMatrix):
        raise SourceError(f"{gguf.path}: tensor {name!r} is quantized")
    return values
