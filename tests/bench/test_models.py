"""Random models for comparisons: their GGUFs are what our converter reads as the same shapes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.models import RANDOM_SHAPES, shape_of, weights_of, write_random_gguf
from quant.conversion.convert import convert
from quant.conversion.shapes import of_layers
from quant.families.names import engine_tensors
from quant.families.registry import describe
from quant.sources.open_source import open_source
from tests.kernels.tiny_model import Sequences

SMALL: Mapping[str, Any] = {
    "vocab_size": 300, "hidden_size": 128, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


@pytest.mark.parametrize("name", ["8b", "qwen3-8b", "a3b", "gpt-oss-12", "hybrid"])
def test_a_random_gguf_is_a_model_of_its_shape(name: str, tmp_path: Path) -> None:
    own = of_layers(shape_of(name), 4)
    shape = {**own, **SMALL, **(EXPERTS if "num_experts" in own else {})}
    if "num_local_experts" in shape:
        shape = {**shape, "num_local_experts": 4, "num_experts_per_tok": 2}
    if "shared_expert_intermediate_size" in shape:
        shape = {**shape, "shared_expert_intermediate_size": 64}
    write_random_gguf(shape, tmp_path / "x.gguf", progress=False)
    found, wanted = open_source(tmp_path / "x.gguf").decoder, describe(shape, name)
    assert engine_tensors(found) == engine_tensors(wanted)
    assert (found.ropes, found.layers) == (wanted.ropes, wanted.layers)
    convert(tmp_path / "x.gguf", tmp_path / "packed", progress=False)
    logits = Sequences(tmp_path / "packed", sequences=1).logits({0: list(range(40))})
    assert 0.05 < logits.std() < 20


@pytest.mark.parametrize("name", RANDOM_SHAPES)
def test_the_weights_of_a_token_are_those_of_the_description(name: str) -> None:
    shape = shape_of(name)
    tensors = engine_tensors(describe(shape, name))
    counted = 0
    for tensor, each in tensors.items():
        size = each.shape[0] * (each.shape[1] if len(each.shape) > 1 else 1)
        taken = shape["num_experts_per_tok"] if ".experts." in tensor else 1
        count = tensors[tensor.replace(".bias", ".weight")].count if tensor.endswith("_proj.bias") else each.count
        counted += 0 if each.role == "embedding" else size // count * taken
    assert weights_of(name) == counted
