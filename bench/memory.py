"""`redoubt bench memory`: what a chat's first token takes when its context is new, in memory, or saved on disk.

    python -m bench.memory MODEL --threads 2 --folder /some/disk --gguf MODEL.gguf --plots FOLDER --json

For each context length the same prompt is asked in turn, on one loaded model:

- `cold`: nobody has seen it; all of it is computed.
- `hot`: its pages are in memory.
- `restored`: its pages are on disk, and in the system's page cache, as after a restart of the service.
- `restored_from_disk`: the page cache was told to drop the files first, as after a restart of the machine.

With a GGUF of the same model llama.cpp does the same in the same rounds. Medians of the rounds, in milliseconds. Beside
them: how fast the files can be read and decrypted at most, by one thread and from the page cache; whether
`restore: auto` chooses well, at the disk's own rate and at slower ones; and what decoding loses while an idle chat is
saved. All answers must be the same.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.memory.engine_memory import MemoryOptions
from app.memory.page_file import PageId, seal, unseal
from app.messages.memory import PageName
from bench.common import ROOT, OneLineParser, at_least, machine, number_list, print_result
from bench.memory_decoding import decoding_while_saving
from bench.memory_rig import Rig, rig
from bench.peers import InstallError
from bench.peers.llama_cpp import PEER as LLAMA_CPP
from bench.peers.llama_cpp_state import command as llama_cpp_command
from bench.places import shown_command
from bench.plots import draw
from bench.process import Contender, CrashError
from kernels import _native

_KINDS = ("cold", "hot", "restored", "restored_from_disk")
_LIMITS_BYTES = 128 << 20
_IDLE_S = 0.01
"""Idle time after which a chat is saved; by then the decoding stream has made its next token."""
_PEER_TIMEOUT_S = 1800.0
_ALWAYS = MemoryOptions(save="logout", restore="always", min_tokens=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBenchOptions:
    model: Path
    threads: int
    tokens: tuple[int, ...]
    rounds: int
    io_threads: int
    kv_type: str
    write_bytes_per_s: float
    folder: Path | None
    disk_tokens: tuple[int, ...]
    disk_bytes_per_s: tuple[int, ...]
    comparisons: int
    gguf: Path | None
    environments: Path


def measure_memory(options: MemoryBenchOptions, command: str = "") -> dict[str, Any]:
    """Runs the bench; the result is ready for JSON. Raises RuntimeError, ValueError, OSError, InstallError, CrashError.

    command: for the result.
    """
    longest = max(*options.tokens, *options.disk_tokens)
    sizes = {"longest_tokens": longest, "threads": options.threads, "kv_type": options.kv_type}
    paces = {"io_threads": options.io_threads, "write_bytes_per_s": options.write_bytes_per_s}
    with _llama_cpp(options, longest) as peer, rig(options.model, options.folder, **sizes, **paces) as bench:
        bench.begin(_ALWAYS)
        limits = _limits(bench)
        results = {tokens: _of_length(bench, tokens, options.rounds, limits, peer) for tokens in options.tokens}
        disks = [_of_disk(bench, rate, options) for rate in (None, *options.disk_bytes_per_s)]
        bench.begin(MemoryOptions(save="idle", save_after_s=_IDLE_S, restore="never"))
        return {
            "model": options.model.name,
            "tier": bench.runner.model.tier,
            "kv_type": bench.runner.model.kv_type,
            "threads": options.threads,
            "io_threads": options.io_threads,
            "rounds": options.rounds,
            "page_bytes": bench.page_bytes,
            "limits_bytes_per_s": limits,
            "first_token_ms": results,
            "disks": disks,
            "decoding_while_saving": decoding_while_saving(bench, options.comparisons),
            "llama_cpp": None if peer is None or peer.about is None else f"{peer.about.version}; {peer.about.settings}",
            "command": command,
            **machine(),
        }


def _of_length(
    bench: Rig, tokens: int, rounds: int, limits: Mapping[str, float], peer: Contender | None
) -> dict[str, Any]:
    rng = random.Random(tokens)
    seconds: dict[str, list[float]] = {kind: [] for kind in (*_KINDS, "saved")}
    theirs: list[dict[str, float]] = []
    for _ in range(rounds + 1):
        prompt = [rng.randrange(bench.runner.vocab_size) for _ in range(tokens)]
        answers = set()
        for kind in _KINDS:
            if kind == "restored":
                seconds["saved"].append(bench.save())
            if kind.startswith("restored"):
                bench.clear()
            if kind == "restored_from_disk":
                bench.drop_page_cache()
            taken_s, answer = bench.first_token(prompt)
            answers.add(answer)
            seconds[kind].append(taken_s)
        if len(answers) > 1:
            raise RuntimeError(f"with {tokens} tokens the answers differ: {answers}")
        bench.clear()
        bench.remove_files()
        if peer is not None:
            theirs.append(peer.ask({"tokens": tokens, "folder": str(bench.root)}))
    measured = {kind: times[1:] for kind, times in seconds.items()}  # the first round warms up
    medians = {kind: statistics.median(times) for kind, times in measured.items()}
    pages = (tokens - 1) // bench.page_tokens
    allowed_s = medians["hot"] + pages * bench.page_bytes / (0.8 * min(limits.values())) + 0.02
    return {
        **{kind: _ms(median) for kind, median in medians.items()},
        "allowed": _ms(allowed_s),
        "ranges": {kind: [_ms(min(times)), _ms(max(times))] for kind, times in measured.items()},
        "cold_over_restored": _ratio(measured["cold"], measured["restored"]),
        **({"llama_cpp": _of_peer(theirs[1:])} if theirs else {}),
    }


def _of_peer(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    kinds = {kind: statistics.median(one[kind] for one in rounds) for kind in (*_KINDS, "saved")}
    return {
        **{kind: _ms(seconds) for kind, seconds in kinds.items()},
        "file_bytes": rounds[0]["file_bytes"],
        "same_answers": min(one["same_answers"] for one in rounds),
    }


def _of_disk(bench: Rig, bytes_per_s: int | None, options: MemoryBenchOptions) -> dict[str, Any]:
    """Computing, loading, and what `restore: auto` makes of it, where files are read at a rate (None: as it is).

    They are read from the page cache; a slower disk is one whose readers sleep (`PacedFolder`).
    """
    bench.begin(_ALWAYS)  # which knows nothing of this disk
    results = {}
    for tokens in options.disk_tokens:
        bench.folder.read_bytes_per_s = bytes_per_s
        rng = random.Random(tokens)
        seconds: dict[str, list[float]] = {"computed": [], "always": [], "auto": []}
        for number in range(options.rounds + 1):
            prompt = [rng.randrange(bench.runner.vocab_size) for _ in range(tokens)]
            taken = {"computed": bench.first_token(prompt)[0]}
            bench.save()
            for restore in ("always", "auto") if number % 2 else ("auto", "always"):
                bench.clear()
                bench.memory.loads.restore = "auto" if restore == "auto" else "always"
                taken[restore] = bench.first_token(prompt)[0]
            bench.clear()
            bench.remove_files()
            for kind, taken_s in taken.items():
                seconds[kind].append(taken_s)
        measured = {kind: times[1:] for kind, times in seconds.items()}
        better = min(("computed", "always"), key=lambda kind: statistics.median(measured[kind]))
        results[tokens] = {
            **{kind: _ms(statistics.median(times)) for kind, times in measured.items()},
            "auto_over_better": _ratio(measured["auto"], measured[better]),
        }
    bench.folder.read_bytes_per_s = None
    return {"bytes_per_s": bytes_per_s, "first_token_ms": results}


def _ratio(times: Sequence[float], others: Sequence[float]) -> float:
    """The median of the rounds' ratios: what disturbs a round disturbs both."""
    return round(statistics.median(one / other for one, other in zip(times, others, strict=True)), 3)


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 2)


def _limits(bench: Rig) -> dict[str, float]:
    """How fast pages can be read from the page cache, and decrypted, by one thread: more than fit a processor's."""
    page_id = PageId.of(bench.grant, PageName(bytes(32), 0), bytes(32), bench.page_tokens)
    page = np.zeros(bench.page_bytes, np.uint8)
    sizes = -(-_LIMITS_BYTES // bench.page_bytes), bench.folder.file_bytes
    files = np.zeros(sizes, np.uint8)
    path = bench.root / "limits"
    for file in files:
        seal(page_id, page.data, file.data)
    path.write_bytes(files.data)

    def read() -> None:
        with path.open("rb", buffering=0) as opened:
            for file in files:
                opened.readinto(file.data)

    def decrypt() -> None:
        for file in files:
            unseal(page_id, file.data, page.data)

    rates = {"read": _rate(read, files.nbytes), "decrypt": _rate(decrypt, files.nbytes)}
    path.unlink()
    return rates


def _rate(work: Callable[[], object], size: int) -> float:
    taken = []
    for _ in range(9):
        began_s = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began_s)
    return float(f"{size / statistics.median(taken):.4g}")


@contextmanager
def _llama_cpp(options: MemoryBenchOptions, longest_tokens: int) -> Iterator[Contender | None]:
    """llama.cpp with the GGUF loaded, in an environment of its own; None without one."""
    if options.gguf is None:
        yield None
        return
    LLAMA_CPP.install(options.environments)
    command = llama_cpp_command(options.environments, options.gguf, options.threads, longest_tokens + 64)
    log = options.environments / "llama_cpp-memory.log"
    peer = Contender("llama_cpp", command, ROOT, log, _PEER_TIMEOUT_S)
    peer.start()
    try:
        yield peer
    finally:
        peer.stop()


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="redoubt bench memory", description="Measure saved pages.")
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a converted model")
    parser.add_argument("--threads", type=int, required=True, help="compute threads")
    lengths = (64, 256, 1024, 4096, 8192)
    parser.add_argument("--tokens", type=number_list, default=lengths, help="contexts (default 64,256,1024,4096,8192)")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="medians count (default %(default)s)")
    parser.add_argument("--io-threads", type=at_least(1), default=2, help="as memory.threads (default %(default)s)")
    parser.add_argument(
        "--write-bytes-per-s", type=float, default=8 << 20, help="as memory.write_bytes_per_s (default %(default)s)"
    )
    parser.add_argument("--kv-type", choices=("auto", *_native.KV_TYPES), default="auto", help="of the pages")
    parser.add_argument("--folder", type=Path, help="where to save pages: the disk that is measured (default: /tmp)")
    parser.add_argument(
        "--disk-bytes-per-s",
        type=number_list,
        default=(500_000_000, 100_000_000, 20_000_000),
        help="rates of slower disks, for restore: auto (default 500000000,100000000,20000000)",
    )
    parser.add_argument(
        "--disk-tokens", type=number_list, default=(256, 1024), help="contexts on these disks (default 256,1024)"
    )
    parser.add_argument(
        "--comparisons", type=at_least(1), default=40, help="of decoding while saving (default %(default)s)"
    )
    parser.add_argument("--gguf", type=Path, help="the same model for llama.cpp, which is then measured too")
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "peers", help="(default: build/peers)")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the result there, as SVG")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of an indented one")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    parsed = vars(_parser().parse_args(words))
    indent = None if parsed.pop("json") else 2
    plots: Path | None = parsed.pop("plots")
    options = MemoryBenchOptions(**parsed)

    def measure() -> dict[str, Any]:
        result = measure_memory(options, shown_command(["redoubt", "bench", "memory", *words]))
        if plots is not None:
            draw(result, plots)
        return result

    errors = (RuntimeError, ValueError, OSError, InstallError, CrashError, ImportError)
    return print_result(measure, errors, indent=indent)


if __name__ == "__main__":
    raise SystemExit(main())
