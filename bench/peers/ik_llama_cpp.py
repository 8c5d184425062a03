"""ik_llama.cpp, through the bindings of ik-llama-cpp-python.

The wheel's library is a generic AVX2 build without `vpdpbusd`, whose figures say little about the engine. If a library
of the same version, built by hand for this CPU, lies in `native/` of the peer's environment, it is loaded instead. The
settings say which was loaded, and the number of its VNNI instructions. The variants are run-time repacking (`-rtr`) on
and off, and flash attention on and off; with several streams this version aborts with flash attention.
"""

import ctypes
import subprocess
from importlib import import_module
from itertools import product
from os import environ
from pathlib import Path
from sys import prefix
from typing import Any

from bench.peers import Peer, parse_process_options
from bench.peers.llama_family import BATCH_TOKENS, LlamaFamily
from bench.work import About, NotSupportedError, serve, take_stdout

VERSION = "0.1.5"
REPACK = {"rtr=0": False, "rtr=1": True}
FLASH_ATTENTION = {"flash_attention=off": False, "flash_attention=on": True}


PEER = Peer(
    name="ik_llama_cpp",
    steps=((f"ik-llama-cpp-python=={VERSION}",),),
    reads="gguf",
    memory_per_weight_bytes=1.2,  # the file's pages, or a repacked copy beside them
)


def native_library() -> Path | None:
    """The library built by hand, if there is one."""
    found = sorted((Path(prefix) / "native").glob("**/libllama.so"))
    return found[0] if found else None


def vnni_instructions(library: Path) -> int | None:
    """How many times `vpdpbusd` stands in the ggml library beside it; None without objdump."""
    (ggml,) = [*library.parent.parent.glob("**/libggml.so")][:1] or [library]
    try:
        listing = subprocess.run(["objdump", "-d", str(ggml)], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return listing.count(b"vpdpbusd")


class IkLlamaCpp(LlamaFamily):
    """A GGUF model in ik_llama.cpp; loaded again when the variant's repacking differs."""

    def __init__(self, model: str, threads: int, clock: str) -> None:
        library = native_library()
        if library is not None:
            environ["IK_LLAMA_CPP_LIB_PATH"] = str(library)
        lib: Any = import_module("ik_llama_cpp._ctypes_api")  # in the peer's environment only
        super().__init__(lib, threads, clock)
        self._library = library or Path(lib._lib._name)
        self._native = library is not None
        lib._lib.llama_kv_cache_seq_rm.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]
        lib._lib.llama_kv_cache_seq_rm.restype = ctypes.c_bool
        lib._lib.llama_synchronize.argtypes = [ctypes.c_void_p]
        lib._lib.llama_print_system_info.restype = ctypes.c_char_p
        lib._lib.llama_log_set.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        lib._lib.llama_log_set(ctypes.cast(self._quiet, ctypes.c_void_p), None)
        lib.llama_backend_init()
        self._path, self._model, self._repacked = model, None, False
        began = self.now_s()
        self._load(repack=False)
        self.load_s = self.now_s() - began

    def _load(self, *, repack: bool) -> None:
        if self._model is not None:
            self.free_contexts()
            self.lib.llama_free_model(self._model)
        params = self.lib.llama_model_default_params()
        params.repack_tensors = repack
        params.use_mmap = not repack
        self._model, self._repacked = self.lib.llama_model_load_from_file(self._path.encode(), params), repack
        if not self._model:
            raise SystemExit(f"ik_llama.cpp can't load {self._path}")
        self.vocab_size = self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self._model))

    def about(self) -> About:
        """Version and build, and whether the library has VNNI instructions."""
        count = vnni_instructions(self._library)
        vnni = "unknown (no objdump)" if count is None else f"{count}"
        build = "a library built by hand for this CPU" if self._native else "the wheel's generic build"
        system = self.lib._lib.llama_print_system_info().decode()
        return About(
            version=f"ik-llama-cpp-python {VERSION}",
            settings=f"threads {self.threads}, n_batch and n_ubatch {BATCH_TOKENS}, f16 KV; {build}; "
            f"vpdpbusd instructions in libggml: {vnni}; {system}",
            variants=tuple(f"{repack} {flash}" for repack, flash in product(REPACK, FLASH_ATTENTION)),
            load_s=self.load_s,
        )

    def measure(self, work: Any, variant: str) -> float:
        repack, flash = variant.split()
        if work.streams > 1 and FLASH_ATTENTION[flash]:
            raise NotSupportedError("flash attention with several streams aborts in this version")
        if REPACK[repack] != self._repacked:
            self._load(repack=REPACK[repack])
        return super().measure(work, variant)

    def make_context(self, streams: int, tokens_each: int, variant: str) -> Any:
        params = self.lib.llama_context_default_params()
        params.n_ctx = streams * -(-tokens_each // 256) * 256
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_seq_max = streams
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn = FLASH_ATTENTION[variant.split()[1]]
        context = self.lib.llama_init_from_model(self._model, params)
        if not context:
            raise NotSupportedError(f"no context for {streams} streams of {tokens_each} tokens with {variant}")
        return context

    def cut(self, context: Any, stream: int, tokens: int) -> None:
        if not self.lib._lib.llama_kv_cache_seq_rm(context, stream, tokens, -1):
            raise SystemExit(f"ik_llama.cpp can't cut stream {stream} to {tokens} tokens")

    def synchronize(self, context: Any) -> None:
        self.lib._lib.llama_synchronize(context)


def main() -> None:
    options = parse_process_options()
    answers = take_stdout()
    engine = IkLlamaCpp(options.model, options.threads, options.clock)
    serve(engine.about(), engine.measure, answers)


if __name__ == "__main__":
    main()
