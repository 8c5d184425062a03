"""llama.cpp's own HTTP server for embeddings: `llama_server` with another order."""

from dataclasses import replace
from pathlib import Path

from bench.peers import llama_server
from bench.peers.http_server import Sizes, Start


def start(python: Path, model: Path, port: int, sizes: Sizes) -> Start:
    """The server's command."""
    server = llama_server.start(python, model, port, sizes)
    tokens = llama_server.BATCH_TOKENS
    settings = f"{sizes.slots} slots of {sizes.context_tokens} tokens, n_batch and n_ubatch {tokens}, Q8_0"
    return Start(command=(*server.command, "--embeddings"), settings=settings)


PEER = replace(llama_server.PEER, name="llama_embeddings", start=start, memory_per_weight_bytes=2.0)
