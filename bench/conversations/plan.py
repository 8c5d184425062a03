"""Which conversations are sent, as which requests, and when: the same for every server.

A turn's history is the data's, not what the server answered, and its answer has as many tokens as the data's: so the
load does not depend on the server. Knows nothing of servers and of HTTP.
"""

import hashlib
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from bench.conversations.data import Conversation

TEMPLATE_TOKENS = 8
"""Approximate tokens that a chat template adds to a message."""
FIRST_MAPPED_ID = 512
"""In models with random weights, smaller ids are special tokens and bytes."""

Tokenize = Callable[[str], Sequence[int]]


def model_of(conversation: int, models: Sequence[str]) -> str:
    """Which of the models a run's conversation goes to, by its number: each in turn."""
    return models[conversation % len(models)]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on what is sent of a conversation."""

    turns: int
    max_prompt_tokens: int
    max_answer_tokens: int


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One request. Messages, or token ids for a model whose tokenizer has no words."""

    messages: tuple[tuple[str, str], ...]
    """Pairs of role and content."""
    token_ids: tuple[int, ...]
    """Empty where messages are sent."""
    prompt_tokens: int
    """Count by this machine's tokenizer, with an estimated chat template."""
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class PlannedConversation:
    """A conversation's requests, each sent when the previous answer is complete."""

    id: str
    requests: tuple[TurnRequest, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """Conversations in the order in which they are used."""

    conversations: tuple[PlannedConversation, ...]
    too_long: int
    """How many were left out on the way, because their first prompt is too long."""
    cut_answers: int
    """Answers that were longer than the bound."""

    def about(self) -> dict[str, Any]:
        requests = [request for one in self.conversations for request in one.requests]
        ids = "\n".join(one.id for one in self.conversations)
        return {
            "conversations": len(self.conversations),
            "requests": len(requests),
            "ids_sha256": hashlib.sha256(ids.encode()).hexdigest()[:16],
            "prompt_tokens_median": statistics.median(request.prompt_tokens for request in requests),
            "prompt_tokens_most": max(request.prompt_tokens for request in requests),
            "answer_tokens_median": statistics.median(request.answer_tokens for request in requests),
            "answer_tokens": sum(request.answer_tokens for request in requests),
            "left_out_as_too_long": self.too_long,
            "answers_cut": self.cut_answers,
        }

    @property
    def context_tokens(self) -> int:
        """The most that any request needs, prompt and answer together."""
        requests = [request for one in self.conversations for request in one.requests]
        return max(request.prompt_tokens + request.answer_tokens for request in requests)

    def part(self, first: int, count: int) -> "Selection":
        """`count` conversations from number `first` on; after the last one comes the first again (`repeated`)."""
        size = len(self.conversations)
        return Selection(tuple(self.conversations[(first + i) % size] for i in range(count)), 0, 0)

    def repeated(self, count: int) -> int:
        """How many of the first `count` conversations were there before; servers may keep those prompts."""
        return max(0, count - len(self.conversations))


def select(
    conversations: Sequence[Conversation],
    count: int,
    bounds: Bounds,
    tokenize: Tokenize,
    *,
    vocab_size: int | None,
    seed: int,
) -> Selection:
    """Draws `count` conversations, or as many as there are.

    vocab_size: of a model with random weights, which is sent token ids; None: messages are sent.
    """
    order = list(conversations)
    random.Random(seed).shuffle(order)
    chosen: list[PlannedConversation] = []
    too_long = cut = 0
    for one in order:
        if len(chosen) == count:
            break
        requests = list(_requests(one, bounds, tokenize, vocab_size))
        if not requests:
            too_long += 1
            continue
        cut += sum(answer > bounds.max_answer_tokens for _, answer in requests)
        chosen.append(PlannedConversation(one.id, tuple(request for request, _ in requests)))
    return Selection(tuple(chosen), too_long, cut)


def _requests(
    one: Conversation, bounds: Bounds, tokenize: Tokenize, vocab_size: int | None
) -> Iterator[tuple[TurnRequest, int]]:
    """Yields the turns before the first too long prompt, each with the tokens of the data's answer."""
    messages = [("system", one.system)] if one.system else []
    ids = list(tokenize(one.system)) if one.system else []
    for turn in one.turns[: bounds.turns]:
        messages.append(("user", turn.prompt))
        ids += tokenize(turn.prompt)
        prompt_tokens = max(1, len(ids)) if vocab_size else len(ids) + TEMPLATE_TOKENS * (len(messages) + 1)
        answer = tokenize(turn.answer)
        if prompt_tokens > bounds.max_prompt_tokens:
            return
        if answer:  # an empty answer is no request
            tokens = min(len(answer), bounds.max_answer_tokens)
            mapped = tuple(mapped_id(token, vocab_size) for token in ids or [0]) if vocab_size else ()
            yield TurnRequest(() if vocab_size else tuple(messages), mapped, prompt_tokens, tokens), len(answer)
        messages.append(("assistant", turn.answer))
        ids += answer


def mapped_id(token: int, vocab_size: int) -> int:
    """Another vocabulary's ordinary token for this one: equal ones stay equal."""
    return FIRST_MAPPED_ID + token % (vocab_size - FIRST_MAPPED_ID)


def arrival_times_s(count: int, rate: float, seed: int) -> list[float]:
    """When conversations arrive, in seconds from the first one: random gaps as of a Poisson process.

    They are scaled to a mean of exactly 1 / rate, because few random gaps are far from it: the load is as was asked
    for, and bursts remain.
    """
    rng = random.Random(seed)
    gaps = [rng.expovariate(1.0) for _ in range(count - 1)]
    scale = len(gaps) / rate / sum(gaps) if gaps else 0.0
    return list(accumulate((gap * scale for gap in gaps), initial=0.0))
