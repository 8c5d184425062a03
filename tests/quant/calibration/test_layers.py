"""What each matrix is quantized by, against its definition, and where each stream ends."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quant.calibration.block import attend, attention_input, block, block_shape, gated, linear, mlp_input
from quant.calibration.layer_engine import LayerEngine
from quant.calibration.layers import Chosen, LayerWork, Streams, run_layer
from quant.calibration.sums import PRIOR_ROWS_PER_INPUT
from quant.calibration.whole_layers import MATRICES
from quant.codes.matrix import F32, U8
from quant.families.description import Attention, Decoder, DeltaNet, Experts, Latent, Layer, Mlp
from quant.families.names import engine_tensors
from quant.families.registry import describe
from quant.packed.packed_matrix import MatrixInfo, pack_float, unpacked
from tests.kernels.tiny_model import LLAMA, described_tensors, random_tensors
from tests.quant.calibration.test_layer_engine import layer_file

F64 = NDArray[np.float64]
PREFIX = "model.layers.0."
WINDOWS, TOKENS = 7, 12
RAW = {**LLAMA, "attention_bias": True, "mlp_bias": True}


def start(tensors: Mapping[str, F32], first_token: float = 300) -> Streams:
    """The first token far longer than the rest, as models have it; what is seen a little off, there most of all."""
    generator = np.random.default_rng(4)
    exact = generator.standard_normal((WINDOWS, TOKENS, 64)).astype(np.float32)
    exact[:, 0] += np.float32(first_token) * tensors["model.embed_tokens.weight"][7]
    seen = exact * generator.uniform(0.95, 1.05, exact.shape).astype(np.float32)
    return Streams(exact, seen)


def rounded(values: F32) -> F32:
    return np.round(values * 4) / np.float32(4)


def run(
    decoder: Decoder, tensors: Mapping[str, F32], as_is: frozenset[str] = frozenset(), first_token: float = 300
) -> tuple[list[Chosen], dict[str, F32], Streams]:
    """What was chosen in order, what was saved, and the streams after the layer. Matrices stay floats."""
    expected = engine_tensors(decoder)
    matrices = {name: tensor for name, tensor in expected.items() if tensor.role in ("linear", "router")}
    infos = {n: MatrixInfo("fp32", t.shape[0], t.shape[1], 0, None, t.count) for n, t in matrices.items()}
    chosen, saved = list[Chosen](), dict[str, F32]()

    def choose(matrix: Chosen) -> U8:
        chosen.append(matrix)
        return pack_float(rounded(matrix.weights), "fp32")

    def save(name: str, packed: U8) -> None:
        saved[name] = unpacked(packed, infos[name])

    work = LayerWork(
        infos=infos,
        vectors={name: values for name, values in tensors.items() if values.ndim == 1},
        read=lambda name, begin, end: tensors[name][begin:end],
        as_is=as_is,
        pack=lambda name: pack_float(tensors[name], "fp32"),
        choose=choose,
        save=save,
    )
    streams = start(tensors, first_token)
    run_layer(0, decoder, work, streams)
    return chosen, saved, streams


def definition(tensors: Mapping[str, F32]) -> tuple[dict[str, tuple[F64, F64]], F64, F64]:
    shape = block_shape(describe(RAW, "test"), TOKENS)
    exact = {name.removeprefix(PREFIX): values for name, values in tensors.items() if name.startswith(PREFIX)}
    seen = {**exact, **{name: rounded(exact[name]) for name in MATRICES}}
    streams = start(tensors)
    sides = ((streams.exact, exact), (streams.seen, seen))
    inputs: list[dict[str, Any]] = []
    for x, weights in sides:
        normed = attention_input(x, weights, shape)
        context = attend(normed, weights, shape)
        middle = x + linear(context, weights, "self_attn.o_proj")
        normed_mlp = mlp_input(middle, weights, shape)
        inner = gated(normed_mlp, weights)
        each: dict[str, Any] = dict.fromkeys(("q_proj", "k_proj", "v_proj"), (normed, None))
        each |= {"o_proj": (context, x), "gate_proj": (normed_mlp, None), "up_proj": (normed_mlp, None)}
        inputs.append(each | {"down_proj": (inner, middle)})
    found_of = {}
    for name in MATRICES:
        short = name.removesuffix(".weight")
        (x, residual), (s, residual_seen) = (each[short.split(".")[1]] for each in inputs)
        flat = s.astype(np.float64).reshape(WINDOWS * TOKENS, -1)
        d = (x - s).astype(np.float64).reshape(flat.shape) @ exact[name].T.astype(np.float64)
        if residual is not None:
            d += (residual - residual_seen).astype(np.float64).reshape(d.shape)
        found_of[PREFIX + name] = (flat.T @ flat / len(flat), d.T @ flat / len(flat))
    outputs = [block(x, weights, shape).astype(np.float64) for x, weights in sides]
    return found_of, outputs[0], outputs[1]


def near(found: F32, wanted: F64, tolerance: float) -> bool:
    return bool(np.linalg.norm(found - wanted) < tolerance * np.linalg.norm(wanted))


def test_moments_and_what_is_missing_are_the_definitions() -> None:
    """Keys and values of the seen stream have 12 bits: half a step is 2^-12 of a head's largest.

    What is missing is a twentieth of the inputs, so that their errors weigh twenty times as much.
    """
    tensors = random_tensors(RAW)
    decoder = replace(describe(RAW, "test"), layers=(0,))
    found, saved, streams = run(decoder, tensors)
    wanted, exact, seen = definition(tensors)
    assert [each.name for each in found] == [PREFIX + name for name in MATRICES]
    for each in found:
        moments, missing = wanted[each.name]
        tolerance = 2e-5 if each.name.split(".")[-2] in ("q_proj", "k_proj", "v_proj") else 2.0**-12
        assert near(each.moments, moments, tolerance), each.name
        assert each.missing is not None
        assert near(each.missing, missing, 20 * tolerance), each.name
        assert np.array_equal(saved[each.name], rounded(tensors[each.name]))
    assert near(streams.exact, exact, 2e-5)
    assert near(streams.seen, seen, 2.0**-12)


def test_matrices_that_stay_as_they_are_change_nothing() -> None:
    tensors = random_tensors(RAW)
    decoder = replace(describe(RAW, "test"), layers=(0,))
    whole = frozenset(PREFIX + name for name in MATRICES)
    found, saved, streams = run(decoder, tensors, whole)
    assert not found
    assert all(np.array_equal(values, tensors[name]) for name, values in saved.items())
    free = PREFIX + "mlp.up_proj.weight"
    found, _, again = run(decoder, tensors, whole - {free})
    assert [each.name for each in found] == [free]
    assert np.array_equal(again.exact, streams.exact)
    assert not np.array_equal(again.seen, streams.seen)


def test_a_norm_between_a_matrix_and_the_stream_ends_its_correction() -> None:
    """What o_proj and down_proj miss is then what their own outputs lack, and nothing of the residual stream's."""
    kind = Layer(Attention(0.25, rope=None), Mlp(96), attention_output_norm=True, mlp_output_norm=True)
    decoder = replace(describe(RAW, "test"), kinds=(kind,), layers=(0,), ropes=())
    tensors = described_tensors(decoder)
    found = {each.name: each for each in run(decoder, tensors, first_token=0)[0]}
    streams, sides = start(tensors, 0), []
    names = ("output_input", "attention_output", "down_input", "mlp_output")
    for x, change in ((streams.exact, np.asarray), (streams.seen, rounded)):
        weights = {name: change(values) if values.ndim > 1 else values for name, values in tensors.items()}
        with LayerEngine(layer_file(decoder, weights), TOKENS, exact=change is np.asarray) as engine:
            sides.append(next(arrays for _, arrays in engine.activations(x, names)))
    exact, seen = sides
    for name, inputs, output in (
        ("self_attn.o_proj", "output_input", "attention_output"),
        ("mlp.down_proj", "down_input", "mlp_output"),
    ):
        each, s = found[f"{PREFIX}{name}.weight"], seen[inputs].astype(np.float64)
        assert each.missing is not None
        assert near(each.moments, s.T @ s / len(s), 1e-5)
        lacking = exact[output] - s @ each.weights.T.astype(np.float64)
        assert near(each.missing, lacking.T @ s / len(s), 1e-4)


@pytest.mark.parametrize(
    ("kind", "first", "output"),
    [
        (
            Layer(Attention(0.25, rope=None, output_gate=True), Mlp(96)),
            [f"self_attn.{part}_proj" for part in ("q", "k", "v", "gate")], "self_attn.o_proj",
        ),
        (
            Layer(delta=DeltaNet(2, 4, 16, 8), mlp=Mlp(96)),
            ["delta.qkv_proj", "delta.gate_proj"], "delta.output_proj",
        ),
    ],
)  # fmt: skip
def test_gates_share_their_input_with_what_they_gate(kind: Layer, first: list[str], output: str) -> None:
    decoder = replace(describe(RAW, "test"), kinds=(kind,), layers=(0,), ropes=())
    tensors = described_tensors(decoder)
    found, saved, _ = run(decoder, tensors, first_token=0)
    assert [each.name for each in found][: len(first) + 1] == [f"{PREFIX}{name}.weight" for name in (*first, output)]
    assert len({each.moments.tobytes() for each in found[: len(first)]}) == 1
    normed = start(tensors, 0).seen.astype(np.float64).reshape(-1, 64)
    normed /= np.sqrt(np.square(normed).mean(-1, keepdims=True) + decoder.norm_epsilon)
    normed *= tensors[f"{PREFIX}input_layernorm.weight"]
    assert near(found[0].moments, normed.T @ normed / len(normed), 1e-5)
    weights = {name: rounded(values) if name.endswith("_proj.weight") else values for name, values in tensors.items()}
    weights |= {name: tensors[name] for name in tensors if "beta_proj" in name or "decay_proj" in name}
    with LayerEngine(layer_file(decoder, weights), TOKENS, exact=True) as engine:
        seen = next(arrays for _, arrays in engine.activations(start(tensors, 0).seen, ("output_input",)))
    inputs = seen["output_input"].astype(np.float64)
    own = found[len(first)]
    assert own.missing is not None
    assert near(own.moments, inputs.T @ inputs / len(inputs), 2.0**-10)
    assert not any("beta" in name or "decay" in name for name in saved)


def test_experts_beside_an_mlp_have_inputs_of_their_own() -> None:
    """The MLP's down projection and the experts are quantized by their inputs; values that are keys have no matrix."""
    experts = Experts(count=4, per_token=2, inner=32, renormalize=True, router_norm=True, expert_scale=True)
    attention = Attention(0.25, rope=None, kv_heads=1, head_dim=32, value_norm=True, value_is_key=True)
    kind = Layer(attention, Mlp(96), experts, attention_output_norm=True, mlp_output_norm=True, scaled=True)
    decoder = replace(describe(RAW, "test"), kinds=(kind,), layers=(0,), ropes=())
    tensors = described_tensors(decoder)
    found, saved, streams = run(decoder, tensors, first_token=0)
    for name, values in saved.items():
        assert np.array_equal(values, rounded(tensors[name])), name
    assert len(saved) == 3 + 3 + 3
    weights = {name: rounded(values) if name in saved else values for name, values in tensors.items()}
    seen = start(tensors, 0).seen
    with LayerEngine(layer_file(decoder, weights), TOKENS, exact=False) as engine:
        names = ("experts_input", "dense_down_input", "pairs", "mlp_input")
        arrays = next(arrays for _, arrays in engine.activations(seen, names))
        assert np.array_equal(
            streams.seen, next(a for _, a in engine.activations(seen, ("hidden",)))["hidden"].reshape(seen.shape)
        )
    for name, inputs in (("down_proj", "dense_down_input"), ("gate_proj", "mlp_input"), ("up_proj", "mlp_input")):
        each, s = next(e for e in found if e.name == f"{PREFIX}mlp.{name}.weight"), arrays[inputs].astype(np.float64)
        assert near(each.moments, s.T @ s / len(s), 1e-5), name
        assert (each.missing is None) == (name == "down_proj")
    prior = PRIOR_ROWS_PER_INPUT * 64
    x = arrays["experts_input"].astype(np.float64)
    gates = [each for each in found if each.name == f"{PREFIX}mlp.experts.gate_proj.weight"]
    for expert, each in enumerate(gates):
        own = x[arrays["pairs"][arrays["pairs"][:, 1] == expert, 0]]
        assert near(each.moments, (own.T @ own + prior * x.T @ x / len(x)) / (len(own) + prior), 1e-5)


def test_each_expert_is_quantized_by_its_own_rows() -> None:
    experts = Experts(count=4, per_token=2, inner=32, shared_inner=64)
    decoder = replace(
        describe(RAW, "test"), kinds=(Layer(Attention(0.25, rope=None), experts=experts),), layers=(0,), ropes=()
    )
    tensors = described_tensors(decoder)
    found, saved, _ = run(decoder, tensors, first_token=0)
    count = experts.count
    for part, rows in (("gate_proj", 32), ("up_proj", 32), ("down_proj", 64)):
        name = f"{PREFIX}mlp.experts.{part}.weight"
        own = [each for each in found if each.name == name]
        assert len(own) == count
        assert np.array_equal(np.concatenate([each.weights for each in own]), tensors[name])
        assert {each.weights.shape[0] for each in own} == {rows}
        assert all(each.missing is None for each in own)
        assert len({each.moments.tobytes() for each in own}) == count
        assert np.array_equal(saved[name], rounded(tensors[name]))
    gates = [e.moments for e in found if e.name == f"{PREFIX}mlp.experts.gate_proj.weight"]
    ups = [e.moments for e in found if e.name == f"{PREFIX}mlp.experts.up_proj.weight"]
    assert all(np.array_equal(a, b) for a, b in zip(gates, ups, strict=True))
    shared = next(each for each in found if each.name == f"{PREFIX}mlp.shared.gate_proj.weight")
    assert shared.missing is not None
    assert {name.removeprefix(PREFIX) for name in saved} == {f"self_attn.{part}_proj.weight" for part in "qkvo"} | {
        f"mlp.{kind}.{part}_proj.weight" for kind in ("experts", "shared") for part in ("gate", "up", "down")
    }


def test_each_head_of_latent_attention_is_quantized_by_its_own_inputs() -> None:
    latent = Latent(kv_rank=32, nope_dim=24, rope_dim=8, value_dim=32, query_rank=40)
    kinds = (Layer(Attention(0.25, rope=None, latent=latent), Mlp(96)),)
    decoder = replace(
        describe(RAW, "test"), kinds=kinds, layers=(0,), ropes=(), kv_heads=1, head_dim=latent.rope_dim + latent.kv_rank
    )
    tensors = described_tensors(decoder)
    found, saved, _ = run(decoder, tensors, first_token=0)
    parts = ("q_a", "kv_a", "q_b", "key_up", "value_up", "o")
    order = list(dict.fromkeys(each.name.removeprefix(f"{PREFIX}self_attn.") for each in found))
    assert order[: len(parts)] == [f"{part}_proj.weight" for part in parts]

    seen, streams = dict(tensors), start(tensors, 0)
    for stage, names in (("query_input", ("q_a", "kv_a")), ("key_up_input", ("q_b",)), ("value_up_input", ("key_up",))):
        seen |= {(name := f"{PREFIX}self_attn.{part}_proj.weight"): saved[name] for part in names}
        inputs = tapped(decoder, seen, streams.seen, stage)
        if stage == "query_input":
            (each,) = (each for each in found if each.name.endswith("q_b_proj.weight"))
            assert near(each.moments, inputs.T @ inputs / len(inputs), 1e-5)
            moved = tapped(decoder, tensors, streams.exact, stage) - inputs
            assert each.missing is not None
            assert near(each.missing, each.weights.astype(np.float64) @ (moved.T @ inputs) / len(inputs), 1e-4)
            continue
        own = [each for each in found if each.name.endswith(f"{stage.removesuffix('_input')}_proj.weight")]
        by_head = inputs.reshape(len(inputs), decoder.heads, -1)
        assert len(own) == decoder.heads
        for head, each in enumerate(own):
            assert each.missing is None
            assert near(each.moments, by_head[:, head].T @ by_head[:, head] / len(inputs), 1e-5)
        assert np.array_equal(np.concatenate([each.weights for each in own]), tensors[own[0].name])
        assert np.array_equal(saved[own[0].name], rounded(tensors[own[0].name]))


def tapped(decoder: Decoder, weights: Mapping[str, F32], hidden: F32, name: str) -> F64:
    """An activation of all tokens, as the engine has it with these weights."""
    with LayerEngine(layer_file(decoder, weights), TOKENS, exact=False) as engine:
        found = [arrays[name].astype(np.float64) for _, arrays in engine.activations(hidden, (name,))]
    return np.concatenate(found)
