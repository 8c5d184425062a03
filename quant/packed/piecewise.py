"""Writes a packed file whose matrices are produced some tiles at a time, on a few threads and in order.

Only a few pieces are in memory at once, whatever the size of the model. Does not know where the values come from.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tqdm import tqdm  # type: ignore[import-untyped]

from quant.codes.matrix import F32, U8
from quant.packed.packed_file import PackedPlan, PackedWriter
from quant.packed.packed_matrix import TILE_OUTPUTS, MatrixInfo

# 4 MiB of fp32: large enough to hide NumPy's cost per call, small enough for the cores' caches.
_PIECE_VALUES: Final = 1 << 20
_PENDING_PIECES: Final = 4

MatrixPiece = Callable[[str, MatrixInfo, int, int], U8]
"""(name, info, begin, end) -> packed bytes of rows [begin, end); begin is a multiple of 32."""


def write_packed(
    path: Path, plan: PackedPlan, matrix_piece: MatrixPiece, vector: Callable[[str], F32], *, label: str, progress: bool
) -> None:
    """Writes the file of `plan` at `path`. progress: a bar on the standard error, beginning with `label`."""
    threads = min(_PENDING_PIECES, len(os.sched_getaffinity(0)))
    with (
        PackedWriter(path, plan) as writer,
        ThreadPoolExecutor(max_workers=threads) as pool,
        tqdm(total=plan.size_bytes(), unit="B", unit_scale=True, desc=label, disable=not progress) as bar,
    ):
        for name, _ in plan.order():
            info = plan.matrices.get(name)
            if info is not None:
                writer.write_tensor(name, _counted(_pieces(name, info, matrix_piece, pool), bar))
            elif name in plan.vectors:
                writer.write_tensor(name, _counted(iter([vector(name)]), bar))


def _counted(pieces: Iterator[U8] | Iterator[F32], bar: "tqdm[None]") -> Iterator[U8 | F32]:
    for piece in pieces:
        yield piece
        bar.update(piece.nbytes)


def _pieces(name: str, info: MatrixInfo, make: MatrixPiece, pool: ThreadPoolExecutor) -> Iterator[U8]:
    rows = max(1, _PIECE_VALUES // (info.cols * TILE_OUTPUTS)) * TILE_OUTPUTS
    pending: deque[Future[U8]] = deque()
    try:
        for begin in range(0, info.rows, rows):
            pending.append(pool.submit(make, name, info, begin, min(begin + rows, info.rows)))
            if len(pending) == _PENDING_PIECES:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
