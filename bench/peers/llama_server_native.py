"""llama.cpp's own HTTP server, built by hand for this machine's processor: `native/llama-server` of its environment.

Nothing here builds it; where it is not, it is missing from the result. Standard library only.
"""

import subprocess
from pathlib import Path

from bench.kv_memory import round_up
from bench.peers import InstallError
from bench.peers.http_server import HttpPeer, Sizes, Start
from bench.peers.llama_server import BATCH_TOKENS

NAME = "llama_server_native"


def start(python: Path, model: Path, port: int, sizes: Sizes) -> Start:
    """The server's command. Raises InstallError if the server is not there."""
    binary = python.parent.parent / "native" / "llama-server"
    context_tokens = round_up(sizes.context_tokens)
    options = {
        **{"model": model, "host": "127.0.0.1", "port": port, "parallel": sizes.slots, "cache-ram": 0},
        **{"threads": sizes.threads, "threads-batch": sizes.threads, "threads-http": sizes.slots + 8},
        **{"ctx-size": sizes.slots * context_tokens, "batch-size": BATCH_TOKENS, "log-verbosity": 1},
    }
    return Start(
        command=(
            str(binary),
            *(part for name, value in options.items() for part in (f"--{name}", str(value))),
            *("--no-webui", "--no-kv-unified"),
        ),
        settings=f"{_version(binary)}, built by hand for this processor, {sizes.slots} slots of "
        f"{context_tokens} tokens, continuous batching, flash attention auto, "
        f"n_batch {BATCH_TOKENS}, n_ubatch 512, f16 KV, split",
    )


def _version(binary: Path) -> str:
    try:
        printed = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise InstallError(f"lay a llama-server that was built for this processor there: {binary}: {error}") from error
    return " ".join((printed.stdout + printed.stderr).split("\n")[0].split())


PEER = HttpPeer(
    name=NAME,
    version="llama.cpp, built by hand",
    start=start,
    steps=(),
    reads="gguf",
    memory_per_weight_bytes=1.2,  # the file's pages, and its own repacked copy
)
