"""A million tokens through a window of 1,024, memory flat: `python -m tests.engine.million_tokens [TOKENS]`.

Too long for every day; `test_endless.py` has the short form. A tiny model of random weights makes them in one request,
with guesses, while others come and go. Prints one JSON object; fails if memory grows after the second tenth.
"""

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.native_runner import NativeRunner
from app.messages.failures import EngineError
from app.messages.requests import ContextWindow, GenerateRequest, SamplingParams
from tests.kernels.tiny_model import write_random_model

WINDOW = ContextWindow(tokens=1024, keep_tokens=32, discard_tokens=128)
GROWTH_BYTES = 1 << 20
"""How much the process may grow, by the allocator's arenas."""


def resident_bytes() -> int:
    """The resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Watch:
    """Counts the tokens, and measures memory after every tenth of them."""

    def __init__(self, engine: Engine, tokens: int) -> None:
        self.engine, self.tenth = engine, tokens // 10
        self.made = 0
        self.resident: list[int] = []
        self.pages: list[int] = []
        self.recent: list[int] = []
        self.done = threading.Event()

    def deliver(self, events: Sequence[tuple[object, Event]]) -> None:
        for _, event in events:
            if isinstance(event, EngineError):
                raise event
            self.made += len(event.token_ids)
            self.recent = [*self.recent, *event.token_ids][-100:]
            if self.made >= self.tenth * (len(self.resident) + 1):
                self.resident.append(resident_bytes())
                self.pages.append(self.engine.statistics().pages_used)
            if event.finish_reason is not None:
                self.done.set()


def main(tokens: int) -> None:
    """Generates the tokens."""
    with tempfile.TemporaryDirectory() as folder:
        runner = NativeRunner(
            str(write_random_model(Path(folder) / "tiny", kind="sym_int4")),
            threads=1,
            kv_type="int8",
            kv_pages=64,
            max_sequences=2,
            max_step_tokens=64,
            max_context_tokens=1024,
        )
        engine = Engine(runner, guess_tokens=8)
        engine.start()
        watch = Watch(engine, tokens)
        request = GenerateRequest("endless", (1, 2, 3), tokens, SamplingParams(seed=1), window=WINDOW, tenant=b"")
        began_s = time.perf_counter()
        engine.submit(request, watch.deliver, None)
        watch.done.wait()
        seconds = time.perf_counter() - began_s
        engine.stop()
    result = {
        "tokens": watch.made,
        "window_tokens": WINDOW.tokens,
        "tokens_per_s": round(watch.made / seconds),
        "resident_mib_at_tenths": [round(resident / 2**20, 2) for resident in watch.resident],
        "pages_at_tenths": watch.pages,
        "different_tokens_in_the_last_100": len(set(watch.recent)),
        "pages_at_the_end": engine.statistics().pages_used,
    }
    print(json.dumps(result, indent=1))
    assert watch.made == tokens
    assert watch.resident[-1] - watch.resident[1] < GROWTH_BYTES, "memory grows"
    assert max(watch.pages) <= 33, "1,024 tokens and a copy of the first page"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
