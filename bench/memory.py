"""`redoubt bench memory`: what a chat's first token takes when its context is new, in memory, or saved on disk.

    python -m bench.memory MODEL --threads 2 --folder /some/disk --json

For each context length the same prompt is asked in turn, on one loaded model:

- `cold`: nobody has seen it; all of it is computed.
- `hot`: its pages are in memory.
- `restored`: its pages are on disk, and in the system's page cache, as after a restart of the service.
- `restored_from_disk`: the page cache was told to drop the files first, as after a restart of the machine.

Medians of the rounds, in milliseconds. Beside them: how fast the files can be read and decrypted at most, by one
thread and from the page cache, and what decoding loses while an idle chat is saved. All answers must be the same.
"""

import argparse
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.memory.engine_memory import EngineMemory, MemoryOptions
from app.engine.native_runner import NativeRunner
from app.memory.fingerprint import fingerprint
from app.memory.folder import PageFolder
from app.memory.io_threads import FolderStore
from app.memory.page_file import PageId, seal, unseal
from app.messages.failures import EngineError
from app.messages.memory import MemoryGrant, PageName
from app.messages.requests import GenerateRequest, SamplingParams
from bench.common import at_least, machine, number_list, print_result
from kernels import _native

_KINDS = ("cold", "hot", "restored", "restored_from_disk")
_TIMEOUT_S = 600.0
_SAVED_BYTES = 64 << 30
_LIMITS_BYTES = 128 << 20
_IDLE_S = 0.01
"""After a chat has ended; by then the next request decodes."""
_DECODED_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBenchOptions:
    """What to measure."""

    model: Path
    threads: int
    tokens: tuple[int, ...]
    rounds: int
    io_threads: int
    kv_type: str
    write_bytes_per_s: float
    folder: Path | None


class _Bench:
    """One model, its engine and a folder of saved pages."""

    def __init__(self, options: MemoryBenchOptions, root: Path, memory: MemoryOptions) -> None:
        longest = max(options.tokens)
        pages = longest // _native.PAGE_TOKENS + 2
        self.runner = NativeRunner(
            str(options.model),
            threads=options.threads,
            compute_type="auto",
            prompt_compute_type="auto",
            kv_type=options.kv_type,
            kv_pages=3 * pages,
            max_sequences=2,
            max_step_tokens=512,
            max_context_tokens=longest + 600,
        )
        self.root = root
        self.page_bytes = self.runner.gathered_page_bytes
        folder = PageFolder(
            root,
            fingerprint=fingerprint(options.model.name, facts={}, probe=self.runner.probe()),
            page_bytes=self.page_bytes,
            most_bytes=_SAVED_BYTES,
            most_bytes_per_user=_SAVED_BYTES,
            ttl_s=1e9,
        )
        self.store = FolderStore(
            folder,
            page_bytes=self.page_bytes,
            page_tokens=self.runner.page_tokens,
            threads=options.io_threads,
            write_bytes_per_s=options.write_bytes_per_s,
        )
        self.engine = Engine(self.runner, page_store=self.store, memory=memory, prompt_chunk_tokens=512)
        self.engine.start()
        self.grant = _grant(random.Random(1))

    @property
    def memory(self) -> EngineMemory:
        assert self.engine.memory is not None
        return self.engine.memory

    def ask(
        self,
        prompt: Sequence[int],
        new_tokens: int = 1,
        *,
        saved: bool = True,
        while_: Callable[[], bool] = lambda: True,
    ) -> tuple[list[float], list[int]]:
        """Seconds from the request to each of its tokens that came while that held, and the tokens.

        Raises EngineError.
        """
        times: list[float] = []
        tokens: list[int] = []
        errors: list[EngineError] = []
        done = threading.Event()

        def deliver(events: Sequence[tuple[object, Event]]) -> None:
            now_s = time.perf_counter()
            for _, event in events:
                if isinstance(event, EngineError):
                    errors.append(event)
                    done.set()
                    continue
                if while_():
                    times.extend([now_s - began_s] * len(event.token_ids))
                tokens.extend(event.token_ids)
                if event.finish_reason is not None:
                    done.set()

        greedy = SamplingParams(temperature=0.0)
        grant = self.grant if saved else None
        request = GenerateRequest("one", tuple(prompt), new_tokens, greedy, tenant=b"bench", memory=grant)
        began_s = time.perf_counter()
        self.engine.submit(request, deliver, 0)
        done.wait(_TIMEOUT_S)
        if errors:
            raise errors[0]
        return times, tokens

    def save(self) -> float:
        """Saves what is in memory; returns the seconds. Raises RuntimeError if the disk refuses."""
        began_s = time.perf_counter()
        saved = self.memory.flush(None).result(_TIMEOUT_S)
        if saved.unsaved_pages:
            raise RuntimeError(f"{saved.unsaved_pages} pages could not be saved; see the log")
        return time.perf_counter() - began_s

    def clear(self) -> None:
        """Empties the memory, and not the disk."""
        self.memory.clear(self.grant.owner).result(_TIMEOUT_S)

    def drop_page_cache(self) -> None:
        """Tells the system to forget the files' contents."""
        for path in self.root.rglob("*.kv"):
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Ends the threads."""
        self.engine.stop()
        self.store.close()


def measure_memory(options: MemoryBenchOptions) -> dict[str, Any]:
    """Runs the bench; the result is ready for JSON. Raises RuntimeError, ValueError, OSError."""
    with _bench(options, MemoryOptions(save="logout", restore="always", min_tokens=1)) as bench:
        limits = _limits(bench)
        results = {tokens: _of_length(bench, tokens, options.rounds, limits) for tokens in options.tokens}
    with _bench(options, MemoryOptions(save="idle", save_after_s=_IDLE_S, restore="never")) as bench:
        decoding = _decoding_while_saving(bench, max(options.tokens), options.rounds)
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
        "decoding_while_saving": decoding,
        **machine(),
    }


def _of_length(bench: _Bench, tokens: int, rounds: int, limits: dict[str, float]) -> dict[str, Any]:
    rng = random.Random(tokens)
    seconds: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    saving: list[float] = []
    for number in range(rounds + 1):
        prompt = [rng.randrange(bench.runner.vocab_size) for _ in range(tokens)]
        answers = []
        for kind in _KINDS:
            if kind == "restored":
                saving.append(bench.save())
            if kind.startswith("restored"):
                bench.clear()
            if kind == "restored_from_disk":
                bench.drop_page_cache()
            times, answer = bench.ask(prompt)
            answers.append(answer)
            if number:  # the first round warms up
                seconds[kind].append(times[0])
        if any(answer != answers[0] for answer in answers):
            raise RuntimeError(f"with {tokens} tokens the answers differ: {answers}")
        bench.clear()
    medians = {kind: statistics.median(times) for kind, times in seconds.items()}
    pages = (tokens - 1) // bench.runner.page_tokens
    allowed_s = medians["hot"] + pages * bench.page_bytes / (0.8 * min(limits.values())) + 0.02
    return {
        **{kind: round(1e3 * median, 2) for kind, median in medians.items()},
        "saved_ms": round(1e3 * statistics.median(saving), 2),
        "allowed_ms": round(1e3 * allowed_s, 2),
        "cold_over_restored": round(medians["cold"] / medians["restored"], 2),
    }


def _limits(bench: _Bench) -> dict[str, float]:
    """How fast pages can be read from the page cache, and decrypted, by one thread: more than fit a processor's."""
    page_id = PageId.of(bench.grant, PageName(bytes(32), 0), bytes(32), bench.runner.page_tokens)
    page = np.zeros(bench.page_bytes, np.uint8)
    sizes = -(-_LIMITS_BYTES // bench.page_bytes), bench.store.folder.file_bytes
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


def _decoding_while_saving(bench: _Bench, tokens: int, rounds: int) -> dict[str, float]:
    """Tokens a second of one stream while a chat of `tokens` tokens is being saved, and before and after, alone."""
    rng = random.Random(0)
    alone: list[float] = []
    saving: list[float] = []
    prompt = [rng.randrange(bench.runner.vocab_size) for _ in range(64)]
    for _ in range(rounds):
        before_per_s = _tokens_per_s(bench.ask(prompt, _DECODED_TOKENS, saved=False)[0])
        bench.grant = _grant(rng)
        bench.ask([rng.randrange(bench.runner.vocab_size) for _ in range(tokens)])
        times, _ = bench.ask(prompt, _DECODED_TOKENS, saved=False, while_=lambda: bench.memory.saves.wanted_pages > 0)
        saving.append(_tokens_per_s(times))
        bench.save()
        bench.clear()
        after_per_s = _tokens_per_s(bench.ask(prompt, _DECODED_TOKENS, saved=False)[0])
        alone.append((before_per_s + after_per_s) / 2)
    ratio = statistics.median(one / other for one, other in zip(saving, alone, strict=True))
    return {
        "alone_tokens_per_s": round(statistics.median(alone), 2),
        "saving_tokens_per_s": round(statistics.median(saving), 2),
        "saving_over_alone": round(ratio, 4),
    }


def _tokens_per_s(times: Sequence[float]) -> float:
    """Raises RuntimeError for too few tokens to tell."""
    if len(times) < 2 or times[-1] <= times[0]:
        raise RuntimeError(
            "no two tokens were made while pages were saved: lower --write-bytes-per-s or take more --tokens"
        )
    return (len(times) - 1) / (times[-1] - times[0])


def _grant(rng: random.Random) -> MemoryGrant:
    return MemoryGrant(
        owner=rng.randbytes(16).hex(),
        names_key=rng.randbytes(32),
        conversation_key=rng.randbytes(32),
        shared_key=rng.randbytes(32),
        conversation_key_id=rng.randbytes(16),
        shared_key_id=rng.randbytes(16),
        shared_tokens=0,
        save=True,
    )


@contextmanager
def _bench(options: MemoryBenchOptions, memory: MemoryOptions) -> Iterator[_Bench]:
    with tempfile.TemporaryDirectory(prefix="redoubt-memory-", dir=options.folder) as path:
        bench = _Bench(options, Path(path), memory)
        try:
            yield bench
        finally:
            bench.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="redoubt bench memory", description="Measure saved pages.")
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a converted model")
    parser.add_argument("--threads", type=int, required=True, help="compute threads")
    parser.add_argument(
        "--tokens", type=number_list, default=(64, 256, 1024, 4096), help="contexts (default 64,256,1024,4096)"
    )
    parser.add_argument("--rounds", type=at_least(1), default=5, help="medians count (default %(default)s)")
    parser.add_argument("--io-threads", type=at_least(1), default=2, help="as memory.threads (default %(default)s)")
    parser.add_argument(
        "--write-bytes-per-s", type=float, default=8 << 20, help="as memory.write_bytes_per_s (default %(default)s)"
    )
    parser.add_argument("--kv-type", choices=("auto", *_native.KV_TYPES), default="auto", help="of the pages")
    parser.add_argument("--folder", type=Path, help="where to save pages: the disk that is measured (default: /tmp)")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of an indented one")
    parsed = vars(parser.parse_args(arguments))
    indent = None if parsed.pop("json") else 2
    options = MemoryBenchOptions(**parsed)
    return print_result(lambda: measure_memory(options), (RuntimeError, ValueError, OSError), indent=indent)


if __name__ == "__main__":
    raise SystemExit(main())
