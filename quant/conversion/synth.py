"""Packed models of well-known shapes with random weights, for measuring speed and memory.

Random codes are drawn directly, which is much faster than quantizing random weights. The scales keep the activations'
magnitude through the layers. Speed does not depend on the values. Does not know how weights are quantized.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from quant.codes.matrix import F32, FLOAT_TYPES, U8, IntegerType, QuantizedMatrix
from quant.conversion.draft_head import DRAFT_HEAD_TOKENS, LEAST_VOCABULARY
from quant.conversion.plan import DEFAULT_GROUP_SIZE, check_options, new_matrices, weight_type
from quant.conversion.shapes import SHAPES, of_layers
from quant.errors import QuantError
from quant.families.description import Decoder
from quant.families.eagle import ARCHITECTURE, usual_head
from quant.families.names import DRAFT_TOKENS, engine_tensors
from quant.families.predictors import predicting_decoder
from quant.families.registry import describe, family_of, standard_config
from quant.files.atomic_folder import atomic_folder
from quant.files.free_space import check_free_space
from quant.files.json_file import write_json
from quant.packed.packed_file import FILE_NAME, PackedPlan, is_packed_model
from quant.packed.packed_matrix import TILE_OUTPUTS, MatrixInfo, pack_float, pack_quantized
from quant.packed.piecewise import write_packed

# Root mean square of uniform codes about their zero, by which a scale turns into a weight's size.
_CODE_RMS: Final[Mapping[str, float]] = {"sym_int4": 4.6, "asym_int4": 4.6, "lut4": 65.7, "int8": 73.0}
_SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class SynthReport:
    """The result of `synth`."""

    folder: Path
    weights: int
    size_bytes: int


def synth(
    shape: str,
    out: Path,
    *,
    qtype: str = "sym_int4",
    group_size: int = DEFAULT_GROUP_SIZE,
    seed: int = 0,
    layers: int | None = None,
    predicts: bool = False,
    head: bool = False,
    force: bool = False,
    progress: bool = True,
) -> SynthReport:
    """Writes a random packed model of one of SHAPES; types and groups are as `convert` chooses them.

    Its tokenizer works: bytes, the ChatML tokens, and fillers up to the shape's vocabulary, so that any id decodes. The
    same seed gives the same bytes. layers: how many, if not all. predicts: with a layer of multi-token prediction.
    head: an EAGLE-3 head for the shape, in place of the model.

    Raises QuantError naming the option or the place.
    """
    if shape not in SHAPES:
        raise QuantError(f"shape {shape!r} is not one of {', '.join(SHAPES)}")
    check_options(qtype, group_size, None)
    raw_config = of_layers(SHAPES[shape], layers)
    decoder, family = describe(raw_config, shape), family_of(raw_config, shape)
    config = standard_config(raw_config, decoder, family)
    if predicts:
        decoder = _predicting(predicting_decoder(family, decoder), shape)
    if head:
        decoder = usual_head(config, decoder)
        config = {**config, "architectures": [ARCHITECTURE]}
    kind = "sym_int4" if qtype == "auto" else qtype
    expected = engine_tensors(decoder)
    infos = new_matrices(expected, decoder.tied_head, kind, group_size)
    plan = PackedPlan(
        decoder=decoder,
        matrices=infos,
        vectors={name: tensor.shape[0] for name, tensor in expected.items() if tensor.role == "vector"},
        qtype=weight_type(kind),
        group_size=0 if kind in FLOAT_TYPES else group_size,
        source=f"random {shape} seed:{seed}",
    )
    with atomic_folder(out, force=force, replaceable=is_packed_model) as folder:
        check_free_space(out, plan.size_bytes())
        if not head:
            _write_tokenizer(folder, config)
        write_json(folder / "config.json", config)
        write_packed(
            folder / FILE_NAME,
            plan,
            lambda name, info, begin, end: _random_piece(seed, name, info, begin, end),
            lambda name: _vector(name, plan.vectors[name]),
            label="Writing",
            progress=progress,
        )
    weights = sum(info.rows * info.cols for info in infos.values())
    return SynthReport(out, weights, plan.size_bytes())


def _predicting(decoder: Decoder, shape: str) -> Decoder:
    if decoder.predictor is None:
        raise QuantError(f"shape {shape!r} is of a family without multi-token prediction")
    if decoder.vocab_size < LEAST_VOCABULARY:
        return decoder
    return replace(decoder, predictor=replace(decoder.predictor, head_tokens=DRAFT_HEAD_TOKENS))


def _vector(name: str, size: int) -> F32:
    return np.arange(size, dtype=np.float32) if name == DRAFT_TOKENS else np.ones(size, np.float32)


def _random_piece(seed: int, name: str, info: MatrixInfo, begin: int, end: int) -> U8:
    generator = np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode()), begin]))
    rows, size = end - begin, 1 / np.sqrt(info.cols)
    if info.type in ("sym_int4", "asym_int4", "lut4") and rows % TILE_OUTPUTS == 0:
        return _random_tiles(generator, info.of_rows(rows), size / _CODE_RMS[info.type])
    if info.type in FLOAT_TYPES:
        values: F32 = generator.standard_normal((rows, info.cols), np.float32)
        return pack_float(values * np.float32(size), info.type)
    codes = np.frombuffer(generator.bytes(rows * info.cols), np.uint8).reshape(rows, info.cols)
    codes = np.maximum(codes, np.uint8(1)) if info.type == "int8" else codes & np.uint8(15)
    scale_size = size / _CODE_RMS[info.type]
    scales = generator.uniform(0.8, 1.2, (rows, info.cols // info.group)).astype(np.float32)
    scales16 = (scales * np.float32(scale_size)).astype(np.float16)
    minima = (scales16 * np.float16(-7.5)) if info.type == "asym_int4" else None
    return pack_quantized(
        QuantizedMatrix(cast("IntegerType", info.type), info.group, codes, scales16, minima, info.table)
    )


def _random_tiles(generator: np.random.Generator, info: MatrixInfo, scale: float) -> U8:
    """Packed bytes [tiles, tile_bytes] of a matrix of whole tiles: any four bits are a code, so none need packing."""
    blocks = info.cols // info.group
    words = generator.integers(0, 2**64 - 1, info.size_bytes // 8, np.uint64, endpoint=True)
    packed = words.view(np.uint8).reshape(info.tiles, blocks, -1)
    halves = packed[..., 16 * info.group :].view(np.float16)
    scales = generator.random((info.tiles, blocks, TILE_OUTPUTS), np.float32) * np.float32(0.4) + np.float32(0.8)
    halves[..., :TILE_OUTPUTS] = scales * np.float32(scale)
    if info.type == "asym_int4":
        halves[..., TILE_OUTPUTS:] = halves[..., :TILE_OUTPUTS] * np.float16(-7.5)
    return packed.reshape(info.tiles, info.tile_bytes)


def _write_tokenizer(folder: Path, config: Mapping[str, Any]) -> None:
    names = [*_SPECIAL_TOKENS, *sorted(ByteLevel.alphabet())]
    names += [f"<filler_{number}>" for number in range(config["vocab_size"] - len(names))]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    description = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(_SPECIAL_TOKENS)],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {name: i for i, name in enumerate(names)}, "merges": []},
    }
    Tokenizer.from_str(json.dumps(description)).save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": _CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": [2, 0], "pad_token_id": 0})
