"""ModernBERT, and Qwen3 and Gemma 3 as they are published for embeddings."""

from pathlib import Path
from typing import Any

import pytest

from tests.families import encoder_parity

pytestmark = pytest.mark.parity

MODERN: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "local_attention": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
QWEN: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GEMMA: dict[str, Any] = {
    **QWEN,
    "hidden_size": 64,
    "sliding_window": 32,
    "sliding_window_pattern": 3,
    "query_pre_attn_scalar": 32,
    "use_bidirectional_attention": True,
}
MODULES = {
    "modules.json": [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False},
}


def test_modernbert(tmp_path: Path) -> None:
    model = encoder_parity.random_encoder("ModernBertModel", tmp_path / "model", **MODERN)
    encoder_parity.check(tmp_path / "model", model)


def test_qwen3_embedding(tmp_path: Path) -> None:
    model = encoder_parity.random_encoder("Qwen3Model", tmp_path / "model", modules=MODULES, **QWEN)
    ours = encoder_parity.check(tmp_path / "model", model)
    assert ours.head.pooling == "last"


def test_embedding_gemma(tmp_path: Path) -> None:
    model = encoder_parity.random_encoder("Gemma3TextModel", tmp_path / "model", modules=MODULES, **GEMMA)
    encoder_parity.check(tmp_path / "model", model)
