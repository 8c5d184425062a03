"""IPEX-LLM: sym_int4 weights made at load, transformers' modules with its int4 linear layers, driven step by step.

The model is called as transformers' `generate` calls it, without sampling: a prompt, then one token a stream and step
with the previous keys and values. Several streams are one batch of equal lengths. The package is unmaintained and does
not work with newer versions of torch and transformers than the pinned ones.
"""

import random
from importlib import import_module
from importlib.metadata import version
from os import environ
from typing import Any

from bench.peers import Peer, parse_process_options
from bench.work import CLOCKS, About, Work, serve, take_stdout

VERSION = "2.2.0"

PEER = Peer(
    name="ipex_llm",
    steps=(
        (
            *("torch==2.13.0", "transformers==4.37.0", "tokenizers==0.15.2", "accelerate==0.23.0", "numpy==1.26.4"),
            *("sentencepiece", "protobuf", "py-cpuinfo", "intel-openmp", "setuptools<81"),
        ),
        ("--no-deps", f"ipex-llm=={VERSION}"),
    ),
    reads="hf",
    memory_per_weight_bytes=3.0,  # the folder's bf16 while it is quantized
)


class IpexLlm:
    """A folder in bf16, quantized at load."""

    def __init__(self, model: str, threads: int, clock: str) -> None:
        """Loads and quantizes the folder."""
        environ["OMP_NUM_THREADS"] = str(threads)
        environ["HF_HUB_OFFLINE"] = "1"
        self._torch: Any = import_module("torch")
        self._torch.set_num_threads(threads)
        transformers: Any = import_module("ipex_llm.transformers")  # in the peer's environment only
        self._now_s = CLOCKS[clock]
        self._threads = threads
        began = self._now_s()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, load_in_4bit=True, optimize_model=True)
        self.load_s = self._now_s() - began
        self._vocab_size = self._model.config.vocab_size
        self._random = random.Random(7)

    def about(self) -> About:
        return About(
            version=f"ipex-llm {VERSION}, torch {version('torch')}, transformers {version('transformers')}",
            settings=f"threads {self._threads}, load_in_4bit (sym_int4), optimize_model",
            variants=("",),
            load_s=self.load_s,
        )

    def measure(self, work: Work, variant: str) -> float:
        """Seconds of a prompt until its logits, or of the steps after a prompt that is not counted."""
        with self._torch.inference_mode():
            began = self._now_s()
            output = self._model(input_ids=self._tokens(work.streams, work.context_tokens), use_cache=True)
            if work.kind == "prefill":
                return self._now_s() - began
            output = self._step(work.streams, output)  # warm-up
            began = self._now_s()
            for _ in range(work.new_tokens):
                output = self._step(work.streams, output)
            return self._now_s() - began

    def _step(self, streams: int, before: Any) -> Any:
        tokens = self._tokens(streams, 1)
        return self._model(input_ids=tokens, past_key_values=before.past_key_values, use_cache=True)

    def _tokens(self, streams: int, length: int) -> Any:
        ids = [[self._random.randrange(self._vocab_size) for _ in range(length)] for _ in range(streams)]
        return self._torch.tensor(ids)


def main() -> None:
    options = parse_process_options()
    answers = take_stdout()
    engine = IpexLlm(options.model, options.threads, options.clock)
    serve(engine.about(), engine.measure, answers)


if __name__ == "__main__":
    main()
