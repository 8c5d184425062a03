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

from app.chat import ChatModel
from app.generation import Generate
from app.http_service import ServedModel
from app.model_card import ModelCard
from app.worker_table import WorkerRow

_log = logging.getLogger("ray.serve")


class ModelWorkers(Protocol):
    """The way to one application's workers."""

    @property
    def generate(self) -> Generate:
        """Streams a request's deltas."""

    def workers(self) -> list[WorkerRow]:
        """Their table."""

    async def describe(self) -> ModelCard:
        """What one of them runs. Raises if none answers."""


@dataclass(frozen=True, slots=True)
class FoundApplication:
    """Another application of this Serve that has workers of ours."""

    deployed_at: float
    """Unix seconds, of the last time."""
    runs: bool
    """Whether a worker is up; if not it may be starting, or in trouble."""


class Applications(Protocol):
    """The other applications of this Serve."""

    async def find(self) -> Mapping[str, FoundApplication]:
        """Those that have workers of ours and are not being taken away, by name."""

    def connect(self, name: str) -> ModelWorkers:
        """The way to one's workers."""


@dataclass(frozen=True, slots=True)
class _Entry:
    model: str
    deployed_at: float
    workers: ModelWorkers


class ModelDirectory:
    """The models by name, kept up to date by `watch`. Everything runs on one event loop."""

    def __init__(self, card: ModelCard, workers: ModelWorkers, applications: Applications) -> None:
        """Begins with the front door's own model, whose name nobody else can take. Raises ChatModelError."""
        self._own = workers
        self._applications = applications
        self._entries: dict[str, _Entry] = {}
        self._refused: dict[str, tuple[float, str]] = {}
        self.models: dict[str, ServedModel] = {card.name: _served(card, workers)}

    def workers(self) -> list[WorkerRow]:
        """The worker table of all models, the own one's first."""
        return [row for one in (self._own, *(e.workers for e in self._entries.values())) for row in one.workers()]

    async def watch(self, period_s: float) -> None:
        """Looks every `period_s` seconds, until it is cancelled."""
        trouble = ""
        while True:
            try:
                await self.look()
                trouble = ""
            except Exception as error:  # Serve's controller is being replaced, say: what is served stays served
                if str(error) != trouble:
                    trouble = str(error)
                    _log.warning("Other models' applications can't be listed now: %s: %s", type(error).__name__, error)
            await asyncio.sleep(period_s)

    async def look(self) -> None:
        """Takes in what has come, drops what has gone. An application that was deployed again is read again."""
        found = await self._applications.find()
        for name in [name for name in self._entries if name not in found]:
            del self.models[self._entries.pop(name).model]
        for name, application in found.items():
            entry = self._entries.get(name)
            if application.runs and (entry is None or entry.deployed_at != application.deployed_at):
                try:
                    await self._take_in(name, application.deployed_at)
                except Exception as error:  # one application's trouble; it may be over at the next look
                    self._refuse(name, application.deployed_at, f"{type(error).__name__}: {error}")

    async def _take_in(self, name: str, deployed_at: float) -> None:
        old = self._entries.get(name)
        workers = old.workers if old is not None else self._applications.connect(name)
        card = await workers.describe()
        if card.name in self.models and (old is None or old.model != card.name):
            self._refuse(name, deployed_at, f"the model name {card.name!r} is taken")
            return
        served = await asyncio.get_running_loop().run_in_executor(None, _served, card, workers)
        if old is not None:
            del self.models[old.model]
        self._entries[name] = _Entry(card.name, deployed_at, workers)
        self.models[card.name] = served

    def _refuse(self, name: str, deployed_at: float, reason: str) -> None:
        if self._refused.get(name) != (deployed_at, reason):
            self._refused[name] = (deployed_at, reason)
            _log.warning("Application %r is not served: %s", name, reason)


def _served(card: ModelCard, workers: ModelWorkers) -> ServedModel:
    chat = ChatModel.load(Path(card.folder), max_context_tokens=card.max_context_tokens, on_overflow=card.on_overflow)
    return ServedModel(chat, workers.generate, created=int(time.time()))
