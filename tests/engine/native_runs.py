"""What tests of native models under the engine share: requests, their outputs, and a conversation's second turn.

Knows nothing of how an engine was made.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import zip_longest
from random import Random
from threading import Event, Thread
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.engine.engine import Engine
from app.engine.model_runner import Batch
from app.messages.outputs import TokenDelta, TokenScores
from app.messages.requests import BeamParams, GenerateRequest, SamplingParams
from kernels import _native
from tests.engine.test_engine import Receiver

VOCABULARY = 96
GREEDY = SamplingParams(temperature=0.0)
PAGE = _native.PAGE_TOKENS
_TURNS = tuple(Random(9).choices(range(VOCABULARY), k=200))

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


class Answer(NamedTuple):
    """All that a request gets, to the last bit."""

    tokens: tuple[int, ...]
    scores: tuple[bytes, ...]
    """Of each token, those of the likeliest ones too; none unless they were asked for."""
    finish_reason: str | None


def answer_of(receiver: Receiver, name: str) -> Answer:
    """Waits for it."""
    tokens = receiver.tokens(name)
    parts = [each.scores for each in receiver.events[name] if isinstance(each, TokenDelta) and each.scores is not None]
    scores = TokenScores.joined(parts)
    rows = [] if scores is None else list(zip(scores.logprobs, scores.top_token_ids, scores.top_logprobs, strict=True))
    return Answer(tokens, tuple(b"".join(each.tobytes() for each in row) for row in rows), receiver.finish_reason(name))


def differences(found: Mapping[str, Answer], expected: Mapping[str, Answer]) -> list[str]:
    """Where answers differ, and from which token on."""
    assert found.keys() == expected.keys()
    different = []
    for name, answer in found.items():
        other = expected[name]
        for what, mine, others in (
            ("tokens", answer.tokens, other.tokens),
            ("scores", answer.scores, other.scores),
            ("finish reason", (answer.finish_reason,), (other.finish_reason,)),
        ):
            places = (place for place, (a, b) in enumerate(zip_longest(mine, others)) if a != b)
            if (place := next(places, None)) is not None:
                different.append(f"{name}: {what} from {place} on, of {len(mine)} and {len(others)}")
    return different


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


def first_turn(behind: int) -> GenerateRequest:
    """A request that ends before token `behind`."""
    return GenerateRequest("first", _TURNS[:50], behind - 50, GREEDY, tenant=b"")


def check_second_turn(
    behind: int, cached: AbstractContextManager[Engine], uncached: AbstractContextManager[Engine]
) -> None:
    """A first turn that ends before token `behind` is found in the cache by its whole pages, and changes no token."""
    with cached as engine:
        first = first_turn(behind)
        said = (*first.prompt_token_ids, *outputs(engine, [first])["first"])
        second = GenerateRequest("second", (*said, *_TURNS[100:130]), 40, GREEDY, tenant=b"")
        again = outputs(engine, [second])["second"]
        assert engine.statistics().cached_tokens == (behind - 1) // PAGE * PAGE
    with uncached as engine:
        assert outputs(engine, [second])["second"] == again


def check_aborted_texts(drafting: Engine, plain: Engine) -> None:
    """Texts that were aborted behind any step leave no page with a wrong draft: what goes on behind them is the same.

    drafting: computes prompts and answers alike, to the last bit. plain: without drafts.
    """
    text = tuple(made_text(50))
    whole = outputs(plain, [GenerateRequest("whole", text, 100, GREEDY, tenant=b"")])["whole"]
    runner, receiver = drafting._runner, Receiver()
    computed, left, is_aborted = runner.step, 0, Event()

    def step(batch: Batch) -> NDArray[np.int32] | None:
        nonlocal left
        left -= 1
        if left == 0:
            drafting.abort(aborted)  # once this step is done
            is_aborted.set()
        return computed(batch)

    runner.step = step  # type: ignore[method-assign]
    drafting.start()
    for left in range(7, 27, 2):
        aborted, again, tenant = f"until {left}", f"again {left}", bytes([left])  # no tenant finds another one's pages
        is_aborted.clear()
        receiver.submit(drafting, GenerateRequest(aborted, text, 300, GREEDY, tenant=tenant))
        assert is_aborted.wait(60)
        receiver.submit(drafting, GenerateRequest(again, text + whole[:64], 36, GREEDY, tenant=tenant))
        assert receiver.tokens(again) == whole[64:], again
        assert not receiver.ended(aborted)
    assert drafting.statistics().cached_tokens > 10 * PAGE, "of the answers too"
