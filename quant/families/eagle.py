"""EAGLE-3 heads (Li et al. 2025): one layer of Llama's that drafts for a model, published apart from it.

Two forms of configuration: Llama's with a `draft_vocab_size` (EAGLE, SpecForge, AngelSlim), and Speculators', which has
the layer's in `transformer_layer_config`. Two spellings of tensors, `midlayer.*` and `layers.0.*`. Reads no files.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from quant.families.description import Attention, Decoder, Layer, Predictor
from quant.families.family import Config, Piece, Tensor
from quant.families.llama import decoder_of, dense_mlp
from quant.families.names import DRAFT_HEAD, DRAFT_TOKENS, EAGLE_STATES, PREDICTOR, engine_tensors
from quant.families.settings import Settings
from quant.families.standard import MOST_LAYERS, read_sizes

ARCHITECTURE: Final = "LlamaForCausalLMEagle3"
"""The architecture in a converted head's configuration, by which the service knows it."""
HEAD_TOKENS: Final = 32_000
"""Rows of nearly every published head."""
_LAYERS: Final = ("midlayer.", "layers.0.")
_NAMES: Final = {
    "embedding_norm.weight": "{}input_layernorm.weight",
    "hidden_norm.weight": "{}hidden_norm.weight",
    "input_norm.weight": "input_norm.weight",
    "input_proj.weight": "fc.weight",
    "output_norm.weight": "norm.weight",
    "head.weight": "lm_head.weight",
}
_STATES: Final = "eagle_aux_hidden_state_layer_ids"


def is_eagle_head(config: Config) -> bool:
    """Whether a configuration is of an EAGLE-3 head."""
    architectures = config.get("architectures")
    named = isinstance(architectures, list) and any("eagle3" in str(each).lower() for each in architectures)
    return named or "draft_vocab_size" in config or config.get("speculators_model_type") == "eagle3"


def head_config(config: Config) -> dict[str, Any]:
    """The configuration with the layer's keys beside the head's, whichever form it has."""
    layer = config.get("transformer_layer_config")
    merged = {**config, **layer} if isinstance(layer, Mapping) else dict(config)
    merged.pop("transformer_layer_config", None)
    return merged


def describe_head(config: Config, where: str, head_tokens: int) -> Decoder:
    """Describes a head by its `head_config`. head_tokens: rows of its own output head; 0: it has none.

    Raises SourceError and UnsupportedModelError, which name the file and the key.
    """
    settings = Settings(config, where)
    settings.only("model_type", "llama")
    settings.only("num_hidden_layers", 1)
    sizes = read_sizes(settings)
    settings.only("target_hidden_size", sizes.hidden_size)
    nested = settings.section("eagle_config") or Settings({}, where)
    for each in (settings, nested):
        each.only("fc_norm", False)
        each.only("use_aux_hidden_state", True)
        each.only("parallel_drafting", False)
    settings.only("embed_requires_grad", False)
    if settings.get("layer_types", ["full_attention"]) != ["full_attention"]:
        raise settings.unsupported("layer_types", "names another attention than full_attention, which is not supported")
    bias = settings.flag("attention_bias", False)
    attention = Attention(1 / math.sqrt(sizes.head_dim), qkv_bias=bias, output_bias=bias)
    layer = Layer(attention, dense_mlp(settings, bias=True), attention_norm=False)
    predictor = Predictor(
        0,
        head_tokens,
        eagle=True,
        states=_states(settings, nested),
        input_norm=settings.flag("norm_before_fc", nested.flag("norm_before_fc", False)),
        normalized_residual=settings.flag("norm_before_residual", False),
        normalized_output=settings.flag("norm_output", False),
    )
    decoder = decoder_of(settings, sizes, [layer])
    return replace(decoder, layers=(), tied_head=False, predictor=predictor)


def _states(settings: Settings, nested: Settings) -> tuple[int, ...] | None:
    """After how many layers the hidden states are taken; None: the configuration doesn't say.

    `eagle_config` counts layers from 0, as SGLang does; the same key beside the head's own counts from 1, as vLLM does.
    """
    for each, first in ((nested, 1), (settings, 0)):
        if _STATES not in each:
            continue
        found = each.items(_STATES, EAGLE_STATES)
        if any(type(number) is not int or not 0 <= number < MOST_LAYERS for number in found):
            raise each.wrong(_STATES, f"is {found!r:.80}, not numbers of layers")
        return tuple(number + first for number in found)
    return None


def head_tensors(decoder: Decoder, stored: Collection[str], tokens: NDArray[np.int64]) -> dict[str, Tensor]:
    """The engine's tensors of a head, but DRAFT_TOKENS, with the stored rows that they are made of.

    tokens: of the output head's rows, in the file's order.
    """
    layer = next((each for each in _LAYERS if any(name.startswith(each) for name in stored)), _LAYERS[0])
    tensors = {}
    for name, tensor in engine_tensors(decoder).items():
        if name == DRAFT_TOKENS:
            continue
        own = name.removeprefix(f"{PREDICTOR}.")
        piece = Piece(_NAMES.get(own, "{}" + own).format(layer))
        if name == DRAFT_HEAD and (np.diff(tokens) < 0).any():
            piece = replace(piece, rows=np.argsort(tokens))
        tensors[name] = Tensor(tensor.role, tensor.shape, (piece,))
    return tensors


def usual_head(config: Config, decoder: Decoder) -> Decoder:
    """The head that is published for most models of this configuration: a layer of the model's own sizes."""
    of_layer = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "vocab_size": decoder.vocab_size,
        "hidden_size": decoder.hidden_size,
        "intermediate_size": config["intermediate_size"],
        "num_attention_heads": decoder.heads,
        "num_key_value_heads": decoder.kv_heads,
        "head_dim": decoder.head_dim,
        "max_position_embeddings": decoder.max_positions,
        "rms_norm_eps": 1e-5,
    }
    return describe_head(of_layer, "an EAGLE-3 head", min(HEAD_TOKENS, decoder.vocab_size))
