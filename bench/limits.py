"""What the machine can do at most for a work: bytes that must be read and multiply-adds that must be made.

The two rates (streaming reads from memory; tdpbf16ps, vpdpbusd where the CPU lacks it, vpmaddubsw where it lacks both,
or fp32 multiply-adds) are sampled again and again during a run, as machines drift; the best sample counts, as in
`bench.kernels`. tdpbssd's rate is twice tdpbf16ps', but sums of groups have to leave the tiles for it, and nobody comes
near. The demand is that of our own packed model, so that all engines are held against one limit: one read of all
matrices a step, and of every key and value; one multiply-add for each weight and token, and for attention two for each
key and element of a query, counted at the same peak. A prompt's last position alone needs the head. Knows no engine.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.work import Work
from kernels import _native
from kernels._native import testing
from quant.files.json_file import read_json_object
from quant.packed.packed_file import FILE_NAME, PackedFile

READ_BYTES = 128 << 20
COLD_BYTES = 512 << 20
READS = 8


@dataclass(frozen=True, slots=True)
class Rates:
    """What the pinned threads reach together. macs_per_s is 0 where nothing could be measured."""

    read_bytes_per_s: float
    macs_per_s: float
    instruction: str


def pinned_cpus(threads: int) -> tuple[int, ...]:
    """Where the threads that sample are."""
    return tuple(sorted(os.sched_getaffinity(0)))[:threads]


def time_reads(threads: int) -> list[tuple[float, float]]:
    """Streaming reads of READ_BYTES: wall seconds of each, and CPU seconds of the thread that took most."""
    return testing.time_read(READ_BYTES, READS, COLD_BYTES, True, threads, pinned_cpus(threads))


def sample_rates(threads: int) -> Rates:
    """Both rates, in about half a second."""
    reads = time_reads(threads)
    compute = testing.measure_compute(threads, pinned_cpus(threads))
    names = ("amx_bf16_macs_per_s", "vnni_macs_per_s", "maddubs_macs_per_s", "fma_fp32_macs_per_s")
    name = next(name for name in names if compute[name])
    return Rates(READ_BYTES / min(cpu_s for _, cpu_s in reads), compute[name], name.partition("_macs")[0])


def best_rates(samples: Sequence[Rates]) -> Rates:
    """The best of each."""
    return Rates(
        max(rates.read_bytes_per_s for rates in samples),
        max(rates.macs_per_s for rates in samples),
        samples[0].instruction,
    )


@dataclass(frozen=True, slots=True)
class Demand:
    """What one model asks for."""

    layer_weights: int
    """Elements of all layers' matrices: multiply-adds for a token."""
    head_weights: int
    read_bytes: int
    """Of all matrices that a step multiplies by: layers and head."""
    kv_bytes_per_token: float
    attention_macs_per_key: int
    """Multiply-adds of one query token with one key and its value, all layers."""

    @classmethod
    def of(cls, folder: Path, kv_type: str) -> "Demand":
        """Reads a packed model's header and config. Raises SourceError, OSError."""
        config = read_json_object(folder / "config.json")
        matrices = PackedFile(folder / FILE_NAME).matrices
        head_name = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
        head = matrices[head_name]
        layers = [info for name, info in matrices.items() if name.startswith("model.layers.")]
        heads, head_dim = config["num_attention_heads"], config["head_dim"]
        return cls(
            layer_weights=sum(info.rows * info.cols for info in layers),
            head_weights=head.rows * head.cols,
            read_bytes=sum(info.size_bytes for info in layers) + head.size_bytes,
            kv_bytes_per_token=_native.Model.kv_page_bytes(str(folder), kv_type) / _native.PAGE_TOKENS,
            attention_macs_per_key=2 * heads * head_dim * config["num_hidden_layers"],
        )

    def bytes_and_macs(self, work: Work) -> tuple[float, float]:
        """Of the whole work: a prefill in steps of any size (its matrices count once), or all decode steps."""
        tokens = work.context_tokens
        if work.kind == "prefill":
            keys = tokens * (tokens + 1) / 2
            macs = tokens * self.layer_weights + self.head_weights + keys * self.attention_macs_per_key
            return self.read_bytes + tokens * self.kv_bytes_per_token, macs
        keys = work.streams * sum(tokens + step + 1 for step in range(work.new_tokens))
        macs = work.tokens * (self.layer_weights + self.head_weights) + keys * self.attention_macs_per_key
        return work.new_tokens * self.read_bytes + keys * self.kv_bytes_per_token, macs

    def limit_tokens_per_s(self, work: Work, rates: Rates) -> tuple[float, str]:
        """What no engine with these weights can exceed, and by which of the two: "read" or "compute"."""
        read_bytes, macs = self.bytes_and_macs(work)
        read_s = read_bytes / rates.read_bytes_per_s
        compute_s = macs / rates.macs_per_s if rates.macs_per_s else 0.0
        return work.tokens / max(read_s, compute_s), "read" if read_s >= compute_s else "compute"


def rates_json(samples: Sequence[Rates]) -> dict[str, Any]:
    """The best rates and all samples."""
    return {**asdict(best_rates(samples)), "samples": [asdict(rates) for rates in samples]}
