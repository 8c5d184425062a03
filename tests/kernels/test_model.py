"""Properties of the forward pass that need no reference: what a result may and may not depend on."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels import _native
from quant.codes.matrix import WeightType
from tests.kernels.tiny_model import F32, LLAMA, MakeModel, Sequences, random_tensors, write_random_model

QWEN3: Mapping[str, Any] = {
    **LLAMA, "model_type": "qwen3", "head_dim": 32, "num_attention_heads": 6, "num_key_value_heads": 2,
}  # fmt: skip
TIERS = _native.available_tiers()


def tokens(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, LLAMA["vocab_size"], count)]


def one_by_one(model: Sequences, slot: int, ids: list[int]) -> F32:
    return np.concatenate([model.logits({slot: [token]}) for token in ids])


CASES: list[tuple[WeightType, int, str, str]] = [
    ("fp32", 32, "fp32", "fp32"),
    ("bf16", 32, "int8", "bf16"),
    ("sym_int4", 32, "int8", "fp32"),
    ("asym_int4", 32, "int8", "bf16"),
    ("int8", 32, "int8", "bf16"),
    ("sym_int4", 32, "int8", "int8"),
    ("asym_int4", 32, "int8", "int16"),
    ("sym_int4", 32, "fp32", "bf16"),
]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("kind", "group", "compute_type", "kv_type"), CASES)
def test_a_prompt_gives_the_same_bits_however_it_is_fed(
    make: MakeModel, kind: WeightType, group: int, compute_type: str, kv_type: str, tier: str
) -> None:
    def fresh(threads: int = 1) -> Sequences:
        return make(kind=kind, group=group, compute_type=compute_type, kv_type=kv_type, tier=tier, threads=threads)

    ids = tokens(75)
    whole = fresh().logits({0: ids})
    assert np.isfinite(whole).all()
    assert np.array_equal(one_by_one(fresh(), 1, ids), whole), "one token at a time, another slot"
    chunked = fresh(threads=2)
    parts = [chunked.logits({2: ids[begin:end]}) for begin, end in [(0, 3), (3, 40), (40, 41), (41, 75)]]
    assert np.array_equal(np.concatenate(parts), whole), "in chunks, on two threads"


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_sequence_does_not_notice_its_batch(make: MakeModel, threads: int) -> None:
    mine, others = tokens(40), [tokens(70, 1), tokens(9, 2), tokens(33, 3)]
    alone = make(kind="sym_int4", compute_type="int8")
    expected = np.concatenate([alone.logits({0: mine[:30]}), one_by_one(alone, 0, mine[30:])])

    batched = make(kind="sym_int4", compute_type="int8", threads=threads)
    batched.logits({1: others[0][:20]})
    mixed = batched.logits({1: others[0][20:], 0: mine[:30], 2: others[1]})
    ours = [mixed[50:80]]
    for step, token in enumerate(mine[30:]):
        chunks = {3: [others[2][step]], 1: [others[0][step]], 0: [token]}
        ours.append(batched.logits(chunks)[2:3])
    assert np.array_equal(np.concatenate(ours), expected)


def test_long_contexts_are_split_over_threads_without_a_trace(make: MakeModel) -> None:
    ids = tokens(1100)
    alone, split = (make(QWEN3, sequences=1, context=1280, threads=threads) for threads in (1, 3))
    assert np.array_equal(split.logits({0: ids[:1090]}), alone.logits({0: ids[:1090]}))
    assert np.array_equal(one_by_one(split, 0, ids[1090:]), one_by_one(alone, 0, ids[1090:]))


@pytest.mark.parametrize("tier", TIERS)
def test_heads_that_fill_no_vector(make: MakeModel, tier: str) -> None:
    config = {**LLAMA, "hidden_size": 96, "num_attention_heads": 4, "head_dim": 24}
    ids = tokens(20)
    expected = make(config, tier="scalar").logits({0: ids})
    assert np.allclose(make(config, tier=tier).logits({0: ids}), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kv_type", "bound"), [("bf16", 4 * 2.0**-8), ("int16", 4 / 4079), ("int8", 4 / 127)])
def test_pages_are_close_to_fp32_ones(make: MakeModel, kv_type: str, bound: float) -> None:
    """Bounds: a few times bf16's unit roundoff, and the steps of int16 and int8."""
    ids = tokens(60)
    exact = make(kv_type="fp32").logits({0: ids})
    rounded = make(kv_type=kv_type).logits({0: ids})
    error = np.linalg.norm(rounded - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert 0 < error.max() < bound


def test_int8_activations_are_close_to_fp32_ones(make: MakeModel) -> None:
    ids = tokens(60)
    exact = make(kind="sym_int4", compute_type="fp32").logits({0: ids})
    rounded = make(kind="sym_int4", compute_type="int8").logits({0: ids})
    error = np.linalg.norm(rounded - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert 0 < error.max() < 8 / 127, "a few times the step of int8"


def test_the_last_layer_of_a_small_model_has_two_terms(make: MakeModel) -> None:
    """With one layer that is all: the rounding of a second term, not of the first, is what is left."""
    ids = tokens(60)
    one_layer = {**LLAMA, "num_hidden_layers": 1}
    exact = make(one_layer, kind="sym_int4", compute_type="fp32").logits({0: ids})
    rounded = make(one_layer, kind="sym_int4", compute_type="int8").logits({0: ids})
    error = np.linalg.norm(rounded - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert error.max() < 8 / 127 / 64, "two bits short of a second int8"


def test_hidden_states_begin_with_the_embedding_and_end_before_the_head(make: MakeModel) -> None:
    ids = tokens(17)
    tensors = random_tensors(LLAMA)
    model = make(threads=2)
    hidden = model.model.hidden_states(*model.arrays({0: ids}))
    assert hidden.shape == (LLAMA["num_hidden_layers"] + 2, 17, LLAMA["hidden_size"])
    assert np.array_equal(hidden[0], tensors["model.embed_tokens.weight"][ids])
    scale = 1 / np.sqrt(np.mean(hidden[-2].astype(np.float64) ** 2, axis=1, keepdims=True) + 1e-6)
    assert np.allclose(hidden[-1], hidden[-2] * scale * tensors["model.norm.weight"], rtol=1e-5, atol=1e-6)
    logits = make().logits({1: ids})
    assert np.allclose(logits, hidden[-1] @ tensors["lm_head.weight"].T, rtol=1e-4, atol=1e-5)


def test_a_step_samples_the_last_token_of_those_who_have_a_sampler(make: MakeModel) -> None:
    first, second, third = tokens(5), tokens(8, 1), tokens(1, 2)
    expected = make().logits({0: first, 1: second, 2: third})
    model = make(threads=2)
    greedy = [_native.Sampler(vocab_size=LLAMA["vocab_size"], prompt=p, temperature=0.0) for p in (first, third)]
    out = model.model.step(*model.arrays({0: first, 1: second, 2: third}), [greedy[0], None, greedy[1]])
    assert out.dtype == np.int32
    assert out.tolist() == [expected[4].argmax(), -1, expected[13].argmax()]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("config", [LLAMA, QWEN3], ids=["llama", "qwen3"])
def test_rows_that_nobody_samples_leave_their_keys_and_values(
    make: MakeModel, config: Mapping[str, Any], threads: int
) -> None:
    first, second, third = tokens(150), tokens(80, 1), tokens(60, 2)
    whole = make(config, kind="sym_int4", compute_type="int8")
    expected = [whole.logits({slot: ids}) for slot, ids in enumerate([first, second, third])]

    model = make(config, kind="sym_int4", compute_type="int8", threads=threads)
    step = model.model.step
    assert step(*model.arrays({0: first[:70]}), [None]).tolist() == [-1], "a chunk that is not the last"
    greedy = [_native.Sampler(vocab_size=LLAMA["vocab_size"], prompt=[], temperature=0.0) for _ in range(2)]
    out = step(*model.arrays({2: third[:20], 0: first[70:149], 1: second[:79]}), [greedy[0], None, greedy[1]])
    assert out.tolist() == [expected[2][19].argmax(), -1, expected[1][78].argmax()]
    rest = model.logits({0: first[149:], 1: second[79:], 2: third[20:]})
    assert np.array_equal(rest, np.concatenate([expected[0][149:], expected[1][79:], expected[2][20:]]))


def test_a_copied_page_continues_the_same_text(make: MakeModel) -> None:
    ids = tokens(50)
    model = make()
    expected = model.logits({0: ids})[40:]
    table = model.model.page_table
    for page in range(2):
        model.model.copy_page(int(table[0, page]), int(table[1, page]))
    model.arrays({1: ids[:40]})
    assert np.array_equal(model.logits({1: ids[40:]}), expected)
    with pytest.raises(ValueError, match="page 999"):
        model.model.copy_page(0, 999)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("token_ids", lambda a: a[0].__setitem__(0, LLAMA["vocab_size"])),
        ("token_ids", lambda a: a[0].__setitem__(1, -1)),
        ("positions", lambda a: a[1].__setitem__(0, -5)),
        ("slots", lambda a: a[2].__setitem__(0, 4)),
        ("slots", lambda a: a[2].__setitem__(1, a[2][0])),
        ("query_lengths", lambda a: a[3].__setitem__(0, 0)),
        ("query_lengths", lambda a: a[3].__setitem__(0, 7)),
        ("context_lengths", lambda a: a[4].__setitem__(0, -1)),
        ("context_lengths", lambda a: a[4].__setitem__(1, 254)),
    ],
)
def test_numbers_that_do_not_fit_are_refused_by_name(
    make: MakeModel, name: str, change: Callable[[list[Any]], None]
) -> None:
    model = make()
    arrays: list[Any] = list(model.arrays({0: tokens(6), 1: tokens(3)}))
    change(arrays)
    with pytest.raises(ValueError, match=f"^{name}: "):
        model.model.logits(*arrays)


@pytest.mark.parametrize("index", range(5))
def test_arrays_of_another_type_or_shape_are_refused_by_name(make: MakeModel, index: int) -> None:
    model = make()
    arrays: list[Any] = list(model.arrays({0: tokens(6), 1: tokens(3)}))
    name = ["token_ids", "positions", "slots", "query_lengths", "context_lengths"][index]

    def replaced(array: Any) -> list[Any]:
        return [array if i == index else other for i, other in enumerate(arrays)]

    for wrong in (arrays[index].astype(np.int64), arrays[index][None], np.repeat(arrays[index], 2)[::2]):
        with pytest.raises(ValueError, match=f"^{name}: "):
            model.model.logits(*replaced(wrong))
    if name not in ("token_ids", "slots"):
        with pytest.raises(ValueError, match=f"^{name}: length"):
            model.model.logits(*replaced(arrays[index][:-1].copy()))


def test_page_numbers_and_samplers_that_do_not_fit_are_refused(make: MakeModel) -> None:
    model = make()
    model.model.page_table[1, 1] = 1000
    assert model.logits({1: tokens(32)}).shape[0] == 32, "a page that is not needed is not looked at"
    with pytest.raises(ValueError, match="page_table: slot 1, page 1 is 1000"):
        model.logits({1: tokens(1)})
    arrays = model.arrays({0: tokens(3)})
    foreign = _native.Sampler(vocab_size=7, prompt=[1])
    with pytest.raises(ValueError, match="samplers: one has a vocabulary of 7"):
        model.model.step(*arrays, [foreign])
    with pytest.raises(ValueError, match="samplers: length 2, not 1"):
        model.model.step(*arrays, [None, None])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("threads", 0), ("kv_pages", 0), ("max_sequences", 0), ("max_step_tokens", 0), ("max_context_tokens", 0),
        ("compute_type", "fp8"), ("kv_type", "int3"), ("cpus", [0, 0, 0]), ("weight_memory", "large"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused_by_name(tmp_path: Path, option: str, value: Any) -> None:
    folder = write_random_model(tmp_path / "model")
    options: dict[str, Any] = {
        "threads": 1, "kv_pages": 4, "max_sequences": 2, "max_step_tokens": 8, "max_context_tokens": 64
    }  # fmt: skip
    with pytest.raises(ValueError, match=f"^{option}: "):
        _native.Model(str(folder), **{**options, option: value})


def test_memory_and_time_are_accounted_for(make: MakeModel) -> None:
    model = make()
    native = model.model
    model.logits({0: tokens(9)})
    resident = native.resident_bytes()
    head_dim, layers, kv_heads, fp32_bytes = 16, 2, 2, 4
    assert resident["kv"] == 4 * 256 * layers * kv_heads * head_dim * 2 * fp32_bytes
    assert resident["weights"] > 0
    assert resident["activations"] > 0
    unrecorded = native.profile()
    assert [steps for steps, _ in unrecorded.values()] == [0, 0]
    assert not any(seconds for _, stages in unrecorded.values() for times in stages.values() for seconds in times)
    native.start_profile()
    model.logits({0: tokens(3)})
    native.stop_profile()
    profile = native.profile()
    model.logits({0: tokens(3)})
    assert native.profile()["prompt"][0] == profile["prompt"][0] == 1
    assert profile["decode"][0] == 0
    seconds, products, barriers = profile["prompt"][1]["qkv"]
    assert 0 < products < seconds
    assert products + barriers <= seconds
    assert profile["prompt"][1]["rope"][1] == 0
    native.start_profile()
    assert native.profile()["prompt"][0] == 0


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_shares_large_enough_to_be_taken_in_pieces_give_the_same(tmp_path: Path, threads: int) -> None:
    config = {**LLAMA, "vocab_size": 4999, "hidden_size": 256, "intermediate_size": 2048}  # fp32: MiBs a matrix
    folder = write_random_model(tmp_path / "model", config)
    alone, together = Sequences(folder), Sequences(folder, threads=threads)
    for chunks in ({0: tokens(3)}, {0: tokens(1), 1: tokens(2)}, {0: tokens(1), 1: tokens(1), 2: tokens(9)}):
        assert np.array_equal(alone.logits(chunks), together.logits(chunks))
