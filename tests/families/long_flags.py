"""Every key of every family's configuration, changed one at a time: the logits are transformers', or it is refused.

Takes two minutes on two cores, so `make conformance` runs it and `make test` does not. Values that transformers itself
does not take are left out. Knows configurations only by the types of their values.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant.conversion.convert import convert
from quant.errors import QuantError
from tests.families import (
    parity,
    test_falcon,
    test_gemma,
    test_gemma4,
    test_gpt_neox,
    test_gpt_oss,
    test_opt,
    test_phi3,
)
from tests.families.test_alibi import CASES as ALIBI
from tests.families.test_deepseek import SIZES as LATENT
from tests.families.test_deepseek import V2, V3, with_biases
from tests.families.test_lfm2 import EXPERTS as LFM2_EXPERTS
from tests.families.test_lfm2 import SIZES as LFM2
from tests.families.test_llama_likes import MULTIPLIERS, SIZES, YARN
from tests.families.test_qwen3_next import EXPERTS as QWEN_EXPERTS
from tests.families.test_qwen3_next import SIZES as HYBRID
from tests.kernels.tiny_model import Sequences
from tests.quant.checkpoints import byte_tokenizer

pytestmark = [pytest.mark.parity, pytest.mark.timeout(3600)]

EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": SIZES,
    "Mistral": {**SIZES, "sliding_window": None},
    "Ministral3": {**SIZES, "head_dim": 32, "rope_parameters": YARN},
    "Qwen2": SIZES,
    "Qwen3": {**SIZES, "head_dim": 32},
    "Qwen2Moe": {**SIZES, **EXPERTS, "shared_expert_intermediate_size": 64},
    "Qwen3Moe": {**SIZES, **EXPERTS, "head_dim": 32},
    "Olmoe": {**SIZES, "intermediate_size": 32, "num_experts": 6, "num_experts_per_tok": 2},
    "Mixtral": {**SIZES, "intermediate_size": 32, "num_local_experts": 6, "sliding_window": None},
    "GptOss": test_gpt_oss.OPTIONS,
    "Qwen3Next": {**HYBRID, **QWEN_EXPERTS},
    "Qwen3_5Text": HYBRID,
    "Qwen3_5MoeText": {**HYBRID, **QWEN_EXPERTS},
    "Lfm2": LFM2,
    "Lfm2Moe": {**LFM2, **LFM2_EXPERTS},
    "Glm4MoeLite": {**LATENT, "n_shared_experts": 1},
    "DeepseekV2": V2,
    "DeepseekV3": V3,
    "Gemma": test_gemma.SIZES,
    "Gemma2": test_gemma.WINDOWED,
    "Gemma3Text": test_gemma.WINDOWED,
    "Gemma4Text": test_gemma4.SIZES,
    "Gemma4Text, experts": test_gemma4.EXPERTS,
    "Phi3": test_phi3.SIZES,
    "Granite": {**SIZES, **MULTIPLIERS},
    "SmolLM3": SIZES,
    "Olmo2": SIZES,
    "Olmo3": {**SIZES, "sliding_window": 20},
    "Falcon": {**test_falcon.SIZES, "attention": "sdpa"},
    "Mpt": ALIBI["mpt"][1],
    "Bloom": ALIBI["bloom"][1],
    "OPT": test_opt.SIZES,
    "OPT, norms after": {**test_opt.SIZES, **test_opt.AFTER},
    "GPTJ": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512, "rotary_dim": 8},
    "GPTNeoX": test_gpt_neox.SIZES,
}
"""By their configurations' classes, without "Config"."""
OF_TRAINING = frozenset({
    "architectures", "model_type", "transformers_version", "dtype", "vocab_size", "bos_token_id", "eos_token_id",
    "pad_token_id", "id2label", "label2id", "problem_type", "return_dict", "output_hidden_states", "output_attentions",
    "use_cache", "is_encoder_decoder", "chunk_size_feed_forward", "initializer_range", "router_aux_loss_coef",
    "output_router_logits", "router_jitter_noise", "pretraining_tp",
})  # fmt: skip
"""And of what all configurations have. Dropouts are left out by their names."""
OF_LENGTH = frozenset({"max_position_embeddings", "n_positions", "max_seq_len", "seq_length"})
"""Longer only: prompts are."""
DERIVED = {"DeepseekV2": ("head_dim",), "DeepseekV3": ("head_dim",), "Glm4MoeLite": ("head_dim",)}
"""transformers sets these from other keys."""
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "quick_gelu", "relu2")
SCALED = {"factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
ROPES: tuple[dict[str, Any], ...] = (
    {"rope_type": "default", "rope_theta": 5e4},
    {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
    {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
    {"rope_type": "yarn", **SCALED},
    {"rope_type": "yarn", **SCALED, "attention_factor": 0.7, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    {"rope_type": "llama3", **SCALED, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
)
ALLOWED = 10_000 * np.finfo(np.float32).eps
"""Of the largest logit: ten times what other pages allow, as some values make models of little precision."""


def other_values(key: str, value: Any) -> list[Any]:
    if key == "rope_parameters" and isinstance(value, dict):
        types = [name for name in value if name.endswith("_attention")]
        if types:
            return [{**value, name: rope} for name in types if value[name] is not None for rope in ROPES]
        kept = {name: each for name, each in value.items() if name.startswith(("partial_", "mrope_"))}
        return [{**kept, **rope} for rope in ROPES]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        if key in OF_LENGTH:
            return [value + 1, value * 2]
        return sorted({0, value + 1, value * 2} | ({1, value // 2} - {value} if value < 16 else set()))
    if isinstance(value, float):
        return [value * 1.7, value * 0.4] if value else [0.3, 1e-3]
    if isinstance(value, list) and value:
        return [value[::-1], value[:1] * len(value), value[-1:] * len(value), value[:-1]]
    if isinstance(value, str):
        return [name for name in ACTIVATIONS if name != value] if "act" in key else ["x"]
    return [True, 2, 8, 20, 0.5, "x"] if value is None else []


def variants(name: str, options: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    import transformers

    configuration = getattr(transformers, f"{name.partition(',')[0]}Config")
    config = configuration(**{key: value for key, value in options.items() if key != "attention"}).to_dict()
    for key, value in config.items():
        is_left_out = key in OF_TRAINING or key in DERIVED.get(name, ()) or key.startswith("_") or "drop" in key
        if not is_left_out:
            yield from ((key, other) for other in other_values(key, value))


def random_model(name: str, folder: Path, options: dict[str, Any]) -> Any:
    configuration = name.partition(",")[0]
    kind = configuration.removesuffix("Text")
    if kind == "Gemma4":
        return test_gemma4.random_model(folder, options)
    model = with_biases(parity.random_model(kind, folder, configuration=configuration, **options))
    model.save_pretrained(folder)
    return model


def outcome(name: str, folder: Path, options: dict[str, Any]) -> str:
    """ "same", "refused", "not taken by transformers", or how far logits are apart."""
    try:
        model = random_model(name, folder / "model", options)
        theirs = parity.reference_logits(model, parity.prompt())
    # A class of transformers raises anything for values that it does not know.
    except Exception:
        return "not taken by transformers"
    if not np.isfinite(theirs).all():
        return "not taken by transformers"
    byte_tokenizer().save(str(folder / "model/tokenizer.json"))
    try:
        convert(folder / "model", folder / "packed", qtype="fp32", progress=False)
    except QuantError:
        return "refused"
    ours = Sequences(folder / "packed", context=parity.TOKENS).logits({0: parity.prompt()})
    apart = np.abs(ours - theirs).max() / np.abs(theirs).max()
    return "same" if apart < ALLOWED else f"apart by {apart:.2g}"


@pytest.mark.parametrize("name", FAMILIES)
def test_each_key_is_honoured_or_refused(name: str, tmp_path: Path) -> None:
    options = FAMILIES[name]
    assert outcome(name, tmp_path / "base", options) == "same"
    found = Counter[str]()
    wrong = []
    for number, (key, value) in enumerate(variants(name, options)):
        folder = tmp_path / str(number)
        result = outcome(name, folder, {**options, key: value})
        shutil.rmtree(folder, ignore_errors=True)
        found[result] += 1
        if result.startswith("apart"):
            wrong.append(f"{key} = {value!r}: {result}")
    assert not wrong, "\n".join(wrong)
    assert found["same"] > 5, found
