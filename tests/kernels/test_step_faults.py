"""Steps in which something goes wrong or changes: readers that raise, arrays that change, shared histories."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kernels import _native
from kernels._native import testing
from tests.kernels.tiny_model import F32, I32, LLAMA, MakeModel, Sequences, random_tensors, write_model

VOCAB: int = LLAMA["vocab_size"]
HIDDEN: int = LLAMA["hidden_size"]


def tokens(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, count)]


def ignore(_: int) -> None:
    pass


def reader(
    reads_logits: bool,
    read: Callable[[int], None] = ignore,
    rows_wanted: Callable[[int, int], int] = lambda _, queries: queries,
) -> testing.CallbackReader:
    row_size = VOCAB if reads_logits else HIDDEN
    return testing.CallbackReader(reads_logits=reads_logits, row_size=row_size, rows_wanted=rows_wanted, read=read)


def step_with_a_failing_reader(folder: str, threads: int, failing: int, reads_logits: bool) -> tuple[str, bool]:
    """One of three readers raises. Returns what the step raised and whether the model still computes as before."""

    def fail(index: int) -> None:
        raise KeyError(f"row {index}")

    chunks = {slot: tokens(4, slot) for slot in range(3)}
    expected = Sequences(Path(folder)).logits(chunks)
    model = Sequences(Path(folder), threads=threads)
    readers = [reader(reads_logits, fail if slot == failing else ignore) for slot in range(3)]
    arrays = model.arrays(chunks)
    try:
        model.model.step(*arrays, [None] * 3, readers)
        raised = "nothing"
    except RuntimeError as error:
        raised = str(error).splitlines()[-1]
    return raised, bool(np.array_equal(model.model.logits(*arrays), expected))


FAILING = [(failing, reads_logits) for failing in range(3) for reads_logits in (False, True)]


def test_a_reader_that_raises_ends_its_step_only(tmp_path: Path) -> None:
    """With three threads each reads for one sequence. In a process of its own, which must neither end nor hang."""
    folder = write_model(tmp_path / "model", LLAMA, random_tensors(LLAMA))
    code = (
        "import json; from tests.kernels.test_step_faults import *\n"
        f"for each in FAILING: print(json.dumps(step_with_a_failing_reader({str(folder)!r}, 3, *each)), flush=True)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    outcomes = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0, f"{FAILING[len(outcomes) :][:1]}: {run.stderr}"
    assert len(outcomes) == len(FAILING)
    for case, (raised, computes) in zip(FAILING, outcomes, strict=True):
        assert raised.startswith("KeyError: 'row "), case
        assert computes, case


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda a: a[0].fill(7), id="token_ids"),
        pytest.param(lambda a: a[1].fill(3), id="positions"),
        pytest.param(lambda a: a[2].fill(3), id="slots"),
        pytest.param(lambda a: a[3].__setitem__(1, 2), id="query_lengths"),
        pytest.param(lambda a: a[4].fill(5), id="context_lengths"),
        pytest.param(lambda a: a[5].fill(0), id="page_table"),
    ],
)
def test_what_is_checked_is_what_is_computed(make: MakeModel, change: Callable[[list[I32]], None]) -> None:
    """The caller's arrays change after the check, as another thread could do: the step has copies."""
    first, second = tokens(6), tokens(9, 1)

    def step(change: Callable[[list[I32]], None]) -> tuple[list[int], F32]:
        model = make(threads=2)
        table = model.model.page_table
        pages = table.copy()
        arrays = model.arrays({0: first, 1: second})

        def rows_wanted(context: int, queries: int) -> int:
            change([*arrays, table])
            return 1

        greedy = [_native.Sampler(vocab_size=VOCAB, prompt=[], temperature=0.0) for _ in range(2)]
        out = model.model.step(*arrays, greedy, [reader(False, rows_wanted=rows_wanted), None])
        table[:] = pages
        return out.tolist(), model.logits({0: [1], 1: [2]})

    changed, expected = step(change), step(lambda _: None)
    assert changed[0] == expected[0]
    assert np.array_equal(changed[1], expected[1])


def test_a_history_that_is_written_is_read_by_no_other_in_the_same_step(make: MakeModel) -> None:
    model = make(threads=2)
    history, other = (_native.HiddenHistory(hidden_size=HIDDEN) for _ in range(2))

    def step(*readers: _native.PromptReader | None) -> None:
        # The same tokens each time: a refused step changes nothing.
        arrays = make(threads=2).arrays({slot: tokens(1, slot) for slot in range(len(readers))})
        model.model.step(*arrays, [None] * len(readers), readers)

    writer, candidate = _native.HistoryWriter, _native.CandidateReader
    for shared in (
        [writer(history), candidate(history)],
        [candidate(history), None, writer(history)],
        [writer(history), writer(history)],
    ):
        with pytest.raises(ValueError, match=r"^readers: .* history"):
            step(*shared)
    assert history.tokens == 0
    step(candidate(history), candidate(history), writer(other))
    step(writer(history), candidate(other))
    assert history.tokens == other.tokens == 1


@pytest.mark.parametrize("tier", _native.available_tiers())
@pytest.mark.parametrize(("kv_type", "rtol"), [("fp32", 1e-4), ("int16", 1e-3)])
def test_a_part_of_the_head_that_fills_no_vector_is_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str, kv_type: str, rtol: float
) -> None:
    """24 of 32 dimensions: attention is the tier's own, and agrees with the scalar one."""
    config = {**LLAMA, "model_type": "phi3", "head_dim": 32, "partial_rotary_factor": 0.75}
    folder = write_model(tmp_path / "model", config, random_tensors(config))
    ids = tokens(50)

    def logits(tier: str) -> F32:
        monkeypatch.setenv("REDOUBT_ISA", tier)
        model = Sequences(folder, kv_type=kv_type)
        assert model.model.attention_tier == tier
        return model.logits({0: ids})

    assert np.allclose(logits(tier), logits("scalar"), rtol=rtol, atol=rtol)
