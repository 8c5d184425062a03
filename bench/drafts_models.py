"""The models of `redoubt bench drafts`: how they are loaded, and how long their steps take. Drafts nothing."""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from app.engine.model_runner import Batch
from app.engine.native_runner import NativeRunner
from app.messages.requests import SamplingParams
from app.model_folder import WEIGHTS
from bench.common import available_memory_bytes
from kernels import _native

ROWS: Final = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16)
DRAFT_ROWS: Final = (1, 2, 4, 8)
_BEFORE_TOKENS: Final = 64
"""So many tokens stand before those of a step that is measured."""
_STEP_REPEATS: Final = 5


def load(
    folder: Path, threads: int, *, streams: int = 8, context_tokens: int = 1024, predicts: bool | str = False
) -> NativeRunner:
    """The model on the first cores, with room for so many texts. Raises OSError if it does not fit the memory."""
    weights_bytes = (folder / WEIGHTS).stat().st_size
    if weights_bytes > (free := available_memory_bytes()):
        raise OSError(f"{folder}: needs {weights_bytes / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free")
    pages = -(-context_tokens // _native.PAGE_TOKENS)
    return NativeRunner(
        str(folder),
        threads=threads,
        kv_pages=streams * pages + 16,
        max_sequences=streams,
        max_step_tokens=512,
        max_context_tokens=context_tokens,
        predicts=predicts,
    )


def step_times(runner: NativeRunner, rows: Sequence[int]) -> dict[str, float]:
    """Seconds of a step of one sequence with drafts, by its rows, medians; 64 tokens stand before them."""
    sampler = runner.make_sampler((0,), SamplingParams(temperature=0.0), 0)
    pages = -(-(_BEFORE_TOKENS + max(rows)) // _native.PAGE_TOKENS)
    runner.page_tables[:, 0, :pages] = np.arange(pages)
    times: dict[str, float] = {}
    for count in rows:
        taken = []
        for _ in range(_STEP_REPEATS):
            batch = Batch(
                token_ids=np.arange(count, dtype=np.int32) + 7,
                positions=np.arange(_BEFORE_TOKENS, _BEFORE_TOKENS + count, dtype=np.int32),
                slots=np.zeros(1, np.int32),
                query_lengths=np.array([count], np.int32),
                context_lengths=np.array([_BEFORE_TOKENS], np.int32),
                samplers=[sampler],
                draft_lengths=np.array([count - 1], np.int32),
            )
            began_s = time.perf_counter()
            runner.step(batch)
            taken.append(time.perf_counter() - began_s)
        times[f"{count}"] = round(statistics.median(taken), 5)
    return times


def predicted_s(runner: NativeRunner) -> float:
    """Seconds of a token that the model's own layer or head drafts, the median. Raises RuntimeError without one."""
    taken = []
    step_times(runner, (1,))
    for place in range(_BEFORE_TOKENS + 1, _BEFORE_TOKENS + 1 + _STEP_REPEATS):
        began_s = time.perf_counter()
        tokens, _ = runner.draft([7], [place], [0], [place], [None])
        taken.append(time.perf_counter() - began_s)
        if tokens[0] < 0:
            raise RuntimeError("the model's layer drafted nothing")
    return round(statistics.median(taken), 5)
