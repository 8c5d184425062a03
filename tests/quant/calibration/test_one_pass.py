"""The quick way through a layer: every matrix gets the moments of its inputs in the unquantized layer, and one run."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from quant.calibration.layer_engine import LayerEngine
from quant.calibration.layers import Chosen, LayerWork
from quant.calibration.one_pass import run_layer_once
from quant.calibration.sums import block_sums, expert_moments
from quant.codes.matrix import F32, U8
from quant.families.description import Attention, Decoder, DeltaNet, Experts, Latent, Layer, Mlp
from quant.families.names import engine_tensors
from quant.families.registry import describe
from quant.packed.packed_matrix import MatrixInfo, pack_float
from tests.kernels.tiny_model import LLAMA, described_tensors
from tests.quant.calibration.test_layer_engine import layer_file

PREFIX = "model.layers.0."
WINDOWS, TOKENS = 7, 400
"""More than a step of the engine has."""
ATTENTION = Attention(0.25, rope=None)
LATENT = Latent(kv_rank=32, nope_dim=32, rope_dim=8, value_dim=32, query_rank=64)
KINDS: Mapping[str, Layer] = {
    "like Llama's": Layer(ATTENTION, Mlp(96)),
    "DeltaNet with experts": Layer(delta=DeltaNet(2, 4, 16, 8), experts=Experts(4, 2, 32, shared_inner=64)),
    "latent": Layer(Attention(0.25, rope=None, latent=LATENT), Mlp(96)),
    "experts beside an MLP": Layer(
        ATTENTION, Mlp(96), Experts(4, 2, 32), attention_output_norm=True, mlp_output_norm=True
    ),
}
INPUTS: Mapping[str, str] = {
    "q_proj": "attention_input", "k_proj": "attention_input", "v_proj": "attention_input",
    "q_a_proj": "attention_input", "kv_a_proj": "attention_input", "qkv_proj": "attention_input",
    "gate_proj": "attention_input", "q_b_proj": "query_input", "key_up_proj": "key_up_input",
    "value_up_proj": "value_up_input", "o_proj": "output_input", "output_proj": "output_input",
    "mlp.gate_proj": "mlp_input", "mlp.up_proj": "mlp_input", "mlp.down_proj": "down_input",
    "shared.gate_proj": "mlp_input", "shared.up_proj": "mlp_input", "shared.down_proj": "shared_down_input",
}  # fmt: skip


def chosen_by_name(decoder: Decoder, tensors: Mapping[str, F32], hidden: F32) -> dict[str, list[Chosen]]:
    """Runs the layer; hidden: becomes what it gives."""
    matrices = {n: t for n, t in engine_tensors(decoder).items() if t.role in ("linear", "router")}
    found: dict[str, list[Chosen]] = {}

    def choose(each: Chosen) -> U8:
        found.setdefault(each.name, []).append(each)
        return pack_float(each.weights, "fp32")

    work = LayerWork(
        infos={n: MatrixInfo("fp32", t.shape[0], t.shape[1], 0, None, t.count) for n, t in matrices.items()},
        vectors={name: values for name, values in tensors.items() if values.ndim == 1},
        read=lambda name, begin, end: tensors[name][begin:end], as_is=frozenset(),
        pack=lambda name: pack_float(tensors[name], "fp32"), choose=choose, save=lambda name, packed: None,
    )  # fmt: skip
    run_layer_once(0, decoder, work, hidden)
    return found


@pytest.mark.parametrize("name", KINDS)
def test_every_matrix_gets_the_moments_of_its_inputs(name: str) -> None:
    kind = KINDS[name]
    decoder = replace(describe(LLAMA, "test"), kinds=(kind,), layers=(0,), ropes=())
    if kind.latent is not None:
        decoder = replace(decoder, kv_heads=1, head_dim=LATENT.rope_dim + LATENT.kv_rank)
    tensors = described_tensors(decoder)
    before = np.random.default_rng(4).standard_normal((WINDOWS, TOKENS, 64)).astype(np.float32)
    hidden = before.copy()
    found = chosen_by_name(decoder, tensors, hidden)
    linear = {n for n, t in engine_tensors(decoder).items() if t.role == "linear"}
    assert set(found) == linear
    for full in linear:
        parts = full.removesuffix(".weight").split(".")
        short = ".".join(parts[-2:]) if parts[-2] in ("mlp", "shared", "experts") else parts[-1]
        moments = [each.moments for each in found[full]]
        assert np.array_equal(np.concatenate([each.weights for each in found[full]]), tensors[full])
        wanted = of_experts(decoder, tensors, before, short) if "experts" in short else None
        if wanted is None:
            beside = kind.experts is not None and short == "mlp.down_proj"
            rows = tapped(decoder, tensors, before, "dense_down_input" if beside else INPUTS[short])
            by_head = rows.reshape(len(rows), len(moments), -1)
            wanted = [block_sums(by_head[:, head]) / np.float32(len(rows)) for head in range(len(moments))]
        for own, exact in zip(moments, wanted, strict=True):
            # int8 weights and activations move a tenth of the tokens' experts, at most a percent of the rest.
            assert np.linalg.norm(own - exact) < (0.2 if "experts" in short else 0.02) * np.linalg.norm(exact), full
    after = tapped(decoder, tensors, before, "hidden").reshape(before.shape)
    assert np.linalg.norm(hidden - after) < 0.05 * np.linalg.norm(after)


def of_experts(decoder: Decoder, tensors: Mapping[str, F32], hidden: F32, short: str) -> list[F32]:
    beside = decoder.kinds[0].mlp is not None
    pairs = tapped(decoder, tensors, hidden, "pairs")
    name, places = "down_input", np.arange(len(pairs))
    if short != "experts.down_proj":
        name, places = "experts_input" if beside else "mlp_input", pairs[:, 0].astype(np.intp)
    rows = tapped(decoder, tensors, hidden, name)
    mean = block_sums(rows) / np.float32(len(rows))
    return list(expert_moments(lambda mine: rows[places[mine]], pairs[:, 1].astype(np.int32), 4, mean, block_sums))


def tapped(decoder: Decoder, tensors: Mapping[str, F32], hidden: F32, name: str) -> F32:
    """An activation of all tokens in the unquantized layer; pairs count tokens over all windows."""
    found = []
    with LayerEngine(layer_file(decoder, tensors), TOKENS, exact=True) as engine:
        for part, arrays in engine.activations(hidden, (name,)):
            found.append(arrays[name].copy())
            if name == "pairs":
                found[-1][:, 0] += part.start * TOKENS
    return np.concatenate(found)
