"""Checks and completes a Hugging Face config.json, and lists the tensors of a model with that config.

After `complete_config` every key that the engine reads is present and of the right type. Does not know where or
how weights are stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from quant.errors import SourceError, UnsupportedModelError

TensorRole = Literal["embedding", "head", "linear", "vector"]

_ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_ROPE_TYPES: Final = ("default", "linear", "dynamic", "llama3", "yarn")
_REQUIRED: Final = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """A tensor that the model must have: [rows, cols] of a matrix, [n] of a vector."""

    role: TensorRole
    shape: tuple[int, ...]


def complete_config(raw: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """The checked config with all defaults filled in, and notes for the user.

    `where` names the file in errors. `rope_theta` and `rope_scaling` are always at the top level, whichever of
    transformers' spellings the file has.

    Raises:
        UnsupportedModelError: an architecture or an option that this engine does not run.
        SourceError: a key that is missing or of a wrong type.
    """
    config, notes = dict(raw), list[str]()
    family = config.get("model_type")
    if not isinstance(family, str) or family not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise UnsupportedModelError(f"{where}: model type {family!r} is not supported; supported: {known}")
    if "auto_map" in config:
        raise UnsupportedModelError(f"{where}: the model brings its own Python code (auto_map), which is never run")
    if config.get("quantization_config"):
        method = config["quantization_config"]
        method = method.get("quant_method", "unknown") if isinstance(method, dict) else method
        raise UnsupportedModelError(f"{where}: is already quantized ({method}); use the original or a GGUF")
    for key in _REQUIRED:
        _positive(config, key, where)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    if config.get("num_key_value_heads") is None:
        config["num_key_value_heads"] = heads
    if config.get("head_dim") is None:
        if hidden % heads:
            raise SourceError(f"{where}: {heads} heads do not divide a hidden size of {hidden}")
        config["head_dim"] = hidden // heads
    for key in ("num_key_value_heads", "head_dim"):
        _positive(config, key, where)
    if heads % config["num_key_value_heads"] or config["head_dim"] % 2:
        raise SourceError(
            f"{where}: {heads} heads, {config['num_key_value_heads']} key-value heads and a head_dim of"
            f" {config['head_dim']} do not fit together"
        )
    _complete_options(config, family, where)
    _complete_rope(config, where)
    _limit_window(config, notes)
    return config, notes


def _positive(config: Mapping[str, Any], key: str, where: str) -> None:
    value = config.get(key)
    if type(value) is not int or not 0 < value < 2**31:
        problem = "is missing" if value is None else f"is {value!r}, not a positive integer"
        raise SourceError(f"{where}: {key} {problem}")


def _complete_options(config: dict[str, Any], family: str, where: str) -> None:
    activation = config.setdefault("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"{where}: the activation {activation!r} is not supported; supported: silu")
    epsilon = config.setdefault("rms_norm_eps", 1e-6)
    if type(epsilon) not in (int, float) or not 0 < epsilon < 1:
        raise SourceError(f"{where}: rms_norm_eps is {epsilon!r}")
    # Qwen2 always has biases on Q, K and V, Mistral never: their classes do not read the option.
    config["attention_bias"] = family == "qwen2" or (family != "mistral" and bool(config.get("attention_bias")))
    config["mlp_bias"] = family == "llama" and bool(config.get("mlp_bias"))
    config["tie_word_embeddings"] = bool(config.get("tie_word_embeddings", False))
    config.setdefault("architectures", [_ARCHITECTURES[family]])


def _complete_rope(config: dict[str, Any], where: str) -> None:
    new_style = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or new_style
    if not isinstance(scaling, dict) or not isinstance(new_style, dict):
        raise SourceError(f"{where}: its RoPE parameters are not an object")
    theta = config.get("rope_theta") or new_style.get("rope_theta") or 10000.0
    if type(theta) not in (int, float) or theta <= 0:
        raise SourceError(f"{where}: rope_theta is {theta!r}")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in _ROPE_TYPES:
        known = ", ".join(_ROPE_TYPES)
        raise UnsupportedModelError(f"{where}: RoPE scaling {kind!r} is not supported; supported: {known}")
    if scaling.get("partial_rotary_factor", 1.0) != 1.0 or config.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(f"{where}: rotary embedding of a part of the head is not supported")
    config["rope_theta"] = float(theta)
    kept = {key: value for key, value in scaling.items() if key not in ("type", "rope_type", "rope_theta")}
    config["rope_scaling"] = None if kind == "default" else {"rope_type": kind, **kept}
    config.pop("rope_parameters", None)


def _limit_window(config: dict[str, Any], notes: list[str]) -> None:
    """Limits the context to a sliding window's size, up to which it is the same as full attention."""
    window = config.get("sliding_window")
    used = config.get("use_sliding_window", config["model_type"] == "mistral")
    if used and type(window) is int and 0 < window < config["max_position_embeddings"]:
        config["max_position_embeddings"] = window
        notes.append(f"The context is limited to {window} tokens: the model slides its attention window past them.")
    config["sliding_window"] = None
    config["use_sliding_window"] = False


def expected_tensors(config: Mapping[str, Any]) -> dict[str, ExpectedTensor]:
    """Every tensor of a completed config by name, in the order of the forward pass."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    tensors = {"model.embed_tokens.weight": ExpectedTensor("embedding", (vocab, hidden))}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        tensors[f"{prefix}.input_layernorm.weight"] = ExpectedTensor("vector", (hidden,))
        shapes = {"q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries)}
        for name, shape in shapes.items():
            tensors[f"{prefix}.self_attn.{name}_proj.weight"] = ExpectedTensor("linear", shape)
            if config["attention_bias"] and not (name == "o" and config["model_type"] == "qwen2"):
                tensors[f"{prefix}.self_attn.{name}_proj.bias"] = ExpectedTensor("vector", shape[:1])
        if config["model_type"] == "qwen3":
            for name in ("q_norm", "k_norm"):
                tensors[f"{prefix}.self_attn.{name}.weight"] = ExpectedTensor("vector", (config["head_dim"],))
        tensors[f"{prefix}.post_attention_layernorm.weight"] = ExpectedTensor("vector", (hidden,))
        for name, shape in {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}.items():
            tensors[f"{prefix}.mlp.{name}_proj.weight"] = ExpectedTensor("linear", shape)
            if config["mlp_bias"]:
                tensors[f"{prefix}.mlp.{name}_proj.bias"] = ExpectedTensor("vector", shape[:1])
    tensors["model.norm.weight"] = ExpectedTensor("vector", (hidden,))
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = ExpectedTensor("head", (vocab, hidden))
    return tensors
