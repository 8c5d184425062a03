"""What tests of native models under the engine share: requests, their outputs, and a conversation's second turn.

Knows nothing of how an engine was made.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from random import Random
from threading import Event, Thread

import numpy as np
from numpy.typing import NDArray

from app.engine.engine import Engine
from app.messages.requests import BeamParams, GenerateRequest, SamplingParams
from kernels import _native
from tests.engine.test_engine import Receiver

VOCABULARY = 96
GREEDY = SamplingParams(temperature=0.0)
PAGE = _native.PAGE_TOKENS

Outputs = dict[str, tuple[int, ...]]
"""Token ids, by the requests' names."""


def made_text(tokens: int) -> list[int]:
    """The longer one begins with the shorter one."""
    return Random(3).choices(range(VOCABULARY), k=tokens)


def requests_of_lengths(lengths: Sequence[int]) -> list[GenerateRequest]:
    """Prompts that begin alike, answered greedily and by sampling in turns, and one whose answers are beams."""
    text = made_text(max(lengths))
    requests = []
    for number, length in enumerate(lengths):
        sampling = SamplingParams(temperature=1.0, seed=number) if number % 2 else GREEDY
        requests.append(GenerateRequest(f"{length}", tuple(text[:length]), 90, sampling, tenant=b""))
    beams = BeamParams(3, answers=2)
    return [*requests, GenerateRequest("beams", tuple(text[50:140]), 40, search=beams, tenant=b"")]


class Alternating:
    """A grammar: even tokens and odd ones in turns."""

    def __init__(self, odd: int = 0) -> None:
        self.odd = odd
        self.error: str | None = None

    def fill_mask(self, mask: NDArray[np.uint32]) -> None:
        mask[:] = 0xAAAA_AAAA if self.odd else 0x5555_5555

    def accept(self, token: int) -> None:
        if token % 2 != self.odd:
            self.error = f"{token} can't come here"
        self.odd = 1 - self.odd

    def follows(self, tokens: Sequence[int]) -> int:
        wrong = (place for place, token in enumerate(tokens) if token % 2 != (self.odd + place) % 2)
        return next(wrong, len(tokens))

    def forced(self) -> Sequence[int]:
        return ()

    def copy(self) -> "Alternating":
        return Alternating(self.odd)


def outputs(engine: Engine, requests: Sequence[GenerateRequest], *, alternate: bool = False) -> Outputs:
    """Of requests that are there at once."""
    receiver = Receiver()
    for request in requests:
        receiver.submit(engine, request, Alternating() if alternate else None)
    if not engine.healthy:
        engine.start()  # with all of the first ones there
    return {request.request_id: receiver.tokens(request.request_id) for request in requests}


def outputs_one_by_one(engine: Engine, requests: Sequence[GenerateRequest]) -> Outputs:
    return {name: tokens for request in requests for name, tokens in outputs(engine, [request]).items()}


@contextmanager
def interrupted(engine: Engine) -> Iterator[None]:
    """Interrupts steps of batches at any time, and so at any layer."""
    has_ended = Event()

    def interrupt() -> None:
        random = Random(5)
        while not has_ended.wait(random.random() / 500):
            engine._inbox.interrupt[0] = 1

    thread = Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def check_second_turn(
    behind: int, cached: AbstractContextManager[Engine], uncached: AbstractContextManager[Engine]
) -> None:
    """A first turn that ends before token `behind` is found in the cache by its whole pages, and changes no token."""
    text = tuple(Random(9).choices(range(VOCABULARY), k=200))
    with cached as engine:
        first = GenerateRequest("first", text[:50], behind - 50, GREEDY, tenant=b"")
        said = (*text[:50], *outputs(engine, [first])["first"])
        second = GenerateRequest("second", (*said, *text[100:130]), 40, GREEDY, tenant=b"")
        again = outputs(engine, [second])["second"]
        assert engine.statistics().cached_tokens == (behind - 1) // PAGE * PAGE
    with uncached as engine:
        assert outputs(engine, [second])["second"] == again
