"""What a description can say beyond Llama, alone and all mixed: against a decoder in NumPy, whatever the step is."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels import _native
from quant.codes.matrix import WeightType
from quant.families.description import Attention, Decoder, Experts, Latent, Layer, LayerInputs, Mlp, Rope
from tests.families import decoder_reference
from tests.kernels.tiny_model import F32, Sequences, described_tensors, write_described
from tests.sizes import some

VOCABULARY, TOKENS = 96, 70
ROUNDING_MULTIPLE = 8.0
"""Of what float32 costs the reference, which sums in blocks where the engine sums in ascending order."""
FAST = Rope(16, tuple(10.0 ** (-i / 4) for i in range(8)))
PARTIAL = Rope(6, (1.0, 0.2, 0.03), attention_factor=1.3)
SLOWER = tuple(0.1 * frequency for frequency in FAST.frequencies)
LONG = replace(FAST, long_frequencies=SLOWER, short_positions=TOKENS, long_attention_factor=1.2)
SLOPES = (0.5, 0.25, 0.125, 0.0625)
PLAIN = Attention(0.25)
BASE = Decoder(
    vocab_size=VOCABULARY, hidden_size=64, max_positions=512, heads=4, kv_heads=2, head_dim=16, ropes=(FAST,),
    kinds=(Layer(PLAIN, mlp=Mlp(96)),), layers=(0, 0),
)  # fmt: skip
LAYER_NORM = replace(BASE, norm="layer", norm_epsilon=1e-5)
LATENT = Latent(kv_rank=32, nope_dim=32, rope_dim=32, value_dim=64)
LATENTS = replace(BASE, kv_heads=1, head_dim=64, kinds=(Layer(replace(PLAIN, latent=LATENT), mlp=Mlp(96)),))


def with_layer(attention: Attention = PLAIN, mlp: Mlp | None = None, **options: Any) -> Decoder:
    return replace(BASE, kinds=(Layer(attention, mlp=mlp or Mlp(96), **options),))


def with_attention(**options: Any) -> Decoder:
    return with_layer(attention=replace(PLAIN, **options))


FEATURES: Mapping[str, Decoder] = {
    "embedding scale": replace(BASE, embedding_scale=8.0),
    "embedding norm": replace(BASE, embedding_norm=True),
    "tied head": replace(BASE, tied_head=True),
    "head bias": replace(BASE, head_bias=True),
    "tied head with a bias": replace(BASE, tied_head=True, head_bias=True),
    "logit scale": replace(BASE, logit_scale=0.375),
    "logit softcap": replace(BASE, logit_softcap=0.7),
    "logit scale and softcap": replace(BASE, logit_scale=3.0, logit_softcap=2.0),
    "no final norm": replace(BASE, final_norm=False),
    "epsilon": replace(BASE, norm_epsilon=0.5),
    "layer norm": LAYER_NORM,
    "layer norm, biases": replace(LAYER_NORM, norm_bias=True, embedding_norm=True),
    "output norms": with_layer(attention_output_norm=True, mlp_output_norm=True),
    "output norms alone": with_layer(
        attention_output_norm=True, mlp_output_norm=True, attention_norm=False, mlp_norm=False
    ),
    "norms of sums": with_layer(
        attention_output_norm=True, mlp_output_norm=True, attention_norm=False, mlp_norm=False, norms_sum=True
    ),
    "norms of sums and of inputs": with_layer(attention_output_norm=True, mlp_output_norm=True, norms_sum=True),
    "learned positions": replace(with_attention(rope=None), learned_positions=True),
    "a narrow embedding": replace(BASE, embedding_size=32, embedding_scale=2.0),
    "a narrow embedding and positions": replace(BASE, embedding_size=32, learned_positions=True, tied_head=True),
    "no norms": replace(with_layer(attention_norm=False, mlp_norm=False), embedding_norm=True),
    "parallel, two norms": with_layer(parallel=True),
    "parallel, one norm": with_layer(parallel=True, mlp_norm=False),
    "parallel, no norm": with_layer(parallel=True, mlp_norm=False, attention_norm=False),
    "parallel, output norms": with_layer(parallel=True, attention_output_norm=True, mlp_output_norm=True),
    **{
        f"{activation}{', biases' if bias else ''}": with_layer(mlp=Mlp(96, activation, bias=bias))
        for activation in ("gelu_tanh", "gelu_erf", "relu", "relu2", "swiglu_oai")
        for bias in (False, True)
    },
    **{
        f"{activation} without a gate{', biases' if bias else ''}": with_layer(mlp=Mlp(96, activation, False, bias))
        for activation in ("silu", "gelu_tanh", "gelu_erf", "relu", "relu2")
        for bias in (False, True)
    },
    "no rope": with_attention(rope=None),
    "partial rotary": replace(BASE, ropes=(PARTIAL,)),
    "several ropes": replace(
        BASE, ropes=(FAST, PARTIAL, LONG), layers=(0, 1, 2, 3),
        kinds=tuple(Layer(replace(PLAIN, rope=rope), mlp=Mlp(96)) for rope in (2, 1, None, 0)),
    ),
    "attention scale": with_attention(scale=1.5),
    "query temperature": with_attention(temperature_scale=0.6, temperature_positions=13),
    "norms of heads": with_attention(qk_norm="head"),
    "norms of rows": with_attention(qk_norm="row"),
    "query, key and value biases": with_attention(qkv_bias=True),
    "output bias": with_attention(output_bias=True),
    "window": with_attention(window=9),
    "softcap": with_attention(softcap=0.5),
    "ALiBi": with_attention(rope=None, slopes=SLOPES),
    "sinks": with_attention(sinks=True),
    "latent attention": LATENTS,
    "latent attention, queries from a latent": replace(
        LATENTS, kinds=(Layer(replace(PLAIN, latent=replace(LATENT, query_rank=96), qkv_bias=True), mlp=Mlp(96)),)
    ),
    "latent attention, odd sizes": replace(
        LATENTS, ropes=(PARTIAL,), head_dim=42,
        kinds=(Layer(Attention(0.25, latent=Latent(32, 10, 10, 32, query_rank=23, norm_epsilon=0.1)), mlp=Mlp(96)),),
    ),
    "heads of its own": with_attention(kv_heads=4, head_dim=32),
    "other heads beside": replace(
        BASE, layers=(1, 0),
        kinds=(Layer(PLAIN, Mlp(96)), Layer(replace(PLAIN, kv_heads=1, head_dim=48, qk_norm="row"), Mlp(96))),
    ),
    "norms of values": with_attention(value_norm=True),
    "values are keys": with_attention(value_is_key=True, qk_norm="head"),
    "values are keys, normed": with_attention(value_is_key=True, value_norm=True, qkv_bias=True),
    "a number at the end": with_layer(mlp_output_norm=True, scaled=True),
    "experts beside an MLP": with_layer(experts=Experts(8, 2, 64), mlp_output_norm=True),
    "experts beside an MLP, scored apart": with_layer(
        experts=Experts(8, 2, 64, router_norm=True, expert_scale=True, renormalize=True), mlp_output_norm=True
    ),
    "a router's norm and scales": replace(
        BASE, kinds=(Layer(PLAIN, experts=Experts(8, 2, 64, router_norm=True, expert_scale=True, shared_inner=32)),)
    ),
    "keys of another layer": replace(
        BASE, layers=(0, 1, 1), kinds=tuple(Layer(replace(PLAIN, keys_of=of), mlp=Mlp(96)) for of in (None, 0))
    ),
    "inputs of layers": replace(BASE, layer_inputs=LayerInputs(24, 3.0, "gelu_tanh"), embedding_scale=2.0),
    "inputs of layers, scaled": replace(
        with_layer(mlp_output_norm=True, scaled=True), layer_inputs=LayerInputs(40, 0.5, "silu")
    ),
    "experts": replace(
        BASE, kinds=(Layer(PLAIN, mlp=Mlp(96)), Layer(PLAIN, experts=Experts(8, 2, 64, shared_inner=64))), layers=(0, 1)
    ),
}  # fmt: skip

GEMMA = Layer(
    Attention(0.3, window=9, softcap=2.0, qk_norm="head"), mlp=Mlp(96, "gelu_tanh"), attention_output_norm=True,
    mlp_output_norm=True,
)  # fmt: skip
GPT_OSS = Layer(
    Attention(
        0.2, rope=None, sinks=True, qkv_bias=True, output_bias=True, temperature_scale=0.5, temperature_positions=7
    ),
    experts=Experts(
        8, 3, 64, "swiglu_oai", bias=True, router_bias=True, scoring="softmax_of_chosen", shared_inner=96,
        shared_gate=True,
    ),
)  # fmt: skip
PARALLEL = Layer(
    Attention(0.25, rope=1, qk_norm="row"), mlp=Mlp(160, "relu2", gated=False), parallel=True, mlp_norm=False
)
OLMO = Layer(
    Attention(0.25, rope=2, qk_norm="row"), mlp=Mlp(96), attention_norm=False, mlp_norm=False,
    attention_output_norm=True, mlp_output_norm=True,
)  # fmt: skip
DEEPSEEK = Layer(
    Attention(0.25, rope=1), parallel=True, mlp_output_norm=True,
    experts=Experts(
        16, 4, 32, scoring="sigmoid", correction_bias=True, groups=4, chosen_groups=2, renormalize=True, scale=1.5
    ),
)  # fmt: skip
LATENT_QUERIES = Layer(
    Attention(0.2, latent=replace(LATENT, query_rank=96), qkv_bias=True, output_bias=True, window=9),
    experts=Experts(16, 4, 32, scoring="sigmoid", correction_bias=True, groups=4, chosen_groups=2, shared_inner=64),
)
LATENT_SINKS = Layer(
    Attention(0.3, rope=1, latent=replace(LATENT, nope_dim=64, value_dim=32), sinks=True, softcap=2.0),
    mlp=Mlp(96),
    attention_output_norm=True,
)
BLOOM = Layer(
    Attention(0.25, rope=None, slopes=SLOPES, qkv_bias=True, output_bias=True), mlp=Mlp(96, "gelu_erf", False, True)
)
OPT = Layer(
    Attention(0.25, rope=None, qkv_bias=True, output_bias=True), mlp=Mlp(96, "relu", False, True), attention_norm=False,
    attention_output_norm=True, mlp_norm=False, mlp_output_norm=True, norms_sum=True,
)  # fmt: skip
GEMMA4 = Layer(
    Attention(1.0, window=9, qk_norm="head", value_norm=True), mlp=Mlp(160, "gelu_tanh"), attention_output_norm=True,
    experts=Experts(8, 3, 96, "gelu_tanh", renormalize=True, router_norm=True, expert_scale=True),
    mlp_output_norm=True, scaled=True,
)  # fmt: skip
GEMMA4_FULL = replace(
    GEMMA4,
    attention=Attention(
        1.0, rope=1, qk_norm="head", kv_heads=1, head_dim=32, value_norm=True, value_is_key=True, output_bias=True
    ),
)  # fmt: skip
GEMMA4_DENSE = replace(GEMMA4, experts=None)
GEMMA4_DENSE_FULL = replace(GEMMA4_FULL, experts=None)


def reading(layer: Layer, keys_of: int, inner: int) -> Layer:
    """The same kind of layer with the keys of another one, and another MLP."""
    assert layer.attention is not None
    attention = replace(layer.attention, keys_of=keys_of, value_norm=False, value_is_key=False)
    return replace(layer, attention=attention, mlp=Mlp(inner, "gelu_tanh"))


MIXTURES: Mapping[str, Decoder] = {
    "RMS norms": replace(
        BASE, ropes=(FAST, PARTIAL, LONG), kinds=(GEMMA, GPT_OSS, PARALLEL, OLMO, DEEPSEEK), layers=(0, 1, 2, 3, 4, 0),
        embedding_scale=8.0, tied_head=True, logit_scale=0.5, logit_softcap=3.0,
    ),
    "layer norms": replace(
        LAYER_NORM, norm_bias=True, ropes=(FAST, PARTIAL, LONG), kinds=(BLOOM, GEMMA, DEEPSEEK, PARALLEL),
        layers=(0, 1, 2, 3, 0), embedding_norm=True, head_bias=True, final_norm=False,
    ),
    "latents": replace(
        LATENTS, ropes=(FAST, PARTIAL), kinds=(*LATENTS.kinds, LATENT_QUERIES, LATENT_SINKS), layers=(0, 1, 2, 1, 0),
    ),
    "heads of two shapes": replace(
        BASE, ropes=(FAST, PARTIAL, LONG), kinds=(GEMMA4, GEMMA4_FULL, PARALLEL), layers=(0, 1, 0, 2, 0),
        embedding_scale=8.0, tied_head=True, logit_softcap=3.0,
    ),
    "learned positions": replace(
        LAYER_NORM, norm_bias=True, kinds=(OPT, BLOOM, replace(OPT, mlp=None, experts=Experts(8, 2, 64))),
        layers=(0, 1, 2, 0), learned_positions=True, embedding_size=32, tied_head=True,
    ),
    "keys of other layers": replace(
        BASE, ropes=(FAST, PARTIAL, LONG), layers=(0, 1, 0, 2, 3, 2), embedding_scale=8.0, tied_head=True,
        kinds=(GEMMA4_DENSE, GEMMA4_DENSE_FULL, reading(GEMMA4_DENSE, 2, 320), reading(GEMMA4_DENSE_FULL, 1, 320)),
        layer_inputs=LayerInputs(32, 3.0, "gelu_tanh"),
    ),
}  # fmt: skip
ENDINGS: Mapping[str, Decoder] = {
    f"{name}, ends with kind {kind}": replace(decoder, layers=(*decoder.layers, kind))
    for name, decoder in MIXTURES.items()
    for kind in range(len(decoder.kinds))
}


def tokens(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY, count)]


def written(folder: Path, decoder: Decoder, kind: WeightType = "fp32") -> Path:
    return write_described(folder, decoder, {}, described_tensors(decoder), kind)


def in_double(tensors: Mapping[str, F32]) -> dict[str, decoder_reference.F64]:
    return {name: values.astype(np.float64) for name, values in tensors.items()}


@pytest.mark.parametrize(("name", "tier"), some([*FEATURES, *MIXTURES], _native.available_tiers()))
def test_logits(name: str, tier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDOUBT_ISA", tier)
    decoder, ids = {**FEATURES, **MIXTURES}[name], tokens(TOKENS)
    tensors = described_tensors(decoder)
    model = Sequences(write_described(tmp_path / "model", decoder, {}, tensors), threads=2)
    expected = decoder_reference.logits(decoder, in_double(tensors), ids, context=256)
    rounded: Any = decoder_reference.logits(decoder, tensors, ids, context=256)  # type: ignore[arg-type]
    assert rounded.dtype == np.float32
    allowed = ROUNDING_MULTIPLE * np.linalg.norm(rounded - expected)
    assert 0 < allowed < 1e-4 * np.linalg.norm(expected), "the reference itself is sound"
    error = np.linalg.norm(model.logits({0: ids}) - expected)
    assert error <= allowed, f"{error / allowed:.3g} of what is allowed"

    plain_tensors = {
        name: tensors[name] if name in tensors and tensors[name].shape == values.shape else values
        for name, values in described_tensors(BASE).items()
    }
    plain = decoder_reference.logits(BASE, in_double(plain_tensors), ids)
    assert np.linalg.norm(plain - expected) > 100 * allowed, "without the feature it would be the same"


@pytest.mark.parametrize(("context", "chosen"), [(TOKENS, "short"), (TOKENS + 1, "long")])
def test_the_longest_context_chooses_the_frequencies(context: int, chosen: str, tmp_path: Path) -> None:
    decoder = replace(BASE, ropes=(LONG,))
    frequencies = {"short": (FAST.frequencies, 1.0), "long": (LONG.long_frequencies or (), 1.2)}
    fixed = replace(BASE, ropes=(Rope(16, *frequencies[chosen]),))
    ours, theirs = (
        Sequences(written(tmp_path / str(number), each), context=context, sequences=1).logits({0: tokens(9)})
        for number, each in enumerate((decoder, fixed))
    )
    assert np.array_equal(ours, theirs)


COMPUTE: list[tuple[str, WeightType, dict[str, Any]]] = [
    *[(tier, "fp32", {}) for tier in _native.available_tiers()],
    *[(tier, "sym_int4", {"compute_type": "int8", "kv_type": "int16"}) for tier in _native.available_tiers()],
    ("scalar", "asym_int4", {"compute_type": "int8", "kv_type": "bf16", "prompt_compute_type": "bf16"}),
    ("scalar", "int8", {"compute_type": "bf16", "kv_type": "bf16", "prompt_compute_type": "bf16"}),
]


@pytest.mark.parametrize(("name", "compute"), some([*MIXTURES], COMPUTE))
def test_rows_do_not_depend_on_their_step(
    name: str, compute: tuple[str, WeightType, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks, one by one, on several threads and beside others: the same bits."""
    tier, kind, options = compute
    monkeypatch.setenv("REDOUBT_ISA", tier)
    folder, ids = written(tmp_path / "model", MIXTURES[name], kind), tokens(TOKENS)
    whole = Sequences(folder, **options).logits({0: ids})
    assert np.isfinite(whole).all()
    for threads in (1, 2, 3):
        chunked = Sequences(folder, threads=threads, **options)
        parts = [chunked.logits({2: ids[begin:end]}) for begin, end in [(0, 3), (3, 40), (40, 41), (41, TOKENS)]]
        assert np.array_equal(np.concatenate(parts), whole)
        single = Sequences(folder, threads=threads, **options)
        single.logits({1: ids[:60]})
        assert np.array_equal(np.concatenate([single.logits({1: [token]}) for token in ids[60:]]), whole[60:])
        beside = Sequences(folder, threads=threads, **options)
        beside.logits({3: tokens(20, 1)})
        assert np.array_equal(beside.logits({3: tokens(30, 2), 0: ids, 1: tokens(5, 3)})[30 : 30 + TOKENS], whole)


@pytest.mark.parametrize("name", MIXTURES)
def test_integers_are_near_floats(name: str, tmp_path: Path) -> None:
    """A few times the step of int8, as in models without these features."""
    folder, ids = written(tmp_path / "model", MIXTURES[name], "sym_int4"), tokens(TOKENS)
    exact = Sequences(folder).logits({0: ids})
    rounded = Sequences(folder, compute_type="int8").logits({0: ids})
    assert 0 < np.linalg.norm(rounded - exact) / np.linalg.norm(exact) < 8 / 127


@pytest.mark.parametrize(("name", "threads"), some([*ENDINGS], [1, 3]))
def test_a_last_layer_that_ends_early(name: str, threads: int, tmp_path: Path) -> None:
    """A step that samples and reads computes few rows of the last layer: as logits() and hidden_states() have them."""
    decoder = ENDINGS[name]
    folder = written(tmp_path / "model", decoder, "sym_int4")
    options: dict[str, Any] = {"compute_type": "int8", "kv_type": "int16"}
    first, second, third = tokens(60), tokens(50, 1), tokens(7, 2)
    chunks = {0: first, 1: second, 2: third}
    whole = Sequences(folder, **options)
    logits = whole.logits(chunks)
    states = Sequences(folder, **options)
    hidden = states.model.hidden_states(*states.arrays(chunks))[-1]

    model = Sequences(folder, threads=threads, **options)
    greedy = [_native.Sampler(vocab_size=VOCABULARY, prompt=[], temperature=0.0) for _ in range(2)]
    embedders = [
        _native.PromptEmbedder(hidden_size=decoder.hidden_size, prompt_tokens=len(ids), pooling=pooling)
        for ids, pooling in ((second, "mean"), (third, "last"))
    ]
    out = model.model.step(*model.arrays(chunks), [*greedy, None], [None, *embedders])
    assert out.tolist() == [logits[59].argmax(), logits[109].argmax(), -1]
    mean = hidden[60:110].astype(np.float64).mean(0)
    assert np.abs(embedders[0].embedding() - mean).max() <= 50 * 2.0**-24 * np.abs(hidden).max()
    assert np.array_equal(embedders[1].embedding(), hidden[-1])

    only = model.model.step(*model.arrays({3: first[:59]}), [None])
    assert only.tolist() == [-1]
    rest = {0: [5], 1: [6, 7], 2: [8], 3: first[59:]}
    expected = whole.logits({slot: ids for slot, ids in rest.items() if slot != 3})
    got = model.logits(rest)
    assert np.array_equal(got[:4], expected), "keys and values are those of all rows"
    assert np.array_equal(got[4], logits[59])


@pytest.mark.parametrize("name", MIXTURES)
def test_hidden_states_are_those_of_the_residual_stream(name: str, tmp_path: Path) -> None:
    decoder, ids = MIXTURES[name], tokens(9)
    model = Sequences(written(tmp_path / "model", decoder), threads=2)
    hidden = model.model.hidden_states(*model.arrays({0: ids}))
    assert hidden.shape == (len(decoder.layers) + 2, len(ids), decoder.hidden_size)
    tensors = described_tensors(decoder)
    embedded = tensors["model.embed_tokens.weight"][ids] * np.float32(decoder.embedding_scale)
    if decoder.learned_positions:
        moved = embedded @ tensors["model.embed_proj.weight"].T + tensors["model.embed_positions.weight"][: len(ids)]
        assert np.abs(hidden[0] - moved).max() < 1e-5
    elif not decoder.embedding_norm:
        assert np.array_equal(hidden[0], embedded)
    assert np.array_equal(hidden[-1], hidden[-2]) != decoder.final_norm


@pytest.mark.parametrize("name", MIXTURES)
def test_nodes_change_no_bit(name: str, tmp_path: Path) -> None:
    decoder = replace(MIXTURES[name], hidden_size=256, head_dim=64)
    folder, ids = written(tmp_path / "model", decoder, "sym_int4"), tokens(40)
    options: dict[str, Any] = {"compute_type": "int8", "threads": 3}
    one = Sequences(folder, **options)
    two = Sequences(folder, nodes=[0, 1, 1], bind_weights=False, weight_memory="huge_pages", **options)
    for chunks in ({0: ids}, {0: [1], 1: [2, 3]}):
        assert np.array_equal(two.logits(chunks), one.logits(chunks))
