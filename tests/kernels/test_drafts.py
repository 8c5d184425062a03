"""A step that samples after its guesses, against steps of one token."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels import _native
from tests.kernels.tiny_model import I32, Sequences, write_random_model

PROMPT = [5, 17, 130, 4, 66]


def sampler(**options: Any) -> _native.Sampler:
    return _native.Sampler(
        vocab_size=199, prompt=PROMPT, **{"temperature": 1.0, "seed": 3, "frequency_penalty": 0.5, **options}
    )


def one_by_one(folder: Path, count: int, **options: Any) -> list[int]:
    model, own = Sequences(folder), sampler(**options)
    chunk, out = PROMPT, []
    for _ in range(count):
        (token,) = model.model.step(*model.arrays({0: chunk}), [own]).tolist()
        out.append(token)
        chunk = [token]
    return out


def lengths(*values: int) -> I32:
    return np.array(values, np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("tiny"), kind="sym_int4")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("right", range(6))
@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"repetition_penalty": 1.3, "top_k": 20}])
def test_sampling_ends_at_the_first_wrong_guess(
    folder: Path, right: int, threads: int, options: dict[str, Any]
) -> None:
    expected = one_by_one(folder, 7, **options)
    guesses = [*expected[1 : 1 + right], *[(token + 1) % 199 for token in expected[1 + right : 6]]]
    # Beside a sequence without guesses, one that is not sampled, and the same again.
    model = Sequences(folder, threads=threads)
    samplers = [sampler(**options) for _ in range(3)]
    model.model.step(*model.arrays({0: PROMPT, 1: PROMPT, 3: PROMPT}), samplers)
    chunks = {0: [expected[0], *guesses], 1: [expected[0]], 2: [9, 8], 3: [expected[0], *guesses[:2]]}
    drawn = model.model.step(
        *model.arrays(chunks), [samplers[0], samplers[1], None, samplers[2]], (), lengths(5, 0, 0, 2)
    ).tolist()
    after = expected[1 : 2 + right]
    assert drawn[:6] == after + [-1] * (5 - right)
    assert drawn[6:8] == [expected[1], -1]
    assert drawn[8:] == (after + [-1] * 3)[:3]
    # Wrong guesses are overwritten, and the sampler knows nothing of them.
    model._lengths[0] -= 5 - right
    (following,) = model.model.step(*model.arrays({0: [after[-1]]}), [samplers[0]]).tolist()
    assert following == one_by_one(folder, 3 + right, **options)[-1]


def test_more_guesses_than_a_step_has_sequences(folder: Path) -> None:
    """Logits are computed in blocks of rows; a sequence's may lie in several."""
    expected = one_by_one(folder, 41)
    model, own = Sequences(folder, sequences=1, threads=2), sampler()
    model.model.step(*model.arrays({0: PROMPT}), [own])
    drawn = model.model.step(*model.arrays({0: expected[:40]}), [own], (), lengths(39))
    assert drawn.tolist() == expected[1:]


@pytest.mark.parametrize("drafts", [lengths(-1), lengths(2), lengths(1, 1), np.array([1.0]), lengths(2**31 - 1)])
def test_guesses_that_do_not_fit_are_refused(folder: Path, drafts: Any) -> None:
    model = Sequences(folder)
    with pytest.raises(ValueError, match="draft_lengths"):
        model.model.step(*model.arrays({0: [1, 2]}), [sampler()], (), drafts)
