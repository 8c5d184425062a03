"""The served models: the ingress's own, and those of other applications of the same Serve.

An application made by `app.deploy.build_model` has workers and no routes. The directory searches for such applications
periodically, so models can be added and removed while others are in use. Changes within a known application, also the
own one, apply at once. It knows nothing of Ray: it is given an object that asks Serve.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from app.interface.generate.service import ServedModel
from app.interface.text.chat_model import ChatModel
from app.interface.text.encoder_model import EncoderModel
from app.interface.thinking.requested import ThinkingDefault
from app.messages.memory import CallEachWorker, MemoryMethod
from app.messages.model_card import ModelCard
from app.messages.outputs import Generate
from app.messages.workers import FoundApplication, WorkerRow
from app.model_folder import ChatModelError, encoder_settings, read_json
from app.sealing.sealed_model import model_identity, open_model

logger = logging.getLogger("ray.serve")
_CARD_TRIES, _CARD_WAIT_S = 20, 0.1
_FOLLOW_PERIOD_S = 0.25
_TRY_AGAIN_S = 10.0


class ModelWorkers(Protocol):
    """The workers of one application."""

    @property
    def generate(self) -> Generate: ...

    def workers(self) -> list[WorkerRow]:
        """Returns their rows of the worker table."""

    def cards(self) -> list[ModelCard]:
        """Returns what each live worker runs, newest last. They differ during a rolling update."""

    @property
    def call_each(self) -> CallEachWorker:
        """Calls a method of each worker."""


class Applications(Protocol):
    """The other applications of this Serve."""

    async def find(self) -> Mapping[str, FoundApplication]:
        """Returns applications by name that have or may have our workers and are not being deleted."""

    def connect(self, name: str) -> ModelWorkers:
        """Returns one application's workers. Their cards arrive a little later."""


@dataclass(slots=True)
class _Application:
    workers: ModelWorkers
    promised: ModelCard | None = None
    """The model of its settings, until a worker runs it."""
    served: dict[ModelCard, ServedModel] = field(default_factory=dict)
    """The models that it runs, and the promised one; newest last."""
    try_again_s: dict[ModelCard, float] = field(default_factory=dict)
    """The monotonic time at which a model that failed to open may be tried again."""
    logged_reason: str = ""
    """The last logged reason why a model is not served."""

    def model_of(self, card: ModelCard) -> ServedModel | None:
        """Returns the opened model of a card, also if it was opened before a worker reported its identity."""
        for one, model in self.served.items():
            if card in (one, replace(one, identity=model.text.identity)):
                return model
        return None

    def log_refusal(self, name: str, reason: str) -> None:
        """Logs why a model is not served, once per reason."""
        if reason != self.logged_reason:
            self.logged_reason = reason
            logger.warning("Application %r is not served: %s", name, reason)


class _Models(Mapping[str, ServedModel]):
    """The served models; replaced as a whole, so that any thread reads a complete dictionary."""

    def __init__(self) -> None:
        self.now: dict[str, ServedModel] = {}

    def __getitem__(self, name: str) -> ServedModel:
        return self.now[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.now)

    def __len__(self) -> int:
        return len(self.now)


class ModelDirectory:
    """The models by name, kept up to date by `watch`. Written on one event loop; read from any thread.

    A model's card comes from its workers. During a rolling update an application has workers of two versions: both are
    served; if they have the same name, the newer one wins.
    """

    def __init__(self, card: ModelCard, workers: ModelWorkers, applications: Applications) -> None:
        """Starts with the ingress's own model, whose name no other model can take.

        Raises ChatModelError, SealedModelError, OSError.
        """
        self._applications = applications
        self._own = _Application(workers, promised=card, served={card: _served(card, workers)})
        self._others: dict[str, _Application] = {}
        self._updating = asyncio.Lock()
        self._models = _Models()
        self._publish()

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """The models by name, the ingress's own first; always the same object."""
        return self._models

    def workers(self) -> list[WorkerRow]:
        """Returns the worker table of all models, the ingress's own first."""
        return [row for one in self._all() for row in one.workers.workers()]

    async def call_each(self, method: MemoryMethod, *arguments: object) -> list[Any]:
        """Calls the workers of all models; see CallEachWorker."""
        answers = await asyncio.gather(*(one.workers.call_each(method, *arguments) for one in self._all()))
        return [answer for of_model in answers for answer in of_model]

    async def watch(self, period_s: float, first: asyncio.Event | None = None) -> None:
        """Searches every `period_s` seconds until cancelled, and follows the known workers in between.

        first: set after the first search, even if it failed.
        """
        await _wait_for_cards(self._own.workers)  # in a rolling update, a new ingress also serves the old model
        logged_error = ""
        while True:
            searched_s = time.monotonic()
            try:
                await self.search()
                logged_error = ""
            except Exception as error:  # Serve's controller may be restarting; the served models stay served
                if str(error) != logged_error:
                    logged_error = str(error)
                    logger.warning(
                        "Other models' applications can't be listed now: %s: %s", type(error).__name__, error
                    )
            if first is not None:
                first.set()
            while (left_s := searched_s + period_s - time.monotonic()) > 0:
                await asyncio.sleep(min(left_s, _FOLLOW_PERIOD_S))
                with suppress(Exception):  # `search` reports it
                    await self.follow()

    async def search(self) -> None:
        """Adds new applications, drops deleted ones, and updates the models of all."""
        found = await self._applications.find()
        for name in [name for name in self._others if name not in found]:
            del self._others[name]
        for name, application in found.items():
            if application.has_worker and name not in self._others:
                self._others[name] = _Application(self._applications.connect(name))
                await _wait_for_cards(self._others[name].workers)
        await self.follow()

    async def follow(self) -> None:
        """Updates the models to what the known workers run now. Makes no calls."""
        async with self._updating:
            await self._update("", self._own)
            for name, application in list(self._others.items()):
                await self._update(name, application)
            self._publish()

    async def _update(self, name: str, application: _Application) -> None:
        cards = list(dict.fromkeys(application.workers.cards()))
        if not cards:  # the workers are starting, or lost
            return
        served: dict[ModelCard, ServedModel] = {}
        for card in cards:
            if model := application.model_of(card) or await self._opened(card, name, application):
                served[card] = model
        if len(served) == len(cards):
            application.logged_reason = ""
        served = {card: _within_caches(model, application.workers) for card, model in served.items()}
        promised = application.promised
        if promised is not None and not any(replace(card, identity="") == promised for card in served):
            application.served = {promised: application.served[promised]} | served
        else:
            application.served, application.promised = served, None

    async def _opened(self, card: ModelCard, name: str, application: _Application) -> ServedModel | None:
        """Opens the model; returns None, and logs why, if it can't be served now."""
        others = [one for one in self._all() if one is not application]
        if application is not self._own and (taken := _taken(card, others)) is not None:
            application.log_refusal(name, f"the model name {taken!r} is taken")
            return None
        if time.monotonic() < application.try_again_s.get(card, 0.0):
            return None
        try:
            return await asyncio.get_running_loop().run_in_executor(None, _served, card, application.workers)
        except Exception as error:  # concerns this model only
            application.try_again_s[card] = time.monotonic() + _TRY_AGAIN_S
            application.log_refusal(name, f"{type(error).__name__}: {error}")
            return None

    def _publish(self) -> None:
        now: dict[str, ServedModel] = {}
        for application in self._all():
            of_application = {card.name: model for card, model in application.served.items()}
            now |= {name: model for name, model in of_application.items() if name not in now}
        self._models.now = now

    def _all(self) -> list[_Application]:
        return [self._own, *self._others.values()]


async def _wait_for_cards(workers: ModelWorkers) -> None:
    """Waits until the workers' cards are known: a new handle needs a moment."""
    for _ in range(_CARD_TRIES):
        if workers.cards():
            return
        await asyncio.sleep(_CARD_WAIT_S)


def _within_caches(model: ServedModel, workers: ModelWorkers) -> ServedModel:
    """Returns the model with a context that each of its workers' KV caches holds; itself if it has that already."""
    sizes = [row.max_context_tokens for row in workers.workers() if row.state != "gone"]
    text = model.text.within(min(sizes, default=None))
    return model if text is model.text else replace(model, text=text)


def _served(card: ModelCard, workers: ModelWorkers) -> ServedModel:
    """Raises ChatModelError, SealedModelError, OSError."""
    files = open_model(card)
    identity = model_identity(files)
    if card.identity not in ("", identity):
        raise ChatModelError(f"{card.path}: the workers have opened another version of these files")
    text: ChatModel | EncoderModel
    if encoder_settings(read_json(files / "config.json")) is not None:
        text = EncoderModel.load(files, max_context_tokens=card.max_context_tokens, identity=identity)
    else:
        text = ChatModel.load(
            files,
            max_context_tokens=card.max_context_tokens,
            on_overflow=card.on_overflow,
            thinking=ThinkingDefault(card.thinking, card.short_thinking_tokens),
            identity=identity,
            template=None if card.chat_template is None else Path(card.chat_template),
        )
    return ServedModel(text, workers.generate, created=int(time.time()), aliases=card.aliases)


def _taken(card: ModelCard, others: Iterable[_Application]) -> str | None:
    """Returns a name of the card that another application's model has; None: there is none."""
    known = {name for one in others for other in one.served for name in other.names}
    return next((name for name in card.names if name in known), None)
