"""BERT, RoBERTa and XLM-RoBERTa: hidden states, token types, pooling, and score heads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant.errors import UnsupportedModelError
from tests.families import encoder_parity

pytestmark = pytest.mark.parity

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 192,
}
MODULES = {
    "modules.json": [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ],
    "1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
    "sentence_bert_config.json": {"max_seq_length": 160, "do_lower_case": False},
    "config_sentence_transformers.json": {"prompts": {"query": "query: ", "passage": "passage: "}},
}


@pytest.mark.parametrize("kind", ["BertModel", "RobertaModel", "XLMRobertaModel"])
def test_hidden_states(kind: str, tmp_path: Path) -> None:
    model = encoder_parity.random_encoder(kind, tmp_path / "model", **SIZES)
    ours = encoder_parity.check(tmp_path / "model", model)
    batch = encoder_parity.texts()
    hidden = ours.hidden(batch)
    first = np.stack([hidden[end - each.size : end].mean(axis=0) for each, end in _ends(batch)])
    lengths = np.linalg.norm(first, axis=1, keepdims=True)
    np.testing.assert_allclose(ours.vectors(batch), first / lengths, rtol=1e-5, atol=1e-6)


def test_token_types(tmp_path: Path) -> None:
    import torch

    model = encoder_parity.random_encoder("BertModel", tmp_path / "model", **SIZES)
    ours = encoder_parity.converted(tmp_path / "model")
    batch = encoder_parity.texts([40, 40])
    types = torch.tensor([[0] * 15 + [1] * 25])
    with torch.no_grad():
        theirs = model(torch.tensor(batch[1][None].astype(np.int64)), token_type_ids=types).last_hidden_state[0].numpy()
    encoder_parity.close(ours.hidden(batch, [40, 15])[40:], theirs)


@pytest.mark.parametrize("kind", ["BertModel", "RobertaModel"])
def test_a_sentence_transformer(kind: str, tmp_path: Path) -> None:
    encoder_parity.random_encoder(kind, tmp_path / "model", modules=MODULES, **SIZES)
    ours = encoder_parity.converted(tmp_path / "model")
    batch = encoder_parity.texts()
    hidden = ours.hidden(batch)
    first = np.stack([hidden[end - each.size] for each, end in _ends(batch)])
    np.testing.assert_array_equal(ours.vectors(batch), first)


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "XLMRoberta"])
def test_a_reranker(kind: str, tmp_path: Path) -> None:
    import torch

    name = f"{kind}ForSequenceClassification"
    model = encoder_parity.random_encoder(name, tmp_path / "model", num_labels=1, **SIZES)
    ours = encoder_parity.converted(tmp_path / "model")
    batch = encoder_parity.texts()
    with torch.no_grad():
        theirs = [model(torch.tensor(each[None].astype(np.int64))).logits[0].numpy() for each in batch]
    encoder_parity.close(ours.vectors(batch), np.stack(theirs))
    assert ours.head.scores


def test_int8(tmp_path: Path) -> None:
    """Of random weights: the codes' error, about a hundredth of a vector, over three layers."""
    encoder_parity.random_encoder("BertModel", tmp_path / "model", **SIZES)
    exact = encoder_parity.converted(tmp_path / "model").vectors(encoder_parity.texts())
    ours = encoder_parity.converted(tmp_path / "model", "auto", "int8").vectors(encoder_parity.texts())
    assert (ours * exact).sum(axis=1).min() > 0.999


def test_a_classifier_of_several_classes_is_refused(tmp_path: Path) -> None:
    encoder_parity.random_encoder("BertForSequenceClassification", tmp_path / "model", num_labels=3, **SIZES)
    with pytest.raises(UnsupportedModelError, match="3 labels"):
        encoder_parity.converted(tmp_path / "model")


def _ends(batch: Any) -> Any:
    return list(zip(batch, np.cumsum([each.size for each in batch]), strict=True))
