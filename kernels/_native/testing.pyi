"""Single kernels of a named tier, for tests and measurements. The engine never calls these, and wheels lack them."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kernels._native import PackedMatrix, PromptReader

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I8 = NDArray[np.int8]
U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]

Quantized = tuple[I8, I8 | None, F32, I32, F32]
"""Quantized activations (contract/linear.h, QuantizedRows): values and low_values [rows, cols], low_values None for one
term; scales, starts and offsets [rows, cols // group]."""

def measure_barrier_ns(threads: int, cpus: Sequence[int] = ..., rounds: int = 10000) -> float:
    """Nanoseconds that a barrier of the thread pool takes. Raises OSError for a CPU that can't be had."""

def row_passes(rows: int, most: int) -> tuple[int, int, int]:
    """How kernels go over `rows` rows in passes of at most `most`: rows of the smallest, of the largest, their number.

    RuntimeError where passes do not follow each other from the first row to the last.
    """

def share(count: int, index: int, shares: int) -> tuple[int, int]:
    """Begin and end of one of `shares` equal shares of `count` items, as threads divide a stage's work."""

def linear_tiers() -> list[str]:
    """Names that the linear kernels below take: the tiers and, where AVX-512 VNNI can run, three more.

    avx_vnni_evex is avx_vnni's kernel in AVX-512's encoding, avx512_vnni_other avx512_vnni's as processors of another
    maker run it, amx_int8_emulated amx_int8's over tile registers in memory, used from one row on.
    """

def emulate_tdpbssd(a: I8, b: I8, c: I32) -> None:
    """C [m, n] += the emulated dot product of a [m, 4 k] and b [k, 4 n], their rows at any distance.

    What a processor answers with a fault ends the process.
    """

def emulate_tdpbf16ps(a: U16, b: U16, c: F32) -> None:
    """The same of a [m, 2 k] and b [k, 2 n], bits of bf16, added to c in fp32."""

def quantize_rows(
    x: F32, group: int, tier: str, terms: int = 1, block_rows: int = 1 << 30, block_cols: int = 1 << 30
) -> Quantized:
    """X [rows, cols], rows at any distance, to one term or two, a block at a time.

    group: 32, 64 or 128; cols and block_cols: multiples of it. Raises ValueError naming what does not fit.
    """

def linear_int8(
    matrix: PackedMatrix,
    x: Quantized,
    y: F32,
    tier: str,
    *,
    bias: F32 | None = None,
    accumulate: bool = False,
    tile_begin: int = 0,
    tile_end: int | None = None,
) -> None:
    """Writes output tiles [tile_begin, tile_end) of y [batch, rows], its rows at any distance; all by default.

    x: of quantize_rows. bias: [rows]. accumulate: adds to what y has. Integer weights only. Raises ValueError naming
    what does not fit.
    """

def round_rows(x: F32, tier: str, block_rows: int = 1 << 30, block_cols: int = 1 << 30) -> U16:
    """X [rows, cols], rows at any distance, to bf16's bits as linear_bf16 takes them, a block at a time.

    Returns [blocks * height, cols], which is [blocks, cols // 32, height, 32] in memory (contract/linear.h, Bf16Rows).
    """

def linear_bf16(
    matrix: PackedMatrix,
    values: U16,
    y: F32,
    tier: str,
    *,
    bias: F32 | None = None,
    accumulate: bool = False,
    tile_begin: int = 0,
    tile_end: int | None = None,
) -> None:
    """As linear_int8, of activations from round_rows."""

def gate_up_bf16(
    gate: PackedMatrix,
    up: PackedMatrix,
    values: U16,
    batch: int,
    tier: str,
    *,
    gate_bias: F32 | None = None,
    up_bias: F32 | None = None,
    col: int = 0,
    out_cols: int,
) -> U16:
    """silu(gate x) * (up x) of `batch` rows; values: of round_rows; biases: [rows of the matrix].

    gate and up are of one integer type, shape and group, their rows a multiple of 32; tables may differ.
    Returns what round_rows does of [batch, out_cols], from column `col` on; 0 in the other columns. Raises ValueError
    naming what does not fit.
    """

def linear_fp32(
    matrix: PackedMatrix,
    x: F32,
    y: F32,
    tier: str,
    *,
    bias: F32 | None = None,
    accumulate: bool = False,
    tile_begin: int = 0,
    tile_end: int | None = None,
) -> None:
    """As linear_int8, of x [batch, cols] in fp32, rows at any distance, and for weights of every type."""

def time_linear(
    matrix: PackedMatrix,
    activations: str,
    batch: int,
    repeats: int,
    cold_bytes: int,
    huge_pages: bool,
    threads: int,
    cpus: Sequence[int],
    tier: str,
) -> list[tuple[float, float]]:
    """Calls of one linear layer on pinned threads; times as of time_read.

    activations: "int8", "int8_two_terms", "bf16" or "fp32", the only one for weights of floats.
    Calls take turns on copies of the matrix that make up cold_bytes together: a figure of several times the
    last-level cache makes every call read its weights from memory, 0 leaves them in the cache where they fit.
    """

def rms_norm(x: F32, weight: F32, epsilon: float, tier: str) -> F32:
    """X [rows, n], weight [n] -> [rows, n]."""

def layer_norm(x: F32, weight: F32, bias: F32 | None, epsilon: float, tier: str) -> F32:
    """X [rows, n], weight and bias [n] -> [rows, n]."""

def activate(activation: str, gate: F32, up: F32 | None, tier: str) -> F32:
    """f(gate) * up, or f(gate) for None, all [rows, n].

    activation: "silu", "gelu_tanh", "gelu_erf", "relu", "relu2" or "swiglu_oai" (contract/activation.h). Raises
    ValueError for another.
    """

def add_scaled(x: F32, factor: float, y: F32, tier: str) -> None:
    """Adds factor * x to y, both [n], in place."""

def convolve_gated(before: F32, behind: F32, values: F32, history: F32, taps: F32, bias: F32 | None, tier: str) -> F32:
    """Rows [rows, channels] -> behind * (bias + convolution of before * values), which `values` becomes.

    history: [n, channels], what the n < taps rows before were; zeros before them. taps: [taps, channels], the oldest
    row's first.
    """

def scale(x: F32, factor: float, tier: str) -> None:
    """Multiplies x [n] by factor, in place."""

def softcap(x: F32, cap: float, tier: str) -> None:
    """Replaces x [n] by cap * tanh(x / cap)."""

def rope(heads: F32, cos_sin: F32, tier: str) -> F32:
    """Heads [rows, head_dim], all rotated by cos_sin [rotary_dim] (cosines, then sines) -> [rows, head_dim]."""

def write_kv(pages: U8, page_table: I32, kv_type: str, first_token: int, keys: F32, values: F32, tier: str) -> None:
    """Stores keys and values [tokens, head_dim] of one kv head from position first_token on, into pages [pages, bytes].

    kv_type "int16", "bf16", "int8" or "fp32"; a page's bytes are 2 * head_dim * PAGE_TOKENS * (2, 2, 1 or 4), of
    integers 4 * PAGE_TOKENS more.
    """

def attention(
    queries: F32,
    pages: U8,
    page_table: I32,
    kv_type: str,
    context_before: int,
    scale: float,
    tier: str,
    *,
    by_partitions: bool = False,
    bf16: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    slopes: F32 | None = None,
    sinks: F32 | None = None,
) -> F32:
    """Queries [query_tokens, group_heads, head_dim] over one kv head's pages -> the same shape.

    A query sees the `window` keys up to its own, or all; slopes (ALiBi) and sinks: [group_heads].

    by_partitions: through attention_partition and attention_merge rather than attention. bf16: attention_bf16 and its
    partitions, for bf16 and int8 pages and head_dim 32, 64, 96 or 128; the tier may be amx_int8_emulated.
    """

def time_attention(
    tasks: int,
    query_tokens: int,
    group_heads: int,
    context_before: int,
    head_dim: int,
    kv_type: str,
    repeats: int,
    threads: int,
    cpus: Sequence[int],
    tier: str,
    *,
    window: int = 0,
) -> list[tuple[float, float]]:
    """Runs of attention for `tasks` pairs of sequence and kv head on pinned threads; times as of time_read.

    Every task has pages of its own, so many tasks with long contexts are read from memory, few from the caches.
    """

def time_rows(
    op: str, rows: int, n: int, repeats: int, threads: int, cpus: Sequence[int], tier: str
) -> list[tuple[float, float]]:
    """Runs of an operation on `rows` rows of n, or "write_kv" of as many tokens of head_dim n.

    op: "rms_norm", "layer_norm", "rope", "add_scaled", "scale", "softcap" or an activation; else ValueError.
    """

def delta_page(
    state: F32 | None,
    keys: F32,
    changes: F32,
    decays: F32,
    betas: F32,
    rows: F32,
    outputs: F32,
    end_state: F32 | None,
    begin: int,
    tier: str,
) -> None:
    """Gated DeltaNet of some tokens of a page, of one value head (contract/delta.h, DeltaPage).

    state: [key_dim, value_dim], None: zeros; keys: [key_dim, 32]; changes: [32, value_dim], written from `begin` on;
    decays: [32], of base 2; betas: [tokens]; rows: [tokens, 2 key_dim + value_dim], queries, keys and values; outputs:
    [tokens, value_dim], written; end_state: likewise, if the last token is the page's. Raises ValueError naming what
    does not fit.
    """

def convolve_silu(rows: F32, history: F32, weights: F32, tier: str) -> None:
    """Convolves rows [n, channels] in place, after history [taps - 1, channels]. weights: [taps, channels]."""

def l2_normalize(x: F32, factor: float, tier: str) -> None:
    """x [n], in place, times factor / sqrt(its sum of squares + 1e-6)."""

def gate_by_sigmoid(gate: F32, x: F32, tier: str) -> None:
    """x [n], in place, times the sigmoid of gate."""

def philox_4x32_10(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """One block of the generator behind Sampler: 4 words of counter and 2 of key -> 4 words."""

def choose_weight_memory(
    wanted: str, file_bytes: int, other_bytes: int, mapped_huge_bytes: int, bound_nodes: Sequence[int], root: str
) -> str:
    """What a model file gets that asks for `wanted`: "mapped" or "huge_pages"; ValueError for what can't be had.

    other_bytes: what the process takes besides. mapped_huge_bytes: of the file's mapping, in huge pages.
    bound_nodes: the only ones that memory may come from. `root` stands
    before the paths in /proc and /sys that are read.
    """

def require_weight_copy(
    wanted: str, file_bytes: int, other_bytes: int, mapped_huge_bytes: int, bound_nodes: Sequence[int], root: str
) -> str:
    """The same for weights that no file has."""

def plan_slices(
    tensors: Sequence[tuple[int, int]], threads: int, nodes: Sequence[int]
) -> list[tuple[int, int, int, list[tuple[int, int, int]], list[int]]]:
    """Where a copy of tensors (bytes, tiles; 0 tiles: no matrix), one after the other in a file, would lie.

    Per node: its number, begin and bytes of its memory, pieces as (begin in the file, begin in memory, bytes), and for
    each tensor where its tile 0 would be.
    """

class CallbackReader(PromptReader):
    """A reader that calls Python from inside a step, on whichever thread reads.

    rows_wanted(context, queries): how many of the last rows are read; it is called after the batch was checked and
    before it is computed. read(index): the row of token `index` is there. If they raise, the step raises RuntimeError.
    """

    def __init__(
        self,
        *,
        reads_logits: bool,
        row_size: int,
        rows_wanted: Callable[[int, int], int],
        read: Callable[[int], None],
    ) -> None: ...

class KvPool:
    """A pool of KV pages without a model."""

    def __init__(self, kv_type: str, layers: int, kv_heads: int, head_dim: int, pages: int) -> None: ...
    @property
    def memory(self) -> U8:
        """[pages, page bytes], a writable view: a page's blocks (contract/attention.h), heads within layers."""

    @property
    def gathered_page_bytes(self) -> int: ...
    def gather(self, page: int, out: U8) -> None: ...
    def scatter(self, page: int, gathered: U8) -> None: ...
