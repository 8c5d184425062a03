"""OpenVINO GenAI: reads the GGUF, several prompts in one call as a padded batch.

Computes in f32 (a hint), and also in bf16 where the processor supports it; the faster one at a work counts. Each needs
a pipeline of its own: where memory is short, bf16 is the only one, and the settings say so.

Its own times are used, of the first token and between later ones, so that no time of Python is included.
"""

import random
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.peers import Peer, parse_process_options
from bench.work import CLOCKS, About, NotSupportedError, Work, serve, take_stdout


def precisions() -> tuple[str, ...]:
    """The precision hints that this machine supports, the faster one first."""
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    return ("bf16", "f32") if {"amx_bf16", "avx512_bf16"} & set(flags.split()) else ("f32",)


MEMORY_PER_FILE_BYTE = 3.2
"""The most memory of a pipeline, while it loads, for a byte of its GGUF."""


PEER = Peer(
    name="openvino_genai",
    steps=(("openvino-genai==2026.4.1.0",),),
    reads="gguf",
    memory_per_weight_bytes=1.95,  # one pipeline; another is loaded where there is room
)


class OpenVino:
    """A pipeline over a GGUF, for each precision."""

    def __init__(self, model: str, threads: int, clock: str, memory_bytes: int | None) -> None:
        """Loads the file; for each precision, unless that would take more memory than memory_bytes."""
        if clock != "wall":
            raise SystemExit("OpenVINO's own times are of the wall clock")
        self._genai: Any = import_module("openvino_genai")  # in the peer's environment only
        self._np: Any = import_module("numpy")
        self._tensor: Any = import_module("openvino").Tensor
        now_s = CLOCKS[clock]
        began = now_s()
        self._pipelines: dict[str, Any] = {}
        needed = Path(model).stat().st_size * MEMORY_PER_FILE_BYTE
        for number, precision in enumerate(precisions(), start=1):
            if number == 1 or memory_bytes is None or number * needed <= memory_bytes:
                self._pipelines[precision] = self._genai.LLMPipeline(
                    model,
                    "CPU",
                    INFERENCE_NUM_THREADS=threads,
                    INFERENCE_PRECISION_HINT=precision,
                    PERFORMANCE_HINT="LATENCY",
                )
        self.load_s = (now_s() - began) / len(self._pipelines)
        self._threads = threads
        self._random = random.Random(7)

    def about(self) -> About:
        hints = " or ".join(self._pipelines)
        return About(
            version=f"openvino-genai {version('openvino-genai')}",
            settings=f"threads {self._threads}, INFERENCE_PRECISION_HINT {hints}, the GGUF's weights",
            variants=tuple(self._pipelines),
            load_s=self.load_s,
        )

    def measure(self, work: Work, variant: str) -> float:
        """Seconds of a prompt until its first token, or of the steps after the second token."""
        warm_up = 2  # steps before the clock runs
        new_tokens = 1 if work.kind == "prefill" else work.new_tokens + warm_up
        shape = (work.streams, work.context_tokens)
        ids = [[self._random.randrange(16, 30000) for _ in range(shape[1])] for _ in range(shape[0])]
        mask = self._np.ones(shape, self._np.int64)
        inputs = self._genai.TokenizedInputs(self._tensor(self._np.array(ids, self._np.int64)), self._tensor(mask))
        settings = self._genai.GenerationConfig(max_new_tokens=new_tokens, ignore_eos=True, do_sample=False)
        settings.eos_token_id = -1
        try:
            result = self._pipelines[variant].generate(inputs, settings)
        except RuntimeError as error:
            raise NotSupportedError(f"{error}"[:300]) from error
        if work.kind == "prefill":
            return float(result.perf_metrics.get_ttft().mean) / 1000
        times_s = [float(ms) / 1000 for ms in result.perf_metrics.raw_metrics.m_new_token_times]
        if len(times_s) != new_tokens:
            raise NotSupportedError(f"made {len(times_s)} steps instead of {new_tokens}")
        return times_s[-1] - times_s[-1 - work.new_tokens]


def main() -> None:
    options = parse_process_options()
    answers = take_stdout()
    engine = OpenVino(options.model, options.threads, options.clock, options.memory_bytes)
    serve(engine.about(), engine.measure, answers)


if __name__ == "__main__":
    main()
