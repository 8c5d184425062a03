"""Models with layers of Gated DeltaNet: against NumPy, and the same bits however a text is cut, paged and batched."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels import _native
from quant.families.description import DeltaNet, Mlp
from quant.packed.state_table import NO_PAGE, needed_pages
from tests.kernels.hybrid_model import (
    ATTENTION,
    DELTA,
    F64,
    HYBRID,
    delta_reference,
    hybrid_tensors,
    rms_norm,
    sigmoid,
    tensors_of_layer,
    tokens,
    with_delta,
    write_hybrid,
)
from tests.kernels.tiny_model import F32, Sequences, write_described
from tests.sizes import some

PAGE = _native.PAGE_TOKENS
DELTAS: Mapping[str, DeltaNet] = {
    "groups": DELTA,
    "a value head for each key head": replace(DELTA, key_heads=4),
    "one key head": replace(DELTA, key_heads=1, value_heads=3),
    "odd sizes": DeltaNet(key_heads=2, value_heads=4, key_dim=20, value_dim=24, taps=3),
    "one tap": replace(DELTA, taps=1),
    "eight taps": replace(DELTA, taps=8),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("hybrid") / "model")


@pytest.mark.parametrize("name", DELTAS)
@pytest.mark.parametrize("tier", _native.available_tiers())
def test_a_layer_against_numpy(name: str, tier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDOUBT_ISA", tier)
    decoder = replace(with_delta(DELTAS[name]), layers=(0, 1))
    tensors = hybrid_tensors(decoder, seed=3)
    for layer in (0, 1):
        tensors[f"model.layers.{layer}.mlp.down_proj.weight"] *= 0
    model = Sequences(write_described(tmp_path / "model", decoder, {}, tensors), threads=2)
    states = model.model.hidden_states(*model.arrays({0: tokens(100)}))
    expected = delta_reference(DELTAS[name], tensors_of_layer(tensors, 0), states[0])
    # fp32: sums of the hidden size, of key_dim and of 100 tokens, and of all values; a few roundings each.
    terms = 2 * HYBRID.hidden_size + DELTAS[name].key_dim + 100 + DELTAS[name].value_heads * DELTAS[name].value_dim
    bound = 2 * terms * np.finfo(np.float32).eps * np.abs(expected).max()
    assert np.abs(states[1] - states[0] - expected).max() < bound


def test_attention_with_a_gated_output_against_numpy(tmp_path: Path) -> None:
    decoder = replace(HYBRID, kinds=(replace(HYBRID.kinds[1], mlp=Mlp(96)),), layers=(0, 0))
    plain = replace(decoder, kinds=(replace(decoder.kinds[0], attention=replace(ATTENTION, output_gate=False)),))
    tensors = hybrid_tensors(decoder, seed=4)
    for layer in (0, 1):
        tensors[f"model.layers.{layer}.mlp.down_proj.weight"] *= 0
    ids, wide = tokens(40), HYBRID.heads * HYBRID.head_dim
    # With the identity for an output projection, the plain model says what attention gives.
    opened = {**tensors, "model.layers.0.self_attn.o_proj.weight": np.eye(HYBRID.hidden_size, wide, dtype=np.float32)}
    without = {name: values for name, values in opened.items() if "gate_proj" not in name or "mlp" in name}
    found, attended = (
        model.model.hidden_states(*model.arrays({0: ids}))
        for model in (
            Sequences(write_described(tmp_path / "gated", decoder, {}, tensors)),
            Sequences(write_described(tmp_path / "plain", plain, {}, without)),
        )
    )
    weights = {name: values.astype(np.float64) for name, values in tensors_of_layer(tensors, 0).items()}
    x: F64 = found[0].astype(np.float64)
    gate = rms_norm(x, weights["input_layernorm.weight"]) @ weights["self_attn.gate_proj.weight"].T
    heads = (attended[1] - attended[0]).astype(np.float64)
    expected = heads * sigmoid(gate) @ weights["self_attn.o_proj.weight"].T
    bound = 4 * HYBRID.hidden_size * np.finfo(np.float32).eps * max(np.abs(x).max(), np.abs(expected).max())
    assert np.abs(found[1] - found[0] - expected).max() < bound


def whole(folder: Path, ids: list[int], **options: Any) -> F32:
    return Sequences(folder, **options).logits({0: ids})


def parts(ids: list[int], cuts: Sequence[int]) -> list[list[int]]:
    return [ids[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


@pytest.mark.parametrize(
    ("name", "compute"),
    some(["groups", "odd sizes", "eight taps"], list(product(_native.available_tiers(), ["fp32", "int8"]))),
)
def test_rows_do_not_depend_on_their_step(
    name: str, compute: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks, one by one, on several threads and beside others."""
    tier, compute_type = compute
    monkeypatch.setenv("REDOUBT_ISA", tier)
    decoder = with_delta(DELTAS[name])
    folder = write_hybrid(tmp_path / "model", decoder, "sym_int4" if compute_type == "int8" else "fp32")
    ids = tokens(105)
    expected = whole(folder, ids, compute_type=compute_type)
    for threads in (1, 2, 5):
        model = Sequences(folder, threads=threads, compute_type=compute_type)
        for slot, cuts in enumerate(([1, 33, 34], [32, 64, 96], [31, 66, 100])):
            found = [model.logits({slot: part}) for part in parts(ids, cuts)]
            assert np.array_equal(np.concatenate(found), expected)
        model = Sequences(folder, threads=threads, compute_type=compute_type)
        others = {slot: tokens(70, seed=slot) for slot in (0, 1, 3)}
        model.logits(others)
        first = model.logits({0: [5], 2: ids[:86], 1: [7, 8, 9], 3: tokens(33)})[1:87]
        rest = [model.logits({3: [1], 2: [token], 0: [2]})[1] for token in ids[86:]]
        assert np.array_equal(np.concatenate([first, rest]), expected)


def test_every_cut(folder: Path) -> None:
    ids = tokens(75)
    expected = whole(folder, ids)
    for cut in range(1, 75):
        model = Sequences(folder)
        found = np.concatenate([model.logits({0: ids[:cut]}), model.logits({0: ids[cut:]})])
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("nodes", [[0, 1], [0, 0, 1], [0, 1, 1, 1, 1]])
def test_nodes_change_no_bit(nodes: list[int], tmp_path: Path) -> None:
    folder = write_hybrid(tmp_path / "model", HYBRID, "sym_int4")
    ids = tokens(90)
    options: dict[str, Any] = {"compute_type": "int8", "threads": len(nodes), "bind_weights": False}
    model = Sequences(folder, nodes=nodes, **options)
    found = np.concatenate([model.logits({0: part}) for part in parts(ids, [1, 40, 41])])
    assert np.array_equal(found, whole(folder, ids, **options))


def test_rounded_products_do_not_depend_on_their_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16, which the scalar kernels have for tests."""
    monkeypatch.setenv("REDOUBT_ISA", "scalar")
    folder = write_hybrid(tmp_path / "model", HYBRID, "sym_int4")
    ids = tokens(60)
    options: dict[str, Any] = {"compute_type": "bf16", "prompt_compute_type": "bf16", "kv_type": "bf16"}
    expected = whole(folder, ids, **options)
    assert not np.array_equal(expected, whole(folder, ids))
    model = Sequences(folder, threads=3, **options)
    found = np.concatenate([model.logits({2: part}) for part in parts(ids, [2, 39, 40])])
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("guesses", [2, 30])
def test_guesses_are_compared_row_by_row(guesses: int, folder: Path) -> None:
    """A step with right guesses gives their tokens and one more, one with wrong ones the first."""
    prompt, model = tokens(50), Sequences(folder, threads=2)
    sampler = _native.Sampler(vocab_size=96, prompt=prompt, temperature=0.0)
    text = [int(model.model.step(*model.arrays({0: prompt}), [sampler], prompts=1)[0])]
    while len(text) < 40:
        text.append(int(model.model.step(*model.arrays({0: text[-1:]}), [sampler])[0]))
    model.rewind(0, len(prompt))
    drafts = np.array([guesses], np.int32)
    sampler = _native.Sampler(vocab_size=96, prompt=prompt, temperature=0.0)
    wrong = [text[0], *((token + 1) % 96 for token in text[1 : guesses + 1])]
    found = model.model.step(*model.arrays({0: wrong}), [sampler], draft_lengths=drafts)
    assert found.tolist() == [text[1], *[-1] * guesses]
    model.rewind(0, len(prompt) + 1)
    found = model.model.step(*model.arrays({0: text[1 : guesses + 2]}), [sampler], draft_lengths=drafts)
    assert found.tolist() == text[2 : guesses + 3]


@pytest.mark.parametrize("name", ["groups", "eight taps"])
def test_pages_inside_a_step_need_no_memory(name: str, tmp_path: Path) -> None:
    folder = write_hybrid(tmp_path / "model", with_delta(DELTAS[name]))
    ids = tokens(230)
    expected = whole(folder, ids)
    for cuts in ([32], [33, 225], [96, 97], [5, 160], [64, 191]):
        model = Sequences(folder, threads=2)
        states = model.model.page_table[-1, 0]
        pages, found, begin = states.copy(), [], 0
        for part in parts(ids, cuts):
            needed = needed_pages(begin, begin + len(part))
            states[:] = NO_PAGE
            states[needed] = pages[needed]
            found.append(model.logits({0: part}))
            begin += len(part)
        assert np.array_equal(np.concatenate(found), expected)


def test_guesses_that_were_wrong_leave_nothing(folder: Path) -> None:
    """Up to 40 wrong tokens over a page's end, and then the right ones."""
    ids = tokens(100)
    expected = whole(folder, ids)
    for settled in (20, 31, 32, 33, 60, 64):
        for wrong in (1, 5, 13, 40):
            model = Sequences(folder)
            first = model.logits({0: ids[:settled]})
            model.logits({0: tokens(wrong, seed=9)})
            model.rewind(0, settled)
            assert np.array_equal(np.concatenate([first, model.logits({0: ids[settled:]})]), expected)


@pytest.mark.parametrize("context", [20, 32, 50, 64, 90])
def test_a_fork_copies_the_page_that_is_not_full(context: int, folder: Path) -> None:
    ids, other = tokens(120), tokens(60, seed=8)
    model = Sequences(folder)
    model.logits({0: ids[:context]})
    native, (kv, states), (full, rest) = model.model, model.model.page_table, divmod(context, PAGE)
    kv[1, :full], own = kv[0, :full], states[1].copy()
    states[1, :full] = states[0, :full]
    if rest:
        native.copy_page(int(kv[0, full]), int(kv[1, full]))
        native.copy_state_page(int(states[0, full]), int(own[full]))
    model.rewind(1, context)
    # Both in one step: they read the same page.
    logits = model.logits({0: ids[context:], 1: other})
    count = len(ids) - context
    assert np.array_equal(logits[:count], whole(folder, ids)[context:])
    assert np.array_equal(logits[count:], whole(folder, ids[:context] + other)[context:])


def test_what_freed_pages_hold_is_not_read(folder: Path) -> None:
    ids = tokens(70)
    model = Sequences(folder, sequences=1, context=96)
    expected = model.logits({0: ids})
    model.rewind(0, 0)
    # NaN in all places: the embedding makes every number of the pages one.
    model.model.layer_activations(
        np.full((96, HYBRID.hidden_size), np.nan, np.float32), np.arange(96, dtype=np.int32),
        np.zeros(1, np.int32), np.array([96], np.int32), ["hidden"],
    )  # fmt: skip
    assert np.isnan(model.model.logits(*model.arrays({0: ids[:1]}))).sum() == 0
    model.rewind(0, 0)
    found = np.concatenate([model.logits({0: part}) for part in parts(ids, [30, 40])])
    assert np.array_equal(found, expected)
    for page in range(3):
        model.model.clear_state_page(page)
    model.rewind(0, 0)
    assert np.array_equal(model.logits({0: ids}), expected)


def entry(slot: int, page: int, value: int) -> Callable[[_native.Model], None]:
    def change(model: _native.Model) -> None:
        model.page_table[-1, slot, page] = value

    return change


def same_page(slot: int, page: int, other_slot: int, other_page: int) -> Callable[[_native.Model], None]:
    def change(model: _native.Model) -> None:
        states = model.page_table[-1]
        states[slot, page] = states[other_slot, other_page]

    return change


@pytest.mark.parametrize(
    ("change", "lengths", "message"),
    [
        (entry(0, 1, NO_PAGE), (40, 3), "slot 0, page 1 is -1, not in 0 .. 32"),
        (entry(0, 0, NO_PAGE), (40, 3), "slot 0, page 0 is -1, not in 0 .. 32"),
        (entry(0, 1, NO_PAGE), (64, 3), "slot 0, page 1 is -1, not in 0 .. 32"),
        (entry(0, 2, NO_PAGE), (64, 3), "slot 0, page 2 is -1, not in 0 .. 32"),
        (entry(0, 5, NO_PAGE), (40, 150), "slot 0, page 5 is -1, not in 0 .. 32"),
        (entry(0, 4, NO_PAGE), (40, 150), "slot 0, page 4 is -1, not in 0 .. 32"),
        (entry(0, 1, 32), (40, 3), "slot 0, page 1 is 32, not in 0 .. 32"),
        (entry(0, 3, 2**31 - 1), (40, 150), "page 3 is 2147483647, not in 0 .. 32"),
        (entry(0, 3, -2), (40, 150), "slot 0, page 3 is -2, not in 0 .. 32"),
        (entry(0, 3, -(2**31)), (40, 150), "slot 0, page 3 is -2147483648, not in 0 .. 32"),
        (same_page(0, 1, 0, 0), (40, 3), "page 1 is .*, which the step writes in another place"),
        (same_page(0, 3, 0, 2), (40, 150), "page 3 is .*, which the step writes in another place"),
    ],
)
def test_bad_tables_are_refused(
    change: Callable[[_native.Model], None], lengths: tuple[int, int], message: str, folder: Path
) -> None:
    model, before, after = Sequences(folder), tokens(lengths[0]), tokens(lengths[1], seed=1)
    model.logits({0: before})
    good = model.model.page_table.copy()
    change(model.model)
    with pytest.raises(ValueError, match=f"page_table: group 1 .states., .*{message}"):
        model.logits({0: after})
    model.model.page_table[:] = good
    model.rewind(0, lengths[0])
    assert np.array_equal(model.logits({0: after}), whole(folder, before + after)[lengths[0] :])


def test_entries_behind_what_is_read_may_be_anything(folder: Path) -> None:
    ids, model = tokens(67), Sequences(folder)
    first = model.logits({0: ids[:64]})
    model.model.page_table[-1, 0, 0] = -77
    assert np.array_equal(np.concatenate([first, model.logits({0: ids[64:]})]), whole(folder, ids))


def test_sequences_must_not_write_each_others_pages(folder: Path) -> None:
    model = Sequences(folder)
    states = model.model.page_table[-1]
    own = states[1, 0]
    states[1, 0] = states[0, 0]
    with pytest.raises(ValueError, match=r"slot 1, page 0 is .*, which the step writes in another place"):
        model.logits({0: tokens(3), 1: tokens(3)})
    states[1, 0] = own
    model.logits({0: tokens(40), 1: tokens(32)})
    # Reading what another one writes is as bad, in whichever order they come.
    states[1, 0] = states[0, 1]
    for chunks in ({0: tokens(3), 1: tokens(3)}, {1: tokens(3), 0: tokens(3)}):
        with pytest.raises(ValueError, match="which the step writes in another place"):
            model.logits(chunks)
        model.rewind(0, 40)
        model.rewind(1, 32)


def test_groups_and_sizes(folder: Path) -> None:
    layer = 4 * 16 * 32 + 4 * 32 * (32 + 1) + 2 * 16 * 32 + 32 * DELTA.channels
    assert _native.Model.state_page_bytes(str(folder)) == 3 * 4 * layer
    assert _native.Model.page_group_windows(str(folder), 256) == [0, 2]
    # One of the four layers has keys and values, of one head.
    assert _native.Model.kv_page_bytes(str(folder), "fp32") == 2 * 32 * 32 * 4
    assert _native.Model.kv_page_bytes(str(folder), "fp32", 256) == 2 * 32 * 32 * 4
    for page_groups in (False, True):
        model = Sequences(folder, page_groups=page_groups, state_pages=40).model
        assert model.has_states
        assert model.group_windows == [0, 2]
        assert model.page_table.shape == (2, 4, 8)
        assert model.resident_bytes()["states"] >= 40 * 3 * 4 * layer
    with pytest.raises(ValueError, match=r"state_pages: 0 is not in 1 \.\. 16777216"):
        Sequences(folder, state_pages=0)


def test_windows_of_attention_beside_states(tmp_path: Path) -> None:
    kinds = (*HYBRID.kinds, replace(HYBRID.kinds[1], attention=replace(ATTENTION, window=40)))
    folder = write_hybrid(tmp_path / "model", replace(HYBRID, kinds=kinds, layers=(0, 1, 2, 0)))
    assert _native.Model.page_group_windows(str(folder), 256) == [0, 40, 2]
    ids = tokens(150)
    expected = whole(folder, ids)
    # Groups of keys and values share a pool: other pages for the second one.
    model = Sequences(folder, page_groups=True, sequences=2, threads=2)
    model.model.page_table[1, 0] = model.model.page_table[0, 1]
    found = np.concatenate([model.logits({0: part}) for part in parts(ids, [50, 51])])
    assert np.array_equal(found, expected)


def test_a_model_of_states_alone(tmp_path: Path) -> None:
    folder = write_hybrid(tmp_path / "model", replace(HYBRID, kinds=HYBRID.kinds[:1], layers=(0, 0)))
    assert _native.Model.kv_page_bytes(str(folder), "fp32") == 0
    ids = tokens(80)
    expected = whole(folder, ids)
    for page_groups in (False, True):
        model = Sequences(folder, page_groups=page_groups, threads=3)
        assert model.model.group_windows == [0, 2]
        found = np.concatenate([model.logits({0: part}) for part in parts(ids, [10, 40])])
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("layers", [(0, 1), (1, 0)])
def test_sampling_reads_the_last_row_whatever_the_last_layer_is(layers: tuple[int, ...], tmp_path: Path) -> None:
    folder = write_hybrid(tmp_path / "model", replace(HYBRID, layers=layers))
    ids, model = tokens(70), Sequences(folder)
    sampler = _native.Sampler(vocab_size=96, prompt=ids, temperature=0.0)
    (first,) = model.model.step(*model.arrays({0: ids}), [sampler], prompts=1)
    (second,) = model.model.step(*model.arrays({0: [int(first)]}), [sampler])
    logits = whole(folder, [*ids, int(first)])
    assert [int(first), int(second)] == list(logits[-2:].argmax(1))


def test_what_can_not_be_done_with_states(folder: Path) -> None:
    model = Sequences(folder).model
    assert not model.has_relative_positions
    buffer = np.zeros(model.gathered_page_bytes, np.uint8)
    with pytest.raises(ValueError, match="states can't be moved to other positions"):
        model.copy_page_turned(0, 1, 32)
    with pytest.raises(ValueError, match="pages of a model with states can't be kept outside of it"):
        model.gather_page(0, buffer)
    with pytest.raises(ValueError, match="pages of a model with states can't be kept outside of it"):
        model.scatter_page(0, buffer)
    for source, target in ((0, 32), (-1, 0)):
        with pytest.raises(ValueError, match=r"state page .* is not in 0 \.\. 32"):
            model.copy_state_page(source, target)
    with pytest.raises(ValueError, match=r"state page 32 is not in 0 \.\. 32"):
        model.clear_state_page(32)
