"""llama.cpp's own HTTP server, built for this machine's processor from the source that llama-cpp-python carries.

The build takes minutes, once. Standard library only.
"""

from pathlib import Path

from bench.peers.http_server import HttpPeer, Sizes, Start, round_up
from bench.peers.llama_server import BATCH_TOKENS

VERSION = "0.3.36"
SOURCE = f"llama_cpp_python-{VERSION}"


def start(python: Path, model: Path, port: int, sizes: Sizes) -> Start:
    """The server's command."""
    context_tokens = round_up(sizes.context_tokens)
    options = {
        **{"model": model, "host": "127.0.0.1", "port": port, "parallel": sizes.slots, "cache-ram": 0},
        **{"threads": sizes.threads, "threads-batch": sizes.threads, "threads-http": sizes.slots + 8},
        **{"ctx-size": sizes.slots * context_tokens, "batch-size": BATCH_TOKENS, "log-verbosity": 1},
    }
    return Start(
        command=(
            str(python.parent.parent / "build" / "bin" / "llama-server"),
            *(part for name, value in options.items() for part in (f"--{name}", str(value))),
            *("--no-webui", "--no-kv-unified"),
        ),
        settings=f"built for this processor (GGML_NATIVE), {sizes.slots} slots of {context_tokens} tokens, continuous "
        f"batching, flash attention auto, n_batch {BATCH_TOKENS}, n_ubatch 512, f16 KV, split",
    )


PEER = HttpPeer(
    name="llama_server_native",
    version=f"llama.cpp of llama-cpp-python {VERSION}",
    start=start,
    steps=(("cmake==4.4.4",),),
    builds=(
        ("bin/python", "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", f"llama-cpp-python=={VERSION}"),
        ("tar", "xzf", f"{SOURCE}.tar.gz"),
        (
            *("bin/cmake", "-S", f"{SOURCE}/vendor/llama.cpp", "-B", "build", "-DCMAKE_BUILD_TYPE=Release"),
            *("-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"),
            *("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF"),
        ),
        ("bin/cmake", "--build", "build", "--target", "llama-server"),
    ),
    reads="gguf",
    memory_per_weight_bytes=1.2,  # the file's pages, and its own repacked copy
)
