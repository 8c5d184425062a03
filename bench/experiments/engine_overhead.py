"""The engine's own time in a step, without the model, by the number of running requests.

The model is replaced by one that returns at once, so that the time of a step is the engine's: intake, scheduling,
arrays, postprocessing and one callback for all requests. Run: `python -m bench.experiments.engine_overhead`; prints one
JSON object with microseconds a step, medians over decode steps.
"""

import json
import statistics
import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.model_runner import (
    Batch,
    CandidateSampler,
    DraftSampler,
    PromptReader,
    StateHistory,
    TokenConstraint,
    TokenSampler,
)
from app.messages.requests import GenerateRequest, SamplingParams

PROMPT_TOKENS = 128
PAGE_TOKENS = 32


class _InstantSampler:
    def remember(self, tokens: Sequence[int]) -> None:
        raise NotImplementedError

    def take_scores(self) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        raise NotImplementedError


class _InstantRunner:
    """Generates token 7 for every sequence and records when each step began."""

    def __init__(self, sequences: int, new_tokens: int) -> None:
        self.vocab_size = 1000
        self.page_tokens = PAGE_TOKENS
        self.max_context_tokens = PROMPT_TOKENS + new_tokens
        self.kv_pages = sequences * (self.max_context_tokens // PAGE_TOKENS + 2)
        self.max_sequences = sequences
        self.max_step_tokens = 512 + sequences
        self.tier = self.arithmetic = "none"
        self.has_relative_positions = True
        self.began_s: list[float] = []
        self.group_windows = (0,)
        self.state_pages = 0
        self.page_tables = np.zeros((1, sequences, self.max_context_tokens // PAGE_TOKENS + 1), np.int32)
        self._tokens = np.full(sequences, 7, np.int32)

    def make_sampler(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> TokenSampler:
        return _InstantSampler()

    def make_draft_sampler(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> DraftSampler:
        raise AssertionError("nothing is drafted")

    def make_candidate_sampler(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams, candidates: int, *, penalizes_logprobs: bool
    ) -> CandidateSampler:
        raise NotImplementedError

    def make_history(self) -> StateHistory:
        raise NotImplementedError

    def copy_page(self, source: int, target: int) -> None:
        raise NotImplementedError

    def copy_state_page(self, source: int, target: int) -> None:
        raise NotImplementedError

    def constrained(self, sampler: TokenSampler, constraint: TokenConstraint) -> TokenSampler:
        raise NotImplementedError

    def make_reader(self, request: GenerateRequest) -> PromptReader | None:
        return None

    def copy_page_turned(self, source: int, target: int, positions: int) -> None:
        raise NotImplementedError

    @property
    def gathered_page_bytes(self) -> int:
        raise NotImplementedError

    def gather_page(self, page: int, out: NDArray[np.uint8]) -> None:
        raise NotImplementedError

    def scatter_page(self, page: int, gathered: NDArray[np.uint8]) -> None:
        raise NotImplementedError

    def clear_page(self, page: int) -> None:
        raise NotImplementedError

    def release_memory(self) -> None:
        raise NotImplementedError

    def step(self, batch: Batch) -> NDArray[np.int32]:
        if len(batch.token_ids) == self.max_sequences:  # all of them decode
            self.began_s.append(time.perf_counter())
        return self._tokens[: len(batch.slots)]


def measure(sequences: int, new_tokens: int = 600) -> float:
    """The median time from the start of one decode step of `sequences` requests to the next, in microseconds."""
    runner = _InstantRunner(sequences, new_tokens)
    engine = Engine(runner)
    left = sequences
    done = threading.Event()

    def deliver(events: Sequence[tuple[object, Event]]) -> None:
        nonlocal left
        for _, event in events:
            if not isinstance(event, Exception) and event.finish_reason is not None:
                left -= 1
        if left == 0:
            done.set()

    for number in range(sequences):
        engine.submit(GenerateRequest(f"{number}", (1,) * PROMPT_TOKENS, new_tokens, tenant=b""), deliver, number)
    engine.start()
    done.wait()
    engine.stop()
    return statistics.median(np.diff(runner.began_s).tolist()) * 1e6


def main() -> None:
    """Prints the measurement at 1, 32 and 256 running requests."""
    step_us = {str(sequences): round(measure(sequences), 1) for sequences in (1, 32, 256)}
    print(json.dumps({"engine_step_us": step_us}))


if __name__ == "__main__":
    main()
