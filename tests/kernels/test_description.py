"""Descriptions that lie: each is refused with an error that names the file, the key and the reason."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quant.families.description import Attention, Decoder, Experts, Layer, Mlp, Rope
from tests.kernels.test_weights import join, load, refused, split
from tests.kernels.tiny_model import described_tensors, write_described

ABSENT: Any = object()
LONG = Rope(8, (1.0, 0.5, 0.25, 0.125), long_frequencies=(1.0, 0.1, 0.01, 0.001), short_positions=128)
DECODER = Decoder(
    vocab_size=96, hidden_size=64, max_positions=512, heads=4, kv_heads=2, head_dim=16, layers=(0, 1, 0),
    ropes=(Rope(16, tuple(10.0**-i for i in range(8))), LONG),
    kinds=(
        Layer(Attention(0.25), mlp=Mlp(96)),
        Layer(Attention(0.25, rope=1), experts=Experts(count=8, per_token=2, inner=32)),
    ),
)  # fmt: skip
MLP, ATTENTION, EXPERTS = ("kinds", 0, "mlp"), ("kinds", 0, "attention"), ("kinds", 1, "experts")
DELTA = {"key_heads": 2, "value_heads": 4, "key_dim": 16, "value_dim": 16}
OUTSIDE_SIZES: list[Any] = [0, -1, 64.0, "64", 2**24 + 1, 2**40, 2**63 - 1, True, [64], {}]
OUTSIDE_NUMBERS: list[Any] = [-1, 1e13, 1e300, "1", True, [1.0], {}]


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_described(
        tmp_path_factory.mktemp("described") / "model", DECODER, {}, described_tensors(DECODER), "sym_int4"
    )


@pytest.fixture
def folder(untouched: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(untouched, tmp_path / "model")


def describe(folder: Path, text: str) -> None:
    """Replaces the description in the file."""
    header, data = split(folder)
    header["__metadata__"]["decoder"] = text
    join(folder, header, data)


def changed(keys: tuple[str | int, ...], value: Any) -> str:
    """The description with one entry replaced, added or, if the value is ABSENT, taken away."""
    description = json.loads(json.dumps(DECODER.to_dict()))
    place = description
    for key in keys[:-1]:
        place = place[key]
    if value is ABSENT:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    return json.dumps(description)


def shown(keys: tuple[str | int, ...]) -> str:
    """A key as messages name it."""
    parts = [f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys]
    return "decoder" + "".join(parts)


def test_the_untouched_description_loads(folder: Path) -> None:
    describe(folder, json.dumps(DECODER.to_dict()))
    assert load(folder).layers == 3
    describe(folder, changed(("norm_epsilon",), None))
    assert load(folder).layers == 3, "null counts as absent"
    describe(folder, changed((*ATTENTION, "rope"), None))
    assert load(folder).layers == 3, "null is a layer without a rope"


@pytest.mark.parametrize(
    "keys",
    [
        *[(key,) for key in ("vocab_size", "hidden_size", "max_positions", "heads", "kv_heads", "head_dim")],
        ("kinds",), ("layers",), (*MLP, "inner"), ATTENTION, MLP, (*ATTENTION, "scale"),
        *[(*EXPERTS, key) for key in ("count", "per_token", "inner")],
        *[("ropes", 0, key) for key in ("rotary_dim", "frequencies")], ("ropes", 1, "short_positions"),
    ],
    ids=shown,
)  # fmt: skip
def test_a_key_that_is_missing(folder: Path, keys: tuple[str | int, ...]) -> None:
    for value in (ABSENT, None):
        describe(folder, changed(keys, value))
        refused(folder, "model.safetensors: ", shown(keys), "an MLP, experts or both" if keys == MLP else "missing")


@pytest.mark.parametrize("keys", [(), ("ropes", 0), ("kinds", 0), ATTENTION, MLP, EXPERTS], ids=shown)
def test_a_key_that_is_not_known(folder: Path, keys: tuple[str | int, ...]) -> None:
    values: tuple[Any, ...] = (1, False, {})
    for value in values:
        describe(folder, changed((*keys, "clamp"), value))
        refused(folder, f"{shown((*keys, 'clamp'))}: not known: this version of Redoubt is too old for it")


@pytest.mark.parametrize(
    "keys",
    [
        *[(key,) for key in ("vocab_size", "hidden_size", "max_positions", "heads", "kv_heads", "head_dim")],
        (*MLP, "inner"),
        *[(*EXPERTS, key) for key in ("count", "per_token", "inner", "groups", "chosen_groups")],
        ("ropes", 0, "rotary_dim"), ("ropes", 1, "short_positions"),
    ],
    ids=shown,
)  # fmt: skip
def test_a_size_that_is_none(folder: Path, keys: tuple[str | int, ...]) -> None:
    for value in OUTSIDE_SIZES:
        describe(folder, changed(keys, value))
        refused(folder, f"{shown(keys)}: not a whole number in ")


@pytest.mark.parametrize("keys", [(*ATTENTION, "window"), (*EXPERTS, "shared_inner")], ids=shown)
def test_a_size_that_may_be_0(folder: Path, keys: tuple[str | int, ...]) -> None:
    for value in OUTSIDE_SIZES[1:]:
        describe(folder, changed(keys, value))
        refused(folder, f"{shown(keys)}: not a whole number in 0 .. ")


@pytest.mark.parametrize("keys", [("logit_softcap",), (*ATTENTION, "softcap"), (*ATTENTION, "temperature_scale")])
def test_a_number_that_may_be_0(folder: Path, keys: tuple[str | int, ...]) -> None:
    for value in OUTSIDE_NUMBERS:
        describe(folder, changed(keys, value))
        refused(folder, f"{shown(keys)}: not a number in range")


@pytest.mark.parametrize(
    "keys",
    [
        *[(key,) for key in ("norm_epsilon", "embedding_scale", "logit_scale")],
        (*ATTENTION, "scale"), (*EXPERTS, "scale"), ("ropes", 0, "attention_factor"),
        ("ropes", 1, "long_attention_factor"),
    ],
    ids=shown,
)  # fmt: skip
def test_a_number_that_may_not_be_0(folder: Path, keys: tuple[str | int, ...]) -> None:
    for value in (0, -0.0, 1e-13, 1e-300, *OUTSIDE_NUMBERS):
        describe(folder, changed(keys, value))
        refused(folder, f"{shown(keys)}: not a number in range")


@pytest.mark.parametrize(
    "keys",
    [
        *[(key,) for key in ("norm_bias", "final_norm", "embedding_norm", "learned_positions", "tied_head")],
        ("head_bias",),
        *[(*ATTENTION, key) for key in ("sinks", "qkv_bias", "output_bias", "value_norm", "value_is_key")],
        *[(*MLP, key) for key in ("gated", "bias")],
        *[(*EXPERTS, key) for key in ("bias", "router_bias", "correction_bias", "renormalize", "shared_gate")],
        *[(*EXPERTS, key) for key in ("router_norm", "expert_scale")],
        *[
            ("kinds", 0, key)
            for key in ("attention_norm", "attention_output_norm", "mlp_norm", "mlp_output_norm", "parallel", "scaled")
        ],
        ("kinds", 0, "norms_sum"),
    ],
    ids=shown,
)
def test_a_flag_that_is_none(folder: Path, keys: tuple[str | int, ...]) -> None:
    values: tuple[Any, ...] = (1, 0, "true", [])
    for value in values:
        describe(folder, changed(keys, value))
        refused(folder, f"{shown(keys)}: not true or false")


@pytest.mark.parametrize(
    ("keys", "known"),
    [
        (("norm",), "rms, layer"),
        ((*ATTENTION, "qk_norm"), "none, head, row"),
        ((*EXPERTS, "scoring"), "softmax, sigmoid, softmax_of_chosen"),
        ((*MLP, "activation"), "silu, gelu_tanh, gelu_erf, relu, relu2, swiglu_oai"),
        ((*EXPERTS, "activation"), "silu, gelu_tanh, gelu_erf, relu, relu2, swiglu_oai"),
    ],
)
def test_a_choice_that_there_is_not(folder: Path, keys: tuple[str | int, ...], known: str) -> None:
    for name in ("", "Rms", "gelu"):
        describe(folder, changed(keys, name))
        refused(folder, shown(keys), known)
    for value in (0, True, ["rms"]):
        describe(folder, changed(keys, value))
        refused(folder, f"{shown(keys)}: not ")


CONTRADICTIONS: list[tuple[tuple[str | int, ...], Any, str]] = [
    # Heads.
    (("heads",), 3, "kv_heads: heads is not a multiple of it"),
    (("heads",), 1025, "1 .. 1024"),
    (("kv_heads",), 3, "kv_heads: heads is not a multiple of it"),
    (("head_dim",), 15, "head_dim: odd"),
    (("head_dim",), 1026, "head_dim: not a whole number in 2 .. 1024"),
    (("head_dim",), 8, "kinds[0].attention.rope: its rotary_dim is more than the head_dim"),
    ((*ATTENTION, "head_dim"), 8, "kinds[0].attention.rope: its rotary_dim is more than the head_dim"),
    ((*ATTENTION, "head_dim"), 17, "kinds[0].attention.head_dim: odd"),
    ((*ATTENTION, "head_dim"), 0, "head_dim: not a whole number in 2 .. 1024"),
    ((*ATTENTION, "kv_heads"), 3, "kinds[0].attention.kv_heads: heads is not a multiple of it"),
    ((*ATTENTION, "kv_heads"), 0, "kv_heads: not a whole number in 1 .. 1024"),
    # Which layer is of which kind.
    (("layers",), [], "not a list of 1 to 1024 integers"),
    (("layers",), [0] * 1025, "not a list of 1 to 1024 integers"),
    (("layers",), 3, "not a list of 1 to 1024 integers"),
    (("layers",), [0, 2, 0], "layers: not a whole number in 0 .. 1"),
    (("layers",), [0, -1, 1], "layers: not a whole number in 0 .. 1"),
    (("layers",), [0, 0.5, 1], "layers: not a whole number in 0 .. 1"),
    (("layers",), [0, None, 1], "layers: not a whole number in 0 .. 1"),
    (("layers",), [0, 0, 0], "kinds[1]: no layer is of this kind"),
    (("kinds",), [], "kinds: missing"),
    (("kinds",), {}, "not a list of at most 64 objects"),
    (("kinds",), [DECODER.to_dict()["kinds"][0]] * 65, "not a list of at most 64 objects"),
    (("kinds", 1), 7, "kinds[1]: not an object"),
    (("kinds", 1), None, "kinds[1]: not an object"),
    (ATTENTION, [], "kinds[0].attention: not an object"),
    (MLP, 7, "kinds[0].mlp: not an object"),
    (EXPERTS, "8", "kinds[1].experts: not an object"),
    (("kinds", 0, "experts"), {"count": 2, "per_token": 1, "inner": 32}, "beside an MLP they need an mlp_output_norm"),
    (("kinds", 0, "scaled"), True, "scaled: needs an mlp_output_norm"),
    (("kinds", 0, "norms_sum"), True, "norms_sum: needs both output norms"),
    # Embeddings.
    (("embedding_size",), 65, "embedding_size: not a whole number in 0 .. 64"),
    (("embedding_size",), -1, "embedding_size: not a whole number in 0 .. 64"),
    # Rotary embeddings.
    (("ropes",), 1, "not a list of at most 64 objects"),
    (("ropes",), [DECODER.to_dict()["ropes"][0]] * 65, "not a list of at most 64 objects"),
    (("ropes",), [1], "ropes[0]: not an object"),
    (("ropes",), [], "kinds[1].attention.rope: there are no ropes"),
    (("ropes",), None, "kinds[1].attention.rope: there are no ropes"),
    (("ropes", 0, "rotary_dim"), 15, "rotary_dim: odd"),
    (("ropes", 0, "rotary_dim"), 1026, "rotary_dim: not a whole number in 2 .. 1024"),
    (("ropes", 0, "rotary_dim"), 8, "frequencies: not a list of 4 numbers"),
    (("ropes", 0, "frequencies"), [1.0] * 7, "frequencies: not a list of 8 numbers"),
    (("ropes", 0, "frequencies"), [1.0] * 9, "frequencies: not a list of 8 numbers"),
    (("ropes", 0, "frequencies"), 1.0, "frequencies: not a list of 8 numbers"),
    (("ropes", 0, "frequencies", 7), -1e-3, "frequencies: not a number in range"),
    (("ropes", 0, "frequencies", 7), 1e13, "frequencies: not a number in range"),
    (("ropes", 0, "frequencies", 7), "1", "frequencies: not a number in range"),
    (("ropes", 0, "frequencies", 7), None, "frequencies: not a number in range"),
    (("ropes", 1, "long_frequencies"), [1.0] * 3, "long_frequencies: not a list of 4 numbers"),
    (("ropes", 1, "long_frequencies", 0), -1, "long_frequencies: not a number in range"),
    (("ropes", 0, "short_positions"), 64, "short_positions: not known"),
    (("ropes", 0, "dynamic"), 2.0, "dynamic: not an object"),
    (("ropes", 0, "dynamic"), {}, "dynamic.trained_positions: missing"),
    (("ropes", 0, "dynamic"), {"trained_positions": 0}, "dynamic.trained_positions: not a whole number in 1 .. "),
    (("ropes", 0, "dynamic"), {"trained_positions": 9, "factor": 0}, "dynamic.factor: not a number in range"),
    (("ropes", 0, "dynamic"), {"trained_positions": 9, "theta": 0.5}, "dynamic.theta: not a number in range"),
    (("ropes", 0, "dynamic"), {"trained_positions": 9, "theta": 1e16}, "dynamic.theta: not a number in range"),
    (("ropes", 0, "dynamic"), {"trained_positions": 9, "beta": 1}, "dynamic.beta: not known"),
    (
        ("ropes", 1),
        {"rotary_dim": 2, "frequencies": [1.0], "dynamic": {"trained_positions": 9}},
        "dynamic: needs a rotary_dim of 4 or more",
    ),
    # The layer that drafts.
    (("predictor",), {"kind": 2}, "predictor.kind: not a whole number in 0 .. 1"),
    (("predictor",), {"kind": 0, "eagle": True}, "predictor.eagle: a head has no layers but its own"),
    (("predictor",), {"kind": 0, "states": [1, 2]}, "predictor.states: not a list of 3 integers"),
    (("predictor",), {"kind": 0, "states": [1, 2, -1]}, "states: not a whole number in 0 .. 1024"),
    # Attention.
    ((*ATTENTION, "rope"), 2, "attention.rope: not a whole number in 0 .. 1"),
    ((*ATTENTION, "rope"), -1, "attention.rope: not a whole number in 0 .. 1"),
    ((*ATTENTION, "rope"), "0", "attention.rope: not a whole number in 0 .. 1"),
    ((*ATTENTION, "slopes"), [0.5] * 3, "slopes: not a list of 4 numbers"),
    ((*ATTENTION, "slopes"), 0.5, "slopes: not a list of 4 numbers"),
    ((*ATTENTION, "slopes"), [0.5, 0.25, -0.1, 0.1], "slopes: not a number in range"),
    ((*ATTENTION, "slopes"), [0.5, 0.25, 1e13, 0.1], "slopes: not a number in range"),
    ((*ATTENTION, "temperature_scale"), 0.1, "temperature_positions: missing"),
    # Gated DeltaNet.
    (("kinds", 0, "delta"), DELTA, "attention: a layer has either attention or a delta"),
    (ATTENTION, ABSENT, "kinds[0].attention: missing"),
    (("kinds", 0), {"delta": {**DELTA, "value_heads": 3}, "mlp": {"inner": 96}}, "value_heads: not a multiple"),
    (("kinds", 0), {"delta": {**DELTA, "key_dim": 257}, "mlp": {"inner": 96}}, "key_dim: not a whole number in "),
    (("kinds", 0), {"delta": {**DELTA, "value_dim": 0}, "mlp": {"inner": 96}}, "value_dim: not a whole number in "),
    (("kinds", 0), {"delta": {**DELTA, "taps": 9}, "mlp": {"inner": 96}}, "taps: not a whole number in 1 .. 8"),
    (("kinds", 0), {"delta": {**DELTA, "gate": 1}, "mlp": {"inner": 96}}, "delta.gate: not known"),
    (
        ("kinds",),
        [{"delta": {**DELTA, "key_heads": heads}, "mlp": {"inner": 96}} for heads in (1, 2)],
        "kinds[1].delta: its sizes differ from those of another kind",
    ),
    ((*ATTENTION, "keys_of"), 0, "kinds[0].attention.keys_of: is not a layer before its own"),
    ((*ATTENTION, "keys_of"), -1, "keys_of: not a whole number in 0 .. "),
    (("kinds", 1, "attention", "keys_of"), 2, "kinds[1].attention.keys_of: is not a layer before its own"),
    (("kinds", 1, "attention"), {"scale": 1, "keys_of": 0, "window": 4}, "that layer has other heads or another"),
    (("kinds", 1, "attention"), {"scale": 1, "keys_of": 0, "kv_heads": 1}, "that layer has other heads or another"),
    # Inputs of layers.
    (("layer_inputs",), 3, "layer_inputs: not an object"),
    (("layer_inputs",), {}, "layer_inputs.size: missing"),
    (("layer_inputs",), {"size": 1025}, "layer_inputs.size: not a whole number in 1 .. 1024"),
    (("layer_inputs",), {"size": 8, "embedding_scale": 0}, "layer_inputs.embedding_scale: not a number in range"),
    (("layer_inputs",), {"size": 8, "activation": "tanh"}, "layer_inputs.activation: "),
    (("layer_inputs",), {"size": 8, "gate": True}, "layer_inputs.gate: not known"),
    # MLPs and experts.
    (MLP, {"inner": 96, "activation": "swiglu_oai", "gated": False}, "gated: swiglu_oai needs a gate"),
    ((*EXPERTS, "count"), 4097, "1 .. 4096"),
    ((*EXPERTS, "per_token"), 9, "per_token: not a whole number in 1 .. 8"),
    (EXPERTS, {"count": 2048, "per_token": 1025, "inner": 32}, "per_token: not a whole number in 1 .. 1024"),
    ((*EXPERTS, "inner"), 48, "inner: not a multiple of 32"),
    ((*EXPERTS, "groups"), 9, "groups: not a whole number in 1 .. 8"),
    ((*EXPERTS, "groups"), 3, "groups: count is not a multiple of it"),
    ((*EXPERTS, "groups"), 8, "chosen_groups: they have fewer experts than per_token"),
    ((*EXPERTS, "chosen_groups"), 2, "chosen_groups: not a whole number in 1 .. 1"),
    ((*EXPERTS, "shared_gate"), True, "shared_gate: there is no shared_inner"),
    (
        EXPERTS,
        {"count": 8, "per_token": 2, "inner": 32, "shared_inner": 32, "shared_gate": True, "router_norm": True},
        "router_norm: does not go with shared_gate",
    ),
    (
        EXPERTS,
        {"count": 8, "per_token": 2, "inner": 32, "scoring": "softmax_of_chosen", "correction_bias": True},
        "correction_bias: does not go with scoring softmax_of_chosen",
    ),
    (("norm_bias",), True, "norm_bias: RMS norms have none"),
    (("norm_epsilon",), 1.5, "norm_epsilon: not a number in range"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "value", "reason"), CONTRADICTIONS)
def test_what_does_not_go_together(folder: Path, keys: tuple[str | int, ...], value: Any, reason: str) -> None:
    describe(folder, changed(keys, value))
    refused(folder, "model.safetensors: decoder.", reason)


TENSORS: list[tuple[tuple[str | int, ...], Any, str, str]] = [
    (("vocab_size",), 95, "embed_tokens.weight", "is 96 x 64, but the description demands 95 x 64"),
    (("hidden_size",), 32, "embed_tokens.weight", "demands 96 x 32"),
    (("heads",), 2, "0.self_attn.q_proj.weight", "demands 32 x 64"),
    (("kv_heads",), 4, "0.self_attn.k_proj.weight", "demands 64 x 64"),
    (("head_dim",), 32, "0.self_attn.q_proj.weight", "demands 128 x 64"),
    (("layers",), [0, 1, 0, 0], "3.input_layernorm.weight", "missing"),
    (("layers",), [1, 0, 0], "0.mlp.router.weight", "missing"),
    (("embedding_norm",), True, "embed_norm.weight", "missing"),
    (("head_bias",), True, "lm_head.bias", "missing"),
    (("kinds", 0, "attention_output_norm"), True, "0.attention_output_norm.weight", "missing"),
    (("kinds", 1, "mlp_output_norm"), True, "1.mlp_output_norm.weight", "missing"),
    ((*ATTENTION, "qk_norm"), "head", "0.self_attn.q_norm.weight", "missing"),
    ((*ATTENTION, "qkv_bias"), True, "0.self_attn.q_proj.bias", "missing"),
    ((*ATTENTION, "output_bias"), True, "0.self_attn.o_proj.bias", "missing"),
    ((*ATTENTION, "sinks"), True, "0.self_attn.sinks", "missing"),
    ((*MLP, "inner"), 64, "0.mlp.up_proj.weight", "is 96 x 64, but the description demands 64 x 64"),
    ((*MLP, "bias"), True, "0.mlp.up_proj.bias", "missing"),
    ((*EXPERTS, "count"), 4, "1.mlp.router.weight", "is 8 x 64, but the description demands 4 x 64"),
    ((*EXPERTS, "inner"), 64, "1.mlp.experts.gate_proj.weight", "is 256 x 64, but the description demands 512 x 64"),
    ((*EXPERTS, "inner"), 2**24, "1.mlp.experts.gate_proj.weight", "demands 134217728 x 64"),
    ((*EXPERTS, "bias"), True, "1.mlp.experts.gate_proj.bias", "missing"),
    ((*EXPERTS, "router_bias"), True, "1.mlp.router.bias", "missing"),
    ((*EXPERTS, "correction_bias"), True, "1.mlp.router.correction_bias", "missing"),
    ((*EXPERTS, "shared_inner"), 32, "1.mlp.shared.up_proj.weight", "missing"),
    (("layer_inputs",), {"size": 8}, "0.layer_input.gate_proj.weight", "missing"),
    ((*EXPERTS, "router_norm"), True, "1.mlp.router.norm.weight", "missing"),
    ((*EXPERTS, "expert_scale"), True, "1.mlp.router.expert_scale", "missing"),
    ((*ATTENTION, "kv_heads"), 4, "0.self_attn.k_proj.weight", "demands 64 x 64"),
    ((*ATTENTION, "head_dim"), 32, "0.self_attn.q_proj.weight", "demands 128 x 64"),
]


@pytest.mark.parametrize(("keys", "value", "tensor", "reason"), TENSORS)
def test_a_description_of_other_tensors(
    folder: Path, keys: tuple[str | int, ...], value: Any, tensor: str, reason: str
) -> None:
    describe(folder, changed(keys, value))
    refused(folder, "model.safetensors: tensor '", f"{tensor}'", reason)


def test_layer_norms_whose_biases_are_missing(folder: Path) -> None:
    describe(folder, json.dumps({**DECODER.to_dict(), "norm": "layer", "norm_bias": True}))
    refused(folder, "tensor 'model.layers.0.input_layernorm.bias': missing")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "decoder: JSON"),
        ("{", "decoder: JSON"),
        ("[]", "decoder: not a JSON object"),
        ("null", "decoder: not a JSON object"),
        ('{"vocab_size": 96}', "decoder.hidden_size: missing"),
        ('{"vocab_size": 96, "vocab_size": 96}', "twice"),
        ('{"vocab_size": NaN}', "decoder: JSON"),
        ('{"vocab_size": Infinity}', "decoder: JSON"),
        ('{"norm_epsilon": 1e999}', "out of range"),
        ('{"vocab_size": 18446744073709551616}', "decoder"),
        ('{"kinds": ' + "[" * 100_000, "deep"),
    ],
)
def test_a_text_that_is_no_description(folder: Path, text: str, reason: str) -> None:
    describe(folder, text)
    refused(folder, "model.safetensors: ", reason)


@pytest.mark.parametrize("change", [lambda m: m.pop("decoder"), lambda m: m.__setitem__("decoder", {"heads": 4})])
def test_a_file_without_a_description(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    header, data = split(folder)
    change(header["__metadata__"])
    join(folder, header, data)
    refused(folder, "model.safetensors: ", "decoder")


def test_the_layout_before_descriptions_says_how_to_convert(folder: Path) -> None:
    header, data = split(folder)
    header["__metadata__"]["layout_version"] = "1"
    del header["__metadata__"]["decoder"]
    join(folder, header, data)
    refused(folder, "model.safetensors: layout_version is '1'", "redoubt convert OLD_FOLDER NEW_FOLDER")


@pytest.mark.parametrize("count", [ABSENT, 0, 3, 7, 16, -1, 2.0, "8", 2**62])
def test_a_stack_of_another_count(folder: Path, count: Any) -> None:
    name = "model.layers.1.mlp.experts.up_proj.weight"
    header, data = split(folder)
    matrices = json.loads(header["__metadata__"]["matrices"])
    assert matrices[name]["count"] == 8
    if count is ABSENT:
        del matrices[name]["count"]
    else:
        matrices[name]["count"] = count
    header["__metadata__"]["matrices"] = json.dumps(matrices)
    join(folder, header, data)
    refused(folder, "model.safetensors: ", name, "has 1 matrices, but" if count is ABSENT else "count")


def test_a_matrix_that_says_it_is_a_stack(folder: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    header, data = split(folder)
    matrices = json.loads(header["__metadata__"]["matrices"])
    matrices[name]["count"] = 2
    header["__metadata__"]["matrices"] = json.dumps(matrices)
    join(folder, header, data)
    refused(folder, name, "has 2 matrices, but the description demands 1")
