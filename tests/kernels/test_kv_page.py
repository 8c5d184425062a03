"""A page as one run of bytes: in the format that files have, and back with the same bits."""

import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import _native
from kernels._native import testing
from tests.kernels.tiny_model import F32, write_random_model

U8 = NDArray[np.uint8]
PAGE = _native.PAGE_TOKENS
NUMBER_BYTES = {"fp32": 4, "bf16": 2, "int16": 2, "int8": 1}
TYPE_CODES = {"fp32": 0, "bf16": 1, "int16": 2, "int8": 3}
SHAPES = [(1, 1, 16), (3, 2, 8), (2, 3, 64)]
"""layers, kv_heads, head_dim"""


def gathered_twin(page: U8, kv_type: str, layers: int, kv_heads: int, head_dim: int) -> bytes:
    """A page's memory in the file's format, byte for byte as MISSION 5.3 and kv_page.h say."""
    codes = head_dim * PAGE * NUMBER_BYTES[kv_type]
    scales = 2 * PAGE if kv_type in ("int16", "int8") else 0
    blocks = page.reshape(layers, kv_heads, 2 * codes + 2 * scales)
    out = struct.pack("<II", PAGE, layers)
    for layer in blocks:
        keys = b"".join(head[:codes].tobytes() + head[2 * codes : 2 * codes + scales].tobytes() for head in layer)
        values = b"".join(head[codes : 2 * codes].tobytes() + head[2 * codes + scales :].tobytes() for head in layer)
        for run in (keys, values):
            out += struct.pack("<II", TYPE_CODES[kv_type], len(run)) + run
    return out


def random_pool(kv_type: str, shape: tuple[int, int, int], pages: int = 3) -> testing.KvPool:
    pool = testing.KvPool(kv_type, *shape, pages)
    pool.memory[:] = np.random.default_rng(7).integers(0, 256, pool.memory.shape, np.uint8)
    return pool


def gathered(pool: testing.KvPool, page: int) -> U8:
    out = np.zeros(pool.gathered_page_bytes, np.uint8)
    pool.gather(page, out)
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kv_type", list(TYPE_CODES))
def test_a_gathered_page_has_the_format_of_files(kv_type: str, shape: tuple[int, int, int]) -> None:
    pool = random_pool(kv_type, shape)
    assert kv_type in _native.KV_TYPES
    for page in range(3):
        before = pool.memory.copy()
        assert gathered(pool, page).tobytes() == gathered_twin(pool.memory[page], kv_type, *shape)
        assert np.array_equal(pool.memory, before)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kv_type", list(TYPE_CODES))
def test_a_scattered_page_has_the_same_bits_and_no_other_changes(kv_type: str, shape: tuple[int, int, int]) -> None:
    pool = random_pool(kv_type, shape)
    expected = pool.memory.copy()
    expected[2] = expected[0]
    pool.scatter(2, gathered(pool, 0))
    assert np.array_equal(pool.memory, expected)


@pytest.mark.parametrize("kv_type", list(TYPE_CODES))
def test_every_wrong_word_is_refused_before_anything_is_written(kv_type: str) -> None:
    shape = layers, _, _ = (3, 2, 8)
    pool = random_pool(kv_type, shape)
    page = gathered(pool, 0)
    run = (len(page) - 8) // (2 * layers)
    words = [("tokens", 0), ("layers", 4)]
    for index in range(2 * layers):
        words += [("type", 8 + index * run), ("size", 12 + index * run)]
    before = pool.memory.copy()
    for name, at in words:
        for byte in range(at, at + 4):
            wrong = page.copy()
            wrong[byte] ^= 0x40
            with pytest.raises(ValueError, match=f"a saved page's {name} at byte {at} is"):
                pool.scatter(1, wrong)
    assert np.array_equal(pool.memory, before)


def test_other_sizes_and_pages_that_are_not_there_are_refused() -> None:
    pool = random_pool("int16", (3, 2, 8))
    page = gathered(pool, 0)
    before = pool.memory.copy()
    for size in (0, 7, 8, 15, len(page) - 1):
        with pytest.raises(ValueError, match=f"has {len(page)} bytes, not {size}"):
            pool.scatter(1, page[:size])
        with pytest.raises(ValueError, match=f"has {len(page)} bytes, not {size}"):
            pool.gather(1, page[:size].copy())
    for number in (-1, 3):
        with pytest.raises(ValueError, match=f"page {number} is not in 0 .. 3"):
            pool.scatter(number, page)
        with pytest.raises(ValueError, match=f"page {number} is not in 0 .. 3"):
            pool.gather(number, page)
    assert np.array_equal(pool.memory, before)
    other = random_pool("bf16", (3, 2, 8))  # as large as int16 but for its scales
    with pytest.raises(ValueError, match="bytes, not"):
        other.scatter(0, page)


class Pages:
    """A model with a page of tokens in page 0 of four."""

    def __init__(self, folder: Path, kv_type: str) -> None:
        self.model = _native.Model(
            str(folder),
            threads=2,
            compute_type="fp32",
            kv_type=kv_type,
            kv_pages=4,
            max_sequences=1,
            max_step_tokens=PAGE,
            max_context_tokens=2 * PAGE,
        )
        self.tokens = np.random.default_rng(1).integers(0, 199, PAGE).astype(np.int32)
        self.logits(0, self.tokens, 0)

    def logits(self, page: int, tokens: Any, context: int) -> F32:
        self.model.page_table[0] = [page, 3]
        count = len(tokens)
        positions = np.arange(context, context + count, dtype=np.int32)
        arrays = [np.array([number], np.int32) for number in (0, count, context)]
        return self.model.logits(tokens, positions, *arrays)

    def after(self, page: int) -> F32:
        """Logits of the token after that page."""
        return self.logits(page, np.array([5], np.int32), PAGE)

    def gathered(self, page: int) -> U8:
        out = np.zeros(self.model.gathered_page_bytes, np.uint8)
        self.model.gather_page(page, out)
        return out


@pytest.mark.parametrize("kv_type", list(TYPE_CODES))
def test_a_model_computes_the_same_bits_from_a_page_that_came_back(kv_type: str, tmp_path: Path) -> None:
    pages = Pages(write_random_model(tmp_path), kv_type)
    other = Pages(tmp_path, kv_type)
    other.model.clear_page(0)
    assert not np.array_equal(other.after(0), pages.after(0)), "the test shows nothing"
    other.model.scatter_page(2, pages.gathered(0))
    assert np.array_equal(other.after(2), pages.after(0))
    assert np.array_equal(other.gathered(2), pages.gathered(0))


def test_pages_are_copied_while_another_thread_computes(tmp_path: Path) -> None:
    pages = Pages(write_random_model(tmp_path), "int16")
    right, page = pages.after(0), pages.gathered(0)
    ended = threading.Event()
    wrong: list[str] = []

    def copy() -> None:
        while not ended.is_set():
            pages.model.scatter_page(2, page)
            if not np.array_equal(pages.gathered(2), page):
                wrong.append("another page came back")

    thread = threading.Thread(target=copy)
    thread.start()
    computed = [np.array_equal(pages.after(0), right) for _ in range(200)]
    ended.set()
    thread.join()
    assert all(computed)
    assert not wrong


def test_read_only_and_foreign_arrays_are_refused(tmp_path: Path) -> None:
    model = Pages(write_random_model(tmp_path), "int16").model
    page = np.zeros(model.gathered_page_bytes, np.uint8)
    page.flags.writeable = False
    with pytest.raises(TypeError):
        model.gather_page(0, page)
    for wrong in (
        np.zeros(model.gathered_page_bytes, np.uint32),
        np.zeros(2 * model.gathered_page_bytes, np.uint8)[::2],
    ):
        with pytest.raises(TypeError):
            model.gather_page(0, wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            model.scatter_page(0, wrong)  # type: ignore[arg-type]
