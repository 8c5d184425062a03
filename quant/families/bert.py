"""BERT, RoBERTa and XLM-RoBERTa: encoders with learned positions, LayerNorm after each part and GELU.

As sentence-transformers publishes them, or as rerankers with a score head.
"""

import math
from collections.abc import Mapping
from typing import Final

from quant.families.description import Attention, Decoder, Dense, Encoder, Layer, Mlp
from quant.families.encoders import check_one_label, embedder, head_pieces, scores
from quant.families.family import Config, Family, Piece, Tensor
from quant.families.modules import Modules, Stored, by_module, prefixed, usual_keys
from quant.families.settings import Settings
from quant.families.standard import activation_of, norm_epsilon, read_sizes

_BERT: Final = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "max_position_embeddings": 512,
}  # fmt: skip
_BERT_HEAD: Final = {"0": "bert.pooler.dense", "1": "classifier"}
_ROBERTA_HEAD: Final = {"0": "classifier.dense", "1": "classifier.out_proj"}
_PARTS: Final[Modules] = {
    **{f"self_attn.{part[0]}_proj": f"attention.self.{part}" for part in ("query", "key", "value")},
    "self_attn.o_proj": "attention.output.dense",
    "attention_output_norm": "attention.output.LayerNorm",
    "mlp.up_proj": "intermediate.dense",
    "mlp.down_proj": "output.dense",
    "mlp_output_norm": "output.LayerNorm",
}


def _first_position(settings: Settings) -> int:
    """RoBERTa counts positions from the one after its padding token's number."""
    return 0 if settings.text("model_type", "bert") == "bert" else settings.count("pad_token_id", 1) + 1


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(usual_keys(config, _BERT), where)
    settings.only("position_embedding_type", "absolute")
    settings.only("is_decoder", False)
    settings.only("add_cross_attention", False)
    first = _first_position(settings)
    positions = settings.size("max_position_embeddings") - first
    usual = {**usual_keys(config, _BERT), "max_position_embeddings": positions}
    sizes = read_sizes(Settings(usual, where), tied=True)
    layer = Layer(
        Attention(1 / math.sqrt(sizes.head_dim), rope=None, causal=False, qkv_bias=True, output_bias=True),
        Mlp(settings.size("intermediate_size"), activation_of(settings, default="gelu"), gated=False, bias=True),
        attention_norm=False,
        attention_output_norm=True,
        mlp_norm=False,
        mlp_output_norm=True,
        norms_sum=True,
    )
    return sizes.decoder(
        [layer] * sizes.layers,
        ropes=(),
        norm="layer",
        norm_epsilon=norm_epsilon(settings, "layer_norm_eps", 1e-12),
        norm_bias=True,
        final_norm=False,
        embedding_norm=True,
        learned_positions=True,
        token_types=settings.size("type_vocab_size", 2),
        encoder=_encoder(settings, config, sizes.hidden_size),
    )


def _encoder(settings: Settings, config: Config, hidden: int) -> Encoder:
    if not scores(config):
        return embedder(config, settings.where)
    check_one_label(settings)
    dense = (Dense(hidden, hidden, activation="tanh"), Dense(1, hidden))
    return Encoder("first", normalized=False, dense=dense, scores=True)


def _tensors(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    settings = Settings(config, "config.json")
    first = _first_position(settings)
    top: Modules = {
        "model.embed_tokens": "embeddings.word_embeddings",
        "model.embed_positions": Stored("embeddings.position_embeddings", slice(first, None), padding=first),
        "model.embed_norm": "embeddings.LayerNorm",
    }
    bert = settings.text("model_type", "bert") == "bert"
    head = (_BERT_HEAD if bert else _ROBERTA_HEAD) if scores(config) else {}
    types = Piece("embeddings.token_type_embeddings.weight")
    others = {"model.embed_types.weight": (types,), **head_pieces(decoder, head)}
    return by_module(decoder, top, "encoder.layer.{}.", _PARTS, others=others)


def _within(name: str) -> Mapping[str, str]:
    return {part: f"{name}.{part}" for part in ("embeddings.", "encoder.layer.")}


def _in_bert(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    """Saved with a head."""
    tensors = _tensors(config, decoder)
    for before, after in _within("bert").items():
        tensors = prefixed(tensors, before, after)
    return tensors


def _in_roberta(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    tensors = _tensors(config, decoder)
    for before, after in _within("roberta").items():
        tensors = prefixed(tensors, before, after)
    return tensors


_IGNORED: Final = ("*position_ids", "*token_type_ids", "*pooler.dense.*", "cls.*", "lm_head.*")

BERT: Final = Family(("bert",), "BertModel", _describe, _tensors, _IGNORED, alternatives=(_in_bert,), head="")
ROBERTA: Final = Family(
    ("roberta", "xlm-roberta"), "RobertaModel", _describe, _tensors, _IGNORED, alternatives=(_in_roberta,), head=""
)
