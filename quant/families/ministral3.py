"""Ministral 3: Mistral whose queries grow with the logarithm of their position; and Mistral 3, which may be Mistral.

A folder that also sees pictures is read as its language model; the vision tower is left out.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from quant.families.description import Attention, Decoder, Layer
from quant.families.family import Config, Family, Tensor
from quant.families.llama import decoder_of, dense_mlp
from quant.families.modules import prefixed, usual_keys
from quant.families.settings import Settings
from quant.families.standard import read_sizes, same_names, window_of

_YARN: Final = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
_DEFAULTS: Final = {"head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}


def _describe(config: Config, where: str) -> Decoder:
    settings = Settings(_language_model(config, where), where)
    sizes = read_sizes(settings)
    rope = settings.section("rope_parameters") or settings.section("rope_scaling") or settings
    attention = Attention(
        1 / math.sqrt(sizes.head_dim),
        window=window_of(settings, sizes.max_positions),
        temperature_scale=rope.number("llama_4_scaling_beta", 0.0),
        temperature_positions=rope.size("original_max_position_embeddings", sizes.max_positions),
    )
    return decoder_of(settings, sizes, [Layer(attention, dense_mlp(settings))] * sizes.layers)


def _language_model(config: Config, where: str) -> dict[str, Any]:
    """The configuration of the language model, which may be part of another, with its class's defaults."""
    text = Settings(config, where).section("text_config")
    inner = config if text is None else config["text_config"]
    shared = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    if text is not None:
        text.only("model_type", "ministral3", "mistral")
        if text.get("model_type") == "mistral":
            return usual_keys(inner, shared)
    given = usual_keys(inner, {**_DEFAULTS, **shared})
    if not given.get("rope_parameters") and not given.get("rope_scaling"):
        given["rope_parameters"] = _YARN
    return given


def _wrapped(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    return prefixed(same_names(config, decoder), "model.", "model.language_model.")


def _wrapped_before(config: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    return prefixed(same_names(config, decoder), "", "language_model.")


MINISTRAL3: Final = Family(
    ("ministral3", "mistral3"),
    "Ministral3ForCausalLM",
    _describe,
    same_names,
    ("*rotary_emb.inv_freq", "*vision_tower.*", "*multi_modal_projector.*"),
    alternatives=(_wrapped, _wrapped_before),
)
