"""llama.cpp, through llama-cpp-python's bindings, built natively for this machine.

The clock runs only in `llama_decode`, one call per step with ready arrays, so nothing of Python is measured; nor is
sampling: random tokens are fed, which is to its advantage. Each variant of attention and KV layout is tried.
"""

import argparse
import random
from collections.abc import Sequence
from importlib import import_module
from itertools import product
from typing import Any

from bench.peers import Peer
from bench.work import CLOCKS, About, Work, serve

PEER = Peer(
    name="llama_cpp",
    requirements=("llama-cpp-python==0.3.36",),
    pip_options=("--no-binary", "llama-cpp-python"),
    build_environment={"CMAKE_ARGS": "-DGGML_NATIVE=ON"},
)

BATCH_TOKENS = 512
FLASH_ATTENTION = {"flash_attention=off": 0, "flash_attention=on": 1}
UNIFIED_KV = {"kv=split": False, "kv=unified": True}


class LlamaCpp:
    """A model, and a fresh context for each measurement, sized for it."""

    def __init__(self, model: str, threads: int, clock: str) -> None:
        """Loads a GGUF file."""
        self._lib: Any = import_module("llama_cpp")  # in the peer's environment only
        self._threads = threads
        self._now_s = CLOCKS[clock]
        self._lib.llama_backend_init()
        self._silence = self._lib.llama_log_callback(lambda level, text, data: None)
        self._lib.llama_log_set(self._silence, None)
        began = self._now_s()
        self._model = self._lib.llama_model_load_from_file(model.encode(), self._lib.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp can't load {model}")
        self.load_s = self._now_s() - began
        self._vocab_size = self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(self._model))
        self._random = random.Random(7)

    def about(self) -> About:
        """Its version and what it was built for."""
        system = self._lib.llama_print_system_info().decode()
        return About(
            version=f"llama-cpp-python {self._lib.__version__}",
            settings=f"threads {self._threads}, n_batch and n_ubatch {BATCH_TOKENS}, f16 KV; {system}",
            variants=tuple(f"{flash} {kv}" for flash, kv in product(FLASH_ATTENTION, UNIFIED_KV)),
            load_s=self.load_s,
        )

    def measure(self, work: Work, variant: str) -> float:
        """Seconds for the work alone: a prompt, or the decoding after prompts that are not counted."""
        context = self._make_context(work, variant)
        batch = self._lib.llama_batch_init(BATCH_TOKENS, 0, 1)
        try:
            if work.kind == "prefill":
                self._prefill(context, batch, 0, work.context_tokens)  # warm-up: allocates and wakes the threads
                self._lib.llama_memory_clear(self._lib.llama_get_memory(context), True)
                return self._prefill(context, batch, 0, work.context_tokens)
            for stream in range(work.streams):
                self._prefill(context, batch, stream, work.context_tokens)
            self._decode(context, batch, work.streams, work.context_tokens)  # warm-up
            first = work.context_tokens + 1
            return sum(self._decode(context, batch, work.streams, first + n) for n in range(work.new_tokens))
        finally:
            self._lib.llama_batch_free(batch)
            self._lib.llama_free(context)

    def _make_context(self, work: Work, variant: str) -> Any:
        flash, kv = variant.split()
        params = self._lib.llama_context_default_params()
        tokens_each = work.context_tokens + work.new_tokens + 1
        params.n_ctx = work.streams * -(-tokens_each // 256) * 256
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_seq_max = work.streams
        params.n_threads = params.n_threads_batch = self._threads
        params.flash_attn_type = FLASH_ATTENTION[flash]
        params.kv_unified = UNIFIED_KV[kv]
        params.no_perf = True
        context = self._lib.llama_init_from_model(self._model, params)
        if not context:
            raise SystemExit(f"llama.cpp makes no context for {work} with {variant}")
        return context

    def _prefill(self, context: Any, batch: Any, stream: int, tokens: int) -> float:
        return sum(
            self._run(context, batch, [(stream, position) for position in range(begin, end)], end == tokens)
            for begin in range(0, tokens, BATCH_TOKENS)
            for end in [min(begin + BATCH_TOKENS, tokens)]
        )

    def _decode(self, context: Any, batch: Any, streams: int, position: int) -> float:
        return sum(
            self._run(context, batch, [(stream, position) for stream in range(begin, end)], None)
            for begin in range(0, streams, BATCH_TOKENS)
            for end in [min(begin + BATCH_TOKENS, streams)]
        )

    def _run(self, context: Any, batch: Any, places: Sequence[tuple[int, int]], last_logits: bool | None) -> float:
        """One call for tokens at (stream, position); logits of all of them (None), of the last one, or of none."""
        batch.n_tokens = len(places)
        for index, (stream, position) in enumerate(places):
            batch.token[index] = self._random.randrange(self._vocab_size)
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = stream
            batch.logits[index] = last_logits is None or (last_logits and index == len(places) - 1)
        began = self._now_s()
        status = self._lib.llama_decode(context, batch)
        self._lib.llama_synchronize(context)
        seconds = self._now_s() - began
        if status != 0:
            raise SystemExit(f"llama_decode returned {status}")
        return seconds


def main() -> None:
    """The process: `python -m bench.peers.llama_cpp MODEL.gguf --threads N`, in the peer's environment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    options = parser.parse_args()
    engine = LlamaCpp(options.model, options.threads, options.clock)
    serve(engine.about(), engine.measure)


if __name__ == "__main__":
    main()
