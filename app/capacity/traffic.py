"""The traffic model: users' requests as the simulation draws them. Does not know machines.

The lengths follow 1,024 conversations of the PPL.LLM sample (ShareGPT), first question and answer, tokenized by the
embedded model's tokenizer, a question with 8 tokens of the chat template: medians of 36 and 264 tokens. Other medians
scale all quantiles.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.capacity.demand import CapacityError

PROMPT_TOKENS: Final = 36
ANSWER_TOKENS: Final = 264
CONTEXT_TOKENS: Final = 1024
"""Assumed: three turns of the median conversation. The sample's have one turn each."""
SECONDS_BETWEEN: Final = 60.0
"""Assumed: reading an answer of 264 tokens and writing the next question takes about a minute."""
# The minimum, 5 %, 10 % ... 95 %, and the maximum.
_PROMPT_QUANTILES: Final = (
    10, 14, 17, 18, 20, 22, 24, 27, 29, 32, 36, 42, 50, 61, 80, 105, 142, 205, 343, 578, 1059,
)  # fmt: skip
_ANSWER_QUANTILES: Final = (
    5, 22, 39, 70, 95, 119, 151, 183, 210, 234, 264, 285, 316, 344, 371, 404, 454, 514, 632, 755, 952,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Traffic:
    """A user's behaviour."""

    prompt_tokens: int = PROMPT_TOKENS
    """Median number of new tokens in a request."""
    answer_tokens: int = ANSWER_TOKENS
    """Median number of tokens in an answer."""
    context_tokens: int = CONTEXT_TOKENS
    """Tokens of the chat before the request, cached if there are enough pages."""
    seconds_between: float = SECONDS_BETWEEN
    """Average time between two requests of a user."""

    def __post_init__(self) -> None:
        """Raises CapacityError for impossible numbers."""
        for name, least in (("prompt_tokens", 1), ("answer_tokens", 1), ("context_tokens", 0)):
            if getattr(self, name) < least:
                raise CapacityError(f"{name.replace('_', ' ')} must be at least {least}, not {getattr(self, name)}")
        if not (math.isfinite(self.seconds_between) and self.seconds_between > 0):
            raise CapacityError(f"the seconds between a user's requests must be above 0, not {self.seconds_between}")


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level objective: this share of the requests meets both bounds."""

    first_token_s: float = 3.0
    token_s: float = 0.2
    """A request's mean time per token after its first."""
    share: float = 0.95

    def kept_by(self, first_token_s: float, token_s: float) -> bool:
        """Whether a request with these times meets both bounds."""
        return first_token_s <= self.first_token_s and token_s <= self.token_s


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    user: int
    prompt_tokens: int
    answer_tokens: int


def arrivals(traffic: Traffic, users: int, requests: int, seed: int, request_tokens: int) -> list[Arrival]:
    """Draws the requests of `users` users in order of time: each user's come at random, at the traffic's rate.

    request_tokens: the most tokens of a request with its history; longer ones are cut, first the answer, because a
    service refuses them. Must exceed the history by more than two. With another number of users the same draws come
    faster or slower, so that more users are never less load by chance.
    """
    generator = random.Random(seed)
    rate_per_s = users / traffic.seconds_between
    prompt_scale = traffic.prompt_tokens / PROMPT_TOKENS
    answer_scale = traffic.answer_tokens / ANSWER_TOKENS
    now_s = 0.0
    drawn = []
    for _ in range(requests):
        now_s += generator.expovariate(1.0) / rate_per_s
        user = int(generator.random() * users)
        prompt = max(1, round(_quantile(_PROMPT_QUANTILES, generator.random()) * prompt_scale))
        answer = max(1, round(_quantile(_ANSWER_QUANTILES, generator.random()) * answer_scale))
        prompt = min(prompt, request_tokens - traffic.context_tokens - 1)
        answer = min(answer, request_tokens - traffic.context_tokens - prompt)
        drawn.append(Arrival(now_s, user, prompt, answer))
    return drawn


def prompt_quantile(traffic: Traffic, share: float) -> int:
    """The number of new tokens that is longer than this share of the prompts."""
    return max(1, round(_quantile(_PROMPT_QUANTILES, share) * traffic.prompt_tokens / PROMPT_TOKENS))


def bounded(traffic: Traffic, context_tokens: int) -> Traffic:
    """Limits the traffic to a model's context: at most a quarter is history, and half is an answer."""
    return replace(
        traffic,
        context_tokens=min(traffic.context_tokens, context_tokens // 4),
        prompt_tokens=min(traffic.prompt_tokens, max(1, context_tokens // 4)),
        answer_tokens=min(traffic.answer_tokens, max(1, context_tokens // 2)),
    )


def median_request_tokens(traffic: Traffic) -> int:
    """Tokens of a median request with its history."""
    return traffic.context_tokens + traffic.prompt_tokens + traffic.answer_tokens


def _quantile(quantiles: Sequence[int], place: float) -> float:
    """Interpolates between the equidistant quantiles. place: 0 to 1."""
    position = place * (len(quantiles) - 1)
    below = min(int(position), len(quantiles) - 2)
    return quantiles[below] + (position - below) * (quantiles[below + 1] - quantiles[below])
