"""A small encoder as sentence-transformers publishes one, made by code: BERT, its modules, and a layer behind them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from quant.families.encoders import ENCODER
from quant.families.registry import describe, family_of
from tests.quant.checkpoints import write_hf_folder

BERT: Mapping[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
}
DENSE_ROWS = 16
_TYPE = "sentence_transformers.models."
FILES: Mapping[str, Any] = {
    "modules.json": [
        {"path": path, "type": f"{_TYPE}{kind}"}
        for path, kind in (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_N", "Normalize"))
    ],
    "1_Pooling/config.json": {"pooling_mode": "cls"},
    "2_Dense/config.json": {
        "in_features": 64, "out_features": DENSE_ROWS, "bias": False,
        "activation_function": "torch.nn.modules.activation.Tanh",
    },
    "sentence_bert_config.json": {"max_seq_length": 48, "do_lower_case": False},
    "config_sentence_transformers.json": {"prompts": {"query": "q: ", "document": ""}},
}  # fmt: skip

__all__ = ["BERT", "DENSE_ROWS", "ENCODER", "FILES", "write_encoder_folder"]


def write_encoder_folder(folder: Path, files: Mapping[str, Any] = FILES, config: Mapping[str, Any] = BERT) -> Path:
    """Writes it; files: JSON by name beside the configuration."""
    rng = np.random.default_rng(0)
    stored = {}
    decoder = describe(config, "config.json")
    for tensor in family_of(config, "config.json").tensors(config, decoder).values():
        (piece,) = tensor.pieces
        shape = (tensor.shape[0] + piece.padding, *tensor.shape[1:])
        stored[piece.name] = rng.normal(0, 0.1, shape).astype(np.float32)
    types = stored["embeddings.token_type_embeddings.weight"]
    stored["embeddings.token_type_embeddings.weight"] = types.reshape(-1, int(config["hidden_size"]))
    write_hf_folder(folder, stored, config)
    (folder / "chat_template.jinja").unlink()
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    if "2_Dense/config.json" in files:
        weight = rng.normal(0, 0.1, (DENSE_ROWS, int(config["hidden_size"]))).astype(np.float32)
        save_file({"linear.weight": weight}, folder / "2_Dense/model.safetensors")
    return folder
