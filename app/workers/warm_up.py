"""Warms an engine up and measures its speed, so that the first user's request is as fast as the tenth.

The first pass touches every page of the weights and every buffer; later passes are timed. Knows the engine only,
nothing of Ray.
"""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from app.engine.engine import Engine
from app.engine.generation import Event
from app.messages.failures import EngineError
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest, SamplingParams

_TIMED_PASSES = 2


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Measurements of the best timed pass of one request alone."""

    speed: float
    """Tokens per second, prompt and output together."""
    prompt_tokens: int
    prompt_s: float
    """Time from its submission to its first token."""
    token_s: float
    """Average time between two steps, without drafts."""


def warm_up(
    engine: Engine,
    *,
    vocab_size: int,
    prompt_tokens: int,
    new_tokens: int,
    concurrent: int,
    first_prompt_tokens: int = 0,
    timeout_s: float = 600.0,
) -> WarmUp:
    """Returns the engine's speed with one request alone.

    engine: must be started.
    concurrent: this many requests at once are run too, untimed, to warm up batches; together they have about
        `prompt_tokens`.
    first_prompt_tokens: prompt length of the first pass, if longer: enough that every expert is read.
    timeout_s: limit of each pass.

    Prompts are random and all different, so that no cached page is used. Raises EngineError if a request fails,
    TimeoutError.
    """
    rng = random.Random(0)

    def requests(count: int, tokens: int = prompt_tokens, *, may_draft: bool = True) -> list[GenerateRequest]:
        each = max(1, tokens // count)
        return [_request(rng, vocab_size, each, new_tokens, may_draft) for _ in range(count)]

    _seconds_of(engine, requests(1, max(prompt_tokens, first_prompt_tokens)), timeout_s)
    if concurrent > 1:
        _seconds_of(engine, requests(concurrent), timeout_s)
    passes = (requests(1, may_draft=False) for _ in range(_TIMED_PASSES))
    best_s, first_s, steps = min(_seconds_of(engine, made, timeout_s) for made in passes)
    engine.forget_draft_chances()
    return WarmUp(
        speed=(prompt_tokens + new_tokens) / best_s,
        prompt_tokens=prompt_tokens,
        prompt_s=first_s,
        token_s=(best_s - first_s) / max(1, steps - 1),
    )


def _request(
    rng: random.Random, vocab_size: int, prompt_tokens: int, new_tokens: int, may_draft: bool
) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"warm-up-{rng.getrandbits(64):016x}",
        prompt_token_ids=tuple(rng.randrange(vocab_size) for _ in range(prompt_tokens)),
        max_new_tokens=new_tokens,
        sampling=SamplingParams(temperature=0.0),
        tenant=b"warm-up",
        may_draft=may_draft,
    )


def _seconds_of(engine: Engine, requests: Sequence[GenerateRequest], timeout_s: float) -> tuple[float, float, int]:
    """Runs the requests at once.

    Returns the seconds until all have ended, those until the first token of any, and the steps that made tokens.
    """
    left = {request.request_id for request in requests}
    errors: list[EngineError] = []
    token_times_s: list[float] = []
    done = threading.Event()

    def deliver(events: Sequence[tuple[object, Event]]) -> None:
        if any(isinstance(event, TokenDelta) and event.token_ids for _, event in events):
            token_times_s.append(time.perf_counter())
        for key, event in events:
            if isinstance(event, EngineError):
                errors.append(event)
            elif event.finish_reason is None:
                continue
            left.discard(str(key))
        if not left or errors:
            done.set()

    start_s = time.perf_counter()
    for request in requests:
        engine.submit(request, deliver, request.request_id)
    if not done.wait(timeout_s):
        raise TimeoutError(f"the warm-up did not finish within {timeout_s} s")
    if errors:
        raise errors[0]
    end_s = time.perf_counter()
    first_s = token_times_s[0] if token_times_s else end_s
    return end_s - start_s, first_s - start_s, len(token_times_s)
