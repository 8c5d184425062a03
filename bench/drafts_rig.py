"""An engine that answers with drafts and without, in turns, for `redoubt bench drafts`.

Knows no model and no option.
"""

import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from app.engine.engine import Engine
from app.engine.generation import Event, Generation
from app.engine.native_runner import NativeRunner
from app.engine.speculative.draft_source import DraftSource, DraftToken
from app.messages.failures import EngineError
from app.messages.requests import GenerateRequest, SamplingParams

Prompts = Sequence[tuple[int, ...]]
Texts = tuple[tuple[int, ...], ...]


class RatedDrafts:
    """A `DraftSource` whose drafts are right as often as wanted: another one computes them, and they are replaced."""

    def __init__(
        self, source: DraftSource, rate: float, texts: Mapping[tuple[int, ...], tuple[int, ...]], vocab_size: int
    ) -> None:
        """texts: what the target says, by prompt. vocab_size: of both models, the smaller one."""
        self.kind, self.most_tokens, self.cost_share = source.kind, source.most_tokens, source.cost_share
        self.lag, self.follow = source.lag, source.follow
        self.forget, self.clear, self.release_memory = source.forget, source.clear, source.release_memory
        self._source = source
        self._rate = rate
        self._texts = texts
        self._vocab_size = vocab_size
        self._random = Random(11)

    def draft(self, generations: Sequence[Generation]) -> list[DraftToken | None]:
        """As `DraftSource.draft`."""
        drafts: list[DraftToken | None] = []
        for generation, draft in zip(generations, self._source.draft(generations), strict=True):
            prompt = generation.request.prompt_token_ids
            place = len(generation.tokens) + len(generation.draft_tokens) - len(prompt)
            text = self._texts[prompt]
            if draft is None or place >= len(text):
                drafts.append(draft)
                continue
            token = text[place]
            if self._random.random() >= self._rate:
                token = (token + 1) % self._vocab_size
            drafts.append(DraftToken(token, self._rate))
        return drafts


@dataclass(frozen=True, slots=True)
class Run:
    """One run of several requests at once."""

    made: int
    """Tokens after the first ones."""
    tokens_per_s: float
    texts: Texts
    steps: int
    drafted: int
    right: int


class Rig:
    """One engine with a source of drafts, which may be kept from drafting request by request."""

    def __init__(self, target: NativeRunner, drafts: DraftSource) -> None:
        self._engine = Engine(target, drafts=drafts, prompt_chunk_tokens=512)
        self._engine.start()
        self._number = 0

    def run(self, prompts: Prompts, new_tokens: int, *, drafts: bool, temperature: float = 0.0) -> Run:
        """Runs all of them at once. The speed is that of decoding: from when all have their first token."""
        outputs: list[list[int]] = [[] for _ in prompts]
        left = len(prompts)
        began_s = ended_s = 0.0
        tokens_then = 0
        done = threading.Event()
        errors: list[EngineError] = []

        def deliver(events: Sequence[tuple[object, Event]]) -> None:
            nonlocal left, began_s, ended_s, tokens_then
            for key, event in events:
                assert isinstance(key, int)
                if isinstance(event, EngineError):
                    errors.append(event)
                    left -= 1
                    continue
                outputs[key] += event.token_ids
                left -= event.finish_reason is not None
            if not began_s and all(outputs):
                began_s, tokens_then = time.perf_counter(), sum(map(len, outputs))
            if not left:
                ended_s = time.perf_counter()
                done.set()

        before = self._engine.statistics()
        for key, prompt in enumerate(prompts):
            self._number += 1
            sampling = SamplingParams(temperature=temperature, seed=key)
            request = GenerateRequest(f"{self._number}", prompt, new_tokens, sampling, tenant=b"", may_draft=drafts)
            self._engine.submit(request, deliver, key)
        done.wait()
        if errors:
            raise errors[0]
        time.sleep(0.05)  # the last step is counted after its events
        after = self._engine.statistics()
        made = sum(map(len, outputs)) - tokens_then
        return Run(
            made,
            made / (ended_s - began_s),
            tuple(map(tuple, outputs)),
            after.steps - before.steps,
            after.drafted_tokens - before.drafted_tokens,
            after.accepted_tokens - before.accepted_tokens,
        )

    def close(self) -> None:
        self._engine.stop()


def joined(runs: Sequence[Run]) -> Run:
    """Runs one after the other."""
    made = sum(run.made for run in runs)
    return Run(
        made,
        made / sum(run.made / run.tokens_per_s for run in runs),
        tuple(text for run in runs for text in run.texts),
        *(sum(counts) for counts in zip(*((run.steps, run.drafted, run.right) for run in runs), strict=True)),
    )


def compared(
    rig: Rig,
    source: DraftSource,
    groups: Sequence[Prompts],
    new_tokens: int,
    rounds: int,
    temperature: float = 0.0,
    depths: Sequence[int] = (),
) -> list[dict[str, Any]]:
    """Runs without and with drafts in turns, one group after another; step times are learned in a run before.

    groups: of prompts that are answered at the same time. depths: the most tokens at once, beside what `source` has:
    each is a run of every round, and an entry of the result.
    """
    most = (source.most_tokens, *depths)

    def run(tokens: int) -> Run:
        source.most_tokens = tokens or most[0]
        return joined([rig.run(group, new_tokens, drafts=tokens > 0, temperature=temperature) for group in groups])

    run(most[0])
    turns = [[run(tokens) for tokens in (0, *most)] for _ in range(rounds)]
    assert all(one.texts == turn[0].texts for turn in turns for one in turn), "drafts changed a text"
    without = statistics.median(turn[0].tokens_per_s for turn in turns)
    found = []
    for number, tokens in enumerate(most, start=1):
        ratios = sorted(turn[number].tokens_per_s / turn[0].tokens_per_s for turn in turns)
        last = turns[-1][number]
        found.append(
            {
                "most_tokens": tokens,
                "tokens_per_s_without": round(without, 2),
                "tokens_per_s_with": round(statistics.median(turn[number].tokens_per_s for turn in turns), 2),
                "ratio": round(statistics.median(ratios), 3),
                "ratios": [round(ratio, 3) for ratio in ratios],
                "steps": last.steps,
                "drafted": last.drafted,
                "right": last.right,
            }
        )
    return found
