"""What encoders of all families share: what is made of the last layer's output, from the configuration.

`sentence_transformers` in a configuration is what quant/sources/sentence_transformers.py found beside it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from quant.families.description import Decoder, Dense, Encoder, Pooling
from quant.families.family import Config, Piece
from quant.families.names import DENSE, engine_tensors
from quant.families.settings import Settings

_CLASSIFIER: Final = "ForSequenceClassification"
_KEY: Final = "sentence_transformers"
ENCODER: Final = "redoubt_encoder"
"""The key of a converted configuration."""


_SHORTER: Final = {"gemma3_text": [128, 256, 512]}
"""Numbers to which vectors may be cut, by the models' cards; their configurations don't say it."""
_SHORTEST_OF_QWEN: Final = 32
"""The same: any number from this on."""
_PROMPTS: Final = {"nomic_bert": {"query": "search_query: ", "document": "search_document: "}}
"""By the models' cards, where nothing is said beside the configuration."""


def scores(config: Config) -> bool:
    """Whether the checkpoint gives a text, or a pair of texts, one number."""
    architectures = config.get("architectures")
    return isinstance(architectures, list) and any(str(each).endswith(_CLASSIFIER) for each in architectures)


def check_one_label(settings: Settings) -> None:
    """Raises UnsupportedModelError for a classifier of several classes."""
    labels = settings.get("id2label")
    count = len(labels) if isinstance(labels, Mapping) else settings.size("num_labels", 2)
    if count != 1:
        raise settings.unsupported("id2label", f"has {count} labels; supported are rerankers, with one")


def embedder(config: Config, where: str) -> Encoder:
    """What modules.json says; without it the mean, of length 1."""
    found = Settings(config, where).section(_KEY)
    if found is None:
        return Encoder("mean", normalized=True)
    dense = tuple(Dense(**each) for each in found.items("dense"))
    pooling: Pooling = found.text("pooling", "mean")  # type: ignore[assignment]
    return Encoder(pooling, normalized=found.flag("normalize", False), dense=dense, scores=found.flag("scores", False))


def as_encoder(decoder: Decoder, config: Config, where: str) -> Decoder:
    """The description of a family's decoder that is published as a sentence-transformers model."""
    return replace(decoder, encoder=embedder(config, where), tied_head=True, head_bias=False, logit_softcap=0.0)


def converted_config(standard: dict[str, Any], config: Config, decoder: Decoder) -> dict[str, Any]:
    """A converted configuration with what an encoder's says of it, for who tokenizes texts for it.

    standard: what it has of every model. config: the checkpoint's.
    """
    if decoder.encoder is None:
        return standard
    kept = {key: value for key, value in standard.items() if key != _KEY}
    return kept | {ENCODER: _encoder_config(config, decoder)}


def _encoder_config(config: Config, decoder: Decoder) -> dict[str, Any]:
    encoder, found = decoder.encoder, config.get(_KEY) or {}
    assert encoder is not None
    size = encoder.dense[-1].rows if encoder.dense else decoder.hidden_size
    size = 1 if encoder.scores else size
    longest = min(decoder.max_positions, found.get("max_tokens", decoder.max_positions))
    result: dict[str, Any] = {
        "task": "score" if encoder.scores else "embed",
        "dimensions": size,
        "normalized": encoder.normalized,
        "max_tokens": longest,
    }
    shorter = config.get("matryoshka_dimensions", _SHORTER.get(str(config.get("model_type"))))
    if config.get("model_type") == "qwen3" and not encoder.scores:
        result["shortest"] = _SHORTEST_OF_QWEN
    if isinstance(shorter, list):
        result["shorter"] = [each for each in shorter if type(each) is int and 0 < each < size]
    kept = {key: found[key] for key in ("prompts", "default_prompt", "lower_case", "frame") if key in found}
    usual = _PROMPTS.get(str(config.get("model_type")))
    return result | ({"prompts": usual} if usual else {}) | kept


def head_pieces(decoder: Decoder, stored: Mapping[str, str]) -> dict[str, tuple[Piece, ...]]:
    """The stored tensors of the layers behind the pooling, by the engine's names.

    stored: of a score head, its modules by the number in the name; others are a sentence-transformers folder's.
    """
    pieces: dict[str, tuple[Piece, ...]] = {}
    for name in engine_tensors(decoder):
        if name.startswith(DENSE):
            module, _, kind = name.removeprefix(DENSE).rpartition(".")
            pieces[name] = (Piece(f"{stored[module]}.{kind}" if stored else name),)
    return pieces
