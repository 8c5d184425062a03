"""One engine over several NUMA nodes, on a pretended topology: the plan of slices, and that nothing changes.

A copy for several nodes holds a node's tiles only, where its threads look for them: a thread that read a tile of
another node would read other weights. So equal results show that each slice is read by its own node alone.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels import _native
from kernels._native import testing
from quant.codes.matrix import WeightType
from tests.kernels.test_weight_memory import huge_pages_granted
from tests.kernels.tiny_model import LLAMA, Sequences, write_random_model

HUGE_PAGE_BYTES = 2 << 20
SLICE_TILES = 4
# Biases, a tied head, two-term inputs, heads of two tiles, and matrices of one slice up to many.
WIDE: Mapping[str, Any] = {
    **LLAMA, "model_type": "qwen2", "vocab_size": 2111, "hidden_size": 256, "intermediate_size": 1056,
    "num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip

needs_huge_pages = pytest.mark.skipif(not huge_pages_granted(), reason="this system grants no huge pages")


@pytest.mark.parametrize("nodes", [[0, 0, 1, 1], [3, 1], [0, 0, 0, 2], [5, 4, 7]])
def test_every_tile_is_on_one_node_in_its_place(nodes: list[int]) -> None:
    tensors = [(64 * 10, 10), (20, 0), (4096 * 172, 172), (128, 1), (640 * 64, 64), (7, 0)]
    plan = testing.plan_slices(tensors, len(nodes), nodes)
    assert [node for node, *_ in plan] == sorted(set(nodes), key=nodes.index)
    copied = sorted(piece[0::2] for *_, pieces, _ in plan for piece in pieces)
    assert all(begin + size == following for (begin, size), (following, _) in pairwise(copied))
    assert (copied[0][0], sum(size for _, size in copied)) == (0, sum(size for size, _ in tensors))
    memory = 0
    for node, begin, size, pieces, begins in plan:
        assert begin % HUGE_PAGE_BYTES == 0
        assert begin >= memory
        memory = begin + size
        for _, at, piece_bytes in pieces:
            assert at % 64 == 0
            assert begin <= at <= at + piece_bytes <= memory
        file_begin = 0
        for (tensor_bytes, tiles), tile_0 in zip(tensors, begins, strict=True):
            for piece_begin, at, _ in pieces:
                if tiles and file_begin <= piece_begin < file_begin + tensor_bytes:
                    assert tile_0 == at - (piece_begin - file_begin) >= 0
                    first_tile = (piece_begin - file_begin) / (tensor_bytes / tiles)
                    assert first_tile % SLICE_TILES == 0
            file_begin += tensor_bytes
        largest = max(pieces, key=lambda piece: piece[2])[2]
        assert largest == pytest.approx(4096 * 172 * nodes.count(node) / len(nodes), rel=0.05)


def test_one_node_has_the_file_as_it_is() -> None:
    assert testing.plan_slices([(640, 10), (20, 0)], 2, []) == [(-1, 0, 660, [(0, 0, 660)], [0, 640])]
    assert testing.plan_slices([(640, 10)], 2, [1, 1])[0][:3] == (1, 0, 640)


@pytest.mark.parametrize(
    ("nodes", "reason"), [([0], "1 nodes for 2 threads"), ([0, 1, 0], "threads of node 0 are not neighbours")]
)
def test_threads_that_are_not_grouped_by_node(tmp_path: Path, nodes: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=f"^nodes: .*{reason}"):
        Sequences(write_random_model(tmp_path / "model"), threads=max(2, len(nodes)), nodes=nodes)


@needs_huge_pages
@pytest.mark.parametrize("nodes", [[0, 1], [0, 0, 1, 1], [0, 0, 0, 1], [2, 0, 1]])
@pytest.mark.parametrize(
    ("kind", "group", "compute_type"), [("sym_int4", 32, "int8"), ("int8", 64, "int8"), ("bf16", 0, "fp32")]
)
def test_nodes_change_no_bit(tmp_path: Path, nodes: list[int], kind: WeightType, group: int, compute_type: str) -> None:
    config = WIDE if group != 64 else {**WIDE, "intermediate_size": 1088}
    folder = write_random_model(tmp_path / "model", config, kind, group)
    rng = np.random.default_rng(0)
    chunks = [{0: list(map(int, rng.integers(0, 2111, n)))} for n in (40, 1, 3)]
    chunks.append({0: [7], 1: [2110, 3], 2: [1]})
    alone = Sequences(folder, compute_type=compute_type)
    across = Sequences(
        folder,
        threads=len(nodes),
        nodes=nodes,
        bind_weights=False,
        weight_memory="huge_pages",
        compute_type=compute_type,
    )
    for chunk in chunks:
        assert np.array_equal(alone.logits(chunk), across.logits(chunk))


@needs_huge_pages
def test_slices_are_bound_to_their_nodes(tmp_path: Path) -> None:
    folder = write_random_model(tmp_path / "model", WIDE)
    if Path("/sys/devices/system/node/node0").exists():
        Sequences(folder, threads=2, nodes=[0, 0], weight_memory="huge_pages")
    with pytest.raises(OSError, match="can't bind memory to NUMA node 1023"):
        Sequences(folder, threads=2, nodes=[0, 1023], weight_memory="huge_pages")


def test_memory_of_a_node_that_is_not_there() -> None:
    with pytest.raises(OSError, match="can't bind memory to NUMA node 1023"):
        _native.interleave_memory([1023])
