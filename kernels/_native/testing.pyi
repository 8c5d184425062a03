"""Single kernels of a named tier, for tests and measurements. The engine never calls these."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I8 = NDArray[np.int8]
U8 = NDArray[np.uint8]

def quantize_rows(x: F32, group: int, tier: str) -> tuple[I8, F32, I32]:
    """x [rows, cols], rows at any distance -> values [rows, cols], scales and sums [rows, cols // group]."""

def linear_int8(
    packed: U8,
    weight_type: str,
    rows: int,
    cols: int,
    group: int,
    values: I8,
    scales: F32,
    sums: I32,
    y: F32,
    tier: str,
    *,
    bias: F32 | None = None,
    accumulate: bool = False,
    tile_begin: int = 0,
    tile_end: int | None = None,
) -> None:
    """Writes output tiles of y [batch, rows] (rows of y at any distance); values, scales and sums as quantize_rows gives."""

def linear_fp32(
    packed: U8,
    weight_type: str,
    rows: int,
    cols: int,
    group: int,
    x: F32,
    y: F32,
    tier: str,
    *,
    bias: F32 | None = None,
    accumulate: bool = False,
    tile_begin: int = 0,
    tile_end: int | None = None,
) -> None:
    """Writes output tiles of y [batch, rows] from x [batch, cols], both with rows at any distance."""

def measure_limits(threads: int, cpus: Sequence[int]) -> dict[str, float]:
    """What the pinned threads can do at most, each the best of several passes: read_bytes_per_s (memory),
    vnni_macs_per_s (int8 multiply-adds), fma_fp32_flops_per_s; 0.0 where the CPU lacks the instructions."""

def time_linear(
    packed: U8,
    weight_type: str,
    rows: int,
    cols: int,
    group: int,
    activations: str,
    batch: int,
    repeats: int,
    cold_bytes: int,
    threads: int,
    cpus: Sequence[int],
    tier: str,
) -> list[float]:
    """Seconds of each of `repeats` calls of one linear layer on pinned threads, activations "int8" or "fp32".

    Calls take turns on copies of the matrix that make up cold_bytes together: a figure of several times the
    last-level cache makes every call read its weights from memory, 0 leaves them in the cache where they fit.
    """
