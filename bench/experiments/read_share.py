"""Measures which share of the memory's read rate decoding of one stream reaches.

On a shared machine the read rate changes within a run, so that the best sample is no good limit for a median of
decoding. Here each measurement of decoding lies between two of streaming reads (by the same threads, through 512 MiB),
and the medians are compared, both in wall time. Run:
`python -m bench.experiments.read_share MODEL --threads 2`; prints one JSON object.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from app.messages.failures import EngineError
from bench.common import at_least, machine, print_result
from bench.engine import EngineBench
from bench.limits import Demand
from bench.rates import READ_BYTES, time_reads
from bench.work import works
from kernels import _native
from quant.errors import SourceError


def read_rates(threads: int) -> list[float]:
    """The rates of several streaming reads, in bytes a second."""
    return [READ_BYTES / wall_s for wall_s, _ in time_reads(threads)]


def measure_share(options: argparse.Namespace) -> dict[str, object]:
    """The rounds, and the median of their shares, ready for JSON. Raises EngineError, and what loading raises."""
    work = works((1,), options.context, options.steps, (1,))[1]
    work_bytes, _ = Demand.of(options.model, options.kv_type).bytes_and_macs(work)
    bench = EngineBench(options.model, threads=options.threads, kv_type=options.kv_type, works=[work], clock="wall")
    rounds: list[dict[str, float]] = []
    try:
        bench.measure(work)  # warms up
        before = read_rates(options.threads)
        for _ in range(options.rounds):
            decoded = work_bytes / bench.measure(work)
            after = read_rates(options.threads)
            read = statistics.median(before + after)
            rounds.append(
                {
                    "decode_gb_per_s": round(decoded / 1e9, 2),
                    "read_gb_per_s": round(read / 1e9, 2),
                    "share": round(decoded / read, 3),
                }
            )
            before = after
    finally:
        bench.close()
    shares = [one["share"] for one in rounds]
    step_bytes = work_bytes / options.steps
    return {
        "share": {"median": round(statistics.median(shares), 3), "lowest": min(shares), "highest": max(shares)},
        "tokens_per_s": round(statistics.median(one["decode_gb_per_s"] for one in rounds) * 1e9 / step_bytes, 1),
        "model": options.model.name,
        "step_bytes": round(step_bytes),
        "context": options.context,
        "kv_type": options.kv_type,
        "threads": options.threads,
        **machine(),
        "rounds": rounds,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of a converted model")
    parser.add_argument("--threads", type=at_least(1), required=True, help="compute threads")
    parser.add_argument("--context", type=at_least(1), default=512, help="tokens before decoding (default %(default)s)")
    parser.add_argument("--steps", type=at_least(1), default=16, help="timed steps of a round (default %(default)s)")
    parser.add_argument("--rounds", type=at_least(1), default=12, help="(default %(default)s)")
    parser.add_argument("--kv-type", choices=_native.KV_TYPES, default="int16", help="(default %(default)s)")
    options = parser.parse_args(arguments)
    return print_result(lambda: measure_share(options), (EngineError, SourceError, ValueError, OSError), indent=1)


if __name__ == "__main__":
    raise SystemExit(main())
