"""Which models are served: the ingress's own, and those of other applications of the same Serve as they come and go.

An application made by `app.deploy.build_model` has workers and no routes. The directory searches for such applications
periodically, so a model can be added or removed while the others are in use. It knows nothing of Ray: it is given an
object that asks Serve.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.interface.service import ServedModel
from app.interface.text.chat_model import ChatModel
from app.messages.memory import CallEachWorker, MemoryMethod
from app.messages.model_card import ModelCard
from app.messages.outputs import Generate
from app.messages.workers import FoundApplication, WorkerRow
from app.model_folder import ChatModelError
from app.sealing.sealed_model import model_identity, open_model

logger = logging.getLogger("ray.serve")
_CARD_TRIES, _CARD_WAIT_S = 20, 0.1


class ModelWorkers(Protocol):
    """One application's workers."""

    @property
    def generate(self) -> Generate:
        """Streams a request's deltas."""

    def workers(self) -> list[WorkerRow]:
        """Their rows of the worker table."""

    def cards(self) -> list[ModelCard]:
        """What the live workers run. There are several while an application replaces another one of its name."""

    @property
    def call_each(self) -> CallEachWorker:
        """Calls a method of each of them."""


class Applications(Protocol):
    """The other applications of this Serve."""

    async def find(self) -> Mapping[str, FoundApplication]:
        """By name, those that have or may have workers of this project and are not being deleted."""

    def connect(self, name: str) -> ModelWorkers:
        """One application's workers. Their cards arrive a little later."""


@dataclass(slots=True)
class _Entry:
    workers: ModelWorkers
    card: ModelCard | None = None
    """The card of the model that is served; None: not yet, or refused."""
    logged_reason: str = ""
    """Why it is not served, as it was last logged."""

    def log_refusal(self, name: str, reason: str) -> None:
        """Logs why the application is not served, once for each reason."""
        if reason != self.logged_reason:
            self.logged_reason = reason
            logger.warning("Application %r is not served: %s", name, reason)


class ModelDirectory:
    """The models by name, kept up to date by `watch`. Written on one event loop; read from any thread."""

    def __init__(self, card: ModelCard, workers: ModelWorkers, applications: Applications) -> None:
        """Begins with the ingress's own model, whose name no other model can take.

        Raises ChatModelError, SealedModelError.
        """
        self._own = workers
        self._applications = applications
        self._entries: dict[str, _Entry] = {}
        self.models: dict[str, ServedModel] = {card.name: _served(card, workers)}

    def workers(self) -> list[WorkerRow]:
        """The worker table of all models; the ingress's own comes first."""
        others = [entry.workers for entry in list(self._entries.values())]
        return [row for one in (self._own, *others) for row in one.workers()]

    async def call_each(self, method: MemoryMethod, *arguments: object) -> list[Any]:
        """See CallEachWorker; the workers of all models."""
        everyone = [self._own, *(entry.workers for entry in list(self._entries.values()))]
        answers = await asyncio.gather(*(workers.call_each(method, *arguments) for workers in everyone))
        return [answer for of_model in answers for answer in of_model]

    async def watch(self, period_s: float, first: asyncio.Event | None = None) -> None:
        """Searches every `period_s` seconds until cancelled. first: set after the first search, even if it failed."""
        logged_error = ""
        while True:
            try:
                await self.look()
                logged_error = ""
            except Exception as error:  # Serve's controller may be restarting; the served models stay served
                if str(error) != logged_error:
                    logged_error = str(error)
                    logger.warning(
                        "Other models' applications can't be listed now: %s: %s", type(error).__name__, error
                    )
            if first is not None:
                first.set()
            await asyncio.sleep(period_s)

    async def look(self) -> None:
        """Adds new applications, drops deleted ones, and reloads those that run another model than before."""
        found = await self._applications.find()
        for name in [name for name in self._entries if name not in found]:
            self._drop(self._entries.pop(name))
        for name, application in found.items():
            if application.has_worker:
                entry = self._entries.get(name)
                if entry is None:
                    entry = self._entries[name] = _Entry(self._applications.connect(name))
                await self._update(name, entry)

    async def _update(self, name: str, entry: _Entry) -> None:
        cards = await _wait_for_cards(entry.workers)
        if not cards or entry.card in cards:  # the workers are being replaced, or nothing has changed
            return
        self._drop(entry)
        if cards[0].name in self.models:
            entry.log_refusal(name, f"the model name {cards[0].name!r} is taken")
            return
        try:
            served = await asyncio.get_running_loop().run_in_executor(None, _served, cards[0], entry.workers)
        except Exception as error:  # concerns this application only; the next search tries again
            entry.log_refusal(name, f"{type(error).__name__}: {error}")
            return
        entry.card, entry.logged_reason = cards[0], ""
        self.models[entry.card.name] = served

    def _drop(self, entry: _Entry) -> None:
        if entry.card is not None:
            del self.models[entry.card.name]
            entry.card = None


async def _wait_for_cards(workers: ModelWorkers) -> list[ModelCard]:
    """What the workers run. A new handle needs a moment before it has cards."""
    for _ in range(_CARD_TRIES):
        if cards := workers.cards():
            return cards
        await asyncio.sleep(_CARD_WAIT_S)
    return []


def _served(card: ModelCard, workers: ModelWorkers) -> ServedModel:
    """Raises ChatModelError, SealedModelError, OSError."""
    files = open_model(card)
    identity = model_identity(files)
    if card.identity not in ("", identity):
        raise ChatModelError(f"{card.path}: the workers have opened another version of these files")
    chat = ChatModel.load(
        files, max_context_tokens=card.max_context_tokens, on_overflow=card.on_overflow, identity=identity
    )
    return ServedModel(chat, workers.generate, created=int(time.time()))
