"""llama.cpp, through llama-cpp-python's bindings, built natively for this machine.

Each variant of attention and KV layout is tried.
"""

from importlib import import_module
from itertools import product
from typing import Any

from bench.peers import Peer, parse_process_options
from bench.peers.llama_family import BATCH_TOKENS, LlamaFamily
from bench.work import About, NotSupportedError, serve, take_stdout

PEER = Peer(
    name="llama_cpp",
    steps=(("--no-binary", "llama-cpp-python", "llama-cpp-python==0.3.36"),),
    reads="gguf",
    memory_per_weight_bytes=1.2,  # the file's pages, and its own repacked copy
    environment={"CMAKE_ARGS": "-DGGML_NATIVE=ON"},
)

FLASH_ATTENTION = {"flash_attention=off": 0, "flash_attention=on": 1}
UNIFIED_KV = {"kv=split": False, "kv=unified": True}


class LlamaCpp(LlamaFamily):
    """A GGUF model in llama.cpp."""

    def __init__(self, model: str, threads: int, clock: str) -> None:
        lib: Any = import_module("llama_cpp")  # in the peer's environment only
        super().__init__(lib, threads, clock)
        lib.llama_backend_init()
        self._quiet = lib.llama_log_callback(lambda level, text, data: None)
        lib.llama_log_set(self._quiet, None)
        began = self.now_s()
        self._model = lib.llama_model_load_from_file(model.encode(), lib.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp can't load {model}")
        self.load_s = self.now_s() - began
        self.vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))

    def about(self) -> About:
        """Version and build."""
        system = self.lib.llama_print_system_info().decode()
        return About(
            version=f"llama-cpp-python {self.lib.__version__}",
            settings=f"threads {self.threads}, n_batch and n_ubatch {BATCH_TOKENS}, f16 KV; {system}",
            variants=tuple(f"{flash} {kv}" for flash, kv in product(FLASH_ATTENTION, UNIFIED_KV)),
            load_s=self.load_s,
        )

    def make_context(self, streams: int, tokens_each: int, variant: str) -> Any:
        flash, kv = variant.split()
        if streams == 1 and not UNIFIED_KV[kv]:
            raise NotSupportedError("one stream has one KV layout")
        params = self.lib.llama_context_default_params()
        params.n_ctx = streams * -(-tokens_each // 256) * 256
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_seq_max = streams
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = FLASH_ATTENTION[flash]
        params.kv_unified = UNIFIED_KV[kv]
        params.no_perf = True
        context = self.lib.llama_init_from_model(self._model, params)
        if not context:
            raise NotSupportedError(f"no context for {streams} streams of {tokens_each} tokens with {variant}")
        return context

    def cut(self, context: Any, stream: int, tokens: int) -> None:
        if not self.lib.llama_memory_seq_rm(self.lib.llama_get_memory(context), stream, tokens, -1):
            raise SystemExit(f"llama.cpp can't cut stream {stream} to {tokens} tokens")

    def synchronize(self, context: Any) -> None:
        self.lib.llama_synchronize(context)


def main() -> None:
    options = parse_process_options()
    answers = take_stdout()
    engine = LlamaCpp(options.model, options.threads, options.clock)
    serve(engine.about(), engine.measure, answers)


if __name__ == "__main__":
    main()
