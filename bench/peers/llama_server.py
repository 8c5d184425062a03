"""llama.cpp's own HTTP server, as PyPI's `xllamacpp` carries it: a prebuilt library for any x86-64 with AVX2.

Continuous batching, one slot for each request. Run as a module by the peer's interpreter it is the server's process,
which says which instruction sets its build uses. Standard library only at import.
"""

import argparse
import os
import signal
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.kv_memory import round_up
from bench.peers.http_server import HttpPeer, Sizes, Start, announce

VERSION = "2026.10.11549"
BATCH_TOKENS = 2048
KV = {"unified": True, "split": False}


def start(python: Path, model: Path, port: int, sizes: Sizes) -> Start:
    options = {"port": port, "threads": sizes.threads, "slots": sizes.slots, "context": sizes.context_tokens}
    return Start(
        command=(
            *(str(python), "-m", "bench.peers.llama_server", str(model)),
            *(part for name, value in options.items() for part in (f"--{name}", str(value))),
        ),
        settings=f"{sizes.slots} slots of {round_up(sizes.context_tokens)} tokens, continuous batching, "
        f"flash attention auto, n_batch {BATCH_TOKENS}, n_ubatch 512, f16 KV",
    )


PEER = HttpPeer(
    name="llama_server",
    version=f"xllamacpp {VERSION}",
    start=start,
    steps=((f"xllamacpp=={VERSION}",),),
    reads="gguf",
    memory_per_weight_bytes=1.2,  # the file's pages, and its own repacked copy
)


def slot_file_options(folder: Path) -> tuple[str, ...]:
    """Options behind the start's command with which slots are saved to files in a folder, and restored, by orders."""
    return ("--slot-files", str(folder))


def main() -> None:
    """The process, in the peer's environment; SIGTERM ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    for name in ("port", "threads", "slots", "context"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--kv", choices=tuple(KV), default="split")
    parser.add_argument("--cache-ram-mib", type=int, default=0)
    parser.add_argument("--draft", help="the GGUF of a model that drafts")
    parser.add_argument("--draft-tokens", type=int, help="the most at once, instead of the server's default")
    parser.add_argument("--slot-files")
    parser.add_argument("--embeddings", action="store_true", help="it makes vectors, and no text")
    options = parser.parse_args()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    library: Any = import_module("xllamacpp")  # in the peer's environment only
    params = library.CommonParams()
    params.model.path = options.model
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = options.slots * round_up(options.context)
    params.kv_unified = KV[options.kv]
    params.cache_ram_mib = options.cache_ram_mib
    if options.slot_files:
        params.endpoint_slots, params.slot_save_path = True, f"{options.slot_files}/"
    params.n_batch = BATCH_TOKENS
    if options.embeddings:
        params.embedding, params.n_ubatch = True, BATCH_TOKENS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.n_threads_http = options.slots + 8  # a connection holds one while it streams
    if options.draft is not None:
        params.speculative.types = [library.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft = params.speculative.draft
        draft.mparams.path = options.draft
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = options.threads
        if options.draft_tokens is not None:
            draft.n_max = options.draft_tokens
    params.verbosity = 1
    server = library.Server(params)  # serves as long as it is referenced
    assert server.listening_address
    announce(build=library.get_system_info().strip(" |"), kv=options.kv, cache_ram_mib=options.cache_ram_mib)
    ended.wait()
    os._exit(0)  # its destructor waits for requests that run


if __name__ == "__main__":
    main()
