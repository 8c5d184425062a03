"""Latent attention at the sizes of real models: every tier and type, its taps, and descriptions that are wrong."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels import _native
from quant.codes.matrix import WeightType
from quant.families.description import Attention, Decoder, Latent, Layer, Mlp, Rope
from tests.families import decoder_reference
from tests.kernels.test_weights import join, load, refused, split
from tests.kernels.tiny_model import F32, Sequences, described_tensors, write_described
from tests.sizes import some

TOKENS = 70
LATENT = Latent(kv_rank=512, nope_dim=192, rope_dim=64, value_dim=256, query_rank=96)
"""GLM-4.7-Flash's heads."""
SMALL = Latent(kv_rank=32, nope_dim=32, rope_dim=8, value_dim=64, query_rank=32)
TIERS = _native.available_tiers()


def decoder_of(latent: Latent, heads: int, hidden: int, layers: int = 3) -> Decoder:
    """So many layers that the middle one has inputs of one term where it is wide."""
    rope = Rope(latent.rope_dim, tuple(3.0**-i for i in range(latent.rope_dim // 2)))
    scale = float((latent.nope_dim + latent.rope_dim) ** -0.5)
    return Decoder(
        vocab_size=96, hidden_size=hidden, max_positions=512, heads=heads, kv_heads=1,
        head_dim=latent.rope_dim + latent.kv_rank, ropes=(rope,), layers=(0,) * layers,
        kinds=(Layer(Attention(scale, latent=latent), mlp=Mlp(64)),),
    )  # fmt: skip


def tokens(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 96, count)]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, Mapping[str, F32], Path, Path]:
    """Five heads in a model that is wide enough for inputs of one term: fp32 and int4."""
    folder = tmp_path_factory.mktemp("wide")
    decoder = decoder_of(LATENT, 5, 1024)
    tensors = described_tensors(decoder)
    floats = write_described(folder / "fp32", decoder, {}, tensors)
    return decoder, tensors, floats, write_described(folder / "int4", decoder, {}, tensors, "sym_int4")


VECTOR_TIERS = [tier for tier in TIERS if tier != "scalar"]
"""The scalar tier's steps are compared at small sizes, in test_decoder."""


@pytest.mark.parametrize("tier", TIERS)
def test_logits(
    tier: str, wide: tuple[Decoder, Mapping[str, F32], Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDOUBT_ISA", tier)
    decoder, tensors, floats, _ = wide
    ids = tokens(40)
    exact = decoder_reference.logits(decoder, {name: each.astype(np.float64) for name, each in tensors.items()}, ids)
    rounded: Any = decoder_reference.logits(decoder, tensors, ids)  # type: ignore[arg-type]
    # The engine sums in ascending order, the reference in blocks.
    allowed = 8 * np.linalg.norm(rounded - exact)
    assert 0 < np.linalg.norm(Sequences(floats, threads=2).logits({0: ids}) - exact) < allowed


@pytest.mark.parametrize(("kv_type", "tier"), some(["fp32", "bf16", "int16", "int8"], VECTOR_TIERS))
def test_the_same_bits_in_every_step(
    tier: str,
    kv_type: str,
    wide: tuple[Decoder, Mapping[str, F32], Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids, folder = tokens(TOKENS), wide[3]
    options: dict[str, Any] = {"compute_type": "int8", "kv_type": kv_type}
    exact = Sequences(wide[2]).logits({0: ids})
    monkeypatch.setenv("REDOUBT_ISA", tier)
    whole = Sequences(folder, **options).logits({0: ids})
    # Weights of 4 bits are off by up to a 15th of a group's range, and so are what layers make of them.
    assert 0 < np.linalg.norm(whole - exact) < 0.5 * np.linalg.norm(exact)
    for threads in (2, 5):
        chunked = Sequences(folder, threads=threads, **options)
        parts = [chunked.logits({2: ids[begin:end]}) for begin, end in [(0, 3), (3, 66), (66, 67), (67, TOKENS)]]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        beside = Sequences(folder, threads=threads, **options)
        beside.logits({3: tokens(20, 1)})
        got = beside.logits({3: tokens(30, 2), 0: ids, 1: tokens(5, 3)})[30 : 30 + TOKENS]
        np.testing.assert_array_equal(got, whole)


@pytest.mark.parametrize("kind", ["asym_int4", "lut4", "int8", "bf16"])
def test_types_of_weights(kind: WeightType, tmp_path: Path) -> None:
    decoder = decoder_of(replace(SMALL, query_rank=0), 4, 64)
    tensors = described_tensors(decoder)
    folder, ids = write_described(tmp_path / "model", decoder, {}, tensors, kind), tokens(40)
    exact = Sequences(write_described(tmp_path / "exact", decoder, {}, tensors)).logits({0: ids})
    whole = Sequences(folder, compute_type="int8", kv_type="int16").logits({0: ids})
    assert 0 < np.linalg.norm(whole - exact) < 0.5 * np.linalg.norm(exact)
    model = Sequences(folder, compute_type="int8", kv_type="int16", threads=3)
    single = [model.logits({1: ids[:37]}), *[model.logits({1: [token]}) for token in ids[37:]]]
    np.testing.assert_array_equal(np.concatenate(single), whole)


def test_taps(tmp_path: Path) -> None:
    """What each stage's matrices take: the stages' formulas lead from one to the next."""
    decoder = decoder_of(SMALL, 4, 64, layers=1)
    tensors = {name: each.astype(np.float64) for name, each in described_tensors(decoder).items()}
    folder = write_described(tmp_path / "model", decoder, {}, described_tensors(decoder))
    model = Sequences(folder, sequences=1)
    hidden = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32)
    positions, lengths = np.arange(9, dtype=np.int32), np.array([9], np.int32)
    slots = np.zeros(1, np.int32)

    def tapped(*names: str) -> Mapping[str, Any]:
        return model.model.layer_activations(hidden, positions, slots, lengths, names)

    prefix = "model.layers.0.self_attn"
    names = ("attention_input", "query_input", "key_up_input", "value_up_input", "output_input")
    arrays = tapped(*names, "attention_output")
    latent = arrays["attention_input"] @ tensors[f"{prefix}.q_a_proj.weight"].T
    latent /= np.sqrt((latent**2).mean(-1, keepdims=True) + SMALL.norm_epsilon)
    near(arrays["query_input"], latent * tensors[f"{prefix}.q_a_norm.weight"])
    queries = (arrays["query_input"] @ tensors[f"{prefix}.q_b_proj.weight"].T).reshape(9, 4, -1)
    near(arrays["key_up_input"].reshape(9, 4, -1), queries[..., SMALL.rope_dim :])
    value_up = tensors[f"{prefix}.value_up_proj.weight"].reshape(4, SMALL.value_dim, -1)
    values = np.einsum("thc,hvc->thv", arrays["value_up_input"].reshape(9, 4, -1), value_up)
    near(arrays["output_input"], values.reshape(9, -1))
    near(arrays["attention_output"], hidden + arrays["output_input"] @ tensors[f"{prefix}.o_proj.weight"].T)
    for name in names:
        np.testing.assert_array_equal(tapped(name)[name], arrays[name])
    for name in ("pairs", "query"):
        with pytest.raises(ValueError, match="is no activation of this layer"):
            tapped(name)


def near(ours: Any, theirs: Any) -> None:
    """A sum of up to a few hundred products in fp32."""
    assert np.abs(ours - theirs).max() < 300 * np.finfo(np.float32).eps * np.abs(theirs).max()


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"kv_rank": 48}, "latent.kv_rank: not a multiple of 32"),
        ({"kv_rank": 64}, "latent.kv_rank: there is not one kv_head of head_dim rope_dim + kv_rank"),
        ({"rope_dim": 6}, "latent.kv_rank: there is not one kv_head of head_dim rope_dim + kv_rank"),
        ({"value_dim": 48}, "latent.value_dim: not a multiple of 32"),
        ({"value_dim": 2048}, "latent.value_dim: not a whole number in 1 .. 1024"),
        ({"nope_dim": 0}, "latent.nope_dim: not a whole number in 1 .. 1024"),
        ({"nope_dim": None}, "latent.nope_dim: missing"),
        ({"query_rank": -1}, "latent.query_rank: not a whole number in 0 .. "),
        ({"norm_epsilon": 2}, "latent.norm_epsilon: not a number in range"),
        ({"heads": 4}, "latent.heads: not known"),
    ],
)
def test_a_latent_that_is_wrong(entries: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder, described = written(tmp_path)
    described["kinds"][0]["attention"]["latent"] |= entries
    describe(folder, described)
    refused(folder, "model.safetensors: decoder.kinds[0].attention.", reason)


def test_a_description_around_a_latent_that_is_wrong(tmp_path: Path) -> None:
    folder, described = written(tmp_path)
    attention = described["kinds"][0]["attention"]

    def wrong(latent: dict[str, Any], others: dict[str, Any], **top: Any) -> dict[str, Any]:
        changed = {**attention, **others, "latent": {**attention["latent"], **latent}}
        return {**described, "kinds": [{**described["kinds"][0], "attention": changed}], **top}

    describe(folder, wrong({}, {"qk_norm": "head"}))
    refused(folder, "attention.qk_norm: does not go with latent attention")
    describe(folder, wrong({}, {"output_gate": True}))
    refused(folder, "attention.output_gate: does not go with latent attention")
    describe(folder, wrong({"rope_dim": 6}, {}, head_dim=38, ropes=[{"rotary_dim": 8, "frequencies": [1, 1, 1, 1]}]))
    refused(folder, "attention.rope: has more rotary numbers than latent.rope_dim")
    describe(folder, wrong({}, {}, kv_heads=2))
    refused(folder, "there is not one kv_head of head_dim rope_dim + kv_rank")
    describe(folder, wrong({"value_dim": 32}, {}))
    refused(folder, "value_up_proj.weight'", "demands 128 x 32")


def written(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A model that loads, and its description."""
    decoder = decoder_of(SMALL, 4, 64, layers=1)
    folder = write_described(tmp_path / "model", decoder, {}, described_tensors(decoder))
    assert load(folder).layers == 1
    return folder, json.loads(json.dumps(decoder.to_dict()))


def describe(folder: Path, described: Mapping[str, Any]) -> None:
    header, data = split(folder)
    header["__metadata__"]["decoder"] = json.dumps(described)
    join(folder, header, data)
