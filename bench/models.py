"""One model in every form that an engine reads: our packed folder, a GGUF, a Hugging Face folder in bf16.

All forms of the embedded model are made from its GGUF. A model with random weights is made twice: our form by
`quant.conversion.synth`, and here as Q4_0 (its head and embedding too); speed does not depend on the values. Models are
made once and kept. Does not know which engine reads which form.
"""

import json
import math
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from tqdm import tqdm  # type: ignore[import-untyped]

from bench import gpt_oss_gguf, hybrid_gguf
from quant.codes.dequantize import dequantize
from quant.codes.matrix import F32, QuantizedMatrix
from quant.conversion.shapes import SHAPES, of_layers
from quant.conversion.synth import synth
from quant.conversion.upgrade import is_old_layout, upgrade
from quant.sources.gguf_source import open_gguf
from quant.sources.source import SourceTensor

RANDOM_SHAPES: Mapping[str, str] = {
    "1.1b": "tinyllama-1.1b",
    "7b": "llama2-7b",
    "8b": "llama3.1-8b",
    "qwen3-8b": "qwen3-8b",
    "a3b-12": "qwen3-30b-a3b",
    "a3b": "qwen3-30b-a3b",
    "gpt-oss-12": "gpt-oss-20b",
    "hybrid-8": "qwen3.6-35b-a3b",
    "hybrid": "qwen3.6-35b-a3b",
}
FEWER_LAYERS: Mapping[str, int] = {"a3b-12": 12, "gpt-oss-12": 12, "hybrid-8": 8}
"""Models that are the first layers of their shape, for machines that can't hold two forms of the whole."""
NAMES = ("embedded", *RANDOM_SHAPES)
EMBEDDED_NAME = "smollm2-135m-instruct"
_EMBEDDED_SHAPE = "smollm2-135m"
Q4_0_GROUP, Q4_0_BYTES = 32, 18  # ggml's block_q4_0: an fp16 scale and 16 bytes of codes
LONGEST_CONTEXT_TOKENS = 16384
"""The context length in random models' metadata, so that no engine refuses a long context."""


@dataclass(frozen=True, slots=True)
class BenchModel:
    """The paths of each form of one model; a form is made when it is first needed."""

    name: str
    packed: Path
    gguf: Path
    hf: Path

    def make_packed(self) -> Path:
        """Makes our form, once. Raises FileNotFoundError if the embedded model was not fetched, QuantError."""
        if not (self.packed / "config.json").exists():
            if self.name not in RANDOM_SHAPES:
                raise FileNotFoundError(f"{self.packed}: the embedded model is not there; `make model` fetches it")
            synth(RANDOM_SHAPES[self.name], self.packed, layers=FEWER_LAYERS.get(self.name))
        if is_old_layout(self.packed):
            upgrade(self.packed, self.packed, force=True)
        return self.packed

    def make_gguf(self) -> Path:
        """Makes the GGUF likewise. Raises FileNotFoundError as above, ImportError without the `gguf` package."""
        if not self.gguf.exists():
            if self.name not in RANDOM_SHAPES:
                raise FileNotFoundError(f"{self.gguf}: the embedded model is not there; `make model` fetches it")
            self.gguf.parent.mkdir(parents=True, exist_ok=True)
            partial = self.gguf.with_suffix(".partial")
            write_random_gguf(shape_of(self.name), partial)
            partial.rename(self.gguf)
        return self.gguf

    def make_hf(self) -> Path:
        """Makes the Hugging Face folder in bf16 from the GGUF. Raises what make_gguf raises, ImportError, OSError."""
        if not self.hf.exists():
            self.hf.parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=".partial-", dir=self.hf.parent))
            try:
                export_hf(self.make_gguf(), folder)
                folder.rename(self.hf)
            except BaseException:
                shutil.rmtree(folder)
                raise
        return self.hf


def bench_model(name: str, models: Path, made: Path) -> BenchModel:
    """The model called `name` (one of NAMES).

    models: the folder of the embedded model (`make model`), and of random models that `redoubt synth` has written under
    the shape's name with -synth. made: the folder for all other forms.
    """
    if name == "embedded":
        gguf = models / f"{EMBEDDED_NAME}.gguf"
        return BenchModel(name, models / EMBEDDED_NAME, gguf, made / f"{EMBEDDED_NAME}-bf16")
    shape = RANDOM_SHAPES[name]
    if name in FEWER_LAYERS:
        shape += f"-{FEWER_LAYERS[name]}-layers"
    kept = models / f"{shape}-synth"
    packed = kept if kept.exists() else made / f"{shape}-synth"
    return BenchModel(name, packed, made / f"{shape}-random.Q4_0.gguf", made / f"{shape}-random-bf16")


def long_context_model(layers: int, context_tokens: int, made: Path) -> BenchModel:
    """Random weights in the embedded model's shape, of any number of layers and any context; made now, unless there."""
    shape = {**of_layers(SHAPES[_EMBEDDED_SHAPE], layers), "max_position_embeddings": context_tokens}
    name = f"{_EMBEDDED_SHAPE}-{layers}-layers-{context_tokens}"
    model = BenchModel(name, made / f"{name}-synth", made / f"{name}-random.Q4_0.gguf", made / f"{name}-random-bf16")
    if not model.packed.exists():
        partial = made / f".{name}-partial"
        synth(_EMBEDDED_SHAPE, partial, layers=layers, force=True)
        config = partial / "config.json"
        lengths = {"max_position_embeddings": context_tokens}
        config.write_text(json.dumps(json.loads(config.read_text()) | lengths, indent=2))
        partial.rename(model.packed)
    if not model.gguf.exists():
        partial = model.gguf.with_suffix(".partial")
        write_random_gguf(shape, partial)
        partial.rename(model.gguf)
    return model


def shape_of(name: str) -> Mapping[str, Any]:
    """The config.json of a random model, one of RANDOM_SHAPES."""
    return of_layers(SHAPES[RANDOM_SHAPES[name]], FEWER_LAYERS.get(name))


def weights_of(name: str) -> int:
    """The weights that a token's computation needs: those of all layers and of the head; of experts, the chosen ones.

    name: one of NAMES.
    """
    shape = shape_of(name) if name in RANDOM_SHAPES else SHAPES[_EMBEDDED_SHAPE]
    weights = {tensor: math.prod(sizes) for tensor, sizes in _tensor_shapes(shape).items()}
    for tensor in weights:
        if "_exps." in tensor:
            weights[tensor] = weights[tensor] // _experts_of(shape) * shape["num_experts_per_tok"]
    return sum(count for tensor, count in weights.items() if tensor != "token_embd.weight")


def _experts_of(shape: Mapping[str, Any]) -> int:
    """Experts per layer; 0 if there are none."""
    return int(shape.get("num_experts", shape.get("num_local_experts", 0)))


def _architecture(shape: Mapping[str, Any]) -> str:
    if hybrid_gguf.is_hybrid(shape):
        return hybrid_gguf.ARCHITECTURE
    if gpt_oss_gguf.is_gpt_oss(shape):
        return gpt_oss_gguf.ARCHITECTURE
    if shape["model_type"] == "qwen3":
        return "qwen3"
    return "qwen3moe" if _experts_of(shape) else "llama"


def write_random_gguf(shape: Mapping[str, Any], path: Path, *, seed: int = 0, progress: bool = True) -> None:
    """Writes a GGUF of Llama, Qwen3, Qwen3-MoE, Qwen3.5-MoE or gpt-oss with a vocabulary of bytes, and norms of 1.

    Its random matrices are Q4_0; gpt-oss' experts are MXFP4.
    """
    import gguf

    writer = gguf.GGUFWriter(path, _architecture(shape))
    _add_metadata(writer, gguf, shape)
    _add_vocabulary(writer, gguf, shape["vocab_size"])
    rng = np.random.Generator(np.random.SFC64(seed))
    tensors = _tensor_shapes(shape)
    for name, sizes in tensors.items():
        if _is_float(name, sizes):
            writer.add_tensor_info(name, sizes, np.dtype(np.float32), 4 * math.prod(sizes))
        else:
            mxfp4 = _is_mxfp4(shape, name)
            stored = (*sizes[:-1], sizes[-1] // Q4_0_GROUP * (gpt_oss_gguf.MXFP4_BYTES if mxfp4 else Q4_0_BYTES))
            quantized = gguf.GGMLQuantizationType.MXFP4 if mxfp4 else gguf.GGMLQuantizationType.Q4_0
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), math.prod(stored), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, sizes in tqdm(tensors.items(), desc="Writing", unit="tensor", disable=not progress, leave=False):
        if len(sizes) == 1:
            writer.write_tensor_data(np.full(sizes[0], -1 if name.endswith("ssm_a") else 1, np.float32))
        elif _is_float(name, sizes):
            writer.write_tensor_data(rng.standard_normal(sizes, np.float32) / np.float32(math.sqrt(sizes[1])))
        elif _is_mxfp4(shape, name):
            writer.write_tensor_data(_random_mxfp4(rng, math.prod(sizes[:-1]), sizes[-1]))
        else:
            writer.write_tensor_data(_random_q4_0(rng, math.prod(sizes[:-1]), sizes[-1]))
    writer.close()


def _is_float(name: str, sizes: tuple[int, ...]) -> bool:
    """Whether a tensor is fp32: norms, biases, the routers of experts, and what is small of Gated DeltaNet."""
    if len(sizes) == 1 or name.endswith(".bias"):
        return True
    return any(part in name for part in ("ffn_gate_inp", *hybrid_gguf.FLOATS))


def _is_mxfp4(shape: Mapping[str, Any], name: str) -> bool:
    return gpt_oss_gguf.is_gpt_oss(shape) and name.endswith("_exps.weight")


def _add_metadata(writer: Any, gguf: Any, shape: Mapping[str, Any]) -> None:
    hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
    head_dim = shape.get("head_dim") or hidden // heads
    writer.add_name("random")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_context_length(max(LONGEST_CONTEXT_TOKENS, shape["max_position_embeddings"]))
    writer.add_embedding_length(hidden)
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(shape["rope_theta"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape["vocab_size"])
    if _experts_of(shape):
        writer.add_expert_count(_experts_of(shape))
        writer.add_expert_used_count(shape["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(shape.get("moe_intermediate_size", shape["intermediate_size"]))
    if gpt_oss_gguf.is_gpt_oss(shape):
        gpt_oss_gguf.add_metadata(writer, shape)
    elif hybrid_gguf.is_hybrid(shape):
        hybrid_gguf.add_metadata(writer, shape)
    else:
        writer.add_rope_dimension_count(head_dim)


def _tensor_shapes(shape: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads, vocab = shape["hidden_size"], shape["num_attention_heads"], shape["vocab_size"]
    head_dim = shape.get("head_dim") or hidden // heads
    queries, keys = heads * head_dim, shape["num_key_value_heads"] * head_dim
    result: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, hidden)}
    for layer in range(shape["num_hidden_layers"]):
        if gpt_oss_gguf.is_gpt_oss(shape):
            result |= {f"blk.{layer}.{name}": size for name, size in gpt_oss_gguf.layer_sizes(shape).items()}
            continue
        if hybrid_gguf.is_hybrid(shape):
            own = hybrid_gguf.layer_sizes(shape, layer) | _expert_sizes(shape)
            result |= {f"blk.{layer}.{name}": size for name, size in own.items()}
            continue
        sizes: dict[str, tuple[int, ...]] = {
            **{"attn_norm": (hidden,), "attn_q": (queries, hidden), "attn_k": (keys, hidden)},
            **{"attn_v": (keys, hidden), "attn_output": (hidden, queries), "ffn_norm": (hidden,)},
        }
        if shape["model_type"].startswith("qwen3"):
            sizes |= {"attn_q_norm": (head_dim,), "attn_k_norm": (head_dim,)}
        if "num_experts" in shape:
            result |= {f"blk.{layer}.{name}": size for name, size in _expert_sizes(shape).items()}
        else:
            inner = shape["intermediate_size"]
            sizes |= {"ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
        result |= {f"blk.{layer}.{name}.weight": size for name, size in sizes.items()}
    return result | {"output_norm.weight": (hidden,), "output.weight": (vocab, hidden)}


def _expert_sizes(shape: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, count, inner = shape["hidden_size"], shape["num_experts"], shape["moe_intermediate_size"]
    up = (count, inner, hidden)
    sizes = {"inp": (count, hidden), "exps": up}
    result: dict[str, tuple[int, ...]] = {f"ffn_gate_{part}.weight": size for part, size in sizes.items()}
    return result | {"ffn_up_exps.weight": up, "ffn_down_exps.weight": (count, hidden, inner)}


def _random_q4_0(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Random blocks, uint8 [rows, bytes of a row], with scales that keep the activations' magnitude."""
    blocks = np.frombuffer(rng.bytes(rows * cols // Q4_0_GROUP * Q4_0_BYTES), np.uint8).copy()
    blocks = blocks.reshape(rows, cols // Q4_0_GROUP, Q4_0_BYTES)
    code_rms = 4.6
    scales = rng.uniform(0.8, 1.2, blocks.shape[:2]) / np.sqrt(cols) / code_rms
    blocks[:, :, :2] = scales.astype(np.float16)[:, :, None].view(np.uint8)
    return blocks.reshape(rows, -1)


def _random_mxfp4(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Makes random MXFP4 blocks likewise."""
    blocks = np.frombuffer(rng.bytes(rows * cols // gpt_oss_gguf.MXFP4_GROUP * gpt_oss_gguf.MXFP4_BYTES), np.uint8)
    blocks = blocks.copy().reshape(rows, -1, gpt_oss_gguf.MXFP4_BYTES)
    blocks[:, :, 0] = 127 + round(math.log2(1 / math.sqrt(cols) / gpt_oss_gguf.MXFP4_RMS))
    return blocks.reshape(rows, -1)


def _add_vocabulary(writer: Any, gguf: Any, size: int) -> None:
    """A vocabulary of bytes, one merge (readers need one) and fillers, for engines that need a tokenizer."""
    from tokenizers.pre_tokenizers import ByteLevel

    names = ["<|endoftext|>", *sorted(ByteLevel.alphabet()), "Ġa"]
    names += [f"<filler_{number}>" for number in range(size - len(names))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (size - 1))
    writer.add_token_merges(["Ġ a"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)


def export_hf(gguf_path: Path, folder: Path) -> None:
    """Writes the same weights, dequantized and rounded to bf16, for transformers: one shard for each layer."""
    from safetensors.numpy import save_file

    source = open_gguf(gguf_path)
    source.write_tokenizer(folder)
    config = {**source.config, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    shards: dict[str, list[SourceTensor]] = {}
    for name, tensor in source.tensors.items():
        part = name.split(".")[2] if name.startswith("model.layers.") else "rest"
        shards.setdefault(f"model-{part}.safetensors", []).append(tensor)
    for file, tensors in tqdm(shards.items(), desc="Exporting", unit="shard", leave=False):
        arrays = {tensor.name: _values(tensor).astype(bfloat16) for tensor in tensors}
        save_file(arrays, folder / file, metadata={"format": "pt"})
    index = {tensor.name: file for file, tensors in shards.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def _values(tensor: SourceTensor) -> F32:
    values = tensor.read(0, tensor.shape[0])
    return dequantize(values) if isinstance(values, QuantizedMatrix) else values
