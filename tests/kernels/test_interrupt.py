"""A step that ends early has sampled nothing, and is the same when it is computed again."""

from pathlib import Path

import numpy as np
import pytest

from kernels import _native
from tests.kernels.tiny_model import Sequences, write_random_model

PROMPT = [5, 17, 130, 4, 66]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("tiny"), kind="sym_int4")


@pytest.mark.parametrize("threads", [1, 3])
def test_an_interrupted_step_has_sampled_nothing(folder: Path, threads: int) -> None:
    def text(interrupts: bool) -> list[int]:
        model, flag = Sequences(folder, threads=threads), np.zeros(1, np.int32)
        sampler = _native.Sampler(vocab_size=199, prompt=PROMPT, temperature=1.0, seed=3, frequency_penalty=0.5)
        made, chunk = [], PROMPT
        for _ in range(6):
            arrays = model.arrays({0: chunk})
            if interrupts:
                flag[0] = 1
                assert model.model.step(*arrays, [sampler], (), None, 0, flag) is None
                flag[0] = 0
            sampled = model.model.step(*arrays, [sampler], (), None, 0, flag)
            assert sampled is not None
            chunk = sampled.tolist()
            made += chunk
        return made

    assert text(interrupts=True) == text(interrupts=False)


def test_the_flag_is_one_number(folder: Path) -> None:
    model = Sequences(folder)
    sampler = _native.Sampler(vocab_size=199, prompt=PROMPT, temperature=0.0)
    with pytest.raises(ValueError, match="interrupt: length 2, not 1"):
        model.model.step(*model.arrays({0: PROMPT}), [sampler], (), None, 0, np.zeros(2, np.int32))
