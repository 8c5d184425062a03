"""A GGUF of a BERT encoder in Q8_0 for llama.cpp, from its Hugging Face folder: llama.cpp's converter needs torch.

Names and keys are those that llama.cpp reads. Knows nothing of our own format.
"""

import json
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from safetensors.numpy import load_file

from bench.common import ROOT

ARCHITECTURE: Final = "bert"
_LAYER: Final = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
_TOP: Final = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
}  # fmt: skip
_FLOATS: Final = ("position_embd", "token_types", "norm", "bias")


def write_bert_gguf(folder: Path, path: Path) -> None:
    """Writes the model of the folder, with mean pooling."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    writer.add_name(folder.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    _add_tokenizer(writer, folder, config["type_vocab_size"])
    for name, values in load_file(folder / "model.safetensors").items():
        renamed = _renamed(name)
        if renamed is None:
            continue
        if values.ndim == 2 and not any(part in renamed for part in _FLOATS):
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(renamed, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(renamed, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _renamed(name: str) -> str | None:
    """llama.cpp's name of a tensor; None: it reads none such."""
    module, _, kind = name.rpartition(".")
    if module in _TOP:
        return f"{_TOP[module]}.{kind}"
    parts = module.split(".", 3)
    if parts[:2] != ["encoder", "layer"]:
        return None
    return f"blk.{parts[2]}.{_LAYER[parts[3]]}.{kind}"


def _add_tokenizer(writer: Any, folder: Path, types: int) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    tokens, kinds = [""] * len(vocab), [int(gguf.TokenType.NORMAL)] * len(vocab)
    for text, number in vocab.items():
        if text in special:
            tokens[number], kinds[number] = text, int(gguf.TokenType.CONTROL)
        else:
            tokens[number] = text[2:] if text.startswith("##") else f"\u2581{text}"
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(types)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    for key, text in (
        ("bos", "[CLS]"), ("eos", "[SEP]"), ("unknown", "[UNK]"), ("seperator", "[SEP]"), ("padding", "[PAD]"),
    ):  # fmt: skip
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", vocab[text])
    writer.add_uint32("tokenizer.ggml.cls_token_id", vocab["[CLS]"])


def sample_texts() -> list[str]:
    """The project's own documentation, in paragraphs."""
    pages = (path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    paragraphs = (part.strip() for page in pages for part in page.split("\n\n"))
    return [" ".join(part.split()) for part in paragraphs if len(part) > 80 and not part.startswith(("|", "```"))]
