"""A layer's activations from the engine: each from the one before by NumPy, and the output against the reference."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from quant.calibration.layer_engine import LayerEngine
from quant.calibration.layer_file import LayerFile, layer_decoder
from quant.codes.dequantize import dequantize
from quant.codes.int4 import quantize_sym_int4
from quant.codes.matrix import F32
from quant.families.description import Attention, Decoder, DeltaNet, Experts, Layer, Mlp, Rope
from quant.families.names import engine_tensors
from quant.packed.packed_matrix import MatrixInfo, pack_float, pack_quantized
from tests.families.decoder_reference import logits
from tests.kernels.hybrid_model import delta_reference, hybrid_tensors, tensors_of_layer
from tests.kernels.tiny_model import described_tensors

F64 = NDArray[np.float64]
HIDDEN, TOKENS, WINDOWS, INNER = 64, 40, 3, 96
ATTENTION = Attention(0.25, qk_norm="head")
EXPERTS = Experts(count=6, per_token=2, inner=64, renormalize=True, shared_inner=96, shared_gate=True)
KINDS: Mapping[str, Layer] = {
    "llama": Layer(ATTENTION, Mlp(INNER)),
    "norms of outputs": Layer(
        replace(ATTENTION, window=9, softcap=5.0),
        Mlp(INNER, activation="gelu_tanh"),
        attention_output_norm=True,
        mlp_output_norm=True,
    ),
    "parallel": Layer(
        Attention(0.25, qkv_bias=True, output_bias=True),
        Mlp(INNER, "gelu_erf", gated=False, bias=True),
        mlp_norm=False,
        parallel=True,
    ),
    "experts": Layer(ATTENTION, experts=EXPERTS),
    "gated output": Layer(replace(ATTENTION, output_gate=True), Mlp(INNER)),
    "gated deltanet": Layer(delta=DeltaNet(2, 6, 16, 16, 3), mlp=Mlp(INNER)),
}
DELTA = DeltaNet(key_heads=2, value_heads=4, key_dim=16, value_dim=24)
PREFIX = "model.layers.0."


def decoder_of(kind: Layer) -> Decoder:
    """A layer that reads the hidden states from an embedding, and whose output is what the head gives."""
    frequencies = tuple(10000.0 ** (-i / 8) for i in range(8))
    return Decoder(
        vocab_size=HIDDEN, hidden_size=HIDDEN, max_positions=512, heads=4, kv_heads=2, head_dim=16, kinds=(kind,),
        layers=(0,), ropes=(Rope(16, frequencies),), final_norm=False,
    )  # fmt: skip


def hidden_states() -> F32:
    return np.random.default_rng(1).standard_normal((WINDOWS, TOKENS, HIDDEN)).astype(np.float32)


def layer_file(decoder: Decoder, tensors: Mapping[str, F32], *, exact: bool = True) -> LayerFile:
    matrices, one = {}, layer_decoder(decoder, 0)
    for name, tensor in engine_tensors(one).items():
        if tensor.role in ("linear", "router"):
            rows, cols = tensor.shape
            kind, group = ("fp32", 0) if exact or tensor.role == "router" else ("sym_int4", 32)
            values = tensors[name]
            packed = pack_quantized(quantize_sym_int4(name, values, group)) if group else pack_float(values, "fp32")
            matrices[name] = (MatrixInfo(kind, rows, cols, group, None, tensor.count), packed)  # type: ignore[arg-type]
    return LayerFile.of(one, matrices, {n: tensors[n] for n, t in engine_tensors(one).items() if t.role == "vector"})


def activations(
    kind: Layer, tensors: Mapping[str, F32], wanted: tuple[str, ...], *, exact: bool = True
) -> dict[str, F32]:
    file = layer_file(decoder_of(kind), tensors, exact=exact)
    with LayerEngine(file, TOKENS, exact=exact) as engine:
        parts = [arrays for _, arrays in engine.activations(hidden_states(), wanted)]
    assert len(parts) == 1
    return dict(parts[0])


def all_names(kind: Layer) -> tuple[str, ...]:
    own = ("pairs", "shared_down_input") if kind.experts else ()
    return (
        "attention_input", "output_input", "attention_output", "mlp_input", *own, "down_input", "mlp_output", "hidden",
    )  # fmt: skip


def close(found: F32 | F64, wanted: F64) -> bool:
    """fp32 sums of at most 160 terms, two matrices deep."""
    return bool(np.linalg.norm(found - wanted) < 1e-5 * np.linalg.norm(wanted))


def normed(decoder: Decoder, x: F64, weight: F32) -> F64:
    result: F64 = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + decoder.norm_epsilon) * weight
    return result


def activated(kind: Layer, x: F64, tensors: Mapping[str, F32], name: str) -> F64:
    def linear(part: str) -> F64:
        y: F64 = x @ tensors[f"{PREFIX}{name}.{part}.weight"].T.astype(np.float64)
        return y + tensors.get(f"{PREFIX}{name}.{part}.bias", np.zeros(1))

    assert kind.mlp is not None
    if not kind.mlp.gated:
        up = linear("up_proj")
        erf = np.vectorize(math.erf)
        return np.asarray(0.5 * up * (1 + erf(up / np.sqrt(2))))
    gate, up = linear("gate_proj"), linear("up_proj")
    if kind.mlp.activation == "silu":
        return np.asarray(gate / (1 + np.exp(-gate)) * up)
    return np.asarray(0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up)


@pytest.mark.parametrize("name", KINDS)
def test_the_layers_output_is_the_references(name: str) -> None:
    kind = KINDS[name]
    if kind.experts is not None:  # as far as the reference knows them
        plain = replace(EXPERTS, scoring="softmax_of_chosen", renormalize=False, shared_inner=0, shared_gate=False)
        kind = replace(kind, experts=plain)
    decoder = decoder_of(kind)
    tensors = described_tensors(decoder)
    found = activations(kind, tensors, ("hidden",))["hidden"].reshape(WINDOWS, TOKENS, HIDDEN)
    weights = {each: values.astype(np.float64) for each, values in tensors.items()}
    for window, states in zip(found, hidden_states(), strict=True):
        given = weights | {"model.embed_tokens.weight": states.astype(np.float64), "lm_head.weight": np.eye(HIDDEN)}
        assert close(window, logits(decoder, given, list(range(TOKENS))))


@pytest.mark.parametrize("name", [name for name in KINDS if name != "experts"])
def test_each_activation_follows_from_the_one_before(name: str) -> None:
    kind = KINDS[name]
    decoder = decoder_of(kind)
    tensors = described_tensors(decoder)
    found = activations(kind, tensors, all_names(kind))
    x = hidden_states().reshape(-1, HIDDEN).astype(np.float64)

    def output(part: str, values: F32) -> F64:
        y: F64 = values.astype(np.float64) @ tensors[f"{PREFIX}{part}.weight"].T.astype(np.float64)
        return y + tensors.get(f"{PREFIX}{part}.bias", np.zeros(1))

    def added(stream: F64, part: str, values: F32, norm: str, has_norm: bool) -> tuple[F64, F64]:
        """What lies where the stage writes, and the stream after it."""
        own = output(part, values)
        if not has_norm:
            return stream + own, stream + own
        return own, stream + normed(decoder, own, tensors[f"{PREFIX}{norm}.weight"])

    assert close(found["attention_input"], normed(decoder, x, tensors[f"{PREFIX}input_layernorm.weight"]))
    part = "self_attn.o_proj" if kind.delta is None else "delta.output_proj"
    written, stream = added(x, part, found["output_input"], "attention_output_norm", kind.attention_output_norm)
    assert close(found["attention_output"], written)
    if kind.parallel:
        assert np.array_equal(found["mlp_input"], found["attention_input"])
    else:
        norm = tensors[f"{PREFIX}post_attention_layernorm.weight"]
        assert close(found["mlp_input"], normed(decoder, stream, norm))
    assert close(found["down_input"], activated(kind, found["mlp_input"].astype(np.float64), tensors, "mlp"))
    written, stream = added(stream, "mlp.down_proj", found["down_input"], "mlp_output_norm", kind.mlp_output_norm)
    assert close(found["mlp_output"], written)
    assert close(found["hidden"], stream)


def test_experts_rows_are_those_of_their_pairs() -> None:
    kind = KINDS["experts"]
    tensors = described_tensors(decoder_of(kind))
    found = activations(kind, tensors, all_names(kind))
    tokens, experts = found["pairs"].T
    assert found["pairs"].tolist() == sorted(found["pairs"].tolist(), key=lambda pair: (pair[1], pair[0]))
    scores = found["mlp_input"] @ tensors[f"{PREFIX}mlp.router.weight"].T
    best = np.argsort(-scores, axis=1)[:, : EXPERTS.per_token]
    assert {(int(t), int(e)) for t, e in zip(tokens, experts, strict=True)} == {
        (t, int(e)) for t, row in enumerate(best) for e in row
    }
    inner = Layer(ATTENTION, Mlp(EXPERTS.inner))
    for expert in range(EXPERTS.count):
        rows = slice(expert * EXPERTS.inner, (expert + 1) * EXPERTS.inner)
        own = {
            f"{PREFIX}one.{part}.weight": tensors[f"{PREFIX}mlp.experts.{part}.weight"][rows]
            for part in ("gate_proj", "up_proj")
        }
        x = found["mlp_input"][tokens[experts == expert]].astype(np.float64)
        assert close(found["down_input"][experts == expert], activated(inner, x, own, "one"))
    shared = activated(inner, found["mlp_input"].astype(np.float64), tensors, "mlp.shared")
    assert close(found["shared_down_input"], shared)


@pytest.mark.parametrize("name", KINDS)
def test_a_layer_that_ends_early_gives_the_same(name: str) -> None:
    tensors = described_tensors(decoder_of(KINDS[name]))
    whole = activations(KINDS[name], tensors, all_names(KINDS[name]))
    for wanted in all_names(KINDS[name]):
        assert np.array_equal(activations(KINDS[name], tensors, (wanted,))[wanted], whole[wanted]), wanted


@pytest.mark.parametrize("name", ["llama", "norms of outputs", "gated output", "gated deltanet"])
def test_quantized_layers_are_computed_as_the_service_does(name: str) -> None:
    """int8 activations are off by at most 1 / 254 of their group's largest, keys and values by 2^-12."""
    kind = KINDS[name]
    tensors = described_tensors(decoder_of(kind))
    linear = [each for each, t in engine_tensors(decoder_of(kind)).items() if t.role == "linear"]
    rounded = tensors | {each: dequantize(quantize_sym_int4(each, tensors[each], 32)) for each in linear}
    found = activations(kind, tensors, ("output_input", "down_input", "hidden"), exact=False)
    wanted = activations(kind, rounded, ("output_input", "down_input", "hidden"))
    for each in found:
        error = np.linalg.norm(found[each] - wanted[each]) / np.linalg.norm(wanted[each])
        assert 0 < error < 0.01, each


def test_windows_are_given_in_order_and_do_not_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = described_tensors(decoder_of(KINDS["llama"]))
    whole = activations(KINDS["llama"], tensors, ("hidden",))["hidden"].reshape(WINDOWS, TOKENS, HIDDEN)
    monkeypatch.setattr("quant.calibration.layer_engine.STEP_TOKENS", 2 * TOKENS)
    with LayerEngine(layer_file(decoder_of(KINDS["llama"]), tensors), TOKENS, exact=True) as engine:
        parts = list(engine.activations(hidden_states(), ("hidden",)))
    assert [part for part, _ in parts] == [slice(0, 2), slice(2, 3)]
    assert np.array_equal(np.concatenate([arrays["hidden"] for _, arrays in parts]), whole.reshape(-1, HIDDEN))


def test_what_is_no_activation_is_refused() -> None:
    tensors = described_tensors(decoder_of(KINDS["llama"]))
    with LayerEngine(layer_file(decoder_of(KINDS["llama"]), tensors), TOKENS, exact=True) as engine:
        for wanted in ((), ("pairs",), ("shared_down_input",), ("logits",)):
            with pytest.raises(ValueError, match="wanted: "):
                list(engine.activations(hidden_states(), wanted))
        with pytest.raises(ValueError, match=r"hidden: rows of 32, not 64"):
            list(engine.activations(hidden_states()[..., :32], ("hidden",)))


def test_a_layer_file_is_read_at_any_place() -> None:
    decoder = decoder_of(KINDS["llama"])
    file = layer_file(decoder, described_tensors(decoder))
    whole = bytearray(file.size("model.safetensors"))
    file.read_into("model.safetensors", 0, memoryview(whole))
    for begin, end in ((0, 1), (7, 5000), (len(whole) - 300, len(whole)), (4096, 4096)):
        part = bytearray(end - begin)
        file.read_into("model.safetensors", begin, memoryview(part))
        assert part == whole[begin:end]
    with pytest.raises(FileNotFoundError):
        file.size("config.json")


def test_a_layer_of_gated_deltanet() -> None:
    """By itself, without attention: the states of a window lie in a few pages."""
    kind = Layer(delta=DELTA, mlp=Mlp(INNER))
    decoder = decoder_of(kind)
    tensors = hybrid_tensors(decoder)
    found = activations(kind, tensors, all_names(kind))
    x = hidden_states()
    assert found["output_input"].shape == (WINDOWS * TOKENS, DELTA.value_heads * DELTA.value_dim)
    added = np.concatenate([delta_reference(DELTA, tensors_of_layer(tensors, 0), window) for window in x])
    rows = x.reshape(-1, HIDDEN).astype(np.float64)
    assert close(found["attention_input"], normed(decoder, rows, tensors[f"{PREFIX}input_layernorm.weight"]))
    assert close(found["attention_output"], rows + added)
    output = tensors[f"{PREFIX}delta.output_proj.weight"].astype(np.float64)
    assert close(found["output_input"] @ output.T, added)
    assert close(found["down_input"], activated(kind, found["mlp_input"].astype(np.float64), tensors, "mlp"))
