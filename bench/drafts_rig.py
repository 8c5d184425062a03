"""An engine that answers with drafts and without, in turns, for `redoubt bench drafts`.

Knows no model and no option.
"""

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from app.engine.engine import Engine
from app.engine.generation import Event, Generation
from app.engine.model_runner import Batch, ModelRunner
from app.engine.native_runner import NativeRunner
from app.engine.speculative.draft_source import DraftSource, DraftToken
from app.messages.failures import EngineError
from app.messages.requests import GenerateRequest, SamplingParams

Prompts = Sequence[tuple[int, ...]]
Texts = tuple[tuple[int, ...], ...]


class _Around:
    """Something of the engine's around another one, which does what a subclass does not."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class RatedDrafts(_Around):
    """Drafts that are right as often as wanted: another source computes them, and they are replaced."""

    def __init__(
        self, source: DraftSource, rate: float, texts: Mapping[tuple[int, ...], tuple[int, ...]], vocab_size: int
    ) -> None:
        """texts: what the target says, by prompt. vocab_size: of both models, the smaller one."""
        super().__init__(source)
        self.most_tokens = source.most_tokens
        self._rate = rate
        self._texts = texts
        self._vocab_size = vocab_size
        self._random = Random(11)

    def draft(self, generations: Sequence[Generation]) -> list[DraftToken | None]:
        """As `DraftSource.draft`."""
        drafts: list[DraftToken | None] = []
        for generation, draft in zip(generations, self._inner.draft(generations), strict=True):
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
class Spent:
    """What drafts took, from a run's begin to its end."""

    drafting_s: float = 0.0
    following_s: float = 0.0
    """Of reading what the source lagged behind, as a prompt."""
    steps: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Steps of the target with draft tokens, by their rows without them and with them."""

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.drafting_s + other.drafting_s, self.following_s + other.following_s, self.steps + other.steps)


class _CountedDrafts(_Around):
    """A `DraftSource` whose times are counted."""

    def __init__(self, source: DraftSource | _Around, rig: "Rig") -> None:
        super().__init__(source)
        self.most_tokens = source.most_tokens
        self._rig = rig

    def follow(self, generation: Generation, tokens: int) -> None:
        """As `DraftSource.follow`."""
        began_s = time.perf_counter()
        self._inner.follow(generation, tokens)
        self._rig.spent += Spent(following_s=time.perf_counter() - began_s)

    def draft(self, generations: Sequence[Generation]) -> list[DraftToken | None]:
        """As `DraftSource.draft`."""
        began_s = time.perf_counter()
        drafts: list[DraftToken | None] = self._inner.draft(generations)
        self._rig.spent += Spent(drafting_s=time.perf_counter() - began_s)
        return drafts


class _CountedSteps(_Around):
    """A `ModelRunner` whose steps with draft tokens are counted."""

    def __init__(self, runner: NativeRunner, rig: "Rig") -> None:
        super().__init__(runner)
        self._rig = rig

    def step(self, batch: Batch) -> NDArray[np.int32] | None:
        """As `ModelRunner.step`."""
        drafted = 0 if batch.draft_lengths is None else int(batch.draft_lengths.sum())
        if drafted:
            rows = len(batch.token_ids)
            self._rig.spent += Spent(steps=Counter({(rows - drafted, rows): 1}))
        sampled: NDArray[np.int32] | None = self._inner.step(batch)
        return sampled


@dataclass(frozen=True, slots=True)
class Run:
    """One run of several requests at once."""

    made: int
    """Tokens after the first ones."""
    seconds: float
    """That they took."""
    prompts_s: float
    """Until all had their first token: nothing is drafted in that time, but a source may read the prompts."""
    texts: Texts
    steps: int
    drafted: int
    right: int
    spent: Spent

    @property
    def whole_s(self) -> float:
        return self.prompts_s + self.seconds

    @property
    def tokens_per_s(self) -> float:
        return self.made / self.seconds


class Rig:
    """One engine, with a source of drafts or none; it may be kept from drafting request by request."""

    def __init__(self, target: NativeRunner, drafts: DraftSource | _Around | None) -> None:
        self.spent = Spent()
        self._drafts = None if drafts is None else _CountedDrafts(drafts, self)
        self._engine = Engine(
            cast("ModelRunner", _CountedSteps(target, self)),
            drafts=cast("DraftSource | None", self._drafts),
            prompt_chunk_tokens=512,
        )
        self._engine.start()
        self._number = 0

    def let_draft(self, most_tokens: int) -> None:
        """The most tokens that are drafted at once."""
        assert self._drafts is not None
        self._drafts.most_tokens = most_tokens

    def run(self, prompts: Prompts, new_tokens: int, *, drafts: bool, temperature: float = 0.0) -> Run:
        """Runs all of them at once. The speed is that of decoding: from when all have their first token.

        Each run is of another user, so that neither model finds the prompts in its cache.
        """
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

        self.spent = Spent()  # the engine is idle
        before = self._engine.statistics()
        tenant = f"run {self._number}".encode()
        submitted_s = time.perf_counter()
        for key, prompt in enumerate(prompts):
            self._number += 1
            sampling = SamplingParams(temperature=temperature, seed=key)
            request = GenerateRequest(f"{self._number}", prompt, new_tokens, sampling, tenant=tenant, may_draft=drafts)
            self._engine.submit(request, deliver, key)
        done.wait()
        if errors:
            raise errors[0]
        time.sleep(0.05)  # the last step is counted after its events
        after = self._engine.statistics()
        return Run(
            sum(map(len, outputs)) - tokens_then,
            ended_s - began_s,
            began_s - submitted_s,
            tuple(map(tuple, outputs)),
            after.steps - before.steps,
            after.drafted_tokens - before.drafted_tokens,
            after.accepted_tokens - before.accepted_tokens,
            self.spent,
        )

    def close(self) -> None:
        self._engine.stop()


def joined(runs: Sequence[Run]) -> Run:
    """Runs one after the other."""
    return Run(
        sum(run.made for run in runs),
        sum(run.seconds for run in runs),
        sum(run.prompts_s for run in runs),
        tuple(text for run in runs for text in run.texts),
        sum(run.steps for run in runs),
        sum(run.drafted for run in runs),
        sum(run.right for run in runs),
        sum((run.spent for run in runs), Spent()),
    )


def counted(
    run: Run, streams: int, step_s: Mapping[str, float], without_s: Mapping[str, float] | None = None
) -> dict[str, float]:
    """The ratio of the whole time from what was counted, in which is no noise of single runs: seconds, and the ratio.

    step_s: seconds of the target's steps by rows. without_s: those of the target loaded without the layer that drafts,
    which adds to every step; None: it drafts in other ways. A right draft saves its share of a step without drafts.
    """
    without_s = without_s or step_s
    steps = run.spent.steps.items()
    rows_s = sum(many * max(_at(step_s, rows) - _at(step_s, alone), 0.0) for (alone, rows), many in steps)
    layer_s = run.steps * max(_at(step_s, streams) - _at(without_s, streams), 0.0)
    saved_s = run.right * _at(without_s, streams) / streams
    lost_s = run.spent.drafting_s + run.spent.following_s + rows_s + layer_s
    parts = {
        "drafting_s": run.spent.drafting_s,
        "following_s": run.spent.following_s,
        "rows_s": rows_s,
        "layer_s": layer_s,
        "saved_s": saved_s,
        "whole_s": run.whole_s,
    }
    found = {name: round(value, 4) for name, value in parts.items()}
    shares = {"lost_share": lost_s / run.whole_s, "ratio": 1 - (lost_s - saved_s) / run.whole_s}
    return found | {name: round(value, 4) for name, value in shares.items()}


def _at(step_s: Mapping[str, float], rows: int) -> float:
    """Seconds at a number of rows, on straight lines between those measured and beyond the last ones."""
    known = sorted((int(name), seconds) for name, seconds in step_s.items())
    (low, low_s), (high, high_s) = next((pair for pair in pairwise(known) if rows <= pair[1][0]), known[-2:])
    return low_s + (high_s - low_s) * (rows - low) / (high - low)


_WARM_UP_TOKENS = 96


def compared(
    rig: Rig,
    most_tokens: int,
    groups: Sequence[Prompts],
    new_tokens: int,
    rounds: int,
    step_s: Mapping[str, float],
    *,
    temperature: float = 0.0,
    depths: Sequence[int] = (),
    base: Rig | None = None,
    without_s: Mapping[str, float] | None = None,
    beside: Callable[[], None] | None = None,
) -> list[dict[str, Any]]:
    """Runs without and with drafts in turns, one group after another; step times are learned in a run before.

    groups: of prompts that are answered at the same time. step_s, without_s: as for `counted`. depths: the most tokens
    at once, beside `most_tokens`: each is a run of every round, and an entry of the result. base: runs without drafts,
    where `rig`'s model computes more than they need; None: `rig`. beside: done in every round too. Raises RuntimeError
    if a text is another one with drafts.
    """
    most = (most_tokens, *depths)

    def run(tokens: int, new_tokens: int = new_tokens) -> Run:
        if not tokens:
            return joined(
                [(base or rig).run(group, new_tokens, drafts=False, temperature=temperature) for group in groups]
            )
        rig.let_draft(tokens)
        return joined([rig.run(group, new_tokens, drafts=True, temperature=temperature) for group in groups])

    run(most[0], min(new_tokens, _WARM_UP_TOKENS))
    kinds = (0, *most)
    turns: list[dict[int, Run]] = []
    for number in range(rounds):
        first = number % len(kinds)
        turns.append({tokens: run(tokens) for tokens in (*kinds[first:], *kinds[:first])})
        if beside is not None:
            beside()
    if any(one.texts != turn[0].texts for turn in turns for one in turn.values()):
        raise RuntimeError("drafts changed a text")
    streams = max(map(len, groups))
    return [_entry(turns, tokens, lambda run: counted(run, streams, step_s, without_s)) for tokens in most]


def _entry(turns: Sequence[Mapping[int, Run]], tokens: int, count: Callable[[Run], dict[str, float]]) -> dict[str, Any]:
    """The result of drafts of at most so many tokens at once; its counts are of all rounds together."""
    without, with_drafts = [turn[0] for turn in turns], [turn[tokens] for turn in turns]
    ratios = sorted(b.tokens_per_s / a.tokens_per_s for a, b in zip(without, with_drafts, strict=True))
    prompts = sorted(a.prompts_s / b.prompts_s for a, b in zip(without, with_drafts, strict=True))
    total = joined(with_drafts)
    return {
        "most_tokens": tokens,
        "tokens_per_s_without": round(statistics.median(one.tokens_per_s for one in without), 2),
        "tokens_per_s_with": round(statistics.median(one.tokens_per_s for one in with_drafts), 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "whole_ratio": round(
            statistics.median(a.whole_s / b.whole_s for a, b in zip(without, with_drafts, strict=True)), 3
        ),
        "prompts_s_without": round(statistics.median(one.prompts_s for one in without), 3),
        "prompt_ratio": round(statistics.median(prompts), 3),
        "prompt_ratios": [round(ratio, 3) for ratio in prompts],
        "steps": total.steps,
        "drafted": total.drafted,
        "right": total.right,
        "counted": count(total),
    }
