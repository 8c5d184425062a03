"""Layers of experts: the router's choice and the sum of experts against NumPy, whatever shares the step."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import _native
from quant.codes.matrix import WeightType
from quant.families.description import Attention, Decoder, Experts, Layer
from tests.kernels.tiny_model import F32, Sequences, described_tensors, write_described
from tests.sizes import some

HIDDEN, VOCABULARY, TOKENS = 64, 96, 40
PLAIN = Experts(count=8, per_token=3, inner=64, renormalize=True)
VARIANTS: Mapping[str, Experts] = {
    "softmax, divided by its sum": PLAIN,
    "softmax of all": replace(PLAIN, renormalize=False),
    "softmax of the chosen": replace(PLAIN, renormalize=False, scoring="softmax_of_chosen", router_bias=True),
    "biases": replace(PLAIN, bias=True, router_bias=True),
    "one expert": replace(PLAIN, count=1, per_token=1),
    "all experts": replace(PLAIN, count=4, per_token=4, renormalize=False),
    "sigmoid, scaled": replace(PLAIN, scoring="sigmoid", scale=2.5),
    "groups and a correction": replace(
        PLAIN, scoring="sigmoid", correction_bias=True, groups=4, chosen_groups=2, scale=1.5
    ),
    "softmax, corrected": replace(PLAIN, correction_bias=True),
    "a shared MLP": replace(PLAIN, shared_inner=96),
    "a shared MLP with a gate": replace(PLAIN, shared_inner=160, shared_gate=True),
}


def decoder_with(experts: Experts, layers: int = 1, **options: Any) -> Decoder:
    layer = Layer(Attention(0.25, rope=None), experts=experts, **options)
    return Decoder(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, max_positions=512, heads=4, kv_heads=2, head_dim=16, kinds=(layer,),
        layers=(0,) * layers,
    )  # fmt: skip


def only_experts(decoder: Decoder) -> dict[str, F32]:
    """Weights with which attention adds nothing, so that a layer adds its experts' output to the embedding."""
    tensors = described_tensors(decoder, seed=3)
    return {name: values * 0 if name.endswith("o_proj.weight") else values for name, values in tensors.items()}


def hidden_states(model: Sequences, chunks: Mapping[int, list[int]]) -> F32:
    return model.model.hidden_states(*model.arrays(chunks))


def reference(experts: Experts, tensors: Mapping[str, F32], x: F32) -> NDArray[np.float64]:
    """The experts' sum for rows x, in double precision."""

    def weight(name: str, index: int = 0, count: int = 1) -> NDArray[np.float64]:
        return np.asarray(tensors[f"model.layers.0.mlp.{name}"].astype(np.float64).reshape(count, -1, HIDDEN)[index])

    def vector(name: str, count: int = 1) -> Any:
        values = tensors.get(f"model.layers.0.mlp.{name}")
        return np.zeros((count, 1)) if values is None else values.astype(np.float64).reshape(count, -1)

    def mlp(name: str, rows: NDArray[np.float64], inner: int, index: int, count: int) -> NDArray[np.float64]:
        gate = (
            rows @ weight(f"{name}.gate_proj.weight", index, count).T + vector(f"{name}.gate_proj.bias", count)[index]
        )
        up = rows @ weight(f"{name}.up_proj.weight", index, count).T + vector(f"{name}.up_proj.bias", count)[index]
        down = tensors[f"model.layers.0.mlp.{name}.down_proj.weight"].reshape(count, HIDDEN, inner)[index]
        out = (gate / (1 + np.exp(-gate)) * up) @ down.T.astype(np.float64)
        return np.asarray(out + vector(f"{name}.down_proj.bias", count)[index])

    norm = tensors["model.layers.0.post_attention_layernorm.weight"]
    normed = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6) * norm
    scores = normed @ weight("router.weight").T + vector("router.bias")[0]
    total = np.zeros_like(normed)
    for row in range(len(x)):
        chosen, factors = choose(experts, scores[row], vector("router.correction_bias")[0])
        for expert, factor in zip(chosen, factors, strict=True):
            total[row] += factor * mlp("experts", normed[row], experts.inner, int(expert), experts.count)
    if experts.shared_inner:
        shared = mlp("shared", normed, experts.shared_inner, 0, 1)
        if experts.shared_gate:
            shared /= 1 + np.exp(-(normed @ vector("shared_gate.weight")[0])[:, None])
        total += shared
    return np.asarray(total)


def choose(experts: Experts, scores: Any, correction: Any) -> tuple[Any, Any]:
    """Experts and factors of one row."""
    softmax = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    values = {"softmax": softmax, "sigmoid": 1 / (1 + np.exp(-scores)), "softmax_of_chosen": scores}[experts.scoring]
    wanted = values + correction
    if experts.groups > 1:
        groups = wanted.reshape(experts.groups, -1)
        best = np.sort(groups, 1)[:, -2 if experts.correction_bias else -1 :].sum(1)
        allowed = np.zeros(experts.groups, bool)
        allowed[np.argsort(-best)[: experts.chosen_groups]] = True
        wanted = np.where(np.repeat(allowed, groups.shape[1]), wanted, -np.inf)
    chosen = np.sort(np.argsort(-wanted, kind="stable")[: experts.per_token])
    factors = values[chosen]
    if experts.scoring == "softmax_of_chosen":
        factors = np.exp(factors - factors.max()) / np.exp(factors - factors.max()).sum()
    elif experts.renormalize:
        factors = factors / factors.sum()
    return chosen, factors * experts.scale


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("tokens", [1, 3, TOKENS])
def test_sum_of_experts(name: str, tokens: int, tmp_path: Path) -> None:
    decoder = decoder_with(VARIANTS[name])
    tensors = only_experts(decoder)
    model = Sequences(write_described(tmp_path / "model", decoder, {}, tensors), threads=2)
    states = hidden_states(model, {0: list(range(tokens))})
    expected = reference(VARIANTS[name], tensors, states[0])
    # fp32: sums of HIDDEN, then of `inner` terms, a few roundings each.
    bound = 4 * (HIDDEN + VARIANTS[name].inner) * np.finfo(np.float32).eps * np.abs(expected).max()
    assert np.abs(states[1] - states[0] - expected).max() < bound


@pytest.mark.parametrize(
    ("kind", "tier"), some(["fp32", "sym_int4", "asym_int4", "lut4", "int8"], _native.available_tiers())
)
def test_a_row_does_not_depend_on_its_step(
    kind: WeightType, tier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = "fp32" if kind == "fp32" else "int8"
    monkeypatch.setenv("REDOUBT_ISA", tier)
    decoder = decoder_with(replace(PLAIN, shared_inner=64, shared_gate=True), layers=3)
    folder = write_described(tmp_path / "model", decoder, {}, described_tensors(decoder), kind)
    ids = [token * 7 % VOCABULARY for token in range(TOKENS)]
    alone = Sequences(folder, compute_type=compute).logits({0: ids})
    for threads in (1, 2, 5):
        chunked = Sequences(folder, threads=threads, compute_type=compute)
        parts = [
            chunked.logits({0: ids[begin : begin + 9], 1: ids[begin : begin + 3]}) for begin in range(0, TOKENS, 9)
        ]
        rows = [part[: min(9, TOKENS - 9 * i)] for i, part in enumerate(parts)]
        np.testing.assert_array_equal(np.concatenate(rows), alone)
        one_by_one = Sequences(folder, threads=threads, compute_type=compute)
        singles = [one_by_one.logits({2: [token]}) for token in ids[:12]]
        np.testing.assert_array_equal(np.concatenate(singles), alone[:12])


@pytest.mark.parametrize("compute", ["bf16", "int8"])
def test_rounded_rows(compute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in bf16, of prompts or of all, in the scalar tier: near the exact ones, and the same in every step."""
    monkeypatch.setenv("REDOUBT_ISA", "scalar")
    decoder = decoder_with(replace(PLAIN, shared_inner=64), layers=2)
    folder = write_described(tmp_path / "model", decoder, {}, described_tensors(decoder), "sym_int4")
    ids = [token * 5 % VOCABULARY for token in range(TOKENS)]
    exact = Sequences(folder).logits({0: ids})
    options: dict[str, Any] = {"compute_type": compute, "prompt_compute_type": "bf16"}
    model = Sequences(folder, threads=2, **options)
    rounded = model.logits({0: ids})
    assert 0 < np.abs(rounded - exact).max() < 0.1 * np.abs(exact).max()
    parts = Sequences(folder, **options)
    pieces = [parts.logits({1: ids[begin : begin + 7]}) for begin in range(0, TOKENS, 7)]
    np.testing.assert_array_equal(np.concatenate(pieces), rounded)


def test_integers_are_near_floats(tmp_path: Path) -> None:
    decoder = decoder_with(PLAIN)
    tensors = only_experts(decoder)
    folder = write_described(tmp_path / "model", decoder, {}, tensors, "int8")
    ids = list(range(TOKENS))
    floats = hidden_states(Sequences(folder), {0: ids})
    integers = hidden_states(Sequences(folder, compute_type="int8"), {0: ids})
    added = floats[1] - floats[0]
    assert 0 < np.abs(integers[1] - floats[1]).max() < 0.02 * np.abs(added).max()


def test_nodes_have_slices_of_every_expert(tmp_path: Path) -> None:
    experts = replace(PLAIN, inner=256, shared_inner=256)
    decoder = replace(decoder_with(experts, layers=2), hidden_size=256)
    tensors = described_tensors(decoder)
    folder = write_described(tmp_path / "model", decoder, {}, tensors, "sym_int4")
    ids = list(range(20))
    one = Sequences(folder, compute_type="int8", threads=3).logits({0: ids})
    two = Sequences(
        folder, compute_type="int8", threads=3, nodes=[0, 0, 1], bind_weights=False, weight_memory="huge_pages"
    )  # fmt: skip
    np.testing.assert_array_equal(two.logits({0: ids}), one)


def test_an_output_norm(tmp_path: Path) -> None:
    decoder = decoder_with(PLAIN, mlp_output_norm=True)
    tensors = only_experts(decoder)
    states = hidden_states(Sequences(write_described(tmp_path / "m", decoder, {}, tensors)), {0: list(range(9))})
    added = reference(PLAIN, tensors, states[0])
    added = (
        added / np.sqrt((added**2).mean(-1, keepdims=True) + 1e-6) * tensors["model.layers.0.mlp_output_norm.weight"]
    )
    assert np.abs(states[1] - states[0] - added).max() < 1000 * np.finfo(np.float32).eps * np.abs(added).max()


def test_a_stack_of_another_size_is_refused(tmp_path: Path) -> None:
    decoder = decoder_with(PLAIN)
    folder = write_described(tmp_path / "model", decoder, {}, described_tensors(decoder))
    file = folder / "model.safetensors"
    damaged = file.read_bytes().replace(b'\\"count\\":8,\\"per_token\\":3', b'\\"count\\":4,\\"per_token\\":3')
    assert damaged != file.read_bytes()
    file.write_bytes(damaged)
    with pytest.raises(_native.PackedFileError, match=r"router.weight.*but the description demands 4 x 64"):
        Sequences(folder)
