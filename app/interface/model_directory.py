"""Which models are served: the front door's own, and those of other applications of the same Serve as they come and go.

An application made by `app.deploy.build_model` has workers and no routes. The directory looks for such applications now
and then, so a model can be added or taken away while conversations with the others go on. It knows nothing of Ray: what
asks Serve is given to it.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from app.interface.service import ServedModel
from app.interface.text.chat_model import ChatModel
from app.messages.model_card import ModelCard
from app.messages.outputs import Generate
from app.messages.workers import FoundApplication, WorkerRow

logger = logging.getLogger("ray.serve")
_CARD_LOOKS, _CARD_LOOK_S = 20, 0.1


class ModelWorkers(Protocol):
    """The way to one application's workers."""

    @property
    def generate(self) -> Generate:
        """Streams a request's deltas."""

    def workers(self) -> list[WorkerRow]:
        """Their table."""

    def cards(self) -> list[ModelCard]:
        """What those that live run; several while an application is replaced by another one of its name."""


class Applications(Protocol):
    """The other applications of this Serve."""

    async def find(self) -> Mapping[str, FoundApplication]:
        """Those that have workers of ours, or may have, and are not being taken away; by name."""

    def connect(self, name: str) -> ModelWorkers:
        """The way to one's workers, whose cards come a little later."""


@dataclass(slots=True)
class _Entry:
    workers: ModelWorkers
    card: ModelCard | None = None
    """Of the model that is served; None: not yet, or refused."""
    told: str = ""
    """Why it is not served, when that was last said."""

    def tell(self, name: str, reason: str) -> None:
        """Logs the reason, once."""
        if reason != self.told:
            self.told = reason
            logger.warning("Application %r is not served: %s", name, reason)


class ModelDirectory:
    """The models by name, kept up to date by `watch`. Written on one event loop; read from any thread."""

    def __init__(self, card: ModelCard, workers: ModelWorkers, applications: Applications) -> None:
        """Begins with the front door's own model, whose name nobody else can take. Raises ChatModelError."""
        self._own = workers
        self._applications = applications
        self._entries: dict[str, _Entry] = {}
        self.models: dict[str, ServedModel] = {card.name: _served(card, workers)}

    def workers(self) -> list[WorkerRow]:
        """The worker table of all models, the own one's first."""
        others = [entry.workers for entry in list(self._entries.values())]
        return [row for one in (self._own, *others) for row in one.workers()]

    async def watch(self, period_s: float, first: asyncio.Event | None = None) -> None:
        """Looks every `period_s` seconds, until it is cancelled. first: set after the first time, however it went."""
        trouble = ""
        while True:
            try:
                await self.look()
                trouble = ""
            except Exception as error:  # Serve's controller is being replaced, say: what is served stays served
                if str(error) != trouble:
                    trouble = str(error)
                    logger.warning(
                        "Other models' applications can't be listed now: %s: %s", type(error).__name__, error
                    )
            if first is not None:
                first.set()
            await asyncio.sleep(period_s)

    async def look(self) -> None:
        """Takes in what has come, drops what has gone, reads again what runs another model than before."""
        found = await self._applications.find()
        for name in [name for name in self._entries if name not in found]:
            self._drop(self._entries.pop(name))
        for name, application in found.items():
            if application.has_worker:
                entry = self._entries.get(name)
                if entry is None:
                    entry = self._entries[name] = _Entry(self._applications.connect(name))
                await self._take_in(name, entry)

    async def _take_in(self, name: str, entry: _Entry) -> None:
        cards = await _some_cards(entry.workers)
        if not cards or entry.card in cards:  # the workers are being replaced, or all is as it was
            return
        self._drop(entry)
        if cards[0].name in self.models:
            entry.tell(name, f"the model name {cards[0].name!r} is taken")
            return
        try:
            served = await asyncio.get_running_loop().run_in_executor(None, _served, cards[0], entry.workers)
        except Exception as error:  # this application's trouble; it may be over at the next look
            entry.tell(name, f"{type(error).__name__}: {error}")
            return
        entry.card, entry.told = cards[0], ""
        self.models[entry.card.name] = served

    def _drop(self, entry: _Entry) -> None:
        if entry.card is not None:
            del self.models[entry.card.name]
            entry.card = None


async def _some_cards(workers: ModelWorkers) -> list[ModelCard]:
    """What the workers run; waits a little for a handle that is new."""
    for _ in range(_CARD_LOOKS):
        if cards := workers.cards():
            return cards
        await asyncio.sleep(_CARD_LOOK_S)
    return []


def _served(card: ModelCard, workers: ModelWorkers) -> ServedModel:
    chat = ChatModel.load(Path(card.folder), max_context_tokens=card.max_context_tokens, on_overflow=card.on_overflow)
    return ServedModel(chat, workers.generate, created=int(time.time()))
