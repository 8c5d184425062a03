"""Clients in a loop, what becomes of each of their requests, and whether its text is the one of a clean run.

Knows the service's HTTP address only, and nothing of faults.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

HUNG_S: Final = 30.0
"""A stream of which nothing comes for so long has hung."""
_WHOLE_S: Final = 180.0
"""A blocking request says nothing before its end: it has hung if that takes so long."""
_CONNECT_S = 30.0
_PAUSE_S = 0.25
"""Pause before a client whose request has failed sends the next one."""


@dataclass(slots=True)
class Outcomes:
    """Outcomes of the requests of one load."""

    completed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Requests refused before the first byte of an answer, by status; "connect" if there was no connection."""
    broken_with_error: int = 0
    """Streams that ended with an event that says why."""
    broken_silently: int = 0
    """Answers that ended in the middle."""
    hung: int = 0
    wrong: int = 0
    """Complete answers with another text than the clean run's."""
    first_answer_s: float | None = None
    """When the first answer was complete that was asked for after `mark`; seconds since then."""
    longest_pause_s: float = 0.0
    """Longest pause between two events of a completed stream."""
    marked_s: float = 0.0

    def mark(self) -> None:
        """The fault is now."""
        self.marked_s = time.monotonic()

    @property
    def lost(self) -> int:
        """Requests whose answer was broken or wrong, or never came."""
        return self.broken_with_error + self.broken_silently + self.hung + self.wrong


class _FailedError(Exception):
    """A stream ended with an error event."""


class _BrokenError(Exception):
    """An answer ended in the middle."""


class Load:
    """`clients` loops over the same requests, which have the same answers each time."""

    def __init__(self, url: str, model: str, clients: int, headers: dict[str, str] | None = None) -> None:
        timeout = httpx.Timeout(HUNG_S, connect=_CONNECT_S)
        limits = httpx.Limits(max_keepalive_connections=0)  # as many clients with a request each
        self._http = httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits, headers=headers)
        self._bodies = _bodies(model)
        self._clean: list[str] = []
        self._clients = clients
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False
        self.outcomes = Outcomes()

    async def learn(self) -> None:
        """Asks each request once, with nothing else going on. Raises RuntimeError if one fails."""
        try:
            self._clean = [await self._answer(body) for body in self._bodies]
        except (httpx.HTTPError, _FailedError, _BrokenError) as error:
            raise RuntimeError(f"the clean run failed: {error!r}") from error

    def start(self) -> None:
        self.outcomes = Outcomes()
        self._ending = False
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(self._clients)]

    async def end(self) -> Outcomes:
        """Lets the requests that run come to their ends."""
        self._ending = True
        await asyncio.gather(*self._tasks)
        return self.outcomes

    async def close(self) -> None:
        await self._http.aclose()

    async def _client(self, number: int) -> None:
        while not self._ending:
            index = number % len(self._bodies)
            number += 1
            if not await self._ask(index):
                await asyncio.sleep(_PAUSE_S)

    async def _ask(self, index: int) -> bool:
        outcomes = self.outcomes
        began_s = time.monotonic()
        try:
            text = await self._answer(self._bodies[index])
        except httpx.HTTPStatusError as error:
            outcomes.refused[str(error.response.status_code)] += 1
        except (httpx.ConnectError, httpx.ConnectTimeout):
            outcomes.refused["connect"] += 1
        except httpx.TimeoutException:
            outcomes.hung += 1
        except _FailedError:
            outcomes.broken_with_error += 1
        except (_BrokenError, httpx.TransportError):
            outcomes.broken_silently += 1
        else:
            outcomes.completed += 1
            outcomes.wrong += text != self._clean[index]
            if outcomes.first_answer_s is None and began_s > outcomes.marked_s > 0:
                outcomes.first_answer_s = time.monotonic() - outcomes.marked_s
            return True
        return False

    async def _answer(self, body: dict[str, Any]) -> str:
        """The text. Raises httpx.HTTPError, _FailedError, _BrokenError."""
        if not body["stream"]:
            response = await self._http.post("/v1/completions", json=body, timeout=_WHOLE_S)
            response.raise_for_status()
            return str(response.json()["choices"][0]["text"])
        parts: list[str] = []
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            response.raise_for_status()
            heard_s = time.monotonic()
            async for line in response.aiter_lines():
                if not line.startswith("data: "):  # a comment is no news
                    continue
                now_s = time.monotonic()
                self.outcomes.longest_pause_s = max(self.outcomes.longest_pause_s, now_s - heard_s)
                heard_s = now_s
                if line.startswith('data: {"error"'):
                    raise _FailedError(line)
                if line.startswith("data: {"):
                    parts += [choice["text"] for choice in json.loads(line[6:])["choices"]]
                elif line == "data: [DONE]":
                    return "".join(parts)
        raise _BrokenError


def _bodies(model: str) -> Sequence[dict[str, Any]]:
    """Streams and blocking requests, greedy and seeded, of 64 to 128 tokens."""
    prompts = ["Once upon a time", "The capital of France", "def fibonacci(n):", "Dear Sir or Madam,", "1, 2, 3, 4,"]
    bodies = []
    for number, prompt in enumerate(prompts * 2):
        seeded = {"temperature": 0.9, "seed": number} if number % 3 == 2 else {"temperature": 0}
        length = {"max_tokens": 64 + 16 * (number % 5), "ignore_eos": True}
        bodies.append({"model": model, "prompt": prompt, "stream": number % 3 != 1, **length, **seeded})
    return bodies
