"""Puts a worker's model to sleep when nobody has used it for a time, and wakes it for the next request.

A model that sleeps has given its KV cache and its activations back to the system, and leaves its weights to the page
cache. Waking it takes as long as mapping them again. The worker's process, its threads and its place on the cores stay.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from app.messages.failures import EngineStoppedError
from app.workers.awake_models import ASLEEP, IN_USE, AwakeModels
from app.workers.saved_pages import SavingEngine, save_what_is_left

WAKE_TIMEOUT_S: Final = 60.0
"""How long a request waits for memory that busy models have."""
_LOOK_S: Final = 1.0
"""How often a model is looked at that is in use for longer than it takes to fall asleep."""


class SleepingEngine(SavingEngine, Protocol):
    """What sleeps: `app.engine.engine.Engine`, or an encoder."""

    def release_memory(self) -> "Future[bool]":
        """As `Engine.release_memory`."""


class _Questions:
    """The socket on which other workers ask for this one's memory. uvloop has no Unix datagrams of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._askers: asyncio.Queue[Any] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)
        self._socket.bind(str(path))

    async def next(self) -> Any:
        """The address of the next worker that asks."""
        return await self._askers.get()

    def answer(self, asker: Any, answer: bytes) -> None:
        with suppress(OSError):  # it has ended
            self._socket.sendto(answer, asker)

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            self._askers.put_nowait(self._socket.recvfrom(1)[1])


def _retrieve(waking: "asyncio.Task[None]") -> None:
    """Takes the task's error, which asyncio would log if all who waited for it have gone."""
    if not waking.cancelled():
        waking.exception()


class ModelSleep:
    """A model that may sleep. Use it on one event loop."""

    def __init__(self, engine: SleepingEngine, models: AwakeModels, *, after_s: float, save_timeout_s: float) -> None:
        """The model is awake, and has its claim. Call `watch`. Raises OSError where others could not ask.

        after_s: how long after the last request it falls asleep. save_timeout_s: how long saving its users' pages may
        take before.
        """
        self._engine = engine
        self._models = models
        self._after_s = after_s
        self._save_timeout_s = save_timeout_s
        self._users = 0
        self._used_s = time.monotonic()
        self._changing = asyncio.Lock()
        self._waking: asyncio.Task[None] | None = None
        self.is_asleep = False
        self._questions = _Questions(models.socket)

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        """Keeps the model awake inside; waits until it is. Raises QueueFullError if there is no memory for it."""
        self._users += 1
        try:
            if self.is_asleep or self._changing.locked():
                if self._waking is None:
                    self._waking = asyncio.create_task(self._wake())
                    self._waking.add_done_callback(_retrieve)
                await asyncio.shield(self._waking)  # others may wait for it too
            yield
        finally:
            self._users -= 1
            self._used_s = time.monotonic()
            self._models.used()

    async def watch(self) -> None:
        """Puts the model to sleep when it is idle for long, or when another worker asks, until cancelled."""
        with closing(self._questions):
            while True:
                left_s = self._after_s if self.is_asleep else max(self._left_s(), min(self._after_s, _LOOK_S))
                asker = None
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        asker = await self._questions.next()
                if asker is not None or self._left_s() <= 0:
                    await self._fall_asleep()
                if asker is not None:
                    self._questions.answer(asker, ASLEEP if self.is_asleep else IN_USE)

    def _left_s(self) -> float:
        return self._used_s + self._after_s - time.monotonic()

    async def _wake(self) -> None:
        try:
            async with self._changing:
                if self.is_asleep:
                    await asyncio.to_thread(self._models.claim, WAKE_TIMEOUT_S)
                    self.is_asleep = False
        finally:
            self._waking = None

    async def _fall_asleep(self) -> None:
        async with self._changing:
            if self.is_asleep or self._users:
                return
            await asyncio.to_thread(save_what_is_left, self._engine, self._save_timeout_s)
            try:
                if not await asyncio.wrap_future(self._engine.release_memory()):
                    return
            except EngineStoppedError:
                return
            self._models.release()
            self.is_asleep = True
