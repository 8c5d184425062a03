"""The table of families, by the model type that config.json names."""

from collections.abc import Mapping
from typing import Any, Final

from quant.errors import UnsupportedModelError
from quant.families.baichuan import BAICHUAN
from quant.families.bert import BERT, ROBERTA
from quant.families.bloom import BLOOM
from quant.families.chatglm import CHATGLM
from quant.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE
from quant.families.description import Decoder
from quant.families.experts import MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE
from quant.families.falcon import FALCON
from quant.families.family import Config, Family
from quant.families.gemma import GEMMA, GEMMA2, GEMMA3
from quant.families.gemma4 import GEMMA4
from quant.families.gpt_neox import GPT_NEOX
from quant.families.gpt_oss import GPT_OSS
from quant.families.gptj import GPTJ
from quant.families.granite import GRANITE
from quant.families.lfm2 import LFM2, LFM2_MOE
from quant.families.llama import LLAMA, MIMO, MISTRAL, QWEN2, QWEN3
from quant.families.ministral3 import MINISTRAL3
from quant.families.modernbert import MODERNBERT
from quant.families.mpt import MPT
from quant.families.nomic_bert import NOMIC_BERT
from quant.families.olmo2 import OLMO2, OLMO3
from quant.families.opt import OPT
from quant.families.phi3 import PHI3
from quant.families.qwen1 import QWEN1
from quant.families.qwen3_next import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from quant.families.smollm3 import SMOLLM3

FAMILIES: Final[tuple[Family, ...]] = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    QWEN2_MOE,
    QWEN3_MOE,
    OLMOE,
    MIXTRAL,
    BAICHUAN,
    BERT,
    BLOOM,
    CHATGLM,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    FALCON,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GLM4_MOE_LITE,
    GEMMA4,
    GPT_NEOX,
    GPT_OSS,
    GPTJ,
    GRANITE,
    LFM2,
    LFM2_MOE,
    MIMO,
    MINISTRAL3,
    MODERNBERT,
    MPT,
    NOMIC_BERT,
    OLMO2,
    OLMO3,
    OPT,
    PHI3,
    QWEN1,
    QWEN3_NEXT,
    QWEN3_5,
    QWEN3_5_MOE,
    ROBERTA,
    SMOLLM3,
)


def family_of(config: Config, where: str) -> Family:
    """Finds the family of a configuration; where: its file, for messages.

    Raises UnsupportedModelError for an unknown one, for one that needs its own Python code, and for unsupported
    quantized weights.
    """
    found = config.get("model_type")
    family = next((each for each in FAMILIES if isinstance(found, str) and found in each.model_types), None)
    if family is None:
        known = ", ".join(name for each in FAMILIES for name in each.model_types)
        raise UnsupportedModelError(f"{where}: model type {found!r} is not supported; supported: {known}")
    if "auto_map" in config and not family.brings_code:
        raise UnsupportedModelError(f"{where}: the model brings its own Python code (auto_map), which is never run")
    if config.get("quantization_config"):
        method = config["quantization_config"]
        method = method.get("quant_method", "unknown") if isinstance(method, Mapping) else method
        raise UnsupportedModelError(f"{where}: is already quantized ({method}); use the original or a GGUF")
    return family


def describe(config: Config, where: str) -> Decoder:
    """Describes a configuration. Raises SourceError and UnsupportedModelError, which name file and key."""
    return family_of(config, where).describe(config, where)


def standard_config(config: Config, decoder: Decoder, family: Family) -> dict[str, Any]:
    """Adds the keys that most programs look for to the author's configuration."""
    inner = next((kind.mlp.inner for kind in decoder.kinds if kind.mlp is not None), None)
    if inner is None:
        inner = next(kind.experts.inner for kind in decoder.kinds if kind.experts is not None)
    heads: dict[str, Any] = {"num_key_value_heads": decoder.kv_heads, "head_dim": decoder.head_dim}
    if any(kind.latent is not None for kind in decoder.kinds):
        heads = {}  # the engine's one head is none of those that such a configuration speaks of
    return {
        "architectures": [family.architecture],
        "intermediate_size": inner,
        **{key: value for key, value in config.items() if key != "auto_map"},
        "vocab_size": decoder.vocab_size,
        "hidden_size": decoder.hidden_size,
        "num_hidden_layers": len(decoder.layers),
        "num_attention_heads": decoder.heads,
        **heads,
        "max_position_embeddings": decoder.max_positions,
        "tie_word_embeddings": decoder.tied_head,
    }
