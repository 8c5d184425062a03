"""ModernBERT, NomicBERT, and decoders as they are published for embeddings and as rerankers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from app.interface.text.encoder_model import EncoderModel
from quant.errors import UnsupportedModelError
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


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_modernbert_reranker(pooling: str, tmp_path: Path) -> None:
    import torch

    kind = "ModernBertForSequenceClassification"
    options = {**MODERN, "classifier_pooling": pooling, "num_labels": 1}
    model = encoder_parity.random_encoder(kind, tmp_path / "model", **options)
    ours = encoder_parity.converted(tmp_path / "model")
    batch = encoder_parity.texts()
    with torch.no_grad():
        theirs = [model(torch.tensor(each[None].astype(np.int64))).logits[0].numpy() for each in batch]
    encoder_parity.close(ours.vectors(batch), np.stack(theirs))
    assert ours.head.scores


def test_nomic_bert(tmp_path: Path) -> None:
    options = {key: MODERN[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads")}
    options |= {"num_hidden_layers": 3, "max_position_embeddings": 192}
    model = encoder_parity.random_encoder("NomicBertModel", tmp_path / "model", **options)
    ours = encoder_parity.check(tmp_path / "model", model)
    published = {
        "model_type": "nomic_bert", "architectures": ["NomicBertModel"], "auto_map": {"AutoModel": "code"},
        "vocab_size": 320, "n_embd": 64, "n_inner": 96, "n_head": 4, "n_layer": 3, "n_positions": 384,
        "max_trained_positions": 192, "activation_function": "swiglu", "layer_norm_epsilon": 1e-12,
        "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_scaling_factor": 2, "qkv_proj_bias": False,
        "mlp_fc1_bias": False, "mlp_fc2_bias": False, "prenorm": False, "causal": False, "type_vocab_size": 2,
    }  # fmt: skip
    (tmp_path / "model/config.json").write_text(json.dumps(published))
    again = encoder_parity.converted(tmp_path / "model")
    batch = encoder_parity.texts()
    np.testing.assert_array_equal(again.vectors(batch), ours.vectors(batch))
    assert again.model.max_tokens == 192
    text = EncoderModel.load(again.folder)
    assert text.prompt("query") == "search_query: "
    assert text.prompt(None) == ""


def test_qwen3_embedding(tmp_path: Path) -> None:
    model = encoder_parity.random_encoder("Qwen3Model", tmp_path / "model", modules=MODULES, **QWEN)
    ours = encoder_parity.check(tmp_path / "model", model)
    assert ours.head.pooling == "last"


def test_embedding_gemma(tmp_path: Path) -> None:
    model = encoder_parity.random_encoder("Gemma3TextModel", tmp_path / "model", modules=MODULES, **GEMMA)
    encoder_parity.check(tmp_path / "model", model)


@pytest.mark.parametrize("tied", [True, False])
def test_a_qwen3_reranker(tied: bool, tmp_path: Path) -> None:
    import torch

    folder = tmp_path / "Qwen3-Reranker-tiny"
    options = {**QWEN, "max_position_embeddings": 512, "tie_word_embeddings": tied}
    model = encoder_parity.random_encoder("Qwen3ForCausalLM", folder, **options)
    tokenizer = _with_answers(folder)
    ours = encoder_parity.converted(folder)
    text = EncoderModel.load(ours.folder)
    pairs = [np.array(ids, np.int32) for ids, _ in text.pairs("What is a fox?", ["An animal.", "It rains and rains."])]
    shown = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(pairs[0].tolist(), skip_special_tokens=False)
    assert shown.index("<Query>: What is a fox?\n<Document>: An animal.<|im_end|>") > shown.index("Judge whether")
    with torch.no_grad():
        logits = [model(torch.tensor(ids[None].astype(np.int64))).logits[0, -1].numpy() for ids in pairs]
    theirs = [[each[tokenizer["yes"]] - each[tokenizer["no"]]] for each in logits]
    assert np.abs(theirs).min() > 0.01
    np.testing.assert_allclose([ours.vectors([ids])[0] for ids in pairs], theirs, rtol=1e-4)
    assert (text.scores, text.dimensions) == (True, 1)


def test_a_qwen3_classifier_is_the_same_reranker(tmp_path: Path) -> None:
    import torch

    folder = tmp_path / "Qwen3-Reranker-tiny-seq-cls"
    options = {**QWEN, "num_labels": 1, "pad_token_id": 0}
    model = encoder_parity.random_encoder("Qwen3ForSequenceClassification", folder, **options)
    ours = encoder_parity.converted(folder)
    batch = encoder_parity.texts()
    with torch.no_grad():
        theirs = [model(torch.tensor(each[None].astype(np.int64))).logits[0].numpy() for each in batch]
    encoder_parity.close(ours.vectors(batch), np.stack(theirs))
    folder.rename(tmp_path / "another")
    with pytest.raises(UnsupportedModelError, match="prompt that is not known"):
        encoder_parity.converted(tmp_path / "another")


def _with_answers(folder: Path) -> dict[str, int]:
    """Gives the tokenizer the tokens that a reranker answers; returns them."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    answers = {"yes": len(vocab), "no": len(vocab) + 1}
    path.write_text(json.dumps({**tokenizer, "model": {**tokenizer["model"], "vocab": {**vocab, **answers}}}))
    return answers
