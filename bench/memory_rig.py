"""One loaded model, an engine with a folder of saved pages, and a disk whose speed can be limited: for `bench.memory`.

Does not know what is measured.
"""

import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.memory.engine_memory import EngineMemory, MemoryOptions
from app.engine.native_runner import NativeRunner
from app.memory.fingerprint import fingerprint
from app.memory.folder import PageFolder
from app.memory.io_threads import FolderStore
from app.memory.page_file import PageId
from app.messages.failures import EngineError
from app.messages.memory import MemoryGrant
from app.messages.requests import GenerateRequest, SamplingParams
from kernels import _native

_TIMEOUT_S = 600.0
_SAVED_BYTES = 64 << 30
_DECODED_TOKENS = 1920
"""Room for decoded tokens beyond the longest prompt."""


class PacedFolder(PageFolder):
    """A folder whose files are read no faster than a rate: a reader sleeps as long as a disk of that rate would take.

    What the file system really does comes before that; it should be the page cache.
    """

    read_bytes_per_s: float | None = None
    """None: as fast as it is."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._turn = threading.Lock()
        self._free_s = 0.0

    def read(self, page_id: PageId, file: memoryview, page: memoryview) -> bool:
        """Reads as the base class, at the limited rate, which threads share."""
        if self.read_bytes_per_s is not None:
            with self._turn:
                self._free_s = max(self._free_s, time.perf_counter()) + self.file_bytes / self.read_bytes_per_s
                until_s = self._free_s
            time.sleep(max(until_s - time.perf_counter(), 0.0))
        return super().read(page_id, file, page)


class Stream:
    """One running request: when its tokens came."""

    def __init__(self) -> None:
        self.times: list[float] = []
        """Seconds of `time.perf_counter`, one for each token."""
        self.tokens: list[int] = []
        self.began_s = time.perf_counter()
        self._error: EngineError | None = None
        self._done = threading.Event()

    def deliver(self, events: Sequence[tuple[object, Event]]) -> None:
        """Records events, on the engine's thread."""
        now_s = time.perf_counter()
        for _, event in events:
            if isinstance(event, EngineError):
                self._error = event
                self._done.set()
                continue
            self.times.extend([now_s] * len(event.token_ids))
            self.tokens.extend(event.token_ids)
            if event.finish_reason is not None:
                self._done.set()

    @property
    def has_ended(self) -> bool:
        """Whether there will be no more tokens."""
        return self._done.is_set()

    def wait(self) -> None:
        """Waits until the stream has ended. Raises EngineError, RuntimeError after ten minutes."""
        if not self._done.wait(_TIMEOUT_S):
            raise RuntimeError(f"a request has not ended within {_TIMEOUT_S:.0f} s")
        if self._error is not None:
            raise self._error


class Rig:
    """A model and a folder of pages; `begin` starts an engine over both."""

    def __init__(
        self,
        model: Path,
        root: Path,
        *,
        threads: int,
        kv_type: str,
        longest_tokens: int,
        io_threads: int,
        write_bytes_per_s: float,
    ) -> None:
        """longest_tokens: of a prompt. io_threads, write_bytes_per_s: as in the settings `memory`."""
        self.runner = NativeRunner(
            str(model),
            threads=threads,
            compute_type="auto",
            prompt_compute_type="auto",
            kv_type=kv_type,
            kv_pages=2 * (longest_tokens // _native.PAGE_TOKENS) + 64,
            max_sequences=2,
            max_step_tokens=512,
            max_context_tokens=longest_tokens + _DECODED_TOKENS,
        )
        self.root = root
        self.page_bytes = self.runner.gathered_page_bytes
        self.page_tokens = self.runner.page_tokens
        self.folder = PacedFolder(
            root,
            fingerprint=fingerprint(model.name, facts={}, probe=self.runner.probe()),
            page_bytes=self.page_bytes,
            most_bytes=_SAVED_BYTES,
            most_bytes_per_user=_SAVED_BYTES,
            ttl_s=1e9,
        )
        self.store = FolderStore(
            self.folder,
            page_bytes=self.page_bytes,
            page_tokens=self.page_tokens,
            threads=io_threads,
            write_bytes_per_s=write_bytes_per_s,
        )
        self.grant = new_grant(random.Random(1))
        self.engine: Engine | None = None
        self._number = 0

    def begin(self, options: MemoryOptions) -> None:
        """A new engine, which has measured nothing yet."""
        self._end()
        self.engine = Engine(self.runner, page_store=self.store, memory=options, prompt_chunk_tokens=512)
        self.engine.start()

    @property
    def memory(self) -> EngineMemory:
        assert self.engine is not None
        assert self.engine.memory is not None
        return self.engine.memory

    def start(self, prompt: Sequence[int], new_tokens: int, *, saved: bool) -> tuple[Stream, str]:
        """Starts a request, whose pages may be saved or not. Returns it and its id."""
        assert self.engine is not None
        self._number += 1
        name = f"r{self._number}"
        grant = self.grant if saved else None
        greedy = SamplingParams(temperature=0.0)
        request = GenerateRequest(name, tuple(prompt), new_tokens, greedy, tenant=b"bench", memory=grant)
        stream = Stream()
        self.engine.submit(request, stream.deliver, 0)
        return stream, name

    def first_token(self, prompt: Sequence[int]) -> tuple[float, int]:
        """Seconds to the first token, and the token. Raises EngineError."""
        stream, _ = self.start(prompt, 1, saved=True)
        stream.wait()
        return stream.times[0] - stream.began_s, stream.tokens[0]

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

    def remove_files(self) -> None:
        """Removes all saved pages."""
        for path in self.root.rglob("*.kv"):
            path.unlink()

    def close(self) -> None:
        self._end()
        self.store.close()

    def _end(self) -> None:
        if self.engine is not None:
            self.engine.stop()


def new_grant(rng: random.Random) -> MemoryGrant:
    """A user with one conversation."""
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
def rig(model: Path, folder: Path | None, **options: Any) -> Iterator[Rig]:
    """A rig over a folder of its own below `folder`, which is removed in the end. Raises OSError, RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="redoubt-memory-", dir=folder) as path:
        made = Rig(model, Path(path), **options)
        try:
            yield made
        finally:
            made.close()
