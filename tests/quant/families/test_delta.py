"""Layers of Gated DeltaNet: their description as JSON, and the tensors that the engine takes."""

import json
from dataclasses import replace

from quant.families.description import Attention, Decoder, DeltaNet, Layer, Mlp, decoder_from
from quant.families.names import EngineTensor, engine_tensors

DELTA = DeltaNet(key_heads=2, value_heads=4, key_dim=16, value_dim=32)
DECODER = Decoder(
    vocab_size=96, hidden_size=64, max_positions=512, heads=4, kv_heads=2, head_dim=32, layers=(0, 0, 1),
    kinds=(Layer(delta=DELTA, mlp=Mlp(96)), Layer(Attention(0.25, rope=None, output_gate=True), Mlp(96))),
)  # fmt: skip


def test_the_description_comes_back_from_json() -> None:
    entries = json.loads(json.dumps(DECODER.to_dict()))
    assert decoder_from(entries) == DECODER
    assert entries["kinds"][0] == {
        "delta": {"key_heads": 2, "value_heads": 4, "key_dim": 16, "value_dim": 32},
        "mlp": {"inner": 96},
    }
    other = replace(DECODER, kinds=(replace(DECODER.kinds[0], delta=replace(DELTA, taps=3)), DECODER.kinds[1]))
    assert decoder_from(json.loads(json.dumps(other.to_dict()))) == other


def test_the_tensors_of_a_delta_layer() -> None:
    tensors = engine_tensors(DECODER)
    prefix, channels, values = "model.layers.1.delta", 2 * 2 * 16 + 4 * 32, 4 * 32
    assert DELTA.channels == channels
    assert {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)} == {
        f"{prefix}.qkv_proj.weight": EngineTensor("linear", (channels, 64)),
        f"{prefix}.gate_proj.weight": EngineTensor("linear", (values, 64)),
        f"{prefix}.beta_proj.weight": EngineTensor("router", (4, 64)),
        f"{prefix}.decay_proj.weight": EngineTensor("router", (4, 64)),
        f"{prefix}.conv.weight": EngineTensor("vector", (channels * 4,)),
        f"{prefix}.decay": EngineTensor("vector", (4,)),
        f"{prefix}.decay_bias": EngineTensor("vector", (4,)),
        f"{prefix}.norm.weight": EngineTensor("vector", (32,)),
        f"{prefix}.output_proj.weight": EngineTensor("linear", (64, values)),
    }
    assert not any("self_attn" in name for name in tensors if name.startswith("model.layers.1."))
    assert tensors["model.layers.2.self_attn.gate_proj.weight"] == EngineTensor("linear", (128, 64))
