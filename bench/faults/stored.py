"""A user whose texts are stored, in a loop: turns of conversations and background answers; and what became of each.

Every turn that was acknowledged must be there afterwards, and every background answer that was accepted must end,
complete and right or with an error that says why. Knows the service's HTTP address only, and nothing of faults.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

_TIMEOUT_S: Final = 60.0
_LONGEST_ANSWER_S: Final = 240.0
_PAUSE_S = 0.25
_QUESTIONS = ("Say a word.", "And another one.")
_TURN_TOKENS, _BACKGROUND_TOKENS = 24, 160
_ENDED = ("completed", "incomplete", "failed", "cancelled")


@dataclass(slots=True)
class StoredOutcomes:
    """Outcomes of all turns and background answers."""

    turns: int = 0
    """Acknowledged, with the right text, and there afterwards."""
    turns_refused: Counter[str] = field(default_factory=Counter)
    """Refused turns by status and code; "connection" if it failed. A conversation has both the turn's items or none."""
    turns_wrong: int = 0
    turns_lost: int = 0
    """Acknowledged, and not as they were afterwards."""
    background: int = 0
    """Complete, with the right text."""
    background_refused: Counter[str] = field(default_factory=Counter)
    background_failed: Counter[str] = field(default_factory=Counter)
    """Accepted, and ended with an error that says why; by its code."""
    background_wrong: int = 0
    background_lost: int = 0
    """Accepted, and not found or never ended."""

    @property
    def lost(self) -> int:
        """Losses without an error."""
        return self.turns_wrong + self.turns_lost + self.background_wrong + self.background_lost


class _RefusedError(Exception):
    """The message is why."""


class StoredLoad:
    """Two loops, one of each kind, whose answers are the same each time."""

    def __init__(self, url: str, model: str, headers: dict[str, str]) -> None:
        """Sends nothing yet. headers: the user's credential."""
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, limits=limits, headers=headers)
        self._model = model
        self._clean_turns: list[str] = []
        self._clean_background = ""
        self._acknowledged: list[tuple[str, str, str]] = []
        """Conversation, response and text of each turn."""
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False
        self.outcomes = StoredOutcomes()

    async def learn(self) -> None:
        """Asks each once. Raises RuntimeError if one fails."""
        try:
            conversation = (await self._sent("/v1/conversations", {}))["id"]
            for question in _QUESTIONS:
                answer = await self._sent("/v1/responses", self._asked(question, _TURN_TOKENS, conversation))
                self._clean_turns.append(_text(answer))
            begun = await self._sent("/v1/responses", self._asked("Count.", _BACKGROUND_TOKENS) | {"background": True})
            ended = await self._ended(begun["id"])
        except _RefusedError as error:
            raise RuntimeError(f"the clean run failed: {error}") from error
        self._clean_background = "" if ended is None else _text(ended)

    def start(self) -> None:
        self.outcomes = StoredOutcomes()
        self._acknowledged = []
        self._ending = False
        self._tasks = [asyncio.create_task(loop()) for loop in (self._converse, self._ask_in_background)]

    async def end(self) -> StoredOutcomes:
        """Lets what runs come to its end, and looks whether everything is there."""
        self._ending = True
        await asyncio.gather(*self._tasks)
        for conversation, response, text in self._acknowledged:
            is_there = await self._has(conversation, response, text)
            self.outcomes.turns += is_there
            self.outcomes.turns_lost += not is_there
        return self.outcomes

    async def close(self) -> None:
        await self._http.aclose()

    async def _converse(self) -> None:
        while not self._ending:
            try:
                conversation = (await self._sent("/v1/conversations", {}))["id"]
                for question, clean in zip(_QUESTIONS, self._clean_turns, strict=True):
                    answer = await self._sent("/v1/responses", self._asked(question, _TURN_TOKENS, conversation))
                    self._acknowledged.append((conversation, answer["id"], _text(answer)))
                    self.outcomes.turns_wrong += _text(answer) != clean
            except _RefusedError as error:
                self.outcomes.turns_refused[str(error)] += 1
                await asyncio.sleep(_PAUSE_S)

    async def _ask_in_background(self) -> None:
        outcomes = self.outcomes
        while not self._ending:
            try:
                body = self._asked("Count.", _BACKGROUND_TOKENS) | {"background": True}
                response_id = (await self._sent("/v1/responses", body))["id"]
            except _RefusedError as error:
                outcomes.background_refused[str(error)] += 1
                await asyncio.sleep(_PAUSE_S)
                continue
            ended = await self._ended(response_id)
            if ended is None:
                outcomes.background_lost += 1
            elif ended["status"] in ("failed", "cancelled"):
                outcomes.background_failed[(ended.get("error") or {}).get("code") or ended["status"]] += 1
            elif _text(ended) == self._clean_background:
                outcomes.background += 1
            else:
                outcomes.background_wrong += 1

    async def _ended(self, response_id: str) -> dict[str, Any] | None:
        """The response when it has ended; None: it is not found, or never ends."""
        give_up_s = time.monotonic() + _LONGEST_ANSWER_S
        while time.monotonic() < give_up_s:
            try:
                answer = await self._http.get(f"/v1/responses/{response_id}")
            except httpx.TransportError:
                await asyncio.sleep(_PAUSE_S)
                continue
            if answer.status_code == httpx.codes.NOT_FOUND:
                return None
            if answer.is_success and (found := dict[str, Any](answer.json()))["status"] in _ENDED:
                return found
            await asyncio.sleep(_PAUSE_S)
        return None

    async def _has(self, conversation: str, response: str, text: str) -> bool:
        try:
            stored = await self._http.get(f"/v1/responses/{response}")
            items = await self._http.get(f"/v1/conversations/{conversation}/items", params={"limit": 100})
            texts: Sequence[str] = [_text({"output": [item]}) for item in items.json()["data"]]
            return _text(stored.json()) == text and text in texts
        except (httpx.HTTPError, KeyError, ValueError):
            return False

    async def _sent(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._http.post(path, json=body)
        except httpx.TransportError:
            raise _RefusedError("connection") from None
        if not answer.is_success:
            try:
                code = answer.json()["error"]["code"]
            except (ValueError, KeyError):
                code = ""
            raise _RefusedError(f"{answer.status_code} {code}".strip())
        return dict[str, Any](answer.json())

    def _asked(self, question: str, tokens: int, conversation: str | None = None) -> dict[str, Any]:
        body = {"model": self._model, "input": question, "temperature": 0, "max_output_tokens": tokens}
        return body if conversation is None else body | {"conversation": conversation}


def _text(response: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for item in response["output"] for part in item.get("content") or ())
